//! The table of the server's responses, one row each: number, name and fields.
//!
//! Truth: docs/standards/mds/operations.md §5.

use alloc::vec::Vec;

use super::{BODY_MAX, SCHEMA};
use crate::check::{CheckFinding, CheckStatus};
use crate::disks::{DISK_PUBLIC_KEY_BYTES, DiskAccess, DiskInfo};
use crate::error::Failure;
use crate::grants::{DelegatedFile, IssueCursor, IssueEntry, ReceiptVerdict, Revocation};
use crate::keys::{KeyCursor, KeyInfo};
use crate::layout::{DeviceId, Layout};
use crate::login::{LoginChallenge, REGISTRATION_RESPONSE_BYTES, SessionId};
use crate::name::{GroupName, UserName};
use crate::name_changes::{InodeLease, InodeRange};
use crate::nodes::{LinkTarget, Lock, NodeLease, OpenedNode, Recall, XattrName, XattrValue};
use crate::placement::{PlacementRecord, Rebalance};
use crate::quota::Quota;
use crate::records::{
    CreatedFile, CredentialHolder, Device, DirEntry, Grant, Group, Method, OpenedFile, Role, Stat, User,
};
use crate::secret::Secret;
use crate::wire::{Text, Wire, WireError, WireReader, WireWriter};

