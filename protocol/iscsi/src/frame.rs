//! Splits a stream into PDUs; data segments are received directly into their destination.
//!
//! Does: collects header and additional headers, checks digests, receives data into a destination
//! without copying where the stream permits.
//! Does not: know opcodes.
//! Contract: call [`PduReceiver::step`] until it needs more bytes.
//! Source of truth: RFC 7143 §11.1, §11.2.

use alloc::{vec, vec::Vec};
use core::mem;

use crate::{
    Buffer, digest,
    digest::Crc32c,
    limits,
    pdu::{self, BHS_LEN, Bhs},
};

/// Segments of this length are received directly into their destination. Little spill space is
/// offered behind them, and before the next one that is expected, so that few of its bytes must be
/// copied.
const DIRECT_LARGE: usize = 16 * 1024;
/// Spill space offered beside large segments: a few headers.
const SPILL_BESIDE_DIRECT: usize = 512;
const DIGEST_LEN: usize = 4;

/// The stream cannot be parsed any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Header digests differ: at recovery level 0 the connection ends (RFC 7143 §7.8).
    #[error("header digest mismatch")]
    HeaderDigest,
}

/// Destination of a data segment.
#[derive(Debug)]
pub(crate) enum SegmentDestination {
    /// The segment is dropped.
    Discard,
    /// This buffer, from this offset on; bytes that do not fit are dropped.
    Into(Buffer, usize),
}

pub(crate) enum ReceiverStep {
    /// More bytes are needed.
    Starved,
    /// A header is complete: choose a destination with [`PduReceiver::accept`].
    Header,
    /// A PDU is complete; `intact` is false if its data digest is wrong.
    Pdu {
        destination: SegmentDestination,
        intact: bool,
    },
    Broken(FrameError),
}

enum ReceiverState {
    Header,
    /// The header was returned, the destination is not chosen yet.
    Held,
    Data {
        destination: SegmentDestination,
        filled: usize,
    },
    Trailer {
        destination: SegmentDestination,
    },
}

/// Returns how much of the free spill space is offered.
fn spill_room(free: usize, beside_direct: bool) -> usize {
    if beside_direct { free.min(SPILL_BESIDE_DIRECT) } else { free }
}

pub(crate) struct PduReceiver {
    spill: Vec<u8>,
    start: usize,
    end: usize,
    bhs: Bhs,
    ahs: Vec<u8>,
    state: ReceiverState,
    /// Whether another large segment is expected, because one was received lately; then headers are
    /// read separately. Cleared when such a read is filled by something else.
    expects_large: bool,
    data_crc: u32,
    crc: Crc32c,
    header_digest: bool,
    data_digest: bool,
}

impl PduReceiver {
    pub(crate) fn new(crc: Crc32c) -> Self {
        Self {
            spill: vec![0; limits::SPILL],
            start: 0,
            end: 0,
            bhs: [0; BHS_LEN],
            ahs: Vec::new(),
            state: ReceiverState::Header,
            expects_large: false,
            data_crc: 0,
            crc,
            header_digest: false,
            data_digest: false,
        }
    }

    /// Applies from the next PDU on.
    pub(crate) fn set_digests(&mut self, header: bool, data: bool) {
        self.header_digest = header;
        self.data_digest = data;
    }

    /// Returns where to put the next bytes of the stream: first the first slice, then the second.
    pub(crate) fn space(&mut self) -> [&mut [u8]; 2] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > limits::SPILL / 2 {
            self.spill.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let length = self.data_length();
        let direct = match &mut self.state {
            ReceiverState::Data { destination: SegmentDestination::Into(buffer, offset), filled }
                if self.start == self.end =>
            {
                let from = offset.saturating_add(*filled);
                let until = offset.saturating_add(length).min(buffer.len());
                buffer.as_mut_slice().get_mut(from..until).unwrap_or_default()
            }
            _ => &mut [],
        };
        let beside = direct.len() >= DIRECT_LARGE || direct.is_empty() && self.expects_large;
        let room = spill_room(self.spill.len() - self.end, beside);
        [direct, &mut self.spill[self.end..self.end + room]]
    }

