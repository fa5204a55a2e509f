//! Commands of units whose blocks have keys.
//!
//! Does: READ, WRITE and our vendor-specific commands for such units.
//! Does not: hold state; `lazy` does.
//! Truth: docs/design/block-lazy.md; docs/standards/block-protection.md.

use bytes::Bytes;
use sealstone_block_lazy::ReadVerdict;
use sealstone_block_protection::MAC_LEN;
use sealstone_scsi::lu::BlockSeals;

use crate::command::{BlockCommand, CommandOutcome};
use crate::failure::BlockFailure;
use crate::geometry::BlockExtent;
use crate::limits::TRANSFER_MAX;
use crate::transfer::{CdbForm, be32};

/// Bytes of an entry of REPORT BLOCKS: LBA 8, MAC 16, verdict 1, zeros 7.
const REPORT_LEN: usize = 32;
/// Maximum number of entries of REPORT BLOCKS.
const REPORTS_MAX: usize = 1024;

/// READ of a unit whose blocks have keys; `None` for other units.
pub(crate) fn read(
    run: &BlockCommand<'_>,
    extent: BlockExtent,
    back: usize,
) -> Result<Option<CommandOutcome>, BlockFailure> {
    let Some(lazy) = run.unit.blocks().lazy()? else { return Ok(None) };
    let wanted = extent.length();
    let block = run.unit.geometry().block().bytes();
    let length = wanted.min(run.command.data_in_max as u64) / block * block;
    if length == 0 {
        return Ok(Some(CommandOutcome { wanted, ..CommandOutcome::GOOD }));
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let mut buffer = run.command.buffers.take(length).ok_or(BlockFailure::NoBuffer)?;
    let bytes = lazy.read(extent.lba(), &mut buffer, back)?;
    let data_in = run.command.buffers.freeze(buffer);
    run.command.buffers.put_seals(BlockSeals { first_lba: extent.lba(), bytes });
    let moved = (data_in.len() as u64, 0);
    Ok(Some(CommandOutcome { moved, data_in, wanted, ..CommandOutcome::GOOD }))
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
    run.change(durable, || {
        if data.is_empty() {
            return Ok(());
        }
        let seals = run.command.buffers.take_seals().ok_or(BlockFailure::NoSeals)?;
        lazy.write(run.nexus, extent.lba(), (data, &seals), durable || run.write_through())
    })?;
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
        lazy.report_mac(lba, mac, verdict)?;
    }
    run.unit.report_rejected();
    Ok(CommandOutcome { used: length as u64, ..CommandOutcome::GOOD })
}

/// RECEIVE UNIT KEYS: the keys of the unit, and a new number for the generations of this session.
/// Only sessions that protect their data under the session key see such a unit.
pub(crate) fn unit_keys(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    let Some(lazy) = run.unit.blocks().lazy()? else { return Err(BlockFailure::OperationCode) };
    let keys = lazy.request_keys()?;
    let length = be32(run.wire(), 10) as usize;
    if length < keys.encoded.len() {
        return Err(BlockFailure::field(10));
    }
    lazy.begin_session(run.nexus.id, keys.session);
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
