//! Time and randomness of the shell; a simulation brings its own.

use std::sync::Arc;

use sealstone_mds::Entropy;

/// Where time and random bytes come from, and where work that blocks runs.
#[derive(Clone)]
pub struct Environment {
    /// Milliseconds since 1970.
    pub now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// A generator for one request.
    pub entropy: Arc<dyn Fn() -> Box<dyn Entropy + Send> + Send + Sync>,
    /// Decide requests in the connection's own task instead of on a thread for blocking work: for simulations in one
    /// thread, and for stores that never wait for a medium.
    pub inline: bool,
}

impl Environment {
    /// The machine's clock and the system's random bytes.
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
