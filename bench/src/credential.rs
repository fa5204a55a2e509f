//! Credentials issued with the device's own key, as a metadata server does.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use sealstone_crypto::RustCrypto;
use sealstone_initiator::Bearer;
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::{
    Capability, Command, Descriptor, Generation, ObjectId, ObjectType, Permissions, SecurityMethod,
};
use sealstone_seal::{AlgorithmSlots, Credential, Hash, InitialKey, KeyHierarchy, algorithm};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::Outcome;

/// Lifetime of credentials: longer than any run.
const LIFETIME_MS: u64 = 24 * 3600 * 1000;
/// File with a device's initial master key.
const KEY_FILE: &str = "master.key";

#[derive(Deserialize)]
struct KeyFile {
    system_id: String,
    master_key: String,
}

/// The keys of one device.
pub(crate) struct Issuer(KeyHierarchy<RustCrypto>);

impl Issuer {
    /// Reads the key file in the device's folder, for credentials of `partition`.
    pub(crate) fn of(folder: &Path, partition: u64) -> Outcome<Self> {
        let path = folder.join(KEY_FILE);
        let bad = || format!("{} is not a key file", path.display());
        let text = Zeroizing::new(fs::read_to_string(&path)?);
        let file: KeyFile = toml::from_str(&text).map_err(|_| bad())?;
        let secret = Zeroizing::new(file.master_key);
        let system_id = unhex(&file.system_id).and_then(|bytes| bytes.try_into().ok()).ok_or_else(bad)?;
        let initial = unhex(&secret)
            .map(Zeroizing::new)
            .and_then(|bytes| InitialKey::new(bytes.as_slice()))
            .ok_or_else(bad)?;
        let mut keys = KeyHierarchy::factory(Hash::Sha256, &initial, system_id);
        keys.add_partition(partition).map_err(|error| error.to_string())?;
        Ok(Self(keys))
    }

    /// Creates an issuer with these keys.
    pub(crate) const fn from_keys(keys: KeyHierarchy<RustCrypto>) -> Self {
        Self(keys)
    }

    /// Returns the factory keys.
    pub(crate) const fn keys(&self) -> &KeyHierarchy<RustCrypto> {
        &self.0
    }

    /// Issues the rights that one command needs, and the right to get attributes.
    pub(crate) fn command(&self, command: &Command, method: SecurityMethod) -> Outcome<Bearer> {
        let object = command.object();
        let scope = Scope::default();
        let (kind, descriptor) = match command.object_types().last() {
            Some(ObjectType::User) => {
                (ObjectType::User, Descriptor::User { scope, allowed: object, range: Range::ALL })
            }
            Some(ObjectType::Collection) => {
                (ObjectType::Collection, Descriptor::Collection { scope, allowed: object })
            }
            Some(&kind) => (kind, Descriptor::Partition { scope, partition: object.partition }),
            None => return Err("a command of no object".into()),
        };
        self.issue(kind, command.permissions() | Permissions::GET_ATTR, descriptor, method)
    }

    /// Issues all rights on a user object.
    pub(crate) fn object(&self, object: ObjectId, method: SecurityMethod, slot: u8) -> Outcome<Bearer> {
        let descriptor = Descriptor::User { scope: Scope::default(), allowed: object, range: Range::ALL };
        let permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::CREATE);
        self.issue_by(ObjectType::User, permissions, descriptor, method, slot)
    }

    /// Returns a capability with all rights on the data of a user object.
    pub(crate) fn capability(&self, object: ObjectId, method: SecurityMethod) -> Outcome<Capability> {
        let descriptor = Descriptor::User { scope: Scope::default(), allowed: object, range: Range::ALL };
        let slot = algorithm::preferred_slot(Generation::Osd2, method);
        describe(ObjectType::User, Permissions::READ.union(Permissions::WRITE), descriptor, method, slot)
    }

    /// Issues a credential for it, open or sealed.
    pub(crate) fn bearer(&self, object: ObjectId, method: SecurityMethod, sealed: bool) -> Outcome<Bearer> {
        let issue = if sealed { Credential::issue_sealed } else { Credential::issue };
        let credential = issue(&self.0, &AlgorithmSlots::DEFAULT, &self.capability(object, method)?)
            .map_err(|error| error.to_string())?;
        Ok(Bearer::of(&credential)?)
    }

    /// Issues the right to execute a function object.
    pub(crate) fn function(&self, object: ObjectId, method: SecurityMethod) -> Outcome<Bearer> {
        let descriptor = Descriptor::User { scope: Scope::default(), allowed: object, range: Range::ALL };
        self.issue(ObjectType::User, Permissions::EXECUTE, descriptor, method)
    }

    /// Issues a credential for anything, which only a NOSEC device accepts.
    pub(crate) fn anything(&self) -> Outcome<Bearer> {
        let object = ObjectId::new(1 << 16, 1 << 16);
        let descriptor = Descriptor::User { scope: Scope::default(), allowed: object, range: Range::ALL };
        self.issue(ObjectType::User, Permissions::ALL_OSD2, descriptor, SecurityMethod::NoSec)
    }

    fn issue(
        &self,
        object_type: ObjectType,
        permissions: Permissions,
        descriptor: Descriptor,
        method: SecurityMethod,
    ) -> Outcome<Bearer> {
        let slot = algorithm::preferred_slot(Generation::Osd2, method);
        self.issue_by(object_type, permissions, descriptor, method, slot)
    }

    fn issue_by(
        &self,
        object_type: ObjectType,
        permissions: Permissions,
        descriptor: Descriptor,
        method: SecurityMethod,
        slot: u8,
    ) -> Outcome<Bearer> {
        let capability = describe(object_type, permissions, descriptor, method, slot)?;
        // The device was started with broken algorithms enabled, so that they can be measured.
        let slots = &AlgorithmSlots::WITH_BROKEN;
        let credential = Credential::issue(&self.0, slots, &capability).map_err(|error| error.to_string())?;
        Ok(Bearer::in_slots(&credential, slots)?)
    }
}

fn describe(
    object_type: ObjectType,
    permissions: Permissions,
    descriptor: Descriptor,
    method: SecurityMethod,
    slot: u8,
) -> Outcome<Capability> {
    let mut discriminator = [0; 12];
    getrandom::fill(&mut discriminator).map_err(|error| error.to_string())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(Capability {
        generation: Generation::Osd2,
        format: Generation::Osd2,
        key_version: 0,
        icv_algorithm: slot,
        method,
        expires_ms: u64::try_from(now.as_millis())? + LIFETIME_MS,
        audit: [0xBE; 20],
        discriminator,
        object_created_ms: 0,
        object_type,
        permissions,
        descriptor,
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}
