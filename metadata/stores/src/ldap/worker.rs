//! Puts what was committed into the entries of the records, a moment after it was committed.
//!
//! Contract: a commit leaves the journal after all that it changed is in the records; the newest one stays, so that whoever
//! comes next knows how far it went. What is done may be done again: only the last value of each key counts, and a key is
//! written by one request at a time. When answers are missing the store is renamed before anything else is written, so that
//! a request that arrives late finds nothing.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sealstone_ldap::Outcome;
use sealstone_mds::store::MetaError;

use super::journal::{Commit, bytes_of};
use super::link::{Link, Trouble, open_until};
use super::tree::Kind;
use super::versions::{Change, Value};
use super::{
    Inner, JOURNAL_BYTES_MAX, JOURNAL_COMMITS_MAX, LDAP_DISK, LdapStoreError, RECONNECT_EVERY, failed,
};

/// So many commits are put into the records at once; fewer after [`EVERY`].
const COMMITS: usize = 128;
/// How long a commit waits for others that change the same records. A server that was taken over notices within that, too.
const EVERY: Duration = Duration::from_secs(1);
/// After a refusal.
const PAUSE: Duration = Duration::from_secs(5);
/// Requests that are sent before their answers are read. Servers take 1000 of a connection, or more.
const WINDOW: usize = 64;
/// How long a server that is away is tried for at a time; the end of a store waits for that.
const AWAY_MAX: Duration = Duration::from_secs(2);

/// A commit that may not all be in the records.
#[derive(Clone)]
pub(super) struct Pending {
    pub(super) number: u64,
    pub(super) bytes: usize,
    pub(super) changes: Arc<[Change]>,
}

/// Why the server does not take records.
#[derive(Clone)]
struct RecordRefusal {
    why: String,
    /// Whether its disk or database may be full.
    may_be_full: bool,
}

#[derive(Default)]
struct Waiting {
    commits: VecDeque<Pending>,
    bytes: usize,
    /// Numbers of commits that are in the records, and in the journal still.
    outdated: Vec<u64>,
    /// Grows when the rest is filled anew.
    filled: u64,
    /// May some of it be in the records already?
    is_begun: bool,
    /// Why it does not become less.
    refused: Option<RecordRefusal>,
    ended: bool,
}

impl Waiting {
    fn has_room(&self) -> bool {
        self.bytes < JOURNAL_BYTES_MAX && self.commits.len() < JOURNAL_COMMITS_MAX
    }
}

/// Commits on their way into the records.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Queue {
    /// What a journal had when it was read: it takes room like what comes after it, or else the journal could become
    /// larger than a start reads.
    pub(super) fn fill(&self, journal: Vec<Commit>, outdated: Vec<u64>, outdated_bytes: usize) {
        let mut waiting = self.waiting.lock();
        let pending = |Commit { number, changes }| Pending {
            number,
            bytes: bytes_of(&changes),
            changes: changes.into(),
        };
        waiting.commits = journal.into_iter().map(pending).collect();
        waiting.bytes = outdated_bytes + waiting.commits.iter().map(|commit| commit.bytes).sum::<usize>();
        (waiting.outdated, waiting.is_begun) = (outdated, true);
        waiting.filled += 1;
    }

    pub(super) fn push(&self, commit: Pending) {
        let mut waiting = self.waiting.lock();
        waiting.bytes += commit.bytes;
        waiting.commits.push_back(commit);
        if waiting.commits.len() >= COMMITS {
            self.changed.notify_all();
        }
    }

    /// Is there room for one more?
    pub(super) fn has_room(&self) -> bool {
        self.waiting.lock().has_room()
    }

    /// Returns when there is room for one more. The worker may need the writer's turn to make it: who has it must not wait.
    pub(super) fn wait_for_room(&self, until: Instant) -> Result<(), MetaError> {
        let mut waiting = self.waiting.lock();
        while !waiting.has_room() {
            self.changed.notify_all();
            if self.changed.wait_until(&mut waiting, until).timed_out() {
                let refused = waiting.refused.clone();
                let (why, may_be_full) = match refused {
                    Some(RecordRefusal { why, may_be_full }) => (why, may_be_full),
                    None => ("it is slow".to_owned(), false),
                };
                let why = format!("the LDAP server does not take the records: {why}");
                return Err(match may_be_full {
                    true => MetaError::Full { disk: LDAP_DISK, source: why.into() },
                    false => failed(why),
                });
            }
        }
        Ok(())
    }

    /// Nothing more comes.
    pub(super) fn end(&self) {
        self.waiting.lock().ended = true;
        self.changed.notify_all();
    }
}

