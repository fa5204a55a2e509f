//! Transaction groups: who is in the open one, and when it is committed.
//!
//! Does: let operations in; close a group only when none is under way; share one commit among all that wait.
//! Order of a commit: segments are synced, then the index commits, then the freed blocks may be used again.
//! Who waits reads a clock, to wait for others not too long; one thread alone never does.
//! Contract: when one step fails the store is poisoned, and nothing is written until it is opened again.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};

use super::DiskStore;
use super::chunk::ChunkPatch;
use super::pool::is_inline;
use super::record::{Key, Value};
use super::space::Run;
use super::write_log::{Appended, EncodedStep, RecordOutcome, WriteLog};
use crate::StoreError;

/// A group that a thread keeps open.
struct Held {
    /// The gate of its store.
    gate: u64,
    /// How many times the thread is inside: operations and scopes around them.
    depth: u32,
    /// The cluster of the write log that keeps the changes of the outermost scope, or 0; [`UNLOGGED`].
    cluster: u64,
}

/// A scope changed something, and the log has none of it.
const UNLOGGED: u64 = u64::MAX;

thread_local! {
    /// The groups that this thread keeps open, one of each store.
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
    /// The changes of one operation, encoded for the write log.
    static STEP: RefCell<EncodedStep> = RefCell::default();
}

/// What an operation still has to wait for before it is answered. It holds no lock meanwhile.
#[must_use = "the operation is answered when this was waited for"]
#[derive(Debug)]
pub(crate) enum Ack {
    /// Nothing: its changes are in the log, or belong to a scope that has not ended.
    Done,
    /// Until the cluster is in the log, or else until the group is committed.
    Cluster { cluster: u64, group: u64 },
    /// Until the group is committed.
    Commit { group: u64 },
}

/// Tells the gates of one process apart.
static GATES: AtomicU64 = AtomicU64::new(1);

/// The way into the open group.
pub(crate) struct Gate {
    id: u64,
    inside: RwLock<()>,
}

/// Being inside; ends when dropped, on the thread that entered.
pub(crate) struct Inside<'a> {
    gate: u64,
    _guard: Option<RwLockReadGuard<'a, ()>>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self { id: GATES.fetch_add(1, Ordering::Relaxed), inside: RwLock::new(()) }
    }

    /// Is this thread inside?
    pub(crate) fn holds(&self) -> bool {
        self.depth() > 0
    }

    /// How many times this thread is inside.
    fn depth(&self) -> u32 {
        HELD.with_borrow(|held| held.iter().find(|held| held.gate == self.id).map_or(0, |held| held.depth))
    }

    /// The cluster of this thread's outermost scope, or 0.
    fn cluster(&self) -> u64 {
        HELD.with_borrow(|held| held.iter().find(|held| held.gate == self.id).map_or(0, |held| held.cluster))
    }

    fn set_cluster(&self, cluster: u64) {
        HELD.with_borrow_mut(|held| {
            held.iter_mut().filter(|held| held.gate == self.id).for_each(|held| held.cluster = cluster);
        });
    }

    /// Goes in, or deeper in; waits while a group is being closed.
    pub(crate) fn enter(&self) -> Inside<'_> {
        // A thread that is inside must not wait: whoever closes the group waits for it.
        let guard = (!self.holds()).then(|| self.inside.read());
        HELD.with_borrow_mut(|held| match held.iter_mut().find(|held| held.gate == self.id) {
            Some(held) => held.depth += 1,
            None => held.push(Held { gate: self.id, depth: 1, cluster: 0 }),
        });
        Inside { gate: self.id, _guard: guard }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| {
            if let Some(position) = held.iter().position(|held| held.gate == self.gate) {
                held[position].depth -= 1;
                if held[position].depth == 0 {
                    held.swap_remove(position);
                }
            }
        });
    }
}

/// A leader waits for those who came with the last commits, at most for this part of the time that one takes,
const GATHER_PART: u32 = 8;
/// and at most so long.
const GATHER_MAX: Duration = Duration::from_millis(2);

