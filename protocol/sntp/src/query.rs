//! One query of a client, and the validation of its response.
//!
//! Does: creates the request, validates a response, and computes a sample of the server's clock.
//! Does not: send, wait, or adjust a clock; [`crate::Follower`] decides.
//! Contract: the request carries 64 random bits instead of a time, and a response must return them.
//! So an attacker that does not see the request cannot answer it, a replayed response does not
//! match, and our clock is not disclosed. With a key, only a response under that key is accepted,
//! kisses included. A rejected datagram does not end the query, because the genuine response may
//! follow.
//! Truth: RFC 5905 §8, §9.2; RFC 4330 §5.

use thiserror::Error;

use crate::key::TimeKey;
use crate::packet::{
    HEADER_LEN, LeapIndicator, NAK_LEN, NtpPacket, PacketError, PacketMode, SIGNED_LEN, Trailer,
};
use crate::stamp::NtpTimestamp;

/// Maximum round trip of an accepted response, in milliseconds: an attacker who delays packets
/// moves a clock by at most half of it.
pub const ROUND_TRIP_MAX_MS: u64 = 1_000;
/// Maximum distance of a server from its reference clock, in milliseconds (RFC 5905, MAXDIST).
pub const DISTANCE_MAX_MS: u64 = 1_500;
/// Stratum of an unsynchronised server.
const STRATUM_NONE: u8 = 16;
/// Maximum disagreement over one round trip of clocks with a precision of 1 ms.
const GRAIN_MS: u64 = 2;

/// Measurement from a valid response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// The server's clock in milliseconds since 1970, minus our stopwatch.
    pub offset_ms: i64,
    /// Maximum error in milliseconds: half of the round trip, and the server's own error.
    pub error_ms: u64,
    /// Round trip in milliseconds.
    pub delay_ms: u64,
    /// Time of receipt on our stopwatch.
    pub at_ms: u64,
    /// The server's distance from a reference clock, in steps.
    pub stratum: u8,
}

/// Reason why a datagram was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ResponseError {
    /// The datagram is not a valid packet.
    #[error(transparent)]
    Malformed(#[from] PacketError),
    /// The datagram is a request, possibly our own reflected.
    #[error("a request, not a response")]
    Reflected,
    /// The response belongs to another query: a replay, or a guess.
    #[error("a response to another query")]
    NotOurs,
    /// The response has no MAC, although we have a key.
    #[error("a response without a MAC")]
    Unsigned,
    /// The MAC has another key, or is wrong.
    #[error("the MAC is not the server's")]
    WrongMac,
    /// The server could not verify our MAC: it has another key, or none.
    #[error("the server does not know our key")]
    UnknownKey,
    /// The server sent a kiss-o'-death.
    #[error("kiss-o'-death {}", code(.0))]
    Kiss([u8; 4]),
    /// The server's clock is not synchronised.
    #[error("the server's clock is not set")]
    Unsynchronised,
    /// The timestamps are inconsistent.
    #[error("inconsistent timestamps")]
    Impossible,
    /// The round trip took too long.
    #[error("a round trip of {0} ms; the limit is {ROUND_TRIP_MAX_MS} ms")]
    Slow(u64),
    /// The server's own error is too large.
    #[error("the server's error may be {0} ms; the limit is {DISTANCE_MAX_MS} ms")]
    Distant(u64),
}

/// Wraps a kiss's code for display.
const fn code(bytes: &[u8; 4]) -> KissCode {
    KissCode(*bytes)
}

struct KissCode([u8; 4]);

impl core::fmt::Display for KissCode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0
            .iter()
            .filter(|byte| byte.is_ascii_graphic())
            .try_for_each(|byte| write!(f, "{}", *byte as char))
    }
}

