//! A server's responses.
//!
//! Does: answers requests with and without MAC, refuses with a crypto-NAK or a kiss-o'-death,
//! enforces rate limits.
//! Does not: read a clock or store keys; the caller supplies both.
//! Contract: a response is never longer than its request, so a forged source address gives no
//! amplification. A client with a valid MAC has its own rate limit, which only an attacker with
//! recorded requests can use up; all others are limited by address. The limiter's memory is
//! bounded, and served times do not depend on it.
//! Truth: RFC 5905 §9.2 (fields of a response), RFC 4330 §6 and §8 (kiss-o'-death).

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use crate::key::TimeKey;
use crate::packet::{
    HEADER_LEN, LeapIndicator, NAK_LEN, NtpPacket, NtpShort, PacketMode, SIGNED_LEN, Trailer, kiss,
};
use crate::query::ClockSample;
use crate::stamp::NtpTimestamp;

/// Maximum number of rate-limited addresses, and of keys.
pub const SOURCES_MAX: usize = 4096;
/// Rate limit of one address or key.
pub const RATE: RequestRate = RequestRate { burst: 16, per_ms: 1_000 };
/// Minimum interval of kisses to one client, in milliseconds; further requests meanwhile are
/// dropped.
pub const KISS_EVERY_MS: u64 = 8_000;
/// Time without requests after which an address may be forgotten, in milliseconds.
const FORGET_MS: u64 = RATE.burst as u64 * RATE.per_ms;
/// Precision of the clock: 2^-9 seconds.
const PRECISION: i8 = -9;

/// A rate limit with burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRate {
    /// Maximum requests at once.
    pub burst: u32,
    /// Milliseconds until another request is allowed.
    pub per_ms: u64,
}

/// A rate-limited source: an IPv4 address, or the first 64 bits of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestSource(u128);

impl From<IpAddr> for RequestSource {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
            IpAddr::V6(address) => address.to_bits() >> 64 << 64,
        })
    }
}

/// State of the server's clock, as sent in responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockState {
    /// Leap indicator.
    pub leap: LeapIndicator,
    /// Steps from a reference clock.
    pub stratum: u8,
    /// Id of the reference clock.
    pub reference_id: [u8; 4],
    /// Round trip to it, in milliseconds.
    pub root_delay_ms: u64,
    /// Maximum error of our clock, in milliseconds.
    pub root_dispersion_ms: u64,
    /// Time at which it was last set, in milliseconds since 1970.
    pub reference_ms: u64,
}

/// Assumed error of a clock that follows no server, in milliseconds.
const OWN_ERROR_MS: u64 = 10;
/// Stratum of a clock that follows no server.
const OWN_STRATUM: u8 = 10;
/// Drift of a good clock, in millionths (RFC 5905, PHI).
const DRIFT_PPM: u64 = 15;
/// Maximum reported dispersion of a following clock, in milliseconds. Devices need its time,
/// however long its own server was unreachable.
const DISPERSION_MAX_MS: u64 = 1_000;
/// Largest stratum.
const STRATUM_MAX: u8 = 15;

impl ClockState {
    /// Returns the state of a clock that follows no server.
    #[must_use]
    pub const fn own(now_ms: u64) -> Self {
        Self {
            leap: LeapIndicator::None,
            stratum: OWN_STRATUM,
            reference_id: *b"LOCL",
            root_delay_ms: 0,
            root_dispersion_ms: OWN_ERROR_MS,
            reference_ms: now_ms,
        }
    }

    /// Returns the state of a clock that follows the server of this sample, received `age_ms` ago.
    #[must_use]
    pub fn following(sample: &ClockSample, age_ms: u64, now_ms: u64) -> Self {
        let drifted_ms = age_ms.saturating_mul(DRIFT_PPM) / 1_000_000;
        Self {
            leap: LeapIndicator::None,
            stratum: sample.stratum.saturating_add(1).min(STRATUM_MAX),
            // A fixed id: for IPv6 servers it would be a hash, and it only serves to detect loops,
            // of which there are none here.
            reference_id: *b"SNTP",
            root_delay_ms: sample.delay_ms,
            root_dispersion_ms: sample.error_ms.saturating_add(drifted_ms).min(DISPERSION_MAX_MS),
            reference_ms: now_ms.saturating_sub(age_ms),
        }
    }
}

