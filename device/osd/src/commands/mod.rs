//! The command table and the handlers.
//!
//! Does: one row per service action of the protocol's table; one arm per command that this device runs.
//! Does not: decide whether a command may run. A handler is reached only through [`run`], which takes the permit.
//! Contract: an action without a row here is answered as unknown, before anything else is looked at.
//! Truth: `sealstone_osd::table`; docs/design/t10-osd.md 1.2, 1.10.

mod check;
pub(crate) mod collections;
mod containers;
mod copies;
pub(crate) mod data;
mod duplicates;
mod keys;
mod list;
mod maps;
mod members;
pub(crate) mod multi;
mod objects;
pub(crate) mod perform;
mod query;
mod rewrite;
mod walk;

use sealstone_digest::{Covered, Profile};
use sealstone_osd::cdb::{Action, Cdb, Command, pointer};
use sealstone_osd::continuation::Segment;
use sealstone_osd::{Generation, ObjectId};
use sealstone_scsi::lu::{Cost, NexusId, ScsiCommand};
use sealstone_seal::{Permit, SignedBy};

pub(crate) use data::Span;
pub(crate) use duplicates::{finish_all as finish_duplicates, finish_stranded};
pub(crate) use list::Entries;
pub(crate) use multi::Plan;
pub(crate) use walk::{Pool, Steps, Tally};

use crate::contents::Claim;
use crate::continued;
use crate::device::Device;
use crate::duplicates::Kind;
use crate::failure::Failure;
use crate::locks::Reach;
use crate::nexus::Nexus;
use crate::report::Refusal;

/// What the device does with a service action.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// May it wait for the medium?
    pub(crate) cost: Cost,
    /// Does it change anything, so that it is always audited?
    pub(crate) changes: bool,
    /// Attributes are set and fetched before the command's own work: the object is gone afterwards.
    pub(crate) attributes_first: bool,
    /// GOOD promises that it survives a crash: what was revoked must not come back.
    pub(crate) durable: bool,
    /// All it does lands in one transaction group. Not where the number of objects is without bound.
    pub(crate) grouped: bool,
    /// GOOD promises that nothing runs any more that a key of before allowed.
    pub(crate) revokes: bool,
    /// It locks by itself, step by step; `reach` is what it would lock otherwise.
    pub(crate) steps: bool,
    /// It locks for itself, step by step; the lock of its first check is given back before it begins.
    pub(crate) stepwise: bool,
    /// What it locks.
    pub(crate) reach: fn(ObjectId) -> Reach,
}

impl Row {
    const LOOK: Self = Self {
        cost: Cost::Blocking,
        changes: false,
        attributes_first: false,
        durable: false,
        grouped: true,
        revokes: false,
        steps: false,
        stepwise: false,
        reach: Reach::Look,
    };
    const CHANGE: Self = Self { changes: true, reach: Reach::Change, ..Self::LOOK };
    const POPULATE: Self = Self { changes: true, reach: Reach::Populate, ..Self::LOOK };
    const WHOLE: Self = Self { changes: true, durable: true, reach: |_| Reach::Whole, ..Self::LOOK };

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

    /// Its work grows with the number or the size of objects.
    const fn long(self) -> Self {
        Self { cost: Cost::Long, ..self }
    }
}

