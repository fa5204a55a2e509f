//! Selection of a client's next step, and its command.

use bytes::Bytes;
use rand::Rng;
use sealstone_initiator::{Bearer, COLLECTIONS_PAGE, CollectionOperation, Operation};
use sealstone_osd::cdb::{RemovePartition, Rewrite, RewriteReturn};
use sealstone_osd::rewrite::{RewriteAction, RewriteOperation};
use sealstone_osd::{AttributeId, Command, ObjectId, SecurityMethod};

use super::view::LENGTH;
use super::{ATTRIBUTES, COLLECTIONS, FIRST, FIRST_COLLECTION, MEMBERSHIPS, OBJECTS, PAGE, SMALL, Worker};
use crate::keys::CredentialIssuer;
use crate::oracle::{RewriteChange, WorkerStep, user};

/// Longest object in bytes.
const LENGTH_MAX: u64 = 256 << 10;
/// Longest piece written at once, in bytes.
const PIECE_MAX: usize = 80 << 10;
/// Longest small object, and its longest piece, in bytes.
const SMALL_LENGTH_MAX: u64 = 6 << 10;
const SMALL_PIECE_MAX: usize = 1200;
/// Longest range of a REWRITE in bytes.
const REWRITE_MAX: u32 = 24 << 10;

impl Worker {
    /// Selects the next step at random.
    pub(super) fn step(&mut self) -> WorkerStep {
        match self.random.gen_range(0..1000) {
            0..15 => self.partition_step(),
            15..75 => self.collection_step(),
            _ => None,
        }
        .unwrap_or_else(|| self.object_step())
    }

    fn has(&self, partition: u64) -> bool {
        self.history.now().contains_key(&ObjectId::of_partition(partition))
    }

    fn partition_step(&mut self) -> Option<WorkerStep> {
        let [snapshot, clone] = self.duplicates();
        let (target, is_clone) = if self.random.gen_bool(0.5) { (snapshot, false) } else { (clone, true) };
        if !self.has(target) {
            // A clone of the snapshot would keep it from being removed.
            return Some(WorkerStep::Duplicate { source: self.partition, target, clone: is_clone });
        }
        match self.random.gen_range(0..4) {
            0 => Some(WorkerStep::RemovePartition(target)),
            1 => Some(WorkerStep::Refresh(target)),
            2 if self.has(snapshot) => Some(WorkerStep::Restore(self.partition, snapshot)),
            _ => None,
        }
    }

    fn collection_step(&mut self) -> Option<WorkerStep> {
        let partition = self.some_partition();
        let collection = ObjectId::new(partition, FIRST_COLLECTION + self.random.gen_range(0..COLLECTIONS));
        if !self.history.now().contains_key(&collection) {
            return Some(WorkerStep::CreateCollection(collection));
        }
        let objects = self.objects_in(partition);
        if objects.is_empty() || self.random.gen_bool(0.1) {
            return Some(WorkerStep::RemoveCollection(collection));
        }
        let id = objects[self.random.gen_range(0..objects.len())];
        let object = user(self.history.now(), id)?;
        let member = object.memberships.iter().find(|(_, of)| **of == collection.object);
        let free = (1..=MEMBERSHIPS).find(|number| !object.memberships.contains_key(number));
        match (member, free) {
            (Some((number, _)), _) => Some(WorkerStep::Join(id, *number, 0)),
            (None, Some(number)) => Some(WorkerStep::Join(id, number, collection.object)),
            (None, None) => None,
        }
    }

    /// Returns mostly its own partition, else the clone.
    fn some_partition(&mut self) -> u64 {
        let clone = self.duplicates()[1];
        if self.has(clone) && self.random.gen_bool(0.2) { clone } else { self.partition }
    }

