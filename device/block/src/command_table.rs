//! Command table of block units.
//!
//! Does: one row per command with operation code, supported CDB bits, access class and function.
//! Dispatch, REPORT SUPPORTED OPERATION CODES and the tests read the same rows.
//! Does not: run commands; `dispatch` does.
//! Truth: SBC-3 §5, SPC-4 §6; `docs/standards/block.md`.

use std::sync::LazyLock;

use sealstone_block_protection::KeyScheme;
use sealstone_scsi::spc::supported::CommandRow;

use crate::catalog::UnitDescription;
use crate::command::{ACTION_MASK, BlockCommand, CommandOutcome, YieldPoint};
use crate::failure::BlockFailure;
use crate::reservation::{CommandAccess, ReservationState};
use crate::reserve::{input, output};
use crate::transfer::{CdbForm, PaddedCdb};
use crate::{data, lazy_commands, maintenance, provisioning, reserve};

/// Function of a command, with the access to the unit that it needs.
#[derive(Clone, Copy)]
pub(crate) enum CommandFunction {
    /// Runs concurrently with other commands.
    Shared(fn(&BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure>),
    /// Runs concurrently, in pieces, and calls its [`YieldPoint`] between them.
    Yielding(fn(&BlockCommand<'_>, YieldPoint<'_>) -> Result<CommandOutcome, BlockFailure>),
    /// Runs exclusively: no other command reads or writes meanwhile.
    Exclusive(fn(&BlockCommand<'_>) -> Result<CommandOutcome, BlockFailure>),
    /// Reads the reservation state.
    Report(fn(&BlockCommand<'_>, &ReservationState) -> Result<CommandOutcome, BlockFailure>),
    /// Changes the reservation state, exclusively.
    Change(fn(&BlockCommand<'_>, &mut ReservationState) -> Result<CommandOutcome, BlockFailure>),
}

/// Which units support a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitSupport {
    Every,
    /// Thinly provisioned units.
    Thin,
    /// Units whose blocks have no keys.
    Plain,
    /// Units whose blocks have keys.
    Keyed,
    /// Units with a key of their own.
    UnitKeys,
}

impl UnitSupport {
    /// Whether it includes a unit that is thinly provisioned, or whose blocks have these keys.
    fn includes(self, thin: bool, keys: Option<KeyScheme>) -> bool {
        match self {
            Self::Every => true,
            Self::Thin => thin,
            Self::Plain => keys.is_none(),
            Self::Keyed => keys.is_some(),
            Self::UnitKeys => keys.is_some_and(KeyScheme::has_generations),
        }
    }
}

/// Why a command can block its thread for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockingKind {
    /// It does not block.
    Never,
    /// A flush, if FUA is set, or if it writes while the write cache is off.
    Flush,
    /// A flush, or waiting for other commands to end.
    Always,
    /// The work itself.
    Long,
}

/// One command.
#[derive(Clone, Copy)]
pub(crate) struct BlockCommandRow {
    pub(crate) shared: CommandRow,
    pub(crate) access: CommandAccess,
    /// Whether the command is refused while the medium is ejected.
    pub(crate) medium: bool,
    pub(crate) offer: UnitSupport,
    pub(crate) wait: BlockingKind,
    pub(crate) function: CommandFunction,
}

impl BlockCommandRow {
    /// Returns the access class of a CDB. Starting a unit and allowing removal are harmless (SBC-3
    /// table 13).
    pub(crate) fn access(&self, wire: &PaddedCdb) -> CommandAccess {
        match self.shared.opcode {
            START_STOP if wire[4] & 0xF1 == 0x01 => CommandAccess::Any,
            PREVENT_ALLOW if wire[4] & 0x03 == 0 => CommandAccess::Any,
            _ => self.access,
        }
    }
}

const START_STOP: u8 = 0x1B;
const PREVENT_ALLOW: u8 = 0x1E;
/// SERVICE ACTION IN(16).
const SERVICE_ACTION_IN: u8 = 0x9E;

const fn row(shared: CommandRow, access: CommandAccess, function: CommandFunction) -> BlockCommandRow {
    BlockCommandRow {
        shared,
        access,
        medium: true,
        offer: UnitSupport::Every,
        wait: BlockingKind::Never,
        function,
    }
}

impl BlockCommandRow {
    const fn any_time(self) -> Self {
        Self { medium: false, ..self }
    }

    const fn thin(self) -> Self {
        Self { offer: UnitSupport::Thin, ..self }
    }

    const fn plain(self) -> Self {
        Self { offer: UnitSupport::Plain, ..self }
    }

    const fn keyed(self) -> Self {
        Self { offer: UnitSupport::Keyed, ..self }
    }

    const fn unit_keys(self) -> Self {
        Self { offer: UnitSupport::UnitKeys, ..self }
    }

    const fn waits(self, wait: BlockingKind) -> Self {
        Self { wait, ..self }
    }
}

/// Supported CDB bits from byte 1 on, by CDB length. The last byte is CONTROL with NACA.
const SIX: &[u8] = &[0x1F, 0xFF, 0xFF, 0xFF, 0x04];
const TEN: &[u8] = &[0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0xFF, 0xFF, 0x04];
const TWELVE: &[u8] = &[0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0x04];
const SIXTEEN: &[u8] =
    &[0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0x04];
/// As above, with DPO and BYTCHK instead of DPO and FUA.
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

const fn reserve_in(action: u16) -> BlockCommandRow {
    let shared = CommandRow::new(0x5E, 10, RESERVE_IN).action(action);
    row(shared, CommandAccess::Own, CommandFunction::Report(reserve::report)).any_time()
}

const fn reserve_out(action: u16) -> BlockCommandRow {
    let shared = CommandRow::new(0x5F, 10, RESERVE_OUT).action(action);
    row(shared, CommandAccess::Own, CommandFunction::Change(reserve::change))
        .any_time()
        .waits(BlockingKind::Always)
}

macro_rules! forms {
    ($function:path, $form:ident) => {
        |run: &BlockCommand<'_>| $function(run, CdbForm::$form)
    };
}

/// As `forms`, for a function that runs in pieces.
macro_rules! pieces {
    ($function:path, $form:ident) => {
        |run, yield_point| $function(run, CdbForm::$form, yield_point)
    };
}

/// Commands of block units that are not common to all device types, sorted by code.
pub(crate) static ROWS: &[BlockCommandRow] = &[
    row(CommandRow::new(0x08, 6, SIX), CommandAccess::Read, CommandFunction::Shared(forms!(data::read, Six))),
    row(
        CommandRow::new(0x0A, 6, SIX),
        CommandAccess::Write,
        CommandFunction::Shared(forms!(data::write, Six)),
    )
    .waits(BlockingKind::Flush),
    row(
        CommandRow::new(0x16, 6, &[0x1F, 0, 0, 0, 0x04]),
        CommandAccess::Own,
        CommandFunction::Change(reserve::reserve_legacy),
    )
    .any_time()
    .waits(BlockingKind::Always),
    row(
        CommandRow::new(0x17, 6, &[0x1F, 0, 0, 0, 0x04]),
        CommandAccess::Own,
        CommandFunction::Change(reserve::release_legacy),
    )
    .any_time()
    .waits(BlockingKind::Always),
    row(
        CommandRow::new(START_STOP, 6, &[0x01, 0, 0x0F, 0xF7, 0x04]),
        CommandAccess::Write,
        CommandFunction::Shared(maintenance::start_stop),
    )
    .any_time()
    .waits(BlockingKind::Always),
    row(
        CommandRow::new(0x1D, 6, &[0xFF, 0, 0xFF, 0xFF, 0x04]),
        CommandAccess::Write,
        CommandFunction::Shared(maintenance::diagnose),
    )
    .any_time()
    .waits(BlockingKind::Always),
    row(
        CommandRow::new(PREVENT_ALLOW, 6, &[0, 0, 0, 0x03, 0x04]),
        CommandAccess::Write,
        CommandFunction::Shared(maintenance::prevent_removal),
    )
    .any_time(),
    row(
        CommandRow::new(0x25, 10, &[0x01, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0x01, 0x04]),
        CommandAccess::Any,
        CommandFunction::Shared(maintenance::capacity_10),
    ),
    row(
        CommandRow::new(0x28, 10, TEN),
        CommandAccess::Read,
        CommandFunction::Shared(forms!(data::read, Ten)),
    )
    .waits(BlockingKind::Flush),
    row(
        CommandRow::new(0x2A, 10, TEN),
        CommandAccess::Write,
        CommandFunction::Shared(forms!(data::write, Ten)),
    )
    .waits(BlockingKind::Flush),
    row(
        CommandRow::new(0x2E, 10, VERIFY_TEN),
        CommandAccess::Write,
        CommandFunction::Yielding(pieces!(data::write_and_verify, Ten)),
    )
    .plain()
    .waits(BlockingKind::Long),
    row(
        CommandRow::new(0x2F, 10, VERIFY_TEN),
        CommandAccess::Read,
        CommandFunction::Yielding(pieces!(data::verify, Ten)),
    )
    .plain()
    .waits(BlockingKind::Long),
    row(
        CommandRow::new(0x34, 10, CACHE_TEN),
        CommandAccess::Read,
        CommandFunction::Shared(forms!(data::prefetch, Ten)),
    ),
    row(
        CommandRow::new(0x35, 10, CACHE_TEN),
        CommandAccess::Write,
        CommandFunction::Shared(forms!(data::synchronize, Ten)),
    )
    .waits(BlockingKind::Always),
    row(
        CommandRow::new(0x37, 10, &[0, 0x1F, 0, 0, 0, 0, 0xFF, 0xFF, 0x04]),
        CommandAccess::Any,
        CommandFunction::Shared(maintenance::defects_10),
    ),
    row(
        CommandRow::new(0x41, 10, &[0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0xFF, 0xFF, 0x04]),
        CommandAccess::Write,
        CommandFunction::Shared(forms!(provisioning::write_same, Ten)),
    )
    .waits(BlockingKind::Long),
    row(
        CommandRow::new(0x42, 10, &[0x01, 0, 0, 0, 0, 0x3F, 0xFF, 0xFF, 0x04]),
        CommandAccess::Write,
        CommandFunction::Yielding(provisioning::unmap),
    )
    .thin()
    .waits(BlockingKind::Long),
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
    row(
        CommandRow::new(0x88, 16, SIXTEEN),
        CommandAccess::Read,
        CommandFunction::Shared(forms!(data::read, Sixteen)),
    )
    .waits(BlockingKind::Flush),
    row(
        CommandRow::new(
            0x89,
            16,
            &[0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0x3F, 0x04],
        ),
        CommandAccess::Write,
        CommandFunction::Exclusive(data::compare_and_write),
    )
    .plain()
    .waits(BlockingKind::Always),
    row(
        CommandRow::new(0x8A, 16, SIXTEEN),
        CommandAccess::Write,
        CommandFunction::Shared(forms!(data::write, Sixteen)),
    )
    .waits(BlockingKind::Flush),
    row(CommandRow::new(0x8B, 16, SIXTEEN), CommandAccess::Write, CommandFunction::Exclusive(data::or_write))
        .plain()
        .waits(BlockingKind::Always),
    row(
        CommandRow::new(0x8E, 16, VERIFY_SIXTEEN),
        CommandAccess::Write,
        CommandFunction::Yielding(pieces!(data::write_and_verify, Sixteen)),
    )
    .plain()
    .waits(BlockingKind::Long),
    row(
        CommandRow::new(0x8F, 16, VERIFY_SIXTEEN),
        CommandAccess::Read,
        CommandFunction::Yielding(pieces!(data::verify, Sixteen)),
    )
    .plain()
    .waits(BlockingKind::Long),
    row(
        CommandRow::new(0x90, 16, CACHE_SIXTEEN),
        CommandAccess::Read,
        CommandFunction::Shared(forms!(data::prefetch, Sixteen)),
    ),
    row(
        CommandRow::new(0x91, 16, CACHE_SIXTEEN),
        CommandAccess::Write,
        CommandFunction::Shared(forms!(data::synchronize, Sixteen)),
    )
    .waits(BlockingKind::Always),
    row(
        CommandRow::new(
            0x93,
            16,
            &[0xF9, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0x04],
        ),
        CommandAccess::Write,
        CommandFunction::Shared(forms!(provisioning::write_same, Sixteen)),
    )
    .waits(BlockingKind::Long),
    row(
        CommandRow::new(
            0x9C,
            16,
            &[0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0x04],
        ),
        CommandAccess::Write,
        CommandFunction::Shared(data::write_atomic),
    )
    .plain()
    .waits(BlockingKind::Flush),
    row(
        CommandRow::new(
            SERVICE_ACTION_IN,
            16,
            &[0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01, 0x04],
        )
        .action(0x10),
        CommandAccess::Any,
        CommandFunction::Shared(maintenance::capacity_16),
    ),
    row(
        CommandRow::new(
            SERVICE_ACTION_IN,
            16,
            &[0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04],
        )
        .action(0x12),
        CommandAccess::Read,
        CommandFunction::Shared(provisioning::lba_status),
    )
    .thin()
    .waits(BlockingKind::Long),
    row(
        CommandRow::new(0xA8, 12, TWELVE),
        CommandAccess::Read,
        CommandFunction::Shared(forms!(data::read, Twelve)),
    )
    .waits(BlockingKind::Flush),
    row(
        CommandRow::new(0xAA, 12, TWELVE),
        CommandAccess::Write,
        CommandFunction::Shared(forms!(data::write, Twelve)),
    )
    .waits(BlockingKind::Flush),
    row(
        CommandRow::new(0xAE, 12, VERIFY_TWELVE),
        CommandAccess::Write,
        CommandFunction::Yielding(pieces!(data::write_and_verify, Twelve)),
    )
    .plain()
    .waits(BlockingKind::Long),
    row(
        CommandRow::new(0xAF, 12, VERIFY_TWELVE),
        CommandAccess::Read,
        CommandFunction::Yielding(pieces!(data::verify, Twelve)),
    )
    .plain()
    .waits(BlockingKind::Long),
    row(
        CommandRow::new(0xB7, 12, &[0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04]),
        CommandAccess::Any,
        CommandFunction::Shared(maintenance::defects_12),
    ),
    row(
        CommandRow::new(
            0xC1,
            16,
            &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04],
        ),
        CommandAccess::Read,
        CommandFunction::Shared(lazy_commands::read_older),
    )
    .keyed(),
    row(
        CommandRow::new(0xC2, 16, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04]),
        CommandAccess::Read,
        CommandFunction::Shared(lazy_commands::report),
    )
    .keyed()
    .waits(BlockingKind::Always),
    row(
        CommandRow::new(0xC3, 16, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04]),
        CommandAccess::Any,
        CommandFunction::Shared(lazy_commands::unit_keys),
    )
    .any_time()
    .unit_keys()
    .waits(BlockingKind::Always),
];

/// Why a CDB has no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownCommand {
    /// Unknown operation code.
    Code,
    /// Known operation code with an unknown service action.
    Action,
}

/// Returns the row of a CDB, if this unit supports the command.
pub(crate) fn find(cdb: &[u8], unit: &UnitDescription) -> Result<&'static BlockCommandRow, UnknownCommand> {
    let code = *cdb.first().ok_or(UnknownCommand::Code)?;
    let action = cdb.get(1).map(|byte| u16::from(byte & ACTION_MASK));
    let mut of_code = ROWS.iter().filter(|row| row.shared.opcode == code && is_offered(row, unit)).peekable();
    if of_code.peek().is_none() {
        return Err(UnknownCommand::Code);
    }
    of_code
        .find(|row| row.shared.action.is_none() || row.shared.action == action)
        .ok_or(UnknownCommand::Action)
}

