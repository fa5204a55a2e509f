//! Event counters of a target, for `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_channel::CipherSuite;

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $help:literal;)*) => {
        /// One counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $(#[doc = $help] $variant),*
        }

        impl Counter {
            /// All counters.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the metric name without prefix. Names of gauges do not end in `_total`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Returns the help text.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help),* }
            }
        }
    };
}

counters! {
    ConnectionsAccepted = "connections_accepted_total", "Connections accepted.";
    ConnectionsRefused = "connections_refused_total", "Logins refused because the limit of connections was reached.";
    ConnectionsCrowded = "connections_crowded_total", "Connections closed at once because their address has too many.";
    ConnectionsThrottled = "connections_throttled_total", "Connections reset at once because their address connects too fast.";
    LoginsCrowded = "logins_crowded_total", "Connections evicted because their address, network or account had the most.";
    TlsHandshakes = "tls_handshakes_total", "Connections that completed a TLS 1.3 handshake.";
    TlsHandshakesFailed = "tls_handshakes_failed_total", "Connections that ended before or in a TLS handshake.";
    TlsAes256 = "tls_aes_256_gcm_total", "TLS connections sealed with AES-256-GCM.";
    TlsAes128 = "tls_aes_128_gcm_total", "TLS connections sealed with AES-128-GCM.";
    TlsChacha20 = "tls_chacha20_poly1305_total", "TLS connections sealed with ChaCha20-Poly1305.";
    ConnectionsOpen = "connections_open", "Connections open now.";
    SessionsOpen = "sessions_open", "Normal sessions in full feature phase now.";
    Logins = "logins_total", "Sessions admitted, discovery included.";
    LoginsRefused = "logins_refused_total", "Logins refused.";
    ChapFailures = "chap_failures_total", "Wrong CHAP responses.";
    LoginsThrottled = "logins_throttled_total", "Logins refused without a check after too many wrong CHAP responses.";
    SessionsReinstated = "sessions_reinstated_total", "Sessions ended by a new login of the same initiator port.";
    Commands = "commands_total", "SCSI commands executed.";
    CommandsHeavy = "commands_heavy_total", "SCSI commands that ran on the threads for long commands.";
    CommandsFailed = "commands_failed_total", "SCSI commands that ended with a status other than GOOD.";
    CommandsPanicked = "commands_panicked_total", "SCSI commands whose logical unit panicked.";
    BytesReceived = "bytes_received_total", "Bytes read from sockets.";
    BytesSent = "bytes_sent_total", "Bytes written to sockets.";
    ResetThrottle = "resets_total", "Logical unit resets and cleared task sets.";
    ResetsRefused = "resets_refused_total", "Resets refused because there were too many.";
    Rejects = "rejects_total", "PDUs rejected.";
    Violations = "violations_total", "Connections closed for a protocol violation.";
    NotAuthentic = "not_authentic_total", "Connections closed because received bytes were not authentic.";
    MalformedSeals = "malformed_keys_total", "Writes rejected because keys and MACs do not match their blocks.";
    ProtectionRefused = "protection_refused_total", "Logins refused because of the protection of block units.";
    LoginTimeouts = "login_timeouts_total", "Connections closed because login or logout took too long.";
    PingTimeouts = "ping_timeouts_total", "Connections closed because a ping was not answered.";
    ReadTimeouts = "read_timeouts_total", "Connections closed because a PDU or data-out arrived too slowly.";
    WriteTimeouts = "write_timeouts_total", "Connections closed because the initiator did not read.";
    MemoryRefusals = "memory_refusals_total", "Buffers refused because a budget was exhausted.";
}

impl Counter {
    /// Returns the counter for TLS connections with this cipher suite. TLS 1.3 has no other suites
    /// here.
    pub(crate) const fn of_suite(suite: CipherSuite) -> Self {
        match suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Self::TlsAes128,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Self::TlsChacha20,
            _ => Self::TlsAes256,
        }
    }
}

/// All counters of one target.
#[derive(Debug)]
pub struct TargetCounters([AtomicU64; Counter::ALL.len()]);

impl Default for TargetCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl TargetCounters {
    /// Returns the current value.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, counter: Counter, count: u64) {
        self.0[counter as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, counter: Counter, count: u64) {
        self.0[counter as usize].fetch_sub(count, Ordering::Relaxed);
    }
}
