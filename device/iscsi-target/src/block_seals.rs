//! Keys and MACs of blocks on their way between the PDUs of a connection and a logical unit.
//!
//! Does: collects the seals of received blocks for each task; adds those of a reply to its Data-In.
//! Does not: look at the blocks.
//! Contract: seals go with the bytes of the data segment in which they arrived. Missing, unordered
//! or too many seals make the write fail; they are never replaced by others. Memory is bounded.
//! Truth: docs/standards/block-protection.md, "PDUs".

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use sealstone_block_protection::{
    AppendedPdu, BlockKeyList, BlockSeal, Generation, KeyListForm, KeyScheme, MAC_LEN, PduBlocks, PduError,
    PduHeader, SegmentSeals,
};
use sealstone_scsi::lu::BlockSeals;
use zeroize::Zeroizing;

/// Blocks of one connection whose seals wait: 28 MiB. A task counts as one more.
const WAITING_MAX: usize = 1 << 19;

const COMMAND: u8 = 0x01;
const DATA_OUT: u8 = 0x05;
const SCSI_RESPONSE: u8 = 0x21;
const DATA_IN: u8 = 0x25;
const OPCODE: u8 = 0x3F;
/// S: a Data-In PDU has the status.
const STATUS: u8 = 0x01;

/// Seals of one task, of data-out or of data-in.
#[derive(Default)]
struct TaskSeals {
    /// Address of the first block.
    first_lba: u64,
    /// Number of blocks.
    blocks: usize,
    bytes: Zeroizing<Vec<u8>>,
    /// Whether seals were missing or out of order.
    is_malformed: bool,
}

#[derive(Default)]
struct WaitingSeals {
    written: BTreeMap<u32, TaskSeals>,
    read: BTreeMap<u32, TaskSeals>,
    /// Blocks and tasks of both.
    count: usize,
}

impl TaskSeals {
    /// Makes space for further bytes. Keys are moved to a new buffer and the old one is wiped,
    /// which growth of a vector would not do.
    fn reserve(&mut self, further: usize) {
        let needed = self.bytes.len() + further;
        if needed > self.bytes.capacity() {
            let mut larger = Zeroizing::new(Vec::with_capacity(needed.max(2 * self.bytes.capacity())));
            larger.extend_from_slice(&self.bytes);
            self.bytes = larger;
        }
    }

    /// Returns the blocks, and one more for the task.
    const fn count(&self) -> usize {
        self.blocks + 1
    }
}

impl WaitingSeals {
    fn remove_written(&mut self, tag: u32) -> Option<TaskSeals> {
        let seals = self.written.remove(&tag)?;
        self.count -= seals.count();
        Some(seals)
    }

    fn remove_read(&mut self, tag: u32) {
        if let Some(seals) = self.read.remove(&tag) {
            self.count -= seals.count();
        }
    }
}

/// Seals of all tasks of a connection, by initiator task tag.
#[derive(Clone, Default)]
pub(crate) struct ConnectionSeals(Arc<Mutex<WaitingSeals>>);

impl ConnectionSeals {
    /// Takes the seals of a command's data-out. An error means that they do not fit the data.
    pub(crate) fn take_written(&self, tag: u32) -> Result<Option<BlockSeals>, MalformedSeals> {
        let Some(seals) = self.0.lock().remove_written(tag) else { return Ok(None) };
        if seals.is_malformed {
            return Err(MalformedSeals);
        }
        Ok(Some(BlockSeals { first_lba: seals.first_lba, bytes: seals.bytes }))
    }

    /// Puts the seals of a reply's data-in, before the reply is sent.
    pub(crate) fn put_read(&self, tag: u32, seals: BlockSeals) {
        // No seal is shorter than one of M-lazy, so that memory stays bounded at each level.
        let blocks = seals.bytes.len() / KeyScheme::Generation.seal_len();
        let BlockSeals { first_lba, bytes } = seals;
        let seals = TaskSeals { first_lba, blocks, bytes, is_malformed: false };
        let mut waiting = self.0.lock();
        // Without its seals a reply ends the session. So seals of aborted commands do not
        // accumulate.
        if waiting.count + seals.count() <= WAITING_MAX {
            waiting.remove_read(tag);
            waiting.count += seals.count();
            waiting.read.insert(tag, seals);
        }
    }
}

