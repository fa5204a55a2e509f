//! Login throttle: rate limits of login attempts.
//!
//! Does: limit attempts from each address, for each account from each address and network, and for
//! each account from all networks that it never logged in from.
//! Does not: read a clock, or remember which accounts exist; the store does (`familiar`).
//! Contract: the answer does not depend on whether the account exists, except after logins from the
//! same network. A flood from elsewhere never delays a login from a familiar address. It delays a
//! first login from a new network only above the rate of [`UNFAMILIAR_EVERY_MS`], that is from
//! about 60 networks at once. Memory is fixed: invented names evict nothing.
//! Truth: docs/reference/limits.md; docs/design/security.md 2.4, rate limits.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::net::IpAddr;

use sealstone_mds_protocol::UserName;

/// Source of attempts: an IPv4 address, an IPv6 /64, or none for a connection inside the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoginSource(Option<[u8; 8]>);

/// Prefix of an IPv4 address: 2001:db8::/32 is never a real source, so the two families cannot
/// collide.
const IPV4: [u8; 4] = [0x20, 0x01, 0x0D, 0xB8];

impl LoginSource {
    /// Returns the network: an IPv4 /24 or an IPv6 /48.
    #[must_use]
    pub(crate) fn network(self) -> Self {
        Self(self.0.map(|mut prefix| {
            if prefix[..4] == IPV4 {
                prefix[7] = 0;
            } else {
                prefix[6..].fill(0);
            }
            prefix
        }))
    }

    /// Returns the stored form; none for a connection inside the process.
    pub(crate) const fn to_bytes(self) -> Option<[u8; 8]> {
        self.0
    }

    /// Decodes the stored form.
    pub(crate) const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(Some(bytes))
    }
}

impl core::fmt::Display for LoginSource {
    /// Writes the network in the usual notation, an IPv4 /24 or IPv6 /64; nothing for a connection
    /// inside the process.
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

impl From<IpAddr> for LoginSource {
    fn from(address: IpAddr) -> Self {
        let mut prefix = [0; 8];
        match address.to_canonical() {
            IpAddr::V4(v4) => {
                prefix[..4].copy_from_slice(&IPV4);
                prefix[4..].copy_from_slice(&v4.octets());
            }
            IpAddr::V6(v6) => prefix.copy_from_slice(&v6.octets()[..8]),
        }
        Self(Some(prefix))
    }
}

/// How well the source of a login is known for its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Familiarity {
    /// Unknown address and network.
    Stranger,
    /// Another address of the same network is known.
    Network,
    /// The address is known.
    Address,
}

/// Rate limit of one kind of bucket.
#[derive(Clone, Copy)]
struct RateLimit {
    /// Number of attempts that are allowed at once.
    burst: u32,
    /// Time until one attempt is allowed again, milliseconds.
    every_ms: u64,
    /// First and longest delay without attempts left, milliseconds; it doubles with each allowed
    /// attempt.
    delays_ms: Option<(u64, u64)>,
}

/// Attempts from one address for all accounts: 20 a second.
const ADDRESS: RateLimit = RateLimit { burst: 50, every_ms: 50, delays_ms: None };
/// Attempts for one account from one address.
const ACCOUNT_ADDRESS: RateLimit =
    RateLimit { burst: 5, every_ms: 12_000, delays_ms: Some((1_000, 300_000)) };
/// Attempts for one account from an address that it has logged in from.
const ACCOUNT_FAMILIAR: RateLimit =
    RateLimit { burst: 5, every_ms: 12_000, delays_ms: Some((1_000, 60_000)) };
/// Attempts for one account from one network.
const ACCOUNT_NETWORK: RateLimit = RateLimit { burst: 8, every_ms: 60_000, delays_ms: None };
/// Interval of attempts for one account from all unfamiliar networks, milliseconds.
pub(crate) const UNFAMILIAR_EVERY_MS: u64 = 1_000;
/// Attempts for one account from all networks that it has not logged in from.
const ACCOUNT_UNFAMILIAR: RateLimit =
    RateLimit { burst: 512, every_ms: UNFAMILIAR_EVERY_MS, delays_ms: None };

