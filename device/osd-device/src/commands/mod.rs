//! Command table and dispatch.
//!
//! Does: one row per implemented service action of the protocol's table, and one match arm per
//! command.
//! Does not: decide whether a command may run. Handlers are reached only through [`run`], which
//! takes the permit.
//! Contract: an action without a row is answered as unknown, before anything else is checked.
//! Truth: `sealstone_osd::table`; docs/design/t10-osd.md 1.2, 1.10.

mod check;
pub(crate) mod collections;
mod containers;
mod copies;
pub(crate) mod data;
mod duplicates;
mod keys;
pub(crate) mod list;
mod maps;
mod members;
pub(crate) mod multi;
pub(crate) mod objects;
pub(crate) mod perform;
mod query;
mod rewrite;
pub(crate) mod walk;

use sealstone_digest::{CoveredDigests, Profile};
use sealstone_osd::cdb::{Action, Cdb, Command, pointer};
use sealstone_osd::continuation::Segment;
use sealstone_osd::{Generation, ObjectId};
use sealstone_scsi::lu::{Cost, NexusId, ScsiCommand};
use sealstone_seal::{Permit, SignedBy};

pub(crate) use data::TransferSpan;
pub(crate) use duplicates::{finish_all as finish_duplicates, finish_stranded};
pub(crate) use list::ListEntries;
pub(crate) use multi::MultiPlan;
pub(crate) use walk::{MemberSet, StepControl};

use crate::continued;
use crate::device::OsdDevice;
use crate::duplicates::DuplicateKind;
use crate::failure::OsdFailure;
use crate::locks::LockScope;
use crate::nexus::OsdNexus;
use crate::partition_locks::PartitionUse;
use crate::report::OsdRefusal;

/// Properties of a service action.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActionRow {
    /// Whether it may block on the disk.
    pub(crate) cost: Cost,
    /// Whether it changes anything; then it is always audited.
    pub(crate) changes: bool,
    /// Whether it runs a function, which may change objects. Then it is always audited, too.
    pub(crate) executes: bool,
    /// Whether attributes are processed before the command's own work, because the object is gone
    /// afterwards.
    pub(crate) attributes_first: bool,
    /// Whether GOOD promises durability: a revocation must survive a crash.
    pub(crate) durable: bool,
    /// Whether all its changes are in one transaction group. False if the number of objects is
    /// unbounded.
    pub(crate) grouped: bool,
    /// Whether GOOD promises that no command admitted under an old key is still running.
    pub(crate) revokes: bool,
    /// Whether it acquires all locks itself, step by step; `lock_scope` is then unused.
    pub(crate) steps: bool,
    /// Whether it acquires locks step by step after the first check, whose lock is released before.
    pub(crate) stepwise: bool,
    /// Lock scope of the command.
    pub(crate) lock_scope: fn(ObjectId) -> LockScope,
}

impl ActionRow {
    const LOOK: Self = Self {
        cost: Cost::Blocking,
        changes: false,
        executes: false,
        attributes_first: false,
        durable: false,
        grouped: true,
        revokes: false,
        steps: false,
        stepwise: false,
        lock_scope: LockScope::Look,
    };
    const CHANGE: Self = Self { changes: true, lock_scope: LockScope::Change, ..Self::LOOK };
    const POPULATE: Self = Self { changes: true, lock_scope: LockScope::Populate, ..Self::LOOK };
    const WHOLE: Self = Self { changes: true, durable: true, lock_scope: |_| LockScope::Whole, ..Self::LOOK };

    const fn inline(self) -> Self {
        Self { cost: Cost::Inline, ..self }
    }

    const fn attributes_first(self) -> Self {
        Self { attributes_first: true, ..self }
    }

    const fn stepwise(self) -> Self {
        Self { stepwise: true, grouped: false, ..self.long() }
    }

    const fn ungrouped(self) -> Self {
        Self { grouped: false, ..self }
    }

