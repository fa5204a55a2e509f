//! Conversion of operations to commands, and of verified answers to results.
//!
//! Does not: sign or verify; `assemble` and `outcome` do.

use bytes::Bytes;
use sealstone_osd::attribute::list::{self, Values};
use sealstone_osd::cdb::{
    Append, ContainerScope, CopyObjects, Create, CreatePartition, Duplicate, ExecuteFunction, Extent, Flush,
    FlushContainer, FlushScope, FormatOsd, List, ReadMap, RemovePartition, Rewrite, Target,
};
use sealstone_osd::continuation::{CopySource, PROOF_LEN, Segment as ContinuationSegment};
use sealstone_osd::function::ExecuteRequest;
use sealstone_osd::function::paper::PaperRequest;
use sealstone_osd::map;
use sealstone_osd::rewrite::RewriteOperation;
use sealstone_osd::{AttributeId, Command, Generation, ObjectId};

use super::assemble::CommandDraft;
use super::bearer::Bearer;
use super::collections;
use super::outcome::Parts;
use crate::operation::{ATTRIBUTES_LENGTH_MAX, LIST_IDS_MAX, MAP_EXTENTS_MAX, TRANSFER_MAX};
use crate::{CollectionOperation, Completion, Listed, Operation, OsdError};

/// Current Command page, and its attributes with the values that a device chose (t10-osd §3.5).
const CURRENT_COMMAND: u32 = 0xFFFF_FFFE;
const PARTITION: AttributeId = AttributeId::new(CURRENT_COMMAND, 3);
const OBJECT: AttributeId = AttributeId::new(CURRENT_COMMAND, 4);
const APPENDED_AT: AttributeId = AttributeId::new(CURRENT_COMMAND, 5);