/// A datagram to send back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyDatagram {
    bytes: [u8; SIGNED_LEN],
    len: usize,
}

impl ReplyDatagram {
    /// Returns its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn plain(packet: &NtpPacket) -> Self {
        let mut bytes = [0; SIGNED_LEN];
        bytes[..HEADER_LEN].copy_from_slice(&packet.encode());
        Self { bytes, len: HEADER_LEN }
    }

    fn nak(packet: &NtpPacket) -> Self {
        Self { len: NAK_LEN, ..Self::plain(packet) }
    }

    fn signed(packet: &NtpPacket, key: &TimeKey) -> Self {
        let mut this = Self { len: SIGNED_LEN, ..Self::plain(packet) };
        this.bytes[HEADER_LEN..NAK_LEN].copy_from_slice(&key.id().to_be_bytes());
        this.bytes[NAK_LEN..].copy_from_slice(&key.tag(&packet.encode()));
        this
    }
}

/// How a request was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestVerdict {
    /// Answered without a MAC.
    Plain,
    /// Answered with a MAC.
    Signed,
    /// The MAC is wrong, or its key is unknown.
    BadMac,
    /// The rate limit was exceeded.
    Limited,
    /// The datagram is no valid request.
    Malformed,
    /// The table of addresses is full.
    NoRoom,
}

/// Result of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeResponse {
    /// How it was handled.
    pub verdict: RequestVerdict,
    /// The response, if any.
    pub reply: Option<ReplyDatagram>,
}

/// Number of requests by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Count of [`RequestVerdict::Plain`].
    pub plain: u64,
    /// Count of [`RequestVerdict::Signed`].
    pub signed: u64,
    /// Count of [`RequestVerdict::BadMac`].
    pub bad_mac: u64,
    /// Count of [`RequestVerdict::Limited`].
    pub limited: u64,
    /// Count of [`RequestVerdict::Malformed`].
    pub malformed: u64,
    /// Count of [`RequestVerdict::NoRoom`].
    pub no_room: u64,
}

/// Token bucket of one source or key.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    /// Remaining requests times [`RequestRate::per_ms`].
    tokens: u64,
    at_ms: u64,
    kissed_ms: Option<u64>,
}

/// Decision of the rate limiter.
enum RateDecision {
    Yes,
    /// Limited; send a kiss.
    Kiss,
    /// Limited; a kiss was sent recently.
    No,
    NoRoom,
}

struct TokenBuckets<K>(BTreeMap<K, TokenBucket>, u64);

impl<K: Ord + Copy> TokenBuckets<K> {
    const fn new() -> Self {
        Self(BTreeMap::new(), 0)
    }

    fn take(&mut self, bucket_key: K, now_ms: u64) -> RateDecision {
        let full = u64::from(RATE.burst) * RATE.per_ms;
        if self.0.len() >= SOURCES_MAX && !self.0.contains_key(&bucket_key) {
            // Scanning the whole table at every request would enable a denial of service.
            if now_ms.saturating_sub(self.1) < RATE.per_ms {
                return RateDecision::NoRoom;
            }
            self.1 = now_ms;
            self.0.retain(|_, bucket| now_ms.saturating_sub(bucket.at_ms) < FORGET_MS);
            if self.0.len() >= SOURCES_MAX {
                return RateDecision::NoRoom;
            }
        }
        let bucket =
            self.0.entry(bucket_key).or_insert(TokenBucket { tokens: full, at_ms: now_ms, kissed_ms: None });
        bucket.tokens = bucket.tokens.saturating_add(now_ms.saturating_sub(bucket.at_ms)).min(full);
        bucket.at_ms = now_ms;
        if let Some(left) = bucket.tokens.checked_sub(RATE.per_ms) {
            bucket.tokens = left;
            return RateDecision::Yes;
        }
        if bucket.kissed_ms.is_some_and(|at| now_ms.saturating_sub(at) < KISS_EVERY_MS) {
            return RateDecision::No;
        }
        bucket.kissed_ms = Some(now_ms);
        RateDecision::Kiss
    }
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Its bytes.
    pub datagram: &'a [u8],
    /// Its sender.
    pub source: RequestSource,
    /// Monotonic time for rate limits, in milliseconds.
    pub stopwatch_ms: u64,
    /// Time of receipt, in milliseconds since 1970.
    pub received_ms: u64,
    /// Time of the response, in milliseconds since 1970.
    pub now_ms: u64,
}

