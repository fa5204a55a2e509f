//! READ, WRITE, VERIFY and their kin (SBC-3 §5).
//!
//! Does: move blocks between buffers and the object. Does not: check reservations or the medium; `unit` did.
//! Contract: data-out goes to the store from the transport's buffer, data-in from the store into the pool's: no copy is
//! made in between. A command whose data-out is shorter than it says writes nothing.
//! Truth: SBC-3 §4.10 (write caching), §4.13 (protection: none), §5.

use bytes::Bytes;

use crate::command::{Between, Done, Run};
use crate::failure::Failure;
use crate::geometry::Extent;
use crate::transfer::{Form, Transfer, be16, no_protection};

/// Most bytes of one transfer: MAXIMUM TRANSFER LENGTH, and the longest data-out that the target collects.
pub(crate) const TRANSFER_MAX: u64 = 16 << 20;
/// Most bytes of one VERIFY without data-out of its length: what a medium reads in about a second.
pub(crate) const VERIFY_MAX: u64 = 128 << 20;
/// Most blocks of COMPARE AND WRITE: what its length field can say.
pub(crate) const COMPARE_BLOCKS_MAX: u8 = 255;
/// Bytes that are looked at in one piece where there is no buffer of the initiator's.
pub(crate) const PIECE: usize = 1 << 20;

/// BYTCHK: byte 1, bits 2 and 1.
const fn byte_check(run: &Run<'_>) -> u8 {
    run.wire()[1] >> 1 & 3
}

fn max_blocks(run: &Run<'_>) -> u32 {
    run.unit.geometry().blocks_of(TRANSFER_MAX)
}

fn transfer(run: &Run<'_>, form: Form) -> Result<Transfer, Failure> {
    Transfer::parse(run.wire(), form, run.unit.geometry(), max_blocks(run))
}

/// The data-out of an extent.
fn data_out<'a>(run: &Run<'a>, extent: Extent) -> Result<&'a [u8], Failure> {
    let wanted = extent.length();
    usize::try_from(wanted)
        .ok()
        .and_then(|length| run.command.data_out.get(..length))
        .ok_or(Failure::DataOutLength(wanted))
}

/// Data-out that has to be exactly so long.
pub(crate) fn exact_data_out<'a>(run: &Run<'a>, wanted: u64) -> Result<&'a [u8], Failure> {
    let data = run.command.data_out;
    if data.len() as u64 == wanted { Ok(data) } else { Err(Failure::DataOutLength(wanted)) }
}

/// READ.
pub(crate) fn read(run: &Run<'_>, form: Form) -> Result<Done, Failure> {
    let Transfer { extent, fua } = transfer(run, form)?;
    if fua {
        // What is read has to be on the medium.
        run.unit.flush()?;
    }
    let wanted = extent.length();
    let length = usize::try_from(wanted).unwrap_or(usize::MAX).min(run.command.data_in_max);
    let data_in = if length == 0 {
        Bytes::new()
    } else {
        let mut buffer = run.command.buffers.take(length).ok_or(Failure::NoBuffer)?;
        run.unit.read(extent.offset(), &mut buffer)?;
        run.command.buffers.freeze(buffer)
    };
    Ok(Done { moved: (data_in.len() as u64, 0), data_in, wanted, ..Done::GOOD })
}

/// WRITE.
pub(crate) fn write(run: &Run<'_>, form: Form) -> Result<Done, Failure> {
    let Transfer { extent, fua } = transfer(run, form)?;
    run.unit.check_writable()?;
    put(run, extent, fua)
}

fn put(run: &Run<'_>, extent: Extent, durable: bool) -> Result<Done, Failure> {
    let data = data_out(run, extent)?;
    run.write(extent.offset(), data, durable)?;
    let used = data.len() as u64;
    Ok(Done { used, moved: (0, used), flush: durable, ..Done::GOOD })
}

/// WRITE ATOMIC(16): one write to the store is one for readers, and one for a crash. Boundaries are not supported.
pub(crate) fn write_atomic(run: &Run<'_>) -> Result<Done, Failure> {
    no_protection(run.wire())?;
    if be16(run.wire(), 10) != 0 {
        return Err(Failure::field(10));
    }
    let blocks = be16(run.wire(), 12);
    if u32::from(blocks) > max_blocks(run) {
        return Err(Failure::field(12));
    }
    let extent = run.unit.geometry().extent(Form::Sixteen.lba(run.wire()), u64::from(blocks))?;
    run.unit.check_writable()?;
    put(run, extent, run.wire()[1] & 0x08 != 0)
}

/// WRITE AND VERIFY: written, durable, read back.
pub(crate) fn write_and_verify(run: &Run<'_>, form: Form, between: Between<'_>) -> Result<Done, Failure> {
    let check = byte_check(run);
    if check > 1 {
        return Err(Failure::bit(1, 2));
    }
    let Transfer { extent, .. } = transfer(run, form)?;
    run.unit.check_writable()?;
    let done = Done { flush: false, ..put(run, extent, true)? };
    run.unit.flush()?;
    let expected = if check == 1 { Expected::Data(data_out(run, extent)?) } else { Expected::Anything };
    look_through(run, extent, expected, between)?;
    Ok(done)
}

