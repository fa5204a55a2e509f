//! Whoever keeps more of what is leased than is kept here.

use core::future::Future;
use core::pin::Pin;

use sealstone_mds_protocol::InodeId;

/// Whoever keeps more of a file than is kept here, as the kernel keeps pages and attributes.
pub trait Keeper: Send + Sync + 'static {
    /// Has it forgotten. What is written meanwhile because of that is taken here; a lease is given back after it.
    fn forget(&self, inode: InodeId) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    /// The same of what is in a directory, if it is one. Nothing that it was told before is in its list when it is told again.
    fn forget_list(&self, directory: InodeId) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}
