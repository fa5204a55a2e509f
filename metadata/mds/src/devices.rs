//! The devices and their keys.
//!
//! Does: keep records and key hierarchies, hand out credentials signed with them. Does not: talk to devices; the
//! shell does, with credentials from here.
//! Contract: a key leaves this module only as the key of a credential; records never hold one.
//! Truth: docs/design/security.md 3.5, 3.6; docs/standards/mds.md §6.3, §8.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use sealstone_crypto::RustCrypto;
use sealstone_mds_protocol::{
    CapabilityBlob, Device, DeviceId, DevicePin, DeviceProblem, DeviceState, ErrorCode, FILE_PARTITION,
    Grant, Layout, Method, NewDevice, ObjectRef, Secret,
};
use sealstone_osd::{
    Capability, Descriptor, Generation, ObjectId, ObjectType, Permissions, SecurityMethod, capability::Range,
    capability::Scope,
};
use sealstone_seal::algorithm::preferred_slot;
use sealstone_seal::hierarchy::FACTORY_KEY_VERSION;
use sealstone_seal::{AlgorithmSlots, Credential, Hash, InitialKey, KeyHierarchy, KeySelector};

use crate::access::Principal;
use crate::entropy::{Entropy, random};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::placement::Candidate;
use crate::records::{DeviceRecord, counter, decode, load, next_number, save};
use crate::store::{MetaError, MetaStore, Transaction};

/// Devices of one server at most.
pub(crate) const DEVICES_MAX: usize = 4096;

/// Use is written to the store when it has changed by this part of the capacity.
const CAPACITY_STEPS: u64 = 64;

type Keys = KeyHierarchy<RustCrypto>;

struct Known {
    record: DeviceRecord,
    keys: Arc<Keys>,
    /// Total and used as the store has them.
    stored: (u64, u64),
    /// Of the last try; not stored, the next try comes soon after a restart.
    problem: Option<DeviceProblem>,
}

/// All devices, as the store has them.
pub(crate) struct DeviceTable(RwLock<BTreeMap<DeviceId, Known>>);

/// What a client may do with the objects of a file.
pub(crate) const READ_RIGHTS: Permissions = Permissions::READ.union(Permissions::GET_ATTR);
/// What it may do with the objects of a create. FLUSH needs the last one.
pub(crate) const CREATE_RIGHTS: Permissions =
    Permissions::CREATE.union(Permissions::WRITE).union(Permissions::GET_ATTR).union(Permissions::OBJ_MGMT);
/// What it may do with the objects of a file opened for update.
pub(crate) const UPDATE_RIGHTS: Permissions =
    READ_RIGHTS.union(Permissions::WRITE).union(Permissions::OBJ_MGMT);

/// The method of a message as the device knows it.
#[must_use]
pub const fn security_method(method: Method) -> SecurityMethod {
    match method {
        Method::NoSec => SecurityMethod::NoSec,
        Method::CapKey => SecurityMethod::CapKey,
        Method::CmdRsp => SecurityMethod::CmdRsp,
        Method::AllData => SecurityMethod::AllData,
    }
}

/// Where a device is and who it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAddress {
    /// Number.
    pub id: DeviceId,
    /// `iscsi://HOST:PORT/IQN/LUN`.
    pub url: String,
    /// OSD system id that it must show.
    pub system_id: [u8; 20],
    /// The certificate that it must hold; none: it is talked to without TLS.
    pub pin: Option<DevicePin>,
}

/// The server's own purposes at a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Create the partition of the files.
    PreparePartition,
    /// Read the attributes of the root: capacity and use.
    ReadCapacity,
    /// Remove an object.
    RemoveObject(ObjectId),
}

/// What goes into a capability beside the object.
pub(crate) struct Terms {
    pub(crate) method: Method,
    pub(crate) permissions: Permissions,
    pub(crate) expires_ms: u64,
    pub(crate) audit: [u8; 20],
}

impl DeviceTable {
    pub(crate) fn load(store: &dyn MetaStore) -> Result<Self> {
        let view = store.snapshot()?;
        let all = keys::devices();
        let mut table = BTreeMap::new();
        for (key, value) in view.scan(&all, &keys::after_prefix(&all), DEVICES_MAX)? {
            let id = key
                .get(1..)
                .and_then(|id| id.try_into().ok())
                .map(|id| DeviceId(u32::from_be_bytes(id)))
                .ok_or(MetaError::Damaged("device with an impossible key"))?;
            let record: DeviceRecord = decode(&value)?;
            let bytes = view.get(&keys::device_key(id))?.ok_or(MetaError::Damaged("device without keys"))?;
            let bytes = zeroize::Zeroizing::new(bytes);
            let keys = Keys::decode(&bytes).map_err(|_| MetaError::Damaged("device keys"))?;
            let stored = (record.total, record.used);
            table.insert(id, Known { record, keys: Arc::new(keys), stored, problem: None });
        }
        Ok(Self(RwLock::new(table)))
    }

