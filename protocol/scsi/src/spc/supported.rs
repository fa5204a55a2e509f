//! REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 §6.34,
//! §6.35).

use alloc::vec::Vec;

use super::SpcError;

/// One command of a logical unit, as reported by REPORT SUPPORTED OPERATION CODES.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandRow {
    /// OPERATION CODE.
    pub opcode: u8,
    /// SERVICE ACTION, if the operation code has them.
    pub action: Option<u16>,
    /// Bytes of the CDB.
    pub length: u16,
    /// The bits of the CDB that are evaluated, from byte 1 on; bytes past its end are all
    /// evaluated. Operation code and service action may be omitted.
    pub usage: &'static [u8],
    /// NOMINAL COMMAND PROCESSING TIMEOUT in seconds; 0 means unspecified.
    pub nominal_s: u32,
    /// RECOMMENDED COMMAND TIMEOUT in seconds; 0 means unspecified.
    pub recommended_s: u32,
}

impl CommandRow {
    /// Returns a command without service action or timeouts.
    #[must_use]
    pub const fn new(opcode: u8, length: u16, usage: &'static [u8]) -> Self {
        Self { opcode, action: None, length, usage, nominal_s: 0, recommended_s: 0 }
    }

    /// Sets the service action.
    #[must_use]
    pub const fn action(self, action: u16) -> Self {
        Self { action: Some(action), ..self }
    }

    /// Sets the usual duration and the recommended timeout in seconds.
    #[must_use]
    pub const fn seconds(self, nominal_s: u32, recommended_s: u32) -> Self {
        Self { nominal_s, recommended_s, ..self }
    }

    /// Returns CDB USAGE DATA: operation code and service action as they are, then masks.
    fn usage_data(&self) -> Vec<u8> {
        let mut out = alloc::vec![0xFF; usize::from(self.length)];
        for (slot, mask) in out.iter_mut().skip(1).zip(self.usage) {
            *slot = *mask;
        }
        if let Some(first) = out.first_mut() {
            *first = self.opcode;
        }
        match self.action {
            Some(action) if self.opcode == VARIABLE_LENGTH => {
                if let Some(field) = out.get_mut(8..10) {
                    field.copy_from_slice(&action.to_be_bytes());
                }
            }
            Some(action) => {
                if let Some(byte) = out.get_mut(1) {
                    *byte = (*byte & !ACTION_MASK) | (action.to_be_bytes()[1] & ACTION_MASK);
                }
            }
            None => {}
        }
        out
    }

    fn timeouts(&self, out: &mut Vec<u8>) {
        out.extend((TIMEOUTS_LEN as u16 - 2).to_be_bytes());
        out.extend([0, 0]);
        out.extend(self.nominal_s.to_be_bytes());
        out.extend(self.recommended_s.to_be_bytes());
    }
}

/// Commands of variable length have their service action in bytes 8 and 9.
const VARIABLE_LENGTH: u8 = 0x7F;
/// Others in the low bits of byte 1.
const ACTION_MASK: u8 = 0x1F;
/// Bytes of a command timeouts descriptor.
const TIMEOUTS_LEN: usize = 12;
/// SERVACTV and CTDP of a command descriptor.
const SERVACTV: u8 = 0x01;
const CTDP: u8 = 0x02;
/// CTDP and SUPPORT of the response about one command.
const ONE_CTDP: u8 = 0x80;
const SUPPORTED: u8 = 0x03;
const NOT_SUPPORTED: u8 = 0x01;

/// REPORTING OPTIONS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reporting {
    /// 000b: every command.
    All,
    /// 001b: this operation code, which has no service actions.
    Opcode(u8),
    /// 010b: this service action of an operation code that has them.
    Action(u8, u16),
    /// 011b: either of the two.
    Either(u8, u16),
}

/// Returns the response, before it is truncated to the allocation length.
///
/// # Errors
/// The options do not match the operation code.
pub fn operation_codes(
    rows: impl Iterator<Item = CommandRow> + Clone,
    reporting: Reporting,
    timeouts: bool,
) -> Result<Vec<u8>, SpcError> {
    let opcode_at = SpcError::Field { at: 3 };
    let has_actions = |opcode| rows.clone().any(|row| row.opcode == opcode && row.action.is_some());
    let find = |opcode, action| rows.clone().find(|row| row.opcode == opcode && row.action == action);
    let found = match reporting {
        Reporting::All => return Ok(all(rows, timeouts)),
        Reporting::Opcode(opcode) if has_actions(opcode) => return Err(opcode_at),
        Reporting::Opcode(opcode) => find(opcode, None),
        Reporting::Action(opcode, action) => match find(opcode, Some(action)) {
            None if find(opcode, None).is_some() => return Err(opcode_at),
            found => found,
        },
        Reporting::Either(opcode, action) => {
            find(opcode, Some(action)).or_else(|| find(opcode, None).filter(|_| action == 0))
        }
    };
    let mut out = Vec::new();
    let Some(row) = found else {
        out.extend([0, NOT_SUPPORTED, 0, 0]);
        return Ok(out);
    };
    out.extend([0, SUPPORTED | if timeouts { ONE_CTDP } else { 0 }]);
    out.extend(row.length.to_be_bytes());
    out.extend(row.usage_data());
    if timeouts {
        row.timeouts(&mut out);
    }
    Ok(out)
}