/// Limit of each user's refused requests in the record of credentials.
const USER_REFUSALS: RateLimit = RateLimit { burst: 256, every_ms: 10_000, delays_ms: None };

/// Number of buckets of each kind. Two keys can share one by chance, but the hash is keyed, so no
/// attacker can choose which.
const BUCKETS: usize = 1 << 16;

/// Counter of used attempts, which expire with time, and the current delay. All zeros: unused.
#[derive(Clone, Copy, Default)]
struct AttemptBucket {
    used: u32,
    strikes: u32,
    refilled_ms: u64,
    blocked_until_ms: u64,
}

impl AttemptBucket {
    /// Returns the bucket after an attempt at this time.
    ///
    /// # Errors
    /// Milliseconds to wait, and the bucket after a refusal.
    fn after(mut self, rule: &RateLimit, now_ms: u64) -> Result<Self, (u64, Self)> {
        // After the clock was set back, times ahead of it must not block for that long.
        self.refilled_ms = self.refilled_ms.min(now_ms);
        let longest_ms = rule.delays_ms.map_or(0, |(_, longest_ms)| longest_ms);
        self.blocked_until_ms = self.blocked_until_ms.min(now_ms.saturating_add(longest_ms));
        let back = now_ms.saturating_sub(self.refilled_ms) / rule.every_ms;
        self.refilled_ms = self.refilled_ms.saturating_add(back.saturating_mul(rule.every_ms));
        self.used = self.used.saturating_sub(u32::try_from(back).unwrap_or(u32::MAX));
        if self.used == 0 {
            self = Self { refilled_ms: now_ms, ..Self::default() };
        }
        if self.used < rule.burst {
            self.used += 1;
            return Ok(self);
        }
        let Some((first_ms, longest_ms)) = rule.delays_ms else {
            let next_ms = self.refilled_ms.saturating_add(rule.every_ms);
            return Err((next_ms.saturating_sub(now_ms).max(1), self));
        };
        if now_ms < self.blocked_until_ms {
            return Err((self.blocked_until_ms - now_ms, self));
        }
        // The delay has passed, or this is the first attempt beyond the burst: one more guess, then
        // a longer delay.
        let delay_ms = first_ms.checked_shl(self.strikes).unwrap_or(longest_ms).min(longest_ms);
        let is_first = self.strikes == 0 && self.blocked_until_ms == 0;
        self.strikes = self.strikes.saturating_add(1).min(32);
        self.blocked_until_ms = now_ms.saturating_add(delay_ms);
        if is_first { Err((delay_ms, self)) } else { Ok(self) }
    }
}

/// Buckets of one kind; allocated at the first use.
struct BucketTable {
    all: Vec<AttemptBucket>,
    rule: RateLimit,
}

impl BucketTable {
    const fn new(rule: RateLimit) -> Self {
        Self { all: Vec::new(), rule }
    }

    fn get(&mut self, at: usize) -> Option<&mut AttemptBucket> {
        if self.all.is_empty() {
            self.all = vec![AttemptBucket::default(); BUCKETS];
        }
        self.all.get_mut(at)
    }
}

/// Rate limits of addresses and accounts.
pub struct LoginLimiter {
    hash: RandomState,
    addresses: BucketTable,
    account_addresses: BucketTable,
    account_familiar: BucketTable,
    account_networks: BucketTable,
    account_strangers: BucketTable,
    refusals: BucketTable,
}

impl Default for LoginLimiter {
    fn default() -> Self {
        Self {
            hash: RandomState::new(),
            addresses: BucketTable::new(ADDRESS),
            account_addresses: BucketTable::new(ACCOUNT_ADDRESS),
            account_familiar: BucketTable::new(ACCOUNT_FAMILIAR),
            account_networks: BucketTable::new(ACCOUNT_NETWORK),
            account_strangers: BucketTable::new(ACCOUNT_UNFAMILIAR),
            refusals: BucketTable::new(USER_REFUSALS),
        }
    }
}

impl LoginLimiter {
    /// Counts an attempt of an address, for any account.
    ///
    /// # Errors
    /// Milliseconds to wait.
    pub fn attempt_from(&mut self, source: LoginSource, now_ms: u64) -> Result<(), u64> {
        if source == LoginSource::default() {
            return Ok(());
        }
        let at = self.slot(&source);
        Self::take(&mut [(&mut self.addresses, at)], now_ms)
    }

