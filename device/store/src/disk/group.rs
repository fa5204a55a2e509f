//! Commit groups: which operations are in the open group, and when it is committed.
//!
//! Does: admits operations to the group; closes a group only when none is running in it; shares one
//! commit among all waiting threads.
//! Order of a commit: segments are synced, then the index commits, then the freed blocks may be
//! used again.
//! A waiting thread reads a clock to limit how long it waits for others; a single thread never
//! does.
//! Contract: if one step fails the store is poisoned, and nothing is written until it is opened
//! again.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};

use super::DiskStore;
use super::chunk::ChunkPatch;
use super::pool::is_inline;
use super::record::{Key, RecordValue, object_of};
use super::space::BlockRun;
use super::write_log::{AppendOutcome, EncodedStep, RecordOutcome, WriteLog};
use crate::StoreError;

/// A group that a thread keeps open.
struct ThreadGroup {
    /// Id of the gate of the store.
    gate: u64,
    /// Nesting depth of the thread's operations and scopes.
    depth: u32,
    /// The write-log cluster with the changes of the outermost scope; 0 for none, or [`UNLOGGED`].
    cluster: u64,
}

/// A scope changed something, and nothing of it is in the log.
const UNLOGGED: u64 = u64::MAX;

thread_local! {
    /// The groups that this thread keeps open, one per store.
    static THREAD_GROUPS: RefCell<Vec<ThreadGroup>> = const { RefCell::new(Vec::new()) };
    /// Buffer for the encoded changes of one operation.
    static STEP: RefCell<EncodedStep> = RefCell::default();
}

/// The event that an operation waits for before it is answered. It holds no lock while waiting.
#[must_use = "the operation is answered when this was waited for"]
#[derive(Debug)]
pub(crate) enum AnswerWait {
    /// Nothing: its changes are in the log, or belong to a scope that has not ended.
    Done,
    /// Until the cluster is in the log, or otherwise until the group is committed.
    Cluster { cluster: u64, group: u64 },
    /// Until the group is committed.
    Commit { group: u64 },
}

/// The next gate id, unique in the process.
static GATES: AtomicU64 = AtomicU64::new(1);

/// Admits threads to the open group of one store.
pub(crate) struct GroupGate {
    id: u64,
    inside: RwLock<()>,
}

/// Membership of this thread in the open group; ends when dropped, on the thread that entered.
pub(crate) struct GroupGuard<'a> {
    gate: u64,
    _guard: Option<RwLockReadGuard<'a, ()>>,
}

impl GroupGate {
    pub(crate) fn new() -> Self {
        Self { id: GATES.fetch_add(1, Ordering::Relaxed), inside: RwLock::new(()) }
    }

    /// Whether this thread is in the group.
    pub(crate) fn holds(&self) -> bool {
        self.depth() > 0
    }

    /// Returns this thread's nesting depth.
    fn depth(&self) -> u32 {
        THREAD_GROUPS
            .with_borrow(|held| held.iter().find(|held| held.gate == self.id).map_or(0, |held| held.depth))
    }

    /// Returns the cluster of this thread's outermost scope, or 0.
    fn cluster(&self) -> u64 {
        THREAD_GROUPS
            .with_borrow(|held| held.iter().find(|held| held.gate == self.id).map_or(0, |held| held.cluster))
    }

    fn set_cluster(&self, cluster: u64) {
        THREAD_GROUPS.with_borrow_mut(|held| {
            held.iter_mut().filter(|held| held.gate == self.id).for_each(|held| held.cluster = cluster);
        });
    }

    /// Enters the group, or increases the nesting depth; waits while a group is being closed.
    pub(crate) fn enter(&self) -> GroupGuard<'_> {
        // A thread in the group must not wait: closing the group waits for that thread.
        let guard = (!self.holds()).then(|| self.inside.read());
        THREAD_GROUPS.with_borrow_mut(|held| match held.iter_mut().find(|held| held.gate == self.id) {
            Some(held) => held.depth += 1,
            None => held.push(ThreadGroup { gate: self.id, depth: 1, cluster: 0 }),
        });
        GroupGuard { gate: self.id, _guard: guard }
    }
}

impl Drop for GroupGuard<'_> {
    fn drop(&mut self) {
        THREAD_GROUPS.with_borrow_mut(|held| {
            if let Some(position) = held.iter().position(|held| held.gate == self.gate) {
                held[position].depth -= 1;
                if held[position].depth == 0 {
                    held.swap_remove(position);
                }
            }
        });
    }
}

/// A leader waits for the threads that joined the last commits, at most for this fraction of a
/// commit's duration,
const GATHER_PART: u32 = 8;
/// and at most this long.
const GATHER_MAX: Duration = Duration::from_millis(2);

/// Threads that wait for a commit.
#[derive(Default)]
struct CommitQueue {
    /// Number of waiting threads, including the leader.
    waiting: usize,
    /// Whether a thread leads.
    led: bool,
    /// Number of waiting threads when the last commit ended: those that it served, and those that
    /// arrived meanwhile.
    last: usize,
    /// Duration of the last commit.
    took: Duration,
}

