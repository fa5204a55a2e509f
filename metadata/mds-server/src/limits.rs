//! All limits of the server.

use core::time::Duration;

use sealstone_channel::AdmissionLimits;

/// Maximum of a configured timeout: a year. A monotonic clock cannot represent all longer ones.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Limits of a listener and of the background tasks.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum connections after login. Above it, the user with the most connections loses the
    /// oldest.
    pub connections_max: usize,
    /// Maximum of these from one address.
    pub connections_per_address_max: usize,
    /// Additional connections for administrators and for the loopback address.
    pub connections_reserved: usize,
    /// Maximum connections before login, counted separately. Above it, the network with the most
    /// loses the oldest of those in the earliest stage.
    pub pending_max: usize,
    /// Maximum of these from one network: an IPv4 /24 or an IPv6 /48.
    pub pending_per_network_max: usize,
    /// Maximum of these from one address: an IPv4 address or an IPv6 /64.
    pub pending_per_address_max: usize,
    /// Additional connections before login from the loopback address.
    pub pending_local_max: usize,
    /// Maximum time from accept to the end of the TLS handshake.
    pub handshake_timeout: Duration,
    /// Maximum time from accept to a finished login: TLS, Hello, OPAQUE.
    pub login_timeout: Duration,
    /// Time after which a logged-in connection without a request is closed.
    pub idle_timeout: Duration,
    /// Maximum time to receive a frame after its first byte, and to send an answer.
    pub frame_timeout: Duration,
    /// Maximum concurrent requests; others wait.
    pub requests_max: usize,
    /// Maximum of these of all connections of one user.
    pub requests_per_user_max: usize,
    /// Maximum of these of one connection. At the limit the connection is not read, so that no more
    /// of its frames are in memory.
    pub requests_per_connection_max: usize,
    /// Maximum concurrent login steps; as many more may wait for a directory.
    pub logins_max: usize,
    /// Time for connections to finish their request at shutdown.
    pub shutdown_grace: Duration,
    /// Interval of housekeeping rounds (expired creates, objects to remove).
    pub tidy_every: Duration,
    /// Interval of making lazily committed changes durable: the maximum of session changes that a
    /// power failure loses.
    pub settle_every: Duration,
    /// Interval of reading the capacity of devices.
    pub poll_every: Duration,
    /// Maximum time of one operation at a device.
    pub device_timeout: Duration,
    /// Partitions whose keys are changed in one transaction.
    pub key_batch: usize,
    /// Interval of retrying revocations at devices that did not answer.
    pub revoke_retry: Duration,
    /// Objects of one device in one round of a revocation.
    pub retag_batch: usize,
    /// Maximum concurrent changes of these.
    pub retags_at_once: usize,
    /// Objects removed in one round.
    pub reap_batch: usize,
    /// Time after which a failed removal is tried again.
    pub reap_retry: Duration,
    /// Maximum rate of copying files to larger layouts, in bytes per second; 0 disables it.
    pub carry_rate: u64,
}

impl Limits {
    /// Returns the limits with timeouts of at most `TIMEOUT_MAX`.
    pub(crate) fn with_bounded_timeouts(self) -> Self {
        Self {
            login_timeout: self.login_timeout.min(TIMEOUT_MAX),
            idle_timeout: self.idle_timeout.min(TIMEOUT_MAX),
            frame_timeout: self.frame_timeout.min(TIMEOUT_MAX),
            ..self
        }
    }

    /// Returns the connection limits of all listeners of the server.
    pub(crate) const fn admission(&self) -> AdmissionLimits {
        AdmissionLimits {
            pending_max: self.pending_max,
            pending_per_network_max: self.pending_per_network_max,
            pending_per_address_max: self.pending_per_address_max,
            pending_local_max: self.pending_local_max,
            active_max: self.connections_max,
            active_per_address_max: self.connections_per_address_max,
            active_reserved: self.connections_reserved,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            connections_max: 1024,
            connections_per_address_max: 512,
            connections_reserved: 32,
            pending_max: 512,
            pending_per_network_max: 256,
            pending_per_address_max: 128,
            pending_local_max: 128,
            handshake_timeout: Duration::from_secs(5),
            login_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(30 * 60),
            frame_timeout: Duration::from_secs(30),
            requests_max: 64,
            requests_per_user_max: 32,
            requests_per_connection_max: 16,
            logins_max: 2 * cores,
            shutdown_grace: Duration::from_secs(5),
            tidy_every: Duration::from_secs(2),
            settle_every: Duration::from_millis(500),
            poll_every: Duration::from_secs(10),
            device_timeout: Duration::from_secs(10),
            key_batch: 128,
            revoke_retry: Duration::from_secs(1),
            retag_batch: 256,
            retags_at_once: 16,
            reap_batch: 256,
            reap_retry: Duration::from_secs(30),
            carry_rate: 64 << 20,
        }
    }
}
