//! Extended attributes.
//!
//! Contract: each request is O(1), a list O(its bounded length). Number and bytes of a node's
//! attributes are limited.
//! Truth: xattr(7) of Linux for the namespaces; docs/standards/mds/nodes.md §5.8.

use sealstone_mds_protocol::{
    ACL_ACCESS, ACL_DEFAULT, Acl, ErrorCode, FileKind, InodeId, Method, XATTR_BYTES_MAX, XATTRS_MAX,
    XattrMode, XattrName, XattrValue,
};

use super::acl::{self, AclKind};
use super::nodes::node;
use crate::access::{AccessRight, Principal, STICKY};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::quota;
use crate::records::{Inode, load, save};
use crate::store::{MetaError, Snapshot, Transaction};

/// Namespace of an attribute, from the part before the first dot. It determines the access checks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum XattrNamespace {
    /// On files and directories, by their permission bits.
    User,
    /// Visible to administrators only.
    Trusted,
    /// All users read, administrators write.
    Security,
    /// Computed by this server, read-only.
    Sealstone,
    /// Access control lists: all users read, owners write.
    Acl(AclKind),
}

fn space(name: &XattrName) -> Result<XattrNamespace> {
    if let Some(which) = acl::which(name) {
        return Ok(XattrNamespace::Acl(which));
    }
    let name = name.as_bytes();
    let spaces = [
        (&b"user."[..], XattrNamespace::User),
        (b"trusted.", XattrNamespace::Trusted),
        (b"security.", XattrNamespace::Security),
        (b"sealstone.", XattrNamespace::Sealstone),
    ];
    let found = spaces.into_iter().find(|(prefix, _)| name.len() > prefix.len() && name.starts_with(prefix));
    found
        .map(|(_, space)| space)
        .ok_or_else(|| MdsError::refused(ErrorCode::NotSupported, "attribute namespace"))
}

fn no_attribute() -> MdsError {
    MdsError::refused(ErrorCode::NoAttribute, "")
}

fn not_permitted() -> MdsError {
    MdsError::refused(ErrorCode::NotPermitted, "attribute")
}

fn check_read(principal: &Principal, inode: &Inode, space: XattrNamespace) -> Result<()> {
    match space {
        XattrNamespace::User if !matches!(inode.kind, FileKind::File | FileKind::Directory) => {
            Err(no_attribute())
        }
        XattrNamespace::User => principal.needs(AccessRight::Read, inode, "attribute"),
        XattrNamespace::Trusted if !principal.is_admin() => Err(no_attribute()),
        XattrNamespace::Trusted
        | XattrNamespace::Security
        | XattrNamespace::Sealstone
        | XattrNamespace::Acl(_) => Ok(()),
    }
}

fn check_write(principal: &Principal, inode: &Inode, space: XattrNamespace) -> Result<()> {
    match space {
        XattrNamespace::User if !matches!(inode.kind, FileKind::File | FileKind::Directory) => {
            Err(not_permitted())
        }
        // Otherwise every user could fill the attributes of a shared directory.
        XattrNamespace::User if inode.is_directory() && inode.mode & STICKY != 0 => {
            principal.needs_ownership(inode, "attribute")
        }
        XattrNamespace::User => principal.needs(AccessRight::Write, inode, "attribute"),
        XattrNamespace::Trusted | XattrNamespace::Security if principal.is_admin() => Ok(()),
        XattrNamespace::Acl(_) => principal.needs_ownership(inode, "access control list"),
        XattrNamespace::Trusted | XattrNamespace::Security | XattrNamespace::Sealstone => {
            Err(not_permitted())
        }
    }
}

/// Returns the value of a computed attribute.
fn computed_value(inode: &Inode, name: &XattrName, method: Method) -> Option<String> {
    match name.as_bytes() {
        // The minimum for each command; a client may use a stronger one.
        b"sealstone.method" => Some(method.name().to_lowercase()),
        b"sealstone.layout" => inode.layout.as_ref().map(|layout| match layout.stripe_unit() {
            Some(unit) => format!("{} width={} unit={unit}", layout.kind_name(), layout.width()),
            None => layout.kind_name().to_owned(),
        }),
        b"sealstone.objects" => inode.layout.as_ref().map(|layout| {
            let one = |object: &sealstone_mds_protocol::ObjectRef| {
                format!("{}:{:#x}:{:#x}", object.device.0, object.object.partition, object.object.object)
            };
            layout.objects().iter().map(one).collect::<Vec<_>>().join(" ")
        }),
        b"sealstone.digest" => inode.checksum.as_ref().map(|checksum| {
            let kind = format!("{:?}", checksum.kind).to_lowercase();
            let length = if kind == "crc32c" { 4 } else { checksum.value.len() };
            let hex: String = checksum.value.iter().take(length).map(|byte| format!("{byte:02x}")).collect();
            format!("{kind}:{hex}")
        }),
        b"sealstone.version" => Some(inode.version.to_string()),
        b"sealstone.owner" => Some(inode.owner.to_string()),
        b"sealstone.group" => inode.group.as_ref().map(ToString::to_string),
        _ => None,
    }
}

