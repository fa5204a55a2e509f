//! Protection of a connection's PDUs at the levels with keys of blocks.
//!
//! Does: splits both directions of the plain stream into PDUs; seals and opens their headers; adds
//! and removes key lists, MACs of blocks, and the protection of other data segments.
//! Does not: know tasks; [`PduBlocks`] selects the data segments that consist of blocks.
//! Contract: every plain byte that comes out belongs to a PDU whose header was authentic. After an
//! error nothing comes out. Digests of iSCSI are off.
//! Truth: `docs/standards/block-protection.md`, "PDUs".
//!
//! ```text
//! with blocks:     BHS | AHS with the key list | header MAC | data | n block MACs
//! with other data: BHS | AHS | header MAC | data, encrypted under Ck if headers are | data MAC
//! ```

use alloc::boxed::Box;
use alloc::vec::Vec;

use zeroize::{Zeroize as _, Zeroizing};

use crate::cipher::{MAC_LEN, MacTag};
use crate::header::{BHS_LEN, HeaderError, HeaderOpener, HeaderSealer, OpeningHeader};
use crate::key_list::{
    AHS_UNCOUNTED, BlockKeyList, KEY_LIST_FIXED, KEY_LIST_TYPE, KeyListError, KeyListForm,
};

/// Maximum bytes of a data segment.
pub const PDU_DATA_MAX: usize = 1 << 20;
/// Position of TotalAHSLength, in 4-byte words, and of DataSegmentLength.
const TOTAL_AHS: usize = 4;
const DATA_LENGTH: usize = 5;

/// A basic header segment.
pub type PduHeader = [u8; BHS_LEN];

/// Why a connection with protected PDUs cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PduError {
    /// The header was changed, repeated or reordered.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The key list of a PDU is malformed.
    #[error(transparent)]
    KeyList(#[from] KeyListError),
    /// A data segment is longer than this end accepts.
    #[error("data segment of {0} bytes is too long")]
    DataLength(usize),
    /// A PDU has blocks without keys, or keys without blocks.
    #[error("keys of blocks are missing or superfluous in a PDU with opcode {0:#04x}")]
    Keys(u8),
    /// A generation is not higher than all before it, so that it may have been used before.
    #[error("generation of block {0} was used before")]
    Generation(u64),
    /// All generations of the session were used.
    #[error("generations of the session are used up: log in again")]
    GenerationsExhausted,
    /// An earlier PDU failed.
    #[error("the stream of PDUs has failed before")]
    Failed,
}

/// Keys and MACs of the blocks of one data segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSeals {
    /// Address and keys of the blocks.
    pub list: BlockKeyList,
    /// MAC of each block; empty at levels without.
    pub macs: Vec<MacTag>,
}

/// One end's tasks with blocks.
pub trait PduBlocks: Send {
    /// Called for each PDU before it is sent; may seal the data. Returns keys and MACs of its
    /// blocks.
    ///
    /// # Errors
    /// If the connection must end.
    fn sending(&mut self, bhs: &PduHeader, data: &mut [u8]) -> Result<Option<SegmentSeals>, PduError>;

    /// Called for each received PDU; may open its data, and change or replace the PDU.
    ///
    /// # Errors
    /// If the connection must end.
    fn received(
        &mut self,
        bhs: &mut PduHeader,
        data: &mut Vec<u8>,
        seals: Option<SegmentSeals>,
    ) -> Result<AppendedPdu, PduError>;
}

/// A PDU without AHS that follows a received one, with its data.
pub type AppendedPdu = Option<(PduHeader, Vec<u8>)>;

/// Part of an incoming PDU that is awaited.
enum ReceivingStage {
    Bhs,
    Ahs(OpeningHeader),
    Data(ReceivingData),
}

/// A data segment of which a part was received.
struct ReceivingData {
    bhs: PduHeader,
    /// Has the keys of blocks, without encryption.
    ahs: Zeroizing<Vec<u8>>,
    list: Option<BlockKeyList>,
    counter: u64,
    /// Bytes of the segment on the wire, without padding, and of all that follows the header.
    segment_len: usize,
    wire_len: usize,
    body: Vec<u8>,
}

