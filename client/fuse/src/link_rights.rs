//! Rights to hard-link another user's file on a mount for many users.
//!
//! Does: decides as Linux does with `fs.protected_hardlinks`, regardless of the setting of this
//! machine.
//! Does not: check the owner or root, which may always link. The session of such a mount is an
//! administrator's, so the server cannot decide this.
//! Truth: `safe_hardlink_source` in fs/namei.c of Linux; docs/standards/mds/operations.md §5.3.

use std::collections::BTreeSet;

use sealstone_mds_protocol::{Acl, FileKind, Stat};

use crate::id_map::IdMap;

const SET_USER_ID: u16 = 0o4000;
/// The set-group-ID bit is effective only together with execute permission of the group.
const RUNS_AS_GROUP: u16 = 0o2010;
/// Read and write, in the bits of one class.
const READ_WRITE: u8 = 6;

/// A local user with all its groups.
#[derive(Clone, Debug)]
pub(crate) struct LinkCaller {
    uid: u32,
    gids: BTreeSet<u32>,
}

impl LinkCaller {
    /// Returns the user of a request, with the supplementary groups of its thread as far as they
    /// can be read.
    pub(crate) fn new(uid: u32, gid: u32, pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
        let gids = groups.split_whitespace().filter_map(|group| group.parse().ok()).chain([gid]).collect();
        Self { uid, gids }
    }

    fn is_in(&self, gid: u32, id_map: &IdMap) -> bool {
        !id_map.is_unknown_gid(gid) && self.gids.contains(&gid)
    }
}

/// Whether a caller that does not own a file may link it.
pub(crate) fn may_link(stat: &Stat, acl: Option<&Acl>, caller: &LinkCaller, id_map: &IdMap) -> bool {
    let runs_as_other = stat.mode & SET_USER_ID != 0 || stat.mode & RUNS_AS_GROUP == RUNS_AS_GROUP;
    stat.kind == FileKind::File && !runs_as_other && may_change(stat, acl, caller, id_map)
}

/// Whether mode and list give a caller that is not the owner the rights to read and write.
fn may_change(stat: &Stat, acl: Option<&Acl>, caller: &LinkCaller, id_map: &IdMap) -> bool {
    let class = |shift: u16| (stat.mode >> shift & 7) as u8;
    let has = |rights: u8| rights & READ_WRITE == READ_WRITE;
    let of_group = stat.group.as_ref().is_some_and(|group| caller.is_in(id_map.gid(Some(group)), id_map));
    let Some(acl) = acl else {
        return has(class(if of_group { 3 } else { 0 }));
    };
    let masked = |rights: u8| has(rights & class(3));
    if let Some((_, rights)) = acl.users.iter().find(|(name, _)| id_map.known_uid(name) == Some(caller.uid)) {
        return masked(*rights);
    }
    let in_named = |name| id_map.known_gid(name).is_some_and(|gid| caller.is_in(gid, id_map));
    let named = acl.groups.iter().filter(|(name, _)| in_named(name)).map(|(_, rights)| *rights);
    let mut rights = named.chain(of_group.then_some(acl.group)).peekable();
    match rights.peek() {
        Some(_) => rights.any(masked),
        None => has(class(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id_map::{MountingUser, UNKNOWN_ID};
    use sealstone_mds_protocol::{GroupName, InodeId, UserName};

    fn id_map() -> IdMap {
        let user = UserName::new("the-mounter").unwrap();
        let (uid, gid) = (71_000, 71_000);
        IdMap::new(MountingUser {
            user,
            uid,
            gid,
            others: true,
            unknown_uid: UNKNOWN_ID,
            unknown_gid: UNKNOWN_ID,
        })
    }

    fn file(mode: u16, group: &str) -> Stat {
        Stat {
            inode: InodeId(5),
            kind: FileKind::File,
            mode,
            owner: UserName::of_number(72_000),
            group: Some(GroupName::new(group).unwrap()),
            proof: [0; sealstone_mds_protocol::NODE_PROOF_BYTES],
            links: 1,
            rdev: 0,
            size: 0,
            version: 1,
            generation: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            birth_ns: 0,
            width: 0,
            checksum: None,
        }
    }

    #[test]
    fn caller_without_read_and_write_may_not_link() {
        let id_map = id_map();
        let caller = LinkCaller { uid: 72_001, gids: BTreeSet::from([72_100, UNKNOWN_ID]) };
        for (mode, group, expected) in [
            (0o666, "gid-1", true),
            (0o664, "gid-1", false),
            (0o660, "gid-72100", true),
            (0o606, "gid-72100", false),
            (0o4666, "gid-1", false),
            (0o2676, "gid-1", false),
            // A group without a local number is shown as the unknown one, which has no members.
            (0o660, "no-such-group-here", false),
        ] {
            assert_eq!(may_link(&file(mode, group), None, &caller, &id_map), expected, "{mode:o} {group}");
        }
        let acl = |text: &str| Acl::parse(text).unwrap();
        let named = acl("user::rw-,user:uid-72001:rw-,group::---,mask::rw-,other::---");
        assert!(may_link(&file(0o660, "gid-1"), Some(&named), &caller, &id_map));
        assert!(!may_link(&file(0o640, "gid-1"), Some(&named), &caller, &id_map), "the mask");
        let denied = acl("user::rw-,user:uid-72001:---,group::---,mask::rw-,other::rw-");
        assert!(!may_link(&file(0o666, "gid-1"), Some(&denied), &caller, &id_map));
    }
}
