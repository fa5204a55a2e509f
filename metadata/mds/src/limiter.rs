//! How often somebody may try to log in.
//!
//! Does: a bucket per user, one per source, growing delays without a lock-out. Does not: read a clock.
//! Contract: the answer does not depend on whether the user exists.
//! Truth: docs/design/security.md 2.4, rate limits.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use sealstone_mds_protocol::UserName;

/// Attempts per user before delays begin.
pub(crate) const USER_BURST: u32 = 5;
/// Time in which one of them comes back, milliseconds.
pub(crate) const USER_REFILL_MS: u64 = 12_000;
/// First delay, milliseconds; doubles with each further attempt.
pub(crate) const DELAY_MIN_MS: u64 = 1_000;
/// Longest delay, milliseconds.
pub(crate) const DELAY_MAX_MS: u64 = 300_000;
/// Attempts per source at once.
pub(crate) const SOURCE_BURST: u32 = 50;
/// Time in which one of them comes back, milliseconds: 20 a second.
pub(crate) const SOURCE_REFILL_MS: u64 = 50;
/// Users and sources remembered at most, each.
pub(crate) const REMEMBERED_MAX: usize = 16_384;

/// Where attempts come from: an IPv4 /24 or IPv6 /64, or nowhere (a connection inside the process).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Source(Option<[u8; 8]>);

impl core::fmt::Display for Source {
    /// The network as people write it; nothing for a connection inside the process.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            None => Ok(()),
            Some([0x20, 0x01, 0x0D, 0xB8, a, b, c, _]) => write!(f, "{a}.{b}.{c}.0/24"),
            Some(prefix) => {
                let mut octets = [0; 16];
                octets[..8].copy_from_slice(&prefix);
                write!(f, "{}/64", std::net::Ipv6Addr::from(octets))
            }
        }
    }
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        let mut prefix = [0; 8];
        match address.to_canonical() {
            // 2001:db8::/32 is never a real source, so the two families cannot meet.
            IpAddr::V4(v4) => {
                prefix = [0x20, 0x01, 0x0D, 0xB8, v4.octets()[0], v4.octets()[1], v4.octets()[2], 0]
            }
            IpAddr::V6(v6) => prefix.copy_from_slice(&v6.octets()[..8]),
        }
        Self(Some(prefix))
    }
}

/// Tokens that come back with time; delays when there are none.
#[derive(Clone, Copy)]
struct Bucket {
    tokens: u32,
    refilled_ms: u64,
    strikes: u32,
    blocked_until_ms: u64,
    touched_ms: u64,
}

impl Bucket {
    const fn full(burst: u32, now_ms: u64) -> Self {
        Self { tokens: burst, refilled_ms: now_ms, strikes: 0, blocked_until_ms: 0, touched_ms: now_ms }
    }

    fn refill(&mut self, burst: u32, every_ms: u64, now_ms: u64) {
        let back = now_ms.saturating_sub(self.refilled_ms) / every_ms;
        self.refilled_ms += back * every_ms;
        self.tokens = self.tokens.saturating_add(u32::try_from(back).unwrap_or(u32::MAX)).min(burst);
        if self.tokens == burst {
            self.refilled_ms = now_ms;
            self.strikes = 0;
        }
        self.touched_ms = now_ms;
    }

    /// Takes a token, or says how long to wait.
    fn take(&mut self, now_ms: u64, delays: bool) -> Result<(), u64> {
        if let Some(left) = self.tokens.checked_sub(1) {
            self.tokens = left;
            return Ok(());
        }
        if !delays {
            return Err(SOURCE_REFILL_MS);
        }
        if now_ms < self.blocked_until_ms {
            return Err(self.blocked_until_ms - now_ms);
        }
        // The delay is over, or this is the first attempt without a token: one more guess, then a longer wait.
        let delay = DELAY_MIN_MS.checked_shl(self.strikes).unwrap_or(DELAY_MAX_MS).min(DELAY_MAX_MS);
        let first = self.strikes == 0 && self.blocked_until_ms == 0;
        self.strikes = self.strikes.saturating_add(1).min(32);
        self.blocked_until_ms = now_ms.saturating_add(delay);
        if first { Err(delay) } else { Ok(()) }
    }
}

/// Buckets of users and sources. A source from which a user has logged in gets a bucket of its own for that user, so
/// attempts from elsewhere cannot keep him out.
#[derive(Default)]
pub struct LoginLimiter {
    users: HashMap<(UserName, Option<Source>), Bucket>,
    sources: HashMap<Source, Bucket>,
}

