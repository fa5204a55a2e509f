//! `sealstone-block-lazy`: a version log, a page of keys and a check of the secret from the medium.

use std::sync::Arc;

use sealstone_block_lazy::{
    LAZY_PARTITION, LazyLimits, LazyUnit, LazyVolume, LazyWrite, ReadVerdict, WriterId,
};
use sealstone_block_protection::{
    BlockSealer, GenerationCounter, KeyListForm, ProtectedBlock, ProtectionLevel, ProtectionProfile,
    UnitKeys, verify_block,
};
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::{AttributeId, MemoryStore, ObjectStore};
use zeroize::Zeroizing;

use crate::Target;
use crate::input::Input;

const BLOCKS: u64 = 64;
const PROFILES: [ProtectionProfile; 3] =
    [ProtectionProfile::Paper, ProtectionProfile::PaperSafe, ProtectionProfile::Modern];
/// First segment and first file of keys of LUN 1.
const LOG: ObjectId = ObjectId::new(LAZY_PARTITION, (2 << 32) | (1 << 31));
const KEYS: ObjectId = ObjectId::new(LAZY_PARTITION, 2 << 32);
/// State of LUN 1, and its attribute with the check of the secret.
const STATE: ObjectId = ObjectId::new(LAZY_PARTITION, (2 << 32) | 0x7FFF_FFFF);
const SECRET_CHECK: AttributeId = AttributeId { page: 0, number: 3 };
/// Choices of [`unit`] from here on have a state from the input.
const HAS_STATE: u8 = 0x80;

fn unit(choice: u8) -> LazyUnit {
    let profile = PROFILES[usize::from(choice) % PROFILES.len()];
    let is_modern = profile == ProtectionProfile::Modern;
    LazyUnit {
        lun: 1,
        data: ObjectId::new(0xB10C, 1),
        serial: [5; 16],
        block: ProtectedBlock::B512,
        blocks: BLOCKS,
        level: if is_modern { ProtectionLevel::ModernLazy } else { ProtectionLevel::S2LazyCipherMac },
        profile,
        limits: LazyLimits::for_unit(BLOCKS * 512, profile),
        secret: profile.binds_address().then(|| Zeroizing::new([9; 32])),
        random: Arc::new(|into| into.fill(3)),
    }
}

fn store(unit: &LazyUnit) -> Arc<dyn ObjectStore> {
    let store = MemoryStore::new(1 << 24);
    store.create(unit.data, ObjectType::User).expect("the store is empty");
    store.resize(unit.data, BLOCKS * 512).expect("it fits");
    Arc::new(store)
}

/// A choice, the check of the secret if the choice has one, the length of the log, the log, then
/// keys. A unit that opens serves every block, and commits only blocks that are authentic.
fn volume(input: &[u8]) {
    let mut input = Input::new(input);
    let choice = input.byte();
    let unit = unit(choice & !HAS_STATE);
    let store = store(&unit);
    if choice & HAS_STATE != 0 {
        let length = usize::from(input.byte());
        store.create(STATE, ObjectType::User).expect("the store has no such object");
        // Without a value, as earlier versions of the program leave it.
        store.set_attribute(STATE, SECRET_CHECK, input.take(length)).expect("it fits");
    }
    let length = usize::from(input.short());
    let (log, keys) = (input.take(length), input.rest());
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
    let mut data = vec![1; 512];
    let mut writer = BlockWriter::new(&unit, &volume);
    if writer.write(&volume, 0, &mut data, true, 7) {
        let read = volume.read(0, 1, 0).expect("it was just written");
        assert_eq!(read.data, data);
        let (keys, mac) = (&read.seals[0].keys, &read.seals[0].mac);
        assert!(match &writer.unit_keys {
            Some((unit, _, _)) => unit.verify_block(0, keys, &read.data, mac, &mut Vec::new()),
            None => verify_block(unit.profile, 0, keys, &read.data, mac),
        });
    }
}

/// A client that seals blocks as the profile of the unit requires.
struct BlockWriter {
    form: KeyListForm,
    /// Keys of the unit, generations and number of the session.
    unit_keys: Option<(UnitKeys, GenerationCounter, u32)>,
}

impl BlockWriter {
    fn new(unit: &LazyUnit, volume: &LazyVolume) -> Self {
        let scheme = unit.level.key_scheme().expect("the level has block keys");
        let form = KeyListForm { scheme, block: unit.block, profile: unit.profile };
        let unit_keys = scheme.has_generations().then(|| {
            let begun = volume.begin_session().expect("numbers are left");
            let (keys, session) = UnitKeys::parse(&begun.encoded).expect("keys of the unit");
            (keys, GenerationCounter::new(session), session)
        });
        Self { form, unit_keys }
    }

    /// Seals and writes blocks; returns whether they were acknowledged.
    fn write(
        &mut self,
        volume: &LazyVolume,
        first_lba: u64,
        data: &mut [u8],
        durable: bool,
        value: u8,
    ) -> bool {
        let (list, macs) = match &mut self.unit_keys {
            Some((keys, generations, _)) => {
                keys.seal(first_lba, 512, data, generations).expect("generations are left")
            }
            None => BlockSealer::new(self.form).seal(first_lba, data, &mut |into| into.fill(value)),
        };
        let session = self.unit_keys.as_ref().map_or(0, |(_, _, session)| *session);
        let (keys, macs, writer) = (&list.keys[..], &macs[..], WriterId(1));
        volume.write(LazyWrite { first_lba, keys, macs, data, writer, session, durable }, 0).is_ok()
    }
}

fn seeds() -> Vec<Vec<u8>> {
    (0..3)
        .flat_map(|choice| {
            let unit = unit(choice);
            let store = store(&unit);
            let volume = LazyVolume::open(Arc::clone(&store), unit.clone(), 0).expect("a new unit");
            let mut writer = BlockWriter::new(&unit, &volume);
            for round in 0..2 {
                let mut data = vec![round; 1024];
                assert!(writer.write(&volume, 3, &mut data, false, round + 7), "there is space");
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
            let medium = [&length.to_be_bytes()[..], &contents[0], &contents[1]].concat();
            let check = store.attribute(STATE, SECRET_CHECK).expect("it exists").unwrap_or_default();
            let check_len = u8::try_from(check.len()).expect("29 bytes");
            [
                [&[choice][..], &medium].concat(),
                [&[choice | HAS_STATE, 0][..], &medium].concat(),
                [&[choice | HAS_STATE, check_len][..], &check, &medium].concat(),
            ]
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
