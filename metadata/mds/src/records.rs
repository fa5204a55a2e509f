//! Values of the metadata store: a version byte, then fields as on the wire.

use sealstone_mds_protocol::login::{REGISTRATION_UPLOAD_BYTES, SessionId};
use sealstone_mds_protocol::{
    AccountKind, Acl, Checksum, DevicePin, DeviceState, FileKind, GroupName, InodeId, Layout, Method,
    NODE_PROOF_BYTES, Name, Placed, Reader, Role, SYSTEM_ID_BYTES, Stat, Target, Text, UserName, Wire,
    Writer, record,
};

use crate::store::{MetaError, Snapshot, Transaction, VALUE_MAX};

/// Version of every record of this release.
const RECORD_VERSION: u8 = 1;

record! {
    /// A node: a file, a directory, …
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Inode {
        /// Which of them.
        pub kind: FileKind,
        /// Permission bits.
        pub mode: u16,
        /// Whose it is.
        pub owner: UserName,
        /// Whom the group bits are for; none: nobody.
        pub group: Option<GroupName>,
        /// Names that lead to it; of a directory 2 and one for each directory in it. 0: an orphan, held open.
        pub links: u32,
        /// Number of a device.
        pub rdev: u32,
        /// Bytes.
        pub size: u64,
        /// Grows with each change of content.
        pub version: u64,
        /// Grows when what a client knows of the layout, or wrote behind the end, is good no more.
        pub generation: u32,
        /// Last read, nanoseconds since 1970.
        pub atime_ns: i64,
        /// Last change of content.
        pub mtime_ns: i64,
        /// Last change of anything.
        pub ctime_ns: i64,
        /// Made at.
        pub birth_ns: i64,
        /// The directory above a directory (itself for the root); 0 for all else.
        pub parent: InodeId,
        /// The directory of the tree with a quota that it is in; itself for that directory.
        pub tree: Option<InodeId>,
        /// Where a file's bytes are; none before its first byte.
        pub layout: Option<Layout>,
        /// Why it is that layout.
        pub placed: Option<Placed>,
        /// Are all objects of the layout on their devices?
        pub made: bool,
        /// Were its bytes written in place? Then what is missing in an object reads as zeros.
        pub sparse: bool,
        /// From here on the objects may hold bytes that were cut off; not longer than that until they are gone.
        pub old_from: Option<u64>,
        /// As given at commit.
        pub checksum: Option<Checksum>,
        /// Until then a grant that may create its objects can be alive.
        pub create_grants_until_ms: u64,
        /// The same of grants for who writes in place, and may not have been heard of yet.
        pub placing_until_ms: u64,
        /// Where a symbolic link leads.
        pub target: Option<Target>,
        /// Extended attributes.
        pub xattrs: u16,
        /// Bytes of their names and values.
        pub xattr_bytes: u32,
        /// Whom it names beyond owner and group. Owner, mask and others of it are the permission bits, whatever it says.
        pub acl: Option<Acl>,
        /// Of a directory: the list of what is made in it.
        pub default_acl: Option<Acl>,
    }
}

/// Nanoseconds of milliseconds, both since 1970.
pub(crate) const fn ns(ms: u64) -> i64 {
    Stat::ns(ms)
}

impl Inode {
    /// A new one without a name: empty, of now.
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
            made: false,
            sparse: false,
            old_from: None,
            checksum: None,
            create_grants_until_ms: 0,
            placing_until_ms: 0,
            target: None,
            xattrs: 0,
            xattr_bytes: 0,
            acl: None,
            default_acl: None,
        }
    }

    /// It changes now.
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
    /// A create under way.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Intent {
        /// Who creates.
        pub user: UserName,
        /// Directory: its number, so that a rename above does not matter.
        pub parent: InodeId,
        /// Name in it.
        pub name: Name,
        /// Number of the file to be.
        pub inode: InodeId,
        /// Permission bits.
        pub mode: u16,
        /// May it take an older file's place?
        pub replace: bool,
        /// Method its grants were made for.
        pub method: Method,
        /// Where its bytes go.
        pub layout: Layout,
        /// Why there.
        pub placed: Option<Placed>,
        /// Gone after this.
        pub expires_ms: u64,
        /// Until then a grant for its objects can be alive.
        pub grants_until_ms: u64,
    }
}

record! {
    /// What an account logs in with.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AccountCredential {
        /// Suite that the record was made for.
        pub suite: u16,
        /// OPAQUE record.
        pub record: [u8; REGISTRATION_UPLOAD_BYTES],
    }
}

record! {
    /// An enrolment code that was not used yet.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Invitation {
        /// Digest of the code; the code itself is kept nowhere.
        pub digest: [u8; 32],
        /// Good for nothing from then on.
        pub expires_ms: u64,
    }
}

record! {
    /// An account.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Account {
        /// Person or program.
        pub kind: AccountKind,
        /// What it may do.
        pub role: Role,
        /// May log in.
        pub enabled: bool,
        /// Made at.
        pub created_ms: u64,
        /// At most one for each suite; none before the enrolment.
        pub credentials: Vec<AccountCredential>,
        /// The code to enrol with.
        pub invitation: Option<Invitation>,
        /// Of a directory's account: the digest of the lasting name of the entry that it was made for.
        pub entry: Option<[u8; 32]>,
    }
}

