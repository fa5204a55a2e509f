//! Seals of PDU headers under the session key.
//!
//! Does: encrypts the basic header segment (BHS) and the additional ones (AHS), computes and checks
//! the header's MAC. Does the same for data segments that do not consist of blocks.
//! Does not: interpret opcodes, or fields other than TotalAHSLength and the initiator task tag.
//! Contract: both ends count the PDUs of each direction. A PDU that was changed, repeated, left out
//! or sent back opens with an error, after which the connection must end.
//! Truth: `docs/standards/block-protection.md`, "Headers".
//!
//! MAC input: direction 1, connection 2, counter 8, BHS, all AHS, as on the wire.
//! MAC input of a data segment: direction plus 128, connection, counter, data as on the wire.
//! Initialisation vector: AES-ECB(counter 8, direction 1, part 1, zeros 6). M-lazy uses the same 16
//! bytes as first counter block of AES-256-CTR.

use alloc::vec::Vec;

use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::cipher::{
    CIPHER_BLOCK, MacTag, cbc_decrypt, cbc_encrypt, ctr_apply, ecb_encrypt, hmac_md5, hmac_sha256_128,
};
use crate::level::{ProtectionLevel, ProtectionProfile};

/// Bytes of a basic header segment.
pub const BHS_LEN: usize = 48;
/// Position of TotalAHSLength, in 4-byte words.
const TOTAL_AHS: usize = 4;
/// Position of the initiator task tag.
const TASK_TAG: usize = 16;
/// The parts of a header, which are encrypted separately.
const PART_BHS: u8 = 0;
const PART_AHS: u8 = 1;
const PART_DATA: u8 = 2;
/// Added to the direction in the MAC of a data segment.
const DATA_DIRECTION: u8 = 0x80;

/// Direction of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PduDirection {
    /// From the initiator to the target.
    ToTarget,
    /// From the target to the initiator.
    ToInitiator,
}

impl PduDirection {
    const fn code(self) -> u8 {
        match self {
            Self::ToTarget => 1,
            Self::ToInitiator => 2,
        }
    }
}

/// Keys of headers, derived from the session key. The paper's algorithms use 24 and 16 bytes.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct HeaderKeys {
    pub(crate) encryption: [u8; 32],
    pub(crate) authentication: [u8; 32],
}

impl HeaderKeys {
    fn paper_cipher(&self) -> &[u8; 24] {
        self.encryption.first_chunk().expect("24 of 32 bytes")
    }
}

impl core::fmt::Debug for HeaderKeys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("HeaderKeys(..)")
    }
}

/// Why a header was refused. The connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The MAC differs: the PDU was changed, repeated or reordered.
    #[error("MAC of the PDU header differs")]
    Mac,
    /// The MAC of a data segment without blocks differs, or its padding is not zero.
    #[error("MAC of the data segment differs")]
    Segment,
    /// The length of the AHS on the wire differs from that in the BHS.
    #[error("PDU has {found} bytes of additional headers, its header announces {announced}")]
    AhsLength {
        /// Bytes found.
        found: usize,
        /// Bytes announced, as on the wire.
        announced: usize,
    },
    /// All values of the PDU counter were used.
    #[error("PDU counter exhausted: log in again")]
    CounterExhausted,
}

/// Returns the length on the wire of AHS of this length at a level.
#[must_use]
pub const fn padded_ahs_length(level: ProtectionLevel, length: usize) -> usize {
    if level.encrypts_headers() && !level.is_modern() {
        length.next_multiple_of(CIPHER_BLOCK)
    } else {
        length
    }
}

/// State that both ends of one direction have.
struct HeaderState {
    keys: HeaderKeys,
    level: ProtectionLevel,
    counts_pdus: bool,
    direction: PduDirection,
    connection: u16,
    counter: u64,
}

impl HeaderState {
    /// Returns 16 bytes that no other part of a PDU of the session has.
    fn unique_block(&self, part: u8, counter: u64) -> [u8; CIPHER_BLOCK] {
        let mut block = [0; CIPHER_BLOCK];
        // Without a counter the receiver has no unique value of the PDU before it has decrypted it.
        let counter = if self.counts_pdus { counter } else { 0 };
        block[..8].copy_from_slice(&counter.to_be_bytes());
        (block[8], block[9]) = (self.direction.code(), part);
        block
    }

