//! The keystore: the key under which the metadata store's secrets are sealed, itself sealed under something that is
//! given to the server at its start.
//!
//! Does: make, open and reseal `keystore.sealed`. Does not: seal records; `sealstone_mds::store` does, with the key from
//! here.
//! Contract: the key is in no file in the clear. A wrong passphrase, key file or credential is told by name and opens
//! nothing. What a header asks of the stretching is bounded before it is done.
//! Truth: docs/standards/mds/store.md §8.2; docs/design/security.md 3.7.

use std::env;
use std::path::{Path, PathBuf};

use sealstone_crypto::record::{RecordSeal, STORE_ID_LEN};
use sealstone_crypto::vault::{self, Header, Kind, SALT_LEN, SECRET_LEN, VaultError};
use sealstone_login::{LoginFailure, stretch_passphrase};
use sealstone_mds::Entropy;
use sealstone_mds::store::KeystoreId;
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

use crate::files::{self, FileError};

/// The sealed keystore, in the data folder.
pub const KEYSTORE_FILE: &str = "keystore.sealed";
/// What it is sealed under unless something else is chosen: 64 hex digits, mode 0600.
pub const KEYSTORE_KEY_FILE: &str = "keystore.key";
/// Name of the systemd credential unless another is given.
pub const CREDENTIAL_DEFAULT: &str = "sealstone-keystore";
/// Where systemd puts credentials.
const CREDENTIALS_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";
/// Argon2id for new keystores: RFC 9106, second choice.
const STRETCH_NEW: Kind = Kind::Passphrase { memory_kib: 64 * 1024, passes: 3, lanes: 4 };
/// Shortest passphrase that a keystore is made with, bytes.
pub(crate) const PASSPHRASE_BYTES_MIN: usize = 12;
/// Shortest credential, bytes: it is not stretched.
pub(crate) const CREDENTIAL_BYTES_MIN: usize = 32;
const CREDENTIAL_LABEL: &[u8] = b"sealstone keystore credential v1";
const CONTENT_MAGIC: &[u8; 8] = b"OSDMK01\0";
/// The content: magic, id, key.
const CONTENT_LEN: usize = 8 + STORE_ID_LEN + SECRET_LEN;

