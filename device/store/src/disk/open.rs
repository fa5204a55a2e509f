//! Opens a store: checks its superblock and index, builds the free map, and replays the write log.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, RwLock};
use sealstone_redb_format::LostKeys;

use super::group::CommitGroups;
use super::index::{self, RecordIndex};
use super::index_space::IndexSpace;
use super::inline::{self, InlineRecords};
use super::pool::is_inline;
use super::record;
use super::segments::SegmentFiles;
use super::space::{BlockRun, FreeMap};
use super::survey::{self, ClaimOutcome};
use super::verified_file::VerifiedFile;
use super::write_log::{FoundLog, LogHeader, LogReplay, PreviousShutdown};
use super::{DiskStore, LOCKS, StoreOptions, format, reconcile};
use crate::damage::{Damage, DamageKind, StoreFault};
use crate::medium::Medium;
use crate::{BLOCK, FormatError, StoreError};

impl DiskStore {
    /// Opens a store; reads the whole index once to find the free blocks. If the write log has
    /// acknowledged changes that are not committed, they are replayed first and the index is read
    /// once more.
    ///
    /// # Errors
    /// All of [`FormatError`] except those of `format` alone.
    pub fn open(medium: Arc<dyn Medium>, options: StoreOptions) -> Result<Self, FormatError> {
        let found = format::find(&*medium)?;
        let mut committed = Self::open_committed(&medium, &options, &found)?;
        let replay = committed.plan_replay(found.suspect)?;
        let shutdown = committed.judge_shutdown(replay.as_ref());
        tracing::info!(
            previous_shutdown = shutdown.name(),
            replayed_records = replay.as_ref().map_or(0, |replay| replay.records),
            "store opened"
        );
        if let Some(replay) = replay {
            if committed.is_writable() {
                committed.store.commit_replay(replay)?;
                drop(committed);
                committed = Self::open_committed(&medium, &options, &found)?;
            } else {
                // Nothing may be written: reads see the acknowledged changes on top of the last
                // commit.
                committed.store.index.apply(replay.changes.into_iter().collect(), &[]);
            }
        }
        committed.start(&found, shutdown)
    }

    /// Opens a store in the state of its last commit.
    fn open_committed(
        medium: &Arc<dyn Medium>,
        options: &StoreOptions,
        found: &format::FoundSuperblock,
    ) -> Result<CommittedStore, FormatError> {
        let (medium, options) = (Arc::clone(medium), options.clone());
        let superblock = found.superblock;
        let (segments, mut faults) = SegmentFiles::open(&*medium, &superblock)?;
        if found.mended {
            faults.push(StoreFault::Superblock);
        }
        let whole = faults
            .iter()
            .all(|fault| matches!(fault, StoreFault::UnknownFile { .. } | StoreFault::Superblock));
        let missing = || FormatError::Missing { name: format::INDEX.to_owned() };
        let io = |source| FormatError::Io { doing: "opening the index", source };
        let file = match medium.open(format::INDEX, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
            file => file.map_err(io)?,
        };
        // The engine would treat an empty file as a new index.
        if file.length().map_err(io)? == 0 {
            return Err(FormatError::Truncated { name: format::INDEX.to_owned(), found: 0, expected: 1 });
        }
        if found.suspect {
            tracing::warn!("a sync failed when this store was last open: rewriting its index");
            format::rewrite(&*file).map_err(io)?;
            medium.rewrite_names().map_err(io)?;
        }
        let proof =
            VerifiedFile::take(file, index::NAME, superblock.uuid, superblock.index_copy).map_err(io)?;
        match proof.reader.get(&record::store_key()) {
            _ if !proof.has_table => return Err(FormatError::Foreign),
            Ok(name) => {
                let name = name.as_deref().map(|name| record::unseal(&record::store_key(), name));
                if name != Some(Ok(&superblock.uuid)) {
                    return Err(FormatError::Foreign);
                }
            }
            Err(LostKeys::ALL) => return Err(FormatError::IndexLost),
            // Its page is damaged; the rest may still be readable.
            Err(_) => {}
        }
        let mut space =
            FreeMap::new(superblock.blocks(), superblock.capacity_blocks, superblock.segment_blocks);
        space.inline.limit(options.inline_bytes_max.unwrap_or_else(|| inline::share(&*medium, &superblock)));
        let inline = InlineRecords::survey(&proof.reader, superblock.blocks());
        let mut survey = survey::survey(&proof.reader, |run: BlockRun| match space.claim(run) {
            Err(_) => ClaimOutcome::Outside,
            Ok(()) if is_inline(run.location) => inline.claim(run.location, &mut space.inline),
            Ok(()) if segments.has(run) => ClaimOutcome::Taken,
            Ok(()) => ClaimOutcome::Unreadable,
        });
        space.inline.claimed();
        for object in reconcile::check(&proof.reader, space.shares()) {
            survey.damage.add(Damage::whole(object, DamageKind::Map));
            survey.inconsistent += 1;
        }
        faults.append(&mut survey.faults);
        if survey.inconsistent > 0 {
            faults.push(StoreFault::Inconsistent { records: survey.inconsistent });
        }
        if proof.lost_commit {
            faults.push(StoreFault::LostCommit);
        }
        if proof.reader.damaged() > 0 {
            faults.push(StoreFault::IndexPages { pages: proof.reader.damaged() });
        }
        // A missing file is more often left behind than lost: writing now would make the two parts
        // diverge permanently.
        let writable = whole && proof.is_sound() && survey.inconsistent == 0;
        if !writable {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            tracing::error!(faults = faults.join("; "), "store is damaged; opened read-only");
        }
        let group = proof.reader.get(&record::group_key());
        // If the index's group is unknown, the log could restore older values.
        let is_group_lost = group.is_err();
        let group = group.ok().flatten().as_deref().and_then(record::parse_group).unwrap_or(0);
        let was_closed = proof.was_closed();
        let log = match superblock.log_bytes {
            0 => None,
            _ if is_group_lost => None,
            length => FoundLog::open(&*medium, length, &superblock.uuid, writable)?,
        };
        let incomplete = survey.damage.incomplete();
        let is_bounded = medium.free_space().is_some();
        if is_bounded {
            segments.holes().map_err(io)?.into_iter().for_each(|run| space.withhold(run));
        }
        let (index, free_pages) =
            RecordIndex::open(proof, writable, incomplete, options.index_cache, options.record_cache)
                .inspect_err(|_| format::mark(&*medium))?;
        let store = Self {
            groups: CommitGroups::new(index.stopped(), group),
            index_space: IndexSpace::new(free_pages),
            renewing: Mutex::default(),
            backing: Mutex::default(),
            is_bounded,
            profiles: RwLock::new(survey.profiles),
            index,
            segments,
            space: Mutex::new(space),
            objects: AtomicU64::new(survey.objects),
            salvage: survey.inconsistent > 0,
            faults,
            book: Mutex::new(survey.damage),
            locks: (0..LOCKS).map(|_| RwLock::new(())).collect(),
            change_counts: (0..LOCKS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            options,
            capacity_blocks: superblock.capacity_blocks,
            log: None,
            numbers_groups: superblock.log_bytes > 0,
            previous_shutdown: PreviousShutdown::PossiblePowerLoss,
            low_water: superblock.reserve_blocks / 2,
            medium,
        };
        Ok(CommittedStore { store, log, group, was_closed })
    }

    /// Commits the changes of the write log.
    fn commit_replay(&self, replay: LogReplay) -> Result<(), FormatError> {
        let failed = |error| FormatError::Replay { source: Box::new(error) };
        self.index.apply(replay.changes.into_iter().collect(), &[]);
        // Acknowledged changes had enough space.
        self.reserve_for_open_group().map_err(failed)?;
        let group = self.index.rotate();
        let synced = self.segments.sync(&self.segments.take_dirty()).inspect_err(|_| self.poison(false));
        synced.map_err(|source| failed(StoreError::Io { doing: "syncing data", source }))?;
        let committed = self.index.commit(&group, Some(replay.last), |_| {});
        committed.inspect_err(|_| self.poison(true)).map_err(failed)
    }
}

/// A store in the state of its last commit, before the write log is read.
struct CommittedStore {
    store: DiskStore,
    log: Option<FoundLog>,
    /// Number of the last committed group.
    group: u64,
    /// Whether the index engine closed its file.
    was_closed: bool,
}

impl CommittedStore {
    fn is_writable(&self) -> bool {
        !self.store.is_poisoned()
    }

