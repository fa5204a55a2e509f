//! The kernel's cache of pages, attributes and lists, invalidated before a lease is returned.
//!
//! Does: invalidates attributes at once, and drops pages on a separate thread. That waits for
//! requests on these pages, and for data that programs wrote through a mapping, which arrives as
//! writes.
//! Does not: wait without limit, since a request may itself wait for the lease that is being
//! returned.
//! Contract: attributes are sent to the kernel only while no pages of the file are being dropped.
//! So a later read, which requests the attributes first, uses no older page. A read through a
//! mapping at that moment may.
//! Truth: docs/adr/0046-leases.md; include/uapi/linux/fuse.h (FUSE_NOTIFY_INVAL_INODE).

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sealstone_client::nodes::CacheInvalidator;
use sealstone_mds_protocol::InodeId;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::kernel::FuseChannel;
use crate::listings::CachedListings;

/// Maximum time that the return of a lease waits for the kernel.
const WAIT: Duration = Duration::from_millis(200);

/// The kernel's cache of one mount.
#[derive(Debug)]
pub(crate) struct KernelPages {
    channel: Arc<FuseChannel>,
    root: InodeId,
    /// Invalidations in progress, by inode number.
    under_way: Mutex<HashMap<u64, usize>>,
    done: Notify,
    pub(crate) listings: CachedListings,
}

/// An invalidation in progress.
struct Dropping {
    pages: Arc<KernelPages>,
    ino: u64,
}

impl Drop for Dropping {
    fn drop(&mut self) {
        let mut under_way = self.pages.under_way.lock();
        if let Some(count) = under_way.get_mut(&self.ino) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.ino);
            }
        }
        drop(under_way);
        self.pages.done.notify_waiters();
    }
}

impl KernelPages {
    pub(crate) fn new(channel: Arc<FuseChannel>, root: InodeId) -> Arc<Self> {
        Arc::new(Self {
            channel,
            root,
            under_way: Mutex::default(),
            done: Notify::new(),
            listings: CachedListings::default(),
        })
    }

    pub(crate) fn drop_soon(self: &Arc<Self>, ino: u64) {
        *self.under_way.lock().entry(ino).or_default() += 1;
        let dropping = Dropping { pages: self.clone(), ino };
        // It may wait for pages that are being read or written.
        tokio::task::spawn_blocking(move || dropping.pages.channel.drop_pages(dropping.ino));
    }

    pub(crate) fn invalidate_attributes(&self, ino: u64) {
        self.channel.invalidate_attributes(ino);
    }

    fn ino(&self, inode: InodeId) -> u64 {
        if inode == self.root { 1 } else { inode.0 }
    }

    /// Waits until no pages of a file are being dropped.
    pub(crate) async fn clean(&self, ino: u64) {
        loop {
            let done = self.done.notified();
            tokio::pin!(done);
            // Registered before the check, so that no wake-up is lost.
            done.as_mut().enable();
            if !self.under_way.lock().contains_key(&ino) {
                return;
            }
            done.await;
        }
    }

    /// As [`Self::clean`], for [`WAIT`] at most.
    pub(crate) async fn wait_dropped_briefly(&self, ino: u64) {
        let _ = timeout(WAIT, self.clean(ino)).await;
    }
}

/// The kernel's cache as the client's [`CacheInvalidator`].
pub(crate) struct KernelInvalidator(pub(crate) Arc<KernelPages>);

impl CacheInvalidator for KernelInvalidator {
    fn invalidate(&self, inode: InodeId) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let ino = self.0.ino(inode);
        self.0.channel.invalidate_attributes(ino);
        self.0.drop_soon(ino);
        Box::pin(self.0.wait_dropped_briefly(ino))
    }

    fn invalidate_list(&self, directory: InodeId) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let ino = self.0.ino(directory);
        if self.0.listings.recalled(ino) {
            self.0.channel.invalidate_attributes(ino);
            self.0.drop_soon(ino);
        }
        Box::pin(self.0.wait_dropped_briefly(ino))
    }
}
