//! Results of accesses to devices.
//!
//! Contract: a result is recorded only for the registration under which the access began, since an
//! earlier one has another address or key.

use sealstone_mds_protocol::{DeviceProblem, DeviceState};

use super::{DeviceAddress, DeviceEntry, DeviceTable, SharedSpace};

/// Use is stored when it has changed by this fraction of the capacity.
const CAPACITY_STEPS: u64 = 64;

impl DeviceTable {
    /// Runs `record` on the entry of a device; none if it was registered again since.
    fn if_registered<T>(&self, at: &DeviceAddress, record: impl FnOnce(&mut DeviceEntry) -> T) -> Option<T> {
        let mut table = self.0.write();
        table.get_mut(&at.id).filter(|known| known.registration == at.registration).map(record)
    }

    /// Sets capacity and use. Returns whether they differ enough from the stored values to be
    /// stored: use changes constantly and is measured again soon after a restart. None, and no
    /// change, if the device was registered again since.
    pub(crate) fn set_capacity(&self, at: &DeviceAddress, total: u64, used: u64) -> Option<bool> {
        self.if_registered(at, |known| {
            known.record.total = total;
            known.record.used = used;
            known.problem = None;
            let step = total.max(known.stored.0) / CAPACITY_STEPS;
            known.stored.0.abs_diff(total) > step || known.stored.1.abs_diff(used) > step
        })
    }

    /// Sets the space that a device shares with others. None, and no change, if the device was
    /// registered again since.
    pub(crate) fn set_shared(&self, at: &DeviceAddress, shared: Option<SharedSpace>) -> Option<()> {
        self.if_registered(at, |known| known.shared = shared)
    }

    /// Sets the problem of the last access. None, and no change, if the device was registered again
    /// since.
    pub(crate) fn set_problem(&self, at: &DeviceAddress, problem: DeviceProblem) -> Option<()> {
        self.if_registered(at, |known| known.problem = Some(problem))
    }

    /// Returns the state of a device; none if it was registered again since.
    pub(crate) fn registered_state(&self, at: &DeviceAddress) -> Option<DeviceState> {
        self.if_registered(at, |known| known.record.state)
    }
}

impl DeviceEntry {
    /// Whether both entries have the same address and the same initial key.
    pub(super) fn has_registration_of(&self, other: &Self) -> bool {
        let (one, two) = (&self.record, &other.record);
        (one.system_id, one.pin) == (two.system_id, two.pin)
            && one.url == two.url
            && self.key_state.has_same_initial(&other.key_state)
    }
}
