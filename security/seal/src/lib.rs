//! Keys, capabilities, integrity check values, nonces and the permit: the OSD security model.
//!
//! Does: everything that decides whether a command may run, at both ends.
//! Does not: sockets, clocks, random bytes, mutexes or MACs; they are passed in ([`provider`]).
//! Digests of data are those of `sealstone-digest`.
//! Contract: each value that grants something has one constructor, the check: a check value that
//! matched yields [`Admitted`], a capability that allows yields [`Permit`], data whose check value
//! matched yields [`Authentic`].
//! Source of truth: docs/design/security.md sections 1, 3 and 4.4; choices and tests in
//! `docs/standards/security.md`; vectors in `docs/standards/vectors/`.

#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

pub mod algorithm;
mod cache;
pub mod clock;
pub mod cover;
pub mod credential;
mod data;
mod denial;
pub mod exchange;
mod extension;
mod facts;
pub mod freshness;
mod gate;
mod grant;
pub mod hierarchy;
pub mod icv;
pub mod key;
mod keyed_hash;
pub mod keystore;
pub mod layout;
pub mod nonce;
pub mod paper;
pub mod provider;
mod receipt;
mod reply;
mod retired;
mod sealed;
pub mod sense;
pub mod signer;
mod tag;

pub use algorithm::{Algorithm, AlgorithmSlots, Hash};
pub use cache::{CREDENTIALS_MAX, CredentialCache};
pub use clock::{DeviceClock, NonceRetry, RetryAdvice};
pub use credential::{Credential, IssueError};
pub use data::{Authentic, DataInLayout};
pub use denial::Denial;
pub use extension::VerifiedExtension;
pub use facts::{DeviceFacts, ObjectFacts};
pub use freshness::{ClockBehind, NonceError, NonceLimits, NonceMemory, clock_after_restart};
pub use gate::{Gate, GatePolicy, GateRefusal, GateRequest, NexusSecurity, selector};
pub use grant::{
    Admitted, FUNCTION_POLICY_PAGE, MINIMUM_METHOD_PAGE, NOT_ENFORCED_WITHOUT_SECURITY,
    POLICY_SECURITY_PAGES, Permit, QUOTAS_PAGES, RequiredRights, SignedBy, Verified,
};
pub use hierarchy::{KeyError, KeyHierarchy, KeyIdentity, KeySelector, SystemId};
pub use icv::{IcvKeys, SecurityToken};
pub use key::{AuthenticationKey, CapabilityKey, GenerationKey, InitialKey, KeyIdentifier, KeyPair};
pub use nonce::Nonce;
pub use provider::{Locks, Mutex, Provider, Random};
pub use receipt::{
    FunctionReceipt, RECEIPT_INPUTS_MAX, RECEIPT_LEN_MAX, ReceiptInput, ReceiptKey, ReceiptLimits,
    ReceiptRefusal,
};
pub use reply::{ReplySeal, StoredObject};
pub use retired::RETIRED_RANGES_MAX;
pub use sealstone_digest::ReceivedDigests;
pub use signer::{
    IntegrityInfo, ReceivedReply, ReplyError, SentParts, SignError, SignedCommand, Signer, VerifiedReply,
};
pub use tag::{TAG_MAX, Tag, ct_eq};