    const fn in_steps(self) -> Self {
        Self { steps: true, ..self.ungrouped().long() }
    }

    /// Marks a command whose work grows with the number or the size of objects.
    const fn long(self) -> Self {
        Self { cost: Cost::Long, ..self }
    }
}

/// Returns the row of a service action; `None` if this device does not implement it.
pub(crate) const fn row(action: Action) -> Option<ActionRow> {
    Some(match action {
        Action::Read => ActionRow::LOOK.inline(),
        Action::List | Action::ListCollection | Action::Query | Action::GetMemberAttributes => {
            ActionRow::LOOK.stepwise()
        }
        Action::SetMemberAttributes | Action::RemoveMemberObjects | Action::CreateTrackingCollection => {
            ActionRow { changes: true, ..ActionRow::LOOK }.stepwise()
        }
        Action::RemoveCollection => {
            ActionRow { changes: true, ..ActionRow::LOOK }.stepwise().attributes_first()
        }
        Action::CreateCollection => ActionRow::POPULATE.inline(),
        Action::GetAttributes => ActionRow::LOOK.inline().attributes_first(),
        // May have to be durable, which the CDB alone does not show.
        Action::SetAttributes => ActionRow::CHANGE.attributes_first(),
        Action::Write | Action::Append | Action::Clear | Action::Punch => ActionRow::CHANGE.inline(),
        Action::Create | Action::CreateAndWrite => ActionRow::POPULATE.inline(),
        Action::Remove => ActionRow::POPULATE.attributes_first(),
        Action::Flush | Action::FlushCollection | Action::FlushPartition | Action::FlushOsd => {
            ActionRow { durable: true, ..ActionRow::LOOK }
        }
        // Other commands run while the new key is being stored.
        Action::SetKey | Action::SetMasterKey => {
            ActionRow { changes: true, revokes: true, ..ActionRow::LOOK.ungrouped() }
        }
        Action::CreatePartition => ActionRow::WHOLE,
        Action::RemovePartition => ActionRow::WHOLE.ungrouped().attributes_first(),
        Action::FormatOsd => ActionRow::WHOLE.ungrouped(),
        Action::ReadMap | Action::ReadMapsAndCompare => ActionRow::LOOK.long(),
        Action::ObjectStructureCheck => ActionRow { durable: true, ..ActionRow::LOOK.in_steps() },
        Action::CreateClone
        | Action::CreateSnapshot
        | Action::RefreshSnapshotOrClone
        | Action::RestorePartition => ActionRow::WHOLE.in_steps(),
        Action::DetachClone => ActionRow::WHOLE,
        Action::PerformScsi => ActionRow { changes: true, ..ActionRow::LOOK },
        // The function itself runs last, without any lock.
        Action::PerformTask => ActionRow { changes: true, ..ActionRow::LOOK }.attributes_first(),
        Action::CopyUserObjects => ActionRow::POPULATE.long(),
        Action::Rewrite => ActionRow::CHANGE,
        // The function itself runs last, without any lock. The function service limits runs by
        // user. With the slots that an address has for long commands, one run would delay others.
        Action::ExecuteFunction => ActionRow { executes: true, ..ActionRow::LOOK }.attributes_first(),
    })
}

