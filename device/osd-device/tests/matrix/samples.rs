//! One command for every row of the command table, every generation and every object type that it
//! can address.
//!
//! Generated from the row alone, on the wire, so that a new row is in the matrix automatically.

use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::cdb::{OPERATION_CODE, pointer};
use sealstone_osd::continuation::{CopySource, Piece, Segment};
use sealstone_osd::function::{
    ApiVersion, EngineType, ExecuteRequest, FunctionObject, REPLY_HEADER_LEN, RunRequest,
};
use sealstone_osd::query::{Criterion, QueryList, QueryType};
use sealstone_osd::rewrite::{RewriteAction, RewriteOperation};
use sealstone_osd::table::{Continuation, SERVICE_ACTIONS, ServiceAction, Transfer};
use sealstone_osd::{
    AttributeId, Capability, Cdb, Command, Descriptor, Generation, ObjectId, ObjectType, Permissions,
    SecurityMethod,
};

use super::support::{PID, SIGN_HERE};

pub const GENERATIONS: [Generation; 2] = [Generation::Osd1, Generation::Osd2];
/// The user object and the collection of every bench.
pub const OID: u64 = 0x1_0001;
pub const CID: u64 = 0x1_0002;
/// A second collection, which does not exist: authority is checked first.
const OTHER_CID: u64 = 0x1_0003;
/// A partition that does not exist.
const NEW_PARTITION: u64 = 0x1_0007;
/// Data of commands that send some.
const DATA: &[u8] = b"DATA";
/// ALLOCATION LENGTH of commands that return data.
const ALLOCATION: u64 = 64;

/// A command with its data.
pub struct Sample {
    pub row: &'static ServiceAction,
    pub generation: Generation,
    /// Type of the object that it addresses here.
    pub kind: ObjectType,
    /// Distinguishes samples of the same row.
    pub note: &'static str,
    pub command: Command,
    pub continuation: Vec<u8>,
    /// Extension capability that it needs, in the segment.
    pub further: Option<Capability>,
}

impl Sample {
    pub fn data(&self) -> &'static [u8] {
        &DATA[..usize::try_from(self.command.data_out_len()).unwrap()]
    }

    /// Returns the segment with another extension capability and proof, or without one.
    pub fn continuation_with(&self, further: Option<&Capability>, proof: [u8; 32]) -> Vec<u8> {
        let segment = Segment::parse(&self.command, &self.continuation).unwrap();
        let extensions = further.map(Capability::encode).into_iter().collect();
        let proofs = further.map(|_| proof).into_iter().collect();
        Segment { extensions, proofs, ..segment }.encode(self.row.osd2.unwrap()).unwrap()
    }

    /// Returns the name in the matrix.
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
        ("QUERY", _) => vec![one(0, ""), one(0, INTO_ANOTHER)],
        ("CREATE USER TRACKING COLLECTION", _) => vec![one(0, ""), one(0, OF_ANOTHER)],
        _ => vec![one(0, "")],
    }
}

/// Samples of commands that name a second collection.
const INTO_ANOTHER: &str = "into another";
const OF_ANOTHER: &str = "of another";

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
    let further = further(row, generation, note);
    let continuation = segment(row, generation, scattered, further.as_ref());
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
    // SET MASTER KEY has two lengths instead of one; empty lists are sufficient.
    let length = match row.transfer {
        Transfer::Out => DATA.len() as u64,
        Transfer::In if row.name == "READ" => DATA.len() as u64,
        Transfer::In => ALLOCATION,
        Transfer::None if matches!(row.name, "CLEAR" | "PUNCH") => DATA.len() as u64,
        Transfer::None | Transfer::Both => 0,
    };
    // The allocation length is 0 if the matches go into a collection.
    let length = if note == INTO_ANOTHER { 0 } else { length };
    if [INTO_ANOTHER, OF_ANOTHER].contains(&note) {
        put(pointer::start(generation), &OTHER_CID.to_be_bytes());
    }
    // REWRITE has two lengths of four bytes: operands and range.
    let length = if row.name == "REWRITE" { DATA.len() as u64 * (1 << 32 | 1) } else { length };
    let length = if row.name == "EXECUTE FUNCTION" { REPLY_HEADER_LEN as u64 } else { length };
    if length > 0 {
        put(pointer::length(generation), &length.to_be_bytes());
    }
    if !continuation.is_empty() {
        put(pointer::CONTINUATION, &u32::try_from(continuation.len()).unwrap().to_be_bytes());
    }
    put(pointer::data_in_icv_offset(generation), &[0xFF; 8]);
    let command =
        Cdb::parse(&wire).unwrap_or_else(|error| panic!("{} {generation}: {error}", row.name)).command;
    Sample { row, generation, kind, note, command, continuation, further }
}

