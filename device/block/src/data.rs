//! READ, WRITE, VERIFY and related commands (SBC-3 §5).
//!
//! Does: move blocks between buffers and the object.
//! Does not: check reservations or the medium; `dispatch` does that before.
//! Contract: data is not copied: data-out goes from the transport's buffer to the store, data-in
//! from the store to the pool's buffer. A command whose data-out is shorter than its CDB says
//! writes nothing.
//! Truth: SBC-3 §4.10 (write caching), §4.13 (protection: none), §5.

use bytes::Bytes;

use crate::command::{BlockCommand, CommandOutcome, YieldPoint};
use crate::failure::BlockFailure;
use crate::geometry::BlockExtent;
use crate::lazy_commands;
use crate::limits::TRANSFER_MAX;
use crate::transfer::{BlockTransfer, CdbForm, be16, no_protection};

/// Bytes of one VERIFY without data-out of its length: what a disk reads in about a second.
pub(crate) const VERIFY_MAX: u64 = 128 << 20;
/// Bytes that are processed in one piece where the initiator supplies no buffer.
pub(crate) const PIECE: usize = 1 << 20;

/// Returns BYTCHK: byte 1, bits 2 and 1.
const fn byte_check(run: &BlockCommand<'_>) -> u8 {
    run.wire()[1] >> 1 & 3
}

fn max_blocks(run: &BlockCommand<'_>) -> u32 {
    run.unit.geometry().blocks_of(TRANSFER_MAX)
}

fn transfer(run: &BlockCommand<'_>, form: CdbForm) -> Result<BlockTransfer, BlockFailure> {
    BlockTransfer::parse(run.wire(), form, run.unit.geometry(), max_blocks(run))
}

/// Returns the data-out of an extent.
fn data_out<'a>(run: &BlockCommand<'a>, extent: BlockExtent) -> Result<&'a [u8], BlockFailure> {
    let wanted = extent.length();
    usize::try_from(wanted)
        .ok()
        .and_then(|length| run.command.data_out.get(..length))
        .ok_or(BlockFailure::DataOutLength(wanted))
}

/// Returns data-out that must have exactly this length.
pub(crate) fn exact_data_out<'a>(run: &BlockCommand<'a>, wanted: u64) -> Result<&'a [u8], BlockFailure> {
    let data = run.command.data_out;
    if data.len() as u64 == wanted { Ok(data) } else { Err(BlockFailure::DataOutLength(wanted)) }
}

/// Runs READ.
pub(crate) fn read(run: &BlockCommand<'_>, form: CdbForm) -> Result<CommandOutcome, BlockFailure> {
    let BlockTransfer { extent, fua } = transfer(run, form)?;
    if fua {
        // FUA: the data must be read from stable storage.
        run.unit.flush()?;
    }
    if let Some(done) = lazy_commands::read(run, extent, 0)? {
        return Ok(done);
    }
    let wanted = extent.length();
    let length = usize::try_from(wanted).unwrap_or(usize::MAX).min(run.command.data_in_max);
    let data_in = if length == 0 {
        Bytes::new()
    } else {
        let mut buffer = run.command.buffers.take(length).ok_or(BlockFailure::NoBuffer)?;
        run.unit.read(extent.offset(), &mut buffer)?;
        run.command.buffers.freeze(buffer)
    };
    Ok(CommandOutcome { moved: (data_in.len() as u64, 0), data_in, wanted, ..CommandOutcome::GOOD })
}

/// Runs WRITE.
pub(crate) fn write(run: &BlockCommand<'_>, form: CdbForm) -> Result<CommandOutcome, BlockFailure> {
    let BlockTransfer { extent, fua } = transfer(run, form)?;
    run.unit.check_writable()?;
    put(run, extent, fua)
}

fn put(run: &BlockCommand<'_>, extent: BlockExtent, durable: bool) -> Result<CommandOutcome, BlockFailure> {
    let data = data_out(run, extent)?;
    if let Some(done) = lazy_commands::write(run, extent, data, durable)? {
        return Ok(done);
    }
    run.write(extent.offset(), data, durable)?;
    let used = data.len() as u64;
    Ok(CommandOutcome { used, moved: (0, used), flush: durable, ..CommandOutcome::GOOD })
}