    /// Writes a new device, or the new address of a known one; call [`DeviceTable::insert`] after the commit.
    pub(crate) fn add(&self, tx: &mut dyn Transaction, new: &NewDevice) -> Result<(DeviceId, DeviceRecord)> {
        let keys = factory_keys(new)?;
        let table = self.0.read();
        let meets = |known: &Known| known.record.system_id == new.system_id || known.record.name == new.name;
        if let Some((id, known)) = table.iter().find(|(_, known)| meets(known)) {
            return moved(tx, *id, known, new, &keys);
        }
        if table.len() >= DEVICES_MAX {
            return Err(MdsError::refused(ErrorCode::Limit, "devices"));
        }
        let id = u32::try_from(next_number(tx, counter::DEVICE)?)
            .map_err(|_| MdsError::refused(ErrorCode::Limit, "device numbers"))?;
        let id = DeviceId(id);
        let record = DeviceRecord {
            name: new.name.clone(),
            system_id: new.system_id,
            url: new.url.clone(),
            pin: new.pin,
            state: DeviceState::Joining,
            total: new.capacity,
            used: 0,
        };
        save(tx, &keys::device(id), &record)?;
        tx.put(&keys::device_key(id), &keys.encode())?;
        Ok((id, record))
    }

    /// The device is in the store as this.
    pub(crate) fn insert(&self, id: DeviceId, record: DeviceRecord, new: &NewDevice) -> Result<()> {
        let keys = Arc::new(factory_keys(new)?);
        let stored = (record.total, record.used);
        self.0.write().insert(id, Known { record, keys, stored, problem: None });
        Ok(())
    }

    /// The record in the store was changed to this.
    pub(crate) fn refresh(&self, id: DeviceId, record: DeviceRecord) {
        if let Some(known) = self.0.write().get_mut(&id) {
            known.stored = (record.total, record.used);
            known.record = record;
        }
    }

    /// Takes new figures over; says whether they differ enough from the stored ones to be written. Use changes all the
    /// time and is learned again soon after a restart, so not every change is.
    pub(crate) fn set_capacity(&self, id: DeviceId, total: u64, used: u64) -> bool {
        let mut table = self.0.write();
        let Some(known) = table.get_mut(&id) else { return false };
        known.record.total = total;
        known.record.used = used;
        known.problem = None;
        known.stored.0 != total || known.stored.1.abs_diff(used) > total / CAPACITY_STEPS
    }

    /// What went wrong at the last try.
    pub(crate) fn set_problem(&self, id: DeviceId, problem: DeviceProblem) {
        if let Some(known) = self.0.write().get_mut(&id) {
            known.problem = Some(problem);
        }
    }

    pub(crate) fn get(&self, id: DeviceId) -> Option<Device> {
        self.0.read().get(&id).map(|known| device(id, known))
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
        let address = |(id, known): (&DeviceId, &Known)| {
            let Device { id, url, system_id, pin, state, .. } = device(*id, known);
            (DeviceAddress { id, url: url.as_str().to_owned(), system_id, pin }, state)
        };
        self.0.read().iter().map(address).collect()
    }

    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let table = self.0.read();
        let active = table.iter().filter(|(_, known)| known.record.state == DeviceState::Active);
        active
            .map(|(id, known)| Candidate { device: *id, total: known.record.total, used: known.record.used })
            .collect()
    }

    /// Capacity, use, devices that take objects, all devices.
    pub(crate) fn figures(&self) -> (u64, u64, u32, u32) {
        let table = self.0.read();
        table.values().fold((0, 0, 0, 0), |(total, used, active, all), known| {
            (
                total.saturating_add(known.record.total),
                used.saturating_add(known.record.used),
                active + u32::from(known.record.state == DeviceState::Active),
                all + 1,
            )
        })
    }

    /// One grant per object of a layout, in its order.
    pub(crate) fn grants(&self, layout: &Layout, terms: &Terms, rng: &mut dyn Entropy) -> Result<Vec<Grant>> {
        layout.objects().iter().map(|object| self.grant(*object, terms, rng)).collect()
    }

    fn grant(&self, object: ObjectRef, terms: &Terms, rng: &mut dyn Entropy) -> Result<Grant> {
        let keys = self.keys(object.device)?;
        let descriptor =
            Descriptor::User { scope: Scope::default(), allowed: object.object, range: Range::ALL };
        let capability = capability(ObjectType::User, descriptor, terms, random(rng));
        let credential = Credential::issue(&keys, &AlgorithmSlots::DEFAULT, &capability)
            .map_err(|_| MetaError::Damaged("device keys lack the working key"))?;
        Ok(Grant {
            object,
            method: terms.method,
            expires_ms: terms.expires_ms,
            capability: CapabilityBlob::new(credential.capability.to_vec())?,
            key: Secret::new(credential.key.expose().to_vec())?,
        })
    }

    /// A credential for the server itself.
    pub(crate) fn own_credential(
        &self,
        device: DeviceId,
        purpose: Purpose,
        expires_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Credential> {
        let keys = self.keys(device)?;
        let scope = Scope::default();
        let (kind, permissions, descriptor, selector) = match purpose {
            Purpose::PreparePartition => {
                let descriptor = Descriptor::Partition { scope, partition: FILE_PARTITION };
                (ObjectType::Partition, Permissions::CREATE, descriptor, ROOT_WORKING_KEY)
            }
            Purpose::ReadCapacity => {
                let descriptor = Descriptor::Partition { scope, partition: 0 };
                (ObjectType::Root, Permissions::GET_ATTR, descriptor, ROOT_WORKING_KEY)
            }
            Purpose::RemoveObject(object) => {
                let descriptor = Descriptor::User { scope, allowed: object, range: Range::ALL };
                let selector =
                    KeySelector::Working { partition: object.partition, version: FACTORY_KEY_VERSION };
                (ObjectType::User, Permissions::REMOVE, descriptor, selector)
            }
        };
        // Nobody's session: the audit field of the server's own commands is zero.
        let terms = Terms { method: Method::AllData, permissions, expires_ms, audit: [0; 20] };
        let capability = capability(kind, descriptor, &terms, random(rng));
        Ok(Credential::issue_under(&keys, &AlgorithmSlots::DEFAULT, selector, &capability)
            .map_err(|_| MetaError::Damaged("device keys lack a working key"))?)
    }

    fn keys(&self, device: DeviceId) -> Result<Arc<Keys>> {
        let table = self.0.read();
        let known = table.get(&device).ok_or(MetaError::Damaged("a layout names an unknown device"))?;
        Ok(known.keys.clone())
    }
}

