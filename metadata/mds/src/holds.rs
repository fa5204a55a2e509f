//! Who holds which file open.
//!
//! Does: remember it in memory for as long as the holder is heard of, and say whether a file without a name may go.
//! Does not: store what is held, only that there are holders. If there were some when the server ended, every file that
//! loses its last name within [`HOLD_MS`] of its start waits as an orphan, as long as they need to come back.
//! Contract: O(1) for a file; a file that is being removed is not held any more, one that is held is not removed.
//! Truth: docs/standards/mds/nodes.md §5.8; docs/adr/0034-node-numbers-and-open-files.md.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use sealstone_mds_protocol::{Access, ClientId, ErrorCode, Failure, InodeId, UserName};

use crate::error::{MdsError, Result};
use crate::share;

/// A holder that was not heard of for this long holds nothing, milliseconds.
pub const HOLD_MS: u64 = 60_000;
/// Files that one holder holds at most.
pub(crate) const HELD_MAX: usize = 65_536;
/// Holders of one user at most.
pub(crate) const CLIENTS_MAX: usize = 256;
/// Files held by all holders at most.
pub(crate) const HELD_BY_ALL_MAX: usize = 1 << 20;
/// Of them, by those of one user: nobody takes all the room.
pub(crate) const HELD_BY_USER_MAX: usize = HELD_BY_ALL_MAX / 4;
/// Clients that ended, and may have requests under way, at most; a user has a share (see `share`).
const ENDED_MAX: usize = 16_384;
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

/// A file of a holder.
#[derive(Default)]
struct Hold {
    held: Held,
    /// By an open that was answered, until it is closed.
    kept: bool,
    /// Opens under way, which hold it too.
    opening: u32,
    /// Was the holder given something to write it with?
    wrote: bool,
}

impl Hold {
    /// May its holder have something to write the file with? Whose right was asked anew may have what is of before.
    fn may_write(&self) -> bool {
        self.wrote || self.held.writes || self.held == Held::default()
    }
}

#[derive(Default)]
struct Holder {
    until_ms: u64,
    /// Does the store know that there is this one?
    on_record: bool,
    nodes: HashMap<InodeId, Hold>,
}

#[derive(Default)]
struct Table {
    /// By user first: a number that somebody else chose is another holder.
    holders: HashMap<UserName, HashMap<ClientId, Holder>>,
    /// How many hold a file.
    nodes: HashMap<InodeId, u32>,
    held: usize,
    /// Files whose removal is being committed.
    going: HashSet<InodeId>,
    /// Were there holders before this server began? Then until when they are waited for, once that is known.
    before: bool,
    came_back_ms: Option<u64>,
    /// Said that they are gone: until when that is remembered.
    ended: HashMap<(UserName, ClientId), u64>,
}

impl Table {
    /// The holder, made known if it was not.
    fn client_id(&mut self, user: &UserName, client_id: ClientId, now_ms: u64) -> Result<&mut Holder> {
        let holders = self.holders.entry(user.clone()).or_default();
        if holders.len() >= CLIENTS_MAX && !holders.contains_key(&client_id) {
            return Err(MdsError::refused(ErrorCode::Limit, "holders of files"));
        }
        if !self.ended.is_empty() {
            self.ended.remove(&(user.clone(), client_id));
        }
        let one = holders.entry(client_id).or_default();
        one.until_ms = now_ms.saturating_add(HOLD_MS);
        Ok(one)
    }

    /// A holder's entry of a file, made if there was none.
    fn place(&mut self, user: &UserName, client_id: ClientId, id: InodeId, now_ms: u64) -> Result<&mut Hold> {
        if self.going.contains(&id) {
            return Err(MdsError::Refused(Failure::busy(RETRY_MS)));
        }
        let one = self.client_id(user, client_id, now_ms)?;
        let (own, known) = (one.nodes.len(), one.nodes.contains_key(&id));
        if !known {
            let of_user = self.holders.get(user).into_iter().flat_map(HashMap::values);
            let of_user: usize = of_user.map(|one| one.nodes.len()).sum();
            let shared = share::is_free(of_user, self.held, 1, HELD_BY_ALL_MAX);
            if own >= HELD_MAX || of_user >= HELD_BY_USER_MAX || !shared {
                let why = format!("open files: user {user} has {of_user}; close some");
                return Err(MdsError::refused(ErrorCode::Limit, why));
            }
            self.held += 1;
            *self.nodes.entry(id).or_default() += 1;
        }
        Ok(self.client_id(user, client_id, now_ms)?.nodes.entry(id).or_default())
    }

