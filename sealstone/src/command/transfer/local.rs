//! Entries of this machine that a get makes.
//!
//! Does: make files, directories, links below one directory, each under a temporary name until it is whole. Does not:
//! follow symbolic links below that directory, so nothing outside it is written, whatever lies or is stored in it.
//! Contract: a temporary file goes when its owner is dropped, and all of them by [`remove_temporaries`]. One that a killed
//! process left is removed by a later transfer into its directory.

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

use crate::command::tree::TreePath;
use crate::daemon::random;
use crate::text::ShownPath as _;

/// Temporary names begin so.
pub(super) const TEMPORARY_PREFIX: &str = ".sealstone-";
/// A temporary file that nobody has locked is removed when it is so old, seconds.
const STALE_AFTER_S: i64 = 600;
/// Permission bits that a transfer carries: of a directory also set-group and sticky bit.
pub(super) const FILE_MODE: u16 = 0o777;
/// See [`FILE_MODE`].
pub(super) const DIRECTORY_MODE: u16 = 0o3777;
/// Mode of a directory that a transfer fills: for its owner alone. The sticky bit shows that no
/// transfer finished it, so that the next one gives it its mode.
pub(super) const UNFINISHED_MODE: u16 = 0o1700;
/// Bytes of the names of a file's extended attributes at most, and of one value; Linux has the same limits.
const XATTR_BYTES_MAX: usize = 64 << 10;
/// Extended attributes that give rights to the bytes of a file, or vouch for them.
const OF_OLD_BYTES: [&CStr; 3] = [c"security.capability", c"security.ima", c"security.evm"];
/// Bytes of an access control list that is read; a longer one counts as one that gives the owning
/// group nothing.
const ACL_BYTES_MAX: usize = 4 << 10;
/// The extended attribute that has the access control list of a file, as Linux encodes it.
const ACL_XATTR: &CStr = c"system.posix_acl_access";
/// Nanoseconds of a second.
const NS: i64 = 1_000_000_000;

/// Directory and name of each temporary file of this process.
static TEMPORARIES: Mutex<Option<BTreeMap<u64, (Arc<OwnedFd>, CString)>>> = Mutex::new(Some(BTreeMap::new()));

/// Removes all temporary files of this process and makes no more.
pub(super) fn remove_temporaries() {
    for (directory, name) in TEMPORARIES.lock().take().unwrap_or_default().into_values() {
        let _ = sys::unlinkat(&*directory, &name, AtFlags::empty());
    }
}

/// What a transfer found in the place of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectoryState {
    /// Nothing: the directory was made.
    Made,
    /// A directory that a transfer made and did not finish.
    Unfinished,
    /// Another directory.
    Existing,
}

impl DirectoryState {
    /// The state of a directory that exists, by its mode. A set-group bit may be inherited.
    pub(super) const fn of_mode(mode: u16) -> Self {
        if mode & 0o5777 == UNFINISHED_MODE { Self::Unfinished } else { Self::Existing }
    }

    /// Whether the directory gets the mode of its source.
    pub(super) const fn gets_mode(self) -> bool {
        matches!(self, Self::Made | Self::Unfinished)
    }

    fn of(opened: impl AsFd) -> io::Result<Self> {
        let stat = sys::fstat(opened)?;
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
        Ok(if is_own { Self::of_mode((stat.st_mode & 0o7777) as u16) } else { Self::Existing })
    }
}

/// A directory that a get fills.
#[derive(Clone, Debug)]
pub(super) struct LocalTree {
    root: Arc<OwnedFd>,
    path: PathBuf,
}

/// Where an entry goes: its directory, open, and its name.
#[derive(Clone, Debug)]
pub(super) struct Place {
    directory: Arc<OwnedFd>,
    name: CString,
    path: PathBuf,
}

