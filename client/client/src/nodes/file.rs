//! An open file.
//!
//! Contract: a drop without [`File::close`] sends written bytes, but errors are not reported to the
//! program.

use core::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use sealstone_mds_protocol::{Access, Stat};
use sealstone_mds_protocol::{Node, OpenedNode};

use super::background;
use super::holes::SeekTarget;
use super::open_inode::OpenInode;
use super::shared::Shared;
use crate::mds::MdsClient;
use crate::pool::DevicePool;
use crate::{ClientError, Devices, Metadata};

/// An open file. All opens of one node share buffered writes.
pub struct File<M: Metadata = MdsClient, D: Devices = DevicePool> {
    open_inode: Arc<OpenInode<M, D>>,
    access: Access,
}

impl<M: Metadata, D: Devices> File<M, D> {
    pub(super) async fn open(
        shared: &Arc<Shared<M, D>>,
        opened: OpenedNode,
        access: Access,
    ) -> Result<(Self, Stat), ClientError> {
        let stat = opened.stat.clone();
        let open_inode = shared.open_inode_or_new(opened.stat.node());
        open_inode.opens.fetch_add(1, Ordering::AcqRel);
        // From here on the drop decrements the count.
        let file = Self { open_inode, access };
        file.open_inode.apply_open(opened, access).await?;
        let stat = file.open_inode.overlay(stat);
        Ok((file, stat))
    }

    /// Opens a file under its lease, without a request; none if that is not possible.
    pub(super) fn open_locally(
        shared: &Arc<Shared<M, D>>,
        node: Node,
        access: Access,
    ) -> Option<(Self, Stat)> {
        let open_inode =
            shared.open_inode(node.inode).filter(|open_inode| open_inode.can_open_locally(access))?;
        // Checked again after counting, since a return of the lease in between sees the count.
        open_inode.opens.fetch_add(1, Ordering::AcqRel);
        let file = Self { open_inode, access };
        let (stat, _) = file.open_inode.cached_stat().filter(|_| file.open_inode.can_open_locally(access))?;
        shared.mark_open(node.inode);
        file.open_inode.state().attrs.exclusive_since_version = Some(stat.version);
        Some((file, stat))
    }

    pub(super) const fn open_inode(&self) -> &Arc<OpenInode<M, D>> {
        &self.open_inode
    }

    /// Returns the node.
    #[must_use]
    pub fn node(&self) -> Node {
        self.open_inode.node
    }

    /// Returns the access that it was opened for.
    #[must_use]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Returns the size as programs on this client see it, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.open_inode.state().attrs.size
    }

    /// Returns the version of the content, if only this client has changed it since the open.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.open_inode.state().attrs.exclusive_since_version
    }

    /// Reads up to `length` bytes at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// `Device`, `Damaged`, `Refused`.
    pub async fn read(&self, offset: u64, length: usize) -> Result<Bytes, ClientError> {
        self.open_inode.read(offset, length).await
    }

    /// Buffers a write, which is sent in the background. Waits only for memory and a lease.
    ///
    /// # Errors
    /// `TooLarge`. Later errors are returned by [`File::flush`] and [`File::sync`].
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        self.open_inode.write(offset, data).await
    }

    /// Buffers a write if memory is available now; otherwise returns false and takes nothing.
    ///
    /// # Errors
    /// As [`File::write`].
    pub fn try_write(&self, offset: u64, data: &[u8]) -> Result<bool, ClientError> {
        self.open_inode.try_write(offset, data)
    }

    /// Appends bytes at the end of the file, even if other clients moved it; returns their offset.
    /// Up to [`crate::Tuning::command_bytes`] are contiguous.
    ///
    /// # Errors
    /// As [`File::write`].
    pub async fn append(&self, data: &[u8]) -> Result<u64, ClientError> {
        self.open_inode.append(data).await
    }

    /// Appends bytes if a lease makes the end certain and memory is available; otherwise returns
    /// none and takes nothing.
    ///
    /// # Errors
    /// As [`File::write`].
    pub fn try_append(&self, data: &[u8]) -> Result<Option<u64>, ClientError> {
        self.open_inode.try_append(data)
    }

    /// Buffers one aligned command's worth of bytes without a copy: keeps `memory`, of which `part`
    /// is written, and returns another buffer of its length.
    ///
    /// # Errors
    /// Returns `memory` if the bytes are not such a unit or cannot be taken now.
    /// [`File::try_write`] returns the reason.
    pub fn try_write_whole(
        &self,
        offset: u64,
        memory: Vec<u8>,
        part: Range<usize>,
    ) -> Result<Vec<u8>, Vec<u8>> {
        self.open_inode.try_write_whole(offset, memory, part)
    }

    /// Returns when all written bytes are on the devices and the metadata server knows the size.
    ///
    /// # Errors
    /// The first write-back error that was not reported yet.
    pub async fn flush(&self) -> Result<(), ClientError> {
        self.open_inode.flush().await
    }

    /// Returns when all written bytes and the size are durable.
    ///
    /// # Errors
    /// As [`File::flush`].
    pub async fn sync(&self) -> Result<(), ClientError> {
        self.open_inode.sync().await
    }

    /// Extends the file to at least `size` bytes; the new range reads as zeros.
    ///
    /// # Errors
    /// `TooLarge`, `Refused`; else as [`File::flush`].
    pub async fn grow(&self, size: u64) -> Result<(), ClientError> {
        self.open_inode.grow(size).await
    }

    /// Makes a range read as zeros. The file does not grow.
    ///
    /// # Errors
    /// `Device`, `Refused`.
    pub async fn zero(&self, range: Range<u64>) -> Result<(), ClientError> {
        self.open_inode.zero(range).await
    }

    /// Returns the first offset from `offset` on that is data, or a hole; the end of the file
    /// counts as a hole. None beyond the end, or if no data follows.
    ///
    /// # Errors
    /// `Device`, `Refused`.
    pub async fn seek(&self, offset: u64, what: SeekTarget) -> Result<Option<u64>, ClientError> {
        self.open_inode.seek(offset, what).await
    }

    /// Flushes and closes the file.
    ///
    /// # Errors
    /// As [`File::flush`].
    pub async fn close(self) -> Result<(), ClientError> {
        self.open_inode.flush().await
    }
}

impl<M: Metadata, D: Devices> Drop for File<M, D> {
    fn drop(&mut self) {
        if self.open_inode.opens.fetch_sub(1, Ordering::AcqRel) == 1 {
            background::delayed_release(&self.open_inode);
        }
    }
}