/// Returns the value of an attribute.
pub(crate) fn get_xattr<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    (id, name): (InodeId, &XattrName),
    method: Method,
) -> Result<XattrValue> {
    let (inode, space) = (node(view, id)?, space(name)?);
    check_read(principal, &inode, space)?;
    let made = match space {
        XattrNamespace::Sealstone => computed_value(&inode, name, method),
        XattrNamespace::Acl(which) => acl::list(&inode, which).map(|acl| acl.to_string()),
        XattrNamespace::User | XattrNamespace::Trusted | XattrNamespace::Security => {
            return load(view, &keys::xattr(id, name))?.ok_or_else(no_attribute);
        }
    };
    Ok(XattrValue::new(made.ok_or_else(no_attribute)?)?)
}

/// Sets or removes an access control list.
fn set_acl(
    tx: &mut dyn Transaction,
    principal: &Principal,
    (id, mut inode): (InodeId, Inode),
    (which, acl): (AclKind, Option<Acl>),
    (mode, any_group): (XattrMode, bool),
    now_ms: u64,
) -> Result<()> {
    let before = acl::list(&inode, which);
    match (mode, &before) {
        (XattrMode::Create, Some(_)) => return Err(MdsError::refused(ErrorCode::Exists, "attribute")),
        (XattrMode::Replace, None) => return Err(no_attribute()),
        _ => {}
    }
    if let Some(acl) = &acl {
        acl::check_names(tx, principal, (acl, before.as_ref()), any_group)?;
    }
    acl::set(principal, &mut inode, which, acl)?;
    inode.changes(now_ms);
    Ok(save(tx, &keys::inode(id), &inode)?)
}

/// Returns the names that the user may see. Computed attributes are not listed, so that copies do
/// not include them.
pub(crate) fn list_xattrs<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    id: InodeId,
) -> Result<Vec<XattrName>> {
    let inode = node(view, id)?;
    let all = keys::xattrs(id);
    let mut names = Vec::new();
    for (which, name) in [(AclKind::Access, ACL_ACCESS), (AclKind::Default, ACL_DEFAULT)] {
        if acl::list(&inode, which).is_some() {
            names.push(XattrName::new(name)?);
        }
    }
    for (key, _) in view.scan(&all, &keys::after_prefix(&all), usize::from(XATTRS_MAX))? {
        let name = keys::xattr_name(&key).ok_or(MetaError::Damaged("attribute with an invalid name"))?;
        if space(&name)? != XattrNamespace::Trusted || principal.is_admin() {
            names.push(name);
        }
    }
    Ok(names)
}

/// Sets an attribute. `any_group`: a list may use groups that are not stored here.
pub(crate) fn set_xattr(
    tx: &mut dyn Transaction,
    principal: &Principal,
    id: InodeId,
    (name, value, mode): (&XattrName, &XattrValue, XattrMode),
    any_group: bool,
    now_ms: u64,
) -> Result<()> {
    let (mut inode, space) = (node(tx, id)?, space(name)?);
    check_write(principal, &inode, space)?;
    if let XattrNamespace::Acl(which) = space {
        let acl = acl::parse(value)?;
        return set_acl(tx, principal, (id, inode), (which, Some(acl)), (mode, any_group), now_ms);
    }
    let key = keys::xattr(id, name);
    let old: Option<XattrValue> = load(tx, &key)?;
    match (mode, &old) {
        (XattrMode::Create, Some(_)) => return Err(MdsError::refused(ErrorCode::Exists, "attribute")),
        (XattrMode::Replace, None) => return Err(no_attribute()),
        _ => {}
    }
    let before = old.as_ref().map_or(0, |old| bytes(name, old));
    let all = inode.xattr_bytes.saturating_sub(before).saturating_add(bytes(name, value));
    let number = inode.xattrs + u16::from(old.is_none());
    if all > XATTR_BYTES_MAX || number > XATTRS_MAX {
        return Err(MdsError::refused(ErrorCode::NoSpace, "attributes of one node"));
    }
    quota::resize_xattrs(tx, &inode, all)?;
    (inode.xattrs, inode.xattr_bytes) = (number, all);
    inode.changes(now_ms);
    save(tx, &key, value)?;
    Ok(save(tx, &keys::inode(id), &inode)?)
}

/// Removes an attribute.
pub(crate) fn remove_xattr(
    tx: &mut dyn Transaction,
    principal: &Principal,
    id: InodeId,
    name: &XattrName,
    now_ms: u64,
) -> Result<()> {
    let (mut inode, space) = (node(tx, id)?, space(name)?);
    check_write(principal, &inode, space)?;
    if let XattrNamespace::Acl(which) = space {
        return set_acl(tx, principal, (id, inode), (which, None), (XattrMode::Replace, false), now_ms);
    }
    let key = keys::xattr(id, name);
    let old: XattrValue = load(tx, &key)?.ok_or_else(no_attribute)?;
    tx.delete(&key)?;
    let left = inode.xattr_bytes.saturating_sub(bytes(name, &old));
    quota::resize_xattrs(tx, &inode, left)?;
    inode.xattrs = inode.xattrs.saturating_sub(1);
    inode.xattr_bytes = left;
    inode.changes(now_ms);
    Ok(save(tx, &keys::inode(id), &inode)?)
}

fn bytes(name: &XattrName, value: &XattrValue) -> u32 {
    (name.as_bytes().len() + value.as_bytes().len()) as u32
}
