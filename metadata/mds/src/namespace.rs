//! Directories, files, names: once, above the seam.
//!
//! Does: turn one request into the changes of one transaction, permissions checked. Does not: begin or commit it,
//! place objects, sign anything.
//! Contract: every function leaves the transaction consistent or returns an error, after which it must be dropped.
//! Truth: docs/standards/mds.md §5.3, §5.4.

use sealstone_mds_protocol::{
    Checksum, DirEntry, ErrorCode, FILE_SIZE_MAX, FileKind, FilePath, GroupName, InodeId, Layout, Name,
    ObjectRef, PAGE_MAX, Stat, UserName, Wire, Writer,
};

use crate::access::{MODE_MASK, Principal, Right, SETGID, STICKY};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::records::{Inode, count, counter, load, next_number, save};
use crate::store::{MetaError, Snapshot, Transaction};

mod create;
mod delegate;
mod owner;
mod remove;
mod rename;

pub(crate) use create::{NewIntent, abandon, begin_create, commit, end_creates, expire, prolong};
pub(crate) use delegate::{Delegated, delegate, delegate_writing};
pub(crate) use owner::{NewOwner, set_mode, set_owner};
pub(crate) use remove::remove;
pub(crate) use rename::rename;

/// The root directory.
pub const ROOT: InodeId = InodeId(1);
/// Bytes of entries in one page at most; leaves room in a frame for one more entry of the largest size.
const PAGE_BYTES: usize = 48 * 1024;
/// Directories between one and the root at most; only renames can build more than a path can name.
const DEPTH_MAX: usize = 4096;

/// A path, resolved as far as its last name.
pub(crate) struct Place {
    pub(crate) directory: InodeId,
    pub(crate) directory_inode: Inode,
    pub(crate) name: Name,
}

/// Makes the root directory of a new server.
pub(crate) fn make_root(tx: &mut dyn Transaction, owner: &UserName, now_ms: u64) -> Result<()> {
    let root = directory(owner, None, STICKY | 0o777, ROOT, now_ms);
    save(tx, &keys::inode(ROOT), &root)?;
    save(tx, &keys::meta(counter::INODE), &(ROOT.0 + 1))?;
    Ok(count(tx, counter::DIRECTORIES, 1)?)
}

/// The group of what is made in a directory.
fn inherited_group(directory: &Inode) -> Option<GroupName> {
    if directory.mode & SETGID == 0 { None } else { directory.group.clone() }
}

fn directory(owner: &UserName, group: Option<GroupName>, mode: u16, parent: InodeId, now_ms: u64) -> Inode {
    Inode {
        kind: FileKind::Directory,
        mode: mode & MODE_MASK,
        owner: owner.clone(),
        group,
        size: 0,
        version: 0,
        mtime_ms: now_ms,
        ctime_ms: now_ms,
        created_ms: now_ms,
        parent,
        layout: None,
        checksum: None,
        create_grants_until_ms: 0,
    }
}

/// An inode that must exist, since something points at it.
pub(crate) fn inode<S: Snapshot + ?Sized>(view: &S, id: InodeId) -> Result<Inode> {
    Ok(load(view, &keys::inode(id))?.ok_or(MetaError::Damaged("an entry points at no inode"))?)
}

/// The inode behind a name, if there is one.
pub(crate) fn child<S: Snapshot + ?Sized>(
    view: &S,
    directory: InodeId,
    name: &Name,
) -> Result<Option<(InodeId, Inode)>> {
    match load::<InodeId, S>(view, &keys::entry(directory, name))? {
        Some(id) => Ok(Some((id, inode(view, id)?))),
        None => Ok(None),
    }
}

/// Goes down a path; every directory on the way must let the principal pass.
pub(crate) fn resolve<S: Snapshot + ?Sized>(
    view: &S,
    who: &Principal,
    path: &FilePath,
) -> Result<(InodeId, Inode)> {
    let mut at = (ROOT, inode(view, ROOT)?);
    for name in path.names() {
        need_directory(&at.1, path)?;
        who.needs(Right::Pass, &at.1, path.as_str())?;
        at = child(view, at.0, &Name::new(name)?)?
            .ok_or_else(|| MdsError::refused(ErrorCode::NotFound, path.as_str()))?;
    }
    Ok(at)
}

