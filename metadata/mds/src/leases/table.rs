//! Changes of the lease table: counts, recalls, revocation, epochs of clients.
//!
//! Does not: lock the table; `Leases` does, in the parent module.

use sealstone_mds_protocol::{InodeId, LeaseKind, Recall, UserName};

use super::{
    ClientKey, ConflictVerdict, GrantedLease, LeaseAccess, LeaseTable, PendingRecall, REVOKE_AFTER_MS,
    RecallOutcome, penalty,
};

impl LeaseTable {
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Whether the grace period for leases of before the restart is active.
    pub(super) fn waits(&mut self, now_ms: u64) -> bool {
        if self.unrecovered.is_empty() {
            return false;
        }
        let until_ms = *self.recovery_end_ms.get_or_insert(now_ms.saturating_add(REVOKE_AFTER_MS));
        if now_ms >= until_ms {
            self.unrecovered.clear();
        }
        !self.unrecovered.is_empty()
    }

    pub(super) fn remove_lease(
        &mut self,
        id: InodeId,
        which: impl Fn(&GrantedLease) -> bool,
    ) -> Option<GrantedLease> {
        let file = self.files.get_mut(&id)?;
        let at = file.leases.iter().position(which)?;
        let granted = file.leases.swap_remove(at);
        self.uncount(&granted.client.0);
        if granted.delegation {
            self.ends.note(id);
        }
        if let Some(state) = self.clients.get_mut(&granted.client) {
            state.leases = state.leases.saturating_sub(1);
            if let Some(recall) = granted.recalled {
                state.recalls.remove(&recall.number);
            }
        }
        Some(granted)
    }

    /// Recalls the leases that conflict with an access.
    pub(super) fn recall(
        &mut self,
        id: InodeId,
        by: Option<&ClientKey>,
        what: LeaseAccess,
        now_ms: u64,
    ) -> RecallOutcome {
        let mut outcome = RecallOutcome::default();
        let Some(file) = self.files.get_mut(&id) else { return outcome };
        let (mut expired, mut missed) = (Vec::new(), Vec::new());
        for granted in &mut file.leases {
            if Some(&granted.client) == by || !what.conflicts_with(granted.kind) {
                continue;
            }
            let PendingRecall { began_ms, until_ms, .. } = *granted.recalled.get_or_insert_with(|| {
                self.last += 1;
                outcome.begun += 1;
                file.recalled_ms = Some(now_ms);
                let (number, began_ms) = (self.last, now_ms);
                let Some(state) = self.clients.get_mut(&granted.client) else {
                    // The client sent nothing for longer than leases are valid, or not since the
                    // restart.
                    let since_start = self.unrecovered.contains(&granted.client);
                    let until_ms = || now_ms.saturating_add(REVOKE_AFTER_MS);
                    let until_ms = since_start.then(|| *self.recovery_end_ms.get_or_insert_with(until_ms));
                    return PendingRecall { number, began_ms, until_ms: until_ms.unwrap_or(now_ms) };
                };
                state.recalls.insert(self.last, Recall { inode: id, number: granted.number });
                state.wake();
                let until_ms = state.last_seen_ms.min(now_ms).saturating_add(REVOKE_AFTER_MS);
                PendingRecall { number, began_ms, until_ms }
            });
            match granted.kind {
                _ if now_ms < until_ms => outcome.waits = true,
                LeaseKind::Read => expired.push(granted.number),
                LeaseKind::Write => outcome.lost.push(granted.client.clone()),
            }
            // A missed recall; clients of before a restart may not have received it.
            if began_ms < until_ms && until_ms <= now_ms && !self.unrecovered.contains(&granted.client) {
                missed.push(granted.client.0.clone());
            }
        }
        if !expired.is_empty() {
            // After an unanswered recall no new opportunistic lease is granted for a while.
            file.recalled_ms = Some(now_ms);
        }
        for number in expired {
            self.revoke(id, |granted| granted.number == number);
        }
        missed.iter().for_each(|user| self.penalize(user, penalty::DELAY_MAX_MS, now_ms));
        outcome
    }

    pub(super) fn count(&mut self, user: &UserName) {
        self.count += 1;
        match self.by_user.get_mut(user) {
            Some(own) => *own += 1,
            None => _ = self.by_user.insert(user.clone(), 1),
        }
    }

    pub(super) fn uncount(&mut self, user: &UserName) {
        self.count -= 1;
        if let Some(own) = self.by_user.get_mut(user) {
            *own -= 1;
            if *own == 0 {
                self.by_user.remove(user);
            }
        }
    }

    /// Recalls conflicting leases; returns the verdict and the number of new recalls.
    pub(super) fn recalled(
        &mut self,
        id: InodeId,
        by: Option<&ClientKey>,
        what: LeaseAccess,
        now_ms: u64,
    ) -> (ConflictVerdict, u64) {
        let RecallOutcome { begun, waits, lost } = self.recall(id, by, what, now_ms);
        let verdict = match () {
            () if waits => ConflictVerdict::Wait,
            () if lost.is_empty() => ConflictVerdict::Free,
            () => ConflictVerdict::Fence(lost),
        };
        (verdict, begun)
    }

    /// Revokes a lease of a client that did not return it: the client gets a new epoch and drops
    /// all leases before it gets others.
    pub(super) fn revoke(&mut self, id: InodeId, which: impl Fn(&GrantedLease) -> bool) {
        if let Some(granted) = self.remove_lease(id, which) {
            self.begin_epoch(&granted.client);
        }
    }

    pub(super) fn begin_epoch(&mut self, client: &ClientKey) {
        if let Some(state) = self.clients.get_mut(client) {
            state.epoch = state.epoch.wrapping_add(1).max(1);
            state.confirmed = false;
            state.wake();
        }
    }

    /// Removes leases that a client has from other epochs.
    pub(super) fn drop_other_epochs(&mut self, client: &ClientKey, epoch: u64, now_ms: u64) {
        let of = |granted: &GrantedLease| granted.client == *client && granted.epoch != epoch;
        let ids: Vec<InodeId> =
            self.files.iter().filter(|(_, file)| file.leases.iter().any(of)).map(|(id, _)| *id).collect();
        for id in ids {
            while let Some(granted) = self.remove_lease(id, of) {
                self.penalize_if_slow(&granted, now_ms);
            }
        }
    }
}
