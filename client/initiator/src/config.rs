//! Who we are to a target, and how patient.

use core::time::Duration;

use sealstone_iscsi::{DigestChoice, Policy};

use crate::proof::Proof;
use crate::{Environment, Proofs};

/// Commands under way in one session by default.
pub const QUEUE_DEPTH_DEFAULT: u16 = 64;
/// Bytes of data that commands under way in one session hold by default.
pub const MEMORY_DEFAULT: usize = 64 << 20;
/// The initiator name used unless another is given.
pub const INITIATOR_NAME: &str = "iqn.2026-11.org.sealstone:client";

/// How to hold a session.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Our iSCSI name.
    pub initiator_name: String,
    /// The target's iSCSI name; `None` makes a discovery session.
    pub target_name: Option<String>,
    /// Tells our sessions with one target apart: the same value takes the place of the older session.
    pub isid: [u8; 6],
    /// How we prove ourselves to targets, and they to us.
    pub proofs: Proofs,
    /// CRC32C over headers: refused, offered, or demanded.
    pub header_digest: DigestChoice,
    /// CRC32C over data: refused, offered, or demanded.
    pub data_digest: DigestChoice,
    /// Commands under way at most; the target's window may be less.
    pub queue_depth: u16,
    /// Bytes of data-out and data-in that commands under way hold at most; further ones wait. One larger command
    /// may have all of it.
    pub memory_max: usize,
    /// How long a login may take.
    pub login_timeout: Duration,
    /// How long a command may take; then it is aborted.
    pub command_timeout: Duration,
    /// How long an abort may take; then the nexus is given up.
    pub abort_timeout: Duration,
    /// Silence after which the target is pinged.
    pub ping_after: Duration,
    /// How long a ping may take; then the nexus is given up.
    pub ping_timeout: Duration,
}

impl SessionConfig {
    /// Usual values for a session with `target_name`; the ISID is drawn at random (RFC 7143 §11.12.5, type 10b).
    #[must_use]
    pub fn new(target_name: Option<String>, environment: &dyn Environment) -> Self {
        let mut isid = [0; 6];
        environment.fill_random(&mut isid);
        isid[0] = 0x80;
        Self {
            initiator_name: INITIATOR_NAME.to_owned(),
            target_name,
            isid,
            proofs: Proofs::default(),
            header_digest: DigestChoice::default(),
            data_digest: DigestChoice::default(),
            queue_depth: QUEUE_DEPTH_DEFAULT,
            memory_max: MEMORY_DEFAULT,
            login_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(60),
            abort_timeout: Duration::from_secs(5),
            ping_after: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(10),
        }
    }

    pub(crate) fn machine(&self, proof: Option<Proof>) -> sealstone_iscsi::initiator::Config {
        let mut config = sealstone_iscsi::initiator::Config::new(
            self.initiator_name.clone(),
            self.target_name.clone(),
            self.isid,
        );
        config.policy =
            Policy { header_digest: self.header_digest, data_digest: self.data_digest, ..Policy::default() };
        config.crc32c = crc32c::crc32c_append;
        config.chap = proof.map(Proof::machine);
        config.queue_depth = self.queue_depth;
        config.login_timeout_ms = milliseconds(self.login_timeout);
        config.ping_after_ms = milliseconds(self.ping_after);
        config.ping_timeout_ms = milliseconds(self.ping_timeout);
        config
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