/// Resolves the directory of a path; the name itself may be free or taken.
pub(crate) fn place<S: Snapshot + ?Sized>(view: &S, who: &Principal, path: &FilePath) -> Result<Place> {
    let (parent, name) = path.split_last().ok_or_else(|| MdsError::refused(ErrorCode::Invalid, "/"))?;
    let (directory, directory_inode) = resolve(view, who, &parent)?;
    need_directory(&directory_inode, &parent)?;
    who.needs(Right::Pass, &directory_inode, path.as_str())?;
    Ok(Place { directory, directory_inode, name })
}

fn need_directory(inode: &Inode, path: &FilePath) -> Result<()> {
    match inode.kind {
        FileKind::Directory => Ok(()),
        FileKind::File => Err(MdsError::refused(ErrorCode::NotADirectory, path.as_str())),
    }
}

/// Something changed in a directory.
pub(crate) fn touch(tx: &mut dyn Transaction, id: InodeId, mut directory: Inode, now_ms: u64) -> Result<()> {
    directory.mtime_ms = now_ms;
    directory.ctime_ms = now_ms;
    directory.version += 1;
    Ok(save(tx, &keys::inode(id), &directory)?)
}

/// A file or directory by path.
pub(crate) fn stat<S: Snapshot + ?Sized>(view: &S, who: &Principal, path: &FilePath) -> Result<Stat> {
    let (id, inode) = resolve(view, who, path)?;
    Ok(inode.stat(id))
}

/// The inode of a path, whoever may see it: for administrators and the server itself.
pub(crate) fn inspect<S: Snapshot + ?Sized>(view: &S, path: &FilePath) -> Result<(InodeId, Inode)> {
    let user = UserName::new("inspect")?;
    let (role, groups) = (sealstone_mds_protocol::Role::Admin, Default::default());
    resolve(view, &Principal { user, role, groups, session: [0; 16] }, path)
}

/// A page of a directory.
pub(crate) fn read_dir<S: Snapshot + ?Sized>(
    view: &S,
    who: &Principal,
    path: &FilePath,
    after: Option<&Name>,
    limit: u16,
) -> Result<(Vec<DirEntry>, bool)> {
    let (id, directory) = resolve(view, who, path)?;
    need_directory(&directory, path)?;
    who.needs(Right::Read, &directory, path.as_str())?;
    let all = keys::entries(id);
    let from = after.map_or_else(|| all.clone(), |name| [&keys::entry(id, name)[..], &[0]].concat());
    let limit = usize::from(limit.clamp(1, PAGE_MAX));
    let pairs = view.scan(&from, &keys::after_prefix(&all), limit + 1)?;
    let (mut entries, mut bytes) = (Vec::new(), 0);
    let total = pairs.len();
    for (key, value) in pairs.into_iter().take(limit) {
        let name = keys::entry_name(&key).ok_or(MetaError::Damaged("entry with an impossible name"))?;
        let child: InodeId = crate::records::decode(&value)?;
        let entry = DirEntry { name, stat: inode(view, child)?.stat(child) };
        let mut out = Writer::new();
        entry.put(&mut out);
        bytes += out.len();
        entries.push(entry);
        if bytes > PAGE_BYTES {
            break;
        }
    }
    let more = entries.len() < total;
    Ok((entries, more))
}

/// Makes a directory, and those above it if asked.
pub(crate) fn make_dir(
    tx: &mut dyn Transaction,
    who: &Principal,
    path: &FilePath,
    parents: bool,
    mode: u16,
    now_ms: u64,
) -> Result<Stat> {
    let Some((above, last)) = path.split_last() else {
        return if parents { stat(tx, who, path) } else { Err(MdsError::refused(ErrorCode::Exists, "/")) };
    };
    let mut at = (ROOT, inode(tx, ROOT)?);
    for name in above.names() {
        need_directory(&at.1, path)?;
        who.needs(Right::Pass, &at.1, path.as_str())?;
        let name = Name::new(name)?;
        at = match child(tx, at.0, &name)? {
            Some(found) => found,
            None if parents => add_directory(tx, who, at, &name, mode, path, now_ms)?,
            None => return Err(MdsError::refused(ErrorCode::NotFound, path.as_str())),
        };
    }
    need_directory(&at.1, path)?;
    who.needs(Right::Pass, &at.1, path.as_str())?;
    match child(tx, at.0, &last)? {
        Some((id, found)) if parents && found.kind == FileKind::Directory => Ok(found.stat(id)),
        Some(_) => Err(MdsError::refused(ErrorCode::Exists, path.as_str())),
        None => {
            let (id, made) = add_directory(tx, who, at, &last, mode, path, now_ms)?;
            Ok(made.stat(id))
        }
    }
}

