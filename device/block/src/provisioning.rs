//! Thin provisioning: UNMAP, WRITE SAME, GET LBA STATUS (SBC-3 §4.7).
//!
//! Does: turn blocks into holes of the object, and report holes.
//! Does not: anchor blocks, because a hole has no reserved space.
//! Contract: an unmapped block reads as zeros (LBPRZ). All extents of a list are checked before any
//! is unmapped.

use bytes::Bytes;

use sealstone_store::ExtentKind;

use crate::command::{BlockCommand, CommandOutcome, YieldPoint};
use crate::data::{PIECE, exact_data_out};
use crate::failure::BlockFailure;
use crate::geometry::BlockExtent;
use crate::limits::{UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_MAX};
use crate::transfer::{CdbForm, be16, be32, no_protection};

/// LBA status descriptors of one answer.
const STATUSES_MAX: usize = 1024;

/// ANCHOR, UNMAP, NDOB: byte 1 of WRITE SAME. The bits between them are obsolete since SBC-3.
const ANCHOR: u8 = 0x10;
const UNMAP: u8 = 0x08;
const OBSOLETE: u8 = 0x06;
const NDOB: u8 = 0x01;

/// WRITE SAME.
pub(crate) fn write_same(run: &BlockCommand<'_>, form: CdbForm) -> Result<CommandOutcome, BlockFailure> {
    let wire = run.wire();
    no_protection(wire)?;
    let flags = wire[1];
    if flags & ANCHOR != 0 {
        return Err(BlockFailure::bit(1, 4));
    }
    let unmaps = flags & UNMAP != 0;
    if unmaps && !run.unit.is_thin() {
        return Err(BlockFailure::bit(1, 3));
    }
    if flags & OBSOLETE != 0 {
        return Err(BlockFailure::bit(1, 2));
    }
    let no_data = flags & NDOB != 0;
    if no_data && form != CdbForm::Sixteen {
        return Err(BlockFailure::bit(1, 0));
    }
    let geometry = run.unit.geometry();
    let blocks = form.blocks(wire);
    // WSNZ: zero blocks does not mean all remaining blocks.
    if blocks == 0 || blocks > geometry.blocks_of(WRITE_SAME_MAX) {
        return Err(BlockFailure::field(form.length_at()));
    }
    let extent = geometry.extent(form.lba(wire), u64::from(blocks))?;
    run.unit.check_writable()?;
    let block = if no_data { &[][..] } else { exact_data_out(run, geometry.block().bytes())? };
    let used = block.len() as u64;
    let is_zero = block.iter().all(|&byte| byte == 0);
    if is_zero && (unmaps || run.unit.blocks().lazy()?.is_some()) {
        run.unmap(extent)?;
    } else {
        fill(run, extent, block)?;
    }
    Ok(CommandOutcome { used, moved: (0, extent.length()), ..CommandOutcome::GOOD })
}

/// Fills an extent with a repeated block. An empty block stands for zeros.
fn fill(run: &BlockCommand<'_>, extent: BlockExtent, block: &[u8]) -> Result<(), BlockFailure> {
    let length = usize::try_from(extent.length()).unwrap_or(usize::MAX).min(PIECE);
    let mut buffer = run.command.buffers.take(length).ok_or(BlockFailure::NoBuffer)?;
    if block.is_empty() {
        buffer.fill(0);
    } else {
        buffer.chunks_exact_mut(block.len()).for_each(|slot| slot.copy_from_slice(block));
    }
    let mut done = 0;
    let mut outcome = Ok(());
    while done < extent.length() && outcome.is_ok() {
        let piece = usize::try_from(extent.length() - done).unwrap_or(usize::MAX).min(length);
        outcome = run.write(extent.offset() + done, &buffer[..piece], false);
        done += piece as u64;
    }
    drop(run.command.buffers.freeze(buffer));
    outcome
}

/// Bytes of the header and of each descriptor of UNMAP's list.
const LIST_HEADER: usize = 8;
const DESCRIPTOR: usize = 16;