impl LoginLimiter {
    /// Counts an attempt, when its challenge is asked for.
    ///
    /// # Errors
    /// Milliseconds to wait.
    pub fn attempt(&mut self, user: &UserName, source: Source, now_ms: u64) -> Result<(), u64> {
        if source.0.is_some() {
            make_room(&mut self.sources, now_ms);
            let bucket = self.sources.entry(source).or_insert(Bucket::full(SOURCE_BURST, now_ms));
            bucket.refill(SOURCE_BURST, SOURCE_REFILL_MS, now_ms);
            bucket.take(now_ms, false)?;
        }
        let own = (user.clone(), Some(source));
        let key = if self.users.contains_key(&own) { own } else { (user.clone(), None) };
        make_room(&mut self.users, now_ms);
        let bucket = self.users.entry(key).or_insert(Bucket::full(USER_BURST, now_ms));
        bucket.refill(USER_BURST, USER_REFILL_MS, now_ms);
        bucket.take(now_ms, true)
    }

    /// How many are remembered.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.users.len() + self.sources.len()
    }

    /// A login succeeded.
    pub fn succeeded(&mut self, user: &UserName, source: Source, now_ms: u64) {
        make_room(&mut self.users, now_ms);
        self.users.insert((user.clone(), Some(source)), Bucket::full(USER_BURST, now_ms));
    }
}

/// Forgets the half touched longest ago when the table is full.
fn make_room<K: Hash + Eq + Clone>(table: &mut HashMap<K, Bucket>, _now_ms: u64) {
    if table.len() < REMEMBERED_MAX {
        return;
    }
    let mut times: Vec<u64> = table.values().map(|bucket| bucket.touched_ms).collect();
    let middle = times.len() / 2;
    let (_, &mut median, _) = times.select_nth_unstable(middle);
    let mut equal_to_keep = times.len() - middle;
    table.retain(|_, bucket| {
        bucket.touched_ms > median
            || bucket.touched_ms == median && {
                equal_to_keep = equal_to_keep.saturating_sub(2);
                equal_to_keep > 0
            }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> UserName {
        UserName::new(name).unwrap()
    }

    fn from(last: u8) -> Source {
        IpAddr::from([192, 0, last, 1]).into()
    }

    /// The first time at or after `now` at which an attempt is let through.
    fn wait(limiter: &mut LoginLimiter, name: &str, source: Source, mut now: u64) -> u64 {
        while let Err(delay) = limiter.attempt(&user(name), source, now) {
            now += delay;
        }
        now
    }

    #[test]
    fn after_five_attempts_each_further_one_costs_twice_the_time() {
        let mut limiter = LoginLimiter::default();
        for _ in 0..USER_BURST {
            assert_eq!(limiter.attempt(&user("a"), from(1), 0), Ok(()));
        }
        let mut now = 0;
        let mut last_delay = 0;
        for _ in 0..4 {
            let next = wait(&mut limiter, "a", from(1), now);
            assert!(next - now >= last_delay, "{} after {last_delay}", next - now);
            last_delay = next - now;
            now = next;
        }
        assert!(last_delay >= 4 * DELAY_MIN_MS);
    }

    #[test]
    fn nobody_waits_longer_than_the_longest_delay() {
        let mut limiter = LoginLimiter::default();
        let mut now = 0;
        for _ in 0..40 {
            let next = wait(&mut limiter, "a", Source::default(), now);
            assert!(next - now <= DELAY_MAX_MS);
            now = next;
        }
    }

    #[test]
    fn a_thousand_failures_from_elsewhere_do_not_keep_a_user_out() {
        let mut limiter = LoginLimiter::default();
        limiter.succeeded(&user("victim"), from(1), 0);
        for i in 0..1_000u64 {
            let _ = limiter.attempt(&user("victim"), from(2 + (i % 200) as u8), i);
        }
        assert_eq!(limiter.attempt(&user("victim"), from(1), 1_000), Ok(()));
    }

    #[test]
    fn one_source_gets_twenty_a_second() {
        let mut limiter = LoginLimiter::default();
        let through = (0..10_000u64)
            .filter(|now| limiter.attempt(&user(&format!("u{now}")), from(1), *now).is_ok())
            .count();
        assert!((240..=251).contains(&through), "{through}");
    }

    #[test]
    fn memory_is_bounded() {
        let mut limiter = LoginLimiter::default();
        for i in 0..40_000u64 {
            let _ = limiter.attempt(&user(&format!("u{i}")), Source::default(), 7);
        }
        assert!(limiter.users.len() <= REMEMBERED_MAX);
    }

    #[test]
    fn mapped_addresses_are_the_same_source() {
        let mapped: IpAddr = "::ffff:192.0.1.9".parse().unwrap();
        assert_eq!(Source::from(mapped), from(1));
    }
}
