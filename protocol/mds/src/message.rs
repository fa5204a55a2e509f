//! Requests of a session and their responses: one row each.
//!
//! Does: number, name and encode them. Does not: decide anything.
//! Contract: a body is `id 8 ‖ operation 2 ‖ schema 1 ‖ 0 ‖ fields`. A later schema may append fields: a reader that
//! knows schema n reads its own fields of a body with schema > n and ignores the rest; with schema n nothing may follow.
//! Truth: docs/standards/mds/operations.md §5.

use alloc::vec::Vec;

use crate::ahead::NameChange;
use crate::check::CheckScope;
use crate::frame::BODY_MAX;
use crate::grants::{IssuePlace, RevokeWhat};
use crate::keys::{KeyLevel, KeyPlace};
use crate::layout::DeviceId;
use crate::login::{LoginFinish, LoginStart, REGISTRATION_REQUEST_BYTES, REGISTRATION_UPLOAD_BYTES};
use crate::name::{FilePath, GroupName, Name, UserName};
use crate::nodes::{
    ClientId, LeaseKind, Lock, Node, NodeChange, NodeKind, RenameMode, RequestId, XattrMode, XattrName,
    XattrValue,
};
use crate::quota::{QuotaChange, QuotaOf, QuotaPlace};
use crate::records::{
    Access, AccountKind, Checksum, DeviceState, InodeId, IntentId, Method, NewDevice, OpenHandle, Role,
};
use crate::secret::Secret;
use crate::wire::{Text, Wire, WireError, WireReader, WireWriter};

/// Version of the set of messages, agreed on by Hello.
pub const PROTOCOL_VERSION: u16 = 1;
/// Schema of every body in this version.
pub const SCHEMA: u8 = 1;
/// Entries a client may ask for in one page.
pub const PAGE_MAX: u16 = 256;

macro_rules! messages {
    ($(#[$meta:meta])* pub enum $name:ident as $what:literal, table $table:ident {
        $($(#[$variant_meta:meta])* $code:literal => $variant:ident {
            $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)?
        }),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_meta])* $variant { $($(#[$field_meta])* $field: $type),* }),*
        }

        /// Number and name of every row, for documents, metrics and coverage tests.
        pub const $table: &[(u16, &str)] = &[$(($code, stringify!($variant))),*];

        impl $name {
            /// The number of the row.
            #[must_use]
            pub const fn operation(&self) -> u16 {
                match self { $(Self::$variant { .. } => $code),* }
            }

            /// The name of the row.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => stringify!($variant)),* }
            }

            fn put_fields(&self, out: &mut WireWriter) {
                match self {
                    $(Self::$variant { $($field),* } => { $(Wire::put($field, out);)* let _ = &out; })*
                }
            }

            fn get_fields(operation: u16, input: &mut WireReader<'_>) -> Result<Self, WireError> {
                match operation {
                    $($code => Ok(Self::$variant { $($field: <$type as Wire>::get(input)?),* }),)*
                    code => Err(WireError::UnknownCode { what: $what, code: u32::from(code) }),
                }
            }
        }
    };
}