fn c_name(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Opens a directory by its name in another one, and not through a symbolic link.
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
    /// Opens the directory; its own path may lead through symbolic links.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Arc::new(sys::openat(CWD, path, flags, Mode::empty())?);
        Ok(Self { root, path: path.to_owned() })
    }

    /// Stands for a directory that a dry run would make: only its path is used.
    pub(super) fn planned(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), ..Self::open(Path::new("."))? })
    }

    /// Makes the directory if it does not exist, and opens it; its own path may lead through
    /// symbolic links.
    pub(super) fn make(path: &Path) -> io::Result<(Self, DirectoryState)> {
        let is_made = match sys::mkdirat(CWD, path, unfinished()) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let tree = Self::open(path)?;
        let state = if is_made { DirectoryState::Made } else { DirectoryState::of(&*tree.root)? };
        Ok((tree, state))
    }

    /// The directory below as a tree of its own. Symbolic links are not followed.
    pub(super) fn subtree(&self, below: &TreePath) -> io::Result<Self> {
        Ok(Self { root: self.directory(below)?, path: self.path(below) })
    }

    /// The path of an entry, for messages.
    pub(super) fn path(&self, below: &TreePath) -> PathBuf {
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

    /// Where an entry below goes; its directory must exist.
    pub(super) fn place(&self, below: &TreePath) -> io::Result<Place> {
        let Some((above, name)) = below.split_last() else {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        };
        let name = c_name(OsStr::from_bytes(name.as_bytes()))?;
        Ok(Place { directory: self.directory(&above)?, name, path: self.path(below) })
    }

    /// Makes a directory that only its owner may use until [`LocalTree::finish_directory`], unless
    /// it exists.
    pub(super) fn make_directory(&self, below: &TreePath) -> io::Result<DirectoryState> {
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
    pub(super) fn set_directory_xattrs(
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

    /// Gives a directory its mode, if one is given, and its times.
    pub(super) fn finish_directory(
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

    /// Removes the temporary files that killed processes left in a directory.
    pub(super) fn remove_stale(&self, below: &TreePath) -> io::Result<()> {
        remove_stale(&*self.directory(below)?)
    }
}

/// Times of last read and last change, nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) atime_ns: i64,
    pub(super) mtime_ns: i64,
}

impl Times {
    fn stamps(self) -> Timestamps {
        let stamp = |ns: i64| Timespec { tv_sec: ns.div_euclid(NS), tv_nsec: ns.rem_euclid(NS) as _ };
        Timestamps { last_access: stamp(self.atime_ns), last_modification: stamp(self.mtime_ns) }
    }
}

/// What a file has besides its bytes.
#[derive(Clone, Debug)]
pub(super) struct FileAttributes {
    /// Permission bits as they are stored.
    pub(super) mode: u16,
    /// Whether an existing file gets exactly them, instead of keeping its own as far as they allow.
    pub(super) exact: bool,
    pub(super) times: Times,
    /// Extended attributes to be set.
    pub(super) xattrs: Vec<(CString, Vec<u8>)>,
}

impl Place {
    /// Where a path of this machine leads. A symbolic link is followed: the file that it leads to is meant.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let is_link = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
        let path = if is_link { std::fs::canonicalize(path)? } else { path.to_owned() };
        let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::IsADirectory))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let tree = LocalTree::open(folder)?;
        Ok(Self { directory: tree.root, name: c_name(name)?, path })
    }

    /// The path, for messages.
    pub(super) fn shown(&self) -> String {
        self.path.shown().into_owned()
    }

    /// What has the name; a symbolic link is not followed.
    pub(super) fn existing(&self) -> io::Result<Option<Stat>> {
        match sys::statat(&*self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the temporary files that killed processes left beside it.
    pub(super) fn remove_stale(&self) -> io::Result<()> {
        remove_stale(&self.directory)
    }

    /// Makes an empty file under a temporary name, for its owner alone.
    pub(super) fn temporary(&self) -> io::Result<Temporary> {
        let mut temporary = Temporary::register(&self.directory)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = sys::openat(&*self.directory, &temporary.name, flags, Mode::RUSR | Mode::WUSR)?;
        temporary.needs_registration()?;
        // Says that this process lives; a file system without locks lets stale files be judged by age alone.
        let _ = sys::flock(&opened, FlockOperation::NonBlockingLockExclusive);
        temporary.file = Some(File::from(opened));
        Ok(temporary)
    }

    /// Makes a symbolic link, in the place of whatever is no directory. False if it is there already.
    pub(super) fn symlink(&self, target: &[u8], times: Times, replace: bool) -> io::Result<bool> {
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

    /// Gives a file that exists this name too, in the place of whatever is no directory. False if it has it already.
    pub(super) fn link(&self, existing: &Self, replace: bool) -> io::Result<bool> {
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

/// A file under a temporary name.
pub(super) struct Temporary {
    number: u64,
    directory: Arc<OwnedFd>,
    name: CString,
    file: Option<File>,
}

impl Temporary {
    /// Chooses a name. Nothing has it yet.
    fn register(directory: &Arc<OwnedFd>) -> io::Result<Self> {
        let number = u64::from_ne_bytes(random());
        let name = CString::new(format!("{TEMPORARY_PREFIX}{number:016x}")).expect("digits and letters");
        match &mut *TEMPORARIES.lock() {
            Some(all) => all.insert(number, (directory.clone(), name.clone())),
            None => return Err(io::Error::from(io::ErrorKind::Interrupted)),
        };
        Ok(Self { number, directory: directory.clone(), name, file: None })
    }

    /// Removes what was made meanwhile and fails, if a signal had all temporary files removed
    /// before it was made.
    fn needs_registration(&self) -> io::Result<()> {
        if TEMPORARIES.lock().is_some() {
            return Ok(());
        }
        let _ = sys::unlinkat(&*self.directory, &self.name, AtFlags::empty());
        Err(io::Error::from(io::ErrorKind::Interrupted))
    }

    /// The file.
    pub(super) fn file(&self) -> io::Result<File> {
        self.file.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?.try_clone()
    }

    fn rename_to(mut self, place: &Place, replace: bool) -> io::Result<()> {
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        match sys::renameat_with(&*self.directory, &self.name, &*place.directory, &place.name, flags) {
            Ok(()) => {}
            // Not every file system can refuse in the same step.
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

    /// Gives the file its attributes and its name. A file that it replaces hands on its owner, group and extended
    /// attributes, and unless the mode is exact its mode, as far as the new one allows.
    pub(super) fn finish(self, place: &Place, attributes: &FileAttributes, replace: bool) -> io::Result<()> {
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

/// Gives a file the owner and group of another one, as far as this process may.
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

/// Copies the extended attributes of a file, access control lists among them, as far as this
/// process may. File capabilities and signatures were given to the old bytes: a write would remove
/// them too.
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

/// The extended attributes of a file in the namespace `user`.
pub(super) fn user_xattrs(file: impl AsFd) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let length = match sys::flistxattr(&file, &mut names[..]) {
        Ok(length) => length,
        // The file system has none.
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

/// Permission bits of a source. Where it has an access control list, the group bits of its mode are
/// the mask of the list; they are reduced to what the owning group has, since lists are not
/// carried.
pub(super) fn source_mode(path: &Path, metadata: &Metadata) -> u16 {
    limited(metadata, |list| sys::getxattr(path, ACL_XATTR, list))
}

/// The same of an open file.
pub(super) fn open_mode(file: &File, metadata: &Metadata) -> u16 {
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

/// The group bits that an access control list gives the owning group: after a version of four
/// bytes, entries of a tag, permissions and a number.
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

/// The name that an operand ends in; none for `/`, and for what ends in `.` or `..`.
pub(super) fn last_name(path: &OsStr) -> Option<OsString> {
    let bytes = path.as_bytes();
    let last = bytes.split(|byte| *byte == b'/').rfind(|name| !name.is_empty())?;
    (last != b"." && last != b"..").then(|| OsString::from_vec(last.to_vec()))
}
