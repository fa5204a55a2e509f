//! Holders on record, and files without a name that are held.
//!
//! Does: say in the store that there are holders before they hold anything, and take that back when they are gone; keep
//! what they hold from being dropped. Does not: store what is held; `holds` has that, in memory.
//! Contract: a record stands for a holder that this server knows, or knew before it last ended: it goes with its holder,
//! or a minute after the start. Several servers on one store write their names into theirs, and touch no others'.
//! Truth: docs/standards/mds/nodes.md §5.8; docs/adr/0034-node-numbers-and-open-files.md.

use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{ClientId, UserName, record};

use crate::error::{MdsError, Result};
use crate::holds::HOLD_MS;
use crate::keys;
use crate::namespace::{self, UnlinkContext};
use crate::records::{decode, save};
use crate::server::Mds;
use crate::shared::ServerName;
use crate::store::{MetaStore, each_between};

/// Holders read in one go, and forgotten in one transaction.
const CLIENTS_PAGE: usize = 4096;
/// Orphans that are looked at in one transaction.
const ORPHANS_PAGE: usize = 64;
/// Transactions in which orphans go before other work has its turn.
const SWEEPS_MAX: usize = 64;

type Named = (UserName, ClientId);

record! {
    /// A holder that is given leases. The record of another one is the name of its server alone.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Led {
        /// Its server.
        pub server: ServerName,
        /// Is it given leases?
        pub led: bool,
    }
}

/// The server of a holder's record; one that says nothing is of the only server there was.
fn server_of(value: &[u8]) -> ServerName {
    decode::<Led>(value).map(|led| led.server).or_else(|_| decode(value)).unwrap_or_default()
}

/// The holders on record of the only server there is: those that may have leases, and whether there are others.
pub(crate) fn led_on_record(store: &dyn MetaStore) -> Result<(Vec<Named>, bool)> {
    let (mut led, mut others) = (Vec::new(), false);
    let prefix = keys::holders();
    each_between(&*store.snapshot()?, &prefix, &keys::after_prefix(&prefix), |key, value| {
        match keys::client_parts(key) {
            Some(named) if decode::<Led>(value).is_ok_and(|one| one.led) => led.push(named),
            _ => others = true,
        }
        Ok::<_, MdsError>(())
    })?;
    Ok((led, others))
}