    /// Records that `n` bytes were put into [`Self::space`].
    pub(crate) fn received(&mut self, n: usize) {
        let length = self.data_length();
        let mut into_spill = n;
        if let ReceiverState::Data { destination: SegmentDestination::Into(buffer, offset), filled } =
            &mut self.state
            && self.start == self.end
        {
            let from = offset.saturating_add(*filled);
            let until = offset.saturating_add(length).min(buffer.len());
            let direct = until.saturating_sub(from).min(n);
            // Past the end of a short destination (a truncated echo) nothing is received directly,
            // and `from` lies outside.
            if self.data_digest
                && let Some(piece) = buffer.as_slice().get(from..from.saturating_add(direct))
            {
                self.data_crc = (self.crc)(self.data_crc, piece);
            }
            *filled += direct;
            into_spill = n - direct;
        }
        if into_spill == n && n >= spill_room(self.spill.len() - self.end, true) {
            self.expects_large = false;
        }
        self.end = (self.end + into_spill).min(self.spill.len());
    }

    pub(crate) fn bhs(&self) -> &Bhs {
        &self.bhs
    }

    pub(crate) fn ahs(&self) -> &[u8] {
        &self.ahs
    }

    /// Whether a PDU has started and is not complete.
    pub(crate) fn in_pdu(&self) -> bool {
        !matches!(self.state, ReceiverState::Header) || self.start != self.end
    }

    /// Returns the buffer of the segment that is being received, up to the last received byte.
    pub(crate) fn filled(&self) -> Option<&[u8]> {
        let (SegmentDestination::Into(buffer, offset), filled) = (match &self.state {
            ReceiverState::Data { destination, filled } => (destination, *filled),
            ReceiverState::Trailer { destination } => (destination, self.data_length()),
            ReceiverState::Header | ReceiverState::Held => return None,
        }) else {
            return None;
        };
        Some(&buffer.as_slice()[..offset.saturating_add(filled).min(buffer.len())])
    }

    fn data_length(&self) -> usize {
        pdu::data_length(&self.bhs) as usize
    }

    /// Sets the destination of the data segment after [`ReceiverStep::Header`].
    pub(crate) fn accept(&mut self, destination: SegmentDestination) {
        self.data_crc = 0;
        self.expects_large |=
            matches!(destination, SegmentDestination::Into(..)) && self.data_length() >= DIRECT_LARGE;
        self.state = ReceiverState::Data { destination, filled: 0 };
    }

    pub(crate) fn step(&mut self) -> ReceiverStep {
        loop {
            match mem::replace(&mut self.state, ReceiverState::Header) {
                ReceiverState::Header => match self.header() {
                    Ok(true) => self.state = ReceiverState::Held,
                    Ok(false) => return ReceiverStep::Starved,
                    Err(error) => return ReceiverStep::Broken(error),
                },
                ReceiverState::Held => {
                    self.state = ReceiverState::Held;
                    return ReceiverStep::Header;
                }
                ReceiverState::Data { mut destination, filled } => {
                    let filled = self.absorb(&mut destination, filled);
                    if filled < self.data_length() {
                        self.state = ReceiverState::Data { destination, filled };
                        return ReceiverStep::Starved;
                    }
                    self.state = ReceiverState::Trailer { destination };
                }
                ReceiverState::Trailer { destination } => match self.trailer() {
                    Some(intact) => return ReceiverStep::Pdu { destination, intact },
                    None => {
                        self.state = ReceiverState::Trailer { destination };
                        return ReceiverStep::Starved;
                    }
                },
            }
        }
    }

    /// Takes a whole header from the spill; returns false if it is not complete yet.
    fn header(&mut self) -> Result<bool, FrameError> {
        let waiting = &self.spill[self.start..self.end];
        let Some(bhs) = waiting.first_chunk::<BHS_LEN>() else { return Ok(false) };
        let length = BHS_LEN + pdu::ahs_length(bhs);
        let total = length + if self.header_digest { DIGEST_LEN } else { 0 };
        let Some(header) = waiting.get(..total) else { return Ok(false) };
        if self.header_digest && digest::wire((self.crc)(0, &header[..length])) != header[length..] {
            return Err(FrameError::HeaderDigest);
        }
        self.bhs = *bhs;
        self.ahs.clear();
        self.ahs.extend_from_slice(&header[BHS_LEN..length]);
        self.start += total;
        Ok(true)
    }

