//! The write log: every change that is acknowledged but not committed yet, in a preallocated file.
//!
//! Does: writes the changes of an operation, or of a whole scope, as one record before the answer,
//! without syncing. So they survive the death of the process, and a commit makes them durable. The
//! log has two halves, one for the open group and one for the group that is being committed. If a
//! half is full, or cannot be written, the answer waits for the commit of its group instead.
//! Contract: data that a record refers to was written before it. A record holds whole scopes;
//! scopes that changed the same objects before any of them ended share one record.
//! Source of truth: docs/design/store.md, "Write log"; ADR 53.

mod frame;
mod replay;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};
use sealstone_osd::ObjectId;

use super::space::BlockRun;
use crate::FormatError;
use crate::medium::{Medium, MediumFile};
pub(crate) use frame::{EncodedStep, LogHeader, LoggedGroup, PreviousGroup};
use frame::{HEADER, RECORD_HEADER, RecordHeader};
pub(crate) use replay::LogReplay;

/// Name of the log file.
pub(crate) const NAME: &str = "write-log";
/// Divisor of the capacity for the length of the log,
const CAPACITY_PART: u64 = 128;
/// with these lower and upper limits in bytes.
const LENGTH: (u64, u64) = (1 << 20, 32 << 20);
/// The log's length is a multiple of this, in bytes: a unit of a raw device.
const UNIT: u64 = 1 << 20;
/// A page of memory, in bytes. A record that reaches a new page fills it up with zeros, so that no
/// page has to be read first.
const PAGE: u64 = 4096;
/// The log is read in pieces of this many bytes.
const PIECE: usize = 64 << 10;
/// The group is committed before an operation when this many sixteenths of its half are used,
const NEARLY_FULL: u64 = 14;
/// and by `tick` when this many are.
const HALF_FULL: u64 = 8;

/// Returns the log length of a new store of this capacity, in bytes.
pub(crate) fn length_for(capacity: u64) -> u64 {
    (capacity / CAPACITY_PART).clamp(LENGTH.0, LENGTH.1) / UNIT * UNIT
}

/// Minimum length of a log, in bytes.
pub(crate) const LENGTH_MIN: u64 = LENGTH.0;
/// Maximum length of a log, in bytes.
pub(crate) const LENGTH_MAX: u64 = LENGTH.1;

/// How the store was closed the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviousShutdown {
    /// It was closed cleanly, with all changes committed.
    Clean,
    /// The process ended without closing it, and the same kernel is running: no acknowledged change
    /// is lost.
    ProcessDeath,
    /// The power may have failed: acknowledged changes that were not flushed may be lost.
    PossiblePowerLoss,
}

impl PreviousShutdown {
    /// Returns the name for logs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::ProcessDeath => "process death",
            Self::PossiblePowerLoss => "possible power loss",
        }
    }
}

/// Outcome of passing changes to the log, with the blocks that they release, once these may be used
/// again.
#[derive(Debug)]
pub(crate) enum AppendOutcome {
    /// They are in the log.
    Logged(Vec<BlockRun>),
    /// They are in the log, and count only after the commit of this group, which is incomplete in
    /// the log.
    AfterCommit { reusable: Vec<BlockRun>, group: u64 },
    /// They will be in the log when the scopes of this cluster have ended.
    Waits(u64),
    /// They are not in the log: the answer has to wait for the commit of the group.
    Full(Vec<BlockRun>),
}

/// Outcome of writing a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordOutcome {
    /// The record is in the log and will be replayed.
    Logged,
    /// The record is in the log, and is replayed only if this group is committed.
    AfterCommit(u64),
    /// The record is not in the log.
    NotLogged,
}

impl RecordOutcome {
    fn with(self, reusable: Vec<BlockRun>) -> AppendOutcome {
        match self {
            Self::Logged => AppendOutcome::Logged(reusable),
            Self::AfterCommit(group) => AppendOutcome::AfterCommit { reusable, group },
            Self::NotLogged => AppendOutcome::Full(reusable),
        }
    }
}

/// Scopes that have not ended and depend on each other, with the operations that depend on them.
#[derive(Default)]
struct ScopeCluster {
    /// Number of scopes that have not ended.
    scopes: usize,
    /// Number of threads that wait for the record.
    waiting: usize,
    /// Encoded steps.
    steps: Vec<u8>,
    objects: Vec<ObjectId>,
    reusable: Vec<BlockRun>,
    /// Outcome of writing the record, after the attempt.
    outcome: Option<RecordOutcome>,
}

