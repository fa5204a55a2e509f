//! A server's answers.
//!
//! Does: answer requests with and without MAC, refuse with a crypto-NAK or a kiss-o'-death, keep everybody to a rate.
//! Does not: read a clock, or know keys; both are handed in.
//! Contract: an answer is never longer than its request, so that a forged sender gains nothing. Whoever shows a MAC under
//! a key of ours has a rate of his own, which only who recorded his questions can use up; all others have one by address.
//! What is kept about them is bounded, and no time that is told depends on it.
//! Truth: RFC 5905 §9.2 (fields of an answer), RFC 4330 §6 and §8 (kiss-o'-death).

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use crate::key::TimeKey;
use crate::packet::{HEADER_LEN, Leap, Mode, NAK_LEN, Packet, SIGNED_LEN, Short, Trailer, kiss};
use crate::query::Sample;
use crate::stamp::Stamp;

/// Addresses whose rate is kept, and as many keys.
pub const SOURCES_MAX: usize = 4096;
/// What one address, or one key, may ask.
pub const RATE: Rate = Rate { burst: 16, per_ms: 1_000 };
/// At most one kiss in so many milliseconds to each; whoever goes on meanwhile hears nothing.
pub const KISS_EVERY_MS: u64 = 8_000;
/// Addresses that asked nothing for so long are forgotten when there is no room, milliseconds.
const FORGET_MS: u64 = RATE.burst as u64 * RATE.per_ms;
/// The grain of the clock: two to the power of minus nine seconds.
const PRECISION: i8 = -9;

/// Questions that may come at once, and how long it takes until there may be one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// At once.
    pub burst: u32,
    /// Milliseconds for another one.
    pub per_ms: u64,
}

/// Who asks, as far as it is told apart: an IPv4 address, or the first 64 bits of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source(u128);

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
            IpAddr::V6(address) => address.to_bits() >> 64 << 64,
        })
    }
}

/// What the server says of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockState {
    /// Leap indicator.
    pub leap: Leap,
    /// Steps from a reference clock.
    pub stratum: u8,
    /// Which one.
    pub reference_id: [u8; 4],
    /// Round trip to it, milliseconds.
    pub root_delay_ms: u64,
    /// How far off our clock may be, milliseconds.
    pub root_dispersion_ms: u64,
    /// When it was last set, milliseconds since 1970.
    pub reference_ms: u64,
}

/// A clock that follows nobody is off by so much as far as it knows, milliseconds.
const OWN_ERROR_MS: u64 = 10;
/// The stratum of a clock that follows nobody.
const OWN_STRATUM: u8 = 10;
/// What a good clock drifts, millionths (RFC 5905, PHI).
const DRIFT_PPM: u64 = 15;
/// A clock that followed another one is never told as worse than this, milliseconds: who follows it wants its time, however
/// long its own server was away.
const DISPERSION_MAX_MS: u64 = 1_000;
/// Strata end here.
const STRATUM_MAX: u8 = 15;

impl ClockState {
    /// Of a clock that follows nobody.
    #[must_use]
    pub const fn own(now_ms: u64) -> Self {
        Self {
            leap: Leap::None,
            stratum: OWN_STRATUM,
            reference_id: *b"LOCL",
            root_delay_ms: 0,
            root_dispersion_ms: OWN_ERROR_MS,
            reference_ms: now_ms,
        }
    }

    /// Of one that follows the server of this sample, which came `age_ms` ago.
    #[must_use]
    pub fn following(sample: &Sample, age_ms: u64, now_ms: u64) -> Self {
        let drifted_ms = age_ms.saturating_mul(DRIFT_PPM) / 1_000_000;
        Self {
            leap: Leap::None,
            stratum: sample.stratum.saturating_add(1).min(STRATUM_MAX),
            // Of an IPv6 server it would be a hash; it only serves to find loops, of which there are none here.
            reference_id: *b"SNTP",
            root_delay_ms: sample.delay_ms,
            root_dispersion_ms: sample.error_ms.saturating_add(drifted_ms).min(DISPERSION_MAX_MS),
            reference_ms: now_ms.saturating_sub(age_ms),
        }
    }
}

