//! Exports a metadata store to a file, and imports it into another kind of store.
//!
//! Does: writes every record of one snapshot as it is stored, secrets sealed; writes them to an
//! empty store, and reads them back.
//! Does not: include the keystore or the certificate, which stay in the server's folder. A backup
//! (`backup`) does that, and also moves the number ranges on.
//! Contract: memory is bounded. A file is verified completely before the import: its length, order
//! and number of records, and the BLAKE3 of all bytes. A store becomes a server's with the last
//! record; until then an import may be repeated.
//! Truth: docs/standards/mds/store.md §8.8.
//!
//! File: `"OSDMX01\0"`, version of the records 8, server id 16; then records in ascending order of
//! keys: length of the key 2, of the value 4, key, value; then FFFFh, number of records 8, bytes of
//! keys and values 8, BLAKE3 of all before 32.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sealstone_mds::store::{
    IMPORTING_KEY, KEY_MAX, MetaError, MetaStore, VALUE_MAX, VERSION_KEY, each_record, is_sealed,
};
use sealstone_mds::{Mds, OpenError};

use crate::environment::Environment;
use crate::files;
use crate::keystore::KeystoreSecrets;
use crate::location::{LOCATION_FILE, Location, open_store};
use crate::setup::{STORE_FILE, STORE_FILE_NEW, SetupError, is_set_up, keystore_of, take_over};

const MAGIC: &[u8; 8] = b"OSDMX01\0";
const HEAD_BYTES: usize = 32;
/// End mark in place of a key's length.
const END: u16 = u16::MAX;
const END_BYTES: usize = 8 + 8 + 32;
/// Records between two progress reports.
const PROGRESS_INTERVAL: u64 = 1024;
/// Maximum bytes and records of one transaction.
const BATCH_BYTES: usize = 1 << 20;
const BATCH: usize = 4096;
/// Name of the embedded store after its records were moved elsewhere.
const STORE_FILE_LEFT: &str = "meta.redb.exported";

/// Reason why an export or import failed.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The file cannot be read or written.
    #[error("{}", .path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// A file of that name exists.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// The file is no export, or has another format version.
    #[error("{} is not an exported metadata store", .0.display())]
    Foreign(PathBuf),
    /// The records were written by another release.
    #[error("{} has records of version {found}, this release reads {known}", .path.display())]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// The version found.
        found: u64,
        /// The version of this release.
        known: u64,
    },
    /// The file is truncated or modified.
    #[error("{} is damaged or truncated after {records} records", .path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Number of complete records before the damage.
        records: u64,
    },
    /// The secrets are not sealed, so the file would contain them in the clear.
    #[error("the store's secrets are not sealed")]
    NotSealed,
    /// The imported records do not read back as written.
    #[error("the imported store differs from the file: {found} records, {expected} expected")]
    Differs {
        /// Number of records written.
        expected: u64,
        /// Number of records read back.
        found: u64,
    },
    /// The data folder or a store cannot be used.
    #[error("cannot use the data folder or the store")]
    Folder(#[from] SetupError),
}

impl From<MetaError> for TransferError {
    fn from(error: MetaError) -> Self {
        Self::Folder(SetupError::Adopt(error.into()))
    }
}

impl From<files::FileError> for TransferError {
    fn from(error: files::FileError) -> Self {
        Self::Folder(error.into())
    }
}

/// Counts of an export or import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferReport {
    /// Number of records.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Id of the server that wrote them.
    pub server_id: [u8; 16],
    /// Version of the records.
    pub version: u64,
    /// BLAKE3 of the file.
    pub blake3: [u8; 32],
}

/// Progress callback, with records and bytes so far.
pub(crate) type ProgressCallback<'a> = &'a mut dyn FnMut(u64, u64);

struct ExportWriter {
    out: BufWriter<File>,
    hash: blake3::Hasher,
    path: PathBuf,
}

impl ExportWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.hash.update(bytes);
        self.out.write_all(bytes).map_err(|source| TransferError::Io { path: self.path.clone(), source })
    }
}

