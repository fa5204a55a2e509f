//! Types that several requests and responses share: ids, attributes, credentials, devices and
//! accounts.
//!
//! Does not: define the stored records of the server; `sealstone-mds` has its own.
//! Truth: docs/standards/mds/operations.md §5.2.

use alloc::vec::Vec;

use sealstone_osd::{ObjectId, ObjectType};

use crate::layout::{DeviceId, Layout, ObjectRef};
use crate::login::SessionId;
use crate::name::{GroupName, Name, UserName};
use crate::nodes::{ClientId, NODE_PROOF_BYTES, Node};
use crate::placement::Drain;
use crate::secret::Secret;
use crate::wire::{Text, Wire, WireError, WireReader, WireWriter, code, record};

/// Length of a device's system id (VPD page 83h designator, padded with zeros).
pub const SYSTEM_ID_BYTES: usize = 20;

/// Inode number of a node; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(pub u64);

/// Id of a create that is not committed; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IntentId(pub u64);

macro_rules! id {
    ($($type:ident),*) => {$(
        impl Wire for $type {
            fn put(&self, out: &mut WireWriter) {
                self.0.put(out);
            }
            fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
                Ok(Self(u64::get(input)?))
            }
        }
    )*};
}
id!(InodeId, IntentId);

code! {
    /// Security method of a credential; each includes the weaker ones. Codes are those of T10.
    pub enum Method: u8 as "security method" {
        /// No integrity check.
        NoSec = 0,
        /// The capability is authenticated, nothing else.
        CapKey = 1,
        /// Command and response are authenticated.
        CmdRsp = 2,
        /// Data is authenticated too.
        AllData = 3,
    }
}

code! {
    /// Kind of a node.
    pub enum FileKind: u8 as "file kind" {
        /// A file with data.
        File = 1,
        /// A directory.
        Directory = 2,
        /// A symbolic link.
        Symlink = 3,
        /// A named pipe.
        Fifo = 4,
        /// A socket.
        Socket = 5,
        /// A character device.
        CharDevice = 6,
        /// A block device.
        BlockDevice = 7,
    }
}

code! {
    /// Access mode of an open file.
    pub enum Access: u8 as "access" {
        /// Read data and attributes.
        Read = 1,
        /// Read, and change data in place.
        Update = 2,
        /// Change data in place without reading it.
        Write = 3,
        /// Run the file as a function on the devices that have its objects. Only by path.
        Execute = 4,
        /// Let a function read data and attributes of the objects. Only by path.
        CallRead = 5,
        /// Let a function read and change existing data. Only by path.
        CallUpdate = 6,
        /// Set the function attributes of the objects. Only by path.
        Describe = 7,
    }
}

impl Access {
    /// Whether it needs the right to read the file.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Update | Self::CallRead | Self::CallUpdate)
    }

    /// Whether it needs the right to write the file.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Update | Self::Write | Self::CallUpdate | Self::Describe)
    }

    /// Whether it needs the right to execute the file.
    #[must_use]
    pub const fn executes(self) -> bool {
        matches!(self, Self::Execute)
    }

    /// Whether it may change bytes of the objects.
    #[must_use]
    pub const fn changes_data(self) -> bool {
        matches!(self, Self::Update | Self::Write | Self::CallUpdate)
    }

    /// Whether a client may have a node open with it.
    #[must_use]
    pub const fn is_of_nodes(self) -> bool {
        matches!(self, Self::Read | Self::Update | Self::Write)
    }
}

code! {
    /// Algorithm of a checksum.
    pub enum ChecksumKind: u8 as "checksum" {
        /// SHA-256 of the whole file.
        Sha256 = 1,
        /// CRC32C of the whole file, big-endian in the first four bytes, rest zero.
        Crc32c = 2,
        /// BLAKE3 of the whole file.
        Blake3 = 3,
    }
}

record! {
    /// Checksum of a file from its writer; the server stores it without checking it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Checksum {
        pub kind: ChecksumKind,
        pub value: [u8; 32],
    }
}