    /// Encrypts a part of the PDU with this number in place.
    fn encrypt(&self, part: u8, counter: u64, data: &mut [u8]) {
        let block = self.unique_block(part, counter);
        if self.level.is_modern() {
            return ctr_apply(&self.keys.encryption, &block, data);
        }
        let key = self.keys.paper_cipher();
        cbc_encrypt(key, &ecb_encrypt(key, block), data);
    }

    /// Reverts [`Self::encrypt`].
    fn decrypt(&self, part: u8, counter: u64, data: &mut [u8]) {
        let block = self.unique_block(part, counter);
        if self.level.is_modern() {
            return ctr_apply(&self.keys.encryption, &block, data);
        }
        let key = self.keys.paper_cipher();
        cbc_decrypt(key, &ecb_encrypt(key, block), data);
    }

    fn tag(&self, parts: &[&[u8]]) -> MacTag {
        let key = &self.keys.authentication;
        if self.level.is_modern() { hmac_sha256_128(key, parts) } else { hmac_md5(&key[..16], parts) }
    }

    fn nonce(&self, plain: &[u8; BHS_LEN], counter: u64) -> u64 {
        if self.counts_pdus {
            counter
        } else {
            let tag = plain[TASK_TAG..TASK_TAG + 4].try_into().expect("4 bytes");
            u64::from(u32::from_be_bytes(tag))
        }
    }

    fn segment_mac(&self, plain: &[u8; BHS_LEN], counter: u64, wire: &[u8]) -> MacTag {
        let nonce = self.nonce(plain, counter).to_be_bytes();
        let direction = [self.direction.code() | DATA_DIRECTION];
        self.tag(&[&direction, &self.connection.to_be_bytes(), &nonce, wire])
    }

    fn mac(&self, plain: &[u8; BHS_LEN], bhs: &[u8; BHS_LEN], ahs: &[u8]) -> MacTag {
        let nonce = self.nonce(plain, self.counter);
        let parts: [&[u8]; 5] =
            [&[self.direction.code()], &self.connection.to_be_bytes(), &nonce.to_be_bytes(), bhs, ahs];
        self.tag(&parts)
    }

    fn announced(&self, plain: &[u8; BHS_LEN]) -> usize {
        padded_ahs_length(self.level, usize::from(plain[TOTAL_AHS]) * 4)
    }

    fn advance(&mut self) -> Result<(), HeaderError> {
        self.counter = self.counter.checked_add(1).ok_or(HeaderError::CounterExhausted)?;
        Ok(())
    }
}

/// Seals the headers of one direction.
pub struct HeaderSealer(HeaderState);

impl HeaderSealer {
    /// Creates the sending end. A connection has one sealer for each direction.
    #[must_use]
    pub const fn new(
        keys: HeaderKeys,
        level: ProtectionLevel,
        profile: ProtectionProfile,
        direction: PduDirection,
        connection: u16,
    ) -> Self {
        let counts_pdus = profile.counts_pdus();
        Self(HeaderState { keys, level, counts_pdus, direction, connection, counter: 0 })
    }

    /// Whether each header has a MAC.
    pub(crate) const fn has_header_mac(&self) -> bool {
        self.0.level.has_header_mac()
    }

    /// Returns the length on the wire of a data segment without blocks.
    pub(crate) const fn wire_segment_len(&self, length: usize) -> usize {
        padded_ahs_length(self.0.level, length)
    }

    /// Seals a data segment without blocks, before its header is sealed. Returns its MAC; `None` if
    /// the level has no header MACs.
    pub(crate) fn seal_segment(&self, bhs: &[u8; BHS_LEN], data: &mut Vec<u8>) -> Option<MacTag> {
        let state = &self.0;
        if state.level.encrypts_headers() {
            data.resize(self.wire_segment_len(data.len()), 0);
            state.encrypt(PART_DATA, state.counter, data);
        }
        state.level.has_header_mac().then(|| state.segment_mac(bhs, state.counter, data))
    }

