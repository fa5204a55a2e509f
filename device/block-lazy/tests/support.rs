//! A unit on a store, and a client that seals and verifies its blocks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sealstone_block_lazy::{
    LazyError, LazyLimits, LazyUnit, LazyVolume, LazyWrite, RejectedVersion, VersionedBlocks, WriterId,
};
use sealstone_block_protection::{
    BlockKeyList, BlockSealer, GenerationCounter, KeyListForm, MacTag, ProtectedBlock, ProtectionLevel,
    ProtectionProfile, UnitKeys,
};
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::{AttributeId, MemoryStore, ObjectStore};
use zeroize::Zeroizing;

/// Length of a block in most tests.
pub(crate) const BLOCK: usize = 512;
/// Capacity of the store in memory.
const CAPACITY: u64 = 64 << 20;
pub(crate) const PAPER: ProtectionProfile = ProtectionProfile::Paper;
pub(crate) const SAFE: ProtectionProfile = ProtectionProfile::PaperSafe;
pub(crate) const MODERN: ProtectionProfile = ProtectionProfile::Modern;
pub(crate) const S2_5: ProtectionLevel = ProtectionLevel::S2LazyCipherMac;
pub(crate) const WRITER: WriterId = WriterId(7);
/// State of LUN 1.
pub(crate) const STATE: ObjectId =
    ObjectId::new(sealstone_block_lazy::LAZY_PARTITION, (2 << 32) | 0x7FFF_FFFF);
/// Attribute of the state of a unit with sealed keys: the check of its secret.
pub(crate) const SECRET_CHECK: AttributeId = AttributeId { page: 0, number: 3 };

/// Blocks with their seals, as they are on the wire.
#[derive(Clone)]
pub(crate) struct SealedBlocks {
    pub(crate) list: BlockKeyList,
    pub(crate) macs: Vec<MacTag>,
    pub(crate) data: Vec<u8>,
}

/// A unit and its client.
pub(crate) struct Bench {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) volume: LazyVolume,
    pub(crate) unit: LazyUnit,
    seed: AtomicU64,
    /// Keys of the unit, generations and the number of the session, in the profile that has them.
    session: Option<Mutex<(UnitKeys, GenerationCounter, u32)>>,
}

/// Returns a description of LUN 1 with this number of blocks. The modern profile has its own level.
pub(crate) fn unit(level: ProtectionLevel, profile: ProtectionProfile, blocks: u64) -> LazyUnit {
    let random = AtomicU64::new(1);
    LazyUnit {
        lun: 1,
        data: ObjectId::new(0xB10C, 1),
        serial: [5; 16],
        block: ProtectedBlock::B512,
        blocks,
        level: if profile == MODERN { ProtectionLevel::ModernLazy } else { level },
        profile,
        limits: LazyLimits::for_unit(blocks * BLOCK as u64, profile),
        secret: profile.binds_address().then(|| Zeroizing::new([9; 32])),
        random: Arc::new(move |into| fill(&random, into)),
    }
}

fn fill(seed: &AtomicU64, into: &mut [u8]) {
    for byte in into {
        let next = seed.load(Ordering::Relaxed).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        seed.store(next, Ordering::Relaxed);
        *byte = (next >> 40) as u8;
    }
}

/// Returns the plain block of an address and a number.
pub(crate) fn stamp(lba: u64, number: u64) -> Vec<u8> {
    let mut block = vec![0x5A; BLOCK];
    block[..8].copy_from_slice(&lba.to_be_bytes());
    block[8..16].copy_from_slice(&number.to_be_bytes());
    block[BLOCK - 8..].copy_from_slice(&number.to_be_bytes());
    block
}

/// Returns the number of a stamped block; 0 if it is zeros. Panics on any other content.
#[track_caller]
pub(crate) fn stamped(lba: u64, block: &[u8]) -> u64 {
    let number = u64::from_be_bytes(block[8..16].try_into().expect("succeeds"));
    let unwritten = number == 0 && block.iter().all(|byte| *byte == 0);
    assert!(unwritten || block == stamp(lba, number), "block {lba} has wrong bytes");
    number
}

impl Bench {
    pub(crate) fn new(level: ProtectionLevel, profile: ProtectionProfile) -> Self {
        Self::with(unit(level, profile, 256))
    }

