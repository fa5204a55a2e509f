//! Background tasks of the server: expired creates, objects of removed files, new and unreachable
//! devices.
//!
//! Does: all of this on the leading server; every server also renews its own registration and trims
//! its memory.
//! Contract: each task may be interrupted anywhere or run twice; the store records the remaining
//! work.

use core::future::Future;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sealstone_mds::{
    DeviceAddress, DuePolicy, KeyStep, KeyStepsResult, Mds, MdsError, ReapItem, ServerPurpose, StepOutcome,
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

/// Capacity figures younger than this are not refreshed for a client.
const SPACE_FRESH: Duration = Duration::from_millis(500);

/// Maximum time that a client waits for capacity figures.
const SPACE_WAIT: Duration = Duration::from_secs(1);

/// Maximum consecutive rounds while there is more to do.
const ROUNDS_MAX: usize = 64;

/// Maximum consecutive rounds of key changes of one device; each handles a batch of partitions.
const KEY_ROUNDS_MAX: usize = 4096;

/// Runs the background tasks for the store and the devices.
#[derive(Clone)]
pub struct Housekeeper {
    mds: Arc<Mds>,
    devices: Arc<dyn Devices>,
    environment: Environment,
    limits: Limits,
    wake: Arc<Notify>,
    wake_revoker: Arc<Notify>,
    wake_clearer: Arc<Notify>,
    /// Time at which capacities were last read for a client.
    space_read: Arc<tokio::sync::Mutex<Option<Instant>>>,
}

impl Housekeeper {
    /// Creates a housekeeper; [`Housekeeper::run`] starts its work.
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

    /// Starts the next round of [`Housekeeper::run`] now.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Runs rounds until `stop` is set.
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
            self.renew_leadership();
            // An unreachable device makes any step long; another server may be the leader by then.
            let round = async {
                if self.is_leader() {
                    self.change_keys(due).await;
                }
                if self.is_leader() {
                    self.prepare_devices().await;
                }
                if self.is_leader() {
                    self.give_policies(due).await;
                }
                if due {
                    self.poll_devices().await;
                }
                if self.is_leader() {
                    self.tidy().await;
                }
                if let Err(error) = self.blocking(Mds::sync_grant_log) {
                    tracing::error!(%error, "credential log could not be synced");
                }
                if self.is_leader() { self.reap().await } else { 0 }
            };
            // A hanging device must not delay the shutdown.
            let removed = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                removed = round => removed,
            };
            if due {
                polled = Some(Instant::now());
            }
            if removed > 0 {
                // Space was freed: poll again soon, so that clients that wait for space need not
                // wait for the next poll.
                polled = None;
            }
        }
    }

    /// Renews this server's leadership and trims its memory, until `stop` is set. Runs beside
    /// [`Housekeeper::run`], which may wait for an unreachable device.
    pub async fn run_own(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval(self.limits.tidy_every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                _ = ticks.tick() => {}
            }
            self.renew_leadership();
            self.blocking(|mds| mds.tidy_memory(self.environment.now_ms()));
        }
    }

    /// Makes lazily committed changes durable until `stop` is set. Runs beside
    /// [`Housekeeper::run`], which may wait for an unreachable device.
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
                tracing::error!(%error, "recent sessions could not be made durable; retrying");
            }
            if stopped {
                return;
            }
        }
    }

    /// Applies changes of other servers, and renews or acquires the leadership.
    fn renew_leadership(&self) {
        let led = self.blocking(|mds| {
            mds.catch_up()?;
            mds.leads(self.environment.now_ms())
        });
        if let Err(error) = led {
            tracing::error!(%error, "leadership not renewed; retrying");
        }
    }

    /// Whether this server does the work that one server does for the whole store.
    fn is_leader(&self) -> bool {
        self.mds.is_leading(self.environment.now_ms())
    }

    /// Takes new devices into use once their keys and partitions exist and their capacity can be
    /// read.
    pub async fn prepare_devices(&self) {
        for (device, state) in self.mds.devices() {
            // Key problems are reported by `change_keys_of`.
            if state != DeviceState::Joining || !self.mds.keys_ready(device.id) {
                continue;
            }
            match self.prepare(&device).await {
                Ok(true) => tracing::info!(device = device.id.0, "device prepared"),
                // The next round prepares it at its new address.
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(device = device.id.0, %error, "device not ready for use; retrying");
                    self.mds.device_failed(&device, error.kind(), &error.to_string());
                }
            }
        }
    }

    /// Measures the device, then sets policy and missing tags of its partitions. Its keys must be
    /// installed.
    /// Returns false if it was registered again meanwhile.
    async fn prepare(&self, device: &DeviceAddress) -> Result<bool, DeviceError> {
        self.measure(device).await?;
        self.set_policies(device).await?;
        self.blocking(|mds| mds.device_prepared(device)).map_err(store_failed)
    }

    /// Sets policy and missing tags of the partitions of a device.
    async fn set_policies(&self, device: &DeviceAddress) -> Result<(), DeviceError> {
        for partition in self.mds.file_partitions() {
            let credential = self.credential(device.id, ServerPurpose::TagPartition(partition))?;
            let policy = self.blocking(|mds| mds.whole_policy_attributes(partition)).map_err(store_failed)?;
            if self.in_time(self.devices.tag_partition(device, partition, policy, credential)).await? {
                tracing::warn!(
                    device = device.id.0,
                    partition,
                    "partition had no policy access tags (created by hand or by an earlier release); tags set"
                );
            }
        }
        Ok(())
    }

    /// Sets the recorded policy about functions on devices that do not have it yet. With `all`,
    /// also tries devices that were unreachable.
    pub async fn give_policies(&self, all: bool) {
        let due = match self.blocking(Mds::due_policies) {
            Ok(due) => due,
            Err(error) => {
                tracing::error!(%error, "devices without the policy of functions could not be read");
                return;
            }
        };
        let devices = self.mds.devices();
        let mut givers = JoinSet::new();
        for due in due {
            let known = devices.iter().find(|(device, _)| device.id == due.device);
            if known.is_some_and(|(_, state)| *state == DeviceState::Joining) {
                // It is set when the device is in use.
                continue;
            }
            if all || known.is_none() || self.mds.is_device_healthy(due.device) {
                let (this, device) = (self.clone(), known.map(|(device, _)| device.clone()));
                givers.spawn(async move { this.give_policy(due, device).await });
            }
        }
        while givers.join_next().await.is_some() {}
    }

    async fn give_policy(&self, due: DuePolicy, device: Option<DeviceAddress>) {
        let given = match &device {
            Some(device) => self.set_policies(device).await,
            // It was removed.
            None => Ok(()),
        };
        let recorded = match given {
            Ok(()) => self.blocking(|mds| mds.policy_given(&due)),
            Err(error) => {
                tracing::warn!(device = due.device.0, %error, "policy of functions not set; retrying");
                self.blocking(|mds| mds.policy_missed(&due))
            }
        };
        if let Err(error) = recorded {
            tracing::error!(device = due.device.0, %error, "state of the policy of functions not stored");
        }
    }

    /// Performs pending key changes of all devices concurrently. With `all`, also tries devices
    /// that were unreachable or rejected our keys.
    pub async fn change_keys(&self, all: bool) {
        let mut keepers = JoinSet::new();
        for (device, state) in self.mds.devices() {
            if state == DeviceState::Pending {
                // Not contacted before an administrator approves it.
                continue;
            }
            if all || self.mds.is_device_healthy(device.id) || state == DeviceState::Joining {
                let this = self.clone();
                keepers.spawn(async move { this.change_keys_of(&device, all).await });
            }
        }
        while keepers.join_next().await.is_some() {}
    }

    async fn change_keys_of(&self, device: &DeviceAddress, check: bool) {
        if check && let Err(error) = self.mds.check_keys(device.id) {
            tracing::error!(device = device.id.0, %error, "device keys could not be checked");
        }
        for _ in 0..KEY_ROUNDS_MAX {
            let mut rng = (self.environment.entropy)();
            let now_ms = self.environment.now_ms();
            let batch = self.limits.key_batch;
            let steps = match self.blocking(|mds| mds.key_steps(device.id, batch, now_ms, &mut *rng)) {
                Ok(steps) if steps.is_empty() => return,
                Ok(steps) => steps,
                Err(error) => {
                    tracing::error!(device = device.id.0, %error, "key changes could not be planned");
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
                Ok(KeyStepsResult::Lost) => {
                    Some(DeviceError::Denied("it accepts no key of any level".to_owned()))
                }
                Err(error) => Some(store_failed(error)),
            };
            if let Some(error) = error {
                tracing::warn!(device = device.id.0, %error, "keys not changed; retrying");
                self.mds.device_failed(device, error.kind(), &error.to_string());
            }
            return;
        }
    }

    /// Performs all steps concurrently; the first error goes to `problem`.
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
            // A step whose task was aborted is planned again, like one without an answer.
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
        self.mds.device_shares(device, capacity.shared);
        if !self.is_leader() {
            self.mds.device_measured(device, capacity.total, capacity.used);
            return Ok(());
        }
        self.blocking(|mds| mds.device_answered(device, capacity.total, capacity.used)).map_err(store_failed)
    }

    /// Reads the capacity of all devices in use, by which each server places new objects. A device
    /// that does not answer gets no objects until it does.
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
                    tracing::warn!(device = device.id.0, %error, "device capacity could not be read");
                    let recorded = this.mds.device_failed(&device, error.kind(), &error.to_string());
                    if !recorded || !this.is_leader() {
                        return;
                    }
                    if let Err(error) = this.blocking(|mds| mds.mark_unreachable(&device)) {
                        tracing::error!(device = device.id.0, %error, "device state could not be stored");
                    }
                }
            });
        }
        while polls.join_next().await.is_some() {}
    }

    /// Refreshes the capacities of reachable devices, at most once in [`SPACE_FRESH`] for all
    /// clients. Returns after [`SPACE_WAIT`] at the latest.
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
                    // The next poll finds and logs failures.
                    polls.spawn(async move { this.measure(&device).await.is_ok() });
                }
            }
            while polls.join_next().await.is_some() {}
        };
        let _ = timeout(SPACE_WAIT, refresh).await;
    }

    /// Expires old creates and sessions.
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

    /// Removes objects of deleted files from their devices. Returns how many.
    pub async fn reap(&self) -> usize {
        let (mut removed, mut last) = (0, None);
        for _ in 0..ROUNDS_MAX {
            if !self.is_leader() {
                return removed;
            }
            let now_ms = self.environment.now_ms();
            let batch = self.limits.reap_batch;
            let items = match self.blocking(|mds| mds.next_reap(last.as_ref(), batch, now_ms)) {
                Ok(items) if items.is_empty() => return removed,
                Ok(items) => items,
                Err(error) => {
                    tracing::error!(%error, "queue of objects to remove could not be read");
                    return removed;
                }
            };
            last = items.last().copied();
            match self.reap_batch(items).await {
                Ok(count) => removed += count,
                Err(error) => {
                    tracing::error!(%error, "queue of objects to remove could not be written");
                    return removed;
                }
            }
        }
        removed
    }

    async fn reap_batch(&self, items: Vec<ReapItem>) -> Result<usize, MdsError> {
        // Sorted, so that a simulation contacts the devices in the same order each time.
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

    /// Removes objects at one device. Returns the removed ones, and those left after the first
    /// failure.
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
                tracing::warn!(device = device.id.0, object = %item.object.object, %error, "object not removed; retrying later");
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
            Err(_) => Err(DeviceError::Unreachable("timed out".to_owned())),
        }
    }

    /// Runs short work on the store, which may wait for the disk.
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