/// What is to be put into the records.
struct Batch {
    commits: usize,
    bytes: usize,
    filled: u64,
    numbers: Vec<u64>,
    outdated: Vec<u64>,
    is_begun: bool,
    /// The last value of each key, and whether there was one before the first.
    last: BTreeMap<Box<[u8]>, (Option<Value>, Option<bool>)>,
}

impl Queue {
    /// Waits for something to do; `None` if there is nothing. And whether it is the end.
    fn next(&self, is_claimed: bool) -> (Option<Batch>, bool) {
        let mut waiting = self.waiting.lock();
        let until = Instant::now() + EVERY;
        let is_full = |waiting: &Waiting| {
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
        let mut batch = Batch {
            commits: waiting.commits.len(),
            bytes: waiting.bytes,
            filled: waiting.filled,
            numbers: waiting.commits.iter().map(|commit| commit.number).collect(),
            outdated: waiting.outdated.clone(),
            is_begun: waiting.is_begun,
            last: BTreeMap::new(),
        };
        let commits: Vec<Arc<[Change]>> =
            waiting.commits.iter().map(|one| Arc::clone(&one.changes)).collect();
        drop(waiting);
        for Change { key, value, was_there } in commits.iter().flat_map(|changes| changes.iter()) {
            batch
                .last
                .entry(key.clone())
                .and_modify(|(last, _)| last.clone_from(value))
                .or_insert_with(|| (value.clone(), *was_there));
        }
        (Some(batch), ended)
    }

    fn done(&self, batch: &Batch) {
        let mut waiting = self.waiting.lock();
        if waiting.filled == batch.filled {
            waiting.commits.drain(..batch.commits);
            waiting.bytes -= batch.bytes;
            waiting.is_begun = false;
            // The newest one stays in the journal.
            waiting.outdated = batch.numbers.last().copied().into_iter().collect();
        }
        waiting.refused = None;
        self.changed.notify_all();
    }
}

impl Queue {
    /// Some of it may have been done; it is done again. Told once, not at every try.
    fn not_done(&self, why: &(dyn Error + 'static), may_be_full: bool) {
        let mut waiting = self.waiting.lock();
        waiting.is_begun = true;
        let refusal = RecordRefusal { why: why.to_string(), may_be_full };
        if waiting.refused.replace(refusal).is_none() {
            tracing::warn!(error = why, "what was committed is not in the entries of LDAP yet");
        }
    }
}

/// Why records were not written.
enum Unwritten {
    Trouble(Trouble),
    /// The store has another name now.
    Renamed,
    Failed(LdapStoreError),
}

impl From<Trouble> for Unwritten {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

/// The worker, until the store ends.
pub(super) fn run(inner: &Inner) {
    let mut link = None;
    // May something that was sent before still arrive?
    let mut is_astray = false;
    loop {
        let (batch, ended) = inner.queue.next(inner.is_claimed());
        if is_astray {
            // What arrives then must find nothing: it has older values than what is written next.
            is_astray = !inner.leave_behind(AWAY_MAX);
        }
        if inner.is_lost() {
            return;
        }
        let until = Instant::now() + AWAY_MAX;
        let written = if inner.is_claimed() && !is_astray {
            work(inner, &mut link, batch.as_ref(), until)
        } else {
            Ok(())
        };
        let pause = match written {
            Ok(()) if is_astray => RECONNECT_EVERY,
            Ok(()) => Duration::ZERO,
            Err(Unwritten::Renamed) => {
                inner.queue.waiting.lock().is_begun = true;
                // By ourselves, or by somebody else.
                let owner = inner.owner();
                let found = link.as_mut().map(|link| inner.tree.find(link));
                match found {
                    Some(Ok(Some(found))) if found == owner || inner.may_be_ours(&found) => {}
                    Some(Ok(_)) if inner.owner() != owner => {}
                    Some(Ok(_)) => {
                        inner.is_taken_over();
                        return;
                    }
                    _ => link = None,
                }
                RECONNECT_EVERY
            }
            Err(Unwritten::Trouble(trouble)) => {
                link = None;
                // The server has not answered all: it may be about to do the rest.
                is_astray |= trouble.code().is_none();
                inner.queue.not_done(&trouble, trouble.code() == Some(Outcome::OTHER));
                if trouble.code().is_some() { PAUSE } else { RECONNECT_EVERY }
            }
            Err(Unwritten::Failed(error)) => {
                inner.queue.not_done(&error, false);
                PAUSE
            }
        };
        if ended {
            return;
        }
        if !pause.is_zero() {
            let mut waiting = inner.queue.waiting.lock();
            let until = Instant::now() + pause;
            while !waiting.ended && !inner.queue.changed.wait_until(&mut waiting, until).timed_out() {}
        }
    }
}

fn work(
    inner: &Inner,
    link: &mut Option<Link>,
    batch: Option<&Batch>,
    until: Instant,
) -> Result<(), Unwritten> {
    let owner = inner.owner();
    let link = match link {
        Some(link) => link,
        None => link.insert(open_until(&inner.target, until, RECONNECT_EVERY)?),
    };
    let Some(batch) = batch else {
        // Nothing to do but to see whether it is ours still.
        return if link.is_there(&inner.tree.store(&owner))? { Ok(()) } else { Err(Unwritten::Renamed) };
    };
    // Taken before the store became ours, and read anew then: others wrote newer values meanwhile.
    if inner.queue.waiting.lock().filled != batch.filled {
        return Ok(());
    }
    let mut todo: Vec<(&[u8], &[u8], Kind)> = Vec::new();
    for (key, (value, was_there)) in &batch.last {
        match (value, was_there) {
            (Some(value), Some(false)) => todo.push((key, value, Kind::Add)),
            (Some(value), _) => todo.push((key, value, Kind::Replace)),
            // Made and removed meanwhile.
            (None, Some(false)) if !batch.is_begun => {}
            (None, _) => todo.push((key, &[], Kind::Remove)),
        }
    }
    // What was there or not may have been otherwise: then it is done the other way.
    let again = write(inner, link, &owner, &todo)?;
    let again = write(inner, link, &owner, &again)?;
    // Nothing of that was for a name that is not the store's any more, and so it is done.
    if !link.is_there(&inner.tree.store(&owner))? {
        return Err(Unwritten::Renamed);
    }
    if let Some((key, ..)) = again.first() {
        let name = inner.target.name.clone();
        let why = format!("the record {key:02x?} is there and is not");
        return Err(Unwritten::Failed(LdapStoreError::Damaged { dn: name, why }));
    }
    let before = batch.numbers.split_last().map_or(&[][..], |(_, before)| before);
    forget(inner, link, &owner, batch.outdated.iter().chain(before))?;
    inner.queue.done(batch);
    Ok(())
}

type Todo<'a> = (&'a [u8], &'a [u8], Kind);

/// Writes records; those that have to be written in the other way are returned.
fn write<'a>(
    inner: &Inner,
    link: &mut Link,
    owner: &str,
    todo: &[Todo<'a>],
) -> Result<Vec<Todo<'a>>, Unwritten> {
    let mut again = Vec::new();
    for window in todo.chunks(WINDOW) {
        let mut sent = BTreeMap::new();
        for one in window {
            let (key, value, kind) = *one;
            let id = link.send(|id| inner.tree.record_request(id, owner, kind, key, value))?;
            sent.insert(id, *one);
        }
        let mut refused = None;
        for _ in window {
            let (id, outcome) = link.changed()?;
            let Some((key, value, kind)) = sent.remove(&id) else { continue };
            match (outcome.code, kind) {
                (Outcome::SUCCESS, _) | (Outcome::NO_SUCH_OBJECT, Kind::Remove) => {}
                (Outcome::EXISTS, Kind::Add) => again.push((key, value, Kind::Replace)),
                (Outcome::NO_SUCH_OBJECT, Kind::Replace) => again.push((key, value, Kind::Add)),
                // The store itself is not there: that is found out after.
                (Outcome::NO_SUCH_OBJECT, Kind::Add) => again.push((key, value, Kind::Add)),
                _ => refused = Some(Trouble::Refused { what: "a record", outcome }),
            }
        }
        // Not before: the answers of this window are not those of the next one.
        if let Some(refused) = refused {
            return Err(refused.into());
        }
    }
    Ok(again)
}

fn forget<'a>(
    inner: &Inner,
    link: &mut Link,
    owner: &str,
    numbers: impl Iterator<Item = &'a u64>,
) -> Result<(), Unwritten> {
    let numbers: Vec<u64> = numbers.copied().collect();
    for window in numbers.chunks(WINDOW) {
        for number in window {
            link.send(|id| inner.tree.forget_request(id, owner, *number))?;
        }
        for _ in window {
            let (_, outcome) = link.changed()?;
            if ![Outcome::SUCCESS, Outcome::NO_SUCH_OBJECT].contains(&outcome.code) {
                return Err(Trouble::Refused { what: "an old commit", outcome }.into());
            }
        }
    }
    Ok(())
}
