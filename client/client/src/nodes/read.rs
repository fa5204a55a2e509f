//! Reading an open file: from buffered writes, from read-ahead blocks, and from its devices.
//!
//! Contract: a read sees all earlier writes of this client, whether devices have them or not. Holes
//! read as zeros: behind the end of an object, and in objects that were not created yet. An object
//! that was created and does not exist is an error.

use core::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use sealstone_initiator::{Operation, OsdError};
use sealstone_mds_protocol::{ErrorCode, Failure, LeaseKind};
use tokio::task::JoinSet;

use super::dirty::{copy_overlap, gaps};
use super::errors::{REOPENS_MAX, TRUNCATED_REPEATEDLY, is_fenced};
use super::layout_state::ObjectSet;
use super::open_inode::OpenInode;
use super::readahead::ReadBlock;
use crate::open::is_stale;
use crate::put::joined;
use crate::{ClientError, Devices, Metadata};

impl<M: Metadata, D: Devices> OpenInode<M, D> {
    /// Reads a range, as far as the file has it.
    pub(super) async fn read(self: &Arc<Self>, offset: u64, length: usize) -> Result<Bytes, ClientError> {
        self.wait_for_lease(LeaseKind::Read, false).await?;
        for _ in 0..=REOPENS_MAX {
            let layouts_received = self.state().layout.received;
            match self.read_once(offset, length).await {
                Err(error) if is_stale(&error) => self.refresh_layout_to_read(layouts_received).await?,
                // The write credentials are void; the remaining bytes are those of other clients.
                Err(error) if is_fenced(&error) => self.discard(),
                outcome => return outcome,
            }
        }
        Err(TRUNCATED_REPEATEDLY)
    }

    async fn read_once(self: &Arc<Self>, offset: u64, length: usize) -> Result<Bytes, ClientError> {
        let (range, objects, mut here, covered, advice) = {
            let mut state = self.state();
            if state.lacks_objects() || state.layout.stale {
                // The known objects lack what others wrote.
                return Err(Failure::new(ErrorCode::Stale, "the file was changed by another client").into());
            }
            let end = offset.saturating_add(length as u64).min(state.attrs.size);
            if offset >= end {
                return Ok(Bytes::new());
            }
            let range = offset..end;
            let nothing_here = state.buffer.has_no_bytes();
            let (mut here, mut covered) = (Vec::new(), Vec::new());
            if !nothing_here {
                here.resize((end - offset) as usize, 0);
                for piece in state.buffer.in_flight.values() {
                    copy_overlap(offset, &mut here, piece.offset, &piece.data, &mut covered);
                }
                state.buffer.dirty.overlay(offset, &mut here, &mut covered);
                if covered.is_empty() {
                    here.clear();
                }
            }
            let size = state.attrs.size;
            let advice = match &state.layout.objects {
                Some(_) => state.readahead.plan_read(&range, size),
                None => Default::default(),
            };
            (range, state.layout.objects.clone(), here, covered, advice)
        };
        let Some(objects) = objects else {
            here.resize((range.end - range.start) as usize, 0);
            return Ok(here.into());
        };
        for (number, block) in advice.fetch {
            self.fetch_in_background(&objects, number, block);
        }
        let holes = gaps(range.clone(), covered);
        if holes.is_empty() {
            return Ok(here.into());
        }
        if let [(number, block)] = &advice.blocks[..]
            && holes == [range.clone()]
        {
            // One block contains the range, so no byte is copied.
            let bytes = self.fetch(&objects, *number, block).await?;
            let at = (range.start - *number * self.block_size()) as usize;
            let length = (range.end - range.start) as usize;
            if let Some(slice) = bytes.get(at..at + length) {
                return Ok(bytes.slice_ref(slice));
            }
        }
        here.resize((range.end - range.start) as usize, 0);
        if advice.blocks.is_empty() {
            for hole in holes {
                let into = (hole.start - range.start) as usize..(hole.end - range.start) as usize;
                self.read_range(&objects, hole, &mut here[into]).await?;
            }
            return Ok(here.into());
        }
        let size = self.block_size();
        // One block at a time: none is kept while memory for the next is awaited, since other
        // readers wait for that memory too.
        for (number, block) in advice.blocks {
            let bytes = self.fetch(&objects, number, &block).await?;
            drop(block);
            let start = number * size;
            for hole in &holes {
                let (from, to) = (hole.start.max(start), hole.end.min(start + bytes.len() as u64));
                if from < to {
                    let piece = &bytes[(from - start) as usize..(to - start) as usize];
                    copy_overlap(range.start, &mut here, from, piece, &mut Vec::new());
                }
            }
        }
        Ok(here.into())
    }

    fn block_size(&self) -> u64 {
        self.shared.core.tuning.command_bytes as u64
    }

