//! What an operator may choose.

use sealstone_mds_protocol::Method;

use crate::placement::WIDTH_DEFAULT;

/// Longest life of a grant, milliseconds.
pub(crate) const GRANT_LIFETIME_MAX_MS: u64 = 3_600_000;

/// Policy of one server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Life of a grant, milliseconds; at most an hour.
    pub grant_lifetime_ms: u64,
    /// Life of a create without renewal, milliseconds.
    pub intent_lifetime_ms: u64,
    /// Weakest method granted; requests below it are raised to it.
    pub method_floor: Method,
    /// A session ends after this, milliseconds.
    pub session_ttl_ms: u64,
    /// And after this without a request.
    pub session_idle_ms: u64,
    /// A challenge must be answered within this, milliseconds.
    pub challenge_ms: u64,
    /// Challenges that nobody has answered yet; from then on a login must come with a cookie.
    pub half_open_max: usize,
    /// Logins that wait for their turn; from then on too.
    pub login_queue_max: usize,
    /// Under load a login is put off by this, milliseconds.
    pub retry_ms: u32,
    /// Objects of removed files stay this long for readers that are in the middle of them, milliseconds.
    pub reap_grace_ms: u64,
    /// Devices a file is striped over at most.
    pub width_max: usize,
    /// How far the server's clock may be off, milliseconds; told to clients.
    pub clock_error_ms: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            grant_lifetime_ms: 300_000,
            intent_lifetime_ms: 600_000,
            method_floor: Method::CmdRsp,
            session_ttl_ms: 12 * 3_600_000,
            session_idle_ms: 30 * 60_000,
            challenge_ms: 10_000,
            half_open_max: 256,
            login_queue_max: 64,
            retry_ms: 500,
            reap_grace_ms: 10_000,
            width_max: WIDTH_DEFAULT,
            clock_error_ms: 1_000,
        }
    }
}

impl Config {
    pub(crate) fn grant_lifetime_ms(&self) -> u64 {
        self.grant_lifetime_ms.min(GRANT_LIFETIME_MAX_MS)
    }
}