    pub(crate) fn with(unit: LazyUnit) -> Self {
        let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new(CAPACITY));
        store.create(unit.data, ObjectType::User).expect("succeeds");
        store.resize(unit.data, unit.blocks * BLOCK as u64).expect("succeeds");
        Self::open(store, unit).expect("succeeds")
    }

    pub(crate) fn open(store: Arc<dyn ObjectStore>, unit: LazyUnit) -> Result<Self, LazyError> {
        let volume = LazyVolume::open(Arc::clone(&store), unit.clone(), 0)?;
        let mut bench = Self { store, volume, unit, seed: AtomicU64::new(42), session: None };
        bench.begin_session()?;
        Ok(bench)
    }

    /// Requests the keys of the unit, as each session does.
    pub(crate) fn begin_session(&mut self) -> Result<(), LazyError> {
        if self.unit.profile == MODERN {
            let encoded = self.volume.begin_session()?.encoded;
            let (keys, session) = UnitKeys::parse(&encoded).expect("keys of the unit");
            self.session = Some(Mutex::new((keys, GenerationCounter::new(session), session)));
        }
        Ok(())
    }

    /// Opens the unit again, as after a restart.
    pub(crate) fn reopen(self) -> Self {
        let Self { store, volume, unit, .. } = self;
        drop(volume);
        Self::open(store, unit).expect("succeeds")
    }

    pub(crate) fn form(&self) -> KeyListForm {
        let scheme = self.unit.level.key_scheme().expect("blocks have keys");
        KeyListForm { scheme, block: self.unit.block, profile: self.unit.profile }
    }

    /// Seals stamped blocks.
    pub(crate) fn seal(&self, lba: u64, count: u64, number: u64) -> SealedBlocks {
        let mut data: Vec<u8> = (lba..lba + count).flat_map(|lba| stamp(lba, number)).collect();
        if let Some(session) = &self.session {
            let (keys, generations, _) = &mut *session.lock().expect("not poisoned");
            let sealed = keys.seal(lba, BLOCK, &mut data, generations);
            let (list, macs) = sealed.expect("generations are left");
            return SealedBlocks { list, macs, data };
        }
        let mut random = |into: &mut [u8]| fill(&self.seed, into);
        let (list, macs) = BlockSealer::new(self.form()).seal(lba, &mut data, &mut random);
        SealedBlocks { list, macs, data }
    }

    pub(crate) fn send(&self, blocks: &SealedBlocks, durable: bool, now_ms: u64) -> Result<(), LazyError> {
        self.send_as(WRITER, blocks, durable, now_ms)
    }

    pub(crate) fn send_as(
        &self,
        writer: WriterId,
        blocks: &SealedBlocks,
        durable: bool,
        now_ms: u64,
    ) -> Result<(), LazyError> {
        let SealedBlocks { list, macs, data } = blocks;
        let first_lba = list.first_lba;
        let session = self.session.as_ref().map_or(0, |session| session.lock().expect("not poisoned").2);
        let keys = &list.keys[..];
        let write = LazyWrite { first_lba, keys, macs, data, writer, session, durable };
        self.volume.write(write, now_ms)
    }

    #[track_caller]
    pub(crate) fn write(&self, lba: u64, count: u64, number: u64) {
        self.send(&self.seal(lba, count, number), false, 0).expect("succeeds");
    }

    /// Writes one block that is changed on its way. Returns whether it was acknowledged.
    pub(crate) fn write_corrupted(&self, lba: u64, number: u64, now_ms: u64) -> Result<(), LazyError> {
        let mut blocks = self.seal(lba, 1, number);
        blocks.data[100] ^= 1;
        self.send(&blocks, false, now_ms)
    }

    /// Verifies and decrypts blocks as a client does; `None` if they are not authentic.
    pub(crate) fn verify(&self, lba: u64, read: VersionedBlocks) -> Option<Vec<u8>> {
        let VersionedBlocks { mut data, seals, .. } = read;
        if let Some(session) = &self.session {
            let unit = &session.lock().expect("not poisoned").0;
            let blocks = (lba..).zip(data.chunks_exact_mut(BLOCK)).zip(&seals);
            let mut is_authentic = true;
            for ((lba, block), seal) in blocks {
                is_authentic &= unit.open_block(lba, seal.keys.generation, &seal.mac, block);
            }
            return is_authentic.then_some(data);
        }
        let keys = seals.iter().map(|seal| seal.keys.clone()).collect();
        let has_macs = self.form().scheme.has_authentication();
        let macs: Vec<MacTag> = seals.iter().filter(|_| has_macs).map(|seal| seal.mac).collect();
        let list = BlockKeyList { first_lba: lba, keys };
        BlockSealer::new(self.form()).open(&list, &macs, &mut data).ok().map(|()| data)
    }

    /// Reads the number of one block; `None` if its newest version is not authentic.
    #[track_caller]
    pub(crate) fn number(&self, lba: u64) -> Option<u64> {
        self.number_back(lba, 0)
    }

    #[track_caller]
    pub(crate) fn number_back(&self, lba: u64, back: usize) -> Option<u64> {
        let read = self.volume.read(lba, 1, back).expect("succeeds");
        self.verify(lba, read).map(|block| stamped(lba, &block))
    }

    pub(crate) fn rejected(&self) -> Vec<u64> {
        self.volume.take_rejected().into_iter().map(|RejectedVersion { lba, .. }| lba).collect()
    }
}