/// Keys and MACs of a command do not fit its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("keys and MACs of the blocks do not fit the data")]
pub(crate) struct MalformedSeals;

/// The target's end of the PDUs of a connection.
pub(crate) struct TargetPduBlocks {
    form: KeyListForm,
    seals: ConnectionSeals,
    /// Highest generation that was received.
    last_generation: Generation,
}

impl TargetPduBlocks {
    pub(crate) const fn new(form: KeyListForm, seals: ConnectionSeals) -> Self {
        Self { form, seals, last_generation: Generation::UNWRITTEN }
    }

    fn collect(&self, tag: u32, offset: usize, data: usize, seals: &SegmentSeals) -> Result<(), PduError> {
        let block = self.form.block.bytes();
        let mut guard = self.seals.0.lock();
        let waiting = &mut *guard;
        let is_new = !waiting.written.contains_key(&tag);
        let count = waiting.count + seals.list.keys.len() + usize::from(is_new);
        if count > WAITING_MAX {
            return Err(PduError::DataLength(data));
        }
        waiting.count += usize::from(is_new);
        let task = waiting.written.entry(tag).or_default();
        let done = task.blocks;
        if done == 0 {
            task.first_lba = seals.list.first_lba;
        }
        let is_next = offset == done * block
            && seals.list.first_lba.checked_sub(task.first_lba) == Some(done as u64)
            && seals.list.check_data(self.form, data).is_ok();
        if !is_next {
            task.is_malformed = true;
            return Ok(());
        }
        waiting.count = count;
        task.blocks += seals.list.keys.len();
        task.reserve(seals.list.keys.len() * self.form.scheme.seal_len());
        for (at, keys) in seals.list.keys.iter().enumerate() {
            let mac = seals.macs.get(at).copied().unwrap_or([0; MAC_LEN]);
            BlockSeal { keys: keys.clone(), mac }.append_to(self.form.scheme, &mut task.bytes);
        }
        Ok(())
    }

    /// Checks that generations ascend, in the order in which the initiator sent them.
    fn check_generations(&mut self, seals: &SegmentSeals) -> Result<(), PduError> {
        if !self.form.scheme.has_generations() {
            return Ok(());
        }
        for (lba, keys) in (seals.list.first_lba..).zip(&seals.list.keys) {
            if keys.generation <= self.last_generation {
                return Err(PduError::Generation(lba));
            }
            self.last_generation = keys.generation;
        }
        Ok(())
    }
}

fn word(bhs: &PduHeader, at: usize) -> u32 {
    u32::from_be_bytes([bhs[at], bhs[at + 1], bhs[at + 2], bhs[at + 3]])
}

impl PduBlocks for TargetPduBlocks {
    fn sending(&mut self, bhs: &PduHeader, data: &mut [u8]) -> Result<Option<SegmentSeals>, PduError> {
        let (opcode, tag) = (bhs[0] & OPCODE, word(bhs, 16));
        let mut waiting = self.seals.0.lock();
        let segment = match waiting.read.get(&tag) {
            Some(seals) if opcode == DATA_IN && !data.is_empty() => {
                let first = word(bhs, 40) as usize / self.form.block.bytes();
                let count = data.len() / self.form.block.bytes();
                let length = self.form.scheme.seal_len();
                let part = seals.bytes.get(first * length..(first + count) * length);
                let entries = part.ok_or(PduError::Keys(opcode))?.chunks_exact(length);
                let mut list = BlockKeyList { first_lba: seals.first_lba + first as u64, keys: Vec::new() };
                let mut macs = Vec::new();
                for entry in entries {
                    let seal = BlockSeal::decode(self.form.scheme, entry).ok_or(PduError::Keys(opcode))?;
                    list.keys.push(seal.keys);
                    if self.form.scheme.has_authentication() {
                        macs.push(seal.mac);
                    }
                }
                Some(SegmentSeals { list, macs })
            }
            _ => None,
        };
        if opcode == SCSI_RESPONSE || opcode == DATA_IN && bhs[1] & STATUS != 0 {
            waiting.remove_read(tag);
            waiting.remove_written(tag);
        }
        Ok(segment)
    }

