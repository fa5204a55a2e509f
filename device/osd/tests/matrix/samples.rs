//! One command for every row of the command table, every generation and every type of object that it can address.
//!
//! Made from the row alone, on the wire, so that a new row is in the matrix without anybody's doing.

use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::cdb::{OPERATION_CODE, pointer};
use sealstone_osd::continuation::{CopySource, Piece, Segment};
use sealstone_osd::query::{Criterion, QueryList, QueryType};
use sealstone_osd::rewrite::{RewriteAction, RewriteOperation};
use sealstone_osd::table::{Continuation, SERVICE_ACTIONS, ServiceAction, Transfer};
use sealstone_osd::{
    AttributeId, Capability, Cdb, Command, Descriptor, Generation, ObjectId, ObjectType, Permissions,
    SecurityMethod,
};

use super::support::{PID, SIGN_HERE};

pub const GENERATIONS: [Generation; 2] = [Generation::Osd1, Generation::Osd2];
/// The user object and the collection that every bench has.
pub const OID: u64 = 0x1_0001;
pub const CID: u64 = 0x1_0002;
/// A partition that no bench has.
const NEW_PARTITION: u64 = 0x1_0007;
/// Bytes of data of commands that bring some.
const DATA: &[u8] = b"DATA";
/// ALLOCATION LENGTH of commands that fetch some.
const ALLOCATION: u64 = 64;

/// A command, and what goes with it.
pub struct Sample {
    pub row: &'static ServiceAction,
    pub generation: Generation,
    /// Type of the object that it addresses here.
    pub kind: ObjectType,
    /// Told apart from other samples of the row.
    pub note: &'static str,
    pub command: Command,
    pub continuation: Vec<u8>,
}

impl Sample {
    pub fn data(&self) -> &'static [u8] {
        &DATA[..usize::try_from(self.command.data_out_len()).unwrap()]
    }

    /// As the matrix names it.
    pub fn name(&self) -> String {
        let kind = match self.kind {
            ObjectType::Root => "root",
            ObjectType::Partition => "partition",
            ObjectType::Collection => "collection",
            ObjectType::User => "user object",
        };
        if self.note.is_empty() { kind.to_owned() } else { format!("{kind} ({})", self.note) }
    }
}

pub fn all() -> Vec<Sample> {
    let mut samples = Vec::new();
    for generation in GENERATIONS {
        for row in SERVICE_ACTIONS.iter().filter(|row| row.code(generation).is_some()) {
            for &kind in row.objects {
                samples.extend(variants(row, generation, kind));
            }
        }
    }
    samples
}

fn variants(row: &'static ServiceAction, generation: Generation, kind: ObjectType) -> Vec<Sample> {
    let one = |bits: u8, note| sample(row, generation, kind, bits, note, false);
    match (row.name, kind) {
        ("SET KEY", ObjectType::Root) => vec![one(1, "root key")],
        ("SET KEY", _) => vec![one(2, "partition key"), one(3, "working key")],
        ("REMOVE PARTITION", _) if generation == Generation::Osd2 => {
            vec![one(0, ""), one(1, "with contents")]
        }
        (_, ObjectType::User) if row.continuation == Continuation::ScatterGather => {
            let plain = one(0, "");
            if generation == Generation::Osd1 {
                return vec![plain];
            }
            vec![plain, sample(row, generation, kind, 0, "scatter/gather", true)]
        }
        _ => vec![one(0, "")],
    }
}

fn address(row: &ServiceAction, kind: ObjectType) -> ObjectId {
    let creates = row.name.starts_with("CREATE");
    match kind {
        ObjectType::Root => ObjectId::ROOT,
        ObjectType::Partition if row.name == "CREATE PARTITION" => ObjectId::of_partition(NEW_PARTITION),
        // The second number is the source.
        ObjectType::Partition if creates => ObjectId::new(NEW_PARTITION, PID),
        ObjectType::Partition => ObjectId::of_partition(PID),
        ObjectType::Collection if creates => ObjectId::new(PID, 0),
        ObjectType::Collection => ObjectId::new(PID, CID),
        ObjectType::User if creates || row.name == "COPY USER OBJECTS" => ObjectId::new(PID, 0),
        ObjectType::User => ObjectId::new(PID, OID),
    }
}

