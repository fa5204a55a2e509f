//! One client of the device: it changes its own objects at random and knows what they must be.
//!
//! Does: send a command, wait for the answer, and look now and then. What it does next is chosen in `choice`; how it looks
//! is in `view`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sealstone_initiator::{Bearer, OsdClient, OsdError};
use sealstone_osd::{ObjectId, SecurityMethod};

use crate::keys::Issuer;
use crate::oracle::{Entry, History, State, Step, user};

mod choice;
mod view;

/// Objects of each worker; the first [`SMALL`] of them stay small.
const OBJECTS: u64 = 9;
/// Objects of a few KiB at most, which grow and shrink around the length up to which an object has no block.
const SMALL: u64 = 3;
/// Its numbers begin here.
const FIRST: u64 = 0x10000;
/// Collections of each worker, and where their numbers begin.
const COLLECTIONS: u64 = 2;
const FIRST_COLLECTION: u64 = 0x10100;
/// The application page whose attributes are set.
const PAGE: u32 = 0x10000;
/// Attributes of it.
const ATTRIBUTES: u32 = 4;
/// Attributes of an object that name a collection.
const MEMBERSHIPS: u32 = 3;
/// The snapshot of the first worker's partition, and the clone.
pub(crate) const SNAPSHOT: u64 = 0x20000;
pub(crate) const CLONE: u64 = 0x30000;

/// What all workers count.
#[derive(Debug, Default)]
pub struct Tally {
    /// Commands that changed something and were acknowledged.
    pub steps: AtomicU64,
    /// Of these, such that were to be durable before the answer, and flushes.
    pub durable: AtomicU64,
    /// Of these, REWRITEs.
    pub rewrites: AtomicU64,
    /// Of these, changes of collections and of who is in them.
    pub memberships: AtomicU64,
    /// Of these, such on snapshots and clones as a whole.
    pub duplicates: AtomicU64,
    /// Commands refused for want of space.
    pub refused: AtomicU64,
    /// Objects read and compared while the device ran.
    pub reads: AtomicU64,
    /// Objects read and compared after a restart.
    pub compared: AtomicU64,
}

/// What the workers of one life share.
pub struct Life<'a> {
    /// Set before the daemon is killed, or told to end.
    pub killed: &'a AtomicBool,
    /// Nothing but the kill ends a worker, unless the device's file system may be full.
    pub sick: bool,
    /// The keys.
    pub issuer: &'a Issuer,
    /// The counters.
    pub tally: &'a Tally,
}

/// One of them.
pub struct Worker {
    number: usize,
    partition: u64,
    history: History,
    random: StdRng,
    method: SecurityMethod,
    bearers: BTreeMap<ObjectId, Bearer>,
}

/// What became of a command.
enum Fate {
    Done,
    Refused,
    /// Nobody knows; this life is over.
    Unknown,
}