/// The row of a service action; `None`: this device does not implement it.
pub(crate) const fn row(action: Action) -> Option<Row> {
    Some(match action {
        Action::Read => Row::LOOK.inline(),
        Action::List | Action::ListCollection | Action::Query | Action::GetMemberAttributes => {
            Row::LOOK.stepwise()
        }
        Action::SetMemberAttributes | Action::RemoveMemberObjects | Action::CreateTrackingCollection => {
            Row { changes: true, ..Row::LOOK }.stepwise()
        }
        Action::RemoveCollection => Row { changes: true, ..Row::LOOK }.stepwise().attributes_first(),
        Action::CreateCollection => Row::POPULATE.inline(),
        Action::GetAttributes => Row::LOOK.inline().attributes_first(),
        // May have to be durable, which the CDB alone does not tell.
        Action::SetAttributes => Row::CHANGE.attributes_first(),
        Action::Write | Action::Append | Action::Clear | Action::Punch => Row::CHANGE.inline(),
        Action::Create | Action::CreateAndWrite => Row::POPULATE.inline(),
        Action::Remove => Row::POPULATE.attributes_first(),
        Action::Flush | Action::FlushCollection | Action::FlushPartition | Action::FlushOsd => {
            Row { durable: true, ..Row::LOOK }
        }
        // Other commands go on while the new key is being stored.
        Action::SetKey | Action::SetMasterKey => {
            Row { changes: true, revokes: true, ..Row::LOOK.ungrouped() }
        }
        Action::CreatePartition => Row::WHOLE,
        Action::RemovePartition => Row::WHOLE.ungrouped().attributes_first(),
        Action::FormatOsd => Row::WHOLE.ungrouped(),
        Action::ReadMap | Action::ReadMapsAndCompare => Row::LOOK.long(),
        Action::ObjectStructureCheck => Row { durable: true, ..Row::LOOK.in_steps() },
        Action::CreateClone
        | Action::CreateSnapshot
        | Action::RefreshSnapshotOrClone
        | Action::RestorePartition => Row::WHOLE.in_steps(),
        Action::DetachClone => Row::WHOLE,
        Action::PerformScsi => Row { changes: true, ..Row::LOOK },
        // The function itself comes last of all, when no lock is held.
        Action::PerformTask => Row { changes: true, ..Row::LOOK }.attributes_first(),
        Action::CopyUserObjects => Row::POPULATE.long(),
        Action::Rewrite => Row::CHANGE,
    })
}

/// A command that may run, with all it works on.
pub(crate) struct Run<'a> {
    pub(crate) device: &'a Device,
    /// Where the command came from.
    pub(crate) nexus: NexusId,
    /// The nexus and the command as the transport brought it; `None` when its status was sent already.
    pub(crate) origin: Option<(&'a Nexus, &'a ScsiCommand<'a>)>,
    pub(crate) cdb: &'a Cdb,
    pub(crate) now_ms: u64,
    /// Command data from the initiator; under ALLDATA its check value has matched.
    pub(crate) data_out: &'a [u8],
    /// The digests that the check value of `data_out` was verified over, if it was over digests of a range.
    pub(crate) covered: Option<&'a Covered>,
    /// The digests that stand for what is read, if the check value of the reply is over those of a range.
    pub(crate) digests_wanted: Option<Profile>,
    /// Bytes of the whole Data-Out Buffer.
    pub(crate) data_out_whole: usize,
    /// Where command data for the initiator goes, as far as it takes any; contents unspecified.
    pub(crate) data_in: &'a mut [u8],
    /// The scatter/gather list, if the command came with one.
    pub(crate) scattered: Option<Vec<Span>>,
    /// The rest of the continuation segment: query list, copy source, extension capabilities.
    pub(crate) segment: &'a Segment,
    /// What LIST puts into its entries.
    pub(crate) entries: Entries<'a>,
    /// The key behind the credential.
    pub(crate) signed: Option<SignedBy>,
    /// The contents that are held.
    pub(crate) claim: Claim,
    /// How a command on many objects takes its steps.
    pub(crate) steps: &'a Steps<'a>,
}

impl Run<'_> {
    /// Byte of the CDB: STARTING BYTE.
    pub(crate) const fn start_field(&self) -> u16 {
        pointer::start(self.cdb.generation)
    }

    /// Byte of the CDB: LENGTH.
    pub(crate) const fn length_field(&self) -> u16 {
        pointer::length(self.cdb.generation)
    }

    pub(crate) const fn generation(&self) -> Generation {
        self.cdb.generation
    }

    /// A piece of the transfer is where it must not be.
    fn span_failure(&self, index: usize) -> Failure {
        match self.cdb.continuation_length {
            0 => Failure::Field(self.start_field()),
            _ => continued::piece_failure(index),
        }
    }

    fn spans(&mut self, at: u64, length: u64) -> Vec<Span> {
        self.scattered.take().unwrap_or_else(|| vec![Span::whole(at, length)])
    }
}

