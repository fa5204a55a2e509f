//! Converts PDUs into pieces for one vectored write: headers from an arena, data shared without
//! copying.

use alloc::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    digest,
    digest::Crc32c,
    pdu::{self, Bhs},
};

/// Arena bytes allocated at once; a header is 48 bytes, so this is at most one allocation per 80
/// PDUs, and none if earlier pieces were released in time.
const ARENA: usize = 4096;
/// Data up to this length is copied behind its header in the arena: cheaper than a further piece.
const JOIN_MAX: usize = 256;
static ZEROS: [u8; 4] = [0; 4];

pub(crate) struct PduTransmitter {
    arena: BytesMut,
    pieces: VecDeque<Bytes>,
    crc: Crc32c,
    header_digest: bool,
    data_digest: bool,
    /// Whether short data are copied behind their header.
    joins_data: bool,
}

impl PduTransmitter {
    pub(crate) fn new(crc: Crc32c) -> Self {
        Self {
            arena: BytesMut::new(),
            pieces: VecDeque::new(),
            crc,
            header_digest: false,
            data_digest: false,
            joins_data: true,
        }
    }

    /// Applies from the next PDU on.
    pub(crate) fn set_digests(&mut self, header: bool, data: bool) {
        self.header_digest = header;
        self.data_digest = data;
    }

    /// Leaves all data in their own pieces from now on: the arena is not wiped, and data may be
    /// keys.
    pub(crate) fn keep_data_apart(&mut self) {
        self.joins_data = false;
    }

    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        self.pieces.pop_front()
    }

    /// Queues one PDU; writes both lengths into the header.
    pub(crate) fn pdu(&mut self, mut bhs: Bhs, ahs: &[u8], length: usize, data: impl Iterator<Item = Bytes>) {
        bhs[4] = u8::try_from(ahs.len() / 4).expect("additional headers are at most 255 words");
        let [high, lengths @ ..] =
            u32::try_from(length).expect("data segments are shorter than 16 MiB").to_be_bytes();
        debug_assert_eq!(high, 0, "data segments are shorter than 16 MiB");
        bhs[5..8].copy_from_slice(&lengths);

        if self.arena.capacity() < bhs.len() + ahs.len() + 4 {
            self.arena.reserve(ARENA);
        }
        self.arena.put_slice(&bhs);
        self.arena.put_slice(ahs);
        if self.header_digest {
            let crc = (self.crc)(0, &self.arena);
            self.arena.put_slice(&digest::wire(crc));
        }
        let mut crc = 0;
        for piece in data {
            if self.data_digest {
                crc = (self.crc)(crc, &piece);
            }
            if self.joins_data && piece.len() <= JOIN_MAX {
                self.arena.put_slice(&piece);
            } else {
                self.flush();
                self.pieces.push_back(piece);
            }
        }
        let padding = pdu::padding(length);
        self.arena.put_slice(&ZEROS[..padding]);
        if self.data_digest && length > 0 {
            crc = (self.crc)(crc, &ZEROS[..padding]);
            self.arena.put_slice(&digest::wire(crc));
        }
        self.flush();
    }

    fn flush(&mut self) {
        if !self.arena.is_empty() {
            self.pieces.push_back(self.arena.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_kept_apart_are_never_copied() {
        let mut tx = PduTransmitter::new(digest::crc32c_append);
        for (is_apart, pieces) in [(false, 1), (true, 2)] {
            if is_apart {
                tx.keep_data_apart();
            }
            let key = Bytes::from_static(&[7; 72]);
            tx.pdu([0; 48], &[], key.len(), core::iter::once(key.clone()));
            let sent: alloc::vec::Vec<_> = core::iter::from_fn(|| tx.pop()).collect();
            assert_eq!(sent.len(), pieces);
            assert_eq!(sent.iter().any(|piece| piece.as_ptr() == key.as_ptr()), is_apart);
        }
    }
}
