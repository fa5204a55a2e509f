//! READ, WRITE, APPEND, CLEAR, PUNCH: the bytes of one user object.
//!
//! Does: check bounds and quotas, move bytes once between the store and the buffers of the
//! transport.
//! Does not: check permissions (the permit) or handle attributes (the engine).
//! Contract: the caller has the object's lock, for change if anything changes.
//! Truth: docs/design/t10-osd.md 1.8 (scatter/gather), 1.10; traps T15, T18.

use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::{BLOCK, ObjectStat};

use super::{CommandResult, CommandRun, ObjectEffect, StatusDetail};
use crate::catalog::Partition;
use crate::device::OsdDevice;
use crate::digests;
use crate::failure::{self, OsdFailure};

/// The quota of the logical length of one object.
pub(crate) const LENGTH_QUOTA: &str = "maximum object length";

/// One piece of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransferSpan {
    /// Offset in the object.
    pub(crate) at: u64,
    /// Offset in the command data.
    pub(crate) from: u64,
    pub(crate) length: u64,
}

impl TransferSpan {
    /// Returns the whole transfer as one piece.
    pub(crate) const fn whole(at: u64, length: u64) -> Self {
        Self { at, from: 0, length }
    }
}

/// Checks that an object is an existing user object, and returns its state.
pub(crate) fn user_object(device: &OsdDevice, id: ObjectId) -> Result<ObjectStat, OsdFailure> {
    let stat = device.store.stat(id)?;
    if stat.kind == ObjectType::User { Ok(stat) } else { Err(OsdFailure::Field(failure::OBJECT)) }
}

/// Returns the partition of an object.
pub(crate) fn partition_of(
    device: &OsdDevice,
    id: ObjectId,
) -> Result<std::sync::Arc<Partition>, OsdFailure> {
    device.catalog.partition(id.partition).ok_or(OsdFailure::Field(failure::PARTITION))
}

/// READ. Bytes beyond the end read as zeros, and READ PAST END reports how many bytes exist.
pub(crate) fn read(
    run: &mut CommandRun<'_>,
    id: ObjectId,
    spans: &[TransferSpan],
) -> Result<CommandResult, OsdFailure> {
    let length = user_object(run.device, id)?.length;
    let mut transferred = 0u64;
    let mut wanted = 0u64;
    let mut found = None;
    for (index, span) in spans.iter().enumerate() {
        if span.at > length {
            return Err(run.span_failure(index));
        }
        let available = span.length.min(length - span.at);
        transferred += available;
        wanted = wanted.saturating_add(span.length);
        let into = window(run.data_in, span.from, span.length);
        let inside = usize::try_from(available).map_or(into.len(), |available| available.min(into.len()));
        let (bytes, beyond) = into.split_at_mut(inside);
        let wanted = run.digests_wanted.filter(|_| spans.len() == 1);
        let (read, covered) = digests::read(run.device, id, span.at, bytes, wanted, run.cdb.options.fua)?;
        found = covered;
        bytes[read..].fill(0);
        beyond.fill(0);
    }
    let status_detail = (transferred < wanted).then_some(StatusDetail::ReadPastEnd { transferred });
    let end = spans.last().map_or(0, |span| span.from.saturating_add(span.length));
    // The data-in check value covers everything up to the last byte that was read from the object.
    let covered = if spans.len() <= 1 { transferred } else { end };
    Ok(CommandResult {
        data_in: end,
        data_in_covered: covered,
        object_length: length,
        digests: found,
        status_detail,
        effect: ObjectEffect::DataRead,
        ..CommandResult::of(id)
    })
}

/// Returns the part of a buffer that a piece is stored in, as far as the buffer reaches.
fn window(buffer: &mut [u8], from: u64, length: u64) -> &mut [u8] {
    let end = usize::try_from(from.saturating_add(length)).unwrap_or(usize::MAX).min(buffer.len());
    let start = usize::try_from(from).unwrap_or(usize::MAX).min(end);
    &mut buffer[start..end]
}