record! {
    /// Attributes of a node.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Stat {
        pub inode: InodeId,
        /// Proof with which this user may address the node by number; zeros if it was not
        /// requested.
        pub proof: [u8; NODE_PROOF_BYTES],
        pub kind: FileKind,
        /// Permission bits, 12 low bits as in POSIX.
        pub mode: u16,
        pub owner: UserName,
        /// Group that the group bits of the mode apply to, if any.
        pub group: Option<GroupName>,
        /// Number of links; for a directory 2 plus its subdirectories; 0 after the last name was
        /// removed.
        pub links: u32,
        /// Device number of a device node; else 0.
        pub rdev: u32,
        /// Size of a file, or length of a link's target; else 0.
        pub size: u64,
        /// Data version: increases with each change of content.
        pub version: u64,
        /// Increases when a cached layout, or bytes written past the end, are no longer valid.
        pub generation: u32,
        /// Time of the last read, as reported by clients; nanoseconds since 1970, as all times
        /// here.
        pub atime_ns: i64,
        /// Time of the last change of content.
        pub mtime_ns: i64,
        /// Time of the last change of content or attributes.
        pub ctime_ns: i64,
        /// Time of creation.
        pub birth_ns: i64,
        /// Number of objects with data; 0 if there are none.
        pub width: u16,
        /// Checksum given at commit.
        pub checksum: Option<Checksum>,
    }
}

/// A time this far ahead of the clock came from a wrong clock, nanoseconds.
const CHANGES_AHEAD_NS: i64 = 1_000_000_000;

impl Stat {
    /// Returns the node for requests by inode number.
    #[must_use]
    pub const fn node(&self) -> Node {
        Node { inode: self.inode, proof: self.proof }
    }

    /// Returns the time of a change after one at `last_ns`. Two changes in the same millisecond get
    /// different times; a time from a wrong clock is not kept.
    #[must_use]
    pub const fn changed_ns(last_ns: i64, now_ms: u64) -> i64 {
        let now_ns = Self::ns(now_ms);
        let follows = last_ns >= now_ns && last_ns.saturating_sub(now_ns) < CHANGES_AHEAD_NS;
        if follows { last_ns + 1 } else { now_ns }
    }

    /// Converts milliseconds to nanoseconds.
    #[must_use]
    pub const fn ns(ms: u64) -> i64 {
        const MAX: i64 = i64::MAX / 1_000_000;
        if ms > MAX as u64 { MAX * 1_000_000 } else { ms as i64 * 1_000_000 }
    }

    /// Converts nanoseconds to milliseconds since 1970; 0 for earlier times.
    #[must_use]
    pub const fn ms(time_ns: i64) -> u64 {
        if time_ns < 0 { 0 } else { time_ns as u64 / 1_000_000 }
    }
}

record! {
    /// One entry of a directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DirEntry {
        pub name: Name,
        /// Inode number of the node.
        pub inode: InodeId,
        pub kind: FileKind,
        /// Attributes; `None` in a directory that the caller may list but not search.
        pub stat: Option<Stat>,
    }
}

/// An encoded capability: 80 bytes (OSD-1) or 104 (OSD-2), opaque here.
#[derive(Clone, PartialEq, Eq)]
pub struct CapabilityBlob(Vec<u8>);

impl CapabilityBlob {
    /// Maximum length of a capability.
    pub const MAX: usize = 104;

    /// Wraps encoded capability bytes.
    ///
    /// # Errors
    /// `TooLong`.
    pub fn new(bytes: Vec<u8>) -> Result<Self, WireError> {
        if bytes.len() > Self::MAX { Err(WireError::TooLong { limit: Self::MAX }) } else { Ok(Self(bytes)) }
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

impl core::fmt::Debug for CapabilityBlob {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "CapabilityBlob({} bytes)", self.0.len())
    }
}

impl Wire for CapabilityBlob {
    fn put(&self, out: &mut WireWriter) {
        out.lv16(&self.0);
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(Self(input.lv16(Self::MAX)?.to_vec()))
    }
}

record! {
    /// A credential: a capability for one object, with its key.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Grant {
        pub object: ObjectRef,
        /// Security method.
        pub method: Method,
        /// Expiry, milliseconds since 1970 of the device's clock.
        pub expires_ms: u64,
        /// Encoded capability.
        pub capability: CapabilityBlob,
        /// Capability key (20 or 32 bytes).
        pub key: Secret,
    }
}