/// Which timestamps a command leaves on its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// None.
    Nothing,
    /// Data accessed.
    DataRead,
    /// Data modified.
    DataModified,
    /// The created time is set by the command itself.
    Created,
    /// There is nothing left to leave them on.
    Removed,
}

/// Something the initiator hears although the command did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remark {
    /// Only so many bytes were there.
    ReadPastEnd {
        /// Bytes transferred.
        transferred: u64,
    },
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Done {
    /// The object it was about; of several created the last.
    pub(crate) object: ObjectId,
    /// Every object created.
    pub(crate) subjects: Vec<ObjectId>,
    /// Bytes of command data for the initiator, zeros included.
    pub(crate) data_in: u64,
    /// Those of them that the data-in check value covers.
    pub(crate) data_in_covered: u64,
    /// The length of the object that they are a range of, 0 if they are none.
    pub(crate) object_length: u64,
    /// Their digests, as far as the store has them.
    pub(crate) digests: Option<Covered>,
    pub(crate) remark: Option<Remark>,
    pub(crate) touch: Touch,
    /// Where APPEND began.
    pub(crate) append_start: u64,
    /// Change of the used capacity, bytes.
    pub(crate) capacity_change: i64,
    /// What was fetched from the members of a collection.
    pub(crate) attributes: Option<Vec<u8>>,
    /// The rest is to be done after the status was sent.
    pub(crate) plan: Option<Plan>,
}

impl Done {
    /// Nothing more to tell than which object it was.
    pub(crate) const fn of(object: ObjectId) -> Self {
        Self {
            object,
            subjects: Vec::new(),
            data_in: 0,
            data_in_covered: 0,
            object_length: 0,
            digests: None,
            remark: None,
            touch: Touch::Nothing,
            append_start: 0,
            capacity_change: 0,
            attributes: None,
            plan: None,
        }
    }
}

/// Runs a command that locks for itself. The permit is used up; each step asks whether there would be one.
pub(crate) fn run_stepwise(run: &mut Run<'_>, _permit: Permit) -> Result<Done, Refusal> {
    match run.cdb.command {
        Command::List(list) => list::list(run, &list),
        Command::ListCollection(list) => list::list_collection(run, &list),
        Command::RemoveCollection(remove) => collections::remove(run, remove.object, remove.force),
        _ => multi::run(run),
    }
}

/// Runs a command. The permit is used up: one check, one command.
pub(crate) fn run(run: &mut Run<'_>, _permit: Permit) -> Result<Done, Failure> {
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
        // Their work is the attributes, which are done already; the object was looked up then.
        Command::GetAttributes(target) | Command::SetAttributes(target) => Ok(Done::of(target.object)),
        Command::ReadMap(map) => maps::read_map(run, &map),
        Command::ReadMapsAndCompare(map) => maps::compare_maps(run, &map),
        Command::ObjectStructureCheck(target) => check::check(run, target.object),
        Command::CreateSnapshot(make) => duplicates::create(run, &make, Kind::Snapshot),
        Command::CreateClone(make) => duplicates::create(run, &make, Kind::Clone),
        Command::DetachClone(clone) => duplicates::detach(run, &clone),
        Command::RefreshSnapshotOrClone(refresh) => duplicates::refresh(run, &refresh),
        Command::RestorePartition(restore) => duplicates::restore(run, &restore),
        Command::PerformScsi(perform) => perform::scsi(run, &perform),
        Command::PerformTask(perform) => perform::check_task(&perform),
        Command::CopyUserObjects(copy) => copies::copy(run, &copy),
        Command::Rewrite(rewrite) => rewrite::rewrite(run, &rewrite),
        Command::CreateTrackingCollection(_)
        | Command::RemoveCollection(_)
        | Command::List(_)
        | Command::ListCollection(_)
        | Command::Query(_)
        | Command::RemoveMemberObjects(_)
        | Command::GetMemberAttributes(_)
        | Command::SetMemberAttributes(_) => Err(Failure::UnsupportedAction),
    }
}
