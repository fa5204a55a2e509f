//! Clients that ended or expired.

use std::collections::HashSet;

use super::{ClientKey, GrantedLease, LeaseClient, LeaseKind, LeaseTable, Leases, REVOKE_AFTER_MS};

impl LeaseTable {
    /// Removes a client without leases and wakes its pending requests.
    fn forget_client(&mut self, client: &ClientKey) {
        if let Some(mut state) = self.clients.remove(client) {
            state.wake();
        }
    }

    /// Removes all leases that match. O(leases).
    fn remove_leases(&mut self, matches: impl Fn(&GrantedLease) -> bool) {
        let mut users = Vec::new();
        for file in self.files.values_mut() {
            users.extend(file.leases.iter().filter(|one| matches(one)).map(|one| one.client.0.clone()));
            file.leases.retain(|one| !matches(one));
        }
        users.iter().for_each(|user| self.uncount(user));
    }
}

impl Leases {
    /// Removes clients that sent nothing for long, and idle nodes. Write leases stay: a conflicting
    /// request has their client fenced.
    pub(crate) fn expire(&self, forget_ms: u64, now_ms: u64) {
        let table = &mut *self.table.lock();
        let expired =
            |one: &LeaseClient| one.last_seen_ms.saturating_add(forget_ms.max(REVOKE_AFTER_MS)) < now_ms;
        let over: HashSet<ClientKey> =
            table.clients.iter().filter(|(_, one)| expired(one)).map(|(client, _)| client.clone()).collect();
        if !over.is_empty() {
            table.remove_leases(|one| one.kind != LeaseKind::Write && over.contains(&one.client));
            over.iter().for_each(|client| table.forget_client(client));
        }
        table.penalties.expire(now_ms);
        table.files.retain(|_, file| !file.is_idle(now_ms));
        if !table.waits(now_ms) {
            table.returned.clear();
        }
    }

    /// Removes an ended client. Its directory delegations stay until another client needs the
    /// directory.
    pub(crate) fn end_client(&self, client: &ClientKey) {
        let table = &mut *self.table.lock();
        table.remove_leases(|one| !one.delegation && one.client == *client);
        if table.unrecovered.remove(client) {
            table.returned.insert(client.clone());
        }
        table.forget_client(client);
    }
}