    /// Counts an attempt for an account when its challenge is requested.
    ///
    /// # Errors
    /// Milliseconds to wait.
    pub fn attempt(
        &mut self,
        user: &UserName,
        source: LoginSource,
        familiarity: Familiarity,
        now_ms: u64,
    ) -> Result<(), u64> {
        let own = self.slot(&(user, source));
        if familiarity == Familiarity::Address {
            return Self::take(&mut [(&mut self.account_familiar, own)], now_ms);
        }
        if source == LoginSource::default() {
            return Self::take(&mut [(&mut self.account_addresses, own)], now_ms);
        }
        let network = self.slot(&(user, source.network()));
        let all = self.slot(user);
        let (addresses, networks) = (&mut self.account_addresses, &mut self.account_networks);
        if familiarity == Familiarity::Network {
            return Self::take(&mut [(addresses, own), (networks, network)], now_ms);
        }
        let strangers = &mut self.account_strangers;
        Self::take(&mut [(addresses, own), (networks, network), (strangers, all)], now_ms)
    }

    /// Counts a refused request of a user in the record of credentials.
    ///
    /// # Errors
    /// Milliseconds until the next one is allowed.
    pub(crate) fn attempt_record(&mut self, user: &UserName, now_ms: u64) -> Result<(), u64> {
        let at = self.slot(user);
        Self::take(&mut [(&mut self.refusals, at)], now_ms)
    }

    /// Clears the attempts of a user from this source after a successful login.
    pub fn succeeded(&mut self, user: &UserName, source: LoginSource) {
        let own = self.slot(&(user, source));
        for buckets in [&mut self.account_addresses, &mut self.account_familiar] {
            if let Some(bucket) = buckets.all.get_mut(own) {
                *bucket = AttemptBucket::default();
            }
        }
    }

