//! What a target is told before it starts.

use std::{fmt, sync::Arc, time::Instant};

use sealstone_iscsi::{
    limits,
    target::{Config as Protocol, TargetEntry},
};

use sealstone_channel::AdmissionLimits;

use crate::{Random, Rate, Tls, Watch};

/// One in so many connections after their login is reserved for the loopback address, beside the others.
const RESERVED_PART: usize = 16;

/// Milliseconds of a clock that never goes back.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl Clock {
    /// From any function; its value may start anywhere.
    pub fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now_ms))
    }

    /// Now, in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        (self.0)()
    }
}

impl Default for Clock {
    /// The system's monotonic clock.
    fn default() -> Self {
        let start = Instant::now();
        Self::new(move || u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// One target with its limits. [`Config::new`] gives usual values.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the protocol machine needs; `targets` holds exactly one entry.
    pub protocol: Protocol,
    /// Bytes of data buffers of all connections together.
    pub memory_max: usize,
    /// Bytes of data buffers of one connection; at least `protocol.data_out_max`.
    pub memory_per_connection_max: usize,
    /// Bytes of data buffers of all connections of one source; at least `protocol.data_out_max`.
    pub memory_per_source_max: usize,
    /// Long commands of one source that run at once; further ones wait, without holding a thread. At least one.
    pub long_per_source_max: usize,
    /// Connections after their login. When there are no more places, the account or address with the most connections loses
    /// the oldest.
    pub connections_max: usize,
    /// Milliseconds that one piece (a header, or a data segment) may wait to be written.
    pub write_timeout_ms: u64,
    /// Seconds that initiators get to log out when the target shuts down.
    pub drain_seconds: u16,
    /// Connections at once from one source (an IPv4 address, or an IPv6 /64); more are closed as soon as they are accepted.
    pub connections_per_source_max: usize,
    /// Connections of one source whose login is not over; a further one closes the oldest that has got least far.
    pub logins_per_source_max: usize,
    /// Connections of all sources whose login is not over, beside those after their login. A further one closes the oldest of
    /// the network (IPv4 /24, IPv6 /48) with the most.
    pub logins_max: usize,
    /// How fast connections of one source may come; faster ones are reset as soon as they are accepted.
    pub arrivals_per_source: Rate,
    /// How long commands share the processors with short ones.
    pub pace: Pace,
    /// Time.
    pub clock: Clock,
    /// Chance, for CHAP challenges.
    pub random: Random,
    /// Who hears of what was refused.
    pub watch: Watch,
    /// TLS of what [`Target::serve`](crate::Target::serve) accepts; `None`: plain text alone.
    pub tls: Option<Tls>,
}

/// How commands that compute for long, as ALLDATA over large requests does, share the processors with short ones.
/// Writes pulled at the device's pace are `protocol.pull_bytes`. By default neither: threads of its own do not suit a target
/// whose time is simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Long commands run on threads of their own, of lower priority, the shortest first; otherwise each holds its
    /// connection, and the thread that serves it, to its end.
    pub short_first: bool,
    /// Many long commands run at once, and the system gives each a slice by turns; otherwise one for each core runs to
    /// its end. Only with `short_first`.
    pub slices: bool,
}

/// A configuration that cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not exactly one target.
    #[error("a target has exactly one name")]
    OneTarget,
    /// Empty, longer than 223 bytes, or with blanks.
    #[error("not an iSCSI name")]
    Name,
    /// A command's data-out would never fit.
    #[error("memory per connection is less than the longest data-out")]
    Memory,
    /// Long commands that could never run.
    #[error("no long command of a source may run")]
    Long,
    /// A LUN that single-level addressing cannot say, or given twice.
    #[error("LUN {0} is above 16383, there twice, or one too many")]
    Lun(u64),
}

impl Config {
    /// Usual values for a target of this iSCSI name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let entry = TargetEntry { name: name.into(), alias: None, addresses: Vec::new() };
        let mut protocol = Protocol::new(vec![entry]);
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
            arrivals_per_source: Rate::UNBOUNDED,
            pace: Pace::default(),
            clock: Clock::default(),
            random: Random::default(),
            watch: Watch::default(),
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
            return Err(ConfigError::Memory);
        }
        Ok(())
    }
}
