//! Directories in which a holder is ahead: whose names he changes first, and tells of then.
//!
//! Does: keep on record who is ahead where, and which numbers of nodes are reserved for whom; take that back from who gave his
//! lease back, or lost it. Does not: apply what is told; `handle::ahead` does. Does not: give leases; `leases` does.
//! Contract: the record is what counts: a change is taken if the directory has the record of the very lease under which it was
//! made, in the transaction that makes the change; before anybody else sees or changes names in it, the record is gone. So
//! it outlives the server, and what comes late does nothing. One record of some 60 bytes for each such directory.
//! Truth: docs/standards/mds/leases.md §5.11; docs/adr/0050-directory-write-delegations.md.

use std::collections::HashMap;

use sealstone_mds_protocol::{ClientId, DirLeaseId, ErrorCode, InodeId, UserName, record};

use crate::access::{Principal, SETGID, STICKY};
use crate::audit::AuditRecord;
use crate::counters::add;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::leases::{Before, Who};
use crate::namespace;
use crate::quota;
use crate::records::{counter, decode, load, next_numbers, save};
use crate::server::{Mds, Wait};
use crate::store::{MetaError, MetaStore, Snapshot, each_between};

/// Ranges of numbers that are reserved for one holder at a time at most; beyond that the oldest one is lost. He asks for the
/// next one before the last one is used up, and many an answer may be lost meanwhile.
const RANGES_MAX: usize = 16;
/// Holders of one user for whom numbers are reserved at most.
pub(crate) const RESERVED_BY_USER_MAX: usize = 1_024;
/// What a holder has on record goes when he was gone for so long, as the answers to his changes do.
const FORGET_MS: u64 = crate::once::REMEMBERED_MS;
/// Records that are forgotten in one transaction.
const FORGET_BATCH: usize = 256;

record! {
    /// Who is ahead in a directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AheadRecord {
        /// Of which user.
        pub user: UserName,
        /// Which holder.
        pub client_id: ClientId,
        /// Era of the lease.
        pub epoch: u64,
        /// Its number.
        pub lease: u64,
        /// Since when.
        pub since_ms: u64,
    }
}

impl AheadRecord {
    fn is_of(&self, who: &Who) -> bool {
        self.user == who.0 && self.client_id == who.1
    }
}

record! {
    /// Numbers from one to before another one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct NumberRange {
        /// The lowest one that was not used; those before it are not used any more.
        pub next: u64,
        /// The first one that is not reserved.
        pub end: u64,
    }
}

record! {
    /// What is reserved for a holder.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct NumbersRecord {
        /// In the order in which they were given.
        pub ranges: Vec<NumberRange>,
    }
}

impl NumbersRecord {
    /// Is it one of them?
    pub(crate) fn has(&self, id: InodeId) -> bool {
        self.ranges.iter().any(|range| (range.next..range.end).contains(&id.0))
    }

    /// Uses a number; those before it in its range are lost.
    pub(crate) fn take(&mut self, id: InodeId) -> Result<()> {
        let of = self.ranges.iter_mut().find(|range| (range.next..range.end).contains(&id.0));
        let Some(range) = of else {
            return Err(MdsError::refused(ErrorCode::Invalid, "a number that is not reserved"));
        };
        range.next = id.0 + 1;
        self.ranges.retain(|range| range.next < range.end);
        Ok(())
    }
}

/// Those of before the start.
pub(crate) fn on_record(store: &dyn MetaStore) -> Result<Vec<Before>> {
    let mut all = Vec::new();
    each(&*store.snapshot()?, |id, record| {
        let AheadRecord { user, client_id, epoch, lease, .. } = record;
        all.push(Before { id, who: (user, client_id), epoch, number: lease });
    })?;
    Ok(all)
}

