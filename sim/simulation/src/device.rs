//! A machine with a device: the real store on a simulated disk, and the real logical unit behind
//! the real target.
//!
//! Does: starts, loses power, is killed, keeps what survives.
//! Does not: simulate the device's own code.
//! Contract: only the disk, and the nonce lease and keys in non-volatile memory, survive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sealstone_client::{Device as DeviceRecord, DeviceId};
use sealstone_iscsi_target::{Counter, IscsiTarget, MonotonicClock};
use sealstone_osd_device::{
    DeviceParts, KeyRecord, KeyStore, LeaseStore, OsdConfig, OsdUnit, ProvisionError,
};
use sealstone_scsi::lu::LogicalUnit;
use sealstone_seal::InitialKey;
use sealstone_seal::freshness::NonceHistory;
use sealstone_store::sim::{DiskFault, SimMedium};
use sealstone_store::{DiskStore, FormatOptions, ObjectStore as _, StoreOptions};
use tokio::time::{Instant, sleep};

use crate::clock::SimulatedClock;
use crate::drift::{ClockAudit, DeviceClock};
use crate::history::History;
use crate::network::{Host, Network, WireEnd};
use crate::random::RandomSource;
use crate::tasks::TaskSet;
use crate::wiretap::{Wiretap, Witnessed};

/// Interval of renewing the nonce lease.
const UPKEEP_EVERY: Duration = Duration::from_millis(500);
/// Interval of checking whether a commit group is due.
const TICK_EVERY: Duration = Duration::from_millis(250);

/// Non-volatile memory of a device.
#[derive(Clone, Default)]
struct DeviceNvram {
    epoch: u16,
    nonces: NonceHistory,
    keys: Option<Vec<u8>>,
}

struct NvramLeaseStore(Arc<Mutex<DeviceNvram>>);

impl LeaseStore for NvramLeaseStore {
    fn persist(&self, history: &NonceHistory) -> Result<(), ProvisionError> {
        self.0.lock().nonces = history.clone();
        Ok(())
    }
}

struct NvramKeyStore(Arc<Mutex<DeviceNvram>>);

impl KeyStore for NvramKeyStore {
    fn persist_keys(&self, keys: &[u8]) -> Result<(), ProvisionError> {
        self.0.lock().keys = Some(keys.to_vec());
        Ok(())
    }
}

struct RunningDevice {
    store: Arc<DiskStore>,
    target: IscsiTarget,
    tasks: Arc<TaskSet>,
}

struct DeviceState {
    medium: SimMedium,
    running: Option<RunningDevice>,
}

/// The machine.
pub struct DeviceHost {
    /// Number of the device.
    pub place: u8,
    rotten: AtomicBool,
    state: Mutex<DeviceState>,
    nvram: Arc<Mutex<DeviceNvram>>,
    clock: Arc<DeviceClock>,
    /// Checks how the device judges times.
    pub judge: Arc<ClockAudit>,
    options: StoreOptions,
    network: Arc<Network>,
    history: Arc<History>,
    chance: Arc<RandomSource>,
    wiretap: Arc<Wiretap>,
}

/// Returns the initial master key of device `place`.
#[must_use]
pub fn master_key(place: u8) -> Vec<u8> {
    vec![place + 1; 32]
}

/// Returns the OSD SYSTEM ID of device `place`.
#[must_use]
pub fn system_id(place: u8) -> [u8; 20] {
    [place + 1; 20]
}

fn name(place: u8) -> String {
    format!("iqn.2026-11.org.sealstone:osd.{place}")
}

/// Returns the URL of device `place`, whose host part is the number.
#[must_use]
pub fn url(place: u8) -> String {
    format!("iscsi://osd{place}:3260/{}/0", name(place))
}

/// Returns the number of the device that a URL names.
#[must_use]
pub fn device_number(target: &str) -> u8 {
    target.rsplit('.').next().and_then(|place| place.parse().ok()).unwrap_or(u8::MAX)
}

/// Returns the machine of a device in the metadata server's list.
#[must_use]
pub fn place_in(devices: &[DeviceRecord], id: DeviceId) -> Option<u8> {
    let device = devices.iter().find(|device| device.id == id)?;
    device.name.shown().strip_prefix("osd")?.parse().ok()
}

