//! Configuration of a session: names, limits and timeouts.

use core::time::Duration;

use sealstone_iscsi::{DigestChoice, Policy};

use sealstone_block_protection::ProtectionSettings;
use sealstone_channel::ChannelSecret;

use crate::proof::Proof;
use crate::{Environment, Proofs};

/// Default number of commands in flight in one session.
pub const QUEUE_DEPTH_DEFAULT: u16 = 64;
/// Default bytes of data of the commands in flight in one session.
pub const MEMORY_DEFAULT: usize = 64 << 20;
/// Default initiator name.
pub const INITIATOR_NAME: &str = "iqn.2026-11.org.sealstone:client";

/// Options of a session.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The initiator name.
    pub initiator_name: String,
    /// The target's iSCSI name; `None` for a discovery session.
    pub target_name: Option<String>,
    /// Initiator session id (ISID): a session with the same value replaces the older one at the
    /// target.
    pub isid: [u8; 6],
    /// CHAP accounts for authentication in both directions.
    pub proofs: Proofs,
    /// Protection that the session must have; needs an account or TLS. A target without exactly
    /// this protection is refused.
    pub protection: Option<ProtectionSettings>,
    /// Secret of the TLS channel around the session, from [`Dialed`](crate::Dialed). It becomes
    /// part of the keys of a protection.
    pub channel_secret: Option<ChannelSecret>,
    /// Logical unit whose blocks have keys, at protection levels with such keys.
    pub protected_lun: u16,
    /// CRC32C over headers: refused, offered, or required.
    pub header_digest: DigestChoice,
    /// CRC32C over data: refused, offered, or required.
    pub data_digest: DigestChoice,
    /// Maximum commands in flight; the target's window may be smaller.
    pub queue_depth: u16,
    /// Maximum bytes of data-out and data-in of commands in flight; further commands wait. A single
    /// larger command may use all of it.
    pub memory_max: usize,
    /// Time limit for the login.
    pub login_timeout: Duration,
    /// Time limit for a command, after which it is aborted.
    pub command_timeout: Duration,
    /// Time limit for an abort, after which the connection is closed.
    pub abort_timeout: Duration,
    /// Silence after which the target is pinged.
    pub ping_after: Duration,
    /// Time limit for a ping, after which the connection is closed.
    pub ping_timeout: Duration,
}

impl SessionConfig {
    /// Returns the default options for a session with `target_name`; the ISID is random (RFC 7143
    /// §11.12.5, type 10b).
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
            protection: None,
            channel_secret: None,
            protected_lun: 0,
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

    pub(crate) fn machine(&self, proof: Option<Proof>) -> sealstone_iscsi::initiator::InitiatorConfig {
        let mut config = sealstone_iscsi::initiator::InitiatorConfig::new(
            self.initiator_name.clone(),
            self.target_name.clone(),
            self.isid,
        );
        config.policy =
            Policy { header_digest: self.header_digest, data_digest: self.data_digest, ..Policy::default() };
        if let Some(max) = self.protection.as_ref().and_then(crate::protection::segment_max) {
            config.policy.max_receive = max;
            config.policy.max_send = max;
            config.policy.header_digest = DigestChoice::Never;
            config.policy.data_digest = DigestChoice::Never;
        }
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
