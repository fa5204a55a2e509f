//! Penalties: a user whose clients miss recalls, or answer them late, gets no leases for a growing
//! time.
//!
//! Does: add up by user how long others waited for leases, so that a new client id or session does
//! not reset that; recall all leases of such a user at once, so that they do not delay others one
//! by one.
//! Does not: refuse opens, reads or writes; clients without leases request everything from the
//! server.
//! Contract: a missed recall of a lease begins a penalty, and so do late answers of
//! [`DELAY_MAX_MS`] together. So others wait twice [`REVOKE_AFTER_MS`] for a user at most before a
//! penalty. Penalties begin with [`FIRST_MS`], double up to [`LONGEST_MS`], and begin with the
//! first again after [`FORGET_MS`] without one. Time to write data back does not count.
//! Truth: docs/standards/mds/leases.md §5.11; docs/adr/0062-bounds-per-user.md.

use std::collections::HashMap;

use sealstone_mds_protocol::{LeaseKind, Recall, UserName};

use super::{GrantedLease, LeaseTable, Leases, PendingRecall, REVOKE_AFTER_MS};

/// The first penalty, milliseconds.
pub(crate) const FIRST_MS: u64 = 60_000;
/// The longest penalty, milliseconds.
pub(crate) const LONGEST_MS: u64 = 64 * FIRST_MS;
/// Time after a penalty when the next one is a first one again, milliseconds.
pub(crate) const FORGET_MS: u64 = 2 * LONGEST_MS;
/// Total time that others may wait for a user's read leases before a penalty begins, milliseconds.
pub(crate) const DELAY_MAX_MS: u64 = 5_000;
/// An answer within this time does not count, milliseconds.
pub(crate) const PROMPT_MS: u64 = 250;
/// A wait of one millisecond expires after this many milliseconds.
const DELAY_DECAY: u64 = 50;

#[derive(Clone, Copy, Debug, Default)]
struct Penalty {
    length_ms: u64,
    until_ms: u64,
    /// How long others waited, as of `waited_at_ms`.
    waited_ms: u64,
    waited_at_ms: u64,
}

impl Penalty {
    fn waited_ms(&self, now_ms: u64) -> u64 {
        self.waited_ms.saturating_sub(now_ms.saturating_sub(self.waited_at_ms) / DELAY_DECAY)
    }
}

/// Users with penalties.
#[derive(Debug, Default)]
pub(super) struct Penalties {
    of: HashMap<UserName, Penalty>,
    /// Penalties since the start.
    count: u64,
}

impl Penalties {
    /// Whether a user gets no leases now.
    pub(super) fn has(&self, user: &UserName, now_ms: u64) -> bool {
        self.of.get(user).is_some_and(|one| now_ms < one.until_ms)
    }

    /// Adds a wait of others for a user's lease. Returns the length of the penalty that begins, if
    /// one does.
    fn add(&mut self, user: &UserName, waited_ms: u64, now_ms: u64) -> Option<u64> {
        let one = self.of.entry(user.clone()).or_default();
        if now_ms < one.until_ms {
            return None;
        }
        one.waited_ms = one.waited_ms(now_ms).saturating_add(waited_ms);
        one.waited_at_ms = now_ms;
        if one.waited_ms < DELAY_MAX_MS {
            return None;
        }
        one.waited_ms = 0;
        let forgotten = one.until_ms.saturating_add(FORGET_MS) <= now_ms;
        one.length_ms = if forgotten { FIRST_MS } else { (2 * one.length_ms).clamp(FIRST_MS, LONGEST_MS) };
        one.until_ms = now_ms.saturating_add(one.length_ms);
        self.count += 1;
        Some(one.length_ms)
    }

    /// Removes users whose last penalty ended long ago.
    pub(super) fn expire(&mut self, now_ms: u64) {
        self.of.retain(|_, one| {
            one.until_ms.saturating_add(FORGET_MS) > now_ms && one.until_ms > 0 || one.waited_ms(now_ms) > 0
        });
    }
}

impl LeaseTable {
    /// Adds a wait of others for a lease of a user. If a penalty begins, all leases of the user are
    /// recalled: O(leases), once in a penalty.
    pub(super) fn penalize(&mut self, user: &UserName, waited_ms: u64, now_ms: u64) {
        let Some(length_ms) = self.penalties.add(user, waited_ms, now_ms) else { return };
        let seconds = length_ms / 1000;
        tracing::warn!(%user, seconds, "clients of the user answer recalls late or not at all; the user gets no leases");
        for (id, file) in &mut self.files {
            for granted in
                file.leases.iter_mut().filter(|one| one.client.0 == *user && one.recalled.is_none())
            {
                self.last += 1;
                let mut until_ms = now_ms;
                if let Some(state) = self.clients.get_mut(&granted.client) {
                    state.recalls.insert(self.last, Recall { inode: *id, number: granted.number });
                    state.wake();
                    until_ms = state.last_seen_ms.min(now_ms).saturating_add(REVOKE_AFTER_MS);
                }
                granted.recalled = Some(PendingRecall { number: self.last, began_ms: now_ms, until_ms });
                file.recalled_ms = Some(now_ms);
            }
        }
    }

    /// Handles a returned lease: a read lease has nothing to write back, so it is due at once.
    pub(super) fn penalize_if_slow(&mut self, granted: &GrantedLease, now_ms: u64) {
        let Some(recall) = granted.recalled.filter(|_| granted.kind == LeaseKind::Read) else { return };
        let waited_ms = now_ms.saturating_sub(recall.began_ms);
        if waited_ms > PROMPT_MS {
            self.penalize(&granted.client.0, waited_ms, now_ms);
        }
    }
}

impl Leases {
    /// Penalties since the start, for metrics.
    pub(crate) fn penalties(&self) -> u64 {
        self.table.lock().penalties.count
    }

    /// Whether a user gets no leases now.
    #[cfg(test)]
    pub(crate) fn is_penalized(&self, user: &UserName, now_ms: u64) -> bool {
        self.table.lock().penalties.has(user, now_ms)
    }
}