#[derive(Default)]
struct LogState {
    /// The open group.
    group: u64,
    previous: PreviousGroup,
    /// Offset of the next record within the half, in bytes.
    offset: u64,
    /// The number of the next record.
    number: u32,
    /// Whether no further record of this group is written.
    is_full: bool,
    /// Number of the next cluster.
    next: u64,
    clusters: HashMap<u64, ScopeCluster>,
    /// Clusters that were merged into another one.
    merged: HashMap<u64, u64>,
    /// Objects with changes of scopes that have not ended, and their clusters.
    owners: HashMap<ObjectId, u64>,
    buffer: Vec<u8>,
}

/// The log of an open store.
pub(crate) struct WriteLog {
    file: Arc<dyn MediumFile>,
    /// Length of one half in bytes.
    half: u64,
    header: LogHeader,
    state: Mutex<LogState>,
    written: Condvar,
    /// Copies of parts of `state` that are read without a lock.
    is_nearly_full: AtomicBool,
    is_half_full: AtomicBool,
}

/// Contents of the log when the store was opened.
pub(crate) struct FoundLog {
    file: Arc<dyn MediumFile>,
    half: u64,
    pub(crate) header: Option<LogHeader>,
    /// The groups of both halves, in order.
    pub(crate) groups: Vec<LoggedGroup>,
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns the length of one half of a log, in bytes.
fn half_of(length: u64) -> u64 {
    (length - PAGE) / 2 / PAGE * PAGE
}

/// Creates the file of a log, with all of its space allocated.
pub(crate) fn create(medium: &dyn Medium, length: u64) -> io::Result<()> {
    let file = medium.open(NAME, true)?;
    file.allocate(length)?;
    // A log of an earlier store must not be read as one of this store.
    file.write_at(0, &[0; HEADER])?;
    file.sync()
}

impl FoundLog {
    /// Reads the log of the store `uuid`, and recreates its file if it is missing; `None` without
    /// space for that.
    ///
    /// # Errors
    /// `IoMode`.
    pub(crate) fn open(
        medium: &dyn Medium,
        length: u64,
        uuid: &[u8; 16],
        may_create: bool,
    ) -> Result<Option<Self>, FormatError> {
        let io = |source| FormatError::Io { doing: "opening the write log", source };
        let file = match medium.open(NAME, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && may_create => {
                tracing::error!("the write log is missing: changes that were not flushed are lost");
                match create(medium, length).and_then(|()| medium.sync_names()) {
                    Err(error) if is_full(&error) => return Ok(None),
                    created => created.map_err(io)?,
                }
                medium.open(NAME, false).map_err(io)?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(io)?,
        };
        match if may_create { file.allocate(length) } else { Ok(()) } {
            Err(error) if is_full(&error) => return Ok(None),
            allocated => allocated.map_err(io)?,
        }
        Ok(Some(Self::read(file, length, uuid)))
    }

    /// Creates the log of a store that has none; returns its length in bytes, or 0 without space
    /// for the minimum.
    ///
    /// # Errors
    /// `IoMode`.
    pub(crate) fn create(
        medium: &dyn Medium,
        capacity: u64,
        uuid: &[u8; 16],
    ) -> Result<(u64, Option<Self>), FormatError> {
        let io = |source| FormatError::Io { doing: "making the write log", source };
        for length in [length_for(capacity), LENGTH_MIN] {
            match create(medium, length).and_then(|()| medium.sync_names()) {
                Ok(()) => {
                    let file = medium.open(NAME, false).map_err(io)?;
                    return Ok((length, Some(Self::read(file, length, uuid))));
                }
                Err(error) if is_full(&error) => {}
                Err(error) => return Err(io(error)),
            }
        }
        Ok((0, None))
    }

    /// Unreadable bytes count as empty.
    fn read(file: Arc<dyn MediumFile>, length: u64, uuid: &[u8; 16]) -> Self {
        let half = half_of(length);
        let mut bytes = [0; HEADER];
        let header = file.read_at(0, &mut bytes).ok().and_then(|()| LogHeader::parse(&bytes));
        let header = header.filter(|header| header.uuid == *uuid);
        let mut groups = Vec::new();
        for (number, header) in [0, 1].into_iter().zip([header, header]) {
            let Some(header) = header else { break };
            let read = |bytes: &mut Vec<u8>, wanted: usize| {
                let old = bytes.len();
                let length = wanted.next_multiple_of(PIECE).min(half as usize);
                if wanted > old && length > old {
                    bytes.resize(length, 0);
                    file.read_at(PAGE + number * half + old as u64, &mut bytes[old..])?;
                }
                Ok::<_, io::Error>(())
            };
            let group = LoggedGroup::read(read).unwrap_or_else(|error| {
                tracing::warn!(%error, "one half of the write log cannot be read");
                None
            });
            // Groups of earlier openings were committed before the header of this one was written.
            let is_of_opening =
                |group: &LoggedGroup| group.opening == header.opening && group.number % 2 == number;
            groups.extend(group.filter(is_of_opening));
        }
        groups.sort_by_key(|group| group.number);
        Self { file, half, header, groups }
    }

    /// Begins an opening of the store: `open` is the number of its first group.
    ///
    /// The header is durable before any record of this opening is written.
    ///
    /// # Errors
    /// `IoMode`.
    pub(crate) fn start(self, header: LogHeader, open: u64) -> Result<WriteLog, FormatError> {
        let written = self.file.write_at(0, &header.encode()).and_then(|()| self.file.sync());
        written.map_err(|source| FormatError::Io { doing: "opening the write log", source })?;
        let previous = PreviousGroup { group: open - 1, records: PreviousGroup::INCOMPLETE };
        let state = LogState { group: open, previous, next: 1, ..LogState::default() };
        Ok(WriteLog {
            file: self.file,
            half: self.half,
            header,
            state: Mutex::new(state),
            written: Condvar::new(),
            is_nearly_full: AtomicBool::new(false),
            is_half_full: AtomicBool::new(false),
        })
    }
}

impl ScopeCluster {
    fn add(&mut self, step: &EncodedStep, reusable: Vec<BlockRun>) {
        self.steps.extend_from_slice(&step.bytes);
        self.reusable.extend(reusable);
    }
}

impl LogState {
    /// Returns the cluster that this one was merged into.
    fn find(&self, mut cluster: u64) -> u64 {
        while let Some(&into) = self.merged.get(&cluster) {
            cluster = into;
        }
        cluster
    }