/// Several servers share the store from here on: what anybody did when there was one is not waited for, nor taken.
pub(crate) fn forget_all(store: &dyn MetaStore) -> Result<()> {
    let mut all = Vec::new();
    each(&*store.snapshot()?, |id, _| all.push(id))?;
    if all.is_empty() {
        return Ok(());
    }
    let mut tx = store.begin()?;
    all.into_iter().try_for_each(|id| tx.delete(&keys::ahead(id)))?;
    match tx.commit() {
        // Another one was faster.
        Ok(()) | Err(MetaError::Conflict) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn each(view: &dyn Snapshot, mut work: impl FnMut(InodeId, AheadRecord)) -> Result<()> {
    let from = keys::all_ahead();
    each_between(view, &from, &keys::after_prefix(&from), |key, value| {
        if let Some(id) = keys::ahead_directory(key) {
            work(id, decode(value)?);
        }
        Ok::<_, MdsError>(())
    })
}

/// Is somebody ahead in a directory by this lease? Since when.
///
/// # Errors
/// `Fenced` if he is not, or not any more.
pub(crate) fn check(view: &dyn Snapshot, who: &Who, there: DirLeaseId) -> Result<u64> {
    let record: Option<AheadRecord> = load(view, &keys::ahead(there.inode))?;
    match record {
        Some(record) if record.is_of(who) && record.epoch == there.epoch && record.lease == there.lease => {
            Ok(record.since_ms)
        }
        _ => Err(MdsError::refused(ErrorCode::Fenced, format!("node {}", there.inode.0))),
    }
}

/// Would whatever a user does to names in a directory be allowed, by what is known here, as long as nothing but he changes it?
/// Not where more than his right to the directory decides: who owns what, a list for what is made, a limit.
pub(crate) fn may_be(view: &dyn Snapshot, who: &Principal, id: InodeId) -> Result<bool> {
    let directory = namespace::node(view, id)?;
    namespace::need_directory(&directory, "directory")?;
    let plain = directory.links > 0
        && directory.mode & (STICKY | SETGID) == 0
        && directory.default_acl.is_none()
        && directory.tree.is_none();
    Ok(plain
        && who.needs_entries(&directory, "").is_ok()
        && quota::of_user(view, &who.user)?.nodes_max.is_none())
}

impl Mds {
    /// Puts it on record that somebody is ahead in a directory, if he may be; says whether he is.
    pub(crate) fn note_ahead(
        &self,
        who: &Principal,
        client_id: ClientId,
        there: DirLeaseId,
        now_ms: u64,
    ) -> Result<bool> {
        self.update(|tx| {
            if !may_be(tx, who, there.inode)? {
                return Ok(false);
            }
            let DirLeaseId { inode, epoch, lease } = there;
            let known: Option<AheadRecord> = load(tx, &keys::ahead(inode))?;
            if known.is_some_and(|one| {
                (&one.user, one.client_id, one.epoch, one.lease) == (&who.user, client_id, epoch, lease)
            }) {
                // Asked for again: what he did since he was let keeps its time.
                return Ok(true);
            }
            let record = AheadRecord { user: who.user.clone(), client_id, epoch, lease, since_ms: now_ms };
            save(tx, &keys::ahead(inode), &record)?;
            Ok(true)
        })
    }

    /// Reserves numbers for a holder; gives the first. None: too many of the user's have some.
    pub(crate) fn reserve_numbers(&self, who: &Who, count: u16) -> Result<Option<InodeId>> {
        self.update(|tx| {
            let known: Option<NumbersRecord> = load(tx, &keys::numbers(who))?;
            if known.is_none() {
                let of_user = keys::numbers_of(&who.0);
                let there = tx.scan(&of_user, &keys::after_prefix(&of_user), RESERVED_BY_USER_MAX)?;
                if there.len() >= RESERVED_BY_USER_MAX {
                    return Ok(None);
                }
            }
            let first = next_numbers(tx, counter::INODE, u64::from(count))?;
            let mut record = known.unwrap_or_default();
            record.ranges.push(NumberRange { next: first, end: first + u64::from(count) });
            let surplus = record.ranges.len().saturating_sub(RANGES_MAX);
            record.ranges.drain(..surplus);
            save(tx, &keys::numbers(who), &record)?;
            Ok(Some(InodeId(first)))
        })
    }

    /// Somebody gives a lease back, and has told of all that he did under it.
    pub(crate) fn is_not_ahead(&self, id: InodeId, who: &Who, number: u64) -> Result<()> {
        if !self.leases.is_ahead(id, who, number) {
            return Ok(());
        }
        // If a crash takes that, he says it again when he hears of another era.
        self.update_and(|tx| {
            let record: Option<AheadRecord> = load(tx, &keys::ahead(id))?;
            if record.is_some_and(|record| record.is_of(who) && record.lease == number) {
                tx.delete(&keys::ahead(id))?;
            }
            Ok(((), Wait::No))
        })
    }

    /// Somebody has nothing left of other eras than this. O(directories in which anybody is ahead).
    pub(crate) fn is_not_ahead_since(&self, who: &Who, epoch: u64) -> Result<()> {
        self.forget_ahead_where(|record| record.is_of(who) && record.epoch != epoch).map(drop)
    }

    /// Gives what was forgotten.
    fn forget_ahead_where(
        &self,
        mut which: impl FnMut(&AheadRecord) -> bool,
    ) -> Result<Vec<(InodeId, AheadRecord)>> {
        let mut old = Vec::new();
        each(&*self.store.snapshot()?, |id, record| {
            if which(&record) {
                old.push((id, record));
            }
        })?;
        for batch in old.chunks(FORGET_BATCH) {
            self.update_and(|tx| {
                for (id, record) in batch {
                    if load(tx, &keys::ahead(*id))?.as_ref() == Some(record) {
                        tx.delete(&keys::ahead(*id))?;
                    }
                }
                Ok(((), Wait::No))
            })?;
        }
        Ok(old)
    }

    /// A lease to write was not given back. If it is on a directory, what its holder did and did not tell of is not taken any
    /// more, and others may go on; says whether it is.
    pub(crate) fn depose(&self, id: InodeId, who: &Who, now_ms: u64) -> Result<bool> {
        let Some(number) = self.leases.overdue(id, who, now_ms) else {
            // Perhaps somebody was faster who met it too, or he gave it back after all.
            return Ok(namespace::node(&*self.store.snapshot()?, id).is_ok_and(|one| one.is_directory()));
        };
        self.update(|tx| {
            let record: Option<AheadRecord> = load(tx, &keys::ahead(id))?;
            if record.is_some_and(|record| record.is_of(who) && record.lease == number) {
                tx.delete(&keys::ahead(id))?;
            }
            Ok(())
        })?;
        self.leases.deposed(id, who, number);
        add(&self.counters.leases_fenced, 1);
        tracing::warn!(inode = id.0, user = %who.0, "a mount is not waited for, and what it did to names is not taken");
        self.audit.record(&AuditRecord {
            time_ms: now_ms,
            user: who.0.as_str(),
            session: None,
            proven: true,
            source: None,
            action: "fence",
            subject: Some(&format!("names in node {}", id.0)),
            verdict: "ok",
        });
        Ok(true)
    }

    /// Forgets what holders who are gone for long have on record; for how long is known since the start at most.
    pub(crate) fn forget_ahead(&self, now_ms: u64) -> Result<()> {
        let mut missed = self.missed.lock();
        let (mut still, before) = (HashMap::new(), std::mem::take(&mut *missed));
        let mut is_old = |who: Who| {
            if self.holds.knows(&who.0, who.1) {
                return false;
            }
            let since_ms = before.get(&who).copied().unwrap_or(now_ms);
            still.insert(who, since_ms);
            now_ms.saturating_sub(since_ms) > FORGET_MS
        };
        let old = self.forget_ahead_where(|record| is_old((record.user.clone(), record.client_id)))?;
        for (id, record) in old {
            self.leases.give_back(id, &(record.user, record.client_id), Some(record.lease), now_ms);
        }
        let mut old = Vec::new();
        let from = keys::all_numbers();
        each_between(&*self.store.snapshot()?, &from, &keys::after_prefix(&from), |key, _| {
            if keys::client_parts(key).is_none_or(&mut is_old) {
                old.push(key.to_vec());
            }
            Ok::<_, MdsError>(())
        })?;
        *missed = still;
        for batch in old.chunks(FORGET_BATCH) {
            self.update_and(|tx| {
                batch.iter().try_for_each(|key| tx.delete(key))?;
                Ok(((), Wait::No))
            })?;
        }
        Ok(())
    }
}

/// The record of what is reserved for a holder.
pub(crate) fn numbers<S: Snapshot + ?Sized>(view: &S, who: &Who) -> Result<NumbersRecord> {
    Ok(load(view, &keys::numbers(who))?.unwrap_or_default())
}
