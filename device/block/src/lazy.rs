//! Blocks that are stored with the keys and MACs of their writers.
//!
//! Does: the volume of such a unit, its writers, the sessions that received its keys.
//! Does not: see plain blocks, unless the level has no encryption. Parse commands;
//! `lazy_commands` does.
//! Contract: a write without seals of exactly its blocks changes nothing.
//! Truth: docs/design/block-lazy.md; docs/standards/block-protection.md.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use sealstone_block_lazy::{
    DamagedBlocks, LazyError, LazyLimits, LazyStatus, LazyUnit, LazyVolume, LazyWrite, ReadVerdict,
    RejectedVersion, SessionUnitKeys, WriterId,
};
use sealstone_block_protection::{BlockSeal, KeyScheme, MacTag, ProtectedBlock};
use sealstone_scsi::lu::{BlockSeals, NexusId};
use sealstone_store::ObjectStore;
use zeroize::Zeroizing;

use crate::catalog::UnitDescription;
use crate::failure::BlockFailure;
use crate::geometry::{BlockExtent, BlockSize};
use crate::integrity::{IntegrityFailure, IntegrityFailureKind};
use crate::nexus::BlockNexus;
use crate::options::{LazyOptions, StoredSecret, UnitOptions, seals_keys_at_rest};
use crate::ports::PortIdentity;

/// Ports that are remembered as writers. Losses of further ones are reported to all ports.
const WRITERS_MAX: usize = 4096;
/// Bytes that one call discards.
const DISCARD_BYTES: u64 = 16 << 20;

/// State of the blocks of a unit.
pub(crate) enum UnitBlocks {
    /// Blocks without keys.
    Plain,
    /// Blocks with keys.
    Keyed(Box<KeyedBlocks>),
}

/// Blocks with keys, which may be unavailable.
#[derive(Default)]
pub(crate) struct KeyedBlocks {
    /// The blocks, as soon as they could be opened.
    opened: OnceLock<LazyBlocks>,
    /// Why the last attempt to open them failed, and the next step; `None` before an attempt, or if
    /// this process does not serve them.
    reason: Mutex<Option<String>>,
}

/// Blocks with keys of their writers.
pub(crate) struct LazyBlocks {
    volume: LazyVolume,
    began: Instant,
    scheme: KeyScheme,
    block_bytes: u64,
    /// Number of the session of each nexus that received the keys of the unit.
    sessions: Mutex<BTreeMap<NexusId, u32>>,
    /// Ports that wrote; the index is the number of the writer.
    writers: Mutex<Vec<PortIdentity>>,
    /// Deleted writes beyond those that the volume kept, as far as they were recorded.
    dropped: AtomicU64,
    /// Held from the removal of rejected writes from the volume until their writers are marked. A
    /// flush in between would succeed. Acquired before the port table.
    reporting: Mutex<()>,
}

impl UnitBlocks {
    /// Opens the blocks of a unit. Blocks with keys are unavailable if their secret is missing, or
    /// if keys or versions on the medium are damaged.
    pub(crate) fn open(store: &Arc<dyn ObjectStore>, unit: &UnitDescription, options: &UnitOptions) -> Self {
        if !unit.protection.stores_block_keys() {
            return Self::Plain;
        }
        let blocks = Self::Keyed(Box::default());
        blocks.reopen(store, unit, options);
        blocks
    }

    /// Whether versions of an earlier run wait for their verification.
    pub(crate) fn has_unverified(&self) -> bool {
        self.lazy().is_ok_and(|lazy| lazy.is_some_and(|lazy| lazy.status().unverified > 0))
    }

    /// Opens unavailable blocks, for instance with a restored secret. Returns whether they became
    /// available.
    pub(crate) fn reopen(
        &self,
        store: &Arc<dyn ObjectStore>,
        unit: &UnitDescription,
        options: &UnitOptions,
    ) -> bool {
        let (Self::Keyed(blocks), Some(lazy)) = (self, &options.lazy) else { return false };
        if blocks.opened.get().is_some() {
            return false;
        }
        match LazyBlocks::open(store, unit, lazy) {
            Ok(opened) => blocks.opened.set(opened).is_ok(),
            Err(BlocksUnavailable { reason, block }) => {
                tracing::error!(unit = unit.name, reason, "the block unit is unavailable");
                options.losses.record_integrity(&IntegrityFailure {
                    unit: &unit.name,
                    lun: unit.lun,
                    initiator: "",
                    kind: IntegrityFailureKind::KeysUnavailable,
                    block,
                    count: 1,
                });
                *blocks.reason.lock() = Some(reason);
                false
            }
        }
    }

