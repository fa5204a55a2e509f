//! Credentials issued with the device's initial key, as a security manager does.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use sealstone_crypto::RustCrypto;
use sealstone_initiator::Bearer;
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::{Capability, Descriptor, Generation, ObjectId, ObjectType, Permissions, SecurityMethod};
use sealstone_seal::{AlgorithmSlots, Credential, Hash, InitialKey, KeyHierarchy, algorithm};
use serde::Deserialize;
use zeroize::Zeroizing;

/// Lifetime of credentials: longer than any run.
const LIFETIME_MS: u64 = 48 * 3600 * 1000;

#[derive(Deserialize)]
struct KeyFile {
    system_id: String,
    master_key: String,
}

/// The keys of one device.
pub struct CredentialIssuer(KeyHierarchy<RustCrypto>);

impl CredentialIssuer {
    /// Reads the file that `osd init --key-out` wrote, for these partitions.
    ///
    /// # Panics
    /// If the file is invalid.
    #[must_use]
    pub fn of(path: &Path, partitions: impl Iterator<Item = u64>) -> Self {
        let text = Zeroizing::new(fs::read_to_string(path).expect("the key file"));
        let file: KeyFile = toml::from_str(&text).expect("a key file");
        let secret = Zeroizing::new(file.master_key);
        let system_id = unhex(&file.system_id).try_into().expect("20 bytes");
        let initial = InitialKey::new(&Zeroizing::new(unhex(&secret))).expect("32 bytes");
        let mut keys = KeyHierarchy::factory(Hash::Sha256, &initial, system_id);
        partitions.for_each(|partition| keys.add_partition(partition).expect("a new partition"));
        Self(keys)
    }

    /// Issues a credential with all rights on a user object.
    #[must_use]
    pub fn object(&self, allowed: ObjectId, method: SecurityMethod) -> Bearer {
        let descriptor = Descriptor::User { scope: Scope::default(), allowed, range: Range::ALL };
        self.issue(ObjectType::User, descriptor, method)
    }

    /// Issues a credential with all rights on a collection.
    #[must_use]
    pub fn collection(&self, allowed: ObjectId, method: SecurityMethod) -> Bearer {
        let descriptor = Descriptor::Collection { scope: Scope::default(), allowed };
        self.issue(ObjectType::Collection, descriptor, method)
    }

    /// Issues a credential with all rights on a partition, or with 0 on the device.
    #[must_use]
    pub fn partition(&self, partition: u64, method: SecurityMethod) -> Bearer {
        let descriptor = Descriptor::Partition { scope: Scope::default(), partition };
        let kind = if partition == 0 { ObjectType::Root } else { ObjectType::Partition };
        self.issue(kind, descriptor, method)
    }

    fn issue(&self, object_type: ObjectType, descriptor: Descriptor, method: SecurityMethod) -> Bearer {
        let mut discriminator = [0; 12];
        getrandom::fill(&mut discriminator).expect("the system gives random bytes");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let capability = Capability {
            generation: Generation::Osd2,
            format: Generation::Osd2,
            key_version: 0,
            icv_algorithm: algorithm::SLOT_HMAC_SHA256,
            method,
            expires_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX).saturating_add(LIFETIME_MS),
            audit: *b"torture-torture-tort",
            discriminator,
            object_created_ms: 0,
            object_type,
            permissions: Permissions::ALL_OSD2,
            descriptor,
        };
        let credential =
            Credential::issue(&self.0, &AlgorithmSlots::DEFAULT, &capability).expect("the keys are there");
        Bearer::of(&credential).expect("our own credential")
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..text.len()).step_by(2).map(|at| digits(at).expect("hexadecimal digits")).collect()
}
