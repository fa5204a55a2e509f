//! Target device of an object that has to leave its device, or that balances use.
//!
//! Contract: the target is a device that the file does not use yet. Rebalancing ends: every move
//! reduces the sum of the squares of the devices' deviations.

use sealstone_mds_protocol::{ChosenDevice, DeviceCondition, DeviceId};

use super::{DevicePool, NoSpace, RatedDevice, ScoredDevice, first, score};

/// Devices whose fill level differs from the mean by less than this fraction of it are balanced.
pub const TOLERANCE: f64 = 0.02;

impl DevicePool {
    /// Returns the target of an object of `length` bytes on a drained device; `taken` are the
    /// devices that the file uses. The best by condition, then by weighted hashing. O(n).
    ///
    /// # Errors
    /// [`NoSpace`] if every other device is used by the file or full.
    pub fn successor(
        &self,
        seed: u64,
        length: u64,
        taken: &[DeviceId],
    ) -> Result<(DeviceId, ChosenDevice), NoSpace> {
        let free = self.with_room().filter(|device| !taken.contains(&device.device));
        let scored: Vec<ScoredDevice<'_>> = free.map(|device| ScoredDevice::of(device, seed)).collect();
        let device = *first(&scored, 1, length).first().ok_or(NoSpace)?;
        Ok((device.device, device.chosen()))
    }

    /// Returns the target of an object of `length` bytes on a fuller device, if the move improves
    /// the balance. By hashing weighted with the free capacity of each device below the mean. O(n).
    #[must_use]
    pub fn balancing_target(
        &self,
        seed: u64,
        length: u64,
        from: DeviceId,
        taken: &[DeviceId],
    ) -> Option<(DeviceId, ChosenDevice)> {
        let found = self.rated.binary_search_by_key(&from, |one| one.device).ok();
        let from = self.rated.get(found?)?;
        let (mean, length_f) = (self.mean(), length as f64);
        let excess = from.fill() - mean;
        if excess <= 0.0 {
            return None;
        }
        let (too_full, too_empty) = (mean * TOLERANCE, -mean * TOLERANCE);
        let helps = |to: &RatedDevice| {
            let lack = to.fill() - mean;
            let step = length_f / from.total.max(1) as f64 + length_f / to.total.max(1) as f64;
            lack < 0.0 && (excess > too_full || lack < too_empty) && excess - lack > step
        };
        let able = self.with_room().filter(|to| {
            let fits = to.condition != DeviceCondition::Troubled && to.free_bytes >= length;
            fits && to.device != from.device && !taken.contains(&to.device) && helps(to)
        });
        let draw = |to: &RatedDevice| score(to.device, (mean - to.fill()) * to.total as f64, seed);
        able.max_by(|a, b| draw(a).total_cmp(&draw(b))).map(|to| (to.device, to.chosen()))
    }

    /// Updates the figures after a move of `bytes` from one device to another.
    pub fn moved(&mut self, from: DeviceId, to: DeviceId, bytes: u64) {
        for (device, used) in [(from, u64::saturating_sub as fn(u64, u64) -> u64), (to, u64::saturating_add)]
        {
            if let Ok(found) = self.rated.binary_search_by_key(&device, |one| one.device) {
                let one = &mut self.rated[found];
                let before = one.used;
                one.used = used(before, bytes);
                one.free_bytes = one.free_bytes.saturating_add(before).saturating_sub(one.used);
            }
        }
        self.open = self.with_room().count();
    }

    /// Returns the minimum number of bytes that have to move until all devices are balanced within
    /// [`TOLERANCE`].
    #[must_use]
    pub fn surplus(&self) -> u64 {
        let mean = self.mean();
        let (mut over, mut under) = (0.0, 0.0);
        for one in &self.rated {
            let (used, total) = (one.used as f64, one.total as f64);
            over += (used - total * mean * (1.0 + TOLERANCE)).max(0.0);
            under += (total * mean * (1.0 - TOLERANCE) - used).max(0.0);
        }
        over.max(under) as u64
    }

    fn mean(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.used as f64 / self.total as f64 }
    }
}
