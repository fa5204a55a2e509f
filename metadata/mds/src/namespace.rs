//! Directories, files and names, on top of the metadata store.
//!
//! Does: turn a request into the changes of one transaction, with permissions checked.
//! Does not: begin or commit it, place objects, sign credentials.
//! Contract: every function leaves the transaction consistent or returns an error; after an error
//! the transaction must be dropped.
//! Truth: docs/standards/mds/operations.md §5.3, §5.4.

use sealstone_mds_protocol::{
    Access, Checksum, DirEntry, ErrorCode, FILE_SIZE_MAX, FileKind, FilePath, GroupName, InodeId, Layout,
    Name, PAGE_MAX, PlacementRecord, Stat, UserName, Wire, WireWriter,
};

use crate::access::{AccessRight, MODE_MASK, Principal, SETGID, STICKY};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::quota;
use crate::records::{Inode, count, counter, load, next_number, ns, save};
use crate::request_context::recall_dir_writer;
use crate::store::{MetaError, Snapshot, Transaction};

mod acl;
mod create;
mod delegate;
mod functions;
mod nodes;
mod owner;
mod remove;
mod rename;
mod sizes;
mod trees;
mod unlink;
mod walk;
mod xattrs;

#[cfg(test)]
pub(crate) use create::{CREATES_PER_USER_MAX, ENDED_RESULTS_PER_USER_MAX, RESULTS_PER_USER_MAX};
pub(crate) use create::{
    NewIntent, abandon, begin_create, charged_bytes, commit, discard_create, end_creates, expire,
    renew_create,
};
pub(crate) use delegate::{DelegatedRange, delegate, delegate_writing};
pub(crate) use functions::{
    NewObject, begin_copy, begin_result, copied_size, fix_function_layout, note_call_update, result_size,
};
pub(crate) use nodes::{
    NewNode, check_passes, link_node, listable, look_up, make_node, node, read_link, read_nodes, remove_node,
};
pub(crate) use owner::{NewOwner, check_owner, set_mode, set_node, set_owner};
pub(crate) use remove::{RemoveCursors, remove};
pub(crate) use rename::{RenameParams, rename, rename_node};
pub use sizes::ClearItem;
pub(crate) use sizes::{
    WriteReport, allocate, check_clear, clear_of, cleared, next_clears, note_create_grant, truncate_overlong,
    written,
};
pub(crate) use trees::{clear_tree, set_tree, tree_of};
pub(crate) use unlink::{UnlinkContext, close, is_swept, orphans, queue_objects, sweep_orphans};
pub(crate) use walk::need_directory;
pub(crate) use walk::{FinalLink, resolve};
use walk::{PathLookup, PathStep, resolve_to};
pub(crate) use xattrs::{get_xattr, list_xattrs, remove_xattr, set_xattr};

/// The root directory.
pub const ROOT: InodeId = InodeId(1);
/// Maximum bytes of entries in a page; a frame has space for one more entry of the largest size.
const PAGE_BYTES: usize = 48 * 1024;
/// Maximum depth of a directory; only renames can build deeper trees than a path can name.
const DEPTH_MAX: usize = 4096;

/// Creates the root directory of a new server.
pub(crate) fn make_root(tx: &mut dyn Transaction, owner: &UserName, now_ms: u64) -> Result<()> {
    let mut root = Inode::new(FileKind::Directory, STICKY | 0o777, owner.clone(), None, now_ms);
    root.parent = ROOT;
    quota::charge_node(tx, &root)?;
    save(tx, &keys::inode(ROOT), &root)?;
    save(tx, &keys::meta(counter::INODE), &(ROOT.0 + 1))?;
    Ok(count(tx, counter::DIRECTORIES, 1)?)
}

/// Returns the group of new nodes in a directory.
fn inherited_group(directory: &Inode) -> Option<GroupName> {
    if directory.mode & SETGID == 0 { None } else { directory.group.clone() }
}

/// Loads an inode that must exist because a record refers to it.
pub(crate) fn inode<S: Snapshot + ?Sized>(view: &S, id: InodeId) -> Result<Inode> {
    Ok(load(view, &keys::inode(id))?.ok_or(MetaError::Damaged("an entry refers to a missing inode"))?)
}