/// Runs UNMAP.
pub(crate) fn unmap(
    run: &BlockCommand<'_>,
    yield_point: YieldPoint<'_>,
) -> Result<CommandOutcome, BlockFailure> {
    let wire = run.wire();
    if wire[1] & 1 != 0 {
        return Err(BlockFailure::bit(1, 0)); // ANCHOR
    }
    let length = usize::from(be16(wire, 7));
    run.unit.check_writable()?;
    if length == 0 {
        return Ok(CommandOutcome::GOOD);
    }
    let list = run.command.data_out.get(..length).ok_or(BlockFailure::ParameterLength)?;
    for (index, extent) in extents(run, list)?.into_iter().enumerate() {
        if index > 0 {
            yield_point()?;
        }
        run.unmap(extent)?;
    }
    Ok(CommandOutcome { used: length as u64, ..CommandOutcome::GOOD })
}

/// Returns the checked extents of UNMAP's list.
fn extents(run: &BlockCommand<'_>, list: &[u8]) -> Result<Vec<BlockExtent>, BlockFailure> {
    let header: &[u8; LIST_HEADER] = list.first_chunk().ok_or(BlockFailure::ParameterLength)?;
    let described = usize::from(u16::from_be_bytes([header[2], header[3]]));
    // Descriptors beyond the end of the list are ignored (SBC-3 §5.28: truncation is no error).
    let described = described.min(list.len() - LIST_HEADER);
    let descriptors = &list[LIST_HEADER..LIST_HEADER + described];
    if descriptors.len() / DESCRIPTOR > UNMAP_DESCRIPTORS_MAX as usize {
        return Err(BlockFailure::parameter(2));
    }
    let geometry = run.unit.geometry();
    let mut left = u64::from(UNMAP_BLOCKS_MAX);
    let mut extents = Vec::with_capacity(descriptors.len() / DESCRIPTOR);
    for (index, descriptor) in descriptors.chunks_exact(DESCRIPTOR).enumerate() {
        let (lba, rest) = descriptor.split_first_chunk::<8>().expect("16 bytes");
        let blocks = u64::from(u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]));
        left = left
            .checked_sub(blocks)
            .ok_or_else(|| BlockFailure::parameter(LIST_HEADER + index * DESCRIPTOR + 8))?;
        extents.push(geometry.extent(u64::from_be_bytes(*lba), blocks)?);
    }
    Ok(extents)
}

/// PROVISIONING STATUS of a descriptor.
const MAPPED: u8 = 0;
const DEALLOCATED: u8 = 1;

/// GET LBA STATUS: a block is deallocated if no block of the store below it is mapped. The answer
/// may end before the unit does, at the latest after 512 MiB of mapped blocks; the initiator
/// repeats the command from there.
pub(crate) fn lba_status(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    let wire = run.wire();
    let geometry = run.unit.geometry();
    let first = geometry.extent(CdbForm::Sixteen.lba(wire), 1)?;
    let allocation = be32(wire, 10) as usize;
    let most = (allocation.saturating_sub(LIST_HEADER) / DESCRIPTOR).clamp(1, STATUSES_MAX);
    if run.unit.blocks().lazy()?.is_some() {
        return Ok(crate::lazy_commands::mapped_rest(run, CdbForm::Sixteen.lba(wire)));
    }
    let shift = geometry.block().shift();
    let mut data = vec![0; LIST_HEADER];
    for stretch in run.unit.map(first.offset(), most)? {
        let status = if matches!(stretch.kind, ExtentKind::Hole) { DEALLOCATED } else { MAPPED };
        let (mut lba, mut left) = (stretch.offset >> shift, stretch.length >> shift);
        while left > 0 && data.len() < LIST_HEADER + most * DESCRIPTOR {
            let blocks = u32::try_from(left).unwrap_or(u32::MAX);
            data.extend(lba.to_be_bytes());
            data.extend(blocks.to_be_bytes());
            data.extend([status, 0, 0, 0]);
            lba += u64::from(blocks);
            left -= u64::from(blocks);
        }
    }
    let length = u32::try_from(data.len() - 4).expect("at most 1024 descriptors");
    data[..4].copy_from_slice(&length.to_be_bytes());
    data.truncate(allocation);
    Ok(CommandOutcome::data(Bytes::from(data), run))
}
