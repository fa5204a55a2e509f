//! Local entries that `get` creates.
//!
//! Does: creates files, directories and links below one directory, each under a temporary name
//! until it is complete.
//! Does not: follow symbolic links below that directory, so nothing outside of it is written.
//! Contract: dropping a [`Temporary`] removes its file, and [`remove_temporaries`] removes all of
//! them. Files of a killed process are removed by a later transfer to the directory.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::fs::{
    self as sys, AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, RawDir, RenameFlags, Stat, Timespec,
    Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use sealstone_failure::text::ShownPath as _;

use crate::random::random_number;
use crate::tree::TreePath;

/// Prefix of temporary names.
pub(crate) const TEMPORARY_PREFIX: &str = ".sealstone-";
/// Age from which an unlocked temporary file is removed, seconds.
const STALE_AFTER_S: i64 = 600;
/// Permission bits that a transfer keeps; of a directory also set-group and sticky bit.
pub(crate) const FILE_MODE: u16 = 0o777;
/// See [`FILE_MODE`].
pub(crate) const DIRECTORY_MODE: u16 = 0o3777;
/// Mode of a directory during a transfer. The sticky bit marks it as unfinished, so that the next
/// transfer sets its mode.
pub(crate) const UNFINISHED_MODE: u16 = 0o1700;
/// Maximum bytes of the names of a file's extended attributes, and of one value, as in Linux.
const XATTR_BYTES_MAX: usize = 64 << 10;
/// Extended attributes that grant rights to the bytes of a file, or sign them.
const OF_OLD_BYTES: [&CStr; 3] = [c"security.capability", c"security.ima", c"security.evm"];
/// Maximum bytes of an access control list. A longer one is treated as granting the owning group no
/// rights.
const ACL_BYTES_MAX: usize = 4 << 10;
/// Extended attribute with the access control list of a file, in the encoding of Linux.
const ACL_XATTR: &CStr = c"system.posix_acl_access";
/// Nanoseconds per second.
const NS: i64 = 1_000_000_000;

/// Directory and name of each temporary file of this process.
static TEMPORARIES: Mutex<Option<BTreeMap<u64, (Arc<OwnedFd>, CString)>>> = Mutex::new(Some(BTreeMap::new()));

/// Removes all temporary files of this process and prevents new ones.
pub fn remove_temporaries() {
    for (directory, name) in TEMPORARIES.lock().take().unwrap_or_default().into_values() {
        let _ = sys::unlinkat(&*directory, &name, AtFlags::empty());
    }
}

/// State of a directory before a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryState {
    /// The directory was created.
    Made,
    /// An earlier transfer created the directory and did not finish it.
    Unfinished,
    /// The directory existed.
    Existing,
}

impl DirectoryState {
    /// Returns the state of an existing directory, by its mode. A set-group bit can be inherited.
    pub(crate) const fn of_mode(mode: u16) -> Self {
        if mode & 0o5777 == UNFINISHED_MODE { Self::Unfinished } else { Self::Existing }
    }

    /// Whether the directory gets the mode of its source.
    pub(crate) const fn gets_mode(self) -> bool {
        matches!(self, Self::Made | Self::Unfinished)
    }

    fn of(opened: impl AsFd) -> io::Result<Self> {
        let stat = sys::fstat(opened)?;
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
        Ok(if is_own { Self::of_mode((stat.st_mode & 0o7777) as u16) } else { Self::Existing })
    }
}

/// The directory of a get.
#[derive(Clone, Debug)]
pub(crate) struct LocalTree {
    root: Arc<OwnedFd>,
    path: PathBuf,
}

/// Destination of an entry: its open directory and its name.
#[derive(Clone, Debug)]
pub(crate) struct LocalPlace {
    directory: Arc<OwnedFd>,
    name: CString,
    path: PathBuf,
}

fn c_name(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Opens a subdirectory. Symbolic links are not followed.
fn open_in(directory: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match sys::openat(directory, name, flags, Mode::empty()) {
        Ok(opened) => Ok(opened),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            Err(io::Error::other("is no directory here, or a symbolic link, which is not followed"))
        }
        Err(error) => Err(error.into()),
    }
}

