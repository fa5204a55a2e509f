//! A unit in memory that loses power.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sealstone_block_client::BlockError;
use sealstone_block_client::e2e::{SealedMedium, WriteGuarantee};
use sealstone_block_e2e::BLOCK_LEN;

use crate::history::{BLOCK, SimRng};

type Block = [u8; BLOCK_LEN];

struct SimulatedState {
    blocks: u64,
    stored: BTreeMap<u64, Block>,
    /// Writes of blocks that are not durable, in order, with the number of their command.
    cached: Vec<(u64, u64, Block)>,
    commands: u64,
    /// Commands that were durable before they were acknowledged.
    forced: u64,
    /// Whether a power failure keeps a prefix of the commands. Otherwise it keeps any version of
    /// each block.
    keeps_order: bool,
    /// Whether clients have noticed a power failure since the last flush.
    is_replaced: bool,
    /// Commands until the power fails.
    left: Option<u64>,
    /// Commands until the power fails and returns, and the last command of an earlier client then.
    cycle: Option<(u64, u64)>,
    is_off: bool,
    has_lost: bool,
    random: SimRng,
}

/// A unit with a volatile cache. A power failure keeps any version of each block, or a prefix of
/// the commands.
#[derive(Clone)]
pub(crate) struct SimulatedUnit(Arc<Mutex<SimulatedState>>);

impl SimulatedUnit {
    pub(crate) fn new(blocks: u64, seed: u64, keeps_order: bool) -> Self {
        Self(Arc::new(Mutex::new(SimulatedState {
            blocks,
            stored: BTreeMap::new(),
            cached: Vec::new(),
            commands: 0,
            forced: 0,
            keeps_order,
            is_replaced: true,
            left: None,
            cycle: None,
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
        (state.left, state.is_off, state.has_lost, state.is_replaced) = (None, false, false, true);
    }

    /// Loses power and gets it back while clients wait; the next flush reports lost writes.
    pub(crate) fn power_cycle(&self) {
        let mut state = self.0.lock().unwrap();
        state.has_lost |= !state.cached.is_empty();
        state.is_replaced = true;
        state.lose_cache();
    }

    /// Loses power after this number of commands of the next client, and gets it back at once. The
    /// flush of that client reports its own writes only.
    pub(crate) fn cycle_after(&self, commands: u64) {
        let mut state = self.0.lock().unwrap();
        state.cycle = Some((commands, state.commands));
    }

    /// Returns a copy of what is stored.
    pub(crate) fn copy(&self) -> Self {
        let state = self.0.lock().unwrap();
        let copy = Self::new(state.blocks, 0, state.keeps_order);
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

    pub(crate) fn forced(&self) -> u64 {
        self.0.lock().unwrap().forced
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
        let cached = std::mem::take(&mut self.cached);
        if self.keeps_order {
            let first = cached.first().map_or(0, |(command, ..)| *command);
            let kept = first + self.random.below(self.commands - first + 2);
            let survives = |(command, ..): &&(u64, u64, Block)| *command < kept;
            self.stored.extend(cached.iter().filter(survives).map(|(_, block, content)| (*block, *content)));
            return;
        }
        let mut versions: BTreeMap<u64, Vec<Block>> = BTreeMap::new();
        for (_, block, content) in cached {
            versions.entry(block).or_default().push(content);
        }
        for (block, versions) in versions {
            let kept = self.random.below(versions.len() as u64 + 1);
            if let Some(version) = (kept as usize).checked_sub(1).and_then(|kept| versions.get(kept)) {
                self.stored.insert(block, *version);
            }
        }
    }

    /// Fails an ordered change if earlier ones may have been lost since the last flush.
    fn check_order(&self) -> Result<(), BlockError> {
        if self.keeps_order && self.is_replaced { Err(BlockError::SessionReplaced) } else { Ok(()) }
    }

    fn put(&mut self, block: u64, data: &[u8], is_durable: bool) {
        let content = data.as_chunks::<BLOCK_LEN>();
        assert!(content.1.is_empty() && block + content.0.len() as u64 <= self.blocks);
        self.commands += 1;
        self.forced += u64::from(is_durable);
        for (block, content) in (block..).zip(content.0) {
            if is_durable {
                self.cached.retain(|(_, cached, _)| *cached != block);
                self.stored.insert(block, *content);
            } else {
                self.cached.push((self.commands, block, *content));
            }
        }
    }

    /// Counts a command. Returns whether the power fails during it.
    fn command(&mut self) -> Result<bool, BlockError> {
        if self.is_off {
            return Err(BlockError::Busy);
        }
        match self.cycle.take() {
            Some((0, last)) => {
                self.has_lost |= self.cached.iter().any(|(command, ..)| *command > last);
                self.is_replaced = true;
                self.lose_cache();
            }
            cycle => self.cycle = cycle.map(|(left, last)| (left - 1, last)),
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

    async fn read_into(&self, block: u64, buffer: Vec<u8>) -> Result<Vec<u8>, BlockError> {
        tokio::task::yield_now().await;
        let state = self.0.lock().unwrap();
        if state.is_off {
            return Err(BlockError::Busy);
        }
        let blocks = buffer.len() as u64 / BLOCK;
        assert!(block + blocks <= state.blocks);
        let of = |block| match state.cached.iter().rfind(|(_, cached, _)| *cached == block) {
            Some((.., content)) => *content,
            None => state.stored.get(&block).copied().unwrap_or([0; BLOCK_LEN]),
        };
        Ok((block..block + blocks).flat_map(of).collect())
    }

    async fn write(&self, block: u64, data: Bytes, guarantee: WriteGuarantee) -> Result<(), BlockError> {
        tokio::task::yield_now().await;
        let mut state = self.0.lock().unwrap();
        if guarantee == WriteGuarantee::Ordered {
            state.check_order()?;
        }
        let fails = state.command()?;
        state.put(block, &data, guarantee == WriteGuarantee::Durable && !fails);
        if fails { Err(BlockError::Busy) } else { Ok(()) }
    }

    async fn unmap(&self, block: u64, blocks: u64) -> Result<(), BlockError> {
        tokio::task::yield_now().await;
        let mut state = self.0.lock().unwrap();
        state.check_order()?;
        let fails = state.command()?;
        state.put(block, &vec![0; (blocks * BLOCK) as usize], false);
        if fails { Err(BlockError::Busy) } else { Ok(()) }
    }

    fn keeps_order(&self) -> bool {
        self.0.lock().unwrap().keeps_order
    }

    async fn flush(&self) -> Result<(), BlockError> {
        tokio::task::yield_now().await;
        let mut state = self.0.lock().unwrap();
        if state.command()? {
            return Err(BlockError::Busy);
        }
        let cached = std::mem::take(&mut state.cached);
        state.stored.extend(cached.into_iter().map(|(_, block, content)| (block, content)));
        if std::mem::take(&mut state.has_lost) {
            return Err(BlockError::LostWrites);
        }
        state.is_replaced = false;
        Ok(())
    }
}
