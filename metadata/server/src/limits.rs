//! Every bound of the shell, in one place.

use core::time::Duration;

use sealstone_channel::AdmissionLimits;

/// Bounds of a listener.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections after their login. When there are no more places, the user with the most connections loses the oldest.
    pub connections_max: usize,
    /// Of them, from one address.
    pub connections_per_address_max: usize,
    /// The same for administrators and the loopback address, beside the others.
    pub connections_reserved: usize,
    /// Connections before their login, beside the others. When there are no more places, the network with the most of them
    /// loses the oldest that has got least far.
    pub pending_max: usize,
    /// Of them, from one network: an IPv4 /24 or an IPv6 /48.
    pub pending_per_network_max: usize,
    /// Of them, from one address: an IPv4 address or an IPv6 /64.
    pub pending_per_address_max: usize,
    /// The same from the loopback address, beside the others.
    pub pending_local_max: usize,
    /// From accept to the end of the TLS handshake.
    pub handshake_timeout: Duration,
    /// From accept to a finished login: TLS, Hello, OPAQUE.
    pub login_timeout: Duration,
    /// A logged-in connection without a request is closed after this.
    pub idle_timeout: Duration,
    /// A frame that has begun must be complete within this; so must an answer be taken.
    pub frame_timeout: Duration,
    /// Requests decided at a time; the others wait.
    pub requests_max: usize,
    /// Of them, of all connections of one user.
    pub requests_per_user_max: usize,
    /// Of them, of one connection; it is read no further meanwhile, so that no more of its frames are in memory.
    pub requests_per_connection_max: usize,
    /// Login steps computed at a time; as many again may wait for a directory.
    pub logins_max: usize,
    /// Time for connections to finish their request at shutdown.
    pub shutdown_grace: Duration,
    /// Between two rounds of housekeeping (expired creates, objects to be removed).
    pub tidy_every: Duration,
    /// Between two looks whether there is something in the store that nobody waited for: so much of sessions is lost with
    /// the power at most.
    pub settle_every: Duration,
    /// Between two looks at the capacity of devices.
    pub poll_every: Duration,
    /// One operation at a device may take this long.
    pub device_timeout: Duration,
    /// Partitions whose keys are changed in one transaction.
    pub key_batch: usize,
    /// Between two looks at revocations whose devices did not answer.
    pub revoke_retry: Duration,
    /// Objects that a device is told of in one round of a revocation.
    pub retag_batch: usize,
    /// Of them, at a time.
    pub retags_at_once: usize,
    /// Objects removed in one round.
    pub reap_batch: usize,
    /// A device that did not remove an object is asked again after this.
    pub reap_retry: Duration,
    /// Files that have outgrown their layouts are carried over at so many bytes a second at most; 0: they are not.
    pub carry_rate: u64,
}

impl Limits {
    /// Places of all listeners of the server.
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
