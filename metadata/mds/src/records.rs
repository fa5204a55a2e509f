//! Values of the metadata store: a version byte, then fields encoded as on the wire.
//!
//! Does: defines the stored records: inodes, open creates, accounts, groups, sessions, devices.
//! Does not: know their keys; `keys` does.
//! Truth: docs/standards/mds/store.md §8.

use sealstone_mds_protocol::login::{REGISTRATION_UPLOAD_BYTES, SessionId};
use sealstone_mds_protocol::{
    AccountKind, Acl, Checksum, DevicePin, DeviceState, FileKind, GroupName, InodeId, Layout, LinkTarget,
    Method, NODE_PROOF_BYTES, Name, PlacementRecord, Role, SYSTEM_ID_BYTES, Stat, Text, UserName, Wire,
    WireReader, WireWriter, record,
};

use crate::store::{MetaError, Snapshot, Transaction, VALUE_MAX};

/// Version of every record of this release.
const RECORD_VERSION: u8 = 1;

record! {
    /// A node: file, directory, symbolic link or special file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Inode {
        /// Kind of node.
        pub kind: FileKind,
        /// Permission bits.
        pub mode: u16,
        /// Owning user.
        pub owner: UserName,
        /// Group that the group bits apply to; none: no user has the group's rights.
        pub group: Option<GroupName>,
        /// Number of names; of a directory 2 plus the number of directories in it. 0 for an orphan.
        pub links: u32,
        /// Device number of a special file.
        pub rdev: u32,
        /// Size in bytes.
        pub size: u64,
        /// Grows with each change of content.
        pub version: u64,
        /// Grows when the layout that clients know, or bytes that they wrote behind the end, become
        /// invalid.
        pub generation: u32,
        /// Last read, nanoseconds since 1970.
        pub atime_ns: i64,
        /// Last change of content.
        pub mtime_ns: i64,
        /// Last change of content or attributes.
        pub ctime_ns: i64,
        /// Time of creation.
        pub birth_ns: i64,
        /// Parent of a directory (itself for the root); 0 for all other nodes.
        pub parent: InodeId,
        /// Directory of the quota tree that contains the node; itself for that directory.
        pub tree: Option<InodeId>,
        /// Objects of a file; none before its first byte.
        pub layout: Option<Layout>,
        /// Reason for the choice of that layout.
        pub placed: Option<PlacementRecord>,
        /// Whether all objects of the layout exist on their devices.
        pub objects_exist: bool,
        /// Whether bytes were written in place. Then bytes that an object does not have read as
        /// zeros.
        pub sparse: bool,
        /// From this offset the objects may hold truncated bytes. The file does not grow beyond it
        /// until they are cleared.
        pub truncated_from: Option<u64>,
        /// As stated at commit.
        pub checksum: Option<Checksum>,
        /// Until then a credential that may create its objects can be valid.
        pub create_grants_until_ms: u64,
        /// The time until which such a credential of an in-place writer can be valid, of whose
        /// writes nothing was reported yet.
        pub in_place_grants_until_ms: u64,
        /// Target of a symbolic link.
        pub target: Option<LinkTarget>,
        /// Number of extended attributes.
        pub xattrs: u16,
        /// Total bytes of their names and values.
        pub xattr_bytes: u32,
        /// Rights of further users and groups. Owner, mask and others come from the permission
        /// bits, not from this list.
        pub acl: Option<Acl>,
        /// Of a directory: the list that new nodes in it get.
        pub default_acl: Option<Acl>,
    }
}

/// Converts milliseconds to nanoseconds, both since 1970.
pub(crate) const fn ns(ms: u64) -> i64 {
    Stat::ns(ms)
}

impl Inode {
    /// Creates an empty node without a name, with all times now.
    pub(crate) fn new(
        kind: FileKind,
        mode: u16,
        owner: UserName,
        group: Option<GroupName>,
        now_ms: u64,
    ) -> Self {
        let now_ns = ns(now_ms);
        Self {
            kind,
            mode,
            owner,
            group,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            rdev: 0,
            size: 0,
            version: 0,
            generation: 0,
            atime_ns: now_ns,
            mtime_ns: now_ns,
            ctime_ns: now_ns,
            birth_ns: now_ns,
            parent: InodeId(0),
            tree: None,
            layout: None,
            placed: None,
            objects_exist: false,
            sparse: false,
            truncated_from: None,
            checksum: None,
            create_grants_until_ms: 0,
            in_place_grants_until_ms: 0,
            target: None,
            xattrs: 0,
            xattr_bytes: 0,
            acl: None,
            default_acl: None,
        }
    }