    /// Fetches a block in the background, if memory is available.
    fn fetch_in_background(self: &Arc<Self>, objects: &ObjectSet<M, D>, number: u64, block: ReadBlock) {
        let (open_inode, objects) = (self.clone(), objects.clone());
        if open_inode.shared.core.budget.try_take(open_inode.block_size() as usize).is_none() {
            open_inode.state().readahead.drop_block(number);
            return;
        }
        self.shared.runtime.spawn(async move {
            // Reserved only when this task fetches: a reader that fetches it already may be waiting
            // for that memory.
            let read = block.get_or_try_init(|| async {
                match open_inode.shared.core.budget.try_take(open_inode.block_size() as usize) {
                    Some(permit) => open_inode.read_block(&objects, number, Some(permit)).await.map_err(Some),
                    None => Err(None),
                }
            });
            if let Err(error) = read.await {
                // A reader that needs the block fetches it again and gets the error.
                let error = error.map(tracing::field::display);
                tracing::debug!(number, error, "read-ahead failed");
                open_inode.state().readahead.drop_block(number);
            }
        });
    }

    /// Returns a block; fetches it or waits for its fetch.
    async fn fetch(
        self: &Arc<Self>,
        objects: &ObjectSet<M, D>,
        number: u64,
        block: &ReadBlock,
    ) -> Result<Bytes, ClientError> {
        block.get_or_try_init(|| self.read_block(objects, number, None)).await.cloned()
    }

    async fn read_block(
        self: &Arc<Self>,
        objects: &ObjectSet<M, D>,
        number: u64,
        permit: Option<crate::MemoryPermit>,
    ) -> Result<Bytes, ClientError> {
        let start = number * self.block_size();
        let end = (start + self.block_size()).min(self.state().attrs.size);
        let length = (end.saturating_sub(start)) as usize;
        let permit = match permit {
            Some(permit) => permit,
            None => self.shared.wait_for_memory(length).await,
        };
        let mut extents = objects.open.layout.extents(start..end);
        if let (Some(extent), None) = (extents.next(), extents.next()) {
            let place = (extent.index, extent.object_offset);
            let data = self.read_object(objects, place, length).await?;
            return Ok(self.shared.core.buffers.freeze(data, permit));
        }
        let mut bytes = self.shared.core.buffers.take(length);
        bytes.clear();
        bytes.resize(length, 0);
        self.read_range(objects, start..end, &mut bytes).await?;
        Ok(self.shared.core.buffers.freeze(bytes, permit))
    }

    /// Reads a range of the file from its devices in parallel.
    async fn read_range(
        self: &Arc<Self>,
        objects: &ObjectSet<M, D>,
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<(), ClientError> {
        let command_bytes = self.block_size();
        let mut parts = Vec::new();
        for extent in objects.open.layout.extents(range.clone()) {
            let mut done = 0;
            while done < extent.length {
                let length = command_bytes.min(extent.length - done);
                let at = (extent.file_offset + done - range.start) as usize;
                parts.push((extent.index, extent.object_offset + done, at, length as usize));
                done += length;
            }
        }
        if let [(index, offset, at, length)] = parts[..] {
            let data = self.read_object(objects, (index, offset), length).await?;
            into[at..at + length].copy_from_slice(&data);
            self.shared.core.buffers.give(data);
            return Ok(());
        }
        let mut reads = JoinSet::new();
        for (index, offset, at, length) in parts {
            let (open_inode, objects) = (self.clone(), objects.clone());
            reads.spawn(async move {
                open_inode.read_object(&objects, (index, offset), length).await.map(|data| (at, data))
            });
        }
        while let Some(read) = reads.join_next().await {
            let (at, data) = joined(read)?;
            into[at..at + data.len()].copy_from_slice(&data);
            self.shared.core.buffers.give(data);
        }
        Ok(())
    }

    /// Reads bytes of one object; missing bytes are zeros.
    async fn read_object(
        &self,
        objects: &ObjectSet<M, D>,
        (index, offset): (usize, u64),
        length: usize,
    ) -> Result<Vec<u8>, ClientError> {
        let clean_until = self.state().layout.clean_until;
        let read = |object| {
            let buffer = self.shared.core.buffers.take(length);
            Operation::Read { object, offset, length, buffer }
        };
        let mut data = match self.shared.with_retry(|| objects.open.execute(index, read)).await {
            Ok(completion) => completion.data,
            Err(ClientError::Device { error: OsdError::ReadPastEnd { data }, .. }) => {
                let missing = offset + data.len() as u64;
                if !self.state().layout.sparse {
                    let offset = objects.open.layout.file_offset(index, missing).unwrap_or(missing);
                    return Err(ClientError::DataMissing { offset });
                }
                data
            }
            Err(error @ ClientError::Device { error: OsdError::NotFound, .. }) => {
                self.check_not_created(objects, error).await?;
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        data.resize(length, 0);
        let start = objects.open.layout.file_offset(index, offset).unwrap_or(0);
        if let Some(cut) =
            data.get_mut(usize::try_from(clean_until.saturating_sub(start)).unwrap_or(usize::MAX)..)
        {
            cut.fill(0);
        }
        Ok(data)
    }

    /// Fails if a missing object is lost; succeeds if it was not created yet and so is a hole.
    pub(super) async fn check_not_created(
        &self,
        objects: &ObjectSet<M, D>,
        missing: ClientError,
    ) -> Result<(), ClientError> {
        // Objects are removed when their file is truncated or removed; then this returns `Stale`.
        objects.open.check_current().await?;
        match self.state().layout.all_created {
            true => Err(missing),
            false => Ok(()),
        }
    }
}