    fn received(
        &mut self,
        bhs: &mut PduHeader,
        data: &mut Vec<u8>,
        seals: Option<SegmentSeals>,
    ) -> Result<AppendedPdu, PduError> {
        let (opcode, tag) = (bhs[0] & OPCODE, word(bhs, 16));
        if opcode == COMMAND {
            // A tag that is used again belongs to a new task.
            let mut waiting = self.seals.0.lock();
            waiting.remove_written(tag);
            waiting.remove_read(tag);
        }
        if let (COMMAND | DATA_OUT, Some(seals)) = (opcode, &seals) {
            self.check_generations(seals)?;
        }
        match (opcode, &seals) {
            (COMMAND, Some(seals)) => self.collect(tag, 0, data.len(), seals)?,
            (DATA_OUT, Some(seals)) => self.collect(tag, word(bhs, 40) as usize, data.len(), seals)?,
            (DATA_OUT, None) if !data.is_empty() => {
                if let Some(task) = self.seals.0.lock().written.get_mut(&tag) {
                    task.is_malformed = true;
                }
            }
            (opcode, Some(_)) => return Err(PduError::Keys(opcode)),
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use sealstone_block_protection::{BlockKeys, BlockSealer, ProtectedBlock, ProtectionProfile};

    use super::*;

    const FORM: KeyListForm = KeyListForm {
        scheme: KeyScheme::Both,
        block: ProtectedBlock::B512,
        profile: ProtectionProfile::PaperSafe,
    };

    fn header(opcode: u8, tag: u32, offset: u32) -> PduHeader {
        let mut bhs = [0; 48];
        bhs[0] = opcode;
        bhs[16..20].copy_from_slice(&tag.to_be_bytes());
        bhs[40..44].copy_from_slice(&offset.to_be_bytes());
        bhs
    }

    fn sealed(lba: u64, blocks: usize) -> (Vec<u8>, SegmentSeals) {
        let mut data = vec![lba as u8; blocks * 512];
        let (list, macs) = BlockSealer::new(FORM).seal(lba, &mut data, &mut |into| into.fill(7));
        (data, SegmentSeals { list, macs })
    }

    fn end() -> (ConnectionSeals, TargetPduBlocks) {
        let seals = ConnectionSeals::default();
        (seals.clone(), TargetPduBlocks::new(FORM, seals))
    }

    #[test]
    fn seals_of_all_segments_reach_the_unit_and_return() {
        let (seals, mut end) = end();
        for (opcode, offset, blocks) in [(COMMAND, 0, 2), (DATA_OUT, 1024, 3), (DATA_OUT, 2560, 1)] {
            let (mut data, segment) = sealed(40 + u64::from(offset) / 512, blocks);
            end.received(&mut header(opcode, 9, offset), &mut data, Some(segment)).unwrap();
        }
        let written = seals.take_written(9).unwrap().unwrap();
        assert_eq!((written.first_lba, written.bytes.len()), (40, 6 * FORM.scheme.seal_len()));
        assert!(seals.take_written(9).unwrap().is_none(), "taken once");
        seals.put_read(9, written);
        let segment = end.sending(&header(DATA_IN, 9, 1024), &mut [0; 1536]).unwrap().unwrap();
        let (_, expected) = sealed(42, 3);
        assert_eq!((segment.list.first_lba, &segment.list.keys), (42, &expected.list.keys));
        let mut last = header(DATA_IN, 9, 0);
        last[1] = STATUS;
        assert!(end.sending(&last, &mut [0; 512]).unwrap().is_some());
        assert!(end.sending(&header(DATA_IN, 9, 0), &mut [0; 512]).unwrap().is_none(), "the task is over");
    }

    /// L5: keys for another number of blocks, at another place, or missing.
    #[test]
    fn seals_that_do_not_fit_data_are_malformed() {
        let cases: [(u32, u64, usize, usize, bool); 5] = [
            (0, 40, 2, 512, true),
            (0, 40, 2, 1536, true),
            (1024, 41, 1, 512, true),
            (512, 42, 1, 512, true),
            (512, 41, 1, 512, false),
        ];
        for (offset, lba, keys, length, is_malformed) in cases {
            let (seals, mut end) = end();
            if offset > 0 {
                let (mut data, segment) = sealed(40, 1);
                end.received(&mut header(COMMAND, 9, 0), &mut data, Some(segment)).unwrap();
            }
            let opcode = if offset > 0 { DATA_OUT } else { COMMAND };
            let (_, segment) = sealed(lba, keys);
            end.received(&mut header(opcode, 9, offset), &mut vec![0; length], Some(segment)).unwrap();
            assert_eq!(seals.take_written(9).is_err(), is_malformed, "{offset} {lba} {keys} {length}");
        }
        let (seals, mut end) = end();
        let (mut data, segment) = sealed(40, 1);
        end.received(&mut header(COMMAND, 9, 0), &mut data, Some(segment)).unwrap();
        end.received(&mut header(DATA_OUT, 9, 512), &mut vec![0; 512], None).unwrap();
        assert!(seals.take_written(9).is_err());
        let (mut data, segment) = sealed(40, 1);
        let superfluous = end.received(&mut header(0x00, 9, 0), &mut data, Some(segment));
        assert_eq!(superfluous, Err(PduError::Keys(0)));
    }

    /// L3 for M-lazy: a generation that was used, or that was left out, never seals another block.
    #[test]
    fn repeated_and_reordered_generations_end_connections() {
        let form = KeyListForm { scheme: KeyScheme::Generation, profile: ProtectionProfile::Modern, ..FORM };
        let segment = |counts: &[u32]| {
            let keys =
                counts.iter().map(|count| BlockKeys::of_generation(Generation::new(3, *count))).collect();
            let macs = vec![[1; MAC_LEN]; counts.len()];
            SegmentSeals { list: BlockKeyList { first_lba: 40, keys }, macs }
        };
        let seals = ConnectionSeals::default();
        let mut end = TargetPduBlocks::new(form, seals.clone());
        let mut receive = |tag, counts: &[u32]| {
            let mut data = vec![0; counts.len() * 512];
            end.received(&mut header(COMMAND, tag, 0), &mut data, Some(segment(counts)))
        };
        receive(1, &[1, 2, 5]).unwrap();
        receive(2, &[6]).unwrap();
        assert_eq!(receive(3, &[6]), Err(PduError::Generation(40)));
        assert_eq!(receive(4, &[3]), Err(PduError::Generation(40)));
        assert_eq!(receive(5, &[9, 8]), Err(PduError::Generation(41)));
        let written = seals.take_written(1).unwrap().unwrap();
        assert_eq!(written.bytes.len(), 3 * form.scheme.seal_len());
        seals.put_read(1, written);
        let sent = end.sending(&header(DATA_IN, 1, 512), &mut [0; 1024]).unwrap().unwrap();
        let generations: Vec<_> = sent.list.keys.iter().map(|keys| keys.generation).collect();
        assert_eq!(generations, [Generation::new(3, 2), Generation::new(3, 5)]);
    }

    #[test]
    fn waiting_seals_are_bounded() {
        let (seals, mut end) = end();
        let (mut data, segment) = sealed(40, 25);
        let full = u32::try_from(WAITING_MAX / 26).unwrap();
        for tag in 0..full {
            end.received(&mut header(COMMAND, tag, 0), &mut data, Some(segment.clone())).unwrap();
        }
        let excess = end.received(&mut header(COMMAND, full, 0), &mut data, Some(segment.clone()));
        assert_eq!(excess, Err(PduError::DataLength(25 * 512)));
        // Seals that were taken, or whose tag is used again, make room.
        assert!(seals.take_written(3).unwrap().is_some());
        end.received(&mut header(COMMAND, full, 0), &mut data, Some(segment.clone())).unwrap();
        end.received(&mut header(COMMAND, full, 0), &mut data, Some(segment)).unwrap();
        (0..=full).for_each(|tag| drop(seals.take_written(tag)));
        assert_eq!(seals.0.lock().count, 0);
    }
}
