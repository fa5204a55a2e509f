//! Bodies of the login messages, types 20h to 2Fh.
//!
//! Does: types and sizes.
//! Does not: cryptography; `sealstone-login` does.
//! Truth: docs/standards/mds/login.md §4.

use crate::name::UserName;
use crate::secret::Secret;
use crate::wire::{Text, code, record};

/// ristretto255-SHA512, 3DH, HKDF-SHA512, HMAC-SHA512, Argon2id 64 MiB / 3 passes / 4 lanes.
pub const SUITE_STANDARD: u16 = 0x0001;
/// The same with Argon2id at the floor: 19 MiB / 2 passes / 1 lane.
pub const SUITE_LIGHT: u16 = 0x0002;
/// For key files of service accounts: 32 random bytes, which need little stretching. An account has
/// at most one credential for each suite; two suites allow two valid keys during a key change.
pub const SUITE_SERVICE_A: u16 = 0x0101;
/// The second suite for key files.
pub const SUITE_SERVICE_B: u16 = 0x0102;

/// Whether the suite is for key files, not for passwords.
#[must_use]
pub const fn is_service_suite(suite: u16) -> bool {
    matches!(suite, SUITE_SERVICE_A | SUITE_SERVICE_B)
}

/// Length of OPAQUE's first message.
pub const KE1_BYTES: usize = 96;
/// Length of OPAQUE's second message.
pub const KE2_BYTES: usize = 320;
/// Length of OPAQUE's third message.
pub const KE3_BYTES: usize = 64;
/// Length of a registration request.
pub const REGISTRATION_REQUEST_BYTES: usize = 32;
/// Length of a registration response.
pub const REGISTRATION_RESPONSE_BYTES: usize = 64;
/// Length of a registration record.
pub const REGISTRATION_UPLOAD_BYTES: usize = 192;
/// Length of a cookie.
pub const COOKIE_BYTES: usize = 40;
/// Id of a session.
pub type SessionId = [u8; 16];

record! {
    /// Message 20h: starts a login.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LoginStart {
        /// Suite; one that the account was registered with.
        pub suite: u16,
        pub user: UserName,
        /// Capability bits of the client; none are defined, 0.
        pub capabilities: u32,
        /// OPAQUE KE1.
        pub ke1: [u8; KE1_BYTES],
    }
}

record! {
    /// Message 21h: the server's part of the key exchange.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LoginChallenge {
        /// Id that the third message repeats.
        pub login_id: [u8; 16],
        /// OPAQUE KE2.
        pub ke2: [u8; KE2_BYTES],
        /// The server's clock, milliseconds since 1970.
        pub time_ms: u64,
        /// Maximum error of that clock, milliseconds.
        pub max_error_ms: u32,
    }
}

record! {
    /// Message 22h: completes the key exchange.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LoginFinish {
        /// Id from the challenge.
        pub login_id: [u8; 16],
        /// OPAQUE KE3.
        pub ke3: [u8; KE3_BYTES],
    }
}

record! {
    /// Message 23h: the response to 22h and 24h.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LoginOk {
        /// The session.
        pub session: SessionId,
        /// Always 0; an input of the session's key derivation.
        pub epoch: u32,
        /// Absolute expiry of the session, milliseconds since 1970.
        pub expires_ms: u64,
        /// Idle timeout in seconds.
        pub idle_s: u32,
        /// `admin`, `operator`, `user` or `read-only`.
        pub roles: Text<255>,
        /// Proves that the server has the session key.
        pub confirm: [u8; 32],
    }
}

record! {
    /// Message 24h: resumes a session.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Resume {
        /// The session to resume.
        pub session: SessionId,
        /// Fresh random bytes.
        pub nonce: [u8; 16],
        /// HMAC-SHA256(K_resume, "resume" ‖ exporter ‖ nonce).
        pub mac: [u8; 32],
    }
}

/// Flag of [`Logout`]: revoke the session's credentials. The server starts the revocation in the
/// transaction that ends the session.
pub const LOGOUT_REVOKE: u32 = 1;

record! {
    /// Revocation of the credentials of an ended session.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Revoking {
        /// Number of the revocation; its user may query it in another session.
        pub id: u64,
        /// Number of objects that the session has credentials for.
        pub objects: u32,
        /// Latest expiry of the credentials, milliseconds since 1970; 0 if there are none.
        pub until_ms: u64,
        /// Whether every credential of the session is listed, and so revoked. False if the user's
        /// share of the table of issued credentials is full, or soon after a start without the log
        /// of credentials.
        pub complete: bool,
    }
}

record! {
    /// Message 28h: the session ended.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LogoutOk {
        /// The session that ended.
        pub session: SessionId,
        /// The revocation, with [`LOGOUT_REVOKE`]. `None` if too many revocations are active: then
        /// the credentials remain valid until they expire.
        pub revoking: Option<Revoking>,
    }
}

record! {
    /// Message 27h: ends a session.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Logout {
        /// The session to end; must be the connection's own.
        pub session: SessionId,
        /// [`LOGOUT_REVOKE`] or 0.
        pub flags: u32,
    }
}

record! {
    /// Message 2Ah: requests a repetition with a cookie.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Retry {
        /// The cookie to send back.
        pub cookie: [u8; COOKIE_BYTES],
        /// Delay before the repetition, milliseconds.
        pub retry_ms: u32,
    }
}

record! {
    /// Message 29h: repeats a login with a cookie.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LoginAgain {
        /// The cookie from `Retry`.
        pub cookie: [u8; COOKIE_BYTES],
        /// The login message, unchanged.
        pub start: LoginStart,
    }
}

record! {
    /// Message 2Bh: starts a registration.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RegisterStart {
        /// The account to enrol.
        pub user: UserName,
        /// One-time code from an administrator.
        pub code: Secret,
        /// OPAQUE registration request.
        pub request: [u8; REGISTRATION_REQUEST_BYTES],
    }
}

record! {
    /// Message 2Ch: the registration response.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RegisterResponse {
        /// OPAQUE registration response.
        pub response: [u8; REGISTRATION_RESPONSE_BYTES],
    }
}

record! {
    /// Message 2Dh: the registration record.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RegisterUpload {
        /// The account to enrol.
        pub user: UserName,
        /// The same one-time code.
        pub code: Secret,
        /// OPAQUE record.
        pub record: [u8; REGISTRATION_UPLOAD_BYTES],
        /// Suite of the record.
        pub suite: u16,
    }
}

record! {
    /// Message 2Fh: the registration is complete.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RegisterOk {
        /// The server's clock, milliseconds since 1970.
        pub time_ms: u64,
    }
}

code! {
    /// Why a login step was refused.
    pub enum LoginErrorCode: u16 as "login error" {
        /// Frame or profile version unknown.
        Version = 1,
        /// Malformed, or not allowed in this state; the connection is closed.
        Malformed = 2,
        /// Suite not offered.
        Suite = 3,
        /// Wrong password or unknown user: the same answer for both.
        Refused = 6,
        /// A replayed message.
        Replay = 7,
        /// Too many attempts; wait `retry_ms`.
        Busy = 8,
        /// The step took too long.
        Timeout = 9,
        /// The session does not exist or has ended.
        SessionExpired = 10,
        /// The directory service (LDAP) does not respond; reported only after the password was
        /// proven.
        Directory = 11,
    }
}

record! {
    /// Message 2Eh: a login step was refused.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LoginError {
        pub code: LoginErrorCode,
        /// Delay before another attempt, milliseconds; 0 if waiting does not help.
        pub retry_ms: u32,
    }
}