/// WRITE ATOMIC(16): one write to the store is atomic for readers and for crashes. Atomic
/// boundaries are not supported.
pub(crate) fn write_atomic(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    no_protection(run.wire())?;
    if be16(run.wire(), 10) != 0 {
        return Err(BlockFailure::field(10));
    }
    let blocks = be16(run.wire(), 12);
    if u32::from(blocks) > max_blocks(run) {
        return Err(BlockFailure::field(12));
    }
    let extent = run.unit.geometry().extent(CdbForm::Sixteen.lba(run.wire()), u64::from(blocks))?;
    run.unit.check_writable()?;
    put(run, extent, run.wire()[1] & 0x08 != 0)
}

/// WRITE AND VERIFY: writes, flushes, and reads back.
pub(crate) fn write_and_verify(
    run: &BlockCommand<'_>,
    form: CdbForm,
    yield_point: YieldPoint<'_>,
) -> Result<CommandOutcome, BlockFailure> {
    let check = byte_check(run);
    if check > 1 {
        return Err(BlockFailure::bit(1, 2));
    }
    let BlockTransfer { extent, .. } = transfer(run, form)?;
    run.unit.check_writable()?;
    let done = CommandOutcome { flush: false, ..put(run, extent, true)? };
    run.unit.flush()?;
    let expected =
        if check == 1 { ExpectedBlocks::Data(data_out(run, extent)?) } else { ExpectedBlocks::Anything };
    verify_extent(run, extent, expected, yield_point)?;
    Ok(done)
}

/// Runs VERIFY.
pub(crate) fn verify(
    run: &BlockCommand<'_>,
    form: CdbForm,
    yield_point: YieldPoint<'_>,
) -> Result<CommandOutcome, BlockFailure> {
    let geometry = run.unit.geometry();
    let check = byte_check(run);
    let max = match check {
        0 | 3 => geometry.blocks_of(VERIFY_MAX),
        1 => max_blocks(run),
        _ => return Err(BlockFailure::bit(1, 2)),
    };
    let BlockTransfer { extent, .. } = BlockTransfer::parse(run.wire(), form, geometry, max)?;
    let expected = match check {
        _ if extent.is_empty() => return Ok(CommandOutcome::GOOD),
        0 => ExpectedBlocks::Anything,
        1 => ExpectedBlocks::Data(data_out(run, extent)?),
        _ => {
            let block = geometry.block().bytes();
            let data = usize::try_from(block).ok().and_then(|block| run.command.data_out.get(..block));
            ExpectedBlocks::Block(data.ok_or(BlockFailure::DataOutLength(block))?)
        }
    };
    // VERIFY verifies stable storage.
    run.unit.flush()?;
    let used = match expected {
        ExpectedBlocks::Anything => 0,
        ExpectedBlocks::Data(data) | ExpectedBlocks::Block(data) => data.len() as u64,
    };
    verify_extent(run, extent, expected, yield_point)?;
    Ok(CommandOutcome { used, ..CommandOutcome::GOOD })
}