/// Threads that wait for a commit.
#[derive(Default)]
struct Line {
    /// How many, the one who leads among them.
    waiting: usize,
    /// Somebody leads.
    led: bool,
    /// How many waited when the last commit ended: those that it served, and those who came meanwhile.
    last: usize,
    /// How long that one took.
    took: Duration,
}

/// Leading a commit; when it ends, however it does, the others go on.
struct Leading<'a> {
    groups: &'a Groups,
    since: Instant,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        let mut line = self.groups.line.lock();
        line.led = false;
        (line.last, line.took) = (line.waiting, self.since.elapsed());
        line.waiting -= 1;
        drop(line);
        self.groups.ended.notify_all();
    }
}

/// The state of the groups of a store.
pub(crate) struct Groups {
    pub(crate) gate: Gate,
    /// Number of the open group; goes on from one opening to the next where there is a write log. At least 1: 0 means
    /// "committed long ago".
    open: AtomicU64,
    /// Number of the last committed group.
    committed: AtomicU64,
    /// Those who wait for a commit, and who makes it.
    line: Mutex<Line>,
    /// A commit ended: who waited for it goes, and one of the others leads.
    ended: Condvar,
    /// Somebody joined the line.
    joined: Condvar,
    /// Shared with the index, which may fail by itself.
    poisoned: Arc<AtomicBool>,
    /// Bytes of data written in the open group.
    written: AtomicU64,
    /// Since when the open group is known not to be empty, by the clock of `tick`.
    dirty_since: Mutex<Option<(u64, Duration)>>,
}

impl Groups {
    /// The last group that was committed is `committed`.
    pub(crate) fn new(poisoned: Arc<AtomicBool>, committed: u64) -> Self {
        Self {
            gate: Gate::new(),
            open: AtomicU64::new(committed + 1),
            committed: AtomicU64::new(committed),
            line: Mutex::default(),
            ended: Condvar::new(),
            joined: Condvar::new(),
            poisoned,
            written: AtomicU64::new(0),
            dirty_since: Mutex::new(None),
        }
    }

    /// The open group's number. Stable while the caller is inside.
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Acquire)
    }

    /// Counts data written in the open group.
    pub(crate) fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// `Poisoned` if it is.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.poisoned.load(Ordering::Acquire) { Err(StoreError::Poisoned) } else { Ok(()) }
    }
}

