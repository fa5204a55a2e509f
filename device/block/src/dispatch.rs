//! Execution of the commands of block units.
//!
//! Does: order of checks, the command lock, flushes before GOOD, counters, refusals; a unit as
//! targets use it.
//! Does not: know commands one by one; the rows of `command_table` do.
//! Contract: every command runs under the command lock of its unit: shared with others, or
//! exclusively if it changes reservations or reads and writes in one step. So every admitted
//! command has ended before a change of reservations is acknowledged, and COMPARE AND WRITE is
//! atomic. Flushes happen after the lock is released, except where the order requires it.
//! Truth: SAM-5 §5.14, SBC-3, SPC-4; `docs/standards/block.md` (order of checks).

use parking_lot::RwLockReadGuard;
use sealstone_scsi::lu::{Cost, InitiatorPort, LogicalUnit, NexusId, ScsiCommand, ScsiReply};
use sealstone_scsi::primary::{self, DeviceServer};
use sealstone_scsi::spc::Identity;
use sealstone_scsi::spc::mode::{ModeHeader, ModePage, ModeSense, NewPage};
use sealstone_scsi::spc::supported::CommandRow;
use sealstone_scsi::{AdditionalSense, Sense, Status};

use crate::command::{BlockCommand, CommandOutcome};
use crate::command_table::{self, BlockCommandRow, BlockingKind, CommandFunction, UnknownCommand};
use crate::failure::BlockFailure;
use crate::mode::ModeSettings;
use crate::nexus::BlockNexus;
use crate::reservation::{CommandAccess, ReservationState};
use crate::transfer::has_fua;
use crate::unit::BlockUnit;
use crate::{inquiry, integrity};

/// NACA in the CONTROL byte.
const NACA: u8 = 0x04;

impl BlockUnit {
    fn answer(&self, nexus: &BlockNexus, command: &ScsiCommand<'_>) -> ScsiReply {
        if self.is_retired() {
            return primary::absent(command.cdb, command.data_in_max);
        }
        let outcome = match command_table::find(command.cdb, self.description()) {
            Ok(row) => self.own(row, nexus, command),
            Err(UnknownCommand::Code) => return self.shared(nexus, command),
            Err(UnknownCommand::Action) => match primary::attention(self, nexus.id) {
                Some(reply) => return reply,
                None => Err(BlockFailure::ServiceAction),
            },
        };
        match outcome {
            Ok(TableOutcome::Attention(reply)) => reply,
            Ok(TableOutcome::Done(done)) => {
                self.counter_cells().moved(done.moved.0, done.moved.1);
                ScsiReply {
                    status: done.status,
                    sense: Vec::new(),
                    data_in: done.data_in,
                    data_in_wanted: done.wanted,
                    data_out_used: done.used,
                }
            }
            Err(failure) => self.refused(nexus, &failure),
        }
    }

    /// Runs a command of the table. Checks unit attention, the form of the CDB, reservations and
    /// the medium in this order.
    fn own(
        &self,
        row: &BlockCommandRow,
        nexus: &BlockNexus,
        command: &ScsiCommand<'_>,
    ) -> Result<TableOutcome, BlockFailure> {
        if let Some(reply) = primary::attention(self, nexus.id) {
            return Ok(TableOutcome::Attention(reply));
        }
        let length = usize::from(row.shared.length);
        if command.cdb.len() < length {
            return Err(BlockFailure::OperationCode);
        }
        let run = BlockCommand::new(self, nexus, command);
        let control = row.shared.length - 1;
        if run.wire()[usize::from(control)] & NACA != 0 {
            return Err(BlockFailure::bit(control, 2));
        }
        let access = row.access(run.wire());
        let admit = |state: &ReservationState| self.admit(row, nexus, access, state);
        let done = match row.function {
            CommandFunction::Shared(function) => {
                let state = self.command_lock().read();
                admit(&state)?;
                function(&run)?
            }
            CommandFunction::Yielding(function) => {
                let mut state = self.command_lock().read();
                admit(&state)?;
                function(&run, &mut || {
                    // Lets exclusive commands run between two pieces, and checks admission again
                    // for the next piece.
                    RwLockReadGuard::bump(&mut state);
                    admit(&state)
                })?
            }
            CommandFunction::Exclusive(function) => {
                let state = self.command_lock().write();
                admit(&state)?;
                function(&run)?
            }
            CommandFunction::Report(function) => {
                let state = self.command_lock().read();
                admit(&state)?;
                function(&run, &state)?
            }
            CommandFunction::Change(function) => {
                let mut state = self.command_lock().write();
                admit(&state)?;
                function(&run, &mut state)?
            }
        };
        // The lock is released: others run while this waits.
        if done.flush || run.write_through() || self.is_write_through(nexus) {
            self.flush()?;
        }
        Ok(TableOutcome::Done(done))
    }