/// Returns the command of an operation.
pub(super) fn draft(generation: Generation, operation: &Operation) -> Result<CommandDraft, OsdError> {
    let bounded = |what, actual: usize, max: usize| {
        if actual > max { Err(OsdError::TooLong { what, actual, max }) } else { Ok(()) }
    };
    let plain = |command| CommandDraft::new(command, Bytes::new());
    let asking =
        |command, names: &[AttributeId]| CommandDraft::new(command, Bytes::new()).asking(generation, names);
    let extent = |object, start, length: usize| Extent { object, start, length: length as u64 };
    Ok(match operation {
        Operation::Create { object } => {
            let command = Command::Create(Create { object: *object, count: 1 });
            if object.object == 0 { asking(command, &[PARTITION, OBJECT]) } else { plain(command) }
        }
        Operation::CreateAndWrite { object, offset, data } => {
            bounded("a transfer", data.len(), TRANSFER_MAX)?;
            let command = Command::CreateAndWrite(extent(*object, *offset, data.len()));
            let draft =
                if object.object == 0 { asking(command, &[PARTITION, OBJECT]) } else { plain(command) };
            CommandDraft { data_out: data.clone(), ..draft }
        }
        Operation::Write { object, offset, data } => {
            bounded("a transfer", data.len(), TRANSFER_MAX)?;
            CommandDraft::new(Command::Write(extent(*object, *offset, data.len())), data.clone())
        }
        Operation::Append { object, data } => {
            bounded("a transfer", data.len(), TRANSFER_MAX)?;
            let command = Command::Append(Append { object: *object, length: data.len() as u64 });
            CommandDraft { data_out: data.clone(), ..asking(command, &[APPENDED_AT]) }
        }
        Operation::Read { object, offset, length, .. } => {
            bounded("a transfer", *length, TRANSFER_MAX)?;
            plain(Command::Read(extent(*object, *offset, *length)))
        }
        Operation::Clear { object, offset, length } => {
            plain(Command::Clear(Extent { object: *object, start: *offset, length: *length }))
        }
        Operation::Punch { object, offset, length } => {
            plain(Command::Punch(Extent { object: *object, start: *offset, length: *length }))
        }
        // The caller forgets a removed object, so a device that loses power must not restore it.
        Operation::Remove { object } => {
            CommandDraft { durable: true, ..plain(Command::Remove(Target { object: *object })) }
        }
        Operation::Flush { object } => {
            let scope = FlushScope::Everything;
            plain(Command::Flush(Flush { object: *object, scope, start: 0, length: 0 }))
        }
        Operation::FlushPartition { partition } => plain(Command::FlushPartition(FlushContainer {
            object: ObjectId::of_partition(*partition),
            scope: ContainerScope::Everything,
        })),
        Operation::FlushOsd => plain(Command::FlushOsd(FlushContainer {
            object: ObjectId::ROOT,
            scope: ContainerScope::Everything,
        })),
        Operation::List { partition, from, ids_max } => {
            bounded("a list", *ids_max, LIST_IDS_MAX)?;
            plain(Command::List(List {
                object: ObjectId::of_partition(*partition),
                list_id: 0,
                allocation: (LIST_HEADER + 8 * ids_max) as u64,
                initial: *from,
                with_attributes: false,
            }))
        }
        Operation::GetAttributes { object, ids, length_max } => {
            bounded("an attribute list", *length_max, ATTRIBUTES_LENGTH_MAX)?;
            CommandDraft {
                get: list::encode_get(generation, ids),
                retrieved_max: *length_max as u32,
                ..plain(Command::GetAttributes(Target { object: *object }))
            }
        }
        Operation::SetAttributes { object, values, durable } => {
            let set = list::encode_set(generation, values.iter().map(|(id, value)| (*id, &value[..])));
            bounded("an attribute list", set.len(), ATTRIBUTES_LENGTH_MAX)?;
            CommandDraft {
                set,
                durable: *durable,
                ..plain(Command::SetAttributes(Target { object: *object }))
            }
        }
        Operation::CreatePartition { partition } => {
            let command = Command::CreatePartition(CreatePartition { partition: *partition });
            if *partition == 0 { asking(command, &[PARTITION]) } else { plain(command) }
        }
        Operation::CreateWith { object, values } => {
            let set = list::encode_set(generation, values.iter().map(|(id, value)| (*id, &value[..])));
            bounded("an attribute list", set.len(), ATTRIBUTES_LENGTH_MAX)?;
            let command = match object.is_partition() {
                true => Command::CreatePartition(CreatePartition { partition: object.partition }),
                false => Command::Create(Create { object: *object, count: 1 }),
            };
            CommandDraft { set, ..plain(command) }
        }
        Operation::RemovePartition { partition } => {
            plain(Command::RemovePartition(RemovePartition { partition: *partition, with_contents: false }))
        }
        Operation::FormatOsd { capacity } => plain(Command::FormatOsd(FormatOsd { capacity: *capacity })),
        Operation::SetKey { set } => plain(Command::SetKey(*set)),
        Operation::SetMasterKey { set, data_out } => {
            CommandDraft::new(Command::SetMasterKey(*set), data_out.clone())
        }
        Operation::Collection(what) => match (collections::draft(generation, what)?, what.made()) {
            (draft, Some(id)) if id.object == 0 => {
                let CommandDraft { get, retrieved_max, .. } = asking(draft.command, &[PARTITION, OBJECT]);
                CommandDraft { get, retrieved_max, ..draft }
            }
            (draft, _) => draft,
        },
        Operation::Copy { object, source, attributes, reading } => {
            let command =
                Command::CopyUserObjects(CopyObjects { object: *object, method: 0, immediate: false });
            let source = CopySource { object: *source, attributes: *attributes, freeze: false, time: 0 };
            let segment = ContinuationSegment {
                copy_source: Some(source),
                extensions: vec![*reading.capability_bytes()],
                proofs: vec![[0; PROOF_LEN]],
                ..ContinuationSegment::default()
            };
            let draft =
                if object.object == 0 { asking(command, &[PARTITION, OBJECT]) } else { plain(command) };
            CommandDraft {
                continuation: encoded(&segment, command)?,
                extensions: vec![reading.clone()],
                ..draft
            }
        }
        Operation::CreateSnapshot { partition, source } => {
            let command = Command::CreateSnapshot(duplicate(*partition, *source));
            if *partition == 0 { asking(command, &[PARTITION]) } else { plain(command) }
        }
        Operation::CreateClone { partition, source } => {
            let command = Command::CreateClone(duplicate(*partition, *source));
            if *partition == 0 { asking(command, &[PARTITION]) } else { plain(command) }
        }
        Operation::DetachClone { partition } => plain(Command::DetachClone(duplicate(*partition, 0))),
        Operation::Refresh { partition } => plain(Command::RefreshSnapshotOrClone(duplicate(*partition, 0))),
        Operation::Restore { partition, snapshot } => {
            plain(Command::RestorePartition(duplicate(*partition, *snapshot)))
        }
        Operation::ReadMap { object, from, extents_max, compare } => {
            bounded("a map", *extents_max, MAP_EXTENTS_MAX)?;
            let allocation = map::ALLOCATION_MIN.max((8 + 16 * extents_max) as u64);
            let map = ReadMap { object: *object, allocation, start: *from, kind: map::ALL };
            plain(if *compare { Command::ReadMapsAndCompare(map) } else { Command::ReadMap(map) })
        }
        Operation::CheckStructure { object } => {
            plain(Command::ObjectStructureCheck(Target { object: *object }))
        }
        Operation::Rewrite { rewrite, operations, values } => {
            let mut data = Vec::new();
            let mut placed = Vec::with_capacity(operations.len());
            for (operation, operand) in operations {
                placed.push(RewriteOperation { operand: data.len() as u64, ..*operation });
                data.extend_from_slice(operand);
            }
            bounded("the operands", data.len(), TRANSFER_MAX)?;
            let command = Command::Rewrite(Rewrite { operands: data.len() as u32, ..*rewrite });
            let segment = ContinuationSegment { rewrite: placed, ..ContinuationSegment::default() };
            let set = match values.is_empty() {
                true => Vec::new(),
                false => list::encode_set(generation, values.iter().map(|(id, value)| (*id, &value[..]))),
            };
            bounded("an attribute list", set.len(), ATTRIBUTES_LENGTH_MAX)?;
            let continuation = encoded(&segment, command)?;
            CommandDraft { continuation, set, ..CommandDraft::new(command, data.into()) }
        }
        Operation::ExecuteFunction { object, request, reply_max, data } => {
            let command =
                Command::ExecuteFunction(ExecuteFunction { object: *object, allocation: *reply_max });
            let function = Some(ExecuteRequest::clone(request));
            let segment = ContinuationSegment { function, ..with_objects(data) };
            let continuation = encoded(&segment, command)?;
            CommandDraft { continuation, extensions: data.clone(), ..plain(command) }
        }
        Operation::ExecutePaperFunction { object, request, reply_max, data } => {
            let command =
                Command::ExecuteFunction(ExecuteFunction { object: *object, allocation: *reply_max });
            let paper_function = Some(PaperRequest::clone(request));
            let segment = ContinuationSegment { paper_function, ..with_objects(data) };
            let continuation = encoded(&segment, command)?;
            CommandDraft { continuation, extensions: data.clone(), ..plain(command) }
        }
        Operation::Asking { operation, ids } => draft(generation, operation)?.asking(generation, ids),
        Operation::Other { command, data_out } => CommandDraft::new(*command, data_out.clone()),
    })
}