messages! {
    /// What a client asks.
    pub enum Request as "request", table REQUESTS {
        /// First request of a connection; agrees on the version. Allowed before login.
        0x0001 => Hello {
            /// Lowest version spoken.
            oldest: u16,
            /// Highest version spoken.
            newest: u16,
            /// Name and version of the client, for logs.
            software: Text<255>,
        },
        /// Who the session belongs to.
        0x0002 => WhoAmI {},
        /// Figures of the server.
        0x0003 => ServerInfo {},
        /// A file or directory by path.
        0x0010 => Stat {
            /// Which.
            path: FilePath,
        },
        /// A page of a directory, in byte order of names.
        0x0011 => ReadDir {
            /// Which directory.
            path: FilePath,
            /// Names after this one; none to begin.
            after: Option<Name>,
            /// Entries wanted, 1 to [`PAGE_MAX`]; fewer may come.
            limit: u16,
        },
        /// Makes a directory.
        0x0012 => MakeDir {
            /// Which.
            path: FilePath,
            /// Make missing directories above it too, and be content if it exists.
            parents: bool,
            /// Permission bits.
            mode: u16,
        },
        /// Begins a file: nothing is visible before Commit.
        0x0013 => Create {
            /// Its name.
            path: FilePath,
            /// Its size if known: decides its layout.
            size_hint: Option<u64>,
            /// Permission bits.
            mode: u16,
            /// May it take the place of an older file at Commit?
            replace: bool,
            /// Method for its objects; raised to the floor of policy.
            method: Method,
        },
        /// Opens a file.
        0x0014 => Open {
            /// Which.
            path: FilePath,
            /// What for.
            access: Access,
            /// Method for its objects; raised to the floor of policy.
            method: Method,
        },
        /// Fresh grants for what is open; prolongs a create.
        0x0015 => RenewGrants {
            /// What is open.
            handle: OpenHandle,
            /// Method, as in Open.
            method: Method,
        },
        /// Makes a create visible, in one step, in place of the older file.
        0x0016 => Commit {
            /// Which create.
            intent: IntentId,
            /// Final size.
            size: u64,
            /// Last change of content, nanoseconds since 1970; now if none.
            mtime_ns: Option<i64>,
            /// Checksum to keep.
            checksum: Option<Checksum>,
        },
        /// Gives up a create; its objects are removed.
        0x0017 => Abandon {
            /// Which create.
            intent: IntentId,
        },
        /// Moves a file or directory.
        0x0018 => Rename {
            /// From.
            from: FilePath,
            /// To: the new path itself, not the directory above it.
            to: FilePath,
            /// May it take the place of an older file, or of an empty directory?
            replace: bool,
        },
        /// Removes a file or directory.
        0x0019 => Remove {
            /// Which.
            path: FilePath,
            /// With all below it; a large tree needs several requests (see the response).
            recursive: bool,
        },
        /// Changes permission bits.
        0x001A => SetMode {
            /// Which.
            path: FilePath,
            /// New bits.
            mode: u16,
        },
        /// A file or directory by path; a symbolic link under the last name is not gone through.
        0x001C => Lstat {
            /// Which.
            path: FilePath,
        },
        /// Where the bytes of a file lie, and why there.
        0x001D => Placement {
            /// Which file; a symbolic link under the last name is not gone through.
            path: FilePath,
        },
        /// Space over all devices.
        0x0020 => DiskFree {},
        /// A page of the devices, by id.
        0x0021 => DeviceList {
            /// Ids after this one; none to begin.
            after: Option<DeviceId>,
            /// Entries wanted, 1 to [`PAGE_MAX`]; fewer may come.
            limit: u16,
        },
        /// Adds a device (administrators and operators).
        0x0022 => DeviceAdd {
            /// It.
            device: NewDevice,
        },
        /// Changes a device's state between Active and Draining (administrators and operators).
        0x0023 => DeviceSetState {
            /// Which.
            id: DeviceId,
            /// New state.
            state: DeviceState,
        },
        /// Empties a device: it takes no new files, and what is on it is moved elsewhere (administrators and operators). It
        /// is done in the background; DeviceSetState to Active ends it.
        0x0024 => DeviceDrain {
            /// Which.
            id: DeviceId,
            /// Bytes to be moved in a second at most; 0: as many as can be.
            rate: u64,
        },
        /// Makes the devices in use equally full, as far as moving objects does (administrators and operators). It is done in
        /// the background; said again it changes the rate.
        0x0025 => Rebalance {
            /// Bytes to be moved in a second at most; 0: as many as can be.
            rate: u64,
        },
        /// Ends that; what was moved stays where it is (administrators and operators).
        0x0026 => RebalanceStop {},
        /// How far that is (administrators and operators).
        0x0027 => RebalanceShow {},
        /// First half of a registration: by an administrator for anybody, by anybody for himself.
        0x0030 => UserRegisterStart {
            /// Account.
            name: UserName,
            /// OPAQUE registration request made from the new password.
            request: [u8; REGISTRATION_REQUEST_BYTES],
            /// For one's own account: the beginning of the proof that one knows the password or key in use.
            proof: Option<LoginStart>,
        },
        /// Second half; the password is in use from here on.
        0x0031 => UserRegisterFinish {
            /// Account.
            name: UserName,
            /// OPAQUE record.
            record: [u8; REGISTRATION_UPLOAD_BYTES],
            /// Suite it was made for.
            suite: u16,
            /// Role of a new account; an existing one keeps its own.
            role: Role,
            /// Change an existing account's password or key instead of adding an account.
            replace: bool,
            /// For one's own account: the end of that proof.
            proof: Option<LoginFinish>,
        },
        /// A page of the accounts, by name (administrators).
        0x0032 => UserList {
            /// Names after this one; none to begin.
            after: Option<UserName>,
            /// Entries wanted, 1 to [`PAGE_MAX`]; fewer may come.
            limit: u16,
        },
        /// Lets an account log in or not; ends its sessions if not (administrators).
        0x0033 => UserSetEnabled {
            /// Account.
            name: UserName,
            /// May it?
            enabled: bool,
        },
        /// Removes an account and ends its sessions; its files keep the name (administrators).
        0x0034 => UserRemove {
            /// Account.
            name: UserName,
        },
        /// Gives an account another role and ends its sessions (administrators).
        0x0035 => UserSetRole {
            /// Account.
            name: UserName,
            /// What it may do from here on.
            role: Role,
        },
        /// Adds a group without members (administrators).
        0x0036 => GroupCreate {
            /// Its name.
            name: GroupName,
        },
        /// Removes a group; files keep its name, which then gives nobody a right (administrators).
        0x0037 => GroupRemove {
            /// Its name.
            name: GroupName,
        },
        /// Makes an account a member of a group, from its next request on (administrators).
        0x0038 => GroupAddMember {
            /// Group.
            group: GroupName,
            /// Account.
            user: UserName,
        },
        /// Ends a membership, from the account's next request on (administrators).
        0x0039 => GroupRemoveMember {
            /// Group.
            group: GroupName,
            /// Account.
            user: UserName,
        },
        /// A page of the groups, by name (administrators).
        0x003A => GroupList {
            /// Names after this one; none to begin.
            after: Option<GroupName>,
            /// Entries wanted, 1 to [`PAGE_MAX`]; fewer may come.
            limit: u16,
        },
        /// A page of the members of a group, by name (administrators).
        0x003B => GroupMembers {
            /// Group.
            group: GroupName,
            /// Names after this one; none to begin.
            after: Option<UserName>,
            /// Entries wanted, 1 to [`PAGE_MAX`]; fewer may come.
            limit: u16,
        },
        /// Changes the owner (administrators) or the group (administrators; owners to a group of their own) of a file
        /// or directory.
        0x003C => SetOwner {
            /// Which.
            path: FilePath,
            /// New owner; none leaves it.
            owner: Option<UserName>,
            /// New group, or no group; none leaves it.
            group: Option<Option<GroupName>>,
        },
        /// Makes a code with which a new user chooses his password himself, or an old one a new password
        /// (administrators).
        0x003D => UserInvite {
            /// Account.
            name: UserName,
            /// Kind of a new account, a person's or a directory's; an existing one keeps its own.
            kind: AccountKind,
            /// Role of a new account; an existing one keeps its own.
            role: Role,
            /// Seconds that the code is good for.
            lifetime_s: u32,
            /// For an existing account instead of a new one.
            replace: bool,
        },
        /// Takes one of two keys from a service account and ends the sessions made with it: by an administrator, or
        /// by itself.
        0x003E => UserRetireKey {
            /// Account.
            name: UserName,
            /// Suite of the key.
            suite: u16,
        },
        /// Who holds credentials for the objects of a file (administrators).
        0x003F => GrantHolders {
            /// Which.
            path: FilePath,
        },
        /// Gives an account its key for the paper's profile or takes it away, and ends its sessions of that profile
        /// (administrators).
        0x0040 => UserSetPaperKey {
            /// Account.
            name: UserName,
            /// 20 bytes, as good as the passphrase; none: the account does not log in there.
            key: Option<Secret>,
        },
        /// Credentials for a part of a file, for a program that never logs in; never more than the asker may do
        /// himself.
        0x0041 => Delegate {
            /// Which file.
            path: FilePath,
            /// May it read?
            read: bool,
            /// May it write, in place?
            write: bool,
            /// First byte.
            start: u64,
            /// The byte after the last one; the end of the file if none.
            end: Option<u64>,
            /// Until when, milliseconds since 1970.
            until_ms: u64,
            /// Method; raised to the floor of policy.
            method: Method,
        },
        /// Ends credentials that devices accept (administrators; owners for their files). It is done in the background.
        0x0042 => Revoke {
            /// Whose.
            what: RevokeWhat,
        },
        /// How far a revocation is (administrators; owners for their files).
        0x0043 => RevocationProgress {
            /// Which.
            id: u64,
        },
        /// The revocations that are under way and the last ones that are over (administrators).
        0x0044 => RevocationList {},
        /// Who was given, or refused, credentials for a file (administrators and its owner).
        0x0045 => IssueList {
            /// Which file, as it is now.
            path: FilePath,
            /// To this user alone.
            user: Option<UserName>,
            /// Not before, milliseconds since 1970.
            since_ms: u64,
            /// Not after.
            until_ms: u64,
            /// Where to begin, as the page before told; none to begin.
            from: Option<IssuePlace>,
        },
        /// A page of the devices' keys: identifiers, ages, uses (administrators).
        0x0050 => KeyList {
            /// Of this device alone.
            device: Option<DeviceId>,
            /// Where to begin, as the page before told; none to begin.
            from: Option<KeyPlace>,
        },
        /// Has keys changed (administrators). It is done in the background.
        0x0051 => KeyRotate {
            /// Which level; all below it are changed with it.
            level: KeyLevel,
            /// Of this device alone.
            device: Option<DeviceId>,
            /// Of this partition alone.
            partition: Option<u64>,
            /// Working keys: the credentials that are out become worthless at once.
            revoke: bool,
        },
        /// How far the changes of keys are (administrators).
        0x0052 => KeyProgress {
            /// Of this device alone.
            device: Option<DeviceId>,
        },
        /// What a name in a directory leads to.
        0x0060 => Lookup {
            /// The directory.
            parent: Node,
            /// The name.
            name: Name,
            /// Who is to be given leases to read on the directory and on what is found, if they are to be had: then
            /// the answer says which.
            client_id: Option<ClientId>,
        },
        /// A node as it is now.
        0x0061 => GetNode {
            /// Which.
            node: Node,
        },
        /// A page of a directory, in byte order of names, with everything known of its entries.
        0x0062 => ReadNodes {
            /// Which directory.
            directory: Node,
            /// Names after this one; none to begin.
            after: Option<Name>,
            /// Entries wanted, 1 to [`PAGE_MAX`]; fewer may come.
            limit: u16,
            /// Who is to be given a lease to read on the directory, if there is one to be had.
            client_id: Option<ClientId>,
        },
        /// Makes a node.
        0x0063 => MakeNode {
            /// In which directory.
            parent: Node,
            /// Its name.
            name: Name,
            /// What.
            what: NodeKind,
            /// Permission bits; those of a symbolic link are 0777 whatever is said.
            mode: u16,
            /// Permission bits that it shall not have, unless its directory has a list for what is made in it.
            umask: u16,
            /// Whose it is, if not the asker's (administrators).
            owner: Option<UserName>,
            /// Its group, one of the asker's own (administrators: any); a directory with the set-group bit gives its
            /// own instead.
            group: Option<GroupName>,
            /// A file is held open for update at once by this holder, whatever its mode is.
            client_id: Option<ClientId>,
        },
        /// Gives a file another name.
        0x0064 => LinkNode {
            /// Which; no directory.
            node: Node,
            /// In which directory.
            parent: Node,
            /// The name.
            name: Name,
        },
        /// Takes a name away; what has no name left goes, a file that is held open when it is held no more.
        0x0065 => RemoveNode {
            /// From which directory.
            parent: Node,
            /// The name.
            name: Name,
            /// Is a directory meant (it must be empty), or anything but one?
            directory: bool,
        },
        /// Gives a node another place.
        0x0066 => RenameNode {
            /// From which directory.
            from_parent: Node,
            /// The old name.
            from: Name,
            /// To which directory.
            to_parent: Node,
            /// The new name.
            to: Name,
            /// What about that which has the new name?
            mode: RenameMode,
        },
        /// Changes what is known of a node.
        0x0067 => SetNode {
            /// Which.
            node: Node,
            /// What changes.
            change: NodeChange,
            /// Which holder asks: his own lease is not recalled.
            client_id: Option<ClientId>,
            /// The size is changed through a file that he has open for update: then its mode does not matter.
            through: bool,
        },
        /// Where a symbolic link leads.
        0x0068 => ReadLink {
            /// Which.
            node: Node,
        },
        /// Opens a file and holds it.
        0x0069 => OpenNode {
            /// Which.
            node: Node,
            /// What for.
            access: Access,
            /// Method for its objects; raised to the floor of policy.
            method: Method,
            /// Who holds it from here on, once, however often this is asked.
            client_id: ClientId,
            /// It was open before the server began or the holder was lost: an owner gets it whatever its mode is now.
            reclaim: bool,
        },
        /// Gives a file objects for its bytes; the same ones if it has some.
        0x006A => Allocate {
            /// Which; held for update.
            node: Node,
            /// Bytes known to be coming: decides the layout.
            size_hint: Option<u64>,
            /// Method for its objects; raised to the floor of policy.
            method: Method,
            /// Who holds it.
            client_id: ClientId,
        },
        /// Bytes are on the devices, durable as far as their writer wants: the file is at least this long.
        0x006B => Written {
            /// Which; held for update.
            node: Node,
            /// The byte after the last one written.
            size_at_least: u64,
            /// Last change of content, nanoseconds since 1970; now if none.
            mtime_ns: Option<i64>,
            /// As the writer knew it when it began to write; another one now, and what it wrote may be gone (Stale).
            generation: u32,
            /// Every object of the layout is on its device.
            made: bool,
            /// If a quota does not allow as much: as much as fits, and the rest is cut off. It is refused all the same.
            fit: bool,
            /// Who holds it.
            client_id: ClientId,
        },
        /// Holds a file no longer.
        0x006C => CloseNode {
            /// Which.
            node: Node,
            /// Who held it.
            client_id: ClientId,
        },
        /// The value of an extended attribute.
        0x006D => GetXattr {
            /// Of which node.
            node: Node,
            /// Which.
            name: XattrName,
        },
        /// Sets an extended attribute.
        0x006E => SetXattr {
            /// Of which node.
            node: Node,
            /// Which.
            name: XattrName,
            /// To what.
            value: XattrValue,
            /// Must it be there, must it not?
            mode: XattrMode,
        },
        /// The names of the extended attributes that the asker may see.
        0x006F => ListXattr {
            /// Of which node.
            node: Node,
        },
        /// Removes an extended attribute.
        0x0070 => RemoveXattr {
            /// Of which node.
            node: Node,
            /// Which.
            name: XattrName,
        },
        /// Room, and how many nodes there are; as the asker's quota, and that of a node's tree, let him see it.
        0x0071 => StatFs {
            /// Which node.
            node: Option<Node>,
        },
        /// The holder lives: all that it holds is held on.
        0x0072 => KeepNodes {
            /// Which.
            client_id: ClientId,
        },
        /// Sets, changes, removes or asks for an advisory lock. Nobody waits at the server: ask again.
        0x0073 => LockNode {
            /// Of which file.
            node: Node,
            /// For which holder.
            client_id: ClientId,
            /// Which lock.
            lock: Lock,
            /// Only asks who is in the way.
            test: bool,
            /// It was held before the server began: for a minute after that only these are given.
            reclaim: bool,
        },
        /// Ends all locks of one owner on a file, as closing it does.
        0x0074 => UnlockNode {
            /// Of which file.
            node: Node,
            /// Of which holder.
            client_id: ClientId,
            /// Whose among the programs of the holder.
            owner: u64,
        },
        /// A change that is done once however often it is asked for: whoever asks again, here or at another server of the
        /// store, is told what was answered first.
        0x0075 => Once {
            /// Which of the asker's changes it is.
            id: RequestId,
            /// What.
            request: ChangeRequest,
        },
        /// Which leases the holder is to give back, answered as soon as there are some. It is what makes a holder one that is
        /// given leases, what has him believe in them, and a sign of life.
        0x0076 => Recalls {
            /// Which.
            client_id: ClientId,
            /// The era that he knows, in which he has nothing left of those before; 0: none.
            epoch: u64,
            /// The last recall that he was told of.
            known: u64,
            /// How long the server may wait for one, milliseconds.
            wait_ms: u32,
        },
        /// Asks for a lease on an open file; others give theirs back first (Busy).
        0x0077 => LeaseNode {
            /// On which file.
            node: Node,
            /// For which holder.
            client_id: ClientId,
            /// What for.
            kind: LeaseKind,
        },
        /// Gives a lease back; content if it is gone.
        0x0078 => ReturnLease {
            /// On which file; it needs no proof.
            inode: InodeId,
            /// Whose.
            client_id: ClientId,
            /// Which.
            number: u64,
        },
        /// Asks to be ahead in a directory, and for numbers of nodes to be made in it. It is not waited for: there is
        /// something to be had, or not.
        0x0079 => DelegateDir {
            /// In which directory; none: only numbers.
            directory: Option<Node>,
            /// Which holder.
            client_id: ClientId,
            /// How many numbers, up to [`RESERVED_INODES_MAX`](crate::NUMBERS_MAX).
            numbers: u16,
        },
        /// Tells of changes of names that the holder has made already. Once alone: it is the holder's turn that says whose they
        /// are. They are done one after the other, up to the first one that is refused.
        0x007A => NameBatch {
            /// What was done, in order; at most [`NAME_CHANGES_MAX`](crate::NAME_CHANGES_MAX).
            changes: Vec<NameChange>,
        },
        /// Sets limits (administrators). A directory becomes a tree by that; it must be empty.
        0x0080 => QuotaSet {
            /// Whose.
            of: QuotaOf,
            /// Which limits.
            change: QuotaChange,
        },
        /// What is used and allowed; of the tree that a path lies in. Users see their own.
        0x0081 => QuotaShow {
            /// Whose.
            of: QuotaOf,
        },
        /// Takes limits away (administrators). An empty directory is no tree any more after that.
        0x0082 => QuotaClear {
            /// Whose.
            of: QuotaOf,
        },
        /// A page of what is used and allowed. Who is no administrator sees his own alone.
        0x0083 => QuotaList {
            /// Those after this one; none to begin.
            after: Option<QuotaPlace>,
            /// Entries wanted, 1 to [`PAGE_MAX`]; fewer may come.
            limit: u16,
        },
        /// Begins to look through everything, beside all other work (administrators); one check at a time.
        0x0084 => CheckBegin {
            /// How much.
            scope: CheckScope,
            /// Put right what can be.
            repair: bool,
        },
        /// How far the last check is.
        0x0085 => CheckShow {},
        /// What a check found so far.
        0x0086 => CheckFindings {
            /// Which check.
            number: u64,
            /// From this finding on.
            from: u32,
        },
        /// The holder is gone, and knows nothing of what it had: all that it holds open, its locks and its leases end, and after a restart
        /// nobody waits for it. What it did in directories and did not tell is not told any more.
        0x0087 => EndClient {
            /// Which.
            client_id: ClientId,
        },
    }
}

