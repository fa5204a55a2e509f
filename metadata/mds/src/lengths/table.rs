//! Table of files and creates whose objects need measuring, by the time when they are due.
//!
//! Does: keep the entries within a share for each user, and return those that are due.
//! Does not: read records or apply lengths; `lengths` does.
//! Truth: docs/adr/0062-bounds-per-user.md.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use sealstone_mds_protocol::{InodeId, IntentId, UserName};

use crate::share;

/// Maximum number of files and creates; about 200 bytes each.
const CHECKS_MAX: usize = 1 << 20;
/// Margin after the credentials have expired, for different clocks of devices, milliseconds.
pub(super) const MARGIN_MS: u64 = 5_000;
/// Delay before a device that did not respond is queried again, milliseconds.
const RETRY_MS: u64 = 30_000;

/// A file or an uncommitted create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum LengthTarget {
    File(InodeId),
    /// A create and the inode number of its file.
    Create(IntentId, InodeId),
}

struct LengthCheck {
    user: UserName,
    due_ms: u64,
    /// Whether credentials to write were revoked because the bytes exceed a quota.
    revoked: bool,
}

#[derive(Default)]
struct LengthTable {
    checks: HashMap<LengthTarget, LengthCheck>,
    by_due: BTreeSet<(u64, LengthTarget)>,
    by_user: HashMap<UserName, usize>,
}

impl LengthTable {
    fn remove(&mut self, what: LengthTarget) {
        let Some(check) = self.checks.remove(&what) else { return };
        self.by_due.remove(&(check.due_ms, what));
        if let Some(own) = self.by_user.get_mut(&check.user) {
            *own -= 1;
            if *own == 0 {
                self.by_user.remove(&check.user);
            }
        }
    }

    fn put_off(&mut self, what: LengthTarget, due_ms: u64) {
        if let Some(check) = self.checks.get_mut(&what) {
            self.by_due.remove(&(check.due_ms, what));
            check.due_ms = due_ms;
            self.by_due.insert((due_ms, what));
        }
    }
}

/// The files and creates to check.
#[derive(Default)]
pub(crate) struct LengthChecks(Mutex<LengthTable>);

impl LengthChecks {
    /// Adds an entry when a credential to write is issued. Returns whether there is an entry.
    pub(super) fn note(&self, what: LengthTarget, user: &UserName, expires_ms: u64) -> bool {
        let table = &mut *self.0.lock();
        if table.checks.contains_key(&what) {
            // Checked when the first credential expires, and again later.
            return true;
        }
        let own = table.by_user.get(user).copied().unwrap_or_default();
        if !share::is_free(own, table.checks.len(), 1, CHECKS_MAX) {
            return false;
        }
        let due_ms = expires_ms.saturating_add(MARGIN_MS);
        *table.by_user.entry(user.clone()).or_default() += 1;
        table.by_due.insert((due_ms, what));
        table.checks.insert(what, LengthCheck { user: user.clone(), due_ms, revoked: false });
        true
    }

    pub(super) fn due(&self, limit: usize, now_ms: u64) -> Vec<LengthTarget> {
        let table = &mut *self.0.lock();
        let due = table.by_due.iter().take_while(|(due_ms, _)| *due_ms <= now_ms).take(limit);
        let due: Vec<LengthTarget> = due.map(|(_, what)| *what).collect();
        due.iter().for_each(|what| table.put_off(*what, now_ms.saturating_add(RETRY_MS)));
        due
    }

    /// Removes an entry.
    pub(super) fn remove(&self, what: LengthTarget) {
        self.0.lock().remove(what);
    }

    /// Sets the time of the next check.
    pub(super) fn put_off(&self, what: LengthTarget, due_ms: u64) {
        self.0.lock().put_off(what, due_ms);
    }

    /// Whether credentials to write were revoked because the bytes exceed a quota.
    pub(super) fn is_revoked(&self, what: LengthTarget) -> bool {
        self.0.lock().checks.get(&what).is_some_and(|check| check.revoked)
    }

    /// Notes that credentials to write were revoked because the bytes exceed a quota.
    pub(super) fn set_revoked(&self, what: LengthTarget) {
        if let Some(check) = self.0.lock().checks.get_mut(&what) {
            check.revoked = true;
        }
    }

    /// Returns the number of entries.
    pub(super) fn count(&self) -> usize {
        self.0.lock().checks.len()
    }
}
