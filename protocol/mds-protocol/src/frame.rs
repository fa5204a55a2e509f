//! The 16-byte frame header in front of every message.
//!
//! Does: recognise frames and limit body lengths before a body is read; for both profiles.
//! Does not: check the sequence; each end keeps its own [`Sequence`].
//! Truth: docs/standards/mds/wire.md §2.

use alloc::vec::Vec;

use crate::wire::{Wire, WireError, code};

/// First four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"OSMA";
/// Version of the frame layout, not of the messages inside.
pub const FRAME_VERSION: u8 = 1;
/// Length of a header.
pub const HEADER_BYTES: usize = 16;
/// Maximum length of a body.
pub const BODY_MAX: usize = 65_536;
/// Number of the modern profile: OPAQUE inside TLS 1.3.
pub const PROFILE_MODERN: u8 = 1;

code! {
    /// Type of the message in a frame.
    pub enum MessageType: u8 as "message type" {
        /// Client starts a login.
        LoginStart = 0x20,
        /// Server's part of the key exchange.
        LoginChallenge = 0x21,
        /// Client proves knowledge of the password.
        LoginFinish = 0x22,
        /// Server proves the same and returns the session.
        LoginOk = 0x23,
        /// Client resumes a session on a new connection.
        Resume = 0x24,
        /// Client ends its session.
        Logout = 0x27,
        /// Server confirms the logout.
        LogoutOk = 0x28,
        /// Client repeats a login with the cookie that the server requested.
        LoginAgain = 0x29,
        /// Server is under load and requests a cookie.
        Retry = 0x2A,
        /// A new user starts a registration with a one-time code.
        RegisterStart = 0x2B,
        /// Server's registration response.
        RegisterResponse = 0x2C,
        /// The new user's registration record.
        RegisterUpload = 0x2D,
        /// A login step was refused, or the connection will be closed.
        Error = 0x2E,
        /// The registration is done; the new user may log in.
        RegisterOk = 0x2F,
        /// A request of a session.
        Request = 0x30,
        /// Its response.
        Response = 0x31,
    }
}

/// The frame types of one profile. All profiles share the frame layout only; a decoder of one
/// profile refuses frames of another.
pub trait FrameType: Copy + Sized {
    /// Number of the profile.
    const PROFILE: u8;
    /// Returns the type with this number.
    fn of_number(number: u8) -> Option<Self>;
    /// Returns the number on the wire.
    fn number(self) -> u8;
    /// Returns the maximum length of a body of this type.
    fn body_max(self) -> usize;
    /// Whether a frame of this type may have this sequence number.
    fn takes_sequence(self, sequence: u32) -> bool;
}

impl FrameType for MessageType {
    const PROFILE: u8 = PROFILE_MODERN;

    fn of_number(number: u8) -> Option<Self> {
        Self::from_code(number)
    }

    fn number(self) -> u8 {
        self.code()
    }

    fn body_max(self) -> usize {
        BODY_MAX
    }

    /// Always; the connection's state decides.
    fn takes_sequence(self, _sequence: u32) -> bool {
        true
    }
}

/// A validated header of a frame of one profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<K> {
    /// Type of the message.
    pub kind: K,
    /// Length of the body, at most [`FrameType::body_max`].
    pub body_length: u32,
    /// 0 before a session, then 1, 2, 3 … in each direction of a connection. In the paper's
    /// profile: 0 for messages that are not records, else the lower half of the record number.
    pub sequence: u32,
}

/// A header of the modern profile.
pub type FrameHeader = Header<MessageType>;