const ROOT_WORKING_KEY: KeySelector = KeySelector::Working { partition: 0, version: FACTORY_KEY_VERSION };

fn capability(
    kind: ObjectType,
    descriptor: Descriptor,
    terms: &Terms,
    discriminator: [u8; 12],
) -> Capability {
    Capability {
        generation: Generation::Osd2,
        format: Generation::Osd2,
        key_version: FACTORY_KEY_VERSION,
        icv_algorithm: preferred_slot(Generation::Osd2, security_method(terms.method)),
        method: security_method(terms.method),
        expires_ms: terms.expires_ms,
        audit: terms.audit,
        discriminator,
        object_created_ms: 0,
        object_type: kind,
        permissions: terms.permissions,
        descriptor,
    }
}

/// The audit field: session id, then a counter.
pub(crate) fn audit_field(who: &Principal, number: u32) -> [u8; 20] {
    let mut audit = [0; 20];
    audit[..16].copy_from_slice(&who.session);
    audit[16..].copy_from_slice(&number.to_be_bytes());
    audit
}

fn factory_keys(new: &NewDevice) -> Result<Keys> {
    let initial = InitialKey::new(new.master_key.expose())
        .ok_or_else(|| MdsError::refused(ErrorCode::Invalid, "the master key must have 20 or 32 bytes"))?;
    let mut keys = Keys::factory(Hash::Sha256, &initial, new.system_id);
    keys.add_partition(FILE_PARTITION)
        .map_err(|_| MdsError::refused(ErrorCode::Internal, "partition keys"))?;
    Ok(keys)
}

fn device(id: DeviceId, known: &Known) -> Device {
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
        problem: known.problem.clone(),
    }
}

/// A device that is known by name, system id and key has moved: its new address is written. With another key or only
/// one of the two names it is another device. One that was never in use holds nothing yet, so a wrong key given for it
/// can be put right.
fn moved(
    tx: &mut dyn Transaction,
    id: DeviceId,
    known: &Known,
    new: &NewDevice,
    keys: &Keys,
) -> Result<(DeviceId, DeviceRecord)> {
    let same_name = known.record.system_id == new.system_id && known.record.name == new.name;
    let same_key = sealstone_seal::ct_eq(&known.keys.encode(), &keys.encode());
    let never_used = known.record.state == DeviceState::Joining;
    if !same_name || !(same_key || never_used) {
        return Err(MdsError::refused(ErrorCode::Exists, known.record.name.as_str()));
    }
    if !same_key {
        tx.put(&keys::device_key(id), &keys.encode())?;
    }
    // Who has once been known by a certificate is never again talked to without one.
    let pin = new.pin.or(known.record.pin);
    let record = DeviceRecord { url: new.url.clone(), pin, ..known.record.clone() };
    save(tx, &keys::device(id), &record)?;
    Ok((id, record))
}

/// Changes a device's state and figures in the store.
pub(crate) fn change(tx: &mut dyn Transaction, id: DeviceId, now: &Device) -> Result<DeviceRecord> {
    let mut record: DeviceRecord = load(tx, &keys::device(id))?
        .ok_or_else(|| MdsError::refused(ErrorCode::NotFound, format!("device {}", id.0)))?;
    (record.state, record.total, record.used) = (now.state, now.total, now.used);
    save(tx, &keys::device(id), &record)?;
    Ok(record)
}
