//! Configuration of a target: names, limits, timeouts, TLS and access rules.

use std::{fmt, sync::Arc, time::Instant};

use sealstone_iscsi::{
    limits,
    target_side::{PortalConfig, TargetEntry},
};

use sealstone_channel::AdmissionLimits;

use crate::{ConnectionRate, ListenerTls, RandomSource, RefusalSinkHandle};

/// Part of the connection limit that is reserved, in addition, for the loopback address: one in
/// this many.
const RESERVED_PART: usize = 16;

/// A monotonic clock in milliseconds.
#[derive(Clone)]
pub struct MonotonicClock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl MonotonicClock {
    /// Uses any function that returns milliseconds. The value may start anywhere.
    pub fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now_ms))
    }

    /// Returns the current time in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        (self.0)()
    }
}

impl Default for MonotonicClock {
    /// Uses the monotonic clock of the system.
    fn default() -> Self {
        let start = Instant::now();
        Self::new(move || u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for MonotonicClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// Configuration and limits of one target. [`TargetConfig::new`] sets the defaults.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Configuration of the protocol state machine. `targets` must have exactly one entry.
    pub protocol: PortalConfig,
    /// Bytes of data buffers of all connections together.
    pub memory_max: usize,
    /// Bytes of data buffers of one connection, at least `protocol.data_out_max`.
    pub memory_per_connection_max: usize,
    /// Bytes of data buffers of all connections of one source, at least `protocol.data_out_max`.
    pub memory_per_source_max: usize,
    /// Long commands of one source that run at once, at least 1. Further ones wait without
    /// occupying a thread.
    pub long_per_source_max: usize,
    /// Connections after login. At the limit, the account or address with the most connections
    /// loses its oldest one.
    pub connections_max: usize,
    /// Milliseconds that one piece (a header or a data segment) may wait to be written.
    pub write_timeout_ms: u64,
    /// Seconds that initiators get to log out when the target shuts down.
    pub drain_seconds: u16,
    /// Connections at once from one source (an IPv4 address or an IPv6 /64). Further ones are
    /// closed as soon as they are accepted.
    pub connections_per_source_max: usize,
    /// Connections of one source that have not finished login. A further one closes the oldest of
    /// those in the earliest stage.
    pub logins_per_source_max: usize,
    /// Connections of all sources that have not finished login, in addition to `connections_max`. A
    /// further one closes the oldest of the network (IPv4 /24, IPv6 /48) with the most.
    pub logins_max: usize,
    /// Rate at which one source may connect. Faster connections are reset as soon as they are
    /// accepted.
    pub connection_rate_per_source: ConnectionRate,
    /// Scheduling of long commands.
    pub pace: CommandPacing,
    /// Clock for all timeouts and rates.
    pub clock: MonotonicClock,
    /// Random bytes for CHAP challenges.
    pub random: RandomSource,
    /// Receiver of refusals, for the audit log.
    pub refusal_sink: RefusalSinkHandle,
    /// TLS of connections that [`IscsiTarget::serve`](crate::IscsiTarget::serve) accepts. `None`:
    /// no TLS.
    pub tls: Option<ListenerTls>,
}

/// Scheduling of commands that compute for long, such as ALLDATA over large requests, next to short
/// ones. `protocol.pull_bytes` sets the pace of writes. Both flags are off by default, because
/// extra threads do not work under a simulated clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandPacing {
    /// Run long commands on separate threads of lower priority, the shortest first. Otherwise each
    /// occupies the thread of its connection until it ends.
    pub short_first: bool,
    /// Run many long commands at once and let the system schedule their threads. Otherwise one runs
    /// per core until it ends. Only with `short_first`.
    pub slices: bool,
}

/// Why a configuration cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not exactly one target.
    #[error("configure exactly one target name")]
    OneTarget,
    /// The name is empty, longer than 223 bytes, or contains white space.
    #[error("invalid iSCSI name: empty, longer than 223 bytes, or contains white space")]
    Name,
    /// The data-out of one command would never fit.
    #[error("memory per connection is less than the longest data-out")]
    BufferPool,
    /// No long command could ever run.
    #[error("long_per_source_max must be at least 1")]
    Long,
    /// A LUN outside of single-level addressing, a duplicate, or one unit too many.
    #[error("LUN {0} is above 16383, in use, or beyond the limit of 2047 units")]
    Lun(u64),
    /// A level that is S0 or that needs keys of blocks.
    #[error("level {0} cannot be required of sessions: use S1-1u or S2-1u")]
    Protection(&'static str),
}

impl TargetConfig {
    /// Returns the default configuration of a target with this iSCSI name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let entry = TargetEntry { name: name.into(), alias: None, addresses: Vec::new() };
        let mut protocol = PortalConfig::new(vec![entry]);
        protocol.crc32c = crc32c::crc32c_append;
        Self {
            protocol,
            memory_max: 512 * 1024 * 1024,
            memory_per_connection_max: 64 * 1024 * 1024,
            memory_per_source_max: usize::MAX,
            long_per_source_max: usize::MAX,
            connections_max: 1024,
            write_timeout_ms: 30_000,
            drain_seconds: 5,
            connections_per_source_max: usize::MAX,
            logins_per_source_max: usize::MAX,
            logins_max: 256,
            connection_rate_per_source: ConnectionRate::UNBOUNDED,
            pace: CommandPacing::default(),
            clock: MonotonicClock::default(),
            random: RandomSource::default(),
            refusal_sink: RefusalSinkHandle::default(),
            tls: None,
        }
    }

    pub(crate) fn admission(&self) -> AdmissionLimits {
        let per_address = self.logins_per_source_max.min(self.logins_max);
        AdmissionLimits {
            pending_max: self.logins_max,
            pending_per_network_max: (self.logins_max / 2).max(per_address),
            pending_per_address_max: per_address,
            pending_local_max: self.logins_max,
            active_max: self.connections_max,
            active_per_address_max: self.connections_per_source_max,
            active_reserved: self.connections_max / RESERVED_PART,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let [entry] = &self.protocol.targets[..] else { return Err(ConfigError::OneTarget) };
        let name = &entry.name;
        if name.is_empty() || name.len() > limits::NAME_MAX || name.contains(char::is_whitespace) {
            return Err(ConfigError::Name);
        }
        let longest = (self.protocol.data_out_max as usize).next_power_of_two();
        if self.long_per_source_max == 0 {
            return Err(ConfigError::Long);
        }
        let most = self.memory_per_connection_max.min(self.memory_max).min(self.memory_per_source_max);
        if most < longest {
            return Err(ConfigError::BufferPool);
        }
        Ok(())
    }
}
