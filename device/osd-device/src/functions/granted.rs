//! Objects that a function may access, on a real device.
//!
//! Does: check the authority of an extension capability on every operation, under the lock of the
//! object, and do what the corresponding command does.
//! Does not: know functions or jobs.
//! Contract: no lock is held between operations. An operation that fails has changed nothing,
//! except where the store failed. Transactions and timestamps are those of commands.
//! Truth: docs/standards/active.md; docs/design/active.md, authority.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_osd::capability::Range;
use sealstone_osd::cdb::BytesNeeded;
use sealstone_osd::function::FunctionObject;
use sealstone_osd::function::attributes::{CREATOR_AUDIT, CREATOR_FUNCTION};
use sealstone_osd::{AttributeId, Capability, Generation, ObjectId, ObjectType, Permissions};
use sealstone_seal::{
    Denial, NOT_ENFORCED_WITHOUT_SECURITY, Permit, RequiredRights, SignedBy, Verified, VerifiedExtension,
};
use sealstone_store::StoreError;

use crate::attributes::current::CurrentCommandPage;
use crate::attributes::engine::AttributeRequest;
use crate::attributes::rows::{self, CURRENT_COMMAND, PageKind};
use crate::attributes::view::AttributeView;
use crate::commands::collections::{self, CollectionKind};
use crate::commands::walk::{MemberSet, StepControl};
use crate::commands::{data, list, objects};
use crate::device::OsdDevice;
use crate::failure::OsdFailure;
use crate::function_runner::{GrantError, GrantedList, GrantedObject};
use crate::locks::{LockGuards, LockScope};
use crate::partition_locks::{PartitionGuards, PartitionUse};
use crate::report::OsdRefusal;
use crate::timestamps::{self, TimestampEvents};

/// Longest wait for a partition that is being duplicated.
const PARTITION_WAIT: Duration = Duration::from_secs(10);
/// Pause between two tries.
const PARTITION_PAUSE: Duration = Duration::from_millis(5);

/// Authority for one object.
#[derive(Clone, Copy)]
pub(crate) enum GrantBasis {
    /// An extension capability with a verified proof.
    Proven(VerifiedExtension),
    /// Without security the bits of the command's capability count, and they are unproven.
    Unsecured(Permit),
}

impl GrantBasis {
    /// Checks the authority again. Call it under the lock of the object.
    fn permit(&self, device: &OsdDevice, need: &RequiredRights, now_ms: u64) -> Result<Permit, OsdRefusal> {
        let extended = match self {
            Self::Proven(extended) => extended,
            Self::Unsecured(permit) => {
                permit.check_floor(need.object, device)?;
                let needed = need.permissions.without(NOT_ENFORCED_WITHOUT_SECURITY);
                return if permit.allows(needed) { Ok(*permit) } else { Err(Denial::Permission.into()) };
            }
        };
        if !device.guard.still_signed(Some(extended.signed_by())) {
            return Err(OsdFailure::KeysChanged.into());
        }
        extended.check_expiry(now_ms).map_err(OsdRefusal::ExtensionDenied)?;
        let permit = extended.permit(need, device).map_err(OsdRefusal::ExtensionDenied)?;
        if permit.is_for_nothing() {
            return Err(OsdFailure::Store(StoreError::NotFound(need.object)).into());
        }
        Ok(permit)
    }

    fn range(&self) -> Range {
        match self {
            Self::Proven(extended) => extended.range(),
            Self::Unsecured(_) => Range::ALL,
        }
    }
}

/// Authority to execute the function. If its key is replaced or frozen, its audit value frozen, its
/// policy access tag changed, or if it expires, the function loses access to all objects. A removal
/// of the function object has no effect, since the code is a copy.
pub(crate) struct ExecuteAuthority {
    pub(crate) capability: Option<Verified<Capability>>,
    pub(crate) signed: Option<SignedBy>,
    /// Rights that the command needed.
    pub(crate) need: RequiredRights,
    /// Whether the device uses it to store the result after the run. Then only the capability for
    /// the result limits the time.
    pub(crate) is_for_result: bool,
}

