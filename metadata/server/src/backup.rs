//! Backup of a data folder into one file, and a new folder from it.
//!
//! Does: write the keystore, the certificate and every record, as one state of the store, sealed; make a folder of it.
//! Does not: copy objects; devices keep their own.
//! Contract: a backup opens under the secret that it was made with, whole or not at all. A folder made of it is named
//! last, so an interrupted restore is seen and done again. What must not come back does not: sessions are left out, and
//! numbers of objects, files and keys go on from where nobody has been.
//! Truth: docs/standards/mds/store.md §8.3.
//!
//! File: `"OSDMB01\0"`, length 4 and a vault (see `vault`) with a key 32, then frames: length 4 and a sealed record
//! (`record`, under that key and the vault's salt as store id) named `"backup" ‖ number 8 ‖ last 1`. The frames' contents
//! are entries: kind 1 (1 keystore, 2 file, 3 record), name length 2, value length 4, name, value.

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
use crate::keystore::{Keystore, KeystoreError, Protection, Unlock, seal_content, secret_for};
use crate::location::open_store;
use crate::setup::{
    CERTIFICATE_FILE, KEY_FILE, STORE_FILE, STORE_FILE_NEW, SetupError, is_set_up, keystore_of, take_over,
};

const MAGIC: &[u8; 8] = b"OSDMB01\0";
/// Entries of a frame together, bytes, before the last one is added.
const FRAME_BYTES: usize = 1 << 20;
/// A frame at most: what it had before its last entry, that entry, and the seal.
const FRAME_BYTES_MAX: usize = FRAME_BYTES + 7 + KEY_MAX + VALUE_MAX + RECORD_OVERHEAD;
/// The vault at most.
const VAULT_BYTES_MAX: usize = 1024;

const KEYSTORE: u8 = 1;
const FILE: u8 = 2;
const RECORD: u8 = 3;

/// Why there is no backup, or nothing came back from it.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The backup cannot be read or written.
    #[error("{}", .path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is a file of that name.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// Something else, or of another version.
    #[error("{} is not a backup of this version", .0.display())]
    Foreign(PathBuf),
    /// Cut off, changed, or put together of two.
    #[error("{} is damaged or cut off at frame {frame}", .path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Where.
        frame: u64,
    },
    /// The secret of the backup, or the keystore of the folder.
    #[error("the backup's protection")]
    Protection(#[from] KeystoreError),
    /// The data folder.
    #[error("the data folder")]
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

/// What was written or read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// Records of the store.
    pub records: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Writes a backup of a folder that nobody serves. The file is made with mode 0600 and must not exist.
///
/// # Errors
/// [`BackupError`]; what was begun is removed.
pub fn backup(
    folder: &Path,
    unlock: &Unlock,
    to: &Path,
    protection: &Protection,
    environment: &Environment,
) -> Result<BackupReport, BackupError> {
    is_set_up(folder)?;
    let store = open_store(folder, None)?;
    let keystore = keystore_of(folder, &*store, unlock, environment)?;
    drop(take_over(Arc::clone(&store), &keystore, environment).map_err(SetupError::from)?);
    backup_of(folder, &*store, &keystore, to, protection, environment)
}

/// Writes a backup of one state of a store, which may be in use. `store` is the one below the seal.
pub(crate) fn backup_of(
    folder: &Path,
    store: &dyn MetaStore,
    keystore: &Keystore,
    to: &Path,
    protection: &Protection,
    environment: &Environment,
) -> Result<BackupReport, BackupError> {
    if to.exists() {
        return Err(BackupError::Exists(to.to_owned()));
    }
    let temporary = to.with_extension("new");
    let io = |source| BackupError::Io { path: to.to_owned(), source };
    let work = || {
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
        let mut out = Frames::begin(file.map_err(io)?, to, protection, &mut *(environment.entropy)())?;
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

struct Frames {
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

impl Frames {
    fn begin(
        file: File,
        path: &Path,
        protection: &Protection,
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

/// An open backup.
struct Source {
    input: BufReader<File>,
    path: PathBuf,
    seal: RecordSeal,
    number: u64,
    bytes: u64,
    done: bool,
}

impl Source {
    fn open(path: &Path, unlock: &Unlock) -> Result<Self, BackupError> {
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
        let (secret, wrong) = secret_for(path, &header, unlock, None)?;
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

    /// The entries of the next frame; none after the last.
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

/// Splits a frame: kind, name and value of each entry; `None` where it does not parse.
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

/// Reads a whole backup and says what is in it; nothing is written.
///
/// # Errors
/// [`BackupError`].
pub fn verify_backup(from: &Path, unlock: &Unlock) -> Result<BackupReport, BackupError> {
    let mut source = Source::open(from, unlock)?;
    let mut records = 0;
    while let Some(frame) = source.frame()? {
        for entry in entries(&frame) {
            let damaged = || BackupError::Damaged { path: from.to_owned(), frame: source.number - 1 };
            records += u64::from(entry.ok_or_else(damaged)?.0 == RECORD);
        }
    }
    Ok(BackupReport { records, bytes: source.bytes })
}

/// Makes a data folder from a backup; its keystore is sealed anew under `protection`. The folder must be empty or not
/// exist, but for what an interrupted restore left.
///
/// # Errors
/// [`BackupError`].
pub fn restore(
    from: &Path,
    unlock: &Unlock,
    folder: &Path,
    protection: &Protection,
    environment: &Environment,
) -> Result<BackupReport, BackupError> {
    // All of it is read before anything is made: a damaged backup leaves no folder behind.
    verify_backup(from, unlock)?;
    let mut source = Source::open(from, unlock)?;
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
