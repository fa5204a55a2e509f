//! Access control lists: of a node, and of what is made in a directory.
//!
//! Contract: a node with a list has its mask as the group bits of its mode, so that whoever decides
//! by the mode alone gives no named user more, but the owning group as much as the mask: he has to
//! ask for the list. Truth: POSIX.1e (draft 17) 23.1; acl(5) of Linux for what is made below;
//! docs/standards/mds/nodes.md §5.8.

use sealstone_mds_protocol::{ACL_ACCESS, ACL_DEFAULT, Acl, ErrorCode, FileKind, XattrName, XattrValue};

use super::owner;
use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::records::Inode;
use crate::store::Snapshot;

/// The nine bits that owner, group and others have.
const CLASSES: u16 = 0o777;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Access,
    Default,
}

/// The list that an attribute of this name is.
pub(super) fn which(name: &XattrName) -> Option<Which> {
    match name.as_bytes() {
        name if name == ACL_ACCESS.as_bytes() => Some(Which::Access),
        name if name == ACL_DEFAULT.as_bytes() => Some(Which::Default),
        _ => None,
    }
}

/// A list of a node.
pub(super) fn list(inode: &Inode, which: Which) -> Option<Acl> {
    match which {
        Which::Access => inode.acl.clone().map(|acl| acl.with_mode(inode.mode)),
        Which::Default => inode.default_acl.clone(),
    }
}

/// The list in the value of an attribute.
pub(super) fn parse(value: &XattrValue) -> Result<Acl> {
    let text = core::str::from_utf8(value.as_bytes())
        .map_err(|_| MdsError::refused(ErrorCode::Invalid, "an access control list is text"))?;
    Acl::parse(text).map_err(|error| MdsError::refused(ErrorCode::Invalid, error.to_string()))
}

/// Are all whom a list names known: accounts, groups, or numbers of somewhere? Else who gets that name later would have
/// what was meant for somebody else. Who is in the list already stays.
pub(super) fn check_names<S: Snapshot + ?Sized>(
    view: &S,
    who: &Principal,
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
            owner::check_known_group(view, who, name, any_group)?;
        }
    }
    Ok(())
}

/// Gives a node of the asker's a list, or takes it away; the group then has no more than it had in the list.
pub(super) fn set(who: &Principal, inode: &mut Inode, which: Which, acl: Option<Acl>) -> Result<()> {
    if inode.kind == FileKind::Symlink {
        return Err(MdsError::refused(ErrorCode::NotSupported, "the access control list of a symbolic link"));
    }
    match which {
        Which::Default if acl.is_some() && !inode.is_directory() => {
            return Err(MdsError::refused(
                ErrorCode::Denied,
                "only what is made in a directory has a list of it",
            ));
        }
        Which::Default => inode.default_acl = acl,
        Which::Access => {
            if let (None, Some(old)) = (&acl, &inode.acl) {
                // The group bits were the mask; they are the group's again, which had no more than this.
                inode.mode &= !0o070 | (u16::from(old.group & 7) << 3);
            }
            if let Some(acl) = &acl {
                inode.mode = (inode.mode & !CLASSES) | acl.mode();
                owner::hand_on(who, inode);
            }
            inode.acl = acl.filter(Acl::is_extended);
        }
    }
    Ok(())
}

/// What a new node gets from the directory that it is made in: its list for what is made there, as far as the mode that
/// was asked for goes, or else the mode without what the maker masks.
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
