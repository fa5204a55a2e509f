//! Records of a whole connection: our user-space stand-ins for AH and ESP.
//!
//! Does: cuts a stream into records, each with a sequence number and a MAC, and optionally
//! encrypted.
//! Does not: cover TCP headers or choose packets, as IPsec does.
//! Contract: a byte stream that was changed, cut inside, repeated or spliced opens up to the last
//! intact record, then fails; after a failure nothing opens.
//!
//! ```text
//! MAC only:    length 2 | data | HMAC-MD5-96 12
//! encrypted:   length 2 | IV 16 | AES-192-CBC(data, zeros, number of zeros 1) | HMAC-MD5-96 12
//! ```
//! The MAC covers the sequence number (8 bytes, not on the wire), the length and all before it.

use alloc::vec::Vec;

use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::cipher::{CIPHER_BLOCK, cbc_decrypt, cbc_encrypt, hmac_md5};
use crate::level::RecordProtection;

/// Bytes of a record's MAC: HMAC-MD5-96 (RFC 2403).
const RECORD_MAC: usize = 12;
const LENGTH: usize = 2;

/// Data bytes of a full record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordSize {
    /// 1448 bytes: one per packet, as with IPsec on Ethernet.
    Packet,
    /// 16 KiB: the best case.
    Large,
}

impl RecordSize {
    /// Returns the number of bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Packet => 1448,
            Self::Large => 16 * 1024,
        }
    }

    /// Returns the size with this number of bytes.
    #[must_use]
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            1448 => Some(Self::Packet),
            16_384 => Some(Self::Large),
            _ => None,
        }
    }
}

/// Keys of the records of one direction.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct RecordKeys {
    pub(crate) encryption: [u8; 24],
    pub(crate) authentication: [u8; 16],
}

impl core::fmt::Debug for RecordKeys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("RecordKeys(..)")
    }
}

/// Why a stream of records cannot continue. The connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A length that no record of this session has.
    #[error("record of {0} bytes")]
    Length(usize),
    /// The MAC differs: the stream was changed, repeated or spliced.
    #[error("MAC of a record differs")]
    Mac,
    /// Padding is not as the sender makes it.
    #[error("padding of a record is invalid")]
    Padding,
    /// An earlier record failed.
    #[error("the stream of records has failed before")]
    Failed,
    /// All sequence numbers were used.
    #[error("record sequence number exhausted: log in again")]
    SequenceExhausted,
}

struct RecordState {
    keys: RecordKeys,
    protection: RecordProtection,
    size: RecordSize,
    sequence: u64,
}

impl RecordState {
    fn mac(&self, record: &[u8]) -> [u8; RECORD_MAC] {
        let mac = hmac_md5(&self.keys.authentication, &[&self.sequence.to_be_bytes(), record]);
        *mac.first_chunk().expect("12 of 16 bytes")
    }

    fn is_length(&self, body: usize) -> bool {
        match self.protection {
            RecordProtection::Mac => (1..=self.size.bytes()).contains(&body),
            RecordProtection::CipherMac => {
                let most = (self.size.bytes() + 1).next_multiple_of(CIPHER_BLOCK);
                body.checked_sub(CIPHER_BLOCK).is_some_and(|text| {
                    (CIPHER_BLOCK..=most).contains(&text) && text.is_multiple_of(CIPHER_BLOCK)
                })
            }
        }
    }

    fn advance(&mut self) -> Result<(), RecordError> {
        self.sequence = self.sequence.checked_add(1).ok_or(RecordError::SequenceExhausted)?;
        Ok(())
    }
}

/// Makes records of one direction.
pub struct RecordSealer(RecordState);

impl RecordSealer {
    /// Creates the sending end.
    #[must_use]
    pub const fn new(keys: RecordKeys, protection: RecordProtection, size: RecordSize) -> Self {
        Self(RecordState { keys, protection, size, sequence: 0 })
    }