    /// Returns the number of buckets in use.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        let kinds = [
            &self.addresses,
            &self.account_addresses,
            &self.account_familiar,
            &self.account_networks,
            &self.account_strangers,
        ];
        kinds.iter().flat_map(|kind| &kind.all).filter(|bucket| bucket.used > 0).count()
    }

    fn slot(&self, key: &impl std::hash::Hash) -> usize {
        (self.hash.hash_one(key) % BUCKETS as u64) as usize
    }

    /// Takes an attempt from all of these buckets, or from none if one of them refuses.
    fn take(buckets: &mut [(&mut BucketTable, usize)], now_ms: u64) -> Result<(), u64> {
        let mut taken = Vec::with_capacity(buckets.len());
        for (kind, at) in buckets.iter_mut() {
            let rule = kind.rule;
            let Some(bucket) = kind.get(*at) else { continue };
            match bucket.after(&rule, now_ms) {
                Ok(after) => taken.push(after),
                Err((wait_ms, after)) => {
                    *bucket = after;
                    return Err(wait_ms);
                }
            }
        }
        for ((kind, at), after) in buckets.iter_mut().zip(taken) {
            if let Some(bucket) = kind.get(*at) {
                *bucket = after;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> UserName {
        UserName::new(name).unwrap()
    }

    fn from(network: u8) -> LoginSource {
        IpAddr::from([192, 0, network, 1]).into()
    }

    fn attempt(limiter: &mut LoginLimiter, name: &str, source: LoginSource, now_ms: u64) -> Result<(), u64> {
        limiter.attempt(&user(name), source, Familiarity::Stranger, now_ms)
    }

    /// Returns the first time at or after `now` at which an attempt is allowed.
    fn wait(limiter: &mut LoginLimiter, name: &str, source: LoginSource, mut now: u64) -> u64 {
        while let Err(delay) = attempt(limiter, name, source, now) {
            now += delay;
        }
        now
    }

    #[test]
    fn delay_doubles_after_five_attempts() {
        let mut limiter = LoginLimiter::default();
        for _ in 0..ACCOUNT_ADDRESS.burst {
            assert_eq!(attempt(&mut limiter, "a", from(1), 0), Ok(()));
        }
        let mut now = 0;
        let mut last_delay = 0;
        for _ in 0..4 {
            let next = wait(&mut limiter, "a", from(1), now);
            assert!(next - now >= last_delay, "{} after {last_delay}", next - now);
            last_delay = next - now;
            now = next;
        }
        assert!(last_delay >= 4_000);
    }

    #[test]
    fn delay_never_exceeds_the_longest() {
        let mut limiter = LoginLimiter::default();
        let mut now = 0;
        for _ in 0..40 {
            let next = wait(&mut limiter, "a", LoginSource::default(), now);
            assert!(next - now <= 300_000);
            now = next;
        }
    }

    #[test]
    fn flood_does_not_delay_familiar_address() {
        let mut limiter = LoginLimiter::default();
        // From all networks, including neighbours of the user's address.
        for i in 0..20_000u64 {
            let other = IpAddr::from([192, 0, (i % 200) as u8, 2 + (i / 200 % 100) as u8]);
            let _ = attempt(&mut limiter, "victim", other.into(), i);
        }
        let own = limiter.attempt(&user("victim"), from(1), Familiarity::Address, 20_000);
        assert_eq!(own, Ok(()));
    }

    #[test]
    fn flood_of_one_network_spares_other_networks() {
        let mut limiter = LoginLimiter::default();
        for i in 0..100_000u64 {
            let attacker = IpAddr::from([10, 0, (i % 16) as u8, (i / 16 % 250) as u8]);
            let _ = attempt(&mut limiter, "victim", attacker.into(), i * 10);
            if i % 10_000 == 0 {
                let new = from((i / 10_000) as u8 + 1);
                assert_eq!(attempt(&mut limiter, "victim", new, i * 10), Ok(()), "{i}");
            }
        }
    }

    #[test]
    fn invented_names_evict_nothing() {
        let mut limiter = LoginLimiter::default();
        while attempt(&mut limiter, "victim", from(1), 0).is_ok() {}
        for i in 0..18_000 {
            let _ = attempt(&mut limiter, &format!("invented{i}"), from(2), 7);
        }
        assert!(attempt(&mut limiter, "victim", from(1), 7).is_err(), "the guesses are still counted");
    }

    #[test]
    fn guesses_per_account_are_bounded_across_networks() {
        let mut limiter = LoginLimiter::default();
        let hour_ms = 3_600_000u64;
        let mut guesses = 0u64;
        for now_ms in (0..hour_ms).step_by(50) {
            let source = IpAddr::from([10, (now_ms / 50 % 250) as u8, (now_ms / 12_500 % 250) as u8, 1]);
            guesses += u64::from(attempt(&mut limiter, "victim", source.into(), now_ms).is_ok());
        }
        assert!(guesses <= u64::from(ACCOUNT_UNFAMILIAR.burst) + hour_ms / UNFAMILIAR_EVERY_MS, "{guesses}");
        let mut one = LoginLimiter::default();
        let mut from_one = 0u64;
        for now_ms in (0..hour_ms).step_by(50) {
            let source = IpAddr::from([10, 0, 0, (now_ms / 50 % 250) as u8]);
            from_one += u64::from(attempt(&mut one, "victim", source.into(), now_ms).is_ok());
        }
        assert!(
            from_one <= u64::from(ACCOUNT_NETWORK.burst) + 60,
            "{from_one} guesses of one network in an hour"
        );
    }

    #[test]
    fn address_gets_twenty_attempts_a_second() {
        let mut limiter = LoginLimiter::default();
        let through = (0..10_000u64).filter(|now| limiter.attempt_from(from(1), *now).is_ok()).count();
        assert!((240..=251).contains(&through), "{through}");
        let neighbour: LoginSource = IpAddr::from([192, 0, 1, 2]).into();
        assert_eq!(limiter.attempt_from(neighbour, 9_999), Ok(()));
    }

    #[test]
    fn mapped_addresses_are_the_same_source() {
        let mapped: IpAddr = "::ffff:192.0.1.1".parse().unwrap();
        assert_eq!(LoginSource::from(mapped), from(1));
        assert_eq!(LoginSource::from(mapped).network().to_string(), "192.0.1.0/24");
    }
}
