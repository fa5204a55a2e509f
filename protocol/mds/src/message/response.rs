//! What the server answers: one row each.
//!
//! Truth: docs/standards/mds/operations.md §5.

use alloc::vec::Vec;

use super::{BODY_MAX, SCHEMA};
use crate::ahead::{InodeLease, InodeRange};
use crate::check::{CheckFinding, CheckStatus};
use crate::error::Failure;
use crate::grants::{DelegatedFile, IssueEntry, IssuePlace, Revocation};
use crate::keys::{KeyInfo, KeyPlace};
use crate::layout::Layout;
use crate::login::{LoginChallenge, REGISTRATION_RESPONSE_BYTES, SessionId};
use crate::name::{GroupName, UserName};
use crate::nodes::{LinkTarget, Lock, NodeLease, OpenedNode, Recall, XattrName, XattrValue};
use crate::placed::{PlacementRecord, Rebalance};
use crate::quota::Quota;
use crate::records::{
    CreatedFile, CredentialHolder, Device, DirEntry, Grant, Group, Method, OpenedFile, Role, Stat, User,
};
use crate::secret::Secret;
use crate::wire::{Text, Wire, WireError, WireReader, WireWriter};

messages! {
    /// What the server answers.
    pub enum Response as "response", table RESPONSES {
        /// Refused or failed.
        0x0000 => Failed {
            /// Why.
            failure: Failure,
        },
        /// To Hello.
        0x0001 => Hello {
            /// Version to be used.
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
            /// Account.
            user: UserName,
            /// What it may do.
            role: Role,
            /// Its groups.
            groups: Vec<GroupName>,
            /// Session.
            session: SessionId,
            /// When it ends, milliseconds since 1970.
            expires_ms: u64,
        },
        /// To ServerInfo.
        0x0003 => ServerInfo {
            /// The server's clock, milliseconds since 1970.
            time_ms: u64,
            /// Weakest method that devices accept.
            method_floor: Method,
            /// Files.
            files: u64,
            /// Directories.
            directories: u64,
            /// Creates under way.
            intents: u64,
            /// Objects waiting to be removed from devices.
            reap_queue: u64,
            /// Live sessions.
            sessions: u64,
            /// Devices.
            devices: u32,
        },
        /// Done; nothing to tell.
        0x0004 => Done {},
        /// To Stat, Lstat, SetMode, SetOwner, MakeDir, Commit, Update; Lookup, GetNode, MakeNode, LinkNode, RemoveNode (what
        /// is left of it), SetNode, Written.
        0x0010 => Stat {
            /// The file or directory as it is now.
            stat: Stat,
        },
        /// To ReadDir and ReadNodes.
        0x0011 => Directory {
            /// Entries.
            entries: Vec<DirEntry>,
            /// May there be more? Then ask again after the last name.
            more: bool,
        },
        /// To Create.
        0x0013 => Created {
            /// What to write to.
            file: CreatedFile,
        },
        /// To Open.
        0x0014 => Opened {
            /// What to read from.
            file: OpenedFile,
        },
        /// To RenewGrants.
        0x0015 => Grants {
            /// The layout that the objects are of. With the number that is known, those that moved are in their old place of
            /// it; with another one the file was carried over, if the generation is the same, and else cut to nothing.
            layout: Layout,
            /// Of the file.
            generation: u32,
            /// One per object of the layout, in its order.
            grants: Vec<Grant>,
        },
        /// To Remove.
        0x0019 => Removed {
            /// Files and directories removed by this request.
            count: u64,
            /// Is something left? Then ask again.
            more: bool,
        },
        /// To Placement.
        0x001D => Placement {
            /// Where they lie; none before the first byte.
            layout: Option<Layout>,
            /// Why the layout was chosen; none if it was not noted.
            placed: Option<PlacementRecord>,
        },
        /// To DiskFree.
        0x0020 => DiskFree {
            /// Bytes of all devices.
            total: u64,
            /// Bytes in use on them.
            used: u64,
            /// Devices that take new objects.
            active: u32,
            /// All devices.
            devices: u32,
        },
        /// To DeviceList.
        0x0021 => Devices {
            /// Devices.
            devices: Vec<Device>,
            /// May there be more?
            more: bool,
        },
        /// To DeviceAdd, DeviceSetState and DeviceDrain.
        0x0022 => Device {
            /// The device as it is now.
            device: Device,
        },
        /// To Rebalance, RebalanceStop and RebalanceShow.
        0x0025 => Rebalance {
            /// The last one; none if there never was one.
            rebalance: Option<Rebalance>,
        },
        /// To UserRegisterStart.
        0x0030 => UserRegisterStart {
            /// OPAQUE registration response.
            response: [u8; REGISTRATION_RESPONSE_BYTES],
            /// To the proof that was begun; none if none was.
            challenge: Option<LoginChallenge>,
        },
        /// To UserList.
        0x0032 => Users {
            /// Accounts.
            users: Vec<User>,
            /// May there be more?
            more: bool,
        },
        /// To GroupList.
        0x003A => Groups {
            /// Groups.
            groups: Vec<Group>,
            /// May there be more?
            more: bool,
        },
        /// To GroupMembers.
        0x003B => Members {
            /// Accounts.
            members: Vec<UserName>,
            /// May there be more?
            more: bool,
        },
        /// To UserInvite.
        0x003D => Invitation {
            /// The code, in letters and digits; it is shown this once.
            code: Secret,
            /// Until then it can be used, milliseconds since 1970.
            expires_ms: u64,
        },
        /// To GrantHolders.
        0x003F => Holders {
            /// Who holds what, those that last longest first; cut at [`PAGE_MAX`](super::PAGE_MAX).
            holders: Vec<CredentialHolder>,
            /// Is nobody left out? Not if the list was cut, or if the server began or lost track within the longest
            /// life of a credential.
            complete: bool,
        },
        /// To Delegate.
        0x0041 => Delegated {
            /// What to hand to the program.
            file: DelegatedFile,
        },
        /// To Revoke, RevocationProgress, UserSetEnabled and UserRemove.
        0x0042 => Revocation {
            /// How far it is.
            revocation: Revocation,
        },
        /// To RevocationList.
        0x0044 => Revocations {
            /// The last ones, newest first.
            revocations: Vec<Revocation>,
        },
        /// To IssueList.
        0x0045 => Issues {
            /// Oldest first within what was given, then within what was refused.
            entries: Vec<IssueEntry>,
            /// The oldest that the record still has, milliseconds since 1970; what was before is not known.
            known_since_ms: u64,
            /// Where the next page begins, if there is one. A page may be empty and not be the last.
            next: Option<IssuePlace>,
        },
        /// To KeyList.
        0x0050 => Keys {
            /// Keys.
            keys: Vec<KeyInfo>,
            /// Where the next page begins, if there is one.
            next: Option<KeyPlace>,
        },
        /// To KeyRotate and KeyProgress.
        0x0052 => KeyProgress {
            /// Keys that wait to be changed or are being changed.
            open: u64,
            /// Devices among them that do not answer or do not accept our keys.
            stuck: u32,
            /// Keys changed since the server's start.
            changed: u64,
        },
        /// To Lookup, if there are leases for who asks.
        0x0060 => LookedUp {
            /// What has the name; none if nothing has.
            stat: Option<Stat>,
            /// On the directory: until it is called back no name in it changes but by who has it.
            directory: Option<NodeLease>,
            /// On what has the name.
            lease: Option<NodeLease>,
        },
        /// To ReadNodes, if there is a lease for who asks.
        0x0062 => Listed {
            /// As those of Directory.
            entries: Vec<DirEntry>,
            /// May there be more?
            more: bool,
            /// On the directory.
            lease: NodeLease,
        },
        /// To MakeNode, if its maker is given a lease: of a directory with nothing in it one to read.
        0x0063 => Made {
            /// What was made.
            stat: Stat,
            /// On it.
            lease: NodeLease,
        },
        /// To RenameNode.
        0x0066 => Renamed {
            /// What was moved.
            moved: Stat,
            /// What had the new name: as it is now, with the names it has left.
            other: Option<Stat>,
        },
        /// To ReadLink.
        0x0068 => Target {
            /// Where it leads.
            target: LinkTarget,
        },
        /// To OpenNode and Allocate.
        0x0069 => NodeOpened {
            /// The file as it is now.
            node: OpenedNode,
        },
        /// To GetXattr.
        0x006D => Xattr {
            /// The value.
            value: XattrValue,
        },
        /// To ListXattr.
        0x006F => Xattrs {
            /// Names, in byte order.
            names: Vec<XattrName>,
        },
        /// To StatFs.
        0x0071 => FileSystem {
            /// Bytes of all devices.
            total: u64,
            /// Bytes in use on them.
            used: u64,
            /// Files, directories and all else that has a number.
            nodes: u64,
            /// Numbers that are left.
            nodes_free: u64,
        },
        /// To KeepNodes and CloseNode.
        0x0072 => Kept {
            /// Files that the holder holds as the server knows; fewer than the holder thinks, and the server began anew
            /// or lost it: open them again.
            held: u32,
            /// They are held until then unless the holder is heard of, milliseconds since 1970.
            until_ms: u64,
        },
        /// To LockNode.
        0x0073 => Locked {
            /// The lock in the way: nothing was done. None: done (or, of a test, free).
            conflict: Option<Lock>,
        },
        /// To Recalls.
        0x0076 => Recalls {
            /// Leases of any other era are gone; 0: none are given here.
            epoch: u64,
            /// Leases are believed in for so long after the request was sent, milliseconds.
            lease_ms: u32,
            /// The last recall that is told of here: what the next request calls known.
            last: u64,
            /// What is to be given back, in the order in which it was recalled.
            recalls: Vec<Recall>,
        },
        /// To LeaseNode.
        0x0077 => Leased {
            /// The file as it is now.
            stat: Stat,
            /// None: there is none to be had. Nobody else has one that is in the way, nor is given one to write for a while.
            lease: Option<NodeLease>,
        },
        /// To DelegateDir.
        0x0079 => DirDelegated {
            /// To write, on the directory; none: there is none to be had.
            lease: Option<NodeLease>,
            /// The number of the lease that it took the place of, without a moment in between.
            before: Option<u64>,
            /// What was reserved.
            numbers: Option<InodeRange>,
        },
        /// To NameBatch.
        0x007A => NameBatchApplied {
            /// How many were done.
            done: u16,
            /// On files that were made and are held.
            leases: Vec<InodeLease>,
            /// Why the next one was not.
            failure: Option<Failure>,
        },
        /// To QuotaSet, QuotaShow and QuotaClear.
        0x0080 => Quota {
            /// As it is now.
            quota: Quota,
        },
        /// To QuotaList.
        0x0083 => Quotas {
            /// Users, then trees.
            quotas: Vec<Quota>,
            /// May there be more? Then ask again after the last one.
            more: bool,
        },
        /// To CheckBegin and CheckShow.
        0x0084 => Check {
            /// None: there was none since the server began.
            check: Option<CheckStatus>,
        },
        /// To CheckFindings.
        0x0086 => CheckFindings {
            /// In the order in which they were found.
            findings: Vec<CheckFinding>,
            /// Were more found already?
            more: bool,
        },
    }
}

body!(Response);
