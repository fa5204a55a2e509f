//! The packet: 48 bytes, and perhaps a MAC behind them.
//!
//! Does: read and write the header and tell what follows it. Does not: check a MAC, or believe anything.
//! Contract: of the lengths that there are exactly three are read: 48 bytes, 52 (a crypto-NAK), 68 (a key's number and an
//! AES-CMAC). Extension fields and other MACs are refused, not skipped.
//! Truth: RFC 5905 §7.3, §7.5; RFC 8573 §2.

use thiserror::Error;

use crate::key::TAG_LEN;
use crate::stamp::Stamp;

/// Bytes of the header.
pub const HEADER_LEN: usize = 48;
/// Bytes of a crypto-NAK: the header and a key number of zero.
pub const NAK_LEN: usize = HEADER_LEN + 4;
/// Bytes of a signed packet.
pub const SIGNED_LEN: usize = NAK_LEN + TAG_LEN;
/// The version that we speak.
pub const VERSION: u8 = 4;
/// The oldest version that is answered, in kind.
const VERSION_MIN: u8 = 3;

/// Codes of kiss-o'-death packets (RFC 5905 §7.4).
pub mod kiss {
    /// Asked too often.
    pub const RATE: [u8; 4] = *b"RATE";
    /// Go away.
    pub const DENY: [u8; 4] = *b"DENY";
    /// Go away.
    pub const RSTR: [u8; 4] = *b"RSTR";
}

/// What a server says of the minute's last second, or of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leap {
    /// Nothing.
    #[default]
    None,
    /// It has 61 seconds.
    Add,
    /// It has 59.
    Remove,
    /// The server has no time to give.
    Unsynchronised,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A client asks.
    Client,
    /// A server answers.
    Server,
}

/// Seconds with 16 bits of fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Short(pub u32);

impl Short {
    /// Of milliseconds, rounded up; the largest value for more than 18 hours.
    #[must_use]
    pub fn of_ms(ms: u64) -> Self {
        Self(u32::try_from((ms.min(1 << 40) << 16).div_ceil(1000)).unwrap_or(u32::MAX))
    }

    /// Milliseconds, rounded up.
    #[must_use]
    pub fn to_ms(self) -> u64 {
        (u64::from(self.0) * 1000).div_ceil(1 << 16)
    }
}

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Leap indicator.
    pub leap: Leap,
    /// 3 or 4.
    pub version: u8,
    /// Who speaks.
    pub mode: Mode,
    /// Steps from a reference clock; 0 is a kiss-o'-death, 16 is none.
    pub stratum: u8,
    /// Logarithm of the seconds between two queries.
    pub poll: i8,
    /// Logarithm of the clock's grain, seconds.
    pub precision: i8,
    /// Round trip to the reference clock.
    pub root_delay: Short,
    /// How far off the reference clock may be seen from here.
    pub root_dispersion: Short,
    /// Which one; the code of a kiss-o'-death.
    pub reference_id: [u8; 4],
    /// When the clock was last set.
    pub reference: Stamp,
    /// The transmit stamp of what this answers.
    pub origin: Stamp,
    /// When that came in.
    pub receive: Stamp,
    /// When this left.
    pub transmit: Stamp,
}

/// What follows the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trailer {
    /// Nothing.
    Plain,
    /// A key number of zero: the server could not check the MAC of what it answers.
    Nak,
    /// A MAC.
    Signed {
        /// Which key.
        key_id: u32,
        /// The MAC; its bytes prove nothing until they were compared in constant time.
        tag: [u8; TAG_LEN],
    },
}

/// Bytes that are no packet of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// Neither 48, nor 52, nor 68 bytes: extension fields, or another kind of MAC.
    #[error("{0} bytes: want 48, 52 or 68")]
    Length(usize),
    /// A version before 3 or after 4.
    #[error("version {0}: want 3 or 4")]
    Version(u8),
    /// Neither a client's nor a server's: symmetric modes, broadcasts, control messages.
    #[error("mode {0}: want 3 or 4")]
    Mode(u8),
    /// Four bytes behind the header that are no crypto-NAK, or a MAC under key zero.
    #[error("key number {0} where it has no meaning")]
    Key(u32),
}

