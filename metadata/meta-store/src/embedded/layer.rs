//! Changes in memory on top of the file: versions of keys, each with its commit number.
//!
//! Does: keeps the versions that a view can still see.
//! Does not: read the file.
//! Contract: a view sees its commit number and nothing newer, whatever is committed meanwhile.
//! Memory is limited to the changed keys times the versions that open views distinguish.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use parking_lot::RwLock;

/// New value of a key; `None` is a removal.
pub(super) type Change = Option<Vec<u8>>;
/// Keys of a range that are read under one lock.
const PAGE: usize = 256;

struct KeyVersion {
    number: u64,
    change: Change,
}

/// A layer of changes; see the module.
#[derive(Default)]
pub(super) struct ChangeLayer(RwLock<BTreeMap<Vec<u8>, Vec<KeyVersion>>>);

/// Returns the newest version that a view of this number sees.
fn seen(versions: &[KeyVersion], number: u64) -> Option<&Change> {
    versions.iter().rev().find(|version| version.number <= number).map(|version| &version.change)
}

impl ChangeLayer {
    /// Adds the changes of commit `number`; `oldest` is the oldest number that a view may have.
    pub(super) fn put(&self, changes: impl IntoIterator<Item = (Vec<u8>, Change)>, number: u64, oldest: u64) {
        let mut all = self.0.write();
        for (key, change) in changes {
            let versions = all.entry(key).or_default();
            // Drops versions that even the oldest view does not see, because it sees a newer one.
            let kept = versions.iter().rposition(|version| version.number <= oldest).unwrap_or(0);
            versions.drain(..kept);
            versions.push(KeyVersion { number, change });
        }
    }

    /// Returns the change of a key; `None` if it is unchanged.
    pub(super) fn get(&self, key: &[u8], number: u64) -> Option<Change> {
        seen(self.0.read().get(key)?, number).cloned()
    }

    /// Iterates over the keys of a range that a view of this number sees changed, in order.
    pub(super) fn range<'a>(&'a self, from: &[u8], until: &'a [u8], number: u64) -> ChangedKeys<'a> {
        ChangedKeys {
            layer: self,
            next: Some(Bound::Included(from.to_vec())),
            until,
            number,
            page: VecDeque::new(),
        }
    }

    /// Calls `each` with the newest change of every key, in order.
    pub(super) fn each<E>(&self, mut each: impl FnMut(&[u8], &Change) -> Result<(), E>) -> Result<(), E> {
        for (key, versions) in &*self.0.read() {
            if let Some(version) = versions.last() {
                each(key, &version.change)?;
            }
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }
}

/// Iterator of [`ChangeLayer::range`].
pub(super) struct ChangedKeys<'a> {
    layer: &'a ChangeLayer,
    /// Start of the next page; `None` after the last.
    next: Option<Bound<Vec<u8>>>,
    until: &'a [u8],
    number: u64,
    page: VecDeque<(Vec<u8>, Change)>,
}

impl Iterator for ChangedKeys<'_> {
    type Item = (Vec<u8>, Change);

    fn next(&mut self) -> Option<Self::Item> {
        while self.page.is_empty() {
            let from = self.next.take()?;
            let all = self.layer.0.read();
            let range = (from.as_ref().map(Vec::as_slice), Bound::Excluded(self.until));
            let mut looked_at = 0;
            for (key, versions) in all.range::<[u8], _>(range).take(PAGE) {
                looked_at += 1;
                if let Some(change) = seen(versions, self.number) {
                    self.page.push_back((key.clone(), change.clone()));
                }
                if looked_at == PAGE {
                    self.next = Some(Bound::Excluded(key.clone()));
                }
            }
        }
        self.page.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(layer: &ChangeLayer, number: u64, oldest: u64, changes: &[(&[u8], Option<&[u8]>)]) {
        let changes = changes.iter().map(|(key, change)| (key.to_vec(), change.map(<[u8]>::to_vec)));
        layer.put(changes.collect::<Vec<_>>(), number, oldest);
    }

    #[test]
    fn view_sees_its_commit_and_drops_old_versions() {
        let layer = ChangeLayer::default();
        put(&layer, 1, 0, &[(b"a", Some(b"1")), (b"b", Some(b"1"))]);
        put(&layer, 2, 0, &[(b"a", Some(b"2"))]);
        put(&layer, 3, 1, &[(b"a", None)]);
        let at = |number| layer.get(b"a", number);
        assert_eq!((at(0), at(1)), (None, Some(Some(b"1".to_vec()))));
        assert_eq!((at(2), at(9)), (Some(Some(b"2".to_vec())), Some(None)));
        put(&layer, 4, 3, &[(b"a", Some(b"4"))]);
        assert_eq!(layer.0.read()[&b"a"[..]].len(), 2, "that of the oldest view, and the newest");
        assert_eq!((at(3), at(4)), (Some(None), Some(Some(b"4".to_vec()))));
        let range = |from: &[u8], number| layer.range(from, b"z", number).count();
        assert_eq!((range(b"a", 0), range(b"a", 3), range(b"b", 3)), (0, 2, 1));
    }

    #[test]
    fn range_continues_over_pages() {
        let layer = ChangeLayer::default();
        let keys = || (0..3 * PAGE as u32).map(|key| key.to_be_bytes().to_vec());
        layer.put(keys().map(|key| (key, Some(Vec::new()))), 1, 0);
        let found: Vec<Vec<u8>> = layer.range(b"", &[0xFF], 1).map(|(key, _)| key).collect();
        assert_eq!(found, keys().collect::<Vec<_>>());
        assert_eq!(layer.range(b"", &[0xFF], 0).count(), 0);
    }
}
