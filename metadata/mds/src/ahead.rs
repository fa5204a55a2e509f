//! Directories in which a holder is ahead: whose names he changes first, and tells of then.
//!
//! Does: keep on record who is ahead where, and which numbers of nodes are reserved for whom; take that back from who gave his
//! lease back, or lost it. Does not: apply what is told; `handle::ahead` does. Does not: give leases; `leases` does.
//! Contract: the record is what counts: a change is taken if the directory has the record of the very lease under which it was
//! made, in the transaction that makes the change; before anybody else sees or changes names in it, the record is gone. So
//! it outlives the server, and what comes late does nothing. One record of some 60 bytes for each such directory.
//! Truth: docs/standards/mds.md §5.8; docs/adr/0050-names-written-back.md.

use sealstone_mds_protocol::{AheadIn, ErrorCode, HolderId, InodeId, UserName, record};

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
use crate::store::{MetaStore, Snapshot, Transaction, each_between};

/// Ranges of numbers that are reserved for one holder at a time at most: he asks for the next one before the last one is
/// used up, and an answer may be lost.
const RANGES_MAX: usize = 4;
/// What a holder who is gone has on record goes after this, as the answers to his changes do.
const FORGET_MS: u64 = crate::once::REMEMBERED_MS;

record! {
    /// Who is ahead in a directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AheadRecord {
        /// Of which user.
        pub user: UserName,
        /// Which holder.
        pub holder: HolderId,
        /// Era of the lease.
        pub era: u64,
        /// Its number.
        pub lease: u64,
        /// Since when.
        pub since_ms: u64,
    }
}

impl AheadRecord {
    fn is_of(&self, who: &Who) -> bool {
        self.user == who.0 && self.holder == who.1
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
        /// When the last one was.
        pub at_ms: u64,
    }
}

impl NumbersRecord {
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
        let AheadRecord { user, holder, era, lease, .. } = record;
        all.push(Before { id, who: (user, holder), era, number: lease });
    })?;
    Ok(all)
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
pub(crate) fn check(view: &dyn Snapshot, who: &Who, there: AheadIn) -> Result<u64> {
    let record: Option<AheadRecord> = load(view, &keys::ahead(there.inode))?;
    match record {
        Some(record) if record.is_of(who) && record.era == there.era && record.lease == there.lease => {
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
        holder: HolderId,
        there: AheadIn,
        now_ms: u64,
    ) -> Result<bool> {
        self.update(|tx| {
            if !may_be(tx, who, there.inode)? {
                return Ok(false);
            }
            let AheadIn { inode, era, lease } = there;
            let record = AheadRecord { user: who.user.clone(), holder, era, lease, since_ms: now_ms };
            save(tx, &keys::ahead(inode), &record)?;
            Ok(true)
        })
    }

    /// Reserves numbers for a holder; gives the first.
    pub(crate) fn reserve_numbers(&self, who: &Who, count: u16, now_ms: u64) -> Result<InodeId> {
        self.update(|tx| {
            let first = next_numbers(tx, counter::INODE, u64::from(count))?;
            let mut record: NumbersRecord = load(tx, &keys::numbers(who))?.unwrap_or_default();
            record.ranges.push(NumberRange { next: first, end: first + u64::from(count) });
            let surplus = record.ranges.len().saturating_sub(RANGES_MAX);
            record.ranges.drain(..surplus);
            record.at_ms = now_ms;
            save(tx, &keys::numbers(who), &record)?;
            Ok(InodeId(first))
        })
    }

    /// Somebody gives a lease back, and has told of all that he did under it.
    pub(crate) fn is_not_ahead(&self, id: InodeId, who: &Who, number: u64) -> Result<()> {
        if !self.leases.is_ahead(id, who, Some(number)) {
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
    pub(crate) fn is_not_ahead_since(&self, who: &Who, era: u64) -> Result<()> {
        self.forget_ahead_where(|record| record.is_of(who) && record.era != era)
    }

    fn forget_ahead_where(&self, which: impl Fn(&AheadRecord) -> bool) -> Result<()> {
        let mut old = Vec::new();
        each(&*self.store.snapshot()?, |id, record| {
            if which(&record) {
                old.push((id, record));
            }
        })?;
        if old.is_empty() {
            return Ok(());
        }
        self.update_and(|tx| {
            for (id, record) in &old {
                if load(tx, &keys::ahead(*id))?.as_ref() == Some(record) {
                    tx.delete(&keys::ahead(*id))?;
                }
            }
            Ok(((), Wait::No))
        })
    }

    /// A lease to write on a directory was not given back: what its holder did and did not tell of is not taken any more. Says
    /// whether it was one; then others may go on.
    pub(crate) fn depose(&self, id: InodeId, who: &Who, now_ms: u64) -> Result<bool> {
        if !self.leases.is_ahead(id, who, None) {
            return Ok(false);
        }
        self.update(|tx| {
            let record: Option<AheadRecord> = load(tx, &keys::ahead(id))?;
            if record.is_some_and(|record| record.is_of(who)) {
                tx.delete(&keys::ahead(id))?;
            }
            Ok(())
        })?;
        self.leases.fenced(id, who, true);
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

    /// Forgets what holders who are gone for long have on record.
    pub(crate) fn forget_ahead(&self, now_ms: u64) -> Result<()> {
        let is_old = |at_ms: u64| now_ms.saturating_sub(at_ms) > FORGET_MS;
        self.forget_ahead_where(|record| {
            is_old(record.since_ms) && !self.holds.knows(&record.user, record.holder)
        })?;
        let mut old = Vec::new();
        let from = keys::all_numbers();
        each_between(&*self.store.snapshot()?, &from, &keys::after_prefix(&from), |key, value| {
            let record: NumbersRecord = decode(value)?;
            let gone = keys::holder_parts(key).is_none_or(|(user, holder)| !self.holds.knows(&user, holder));
            if gone && is_old(record.at_ms) {
                old.push(key.to_vec());
            }
            Ok::<_, MdsError>(())
        })?;
        if old.is_empty() {
            return Ok(());
        }
        self.update_and(|tx| {
            old.iter().try_for_each(|key| tx.delete(key))?;
            Ok(((), Wait::No))
        })
    }
}

/// The record of what is reserved for a holder.
pub(crate) fn numbers(tx: &dyn Transaction, who: &Who) -> Result<NumbersRecord> {
    Ok(load(tx, &keys::numbers(who))?.unwrap_or_default())
}