fn record_head(key: &[u8], value: &[u8]) -> [u8; 6] {
    // The store limits both lengths.
    let (key, value) = ((key.len() as u16).to_be_bytes(), (value.len() as u32).to_be_bytes());
    [key[0], key[1], value[0], value[1], value[2], value[3]]
}

/// Writes one snapshot of a folder's store to a file, which must not exist and gets mode 0600.
///
/// # Errors
/// [`TransferError`]; the partial file is removed.
pub fn export(
    folder: &Path,
    to: &Path,
    progress: ProgressCallback<'_>,
) -> Result<TransferReport, TransferError> {
    is_set_up(folder)?;
    let store = open_store(folder, None)?;
    if to.exists() {
        return Err(TransferError::Exists(to.to_owned()));
    }
    let temporary = to.with_extension("new");
    let done = export_of(&*store, &temporary, progress).and_then(|report| {
        files::rename(&temporary, to)?;
        Ok(report)
    });
    if done.is_err() && !matches!(done, Err(TransferError::Exists(_))) {
        let _ = std::fs::remove_file(&temporary);
    }
    done
}

fn export_of(
    store: &dyn MetaStore,
    to: &Path,
    progress: ProgressCallback<'_>,
) -> Result<TransferReport, TransferError> {
    let (server_id, version) = Mds::identity(store).map_err(|error| match error {
        OpenError::NotSetUp => SetupError::Unfinished(to.to_owned()),
        other => SetupError::Contents(other),
    })?;
    if !is_sealed(store)? {
        return Err(TransferError::NotSealed);
    }
    let io = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => TransferError::Exists(to.to_owned()),
        _ => TransferError::Io { path: to.to_owned(), source },
    };
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).map_err(io)?;
    let mut out =
        ExportWriter { out: BufWriter::new(file), hash: blake3::Hasher::new(), path: to.to_owned() };
    out.write(MAGIC)?;
    out.write(&version.to_be_bytes())?;
    out.write(&server_id)?;
    let mut report = TransferReport { server_id, version, ..TransferReport::default() };
    let view = store.snapshot()?;
    each_record::<TransferError>(&*view, |key, value| {
        out.write(&record_head(key, value))?;
        out.write(key)?;
        out.write(value)?;
        report.records += 1;
        report.bytes += (key.len() + value.len()) as u64;
        if report.records.is_multiple_of(PROGRESS_INTERVAL) {
            progress(report.records, report.bytes);
        }
        Ok(())
    })?;
    out.write(&END.to_be_bytes())?;
    out.write(&report.records.to_be_bytes())?;
    out.write(&report.bytes.to_be_bytes())?;
    report.blake3 = *out.hash.finalize().as_bytes();
    out.write(&report.blake3)?;
    out.out
        .into_inner()
        .map_err(io::IntoInnerError::into_error)
        .and_then(|file| file.sync_all())
        .map_err(io)?;
    progress(report.records, report.bytes);
    Ok(report)
}

