//! One question to a server, and which answers to it count.
//!
//! Does: make the request, check an answer, say what it tells of the server's clock. Does not: send, wait, or decide what
//! to do about it; [`crate::Follower`] decides.
//! Contract: the request shows 64 random bits instead of a time, and an answer must bring them back: whoever does not see
//! the question cannot answer it, an old answer fits no later question, and nobody learns our clock. With a key, nothing
//! but an answer under this very key counts, kisses included. A datagram that is refused does not end the query: the true
//! answer may still come.
//! Truth: RFC 5905 §8, §9.2; RFC 4330 §5.

use thiserror::Error;

use crate::key::TimeKey;
use crate::packet::{HEADER_LEN, Leap, Mode, NAK_LEN, Packet, PacketError, SIGNED_LEN, Trailer};
use crate::stamp::Stamp;

/// Longest round trip that says something of the time, milliseconds: an attacker who holds packets back moves a clock by
/// half of it at most.
pub const ROUND_TRIP_MAX_MS: u64 = 1_000;
/// Furthest that a server may be from its reference clock, milliseconds (RFC 5905, MAXDIST).
pub const DISTANCE_MAX_MS: u64 = 1_500;
/// The stratum that is none.
const STRATUM_NONE: u8 = 16;
/// Clocks that tell whole milliseconds may disagree by so many over one round trip.
const GRAIN_MS: u64 = 2;

/// What a good answer tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The server's clock, milliseconds since 1970, minus our stopwatch.
    pub offset_ms: i64,
    /// How far off that may be, milliseconds: half of the way, and how far the server says to be off.
    pub error_ms: u64,
    /// The way there and back, milliseconds.
    pub delay_ms: u64,
    /// When it came in, by our stopwatch.
    pub at_ms: u64,
    /// The server's distance from a reference clock, in steps.
    pub stratum: u8,
}

/// Why a datagram is no answer, or none to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// No packet.
    #[error(transparent)]
    Malformed(#[from] PacketError),
    /// A request, ours perhaps, sent back.
    #[error("a request, not an answer")]
    Reflected,
    /// It answers another question: an old answer, or a guess.
    #[error("an answer to another question")]
    NotOurs,
    /// No MAC, though we have a key.
    #[error("an answer without a MAC")]
    Unsigned,
    /// Another key's MAC, or none of this packet.
    #[error("the MAC is not the server's")]
    WrongMac,
    /// The server could not check our MAC: it has another key for us, or none.
    #[error("the server does not know our key")]
    UnknownKey,
    /// The server asks to be left alone.
    #[error("kiss-o'-death {}", code(.0))]
    Kiss([u8; 4]),
    /// The server has no time to give.
    #[error("the server's clock is not set")]
    Unsynchronised,
    /// Stamps that no clock makes.
    #[error("times that cannot be")]
    Impossible,
    /// It took too long.
    #[error("a round trip of {0} ms: at most {ROUND_TRIP_MAX_MS}")]
    Slow(u64),
    /// The server itself may be too far off.
    #[error("the server may be {0} ms off: at most {DISTANCE_MAX_MS}")]
    Distant(u64),
}

/// A kiss's code for people.
const fn code(bytes: &[u8; 4]) -> Code {
    Code(*bytes)
}

struct Code([u8; 4]);

impl core::fmt::Display for Code {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0
            .iter()
            .filter(|byte| byte.is_ascii_graphic())
            .try_for_each(|byte| write!(f, "{}", *byte as char))
    }
}

impl Refusal {
    /// Its name in logs and figures.
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

    /// Does it say that somebody lies, rather than that something is slow, away or not ready?
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

/// A question that waits for its answer.
pub struct Query {
    request: [u8; SIGNED_LEN],
    len: usize,
    origin: Stamp,
    key: Option<TimeKey>,
    sent_ms: u64,
}

impl Query {
    /// A question asked now, `sent_ms` by our stopwatch. `random` is what an answer must bring back.
    #[must_use]
    pub fn new(random: u64, key: Option<TimeKey>, sent_ms: u64) -> Self {
        // Zero would say that there is no stamp.
        let origin = Stamp(random.max(1));
        let header = Packet::request(origin).encode();
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

    /// The datagram to send.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.request[..self.len]
    }