fn unfinished() -> Mode {
    Mode::from_bits_truncate(u32::from(UNFINISHED_MODE))
}

impl LocalTree {
    /// Opens the directory. Symbolic links in its own path are followed.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Arc::new(sys::openat(CWD, path, flags, Mode::empty())?);
        Ok(Self { root, path: path.to_owned() })
    }

    /// Returns a placeholder for a directory that a dry run would create; only its path is used.
    pub(crate) fn planned(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), ..Self::open(Path::new("."))? })
    }

    /// Creates the directory if it does not exist, and opens it. Symbolic links in its own path are
    /// followed.
    pub(crate) fn make(path: &Path) -> io::Result<(Self, DirectoryState)> {
        let is_made = match sys::mkdirat(CWD, path, unfinished()) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let tree = Self::open(path)?;
        let state = if is_made { DirectoryState::Made } else { DirectoryState::of(&*tree.root)? };
        Ok((tree, state))
    }

    /// Returns a subdirectory as a tree. Symbolic links are not followed.
    pub(crate) fn subtree(&self, below: &TreePath) -> io::Result<Self> {
        Ok(Self { root: self.directory(below)?, path: self.path(below) })
    }

    /// Returns the path of an entry, for messages.
    pub(crate) fn path(&self, below: &TreePath) -> PathBuf {
        if below.is_top() { self.path.clone() } else { self.path.join(below.as_path()) }
    }

    fn directory(&self, below: &TreePath) -> io::Result<Arc<OwnedFd>> {
        let mut directory = self.root.clone();
        for name in below.names() {
            let name = c_name(OsStr::from_bytes(name.as_bytes()))?;
            directory = Arc::new(open_in(&directory, &name)?);
        }
        Ok(directory)
    }

    /// Returns the destination of an entry, whose directory must exist.
    pub(crate) fn place(&self, below: &TreePath) -> io::Result<LocalPlace> {
        let Some((above, name)) = below.split_last() else {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        };
        let name = c_name(OsStr::from_bytes(name.as_bytes()))?;
        Ok(LocalPlace { directory: self.directory(&above)?, name, path: self.path(below) })
    }

    /// Creates a private directory if it does not exist; [`LocalTree::finish_directory`] sets its
    /// mode.
    pub(crate) fn make_directory(&self, below: &TreePath) -> io::Result<DirectoryState> {
        let place = self.place(below)?;
        match sys::mkdirat(&*place.directory, &place.name, unfinished()) {
            Ok(()) => Ok(DirectoryState::Made),
            Err(Errno::EXIST) => DirectoryState::of(open_in(&place.directory, &place.name)?),
            Err(error) => Err(error.into()),
        }
    }

    fn open_directory(&self, below: &TreePath) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(match below.is_top() {
            true => sys::openat(&*self.root, c".", flags, Mode::empty())?,
            false => {
                let place = self.place(below)?;
                sys::openat(&*place.directory, &place.name, flags, Mode::empty())?
            }
        })
    }

    /// Sets extended attributes of a directory.
    pub(crate) fn set_directory_xattrs(
        &self,
        below: &TreePath,
        xattrs: &[(CString, Vec<u8>)],
    ) -> io::Result<()> {
        let opened = self.open_directory(below)?;
        for (name, value) in xattrs {
            sys::fsetxattr(&opened, name, value, XattrFlags::empty())?;
        }
        Ok(())
    }

    /// Sets the times of a directory, and its mode if one is given.
    pub(crate) fn finish_directory(
        &self,
        below: &TreePath,
        mode: Option<u16>,
        times: Times,
    ) -> io::Result<()> {
        let opened = self.open_directory(below)?;
        if let Some(mode) = mode {
            sys::fchmod(&opened, Mode::from_bits_truncate(u32::from(mode)))?;
        }
        Ok(sys::futimens(&opened, &times.stamps())?)
    }

    /// Removes temporary files of killed processes in a directory.
    pub(crate) fn remove_stale(&self, below: &TreePath) -> io::Result<()> {
        remove_stale(&*self.directory(below)?)
    }
}