impl ExecuteAuthority {
    fn check(&self, device: &OsdDevice, now_ms: u64) -> Result<(), OsdRefusal> {
        if !device.guard.still_signed(self.signed) {
            return Err(OsdFailure::KeysChanged.into());
        }
        let (Some(capability), Some(signed)) = (&self.capability, self.signed) else {
            // Without security there is neither.
            return Ok(());
        };
        capability.check_unfrozen(signed, device)?;
        if !self.is_for_result {
            capability.check_expiry(now_ms)?;
        }
        capability.permit(&self.need, device)?;
        Ok(())
    }
}

/// The object of a handle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GrantTarget {
    /// The object of the entry.
    Entry,
    /// An object that the function created, with its created time: the number may be reused.
    Created { object: ObjectId, created_ms: u64 },
}

/// One object of a function.
pub(crate) struct DeviceGrant {
    device: Arc<OsdDevice>,
    execute: Arc<ExecuteAuthority>,
    basis: GrantBasis,
    entry: FunctionObject,
    target: GrantTarget,
}

/// A checked operation, with its locks.
struct GrantAccess<'a> {
    permit: Permit,
    now_ms: u64,
    _locks: LockGuards<'a>,
    _partition: PartitionGuards<'a>,
}

impl DeviceGrant {
    /// Creates a handle after a check that all rights of the entry are granted now.
    pub(crate) fn new(
        device: &Arc<OsdDevice>,
        execute: &Arc<ExecuteAuthority>,
        basis: GrantBasis,
        entry: FunctionObject,
        now_ms: u64,
    ) -> Result<Self, OsdRefusal> {
        let grant = Self {
            device: Arc::clone(device),
            execute: Arc::clone(execute),
            basis,
            entry,
            target: GrantTarget::Entry,
        };
        basis.permit(device, &grant.need(entry.rights, BytesNeeded::None), now_ms)?;
        Ok(grant)
    }

    /// Whether it creates objects. Then its capability is that of CREATE: a user object capability
    /// with number 0, for the number that the device chooses.
    fn creates(&self) -> bool {
        self.entry.rights.contains(Permissions::CREATE)
    }

