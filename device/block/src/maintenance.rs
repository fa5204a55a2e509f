//! Commands about the unit as a whole: capacity, medium, defects, self-test (SBC-3 §5, SPC-4 §6).

use bytes::Bytes;

use crate::command::{BlockCommand, CommandOutcome};
use crate::failure::BlockFailure;
use crate::transfer::{CdbForm, be16, be32, be64};

/// READ CAPACITY(10). Reports FFFFFFFFh if the last LBA does not fit in 32 bits.
pub(crate) fn capacity_10(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    let wire = run.wire();
    // PMI and the LBA are obsolete. Refusing them prevents an initiator that uses them from
    // misreading the answer.
    if wire[8] & 1 != 0 {
        return Err(BlockFailure::bit(8, 0));
    }
    if be32(wire, 2) != 0 {
        return Err(BlockFailure::field(2));
    }
    let geometry = run.unit.geometry();
    let last = u32::try_from(geometry.blocks() - 1).unwrap_or(u32::MAX);
    let mut data = last.to_be_bytes().to_vec();
    data.extend(u32::try_from(geometry.block().bytes()).expect("at most 4096").to_be_bytes());
    Ok(CommandOutcome::data(Bytes::from(data), run))
}

/// READ CAPACITY(16).
pub(crate) fn capacity_16(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    const LBPME: u8 = 0x80;
    const LBPRZ: u8 = 0x40;
    let wire = run.wire();
    if wire[14] & 1 != 0 {
        return Err(BlockFailure::bit(14, 0));
    }
    if be64(wire, 2) != 0 {
        return Err(BlockFailure::field(2));
    }
    let geometry = run.unit.geometry();
    let mut data = (geometry.blocks() - 1).to_be_bytes().to_vec();
    data.extend(u32::try_from(geometry.block().bytes()).expect("at most 4096").to_be_bytes());
    // PROT_EN 0; P_I_EXPONENT 0.
    data.extend([0, geometry.block().physical_exponent()]);
    data.push(if run.unit.is_thin() { LBPME | LBPRZ } else { 0 });
    data.resize(32, 0);
    data.truncate(be32(wire, 10) as usize);
    Ok(CommandOutcome::data(Bytes::from(data), run))
}

/// START STOP UNIT. There is no motor: a stop flushes, and the unit stays ready for its other
/// users. The same holds for every power condition.
pub(crate) fn start_stop(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    const START: u8 = 0x01;
    const LOEJ: u8 = 0x02;
    const NO_FLUSH: u8 = 0x04;
    /// ACTIVE, IDLE, STANDBY, LU_CONTROL, FORCE_IDLE_0, FORCE_STANDBY_0.
    const CONDITIONS: [u8; 6] = [0x1, 0x2, 0x3, 0x7, 0xA, 0xB];
    let flags = run.wire()[4];
    let condition = flags >> 4;
    if condition != 0 {
        // START and LOEJ are ignored with a power condition.
        return if CONDITIONS.contains(&condition) {
            Ok(CommandOutcome::GOOD)
        } else {
            Err(BlockFailure::bit(4, 7))
        };
    }
    let (start, load) = (flags & START != 0, flags & LOEJ != 0);
    if load && !run.unit.is_removable() {
        return Err(BlockFailure::bit(4, 1));
    }
    if !start && flags & NO_FLUSH == 0 {
        run.unit.flush()?;
    }
    if load {
        run.unit.medium().load(start)?;
    }
    Ok(CommandOutcome::GOOD)
}

/// PREVENT ALLOW MEDIUM REMOVAL. Has no effect on a medium that cannot be removed.
pub(crate) fn prevent_removal(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    match run.wire()[4] & 3 {
        prevent @ 0..=1 => {
            run.unit.medium().prevent(run.nexus.id, prevent == 1);
            Ok(CommandOutcome::GOOD)
        }
        // These values are for media changers, and obsolete.
        _ => Err(BlockFailure::bit(4, 1)),
    }
}

/// SEND DIAGNOSTIC. The default self-test checks that the store can write.
pub(crate) fn diagnose(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    const SELF_TEST: u8 = 0x04;
    let wire = run.wire();
    if wire[1] & !SELF_TEST != 0 {
        return Err(BlockFailure::field(1));
    }
    if be16(wire, 3) != 0 {
        return Err(BlockFailure::field(3));
    }
    if wire[1] & SELF_TEST != 0 {
        run.unit.flush()?;
    }
    Ok(CommandOutcome::GOOD)
}

/// READ DEFECT DATA(10). The list is empty: a damaged block is repaired by writing it.
pub(crate) fn defects_10(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    let wire = run.wire();
    let mut data = vec![0, wire[2] & 0x1F, 0, 0];
    data.truncate(usize::from(be16(wire, 7)));
    Ok(CommandOutcome::data(Bytes::from(data), run))
}

/// READ DEFECT DATA(12).
pub(crate) fn defects_12(run: &BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure> {
    let wire = run.wire();
    let mut data = vec![0, wire[1] & 0x1F, 0, 0, 0, 0, 0, 0];
    data.truncate(CdbForm::Twelve.blocks(wire) as usize);
    Ok(CommandOutcome::data(Bytes::from(data), run))
}
