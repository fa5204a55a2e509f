//! Asynchronous close: the close of a small new file returns before its bytes are stored.
//!
//! Does: decides which files qualify, counts them, and delays operations that depend on their
//! bytes.
//! Does not: send bytes or report sizes; `open_inode` does.
//! Contract: a file qualifies if it is new, has one name, and is in the directory where it was
//! created under a delegation that has been valid since. Other clients reach it only through that
//! directory. Its delegation is returned after the files that were closed in it are stored, or
//! after [`WAIT_MAX`] if a device does not answer. The user must have ample free space, and no such
//! file may have failed lately. No program has the file open any more, so an error is reported by
//! fsync of a directory. At most [`FILES_MAX`] files and [`BYTES_MAX`] bytes are in progress;
//! further closes are synchronous.
//! Truth: docs/adr/0051-asynchronous-close.md.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use sealstone_mds_protocol::{InodeId, LeaseKind, Name, Node, RenameMode, Request, Response};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::Nodes;
use super::dentry_cache::Dentry;
use super::file::File;
use super::leases::LeaseState;
use super::open_inode::OpenInode;
use super::shared::{Shared, lock};
use crate::open::is_not_found_or_stale;
use crate::{ClientError, Devices, Metadata};

/// Maximum bytes of one file.
const FILE_MAX: u64 = 1 << 20;
/// Maximum bytes of all files in progress.
const BYTES_MAX: u64 = 16 << 20;
/// Maximum files in progress.
const FILES_MAX: usize = 256;
/// Required free space, on the devices and in the user's quota: as much as sixteen mounts may have
/// in progress.
const FREE_SPACE_MIN: u64 = 16 * BYTES_MAX;
/// How long the last answer about free space is used.
const FREE_SPACE_VALID: Duration = Duration::from_secs(5);
/// Age of that answer after which it is requested again.
const FREE_SPACE_REFRESH: Duration = Duration::from_secs(2);
/// How long closes are synchronous after a file could not be stored.
const SYNCHRONOUS_FOR: Duration = Duration::from_secs(60);
/// Maximum remembered files that could not be stored and may not replace another one; above it the
/// one with the lowest inode number is forgotten.
const FAILED_MAX: usize = 4_096;
/// How long the return of a delegation waits for files closed in the directory; shorter than the
/// time after which it is revoked.
const WAIT_MAX: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
struct CloseTable {
    /// In progress, by order of closing.
    files: BTreeMap<u64, PendingClose>,
    next: u64,
    bytes: u64,
    /// Free bytes, and when the answer arrived.
    free_space: Option<(Instant, u64)>,
    requesting: bool,
    synchronous_until: Option<Instant>,
    /// Files that could not be stored, where a program may not know of the error.
    failed: BTreeSet<InodeId>,
}

/// The asynchronous closes of a file system.
#[derive(Debug, Default)]
pub(super) struct AsyncCloses {
    table: Mutex<CloseTable>,
    ended: Notify,
}

/// A close in progress.
#[derive(Clone, Copy, Debug)]
struct PendingClose {
    inode: InodeId,
    /// The directory in which the file was created.
    directory: InodeId,
    bytes: u64,
}

/// A file that was closed and is being stored. It counts against the limits until it is dropped.
#[derive(Debug)]
pub struct AsyncCloseGuard {
    all: Arc<AsyncCloses>,
    number: u64,
}

impl Drop for AsyncCloseGuard {
    fn drop(&mut self) {
        let mut table = lock(&self.all.table);
        if let Some(closed) = table.files.remove(&self.number) {
            table.bytes -= closed.bytes;
        }
        drop(table);
        self.all.ended.notify_waiters();
    }
}