    fn need(&self, permissions: Permissions, bytes: BytesNeeded) -> RequiredRights {
        let object = self.entry.object;
        let types: &'static [ObjectType] = match self.entry.kind {
            ObjectType::Collection => &[ObjectType::Collection],
            ObjectType::Partition if !self.creates() => &[ObjectType::Partition],
            ObjectType::Partition | ObjectType::User | ObjectType::Root => &[ObjectType::User],
        };
        RequiredRights {
            generation: Generation::Osd2,
            object,
            types,
            subject: match (self.entry.kind, self.target) {
                // As for CREATE: the object does not exist yet.
                (ObjectType::User | ObjectType::Collection, GrantTarget::Entry) if self.creates() => {
                    ObjectId::of_partition(object.partition)
                }
                _ => object,
            },
            permissions,
            bytes,
            scattered: false,
        }
    }

    /// Records the function and its caller in an object that it created, so that the object can be
    /// attributed after a crash of the device.
    fn record_creator(&self, object: ObjectId) -> Result<(), OsdFailure> {
        let function = self.execute.need.object;
        let function = [function.partition.to_be_bytes(), function.object.to_be_bytes()].concat();
        let audit = self.execute.capability.as_ref().map_or([0; 20], |capability| capability.audit);
        let page = rows::base(self.created_kind()) + rows::CREATOR;
        for (id, value) in [(CREATOR_FUNCTION, &function[..]), (CREATOR_AUDIT, &audit[..])] {
            let id = AttributeId::new(page, id.number);
            self.device.store.set_attribute(object, id, value)?;
        }
        Ok(())
    }

    /// Returns the type of the objects that it creates.
    const fn created_kind(&self) -> ObjectType {
        match self.entry.kind {
            ObjectType::Collection => ObjectType::Collection,
            _ => ObjectType::User,
        }
    }

    /// Creates an object with `make`, and a handle of it.
    fn create_with(
        &self,
        make: impl FnOnce(&OsdDevice, u64) -> Result<ObjectId, OsdFailure>,
    ) -> Result<Arc<dyn GrantedObject>, GrantError> {
        let scope = LockScope::Populate(self.entry.object);
        let access = self.access(scope, true, Permissions::CREATE, BytesNeeded::None)?;
        let device = &*self.device;
        let scope = device.store.begin();
        let made = make(device, access.now_ms).and_then(|object| {
            timestamps::record_population(device, object, access.now_ms)?;
            self.record_creator(object)?;
            Ok((object, device.facts(object)?.created_ms))
        });
        let ended = scope.end();
        let (object, created_ms) = made.map_err(|failure| self.failed(failure))?;
        ended.map_err(|error| self.failed(error.into()))?;
        Ok(Arc::new(Self {
            device: Arc::clone(&self.device),
            execute: Arc::clone(&self.execute),
            basis: self.basis,
            entry: self.entry,
            target: GrantTarget::Created { object, created_ms },
        }))
    }

    /// Returns the collection of the handle.
    fn collection(&self) -> Result<ObjectId, GrantError> {
        if self.kind() == ObjectType::Collection { self.subject() } else { Err(GrantError::Invalid) }
    }

    /// Returns the object that operations on bytes and attributes concern.
    fn subject(&self) -> Result<ObjectId, GrantError> {
        match self.target {
            GrantTarget::Created { object, .. } => Ok(object),
            GrantTarget::Entry if self.creates() => Err(GrantError::Invalid),
            GrantTarget::Entry => Ok(self.entry.object),
        }
    }

    fn user_object(&self) -> Result<ObjectId, GrantError> {
        if self.kind() == ObjectType::User { self.subject() } else { Err(GrantError::Invalid) }
    }

    /// Acquires the locks of an operation and checks its authority.
    fn access(
        &self,
        scope: LockScope,
        changes: bool,
        permissions: Permissions,
        bytes: BytesNeeded,
    ) -> Result<GrantAccess<'_>, GrantError> {
        let partition = self.claim(changes, permissions)?;
        let locks = self.device.locks.acquire(scope);
        let admitted = self.admit(changes, permissions, bytes);
        let (permit, now_ms) = admitted.map_err(|refusal| self.refused(refusal))?;
        Ok(GrantAccess { permit, now_ms, _locks: locks, _partition: partition })
    }

    /// Acquires the claim of an operation on its partition.
    fn claim(&self, changes: bool, permissions: Permissions) -> Result<PartitionGuards<'_>, GrantError> {
        if !self.entry.rights.contains(permissions) {
            return Err(GrantError::AccessDenied);
        }
        if self.device.is_formatting() {
            return Err(GrantError::Io);
        }
        let partition = self.entry.object.partition;
        let claim = if changes { PartitionUse::Change(partition) } else { PartitionUse::Look(partition) };
        wait_for_partition(&self.device, claim)
    }

    /// Checks the authority of an operation; returns it, and the time. Call it under the locks.
    fn admit(
        &self,
        changes: bool,
        permissions: Permissions,
        bytes: BytesNeeded,
    ) -> Result<(Permit, u64), OsdRefusal> {
        let device = &*self.device;
        if !self.entry.rights.contains(permissions) {
            return Err(Denial::Permission.into());
        }
        let partition = self.entry.object.partition;
        if device.catalog.partition(partition).is_none() {
            return Err(StoreError::NotFound(ObjectId::of_partition(partition)).into());
        }
        if changes && timestamps::is_read_only(device, self.entry.object) {
            return Err(OsdFailure::ReadOnly.into());
        }
        let now_ms = device.time().map_err(OsdFailure::from)?;
        self.execute.check(device, now_ms)?;
        let permit = self.basis.permit(device, &self.need(permissions, bytes), now_ms)?;
        if let GrantTarget::Created { object, created_ms } = self.target {
            if device.facts(object)?.created_ms != created_ms {
                return Err(StoreError::NotFound(object).into());
            }
            permit.check_floor(object, device)?;
        }
        // The capability may permit more than the entry requested.
        Ok((permit.restricted_to(self.object(), self.rights()), now_ms))
    }

    /// Converts a refusal; damage is queued for the scrub.
    fn refused(&self, refusal: OsdRefusal) -> GrantError {
        match refusal {
            OsdRefusal::Denied(_) | OsdRefusal::ExtensionDenied(_) => GrantError::AccessDenied,
            OsdRefusal::Failed(failure) => self.failed(failure),
        }
    }

    /// Converts a failure; damage is queued for the scrub.
    fn failed(&self, failure: OsdFailure) -> GrantError {
        if let OsdFailure::Store(error) = &failure {
            self.device.scrub.suspect_error(error, None);
        }
        failed(&failure)
    }

    /// Runs a change in a transaction group, then records its timestamps.
    fn change<T>(
        &self,
        access: &GrantAccess<'_>,
        id: ObjectId,
        events: TimestampEvents,
        work: impl FnOnce(&OsdDevice) -> Result<T, OsdFailure>,
    ) -> Result<T, GrantError> {
        let device = &*self.device;
        let scope = device.store.begin();
        let done = work(device).and_then(|done| {
            self.record(access, id, events)?;
            Ok(done)
        });
        // Also for changes of an operation that failed later.
        let ended = scope.end();
        let done = done.map_err(|failure| self.failed(failure))?;
        ended.map_err(|error| self.failed(error.into()))?;
        Ok(done)
    }

    fn record(
        &self,
        access: &GrantAccess<'_>,
        id: ObjectId,
        events: TimestampEvents,
    ) -> Result<(), OsdFailure> {
        if timestamps::are_bypassed(&self.device, id) {
            return Ok(());
        }
        timestamps::record(&self.device, id, self.kind(), events, access.now_ms)
    }
}

