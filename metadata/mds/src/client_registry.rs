//! Client registry: durable records of clients, and orphans that clients have open.
//!
//! Does: record a client before it opens anything, delete the record when it ends or expires; keep
//! its open files from removal.
//! Does not: store open files; `open_files` has them in memory.
//! Contract: a record stands for a client that this server knows, or knew before its restart: it is
//! deleted with the client, or one minute after the restart. Of several servers on one store each
//! one touches its own records only.
//! Truth: docs/standards/mds/nodes.md §5.8; docs/adr/0034-node-numbers-and-open-files.md.

use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{ClientId, UserName};

use crate::error::Result;
use crate::keys;
use crate::leases::ClientKey;
use crate::namespace::{self, UnlinkContext};
use crate::open_files::CLIENT_TIMEOUT_MS;
use crate::records::save;
use crate::server::Mds;
use crate::server_registry::ServerName;

pub(crate) mod records;

use records::{ClientRecord, each_page, server_of};

/// Orphans checked in one transaction.
const ORPHANS_PAGE: usize = 64;
/// Maximum number of transactions of one orphan sweep.
const SWEEPS_MAX: usize = 64;

impl Mds {
    /// Registers a client; it is recorded before it opens anything.
    pub(crate) fn register_client(&self, user: &UserName, client_id: ClientId, now_ms: u64) -> Result<()> {
        if !self.open_files.register(user, client_id, now_ms)? {
            // If this or the request fails, the client expires after a minute.
            self.update(|tx| Ok(save(tx, &keys::client(user, client_id), &self.config.server)?))?;
            self.open_files.set_recorded(user, client_id);
        }
        Ok(())
    }

    /// Registers a client that is eligible for leases: after a restart it may have valid leases for
    /// a while.
    pub(crate) fn register_caching_client(
        &self,
        user: &UserName,
        client_id: ClientId,
        now_ms: u64,
    ) -> Result<()> {
        self.open_files.register(user, client_id, now_ms)?;
        let caching = ClientRecord { server: self.config.server, caching: true };
        self.update(|tx| Ok(save(tx, &keys::client(user, client_id), &caching)?))?;
        self.open_files.set_recorded(user, client_id);
        Ok(())
    }

    /// Ends a client: its open files, locks and leases end at once. Its directory delegations stay
    /// recorded until another client needs the directory.
    pub(crate) fn end_client(&self, client: &ClientKey, now_ms: u64) -> Result<()> {
        // First, so that its own pending `Recalls` does not register it again.
        let nodes = self.open_files.end_client(&client.0, client.1, now_ms);
        self.leases.end_client(client);
        for id in nodes {
            self.release_locks(id, client)?;
            self.release_fence(id, client)?;
            self.remove_if_unused(id, now_ms)?;
        }
        self.forget_clients(core::slice::from_ref(client), &|server| {
            !self.config.shared || *server == self.config.server
        })
    }

    /// Expires silent clients, also those of before the restart after the grace period, and keeps
    /// the orphans that others have open.
    pub(crate) fn expire_clients(&self, now_ms: u64) -> Result<()> {
        let own = |server: &ServerName| !self.config.shared || *server == self.config.server;
        let waits = self.open_files.is_recovering(now_ms);
        self.leases.expire(CLIENT_TIMEOUT_MS, now_ms);
        let mut expired = Vec::new();
        for (user, client_id, nodes) in self.open_files.expire(now_ms) {
            let client = (user, client_id);
            nodes.into_iter().for_each(|(id, wrote)| self.end_locks(id, &client, wrote, now_ms));
            expired.push(client);
        }
        self.forget_clients(&expired, &own)?;
        if !waits && !self.clients_swept.load(Ordering::Relaxed) {
            self.forget_clients_of_servers(&own)?;
            self.fence_unreclaimed_locks(now_ms);
            self.clients_swept.store(true, Ordering::Relaxed);
        }
        if self.config.shared && self.is_leading(now_ms) {
            self.fence_those_of_dead_servers(now_ms)?;
        }
        self.tidy_fences(now_ms)?;
        if self.config.shared {
            // Only the leading server removes orphans.
            self.sweep_orphans(false, now_ms)?;
        }
        Ok(())
    }

    /// Deletes recorded clients of matching servers, unless they are registered here.
    pub(crate) fn forget_clients_of_servers(&self, of: &impl Fn(&ServerName) -> bool) -> Result<()> {
        each_page(&*self.store, of, |page| {
            self.forget_clients(&page, of)?;
            Ok(false)
        })
    }

    fn forget_clients(&self, expired: &[ClientKey], of: &impl Fn(&ServerName) -> bool) -> Result<()> {
        if expired.is_empty() {
            return Ok(());
        }
        self.update(|tx| {
            for (user, client_id) in expired {
                let key = keys::client(user, *client_id);
                // A client that returned stays recorded or is recorded after this; so is one that
                // moved to another server.
                let goes = !self.open_files.is_registered(user, *client_id);
                if goes && tx.get(&key)?.is_some_and(|value| of(&server_of(&value))) {
                    tx.delete(&key)?;
                }
            }
            Ok(())
        })
    }

    /// Checks all orphans that are due soon: extends those that are open, and with `drops` removes
    /// those that are due and not open. Returns whether more work may be left.
    pub(crate) fn sweep_orphans(&self, drops: bool, now_ms: u64) -> Result<bool> {
        let (mut after, mut sweeps) = (None, 0);
        loop {
            let page = namespace::orphans(&*self.store.snapshot()?, after.as_deref(), ORPHANS_PAGE, now_ms)?;
            let removing = self.open_files.removing(self.config.shared, now_ms);
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