impl AsyncCloses {
    /// Starts an asynchronous close, if limits and free space permit it. The flag says whether to
    /// request the free space again.
    fn begin(self: &Arc<Self>, closed: PendingClose) -> (Option<AsyncCloseGuard>, bool) {
        let table = &mut *lock(&self.table);
        let now = Instant::now();
        let age = table.free_space.map(|(told, _)| now.saturating_duration_since(told));
        let requests = age.is_none_or(|age| age >= FREE_SPACE_REFRESH)
            && !core::mem::replace(&mut table.requesting, true);
        let free_space = table
            .free_space
            .filter(|_| age.is_some_and(|age| age < FREE_SPACE_VALID))
            .map_or(0, |(_, free_space)| free_space);
        let fits = table.files.len() < FILES_MAX
            && table.bytes + closed.bytes <= BYTES_MAX
            && free_space >= FREE_SPACE_MIN;
        if !fits || table.synchronous_until.is_some_and(|until| now < until) {
            return (None, requests);
        }
        let number = table.next;
        (table.next, table.bytes) = (number + 1, table.bytes + closed.bytes);
        table.files.insert(number, closed);
        (Some(AsyncCloseGuard { all: self.clone(), number }), requests)
    }

    fn record_free_space(&self, free_space: Option<u64>) {
        let mut table = lock(&self.table);
        table.requesting = false;
        table.free_space = free_space.map(|free_space| (Instant::now(), free_space));
    }

    /// Records that a file could not be stored.
    fn record_failure(&self, inode: InodeId) {
        let table = &mut *lock(&self.table);
        table.synchronous_until = Some(Instant::now() + SYNCHRONOUS_FOR);
        table.failed.insert(inode);
        if table.failed.len() > FAILED_MAX {
            table.failed.pop_first();
        }
    }

    /// Clears the failed mark: the data was stored later, or the file was truncated or removed.
    pub(super) fn clear_write_failure(&self, inode: InodeId) {
        lock(&self.table).failed.remove(&inode);
    }

    fn has_failed(&self, inode: InodeId) -> bool {
        lock(&self.table).failed.contains(&inode)
    }

    /// Whether no file is marked as failed.
    fn has_no_failures(&self) -> bool {
        lock(&self.table).failed.is_empty()
    }

    /// Waits until the matching closes that are in progress now have ended.
    async fn wait_ended(&self, matches: impl Fn(&PendingClose) -> bool) {
        let upto = lock(&self.table).next;
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if !lock(&self.table).files.range(..upto).any(|(_, closed)| matches(closed)) {
                return;
            }
            ended.await;
        }
    }

    async fn wait_file_ended(&self, inode: InodeId) {
        self.wait_ended(|closed| closed.inode == inode).await;
    }

    async fn wait_directory_ended(&self, directory: InodeId) {
        self.wait_ended(|closed| closed.directory == directory).await;
    }
}

impl<M: Metadata, D: Devices> Shared<M, D> {
    async fn request_free_space(&self) {
        let free_space = match self.core.metadata.call(Request::StatFs { node: None }).await {
            Ok(Response::FileSystem { total, used, .. }) => Some(total.saturating_sub(used)),
            _ => None,
        };
        self.async_closes.record_free_space(free_space);
    }

    /// Waits, for [`WAIT_MAX`] at most, until files that were closed in a directory are stored;
    /// called before its lease is returned.
    pub(super) async fn flush_directory(&self, inode: InodeId) {
        let _ = timeout(WAIT_MAX, self.async_closes.wait_directory_ended(inode)).await;
    }
}

impl<M: Metadata, D: Devices> OpenInode<M, D> {
    /// Starts an asynchronous close of this file, if it qualifies.
    fn begin_async_close(&self) -> Option<AsyncCloseGuard> {
        let Self { shared, node, .. } = self;
        let (guard, requests_space) = {
            let state = self.state();
            let created_under = state.created_under?;
            let one_name = state.stat.as_ref().is_some_and(|stat| stat.links == 1);
            let has_no_error = state.error.is_none()
                && !state.lock_lost
                && !state.device_restarted
                && !state.truncated_remotely;
            let qualifies = one_name && has_no_error && state.changed_ns.is_some() && state.size <= FILE_MAX;
            if !qualifies
                || shared.lease_state(node.inode, LeaseKind::Write, state.lease_seen) != LeaseState::Valid
                || lock(&shared.locks).has(node.inode)
            {
                return None;
            }
            // Counted under the lease lock, so that a return of the lease waits for it.
            shared.with_dir_lease([created_under.inode; 2], |[now, _]| {
                let closed =
                    PendingClose { inode: node.inode, directory: created_under.inode, bytes: state.size };
                (now == created_under).then(|| shared.async_closes.begin(closed))
            })?
        };
        if requests_space {
            let shared = shared.clone();
            shared.runtime.clone().spawn(async move { shared.request_free_space().await });
        }
        guard
    }
}