/// A datagram to send back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    bytes: [u8; SIGNED_LEN],
    len: usize,
}

impl Reply {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn plain(packet: &Packet) -> Self {
        let mut bytes = [0; SIGNED_LEN];
        bytes[..HEADER_LEN].copy_from_slice(&packet.encode());
        Self { bytes, len: HEADER_LEN }
    }

    fn nak(packet: &Packet) -> Self {
        Self { len: NAK_LEN, ..Self::plain(packet) }
    }

    fn signed(packet: &Packet, key: &TimeKey) -> Self {
        let mut this = Self { len: SIGNED_LEN, ..Self::plain(packet) };
        this.bytes[HEADER_LEN..NAK_LEN].copy_from_slice(&key.id().to_be_bytes());
        this.bytes[NAK_LEN..].copy_from_slice(&key.tag(&packet.encode()));
        this
    }
}

/// How a request was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Answered, without a MAC.
    Plain,
    /// Answered, with a MAC.
    Signed,
    /// The MAC is under no key of ours, or wrong.
    BadMac,
    /// Too many questions.
    Limited,
    /// No request.
    Malformed,
    /// No room to keep another address.
    NoRoom,
}

/// What comes of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it was taken.
    pub verdict: Verdict,
    /// What is sent back, if anything.
    pub reply: Option<Reply>,
}

/// How many of each verdict there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// [`Verdict::Plain`].
    pub plain: u64,
    /// [`Verdict::Signed`].
    pub signed: u64,
    /// [`Verdict::BadMac`].
    pub bad_mac: u64,
    /// [`Verdict::Limited`].
    pub limited: u64,
    /// [`Verdict::Malformed`].
    pub malformed: u64,
    /// [`Verdict::NoRoom`].
    pub no_room: u64,
}

/// What one has left to ask.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Questions times [`Rate::per_ms`].
    tokens: u64,
    at_ms: u64,
    kissed_ms: Option<u64>,
}

/// May he ask?
enum Turn {
    Yes,
    /// No, and he is told so.
    Kiss,
    /// No, and he was told so lately.
    No,
    NoRoom,
}

struct Buckets<K>(BTreeMap<K, Bucket>, u64);

impl<K: Ord + Copy> Buckets<K> {
    const fn new() -> Self {
        Self(BTreeMap::new(), 0)
    }

    fn take(&mut self, who: K, now_ms: u64) -> Turn {
        let full = u64::from(RATE.burst) * RATE.per_ms;
        if self.0.len() >= SOURCES_MAX && !self.0.contains_key(&who) {
            // Looking through all of them at every request would be an attack in itself.
            if now_ms.saturating_sub(self.1) < RATE.per_ms {
                return Turn::NoRoom;
            }
            self.1 = now_ms;
            self.0.retain(|_, bucket| now_ms.saturating_sub(bucket.at_ms) < FORGET_MS);
            if self.0.len() >= SOURCES_MAX {
                return Turn::NoRoom;
            }
        }
        let bucket = self.0.entry(who).or_insert(Bucket { tokens: full, at_ms: now_ms, kissed_ms: None });
        bucket.tokens = bucket.tokens.saturating_add(now_ms.saturating_sub(bucket.at_ms)).min(full);
        bucket.at_ms = now_ms;
        if let Some(left) = bucket.tokens.checked_sub(RATE.per_ms) {
            bucket.tokens = left;
            return Turn::Yes;
        }
        if bucket.kissed_ms.is_some_and(|at| now_ms.saturating_sub(at) < KISS_EVERY_MS) {
            return Turn::No;
        }
        bucket.kissed_ms = Some(now_ms);
        Turn::Kiss
    }
}

/// A datagram that came.
#[derive(Clone, Copy, Debug)]
pub struct Came<'a> {
    /// Its bytes.
    pub datagram: &'a [u8],
    /// Who sent it.
    pub source: Source,
    /// What rates go by, milliseconds from any moment on.
    pub stopwatch_ms: u64,
    /// When it came, milliseconds since 1970.
    pub received_ms: u64,
    /// When its answer leaves, milliseconds since 1970.
    pub now_ms: u64,
}

