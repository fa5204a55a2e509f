//! Background work of the server: expired creates, objects of removed files, new and silent devices.
//!
//! Does: all of it on the server that leads; on each what is its own: its place among them, and its memory.
//! Contract: everything here may be done twice or be interrupted anywhere; the store says what is left to do.

use core::future::Future;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sealstone_mds::{
    DeviceAddress, KeyStep, KeyStepsResult, Mds, MdsError, ReapItem, ServerPurpose, StepOutcome,
};
use sealstone_mds_protocol::{DeviceId, DeviceState, ErrorCode};
use sealstone_seal::Credential;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::devices::{DeviceError, Devices};
use crate::environment::Environment;
use crate::limits::Limits;

mod checker;
mod clearer;
mod measurer;
mod mover;
mod revoker;

/// Figures of devices that are younger are not read again for a client.
const SPACE_FRESH: Duration = Duration::from_millis(500);

/// The longest wait of a client for figures of devices.
const SPACE_WAIT: Duration = Duration::from_secs(1);

/// Rounds without a pause while there is more to do.
const ROUNDS_MAX: usize = 64;

/// Rounds of changes of keys of one device without a pause; each does a batch of partitions.
const KEY_ROUNDS_MAX: usize = 4096;

/// Looks after the store and the devices.
#[derive(Clone)]
pub struct Housekeeper {
    mds: Arc<Mds>,
    devices: Arc<dyn Devices>,
    environment: Environment,
    limits: Limits,
    wake: Arc<Notify>,
    wake_revoker: Arc<Notify>,
    wake_clearer: Arc<Notify>,
    /// When the space of devices was last read for a client.
    space_read: Arc<tokio::sync::Mutex<Option<Instant>>>,
}

impl Housekeeper {
    /// A keeper; [`Housekeeper::run`] does its work.
    #[must_use]
    pub fn new(mds: Arc<Mds>, devices: Arc<dyn Devices>, environment: Environment, limits: Limits) -> Self {
        Self {
            mds,
            devices,
            environment,
            limits,
            wake: Arc::default(),
            wake_revoker: Arc::default(),
            wake_clearer: Arc::default(),
            space_read: Arc::default(),
        }
    }

