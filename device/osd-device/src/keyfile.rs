//! File with a device's keys: `keys.sealed`, sealed under `seal.key`.
//!
//! Does: seal and store in place, open, count generations.
//! Does not: interpret keys.
//! Contract: when `persist_keys` returns, the new keys are durable. After a crash at any step,
//! either the old or the new keys are stored completely. A copy older than the boot record is
//! refused.
//! Truth: docs/design/security.md 3.7; `docs/adr/0007-keys-in-a-sealed-file.md`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_crypto::vault::{self, SECRET_LEN, VaultError};
use zeroize::{Zeroize as _, Zeroizing};

use crate::environment::{DeviceEnvironment, Env};
use crate::folder::{Folder, load, replace, store};
use crate::keyring::KeyStore;
use crate::provision::{ProvisionError, hex, unhex};

/// File with the sealed keys.
pub const KEYS_FILE: &str = "keys.sealed";
/// File with the sealing key, as 64 hex digits.
pub const SEAL_FILE: &str = "seal.key";
/// Longest key file in bytes: [`sealstone_seal::hierarchy::PARTITIONS_MAX`] partitions with all
/// their keys.
const KEYS_LEN_MAX: u64 = 64 << 20;
/// Longest seal file in bytes.
const SEAL_LEN_MAX: u64 = 1024;

/// The open key file of one device.
pub struct SealedKeyFile {
    folder: Arc<dyn Folder>,
    secret: Zeroizing<[u8; SECRET_LEN]>,
    generation: Arc<AtomicU64>,
    env: Env,
}

impl SealedKeyFile {
    /// Opens or creates the seal file of a device that has no stored keys yet.
    ///
    /// # Errors
    /// [`ProvisionError`] if a file cannot be read or written.
    pub fn create(
        folder: Arc<dyn Folder>,
        environment: Arc<dyn DeviceEnvironment>,
    ) -> Result<Self, ProvisionError> {
        let env = Env::from(environment);
        let secret = match read_seal(&*folder)? {
            Some(secret) => secret,
            None => {
                let secret = Zeroizing::new(env.random());
                let mut text = Zeroizing::new(hex(&*secret));
                text.push('\n');
                replace(&*folder, SEAL_FILE, text.as_bytes())?;
                secret
            }
        };
        Ok(Self { folder, secret, generation: Arc::new(AtomicU64::new(0)), env })
    }

    /// Opens the key file and returns the encoded keys. `generation_least` is the generation in the
    /// boot record.
    ///
    /// # Errors
    /// [`ProvisionError::KeyMissing`] if one of the two files does not exist,
    /// [`ProvisionError::Sealed`], [`ProvisionError::KeysOld`], or an error of the system.
    pub fn open(
        folder: Arc<dyn Folder>,
        environment: Arc<dyn DeviceEnvironment>,
        generation_least: u64,
    ) -> Result<(Self, Zeroizing<Vec<u8>>), ProvisionError> {
        let missing = |name| ProvisionError::KeyMissing(folder.path(name));
        let secret = read_seal(&*folder)?.ok_or_else(|| missing(SEAL_FILE))?;
        let sealed = load(&*folder, KEYS_FILE, KEYS_LEN_MAX)
            .map_err(|source| failed(&*folder, KEYS_FILE, source))?
            .ok_or_else(|| missing(KEYS_FILE))?;
        let opened = vault::open(&secret, &sealed)
            .map_err(|source: VaultError| ProvisionError::Sealed { path: folder.path(KEYS_FILE), source })?;
        if opened.generation < generation_least {
            return Err(ProvisionError::KeysOld {
                path: folder.path(KEYS_FILE),
                found: opened.generation,
                least: generation_least,
            });
        }
        let generation = Arc::new(AtomicU64::new(opened.generation));
        let env = Env::from(environment);
        Ok((Self { folder, secret, generation, env }, opened.content))
    }

    /// Opens the key file of a device whose keys are to be replaced, even if they are unreadable.
    /// The next generation exceeds that of the file and that of the boot record.
    ///
    /// # Errors
    /// [`ProvisionError`] if a file cannot be read or written.
    pub(crate) fn renew(
        folder: Arc<dyn Folder>,
        environment: Arc<dyn DeviceEnvironment>,
        generation_least: u64,
    ) -> Result<Self, ProvisionError> {
        let this = Self::create(Arc::clone(&folder), environment)?;
        let sealed =
            load(&*folder, KEYS_FILE, KEYS_LEN_MAX).map_err(|source| failed(&*folder, KEYS_FILE, source))?;
        let opened = sealed.and_then(|sealed| vault::open(&this.secret, &sealed).ok());
        let generation = opened.map_or(0, |opened| opened.generation).max(generation_least);
        this.generation.store(generation, Ordering::Release);
        Ok(this)
    }

    /// Returns the generation of the durable keys, for the boot record.
    #[must_use]
    pub fn generation(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.generation)
    }
}

impl KeyStore for SealedKeyFile {
    fn persist_keys(&self, keys: &[u8]) -> Result<(), ProvisionError> {
        let next = self.generation.load(Ordering::Acquire).saturating_add(1);
        let mut random = |into: &mut [u8]| self.env.fill_random(into);
        let sealed = vault::seal(&self.secret, next, keys, &mut random);
        store(&*self.folder, KEYS_FILE, &sealed)?;
        self.generation.store(next, Ordering::Release);
        Ok(())
    }
}

fn read_seal(folder: &dyn Folder) -> Result<Option<Zeroizing<[u8; SECRET_LEN]>>, ProvisionError> {
    let Some(text) =
        folder.read(SEAL_FILE, SEAL_LEN_MAX).map_err(|source| failed(folder, SEAL_FILE, source))?
    else {
        return Ok(None);
    };
    let text = Zeroizing::new(text);
    let digits = text.strip_suffix(b"\n").unwrap_or(&text);
    let mut secret = std::str::from_utf8(digits).ok().and_then(unhex::<SECRET_LEN>).ok_or_else(|| {
        ProvisionError::Malformed { path: folder.path(SEAL_FILE), reason: "not 32 bytes of hex".to_owned() }
    })?;
    let kept = Zeroizing::new(secret);
    secret.zeroize();
    Ok(Some(kept))
}

fn failed(folder: &dyn Folder, name: &str, source: io::Error) -> ProvisionError {
    ProvisionError::Io { path: folder.path(name), source }
}
