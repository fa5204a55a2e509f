//! Data and holes of an open file.
//!
//! Does: requests the maps of the file's objects from the devices, as far as needed.
//! Does not: cache them.
//! Contract: bytes that were written here are data, whether devices have them or not. A hole may be
//! reported as data, since devices count in blocks. Data, lost data included, is never reported as
//! a hole.
//! Truth: lseek(2) of Linux, SEEK_DATA and SEEK_HOLE; t10-osd §1.9, READ MAP.

use std::sync::Arc;

use sealstone_initiator::{Operation, OsdError};
use sealstone_mds_protocol::{ErrorCode, Failure, Layout, LeaseKind};

use super::errors::{REOPENS_MAX, TRUNCATED_REPEATEDLY};
use super::layout_state::ObjectSet;
use super::open_inode::OpenInode;
use super::write_buffer::InFlightWrite;
use crate::map::{FileMap, MAP_EXTENTS, MapSource, ObjectMap};
use crate::open::is_stale;
use crate::{ClientError, Devices, Metadata};

/// The target of [`File::seek`](super::File::seek).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// Bytes that were written.
    Data,
    /// Bytes that read as zeros because they were not written or were deallocated. The end of the
    /// file is one.
    Hole,
}

/// The objects of an open file, as a source of maps.
struct InodeObjects<'a, M, D> {
    open_inode: &'a OpenInode<M, D>,
    objects: &'a ObjectSet<M, D>,
}

impl<M: Metadata, D: Devices> MapSource for InodeObjects<'_, M, D> {
    fn layout(&self) -> &Layout {
        &self.objects.open.layout
    }

    async fn map(&self, index: usize, from: u64) -> Result<ObjectMap, ClientError> {
        self.open_inode.map(self.objects, index, from).await
    }
}

impl<M: Metadata, D: Devices> OpenInode<M, D> {
    /// Returns the first matching offset from `offset` on; none beyond the end, or if no data
    /// follows.
    pub(super) async fn seek(
        self: &Arc<Self>,
        offset: u64,
        what: SeekTarget,
    ) -> Result<Option<u64>, ClientError> {
        // Others may have written data or moved the end.
        self.wait_for_lease(LeaseKind::Read, false).await?;
        for _ in 0..=REOPENS_MAX {
            let layouts_received = self.state().layout.received;
            match self.seek_once(offset, what).await {
                Err(error) if is_stale(&error) => self.refresh_layout_to_read(layouts_received).await?,
                outcome => return outcome,
            }
        }
        Err(TRUNCATED_REPEATEDLY)
    }

    async fn seek_once(&self, offset: u64, what: SeekTarget) -> Result<Option<u64>, ClientError> {
        let (size, end, here, objects) = {
            let state = self.state();
            if state.lacks_objects() || state.layout.stale {
                // As for a read: the known objects lack what others wrote.
                return Err(Failure::new(ErrorCode::Stale, "the file was changed by another client").into());
            }
            let here: Vec<_> = state
                .buffer
                .in_flight
                .values()
                .map(InFlightWrite::range)
                .chain(state.buffer.dirty.ranges())
                .collect();
            (
                state.attrs.size,
                state.attrs.size.min(state.layout.clean_until),
                here,
                state.layout.objects.clone(),
            )
        };
        if offset >= size {
            return Ok(None);
        }
        let mut maps =
            objects.as_ref().map(|objects| FileMap::new(InodeObjects { open_inode: self, objects }));
        if what == SeekTarget::Data {
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
            // A hole, unless buffered bytes begin there.
            if hole < until || ours.is_none_or(|start| hole < start) {
                return Ok(Some(hole.min(size)));
            }
            at = hole;
        }
        Ok(Some(size))
    }

    /// Returns the map of an object from a byte on; empty if it ends before or was not created yet.
    async fn map(
        &self,
        objects: &ObjectSet<M, D>,
        index: usize,
        from: u64,
    ) -> Result<ObjectMap, ClientError> {
        let ask = |from, extents_max| {
            move |object| Operation::ReadMap { object, from, extents_max, compare: false }
        };
        let extents =
            match self.shared.with_retry(|| objects.open.execute(index, ask(from, MAP_EXTENTS))).await {
                Ok(completion) => completion.map,
                Err(error @ ClientError::Device { error: OsdError::NotFound, .. }) => {
                    self.check_not_created(objects, error).await?;
                    Vec::new()
                }
                // The offset is beyond the end; a map from the first byte shows whether the object
                // exists.
                Err(ClientError::Device { error: OsdError::InvalidField { .. }, .. }) if from > 0 => {
                    self.shared.with_retry(|| objects.open.execute(index, ask(0, 1))).await?;
                    Vec::new()
                }
                Err(error) => return Err(error),
            };
        let known = ObjectMap::parse(from, &extents)?;
        if known.is_ended() {
            let state = self.state();
            // As for a read: missing bytes of a file that was not written in place are lost.
            if !state.layout.sparse && from < objects.open.layout.object_length(index, state.attrs.size) {
                let offset = objects.open.layout.file_offset(index, from).unwrap_or(from);
                return Err(ClientError::DataMissing { offset });
            }
        }
        Ok(known)
    }
}
