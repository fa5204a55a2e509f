//! The table of requests of a session, one row each: number, name and fields.
//!
//! Does: number, name and encode them.
//! Does not: decide anything.
//! Contract: a body is `id 8 ‖ operation 2 ‖ schema 1 ‖ 0 ‖ fields`. A later schema may append
//! fields: a decoder of schema n reads its fields of a body with a schema > n and ignores the rest.
//! With schema n nothing may follow.
//! Truth: docs/standards/mds/operations.md §5.

use alloc::vec::Vec;

use crate::check::CheckScope;
use crate::disks::{
    DISK_PUBLIC_KEY_BYTES, DISK_ROOT_BYTES, DISK_UNIT_BYTES, DiskRotation, WRAPPED_DISK_KEY_BYTES,
};
use crate::frame::BODY_MAX;
use crate::grants::{IssueCursor, ReceiptBytes, RevocationTarget};
use crate::keys::{KeyCursor, KeyLevel};
use crate::layout::DeviceId;
use crate::login::{LoginFinish, LoginStart, REGISTRATION_REQUEST_BYTES, REGISTRATION_UPLOAD_BYTES};
use crate::name::{FilePath, GroupName, Name, UserName};
use crate::name_changes::NameChange;
use crate::nodes::{
    ClientId, LeaseKind, Lock, Node, NodeChange, NodeKind, RenameMode, RequestId, XattrMode, XattrName,
    XattrValue,
};
use crate::quota::{QuotaChange, QuotaCursor, QuotaSubject};
use crate::records::{
    Access, AccountKind, Checksum, DeviceState, InodeId, IntentId, Method, NewDevice, OpenHandle, Role,
};
use crate::secret::Secret;
use crate::wire::{Text, Wire, WireError, WireReader, WireWriter};

#[macro_use]
mod table;

/// Version of the message set, negotiated by Hello.
pub const PROTOCOL_VERSION: u16 = 1;
/// Schema of every body in this version.
pub const SCHEMA: u8 = 1;
/// Maximum number of entries that a client may request in one page.
pub const PAGE_MAX: u16 = 256;

