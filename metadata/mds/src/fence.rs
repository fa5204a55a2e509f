//! Fences: whoever others do not wait for any longer is kept from writing, before they go on.
//!
//! Does: give a file's objects other tags, so that devices refuse what he has; refuse him others until he has said that he
//! has nothing left of it; end his locks when he cannot write any more. Does not: decide who is fenced; `holders` does of
//! those that died with locks, `leases` of those that give no lease back.
//! Contract: from the first step on he is given nothing more for the file; a credential that is being made meanwhile is not
//! told. A fence is done when every device has answered with the new tags, or when nothing that he was given before can be
//! alive. It is on record from the transaction that drew the tags, and so outlives servers.
//! Truth: docs/standards/mds/leases.md §5.11; docs/adr/0048-locks-and-fences.md.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use sealstone_mds_protocol::{ErrorCode, InodeId, UserName, record};

use crate::audit::AuditRecord;
use crate::config::GRANT_LIFETIME_MAX_MS;
use crate::counters::add;
use crate::error::{MdsError, Result};
use crate::handle::leases::as_server;
use crate::keys;
use crate::leases::{self, Who};
use crate::locks::{self, LockTable, Locked};
use crate::records::{decode, load, save};
use crate::revoke::retag_file;
use crate::server::Mds;
use crate::share;
use crate::shared::ServerName;
use crate::store::{MetaStore, Snapshot, each_between};

/// Added to the longest life of a grant, since clocks of devices are not quite ours, milliseconds.
const MARGIN_MS: u64 = 60_000;
/// Whoever was fenced and did not come back is known for so long, milliseconds. One that comes back later finds that he
/// does not hold what he locked, and gives it up by that.
const KEPT_MS: u64 = 7 * 24 * 3_600_000;
/// Fences that are done and kept at most; the oldest go, of users with more than an equal share first.
const KEPT_MAX: usize = 65_536;

record! {
    /// A holder that is kept from writing a file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Fence {
        /// Has he locks, which end when it is done? Else it was a lease.
        pub of_locks: bool,
        /// When it began.
        pub began_ms: u64,
        /// Nothing that he was given before is alive from then on.
        pub over_ms: u64,
        /// Can he write no more?
        pub done: bool,
        /// Has he said that he has nothing left of it? Then he may be given something again.
        pub let_go: bool,
    }
}

impl Fence {
    fn new(of_locks: bool, now_ms: u64) -> Self {
        let over_ms = now_ms.saturating_add(GRANT_LIFETIME_MAX_MS + MARGIN_MS);
        Self { of_locks, began_ms: now_ms, over_ms, done: false, let_go: false }
    }
}

/// A file, and who holds it.
type Place = (InodeId, Who);

#[derive(Default)]
struct Table {
    /// What this server has locks on record of, and answers for.
    locked: HashSet<Place>,
    /// Of them, those of before the start that nobody took up again yet.
    before: HashMap<InodeId, Vec<Who>>,
    /// Fences that are not on record yet; whose locks they are of.
    begun: HashMap<Place, Option<ServerName>>,
    /// Those on record, on the only server there is.
    known: HashMap<Place, Fence>,
}

/// Fences, and what they need to know.
#[derive(Default)]
pub(crate) struct Fences {
    table: Mutex<Table>,
    /// Whoever takes a step has it: what is in memory follows the store.
    turn: Mutex<()>,
}

/// Whoever is fenced is refused, within a transaction.
pub(crate) fn check<S: Snapshot + ?Sized>(view: &S, id: InodeId, who: &Who) -> Result<()> {
    match load::<Fence, _>(view, &keys::fence(id, who))? {
        Some(fence) if !fence.let_go => Err(MdsError::refused(ErrorCode::Fenced, "")),
        _ => Ok(()),
    }
}

impl Fences {
    /// Takes up what is on record. `own`: this server, if there are several.
    pub(crate) fn load(store: &dyn MetaStore, own: Option<&ServerName>) -> Result<Self> {
        let mut table = Table::default();
        let view = store.snapshot()?;
        let from = keys::all_locked();
        each_between(&*view, &from, &keys::after_prefix(&from), |key, value| {
            let Some((id, who)) = keys::locked_parts(key) else { return Ok(()) };
            let Locked { server, .. } = decode(value)?;
            if own.is_none_or(|own| server == *own) {
                table.before.entry(id).or_default().push(who.clone());
                table.locked.insert((id, who));
            }
            Ok::<_, MdsError>(())
        })?;
        if own.is_none() {
            let from = keys::fences();
            each_between(&*view, &from, &keys::after_prefix(&from), |key, value| {
                if let Some(place) = keys::locked_parts(key) {
                    table.known.insert(place, decode(value)?);
                }
                Ok::<_, MdsError>(())
            })?;
        }
        Ok(Self { table: Mutex::new(table), turn: Mutex::default() })
    }

