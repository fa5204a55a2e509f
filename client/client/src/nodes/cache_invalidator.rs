//! Invalidation of caches outside the client, such as the kernel's.

use core::future::Future;
use core::pin::Pin;

use sealstone_mds_protocol::InodeId;

/// A cache outside the client that has to be invalidated before a lease is returned, such as the
/// kernel's pages and attributes.
pub trait CacheInvalidator: Send + Sync + 'static {
    /// Drops everything cached of a file. Pages that this writes back are accepted; the lease is
    /// returned after it.
    fn invalidate(&self, inode: InodeId) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    /// Drops the list of a directory. A later listing must contain nothing that was cached before.
    fn invalidate_list(&self, directory: InodeId) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}