/// Why there is no keystore.
#[derive(Debug, thiserror::Error)]
pub enum KeystoreError {
    /// The store's secrets are sealed, and what opens them is gone.
    #[error("{} is missing: without it the keys in the metadata store cannot be opened; restore a backup", .0.display())]
    Missing(PathBuf),
    /// It needs a passphrase, and none was given.
    #[error("{} is sealed under a passphrase, and none was given", .0.display())]
    NeedsPassphrase(PathBuf),
    /// It needs a key file, and none was given.
    #[error("{} is sealed under a key file, and none was given", .0.display())]
    NeedsKeyFile(PathBuf),
    /// The passphrase is another one.
    #[error("the passphrase does not open {}", .0.display())]
    WrongPassphrase(PathBuf),
    /// The key file is another one.
    #[error("the key file {} does not open {}", .key.display(), .keystore.display())]
    WrongKey {
        /// The keystore.
        keystore: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// The credential is another one.
    #[error("the systemd credential {name} does not open {}", .keystore.display())]
    WrongCredential {
        /// The keystore.
        keystore: PathBuf,
        /// The credential's name.
        name: String,
    },
    /// systemd gave no such credential.
    #[error("there is no systemd credential {0}: $CREDENTIALS_DIRECTORY is not set or does not hold it")]
    NoCredential(String),
    /// A name of a credential with a slash, say.
    #[error("'{0}' is no name of a systemd credential")]
    CredentialName(String),
    /// A passphrase or credential that is too short to make a keystore with.
    #[error("the {what} has {actual} bytes; at least {least} are needed")]
    Weak {
        /// Which of both.
        what: &'static str,
        /// Bytes given.
        actual: usize,
        /// Bytes needed.
        least: usize,
    },
    /// The key file does not hold a key.
    #[error("{} does not hold 64 hex digits", .0.display())]
    KeyMalformed(PathBuf),
    /// The keystore's header is none, or asks for too little or too much.
    #[error("{} is not a keystore of this version", .path.display())]
    Malformed {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Argon2id needs memory that is not there.
    #[error("the passphrase could not be stretched")]
    Stretch(#[source] LoginFailure),
    /// A file cannot be used.
    #[error("cannot use a file of the keystore")]
    File(#[from] FileError),
}

impl KeystoreError {
    /// Whether a file of the keystore is refused because of what other users can do.
    #[must_use]
    pub const fn is_exposed(&self) -> bool {
        matches!(self, Self::File(error) if error.is_exposed())
    }
}

/// What a new keystore is sealed under.
pub enum Protection {
    /// A key file that is made if it is not there: in the data folder, or elsewhere.
    KeyFile(Option<PathBuf>),
    /// A passphrase.
    Passphrase(Zeroizing<Vec<u8>>),
    /// A systemd credential of this name.
    Credential(String),
}

/// What is given to open a keystore; its header says which of them is needed.
#[derive(Default)]
pub struct Unlock {
    /// Where the key file is, if not in the data folder.
    pub key_file: Option<PathBuf>,
    /// The passphrase; without it the systemd credential is tried as one.
    pub passphrase: Option<Zeroizing<Vec<u8>>>,
    /// The name of the systemd credential, if not [`CREDENTIAL_DEFAULT`].
    pub credential: Option<String>,
}

impl Unlock {
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
    /// A new one with a new key; nothing is written.
    pub(crate) fn draw(rng: &mut dyn Entropy) -> Self {
        let mut id = KeystoreId { id: [0; STORE_ID_LEN], generation: 0 };
        rng.fill_bytes(&mut id.id);
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        rng.fill_bytes(&mut *secret);
        Self { id, secret }
    }

    /// Who it is.
    pub(crate) const fn id(&self) -> KeystoreId {
        self.id
    }

    /// What seals the records.
    pub(crate) fn seal(&self) -> RecordSeal {
        RecordSeal::new(&self.secret, self.id.id)
    }

    /// Its secret content, for a backup.
    pub(crate) fn content(&self) -> Zeroizing<Vec<u8>> {
        let mut content = Zeroizing::new(Vec::with_capacity(CONTENT_LEN));
        content.extend_from_slice(CONTENT_MAGIC);
        content.extend_from_slice(&self.id.id);
        content.extend_from_slice(&*self.secret);
        content
    }

    /// From its content and generation.
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
    pub(crate) fn open(folder: &Path, unlock: &Unlock) -> Result<Option<Self>, KeystoreError> {
        let path = folder.join(KEYSTORE_FILE);
        if !path.exists() {
            return Ok(None);
        }
        let file = files::read_secret(&path)?;
        let sealed = sealstone_slots::content(&file).map_err(files::at(&path))?;
        let malformed =
            |source: VaultError| KeystoreError::Malformed { path: path.clone(), source: source.into() };
        let header = vault::header(sealed).map_err(malformed)?;
        let (secret, wrong) = secret_for(&path, &header, unlock, Some(folder.join(KEYSTORE_KEY_FILE)))?;
        let opened = match vault::open_as(&secret, sealed) {
            Ok(opened) => opened,
            Err(VaultError::Tag) => return Err(wrong),
            Err(other) => return Err(malformed(other)),
        };
        Self::parse(&opened.content, opened.generation).map(Some).ok_or_else(|| malformed(VaultError::Magic))
    }

    /// Seals it under `protection`, as the next generation, in the place of what the folder has.
    ///
    /// # Errors
    /// [`KeystoreError`]; the folder's keystore is the old or the new one.
    pub(crate) fn write(
        &mut self,
        folder: &Path,
        protection: &Protection,
        rng: &mut dyn Entropy,
    ) -> Result<(), KeystoreError> {
        let generation = self.id.generation + 1;
        let sealed = seal_content(&self.content(), protection, generation, folder, rng)?;
        // In place, so that it can be resealed on a full disk; twice, so that neither slot opens with the old secret.
        let path = folder.join(KEYSTORE_FILE);
        for _ in 0..2 {
            sealstone_slots::write(&path, &sealed).map_err(files::at(&path))?;
        }
        self.id.generation = generation;
        Ok(())
    }
}

/// Seals a secret under `protection`; a key file that is not there is made.
pub(crate) fn seal_content(
    content: &[u8],
    protection: &Protection,
    generation: u64,
    folder: &Path,
    rng: &mut dyn Entropy,
) -> Result<Vec<u8>, KeystoreError> {
    let mut salt = [0; SALT_LEN];
    rng.fill_bytes(&mut salt);
    let header = |kind| Header { kind, salt, generation };
    let (header, secret) = match protection {
        Protection::KeyFile(at) => {
            let path = at.clone().unwrap_or_else(|| folder.join(KEYSTORE_KEY_FILE));
            if !path.exists() {
                make_key(&path, rng)?;
            }
            (header(Kind::KeyFile), read_key(&path)?)
        }
        Protection::Passphrase(passphrase) => {
            let (actual, least) = (passphrase.len(), PASSPHRASE_BYTES_MIN);
            if actual < least {
                return Err(KeystoreError::Weak { what: "passphrase", actual, least });
            }
            let header = header(STRETCH_NEW);
            (header, stretch(&folder.join(KEYSTORE_FILE), &header, passphrase)?)
        }
        Protection::Credential(name) => {
            (header(Kind::Credential), of_credential(&systemd_credential(name)?)?)
        }
    };
    Ok(vault::seal_as(&header, &secret, content, &mut |into: &mut [u8]| rng.fill_bytes(into)))
}

/// The secret behind a header, from what is given, and what to say if it does not open what is at `path`.
pub(crate) fn secret_for(
    path: &Path,
    header: &Header,
    unlock: &Unlock,
    default_key: Option<PathBuf>,
) -> Result<(Zeroizing<[u8; SECRET_LEN]>, KeystoreError), KeystoreError> {
    let keystore = path.to_owned();
    match header.kind {
        Kind::KeyFile => {
            let key = unlock.key_file.clone().or(default_key);
            let key = key.ok_or_else(|| KeystoreError::NeedsKeyFile(path.to_owned()))?;
            Ok((read_key(&key)?, KeystoreError::WrongKey { keystore, key }))
        }
        Kind::Credential => {
            let name = unlock.credential().to_owned();
            let secret = of_credential(&systemd_credential(&name)?)?;
            Ok((secret, KeystoreError::WrongCredential { keystore, name }))
        }
        Kind::Passphrase { .. } => {
            let passphrase = match &unlock.passphrase {
                Some(passphrase) => passphrase.clone(),
                None => match systemd_credential(unlock.credential()) {
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
    header: &Header,
    passphrase: &[u8],
) -> Result<Zeroizing<[u8; SECRET_LEN]>, KeystoreError> {
    let Kind::Passphrase { memory_kib, passes, lanes } = header.kind else {
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

/// A credential has to be random: it is not stretched.
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

/// What systemd gave the service under this name (`LoadCredential=`), without a line end.
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
    // As `--passphrase-file` does: a line end is not part of it.
    Ok(Zeroizing::new(content.strip_suffix(b"\n").unwrap_or(&content).to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::OsRng;

    fn passphrase(text: &str) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(text.as_bytes().to_vec())
    }

    fn made(folder: &Path, protection: &Protection) -> Keystore {
        let mut keystore = Keystore::draw(&mut OsRng);
        keystore.write(folder, protection, &mut OsRng).unwrap();
        keystore
    }

    fn secret_of(folder: &Path, unlock: &Unlock) -> Result<Zeroizing<Vec<u8>>, KeystoreError> {
        Keystore::open(folder, unlock).map(|keystore| keystore.unwrap().content())
    }

    #[test]
    fn the_kind_of_protection_is_changed_and_the_key_stays() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert!(Keystore::open(folder, &Unlock::default()).unwrap().is_none());
        let mut keystore = made(folder, &Protection::KeyFile(None));
        let content = keystore.content();
        assert_eq!(secret_of(folder, &Unlock::default()).unwrap(), content);
        let under = Protection::Passphrase(passphrase("correct horse battery"));
        keystore.write(folder, &under, &mut OsRng).unwrap();
        assert!(matches!(secret_of(folder, &Unlock::default()), Err(KeystoreError::NeedsPassphrase(_))));
        let unlock = |text| Unlock { passphrase: Some(passphrase(text)), ..Unlock::default() };
        assert_eq!(secret_of(folder, &unlock("correct horse battery")).unwrap(), content);
        let wrong = secret_of(folder, &unlock("correct horse batterx"));
        assert!(matches!(wrong, Err(KeystoreError::WrongPassphrase(_))));
        assert_eq!(
            Keystore::open(folder, &unlock("correct horse battery")).unwrap().unwrap().id().generation,
            2
        );
        let sealed = std::fs::read(folder.join(KEYSTORE_FILE)).unwrap();
        assert!(!sealed.windows(16).any(|bytes| bytes == &content[CONTENT_LEN - 16..]));
    }

    #[test]
    fn weak_secrets_and_wrong_or_malformed_key_files_are_told_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let elsewhere = folder.join("other.key");
        let mut keystore = Keystore::draw(&mut OsRng);
        let short = Protection::Passphrase(passphrase("0123456789a"));
        assert!(matches!(
            keystore.write(folder, &short, &mut OsRng),
            Err(KeystoreError::Weak { actual: 11, least: PASSPHRASE_BYTES_MIN, .. })
        ));
        assert!(matches!(of_credential(&[7; 31]), Err(KeystoreError::Weak { actual: 31, .. })));
        keystore.write(folder, &Protection::KeyFile(None), &mut OsRng).unwrap();
        make_key(&elsewhere, &mut OsRng).unwrap();
        let unlock = Unlock { key_file: Some(elsewhere.clone()), ..Unlock::default() };
        assert!(matches!(secret_of(folder, &unlock), Err(KeystoreError::WrongKey { .. })));
        files::write(&elsewhere, b"not a key\n", 0o600).unwrap();
        assert!(matches!(secret_of(folder, &unlock), Err(KeystoreError::KeyMalformed(_))));
        files::write(&elsewhere, &[b'a'; 64], 0o640).unwrap();
        assert!(matches!(secret_of(folder, &unlock), Err(KeystoreError::File(FileError::Exposed { .. }))));
        assert!(matches!(systemd_credential("../passwd"), Err(KeystoreError::CredentialName(_))));
    }

    #[test]
    fn damage_is_told_and_no_header_can_ask_for_more_than_the_ceiling() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        made(folder, &Protection::Passphrase(passphrase("correct horse battery")));
        let path = folder.join(KEYSTORE_FILE);
        let file = std::fs::read(&path).unwrap();
        let sealed = sealstone_slots::content(&file).unwrap().to_vec();
        let unlock = Unlock { passphrase: Some(passphrase("correct horse battery")), ..Unlock::default() };
        let asks = |at: usize, value: u8| {
            let mut changed = sealed.clone();
            changed[at] = value;
            files::write(&path, &changed, 0o600).unwrap();
            secret_of(folder, &unlock).err()
        };
        // Memory of 2^30 KiB and more, 2^24 passes, and none at all.
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
