//! Devices and their keys.
//!
//! Does: keep device records and key hierarchies, and issue credentials signed with these keys.
//! Does not: access devices; the daemon does, with credentials from here.
//! Contract: a key leaves this module only as the key of a credential; device records never contain
//! one.
//! Truth: docs/design/security.md 3.5, 3.6; docs/standards/mds/layouts.md §6.3;
//! docs/standards/mds/store.md §8.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use sealstone_mds_protocol::{
    CapabilityBlob, Device, DeviceId, DevicePin, DeviceProblem, DeviceState, ErrorCode, FILE_PARTITION,
    Failure, Grant, KeyCursor, KeyInfo, Method, NewDevice, ObjectRef, ProblemKind, Secret,
};
use sealstone_osd::{
    Capability, Descriptor, Generation, ObjectType, Permissions, capability::Range, capability::Scope,
};
use sealstone_seal::algorithm::preferred_slot;
use sealstone_seal::{AlgorithmSlots, Credential, InitialKey, IssueError, KeySelector};
use zeroize::Zeroizing;

use crate::access::Principal;
use crate::device_keys::{self, DeviceKeyState, Keys};
use crate::entropy::{Entropy, random};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::placement::{Candidate, DevicePool};
use crate::records::{DeviceRecord, counter, decode, load, next_number, save};
use crate::store::{MetaError, MetaStore, Snapshot, Transaction};
pub use purpose::ServerPurpose;
pub use rights::security_method;
pub(crate) use rights::{
    CALL_READ_RIGHTS, COPY_RIGHTS, CREATE_RIGHTS, DESCRIBE_RIGHTS, EXECUTE_RIGHTS, NO_BYTES, READ_RIGHTS,
    RESULT_RIGHTS, UPDATE_RIGHTS, WRITE_RIGHTS,
};

mod functions;
mod purpose;
mod registration;
mod rights;

/// Maximum number of devices.
pub(crate) const DEVICES_MAX: usize = 4096;

/// Maximum number of devices that wait for an administrator's approval.
pub(crate) const DEVICES_PENDING_MAX: usize = 64;

/// Delay before a client requests a credential again whose keys are being changed, milliseconds.
const KEYS_CHANGING_MS: u32 = 200;
/// Partitions listed in one page of keys; each has up to 17 keys.
const KEY_PARTITIONS_PAGE: usize = 32;

/// Space on a file system that several devices share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedSpace {
    /// Id of the file system: equal for all its devices.
    pub id: [u8; 16],
    /// Bytes that data may use of the file system.
    pub free: u64,
    /// Bytes that objects of the device may use besides.
    pub own: u64,
}

impl SharedSpace {
    /// Parses the device's attribute: id (16), free (8), own (8).
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk::<16>()?;
        let (free, rest) = rest.split_first_chunk::<8>()?;
        let own = u64::from_be_bytes(rest.try_into().ok()?);
        Some(Self { id: *id, free: u64::from_be_bytes(*free), own })
    }
}

struct DeviceEntry {
    record: DeviceRecord,
    keys: Arc<Keys>,
    key_state: DeviceKeyState,
    /// Grants of each partition.
    granted: BTreeMap<u64, GrantCounter>,
    /// Total and used bytes as stored.
    stored: (u64, u64),
    /// Space that it shares with other devices; not stored.
    shared: Option<SharedSpace>,
    /// Problem of the last access; not stored, because the next access follows soon after a
    /// restart.
    problem: Option<DeviceProblem>,
    /// Number of the registration; results of accesses under an earlier one are dropped.
    registration: u64,
}

/// Grants of one partition.
#[derive(Default)]
struct GrantCounter {
    /// Number since the key state was last taken out to be changed.
    count: AtomicU64,
    /// Expiry time of the last one.
    until_ms: AtomicU64,
}

/// Keys and key state of a device that no server has taken over yet.
pub(crate) type FreshKeys = (Keys, DeviceKeyState);

/// An added device, and the keys to be stored after the transaction.
pub(crate) type AddedDevice = (DeviceId, DeviceRecord, device_keys::UnsavedKeys);

