//! The interface to the server that keeps the root of a disk and the lease for writing: in
//! production the metadata server.

use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_block_e2e::{LeaseEpoch, ROOT_LEN};

use super::RootStoreError;

/// The record of one disk at a server that is trusted to keep the newest root.
pub trait RootStore: Send + Sync + 'static {
    /// Takes the lease, or takes it again, with an epoch that was never used before.
    fn acquire(&self) -> impl Future<Output = Result<LeaseEpoch, RootStoreError>> + Send;

    /// Returns the root.
    fn load(&self) -> impl Future<Output = Result<[u8; ROOT_LEN], RootStoreError>> + Send;

    /// Replaces the root if the lease is valid and the root has the expected version; `None`: there
    /// is no root yet.
    fn publish(
        &self,
        lease: LeaseEpoch,
        expected: Option<u64>,
        root: [u8; ROOT_LEN],
    ) -> impl Future<Output = Result<(), RootStoreError>> + Send;
}

/// A root in memory, for tests and benchmarks. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryRootStore(Arc<Mutex<MemoryRoot>>);

#[derive(Clone, Debug, Default)]
struct MemoryRoot {
    lease: u32,
    root: Option<[u8; ROOT_LEN]>,
}

impl MemoryRootStore {
    /// Returns a copy of its own, as a backup of the server would be.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self(Arc::new(Mutex::new(self.0.lock().clone())))
    }
}

/// Returns the version of a root, which is in the clear.
fn version(root: &[u8; ROOT_LEN]) -> u64 {
    u64::from_be_bytes(*root[16..].first_chunk().expect("a root has a version"))
}

impl RootStore for MemoryRootStore {
    async fn acquire(&self) -> Result<LeaseEpoch, RootStoreError> {
        let mut stored = self.0.lock();
        stored.lease += 1;
        Ok(LeaseEpoch(stored.lease))
    }

    async fn load(&self) -> Result<[u8; ROOT_LEN], RootStoreError> {
        self.0.lock().root.ok_or(RootStoreError::NotFound)
    }

    async fn publish(
        &self,
        lease: LeaseEpoch,
        expected: Option<u64>,
        root: [u8; ROOT_LEN],
    ) -> Result<(), RootStoreError> {
        let mut stored = self.0.lock();
        if stored.lease != lease.0 || stored.root.as_ref().map(version) != expected {
            return Err(RootStoreError::LeaseLost);
        }
        stored.root = Some(root);
        Ok(())
    }
}
