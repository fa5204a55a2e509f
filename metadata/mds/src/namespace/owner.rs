//! Owner, group and mode of nodes.
//!
//! Truth: POSIX.1-2017 chown, chmod, with _POSIX_CHOWN_RESTRICTED; docs/standards/mds/operations.md
//! §5.3.

use sealstone_mds_protocol::{
    ErrorCode, FileKind, FilePath, GroupName, InodeId, NodeChange, SetTime, Stat, UserName,
};

use super::unlink::UnlinkContext;
use super::{check_size, need_file, resolve, sizes};
use crate::access::{AccessRight, MODE_MASK, Principal, SETGID, SETUID};
use crate::error::{MdsError, Result};
use crate::records::{Account, Inode, load, ns, save};
use crate::store::{Snapshot, Transaction};
use crate::{groups, keys, quota};

/// Requested owner and group.
pub(crate) struct NewOwner {
    pub(crate) owner: Option<UserName>,
    /// New group, or none to clear it.
    pub(crate) group: Option<Option<GroupName>>,
    /// Whether administrators may use groups that are not stored here.
    pub(crate) any_group: bool,
}

/// Group execute bit: without it the set-group-id bit has no effect.
const GROUP_RUNS: u16 = 0o010;

/// Changes the permission bits of a path.
pub(crate) fn set_mode(
    tx: &mut dyn Transaction,
    principal: &Principal,
    path: &FilePath,
    mode: u16,
    now_ms: u64,
) -> Result<Stat> {
    let (id, mut inode) = resolve(tx, principal, path)?;
    change_mode(principal, &mut inode, mode, &path.shown())?;
    inode.changes(now_ms);
    save(tx, &keys::inode(id), &inode)?;
    Ok(inode.stat(id))
}

fn change_mode(principal: &Principal, inode: &mut Inode, mode: u16, subject: &str) -> Result<()> {
    principal.needs_ownership(inode, subject)?;
    if inode.kind == FileKind::Symlink {
        return Err(MdsError::refused(ErrorCode::NotSupported, "mode of a symbolic link"));
    }
    inode.mode = mode & MODE_MASK;
    clear_foreign_setgid(principal, inode);
    Ok(())
}

/// Clears the set-group-id bit unless the user is a member of the node's group.
pub(super) fn clear_foreign_setgid(principal: &Principal, inode: &mut Inode) {
    if !principal.is_admin() && !inode.group.as_ref().is_some_and(|group| principal.is_member(group)) {
        inode.mode &= !SETGID;
    }
}

/// Changes owner, group or both.
pub(crate) fn set_owner(
    tx: &mut dyn Transaction,
    principal: &Principal,
    path: &FilePath,
    new: &NewOwner,
    now_ms: u64,
) -> Result<Stat> {
    let (id, mut inode) = resolve(tx, principal, path)?;
    change_owner(tx, principal, &mut inode, new, &path.shown())?;
    inode.changes(now_ms);
    save(tx, &keys::inode(id), &inode)?;
    Ok(inode.stat(id))
}

fn change_owner(
    tx: &mut dyn Transaction,
    principal: &Principal,
    inode: &mut Inode,
    new: &NewOwner,
    subject: &str,
) -> Result<()> {
    principal.needs_ownership(inode, subject)?;
    if let Some(owner) = &new.owner {
        give_to(tx, principal, inode, owner)?;
    }
    if let Some(group) = &new.group {
        change_group(tx, principal, inode, group.as_ref(), new.any_group)?;
    }
    if !inode.is_directory() && !principal.is_admin() {
        inode.mode &= !(SETUID | SETGID);
    }
    Ok(())
}

/// Clears the set-id bits after a change of content, unless an administrator changed it.
pub(super) fn clear_setid_bits(principal: &Principal, inode: &mut Inode) {
    if !principal.is_admin() {
        inode.mode &= !SETUID;
        if inode.mode & GROUP_RUNS != 0 {
            inode.mode &= !SETGID;
        }
    }
}

