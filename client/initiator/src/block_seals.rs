//! Blocks of a protected unit in the PDUs of a session: sealed when sent, opened when received.
//!
//! Does: generates keys for each written block, or derives them from the keys of the unit; verifies
//! and decrypts each block that is read; turns the status of a read with blocks that are not
//! authentic into CHECK CONDITION.
//! Does not: read such blocks again; the client of the unit does.
//! Contract: bytes of a block that is not authentic never leave this module; they are zero. Neither
//! do the keys of the unit.
//! Truth: docs/standards/block-protection.md, "PDUs".

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use sealstone_block_protection::{
    AppendedPdu, BlockSealer, GenerationCounter, KeyListForm, MAC_LEN, MacTag, PduBlocks, PduError,
    PduHeader, SegmentSeals, UnitKeys,
};

use sealstone_scsi::{AdditionalSense, Sense, SenseKey};
use zeroize::Zeroize as _;

use crate::{Environment as _, SystemEnvironment};

/// Tasks that are remembered; the oldest are those of aborted commands.
const TASKS_MAX: usize = 4096;
/// Maximum number of requests for the keys of the unit in flight. A further one ends the
/// connection: the answer of one that is not remembered would reach its caller.
const KEY_TASKS_MAX: usize = 64;
/// Reports that wait for [`BlockReports::take`]; further ones replace the oldest.
const REPORTS_MAX: usize = 4096;

const COMMAND: u8 = 0x01;
const DATA_OUT: u8 = 0x05;
const SCSI_RESPONSE: u8 = 0x21;
const DATA_IN: u8 = 0x25;
const OPCODE: u8 = 0x3F;
/// Flags of Data-In: F, S, and the residual bits O and U.
const FINAL: u8 = 0x80;
const STATUS: u8 = 0x01;
const CHECK_CONDITION: u8 = 0x02;

/// READ (16), WRITE (16), and our vendor-specific READ OLDER VERSION.
const READ: u8 = 0x88;
const WRITE: u8 = 0x8A;
/// Operation code of READ OLDER VERSION: READ (16) with the number of versions before the newest in
/// byte 1.
pub const READ_OLDER_VERSION: u8 = 0xC1;
/// Operation code of REPORT BLOCKS: data-out is a list of [`BlockReport`].
pub const REPORT_BLOCKS: u8 = 0xC2;
/// Operation code of RECEIVE UNIT KEYS: data-in are the keys of the unit and a number of the
/// session. The session takes them, and its caller receives zeros.
pub const RECEIVE_UNIT_KEYS: u8 = 0xC3;
/// Additional sense code of a block that this end found not authentic: UNRECOVERED
/// READ ERROR with a vendor-specific qualifier.
pub const BLOCK_NOT_AUTHENTIC: AdditionalSense = AdditionalSense::from_bytes(0x11, 0x80);

/// Result of the verification of a block that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockReport {
    /// The block.
    pub lba: u64,
    /// Its MAC, which identifies the version.
    pub mac: MacTag,
    /// Whether the MAC is right.
    pub is_authentic: bool,
}

impl BlockReport {
    /// Bytes of an entry of REPORT BLOCKS.
    pub const LEN: usize = 32;

    /// Returns the entry: LBA 8, MAC 16, verdict 1, zeros 7.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut entry = [0; Self::LEN];
        entry[..8].copy_from_slice(&self.lba.to_be_bytes());
        entry[8..24].copy_from_slice(&self.mac);
        entry[24] = u8::from(self.is_authentic);
        entry
    }
}

/// Reports about blocks that a session has read.
#[derive(Clone, Debug, Default)]
pub struct BlockReports(Arc<Mutex<VecDeque<BlockReport>>>);

impl BlockReports {
    fn add(&self, report: BlockReport) {
        let mut reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if reports.len() >= REPORTS_MAX {
            reports.pop_front();
        }
        reports.push_back(report);
    }

    /// Returns the number of waiting reports.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether no report waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes at most `count` reports, oldest first.
    #[must_use]
    pub fn take(&self, count: usize) -> Vec<BlockReport> {
        let mut reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = count.min(reports.len());
        reports.drain(..count).collect()
    }
}

/// A task whose data are blocks.
struct BlockTask {
    serial: u64,
    lba: u64,
    /// First block that was not authentic.
    corrupt: Option<u64>,
}

/// Keys of the unit, and the generations of this session.
struct GenerationSealer {
    keys: UnitKeys,
    generations: GenerationCounter,
}