/// Protection of the PDUs of a connection, both directions.
pub struct PduProtection {
    form: KeyListForm,
    sealer: HeaderSealer,
    opener: HeaderOpener,
    blocks: Box<dyn PduBlocks>,
    /// The beginning of a PDU to be sealed.
    plain: Vec<u8>,
    /// The beginning of a received header.
    wire: Vec<u8>,
    stage: ReceivingStage,
    failed: bool,
}

/// Returns DataSegmentLength.
const fn data_length(bhs: &PduHeader) -> usize {
    (bhs[DATA_LENGTH] as usize) << 16 | (bhs[DATA_LENGTH + 1] as usize) << 8 | bhs[DATA_LENGTH + 2] as usize
}

/// Lengths of a plain PDU: of the header with its AHS, of the data, and of all with padding.
struct PlainLengths {
    head: usize,
    data: usize,
    total: usize,
}

impl PlainLengths {
    /// Returns the lengths of the PDU that begins here; `None` if its header is not complete.
    fn of(bytes: &[u8]) -> Result<Option<Self>, PduError> {
        let Some(bhs) = bytes.first_chunk::<BHS_LEN>() else { return Ok(None) };
        let (head, data) = (BHS_LEN + usize::from(bhs[TOTAL_AHS]) * 4, data_length(bhs));
        if data > PDU_DATA_MAX {
            return Err(PduError::DataLength(data));
        }
        Ok(Some(Self { head, data, total: head + data.next_multiple_of(4) }))
    }
}

/// Moves bytes to `held` until it has `length`; returns whether it has.
fn fill<'a>(held: &mut Vec<u8>, bytes: &mut &'a [u8], length: usize) -> bool {
    let missing = length.saturating_sub(held.len()).min(bytes.len());
    let whole: &'a [u8] = bytes;
    let (part, rest) = whole.split_at(missing);
    held.extend_from_slice(part);
    *bytes = rest;
    held.len() >= length
}

fn set_lengths(bhs: &mut PduHeader, ahs: usize, data: usize) {
    bhs[TOTAL_AHS] = u8::try_from(ahs / 4).unwrap_or(u8::MAX);
    let length = u32::try_from(data).unwrap_or(u32::MAX).to_be_bytes();
    bhs[DATA_LENGTH..DATA_LENGTH + 3].copy_from_slice(&length[1..]);
}

impl PduProtection {
    /// Creates the protection of a connection. Both headers have the level of `form`.
    #[must_use]
    pub fn new(
        form: KeyListForm,
        sealer: HeaderSealer,
        opener: HeaderOpener,
        blocks: Box<dyn PduBlocks>,
    ) -> Self {
        let (plain, wire, stage) = (Vec::new(), Vec::new(), ReceivingStage::Bhs);
        Self { form, sealer, opener, blocks, plain, wire, stage, failed: false }
    }

    /// Takes bytes of the plain stream, and appends all complete PDUs as they go to the wire. Data
    /// that arrive in one piece with their header, or after it, are copied once.
    ///
    /// # Errors
    /// See [`PduError`].
    pub fn seal(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), PduError> {
        let mut plain = core::mem::take(&mut self.plain);
        loop {
            if plain.is_empty()
                && let Some(lengths) = PlainLengths::of(bytes)?
                && let Some((pdu, rest)) = bytes.split_at_checked(lengths.total)
            {
                let (head, data) = pdu.split_at(lengths.head);
                self.seal_pdu(head, &data[..lengths.data], out)?;
                bytes = rest;
                continue;
            }
            if !fill(&mut plain, &mut bytes, BHS_LEN) {
                break;
            }
            let Some(lengths) = PlainLengths::of(&plain)? else { break };
            if !fill(&mut plain, &mut bytes, lengths.head) {
                break;
            }
            match bytes.split_at_checked(lengths.total - lengths.head) {
                Some((data, rest)) if plain.len() == lengths.head => {
                    self.seal_pdu(&plain, &data[..lengths.data], out)?;
                    bytes = rest;
                }
                _ if fill(&mut plain, &mut bytes, lengths.total) => {
                    let (head, data) = plain.split_at(lengths.head);
                    let has_blocks = self.seal_pdu(head, &data[..lengths.data], out)?;
                    if !has_blocks {
                        // Other data can be the keys of a unit.
                        plain.as_mut_slice().zeroize();
                    }
                }
                _ => break,
            }
            plain.clear();
        }
        self.plain = plain;
        Ok(())
    }