impl ResponseError {
    /// Returns the name in logs and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::Reflected => "reflected",
            Self::NotOurs => "not_ours",
            Self::Unsigned => "unsigned",
            Self::WrongMac => "wrong_mac",
            Self::UnknownKey => "unknown_key",
            Self::Kiss(_) => "kiss",
            Self::Unsynchronised => "unsynchronised",
            Self::Impossible => "impossible",
            Self::Slow(_) => "slow",
            Self::Distant(_) => "distant",
        }
    }

    /// Whether the datagram is probably forged, rather than slow or from a server that is not
    /// ready.
    #[must_use]
    pub const fn is_suspect(&self) -> bool {
        match self {
            Self::Malformed(_)
            | Self::Reflected
            | Self::NotOurs
            | Self::Unsigned
            | Self::WrongMac
            | Self::Impossible => true,
            Self::UnknownKey | Self::Kiss(_) | Self::Unsynchronised | Self::Slow(_) | Self::Distant(_) => {
                false
            }
        }
    }
}

/// A pending query.
pub struct TimeQuery {
    request: [u8; SIGNED_LEN],
    len: usize,
    origin: NtpTimestamp,
    key: Option<TimeKey>,
    sent_ms: u64,
}

impl TimeQuery {
    /// Creates a query sent at `sent_ms` of our stopwatch. The response must return `random`.
    #[must_use]
    pub fn new(random: u64, key: Option<TimeKey>, sent_ms: u64) -> Self {
        // Zero means that there is no timestamp.
        let origin = NtpTimestamp(random.max(1));
        let header = NtpPacket::request(origin).encode();
        let mut request = [0; SIGNED_LEN];
        request[..HEADER_LEN].copy_from_slice(&header);
        let len = match &key {
            None => HEADER_LEN,
            Some(key) => {
                request[HEADER_LEN..NAK_LEN].copy_from_slice(&key.id().to_be_bytes());
                request[NAK_LEN..].copy_from_slice(&key.tag(&header));
                SIGNED_LEN
            }
        };
        Self { request, len, origin, key, sent_ms }
    }