/// Acquires a claim; waits while the partition is being duplicated, as a client that gets BUSY
/// does.
fn wait_for_partition(device: &OsdDevice, claim: PartitionUse) -> Result<PartitionGuards<'_>, GrantError> {
    let mut began = None;
    loop {
        if let Ok(guards) = device.partition_locks.acquire(claim) {
            return Ok(guards);
        }
        if began.get_or_insert_with(Instant::now).elapsed() > PARTITION_WAIT {
            return Err(GrantError::Io);
        }
        std::thread::sleep(PARTITION_PAUSE);
    }
}

fn failed(failure: &OsdFailure) -> GrantError {
    match failure {
        OsdFailure::KeysChanged | OsdFailure::ReadOnly => GrantError::AccessDenied,
        OsdFailure::Store(StoreError::NotFound(_)) => GrantError::NotFound,
        OsdFailure::Store(StoreError::NoSpace) => GrantError::NoSpace,
        OsdFailure::Store(StoreError::TooLarge { .. }) | OsdFailure::Quota(data::LENGTH_QUOTA) => {
            GrantError::TooLarge
        }
        OsdFailure::Quota(_) => GrantError::NoSpace,
        OsdFailure::NotEmpty => GrantError::NotEmpty,
        OsdFailure::Field(_)
        | OsdFailure::Attribute(_)
        | OsdFailure::Parameter(_)
        | OsdFailure::ListLength
        | OsdFailure::TooMuchWork => GrantError::Invalid,
        _ => GrantError::Io,
    }
}

