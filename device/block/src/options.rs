//! Options of the block units of a device, and the receiver of their reports for an audit log.

use std::fmt;
use std::sync::Arc;

use sealstone_block_lazy::{PageSecret, RandomSource};
use sealstone_block_protection::UnitProtection;
use sealstone_scsi::lu::NexusId;

use crate::integrity::IntegrityFailure;

/// The secret under which keys of blocks are sealed at rest.
#[derive(Clone)]
pub enum StoredSecret {
    /// The secret of the device.
    Present(PageSecret),
    /// The device cannot use its secret. Units that need it are unavailable for this reason.
    Missing(Arc<str>),
}

/// Whether units with a protection need the secret: they seal keys at rest.
#[must_use]
pub const fn seals_keys_at_rest(protection: UnitProtection) -> bool {
    protection.stores_block_keys() && protection.profile().binds_address()
}

/// Secret and random bytes for lazily protected units.
#[derive(Clone)]
pub struct LazyOptions {
    /// Secret under which keys of blocks are sealed at rest.
    pub secret: StoredSecret,
    /// Random bytes.
    pub random: RandomSource,
}

/// Report that acknowledged writes may be lost.
#[derive(Clone, Copy, Debug)]
pub struct LostWrites<'a> {
    /// Name of the block unit.
    pub unit: &'a str,
    /// Logical unit number.
    pub lun: u16,
    /// The nexus that received the failed SYNCHRONIZE CACHE.
    pub nexus: NexusId,
    /// iSCSI name of the initiator.
    pub initiator: &'a str,
}

/// Receives reports of lost writes and of integrity failures.
pub trait LossSink: Send + Sync {
    /// Receives one report of lost writes.
    fn record(&self, lost: &LostWrites<'_>);

    /// Receives one integrity failure. A peer can cause any number; the receiver limits their rate.
    fn record_integrity(&self, failure: &IntegrityFailure<'_>);
}

/// Drops every report. For tests, and for a store that serves no initiator.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLossSink;

impl LossSink for NoLossSink {
    fn record(&self, _: &LostWrites<'_>) {}

    fn record_integrity(&self, _: &IntegrityFailure<'_>) {}
}

/// Options of all block units of a device.
#[derive(Clone)]
pub struct UnitOptions {
    /// Whether every write is durable before it is acknowledged. Initiators cannot change that.
    pub write_through: bool,
    /// Identifies the boot of the machine. Unflushed writes of an earlier boot may be lost.
    pub boot_id: [u8; 16],
    /// Receiver of reports of lost writes and of integrity failures.
    pub losses: Arc<dyn LossSink>,
    /// For units whose blocks have keys. Without it they are not served.
    pub lazy: Option<LazyOptions>,
}

impl Default for UnitOptions {
    fn default() -> Self {
        Self { write_through: false, boot_id: [0; 16], losses: Arc::new(NoLossSink), lazy: None }
    }
}

impl fmt::Debug for UnitOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnitOptions").field("write_through", &self.write_through).finish_non_exhaustive()
    }
}