impl<M: Metadata, D: Devices> File<M, D> {
    /// Whether the close may return now; then [`File::finish_async_close`] has to be called.
    #[must_use]
    pub fn begin_async_close(&self) -> Option<AsyncCloseGuard> {
        self.open_inode().begin_async_close()
    }

    /// Does the work of [`File::flush`] after an asynchronous close; fsync reports errors.
    pub async fn finish_async_close(&self, guard: AsyncCloseGuard) {
        let open_inode = self.open_inode();
        let stored = open_inode.send_and_report().await;
        if stored.is_err() || open_inode.state().data_lost {
            open_inode.shared.async_closes.record_failure(open_inode.node.inode);
        }
        if let Err(error) = stored {
            open_inode.record_error(error);
        }
        drop(guard);
    }
}

impl<M: Metadata, D: Devices> Nodes<M, D> {
    /// Waits before a rename for the bytes of an asynchronously closed file, if it replaces another
    /// file or moves to another directory.
    ///
    /// # Errors
    /// `NotStored`: the file would replace another one, but its own bytes could not be stored.
    pub(super) async fn flush_before_rename(
        &self,
        (from_directory, from): (Node, &Name),
        (to_directory, to): (Node, &Name),
        mode: RenameMode,
    ) -> Result<(), ClientError> {
        let target = self.cached_dentry(to_directory.inode, to);
        if target == Dentry::Absent && from_directory == to_directory {
            return Ok(());
        }
        let inode = match self.cached_dentry(from_directory.inode, from) {
            Dentry::Present(node, _) => node.inode,
            Dentry::Absent => return Ok(()),
            Dentry::NotCached => {
                self.shared.async_closes.wait_directory_ended(from_directory.inode).await;
                if self.shared.async_closes.has_no_failures() {
                    return Ok(());
                }
                match self.lookup(from_directory, from).await {
                    Ok(stat) => stat.inode,
                    Err(error) if is_not_found_or_stale(&error) => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        };
        if let Some(open_inode) = self.shared.open_inode(inode) {
            if from_directory != to_directory {
                open_inode.state().created_under = None;
            }
            self.shared.async_closes.wait_file_ended(inode).await;
        }
        if mode == RenameMode::NoReplace || !self.shared.async_closes.has_failed(inode) {
            return Ok(());
        }
        match target {
            Dentry::Absent => Ok(()),
            Dentry::Present(..) => Err(ClientError::NotStored),
            Dentry::NotCached => match self.lookup(to_directory, to).await {
                Ok(_) => Err(ClientError::NotStored),
                Err(error) if is_not_found_or_stale(&error) => Ok(()),
                Err(error) => Err(error),
            },
        }
    }

    /// Makes later closes of a file synchronous: its owner changes, whose free space is not known,
    /// or it moves to another directory.
    pub(super) fn disable_async_close(&self, inode: InodeId) {
        if let Some(open_inode) = self.shared.open_inode(inode) {
            open_inode.state().created_under = None;
        }
    }

    /// Makes later closes of a file synchronous before it gets a second name, and waits for its
    /// bytes.
    pub(super) async fn flush_before_link(&self, inode: InodeId) {
        if let Some(open_inode) = self.shared.open_inode(inode) {
            open_inode.state().created_under = None;
            self.shared.async_closes.wait_file_ended(inode).await;
        }
    }
}
