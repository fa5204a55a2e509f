//! Replays the write log when a store is opened.
//!
//! Does: finds the longest sequence of records, from the first uncommitted one, that are complete
//! and whose data matches their checksums; combines them into one set of changes.
//! Does not: write anything.
//! Contract: a replay never restores a value older than the committed one: records carry their
//! group's number, and the index the number of the last committed group.

use std::collections::{BTreeMap, HashMap};
use std::io::IoSliceMut;
use std::sync::Arc;

use super::super::DiskStore;
use super::super::chunk::{Chunk, FlatChunk};
use super::super::pool::is_inline;
use super::super::record::{CorruptRecord, Key, RecordValue};
use super::frame::{LoggedGroup, LoggedStep, NewValue, PreviousGroup, parse_steps};
use crate::{BLOCK, StoreError};

/// Number of blocks that are read at a time.
const PIECE_BLOCKS: u64 = 256;

/// Changes to be replayed.
#[derive(Debug)]
pub(crate) struct LogReplay {
    pub(crate) changes: BTreeMap<Key, Option<RecordValue>>,
    /// Number of the last group that has a record in the log.
    pub(crate) last: u64,
    /// Number of records that are replayed.
    pub(crate) records: usize,
    /// Whether all complete records are replayed.
    pub(crate) is_complete: bool,
}

/// The changes after some records, and for each key the record that changed it last.
type Outcome = BTreeMap<Key, (Option<RecordValue>, usize)>;

impl LogReplay {
    /// Plans the replay of the log. `committed`: the last group that the index has. `None` if all
    /// groups of the log are committed. `rewrites`: the data is written again, since the system may
    /// consider it written although it is not on the medium.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub(crate) fn plan(
        store: &DiskStore,
        groups: &[LoggedGroup],
        committed: u64,
        rewrites: bool,
    ) -> Result<Option<Self>, StoreError> {
        let open: Vec<&LoggedGroup> = groups.iter().filter(|group| group.number > committed).collect();
        let Some(last) = open.last().map(|group| group.number) else { return Ok(None) };
        let chain = chain(&open, committed);
        // No change was acknowledged on top of a group that is neither committed nor in the log.
        let was_answered = |group: &&LoggedGroup| group.previous.records != PreviousGroup::INCOMPLETE;
        let is_chained = !open[chain.len()..].iter().any(was_answered);
        let mut records: Vec<Vec<LoggedStep<'_>>> = Vec::new();
        let mut is_sound = true;
        for record in chain.iter().flat_map(|group| group.records()) {
            let Ok(steps) = parse_steps(record) else {
                is_sound = false;
                break;
            };
            records.push(steps);
        }
        let mut count = records.len();
        let mut verified = HashMap::new();
        let changes = loop {
            match apply(store, &records[..count])? {
                Err(record) => count = record,
                Ok(outcome) => match first_unsound(store, &outcome, &mut verified, rewrites) {
                    Some(record) => count = record,
                    None => break outcome,
                },
            }
        };
        let is_complete = is_chained && is_sound && count == records.len();
        if !is_complete {
            tracing::warn!(
                repeated = count,
                found = records.len(),
                "the write log is incomplete: some changes that were not flushed are lost"
            );
        }
        let changes = changes.into_iter().map(|(key, (value, _))| (key, value)).collect();
        Ok(Some(Self { changes, last, records: count, is_complete }))
    }
}

/// Returns the groups that follow each other and the committed one, each of them complete but the
/// last.
fn chain<'g>(open: &[&'g LoggedGroup], committed: u64) -> Vec<&'g LoggedGroup> {
    let mut chain: Vec<&LoggedGroup> = Vec::new();
    for group in open {
        let follows = match chain.last() {
            None => group.previous.group <= committed,
            Some(before) => {
                let records = before.records().len() as u32;
                group.previous == (PreviousGroup { group: before.number, records })
            }
        };
        if !follows {
            break;
        }
        chain.push(group);
    }
    chain
}

