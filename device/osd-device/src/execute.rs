//! Executes one OSD command, from its CDB to its reply.
//!
//! Does: the order of checks, of the command's functions, and of the parts of the reply.
//! Does not: the work itself; `commands` and `attributes` do.
//! Contract: [`commands::run`] is called once, with the permit, after every check.
//! Truth: docs/design/security.md 3.3; docs/design/t10-osd.md 1.7, 5.2, 5.4.

use std::sync::Arc;

use bytes::Bytes;
use sealstone_crypto::RustCrypto;
use sealstone_digest::DigestValue;
use sealstone_osd::cdb::{Action, BytesNeeded, Cdb, Command, Isolation, Timestamps, pointer};
use sealstone_osd::{ObjectId, ObjectType, SecurityMethod};
use sealstone_scsi::lu::{ScsiCommand, ScsiReply};
use sealstone_scsi::{Functions, Sense, Status};
use sealstone_seal::cover::{self, ObjectBounds};
use sealstone_seal::{Admitted, DataInLayout, Denial, Nonce, Permit, ReplySeal, StoredObject};
use sealstone_store::{GroupScope, StoreError};

use crate::attributes::current::CurrentCommandPage;
use crate::attributes::engine::{self, AttributeRequest};
use crate::attributes::view::AttributeView;
use crate::cache::AccessTimes;
use crate::catalog;
use crate::commands::{
    self, ActionRow, CommandResult, CommandRun, ListEntries, MultiPlan, ObjectEffect, StatusDetail,
    StepControl, collections,
};
use crate::continued;
use crate::device::OsdDevice;
use crate::digests;
use crate::failure::OsdFailure;
use crate::functions::{self, FunctionContext};
use crate::guard::CommandContext;
use crate::isolation;
use crate::locks::{LockGuards, LockScope};
use crate::nexus::OsdNexus;
use crate::partition_locks::{PartitionBusy, PartitionUse};
use crate::report::{self, FunctionProgress, OsdRefusal};
use crate::source::{self, SourceAccess};
use crate::timestamps::{self, TimestampEvents};
use crate::tracking::{self, ImmediateJob, JobQueue};

/// A command in progress.
pub(crate) struct Execution<'a> {
    pub(crate) device: &'a Arc<OsdDevice>,
    jobs: &'a JobQueue,
    pub(crate) nexus: &'a Arc<OsdNexus>,
    pub(crate) command: &'a ScsiCommand<'a>,
    pub(crate) cdb: &'a Cdb,
    pub(crate) row: ActionRow,
    pub(crate) now_ms: u64,
    isolation: Isolation,
    progress: FunctionProgress,
    data_out_used: u64,
    /// Work that continues after the status.
    pending: Option<MultiPlan>,
    /// Authority for a second object, for work that continues after the status.
    source_access: Option<SourceAccess>,
}

/// A reply, with data for audit and metrics.
pub(crate) struct Outcome {
    pub(crate) reply: ScsiReply,
    pub(crate) refusal: Option<OsdRefusal>,
    pub(crate) sense: Option<Sense>,
    /// Whether only the bearer of a credential can have caused the result. Commands done on a
    /// device that requires no credentials count too.
    pub(crate) proven: bool,
}

/// Refuses a permit for an object that does not exist.
pub(crate) fn require_object(permit: &Permit) -> Result<(), OsdFailure> {
    if permit.is_for_nothing() { Err(StoreError::NotFound(permit.object()).into()) } else { Ok(()) }
}

/// Reply data of a command that ran.
struct ReplyParts {
    data_in: Bytes,
    data_in_wanted: u64,
    status_detail: Option<StatusDetail>,
}

impl<'a> Execution<'a> {
    pub(crate) fn new(
        (device, jobs): (&'a Arc<OsdDevice>, &'a JobQueue),
        nexus: &'a Arc<OsdNexus>,
        command: &'a ScsiCommand<'a>,
        cdb: &'a Cdb,
        row: ActionRow,
        now_ms: u64,
    ) -> Self {
        let progress = FunctionProgress::new(cdb.attributes.sets(), cdb.attributes.gets());
        let isolation = Isolation::Default;
        Self {
            device,
            jobs,
            nexus,
            command,
            cdb,
            row,
            now_ms,
            isolation,
            progress,
            data_out_used: 0,
            pending: None,
            source_access: None,
        }
    }