    /// Returns the datagram to send.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.request[..self.len]
    }

    /// Validates a datagram received at `received_ms` of our stopwatch; `near_ms` is within decades
    /// of the time.
    ///
    /// # Errors
    /// [`ResponseError`]; the query still waits.
    pub fn read(
        &self,
        datagram: &[u8],
        received_ms: u64,
        near_ms: u64,
    ) -> Result<ClockSample, ResponseError> {
        let (packet, trailer) = NtpPacket::parse(datagram)?;
        if packet.mode != PacketMode::Server {
            return Err(ResponseError::Reflected);
        }
        if packet.origin != self.origin {
            return Err(ResponseError::NotOurs);
        }
        self.check_mac(datagram, trailer)?;
        if packet.stratum == 0 {
            return Err(ResponseError::Kiss(packet.reference_id));
        }
        if packet.leap == LeapIndicator::Unsynchronised || packet.stratum >= STRATUM_NONE {
            return Err(ResponseError::Unsynchronised);
        }
        let time = |stamp: NtpTimestamp| stamp.to_ms(near_ms).ok_or(ResponseError::Impossible);
        let (receive_ms, transmit_ms) = (time(packet.receive)?, time(packet.transmit)?);
        let held_ms = transmit_ms.checked_sub(receive_ms).ok_or(ResponseError::Impossible)?;
        let round_trip_ms = received_ms.checked_sub(self.sent_ms).ok_or(ResponseError::Impossible)?;
        if held_ms > round_trip_ms.saturating_add(GRAIN_MS) {
            return Err(ResponseError::Impossible);
        }
        if round_trip_ms > ROUND_TRIP_MAX_MS {
            return Err(ResponseError::Slow(round_trip_ms));
        }
        let distance_ms = packet.root_delay.to_ms() / 2 + packet.root_dispersion.to_ms();
        if distance_ms > DISTANCE_MAX_MS {
            return Err(ResponseError::Distant(distance_ms));
        }
        let delay_ms = round_trip_ms.saturating_sub(held_ms);
        let [there, back] = [(receive_ms, self.sent_ms), (transmit_ms, received_ms)]
            .map(|(theirs, ours)| i128::from(theirs) - i128::from(ours));
        let offset_ms = i64::try_from((there + back).div_euclid(2)).map_err(|_| ResponseError::Impossible)?;
        Ok(ClockSample {
            offset_ms,
            error_ms: delay_ms.div_ceil(2) + distance_ms + 1,
            delay_ms,
            at_ms: received_ms,
            stratum: packet.stratum,
        })
    }

    fn check_mac(&self, datagram: &[u8], trailer: Trailer) -> Result<(), ResponseError> {
        match (&self.key, trailer) {
            (None, Trailer::Plain) => Ok(()),
            // A client without a key did not request a MAC.
            (None, _) => Err(ResponseError::WrongMac),
            (Some(_), Trailer::Plain) => Err(ResponseError::Unsigned),
            (Some(_), Trailer::Nak) => Err(ResponseError::UnknownKey),
            (Some(key), Trailer::Signed { key_id, tag }) => {
                let header = datagram.first_chunk::<HEADER_LEN>();
                let good = key_id == key.id() && header.is_some_and(|header| key.verifies(header, &tag));
                if good { Ok(()) } else { Err(ResponseError::WrongMac) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{NtpShort, VERSION};
    use proptest::prelude::*;
    use std::vec::Vec;

    const NOW: u64 = 1_800_000_000_000;
    /// Our stopwatch when the query was sent.
    const SENT: u64 = 5_000;

    fn key() -> TimeKey {
        TimeKey::new(0x1234, [7; 16]).unwrap()
    }

    fn good() -> NtpPacket {
        NtpPacket {
            leap: LeapIndicator::None,
            version: VERSION,
            mode: PacketMode::Server,
            stratum: 3,
            poll: 6,
            precision: -9,
            root_delay: NtpShort::of_ms(10),
            root_dispersion: NtpShort::of_ms(5),
            reference_id: *b"LOCL",
            reference: NtpTimestamp::of_ms(NOW - 10_000),
            origin: NtpTimestamp(99),
            receive: NtpTimestamp::of_ms(NOW + 40),
            transmit: NtpTimestamp::of_ms(NOW + 50),
        }
    }

    fn signed(packet: &NtpPacket, key: &TimeKey) -> Vec<u8> {
        let header = packet.encode();
        let mut bytes = Vec::from(header);
        bytes.extend(key.id().to_be_bytes());
        bytes.extend(key.tag(&header));
        bytes
    }

    /// Validates a packet received 100 ms after a signed query.
    fn read(packet: &NtpPacket) -> Result<ClockSample, ResponseError> {
        TimeQuery::new(99, Some(key()), SENT).read(&signed(packet, &key()), SENT + 100, NOW)
    }

    #[test]
    fn response_gives_offset_within_half_round_trip() {
        let sample = read(&good()).unwrap();
        // Received at NOW+40 and sent at NOW+50, in the middle of SENT and SENT+100.
        assert_eq!(sample.offset_ms, (NOW + 45) as i64 - (SENT + 50) as i64);
        assert_eq!((sample.delay_ms, sample.error_ms, sample.stratum), (90, 45 + 5 + 5 + 1 + 1, 3));
        let plain = TimeQuery::new(99, None, SENT);
        assert_eq!(plain.read(&good().encode(), SENT + 100, NOW), Ok(sample));
        assert_eq!(plain.bytes().len(), HEADER_LEN);
    }

    #[test]
    fn each_invalid_field_has_its_error() {
        let with = |change: &dyn Fn(&mut NtpPacket)| {
            let mut packet = good();
            change(&mut packet);
            read(&packet).map(|_| ()).map_err(|refusal| refusal.name())
        };
        assert_eq!(with(&|_| ()), Ok(()));
        assert_eq!(with(&|p| p.mode = PacketMode::Client), Err("reflected"));
        assert_eq!(with(&|p| p.origin = NtpTimestamp(98)), Err("not_ours"));
        assert_eq!(with(&|p| p.stratum = 0), Err("kiss"));
        assert_eq!(with(&|p| p.stratum = 16), Err("unsynchronised"));
        assert_eq!(with(&|p| p.leap = LeapIndicator::Unsynchronised), Err("unsynchronised"));
        assert_eq!(with(&|p| p.receive = NtpTimestamp::NONE), Err("impossible"));
        assert_eq!(
            with(&|p| p.transmit = NtpTimestamp::of_ms(NOW + 39)),
            Err("impossible"),
            "before it came"
        );
        assert_eq!(
            with(&|p| p.transmit = NtpTimestamp::of_ms(NOW + 143)),
            Err("impossible"),
            "held longer than it took"
        );
        assert_eq!(with(&|p| p.transmit = NtpTimestamp::of_ms(NOW + 142)), Ok(()));
        assert_eq!(with(&|p| p.root_dispersion = NtpShort::of_ms(1_496)), Err("distant"));
        assert_eq!(with(&|p| p.root_dispersion = NtpShort::of_ms(1_490)), Ok(()));
    }

    #[test]
    fn with_a_key_only_signed_responses_count() {
        let query = TimeQuery::new(99, Some(key()), SENT);
        let read = |bytes: &[u8]| query.read(bytes, SENT + 100, NOW).unwrap_err();
        assert_eq!(read(&good().encode()), ResponseError::Unsigned);
        let mut nak = Vec::from(good().encode());
        nak.extend([0; 4]);
        assert_eq!(read(&nak), ResponseError::UnknownKey);
        let same_number = TimeKey::new(0x1234, [8; 16]).unwrap();
        assert_eq!(read(&signed(&good(), &same_number)), ResponseError::WrongMac);
        let other_number = TimeKey::new(0x1235, [7; 16]).unwrap();
        assert_eq!(read(&signed(&good(), &other_number)), ResponseError::WrongMac);
        for bit in 0..SIGNED_LEN * 8 {
            let mut bytes = signed(&good(), &key());
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(query.read(&bytes, SENT + 100, NOW).is_err(), "bit {bit}");
        }
        // A forged kiss does not stop the queries.
        let kiss = NtpPacket { stratum: 0, reference_id: *b"DENY", ..good() };
        assert_eq!(read(&kiss.encode()), ResponseError::Unsigned);
        let without = TimeQuery::new(99, None, SENT);
        assert_eq!(without.read(&signed(&good(), &key()), SENT + 100, NOW), Err(ResponseError::WrongMac));
    }

    #[test]
    fn response_delayed_above_limit_is_rejected() {
        let query = TimeQuery::new(99, Some(key()), SENT);
        let bytes = signed(&good(), &key());
        assert!(query.read(&bytes, SENT + ROUND_TRIP_MAX_MS, NOW).is_ok());
        assert_eq!(query.read(&bytes, SENT + 1_001, NOW), Err(ResponseError::Slow(1_001)));
        assert_eq!(query.read(&bytes, SENT - 1, NOW), Err(ResponseError::Impossible));
    }

    #[test]
    fn request_hides_time_and_reflection_is_rejected() {
        let query = TimeQuery::new(0, Some(key()), SENT);
        let (packet, _) = NtpPacket::parse(query.bytes()).unwrap();
        assert_eq!(packet, NtpPacket::request(NtpTimestamp(1)));
        assert_eq!(query.read(query.bytes(), SENT + 1, NOW), Err(ResponseError::Reflected));
    }

    #[test]
    fn kisses_display_their_code() {
        assert_eq!(std::format!("{}", ResponseError::Kiss(*b"RATE")), "kiss-o'-death RATE");
        assert_eq!(std::format!("{}", ResponseError::Kiss([0, 0x1B, b'A', 0xFF])), "kiss-o'-death A");
    }

    proptest! {
        #[test]
        fn any_datagram_parses_or_fails(bytes in proptest::collection::vec(any::<u8>(), 0..140), at: u64, near: u64) {
            let _ = TimeQuery::new(1, None, 0).read(&bytes, at, near);
            let _ = TimeQuery::new(1, Some(key()), 0).read(&bytes, at, near);
        }
    }
}
