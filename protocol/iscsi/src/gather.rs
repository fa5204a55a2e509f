//! A gather list: one logical buffer of several shared pieces, sent without joining them.

use alloc::vec::Vec;

use bytes::Bytes;

/// Bytes to send, in pieces that are never joined. For a few pieces: finding an offset walks them.
#[derive(Clone, Debug)]
pub struct Gather(GatherPieces);

#[derive(Clone, Debug)]
enum GatherPieces {
    One(Bytes),
    Many(Vec<Bytes>),
}

impl Gather {
    /// Creates a gather list without bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self(GatherPieces::One(Bytes::new()))
    }

    fn pieces(&self) -> &[Bytes] {
        match &self.0 {
            GatherPieces::One(piece) => core::slice::from_ref(piece),
            GatherPieces::Many(pieces) => pieces,
        }
    }

    /// Returns the bytes in all pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces().iter().map(Bytes::len).sum()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces().iter().all(Bytes::is_empty)
    }

    /// Returns the pieces of `offset..offset + len`; fewer bytes where the list ends.
    pub fn range(&self, offset: usize, len: usize) -> impl Iterator<Item = Bytes> + '_ {
        let (mut skip, mut left) = (offset, len);
        self.pieces().iter().filter_map(move |piece| {
            let from = skip.min(piece.len());
            skip -= from;
            let count = (piece.len() - from).min(left);
            left -= count;
            (count > 0).then(|| piece.slice(from..from + count))
        })
    }
}

impl Default for Gather {
    fn default() -> Self {
        Self::new()
    }
}

impl From<Bytes> for Gather {
    fn from(bytes: Bytes) -> Self {
        Self(GatherPieces::One(bytes))
    }
}

impl From<Vec<Bytes>> for Gather {
    fn from(pieces: Vec<Bytes>) -> Self {
        Self(GatherPieces::Many(pieces))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn gather_range_equals_range_of_joined_bytes() {
        let whole: Vec<u8> = (0..20).collect();
        let gather = Gather::from(vec![
            Bytes::copy_from_slice(&whole[..7]),
            Bytes::new(),
            Bytes::copy_from_slice(&whole[7..8]),
            Bytes::copy_from_slice(&whole[8..]),
        ]);
        for offset in 0..22 {
            for len in 0..22 {
                let joined: Vec<u8> = gather.range(offset, len).flatten().collect();
                let from = offset.min(20);
                assert_eq!(joined, &whole[from..(from + len).min(20)]);
            }
        }
    }
}