/// All devices, as stored.
pub(crate) struct DeviceTable(RwLock<BTreeMap<DeviceId, DeviceEntry>>);

/// Address and identity of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAddress {
    /// Number of the device.
    pub id: DeviceId,
    /// As `iscsi://HOST:PORT/IQN/LUN`.
    pub url: String,
    /// OSD system id that it must report.
    pub system_id: [u8; 20],
    /// Pin of its TLS certificate; none: connections without TLS.
    pub pin: Option<DevicePin>,
    /// Number of its registration: each `mds add-osd` counts, since this server started.
    pub registration: u64,
}

/// An object for which a credential is signed.
pub(crate) struct ObjectToSign {
    pub(crate) object: ObjectRef,
    pub(crate) range: Range,
    /// Policy access tag.
    pub(crate) tag: u32,
}

/// Contents of a capability besides the object.
pub(crate) struct CapabilityTerms {
    pub(crate) method: Method,
    pub(crate) permissions: Permissions,
    pub(crate) expires_ms: u64,
    pub(crate) audit: [u8; 20],
    /// Whether the capability is sealed, so that only the device can read it.
    pub(crate) sealed: bool,
}

impl DeviceTable {
    /// Loads all devices. Records in the format of an earlier release, or without all partitions,
    /// are stored again.
    pub(crate) fn load(store: &dyn MetaStore, partitions: u64) -> Result<Self> {
        let view = store.snapshot()?;
        let (table, outdated) = read_all(&*view, partitions)?;
        drop(view);
        if !outdated.is_empty() {
            for (id, touched) in &outdated {
                if let Some(known) = table.get(id) {
                    known.key_state.store_in_steps(*id, &known.keys, touched, |work| {
                        let mut tx = store.begin()?;
                        work(&mut *tx)?;
                        Ok(tx.commit()?)
                    })?;
                }
            }
        }
        Ok(Self(RwLock::new(table)))
    }

    /// Loads all devices again after a change by another server. State that is only in memory is
    /// kept.
    pub(crate) fn reload(&self, store: &dyn MetaStore, partitions: u64) -> Result<()> {
        let (mut fresh, _) = read_all(&*store.snapshot()?, partitions)?;
        let mut table = self.0.write();
        for (id, known) in std::mem::take(&mut *table) {
            if let Some(now) = fresh.get_mut(&id) {
                // Another server may have registered it again: then results of accesses under the
                // earlier registration are not about it.
                let is_same = now.has_registration_of(&known);
                now.registration = known.registration + u64::from(!is_same);
                if is_same {
                    (now.problem, now.shared) = (known.problem, known.shared);
                }
                now.granted = known.granted;
                // A measurement here is newer than the stored one, unless that has changed.
                if now.stored == known.stored {
                    (now.record.total, now.record.used) = (known.record.total, known.record.used);
                }
                for partition in now.key_state.parts.keys() {
                    now.granted.entry(*partition).or_default();
                }
            }
        }
        *table = fresh;
        Ok(())
    }

