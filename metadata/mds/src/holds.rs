//! Who holds which file open.
//!
//! Does: remember it in memory for as long as the holder is heard of, and say whether a file without a name may go.
//! Does not: store what is held, only that there are holders. If there were some when the server ended, every file that
//! loses its last name within [`HOLD_MS`] of its start waits as an orphan, as long as they need to come back.
//! Contract: O(1) for a file; a file that is being removed is not held any more, one that is held is not removed.
//! Truth: docs/standards/mds.md §5.8; docs/adr/0034-nodes-and-holds.md.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use sealstone_mds_protocol::{Access, ErrorCode, Failure, HolderId, InodeId, UserName};

use crate::error::{MdsError, Result};

/// A holder that was not heard of for this long holds nothing, milliseconds.
pub const HOLD_MS: u64 = 60_000;
/// Files that one holder holds at most.
pub(crate) const HELD_MAX: usize = 65_536;
/// Holders of one user at most.
pub(crate) const HOLDERS_MAX: usize = 256;
/// Files held by all holders at most.
pub(crate) const HELD_BY_ALL_MAX: usize = 1 << 20;
/// A file that is being removed: its opener asks again after this, and hears that it is gone.
const RETRY_MS: u32 = 5;

/// What a holder opened a file for, all its opens together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

impl Held {
    pub(crate) const fn of(access: Access) -> Self {
        Self {
            reads: matches!(access, Access::Read | Access::Update),
            writes: matches!(access, Access::Write | Access::Update),
        }
    }

    const fn and(self, other: Self) -> Self {
        Self { reads: self.reads || other.reads, writes: self.writes || other.writes }
    }

    /// Is all of this within what is held?
    pub(crate) const fn includes(self, other: Self) -> bool {
        (self.reads || !other.reads) && (self.writes || !other.writes)
    }
}

#[derive(Default)]
struct Holder {
    until_ms: u64,
    nodes: HashMap<InodeId, Held>,
}

#[derive(Default)]
struct Table {
    /// By user first: a number that somebody else chose is another holder.
    holders: HashMap<UserName, HashMap<HolderId, Holder>>,
    /// How many hold a file.
    nodes: HashMap<InodeId, u32>,
    held: usize,
    /// Files whose removal is being committed.
    going: HashSet<InodeId>,
    /// Were there holders before this server began? Then until when they are waited for, once that is known.
    before: bool,
    came_back_ms: Option<u64>,
}

impl Table {
    fn waits_for_holders(&mut self, now_ms: u64) -> bool {
        if !self.before {
            return false;
        }
        let until_ms = *self.came_back_ms.get_or_insert(now_ms.saturating_add(HOLD_MS));
        self.before = now_ms < until_ms;
        self.before
    }

    fn forget(&mut self, nodes: impl IntoIterator<Item = InodeId>) {
        for id in nodes {
            self.held = self.held.saturating_sub(1);
            if let Some(count) = self.nodes.get_mut(&id) {
                *count -= 1;
                if *count == 0 {
                    self.nodes.remove(&id);
                }
            }
        }
    }
}

/// All holds.
#[derive(Default)]
pub(crate) struct Holds(Mutex<Table>);

impl Holds {
    /// `before`: there were holders when the last server on this store ended.
    pub(crate) fn new(before: bool) -> Self {
        Self(Mutex::new(Table { before, ..Table::default() }))
    }

    /// Is it known that there is this holder? If not it is to be stored before it holds anything.
    pub(crate) fn knows(&self, user: &UserName, holder: HolderId) -> bool {
        self.0.lock().holders.get(user).is_some_and(|holders| holders.contains_key(&holder))
    }

    /// Are holders of before the start still waited for?
    pub(crate) fn waits(&self, now_ms: u64) -> bool {
        self.0.lock().waits_for_holders(now_ms)
    }

