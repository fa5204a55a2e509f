//! A simulated disk with seeded faults: the medium of the crash tests and of the whole-system
//! simulation.
//!
//! Does: loses, tears (at 512-byte sectors) and reorders unsynced writes at a power failure; fails
//! the n-th read, write or sync; can be full; can corrupt bytes.
//! Does not: use time, threads or any randomness but its seed.
//! Contract: one seed and one sequence of calls give one history.
//! Source of truth: the contract of [`Medium`], exactly and nothing beyond it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

pub use crate::contract::SeededRandom;
use crate::medium::{Medium, MediumFile};

/// Unit that the disk writes atomically, in bytes.
pub const SECTOR: u64 = 512;

/// One sector's bytes; `None` is a sector never written, which reads as zeros.
type Sector = Option<Arc<[u8; SECTOR as usize]>>;

/// The simulated disk. Clones are the same disk.
#[derive(Clone)]
pub struct SimMedium {
    state: Arc<Mutex<SimState>>,
}

/// Number of calls of each kind since the disk was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Number of reads.
    pub reads: u64,
    /// Writes, changes of length, discards, deletions, creations.
    pub writes: u64,
    /// Syncs of files and of names.
    pub syncs: u64,
}

/// A fault, at the n-th call of a kind, counted from 1 over the life of the disk as in
/// [`CallCounts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// The n-th read fails with EIO.
    Read(u64),
    /// The n-th write fails with EIO after a random part of it was done.
    Write(u64),
    /// The n-th write fails with ENOSPC after a random part of it was done.
    Full(u64),
    /// The n-th sync fails with EIO; a random part of the pending writes is durable, and no later
    /// sync helps the rest.
    Sync(u64),
    /// The power fails in the n-th write or sync (both counted together).
    Power(u64),
}

#[derive(Clone)]
struct SimState {
    random: SeededRandom,
    nodes: Vec<SimNode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    calls: CallCounts,
    faults: Vec<DiskFault>,
    dead: bool,
    space: u64,
    /// Sectors that cannot be read: file name and sector number.
    bad: BTreeSet<(String, u64)>,
    /// Number of power failures so far.
    boots: u64,
}

/// One file's bytes, by sector.
#[derive(Clone, Default)]
struct SimNode {
    length: u64,
    /// Sectors up to here have space on the disk, written or not.
    allocated: u64,
    current: BTreeMap<u64, Sector>,
    durable_length: u64,
    durable: BTreeMap<u64, Sector>,
    /// Lengths set since the last sync.
    pending_lengths: Vec<u64>,
    /// The versions of each sector since the last sync, in order.
    pending: BTreeMap<u64, Vec<Sector>>,
}