fn all(rows: impl Iterator<Item = CommandRow>, timeouts: bool) -> Vec<u8> {
    let mut out = alloc::vec![0; 4];
    for row in rows {
        out.extend([row.opcode, 0]);
        out.extend(row.action.unwrap_or(0).to_be_bytes());
        let flags = if row.action.is_some() { SERVACTV } else { 0 } | if timeouts { CTDP } else { 0 };
        out.extend([0, flags]);
        out.extend(row.length.to_be_bytes());
        if timeouts {
            row.timeouts(&mut out);
        }
    }
    let length = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&length.to_be_bytes());
    out
}

/// ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET.
const FUNCTIONS: u8 = 0x80 | 0x40 | 0x10 | 0x08;

/// Returns the functions of the target for every logical unit; `extended` requests the timeouts,
/// all of them unspecified.
///
/// The obsolete bit of TARGET RESET stays clear whether or not the target permits it, since it does
/// not concern the logical unit.
#[must_use]
pub fn task_functions(extended: bool) -> Vec<u8> {
    if extended {
        let mut out = alloc::vec![0; 16];
        (out[0], out[3]) = (FUNCTIONS, 12);
        out
    } else {
        alloc::vec![FUNCTIONS, 0, 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &[CommandRow] = &[
        CommandRow::new(0x28, 10, &[0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0xFF, 0xFF, 0x04]).seconds(1, 30),
        CommandRow::new(0x9E, 16, &[]).action(0x10),
        CommandRow::new(0x7F, 236, &[0x04]).action(0x8885),
    ];

    fn one(reporting: Reporting, timeouts: bool) -> Result<Vec<u8>, SpcError> {
        operation_codes(ROWS.iter().copied(), reporting, timeouts)
    }

    #[test]
    fn commands_are_listed_with_length_and_action() {
        let plain = one(Reporting::All, false).unwrap();
        assert_eq!(plain.len(), 4 + 3 * 8);
        assert_eq!(plain[..4], [0, 0, 0, 24]);
        assert_eq!(plain[12..20], [0x9E, 0, 0, 0x10, 0, 1, 0, 16]);
        assert_eq!(plain[20..28], [0x7F, 0, 0x88, 0x85, 0, 1, 0, 236]);
        let timed = one(Reporting::All, true).unwrap();
        assert_eq!(timed.len(), 4 + 3 * 20);
        assert_eq!(timed[4..24], [0x28, 0, 0, 0, 0, 2, 0, 10, 0, 10, 0, 0, 0, 0, 0, 1, 0, 0, 0, 30]);
    }

    #[test]
    fn one_command_reports_its_usage_bits() {
        let read = one(Reporting::Opcode(0x28), true).unwrap();
        assert_eq!(read[..6], [0, 0x83, 0, 10, 0x28, 0xFE]);
        assert_eq!(read.len(), 4 + 10 + 12);
        let capacity = one(Reporting::Action(0x9E, 0x10), false).unwrap();
        assert_eq!(capacity[..6], [0, 3, 0, 16, 0x9E, 0xF0]);
        let osd = one(Reporting::Either(0x7F, 0x8885), false).unwrap();
        assert_eq!((osd.len(), &osd[4..6], &osd[12..14]), (240, &[0x7F, 0x04][..], &[0x88, 0x85][..]));
    }

    #[test]
    fn wrong_reporting_options_are_refused() {
        assert_eq!(one(Reporting::Opcode(0x9E), false), Err(SpcError::Field { at: 3 }));
        assert_eq!(one(Reporting::Action(0x28, 0), false), Err(SpcError::Field { at: 3 }));
        for unknown in [Reporting::Opcode(0xFE), Reporting::Action(0x9E, 0x1F), Reporting::Either(0x28, 1)] {
            assert_eq!(one(unknown, true), Ok(alloc::vec![0, 1, 0, 0]), "{unknown:?}");
        }
        assert_eq!(one(Reporting::Either(0x28, 0), false).unwrap()[1], 3);
    }
}
