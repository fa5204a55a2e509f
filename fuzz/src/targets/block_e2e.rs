//! `sealstone-block-e2e`: header, root, journal, entries, wrapped keys.

use sealstone_block_e2e::{
    AeadMismatch, BLOCK_LEN, BlockAead, BlockEntry, ChainTag, DiskHeader, DiskRoot, DiskSealer,
    JournalBuilder, JournalChange, JournalRecord, KEY_LEN, KeyEpoch, LeaseEpoch, NONCE_LEN, ROOT_LEN,
    TAG_LEN, UnitId, UnitKey, UnitKeyRing, UserSecretKey, portable_aead,
};

use crate::Target;
use crate::input::{Input, seed};

const DATA_BLOCKS: u64 = 1 << 20;

/// A cipher that changes nothing and accepts everything, so that inputs reach what is sealed.
struct OpenAead;

impl BlockAead for OpenAead {
    fn seal(&self, _: &[u8; NONCE_LEN], _: &[u8], _: &mut [u8]) -> [u8; TAG_LEN] {
        [0; TAG_LEN]
    }

    fn open(
        &self,
        _: &[u8; NONCE_LEN],
        _: &[u8],
        sealed: &[u8],
        _: &[u8; TAG_LEN],
        data: &mut [u8],
    ) -> Result<(), AeadMismatch> {
        data.copy_from_slice(sealed);
        Ok(())
    }
}

fn open_aead(_: &[u8; KEY_LEN]) -> Box<dyn BlockAead> {
    Box::new(OpenAead)
}

fn sealer(is_sealed: bool) -> DiskSealer {
    let factory = if is_sealed { portable_aead } else { open_aead };
    let ring = UnitKeyRing::new(UnitId([1; 16]), KeyEpoch(1), UnitKey::new([2; 32]), factory);
    DiskSealer::new(ring.expect("epoch 1"), LeaseEpoch(3))
}

/// A block, padded with zeros: a header, or a record of the journal.
fn blocks(input: &[u8]) {
    let mut block = [0; BLOCK_LEN];
    let length = input.len().min(BLOCK_LEN);
    block[..length].copy_from_slice(&input[..length]);
    if let Ok(header) = DiskHeader::parse(&block) {
        assert_eq!(*header.encode(), block);
    }
    let (sequence, before) = (9, ChainTag([4; 16]));
    assert!(JournalRecord::open(&block, sequence, before, DATA_BLOCKS, &sealer(true)).is_err(), "a forgery");
    let Ok(record) = JournalRecord::open(&block, sequence, before, DATA_BLOCKS, &sealer(false)) else {
        return;
    };
    let mut entries = 0_u64;
    record.for_each_entry(|lba, _| {
        assert!(lba < DATA_BLOCKS);
        entries += 1;
    });
    assert_eq!(entries, record.changes.iter().map(|change| change.range().1).sum::<u64>());
    let mut builder = JournalBuilder::default();
    for change in record.changes.clone() {
        assert_eq!(builder.push(change), None, "what was parsed fits");
    }
    let lease = record.lease_epoch;
    let ring = sealer(false).ring().clone();
    let (again, sealed) = builder.seal(sequence, before, &DiskSealer::new(ring, lease));
    assert_eq!(again.changes, record.changes);
    // The stand-in does not compute tags.
    assert_eq!((&sealed[..48], &sealed[64..]), (&block[..48], &block[64..]));
}

/// A root, or a wrapped key and an entry.
fn roots(input: &[u8]) {
    let mut input = Input::new(input);
    let bytes: [u8; ROOT_LEN] = input.array();
    assert!(DiskRoot::open(&bytes, &sealer(true)).is_err(), "a forgery");
    if let Ok(root) = DiskRoot::open(&bytes, &sealer(false)) {
        assert!(root.follows(&root));
        let again = root.seal(&sealer(false));
        assert_eq!(again[..ROOT_LEN - TAG_LEN], bytes[..ROOT_LEN - TAG_LEN]);
    }
    let entry = bytes.first_chunk().expect("a root is longer than an entry");
    if let Some(parsed) = BlockEntry::parse(entry) {
        assert_eq!(parsed.encode(), *entry);
    }
    let wrapped = bytes.first_chunk().expect("a root is longer than a wrapped key");
    assert!(UserSecretKey::new([5; 32]).unwrap(&UnitId([1; 16]), b"ann", wrapped).is_err(), "a forgery");
}

fn block_seeds() -> Vec<Vec<u8>> {
    let mut builder = JournalBuilder::default();
    for change in [
        JournalChange::Write { lba: 5, counter: 1, tags: vec![[7; 16]; 3] },
        JournalChange::Unmap { lba: 100, blocks: 8 },
    ] {
        assert_eq!(builder.push(change), None, "two changes fit");
    }
    let (_, record) = builder.seal(9, ChainTag([4; 16]), &sealer(false));
    let header = DiskHeader { unit: UnitId([1; 16]), unit_blocks: DATA_BLOCKS };
    vec![record[..200].to_vec(), header.encode()[..80].to_vec()]
}

fn root_seeds() -> Vec<Vec<u8>> {
    let root = DiskRoot {
        lease_epoch: LeaseEpoch(3),
        version: 7,
        unit_blocks: DATA_BLOCKS,
        top: BlockEntry { counter: 4, ..BlockEntry::UNWRITTEN },
        checkpoint: (8, ChainTag([1; 16])),
        journal: (9, ChainTag([2; 16])),
        is_clean: false,
        oldest_key: KeyEpoch(1),
    };
    let user = UserSecretKey::new([5; 32]).public();
    let wrapped = user.wrap(&UnitId([1; 16]), b"bob", KeyEpoch(1), &UnitKey::new([2; 32]), [9; 32]);
    vec![root.seal(&sealer(false)).to_vec(), seed(&wrapped.expect("a good key"), &[])]
}

pub(crate) const BLOCKS: Target = Target {
    name: "sealed-disk-blocks",
    about: "a header or journal record: what is read encodes to the same bytes, and forgeries never open",
    run: blocks,
    seeds: block_seeds,
    cost: 8,
    quarantine: None,
    covers: &["block-e2e::DiskHeader::parse", "block-e2e::JournalRecord::open"],
};

pub(crate) const ROOTS: Target = Target {
    name: "sealed-disk-roots",
    about: "a root, an entry or a wrapped key: the same, and forgeries never open",
    run: roots,
    seeds: root_seeds,
    cost: 16,
    quarantine: None,
    covers: &[
        "block-e2e::DiskRoot::open",
        "block-e2e::BlockEntry::parse",
        "block-e2e::UserSecretKey::unwrap",
    ],
};
