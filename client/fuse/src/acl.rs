//! Conversion of access control lists between the kernel and the server.
//!
//! Contract: a name without a number on this machine is not shown to the kernel, and stays in the
//! list on every change, as long as the list has a mask (one without a mask has no named entries).
//! An entry that the kernel returns with the same number keeps its name.
//! Truth: include/uapi/linux/posix_acl_xattr.h of Linux; docs/standards/mds/nodes.md §5.8.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use rustix::io::Errno;
use sealstone_mds_protocol::{ACL_ACCESS, ACL_DEFAULT, Acl, GroupName, UserName};

use crate::id_map::IdMap;

/// Version of the encoding, in its first bytes.
const VERSION: u32 = 2;
/// Bytes of an entry: tag, rights, number.
const ENTRY_BYTES: usize = 8;
/// Tags of entries.
const OWNER: u16 = 1;
const USER: u16 = 2;
const GROUP_OF_NODE: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;
/// Stands for the number in entries that have none.
const NONE: u32 = u32::MAX;

/// Whether an attribute of this name is an access control list.
pub(crate) fn is_list(name: &OsStr) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

/// Encodes a list for the kernel.
pub(crate) fn to_kernel(acl: &Acl, id_map: &IdMap) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    let mut entry = |tag: u16, rights: u8, number: u32| {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(u16::from(rights).to_le_bytes());
        bytes.extend(number.to_le_bytes());
    };
    entry(OWNER, acl.owner, NONE);
    let users = shown(&acl.users, |name| id_map.known_uid(name));
    users.into_iter().for_each(|(uid, rights)| entry(USER, rights, uid));
    entry(GROUP_OF_NODE, acl.group, NONE);
    let groups = shown(&acl.groups, |name| id_map.known_gid(name));
    groups.into_iter().for_each(|(gid, rights)| entry(GROUP, rights, gid));
    if let Some(mask) = acl.mask {
        entry(MASK, mask, NONE);
    }
    entry(OTHER, acl.other, NONE);
    bytes
}

/// Returns the rights by local number. Names with the same number get the rights that all of them
/// have.
fn shown<N>(named: &[(N, u8)], number: impl Fn(&N) -> Option<u32>) -> BTreeMap<u32, u8> {
    let mut shown = BTreeMap::new();
    for (name, rights) in named {
        if let Some(number) = number(name) {
            *shown.entry(number).or_insert(*rights) &= rights;
        }
    }
    shown
}

/// Returns the names of an entry from the kernel: those that the list had for the number, or else a
/// new one.
fn named<N: Clone>(
    (number, rights): (u32, u8),
    before: &[(N, u8)],
    of: impl Fn(&N) -> Option<u32>,
    new: impl FnOnce() -> N,
) -> Vec<(N, u8)> {
    let mut had: Vec<_> = before.iter().filter(|(name, _)| of(name) == Some(number)).cloned().collect();
    let unchanged = had.iter().map(|(_, rights)| *rights).reduce(|all, one| all & one) == Some(rights);
    if !unchanged {
        had.iter_mut().for_each(|(_, one)| *one = rights);
    }
    if had.is_empty() { vec![(new(), rights)] } else { had }
}

