//! Credentials outside open files: delegated to programs without login, revoked, and listed.
//!
//! Truth: docs/standards/mds/operations.md §5.5 to §5.7.

use alloc::vec::Vec;

use crate::layout::{DeviceId, Layout};
use crate::login::SessionId;
use crate::name::{FilePath, UserName};
use crate::records::{Grant, Method, Stat};
use crate::wire::{Text, Wire, WireError, WireReader, WireWriter, code, record};

record! {
    /// Credentials for a file for a program that does not log in (a capability file).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DelegatedFile {
        /// Attributes when the credentials were issued.
        pub stat: Stat,
        pub layout: Layout,
        /// One credential for each object with bytes of the range, in the layout's order.
        pub grants: Vec<Grant>,
        /// First byte of the range.
        pub start: u64,
        /// End of the range, exclusive.
        pub end: u64,
        /// Whether it may read.
        pub read: bool,
        /// Whether it may write in place. If it may do neither, it may execute the file.
        pub write: bool,
        /// Expiry, milliseconds since 1970.
        pub expires_ms: u64,
        /// Principal in the audit logs of the devices: the issuer's session, then a number.
        pub principal: [u8; 20],
    }
}

/// Subject of a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RevocationTarget {
    /// All credentials for the objects of a file.
    Object(FilePath),
    /// All credentials of a user in all sessions, also delegated ones.
    User(UserName),
    /// All credentials of a session, also delegated ones. Only its logout starts this one.
    Session(SessionId),
}

impl Wire for RevocationTarget {
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

impl core::fmt::Display for RevocationTarget {
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
    /// A device that has not applied the whole revocation yet.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct WaitingDevice {
        /// The device.
        pub device: DeviceId,
        /// Its pending objects; 1024 means at least that many.
        pub objects: u32,
        /// The last error; empty if none.
        pub problem: Text<96>,
    }
}

record! {
    /// Progress of a revocation.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Revocation {
        pub id: u64,
        /// Subject of a revocation.
        pub what: RevocationTarget,
        /// Start time, milliseconds since 1970.
        pub began_ms: u64,
        /// Objects found so far.
        pub total: u64,
        /// Objects whose device still accepts the old credentials, as far as is known.
        pub open: u64,
        /// Whether more objects may be found.
        pub collecting: bool,
        /// Whether every issued credential is covered. Always for a user: unlisted credentials are
        /// revoked by `keys`.
        pub complete: bool,
        /// Partitions whose working keys are replaced because not all credentials of the user are
        /// listed.
        pub keys: u32,
        /// Partitions whose device has not confirmed the new key yet.
        pub keys_open: u32,
        /// Time when the last device refused the old credentials, milliseconds since 1970.
        pub done_ms: Option<u64>,
        /// Devices that have not applied everything yet.
        pub waiting: Vec<WaitingDevice>,
    }
}

code! {
    /// How a credential was issued, or that it was refused.
    pub enum IssueKind: u8 as "kind of issue" {
        /// For a create.
        Create = 1,
        /// For an open file.
        Open = 2,
        /// For an open file, renewed.
        Renew = 3,
        /// As a capability file for a program.
        Delegate = 4,
        /// The request was refused.
        Refused = 5,
        /// For the execution of a function.
        Execute = 6,
    }
}

/// The receipt of a run of a function, opaque here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptBytes(Vec<u8>);

impl ReceiptBytes {
    /// Maximum bytes of a receipt, as in a reply of a device.
    pub const MAX: usize = sealstone_osd::function::RECEIPT_MAX;

    /// Wraps the bytes of a receipt.
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

impl Wire for ReceiptBytes {
    fn put(&self, out: &mut WireWriter) {
        out.lv16(&self.0);
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(Self(input.lv16(Self::MAX)?.to_vec()))
    }
}

code! {
    /// Whether a receipt is that of a device.
    pub enum ReceiptVerdict: u8 as "verdict on a receipt" {
        /// The device issued it, and it is unchanged.
        Genuine = 1,
        /// It is not a receipt.
        Malformed = 2,
        /// No device has its system id.
        UnknownDevice = 3,
        /// The root key of the device was replaced since, so it cannot be verified any more.
        KeyReplaced = 4,
        /// It was changed or forged.
        Forged = 5,
    }
}

record! {
    /// An entry in the log of issued credentials.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct IssueEntry {
        /// Time, milliseconds since 1970.
        pub time_ms: u64,
        pub kind: IssueKind,
        pub user: UserName,
        pub session: SessionId,
        /// Number within the session; session and number are the `principal` in the audit logs of
        /// the devices.
        pub number: u32,
        /// The first two bytes of its permission bits.
        pub permissions: u16,
        pub method: Method,
        /// Expiry, milliseconds since 1970.
        pub expires_ms: u64,
        /// First byte of the range in the file.
        pub start: u64,
        /// End of the range, exclusive; `u64::MAX` for the whole file.
        pub end: u64,
    }
}

record! {
    /// A position in the log of issued credentials.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct IssueCursor {
        /// 0: issued credentials; 1: refused requests.
        pub stream: u8,
        /// Position in the stream; 0 is the beginning.
        pub at: u64,
    }
}
