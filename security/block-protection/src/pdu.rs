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

use crate::cipher::{MAC_LEN, MacTag};
use crate::header::{BHS_LEN, HeaderError, HeaderOpener, HeaderSealer, OpeningHeader};
use crate::key_list::{AHS_UNCOUNTED, BlockKeyList, KEY_LIST_TYPE, KeyListError, KeyListForm};

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
    Data { bhs: PduHeader, ahs: Vec<u8>, list: Option<BlockKeyList>, counter: u64 },
}

/// Protection of the PDUs of a connection, both directions.
pub struct PduProtection {
    form: KeyListForm,
    sealer: HeaderSealer,
    opener: HeaderOpener,
    blocks: Box<dyn PduBlocks>,
    plain: Vec<u8>,
    wire: Vec<u8>,
    stage: ReceivingStage,
    failed: bool,
}

/// Returns DataSegmentLength.
const fn data_length(bhs: &PduHeader) -> usize {
    (bhs[DATA_LENGTH] as usize) << 16 | (bhs[DATA_LENGTH + 1] as usize) << 8 | bhs[DATA_LENGTH + 2] as usize
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

    /// Takes bytes of the plain stream, and appends all complete PDUs as they go to the wire.
    ///
    /// # Errors
    /// See [`PduError`].
    pub fn seal(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), PduError> {
        self.plain.extend_from_slice(bytes);
        let mut plain = core::mem::take(&mut self.plain);
        let mut rest = &plain[..];
        while let Some(bhs) = rest.first_chunk::<BHS_LEN>() {
            let (ahs, data) = (usize::from(bhs[TOTAL_AHS]) * 4, data_length(bhs));
            if data > PDU_DATA_MAX {
                return Err(PduError::DataLength(data));
            }
            let total = BHS_LEN + ahs + data.next_multiple_of(4);
            let Some((pdu, next)) = rest.split_at_checked(total) else { break };
            let (ahs, data) = (&pdu[BHS_LEN..BHS_LEN + ahs], &pdu[BHS_LEN + ahs..BHS_LEN + ahs + data]);
            self.seal_pdu(*bhs, ahs.to_vec(), data.to_vec(), out)?;
            rest = next;
        }
        let used = plain.len() - rest.len();
        plain.drain(..used);
        self.plain = plain;
        Ok(())
    }

    fn seal_pdu(
        &mut self,
        mut bhs: PduHeader,
        mut ahs: Vec<u8>,
        mut data: Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), PduError> {
        let seals = self.blocks.sending(&bhs, &mut data)?;
        let mut data_mac = None;
        if let Some(seals) = &seals {
            seals.list.check_data(self.form, data.len())?;
            ahs.extend_from_slice(&seals.list.encode(self.form)?);
            set_lengths(&mut bhs, ahs.len(), data.len());
        } else if !data.is_empty() {
            data_mac = self.sealer.seal_segment(&bhs, &mut data);
        }
        let mac = self.sealer.seal(&mut bhs, &mut ahs)?;
        out.extend_from_slice(&bhs);
        out.extend_from_slice(&ahs);
        out.extend_from_slice(mac.as_ref().map_or(&[][..], |mac| mac));
        let padded = out.len() + data.len().next_multiple_of(4);
        out.extend_from_slice(&data);
        out.resize(padded, 0);
        out.extend_from_slice(data_mac.as_ref().map_or(&[][..], |mac| mac));
        for mac in seals.iter().flat_map(|seals| &seals.macs) {
            out.extend_from_slice(mac);
        }
        Ok(())
    }

    /// Takes bytes from the wire, and appends all complete PDUs as plain ones.
    ///
    /// # Errors
    /// See [`PduError`]; PDUs that were appended before are authentic.
    pub fn open(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), PduError> {
        if self.failed {
            return Err(PduError::Failed);
        }
        self.wire.extend_from_slice(bytes);
        let mut wire = core::mem::take(&mut self.wire);
        let mut rest = &wire[..];
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
        // Bytes of a PDU that is not complete stay where they are: no copy for each piece of it.
        let used = wire.len() - rest.len();
        wire.drain(..used);
        self.wire = wire;
        Ok(())
    }

    /// Processes the next part of a PDU; returns false if it is not complete.
    fn advance<'a>(&mut self, rest: &mut &'a [u8], out: &mut Vec<u8>) -> Result<bool, PduError> {
        let mut take = |length: usize| -> Option<&'a [u8]> {
            let whole: &'a [u8] = rest;
            let (part, next) = whole.split_at_checked(length)?;
            *rest = next;
            Some(part)
        };
        let has_header_mac = self.sealer.has_header_mac();
        match &mut self.stage {
            ReceivingStage::Bhs => {
                let Some(part) = take(BHS_LEN) else { return Ok(false) };
                let bhs = part.try_into().expect("a header has 48 bytes");
                self.stage = ReceivingStage::Ahs(self.opener.begin(bhs));
            }
            ReceivingStage::Ahs(header) => {
                let length = header.wire_ahs_len();
                let mac_len = if has_header_mac { MAC_LEN } else { 0 };
                let Some(part) = take(length + mac_len) else { return Ok(false) };
                let (ahs, mac) = part.split_at(length);
                let mut ahs = ahs.to_vec();
                let mac: Option<&MacTag> = mac.first_chunk();
                let stage = core::mem::replace(&mut self.stage, ReceivingStage::Bhs);
                let ReceivingStage::Ahs(header) = stage else { return Err(PduError::Failed) };
                let counter = self.opener.counter();
                let bhs = self.opener.finish(header, &mut ahs, mac)?;
                if data_length(&bhs) > PDU_DATA_MAX {
                    return Err(PduError::DataLength(data_length(&bhs)));
                }
                let list = BlockKeyList::find(&ahs, self.form)?;
                self.stage = ReceivingStage::Data { bhs, ahs, list, counter };
            }
            ReceivingStage::Data { bhs, list, .. } => {
                let data = data_length(bhs);
                let wire_data = match list {
                    None => self.sealer.wire_segment_len(data),
                    Some(_) => data,
                };
                let macs = match list {
                    Some(list) if self.form.scheme.has_authentication() => list.keys.len(),
                    None if data > 0 && has_header_mac => 1,
                    _ => 0,
                };
                let padded = wire_data.next_multiple_of(4);
                let Some(part) = take(padded + macs * MAC_LEN) else { return Ok(false) };
                let stage = core::mem::replace(&mut self.stage, ReceivingStage::Bhs);
                let ReceivingStage::Data { bhs, ahs, list, counter } = stage else {
                    return Err(PduError::Failed);
                };
                let (segment, macs) = part.split_at(padded);
                let (macs, _) = macs.as_chunks::<MAC_LEN>();
                let mut segment = segment[..wire_data].to_vec();
                let seals = match list {
                    Some(list) => Some(SegmentSeals { list, macs: macs.to_vec() }),
                    None if data == 0 => None,
                    None => {
                        self.opener.open_segment(&bhs, counter, &mut segment, data, macs.first())?;
                        None
                    }
                };
                self.emit(bhs, &ahs, segment, seals, out)?;
            }
        }
        Ok(true)
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

    const LEVELS: [ProtectionLevel; 3] =
        [ProtectionLevel::S1LazyMac, ProtectionLevel::S2LazyCipher, ProtectionLevel::S2LazyCipherMac];

    fn end(level: ProtectionLevel) -> PduProtection {
        let profile = ProtectionProfile::PaperSafe;
        let scheme = level.key_scheme().unwrap_or(KeyScheme::Both);
        let form = KeyListForm { scheme, block: ProtectedBlock::B512, profile };
        let keys = || HeaderKeys { encryption: [1; 24], authentication: [2; 16] };
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
        for level in [ProtectionLevel::S1LazyMac, ProtectionLevel::S2LazyCipherMac] {
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
        for level in [ProtectionLevel::S1LazyMac, ProtectionLevel::S2LazyCipherMac] {
            let mut sealer = end(level);
            let (mut first, mut second) = (Vec::new(), Vec::new());
            sealer.seal(&pdu(0x01, &[], &[1; 40]), &mut first).unwrap();
            sealer.seal(&pdu(0x01, &[], &[1; 40]), &mut second).unwrap();
            for wire in [[&first[..], &first].concat(), second.clone(), [&second[..], &first].concat()] {
                assert!(end(level).open(&wire, &mut Vec::new()).is_err(), "{level}");
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
        fn arbitrary_bytes_never_open(bytes in proptest::collection::vec(any::<u8>(), 64..3000), level in 0..3_usize) {
            let mut out = Vec::new();
            let opened = end(LEVELS[level]).open(&bytes, &mut out);
            prop_assert!(opened.is_err() || out.is_empty() || !LEVELS[level].has_header_mac());
        }
    }
}