    /// Sets the time of the last change to now.
    pub(crate) fn changes(&mut self, now_ms: u64) {
        self.ctime_ns = Stat::changed_ns(self.ctime_ns, now_ms);
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub(crate) fn stat(&self, id: InodeId) -> Stat {
        Stat {
            inode: id,
            proof: [0; NODE_PROOF_BYTES],
            kind: self.kind,
            mode: self.mode,
            owner: self.owner.clone(),
            group: self.group.clone(),
            links: self.links,
            rdev: self.rdev,
            size: self.size,
            version: self.version,
            generation: self.generation,
            atime_ns: self.atime_ns,
            mtime_ns: self.mtime_ns,
            ctime_ns: self.ctime_ns,
            birth_ns: self.birth_ns,
            width: self.layout.as_ref().map_or(0, |layout| layout.width() as u16),
            checksum: self.checksum,
        }
    }
}

record! {
    /// A create in progress.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Intent {
        /// User that creates the file.
        pub user: UserName,
        /// Directory; its number, so that a rename above does not matter.
        pub parent: InodeId,
        /// Name in the directory.
        pub name: Name,
        /// Inode number of the future file.
        pub inode: InodeId,
        /// Permission bits.
        pub mode: u16,
        /// Whether it may replace an existing file.
        pub replace: bool,
        /// Method of its credentials.
        pub method: Method,
        /// Objects for its bytes.
        pub layout: Layout,
        /// Reason for the choice of that layout.
        pub placed: Option<PlacementRecord>,
        /// The create expires at this time.
        pub expires_ms: u64,
        /// Until then a credential for its objects can be valid.
        pub grants_until_ms: u64,
    }
}

record! {
    /// Credential that an account logs in with.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AccountCredential {
        /// Login suite of the record.
        pub suite: u16,
        /// OPAQUE record.
        pub record: [u8; REGISTRATION_UPLOAD_BYTES],
    }
}

record! {
    /// An unused enrolment code.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Invitation {
        /// Digest of the code; the code itself is not stored.
        pub digest: [u8; 32],
        /// The code expires at this time.
        pub expires_ms: u64,
    }
}

record! {
    /// An account.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Account {
        /// Person or service.
        pub kind: AccountKind,
        /// The role, which determines its rights.
        pub role: Role,
        /// Whether it may log in.
        pub enabled: bool,
        /// Time of creation.
        pub created_ms: u64,
        /// At most one for each suite; none before the enrolment.
        pub credentials: Vec<AccountCredential>,
        /// The enrolment code.
        pub invitation: Option<Invitation>,
        /// Of a directory user's account: digest of the permanent id of the directory entry.
        pub entry: Option<[u8; 32]>,
    }
}

record! {
    /// A group.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct GroupRecord {
        /// Time of creation.
        pub created_ms: u64,
    }
}

/// In the place of a login suite: the session was opened by the paper's login.
pub(crate) const SUITE_PAPER: u16 = 0;

record! {
    /// Groups of a user according to the directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DirectoryGroups {
        /// Groups of the user.
        pub groups: Vec<GroupName>,
        /// Time of the query.
        pub asked_ms: u64,
    }
}

record! {
    /// A session. It is stored so that it survives a restart of the server.
    #[derive(Clone, PartialEq, Eq)]
    pub struct SessionRecord {
        /// User of the session.
        pub user: UserName,
        /// Role at login according to the account or directory. A change of the role ends the
        /// session.
        pub role: Role,
        /// Suite of the password or key of the login, or [`SUITE_PAPER`].
        pub suite: u16,
        /// The session ends at this time at the latest.
        pub expires_ms: u64,
        /// Time of the last request as stored; at most [`crate::sessions::TOUCH_EVERY_MS`] too old.
        pub last_used_ms: u64,
        /// Key with which a client resumes the session; in the paper's profile random bytes that
        /// are never used.
        pub keys: [u8; 32],
        /// Groups according to the directory; none if the user is not a directory user.
        pub directory: Option<DirectoryGroups>,
    }
}

impl Drop for SessionRecord {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.keys);
    }
}

record! {
    /// A device, without its keys.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DeviceRecord {
        /// Name of the device.
        pub name: Name,
        /// OSD system id.
        pub system_id: [u8; SYSTEM_ID_BYTES],
        /// Address of the device.
        pub url: Text<512>,
        /// Pin of its TLS certificate.
        pub pin: Option<DevicePin>,
        /// State of the device.
        pub state: DeviceState,
        /// Last reported capacity, bytes.
        pub total: u64,
        /// Last reported use, bytes.
        pub used: u64,
        /// Bytes per second as configured by its operator; 0: not configured.
        pub speed: u64,
    }
}

/// Number of a session in the table of its user.
pub(crate) type SessionKey = SessionId;

