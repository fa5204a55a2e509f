//! Stateless retry cookies: under load a login is answered with one, and no state is kept.
//!
//! Does: creates and checks them; changes the key every minute, keeping the previous one.
//! Does not: decide when a server is under load.
//! Contract: a cookie is valid on its own channel, for the same first message, from the end of the
//! pause it names until ten seconds after its creation.
//! Source of truth: docs/standards/mds/login.md §4.6.

use hkdf::hmac::{Hmac, Mac};
use sealstone_mds_protocol::login::{COOKIE_BYTES, LoginStart};
use sealstone_mds_protocol::{Wire, WireWriter};
use sha2_opaque::{Digest, Sha256};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::{ChannelBinding, CryptoRng, RngCore};

/// Validity of a cookie, milliseconds.
pub const COOKIE_LIFE_MS: u64 = 10_000;
/// How long a key creates cookies, milliseconds.
const KEY_LIFE_MS: u64 = 60_000;
const VERSION: u8 = 1;

#[derive(Zeroize, ZeroizeOnDrop)]
struct CookieKey {
    id: u8,
    key: [u8; 32],
    since_ms: u64,
}

/// The current key and the previous one. They are in memory only: after a restart clients request
/// new cookies.
#[derive(Default)]
pub struct CookieJar {
    current: Option<CookieKey>,
    previous: Option<CookieKey>,
}

impl CookieJar {
    /// Creates a cookie for this message on this channel, to be used after `wait_ms` have passed.
    pub fn bake<R: RngCore + CryptoRng>(
        &mut self,
        rng: &mut R,
        channel: &ChannelBinding,
        start: &LoginStart,
        wait_ms: u32,
        now_ms: u64,
    ) -> [u8; COOKIE_BYTES] {
        if self.current.as_ref().is_none_or(|key| now_ms.wrapping_sub(key.since_ms) >= KEY_LIFE_MS) {
            let id = self.current.as_ref().map_or(0, |key| key.id.wrapping_add(1));
            let mut key = CookieKey { id, key: [0; 32], since_ms: now_ms };
            rng.fill_bytes(&mut key.key);
            self.previous = self.current.replace(key);
        }
        let mut cookie = [0; COOKIE_BYTES];
        let Some(key) = &self.current else { return cookie };
        let good_from_ms = now_ms.saturating_add(u64::from(wait_ms));
        cookie[0] = VERSION;
        cookie[1] = key.id;
        cookie[2..8].copy_from_slice(&good_from_ms.to_be_bytes()[2..]);
        let mac = mac(key, &cookie[..8], channel, start).finalize().into_bytes();
        cookie[8..].copy_from_slice(&mac);
        cookie
    }

    /// Whether the cookie was created here, for this message and channel, and is valid now.
    #[must_use]
    pub fn check(
        &self,
        cookie: &[u8; COOKIE_BYTES],
        channel: &ChannelBinding,
        start: &LoginStart,
        now_ms: u64,
    ) -> bool {
        let [version, id, time @ ..] = cookie;
        let mut good_from = [0; 8];
        good_from[2..].copy_from_slice(&time[..6]);
        let good_from_ms = u64::from_be_bytes(good_from);
        let in_time = (good_from_ms..good_from_ms.saturating_add(COOKIE_LIFE_MS)).contains(&now_ms);
        let key = [&self.current, &self.previous].into_iter().flatten().find(|key| key.id == *id);
        let Some(key) = key.filter(|_| *version == VERSION && in_time) else { return false };
        mac(key, &cookie[..8], channel, start).verify_slice(&cookie[8..]).is_ok()
    }
}

fn mac(key: &CookieKey, head: &[u8], channel: &ChannelBinding, start: &LoginStart) -> Hmac<Sha256> {
    let mut body = WireWriter::new();
    start.put(&mut body);
    let body = body.finish(4096).expect("login bodies are shorter than 1 KiB");
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&key.key).expect("HMAC takes any key");
    mac.update(head);
    mac.update(&channel.0);
    mac.update(&Sha256::digest(body));
    mac
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use sealstone_mds_protocol::UserName;

    const CHANNEL: ChannelBinding = ChannelBinding([7; 32]);

    fn start(name: &str) -> LoginStart {
        LoginStart { suite: 1, user: UserName::new(name).unwrap(), capabilities: 0, ke1: [3; 96] }
    }

    #[test]
    fn cookie_is_bound_to_time_channel_and_message() {
        let (mut jar, mut rng) = (CookieJar::default(), StdRng::seed_from_u64(1));
        let cookie = jar.bake(&mut rng, &CHANNEL, &start("alice"), 500, 1_000);
        let good = |cookie: &[u8; 40], channel: &ChannelBinding, name, at| {
            jar.check(cookie, channel, &start(name), at)
        };
        assert!(good(&cookie, &CHANNEL, "alice", 1_500));
        assert!(!good(&cookie, &CHANNEL, "alice", 1_499), "before the pause is over");
        assert!(!good(&cookie, &CHANNEL, "alice", 1_500 + COOKIE_LIFE_MS), "too late");
        assert!(!good(&cookie, &CHANNEL, "bob", 1_500), "another message");
        assert!(!good(&cookie, &ChannelBinding([8; 32]), "alice", 1_500), "another channel");
        for bit in 0..cookie.len() * 8 {
            let mut bent = cookie;
            bent[bit / 8] ^= 1 << (bit % 8);
            assert!(!good(&bent, &CHANNEL, "alice", 1_500), "bit {bit}");
        }
        assert!(!CookieJar::default().check(&cookie, &CHANNEL, &start("alice"), 1_500), "after a restart");
    }

    #[test]
    fn cookie_key_rotates_every_minute() {
        let (mut jar, mut rng) = (CookieJar::default(), StdRng::seed_from_u64(1));
        let last = KEY_LIFE_MS - 1;
        let first = jar.bake(&mut rng, &CHANNEL, &start("a"), 0, 0);
        let old = jar.bake(&mut rng, &CHANNEL, &start("a"), 0, last);
        assert_eq!(first[1], old[1]);
        let new = jar.bake(&mut rng, &CHANNEL, &start("a"), 0, last + 1);
        assert_ne!(old[1], new[1]);
        assert!(jar.check(&old, &CHANNEL, &start("a"), last + 2));
        let _ = jar.bake(&mut rng, &CHANNEL, &start("a"), 0, 2 * KEY_LIFE_MS + last);
        assert!(!jar.check(&old, &CHANNEL, &start("a"), last + 2), "two keys are kept");
    }
}