/// Reads an exported file sequentially, each record once.
fn read_export(
    path: &Path,
    mut work: impl FnMut(&[u8], &[u8]) -> Result<(), TransferError>,
) -> Result<TransferReport, TransferError> {
    let io = |source| TransferError::Io { path: path.to_owned(), source };
    let foreign = || TransferError::Foreign(path.to_owned());
    let mut input = BufReader::new(File::open(path).map_err(io)?);
    let mut hash = blake3::Hasher::new();
    let mut head = [0; HEAD_BYTES];
    input.read_exact(&mut head).map_err(|_| foreign())?;
    hash.update(&head);
    let mut report = TransferReport::default();
    if head[..8] != *MAGIC {
        return Err(foreign());
    }
    report.version = u64::from_be_bytes(head[8..16].try_into().map_err(|_| foreign())?);
    report.server_id.copy_from_slice(&head[16..]);
    if report.version != Mds::RECORDS_VERSION {
        let (found, known) = (report.version, Mds::RECORDS_VERSION);
        return Err(TransferError::Version { path: path.to_owned(), found, known });
    }
    let (mut key, mut value, mut last) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let damaged = || TransferError::Damaged { path: path.to_owned(), records: report.records };
        let mut length = [0; 2];
        input.read_exact(&mut length).map_err(|_| damaged())?;
        hash.update(&length);
        let length = u16::from_be_bytes(length);
        if length == END {
            let mut end = [0; END_BYTES];
            input.read_exact(&mut end).map_err(|_| damaged())?;
            hash.update(&end[..16]);
            report.blake3 = *hash.finalize().as_bytes();
            let progress = [report.records.to_be_bytes(), report.bytes.to_be_bytes()].concat();
            // The file ends here, and its counts and hash match.
            let whole =
                end[..16] == progress && end[16..] == report.blake3 && input.read(&mut [0]).map_err(io)? == 0;
            return if whole { Ok(report) } else { Err(damaged()) };
        }
        let mut value_length = [0; 4];
        input.read_exact(&mut value_length).map_err(|_| damaged())?;
        hash.update(&value_length);
        let (key_length, value_length) = (usize::from(length), u32::from_be_bytes(value_length) as usize);
        if key_length > KEY_MAX || value_length > VALUE_MAX {
            return Err(damaged());
        }
        key.resize(key_length, 0);
        value.resize(value_length, 0);
        input.read_exact(&mut key).and_then(|()| input.read_exact(&mut value)).map_err(|_| damaged())?;
        if report.records > 0 && key <= last {
            return Err(damaged());
        }
        hash.update(&key);
        hash.update(&value);
        work(&key, &value)?;
        report.records += 1;
        report.bytes += (key.len() + value.len()) as u64;
        last.clone_from(&key);
    }
}

/// Reads a whole exported file and returns its counts; writes nothing.
///
/// # Errors
/// [`TransferError`].
pub fn verify_export(from: &Path) -> Result<TransferReport, TransferError> {
    read_export(from, |_, _| Ok(()))
}

/// Imports an exported store into an empty one at `location`, or into the folder if `None`. The
/// folder must be that server's, with its keystore and certificate, and uses the new store
/// afterwards.
///
/// # Errors
/// [`TransferError`]; the folder then still uses its old store.
pub fn import(
    from: &Path,
    folder: &Path,
    location: Option<&Location>,
    secrets: &KeystoreSecrets,
    environment: &Environment,
    progress: ProgressCallback<'_>,
) -> Result<TransferReport, TransferError> {
    // The whole file is verified before anything is created.
    let whole = verify_export(from)?;
    let unnamed = folder.join(STORE_FILE_NEW);
    let there = match location {
        Some(location) => location.clone(),
        None if folder.join(STORE_FILE).exists() => {
            return Err(SetupError::StoreNotEmpty(folder.join(STORE_FILE).display().to_string()).into());
        }
        None => Location::file(&unnamed),
    };
    let store = there.open()?;
    if Mds::is_set_up(&*store).map_err(SetupError::Contents)? {
        return Err(SetupError::StoreNotEmpty(there.shown()).into());
    }
    clear_unfinished(&*store, &there.shown())?;
    let mut version = None;
    let mut batch: Vec<(Vec<u8>, Vec<u8>)> = vec![(IMPORTING_KEY.to_vec(), Vec::new())];
    let (mut size, mut done) = (0, (0, 0));
    read_export(from, |key, value| {
        if key == VERSION_KEY {
            version = Some(value.to_vec());
            return Ok(());
        }
        size += key.len() + value.len();
        done.0 += 1;
        done.1 += (key.len() + value.len()) as u64;
        batch.push((key.to_vec(), value.to_vec()));
        if size >= BATCH_BYTES || batch.len() >= BATCH {
            put_all(&*store, &batch)?;
            batch.clear();
            size = 0;
            progress(done.0, done.1);
        }
        Ok(())
    })?;
    put_all(&*store, &batch)?;
    let Some(version) = version else { return Err(TransferError::Foreign(from.to_owned())) };
    check(&*store, &whole, &version)?;
    // Fails if this folder's keystore does not open the store.
    let keystore = keystore_of(folder, &*store, secrets, environment)?;
    drop(take_over(store.clone(), &keystore, environment).map_err(SetupError::from)?);
    let mut tx = store.begin()?;
    tx.put(VERSION_KEY, &version)?;
    tx.delete(IMPORTING_KEY)?;
    tx.commit()?;
    drop(store);
    switch_store(folder, location, &unnamed)?;
    progress(whole.records, whole.bytes);
    Ok(whole)
}

