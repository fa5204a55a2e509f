//! The packet: 48 bytes, and an optional MAC.
//!
//! Does: parses and encodes the header and the trailer.
//! Does not: verify a MAC or trust any field.
//! Contract: exactly three lengths are accepted: 48 bytes, 52 (a crypto-NAK), 68 (a key number and
//! an AES-CMAC). Extension fields and other MACs are rejected, not skipped.
//! Truth: RFC 5905 §7.3, §7.5; RFC 8573 §2.

use thiserror::Error;

use crate::key::TAG_LEN;
use crate::stamp::NtpTimestamp;

/// Bytes of the header.
pub const HEADER_LEN: usize = 48;
/// Bytes of a crypto-NAK: the header and key number zero.
pub const NAK_LEN: usize = HEADER_LEN + 4;
/// Bytes of a signed packet.
pub const SIGNED_LEN: usize = NAK_LEN + TAG_LEN;
/// Version of sent requests.
pub const VERSION: u8 = 4;
/// Oldest version that is accepted; the response has the same version.
const VERSION_MIN: u8 = 3;

/// Codes of kiss-o'-death packets (RFC 5905 §7.4).
pub mod kiss {
    /// The client sends too many requests.
    pub const RATE: [u8; 4] = *b"RATE";
    /// Access denied.
    pub const DENY: [u8; 4] = *b"DENY";
    /// Access restricted.
    pub const RSTR: [u8; 4] = *b"RSTR";
}

/// Leap indicator: the length of the day's last minute, or an unsynchronised server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeapIndicator {
    /// No leap second.
    #[default]
    None,
    /// The minute has 61 seconds.
    Add,
    /// The minute has 59 seconds.
    Remove,
    /// The server's clock is not synchronised.
    Unsynchronised,
}

/// Sender of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketMode {
    /// A client's request.
    Client,
    /// A server's response.
    Server,
}

/// Seconds with 16 bits of fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NtpShort(pub u32);

impl NtpShort {
    /// Converts milliseconds, rounded up; saturates above 18 hours.
    #[must_use]
    pub fn of_ms(ms: u64) -> Self {
        Self(u32::try_from((ms.min(1 << 40) << 16).div_ceil(1000)).unwrap_or(u32::MAX))
    }

    /// Converts to milliseconds, rounded up.
    #[must_use]
    pub fn to_ms(self) -> u64 {
        (u64::from(self.0) * 1000).div_ceil(1 << 16)
    }
}

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NtpPacket {
    /// Leap indicator.
    pub leap: LeapIndicator,
    /// Version, 3 or 4.
    pub version: u8,
    /// Role of the sender: client or server.
    pub mode: PacketMode,
    /// Steps from a reference clock; 0 is a kiss-o'-death, 16 is unsynchronised.
    pub stratum: u8,
    /// Logarithm of the seconds between two queries.
    pub poll: i8,
    /// Logarithm of the clock's precision in seconds.
    pub precision: i8,
    /// Round trip to the reference clock.
    pub root_delay: NtpShort,
    /// Maximum error relative to the reference clock.
    pub root_dispersion: NtpShort,
    /// Id of the reference clock, or code of a kiss-o'-death.
    pub reference_id: [u8; 4],
    /// Time at which the clock was last set.
    pub reference: NtpTimestamp,
    /// Transmit timestamp of the request.
    pub origin: NtpTimestamp,
    /// Time at which the request was received.
    pub receive: NtpTimestamp,
    /// Time at which this packet was sent.
    pub transmit: NtpTimestamp,
}

/// Bytes after the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trailer {
    /// No trailer.
    Plain,
    /// Key number zero: the server could not verify the MAC of the request.
    Nak,
    /// A MAC.
    Signed {
        /// Number of the key.
        key_id: u32,
        /// The MAC, not yet verified.
        tag: [u8; TAG_LEN],
    },
}

/// Reason why a datagram is not a valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// The length is not 48, 52 or 68 bytes: extension fields, or another kind of MAC.
    #[error("{0} bytes: expected 48, 52 or 68")]
    Length(usize),
    /// The version is not 3 or 4.
    #[error("version {0}: expected 3 or 4")]
    Version(u8),
    /// The mode is not client or server: symmetric modes, broadcasts, control messages.
    #[error("mode {0}: expected 3 or 4")]
    PacketMode(u8),
    /// Four bytes behind the header that are no crypto-NAK, or a MAC with key zero.
    #[error("unexpected key number {0}")]
    Key(u32),
}

