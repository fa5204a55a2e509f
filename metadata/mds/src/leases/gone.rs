//! Holders that are gone, by their own word or by their silence.

use std::collections::HashSet;

use super::{GIVE_UP_MS, Given, Holder, LeaseKind, Leases, Table, Who};

impl Table {
    /// Forgets a holder, whose leases were forgotten; whoever waits for it is told.
    fn forget_client(&mut self, who: &Who) {
        if let Some(mut client_id) = self.holders.remove(who) {
            client_id.wake();
        }
    }

    /// Forgets all leases that this is said of. O(leases).
    fn forget_given(&mut self, goes: impl Fn(&Given) -> bool) {
        let mut users = Vec::new();
        for file in self.files.values_mut() {
            users.extend(file.given.iter().filter(|one| goes(one)).map(|one| one.who.0.clone()));
            file.given.retain(|one| !goes(one));
        }
        users.iter().for_each(|user| self.uncount(user));
    }
}

impl Leases {
    /// Forgets holders that were not heard of for long, and what nothing is known of any more. What such a one had to write
    /// stays: somebody who is in its way has it fenced.
    pub(crate) fn tidy(&self, forget_ms: u64, now_ms: u64) {
        let table = &mut *self.table.lock();
        let gone = |one: &Holder| one.heard_ms.saturating_add(forget_ms.max(GIVE_UP_MS)) < now_ms;
        let over: HashSet<Who> =
            table.holders.iter().filter(|(_, one)| gone(one)).map(|(who, _)| who.clone()).collect();
        if !over.is_empty() {
            table.forget_given(|one| one.kind != LeaseKind::Write && over.contains(&one.who));
            over.iter().for_each(|who| table.forget_client(who));
        }
        table.penalties.expire(now_ms);
        table.files.retain(|_, file| !file.is_idle(now_ms));
        if !table.waits(now_ms) {
            table.back.clear();
        }
    }

    /// A holder is gone. Where it is ahead of what is known here its lease stays until somebody is in its way.
    pub(crate) fn end(&self, who: &Who) {
        let table = &mut *self.table.lock();
        table.forget_given(|one| !one.ahead && one.who == *who);
        if table.before.remove(who) {
            table.back.insert(who.clone());
        }
        table.forget_client(who);
    }
}