    fn plan_replay(&self, rewrites: bool) -> Result<Option<LogReplay>, FormatError> {
        let Some(log) = &self.log else { return Ok(None) };
        let rewrites = rewrites && self.is_writable();
        LogReplay::plan(&self.store, &log.groups, self.group, rewrites)
            .map_err(|error| FormatError::Replay { source: Box::new(error) })
    }

    fn judge_shutdown(&self, replay: Option<&LogReplay>) -> PreviousShutdown {
        let Some(header) = self.log.as_ref().and_then(|log| log.header) else {
            // A new store, or one that had no log.
            return match self.was_closed {
                true => PreviousShutdown::Clean,
                false => PreviousShutdown::PossiblePowerLoss,
            };
        };
        let same_boot = self.store.medium.boot_id().is_some_and(|boot| boot == header.boot);
        let is_complete = replay.is_none_or(|replay| replay.is_complete);
        match (header.is_closed, replay) {
            (true, None) => PreviousShutdown::Clean,
            (false, _) if same_boot && is_complete => PreviousShutdown::ProcessDeath,
            _ => PreviousShutdown::PossiblePowerLoss,
        }
    }

    /// Prepares the store for changes.
    fn start(
        self,
        found: &format::FoundSuperblock,
        shutdown: PreviousShutdown,
    ) -> Result<DiskStore, FormatError> {
        let (is_writable, Self { mut store, log, group, .. }) = (self.is_writable(), self);
        store.previous_shutdown = shutdown;
        if !is_writable {
            return Ok(store);
        }
        let capacity = store.capacity_blocks * BLOCK;
        let (log_bytes, log) = match found.superblock.log_bytes {
            0 => FoundLog::create(&*store.medium, capacity, &found.superblock.uuid)?,
            length => (length, log),
        };
        format::upgrade(&*store.medium, found, log_bytes)?;
        store.numbers_groups = log_bytes > 0;
        let header = LogHeader {
            is_closed: false,
            uuid: found.superblock.uuid,
            boot: store.medium.boot_id().unwrap_or_default(),
            opening: store.hasher.hash_one(log_bytes),
        };
        store.log = match log {
            Some(log) => Some(log.start(header, group + 1)?),
            None => {
                tracing::warn!("no space for the write log: every change waits for a commit");
                None
            }
        };
        // While the file system has space: overwrites and truncation need these blocks when it is
        // full.
        store.back_reserve();
        Ok(store)
    }
}
