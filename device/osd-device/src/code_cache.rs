//! Code of functions that ran lately, with its digest and the attributes of its object.
//!
//! Does: keep copies of short code, so that a run need not read and hash it again.
//! Does not: check policies or digests of requests.
//! Contract: an entry is used only while the store has counted no change of the object, which the
//! caller reads under the lock of the object. At most [`CODES_MAX`] entries and [`BYTES_MAX`] bytes
//! are kept.
//! Truth: docs/adr/0082-short-runs-of-functions.md.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_osd::ObjectId;
use sealstone_osd::function::CODE_DIGEST_LEN;
use sealstone_osd::function::attributes::FunctionAttributes;

/// Maximum number of functions whose code is kept.
const CODES_MAX: usize = 32;
/// Maximum bytes of all code that is kept.
const BYTES_MAX: usize = 16 << 20;

/// A function object as the store had it after some number of changes.
#[derive(Clone)]
pub(crate) struct StoredCode {
    pub(crate) attributes: FunctionAttributes,
    pub(crate) bytes: Arc<[u8]>,
    /// BLAKE3-256 of the bytes.
    pub(crate) digest: [u8; CODE_DIGEST_LEN],
}

struct CachedCode {
    id: ObjectId,
    changes: u64,
    code: StoredCode,
}

/// The cache of a device; the entry that was used last is the last one.
#[derive(Default)]
pub(crate) struct CodeCache(Mutex<VecDeque<CachedCode>>);

impl CodeCache {
    /// Returns the code of a function; `None` if it is not kept, or changed since.
    pub(crate) fn get(&self, id: ObjectId, changes: u64) -> Option<StoredCode> {
        let mut codes = self.0.lock();
        let at = codes.iter().position(|code| code.id == id)?;
        let found = codes.remove(at).filter(|code| code.changes == changes)?;
        let code = found.code.clone();
        codes.push_back(found);
        Some(code)
    }

    /// Keeps the code of a function as it was after `changes`.
    pub(crate) fn insert(&self, id: ObjectId, changes: u64, code: StoredCode) {
        if code.bytes.len() > BYTES_MAX {
            return;
        }
        let mut codes = self.0.lock();
        codes.retain(|code| code.id != id);
        codes.push_back(CachedCode { id, changes, code });
        let mut bytes: usize = codes.iter().map(|code| code.code.bytes.len()).sum();
        while bytes > BYTES_MAX || codes.len() > CODES_MAX {
            let Some(oldest) = codes.pop_front() else { return };
            bytes -= oldest.code.bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(length: usize) -> StoredCode {
        let bytes: Arc<[u8]> = vec![7; length].into();
        StoredCode {
            attributes: FunctionAttributes::default(),
            digest: *blake3::hash(&bytes).as_bytes(),
            bytes,
        }
    }

    fn id(number: u64) -> ObjectId {
        ObjectId::new(0x10000, number)
    }

    #[test]
    fn changed_code_is_dropped() {
        let cache = CodeCache::default();
        cache.insert(id(1), 5, code(10));
        assert!(cache.get(id(2), 5).is_none());
        assert!(cache.get(id(1), 5).is_some());
        assert!(cache.get(id(1), 6).is_none());
        assert!(cache.get(id(1), 5).is_none(), "it was dropped");
    }

    #[test]
    fn limits_drop_code_used_longest_ago() {
        let cache = CodeCache::default();
        cache.insert(id(0), 1, code(BYTES_MAX + 1));
        assert!(cache.get(id(0), 1).is_none());
        for number in 1..=CODES_MAX as u64 {
            cache.insert(id(number), 1, code(10));
        }
        assert!(cache.get(id(1), 1).is_some());
        cache.insert(id(100), 1, code(10));
        assert!(cache.get(id(1), 1).is_some() && cache.get(id(2), 1).is_none());
        cache.insert(id(101), 1, code(BYTES_MAX));
        assert!(cache.get(id(1), 1).is_none() && cache.get(id(101), 1).is_some());
        assert_eq!(cache.0.lock().len(), 1);
    }
}
