//! Keys of records of end-to-end protected disks.

use sealstone_mds_protocol::{Name, UserName};

use super::{after_prefix, key};

/// End-to-end protected disks.
const DISK: u8 = b'M';
/// Keys of disks, wrapped for users.
const DISK_KEY: u8 = b'Y';
/// Disks of users.
const DISK_OF_USER: u8 = b'H';
/// Public keys of users, for which keys of disks are wrapped.
const DISK_PUBLIC_KEY: u8 = b'V';

pub(crate) fn disk(name: &Name) -> Vec<u8> {
    key(DISK, &[name.as_bytes()])
}

pub(crate) fn disk_key(name: &Name, user: &UserName) -> Vec<u8> {
    key(DISK_KEY, &[name.as_bytes(), &[0], user.as_str().as_bytes()])
}

/// Returns the range of the keys of a disk.
pub(crate) fn disk_keys(name: &Name) -> (Vec<u8>, Vec<u8>) {
    let prefix = key(DISK_KEY, &[name.as_bytes(), &[0]]);
    let end = after_prefix(&prefix);
    (prefix, end)
}

/// Returns the user of a `disk_key` key.
pub(crate) fn disk_key_user(key: &[u8], name: &Name) -> Option<UserName> {
    let user = key.get(1..)?.strip_prefix(name.as_bytes())?.strip_prefix(&[0])?;
    UserName::new(std::str::from_utf8(user).ok()?).ok()
}

pub(crate) fn disk_of_user(user: &UserName, name: &Name) -> Vec<u8> {
    key(DISK_OF_USER, &[user.as_str().as_bytes(), &[0], name.as_bytes()])
}

/// Returns the range of the disks of a user, or of those after one.
pub(crate) fn disks_of_user(user: &UserName, after: Option<&Name>) -> (Vec<u8>, Vec<u8>) {
    let prefix = key(DISK_OF_USER, &[user.as_str().as_bytes(), &[0]]);
    let end = after_prefix(&prefix);
    (after.map_or(prefix, |after| [&disk_of_user(user, after)[..], &[0]].concat()), end)
}

/// Returns the disk of a `disk_of_user` key.
pub(crate) fn disk_of_user_name(key: &[u8], user: &UserName) -> Option<Name> {
    Name::new(key.get(1..)?.strip_prefix(user.as_str().as_bytes())?.strip_prefix(&[0])?).ok()
}

pub(crate) fn disk_public_key(user: &UserName) -> Vec<u8> {
    key(DISK_PUBLIC_KEY, &[user.as_str().as_bytes()])
}
