//! Sends new policy access tags to devices, to all concurrently, until each has confirmed them.
//!
//! Contract: an unreachable device delays only its own tags. An interrupted change is sent again;
//! setting a tag twice has no effect.

use std::collections::HashSet;

use sealstone_mds::{DeviceAddress, RetagItem, ServerPurpose};
use sealstone_mds_protocol::DeviceId;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::Housekeeper;
use crate::devices::DeviceError;

impl Housekeeper {
    /// Starts the next round of [`Housekeeper::run_revoker`] now.
    pub fn wake_revoker(&self) {
        self.wake_revoker.notify_one();
    }

    /// Sends tags until `stop` is set. Runs beside [`Housekeeper::run`], which may wait for an
    /// unreachable device.
    pub async fn run_revoker(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval(self.limits.revoke_retry);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut workers = JoinSet::new();
        let mut busy = HashSet::new();
        // Set if a device got more tags after its worker found none left.
        let mut again = false;
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                Some(ended) = workers.join_next() => {
                    match ended {
                        Ok(device) => {
                            busy.remove(&device);
                        }
                        // An aborted task does not report its device, so all devices are tried
                        // again.
                        Err(_) => busy.clear(),
                    }
                    if workers.is_empty() {
                        busy.clear();
                    }
                    if !core::mem::take(&mut again) {
                        continue;
                    }
                }
                () = self.wake_revoker.notified() => {}
                _ = ticks.tick() => {}
            }
            self.collect_revocations().await;
            for device in self.devices_to_retag() {
                if !busy.insert(device.id) {
                    again = true;
                    continue;
                }
                let this = self.clone();
                workers.spawn(async move {
                    this.retag_device(&device).await;
                    device.id
                });
            }
        }
    }

    /// Collects the objects whose credentials must be revoked.
    pub async fn collect_revocations(&self) {
        loop {
            match self.blocking(|mds| mds.collect_revocations(self.environment.now_ms())) {
                Ok(true) => tokio::task::yield_now().await,
                Ok(false) => return,
                Err(error) => {
                    tracing::error!(%error, "pending revocations could not be collected");
                    return;
                }
            }
        }
    }

    fn devices_to_retag(&self) -> Vec<DeviceAddress> {
        if !self.is_leader() {
            return Vec::new();
        }
        let wanted: Vec<DeviceId> = match self.blocking(|mds| mds.retag_devices()) {
            Ok(devices) => devices,
            Err(error) => {
                tracing::error!(%error, "pending revocations could not be read");
                return Vec::new();
            }
        };
        if wanted.is_empty() {
            return Vec::new();
        }
        let known = self.mds.devices().into_iter().map(|(device, _)| device);
        known.filter(|device| wanted.contains(&device.id)).collect()
    }

    /// Sends a device all its pending tags, until one fails.
    pub async fn retag_device(&self, device: &DeviceAddress) {
        loop {
            let batch = self.limits.retag_batch;
            let items = match self.blocking(|mds| mds.next_retags(device.id, batch)) {
                Ok(items) if items.is_empty() => return,
                Ok(items) => items,
                Err(error) => {
                    tracing::error!(%error, "pending revocations could not be read");
                    return;
                }
            };
            let (answered, problem) = self.retag_all(device, &items).await;
            let now_ms = self.environment.now_ms();
            if let Err(error) = self.blocking(|mds| mds.retagged(&answered, now_ms)) {
                tracing::error!(%error, "confirmed revocations could not be stored");
                return;
            }
            if let Some(error) = problem {
                tracing::warn!(device = device.id.0, %error, "device has not confirmed a revocation; retrying");
                if !matches!(error, DeviceError::KeysChanging) {
                    self.mds.device_failed(device, error.kind(), &error.to_string());
                }
                return;
            }
        }
    }

    /// Sends a batch, several tags concurrently. Returns the confirmed ones and the first error.
    async fn retag_all(
        &self,
        device: &DeviceAddress,
        items: &[RetagItem],
    ) -> (Vec<RetagItem>, Option<DeviceError>) {
        let (mut answered, mut problem) = (Vec::new(), None);
        let mut left = items.iter().copied();
        let mut under_way = JoinSet::new();
        loop {
            while problem.is_none() && under_way.len() < self.limits.retags_at_once.max(1) {
                let Some(item) = left.next() else { break };
                let (this, device) = (self.clone(), device.clone());
                under_way.spawn(async move { (item, this.retag_object(&device, item).await) });
            }
            match under_way.join_next().await {
                Some(Ok((item, Ok(())))) => answered.push(item),
                Some(Ok((_, Err(error)))) => {
                    problem.get_or_insert(error);
                }
                // An aborted task counts as one without an answer.
                Some(Err(_)) => {
                    problem.get_or_insert_with(|| DeviceError::Unreachable("interrupted".to_owned()));
                }
                None => return (answered, problem),
            }
        }
    }

    async fn retag_object(&self, device: &DeviceAddress, item: RetagItem) -> Result<(), DeviceError> {
        let purpose = ServerPurpose::Retag { object: item.object.object, creates: item.creates };
        let credential = self.credential(device.id, purpose)?;
        self.in_time(self.devices.retag(device, item, credential)).await
    }
}
