//! Cuts a stream into PDUs; data segments land where their owner wants them.
//!
//! Does: collect header and additional headers, check digests, bring data to a destination uncopied where the
//! stream allows. Does not: know opcodes. Contract: [`Receiver::step`] until it wants more bytes.
//! Truth: RFC 7143 §11.1, §11.2.

use alloc::{vec, vec::Vec};
use core::mem;

use crate::{
    Buffer, digest,
    digest::Crc32c,
    limits,
    pdu::{self, BHS_LEN, Bhs},
};

/// Direct reads behind which little spill space is offered, so that few bytes of the next segment need copying.
const DIRECT_LARGE: usize = 16 * 1024;
/// Spill offered behind a large direct read: some headers.
const SPILL_BEHIND_DIRECT: usize = 512;
const DIGEST_LEN: usize = 4;

/// The stream cannot be followed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Header digests differ: at recovery level 0 the connection ends (RFC 7143 §7.8).
    #[error("header digest mismatch")]
    HeaderDigest,
}

/// Where a data segment goes.
#[derive(Debug)]
pub(crate) enum Destination {
    /// Nowhere.
    Discard,
    /// Into this buffer from this offset on; there is room, or the rest is dropped.
    Into(Buffer, usize),
}

pub(crate) enum Step {
    /// Nothing to do before more bytes come.
    Starved,
    /// A header is there: choose a destination with [`Receiver::accept`].
    Header,
    /// A whole PDU is there; `intact` is false when its data digest is wrong.
    Pdu {
        destination: Destination,
        intact: bool,
    },
    Broken(FrameError),
}

enum State {
    Header,
    /// Header handed out, destination not chosen yet.
    Held,
    Data {
        destination: Destination,
        filled: usize,
    },
    Trailer {
        destination: Destination,
    },
}

pub(crate) struct Receiver {
    spill: Vec<u8>,
    start: usize,
    end: usize,
    bhs: Bhs,
    ahs: Vec<u8>,
    state: State,
    data_crc: u32,
    crc: Crc32c,
    header_digest: bool,
    data_digest: bool,
}

impl Receiver {
    pub(crate) fn new(crc: Crc32c) -> Self {
        Self {
            spill: vec![0; limits::SPILL],
            start: 0,
            end: 0,
            bhs: [0; BHS_LEN],
            ahs: Vec::new(),
            state: State::Header,
            data_crc: 0,
            crc,
            header_digest: false,
            data_digest: false,
        }
    }

    /// From the next PDU on.
    pub(crate) fn set_digests(&mut self, header: bool, data: bool) {
        self.header_digest = header;
        self.data_digest = data;
    }

    /// Where the next bytes of the stream go: first the first slice, then the second.
    pub(crate) fn space(&mut self) -> [&mut [u8]; 2] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > limits::SPILL / 2 {
            self.spill.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let length = self.data_length();
        let direct = match &mut self.state {
            State::Data { destination: Destination::Into(buffer, offset), filled }
                if self.start == self.end =>
            {
                let from = offset.saturating_add(*filled);
                let until = offset.saturating_add(length).min(buffer.len());
                buffer.as_mut_slice().get_mut(from..until).unwrap_or_default()
            }
            _ => &mut [],
        };
        let mut spill = &mut self.spill[self.end..];
        if direct.len() >= DIRECT_LARGE {
            let room = spill.len().min(SPILL_BEHIND_DIRECT);
            spill = &mut spill[..room];
        }
        [direct, spill]
    }

    /// `n` bytes were put into [`Self::space`].
    pub(crate) fn received(&mut self, n: usize) {
        let length = self.data_length();
        let mut into_spill = n;
        if let State::Data { destination: Destination::Into(buffer, offset), filled } = &mut self.state
            && self.start == self.end
        {
            let from = offset.saturating_add(*filled);
            let until = offset.saturating_add(length).min(buffer.len());
            let direct = until.saturating_sub(from).min(n);
            // Past the end of a short destination (an echo that is cut) nothing is direct, and `from` lies outside.
            if self.data_digest
                && let Some(piece) = buffer.as_slice().get(from..from.saturating_add(direct))
            {
                self.data_crc = (self.crc)(self.data_crc, piece);
            }
            *filled += direct;
            into_spill = n - direct;
        }
        self.end = (self.end + into_spill).min(self.spill.len());
    }

    pub(crate) fn bhs(&self) -> &Bhs {
        &self.bhs
    }

    pub(crate) fn ahs(&self) -> &[u8] {
        &self.ahs
    }

    /// True between the first and the last byte of a PDU.
    pub(crate) fn in_pdu(&self) -> bool {
        !matches!(self.state, State::Header) || self.start != self.end
    }

    fn data_length(&self) -> usize {
        pdu::data_length(&self.bhs) as usize
    }

    /// After [`Step::Header`]: sends the data segment there.
    pub(crate) fn accept(&mut self, destination: Destination) {
        self.data_crc = 0;
        self.state = State::Data { destination, filled: 0 };
    }

    pub(crate) fn step(&mut self) -> Step {
        loop {
            match mem::replace(&mut self.state, State::Header) {
                State::Header => match self.header() {
                    Ok(true) => self.state = State::Held,
                    Ok(false) => return Step::Starved,
                    Err(error) => return Step::Broken(error),
                },
                State::Held => {
                    self.state = State::Held;
                    return Step::Header;
                }
                State::Data { mut destination, filled } => {
                    let filled = self.absorb(&mut destination, filled);
                    if filled < self.data_length() {
                        self.state = State::Data { destination, filled };
                        return Step::Starved;
                    }
                    self.state = State::Trailer { destination };
                }
                State::Trailer { destination } => match self.trailer() {
                    Some(intact) => return Step::Pdu { destination, intact },
                    None => {
                        self.state = State::Trailer { destination };
                        return Step::Starved;
                    }
                },
            }
        }
    }

    /// Takes a whole header from the spill; false if it is not there yet.
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

    /// Moves what is waiting in the spill; returns how much of the segment is there now.
    fn absorb(&mut self, destination: &mut Destination, filled: usize) -> usize {
        let count = (self.data_length() - filled).min(self.end - self.start);
        let waiting = &self.spill[self.start..self.start + count];
        if self.data_digest {
            self.data_crc = (self.crc)(self.data_crc, waiting);
        }
        if let Destination::Into(buffer, offset) = destination {
            let from = offset.saturating_add(filled).min(buffer.len());
            let room = &mut buffer.as_mut_slice()[from..];
            let fits = count.min(room.len());
            room[..fits].copy_from_slice(&waiting[..fits]);
        }
        self.start += count;
        filled + count
    }

    /// Takes padding and data digest; `None` if they are not there yet.
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