fn put_all(store: &dyn MetaStore, batch: &[(Vec<u8>, Vec<u8>)]) -> Result<(), TransferError> {
    loop {
        let mut tx = store.begin()?;
        for (key, value) in batch {
            tx.put(key, value)?;
        }
        match tx.commit() {
            Err(MetaError::Conflict) => {}
            other => return Ok(other?),
        }
    }
}

/// Removes the records of an interrupted import. Any other content remains and is an error.
fn clear_unfinished(store: &dyn MetaStore, url: &str) -> Result<(), TransferError> {
    loop {
        let view = store.snapshot()?;
        let is_ours = view.get(IMPORTING_KEY)?.is_some();
        let page = view.scan(&[], &[0xFF], BATCH)?;
        drop(view);
        if page.is_empty() {
            return Ok(());
        }
        if !is_ours {
            return Err(SetupError::StoreNotEmpty(url.to_owned()).into());
        }
        let mut tx = store.begin()?;
        // The mark is removed last, so that an interruption here is detected as well.
        let last = page.len() < BATCH;
        for (key, _) in page.iter().filter(|(key, _)| last || key != IMPORTING_KEY) {
            tx.delete(key)?;
        }
        tx.commit()?;
    }
}

/// Compares the store with the file; the store has the import mark instead of the version.
fn check(store: &dyn MetaStore, whole: &TransferReport, version: &[u8]) -> Result<(), TransferError> {
    let mut hash = blake3::Hasher::new();
    hash.update(MAGIC);
    hash.update(&whole.version.to_be_bytes());
    hash.update(&whole.server_id);
    let (mut records, mut bytes) = (0u64, 0u64);
    let mut add = |key: &[u8], value: &[u8]| {
        hash.update(&record_head(key, value));
        hash.update(key);
        hash.update(value);
        records += 1;
        bytes += (key.len() + value.len()) as u64;
    };
    let mut passed = false;
    each_record::<TransferError>(&*store.snapshot()?, |key, value| {
        if key > VERSION_KEY && !passed {
            add(VERSION_KEY, version);
            passed = true;
        }
        if key != IMPORTING_KEY {
            add(key, value);
        }
        Ok(())
    })?;
    if !passed {
        add(VERSION_KEY, version);
    }
    hash.update(&END.to_be_bytes());
    hash.update(&records.to_be_bytes());
    hash.update(&bytes.to_be_bytes());
    if *hash.finalize().as_bytes() == whole.blake3 {
        Ok(())
    } else {
        Err(TransferError::Differs { expected: whole.records, found: records })
    }
}