    /// Merges a cluster into another one.
    fn merge(&mut self, from: u64, into: u64) {
        if from == into {
            return;
        }
        let Some(absorbed) = self.clusters.remove(&from) else { return };
        for object in &absorbed.objects {
            self.owners.insert(*object, into);
        }
        self.merged.insert(from, into);
        let cluster = self.clusters.entry(into).or_default();
        cluster.scopes += absorbed.scopes;
        cluster.waiting += absorbed.waiting;
        cluster.steps.extend(absorbed.steps);
        cluster.objects.extend(absorbed.objects);
        cluster.reusable.extend(absorbed.reusable);
    }

    /// Adds a step to a cluster, merged with all clusters that have changed the same objects.
    fn add(&mut self, cluster: u64, step: &EncodedStep, reusable: Vec<BlockRun>) {
        for object in &step.objects {
            match self.owners.insert(*object, cluster) {
                Some(owner) => self.merge(owner, cluster),
                None => self.clusters.entry(cluster).or_default().objects.push(*object),
            }
        }
        self.clusters.entry(cluster).or_default().add(step, reusable);
    }

    /// Removes a cluster without waiting threads.
    fn forget(&mut self, cluster: u64) {
        self.clusters.remove(&cluster);
        if !self.merged.is_empty() {
            let merged: Vec<u64> =
                self.merged.keys().copied().filter(|from| self.find(*from) == cluster).collect();
            merged.iter().for_each(|from| {
                self.merged.remove(from);
            });
        }
    }
}

impl WriteLog {
    /// Logs the step of an operation outside any scope. The caller holds the locks of its objects.
    pub(crate) fn append(&self, step: &EncodedStep, reusable: Vec<BlockRun>) -> AppendOutcome {
        let mut state = self.state.lock();
        let state = &mut *state;
        let owner = step.objects.iter().find_map(|object| state.owners.get(object).copied());
        if let Some(cluster) = owner {
            // It changes an object that an unfinished scope changed: it must not be logged without
            // that scope.
            state.add(cluster, step, reusable);
            if let Some(cluster) = state.clusters.get_mut(&cluster) {
                cluster.waiting += 1;
            }
            return AppendOutcome::Waits(cluster);
        }
        self.write(state, &step.bytes).with(reusable)
    }

    /// Keeps the step of an operation within a scope. Returns the scope's cluster; `cluster` is the
    /// result for its last operation, or 0.
    pub(crate) fn keep(&self, cluster: u64, step: &EncodedStep, reusable: Vec<BlockRun>) -> u64 {
        let mut state = self.state.lock();
        let cluster = match cluster {
            0 => {
                state.next += 1;
                let new = state.next;
                state.clusters.insert(new, ScopeCluster { scopes: 1, ..ScopeCluster::default() });
                new
            }
            cluster => state.find(cluster),
        };
        state.add(cluster, step, reusable);
        cluster
    }