/// The server.
pub struct Responder {
    by_source: Buckets<Source>,
    by_key: Buckets<u32>,
    counts: Counts,
}

impl Default for Responder {
    fn default() -> Self {
        Self { by_source: Buckets::new(), by_key: Buckets::new(), counts: Counts::default() }
    }
}

impl Responder {
    /// How many there were of each.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Answers a datagram. `key` finds the key of a number.
    pub fn answer(
        &mut self,
        came: &Came<'_>,
        state: &ClockState,
        key: impl FnOnce(u32) -> Option<TimeKey>,
    ) -> Answer {
        let answer = self.decide(came, state, key);
        let count = match answer.verdict {
            Verdict::Plain => &mut self.counts.plain,
            Verdict::Signed => &mut self.counts.signed,
            Verdict::BadMac => &mut self.counts.bad_mac,
            Verdict::Limited => &mut self.counts.limited,
            Verdict::Malformed => &mut self.counts.malformed,
            Verdict::NoRoom => &mut self.counts.no_room,
        };
        *count += 1;
        debug_assert!(answer.reply.is_none_or(|reply| reply.len <= came.datagram.len()));
        answer
    }

    fn decide(
        &mut self,
        came: &Came<'_>,
        state: &ClockState,
        key: impl FnOnce(u32) -> Option<TimeKey>,
    ) -> Answer {
        let Came { datagram, source, stopwatch_ms, received_ms, now_ms } = *came;
        let none = |verdict| Answer { verdict, reply: None };
        // Two servers that answer each other's answers would never end.
        let Ok((request, trailer)) = Packet::parse(datagram) else { return none(Verdict::Malformed) };
        if request.mode != Mode::Client || request.transmit == Stamp::NONE || trailer == Trailer::Nak {
            return none(Verdict::Malformed);
        }
        let told = Packet {
            leap: state.leap,
            version: request.version,
            mode: Mode::Server,
            stratum: state.stratum,
            poll: request.poll,
            precision: PRECISION,
            root_delay: Short::of_ms(state.root_delay_ms),
            root_dispersion: Short::of_ms(state.root_dispersion_ms),
            reference_id: state.reference_id,
            reference: Stamp::of_ms(state.reference_ms),
            origin: request.transmit,
            receive: Stamp::of_ms(received_ms),
            transmit: Stamp::of_ms(now_ms.max(received_ms)),
        };
        let refused = Packet { leap: Leap::Unsynchronised, stratum: 0, reference_id: kiss::RATE, ..told };
        let Trailer::Signed { key_id, tag } = trailer else {
            return match self.by_source.take(source, stopwatch_ms) {
                Turn::Yes => Answer { verdict: Verdict::Plain, reply: Some(Reply::plain(&told)) },
                Turn::Kiss => Answer { verdict: Verdict::Limited, reply: Some(Reply::plain(&refused)) },
                Turn::No => none(Verdict::Limited),
                Turn::NoRoom => none(Verdict::NoRoom),
            };
        };
        let header = datagram.first_chunk::<HEADER_LEN>();
        let good = key(key_id).filter(|key| header.is_some_and(|header| key.verifies(header, &tag)));
        match good {
            Some(key) => match self.by_key.take(key_id, stopwatch_ms) {
                Turn::Yes => Answer { verdict: Verdict::Signed, reply: Some(Reply::signed(&told, &key)) },
                Turn::Kiss => {
                    Answer { verdict: Verdict::Limited, reply: Some(Reply::signed(&refused, &key)) }
                }
                Turn::No => none(Verdict::Limited),
                Turn::NoRoom => none(Verdict::NoRoom),
            },
            None => match self.by_source.take(source, stopwatch_ms) {
                // The time is in it, and nobody who has a key believes it.
                Turn::Yes => Answer { verdict: Verdict::BadMac, reply: Some(Reply::nak(&told)) },
                Turn::Kiss | Turn::No => none(Verdict::Limited),
                Turn::NoRoom => none(Verdict::NoRoom),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::VERSION;
    use crate::query::{Query, Refusal};
    use core::net::{Ipv4Addr, Ipv6Addr};
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000_000;
    const STATE: ClockState = ClockState {
        leap: Leap::None,
        stratum: 10,
        reference_id: *b"LOCL",
        root_delay_ms: 0,
        root_dispersion_ms: 3,
        reference_ms: NOW,
    };

    #[test]
    fn a_clock_says_what_it_follows_and_how_far_off_it_may_be() {
        let own = ClockState::own(NOW);
        assert_eq!((own.stratum, own.reference_id, own.reference_ms), (10, *b"LOCL", NOW));
        let sample = Sample { offset_ms: 5, error_ms: 40, delay_ms: 30, at_ms: 0, stratum: 2 };
        let state = ClockState::following(&sample, 1_000_000, NOW);
        assert_eq!((state.stratum, state.root_delay_ms, state.root_dispersion_ms), (3, 30, 55));
        assert_eq!(state.reference_ms, NOW - 1_000_000);
        let worst = ClockState::following(&Sample { stratum: 15, ..sample }, u64::MAX, NOW);
        assert_eq!((worst.stratum, worst.root_dispersion_ms), (15, 1_000));
    }

    fn source(last: u32) -> Source {
        IpAddr::V4(Ipv4Addr::from_bits(last)).into()
    }

    fn came(datagram: &[u8], from: u32, stopwatch_ms: u64) -> Came<'_> {
        Came { datagram, source: source(from), stopwatch_ms, received_ms: NOW, now_ms: NOW }
    }

    fn key() -> TimeKey {
        TimeKey::new(77, [1; 16]).unwrap()
    }

    fn known(id: u32) -> Option<TimeKey> {
        (id == 77).then(key)
    }

    fn ask(server: &mut Responder, query: &Query, from: u32, at_ms: u64) -> Answer {
        server.answer(&Came { now_ms: NOW + 1, ..came(query.bytes(), from, at_ms) }, &STATE, known)
    }

    #[test]
    fn a_question_with_a_mac_gets_one_back_and_a_plain_one_does_not() {
        let mut server = Responder::default();
        for (with, len, verdict) in
            [(Some(key()), SIGNED_LEN, Verdict::Signed), (None, HEADER_LEN, Verdict::Plain)]
        {
            let query = Query::new(5, with, 100);
            let answer = ask(&mut server, &query, 1, 0);
            let reply = answer.reply.unwrap();
            assert_eq!((answer.verdict, reply.bytes().len()), (verdict, len));
            let sample = query.read(reply.bytes(), 102, NOW).unwrap();
            assert_eq!((sample.offset_ms, sample.stratum), (NOW as i64 - 101, 10));
        }
    }

    #[test]
    fn a_mac_of_nobody_is_answered_with_a_nak_that_nobody_believes() {
        let mut server = Responder::default();
        let stranger = TimeKey::new(78, [1; 16]).unwrap();
        let forger = TimeKey::new(77, [2; 16]).unwrap();
        for key in [stranger, forger] {
            let query = Query::new(5, Some(key), 100);
            let answer = ask(&mut server, &query, 1, 0);
            let reply = answer.reply.unwrap();
            assert_eq!((answer.verdict, reply.bytes().len()), (Verdict::BadMac, NAK_LEN));
            assert_eq!(query.read(reply.bytes(), 102, NOW), Err(Refusal::UnknownKey));
        }
        assert_eq!(server.counts().bad_mac, 2);
    }

    #[test]
    fn who_asks_too_often_gets_one_kiss_and_then_nothing() {
        let mut server = Responder::default();
        let query = Query::new(5, Some(key()), 100);
        let answers: std::vec::Vec<_> = (0..40).map(|_| ask(&mut server, &query, 1, 1_000)).collect();
        assert!(answers[..16].iter().all(|answer| answer.verdict == Verdict::Signed));
        assert_eq!(
            query.read(answers[16].reply.unwrap().bytes(), 102, NOW),
            Err(Refusal::Kiss(kiss::RATE)),
            "signed, so that it is believed"
        );
        assert!(
            answers[17..].iter().all(|answer| answer.verdict == Verdict::Limited && answer.reply.is_none())
        );
        assert_eq!(ask(&mut server, &query, 1, 2_000).verdict, Verdict::Signed, "a second later");
        assert!(ask(&mut server, &query, 1, 2_001).reply.is_none());
        assert!(ask(&mut server, &query, 1, 9_000).reply.is_some());
    }

    #[test]
    fn nobody_uses_up_the_rate_of_a_device() {
        let mut server = Responder::default();
        let junk = Query::new(5, TimeKey::new(77, [9; 16]), 100);
        let plain = Query::new(5, None, 100);
        for _ in 0..1_000 {
            ask(&mut server, &junk, 1, 0);
            ask(&mut server, &plain, 1, 0);
        }
        assert_eq!(ask(&mut server, &Query::new(6, Some(key()), 100), 1, 0).verdict, Verdict::Signed);
        assert_eq!(server.counts().limited, 2_000 - 16);
    }

    #[test]
    fn what_is_kept_of_strangers_is_bounded_and_forgotten() {
        let mut server = Responder::default();
        let query = Query::new(5, None, 100);
        let limit = SOURCES_MAX as u32;
        for from in 0..limit {
            assert_eq!(ask(&mut server, &query, from, 0).verdict, Verdict::Plain);
        }
        let one_more = ask(&mut server, &query, limit, 1_000);
        assert_eq!((one_more.verdict, one_more.reply), (Verdict::NoRoom, None));
        assert_eq!(ask(&mut server, &query, 3, 1_000).verdict, Verdict::Plain, "who is known");
        assert_eq!(ask(&mut server, &query, limit, FORGET_MS).verdict, Verdict::Plain);
        assert!(server.by_source.0.len() <= SOURCES_MAX);
    }

    #[test]
    fn an_answer_is_no_question() {
        let mut server = Responder::default();
        let query = Query::new(5, None, 100);
        let reply = ask(&mut server, &query, 1, 0).reply.unwrap();
        let again = server.answer(&came(reply.bytes(), 1, 0), &STATE, known);
        assert_eq!(again, Answer { verdict: Verdict::Malformed, reply: None });
    }

    #[test]
    fn addresses_are_told_apart_as_networks_give_them_out() {
        let v6 = |text: &str| Source::from(IpAddr::V6(text.parse::<Ipv6Addr>().unwrap()));
        assert_eq!(v6("2001:db8::1"), v6("2001:db8::ffff:1"));
        assert_ne!(v6("2001:db8::1"), v6("2001:db8:0:1::1"));
        assert_eq!(v6("::ffff:0.0.0.9"), source(9));
        assert_ne!(source(9), source(10));
    }

    #[test]
    fn a_client_of_version_3_is_answered_in_version_3() {
        let mut request = Packet::request(Stamp(9));
        request.version = 3;
        let answer = Responder::default().answer(&came(&request.encode(), 1, 0), &STATE, known);
        let (packet, _) = Packet::parse(answer.reply.unwrap().bytes()).unwrap();
        assert_eq!((packet.version, packet.origin), (3, Stamp(9)));
        assert_eq!(VERSION, 4);
    }

    proptest! {
        /// Whatever comes, no more goes back.
        #[test]
        fn no_answer_is_longer_than_its_question(
            datagrams in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..120), any::<u8>()), 1..40),
        ) {
            let mut server = Responder::default();
            for (mut bytes, first) in datagrams {
                if let Some(byte) = bytes.first_mut() {
                    // Most of them look like requests.
                    *byte = if first & 3 == 0 { first } else { 0x23 };
                }
                let any_key = |id| TimeKey::new(id, [1; 16]);
                let answer = server.answer(&came(&bytes, 1, 0), &STATE, any_key);
                prop_assert!(answer.reply.is_none_or(|reply| reply.bytes().len() <= bytes.len()));
            }
        }
    }
}
