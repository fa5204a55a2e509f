//! Data of a large READ, hashed while the rest is under way.
//!
//! Does: compute digests in the session's task from bytes that it has just received, while the device prepares and sends
//! the next ones. Does not: believe anything: the check value of the answer decides, over these digests.
//! Contract: one for each sending of a command. [`Watch`] shows bytes in order and none twice with another value, so
//! that what was hashed is what the caller gets.

use std::sync::{Arc, Mutex, PoisonError};

use sealstone_seal::ReceivedDigests;
use sealstone_seal::signer::Signed;

use super::bearer::Bearer;
use crate::driver::Watch;

/// Shorter data are hashed by whoever asked for them: they come in one piece, and the session's task has other commands
/// to serve.
const WATCHED_MIN: u64 = 128 << 10;

/// The digests of what came so far.
pub(super) struct Arrival(Mutex<ReceivedDigests>);

impl Arrival {
    /// For a command about to be sent; none where it does not pay.
    pub(super) fn of(bearer: &Bearer, signed: &Signed) -> Option<Arc<Self>> {
        if signed.data_in_len < WATCHED_MIN {
            return None;
        }
        Some(Arc::new(Self(Mutex::new(bearer.signer().arriving(signed)?))))
    }

    /// Lets somebody see them.
    pub(super) fn show<T>(&self, look: impl FnOnce(&ReceivedDigests) -> T) -> T {
        look(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Watch for Arrival {
    fn arrived(&self, so_far: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).advance(so_far);
    }
}
