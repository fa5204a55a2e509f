//! Units whose blocks are stored with the keys and MACs of their writers.
//!
//! Does: READ, WRITE and our vendor-specific commands for such units; verification in the
//! background; reports of writes that were not authentic; keys of units for sessions.
//! Does not: see plain blocks, unless the level has no encryption.
//! Contract: a write without seals of exactly its blocks changes nothing. A write that was
//! acknowledged and is deleted fails the next SYNCHRONIZE CACHE of its writer, and raises a unit
//! attention for it.
//! Truth: docs/design/block-lazy.md; docs/standards/block-protection.md.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use sealstone_block_lazy::{
    DamagedBlocks, LazyError, LazyLimits, LazyStatus, LazyUnit, LazyVolume, LazyWrite, ReadVerdict,
    RejectedVersion, WriterId,
};
use sealstone_block_protection::{BlockSeal, KeyScheme, MAC_LEN, MacTag, ProtectedBlock};
use sealstone_scsi::additional;
use sealstone_scsi::lu::{BlockSeals, NexusId};
use sealstone_store::ObjectStore;
use zeroize::Zeroizing;

use crate::catalog::UnitDescription;
use crate::command::{BlockCommand, CommandOutcome};
use crate::failure::BlockFailure;
use crate::geometry::{BlockExtent, BlockSize};
use crate::integrity::{IntegrityFailure, IntegrityFailureKind};
use crate::limits::TRANSFER_MAX;
use crate::options::{StoredSecret, UnitOptions, seals_keys_at_rest};
use crate::ports::PortIdentity;
use crate::transfer::{CdbForm, be32};
use crate::unit::BlockUnit;

/// Bytes of an entry of REPORT BLOCKS: LBA 8, MAC 16, verdict 1, zeros 7.
const REPORT_LEN: usize = 32;
/// Maximum number of entries of REPORT BLOCKS.
const REPORTS_MAX: usize = 1024;
/// Ports that are remembered as writers. Losses of further ones are reported to all ports.
const WRITERS_MAX: usize = 4096;
/// Bytes that one call discards.
const DISCARD_BYTES: u64 = 16 << 20;

/// State of the blocks of a unit.
pub(crate) enum UnitBlocks {
    /// Blocks without keys.
    Plain,
    /// Blocks with keys.
    Lazy(Box<LazyBlocks>),
    /// Blocks with keys that this process does not serve.
    NotServed,
    /// Blocks with keys that cannot be used, with the reason and the next step.
    Unavailable(String),
}

/// Blocks with keys of their writers.
pub(crate) struct LazyBlocks {
    volume: LazyVolume,
    began: Instant,
    scheme: KeyScheme,
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
        let (protection, losses) = (unit.protection, &options.losses);
        let Some(scheme) = protection.level().key_scheme() else { return Self::Plain };
        let Some(options) = &options.lazy else { return Self::NotServed };
        let unavailable = |reason: String, block| {
            tracing::error!(unit = unit.name, reason, "the block unit is unavailable");
            losses.record_integrity(&IntegrityFailure {
                unit: &unit.name,
                lun: unit.lun,
                initiator: "",
                kind: IntegrityFailureKind::KeysUnavailable,
                block,
                count: 1,
            });
            Self::Unavailable(reason)
        };
        let secret = match &options.secret {
            _ if !seals_keys_at_rest(protection) => None,
            StoredSecret::Present(secret) => Some(secret.clone()),
            StoredSecret::Missing(reason) => return unavailable(reason.to_string(), None),
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
        match LazyVolume::open(Arc::clone(store), description, 0) {
            Ok(volume) => {
                let (began, dropped) = (Instant::now(), AtomicU64::default());
                let (sessions, writers) = (Mutex::default(), Mutex::default());
                Self::Lazy(Box::new(LazyBlocks {
                    volume,
                    began,
                    scheme,
                    sessions,
                    writers,
                    dropped,
                    reporting: Mutex::default(),
                }))
            }
            Err(error) => {
                let step = match seals_keys_at_rest(protection) {
                    true => "restore block-keys.secret and the store, then restart the device",
                    false => "restore the store, then restart the device",
                };
                unavailable(format!("its keys or versions cannot be opened: {error}; {step}"), error.block())
            }
        }
    }