    /// Stores a new device, or the new address of a known one. [`DeviceTable::insert`] follows
    /// after the commit, then the rest of its keys is stored. `approved`: an administrator sent the
    /// request, so the device needs no approval.
    pub(crate) fn add(
        &self,
        tx: &mut dyn Transaction,
        new: &NewDevice,
        (keys, key_state): &FreshKeys,
        approved: bool,
    ) -> Result<AddedDevice> {
        let table = self.0.read();
        let meets =
            |known: &DeviceEntry| known.record.system_id == new.system_id || known.record.name == new.name;
        let same =
            |known: &DeviceEntry| known.record.system_id == new.system_id && known.record.name == new.name;
        let pending = |known: &DeviceEntry| known.record.state == DeviceState::Pending;
        // A pending device under one of the names must not block an administrator.
        let in_use = table.iter().find(|(_, known)| !pending(known) && meets(known));
        let waiting = || {
            let fits = |known: &DeviceEntry| if approved { same(known) } else { meets(known) };
            table.iter().find(|(_, known)| pending(known) && fits(known))
        };
        if let Some((id, known)) = in_use.or_else(waiting) {
            if !approved {
                check_unchanged(known, new)?;
            }
            return update_known(tx, *id, known, new, (keys, key_state), approved);
        }
        if table.len() >= DEVICES_MAX {
            return Err(MdsError::refused(ErrorCode::Limit, "devices"));
        }
        let pending = table.values().filter(|known| known.record.state == DeviceState::Pending).count();
        if !approved && pending >= DEVICES_PENDING_MAX {
            return Err(MdsError::refused(ErrorCode::Limit, "devices that wait for approval"));
        }
        let id = u32::try_from(next_number(tx, counter::DEVICE)?)
            .map_err(|_| MdsError::refused(ErrorCode::Limit, "device numbers"))?;
        let id = DeviceId(id);
        let record = DeviceRecord {
            name: new.name.clone(),
            system_id: new.system_id,
            url: new.url.clone(),
            pin: new.pin,
            state: if approved { DeviceState::Joining } else { DeviceState::Pending },
            total: new.capacity,
            used: 0,
            speed: new.speed,
        };
        save(tx, &keys::device(id), &record)?;
        let rest = key_state.store_first(tx, id, keys)?;
        Ok((id, record, rest))
    }

    /// Whether an approved device already has the name or system id of this one.
    pub(crate) fn is_name_taken(&self, id: DeviceId) -> bool {
        let table = self.0.read();
        table.get(&id).is_some_and(|one| {
            table.iter().any(|(other, known)| {
                let record = &known.record;
                let meets = record.system_id == one.record.system_id || record.name == one.record.name;
                *other != id && record.state != DeviceState::Pending && meets
            })
        })
    }

    /// Adds or updates a device after the commit.
    pub(crate) fn insert(
        &self,
        id: DeviceId,
        record: DeviceRecord,
        new: &NewDevice,
        (keys, key_state): FreshKeys,
    ) -> Result<()> {
        let mut table = self.0.write();
        match table.get_mut(&id) {
            // The device has a new address and keeps its current keys.
            Some(known) if keeps_keys(known, new)? => {
                known.record = record;
                known.problem = None;
                known.registration += 1;
            }
            before => {
                let registration = before.map_or(0, |known| known.registration + 1);
                let entry = DeviceEntry { registration, ..DeviceEntry::new(record, keys, key_state) };
                table.insert(id, entry);
            }
        }
        Ok(())
    }

    /// Returns keys and key state of a device to the caller that holds the key lock; counts of
    /// grants are added to it.
    pub(crate) fn key_state(&self, id: DeviceId) -> Result<(Arc<Keys>, DeviceKeyState)> {
        let mut table = self.0.write();
        let known = table
            .get_mut(&id)
            .ok_or_else(|| MdsError::refused(ErrorCode::NotFound, format!("device {}", id.0)))?;
        for (partition, granted) in &known.granted {
            if let Some(part) = known.key_state.parts.get_mut(partition) {
                part.credentials = part.credentials.saturating_add(granted.count.swap(0, Ordering::Relaxed));
                part.grants_until_ms = granted.until_ms.load(Ordering::Relaxed);
            }
        }
        Ok((Arc::clone(&known.keys), known.key_state.clone()))
    }

    /// Sets keys and key state after they were stored.
    pub(crate) fn set_key_state(&self, id: DeviceId, keys: Arc<Keys>, key_state: DeviceKeyState) {
        if let Some(known) = self.0.write().get_mut(&id) {
            known.keys = keys;
            known.key_state = key_state;
        }
    }

    /// Whether all keys of the device were set by the server.
    pub(crate) fn keys_ready(&self, id: DeviceId) -> bool {
        self.0.read().get(&id).is_some_and(|known| known.key_state.is_ready())
    }

    /// Whether no working key of these partitions of a device is requested or being replaced.
    pub(crate) fn are_keys_replaced(&self, id: DeviceId, partitions: &[u64], now_ms: u64) -> bool {
        self.0.read().get(&id).is_none_or(|known| known.key_state.are_replaced(partitions, now_ms))
    }

