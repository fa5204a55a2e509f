//! A lazily protected unit, as a target uses it.
//!
//! Does: writes, reads, reports of clients, verification, commits.
//! Does not: reservations, mode pages, timers.
//! Contract: operations are serialised by one lock. A commit writes the block, its slot of keys and
//! the floor of its versions in one scope of the store, so a crash leaves all or nothing of it.
//! Truth: `docs/design/block-lazy.md`.

use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_block_protection::{BlockKeys, BlockSeal, KeyScheme, MAC_LEN, MacTag, verify_block};
use sealstone_store::{ObjectStore, StoreError};
use subtle::ConstantTimeEq as _;

use crate::config::{LazyUnit, WriterId};
use crate::damage::{DamageList, DamagedBlocks};
use crate::error::LazyError;
use crate::index::{VersionEntry, VersionIndex};
use crate::key_pages::KeyPages;
use crate::layout::{self, KEY_FILES_MAX, KeySlot, VersionNumber};
use crate::policy::{ReadVerdict, RejectedVersion, VersionPolicy};
use crate::secret_check::check_secret;
use crate::status::LazyStatus;
use crate::unit_keys::{NEXT_VERSION, StoredUnitKeys, load_state};
use crate::version_log::{NewVersion, RecordPlace, VersionLog};
use crate::window::WindowHistogram;

/// Bytes of one operation.
const TRANSFER_MAX: u64 = 16 << 20;
/// Blocks that are verified and committed in one step, under the lock.
const COLLECT_BATCH: usize = 128;
/// Version numbers that are reserved at once.
const VERSION_CHUNK: u64 = 1 << 16;
/// Deleted writes that are kept until the caller takes them; more are only counted, except the
/// first one of each writer.
const REJECTED_MAX: usize = 1024;

/// A write of consecutive blocks.
#[derive(Clone, Copy, Debug)]
pub struct LazyWrite<'a> {
    /// First block.
    pub first_lba: u64,
    /// Keys of each block.
    pub keys: &'a [BlockKeys],
    /// MAC of each block; empty at levels without.
    pub macs: &'a [MacTag],
    /// The blocks as their writer sealed them.
    pub data: &'a [u8],
    /// The writer.
    pub writer: WriterId,
    /// Number of the session, from [`LazyVolume::begin_session`]; 0 for the paper's profiles.
    pub session: u32,
    /// Whether the write must survive a power failure before it is acknowledged.
    pub durable: bool,
}

/// Blocks as they were read.
#[derive(Debug, PartialEq, Eq)]
pub struct VersionedBlocks {
    /// The blocks as their writers sealed them.
    pub data: Vec<u8>,
    /// Keys and MAC of each block.
    pub seals: Vec<BlockSeal>,
    /// Version of each block.
    pub versions: Vec<VersionNumber>,
}

/// A lazily protected unit.
pub struct LazyVolume {
    store: Arc<dyn ObjectStore>,
    unit: LazyUnit,
    policy: VersionPolicy,
    state: Mutex<VolumeState>,
}

struct VolumeState {
    /// Keys of the unit, in the profile that has any.
    unit_keys: Option<StoredUnitKeys>,
    /// Buffer for a block that is verified.
    scratch: Vec<u8>,
    pages: KeyPages,
    log: VersionLog,
    index: VersionIndex,
    next_version: u64,
    reserved_version: u64,
    rejected: Vec<RejectedVersion>,
    damage: DamageList,
    window: WindowHistogram,
    status: LazyStatus,
}

impl std::fmt::Debug for LazyVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LazyVolume").field("unit", &self.unit).finish_non_exhaustive()
    }
}

/// Outcome of the verification of one block.
struct CollectedBlock {
    lba: u64,
    /// The data to commit; `None` leaves the committed block.
    data: Option<Vec<u8>>,
    slot: KeySlot,
    rejected: Vec<RejectedVersion>,
}

