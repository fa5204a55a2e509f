//! REWRITE: atomic read-modify-write of a range of a user object, optionally under conditions.
//!
//! Does: run the operations in order on a private copy of the range, and write the changed part at
//! once.
//! Does not: check the permissions; `execute` does, before anything is read.
//! Contract: atomic for other commands (the object's lock), for failures (one write to the store,
//! except that an attribute may be refused after it on a full disk) and for a crash (one
//! transaction group, which includes the attributes of the command).
//! Truth: docs/design/security.md 4.7; docs/standards/osd.md, REWRITE.

use std::ops::Range;

use sealstone_osd::cdb::{Rewrite, RewriteReturn};
use sealstone_osd::rewrite::{RewriteAction, RewriteOperation};
use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sha2::{Digest as _, Sha256};

use super::data::{blocks_touched, change, user_object};
use super::{CommandResult, CommandRun, ObjectEffect};
use crate::attributes::current::CurrentCommandPage;
use crate::attributes::view::AttributeView;
use crate::failure::OsdFailure;

/// Runs REWRITE.
pub(crate) fn rewrite(run: &mut CommandRun<'_>, rewrite: &Rewrite) -> Result<CommandResult, OsdFailure> {
    let object = rewrite.object;
    let stat = user_object(run.device, object)?;
    let length = usize::try_from(rewrite.length).unwrap_or(usize::MAX);
    let end =
        rewrite.start.checked_add(u64::from(rewrite.length)).ok_or(OsdFailure::Field(run.start_field()))?;
    if end > stat.length && !rewrite.extend {
        return Err(OsdFailure::Field(run.start_field()));
    }
    let mut old = vec![0; length];
    let present = if rewrite.start < stat.length {
        run.device.store.read(object, rewrite.start, &mut old)?
    } else {
        0
    };
    let mut bytes = old.clone();
    let mut touched: Option<Range<usize>> = None;
    for operation in &run.segment.rewrite {
        let place = operate(run, rewrite, operation, &mut bytes)?;
        touched = match (touched, place) {
            (Some(all), Some(more)) => Some(all.start.min(more.start)..all.end.max(more.end)),
            (all, more) => all.or(more),
        };
    }
    let done = match touched {
        None => CommandResult { effect: ObjectEffect::DataRead, ..CommandResult::of(object) },
        Some(touched) => {
            let at = rewrite.start + touched.start as u64;
            let data = &bytes[touched];
            let end = stat.length.max(at + data.len() as u64);
            let growth = blocks_touched(at, data.len() as u64);
            change(run, object, stat, end, growth, |device| Ok(device.store.write(object, at, data)?))?
        }
    };
    let digest;
    let answer: &[u8] = match rewrite.returns {
        RewriteReturn::Nothing => &[],
        RewriteReturn::Old => &old[..present],
        RewriteReturn::Digest => {
            digest = Sha256::digest(&old[..present]);
            &digest
        }
    };
    let room = answer.len().min(run.data_in.len());
    run.data_in[..room].copy_from_slice(&answer[..room]);
    Ok(CommandResult { data_in: answer.len() as u64, data_in_covered: answer.len() as u64, ..done })
}

/// Runs one operation. Returns the range of bytes that it changed.
fn operate(
    run: &CommandRun<'_>,
    rewrite: &Rewrite,
    operation: &RewriteOperation,
    bytes: &mut [u8],
) -> Result<Option<Range<usize>>, OsdFailure> {
    // The parser has checked that everything is within range and operands.
    let number = |value: u64| usize::try_from(value).map_err(|_| OsdFailure::ListLength);
    let start = number(operation.offset)?;
    let place = start..start + number(operation.length.into())?;
    let operand = number(operation.operand)?;
    let operand = run
        .data_out
        .get(operand..operand + number(operation.operand_len())?)
        .ok_or(OsdFailure::ListLength)?;
    let mut combine = |with: fn(u8, u8) -> u8| {
        for (byte, operand) in bytes[place.clone()].iter_mut().zip(operand) {
            *byte = with(*byte, *operand);
        }
    };
    match operation.action {
        RewriteAction::Replace => combine(|_, new| new),
        RewriteAction::Xor => combine(|old, new| old ^ new),
        RewriteAction::And => combine(|old, new| old & new),
        RewriteAction::Or => combine(|old, new| old | new),
        RewriteAction::Add(width) => {
            let width = usize::from(width);
            for (number, more) in
                bytes[place.clone()].chunks_exact_mut(width).zip(operand.chunks_exact(width))
            {
                add(number, more);
            }
        }
        RewriteAction::Fill(width) => {
            bytes[place.clone()]
                .chunks_exact_mut(usize::from(width))
                .for_each(|part| part.copy_from_slice(operand));
        }
        RewriteAction::Copy(from) => {
            let from = number(from)?;
            bytes.copy_within(from..from + place.len(), start);
        }
        RewriteAction::Compare => {
            let differs = bytes[place].iter().zip(operand).position(|(is, wanted)| is != wanted);
            return match differs {
                None => Ok(None),
                Some(at) => Err(OsdFailure::Miscompare(rewrite.start + operation.offset + at as u64)),
            };
        }
        RewriteAction::CompareDigest => {
            if Sha256::digest(&bytes[place])[..] != *operand {
                return Err(OsdFailure::Miscompare(rewrite.start + operation.offset));
            }
            return Ok(None);
        }
        RewriteAction::CompareAttribute(id) => {
            if attribute(run, rewrite.object, id)? != operand {
                return Err(OsdFailure::Miscompare(rewrite.start));
            }
            return Ok(None);
        }
    }
    Ok((!place.is_empty()).then_some(place))
}

/// Adds little-endian numbers of the same width.
fn add(number: &mut [u8], more: &[u8]) {
    let mut carry = 0_u16;
    for (byte, more) in number.iter_mut().zip(more) {
        let sum = u16::from(*byte) + u16::from(*more) + carry;
        *byte = (sum & 0xFF) as u8;
        carry = sum >> 8;
    }
}

/// Returns the current value of an attribute; empty if it is undefined.
fn attribute(run: &CommandRun<'_>, id: ObjectId, attribute: AttributeId) -> Result<Vec<u8>, OsdFailure> {
    let current = CurrentCommandPage {
        generation: run.generation(),
        response_icv: Vec::new(),
        kind: ObjectType::User,
        partition: id.partition,
        object: id.object,
        append_start: 0,
        capacity_change: 0,
    };
    let view = AttributeView {
        device: run.device,
        id,
        kind: ObjectType::User,
        now_ms: run.now_ms,
        current: &current,
    };
    Ok(view.value(attribute)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_overflow_wraps() {
        let mut number = [0xFF, 0xFF];
        add(&mut number, &[2, 0]);
        assert_eq!(number, [1, 0]);
        let mut number = 0x0102_0304_u32.to_le_bytes();
        add(&mut number, &0xFF_u32.to_le_bytes());
        assert_eq!(u32::from_le_bytes(number), 0x0102_0403);
    }
}
