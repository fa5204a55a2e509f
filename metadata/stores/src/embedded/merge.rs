//! Two rows of keys as one: what the newer one says of a key counts.

use std::cmp::Ordering;
use std::iter::Peekable;

use sealstone_mds::store::MetaError;

/// A key and what became of it; none: it was removed.
type Found = (Vec<u8>, Option<Vec<u8>>);

/// Keys in order.
pub(super) type Streamed<'a> = dyn Iterator<Item = Result<Found, MetaError>> + 'a;

/// See the module.
pub(super) struct Merge<'a, N: Iterator<Item = Found>> {
    newer: Peekable<N>,
    older: Peekable<Box<Streamed<'a>>>,
}

impl<'a, N: Iterator<Item = Found>> Merge<'a, N> {
    pub(super) fn new(newer: N, older: Box<Streamed<'a>>) -> Self {
        Self { newer: newer.peekable(), older: older.peekable() }
    }
}

impl<N: Iterator<Item = Found>> Iterator for Merge<'_, N> {
    type Item = Result<Found, MetaError>;

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