    /// Whether versions of an earlier run wait for their verification.
    pub(crate) fn has_unverified(&self) -> bool {
        matches!(self, Self::Lazy(lazy) if lazy.status().unverified > 0)
    }

    /// Returns the blocks with keys; `None` if blocks have none.
    pub(crate) fn lazy(&self) -> Result<Option<&LazyBlocks>, BlockFailure> {
        match self {
            Self::Plain => Ok(None),
            Self::Lazy(lazy) => Ok(Some(lazy)),
            Self::NotServed | Self::Unavailable(_) => Err(BlockFailure::KeysUnavailable),
        }
    }

    /// Returns why blocks with keys cannot be used; `None` if they can, or are not served.
    pub(crate) fn unavailable_reason(&self) -> Option<&str> {
        match self {
            Self::Unavailable(reason) => Some(reason),
            Self::Plain | Self::Lazy(_) | Self::NotServed => None,
        }
    }
}

impl LazyBlocks {
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

    /// Whether rejected writes wait for their report.
    pub(crate) fn has_rejected(&self) -> bool {
        self.volume.has_rejected()
    }

    fn read(
        &self,
        run: &BlockCommand<'_>,
        extent: BlockExtent,
        back: usize,
    ) -> Result<CommandOutcome, BlockFailure> {
        let wanted = extent.length();
        let block = run.unit.geometry().block().bytes();
        let length = wanted.min(run.command.data_in_max as u64) / block * block;
        if length == 0 {
            return Ok(CommandOutcome { wanted, ..CommandOutcome::GOOD });
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let mut buffer = run.command.buffers.take(length).ok_or(BlockFailure::NoBuffer)?;
        let (seals, _) =
            self.volume.read_into(extent.lba(), &mut buffer, back).map_err(BlockFailure::lazy_read)?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(seals.len() * self.scheme.seal_len()));
        seals.iter().for_each(|seal| seal.append_to(self.scheme, &mut bytes));
        let data_in = run.command.buffers.freeze(buffer);
        run.command.buffers.put_seals(BlockSeals { first_lba: extent.lba(), bytes });
        Ok(CommandOutcome { moved: (data_in.len() as u64, 0), data_in, wanted, ..CommandOutcome::GOOD })
    }