    /// Checks whether a command may start or continue.
    fn admit(
        &self,
        row: &BlockCommandRow,
        nexus: &BlockNexus,
        access: CommandAccess,
        state: &ReservationState,
    ) -> Result<(), BlockFailure> {
        // Checked again under the lock: the object may belong to another unit by now.
        self.check_not_removed()?;
        state.check(nexus.id, &nexus.port, access)?;
        if row.medium { self.medium().check() } else { Ok(()) }
    }

    /// Runs a command that every device type has.
    fn shared(&self, nexus: &BlockNexus, command: &ScsiCommand<'_>) -> ScsiReply {
        let access =
            command.cdb.first().map_or(CommandAccess::Any, |code| command_table::class_of_shared(*code));
        if access == CommandAccess::Any || nexus.attention(false).is_some() {
            return primary::answer(self, command);
        }
        let state = self.command_lock().read();
        match state.check(nexus.id, &nexus.port, access) {
            Ok(()) => primary::answer(self, command),
            Err(failure) => self.refused(nexus, &failure),
        }
    }

    fn refused(&self, nexus: &BlockNexus, failure: &BlockFailure) -> ScsiReply {
        if let Some((kind, block)) = integrity::kind_of(failure) {
            self.counter_cells().integrity_failure(kind);
            self.record_integrity(&nexus.port.name, kind, block, 1);
        }
        if let BlockFailure::Read(error, _) | BlockFailure::Write(error) = failure {
            tracing::error!(unit = self.name(), error = %error, "block command failed: store error");
        }
        if let BlockFailure::LazyRead(error) | BlockFailure::LazyWrite(error) = failure {
            tracing::error!(unit = self.name(), error = %error, "block command failed");
        }
        match failure.status() {
            Status::CheckCondition => ScsiReply {
                data_out_used: failure.data_out_wanted(),
                ..primary::refusal(self, &failure.sense())
            },
            status => ScsiReply::status(status),
        }
    }
}

/// Outcome of a command of the table that did not fail.
enum TableOutcome {
    Attention(ScsiReply),
    Done(CommandOutcome),
}

impl LogicalUnit for BlockUnit {
    fn has_descriptor_sense(&self) -> bool {
        self.settings().descriptor_sense()
    }

    fn cost(&self, nexus: NexusId, cdb: &[u8]) -> Cost {
        use sealstone_scsi::spc::opcode::{MODE_SELECT_6, MODE_SELECT_10, MODE_SENSE_6, MODE_SENSE_10};
        // The first unflushed write of a nexus waits until its mark is stored. A changed WCE report
        // waits until its row is stored.
        let first_write = || {
            let nexus = self.nexuses().find(nexus);
            nexus.is_none_or(|nexus| !nexus.is_dirty() || self.is_write_through(&nexus))
        };
        let informs = || self.nexuses().find(nexus).is_none_or(|nexus| self.informs_of_cache(&nexus));
        let waits = match command_table::find(cdb, self.description()) {
            Ok(row) => match row.wait {
                BlockingKind::Never => false,
                BlockingKind::Always => true,
                BlockingKind::Long => return Cost::Long,
                BlockingKind::Flush => {
                    (row.shared.length > 6 && has_fua(cdb))
                        || (row.access == CommandAccess::Write && first_write())
                }
            },
            Err(_) => match cdb.first() {
                // Turning the write cache off flushes.
                Some(&(MODE_SELECT_6 | MODE_SELECT_10)) => true,
                Some(&(MODE_SENSE_6 | MODE_SENSE_10)) => informs(),
                _ => false,
            },
        };
        // An exclusive command may hold or await the lock for long. Commands that wait for it must
        // not block a thread that serves other sessions and units.
        if waits || self.command_lock().is_locked_exclusive() { Cost::Blocking } else { Cost::Inline }
    }