/// Applies the steps of some records to the contents of the index; returns the outcome, or the
/// first record that cannot be applied.
fn apply(store: &DiskStore, records: &[Vec<LoggedStep<'_>>]) -> Result<Result<Outcome, usize>, StoreError> {
    let mut steps: Vec<(usize, &LoggedStep<'_>)> = records
        .iter()
        .enumerate()
        .flat_map(|(number, steps)| steps.iter().map(move |step| (number, step)))
        .collect();
    steps.sort_by_key(|(_, step)| step.stamp);
    let mut outcome = Outcome::new();
    for (record, step) in steps {
        for change in &step.changes {
            let key = change.key;
            let value = match change.to {
                NewValue::Nothing => Ok(None),
                NewValue::Value(bytes) => RecordValue::parse(&key, bytes).map(Some),
                NewValue::Patched { is_based, patch } => {
                    let base = if is_based { chunk(store, &outcome, &key)? } else { Ok(None) };
                    let patched = base.and_then(|base| {
                        if is_based && base.is_none() {
                            return Err(CorruptRecord);
                        }
                        FlatChunk::apply_patch(patch, base.as_deref(), store.segments.blocks_each)
                    });
                    patched.map(|chunk| chunk.map(|chunk| RecordValue::Chunk(Arc::new(chunk))))
                }
            };
            let Ok(value) = value else { return Ok(Err(record)) };
            outcome.insert(key, (value, record));
        }
    }
    Ok(Ok(outcome))
}

/// Returns a chunk after some steps.
fn chunk(
    store: &DiskStore,
    outcome: &Outcome,
    key: &Key,
) -> Result<Result<Option<Arc<Chunk>>, CorruptRecord>, StoreError> {
    let value = match outcome.get(key) {
        Some((value, _)) => value.clone().map(Ok),
        None => store.index.get(key)?,
    };
    Ok(match value {
        None => Ok(None),
        Some(Ok(RecordValue::Chunk(chunk))) => Ok(Some(chunk)),
        Some(_) => Err(CorruptRecord),
    })
}

/// Returns the first record whose changes refer to data that does not match its checksum, if there
/// is one. Blocks that the last commit uses were not written since.
fn first_unsound(
    store: &DiskStore,
    outcome: &Outcome,
    verified: &mut HashMap<u64, u32>,
    rewrites: bool,
) -> Option<usize> {
    let mut first: Option<usize> = None;
    for (value, record) in outcome.values() {
        let Some(RecordValue::Chunk(chunk)) = value else { continue };
        if first.is_some_and(|first| first <= *record) {
            continue;
        }
        if !is_sound(store, chunk, verified, rewrites) {
            first = Some(*record);
        }
    }
    first
}

fn is_sound(store: &DiskStore, chunk: &Chunk, verified: &mut HashMap<u64, u32>, rewrites: bool) -> bool {
    let mut buffer = Vec::new();
    for (extent, sums) in chunk.extents().filter(|(extent, _)| !is_inline(extent.location)) {
        let count = sums.len() as u64;
        let known = {
            let space = store.space.lock();
            if !space.has(extent.location, count) {
                return false;
            }
            (extent.location..extent.location + count).all(|location| space.is_occupied(location))
        };
        let is_verified =
            || (extent.location..).zip(sums).all(|(location, sum)| verified.get(&location) == Some(sum));
        if known || is_verified() {
            continue;
        }
        debug_assert!(count <= PIECE_BLOCKS, "an extent lies in one chunk");
        buffer.resize((count * BLOCK) as usize, 0);
        if store.segments.read(extent.location, &mut [IoSliceMut::new(&mut buffer)]).is_err() {
            return false;
        }
        let is_occupied = |location: u64| store.space.lock().is_occupied(location);
        for ((bytes, location), &sum) in buffer.chunks_exact(BLOCK as usize).zip(extent.location..).zip(sums)
        {
            if is_occupied(location) {
                continue;
            }
            if crate::crc::crc32c(bytes) != sum {
                return false;
            }
            verified.insert(location, sum);
        }
        // Data must be durable before the commit that refers to it.
        store.segments.wrote(extent.location);
        if rewrites && store.segments.write(extent.location, &[std::io::IoSlice::new(&buffer)]).is_err() {
            return false;
        }
    }
    true
}
