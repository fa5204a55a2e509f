//! Who may believe what of a file without asking: leases, given and called back.
//!
//! Does: remember them in memory, decide who is in whose way, recall, wake whoever waits to be told, and say when a holder
//! can believe in a lease no longer. Does not: fence; `fence` does, and [`Leases::fenced`] ends it.
//! Contract: a lease to write is alone; where somebody has one to read, nobody changes the file. Nothing that is in the
//! way of a lease is done before it was given back, or its holder, by his own clock, must have stopped believing in it and, if
//! it was one to write, is fenced. While a change is being committed no lease is given on its file, so whoever has one was
//! told of what is there. O(leases of the file) for each question, of which there are [`LEASES_OF_FILE_MAX`] at most.
//! Truth: docs/standards/mds/leases.md §5.11; docs/adr/0046-leases.md.

mod ends;
mod gone;
pub(crate) mod penalty;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::task::Waker;

use parking_lot::Mutex;
use sealstone_mds_protocol::{
    ClientId, Failure, GroupName, InodeId, LeaseKind, NodeLease, RECALLS_MAX, Recall, Role, UserName,
};

use crate::error::{MdsError, Result};
use crate::share;
use ends::Ends;
use penalty::Penalties;

/// For so long after it sent what was answered a client believes in its leases, milliseconds.
pub(crate) const BELIEVED_MS: u64 = 12_000;
/// Added to that before a server gives up: clocks do not run equally fast, milliseconds.
pub(crate) const GIVE_UP_MS: u64 = BELIEVED_MS + 2_000;
/// How long a server waits for something to tell at most, milliseconds.
pub(crate) const WAIT_MAX_MS: u32 = 4_000;
/// Leases on one file at most; a user has a share of them (see `share`).
pub(crate) const LEASES_OF_FILE_MAX: usize = 512;
/// Leases of one holder at most.
pub(crate) const LEASES_PER_CLIENT_MAX: usize = 8_192;
/// Of them, those that nobody waits for: a file that is opened finds room.
pub(crate) const UNREQUESTED_PER_CLIENT_MAX: usize = LEASES_PER_CLIENT_MAX / 4 * 3;
/// Where one was called back, or not given back, none is given for so long to who does not wait for it, milliseconds: what
/// several change is looked at without.
pub(crate) const QUIET_MS: u64 = 10_000;
/// Leases of all users at most; a user has a share of them (see `share`).
pub(crate) const LEASES_MAX: usize = 1 << 18;
/// Whoever is in the way of a lease asks again after this.
const RETRY_MS: u32 = 10;
/// Whoever had to wait for a lease comes first for so long, milliseconds.
const TURN_MS: u64 = 500;
/// Whoever was told that there is no lease to write writes without one for less than this, milliseconds.
pub(crate) const BARRED_MS: u64 = 3_000;
/// Connections on which one holder waits at most; the oldest is answered.
const WAITERS_MAX: usize = 4;

/// A holder of a user.
pub(crate) type Who = (UserName, ClientId);

/// What somebody is about to do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// See its bytes: in the way of a lease to write.
    Read,
    /// Change it, or something of it: in the way of every lease.
    Change,
}

impl Use {
    /// As a lease allows it.
    pub(crate) const fn under(kind: LeaseKind) -> Self {
        match kind {
            LeaseKind::Read => Self::Read,
            LeaseKind::Write => Self::Change,
        }
    }

    fn is_in_the_way_of(self, kind: LeaseKind) -> bool {
        self == Self::Change || kind == LeaseKind::Write
    }
}

/// May it be done?
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Yes.
    Free,
    /// Not yet: somebody was asked to give his lease back.
    Wait,
    /// These must not be able to write any more first.
    Fence(Vec<Who>),
}

/// What the rights of a holder's session hang on: of others his leases may say too much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) role: Role,
    pub(crate) groups: std::sync::Arc<[GroupName]>,
}

/// What a holder is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) epoch: u64,
    pub(crate) last: u64,
    pub(crate) recalls: Vec<Recall>,
    /// Does it know only since now that its era is another one, and what it lost with the old one?
    pub(crate) newly: bool,
}

#[derive(Debug)]
struct Given {
    who: Who,
    kind: LeaseKind,
    number: u64,
    epoch: u64,
    /// Is its holder ahead in a directory by it?
    ahead: bool,
    /// The recall, if there is one.
    recalled: Option<Recalling>,
}