    /// Returns the blocks with keys; `None` if blocks have none.
    pub(crate) fn lazy(&self) -> Result<Option<&LazyBlocks>, BlockFailure> {
        match self {
            Self::Plain => Ok(None),
            Self::Keyed(blocks) => blocks.opened.get().map(Some).ok_or(BlockFailure::KeysUnavailable),
        }
    }

    /// Returns why blocks with keys cannot be used; `None` if they can, or are not served.
    pub(crate) fn unavailable_reason(&self) -> Option<String> {
        match self {
            Self::Keyed(blocks) if blocks.opened.get().is_none() => blocks.reason.lock().clone(),
            Self::Plain | Self::Keyed(_) => None,
        }
    }
}

/// Why blocks with keys cannot be opened.
struct BlocksUnavailable {
    /// The reason, and the next step.
    reason: String,
    /// The block that is damaged, if it is known.
    block: Option<u64>,
}

impl LazyBlocks {
    /// Opens the volume of a unit.
    fn open(
        store: &Arc<dyn ObjectStore>,
        unit: &UnitDescription,
        options: &LazyOptions,
    ) -> Result<Self, BlocksUnavailable> {
        let protection = unit.protection;
        let is_sealed = seals_keys_at_rest(protection);
        let secret = match &options.secret {
            _ if !is_sealed => None,
            StoredSecret::Present(secret) => Some(secret.clone()),
            StoredSecret::Missing(reason) => {
                return Err(BlocksUnavailable { reason: reason.to_string(), block: None });
            }
        };
        let block = match unit.geometry.block() {
            BlockSize::B512 => ProtectedBlock::B512,
            BlockSize::B4096 => ProtectedBlock::B4096,
        };
        let description = LazyUnit {
            lun: unit.lun,
            data: unit.object(),
            serial: unit.serial,
            block,
            blocks: unit.geometry.blocks(),
            level: protection.level(),
            profile: protection.profile(),
            limits: LazyLimits::for_unit(unit.geometry.bytes(), protection.profile()),
            secret,
            random: Arc::clone(&options.random),
        };
        let volume = LazyVolume::open(Arc::clone(store), description, 0).map_err(|error| {
            let step = match is_sealed {
                true => "restore block-keys.secret, or restore the store and restart the device",
                false => "restore the store, then restart the device",
            };
            let reason = format!("its keys or versions cannot be opened: {error}; {step}");
            BlocksUnavailable { reason, block: error.block() }
        })?;
        Ok(Self {
            volume,
            began: Instant::now(),
            scheme: protection.level().key_scheme().expect("the level has keys of blocks"),
            block_bytes: unit.geometry.block().bytes(),
            sessions: Mutex::default(),
            writers: Mutex::default(),
            dropped: AtomicU64::default(),
            reporting: Mutex::default(),
        })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the state of versions and verification.
    pub(crate) fn status(&self) -> LazyStatus {
        self.volume.status(self.now_ms())
    }

    /// Verifies all blocks and makes all writes durable.
    pub(crate) fn synchronize(&self) -> Result<(), BlockFailure> {
        self.volume.synchronize(self.now_ms()).map_err(BlockFailure::lazy_write)
    }

    /// Reads blocks into the buffer, in the version that is `back` writes older. Returns their
    /// encoded seals.
    pub(crate) fn read(
        &self,
        lba: u64,
        buffer: &mut [u8],
        back: usize,
    ) -> Result<Zeroizing<Vec<u8>>, BlockFailure> {
        let (seals, _) = self.volume.read_into(lba, buffer, back).map_err(BlockFailure::lazy_read)?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(seals.len() * self.scheme.seal_len()));
        seals.iter().for_each(|seal| seal.append_to(self.scheme, &mut bytes));
        Ok(bytes)
    }

    /// Writes blocks with seals of exactly these blocks. `durable` says that they are durable when
    /// this returns.
    pub(crate) fn write(
        &self,
        nexus: &BlockNexus,
        lba: u64,
        (data, seals): (&[u8], &BlockSeals),
        durable: bool,
    ) -> Result<(), BlockFailure> {
        let entries = seals.bytes.chunks_exact(self.scheme.seal_len());
        if seals.first_lba != lba
            || entries.len() as u64 * self.block_bytes != data.len() as u64
            || !entries.remainder().is_empty()
        {
            return Err(BlockFailure::NoSeals);
        }
        let mut keys = Vec::with_capacity(entries.len());
        let mut macs: Vec<MacTag> = Vec::with_capacity(entries.len());
        for entry in entries {
            let seal = BlockSeal::decode(self.scheme, entry).ok_or(BlockFailure::NoSeals)?;
            keys.push(seal.keys);
            if self.scheme.has_authentication() {
                macs.push(seal.mac);
            }
        }
        let writer = self.writer(&nexus.port);
        let session = self.sessions.lock().get(&nexus.id).copied().unwrap_or_default();
        let write = LazyWrite { first_lba: lba, keys: &keys, macs: &macs, data, writer, session, durable };
        self.volume.write(write, self.now_ms()).map_err(BlockFailure::lazy_write)
    }

