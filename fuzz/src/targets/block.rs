//! `sealstone-block`: a block unit with arbitrary CDBs and data from several initiators.

use std::sync::Arc;

use bytes::Bytes;
use sealstone_block::{BLOCK_PARTITION, BlockSize, BlockUnit, BlockUnits, NewUnit, UnitProtection};
use sealstone_osd::ObjectId;
use sealstone_scsi::lu::{Buffers, InitiatorPort, LogicalUnit as _, NexusId, NoTasks, ScsiCommand};
use sealstone_scsi::{SENSE_MAX, Sense, Status};
use sealstone_store::{MemoryStore, ObjectStore};

use crate::Target;
use crate::input::Input;

/// Size of the unit, in bytes.
const BYTES: u64 = 64 << 10;
/// Number of initiators.
const NEXUSES: u64 = 3;
/// Maximum number of commands per input.
const COMMANDS_MAX: usize = 16;
/// Maximum length of data-in, in bytes.
const DATA_IN_MAX: usize = 8192;

struct PlainBuffers;

impl Buffers for PlainBuffers {
    fn take(&self, len: usize) -> Option<Vec<u8>> {
        (len <= 1 << 20).then(|| vec![0xEE; len])
    }

    fn freeze(&self, buffer: Vec<u8>) -> Bytes {
        Bytes::from(buffer)
    }
}

/// One command of an input: initiator, CDB length, data-out length in units of 64 bytes, CDB,
/// data-out.
fn piece(nexus: u8, cdb: &[u8], data_out: &[u8]) -> Vec<u8> {
    let mut out = vec![nexus, cdb.len() as u8, (data_out.len() / 64) as u8];
    out.extend_from_slice(cdb);
    out.extend_from_slice(data_out);
    out
}

fn seeds() -> Vec<Vec<u8>> {
    let sixteen = |code: u8, flags: u8, blocks: u8| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[9], cdb[13]) = (code, flags, 1, blocks);
        cdb
    };
    let block = [0xAB; 512];
    let mut register = [0; 64];
    (register[15], register[20]) = (7, 1);
    let mut reserve = [0; 64];
    reserve[7] = 7;
    let reservation = [
        piece(0, &[0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0], &register),
        piece(0, &[0x5F, 1, 5, 0, 0, 0, 0, 0, 24, 0], &reserve),
        piece(1, &[0x5E, 3, 0, 0, 0, 0, 0, 1, 0, 0], &[]),
        piece(1, &[0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0], &block),
        piece(0, &[0x5F, 4, 3, 0, 0, 0, 0, 0, 24, 0], &register),
        piece(0, &[0x5F, 3, 0, 0, 0, 0, 0, 0, 24, 0], &reserve),
    ];
    let mut unmap = [0; 64];
    (unmap[1], unmap[3], unmap[15], unmap[19]) = (22, 16, 8, 16);
    let mut mode = [0; 64];
    (mode[4], mode[5], mode[6]) = (0x08, 18, 0);
    let data = [
        piece(0, &sixteen(0x8A, 8, 1), &block),
        piece(1, &sixteen(0x88, 0, 2), &[]),
        piece(0, &sixteen(0x89, 0, 1), &[block, [1; 512]].concat()),
        piece(0, &sixteen(0x8B, 0, 1), &block),
        piece(0, &sixteen(0x93, 8, 1), &[0; 512]),
        piece(0, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &unmap),
        piece(2, &[0x9E, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], &[]),
        piece(0, &[0x2F, 2, 0, 0, 0, 0, 0, 0, 1, 0], &block),
        piece(0, &[0x15, 0x10, 0, 0, 24, 0], &mode),
    ];
    let plain: [&[u8]; 12] = [
        &[0; 6],
        &[0x12, 1, 0xB0, 1, 0, 0],
        &[0x1A, 0, 0x3F, 0, 255, 0],
        &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x9E, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0],
        &[0xA3, 0x0C, 0x80, 0, 0, 0, 0, 0, 16, 0, 0, 0],
        &[0x16, 0, 0, 0, 0, 0],
        &[0x17, 0, 0, 0, 0, 0],
        &[0x1B, 0, 0, 0, 2, 0],
        &[0x1E, 0, 0, 0, 1, 0],
        &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0xB7, 0x18, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0],
    ];
    let plain = plain.iter().flat_map(|cdb| piece(2, cdb, &[])).collect();
    vec![reservation.concat(), data.concat(), plain]
}