/// Leadership of a commit; dropping it, on success or failure, wakes the other threads.
struct CommitLeader<'a> {
    groups: &'a CommitGroups,
    since: Instant,
}

impl Drop for CommitLeader<'_> {
    fn drop(&mut self) {
        let mut queue = self.groups.queue.lock();
        queue.led = false;
        (queue.last, queue.took) = (queue.waiting, self.since.elapsed());
        queue.waiting -= 1;
        drop(queue);
        self.groups.ended.notify_all();
    }
}

/// State of the commit groups of a store.
pub(crate) struct CommitGroups {
    pub(crate) gate: GroupGate,
    /// Number of the open group; with a write log it continues from one opening to the next. At
    /// least 1: 0 means "committed long ago".
    open: AtomicU64,
    /// Number of the last committed group.
    committed: AtomicU64,
    /// The threads that wait for a commit, and whether one leads.
    queue: Mutex<CommitQueue>,
    /// Signalled when a commit ends: threads that it served return, and one of the others leads.
    ended: Condvar,
    /// Signalled when a thread joins the queue.
    joined: Condvar,
    /// Shared with the index, which may fail on its own.
    poisoned: Arc<AtomicBool>,
    /// Bytes of data written in the open group.
    written: AtomicU64,
    /// Group and time, by the clock of `tick`, when the open group was first seen to have changes.
    dirty_since: Mutex<Option<(u64, Duration)>>,
}

impl CommitGroups {
    /// Creates the state after group `committed`, the last committed one.
    pub(crate) fn new(poisoned: Arc<AtomicBool>, committed: u64) -> Self {
        Self {
            gate: GroupGate::new(),
            open: AtomicU64::new(committed + 1),
            committed: AtomicU64::new(committed),
            queue: Mutex::default(),
            ended: Condvar::new(),
            joined: Condvar::new(),
            poisoned,
            written: AtomicU64::new(0),
            dirty_since: Mutex::new(None),
        }
    }

    /// Returns the open group's number. Stable while the caller is in the group.
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Acquire)
    }

    /// Counts data written in the open group.
    pub(crate) fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Fails with `Poisoned` if the store is.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.poisoned.load(Ordering::Acquire) { Err(StoreError::Poisoned) } else { Ok(()) }
    }
}