    fn write(
        &self,
        run: &BlockCommand<'_>,
        extent: BlockExtent,
        data: &[u8],
        durable: bool,
    ) -> Result<(), BlockFailure> {
        if data.is_empty() {
            return Ok(());
        }
        let seals = run.command.buffers.take_seals().ok_or(BlockFailure::NoSeals)?;
        let entries = seals.bytes.chunks_exact(self.scheme.seal_len());
        let blocks = extent.length() / run.unit.geometry().block().bytes();
        if seals.first_lba != extent.lba()
            || entries.len() as u64 != blocks
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
        let writer = self.writer(&run.nexus.port);
        let session = self.sessions.lock().get(&run.nexus.id).copied().unwrap_or_default();
        let write =
            LazyWrite { first_lba: extent.lba(), keys: &keys, macs: &macs, data, writer, session, durable };
        self.volume.write(write, self.now_ms()).map_err(BlockFailure::lazy_write)
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
    fn port(&self, WriterId(number): WriterId) -> Option<PortIdentity> {
        let at = usize::try_from(number).ok()?;
        self.writers.lock().get(at).cloned()
    }

    /// Makes blocks unwritten.
    pub(crate) fn discard(&self, extent: BlockExtent, block: u64) -> Result<(), BlockFailure> {
        let (mut lba, end) = (extent.lba(), extent.lba() + extent.length() / block);
        while lba < end {
            let count = (end - lba).min(DISCARD_BYTES / block);
            self.volume.discard(lba, count).map_err(BlockFailure::lazy_write)?;
            lba += count;
        }
        Ok(())
    }
}

/// READ of a unit whose blocks have keys; `None` for other units.
pub(crate) fn read(
    run: &BlockCommand<'_>,
    extent: BlockExtent,
    back: usize,
) -> Result<Option<CommandOutcome>, BlockFailure> {
    run.unit.blocks().lazy()?.map(|lazy| lazy.read(run, extent, back)).transpose()
}

/// WRITE of a unit whose blocks have keys; `None` for other units.
pub(crate) fn write(
    run: &BlockCommand<'_>,
    extent: BlockExtent,
    data: &[u8],
    durable: bool,
) -> Result<Option<CommandOutcome>, BlockFailure> {
    let Some(lazy) = run.unit.blocks().lazy()? else { return Ok(None) };
    // A durable write is flushed by the volume, alone.
    run.change(durable, || lazy.write(run, extent, data, durable || run.write_through()))?;
    let used = data.len() as u64;
    Ok(Some(CommandOutcome { used, moved: (0, used), ..CommandOutcome::GOOD }))
}

/// READ OLDER VERSION: as READ (16), in the version that is as many writes older as byte 1 says.
pub(crate) fn read_older(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    let geometry = run.unit.geometry();
    let blocks = be32(run.wire(), 10);
    if blocks > geometry.blocks_of(TRANSFER_MAX) {
        return Err(BlockFailure::field(10));
    }
    let extent = geometry.extent(CdbForm::Sixteen.lba(run.wire()), u64::from(blocks))?;
    read(run, extent, usize::from(run.wire()[1]))?.ok_or(BlockFailure::OperationCode)
}

/// REPORT BLOCKS: what a reader found about blocks.
pub(crate) fn report(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    let Some(lazy) = run.unit.blocks().lazy()? else { return Err(BlockFailure::OperationCode) };
    let length = be32(run.wire(), 10) as usize;
    let list = run.command.data_out.get(..length).ok_or(BlockFailure::ParameterLength)?;
    let (entries, rest) = list.as_chunks::<REPORT_LEN>();
    if !rest.is_empty() || entries.len() > REPORTS_MAX {
        return Err(BlockFailure::ParameterLength);
    }
    for (at, entry) in entries.iter().enumerate() {
        let (lba, rest) = entry.split_first_chunk::<8>().expect("32 bytes");
        let (mac, rest) = rest.split_first_chunk::<MAC_LEN>().expect("24 bytes");
        let verdict = match rest {
            [0, 0, 0, 0, 0, 0, 0, 0] => ReadVerdict::Corrupt,
            [1, 0, 0, 0, 0, 0, 0, 0] => ReadVerdict::Authentic,
            _ => return Err(BlockFailure::parameter(at * REPORT_LEN + 24)),
        };
        let lba = u64::from_be_bytes(*lba);
        run.unit.geometry().extent(lba, 1)?;
        lazy.volume.report_mac(lba, mac, verdict, lazy.now_ms()).map_err(BlockFailure::lazy_write)?;
    }
    run.unit.report_rejected();
    Ok(CommandOutcome { used: length as u64, ..CommandOutcome::GOOD })
}

/// RECEIVE UNIT KEYS: the keys of the unit, and a new number for the generations of this session.
/// Only sessions that protect their data under the session key see such a unit.
pub(crate) fn unit_keys(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    let Some(lazy) = run.unit.blocks().lazy()? else { return Err(BlockFailure::OperationCode) };
    let keys = lazy.volume.begin_session().map_err(BlockFailure::lazy_write)?;
    let length = be32(run.wire(), 10) as usize;
    if length < keys.encoded.len() {
        return Err(BlockFailure::field(10));
    }
    lazy.sessions.lock().insert(run.nexus.id, keys.session);
    // Wiped when the last copy of the reference is dropped.
    Ok(CommandOutcome::data(Bytes::from_owner(keys.encoded), run))
}

/// The whole rest of the unit as one mapped extent: whether a block was written is not known
/// without its keys.
pub(crate) fn mapped_rest(run: &BlockCommand<'_>, lba: u64) -> CommandOutcome {
    let blocks = run.unit.geometry().blocks().saturating_sub(lba);
    let mut data = vec![0; 24];
    data[3] = 20;
    data[8..16].copy_from_slice(&lba.to_be_bytes());
    data[16..20].copy_from_slice(&u32::try_from(blocks).unwrap_or(u32::MAX).to_be_bytes());
    data.truncate(be32(run.wire(), 10) as usize);
    CommandOutcome::data(Bytes::from(data), run)
}

impl BlockUnit {
    /// Verifies blocks that are due. Call it a few times a second.
    pub(crate) fn verify_due(&self) {
        let Ok(Some(lazy)) = self.blocks().lazy() else { return };
        if let Err(error) = lazy.volume.verify_due(lazy.now_ms()) {
            tracing::error!(unit = self.name(), %error, "blocks cannot be verified");
        }
        self.report_rejected();
    }

