//! Pages of key slots, with a cache of the recently used ones.
//!
//! Does: reads and changes the slots of blocks; seals pages at rest where the unit has a secret.
//! Does not: lock or open scopes; the volume does.
//! Contract: a sealed page opens only at its location in its unit. A page is written as a whole, so
//! a change of its slots is atomic.

use std::collections::{BTreeMap, HashMap};

use sealstone_block_protection::KeyScheme;
use sealstone_crypto::record::{RECORD_OVERHEAD, RecordSeal};
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::{ExtentKind, ObjectStore, StoreError};
use zeroize::Zeroizing;

use crate::config::{LazyUnit, RandomSource};
use crate::error::LazyError;
use crate::layout::{self, BLOCKS_PER_KEY_FILE, KeySlot, slot_len};

/// Bytes of a page on the medium.
pub(crate) const PAGE_LEN: usize = 4096;

/// Returns the slots of a page. Nonce and tag of a sealed page use the bytes of one slot.
const fn slots_of_page(scheme: KeyScheme, is_sealed: bool) -> usize {
    let overhead = if is_sealed { RECORD_OVERHEAD } else { 0 };
    (PAGE_LEN - overhead) / slot_len(scheme)
}

const _: () = assert!(
    slots_of_page(KeyScheme::Both, false) == 64
        && slots_of_page(KeyScheme::Both, true) == 63
        && slots_of_page(KeyScheme::Generation, true) == 127
);

/// Maximum number of stored pages that are read to check the secret.
const CHECKED_PAGES_MAX: usize = 8;

type PageBytes = Zeroizing<Box<[u8]>>;

/// Location of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PageAddress {
    file: ObjectId,
    page: u64,
}

struct CachedPage {
    bytes: PageBytes,
    /// Time of the last use, in steps of the cache's clock.
    used: u64,
    /// Whether the medium certainly has the page.
    is_stored: bool,
}

pub(crate) struct KeyPages {
    lun: u16,
    scheme: KeyScheme,
    seal: Option<RecordSeal>,
    random: RandomSource,
    cached_max: usize,
    cached: HashMap<PageAddress, CachedPage>,
    by_use: BTreeMap<u64, PageAddress>,
    clock: u64,
}

impl KeyPages {
    pub(crate) fn new(unit: &LazyUnit, scheme: KeyScheme) -> Self {
        Self {
            lun: unit.lun,
            scheme,
            seal: unit.secret.as_ref().map(|secret| RecordSeal::new(secret, unit.serial)),
            random: unit.random.clone(),
            cached_max: unit.limits.cached_pages.max(1),
            cached: HashMap::new(),
            by_use: BTreeMap::new(),
            clock: 0,
        }
    }

    const fn slots_per_page(&self) -> u64 {
        slots_of_page(self.scheme, self.seal.is_some()) as u64
    }

    /// Returns the bytes of all slots of a page.
    const fn slot_bytes(&self) -> usize {
        slots_of_page(self.scheme, self.seal.is_some()) * slot_len(self.scheme)
    }

    fn address(&self, lba: u64) -> (PageAddress, usize) {
        let within = lba % BLOCKS_PER_KEY_FILE;
        let slots = self.slots_per_page();
        let slot = usize::try_from(within % slots).expect("at most 127 slots");
        (
            PageAddress { file: layout::key_file(self.lun, lba), page: within / slots },
            slot * slot_len(self.scheme),
        )
    }

