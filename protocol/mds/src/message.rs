//! Requests of a session and their responses: one row each.
//!
//! Does: number, name and encode them. Does not: decide anything.
//! Contract: a body is `id 8 ‖ operation 2 ‖ schema 1 ‖ 0 ‖ fields`. A later schema may append fields: a reader that
//! knows schema n reads its own fields of a body with schema > n and ignores the rest; with schema n nothing may follow.
//! Truth: docs/standards/mds.md §5.

use alloc::vec::Vec;

use crate::error::Failure;
use crate::frame::BODY_MAX;
use crate::grants::{DelegatedFile, IssueEntry, IssuePlace, Revocation, RevokeWhat};
use crate::keys::{KeyInfo, KeyLevel, KeyPlace};
use crate::layout::DeviceId;
use crate::login::{
    LoginChallenge, LoginFinish, LoginStart, REGISTRATION_REQUEST_BYTES, REGISTRATION_RESPONSE_BYTES,
    REGISTRATION_UPLOAD_BYTES, SessionId,
};
use crate::name::{FilePath, GroupName, Name, UserName};
use crate::records::{
    Access, AccountKind, Checksum, CreatedFile, Device, DeviceState, DirEntry, Grant, Group, Handle, Holder,
    InodeId, IntentId, Method, NewDevice, OpenedFile, Role, Stat, User,
};
use crate::secret::Secret;
use crate::wire::{Reader, Text, Wire, WireError, Writer};

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

            fn put_fields(&self, out: &mut Writer) {
                match self {
                    $(Self::$variant { $($field),* } => { $(Wire::put($field, out);)* let _ = &out; })*
                }
            }

            fn get_fields(operation: u16, input: &mut Reader<'_>) -> Result<Self, WireError> {
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
            handle: Handle,
            /// Method, as in Open.
            method: Method,
        },
        /// Makes a create visible, in one step, in place of the older file.
        0x0016 => Commit {
            /// Which create.
            intent: IntentId,
            /// Final size.
            size: u64,
            /// Last change of content; now if none.
            mtime_ms: Option<u64>,
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
        /// Records the size of a file changed in place.
        0x001B => Update {
            /// Which.
            inode: InodeId,
            /// New size.
            size: u64,
            /// Last change of content; now if none.
            mtime_ms: Option<u64>,
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
    }
}

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
        /// To Stat, SetMode, SetOwner, MakeDir, Commit, Update.
        0x0010 => Stat {
            /// The file or directory as it is now.
            stat: Stat,
        },
        /// To ReadDir.
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
        /// To DeviceAdd and DeviceSetState.
        0x0022 => Device {
            /// The device as it is now.
            device: Device,
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
            /// Who holds what, those that last longest first; cut at [`PAGE_MAX`].
            holders: Vec<Holder>,
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
                let mut out = Writer::new();
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
                let mut input = Reader::new(body);
                let id = u64::get(&mut input).map_err(|error| (None, error))?;
                Self::decode_rest(input).map(|message| (id, message)).map_err(|error| (Some(id), error))
            }

            fn decode_rest(mut input: Reader<'_>) -> Result<Self, WireError> {
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
body!(Response);

#[cfg(test)]
mod tests;
