//! A unit in memory that loses power.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sealstone_block_client::BlockError;
use sealstone_block_client::e2e::{DiskKeys, SealedMedium, fast_aead};
use sealstone_block_e2e::{BLOCK_LEN, KeyEpoch, UnitId, UnitKey, UnitKeyRing};

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

type Block = [u8; BLOCK_LEN];

struct SimulatedState {
    blocks: u64,
    stored: BTreeMap<u64, Block>,
    /// Versions of each block that are not durable, in order.
    cached: BTreeMap<u64, Vec<Block>>,
    /// Commands until the power fails.
    left: Option<u64>,
    is_off: bool,
    has_lost: bool,
    random: SimRng,
}

/// A unit with a volatile cache. A power failure keeps any version of each block.
#[derive(Clone)]
pub(crate) struct SimulatedUnit(Arc<Mutex<SimulatedState>>);

impl SimulatedUnit {
    pub(crate) fn new(blocks: u64, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(SimulatedState {
            blocks,
            stored: BTreeMap::new(),
            cached: BTreeMap::new(),
            left: None,
            is_off: false,
            has_lost: false,
            random: SimRng::new(seed ^ 0xABCD),
        })))
    }

    /// The power fails during the command after the next `commands`.
    pub(crate) fn fail_after(&self, commands: u64) {
        self.0.lock().unwrap().left = Some(commands);
    }

    /// Loses power and gets it back; clients of before see nothing of it.
    pub(crate) fn power_failure(&self) {
        let mut state = self.0.lock().unwrap();
        state.lose_cache();
        (state.left, state.is_off, state.has_lost) = (None, false, false);
    }

    /// Loses power and gets it back while clients wait; the next flush reports lost writes.
    pub(crate) fn power_cycle(&self) {
        let mut state = self.0.lock().unwrap();
        state.has_lost |= !state.cached.is_empty();
        state.lose_cache();
    }

    /// Returns a copy of what is stored.
    pub(crate) fn copy(&self) -> Self {
        let state = self.0.lock().unwrap();
        let copy = Self::new(state.blocks, 0);
        copy.0.lock().unwrap().stored = state.stored.clone();
        copy
    }

    /// Replaces what is stored.
    pub(crate) fn restore(&self, other: &Self) {
        let stored = other.0.lock().unwrap().stored.clone();
        let mut state = self.0.lock().unwrap();
        state.cached.clear();
        state.stored = stored;
    }

    pub(crate) fn stored(&self, block: u64) -> Block {
        self.0.lock().unwrap().stored.get(&block).copied().unwrap_or([0; BLOCK_LEN])
    }

    pub(crate) fn change(&self, block: u64, change: impl FnOnce(&mut Block)) {
        change(self.0.lock().unwrap().stored.entry(block).or_insert([0; BLOCK_LEN]));
    }
}

impl SimulatedState {
    fn lose_cache(&mut self) {
        for (block, versions) in std::mem::take(&mut self.cached) {
            let kept = self.random.below(versions.len() as u64 + 1);
            if let Some(version) = (kept as usize).checked_sub(1).and_then(|kept| versions.get(kept)) {
                self.stored.insert(block, *version);
            }
        }
    }

    /// Counts a command. Returns whether the power fails during it.
    fn command(&mut self) -> Result<bool, BlockError> {
        if self.is_off {
            return Err(BlockError::Busy);
        }
        if let Some(left) = &mut self.left {
            self.is_off = *left == 0;
            *left = left.saturating_sub(1);
        }
        Ok(self.is_off)
    }
}

impl SealedMedium for SimulatedUnit {
    fn blocks(&self) -> u64 {
        self.0.lock().unwrap().blocks
    }

    async fn read(&self, block: u64, blocks: u64) -> Result<Vec<u8>, BlockError> {
        tokio::task::yield_now().await;
        let state = self.0.lock().unwrap();
        if state.is_off {
            return Err(BlockError::Busy);
        }
        assert!(block + blocks <= state.blocks);
        let of = |block| match state.cached.get(&block) {
            Some(versions) => *versions.last().unwrap(),
            None => state.stored.get(&block).copied().unwrap_or([0; BLOCK_LEN]),
        };
        Ok((block..block + blocks).flat_map(of).collect())
    }

    async fn write(&self, block: u64, data: Bytes, durable: bool) -> Result<(), BlockError> {
        tokio::task::yield_now().await;
        let mut state = self.0.lock().unwrap();
        let fails = state.command()?;
        let content = data.as_chunks::<BLOCK_LEN>();
        assert!(content.1.is_empty() && block + content.0.len() as u64 <= state.blocks);
        for (block, content) in (block..).zip(content.0) {
            if durable && !fails {
                state.cached.remove(&block);
                state.stored.insert(block, *content);
            } else {
                state.cached.entry(block).or_default().push(*content);
            }
        }
        if fails { Err(BlockError::Busy) } else { Ok(()) }
    }

    async fn unmap(&self, block: u64, blocks: u64) -> Result<(), BlockError> {
        self.write(block, Bytes::from(vec![0; (blocks * BLOCK) as usize]), false).await
    }

    async fn flush(&self) -> Result<(), BlockError> {
        tokio::task::yield_now().await;
        let mut state = self.0.lock().unwrap();
        if state.command()? {
            return Err(BlockError::Busy);
        }
        for (block, versions) in std::mem::take(&mut state.cached) {
            state.stored.insert(block, *versions.last().unwrap());
        }
        if std::mem::take(&mut state.has_lost) { Err(BlockError::LostWrites) } else { Ok(()) }
    }
}
