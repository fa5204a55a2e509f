//! Verification of blocks with keys, and reports of writes that were not authentic.
//!
//! Does: verification in the background; marks and unit attentions of writers whose acknowledged
//! writes were deleted; records for the audit log.
//! Contract: a write that was acknowledged and is deleted fails the next SYNCHRONIZE CACHE of its
//! writer, and raises a unit attention for it.
//! Truth: docs/design/block-lazy.md.

use std::collections::BTreeMap;

use sealstone_block_lazy::{DamagedBlocks, RejectedVersion};
use sealstone_scsi::additional;

use crate::integrity::IntegrityFailureKind;
use crate::ports::PortIdentity;
use crate::unit::BlockUnit;

impl BlockUnit {
    /// Verifies blocks that are due. Call it a few times a second.
    pub(crate) fn verify_due(&self) {
        let Ok(Some(lazy)) = self.blocks().lazy() else { return };
        if let Err(error) = lazy.verify_due() {
            tracing::error!(unit = self.name(), %error, "blocks cannot be verified");
        }
        self.report_rejected();
    }

    /// Reports acknowledged writes that were not authentic to their writers and to the audit log,
    /// and blocks that were found damaged to the audit log. Returns when the writers are marked,
    /// also by another thread.
    pub(crate) fn report_rejected(&self) {
        let Ok(Some(lazy)) = self.blocks().lazy() else { return };
        let _reporting = lazy.lock_reports();
        if let Some(DamagedBlocks { first_lba, count }) = lazy.take_damaged() {
            self.record_integrity("", IntegrityFailureKind::Damaged, Some(first_lba), count);
        }
        let rejected = lazy.take_rejected();
        let Some(RejectedVersion { lba: first_lba, .. }) = rejected.first() else { return };
        tracing::error!(
            unit = self.name(),
            writes = rejected.len(),
            first_block = first_lba,
            "acknowledged writes were not authentic and were deleted"
        );
        // First block and number of writes of each writer.
        let mut writers: BTreeMap<Option<PortIdentity>, (u64, u64)> = BTreeMap::new();
        for RejectedVersion { lba, writer, .. } in &rejected {
            let port = writer.and_then(|writer| lazy.port(writer));
            writers.entry(port).or_insert((*lba, 0)).1 += 1;
        }
        for (port, (lba, count)) in &writers {
            let name = port.as_ref().map_or("", |port| &port.name);
            self.record_integrity(name, IntegrityFailureKind::WriteRejected, Some(*lba), *count);
        }
        // The writers of these are among the ones above: the volume keeps the first write of each.
        let further = lazy.take_dropped();
        if further > 0 {
            self.record_integrity("", IntegrityFailureKind::WriteRejected, None, further);
        }
        if writers.contains_key(&None) {
            // The writers before a restart are unknown, and may not have logged in again.
            self.set_lost_by_any();
            self.nexuses().raise(additional::ACKNOWLEDGED_WRITE_REJECTED, None);
            return;
        }
        for port in writers.keys().flatten() {
            self.set_lost(port);
            self.nexuses().raise_for(port, additional::ACKNOWLEDGED_WRITE_REJECTED);
        }
    }
}