fn duplicate(partition: u64, source: u64) -> Duplicate {
    Duplicate { partition, source, method: 0 }
}

/// Returns a segment with the capabilities of the objects of a function, and empty proofs.
fn with_objects(data: &[Bearer]) -> ContinuationSegment {
    ContinuationSegment {
        extensions: data.iter().map(|bearer| *bearer.capability_bytes()).collect(),
        proofs: vec![[0; PROOF_LEN]; data.len()],
        ..ContinuationSegment::default()
    }
}

/// Encodes a segment; fails if the device could not parse it.
fn encoded(segment: &ContinuationSegment, command: Command) -> Result<Vec<u8>, OsdError> {
    let wrong = OsdError::Malformed("the command cannot be encoded");
    let bytes = command.row().osd2.and_then(|action| segment.encode(action)).ok_or(wrong)?;
    ContinuationSegment::parse(&command, &bytes)
        .map_err(|_| OsdError::Malformed("an operation that leaves its range or operands"))?;
    Ok(bytes)
}

/// Returns the result of a verified answer.
pub(super) fn completion(
    generation: Generation,
    operation: &Operation,
    parts: Parts,
) -> Result<Completion, OsdError> {
    let Parts { data, attributes } = parts;
    if let Operation::Collection(CollectionOperation::GetMemberAttributes { .. }) = operation {
        return Ok(Completion { members: collections::members(&attributes)?, ..Completion::default() });
    }
    let mut done = Completion { attributes: retrieved(generation, &attributes)?, ..Completion::default() };
    match operation {
        Operation::Create { object } | Operation::CreateAndWrite { object, .. } if object.object == 0 => {
            let number = number(&done, OBJECT)?;
            done.created = Some(ObjectId::new(object.partition, number));
        }
        Operation::Copy { object, .. } if object.object == 0 => {
            let number = number(&done, OBJECT)?;
            done.created = Some(ObjectId::new(object.partition, number));
        }
        Operation::ReadMap { .. } => {
            done.map = map::parse(&data).map(|(map, _)| map).ok_or(OsdError::Malformed("the map"))?;
        }
        Operation::CreateSnapshot { partition: 0, .. }
        | Operation::CreateClone { partition: 0, .. }
        | Operation::CreatePartition { partition: 0 } => {
            done.created = Some(ObjectId::of_partition(number(&done, PARTITION)?));
        }
        Operation::Append { .. } => done.appended_at = Some(number(&done, APPENDED_AT)?),
        Operation::Collection(what) if what.made().is_some_and(|id| id.object == 0) => {
            let partition = what.made().map_or(0, |id| id.partition);
            done.created = Some(ObjectId::new(partition, number(&done, OBJECT)?));
        }
        Operation::Collection(CollectionOperation::Query { ids_max, .. }) => {
            let (listed, total) = collections::matches(&data, *ids_max)?;
            (done.listed, done.matches_total) = (Some(listed), Some(total));
        }
        Operation::Collection(CollectionOperation::List { ids_max, .. }) => {
            done.listed = Some(listed(&data, *ids_max)?);
        }
        Operation::List { ids_max, .. } => done.listed = Some(listed(&data, *ids_max)?),
        Operation::Read { .. }
        | Operation::SetMasterKey { .. }
        | Operation::Rewrite { .. }
        | Operation::ExecuteFunction { .. }
        | Operation::ExecutePaperFunction { .. }
        | Operation::Other { .. } => {
            done.data = data;
        }
        _ => {}
    }
    Ok(done)
}

