//! What the security model needs from outside: MACs, random bytes, mutual exclusion.
//!
//! Does: cut the seams. Does not: implement them; `sealstone-crypto` does.
//! Contract: a `MacKey` holds the two midstates of its key, so a tag costs only the blocks of its message.

use crate::Tag;
use crate::algorithm::Hash;

/// Bytes of the tag of [`Provider::seal_deterministically`].
pub const SIV_LEN: usize = 16;

/// The MAC primitives, HMAC (RFC 2104) over the hashes of [`enum@Hash`], and one cipher.
pub trait Provider: 'static {
    /// A MAC key ready for use, its inner and outer midstate computed; wiped when dropped.
    type MacKey: Send + Sync + 'static;

    /// Prepares a key of any length.
    fn mac_key(hash: Hash, key: &[u8]) -> Self::MacKey;

    /// The MAC of the concatenation of the parts. Does not allocate.
    fn tag(key: &Self::MacKey, parts: &[&[u8]]) -> Tag;

    /// Deterministic authenticated encryption (AES-256-GCM-SIV under a nonce of zeros): enciphers in place. Equal inputs
    /// look equal, and nothing else shows. For at most 2^32 messages of a key.
    fn seal_deterministically(key: &[u8; 32], associated: &[u8], data: &mut [u8]) -> [u8; SIV_LEN];

    /// Deciphers in place what [`Provider::seal_deterministically`] made; `false` if it did not, and `data` is to be
    /// forgotten.
    fn open_deterministically(
        key: &[u8; 32],
        associated: &[u8],
        data: &mut [u8],
        tag: &[u8; SIV_LEN],
    ) -> bool;
}

/// A source of bytes that nobody can predict.
pub trait Random {
    /// Fills the slice.
    fn fill(&mut self, into: &mut [u8]);
}

impl<F: FnMut(&mut [u8])> Random for F {
    fn fill(&mut self, into: &mut [u8]) {
        self(into);
    }
}

/// A value that one thread at a time may touch.
pub trait Mutex<T>: Send + Sync {
    /// Wraps a value.
    fn new(value: T) -> Self;
    /// Runs `work` on the value; waits for its turn. `work` never takes another mutex of this crate.
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R;
}

/// The mutexes of the platform; this crate is `no_std` and has none of its own.
pub trait Locks: 'static {
    /// A mutex around a `T`.
    type Mutex<T: Send + 'static>: Mutex<T> + 'static;
}
