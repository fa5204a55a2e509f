//! Asynchronous closes in progress: their limits, and files that could not be stored.
//!
//! Does: counts closes against the limits of ADR 51; remembers failures and free space.
//! Does not: send; `async_close` does.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_mds_protocol::InodeId;
use tokio::sync::Notify;
use tokio::time::Instant;

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
pub(super) struct PendingClose {
    pub(super) inode: InodeId,
    /// The directory in which the file was created.
    pub(super) directory: InodeId,
    pub(super) bytes: u64,
}

/// A file that was closed and is being stored. It counts against the limits until it is dropped.
#[derive(Debug)]
pub struct AsyncCloseGuard {
    all: Arc<AsyncCloses>,
    number: u64,
}

impl Drop for AsyncCloseGuard {
    fn drop(&mut self) {
        let mut table = self.all.table.lock();
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
    pub(super) fn begin(self: &Arc<Self>, closed: PendingClose) -> (Option<AsyncCloseGuard>, bool) {
        let table = &mut *self.table.lock();
        let now = Instant::now();
        let age = table.free_space.map(|(received, _)| now.saturating_duration_since(received));
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

    pub(super) fn record_free_space(&self, free_space: Option<u64>) {
        let mut table = self.table.lock();
        table.requesting = false;
        table.free_space = free_space.map(|free_space| (Instant::now(), free_space));
    }

    /// Records that a file could not be stored.
    pub(super) fn record_failure(&self, inode: InodeId) {
        let table = &mut *self.table.lock();
        table.synchronous_until = Some(Instant::now() + SYNCHRONOUS_FOR);
        table.failed.insert(inode);
        if table.failed.len() > FAILED_MAX {
            table.failed.pop_first();
        }
    }

    /// Clears the failed mark: the data was stored later, or the file was truncated or removed.
    pub(super) fn clear_write_failure(&self, inode: InodeId) {
        self.table.lock().failed.remove(&inode);
    }

    pub(super) fn has_failed(&self, inode: InodeId) -> bool {
        self.table.lock().failed.contains(&inode)
    }

    /// Whether no file is marked as failed.
    pub(super) fn has_no_failures(&self) -> bool {
        self.table.lock().failed.is_empty()
    }

    /// Waits until the matching closes that are in progress now have ended.
    pub(super) async fn wait_ended(&self, matches: impl Fn(&PendingClose) -> bool) {
        let upto = self.table.lock().next;
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if !self.table.lock().files.range(..upto).any(|(_, closed)| matches(closed)) {
                return;
            }
            ended.await;
        }
    }

    pub(super) async fn wait_file_ended(&self, inode: InodeId) {
        self.wait_ended(|closed| closed.inode == inode).await;
    }

    pub(super) async fn wait_directory_ended(&self, directory: InodeId) {
        self.wait_ended(|closed| closed.directory == directory).await;
    }
}