    /// Holds a file; says until when.
    pub(crate) fn hold(
        &self,
        user: &UserName,
        holder: HolderId,
        id: InodeId,
        held: Held,
        now_ms: u64,
    ) -> Result<u64> {
        let table = &mut *self.0.lock();
        if table.going.contains(&id) {
            return Err(MdsError::Refused(Failure::busy(RETRY_MS)));
        }
        let all = table.held;
        let holders = table.holders.entry(user.clone()).or_default();
        if holders.len() >= HOLDERS_MAX && !holders.contains_key(&holder) {
            return Err(MdsError::refused(ErrorCode::Limit, "holders of files"));
        }
        let one = holders.entry(holder).or_default();
        one.until_ms = now_ms.saturating_add(HOLD_MS);
        let room = one.nodes.len() < HELD_MAX && all < HELD_BY_ALL_MAX;
        match one.nodes.get_mut(&id) {
            Some(known) => *known = known.and(held),
            None if !room => return Err(MdsError::refused(ErrorCode::Limit, "files held open")),
            None => {
                one.nodes.insert(id, held);
                table.held += 1;
                *table.nodes.entry(id).or_default() += 1;
            }
        }
        Ok(one.until_ms)
    }

    /// Holds it no longer; content if it did not.
    pub(crate) fn release(&self, user: &UserName, holder: HolderId, id: InodeId) {
        let table = &mut *self.0.lock();
        let Some(holders) = table.holders.get_mut(user) else { return };
        let gone = holders.get_mut(&holder).is_some_and(|one| one.nodes.remove(&id).is_some());
        if gone {
            table.forget([id]);
        }
    }

    /// The holder lives: how many files it holds, and until when.
    pub(crate) fn keep(&self, user: &UserName, holder: HolderId, now_ms: u64) -> (u32, u64) {
        let until_ms = now_ms.saturating_add(HOLD_MS);
        let table = &mut *self.0.lock();
        let one = table.holders.get_mut(user).and_then(|holders| holders.get_mut(&holder));
        let Some(one) = one else { return (0, until_ms) };
        one.until_ms = until_ms;
        (one.nodes.len() as u32, until_ms)
    }

    /// What the holder has a file open for. Who asks lives.
    pub(crate) fn held(&self, user: &UserName, holder: HolderId, id: InodeId, now_ms: u64) -> Held {
        let table = &mut *self.0.lock();
        let one = table.holders.get_mut(user).and_then(|holders| holders.get_mut(&holder));
        let Some(one) = one.filter(|one| one.until_ms >= now_ms) else { return Held::default() };
        one.until_ms = now_ms.saturating_add(HOLD_MS);
        one.nodes.get(&id).copied().unwrap_or_default()
    }

    /// Does anybody hold it, as far as is known?
    pub(crate) fn is_held(&self, id: InodeId) -> bool {
        self.0.lock().nodes.contains_key(&id)
    }

    /// Forgets holders that were not heard of; says which, and what they held.
    pub(crate) fn expire(&self, now_ms: u64) -> Vec<(UserName, HolderId, Vec<InodeId>)> {
        let table = &mut *self.0.lock();
        let mut gone: Vec<(UserName, HolderId, Vec<InodeId>)> = Vec::new();
        table.holders.retain(|user, holders| {
            holders.retain(|id, one| {
                let lives = one.until_ms >= now_ms;
                if !lives {
                    gone.push((user.clone(), *id, one.nodes.keys().copied().collect()));
                }
                lives
            });
            !holders.is_empty()
        });
        table.forget(gone.iter().flat_map(|(_, _, nodes)| nodes.iter().copied()));
        gone
    }

    /// Begins a removal of files; `shared`: other servers may have holders on the same store.
    pub(crate) fn removing(&self, shared: bool, now_ms: u64) -> Removing<'_> {
        let unknown = self.waits(now_ms) || shared;
        Removing { holds: self, unknown, going: Mutex::default() }
    }
}

/// A removal under way: what may go is not held by anybody new until this is dropped, after the commit.
pub(crate) struct Removing<'a> {
    holds: &'a Holds,
    /// May there be holders that are not known here?
    unknown: bool,
    going: Mutex<Vec<InodeId>>,
}

