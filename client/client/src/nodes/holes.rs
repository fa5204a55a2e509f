//! Where an open file has data, and where it has holes.
//!
//! Does: ask the devices for the maps of the file's objects, as far as the answer needs them. Does not: remember them.
//! Contract: what was written here is data, whether devices have it or not; a hole may be told as data, since devices
//! count in blocks, and data is never told as a hole, nor is data that was lost.
//! Truth: lseek(2) of Linux, SEEK_DATA and SEEK_HOLE; t10-osd §1.9, READ MAP.

use core::ops::Range;
use std::sync::Arc;

use sealstone_initiator::{Operation, OsdError};
use sealstone_mds_protocol::{ErrorCode, Failure, LeaseKind};
use sealstone_osd::map;

use super::body::Body;
use super::prove::{CUT_AGAIN, REOPENS_MAX};
use super::state::{Held, Objects};
use crate::open::is_stale;
use crate::{ClientError, Devices, Metadata};

/// Stretches of one object that are asked for at once.
const STRETCHES: usize = 256;

/// What is looked for in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Bytes that were written.
    Data,
    /// Bytes that were not, or were taken away: they read as zeros. The end of the file is one.
    Hole,
}

/// What is known of one object: where its data is between two of its bytes.
#[derive(Default)]
struct Map {
    known: Range<u64>,
    /// Nothing comes after what is known.
    ended: bool,
    /// In order.
    data: Vec<Range<u64>>,
}

impl Map {
    /// The data at a byte that is known, or the next after it.
    fn at_or_after(&self, at: u64) -> Option<Range<u64>> {
        let next = self.data.partition_point(|data| data.end <= at);
        self.data.get(next).cloned()
    }
}

/// The maps of a file's objects, as far as they were asked for.
struct Maps<'a, M, D> {
    body: &'a Body<M, D>,
    objects: &'a Objects<M, D>,
    each: Vec<Map>,
}

impl<M: Metadata, D: Devices> Maps<'_, M, D> {
    /// The data of an object at a byte, or the next after it; a piece of it if it is long.
    async fn data(&mut self, index: usize, at: u64) -> Result<Option<Range<u64>>, ClientError> {
        let map = self.each.get_mut(index).ok_or(ClientError::OTHER_ANSWER)?;
        let mut at = at;
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
            *map = self.body.map(self.objects, index, at).await?;
        }
    }

    /// The first byte of the file in a range that is data.
    async fn first_data(&mut self, range: Range<u64>) -> Result<Option<u64>, ClientError> {
        let mut first: Option<u64> = None;
        let layout = &self.objects.open.layout;
        for index in 0..layout.width() {
            let Some(part) = layout.object_range(index, range.clone()) else { continue };
            let Some(data) = self.data(index, part.start).await? else { continue };
            let start = data.start.max(part.start);
            let found = layout.file_offset(index, start).filter(|_| start < part.end);
            first = first.into_iter().chain(found).min();
        }
        Ok(first)
    }

    /// The first byte of the file in a range that is no data; the end of the range if all of it is.
    async fn first_hole(&mut self, range: Range<u64>) -> Result<u64, ClientError> {
        for extent in self.objects.open.layout.extents(range.clone()) {
            let (start, end) = (extent.object_offset, extent.object_offset + extent.length);
            let mut at = start;
            while at < end {
                match self.data(extent.index, at).await? {
                    Some(data) if data.start <= at => at = data.end,
                    _ => return Ok(extent.file_offset + (at - start)),
                }
            }
        }
        Ok(range.end)
    }
}

impl<M: Metadata, D: Devices> Body<M, D> {
    /// The first byte from `offset` on that is what is looked for; none beyond the end, and where no data follows.
    pub(super) async fn seek(self: &Arc<Self>, offset: u64, what: Seek) -> Result<Option<u64>, ClientError> {
        // Others may have written data or moved the end.
        self.lease(LeaseKind::Read, false).await?;
        for _ in 0..=REOPENS_MAX {
            let openings = self.state().openings;
            match self.seek_as_it_is(offset, what).await {
                Err(error) if is_stale(&error) => self.reopen_to_read(openings).await?,
                outcome => return outcome,
            }
        }
        Err(CUT_AGAIN)
    }