    fn name(address: PageAddress) -> [u8; 16] {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&address.file.object.to_be_bytes());
        name[8..].copy_from_slice(&address.page.to_be_bytes());
        name
    }

    /// Whether a stored page opens under the secret. A single page that does not open may be
    /// damaged: that is no error.
    ///
    /// # Errors
    /// `WrongPageSecret` if several pages do not open and none does.
    pub(crate) fn opens_any(&self, store: &dyn ObjectStore) -> Result<bool, LazyError> {
        let mut closed = 0;
        for (address, lba) in self.stored_pages(store, CHECKED_PAGES_MAX)? {
            match self.load(store, address, lba) {
                // Zeros were not sealed: they open under any secret.
                Ok(page) if page.iter().all(|byte| *byte == 0) => {}
                Ok(_) => return Ok(true),
                Err(error) if error.is_local_damage() => closed += 1,
                Err(error) => return Err(error),
            }
        }
        if closed > 1 { Err(LazyError::WrongPageSecret) } else { Ok(false) }
    }

    /// Returns the first stored pages of the unit, each with its first block.
    fn stored_pages(
        &self,
        store: &dyn ObjectStore,
        max: usize,
    ) -> Result<Vec<(PageAddress, u64)>, LazyError> {
        let mut pages = Vec::new();
        // Each file has a page.
        for (file, _) in store.list_known(layout::first_object(self.lun), max)? {
            let Some(first) = layout::first_block_of_key_file(self.lun, file) else { break };
            let mut offset = 0;
            while pages.len() < max
                && let Some(extent) = store.map(file, offset, 1)?.first()
            {
                if extent.kind == ExtentKind::Hole {
                    offset = extent.offset + extent.length;
                    continue;
                }
                let page = offset / PAGE_LEN as u64;
                pages.push((PageAddress { file, page }, first + page * self.slots_per_page()));
                offset = (page + 1) * PAGE_LEN as u64;
            }
        }
        Ok(pages)
    }

    /// Reads the slot of a block.
    pub(crate) fn slot(&mut self, store: &dyn ObjectStore, lba: u64) -> Result<KeySlot, LazyError> {
        let (address, at) = self.address(lba);
        if !self.cached.contains_key(&address) {
            let bytes = self.load(store, address, lba)?;
            self.insert(address, bytes, false);
        }
        self.touch(address);
        let bytes = &self.cached[&address].bytes;
        Ok(KeySlot::decode(self.scheme, &bytes[at..at + slot_len(self.scheme)]))
    }

    /// Writes the pages of these blocks as they are, where the medium has none, so that a later
    /// [`Self::change`] needs no further space.
    pub(crate) fn reserve(
        &mut self,
        store: &dyn ObjectStore,
        lbas: impl Iterator<Item = u64>,
    ) -> Result<(), LazyError> {
        let mut last = None;
        for lba in lbas {
            let (address, _) = self.address(lba);
            let is_stored = self.cached.get(&address).is_some_and(|page| page.is_stored);
            if last.replace(address) == Some(address) || is_stored {
                continue;
            }
            let length = match store.stat(address.file) {
                Ok(stat) => stat.length,
                Err(StoreError::NotFound(_)) => {
                    store.create(address.file, ObjectType::User)?;
                    0
                }
                Err(error) => return Err(error.into()),
            };
            let offset = address.page * PAGE_LEN as u64;
            let is_hole = length <= offset
                || store
                    .map(address.file, offset, 1)?
                    .first()
                    .is_none_or(|extent| extent.kind == ExtentKind::Hole);
            if is_hole {
                let bytes = self.load(store, address, lba)?;
                self.store_page(store, address, &bytes)?;
            }
        }
        Ok(())
    }

    /// Changes the slots of blocks in ascending order, and writes their pages.
    pub(crate) fn change(
        &mut self,
        store: &dyn ObjectStore,
        slots: &[(u64, KeySlot)],
    ) -> Result<(), LazyError> {
        let mut slots = slots.iter().peekable();
        while let Some((lba, _)) = slots.peek() {
            let (address, _) = self.address(*lba);
            let mut bytes = match self.cached.get(&address) {
                Some(page) => page.bytes.clone(),
                None => self.load(store, address, *lba)?,
            };
            while let Some((lba, slot)) = slots.next_if(|(lba, _)| self.address(*lba).0 == address) {
                let at = self.address(*lba).1;
                slot.encode(self.scheme, &mut bytes[at..at + slot_len(self.scheme)]);
            }
            // The cache follows the store, so a failed write leaves both as they were.
            self.store_page(store, address, &bytes)?;
            self.insert(address, bytes, true);
        }
        Ok(())
    }

    fn load(&self, store: &dyn ObjectStore, address: PageAddress, lba: u64) -> Result<PageBytes, LazyError> {
        let mut raw: PageBytes = Zeroizing::new(vec![0; PAGE_LEN].into());
        let read = match store.read(address.file, address.page * PAGE_LEN as u64, &mut raw) {
            Ok(read) => read,
            Err(StoreError::NotFound(_)) => 0,
            Err(error) => return Err(error.into()),
        };
        raw[read..].fill(0);
        let Some(seal) = &self.seal else { return Ok(raw) };
        if raw.iter().all(|byte| *byte == 0) {
            return Ok(raw);
        }
        let sealed = self.slot_bytes() + RECORD_OVERHEAD;
        let open = seal.open(&Self::name(address), &raw[..sealed]);
        let open = open.map_err(|_| LazyError::KeyPageDamaged(lba))?;
        let mut bytes: PageBytes = Zeroizing::new(vec![0; PAGE_LEN].into());
        bytes[..open.len()].copy_from_slice(&open);
        Ok(bytes)
    }

    fn store_page(
        &self,
        store: &dyn ObjectStore,
        address: PageAddress,
        bytes: &[u8],
    ) -> Result<(), LazyError> {
        let offset = address.page * PAGE_LEN as u64;
        match &self.seal {
            None => store.write(address.file, offset, bytes)?,
            Some(seal) => {
                let random = &self.random;
                let mut fill = |into: &mut [u8]| random(into);
                let slots = &bytes[..self.slot_bytes()];
                let mut sealed = seal.seal(&Self::name(address), slots, &mut fill);
                sealed.resize(PAGE_LEN, 0);
                store.write(address.file, offset, &sealed)?;
            }
        }
        Ok(())
    }

    fn insert(&mut self, address: PageAddress, bytes: PageBytes, is_stored: bool) {
        if let Some(old) = self.cached.remove(&address) {
            self.by_use.remove(&old.used);
        }
        while self.cached.len() >= self.cached_max {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            self.cached.remove(&oldest);
        }
        self.clock += 1;
        self.by_use.insert(self.clock, address);
        self.cached.insert(address, CachedPage { bytes, used: self.clock, is_stored });
    }

    fn touch(&mut self, address: PageAddress) {
        // Neighbouring blocks use the page that was used last.
        if let Some(page) = self.cached.get_mut(&address).filter(|page| page.used != self.clock) {
            self.clock += 1;
            self.by_use.remove(&page.used);
            page.used = self.clock;
            self.by_use.insert(self.clock, address);
        }
    }

    /// Returns the number of pages in memory.
    pub(crate) fn cached(&self) -> usize {
        self.cached.len()
    }
}
