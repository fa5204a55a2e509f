//! Commands about the unit rather than its blocks: capacity, medium, defects, self-test (SBC-3 §5, SPC-4 §6).

use bytes::Bytes;

use crate::command::{Done, Run};
use crate::failure::Failure;
use crate::transfer::{Form, be16, be32, be64};

/// READ CAPACITY(10): all ones where 32 bits do not do.
pub(crate) fn capacity_10(run: &Run<'_>) -> Result<Done, Failure> {
    let wire = run.wire();
    // PMI and an LBA are obsolete; an initiator that means them must not take the answer for theirs.
    if wire[8] & 1 != 0 {
        return Err(Failure::bit(8, 0));
    }
    if be32(wire, 2) != 0 {
        return Err(Failure::field(2));
    }
    let geometry = run.unit.geometry();
    let last = u32::try_from(geometry.blocks() - 1).unwrap_or(u32::MAX);
    let mut data = last.to_be_bytes().to_vec();
    data.extend(u32::try_from(geometry.block().bytes()).expect("at most 4096").to_be_bytes());
    Ok(Done::data(Bytes::from(data), run))
}

/// READ CAPACITY(16).
pub(crate) fn capacity_16(run: &Run<'_>) -> Result<Done, Failure> {
    const LBPME: u8 = 0x80;
    const LBPRZ: u8 = 0x40;
    let wire = run.wire();
    if wire[14] & 1 != 0 {
        return Err(Failure::bit(14, 0));
    }
    if be64(wire, 2) != 0 {
        return Err(Failure::field(2));
    }
    let geometry = run.unit.geometry();
    let mut data = (geometry.blocks() - 1).to_be_bytes().to_vec();
    data.extend(u32::try_from(geometry.block().bytes()).expect("at most 4096").to_be_bytes());
    // PROT_EN 0; P_I_EXPONENT 0.
    data.extend([0, geometry.block().physical_exponent()]);
    data.push(if run.unit.is_thin() { LBPME | LBPRZ } else { 0 });
    data.resize(32, 0);
    data.truncate(be32(wire, 10) as usize);
    Ok(Done::data(Bytes::from(data), run))
}

/// START STOP UNIT. Nothing turns that could be stopped: a stop flushes, and the unit, which others use too, stays as
/// ready as before. So it does in every power condition.
pub(crate) fn start_stop(run: &Run<'_>) -> Result<Done, Failure> {
    const START: u8 = 0x01;
    const LOEJ: u8 = 0x02;
    const NO_FLUSH: u8 = 0x04;
    /// ACTIVE, IDLE, STANDBY, LU_CONTROL, FORCE_IDLE_0, FORCE_STANDBY_0.
    const CONDITIONS: [u8; 6] = [0x1, 0x2, 0x3, 0x7, 0xA, 0xB];
    let flags = run.wire()[4];
    let condition = flags >> 4;
    if condition != 0 {
        // START and LOEJ are ignored then.
        return if CONDITIONS.contains(&condition) { Ok(Done::GOOD) } else { Err(Failure::bit(4, 7)) };
    }
    let (start, load) = (flags & START != 0, flags & LOEJ != 0);
    if load && !run.unit.is_removable() {
        return Err(Failure::bit(4, 1));
    }
    if !start && flags & NO_FLUSH == 0 {
        run.unit.flush()?;
    }
    if load {
        run.unit.medium().load(start)?;
    }
    Ok(Done::GOOD)
}

/// PREVENT ALLOW MEDIUM REMOVAL; on a medium that cannot be removed it changes nothing.
pub(crate) fn prevent_removal(run: &Run<'_>) -> Result<Done, Failure> {
    match run.wire()[4] & 3 {
        prevent @ 0..=1 => {
            run.unit.medium().prevent(run.nexus.id, prevent == 1);
            Ok(Done::GOOD)
        }
        // Meant for media changers, and obsolete.
        _ => Err(Failure::bit(4, 1)),
    }
}

/// SEND DIAGNOSTIC: the default self-test, which is that the store can still write.
pub(crate) fn diagnose(run: &Run<'_>) -> Result<Done, Failure> {
    const SELF_TEST: u8 = 0x04;
    let wire = run.wire();
    if wire[1] & !SELF_TEST != 0 {
        return Err(Failure::field(1));
    }
    if be16(wire, 3) != 0 {
        return Err(Failure::field(3));
    }
    if wire[1] & SELF_TEST != 0 {
        run.unit.flush()?;
    }
    Ok(Done::GOOD)
}

/// READ DEFECT DATA(10): the store has no defects to tell of: a block that was damaged is repaired by writing it.
pub(crate) fn defects_10(run: &Run<'_>) -> Result<Done, Failure> {
    let wire = run.wire();
    let mut data = vec![0, wire[2] & 0x1F, 0, 0];
    data.truncate(usize::from(be16(wire, 7)));
    Ok(Done::data(Bytes::from(data), run))
}

/// READ DEFECT DATA(12).
pub(crate) fn defects_12(run: &Run<'_>) -> Result<Done, Failure> {
    let wire = run.wire();
    let mut data = vec![0, wire[1] & 0x1F, 0, 0, 0, 0, 0, 0];
    data.truncate(Form::Twelve.blocks(wire) as usize);
    Ok(Done::data(Bytes::from(data), run))
}
