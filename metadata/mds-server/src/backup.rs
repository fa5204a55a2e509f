//! Backs up a data folder into one file, and restores a folder from it.
//!
//! Does: writes the keystore, the certificate and every record, sealed, as one snapshot of the
//! store; restores them into a new folder.
//! Does not: copy objects; devices keep their own.
//! Contract: a backup opens completely or not at all, and only with the secret that it was created
//! with. The store file of a restored folder gets its name last, so an interrupted restore is
//! detected and repeated. Sessions are not restored. Numbers of objects, files and keys continue
//! where none was used before.
//! Truth: docs/standards/mds/store.md §8.3.
//!
//! File: `"OSDMB01\0"`, length 4 and a vault (see `vault`) with a key 32, then frames: length 4 and
//! a sealed record (`record`, under that key and the vault's salt as store id) named `"backup" ‖
//! number 8 ‖ last 1`. The frames' contents are entries: kind 1 (1 keystore, 2 file, 3 record),
//! name length 2, value length 4, name, value.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sealstone_crypto::record::{RECORD_OVERHEAD, RecordSeal};
use sealstone_crypto::vault::{self, SECRET_LEN, VaultError};
use sealstone_mds::store::{KEY_MAX, MetaError, MetaStore, VALUE_MAX, each_record, is_sealed};
use sealstone_mds::{Entropy, Mds};
use zeroize::Zeroizing;

use crate::environment::Environment;
use crate::files::{self, FileError};
use crate::keystore::{
    Keystore, KeystoreError, KeystoreProtection, KeystoreSecrets, seal_content, secret_for,
};
use crate::location::open_store;
use crate::setup::{
    CERTIFICATE_FILE, KEY_FILE, STORE_FILE, STORE_FILE_NEW, SetupError, is_set_up, keystore_of, take_over,
};

const MAGIC: &[u8; 8] = b"OSDMB01\0";
/// Bytes of entries after which a frame is closed; the last entry may exceed it.
const FRAME_BYTES: usize = 1 << 20;
/// Maximum length of a frame: full entries, one more entry, and the seal.
const FRAME_BYTES_MAX: usize = FRAME_BYTES + 7 + KEY_MAX + VALUE_MAX + RECORD_OVERHEAD;
/// Maximum length of the vault.
const VAULT_BYTES_MAX: usize = 1024;

const KEYSTORE: u8 = 1;
const FILE: u8 = 2;
const RECORD: u8 = 3;

