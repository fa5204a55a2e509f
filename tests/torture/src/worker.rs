//! One client of the device, which changes its own objects at random and knows their expected
//! state.
//!
//! Does: sends a command, waits for the answer, and sometimes reads. `choice` selects the next
//! step; `view` reads objects.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sealstone_initiator::{Bearer, OsdClient, OsdError};
use sealstone_osd::{ObjectId, SecurityMethod};

use crate::keys::CredentialIssuer;
use crate::oracle::{Entry, ObjectStates, WorkerHistory, WorkerStep, user};

mod choice;
mod view;

/// Objects of each worker; the first [`SMALL`] of them stay small.
const OBJECTS: u64 = 9;
/// Objects of a few KiB at most, around the length up to which an object has no block.
const SMALL: u64 = 3;
/// Number of the first object.
const FIRST: u64 = 0x10000;
/// Collections of each worker, and the number of the first.
const COLLECTIONS: u64 = 2;
const FIRST_COLLECTION: u64 = 0x10100;
/// The application page whose attributes are set.
const PAGE: u32 = 0x10000;
/// Number of its attributes.
const ATTRIBUTES: u32 = 4;
/// Number of an object's membership attributes.
const MEMBERSHIPS: u32 = 3;
/// Partition ids of the first worker's snapshot and clone.
pub(crate) const SNAPSHOT: u64 = 0x20000;
pub(crate) const CLONE: u64 = 0x30000;

/// Counters of all workers.
#[derive(Debug, Default)]
pub struct WorkerCounters {
    /// Acknowledged commands that changed something.
    pub steps: AtomicU64,
    /// Of these, durable ones, and flushes.
    pub durable: AtomicU64,
    /// Of these, REWRITEs.
    pub rewrites: AtomicU64,
    /// Of these, changes of collections and memberships.
    pub memberships: AtomicU64,
    /// Of these, operations on snapshots and clones as a whole.
    pub duplicates: AtomicU64,
    /// Commands refused for lack of space.
    pub refused: AtomicU64,
    /// Objects compared while the device ran.
    pub reads: AtomicU64,
    /// Objects compared after a restart.
    pub compared: AtomicU64,
}

/// State that the workers of one run share.
pub struct RunState<'a> {
    /// Set before the daemon is killed, or asked to end.
    pub killed: &'a AtomicBool,
    /// Whether the device's file system may be full; otherwise only the kill may end a worker.
    pub sick: bool,
    /// The keys.
    pub issuer: &'a CredentialIssuer,
    /// The counters.
    pub tally: &'a WorkerCounters,
}

/// A worker.
pub struct Worker {
    number: usize,
    partition: u64,
    history: WorkerHistory,
    random: StdRng,
    method: SecurityMethod,
    bearers: BTreeMap<ObjectId, Bearer>,
}

/// Outcome of a command.
enum CommandOutcome {
    Done,
    Refused,
    /// The outcome is unknown; this run is over.
    Unknown,
}