messages! {
    /// Responses of the server.
    pub enum Response as "response", table RESPONSES {
        /// The request was refused or failed.
        0x0000 => Failed {
            failure: Failure,
        },
        /// To Hello.
        0x0001 => Hello {
            /// The negotiated version.
            version: u16,
            /// Name and version of the server.
            software: Text<255>,
            /// Identity of the server, part of every login.
            server_id: [u8; 16],
            /// The server's clock, milliseconds since 1970.
            time_ms: u64,
        },
        /// To WhoAmI.
        0x0002 => WhoAmI {
            user: UserName,
            role: Role,
            groups: Vec<GroupName>,
            session: SessionId,
            /// Expiry, milliseconds since 1970.
            expires_ms: u64,
        },
        /// To ServerInfo.
        0x0003 => ServerInfo {
            /// The server's clock, milliseconds since 1970.
            time_ms: u64,
            /// Weakest method that devices accept.
            method_floor: Method,
            files: u64,
            directories: u64,
            /// Uncommitted creates.
            intents: u64,
            /// Objects queued for removal from devices.
            reap_queue: u64,
            sessions: u64,
            devices: u32,
        },
        /// The request succeeded; there is no data.
        0x0004 => Done {},
        /// To Stat, Lstat, SetMode, SetOwner, MakeDir, Commit, Update; Lookup, GetNode, MakeNode,
        /// LinkNode, RemoveNode (the node after the removal), SetNode, Written.
        0x0010 => Stat {
            /// The current attributes.
            stat: Stat,
        },
        /// To ReadDir and ReadNodes.
        0x0011 => Directory {
            entries: Vec<DirEntry>,
            /// Whether there may be more entries; request those after the last name.
            more: bool,
        },
        /// To Create, CopyFunction, ReserveResult and ReserveJobResult.
        0x0013 => Created {
            file: CreatedFile,
        },
        /// To Open.
        0x0014 => Opened {
            file: OpenedFile,
        },
        /// To RenewGrants.
        0x0015 => Grants {
            /// The current layout. If its number is the known one, moved objects keep their index.
            /// Otherwise the file was migrated (same generation) or truncated to zero.
            layout: Layout,
            /// Generation of the file.
            generation: u32,
            /// One per object of the layout, in its order.
            grants: Vec<Grant>,
        },
        /// To Remove.
        0x0019 => Removed {
            /// Number of files and directories removed by this request.
            count: u64,
            /// Whether something is left; repeat the request.
            more: bool,
        },
        /// To Placement.
        0x001D => Placement {
            /// The layout; `None` before the first byte.
            layout: Option<Layout>,
            /// Why the layout was chosen; `None` if it was not recorded.
            placed: Option<PlacementRecord>,
        },
        /// To DiskFree.
        0x0020 => DiskFree {
            /// Capacity of all devices, bytes.
            total: u64,
            /// Used bytes.
            used: u64,
            /// Number of devices that take new objects.
            active: u32,
            /// Number of devices.
            devices: u32,
        },
        /// To DeviceList.
        0x0021 => Devices {
            devices: Vec<Device>,
            /// Whether there may be more entries.
            more: bool,
        },
        /// To DeviceAdd, DeviceSetState and DeviceDrain.
        0x0022 => Device {
            device: Device,
        },
        /// To Rebalance, RebalanceStop and RebalanceShow.
        0x0025 => Rebalance {
            /// The last rebalance, if any.
            rebalance: Option<Rebalance>,
        },
        /// To UserRegisterStart.
        0x0030 => UserRegisterStart {
            /// OPAQUE registration response.
            response: [u8; REGISTRATION_RESPONSE_BYTES],
            /// Answers the proof that the request started, if it did.
            challenge: Option<LoginChallenge>,
        },
        /// To UserList.
        0x0032 => Users {
            users: Vec<User>,
            /// Whether there may be more entries.
            more: bool,
        },
        /// To GroupList.
        0x003A => Groups {
            groups: Vec<Group>,
            /// Whether there may be more entries.
            more: bool,
        },
        /// To GroupMembers.
        0x003B => Members {
            members: Vec<UserName>,
            /// Whether there may be more entries.
            more: bool,
        },
        /// To UserInvite.
        0x003D => Invitation {
            /// The code, in letters and digits; it is returned only here.
            code: Secret,
            /// Expiry of the code, milliseconds since 1970.
            expires_ms: u64,
        },
        /// To GrantHolders.
        0x003F => Holders {
            /// The holders, latest expiry first; truncated at [`PAGE_MAX`](super::PAGE_MAX).
            holders: Vec<CredentialHolder>,
            /// Whether the list is complete: not if it was truncated, or if the server started or
            /// lost its table within the longest life of a credential.
            complete: bool,
        },
        /// To Delegate, DelegateExecution and DelegateCallData.
        0x0041 => Delegated {
            /// The credentials for the program.
            file: DelegatedFile,
        },
        /// To Revoke, RevocationProgress, UserSetEnabled and UserRemove.
        0x0042 => Revocation {
            revocation: Revocation,
        },
        /// To RevocationList.
        0x0044 => Revocations {
            /// The revocations, newest first.
            revocations: Vec<Revocation>,
        },
        /// To IssueList.
        0x0045 => Issues {
            /// Issued credentials, oldest first, then refused ones.
            entries: Vec<IssueEntry>,
            /// Time of the oldest entry in the log, milliseconds since 1970; earlier ones are not
            /// known.
            known_since_ms: u64,
            /// Start of the next page, if any. A page may be empty without being the last.
            next: Option<IssueCursor>,
        },
        /// To KeyList.
        0x0050 => Keys {
            keys: Vec<KeyInfo>,
            /// Start of the next page, if any.
            next: Option<KeyCursor>,
        },
        /// To KeyRotate and KeyProgress.
        0x0052 => KeyProgress {
            /// Number of keys that wait for rotation or are being rotated.
            open: u64,
            /// Number of devices among them that do not answer or refuse our keys.
            stuck: u32,
            /// Number of keys rotated since the server's start.
            changed: u64,
        },
        /// To Lookup with a client id.
        0x0060 => LookedUp {
            /// The node; `None` if the name does not exist.
            stat: Option<Stat>,
            /// Lease on the directory: until it is recalled, only its client changes names in it.
            directory: Option<NodeLease>,
            /// Lease on the node.
            lease: Option<NodeLease>,
        },
        /// To ReadNodes, if a lease was granted.
        0x0062 => Listed {
            /// As in `Directory`.
            entries: Vec<DirEntry>,
            /// Whether there may be more entries.
            more: bool,
            /// Lease on the directory.
            lease: NodeLease,
        },
        /// To MakeNode, if the client gets a lease: for an empty directory a read lease.
        0x0063 => Made {
            /// The new node.
            stat: Stat,
            /// Lease on the new node.
            lease: NodeLease,
        },
        /// To RenameNode.
        0x0066 => Renamed {
            /// The renamed node.
            moved: Stat,
            /// The node that had the new name, with its remaining links.
            other: Option<Stat>,
        },
        /// To ReadLink.
        0x0068 => Target {
            target: LinkTarget,
        },
        /// To OpenNode and Allocate.
        0x0069 => NodeOpened {
            node: OpenedNode,
        },
        /// To GetXattr.
        0x006D => Xattr {
            value: XattrValue,
        },
        /// To ListXattr.
        0x006F => Xattrs {
            /// Names, in byte order.
            names: Vec<XattrName>,
        },
        /// To StatFs.
        0x0071 => FileSystem {
            /// Capacity of all devices, bytes.
            total: u64,
            /// Used bytes.
            used: u64,
            /// Number of nodes of all kinds.
            nodes: u64,
            /// Number of nodes that can still be created.
            nodes_free: u64,
        },
        /// To KeepNodes and CloseNode.
        0x0072 => Kept {
            /// Number of files that the client has open, as the server knows. If it is fewer than
            /// the client knows, the server restarted or lost them: reopen them.
            held: u32,
            /// The open files expire then without another request, milliseconds since 1970.
            until_ms: u64,
        },
        /// To LockNode.
        0x0073 => Locked {
            /// The conflicting lock: nothing was changed. `None`: done (or, for a test, free).
            conflict: Option<Lock>,
        },
        /// To Recalls.
        0x0076 => Recalls {
            /// Epoch of the client; leases of other epochs are void. 0: this server grants no
            /// leases.
            epoch: u64,
            /// Validity of leases, milliseconds since the request was sent.
            lease_ms: u32,
            /// Number of the last recall in this answer; the next request repeats it as `known`.
            last: u64,
            /// Leases to return, in the order of the recalls.
            recalls: Vec<Recall>,
        },
        /// To LeaseNode.
        0x0077 => Leased {
            stat: Stat,
            /// The lease; `None`: not available. Then no other client has a conflicting lease or
            /// gets a write lease for a while.
            lease: Option<NodeLease>,
        },
        /// To DelegateDir.
        0x0079 => DirDelegated {
            /// Write lease on the directory; `None`: not granted.
            lease: Option<NodeLease>,
            /// Number of the read lease that was upgraded without a gap.
            before: Option<u64>,
            /// The reserved inode numbers.
            numbers: Option<InodeRange>,
        },
        /// To NameBatch.
        0x007A => NameBatchApplied {
            /// Number of changes applied.
            done: u16,
            /// Write leases on files that were created and are open.
            leases: Vec<InodeLease>,
            /// Why the next change was refused.
            failure: Option<Failure>,
        },
        /// To QuotaSet, QuotaShow and QuotaClear.
        0x0080 => Quota {
            quota: Quota,
        },
        /// To QuotaList.
        0x0083 => Quotas {
            quotas: Vec<Quota>,
            /// Whether there may be more entries; request those after the last one.
            more: bool,
        },
        /// To CheckBegin and CheckShow.
        0x0084 => Check {
            /// The last check since the server started, if any.
            check: Option<CheckStatus>,
        },
        /// To CheckFindings.
        0x0086 => CheckFindings {
            /// Findings in the order of discovery.
            findings: Vec<CheckFinding>,
            /// Whether more findings exist already.
            more: bool,
        },
        /// To DeviceAttributes.
        0x008A => DeviceGrant {
            /// The root object, with the right to read attributes.
            grant: Grant,
        },
        /// To ReceiptVerify.
        0x008B => Receipt {
            verdict: ReceiptVerdict,
            /// The device that the receipt names, if it is known.
            device: Option<DeviceId>,
        },
        /// To DiskPublicKey.
        0x0091 => DiskPublicKey {
            /// The key; `None`: the user has none.
            public: Option<[u8; DISK_PUBLIC_KEY_BYTES]>,
        },
        /// To DiskShow.
        0x0093 => Disk {
            access: DiskAccess,
        },
        /// To DiskList.
        0x0094 => Disks {
            disks: Vec<DiskInfo>,
            /// Whether there may be more entries; request those after the last one.
            more: bool,
        },
        /// To DiskLease.
        0x0096 => DiskLeased {
            epoch: u32,
            /// How long it is valid from the time when the request was sent, milliseconds.
            valid_ms: u32,
        },
    }
}

body!(Response);