impl DeviceHost {
    /// Creates a stopped machine with a formatted disk.
    ///
    /// # Panics
    /// If an empty disk cannot be formatted.
    #[must_use]
    pub fn new(
        place: u8,
        capacity: u64,
        (clock, truth): (Arc<DeviceClock>, Arc<SimulatedClock>),
        network: Arc<Network>,
        history: Arc<History>,
        chance: Arc<RandomSource>,
        wiretap: Arc<Wiretap>,
    ) -> Arc<Self> {
        let medium = SimMedium::new(chance.range(0..=u64::MAX));
        sealstone_store::format(&medium, &FormatOptions::new(capacity, [place + 1; 16]))
            .expect("an empty disk without faults can be formatted");
        let options = StoreOptions {
            record_cache: *chance.pick(&[64 << 10, 4 << 20]),
            index_cache: *chance.pick(&[64 << 10, 4 << 20]),
            group_bytes_max: chance.logarithmic(256 << 10..=32 << 20),
            group_age_max: Duration::from_millis(chance.logarithmic(100..=5_000)),
            discard_blocks_min: *chance.pick(&[1, 64, u64::MAX]),
            ..StoreOptions::default()
        };
        let state = Mutex::new(DeviceState { medium, running: None });
        let judge = ClockAudit::new(place, truth, clock.clone(), history.clone());
        Arc::new(Self {
            judge,
            place,
            rotten: AtomicBool::new(false),
            state,
            nvram: Arc::default(),
            clock,
            options,
            network,
            history,
            chance,
            wiretap,
        })
    }

    const fn host(&self) -> Host {
        Host::Device(self.place)
    }