    /// Returns the number of pending key changes, and of devices among them with a problem.
    pub(crate) fn pending_keys(&self, device: Option<DeviceId>, now_ms: u64) -> (u64, u32) {
        let table = self.0.read();
        let chosen = table.iter().filter(|(id, known)| {
            device.is_none_or(|device| device == **id) && known.record.state != DeviceState::Pending
        });
        chosen.fold((0, 0), |(open, stuck), (_, known)| {
            let own = known.key_state.pending_count(now_ms);
            (open + own, stuck + u32::from(own > 0 && known.problem.is_some()))
        })
    }

    /// Returns a page of keys of one device, from a position on, and the position of the next page.
    pub(crate) fn key_page(
        &self,
        device: Option<DeviceId>,
        from: Option<KeyCursor>,
    ) -> (Vec<KeyInfo>, Option<KeyCursor>) {
        let table = self.0.read();
        let start = from.unwrap_or(KeyCursor { device: device.unwrap_or(DeviceId(0)), partition: None });
        let mut rest =
            table.range(start.device..).filter(|(id, _)| device.is_none_or(|device| device == **id));
        let Some((&id, known)) = rest.next() else { return (Vec::new(), None) };
        let first = start.partition.filter(|_| id == start.device);
        let mut infos = Vec::new();
        if first.is_none() {
            infos.extend(known.key_state.top_infos(id, &known.keys));
        }
        let mut parts = known.key_state.parts.range(first.unwrap_or(0)..);
        for (&partition, _) in parts.by_ref().take(KEY_PARTITIONS_PAGE) {
            infos.extend(known.key_state.part_infos(id, &known.keys, partition));
        }
        let next = match parts.next() {
            Some((&partition, _)) => Some(KeyCursor { device: id, partition: Some(partition) }),
            None => rest.next().map(|(&device, _)| KeyCursor { device, partition: None }),
        };
        (infos, next)
    }

    /// Updates the cached record after a change in the store.
    pub(crate) fn refresh(&self, id: DeviceId, record: DeviceRecord) {
        if let Some(known) = self.0.write().get_mut(&id) {
            known.stored = (record.total, record.used);
            known.record = record;
        }
    }

    pub(crate) fn get(&self, id: DeviceId) -> Option<Device> {
        self.0.read().get(&id).map(|known| device(id, known))
    }

    /// Returns the bytes in use on a device; a longer object must have holes.
    pub(crate) fn used(&self, id: DeviceId) -> u64 {
        self.0.read().get(&id).map_or(u64::MAX, |known| known.record.used)
    }

    pub(crate) fn page(&self, after: Option<DeviceId>, limit: usize) -> (Vec<Device>, bool) {
        let table = self.0.read();
        let from = after.map_or(Some(0), |after| after.0.checked_add(1));
        let Some(from) = from else { return (Vec::new(), false) };
        let mut rest = table.range(DeviceId(from)..);
        let devices = rest.by_ref().take(limit).map(|(id, known)| device(*id, known)).collect();
        (devices, rest.next().is_some())
    }

    pub(crate) fn addresses(&self) -> Vec<(DeviceAddress, DeviceState)> {
        let address = |(id, known): (&DeviceId, &DeviceEntry)| {
            let Device { id, url, system_id, pin, state, .. } = device(*id, known);
            let (url, registration) = (url.as_str().to_owned(), known.registration);
            (DeviceAddress { id, url, system_id, pin, registration }, state)
        };
        self.0.read().iter().map(address).collect()
    }

    /// Returns the keys that authenticate time messages to each device.
    pub(crate) fn time_keys(&self) -> Vec<(DeviceId, Zeroizing<[u8; 32]>)> {
        let table = self.0.read();
        table.iter().filter_map(|(id, known)| Some((*id, known.keys.time_key()?))).collect()
    }

