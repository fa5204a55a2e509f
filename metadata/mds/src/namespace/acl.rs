//! Access control lists of nodes, and default lists of directories.
//!
//! Contract: a node with a list has its mask as the group bits of its mode. A check by the mode
//! alone therefore grants no named user more, but it grants the owning group as much as the mask;
//! exact checks need the list.
//! Truth: POSIX.1e (draft 17) 23.1; acl(5) of Linux for inheritance; docs/standards/mds/nodes.md
//! §5.8.

use sealstone_mds_protocol::{ACL_ACCESS, ACL_DEFAULT, Acl, ErrorCode, FileKind, XattrName, XattrValue};

use super::owner;
use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::records::Inode;
use crate::store::Snapshot;

/// The nine permission bits of owner, group and others.
const CLASSES: u16 = 0o777;

/// Kind of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AclKind {
    Access,
    Default,
}

/// Returns the kind of list that an extended attribute of this name is.
pub(super) fn which(name: &XattrName) -> Option<AclKind> {
    match name.as_bytes() {
        name if name == ACL_ACCESS.as_bytes() => Some(AclKind::Access),
        name if name == ACL_DEFAULT.as_bytes() => Some(AclKind::Default),
        _ => None,
    }
}

/// Returns a list of a node.
pub(super) fn list(inode: &Inode, which: AclKind) -> Option<Acl> {
    match which {
        AclKind::Access => inode.acl.clone().map(|acl| acl.with_mode(inode.mode)),
        AclKind::Default => inode.default_acl.clone(),
    }
}

/// Parses the value of an extended attribute as a list.
pub(super) fn parse(value: &XattrValue) -> Result<Acl> {
    let text = core::str::from_utf8(value.as_bytes())
        .map_err(|_| MdsError::refused(ErrorCode::Invalid, "access control list is not text"))?;
    Acl::parse(text).map_err(|error| MdsError::refused(ErrorCode::Invalid, error.to_string()))
}

/// Fails unless every name that a change adds is an account, a known group or a number. Otherwise a
/// later account of that name would get rights that were meant for another. Names that are already
/// in the list stay.
pub(super) fn check_names<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    (acl, before): (&Acl, Option<&Acl>),
    any_group: bool,
) -> Result<()> {
    for (name, _) in &acl.users {
        if !before.is_some_and(|before| before.users.iter().any(|(known, _)| known == name)) {
            owner::check_owner(view, name)?;
        }
    }
    for (name, _) in &acl.groups {
        if !before.is_some_and(|before| before.groups.iter().any(|(known, _)| known == name)) {
            owner::check_known_group(view, principal, name, any_group)?;
        }
    }
    Ok(())
}

/// Sets or removes a list of a node of the caller. After a removal the group bits grant no more
/// than the list's group entry.
pub(super) fn set(principal: &Principal, inode: &mut Inode, which: AclKind, acl: Option<Acl>) -> Result<()> {
    if inode.kind == FileKind::Symlink {
        return Err(MdsError::refused(ErrorCode::NotSupported, "the access control list of a symbolic link"));
    }
    match which {
        AclKind::Default if acl.is_some() && !inode.is_directory() => {
            return Err(MdsError::refused(
                ErrorCode::Denied,
                "only a directory has a default access control list",
            ));
        }
        AclKind::Default => inode.default_acl = acl,
        AclKind::Access => {
            if let (None, Some(old)) = (&acl, &inode.acl) {
                // The group bits were the mask. Now they are the owning group's again, which had at
                // most these rights.
                inode.mode &= !0o070 | (u16::from(old.group & 7) << 3);
            }
            if let Some(acl) = &acl {
                inode.mode = (inode.mode & !CLASSES) | acl.mode();
                owner::clear_foreign_setgid(principal, inode);
            }
            inode.acl = acl.filter(Acl::is_extended);
        }
    }
    Ok(())
}

/// Applies the default list of the parent to a new node, limited by the requested mode. Without a
/// default list the umask applies.
pub(super) fn inherit(above: &Inode, made: &mut Inode, umask: u16) {
    if made.kind == FileKind::Symlink {
        return;
    }
    let Some(acl) = &above.default_acl else {
        made.mode &= !(umask & CLASSES);
        return;
    };
    let mode = acl.mode() & made.mode & CLASSES;
    made.mode = (made.mode & !CLASSES) | mode;
    made.acl = acl.is_extended().then(|| acl.clone().with_mode(mode));
    if made.is_directory() {
        made.default_acl = Some(acl.clone());
    }
}