    fn execute(&self, command: ScsiCommand<'_>) -> ScsiReply {
        let nexus = self.nexus(command.nexus);
        let reply = self.answer(&nexus, &command);
        let good = matches!(reply.status, Status::Good | Status::ConditionMet);
        self.counter_cells().command(good, reply.status == Status::ReservationConflict);
        reply
    }

    fn nexus_established(&self, nexus: NexusId, port: &InitiatorPort<'_>) {
        self.nexuses().establish(nexus, port, self.durability());
    }

    fn nexus_lost(&self, nexus: NexusId) {
        self.end_nexus(nexus);
    }

    fn reset(&self) {
        self.restore_defaults();
    }

    fn attention(&self, nexus: NexusId, code: AdditionalSense) {
        self.nexus(nexus).raise(code);
    }

    fn luns_reported(&self, nexus: NexusId) {
        self.nexus(nexus).luns_reported();
    }
}

impl DeviceServer for BlockUnit {
    fn identity(&self) -> Identity<'_> {
        inquiry::identity(self.description())
    }

    fn pages(&self) -> &[u8] {
        &inquiry::PAGES
    }

    fn page(&self, _: NexusId, page: u8) -> Option<Vec<u8>> {
        inquiry::page(self.description(), self.target(), page)
    }

    fn commands(&self) -> &[CommandRow] {
        command_table::shared_rows(self.description())
    }

    fn ready(&self) -> Result<(), Sense> {
        let available = self.blocks().lazy().map(drop);
        available.and_then(|()| self.medium().check()).map_err(|failure| failure.sense())
    }

    fn unit_attention(&self, nexus: NexusId, take: bool) -> Option<AdditionalSense> {
        self.nexus(nexus).attention(take)
    }

    fn luns_reported(&self, nexus: NexusId) {
        self.nexus(nexus).luns_reported();
    }

    fn descriptor_sense(&self) -> bool {
        self.settings().descriptor_sense()
    }

    fn mode_header(&self) -> ModeHeader {
        self.settings().header(self.geometry())
    }

    fn mode_pages(&self) -> Vec<ModePage> {
        self.settings().pages()
    }

    fn mode_sensed(&self, nexus: NexusId, sense: &ModeSense) {
        if !ModeSettings::reports_cache(sense) {
            return;
        }
        let nexus = self.nexus(nexus);
        if let Err(failure) = self.inform_of_cache(&nexus) {
            // The row could not be stored. Write-through stays in effect until a restart, which may
            // turn the cache on.
            nexus.set_write_through(nexus.write_through() || !self.settings().write_cache());
            tracing::error!(unit = self.name(), error = %failure, "cannot store that the initiator relies on write-through");
        }
    }

    fn mode_select(&self, nexus: NexusId, pages: &[NewPage], save: bool) -> Result<(), Sense> {
        self.select_modes(nexus, pages, save).map_err(|failure| failure.sense())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sealstone_store::MemoryStore;

    use super::*;
    use crate::{BlockSize, BlockUnits, NewUnit};

    /// Otherwise one initiator that keeps a unit busy would occupy the threads of all other
    /// sessions.
    #[test]
    fn commands_waiting_for_exclusive_unit_are_blocking() {
        let units = BlockUnits::open(Arc::new(MemoryStore::new(64 << 20)), "iqn.x:y").unwrap();
        let unit = units.create(NewUnit::new("disk", BlockSize::B512, 1 << 20, [1; 16])).unwrap();
        let (read, reserve) = ([0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], [0x16, 0, 0, 0, 0, 0]);
        assert_eq!(
            (unit.cost(NexusId(1), &read), unit.cost(NexusId(1), &reserve)),
            (Cost::Inline, Cost::Blocking)
        );
        let alone = unit.command_lock().write();
        assert_eq!(unit.cost(NexusId(1), &read), Cost::Blocking);
        drop(alone);
        assert_eq!(unit.cost(NexusId(1), &read), Cost::Inline);
    }
}