fn is_offered(row: &BlockCommandRow, unit: &UnitDescription) -> bool {
    row.offer.includes(unit.thin, unit.protection.level().key_scheme())
}

/// Returns the rows of this unit for REPORT SUPPORTED OPERATION CODES.
pub(crate) fn shared_rows(unit: &UnitDescription) -> &'static [CommandRow] {
    type Rows = LazyLock<[[Vec<CommandRow>; 2]; 3]>;
    const SCHEMES: [Option<KeyScheme>; 3] = [None, Some(KeyScheme::Both), Some(KeyScheme::Generation)];
    fn rows(thin: bool, keys: Option<KeyScheme>) -> Vec<CommandRow> {
        ROWS.iter().filter(|row| row.offer.includes(thin, keys)).map(|row| row.shared).collect()
    }
    static OFFERED: Rows = LazyLock::new(|| SCHEMES.map(|keys| [rows(false, keys), rows(true, keys)]));
    let scheme = match unit.protection.level().key_scheme() {
        None => 0,
        Some(keys) => 1 + usize::from(keys.has_generations()),
    };
    &OFFERED[scheme][usize::from(unit.thin)]
}

/// Returns the access class of commands common to all device types, which `primary` runs (SPC-4,
/// commands allowed in the presence of reservations).
pub(crate) const fn class_of_shared(code: u8) -> CommandAccess {
    use sealstone_scsi::spc::opcode;
    match code {
        opcode::MODE_SELECT_6 | opcode::MODE_SELECT_10 => CommandAccess::Write,
        opcode::MODE_SENSE_6 | opcode::MODE_SENSE_10 => CommandAccess::Read,
        opcode::TEST_UNIT_READY => CommandAccess::Harmless,
        _ => CommandAccess::Any,
    }
}
