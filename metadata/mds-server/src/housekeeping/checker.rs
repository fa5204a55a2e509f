//! Runs requested checks: compares the records with each other and with the objects on the devices.
//!
//! Contract: records are read after the device listed its objects, and every mismatch is queried
//! once more. So an object that is created, moved or removed during the check is not reported as
//! lost or leaked. A device that does not answer is reported, and the check of the others
//! continues.

use std::sync::Arc;
use std::time::Duration;

use sealstone_mds::{
    CheckJob, DeviceAddress, MdsError, ObjectDiff, ObjectWindow, ServerPurpose, check_failure,
};
use sealstone_mds_protocol::{CheckPhase, ObjectRef};
use sealstone_osd::ObjectId;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::Housekeeper;
use crate::devices::DeviceError;

/// Interval of looking for a requested check.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum objects compared together; each such window reads all records once.
const WINDOW: usize = 1 << 20;
/// Maximum objects in one answer of a device.
const PAGE: usize = 4096;

impl Housekeeper {
    /// Runs requested checks until `stop` is set. Runs beside [`Housekeeper::run`].
    pub async fn run_checker(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                _ = ticks.tick() => {}
            }
            let Some(job) = self.mds.take_check() else { continue };
            let check = self.check(&job);
            tokio::pin!(check);
            let stopped = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => true,
                () = &mut check => false,
            };
            if stopped {
                job.stop();
                // The check polls its stop flag; without this wait its current step would outlive
                // this task.
                check.await;
                return;
            }
        }
    }

    /// Runs a check to its end.
    pub async fn check(&self, job: &Arc<CheckJob>) {
        let looked = self.check_all(job).await;
        // Findings get their paths even if the check ended early.
        let named = self.run_blocking(job, |mds, job| mds.check_paths(job)).await;
        let outcome = looked.and(named).map_err(|error| check_failure(&error));
        if let Err(why) = &outcome {
            tracing::error!(%why, "check ended early");
        }
        job.finish(outcome);
    }

    async fn check_all(&self, job: &Arc<CheckJob>) -> Result<(), MdsError> {
        self.run_blocking(job, |mds, job| mds.check_records(job)).await?;
        if job.checks_objects() {
            job.set_phase(CheckPhase::Objects);
            self.check_devices(job).await?;
        }
        Ok(())
    }

    /// Runs long work on a blocking thread.
    async fn run_blocking<T: Send + 'static>(
        &self,
        job: &Arc<CheckJob>,
        work: impl FnOnce(&sealstone_mds::Mds, &CheckJob) -> Result<T, MdsError> + Send + 'static,
    ) -> Result<T, MdsError> {
        let (mds, job) = (self.mds.clone(), job.clone());
        if self.environment.inline {
            return work(&mds, &job);
        }
        match tokio::task::spawn_blocking(move || work(&mds, &job)).await {
            Ok(done) => done,
            Err(error) => Err(MdsError::Store(sealstone_mds::store::MetaError::Failed(error.into()))),
        }
    }

    async fn check_devices(&self, job: &Arc<CheckJob>) -> Result<(), MdsError> {
        let mut devices: Vec<_> = self.mds.devices();
        devices.sort_by_key(|(device, _)| device.id);
        let mut window = ObjectWindow::default();
        for (device, state) in devices {
            if !state.was_in_use() {
                // The device never held an object.
                continue;
            }
            for partition in self.mds.file_partitions() {
                let mut from = 0;
                loop {
                    let page = match self.list(&device, partition, from).await {
                        Ok(page) => page,
                        Err(error) => {
                            self.mds.report_unchecked(job, device.id, &error.to_string());
                            window.silent.push(device.id);
                            window.listed.retain(|object| object.device != device.id);
                            break;
                        }
                    };
                    job.count_objects(page.len());
                    let refer =
                        |id: &u64| ObjectRef { device: device.id, object: ObjectId::new(partition, *id) };
                    window.listed.extend(page.iter().map(refer));
                    let Some(next) = page.last().and_then(|last| last.checked_add(1)) else { break };
                    from = next;
                    if window.listed.len() >= WINDOW {
                        window.last = window.listed.last().copied();
                        let next = ObjectWindow {
                            after: window.last,
                            silent: window.silent.clone(),
                            ..ObjectWindow::default()
                        };
                        self.compare(job, core::mem::replace(&mut window, next)).await?;
                    }
                }
                if window.silent.contains(&device.id) {
                    break;
                }
            }
        }
        self.compare(job, window).await
    }

    async fn compare(&self, job: &Arc<CheckJob>, window: ObjectWindow) -> Result<(), MdsError> {
        let compared = self.run_blocking(job, move |mds, job| mds.compare_objects(job, &window)).await?;
        let ObjectDiff { unknown, missing } = compared;
        let mut leaked = Vec::new();
        for object in unknown {
            if self.object_exists(object).await == Some(true) {
                leaked.push(object);
            }
        }
        for (node, object) in missing {
            if self.object_exists(object).await == Some(false)
                && self.blocking(|mds| mds.has_object(node, object))?
            {
                self.mds.report_lost(job, node, object);
            }
        }
        let now_ms = self.environment.now_ms();
        self.blocking(|mds| mds.report_leaked(job, &leaked, now_ms))?;
        if job.repairs() && !leaked.is_empty() {
            self.wake();
        }
        Ok(())
    }

    /// Whether the object exists; `None` if the device does not answer.
    async fn object_exists(&self, object: ObjectRef) -> Option<bool> {
        let devices = self.mds.devices();
        let (device, _) = devices.iter().find(|(device, _)| device.id == object.device)?;
        let ObjectId { partition, object } = object.object;
        let page = self.list(device, partition, object).await.ok()?;
        Some(page.first() == Some(&object))
    }

    async fn list(&self, device: &DeviceAddress, partition: u64, from: u64) -> Result<Vec<u64>, DeviceError> {
        let credential = self.credential(device.id, ServerPurpose::ListObjects(partition))?;
        self.in_time(self.devices.list(device, partition, from, PAGE, credential)).await
    }
}