impl SimMedium {
    /// Creates an empty disk without faults or limit.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with(SimState {
            random: SeededRandom::new(seed),
            nodes: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            calls: CallCounts::default(),
            faults: Vec::new(),
            dead: false,
            space: u64::MAX,
            bad: BTreeSet::new(),
            boots: 0,
        })
    }

    fn with(state: SimState) -> Self {
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Adds a fault; each occurs once.
    pub fn fault(&self, fault: DiskFault) {
        self.state.lock().faults.push(fault);
    }

    /// Limits the disk to `bytes` of sectors that were written or allocated; beyond that, calls
    /// fail with ENOSPC.
    pub fn limit_space(&self, bytes: u64) {
        self.state.lock().space = bytes;
    }

    /// Returns the number of calls so far.
    #[must_use]
    pub fn calls(&self) -> CallCounts {
        self.state.lock().calls
    }

    /// Whether the power failed. Then every call fails, until [`crash`](Self::crash) returns the
    /// surviving disk.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.state.lock().dead
    }

    /// Returns a copy of the disk with another seed, to try many futures of one past.
    #[must_use]
    pub fn fork_with(&self, seed: u64) -> Self {
        let mut state = self.state.lock().clone();
        state.random = SeededRandom::new(seed);
        Self::with(state)
    }

    /// Returns an exact copy of the disk including its faults, to try several futures of one past.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::with(self.state.lock().clone())
    }

    /// Fails the power now, if it did not fail already: all handles fail from now on. Returns a
    /// disk with the surviving data: everything synced, and by the seed none, all or any part of
    /// the rest.
    #[must_use]
    pub fn crash(&self) -> Self {
        let mut state = self.state.lock();
        state.dead = true;
        let seed = state.random.next();
        let mut random = state.random.clone();
        let odds = SurvivalOdds::draw(&mut random);
        let mut nodes = Vec::new();
        let mut names = BTreeMap::new();
        let candidates: Vec<(String, [Option<usize>; 2])> = {
            let both = state.names.keys().chain(state.durable_names.keys());
            let both: BTreeSet<&String> = both.collect();
            both.into_iter()
                .map(|name| {
                    (name.clone(), [&state.durable_names, &state.names].map(|m| m.get(name).copied()))
                })
                .collect()
        };
        for (name, [old, new]) in candidates {
            let survivor = if old == new || !odds.happens(&mut random) { old } else { new };
            if let Some(node) = survivor {
                names.insert(name, nodes.len());
                nodes.push(state.nodes[node].survivor(&mut random, odds));
            }
        }
        let durable_names = names.clone();
        let (random, space) = (SeededRandom::new(seed), state.space);
        let (calls, faults) = (CallCounts::default(), Vec::new());
        let (bad, boots) = (state.bad.clone(), state.boots + 1);
        Self::with(SimState {
            random,
            nodes,
            names,
            durable_names,
            calls,
            faults,
            dead: false,
            space,
            bad,
            boots,
        })
    }

    /// Kills the process now, if the power did not fail already: all handles fail from now on.
    /// Returns the same disk with all writes, synced or not, as the system keeps them until a power
    /// failure.
    #[must_use]
    pub fn kill(&self) -> Self {
        let mut state = self.state.lock();
        state.dead = true;
        let seed = state.random.next();
        let random = SeededRandom::new(seed);
        Self::with(SimState { random, dead: false, faults: Vec::new(), ..state.clone() })
    }

    /// Makes every read of this sector fail with EIO until it is written again, as disks do.
    pub fn spoil(&self, name: &str, offset: u64) {
        self.state.lock().bad.insert((name.to_owned(), offset / SECTOR));
    }

    /// Makes all sectors readable again.
    pub fn heal(&self) {
        self.state.lock().bad.clear();
    }

    /// Flips bits of a byte in place, durably, as corruption does. Does nothing if there is no such
    /// file.
    pub fn rot(&self, name: &str, offset: u64, bits: u8) {
        let mut state = self.state.lock();
        let Some(&node) = state.names.get(name) else { return };
        let node = &mut state.nodes[node];
        for sectors in [&mut node.current, &mut node.durable] {
            let sector = sectors.entry(offset / SECTOR).or_default();
            Arc::make_mut(sector.get_or_insert_with(zeros))[(offset % SECTOR) as usize] ^= bits;
        }
    }
}

/// Percentage of the pending writes that survives: 0 is nothing, 100 all.
#[derive(Clone, Copy)]
struct SurvivalOdds(u64);

impl SurvivalOdds {
    fn draw(random: &mut SeededRandom) -> Self {
        Self([0, 100, 50, 50, 10, 90, 98][random.below(7) as usize])
    }

    fn happens(self, random: &mut SeededRandom) -> bool {
        random.below(100) < self.0
    }
}

impl SimNode {
    /// Returns the file after a power loss, with the surviving data durable.
    fn survivor(&self, random: &mut SeededRandom, odds: SurvivalOdds) -> Self {
        let mut sectors = self.durable.clone();
        for (&index, versions) in &self.pending {
            if odds.happens(random) {
                // Mostly the last version; any earlier one may be what reached the disk.
                let pick = if odds.0 == 100 || random.below(4) > 0 {
                    versions.len() - 1
                } else {
                    random.below(versions.len() as u64) as usize
                };
                sectors.insert(index, versions[pick].clone());
            }
        }
        let length = if self.pending_lengths.is_empty() || !odds.happens(random) {
            self.durable_length
        } else {
            self.pending_lengths[random.below(self.pending_lengths.len() as u64) as usize]
        };
        let length = if odds.0 == 100 { self.length } else { length };
        let allocated = self.allocated.min(length.div_ceil(SECTOR));
        let mut node = Self { length, current: sectors, allocated, ..Self::default() };
        node.cut();
        node.durable.clone_from(&node.current);
        node.durable_length = node.length;
        node
    }

    /// Drops and zeroes data beyond the length.
    fn cut(&mut self) {
        let mut beyond = self.current.split_off(&self.length.div_ceil(SECTOR));
        beyond.clear();
        if let Some(Some(last)) = self.current.get_mut(&(self.length / SECTOR)) {
            Arc::make_mut(last)[(self.length % SECTOR) as usize..].fill(0);
        }
    }

    fn make_durable(&mut self) {
        for index in std::mem::take(&mut self.pending).into_keys() {
            match self.current.get(&index) {
                Some(sector) => self.durable.insert(index, sector.clone()),
                None => self.durable.remove(&index),
            };
        }
        self.durable_length = self.length;
        self.pending_lengths.clear();
    }

    /// Fails a sync: some pending writes are durable, the rest counts as clean and is lost in a
    /// crash.
    fn half_durable(&mut self, random: &mut SeededRandom) {
        let survivor = self.survivor(random, SurvivalOdds(50));
        self.durable = survivor.durable;
        self.durable_length = survivor.durable_length;
        self.pending.clear();
        self.pending_lengths.clear();
    }

