//! `sealstone-block`: a block unit with arbitrary CDBs and data from several initiators.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sealstone_block::{
    BLOCK_PARTITION, BlockSize, BlockUnit, BlockUnits, LazyOptions, NewUnit, PageSecret, StoredSecret,
    UnitOptions, UnitProtection,
};
use sealstone_block_protection::{BlockSeal, BlockSealer, KeyListForm, ProtectedBlock, verify_block};
use sealstone_osd::ObjectId;
use sealstone_scsi::lu::{
    BlockSeals, Buffers, InitiatorPort, LogicalUnit as _, NexusId, NoTasks, ScsiCommand, ScsiReply,
};
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

/// Buffers of a command, with the keys and MACs of its blocks.
#[derive(Default)]
struct CommandBuffers {
    written: Mutex<Option<BlockSeals>>,
    read: Mutex<Option<BlockSeals>>,
}

impl Buffers for CommandBuffers {
    fn take(&self, len: usize) -> Option<Vec<u8>> {
        (len <= 1 << 20).then(|| vec![0xEE; len])
    }

    fn freeze(&self, buffer: Vec<u8>) -> Bytes {
        Bytes::from(buffer)
    }

    fn take_seals(&self) -> Option<BlockSeals> {
        self.written.lock().expect("not poisoned").take()
    }

    fn put_seals(&self, seals: BlockSeals) {
        *self.read.lock().expect("not poisoned") = Some(seals);
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
    send_with(unit, nexus, cdb, data_out, &CommandBuffers::default()).status
}

fn send_with(
    unit: &BlockUnit,
    nexus: NexusId,
    cdb: &[u8],
    data_out: &[u8],
    buffers: &CommandBuffers,
) -> ScsiReply {
    let command =
        ScsiCommand { nexus, lun: 1, cdb, data_out, data_in_max: DATA_IN_MAX, buffers, tasks: &NoTasks };
    let _ = unit.cost(NexusId(1), cdb);
    let reply = unit.execute(command);
    assert!(reply.data_in.len() <= DATA_IN_MAX, "more data-in than the initiator takes");
    assert!(reply.data_in_wanted >= reply.data_in.len() as u64);
    assert!(reply.sense.len() <= SENSE_MAX);
    assert_eq!(reply.status == Status::CheckCondition, !reply.sense.is_empty(), "a refusal has its reason");
    if !reply.sense.is_empty() {
        Sense::parse(&reply.sense).expect("sense data of our own");
    }
    reply
}

fn commands(input: &[u8]) {
    let store = Arc::new(MemoryStore::new(1 << 20));
    let units = BlockUnits::open(Arc::clone(&store) as Arc<dyn ObjectStore>, "iqn.x:fuzz").expect("opens");
    let is_large = input.first().is_some_and(|byte| byte & 0x80 != 0);
    let block = if is_large { BlockSize::B4096 } else { BlockSize::B512 };
    let new = NewUnit { removable: true, ..NewUnit::new("fuzz", block, BYTES, [1; 16]) };
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

/// Protection of the units of [`KEYED_UNIT`].
const KEYED: [&str; 3] = ["paper:S1-2", "paper:S2-5", "lazy"];

fn keyed_form(protection: UnitProtection) -> KeyListForm {
    let scheme = protection.level().key_scheme().expect("the level has block keys");
    KeyListForm { scheme, block: ProtectedBlock::B512, profile: protection.profile() }
}

/// One command of an input to a unit with keys: as [`piece`], with seals between CDB and data.
/// Their number of bytes is in units of 8.
fn keyed_piece(cdb: &[u8], first_lba: u8, seals: &[u8], data_out: &[u8]) -> Vec<u8> {
    let mut out = vec![cdb.len() as u8, first_lba, (seals.len() / 8) as u8, (data_out.len() / 32) as u8];
    out.extend_from_slice(cdb);
    out.extend_from_slice(seals);
    out.extend_from_slice(data_out);
    out
}

fn keyed_seeds() -> Vec<Vec<u8>> {
    let sixteen = |code: u8, flags: u8, length: u8| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[9], cdb[13]) = (code, flags, 1, length);
        cdb
    };
    let of_unit = |choice: u8| {
        let protection = UnitProtection::parse(KEYED[usize::from(choice)]).expect("a level");
        let form = keyed_form(protection);
        let mut data = vec![choice; 1024];
        let (list, macs) = match form.scheme.has_generations() {
            // Only the keys of the unit make such blocks authentic.
            true => (Vec::new(), Vec::new()),
            false => {
                let (list, macs) = BlockSealer::new(form).seal(1, &mut data, &mut |into| into.fill(7));
                (list.keys, macs)
            }
        };
        let mut seals = Vec::new();
        for (keys, mac) in list.iter().zip(&macs) {
            BlockSeal { keys: keys.clone(), mac: *mac }.append_to(form.scheme, &mut seals);
        }
        let mut report = [0; 64];
        report[7] = 1;
        report[8..24].copy_from_slice(macs.first().unwrap_or(&[0; 16]));
        report[39] = 2;
        report[56] = 1;
        let commands = [
            keyed_piece(&sixteen(0x8A, 0, 2), 1, &seals, &data),
            keyed_piece(&sixteen(0x88, 0, 2), 0, &[], &[]),
            keyed_piece(&sixteen(0xC2, 0, 64), 0, &[], &report),
            keyed_piece(&sixteen(0xC1, 1, 1), 0, &[], &[]),
            keyed_piece(&sixteen(0x8A, 8, 2), 1, &seals, &data),
            keyed_piece(&sixteen(0xC3, 0, 96), 0, &[], &[]),
            keyed_piece(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[], &[]),
            keyed_piece(&sixteen(0x93, 8, 2), 0, &[], &[0; 512]),
        ];
        [&[choice][..], &commands.concat()].concat()
    };
    (0..3).map(of_unit).collect()
}

