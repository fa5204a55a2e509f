//! The parts of the Data-Out and Data-In Buffers, and the verification of those of data-out.
//!
//! Does: splits the Data-Out Buffer into its parts, verifies the check values of continuation
//! segment and data-out, lays out the Data-In Buffer.
//! Does not: interpret any part.
//! Contract: [`Admitted::authenticate`] is the only constructor of [`Authentic`]; a handler that
//! takes it cannot see protected data that failed verification. Nothing may be applied before.
//! Source of truth: docs/design/security.md 3.2, 3.3 step 7, 8.6 (D1, D3); t10-osd 1.7, 1.8.

use core::ops::Range;

use sealstone_digest::{CoveredDigests, DataDirection};
use sealstone_osd::cdb::Segment;
use sealstone_osd::{Cdb, SecurityMethod};

use crate::cover::{self, CoveredList, DataLocation, ObjectBounds};
use crate::denial::Denial;
use crate::grant::Admitted;
use crate::icv::DataOutCounts;
use crate::layout::CONTINUATION_ICV;
use crate::provider::Provider;

/// The parts of a Data-Out Buffer, verified as far as the command's method requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authentic<'a> {
    continuation: &'a [u8],
    data: &'a [u8],
    set: &'a [u8],
    get: &'a [u8],
    used: u64,
    covered: Option<CoveredDigests>,
}

impl<'a> Authentic<'a> {
    /// Returns the CDB continuation segment, with its header; empty if there is none.
    #[must_use]
    pub const fn continuation(&self) -> &'a [u8] {
        self.continuation
    }

    /// Returns the command data.
    #[must_use]
    pub const fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Returns the set attributes list, or the value in page format.
    #[must_use]
    pub const fn set_attributes(&self) -> &'a [u8] {
        self.set
    }

    /// Returns the get attributes list.
    #[must_use]
    pub const fn get_attributes(&self) -> &'a [u8] {
        self.get
    }

    /// Returns the bytes from the start of the buffer to the end of its last part, which determines
    /// the write residual.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Returns the digests over which the check value of the command data was verified: a store
    /// need not compute those of whole units again. `None` if the algorithm covers bytes, or the
    /// data are no range of the object.
    #[must_use]
    pub const fn covered(&self) -> Option<&CoveredDigests> {
        self.covered.as_ref()
    }
}

/// Layout of a Data-In Buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataInLayout {
    /// Maximum bytes of command data, which starts at 0.
    pub data_max: u64,
    /// Location of retrieved attributes; its length is the allocation.
    pub attributes: Option<Segment>,
    /// Offset of integrity information; `None` if the method has none or there is no data-in.
    pub integrity: Option<u64>,
    /// Bytes of integrity information; 0 if there is none.
    pub integrity_len: u64,
}

