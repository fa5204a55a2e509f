//! The keystore: the key that seals the metadata store's secrets, itself sealed under a key file,
//! passphrase or systemd credential.
//!
//! Does: creates, opens and reseals `keystore.sealed`.
//! Does not: seal records; `sealstone_mds::store` does, with this key.
//! Contract: no file has the key in the clear. A wrong passphrase, key file or credential is a
//! distinct error and opens nothing. The cost of key stretching is limited before it runs, whatever
//! the header requests.
//! Truth: docs/standards/mds/store.md §8.2; docs/design/security.md 3.7.

use std::env;
use std::path::{Path, PathBuf};

use sealstone_crypto::record::{RecordSeal, STORE_ID_LEN};
use sealstone_crypto::vault::{self, SALT_LEN, SECRET_LEN, SealingKeyKind, VaultError, VaultHeader};
use sealstone_login::{LoginFailure, stretch_passphrase};
use sealstone_mds::Entropy;
use sealstone_mds::store::KeystoreId;
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

use crate::files::{self, FileError};

/// File of the sealed keystore in the data folder.
pub const KEYSTORE_FILE: &str = "keystore.sealed";
/// Default key file that seals the keystore: 64 hex digits, mode 0600.
pub const KEYSTORE_KEY_FILE: &str = "keystore.key";
/// Default name of the systemd credential.
pub const CREDENTIAL_DEFAULT: &str = "sealstone-keystore";
/// Variable with systemd's credentials folder.
const CREDENTIALS_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";
/// Argon2id parameters of new keystores: RFC 9106, second choice.
const STRETCH_NEW: SealingKeyKind = SealingKeyKind::Passphrase { memory_kib: 64 * 1024, passes: 3, lanes: 4 };
/// Minimum length of a passphrase of a new keystore, in bytes.
pub(crate) const PASSPHRASE_BYTES_MIN: usize = 12;
/// Minimum length of a credential in bytes: it is not stretched.
pub(crate) const CREDENTIAL_BYTES_MIN: usize = 32;
const CREDENTIAL_LABEL: &[u8] = b"sealstone keystore credential v1";
const CONTENT_MAGIC: &[u8; 8] = b"OSDMK01\0";
/// Length of the content: magic, id, key.
const CONTENT_LEN: usize = 8 + STORE_ID_LEN + SECRET_LEN;

