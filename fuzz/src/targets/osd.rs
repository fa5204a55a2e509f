//! `sealstone-osd`: CDBs, capabilities and related formats.

use sealstone_osd::cdb::{EncodeError, GetList, GetPage, Segment, SetValue, pointer};
use sealstone_osd::continuation::{self, CopySource, Piece};
use sealstone_osd::integrity::{DataInIntegrity, DataOutIntegrity};
use sealstone_osd::master_key::{self, BothValues};
use sealstone_osd::offset::{self, Decoded};
use sealstone_osd::query::{Criterion, QueryList, QueryType};
use sealstone_osd::rewrite::{RewriteAction, RewriteOperation};
use sealstone_osd::table::{Continuation, SERVICE_ACTIONS};
use sealstone_osd::task::{ServiceResponse, TaskResponse};
use sealstone_osd::{
    AttributeId, AttributeParameters, Capability, CapabilityBytes, Cdb, Command, Descriptor, Generation,
    ObjectId, ObjectType, Permissions, SecurityMethod, capability,
};
use sealstone_scsi::{Sense, SenseKey};
use sealstone_seal::algorithm::preferred_slot;

use crate::Target;
use crate::input::{GENERATIONS, Input, fitted, seed, selector};

/// A user object that exists in targets with objects.
pub(crate) const OBJECT: ObjectId = ObjectId::new(0x1_0000, 0x1_0001);

/// A CDB for each service action of each generation, with [`OBJECT`] if it takes one.
pub(crate) fn cdbs() -> Vec<Cdb> {
    let all = SERVICE_ACTIONS.iter().flat_map(|row| GENERATIONS.map(|generation| (row, generation)));
    all.filter_map(|(row, generation)| {
        let mut wire = vec![0; generation.cdb_len()];
        let mut put = |at: u16, bytes: &[u8]| {
            wire[usize::from(at)..usize::from(at) + bytes.len()].copy_from_slice(bytes);
        };
        put(0, &[sealstone_osd::cdb::OPERATION_CODE]);
        put(pointer::ADDITIONAL_LENGTH, &[generation.cdb_len() as u8 - 8]);
        put(pointer::SERVICE_ACTION, &row.code(generation)?.to_be_bytes());
        // List format. A required choice of key, step or scope is 1.
        let choice = u8::from(row.name.starts_with("SET KEY") || row.name.starts_with("FLUSH"));
        put(pointer::SPECIFIC_BITS, &[0x30 | choice]);
        put(pointer::PARTITION, &OBJECT.partition.to_be_bytes());
        if row.objects.contains(&ObjectType::User) || row.objects.contains(&ObjectType::Collection) {
            put(pointer::OBJECT, &OBJECT.object.to_be_bytes());
        }
        if row.name == "REWRITE" {
            put(pointer::length(generation) + 4, &30_u32.to_be_bytes());
        }
        if row.name == "EXECUTE FUNCTION" {
            put(pointer::length(generation) + 4, &128_u32.to_be_bytes());
        }
        if matches!(
            row.continuation,
            Continuation::Query | Continuation::CopySource | Continuation::Rewrite | Continuation::Function
        ) {
            put(pointer::CONTINUATION, &72_u32.to_be_bytes());
        }
        put(pointer::data_in_icv_offset(generation), &[0xFF; 8]);
        Some(Cdb::parse(&wire).expect("a plain CDB of the table parses"))
    })
    .collect()
}

/// A capability of each generation for all operations on [`OBJECT`] with this method.
pub(crate) fn capability(generation: Generation, method: SecurityMethod) -> Capability {
    let range = match generation {
        Generation::Osd1 => capability::Range::ALL,
        Generation::Osd2 => capability::Range { start: 0, length: 0 },
    };
    Capability {
        generation,
        format: generation,
        key_version: 0,
        icv_algorithm: preferred_slot(generation, method),
        method,
        expires_ms: 0,
        audit: *b"fuzz fuzz fuzz fuzz ",
        discriminator: [3; 12],
        object_created_ms: 0,
        object_type: ObjectType::User,
        permissions: Permissions::ALL_OSD2,
        descriptor: Descriptor::User { scope: capability::Scope::default(), allowed: OBJECT, range },
    }
}