macro_rules! body {
    ($name:ident) => {
        impl $name {
            /// The body of a frame: header of the body, then fields.
            ///
            /// # Errors
            /// `TooLong` if it does not fit into a frame or a field is over its limit.
            pub fn encode(&self, id: u64) -> Result<Vec<u8>, WireError> {
                let mut out = WireWriter::new();
                id.put(&mut out);
                self.operation().put(&mut out);
                SCHEMA.put(&mut out);
                0u8.put(&mut out);
                self.put_fields(&mut out);
                out.finish(BODY_MAX)
            }

            /// Reads a body.
            ///
            /// # Errors
            /// Any [`WireError`], with the request id if the body got that far, so that it can be answered.
            pub fn decode(body: &[u8]) -> Result<(u64, Self), (Option<u64>, WireError)> {
                let mut input = WireReader::new(body);
                let id = u64::get(&mut input).map_err(|error| (None, error))?;
                Self::decode_rest(input).map(|message| (id, message)).map_err(|error| (Some(id), error))
            }

            fn decode_rest(mut input: WireReader<'_>) -> Result<Self, WireError> {
                let operation = u16::get(&mut input)?;
                let schema = u8::get(&mut input)?;
                if schema < SCHEMA {
                    return Err(WireError::UnknownCode { what: "schema", code: u32::from(schema) });
                }
                if u8::get(&mut input)? != 0 {
                    return Err(WireError::Malformed("reserved byte"));
                }
                let message = Self::get_fields(operation, &mut input)?;
                if schema == SCHEMA {
                    input.finish()?;
                }
                Ok(message)
            }
        }
    };
}
body!(Request);

mod change;
mod class;
mod response;

pub use change::ChangeRequest;
pub use response::{RESPONSES, Response};

#[cfg(test)]
mod tests;