    /// Seals a header in place, and pads its AHS for encryption. Returns the MAC that follows the
    /// AHS; `None` if the level has none.
    ///
    /// # Errors
    /// `AhsLength` if the BHS announces another length, `CounterExhausted` after 2^64 - 1 PDUs.
    pub fn seal(
        &mut self,
        bhs: &mut [u8; BHS_LEN],
        ahs: &mut Vec<u8>,
    ) -> Result<Option<MacTag>, HeaderError> {
        let state = &mut self.0;
        let plain = *bhs;
        let (announced, found) = (state.announced(&plain), padded_ahs_length(state.level, ahs.len()));
        if announced != found || ahs.len() != usize::from(plain[TOTAL_AHS]) * 4 {
            return Err(HeaderError::AhsLength { found, announced });
        }
        if state.counter == u64::MAX {
            return Err(HeaderError::CounterExhausted);
        }
        if state.level.encrypts_headers() {
            state.encrypt(PART_BHS, state.counter, bhs);
            ahs.resize(found, 0);
            state.encrypt(PART_AHS, state.counter, ahs);
        }
        let mac = state.level.has_header_mac().then(|| state.mac(&plain, bhs, ahs));
        state.advance()?;
        Ok(mac)
    }
}

/// Opens the headers of one direction.
pub struct HeaderOpener(HeaderState);

/// A header of which the BHS has arrived. Its fields are not authentic yet.
pub struct OpeningHeader {
    plain: [u8; BHS_LEN],
    wire: [u8; BHS_LEN],
    ahs_len: usize,
}

impl OpeningHeader {
    /// Returns the bytes of AHS that follow on the wire, at most 1024.
    #[must_use]
    pub const fn wire_ahs_len(&self) -> usize {
        self.ahs_len
    }
}

impl HeaderOpener {
    /// Creates the receiving end.
    #[must_use]
    pub const fn new(
        keys: HeaderKeys,
        level: ProtectionLevel,
        profile: ProtectionProfile,
        direction: PduDirection,
        connection: u16,
    ) -> Self {
        let counts_pdus = profile.counts_pdus();
        Self(HeaderState { keys, level, counts_pdus, direction, connection, counter: 0 })
    }

    /// Returns the number of the next PDU.
    pub(crate) const fn counter(&self) -> u64 {
        self.0.counter
    }

    /// Opens a data segment without blocks in place. `bhs` is the opened header, `counter` the
    /// number of the PDU, `length` the plain length.
    pub(crate) fn open_segment(
        &self,
        bhs: &[u8; BHS_LEN],
        counter: u64,
        data: &mut Vec<u8>,
        length: usize,
        mac: Option<&MacTag>,
    ) -> Result<(), HeaderError> {
        let state = &self.0;
        let is_authentic = match (state.level.has_header_mac(), mac) {
            (false, None) => true,
            (true, Some(mac)) => state.segment_mac(bhs, counter, data).ct_eq(mac).into(),
            _ => false,
        };
        if !is_authentic {
            return Err(HeaderError::Segment);
        }
        if state.level.encrypts_headers() {
            state.decrypt(PART_DATA, counter, data);
        }
        if data.get(length..).is_none_or(|padding| padding.iter().any(|byte| *byte != 0)) {
            return Err(HeaderError::Segment);
        }
        data.truncate(length);
        Ok(())
    }

    /// Decrypts the first 48 bytes of a PDU.
    #[must_use]
    pub fn begin(&self, wire: [u8; BHS_LEN]) -> OpeningHeader {
        let state = &self.0;
        let mut plain = wire;
        if state.level.encrypts_headers() {
            state.decrypt(PART_BHS, state.counter, &mut plain);
        }
        OpeningHeader { ahs_len: state.announced(&plain), plain, wire }
    }