/// An admitted command with everything it works on.
pub(crate) struct CommandRun<'a> {
    pub(crate) device: &'a OsdDevice,
    /// Nexus of the command.
    pub(crate) nexus: NexusId,
    /// The nexus and the command as received from the transport; `None` if its status was sent
    /// already.
    pub(crate) origin: Option<(&'a OsdNexus, &'a ScsiCommand<'a>)>,
    pub(crate) cdb: &'a Cdb,
    pub(crate) now_ms: u64,
    /// Command data from the initiator. Under ALLDATA its check value has been verified.
    pub(crate) data_out: &'a [u8],
    /// Digests that the check value of `data_out` was verified with, if it covers digests of a
    /// range.
    pub(crate) covered: Option<&'a CoveredDigests>,
    /// Digest profile of the data to read, if the check value of the reply covers digests of a
    /// range.
    pub(crate) digests_wanted: Option<Profile>,
    /// Length of the whole Data-Out Buffer in bytes.
    pub(crate) data_out_whole: usize,
    /// Output buffer for command data, limited to what the initiator accepts. Its content is
    /// unspecified.
    pub(crate) data_in: &'a mut [u8],
    /// The scatter/gather list, if present.
    pub(crate) scattered: Option<Vec<TransferSpan>>,
    /// The remaining continuation segment: query list, copy source, extension capabilities.
    pub(crate) segment: &'a Segment,
    /// Parameters for attributes in LIST entries.
    pub(crate) entries: ListEntries<'a>,
    /// Key that signed the credential.
    pub(crate) signed: Option<SignedBy>,
    /// Partition claim that the command has.
    pub(crate) claim: PartitionUse,
    /// Step control of a command on many objects.
    pub(crate) steps: &'a StepControl<'a>,
}

impl CommandRun<'_> {
    /// Returns the byte of STARTING BYTE in the CDB.
    pub(crate) const fn start_field(&self) -> u16 {
        pointer::start(self.cdb.generation)
    }

    /// Returns the byte of LENGTH in the CDB.
    pub(crate) const fn length_field(&self) -> u16 {
        pointer::length(self.cdb.generation)
    }

    pub(crate) const fn generation(&self) -> Generation {
        self.cdb.generation
    }

    /// Returns the error for a piece of the transfer that is out of bounds.
    fn span_failure(&self, index: usize) -> OsdFailure {
        match self.cdb.continuation_length {
            0 => OsdFailure::Field(self.start_field()),
            _ => continued::piece_failure(index),
        }
    }

    fn spans(&mut self, at: u64, length: u64) -> Vec<TransferSpan> {
        self.scattered.take().unwrap_or_else(|| vec![TransferSpan::whole(at, length)])
    }
}

/// Timestamps that a command sets on its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectEffect {
    /// No timestamp is set.
    Nothing,
    /// Data accessed.
    DataRead,
    /// Data modified.
    DataModified,
    /// Created; the command itself sets the created time.
    Created,
    /// Removed; there is no object to set them on.
    Removed,
}

/// Status detail of a command that did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusDetail {
    /// Only this many bytes existed.
    ReadPastEnd {
        /// Bytes transferred.
        transferred: u64,
    },
}

/// Outcome of a command.
#[derive(Debug)]
pub(crate) struct CommandResult {
    /// Object of the command. If it created several, the last one.
    pub(crate) object: ObjectId,
    /// All created objects.
    pub(crate) subjects: Vec<ObjectId>,
    /// Bytes of command data for the initiator, including zeros.
    pub(crate) data_in: u64,
    /// Bytes that the data-in check value covers.
    pub(crate) data_in_covered: u64,
    /// Length of the object that the data is a range of; 0 if it is none.
    pub(crate) object_length: u64,
    /// Digests of the data, as far as the store has them.
    pub(crate) digests: Option<CoveredDigests>,
    pub(crate) status_detail: Option<StatusDetail>,
    pub(crate) effect: ObjectEffect,
    /// Start offset of APPEND.
    pub(crate) append_start: u64,
    /// Change of the used capacity in bytes.
    pub(crate) capacity_change: i64,
    /// Attributes retrieved from the members of a collection.
    pub(crate) attributes: Option<Vec<u8>>,
    /// Work that continues after the status was sent.
    pub(crate) plan: Option<MultiPlan>,
}

impl CommandResult {
    /// Returns an outcome with only the object.
    pub(crate) const fn of(object: ObjectId) -> Self {
        Self {
            object,
            subjects: Vec::new(),
            data_in: 0,
            data_in_covered: 0,
            object_length: 0,
            digests: None,
            status_detail: None,
            effect: ObjectEffect::Nothing,
            append_start: 0,
            capacity_change: 0,
            attributes: None,
            plan: None,
        }
    }
}