/// An open file or an uncommitted create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenHandle {
    /// From Open.
    File {
        /// The file.
        node: Node,
        /// Access mode.
        access: Access,
    },
    /// From Create.
    Intent(IntentId),
    /// From OpenNode, Allocate, MakeNode: renewed for the client that has it open, whatever the
    /// mode is now.
    Node {
        /// The file.
        node: Node,
        /// Access mode.
        access: Access,
        /// The client that has it open.
        client_id: ClientId,
    },
}

impl Wire for OpenHandle {
    fn put(&self, out: &mut WireWriter) {
        match self {
            Self::File { node, access } => {
                1u8.put(out);
                node.put(out);
                access.put(out);
            }
            Self::Intent(intent) => {
                2u8.put(out);
                intent.put(out);
            }
            Self::Node { node, access, client_id } => {
                3u8.put(out);
                node.put(out);
                access.put(out);
                client_id.put(out);
            }
        }
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::get(input)? {
            1 => Ok(Self::File { node: Node::get(input)?, access: Access::get(input)? }),
            2 => Ok(Self::Intent(IntentId::get(input)?)),
            3 => Ok(Self::Node {
                node: Node::get(input)?,
                access: Access::get(input)?,
                client_id: ClientId::get(input)?,
            }),
            code => Err(WireError::UnknownCode { what: "handle", code: u32::from(code) }),
        }
    }
}

record! {
    /// An uncommitted create: write the objects with these credentials, then commit. The
    /// credentials allow CREATE and WRITE, so objects need not exist yet.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CreatedFile {
        pub intent: IntentId,
        /// Inode number of the file.
        pub inode: InodeId,
        /// The create expires then without a commit or renewal, milliseconds since 1970.
        pub expires_ms: u64,
        pub layout: Layout,
        /// One credential per object of the layout, in its order.
        pub grants: Vec<Grant>,
    }
}

record! {
    /// An open file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct OpenedFile {
        pub stat: Stat,
        /// Layout; `None`: the file is all zeros.
        pub layout: Option<Layout>,
        /// One credential per object of the layout, in its order.
        pub grants: Vec<Grant>,
        /// Whether the file was written in place: then missing bytes of an object read as zeros.
        pub sparse: bool,
    }
}

code! {
    /// State of a device as the server sees it.
    pub enum DeviceState: u8 as "device state" {
        /// Being set up; has no objects yet.
        Joining = 1,
        /// Takes new objects.
        Active = 2,
        /// Serves, but takes no new objects.
        Draining = 3,
        /// Did not respond recently; takes no new objects.
        Unreachable = 4,
        /// Added by an operator; not contacted and not used until an administrator approves it.
        Pending = 5,
    }
}

impl DeviceState {
    /// Whether the device may have objects of files: it was approved and used.
    #[must_use]
    pub const fn was_in_use(self) -> bool {
        matches!(self, Self::Active | Self::Draining | Self::Unreachable)
    }
}

code! {
    /// Why the last attempt to reach or set up a device failed.
    pub enum ProblemKind: u8 as "device problem" {
        /// The device does not respond.
        Silent = 1,
        /// The device refuses the server's credentials: its key is different.
        Denied = 2,
        /// Another device responds at its address.
        OtherDevice = 3,
        /// The device responds with an error.
        Failed = 4,
        /// The device refuses the login, or does not authenticate itself.
        NotAdmitted = 5,
        /// The device's certificate does not match its pin.
        OtherCertificate = 6,
    }
}

record! {
    /// Result of a failed attempt to use a device.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DeviceProblem {
        /// Kind, by the remedy.
        pub kind: ProblemKind,
        /// Description for users.
        pub said: Text<96>,
    }
}

/// Length of a certificate's hash.
pub const PIN_BYTES: usize = 32;

code! {
    /// Which certificate a pin is the hash of.
    pub enum PinKind: u8 as "kind of pin" {
        /// The peer's own certificate.
        Certificate = 1,
        /// The certificate of the authority that must have signed the peer's certificate for the
        /// peer's name.
        Authority = 2,
    }
}

record! {
    /// Identifies the certificate of a TLS peer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DevicePin {
        pub kind: PinKind,
        /// SHA-256 of that certificate in DER.
        pub hash: [u8; PIN_BYTES],
    }
}