impl Removing<'_> {
    /// May a file without a name go at once?
    pub(crate) fn may_go(&self, id: InodeId) -> bool {
        !self.unknown && self.is_free(id)
    }

    /// Is it held by nobody who is known here? Then nobody holds it until the commit.
    pub(crate) fn is_free(&self, id: InodeId) -> bool {
        let table = &mut *self.holds.0.lock();
        if table.nodes.contains_key(&id) {
            return false;
        }
        if table.going.insert(id) {
            self.going.lock().push(id);
        }
        true
    }
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        let mut going = self.going.lock();
        if !going.is_empty() {
            let table = &mut *self.holds.0.lock();
            for id in going.drain(..) {
                table.going.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);
    const READS: Held = Held { reads: true, writes: false };

    fn user(name: &str) -> UserName {
        UserName::new(name).unwrap()
    }

    fn holder(number: u64) -> HolderId {
        HolderId { number }
    }

    fn old() -> Holds {
        Holds::new(false)
    }

    #[test]
    fn a_file_is_held_until_its_last_holder_lets_go_or_is_not_heard_of() {
        let (holds, alice, now) = (old(), user("alice"), HOLD_MS * 2);
        for number in [1, 2] {
            // Twice is once.
            holds.hold(&alice, holder(number), FILE, READS, now).unwrap();
            holds.hold(&alice, holder(number), FILE, READS, now).unwrap();
        }
        holds.release(&alice, holder(1), FILE);
        holds.release(&alice, holder(1), FILE);
        assert!(!holds.removing(false, now).may_go(FILE));
        assert_eq!(holds.keep(&alice, holder(2), now + HOLD_MS).0, 1);
        holds.expire(now + 2 * HOLD_MS);
        assert!(holds.is_held(FILE));
        holds.expire(now + 2 * HOLD_MS + 1);
        assert!(holds.removing(false, now).may_go(FILE));
        assert_eq!(holds.keep(&alice, holder(2), now).0, 0);
    }

    #[test]
    fn what_is_going_cannot_be_taken_hold_of_until_it_is_gone_or_stays() {
        let (holds, alice, now) = (old(), user("alice"), HOLD_MS * 2);
        let removing = holds.removing(false, now);
        assert!(removing.may_go(FILE));
        assert!(holds.hold(&alice, holder(1), FILE, READS, now).is_err());
        drop(removing);
        assert!(holds.hold(&alice, holder(1), FILE, READS, now).is_ok());
    }

    #[test]
    fn nothing_goes_at_once_while_holders_may_not_be_known() {
        let holds = Holds::new(true);
        assert!(!holds.removing(false, 1_000).may_go(FILE));
        assert!(!holds.removing(false, 1_000 + HOLD_MS - 1).may_go(FILE));
        assert!(holds.removing(false, 1_000 + HOLD_MS).may_go(FILE));
        assert!(!holds.removing(true, 1_000 + HOLD_MS).may_go(FILE));
    }

    #[test]
    fn a_number_that_somebody_else_chose_is_another_holder() {
        let (holds, now) = (old(), 5);
        holds.hold(&user("alice"), holder(1), FILE, Held::of(Access::Update), now).unwrap();
        holds.release(&user("bob"), holder(1), FILE);
        assert!(holds.is_held(FILE));
        assert_eq!(holds.held(&user("bob"), holder(1), FILE, now), Held::default());
        assert!(holds.held(&user("alice"), holder(1), FILE, now).includes(Held::of(Access::Write)));
    }

    #[test]
    fn a_user_has_so_many_holders_and_no_more() {
        let (holds, alice) = (old(), user("alice"));
        for number in 0..HOLDERS_MAX as u64 {
            holds.hold(&alice, holder(number), FILE, READS, 5).unwrap();
        }
        assert!(holds.hold(&alice, holder(HOLDERS_MAX as u64), FILE, READS, 5).is_err());
        assert!(holds.hold(&alice, holder(0), InodeId(8), READS, 5).is_ok());
    }

    #[test]
    fn a_holder_holds_so_many_files_and_no_more() {
        let (holds, alice) = (old(), user("alice"));
        for id in 0..HELD_MAX as u64 {
            holds.hold(&alice, holder(1), InodeId(id), READS, 5).unwrap();
        }
        assert!(holds.hold(&alice, holder(1), InodeId(HELD_MAX as u64), READS, 5).is_err());
        holds.release(&alice, holder(1), InodeId(0));
        assert!(holds.hold(&alice, holder(1), InodeId(HELD_MAX as u64), READS, 5).is_ok());
    }
}