    /// Has a holder locks on a file on record, here?
    pub(crate) fn is_locked(&self, id: InodeId, who: &Who) -> bool {
        self.table.lock().locked.contains(&(id, who.clone()))
    }

    /// They are on record.
    pub(crate) fn locked(&self, id: InodeId, who: &Who) {
        self.table.lock().locked.insert((id, who.clone()));
    }

    /// They are not any more; were they?
    pub(crate) fn unlocked(&self, id: InodeId, who: &Who) -> bool {
        let table = &mut *self.table.lock();
        table.take_up(id, who);
        table.locked.remove(&(id, who.clone()))
    }

    /// Has somebody else locks from before the start, of which nobody knows what they are on?
    pub(crate) fn others_locked_before(&self, id: InodeId, who: &Who) -> bool {
        self.table.lock().before.get(&id).is_some_and(|before| before.iter().any(|one| one != who))
    }

    /// Had he locks on it when the server ended?
    pub(crate) fn locked_before(&self, id: InodeId, who: &Who) -> bool {
        self.table.lock().before.get(&id).is_some_and(|before| before.contains(who))
    }

    fn all_before(&self) -> Vec<Place> {
        let table = self.table.lock();
        table.before.iter().flat_map(|(id, before)| before.iter().map(|who| (*id, who.clone()))).collect()
    }

    /// Those of before the start that still hold the file have taken up what they want.
    fn taken_up(&self, id: InodeId, who: &Who) {
        self.table.lock().take_up(id, who);
    }
}

impl Table {
    fn take_up(&mut self, id: InodeId, who: &Who) {
        if let Some(before) = self.before.get_mut(&id) {
            before.retain(|one| one != who);
            if before.is_empty() {
                self.before.remove(&id);
            }
        }
    }
}

/// Which of these fences, the oldest first, go so that `max` are left at most: those of users with more than an equal share.
fn surplus(kept: &[(u64, Place)], max: usize) -> HashSet<usize> {
    let mut of_user: HashMap<&UserName, usize> = HashMap::new();
    kept.iter().for_each(|(_, (_, who))| *of_user.entry(&who.0).or_default() += 1);
    let cap = share::equal_cap(of_user.values().copied(), max);
    let mut goes = HashSet::new();
    for (at, (_, (_, who))) in kept.iter().enumerate() {
        let left = of_user.entry(&who.0).or_default();
        if *left > cap {
            *left -= 1;
            goes.insert(at);
        }
    }
    goes
}

impl Mds {
    /// The fence of a holder, if there is one.
    pub(crate) fn fence_of(&self, id: InodeId, who: &Who) -> Result<Option<Fence>> {
        let place = (id, who.clone());
        {
            let table = self.fences.table.lock();
            if let Some(of) = table.begun.get(&place) {
                return Ok(Some(Fence::new(of.is_some(), 0)));
            }
            if !self.config.shared {
                return Ok(table.known.get(&place).cloned());
            }
        }
        Ok(load(&*self.store.snapshot()?, &keys::fence(id, who))?)
    }

    /// Whoever is fenced is given nothing for what he wrote before. `anew`: he opens the file as if for the first time.
    pub(crate) fn not_fenced(&self, id: InodeId, who: &Who, anew: bool) -> Result<()> {
        match self.fence_of(id, who)? {
            Some(fence) if fence.let_go => Ok(()),
            // He begins anew when he has heard of it.
            Some(fence) if anew && !fence.of_locks => Err(leases::busy()),
            Some(_) => Err(MdsError::refused(ErrorCode::Fenced, "")),
            None => Ok(()),
        }
    }