impl DiskStore {
    /// Whether the store refuses writes until it is opened again, or is open for reading only.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.groups.check().is_err()
    }

    /// Refuses all further writes.
    pub(crate) fn poison(&self, engine_failed: bool) {
        tracing::error!(engine_failed, "the store is poisoned: it refuses writes until opened again");
        self.index.stop(engine_failed);
        if !engine_failed || self.index.is_unsynced() {
            super::format::mark(&*self.medium);
        }
    }

    /// Makes all acknowledged changes durable.
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
        let mut queue = self.groups.queue.lock();
        queue.waiting += 1;
        self.groups.joined.notify_one();
        let outcome = loop {
            if committed() {
                break Some(Ok(()));
            }
            if let Err(error) = self.groups.check() {
                break Some(Err(error));
            }
            if !queue.led {
                break None;
            }
            self.groups.ended.wait(&mut queue);
        };
        if let Some(outcome) = outcome {
            queue.waiting -= 1;
            return outcome;
        }
        queue.led = true;
        self.wait_for_followers(&mut queue);
        drop(queue);
        let _leading = CommitLeader { groups: &self.groups, since: Instant::now() };
        self.commit_open()
    }

    /// Waits briefly for the threads that the last commit served, which are likely to write again
    /// at once. Otherwise the leader would commit only its own changes, and they would wait for two
    /// commits. A single thread never waits.
    fn wait_for_followers(&self, queue: &mut parking_lot::MutexGuard<'_, CommitQueue>) {
        let expected = queue.last;
        if queue.waiting >= expected {
            return;
        }
        let until = Instant::now() + GATHER_MAX.min(queue.took / GATHER_PART);
        while queue.waiting < expected && !self.groups.joined.wait_until(queue, until).timed_out() {}
    }

    /// Closes the open group and commits it. The caller leads.
    fn commit_open(&self) -> Result<(), StoreError> {
        let (group, number, segments) = {
            let _all_out = self.groups.gate.inside.write();
            self.groups.written.store(0, Ordering::Relaxed);
            let number = self.groups.open.fetch_add(1, Ordering::AcqRel);
            // Counted as committing before the group rotates, so that its demand is never missing
            // from the total.
            self.index_space.commits(self.index.open_load());
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
            self.index_space.committed(&[]);
        } else {
            let logged = self.numbers_groups.then_some(number);
            if let Err(error) =
                self.index.commit(&group, logged, |written| self.index_space.committed(written))
            {
                self.poison(true);
                return Err(error);
            }
        }
        // A read that found a damaged page meanwhile may have frozen the index one commit earlier.
        // Then the layers stay on top of it, and none of the blocks it refers to is freed. A stop
        // of the index from here on freezes this commit.
        self.groups.check()?;
        let is_long =
            |run: &&BlockRun| run.count >= self.options.discard_blocks_min && !is_inline(run.location);
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

    /// Puts the changes of one operation into the open group and the write log. `patches` are the
    /// changes of chunks, `freed` the blocks that become free with the group's commit, `reusable`
    /// those that become free as soon as the changes cannot be lost. The caller is in the group and
    /// holds the locks of the objects.
    pub(crate) fn apply(
        &self,
        changes: Vec<(Key, Option<RecordValue>)>,
        patches: &[(Key, ChunkPatch)],
        freed: &[BlockRun],
        reusable: Vec<BlockRun>,
    ) -> AnswerWait {
        self.count_changes(&changes);
        let gate = &self.groups.gate;
        let (in_scope, group) = (gate.depth() > 1, self.groups.open());
        let Some(log) = self.log.as_ref().filter(|_| !self.options.write_through) else {
            self.index.apply(changes, freed);
            self.index.free_later(&reusable);
            if in_scope {
                gate.set_cluster(UNLOGGED);
                return AnswerWait::Done;
            }
            return AnswerWait::Commit { group };
        };
        STEP.with_borrow_mut(|step| {
            step.encode(&changes, patches);
            step.stamp(self.index.apply(changes, freed));
            if in_scope {
                gate.set_cluster(log.keep(gate.cluster(), step, reusable));
                return AnswerWait::Done;
            }
            self.ack(log.append(step, reusable), group)
        })
    }

    /// Counts a change of each object whose records change; see
    /// [`crate::ObjectStore::change_count`].
    fn count_changes(&self, changes: &[(Key, Option<RecordValue>)]) {
        let mut counted = None;
        for (key, _) in changes {
            let id = object_of(key);
            if counted != Some(id) {
                // The locks of the objects order it.
                self.change_counts[self.lock_number(id)].fetch_add(1, Ordering::Relaxed);
                counted = Some(id);
            }
        }
    }

    fn ack(&self, appended: AppendOutcome, group: u64) -> AnswerWait {
        match appended {
            AppendOutcome::Logged(reusable) => {
                self.space.lock().release(&reusable);
                AnswerWait::Done
            }
            AppendOutcome::AfterCommit { reusable, group } => {
                self.space.lock().release(&reusable);
                AnswerWait::Commit { group }
            }
            AppendOutcome::Waits(cluster) => AnswerWait::Cluster { cluster, group },
            AppendOutcome::Full(reusable) => {
                self.index.free_later(&reusable);
                AnswerWait::Commit { group }
            }
        }
    }

    /// Waits until an operation may be answered. The caller holds no lock and, unless it is in a
    /// scope, is not in the group.
    pub(crate) fn acknowledge(&self, ack: AnswerWait) -> Result<(), StoreError> {
        match ack {
            AnswerWait::Done => Ok(()),
            AnswerWait::Cluster { cluster, group } => {
                let outcome = self.log.as_ref().map_or(RecordOutcome::NotLogged, |log| log.wait(cluster));
                match outcome {
                    RecordOutcome::Logged => Ok(()),
                    RecordOutcome::AfterCommit(previous) => self.commit_through(previous),
                    RecordOutcome::NotLogged => self.commit_through(group),
                }
            }
            AnswerWait::Commit { group } => self.commit_through(group),
        }
    }

    /// Leaves a scope; returns when its changes survive the death of the process.
    pub(crate) fn end_scope(&self, inside: GroupGuard<'_>) -> Result<(), StoreError> {
        let gate = &self.groups.gate;
        if gate.depth() > 1 {
            return Ok(());
        }
        let (cluster, group) = (gate.cluster(), self.groups.open());
        let ack = match (cluster, &self.log) {
            (0, _) => AnswerWait::Done,
            (UNLOGGED, _) | (_, None) => AnswerWait::Commit { group },
            (cluster, Some(log)) => self.ack(log.end_scope(cluster), group),
        };
        drop(inside);
        self.acknowledge(ack)
    }

    /// Commits the open group, if it has changes. Not inside a scope.
    pub(crate) fn commit_now(&self) -> Result<(), StoreError> {
        let target = self.groups.open();
        self.commit_through(target)
    }

    /// Waits for a commit that may free pages, if there is one; returns whether there was. In a
    /// scope it can only be a group that was closed before, whose commit needs no thread to leave.
    pub(crate) fn commit_to_free_pages(&self) -> Result<bool, StoreError> {
        if !self.groups.gate.holds() && self.index.is_dirty() {
            self.commit_now()?;
        } else if self.index_space.is_committing() {
            self.commit_through(self.groups.open() - 1)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Closes the group before an operation, if it is too large for memory or for its half of the
    /// log, or holds back too many freed blocks.
    pub(crate) fn commit_if_full(&self) {
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

    /// Commits the open group if it is old or large enough. Call it regularly with a monotonic
    /// clock of any origin. Does nothing inside a scope.
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
