//! Writes committed changes to the record entries, a moment after the commit.
//!
//! Contract: a commit is removed from the journal after the records have all its changes; the
//! newest one stays, so that the next start knows its number. All writes are idempotent: only the
//! last value of each key counts, and a key has one pending request at a time. After missing
//! responses the store is renamed before the next write, so that a late request finds nothing.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sealstone_ldap::LdapResult;
use sealstone_mds::store::MetaError;

use super::connection::{LdapConnection, RequestError, open_until};
use super::journal::{JournalCommit, bytes_of};
use super::tree::EntryChange;
use super::versions::{RecordChange, Value};
use super::{
    JOURNAL_BYTES_MAX, JOURNAL_COMMITS_MAX, LDAP_DISK, LdapStore, LdapStoreError, RECONNECT_EVERY, failed,
};

/// Commits written together; fewer after [`EVERY`].
const COMMITS: usize = 128;
/// How long a commit waits for others that change the same records. Also the interval in which a
/// server notices that it lost the store.
const EVERY: Duration = Duration::from_secs(1);
/// Pause after a refusal.
const PAUSE: Duration = Duration::from_secs(5);
/// Maximum pending requests. Servers accept 1000 per connection or more.
const WINDOW: usize = 64;
/// How long one attempt waits for an unreachable server; closing the store waits as long.
const AWAY_MAX: Duration = Duration::from_secs(2);

/// A commit that may not be completely in the records.
#[derive(Clone)]
pub(super) struct PendingCommit {
    pub(super) number: u64,
    pub(super) bytes: usize,
    pub(super) changes: Arc<[RecordChange]>,
}

/// Reason why the server refused to write records.
#[derive(Clone)]
struct RecordRefusal {
    why: String,
    /// Whether its disk or database may be full.
    may_be_full: bool,
}

#[derive(Default)]
struct QueueState {
    commits: VecDeque<PendingCommit>,
    bytes: usize,
    /// Numbers of commits that are in the records and still in the journal.
    outdated: Vec<u64>,
    /// Incremented when the queue is filled from a journal.
    filled: u64,
    /// Whether some of the changes may be in the records already.
    is_begun: bool,
    /// Reason why the queue does not shrink.
    refused: Option<RecordRefusal>,
    ended: bool,
}

impl QueueState {
    fn has_space(&self) -> bool {
        self.bytes < JOURNAL_BYTES_MAX && self.commits.len() < JOURNAL_COMMITS_MAX
    }
}

/// Queue of commits to write to the records.
#[derive(Default)]
pub(super) struct RecordQueue {
    waiting: Mutex<QueueState>,
    changed: Condvar,
}

impl RecordQueue {
    /// Fills the queue with a journal that was read. Its commits count against the limit, so that
    /// the journal cannot exceed what a start reads.
    pub(super) fn fill(&self, journal: Vec<JournalCommit>, outdated: Vec<u64>, outdated_bytes: usize) {
        let mut waiting = self.waiting.lock();
        let pending = |JournalCommit { number, changes }| PendingCommit {
            number,
            bytes: bytes_of(&changes),
            changes: changes.into(),
        };
        waiting.commits = journal.into_iter().map(pending).collect();
        waiting.bytes = outdated_bytes + waiting.commits.iter().map(|commit| commit.bytes).sum::<usize>();
        (waiting.outdated, waiting.is_begun) = (outdated, true);
        waiting.filled += 1;
    }

    pub(super) fn push(&self, commit: PendingCommit) {
        let mut waiting = self.waiting.lock();
        waiting.bytes += commit.bytes;
        waiting.commits.push_back(commit);
        if waiting.commits.len() >= COMMITS {
            self.changed.notify_all();
        }
    }

    /// Whether another commit fits.
    pub(super) fn has_space(&self) -> bool {
        self.waiting.lock().has_space()
    }

    /// Waits until another commit fits. The caller must not hold the writer lock, which the worker
    /// may need.
    pub(super) fn wait_for_space(&self, until: Instant) -> Result<(), MetaError> {
        let mut waiting = self.waiting.lock();
        while !waiting.has_space() {
            self.changed.notify_all();
            if self.changed.wait_until(&mut waiting, until).timed_out() {
                let refused = waiting.refused.clone();
                let (why, may_be_full) = match refused {
                    Some(RecordRefusal { why, may_be_full }) => (why, may_be_full),
                    None => ("timed out".to_owned(), false),
                };
                let why = format!("the LDAP server does not store records: {why}");
                return Err(match may_be_full {
                    true => MetaError::Full { disk: LDAP_DISK, source: why.into() },
                    false => failed(why),
                });
            }
        }
        Ok(())
    }

    /// Marks the end: no further commits follow.
    pub(super) fn end(&self) {
        self.waiting.lock().ended = true;
        self.changed.notify_all();
    }
}