    async fn seek_as_it_is(&self, offset: u64, what: Seek) -> Result<Option<u64>, ClientError> {
        let (size, end, here, objects) = {
            let state = self.state();
            let others = state.objects.is_none() && state.stat.as_ref().is_some_and(|stat| stat.width > 0);
            if others || state.outdated {
                // As for a read: somebody else wrote what is nowhere where we would look.
                return Err(Failure::new(ErrorCode::Stale, "the file has other bytes meanwhile").into());
            }
            let here: Vec<_> = state.held.values().map(Held::range).chain(state.dirty.ranges()).collect();
            (state.size, state.size.min(state.clean_until), here, state.objects.clone())
        };
        if offset >= size {
            return Ok(None);
        }
        let mut maps = objects.as_ref().map(|objects| Maps {
            body: self,
            objects,
            each: objects.each.iter().map(|_| Map::default()).collect(),
        });
        if what == Seek::Data {
            let ours = here.iter().filter(|data| data.end > offset).map(|data| data.start.max(offset)).min();
            let theirs = match &mut maps {
                Some(maps) => maps.first_data(offset..end).await?,
                None => None,
            };
            return Ok(ours.into_iter().chain(theirs).min().filter(|at| *at < size));
        }
        let mut at = offset;
        while at < size {
            if let Some(data) = here.iter().find(|data| data.contains(&at)) {
                at = data.end;
                continue;
            }
            let ours = here.iter().map(|data| data.start).filter(|start| *start > at).min();
            let until = ours.map_or(end, |start| start.min(end));
            let hole = match &mut maps {
                Some(maps) if at < until => maps.first_hole(at..until).await?,
                _ => at,
            };
            // A hole, unless it is where the bytes from here begin.
            if hole < until || ours.is_none_or(|start| hole < start) {
                return Ok(Some(hole.min(size)));
            }
            at = hole;
        }
        Ok(Some(size))
    }

    /// What an object has from a byte on. Nothing, if it ends before or nobody made it yet.
    async fn map(&self, objects: &Objects<M, D>, index: usize, from: u64) -> Result<Map, ClientError> {
        let ask = |from, stretches_max| {
            move |object| Operation::ReadMap { object, from, stretches_max, compare: false }
        };
        let stretches =
            match self.shared.patiently(|| objects.open.execute(index, ask(from, STRETCHES))).await {
                Ok(completion) => completion.map,
                Err(ClientError::Device { error: OsdError::NotFound, device }) => {
                    self.check_unmade(objects, device).await?;
                    Vec::new()
                }
                // A map begins inside its object: if there is one from its first byte on, it ends before this one.
                Err(ClientError::Device { error: OsdError::InvalidField { .. }, .. }) if from > 0 => {
                    self.shared.patiently(|| objects.open.execute(index, ask(0, 1))).await?;
                    Vec::new()
                }
                Err(error) => return Err(error),
            };
        let mut known = Map { known: from..from, ..Map::default() };
        for stretch in stretches.iter().filter(|stretch| stretch.length > 0) {
            let range = stretch.offset..stretch.offset.saturating_add(u64::from(stretch.length));
            if range.start < known.known.end {
                return Err(ClientError::Protocol("a map that is out of order"));
            }
            known.known.end = range.end;
            match known.data.last_mut() {
                _ if stretch.kind == map::HOLE => {}
                Some(last) if last.end == range.start => last.end = range.end,
                _ => known.data.push(range),
            }
        }
        known.ended = known.known.is_empty();
        if known.ended {
            let state = self.state();
            // As for a read: what is missing of a file that was not written in place is lost.
            if !state.sparse && from < objects.open.layout.object_length(index, state.size) {
                let offset = objects.open.layout.file_offset(index, from).unwrap_or(from);
                return Err(ClientError::DataMissing { offset });
            }
        }
        Ok(known)
    }
}
