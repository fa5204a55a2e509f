//! The nouns that requests and responses are made of.
//!
//! Truth: docs/standards/mds/operations.md §5.

use alloc::vec::Vec;

use sealstone_osd::{ObjectId, ObjectType};

use crate::layout::{DeviceId, Layout, ObjectRef};
use crate::login::SessionId;
use crate::name::{GroupName, Name, UserName};
use crate::nodes::{ClientId, NODE_PROOF_BYTES, Node};
use crate::placed::Drain;
use crate::secret::Secret;
use crate::wire::{Text, Wire, WireError, WireReader, WireWriter, code, record};

/// Bytes of a device's system id (VPD page 83h designator, padded with zeros).
pub const SYSTEM_ID_BYTES: usize = 20;

/// A file or directory, for as long as it lives; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(pub u64);

/// A create that is not committed yet; never reused.
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
        /// The capability is proven, nothing else.
        CapKey = 1,
        /// Command and response are under the check.
        CmdRsp = 2,
        /// Data too.
        AllData = 3,
    }
}

code! {
    /// What a name leads to.
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
    /// What a file is opened for.
    pub enum Access: u8 as "access" {
        /// Read data and attributes.
        Read = 1,
        /// Read, and change data in place.
        Update = 2,
        /// Change data in place without reading it.
        Write = 3,
    }
}

code! {
    /// How a checksum is made.
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
    /// Checksum of a file as its writer computed it; the server keeps it and does not check it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Checksum {
        /// How.
        pub kind: ChecksumKind,
        /// Value.
        pub value: [u8; 32],
    }
}

record! {
    /// Everything known about a file or directory but its place.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Stat {
        /// Number.
        pub inode: InodeId,
        /// Lets the user it was told to address it by number; zeros where that was not meant.
        pub proof: [u8; NODE_PROOF_BYTES],
        /// File, directory, …
        pub kind: FileKind,
        /// Permission bits, 12 low bits as in POSIX.
        pub mode: u16,
        /// Whose it is.
        pub owner: UserName,
        /// Whose members the group bits of the mode are for; none: nobody.
        pub group: Option<GroupName>,
        /// Names that lead to it; for a directory 2 and one for each directory in it; 0 once the last one is gone.
        pub links: u32,
        /// Number of a device; 0 for all else.
        pub rdev: u32,
        /// Bytes of a file; length of a link's target; 0 for all else.
        pub size: u64,
        /// Data version: grows with each change of content.
        pub version: u64,
        /// Grows when what a client knows of the layout, or has written behind the end, is good no more.
        pub generation: u32,
        /// Last read, as far as anybody said; nanoseconds since 1970, as all times here.
        pub atime_ns: i64,
        /// Last change of content.
        pub mtime_ns: i64,
        /// Last change of anything.
        pub ctime_ns: i64,
        /// Made at.
        pub birth_ns: i64,
        /// Objects that hold the data; 0 for what has none.
        pub width: u16,
        /// Checksum given at commit.
        pub checksum: Option<Checksum>,
    }
}

/// A change that is so far ahead of the clock was made by another clock, nanoseconds.
const CHANGES_AHEAD_NS: i64 = 1_000_000_000;

impl Stat {
    /// How it is addressed by number.
    #[must_use]
    pub const fn node(&self) -> Node {
        Node { inode: self.inode, proof: self.proof }
    }

    /// The time of a change of something that was changed last at `last_ns`. Of two changes in one millisecond the second one is
    /// told from the first, as by whoever hears of them in another order; of a clock that was wrong nothing stays.
    #[must_use]
    pub const fn changed_ns(last_ns: i64, now_ms: u64) -> i64 {
        let now_ns = Self::ns(now_ms);
        let follows = last_ns >= now_ns && last_ns.saturating_sub(now_ns) < CHANGES_AHEAD_NS;
        if follows { last_ns + 1 } else { now_ns }
    }

    /// Nanoseconds of milliseconds, both since 1970.
    #[must_use]
    pub const fn ns(ms: u64) -> i64 {
        const MAX: i64 = i64::MAX / 1_000_000;
        if ms > MAX as u64 { MAX * 1_000_000 } else { ms as i64 * 1_000_000 }
    }

    /// A time of it in milliseconds since 1970, 0 for what was before.
    #[must_use]
    pub const fn ms(time_ns: i64) -> u64 {
        if time_ns < 0 { 0 } else { time_ns as u64 / 1_000_000 }
    }
}