    /// Appends one PDU as it goes to the wire; nothing after an error. Returns whether its data are
    /// blocks.
    fn seal_pdu(&mut self, head: &[u8], data: &[u8], out: &mut Vec<u8>) -> Result<bool, PduError> {
        let start = out.len();
        let sealed = self.seal_at(start, head, data, out);
        if sealed.is_err() {
            out.truncate(start);
        }
        sealed
    }

    fn seal_at(
        &mut self,
        start: usize,
        head: &[u8],
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool, PduError> {
        let (bhs, ahs) = head.split_first_chunk::<BHS_LEN>().ok_or(PduError::Failed)?;
        let (mut bhs, mut ahs) = (*bhs, ahs.to_vec());
        // Data are sealed at their place on the wire, which is right if whole blocks have keys.
        let expected = self.expected_head_len(ahs.len(), data.len());
        let place = start + expected;
        out.resize(place, 0);
        out.extend_from_slice(data);
        let seals = self.blocks.sending(&bhs, &mut out[place..])?;
        let mut data_mac = None;
        if let Some(seals) = &seals {
            seals.list.check_data(self.form, data.len())?;
            ahs.extend_from_slice(&seals.list.encode(self.form)?);
            set_lengths(&mut bhs, ahs.len(), data.len());
        } else if !data.is_empty() {
            let mut segment = out.split_off(place);
            data_mac = self.sealer.seal_segment(&bhs, &mut segment);
            out.extend_from_slice(&segment);
        }
        let mac = self.sealer.seal(&mut bhs, &mut ahs)?;
        let mac = mac.as_ref().map_or(&[][..], |mac| mac);
        let found = BHS_LEN + ahs.len() + mac.len();
        if found != expected {
            out.splice(start..place, core::iter::repeat_n(0, found));
        }
        let mut rest = &mut out[start..start + found];
        for part in [&bhs[..], &ahs, mac] {
            let (place, next) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = next;
        }
        let padded = (out.len() - start - found).next_multiple_of(4);
        out.resize(start + found + padded, 0);
        out.extend_from_slice(data_mac.as_ref().map_or(&[][..], |mac| mac));
        for mac in seals.iter().flat_map(|seals| &seals.macs) {
            out.extend_from_slice(mac);
        }
        Ok(seals.is_some())
    }

    /// Returns the length of a header on the wire if whole blocks have keys.
    fn expected_head_len(&self, ahs: usize, data: usize) -> usize {
        let block = self.form.block.bytes();
        let list = match data / block {
            blocks @ 1.. if data.is_multiple_of(block) => {
                (KEY_LIST_FIXED + blocks * self.form.scheme.entry_len()).next_multiple_of(4)
            }
            _ => 0,
        };
        let mac = if self.sealer.has_header_mac() { MAC_LEN } else { 0 };
        BHS_LEN + self.sealer.wire_segment_len(ahs + list) + mac
    }

    /// Takes bytes from the wire, and appends all complete PDUs as plain ones.
    ///
    /// # Errors
    /// See [`PduError`]; PDUs that were appended before are authentic.
    pub fn open(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), PduError> {
        if self.failed {
            return Err(PduError::Failed);
        }
        let mut wire = core::mem::take(&mut self.wire);
        let is_held = !wire.is_empty();
        if is_held {
            wire.extend_from_slice(bytes);
        }
        let mut rest = if is_held { &wire[..] } else { bytes };
        loop {
            match self.advance(&mut rest, out) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.failed = true;
                    return Err(error);
                }
            }
        }
        // At most a part of a header remains: data are collected as they arrive.
        let left = rest.len();
        if is_held {
            let used = wire.len() - left;
            wire.drain(..used);
        } else {
            wire.extend_from_slice(&bytes[bytes.len() - left..]);
        }
        self.wire = wire;
        Ok(())
    }

    /// Processes the next part of a PDU; returns false if it is not complete.
    fn advance(&mut self, rest: &mut &[u8], out: &mut Vec<u8>) -> Result<bool, PduError> {
        fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
            let whole: &'a [u8] = rest;
            let (part, next) = whole.split_at_checked(length)?;
            *rest = next;
            Some(part)
        }
        let has_header_mac = self.sealer.has_header_mac();
        match &mut self.stage {
            ReceivingStage::Bhs => {
                let Some(part) = take(rest, BHS_LEN) else { return Ok(false) };
                let bhs = part.try_into().expect("a header has 48 bytes");
                self.stage = ReceivingStage::Ahs(self.opener.begin(bhs));
            }
            ReceivingStage::Ahs(header) => {
                let length = header.wire_ahs_len();
                let mac_len = if has_header_mac { MAC_LEN } else { 0 };
                let Some(part) = take(rest, length + mac_len) else { return Ok(false) };
                let (ahs, mac) = part.split_at(length);
                let mut ahs = Zeroizing::new(ahs.to_vec());
                let mac: Option<&MacTag> = mac.first_chunk();
                let stage = core::mem::replace(&mut self.stage, ReceivingStage::Bhs);
                let ReceivingStage::Ahs(header) = stage else { return Err(PduError::Failed) };
                let counter = self.opener.counter();
                let bhs = self.opener.finish(header, &mut ahs, mac)?;
                if data_length(&bhs) > PDU_DATA_MAX {
                    return Err(PduError::DataLength(data_length(&bhs)));
                }
                let list = BlockKeyList::find(&ahs, self.form)?;
                self.stage = ReceivingStage::Data(self.begin_data(bhs, ahs, list, counter));
            }
            ReceivingStage::Data(receiving) => {
                fill(&mut receiving.body, rest, receiving.wire_len);
                if receiving.body.len() < receiving.wire_len {
                    return Ok(false);
                }
                let stage = core::mem::replace(&mut self.stage, ReceivingStage::Bhs);
                let ReceivingStage::Data(received) = stage else { return Err(PduError::Failed) };
                self.finish_data(received, out)?;
            }
        }
        Ok(true)
    }

    /// Computes which bytes follow a header.
    fn begin_data(
        &self,
        bhs: PduHeader,
        ahs: Zeroizing<Vec<u8>>,
        list: Option<BlockKeyList>,
        counter: u64,
    ) -> ReceivingData {
        let data = data_length(&bhs);
        let segment_len = if list.is_some() { data } else { self.sealer.wire_segment_len(data) };
        let macs = match &list {
            Some(list) if self.form.scheme.has_authentication() => list.keys.len(),
            None if data > 0 && self.sealer.has_header_mac() => 1,
            _ => 0,
        };
        let wire_len = segment_len.next_multiple_of(4) + macs * MAC_LEN;
        // The length was compared with its limit.
        let body = Vec::with_capacity(wire_len);
        ReceivingData { bhs, ahs, list, counter, segment_len, wire_len, body }
    }

    /// Opens a data segment that is complete, and appends its PDU.
    fn finish_data(&mut self, received: ReceivingData, out: &mut Vec<u8>) -> Result<(), PduError> {
        let ReceivingData { bhs, ahs, list, counter, segment_len, mut body, .. } = received;
        let macs: Vec<MacTag> = body[segment_len.next_multiple_of(4)..].as_chunks().0.to_vec();
        body.truncate(segment_len);
        let data = data_length(&bhs);
        let seals = match list {
            Some(list) => Some(SegmentSeals { list, macs }),
            None if data == 0 => None,
            None => {
                self.opener.open_segment(&bhs, counter, &mut body, data, macs.first())?;
                None
            }
        };
        self.emit(bhs, &ahs, body, seals, out)
    }

    fn emit(
        &mut self,
        mut bhs: PduHeader,
        ahs: &[u8],
        mut data: Vec<u8>,
        seals: Option<SegmentSeals>,
        out: &mut Vec<u8>,
    ) -> Result<(), PduError> {
        let ahs = without_key_list(ahs);
        let appended = self.blocks.received(&mut bhs, &mut data, seals)?;
        let mut put = |mut bhs: PduHeader, ahs: &[u8], data: &[u8]| {
            set_lengths(&mut bhs, ahs.len(), data.len());
            out.extend_from_slice(&bhs);
            out.extend_from_slice(ahs);
            let padded = out.len() + data.len().next_multiple_of(4);
            out.extend_from_slice(data);
            out.resize(padded, 0);
        };
        put(bhs, &ahs, &data);
        if let Some((bhs, data)) = appended {
            put(bhs, &[], &data);
        }
        Ok(())
    }
}