    /// Moves spilled bytes to the segment; returns how much of the segment is received.
    fn absorb(&mut self, destination: &mut SegmentDestination, filled: usize) -> usize {
        let count = (self.data_length() - filled).min(self.end - self.start);
        let waiting = &self.spill[self.start..self.start + count];
        if self.data_digest {
            self.data_crc = (self.crc)(self.data_crc, waiting);
        }
        if let SegmentDestination::Into(buffer, offset) = destination {
            let from = offset.saturating_add(filled).min(buffer.len());
            let room = &mut buffer.as_mut_slice()[from..];
            let fits = count.min(room.len());
            room[..fits].copy_from_slice(&waiting[..fits]);
        }
        self.start += count;
        filled + count
    }

    /// Takes padding and data digest; `None` if they are not complete yet.
    fn trailer(&mut self) -> Option<bool> {
        let length = self.data_length();
        let padding = pdu::padding(length);
        let digest = if self.data_digest && length > 0 { DIGEST_LEN } else { 0 };
        let trailer = self.spill[self.start..self.end].get(..padding + digest)?;
        let intact =
            digest == 0 || digest::wire((self.crc)(self.data_crc, &trailer[..padding])) == trailer[padding..];
        self.start += padding + digest;
        Some(intact)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Feeds a stream like a socket that has all of it; counts reads, and bytes that went through
    /// the spill.
    fn feed(receiver: &mut PduReceiver, mut stream: &[u8]) -> (usize, usize, usize) {
        let (mut reads, mut spilled, mut pdus) = (0, 0, 0);
        while !stream.is_empty() {
            let [first, second] = receiver.space();
            let direct = first.len().min(stream.len());
            first[..direct].copy_from_slice(&stream[..direct]);
            let rest = second.len().min(stream.len() - direct);
            second[..rest].copy_from_slice(&stream[direct..direct + rest]);
            stream = &stream[direct + rest..];
            receiver.received(direct + rest);
            (reads, spilled) = (reads + 1, spilled + rest);
            loop {
                match receiver.step() {
                    ReceiverStep::Starved => break,
                    ReceiverStep::Header => {
                        let length = pdu::data_length(receiver.bhs()) as usize;
                        receiver.accept(SegmentDestination::Into(Buffer::from(vec![0; length]), 0));
                    }
                    ReceiverStep::Pdu { destination, intact } => {
                        let SegmentDestination::Into(buffer, _) = destination else { panic!("it was kept") };
                        assert!(intact && buffer.as_slice().iter().all(|byte| *byte == 7));
                        pdus += 1;
                    }
                    ReceiverStep::Broken(error) => panic!("{error}"),
                }
            }
        }
        (reads, spilled, pdus)
    }

    fn stream(lengths: &[usize]) -> Vec<u8> {
        let mut stream = Vec::new();
        for &length in lengths {
            let mut bhs = [0; BHS_LEN];
            bhs[5..8].copy_from_slice(&u32::try_from(length).unwrap().to_be_bytes()[1..]);
            stream.extend_from_slice(&bhs);
            stream.resize(stream.len() + length, 7);
            stream.resize(stream.len() + pdu::padding(length), 0);
        }
        stream
    }

    #[test]
    fn large_segments_in_a_row_are_not_copied() {
        let mut receiver = PduReceiver::new(|crc, _| crc);
        let (_, spilled, pdus) = feed(&mut receiver, &stream(&[65536; 20]));
        assert_eq!(pdus, 20);
        // The first is unexpected; the others include some headers.
        assert!(spilled <= limits::SPILL + 20 * SPILL_BESIDE_DIRECT, "{spilled}");
    }

    #[test]
    fn header_behind_large_segment_needs_no_extra_read() {
        let mut receiver = PduReceiver::new(|crc, _| crc);
        feed(&mut receiver, &stream(&[65536, 44]));
        let (reads, ..) = feed(&mut receiver, &stream(&[65536, 44]));
        assert_eq!(reads, 2, "one finds the header, one the rest");
    }

    #[test]
    fn small_segments_are_batched_again_after_large_ones() {
        let mut receiver = PduReceiver::new(|crc, _| crc);
        feed(&mut receiver, &stream(&[65536]));
        let small = stream(&[200; 500]);
        let (reads, _, pdus) = feed(&mut receiver, &small);
        assert_eq!(pdus, 500);
        assert!(reads <= small.len() / limits::SPILL * 2 + 3, "{reads}");
    }
}
