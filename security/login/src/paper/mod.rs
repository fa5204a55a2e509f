//! The paper's login (OBS section 3): Oakley with enhanced cookies, as state machines. Insecure,
//! for reproduction only.
//!
//! Does: cookies, exchange, signatures, session keys, records, at both ends. Each step consumes the
//! state before it.
//! Does not: sockets, accounts, rate limits, clocks; the time and randomness are passed in.
//! Contract: before a peer's signature was verified, no state of it is kept and no exponentiation
//! is done.
//! Source of truth: docs/standards/paper-login.md; docs/design/security.md 2.1 to 2.3, with the
//! weaknesses.

mod choice;
mod client;
mod clock;
mod group;
mod key;
mod record;
mod replay;
mod resume;
mod server;
mod session;

pub use choice::{Algorithms, Encryption, Hash};
pub use client::{AwaitingCookie, AwaitingResponse, AwaitingSession, ClientTerms, Opened, RETRANSMITS_MAX};
pub use clock::{ClockReading, RTT_MAX_MS};
pub use group::OakleyGroup;
pub use key::{Addresses, PassphraseKey};
pub use record::{Channel, Opener, REKEY_BYTES, RecordFailure, Sealer};
pub use replay::{REPLAYS_MAX, ReplayCache};
pub use resume::{AwaitingContinueOk, answer_continue};
pub use server::{
    CheckedInit, FreshInit, HALF_OPEN_MS, HalfOpen, ServerProven, ServerTerms, answer_cookie, check_init,
};
pub use session::{PAPER_SESSION_BYTES, PaperSession};

use sealstone_mds_protocol::WireError;
use sealstone_mds_protocol::paper::PaperErrorCode;

/// Why a step failed, for the log. Unauthenticated peers receive [`PaperFailure::code`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PaperFailure {
    /// A body or record content does not parse.
    #[error("malformed message: {0}")]
    Malformed(WireError),
    /// GRP is an unknown group (including 3 and 4, over elliptic curves).
    #[error("unknown group {0}")]
    GroupUnknown(u32),
    /// GRP is a group that this end refuses.
    #[error("group {0} is refused as too weak")]
    GroupRefused(u32),
    /// A public value is not as long as its group's prime.
    #[error("public value has {actual} bytes, expected {expected}")]
    ElementLength {
        /// Bytes given.
        actual: usize,
        /// Bytes of the prime.
        expected: usize,
    },
    /// A public value that makes the secret predictable: 0, 1, p - 1 or at least p.
    #[error("weak public value: the shared secret would be predictable")]
    ElementWeak,
    /// A class without an algorithm that both ends allow.
    #[error("no algorithm of class {0} in common")]
    NoCommon(u8),
    /// EHAS has an algorithm that was not offered, or a class twice or not at all.
    #[error("the server chose algorithms that were not offered")]
    ChoiceNotOffered,
    /// CKY-C does not match this user at this address: another passphrase, another address (NAT),
    /// no such user.
    #[error("client cookie mismatch, attack notified")]
    ClientCookie,
    /// CKY-M does not match the server's.
    #[error("server cookie mismatch, attack notified")]
    ServerCookie,
    /// A signature does not verify.
    #[error("signature {0} is wrong")]
    Signature(u8),
    /// ID(M) is another server, or ID(C) is the server itself: a reflection.
    #[error("identity: {0}")]
    Identity(&'static str),
    /// A field that must be echoed differs.
    #[error("{0} does not match this exchange")]
    Echo(&'static str),
    /// N_c has the 16 bytes of an address: the cookie of that address would be the beginning of
    /// k_i, which is computed by the same function. The paper does not separate the two.
    #[error("nonce equals an address")]
    NonceIsAddress,
    /// N_c was seen before.
    #[error("nonce seen before")]
    Replay,
    /// The half-open login is too old.
    #[error("confirmation arrived too late")]
    Late,
    /// An unexpected message.
    #[error("unexpected message")]
    OutOfPlace,
    /// A proof for a session that is wrong, or no such session.
    #[error("no such session, or a wrong proof for it")]
    NoSession,
    /// A record does not open.
    #[error("record: {0}")]
    Record(#[from] RecordFailure),
}

impl PaperFailure {
    /// Returns the code that the peer receives.
    #[must_use]
    pub const fn code(&self) -> PaperErrorCode {
        match self {
            Self::Malformed(_)
            | Self::ElementLength { .. }
            | Self::ElementWeak
            | Self::NonceIsAddress
            | Self::Echo(_)
            | Self::OutOfPlace
            | Self::Record(_) => PaperErrorCode::Malformed,
            Self::GroupUnknown(_) | Self::GroupRefused(_) => PaperErrorCode::Group,
            Self::NoCommon(_) | Self::ChoiceNotOffered => PaperErrorCode::Algorithms,
            Self::ClientCookie | Self::ServerCookie => PaperErrorCode::Cookie,
            Self::Signature(_) | Self::Identity(_) => PaperErrorCode::Refused,
            Self::Replay => PaperErrorCode::Replay,
            Self::Late => PaperErrorCode::Timeout,
            Self::NoSession => PaperErrorCode::SessionExpired,
        }
    }
}

impl From<WireError> for PaperFailure {
    fn from(error: WireError) -> Self {
        Self::Malformed(error)
    }
}

#[cfg(test)]
mod tests;