/// WRITE, and the second half of CREATE AND WRITE.
pub(crate) fn write(
    run: &CommandRun<'_>,
    id: ObjectId,
    spans: &[TransferSpan],
) -> Result<CommandResult, OsdFailure> {
    let stat = user_object(run.device, id)?;
    let mut growth = 0u64;
    let mut end = stat.length;
    for (index, span) in spans.iter().enumerate() {
        let last = span.at.checked_add(span.length).ok_or_else(|| run.span_failure(index))?;
        end = end.max(if span.length == 0 { 0 } else { last });
        growth = growth.saturating_add(blocks_touched(span.at, span.length));
    }
    change(run, id, stat, end, growth, |device| {
        for span in spans {
            let data = usize::try_from(span.from)
                .ok()
                .zip(usize::try_from(span.length).ok())
                .and_then(|(from, length)| run.data_out.get(from..from.checked_add(length)?))
                .ok_or(OsdFailure::ListLength)?;
            match run.covered {
                // The digests that the data was verified with are stored, so they are not computed
                // twice.
                Some(covered) if spans.len() == 1 && covered.cover().range().start == span.at => {
                    device.store.write_digested(id, span.at, data, covered)?;
                }
                _ => device.store.write(id, span.at, data)?,
            }
        }
        Ok(())
    })
}

/// APPEND: writes at the current logical length.
pub(crate) fn append(run: &CommandRun<'_>, id: ObjectId, length: u64) -> Result<CommandResult, OsdFailure> {
    let start = user_object(run.device, id)?.length;
    let done = write(run, id, &[TransferSpan::whole(start, length)])?;
    Ok(CommandResult { append_start: start, ..done })
}

/// CLEAR: writes zeros; beyond the end it extends the object.
pub(crate) fn clear(
    run: &CommandRun<'_>,
    id: ObjectId,
    at: u64,
    length: u64,
) -> Result<CommandResult, OsdFailure> {
    Ok(modified(id, clear_bytes(run.device, id, at, length, run.start_field())?))
}

/// Writes zeros to a range within the quotas; returns the change of the used capacity.
/// `start_field` is the CDB byte for a range that overflows.
pub(crate) fn clear_bytes(
    device: &OsdDevice,
    id: ObjectId,
    at: u64,
    length: u64,
    start_field: u16,
) -> Result<i64, OsdFailure> {
    let stat = user_object(device, id)?;
    let end = at.checked_add(length).ok_or(OsdFailure::Field(start_field))?;
    let end = if length == 0 { stat.length } else { stat.length.max(end) };
    // At most the two blocks at the ends are rewritten. They may be holes.
    checked(device, id, stat, end, 2 * BLOCK, |device| Ok(device.store.clear(id, at, length)?))
}

/// PUNCH: removes a range and moves the rest down.
pub(crate) fn punch(
    run: &CommandRun<'_>,
    id: ObjectId,
    at: u64,
    length: u64,
) -> Result<CommandResult, OsdFailure> {
    Ok(modified(id, punch_bytes(run.device, id, at, length, run.start_field())?))
}

/// Removes a range within the quotas; returns the change of the used capacity. `start_field` is the
/// CDB byte for a range that starts beyond the end.
pub(crate) fn punch_bytes(
    device: &OsdDevice,
    id: ObjectId,
    at: u64,
    length: u64,
    start_field: u16,
) -> Result<i64, OsdFailure> {
    let stat = user_object(device, id)?;
    if at > stat.length {
        return Err(OsdFailure::Field(start_field));
    }
    let overruns = at.checked_add(length).is_none_or(|end| end >= stat.length);
    // The rest is rewritten if it does not align with the same block boundaries.
    let growth = if overruns { BLOCK } else { blocks_touched(at, stat.length - at) };
    checked(device, id, stat, stat.length, growth.min(BLOCK + stat.used_bytes), |device| {
        if overruns {
            let shorter = if length == 0 { stat.length } else { at };
            return Ok(device.store.resize(id, shorter)?);
        }
        Ok(device.store.punch(id, at, length)?)
    })
}