fn add_directory(
    tx: &mut dyn Transaction,
    who: &Principal,
    (parent, parent_inode): (InodeId, Inode),
    name: &Name,
    mode: u16,
    path: &FilePath,
    now_ms: u64,
) -> Result<(InodeId, Inode)> {
    who.needs_entries(&parent_inode, path.as_str())?;
    let id = InodeId(next_number(tx, counter::INODE)?);
    // A tree below a directory that hands its group on belongs to that group as a whole.
    let mode = (mode & !SETGID) | (parent_inode.mode & SETGID);
    let made = directory(&who.user, inherited_group(&parent_inode), mode, parent, now_ms);
    save(tx, &keys::inode(id), &made)?;
    save(tx, &keys::entry(parent, name), &id)?;
    touch(tx, parent, parent_inode, now_ms)?;
    count(tx, counter::DIRECTORIES, 1)?;
    Ok((id, made))
}

/// A file that may be read (and written, if asked): for Open and for renewing grants.
pub(crate) fn file_for<S: Snapshot + ?Sized>(
    view: &S,
    who: &Principal,
    id: InodeId,
    write: bool,
    subject: &str,
) -> Result<(Inode, Layout)> {
    let inode: Inode =
        load(view, &keys::inode(id))?.ok_or_else(|| MdsError::refused(ErrorCode::Stale, subject))?;
    let layout = inode.layout.clone().ok_or_else(|| MdsError::refused(ErrorCode::IsADirectory, subject))?;
    who.needs(Right::Read, &inode, subject)?;
    if write {
        who.needs(Right::Write, &inode, subject)?;
    }
    Ok((inode, layout))
}

/// Records a change of content made in place.
pub(crate) fn update(
    tx: &mut dyn Transaction,
    who: &Principal,
    id: InodeId,
    size: u64,
    mtime_ms: Option<u64>,
    now_ms: u64,
) -> Result<Stat> {
    let (mut inode, _) = file_for(tx, who, id, true, "")?;
    check_size(size)?;
    inode.size = size;
    inode.version += 1;
    inode.mtime_ms = mtime_ms.unwrap_or(now_ms);
    inode.ctime_ms = now_ms;
    inode.checksum = None;
    save(tx, &keys::inode(id), &inode)?;
    Ok(inode.stat(id))
}

pub(crate) fn check_size(size: u64) -> Result<()> {
    if size > FILE_SIZE_MAX { Err(MdsError::refused(ErrorCode::Limit, "file size")) } else { Ok(()) }
}

/// Drops a file's inode and queues its objects for removal at `due_ms`.
pub(crate) fn drop_file(tx: &mut dyn Transaction, id: InodeId, file: &Inode, due_ms: u64) -> Result<()> {
    tx.delete(&keys::inode(id))?;
    if let Some(layout) = &file.layout {
        queue_objects(tx, layout.objects(), due_ms, file.create_grants_until_ms)?;
    }
    Ok(count(tx, counter::FILES, -1)?)
}

/// Queues objects for removal. While a grant that may create them can be alive they are removed once more after it.
pub(crate) fn queue_objects(
    tx: &mut dyn Transaction,
    objects: &[ObjectRef],
    due_ms: u64,
    guard_ms: u64,
) -> Result<()> {
    for object in objects {
        save(tx, &keys::reap(due_ms, *object), &guard_ms)?;
    }
    Ok(count(tx, counter::REAPS, objects.len() as i64)?)
}

/// Figures given at Commit.
pub(crate) struct Final {
    pub(crate) size: u64,
    pub(crate) mtime_ms: Option<u64>,
    pub(crate) checksum: Option<Checksum>,
}
