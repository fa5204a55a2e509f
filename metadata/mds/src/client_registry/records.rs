//! Records of clients.
//!
//! Does: define the record, and read the recorded clients.
//! Does not: register clients; `client_registry` does.
//! Truth: docs/standards/mds/nodes.md §5.8.

use sealstone_mds_protocol::record;

use crate::error::{MdsError, Result};
use crate::keys;
use crate::leases::ClientKey;
use crate::records::decode;
use crate::server_registry::ServerName;
use crate::store::{MetaStore, each_between};

/// Clients read at once, and deleted in one transaction.
const CLIENTS_PAGE: usize = 4096;

record! {
    /// A client that is eligible for leases. The record of another client is the name of its server
    /// alone.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ClientRecord {
        pub server: ServerName,
        /// Whether it is eligible for leases.
        pub caching: bool,
    }
}

/// Returns the server of a client's record; without one it is the only server.
pub(crate) fn server_of(value: &[u8]) -> ServerName {
    decode::<ClientRecord>(value).map(|caching| caching.server).or_else(|_| decode(value)).unwrap_or_default()
}

/// Returns the recorded clients that may have leases, and whether there are others.
pub(crate) fn recorded_clients(store: &dyn MetaStore) -> Result<(Vec<ClientKey>, bool)> {
    let (mut caching, mut others) = (Vec::new(), false);
    let prefix = keys::clients();
    each_between(&*store.snapshot()?, &prefix, &keys::after_prefix(&prefix), |key, value| {
        match keys::client_parts(key) {
            Some(named) if decode::<ClientRecord>(value).is_ok_and(|one| one.caching) => caching.push(named),
            _ => others = true,
        }
        Ok::<_, MdsError>(())
    })?;
    Ok((caching, others))
}

/// Calls `each` with every page of recorded clients of matching servers, until it returns true.
pub(crate) fn each_page(
    store: &dyn MetaStore,
    of: &impl Fn(&ServerName) -> bool,
    mut each: impl FnMut(Vec<ClientKey>) -> Result<bool>,
) -> Result<()> {
    let until = keys::after_prefix(&keys::clients());
    let mut from = keys::clients();
    loop {
        let page = store.snapshot()?.scan(&from, &until, CLIENTS_PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        from = [&last[..], &[0]].concat();
        let theirs = page.iter().filter(|(_, value)| of(&server_of(value)));
        if each(theirs.filter_map(|(key, _)| keys::client_parts(key)).collect())? {
            return Ok(());
        }
    }
}

/// Whether clients were recorded before the restart, of this server or of the only one.
pub(crate) fn has_recorded_clients(store: &dyn MetaStore, own: Option<&ServerName>) -> Result<bool> {
    let mut any = false;
    let of = |server: &ServerName| own.is_none_or(|own| server == own);
    each_page(store, &of, |page| {
        any |= !page.is_empty();
        Ok(any)
    })?;
    Ok(any)
}