/// Reason why a backup or restore failed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The backup file cannot be read or written.
    #[error("{}", .path.display())]
    Io {
        /// Path of the backup file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// A file of that name exists.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// The file is no backup, or has another format version.
    #[error("{} is not a backup of this version", .0.display())]
    Foreign(PathBuf),
    /// The file is truncated, modified, or composed of two backups.
    #[error("{} is damaged or truncated at frame {frame}", .path.display())]
    Damaged {
        /// Path of the backup file.
        path: PathBuf,
        /// Number of the first damaged frame.
        frame: u64,
    },
    /// The backup's secret or the keystore of the folder is wrong or unreadable.
    #[error("cannot open the backup or its keystore")]
    KeystoreProtection(#[from] KeystoreError),
    /// The data folder cannot be used.
    #[error("cannot use the data folder")]
    Folder(#[from] SetupError),
}

impl From<MetaError> for BackupError {
    fn from(error: MetaError) -> Self {
        Self::Folder(SetupError::Adopt(error.into()))
    }
}

impl From<FileError> for BackupError {
    fn from(error: FileError) -> Self {
        Self::Folder(error.into())
    }
}

/// Counts of a backup that was written or read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// Number of store records.
    pub records: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// Writes a backup of a folder that no server uses. The file gets mode 0600 and must not exist.
///
/// # Errors
/// [`BackupError`]; the partial file is removed.
pub fn backup(
    folder: &Path,
    secrets: &KeystoreSecrets,
    to: &Path,
    protection: &KeystoreProtection,
    environment: &Environment,
) -> Result<BackupReport, BackupError> {
    is_set_up(folder)?;
    let store = open_store(folder, None)?;
    let keystore = keystore_of(folder, &*store, secrets, environment)?;
    drop(take_over(Arc::clone(&store), &keystore, environment).map_err(SetupError::from)?);
    backup_of(folder, &*store, &keystore, to, protection, environment)
}

/// Writes a backup of one snapshot of a store that may be in use. `store` holds the sealed records.
pub(crate) fn backup_of(
    folder: &Path,
    store: &dyn MetaStore,
    keystore: &Keystore,
    to: &Path,
    protection: &KeystoreProtection,
    environment: &Environment,
) -> Result<BackupReport, BackupError> {
    if to.exists() {
        return Err(BackupError::Exists(to.to_owned()));
    }
    let temporary = to.with_extension("new");
    let io = |source| BackupError::Io { path: to.to_owned(), source };
    let work = || {
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
        let mut out = BackupWriter::create(file.map_err(io)?, to, protection, &mut *(environment.entropy)())?;
        let generation = keystore.id().generation.to_be_bytes();
        out.entry(KEYSTORE, &generation, &keystore.content())?;
        for name in [CERTIFICATE_FILE, KEY_FILE] {
            let content = Zeroizing::new(files::read(&folder.join(name))?);
            out.entry(FILE, name.as_bytes(), &content)?;
        }
        let view = store.snapshot()?;
        each_record(&*view, |key, value| out.entry(RECORD, key, value))?;
        let report = out.finish()?;
        files::rename(&temporary, to)?;
        Ok(report)
    };
    let done = work();
    if done.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    done
}

struct BackupWriter {
    out: BufWriter<File>,
    path: PathBuf,
    seal: RecordSeal,
    fill: Box<dyn FnMut(&mut [u8])>,
    frame: Zeroizing<Vec<u8>>,
    number: u64,
    report: BackupReport,
}

fn frame_name(number: u64, is_last: bool) -> Vec<u8> {
    [&b"backup"[..], &number.to_be_bytes(), &[u8::from(is_last)]].concat()
}

impl BackupWriter {
    fn create(
        file: File,
        path: &Path,
        protection: &KeystoreProtection,
        rng: &mut dyn Entropy,
    ) -> Result<Self, BackupError> {
        let mut key = Zeroizing::new([0; SECRET_LEN]);
        rng.fill_bytes(&mut *key);
        let folder = path.parent().unwrap_or(Path::new("."));
        let sealed = seal_content(&*key, protection, 1, folder, rng)?;
        let salt = vault::header(&sealed).map_err(|_| BackupError::Foreign(path.to_owned()))?.salt;
        let mut this = Self {
            out: BufWriter::new(file),
            path: path.to_owned(),
            seal: RecordSeal::new(&key, salt),
            fill: Box::new(|into| rand::RngCore::fill_bytes(&mut rand::rngs::OsRng, into)),
            frame: Zeroizing::new(Vec::with_capacity(FRAME_BYTES_MAX)),
            number: 0,
            report: BackupReport::default(),
        };
        this.write(MAGIC)?;
        this.write(&(sealed.len() as u32).to_be_bytes())?;
        this.write(&sealed)?;
        Ok(this)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.report.bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|source| BackupError::Io { path: self.path.clone(), source })
    }

    fn entry(&mut self, kind: u8, name: &[u8], value: &[u8]) -> Result<(), BackupError> {
        if self.frame.len() >= FRAME_BYTES {
            self.flush(false)?;
        }
        self.report.records += u64::from(kind == RECORD);
        self.frame.push(kind);
        self.frame.extend_from_slice(&(name.len() as u16).to_be_bytes());
        self.frame.extend_from_slice(&(value.len() as u32).to_be_bytes());
        self.frame.extend_from_slice(name);
        self.frame.extend_from_slice(value);
        Ok(())
    }

    fn flush(&mut self, is_last: bool) -> Result<(), BackupError> {
        let sealed = self.seal.seal(&frame_name(self.number, is_last), &self.frame, &mut self.fill);
        self.write(&(sealed.len() as u32).to_be_bytes())?;
        self.write(&sealed)?;
        self.frame.clear();
        self.number += 1;
        Ok(())
    }

    fn finish(mut self) -> Result<BackupReport, BackupError> {
        self.flush(true)?;
        let done = self.out.into_inner().map_err(io::IntoInnerError::into_error);
        done.and_then(|file| file.sync_all())
            .map_err(|source| BackupError::Io { path: self.path, source })?;
        Ok(self.report)
    }
}

/// Reader of a backup file.
struct BackupReader {
    input: BufReader<File>,
    path: PathBuf,
    seal: RecordSeal,
    number: u64,
    bytes: u64,
    done: bool,
}

impl BackupReader {
    fn open(path: &Path, secrets: &KeystoreSecrets) -> Result<Self, BackupError> {
        let io = |source| BackupError::Io { path: path.to_owned(), source };
        let foreign = || BackupError::Foreign(path.to_owned());
        let mut input = BufReader::new(File::open(path).map_err(io)?);
        let mut head = [0; 12];
        input.read_exact(&mut head).map_err(|_| foreign())?;
        let (magic, length) = head.split_at(8);
        let length = u32::from_be_bytes(length.try_into().map_err(|_| foreign())?) as usize;
        if magic != MAGIC || length > VAULT_BYTES_MAX {
            return Err(foreign());
        }
        let mut sealed = vec![0; length];
        input.read_exact(&mut sealed).map_err(|_| foreign())?;
        let header = vault::header(&sealed).map_err(|_| foreign())?;
        let (secret, wrong) = secret_for(path, &header, secrets, None)?;
        let opened = match vault::open_as(&secret, &sealed) {
            Ok(opened) => opened,
            Err(VaultError::Tag) => return Err(wrong.into()),
            Err(_) => return Err(foreign()),
        };
        let key: Zeroizing<[u8; SECRET_LEN]> =
            Zeroizing::new(opened.content[..].try_into().map_err(|_| foreign())?);
        let (seal, bytes) = (RecordSeal::new(&key, header.salt), (12 + length) as u64);
        Ok(Self { input, path: path.to_owned(), seal, number: 0, bytes, done: false })
    }

    /// Returns the entries of the next frame, or `None` after the last.
    fn frame(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, BackupError> {
        if self.done {
            return Ok(None);
        }
        let damaged = |frame| BackupError::Damaged { path: self.path.clone(), frame };
        let at = self.number;
        let mut length = [0; 4];
        self.input.read_exact(&mut length).map_err(|_| damaged(at))?;
        let length = u32::from_be_bytes(length) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(damaged(at));
        }
        let mut sealed = vec![0; length];
        self.input.read_exact(&mut sealed).map_err(|_| damaged(at))?;
        self.bytes += 4 + length as u64;
        let opened = self.seal.open(&frame_name(at, false), &sealed).or_else(|_| {
            self.done = true;
            self.seal.open(&frame_name(at, true), &sealed)
        });
        self.number += 1;
        let opened = opened.map_err(|_| BackupError::Damaged { path: self.path.clone(), frame: at })?;
        if self.done && self.input.by_ref().bytes().next().is_some_and(|byte| byte.is_ok()) {
            return Err(BackupError::Damaged { path: self.path.clone(), frame: at + 1 });
        }
        Ok(Some(opened))
    }
}

/// Splits a frame into kind, name and value of each entry. An item is `None` if it does not parse.
fn entries(mut frame: &[u8]) -> impl Iterator<Item = Option<(u8, &[u8], &[u8])>> {
    std::iter::from_fn(move || {
        if frame.is_empty() {
            return None;
        }
        let parsed = (|| {
            let (head, rest) = frame.split_at_checked(7)?;
            let name = usize::from(u16::from_be_bytes([head[1], head[2]]));
            let value = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
            let (name, rest) = rest.split_at_checked(name)?;
            let (value, rest) = rest.split_at_checked(value)?;
            Some(((head[0], name, value), rest))
        })();
        let (entry, rest) = parsed.unzip();
        frame = rest.unwrap_or_default();
        Some(entry)
    })
}

/// Reads a whole backup and returns its counts; writes nothing.
///
/// # Errors
/// [`BackupError`].
pub fn verify_backup(from: &Path, secrets: &KeystoreSecrets) -> Result<BackupReport, BackupError> {
    let mut source = BackupReader::open(from, secrets)?;
    let mut records = 0;
    while let Some(frame) = source.frame()? {
        for entry in entries(&frame) {
            let damaged = || BackupError::Damaged { path: from.to_owned(), frame: source.number - 1 };
            records += u64::from(entry.ok_or_else(damaged)?.0 == RECORD);
        }
    }
    Ok(BackupReport { records, bytes: source.bytes })
}

/// Restores a data folder from a backup and seals its keystore under `protection`. The folder must
/// be empty or missing; files of an interrupted restore are allowed.
///
/// # Errors
/// [`BackupError`].
pub fn restore(
    from: &Path,
    secrets: &KeystoreSecrets,
    folder: &Path,
    protection: &KeystoreProtection,
    environment: &Environment,
) -> Result<BackupReport, BackupError> {
    // The whole backup is verified first: a damaged one leaves no folder behind.
    verify_backup(from, secrets)?;
    let mut source = BackupReader::open(from, secrets)?;
    let store = crate::setup::begin_folder(folder)?;
    let mut rng = (environment.entropy)();
    let mut keystore = None;
    let mut report = BackupReport::default();
    while let Some(frame) = source.frame()? {
        let mut tx = store.begin()?;
        for entry in entries(&frame) {
            let damaged = || BackupError::Damaged { path: from.to_owned(), frame: source.number - 1 };
            let (kind, name, value) = entry.ok_or_else(damaged)?;
            match kind {
                KEYSTORE => {
                    let generation = name.try_into().map(u64::from_be_bytes).map_err(|_| damaged())?;
                    keystore = Some(Keystore::parse(value, generation).ok_or_else(damaged)?);
                }
                FILE if name == CERTIFICATE_FILE.as_bytes() => {
                    files::write(&folder.join(CERTIFICATE_FILE), value, 0o644)?;
                }
                FILE if name == KEY_FILE.as_bytes() => files::write(&folder.join(KEY_FILE), value, 0o600)?,
                RECORD => {
                    tx.put(name, value)?;
                    report.records += 1;
                }
                _ => return Err(damaged()),
            }
        }
        tx.commit()?;
    }
    report.bytes = source.bytes;
    let mut keystore = keystore.ok_or_else(|| BackupError::Damaged { path: from.to_owned(), frame: 0 })?;
    keystore.write(folder, protection, &mut *rng)?;
    debug_assert!(is_sealed(&store).unwrap_or(true));
    let store = take_over(Arc::new(store), &keystore, environment).map_err(SetupError::from)?;
    Mds::restored(&store, &mut *rng).map_err(SetupError::Contents)?;
    files::rename(&folder.join(STORE_FILE_NEW), &folder.join(STORE_FILE))?;
    Ok(report)
}