/// Returns the extension capability of a command: to read the source of a copy, the object of a
/// function or another collection, or to fill one.
fn further(row: &ServiceAction, generation: Generation, note: &str) -> Option<Capability> {
    let scope = Scope::default();
    let collection = Descriptor::Collection { scope, allowed: ObjectId::new(PID, OTHER_CID) };
    let (object_type, permissions, descriptor) = match note {
        INTO_ANOTHER => (ObjectType::Collection, Permissions::M_OBJECT, collection),
        OF_ANOTHER => (ObjectType::Collection, Permissions::READ, collection),
        _ if matches!(row.name, "COPY USER OBJECTS" | "EXECUTE FUNCTION") => {
            let (allowed, range) = (ObjectId::new(PID, OID), Range::ALL);
            (ObjectType::User, Permissions::READ, Descriptor::User { scope, allowed, range })
        }
        _ => return None,
    };
    (generation == Generation::Osd2).then_some(Capability {
        generation: Generation::Osd2,
        format: Generation::Osd2,
        key_version: 0,
        icv_algorithm: 1,
        method: SecurityMethod::AllData,
        expires_ms: 0,
        audit: *b"auditor-of-the-tests",
        discriminator: [7; 12],
        object_created_ms: 0,
        object_type,
        permissions,
        descriptor,
    })
}

fn segment(
    row: &ServiceAction,
    generation: Generation,
    scattered: bool,
    further: Option<&Capability>,
) -> Vec<u8> {
    if generation == Generation::Osd1 {
        return Vec::new();
    }
    let extensions: Vec<_> = further.map(Capability::encode).into_iter().collect();
    let proofs = vec![SIGN_HERE; extensions.len()];
    let segment = match row.continuation {
        Continuation::ScatterGather if scattered => {
            let half = |offset| Piece { offset, length: DATA.len() as u64 / 2 };
            Segment { scatter_gather: Some(vec![half(0), half(10)]), ..Segment::default() }
        }
        Continuation::Query => {
            let criterion = Criterion { id: AttributeId::new(1, 9), min: b"a", max: b"z" };
            let list = QueryList { kind: QueryType::Union, criteria: vec![criterion] };
            Segment { query: list.encode(), extensions, proofs, ..Segment::default() }
        }
        Continuation::CopySource => {
            let source =
                CopySource { object: ObjectId::new(PID, OID), attributes: false, freeze: false, time: 0 };
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
        Continuation::Function => {
            let entry = FunctionObject {
                object: ObjectId::new(PID, OID),
                kind: ObjectType::User,
                rights: Permissions::READ,
            };
            let request = RunRequest {
                engine: Some(EngineType::C),
                secret_arguments: false,
                commit_on_success: false,
                input_digests: false,
                result_entry: false,
                job: None,
                timeout_ms: 1000,
                api: ApiVersion::CURRENT,
                digest: None,
                method: String::new(),
                arguments: Vec::new().into(),
                objects: vec![entry],
            };
            let function = Some(ExecuteRequest::Run(request));
            Segment { function, extensions, proofs, ..Segment::default() }
        }
        Continuation::Extensions if further.is_some() => Segment { extensions, proofs, ..Segment::default() },
        _ => return Vec::new(),
    };
    segment.encode(row.osd2.unwrap()).unwrap()
}