/// Reason why the keystore cannot be opened or created.
#[derive(Debug, thiserror::Error)]
pub enum KeystoreError {
    /// The store's secrets are sealed, and the keystore is missing.
    #[error("{} is missing: without it the keys in the metadata store cannot be opened; restore a backup", .0.display())]
    Missing(PathBuf),
    /// The keystore needs a passphrase, and none was given.
    #[error("{} is sealed under a passphrase, and none was given", .0.display())]
    NeedsPassphrase(PathBuf),
    /// The keystore needs a key file, and none was given.
    #[error("{} is sealed under a key file, and none was given", .0.display())]
    NeedsKeyFile(PathBuf),
    /// The passphrase is wrong.
    #[error("the passphrase does not open {}", .0.display())]
    WrongPassphrase(PathBuf),
    /// The key file is wrong.
    #[error("the key file {} does not open {}", .key.display(), .keystore.display())]
    WrongKey {
        /// Path of the keystore.
        keystore: PathBuf,
        /// Path of the key file.
        key: PathBuf,
    },
    /// The systemd credential is wrong.
    #[error("the systemd credential {name} does not open {}", .keystore.display())]
    WrongCredential {
        /// Path of the keystore.
        keystore: PathBuf,
        /// Name of the credential.
        name: String,
    },
    /// systemd provides no such credential.
    #[error("there is no systemd credential {0}: $CREDENTIALS_DIRECTORY is not set or does not hold it")]
    NoCredential(String),
    /// The name cannot be that of a credential: it has a slash, for example.
    #[error("'{0}' is not a valid systemd credential name")]
    CredentialName(String),
    /// The passphrase or credential is too short for a new keystore.
    #[error("the {what} has {actual} bytes; at least {least} are needed")]
    Weak {
        /// `passphrase` or `systemd credential`.
        what: &'static str,
        /// Bytes given.
        actual: usize,
        /// Minimum number of bytes.
        least: usize,
    },
    /// The key file does not hold a key.
    #[error("{} does not hold 64 hex digits", .0.display())]
    KeyMalformed(PathBuf),
    /// The keystore's header is invalid, or its cost parameters are out of range.
    #[error("{} is not a keystore of this version", .path.display())]
    Malformed {
        /// Path of the keystore.
        path: PathBuf,
        /// Parse error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There is not enough memory for Argon2id.
    #[error("cannot derive a key from the passphrase")]
    Stretch(#[source] LoginFailure),
    /// A file cannot be used.
    #[error("cannot use a file of the keystore")]
    File(#[from] FileError),
}

impl KeystoreError {
    /// Whether a file of the keystore was refused because other users may access it.
    #[must_use]
    pub const fn is_exposed(&self) -> bool {
        matches!(self, Self::File(error) if error.is_exposed())
    }
}

/// Protection of a new keystore.
pub enum KeystoreProtection {
    /// A key file, created if it does not exist; `None` is the default path in the data folder.
    KeyFile(Option<PathBuf>),
    /// A passphrase.
    Passphrase(Zeroizing<Vec<u8>>),
    /// The systemd credential of this name.
    Credential(String),
}

/// Secrets given to open a keystore; its header selects which one is needed.
#[derive(Default)]
pub struct KeystoreSecrets {
    /// Path of the key file, if not in the data folder.
    pub key_file: Option<PathBuf>,
    /// The passphrase; if `None`, the systemd credential is used as one.
    pub passphrase: Option<Zeroizing<Vec<u8>>>,
    /// Name of the systemd credential, if not [`CREDENTIAL_DEFAULT`].
    pub credential: Option<String>,
}

impl KeystoreSecrets {
    fn credential(&self) -> &str {
        self.credential.as_deref().unwrap_or(CREDENTIAL_DEFAULT)
    }
}

/// An open keystore.
pub(crate) struct Keystore {
    id: KeystoreId,
    secret: Zeroizing<[u8; SECRET_LEN]>,
}

impl Keystore {
    /// Creates a keystore with a new key; writes nothing.
    pub(crate) fn generate(rng: &mut dyn Entropy) -> Self {
        let mut id = KeystoreId { id: [0; STORE_ID_LEN], generation: 0 };
        rng.fill_bytes(&mut id.id);
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        rng.fill_bytes(&mut *secret);
        Self { id, secret }
    }

    /// Returns its id and generation.
    pub(crate) const fn id(&self) -> KeystoreId {
        self.id
    }

    /// Returns the seal of the store's records.
    pub(crate) fn seal(&self) -> RecordSeal {
        RecordSeal::new(&self.secret, self.id.id)
    }

    /// Returns its secret content, for a backup.
    pub(crate) fn content(&self) -> Zeroizing<Vec<u8>> {
        let mut content = Zeroizing::new(Vec::with_capacity(CONTENT_LEN));
        content.extend_from_slice(CONTENT_MAGIC);
        content.extend_from_slice(&self.id.id);
        content.extend_from_slice(&*self.secret);
        content
    }

    /// Parses the content of a keystore of this generation.
    pub(crate) fn parse(content: &[u8], generation: u64) -> Option<Self> {
        let rest = content.strip_prefix(CONTENT_MAGIC)?;
        let (id, secret) = rest.split_first_chunk::<STORE_ID_LEN>()?;
        let secret = Zeroizing::new(<[u8; SECRET_LEN]>::try_from(secret).ok()?);
        Some(Self { id: KeystoreId { id: *id, generation }, secret })
    }

    /// Opens the keystore of a data folder; `None` if there is none.
    ///
    /// # Errors
    /// [`KeystoreError`].
    pub(crate) fn open(folder: &Path, secrets: &KeystoreSecrets) -> Result<Option<Self>, KeystoreError> {
        let path = folder.join(KEYSTORE_FILE);
        if !path.exists() {
            return Ok(None);
        }
        let file = files::read_secret(&path)?;
        let sealed = sealstone_slots::content(&file).map_err(files::at(&path))?;
        let malformed =
            |source: VaultError| KeystoreError::Malformed { path: path.clone(), source: source.into() };
        let header = vault::header(sealed).map_err(malformed)?;
        let (secret, wrong) = secret_for(&path, &header, secrets, Some(folder.join(KEYSTORE_KEY_FILE)))?;
        let opened = match vault::open_as(&secret, sealed) {
            Ok(opened) => opened,
            Err(VaultError::Tag) => return Err(wrong),
            Err(other) => return Err(malformed(other)),
        };
        Self::parse(&opened.content, opened.generation).map(Some).ok_or_else(|| malformed(VaultError::Magic))
    }

    /// Seals the keystore under `protection` as the next generation and replaces the folder's
    /// keystore.
    ///
    /// # Errors
    /// [`KeystoreError`]; the folder's keystore is the old or the new one.
    pub(crate) fn write(
        &mut self,
        folder: &Path,
        protection: &KeystoreProtection,
        rng: &mut dyn Entropy,
    ) -> Result<(), KeystoreError> {
        let generation = self.id.generation + 1;
        let sealed = seal_content(&self.content(), protection, generation, folder, rng)?;
        // Overwritten in place, so that it works on a full disk; twice, so that neither slot opens
        // with the old secret.
        let path = folder.join(KEYSTORE_FILE);
        for _ in 0..2 {
            sealstone_slots::write(&path, &sealed).map_err(files::at(&path))?;
        }
        self.id.generation = generation;
        Ok(())
    }
}

/// Seals a secret under `protection`; creates the key file if it does not exist.
pub(crate) fn seal_content(
    content: &[u8],
    protection: &KeystoreProtection,
    generation: u64,
    folder: &Path,
    rng: &mut dyn Entropy,
) -> Result<Vec<u8>, KeystoreError> {
    let mut salt = [0; SALT_LEN];
    rng.fill_bytes(&mut salt);
    let header = |kind| VaultHeader { kind, salt, generation };
    let (header, secret) = match protection {
        KeystoreProtection::KeyFile(at) => {
            let path = at.clone().unwrap_or_else(|| folder.join(KEYSTORE_KEY_FILE));
            if !path.exists() {
                make_key(&path, rng)?;
            }
            (header(SealingKeyKind::KeyFile), read_key(&path)?)
        }
        KeystoreProtection::Passphrase(passphrase) => {
            let (actual, least) = (passphrase.len(), PASSPHRASE_BYTES_MIN);
            if actual < least {
                return Err(KeystoreError::Weak { what: "passphrase", actual, least });
            }
            let header = header(STRETCH_NEW);
            (header, stretch(&folder.join(KEYSTORE_FILE), &header, passphrase)?)
        }
        KeystoreProtection::Credential(name) => {
            (header(SealingKeyKind::Credential), of_credential(&systemd_credential(name)?)?)
        }
    };
    Ok(vault::seal_as(&header, &secret, content, &mut |into: &mut [u8]| rng.fill_bytes(into)))
}

/// Derives the secret for a header from the given secrets. Also returns the error to report if it
/// does not open the file at `path`.
pub(crate) fn secret_for(
    path: &Path,
    header: &VaultHeader,
    secrets: &KeystoreSecrets,
    default_key: Option<PathBuf>,
) -> Result<(Zeroizing<[u8; SECRET_LEN]>, KeystoreError), KeystoreError> {
    let keystore = path.to_owned();
    match header.kind {
        SealingKeyKind::KeyFile => {
            let key = secrets.key_file.clone().or(default_key);
            let key = key.ok_or_else(|| KeystoreError::NeedsKeyFile(path.to_owned()))?;
            Ok((read_key(&key)?, KeystoreError::WrongKey { keystore, key }))
        }
        SealingKeyKind::Credential => {
            let name = secrets.credential().to_owned();
            let secret = of_credential(&systemd_credential(&name)?)?;
            Ok((secret, KeystoreError::WrongCredential { keystore, name }))
        }
        SealingKeyKind::Passphrase { .. } => {
            let passphrase = match &secrets.passphrase {
                Some(passphrase) => passphrase.clone(),
                None => match systemd_credential(secrets.credential()) {
                    Err(KeystoreError::NoCredential(_)) => {
                        return Err(KeystoreError::NeedsPassphrase(keystore));
                    }
                    other => other?,
                },
            };
            Ok((stretch(path, header, &passphrase)?, KeystoreError::WrongPassphrase(keystore)))
        }
    }
}

fn stretch(
    path: &Path,
    header: &VaultHeader,
    passphrase: &[u8],
) -> Result<Zeroizing<[u8; SECRET_LEN]>, KeystoreError> {
    let SealingKeyKind::Passphrase { memory_kib, passes, lanes } = header.kind else {
        return Err(KeystoreError::NeedsPassphrase(path.to_owned()));
    };
    stretch_passphrase(passphrase, &header.salt, memory_kib, passes, lanes).map_err(KeystoreError::Stretch)
}

fn make_key(path: &Path, rng: &mut dyn Entropy) -> Result<(), KeystoreError> {
    let mut secret = Zeroizing::new([0; SECRET_LEN]);
    rng.fill_bytes(&mut *secret);
    let mut text = Zeroizing::new(String::with_capacity(2 * SECRET_LEN + 1));
    for byte in secret.iter() {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
    text.push('\n');
    Ok(files::write(path, text.as_bytes(), 0o600)?)
}

fn read_key(path: &Path) -> Result<Zeroizing<[u8; SECRET_LEN]>, KeystoreError> {
    let text = files::read_secret(path)?;
    let digits = text.strip_suffix(b"\n").unwrap_or(&text);
    let mut secret = Zeroizing::new([0; SECRET_LEN]);
    let value = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let fits = digits.len() == 2 * SECRET_LEN
        && secret.iter_mut().zip(digits.chunks_exact(2)).all(|(byte, pair)| {
            match (value(pair[0]), value(pair[1])) {
                (Some(high), Some(low)) => {
                    *byte = high << 4 | low;
                    true
                }
                _ => false,
            }
        });
    if fits { Ok(secret) } else { Err(KeystoreError::KeyMalformed(path.to_owned())) }
}

/// Derives a secret from a systemd credential, which must be random: it is not stretched.
fn of_credential(content: &[u8]) -> Result<Zeroizing<[u8; SECRET_LEN]>, KeystoreError> {
    let (actual, least) = (content.len(), CREDENTIAL_BYTES_MIN);
    if actual < least {
        return Err(KeystoreError::Weak { what: "systemd credential", actual, least });
    }
    let mut digest = Sha256::new().chain_update(CREDENTIAL_LABEL).chain_update(content).finalize();
    let mut secret = Zeroizing::new([0; SECRET_LEN]);
    secret.copy_from_slice(&digest);
    digest.as_mut_slice().zeroize();
    Ok(secret)
}

/// Reads the systemd credential of this name (`LoadCredential=`), without a trailing newline.
///
/// # Errors
/// `CredentialName`, `NoCredential`, `File`.
pub fn systemd_credential(name: &str) -> Result<Zeroizing<Vec<u8>>, KeystoreError> {
    let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    if !plain {
        return Err(KeystoreError::CredentialName(name.to_owned()));
    }
    let none = || KeystoreError::NoCredential(name.to_owned());
    let path = Path::new(&env::var_os(CREDENTIALS_DIRECTORY).ok_or_else(none)?).join(name);
    if !path.is_file() {
        return Err(none());
    }
    let content = Zeroizing::new(files::read(&path)?);
    // As `--passphrase-file` does: a trailing newline is not part of the secret.
    Ok(Zeroizing::new(content.strip_suffix(b"\n").unwrap_or(&content).to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::OsRng;

    fn passphrase(text: &str) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(text.as_bytes().to_vec())
    }

    fn made(folder: &Path, protection: &KeystoreProtection) -> Keystore {
        let mut keystore = Keystore::generate(&mut OsRng);
        keystore.write(folder, protection, &mut OsRng).unwrap();
        keystore
    }

    fn secret_of(folder: &Path, secrets: &KeystoreSecrets) -> Result<Zeroizing<Vec<u8>>, KeystoreError> {
        Keystore::open(folder, secrets).map(|keystore| keystore.unwrap().content())
    }

    #[test]
    fn changed_protection_keeps_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert!(Keystore::open(folder, &KeystoreSecrets::default()).unwrap().is_none());
        let mut keystore = made(folder, &KeystoreProtection::KeyFile(None));
        let content = keystore.content();
        assert_eq!(secret_of(folder, &KeystoreSecrets::default()).unwrap(), content);
        let under = KeystoreProtection::Passphrase(passphrase("correct horse battery"));
        keystore.write(folder, &under, &mut OsRng).unwrap();
        assert!(matches!(
            secret_of(folder, &KeystoreSecrets::default()),
            Err(KeystoreError::NeedsPassphrase(_))
        ));
        let secrets =
            |text| KeystoreSecrets { passphrase: Some(passphrase(text)), ..KeystoreSecrets::default() };
        assert_eq!(secret_of(folder, &secrets("correct horse battery")).unwrap(), content);
        let wrong = secret_of(folder, &secrets("correct horse batterx"));
        assert!(matches!(wrong, Err(KeystoreError::WrongPassphrase(_))));
        assert_eq!(
            Keystore::open(folder, &secrets("correct horse battery")).unwrap().unwrap().id().generation,
            2
        );
        let sealed = std::fs::read(folder.join(KEYSTORE_FILE)).unwrap();
        assert!(!sealed.windows(16).any(|bytes| bytes == &content[CONTENT_LEN - 16..]));
    }

    #[test]
    fn weak_secrets_and_bad_key_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let elsewhere = folder.join("other.key");
        let mut keystore = Keystore::generate(&mut OsRng);
        let short = KeystoreProtection::Passphrase(passphrase("0123456789a"));
        assert!(matches!(
            keystore.write(folder, &short, &mut OsRng),
            Err(KeystoreError::Weak { actual: 11, least: PASSPHRASE_BYTES_MIN, .. })
        ));
        assert!(matches!(of_credential(&[7; 31]), Err(KeystoreError::Weak { actual: 31, .. })));
        keystore.write(folder, &KeystoreProtection::KeyFile(None), &mut OsRng).unwrap();
        make_key(&elsewhere, &mut OsRng).unwrap();
        let secrets = KeystoreSecrets { key_file: Some(elsewhere.clone()), ..KeystoreSecrets::default() };
        assert!(matches!(secret_of(folder, &secrets), Err(KeystoreError::WrongKey { .. })));
        files::write(&elsewhere, b"not a key\n", 0o600).unwrap();
        assert!(matches!(secret_of(folder, &secrets), Err(KeystoreError::KeyMalformed(_))));
        files::write(&elsewhere, &[b'a'; 64], 0o640).unwrap();
        assert!(matches!(secret_of(folder, &secrets), Err(KeystoreError::File(FileError::Exposed { .. }))));
        assert!(matches!(systemd_credential("../passwd"), Err(KeystoreError::CredentialName(_))));
    }

    #[test]
    fn damaged_keystore_is_rejected_within_cost_limits() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        made(folder, &KeystoreProtection::Passphrase(passphrase("correct horse battery")));
        let path = folder.join(KEYSTORE_FILE);
        let file = std::fs::read(&path).unwrap();
        let sealed = sealstone_slots::content(&file).unwrap().to_vec();
        let secrets = KeystoreSecrets {
            passphrase: Some(passphrase("correct horse battery")),
            ..KeystoreSecrets::default()
        };
        let asks = |at: usize, value: u8| {
            let mut changed = sealed.clone();
            changed[at] = value;
            files::write(&path, &changed, 0o600).unwrap();
            secret_of(folder, &secrets).err()
        };
        // Memory of 2^30 KiB and more, 2^24 passes, and zero of either.
        for (at, value) in [(9, 0x40), (13, 1), (16, 0), (10, 0)] {
            let refused = asks(at, value);
            assert!(
                matches!(refused, Some(KeystoreError::Stretch(_) | KeystoreError::WrongPassphrase(_))),
                "{at} {refused:?}"
            );
        }
        assert!(matches!(asks(0, b'X'), Some(KeystoreError::Malformed { .. })));
        assert!(matches!(asks(8, 2), Some(KeystoreError::Malformed { .. })));
    }
}
