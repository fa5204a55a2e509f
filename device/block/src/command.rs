//! The table of commands, and what a command's function gets and gives.
//!
//! Does: one row for each command: code, bits that are looked at, class, function. Dispatch, REPORT SUPPORTED OPERATION
//! CODES and the tests read the same rows. Does not: run anything; `unit` does.
//! Truth: SBC-3 §5, SPC-4 §6; `docs/standards/block.md`.

use std::cell::Cell;
use std::sync::LazyLock;

use bytes::Bytes;
use sealstone_scsi::Status;
use sealstone_scsi::lu::ScsiCommand;
use sealstone_scsi::spc::supported::CommandRow;
use sealstone_store::StoreError;

use crate::catalog::Description;
use crate::failure::Failure;
use crate::geometry::Extent;
use crate::nexus::Nexus;
use crate::reservation::{Access, Reservations};
use crate::reserve::{input, output};
use crate::transfer::{Form, Wire};
use crate::unit::BlockUnit;
use crate::{data, maintenance, provisioning, reserve};

/// One command under way.
pub(crate) struct Run<'a> {
    pub(crate) unit: &'a BlockUnit,
    pub(crate) nexus: &'a Nexus,
    pub(crate) command: &'a ScsiCommand<'a>,
    wire: Wire,
    /// The command flushes before GOOD, whether it asks for that or not.
    write_through: Cell<bool>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(unit: &'a BlockUnit, nexus: &'a Nexus, command: &'a ScsiCommand<'a>) -> Self {
        let mut wire = [0; 16];
        let length = command.cdb.len().min(wire.len());
        wire[..length].copy_from_slice(&command.cdb[..length]);
        let write_through = Cell::new(unit.is_write_through(nexus));
        Self { unit, nexus, command, wire, write_through }
    }

    /// Whether the command flushes before GOOD although it does not ask for that.
    pub(crate) const fn write_through(&self) -> bool {
        self.write_through.get()
    }

    /// The CDB.
    pub(crate) const fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Writes blocks. `durable` says that the command flushes before GOOD.
    pub(crate) fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<(), Failure> {
        self.begin_change(durable)?;
        self.unit.write(offset, data)
    }

    /// Deallocates blocks; a flush is not part of the command.
    pub(crate) fn unmap(&self, extent: Extent) -> Result<(), Failure> {
        self.begin_change(false)?;
        self.unit.unmap(extent)
    }

    fn begin_change(&self, durable: bool) -> Result<(), Failure> {
        if durable || self.write_through() {
            return Ok(());
        }
        match self.unit.mark_dirty(self.nexus) {
            // Without space for a mark the write itself is made durable.
            Err(Failure::Write(StoreError::NoSpace)) => {
                self.write_through.set(true);
                Ok(())
            }
            marked => marked,
        }
    }

    /// SERVICE ACTION: byte 1, bits 4 to 0.
    pub(crate) fn action(&self) -> u16 {
        u16::from(self.wire[1] & ACTION_MASK)
    }
}

/// What a command came to.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) status: Status,
    pub(crate) data_in: Bytes,
    /// Bytes of data-in without the initiator's limit.
    pub(crate) wanted: u64,
    /// Bytes of data-out that were used.
    pub(crate) used: u64,
    /// GOOD only after a flush.
    pub(crate) flush: bool,
    /// Bytes of blocks among the data-in and the data-out.
    pub(crate) moved: (u64, u64),
}

impl Done {
    /// Nothing to tell.
    pub(crate) const GOOD: Self =
        Self { status: Status::Good, data_in: Bytes::new(), wanted: 0, used: 0, flush: false, moved: (0, 0) };

    /// GOOD with this data, cut to what the initiator takes.
    pub(crate) fn data(mut data: Bytes, run: &Run<'_>) -> Self {
        let wanted = data.len() as u64;
        data.truncate(run.command.data_in_max);
        Self { data_in: data, wanted, ..Self::GOOD }
    }
}

/// Between two pieces of a long command.
pub(crate) type Between<'a> = &'a mut dyn FnMut() -> Result<(), Failure>;