    /// The entry goes if nothing is left that holds it; says whether it went.
    fn drop_if_free(&mut self, user: &UserName, client_id: ClientId, id: InodeId) -> bool {
        let one = self.holders.get_mut(user).and_then(|holders| holders.get_mut(&client_id));
        let Some(one) = one else { return false };
        if !one.nodes.get(&id).is_some_and(|hold| !hold.kept && hold.opening == 0) {
            return false;
        }
        one.nodes.remove(&id);
        self.forget([id]);
        true
    }

    fn hold_mut(&mut self, user: &UserName, client_id: ClientId, id: InodeId) -> Option<&mut Hold> {
        self.holders.get_mut(user)?.get_mut(&client_id)?.nodes.get_mut(&id)
    }

    fn waits_for_clients(&mut self, now_ms: u64) -> bool {
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

    /// Is there this holder?
    pub(crate) fn knows(&self, user: &UserName, client_id: ClientId) -> bool {
        self.0.lock().holders.get(user).is_some_and(|holders| holders.contains_key(&client_id))
    }

    /// There is this holder from here on. Is it on record? If not it is to be stored before it holds anything, and
    /// [`Holds::recorded`] called then.
    pub(crate) fn meet(&self, user: &UserName, client_id: ClientId, now_ms: u64) -> Result<bool> {
        Ok(self.0.lock().client_id(user, client_id, now_ms)?.on_record)
    }

    /// The holder is on record.
    pub(crate) fn recorded(&self, user: &UserName, client_id: ClientId) {
        let table = &mut *self.0.lock();
        if let Some(one) = table.holders.get_mut(user).and_then(|holders| holders.get_mut(&client_id)) {
            one.on_record = true;
        }
    }

    /// Are holders of before the start still waited for?
    pub(crate) fn waits(&self, now_ms: u64) -> bool {
        self.0.lock().waits_for_clients(now_ms)
    }

    /// Holds a file; says until when.
    pub(crate) fn hold(
        &self,
        user: &UserName,
        client_id: ClientId,
        id: InodeId,
        held: Held,
        now_ms: u64,
    ) -> Result<u64> {
        let table = &mut *self.0.lock();
        let hold = table.place(user, client_id, id, now_ms)?;
        (hold.held, hold.kept) = (hold.held.and(held), true);
        Ok(now_ms.saturating_add(HOLD_MS))
    }

    /// An open begins: the file is held until [`Holds::opened`] or [`Holds::not_opened`], whoever else opens or closes it
    /// meanwhile.
    pub(crate) fn begin(&self, user: &UserName, client_id: ClientId, id: InodeId, now_ms: u64) -> Result<()> {
        self.0.lock().place(user, client_id, id, now_ms)?.opening += 1;
        Ok(())
    }

    /// An open ends well: the file is held for this; says until when.
    pub(crate) fn opened(
        &self,
        user: &UserName,
        client_id: ClientId,
        id: InodeId,
        held: Held,
        now_ms: u64,
    ) -> Result<u64> {
        let until_ms = self.hold(user, client_id, id, held, now_ms)?;
        if let Some(hold) = self.0.lock().hold_mut(user, client_id, id) {
            hold.opening = hold.opening.saturating_sub(1);
        }
        Ok(until_ms)
    }

    /// An open was refused; was it the last that held the file for this holder?
    pub(crate) fn not_opened(&self, user: &UserName, client_id: ClientId, id: InodeId) -> bool {
        let table = &mut *self.0.lock();
        if let Some(hold) = table.hold_mut(user, client_id, id) {
            hold.opening = hold.opening.saturating_sub(1);
        }
        table.drop_if_free(user, client_id, id)
    }

    /// Holds it no longer; content if it did not.
    pub(crate) fn release(&self, user: &UserName, client_id: ClientId, id: InodeId) {
        let table = &mut *self.0.lock();
        if let Some(hold) = table.hold_mut(user, client_id, id) {
            (hold.held, hold.kept) = (Held::default(), false);
        }
        table.drop_if_free(user, client_id, id);
    }

    /// What a file was opened for is forgotten: its holders hold on, and the mode decides what they ask for next. Did
    /// anybody hold it for something?
    pub(crate) fn ask_anew(&self, id: InodeId) -> bool {
        let table = &mut *self.0.lock();
        if !table.nodes.contains_key(&id) {
            return false;
        }
        let mut any = false;
        for one in table.holders.values_mut().flat_map(HashMap::values_mut) {
            if let Some(hold) = one.nodes.get_mut(&id) {
                any |= hold.held != Held::default();
                hold.held = Held::default();
            }
        }
        any
    }

    /// The same for all that a user's holders hold.
    pub(crate) fn ask_anew_of(&self, user: &UserName) {
        let table = &mut *self.0.lock();
        let holders = table.holders.get_mut(user).into_iter().flat_map(HashMap::values_mut);
        for hold in holders.flat_map(|one| one.nodes.values_mut()) {
            hold.held = Held::default();
        }
    }

    /// The holder lives: how many files it holds, and until when.
    pub(crate) fn keep(&self, user: &UserName, client_id: ClientId, now_ms: u64) -> (u32, u64) {
        let until_ms = now_ms.saturating_add(HOLD_MS);
        let table = &mut *self.0.lock();
        let one = table.holders.get_mut(user).and_then(|holders| holders.get_mut(&client_id));
        let Some(one) = one else { return (0, until_ms) };
        one.until_ms = until_ms;
        (one.nodes.len() as u32, until_ms)
    }

    /// What the holder has a file open for. Who asks lives.
    pub(crate) fn held(&self, user: &UserName, client_id: ClientId, id: InodeId, now_ms: u64) -> Held {
        let table = &mut *self.0.lock();
        let one = table.holders.get_mut(user).and_then(|holders| holders.get_mut(&client_id));
        let Some(one) = one.filter(|one| one.until_ms >= now_ms) else { return Held::default() };
        one.until_ms = now_ms.saturating_add(HOLD_MS);
        one.nodes.get(&id).map(|hold| hold.held).unwrap_or_default()
    }

    /// Does the holder have a file open, whatever for? Who asks lives.
    pub(crate) fn has(&self, user: &UserName, client_id: ClientId, id: InodeId, now_ms: u64) -> bool {
        let table = &mut *self.0.lock();
        let one = table.holders.get_mut(user).and_then(|holders| holders.get_mut(&client_id));
        let Some(one) = one.filter(|one| one.until_ms >= now_ms) else { return false };
        one.until_ms = now_ms.saturating_add(HOLD_MS);
        one.nodes.get(&id).is_some_and(|hold| hold.kept)
    }

    /// A holder is given something to write a file with, whatever he opened it for.
    pub(crate) fn writes(&self, user: &UserName, client_id: ClientId, id: InodeId) {
        if let Some(hold) = self.0.lock().hold_mut(user, client_id, id) {
            hold.wrote = true;
        }
    }

    /// Does this holder have it open? Nobody lives longer by that.
    pub(crate) fn is_held_by(&self, user: &UserName, client_id: ClientId, id: InodeId) -> bool {
        self.0.lock().hold_mut(user, client_id, id).is_some_and(|hold| hold.kept)
    }

    /// Does anybody hold it, as far as is known?
    pub(crate) fn is_held(&self, id: InodeId) -> bool {
        self.0.lock().nodes.contains_key(&id)
    }

    /// May anybody have it open to write, as far as is known? Whose right was asked anew may have bytes of before. O(holders).
    pub(crate) fn may_be_written(&self, id: InodeId, now_ms: u64) -> bool {
        let table = &mut *self.0.lock();
        if table.waits_for_clients(now_ms) {
            return true;
        }
        let mut holders = table.holders.values().flat_map(HashMap::values);
        table.nodes.contains_key(&id) && holders.any(|one| one.nodes.get(&id).is_some_and(Hold::may_write))
    }

    /// Has somebody a file open to write who is none of those that `but` names? O(holders).
    pub(crate) fn others_write(
        &self,
        id: InodeId,
        now_ms: u64,
        but: impl Fn(&UserName, ClientId) -> bool,
    ) -> bool {
        let table = &mut *self.0.lock();
        if !table.nodes.contains_key(&id) {
            return false;
        }
        let writes = |hold: &Hold| hold.held.writes || (hold.kept && hold.held == Held::default());
        table.holders.iter().any(|(user, holders)| {
            holders.iter().any(|(client_id, one)| {
                one.until_ms >= now_ms && one.nodes.get(&id).is_some_and(writes) && !but(user, *client_id)
            })
        })
    }

    /// Forgets holders that were not heard of; says which, what they held, and whether they may have something to write
    /// it with.
    pub(crate) fn expire(&self, now_ms: u64) -> Vec<(UserName, ClientId, Vec<(InodeId, bool)>)> {
        let table = &mut *self.0.lock();
        let mut gone: Vec<(UserName, ClientId, Vec<(InodeId, bool)>)> = Vec::new();
        table.holders.retain(|user, holders| {
            holders.retain(|id, one| {
                let lives = one.until_ms >= now_ms;
                if !lives {
                    let nodes = one.nodes.iter().map(|(node, hold)| (*node, hold.may_write())).collect();
                    gone.push((user.clone(), *id, nodes));
                }
                lives
            });
            !holders.is_empty()
        });
        table.forget(gone.iter().flat_map(|(_, _, nodes)| nodes.iter().map(|(id, _)| *id)));
        gone
    }

    /// A holder is gone: what it held.
    pub(crate) fn end(&self, user: &UserName, client_id: ClientId, now_ms: u64) -> Vec<InodeId> {
        let table = &mut *self.0.lock();
        table.ended.retain(|_, until_ms| *until_ms >= now_ms);
        let own = table.ended.keys().filter(|(of, _)| of == user).count();
        if share::is_free(own, table.ended.len(), 1, ENDED_MAX) {
            table.ended.insert((user.clone(), client_id), now_ms.saturating_add(HOLD_MS));
        }
        let Some(holders) = table.holders.get_mut(user) else { return Vec::new() };
        let nodes: Vec<_> =
            holders.remove(&client_id).into_iter().flat_map(|one| one.nodes.into_keys()).collect();
        if holders.is_empty() {
            table.holders.remove(user);
        }
        table.forget(nodes.iter().copied());
        nodes
    }

    /// Did this holder say that it is gone, and nothing since?
    pub(crate) fn has_ended(&self, who: &(UserName, ClientId)) -> bool {
        self.0.lock().ended.contains_key(who)
    }

    /// Begins a removal of files; `shared`: other servers may have holders on the same store.
    pub(crate) fn removing(&self, shared: bool, now_ms: u64) -> Removing<'_> {
        let waits = self.waits(now_ms);
        Removing { holds: self, waits, unknown: waits || shared, going: Mutex::default() }
    }
}

