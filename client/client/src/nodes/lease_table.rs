//! The leases of this client: which are valid, recalled, or already returned.
//!
//! Does: records grants, recalls and returns in any order of arrival; chooses leases to return.
//! Does not: send, lock, or read a clock.
//! Contract: a lease is valid for the time in the answer to Recalls, counted from when the request
//! was sent, by two clocks of which one counts suspended time. A lease that was returned is never
//! recorded again, however late its grant arrives.
//! Truth: docs/adr/0046-leases.md; docs/standards/mds/leases.md §5.11.

mod returned;

use core::time::Duration;
use std::collections::BTreeMap;

use sealstone_mds_protocol::{DirLeaseId, InodeId, LeaseKind, NodeLease, Recall};
use tokio::time::Instant;

use returned::{RETURNED_KEEP, ReturnedLeases};

/// How long a recall of an unknown lease waits for the answer that grants it.
pub(super) const GRANT_DELAY_MAX: Duration = Duration::from_secs(1);
/// Maximum closed files that stay cached by their leases.
const CACHED_MAX: usize = 2_048;
/// Number of files to evict, least recently used first, when there are more.
const EVICT_COUNT: usize = 256;
/// Idle time after which the lease of a closed file is returned.
const CACHED_IDLE: Duration = Duration::from_secs(120);
/// Idle time after which a directory delegation is returned, so that other clients need not wait
/// for a recall.
const DELEGATION_IDLE: Duration = Duration::from_secs(6);

/// The time by two clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTime {
    pub(super) instant: Instant,
    /// By the clock that counts suspended time, in milliseconds since 1970.
    pub(super) wall_ms: u64,
}

/// The end of a validity period, by both clocks.
#[derive(Clone, Copy, Debug)]
struct Deadline(LeaseTime);

impl Deadline {
    fn left(self, now: LeaseTime) -> Duration {
        let by_wall = Duration::from_millis(self.0.wall_ms.saturating_sub(now.wall_ms));
        self.0.instant.saturating_duration_since(now.instant).min(by_wall)
    }

    /// Returns a deadline that has passed.
    fn passed(now: LeaseTime) -> Self {
        Self(LeaseTime { instant: now.instant, wall_ms: 0 })
    }
}

/// State of the lease on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseState {
    /// Valid, and not recalled.
    Valid,
    /// Recalled, and valid until it is returned.
    Recalled,
    /// Recalled and expired, but not returned yet.
    Expired,
    /// The server gives no leases or does not answer: the client works without them.
    Disabled,
    /// Not granted yet; it has to be requested.
    None,
}

/// Result of recording a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrantOutcome {
    Recorded,
    /// Recorded, but a recall of it has arrived before: it has to be returned.
    Recalled,
    /// Of another epoch, older than the known lease, or being returned.
    Ignored,
    /// Returned long ago: the server may not know, so the return has to be sent again.
    ReturnedBefore,
}

/// Result of a recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecallOutcome {
    /// A newer lease replaced it; the server knows that.
    Replaced,
    /// The known lease of this number has to be returned, unless it is being returned already.
    Return(Option<u64>),
    /// The answer that grants it has not arrived. It replaces the known lease, which has to be
    /// returned if there is one.
    Early(Option<u64>),
}

struct LeaseEntry<C> {
    lease: NodeLease,
    /// Set while the lease is being returned: the end of its validity.
    recalled: Option<Deadline>,
    /// The file, if no program has it open and it stays cached.
    cached: Option<C>,
    last_used: Instant,
}

/// The leases, with cached files of type `C`.
pub(super) struct LeaseTable<C> {
    /// The current epoch; 0 if it is not known or there are no leases.
    epoch: u64,
    last_recall: u64,
    valid_until: Option<Deadline>,
    entries: BTreeMap<InodeId, LeaseEntry<C>>,
    /// Recalls that arrived before the grant, by lease number.
    early_recalls: BTreeMap<u64, InodeId>,
    /// Returned leases, so that late answers that grant them are ignored.
    returned: ReturnedLeases,
}