    /// Returns the devices that accept new objects.
    pub(crate) fn pool(&self) -> DevicePool {
        let table = self.0.read();
        let active = table.iter().filter(|(_, known)| known.record.state == DeviceState::Active);
        let candidate = |(id, known): (&DeviceId, &DeviceEntry)| {
            let DeviceRecord { total, used, speed, .. } = known.record;
            Candidate { device: *id, total, used, speed, troubled: known.problem.is_some() }
        };
        DevicePool::new(&active.map(candidate).collect::<Vec<_>>())
    }

    /// Whether devices exist that accepted objects before, and all of them are unreachable.
    pub(crate) fn all_are_unreachable(&self) -> bool {
        let table = self.0.read();
        let any = |state| table.values().any(|known| known.record.state == state);
        any(DeviceState::Unreachable) && !any(DeviceState::Active)
    }

    /// Returns capacity, used bytes, devices that accept objects, and all devices. Shared space
    /// counts once.
    pub(crate) fn space_figures(&self) -> (u64, u64, u32, u32) {
        let table = self.0.read();
        let (mut free, mut used, mut active) = (0_u64, 0_u64, 0);
        // For each file system: free bytes by its devices' own figures, bytes available without it,
        // and its free bytes.
        let mut groups: BTreeMap<[u8; 16], (u64, u64, u64)> = BTreeMap::new();
        // The figures of an unapproved device are not trusted.
        let approved = table.values().filter(|known| known.record.state != DeviceState::Pending);
        for known in approved {
            let own_free = known.record.total.saturating_sub(known.record.used);
            used = used.saturating_add(known.record.used);
            active += u32::from(known.record.state == DeviceState::Active);
            match known.shared {
                None => free = free.saturating_add(own_free),
                Some(shared) => {
                    let group = groups.entry(shared.id).or_default();
                    group.0 = group.0.saturating_add(own_free);
                    group.1 = group.1.saturating_add(shared.own);
                    group.2 = group.2.max(shared.free);
                }
            }
        }
        for (by_devices, own, beneath) in groups.into_values() {
            free = free.saturating_add(by_devices.min(own.saturating_add(beneath)));
        }
        (used.saturating_add(free), used, active, u32::try_from(table.len()).unwrap_or(u32::MAX))
    }

    /// Returns one grant for each object, in the same order.
    pub(crate) fn grants(
        &self,
        objects: &[ObjectToSign],
        terms: &CapabilityTerms,
        rng: &mut dyn Entropy,
    ) -> Result<Vec<Grant>> {
        objects.iter().map(|sign| self.grant(sign, terms, rng)).collect()
    }

    /// Records the expiry time of a grant from before the start.
    pub(crate) fn note_issued_grant(&self, object: ObjectRef, expires_ms: u64) {
        let table = self.0.read();
        let granted = table.get(&object.device).and_then(|known| known.granted.get(&object.object.partition));
        if let Some(granted) = granted {
            granted.until_ms.fetch_max(expires_ms, Ordering::Relaxed);
        }
    }

    fn grant(&self, sign: &ObjectToSign, terms: &CapabilityTerms, rng: &mut dyn Entropy) -> Result<Grant> {
        let &ObjectToSign { object, range, tag } = sign;
        let (keys, version) = self.current(object.device, object.object.partition, terms.expires_ms)?;
        let scope = Scope { policy_access_tag: tag, ..Scope::default() };
        let descriptor = Descriptor::User { scope, allowed: object.object, range };
        let capability = capability(ObjectType::User, descriptor, terms, version, random(rng));
        let selector = KeySelector::of_capability(&capability);
        let credential = signed(&keys, selector, &capability, terms.sealed)
            .map_err(|_| MetaError::Damaged("device keys lack the working key"))?;
        Ok(Grant {
            object,
            method: terms.method,
            expires_ms: terms.expires_ms,
            capability: CapabilityBlob::new(credential.capability.to_vec())?,
            key: Secret::new(credential.key.expose().to_vec())?,
        })
    }