impl LazyVolume {
    /// Opens the unit, and finds its unverified versions again. Creates what a new unit lacks.
    ///
    /// # Errors
    /// `Level`, `PageSecret`, `Range` or `LogTooSmall` if the description contradicts itself;
    /// `WrongPageSecret`, `UnitKeysDamaged`, `LogDamaged` or `Store` if the unit cannot be read.
    pub fn open(store: Arc<dyn ObjectStore>, unit: LazyUnit, now_ms: u64) -> Result<Self, LazyError> {
        let policy = VersionPolicy::of(unit.profile);
        let scheme = unit.level.key_scheme().ok_or(LazyError::Level(unit.level.name()))?;
        if policy.has_unit_keys != scheme.has_generations() {
            return Err(LazyError::Level(unit.level.name()));
        }
        if policy.seals_keys != unit.secret.is_some() {
            return Err(LazyError::PageSecret(unit.profile.name()));
        }
        if unit.blocks > KEY_FILES_MAX * layout::BLOCKS_PER_KEY_FILE {
            return Err(LazyError::Range { lba: 0, count: unit.blocks });
        }
        let (next_version, unit_keys) = load_state(&*store, &unit, policy.has_unit_keys)?;
        let mut pages = KeyPages::new(&unit, scheme);
        check_secret(&*store, &unit, &pages)?;
        let (log, found) = VersionLog::open(&*store, &unit, scheme)?;
        let (mut index, mut damage) = (VersionIndex::default(), DamageList::default());
        for found in found {
            let floor = match pages.slot(&*store, found.lba) {
                // The version may be superseded. It is kept, but not read.
                Err(error) if error.is_local_damage() => {
                    damage.add_unverifiable(found.lba);
                    VersionNumber::default()
                }
                slot => slot?.version,
            };
            if found.version > floor {
                index.push(found.lba, VersionEntry::new(found.version, found.place, now_ms, None));
            }
        }
        let state = VolumeState {
            unit_keys,
            scratch: Vec::new(),
            pages,
            log,
            index,
            next_version,
            reserved_version: next_version,
            rejected: Vec::new(),
            damage,
            window: WindowHistogram::default(),
            status: LazyStatus::default(),
        };
        let longest = unit.blocks.min(TRANSFER_MAX >> unit.block.shift());
        let (needed, max) = (longest * state.log.record_len(), unit.limits.log_bytes_max);
        // Where writes are never verified at once, all of them need space of the log.
        if policy.eager_percent >= 100 && needed > max {
            return Err(LazyError::LogTooSmall { max, needed });
        }
        Ok(Self { store, unit, policy, state: Mutex::new(state) })
    }

