//! Bodies of the login messages, types 20h to 2Fh.
//!
//! Does: shapes and sizes. Does not: any cryptography; `sealstone-login` does.
//! Truth: docs/standards/mds/login.md §4.

use crate::name::UserName;
use crate::secret::Secret;
use crate::wire::{Text, code, record};

/// ristretto255-SHA512, 3DH, HKDF-SHA512, HMAC-SHA512, Argon2id 64 MiB / 3 passes / 4 lanes.
pub const SUITE_STANDARD: u16 = 0x0001;
/// The same with Argon2id at the floor: 19 MiB / 2 passes / 1 lane.
pub const SUITE_LIGHT: u16 = 0x0002;
/// For key files of service accounts: 32 random bytes, which nobody guesses, so they are hardly stretched. An account
/// has one credential for each suite at most; two suites let two keys be valid while one follows the other.
pub const SUITE_SERVICE_A: u16 = 0x0101;
/// The other one.
pub const SUITE_SERVICE_B: u16 = 0x0102;

/// Is this a suite for key files, never for passwords?
#[must_use]
pub const fn is_service_suite(suite: u16) -> bool {
    matches!(suite, SUITE_SERVICE_A | SUITE_SERVICE_B)
}

/// Bytes of OPAQUE's first message.
pub const KE1_BYTES: usize = 96;
/// Bytes of OPAQUE's second message.
pub const KE2_BYTES: usize = 320;
/// Bytes of OPAQUE's third message.
pub const KE3_BYTES: usize = 64;
/// Bytes of a registration request.
pub const REGISTRATION_REQUEST_BYTES: usize = 32;
/// Bytes of a registration response.
pub const REGISTRATION_RESPONSE_BYTES: usize = 64;
/// Bytes of a registration record.
pub const REGISTRATION_UPLOAD_BYTES: usize = 192;
/// Bytes of a cookie.
pub const COOKIE_BYTES: usize = 40;
/// Names a session for as long as it lives.
pub type SessionId = [u8; 16];

record! {
    /// 20h.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LoginStart {
        /// Must be one that the account was registered with.
        pub suite: u16,
        /// Who logs in.
        pub user: UserName,
        /// Capability bits of the client; none are defined, 0.
        pub capabilities: u32,
        /// OPAQUE KE1.
        pub ke1: [u8; KE1_BYTES],
    }
}

record! {
    /// 21h.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LoginChallenge {
        /// Ties the third message to this one.
        pub login_id: [u8; 16],
        /// OPAQUE KE2.
        pub ke2: [u8; KE2_BYTES],
        /// The server's clock, milliseconds since 1970.
        pub time_ms: u64,
        /// How far that clock may be off, milliseconds.
        pub max_error_ms: u32,
    }
}

record! {
    /// 22h.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LoginFinish {
        /// From the challenge.
        pub login_id: [u8; 16],
        /// OPAQUE KE3.
        pub ke3: [u8; KE3_BYTES],
    }
}

record! {
    /// 23h; answers 22h and 24h.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LoginOk {
        /// The session.
        pub session: SessionId,
        /// Always 0: part of what the keys of the session are derived from.
        pub epoch: u32,
        /// When the session ends whatever happens, milliseconds since 1970.
        pub expires_ms: u64,
        /// After this many seconds without a request it ends too.
        pub idle_s: u32,
        /// `admin`, `operator`, `user` or `read-only`.
        pub roles: Text<255>,
        /// Proves that the server holds the session key.
        pub confirm: [u8; 32],
    }
}

record! {
    /// 24h.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Resume {
        /// The session to take up.
        pub session: SessionId,
        /// Fresh random bytes.
        pub nonce: [u8; 16],
        /// HMAC-SHA256(K_resume, "resume" ‖ exporter ‖ nonce).
        pub mac: [u8; 32],
    }
}

/// Flag of [`Logout`]: the user wants the session's outstanding credentials to be useless. The server begins to revoke
/// them in the transaction that ends the session.
pub const LOGOUT_REVOKE: u32 = 1;

record! {
    /// What becomes of the credentials of a session that is over.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Revoking {
        /// Number of the revocation; its user may ask for it in another session.
        pub id: u64,
        /// Objects that the session holds credentials for.
        pub objects: u32,
        /// None of them is valid after, milliseconds since 1970; 0 if there is none.
        pub until_ms: u64,
        /// Whether every credential of the session is listed, and so revoked. Not if the user's share of the table of issued
        /// credentials is used up, nor soon after a start without the log of credentials.
        pub complete: bool,
    }
}

record! {
    /// 28h.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LogoutOk {
        /// The session that is over.
        pub session: SessionId,
        /// With [`LOGOUT_REVOKE`]; none if too many revocations are under way, and then its credentials live until they
        /// expire.
        pub revoking: Option<Revoking>,
    }
}

record! {
    /// 27h.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Logout {
        /// The session to end; must be the connection's own.
        pub session: SessionId,
        /// [`LOGOUT_REVOKE`] or 0.
        pub flags: u32,
    }
}

record! {
    /// 2Ah.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Retry {
        /// To be sent back.
        pub cookie: [u8; COOKIE_BYTES],
        /// Milliseconds to wait.
        pub retry_ms: u32,
    }
}

record! {
    /// 29h.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LoginAgain {
        /// From the Retry that answered the login.
        pub cookie: [u8; COOKIE_BYTES],
        /// The login, unchanged.
        pub start: LoginStart,
    }
}

record! {
    /// 2Bh.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RegisterStart {
        /// The account to fill.
        pub user: UserName,
        /// One-time code from an administrator.
        pub code: Secret,
        /// OPAQUE registration request.
        pub request: [u8; REGISTRATION_REQUEST_BYTES],
    }
}

record! {
    /// 2Ch.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RegisterResponse {
        /// OPAQUE registration response.
        pub response: [u8; REGISTRATION_RESPONSE_BYTES],
    }
}

record! {
    /// 2Dh.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RegisterUpload {
        /// The account to fill.
        pub user: UserName,
        /// The same code again.
        pub code: Secret,
        /// OPAQUE record.
        pub record: [u8; REGISTRATION_UPLOAD_BYTES],
        /// Suite it was made for.
        pub suite: u16,
    }
}

record! {
    /// 2Fh.
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
        /// Malformed, or not allowed in this state; the connection closes.
        Malformed = 2,
        /// Suite not offered.
        Suite = 3,
        /// Wrong password or unknown user: the same answer for both.
        Refused = 6,
        /// Something was played again.
        Replay = 7,
        /// Too many attempts; wait `retry_ms`.
        Busy = 8,
        /// Too slow.
        Timeout = 9,
        /// No such session, or it is over.
        SessionExpired = 10,
        /// The directory that knows the account does not answer; said only to who has proven the password.
        Directory = 11,
    }
}

record! {
    /// 2Eh.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LoginError {
        /// Why.
        pub code: LoginErrorCode,
        /// Milliseconds to wait before another try; 0 if waiting does not help.
        pub retry_ms: u32,
    }
}