/// VERIFY.
pub(crate) fn verify(run: &Run<'_>, form: Form, between: Between<'_>) -> Result<Done, Failure> {
    let geometry = run.unit.geometry();
    let check = byte_check(run);
    let max = match check {
        0 | 3 => geometry.blocks_of(VERIFY_MAX),
        1 => max_blocks(run),
        _ => return Err(Failure::bit(1, 2)),
    };
    let Transfer { extent, .. } = Transfer::parse(run.wire(), form, geometry, max)?;
    let expected = match check {
        _ if extent.is_empty() => return Ok(Done::GOOD),
        0 => Expected::Anything,
        1 => Expected::Data(data_out(run, extent)?),
        _ => {
            let block = geometry.block().bytes();
            let data = usize::try_from(block).ok().and_then(|block| run.command.data_out.get(..block));
            Expected::Block(data.ok_or(Failure::DataOutLength(block))?)
        }
    };
    // What is verified is the medium.
    run.unit.flush()?;
    let used = match expected {
        Expected::Anything => 0,
        Expected::Data(data) | Expected::Block(data) => data.len() as u64,
    };
    look_through(run, extent, expected, between)?;
    Ok(Done { used, ..Done::GOOD })
}

/// What blocks have to be.
#[derive(Clone, Copy)]
enum Expected<'a> {
    /// Readable.
    Anything,
    /// This.
    Data(&'a [u8]),
    /// This one, again and again.
    Block(&'a [u8]),
}

/// Reads an extent piece by piece and compares.
fn look_through(
    run: &Run<'_>,
    extent: Extent,
    expected: Expected<'_>,
    between: Between<'_>,
) -> Result<(), Failure> {
    let mut done = 0;
    while done < extent.length() {
        if done > 0 {
            between()?;
        }
        let length = usize::try_from(extent.length() - done).unwrap_or(usize::MAX).min(PIECE);
        let mut buffer = run.command.buffers.take(length).ok_or(Failure::NoBuffer)?;
        let read = run.unit.read(extent.offset() + done, &mut buffer);
        let equal = match expected {
            Expected::Anything => true,
            Expected::Data(data) => {
                let at = usize::try_from(done).expect("data-out is in memory");
                data[at..at + length] == buffer[..]
            }
            Expected::Block(block) => buffer.chunks_exact(block.len()).all(|found| found == block),
        };
        // The buffer goes back to the pool.
        drop(run.command.buffers.freeze(buffer));
        read?;
        if !equal {
            return Err(Failure::Miscompare(None));
        }
        done += length as u64;
    }
    Ok(())
}

/// COMPARE AND WRITE: alone on the unit, so that nothing comes between both.
pub(crate) fn compare_and_write(run: &Run<'_>) -> Result<Done, Failure> {
    no_protection(run.wire())?;
    let blocks = run.wire()[13];
    let extent = run.unit.geometry().extent(Form::Sixteen.lba(run.wire()), u64::from(blocks))?;
    run.unit.check_writable()?;
    if blocks == 0 && !run.command.data_out.is_empty() {
        // More blocks than the field can say, most likely.
        return Err(Failure::field(13));
    }
    let wanted = extent.length() * 2;
    let data = exact_data_out(run, wanted)?;
    if extent.is_empty() {
        return Ok(Done::GOOD);
    }
    let (compare, write) = data.split_at(data.len() / 2);
    let mut buffer = run.command.buffers.take(compare.len()).ok_or(Failure::NoBuffer)?;
    let read = run.unit.read(extent.offset(), &mut buffer);
    let differs = compare.iter().zip(&buffer).position(|(expected, found)| expected != found);
    drop(run.command.buffers.freeze(buffer));
    read?;
    if let Some(at) = differs {
        return Err(Failure::Miscompare(Some(at as u64)));
    }
    let flush = run.wire()[1] & 0x08 != 0;
    run.write(extent.offset(), write, flush)?;
    Ok(Done { used: wanted, moved: (0, write.len() as u64), flush, ..Done::GOOD })
}

/// ORWRITE: what is there or what is sent, alone on the unit.
pub(crate) fn or_write(run: &Run<'_>) -> Result<Done, Failure> {
    let Transfer { extent, fua } = transfer(run, Form::Sixteen)?;
    run.unit.check_writable()?;
    let data = data_out(run, extent)?;
    if extent.is_empty() {
        return Ok(Done::GOOD);
    }
    let mut buffer = run.command.buffers.take(data.len()).ok_or(Failure::NoBuffer)?;
    let written = run.unit.read(extent.offset(), &mut buffer).and_then(|()| {
        buffer.iter_mut().zip(data).for_each(|(there, sent)| *there |= sent);
        run.write(extent.offset(), &buffer, fua)
    });
    drop(run.command.buffers.freeze(buffer));
    written?;
    let used = data.len() as u64;
    Ok(Done { used, moved: (0, used), flush: fua, ..Done::GOOD })
}

/// PRE-FETCH: there is no cache of this unit's own to put anything into, which GOOD says (CONDITION MET would be that
/// all of it is there).
pub(crate) fn prefetch(run: &Run<'_>, form: Form) -> Result<Done, Failure> {
    run.unit.geometry().extent(form.lba(run.wire()), u64::from(form.blocks(run.wire())))?;
    Ok(Done::GOOD)
}

/// SYNCHRONIZE CACHE flushes everything, whatever extent it names, and with IMMED too before GOOD. It fails once for a
/// nexus whose writes may be lost after a power failure.
pub(crate) fn synchronize(run: &Run<'_>, form: Form) -> Result<Done, Failure> {
    run.unit.geometry().extent(form.lba(run.wire()), u64::from(form.blocks(run.wire())))?;
    run.unit.report_loss(run.nexus)?;
    Ok(Done { flush: true, ..Done::GOOD })
}