record! {
    /// One entry of a directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DirEntry {
        /// Its name.
        pub name: Name,
        /// Number of what it leads to.
        pub inode: InodeId,
        /// What that is.
        pub kind: FileKind,
        /// All that is known of it; none in a directory that the asker may list and not pass.
        pub stat: Option<Stat>,
    }
}

/// A capability as the device will read it: 80 bytes (OSD-1) or 104 (OSD-2), opaque here.
#[derive(Clone, PartialEq, Eq)]
pub struct CapabilityBlob(Vec<u8>);

impl CapabilityBlob {
    /// The longest capability.
    pub const MAX: usize = 104;

    /// Takes over encoded capability bytes.
    ///
    /// # Errors
    /// `TooLong`.
    pub fn new(bytes: Vec<u8>) -> Result<Self, WireError> {
        if bytes.len() > Self::MAX { Err(WireError::TooLong { limit: Self::MAX }) } else { Ok(Self(bytes)) }
    }

    /// The bytes.
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
    /// The right to do something with one object, and the key that proves it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Grant {
        /// Which object, where.
        pub object: ObjectRef,
        /// Method to be used with it.
        pub method: Method,
        /// Not valid after, milliseconds since 1970 of the device's clock.
        pub expires_ms: u64,
        /// Encoded capability.
        pub capability: CapabilityBlob,
        /// Capability key (20 or 32 bytes).
        pub key: Secret,
    }
}

/// What a client holds: a file at some version, or a create under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenHandle {
    /// From Open.
    File {
        /// The file.
        node: Node,
        /// What it was opened for.
        access: Access,
    },
    /// From Create.
    Intent(IntentId),
    /// From OpenNode, Allocate, MakeNode: what its holder holds may be renewed whatever its mode has become.
    Node {
        /// The file.
        node: Node,
        /// What it was opened for.
        access: Access,
        /// Who holds it.
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
    /// A create under way: write the objects with these grants, then commit. Grants allow CREATE, WRITE and the
    /// like, so objects need not exist yet.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CreatedFile {
        /// Names the create.
        pub intent: IntentId,
        /// The number the file will have.
        pub inode: InodeId,
        /// Without a commit (or a renewal) the create is gone after this, milliseconds since 1970.
        pub expires_ms: u64,
        /// Where the bytes go.
        pub layout: Layout,
        /// One per object of the layout, in its order.
        pub grants: Vec<Grant>,
    }
}

record! {
    /// An open file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct OpenedFile {
        /// What it is.
        pub stat: Stat,
        /// Where its bytes are; none: all of it is zeros.
        pub layout: Option<Layout>,
        /// One per object of the layout, in its order.
        pub grants: Vec<Grant>,
        /// Were its bytes written in place? Then what is missing in an object reads as zeros.
        pub sparse: bool,
    }
}

code! {
    /// What the server thinks of a device.
    pub enum DeviceState: u8 as "device state" {
        /// Being prepared; holds nothing yet.
        Joining = 1,
        /// Takes new objects.
        Active = 2,
        /// Serves, but takes no new objects.
        Draining = 3,
        /// Did not answer lately; takes no new objects.
        Unreachable = 4,
        /// Added by an operator; not contacted and not used until an administrator approves it.
        Pending = 5,
    }
}

impl DeviceState {
    /// Whether the device may hold objects of files: it was approved and taken into use once.
    #[must_use]
    pub const fn was_in_use(self) -> bool {
        matches!(self, Self::Active | Self::Draining | Self::Unreachable)
    }
}

code! {
    /// Why a device could not be reached or taken into use when it was last tried.
    pub enum ProblemKind: u8 as "device problem" {
        /// It does not answer.
        Silent = 1,
        /// It answers and does not accept the server's credentials: its key is another one.
        Denied = 2,
        /// Another device answers at its address.
        OtherDevice = 3,
        /// It answers and fails.
        Failed = 4,
        /// It does not let the server log in, or does not prove who it is.
        NotAdmitted = 5,
        /// It shows another certificate than its pin names.
        OtherCertificate = 6,
    }
}

record! {
    /// What went wrong at the last try.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DeviceProblem {
        /// By what can be done about it.
        pub kind: ProblemKind,
        /// For people.
        pub said: Text<96>,
    }
}

/// Bytes of a certificate's hash.
pub const PIN_BYTES: usize = 32;

code! {
    /// What a pin is the hash of.
    pub enum PinKind: u8 as "kind of pin" {
        /// The certificate that the other end itself shows.
        Certificate = 1,
        /// The authority that must have signed it, in the name that the other end must have.
        Authority = 2,
    }
}