/// The initiator's end of the PDUs of a session.
pub(crate) struct InitiatorPduBlocks {
    form: KeyListForm,
    /// Logical unit with blocks, in wire form.
    lun: [u8; 8],
    tasks: BTreeMap<u32, BlockTask>,
    serial: u64,
    /// Tasks of RECEIVE UNIT KEYS.
    key_tasks: BTreeSet<u32>,
    /// Present after such a task, at levels with generations.
    unit_keys: Option<GenerationSealer>,
    reports: BlockReports,
    /// Whether blocks that are authentic are reported too.
    reports_success: bool,
}

impl InitiatorPduBlocks {
    pub(crate) fn new(form: KeyListForm, lun: u64, reports: BlockReports) -> Self {
        let reports_success = !form.profile.binds_address() && form.scheme.has_authentication();
        Self {
            form,
            lun: lun.to_be_bytes(),
            tasks: BTreeMap::new(),
            serial: 0,
            key_tasks: BTreeSet::new(),
            unit_keys: None,
            reports,
            reports_success,
        }
    }

    fn begin(&mut self, tag: u32, lba: u64) {
        if self.tasks.len() >= TASKS_MAX {
            let oldest = self.tasks.iter().min_by_key(|(_, task)| task.serial).map(|(tag, _)| *tag);
            if let Some(tag) = oldest {
                self.tasks.remove(&tag);
            }
        }
        self.serial += 1;
        self.tasks.insert(tag, BlockTask { serial: self.serial, lba, corrupt: None });
    }

    fn begin_key_task(&mut self, tag: u32) -> Result<(), PduError> {
        if self.key_tasks.len() >= KEY_TASKS_MAX {
            return Err(PduError::Keys(COMMAND));
        }
        self.key_tasks.insert(tag);
        Ok(())
    }

    /// Takes the keys of the unit, and replaces them by zeros.
    fn take_keys(&mut self, data: &mut [u8]) -> Result<(), PduError> {
        let parsed = UnitKeys::parse(data);
        data.zeroize();
        let (keys, session) = parsed.map_err(|_| PduError::Keys(DATA_IN))?;
        let is_other_unit = |known: &GenerationSealer| known.keys.unit() != keys.unit();
        if self.unit_keys.as_ref().is_some_and(is_other_unit) {
            return Err(PduError::Keys(DATA_IN));
        }
        self.unit_keys = Some(GenerationSealer { keys, generations: GenerationCounter::new(session) });
        Ok(())
    }

    /// Seals whole blocks in place.
    fn seal(&mut self, opcode: u8, first_lba: u64, data: &mut [u8]) -> Result<SegmentSeals, PduError> {
        let (list, macs) = if self.form.scheme.has_generations() {
            let GenerationSealer { keys, generations } =
                self.unit_keys.as_mut().ok_or(PduError::Keys(opcode))?;
            let sealed = keys.seal(first_lba, self.form.block.bytes(), data, generations);
            sealed.ok_or(PduError::GenerationsExhausted)?
        } else {
            let mut random = |into: &mut [u8]| SystemEnvironment.fill_random(into);
            BlockSealer::new(self.form).seal(first_lba, data, &mut random)
        };
        Ok(SegmentSeals { list, macs })
    }

    /// Verifies and decrypts the blocks of a segment. Blocks that are not authentic become zero.
    fn open(
        &mut self,
        tag: u32,
        offset: usize,
        data: &mut [u8],
        seals: &SegmentSeals,
    ) -> Result<(), PduError> {
        let block = self.form.block.bytes();
        let task = self.tasks.get_mut(&tag).ok_or(PduError::Keys(DATA_IN))?;
        seals.list.check_data(self.form, data.len())?;
        if !offset.is_multiple_of(block) || seals.list.first_lba != task.lba + (offset / block) as u64 {
            return Err(PduError::Keys(DATA_IN));
        }
        let sealer = BlockSealer::new(self.form);
        let blocks = data.chunks_exact_mut(block).zip(&seals.list.keys).enumerate();
        for (lba, (at, (block, keys))) in (seals.list.first_lba..).zip(blocks) {
            let mac = seals.macs.get(at);
            let is_authentic = match &self.unit_keys {
                _ if !self.form.scheme.has_generations() => sealer.open_block(lba, keys, mac, block),
                Some(unit) => mac.is_some_and(|tag| unit.keys.open_block(lba, keys.generation, tag, block)),
                None => false,
            };
            if !is_authentic {
                block.fill(0);
                task.corrupt.get_or_insert(lba);
            }
            if !is_authentic || self.reports_success && !keys.is_unwritten() {
                let mac = mac.copied().unwrap_or([0; MAC_LEN]);
                self.reports.add(BlockReport { lba, mac, is_authentic });
            }
        }
        Ok(())
    }
}