    fn write_sector(&mut self, index: u64, within: usize, bytes: &[u8]) {
        let sector = self.current.entry(index).or_default().get_or_insert_with(zeros);
        Arc::make_mut(sector)[within..within + bytes.len()].copy_from_slice(bytes);
        let copy = Some(sector.clone());
        self.pending.entry(index).or_default().push(copy);
    }

    fn set_length(&mut self, length: u64) {
        if length < self.length {
            let gone: Vec<u64> = self.current.range(length / SECTOR..).map(|(&index, _)| index).collect();
            self.length = length;
            self.allocated = self.allocated.min(length.div_ceil(SECTOR));
            self.cut();
            for index in gone {
                let now = self.current.get(&index).cloned().flatten();
                self.pending.entry(index).or_default().push(now);
            }
        }
        self.length = length;
        self.pending_lengths.push(length);
    }
}

fn zeros() -> Arc<[u8; SECTOR as usize]> {
    Arc::new([0; SECTOR as usize])
}

impl CallOutcome {
    fn error(&self) -> io::Error {
        match self {
            Self::Full => io::ErrorKind::StorageFull.into(),
            _ => SimState::eio(),
        }
    }
}

/// Outcome of a call.
enum CallOutcome {
    Good,
    /// Fails with EIO, half done.
    Bad,
    /// Fails with ENOSPC, half done.
    Full,
    /// The power fails, half done.
    Last,
}

impl SimState {
    fn eio() -> io::Error {
        io::Error::from_raw_os_error(5)
    }

    fn outcome(&mut self, strikes: impl Fn(&DiskFault, &CallCounts) -> bool) -> io::Result<CallOutcome> {
        if self.dead {
            return Err(Self::eio());
        }
        let calls = self.calls;
        let Some(position) = self.faults.iter().position(|fault| strikes(fault, &calls)) else {
            return Ok(CallOutcome::Good);
        };
        match self.faults.swap_remove(position) {
            DiskFault::Power(_) => {
                self.dead = true;
                Ok(CallOutcome::Last)
            }
            DiskFault::Full(_) => Ok(CallOutcome::Full),
            _ => Ok(CallOutcome::Bad),
        }
    }

    fn read_outcome(&mut self) -> io::Result<()> {
        self.calls.reads += 1;
        match self.outcome(|fault, calls| *fault == DiskFault::Read(calls.reads))? {
            CallOutcome::Good => Ok(()),
            _ => Err(Self::eio()),
        }
    }

    fn write_outcome(&mut self) -> io::Result<CallOutcome> {
        self.calls.writes += 1;
        self.outcome(|fault, calls| {
            [
                DiskFault::Write(calls.writes),
                DiskFault::Full(calls.writes),
                DiskFault::Power(calls.writes + calls.syncs),
            ]
            .contains(fault)
        })
    }

    fn sync_outcome(&mut self) -> io::Result<CallOutcome> {
        self.calls.syncs += 1;
        self.outcome(|fault, calls| {
            *fault == DiskFault::Sync(calls.syncs) || *fault == DiskFault::Power(calls.writes + calls.syncs)
        })
    }

    /// Runs a change that is done completely or not at all.
    fn whole(&mut self, change: impl FnOnce(&mut Self)) -> io::Result<()> {
        match self.write_outcome()? {
            CallOutcome::Good => {
                change(self);
                Ok(())
            }
            bad => {
                if self.random.below(2) == 0 {
                    change(self);
                }
                Err(bad.error())
            }
        }
    }

    fn is_bad(&self, node: usize, offset: u64, length: usize) -> bool {
        let touched = offset / SECTOR..(offset + length as u64).div_ceil(SECTOR);
        self.bad.iter().any(|(name, sector)| touched.contains(sector) && self.names.get(name) == Some(&node))
    }

    /// Returns the used space in bytes.
    fn used(&self) -> u64 {
        let sectors = |node: &SimNode| {
            let beyond = match node.allocated {
                0 => node.current.len(),
                allocated => node.current.range(allocated..).count(),
            };
            node.allocated + beyond as u64
        };
        self.names.values().map(|&node| sectors(&self.nodes[node])).sum::<u64>() * SECTOR
    }

    /// Whether the disk lacks space for this many more sectors.
    fn is_full(&self, more: impl FnOnce(&Self) -> u64) -> bool {
        self.space != u64::MAX && {
            let more = more(self);
            more > 0 && self.used() + more * SECTOR > self.space
        }
    }
}

