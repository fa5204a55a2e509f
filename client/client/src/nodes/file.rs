//! A file that somebody has open.
//!
//! Contract: dropping it without [`File::close`] sends what was written, and tells nobody of errors.

use core::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use sealstone_mds_protocol::{Access, Stat};
use sealstone_mds_protocol::{Node, OpenedNode};

use super::body::Body;
use super::holes::Seek;
use super::keep;
use super::shared::Shared;
use crate::mds::Mds;
use crate::pool::DevicePool;
use crate::{ClientError, Devices, Metadata};

/// An open file. Several that are open on one node share what was written and not sent.
pub struct File<M: Metadata = Mds, D: Devices = DevicePool> {
    body: Arc<Body<M, D>>,
    access: Access,
}

impl<M: Metadata, D: Devices> File<M, D> {
    pub(super) async fn open(
        shared: &Arc<Shared<M, D>>,
        opened: OpenedNode,
        access: Access,
    ) -> Result<(Self, Stat), ClientError> {
        let stat = opened.stat.clone();
        let body = shared.body_or_make(opened.stat.node());
        body.opens.fetch_add(1, Ordering::AcqRel);
        // From here on the drop counts back.
        let file = Self { body, access };
        file.body.opened(opened, access).await?;
        let stat = file.body.overlay(stat);
        Ok((file, stat))
    }

    /// Opens it by a lease, without asking; none if it is not to be had so.
    pub(super) fn open_alone(shared: &Arc<Shared<M, D>>, node: Node, access: Access) -> Option<(Self, Stat)> {
        let body = shared.body(node.inode).filter(|body| body.opens_alone(access))?;
        // Counted, and looked at again: whoever gives it back meanwhile sees that it is open.
        body.opens.fetch_add(1, Ordering::AcqRel);
        let file = Self { body, access };
        let (stat, _) = file.body.believed_stat().filter(|_| file.body.opens_alone(access))?;
        shared.unkeep(node.inode);
        file.body.state().ours_alone = Some(stat.version);
        Some((file, stat))
    }

    pub(super) const fn body(&self) -> &Arc<Body<M, D>> {
        &self.body
    }

    /// Which node it is.
    #[must_use]
    pub fn node(&self) -> Node {
        self.body.node
    }

    /// What it was opened for.
    #[must_use]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Its length as programs here see it, bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.body.state().size
    }

    /// Version of its content, if all changes since it was opened here were made here.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.body.state().ours_alone
    }

    /// Up to `length` bytes from `offset` on; fewer only where the file ends.
    ///
    /// # Errors
    /// `Device`, `Damaged`, `Refused`.
    pub async fn read(&self, offset: u64, length: usize) -> Result<Bytes, ClientError> {
        self.body.read(offset, length).await
    }

    /// Takes bytes over; they are sent in the background. Waits only for memory.
    ///
    /// # Errors
    /// `TooLarge`. What goes wrong later is told by [`File::flush`] and [`File::sync`].
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        self.body.write(offset, data).await
    }

    /// The same if there is memory right now; false, and nothing was taken, if not.
    ///
    /// # Errors
    /// As [`File::write`].
    pub fn try_write(&self, offset: u64, data: &[u8]) -> Result<bool, ClientError> {
        self.body.try_write(offset, data)
    }

    /// Appends bytes at the end of the file, wherever other clients moved it; returns where they begin. Up to
    /// [`crate::Tuning::command_bytes`] at once lie in one piece.
    ///
    /// # Errors
    /// As [`File::write`].
    pub async fn append(&self, data: &[u8]) -> Result<u64, ClientError> {
        self.body.append(data).await
    }

    /// Appends bytes if the end is known by a lease and there is memory; none, and nothing was taken, if not.
    ///
    /// # Errors
    /// As [`File::write`].
    pub fn try_append(&self, data: &[u8]) -> Result<Option<u64>, ClientError> {
        self.body.try_append(data)
    }

    /// The same for bytes that are a part of `memory` and as many as one command has, from a multiple of that on: the memory is
    /// kept instead of being copied, and another one of its length comes back, with anything in it.
    ///
    /// # Errors
    /// The memory, as it was: they are none such, or cannot be taken right now. [`File::try_write`] says which.
    pub fn try_write_whole(
        &self,
        offset: u64,
        memory: Vec<u8>,
        part: Range<usize>,
    ) -> Result<Vec<u8>, Vec<u8>> {
        self.body.try_write_whole(offset, memory, part)
    }

    /// Returns when all bytes written are on the devices and the metadata server knows the size.
    ///
    /// # Errors
    /// What went wrong since somebody was last told.
    pub async fn flush(&self) -> Result<(), ClientError> {
        self.body.flush().await
    }

    /// Returns when all bytes written, and the size, are durable.
    ///
    /// # Errors
    /// As [`File::flush`].
    pub async fn sync(&self) -> Result<(), ClientError> {
        self.body.sync().await
    }

    /// Makes the file at least so long, whoever wrote to it meanwhile; what is new reads as zeros.
    ///
    /// # Errors
    /// `TooLarge`, `Refused`; else as [`File::flush`].
    pub async fn grow(&self, size: u64) -> Result<(), ClientError> {
        self.body.grow(size).await
    }

    /// Makes a range read as zeros; the file does not grow.
    ///
    /// # Errors
    /// `Device`, `Refused`.
    pub async fn zero(&self, range: Range<u64>) -> Result<(), ClientError> {
        self.body.zero(range).await
    }

    /// The first byte from `offset` on that is data, or a hole; the end of the file is a hole, and nothing lies beyond.
    /// None where the file ends before, or no data follows.
    ///
    /// # Errors
    /// `Device`, `Refused`.
    pub async fn seek(&self, offset: u64, what: Seek) -> Result<Option<u64>, ClientError> {
        self.body.seek(offset, what).await
    }

    /// Flushes and closes it.
    ///
    /// # Errors
    /// As [`File::flush`].
    pub async fn close(self) -> Result<(), ClientError> {
        self.body.flush().await
    }
}

impl<M: Metadata, D: Devices> Drop for File<M, D> {
    fn drop(&mut self) {
        if self.body.opens.fetch_sub(1, Ordering::AcqRel) == 1 {
            keep::linger(&self.body);
        }
    }
}
