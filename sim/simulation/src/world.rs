//! One world from its seed to its end: starts all hosts, the workload, the faults and the attacker,
//! and collects the report.
//!
//! `main` and the tests call [`run`]; [`trace`] also keeps the history as lines.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sealstone_client::{Metadata, Name};
use sealstone_mds::Config;
use sealstone_mds::store::MemoryMeta;
use sealstone_mds_protocol::{DeviceState, NewDevice, Request, Secret, Text};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::attacker::Attacker;
use crate::clock::SimulatedClock;
use crate::device::{self, DeviceHost};
use crate::drift::{self, DeviceClock, TimeServer};
use crate::faults::FaultInjector;
use crate::final_checks;
use crate::history::History;
use crate::metadata::{self, MdsHost, SessionTickets};
use crate::model::Model;
use crate::network::{Host, Network};
use crate::plan::WorldPlan;
use crate::random::RandomSource;
use crate::tasks::TaskSet;
use crate::wiretap::Wiretap;
use crate::workload::{ClientProcess, WorkloadClient, WorkloadState};

/// Maximum time until all devices are in use.
const JOIN_MAX: Duration = Duration::from_secs(60);
/// Time for the metadata server to find its devices after everything is up again.
const SETTLE: Duration = Duration::from_secs(30);
/// Initial error of device clocks in milliseconds, and their drift in millionths.
const SKEW_MS: u64 = 30_000;
const DRIFT_PPM: u64 = 150;
/// How long objects of removed files stay.
const REAP_GRACE_MS: u64 = 3_000;

/// Results of a world.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// Its seed.
    pub seed: u64,
    /// Hash of its whole history.
    pub hash: u64,
    /// Events in it.
    pub events: u64,
    /// Simulated milliseconds.
    pub simulated_ms: u64,
    /// Operations of the clients.
    pub operations: u64,
    /// Failed operations.
    pub failures: u64,
    /// Commands whose times were checked, at devices with drifting clocks.
    pub judged: u64,
    /// Largest error of a device's clock at one of them, in milliseconds.
    pub off_ms: u64,
    /// Violations; must be empty.
    pub violations: Vec<String>,
    /// Readable history.
    pub lines: Vec<String>,
}

impl RunReport {
    /// Whether there are no violations.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.violations.is_empty()
    }
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_good() {
            self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        }
        self.violations.iter().try_for_each(|what| writeln!(f, "broken: {what}"))?;
        write!(
            f,
            "SEALSTONE_SEED={}: {} operations, {} of them failed; {} events in {} simulated s, hash {:016x}",
            self.seed,
            self.operations,
            self.failures,
            self.events,
            self.simulated_ms / 1000,
            self.hash
        )
    }
}

/// Runs the world of a seed in the calling thread, outside of any runtime.
///
/// # Panics
/// If no runtime can be created.
#[must_use]
pub fn run(seed: u64) -> RunReport {
    run_to(seed, false)
}

/// Does the same as [`run`], with every delivery and command in the report.
///
/// # Panics
/// If no runtime can be created.
#[must_use]
pub fn trace(seed: u64) -> RunReport {
    run_to(seed, true)
}

fn run_to(seed: u64, trace: bool) -> RunReport {
    let (store, tickets) = metadata::fresh();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O can be made");
    runtime.block_on(async move {
        let world = SimulatedWorld::new(seed, trace, store, tickets);
        world.live().await
    })
}

struct SimulatedWorld {
    seed: u64,
    plan: WorldPlan,
    history: Arc<History>,
    network: Arc<Network>,
    clock: Arc<SimulatedClock>,
    /// The devices' clocks, with the normal drift of each.
    clocks: Vec<(Arc<DeviceClock>, i64)>,
    devices: Vec<Arc<DeviceHost>>,
    mds: Arc<MdsHost>,
    shop: Arc<WorkloadState>,
    wiretap: Arc<Wiretap>,
}

