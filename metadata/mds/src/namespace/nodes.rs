//! Nodes by number: lookup, create, link, remove.
//!
//! Contract: as for paths; a number without a node is `Stale`. Each request is one transaction and
//! O(1), except for a page of a directory, which is O(entries of the page).
//! Truth: docs/standards/mds/nodes.md §5.8.

use sealstone_mds_protocol::{
    DirEntry, ErrorCode, GroupName, InodeId, LINKS_MAX, LinkTarget, Name, NodeKind, Stat, UserName,
};

use super::acl::inherit;
use super::trees::check_same;
use super::unlink::{UnlinkContext, drop_directory, unlink_name};
use super::{child, inherited_group, is_empty, need_directory, owner, page, touch};
use crate::access::{AccessRight, MODE_MASK, Principal, SETGID};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::quota;
use crate::records::{Inode, count, counter, load, next_number, save};
use crate::store::{Snapshot, Transaction};

/// Permission bits of a symbolic link; they are never checked.
const LINK_MODE: u16 = 0o777;

/// Parameters of a new node.
pub(crate) struct NewNode<'a> {
    pub(crate) name: &'a Name,
    pub(crate) what: &'a NodeKind,
    pub(crate) mode: u16,
    pub(crate) umask: u16,
    pub(crate) owner: Option<&'a UserName>,
    pub(crate) group: Option<&'a GroupName>,
    /// Whether administrators may use groups that are not stored here.
    pub(crate) any_group: bool,
    /// Reserved inode number; none: the next free one.
    pub(crate) number: Option<InodeId>,
}

/// Loads the inode of a number sent by a client; `Stale` if it does not exist.
pub(crate) fn node<S: Snapshot + ?Sized>(view: &S, id: InodeId) -> Result<Inode> {
    load(view, &keys::inode(id))?.ok_or_else(|| MdsError::refused(ErrorCode::Stale, format!("node {}", id.0)))
}

/// Loads a directory that the user may search.
fn directory<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    id: InodeId,
    subject: &str,
) -> Result<Inode> {
    let inode = node(view, id)?;
    need_directory(&inode, subject)?;
    principal.needs(AccessRight::Search, &inode, subject)?;
    Ok(inode)
}

/// Fails unless the user may search this directory.
pub(crate) fn check_passes<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    parent: InodeId,
    name: &Name,
) -> Result<()> {
    directory(view, principal, parent, &name.shown()).map(drop)
}

/// Looks up a name in a directory.
pub(crate) fn look_up<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    parent: InodeId,
    name: &Name,
) -> Result<Stat> {
    let subject = name.shown();
    directory(view, principal, parent, &subject)?;
    let (id, found) =
        child(view, parent, name)?.ok_or_else(|| MdsError::refused(ErrorCode::NotFound, &subject))?;
    Ok(found.stat(id))
}

/// Returns a page of a directory.
pub(crate) fn read_nodes<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    id: InodeId,
    after: Option<&Name>,
    limit: u16,
) -> Result<(Vec<DirEntry>, bool)> {
    let inode = listable(view, principal, id)?;
    page(view, principal, (id, &inode), after, limit)
}

/// Loads a directory that the user may list.
pub(crate) fn listable<S: Snapshot + ?Sized>(view: &S, principal: &Principal, id: InodeId) -> Result<Inode> {
    let inode = node(view, id)?;
    need_directory(&inode, "directory")?;
    principal.needs(AccessRight::Read, &inode, "directory")?;
    Ok(inode)
}

/// Returns the target of a symbolic link.
pub(crate) fn read_link<S: Snapshot + ?Sized>(view: &S, id: InodeId) -> Result<LinkTarget> {
    node(view, id)?.target.ok_or_else(|| MdsError::refused(ErrorCode::Invalid, "not a symbolic link"))
}