/// The function of a command, and how much of the unit it needs for itself.
#[derive(Clone, Copy)]
pub(crate) enum Function {
    /// Beside others.
    Shared(fn(&Run<'_>) -> Result<Done, Failure>),
    /// Beside others, piece by piece: what it is handed lets others in between, and says whether it may go on.
    Pieces(fn(&Run<'_>, Between<'_>) -> Result<Done, Failure>),
    /// Alone: nobody reads or writes meanwhile.
    Alone(fn(&Run<'_>) -> Result<Done, Failure>),
    /// Looks at reservations.
    Report(fn(&Run<'_>, &Reservations) -> Result<Done, Failure>),
    /// Changes reservations, alone.
    Change(fn(&Run<'_>, &mut Reservations) -> Result<Done, Failure>),
}

/// Which units have a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    Every,
    /// Thinly provisioned ones.
    Thin,
}

/// What holds a thread for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    Never,
    /// A flush, if FUA is set, or if the write cache is off and it writes.
    Flush,
    /// A flush or the like, or those that have to end before it may begin.
    Always,
    /// The work itself.
    Long,
}

/// One command.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) shared: CommandRow,
    pub(crate) access: Access,
    /// Refused while there is no medium.
    pub(crate) medium: bool,
    pub(crate) offer: Offer,
    pub(crate) wait: Wait,
    pub(crate) function: Function,
}

impl Row {
    /// The class of a CDB of this row: starting a unit and allowing removal harm nobody (SBC-3 table 13).
    pub(crate) fn access(&self, wire: &Wire) -> Access {
        match self.shared.opcode {
            START_STOP if wire[4] & 0xF1 == 0x01 => Access::Any,
            PREVENT_ALLOW if wire[4] & 0x03 == 0 => Access::Any,
            _ => self.access,
        }
    }
}

const ACTION_MASK: u8 = 0x1F;
const START_STOP: u8 = 0x1B;
const PREVENT_ALLOW: u8 = 0x1E;
/// SERVICE ACTION IN(16).
const SERVICE_ACTION_IN: u8 = 0x9E;

const fn row(shared: CommandRow, access: Access, function: Function) -> Row {
    Row { shared, access, medium: true, offer: Offer::Every, wait: Wait::Never, function }
}

impl Row {
    const fn any_time(self) -> Self {
        Self { medium: false, ..self }
    }

    const fn thin(self) -> Self {
        Self { offer: Offer::Thin, ..self }
    }

    const fn waits(self, wait: Wait) -> Self {
        Self { wait, ..self }
    }
}

/// CDB bits from byte 1 on, by form; the last byte is CONTROL with NACA.
const SIX: &[u8] = &[0x1F, 0xFF, 0xFF, 0xFF, 0x04];
const TEN: &[u8] = &[0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0xFF, 0xFF, 0x04];
const TWELVE: &[u8] = &[0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0x04];
const SIXTEEN: &[u8] =
    &[0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0x04];
/// The same with DPO and BYTCHK instead of DPO and FUA.
const VERIFY_TEN: &[u8] = &[0xF6, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0xFF, 0xFF, 0x04];
const VERIFY_TWELVE: &[u8] = &[0xF6, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0x04];
const VERIFY_SIXTEEN: &[u8] =
    &[0xF6, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0x04];
/// With IMMED.
const CACHE_TEN: &[u8] = &[0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0xFF, 0xFF, 0x04];
const CACHE_SIXTEEN: &[u8] =
    &[0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0x04];
const RESERVE_IN: &[u8] = &[0x1F, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x04];
const RESERVE_OUT: &[u8] = &[0x1F, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x04];

const fn reserve_in(action: u16) -> Row {
    let shared = CommandRow::new(0x5E, 10, RESERVE_IN).action(action);
    row(shared, Access::Own, Function::Report(reserve::report)).any_time()
}

const fn reserve_out(action: u16) -> Row {
    let shared = CommandRow::new(0x5F, 10, RESERVE_OUT).action(action);
    row(shared, Access::Own, Function::Change(reserve::change)).any_time().waits(Wait::Always)
}

macro_rules! forms {
    ($function:path, $form:ident) => {
        |run: &Run<'_>| $function(run, Form::$form)
    };
}

/// The same for a function that works piece by piece.
macro_rules! pieces {
    ($function:path, $form:ident) => {
        |run, between| $function(run, Form::$form, between)
    };
}

/// Every command of a block unit's own, by code.
pub(crate) static ROWS: &[Row] = &[
    row(CommandRow::new(0x08, 6, SIX), Access::Read, Function::Shared(forms!(data::read, Six))),
    row(CommandRow::new(0x0A, 6, SIX), Access::Write, Function::Shared(forms!(data::write, Six)))
        .waits(Wait::Flush),
    row(
        CommandRow::new(0x16, 6, &[0x1F, 0, 0, 0, 0x04]),
        Access::Own,
        Function::Change(reserve::reserve_legacy),
    )
    .any_time()
    .waits(Wait::Always),
    row(
        CommandRow::new(0x17, 6, &[0x1F, 0, 0, 0, 0x04]),
        Access::Own,
        Function::Change(reserve::release_legacy),
    )
    .any_time()
    .waits(Wait::Always),
    row(
        CommandRow::new(START_STOP, 6, &[0x01, 0, 0x0F, 0xF7, 0x04]),
        Access::Write,
        Function::Shared(maintenance::start_stop),
    )
    .any_time()
    .waits(Wait::Always),
    row(
        CommandRow::new(0x1D, 6, &[0xFF, 0, 0xFF, 0xFF, 0x04]),
        Access::Write,
        Function::Shared(maintenance::diagnose),
    )
    .any_time()
    .waits(Wait::Always),
    row(
        CommandRow::new(PREVENT_ALLOW, 6, &[0, 0, 0, 0x03, 0x04]),
        Access::Write,
        Function::Shared(maintenance::prevent_removal),
    )
    .any_time(),
    row(
        CommandRow::new(0x25, 10, &[0x01, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0x01, 0x04]),
        Access::Any,
        Function::Shared(maintenance::capacity_10),
    ),
    row(CommandRow::new(0x28, 10, TEN), Access::Read, Function::Shared(forms!(data::read, Ten)))
        .waits(Wait::Flush),
    row(CommandRow::new(0x2A, 10, TEN), Access::Write, Function::Shared(forms!(data::write, Ten)))
        .waits(Wait::Flush),
    row(
        CommandRow::new(0x2E, 10, VERIFY_TEN),
        Access::Write,
        Function::Pieces(pieces!(data::write_and_verify, Ten)),
    )
    .waits(Wait::Long),
    row(CommandRow::new(0x2F, 10, VERIFY_TEN), Access::Read, Function::Pieces(pieces!(data::verify, Ten)))
        .waits(Wait::Long),
    row(CommandRow::new(0x34, 10, CACHE_TEN), Access::Read, Function::Shared(forms!(data::prefetch, Ten))),
    row(
        CommandRow::new(0x35, 10, CACHE_TEN),
        Access::Write,
        Function::Shared(forms!(data::synchronize, Ten)),
    )
    .waits(Wait::Always),
    row(
        CommandRow::new(0x37, 10, &[0, 0x1F, 0, 0, 0, 0, 0xFF, 0xFF, 0x04]),
        Access::Any,
        Function::Shared(maintenance::defects_10),
    ),
    row(
        CommandRow::new(0x41, 10, &[0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0xFF, 0xFF, 0x04]),
        Access::Write,
        Function::Shared(forms!(provisioning::write_same, Ten)),
    )
    .waits(Wait::Long),
    row(
        CommandRow::new(0x42, 10, &[0x01, 0, 0, 0, 0, 0x3F, 0xFF, 0xFF, 0x04]),
        Access::Write,
        Function::Pieces(provisioning::unmap),
    )
    .thin()
    .waits(Wait::Long),
    reserve_in(input::READ_KEYS),
    reserve_in(input::READ_RESERVATION),
    reserve_in(input::REPORT_CAPABILITIES),
    reserve_in(input::READ_FULL_STATUS),
    reserve_out(output::REGISTER),
    reserve_out(output::RESERVE),
    reserve_out(output::RELEASE),
    reserve_out(output::CLEAR),
    reserve_out(output::PREEMPT),
    reserve_out(output::PREEMPT_AND_ABORT),
    reserve_out(output::REGISTER_AND_IGNORE),
    reserve_out(output::REGISTER_AND_MOVE),
    row(CommandRow::new(0x88, 16, SIXTEEN), Access::Read, Function::Shared(forms!(data::read, Sixteen)))
        .waits(Wait::Flush),
    row(
        CommandRow::new(
            0x89,
            16,
            &[0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0x3F, 0x04],
        ),
        Access::Write,
        Function::Alone(data::compare_and_write),
    )
    .waits(Wait::Always),
    row(CommandRow::new(0x8A, 16, SIXTEEN), Access::Write, Function::Shared(forms!(data::write, Sixteen)))
        .waits(Wait::Flush),
    row(CommandRow::new(0x8B, 16, SIXTEEN), Access::Write, Function::Alone(data::or_write))
        .waits(Wait::Always),
    row(
        CommandRow::new(0x8E, 16, VERIFY_SIXTEEN),
        Access::Write,
        Function::Pieces(pieces!(data::write_and_verify, Sixteen)),
    )
    .waits(Wait::Long),
    row(
        CommandRow::new(0x8F, 16, VERIFY_SIXTEEN),
        Access::Read,
        Function::Pieces(pieces!(data::verify, Sixteen)),
    )
    .waits(Wait::Long),
    row(
        CommandRow::new(0x90, 16, CACHE_SIXTEEN),
        Access::Read,
        Function::Shared(forms!(data::prefetch, Sixteen)),
    ),
    row(
        CommandRow::new(0x91, 16, CACHE_SIXTEEN),
        Access::Write,
        Function::Shared(forms!(data::synchronize, Sixteen)),
    )
    .waits(Wait::Always),
    row(
        CommandRow::new(
            0x93,
            16,
            &[0xF9, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0x04],
        ),
        Access::Write,
        Function::Shared(forms!(provisioning::write_same, Sixteen)),
    )
    .waits(Wait::Long),
    row(
        CommandRow::new(
            0x9C,
            16,
            &[0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0x04],
        ),
        Access::Write,
        Function::Shared(data::write_atomic),
    )
    .waits(Wait::Flush),
    row(
        CommandRow::new(
            SERVICE_ACTION_IN,
            16,
            &[0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01, 0x04],
        )
        .action(0x10),
        Access::Any,
        Function::Shared(maintenance::capacity_16),
    ),
    row(
        CommandRow::new(
            SERVICE_ACTION_IN,
            16,
            &[0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04],
        )
        .action(0x12),
        Access::Read,
        Function::Shared(provisioning::lba_status),
    )
    .thin()
    .waits(Wait::Long),
    row(CommandRow::new(0xA8, 12, TWELVE), Access::Read, Function::Shared(forms!(data::read, Twelve)))
        .waits(Wait::Flush),
    row(CommandRow::new(0xAA, 12, TWELVE), Access::Write, Function::Shared(forms!(data::write, Twelve)))
        .waits(Wait::Flush),
    row(
        CommandRow::new(0xAE, 12, VERIFY_TWELVE),
        Access::Write,
        Function::Pieces(pieces!(data::write_and_verify, Twelve)),
    )
    .waits(Wait::Long),
    row(
        CommandRow::new(0xAF, 12, VERIFY_TWELVE),
        Access::Read,
        Function::Pieces(pieces!(data::verify, Twelve)),
    )
    .waits(Wait::Long),
    row(
        CommandRow::new(0xB7, 12, &[0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04]),
        Access::Any,
        Function::Shared(maintenance::defects_12),
    ),
];

/// Why there is no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// The operation code is none of ours.
    Code,
    /// The operation code is, the service action is not.
    Action,
}

/// The row of a CDB, if a unit of this kind has it.
pub(crate) fn find(cdb: &[u8], unit: &Description) -> Result<&'static Row, Unknown> {
    let code = *cdb.first().ok_or(Unknown::Code)?;
    let action = cdb.get(1).map(|byte| u16::from(byte & ACTION_MASK));
    let mut of_code = ROWS.iter().filter(|row| row.shared.opcode == code && is_offered(row, unit)).peekable();
    if of_code.peek().is_none() {
        return Err(Unknown::Code);
    }
    of_code.find(|row| row.shared.action.is_none() || row.shared.action == action).ok_or(Unknown::Action)
}

fn is_offered(row: &Row, unit: &Description) -> bool {
    match row.offer {
        Offer::Every => true,
        Offer::Thin => unit.thin,
    }
}

/// The rows of a unit of this kind as REPORT SUPPORTED OPERATION CODES wants them.
pub(crate) fn shared_rows(unit: &Description) -> &'static [CommandRow] {
    static THIN: LazyLock<Vec<CommandRow>> = LazyLock::new(|| ROWS.iter().map(|row| row.shared).collect());
    static THICK: LazyLock<Vec<CommandRow>> =
        LazyLock::new(|| ROWS.iter().filter(|row| row.offer == Offer::Every).map(|row| row.shared).collect());
    if unit.thin { &THIN } else { &THICK }
}

/// The class of the shared commands, which are answered elsewhere (SPC-4, commands allowed in the presence of
/// reservations).
pub(crate) const fn class_of_shared(code: u8) -> Access {
    use sealstone_scsi::spc::opcode;
    match code {
        opcode::MODE_SELECT_6 | opcode::MODE_SELECT_10 => Access::Write,
        opcode::MODE_SENSE_6 | opcode::MODE_SENSE_10 => Access::Read,
        opcode::TEST_UNIT_READY => Access::Harmless,
        _ => Access::Any,
    }
}