    /// Has the next round of [`Housekeeper::run`] begin now.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Works until told to stop.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval(self.limits.tidy_every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut polled: Option<Instant> = None;
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                () = self.wake.notified() => {}
                _ = ticks.tick() => {}
            }
            let due = polled.is_none_or(|at| at.elapsed() >= self.limits.poll_every);
            self.lead();
            // A device that is silent makes any of these long: another server may lead by then.
            let round = async {
                if self.leads() {
                    self.keep_keys(due).await;
                }
                if self.leads() {
                    self.prepare_devices().await;
                }
                if due {
                    self.poll_devices().await;
                }
                if self.leads() {
                    self.tidy().await;
                }
                if let Err(error) = self.blocking(Mds::sync_grant_log) {
                    tracing::error!(%error, "the record of credentials is not on the medium");
                }
                if self.leads() { self.reap().await } else { 0 }
            };
            // A device that hangs must not hold up the shutdown.
            let removed = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                removed = round => removed,
            };
            if due {
                polled = Some(Instant::now());
            }
            if removed > 0 {
                // There is room again; whoever waits for it should not have to wait for the next poll as well.
                polled = None;
            }
        }
    }

    /// Looks after what is a server's own, until told to stop: that it leads, if it does, and what it has in memory; beside
    /// [`Housekeeper::run`], which may wait for a device that is silent.
    pub async fn run_own(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval(self.limits.tidy_every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                _ = ticks.tick() => {}
            }
            self.lead();
            self.blocking(|mds| mds.tidy_memory(self.environment.now_ms()));
        }
    }

    /// Makes durable what nobody waited for, until told to stop; beside [`Housekeeper::run`], which may wait for a device
    /// that is silent.
    pub async fn run_settler(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval(self.limits.settle_every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let stopped = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => true,
                _ = ticks.tick() => false,
            };
            if let Err(error) = self.blocking(Mds::settle) {
                tracing::error!(%error, "sessions are not on the medium");
            }
            if stopped {
                return;
            }
        }
    }

    /// Takes over what the other servers changed, and leads on or begins to.
    fn lead(&self) {
        let led = self.blocking(|mds| {
            mds.catch_up()?;
            mds.leads(self.environment.now_ms())
        });
        if let Err(error) = led {
            tracing::error!(%error, "who leads is not known");
        }
    }

    /// Does this server do the work that one does for all that use the store?
    fn leads(&self) -> bool {
        self.mds.is_leading(self.environment.now_ms())
    }

    /// Takes the devices that were added into use: those whose keys and partitions are made, and whose capacity can be read.
    pub async fn prepare_devices(&self) {
        for (device, state) in self.mds.devices() {
            // Why its keys are not ours yet is told by whoever changes them.
            if state != DeviceState::Joining || !self.mds.keys_ready(device.id) {
                continue;
            }
            match self.prepare(&device).await {
                Ok(()) => tracing::info!(device = device.id.0, "device prepared"),
                Err(error) => {
                    tracing::warn!(device = device.id.0, %error, "device not prepared yet");
                    self.mds.device_failed(device.id, error.kind(), &error.to_string());
                }
            }
        }
    }

    /// Capacity is the last thing that a device is asked for before it is in use: its keys are ours by then.
    async fn prepare(&self, device: &DeviceAddress) -> Result<(), DeviceError> {
        self.measure(device).await?;
        for partition in self.mds.file_partitions() {
            let credential = self.credential(device.id, ServerPurpose::TagPartition(partition))?;
            if self.in_time(self.devices.tag_partition(device, partition, credential)).await? {
                tracing::warn!(
                    device = device.id.0,
                    partition,
                    "the partition was made without policy access tags, by hand or by an earlier release: it has them now"
                );
            }
        }
        self.blocking(|mds| mds.device_prepared(device.id)).map_err(store_failed)
    }

    /// Changes the keys that are to be changed, of all devices at a time. One that was silent, or accepts none of our
    /// keys, is tried when it is also asked for its capacity (`all`).
    pub async fn keep_keys(&self, all: bool) {
        let mut keepers = JoinSet::new();
        for (device, state) in self.mds.devices() {
            if state == DeviceState::Pending {
                // Not contacted before an administrator approves it.
                continue;
            }
            if all || self.mds.is_device_healthy(device.id) || state == DeviceState::Joining {
                let this = self.clone();
                keepers.spawn(async move { this.keep_keys_of(&device, all).await });
            }
        }
        while keepers.join_next().await.is_some() {}
    }

    async fn keep_keys_of(&self, device: &DeviceAddress, check: bool) {
        if check && let Err(error) = self.mds.check_keys(device.id) {
            tracing::error!(device = device.id.0, %error, "keys not checked");
        }
        for _ in 0..KEY_ROUNDS_MAX {
            let mut rng = (self.environment.entropy)();
            let now_ms = self.environment.now_ms();
            let batch = self.limits.key_batch;
            let steps = match self.blocking(|mds| mds.key_steps(device.id, batch, now_ms, &mut *rng)) {
                Ok(steps) if steps.is_empty() => return,
                Ok(steps) => steps,
                Err(error) => {
                    tracing::error!(device = device.id.0, %error, "changes of keys not planned");
                    return;
                }
            };
            let mut problem = None;
            let outcomes = self.perform(device, steps, &mut problem).await;
            let now_ms = self.environment.now_ms();
            let done = self.blocking(|mds| mds.key_steps_done(device.id, outcomes, now_ms, &mut *rng));
            let error = match done {
                Ok(KeyStepsResult::Going) if problem.is_none() => continue,
                Ok(KeyStepsResult::Going | KeyStepsResult::Stuck) => problem,
                Ok(KeyStepsResult::Lost) => Some(DeviceError::Denied("no key of any level".to_owned())),
                Err(error) => Some(store_failed(error)),
            };
            if let Some(error) = error {
                tracing::warn!(device = device.id.0, %error, "keys not changed yet");
                self.mds.device_failed(device.id, error.kind(), &error.to_string());
            }
            return;
        }
    }

    /// All steps at a time; the first thing that went wrong is kept.
    async fn perform(
        &self,
        device: &DeviceAddress,
        steps: Vec<KeyStep>,
        problem: &mut Option<DeviceError>,
    ) -> Vec<(KeyStep, StepOutcome)> {
        let mut under_way = JoinSet::new();
        for step in steps {
            let (this, device) = (self.clone(), device.clone());
            under_way.spawn(async move {
                let outcome = this.in_time(this.devices.keys(&device, &step)).await;
                (step, outcome)
            });
        }
        let mut outcomes = Vec::new();
        while let Some(performed) = under_way.join_next().await {
            // A step whose task was ended is as good as one without an answer: it is planned again.
            let Ok((step, outcome)) = performed else { continue };
            let outcome = outcome.unwrap_or_else(|error| {
                problem.get_or_insert(error);
                StepOutcome::Failed
            });
            outcomes.push((step, outcome));
        }
        outcomes
    }

    async fn measure(&self, device: &DeviceAddress) -> Result<(), DeviceError> {
        let credential = self.credential(device.id, ServerPurpose::ReadCapacity)?;
        let capacity = self.in_time(self.devices.capacity(device, credential)).await?;
        self.mds.device_shares(device.id, capacity.shared);
        if !self.leads() {
            self.mds.device_measured(device.id, capacity.total, capacity.used);
            return Ok(());
        }
        self.blocking(|mds| mds.device_answered(device.id, capacity.total, capacity.used))
            .map_err(store_failed)
    }

    /// Reads the capacity of all prepared devices, by which each server places new objects; one that does not answer
    /// takes none until it does.
    pub async fn poll_devices(&self) {
        let mut polls = JoinSet::new();
        for (device, state) in self.mds.devices() {
            if !state.was_in_use() {
                continue;
            }
            let this = self.clone();
            polls.spawn(async move {
                if let Err(error) = this.measure(&device).await {
                    if matches!(error, DeviceError::KeysChanging) {
                        return;
                    }
                    tracing::warn!(device = device.id.0, %error, "capacity not read");
                    this.mds.device_failed(device.id, error.kind(), &error.to_string());
                    if !this.leads() {
                        return;
                    }
                    if let Err(error) = this.blocking(|mds| mds.mark_unreachable(device.id)) {
                        tracing::error!(device = device.id.0, %error, "device state not stored");
                    }
                }
            });
        }
        while polls.join_next().await.is_some() {}
    }

    /// Reads the space of devices that answered before again, at most once in [`SPACE_FRESH`] for
    /// all clients. Returns after [`SPACE_WAIT`] at the latest.
    pub(crate) async fn refresh_space(&self) {
        let refresh = async {
            let mut read = self.space_read.lock().await;
            if read.is_some_and(|at| at.elapsed() < SPACE_FRESH) {
                return;
            }
            *read = Some(Instant::now());
            let mut polls = JoinSet::new();
            for (device, state) in self.mds.devices() {
                if state.was_in_use() && self.mds.is_device_healthy(device.id) {
                    let this = self.clone();
                    // What fails here is found and logged by the next poll.
                    polls.spawn(async move { this.measure(&device).await.is_ok() });
                }
            }
            while polls.join_next().await.is_some() {}
        };
        let _ = timeout(SPACE_WAIT, refresh).await;
    }

    /// Gives expired creates up and ends old sessions.
    pub async fn tidy(&self) {
        for _ in 0..ROUNDS_MAX {
            match self.blocking(|mds| mds.tidy(self.environment.now_ms())) {
                Ok(true) => tokio::task::yield_now().await,
                Ok(false) => return,
                Err(error) => {
                    tracing::error!(%error, "housekeeping in the metadata store failed");
                    return;
                }
            }
        }
    }

    /// Removes objects that no file needs any more from their devices; says how many.
    pub async fn reap(&self) -> usize {
        let (mut removed, mut last) = (0, None);
        for _ in 0..ROUNDS_MAX {
            if !self.leads() {
                return removed;
            }
            let now_ms = self.environment.now_ms();
            let batch = self.limits.reap_batch;
            let items = match self.blocking(|mds| mds.next_reap(last.as_ref(), batch, now_ms)) {
                Ok(items) if items.is_empty() => return removed,
                Ok(items) => items,
                Err(error) => {
                    tracing::error!(%error, "reap queue not read");
                    return removed;
                }
            };
            last = items.last().copied();
            match self.reap_batch(items).await {
                Ok(count) => removed += count,
                Err(error) => {
                    tracing::error!(%error, "reap queue not written");
                    return removed;
                }
            }
        }
        removed
    }

    async fn reap_batch(&self, items: Vec<ReapItem>) -> Result<usize, MdsError> {
        // In order, so that a simulation asks the devices in the same order every time.
        let mut by_device: BTreeMap<DeviceId, Vec<ReapItem>> = BTreeMap::new();
        for item in items {
            by_device.entry(item.object.device).or_default().push(item);
        }
        let addresses = self.mds.devices();
        let mut workers = JoinSet::new();
        for (id, items) in by_device {
            let device =
                addresses.iter().find(|(device, _)| device.id == id).map(|(device, _)| device.clone());
            let this = self.clone();
            workers.spawn(async move { this.reap_at(device, items).await });
        }
        let (mut gone, mut left) = (Vec::new(), Vec::new());
        while let Some(worker) = workers.join_next().await {
            let (done, not_done) = worker.unwrap_or_default();
            gone.extend(done);
            left.extend(not_done);
        }
        let now_ms = self.environment.now_ms();
        if !gone.is_empty() {
            self.blocking(|mds| mds.reaped(&gone, now_ms))?;
        }
        if !left.is_empty() {
            let retry = u64::try_from(self.limits.reap_retry.as_millis()).unwrap_or(u64::MAX);
            self.blocking(|mds| mds.postpone_reap(&left, now_ms.saturating_add(retry)))?;
        }
        Ok(gone.len())
    }

    /// Removes objects at one device; what is left after its first failure is for later.
    async fn reap_at(
        &self,
        device: Option<DeviceAddress>,
        items: Vec<ReapItem>,
    ) -> (Vec<ReapItem>, Vec<ReapItem>) {
        let Some(device) = device else { return (Vec::new(), items) };
        let mut done = 0;
        for item in &items {
            let removed = match self.credential(device.id, ServerPurpose::RemoveObject(item.object.object)) {
                Ok(credential) => {
                    self.in_time(self.devices.remove(&device, item.object.object, credential)).await
                }
                Err(error) => Err(error),
            };
            if let Err(error) = removed {
                tracing::warn!(device = device.id.0, object = %item.object.object, %error, "object not removed yet");
                break;
            }
            done += 1;
        }
        let mut gone = items;
        let left = gone.split_off(done);
        (gone, left)
    }

    fn credential(&self, device: DeviceId, purpose: ServerPurpose) -> Result<Credential, DeviceError> {
        let mut rng = (self.environment.entropy)();
        let made = self.mds.own_credential(device, purpose, self.environment.now_ms(), &mut *rng);
        made.map_err(|error| match error.failure().code {
            ErrorCode::Busy => DeviceError::KeysChanging,
            _ => store_failed(error),
        })
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, DeviceError>>) -> Result<T, DeviceError> {
        match timeout(self.limits.device_timeout, work).await {
            Ok(result) => result,
            Err(_) => Err(DeviceError::Unreachable("no answer in time".to_owned())),
        }
    }

    /// Short work on the store that waits for the medium.
    fn blocking<T>(&self, work: impl FnOnce(&Mds) -> T) -> T {
        let threads = Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
        if threads && !self.environment.inline {
            tokio::task::block_in_place(|| work(&self.mds))
        } else {
            work(&self.mds)
        }
    }
}

fn store_failed(error: MdsError) -> DeviceError {
    DeviceError::Refused(error.to_string())
}