fn range(start: u64, length: usize) -> BytesNeeded {
    BytesNeeded::Range(Range { start, length: length as u64 })
}

impl GrantedObject for DeviceGrant {
    fn expires_ms(&self) -> u64 {
        match &self.basis {
            GrantBasis::Proven(extended) => extended.expires_ms(),
            GrantBasis::Unsecured(_) => 0,
        }
    }

    fn object(&self) -> ObjectId {
        match self.target {
            GrantTarget::Entry => self.entry.object,
            GrantTarget::Created { object, .. } => object,
        }
    }

    fn kind(&self) -> ObjectType {
        match self.target {
            GrantTarget::Entry => self.entry.kind,
            GrantTarget::Created { .. } => self.created_kind(),
        }
    }

    fn rights(&self) -> Permissions {
        match self.target {
            GrantTarget::Entry => self.entry.rights,
            GrantTarget::Created { .. } => self.entry.rights.without(Permissions::CREATE),
        }
    }

    fn range(&self) -> Range {
        self.basis.range()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, GrantError> {
        let id = self.user_object()?;
        let needed = range(offset, into.len());
        let access = self.access(LockScope::Look(id), false, Permissions::READ, needed)?;
        let done = data::user_object(&self.device, id).and_then(|stat| {
            let available = stat.length.saturating_sub(offset);
            let inside = usize::try_from(available).map_or(into.len(), |available| available.min(into.len()));
            let read = match inside {
                0 => 0,
                inside => self.device.store.read(id, offset, &mut into[..inside])?,
            };
            self.record(&access, id, TimestampEvents { data_read: true, ..TimestampEvents::default() })?;
            Ok(read)
        });
        done.map_err(|failure| self.failed(failure))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), GrantError> {
        let id = self.user_object()?;
        let needed = range(offset, bytes.len());
        let access = self.access(LockScope::Change(id), true, Permissions::WRITE, needed)?;
        self.change(&access, id, DATA_MODIFIED, |device| {
            let stat = data::user_object(device, id)?;
            data::write_bytes(device, id, stat, offset, bytes)
        })
    }

    fn append(&self, bytes: &[u8]) -> Result<u64, GrantError> {
        let id = self.user_object()?;
        let access = self.access(LockScope::Change(id), true, Permissions::APPEND, BytesNeeded::None)?;
        let stat = data::user_object(&self.device, id).map_err(|failure| self.failed(failure))?;
        let inside = access.permit.check_range(stat.length, bytes.len() as u64);
        inside.map_err(|_| GrantError::AccessDenied)?;
        self.change(&access, id, DATA_MODIFIED, |device| {
            data::write_bytes(device, id, stat, stat.length, bytes)
        })?;
        Ok(stat.length)
    }

    fn punch(&self, offset: u64, length: u64) -> Result<u64, GrantError> {
        let id = self.user_object()?;
        // All bytes from the offset on move.
        let needed = BytesNeeded::Range(Range { start: offset, length: u64::MAX - offset });
        let access = self.access(LockScope::Change(id), true, Permissions::WRITE, needed)?;
        self.change(&access, id, DATA_MODIFIED, |device| {
            data::punch_bytes(device, id, offset, length, 0)?;
            Ok(data::user_object(device, id)?.length.saturating_sub(offset))
        })
    }

    fn clear(&self, offset: u64, length: u64) -> Result<u64, GrantError> {
        let id = self.user_object()?;
        let needed = BytesNeeded::Range(Range { start: offset, length });
        let access = self.access(LockScope::Change(id), true, Permissions::WRITE, needed)?;
        self.change(&access, id, DATA_MODIFIED, |device| {
            data::clear_bytes(device, id, offset, length, 0).map(|_| 0)
        })
    }

    fn length(&self) -> Result<u64, GrantError> {
        let id = self.user_object()?;
        let _access = self.access(LockScope::Look(id), false, Permissions::READ, BytesNeeded::None)?;
        let stat = data::user_object(&self.device, id).map_err(|failure| self.failed(failure))?;
        // A capability for a part of the object does not reveal the length beyond it.
        Ok(stat.length.min(self.range().end()))
    }

    fn attribute(&self, id: AttributeId) -> Result<Option<Vec<u8>>, GrantError> {
        let (object, kind) = (self.subject()?, self.kind());
        if id.is_wildcard()
            || id.page == CURRENT_COMMAND
            || rows::sort_page(kind, id.page) == PageKind::Foreign
        {
            return Err(GrantError::Invalid);
        }
        let access = self.access(LockScope::Look(object), false, Permissions::GET_ATTR, BytesNeeded::None)?;
        access.permit.check_get(id, &*self.device).map_err(|_| GrantError::AccessDenied)?;
        let current = CurrentCommandPage {
            generation: Generation::Osd2,
            response_icv: Vec::new(),
            kind,
            partition: object.partition,
            object: object.object,
            append_start: 0,
            capacity_change: 0,
        };
        let view = AttributeView {
            device: &self.device,
            id: object,
            kind,
            now_ms: access.now_ms,
            current: &current,
        };
        let events = TimestampEvents { attributes_read: true, ..TimestampEvents::default() };
        let value = self.require_exists(object).and_then(|()| {
            let value = view.value(id)?;
            self.record(&access, object, events)?;
            Ok(value)
        });
        value.map_err(|failure| self.failed(failure))
    }

    fn set_attribute(&self, id: AttributeId, value: &[u8]) -> Result<(), GrantError> {
        let (object, kind) = (self.subject()?, self.kind());
        if id.is_wildcard() {
            return Err(GrantError::Invalid);
        }
        let request = AttributeRequest::of_one(id, value);
        let scope = match request.sets_memberships() {
            true => LockScope::Enroll(object),
            false => LockScope::Change(object),
        };
        let access = self.access(scope, true, Permissions::SET_ATTR, BytesNeeded::None)?;
        self.require_exists(object).map_err(|failure| self.failed(failure))?;
        let checked = request.check_set(&self.device, object, kind, &access.permit);
        checked.map_err(|refusal| self.refused(refusal))?;
        self.change(&access, object, ATTRIBUTES_MODIFIED, |device| request.apply(device, object, kind))?;
        drop(access);
        // As after a command: a crash must not revert these.
        match request.sets_security(kind) {
            true => self.device.flush().map_err(|failure| self.failed(failure)),
            false => Ok(()),
        }
    }

    fn list(&self, from: u64, max: usize) -> Result<GrantedList, GrantError> {
        if self.kind() == ObjectType::User {
            return Err(GrantError::Invalid);
        }
        let id = self.subject()?;
        let access = self.access(LockScope::Look(id), false, Permissions::READ, BytesNeeded::None)?;
        let events = TimestampEvents { data_read: true, ..TimestampEvents::default() };
        let found = list::object_numbers(&self.device, id, from, max).and_then(|found| {
            self.record(&access, id, events)?;
            Ok(found)
        });
        let (numbers, next) = found.map_err(|failure| self.failed(failure))?;
        Ok(GrantedList { numbers, next })
    }

    fn create(&self) -> Result<Arc<dyn GrantedObject>, GrantError> {
        if self.target != GrantTarget::Entry || self.entry.kind == ObjectType::Collection {
            return Err(GrantError::Invalid);
        }
        self.create_with(|device, now_ms| {
            let created = objects::make(device, now_ms, self.entry.object, 1)?;
            created.last().copied().ok_or(OsdFailure::NoBuffer)
        })
    }

    fn remove(&self) -> Result<(), GrantError> {
        let id = self.user_object()?;
        let whole = BytesNeeded::Range(Range { start: 0, length: u64::MAX });
        let access = self.access(LockScope::Populate(id), true, Permissions::REMOVE, whole)?;
        let device = &*self.device;
        let scope = device.store.begin();
        let removed = objects::remove_object(device, id)
            .and_then(|_| timestamps::record_population(device, id, access.now_ms));
        let ended = scope.end();
        removed.map_err(|failure| self.failed(failure))?;
        ended.map_err(|error| self.failed(error.into()))
    }

    /// The flush of a collection or partition, as that of an object, flushes everything.
    fn flush(&self) -> Result<(), GrantError> {
        let id = self.subject()?;
        let access = self.access(LockScope::Look(id), false, Permissions::OBJ_MGMT, BytesNeeded::None)?;
        self.require_exists(id).map_err(|failure| self.failed(failure))?;
        // No lock is held while waiting for the disk.
        drop(access);
        self.device.flush().map_err(|failure| self.failed(failure))
    }

    fn create_collection(&self) -> Result<Arc<dyn GrantedObject>, GrantError> {
        if self.target != GrantTarget::Entry || self.entry.kind != ObjectType::Collection {
            return Err(GrantError::Invalid);
        }
        self.create_with(|device, now_ms| {
            collections::make(device, self.entry.object, CollectionKind::Linked, now_ms)
        })
    }

    fn remove_collection(&self, force: bool) -> Result<(), GrantError> {
        let id = self.collection()?;
        let _partition = self.claim(true, Permissions::REMOVE)?;
        let admit = || self.admit(true, Permissions::REMOVE, BytesNeeded::None);
        let admitted = {
            let _locks = self.device.locks.acquire(LockScope::Look(id));
            admit()
        };
        let (_, now_ms) = admitted.map_err(|refusal| self.refused(refusal))?;
        // Each step checks the authority under its own locks.
        let authority = || admit().map(drop);
        let steps = StepControl::new(&self.device, false, &authority);
        let removed = collections::remove_steps(&steps, id, force);
        removed.map_err(|refusal| self.refused(refusal))?;
        let recorded = timestamps::record_population(&self.device, id, now_ms);
        recorded.map_err(|failure| self.failed(failure))
    }

    fn add_member(&self, member: &dyn GrantedObject) -> Result<(), GrantError> {
        let pair = self.pair_with(member, true, Permissions::SET_ATTR, Permissions::SET_ATTR)?;
        let found = self.require_linked(pair.collection).and_then(|()| self.slot_for(&pair));
        match found.map_err(|failure| self.failed(failure))? {
            Some(slot) => pair.set_membership(slot, &pair.collection.object.to_be_bytes()),
            None => Ok(()),
        }
    }

    fn remove_member(&self, member: &dyn GrantedObject) -> Result<(), GrantError> {
        let pair = self.pair_with(member, true, Permissions::SET_ATTR, Permissions::SET_ATTR)?;
        let found = self.require_linked(pair.collection).and_then(|()| {
            let slot = self.device.store.membership(pair.collection, pair.object.object)?;
            slot.ok_or(StoreError::NotFound(pair.object).into())
        });
        pair.set_membership(found.map_err(|failure| self.failed(failure))?, &[])
    }

    fn is_member(&self, member: &dyn GrantedObject) -> Result<bool, GrantError> {
        let pair = self.pair_with(member, false, Permissions::READ, Permissions::GET_ATTR)?;
        let found = MemberSet::of(&self.device, pair.collection)
            .and_then(|members| members.holds(&self.device, pair.object.object));
        found.map_err(|failure| self.failed(failure))
    }
}

/// A collection and a user object, with the locks and authorities for an operation on both.
struct MemberPair<'a> {
    collection: ObjectId,
    object: ObjectId,
    member: &'a DeviceGrant,
    /// That of the member.
    access: GrantAccess<'a>,
}