/// Loads the inode of a name, if the name exists.
pub(crate) fn child<S: Snapshot + ?Sized>(
    view: &S,
    directory: InodeId,
    name: &Name,
) -> Result<Option<(InodeId, Inode)>> {
    recall_dir_writer(directory)?;
    match load::<InodeId, S>(view, &keys::entry(directory, name))? {
        Some(id) => Ok(Some((id, inode(view, id)?))),
        None => Ok(None),
    }
}

/// Records a change of a directory's entries. `links` is the change of the number of its
/// subdirectories.
pub(crate) fn touch(tx: &mut dyn Transaction, id: InodeId, links: i32, now_ms: u64) -> Result<()> {
    // Loaded again, because this transaction may have changed it before.
    let mut directory = inode(tx, id)?;
    directory.links = directory.links.saturating_add_signed(links);
    directory.mtime_ns = ns(now_ms);
    directory.changes(now_ms);
    directory.version += 1;
    Ok(save(tx, &keys::inode(id), &directory)?)
}

/// Whether a directory is empty.
pub(crate) fn is_empty<S: Snapshot + ?Sized>(view: &S, id: InodeId) -> Result<bool> {
    recall_dir_writer(id)?;
    let all = keys::entries(id);
    Ok(view.scan(&all, &keys::after_prefix(&all), 1)?.is_empty())
}

/// Returns the attributes of a path. `last` says whether a final symbolic link is followed.
pub(crate) fn stat<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    path: &FilePath,
    last: FinalLink,
) -> Result<Stat> {
    let (id, inode) = resolve_to(view, principal, path, last)?;
    Ok(inode.stat(id))
}

/// Returns the layout of a path with the reason for it; none for nodes without bytes.
pub(crate) fn placement<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    path: &FilePath,
) -> Result<(Option<Layout>, Option<PlacementRecord>)> {
    let (_, inode) = resolve_to(view, principal, path, FinalLink::NoFollow)?;
    Ok((inode.layout, inode.placed))
}

/// Loads the inode of a path without access checks: for administrators and the server itself.
pub(crate) fn inspect<S: Snapshot + ?Sized>(view: &S, path: &FilePath) -> Result<(InodeId, Inode)> {
    let user = UserName::new("inspect")?;
    let (role, groups) = (sealstone_mds_protocol::Role::Admin, Default::default());
    resolve(view, &Principal { user, role, groups, session: [0; 16] }, path)
}

/// Returns a page of a directory.
pub(crate) fn read_dir<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    path: &FilePath,
    after: Option<&Name>,
    limit: u16,
) -> Result<(Vec<DirEntry>, bool)> {
    let (id, directory) = resolve(view, principal, path)?;
    need_directory(&directory, &path.shown())?;
    principal.needs(AccessRight::Read, &directory, &path.shown())?;
    page(view, principal, (id, &directory), after, limit)
}