    /// Whether it runs.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state.lock().running.is_some()
    }

    /// Boots it, unless it runs. A device that does not boot after a power loss is a violation.
    pub fn start(&self) {
        let mut state = self.state.lock();
        if state.running.is_some() {
            return;
        }
        let mut booted = self.boot(state.medium.clone());
        if booted.is_err() {
            // A fault scheduled for the previous run may hit the boot; the next boot has none.
            self.history.add_line(format!("osd{} loses power while it starts", self.place));
            state.medium = state.medium.crash();
            booted = self.boot(state.medium.clone());
        }
        match booted {
            Ok(running) => {
                self.history.add_line(format!("osd{} starts", self.place));
                state.running = Some(running);
            }
            Err(error) => self.history.violate(format!("osd{} does not start: {error}", self.place)),
        }
    }

    fn boot(&self, medium: SimMedium) -> Result<RunningDevice, String> {
        let store = DiskStore::open(Arc::new(medium), self.options.clone())
            .map_err(|error| format!("store: {error:?}"))?;
        let store = Arc::new(store);
        let (boot_epoch, nonces, stored) = {
            let mut nvram = self.nvram.lock();
            nvram.epoch = nvram.epoch.checked_add(1).unwrap_or(1);
            (nvram.epoch, nvram.nonces.clone(), nvram.keys.clone().map(zeroize::Zeroizing::new))
        };
        self.clock.boot();
        let unit = OsdUnit::start(DeviceParts {
            store: store.clone(),
            config: OsdConfig::default(),
            system_id: system_id(self.place),
            name: format!("osd{}", self.place),
            master_key: InitialKey::new(&master_key(self.place)).ok_or("key")?,
            keys: KeyRecord { stored, store: Box::new(NvramKeyStore(self.nvram.clone())) },
            boot_epoch,
            nonces,
            lease: Box::new(NvramLeaseStore(self.nvram.clone())),
            environment: self.clock.clone(),
            audit: self.judge.clone(),
        })
        .map_err(|error| format!("unit: {error:?}"))?;
        let unit = Arc::new(unit);
        let mut config = sealstone_iscsi_target::TargetConfig::new(name(self.place));
        let began = Instant::now();
        config.clock =
            MonotonicClock::new(move || u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
        let witnessed = Witnessed::new(
            self.place,
            unit.clone(),
            self.wiretap.clone(),
            self.judge.clone(),
            self.history.clone(),
        );
        let witnessed: Arc<dyn LogicalUnit> = Arc::new(witnessed);
        let target = IscsiTarget::new(config, vec![(0, witnessed)]).map_err(|error| format!("{error:?}"))?;
        let tasks = TaskSet::new(self.history.clone());
        let upkeep = async move {
            loop {
                // If the lease cannot be stored the device refuses commands by itself.
                let _ = unit.upkeep();
                while unit.work() {}
                sleep(UPKEEP_EVERY).await;
            }
        };
        let ticked = store.clone();
        tasks.spawn("a device", async move {
            loop {
                sleep(TICK_EVERY).await;
                // A failure poisons the store and is reported to the next write or flush.
                let _ = ticked.tick(began.elapsed());
            }
        });
        let (serving, serve_tasks) = (target.clone(), Arc::downgrade(&tasks));
        let local = format!("osd{}:3260", self.place);
        let accept = move |end: WireEnd| {
            let (target, local) = (serving.clone(), local.clone());
            let peer = format!("{:?}", end.peer());
            if let Some(tasks) = serve_tasks.upgrade() {
                tasks.spawn("a device", async move { target.serve_stream(end, local, peer, None).await });
            }
        };
        if self.clock.follows() {
            // Until the first response, neither the clock nor a nonce lease has served a time that
            // cannot be withdrawn.
            let (clock, network, host) = (self.clock.clone(), self.network.clone(), self.host());
            tasks.spawn("a device", async move {
                clock.first_answer().await;
                network.serve(host, accept);
                tokio::join!(clock.follow(), upkeep);
            });
        } else {
            tasks.spawn("a device", upkeep);
            self.network.serve(self.host(), accept);
        }
        Ok(RunningDevice { store, target, tasks })
    }

    /// Ends the process; with `power` the disk loses unsynced data.
    pub fn stop(&self, power: bool) {
        let mut state = self.state.lock();
        if let Some(RunningDevice { target, tasks, store }) = state.running.take() {
            tasks.end();
            if target.counters().get(Counter::CommandsPanicked) > 0 {
                self.history.violate(format!("osd{}: a command panicked", self.place));
            }
            // A killed process runs no destructors: their writes go to a copy of the disk.
            state.medium = state.medium.fork();
            drop(store);
        }
        // A disk that died within a write recovers only by a power cycle.
        let power = power || state.medium.is_dead();
        if power {
            state.medium = state.medium.crash();
        }
        let how = if power { "loses power" } else { "is killed" };
        self.history.add_line(format!("osd{} {how}", self.place));
        drop(state);
        self.network.down(self.host());
    }

    /// Schedules a power failure in one of the next writes or syncs, which is then done in part.
    pub fn schedule_power_failure(&self) {
        let state = self.state.lock();
        let calls = state.medium.calls();
        state.medium.fault(DiskFault::Power(calls.writes + calls.syncs + self.chance.range(1..=40)));
    }

    /// Makes one of the next syncs fail.
    pub fn fail_sync(&self) {
        let state = self.state.lock();
        state.medium.fault(DiskFault::Sync(state.medium.calls().syncs + self.chance.range(1..=3)));
    }

    /// Flips stored bits in a few places, silently.
    pub fn rot(&self) {
        let state = self.state.lock();
        let Some(running) = &state.running else { return };
        let used = running.store.space().used;
        let places = self.chance.range(1..=24);
        for _ in 0..places {
            // The first segment of a device of this size has all data, mostly at its start.
            let offset = self.chance.range(0..=used.saturating_mul(2));
            state.medium.rot("segment-00000", offset, 1 << self.chance.range(0..=7));
        }
        self.rotten.store(true, Ordering::Relaxed);
        drop(state);
        self.history.add_line(format!("osd{} rots in {places} places", self.place));
    }

    /// Whether its disk was ever corrupted.
    #[must_use]
    pub fn is_rotten(&self) -> bool {
        self.rotten.load(Ordering::Relaxed)
    }

    /// Limits the space of the disk, or lifts the limit.
    pub fn limit_space(&self, bytes: u64) {
        self.state.lock().medium.limit_space(bytes);
    }

    /// Whether its disk is dead already.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.state.lock().medium.is_dead()
    }

    /// Returns the store, if the device runs.
    #[must_use]
    pub fn store(&self) -> Option<Arc<DiskStore>> {
        self.state.lock().running.as_ref().map(|running| running.store.clone())
    }
}
