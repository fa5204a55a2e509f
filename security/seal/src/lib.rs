//! Keys, capabilities, integrity check values, nonces and the permit: the OSD security model.
//!
//! Does: everything that decides whether a command may run, at both ends. Does not: sockets, clocks, random bytes,
//! mutexes or hash functions; they are passed in ([`provider`]).
//! Contract: what grants something has one constructor, the check: a check value that matched gives
//! `Admitted`, a capability that allows gives `Permit`, data whose check value matched gives `Authentic`.
//! Truth: design/security.md sections 1, 3 and 4.4; choices and tests in `docs/standards/security.md`; vectors in
//! `docs/standards/vectors/`.

#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

pub mod algorithm;
mod cache;
pub mod credential;
pub mod freshness;
pub mod hierarchy;
pub mod icv;
pub mod key;
mod keyed_hash;
pub mod keystore;
pub mod layout;
pub mod nonce;
pub mod provider;
pub mod sense;
mod tag;

pub use algorithm::{Algorithm, AlgorithmSlots, Hash};
pub use cache::{CREDENTIALS_MAX, CredentialCache};
pub use credential::{Credential, IssueError};
pub use freshness::{ClockBehind, NonceError, NonceLimits, NonceMemory, clock_after_restart};
pub use hierarchy::{KeyError, KeyHierarchy, KeySelector, SystemId};
pub use icv::{IcvKeys, SecurityToken};
pub use key::{AuthenticationKey, CapabilityKey, GenerationKey, InitialKey, KeyIdentifier, KeyPair};
pub use nonce::Nonce;
pub use provider::{Locks, Mutex, Provider, Random};
pub use tag::{TAG_MAX, Tag, ct_eq};