/// Returns a page of a directory in O(entries of the page). Without the search permission the
/// entries have no attributes and no proofs.
pub(crate) fn page<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    (id, directory): (InodeId, &Inode),
    after: Option<&Name>,
    limit: u16,
) -> Result<(Vec<DirEntry>, bool)> {
    recall_dir_writer(id)?;
    let passes = principal.needs(AccessRight::Search, directory, "").is_ok();
    let all = keys::entries(id);
    let from = after.map_or_else(|| all.clone(), |name| [&keys::entry(id, name)[..], &[0]].concat());
    let limit = usize::from(limit.clamp(1, PAGE_MAX));
    let pairs = view.scan(&from, &keys::after_prefix(&all), limit + 1)?;
    let (mut entries, mut bytes) = (Vec::new(), 0);
    let total = pairs.len();
    for (key, value) in pairs.into_iter().take(limit) {
        let name = keys::entry_name(&key).ok_or(MetaError::Damaged("entry with an invalid name"))?;
        let child: InodeId = crate::records::decode(&value)?;
        let found = inode(view, child)?;
        let stat = passes.then(|| found.stat(child));
        let entry = DirEntry { name, inode: child, kind: found.kind, stat };
        let mut out = WireWriter::new();
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

/// Creates a directory, with `parents` also missing directories above it.
pub(crate) fn make_dir(
    tx: &mut dyn Transaction,
    principal: &Principal,
    path: &FilePath,
    parents: bool,
    mode: u16,
    now_ms: u64,
) -> Result<Stat> {
    let subject = path.shown();
    let last = if parents { FinalLink::Follow } else { FinalLink::NoFollow };
    match walk::walk(tx, principal, path, last)? {
        PathLookup::Node { id, inode, .. } if parents && inode.is_directory() => Ok(inode.stat(id)),
        PathLookup::Node { .. } => Err(MdsError::refused(ErrorCode::Exists, subject)),
        PathLookup::Missing { rest, .. } if !rest.is_empty() && !parents => {
            Err(MdsError::refused(ErrorCode::NotFound, subject))
        }
        PathLookup::Missing { place, mut rest } => {
            let mut at = (place.directory, place.directory_inode);
            let mut next = Some(PathStep::Down(place.name));
            while let Some(step) = next {
                // Only a symbolic link has steps up, and its target must exist.
                let PathStep::Down(name) = step else {
                    return Err(MdsError::refused(ErrorCode::NotFound, subject));
                };
                at = add_directory(tx, principal, at, &name, mode, &subject, now_ms)?;
                next = rest.pop();
            }
            Ok(at.1.stat(at.0))
        }
    }
}

fn add_directory(
    tx: &mut dyn Transaction,
    principal: &Principal,
    (parent, parent_inode): (InodeId, Inode),
    name: &Name,
    mode: u16,
    subject: &str,
    now_ms: u64,
) -> Result<(InodeId, Inode)> {
    principal.needs_entries(&parent_inode, subject)?;
    let id = InodeId(next_number(tx, counter::INODE)?);
    // A directory below one with the set-group-id bit inherits the bit and the group.
    let mode = (mode & MODE_MASK & !SETGID) | (parent_inode.mode & SETGID);
    let group = inherited_group(&parent_inode);
    let mut made = Inode::new(FileKind::Directory, mode, principal.user.clone(), group, now_ms);
    made.parent = parent;
    made.tree = parent_inode.tree;
    acl::inherit(&parent_inode, &mut made, 0);
    quota::charge_node(tx, &made)?;
    save(tx, &keys::inode(id), &made)?;
    save(tx, &keys::entry(parent, name), &id)?;
    touch(tx, parent, 1, now_ms)?;
    count(tx, counter::DIRECTORIES, 1)?;
    Ok((id, made))
}

/// Fails unless the node is a file.
pub(crate) fn need_file(inode: &Inode, subject: &str) -> Result<()> {
    match inode.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(MdsError::refused(ErrorCode::IsADirectory, subject)),
        _ => Err(MdsError::refused(ErrorCode::Invalid, subject)),
    }
}

/// Loads a file that the user may open with this access: for Open and for renewed grants.
pub(crate) fn file_for<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    id: InodeId,
    access: Access,
    subject: &str,
) -> Result<(Inode, Option<Layout>)> {
    let inode: Inode =
        load(view, &keys::inode(id))?.ok_or_else(|| MdsError::refused(ErrorCode::Stale, subject))?;
    check_file(principal, &inode, access, subject)?;
    let layout = inode.layout.clone();
    Ok((inode, layout))
}

/// Fails unless the node is a file that the user may open with this access.
pub(crate) fn check_file(principal: &Principal, inode: &Inode, access: Access, subject: &str) -> Result<()> {
    need_file(inode, subject)?;
    principal.needs_all(AccessRight::of(access), inode, subject)
}

pub(crate) fn check_size(size: u64) -> Result<()> {
    if size > FILE_SIZE_MAX { Err(MdsError::refused(ErrorCode::FileTooLarge, "file size")) } else { Ok(()) }
}

/// Parameters of Commit.
pub(crate) struct CommitParams {
    pub(crate) size: u64,
    pub(crate) mtime_ns: Option<i64>,
    pub(crate) checksum: Option<Checksum>,
}