/// Changes to write to the records.
struct RecordBatch {
    commits: usize,
    bytes: usize,
    filled: u64,
    numbers: Vec<u64>,
    outdated: Vec<u64>,
    is_begun: bool,
    /// Last value of each key, and whether the key existed before the first change.
    last: BTreeMap<Box<[u8]>, (Option<Value>, Option<bool>)>,
}

impl RecordQueue {
    /// Waits for work; `None` if there is none. Also returns whether the store is being closed.
    fn next(&self, is_claimed: bool) -> (Option<RecordBatch>, bool) {
        let mut waiting = self.waiting.lock();
        let until = Instant::now() + EVERY;
        let is_full = |waiting: &QueueState| {
            is_claimed && (waiting.commits.len() >= COMMITS || waiting.bytes >= JOURNAL_BYTES_MAX)
        };
        while !waiting.ended && !is_full(&waiting) {
            if self.changed.wait_until(&mut waiting, until).timed_out() {
                break;
            }
        }
        let ended = waiting.ended;
        if waiting.commits.is_empty() {
            return (None, ended);
        }
        let mut batch = RecordBatch {
            commits: waiting.commits.len(),
            bytes: waiting.bytes,
            filled: waiting.filled,
            numbers: waiting.commits.iter().map(|commit| commit.number).collect(),
            outdated: waiting.outdated.clone(),
            is_begun: waiting.is_begun,
            last: BTreeMap::new(),
        };
        let commits: Vec<Arc<[RecordChange]>> =
            waiting.commits.iter().map(|one| Arc::clone(&one.changes)).collect();
        drop(waiting);
        for RecordChange { key, value, was_there } in commits.iter().flat_map(|changes| changes.iter()) {
            batch
                .last
                .entry(key.clone())
                .and_modify(|(last, _)| last.clone_from(value))
                .or_insert_with(|| (value.clone(), *was_there));
        }
        (Some(batch), ended)
    }

    fn done(&self, batch: &RecordBatch) {
        let mut waiting = self.waiting.lock();
        if waiting.filled == batch.filled {
            waiting.commits.drain(..batch.commits);
            waiting.bytes -= batch.bytes;
            waiting.is_begun = false;
            // The newest commit stays in the journal.
            waiting.outdated = batch.numbers.last().copied().into_iter().collect();
        }
        waiting.refused = None;
        self.changed.notify_all();
    }
}

impl RecordQueue {
    /// Records a failed write, which will be repeated. Logs only the first failure in a row.
    fn record_failure(&self, why: &(dyn Error + 'static), may_be_full: bool) {
        let mut waiting = self.waiting.lock();
        waiting.is_begun = true;
        let refusal = RecordRefusal { why: why.to_string(), may_be_full };
        if waiting.refused.replace(refusal).is_none() {
            tracing::warn!(error = why, "committed changes not written to LDAP records; retrying");
        }
    }
}

/// Reason why records were not written.
enum WriteError {
    RequestError(RequestError),
    /// The store has another name now.
    Renamed,
    Failed(LdapStoreError),
}

impl From<RequestError> for WriteError {
    fn from(error: RequestError) -> Self {
        Self::RequestError(error)
    }
}

/// Runs the worker until the store is closed.
pub(super) fn run(store_state: &LdapStore) {
    let mut connection = None;
    // Whether requests without an answer may still arrive.
    let mut has_late_requests = false;
    loop {
        let (batch, ended) = store_state.queue.next(store_state.is_claimed());
        if has_late_requests {
            // Late requests must find nothing: they have older values than the next writes.
            has_late_requests = !store_state.rename_store(AWAY_MAX);
        }
        if store_state.is_taken_over() {
            return;
        }
        let until = Instant::now() + AWAY_MAX;
        let written = if store_state.is_claimed() && !has_late_requests {
            work(store_state, &mut connection, batch.as_ref(), until)
        } else {
            Ok(())
        };
        let pause = match written {
            Ok(()) if has_late_requests => RECONNECT_EVERY,
            Ok(()) => Duration::ZERO,
            Err(WriteError::Renamed) => {
                store_state.queue.waiting.lock().is_begun = true;
                // Renamed by this server, or by another one.
                let owner = store_state.owner();
                let found = connection.as_mut().map(|connection| store_state.tree.find(connection));
                match found {
                    Some(Ok(Some(found))) if found == owner || store_state.is_tried_name(&found) => {}
                    Some(Ok(_)) if store_state.owner() != owner => {}
                    Some(Ok(_)) => {
                        store_state.mark_taken_over();
                        return;
                    }
                    _ => connection = None,
                }
                RECONNECT_EVERY
            }
            Err(WriteError::RequestError(error)) => {
                connection = None;
                // The server has not answered all requests and may still execute the rest.
                has_late_requests |= error.code().is_none();
                store_state.queue.record_failure(&error, error.code() == Some(LdapResult::OTHER));
                if error.code().is_some() { PAUSE } else { RECONNECT_EVERY }
            }
            Err(WriteError::Failed(error)) => {
                store_state.queue.record_failure(&error, false);
                PAUSE
            }
        };
        if ended {
            return;
        }
        if !pause.is_zero() {
            let mut waiting = store_state.queue.waiting.lock();
            let until = Instant::now() + pause;
            while !waiting.ended && !store_state.queue.changed.wait_until(&mut waiting, until).timed_out() {}
        }
    }
}

fn work(
    store_state: &LdapStore,
    connection: &mut Option<LdapConnection>,
    batch: Option<&RecordBatch>,
    until: Instant,
) -> Result<(), WriteError> {
    let owner = store_state.owner();
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(open_until(&store_state.target, until, RECONNECT_EVERY)?),
    };
    let Some(batch) = batch else {
        // No work: only checks that the store is still owned.
        return if connection.exists(&store_state.tree.store(&owner))? {
            Ok(())
        } else {
            Err(WriteError::Renamed)
        };
    };
    // The batch is older than the claim of the store: others have written newer values since.
    if store_state.queue.waiting.lock().filled != batch.filled {
        return Ok(());
    }
    let mut todo: Vec<(&[u8], &[u8], EntryChange)> = Vec::new();
    for (key, (value, was_there)) in &batch.last {
        match (value, was_there) {
            (Some(value), Some(false)) => todo.push((key, value, EntryChange::Add)),
            (Some(value), _) => todo.push((key, value, EntryChange::Replace)),
            // Created and removed within this batch.
            (None, Some(false)) if !batch.is_begun => {}
            (None, _) => todo.push((key, &[], EntryChange::Remove)),
        }
    }
    // Changes that failed because the entry exists, or does not, are repeated as the other kind.
    let again = write(store_state, connection, &owner, &todo)?;
    let again = write(store_state, connection, &owner, &again)?;
    // If the store still has its name, all these writes went to it.
    if !connection.exists(&store_state.tree.store(&owner))? {
        return Err(WriteError::Renamed);
    }
    if let Some((key, ..)) = again.first() {
        let name = store_state.target.name.clone();
        let why = format!("the record {key:02x?} exists and does not exist");
        return Err(WriteError::Failed(LdapStoreError::Damaged { dn: name, why }));
    }
    let before = batch.numbers.split_last().map_or(&[][..], |(_, before)| before);
    forget(store_state, connection, &owner, batch.outdated.iter().chain(before))?;
    store_state.queue.done(batch);
    Ok(())
}

