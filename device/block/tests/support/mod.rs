//! A block unit on a store, and helpers that send it commands.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;

use bytes::Bytes;
use sealstone_block::{BlockSize, BlockUnit, BlockUnits, NewUnit, UnitOptions};
use sealstone_scsi::lu::{
    Buffers, InitiatorPort, LogicalUnit as _, NexusId, NoTasks, ScsiCommand, ScsiReply,
};
use sealstone_scsi::{AdditionalSense, Sense, SenseKey, Status};
use sealstone_store::{MemoryStore, ObjectStore};

/// Capacity of the store in bytes.
pub(crate) const CAPACITY: u64 = 64 << 20;
/// Name of the target.
pub(crate) const TARGET: &str = "iqn.2026-11.org.sealstone:osd.test";

/// Buffers without a limit.
pub(crate) struct Heap;

impl Buffers for Heap {
    fn take(&self, len: usize) -> Option<Vec<u8>> {
        Some(vec![0xEE; len])
    }

    fn freeze(&self, buffer: Vec<u8>) -> Bytes {
        Bytes::from(buffer)
    }
}

/// Returns the parameters of a new unit.
pub(crate) fn disk(name: &str, block: BlockSize, bytes: u64) -> NewUnit {
    NewUnit { now_ms: 1_000, ..NewUnit::new(name, block, bytes, [0x5A; 16]) }
}

/// A unit with its store.
pub(crate) struct Bench {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) units: BlockUnits,
    pub(crate) unit: Arc<BlockUnit>,
}

impl Bench {
    /// Creates a thin unit of 1 MiB in memory.
    pub(crate) fn new(block: BlockSize) -> Self {
        Self::with(disk("disk", block, 1 << 20))
    }

    /// Creates a unit in memory, with nexus 1 logged in.
    pub(crate) fn with(new: NewUnit) -> Self {
        Self::on(Arc::new(MemoryStore::new(CAPACITY)), new)
    }

    /// Creates a unit on a store.
    pub(crate) fn on(store: Arc<dyn ObjectStore>, new: NewUnit) -> Self {
        let units = BlockUnits::open(Arc::clone(&store), TARGET).expect("opens");
        let unit = units.create(new).expect("made");
        let bench = Self { store, units, unit };
        bench.login(1);
        bench
    }

    /// Opens the first existing unit of a store.
    pub(crate) fn open(store: Arc<dyn ObjectStore>) -> Self {
        Self::open_with(store, UnitOptions::default())
    }

    /// Opens the first existing unit of a store, with options.
    pub(crate) fn open_with(store: Arc<dyn ObjectStore>, options: UnitOptions) -> Self {
        let units = BlockUnits::open_with(Arc::clone(&store), TARGET, options).expect("opens");
        let unit = units.units().first().cloned().expect("there is a unit");
        let bench = Self { store, units, unit };
        bench.login(1);
        bench
    }

    /// Logs in a nexus with its own port, and clears its first unit attention.
    pub(crate) fn login(&self, nexus: u64) {
        let name = format!("iqn.test:{nexus}");
        let port = InitiatorPort { isid: [0, 0, 0, 0, 0, nexus as u8], ..InitiatorPort::new(&name) };
        self.unit.nexus_established(NexusId(nexus), &port);
        let first = self.from(nexus, &[0; 6], &[], 0);
        assert_eq!(sense(&first).key, SenseKey::UnitAttention);
    }

    /// Logs in a nexus with the port name of another one, and an account.
    pub(crate) fn login_as(&self, nexus: u64, says: u64, account: Option<&str>) {
        let name = format!("iqn.test:{says}");
        let isid = [0, 0, 0, 0, 0, says as u8];
        let port = InitiatorPort { isid, account, ..InitiatorPort::new(&name) };
        self.unit.nexus_established(NexusId(nexus), &port);
        let first = self.from(nexus, &[0; 6], &[], 0);
        assert_eq!(sense(&first).key, SenseKey::UnitAttention);
    }

    /// Sends a command from a nexus.
    pub(crate) fn from(&self, nexus: u64, cdb: &[u8], data_out: &[u8], data_in_max: usize) -> ScsiReply {
        let mut padded = cdb.to_vec();
        padded.resize(cdb.len().max(16), 0);
        let command = ScsiCommand {
            nexus: NexusId(nexus),
            lun: 1,
            cdb: &padded,
            data_out,
            data_in_max,
            buffers: &Heap,
            tasks: &NoTasks,
        };
        // Must not panic for any CDB.
        let _ = self.unit.cost(NexusId(nexus), &padded);
        self.unit.execute(command)
    }

    /// Sends a command from nexus 1.
    pub(crate) fn send(&self, cdb: &[u8], data_out: &[u8], data_in_max: usize) -> ScsiReply {
        self.from(1, cdb, data_out, data_in_max)
    }

    /// Returns the data-in of a command that must be GOOD.
    #[track_caller]
    pub(crate) fn get(&self, cdb: &[u8]) -> Vec<u8> {
        let reply = self.send(cdb, &[], 1 << 20);
        assert_eq!(reply.status, Status::Good, "{cdb:02x?}: {:?}", Sense::parse(&reply.sense));
        reply.data_in.to_vec()
    }

    /// Sends a command with data-out that must be GOOD.
    #[track_caller]
    pub(crate) fn put(&self, cdb: &[u8], data_out: &[u8]) {
        let reply = self.send(cdb, data_out, 0);
        assert_eq!(reply.status, Status::Good, "{cdb:02x?}: {:?}", Sense::parse(&reply.sense));
        assert_eq!(reply.data_out_used, data_out.len() as u64);
    }

    /// Returns the sense data of a command that must fail.
    #[track_caller]
    pub(crate) fn refused(&self, cdb: &[u8], data_out: &[u8]) -> Sense {
        sense(&self.send(cdb, data_out, 1 << 20))
    }

    /// Sends READ(16).
    #[track_caller]
    pub(crate) fn read(&self, lba: u64, blocks: u32) -> Vec<u8> {
        self.get(&sixteen(0x88, 0, lba, blocks))
    }

    /// Sends WRITE(16).
    #[track_caller]
    pub(crate) fn write(&self, lba: u64, data: &[u8]) {
        let blocks = data.len() as u64 / self.unit.description().geometry.block().bytes();
        self.put(&sixteen(0x8A, 0, lba, blocks as u32), data);
    }
}

/// Returns a 16-byte CDB with LBA and length at the usual positions.
pub(crate) fn sixteen(code: u8, flags: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// Returns a 10-byte CDB with LBA and length at the usual positions.
pub(crate) fn ten(code: u8, flags: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// Returns UNMAP's CDB and list.
pub(crate) fn unmap(extents: &[(u64, u32)]) -> ([u8; 10], Vec<u8>) {
    let described = 16 * extents.len();
    let mut list = ((described + 6) as u16).to_be_bytes().to_vec();
    list.extend((described as u16).to_be_bytes());
    list.extend([0; 4]);
    for (lba, blocks) in extents {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    (ten(0x42, 0, 0, list.len() as u16), list)
}

/// Returns the sense data of a reply.
#[track_caller]
pub(crate) fn sense(reply: &ScsiReply) -> Sense {
    assert_eq!(reply.status, Status::CheckCondition);
    Sense::parse(&reply.sense).expect("our own sense data")
}

/// Returns sense key and code.
pub(crate) fn what(sense: &Sense) -> (SenseKey, AdditionalSense) {
    (sense.key, sense.code)
}
