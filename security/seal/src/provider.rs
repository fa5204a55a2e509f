//! Traits for the services that this crate gets from outside: MACs, random bytes, mutexes.
//!
//! Does: defines the traits.
//! Does not: implement them; `sealstone-crypto` does.
//! Contract: a `MacKey` holds the two midstates of its key, so that a tag costs only the blocks of
//! its message.

use crate::Tag;
use crate::algorithm::Hash;

/// Bytes of the tag of [`Provider::seal_deterministically`].
pub const SIV_LEN: usize = 16;

/// The MAC primitives, HMAC (RFC 2104) over the hashes of [`enum@Hash`], and one cipher.
pub trait Provider: 'static {
    /// A MAC key ready for use, with its inner and outer midstate computed; wiped when dropped.
    type MacKey: Send + Sync + 'static;

    /// Prepares a key of any length.
    fn mac_key(hash: Hash, key: &[u8]) -> Self::MacKey;

    /// Computes the MAC of the concatenation of the parts. Does not allocate.
    fn tag(key: &Self::MacKey, parts: &[&[u8]]) -> Tag;

    /// Encrypts in place with deterministic authenticated encryption (AES-256-GCM-SIV under a nonce
    /// of zeros). Equal inputs yield equal outputs; nothing else is revealed. For at most 2^32
    /// messages per key.
    fn seal_deterministically(key: &[u8; 32], associated: &[u8], data: &mut [u8]) -> [u8; SIV_LEN];

    /// Decrypts in place the output of [`Provider::seal_deterministically`]; returns `false` if it
    /// is not authentic, and `data` must be discarded.
    fn open_deterministically(
        key: &[u8; 32],
        associated: &[u8],
        data: &mut [u8],
        tag: &[u8; SIV_LEN],
    ) -> bool;
}

/// A source of unpredictable bytes.
pub trait Random {
    /// Fills the slice.
    fn fill(&mut self, into: &mut [u8]);
}

impl<F: FnMut(&mut [u8])> Random for F {
    fn fill(&mut self, into: &mut [u8]) {
        self(into);
    }
}

/// A value that one thread at a time can access.
pub trait Mutex<T>: Send + Sync {
    /// Wraps a value.
    fn new(value: T) -> Self;
    /// Runs `work` on the value, after waiting for the mutex. `work` never takes another mutex of
    /// this crate.
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R;
}

/// The mutexes of the platform; this crate is `no_std` and has none of its own.
pub trait Locks: 'static {
    /// A mutex around a `T`.
    type Mutex<T: Send + 'static>: Mutex<T> + 'static;
}