impl DiskStore {
    /// Does the store refuse writes until it is opened again, or is it open for reading only?
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.groups.check().is_err()
    }

    /// Refuses all writing from now on.
    pub(crate) fn poison(&self, engine_failed: bool) {
        tracing::error!(engine_failed, "the store is poisoned: it refuses writes until opened again");
        self.index.stop(engine_failed);
        if !engine_failed || self.index.is_unsynced() {
            super::format::mark(&*self.medium);
        }
    }

    /// Makes all that was acknowledged durable.
    pub(crate) fn flush_groups(&self) -> Result<(), StoreError> {
        if self.groups.gate.holds() {
            return Err(StoreError::ScopeOpen);
        }
        self.groups.check()?;
        let target = {
            let _inside = self.groups.gate.enter();
            self.groups.open() - u64::from(!self.index.is_dirty())
        };
        self.commit_through(target)
    }

    /// Returns when the group `target` is committed, by this thread or by another.
    fn commit_through(&self, target: u64) -> Result<(), StoreError> {
        let committed = || self.groups.committed.load(Ordering::Acquire) >= target;
        if committed() {
            return Ok(());
        }
        let mut line = self.groups.line.lock();
        line.waiting += 1;
        self.groups.joined.notify_one();
        let outcome = loop {
            if committed() {
                break Some(Ok(()));
            }
            if let Err(error) = self.groups.check() {
                break Some(Err(error));
            }
            if !line.led {
                break None;
            }
            self.groups.ended.wait(&mut line);
        };
        if let Some(outcome) = outcome {
            line.waiting -= 1;
            return outcome;
        }
        line.led = true;
        self.gather(&mut line);
        drop(line);
        let _leading = Leading { groups: &self.groups, since: Instant::now() };
        self.commit_open()
    }

    /// Those whom the last commit served are likely to come again at once: a leader who did not wait for them would
    /// commit for himself alone, and they would wait for two commits. Alone, nobody waits.
    fn gather(&self, line: &mut parking_lot::MutexGuard<'_, Line>) {
        let expected = line.last;
        if line.waiting >= expected {
            return;
        }
        let until = Instant::now() + GATHER_MAX.min(line.took / GATHER_PART);
        while line.waiting < expected && !self.groups.joined.wait_until(line, until).timed_out() {}
    }

    /// Closes the open group and commits it. The caller leads.
    fn commit_open(&self) -> Result<(), StoreError> {
        let (group, number, segments) = {
            let _all_out = self.groups.gate.inside.write();
            self.groups.written.store(0, Ordering::Relaxed);
            let number = self.groups.open.fetch_add(1, Ordering::AcqRel);
            // Before it is the committing one: so that it is never counted nowhere.
            self.room.commits(self.index.open_load());
            let group = self.index.rotate();
            if let Some(log) = &self.log {
                log.next_group(!group.is_empty());
            }
            (group, number, self.segments.take_dirty())
        };
        if let Err(source) = self.segments.sync(&segments) {
            self.poison(false);
            return Err(StoreError::Io { doing: "syncing data", source });
        }
        if group.is_empty() {
            self.room.committed(&[]);
        } else {
            let logged = self.numbers_groups.then_some(number);
            if let Err(error) = self.index.commit(&group, logged, |written| self.room.committed(written)) {
                self.poison(true);
                return Err(error);
            }
        }
        // A read that met a damaged page meanwhile may have frozen the index one commit earlier: then the layers stay
        // above it, and nothing that it refers to comes free. Whoever stops the index from here on freezes this commit.
        self.groups.check()?;
        let is_long = |run: &&Run| run.count >= self.options.discard_blocks_min && !is_inline(run.place);
        let mut discarded = Vec::new();
        for run in group.freed.iter().filter(is_long) {
            // Only a hint: the blocks are free either way.
            match self.segments.discard(*run) {
                Ok(()) => discarded.push(*run),
                Err(error) => tracing::warn!(%error, "discard failed"),
            }
        }
        self.index.settle(&group);
        let mut space = self.space.lock();
        space.recycle(&group.freed);
        if self.is_bounded {
            discarded.into_iter().for_each(|run| space.withhold(run));
        }
        drop(space);
        self.groups.committed.store(number, Ordering::Release);
        Ok(())
    }

    /// Puts the changes of one operation into the open group and into the write log. `patches` are the changes of chunks,
    /// `freed` the blocks that come free with the group's commit, `spared` those that come free as soon as the changes
    /// cannot be lost. The caller is inside the group and holds the locks of the objects.
    pub(crate) fn apply(
        &self,
        changes: Vec<(Key, Option<Value>)>,
        patches: &[(Key, ChunkPatch)],
        freed: &[Run],
        spared: Vec<Run>,
    ) -> Ack {
        let gate = &self.groups.gate;
        let (in_scope, group) = (gate.depth() > 1, self.groups.open());
        let Some(log) = self.log.as_ref().filter(|_| !self.options.write_through) else {
            self.index.apply(changes, freed);
            self.index.free_later(&spared);
            if in_scope {
                gate.set_cluster(UNLOGGED);
                return Ack::Done;
            }
            return Ack::Commit { group };
        };
        STEP.with_borrow_mut(|step| {
            step.encode(&changes, patches);
            step.stamp(self.index.apply(changes, freed));
            if in_scope {
                gate.set_cluster(log.keep(gate.cluster(), step, spared));
                return Ack::Done;
            }
            self.ack(log.append(step, spared), group)
        })
    }

    fn ack(&self, appended: Appended, group: u64) -> Ack {
        match appended {
            Appended::Logged(spared) => {
                self.space.lock().release(&spared);
                Ack::Done
            }
            Appended::AfterCommit { spared, group } => {
                self.space.lock().release(&spared);
                Ack::Commit { group }
            }
            Appended::Waits(cluster) => Ack::Cluster { cluster, group },
            Appended::Full(spared) => {
                self.index.free_later(&spared);
                Ack::Commit { group }
            }
        }
    }

    /// Waits for what an operation has to wait for. The caller holds no lock and, unless it is in a scope, is not inside
    /// the group.
    pub(crate) fn acknowledge(&self, ack: Ack) -> Result<(), StoreError> {
        match ack {
            Ack::Done => Ok(()),
            Ack::Cluster { cluster, group } => {
                let outcome = self.log.as_ref().map_or(RecordOutcome::NotLogged, |log| log.wait(cluster));
                match outcome {
                    RecordOutcome::Logged => Ok(()),
                    RecordOutcome::AfterCommit(previous) => self.commit_through(previous),
                    RecordOutcome::NotLogged => self.commit_through(group),
                }
            }
            Ack::Commit { group } => self.commit_through(group),
        }
    }

    /// Leaves a scope; returns when its changes survive the death of the process.
    pub(crate) fn end_scope(&self, inside: Inside<'_>) -> Result<(), StoreError> {
        let gate = &self.groups.gate;
        if gate.depth() > 1 {
            return Ok(());
        }
        let (cluster, group) = (gate.cluster(), self.groups.open());
        let ack = match (cluster, &self.log) {
            (0, _) => Ack::Done,
            (UNLOGGED, _) | (_, None) => Ack::Commit { group },
            (cluster, Some(log)) => self.ack(log.end_scope(cluster), group),
        };
        drop(inside);
        self.acknowledge(ack)
    }

    /// Commits what is open, if anything. Not from inside a scope.
    pub(crate) fn commit_now(&self) -> Result<(), StoreError> {
        let target = self.groups.open();
        self.commit_through(target)
    }

    /// Waits for the commit of what may make room, if anything does; tells whether there was something. In a scope nothing
    /// but a group that was closed before it can be: that needs nobody to leave.
    pub(crate) fn commit_for_room(&self) -> Result<bool, StoreError> {
        if !self.groups.gate.holds() && self.index.is_dirty() {
            self.commit_now()?;
        } else if self.room.is_committing() {
            self.commit_through(self.groups.open() - 1)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Closes the group before an operation, if it has become too large for memory or for its half of the log, or holds
    /// back too many freed blocks.
    pub(crate) fn make_room(&self) {
        let heavy = self.index.open_weight() > 2 * self.options.group_weight_max
            || self.log.as_ref().is_some_and(WriteLog::is_nearly_full);
        let held_back = self.space.lock().is_low(self.low_water);
        if (heavy || held_back) && !self.groups.gate.holds() {
            // A failure poisons the store; the operation that follows reports it.
            if let Err(error) = self.commit_now() {
                tracing::error!(%error, "commit before an operation failed");
            }
        }
    }

    /// Commits the open group if it is old or large enough; to be called now and then with a clock that does
    /// not go back, of any origin. Does nothing from inside a scope.
    ///
    /// # Errors
    /// As `flush`.
    pub fn tick(&self, now: Duration) -> Result<(), StoreError> {
        if self.groups.gate.holds() || self.groups.check().is_err() {
            return Ok(());
        }
        self.trim();
        if !self.index.is_dirty() {
            return Ok(());
        }
        let open = self.groups.open();
        let due = {
            let mut since = self.groups.dirty_since.lock();
            let start = match *since {
                Some((group, start)) if group == open => start,
                _ => now,
            };
            *since = Some((open, start));
            now.saturating_sub(start) >= self.options.group_age_max
        };
        let large = self.groups.written.load(Ordering::Relaxed) >= self.options.group_bytes_max
            || self.index.open_weight() >= self.options.group_weight_max
            || self.log.as_ref().is_some_and(WriteLog::is_half_full);
        if due || large { self.commit_through(open) } else { Ok(()) }
    }
}
