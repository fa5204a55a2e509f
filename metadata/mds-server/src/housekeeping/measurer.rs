//! Measures lengths of objects for quotas, by querying the devices when write credentials have
//! expired.
//!
//! Contract: an unreachable device delays its own files only, until the next round. Of several
//! servers on one store each measures the files that it issued credentials for.

use std::collections::HashSet;
use std::time::Duration;

use sealstone_mds::{DeviceAddress, LengthItem, ServerPurpose};
use sealstone_mds_protocol::DeviceId;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::Housekeeper;
use crate::devices::DeviceError;

/// Files read at a time.
const BATCH: usize = 64;
/// Interval of the rounds.
const EVERY: Duration = Duration::from_secs(2);

impl Housekeeper {
    /// Measures files until `stop` is set. Runs beside [`Housekeeper::run`].
    pub async fn run_measurer(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                _ = ticks.tick() => {}
            }
            self.measure_lengths().await;
        }
    }

    /// Measures all files and creates that are due.
    pub async fn measure_lengths(&self) {
        let mut silent = HashSet::new();
        loop {
            let now_ms = self.environment.now_ms();
            let items = match self.blocking(|mds| mds.next_length_checks(BATCH, now_ms)) {
                Ok(items) if items.is_empty() => return,
                Ok(items) => items,
                Err(error) => {
                    tracing::error!(%error, "queue of files to measure could not be read");
                    return;
                }
            };
            for item in items {
                if let Err((device, error)) = self.measure_objects(&item, &silent).await {
                    tracing::debug!(device = device.0, %error, "object lengths not measured; retrying later");
                    silent.insert(device);
                }
            }
        }
    }

    async fn measure_objects(
        &self,
        item: &LengthItem,
        silent: &HashSet<DeviceId>,
    ) -> Result<(), (DeviceId, DeviceError)> {
        let mut lengths = Vec::with_capacity(item.objects.len());
        for (object, _) in &item.objects {
            let failed = |error| (object.device, error);
            let address = |(one, _): (DeviceAddress, _)| (one.id == object.device).then_some(one);
            let device =
                self.mds.devices().into_iter().find_map(address).filter(|_| !silent.contains(&object.device));
            let unreachable =
                || failed(DeviceError::Unreachable("it did not answer a moment ago".to_owned()));
            let device = device.ok_or_else(unreachable)?;
            let credential =
                self.credential(device.id, ServerPurpose::MeasureObject(object.object)).map_err(failed)?;
            let length = self.in_time(self.devices.length(&device, object.object, credential)).await;
            lengths.push(length.map_err(failed)?);
        }
        let now_ms = self.environment.now_ms();
        if let Err(error) = self.blocking(|mds| mds.lengths_found(item, &lengths, now_ms)) {
            tracing::error!(%error, "object lengths could not be stored");
        }
        Ok(())
    }
}