    /// Returns the command, for its checks.
    fn context(&self) -> CommandContext<'a> {
        CommandContext {
            nexus: self.nexus,
            cdb: self.cdb,
            bytes: self.command.cdb,
            now_ms: self.now_ms,
            boot_epoch: self.device.boot_epoch,
        }
    }

    /// Runs the command and returns the reply.
    pub(crate) fn finish(mut self) -> Outcome {
        self.progress.begin(Functions::VALIDATION);
        let version = self.device.guard.keys.version();
        let admitted = self.device.guard.admit(&**self.device, &self.context());
        match admitted {
            Err(refused) => {
                let proven = refused.denial.is_bearers();
                Outcome { proven, ..self.refuse(&refused.reply, refused.denial.into()) }
            }
            Ok(admitted) => match self.run_admitted(&admitted, version) {
                Ok(answer) => {
                    let outcome = self.answer(admitted.reply(), answer);
                    self.hand_over(admitted);
                    outcome
                }
                Err(refusal) => {
                    self.abandon(&admitted, &refusal);
                    let proven = admitted.capability().is_some();
                    Outcome { proven, ..self.refuse(admitted.reply(), refusal) }
                }
            },
        }
    }

    /// Queues the remaining work of an immediate command.
    fn hand_over(&mut self, admitted: Admitted<RustCrypto>) {
        let Some(plan) = self.pending.take() else { return };
        self.jobs.push(ImmediateJob {
            cdb: *self.cdb,
            admitted,
            source_access: self.source_access,
            data_out: self.command.data_out.to_vec(),
            now_ms: self.now_ms,
            plan,
            nexus: self.nexus.id,
            initiator: self.nexus.initiator.clone(),
        });
    }

    /// Cleans up an immediate command that failed after its first part.
    fn abandon(&mut self, admitted: &Admitted<RustCrypto>, refusal: &OsdRefusal) {
        let Some(plan) = self.pending.take() else { return };
        let authority = || tracking::authority(self.device, admitted, None, self.cdb);
        let steps = StepControl::new(self.device, false, &authority);
        tracking::abandon(&steps, &plan, refusal.sense(self.cdb.generation).as_ref());
    }

    fn answer(&self, seal: &ReplySeal<RustCrypto>, answer: ReplyParts) -> Outcome {
        let sense = answer.status_detail.map(report::status_detail);
        let status = if sense.is_some() { Status::CheckCondition } else { Status::Good };
        let encoded = sense.as_ref().map(Sense::encode).unwrap_or_default();
        let reply = ScsiReply {
            status,
            sense: seal.sense(status.byte(), &encoded),
            data_in: answer.data_in,
            data_in_wanted: answer.data_in_wanted,
            data_out_used: self.data_out_used,
        };
        Outcome { reply, refusal: None, sense, proven: true }
    }

    fn refuse(&self, seal: &ReplySeal<RustCrypto>, refusal: OsdRefusal) -> Outcome {
        let status = refusal.status();
        let proven = refusal.denial().is_none_or(Denial::is_proven);
        // Only a bearer of a credential gets more than the bare refusal.
        let sense = refusal.sense(self.cdb.generation).map(|sense| {
            if proven { sense.with_osd(self.progress.error(self.cdb.command.object())) } else { sense }
        });
        let encoded = sense.as_ref().map(Sense::encode).unwrap_or_default();
        let sense_bytes = match status {
            Status::CheckCondition => seal.sense(status.byte(), &encoded),
            _ => Vec::new(),
        };
        let reply = ScsiReply {
            status,
            sense: sense_bytes,
            data_in: Bytes::new(),
            data_in_wanted: 0,
            data_out_used: self.data_out_used,
        };
        Outcome { reply, refusal: Some(refusal), sense, proven: false }
    }

    /// Runs a command that passed the admission check.
    fn run_admitted(
        &mut self,
        admitted: &Admitted<RustCrypto>,
        version: u64,
    ) -> Result<ReplyParts, OsdRefusal> {
        let (device, cdb): (&OsdDevice, _) = (self.device, self.cdb);
        self.check_window(admitted)?;
        self.isolation = isolation::check_options(cdb, device.catalog.root().isolation)?;
        engine::check_lengths(cdb)?;
        continued::check_length(cdb)?;
        let layout = admitted.data_in_layout(cdb)?;
        check_retrieved_place(&layout)?;
        let parts = admitted.authenticate(cdb, self.command.data_out)?;
        self.data_out_used = parts.used();
        let continued = continued::read(cdb, parts.continuation(), device.config.paper_functions)?;
        let attribute_request = AttributeRequest::parse(cdb, &parts)?;
        self.progress.complete(Functions::VALIDATION);

        self.progress.begin(Functions::COMMAND_CAPABILITY);
        let sets = !attribute_request.set.is_empty();
        let claim = PartitionUse::of(&cdb.command, &self.row, sets, &continued, &device.catalog);
        let contents =
            device.partition_locks.acquire(claim).map_err(|PartitionBusy| OsdFailure::PartitionBusy)?;
        let scope = self.lock_scope(&attribute_request);
        let guards = match (&continued.segment.copy_source, scope) {
            // The source of a copy is locked too, so that its bytes and attributes are consistent.
            (Some(source), Some(LockScope::Populate(to))) => {
                Some(device.locks.acquire_several(to.partition, true, &[(to, true), (source.object, false)]))
            }
            _ => scope.map(|scope| device.locks.acquire(scope)),
        };
        if device.guard.keys.version() != version && !device.guard.still_signed(admitted.signed_by()) {
            return Err(OsdFailure::KeysChanged.into());
        }
        let permit = admitted.permit(cdb, device)?;
        require_object(&permit)?;
        match (&continued.spans, cdb.command.bytes_needed()) {
            (Some(spans), _) => {
                spans.iter().try_for_each(|span| permit.check_range(span.at, span.length))?;
            }
            // A segment without a list: the range in the CDB applies.
            (None, BytesNeeded::Range(range)) => permit.check_range(range.start, range.length)?,
            (None, BytesNeeded::AtEnd(_) | BytesNeeded::None) => {}
        }
        let context = self.context();
        let source_access = source::check(device, &context, admitted, &permit, &continued)?;
        self.source_access = source_access;
        let function = match &cdb.command {
            Command::ExecuteFunction(execute) => {
                let (device, nexus, command) = (self.device, self.nexus, &context);
                let context = FunctionContext { device, nexus, command, admitted, permit: &permit };
                Some((functions::authorize(&context, execute, &continued)?, context, execute))
            }
            _ => None,
        };
        self.progress.complete(Functions::COMMAND_CAPABILITY);
        let kind = self.attribute_kind()?;
        self.check_read_only(sets)?;
        self.check_attributes(&attribute_request, kind, &permit)?;
        if self.lists_attributes() {
            attribute_request.check_list()?;
        }
        let prepare = |(authorized, context, execute)| functions::prepare(&context, execute, authorized);
        let function = function.map(prepare).transpose()?;

        // From here on a command on many objects acquires locks itself, unless it has all of them.
        let held = matches!(scope, Some(LockScope::Whole | LockScope::Strict(_)));
        let guards = guards.filter(|_| held || !self.row.stepwise);
        let authority = || tracking::authority(device, admitted, source_access.as_ref(), cdb);
        let steps = StepControl::new(device, held, &authority);

        let mut buffer = self.buffer(&layout)?;
        let into = usize::try_from(layout.data_max).unwrap_or(usize::MAX).min(buffer.len());
        let grouped =
            self.row.grouped && !self.row.stepwise && (self.row.changes || !attribute_request.set.is_empty());
        let scope = grouped.then(|| device.store.begin());
        let whole_page = cover::whole_page(cdb, parts.get_attributes());
        let mut work = CommandWork {
            admitted,
            permit,
            attribute_request: &attribute_request,
            kind,
            attributes: None,
            whole_page,
            page: None,
        };
        let mut run = CommandRun {
            device,
            nexus: self.nexus.id,
            origin: Some((self.nexus, self.command)),
            cdb,
            now_ms: self.now_ms,
            data_out: parts.data(),
            covered: parts.covered(),
            digests_wanted: admitted.reply().digest().map(|(profile, _)| profile),
            data_out_whole: self.command.data_out.len(),
            data_in: &mut buffer[..into],
            scattered: continued.spans,
            segment: &continued.segment,
            entries: ListEntries { attribute_request: &attribute_request, permit },
            signed: admitted.signed_by(),
            claim,
            steps: &steps,
        };
        let done = if self.row.attributes_first {
            self.attributes_first(&mut run, &mut work)
        } else {
            self.command_first(&mut run, &mut work)
        };
        // Also for changes of a command that failed later.
        let ended = end(scope);
        let mut done = done?;
        ended?;
        self.note_container(&done)?;
        drop(guards);
        // No lock is held while waiting for the disk.
        drop(contents);
        if self.row.revokes {
            // Commands that were admitted under the old key end before this command is answered.
            drop(device.locks.acquire(LockScope::Whole));
        }
        let changes = self.row.changes || sets;
        let through = device.config.write_through && changes;
        if self.row.durable || cdb.options.fua || through || attribute_request.sets_security(kind) {
            device.flush()?;
        }
        if let Command::PerformTask(perform) = &cdb.command {
            commands::perform::task(perform, self.nexus, self.command, &mut buffer[..into])?;
        }
        if let Some(prepared) = function {
            let length = functions::run(device, prepared, &mut buffer[..into])? as u64;
            (done.data_in, done.data_in_covered) = (length, length);
        }
        if attribute_request.sets_clock(kind) {
            device.clock.adjust(catalog::clock_offset(&*device.store)?);
        }
        Ok(self.lay_out(buffer, &layout, &done, work))
    }

    /// Checks the nonce window that attributes configure. The admission check used the widest one.
    fn check_window(&self, admitted: &Admitted<RustCrypto>) -> Result<(), Denial> {
        if admitted.reply().method() < SecurityMethod::CmdRsp {
            return Ok(());
        }
        let (oldest, newest) = self.device.catalog.nonce_window(self.cdb.command.object().partition);
        let time = Nonce(self.cdb.security.nonce).time_ms();
        let from = self.now_ms.saturating_sub(oldest);
        if (from..=self.now_ms.saturating_add(newest)).contains(&time) {
            Ok(())
        } else {
            Err(Denial::OutOfWindow { clock_ms: self.now_ms })
        }
    }

    /// Whether this is a LIST whose entries contain the attributes.
    fn lists_attributes(&self) -> bool {
        matches!(self.cdb.command, Command::List(list) | Command::ListCollection(list) if list.with_attributes)
    }

    /// Whether it gets or sets attributes of members instead of its own object.
    fn reaches_members(&self) -> bool {
        matches!(self.cdb.command, Command::GetMemberAttributes(_) | Command::SetMemberAttributes(_))
    }

    /// Returns the lock scope. Setting attributes of an object that is otherwise read needs a lock
    /// for change. `None` if the command acquires locks itself.
    fn lock_scope(&self, attribute_request: &AttributeRequest<'_>) -> Option<LockScope> {
        let sets = !attribute_request.set.is_empty();
        if self.row.steps {
            return None;
        }
        if isolation::needs_the_whole(&self.cdb.command, self.isolation) {
            return Some(match self.cdb.command.object().partition {
                0 => LockScope::Whole,
                partition => LockScope::Strict(partition),
            });
        }
        Some(match (self.row.lock_scope)(self.cdb.command.object()) {
            LockScope::Look(id) | LockScope::Change(id)
                if attribute_request.sets_memberships() && id.object != 0 =>
            {
                LockScope::Enroll(id)
            }
            LockScope::Look(id) if sets => LockScope::Change(id),
            scope => scope,
        })
    }

    /// Refuses changes of the contents of a snapshot. The partition's own attributes may change.
    fn check_read_only(&self, sets: bool) -> Result<(), OsdFailure> {
        let command = &self.cdb.command;
        let contents = |kind: &ObjectType| matches!(kind, ObjectType::User | ObjectType::Collection);
        let fills = matches!(command, Command::Query(query) if query.matches != 0);
        let changes = (self.row.changes || sets || fills) && command.object_types().iter().any(contents);
        if changes && timestamps::is_read_only(self.device, command.object()) {
            Err(OsdFailure::ReadOnly)
        } else {
            Ok(())
        }
    }

    /// Returns the type of the object whose attributes are accessed. It must exist or be created by
    /// the command.
    fn attribute_kind(&self) -> Result<ObjectType, OsdRefusal> {
        let object = self.cdb.command.object();
        match self.cdb.command {
            Command::Create(_) | Command::CreateAndWrite(_) | Command::CopyUserObjects(_) => {
                Ok(ObjectType::User)
            }
            Command::CreatePartition(_) | Command::CreateSnapshot(_) | Command::CreateClone(_) => {
                Ok(ObjectType::Partition)
            }
            Command::CreateCollection(_) | Command::CreateTrackingCollection(_) => Ok(ObjectType::Collection),
            Command::GetMemberAttributes(_) | Command::SetMemberAttributes(_) => Ok(ObjectType::User),
            Command::ListCollection(list) if list.with_attributes && object.is_partition() => {
                Ok(ObjectType::Collection)
            }
            Command::ListCollection(list) if list.with_attributes => Ok(ObjectType::User),
            Command::List(list) if list.with_attributes && object.is_root() => Ok(ObjectType::Partition),
            Command::List(list) if list.with_attributes => Ok(ObjectType::User),
            _ if object.is_root() => Ok(ObjectType::Root),
            _ if object.is_partition() => {
                self.require_partition(object.partition).map(|()| ObjectType::Partition)
            }
            _ => {
                self.require_partition(object.partition)?;
                Ok(collections::object_type(self.device, object)?)
            }
        }
    }

    /// Checks that the partition exists. If its duplication is being completed, the command gets
    /// BUSY.
    fn require_partition(&self, partition: u64) -> Result<(), OsdRefusal> {
        let catalog = &self.device.catalog;
        if catalog.partition(partition).is_some() {
            return Ok(());
        }
        let failure = if catalog.is_hidden(partition) {
            OsdFailure::PartitionBusy
        } else {
            OsdFailure::Field(pointer::PARTITION)
        };
        Err(failure.into())
    }

    fn check_attributes(
        &mut self,
        attribute_request: &AttributeRequest<'_>,
        kind: ObjectType,
        permit: &Permit,
    ) -> Result<(), OsdRefusal> {
        let object = self.cdb.command.object();
        let several =
            matches!(self.cdb.command, Command::Create(create) if create.count > 1) || self.reaches_members();
        if let Command::Create(create) = self.cdb.command {
            attribute_request.check_created(create.count)?;
        }
        if !attribute_request.set.is_empty() {
            self.progress.begin(Functions::SET_CAPABILITY);
            attribute_request.check_set(self.device, object, kind, permit)?;
            self.progress.complete(Functions::SET_CAPABILITY);
        }
        if self.cdb.attributes.gets() {
            self.progress.begin(Functions::GET_CAPABILITY);
            attribute_request.check_get(self.device, kind, several, permit)?;
            self.progress.complete(Functions::GET_CAPABILITY);
        }
        Ok(())
    }

    /// Allocates a buffer for all output, limited to what the initiator accepts.
    fn buffer(&self, layout: &DataInLayout) -> Result<Vec<u8>, OsdRefusal> {
        let length = usize::try_from(span_of(layout)).unwrap_or(usize::MAX);
        let length = length.min(self.command.data_in_max);
        if length == 0 {
            return Ok(Vec::new());
        }
        self.command.buffers.take(length).ok_or(OsdRefusal::Failed(OsdFailure::NoBuffer))
    }

    fn command_first(
        &mut self,
        run: &mut CommandRun<'_>,
        work: &mut CommandWork<'_, '_>,
    ) -> Result<CommandResult, OsdRefusal> {
        self.progress.begin(Functions::COMMAND);
        let mut done = match self.row.stepwise {
            true => commands::run_stepwise(run, work.permit)?,
            false => commands::run(run, work.permit)?,
        };
        self.pending = done.plan.take();
        self.progress.complete(Functions::COMMAND);
        let (_guards, scope) = self.begin_attributes(run, done.object, work)?;
        let several: Vec<ObjectId> =
            if done.subjects.is_empty() { vec![done.object] } else { done.subjects.clone() };
        if self.reaches_members() {
            self.progress.complete(Functions::IMPLICIT_SET);
            self.progress.complete(Functions::SET_ATTRIBUTES);
            work.attributes = done.attributes.take();
            self.progress.complete(Functions::GET_ATTRIBUTES);
            end(scope)?;
            return Ok(done);
        }
        self.timestamps(&several, work, done.effect)?;
        if !self.lists_attributes() {
            self.set(&several, work)?;
            self.get(&several, work, Some(&done))?;
        } else {
            self.progress.complete(Functions::GET_ATTRIBUTES);
        }
        end(scope)?;
        Ok(done)
    }

    fn attributes_first(
        &mut self,
        run: &mut CommandRun<'_>,
        work: &mut CommandWork<'_, '_>,
    ) -> Result<CommandResult, OsdRefusal> {
        let object = [self.cdb.command.object()];
        let (guards, scope) = self.begin_attributes(run, object[0], work)?;
        self.timestamps(&object, work, ObjectEffect::Nothing)?;
        if self.cdb.command.action() == Action::GetAttributes {
            self.get(&object, work, None)?;
            self.set(&object, work)?;
        } else {
            self.set(&object, work)?;
            self.get(&object, work, None)?;
        }
        end(scope)?;
        drop(guards);
        self.progress.begin(Functions::COMMAND);
        let done = match self.row.stepwise {
            true => commands::run_stepwise(run, work.permit)?,
            false => commands::run(run, work.permit)?,
        };
        self.progress.complete(Functions::COMMAND);
        Ok(done)
    }

    /// Starts the attribute part of a stepwise command: acquires the lock of its object and starts
    /// a group.
    fn begin_attributes<'r>(
        &self,
        run: &CommandRun<'r>,
        object: ObjectId,
        work: &CommandWork<'_, '_>,
    ) -> Result<(Option<LockGuards<'r>>, Option<GroupScope<'r>>), OsdRefusal> {
        if !self.row.stepwise || !self.cdb.attributes.sets() && !self.cdb.attributes.gets() {
            return Ok((None, None));
        }
        let sets = !work.attribute_request.set.is_empty();
        let guards =
            run.steps.acquire(if sets { LockScope::Change(object) } else { LockScope::Look(object) });
        run.steps.authority()?;
        Ok((guards, sets.then(|| run.device.store.begin())))
    }

    fn set(&mut self, objects: &[ObjectId], work: &CommandWork<'_, '_>) -> Result<(), OsdRefusal> {
        if work.attribute_request.set.is_empty() {
            return Ok(());
        }
        self.progress.begin(Functions::SET_ATTRIBUTES);
        for &id in objects {
            work.attribute_request.apply(self.device, id, work.kind)?;
        }
        self.progress.complete(Functions::SET_ATTRIBUTES);
        Ok(())
    }

    fn get(
        &mut self,
        objects: &[ObjectId],
        work: &mut CommandWork<'_, '_>,
        done: Option<&CommandResult>,
    ) -> Result<(), OsdRefusal> {
        if !self.cdb.attributes.gets() {
            return Ok(());
        }
        self.progress.begin(Functions::GET_ATTRIBUTES);
        let object = done.map_or(self.cdb.command.object(), |done| done.object);
        let current = CurrentCommandPage {
            generation: self.cdb.generation,
            response_icv: work.admitted.reply().good().unwrap_or_default(),
            kind: work.kind,
            partition: object.partition,
            object: object.object,
            append_start: done.map_or(0, |done| done.append_start),
            capacity_change: done.map_or_else(|| self.foreseen_change(), |done| done.capacity_change),
        };
        let view = |id: &ObjectId| AttributeView {
            device: self.device,
            id: *id,
            kind: work.kind,
            now_ms: self.now_ms,
            current: &current,
        };
        let views: Vec<AttributeView<'_>> = objects.iter().map(view).collect();
        let created = matches!(self.cdb.command, Command::Create(_));
        work.attributes = Some(match created {
            true => work.attribute_request.retrieve_created(&views, &work.permit)?,
            false => work.attribute_request.retrieve_all(&views, &work.permit)?,
        });
        if let (Some(profile), Some(page)) = (work.admitted.reply().profile(), work.whole_page) {
            let list = work.attributes.as_deref().unwrap_or_default();
            work.page = digests::page(self.device, object, profile, page, self.cdb.generation, list)?;
        }
        self.progress.complete(Functions::GET_ATTRIBUTES);
        Ok(())
    }

    /// Returns the change of used capacity by a command that removes its object, for attributes
    /// that are retrieved before.
    fn foreseen_change(&self) -> i64 {
        let object = self.cdb.command.object();
        let freed = match self.cdb.command {
            Command::Remove(_) => self.device.store.stat(object).map_or(0, |stat| stat.used_bytes),
            Command::RemovePartition(_) => {
                self.device.catalog.partition(object.partition).map_or(0, |partition| partition.used())
            }
            _ => 0,
        };
        i64::try_from(freed).map_or(i64::MIN, |freed| -freed)
    }

    /// Sets the timestamps that a command updates implicitly.
    fn timestamps(
        &mut self,
        objects: &[ObjectId],
        work: &CommandWork<'_, '_>,
        effect: ObjectEffect,
    ) -> Result<(), OsdRefusal> {
        self.progress.begin(Functions::IMPLICIT_SET);
        for &id in objects {
            if !self.bypasses_timestamps(id) {
                self.update_timestamps(id, work, effect)?;
            }
        }
        self.progress.complete(Functions::IMPLICIT_SET);
        Ok(())
    }

    fn update_timestamps(
        &self,
        id: ObjectId,
        work: &CommandWork<'_, '_>,
        effect: ObjectEffect,
    ) -> Result<(), OsdRefusal> {
        let listed = matches!(self.cdb.command, Command::List(_) | Command::ListCollection(_));
        let events = TimestampEvents {
            data_modified: effect == ObjectEffect::DataModified,
            attributes_modified: !work.attribute_request.set.is_empty(),
            data_read: effect == ObjectEffect::DataRead && !listed,
            attributes_read: self.cdb.attributes.gets() && !listed,
        };
        Ok(timestamps::record(self.device, id, work.kind, events, self.now_ms)?)
    }

    /// Updates the access times of the container: a list accesses its data, adding and removing
    /// objects modifies it.
    fn note_container(&self, done: &CommandResult) -> Result<(), OsdFailure> {
        let Some(container) = isolation::container(done.object) else { return Ok(()) };
        let modified = matches!(done.effect, ObjectEffect::Created | ObjectEffect::Removed)
            && done.object != container
            || !done.subjects.is_empty();
        let listed = matches!(self.cdb.command, Command::List(_));
        if !(modified || listed) || self.bypasses_timestamps(container) {
            return Ok(());
        }
        let accesses = AccessTimes {
            data_ms: listed.then_some(self.now_ms),
            attributes_ms: None,
            modified_ms: modified.then_some(self.now_ms),
        };
        self.device.note(container, accesses)
    }

    fn bypasses_timestamps(&self, id: ObjectId) -> bool {
        self.cdb.timestamps == Timestamps::Bypass || timestamps::are_bypassed(self.device, id)
    }

    /// Places retrieved attributes and integrity information, and freezes the buffer.
    fn lay_out(
        &self,
        mut buffer: Vec<u8>,
        layout: &DataInLayout,
        done: &CommandResult,
        work: CommandWork<'_, '_>,
    ) -> ReplyParts {
        let attributes = work.attributes.unwrap_or_default();
        let mut wanted = done.data_in;
        let limit = buffer.len();
        let clip = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(limit);
        let mut filled = clip(done.data_in);
        if let Some(place) = layout.attributes
            && !attributes.is_empty()
        {
            wanted = wanted.max(place.offset.saturating_add(attributes.len() as u64));
            filled = put(&mut buffer, filled, place.offset, &attributes);
        }
        if let Some(at) = layout.integrity {
            let covered = clip(done.data_in_covered);
            // Bytes that the initiator does not accept are not covered. The residual count shows
            // that.
            let taken = layout.attributes.map_or(0, |place| {
                clip(place.offset.saturating_add(attributes.len() as u64)).saturating_sub(clip(place.offset))
            });
            let sent = &attributes[..taken.min(attributes.len())];
            let stored = StoredObject {
                place: ObjectBounds { object_length: done.object_length, generation: 0 },
                covered: done.digests.as_ref(),
                page: work.page.filter(|_| sent.len() == attributes.len()),
            };
            let reply = work.admitted.reply();
            let block = reply.data_in_of(&[&buffer[..covered]], sent, Some(&stored)).unwrap_or_default();
            wanted = wanted.max(at.saturating_add(block.len() as u64));
            filled = put(&mut buffer, filled, at, &block);
        }
        buffer.truncate(filled);
        let data_in = if buffer.is_empty() { Bytes::new() } else { self.command.buffers.freeze(buffer) };
        ReplyParts { data_in, data_in_wanted: wanted, status_detail: done.status_detail }
    }
}