    /// Begins the next epoch of the unit's key. Sessions that have the earlier keys receive a unit
    /// attention, and their writes fail until they have requested the new ones.
    pub(crate) fn rotate_key(&self) -> Result<u32, LazyError> {
        let lazy = self.blocks().lazy().ok().flatten();
        let lazy = lazy.ok_or(LazyError::NoUnitKeys(self.description().protection.profile().name()))?;
        let epoch = lazy.volume.rotate_key()?;
        self.nexuses().raise(additional::UNIT_KEYS_CHANGED, None);
        Ok(epoch)
    }

    /// Forgets the number of a session that ended.
    pub(crate) fn end_key_session(&self, nexus: NexusId) {
        if let Ok(Some(lazy)) = self.blocks().lazy() {
            lazy.sessions.lock().remove(&nexus);
        }
    }

    /// Reports acknowledged writes that were not authentic to their writers and to the audit log,
    /// and blocks that were found damaged to the audit log. Returns when the writers are marked,
    /// also by another thread.
    pub(crate) fn report_rejected(&self) {
        let Ok(Some(lazy)) = self.blocks().lazy() else { return };
        let _reporting = lazy.reporting.lock();
        if let Some(DamagedBlocks { first_lba, count }) = lazy.volume.take_damaged() {
            self.record_integrity("", IntegrityFailureKind::Damaged, Some(first_lba), count);
        }
        let rejected = lazy.volume.take_rejected();
        let Some(RejectedVersion { lba: first_lba, .. }) = rejected.first() else { return };
        tracing::error!(
            unit = self.name(),
            writes = rejected.len(),
            first_block = first_lba,
            "acknowledged writes were not authentic and were deleted"
        );
        // First block and number of writes of each writer.
        let mut writers: BTreeMap<Option<PortIdentity>, (u64, u64)> = BTreeMap::new();
        for RejectedVersion { lba, writer, .. } in &rejected {
            let port = writer.and_then(|writer| lazy.port(writer));
            writers.entry(port).or_insert((*lba, 0)).1 += 1;
        }
        for (port, (lba, count)) in &writers {
            let name = port.as_ref().map_or("", |port| &port.name);
            self.record_integrity(name, IntegrityFailureKind::WriteRejected, Some(*lba), *count);
        }
        // The writers of these are among the ones above: the volume keeps the first write of each.
        let dropped = lazy.status().rejected_dropped;
        let further = dropped.saturating_sub(lazy.dropped.fetch_max(dropped, Ordering::AcqRel));
        if further > 0 {
            self.record_integrity("", IntegrityFailureKind::WriteRejected, None, further);
        }
        if writers.contains_key(&None) {
            // The writers before a restart are unknown, and may not have logged in again.
            self.set_lost_by_any();
            self.nexuses().raise(additional::ACKNOWLEDGED_WRITE_REJECTED, None);
            return;
        }
        for port in writers.keys().flatten() {
            self.set_lost(port);
            self.nexuses().raise_for(port, additional::ACKNOWLEDGED_WRITE_REJECTED);
        }
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
