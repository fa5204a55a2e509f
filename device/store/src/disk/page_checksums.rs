//! Checksums of the pages of the index file, in memory.
//!
//! Does: records the checksum of each page that was verified or written; finds pages that differ.
//! Contract: a page without a recorded checksum is never valid.

use std::io;
use std::sync::Arc;

use parking_lot::RwLock;
use sealstone_redb_format::{PageSource, UNIT};

use crate::medium::MediumFile;

/// Marks a checksum as known; above its 32 bits.
const KNOWN: u64 = 1 << 32;
/// CRC32C of each known page of 4 KiB; takes 8 bytes of memory per page.
#[derive(Default)]
pub(crate) struct PageChecksums(RwLock<Vec<u64>>);

impl PageChecksums {
    /// Records the checksums of these pages.
    pub(crate) fn record_page(&self, offset: u64, bytes: &[u8]) {
        let first = (offset / UNIT) as usize;
        let pages = bytes.chunks_exact(UNIT as usize);
        let mut sums = self.0.write();
        if sums.len() < first + pages.len() {
            sums.resize(first + pages.len(), 0);
        }
        for (sum, page) in sums[first..].iter_mut().zip(pages) {
            *sum = KNOWN | u64::from(crate::crc::crc32c(page));
        }
    }

    /// Returns the first page whose bytes do not match its checksum as an error.
    pub(crate) fn check(&self, offset: u64, bytes: &[u8]) -> Result<(), u64> {
        let first = (offset / UNIT) as usize;
        let sums = self.0.read();
        for (at, page) in bytes.chunks_exact(UNIT as usize).enumerate() {
            let known = sums.get(first + at).copied().unwrap_or(0);
            if known != KNOWN | u64::from(crate::crc::crc32c(page)) {
                return Err((first + at) as u64 * UNIT);
            }
        }
        Ok(())
    }

    /// Drops the checksums beyond `length`, the new end of the file.
    pub(crate) fn cut(&self, length: u64) {
        self.0.write().truncate((length / UNIT) as usize);
    }
}

/// The index file as the source of pages of a [`TreeReader`].
pub(crate) struct IndexPages {
    file: Arc<dyn MediumFile>,
    /// Receives the checksum of every page that was found intact.
    sums: Option<Arc<PageChecksums>>,
}

impl IndexPages {
    pub(crate) fn plain(file: Arc<dyn MediumFile>) -> Box<Self> {
        Box::new(Self { file, sums: None })
    }

    /// Creates a source that records the checksums of intact pages.
    pub(crate) fn verifying(file: Arc<dyn MediumFile>, sums: Arc<PageChecksums>) -> Box<Self> {
        Box::new(Self { file, sums: Some(sums) })
    }
}

impl PageSource for IndexPages {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, into)
    }

    fn verified(&self, offset: u64, bytes: &[u8]) {
        if let Some(sums) = &self.sums {
            sums.record_page(offset, bytes);
        }
    }
}