/// The server.
pub struct Responder {
    by_source: TokenBuckets<RequestSource>,
    by_key: TokenBuckets<u32>,
    counts: RequestCounts,
}

impl Default for Responder {
    fn default() -> Self {
        Self { by_source: TokenBuckets::new(), by_key: TokenBuckets::new(), counts: RequestCounts::default() }
    }
}

impl Responder {
    /// Returns the number of requests by verdict.
    #[must_use]
    pub const fn counts(&self) -> RequestCounts {
        self.counts
    }

    /// Answers a datagram. `key` looks up the key of a number.
    pub fn answer(
        &mut self,
        received: &Datagram<'_>,
        state: &ClockState,
        key: impl FnOnce(u32) -> Option<TimeKey>,
    ) -> TimeResponse {
        let answer = self.decide(received, state, key);
        let count = match answer.verdict {
            RequestVerdict::Plain => &mut self.counts.plain,
            RequestVerdict::Signed => &mut self.counts.signed,
            RequestVerdict::BadMac => &mut self.counts.bad_mac,
            RequestVerdict::Limited => &mut self.counts.limited,
            RequestVerdict::Malformed => &mut self.counts.malformed,
            RequestVerdict::NoRoom => &mut self.counts.no_room,
        };
        *count += 1;
        debug_assert!(answer.reply.is_none_or(|reply| reply.len <= received.datagram.len()));
        answer
    }

