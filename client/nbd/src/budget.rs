//! Memory for data of requests in flight: a reserve for each connection, and a common part.
//!
//! Does: admits requests in the order in which a connection sent them.
//! Does not: allocate.
//! Contract: requests of up to [`RESERVE`] bytes wait only for replies of their own connection, so
//! a client that does not read its replies cannot stop another one.

use std::io;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::wire::TRANSFER_MAX;

/// Maximum connections; more wait in the listen queue.
pub const CONNECTIONS_MAX: usize = 16;
/// Bytes are counted in units of this size.
const UNIT: usize = 4096;
/// Maximum bytes of data in flight on all connections.
pub(crate) const BYTES_MAX: usize = 128 << 20;
/// Bytes that belong to one connection.
pub(crate) const RESERVE: usize = 4 << 20;
/// Bytes that all connections share.
const COMMON: usize = BYTES_MAX - CONNECTIONS_MAX * RESERVE;
/// Maximum common bytes of one connection: the largest request, and half of the common part.
const COMMON_SHARE: usize = TRANSFER_MAX as usize;
const _: () = assert!(COMMON_SHARE * 2 <= COMMON);

/// The memory that all connections share.
pub(crate) struct CommonMemory(Arc<Semaphore>);

impl Default for CommonMemory {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(COMMON / UNIT)))
    }
}

/// The memory that one connection can use.
pub(crate) struct ConnectionMemory {
    reserve: Arc<Semaphore>,
    share: Arc<Semaphore>,
    common: Arc<Semaphore>,
}

/// Bytes of a request in flight; dropping it releases them.
#[derive(Debug)]
pub(crate) struct MemoryPermit {
    _own: OwnedSemaphorePermit,
    _common: Option<OwnedSemaphorePermit>,
}

impl ConnectionMemory {
    pub(crate) fn new(common: &CommonMemory) -> Self {
        Self {
            reserve: Arc::new(Semaphore::new(RESERVE / UNIT)),
            share: Arc::new(Semaphore::new(COMMON_SHARE / UNIT)),
            common: Arc::clone(&common.0),
        }
    }

    /// Waits for memory for `bytes`, at most [`TRANSFER_MAX`]; more are counted as the maximum.
    pub(crate) async fn acquire(&self, bytes: usize) -> io::Result<MemoryPermit> {
        let units = bytes.min(TRANSFER_MAX as usize).div_ceil(UNIT);
        let fits = units <= RESERVE / UNIT;
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        tokio::select! {
            biased;
            own = Arc::clone(&self.reserve).acquire_many_owned(units), if fits => {
                Ok(MemoryPermit { _own: own.map_err(io::Error::other)?, _common: None })
            }
            permit = self.acquire_common(units) => permit,
        }
    }

    async fn acquire_common(&self, units: u32) -> io::Result<MemoryPermit> {
        let own = Arc::clone(&self.share).acquire_many_owned(units).await.map_err(io::Error::other)?;
        let common = Arc::clone(&self.common).acquire_many_owned(units).await.map_err(io::Error::other)?;
        Ok(MemoryPermit { _own: own, _common: Some(common) })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn acquire_all(memory: &ConnectionMemory, bytes: usize) -> Vec<MemoryPermit> {
        std::iter::from_fn(|| memory.acquire(bytes).now_or_never())
            .map(|permit| permit.expect("open"))
            .collect()
    }

    #[test]
    fn stuck_connections_leave_each_other_a_reserve() {
        let common = CommonMemory::default();
        let memories: Vec<_> = (0..CONNECTIONS_MAX).map(|_| ConnectionMemory::new(&common)).collect();
        let first = acquire_all(&memories[0], 1 << 20);
        assert_eq!(first.len() << 20, RESERVE + COMMON_SHARE);
        // One stuck connection leaves others the largest request too.
        let largest = memories[1].acquire(TRANSFER_MAX as usize).now_or_never();
        assert!(largest.is_some());
        let others: Vec<_> = memories[1..].iter().map(|memory| acquire_all(memory, RESERVE)).collect();
        assert!(others.iter().all(|permits| permits.len() == 1), "the common part is used up");
        drop(first);
        assert!(memories[2].acquire(TRANSFER_MAX as usize).now_or_never().is_some());
    }

    #[test]
    fn too_long_request_counts_as_largest() {
        let memory = ConnectionMemory::new(&CommonMemory::default());
        assert_eq!(acquire_all(&memory, usize::MAX).len(), 1);
    }
}