type RecordWrite<'a> = (&'a [u8], &'a [u8], EntryChange);

/// Writes records. Returns those that must be repeated as another kind of change.
fn write<'a>(
    store_state: &LdapStore,
    connection: &mut LdapConnection,
    owner: &str,
    todo: &[RecordWrite<'a>],
) -> Result<Vec<RecordWrite<'a>>, WriteError> {
    let mut again = Vec::new();
    for window in todo.chunks(WINDOW) {
        let mut sent = BTreeMap::new();
        for one in window {
            let (key, value, kind) = *one;
            let id = connection.send(|id| store_state.tree.record_request(id, owner, kind, key, value))?;
            sent.insert(id, *one);
        }
        let mut refused = None;
        for _ in window {
            let (id, outcome) = connection.changed()?;
            let Some((key, value, kind)) = sent.remove(&id) else { continue };
            match (outcome.code, kind) {
                (LdapResult::SUCCESS, _) | (LdapResult::NO_SUCH_OBJECT, EntryChange::Remove) => {}
                (LdapResult::EXISTS, EntryChange::Add) => again.push((key, value, EntryChange::Replace)),
                (LdapResult::NO_SUCH_OBJECT, EntryChange::Replace) => {
                    again.push((key, value, EntryChange::Add))
                }
                // The store itself may be missing, which the caller checks.
                (LdapResult::NO_SUCH_OBJECT, EntryChange::Add) => again.push((key, value, EntryChange::Add)),
                _ => refused = Some(RequestError::Refused { what: "a record", outcome }),
            }
        }
        // Returned only after all responses: those of this window must not be taken for those of
        // the next.
        if let Some(refused) = refused {
            return Err(refused.into());
        }
    }
    Ok(again)
}

fn forget<'a>(
    store_state: &LdapStore,
    connection: &mut LdapConnection,
    owner: &str,
    numbers: impl Iterator<Item = &'a u64>,
) -> Result<(), WriteError> {
    let numbers: Vec<u64> = numbers.copied().collect();
    for window in numbers.chunks(WINDOW) {
        for number in window {
            connection.send(|id| store_state.tree.forget_request(id, owner, *number))?;
        }
        for _ in window {
            let (_, outcome) = connection.changed()?;
            if ![LdapResult::SUCCESS, LdapResult::NO_SUCH_OBJECT].contains(&outcome.code) {
                return Err(RequestError::Refused { what: "an old commit", outcome }.into());
            }
        }
    }
    Ok(())
}
