//! A command in progress, and its outcome.
//!
//! Does: the CDB, the nexus and the unit of a command; marks of unflushed writes before changes.
//! Does not: know which commands exist; `command_table` does. Run them; `dispatch` does.
//! Truth: SPC-4 §4.3; `docs/standards/block.md`.

use std::cell::Cell;

use bytes::Bytes;
use sealstone_scsi::Status;
use sealstone_scsi::lu::ScsiCommand;
use sealstone_store::StoreError;

use crate::failure::BlockFailure;
use crate::geometry::BlockExtent;
use crate::nexus::BlockNexus;
use crate::transfer::PaddedCdb;
use crate::unit::BlockUnit;

/// Bits of byte 1 that contain the SERVICE ACTION.
pub(crate) const ACTION_MASK: u8 = 0x1F;

/// One command in progress.
pub(crate) struct BlockCommand<'a> {
    pub(crate) unit: &'a BlockUnit,
    pub(crate) nexus: &'a BlockNexus,
    pub(crate) command: &'a ScsiCommand<'a>,
    wire: PaddedCdb,
    /// Whether the command flushes before GOOD, even if its CDB does not require it.
    write_through: Cell<bool>,
}

impl<'a> BlockCommand<'a> {
    pub(crate) fn new(unit: &'a BlockUnit, nexus: &'a BlockNexus, command: &'a ScsiCommand<'a>) -> Self {
        let mut wire = [0; 16];
        let length = command.cdb.len().min(wire.len());
        wire[..length].copy_from_slice(&command.cdb[..length]);
        let write_through = Cell::new(unit.is_write_through(nexus));
        Self { unit, nexus, command, wire, write_through }
    }

    /// Whether the command flushes before GOOD although its CDB does not require it.
    pub(crate) const fn write_through(&self) -> bool {
        self.write_through.get()
    }

    /// Returns the CDB, padded with zeros.
    pub(crate) const fn wire(&self) -> &PaddedCdb {
        &self.wire
    }

    /// Writes blocks. `durable` says that the command flushes before GOOD.
    pub(crate) fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<(), BlockFailure> {
        self.begin_change(durable)?;
        self.unit.write(offset, data)
    }

    /// Changes blocks by `change`. `durable` says that the change is durable before GOOD.
    pub(crate) fn change(
        &self,
        durable: bool,
        change: impl FnOnce() -> Result<(), BlockFailure>,
    ) -> Result<(), BlockFailure> {
        self.begin_change(durable)?;
        let changed = change();
        self.unit.count_change();
        changed
    }

    /// Deallocates blocks. The command itself does not flush.
    pub(crate) fn unmap(&self, extent: BlockExtent) -> Result<(), BlockFailure> {
        self.begin_change(false)?;
        self.unit.unmap(extent)
    }

    fn begin_change(&self, durable: bool) -> Result<(), BlockFailure> {
        if durable || self.write_through() {
            return Ok(());
        }
        match self.unit.mark_dirty(self.nexus) {
            // Without space for a mark, the write itself is made durable.
            Err(BlockFailure::Write(StoreError::NoSpace)) => {
                self.write_through.set(true);
                Ok(())
            }
            marked => marked,
        }
    }

    /// Returns SERVICE ACTION: byte 1, bits 4 to 0.
    pub(crate) fn action(&self) -> u16 {
        u16::from(self.wire[1] & ACTION_MASK)
    }
}

/// Outcome of a command that did not fail.
#[derive(Clone, Debug)]
pub(crate) struct CommandOutcome {
    pub(crate) status: Status,
    pub(crate) data_in: Bytes,
    /// Length of data-in before truncation to the initiator's limit.
    pub(crate) wanted: u64,
    /// Bytes of data-out that were used.
    pub(crate) used: u64,
    /// Whether GOOD is only sent after a flush.
    pub(crate) flush: bool,
    /// Bytes of blocks read and written.
    pub(crate) moved: (u64, u64),
}

impl CommandOutcome {
    /// GOOD without data.
    pub(crate) const GOOD: Self =
        Self { status: Status::Good, data_in: Bytes::new(), wanted: 0, used: 0, flush: false, moved: (0, 0) };

    /// Returns GOOD with this data, truncated to the initiator's limit.
    pub(crate) fn data(mut data: Bytes, run: &BlockCommand<'_>) -> Self {
        let wanted = data.len() as u64;
        data.truncate(run.command.data_in_max);
        Self { data_in: data, wanted, ..Self::GOOD }
    }
}

/// Called between two pieces of a long command. Lets waiting commands run, and returns an error if
/// the command must end.
pub(crate) type YieldPoint<'a> = &'a mut dyn FnMut() -> Result<(), BlockFailure>;