    /// Returns a credential for the server itself.
    pub(crate) fn own_credential(
        &self,
        device: DeviceId,
        purpose: ServerPurpose,
        expires_ms: u64,
        sealed: bool,
        rng: &mut dyn Entropy,
    ) -> Result<Credential> {
        let partition = match purpose {
            ServerPurpose::PreparePartition | ServerPurpose::ReadCapacity => 0,
            ServerPurpose::TagPartition(partition) | ServerPurpose::ListObjects(partition) => partition,
            ServerPurpose::RemoveObject(object)
            | ServerPurpose::TruncateObject(object)
            | ServerPurpose::MeasureObject(object)
            | ServerPurpose::DescribeObject(object)
            | ServerPurpose::CopyFrom(object)
            | ServerPurpose::CopyTo(object)
            | ServerPurpose::Retag { object, .. } => object.partition,
        };
        let (keys, version) = self.current(device, partition, expires_ms)?;
        let scope = Scope::default();
        let (kind, permissions, descriptor) = match purpose {
            ServerPurpose::PreparePartition => {
                let descriptor = Descriptor::Partition { scope, partition: FILE_PARTITION };
                // Its tags are set with the same command.
                let rights = Permissions::CREATE.union(Permissions::SET_ATTR).union(Permissions::POL_SEC);
                (ObjectType::Partition, rights, descriptor)
            }
            ServerPurpose::ReadCapacity => {
                let descriptor = Descriptor::Partition { scope, partition: 0 };
                (ObjectType::Root, Permissions::GET_ATTR, descriptor)
            }
            ServerPurpose::TagPartition(partition) => {
                let descriptor = Descriptor::Partition { scope, partition };
                let rights = Permissions::GET_ATTR.union(Permissions::SET_ATTR).union(Permissions::POL_SEC);
                (ObjectType::Partition, rights, descriptor)
            }
            ServerPurpose::ListObjects(partition) => {
                let descriptor = Descriptor::Partition { scope, partition };
                (ObjectType::Partition, READ_RIGHTS, descriptor)
            }
            ServerPurpose::RemoveObject(object) => {
                let descriptor = Descriptor::User { scope, allowed: object, range: Range::ALL };
                (ObjectType::User, Permissions::REMOVE, descriptor)
            }
            ServerPurpose::MeasureObject(object) => {
                let descriptor = Descriptor::User { scope, allowed: object, range: Range::ALL };
                (ObjectType::User, Permissions::GET_ATTR, descriptor)
            }
            ServerPurpose::DescribeObject(object) => {
                let descriptor = Descriptor::User { scope, allowed: object, range: NO_BYTES };
                (ObjectType::User, Permissions::SET_ATTR, descriptor)
            }
            ServerPurpose::TruncateObject(object) => {
                let descriptor = Descriptor::User { scope, allowed: object, range: Range::ALL };
                // FLUSH needs OBJ_MGMT.
                let rights = Permissions::SET_ATTR.union(Permissions::WRITE).union(Permissions::OBJ_MGMT);
                (ObjectType::User, rights, descriptor)
            }
            ServerPurpose::CopyFrom(object) => {
                let descriptor = Descriptor::User { scope, allowed: object, range: Range::ALL };
                (ObjectType::User, READ_RIGHTS, descriptor)
            }
            ServerPurpose::CopyTo(object) => {
                let descriptor = Descriptor::User { scope, allowed: object, range: Range::ALL };
                (ObjectType::User, CREATE_RIGHTS, descriptor)
            }
            ServerPurpose::Retag { object, creates } => {
                let descriptor = Descriptor::User { scope, allowed: object, range: Range::ALL };
                let rights = Permissions::SET_ATTR.union(Permissions::POL_SEC);
                let making = if creates { Permissions::CREATE } else { Permissions::NONE };
                (ObjectType::User, rights.union(making), descriptor)
            }
        };
        // The server's own commands belong to no session, so their audit field is zero.
        let terms =
            CapabilityTerms { method: Method::AllData, permissions, expires_ms, audit: [0; 20], sealed };
        let capability = capability(kind, descriptor, &terms, version, random(rng));
        let selector = KeySelector::Working { partition, version };
        Ok(signed(&keys, selector, &capability, sealed)
            .map_err(|_| MetaError::Damaged("device keys lack a working key"))?)
    }