/// A recall that was not answered yet.
#[derive(Clone, Copy, Debug)]
struct Recalling {
    number: u64,
    began_ms: u64,
    /// Until then the client may use the lease.
    until_ms: u64,
}

#[derive(Debug, Default)]
struct File {
    given: Vec<Given>,
    /// Who waits comes first, until then; no holder: a request of somebody who is none.
    turn: Option<(Option<Who>, u64)>,
    /// Somebody may write to it of whom nothing is known: no lease until then.
    barred_until_ms: u64,
    /// Changes that are being committed.
    changing: u32,
    /// A lease on it was called back last.
    called_ms: Option<u64>,
}

impl File {
    fn is_idle(&self, now_ms: u64) -> bool {
        let waits = self.turn.as_ref().is_some_and(|(_, until_ms)| *until_ms > now_ms);
        let quiet = !self.was_called(now_ms);
        self.given.is_empty() && !waits && self.barred_until_ms <= now_ms && self.changing == 0 && quiet
    }

    /// Had somebody to give a lease on it back lately?
    fn was_called(&self, now_ms: u64) -> bool {
        self.called_ms.is_some_and(|called_ms| called_ms.saturating_add(QUIET_MS) > now_ms)
    }
}

#[derive(Debug)]
struct Holder {
    epoch: u64,
    /// Does it know its era? Then it has nothing left of those before.
    confirmed: bool,
    heard_ms: u64,
    standing: Standing,
    leases: usize,
    recalls: BTreeMap<u64, Recall>,
    waiters: Vec<Waker>,
}

impl Holder {
    fn wake(&mut self) {
        self.waiters.drain(..).for_each(Waker::wake);
    }
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<InodeId, File>,
    holders: HashMap<Who, Holder>,
    /// Numbers of leases and recalls.
    last: u64,
    count: usize,
    by_user: HashMap<UserName, usize>,
    penalties: Penalties,
    ends: Ends,
    /// Holders of before the start that may believe in leases; none any more when that time is over.
    before: HashSet<Who>,
    before_until_ms: Option<u64>,
    /// Those that came back from before.
    back: HashSet<Who>,
}

impl Table {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// May holders of before the start believe in leases that are not known here?
    fn waits(&mut self, now_ms: u64) -> bool {
        if self.before.is_empty() {
            return false;
        }
        let until_ms = *self.before_until_ms.get_or_insert(now_ms.saturating_add(GIVE_UP_MS));
        if now_ms >= until_ms {
            self.before.clear();
        }
        !self.before.is_empty()
    }

    fn take(&mut self, id: InodeId, which: impl Fn(&Given) -> bool) -> Option<Given> {
        let file = self.files.get_mut(&id)?;
        let at = file.given.iter().position(which)?;
        let given = file.given.swap_remove(at);
        self.uncount(&given.who.0);
        if given.ahead {
            self.ends.note(id);
        }
        if let Some(client_id) = self.holders.get_mut(&given.who) {
            client_id.leases = client_id.leases.saturating_sub(1);
            if let Some(recall) = given.recalled {
                client_id.recalls.remove(&recall.number);
            }
        }
        Some(given)
    }

