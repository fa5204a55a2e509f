//! Faults of a simulated world: chosen from the seed, injected while the clients work, and repaired
//! at the end.
//!
//! Does: kills and power failures of hosts, blocked networks, failed syncs, corrupt bytes.
//! Does not: check anything; `workload` and `final_checks` do.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::device::DeviceHost;
use crate::history::History;
use crate::metadata::MdsHost;
use crate::network::{Host, Network};
use crate::random::RandomSource;

/// Longest time until a doomed disk dies.
const DOOM_MAX: Duration = Duration::from_secs(4);
/// Interval of checking whether it died.
const DOOM_POLL: Duration = Duration::from_millis(20);

/// Injects faults.
#[derive(Clone)]
pub struct FaultInjector {
    /// Devices to kill and restart.
    pub devices: Vec<Arc<DeviceHost>>,
    /// The metadata server.
    pub mds: Arc<MdsHost>,
    /// The network.
    pub network: Arc<Network>,
    /// Random choices.
    pub chance: Arc<RandomSource>,
    /// Log of the faults.
    pub history: Arc<History>,
    /// Whether disks are corrupted.
    pub rot: bool,
}

impl FaultInjector {
    /// Injects this many faults, most of them in sequence. A caller that aborts it must heal the
    /// remaining ones.
    pub async fn run(self, faults: u64) {
        let mut overlapping = JoinSet::new();
        for _ in 0..faults {
            sleep(Duration::from_millis(self.chance.logarithmic(20..=8_000))).await;
            let this = self.clone();
            let strike = async move { this.strike().await };
            // Some faults overlap.
            if self.chance.percent(30) {
                overlapping.spawn(strike);
            } else {
                strike.await;
            }
        }
        while overlapping.join_next().await.is_some() {}
    }

    async fn strike(&self) {
        let device = self.chance.pick(&self.devices);
        if self.rot && self.chance.percent(35) {
            device.rot();
            return;
        }
        match self.chance.range(0..=12) {
            0 | 1 => self.restart(device, true).await,
            2 => self.restart(device, false).await,
            3 | 4 => {
                self.history.add_line(format!("osd{} is doomed", device.place));
                device.schedule_power_failure();
                self.until_dead(device).await;
                self.restart(device, true).await;
            }
            5 => {
                self.history.add_line(format!("osd{}: a sync will fail", device.place));
                device.fail_sync();
                self.pause(4_000).await;
                self.restart(device, true).await;
            }
            6 => self.restart_mds().await,
            7 => {
                let commits = self.chance.range(0..=4);
                self.history.add_line(format!("mds store fails after {commits} commits"));
                self.mds.store.fail_after(Some(commits));
                self.pause(2_000).await;
                self.restart_mds().await;
            }
            8 => {
                for _ in 0..self.chance.range(1..=6) {
                    if let Some(ends) = self.network.cut_any() {
                        self.history.add_line(format!("cut {ends:?}"));
                    }
                    self.pause(300).await;
                }
            }
            9 => {
                let host = self.somebody();
                let count = self.network.cut(host);
                self.history.add_line(format!("cut all {count} of {host:?}"));
            }
            10 => {
                let host = self.somebody();
                self.history.add_line(format!("{host:?} is cut off"));
                self.network.partition(host, true);
                self.pause(40_000).await;
                self.network.partition(host, false);
                self.history.add_line(format!("{host:?} is back"));
            }
            11 => {
                let bytes = self.chance.logarithmic(256 << 10..=64 << 20);
                self.history.add_line(format!("osd{}: its disk is full above {bytes} bytes", device.place));
                device.limit_space(bytes);
                self.pause(10_000).await;
                device.limit_space(u64::MAX);
                self.restart(device, self.chance.percent(50)).await;
            }
            _ => {
                let (host, factor) = (self.somebody(), self.chance.logarithmic(4..=1_000));
                self.history.add_line(format!("{host:?} is slow, {factor} times"));
                self.network.slow(host, factor);
                self.pause(20_000).await;
                self.network.slow(host, 1);
                self.history.add_line(format!("{host:?} is quick again"));
            }
        }
    }

    fn somebody(&self) -> Host {
        match self.chance.range(0..=self.devices.len() as u64) {
            0 => Host::Mds,
            place => Host::Device(place as u8 - 1),
        }
    }

    async fn pause(&self, most_ms: u64) {
        sleep(Duration::from_millis(self.chance.logarithmic(1..=most_ms))).await;
    }

    async fn until_dead(&self, device: &DeviceHost) {
        let mut lived = Duration::ZERO;
        while !device.is_dead() && lived < DOOM_MAX {
            sleep(DOOM_POLL).await;
            lived += DOOM_POLL;
        }
    }

    async fn restart(&self, device: &DeviceHost, power: bool) {
        device.stop(power);
        self.pause(20_000).await;
        device.start();
    }

    async fn restart_mds(&self) {
        self.mds.kill();
        self.pause(15_000).await;
        self.mds.start();
    }
}