/// Access and modification time, nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) atime_ns: i64,
    pub(crate) mtime_ns: i64,
}

impl Times {
    fn stamps(self) -> Timestamps {
        let stamp = |ns: i64| Timespec { tv_sec: ns.div_euclid(NS), tv_nsec: ns.rem_euclid(NS) as _ };
        Timestamps { last_access: stamp(self.atime_ns), last_modification: stamp(self.mtime_ns) }
    }
}

/// Attributes of a fetched file.
#[derive(Clone, Debug)]
pub(crate) struct FileAttributes {
    /// Stored permission bits.
    pub(crate) mode: u16,
    /// Whether an existing file gets exactly these bits. Otherwise it keeps its own, restricted to
    /// them.
    pub(crate) exact: bool,
    pub(crate) times: Times,
    /// Extended attributes to be set.
    pub(crate) xattrs: Vec<(CString, Vec<u8>)>,
}

impl LocalPlace {
    /// Returns the destination of a local path. A symbolic link is followed.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let is_link = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
        let path = if is_link { std::fs::canonicalize(path)? } else { path.to_owned() };
        let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::IsADirectory))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let tree = LocalTree::open(folder)?;
        Ok(Self { directory: tree.root, name: c_name(name)?, path })
    }

    /// Returns the path, for messages.
    pub(crate) fn shown(&self) -> String {
        self.path.shown().into_owned()
    }

    /// Returns the existing entry. A symbolic link is not followed.
    pub(crate) fn existing(&self) -> io::Result<Option<Stat>> {
        match sys::statat(&*self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes temporary files of killed processes in the same directory.
    pub(crate) fn remove_stale(&self) -> io::Result<()> {
        remove_stale(&self.directory)
    }

    /// Creates an empty private file under a temporary name.
    pub(crate) fn temporary(&self) -> io::Result<Temporary> {
        let mut temporary = Temporary::register(&self.directory)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = sys::openat(&*self.directory, &temporary.name, flags, Mode::RUSR | Mode::WUSR)?;
        temporary.needs_registration()?;
        // The lock shows that this process is alive; without locks only the age of a file decides.
        let _ = sys::flock(&opened, FlockOperation::NonBlockingLockExclusive);
        temporary.file = Some(File::from(opened));
        Ok(temporary)
    }

    /// Creates a symbolic link, which can replace an entry that is no directory. Returns false if
    /// the link exists.
    pub(crate) fn symlink(&self, target: &[u8], times: Times, replace: bool) -> io::Result<bool> {
        let target = c_name(OsStr::from_bytes(target))?;
        let made = match sys::symlinkat(&target, &*self.directory, &self.name) {
            Ok(()) => true,
            Err(Errno::EXIST) if self.leads_to(&target) => false,
            Err(Errno::EXIST) if replace => {
                let temporary = Temporary::register(&self.directory)?;
                sys::symlinkat(&target, &*self.directory, &temporary.name)?;
                temporary.needs_registration()?;
                temporary.rename_to(self, true)?;
                true
            }
            Err(error) => return Err(error.into()),
        };
        sys::utimensat(&*self.directory, &self.name, &times.stamps(), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(made)
    }

    fn leads_to(&self, target: &CString) -> bool {
        sys::readlinkat(&*self.directory, &self.name, Vec::new()).is_ok_and(|found| found == *target)
    }

    /// Creates a hard link, which can replace an entry that is no directory. Returns false if the
    /// link exists.
    pub(crate) fn link(&self, existing: &Self, replace: bool) -> io::Result<bool> {
        let (from, to) = (&*existing.directory, &*self.directory);
        match sys::linkat(from, &existing.name, to, &self.name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => {
                let identity =
                    |place: &Self| place.existing().map(|stat| stat.map(|stat| (stat.st_dev, stat.st_ino)));
                if identity(self)? == identity(existing)? {
                    return Ok(false);
                }
                if !replace {
                    return Err(Errno::EXIST.into());
                }
                let temporary = Temporary::register(&self.directory)?;
                sys::linkat(from, &existing.name, to, &temporary.name, AtFlags::empty())?;
                temporary.needs_registration()?;
                temporary.rename_to(self, true)?;
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// A file under a temporary name. Dropping it removes the file.
pub(crate) struct Temporary {
    number: u64,
    directory: Arc<OwnedFd>,
    name: CString,
    file: Option<File>,
}

impl Temporary {
    /// Chooses an unused name.
    fn register(directory: &Arc<OwnedFd>) -> io::Result<Self> {
        let number = random_number();
        let name = CString::new(format!("{TEMPORARY_PREFIX}{number:016x}")).expect("digits and letters");
        match &mut *TEMPORARIES.lock() {
            Some(all) => all.insert(number, (directory.clone(), name.clone())),
            None => return Err(io::Error::from(io::ErrorKind::Interrupted)),
        };
        Ok(Self { number, directory: directory.clone(), name, file: None })
    }

    /// Removes the new file and fails if a signal has removed all temporary files in the meantime.
    fn needs_registration(&self) -> io::Result<()> {
        if TEMPORARIES.lock().is_some() {
            return Ok(());
        }
        let _ = sys::unlinkat(&*self.directory, &self.name, AtFlags::empty());
        Err(io::Error::from(io::ErrorKind::Interrupted))
    }

    /// Returns the file.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?.try_clone()
    }

    fn rename_to(mut self, place: &LocalPlace, replace: bool) -> io::Result<()> {
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        match sys::renameat_with(&*self.directory, &self.name, &*place.directory, &place.name, flags) {
            Ok(()) => {}
            // Some file systems do not support RENAME_NOREPLACE.
            Err(Errno::INVAL | Errno::NOSYS) if !replace => {
                if place.existing()?.is_some() {
                    return Err(Errno::EXIST.into());
                }
                sys::renameat(&*self.directory, &self.name, &*place.directory, &place.name)?;
            }
            Err(error) => return Err(error.into()),
        }
        self.forget();
        Ok(())
    }

    /// Sets the attributes of the file and renames it. Owner, group and extended attributes of a
    /// replaced file are kept, and unless `exact` is set its mode, restricted to the new one.
    pub(crate) fn finish(
        self,
        place: &LocalPlace,
        attributes: &FileAttributes,
        replace: bool,
    ) -> io::Result<()> {
        let file = self.file()?;
        let old = place.existing()?.filter(|old| sys::FileType::from_raw_mode(old.st_mode).is_file());
        let mut mode = attributes.mode & FILE_MODE;
        if let Some(old) = &old {
            if !attributes.exact {
                mode &= (old.st_mode & 0o777) as u16;
            }
            keep_owner(&file, old)?;
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            if let Ok(old) = sys::openat(&*place.directory, &place.name, flags, Mode::empty()) {
                copy_xattrs(&old, &file);
            }
        }
        for (name, value) in &attributes.xattrs {
            sys::fsetxattr(&file, name, value, XattrFlags::empty())?;
        }
        sys::fchmod(&file, Mode::from_bits_truncate(u32::from(mode)))?;
        sys::futimens(&file, &attributes.times.stamps())?;
        self.rename_to(place, replace)
    }

    fn forget(&mut self) -> bool {
        TEMPORARIES.lock().as_mut().is_some_and(|all| all.remove(&self.number).is_some())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.forget() {
            let _ = sys::unlinkat(&*self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// Copies owner and group of a file, if this process is allowed to.
fn keep_owner(file: &File, old: &Stat) -> io::Result<()> {
    let own = sys::fstat(file)?;
    if own.st_gid != old.st_gid {
        let _ = sys::fchown(file, None, Some(Gid::from_raw(old.st_gid)));
    }
    if own.st_uid != old.st_uid {
        let _ = sys::fchown(file, Some(Uid::from_raw(old.st_uid)), None);
    }
    Ok(())
}

/// Copies the extended attributes of a file, including access control lists, if this process is
/// allowed to. Skips those that are for the old bytes: a write would remove them too.
fn copy_xattrs(from: &OwnedFd, to: &File) {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let Ok(length) = sys::flistxattr(from, &mut names[..]) else { return };
    let mut value = vec![0; XATTR_BYTES_MAX];
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        if OF_OLD_BYTES.contains(&name) {
            continue;
        }
        if let Ok(length) = sys::fgetxattr(from, name, &mut value[..]) {
            let _ = sys::fsetxattr(to, name, &value[..length], XattrFlags::empty());
        }
    }
}

/// Returns the extended attributes of a file in the namespace `user`.
pub(crate) fn user_xattrs(file: impl AsFd) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let length = match sys::flistxattr(&file, &mut names[..]) {
        Ok(length) => length,
        // The file system does not support them.
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let (mut found, mut value) = (Vec::new(), vec![0; XATTR_BYTES_MAX]);
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        if name.to_bytes().starts_with(b"user.") {
            let length = sys::fgetxattr(&file, name, &mut value[..])?;
            found.push((name.to_bytes().to_vec(), value[..length].to_vec()));
        }
    }
    Ok(found)
}

/// Returns the permission bits of a source. The group bits of a file with an access control list
/// are the mask of the list; they are reduced to the bits of the owning group, since lists are not
/// transferred.
pub(crate) fn source_mode(path: &Path, metadata: &Metadata) -> u16 {
    limited(metadata, |list| sys::getxattr(path, ACL_XATTR, list))
}

/// Returns the permission bits of an open source, as [`source_mode`] does.
pub(crate) fn open_mode(file: &File, metadata: &Metadata) -> u16 {
    limited(metadata, |list| sys::fgetxattr(file, ACL_XATTR, list))
}

fn limited(metadata: &Metadata, read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) -> u16 {
    let mode = (metadata.mode() & 0o7777) as u16;
    if mode & 0o070 == 0 || metadata.is_symlink() {
        return mode;
    }
    let mut list = [0; ACL_BYTES_MAX];
    match read(&mut list) {
        Ok(length) => mode & (0o7707 | owning_group(&list[..length])),
        Err(Errno::RANGE) => mode & 0o7707,
        Err(_) => mode,
    }
}

/// Returns the group bits of the owning group in an access control list: a version of four bytes,
/// then entries of a tag, permissions and an id.
fn owning_group(list: &[u8]) -> u16 {
    const OWNING_GROUP: [u8; 2] = 4u16.to_le_bytes();
    let entries = list.get(4..).unwrap_or_default().chunks_exact(8);
    let own = entries.into_iter().find(|entry| entry[..2] == OWNING_GROUP);
    own.map_or(0, |entry| u16::from(entry[2] & 7) << 3)
}

fn remove_stale(directory: &OwnedFd) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listed = sys::openat(directory, c".", flags, Mode::empty())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let mut buffer = [MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(listed, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        let Some(number) = name.to_bytes().strip_prefix(TEMPORARY_PREFIX.as_bytes()) else { continue };
        if number.len() != 16 || !number.iter().all(u8::is_ascii_hexdigit) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(opened) = sys::openat(directory, name, flags, Mode::empty()) else { continue };
        let old = sys::fstat(&opened).is_ok_and(|stat| now.saturating_sub(stat.st_mtime) > STALE_AFTER_S);
        if old && sys::flock(&opened, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = sys::unlinkat(directory, name, AtFlags::empty());
        }
    }
    Ok(())
}

/// Returns the last name of an operand; `None` for `/` and for paths that end in `.` or `..`.
pub(crate) fn last_name(path: &OsStr) -> Option<OsString> {
    let bytes = path.as_bytes();
    let last = bytes.split(|byte| *byte == b'/').rfind(|name| !name.is_empty())?;
    (last != b"." && last != b"..").then(|| OsString::from_vec(last.to_vec()))
}
