//! Time and randomness of the server; a simulation supplies its own.

use std::sync::Arc;

use sealstone_mds::Entropy;

/// Sources of time and random bytes, and where blocking work runs.
#[derive(Clone)]
pub struct Environment {
    /// Milliseconds since 1970.
    pub now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Creates a random generator for one request.
    pub entropy: Arc<dyn Fn() -> Box<dyn Entropy + Send> + Send + Sync>,
    /// Whether requests are decided in the connection's own task instead of on a blocking thread.
    /// For single-threaded simulations, and for stores that never wait for a disk.
    pub inline: bool,
}

impl Environment {
    /// Uses the machine's clock and the system's random bytes.
    #[must_use]
    pub fn system() -> Self {
        Self {
            now_ms: Arc::new(sealstone_initiator::machine::now_ms),
            entropy: Arc::new(|| Box::new(rand::rngs::OsRng)),
            inline: false,
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        (self.now_ms)()
    }
}
