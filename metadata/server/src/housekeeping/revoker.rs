//! Revocations: devices are told new policy access tags, all of them at a time, each again until it has answered.
//!
//! Contract: a device that is silent holds up itself alone. Whatever is interrupted here is told once more; telling a
//! device twice changes nothing.

use std::collections::HashSet;

use sealstone_mds::{DeviceAddress, RetagItem, ServerPurpose};
use sealstone_mds_protocol::DeviceId;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::Housekeeper;
use crate::devices::DeviceError;

impl Housekeeper {
    /// Has the next round of [`Housekeeper::run_revoker`] begin now.
    pub fn wake_revoker(&self) {
        self.wake_revoker.notify_one();
    }

    /// Works until told to stop; beside [`Housekeeper::run`], which may wait for a device that is silent.
    pub async fn run_revoker(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval(self.limits.revoke_retry);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut workers = JoinSet::new();
        let mut busy = HashSet::new();
        // A device may have been given more after its worker found nothing left.
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
                        // A task that was ended: which one is not told, so that all that are left are asked again.
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
            for device in self.devices_to_tell() {
                if !busy.insert(device.id) {
                    again = true;
                    continue;
                }
                let this = self.clone();
                workers.spawn(async move {
                    this.tell(&device).await;
                    device.id
                });
            }
        }
    }

    /// Finds what has to be revoked.
    pub async fn collect_revocations(&self) {
        loop {
            match self.blocking(|mds| mds.collect_revocations(self.environment.now_ms())) {
                Ok(true) => tokio::task::yield_now().await,
                Ok(false) => return,
                Err(error) => {
                    tracing::error!(%error, "revocations not looked at");
                    return;
                }
            }
        }
    }

    fn devices_to_tell(&self) -> Vec<DeviceAddress> {
        if !self.leads() {
            return Vec::new();
        }
        let wanted: Vec<DeviceId> = match self.blocking(|mds| mds.retag_devices()) {
            Ok(devices) => devices,
            Err(error) => {
                tracing::error!(%error, "revocations not read");
                return Vec::new();
            }
        };
        if wanted.is_empty() {
            return Vec::new();
        }
        let known = self.mds.devices().into_iter().map(|(device, _)| device);
        known.filter(|device| wanted.contains(&device.id)).collect()
    }

    /// Tells a device everything that it has to be told, or until it fails.
    pub async fn tell(&self, device: &DeviceAddress) {
        loop {
            let batch = self.limits.retag_batch;
            let items = match self.blocking(|mds| mds.next_retags(device.id, batch)) {
                Ok(items) if items.is_empty() => return,
                Ok(items) => items,
                Err(error) => {
                    tracing::error!(%error, "revocations not read");
                    return;
                }
            };
            let (answered, problem) = self.tell_all(device, &items).await;
            let now_ms = self.environment.now_ms();
            if let Err(error) = self.blocking(|mds| mds.retagged(&answered, now_ms)) {
                tracing::error!(%error, "revocations not written");
                return;
            }
            if let Some(error) = problem {
                tracing::warn!(device = device.id.0, %error, "a revocation waits for the device");
                if !matches!(error, DeviceError::KeysChanging) {
                    self.mds.device_failed(device.id, error.kind(), &error.to_string());
                }
                return;
            }
        }
    }

    /// A batch, several at a time; what the device has answered, and what went wrong first.
    async fn tell_all(
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
                under_way.spawn(async move { (item, this.tell_one(&device, item).await) });
            }
            match under_way.join_next().await {
                Some(Ok((item, Ok(())))) => answered.push(item),
                Some(Ok((_, Err(error)))) => {
                    problem.get_or_insert(error);
                }
                // A task that was ended is as good as one without an answer.
                Some(Err(_)) => {
                    problem.get_or_insert_with(|| DeviceError::Unreachable("interrupted".to_owned()));
                }
                None => return (answered, problem),
            }
        }
    }

    async fn tell_one(&self, device: &DeviceAddress, item: RetagItem) -> Result<(), DeviceError> {
        let purpose = ServerPurpose::Retag { object: item.object.object, creates: item.creates };
        let credential = self.credential(device.id, purpose)?;
        self.in_time(self.devices.retag(device, item, credential)).await
    }
}