impl SimulatedWorld {
    fn new(seed: u64, trace: bool, store: MemoryMeta, tickets: SessionTickets) -> Self {
        let plan = WorldPlan::draw(seed);
        let chance = |label: &str| RandomSource::new(seed, label);
        let history = Arc::new(History::new(trace));
        history.add_line(format!("{plan:?}"));
        let began = Instant::now();
        let network = Network::new(plan.weather, chance("network"), history.clone());
        let clock = SimulatedClock::new(began, 0, chance("mds clock"));
        let wiretap = Arc::<Wiretap>::default();
        let (times, drawn) = (TimeServer::new(clock.clone()), chance("drift"));
        let either = |most: u64| drawn.range(0..=2 * most).cast_signed() - most.cast_signed();
        let clocks: Vec<(Arc<DeviceClock>, i64)> = (0..plan.devices)
            .map(|place| {
                let steady = SimulatedClock::new(began, 0, chance(&format!("clock of osd{place}")));
                if !plan.drift {
                    return (DeviceClock::steady(steady), 0);
                }
                let (skew_ms, drift_ppm) = (either(SKEW_MS), either(DRIFT_PPM));
                let own = chance(&format!("questions of osd{place}"));
                let (times, network) = (times.clone(), network.clone());
                let off = (skew_ms, drift_ppm);
                (DeviceClock::drifting(steady, place, off, times, network, own), drift_ppm)
            })
            .collect();
        let devices = (0..plan.devices)
            .zip(&clocks)
            .map(|(place, (device_clock, _))| {
                let chance = chance(&format!("osd{place}"));
                DeviceHost::new(
                    place,
                    plan.capacity,
                    (device_clock.clone(), clock.clone()),
                    network.clone(),
                    history.clone(),
                    chance,
                    wiretap.clone(),
                )
            })
            .collect();
        let config = Config {
            grant_lifetime_ms: plan.grant_ms,
            intent_lifetime_ms: plan.intent_ms,
            reap_grace_ms: REAP_GRACE_MS,
            ..Config::default()
        };
        let mds = MdsHost::new(store, config, clock.clone(), network.clone(), history.clone(), chance("mds"));
        let shop = Arc::new(WorkloadState {
            plan: plan.clone(),
            model: Model::default(),
            network: network.clone(),
            clock: SimulatedClock::new(began, plan.client_skew_ms, chance("clients")),
            tickets,
            history: history.clone(),
            lives: Default::default(),
            versions: Default::default(),
            operations: Default::default(),
            failures: Default::default(),
        });
        Self { seed, plan, history, network, clock, clocks, devices, mds, shop, wiretap }
    }

    async fn live(self) -> RunReport {
        self.mds.start();
        self.devices.iter().for_each(|device| device.start());
        let admin = self.shop.process(&self.shop.tickets.admin);
        if self.found(&admin).await.is_none() {
            self.history.violate("the devices were not taken into use");
            return self.report();
        }
        self.work().await;
        self.heal().await;
        self.history.add_line("all is up again");
        let auditor = self.shop.process(&self.shop.tickets.admin);
        final_checks::files(&self.shop, &auditor, &self.devices).await;
        let listed = auditor.client.device_list().await;
        self.network.cut(auditor.host);
        // All creates and credentials have expired, and removals have been retried.
        sleep(Duration::from_millis(2 * (self.plan.intent_ms + self.plan.grant_ms) + REAP_GRACE_MS)).await;
        sleep(SETTLE).await;
        match listed {
            Ok(listed) => final_checks::objects(&self.mds.store, &listed, &self.devices, &self.history),
            Err(error) => self.history.violate(format!("the devices cannot be listed: {error:?}")),
        }
        if self.plan.is_tight() {
            let again =
                Duration::from_millis(self.plan.intent_ms + self.plan.grant_ms + REAP_GRACE_MS) + SETTLE;
            let auditor = self.shop.process(&self.shop.tickets.admin);
            final_checks::space_is_reusable(&self.shop, &auditor, again).await;
        }
        self.report()
    }