/// Returns the AHS of a PDU except key lists. The list was parsed before, so lengths are right.
fn without_key_list(mut all: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(all.len());
    while let [high, low, kind, ..] = *all {
        let length = usize::from(u16::from_be_bytes([high, low])) + AHS_UNCOUNTED;
        let (one, rest) = all.split_at(length.next_multiple_of(4).min(all.len()));
        if kind != KEY_LIST_TYPE {
            kept.extend_from_slice(one);
        }
        all = rest;
    }
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec;

    use super::*;
    use crate::block_keys::BlockKeys;
    use crate::header::{HeaderKeys, PduDirection};
    use crate::key_list::KeyScheme;
    use crate::level::{ProtectedBlock, ProtectionLevel, ProtectionProfile};

    /// Adds keys to data of whole blocks, and expects what was added.
    struct MarkedBlocks(KeyListForm);

    impl PduBlocks for MarkedBlocks {
        fn sending(&mut self, bhs: &PduHeader, data: &mut [u8]) -> Result<Option<SegmentSeals>, PduError> {
            let blocks = data.len() / 512;
            if bhs[0] != 0x05 || blocks == 0 || !data.len().is_multiple_of(512) {
                return Ok(None);
            }
            let keys = BlockKeys::generate(self.0.scheme, &mut |into| into.fill(3));
            let list = BlockKeyList { first_lba: 7, keys: vec![keys; blocks] };
            let macs = if self.0.scheme.has_authentication() { vec![[9; 16]; blocks] } else { Vec::new() };
            Ok(Some(SegmentSeals { list, macs }))
        }

        fn received(
            &mut self,
            bhs: &mut PduHeader,
            data: &mut Vec<u8>,
            seals: Option<SegmentSeals>,
        ) -> Result<AppendedPdu, PduError> {
            let expected = self.sending(bhs, data)?.map(|seals| seals.list);
            let found = seals.map(|seals| seals.list);
            if found == expected { Ok(None) } else { Err(PduError::Keys(bhs[0])) }
        }
    }

    const LEVELS: [ProtectionLevel; 4] = [
        ProtectionLevel::S1LazyMac,
        ProtectionLevel::S2LazyCipher,
        ProtectionLevel::S2LazyCipherMac,
        ProtectionLevel::ModernLazy,
    ];
    const MAC_LEVELS: [ProtectionLevel; 3] =
        [ProtectionLevel::S1LazyMac, ProtectionLevel::S2LazyCipherMac, ProtectionLevel::ModernLazy];

    fn end(level: ProtectionLevel) -> PduProtection {
        let profile =
            if level.is_modern() { ProtectionProfile::Modern } else { ProtectionProfile::PaperSafe };
        let scheme = level.key_scheme().unwrap_or(KeyScheme::Both);
        let form = KeyListForm { scheme, block: ProtectedBlock::B512, profile };
        let keys = || HeaderKeys { encryption: [1; 32], authentication: [2; 32] };
        let direction = PduDirection::ToTarget;
        let sealer = HeaderSealer::new(keys(), level, profile, direction, 0);
        let opener = HeaderOpener::new(keys(), level, profile, direction, 0);
        PduProtection::new(form, sealer, opener, Box::new(MarkedBlocks(form)))
    }

    /// Returns a plain PDU.
    fn pdu(opcode: u8, ahs: &[u8], data: &[u8]) -> Vec<u8> {
        let mut bhs = [0; BHS_LEN];
        bhs[0] = opcode;
        set_lengths(&mut bhs, ahs.len(), data.len());
        let mut out = [&bhs[..], ahs, data].concat();
        out.resize(BHS_LEN + ahs.len() + data.len().next_multiple_of(4), 0);
        out
    }

    fn stream() -> Vec<u8> {
        let extended = [0, 5, 1, 0, 9, 9, 9, 9];
        [
            pdu(0x01, &extended, b"a list of parameters"),
            pdu(0x05, &[], &[0x77; 1024]),
            pdu(0x00, &[], &[]),
            pdu(0x05, &extended, &[0x78; 512]),
        ]
        .concat()
    }

    #[test]
    fn plain_stream_is_independent_of_chunk_boundaries() {
        for level in LEVELS {
            let plain = stream();
            for piece in [1, 48, 600, plain.len()] {
                let (mut sealer, mut opener) = (end(level), end(level));
                let (mut wire, mut out) = (Vec::new(), Vec::new());
                plain.chunks(piece).for_each(|bytes| sealer.seal(bytes, &mut wire).unwrap());
                wire.chunks(piece).for_each(|bytes| opener.open(bytes, &mut out).unwrap());
                assert!(out == plain, "{level} {piece}");
                let text = b"a list of parameters";
                let is_readable = wire.windows(text.len()).any(|bytes| bytes == text);
                assert_eq!(is_readable, !level.encrypts_headers());
            }
        }
    }

    /// Blocks and their MACs are the business of the ends of the data; all else is authentic.
    #[test]
    fn every_changed_byte_but_blocks_is_refused() {
        for level in MAC_LEVELS {
            let plain = pdu(0x01, &[0, 5, 1, 0, 9, 9, 9, 9], b"a list of parameters");
            let blocks = pdu(0x05, &[], &[0x77; 512]);
            for (plain, covered_end) in [(&plain, 0), (&blocks, 512 + 16)] {
                let mut wire = Vec::new();
                end(level).seal(plain, &mut wire).unwrap();
                for at in 0..wire.len() - covered_end {
                    let mut changed = wire.clone();
                    changed[at] ^= 1 << (at % 8);
                    let mut out = Vec::new();
                    let mut opener = end(level);
                    // A longer length waits for bytes that the MAC then refuses.
                    let opened =
                        opener.open(&changed, &mut out).and_then(|()| opener.open(&[0; 4096], &mut out));
                    assert!(opened.is_err() && out.is_empty(), "{level} byte {at}");
                    assert_eq!(opener.open(&[], &mut out), Err(PduError::Failed));
                }
            }
        }
    }

    #[test]
    fn repeated_and_left_out_pdus_are_refused() {
        for level in MAC_LEVELS {
            let mut sealer = end(level);
            let (mut first, mut second) = (Vec::new(), Vec::new());
            sealer.seal(&pdu(0x01, &[], &[1; 40]), &mut first).unwrap();
            sealer.seal(&pdu(0x01, &[], &[1; 40]), &mut second).unwrap();
            for wire in [[&first[..], &first].concat(), second.clone(), [&second[..], &first].concat()] {
                let (mut opener, mut out) = (end(level), Vec::new());
                // A longer length waits for bytes that the MAC then refuses.
                let opened = opener.open(&wire, &mut out).and_then(|()| opener.open(&[0; 4096], &mut out));
                assert!(opened.is_err(), "{level}");
            }
        }
    }

    #[test]
    fn overlong_segment_is_refused() {
        let mut bhs = [0; BHS_LEN];
        set_lengths(&mut bhs, 0, PDU_DATA_MAX + 1);
        let refused = end(ProtectionLevel::S1LazyMac).seal(&bhs, &mut Vec::new());
        assert_eq!(refused, Err(PduError::DataLength(PDU_DATA_MAX + 1)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_open(bytes in proptest::collection::vec(any::<u8>(), 64..3000), level in 0..4_usize) {
            let mut out = Vec::new();
            let opened = end(LEVELS[level]).open(&bytes, &mut out);
            prop_assert!(opened.is_err() || out.is_empty() || !LEVELS[level].has_header_mac());
        }
    }
}
