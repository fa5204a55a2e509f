//! Client nonces seen before: a login cannot begin twice with the same first message.

use alloc::collections::{BTreeSet, VecDeque};

use sealstone_mds_protocol::UserName;
use sealstone_mds_protocol::paper::Nonce;
use sha2::{Digest as _, Sha256};

/// Maximum number of nonces kept: 16 bytes each, plus overhead.
pub const REPLAYS_MAX: usize = 16_384;

type Seen = [u8; 16];

/// The last [`REPLAYS_MAX`] nonces with a valid signature. When it is full the oldest is evicted:
/// its login can then be begun again, which costs the server one exponentiation and five seconds of
/// a half-open login, and never gets further. That the protocol has no better freshness is a
/// weakness of its own.
#[derive(Default)]
pub struct ReplayCache {
    order: VecDeque<Seen>,
    seen: BTreeSet<Seen>,
}

impl ReplayCache {
    /// Adds a nonce; returns false if it was present.
    pub(crate) fn insert(&mut self, user: &UserName, nonce: &Nonce) -> bool {
        let mut hash = Sha256::new();
        hash.update([user.as_str().len() as u8]);
        hash.update(user.as_str());
        hash.update(nonce.as_slice());
        let digest: [u8; 32] = hash.finalize().into();
        let key: Seen = core::array::from_fn(|at| digest[at]);
        if !self.seen.insert(key) {
            return false;
        }
        self.order.push_back(key);
        if self.order.len() > REPLAYS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        true
    }

    /// Returns the number of nonces kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether no nonce is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_nonce_is_evicted_at_the_bound() {
        let user = UserName::new("alice").unwrap();
        let nonce = |at: u64| Nonce::new([at.to_be_bytes(), at.to_be_bytes()].concat()).unwrap();
        let mut cache = ReplayCache::default();
        assert!(cache.is_empty());
        for at in 0..REPLAYS_MAX as u64 {
            assert!(cache.insert(&user, &nonce(at)));
        }
        assert!(!cache.insert(&user, &nonce(0)));
        assert!(cache.insert(&user, &nonce(REPLAYS_MAX as u64)));
        assert_eq!((cache.len(), cache.seen.len()), (REPLAYS_MAX, REPLAYS_MAX));
        assert!(cache.insert(&user, &nonce(0)), "the oldest was forgotten");
        assert!(cache.insert(&UserName::new("bob").unwrap(), &nonce(9)), "each user has nonces of his own");
    }
}