    /// Adds the devices and creates the workers' folders, before faults start.
    async fn found(&self, admin: &ClientProcess) -> Option<()> {
        self.network.calm();
        for device in &self.devices {
            let place = device.place;
            let device = NewDevice {
                name: Name::new(format!("osd{place}")).ok()?,
                system_id: device::system_id(place),
                url: Text::new(device::url(place)).ok()?,
                pin: None,
                capacity: self.plan.capacity,
                speed: 0,
                master_key: Secret::new(device::master_key(place)).ok()?,
            };
            admin.client.metadata().call(Request::DeviceAdd { device }).await.ok()?;
        }
        for worker in 0..self.plan.workers {
            let (mode, _) = self.plan.privacy[usize::from(worker)].modes();
            let owner = self.shop.process(&self.shop.tickets.users[self.plan.user_of(worker)]);
            owner.client.mkdir(&format!("/c{worker}"), false, mode).await.ok()?;
            self.network.cut(owner.host);
        }
        let began = Instant::now();
        while began.elapsed() < JOIN_MAX {
            let listed = admin.client.device_list().await.ok()?;
            if listed.iter().all(|device| device.state == DeviceState::Active) {
                self.network.set_fault_rates(self.plan.weather);
                return Some(());
            }
            sleep(Duration::from_millis(500)).await;
        }
        None
    }

    /// Runs clients, attacker and faults until the clients are done.
    async fn work(&self) {
        let chance = |label: &str| RandomSource::new(self.seed, label);
        let mut workers = JoinSet::new();
        for number in 0..self.plan.workers {
            let worker = WorkloadClient::new(number, self.shop.clone(), chance(&format!("worker {number}")));
            workers.spawn(worker.run());
        }
        let others = TaskSet::new(self.history.clone());
        let attacker = Attacker {
            wiretap: self.wiretap.clone(),
            devices: self.plan.devices,
            network: self.network.clone(),
            clock: self.clock.clone(),
            chance: chance("attacker"),
            history: self.history.clone(),
        };
        others.spawn("the attacker", attacker.run());
        let trouble = FaultInjector {
            devices: self.devices.clone(),
            mds: self.mds.clone(),
            network: self.network.clone(),
            chance: chance("trouble"),
            history: self.history.clone(),
            rot: self.plan.rot,
        };
        others.spawn("the simulation", trouble.run(self.plan.faults));
        if self.plan.drift {
            let (clocks, usual) = self.clocks.iter().cloned().unzip();
            others.spawn("the simulation", drift::wild(clocks, usual, chance("wild"), self.history.clone()));
        }
        while let Some(done) = workers.join_next().await {
            if done.is_err() {
                self.history.violate("a worker panicked");
            }
        }
        others.end();
        self.network.cut(Host::Attacker);
    }

    /// Cuts power everywhere once more, so that later reads find durable data only, and restarts
    /// everything.
    async fn heal(&self) {
        self.history.add_line("the end: power is lost everywhere");
        self.mds.kill();
        self.devices.iter().for_each(|device| {
            device.limit_space(u64::MAX);
            device.stop(true);
        });
        sleep(Duration::from_secs(1)).await;
        self.network.calm();
        self.devices.iter().for_each(|device| device.start());
        self.mds.start();
        sleep(SETTLE).await;
    }

    fn report(&self) -> RunReport {
        let (hash, events) = self.history.sum();
        let (lines, violations) = self.history.take();
        let off_ms = self.devices.iter().map(|device| device.judge.off_ms.load(Ordering::Relaxed));
        RunReport {
            seed: self.seed,
            hash,
            events,
            simulated_ms: self.history.micros() / 1000,
            operations: self.shop.operations.load(Ordering::Relaxed),
            failures: self.shop.failures.load(Ordering::Relaxed),
            judged: self.devices.iter().map(|device| device.judge.judged.load(Ordering::Relaxed)).sum(),
            off_ms: off_ms.max().unwrap_or(0),
            violations,
            lines,
        }
    }
}