    /// Appends data as records. `random` supplies initialisation vectors.
    ///
    /// # Errors
    /// `SequenceExhausted` after 2^64 - 1 records.
    pub fn seal(
        &mut self,
        data: &[u8],
        random: &mut dyn FnMut(&mut [u8]),
        out: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        let state = &mut self.0;
        for data in data.chunks(state.size.bytes()) {
            let start = out.len();
            let (iv_len, padded) = match state.protection {
                RecordProtection::Mac => (0, data.len()),
                RecordProtection::CipherMac => {
                    (CIPHER_BLOCK, (data.len() + 1).next_multiple_of(CIPHER_BLOCK))
                }
            };
            let length = u16::try_from(iv_len + padded).expect("a record is shorter than 64 KiB");
            out.extend_from_slice(&length.to_be_bytes());
            if state.protection == RecordProtection::CipherMac {
                let mut iv = [0; CIPHER_BLOCK];
                random(&mut iv);
                out.extend_from_slice(&iv);
                let text = out.len();
                out.extend_from_slice(data);
                out.resize(text + padded, 0);
                let zeros = padded - 1 - data.len();
                *out.last_mut().expect("padded") = u8::try_from(zeros).expect("below 16");
                cbc_encrypt(&state.keys.encryption, &iv, &mut out[text..]);
            } else {
                out.extend_from_slice(data);
            }
            let mac = state.mac(&out[start..]);
            out.extend_from_slice(&mac);
            state.advance()?;
        }
        Ok(())
    }
}

/// Opens records of one direction.
pub struct RecordOpener {
    state: RecordState,
    pending: Vec<u8>,
    failed: bool,
}

impl RecordOpener {
    /// Creates the receiving end.
    #[must_use]
    pub const fn new(keys: RecordKeys, protection: RecordProtection, size: RecordSize) -> Self {
        Self {
            state: RecordState { keys, protection, size, sequence: 0 },
            pending: Vec::new(),
            failed: false,
        }
    }

    /// Takes bytes of the stream and appends the data of all complete records. Keeps less than one
    /// record.
    ///
    /// # Errors
    /// See [`RecordError`]. Data appended before the error are authentic.
    pub fn open(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        if self.failed {
            return Err(RecordError::Failed);
        }
        self.pending.extend_from_slice(bytes);
        let pending = core::mem::take(&mut self.pending);
        let mut rest = &pending[..];
        while let Some(length) = rest.first_chunk::<LENGTH>() {
            let body = usize::from(u16::from_be_bytes(*length));
            if !self.state.is_length(body) {
                self.failed = true;
                return Err(RecordError::Length(body));
            }
            let Some((record, next)) = rest.split_at_checked(LENGTH + body + RECORD_MAC) else { break };
            if let Err(error) = self.open_record(record, out) {
                self.failed = true;
                return Err(error);
            }
            rest = next;
        }
        self.pending = rest.to_vec();
        Ok(())
    }

    fn open_record(&mut self, record: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        let (covered, mac) = record.split_last_chunk::<RECORD_MAC>().ok_or(RecordError::Length(0))?;
        if !bool::from(self.state.mac(covered).ct_eq(mac)) {
            return Err(RecordError::Mac);
        }
        let body = &covered[LENGTH..];
        match (self.state.protection, body.split_first_chunk::<CIPHER_BLOCK>()) {
            (RecordProtection::Mac, _) => out.extend_from_slice(body),
            (RecordProtection::CipherMac, None) => return Err(RecordError::Length(body.len())),
            (RecordProtection::CipherMac, Some((iv, text))) => {
                let start = out.len();
                out.extend_from_slice(text);
                cbc_decrypt(&self.state.keys.encryption, iv, &mut out[start..]);
                if let Err(error) = remove_padding(out, start, self.state.size) {
                    out.truncate(start);
                    return Err(error);
                }
            }
        }
        self.state.advance()
    }
}

