//! The leases of one mount, and what waits for them.
//!
//! Does: keeps the lease table, the connection for recalls, and the notifications of both.
//! Does not: request or return leases; `leases` does.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sealstone_mds_protocol::InodeId;
use tokio::sync::Notify;

use super::cache_invalidator::CacheInvalidator;
use super::lease_table::LeaseTable;
use super::open_inode::OpenInode;

/// The leases of this client.
pub(super) struct LeaseManager<M, D> {
    pub(super) recall_link: Option<Arc<M>>,
    /// Closed files stay cached by their leases.
    pub(super) table: Mutex<LeaseTable<Arc<OpenInode<M, D>>>>,
    invalidator: OnceLock<Arc<dyn CacheInvalidator>>,
    /// Notified when leases are renewed or returned.
    pub(super) changed: Notify,
    /// Wakes the task that receives recalls.
    pub(super) wake: Arc<Notify>,
    stopped: AtomicBool,
}

impl<M, D> LeaseManager<M, D> {
    pub(super) fn new(recall_link: Option<M>) -> Self {
        Self {
            recall_link: recall_link.map(Arc::new),
            table: Mutex::new(LeaseTable::new()),
            invalidator: OnceLock::new(),
            changed: Notify::new(),
            wake: Arc::default(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Stops the listener, since a request after EndClient would register this client again.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Whether no request may be sent any more.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) fn set_cache_invalidator(&self, invalidator: Arc<dyn CacheInvalidator>) {
        let _ = self.invalidator.set(invalidator);
    }

    /// Wakes the listener before something is opened.
    pub(super) fn wake_listener(&self) {
        if self.recall_link.is_some() {
            self.wake.notify_one();
        }
    }

    pub(super) async fn invalidate_kernel_cache(&self, inode: InodeId) {
        if let Some(invalidator) = self.invalidator.get() {
            invalidator.invalidate(inode).await;
        }
    }

    /// Drops the list of a directory from the kernel's cache.
    pub(super) async fn invalidate_kernel_list(&self, directory: InodeId) {
        if let Some(invalidator) = self.invalidator.get() {
            invalidator.invalidate_list(directory).await;
        }
    }
}