    /// Returns the keys of a device and the key version that signs for a partition; counts the
    /// credential.
    fn current(&self, device: DeviceId, partition: u64, expires_ms: u64) -> Result<(Arc<Keys>, u8)> {
        let table = self.0.read();
        let known = table.get(&device).ok_or(MetaError::Damaged("layout refers to an unknown device"))?;
        let version = known
            .key_state
            .current(&known.keys, partition)
            .ok_or_else(|| MdsError::Refused(Failure::busy(KEYS_CHANGING_MS)))?;
        if let Some(granted) = known.granted.get(&partition) {
            granted.count.fetch_add(1, Ordering::Relaxed);
            granted.until_ms.fetch_max(expires_ms, Ordering::Relaxed);
        }
        Ok((Arc::clone(&known.keys), version))
    }
}

impl DeviceEntry {
    fn new(record: DeviceRecord, keys: Keys, key_state: DeviceKeyState) -> Self {
        let stored = (record.total, record.used);
        let granted = key_state.parts.keys().map(|id| (*id, GrantCounter::default())).collect();
        Self {
            record,
            keys: Arc::new(keys),
            key_state,
            granted,
            stored,
            shared: None,
            problem: None,
            registration: 0,
        }
    }
}
/// Signs a credential, sealed or open.
fn signed(
    keys: &Keys,
    selector: KeySelector,
    capability: &Capability,
    sealed: bool,
) -> std::result::Result<Credential, IssueError> {
    let issue = if sealed { Credential::issue_sealed_under } else { Credential::issue_under };
    issue(keys, &AlgorithmSlots::DEFAULT, selector, capability)
}

fn capability(
    kind: ObjectType,
    descriptor: Descriptor,
    terms: &CapabilityTerms,
    key_version: u8,
    discriminator: [u8; 12],
) -> Capability {
    Capability {
        generation: Generation::Osd2,
        format: Generation::Osd2,
        key_version,
        icv_algorithm: preferred_slot(Generation::Osd2, security_method(terms.method)),
        method: security_method(terms.method),
        // 0 would mean that the capability never expires (OSD-2 r05).
        expires_ms: terms.expires_ms.max(1),
        audit: terms.audit,
        discriminator,
        object_created_ms: 0,
        object_type: kind,
        permissions: terms.permissions,
        descriptor,
    }
}

/// Returns the audit field: session id, then the credential number.
pub(crate) fn audit_field(principal: &Principal, number: u32) -> [u8; 20] {
    let mut audit = [0; 20];
    audit[..16].copy_from_slice(&principal.session);
    audit[16..].copy_from_slice(&number.to_be_bytes());
    audit
}

fn initial_key(new: &NewDevice) -> Result<InitialKey> {
    InitialKey::new(new.master_key.expose())
        .ok_or_else(|| MdsError::refused(ErrorCode::Invalid, "master key must have 20 or 32 bytes"))
}

/// Derives the factory keys of a device from its initial key. O(partitions): call it outside of
/// transactions.
pub(crate) fn factory_keys(new: &NewDevice, partitions: u64) -> Result<FreshKeys> {
    device_keys::new_key_state(&initial_key(new)?, new.system_id, partitions)
}

/// Whether the initial key is that of the known device. Then the device keeps its current keys.
fn keeps_keys(known: &DeviceEntry, new: &NewDevice) -> Result<bool> {
    Ok(known.key_state.has_initial(&initial_key(new)?, new.system_id))
}

fn device(id: DeviceId, known: &DeviceEntry) -> Device {
    let record = &known.record;
    Device {
        id,
        name: record.name.clone(),
        system_id: record.system_id,
        url: record.url.clone(),
        pin: record.pin,
        state: record.state,
        total: record.total,
        used: record.used,
        speed: record.speed,
        problem: known.problem.clone(),
        drain: None,
    }
}

