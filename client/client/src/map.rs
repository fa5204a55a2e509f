//! Data and holes of a file, from the maps of its objects.
//!
//! Does: requests the maps of objects as far as needed, and translates them to offsets of the file.
//! Does not: know how a device is asked; a [`MapSource`] does.
//! Contract: a hole may be reported as data, since devices count in blocks; data is never reported
//! as a hole.
//! Truth: t10-osd §1.9, READ MAP.

use core::ops::Range;

use sealstone_mds_protocol::Layout;
use sealstone_osd::map::{self, MapExtent};

use crate::ClientError;

/// Maximum extents of one object that are requested at once.
pub(crate) const MAP_EXTENTS: usize = 4096;

/// The known data of one object within a range.
#[derive(Default)]
pub(crate) struct ObjectMap {
    known: Range<u64>,
    /// Whether the object ends with the known range.
    ended: bool,
    /// In ascending order.
    data: Vec<Range<u64>>,
}

impl ObjectMap {
    /// Parses the extents that a device reported from a byte on; there are none if the object ends
    /// before it.
    pub(crate) fn parse(from: u64, extents: &[MapExtent]) -> Result<Self, ClientError> {
        let mut this = Self { known: from..from, ..Self::default() };
        for extent in extents.iter().filter(|extent| extent.length > 0) {
            let range = extent.offset..extent.offset.saturating_add(u64::from(extent.length));
            if range.start < this.known.end {
                return Err(ClientError::Protocol("a map that is out of order"));
            }
            this.known.end = range.end;
            match this.data.last_mut() {
                _ if extent.kind == map::HOLE => {}
                Some(last) if last.end == range.start => last.end = range.end,
                _ => this.data.push(range),
            }
        }
        this.ended = this.known.is_empty();
        Ok(this)
    }

    /// Whether the object ends before the first byte of this map.
    pub(crate) const fn is_ended(&self) -> bool {
        self.ended
    }

    /// Returns the data that contains a known byte, or else the next.
    fn at_or_after(&self, at: u64) -> Option<Range<u64>> {
        let next = self.data.partition_point(|data| data.end <= at);
        self.data.get(next).cloned()
    }
}

/// The objects of a file, which can be asked for their maps.
pub(crate) trait MapSource: Send + Sync {
    /// Returns the layout of the file.
    fn layout(&self) -> &Layout;

    /// Returns the map of an object from a byte on, of at most [`MAP_EXTENTS`] extents.
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

    /// Returns the data of an object that contains a byte, or else the next; long data may be
    /// returned in part.
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
            // All bytes between the start of this search and the map are a hole.
            map.known.start = start;
        }
    }

    /// Returns the first byte of a range of the file that is data.
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

    /// Returns the first byte of a range of the file that is not data; the end of the range if all
    /// of it is data.
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

    /// Returns the first data of a range, with holes shorter than `hole_min` counted as data;
    /// `None` if all of it is a hole.
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
            // The range may begin with a short hole.
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