impl<K: FrameType> Header<K> {
    /// Decodes a header.
    ///
    /// # Errors
    /// `Frame` for foreign bytes and for another profile, `UnknownCode` for an unknown type,
    /// `TooLong` for a body over its limit.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        let [m0, m1, m2, m3, version, profile, kind, flags, l0, l1, l2, l3, s0, s1, s2, s3] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(WireError::Frame("magic"));
        }
        if version != FRAME_VERSION {
            return Err(WireError::Frame("version"));
        }
        if profile != K::PROFILE {
            return Err(WireError::Frame("profile"));
        }
        // Reserved; must be 0.
        if flags != 0 {
            return Err(WireError::Frame("flags"));
        }
        let kind = K::of_number(kind)
            .ok_or(WireError::UnknownCode { what: "message type", code: u32::from(kind) })?;
        let body_length = u32::from_be_bytes([l0, l1, l2, l3]);
        if body_length as usize > kind.body_max() {
            return Err(WireError::TooLong { limit: kind.body_max() });
        }
        let sequence = u32::from_be_bytes([s0, s1, s2, s3]);
        if !kind.takes_sequence(sequence) {
            return Err(WireError::Frame("sequence"));
        }
        Ok(Self { kind, body_length, sequence })
    }

    /// Returns the encoded header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = FRAME_VERSION;
        bytes[5] = K::PROFILE;
        bytes[6] = self.kind.number();
        bytes[8..12].copy_from_slice(&self.body_length.to_be_bytes());
        bytes[12..].copy_from_slice(&self.sequence.to_be_bytes());
        bytes
    }
}

/// Returns header and body in one buffer.
///
/// # Errors
/// `TooLong` if `body` is over the limit of its type.
pub fn frame<K: FrameType>(kind: K, sequence: u32, body: &[u8]) -> Result<Vec<u8>, WireError> {
    if body.len() > kind.body_max() {
        return Err(WireError::TooLong { limit: kind.body_max() });
    }
    let header = Header { kind, body_length: body.len() as u32, sequence };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&header.encode());
    bytes.extend_from_slice(body);
    Ok(bytes)
}

/// Encodes a message as a frame.
///
/// # Errors
/// `TooLong` if it does not fit.
pub fn encode_message<K: FrameType>(
    kind: K,
    sequence: u32,
    message: &impl Wire,
) -> Result<Vec<u8>, WireError> {
    let mut out = crate::wire::WireWriter::new();
    message.put(&mut out);
    frame(kind, sequence, &zeroize::Zeroizing::new(out.finish(kind.body_max())?))
}

/// Decodes the message in a body.
///
/// # Errors
/// Any [`WireError`]; `Trailing` if bytes remain.
pub fn decode_message<T: Wire>(body: &[u8]) -> Result<T, WireError> {
    let mut input = crate::wire::WireReader::new(body);
    let message = T::get(&mut input)?;
    input.finish()?;
    Ok(message)
}

/// Sequence number of the frames in one direction of a connection with a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence(u32);

impl Sequence {
    /// Returns the number of the next frame to send, from 1. `None` after 2^32 − 1 frames:
    /// reconnect.
    pub const fn advance(&mut self) -> Option<u32> {
        match self.0.checked_add(1) {
            Some(next) => {
                self.0 = next;
                Some(next)
            }
            None => None,
        }
    }

    /// Whether `sequence` is the next expected number. A repetition or a gap closes the connection.
    pub fn accept(&mut self, sequence: u32) -> bool {
        self.0.checked_add(1) == Some(sequence) && self.advance().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arbitrary_headers_never_panic_and_reencode(bytes: [u8; HEADER_BYTES]) {
            if let Ok(header) = FrameHeader::parse(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }

        #[test]
        fn every_header_survives_the_wire(kind in 0..MessageType::ALL.len(), body_length in 0..=BODY_MAX as u32, sequence: u32) {
            let header = FrameHeader { kind: MessageType::ALL[kind], body_length, sequence };
            prop_assert_eq!(FrameHeader::parse(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn header_with_body_over_limit_is_refused() {
        let mut bytes = FrameHeader { kind: MessageType::Request, body_length: 0, sequence: 1 }.encode();
        bytes[8..12].copy_from_slice(&(BODY_MAX as u32 + 1).to_be_bytes());
        assert_eq!(FrameHeader::parse(&bytes), Err(WireError::TooLong { limit: BODY_MAX }));
    }

    #[test]
    fn sequence_rejects_repeats_and_gaps() {
        let mut expected = Sequence::default();
        assert!(expected.accept(1));
        assert!(!expected.accept(1));
        assert!(!expected.accept(3));
        assert!(expected.accept(2));
    }
}