/// Applies an attribute change to a node, all of it or nothing. `held`: the client has the file
/// open for writing.
pub(crate) fn set_node(
    tx: &mut dyn Transaction,
    principal: &Principal,
    id: InodeId,
    change: &NodeChange,
    (held, any_group): (bool, bool),
    ending: &UnlinkContext<'_>,
) -> Result<Stat> {
    let mut inode = super::nodes::node(tx, id)?;
    let now_ns = ns(ending.now_ms);
    if let Some(mode) = change.mode {
        change_mode(principal, &mut inode, mode, "mode")?;
    }
    if change.owner.is_some() || change.group.is_some() {
        let (owner, group) = (change.owner.clone(), change.group.clone());
        change_owner(tx, principal, &mut inode, &NewOwner { owner, group, any_group }, "owner")?;
    }
    if let Some(size) = change.size {
        need_file(&inode, "size")?;
        if !held {
            principal.needs(AccessRight::Write, &inode, "size")?;
        }
        check_size(size)?;
        sizes::resize(tx, id, &mut inode, size, ending.reap_due_ms, ending.now_ms)?;
        inode.mtime_ns = now_ns;
        if change.mode.is_none() {
            clear_setid_bits(principal, &mut inode);
        }
    }
    if let Some(time) = change.atime {
        inode.atime_ns = resolve_time(principal, &inode, time, now_ns)?;
    }
    if let Some(time) = change.mtime {
        inode.mtime_ns = resolve_time(principal, &inode, time, now_ns)?;
    }
    if *change != NodeChange::default() {
        inode.changes(ending.now_ms);
        save(tx, &keys::inode(id), &inode)?;
    }
    Ok(inode.stat(id))
}

/// Resolves a requested time. Writers may set the current time, only owners any other time.
fn resolve_time(principal: &Principal, inode: &Inode, time: SetTime, now_ns: i64) -> Result<i64> {
    match time {
        SetTime::At(ns) => {
            principal.needs_ownership(inode, "times")?;
            Ok(ns)
        }
        SetTime::Now => {
            if principal.needs_ownership(inode, "times").is_err() {
                principal.needs(AccessRight::Write, inode, "times")?;
            }
            Ok(now_ns)
        }
    }
}

/// Fails unless the name is an account or a number.
pub(crate) fn check_owner<S: Snapshot + ?Sized>(view: &S, owner: &UserName) -> Result<()> {
    let known = owner.is_number() || load::<Account, _>(view, &keys::user(owner))?.is_some();
    if known { Ok(()) } else { Err(MdsError::refused(ErrorCode::NotFound, owner.as_str())) }
}

fn give_to(
    tx: &mut dyn Transaction,
    principal: &Principal,
    inode: &mut Inode,
    owner: &UserName,
) -> Result<()> {
    if inode.owner == *owner {
        return Ok(());
    }
    // Giving files away would let users charge them to others, so only administrators may.
    if !principal.is_admin() {
        return Err(MdsError::refused(ErrorCode::NotPermitted, "administrators only"));
    }
    check_owner(tx, owner)?;
    quota::move_usage(tx, inode, owner)?;
    inode.owner = owner.clone();
    Ok(())
}

/// Fails unless the user may give a node this group.
pub(super) fn check_group<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    group: &GroupName,
    any_group: bool,
) -> Result<()> {
    // Foreign and unknown groups get the same answer, so that the existence of groups is not
    // revealed.
    if !principal.is_admin() && !principal.is_member(group) {
        return Err(MdsError::refused(ErrorCode::NotPermitted, group.as_str()));
    }
    check_known_group(view, principal, group, any_group)
}

/// Fails unless the group exists, is a number, or may exist elsewhere.
pub(super) fn check_known_group<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    group: &GroupName,
    any_group: bool,
) -> Result<()> {
    if !any_group && !group.is_number() && !principal.is_member(group) && !groups::exists(view, group)? {
        return Err(MdsError::refused(ErrorCode::NotFound, group.as_str()));
    }
    Ok(())
}

fn change_group(
    tx: &dyn Transaction,
    principal: &Principal,
    inode: &mut Inode,
    group: Option<&GroupName>,
    any_group: bool,
) -> Result<()> {
    if let Some(group) = group
        && inode.group.as_ref() != Some(group)
    {
        check_group(tx, principal, group, any_group)?;
    }
    inode.group = group.cloned();
    Ok(())
}