record! {
    /// How the other end of a TLS connection is known.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DevicePin {
        /// Of which certificate.
        pub kind: PinKind,
        /// SHA-256 of that certificate in DER.
        pub hash: [u8; PIN_BYTES],
    }
}

record! {
    /// A device as clients see it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Device {
        /// Number in layouts.
        pub id: DeviceId,
        /// Name given by its operator.
        pub name: Name,
        /// OSD system id.
        pub system_id: [u8; SYSTEM_ID_BYTES],
        /// `iscsi://HOST:PORT/IQN/LUN`.
        pub url: Text<512>,
        /// How it is known. Whoever has a pin talks to the device inside TLS, and not otherwise.
        pub pin: Option<DevicePin>,
        /// State.
        pub state: DeviceState,
        /// Capacity in bytes; 0 until the device was asked.
        pub total: u64,
        /// Bytes in use.
        pub used: u64,
        /// Bytes per second as its operator says; 0: he does not.
        pub speed: u64,
        /// What went wrong when the server last tried; none if all is well or it has not tried yet.
        pub problem: Option<DeviceProblem>,
        /// How far it is emptied, if it is.
        pub drain: Option<Drain>,
    }
}

record! {
    /// A device to be added.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct NewDevice {
        /// Name given by its operator.
        pub name: Name,
        /// OSD system id.
        pub system_id: [u8; SYSTEM_ID_BYTES],
        /// `iscsi://HOST:PORT/IQN/LUN`.
        pub url: Text<512>,
        /// How it is known. Whoever has a pin talks to the device inside TLS, and not otherwise.
        pub pin: Option<DevicePin>,
        /// Capacity in bytes if known; the device is asked later anyway.
        pub capacity: u64,
        /// Bytes per second that it reads or writes, for the choice of devices; 0: not said, and what is known stays.
        pub speed: u64,
        /// Initial master key from the device's key file (authentication key ‖ generation key, or one seed).
        pub master_key: Secret,
    }
}

code! {
    /// What an account may do at all; what it may do to a file is decided by owner, group and mode after that.
    pub enum Role: u8 as "role" {
        /// Everything.
        Admin = 1,
        /// Devices and figures; no files, no accounts.
        Operator = 2,
        /// Files.
        User = 3,
        /// Files, without changing anything.
        ReadOnly = 4,
    }
}

impl Role {
    /// The name that people type and read.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::User => "user",
            Self::ReadOnly => "read-only",
        }
    }

    /// The role of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|role| role.as_str() == name)
    }
}

code! {
    /// What an account logs in with.
    pub enum AccountKind: u8 as "account kind" {
        /// A person's password.
        Password = 1,
        /// A program's key file; never a password.
        Service = 2,
        /// A person's password, like the first; whether he exists, and which groups he is in, a directory says.
        Directory = 3,
    }
}

record! {
    /// An account as administrators see it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct User {
        /// Its name.
        pub name: UserName,
        /// What it may do.
        pub role: Role,
        /// What it logs in with.
        pub kind: AccountKind,
        /// May log in.
        pub enabled: bool,
        /// Made at, milliseconds since 1970.
        pub created_ms: u64,
        /// Suites that it has a password or key for; none before it enrolled.
        pub suites: Vec<u16>,
        /// Until then its enrolment code can be used, milliseconds since 1970; none if there is none.
        pub code_until_ms: Option<u64>,
    }
}

record! {
    /// A group as administrators see it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Group {
        /// Its name.
        pub name: GroupName,
        /// Made at, milliseconds since 1970.
        pub created_ms: u64,
    }
}

record! {
    /// Somebody who holds a credential for an object of a file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CredentialHolder {
        /// Who.
        pub user: UserName,
        /// The session that it was given to; the audit logs of the devices have it as `principal`.
        pub session: SessionId,
        /// Which object.
        pub object: ObjectRef,
        /// May it change the object?
        pub writes: bool,
        /// Until then the device accepts it, milliseconds since 1970.
        pub expires_ms: u64,
    }
}

/// The object type a grant speaks of; all grants of files are for user objects.
pub const GRANT_OBJECT_TYPE: ObjectType = ObjectType::User;

/// The first of the partitions that hold file data, on every device.
pub const FILE_PARTITION: u64 = 0x1_0000;
/// Partitions for file data at most.
pub const FILE_PARTITIONS_MAX: u64 = 4096;

/// Is this an object that a file may consist of?
#[must_use]
pub const fn is_file_object(object: ObjectId) -> bool {
    object.partition >= FILE_PARTITION
        && object.partition - FILE_PARTITION < FILE_PARTITIONS_MAX
        && object.object >= ObjectId::FIRST_ASSIGNABLE
}