/// A removal under way: what may go is not held by anybody new until this is dropped, after the commit.
pub(crate) struct Removing<'a> {
    holds: &'a Holds,
    /// May holders of before the start come back?
    waits: bool,
    /// May there be holders that are not known here, those of other servers among them?
    unknown: bool,
    going: Mutex<Vec<InodeId>>,
}

impl Removing<'_> {
    /// May a file without a name go at once?
    pub(crate) fn may_go(&self, id: InodeId) -> bool {
        !self.unknown && self.is_free(id)
    }

    /// Is it held by nobody of this server, nor may be by somebody who can still come back? Then nobody holds it until
    /// the commit.
    pub(crate) fn is_free(&self, id: InodeId) -> bool {
        if self.waits {
            return false;
        }
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

    fn client_id(number: u64) -> ClientId {
        ClientId { number }
    }

    fn old() -> Holds {
        Holds::new(false)
    }

    #[test]
    fn a_file_is_held_until_its_last_holder_lets_go_or_is_not_heard_of() {
        let (holds, alice, now) = (old(), user("alice"), HOLD_MS * 2);
        for number in [1, 2] {
            // Twice is once.
            holds.hold(&alice, client_id(number), FILE, READS, now).unwrap();
            holds.hold(&alice, client_id(number), FILE, READS, now).unwrap();
        }
        holds.release(&alice, client_id(1), FILE);
        holds.release(&alice, client_id(1), FILE);
        assert!(!holds.removing(false, now).may_go(FILE));
        assert_eq!(holds.keep(&alice, client_id(2), now + HOLD_MS).0, 1);
        holds.expire(now + 2 * HOLD_MS);
        assert!(holds.is_held(FILE));
        holds.expire(now + 2 * HOLD_MS + 1);
        assert!(holds.removing(false, now).may_go(FILE));
        assert_eq!(holds.keep(&alice, client_id(2), now).0, 0);
    }

    #[test]
    fn what_is_going_cannot_be_taken_hold_of_until_it_is_gone_or_stays() {
        let (holds, alice, now) = (old(), user("alice"), HOLD_MS * 2);
        let removing = holds.removing(false, now);
        assert!(removing.may_go(FILE));
        assert!(holds.hold(&alice, client_id(1), FILE, READS, now).is_err());
        drop(removing);
        assert!(holds.hold(&alice, client_id(1), FILE, READS, now).is_ok());
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
    fn an_open_that_fails_takes_nothing_from_one_that_succeeds_meanwhile() {
        let (holds, alice, now) = (old(), user("alice"), 5);
        // The one that fails began first and ends last.
        holds.begin(&alice, client_id(1), FILE, now).unwrap();
        holds.begin(&alice, client_id(1), FILE, now).unwrap();
        holds.opened(&alice, client_id(1), FILE, READS, now).unwrap();
        assert!(!holds.not_opened(&alice, client_id(1), FILE));
        assert!(holds.has(&alice, client_id(1), FILE, now) && holds.is_held(FILE));
        holds.release(&alice, client_id(1), FILE);
        // One that closes does not take it from one that is about to open it.
        holds.begin(&alice, client_id(1), FILE, now).unwrap();
        holds.release(&alice, client_id(1), FILE);
        assert!(holds.is_held(FILE) && !holds.has(&alice, client_id(1), FILE, now));
        assert!(holds.not_opened(&alice, client_id(1), FILE));
        assert!(!holds.is_held(FILE));
    }

    #[test]
    fn what_is_asked_anew_is_held_on_for_nothing() {
        let (holds, alice, now) = (old(), user("alice"), 5);
        holds.hold(&alice, client_id(1), FILE, READS, now).unwrap();
        assert!(holds.ask_anew(FILE) && !holds.ask_anew(FILE) && !holds.ask_anew(InodeId(9)));
        assert_eq!(holds.held(&alice, client_id(1), FILE, now), Held::default());
        // It is no less open than before: neither a further open that fails nor a lock finds it closed.
        holds.begin(&alice, client_id(1), FILE, now).unwrap();
        assert!(!holds.not_opened(&alice, client_id(1), FILE));
        assert!(holds.has(&alice, client_id(1), FILE, now) && holds.is_held(FILE));
    }

    #[test]
    fn nothing_is_free_while_holders_of_before_may_come_back() {
        let holds = Holds::new(true);
        assert!(!holds.removing(false, 1_000).is_free(FILE));
        assert!(holds.removing(false, 1_000 + HOLD_MS).is_free(FILE));
    }

    #[test]
    fn a_user_holds_so_many_files_and_leaves_room_for_others() {
        let (holds, alice) = (old(), user("alice"));
        for id in 0..HELD_BY_USER_MAX as u64 {
            holds.hold(&alice, client_id(id / HELD_MAX as u64), InodeId(id), READS, 5).unwrap();
        }
        let next = InodeId(HELD_BY_USER_MAX as u64);
        assert!(holds.hold(&alice, client_id(99), next, READS, 5).is_err());
        assert!(holds.hold(&user("bob"), client_id(99), next, READS, 5).is_ok());
    }

    #[test]
    fn a_number_that_somebody_else_chose_is_another_holder() {
        let (holds, now) = (old(), 5);
        holds.hold(&user("alice"), client_id(1), FILE, Held::of(Access::Update), now).unwrap();
        holds.release(&user("bob"), client_id(1), FILE);
        assert!(holds.is_held(FILE));
        assert_eq!(holds.held(&user("bob"), client_id(1), FILE, now), Held::default());
        assert!(holds.held(&user("alice"), client_id(1), FILE, now).includes(Held::of(Access::Write)));
    }

    #[test]
    fn a_user_has_so_many_holders_and_no_more() {
        let (holds, alice) = (old(), user("alice"));
        for number in 0..CLIENTS_MAX as u64 {
            holds.hold(&alice, client_id(number), FILE, READS, 5).unwrap();
        }
        assert!(holds.hold(&alice, client_id(CLIENTS_MAX as u64), FILE, READS, 5).is_err());
        assert!(holds.hold(&alice, client_id(0), InodeId(8), READS, 5).is_ok());
    }

    #[test]
    fn a_holder_holds_so_many_files_and_no_more() {
        let (holds, alice) = (old(), user("alice"));
        for id in 0..HELD_MAX as u64 {
            holds.hold(&alice, client_id(1), InodeId(id), READS, 5).unwrap();
        }
        assert!(holds.hold(&alice, client_id(1), InodeId(HELD_MAX as u64), READS, 5).is_err());
        holds.release(&alice, client_id(1), InodeId(0));
        assert!(holds.hold(&alice, client_id(1), InodeId(HELD_MAX as u64), READS, 5).is_ok());
    }
}