/// Makes the folder use the new store and renames the old one in the folder.
fn switch_store(folder: &Path, location: Option<&Location>, unnamed: &Path) -> Result<(), TransferError> {
    match location {
        Some(location) => {
            location.keep(folder)?;
            let old = folder.join(STORE_FILE);
            if old.exists() {
                let left = folder.join(STORE_FILE_LEFT);
                sealstone_meta_store::EmbeddedMeta::rename(&old, &left).map_err(files::at(&left))?;
            }
        }
        None => {
            files::rename(unnamed, &folder.join(STORE_FILE))?;
            if folder.join(LOCATION_FILE).exists() {
                files::remove(&folder.join(LOCATION_FILE))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::init;
    use sealstone_mds_protocol::UserName;

    fn server(folder: &Path) {
        init(folder, &UserName::new("admin").unwrap(), &Environment::system()).unwrap();
    }

    fn quiet(_: u64, _: u64) {}

    fn imported(
        from: &Path,
        folder: &Path,
        location: Option<&Location>,
    ) -> Result<TransferReport, TransferError> {
        import(from, folder, location, &KeystoreSecrets::default(), &Environment::system(), &mut quiet)
    }

    #[test]
    fn store_moves_and_returns_with_every_record() {
        let folder = tempfile::tempdir().unwrap();
        let (data, elsewhere) = (folder.path().join("mds"), folder.path().join("elsewhere.redb"));
        server(&data);
        let all = |store: &dyn MetaStore| store.snapshot().unwrap().scan(&[], &[0xFF], usize::MAX).unwrap();
        let before = all(&*open_store(&data, None).unwrap());
        let file = folder.path().join("export");
        let written = export(&data, &file, &mut quiet).unwrap();
        assert_eq!(written.records, before.len() as u64);
        assert_eq!(verify_export(&file).unwrap(), written);
        assert!(matches!(export(&data, &file, &mut quiet), Err(TransferError::Exists(_))));
        let there = Location::file(&elsewhere);
        assert_eq!(imported(&file, &data, Some(&there)).unwrap(), written);
        assert!(!data.join(STORE_FILE).exists());
        assert_eq!(all(&*open_store(&data, None).unwrap()), before, "a start finds them there");
        crate::setup::open(&data, sealstone_mds::Config::default()).unwrap();
        let again = imported(&file, &data, Some(&there)).unwrap_err();
        assert!(matches!(again, TransferError::Folder(SetupError::StoreNotEmpty(_))), "{again:?}");
        let back = folder.path().join("back");
        export(&data, &back, &mut quiet).unwrap();
        imported(&back, &data, None).unwrap();
        assert!(!data.join(LOCATION_FILE).exists());
        assert_eq!(all(&*open_store(&data, None).unwrap()).len(), before.len());
    }

    #[test]
    fn damaged_export_imports_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("mds");
        server(&data);
        let file = folder.path().join("export");
        export(&data, &file, &mut quiet).unwrap();
        let whole = std::fs::read(&file).unwrap();
        let there = Location::file(&folder.path().join("elsewhere.redb"));
        let mut wrong = vec![whole[..whole.len() - 1].to_vec(), [&whole[..], &[0]].concat()];
        for at in (0..whole.len()).step_by(whole.len() / 200) {
            wrong.push(whole[..at].to_vec());
            let mut changed = whole.clone();
            changed[at] ^= 1;
            wrong.push(changed);
        }
        for bytes in wrong {
            std::fs::write(&file, &bytes).unwrap();
            let error = imported(&file, &data, Some(&there)).unwrap_err();
            let named = matches!(
                error,
                TransferError::Damaged { .. } | TransferError::Foreign(_) | TransferError::Version { .. }
            );
            assert!(named, "{error:?}");
        }
        assert!(!folder.path().join("elsewhere.redb").exists());
        assert!(data.join(STORE_FILE).exists());
    }

    #[test]
    fn interrupted_import_repeats_and_foreign_store_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("mds");
        server(&data);
        let file = folder.path().join("export");
        export(&data, &file, &mut quiet).unwrap();
        let there = Location::file(&folder.path().join("elsewhere.redb"));
        let put = |pairs: &[(&[u8], &[u8])]| {
            let store = there.open().unwrap();
            let mut tx = store.begin().unwrap();
            for (key, value) in pairs {
                tx.put(key, value).unwrap();
            }
            tx.commit().unwrap();
        };
        put(&[(b"a", b"somebody's")]);
        let error = imported(&file, &data, Some(&there)).unwrap_err();
        assert!(matches!(error, TransferError::Folder(SetupError::StoreNotEmpty(_))), "{error:?}");
        put(&[(IMPORTING_KEY, b"")]);
        imported(&file, &data, Some(&there)).unwrap();
        let store = open_store(&data, None).unwrap();
        assert_eq!(store.snapshot().unwrap().get(b"a").unwrap(), None);
        assert_eq!(store.snapshot().unwrap().get(IMPORTING_KEY).unwrap(), None);
    }

    #[test]
    fn import_into_another_servers_folder_fails() {
        let folder = tempfile::tempdir().unwrap();
        let (data, other) = (folder.path().join("mds"), folder.path().join("other"));
        server(&data);
        server(&other);
        let file = folder.path().join("export");
        export(&data, &file, &mut quiet).unwrap();
        let there = Location::file(&folder.path().join("elsewhere.redb"));
        let error = imported(&file, &other, Some(&there)).unwrap_err();
        assert!(matches!(error, TransferError::Folder(SetupError::Adopt(_))), "{error:?}");
        assert!(!other.join(LOCATION_FILE).exists());
    }
}