/// Runs a command that acquires locks itself. Consumes the permit; each step checks the authority
/// again.
pub(crate) fn run_stepwise(run: &mut CommandRun<'_>, _permit: Permit) -> Result<CommandResult, OsdRefusal> {
    match run.cdb.command {
        Command::List(list) => list::list(run, &list),
        Command::ListCollection(list) => list::list_collection(run, &list),
        Command::RemoveCollection(remove) => collections::remove(run, remove.object, remove.force),
        _ => multi::run(run),
    }
}

/// Runs a command. Consumes the permit: one check, one command.
pub(crate) fn run(run: &mut CommandRun<'_>, _permit: Permit) -> Result<CommandResult, OsdFailure> {
    match run.cdb.command {
        Command::Read(extent) => {
            let spans = run.spans(extent.start, extent.length);
            data::read(run, extent.object, &spans)
        }
        Command::Write(extent) => {
            let spans = run.spans(extent.start, extent.length);
            data::write(run, extent.object, &spans)
        }
        Command::Append(append) => data::append(run, append.object, append.length),
        Command::Clear(extent) => data::clear(run, extent.object, extent.start, extent.length),
        Command::Punch(extent) => data::punch(run, extent.object, extent.start, extent.length),
        Command::Create(create) => objects::create(run, create.object, create.count),
        Command::CreateAndWrite(extent) => {
            let spans = run.spans(extent.start, extent.length);
            objects::create_and_write(run, extent.object, &spans)
        }
        Command::Remove(target) => objects::remove(run, target.object),
        Command::CreatePartition(create) => containers::create_partition(run, create.partition),
        Command::RemovePartition(remove) => {
            containers::remove_partition(run, remove.partition, remove.with_contents)
        }
        Command::FormatOsd(format) => containers::format(run, format.capacity),
        Command::Flush(flush) => containers::flush(run, flush.object),
        Command::FlushPartition(flush) | Command::FlushOsd(flush) => {
            containers::flush_container(run, flush.object)
        }
        Command::SetKey(set) => keys::set_key(run, &set),
        Command::SetMasterKey(set) => keys::set_master_key(run, &set),
        Command::CreateCollection(target) => collections::create(run, target.object),
        Command::FlushCollection(flush) => collections::flush(run, flush.object),
        // Their work is the attributes, which are done already. The object was looked up then.
        Command::GetAttributes(target) | Command::SetAttributes(target) => {
            Ok(CommandResult::of(target.object))
        }
        Command::ReadMap(map) => maps::read_map(run, &map),
        Command::ReadMapsAndCompare(map) => maps::compare_maps(run, &map),
        Command::ObjectStructureCheck(target) => check::check(run, target.object),
        Command::CreateSnapshot(make) => duplicates::create(run, &make, DuplicateKind::Snapshot),
        Command::CreateClone(make) => duplicates::create(run, &make, DuplicateKind::Clone),
        Command::DetachClone(clone) => duplicates::detach(run, &clone),
        Command::RefreshSnapshotOrClone(refresh) => duplicates::refresh(run, &refresh),
        Command::RestorePartition(restore) => duplicates::restore(run, &restore),
        Command::PerformScsi(perform) => perform::scsi(run, &perform),
        Command::PerformTask(perform) => perform::check_task(&perform),
        Command::CopyUserObjects(copy) => copies::copy(run, &copy),
        Command::Rewrite(rewrite) => rewrite::rewrite(run, &rewrite),
        // The call was prepared already, and is made when no lock is held.
        Command::ExecuteFunction(execute) => Ok(CommandResult::of(execute.object)),
        Command::CreateTrackingCollection(_)
        | Command::RemoveCollection(_)
        | Command::List(_)
        | Command::ListCollection(_)
        | Command::Query(_)
        | Command::RemoveMemberObjects(_)
        | Command::GetMemberAttributes(_)
        | Command::SetMemberAttributes(_) => Err(OsdFailure::UnsupportedAction),
    }
}
