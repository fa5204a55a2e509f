//! Histories of a protected disk, and what its blocks may contain after a failure.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sealstone_block_client::e2e::{DiskKeys, E2eDisk, E2eError, MemoryRootStore, SealedMedium, fast_aead};
use sealstone_block_e2e::{BLOCK_LEN, KeyEpoch, UnitId, UnitKey, UnitKeyRing};

/// Blocks of the unit: the smallest one.
pub(crate) const UNIT_BLOCKS: u64 = 256;
/// Blocks that the tests use, so that each is written often.
pub(crate) const USED: u64 = 24;
pub(crate) const BLOCK: u64 = BLOCK_LEN as u64;

pub(crate) fn keys() -> DiskKeys {
    keys_of(1, 2)
}

pub(crate) fn keys_of(unit: u8, key: u8) -> DiskKeys {
    let ring = UnitKeyRing::new(UnitId([unit; 16]), KeyEpoch(1), UnitKey::new([key; 32]), fast_aead);
    Arc::new(ring.unwrap())
}

/// The generator SplitMix64.
pub(crate) struct SimRng(u64);

impl SimRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }
}

pub(crate) fn block(value: u8) -> Bytes {
    Bytes::from(vec![value; BLOCK as usize])
}

/// A disk whose record survives the client.
pub(crate) type Disk<M> = E2eDisk<M, MemoryRootStore>;

/// Returns the value of a block, which is the same in all its bytes.
pub(crate) async fn value<M: SealedMedium>(disk: &Disk<M>, lba: u64) -> Result<u8, E2eError> {
    let data = disk.read(lba * BLOCK, BLOCK).await?;
    assert!(data.iter().all(|byte| *byte == data[0]), "block {lba} has mixed content");
    Ok(data[0])
}

pub(crate) async fn put<M: SealedMedium>(disk: &Disk<M>, lba: u64, value: u8) -> Result<(), E2eError> {
    disk.write(lba * BLOCK, block(value), false).await
}

/// The contents that each block may have.
#[derive(Clone, Default)]
pub(crate) struct Oracle(BTreeMap<u64, Vec<u8>>);

impl Oracle {
    pub(crate) fn of(&self, lba: u64) -> &[u8] {
        self.0.get(&lba).map_or(&[0], |values| &values[..])
    }

    /// A change was sent.
    pub(crate) fn begin(&mut self, lba: u64, value: u8) {
        self.0.entry(lba).or_insert_with(|| vec![0]).push(value);
    }

    /// All changes are durable.
    pub(crate) fn flushed(&mut self) {
        for values in self.0.values_mut() {
            *values = vec![*values.last().unwrap()];
        }
    }

    /// Reads all blocks: each has one of its values, which it keeps.
    pub(crate) async fn verify<M: SealedMedium>(&mut self, disk: &Disk<M>, context: &str) {
        for lba in 0..USED {
            let found = value(disk, lba).await.unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(
                self.of(lba).contains(&found),
                "{context}: block {lba} is {found}, not {:?}",
                self.of(lba)
            );
            self.0.insert(lba, vec![found]);
        }
    }
}

/// Runs a workload until the unit fails or the steps end. Returns whether it ended.
pub(crate) async fn workload<M: SealedMedium>(
    disk: &Disk<M>,
    oracle: &mut Oracle,
    random: &mut SimRng,
    steps: usize,
) -> bool {
    let cursor = disk.flush_cursor();
    for _ in 0..steps {
        let lba = random.below(USED - 4);
        let outcome = match random.below(10) {
            0..5 => {
                let blocks = 1 + random.below(4);
                let values: Vec<u8> = (0..blocks).map(|_| 1 + random.below(200) as u8).collect();
                (lba..).zip(&values).for_each(|(lba, value)| oracle.begin(lba, *value));
                let data: Vec<u8> = values.iter().flat_map(|value| vec![*value; BLOCK as usize]).collect();
                disk.write(lba * BLOCK, data.into(), false).await
            }
            5..7 => {
                // Several requests at once.
                let other = (lba + 2) % USED;
                let [one, two] = [1 + random.below(200) as u8, 1 + random.below(200) as u8];
                oracle.begin(lba, one);
                oracle.begin(other, two);
                let (one, two) = tokio::join!(put(disk, lba, one), put(disk, other, two));
                one.and(two)
            }
            7 => {
                (lba..lba + 2).for_each(|lba| oracle.begin(lba, 0));
                disk.unmap(lba * BLOCK, 2 * BLOCK, false).await
            }
            8 => {
                let expected = oracle.of(lba).last().copied();
                value(disk, lba).await.map(|found| assert_eq!(Some(found), expected, "block {lba}"))
            }
            _ => {
                let flushed = disk.flush(&cursor).await;
                if flushed.is_ok() {
                    oracle.flushed();
                }
                flushed
            }
        };
        if outcome.is_err() {
            return false;
        }
    }
    true
}