    /// What a datagram tells that came at `received_ms` of our stopwatch; `near_ms` is within decades of the time.
    ///
    /// # Errors
    /// [`Refusal`]; go on waiting.
    pub fn read(&self, datagram: &[u8], received_ms: u64, near_ms: u64) -> Result<Sample, Refusal> {
        let (packet, trailer) = Packet::parse(datagram)?;
        if packet.mode != Mode::Server {
            return Err(Refusal::Reflected);
        }
        if packet.origin != self.origin {
            return Err(Refusal::NotOurs);
        }
        self.check_mac(datagram, trailer)?;
        if packet.stratum == 0 {
            return Err(Refusal::Kiss(packet.reference_id));
        }
        if packet.leap == Leap::Unsynchronised || packet.stratum >= STRATUM_NONE {
            return Err(Refusal::Unsynchronised);
        }
        let time = |stamp: Stamp| stamp.to_ms(near_ms).ok_or(Refusal::Impossible);
        let (came_ms, left_ms) = (time(packet.receive)?, time(packet.transmit)?);
        let held_ms = left_ms.checked_sub(came_ms).ok_or(Refusal::Impossible)?;
        let round_trip_ms = received_ms.checked_sub(self.sent_ms).ok_or(Refusal::Impossible)?;
        if held_ms > round_trip_ms.saturating_add(GRAIN_MS) {
            return Err(Refusal::Impossible);
        }
        if round_trip_ms > ROUND_TRIP_MAX_MS {
            return Err(Refusal::Slow(round_trip_ms));
        }
        let distance_ms = packet.root_delay.to_ms() / 2 + packet.root_dispersion.to_ms();
        if distance_ms > DISTANCE_MAX_MS {
            return Err(Refusal::Distant(distance_ms));
        }
        let delay_ms = round_trip_ms.saturating_sub(held_ms);
        let [there, back] = [(came_ms, self.sent_ms), (left_ms, received_ms)]
            .map(|(theirs, ours)| i128::from(theirs) - i128::from(ours));
        let offset_ms = i64::try_from((there + back).div_euclid(2)).map_err(|_| Refusal::Impossible)?;
        Ok(Sample {
            offset_ms,
            error_ms: delay_ms.div_ceil(2) + distance_ms + 1,
            delay_ms,
            at_ms: received_ms,
            stratum: packet.stratum,
        })
    }

