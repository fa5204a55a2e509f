//! Where a file has data and where it has holes, by the maps of its objects.
//!
//! Does: ask for the map of an object as far as an answer needs it, and translate to offsets of the file. Does not: know how
//! a device is asked; a [`MapSource`] does.
//! Contract: a hole may be reported as data, since devices count in blocks; data is never reported as a hole.
//! Truth: t10-osd §1.9, READ MAP.

use core::ops::Range;

use sealstone_mds_protocol::Layout;
use sealstone_osd::map::{self, Stretch};

use crate::ClientError;

/// Stretches of one object that are requested at once.
pub(crate) const STRETCHES: usize = 4096;

/// What is known of one object: where its data is between two of its bytes.
#[derive(Default)]
pub(crate) struct ObjectMap {
    known: Range<u64>,
    /// Nothing follows what is known.
    ended: bool,
    /// In order.
    data: Vec<Range<u64>>,
}

impl ObjectMap {
    /// Reads the stretches that a device reported from a byte on; none if the object ends before it.
    pub(crate) fn parse(from: u64, stretches: &[Stretch]) -> Result<Self, ClientError> {
        let mut this = Self { known: from..from, ..Self::default() };
        for stretch in stretches.iter().filter(|stretch| stretch.length > 0) {
            let range = stretch.offset..stretch.offset.saturating_add(u64::from(stretch.length));
            if range.start < this.known.end {
                return Err(ClientError::Protocol("a map that is out of order"));
            }
            this.known.end = range.end;
            match this.data.last_mut() {
                _ if stretch.kind == map::HOLE => {}
                Some(last) if last.end == range.start => last.end = range.end,
                _ => this.data.push(range),
            }
        }
        this.ended = this.known.is_empty();
        Ok(this)
    }

    /// Whether the object ends before the byte that this map begins at.
    pub(crate) const fn is_ended(&self) -> bool {
        self.ended
    }

    /// The data at a byte that is known, or the next after it.
    fn at_or_after(&self, at: u64) -> Option<Range<u64>> {
        let next = self.data.partition_point(|data| data.end <= at);
        self.data.get(next).cloned()
    }
}

/// The objects of a file, which can be asked for their maps.
pub(crate) trait MapSource: Send + Sync {
    /// How the file lies in its objects.
    fn layout(&self) -> &Layout;

    /// The map of an object from a byte on, up to [`STRETCHES`] stretches of it.
    fn map(&self, index: usize, from: u64) -> impl Future<Output = Result<ObjectMap, ClientError>> + Send;
}

/// The maps of a file's objects, as far as they were requested.
pub(crate) struct FileMap<S> {
    source: S,
    each: Vec<ObjectMap>,
}

impl<S: MapSource> FileMap<S> {
    pub(crate) fn new(source: S) -> Self {
        let each = (0..source.layout().width()).map(|_| ObjectMap::default()).collect();
        Self { source, each }
    }

    /// The data of an object at a byte, or the next after it; a piece of it if it is long.
    async fn data(
        (source, each): (&S, &mut [ObjectMap]),
        index: usize,
        at: u64,
    ) -> Result<Option<Range<u64>>, ClientError> {
        let map = each.get_mut(index).ok_or(ClientError::OTHER_ANSWER)?;
        let (start, mut at) = (at, at);
        loop {
            if map.known.contains(&at) || (map.ended && at >= map.known.start) {
                if let Some(data) = map.at_or_after(at) {
                    return Ok(Some(data));
                }
                if map.ended {
                    return Ok(None);
                }
                at = map.known.end;
            }
            *map = source.map(index, at).await?;
            // All bytes before it, from the start of this search on, are a hole.
            map.known.start = start;
        }
    }

    /// The first byte of the file in a range that is data.
    pub(crate) async fn first_data(&mut self, range: Range<u64>) -> Result<Option<u64>, ClientError> {
        let mut first: Option<u64> = None;
        let Self { source, each } = self;
        let layout = source.layout();
        for index in 0..layout.width() {
            let Some(part) = layout.object_range(index, range.clone()) else { continue };
            let Some(data) = Self::data((source, each), index, part.start).await? else { continue };
            let start = data.start.max(part.start);
            let found = layout.file_offset(index, start).filter(|_| start < part.end);
            first = first.into_iter().chain(found).min();
        }
        Ok(first)
    }

    /// The first byte of the file in a range that is no data; the end of the range if all of it is.
    pub(crate) async fn first_hole(&mut self, range: Range<u64>) -> Result<u64, ClientError> {
        let Self { source, each } = self;
        for extent in source.layout().extents(range.clone()) {
            let (start, end) = (extent.object_offset, extent.object_offset + extent.length);
            let mut at = start;
            while at < end {
                match Self::data((source, each), extent.index, at).await? {
                    Some(data) if data.start <= at => at = data.end,
                    _ => return Ok(extent.file_offset + (at - start)),
                }
            }
        }
        Ok(range.end)
    }

    /// The first data of a range, with holes shorter than `hole_min` counted as data; `None` if all of it is a hole.
    pub(crate) async fn next_extent(
        &mut self,
        range: Range<u64>,
        hole_min: u64,
    ) -> Result<Option<Range<u64>>, ClientError> {
        let Some(mut start) = self.first_data(range.clone()).await? else {
            return Ok((range.end - range.start < hole_min).then_some(range));
        };
        if start - range.start < hole_min {
            start = range.start;
        }
        let mut end = start;
        loop {
            // The beginning may be a short hole.
            end = match self.first_data(end..range.end).await? {
                Some(data) if data - end < hole_min => self.first_hole(data..range.end).await?,
                None if range.end - end < hole_min => range.end,
                _ => return Ok(Some(start..end)),
            };
            if end >= range.end {
                return Ok(Some(start..range.end));
            }
        }
    }
}