record! {
    /// Public data of a device.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Device {
        /// Id in layouts.
        pub id: DeviceId,
        /// Name from its operator.
        pub name: Name,
        /// OSD system id.
        pub system_id: [u8; SYSTEM_ID_BYTES],
        /// Address, `iscsi://HOST:PORT/IQN/LUN`.
        pub url: Text<512>,
        /// Pin of its certificate. A client with a pin uses TLS only.
        pub pin: Option<DevicePin>,
        pub state: DeviceState,
        /// Capacity in bytes; 0 until it is known.
        pub total: u64,
        /// Used bytes.
        pub used: u64,
        /// Speed in bytes per second as the operator set it; 0: not set.
        pub speed: u64,
        /// The last problem; `None` if there is none or it was not contacted yet.
        pub problem: Option<DeviceProblem>,
        /// Progress of its drain, if any.
        pub drain: Option<Drain>,
    }
}

record! {
    /// A device to add.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct NewDevice {
        /// Name from its operator.
        pub name: Name,
        /// OSD system id.
        pub system_id: [u8; SYSTEM_ID_BYTES],
        /// Address, `iscsi://HOST:PORT/IQN/LUN`.
        pub url: Text<512>,
        /// Pin of its certificate. A client with a pin uses TLS only.
        pub pin: Option<DevicePin>,
        /// Capacity in bytes if known; the server queries the device later anyway.
        pub capacity: u64,
        /// Speed in bytes per second, for placement; 0: not set, a known value stays.
        pub speed: u64,
        /// Initial master key from the device's key file (authentication key ‖ generation key, or
        /// one seed).
        pub master_key: Secret,
    }
}

code! {
    /// Role of an account. Owner, group and mode of a file limit access further.
    pub enum Role: u8 as "role" {
        /// All operations.
        Admin = 1,
        /// Devices and metrics; no files, no accounts.
        Operator = 2,
        /// Reads and writes files.
        User = 3,
        /// Files, read only.
        ReadOnly = 4,
    }
}

impl Role {
    /// Returns the name for users and configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::User => "user",
            Self::ReadOnly => "read-only",
        }
    }

    /// Returns the role with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|role| role.as_str() == name)
    }
}

code! {
    /// Login method of an account.
    pub enum AccountKind: u8 as "account kind" {
        /// A password.
        Password = 1,
        /// The key file of a program; never a password.
        Service = 2,
        /// A password; a directory service (LDAP) defines whether the account exists, and its
        /// groups.
        Directory = 3,
    }
}

record! {
    /// An account as administrators see it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct User {
        pub name: UserName,
        pub role: Role,
        pub kind: AccountKind,
        /// Whether it may log in.
        pub enabled: bool,
        /// Time of creation, milliseconds since 1970.
        pub created_ms: u64,
        /// Suites with a password or key; none before enrolment.
        pub suites: Vec<u16>,
        /// Expiry of its enrolment code, milliseconds since 1970; `None` if it has none.
        pub code_until_ms: Option<u64>,
    }
}

record! {
    /// A group as administrators see it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Group {
        pub name: GroupName,
        /// Time of creation, milliseconds since 1970.
        pub created_ms: u64,
    }
}

record! {
    /// A user with a credential for an object of a file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CredentialHolder {
        pub user: UserName,
        /// Session that it was issued to; devices log it as `principal`.
        pub session: SessionId,
        pub object: ObjectRef,
        /// Whether it permits changes.
        pub writes: bool,
        /// Expiry at the device, milliseconds since 1970.
        pub expires_ms: u64,
    }
}

/// Object type of credentials for files: user objects.
pub const GRANT_OBJECT_TYPE: ObjectType = ObjectType::User;

/// The first of the partitions that hold file data, on every device.
pub const FILE_PARTITION: u64 = 0x1_0000;
/// Maximum number of partitions for file data.
pub const FILE_PARTITIONS_MAX: u64 = 4096;

/// Whether the object id is in a partition for file data.
#[must_use]
pub const fn is_file_object(object: ObjectId) -> bool {
    object.partition >= FILE_PARTITION
        && object.partition - FILE_PARTITION < FILE_PARTITIONS_MAX
        && object.object >= ObjectId::FIRST_ASSIGNABLE
}