impl<P: Provider> Admitted<P> {
    /// Splits the Data-Out Buffer into its parts and verifies what the method protects: the
    /// continuation segment under CMDRSP, all of it under ALLDATA.
    ///
    /// # Errors
    /// [`Denial::DataOutLayout`], [`Denial::DataOutIcvOffset`], [`Denial::DataOutIcv`],
    /// [`Denial::ContinuationIcv`]; nothing was applied before, so nothing changed.
    pub fn authenticate<'a>(&self, cdb: &Cdb, data_out: &'a [u8]) -> Result<Authentic<'a>, Denial> {
        let parts = DataOutParts::of(cdb)?;
        let cut = |range: &Range<u64>| slice(data_out, range).ok_or(Denial::DataOutLayout);
        let mut authentic = Authentic {
            continuation: cut(&parts.continuation)?,
            data: cut(&parts.data)?,
            set: cut(&parts.set)?,
            get: cut(&parts.get)?,
            used: parts.end(),
            covered: None,
        };
        let Some((proven, nonce)) = self.reply().keys() else { return Ok(authentic) };
        let method = self.reply().method();
        let width = cdb.generation.icv_len();
        if method >= SecurityMethod::CmdRsp && !authentic.continuation.is_empty() {
            let tag = proven.keys.continuation(nonce, authentic.continuation);
            let field = authentic.continuation.get(CONTINUATION_ICV).unwrap_or(&[]);
            if !tag.is_some_and(|tag| tag.matches(field)) {
                return Err(Denial::ContinuationIcv);
            }
        }
        let empty = parts.data.is_empty() && parts.set.is_empty() && parts.get.is_empty();
        if method < SecurityMethod::AllData || empty {
            return Ok(authentic);
        }
        let start = cdb.security.data_out_icv_offset.ok_or(Denial::DataOutIcvOffset)?;
        let keys = &proven.keys;
        let end = start.checked_add((DataOutCounts::LEN + width) as u64).ok_or(Denial::DataOutIcvOffset)?;
        let block = slice(data_out, &(start..end))
            .filter(|_| !parts.overlap(&(start..end)))
            .ok_or(Denial::DataOutIcvOffset)?;
        let data = [authentic.data];
        let counts = DataOutCounts::of(authentic.set, authentic.get, &data);
        let (claimed, icv) = block.split_at(DataOutCounts::LEN);
        if claimed != counts.encode() {
            return Err(Denial::DataOutIcv);
        }
        let tag = match keys.digest() {
            None => keys.data_out(nonce, authentic.set, authentic.get, &data),
            Some(profile) => {
                let origin = DataLocation::of(cdb);
                let covered = origin.cover_out(profile, authentic.data);
                let lists = [authentic.set, authentic.get].map(CoveredList::of);
                let tag =
                    cover::tag(keys, DataDirection::Out, nonce, &origin, ObjectBounds::NONE, &covered, lists);
                authentic.covered = origin.start.is_some().then_some(covered);
                tag
            }
        };
        if !tag.matches(icv) {
            return Err(Denial::DataOutIcv);
        }
        authentic.used = authentic.used.max(end);
        Ok(authentic)
    }

    /// Returns the layout of the reply's data. Call it before the command runs.
    ///
    /// # Errors
    /// [`Denial::DataInIcvOffset`] if the method needs integrity information and its location is
    /// missing or overlaps another part.
    pub fn data_in_layout(&self, cdb: &Cdb) -> Result<DataInLayout, Denial> {
        let data_max = cdb.command.data_in_len();
        let attributes = cdb.attributes.retrieved_segment().filter(|segment| segment.length > 0);
        let mut layout = DataInLayout { data_max, attributes, integrity: None, integrity_len: 0 };
        if !self.reply().seals_data() || data_max == 0 && attributes.is_none() {
            return Ok(layout);
        }
        let start = cdb.security.data_in_icv_offset.ok_or(Denial::DataInIcvOffset)?;
        let len = self.reply().data_in_len() as u64;
        let place = start..start.checked_add(len).ok_or(Denial::DataInIcvOffset)?;
        let retrieved = attributes.map_or(0..0, |segment| segment.offset..segment.end());
        if overlap(&place, &(0..data_max)) || overlap(&place, &retrieved) {
            return Err(Denial::DataInIcvOffset);
        }
        layout.integrity = Some(start);
        layout.integrity_len = len;
        Ok(layout)
    }
}

/// The parts of a Data-Out Buffer according to the CDB.
struct DataOutParts {
    continuation: Range<u64>,
    data: Range<u64>,
    set: Range<u64>,
    get: Range<u64>,
}

impl DataOutParts {
    fn of(cdb: &Cdb) -> Result<Self, Denial> {
        let continuation = u64::from(cdb.continuation_length);
        let end = continuation.checked_add(cdb.command.data_out_len()).ok_or(Denial::DataOutLayout)?;
        let segment = |segment: Option<Segment>| segment.map_or(0..0, |part| part.offset..part.end());
        let this = Self {
            continuation: 0..continuation,
            data: continuation..end,
            set: segment(cdb.attributes.set_segment()),
            get: segment(cdb.attributes.get_list_segment()),
        };
        let clash =
            overlap(&this.set, &this.get) || overlap(&this.set, &(0..end)) || overlap(&this.get, &(0..end));
        if clash { Err(Denial::DataOutLayout) } else { Ok(this) }
    }

    fn overlap(&self, place: &Range<u64>) -> bool {
        [&self.continuation, &self.data, &self.set, &self.get].into_iter().any(|part| overlap(part, place))
    }

    fn end(&self) -> u64 {
        self.data.end.max(self.set.end).max(self.get.end)
    }
}

/// Whether two ranges overlap.
fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

/// Returns the bytes of a range; an empty range needs no buffer.
fn slice<'a>(buffer: &'a [u8], range: &Range<u64>) -> Option<&'a [u8]> {
    if range.is_empty() {
        return Some(&[]);
    }
    buffer.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}