    /// Records the verdict of a reader about a block with this MAC.
    pub(crate) fn report_mac(
        &self,
        lba: u64,
        mac: &MacTag,
        verdict: ReadVerdict,
    ) -> Result<(), BlockFailure> {
        self.volume.report_mac(lba, mac, verdict, self.now_ms()).map_err(BlockFailure::lazy_write)
    }

    /// Returns the keys of the unit and a new number for the generations of a session.
    pub(crate) fn request_keys(&self) -> Result<SessionUnitKeys, BlockFailure> {
        self.volume.begin_session().map_err(BlockFailure::lazy_write)
    }

    /// Sets the number of the session of a nexus.
    pub(crate) fn begin_session(&self, nexus: NexusId, number: u32) {
        self.sessions.lock().insert(nexus, number);
    }

    /// Forgets the number of a session that ended.
    pub(crate) fn end_session(&self, nexus: NexusId) {
        self.sessions.lock().remove(&nexus);
    }

    /// Begins the next epoch of the unit's key.
    pub(crate) fn rotate_key(&self) -> Result<u32, LazyError> {
        self.volume.rotate_key()
    }

    /// Verifies blocks that are due.
    pub(crate) fn verify_due(&self) -> Result<(), LazyError> {
        self.volume.verify_due(self.now_ms())
    }

    /// Locks reports of rejected writes. Acquired before the port table.
    pub(crate) fn lock_reports(&self) -> MutexGuard<'_, ()> {
        self.reporting.lock()
    }

    /// Removes and returns the blocks found damaged since the last call.
    pub(crate) fn take_damaged(&self) -> Option<DamagedBlocks> {
        self.volume.take_damaged()
    }

    /// Removes and returns the rejected writes, under [`Self::lock_reports`].
    pub(crate) fn take_rejected(&self) -> Vec<RejectedVersion> {
        self.volume.take_rejected()
    }

    /// Returns how many rejected writes were not kept since the last call.
    pub(crate) fn take_dropped(&self) -> u64 {
        let dropped = self.status().rejected_dropped;
        dropped.saturating_sub(self.dropped.fetch_max(dropped, Ordering::AcqRel))
    }

    /// Whether rejected writes wait for their report.
    pub(crate) fn has_rejected(&self) -> bool {
        self.volume.has_rejected()
    }

    /// Returns the number of a port.
    fn writer(&self, port: &PortIdentity) -> WriterId {
        let mut writers = self.writers.lock();
        let known = writers.iter().position(|known| known == port);
        let number = known.or_else(|| {
            (writers.len() < WRITERS_MAX).then(|| {
                writers.push(port.clone());
                writers.len() - 1
            })
        });
        WriterId(number.map_or(u64::MAX, |number| number as u64))
    }

    /// Returns the port of a number; `None` if it is unknown.
    pub(crate) fn port(&self, WriterId(number): WriterId) -> Option<PortIdentity> {
        let at = usize::try_from(number).ok()?;
        self.writers.lock().get(at).cloned()
    }

    /// Makes blocks unwritten.
    pub(crate) fn discard(&self, extent: BlockExtent) -> Result<(), BlockFailure> {
        let (mut lba, end) = (extent.lba(), extent.lba() + extent.length() / self.block_bytes);
        while lba < end {
            let count = (end - lba).min(DISCARD_BYTES / self.block_bytes);
            self.volume.discard(lba, count).map_err(BlockFailure::lazy_write)?;
            lba += count;
        }
        Ok(())
    }
}

impl BlockFailure {
    /// Returns the failure of a read of blocks with keys.
    fn lazy_read(error: LazyError) -> Self {
        match error {
            LazyError::NoVersion { .. } => Self::field(1),
            error => Self::LazyRead(error),
        }
    }

    /// Returns the failure of a change of blocks with keys.
    fn lazy_write(error: LazyError) -> Self {
        match error {
            LazyError::Store(error) => Self::Write(error),
            LazyError::Busy { .. } => Self::NoBuffer,
            LazyError::StaleGeneration(_) => Self::StaleUnitKeys,
            LazyError::Shape { .. } | LazyError::ZeroKeys(_) => Self::NoSeals,
            error => Self::LazyWrite(error),
        }
    }
}