    /// Fences a holder from a file. `of`: the server that answered for the locks that he has on it, if it is for locks.
    fn begin_fence(&self, id: InodeId, who: &Who, of: Option<ServerName>, now_ms: u64) -> Result<()> {
        let place = (id, who.clone());
        // Before the tags are drawn: what is being given to him from here on is looked at once more before it is told.
        let of = {
            let table = &mut *self.fences.table.lock();
            let known = table.begun.entry(place.clone()).or_insert(of);
            *known = known.or(of);
            *known
        };
        let begun = self.update(|tx| {
            if let Some(of) = of
                && load::<Locked, _>(tx, &keys::locked(id, who))?.is_none_or(|known| known.server != of)
            {
                // He let go of it, or came to another server, meanwhile.
                return Ok(None);
            }
            let known: Option<Fence> = load(tx, &keys::fence(id, who))?;
            let mut fence = Fence::new(of.is_some(), now_ms);
            match known {
                Some(known) if !known.let_go => {
                    fence.of_locks |= known.of_locks;
                    if known.done {
                        // He was given nothing since.
                        fence.over_ms = now_ms;
                    } else {
                        fence.over_ms = known.over_ms;
                    }
                }
                _ => retag_file(tx, id, now_ms)?,
            }
            save(tx, &keys::fence(id, who), &fence)?;
            Ok(Some(fence))
        })?;
        let table = &mut *self.fences.table.lock();
        table.begun.remove(&place);
        match begun {
            Some(fence) if !self.config.shared => _ = table.known.insert(place, fence),
            Some(_) => {}
            None => {
                table.locked.remove(&place);
                table.take_up(id, who);
                return Ok(());
            }
        }
        self.revocations_changed.store(true, Ordering::Release);
        tracing::warn!(inode = id.0, user = %who.0, "a mount is not waited for, and is kept from writing a file");
        self.audit_fence(id, who, "begun", now_ms);
        Ok(())
    }

    /// A step on the way, if there is one to do: is it done?
    fn step_fence(&self, id: InodeId, who: &Who, fence: &Fence, now_ms: u64) -> Result<bool> {
        if now_ms < fence.over_ms && !self.is_retagged(id)? {
            return Ok(false);
        }
        let done = self.update(|tx| {
            let key = keys::fence(id, who);
            let Some(mut fence) = load::<Fence, _>(tx, &key)?.filter(|fence| !fence.done) else {
                return Ok(None);
            };
            if fence.of_locks && !fence.let_go {
                locks::end(tx, id, who)?;
            }
            fence.done = true;
            if fence.let_go {
                tx.delete(&key)?
            } else {
                save(tx, &key, &fence)?
            }
            Ok(Some(fence))
        })?;
        let Some(fence) = done else { return Ok(true) };
        if fence.of_locks && !fence.let_go {
            if !self.config.shared {
                self.locks.release(who, id, None)?;
            }
            self.fences.unlocked(id, who);
            add(&self.counters.locks_fenced, 1);
        }
        if !fence.of_locks {
            add(&self.counters.leases_fenced, 1);
        }
        self.leases.fenced(id, who, !fence.of_locks && !fence.let_go);
        if !self.config.shared {
            let known = &mut self.fences.table.lock().known;
            let place = (id, who.clone());
            _ = if fence.let_go { known.remove(&place) } else { known.insert(place, fence) };
        }
        self.audit_fence(id, who, "ok", now_ms);
        Ok(true)
    }

    /// A lease to write was not given back: the next step of keeping its holder from writing. Whoever waits asks again, and
    /// takes the one after that.
    pub(crate) fn fence_lease(&self, id: InodeId, who: &Who, now_ms: u64) -> Result<()> {
        let _turn = self.fences.turn.lock();
        match self.fence_of(id, who)? {
            Some(fence) if !fence.done && fence.began_ms > 0 => {
                self.step_fence(id, who, &fence, now_ms).map(drop)
            }
            // What he has now he was given since.
            _ => self.begin_fence(id, who, None, now_ms),
        }
    }

    /// A holder that died had locks on a file that he may write.
    pub(crate) fn fence_locks(&self, id: InodeId, who: &Who, of: ServerName, now_ms: u64) {
        let _turn = self.fences.turn.lock();
        if let Err(error) = self.begin_fence(id, who, Some(of), now_ms) {
            tracing::error!(inode = id.0, %error, "a file could not be fenced; its locks stay until it is");
        }
    }

