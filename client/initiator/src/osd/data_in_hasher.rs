//! Hashing the data of a large READ while the rest of it is being received.
//!
//! Does: computes digests in the session's task from bytes that were just received, while the
//! device prepares and sends the next ones.
//! Does not: trust the data: the check value of the answer over these digests decides.
//! Contract: one for each sending of a command. [`DataObserver`] passes bytes in order and never
//! changes them, so that the caller gets what was hashed.

use std::sync::{Arc, Mutex, PoisonError};

use sealstone_seal::ReceivedDigests;
use sealstone_seal::signer::SignedCommand;

use super::bearer::Bearer;
use crate::driver::DataObserver;

/// Minimum length: shorter data arrive in one piece and are hashed by the caller, since the
/// session's task serves other commands too.
const WATCHED_MIN: u64 = 128 << 10;

/// The digests of the data received so far.
pub(super) struct DataInHasher(Mutex<ReceivedDigests>);

impl DataInHasher {
    /// Creates one for a command about to be sent; none if it is too short to pay off.
    pub(super) fn of(bearer: &Bearer, signed: &SignedCommand) -> Option<Arc<Self>> {
        if signed.data_in_len < WATCHED_MIN {
            return None;
        }
        Some(Arc::new(Self(Mutex::new(bearer.signer().arriving(signed)?))))
    }

    /// Passes the digests to `look`.
    pub(super) fn show<T>(&self, look: impl FnOnce(&ReceivedDigests) -> T) -> T {
        look(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl DataObserver for DataInHasher {
    fn arrived(&self, so_far: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).advance(so_far);
    }
}