    /// Whether a unit has keys and versions: it was opened before.
    ///
    /// # Errors
    /// If the store fails.
    pub fn has_state(store: &dyn ObjectStore, lun: u16) -> Result<bool, StoreError> {
        match store.stat(layout::state_object(lun)) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes keys and versions of a unit, not its blocks.
    ///
    /// # Errors
    /// If the store fails.
    pub fn remove(store: &dyn ObjectStore, lun: u16) -> Result<(), StoreError> {
        loop {
            let listed = store.list(layout::first_object(lun), 64)?;
            let own = listed.iter().take_while(|(id, _)| layout::is_of_unit(lun, *id));
            let mut removed = false;
            for (id, _) in own {
                store.remove(*id)?;
                removed = true;
            }
            if !removed {
                return Ok(());
            }
        }
    }

    fn check_extent(&self, lba: u64, count: u64) -> Result<(), LazyError> {
        let fits = lba.checked_add(count).is_some_and(|end| end <= self.unit.blocks);
        let most = TRANSFER_MAX >> self.unit.block.shift();
        if fits && (1..=most).contains(&count) { Ok(()) } else { Err(LazyError::Range { lba, count }) }
    }

    /// Writes blocks: as unverified versions, or verified if the policy requires it.
    ///
    /// # Errors
    /// `Busy` if the log is full; `NotAuthentic` if a block had to be verified at once and failed;
    /// see [`LazyError`].
    pub fn write(&self, write: LazyWrite<'_>, now_ms: u64) -> Result<(), LazyError> {
        let LazyWrite { first_lba, keys, macs, data, .. } = write;
        let scheme = self.unit.level.key_scheme().ok_or(LazyError::Level(self.unit.level.name()))?;
        let expected_macs = if scheme.has_authentication() { keys.len() } else { 0 };
        if keys.len() * self.unit.block.bytes() != data.len() || macs.len() != expected_macs {
            return Err(LazyError::Shape { data: data.len(), keys: keys.len(), macs: macs.len() });
        }
        self.check_extent(first_lba, keys.len() as u64)?;
        if let Some(at) = keys.iter().position(BlockKeys::is_unwritten) {
            return Err(LazyError::ZeroKeys(first_lba + at as u64));
        }
        {
            let mut state = self.state.lock();
            if let Some(stored) = &state.unit_keys {
                let is_current = stored.keys.is_current(write.session);
                let is_own = |keys: &BlockKeys| is_current && keys.generation.session() == write.session;
                if let Some(at) = keys.iter().position(|keys| !is_own(keys)) {
                    return Err(LazyError::StaleGeneration(first_lba + at as u64));
                }
            }
            if scheme.has_authentication() {
                self.write_versions(&mut state, write, now_ms)?;
            } else {
                // The record of the session that carried the blocks had a MAC.
                self.commit_write(&mut state, write)?;
            }
        }
        if write.durable {
            self.store.flush()?;
        }
        Ok(())
    }

    fn write_versions(
        &self,
        state: &mut VolumeState,
        write: LazyWrite<'_>,
        now_ms: u64,
    ) -> Result<(), LazyError> {
        let limits = &self.unit.limits;
        let count = write.keys.len() as u64;
        let used = state.log.used() + count * state.log.record_len();
        let is_full =
            used.saturating_mul(100) > limits.log_bytes_max.saturating_mul(self.policy.eager_percent);
        let is_eager = self.policy.eager_percent < 100 && is_full;
        if is_eager || (write.durable && self.policy.verifies_at_flush) {
            let blocks = write.data.chunks_exact(self.unit.block.bytes());
            for ((lba, block), (keys, mac)) in
                (write.first_lba..).zip(blocks).zip(write.keys.iter().zip(write.macs))
            {
                if !self.is_authentic(state, lba, keys, block, mac) {
                    return Err(LazyError::NotAuthentic(lba));
                }
            }
            state.status.eager += 1;
            return self.commit_write(state, write);
        }
        if used > limits.log_bytes_max {
            state.status.busy += 1;
            return Err(LazyError::Busy { used: state.log.used(), max: limits.log_bytes_max });
        }
        let crowded = state.index.blocks_in(write.first_lba, count);
        let crowded: Vec<u64> = (crowded.into_iter())
            .filter(|lba| state.index.versions(*lba).len() >= limits.versions_max)
            .collect();
        if let Some(error) = self.collect(state, &crowded, now_ms)? {
            return Err(error);
        }
        let scope = self.store.begin();
        let first_version = self.take_versions(state, count)?;
        let blocks = write.data.chunks_exact(self.unit.block.bytes());
        let mut versions = Vec::with_capacity(write.keys.len());
        for (at, (data, (keys, mac))) in (0..).zip(blocks.zip(write.keys.iter().zip(write.macs))) {
            let version = VersionNumber::new(first_version + at).ok_or(LazyError::VersionsExhausted)?;
            let seal = BlockSeal { keys: keys.clone(), mac: *mac };
            versions.push(NewVersion { lba: write.first_lba + at, version, seal, data });
        }
        let places = state.log.append(&*self.store, &versions)?;
        scope.end()?;
        for (new, place) in versions.iter().zip(places) {
            let entry = VersionEntry::new(new.version, place, now_ms, Some(write.writer));
            state.index.push(new.lba, entry);
        }
        Ok(())
    }

    /// Whether a stored block is authentic.
    fn is_authentic(
        &self,
        state: &mut VolumeState,
        lba: u64,
        keys: &BlockKeys,
        data: &[u8],
        mac: &MacTag,
    ) -> bool {
        match &state.unit_keys {
            Some(stored) => stored.keys.verify_block(lba, keys, data, mac, &mut state.scratch),
            None => verify_block(self.unit.profile, lba, keys, data, mac),
        }
    }

    pub(crate) const fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    pub(crate) const fn unit(&self) -> &LazyUnit {
        &self.unit
    }

    /// Runs an operation on the keys of the unit.
    pub(crate) fn with_unit_keys<T>(
        &self,
        operation: impl FnOnce(&mut StoredUnitKeys) -> Result<T, LazyError>,
    ) -> Result<T, LazyError> {
        let mut state = self.state.lock();
        operation(state.unit_keys.as_mut().ok_or(LazyError::NoUnitKeys(self.unit.profile.name()))?)
    }

    /// Reserves version numbers, durably with the scope that is open, and returns the first one.
    fn take_versions(&self, state: &mut VolumeState, count: u64) -> Result<u64, LazyError> {
        let first = state.next_version;
        let end = first + count;
        if end > state.reserved_version {
            let reserved = end + VERSION_CHUNK;
            VersionNumber::new(reserved).ok_or(LazyError::VersionsExhausted)?;
            let object = layout::state_object(self.unit.lun);
            self.store.set_attribute(object, NEXT_VERSION, &reserved.to_be_bytes())?;
            state.reserved_version = reserved;
        }
        state.next_version = end;
        Ok(first)
    }

    /// Writes blocks as committed ones. All earlier versions of them are superseded.
    fn commit_write(&self, state: &mut VolumeState, write: LazyWrite<'_>) -> Result<(), LazyError> {
        let count = write.keys.len() as u64;
        let scope = self.store.begin();
        let first_version = self.take_versions(state, count)?;
        let mut slots = Vec::with_capacity(write.keys.len());
        for (at, keys) in (0..).zip(write.keys) {
            let version = VersionNumber::new(first_version + at).ok_or(LazyError::VersionsExhausted)?;
            let mac = usize::try_from(at).ok().and_then(|at| write.macs.get(at)).copied();
            let seal = BlockSeal { keys: keys.clone(), mac: mac.unwrap_or([0; MAC_LEN]) };
            slots.push((write.first_lba + at, KeySlot { seal, write_lost: false, version }));
        }
        self.commit_slots(state, &slots, &[(write.first_lba, write.data)])?;
        scope.end()?;
        let floor = slots.last().map(|(_, slot)| slot.version).unwrap_or_default();
        self.forget(state, (write.first_lba, count), floor)
    }

    /// Writes blocks and slots. Space is reserved first: a full store changes neither.
    fn commit_slots(
        &self,
        state: &mut VolumeState,
        slots: &[(u64, KeySlot)],
        data: &[(u64, &[u8])],
    ) -> Result<(), LazyError> {
        state.pages.reserve(&*self.store, slots.iter().map(|(lba, _)| *lba))?;
        for (lba, bytes) in data {
            self.store.write(self.unit.data, lba << self.unit.block.shift(), bytes)?;
        }
        state.pages.change(&*self.store, slots)
    }

    /// Removes versions that slots on the medium supersede: those up to their floor.
    fn forget(
        &self,
        state: &mut VolumeState,
        (first, count): (u64, u64),
        floor: VersionNumber,
    ) -> Result<(), LazyError> {
        for lba in state.index.blocks_in(first, count) {
            state.index.remove_until(lba, floor);
            state.damage.remove(lba);
        }
        state.damage.remove_corrupt(&(first..first + count));
        state.log.trim(&*self.store, state.index.oldest_segment())
    }

    /// Reads blocks in the version that is `back` writes before the newest one. `paper+safe` has
    /// only the newest.
    ///
    /// # Errors
    /// `WriteLost` if the newest acknowledged write of a block was deleted; `NoVersion` if there is
    /// no version of this age; see [`LazyError`].
    pub fn read(&self, first_lba: u64, count: u64, back: usize) -> Result<VersionedBlocks, LazyError> {
        self.check_extent(first_lba, count)?;
        let mut data = vec![0; usize::try_from(count << self.unit.block.shift()).unwrap_or(0)];
        let (seals, versions) = self.read_into(first_lba, &mut data, back)?;
        Ok(VersionedBlocks { data, seals, versions })
    }

    /// As [`Self::read`], into a buffer of whole blocks. Returns the seal and the version of each.
    ///
    /// # Errors
    /// As [`Self::read`]; the content of the buffer is then unspecified.
    pub fn read_into(
        &self,
        first_lba: u64,
        data: &mut [u8],
        back: usize,
    ) -> Result<(Vec<BlockSeal>, Vec<VersionNumber>), LazyError> {
        self.check_extent(first_lba, data.len() as u64 >> self.unit.block.shift())?;
        if back > 0 && !self.policy.commits_on_report {
            return Err(LazyError::NoVersion { lba: first_lba, back });
        }
        let mut state = self.state.lock();
        let block = self.unit.block.bytes();
        let offset = first_lba << self.unit.block.shift();
        let read = self.store.read(self.unit.data, offset, data)?;
        if read != data.len() {
            return Err(StoreError::IndexDamaged { object: self.unit.data }.into());
        }
        let mut seals = Vec::with_capacity(data.len() / block);
        let mut versions = Vec::with_capacity(data.len() / block);
        for (lba, block) in (first_lba..).zip(data.chunks_exact_mut(block)) {
            if state.damage.is_unverifiable(lba) {
                // Fails while the damage lasts. Without the floor, a version may be superseded.
                state.pages.slot(&*self.store, lba)?;
            }
            let waiting = state.index.versions(lba);
            if let Some(entry) = waiting.len().checked_sub(1 + back).map(|at| waiting[at]) {
                let (seal, stored) = self.read_version(&state.log, lba, entry)?;
                block.copy_from_slice(&stored);
                seals.push(seal);
                versions.push(entry.version);
            } else if back > waiting.len() {
                return Err(LazyError::NoVersion { lba, back });
            } else {
                let slot = state.pages.slot(&*self.store, lba)?;
                if slot.write_lost {
                    return Err(LazyError::WriteLost(lba));
                }
                seals.push(slot.seal);
                versions.push(slot.version);
            }
        }
        Ok((seals, versions))
    }

    fn read_version(
        &self,
        log: &VersionLog,
        lba: u64,
        entry: VersionEntry,
    ) -> Result<(BlockSeal, Vec<u8>), LazyError> {
        let VersionEntry { version, segment, offset, .. } = entry;
        log.read(&*self.store, lba, version, RecordPlace { segment, offset })
    }

    /// Processes a client's report about a block that it read. `paper` commits the version of a
    /// success, and deletes older ones and newer ones with a failure. `paper+safe` ignores a
    /// success, and verifies the block itself after a failure.
    ///
    /// # Errors
    /// See [`LazyError`].
    pub fn report(
        &self,
        lba: u64,
        version: VersionNumber,
        verdict: ReadVerdict,
        now_ms: u64,
    ) -> Result<(), LazyError> {
        self.check_extent(lba, 1)?;
        let mut state = self.state.lock();
        let waiting = state.index.versions(lba);
        let Some(newest) = waiting.last().map(|entry| entry.version) else { return Ok(()) };
        if self.policy.commits_on_report {
            if verdict == ReadVerdict::Corrupt {
                state.index.mark_corrupt(lba, version);
                return Ok(());
            }
            let entry = waiting.iter().copied().find(|entry| entry.version == version);
            let floor = state.index.floor_after_success(lba, version);
            let mut slot = state.pages.slot(&*self.store, lba)?;
            let mut data = None;
            match entry {
                Some(entry) => {
                    let (seal, stored) = self.read_version(&state.log, lba, entry)?;
                    slot.seal = seal;
                    data = Some(stored);
                }
                // A version that is gone, or the committed one with nothing to delete.
                None if version != slot.version || version == floor => return Ok(()),
                None => {}
            }
            slot.version = floor;
            let scope = self.store.begin();
            let data: Vec<(u64, &[u8])> = data.iter().map(|data| (lba, &data[..])).collect();
            self.commit_slots(&mut state, &[(lba, slot)], &data)?;
            scope.end()?;
            return self.forget(&mut state, (lba, 1), floor);
        }
        if verdict == ReadVerdict::Authentic {
            // A hint only: the target verifies the block itself, in time.
            return Ok(());
        }
        let rejected = state.status.rejected;
        self.collect(&mut state, &[lba], now_ms)?;
        if version == newest && state.status.rejected == rejected {
            state.status.false_reports += 1;
        }
        Ok(())
    }

    /// As [`Self::report`], about the version with this MAC. An unknown MAC has no effect on an
    /// authentic report.
    ///
    /// # Errors
    /// See [`LazyError`].
    pub fn report_mac(
        &self,
        lba: u64,
        mac: &MacTag,
        verdict: ReadVerdict,
        now_ms: u64,
    ) -> Result<(), LazyError> {
        self.check_extent(lba, 1)?;
        let version = {
            let mut state = self.state.lock();
            let waiting = state.index.versions(lba).to_vec();
            if waiting.is_empty() {
                let is_checked = verdict == ReadVerdict::Corrupt && !self.policy.commits_on_report;
                return if is_checked { self.verify_committed(&mut state, lba) } else { Ok(()) };
            }
            let has_mac = |seal: &BlockSeal| bool::from(seal.mac.ct_eq(mac));
            let mut found = None;
            for entry in waiting.iter().rev() {
                match self.read_version(&state.log, lba, *entry) {
                    Ok((seal, _)) if has_mac(&seal) => {
                        found = Some(entry.version);
                        break;
                    }
                    Err(error)
                        if !error.is_local_damage() && !matches!(error, LazyError::LogDamaged { .. }) =>
                    {
                        return Err(error);
                    }
                    _ => {}
                }
            }
            match (found, verdict) {
                (Some(version), _) => version,
                // The committed block, or a version that is gone or was changed on its way.
                (None, ReadVerdict::Authentic) => {
                    let slot = state.pages.slot(&*self.store, lba)?;
                    if !has_mac(&slot.seal) {
                        return Ok(());
                    }
                    slot.version
                }
                (None, ReadVerdict::Corrupt) => VersionNumber::default(),
            }
        };
        self.report(lba, version, verdict, now_ms)
    }

    /// Verifies the committed block after a report: the medium may have changed it, or the
    /// network.
    fn verify_committed(&self, state: &mut VolumeState, lba: u64) -> Result<(), LazyError> {
        let slot = state.pages.slot(&*self.store, lba)?;
        let has_macs = self.unit.level.key_scheme().is_some_and(KeyScheme::has_authentication);
        if slot.write_lost || !has_macs {
            return Ok(());
        }
        let mut data = vec![0; self.unit.block.bytes()];
        self.store.read(self.unit.data, lba << self.unit.block.shift(), &mut data)?;
        let BlockSeal { keys, mac } = &slot.seal;
        let is_authentic = match keys.is_unwritten() {
            true => data.iter().all(|byte| *byte == 0),
            false => self.is_authentic(state, lba, keys, &data, mac),
        };
        if is_authentic {
            state.damage.remove(lba);
            state.status.false_reports += 1;
        } else {
            state.damage.add_corrupt(lba);
        }
        Ok(())
    }

    /// Verifies blocks, newest version first: commits the first one that is authentic, and deletes
    /// the rest. Returns the error of the first block that cannot be verified; the other blocks are
    /// verified.
    fn collect(
        &self,
        state: &mut VolumeState,
        lbas: &[u64],
        now_ms: u64,
    ) -> Result<Option<LazyError>, LazyError> {
        let mut damaged = None;
        let mut lbas = lbas.to_vec();
        lbas.sort_unstable();
        for batch in lbas.chunks(COLLECT_BATCH) {
            let mut collected = Vec::with_capacity(batch.len());
            let places = batch.iter().map(|lba| state.index.versions(*lba).last().map(VersionEntry::place));
            let runs = state.log.run_lengths(&places.collect::<Vec<_>>());
            for (lba, run) in batch.iter().zip(runs) {
                let versions = state.index.versions(*lba).to_vec();
                let Some(newest) = versions.last() else { continue };
                match self.verify_versions(state, *lba, newest.version, &versions, run) {
                    Err(error) if error.is_local_damage() => {
                        state.damage.add_unverifiable(*lba);
                        damaged.get_or_insert(error);
                    }
                    block => {
                        collected.push(block?);
                        state.status.verified += versions.len() as u64;
                        for version in &versions {
                            state.window.add(now_ms.saturating_sub(version.since_ms));
                        }
                    }
                }
            }
            let data = consecutive(&collected, self.unit.block.bytes());
            let data: Vec<(u64, &[u8])> = data.iter().map(|(lba, data)| (*lba, &data[..])).collect();
            let slots: Vec<_> = collected.iter().map(|block| (block.lba, block.slot.clone())).collect();
            let scope = self.store.begin();
            self.commit_slots(state, &slots, &data)?;
            scope.end()?;
            for block in collected {
                state.index.remove_until(block.lba, block.slot.version);
                state.damage.remove(block.lba);
                state.status.rejected += block.rejected.len() as u64;
                for rejected in block.rejected {
                    let is_known = || state.rejected.iter().any(|known| known.writer == rejected.writer);
                    if state.rejected.len() < REJECTED_MAX || !is_known() {
                        state.rejected.push(rejected);
                    } else {
                        state.status.rejected_dropped += 1;
                    }
                }
            }
        }
        state.log.trim(&*self.store, state.index.oldest_segment())?;
        Ok(damaged)
    }

    fn verify_versions(
        &self,
        state: &mut VolumeState,
        lba: u64,
        newest: VersionNumber,
        versions: &[VersionEntry],
        run: u64,
    ) -> Result<CollectedBlock, LazyError> {
        let mut slot = state.pages.slot(&*self.store, lba)?;
        let floor = slot.version;
        slot.version = newest.max(floor);
        let mut block = CollectedBlock { lba, data: None, slot, rejected: Vec::new() };
        let entries = versions.iter().rev().take_while(|entry| entry.version > floor);
        // The run is that of the newest version.
        for (entry, run) in entries.zip(std::iter::once(run).chain(std::iter::repeat(1))) {
            let VersionEntry { version, writer, .. } = *entry;
            // A damaged record cannot be authentic; the store reports damage of the medium itself.
            // Keys that cannot be opened are no such proof: the secret may be a wrong one.
            let found = match state.log.read_ahead(&*self.store, lba, version, entry.place(), run) {
                Err(LazyError::LogDamaged { .. }) => None,
                other => Some(other?),
            };
            let found =
                found.filter(|(seal, data)| self.is_authentic(state, lba, &seal.keys, data, &seal.mac));
            if let Some((seal, data)) = found {
                block.slot.seal = seal;
                block.slot.write_lost = false;
                block.data = Some(data);
                break;
            }
            block.rejected.push(RejectedVersion { lba, version, writer });
        }
        if self.policy.marks_lost_writes && !block.rejected.is_empty() {
            block.slot.write_lost = true;
        }
        Ok(block)
    }

    /// Verifies what is due: by age, by number of versions, by the size of the log. The caller runs
    /// it a few times a second.
    ///
    /// # Errors
    /// See [`LazyError`].
    pub fn verify_due(&self, now_ms: u64) -> Result<(), LazyError> {
        let limits = &self.unit.limits;
        let due = {
            let state = self.state.lock();
            if state.log.used() > limits.log_bytes_due {
                state.index.written_until(u64::MAX)
            } else {
                let mut due = state.index.with_more_than(limits.versions_due);
                if let Some(until_ms) = now_ms.checked_sub(limits.age_due_ms) {
                    due.extend(state.index.written_until(until_ms));
                }
                due
            }
        };
        // Damaged blocks are counted in the status; they do not stop the verification of others.
        self.collect_unlocked(due, now_ms).map(|_| ())
    }

    /// Verifies in batches, so that other operations run in between. Returns the error of the first
    /// block that cannot be verified.
    fn collect_unlocked(&self, mut lbas: Vec<u64>, now_ms: u64) -> Result<Option<LazyError>, LazyError> {
        lbas.sort_unstable();
        lbas.dedup();
        let mut damaged = None;
        for batch in lbas.chunks(COLLECT_BATCH) {
            damaged = damaged.or(self.collect(&mut self.state.lock(), batch, now_ms)?);
        }
        Ok(damaged)
    }

    /// Makes all acknowledged writes durable. `paper+safe` verifies them first; the caller then
    /// reports the deleted ones to their writers, see [`Self::take_rejected`].
    ///
    /// # Errors
    /// See [`LazyError`].
    pub fn synchronize(&self, now_ms: u64) -> Result<(), LazyError> {
        if self.policy.verifies_at_flush {
            let all = self.state.lock().index.written_until(u64::MAX);
            let damaged = self.collect_unlocked(all, now_ms)?;
            self.store.flush()?;
            return damaged.map_or(Ok(()), Err);
        }
        self.store.flush()?;
        Ok(())
    }

    /// Makes blocks unwritten: they read as zeros.
    ///
    /// # Errors
    /// See [`LazyError`].
    pub fn discard(&self, first_lba: u64, count: u64) -> Result<(), LazyError> {
        self.check_extent(first_lba, count)?;
        let mut state = self.state.lock();
        let shift = self.unit.block.shift();
        let scope = self.store.begin();
        let version = self.take_versions(&mut state, 1)?;
        let version = VersionNumber::new(version).ok_or(LazyError::VersionsExhausted)?;
        let slot = KeySlot { seal: BlockSeal::UNWRITTEN, write_lost: false, version };
        let slots: Vec<_> = (first_lba..first_lba + count).map(|lba| (lba, slot.clone())).collect();
        state.pages.reserve(&*self.store, first_lba..first_lba + count)?;
        self.store.clear(self.unit.data, first_lba << shift, count << shift)?;
        state.pages.change(&*self.store, &slots)?;
        scope.end()?;
        self.forget(&mut state, (first_lba, count), version)
    }

    /// Returns the deleted writes since the last call, for events and asynchronous errors.
    pub fn take_rejected(&self) -> Vec<RejectedVersion> {
        std::mem::take(&mut self.state.lock().rejected)
    }

    /// Whether [`Self::take_rejected`] would return any.
    pub fn has_rejected(&self) -> bool {
        !self.state.lock().rejected.is_empty()
    }

    /// Returns the blocks that were found damaged since the last call.
    pub fn take_damaged(&self) -> Option<DamagedBlocks> {
        self.state.lock().damage.take()
    }

    /// Returns the state of the unit.
    pub fn status(&self, now_ms: u64) -> LazyStatus {
        let state = self.state.lock();
        LazyStatus {
            unverified: state.index.len(),
            oldest_ms: state.index.oldest_ms().map_or(0, |since_ms| now_ms.saturating_sub(since_ms)),
            window_max_ms: state.window.max_ms(),
            window_p99_ms: state.window.p99_ms(),
            log_bytes_max: self.unit.limits.log_bytes_max,
            log_bytes: state.log.used(),
            unverifiable: state.damage.count(),
            cached_pages: state.pages.cached(),
            key_epoch: state.unit_keys.as_ref().map_or(0, |stored| stored.keys.epoch()),
            ..state.status
        }
    }
}

/// Joins the data of neighbouring blocks, so that each run is one write.
fn consecutive(blocks: &[CollectedBlock], block: usize) -> Vec<(u64, Vec<u8>)> {
    let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
    for CollectedBlock { lba, data, .. } in blocks {
        let Some(data) = data else { continue };
        match runs.last_mut() {
            Some((first, run)) if *first + (run.len() / block) as u64 == *lba => run.extend_from_slice(data),
            _ => runs.push((*lba, data.clone())),
        }
    }
    runs
}