    /// Checks the MAC, and decrypts the AHS in place without the padding of encryption. Returns the
    /// BHS. `mac` must be present exactly if the level has header MACs.
    ///
    /// # Errors
    /// See [`HeaderError`]; the caller must then end the connection.
    pub fn finish(
        &mut self,
        header: OpeningHeader,
        ahs: &mut Vec<u8>,
        mac: Option<&MacTag>,
    ) -> Result<[u8; BHS_LEN], HeaderError> {
        let state = &mut self.0;
        if ahs.len() != header.ahs_len {
            return Err(HeaderError::AhsLength { found: ahs.len(), announced: header.ahs_len });
        }
        if state.counter == u64::MAX {
            return Err(HeaderError::CounterExhausted);
        }
        match (state.level.has_header_mac(), mac) {
            (false, None) => {}
            (true, Some(mac)) => {
                let expected = state.mac(&header.plain, &header.wire, ahs);
                if !bool::from(expected.ct_eq(mac)) {
                    return Err(HeaderError::Mac);
                }
            }
            _ => return Err(HeaderError::Mac),
        }
        if state.level.encrypts_headers() {
            state.decrypt(PART_AHS, state.counter, ahs);
            ahs.truncate(usize::from(header.plain[TOTAL_AHS]) * 4);
        }
        state.advance()?;
        Ok(header.plain)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec;

    use super::*;

    const LEVELS: [ProtectionLevel; 3] =
        [ProtectionLevel::S1LazyMac, ProtectionLevel::S2LazyCipherMac, ProtectionLevel::ModernLazy];

    fn keys() -> HeaderKeys {
        HeaderKeys { encryption: [3; 32], authentication: [4; 32] }
    }

    fn ends(level: ProtectionLevel, profile: ProtectionProfile) -> (HeaderSealer, HeaderOpener) {
        let direction = PduDirection::ToTarget;
        (
            HeaderSealer::new(keys(), level, profile, direction, 1),
            HeaderOpener::new(keys(), level, profile, direction, 1),
        )
    }

    fn header(words: u8, tag: u32) -> ([u8; BHS_LEN], Vec<u8>) {
        let mut bhs = [0x11; BHS_LEN];
        bhs[TOTAL_AHS] = words;
        bhs[TASK_TAG..TASK_TAG + 4].copy_from_slice(&tag.to_be_bytes());
        (bhs, vec![0x22; usize::from(words) * 4])
    }

    struct SealedHeader {
        bhs: [u8; BHS_LEN],
        ahs: Vec<u8>,
        mac: MacTag,
    }

    fn seal(sealer: &mut HeaderSealer, words: u8, tag: u32) -> SealedHeader {
        let (mut bhs, mut ahs) = header(words, tag);
        let mac = sealer.seal(&mut bhs, &mut ahs).unwrap().unwrap();
        SealedHeader { bhs, ahs, mac }
    }

    fn open(
        opener: &mut HeaderOpener,
        sealed: &SealedHeader,
    ) -> Result<([u8; BHS_LEN], Vec<u8>), HeaderError> {
        let mut ahs = sealed.ahs.clone();
        let header = opener.begin(sealed.bhs);
        let bhs = opener.finish(header, &mut ahs, Some(&sealed.mac))?;
        Ok((bhs, ahs))
    }

    #[test]
    fn sealed_headers_open_in_order() {
        for level in LEVELS {
            for profile in ProtectionProfile::ALL {
                let (mut sealer, mut opener) = ends(level, profile);
                for words in [0, 1, 4, 5, 255, 0] {
                    let sealed = seal(&mut sealer, words, 9);
                    assert_eq!(open(&mut opener, &sealed).unwrap(), header(words, 9), "{level} {profile}");
                }
            }
        }
    }

    #[test]
    fn encrypted_headers_without_mac_open() {
        let (mut sealer, mut opener) = ends(ProtectionLevel::S2LazyCipher, ProtectionProfile::Paper);
        let (mut bhs, mut ahs) = header(3, 1);
        assert_eq!(sealer.seal(&mut bhs, &mut ahs), Ok(None));
        assert_eq!(ahs.len(), 16);
        let opening = opener.begin(bhs);
        assert_eq!(opening.wire_ahs_len(), 16);
        assert_eq!(opener.finish(opening, &mut ahs, None).map(|bhs| (bhs, ahs)), Ok(header(3, 1)));
    }

    #[test]
    fn every_flipped_bit_of_header_is_refused() {
        for level in LEVELS {
            let good = seal(&mut ends(level, ProtectionProfile::Paper).0, 5, 9);
            let wire = [&good.bhs[..], &good.ahs, &good.mac].concat();
            for bit in 0..wire.len() * 8 {
                let mut bytes = wire.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let (bhs, rest) = bytes.split_at(BHS_LEN);
                let (ahs, mac) = rest.split_at(rest.len() - 16);
                let (bhs, mac) = (bhs.try_into().unwrap(), mac.try_into().unwrap());
                let changed = SealedHeader { bhs, ahs: ahs.to_vec(), mac };
                let opened = open(&mut ends(level, ProtectionProfile::Paper).1, &changed);
                assert!(opened.is_err(), "{level} bit {bit}");
            }
        }
    }

    /// L3: a repeated, swapped or reflected PDU, and one of another connection.
    #[test]
    fn replayed_and_reordered_headers_are_refused() {
        for level in LEVELS {
            let (mut sealer, mut opener) = ends(level, ProtectionProfile::PaperSafe);
            let (first, second) = (seal(&mut sealer, 0, 9), seal(&mut sealer, 0, 9));
            assert!(open(&mut ends(level, ProtectionProfile::PaperSafe).1, &second).is_err());
            assert!(open(&mut opener, &first).is_ok());
            assert!(open(&mut opener, &first).is_err(), "{level}");
            let profile = ProtectionProfile::PaperSafe;
            let mut back = HeaderOpener::new(keys(), level, profile, PduDirection::ToInitiator, 1);
            assert!(open(&mut back, &first).is_err());
            let mut other = HeaderOpener::new(keys(), level, profile, PduDirection::ToTarget, 2);
            assert!(open(&mut other, &first).is_err());
        }
    }

    /// L4: the paper's nonce stops no replay, since tags are reused.
    #[test]
    fn task_tag_as_nonce_accepts_a_replay() {
        for level in LEVELS {
            let (mut sealer, mut opener) = ends(level, ProtectionProfile::PaperTaskTag);
            let first = seal(&mut sealer, 2, 9);
            assert!(open(&mut opener, &first).is_ok() && open(&mut opener, &first).is_ok());
            let mut other = seal(&mut sealer, 2, 10);
            other.mac = first.mac;
            assert_eq!(open(&mut opener, &other).unwrap_err(), HeaderError::Mac);
        }
    }

    #[test]
    fn header_without_mac_is_refused() {
        let (mut sealer, mut opener) = ends(ProtectionLevel::S1LazyMac, ProtectionProfile::Paper);
        let mut sealed = seal(&mut sealer, 0, 9);
        let opening = opener.begin(sealed.bhs);
        assert_eq!(opener.finish(opening, &mut sealed.ahs, None), Err(HeaderError::Mac));
    }

    #[test]
    fn exhausted_counter_ends_the_connection() {
        let (mut sealer, mut opener) = ends(ProtectionLevel::S1LazyMac, ProtectionProfile::Paper);
        (sealer.0.counter, opener.0.counter) = (u64::MAX - 1, u64::MAX - 1);
        let sealed = seal(&mut sealer, 0, 9);
        assert!(open(&mut opener, &sealed).is_ok());
        assert_eq!(open(&mut opener, &sealed).unwrap_err(), HeaderError::CounterExhausted);
        let (mut bhs, mut ahs) = header(0, 9);
        assert_eq!(sealer.seal(&mut bhs, &mut ahs), Err(HeaderError::CounterExhausted));
        let (mut bhs, _) = header(1, 9);
        let error = HeaderError::AhsLength { found: 0, announced: 4 };
        assert_eq!(sealer.seal(&mut bhs, &mut ahs), Err(error));
    }

    proptest! {
        #[test]
        fn any_header_opens_as_sealed(bhs: [u8; 32], words in 0..=255_u8, level in 0..3_usize) {
            let (mut sealer, mut opener) = ends(LEVELS[level], ProtectionProfile::Paper);
            let (mut plain, plain_ahs) = header(words, 1);
            plain[16..].copy_from_slice(&bhs);
            let (mut wire, mut ahs) = (plain, plain_ahs.clone());
            let mac = sealer.seal(&mut wire, &mut ahs).unwrap();
            let opening = opener.begin(wire);
            prop_assert_eq!(opening.wire_ahs_len(), ahs.len());
            prop_assert_eq!(opener.finish(opening, &mut ahs, mac.as_ref()), Ok(plain));
            prop_assert_eq!(ahs, plain_ahs);
        }
    }
}