    fn object_step(&mut self) -> WorkerStep {
        let slot = self.random.gen_range(0..OBJECTS);
        let small = slot < SMALL;
        let length_max = if small { SMALL_LENGTH_MAX } else { LENGTH_MAX };
        let piece_max = if small { SMALL_PIECE_MAX } else { PIECE_MAX };
        let id = ObjectId::new(self.some_partition(), FIRST + slot);
        let Some(length) = user(self.history.now(), id).map(|object| object.content.len() as u64) else {
            let mut others = self.objects_in(id.partition);
            // Small objects stay small.
            others.retain(|other| (other.object < FIRST + SMALL) == small);
            if id.partition == self.partition && !others.is_empty() && self.random.gen_bool(0.4) {
                let attributes = self.random.gen_bool(0.5);
                return WorkerStep::Copy(others[self.random.gen_range(0..others.len())], id, attributes);
            }
            let empty = self.random.gen_bool(0.2);
            let data = if empty { Vec::new() } else { self.bytes(piece_max) };
            return WorkerStep::Create(id, data);
        };
        let at = self.random.gen_range(0..=length);
        let span = if small { 2_000 } else { 30_000 };
        let choice = self.random.gen_range(0..100);
        match choice {
            _ if length > length_max - piece_max as u64 => match choice % 3 {
                0 => WorkerStep::Resize(id, at),
                1 => WorkerStep::Punch(id, at, length),
                _ => WorkerStep::Remove(id),
            },
            0..30 => {
                // Sometimes beyond the end, often on a block's border.
                let at = if choice % 3 == 0 { at / 4096 * 4096 } else { at };
                let gap = if choice % 5 == 0 { self.random.gen_range(0..span) } else { 0 };
                let data = self.bytes(piece_max);
                let at = (at + gap).min(length_max - data.len() as u64);
                WorkerStep::Write(id, at, data)
            }
            30..45 => WorkerStep::Append(id, self.bytes(piece_max)),
            45..53 => WorkerStep::Clear(id, at.min(length_max - span), self.random.gen_range(1..span)),
            53..61 if length > 0 => WorkerStep::Punch(id, at.min(length - 1), self.random.gen_range(1..span)),
            53..66 => WorkerStep::Resize(id, self.random.gen_range(0..=(length + span / 3).min(length_max))),
            66..76 => self.rewrite(id, at, length_max),
            76..94 => {
                let values = self.values();
                WorkerStep::Attributes(id, values)
            }
            _ => WorkerStep::Remove(id),
        }
    }

    fn rewrite(&mut self, id: ObjectId, at: u64, length_max: u64) -> WorkerStep {
        let most = u32::try_from(length_max - at).unwrap_or(REWRITE_MAX).min(REWRITE_MAX);
        let length = self.random.gen_range(1..=most.max(1));
        let all = length as usize;
        // The first one covers the range, so that all of it is written.
        let first = match self.random.gen_bool(0.5) {
            true => RewriteChange::Xor(0, self.exactly(all)),
            false => RewriteChange::Fill(0, all, self.random.r#gen()),
        };
        let from = self.random.gen_range(0..all);
        let count = self.random.gen_range(1..=all - from);
        let changes = vec![first, RewriteChange::Replace(from, self.exactly(count))];
        let values = if self.random.gen_bool(0.5) { self.values() } else { Vec::new() };
        WorkerStep::Rewrite(id, at, length, changes, values)
    }

    /// Returns new attribute values, each number at most once.
    fn values(&mut self) -> Vec<(u32, Vec<u8>)> {
        let first = self.random.gen_range(1..=ATTRIBUTES);
        let last = if self.random.gen_bool(0.3) { ATTRIBUTES } else { first };
        (first..=last)
            .map(|number| match self.random.gen_range(0..10) {
                0 | 1 => (number, Vec::new()),
                2 => (number, self.bytes(5_000)),
                _ => (number, self.bytes(300)),
            })
            .collect()
    }

    fn exactly(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.random.fill(&mut bytes[..]);
        bytes
    }

    /// Returns some unique bytes, few or many.
    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let most = match self.random.gen_range(0..10) {
            0..4 => 200,
            4..8 => 10_000.min(most),
            _ => most,
        };
        let length = self.random.gen_range(1..=most);
        self.exactly(length)
    }

