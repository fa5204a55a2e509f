//! `sealstone-block-lazy`: a version log and a page of keys from the medium.

use std::sync::Arc;

use sealstone_block_lazy::{
    LAZY_PARTITION, LazyLimits, LazyUnit, LazyVolume, LazyWrite, ReadVerdict, WriterId,
};
use sealstone_block_protection::{
    BlockSealer, ProtectedBlock, ProtectionLevel, ProtectionProfile, verify_block,
};
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::{MemoryStore, ObjectStore};
use zeroize::Zeroizing;

use crate::Target;
use crate::input::Input;

const BLOCKS: u64 = 64;
const PROFILES: [ProtectionProfile; 2] = [ProtectionProfile::Paper, ProtectionProfile::PaperSafe];
/// First segment and first file of keys of LUN 1.
const LOG: ObjectId = ObjectId::new(LAZY_PARTITION, (2 << 32) | (1 << 31));
const KEYS: ObjectId = ObjectId::new(LAZY_PARTITION, 2 << 32);

fn unit(choice: u8) -> LazyUnit {
    let profile = PROFILES[usize::from(choice) % 2];
    LazyUnit {
        lun: 1,
        data: ObjectId::new(0xB10C, 1),
        serial: [5; 16],
        block: ProtectedBlock::B512,
        blocks: BLOCKS,
        level: ProtectionLevel::S2LazyCipherMac,
        profile,
        limits: LazyLimits::for_unit(BLOCKS * 512, profile),
        secret: (profile == ProtectionProfile::PaperSafe).then(|| Zeroizing::new([9; 32])),
        random: Arc::new(|into| into.fill(3)),
    }
}

fn store(unit: &LazyUnit) -> Arc<dyn ObjectStore> {
    let store = MemoryStore::new(1 << 24);
    store.create(unit.data, ObjectType::User).expect("the store is empty");
    store.resize(unit.data, BLOCKS * 512).expect("it fits");
    Arc::new(store)
}

/// A choice, the length of the log, the log, then keys. A unit that opens serves every block, and
/// commits only blocks that are authentic.
fn volume(input: &[u8]) {
    let mut input = Input::new(input);
    let unit = unit(input.byte());
    let length = usize::from(input.short());
    let (log, keys) = (input.take(length), input.rest());
    let store = store(&unit);
    for (object, bytes) in [(LOG, log), (KEYS, &keys[..keys.len().min(1 << 16)])] {
        if !bytes.is_empty() {
            store.create(object, ObjectType::User).expect("the store has no such object");
            store.write(object, 0, bytes).expect("it fits");
        }
    }
    let Ok(volume) = LazyVolume::open(Arc::clone(&store), unit.clone(), 0) else { return };
    let unverified = volume.status(0).unverified;
    assert!(unverified * 500 <= log.len());
    for lba in 0..BLOCKS {
        if let Ok(read) = volume.read(lba, 1, 0) {
            // A report about any version must be harmless.
            let verdict = if lba % 2 == 0 { ReadVerdict::Corrupt } else { ReadVerdict::Authentic };
            let _ = volume.report(lba, read.versions[0], verdict, 0);
        }
    }
    if volume.verify_due(u64::MAX).is_ok() {
        let status = volume.status(0);
        assert!(status.unverified == 0 || status.unverifiable > 0);
    }
    let scheme = unit.level.key_scheme().expect("the level has block keys");
    let form = sealstone_block_protection::KeyListForm { scheme, block: unit.block, profile: unit.profile };
    let mut data = vec![1; 512];
    let (list, macs) = BlockSealer::new(form).seal(0, &mut data, &mut |into| into.fill(7));
    let (keys, writer) = (&list.keys[..], WriterId(1));
    let write = LazyWrite { first_lba: 0, keys, macs: &macs, data: &data, writer, durable: true };
    if volume.write(write, 0).is_ok() {
        let read = volume.read(0, 1, 0).expect("it was just written");
        assert_eq!(read.data, data);
        assert!(verify_block(unit.profile, 0, &read.seals[0].keys, &read.data, &read.seals[0].mac));
    }
}

fn seeds() -> Vec<Vec<u8>> {
    (0..2)
        .map(|choice| {
            let unit = unit(choice);
            let store = store(&unit);
            let volume = LazyVolume::open(Arc::clone(&store), unit.clone(), 0).expect("a new unit");
            let scheme = unit.level.key_scheme().expect("the level has block keys");
            let form =
                sealstone_block_protection::KeyListForm { scheme, block: unit.block, profile: unit.profile };
            for round in 0..2 {
                let mut data = vec![round; 1024];
                let mut random = |into: &mut [u8]| into.fill(round + 7);
                let (list, macs) = BlockSealer::new(form).seal(3, &mut data, &mut random);
                let (keys, writer) = (&list.keys[..], WriterId(1));
                let write =
                    LazyWrite { first_lba: 3, keys, macs: &macs, data: &data, writer, durable: false };
                volume.write(write, 0).expect("there is space");
                if round == 0 {
                    volume.verify_due(u64::MAX).expect("they are authentic");
                }
            }
            let contents = [LOG, KEYS].map(|object| {
                let mut bytes = vec![0; 1 << 13];
                let read = store.read(object, 0, &mut bytes).expect("it exists");
                bytes.truncate(read);
                bytes
            });
            let length = u16::try_from(contents[0].len()).expect("two records");
            [&[choice][..], &length.to_be_bytes(), &contents[0], &contents[1]].concat()
        })
        .collect()
}

pub(crate) const VOLUME: Target = Target {
    name: "block-lazy-volume",
    about: "version log and key page of a medium; what opens serves all blocks and takes writes",
    run: volume,
    seeds,
    cost: 20,
    quarantine: None,
    covers: &["block-lazy::LazyVolume::open"],
};