    /// Asks for those leases back that something is in the way of.
    fn recall(&mut self, id: InodeId, by: Option<&Who>, what: Use, now_ms: u64) -> Recalled {
        let mut outcome = Recalled::default();
        let Some(file) = self.files.get_mut(&id) else { return outcome };
        let (mut gone, mut missed) = (Vec::new(), Vec::new());
        for given in &mut file.given {
            if Some(&given.who) == by || !what.is_in_the_way_of(given.kind) {
                continue;
            }
            let Recalling { began_ms, until_ms, .. } = *given.recalled.get_or_insert_with(|| {
                self.last += 1;
                outcome.begun += 1;
                file.called_ms = Some(now_ms);
                let (number, began_ms) = (self.last, now_ms);
                let Some(client_id) = self.holders.get_mut(&given.who) else {
                    // It was not heard of for longer than it may believe, or not since the start.
                    let since_start = self.before.contains(&given.who);
                    let until_ms = || now_ms.saturating_add(GIVE_UP_MS);
                    let until_ms = since_start.then(|| *self.before_until_ms.get_or_insert_with(until_ms));
                    return Recalling { number, began_ms, until_ms: until_ms.unwrap_or(now_ms) };
                };
                client_id.recalls.insert(self.last, Recall { inode: id, number: given.number });
                client_id.wake();
                let until_ms = client_id.heard_ms.min(now_ms).saturating_add(GIVE_UP_MS);
                Recalling { number, began_ms, until_ms }
            });
            match given.kind {
                _ if now_ms < until_ms => outcome.waits = true,
                LeaseKind::Read => gone.push(given.number),
                LeaseKind::Write => outcome.lost.push(given.who.clone()),
            }
            // Others waited for it in vain; clients of before a restart may have missed that.
            if began_ms < until_ms && until_ms <= now_ms && !self.before.contains(&given.who) {
                missed.push(given.who.0.clone());
            }
        }
        if !gone.is_empty() {
            // Who answers nothing does not have everybody wait again at once.
            file.called_ms = Some(now_ms);
        }
        for number in gone {
            self.lose(id, |given| given.number == number);
        }
        missed.iter().for_each(|user| self.penalize(user, penalty::DELAY_MAX_MS, now_ms));
        outcome
    }

    fn count(&mut self, user: &UserName) {
        self.count += 1;
        match self.by_user.get_mut(user) {
            Some(own) => *own += 1,
            None => _ = self.by_user.insert(user.clone(), 1),
        }
    }

    fn uncount(&mut self, user: &UserName) {
        self.count -= 1;
        if let Some(own) = self.by_user.get_mut(user) {
            *own -= 1;
            if *own == 0 {
                self.by_user.remove(user);
            }
        }
    }

    /// The same, and what it comes to.
    fn recalled(&mut self, id: InodeId, by: Option<&Who>, what: Use, now_ms: u64) -> (Verdict, u64) {
        let Recalled { begun, waits, lost } = self.recall(id, by, what, now_ms);
        let verdict = match () {
            () if waits => Verdict::Wait,
            () if lost.is_empty() => Verdict::Free,
            () => Verdict::Fence(lost),
        };
        (verdict, begun)
    }

    /// A holder that does not answer loses a lease: it is in another era, and gives all of this one back before it is given
    /// any again.
    fn lose(&mut self, id: InodeId, which: impl Fn(&Given) -> bool) {
        if let Some(given) = self.take(id, which) {
            self.begin_era(&given.who);
        }
    }

    fn begin_era(&mut self, who: &Who) {
        if let Some(client_id) = self.holders.get_mut(who) {
            client_id.epoch = client_id.epoch.wrapping_add(1).max(1);
            client_id.confirmed = false;
            client_id.wake();
        }
    }

    /// Forgets what a holder was given in other eras than this.
    fn forget_others(&mut self, who: &Who, epoch: u64, now_ms: u64) {
        let of = |given: &Given| given.who == *who && given.epoch != epoch;
        let ids: Vec<InodeId> =
            self.files.iter().filter(|(_, file)| file.given.iter().any(of)).map(|(id, _)| *id).collect();
        for id in ids {
            while let Some(given) = self.take(id, of) {
                self.penalize_if_slow(&given, now_ms);
            }
        }
    }
}

/// What a recall came to.
#[derive(Debug, Default)]
struct Recalled {
    begun: u64,
    waits: bool,
    lost: Vec<Who>,
}

/// All leases.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    table: Mutex<Table>,
    /// Who lost a lease to write, and may still have something under way that he did under it.
    lost: Mutex<Vec<(InodeId, Who)>>,
}

/// A lease to write on a directory, of before the start.
pub(crate) struct Before {
    pub(crate) id: InodeId,
    pub(crate) who: Who,
    pub(crate) epoch: u64,
    pub(crate) number: u64,
}

/// A lease that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct New {
    pub(crate) lease: NodeLease,
    /// The one that it took the place of, without a moment in between.
    pub(crate) before: Option<u64>,
}

/// What asks for a lease has to say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) kind: LeaseKind,
    /// Does it wait for others to give theirs back? Else it takes what is free.
    pub(crate) waits: bool,
    /// Has somebody the file open to write who is given no leases?
    pub(crate) others_write: bool,
    /// Nobody opens it: it is given only where nobody had to give one back lately, and where there is much room.
    pub(crate) in_passing: bool,
    /// Is it to be ahead by, in a directory?
    pub(crate) ahead: bool,
}

