//! Credentials beyond an open file: delegated to programs that never log in, revoked, and accounted for.
//!
//! Truth: docs/standards/mds/operations.md §5.5 to §5.7.

use alloc::vec::Vec;

use crate::layout::{DeviceId, Layout};
use crate::login::SessionId;
use crate::name::{FilePath, UserName};
use crate::records::{Grant, Method, Stat};
use crate::wire::{Text, Wire, WireError, WireReader, WireWriter, code, record};

record! {
    /// What a program may do with a file without logging in.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DelegatedFile {
        /// What it was when the credentials were made.
        pub stat: Stat,
        /// Where its bytes are.
        pub layout: Layout,
        /// One for each object that has bytes of the range, in the layout's order.
        pub grants: Vec<Grant>,
        /// First byte that may be touched.
        pub start: u64,
        /// The byte after the last one.
        pub end: u64,
        /// May it read?
        pub read: bool,
        /// May it write?
        pub write: bool,
        /// Not valid after, milliseconds since 1970.
        pub expires_ms: u64,
        /// What the audit logs of the devices call whoever uses it: the issuer's session, then a number.
        pub principal: [u8; 20],
    }
}

/// Whose credentials end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RevokeWhat {
    /// Everybody's for the objects of a file.
    Object(FilePath),
    /// Everything that a user holds, over all his sessions, and what he delegated.
    User(UserName),
    /// What one session holds, and what was delegated in it. Only its logout begins this one.
    Session(SessionId),
}

impl Wire for RevokeWhat {
    fn put(&self, out: &mut WireWriter) {
        match self {
            Self::Object(path) => {
                1u8.put(out);
                path.put(out);
            }
            Self::User(name) => {
                2u8.put(out);
                name.put(out);
            }
            Self::Session(session) => {
                3u8.put(out);
                session.put(out);
            }
        }
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::get(input)? {
            1 => Ok(Self::Object(FilePath::get(input)?)),
            2 => Ok(Self::User(UserName::get(input)?)),
            3 => Ok(Self::Session(SessionId::get(input)?)),
            code => Err(WireError::UnknownCode { what: "subject of a revocation", code: u32::from(code) }),
        }
    }
}

impl core::fmt::Display for RevokeWhat {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Object(path) => write!(f, "object {path}"),
            Self::User(name) => write!(f, "user {name}"),
            Self::Session(session) => {
                f.write_str("session ")?;
                session.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

record! {
    /// A device that has not been told everything yet.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct WaitingDevice {
        /// Which.
        pub device: DeviceId,
        /// Its objects that wait; 1024 stand for more as well.
        pub objects: u32,
        /// What went wrong at the last try; empty if nothing did.
        pub problem: Text<96>,
    }
}

record! {
    /// How far a revocation is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Revocation {
        /// Its number.
        pub id: u64,
        /// Whose credentials end.
        pub what: RevokeWhat,
        /// When it was asked for, milliseconds since 1970.
        pub began_ms: u64,
        /// Objects found so far.
        pub total: u64,
        /// Of them, those whose device still accepts the old credentials, as far as is known.
        pub open: u64,
        /// Are there objects that were not looked at yet?
        pub collecting: bool,
        /// Whether every issued credential is covered. Of a user always: what is not listed is revoked by `keys`.
        pub complete: bool,
        /// Partitions whose working keys are replaced, since not all credentials of the user are listed.
        pub keys: u32,
        /// Of them, those whose device has not confirmed the new key yet.
        pub keys_open: u32,
        /// When the last device refused, milliseconds since 1970.
        pub done_ms: Option<u64>,
        /// Devices that have not been told everything yet.
        pub waiting: Vec<WaitingDevice>,
    }
}

code! {
    /// How a credential came into the world, or that it did not.
    pub enum IssueKind: u8 as "kind of issue" {
        /// For a create.
        Create = 1,
        /// For an open file.
        Open = 2,
        /// For what was open already.
        Renew = 3,
        /// As a file for a program.
        Delegate = 4,
        /// The server refused to give one.
        Refused = 5,
    }
}

record! {
    /// One line of the record of credentials.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct IssueEntry {
        /// When, milliseconds since 1970.
        pub time_ms: u64,
        /// What happened.
        pub kind: IssueKind,
        /// To whom.
        pub user: UserName,
        /// In which session.
        pub session: SessionId,
        /// Number within the session: session and number are `principal` in the audit logs of the devices.
        pub number: u32,
        /// What it allows: the first two bytes of permission bits.
        pub permissions: u16,
        /// By which method.
        pub method: Method,
        /// Not valid after, milliseconds since 1970.
        pub expires_ms: u64,
        /// First byte of the file that it is about.
        pub start: u64,
        /// The byte after the last one; `u64::MAX` for the whole file.
        pub end: u64,
    }
}

record! {
    /// A place in the record of credentials.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct IssuePlace {
        /// 0 in what was given, 1 in what was refused.
        pub stream: u8,
        /// Where in it; 0 is its beginning.
        pub at: u64,
    }
}