/// Decodes a list from the kernel that replaces `before`; none if it is empty.
///
/// # Errors
/// `INVAL` if it is not a list, `OPNOTSUPP` for a different version.
pub(crate) fn from_kernel(bytes: &[u8], before: Option<&Acl>, id_map: &IdMap) -> Result<Option<Acl>, Errno> {
    let (version, entries) = bytes.split_first_chunk().ok_or(Errno::INVAL)?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(Errno::OPNOTSUPP);
    }
    let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
    if !rest.is_empty() {
        return Err(Errno::INVAL);
    }
    if entries.is_empty() {
        return Ok(None);
    }
    let mut acl = Acl::default();
    let (mut owner, mut group, mut other) = (None, None, None);
    for &[t0, t1, r0, r1, n0, n1, n2, n3] in entries {
        let number = u32::from_le_bytes([n0, n1, n2, n3]);
        let rights = u8::try_from(u16::from_le_bytes([r0, r1])).map_err(|_| Errno::INVAL)?;
        let once = |place: &mut Option<u8>| match place.replace(rights) {
            None => Ok(()),
            Some(_) => Err(Errno::INVAL),
        };
        match u16::from_le_bytes([t0, t1]) {
            OWNER => once(&mut owner)?,
            GROUP_OF_NODE => once(&mut group)?,
            MASK => once(&mut acl.mask)?,
            OTHER => once(&mut other)?,
            USER if id_map.is_unknown_uid(number) => return Err(Errno::INVAL),
            GROUP if id_map.is_unknown_gid(number) => return Err(Errno::INVAL),
            USER => {
                let had = before.map_or(&[][..], |before| before.users.as_slice());
                let of = |name: &UserName| id_map.known_uid(name);
                acl.users.extend(named((number, rights), had, of, || id_map.user(number)));
            }
            GROUP => {
                let had = before.map_or(&[][..], |before| before.groups.as_slice());
                let of = |name: &GroupName| id_map.known_gid(name);
                acl.groups.extend(named((number, rights), had, of, || id_map.named_group(number)));
            }
            _ => return Err(Errno::INVAL),
        }
    }
    acl.owner = owner.ok_or(Errno::INVAL)?;
    acl.group = group.ok_or(Errno::INVAL)?;
    acl.other = other.ok_or(Errno::INVAL)?;
    if let Some(before) = before.filter(|_| acl.mask.is_some()) {
        let users = before.users.iter().filter(|(name, _)| id_map.known_uid(name).is_none());
        acl.users.extend(users.cloned());
        let groups = before.groups.iter().filter(|(name, _)| id_map.known_gid(name).is_none());
        acl.groups.extend(groups.cloned());
    }
    acl.checked().map(Some).map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id_map::MountingUser;
    use proptest::prelude::*;

    fn mounter(user: UserName, id: u32) -> MountingUser {
        let unknown = crate::id_map::UNKNOWN_ID;
        MountingUser { user, uid: id, gid: id, others: true, unknown_uid: unknown, unknown_gid: unknown }
    }

    fn id_map() -> IdMap {
        let user = UserName::new("the-mounter").unwrap();
        IdMap::new(mounter(user, 71_000))
    }

    const TEXT: &str = "user::rw-,user:the-mounter:r--,user:uid-72000:rwx,group::r--,group:gid-71000:r-x,mask::rwx,other::---";

    #[test]
    fn acl_roundtrips_through_kernel_form() {
        let (acl, id_map) = (Acl::parse(TEXT).unwrap(), id_map());
        let bytes = to_kernel(&acl, &id_map);
        assert_eq!(bytes.len(), 4 + 7 * ENTRY_BYTES);
        assert_eq!(bytes[..12], [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255]);
        assert_eq!(from_kernel(&bytes, None, &id_map), Ok(Some(acl)));
        assert_eq!(from_kernel(&bytes[..4], None, &id_map), Ok(None), "an empty one is none");
    }

    #[test]
    fn name_without_number_is_hidden_and_kept() {
        let id_map = id_map();
        let text = "user::rw-,user:nobody-knows-him:r--,group::r--,group:nor-these:-w-,mask::rw-,other::---";
        let acl = Acl::parse(text).unwrap();
        let bytes = to_kernel(&acl, &id_map);
        assert_eq!(bytes.len(), 4 + 4 * ENTRY_BYTES);
        assert_eq!(from_kernel(&bytes, Some(&acl), &id_map), Ok(Some(acl)));
    }

    #[test]
    fn entry_keeps_its_name_for_same_number() {
        // Number 0 is root's and here also the mounter's.
        let user = UserName::new("the-mounter").unwrap();
        let id_map = IdMap::new(mounter(user, 0));
        let text = "user::rw-,user:root:r--,group::r--,group:root:-w-,mask::rw-,other::---";
        let acl = Acl::parse(text).unwrap();
        assert_eq!(id_map.known_uid(&acl.users[0].0), Some(0));
        let changed = to_kernel(&Acl { other: 4, ..acl.clone() }, &id_map);
        assert_eq!(from_kernel(&changed, Some(&acl), &id_map), Ok(Some(Acl { other: 4, ..acl.clone() })));
        // A number that was not in the list gets the user that has it; the mounter's group can be
        // named in a list.
        let new = from_kernel(&to_kernel(&acl, &id_map), None, &id_map).unwrap().unwrap();
        assert_eq!(new.to_string(), text.replace("user:root", "user:the-mounter"));
        // Two names with one number are both kept, and shown with their common rights.
        let two = "user::rw-,user:root:rw-,user:the-mounter:r-x,group::r--,mask::rwx,other::---";
        let two = Acl::parse(two).unwrap();
        let bytes = to_kernel(&two, &id_map);
        assert_eq!(bytes.len(), 4 + 5 * ENTRY_BYTES);
        assert_eq!(bytes[12..20], [2, 0, 4, 0, 0, 0, 0, 0]);
        assert_eq!(from_kernel(&bytes, Some(&two), &id_map), Ok(Some(two.clone())));
        let mut more = bytes;
        more[14] = 6;
        let more = from_kernel(&more, Some(&two), &id_map).unwrap().unwrap();
        assert!(more.users.len() == 2 && more.users.iter().all(|(_, rights)| *rights == 6));
    }

    #[test]
    fn list_entry_of_the_unknown_number_is_refused() {
        let id_map = id_map();
        let unknown = crate::id_map::UNKNOWN_ID;
        for named in
            [format!("user:uid-{unknown}:rwx,group::r--,"), format!("group::r--,group:gid-{unknown}:rwx,")]
        {
            let acl = Acl::parse(&format!("user::rw-,{named}mask::rwx,other::---")).unwrap();
            assert_eq!(from_kernel(&to_kernel(&acl, &id_map), None, &id_map), Err(Errno::INVAL), "{named}");
        }
    }

    #[test]
    fn malformed_acl_is_refused() {
        let id_map = id_map();
        let bytes = to_kernel(&Acl::parse(TEXT).unwrap(), &id_map);
        assert_eq!(from_kernel(&bytes[..3], None, &id_map), Err(Errno::INVAL));
        assert_eq!(from_kernel(&bytes[..bytes.len() - 1], None, &id_map), Err(Errno::INVAL));
        assert_eq!(from_kernel(&bytes[..bytes.len() - 8], None, &id_map), Err(Errno::INVAL), "no others");
        let twice = [&bytes[..], &bytes[4..12]].concat();
        assert_eq!(from_kernel(&twice, None, &id_map), Err(Errno::INVAL));
        let later = [&[3, 0, 0, 0], &bytes[4..]].concat();
        assert_eq!(from_kernel(&later, None, &id_map), Err(Errno::OPNOTSUPP));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let id_map = id_map();
            if let Some(version) = bytes.first_chunk_mut() {
                *version = VERSION.to_le_bytes();
            }
            let _ = from_kernel(&bytes, None, &id_map);
        }
    }
}