/// Encodes a record.
pub(crate) fn encode(record: &impl Wire) -> Result<Vec<u8>, MetaError> {
    let mut out = WireWriter::new();
    RECORD_VERSION.put(&mut out);
    record.put(&mut out);
    out.finish(VALUE_MAX).map_err(|_| MetaError::TooLong { limit: VALUE_MAX })
}

/// Decodes a record.
pub(crate) fn decode<T: Wire>(bytes: &[u8]) -> Result<T, MetaError> {
    let (version, rest) = bytes.split_first().ok_or(MetaError::Damaged("empty record"))?;
    if *version != RECORD_VERSION {
        return Err(MetaError::Damaged("record of an unknown version"));
    }
    let mut input = WireReader::new(rest);
    let record = T::get(&mut input).map_err(|_| MetaError::Damaged("record does not parse"))?;
    input.finish().map_err(|_| MetaError::Damaged("record has a tail"))?;
    Ok(record)
}

/// Loads the record under a key.
pub(crate) fn load<T: Wire, S: Snapshot + ?Sized>(view: &S, key: &[u8]) -> Result<Option<T>, MetaError> {
    // The record may be a secret, so the buffer is wiped.
    view.get(key)?.map(|bytes| decode(&zeroize::Zeroizing::new(bytes))).transpose()
}

/// Stores a record under a key.
pub(crate) fn save(tx: &mut dyn Transaction, key: &[u8], record: &impl Wire) -> Result<(), MetaError> {
    tx.put(key, &zeroize::Zeroizing::new(encode(record)?))
}

/// Takes the next number of a counter. It is stored in the transaction that uses it, so no crash
/// gives out a number twice.
pub(crate) fn next_number(tx: &mut dyn Transaction, counter: &str) -> Result<u64, MetaError> {
    next_numbers(tx, counter, 1)
}

/// Takes `count` consecutive numbers of a counter; returns the first.
pub(crate) fn next_numbers(tx: &mut dyn Transaction, counter: &str, count: u64) -> Result<u64, MetaError> {
    let key = crate::keys::meta(counter);
    let number: u64 = load(tx, &key)?.unwrap_or(1);
    let next = number.checked_add(count).ok_or(MetaError::Damaged("counter is used up"))?;
    save(tx, &key, &next)?;
    Ok(number)
}

/// Adds to a stored total (files, directories, …).
pub(crate) fn count(tx: &mut dyn Transaction, counter: &str, by: i64) -> Result<(), MetaError> {
    let key = crate::keys::meta(counter);
    let number: u64 = load(tx, &key)?.unwrap_or(0);
    save(tx, &key, &number.saturating_add_signed(by))
}

/// Returns a stored total.
pub(crate) fn figure<S: Snapshot + ?Sized>(view: &S, counter: &str) -> Result<u64, MetaError> {
    Ok(load(view, &crate::keys::meta(counter))?.unwrap_or(0))
}

/// Names of counters and totals.
pub(crate) mod counter {
    pub(crate) const INODE: &str = "next/inode";
    pub(crate) const INTENT: &str = "next/intent";
    pub(crate) const OBJECT: &str = "next/object";
    pub(crate) const DEVICE: &str = "next/device";
    pub(crate) const TAG: &str = "next/tag";
    pub(crate) const REVOCATION: &str = "next/revocation";
    pub(crate) const SERVER: &str = "next/server";
    pub(crate) const FILES: &str = "count/files";
    pub(crate) const DIRECTORIES: &str = "count/directories";
    pub(crate) const INTENTS: &str = "count/intents";
    pub(crate) const RESULTS: &str = "count/results";
    pub(crate) const REAPS: &str = "count/reaps";
    pub(crate) const ORPHANS: &str = "count/orphans";
    pub(crate) const CLEARS: &str = "count/clears";
    pub(crate) const USERS: &str = "count/users";
    pub(crate) const SESSIONS: &str = "count/sessions";
    pub(crate) const LOCKS: &str = "count/locks";
    pub(crate) const GROUPS: &str = "count/groups";
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn damaged_records_are_errors_not_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(first) = bytes.first_mut() {
                *first = RECORD_VERSION;
            }
            let _ = decode::<Inode>(&bytes);
            let _ = decode::<Intent>(&bytes);
            let _ = decode::<Account>(&bytes);
            let _ = decode::<SessionRecord>(&bytes);
            let _ = decode::<DeviceRecord>(&bytes);
        }
    }

    #[test]
    fn record_of_other_version_is_refused() {
        let mut bytes = encode(&7u64).unwrap();
        bytes[0] = 2;
        assert!(matches!(decode::<u64>(&bytes), Err(MetaError::Damaged("record of an unknown version"))));
    }
}