impl Leases {
    /// `before`: who may have had leases when the last server on this store ended; `ahead`: those that are known of them.
    pub(crate) fn new(
        before: impl IntoIterator<Item = Who>,
        ahead: impl IntoIterator<Item = Before>,
    ) -> Self {
        let mut table = Table { before: before.into_iter().collect(), ..Table::default() };
        for Before { id, who, epoch, number } in ahead {
            let given = Given { who, kind: LeaseKind::Write, number, epoch, ahead: true, recalled: None };
            table.count(&given.who.0);
            table.files.entry(id).or_default().given.push(given);
        }
        Self { table: Mutex::new(table), lost: Mutex::default() }
    }

    /// These lost leases to write: somebody is to keep them from what they did under them.
    pub(crate) fn to_fence(&self, id: InodeId, lost: Vec<Who>) {
        self.lost.lock().extend(lost.into_iter().map(|who| (id, who)));
    }

    /// Whoever is to be kept from what he did.
    pub(crate) fn take_lost(&self) -> Vec<(InodeId, Who)> {
        std::mem::take(&mut *self.lost.lock())
    }

    /// Is there anybody?
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.lock().is_empty()
    }

    /// A moment, by leases by which somebody was ahead.
    pub(crate) fn moment(&self) -> u64 {
        self.table.lock().ends.last
    }

    /// Names in a directory are about to be read, as they were at some time since a `moment`: whoever else is ahead in it is
    /// asked to tell of his first, or was not heard of for too long; what was told since may not be seen (Wait). Leases of
    /// before the start are known if they are on directories, so none is waited for.
    pub(crate) fn sees_names(&self, id: InodeId, by: Option<&Who>, moment: u64, now_ms: u64) -> Verdict {
        let table = &mut *self.table.lock();
        match table.recalled(id, by, Use::Read, now_ms).0 {
            Verdict::Free if table.ends.since(id, moment) => Verdict::Wait,
            verdict => verdict,
        }
    }

    /// Is a holder ahead in a directory, by the lease of this number?
    pub(crate) fn is_ahead(&self, id: InodeId, who: &Who, number: u64) -> bool {
        let table = self.table.lock();
        let is_it = |one: &Given| one.ahead && one.who == *who && one.number == number;
        table.files.get(&id).is_some_and(|file| file.given.iter().any(is_it))
    }

    /// The lease by which a holder is ahead in a directory and that he should have given back by now.
    pub(crate) fn overdue(&self, id: InodeId, who: &Who, now_ms: u64) -> Option<u64> {
        let table = self.table.lock();
        let is_over = |one: &&Given| one.recalled.is_some_and(|recall| recall.until_ms <= now_ms);
        let mut his = table.files.get(&id)?.given.iter().filter(|one| one.ahead && one.who == *who);
        his.find(is_over).map(|one| one.number)
    }

    /// He is not ahead by it any more, and hears that he lost it.
    pub(crate) fn deposed(&self, id: InodeId, who: &Who, number: u64) {
        let is_it = |one: &Given| one.ahead && one.who == *who && one.number == number;
        self.table.lock().lose(id, is_it);
    }

    /// A directory is gone, and with it what there was to be told of it.
    pub(crate) fn gone(&self, id: InodeId, now_ms: u64) {
        let table = &mut *self.table.lock();
        while table.take(id, |_| true).is_some() {}
        if table.files.get(&id).is_some_and(|file| file.is_idle(now_ms)) {
            table.files.remove(&id);
        }
    }

    /// A holder asks what it is to give back. `fresh`: an era that no holder has had.
    pub(crate) fn heard(
        &self,
        who: &Who,
        standing: Standing,
        (epoch, known): (u64, u64),
        fresh: u64,
        now_ms: u64,
    ) -> Told {
        let table = &mut *self.table.lock();
        let new = || Holder {
            epoch: fresh.max(1),
            confirmed: false,
            heard_ms: now_ms,
            standing: standing.clone(),
            leases: 0,
            recalls: BTreeMap::new(),
            waiters: Vec::new(),
        };
        let client_id = table.holders.entry(who.clone()).or_insert_with(new);
        client_id.heard_ms = now_ms;
        if client_id.standing != standing {
            // What it may open by its leases it might not be given now.
            client_id.standing = standing;
            client_id.epoch = client_id.epoch.wrapping_add(1).max(1);
            client_id.confirmed = false;
        }
        let newly = epoch == client_id.epoch && !client_id.confirmed;
        client_id.confirmed |= newly;
        let now_era = client_id.epoch;
        if newly {
            table.forget_others(who, now_era, now_ms);
            if table.before.remove(who) {
                table.back.insert(who.clone());
            }
        }
        let Some(client_id) = table.holders.get_mut(who) else {
            return Told { epoch: 0, last: 0, recalls: Vec::new(), newly };
        };
        let news = client_id.recalls.range(known.saturating_add(1)..).take(RECALLS_MAX);
        let (mut last, mut recalls) = (known, Vec::new());
        for (number, recall) in news {
            last = *number;
            recalls.push(*recall);
        }
        Told { epoch: now_era, last, recalls, newly }
    }

    /// Is there something that the holder is to be told? If not `waker` is woken when there is.
    pub(crate) fn has_news(&self, who: &Who, (epoch, known): (u64, u64), waker: &Waker) -> bool {
        let table = &mut *self.table.lock();
        let Some(client_id) = table.holders.get_mut(who) else { return true };
        if !client_id.confirmed
            || client_id.epoch != epoch
            || client_id.recalls.range(known.saturating_add(1)..).next().is_some()
        {
            return true;
        }
        if !client_id.waiters.iter().any(|one| one.will_wake(waker)) {
            if client_id.waiters.len() >= WAITERS_MAX {
                client_id.waiters.remove(0).wake();
            }
            client_id.waiters.push(waker.clone());
        }
        false
    }

    /// Is it one that is given leases now? Others write without.
    pub(crate) fn is_led(&self, who: &Who, now_ms: u64) -> bool {
        self.table.lock().holders.get(who).is_some_and(|one| one.is_led(now_ms))
    }

    /// Is this a holder that was heard of?
    pub(crate) fn knows(&self, who: &Who) -> bool {
        self.table.lock().holders.contains_key(who)
    }

    /// May holders of before the start believe in leases that are not known here?
    pub(crate) fn waits(&self, now_ms: u64) -> bool {
        self.table.lock().waits(now_ms)
    }

    /// May this be done to a file? Who is in the way is asked to give his lease back. `settles`: it tells of what was done
    /// under a lease of before the start. Also tells how many recalls that began.
    pub(crate) fn may(
        &self,
        id: InodeId,
        by: Option<&Who>,
        what: Use,
        settles: bool,
        now_ms: u64,
    ) -> (Verdict, u64) {
        let table = &mut *self.table.lock();
        if table.waits(now_ms)
            && !(settles && by.is_some_and(|by| table.before.contains(by) || table.back.contains(by)))
        {
            return (Verdict::Wait, 0);
        }
        let (verdict, begun) = table.recalled(id, by, what, now_ms);
        if verdict == Verdict::Free {
            if let Some(file) = table.files.get_mut(&id)
                && file.turn.as_ref().is_some_and(|(first, _)| first.as_ref() == by)
            {
                file.turn = None;
            }
            return (Verdict::Free, begun);
        }
        if let Some(file) = table.files.get_mut(&id)
            && file.turn.as_ref().is_none_or(|(_, until_ms)| *until_ms <= now_ms)
        {
            file.turn = Some((by.cloned(), now_ms.saturating_add(TURN_MS)));
        }
        (verdict, begun)
    }

    /// The same for a change of several files, on which nobody is given a lease from here on until [`Leases::changed`], if it
    /// is free. Nor on these `directories`, for which leases of before the start are not waited for.
    pub(crate) fn may_change(
        &self,
        (ids, directories): (&[InodeId], &[InodeId]),
        by: Option<&Who>,
        settles: bool,
        now_ms: u64,
    ) -> (Vec<(InodeId, Verdict)>, u64) {
        let (mut verdicts, mut begun) = (Vec::new(), 0);
        for id in ids {
            let (verdict, more) = self.may(*id, by, Use::Change, settles, now_ms);
            begun += more;
            if verdict != Verdict::Free {
                verdicts.push((*id, verdict));
            }
        }
        for id in directories {
            let (verdict, more) = self.table.lock().recalled(*id, by, Use::Change, now_ms);
            begun += more;
            if verdict != Verdict::Free {
                verdicts.push((*id, verdict));
            }
        }
        if !verdicts.is_empty() {
            return (verdicts, begun);
        }
        let table = &mut *self.table.lock();
        // Looked at once more, with nothing in between.
        let all = || ids.iter().chain(directories);
        let is_led = |id: &&InodeId| {
            table.files.get(id).is_some_and(|file| file.given.iter().any(|one| Some(&one.who) != by))
        };
        if let Some(id) = all().find(is_led) {
            return (vec![(*id, Verdict::Wait)], begun);
        }
        for id in all() {
            table.files.entry(*id).or_default().changing += 1;
        }
        (verdicts, begun)
    }

    /// The change is committed, or was given up.
    pub(crate) fn changed(&self, ids: &[InodeId], now_ms: u64) {
        let table = &mut *self.table.lock();
        for id in ids {
            if let Some(file) = table.files.get_mut(id) {
                file.changing = file.changing.saturating_sub(1);
                if file.is_idle(now_ms) {
                    table.files.remove(id);
                }
            }
        }
    }

    /// Nobody is given a lease on a file until then.
    pub(crate) fn bar(&self, id: InodeId, until_ms: u64) {
        let table = &mut *self.table.lock();
        let file = table.files.entry(id).or_default();
        file.barred_until_ms = file.barred_until_ms.max(until_ms);
    }

    /// Gives a lease; none: there is none to be had.
    ///
    /// # Errors
    /// `Busy` to who waits, if somebody has to give his back first, or comes first.
    pub(crate) fn give(&self, id: InodeId, who: &Who, wish: Wish, now_ms: u64) -> Result<Option<NodeLease>> {
        Ok(self.give_over(id, who, wish, now_ms)?.map(|new| new.lease))
    }

    /// The same, and which one of his it takes the place of.
    pub(crate) fn give_over(&self, id: InodeId, who: &Who, wish: Wish, now_ms: u64) -> Result<Option<New>> {
        let table = &mut *self.table.lock();
        let later = || if wish.waits { Err(busy()) } else { Ok(None) };
        if table.waits(now_ms) {
            return later();
        }
        let Some(client_id) = table.holders.get(who).filter(|one| one.is_led(now_ms)) else {
            return Ok(None);
        };
        if table.penalties.has(&who.0, now_ms) {
            return Ok(None);
        }
        let (epoch, own) = (client_id.epoch, client_id.leases);
        let of_user = table.by_user.get(&who.0).copied().unwrap_or_default();
        let file = table.files.entry(id).or_default();
        if let Some(known) = file.given.iter().find(|one| one.who == *who) {
            if known.recalled.is_some() {
                // He is to give it back first.
                return later();
            }
            if known.epoch == epoch && known.kind >= wish.kind {
                let lease = NodeLease { kind: known.kind, number: known.number, epoch };
                return Ok(Some(New { lease, before: Some(known.number) }));
            }
        }
        if file.changing > 0 {
            return later();
        }
        if file
            .turn
            .as_ref()
            .is_some_and(|(first, until_ms)| *until_ms > now_ms && first.as_ref() != Some(who))
        {
            return later();
        }
        let what = Use::under(wish.kind);
        if file.given.iter().any(|one| one.who != *who && what.is_in_the_way_of(one.kind)) {
            return later();
        }
        if wish.others_write || file.barred_until_ms > now_ms || (wish.in_passing && file.was_called(now_ms))
        {
            return Ok(None);
        }
        let before = file.given.iter().find(|one| one.who == *who).map(|one| (one.epoch, one.number));
        let own_before = before.is_some();
        let own_max = if wish.in_passing { UNREQUESTED_PER_CLIENT_MAX } else { LEASES_PER_CLIENT_MAX };
        let on_file = file.given.iter().filter(|one| one.who.0 == who.0).count();
        let full = own >= own_max
            || !share::is_free(of_user, table.count, 1, LEASES_MAX)
            || !share::is_free(on_file, file.given.len(), 1, LEASES_OF_FILE_MAX);
        if full && !own_before {
            return Ok(None);
        }
        file.turn = None;
        table.take(id, |one| one.who == *who);
        let number = table.number();
        let given =
            Given { who: who.clone(), kind: wish.kind, number, epoch, ahead: wish.ahead, recalled: None };
        table.files.entry(id).or_default().given.push(given);
        table.count(&who.0);
        if let Some(client_id) = table.holders.get_mut(who) {
            client_id.leases += 1;
        }
        let before = before.filter(|(of, _)| *of == epoch).map(|(_, number)| number);
        Ok(Some(New { lease: NodeLease { kind: wish.kind, number, epoch }, before }))
    }

    /// One that was given is not told of: its holder has the one of before, if there was one.
    pub(crate) fn put_back(&self, id: InodeId, who: &Who, new: New) {
        let table = &mut *self.table.lock();
        let number = new.lease.number;
        if new.before == Some(number) {
            // It is the one of before: what he did under it may not be told yet.
            return;
        }
        let Some(mut given) = table.take(id, |one| one.who == *who && one.number == number) else { return };
        let Some(before) = new.before else { return };
        given = Given { kind: LeaseKind::Read, number: before, ahead: false, recalled: None, ..given };
        table.files.entry(id).or_default().given.push(given);
        table.count(&who.0);
        if let Some(client_id) = table.holders.get_mut(who) {
            client_id.leases += 1;
        }
    }

    /// A lease that somebody has on a file, in the outer; none: there is none to be had, being called back or because nothing
    /// is given to him.
    pub(crate) fn known(&self, id: InodeId, who: &Who, now_ms: u64) -> Option<Option<NodeLease>> {
        let table = self.table.lock();
        let Some(client_id) = table.holders.get(who).filter(|one| one.is_led(now_ms)) else {
            return Some(None);
        };
        let known = table.files.get(&id)?.given.iter().find(|one| one.who == *who)?;
        let ours = known.recalled.is_none() && known.epoch == client_id.epoch;
        Some(ours.then_some(NodeLease { kind: known.kind, number: known.number, epoch: known.epoch }))
    }

    /// A lease is given back, that of this number, or whichever it is if he is not ahead by it: what he did under that one
    /// he tells of first, and names it. Content if there is none.
    pub(crate) fn give_back(&self, id: InodeId, who: &Who, number: Option<u64>, now_ms: u64) {
        let table = &mut *self.table.lock();
        let is_it = |one: &Given| one.who == *who && number.map_or(!one.ahead, |number| one.number == number);
        if let Some(given) = table.take(id, is_it) {
            table.penalize_if_slow(&given, now_ms);
        }
        if table.files.get(&id).is_some_and(|file| file.is_idle(now_ms)) {
            table.files.remove(&id);
        }
    }

    /// A holder cannot write a file any more: his lease to write is gone. `tell`: also if he gave it back meanwhile, since
    /// nothing that he writes is taken before he has heard of it.
    pub(crate) fn fenced(&self, id: InodeId, who: &Who, tell: bool) {
        let table = &mut *self.table.lock();
        let lost = table.take(id, |one| one.who == *who && one.kind == LeaseKind::Write).is_some();
        if lost || tell {
            table.begin_era(who);
        }
    }

    /// All leases of a user's holders are called in.
    pub(crate) fn recall_of(&self, user: &UserName) {
        let table = &mut *self.table.lock();
        for (_, client_id) in table.holders.iter_mut().filter(|((of, _), _)| of == user) {
            client_id.epoch = client_id.epoch.wrapping_add(1).max(1);
            client_id.confirmed = false;
            client_id.wake();
        }
    }

    /// Who has leases on a file, and whether to write.
    pub(crate) fn of(&self, id: InodeId) -> Vec<(Who, LeaseKind)> {
        let table = self.table.lock();
        let given = table.files.get(&id).into_iter().flat_map(|file| &file.given);
        given.map(|one| (one.who.clone(), one.kind)).collect()
    }

    /// Leases that are out.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.table.lock().count
    }
}

impl Holder {
    fn is_led(&self, now_ms: u64) -> bool {
        self.confirmed && self.heard_ms.saturating_add(BELIEVED_MS) > now_ms
    }
}

pub(crate) fn busy() -> MdsError {
    MdsError::Refused(Failure::busy(RETRY_MS))
}

#[cfg(test)]
mod tests;
