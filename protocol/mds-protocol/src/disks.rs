//! End-to-end protected disks: their records, keys of users, leases and roots.
//!
//! Truth: docs/standards/mds/disks.md.

use alloc::vec::Vec;

use crate::name::{Name, UserName};
use crate::wire::record;

/// Bytes of the identifier of a unit.
pub const DISK_UNIT_BYTES: usize = 16;
/// Bytes of a user's public key.
pub const DISK_PUBLIC_KEY_BYTES: usize = 32;
/// Bytes of the key of a disk, wrapped for a user.
pub const WRAPPED_DISK_KEY_BYTES: usize = 84;
/// Bytes of the key of an earlier epoch, wrapped under that of the next one.
pub const PREVIOUS_DISK_KEY_BYTES: usize = 48;
/// Bytes of a root.
pub const DISK_ROOT_BYTES: usize = 136;
/// Maximum users of a disk.
pub const DISK_USERS_MAX: usize = 64;
/// Maximum key epochs of a disk.
pub const DISK_KEY_EPOCHS_MAX: u16 = 256;
/// Maximum disks of a user.
pub const DISKS_OF_USER_MAX: u64 = 1024;
/// Maximum number of disks in a page: the largest record has about 600 bytes.
pub const DISK_PAGE_MAX: u16 = 64;

record! {
    /// The key of a disk, wrapped for one user.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DiskKeyCopy {
        pub user: UserName,
        /// The wrapped key, which the server cannot open.
        pub wrapped: [u8; WRAPPED_DISK_KEY_BYTES],
    }
}

record! {
    /// The lease of a disk.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DiskLeaseInfo {
        pub user: UserName,
        /// Number of the lease.
        pub epoch: u32,
        /// Milliseconds for which it is valid without renewal; 0: it has ended.
        pub left_ms: u64,
    }
}

record! {
    /// State of a disk.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DiskInfo {
        pub name: Name,
        /// Identifier of the unit.
        pub unit: [u8; DISK_UNIT_BYTES],
        pub owner: UserName,
        pub created_ms: u64,
        /// Epoch of the newest key.
        pub key_epoch: u16,
        /// Version of the root; `None`: the unit was not formatted.
        pub root_version: Option<u64>,
        /// The last lease.
        pub lease: Option<DiskLeaseInfo>,
        /// Reports of clients about wrong data.
        pub failures: u32,
        /// The last report.
        pub last_failure: Option<crate::wire::Text<512>>,
    }
}

record! {
    /// Everything that a user of a disk needs to open it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DiskAccess {
        pub info: DiskInfo,
        /// Users with a copy of the key.
        pub users: Vec<UserName>,
        /// The copy of the requesting user.
        pub wrapped: Option<[u8; WRAPPED_DISK_KEY_BYTES]>,
        /// Wrapped keys of earlier epochs, the newest first.
        pub previous: Vec<[u8; PREVIOUS_DISK_KEY_BYTES]>,
        pub root: Option<[u8; DISK_ROOT_BYTES]>,
    }
}

record! {
    /// The next key of a disk.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DiskRotation {
        /// The epoch of the key that it replaces.
        pub key_epoch: u16,
        /// The replaced key, wrapped under the next one.
        pub previous: [u8; PREVIOUS_DISK_KEY_BYTES],
        /// The next key for each user; the others lose access.
        pub copies: Vec<DiskKeyCopy>,
    }
}