    /// Holders of before the start have come back by now, or are gone, and then are fenced from what they had locked.
    pub(crate) fn fence_those_before(&self, now_ms: u64) {
        for (id, who) in self.fences.all_before() {
            if self.holds.is_held_by(&who.0, who.1, id) {
                self.fences.taken_up(id, &who);
            } else {
                self.fence_locks(id, &who, self.config.server, now_ms);
            }
        }
    }

    /// Goes on with all fences, and forgets old ones. Call every few seconds.
    pub(crate) fn tidy_fences(&self, now_ms: u64) -> Result<()> {
        let _turn = self.fences.turn.lock();
        let begun: Vec<_> =
            self.fences.table.lock().begun.iter().map(|(place, of)| (place.clone(), *of)).collect();
        for ((id, who), of) in begun {
            // The store did not take it before.
            self.begin_fence(id, &who, of, now_ms)?;
        }
        let all = if !self.config.shared {
            self.fences
                .table
                .lock()
                .known
                .iter()
                .map(|(place, fence)| (place.clone(), fence.clone()))
                .collect()
        } else if self.is_leading(now_ms) {
            self.fences_on_record()?
        } else {
            return Ok(());
        };
        let mut kept = Vec::new();
        for ((id, who), fence) in all {
            if fence.done {
                kept.push((fence.began_ms, (id, who)));
            } else if let Err(error) = self.step_fence(id, &who, &fence, now_ms) {
                tracing::error!(inode = id.0, %error, "a fence does not go on");
            }
        }
        kept.sort_unstable_by_key(|(began_ms, _)| *began_ms);
        let surplus = surplus(&kept, KEPT_MAX);
        for (at, (began_ms, (id, who))) in kept.into_iter().enumerate() {
            if surplus.contains(&at) || began_ms.saturating_add(KEPT_MS) <= now_ms {
                self.forget_fence(id, &who)?;
            }
        }
        Ok(())
    }

    fn fences_on_record(&self) -> Result<Vec<(Place, Fence)>> {
        let (from, mut all) = (keys::fences(), Vec::new());
        each_between(&*self.store.snapshot()?, &from, &keys::after_prefix(&from), |key, value| {
            if let Some(place) = keys::locked_parts(key) {
                all.push((place, decode(value)?));
            }
            Ok::<_, MdsError>(())
        })?;
        Ok(all)
    }

    fn forget_fence(&self, id: InodeId, who: &Who) -> Result<()> {
        self.update(|tx| Ok(tx.delete(&keys::fence(id, who))?))?;
        self.fences.table.lock().known.remove(&(id, who.clone()));
        Ok(())
    }

    /// A holder says that he has nothing left of a file: what he is given from here on is for what comes.
    pub(crate) fn let_go_of_fence(&self, id: InodeId, who: &Who) -> Result<()> {
        if self.fence_of(id, who)?.is_none() {
            return Ok(());
        }
        let _turn = self.fences.turn.lock();
        // What else waits for this server to fence it is not begun within a step.
        let left = as_server(|| {
            self.update(|tx| {
                let key = keys::fence(id, who);
                let Some(mut fence) = load::<Fence, _>(tx, &key)? else { return Ok(None) };
                if fence.done {
                    tx.delete(&key)?;
                    return Ok(None);
                }
                fence.let_go = true;
                save(tx, &key, &fence)?;
                Ok(Some(fence))
            })
        })?;
        if !self.config.shared {
            let (place, known) = ((id, who.clone()), &mut self.fences.table.lock().known);
            _ = match left {
                Some(fence) => known.insert(place, fence),
                None => known.remove(&place),
            };
        }
        Ok(())
    }

    /// A holder has heard that he lost leases, and given up what he wrote under them.
    pub(crate) fn let_go_of_lost_leases(&self, who: &Who) -> Result<()> {
        let lost: Vec<InodeId> = {
            let table = self.fences.table.lock();
            let known = table.known.iter().filter(|((_, one), fence)| one == who && !fence.of_locks);
            known.map(|((id, _), _)| *id).collect()
        };
        lost.into_iter().try_for_each(|id| self.let_go_of_fence(id, who))
    }

    fn audit_fence(&self, id: InodeId, (user, _): &Who, verdict: &str, time_ms: u64) {
        let subject = format!("node {}", id.0);
        self.audit.record(&AuditRecord {
            time_ms,
            user: user.as_str(),
            session: None,
            proven: true,
            source: None,
            action: "fence",
            subject: Some(&subject),
            verdict,
        });
    }
}