impl Worker {
    /// Creates worker `number` of a run, with objects in `partition`.
    #[must_use]
    pub fn new(number: usize, partition: u64, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed ^ (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Self {
            number,
            partition,
            history: WorkerHistory::default(),
            random,
            method: SecurityMethod::AllData,
            bearers: BTreeMap::new(),
        }
    }

    /// Returns its number.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// Returns the ids of its snapshot and its clone.
    fn duplicates(&self) -> [u64; 2] {
        [SNAPSHOT + self.number as u64, CLONE + self.number as u64]
    }

    /// Issues a credential. Snapshots and clones have no keys of their own, so they are used
    /// without security.
    fn bearer(&mut self, issuer: &CredentialIssuer, id: ObjectId) -> Bearer {
        let method = if id.partition == self.partition { self.method } else { SecurityMethod::NoSec };
        let make = || match id.object {
            0 => issuer.partition(id.partition, method),
            FIRST_COLLECTION.. => issuer.collection(id, method),
            _ => issuer.object(id, method),
        };
        self.bearers.entry(id).or_insert_with(make).clone()
    }

    /// Selects the method of the next run.
    pub fn switch(&mut self, life: u64) {
        let all = SecurityMethod::ALL;
        self.method = all[(self.number + usize::try_from(life).unwrap_or(0)) % all.len()];
        self.bearers.clear();
    }

    /// Whether its partition may be busy until the device has space to replace its content.
    #[must_use]
    pub fn waits_for_space(&self) -> bool {
        self.history.is_done_later()
    }

    /// Compares all of its objects with the acknowledged state, after a restart.
    ///
    /// # Errors
    /// A missing acknowledged step, or another difference.
    pub async fn verify(&mut self, device: &OsdClient, life: &RunState<'_>) -> Result<(), String> {
        let mut found = ObjectStates::new();
        for partition in core::iter::once(self.partition).chain(self.duplicates()) {
            self.observe_partition(device, life, partition, &mut found).await?;
        }
        self.history.settle(found).map_err(|error| format!("worker {}: {error}", self.number))
    }

    /// Works until the device is down.
    ///
    /// # Errors
    /// A violation of the device.
    pub async fn live(&mut self, device: &OsdClient, life: &RunState<'_>) -> Result<(), String> {
        loop {
            let fate = match self.random.gen_range(0..100) {
                0..8 => self.look(device, life).await?,
                8..12 => self.flush(device, life).await?,
                _ => self.change(device, life).await?,
            };
            if matches!(fate, CommandOutcome::Unknown) || life.killed.load(Ordering::SeqCst) {
                return Ok(());
            }
        }
    }

    /// Classifies an error.
    fn fate(&self, life: &RunState<'_>, what: &str, error: OsdError) -> Result<CommandOutcome, String> {
        // Errors of a damaged disk or an attack are violations in any case.
        let wrong = matches!(
            error,
            OsdError::Medium { .. }
                | OsdError::IntegrityFailure(_)
                | OsdError::DataOutAltered
                | OsdError::ReadPastEnd { .. }
                | OsdError::Malformed(_)
        );
        match error {
            OsdError::NoSpace => Ok(CommandOutcome::Refused),
            error if wrong => Err(format!("worker {} {what} by {:?}: {error:?}", self.number, self.method)),
            _ if life.killed.load(Ordering::SeqCst) || life.sick => Ok(CommandOutcome::Unknown),
            error => Err(format!("worker {} {what} by {:?}: {error:?}", self.number, self.method)),
        }
    }

    /// Reads an object while other workers write theirs, or a whole partition.
    async fn look(&mut self, device: &OsdClient, life: &RunState<'_>) -> Result<CommandOutcome, String> {
        let whole = self.random.gen_bool(0.1);
        let mut found = ObjectStates::new();
        let slot = FIRST + self.random.gen_range(0..OBJECTS);
        let duplicate = self.duplicates()[self.random.gen_range(0..2)];
        let partition = if self.random.gen_bool(0.2) { duplicate } else { self.partition };
        let id = ObjectId::new(partition, slot);
        let observed = match whole {
            true => self.observe_partition(device, life, partition, &mut found).await,
            false => self.observe(device, life, id).await.map(|object| {
                found.extend(object.map(|object| (id, Entry::User(object))));
            }),
        };
        if life.killed.load(Ordering::SeqCst) {
            return Ok(CommandOutcome::Unknown);
        }
        match observed {
            Err(_) if life.sick => return Ok(CommandOutcome::Unknown),
            other => other.map_err(|error| format!("worker {}: {error}", self.number))?,
        }
        life.tally.reads.fetch_add(1, Ordering::Relaxed);
        let range = if whole { crate::oracle::all_of(partition) } else { id..=id };
        let wanted: ObjectStates =
            self.history.now().range(range).map(|(id, entry)| (*id, entry.clone())).collect();
        match found == wanted {
            true => Ok(CommandOutcome::Done),
            false => Err(format!("worker {}: {}", self.number, crate::oracle::differences(&wanted, &found))),
        }
    }

    /// Flushes an object, the partition, or the device.
    async fn flush(&mut self, device: &OsdClient, life: &RunState<'_>) -> Result<CommandOutcome, String> {
        let existing: Vec<ObjectId> = self.objects_in(self.partition);
        let object = (!existing.is_empty()).then(|| existing[self.random.gen_range(0..existing.len())]);
        let (what, result) = match (self.random.gen_range(0..3), object) {
            (0, Some(id)) => {
                let bearer = self.bearer(life.issuer, id);
                ("FLUSH", device.flush(&bearer, id).await)
            }
            (0 | 1, _) => {
                let bearer = life.issuer.partition(self.partition, self.method);
                ("FLUSH PARTITION", device.flush_partition(&bearer, self.partition).await)
            }
            _ => {
                let bearer = life.issuer.partition(0, self.method);
                ("FLUSH OSD", device.flush_osd(&bearer).await)
            }
        };
        match result {
            Ok(()) => {
                life.tally.durable.fetch_add(1, Ordering::Relaxed);
                Ok(CommandOutcome::Done)
            }
            Err(error) => self.fate(life, what, error),
        }
    }

    /// Changes one of its objects.
    async fn change(&mut self, device: &OsdClient, life: &RunState<'_>) -> Result<CommandOutcome, String> {
        let step = self.step();
        let id = step.object();
        let bearer = self.bearer_of(life.issuer, &step);
        let operation = self.operation(&step, life.issuer);
        let what = format!("{} {id}", operation.name());
        let durable = matches!(step, WorkerStep::Remove(_)) || self.random.gen_bool(0.12);
        // This command is durable by its table row.
        let always = matches!(step, WorkerStep::RemovePartition(_));
        let kind = match step {
            WorkerStep::Rewrite(..) => Some(&life.tally.rewrites),
            WorkerStep::CreateCollection(_) | WorkerStep::RemoveCollection(_) | WorkerStep::Join(..) => {
                Some(&life.tally.memberships)
            }
            WorkerStep::Duplicate { .. }
            | WorkerStep::Refresh(_)
            | WorkerStep::Restore(..)
            | WorkerStep::RemovePartition(_) => Some(&life.tally.duplicates),
            _ => None,
        };
        self.history.send(step.clone());
        let result = match durable && !always {
            true => device.execute_durably(&bearer, operation).await,
            false => device.execute(&bearer, operation).await,
        };
        match result {
            Ok(done) => {
                if let (WorkerStep::Append(..), Some(at)) = (&step, done.appended_at) {
                    let length = user(self.history.now(), id).map_or(0, |object| object.content.len() as u64);
                    if at != length {
                        return Err(format!("worker {} {what}: at {at}, the end is {length}", self.number));
                    }
                }
                self.history.done();
                life.tally.steps.fetch_add(1, Ordering::Relaxed);
                if let Some(kind) = kind {
                    kind.fetch_add(1, Ordering::Relaxed);
                }
                if durable || always {
                    life.tally.durable.fetch_add(1, Ordering::Relaxed);
                }
                Ok(CommandOutcome::Done)
            }
            Err(error) => {
                let fate = self.fate(life, &what, error)?;
                if matches!(fate, CommandOutcome::Refused) {
                    life.tally.refused.fetch_add(1, Ordering::Relaxed);
                    if step.is_done_later() {
                        // It may have begun: then the device completes it when there is space.
                        return Ok(CommandOutcome::Unknown);
                    }
                    return self.refused(device, life, &step).await;
                }
                Ok(fate)
            }
        }
    }

    /// Checks a refused step: nothing was done, or a permitted partial effect.
    async fn refused(
        &mut self,
        device: &OsdClient,
        life: &RunState<'_>,
        step: &WorkerStep,
    ) -> Result<CommandOutcome, String> {
        let begun = step.begun();
        let id = step.object();
        let found = match begun.is_empty() {
            true => None,
            false => match self.observe(device, life, id).await {
                Err(_) if life.sick || life.killed.load(Ordering::SeqCst) => {
                    return Ok(CommandOutcome::Unknown);
                }
                found => found.map_err(|error| format!("worker {}: {error}", self.number))?,
            },
        };
        if begun.is_empty() || user(self.history.now(), id) == found.as_ref() {
            self.history.refused();
            return Ok(CommandOutcome::Refused);
        }
        let done = begun.into_iter().find(|part| {
            let mut state = self.history.now().clone();
            drop(part.apply(&mut state));
            user(&state, id) == found.as_ref()
        });
        let part = done.ok_or_else(|| {
            format!("worker {}: {id}: a refused command is neither undone nor begun", self.number)
        })?;
        self.history.send(part);
        self.history.done();
        Ok(CommandOutcome::Refused)
    }
}