messages! {
    /// Requests of a client.
    pub enum Request as "request", table REQUESTS {
        /// First request of a connection: negotiates the protocol version. Allowed before login.
        0x0001 => Hello {
            /// Lowest version spoken.
            oldest: u16,
            /// Highest version spoken.
            newest: u16,
            /// Name and version of the client, for logs.
            software: Text<255>,
        },
        /// Returns the account and role of the session.
        0x0002 => WhoAmI {},
        /// Returns counters of the server.
        0x0003 => ServerInfo {},
        /// Returns the attributes of a file or directory, by path.
        0x0010 => Stat {
            path: FilePath,
        },
        /// Returns a page of a directory, in byte order of names.
        0x0011 => ReadDir {
            path: FilePath,
            /// Returns names after this one; `None` starts at the beginning.
            after: Option<Name>,
            /// Maximum number of entries, 1 to [`PAGE_MAX`]; the answer may have fewer.
            limit: u16,
        },
        /// Creates a directory.
        0x0012 => MakeDir {
            path: FilePath,
            /// Creates missing parents; no error if the directory exists.
            parents: bool,
            /// Permission bits.
            mode: u16,
        },
        /// Creates a file that is not visible before Commit.
        0x0013 => Create {
            path: FilePath,
            /// Expected size, if known; it decides the layout.
            size_hint: Option<u64>,
            /// Permission bits.
            mode: u16,
            /// Whether Commit may replace an existing file.
            replace: bool,
            /// Method for its objects; raised to the floor of policy.
            method: Method,
        },
        /// Opens a file.
        0x0014 => Open {
            path: FilePath,
            access: Access,
            /// Method for its objects; raised to the floor of policy.
            method: Method,
        },
        /// Renews the credentials of an open file; extends the life of a create.
        0x0015 => RenewGrants {
            handle: OpenHandle,
            /// Method, as in Open.
            method: Method,
        },
        /// Makes a create visible; replaces an older file atomically.
        0x0016 => Commit {
            /// Which create.
            intent: IntentId,
            /// Final size.
            size: u64,
            /// Time of the last change of content, nanoseconds since 1970; `None` is the current
            /// time.
            mtime_ns: Option<i64>,
            /// Checksum to store.
            checksum: Option<Checksum>,
        },
        /// Cancels a create; its objects are removed.
        0x0017 => Abandon {
            /// Which create.
            intent: IntentId,
        },
        /// Renames a file or directory.
        0x0018 => Rename {
            from: FilePath,
            /// The new path itself, not its parent directory.
            to: FilePath,
            /// Whether it may replace a file or an empty directory.
            replace: bool,
        },
        /// Removes a file or directory.
        0x0019 => Remove {
            path: FilePath,
            /// Also removes everything below it. A large tree needs several requests (see the
            /// response).
            recursive: bool,
        },
        /// Changes permission bits.
        0x001A => SetMode {
            path: FilePath,
            mode: u16,
        },
        /// Returns the attributes by path; does not follow a symbolic link in the last name.
        0x001C => Lstat {
            path: FilePath,
        },
        /// Returns the layout of a file, and why it was chosen.
        0x001D => Placement {
            /// Does not follow a symbolic link in the last name.
            path: FilePath,
        },
        /// Returns the space of all devices.
        0x0020 => DiskFree {},
        /// Returns a page of the devices, by id.
        0x0021 => DeviceList {
            /// Returns ids after this one; `None` starts at the beginning.
            after: Option<DeviceId>,
            /// Maximum number of entries, 1 to [`PAGE_MAX`]; the answer may have fewer.
            limit: u16,
        },
        /// Adds a device (administrators and operators).
        0x0022 => DeviceAdd {
            device: NewDevice,
        },
        /// Changes a device's state between Active and Draining (administrators and operators).
        0x0023 => DeviceSetState {
            id: DeviceId,
            state: DeviceState,
        },
        /// Drains a device: it gets no new objects, and its objects are moved to others
        /// (administrators and operators). Runs in the background; DeviceSetState to Active ends
        /// it.
        0x0024 => DeviceDrain {
            id: DeviceId,
            /// Limit in bytes per second; 0: no limit.
            rate: u64,
        },
        /// Starts a rebalance: moves objects until the devices are equally full (administrators and
        /// operators). Runs in the background; repeated, it changes the rate.
        0x0025 => Rebalance {
            /// Limit in bytes per second; 0: no limit.
            rate: u64,
        },
        /// Stops the rebalance; moved objects stay where they are (administrators and operators).
        0x0026 => RebalanceStop {},
        /// Returns the progress of the rebalance (administrators and operators).
        0x0027 => RebalanceShow {},
        /// First half of a registration: by an administrator for any account, by others for their
        /// own.
        0x0030 => UserRegisterStart {
            name: UserName,
            /// OPAQUE registration request made from the new password.
            request: [u8; REGISTRATION_REQUEST_BYTES],
            /// For one's own account: starts the proof of the current password or key.
            proof: Option<LoginStart>,
        },
        /// Second half of a registration; the password is valid from then on.
        0x0031 => UserRegisterFinish {
            name: UserName,
            /// OPAQUE record.
            record: [u8; REGISTRATION_UPLOAD_BYTES],
            /// Suite of the record.
            suite: u16,
            /// Role of a new account; an existing one keeps its own.
            role: Role,
            /// Change an existing account's password or key instead of adding an account.
            replace: bool,
            /// For one's own account: completes that proof.
            proof: Option<LoginFinish>,
        },
        /// Returns a page of the accounts, by name (administrators).
        0x0032 => UserList {
            /// Returns names after this one; `None` starts at the beginning.
            after: Option<UserName>,
            /// Maximum number of entries, 1 to [`PAGE_MAX`]; the answer may have fewer.
            limit: u16,
        },
        /// Enables or disables an account; disabling ends its sessions (administrators).
        0x0033 => UserSetEnabled {
            name: UserName,
            enabled: bool,
        },
        /// Removes an account and ends its sessions; its files keep the owner's name
        /// (administrators).
        0x0034 => UserRemove {
            name: UserName,
        },
        /// Sets the role of an account and ends its sessions (administrators).
        0x0035 => UserSetRole {
            name: UserName,
            /// The new role.
            role: Role,
        },
        /// Adds a group without members (administrators).
        0x0036 => GroupCreate {
            name: GroupName,
        },
        /// Removes a group; files keep its name, which grants nothing any more (administrators).
        0x0037 => GroupRemove {
            name: GroupName,
        },
        /// Adds an account to a group, from its next request on (administrators).
        0x0038 => GroupAddMember {
            group: GroupName,
            user: UserName,
        },
        /// Ends a membership, from the account's next request on (administrators).
        0x0039 => GroupRemoveMember {
            group: GroupName,
            user: UserName,
        },
        /// Returns a page of the groups, by name (administrators).
        0x003A => GroupList {
            /// Returns names after this one; `None` starts at the beginning.
            after: Option<GroupName>,
            /// Maximum number of entries, 1 to [`PAGE_MAX`]; the answer may have fewer.
            limit: u16,
        },
        /// Returns a page of the members of a group, by name (administrators).
        0x003B => GroupMembers {
            group: GroupName,
            /// Returns names after this one; `None` starts at the beginning.
            after: Option<UserName>,
            /// Maximum number of entries, 1 to [`PAGE_MAX`]; the answer may have fewer.
            limit: u16,
        },
        /// Changes the owner (administrators) or the group (administrators; owners to a group of
        /// their own) of a file or directory.
        0x003C => SetOwner {
            path: FilePath,
            /// New owner; `None` leaves it unchanged.
            owner: Option<UserName>,
            /// New group, or no group; `None` leaves it unchanged.
            group: Option<Option<GroupName>>,
        },
        /// Creates a one-time code with which a user sets the first password, or a new one
        /// (administrators).
        0x003D => UserInvite {
            name: UserName,
            /// Kind of a new account, password or directory; an existing one keeps its own.
            kind: AccountKind,
            /// Role of a new account; an existing one keeps its own.
            role: Role,
            /// Validity of the code in seconds.
            lifetime_s: u32,
            /// Whether the code is for an existing account instead of a new one.
            replace: bool,
        },
        /// Removes one of the two keys of a service account and ends the sessions made with it.
        /// Allowed to administrators and the account itself.
        0x003E => UserRetireKey {
            name: UserName,
            /// Suite of the key.
            suite: u16,
        },
        /// Returns the holders of credentials for the objects of a file (administrators).
        0x003F => GrantHolders {
            path: FilePath,
        },
        /// Sets or removes the key of an account for the paper's profile, and ends its sessions of
        /// that profile (administrators).
        0x0040 => UserSetPaperKey {
            name: UserName,
            /// 20 bytes, equivalent to the passphrase; `None`: the account cannot log in there.
            key: Option<Secret>,
        },
        /// Issues credentials for a part of a file to a program that never logs in. They grant no
        /// more than the caller has.
        0x0041 => Delegate {
            path: FilePath,
            /// Whether it may read.
            read: bool,
            /// Whether it may write in place.
            write: bool,
            start: u64,
            /// End of the range, exclusive; `None` is the end of the file.
            end: Option<u64>,
            /// Expiry, milliseconds since 1970.
            until_ms: u64,
            /// Method; raised to the floor of policy.
            method: Method,
        },
        /// Revokes credentials (administrators; owners for their files). Runs in the background.
        0x0042 => Revoke {
            what: RevocationTarget,
        },
        /// Returns the progress of a revocation (administrators; owners for their files).
        0x0043 => RevocationProgress {
            id: u64,
        },
        /// Returns the active revocations and the last completed ones (administrators).
        0x0044 => RevocationList {},
        /// Returns which credentials for a file were issued or refused (administrators and its
        /// owner).
        0x0045 => IssueList {
            /// The path as it is now.
            path: FilePath,
            /// Only entries of this user.
            user: Option<UserName>,
            /// Start of the period, milliseconds since 1970.
            since_ms: u64,
            /// End of the period.
            until_ms: u64,
            /// Start position from the previous page; `None` starts at the beginning.
            from: Option<IssueCursor>,
        },
        /// Returns a page of the devices' keys: identifiers, ages, uses (administrators).
        0x0050 => KeyList {
            /// Only keys of this device.
            device: Option<DeviceId>,
            /// Start position from the previous page; `None` starts at the beginning.
            from: Option<KeyCursor>,
        },
        /// Rotates keys (administrators). Runs in the background.
        0x0051 => KeyRotate {
            /// Level; all keys below it are rotated with it.
            level: KeyLevel,
            /// Only keys of this device.
            device: Option<DeviceId>,
            /// Only keys of this partition.
            partition: Option<u64>,
            /// For working keys: invalidates all issued credentials at once.
            revoke: bool,
        },
        /// Returns the progress of key rotation (administrators).
        0x0052 => KeyProgress {
            /// Only keys of this device.
            device: Option<DeviceId>,
        },
        /// Looks up a name in a directory.
        0x0060 => Lookup {
            parent: Node,
            name: Name,
            /// Client that gets read leases on the directory and the node, if available; the answer
            /// names them.
            client_id: Option<ClientId>,
        },
        /// Returns the attributes of a node.
        0x0061 => GetNode {
            node: Node,
        },
        /// Returns a page of a directory, in byte order of names, with attributes.
        0x0062 => ReadNodes {
            directory: Node,
            /// Returns names after this one; `None` starts at the beginning.
            after: Option<Name>,
            /// Maximum number of entries, 1 to [`PAGE_MAX`]; the answer may have fewer.
            limit: u16,
            /// Client that gets a read lease on the directory, if available.
            client_id: Option<ClientId>,
        },
        /// Creates a node.
        0x0063 => MakeNode {
            parent: Node,
            name: Name,
            what: NodeKind,
            /// Permission bits; a symbolic link always has 0777.
            mode: u16,
            /// Permission bits to clear, unless the directory has a default access control list.
            umask: u16,
            /// Owner, if not the caller (administrators).
            owner: Option<UserName>,
            /// Group: one of the caller's own (administrators: any). A directory with the
            /// set-group-ID bit overrides it.
            group: Option<GroupName>,
            /// Client that opens the new file for update in the same step, whatever its mode.
            client_id: Option<ClientId>,
        },
        /// Creates a hard link.
        0x0064 => LinkNode {
            /// The file; not a directory.
            node: Node,
            parent: Node,
            name: Name,
        },
        /// Removes a name. A node without names is removed; an open file when it is closed.
        0x0065 => RemoveNode {
            parent: Node,
            name: Name,
            /// Whether the name must be a directory (which must be empty), or must not be one.
            directory: bool,
        },
        /// Renames a node.
        0x0066 => RenameNode {
            from_parent: Node,
            from: Name,
            to_parent: Node,
            to: Name,
            /// How to treat a node that has the new name.
            mode: RenameMode,
        },
        /// Sets attributes of a node.
        0x0067 => SetNode {
            node: Node,
            change: NodeChange,
            /// The calling client; its own lease is not recalled.
            client_id: Option<ClientId>,
            /// Whether the size is set through a file that the client has open for update: then the
            /// mode is not checked.
            through: bool,
        },
        /// Returns the target of a symbolic link.
        0x0068 => ReadLink {
            node: Node,
        },
        /// Opens a file for a client.
        0x0069 => OpenNode {
            node: Node,
            access: Access,
            /// Method for its objects; raised to the floor of policy.
            method: Method,
            /// The client that opens it. Repeating the request opens it once.
            client_id: ClientId,
            /// Reclaims a file that was open before the server restarted or lost the client: its
            /// owner may open it whatever the mode is now.
            reclaim: bool,
        },
        /// Allocates the objects of a file; returns the existing ones if it has some.
        0x006A => Allocate {
            /// The node; open for update.
            node: Node,
            /// Expected size; it decides the layout.
            size_hint: Option<u64>,
            /// Method for its objects; raised to the floor of policy.
            method: Method,
            /// The client that has it open.
            client_id: ClientId,
        },
        /// Reports written bytes that the devices have acknowledged: the file has at least this
        /// size.
        0x006B => Written {
            /// The node; open for update.
            node: Node,
            /// End of the written bytes.
            size_at_least: u64,
            /// Time of the last change of content, nanoseconds since 1970; `None` is the current
            /// time.
            mtime_ns: Option<i64>,
            /// Generation that the client knew when it started to write. If it changed, the bytes
            /// may be lost (Stale).
            generation: u32,
            /// Whether all objects of the layout exist on their devices.
            made: bool,
            /// Whether to truncate the file to what the quota allows. The request is refused all
            /// the same.
            fit: bool,
            /// The client that has it open.
            client_id: ClientId,
        },
        /// Closes a file.
        0x006C => CloseNode {
            node: Node,
            /// The client that had it open.
            client_id: ClientId,
        },
        /// Returns the value of an extended attribute.
        0x006D => GetXattr {
            node: Node,
            name: XattrName,
        },
        /// Sets an extended attribute.
        0x006E => SetXattr {
            node: Node,
            name: XattrName,
            value: XattrValue,
            /// Whether the attribute must exist or must not exist.
            mode: XattrMode,
        },
        /// Returns the names of the extended attributes that the caller may see.
        0x006F => ListXattr {
            node: Node,
        },
        /// Removes an extended attribute.
        0x0070 => RemoveXattr {
            node: Node,
            name: XattrName,
        },
        /// Returns free space and node counts, limited by the caller's quota and that of the node's
        /// tree.
        0x0071 => StatFs {
            node: Option<Node>,
        },
        /// Keep-alive: extends all open files of the client.
        0x0072 => KeepNodes {
            client_id: ClientId,
        },
        /// Sets, changes, removes or tests an advisory lock. The server does not block; the client
        /// repeats the request.
        0x0073 => LockNode {
            node: Node,
            client_id: ClientId,
            lock: Lock,
            /// Only returns a conflicting lock.
            test: bool,
            /// Reclaims a lock of before a server restart. For one minute after it, only reclaimed
            /// locks are granted.
            reclaim: bool,
        },
        /// Releases all locks of one owner on a file, as close(2) does.
        0x0074 => UnlockNode {
            node: Node,
            client_id: ClientId,
            /// The lock owner within the client.
            owner: u64,
        },
        /// Runs a request exactly once: a repeated one gets the stored answer, at any server of the
        /// store.
        0x0075 => Once {
            /// Slot and sequence number of the request.
            id: RequestId,
            request: ChangeRequest,
        },
        /// Returns the leases to return, as soon as there are some. It also makes the client
        /// eligible for leases, renews them, and is a keep-alive.
        0x0076 => Recalls {
            client_id: ClientId,
            /// The epoch that the client has confirmed: it dropped all leases of earlier ones. 0:
            /// none.
            epoch: u64,
            /// The last recall that the client received.
            known: u64,
            /// How long the server may wait for a recall, milliseconds.
            wait_ms: u32,
        },
        /// Requests a lease on an open file; other clients return theirs first (Busy).
        0x0077 => LeaseNode {
            node: Node,
            client_id: ClientId,
            kind: LeaseKind,
        },
        /// Returns a lease; no error if it does not exist.
        0x0078 => ReturnLease {
            /// The node; it needs no proof.
            inode: InodeId,
            client_id: ClientId,
            number: u64,
        },
        /// Requests a directory delegation and reserved inode numbers. Does not wait: it is granted
        /// at once or not.
        0x0079 => DelegateDir {
            /// The directory; `None`: only inode numbers.
            directory: Option<Node>,
            client_id: ClientId,
            /// Number of inode numbers, up to [`RESERVED_INODES_MAX`](crate::RESERVED_INODES_MAX).
            numbers: u16,
        },
        /// Applies changes of names that the client made under directory delegations. Only inside
        /// Once. They are applied in order, up to the first one that is refused.
        0x007A => NameBatch {
            /// The changes in order; at most [`NAME_CHANGES_MAX`](crate::NAME_CHANGES_MAX).
            changes: Vec<NameChange>,
        },
        /// Sets limits (administrators). An empty directory becomes the root of a quota tree.
        0x0080 => QuotaSet {
            of: QuotaSubject,
            change: QuotaChange,
        },
        /// Returns use and limits; for a path, those of its quota tree. Users see their own.
        0x0081 => QuotaShow {
            of: QuotaSubject,
        },
        /// Removes limits (administrators). An empty directory stops being the root of a quota
        /// tree.
        0x0082 => QuotaClear {
            of: QuotaSubject,
        },
        /// Returns a page of use and limits. Users who are not administrators see their own only.
        0x0083 => QuotaList {
            /// Returns entries after this one; `None` starts at the beginning.
            after: Option<QuotaCursor>,
            /// Maximum number of entries, 1 to [`PAGE_MAX`]; the answer may have fewer.
            limit: u16,
        },
        /// Starts a check of the file system in the background (administrators); one check at a
        /// time.
        0x0084 => CheckBegin {
            scope: CheckScope,
            /// Whether to repair what can be repaired.
            repair: bool,
        },
        /// Returns the progress of the last check.
        0x0085 => CheckShow {},
        /// Returns the findings of a check so far.
        0x0086 => CheckFindings {
            number: u64,
            from: u32,
        },
        /// Ends all state of the client: open files, locks and leases. The server does not wait for
        /// it after a restart, and refuses its unsent name changes.
        0x0087 => EndClient {
            client_id: ClientId,
        },
        /// Begins a copy of a function file on another device: a create that Commit adds to the
        /// file's layout. Needs the rights to read and to execute the file.
        0x0088 => CopyFunction {
            path: FilePath,
            device: DeviceId,
            /// Method for its object; raised to the floor of policy.
            method: Method,
        },
        /// Issues credentials to execute a function file to a program that never logs in. They
        /// grant no more than the caller has.
        0x0089 => DelegateExecution {
            path: FilePath,
            /// Expiry, milliseconds since 1970.
            until_ms: u64,
            method: Method,
        },
        /// Returns a credential to read the attributes of a device, among them its engines.
        0x008A => DeviceAttributes {
            id: DeviceId,
            method: Method,
        },
        /// Verifies the receipt of a device about a run of a function.
        0x008B => ReceiptVerify {
            /// The receipt as the device issued it.
            receipt: ReceiptBytes,
        },
        /// Reserves the object for a long result of a function on a device: a create that is never
        /// committed. Abandon removes the object; otherwise it expires. Needs the right to execute
        /// the function.
        0x008C => ReserveResult {
            path: FilePath,
            device: DeviceId,
            /// Maximum bytes of the result.
            size_max: u64,
            method: Method,
        },
        /// Returns a credential for the policy about functions of a partition (administrators).
        0x008D => FunctionPolicyAccess {
            id: DeviceId,
            /// A partition with files.
            partition: u64,
            /// Whether the policy is to be changed.
            change: bool,
            method: Method,
        },
        /// Issues credentials to read a file by functions to a program that never logs in. They
        /// are never sealed, and grant no more than the caller has.
        0x008E => DelegateCallData {
            path: FilePath,
            until_ms: u64,
            method: Method,
        },
        /// As ReserveResult, for a job that continues without its client: the credential lives as
        /// long as one in a capability file, and the reservation twice as long.
        0x008F => ReserveJobResult {
            path: FilePath,
            device: DeviceId,
            size_max: u64,
            method: Method,
        },
        /// Stores the public key of the user, for which keys of disks are wrapped.
        0x0090 => DiskPublicKeySet {
            public: [u8; DISK_PUBLIC_KEY_BYTES],
        },
        /// Returns the public key of a user.
        0x0091 => DiskPublicKey {
            user: UserName,
        },
        /// Creates the record of an end-to-end protected disk.
        0x0092 => DiskCreate {
            name: Name,
            /// Identifier of the unit.
            unit: [u8; DISK_UNIT_BYTES],
            /// The first key, wrapped for the user.
            wrapped: [u8; WRAPPED_DISK_KEY_BYTES],
        },
        /// Returns keys, root and state of a disk. Needs a copy of the key, or an administrator.
        0x0093 => DiskShow {
            name: Name,
        },
        /// Returns a page of the disks of the user.
        0x0094 => DiskList {
            /// Returns entries after this one; `None` starts at the beginning.
            after: Option<Name>,
            /// Maximum number of entries, 1 to [`DISK_PAGE_MAX`](crate::DISK_PAGE_MAX).
            limit: u16,
        },
        /// Gives a user a copy of the key (owner), or takes it away (owner, administrators).
        0x0095 => DiskSetAccess {
            name: Name,
            user: UserName,
            /// The newest key, wrapped for the user; `None` takes it away.
            wrapped: Option<[u8; WRAPPED_DISK_KEY_BYTES]>,
        },
        /// Takes the lease of a disk (Busy while another client has it), or renews it.
        0x0096 => DiskLease {
            name: Name,
            /// The epoch to renew; `None` takes the lease with a new epoch.
            epoch: Option<u32>,
        },
        /// Returns the lease of a disk; no error if it does not exist.
        0x0097 => DiskEndLease {
            name: Name,
            epoch: u32,
        },
        /// Replaces the root of a disk.
        0x0098 => DiskPublish {
            name: Name,
            /// The lease of the client.
            epoch: u32,
            /// Version of the replaced root; `None`: there is none.
            expected: Option<u64>,
            root: [u8; DISK_ROOT_BYTES],
        },
        /// Stores the next key of a disk (owner).
        0x0099 => DiskRotate {
            name: Name,
            rotation: DiskRotation,
        },
        /// Reports wrong data of a disk, for the audit log and its state.
        0x009A => DiskReport {
            name: Name,
            /// Found error.
            text: Text<512>,
        },
        /// Removes the record of a disk and all copies of its key (owner, administrators).
        0x009B => DiskRemove {
            name: Name,
        },
        /// Sets which functions may run in partitions of devices that are added later
        /// (administrators).
        0x009C => FunctionPolicySet {
            /// A partition with files; all of them, and new ones, if none.
            partition: Option<u64>,
            /// Code of the policy.
            policy: u8,
            keys: Vec<[u8; 32]>,
            digests: Vec<[u8; 32]>,
        },
    }
}

body!(Request);

mod change;
mod class;
mod response;

pub use change::ChangeRequest;
pub use response::{RESPONSES, Response};

#[cfg(test)]
mod tests;