/// Creates a node.
pub(crate) fn make_node(
    tx: &mut dyn Transaction,
    principal: &Principal,
    parent: InodeId,
    new: &NewNode<'_>,
    now_ms: u64,
) -> Result<Stat> {
    let subject = new.name.shown();
    let above = directory(tx, principal, parent, &subject)?;
    if child(tx, parent, new.name)?.is_some() {
        return Err(MdsError::refused(ErrorCode::Exists, &subject));
    }
    principal.needs_entries(&above, &subject)?;
    let kind = new.what.kind();
    let mut made = Inode::new(kind, new.mode & MODE_MASK, principal.user.clone(), None, now_ms);
    if let Some(other) = new.owner.filter(|owner| **owner != principal.user) {
        if !principal.is_admin() {
            return Err(MdsError::refused(ErrorCode::NotPermitted, "administrators only"));
        }
        owner::check_owner(tx, other)?;
        made.owner = other.clone();
    }
    match new.group {
        _ if above.mode & SETGID != 0 => made.group = inherited_group(&above),
        Some(group) => {
            owner::check_group(tx, principal, group, new.any_group)?;
            made.group = Some(group.clone());
        }
        None => {}
    }
    match new.what {
        // A directory below one with the set-group-id bit inherits the bit and the group.
        NodeKind::Directory => {
            made.mode = (made.mode & !SETGID) | (above.mode & SETGID);
            made.parent = parent;
        }
        NodeKind::Symlink(target) => {
            made.mode = LINK_MODE;
            made.size = target.as_bytes().len() as u64;
            made.target = Some(target.clone());
        }
        NodeKind::CharDevice(number) | NodeKind::BlockDevice(number) => {
            if !principal.is_admin() {
                return Err(MdsError::refused(
                    ErrorCode::NotPermitted,
                    "only administrators create device nodes",
                ));
            }
            made.rdev = *number;
        }
        NodeKind::File | NodeKind::Fifo | NodeKind::Socket => {}
    }
    made.tree = above.tree;
    inherit(&above, &mut made, new.umask);
    if !made.is_directory() {
        owner::clear_foreign_setgid(principal, &mut made);
    }
    quota::charge_node(tx, &made)?;
    let id = match new.number {
        Some(id) => id,
        None => InodeId(next_number(tx, counter::INODE)?),
    };
    save(tx, &keys::inode(id), &made)?;
    save(tx, &keys::entry(parent, new.name), &id)?;
    touch(tx, parent, i32::from(made.is_directory()), now_ms)?;
    count(tx, if made.is_directory() { counter::DIRECTORIES } else { counter::FILES }, 1)?;
    Ok(made.stat(id))
}

/// Adds a name to a node.
pub(crate) fn link_node(
    tx: &mut dyn Transaction,
    principal: &Principal,
    id: InodeId,
    (parent, name): (InodeId, &Name),
    now_ms: u64,
) -> Result<Stat> {
    let subject = name.shown();
    let mut linked = node(tx, id)?;
    let above = directory(tx, principal, parent, &subject)?;
    if child(tx, parent, name)?.is_some() {
        return Err(MdsError::refused(ErrorCode::Exists, &subject));
    }
    principal.needs_entries(&above, &subject)?;
    if linked.is_directory() {
        return Err(MdsError::refused(ErrorCode::NotPermitted, "cannot hard link a directory"));
    }
    principal.needs_link(&linked, &subject)?;
    check_same(id, &linked, &above, &subject)?;
    quota::check_link(tx, principal, &linked)?;
    if linked.links == 0 {
        return Err(MdsError::refused(ErrorCode::NotFound, "its last name was removed"));
    }
    if linked.links >= LINKS_MAX {
        return Err(MdsError::refused(ErrorCode::TooManyLinks, &subject));
    }
    linked.links += 1;
    linked.changes(now_ms);
    save(tx, &keys::inode(id), &linked)?;
    save(tx, &keys::entry(parent, name), &id)?;
    touch(tx, parent, 0, now_ms)?;
    Ok(linked.stat(id))
}

/// Removes a name; returns the attributes of the node after it.
pub(crate) fn remove_node(
    tx: &mut dyn Transaction,
    principal: &Principal,
    (parent, name): (InodeId, &Name),
    is_directory: bool,
    ending: &UnlinkContext<'_>,
) -> Result<Stat> {
    let subject = name.shown();
    let above = directory(tx, principal, parent, &subject)?;
    let (id, found) =
        child(tx, parent, name)?.ok_or_else(|| MdsError::refused(ErrorCode::NotFound, &subject))?;
    principal.needs_removal(&above, &found, &subject)?;
    match (is_directory, found.is_directory()) {
        (true, false) => return Err(MdsError::refused(ErrorCode::NotADirectory, &subject)),
        (false, true) => return Err(MdsError::refused(ErrorCode::IsADirectory, &subject)),
        _ => {}
    }
    let mut left = found;
    if is_directory {
        if !is_empty(tx, id)? {
            return Err(MdsError::refused(ErrorCode::NotEmpty, &subject));
        }
        drop_directory(tx, id, &left, ending.reap_due_ms)?;
        left.links = 0;
    } else {
        left = unlink_name(tx, id, left, ending)?;
    }
    tx.delete(&keys::entry(parent, name))?;
    touch(tx, parent, -i32::from(is_directory), ending.now_ms)?;
    Ok(left.stat(id))
}
