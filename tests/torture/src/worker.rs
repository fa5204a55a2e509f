//! One client of the device: it changes its own objects at random and knows what they must be.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sealstone_initiator::{Bearer, Operation, OsdClient, OsdError};
use sealstone_osd::{AttributeId, ObjectId, SecurityMethod};

use crate::keys::Issuer;
use crate::oracle::{History, Object, State, Step};

/// Objects of each worker.
const OBJECTS: u64 = 6;
/// Its numbers begin here.
const FIRST: u64 = 0x10000;
/// Longest object, bytes.
const LENGTH_MAX: u64 = 256 << 10;
/// Longest piece written at once, bytes.
const PIECE_MAX: usize = 80 << 10;
/// The application page whose attributes are set.
const PAGE: u32 = 0x10000;
/// Attributes of it.
const ATTRIBUTES: u32 = 4;
/// LOGICAL LENGTH.
const LENGTH: AttributeId = AttributeId::new(1, 0x82);

/// What all workers count.
#[derive(Debug, Default)]
pub struct Tally {
    /// Commands that changed something and were acknowledged.
    pub steps: AtomicU64,
    /// Of these, such that were promised to be durable, and flushes.
    pub durable: AtomicU64,
    /// Commands refused for want of space.
    pub refused: AtomicU64,
    /// Objects read and compared while the device ran.
    pub reads: AtomicU64,
    /// Objects read and compared after a restart.
    pub compared: AtomicU64,
    /// Acknowledged steps that nobody had asked to be durable and that a kill took.
    pub lost: AtomicU64,
}