/// A command with attributes to get and set in every format.
fn with_attributes(generation: Generation, command: Command) -> Vec<Cdb> {
    let id = AttributeId::new(1, 9);
    let at = |offset| Segment { offset, length: 40 };
    let retrieved = at(1024);
    let mut formats = vec![
        AttributeParameters::Page {
            get: Some(GetPage { page: 3, retrieved }),
            set: Some(SetValue { id, value: at(256) }),
        },
        AttributeParameters::List { get: Some(GetList { list: at(256), retrieved }), set: Some(at(512)) },
    ];
    if generation == Generation::Osd2 {
        formats.push(AttributeParameters::One { id, length: 18, value: [7; 18] });
    }
    formats.into_iter().map(|attributes| Cdb { attributes, ..Cdb::new(generation, command) }).collect()
}

fn cdb_seeds() -> Vec<Vec<u8>> {
    let mut all = cdbs();
    for plain in cdbs() {
        let generation = plain.generation;
        if matches!(plain.command, Command::GetAttributes(_) | Command::Read(_) | Command::Write(_)) {
            all.extend(with_attributes(generation, plain.command).into_iter().map(|mut cdb| {
                cdb.capability = capability(generation, SecurityMethod::AllData).encode();
                cdb.security.data_in_icv_offset = Some(2048);
                cdb.security.data_out_icv_offset = Some(4096);
                cdb.options.fua = true;
                cdb
            }));
        }
    }
    all.iter().map(|cdb| cdb.encode().expect("seeds fit their layout").to_vec()).collect()
}

fn cdb(input: &[u8]) {
    let cdb = match Cdb::parse(input) {
        Ok(cdb) => cdb,
        Err(error) => {
            let sense = error.sense();
            assert_eq!(Sense::parse(&sense.encode()), Ok(sense));
            return;
        }
    };
    match cdb.encode() {
        Ok(bytes) => assert_eq!(Cdb::parse(&bytes), Ok(cdb)),
        // A coarse exponent can express offsets beyond the range of finer ones.
        Err(EncodeError::Offset(_)) => {}
        Err(error) => panic!("parsed, but does not encode: {error}: {cdb:?}"),
    }
    let command = &cdb.command;
    assert!(!command.object_types().is_empty() && !command.permissions().is_empty());
    let _ = (command.range(), command.data_in_len(), command.data_out_len(), cdb.data_out_offset());
    let attributes = &cdb.attributes;
    for segment in [attributes.set_segment(), attributes.get_list_segment(), attributes.retrieved_segment()] {
        let found = segment.and_then(|segment| segment.of(input).map(|bytes| (bytes, segment)));
        assert!(found.is_none_or(|(bytes, segment)| bytes.len() as u64 == u64::from(segment.length)));
    }
    let _ = cdb.capability.parse();
}

pub(crate) const CDB: Target = Target {
    name: "osd-cdb",
    about: "a CDB of either generation; what parses encodes and parses the same, refusals make sense data",
    run: cdb,
    seeds: cdb_seeds,
    cost: 1,
    quarantine: None,
    covers: &["osd::Cdb::parse", "osd::CapabilityBytes::parse"],
};

fn capability_seeds() -> Vec<Vec<u8>> {
    let descriptors = |scope| {
        [
            Descriptor::None,
            Descriptor::Partition { scope, partition: 0x1_0000 },
            Descriptor::Collection { scope, allowed: OBJECT },
            Descriptor::User { scope, allowed: OBJECT, range: capability::Range { start: 1, length: 2 } },
        ]
    };
    let scope = capability::Scope { attributes_access: 1, policy_access_tag: 2, boot_epoch: 3 };
    let all = GENERATIONS.into_iter().flat_map(|generation| {
        descriptors(scope)
            .map(|descriptor| Capability { descriptor, ..capability(generation, SecurityMethod::CmdRsp) })
    });
    all.map(|capability| capability.encode().to_vec()).collect()
}

fn capability_bytes(input: &[u8]) {
    for generation in GENERATIONS {
        let _ = Capability::parse(generation, input).map_err(|error| error.offset());
        let wire = fitted(input, generation.capability_len());
        let bytes = CapabilityBytes::new(generation, &wire).expect("as long as the generation says");
        let Ok(capability) = Capability::parse(generation, &wire) else {
            assert!(!bytes.is_canonical());
            continue;
        };
        let encoded = capability.encode();
        assert_eq!(encoded.parse(), Ok(capability));
        assert_eq!(bytes.is_canonical(), encoded == bytes);
        assert!(encoded.is_canonical(), "{encoded:?}");
        let _ = (capability.descriptor.allowed(), capability.permissions.to_string());
    }
}

pub(crate) const CAPABILITY: Target = Target {
    name: "osd-capability",
    about: "a capability read as both generations; parse, encode, parse is the identity",
    run: capability_bytes,
    seeds: capability_seeds,
    cost: 1,
    quarantine: None,
    covers: &["osd::Capability::parse", "osd::CapabilityBytes::parse"],
};