/// Removes the padding of the record that begins at `start`.
fn remove_padding(out: &mut Vec<u8>, start: usize, size: RecordSize) -> Result<(), RecordError> {
    let text = &out[start..];
    let (zeros, rest) = text.split_last().ok_or(RecordError::Padding)?;
    let data = rest.len().checked_sub(usize::from(*zeros)).ok_or(RecordError::Padding)?;
    let clean = usize::from(*zeros) < CIPHER_BLOCK && rest[data..].iter().all(|byte| *byte == 0);
    if !clean || data == 0 || data > size.bytes() {
        return Err(RecordError::Padding);
    }
    out.truncate(start + data);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec;

    use super::*;

    const KINDS: [RecordProtection; 2] = [RecordProtection::Mac, RecordProtection::CipherMac];

    fn keys() -> RecordKeys {
        RecordKeys { encryption: [5; 24], authentication: [6; 16] }
    }

    fn sealed(kind: RecordProtection, size: RecordSize, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut random = |into: &mut [u8]| into.fill(9);
        RecordSealer::new(keys(), kind, size).seal(data, &mut random, &mut out).unwrap();
        out
    }

    #[test]
    fn records_open_however_the_stream_is_cut() {
        let data: Vec<u8> = (0..40_000_u32).map(|at| at as u8).collect();
        for (kind, size) in
            KINDS.into_iter().flat_map(|kind| [(kind, RecordSize::Packet), (kind, RecordSize::Large)])
        {
            let wire = sealed(kind, size, &data);
            for piece in [1, 7, 1448, wire.len()] {
                let mut opener = RecordOpener::new(keys(), kind, size);
                let mut out = Vec::new();
                for bytes in wire.chunks(piece) {
                    opener.open(bytes, &mut out).unwrap();
                }
                assert_eq!(out, data, "{kind:?} {size:?} {piece}");
            }
        }
    }

    #[test]
    fn record_overhead_is_as_stated() {
        for (kind, size, data, overhead) in [
            (RecordProtection::Mac, RecordSize::Packet, 1448, 14),
            (RecordProtection::Mac, RecordSize::Packet, 1449, 28),
            (RecordProtection::Mac, RecordSize::Large, 16_384, 14),
            (RecordProtection::CipherMac, RecordSize::Packet, 1448, 38),
            (RecordProtection::CipherMac, RecordSize::Large, 16_384, 46),
        ] {
            assert_eq!(sealed(kind, size, &vec![1; data]).len(), data + overhead, "{kind:?} {size:?}");
        }
    }

    /// Until the changed byte everything opens, and nothing after it.
    #[test]
    fn every_changed_byte_of_records_is_refused() {
        let data = vec![0x77; 3000];
        for kind in KINDS {
            let wire = sealed(kind, RecordSize::Packet, &data);
            for at in 0..wire.len() {
                let mut changed = wire.clone();
                changed[at] ^= 1 << (at % 8);
                let mut opener = RecordOpener::new(keys(), kind, RecordSize::Packet);
                let mut out = Vec::new();
                // A longer length waits for bytes that the MAC then refuses.
                let opened =
                    opener.open(&changed, &mut out).and_then(|()| opener.open(&[0; 20_000], &mut out));
                assert!(opened.is_err(), "{kind:?} byte {at}");
                assert_eq!(out[..], data[..out.len()], "{kind:?} byte {at}");
                assert_eq!(opener.open(&[], &mut out), Err(RecordError::Failed));
            }
        }
    }

    #[test]
    fn repeated_and_left_out_records_are_refused() {
        for kind in KINDS {
            let wire = sealed(kind, RecordSize::Packet, &[1; 1448 * 2]);
            let (first, second) = wire.split_at(wire.len() / 2);
            for stream in [[first, first].concat(), second.to_vec(), [second, first].concat()] {
                let mut opener = RecordOpener::new(keys(), kind, RecordSize::Packet);
                assert_eq!(opener.open(&stream, &mut Vec::new()), Err(RecordError::Mac));
            }
        }
    }

    #[test]
    fn impossible_lengths_fail_at_once() {
        for (kind, length) in [
            (RecordProtection::Mac, 0),
            (RecordProtection::Mac, 1449),
            (RecordProtection::CipherMac, 16),
            (RecordProtection::CipherMac, 33),
            (RecordProtection::CipherMac, 1488),
        ] {
            let mut opener = RecordOpener::new(keys(), kind, RecordSize::Packet);
            let bytes = u16::to_be_bytes(length);
            assert_eq!(opener.open(&bytes, &mut Vec::new()), Err(RecordError::Length(length.into())));
        }
    }

    #[test]
    fn exhausted_sequence_ends_the_stream() {
        let mut sealer = RecordSealer::new(keys(), RecordProtection::Mac, RecordSize::Packet);
        sealer.0.sequence = u64::MAX;
        let sealed = sealer.seal(&[1], &mut |_| {}, &mut Vec::new());
        assert_eq!(sealed, Err(RecordError::SequenceExhausted));
    }

    proptest! {
        #[test]
        fn arbitrary_streams_never_open(bytes in proptest::collection::vec(any::<u8>(), 1..4000), kind in 0..2_usize) {
            let mut out = Vec::new();
            let _ = RecordOpener::new(keys(), KINDS[kind], RecordSize::Packet).open(&bytes, &mut out);
            prop_assert!(out.is_empty());
        }
    }
}