    /// Issues the credential of a step.
    pub(super) fn bearer_of(&mut self, issuer: &CredentialIssuer, step: &WorkerStep) -> Bearer {
        match step {
            // Most of these need partition zero's key; this test is about their effect.
            WorkerStep::Duplicate { .. }
            | WorkerStep::Refresh(_)
            | WorkerStep::Restore(..)
            | WorkerStep::RemovePartition(_) => {
                issuer.partition(step.object().partition, SecurityMethod::NoSec)
            }
            _ => self.bearer(issuer, step.object()),
        }
    }

    /// Returns the command of a step.
    pub(super) fn operation(&mut self, step: &WorkerStep, issuer: &CredentialIssuer) -> Operation {
        let named = |values: Vec<(u32, Vec<u8>)>| {
            values.into_iter().map(|(number, value)| (AttributeId::new(PAGE, number), Bytes::from(value)))
        };
        match step.clone() {
            WorkerStep::Create(object, data) if data.is_empty() => Operation::Create { object },
            WorkerStep::Create(object, data) => {
                Operation::CreateAndWrite { object, offset: 0, data: Bytes::from(data) }
            }
            WorkerStep::Write(object, offset, data) => {
                Operation::Write { object, offset, data: Bytes::from(data) }
            }
            WorkerStep::Append(object, data) => Operation::Append { object, data: Bytes::from(data) },
            WorkerStep::Clear(object, offset, length) => Operation::Clear { object, offset, length },
            WorkerStep::Punch(object, offset, length) => Operation::Punch { object, offset, length },
            WorkerStep::Resize(object, length) => {
                let value = Bytes::copy_from_slice(&length.to_be_bytes());
                Operation::SetAttributes { object, values: vec![(LENGTH, value)], durable: false }
            }
            WorkerStep::Rewrite(object, start, length, changes, values) => {
                let returns = RewriteReturn::Nothing;
                let rewrite =
                    Rewrite { object, start, length, operands: 0, returns, conditional: false, extend: true };
                let operations = changes.into_iter().map(operation).collect();
                Operation::Rewrite { rewrite, operations, values: named(values).collect() }
            }
            WorkerStep::Attributes(object, values) => {
                Operation::SetAttributes { object, values: named(values).collect(), durable: false }
            }
            WorkerStep::Copy(source, object, attributes) => {
                let reading = self.bearer(issuer, source);
                Operation::Copy { object, source, attributes, reading }
            }
            WorkerStep::Remove(object) => Operation::Remove { object },
            WorkerStep::CreateCollection(collection) => {
                Operation::Collection(CollectionOperation::Create { collection })
            }
            WorkerStep::RemoveCollection(collection) => {
                Operation::Collection(CollectionOperation::Remove { collection, force: true })
            }
            WorkerStep::Join(object, number, collection) => {
                let value = match collection {
                    0 => Bytes::new(),
                    _ => Bytes::copy_from_slice(&collection.to_be_bytes()),
                };
                Operation::SetAttributes {
                    object,
                    values: vec![(AttributeId::new(COLLECTIONS_PAGE, number), value)],
                    durable: false,
                }
            }
            WorkerStep::Duplicate { source, target, clone: false } => {
                Operation::CreateSnapshot { partition: target, source }
            }
            WorkerStep::Duplicate { source, target, clone: true } => {
                Operation::CreateClone { partition: target, source }
            }
            WorkerStep::Refresh(partition) => Operation::Refresh { partition },
            WorkerStep::Restore(partition, snapshot) => Operation::Restore { partition, snapshot },
            WorkerStep::RemovePartition(partition) => {
                let command = Command::RemovePartition(RemovePartition { partition, with_contents: true });
                Operation::Other { command, data_out: Bytes::new() }
            }
        }
    }
}

fn operation(change: RewriteChange) -> (RewriteOperation, Bytes) {
    let (action, at, length, operand) = match change {
        RewriteChange::Replace(at, data) => (RewriteAction::Replace, at, data.len(), data),
        RewriteChange::Xor(at, data) => (RewriteAction::Xor, at, data.len(), data),
        RewriteChange::Fill(at, length, byte) => (RewriteAction::Fill(1), at, length, vec![byte]),
    };
    let length = u32::try_from(length).expect("a range is short");
    (RewriteOperation { action, offset: at as u64, length, operand: 0 }, Bytes::from(operand))
}