/// Calls `each` with every page of holders on record whose server is one of these, until it says that it is enough.
fn each_page(
    store: &dyn MetaStore,
    of: &impl Fn(&ServerName) -> bool,
    mut each: impl FnMut(Vec<Named>) -> Result<bool>,
) -> Result<()> {
    let until = keys::after_prefix(&keys::holders());
    let mut from = keys::holders();
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

/// Were there holders when the server ended: this one of those that share the store, or the only one?
pub(crate) fn are_on_record(store: &dyn MetaStore, own: Option<&ServerName>) -> Result<bool> {
    let mut any = false;
    let of = |server: &ServerName| own.is_none_or(|own| server == own);
    each_page(store, &of, |page| {
        any |= !page.is_empty();
        Ok(any)
    })?;
    Ok(any)
}

impl Mds {
    /// There is this holder from here on; that is on record before it holds anything.
    pub(crate) fn register_client(&self, user: &UserName, client_id: ClientId, now_ms: u64) -> Result<()> {
        if !self.holds.meet(user, client_id, now_ms)? {
            // If this fails, or what the holder is met for, it goes again when it was not heard of for a minute.
            self.update(|tx| Ok(save(tx, &keys::client(user, client_id), &self.config.server)?))?;
            self.holds.recorded(user, client_id);
        }
        Ok(())
    }

    /// The same of one that is to be given leases: after a restart it may believe in them for a while.
    pub(crate) fn meet_led(&self, user: &UserName, client_id: ClientId, now_ms: u64) -> Result<()> {
        self.holds.meet(user, client_id, now_ms)?;
        let led = Led { server: self.config.server, led: true };
        self.update(|tx| Ok(save(tx, &keys::client(user, client_id), &led)?))?;
        self.holds.recorded(user, client_id);
        Ok(())
    }

    /// A holder says that it is gone: what it had is free at once, and nobody waits for it after a restart. Where it is still ahead of
    /// what is known here, that stays on record until somebody is in its way.
    pub(crate) fn end_client(&self, who: &Named, now_ms: u64) -> Result<()> {
        // First, so that a wait of its own for recalls does not have it back.
        let nodes = self.holds.end(&who.0, who.1, now_ms);
        self.leases.end(who);
        for id in nodes {
            self.release_locks(id, who)?;
            self.let_go_of_fence(id, who)?;
            self.let_go(id, now_ms)?;
        }
        self.forget_clients(core::slice::from_ref(who), &|server| {
            !self.config.shared || *server == self.config.server
        })
    }

    /// Forgets holders that were not heard of, those of before the start when they had their time too, and has what the
    /// others hold stay.
    pub(crate) fn expire_clients(&self, now_ms: u64) -> Result<()> {
        let own = |server: &ServerName| !self.config.shared || *server == self.config.server;
        let waits = self.holds.waits(now_ms);
        self.leases.tidy(HOLD_MS, now_ms);
        let mut gone = Vec::new();
        for (user, client_id, nodes) in self.holds.expire(now_ms) {
            let who = (user, client_id);
            nodes.into_iter().for_each(|(id, wrote)| self.end_locks(id, &who, wrote, now_ms));
            gone.push(who);
        }
        self.forget_clients(&gone, &own)?;
        if !waits && !self.clients_swept.load(Ordering::Relaxed) {
            self.forget_clients_of_servers(&own)?;
            self.fence_those_before(now_ms);
            self.clients_swept.store(true, Ordering::Relaxed);
        }
        if self.config.shared && self.is_leading(now_ms) {
            self.fence_those_of_dead_servers(now_ms)?;
        }
        self.tidy_fences(now_ms)?;
        if self.config.shared {
            // Only the server that leads drops any.
            self.sweep_orphans(false, now_ms)?;
        }
        Ok(())
    }

    /// Forgets holders on record whose server is one of these, unless they are known here.
    pub(crate) fn forget_clients_of_servers(&self, of: &impl Fn(&ServerName) -> bool) -> Result<()> {
        each_page(&*self.store, of, |page| {
            self.forget_clients(&page, of)?;
            Ok(false)
        })
    }

    fn forget_clients(&self, gone: &[Named], of: &impl Fn(&ServerName) -> bool) -> Result<()> {
        if gone.is_empty() {
            return Ok(());
        }
        self.update(|tx| {
            for (user, client_id) in gone {
                let key = keys::client(user, *client_id);
                // Whoever came back meanwhile stays on record, or is put there after this; so does who went to another server.
                let goes = !self.holds.knows(user, *client_id);
                if goes && tx.get(&key)?.is_some_and(|value| of(&server_of(&value))) {
                    tx.delete(&key)?;
                }
            }
            Ok(())
        })
    }

    /// Looks at all files without a name whose time comes soon: gives those that are held more of it, before they are due;
    /// `drops`: has those go that are due and not held. Says whether there may be more to do.
    pub(crate) fn sweep_orphans(&self, drops: bool, now_ms: u64) -> Result<bool> {
        let (mut after, mut sweeps) = (None, 0);
        loop {
            let page = namespace::orphans(&*self.store.snapshot()?, after.as_deref(), ORPHANS_PAGE, now_ms)?;
            let removing = self.holds.removing(self.config.shared, now_ms);
            let reap_due_ms = now_ms.saturating_add(self.config.reap_grace_ms);
            let ending = UnlinkContext { reap_due_ms, now_ms, removing: &removing };
            if page.iter().any(|key| namespace::is_swept(key, drops, &ending)) {
                self.update(|tx| namespace::sweep_orphans(tx, &page, drops, &ending))?;
                sweeps += 1;
            }
            if page.len() < ORPHANS_PAGE {
                return Ok(false);
            }
            if drops && sweeps >= SWEEPS_MAX {
                return Ok(true);
            }
            after = page.into_iter().next_back();
        }
    }
}
