//! Merges two ordered streams of keys; the newer one wins.

use std::cmp::Ordering;
use std::iter::Peekable;

use sealstone_mds::store::MetaError;

/// A key and its value; `None` is a removal.
type KeyChange = (Vec<u8>, Option<Vec<u8>>);

/// Keys in order.
pub(super) type KeyStream<'a> = dyn Iterator<Item = Result<KeyChange, MetaError>> + 'a;

/// Merging iterator; see the module.
pub(super) struct MergedKeys<'a, N: Iterator<Item = KeyChange>> {
    newer: Peekable<N>,
    older: Peekable<Box<KeyStream<'a>>>,
}

impl<'a, N: Iterator<Item = KeyChange>> MergedKeys<'a, N> {
    pub(super) fn new(newer: N, older: Box<KeyStream<'a>>) -> Self {
        Self { newer: newer.peekable(), older: older.peekable() }
    }
}

impl<N: Iterator<Item = KeyChange>> Iterator for MergedKeys<'_, N> {
    type Item = Result<KeyChange, MetaError>;

    fn next(&mut self) -> Option<Self::Item> {
        let order = match (self.newer.peek(), self.older.peek()) {
            (_, None) => Ordering::Less,
            (None, Some(_)) | (_, Some(Err(_))) => Ordering::Greater,
            (Some((newer, _)), Some(Ok((older, _)))) => newer.cmp(older),
        };
        match order {
            Ordering::Greater => self.older.next(),
            Ordering::Equal => {
                self.older.next();
                self.newer.next().map(Ok)
            }
            Ordering::Less => self.newer.next().map(Ok),
        }
    }
}
