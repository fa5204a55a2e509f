//! A device that can lose power: the real store on a simulated disk.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealstone_iscsi_target::IscsiTarget;
use sealstone_osd_device::{
    DeviceParts, FunctionRunner, KeyRecord, NoAudit, OsdConfig, OsdUnit, VolatileLease,
};
use sealstone_scsi::lu::LogicalUnit;
use sealstone_seal::InitialKey;
use sealstone_seal::freshness::NonceHistory;
use sealstone_store::sim::SimMedium;
use sealstone_store::{DiskStore, FormatOptions, Medium as _, StoreOptions};
use tokio::io::DuplexStream;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{Clockwork, DeviceClockwork, GIB, iqn};

/// One device, and its state that survives a power failure.
pub struct Machine {
    place: u8,
    clock: Arc<Clockwork>,
    config: OsdConfig,
    state: Mutex<State>,
    functions: Mutex<Option<Arc<dyn FunctionRunner>>>,
}

struct State {
    medium: SimMedium,
    epoch: u16,
    life: Option<Life>,
}

struct Life {
    target: IscsiTarget,
    tasks: Vec<AbortHandle>,
}

impl Machine {
    /// Starts a formatted device.
    pub fn new(place: u8, clock: &Arc<Clockwork>, config: OsdConfig) -> Self {
        let medium = SimMedium::new(u64::from(place));
        sealstone_store::format(&medium, &FormatOptions::new(GIB, [place + 1; 16])).unwrap();
        let state = Mutex::new(State { medium, epoch: 0, life: None });
        let this = Self { place, clock: clock.clone(), config, state, functions: Mutex::new(None) };
        this.boot();
        this
    }

    /// Starts the device again with a service that runs functions.
    pub fn serve_functions(&self, runner: Arc<dyn FunctionRunner>) {
        *self.functions.lock().unwrap() = Some(runner);
        self.power_cut();
        self.boot();
    }

    /// Cuts the power: unsynced data and all connections are lost. [`Machine::boot`] starts it
    /// again.
    pub fn power_cut(&self) {
        let mut state = self.state.lock().unwrap();
        if let Some(life) = state.life.take() {
            life.tasks.iter().for_each(AbortHandle::abort);
        }
        state.medium = state.medium.crash();
    }

    /// Starts the device.
    pub fn boot(&self) {
        let mut state = self.state.lock().unwrap();
        state.epoch += 1;
        let store =
            Arc::new(DiskStore::open(Arc::new(state.medium.clone()), StoreOptions::default()).unwrap());
        let unit = OsdUnit::start(DeviceParts {
            store: store.clone(),
            config: self.config,
            system_id: [self.place + 1; 20],
            name: format!("osd{}", self.place),
            master_key: InitialKey::new(&[self.place + 1; 32]).unwrap(),
            keys: KeyRecord::volatile(),
            boot_epoch: state.epoch,
            nonces: NonceHistory::default(),
            lease: Box::new(VolatileLease),
            environment: Arc::new(DeviceClockwork(self.clock.clone())),
            audit: Arc::new(NoAudit),
        });
        let unit = Arc::new(unit.unwrap());
        unit.upkeep().unwrap();
        if let Some(runner) = &*self.functions.lock().unwrap() {
            unit.set_function_runner(runner.clone());
        }
        let kept = Arc::downgrade(&unit);
        let upkeep = tokio::spawn(async move {
            while let Some(unit) = kept.upgrade() {
                let _ = unit.upkeep();
                while unit.work() {}
                drop(unit);
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        let mut config = sealstone_iscsi_target::TargetConfig::new(iqn(self.place));
        let began = Instant::now();
        config.clock = sealstone_iscsi_target::MonotonicClock::new(move || {
            u64::try_from(began.elapsed().as_millis()).unwrap()
        });
        let unit: Arc<dyn LogicalUnit> = unit;
        let target = IscsiTarget::new(config, vec![(0, unit)]).unwrap();
        state.life = Some(Life { target, tasks: vec![upkeep.abort_handle()] });
    }

    /// Flips one bit of the medium at these bytes.
    pub fn rot(&self, bytes: &[u8]) {
        let medium = self.state.lock().unwrap().medium.clone();
        let file = medium.open("segment-00000", false).unwrap();
        // The first objects are at the beginning of the disk.
        let mut all = vec![0; file.length().unwrap().min(4 << 20) as usize];
        file.read_at(0, &mut all).unwrap();
        let place = all.windows(bytes.len()).position(|window| window == bytes).unwrap();
        medium.rot("segment-00000", place as u64, 0x04);
    }

    /// Serves a connection, unless the power is off.
    pub fn serve(&self, far: DuplexStream) {
        let mut state = self.state.lock().unwrap();
        let Some(life) = state.life.as_mut() else { return };
        let target = life.target.clone();
        let task = tokio::spawn(async move {
            target.serve_stream(far, "memory:3260".to_owned(), "memory:1".to_owned(), None).await;
        });
        life.tasks.push(task.abort_handle());
    }
}