impl Worker {
    /// Worker `number` of a run, with objects in `partition`.
    #[must_use]
    pub fn new(number: usize, partition: u64, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed ^ (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Self {
            number,
            partition,
            history: History::default(),
            random,
            method: SecurityMethod::AllData,
            bearers: BTreeMap::new(),
        }
    }

    /// Which one it is.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// Its snapshot and its clone.
    fn duplicates(&self) -> [u64; 2] {
        [SNAPSHOT + self.number as u64, CLONE + self.number as u64]
    }

    /// A snapshot or clone takes no keys over, and one that is made again under its id has none: without security then.
    fn bearer(&mut self, issuer: &Issuer, id: ObjectId) -> Bearer {
        let method = if id.partition == self.partition { self.method } else { SecurityMethod::NoSec };
        let make = || match id.object {
            0 => issuer.partition(id.partition, method),
            FIRST_COLLECTION.. => issuer.collection(id, method),
            _ => issuer.object(id, method),
        };
        self.bearers.entry(id).or_insert_with(make).clone()
    }

    /// Speaks by another method from now on.
    pub fn switch(&mut self, life: u64) {
        let all = SecurityMethod::ALL;
        self.method = all[(self.number + usize::try_from(life).unwrap_or(0)) % all.len()];
        self.bearers.clear();
    }

    /// Whether its partition may be busy until the device has space to replace its contents.
    #[must_use]
    pub fn waits_for_space(&self) -> bool {
        self.history.is_done_later()
    }

    /// After a restart: reads all of its objects and compares them with what was acknowledged.
    ///
    /// # Errors
    /// An acknowledged step is missing, or something else is there.
    pub async fn verify(&mut self, device: &OsdClient, life: &Life<'_>) -> Result<(), String> {
        let mut found = State::new();
        for partition in core::iter::once(self.partition).chain(self.duplicates()) {
            self.observe_partition(device, life, partition, &mut found).await?;
        }
        self.history.settle(found).map_err(|error| format!("worker {}: {error}", self.number))
    }

    /// Works until the device is gone.
    ///
    /// # Errors
    /// The device did what it must not do.
    pub async fn live(&mut self, device: &OsdClient, life: &Life<'_>) -> Result<(), String> {
        loop {
            let fate = match self.random.gen_range(0..100) {
                0..8 => self.look(device, life).await?,
                8..12 => self.flush(device, life).await?,
                _ => self.change(device, life).await?,
            };
            if matches!(fate, Fate::Unknown) || life.killed.load(Ordering::SeqCst) {
                return Ok(());
            }
        }
    }

    /// What an error means.
    fn fate(&self, life: &Life<'_>, what: &str, error: OsdError) -> Result<Fate, String> {
        // What a medium or an attacker would do is wrong in any case.
        let wrong = matches!(
            error,
            OsdError::Medium { .. }
                | OsdError::IntegrityFailure(_)
                | OsdError::DataOutAltered
                | OsdError::ReadPastEnd { .. }
                | OsdError::Malformed(_)
        );
        match error {
            OsdError::NoSpace => Ok(Fate::Refused),
            error if wrong => Err(format!("worker {} {what} by {:?}: {error:?}", self.number, self.method)),
            _ if life.killed.load(Ordering::SeqCst) || life.sick => Ok(Fate::Unknown),
            error => Err(format!("worker {} {what} by {:?}: {error:?}", self.number, self.method)),
        }
    }

    /// Reads an object while others write theirs, or a whole partition.
    async fn look(&mut self, device: &OsdClient, life: &Life<'_>) -> Result<Fate, String> {
        let whole = self.random.gen_bool(0.1);
        let mut found = State::new();
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
            return Ok(Fate::Unknown);
        }
        match observed {
            Err(_) if life.sick => return Ok(Fate::Unknown),
            other => other.map_err(|error| format!("worker {}: {error}", self.number))?,
        }
        life.tally.reads.fetch_add(1, Ordering::Relaxed);
        let range = if whole { crate::oracle::all_of(partition) } else { id..=id };
        let wanted: State = self.history.now().range(range).map(|(id, entry)| (*id, entry.clone())).collect();
        match found == wanted {
            true => Ok(Fate::Done),
            false => Err(format!("worker {}: {}", self.number, crate::oracle::differences(&wanted, &found))),
        }
    }

    /// Has what was acknowledged made durable: of one object, the partition, or the device.
    async fn flush(&mut self, device: &OsdClient, life: &Life<'_>) -> Result<Fate, String> {
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
                Ok(Fate::Done)
            }
            Err(error) => self.fate(life, what, error),
        }
    }

    /// Changes one of its objects.
    async fn change(&mut self, device: &OsdClient, life: &Life<'_>) -> Result<Fate, String> {
        let step = self.step();
        let id = step.object();
        let bearer = self.bearer_of(life.issuer, &step);
        let operation = self.operation(&step, life.issuer);
        let what = format!("{} {id}", operation.name());
        let durable = matches!(step, Step::Remove(_)) || self.random.gen_bool(0.12);
        // Its row makes it durable whatever is asked for.
        let always = matches!(step, Step::RemovePartition(_));
        let kind = match step {
            Step::Rewrite(..) => Some(&life.tally.rewrites),
            Step::CreateCollection(_) | Step::RemoveCollection(_) | Step::Join(..) => {
                Some(&life.tally.memberships)
            }
            Step::Duplicate { .. } | Step::Refresh(_) | Step::Restore(..) | Step::RemovePartition(_) => {
                Some(&life.tally.duplicates)
            }
            _ => None,
        };
        self.history.send(step.clone());
        let result = match durable && !always {
            true => device.execute_durably(&bearer, operation).await,
            false => device.execute(&bearer, operation).await,
        };
        match result {
            Ok(done) => {
                if let (Step::Append(..), Some(at)) = (&step, done.appended_at) {
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
                Ok(Fate::Done)
            }
            Err(error) => {
                let fate = self.fate(life, &what, error)?;
                if matches!(fate, Fate::Refused) {
                    life.tally.refused.fetch_add(1, Ordering::Relaxed);
                    if step.is_done_later() {
                        // It may have begun: then it is brought to its end when there is space.
                        return Ok(Fate::Unknown);
                    }
                    return self.refused(device, life, &step).await;
                }
                Ok(fate)
            }
        }
    }

    /// A step was refused: nothing was done, or what the device says that it may have begun.
    async fn refused(&mut self, device: &OsdClient, life: &Life<'_>, step: &Step) -> Result<Fate, String> {
        let begun = step.begun();
        let id = step.object();
        let found = match begun.is_empty() {
            true => None,
            false => match self.observe(device, life, id).await {
                Err(_) if life.sick || life.killed.load(Ordering::SeqCst) => return Ok(Fate::Unknown),
                found => found.map_err(|error| format!("worker {}: {error}", self.number))?,
            },
        };
        if begun.is_empty() || user(self.history.now(), id) == found.as_ref() {
            self.history.refused();
            return Ok(Fate::Refused);
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
        Ok(Fate::Refused)
    }
}