impl NtpPacket {
    /// Parses a datagram.
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
            3 => PacketMode::Client,
            4 => PacketMode::Server,
            other => return Err(PacketError::PacketMode(other)),
        };
        let leap = match header[0] >> 6 {
            0 => LeapIndicator::None,
            1 => LeapIndicator::Add,
            2 => LeapIndicator::Remove,
            _ => LeapIndicator::Unsynchronised,
        };
        let four = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
        let stamp = |at: usize| {
            let [high, low] = [four(at), four(at + 4)].map(u32::from_be_bytes).map(u64::from);
            NtpTimestamp(high << 32 | low)
        };
        let packet = Self {
            leap,
            version,
            mode,
            stratum: header[1],
            poll: header[2].cast_signed(),
            precision: header[3].cast_signed(),
            root_delay: NtpShort(u32::from_be_bytes(four(4))),
            root_dispersion: NtpShort(u32::from_be_bytes(four(8))),
            reference_id: four(12),
            reference: stamp(16),
            origin: stamp(24),
            receive: stamp(32),
            transmit: stamp(40),
        };
        Ok((packet, trailer))
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let leap = match self.leap {
            LeapIndicator::None => 0,
            LeapIndicator::Add => 1,
            LeapIndicator::Remove => 2,
            LeapIndicator::Unsynchronised => 3,
        };
        let mode = match self.mode {
            PacketMode::Client => 3,
            PacketMode::Server => 4,
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

    /// Returns a client's packet with only a transmit timestamp.
    #[must_use]
    pub const fn request(transmit: NtpTimestamp) -> Self {
        Self {
            leap: LeapIndicator::None,
            version: VERSION,
            mode: PacketMode::Client,
            stratum: 0,
            poll: 0,
            precision: 0,
            root_delay: NtpShort(0),
            root_dispersion: NtpShort(0),
            reference_id: [0; 4],
            reference: NtpTimestamp::NONE,
            origin: NtpTimestamp::NONE,
            receive: NtpTimestamp::NONE,
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
    fn only_three_lengths_parse() {
        let mut bytes = [0; 128];
        bytes[0] = 0x23;
        bytes[HEADER_LEN + 3] = 0;
        for length in 0..128 {
            let read = NtpPacket::parse(&bytes[..length]);
            match length {
                HEADER_LEN => assert_eq!(read.map(|(_, trailer)| trailer), Ok(Trailer::Plain)),
                NAK_LEN => assert_eq!(read.map(|(_, trailer)| trailer), Ok(Trailer::Nak)),
                SIGNED_LEN => assert_eq!(read, Err(PacketError::Key(0)), "no MAC is under key zero"),
                _ => assert_eq!(read, Err(PacketError::Length(length))),
            }
        }
        bytes[HEADER_LEN + 3] = 9;
        assert_eq!(NtpPacket::parse(&bytes[..NAK_LEN]), Err(PacketError::Key(9)));
        let signed = NtpPacket::parse(&bytes[..SIGNED_LEN]).unwrap().1;
        assert_eq!(signed, Trailer::Signed { key_id: 9, tag: [0; TAG_LEN] });
    }

    #[test]
    fn other_versions_and_modes_are_rejected() {
        let mut bytes = [0; HEADER_LEN];
        for version in 0..8u8 {
            for mode in 0..8u8 {
                bytes[0] = version << 3 | mode;
                let read = NtpPacket::parse(&bytes).map(|(packet, _)| packet.mode);
                match (version, mode) {
                    (3 | 4, 3) => assert_eq!(read, Ok(PacketMode::Client)),
                    (3 | 4, 4) => assert_eq!(read, Ok(PacketMode::Server)),
                    (3 | 4, _) => assert_eq!(read, Err(PacketError::PacketMode(mode))),
                    _ => assert_eq!(read, Err(PacketError::Version(version))),
                }
            }
        }
    }

    #[test]
    fn short_format_never_rounds_down() {
        for ms in [0, 1, 15, 16, 999, 1000, 1001, 60_000, 65_535_000] {
            assert!((ms..=ms + 1).contains(&NtpShort::of_ms(ms).to_ms()), "{ms}");
        }
        assert_eq!(NtpShort::of_ms(u64::MAX), NtpShort(u32::MAX));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..140)) {
            let _ = NtpPacket::parse(&bytes);
        }

        #[test]
        fn parsed_packet_encodes_to_same_bytes(mut bytes in proptest::collection::vec(any::<u8>(), HEADER_LEN..=HEADER_LEN)) {
            bytes[0] = bytes[0] & 0xC7 | 0x20;
            if let Ok((packet, Trailer::Plain)) = NtpPacket::parse(&bytes) {
                prop_assert_eq!(Vec::from(packet.encode()), bytes);
            }
        }
    }
}