/// Expected content of blocks.
#[derive(Clone, Copy)]
enum ExpectedBlocks<'a> {
    /// Any readable content.
    Anything,
    /// This data.
    Data(&'a [u8]),
    /// This block, repeated.
    Block(&'a [u8]),
}

/// Reads an extent piece by piece and compares it.
fn verify_extent(
    run: &BlockCommand<'_>,
    extent: BlockExtent,
    expected: ExpectedBlocks<'_>,
    yield_point: YieldPoint<'_>,
) -> Result<(), BlockFailure> {
    let mut done = 0;
    while done < extent.length() {
        if done > 0 {
            yield_point()?;
        }
        let length = usize::try_from(extent.length() - done).unwrap_or(usize::MAX).min(PIECE);
        let mut buffer = run.command.buffers.take(length).ok_or(BlockFailure::NoBuffer)?;
        let read = run.unit.read(extent.offset() + done, &mut buffer);
        let equal = match expected {
            ExpectedBlocks::Anything => true,
            ExpectedBlocks::Data(data) => {
                let at = usize::try_from(done).expect("data-out is in memory");
                data[at..at + length] == buffer[..]
            }
            ExpectedBlocks::Block(block) => buffer.chunks_exact(block.len()).all(|found| found == block),
        };
        // Returns the buffer to the pool.
        drop(run.command.buffers.freeze(buffer));
        read?;
        if !equal {
            return Err(BlockFailure::Miscompare(None));
        }
        done += length as u64;
    }
    Ok(())
}

/// COMPARE AND WRITE. Runs exclusively, so no write gets between comparison and write.
pub(crate) fn compare_and_write(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    no_protection(run.wire())?;
    let blocks = run.wire()[13];
    let extent = run.unit.geometry().extent(CdbForm::Sixteen.lba(run.wire()), u64::from(blocks))?;
    run.unit.check_writable()?;
    if blocks == 0 && !run.command.data_out.is_empty() {
        // Most likely more blocks than the field can express.
        return Err(BlockFailure::field(13));
    }
    let wanted = extent.length() * 2;
    let data = exact_data_out(run, wanted)?;
    if extent.is_empty() {
        return Ok(CommandOutcome::GOOD);
    }
    let (compare, write) = data.split_at(data.len() / 2);
    let mut buffer = run.command.buffers.take(compare.len()).ok_or(BlockFailure::NoBuffer)?;
    let read = run.unit.read(extent.offset(), &mut buffer);
    let differs = compare.iter().zip(&buffer).position(|(expected, found)| expected != found);
    drop(run.command.buffers.freeze(buffer));
    read?;
    if let Some(at) = differs {
        return Err(BlockFailure::Miscompare(Some(at as u64)));
    }
    let flush = run.wire()[1] & 0x08 != 0;
    run.write(extent.offset(), write, flush)?;
    Ok(CommandOutcome { used: wanted, moved: (0, write.len() as u64), flush, ..CommandOutcome::GOOD })
}

/// ORWRITE: combines stored and sent data with OR. Runs exclusively.
pub(crate) fn or_write(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    let BlockTransfer { extent, fua } = transfer(run, CdbForm::Sixteen)?;
    run.unit.check_writable()?;
    let data = data_out(run, extent)?;
    if extent.is_empty() {
        return Ok(CommandOutcome::GOOD);
    }
    let mut buffer = run.command.buffers.take(data.len()).ok_or(BlockFailure::NoBuffer)?;
    let written = run.unit.read(extent.offset(), &mut buffer).and_then(|()| {
        buffer.iter_mut().zip(data).for_each(|(there, sent)| *there |= sent);
        run.write(extent.offset(), &buffer, fua)
    });
    drop(run.command.buffers.freeze(buffer));
    written?;
    let used = data.len() as u64;
    Ok(CommandOutcome { used, moved: (0, used), flush: fua, ..CommandOutcome::GOOD })
}

/// PRE-FETCH: a unit has no cache of its own to fill, so the status is GOOD. CONDITION MET would
/// claim that all blocks are cached.
pub(crate) fn prefetch(run: &BlockCommand<'_>, form: CdbForm) -> Result<CommandOutcome, BlockFailure> {
    run.unit.geometry().extent(form.lba(run.wire()), u64::from(form.blocks(run.wire())))?;
    Ok(CommandOutcome::GOOD)
}

/// SYNCHRONIZE CACHE: flushes everything, whatever the extent, before GOOD even with IMMED. Fails
/// once for a nexus whose writes may be lost after a power failure.
pub(crate) fn synchronize(run: &BlockCommand<'_>, form: CdbForm) -> Result<CommandOutcome, BlockFailure> {
    run.unit.geometry().extent(form.lba(run.wire()), u64::from(form.blocks(run.wire())))?;
    if run.unit.blocks().lazy()?.is_some() {
        // The flush verifies: it may find the loss that this command reports.
        run.unit.flush()?;
    }
    run.unit.report_loss(run.nexus)?;
    Ok(CommandOutcome { flush: true, ..CommandOutcome::GOOD })
}