/// Writes bytes at an offset within the quotas, for a function.
pub(crate) fn write_bytes(
    device: &OsdDevice,
    id: ObjectId,
    stat: ObjectStat,
    at: u64,
    data: &[u8],
) -> Result<(), OsdFailure> {
    let length = data.len() as u64;
    let last = at.checked_add(length).ok_or(OsdFailure::ListLength)?;
    let end = if length == 0 { stat.length } else { stat.length.max(last) };
    checked(device, id, stat, end, blocks_touched(at, length), |device| {
        Ok(device.store.write(id, at, data)?)
    })
    .map(drop)
}

/// Sets the logical length: attribute U+1/82h.
pub(crate) fn resize(device: &OsdDevice, id: ObjectId, length: u64) -> Result<i64, OsdFailure> {
    let stat = user_object(device, id)?;
    checked(device, id, stat, stat.length.max(length), BLOCK, |device| Ok(device.store.resize(id, length)?))
}

/// Runs a change within the quotas and settles the used capacity.
pub(super) fn change(
    run: &CommandRun<'_>,
    id: ObjectId,
    stat: ObjectStat,
    end: u64,
    growth: u64,
    work: impl FnOnce(&OsdDevice) -> Result<(), OsdFailure>,
) -> Result<CommandResult, OsdFailure> {
    Ok(modified(id, checked(run.device, id, stat, end, growth, work)?))
}

/// Returns the outcome of a command that changed bytes of an object.
fn modified(id: ObjectId, capacity_change: i64) -> CommandResult {
    CommandResult { capacity_change, effect: ObjectEffect::DataModified, ..CommandResult::of(id) }
}

/// Runs a change. `end` is the logical length afterwards, `growth` the largest growth of the used
/// capacity.
fn checked(
    device: &OsdDevice,
    id: ObjectId,
    stat: ObjectStat,
    end: u64,
    growth: u64,
    work: impl FnOnce(&OsdDevice) -> Result<(), OsdFailure>,
) -> Result<i64, OsdFailure> {
    if end > stat.length && end > device.facts(id)?.max_length {
        return Err(OsdFailure::Quota(LENGTH_QUOTA));
    }
    let partition = partition_of(device, id)?;
    let growth = exact_growth(stat, end, growth);
    if growth > 0 && !device.has_room(growth) {
        return Err(OsdFailure::Quota("formatted capacity"));
    }
    if !partition.reserve(growth) {
        return Err(OsdFailure::Quota("partition capacity"));
    }
    let result = work(device);
    let after = device.store.stat(id).map_or(stat.used_bytes, |stat| stat.used_bytes);
    partition.settle(growth, stat.used_bytes, after);
    result?;
    Ok(i64::try_from(after)
        .unwrap_or(i64::MAX)
        .saturating_sub(i64::try_from(stat.used_bytes).unwrap_or(i64::MAX)))
}

/// Limits the growth of an object without holes to the part beyond its end. With holes, any block
/// may be new.
fn exact_growth(stat: ObjectStat, end: u64, growth: u64) -> u64 {
    let rounded = |length: u64| length.div_ceil(BLOCK).saturating_mul(BLOCK);
    if stat.used_bytes >= rounded(stat.length) {
        growth.min(rounded(end).saturating_sub(rounded(stat.length)))
    } else {
        growth
    }
}

/// Returns the bytes of the blocks that a range touches.
pub(super) fn blocks_touched(at: u64, length: u64) -> u64 {
    if length == 0 {
        return 0;
    }
    let last = at.saturating_add(length - 1) / BLOCK;
    (last - at / BLOCK).saturating_add(1).saturating_mul(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_object_reserves_only_growth() {
        let dense = ObjectStat { kind: ObjectType::User, length: 5000, used_bytes: 8192 };
        assert_eq!(exact_growth(dense, 5000, blocks_touched(0, 5000)), 0);
        assert_eq!(exact_growth(dense, 9000, blocks_touched(4000, 5000)), BLOCK);
        let sparse = ObjectStat { used_bytes: 4096, ..dense };
        assert_eq!(exact_growth(sparse, 5000, blocks_touched(0, 5000)), 8192);
    }

    #[test]
    fn blocks_are_counted_whole() {
        assert_eq!(blocks_touched(0, 0), 0);
        assert_eq!(blocks_touched(4095, 2), 8192);
        assert_eq!(blocks_touched(0, u64::MAX), u64::MAX);
    }
}