    fn decide(
        &mut self,
        received: &Datagram<'_>,
        state: &ClockState,
        key: impl FnOnce(u32) -> Option<TimeKey>,
    ) -> TimeResponse {
        let Datagram { datagram, source, stopwatch_ms, received_ms, now_ms } = *received;
        let none = |verdict| TimeResponse { verdict, reply: None };
        // Two servers that answered each other's responses would loop forever.
        let Ok((request, trailer)) = NtpPacket::parse(datagram) else {
            return none(RequestVerdict::Malformed);
        };
        if request.mode != PacketMode::Client
            || request.transmit == NtpTimestamp::NONE
            || trailer == Trailer::Nak
        {
            return none(RequestVerdict::Malformed);
        }
        let response = NtpPacket {
            leap: state.leap,
            version: request.version,
            mode: PacketMode::Server,
            stratum: state.stratum,
            poll: request.poll,
            precision: PRECISION,
            root_delay: NtpShort::of_ms(state.root_delay_ms),
            root_dispersion: NtpShort::of_ms(state.root_dispersion_ms),
            reference_id: state.reference_id,
            reference: NtpTimestamp::of_ms(state.reference_ms),
            origin: request.transmit,
            receive: NtpTimestamp::of_ms(received_ms),
            transmit: NtpTimestamp::of_ms(now_ms.max(received_ms)),
        };
        let refused = NtpPacket {
            leap: LeapIndicator::Unsynchronised,
            stratum: 0,
            reference_id: kiss::RATE,
            ..response
        };
        let Trailer::Signed { key_id, tag } = trailer else {
            return match self.by_source.take(source, stopwatch_ms) {
                RateDecision::Yes => TimeResponse {
                    verdict: RequestVerdict::Plain,
                    reply: Some(ReplyDatagram::plain(&response)),
                },
                RateDecision::Kiss => TimeResponse {
                    verdict: RequestVerdict::Limited,
                    reply: Some(ReplyDatagram::plain(&refused)),
                },
                RateDecision::No => none(RequestVerdict::Limited),
                RateDecision::NoRoom => none(RequestVerdict::NoRoom),
            };
        };
        let header = datagram.first_chunk::<HEADER_LEN>();
        let good = key(key_id).filter(|key| header.is_some_and(|header| key.verifies(header, &tag)));
        match good {
            Some(key) => match self.by_key.take(key_id, stopwatch_ms) {
                RateDecision::Yes => TimeResponse {
                    verdict: RequestVerdict::Signed,
                    reply: Some(ReplyDatagram::signed(&response, &key)),
                },
                RateDecision::Kiss => TimeResponse {
                    verdict: RequestVerdict::Limited,
                    reply: Some(ReplyDatagram::signed(&refused, &key)),
                },
                RateDecision::No => none(RequestVerdict::Limited),
                RateDecision::NoRoom => none(RequestVerdict::NoRoom),
            },
            None => match self.by_source.take(source, stopwatch_ms) {
                // The response includes the time, but clients with a key do not accept it.
                RateDecision::Yes => TimeResponse {
                    verdict: RequestVerdict::BadMac,
                    reply: Some(ReplyDatagram::nak(&response)),
                },
                RateDecision::Kiss | RateDecision::No => none(RequestVerdict::Limited),
                RateDecision::NoRoom => none(RequestVerdict::NoRoom),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::VERSION;
    use crate::query::{ResponseError, TimeQuery};
    use core::net::{Ipv4Addr, Ipv6Addr};
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000_000;
    const STATE: ClockState = ClockState {
        leap: LeapIndicator::None,
        stratum: 10,
        reference_id: *b"LOCL",
        root_delay_ms: 0,
        root_dispersion_ms: 3,
        reference_ms: NOW,
    };

    #[test]
    fn clock_state_reports_stratum_and_error() {
        let own = ClockState::own(NOW);
        assert_eq!((own.stratum, own.reference_id, own.reference_ms), (10, *b"LOCL", NOW));
        let sample = ClockSample { offset_ms: 5, error_ms: 40, delay_ms: 30, at_ms: 0, stratum: 2 };
        let state = ClockState::following(&sample, 1_000_000, NOW);
        assert_eq!((state.stratum, state.root_delay_ms, state.root_dispersion_ms), (3, 30, 55));
        assert_eq!(state.reference_ms, NOW - 1_000_000);
        let worst = ClockState::following(&ClockSample { stratum: 15, ..sample }, u64::MAX, NOW);
        assert_eq!((worst.stratum, worst.root_dispersion_ms), (15, 1_000));
    }

    fn source(last: u32) -> RequestSource {
        IpAddr::V4(Ipv4Addr::from_bits(last)).into()
    }

    fn received(datagram: &[u8], from: u32, stopwatch_ms: u64) -> Datagram<'_> {
        Datagram { datagram, source: source(from), stopwatch_ms, received_ms: NOW, now_ms: NOW }
    }

    fn key() -> TimeKey {
        TimeKey::new(77, [1; 16]).unwrap()
    }

    fn known(id: u32) -> Option<TimeKey> {
        (id == 77).then(key)
    }

    fn ask(server: &mut Responder, query: &TimeQuery, from: u32, at_ms: u64) -> TimeResponse {
        server.answer(&Datagram { now_ms: NOW + 1, ..received(query.bytes(), from, at_ms) }, &STATE, known)
    }

    #[test]
    fn signed_request_gets_signed_response() {
        let mut server = Responder::default();
        for (with, len, verdict) in
            [(Some(key()), SIGNED_LEN, RequestVerdict::Signed), (None, HEADER_LEN, RequestVerdict::Plain)]
        {
            let query = TimeQuery::new(5, with, 100);
            let answer = ask(&mut server, &query, 1, 0);
            let reply = answer.reply.unwrap();
            assert_eq!((answer.verdict, reply.bytes().len()), (verdict, len));
            let sample = query.read(reply.bytes(), 102, NOW).unwrap();
            assert_eq!((sample.offset_ms, sample.stratum), (NOW as i64 - 101, 10));
        }
    }

    #[test]
    fn unknown_mac_gets_a_crypto_nak() {
        let mut server = Responder::default();
        let stranger = TimeKey::new(78, [1; 16]).unwrap();
        let forger = TimeKey::new(77, [2; 16]).unwrap();
        for key in [stranger, forger] {
            let query = TimeQuery::new(5, Some(key), 100);
            let answer = ask(&mut server, &query, 1, 0);
            let reply = answer.reply.unwrap();
            assert_eq!((answer.verdict, reply.bytes().len()), (RequestVerdict::BadMac, NAK_LEN));
            assert_eq!(query.read(reply.bytes(), 102, NOW), Err(ResponseError::UnknownKey));
        }
        assert_eq!(server.counts().bad_mac, 2);
    }

    #[test]
    fn rate_limited_client_gets_one_kiss() {
        let mut server = Responder::default();
        let query = TimeQuery::new(5, Some(key()), 100);
        let answers: std::vec::Vec<_> = (0..40).map(|_| ask(&mut server, &query, 1, 1_000)).collect();
        assert!(answers[..16].iter().all(|answer| answer.verdict == RequestVerdict::Signed));
        assert_eq!(
            query.read(answers[16].reply.unwrap().bytes(), 102, NOW),
            Err(ResponseError::Kiss(kiss::RATE)),
            "signed, so that it is believed"
        );
        assert!(
            answers[17..]
                .iter()
                .all(|answer| answer.verdict == RequestVerdict::Limited && answer.reply.is_none())
        );
        assert_eq!(ask(&mut server, &query, 1, 2_000).verdict, RequestVerdict::Signed, "a second later");
        assert!(ask(&mut server, &query, 1, 2_001).reply.is_none());
        assert!(ask(&mut server, &query, 1, 9_000).reply.is_some());
    }

    #[test]
    fn other_clients_do_not_use_up_device_rate() {
        let mut server = Responder::default();
        let junk = TimeQuery::new(5, TimeKey::new(77, [9; 16]), 100);
        let plain = TimeQuery::new(5, None, 100);
        for _ in 0..1_000 {
            ask(&mut server, &junk, 1, 0);
            ask(&mut server, &plain, 1, 0);
        }
        assert_eq!(
            ask(&mut server, &TimeQuery::new(6, Some(key()), 100), 1, 0).verdict,
            RequestVerdict::Signed
        );
        assert_eq!(server.counts().limited, 2_000 - 16);
    }

    #[test]
    fn source_table_is_bounded_and_expires() {
        let mut server = Responder::default();
        let query = TimeQuery::new(5, None, 100);
        let limit = SOURCES_MAX as u32;
        for from in 0..limit {
            assert_eq!(ask(&mut server, &query, from, 0).verdict, RequestVerdict::Plain);
        }
        let one_more = ask(&mut server, &query, limit, 1_000);
        assert_eq!((one_more.verdict, one_more.reply), (RequestVerdict::NoRoom, None));
        assert_eq!(ask(&mut server, &query, 3, 1_000).verdict, RequestVerdict::Plain, "who is known");
        assert_eq!(ask(&mut server, &query, limit, FORGET_MS).verdict, RequestVerdict::Plain);
        assert!(server.by_source.0.len() <= SOURCES_MAX);
    }

    #[test]
    fn response_is_not_a_request() {
        let mut server = Responder::default();
        let query = TimeQuery::new(5, None, 100);
        let reply = ask(&mut server, &query, 1, 0).reply.unwrap();
        let again = server.answer(&received(reply.bytes(), 1, 0), &STATE, known);
        assert_eq!(again, TimeResponse { verdict: RequestVerdict::Malformed, reply: None });
    }

    #[test]
    fn ipv6_sources_are_grouped_by_prefix() {
        let v6 = |text: &str| RequestSource::from(IpAddr::V6(text.parse::<Ipv6Addr>().unwrap()));
        assert_eq!(v6("2001:db8::1"), v6("2001:db8::ffff:1"));
        assert_ne!(v6("2001:db8::1"), v6("2001:db8:0:1::1"));
        assert_eq!(v6("::ffff:0.0.0.9"), source(9));
        assert_ne!(source(9), source(10));
    }

    #[test]
    fn version_3_client_gets_version_3() {
        let mut request = NtpPacket::request(NtpTimestamp(9));
        request.version = 3;
        let answer = Responder::default().answer(&received(&request.encode(), 1, 0), &STATE, known);
        let (packet, _) = NtpPacket::parse(answer.reply.unwrap().bytes()).unwrap();
        assert_eq!((packet.version, packet.origin), (3, NtpTimestamp(9)));
        assert_eq!(VERSION, 4);
    }

    proptest! {
        /// For any datagrams, a response is never longer than the request.
        #[test]
        fn no_response_is_longer_than_its_request(
            datagrams in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..120), any::<u8>()), 1..40),
        ) {
            let mut server = Responder::default();
            for (mut bytes, first) in datagrams {
                if let Some(byte) = bytes.first_mut() {
                    // Most of them look like requests.
                    *byte = if first & 3 == 0 { first } else { 0x23 };
                }
                let any_key = |id| TimeKey::new(id, [1; 16]);
                let answer = server.answer(&received(&bytes, 1, 0), &STATE, any_key);
                prop_assert!(answer.reply.is_none_or(|reply| reply.bytes().len() <= bytes.len()));
            }
        }
    }
}