/// Commands to a unit whose blocks have keys. Blocks that a flush acknowledged are authentic.
fn keyed_commands(input: &[u8]) {
    let mut input = Input::new(input);
    let name = KEYED[usize::from(input.byte()) % KEYED.len()];
    let protection = UnitProtection::parse(name).expect("a level");
    let form = keyed_form(protection);
    let store = Arc::new(MemoryStore::new(32 << 20)) as Arc<dyn ObjectStore>;
    let lazy = LazyOptions {
        secret: StoredSecret::Present(PageSecret::new([9; 32])),
        random: Arc::new(|into| into.fill(3)),
    };
    let options = UnitOptions { lazy: Some(lazy), ..UnitOptions::default() };
    let units = BlockUnits::open_with(Arc::clone(&store), "iqn.x:fuzz", options.clone()).expect("opens");
    let new = NewUnit { protection, ..NewUnit::new("fuzz", BlockSize::B512, BYTES, [1; 16]) };
    let unit = units.create(new).expect("made");
    let nexus = NexusId(1);
    unit.nexus_established(nexus, &InitiatorPort::new("iqn.x:1"));
    assert_eq!(send(&unit, nexus, &[0; 6], &[]), Status::CheckCondition);
    for _ in 0..COMMANDS_MAX {
        if input.is_empty() {
            break;
        }
        let [cdb, first_lba, seals, data] = input.array();
        let cdb = input.take(usize::from(cdb % 17));
        let bytes = input.take(usize::from(seals) * 8).to_vec().into();
        let data_out = input.take(usize::from(data) * 32);
        let seals = BlockSeals { first_lba: first_lba.into(), bytes };
        let buffers = CommandBuffers { written: Mutex::new(Some(seals)), read: Mutex::default() };
        send_with(&unit, nexus, cdb, data_out, &buffers);
    }
    // Losses of writes are reported once by a unit attention and by a flush.
    let flush = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let is_flushed = (0..8).any(|_| send(&unit, nexus, &flush, &[]) == Status::Good);
    for lba in 0..(BYTES / 512) as u8 {
        let mut cdb = [0; 16];
        (cdb[0], cdb[9], cdb[13]) = (0x88, lba, 1);
        let buffers = CommandBuffers::default();
        let reply = send_with(&unit, nexus, &cdb, &[], &buffers);
        let seals = buffers.read.into_inner().expect("not poisoned");
        if reply.status != Status::Good || !is_flushed || form.scheme.has_generations() {
            continue;
        }
        let seals = seals.expect("blocks with keys");
        let seal = BlockSeal::decode(form.scheme, &seals.bytes).expect("one entry");
        let is_authentic = match seal.keys.is_unwritten() {
            true => reply.data_in.iter().all(|byte| *byte == 0),
            false => verify_block(form.profile, lba.into(), &seal.keys, &reply.data_in, &seal.mac),
        };
        assert!(is_authentic, "block {lba} is not authentic after a flush");
    }
    drop(unit);
    let again = BlockUnits::open_with(store, "iqn.x:fuzz", options).expect("opens again");
    assert_eq!(again.units().len(), 1);
}

pub(crate) const KEYED_UNIT: Target = Target {
    name: "block-keyed-unit",
    about: "commands with keys to a unit that verifies lazily; what a flush acknowledged is authentic",
    run: keyed_commands,
    seeds: keyed_seeds,
    cost: 60,
    quarantine: None,
    covers: &["block::BlockUnit::execute"],
};
