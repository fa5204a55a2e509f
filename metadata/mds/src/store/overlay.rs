//! Uncommitted changes of a transaction on top of a state of the store.
//!
//! Does: keep the changes in order of keys, and read a state as if they were applied.
//! Does not: commit.
//! Contract: memory grows with the changes only. A scan reads `limit` pairs and the changes of its
//! range.

use std::cmp::Ordering;
use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;

use super::{MetaError, Pair, Snapshot, check_limits};

/// The changes of a transaction, for stores that collect them until the commit.
#[derive(Debug, Default)]
pub struct Overlay(BTreeMap<Vec<u8>, Option<Vec<u8>>>);

impl Overlay {
    /// Sets a key.
    ///
    /// # Errors
    /// `TooLong`.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), MetaError> {
        check_limits(key, value)?;
        self.0.insert(key.to_vec(), Some(value.to_vec()));
        Ok(())
    }

    /// Removes a key.
    pub fn delete(&mut self, key: &[u8]) {
        self.0.insert(key.to_vec(), None);
    }

    /// Returns the change of a key: none if it is unchanged, `Some(None)` if it was removed.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Option<Vec<u8>>> {
        self.0.get(key).cloned()
    }

    /// Whether there are no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the changes in order of keys; a removed key has no value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.0.iter().map(|(key, change)| (&key[..], change.as_deref()))
    }

    /// Iterates over the changes of a non-empty range in order of keys; a removed key has no value.
    pub fn range(&self, from: &[u8], until: &[u8]) -> impl Iterator<Item = (Vec<u8>, Option<Vec<u8>>)> {
        self.between(from, until).map(|(key, change)| (key.clone(), change.clone()))
    }

    fn between(&self, from: &[u8], until: &[u8]) -> btree_map::Range<'_, Vec<u8>, Option<Vec<u8>>> {
        self.0.range::<[u8], _>((Bound::Included(from), Bound::Excluded(until)))
    }

    /// Returns the value of a key of `view` with the changes applied.
    ///
    /// # Errors
    /// Those of `view`.
    pub fn get_over(&self, view: &dyn Snapshot, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        self.get(key).map_or_else(|| view.get(key), Ok)
    }

    /// Returns the first `limit` pairs of a range of `view` with the changes applied.
    ///
    /// # Errors
    /// Those of `view`.
    pub fn scan_over(
        &self,
        view: &dyn Snapshot,
        from: &[u8],
        until: &[u8],
        limit: usize,
    ) -> Result<Vec<Pair>, MetaError> {
        if from >= until || limit == 0 {
            return Ok(Vec::new());
        }
        // Reads more, because deleted and changed keys are dropped from the result.
        let below = limit.saturating_add(self.between(from, until).count());
        Ok(self.scan(view.scan(from, until, below)?, from, until, limit))
    }

    /// Returns the first `limit` pairs of a range. `below` yields the pairs of the underlying
    /// state, in order.
    pub fn scan(
        &self,
        below: impl IntoIterator<Item = Pair>,
        from: &[u8],
        until: &[u8],
        limit: usize,
    ) -> Vec<Pair> {
        if from >= until {
            return Vec::new();
        }
        let mut below = below.into_iter().peekable();
        let mut changed = self.between(from, until).peekable();
        let mut found = Vec::new();
        while found.len() < limit {
            let order = match (below.peek(), changed.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((stored, _)), Some((key, _))) => stored.cmp(key),
            };
            if order.is_lt() {
                found.extend(below.next());
                continue;
            }
            if order.is_eq() {
                below.next();
            }
            if let Some((key, Some(value))) = changed.next() {
                found.push((key.clone(), value.clone()));
            }
        }
        found
    }
}

impl IntoIterator for Overlay {
    type Item = (Vec<u8>, Option<Vec<u8>>);
    type IntoIter = btree_map::IntoIter<Vec<u8>, Option<Vec<u8>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