/// What the workers of one life share.
pub struct Life<'a> {
    /// Set before the daemon is killed, or told to end.
    pub killed: &'a AtomicBool,
    /// Nothing but the kill ends a worker, unless the device's file system may be full.
    pub sick: bool,
    /// The keys.
    pub issuer: &'a Issuer,
    /// Steps that each worker knows as done.
    pub acknowledged: &'a [AtomicU64],
    /// Steps of each worker that are durable.
    pub durable: &'a [AtomicU64],
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

    fn id(&self, slot: u64) -> ObjectId {
        ObjectId::new(self.partition, FIRST + slot)
    }

    fn bearer(&mut self, issuer: &Issuer, id: ObjectId) -> Bearer {
        let method = self.method;
        self.bearers.entry(id).or_insert_with(|| issuer.object(id, method)).clone()
    }

    /// Speaks by another method from now on.
    pub fn switch(&mut self, life: u64) {
        let all = SecurityMethod::ALL;
        self.method = all[(self.number + usize::try_from(life).unwrap_or(0)) % all.len()];
        self.bearers.clear();
    }

    /// After a restart: reads all of its objects and finds the moment that they are of. `clean`: the device ended in
    /// order, so that nothing may be lost.
    ///
    /// # Errors
    /// There is none, or an object cannot be read.
    pub async fn verify(&mut self, device: &OsdClient, life: &Life<'_>, clean: bool) -> Result<(), String> {
        self.history.durable(life.durable[self.number].load(Ordering::SeqCst));
        if clean && self.history.acknowledged() > 0 {
            self.history.durable(self.history.acknowledged());
        }
        let mut found = State::new();
        for slot in 0..OBJECTS {
            let id = self.id(slot);
            if let Some(object) = self.observe(device, life, id).await? {
                found.insert(id, object);
            }
            life.tally.compared.fetch_add(1, Ordering::Relaxed);
        }
        let lost = self.history.settle(found).map_err(|error| format!("worker {}: {error}", self.number))?;
        life.tally.lost.fetch_add(lost as u64, Ordering::Relaxed);
        let known = self.history.acknowledged();
        life.acknowledged[self.number].store(known, Ordering::SeqCst);
        life.durable[self.number].store(known, Ordering::SeqCst);
        Ok(())
    }

    /// An object as the device has it.
    async fn observe(
        &mut self,
        device: &OsdClient,
        life: &Life<'_>,
        id: ObjectId,
    ) -> Result<Option<Object>, String> {
        let bearer = self.bearer(life.issuer, id);
        let names = core::iter::once(LENGTH).chain((1..=ATTRIBUTES).map(|n| AttributeId::new(PAGE, n)));
        let values = match device.attributes(&bearer, id, names.collect()).await {
            Err(OsdError::NotFound) => return Ok(None),
            other => other.map_err(|error| format!("{id}: attributes by {:?}: {error:?}", self.method))?,
        };
        let mut object = Object::default();
        let mut length = 0;
        for (name, value) in values {
            match (name, value) {
                (LENGTH, Some(value)) => {
                    length = value.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
                }
                (name, Some(value)) if !value.is_empty() => {
                    object.attributes.insert(name.number, value.to_vec());
                }
                _ => {}
            }
        }
        if length > 0 {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            object.content = device
                .read(&bearer, id, 0, length)
                .await
                .map_err(|error| format!("{id}: {length} bytes by {:?}: {error:?}", self.method))?;
        }
        Ok(Some(object))
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
            self.history.durable(life.durable[self.number].load(Ordering::SeqCst));
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

    /// Reads an object while others write theirs.
    async fn look(&mut self, device: &OsdClient, life: &Life<'_>) -> Result<Fate, String> {
        let slot = self.random.gen_range(0..OBJECTS);
        let id = self.id(slot);
        let found = self.observe(device, life, id).await;
        if life.killed.load(Ordering::SeqCst) {
            return Ok(Fate::Unknown);
        }
        let found = match found {
            Err(_) if life.sick => return Ok(Fate::Unknown),
            other => other.map_err(|error| format!("worker {}: {error}", self.number))?,
        };
        life.tally.reads.fetch_add(1, Ordering::Relaxed);
        match (found.as_ref(), self.history.now().get(&id)) {
            (found, now) if found == now => Ok(Fate::Done),
            (found, now) => Err(format!(
                "worker {}: {id} has {:?} bytes and should have {:?}, or differs in them",
                self.number,
                found.map(|object| object.content.len()),
                now.map(|object| object.content.len())
            )),
        }
    }

    /// Has what was acknowledged made durable: of one object, the partition, or the device.
    async fn flush(&mut self, device: &OsdClient, life: &Life<'_>) -> Result<Fate, String> {
        let before: Vec<u64> = life.acknowledged.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        let existing: Vec<ObjectId> = self.history.now().keys().copied().collect();
        let object = (!existing.is_empty()).then(|| existing[self.random.gen_range(0..existing.len())]);
        let (what, everybody, result) = match (self.random.gen_range(0..3), object) {
            (0, Some(id)) => {
                let bearer = self.bearer(life.issuer, id);
                ("FLUSH", false, device.flush(&bearer, id).await)
            }
            (0 | 1, _) => {
                let bearer = life.issuer.partition(self.partition, self.method);
                ("FLUSH PARTITION", false, device.flush_partition(&bearer, self.partition).await)
            }
            _ => {
                let bearer = life.issuer.partition(0, self.method);
                ("FLUSH OSD", true, device.flush_osd(&bearer).await)
            }
        };
        match result {
            Ok(()) => {
                life.tally.durable.fetch_add(1, Ordering::Relaxed);
                for (number, (&count, durable)) in before.iter().zip(life.durable).enumerate() {
                    if everybody || number == self.number {
                        durable.fetch_max(count, Ordering::SeqCst);
                    }
                }
                Ok(Fate::Done)
            }
            Err(error) => self.fate(life, what, error),
        }
    }

    /// Changes one of its objects.
    async fn change(&mut self, device: &OsdClient, life: &Life<'_>) -> Result<Fate, String> {
        let step = self.step();
        let id = step.object();
        let bearer = self.bearer(life.issuer, id);
        let operation = self.operation(&step, life.issuer);
        let what = format!("{} {id}", operation.name());
        let durable = matches!(step, Step::Remove(_)) || self.random.gen_bool(0.12);
        self.history.send(step.clone());
        let result = match durable {
            true => device.execute_durably(&bearer, operation).await,
            false => device.execute(&bearer, operation).await,
        };
        match result {
            Ok(done) => {
                if let (Step::Append(..), Some(at)) = (&step, done.appended_at) {
                    let length = self.history.now().get(&id).map_or(0, |object| object.content.len() as u64);
                    if at != length {
                        return Err(format!("worker {} {what}: at {at}, the end is {length}", self.number));
                    }
                }
                self.history.done();
                let known = self.history.acknowledged();
                life.acknowledged[self.number].store(known, Ordering::SeqCst);
                life.tally.steps.fetch_add(1, Ordering::Relaxed);
                if durable {
                    life.tally.durable.fetch_add(1, Ordering::Relaxed);
                    life.durable[self.number].fetch_max(known, Ordering::SeqCst);
                }
                Ok(Fate::Done)
            }
            Err(error) => {
                let fate = self.fate(life, &what, error)?;
                if matches!(fate, Fate::Refused) {
                    self.history.refused();
                    life.tally.refused.fetch_add(1, Ordering::Relaxed);
                }
                Ok(fate)
            }
        }
    }

    /// What to do next, by chance.
    fn step(&mut self) -> Step {
        let slot = self.random.gen_range(0..OBJECTS);
        let id = self.id(slot);
        let now = self.history.now();
        let others: Vec<ObjectId> = now.keys().copied().filter(|other| *other != id).collect();
        let Some(length) = now.get(&id).map(|object| object.content.len() as u64) else {
            if !others.is_empty() && self.random.gen_bool(0.4) {
                return Step::Copy(others[self.random.gen_range(0..others.len())], id);
            }
            let empty = self.random.gen_bool(0.2);
            let data = if empty { Vec::new() } else { self.bytes() };
            return Step::Create(id, data);
        };
        let at = self.random.gen_range(0..=length);
        let choice = self.random.gen_range(0..100);
        match choice {
            _ if length > LENGTH_MAX - PIECE_MAX as u64 => match choice % 3 {
                0 => Step::Resize(id, at),
                1 => Step::Punch(id, at, length),
                _ => Step::Remove(id),
            },
            0..35 => {
                // Sometimes beyond the end, often on a block's border.
                let at = if choice % 3 == 0 { at / 4096 * 4096 } else { at };
                let gap = if choice % 5 == 0 { self.random.gen_range(0..20_000) } else { 0 };
                let data = self.bytes();
                let at = (at + gap).min(LENGTH_MAX - data.len() as u64);
                Step::Write(id, at, data)
            }
            35..55 => Step::Append(id, self.bytes()),
            55..63 => Step::Clear(id, at, self.random.gen_range(1..30_000)),
            63..71 if length > 0 => Step::Punch(id, at.min(length - 1), self.random.gen_range(1..30_000)),
            63..76 => Step::Resize(id, self.random.gen_range(0..=length + 10_000)),
            76..93 => {
                let number = self.random.gen_range(1..=ATTRIBUTES);
                let value = if self.random.gen_bool(0.2) { Vec::new() } else { self.bytes() };
                Step::Attribute(id, number, value[..value.len().min(300)].to_vec())
            }
            _ => Step::Remove(id),
        }
    }

    /// Some bytes, few or many, that occur nowhere else.
    fn bytes(&mut self) -> Vec<u8> {
        let most = match self.random.gen_range(0..10) {
            0..4 => 200,
            4..8 => 10_000,
            _ => PIECE_MAX,
        };
        let mut bytes = vec![0; self.random.gen_range(1..=most)];
        self.random.fill(&mut bytes[..]);
        bytes
    }

    /// The command for a step.
    fn operation(&mut self, step: &Step, issuer: &Issuer) -> Operation {
        match step.clone() {
            Step::Create(object, data) if data.is_empty() => Operation::Create { object },
            Step::Create(object, data) => {
                Operation::CreateAndWrite { object, offset: 0, data: Bytes::from(data) }
            }
            Step::Write(object, offset, data) => Operation::Write { object, offset, data: Bytes::from(data) },
            Step::Append(object, data) => Operation::Append { object, data: Bytes::from(data) },
            Step::Clear(object, offset, length) => Operation::Clear { object, offset, length },
            Step::Punch(object, offset, length) => Operation::Punch { object, offset, length },
            Step::Resize(object, length) => {
                let value = Bytes::copy_from_slice(&length.to_be_bytes());
                Operation::SetAttributes { object, values: vec![(LENGTH, value)] }
            }
            Step::Attribute(object, number, value) => {
                let values = vec![(AttributeId::new(PAGE, number), Bytes::from(value))];
                Operation::SetAttributes { object, values }
            }
            Step::Copy(source, object) => {
                let reading = self.bearer(issuer, source);
                Operation::Copy { object, source, attributes: false, reading }
            }
            Step::Remove(object) => Operation::Remove { object },
        }
    }
}