impl MemberPair<'_> {
    /// Sets the attribute `slot` of the object that names a collection; an empty value ends the
    /// membership.
    fn set_membership(&self, slot: u32, value: &[u8]) -> Result<(), GrantError> {
        let Self { object, member, access, .. } = self;
        let request = AttributeRequest::of_one(AttributeId::new(MEMBERSHIPS_PAGE, slot), value);
        let checked = request.check_set(&member.device, *object, ObjectType::User, &access.permit);
        checked.map_err(|refusal| member.refused(refusal))?;
        member.change(access, *object, ATTRIBUTES_MODIFIED, |device| {
            request.apply(device, *object, ObjectType::User)
        })
    }
}

impl DeviceGrant {
    /// Acquires the locks of a collection and of a user object of its partition, and checks both
    /// authorities under them. No collection is created or removed meanwhile.
    fn pair_with<'a>(
        &'a self,
        member: &'a dyn GrantedObject,
        changes: bool,
        of_collection: Permissions,
        of_member: Permissions,
    ) -> Result<MemberPair<'a>, GrantError> {
        let member = (member as &dyn Any).downcast_ref::<Self>().ok_or(GrantError::Invalid)?;
        let (collection, object) = (self.collection()?, member.user_object()?);
        if collection.partition != object.partition {
            return Err(GrantError::Invalid);
        }
        let partition = self.claim(changes, of_collection)?;
        let objects = [(collection, false), (object, changes)];
        let locks = self.device.locks.acquire_several(collection.partition, false, &objects);
        let admitted = self
            .admit(changes, of_collection, BytesNeeded::None)
            .and_then(|_| member.admit(changes, of_member, BytesNeeded::None));
        let (permit, now_ms) = admitted.map_err(|refusal| self.refused(refusal))?;
        let exists = data::user_object(&self.device, object).map(drop);
        exists.map_err(|failure| self.failed(failure))?;
        let access = GrantAccess { permit, now_ms, _locks: locks, _partition: partition };
        Ok(MemberPair { collection, object, member, access })
    }

    /// Checks that members join a collection by their attributes.
    fn require_linked(&self, collection: ObjectId) -> Result<(), OsdFailure> {
        match collections::kind(&self.device, collection)? {
            CollectionKind::Linked => Ok(()),
            CollectionKind::Tracking | CollectionKind::Spontaneous => {
                Err(OsdFailure::Field(crate::failure::OBJECT))
            }
        }
    }

    /// Returns the lowest free attribute of the object for the collection; `None` for a member.
    fn slot_for(&self, pair: &MemberPair<'_>) -> Result<Option<u32>, OsdFailure> {
        let memberships = self.device.store.memberships(pair.object)?;
        if memberships.iter().any(|(number, _)| *number == pair.collection.object) {
            return Ok(None);
        }
        let used: BTreeSet<u32> = memberships.into_iter().map(|(_, slot)| slot).collect();
        // There are far fewer memberships than attributes of the page.
        Ok((1..).find(|slot| !used.contains(slot)))
    }

    /// Checks that the object exists with the type of the entry.
    fn require_exists(&self, object: ObjectId) -> Result<(), OsdFailure> {
        if object.is_partition() {
            return data::partition_of(&self.device, object).map(drop);
        }
        match self.kind() {
            ObjectType::User => data::user_object(&self.device, object).map(drop),
            _ => collections::kind(&self.device, object).map(drop),
        }
    }
}

/// Page of the memberships of a user object.
const MEMBERSHIPS_PAGE: u32 = rows::USER + rows::page::COLLECTIONS;

/// Events of an operation that changes attributes.
const ATTRIBUTES_MODIFIED: TimestampEvents = TimestampEvents {
    data_modified: false,
    attributes_modified: true,
    data_read: false,
    attributes_read: false,
};

/// Events of an operation that changes bytes.
const DATA_MODIFIED: TimestampEvents = TimestampEvents {
    data_modified: true,
    attributes_modified: false,
    data_read: false,
    attributes_read: false,
};