impl Medium for SimMedium {
    fn open(&self, name: &str, create: bool) -> io::Result<Arc<dyn MediumFile>> {
        let mut state = self.state.lock();
        if state.dead {
            return Err(SimState::eio());
        }
        if !state.names.contains_key(name) {
            if !create {
                return Err(io::ErrorKind::NotFound.into());
            }
            state.whole(|state| {
                state.names.insert(name.to_owned(), state.nodes.len());
                state.nodes.push(SimNode::default());
            })?;
        }
        let node = state.names[name];
        Ok(Arc::new(SimFile { medium: self.clone(), node }))
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        if !state.dead && !state.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.whole(|state| {
            state.names.remove(name);
        })
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut state = self.state.lock();
        state.read_outcome()?;
        Ok(state.names.keys().cloned().collect())
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        Some(u128::from(self.state.lock().boots + 1).to_le_bytes())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        match state.sync_outcome()? {
            CallOutcome::Good => {
                state.durable_names = state.names.clone();
                Ok(())
            }
            bad => Err(bad.error()),
        }
    }
}

/// A handle to one simulated file.
struct SimFile {
    medium: SimMedium,
    node: usize,
}

impl MediumFile for SimFile {
    fn boot_id(&self) -> Option<[u8; 16]> {
        self.medium.boot_id()
    }

    fn length(&self) -> io::Result<u64> {
        let mut state = self.medium.state.lock();
        state.read_outcome()?;
        Ok(state.nodes[self.node].length)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.medium.state.lock().whole(|state| state.nodes[self.node].set_length(length))
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let mut state = self.medium.state.lock();
        let sectors = length.div_ceil(SECTOR);
        let node = &state.nodes[self.node];
        if !state.dead && node.length >= length && node.allocated >= sectors {
            return Ok(());
        }
        let is_new = |state: &SimState| {
            let node = &state.nodes[self.node];
            let from = node.allocated.min(sectors);
            sectors - from - node.current.range(from..sectors).count() as u64
        };
        if state.is_full(is_new) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.whole(|state| {
            let node = &mut state.nodes[self.node];
            node.allocated = node.allocated.max(sectors);
            if node.length < length {
                node.set_length(length);
            }
        })
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut state = self.medium.state.lock();
        state.read_outcome()?;
        if state.is_bad(self.node, offset, into.len()) {
            return Err(SimState::eio());
        }
        let node = &state.nodes[self.node];
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > node.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (index, within, range) in sectors(offset, into.len()) {
            let target = &mut into[range];
            match node.current.get(&index) {
                Some(Some(sector)) => target.copy_from_slice(&sector[within..within + target.len()]),
                _ => target.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.medium.state.lock();
        let state = &mut *state;
        let outcome = state.write_outcome()?;
        let touched = offset / SECTOR..(offset + data.len() as u64).div_ceil(SECTOR);
        let is_new =
            |node: &SimNode, sector: &u64| *sector >= node.allocated && !node.current.contains_key(sector);
        if state.is_full(|state| {
            touched.clone().filter(|sector| is_new(&state.nodes[self.node], sector)).count() as u64
        }) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if matches!(outcome, CallOutcome::Good) {
            let SimState { bad, names, .. } = state;
            bad.retain(|(name, sector)| !touched.contains(sector) || names.get(name) != Some(&self.node));
        }
        let node = &mut state.nodes[self.node];
        let good = matches!(outcome, CallOutcome::Good);
        let odds = SurvivalOdds(state.random.below(101));
        let mut reached = 0;
        for (index, within, range) in sectors(offset, data.len()) {
            if good || odds.happens(&mut state.random) {
                reached = offset + range.end as u64;
                node.write_sector(index, within, &data[range]);
            }
        }
        if reached > node.length {
            node.set_length(reached);
        }
        if good { Ok(()) } else { Err(outcome.error()) }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.medium.state.lock();
        let state = &mut *state;
        let outcome = state.sync_outcome()?;
        let node = &mut state.nodes[self.node];
        match outcome {
            CallOutcome::Good => {
                node.make_durable();
                Ok(())
            }
            CallOutcome::Bad | CallOutcome::Full => {
                node.half_durable(&mut state.random);
                Err(SimState::eio())
            }
            CallOutcome::Last => Err(SimState::eio()),
        }
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.medium.state.lock().whole(|state| {
            // Discarded bytes are overwritten with a pattern, which exposes code that still reads
            // them.
            let node = &mut state.nodes[self.node];
            for (index, within, range) in sectors(offset, length as usize) {
                if node.current.contains_key(&index) {
                    node.write_sector(index, within, &vec![0xDC; range.len()]);
                }
            }
        })
    }
}

/// Splits a byte range into (sector, offset in it, range of the buffer).
fn sectors(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let position = offset + done as u64;
        let within = (position % SECTOR) as usize;
        let stop = length.min(done + SECTOR as usize - within);
        let range = done..stop;
        done = stop;
        Some((position / SECTOR, within, range))
    })
}
