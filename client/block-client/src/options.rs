//! Options of a client of a block unit.

use core::time::Duration;

use sealstone_initiator::{Environment, SessionConfig};

/// Default time for which commands are repeated while the target is unavailable.
pub const RECOVERY_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// Maximum number of sessions of one client.
pub const SESSIONS_MAX: usize = 8;

/// Options of a client of a block unit.
#[derive(Clone, Debug)]
pub struct UnitClientOptions {
    /// Options of each session. The target's name is set from the URL. Each further session has an
    /// ISID of its own, so that the target does not replace the first one.
    pub session: SessionConfig,
    /// Number of sessions, 1 to [`SESSIONS_MAX`]; more are counted as the maximum.
    pub sessions: usize,
    /// Time for which a command is repeated while the target is unavailable or busy; `None`:
    /// without limit.
    pub recovery_timeout: Option<Duration>,
    /// Pause before the first reconnect; it doubles up to [`UnitClientOptions::PAUSE_MAX`].
    pub reconnect_pause: Duration,
}

impl UnitClientOptions {
    /// Longest pause between two attempts.
    pub const PAUSE_MAX: Duration = Duration::from_secs(2);

    /// Returns the default options, with a random ISID.
    #[must_use]
    pub fn new(environment: &dyn Environment) -> Self {
        Self {
            session: SessionConfig::new(None, environment),
            sessions: 1,
            recovery_timeout: Some(RECOVERY_TIMEOUT_DEFAULT),
            reconnect_pause: Duration::from_millis(20),
        }
    }
}