impl Packet {
    /// Reads a datagram.
    ///
    /// # Errors
    /// [`PacketError`].
    pub fn parse(bytes: &[u8]) -> Result<(Self, Trailer), PacketError> {
        let wrong = PacketError::Length(bytes.len());
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(wrong)?;
        let trailer = match rest.split_first_chunk::<4>() {
            None if rest.is_empty() => Trailer::Plain,
            Some((id, [])) => match u32::from_be_bytes(*id) {
                0 => Trailer::Nak,
                id => return Err(PacketError::Key(id)),
            },
            Some((id, tag)) => {
                let tag: [u8; TAG_LEN] = tag.try_into().map_err(|_| wrong)?;
                match u32::from_be_bytes(*id) {
                    0 => return Err(PacketError::Key(0)),
                    key_id => Trailer::Signed { key_id, tag },
                }
            }
            None => return Err(wrong),
        };
        let version = header[0] >> 3 & 7;
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(PacketError::Version(version));
        }
        let mode = match header[0] & 7 {
            3 => Mode::Client,
            4 => Mode::Server,
            other => return Err(PacketError::Mode(other)),
        };
        let leap = match header[0] >> 6 {
            0 => Leap::None,
            1 => Leap::Add,
            2 => Leap::Remove,
            _ => Leap::Unsynchronised,
        };
        let four = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
        let stamp = |at: usize| {
            let [high, low] = [four(at), four(at + 4)].map(u32::from_be_bytes).map(u64::from);
            Stamp(high << 32 | low)
        };
        let packet = Self {
            leap,
            version,
            mode,
            stratum: header[1],
            poll: header[2].cast_signed(),
            precision: header[3].cast_signed(),
            root_delay: Short(u32::from_be_bytes(four(4))),
            root_dispersion: Short(u32::from_be_bytes(four(8))),
            reference_id: four(12),
            reference: stamp(16),
            origin: stamp(24),
            receive: stamp(32),
            transmit: stamp(40),
        };
        Ok((packet, trailer))
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let leap = match self.leap {
            Leap::None => 0,
            Leap::Add => 1,
            Leap::Remove => 2,
            Leap::Unsynchronised => 3,
        };
        let mode = match self.mode {
            Mode::Client => 3,
            Mode::Server => 4,
        };
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = leap << 6 | (self.version & 7) << 3 | mode;
        bytes[1] = self.stratum;
        bytes[2] = self.poll.cast_unsigned();
        bytes[3] = self.precision.cast_unsigned();
        bytes[4..8].copy_from_slice(&self.root_delay.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.root_dispersion.0.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.reference_id);
        for (at, stamp) in [(16, self.reference), (24, self.origin), (32, self.receive), (40, self.transmit)]
        {
            bytes[at..at + 8].copy_from_slice(&stamp.0.to_be_bytes());
        }
        bytes
    }

    /// A client's packet that says nothing but its transmit stamp.
    #[must_use]
    pub const fn request(transmit: Stamp) -> Self {
        Self {
            leap: Leap::None,
            version: VERSION,
            mode: Mode::Client,
            stratum: 0,
            poll: 0,
            precision: 0,
            root_delay: Short(0),
            root_dispersion: Short(0),
            reference_id: [0; 4],
            reference: Stamp::NONE,
            origin: Stamp::NONE,
            receive: Stamp::NONE,
            transmit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn of_all_lengths_three_are_read() {
        let mut bytes = [0; 128];
        bytes[0] = 0x23;
        bytes[HEADER_LEN + 3] = 0;
        for length in 0..128 {
            let read = Packet::parse(&bytes[..length]);
            match length {
                HEADER_LEN => assert_eq!(read.map(|(_, trailer)| trailer), Ok(Trailer::Plain)),
                NAK_LEN => assert_eq!(read.map(|(_, trailer)| trailer), Ok(Trailer::Nak)),
                SIGNED_LEN => assert_eq!(read, Err(PacketError::Key(0)), "no MAC is under key zero"),
                _ => assert_eq!(read, Err(PacketError::Length(length))),
            }
        }
        bytes[HEADER_LEN + 3] = 9;
        assert_eq!(Packet::parse(&bytes[..NAK_LEN]), Err(PacketError::Key(9)));
        let signed = Packet::parse(&bytes[..SIGNED_LEN]).unwrap().1;
        assert_eq!(signed, Trailer::Signed { key_id: 9, tag: [0; TAG_LEN] });
    }

    #[test]
    fn other_versions_and_modes_are_refused() {
        let mut bytes = [0; HEADER_LEN];
        for version in 0..8u8 {
            for mode in 0..8u8 {
                bytes[0] = version << 3 | mode;
                let read = Packet::parse(&bytes).map(|(packet, _)| packet.mode);
                match (version, mode) {
                    (3 | 4, 3) => assert_eq!(read, Ok(Mode::Client)),
                    (3 | 4, 4) => assert_eq!(read, Ok(Mode::Server)),
                    (3 | 4, _) => assert_eq!(read, Err(PacketError::Mode(mode))),
                    _ => assert_eq!(read, Err(PacketError::Version(version))),
                }
            }
        }
    }

    #[test]
    fn short_times_are_never_told_smaller_than_they_are() {
        for ms in [0, 1, 15, 16, 999, 1000, 1001, 60_000, 65_535_000] {
            assert!((ms..=ms + 1).contains(&Short::of_ms(ms).to_ms()), "{ms}");
        }
        assert_eq!(Short::of_ms(u64::MAX), Short(u32::MAX));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..140)) {
            let _ = Packet::parse(&bytes);
        }

        #[test]
        fn what_is_read_encodes_to_the_same_bytes(mut bytes in proptest::collection::vec(any::<u8>(), HEADER_LEN..=HEADER_LEN)) {
            bytes[0] = bytes[0] & 0xC7 | 0x20;
            if let Ok((packet, Trailer::Plain)) = Packet::parse(&bytes) {
                prop_assert_eq!(Vec::from(packet.encode()), bytes);
            }
        }
    }
}
