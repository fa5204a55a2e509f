//! The first sector of the engine's file: its header with two commit slots.
//!
//! Does: finds the commits that the file may hold; builds the header that the engine receives.
//! Contract: the header lies in one sector, so that it is not torn; a slot whose checksum is wrong
//! is corrupt.

use crate::{PageRef, REGION_PAGES, UNIT, number, sum_of};

/// Length of the engine's header in bytes.
pub const HEADER_BYTES: usize = 320;
const MAGIC: [u8; 9] = *b"redb\x1A\x0A\xA9\x0D\x0A";
const GOD: usize = 9;
const PRIMARY: u8 = 1;
const RECOVERY: u8 = 2;
const TWO_PHASE: u8 = 4;
const SLOTS: [usize; 2] = [64, 192];
const SLOT: usize = 128;
/// Version of the engine's file format.
const FORMAT: u8 = 3;

/// One commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitSlot {
    /// Number of the transaction; a later commit has a greater one.
    pub id: u64,
    /// The tree with our table's name.
    pub user: Option<PageRef>,
    /// The tree of the engine's own tables.
    pub system: Option<PageRef>,
    bytes: [u8; SLOT],
}

impl CommitSlot {
    fn parse(bytes: &[u8; SLOT]) -> Option<Self> {
        let sum = u128::from_le_bytes(number(bytes, SLOT - 16)?);
        if bytes[0] != FORMAT || sum_of(&bytes[..SLOT - 16]) != sum {
            return None;
        }
        let root = |there: u8, at| if there == 0 { None } else { PageRef::parse(bytes, at) };
        let id = u64::from_le_bytes(number(bytes, 104)?);
        Some(Self { id, user: root(bytes[1], 8), system: root(bytes[2], 40), bytes: *bytes })
    }

    /// Like [`parse`](Self::parse), for a slot in which one bit may be wrong.
    fn repair(bytes: &[u8; SLOT]) -> Option<Self> {
        Self::parse(bytes).or_else(|| {
            (0..SLOT * 8).find_map(|bit| {
                let mut bytes = *bytes;
                bytes[bit / 8] ^= 1 << (bit % 8);
                Self::parse(&bytes)
            })
        })
    }

    /// Returns the same commit with another tree of `tables` tables of the engine.
    pub(crate) fn with_system(mut self, root: PageRef, tables: u64) -> Self {
        self.bytes[2] = 1;
        self.bytes[40..48].copy_from_slice(&root.number.to_le_bytes());
        self.bytes[48..64].copy_from_slice(&root.sum.to_le_bytes());
        self.bytes[64..72].copy_from_slice(&tables.to_le_bytes());
        self.system = Some(root);
        self.sealed()
    }

    fn sealed(mut self) -> Self {
        let sum = sum_of(&self.bytes[..SLOT - 16]);
        self.bytes[SLOT - 16..].copy_from_slice(&sum.to_le_bytes());
        self
    }

    /// Returns the same commit without the engine's own tables: it recreates them when it recovers.
    fn without_system(mut self) -> Self {
        self.bytes[2] = 0;
        self.bytes[40..72].fill(0);
        self.system = None;
        self.sealed()
    }
}

/// A header of the engine, with arbitrary bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineHeader(pub [u8; HEADER_BYTES]);

impl EngineHeader {
    fn slot(&self, at: usize) -> Option<CommitSlot> {
        CommitSlot::repair(self.0[SLOTS[at]..].first_chunk()?)
    }

    /// Returns the commit that the header marks as current.
    pub fn primary(&self) -> Option<CommitSlot> {
        self.slot(usize::from(self.0[GOD] & PRIMARY))
    }

    /// Returns both commits, as far as they can be read, the newest first.
    pub fn commits(&self) -> Vec<CommitSlot> {
        let mut slots: Vec<CommitSlot> = (0..2).filter_map(|at| self.slot(at)).collect();
        slots.sort_by_key(|slot| std::cmp::Reverse(slot.id));
        slots.dedup_by_key(|slot| slot.id);
        slots
    }

    /// Whether a slot cannot be read. No crash causes that.
    pub fn has_lost_slot(&self) -> bool {
        (0..2).any(|at| self.slot(at).is_none())
    }

    /// Returns the number of pages of each region but the last, and of the last, for a file of this
    /// length.
    fn layout(length: u64) -> [u8; 8] {
        let pages = (length / UNIT).saturating_sub(1);
        let (full, rest) = ((pages / REGION_PAGES) as u32, (pages % REGION_PAGES) as u32);
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&full.to_le_bytes());
        bytes[4..].copy_from_slice(&rest.to_le_bytes());
        bytes
    }

    /// Returns a header without flags, layout and slots: the part that never changes.
    fn frame() -> Self {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..9].copy_from_slice(&MAGIC);
        bytes[12..16].copy_from_slice(&(UNIT as u32).to_le_bytes());
        bytes[20..24].copy_from_slice(&(REGION_PAGES as u32).to_le_bytes());
        Self(bytes)
    }

    /// Whether the engine closed this file, of `length` bytes, cleanly after `commit`.
    pub fn is_closed_after(&self, commit: &CommitSlot, length: u64) -> bool {
        let flags = self.0[GOD] & !PRIMARY;
        let mut bare = self.clone();
        bare.0[GOD] = 0;
        bare.0[24..32].fill(0);
        bare.0[SLOTS[0]..].fill(0);
        let whole = (0..2)
            .all(|at| self.0[SLOTS[at]..].first_chunk().is_some_and(|s| CommitSlot::parse(s).is_some()));
        flags == TWO_PHASE
            && whole
            && bare == Self::frame()
            && self.0[24..32] == Self::layout(length)
            && self.primary().is_some_and(|slot| slot.id == commit.id)
    }

    /// Returns the header that makes the engine recover from `commit` alone, in a file of `length`
    /// bytes. `system`: its own tables are intact.
    pub fn to_recover(commit: &CommitSlot, system: bool, length: u64) -> Self {
        let commit = if system { *commit } else { commit.without_system() };
        Self::of(&commit, RECOVERY, length)
    }

    /// Returns the header of a file that was closed cleanly after `commit`, which has its allocator
    /// state.
    pub fn closed_after(commit: &CommitSlot, length: u64) -> Self {
        Self::of(commit, TWO_PHASE, length)
    }

    fn of(commit: &CommitSlot, flags: u8, length: u64) -> Self {
        let mut header = Self::frame();
        header.0[GOD] = flags;
        header.0[24..32].copy_from_slice(&Self::layout(length));
        for at in SLOTS {
            header.0[at..at + SLOT].copy_from_slice(&commit.bytes);
        }
        header
    }
}