    fn check_mac(&self, datagram: &[u8], trailer: Trailer) -> Result<(), Refusal> {
        match (&self.key, trailer) {
            (None, Trailer::Plain) => Ok(()),
            // Who has no key asked for no MAC.
            (None, _) => Err(Refusal::WrongMac),
            (Some(_), Trailer::Plain) => Err(Refusal::Unsigned),
            (Some(_), Trailer::Nak) => Err(Refusal::UnknownKey),
            (Some(key), Trailer::Signed { key_id, tag }) => {
                let header = datagram.first_chunk::<HEADER_LEN>();
                let good = key_id == key.id() && header.is_some_and(|header| key.verifies(header, &tag));
                if good { Ok(()) } else { Err(Refusal::WrongMac) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Short, VERSION};
    use proptest::prelude::*;
    use std::vec::Vec;

    const NOW: u64 = 1_800_000_000_000;
    /// Our stopwatch when the question left.
    const SENT: u64 = 5_000;

    fn key() -> TimeKey {
        TimeKey::new(0x1234, [7; 16]).unwrap()
    }

    fn good() -> Packet {
        Packet {
            leap: Leap::None,
            version: VERSION,
            mode: Mode::Server,
            stratum: 3,
            poll: 6,
            precision: -9,
            root_delay: Short::of_ms(10),
            root_dispersion: Short::of_ms(5),
            reference_id: *b"LOCL",
            reference: Stamp::of_ms(NOW - 10_000),
            origin: Stamp(99),
            receive: Stamp::of_ms(NOW + 40),
            transmit: Stamp::of_ms(NOW + 50),
        }
    }

    fn signed(packet: &Packet, key: &TimeKey) -> Vec<u8> {
        let header = packet.encode();
        let mut bytes = Vec::from(header);
        bytes.extend(key.id().to_be_bytes());
        bytes.extend(key.tag(&header));
        bytes
    }

    /// What the signed query makes of a packet that came 100 ms after it left.
    fn read(packet: &Packet) -> Result<Sample, Refusal> {
        Query::new(99, Some(key()), SENT).read(&signed(packet, &key()), SENT + 100, NOW)
    }

    #[test]
    fn an_answer_tells_the_offset_to_half_of_its_way() {
        let sample = read(&good()).unwrap();
        // Came in at NOW+40 and left at NOW+50, in the middle of SENT and SENT+100.
        assert_eq!(sample.offset_ms, (NOW + 45) as i64 - (SENT + 50) as i64);
        assert_eq!((sample.delay_ms, sample.error_ms, sample.stratum), (90, 45 + 5 + 5 + 1 + 1, 3));
        let plain = Query::new(99, None, SENT);
        assert_eq!(plain.read(&good().encode(), SENT + 100, NOW), Ok(sample));
        assert_eq!(plain.bytes().len(), HEADER_LEN);
    }

    #[test]
    fn every_single_wrong_thing_is_refused_by_its_name() {
        let with = |change: &dyn Fn(&mut Packet)| {
            let mut packet = good();
            change(&mut packet);
            read(&packet).map(|_| ()).map_err(|refusal| refusal.name())
        };
        assert_eq!(with(&|_| ()), Ok(()));
        assert_eq!(with(&|p| p.mode = Mode::Client), Err("reflected"));
        assert_eq!(with(&|p| p.origin = Stamp(98)), Err("not_ours"));
        assert_eq!(with(&|p| p.stratum = 0), Err("kiss"));
        assert_eq!(with(&|p| p.stratum = 16), Err("unsynchronised"));
        assert_eq!(with(&|p| p.leap = Leap::Unsynchronised), Err("unsynchronised"));
        assert_eq!(with(&|p| p.receive = Stamp::NONE), Err("impossible"));
        assert_eq!(with(&|p| p.transmit = Stamp::of_ms(NOW + 39)), Err("impossible"), "before it came");
        assert_eq!(
            with(&|p| p.transmit = Stamp::of_ms(NOW + 143)),
            Err("impossible"),
            "held longer than it took"
        );
        assert_eq!(with(&|p| p.transmit = Stamp::of_ms(NOW + 142)), Ok(()));
        assert_eq!(with(&|p| p.root_dispersion = Short::of_ms(1_496)), Err("distant"));
        assert_eq!(with(&|p| p.root_dispersion = Short::of_ms(1_490)), Ok(()));
    }

    #[test]
    fn with_a_key_nothing_else_counts() {
        let query = Query::new(99, Some(key()), SENT);
        let read = |bytes: &[u8]| query.read(bytes, SENT + 100, NOW).unwrap_err();
        assert_eq!(read(&good().encode()), Refusal::Unsigned);
        let mut nak = Vec::from(good().encode());
        nak.extend([0; 4]);
        assert_eq!(read(&nak), Refusal::UnknownKey);
        let same_number = TimeKey::new(0x1234, [8; 16]).unwrap();
        assert_eq!(read(&signed(&good(), &same_number)), Refusal::WrongMac);
        let other_number = TimeKey::new(0x1235, [7; 16]).unwrap();
        assert_eq!(read(&signed(&good(), &other_number)), Refusal::WrongMac);
        for bit in 0..SIGNED_LEN * 8 {
            let mut bytes = signed(&good(), &key());
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(query.read(&bytes, SENT + 100, NOW).is_err(), "bit {bit}");
        }
        // A kiss that anybody can send does not keep us from asking.
        let kiss = Packet { stratum: 0, reference_id: *b"DENY", ..good() };
        assert_eq!(read(&kiss.encode()), Refusal::Unsigned);
        let without = Query::new(99, None, SENT);
        assert_eq!(without.read(&signed(&good(), &key()), SENT + 100, NOW), Err(Refusal::WrongMac));
    }

    #[test]
    fn an_answer_that_was_held_back_for_a_second_and_a_millisecond_says_nothing() {
        let query = Query::new(99, Some(key()), SENT);
        let bytes = signed(&good(), &key());
        assert!(query.read(&bytes, SENT + ROUND_TRIP_MAX_MS, NOW).is_ok());
        assert_eq!(query.read(&bytes, SENT + 1_001, NOW), Err(Refusal::Slow(1_001)));
        assert_eq!(query.read(&bytes, SENT - 1, NOW), Err(Refusal::Impossible));
    }

    #[test]
    fn a_request_shows_no_time_and_its_reflection_is_no_answer() {
        let query = Query::new(0, Some(key()), SENT);
        let (packet, _) = Packet::parse(query.bytes()).unwrap();
        assert_eq!(packet, Packet::request(Stamp(1)));
        assert_eq!(query.read(query.bytes(), SENT + 1, NOW), Err(Refusal::Reflected));
    }

    #[test]
    fn kisses_are_told_by_their_code() {
        assert_eq!(std::format!("{}", Refusal::Kiss(*b"RATE")), "kiss-o'-death RATE");
        assert_eq!(std::format!("{}", Refusal::Kiss([0, 0x1B, b'A', 0xFF])), "kiss-o'-death A");
    }

    proptest! {
        #[test]
        fn any_datagram_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..140), at: u64, near: u64) {
            let _ = Query::new(1, None, 0).read(&bytes, at, near);
            let _ = Query::new(1, Some(key()), 0).read(&bytes, at, near);
        }
    }
}