impl<C> LeaseTable<C> {
    pub(super) fn new() -> Self {
        Self {
            epoch: 0,
            last_recall: 0,
            valid_until: None,
            entries: BTreeMap::new(),
            early_recalls: BTreeMap::new(),
            returned: ReturnedLeases::default(),
        }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of the last recall.
    pub(super) fn last_recall(&self) -> u64 {
        self.last_recall
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns how long leases are valid that are not recalled.
    pub(super) fn validity(&self, now: LeaseTime) -> Duration {
        self.valid_until.map_or(Duration::ZERO, |until| until.left(now))
    }

    /// Whether the server grants leases at the moment.
    pub(super) fn grants_leases(&self, now: LeaseTime) -> bool {
        self.epoch != 0 && !self.validity(now).is_zero()
    }

    pub(super) fn contains(&self, inode: InodeId) -> bool {
        self.entries.contains_key(&inode)
    }

    /// Returns the lease on a node, whatever its state.
    pub(super) fn lease(&self, inode: InodeId) -> Option<NodeLease> {
        self.entries.get(&inode).map(|entry| entry.lease)
    }

    /// Whether this lease is known, valid or not.
    pub(super) fn has(&self, inode: InodeId, number: u64) -> bool {
        self.lease(inode).is_some_and(|lease| lease.number == number)
    }

    /// Returns all leases.
    pub(super) fn leases(&self) -> impl Iterator<Item = (InodeId, NodeLease)> + '_ {
        self.entries.iter().map(|(inode, entry)| (*inode, entry.lease))
    }

    /// Returns the state of a lease of this kind or stronger. A lease under which the attributes
    /// were not received counts as missing, since they may be older.
    pub(super) fn state(
        &self,
        inode: InodeId,
        kind: LeaseKind,
        lease_seen: u64,
        now: LeaseTime,
    ) -> LeaseState {
        let entry = self.entries.get(&inode).filter(|entry| entry.lease.epoch == self.epoch);
        let covers = |lease: &NodeLease| lease.kind >= kind && lease.number == lease_seen;
        match entry {
            Some(LeaseEntry { lease, recalled: Some(until), .. }) => {
                let is_valid = covers(lease) && !until.left(now).is_zero();
                if is_valid { LeaseState::Recalled } else { LeaseState::Expired }
            }
            _ if self.validity(now).is_zero() => LeaseState::Disabled,
            Some(LeaseEntry { lease, .. }) if covers(lease) => LeaseState::Valid,
            _ => LeaseState::None,
        }
    }

    /// Returns a valid lease of this kind or stronger, and for how long; records that it is used.
    pub(super) fn use_valid(
        &mut self,
        inode: InodeId,
        kind: LeaseKind,
        now: LeaseTime,
    ) -> Option<(NodeLease, Duration)> {
        let (left, epoch) = (self.validity(now), self.epoch);
        let entry = self.entries.get_mut(&inode)?;
        let is_valid = entry.recalled.is_none() && entry.lease.epoch == epoch && entry.lease.kind >= kind;
        if !is_valid || left.is_zero() {
            return None;
        }
        entry.last_used = now.instant;
        Some((entry.lease, left))
    }

    /// Returns a valid delegation on a directory; records that it is used.
    pub(super) fn use_delegation(&mut self, inode: InodeId, now: LeaseTime) -> Option<DirLeaseId> {
        let (NodeLease { number, epoch, .. }, _) = self.use_valid(inode, LeaseKind::Write, now)?;
        Some(DirLeaseId { inode, epoch, lease: number })
    }

    /// Records a granted lease.
    pub(super) fn record_grant(&mut self, inode: InodeId, lease: NodeLease, now: LeaseTime) -> GrantOutcome {
        let is_known = |known: NodeLease| known.epoch == lease.epoch && known.number >= lease.number;
        if lease.epoch != self.epoch || self.lease(inode).is_some_and(is_known) {
            return GrantOutcome::Ignored;
        }
        match self.returned.was_returned(inode, lease.number, now.instant) {
            Some(true) => return GrantOutcome::ReturnedBefore,
            Some(false) => return GrantOutcome::Ignored,
            None => {}
        }
        // The answer that recalled it renewed nothing.
        let recalled = self.early_recalls.remove(&lease.number).map(|_| Deadline::passed(now));
        let cached = self.entries.remove(&inode).and_then(|old| old.cached);
        self.entries.insert(inode, LeaseEntry { lease, recalled, cached, last_used: now.instant });
        if recalled.is_some() { GrantOutcome::Recalled } else { GrantOutcome::Recorded }
    }

    /// Replaces a valid lease by its upgrade. Returns false if the old one is not valid any more.
    pub(super) fn upgrade(&mut self, inode: InodeId, before: u64, lease: NodeLease) -> bool {
        let is_recalled = self.early_recalls.contains_key(&lease.number);
        let epoch = self.epoch;
        let Some(entry) = self.entries.get_mut(&inode) else { return false };
        let same = entry.lease.number == before && entry.lease.epoch == lease.epoch && lease.epoch == epoch;
        if !same || entry.recalled.is_some() || is_recalled {
            return false;
        }
        entry.lease = lease;
        true
    }

    /// Keeps a closed file cached, if it has a lease that is not recalled. Returns the files to
    /// evict for it, so that at most `max` are cached; none if it is not kept.
    pub(super) fn keep_cached(&mut self, inode: InodeId, file: C, max: usize) -> Option<Vec<InodeId>> {
        let entry = self.entries.get_mut(&inode).filter(|entry| entry.recalled.is_none())?;
        entry.cached = Some(file);
        let cached = self.entries.iter().filter(|(_, entry)| entry.cached.is_some());
        let mut cached: Vec<_> = cached.map(|(inode, entry)| (entry.last_used, *inode)).collect();
        let max = max.min(CACHED_MAX);
        if cached.len() <= max {
            return Some(Vec::new());
        }
        cached.sort_unstable();
        let count = cached.len() - max + EVICT_COUNT.min(max / 2);
        Some(cached.into_iter().take(count).map(|(_, inode)| inode).collect())
    }

    /// Whether a closed file is cached.
    pub(super) fn is_cached(&self, inode: InodeId) -> bool {
        self.entries.get(&inode).is_some_and(|entry| entry.cached.is_some())
    }

    /// Marks a cached file as open again.
    pub(super) fn mark_open(&mut self, inode: InodeId) {
        if let Some(entry) = self.entries.get_mut(&inode) {
            entry.cached = None;
        }
    }

    /// Starts the return of a lease. Returns its number; none if there is no lease, or it is being
    /// returned already.
    pub(super) fn begin_return(&mut self, inode: InodeId, now: LeaseTime) -> Option<u64> {
        let until = self.valid_until;
        let entry = self.entries.get_mut(&inode).filter(|entry| entry.recalled.is_none())?;
        entry.recalled = until.or(Some(Deadline::passed(now)));
        Some(entry.lease.number)
    }

    /// Ends the return of a lease; returns the file that it kept cached.
    pub(super) fn end_return(&mut self, inode: InodeId, number: u64, now: LeaseTime) -> Option<C> {
        self.returned.record(inode, number, now.instant);
        self.entries.remove(&inode)?.cached
    }

    /// Forgets a lease that is not being returned, and counts it as returned. Returns its number
    /// and the file that it kept cached.
    pub(super) fn forget(&mut self, inode: InodeId, now: LeaseTime) -> Option<(u64, Option<C>)> {
        let entry = self.entries.get(&inode).filter(|entry| entry.recalled.is_none())?;
        let number = entry.lease.number;
        Some((number, self.end_return(inode, number, now)))
    }

    /// Counts a lease as returned that was never recorded here.
    pub(super) fn record_returned(&mut self, inode: InodeId, lease: NodeLease, now: LeaseTime) {
        if lease.epoch == self.epoch {
            self.returned.record(inode, lease.number, now.instant);
        }
    }

    /// Starts the return of a recalled lease.
    pub(super) fn on_recall(&mut self, recall: &Recall, now: LeaseTime) -> RecallOutcome {
        match self.lease(recall.inode).map(|lease| lease.number) {
            Some(number) if number == recall.number => {
                RecallOutcome::Return(self.begin_return(recall.inode, now))
            }
            Some(number) if number > recall.number => RecallOutcome::Replaced,
            _ => {
                let replaced = self.begin_return(recall.inode, now);
                self.early_recalls.insert(recall.number, recall.inode);
                RecallOutcome::Early(replaced)
            }
        }
    }

    /// Gives up waiting for the answer that grants a recalled lease. Returns whether none arrived;
    /// the lease then counts as returned, since the answer may still arrive.
    pub(super) fn expire_early_recall(&mut self, recall: &Recall, now: LeaseTime) -> bool {
        let waits = self.early_recalls.remove(&recall.number).is_some();
        if waits {
            self.returned.record(recall.inode, recall.number, now.instant);
        }
        waits
    }

    /// Records an answer to Recalls, after its recalls. `is_complete`: no further recall was
    /// waiting when it was requested, so it renews the leases. `sent`: when it was requested.
    pub(super) fn renew(&mut self, last_recall: u64, is_complete: bool, sent: LeaseTime, lease_ms: u32) {
        self.last_recall = last_recall;
        if is_complete {
            self.valid_until = Some(Deadline(LeaseTime {
                instant: sent.instant + Duration::from_millis(u64::from(lease_ms)),
                wall_ms: sent.wall_ms.saturating_add(u64::from(lease_ms)),
            }));
        }
    }

    /// Ends the validity of all leases before a new epoch begins.
    pub(super) fn end_epoch(&mut self) {
        self.valid_until = None;
    }

    /// Begins a new epoch. Leases that were returned in another epoch are not valid anyway, and
    /// their numbers may be reused.
    pub(super) fn begin_epoch(&mut self, epoch: u64) {
        (self.epoch, self.last_recall) = (epoch, 0);
        self.early_recalls.clear();
        self.returned = ReturnedLeases::default();
    }

    /// Returns the leases that were not used for long, each with whether it keeps a closed file
    /// cached.
    pub(super) fn idle(&self, now: LeaseTime) -> Vec<(InodeId, bool)> {
        let is_idle = |entry: &LeaseEntry<C>| {
            let is_delegation = entry.lease.kind == LeaseKind::Write && entry.cached.is_none();
            entry.recalled.is_none()
                && now.instant.saturating_duration_since(entry.last_used)
                    > if is_delegation { DELEGATION_IDLE } else { CACHED_IDLE }
        };
        let idle = self.entries.iter().filter(|(_, entry)| is_idle(entry));
        idle.map(|(inode, entry)| (*inode, entry.cached.is_some())).collect()
    }

    /// Forgets returned leases one by one that only late answers could grant again.
    pub(super) fn prune_returned(&mut self, now: LeaseTime) {
        self.returned.prune(RETURNED_KEEP, now.instant);
    }

    /// Forgets all leases; returns the files that they kept cached.
    pub(super) fn clear(&mut self) -> Vec<C> {
        core::mem::take(&mut self.entries).into_values().filter_map(|entry| entry.cached).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);
    const LEASE_MS: u32 = 10_000;

    fn at(start: LeaseTime, ms: u64) -> LeaseTime {
        LeaseTime { instant: start.instant + Duration::from_millis(ms), wall_ms: start.wall_ms + ms }
    }

    fn lease(number: u64, kind: LeaseKind) -> NodeLease {
        NodeLease { kind, number, epoch: 1 }
    }

    /// Returns a table of epoch 1 with valid leases, and the time.
    fn table() -> (LeaseTable<&'static str>, LeaseTime) {
        let start = LeaseTime { instant: Instant::now(), wall_ms: 1_000_000 };
        let mut table = LeaseTable::new();
        assert_eq!(table.state(FILE, LeaseKind::Read, 0, start), LeaseState::Disabled);
        table.begin_epoch(1);
        table.renew(0, true, start, LEASE_MS);
        (table, start)
    }

    #[test]
    fn lease_expires_by_either_clock() {
        let (mut table, start) = table();
        assert_eq!(table.record_grant(FILE, lease(3, LeaseKind::Read), start), GrantOutcome::Recorded);
        let ms = u64::from(LEASE_MS);
        assert_eq!(table.state(FILE, LeaseKind::Read, 3, at(start, ms - 1)), LeaseState::Valid);
        assert_eq!(table.state(FILE, LeaseKind::Write, 3, start), LeaseState::None, "too weak");
        assert_eq!(table.state(FILE, LeaseKind::Read, 2, start), LeaseState::None, "older attributes");
        let late = LeaseTime { wall_ms: start.wall_ms, ..at(start, ms) };
        let suspended = LeaseTime { instant: start.instant, ..at(start, ms) };
        for now in [late, suspended] {
            assert_eq!(table.state(FILE, LeaseKind::Read, 3, now), LeaseState::Disabled);
            assert_eq!(table.use_valid(FILE, LeaseKind::Read, now), None);
            assert!(!table.grants_leases(now));
        }
    }

    #[test]
    fn recalled_lease_is_valid_until_its_own_end() {
        let (mut table, start) = table();
        table.record_grant(FILE, lease(3, LeaseKind::Write), start);
        let recall = Recall { inode: FILE, number: 3 };
        assert_eq!(table.on_recall(&recall, start), RecallOutcome::Return(Some(3)));
        assert_eq!(table.on_recall(&recall, start), RecallOutcome::Return(None), "it is being returned");
        // The answer with the recall renews the others only.
        table.renew(1, true, at(start, 5000), LEASE_MS);
        assert_eq!(table.state(FILE, LeaseKind::Write, 3, at(start, 9000)), LeaseState::Recalled);
        assert_eq!(table.state(FILE, LeaseKind::Write, 3, at(start, 11_000)), LeaseState::Expired);
        assert_eq!(table.use_valid(FILE, LeaseKind::Read, start), None);
        table.end_return(FILE, 3, at(start, 11_000));
        assert_eq!(table.state(FILE, LeaseKind::Write, 3, at(start, 11_000)), LeaseState::None);
    }

    #[test]
    fn late_grant_of_returned_lease_is_ignored() {
        let (mut table, start) = table();
        table.record_grant(FILE, lease(3, LeaseKind::Read), start);
        assert_eq!(table.forget(FILE, start).map(|(number, _)| number), Some(3));
        assert_eq!(table.record_grant(FILE, lease(3, LeaseKind::Read), start), GrantOutcome::Ignored);
        let later = at(start, GRANT_DELAY_MAX.as_millis() as u64);
        assert_eq!(table.record_grant(FILE, lease(3, LeaseKind::Read), later), GrantOutcome::ReturnedBefore);
        assert_eq!(table.record_grant(FILE, lease(4, LeaseKind::Read), later), GrantOutcome::Recorded);
        assert_eq!(table.record_grant(FILE, lease(3, LeaseKind::Read), later), GrantOutcome::Ignored);
        let other = NodeLease { epoch: 2, ..lease(9, LeaseKind::Read) };
        assert_eq!(table.record_grant(FILE, other, later), GrantOutcome::Ignored);
    }

    #[test]
    fn recall_before_grant_returns_the_lease() {
        let (mut table, start) = table();
        let recall = Recall { inode: FILE, number: 5 };
        assert_eq!(table.on_recall(&recall, start), RecallOutcome::Early(None));
        assert_eq!(table.record_grant(FILE, lease(5, LeaseKind::Write), start), GrantOutcome::Recalled);
        assert_eq!(table.state(FILE, LeaseKind::Write, 5, start), LeaseState::Expired);
        assert!(!table.expire_early_recall(&recall, start), "the grant has arrived");
        // An early recall replaces a known lease.
        assert_eq!(table.on_recall(&Recall { inode: FILE, number: 4 }, start), RecallOutcome::Replaced);
        let next = Recall { inode: FILE, number: 6 };
        assert_eq!(table.on_recall(&next, start), RecallOutcome::Early(None), "it is being returned");
        assert!(table.expire_early_recall(&next, start));
        assert_eq!(table.record_grant(FILE, lease(6, LeaseKind::Read), start), GrantOutcome::Ignored);
    }

    #[test]
    fn upgrade_needs_the_same_valid_lease() {
        let (mut table, start) = table();
        table.record_grant(FILE, lease(3, LeaseKind::Read), start);
        assert!(!table.upgrade(FILE, 2, lease(4, LeaseKind::Write)), "another lease");
        table.on_recall(&Recall { inode: InodeId(8), number: 4 }, start);
        assert!(!table.upgrade(FILE, 3, lease(4, LeaseKind::Write)), "recalled before its grant");
        assert!(table.upgrade(FILE, 3, lease(5, LeaseKind::Write)));
        assert_eq!(table.state(FILE, LeaseKind::Write, 5, start), LeaseState::Valid);
    }

    #[test]
    fn least_recently_used_files_are_evicted() {
        let (mut table, start) = table();
        for number in 0..10 {
            table.record_grant(InodeId(number), lease(number + 1, LeaseKind::Read), at(start, number));
        }
        table.use_valid(InodeId(0), LeaseKind::Read, at(start, 50));
        for number in 0..9 {
            let evicted = table.keep_cached(InodeId(number), "file", 8);
            let expected = if number < 8 { vec![] } else { (1..6).map(InodeId).collect() };
            assert_eq!(evicted, Some(expected), "file {number}");
        }
        table.begin_return(InodeId(9), start);
        assert_eq!(table.keep_cached(InodeId(9), "file", 8), None, "its lease is being returned");
        assert_eq!(table.clear().len(), 9);
    }

    #[test]
    fn unused_leases_become_idle_by_kind() {
        let (mut table, start) = table();
        let [closed, directory, busy] = [1, 2, 3].map(InodeId);
        table.record_grant(closed, lease(1, LeaseKind::Write), start);
        table.keep_cached(closed, "file", 8);
        table.record_grant(directory, lease(2, LeaseKind::Write), start);
        table.record_grant(busy, lease(3, LeaseKind::Write), at(start, 6000));
        assert_eq!(table.idle(at(start, 6000)), []);
        assert_eq!(table.idle(at(start, 6001)), [(directory, false)]);
        let all = [(closed, true), (directory, false), (busy, false)];
        assert_eq!(table.idle(at(start, 126_001)), all);
    }

    #[test]
    fn new_epoch_forgets_returned_leases() {
        let (mut table, start) = table();
        table.record_grant(FILE, lease(3, LeaseKind::Read), start);
        table.end_epoch();
        assert_eq!(table.state(FILE, LeaseKind::Read, 3, start), LeaseState::Disabled);
        table.end_return(FILE, 3, start);
        table.begin_epoch(2);
        table.renew(0, true, start, LEASE_MS);
        let reused = NodeLease { epoch: 2, ..lease(3, LeaseKind::Read) };
        assert_eq!(table.record_grant(FILE, reused, start), GrantOutcome::Recorded);
        assert_eq!(table.use_delegation(FILE, start), None, "a read lease is no delegation");
    }
}