fn sample(
    row: &'static ServiceAction,
    generation: Generation,
    kind: ObjectType,
    bits: u8,
    note: &'static str,
    scattered: bool,
) -> Sample {
    let continuation = segment(row, generation, scattered);
    let mut wire = vec![0; generation.cdb_len()];
    let mut put = |at: u16, bytes: &[u8]| {
        wire[usize::from(at)..usize::from(at) + bytes.len()].copy_from_slice(bytes);
    };
    put(0, &[OPERATION_CODE]);
    put(pointer::ADDITIONAL_LENGTH, &[generation.cdb_len() as u8 - 8]);
    put(pointer::SERVICE_ACTION, &row.code(generation).unwrap().to_be_bytes());
    put(pointer::SPECIFIC_BITS, &[0x30 | bits]);
    let object = address(row, kind);
    put(pointer::PARTITION, &object.partition.to_be_bytes());
    put(pointer::OBJECT, &object.object.to_be_bytes());
    // SET MASTER KEY has its two lengths where others have one; empty lists will do.
    let length = match row.transfer {
        Transfer::Out => DATA.len() as u64,
        Transfer::In if row.name == "READ" => DATA.len() as u64,
        Transfer::In => ALLOCATION,
        Transfer::None if matches!(row.name, "CLEAR" | "PUNCH") => DATA.len() as u64,
        Transfer::None | Transfer::Both => 0,
    };
    // REWRITE has two lengths of four bytes: operands, and the range.
    let length = if row.name == "REWRITE" { DATA.len() as u64 * (1 << 32 | 1) } else { length };
    if length > 0 {
        put(pointer::length(generation), &length.to_be_bytes());
    }
    if !continuation.is_empty() {
        put(pointer::CONTINUATION, &u32::try_from(continuation.len()).unwrap().to_be_bytes());
    }
    put(pointer::data_in_icv_offset(generation), &[0xFF; 8]);
    let command =
        Cdb::parse(&wire).unwrap_or_else(|error| panic!("{} {generation}: {error}", row.name)).command;
    Sample { row, generation, kind, note, command, continuation }
}

/// A capability to read the source of a copy.
fn reading() -> Capability {
    Capability {
        generation: Generation::Osd2,
        format: Generation::Osd2,
        key_version: 0,
        icv_algorithm: 1,
        method: SecurityMethod::AllData,
        expires_ms: 0,
        audit: *b"auditor-of-the-tests",
        discriminator: [7; 12],
        object_created_ms: 0,
        object_type: ObjectType::User,
        permissions: Permissions::READ,
        descriptor: Descriptor::User {
            scope: Scope::default(),
            allowed: ObjectId::new(PID, OID),
            range: Range::ALL,
        },
    }
}

fn segment(row: &ServiceAction, generation: Generation, scattered: bool) -> Vec<u8> {
    if generation == Generation::Osd1 {
        return Vec::new();
    }
    let segment = match row.continuation {
        Continuation::ScatterGather if scattered => {
            let half = |offset| Piece { offset, length: DATA.len() as u64 / 2 };
            Segment { scatter_gather: Some(vec![half(0), half(10)]), ..Segment::default() }
        }
        Continuation::Query => {
            let criterion = Criterion { id: AttributeId::new(1, 9), min: b"a", max: b"z" };
            let list = QueryList { kind: QueryType::Union, criteria: vec![criterion] };
            Segment { query: list.encode(), ..Segment::default() }
        }
        Continuation::CopySource => {
            let source =
                CopySource { object: ObjectId::new(PID, OID), attributes: false, freeze: false, time: 0 };
            let (extensions, proofs) = (vec![reading().encode()], vec![SIGN_HERE]);
            Segment { copy_source: Some(source), extensions, proofs, ..Segment::default() }
        }
        Continuation::Rewrite => {
            let operation = RewriteOperation {
                action: RewriteAction::Replace,
                offset: 0,
                length: DATA.len() as u32,
                operand: 0,
            };
            Segment { rewrite: vec![operation], ..Segment::default() }
        }
        _ => return Vec::new(),
    };
    segment.encode(row.osd2.unwrap()).unwrap()
}
