//! Whose a file is: owner, group, mode.
//!
//! Truth: POSIX.1-2017 chown, chmod, with _POSIX_CHOWN_RESTRICTED; docs/standards/mds.md §5.3.

use sealstone_mds_protocol::{ErrorCode, FileKind, FilePath, GroupName, Stat, UserName};

use super::resolve;
use crate::access::{MODE_MASK, Principal, SETGID, SETUID};
use crate::error::{MdsError, Result};
use crate::records::{Account, Inode, load, save};
use crate::store::Transaction;
use crate::{groups, keys};

/// What is to be changed.
pub(crate) struct NewOwner {
    pub(crate) owner: Option<UserName>,
    /// A group or none.
    pub(crate) group: Option<Option<GroupName>>,
    /// May administrators name groups that are not listed here?
    pub(crate) any_group: bool,
}

/// Changes permission bits.
pub(crate) fn set_mode(
    tx: &mut dyn Transaction,
    who: &Principal,
    path: &FilePath,
    mode: u16,
    now_ms: u64,
) -> Result<Stat> {
    let (id, mut inode) = resolve(tx, who, path)?;
    who.needs_ownership(&inode, path.as_str())?;
    inode.mode = mode & MODE_MASK;
    // Nobody hands a group on that he is not in.
    if !who.is_admin() && !inode.group.as_ref().is_some_and(|group| who.is_member(group)) {
        inode.mode &= !SETGID;
    }
    inode.ctime_ms = now_ms;
    save(tx, &keys::inode(id), &inode)?;
    Ok(inode.stat(id))
}

/// Changes owner, group or both.
pub(crate) fn set_owner(
    tx: &mut dyn Transaction,
    who: &Principal,
    path: &FilePath,
    new: &NewOwner,
    now_ms: u64,
) -> Result<Stat> {
    let (id, mut inode) = resolve(tx, who, path)?;
    who.needs_ownership(&inode, path.as_str())?;
    if let Some(owner) = &new.owner {
        give(tx, who, &mut inode, owner)?;
    }
    if let Some(group) = &new.group {
        regroup(tx, who, &mut inode, group.as_ref(), new.any_group)?;
    }
    if inode.kind == FileKind::File && !who.is_admin() {
        inode.mode &= !(SETUID | SETGID);
    }
    inode.ctime_ms = now_ms;
    save(tx, &keys::inode(id), &inode)?;
    Ok(inode.stat(id))
}

fn give(tx: &dyn Transaction, who: &Principal, inode: &mut Inode, owner: &UserName) -> Result<()> {
    if inode.owner == *owner {
        return Ok(());
    }
    // An owner who gives a file away would hide behind somebody else's name.
    who.needs_admin()?;
    if load::<Account, _>(tx, &keys::user(owner))?.is_none() {
        return Err(MdsError::refused(ErrorCode::NotFound, owner.as_str()));
    }
    inode.owner = owner.clone();
    Ok(())
}

fn regroup(
    tx: &dyn Transaction,
    who: &Principal,
    inode: &mut Inode,
    group: Option<&GroupName>,
    any_group: bool,
) -> Result<()> {
    if let Some(group) = group {
        // The same answer for a group of others and for none, so that nobody finds out which groups there are.
        if !who.is_admin() && !who.is_member(group) {
            return Err(MdsError::refused(ErrorCode::Denied, group.as_str()));
        }
        if !any_group && !who.is_member(group) && !groups::exists(tx, group)? {
            return Err(MdsError::refused(ErrorCode::NotFound, group.as_str()));
        }
    }
    inode.group = group.cloned();
    Ok(())
}