/// The permit and other state of one command.
struct CommandWork<'w, 'l> {
    admitted: &'w Admitted<RustCrypto>,
    permit: Permit,
    attribute_request: &'w AttributeRequest<'l>,
    kind: ObjectType,
    attributes: Option<Vec<u8>>,
    /// The page that is requested as a whole and alone.
    whole_page: Option<u32>,
    /// Its digest, where that stands for the retrieved attributes.
    page: Option<DigestValue>,
}

/// Copies `bytes` to `at`, as far as the buffer reaches, and zeros the gap before them. Returns the
/// new end.
fn put(buffer: &mut [u8], filled: usize, at: u64, bytes: &[u8]) -> usize {
    let start = usize::try_from(at).unwrap_or(usize::MAX).min(buffer.len());
    let end = start.saturating_add(bytes.len()).min(buffer.len());
    if filled < start {
        buffer[filled..start].fill(0);
    }
    buffer[start..end].copy_from_slice(&bytes[..end - start]);
    filled.max(end)
}

/// Returns the length of the Data-In Buffer up to the last part that may be in it.
fn span_of(layout: &DataInLayout) -> u64 {
    let attributes = layout.attributes.map_or(0, |place| place.end());
    let integrity = layout.integrity.map_or(0, |at| at.saturating_add(layout.integrity_len));
    layout.data_max.max(attributes).max(integrity)
}

/// Checks that retrieved attributes do not overlap command data.
fn check_retrieved_place(layout: &DataInLayout) -> Result<(), OsdFailure> {
    match layout.attributes {
        Some(place) if place.offset < layout.data_max => Err(OsdFailure::Field(pointer::ATTRIBUTES)),
        _ => Ok(()),
    }
}

/// Ends the transaction group of a command.
fn end(scope: Option<GroupScope<'_>>) -> Result<(), StoreError> {
    scope.map_or(Ok(()), GroupScope::end)
}