fn segment_of(action: u16, segment: &continuation::Segment) -> Vec<u8> {
    segment.encode(action).expect("a seed within the limits")
}

fn continuation_seeds() -> Vec<Vec<u8>> {
    let query = QueryList {
        kind: QueryType::Intersection,
        criteria: vec![Criterion { id: AttributeId::new(1, 2), min: b"abc", max: b"d" }],
    };
    let pieces = vec![Piece { offset: 0, length: 10 }, Piece { offset: 100, length: 20 }];
    let extensions = vec![capability(Generation::Osd2, SecurityMethod::CmdRsp).encode(); 2];
    let source = CopySource { object: OBJECT, attributes: true, freeze: true, time: 5 };
    let all = cdbs().into_iter().enumerate().filter_map(|(at, cdb)| {
        let action = cdb.command.row().osd2.filter(|_| cdb.generation == Generation::Osd2)?;
        let segment = match cdb.command.row().continuation {
            Continuation::ScatterGather => {
                continuation::Segment { scatter_gather: Some(pieces.clone()), ..Default::default() }
            }
            Continuation::Query => continuation::Segment {
                query: query.encode(),
                extensions: extensions.clone(),
                ..Default::default()
            },
            Continuation::Extensions => continuation::Segment {
                extensions: extensions.clone(),
                proofs: vec![[7; 32]; extensions.len()],
                ..Default::default()
            },
            Continuation::CopySource => continuation::Segment {
                copy_source: Some(source),
                extensions: extensions.clone(),
                proofs: vec![[9; 32]; extensions.len()],
                ..Default::default()
            },
            Continuation::Rewrite => continuation::Segment {
                rewrite: vec![RewriteOperation {
                    action: RewriteAction::Copy(3),
                    offset: 0,
                    length: 8,
                    operand: 0,
                }],
                ..Default::default()
            },
            Continuation::Function => continuation::Segment {
                function: Some(super::osd_function::run_request()),
                extensions: extensions.clone(),
                proofs: vec![[9; 32]; extensions.len()],
                ..Default::default()
            },
            Continuation::NotThere | Continuation::Refused => continuation::Segment::default(),
        };
        let length = 30_u64.to_be_bytes();
        Some(seed(&[&[at as u8], &length[..]].concat(), &segment_of(action, &segment)))
    });
    all.collect()
}

/// The command with a replaced LENGTH or MATCHES COLLECTION.
fn with_length(command: Command, length: u64) -> Command {
    match command {
        Command::Read(extent) => Command::Read(sealstone_osd::cdb::Extent { length, ..extent }),
        Command::Write(extent) => Command::Write(sealstone_osd::cdb::Extent { length, ..extent }),
        Command::Query(query) => Command::Query(sealstone_osd::cdb::Query { matches: length, ..query }),
        Command::CreateTrackingCollection(create) => {
            let create = sealstone_osd::cdb::CreateTracking { source: length, ..create };
            Command::CreateTrackingCollection(create)
        }
        other => other,
    }
}

fn continuation(input: &[u8]) {
    let mut input = Input::new(input);
    let commands = cdbs();
    let command = commands[usize::from(input.byte()) % commands.len()].command;
    let command = with_length(command, input.long());
    let bytes = input.rest();
    let segment = match continuation::Segment::parse(&command, bytes) {
        Ok(segment) => segment,
        Err(error) => {
            let _ = error.sense().encode();
            return;
        }
    };
    let action = command.row().osd2.expect("every row is in OSD-2");
    let wire = segment.encode(action).expect("what parses is within the limits");
    assert_eq!(continuation::Segment::parse(&command, &wire), Ok(segment.clone()));
    if let Some(query) = &segment.query {
        let _ = QueryList::parse(query);
    }
}

pub(crate) const CONTINUATION: Target = Target {
    name: "osd-continuation",
    about: "command, LENGTH, then a CDB continuation segment; parse, encode, parse is the identity",
    run: continuation,
    seeds: continuation_seeds,
    cost: 4,
    quarantine: None,
    covers: &["osd::Segment::parse"],
};

fn integrity_seeds() -> Vec<Vec<u8>> {
    let icv = [0xA5; 32];
    let out = DataOutIntegrity { data: 1, set_attributes: 2, get_list: 3, icv };
    let back = DataInIntegrity { data: 1, attributes: 2, icv };
    GENERATIONS.into_iter().flat_map(|g| [out.encode(g).to_vec(), back.encode(g).to_vec()]).collect()
}