fn word(bhs: &PduHeader, at: usize) -> u32 {
    u32::from_be_bytes([bhs[at], bhs[at + 1], bhs[at + 2], bhs[at + 3]])
}

/// Returns the data segment of a response with sense data in descriptor format.
fn sense_of(lba: u64) -> Vec<u8> {
    let sense =
        Sense { information: Some(lba), ..Sense::new(SenseKey::MediumError, BLOCK_NOT_AUTHENTIC) }.encode();
    let length = u16::try_from(sense.len()).expect("at most 252 bytes");
    [&length.to_be_bytes()[..], &sense].concat()
}

impl PduBlocks for InitiatorPduBlocks {
    fn sending(&mut self, bhs: &PduHeader, data: &mut [u8]) -> Result<Option<SegmentSeals>, PduError> {
        let (opcode, tag) = (bhs[0] & OPCODE, word(bhs, 16));
        let offset = match opcode {
            COMMAND => {
                self.tasks.remove(&tag);
                self.key_tasks.remove(&tag);
                let is_key_task = self.form.scheme.has_generations() && bhs[32] == RECEIVE_UNIT_KEYS;
                if is_key_task && bhs[8..16] == self.lun {
                    self.begin_key_task(tag)?;
                }
                let has_blocks =
                    bhs[8..16] == self.lun && matches!(bhs[32], READ | WRITE | READ_OLDER_VERSION);
                if !has_blocks {
                    return Ok(None);
                }
                let lba = bhs[34..42].try_into().expect("8 bytes");
                self.begin(tag, u64::from_be_bytes(lba));
                0
            }
            DATA_OUT => word(bhs, 40) as usize,
            _ => return Ok(None),
        };
        let Some(task) = self.tasks.get(&tag).filter(|_| !data.is_empty()) else { return Ok(None) };
        let block = self.form.block.bytes();
        if !offset.is_multiple_of(block) || !data.len().is_multiple_of(block) {
            return Err(PduError::Keys(opcode));
        }
        let first_lba = task.lba + (offset / block) as u64;
        self.seal(opcode, first_lba, data).map(Some)
    }

    fn received(
        &mut self,
        bhs: &mut PduHeader,
        data: &mut Vec<u8>,
        seals: Option<SegmentSeals>,
    ) -> Result<AppendedPdu, PduError> {
        let (opcode, tag) = (bhs[0] & OPCODE, word(bhs, 16));
        match (opcode, &seals) {
            (DATA_IN, Some(seals)) => self.open(tag, word(bhs, 40) as usize, data, seals)?,
            (DATA_IN, None) if self.key_tasks.contains(&tag) && !data.is_empty() => self.take_keys(data)?,
            (DATA_IN, None) if self.tasks.contains_key(&tag) && !data.is_empty() => {
                return Err(PduError::Keys(opcode));
            }
            (opcode, Some(_)) => return Err(PduError::Keys(opcode)),
            _ => {}
        }
        let has_status = opcode == SCSI_RESPONSE || opcode == DATA_IN && bhs[1] & STATUS != 0;
        if has_status {
            self.key_tasks.remove(&tag);
        }
        let corrupt = if has_status { self.tasks.remove(&tag).and_then(|task| task.corrupt) } else { None };
        let Some(lba) = corrupt else { return Ok(None) };
        if opcode == SCSI_RESPONSE {
            if bhs[3] == 0 {
                bhs[3] = CHECK_CONDITION;
                *data = sense_of(lba);
            }
            return Ok(None);
        }
        // The status moves from the Data-In to a response of its own, which can have sense data.
        let mut response = [0; 48];
        (response[0], response[1], response[3]) = (SCSI_RESPONSE, FINAL, CHECK_CONDITION);
        response[16..20].copy_from_slice(&bhs[16..20]);
        response[24..36].copy_from_slice(&bhs[24..36]);
        response[36..40].copy_from_slice(&word(bhs, 36).wrapping_add(1).to_be_bytes());
        bhs[1] = FINAL;
        bhs[3] = 0;
        Ok(Some((response, sense_of(lba))))
    }
}