record! {
    /// A group.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct GroupRecord {
        /// Made at.
        pub created_ms: u64,
    }
}

/// In the place of a login suite: the session was opened by the paper's login.
pub(crate) const SUITE_PAPER: u16 = 0;

record! {
    /// What a directory said of a user.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DirectoryGroups {
        /// His groups.
        pub groups: Vec<GroupName>,
        /// When it was asked.
        pub asked_ms: u64,
    }
}

record! {
    /// A session, so that a restart of the server logs nobody out.
    #[derive(Clone, PartialEq, Eq)]
    pub struct SessionRecord {
        /// Whose.
        pub user: UserName,
        /// As the account or the directory had it at login; another one ends its sessions.
        pub role: Role,
        /// Suite of the password or key that it was opened with, or [`SUITE_PAPER`].
        pub suite: u16,
        /// Ends whatever happens.
        pub expires_ms: u64,
        /// Last request known to be stored; lags behind by at most [`crate::sessions::TOUCH_EVERY_MS`].
        pub last_used_ms: u64,
        /// What a client takes it up with; in the paper's profile random bytes that nobody has.
        pub keys: [u8; 32],
        /// What a directory said of the user; none if none is asked about him.
        pub directory: Option<DirectoryGroups>,
    }
}

impl Drop for SessionRecord {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.keys);
    }
}

record! {
    /// A device, without its key.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DeviceRecord {
        /// Name.
        pub name: Name,
        /// OSD system id.
        pub system_id: [u8; SYSTEM_ID_BYTES],
        /// Where it is.
        pub url: Text<512>,
        /// How it is known inside TLS.
        pub pin: Option<DevicePin>,
        /// State.
        pub state: DeviceState,
        /// Last known capacity, bytes.
        pub total: u64,
        /// Last known use, bytes.
        pub used: u64,
        /// Bytes per second as its operator says; 0: he does not.
        pub speed: u64,
    }
}

/// A session's place in the table of its user.
pub(crate) type SessionKey = SessionId;

/// The bytes of a record.
pub(crate) fn encode(record: &impl Wire) -> Result<Vec<u8>, MetaError> {
    let mut out = Writer::new();
    RECORD_VERSION.put(&mut out);
    record.put(&mut out);
    out.finish(VALUE_MAX).map_err(|_| MetaError::TooLong { limit: VALUE_MAX })
}

/// The record in the bytes.
pub(crate) fn decode<T: Wire>(bytes: &[u8]) -> Result<T, MetaError> {
    let (version, rest) = bytes.split_first().ok_or(MetaError::Damaged("empty record"))?;
    if *version != RECORD_VERSION {
        return Err(MetaError::Damaged("record of an unknown version"));
    }
    let mut input = Reader::new(rest);
    let record = T::get(&mut input).map_err(|_| MetaError::Damaged("record does not parse"))?;
    input.finish().map_err(|_| MetaError::Damaged("record has a tail"))?;
    Ok(record)
}

/// The record under a key.
pub(crate) fn load<T: Wire, S: Snapshot + ?Sized>(view: &S, key: &[u8]) -> Result<Option<T>, MetaError> {
    // Secret or not, which is not known here: what held it is wiped.
    view.get(key)?.map(|bytes| decode(&zeroize::Zeroizing::new(bytes))).transpose()
}

/// Sets the record under a key.
pub(crate) fn save(tx: &mut dyn Transaction, key: &[u8], record: &impl Wire) -> Result<(), MetaError> {
    tx.put(key, &zeroize::Zeroizing::new(encode(record)?))
}

/// Takes the next number of a counter. It is stored in the transaction that uses it, so a number that anybody has
/// seen is never given out again, whatever crashes.
pub(crate) fn next_number(tx: &mut dyn Transaction, counter: &str) -> Result<u64, MetaError> {
    next_numbers(tx, counter, 1)
}

/// The same of as many in a row; gives the first.
pub(crate) fn next_numbers(tx: &mut dyn Transaction, counter: &str, count: u64) -> Result<u64, MetaError> {
    let key = crate::keys::meta(counter);
    let number: u64 = load(tx, &key)?.unwrap_or(1);
    let next = number.checked_add(count).ok_or(MetaError::Damaged("counter is used up"))?;
    save(tx, &key, &next)?;
    Ok(number)
}

/// Adds to a figure (files, directories, …).
pub(crate) fn count(tx: &mut dyn Transaction, counter: &str, by: i64) -> Result<(), MetaError> {
    let key = crate::keys::meta(counter);
    let number: u64 = load(tx, &key)?.unwrap_or(0);
    save(tx, &key, &number.saturating_add_signed(by))
}

/// A figure.
pub(crate) fn figure<S: Snapshot + ?Sized>(view: &S, counter: &str) -> Result<u64, MetaError> {
    Ok(load(view, &crate::keys::meta(counter))?.unwrap_or(0))
}

/// Names of counters and figures.
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
    fn a_record_of_another_version_is_refused_by_name() {
        let mut bytes = encode(&7u64).unwrap();
        bytes[0] = 2;
        assert!(matches!(decode::<u64>(&bytes), Err(MetaError::Damaged("record of an unknown version"))));
    }
}