fn retrieved(
    generation: Generation,
    attributes: &[u8],
) -> Result<Vec<(AttributeId, Option<Bytes>)>, OsdError> {
    if attributes.is_empty() {
        return Ok(Vec::new());
    }
    let values = Values::parse_retrieved(generation, attributes)
        .map_err(|_| OsdError::Malformed("the retrieved attributes"))?;
    let owned = |value: &[u8]| (!value.is_empty()).then(|| Bytes::copy_from_slice(value));
    Ok(values.iter().map(|(id, value)| (id, owned(value))).collect())
}

fn number(done: &Completion, wanted: AttributeId) -> Result<u64, OsdError> {
    let value = done.attributes.iter().find(|(id, _)| *id == wanted).and_then(|(_, value)| value.as_deref());
    let bytes = value.and_then(|value| value.try_into().ok());
    bytes.map(u64::from_be_bytes).ok_or(OsdError::Malformed("no chosen id in the answer"))
}

/// Bytes before the ids of a LIST (t10-osd §1.9).
const LIST_HEADER: usize = 24;

fn listed(data: &[u8], ids_max: usize) -> Result<Listed, OsdError> {
    const SHORT: OsdError = OsdError::Malformed("the list of ids");
    let (header, ids) = data.split_at_checked(LIST_HEADER).ok_or(SHORT)?;
    let (words, _) = header.as_chunks::<8>();
    let [length, next] = [0, 1].map(|at| words.get(at).copied().map_or(0, u64::from_be_bytes));
    // The length is that of the whole list with 16 bytes of header; fewer ids may have fit.
    let all = usize::try_from(length.saturating_sub(16) / 8).unwrap_or(usize::MAX);
    let (ids, _) = ids.as_chunks::<8>();
    let ids: Vec<u64> = ids.iter().take(all.min(ids_max)).map(|id| u64::from_be_bytes(*id)).collect();
    if !ids.is_sorted() {
        return Err(SHORT);
    }
    Ok(Listed { ids, next: (next != 0).then_some(next) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_list_panics(data: Vec<u8>, ids_max in 0usize..100) {
            let _ = listed(&data, ids_max);
        }
    }

    #[test]
    fn removals_and_durable_attributes_are_flushed() {
        let object = ObjectId::new(0x1_0000, 0x1_0000);
        let durable = |operation| draft(Generation::Osd2, &operation).unwrap().durable;
        assert!(durable(Operation::Remove { object }));
        assert!(!durable(Operation::Create { object }), "a flush comes after it");
        let set = |durable| Operation::SetAttributes { object, values: Vec::new(), durable };
        assert!(durable(set(true)) && !durable(set(false)));
    }

    #[test]
    fn truncated_list_reports_where_to_continue() {
        let mut data = Vec::new();
        for word in [16 + 8 * 100u64, 0x10002, 0, 0x10000, 0x10001] {
            data.extend_from_slice(&word.to_be_bytes());
        }
        let expected = Listed { ids: vec![0x10000, 0x10001], next: Some(0x10002) };
        assert_eq!(listed(&data, 2).unwrap(), expected);
    }
}
