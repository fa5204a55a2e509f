//! What the kernel keeps of files and directories: forgotten when a lease is given back.
//!
//! Does: have it doubt attributes, at once, and drop pages, on a thread of its own: that waits for requests which are under way on
//! them, and for what programs wrote by a mapping, which comes here as writes. Does not: wait for it for ever; a request may itself wait
//! for the lease that is given back.
//! Contract: attributes are told to the kernel when no dropping is under way on the file, so whoever reads after that, and has
//! them asked for first since they were in doubt, finds no page of before. What programs read by a mapping at that moment may be.
//! Truth: docs/adr/0046-leases.md; include/uapi/linux/fuse.h (FUSE_NOTIFY_INVAL_INODE).

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sealstone_client::nodes::Keeper;
use sealstone_mds_protocol::InodeId;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::kernel::Channel;
use crate::listings::Listings;

/// Whoever gives a lease back waits for the kernel for so long at most.
const WAIT: Duration = Duration::from_millis(200);

/// The kernel's pages and attributes of one mount.
#[derive(Debug)]
pub(crate) struct Pages {
    channel: Arc<Channel>,
    root: InodeId,
    /// Droppings under way, by the kernel's number.
    under_way: Mutex<HashMap<u64, usize>>,
    done: Notify,
    pub(crate) listings: Listings,
}

/// One that is under way.
struct Dropping {
    pages: Arc<Pages>,
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

impl Pages {
    pub(crate) fn new(channel: Arc<Channel>, root: InodeId) -> Arc<Self> {
        Arc::new(Self {
            channel,
            root,
            under_way: Mutex::default(),
            done: Notify::new(),
            listings: Listings::default(),
        })
    }

    pub(crate) fn drop_soon(self: &Arc<Self>, ino: u64) {
        *self.under_way.lock().entry(ino).or_default() += 1;
        let dropping = Dropping { pages: self.clone(), ino };
        // It may wait for pages that are being read or written.
        tokio::task::spawn_blocking(move || dropping.pages.channel.drop_pages(dropping.ino));
    }

    pub(crate) fn doubt_attributes(&self, ino: u64) {
        self.channel.doubt_attributes(ino);
    }

    fn ino(&self, inode: InodeId) -> u64 {
        if inode == self.root { 1 } else { inode.0 }
    }

    /// Returns when nothing is being dropped of a file.
    pub(crate) async fn clean(&self, ino: u64) {
        loop {
            let done = self.done.notified();
            tokio::pin!(done);
            // Registered before we look: no wake-up is lost.
            done.as_mut().enable();
            if !self.under_way.lock().contains_key(&ino) {
                return;
            }
            done.await;
        }
    }

    /// The same, or when that takes too long.
    pub(crate) async fn clean_soon(&self, ino: u64) {
        let _ = timeout(WAIT, self.clean(ino)).await;
    }
}

/// The same as whoever is told of recalls has it.
pub(crate) struct Forgetting(pub(crate) Arc<Pages>);

impl Keeper for Forgetting {
    fn forget(&self, inode: InodeId) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let ino = self.0.ino(inode);
        self.0.channel.doubt_attributes(ino);
        self.0.drop_soon(ino);
        Box::pin(self.0.clean_soon(ino))
    }

    fn forget_list(&self, directory: InodeId) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let ino = self.0.ino(directory);
        if self.0.listings.recalled(ino) {
            self.0.channel.doubt_attributes(ino);
            self.0.drop_soon(ino);
        }
        Box::pin(self.0.clean_soon(ino))
    }
}
