//! Password login as state machines: OPAQUE (RFC 9807) bound to the channel.
//!
//! Does: registration, login at both ends, session keys, resumption proofs. Each step consumes the
//! state before it.
//! Does not: sockets, clocks, accounts, rate limits; randomness is passed in.
//! Contract: a wrong password and an unknown user look and cost the same to the peer.
//! Source of truth: RFC 9807 (OPAQUE), RFC 9266 (channel binding), RFC 9106 (Argon2id);
//! docs/standards/mds/login.md §4.

#![no_std]

extern crate alloc;

pub mod paper;

mod channel;
mod client;
mod code;
mod cookie;
mod keys;
mod registration;
mod server;
mod stretch;

pub use channel::{ChannelBinding, LoginContext, ServerId};
pub use client::{ClientBegun, ClientProven, ClientStarted, begin_login, start_login};
pub use code::{CODE_CHARACTERS, code_digest, code_matches, new_code};
pub use cookie::{COOKIE_LIFE_MS, CookieJar};
pub use keys::SessionKeys;
pub use opaque_ke::rand::{CryptoRng, RngCore};
pub use registration::{AccountRecord, RegistrationStarted, start_registration};
pub use server::{ServerKeys, ServerProven, ServerStarted, SessionTerms};
pub use stretch::{
    ARGON2_FLOOR_MEMORY_KIB, ARGON2_FLOOR_PASSES, STRETCH_MEMORY_KIB_MAX, STRETCH_PASSES_MAX, Stretch,
    stretch_passphrase,
};

use opaque_ke::errors::ProtocolError;

/// Suite 1 and 2: ristretto255, SHA-512, triple Diffie-Hellman, Argon2id.
struct OpaqueSuite;

impl opaque_ke::CipherSuite for OpaqueSuite {
    type OprfCs = opaque_ke::Ristretto255;
    type KeyExchange = opaque_ke::TripleDh<opaque_ke::Ristretto255, sha2_opaque::Sha512>;
    type Ksf = opaque_ke::argon2::Argon2<'static>;
}

/// Why a step of a login failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginFailure {
    /// A message of the peer is malformed: an identity or non-canonical point, a wrong size.
    #[error("malformed login message")]
    Malformed,
    /// Wrong password, unknown user, another channel or another server: indistinguishable by
    /// design.
    #[error("login refused")]
    Refused,
    /// The suite is not supported.
    #[error("unknown login suite {0:#06x}")]
    Suite(u16),
    /// The key-stretching function could not run (memory).
    #[error("key stretching failed")]
    Stretch,
    /// Stored server keys or an account record are damaged.
    #[error("stored login keys are damaged")]
    Damaged,
}

impl From<ProtocolError> for LoginFailure {
    fn from(error: ProtocolError) -> Self {
        match error {
            ProtocolError::InvalidLoginError => Self::Refused,
            ProtocolError::LibraryError(opaque_ke::errors::InternalError::KsfError) => Self::Stretch,
            ProtocolError::LibraryError(_)
            | ProtocolError::SerializationError
            | ProtocolError::SizeError { .. }
            | ProtocolError::ReflectedValueError => Self::Malformed,
            ProtocolError::Custom(never) => match never {},
        }
    }
}

#[cfg(test)]
mod tests;