fn contents(store: &MemoryStore) -> Vec<u8> {
    let mut bytes = vec![0; BYTES as usize];
    let read = store.read(ObjectId::new(BLOCK_PARTITION, 1), 0, &mut bytes).expect("the object is there");
    assert_eq!(read as u64, BYTES, "the unit keeps its length");
    bytes
}

fn send(unit: &BlockUnit, nexus: NexusId, cdb: &[u8], data_out: &[u8]) -> Status {
    let command = ScsiCommand {
        nexus,
        lun: 1,
        cdb,
        data_out,
        data_in_max: DATA_IN_MAX,
        buffers: &PlainBuffers,
        tasks: &NoTasks,
    };
    let _ = unit.cost(NexusId(1), cdb);
    let reply = unit.execute(command);
    assert!(reply.data_in.len() <= DATA_IN_MAX, "more data-in than the initiator takes");
    assert!(reply.data_in_wanted >= reply.data_in.len() as u64);
    assert!(reply.sense.len() <= SENSE_MAX);
    assert_eq!(reply.status == Status::CheckCondition, !reply.sense.is_empty(), "a refusal has its reason");
    if !reply.sense.is_empty() {
        Sense::parse(&reply.sense).expect("sense data of our own");
    }
    reply.status
}

fn commands(input: &[u8]) {
    let store = Arc::new(MemoryStore::new(1 << 20));
    let units = BlockUnits::open(Arc::clone(&store) as Arc<dyn ObjectStore>, "iqn.x:fuzz").expect("opens");
    let new = NewUnit {
        name: "fuzz".to_owned(),
        lun: None,
        bytes: BYTES,
        block: if input.first().is_some_and(|byte| byte & 0x80 != 0) {
            BlockSize::B4096
        } else {
            BlockSize::B512
        },
        thin: true,
        removable: true,
        write_through: false,
        protection: UnitProtection::NONE,
        serial: [1; 16],
        now_ms: 0,
    };
    let unit = units.create(new).expect("made");
    for nexus in 0..NEXUSES {
        unit.nexus_established(NexusId(nexus), &InitiatorPort::new(&format!("iqn.x:{nexus}")));
        // The first command of a nexus gets the unit attention of the power-on.
        assert_eq!(send(&unit, NexusId(nexus), &[0; 6], &[]), Status::CheckCondition);
    }
    let mut input = Input::new(input);
    for _ in 0..COMMANDS_MAX {
        if input.is_empty() {
            break;
        }
        let [nexus, cdb, data] = input.array();
        let cdb = input.take(usize::from(cdb % 17));
        let data_out = input.take(usize::from(data) * 64);
        let nexus = NexusId(u64::from(nexus & 0x7F) % NEXUSES);
        let before = contents(&store);
        let status = send(&unit, nexus, cdb, data_out);
        // A rejected command changes nothing. WRITE AND VERIFY fails after the write only if
        // reading back fails, which does not happen in memory.
        if status != Status::Good {
            assert_eq!(before, contents(&store), "a refused command wrote");
        }
    }
    // Afterwards the persistent registrations can be read and the unit opens again.
    let again = BlockUnits::open(store, "iqn.x:fuzz").expect("opens again");
    assert_eq!(again.units().len(), 1);
}

pub(crate) const UNIT: Target = Target {
    name: "block-unit",
    about: "commands of three initiators to a block unit; what is refused changes nothing, and it opens again",
    run: commands,
    seeds,
    cost: 40,
    quarantine: None,
    covers: &["block::BlockUnit::execute"],
};