/// Stores the new address of a device with known name, system id and key. With another key, or only
/// one matching name, it is another device and refused. Exceptions: a device never in use, whose
/// key may have been mistyped, and a device that accepts none of our keys, which may have a new
/// initial key.
fn update_known(
    tx: &mut dyn Transaction,
    id: DeviceId,
    known: &DeviceEntry,
    new: &NewDevice,
    (keys, key_state): (&Keys, &DeviceKeyState),
    approved: bool,
) -> Result<AddedDevice> {
    let same_name = known.record.system_id == new.system_id && known.record.name == new.name;
    let same_key = keeps_keys(known, new)?;
    let never_used = !known.record.state.was_in_use() && !known.key_state.is_taken_over();
    let is_lost = known.problem.as_ref().is_some_and(|problem| problem.kind == ProblemKind::Denied);
    if !same_name || !(same_key || never_used || is_lost) {
        return Err(MdsError::refused(ErrorCode::Exists, known.record.name.shown()));
    }
    let rest =
        if same_key { device_keys::UnsavedKeys::default() } else { key_state.store_first(tx, id, keys)? };
    // A device with a pin is never used again without TLS.
    let pin = new.pin.or(known.record.pin);
    let speed = if new.speed == 0 { known.record.speed } else { new.speed };
    let state = match known.record.state {
        DeviceState::Pending if approved => DeviceState::Joining,
        state => state,
    };
    let record = DeviceRecord { url: new.url.clone(), pin, speed, state, ..known.record.clone() };
    save(tx, &keys::device(id), &record)?;
    Ok((id, record, rest))
}

/// Fails if an operator adds a known device with another address, certificate or key. Otherwise
/// user data would go to an unapproved device.
fn check_unchanged(known: &DeviceEntry, new: &NewDevice) -> Result<()> {
    let same_place = known.record.url == new.url && new.pin.is_none_or(|pin| known.record.pin == Some(pin));
    if same_place && keeps_keys(known, new)? {
        return Ok(());
    }
    Err(MdsError::refused(
        ErrorCode::Denied,
        "only an administrator may change a device's address, pin or key",
    ))
}

type ReadAll = (BTreeMap<DeviceId, DeviceEntry>, Vec<(DeviceId, device_keys::UnsavedKeys)>);

/// Loads all devices, with the parts that have to be stored again.
fn read_all(view: &dyn Snapshot, partitions: u64) -> Result<ReadAll> {
    let mut outdated = Vec::new();
    let all = keys::devices();
    let mut table = BTreeMap::new();
    for (key, value) in view.scan(&all, &keys::after_prefix(&all), DEVICES_MAX)? {
        let id = key
            .get(1..)
            .and_then(|id| id.try_into().ok())
            .map(|id| DeviceId(u32::from_be_bytes(id)))
            .ok_or(MetaError::Damaged("device record with an invalid key"))?;
        let record: DeviceRecord = decode(&value)?;
        let (keys, key_state, touched) = DeviceKeyState::load(view, id, partitions)?;
        if !touched.is_empty() {
            outdated.push((id, touched));
        }
        table.insert(id, DeviceEntry::new(record, keys, key_state));
    }
    Ok((table, outdated))
}

/// Changes state, capacity and use of a device in the store.
pub(crate) fn change(tx: &mut dyn Transaction, id: DeviceId, now: &Device) -> Result<DeviceRecord> {
    let mut record: DeviceRecord = load(tx, &keys::device(id))?
        .ok_or_else(|| MdsError::refused(ErrorCode::NotFound, format!("device {}", id.0)))?;
    (record.state, record.total, record.used) = (now.state, now.total, now.used);
    save(tx, &keys::device(id), &record)?;
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An expiration time of 0 would mean none.
    #[test]
    fn every_credential_has_an_end() {
        let terms = CapabilityTerms {
            method: Method::AllData,
            permissions: Permissions::READ,
            expires_ms: 0,
            audit: [0; 20],
            sealed: false,
        };
        assert_eq!(capability(ObjectType::User, Descriptor::None, &terms, 0, [0; 12]).expires_ms, 1);
    }
}