    /// Ends a scope: logs its cluster if no other scope of it is left. The released blocks are
    /// returned to the caller that logged it.
    pub(crate) fn end_scope(&self, cluster: u64) -> AppendOutcome {
        let mut state = self.state.lock();
        let state = &mut *state;
        let cluster = state.find(cluster);
        let Some(ending) = state.clusters.get_mut(&cluster) else { return AppendOutcome::Logged(Vec::new()) };
        ending.scopes -= 1;
        if ending.scopes > 0 {
            ending.waiting += 1;
            return AppendOutcome::Waits(cluster);
        }
        let (steps, reusable) = (std::mem::take(&mut ending.steps), std::mem::take(&mut ending.reusable));
        let (objects, waiting) = (std::mem::take(&mut ending.objects), ending.waiting);
        let outcome = self.write(state, &steps);
        for object in objects {
            state.owners.remove(&object);
        }
        match state.clusters.get_mut(&cluster).filter(|_| waiting > 0) {
            Some(ended) => {
                ended.outcome = Some(outcome);
                self.written.notify_all();
            }
            None => state.forget(cluster),
        }
        outcome.with(reusable)
    }

    /// Waits until all scopes of a cluster have ended; returns the outcome of writing their record.
    pub(crate) fn wait(&self, cluster: u64) -> RecordOutcome {
        let mut state = self.state.lock();
        loop {
            let found = state.find(cluster);
            let Some(ended) = state.clusters.get_mut(&found) else { return RecordOutcome::NotLogged };
            if let Some(outcome) = ended.outcome {
                ended.waiting -= 1;
                if ended.waiting == 0 {
                    state.forget(found);
                }
                return outcome;
            }
            self.written.wait(&mut state);
        }
    }

    /// Writes a record of the open group.
    fn write(&self, state: &mut LogState, steps: &[u8]) -> RecordOutcome {
        if state.is_full {
            return RecordOutcome::NotLogged;
        }
        let length = (RECORD_HEADER + steps.len()) as u64;
        let end = state.offset + length;
        if end > self.half {
            self.fill(state);
            return RecordOutcome::NotLogged;
        }
        let header = RecordHeader {
            group: state.group,
            opening: self.header.opening,
            number: state.number,
            previous: state.previous,
        };
        state.buffer.clear();
        state.buffer.resize(RECORD_HEADER, 0);
        state.buffer.extend_from_slice(steps);
        header.fill(&mut state.buffer);
        let reaches_new_page = state.offset.is_multiple_of(PAGE) || state.offset / PAGE != (end - 1) / PAGE;
        if reaches_new_page {
            state.buffer.resize((length + (end.next_multiple_of(PAGE) - end)) as usize, 0);
        }
        let at = PAGE + state.group % 2 * self.half + state.offset;
        if let Err(error) = self.file.write_at(at, &state.buffer) {
            tracing::warn!(%error, "writing the write log failed; changes are committed before the answer");
            self.fill(state);
            return RecordOutcome::NotLogged;
        }
        state.offset = end;
        state.number += 1;
        let sixteenths = end * 16 / self.half;
        self.is_nearly_full.store(sixteenths >= NEARLY_FULL, Ordering::Relaxed);
        self.is_half_full.store(sixteenths >= HALF_FULL, Ordering::Relaxed);
        // A replay skips a group whose predecessor is neither committed nor complete in the log.
        match state.previous {
            PreviousGroup { group, records: PreviousGroup::INCOMPLETE } => RecordOutcome::AfterCommit(group),
            _ => RecordOutcome::Logged,
        }
    }

    /// Stops logging the open group.
    fn fill(&self, state: &mut LogState) {
        state.is_full = true;
        self.is_nearly_full.store(true, Ordering::Relaxed);
        self.is_half_full.store(true, Ordering::Relaxed);
    }

    /// Switches to the other half: the open group is closed and the next one begins. No scope is
    /// left. `is_changed`: whether the closed group has any changes.
    pub(crate) fn next_group(&self, is_changed: bool) {
        let mut state = self.state.lock();
        if is_changed {
            let records = if state.is_full { PreviousGroup::INCOMPLETE } else { state.number };
            state.previous = PreviousGroup { group: state.group, records };
        }
        state.group += 1;
        (state.offset, state.number, state.is_full) = (0, 0, false);
        self.is_nearly_full.store(false, Ordering::Relaxed);
        self.is_half_full.store(false, Ordering::Relaxed);
    }

    /// Whether an operation should commit the group first.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.is_nearly_full.load(Ordering::Relaxed)
    }

    /// Whether the group should be committed soon.
    pub(crate) fn is_half_full(&self) -> bool {
        self.is_half_full.load(Ordering::Relaxed)
    }

    /// Marks the log as closed: all changes are committed, and no more follow.
    pub(crate) fn close(&self) -> io::Result<()> {
        let header = LogHeader { is_closed: true, ..self.header };
        self.file.write_at(0, &header.encode())?;
        self.file.sync()
    }
}