fn integrity(input: &[u8]) {
    for generation in GENERATIONS {
        if let Some(block) = DataOutIntegrity::parse(generation, input) {
            assert_eq!(&*block.encode(generation), &input[..DataOutIntegrity::len(generation)]);
        }
        if let Some(block) = DataInIntegrity::parse(generation, input) {
            assert_eq!(&*block.encode(generation), &input[..DataInIntegrity::len(generation)]);
        }
    }
}

pub(crate) const INTEGRITY: Target = Target {
    name: "osd-integrity",
    about: "integrity information of both directions and generations; encodes to the bytes it came from",
    run: integrity,
    seeds: integrity_seeds,
    cost: 1,
    quarantine: None,
    covers: &["osd::DataOutIntegrity::parse", "osd::DataInIntegrity::parse"],
};

fn master_key_seeds() -> Vec<Vec<u8>> {
    let both = |len| BothValues { client: &[1; 256][..len], device: &[2; 256] }.encode();
    [both(256), both(0), master_key::encode_device_value(&[9; 128])].into_iter().flatten().collect()
}

fn master_key(input: &[u8]) {
    if let Some(both) = BothValues::parse(input) {
        assert_eq!(both.encode().as_deref(), Some(input));
    }
    if let Some(value) = master_key::parse_device_value(input) {
        let wire = master_key::encode_device_value(value).expect("what parses is within the limit");
        assert!(input.starts_with(&wire));
    }
}

pub(crate) const MASTER_KEY: Target = Target {
    name: "osd-master-key",
    about: "data of SET MASTER KEY; encodes to the bytes it came from",
    run: master_key,
    seeds: master_key_seeds,
    cost: 1,
    quarantine: None,
    covers: &["osd::BothValues::parse", "osd::master_key::parse_device_value"],
};

fn offset_seeds() -> Vec<Vec<u8>> {
    let fields = [0, 1, 0xB000_0003, 0xA000_0001, 0xF000_0001, 0x7FFF_FFFF, 0xF000_0000, offset::UNUSED];
    fields.map(|field: u32| seed(&field.to_be_bytes(), &(u64::from(field) << 5).to_be_bytes())).to_vec()
}

fn offset(input: &[u8]) {
    let mut input = Input::new(input);
    let (field, wanted) = (input.word(), input.long());
    for generation in GENERATIONS {
        if let Decoded::At(at) = offset::decode(generation, field) {
            assert!(at.is_multiple_of(offset::granularity(generation)));
            if let Some(finest) = offset::encode(generation, at) {
                assert_eq!(offset::decode(generation, finest), Decoded::At(at));
            }
        }
        if let Some(field) = offset::encode(generation, wanted) {
            assert_eq!(offset::decode(generation, field), Decoded::At(wanted));
            assert_eq!(offset::align_up(generation, wanted), Some(wanted));
        }
        if let Some(at) = offset::align_up(generation, wanted) {
            assert!(at >= wanted && offset::encode(generation, at).is_some());
        }
    }
}

pub(crate) const OFFSET: Target = Target {
    name: "osd-offset",
    about: "an offset field, then an offset; decoding and encoding agree, alignment never goes down",
    run: offset,
    seeds: offset_seeds,
    cost: 1,
    quarantine: None,
    covers: &["osd::offset::decode"],
};

fn task_seeds() -> Vec<Vec<u8>> {
    use ServiceResponse::{Complete, IncorrectLun, Rejected, Succeeded};
    let attention = TaskResponse {
        key: SenseKey::UnitAttention,
        attention_depth: 2,
        code: [0x29, 0],
        ..TaskResponse::new(Complete)
    };
    let plain = [Complete, Succeeded, Rejected, IncorrectLun].map(TaskResponse::new);
    plain.iter().chain([&attention]).map(|one| one.encode().to_vec()).collect()
}

fn task(input: &[u8]) {
    if let Some(answer) = TaskResponse::parse(input) {
        assert_eq!(TaskResponse::parse(&answer.encode()), Some(answer));
    }
}

pub(crate) const TASK: Target = Target {
    name: "osd-task",
    about: "an answer to PERFORM TASK MANAGEMENT FUNCTION; what parses encodes and parses the same",
    run: task,
    seeds: task_seeds,
    cost: 1,
    quarantine: None,
    covers: &["osd::TaskResponse::parse"],
};

/// Prepends the selector byte of a generation.
pub(crate) fn of_generation(generation: Generation, bytes: &[u8]) -> Vec<u8> {
    seed(&[selector(generation)], bytes)
}
