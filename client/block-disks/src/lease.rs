//! The lease of a protected disk, and its record at the metadata server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use sealstone_block_client::BlockError;
use sealstone_block_client::e2e::{RootStore, RootStoreError, SealedMedium, UnitMedium, WriteGuarantee};
use sealstone_block_e2e::{LeaseEpoch, ROOT_LEN};
use sealstone_client::{Client, ClientError};
use sealstone_failure::chain;
use sealstone_mds_protocol::{ErrorCode, Name};

/// Time between two renewals of a lease. It is valid for 12 s.
const RENEWAL: Duration = Duration::from_secs(4);
/// Time for which the end of another client's lease is awaited.
const LEASE_WAIT: Duration = Duration::from_secs(20);

/// The lease of a disk, as this client has it.
#[derive(Clone, Copy)]
struct HeldLease {
    epoch: u32,
    /// Until when the client may write.
    until: Instant,
}

/// The lease that requests to the unit and to the metadata server share.
#[derive(Clone, Default)]
pub(crate) struct SharedLease(Arc<Mutex<Option<HeldLease>>>);

impl SharedLease {
    fn is_valid(&self) -> bool {
        self.0.lock().is_some_and(|lease| Instant::now() < lease.until)
    }
}

/// A unit that is written only while the lease is valid.
pub(crate) struct LeasedMedium {
    pub(crate) unit: UnitMedium,
    pub(crate) lease: SharedLease,
}

impl LeasedMedium {
    fn check(&self) -> Result<(), BlockError> {
        if self.lease.is_valid() { Ok(()) } else { Err(BlockError::Reserved) }
    }
}

impl SealedMedium for LeasedMedium {
    fn blocks(&self) -> u64 {
        self.unit.blocks()
    }

    fn keeps_order(&self) -> bool {
        self.unit.keeps_order()
    }

    async fn read_into(&self, block: u64, buffer: Vec<u8>) -> Result<Vec<u8>, BlockError> {
        self.unit.read_into(block, buffer).await
    }

    async fn write(&self, block: u64, data: Bytes, guarantee: WriteGuarantee) -> Result<(), BlockError> {
        self.check()?;
        self.unit.write(block, data, guarantee).await
    }

    async fn unmap(&self, block: u64, blocks: u64) -> Result<(), BlockError> {
        self.check()?;
        self.unit.unmap(block, blocks).await
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.unit.flush().await
    }
}

/// The record of a disk at the metadata server.
#[derive(Clone)]
pub(crate) struct MdsRoots {
    client: Client,
    pub(crate) name: Name,
    pub(crate) lease: SharedLease,
}

impl MdsRoots {
    pub(crate) fn new(client: Client, name: Name) -> Self {
        Self { client, name, lease: SharedLease::default() }
    }

    /// Requests the lease, or its renewal.
    async fn request_lease(&self, epoch: Option<u32>) -> Result<HeldLease, ClientError> {
        let sent = Instant::now();
        let (epoch, valid) = self.client.lease_disk(self.name.clone(), epoch).await?;
        Ok(HeldLease { epoch, until: sent + valid })
    }

    async fn renew(&self) {
        let held = *self.lease.0.lock();
        let Some(HeldLease { epoch, .. }) = held else { return };
        match self.request_lease(Some(epoch)).await {
            Ok(renewed) => {
                let mut held = self.lease.0.lock();
                // It may have been returned meanwhile, and another one taken.
                if held.is_some_and(|held| held.epoch == epoch) {
                    *held = Some(renewed);
                }
            }
            Err(error) => {
                tracing::warn!(%error, disk = %self.name, "cannot renew the lease of the disk; retrying")
            }
        }
    }

    /// Renews the lease until work ends that takes or uses it.
    pub(crate) async fn renew_during<T>(&self, work: impl Future<Output = T>) -> T {
        let renewals = async {
            loop {
                self.renew().await;
                tokio::time::sleep(RENEWAL).await;
            }
        };
        tokio::select! {
            done = work => done,
            never = renewals => never,
        }
    }

    pub(crate) async fn report(&self, text: &str) {
        if let Err(error) = self.client.report_disk(self.name.clone(), text).await {
            tracing::warn!(%error, "cannot report an integrity failure to the metadata server");
        }
    }

    pub(crate) async fn end(&self) {
        let held = self.lease.0.lock().take();
        if let Some(HeldLease { epoch, .. }) = held
            && let Err(error) = self.client.end_disk_lease(self.name.clone(), epoch).await
        {
            tracing::warn!(%error, "cannot return the lease of the disk; it expires after 14 s");
        }
    }
}

fn store_error(error: ClientError) -> RootStoreError {
    match &error {
        ClientError::Refused(failure) if failure.code == ErrorCode::Fenced => RootStoreError::LeaseLost,
        ClientError::Refused(failure) if failure.code == ErrorCode::NotFound => RootStoreError::NotFound,
        _ => RootStoreError::Unavailable(chain(&error).to_string()),
    }
}

impl RootStore for MdsRoots {
    async fn acquire(&self) -> Result<LeaseEpoch, RootStoreError> {
        self.end().await;
        let began = Instant::now();
        loop {
            match self.request_lease(None).await {
                Ok(lease) => {
                    *self.lease.0.lock() = Some(lease);
                    // The client may have waited for the lease in its call: the time starts again.
                    let renewed = self.request_lease(Some(lease.epoch)).await.map_err(store_error)?;
                    *self.lease.0.lock() = Some(renewed);
                    return Ok(LeaseEpoch(renewed.epoch));
                }
                Err(ClientError::Refused(failure))
                    if failure.code == ErrorCode::Busy && began.elapsed() < LEASE_WAIT =>
                {
                    let wait = Duration::from_millis(failure.retry_ms.into());
                    tokio::time::sleep(wait.clamp(Duration::from_millis(50), Duration::from_secs(1))).await;
                }
                Err(error) => return Err(store_error(error)),
            }
        }
    }

    async fn load(&self) -> Result<[u8; ROOT_LEN], RootStoreError> {
        let access = self.client.disk(self.name.clone()).await.map_err(store_error)?;
        access.root.ok_or(RootStoreError::NotFound)
    }

    async fn publish(
        &self,
        lease: LeaseEpoch,
        expected: Option<u64>,
        root: [u8; ROOT_LEN],
    ) -> Result<(), RootStoreError> {
        self.client.publish_disk(self.name.clone(), lease.0, expected, root).await.map_err(store_error)
    }
}
