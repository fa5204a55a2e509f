//! One device in its own folder, killed and restarted repeatedly.
//!
//! Does: creates it, starts it, lets workers use it, kills it at random moments, also during its
//! start, and reads its content.
//! Does not: judge the content; the workers' oracle does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use sealstone_initiator::{OsdClient, OsdOptions, SystemEnvironment, TargetUrl, TcpDial};
use sealstone_osd::SecurityMethod;
use sealstone_tests::{CommandResult, Daemon, Signal, command, run, text};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::RunReport;
use crate::keys::CredentialIssuer;
use crate::worker::{self, RunState, Worker, WorkerCounters};

/// Partition of the first worker.
const PARTITION: u64 = 0x10000;
/// Shortest and longest run under load, in milliseconds.
const LIFE_MS: (u64, u64) = (30, 1000);
/// Steps of all clients that a run waits for after its time, and the longest wait: on a slow
/// machine the time alone is too short.
const STEPS_MAX: u64 = 300;
const SLOW_LIFE_MAX: Duration = Duration::from_secs(10);
/// Busy answers that a client waits for: a device that restarts often waits for its clock.
const BUSY_MAX: u32 = 60;
/// Length of a raw device.
const RAW_BYTES: u64 = 128 << 20;
/// Bytes released when a full file system keeps the device from starting.
const BALLAST_BYTES: usize = 2 << 20;
/// Maximum number of times that a device that cannot finish a replacement gets more space.
const ROUNDS_FOR_SPACE_MAX: u32 = 8;
/// Maximum time until workers notice that their device is down.
const AFTER_DEATH_MAX: Duration = Duration::from_secs(60);

/// Storage of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStorage {
    /// Plenty of space.
    Roomy,
    /// A capacity that the workers use up.
    Full,
    /// A file system that is smaller than the capacity.
    Tight,
    /// A raw block device, or a file that stands for one.
    Raw,
}

impl DeviceStorage {
    /// Returns its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Roomy => "roomy",
            Self::Full => "full",
            Self::Tight => "full file system",
            Self::Raw => "raw device",
        }
    }

    const fn capacity(self) -> &'static str {
        match self {
            Self::Roomy | Self::Tight => "256M",
            Self::Raw => "64M",
            Self::Full => "1M",
        }
    }
}

/// A mounted tmpfs; unmounted when dropped.
struct TmpfsMount(PathBuf, u32);

impl TmpfsMount {
    fn new(place: PathBuf, size_mib: u32) -> Option<Self> {
        fs::create_dir(&place).ok()?;
        let options = std::ffi::CString::new(format!("size={size_mib}M")).ok()?;
        mount("tmpfs", &place, "tmpfs", MountFlags::empty(), options.as_c_str()).ok()?;
        Some(Self(place, size_mib))
    }

    /// Adds two MiB: the ballast can be released only once, and the next run may fill that space.
    fn grow(&mut self) -> Result<(), String> {
        self.1 += 2;
        mount_remount(&self.0, MountFlags::empty(), format!("size={}M", self.1))
            .map_err(|error| format!("a larger tmpfs: {error}"))
    }
}

impl Drop for TmpfsMount {
    fn drop(&mut self) {
        // A mount would keep the temporary folder.
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A file as a block device; removed when dropped.
struct LoopDevice(String);

impl LoopDevice {
    /// Attaches a loop device; `None` if there are none, or without permission.
    fn new(file: &Path) -> Option<Self> {
        let made =
            std::process::Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(made.stdout).ok()?.trim().to_owned();
        (made.status.success() && Path::new(&name).exists()).then_some(Self(name))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // A loop device would keep its file.
        let _ = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// The device and its workers.
pub struct DeviceRig {
    ground: DeviceStorage,
    data: PathBuf,
    ballast: Option<PathBuf>,
    address: String,
    url: Option<String>,
    issuer: Arc<CredentialIssuer>,
    workers: Vec<Worker>,
    random: StdRng,
    // Unmounted and detached before the folder is removed.
    mounted: Option<TmpfsMount>,
    looped: Option<LoopDevice>,
    folder: Option<TempDir>,
}

impl Drop for DeviceRig {
    fn drop(&mut self) {
        self.mounted = None;
        self.looped = None;
    }
}

impl DeviceRig {
    /// Creates a device; `None` if this storage is not available.
    #[must_use]
    pub fn new(ground: DeviceStorage, workers: usize, seed: u64) -> Option<Self> {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mounted = match ground {
            DeviceStorage::Tight => Some(TmpfsMount::new(folder.path().join("tight"), 14)?),
            DeviceStorage::Roomy | DeviceStorage::Full | DeviceStorage::Raw => None,
        };
        let place = mounted.as_ref().map_or_else(|| folder.path().to_owned(), |mounted| mounted.0.clone());
        let (data, key) = (place.join("osd"), folder.path().join("osd.key"));
        let mut made = vec!["--capacity", ground.capacity(), "--name", "osd", "--key-out", text(&key)];
        let raw = folder.path().join("raw");
        let mut looped = None;
        if ground == DeviceStorage::Raw {
            let file = fs::File::create(&raw).expect("a file in a temporary folder");
            file.set_len(RAW_BYTES).expect("a sparse file");
            looped = LoopDevice::new(&raw);
            made.extend(["--device", looped.as_ref().map_or(text(&raw), |looped| &looped.0)]);
        }
        run(&[&["osd", "init", "--data", text(&data)], &made[..]].concat()).ok();
        let partitions = (0..workers as u64)
            .flat_map(|number| [PARTITION, worker::SNAPSHOT, worker::CLONE].map(|first| first + number));
        Some(Self {
            ground,
            ballast: mounted.as_ref().map(|mounted| mounted.0.join("ballast")),
            data,
            address: "127.0.0.1:0".into(),
            url: None,
            issuer: Arc::new(CredentialIssuer::of(&key, partitions)),
            workers: (0..workers).map(|n| Worker::new(n, PARTITION + n as u64, seed)).collect(),
            random: StdRng::seed_from_u64(seed),
            mounted,
            looped,
            folder: Some(folder),
        })
    }

    /// Keeps the folder for inspection.
    #[must_use]
    pub fn keep(&mut self) -> Option<PathBuf> {
        if self.mounted.is_some() {
            return None;
        }
        self.folder.take().map(TempDir::keep)
    }

    fn serve(&mut self) -> std::process::Command {
        let group_s = if self.random.gen_bool(0.5) { "1" } else { "5" };
        let mut serve =
            command(&["--json", "osd", "serve", "--data", text(&self.data), "--listen", &self.address]);
        serve.args(["--insecure-nosec", "--insecure-capkey", "--group-s-max", group_s]);
        // A scrub runs concurrently.
        serve.args(["--scrub-mib-s-max", "64"]);
        serve
    }

    /// Kills it several times during its start, then lets it start.
    fn start(&mut self, report: &mut RunReport) -> Result<Daemon, String> {
        if self.url.is_some() {
            for _ in 0..self.random.gen_range(0..3) {
                let mut child = self
                    .serve()
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .map_err(|error| format!("the daemon does not start: {error}"))?;
                std::thread::sleep(Duration::from_millis(self.random.gen_range(0..120)));
                let _ = child.kill();
                child.wait().map_err(|error| error.to_string())?;
                report.kills_at_start += 1;
            }
        }
        let daemon = match Daemon::try_start(self.serve()) {
            Ok(daemon) => daemon,
            Err(ended) => self.start_with_room(ended)?,
        };
        daemon.field("address").clone_into(&mut self.address);
        self.url = Some(daemon.field("url").to_owned());
        Ok(daemon)
    }

    /// Starts a device that refused on a full file system; after space was added it must start.
    fn start_with_room(&mut self, ended: CommandResult) -> Result<Daemon, String> {
        let stderr = ended.stderr.trim_end();
        if self.ballast.is_none() {
            return Err(format!("the device does not start again: {stderr}"));
        }
        if ended.code != 1 || stderr.lines().count() != 1 || !stderr.contains("space") {
            return Err(format!("on a full file system it ends with {}: {stderr}", ended.code));
        }
        self.give_room()?;
        Daemon::try_start(self.serve())
            .map_err(|ended| format!("with room again it does not start: {}", ended.stderr.trim_end()))
    }

    fn clients(&self) -> Vec<OsdClient> {
        let url: TargetUrl = self.url.as_deref().expect("it was started").parse().expect("its own URL");
        let environment = Arc::new(SystemEnvironment);
        let mut options = OsdOptions::new(&*environment);
        options.reconnects_max = 0;
        options.busy_retries_max = BUSY_MAX;
        let client = |_: &Worker| {
            let mut options = options.clone();
            // A separate session for each.
            options.session = sealstone_initiator::SessionConfig::new(None, &*environment);
            OsdClient::new(Arc::new(TcpDial::new(&url)), &url, environment.clone(), options)
        };
        self.workers.iter().map(client).collect()
    }

    /// Runs and kills the device until the time is over.
    ///
    /// # Errors
    /// A violation, with details.
    pub fn torture(
        &mut self,
        runtime: &Runtime,
        until: Instant,
        tally: &Arc<WorkerCounters>,
        report: &mut RunReport,
    ) -> Result<(), String> {
        if let Some(ballast) = &self.ballast {
            fs::write(ballast, vec![7; BALLAST_BYTES]).map_err(|error| error.to_string())?;
        }
        for life in 0.. {
            let mut daemon = self.start(report)?;
            let clients = self.clients();
            if life == 0 {
                runtime.block_on(self.make_partitions(&clients[0]))?;
            }
            self.workers.iter_mut().for_each(|worker| worker.switch(life));
            let killed = Arc::new(AtomicBool::new(false));
            self.verify(runtime, &clients, &killed, tally)?;
            report.lives += 1;
            if Instant::now() >= until {
                return self.farewell(daemon, report);
            }
            if self.random.gen_bool(0.3) {
                let scrub = run(&["scrub", "--data", text(&self.data), "--no-wait"]);
                if scrub.code != 0 && self.ground != DeviceStorage::Tight {
                    return Err(format!("scrub: {}", scrub.stderr));
                }
            }
            let time = Duration::from_millis(self.random.gen_range(LIFE_MS.0..LIFE_MS.1));
            let wanted = tally.steps.load(Ordering::SeqCst) + self.random.gen_range(0..STEPS_MAX);
            let clean = self.random.gen_bool(0.1);
            let signal = if clean { Signal::Terminate } else { Signal::Kill };
            let sick = self.ground == DeviceStorage::Tight;
            let outcome = runtime.block_on(async {
                let mut tasks = tokio::task::JoinSet::new();
                for (mut worker, client) in self.workers.drain(..).zip(clients) {
                    let (killed, tally) = (Arc::clone(&killed), Arc::clone(tally));
                    let issuer = Arc::clone(&self.issuer);
                    tasks.spawn(async move {
                        let life = RunState { killed: &killed, sick, issuer: &issuer, tally: &tally };
                        let outcome = worker.live(&client, &life).await;
                        (worker, outcome)
                    });
                }
                tokio::time::sleep(time).await;
                let patience = Instant::now() + SLOW_LIFE_MAX;
                while tally.steps.load(Ordering::SeqCst) < wanted && Instant::now() < patience {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                killed.store(true, Ordering::SeqCst);
                let code = daemon.end(signal);
                let mut first = Ok(code);
                let ended = async {
                    while let Some(ended) = tasks.join_next().await {
                        let (worker, outcome) = ended.expect("a worker does not panic");
                        self.workers.push(worker);
                        if let Err(error) = outcome {
                            first = Err(error);
                        }
                    }
                };
                match tokio::time::timeout(AFTER_DEATH_MAX, ended).await {
                    Ok(()) => first,
                    Err(_) => Err("a client does not notice that its device is gone".into()),
                }
            });
            self.workers.sort_by_key(Worker::number);
            let code = outcome?;
            report.kills += u64::from(!clean);
            // Commands in flight at the end may be done or not.
            if clean && code != 0 && !sick {
                return Err(format!("an orderly end has exit code {code}: {}", daemon.stderr()));
            }
            drop(daemon);
            if self.random.gen_bool(0.2) {
                self.check(report)?;
            }
        }
        Ok(())
    }

    async fn make_partitions(&self, client: &OsdClient) -> Result<(), String> {
        for number in 0..self.workers.len() as u64 {
            let bearer =
                self.issuer.object(sealstone_osd::ObjectId::new(PARTITION, PARTITION), SecurityMethod::NoSec);
            client
                .create_partition(&bearer, PARTITION + number)
                .await
                .map_err(|error| format!("CREATE PARTITION: {error:?}"))?;
        }
        Ok(())
    }

    fn verify(
        &mut self,
        runtime: &Runtime,
        clients: &[OsdClient],
        killed: &AtomicBool,
        tally: &WorkerCounters,
    ) -> Result<(), String> {
        let issuer = Arc::clone(&self.issuer);
        let life = RunState { killed, sick: false, issuer: &issuer, tally };
        for (number, client) in clients.iter().enumerate() {
            let mut rounds = 0;
            loop {
                let worker = &mut self.workers[number];
                let waits = worker.waits_for_space() && rounds < ROUNDS_FOR_SPACE_MAX;
                match runtime.block_on(worker.verify(client, &life)) {
                    Err(error) if waits && self.ground == DeviceStorage::Tight && error.contains("Busy") => {
                        self.give_room()?;
                        rounds += 1;
                    }
                    verified => break verified?,
                }
            }
        }
        Ok(())
    }

    /// Releases the ballast, or enlarges the file system.
    fn give_room(&mut self) -> Result<(), String> {
        let has_ballast = self.ballast.as_ref().is_some_and(|ballast| fs::remove_file(ballast).is_ok());
        if has_ballast { Ok(()) } else { self.mounted.as_mut().map_or(Ok(()), TmpfsMount::grow) }
    }

    /// Checks the stopped device.
    fn check(&self, report: &mut RunReport) -> Result<(), String> {
        let checked = run(&["--json", "osd", "check", "--data", text(&self.data)]);
        if checked.code != 0 && self.ground == DeviceStorage::Tight && checked.stderr.contains("space") {
            // It has to repair its index first, and has no space for that.
            return Ok(());
        }
        if checked.code != 0 {
            return Err(format!("osd check: {} {}", checked.text().trim_end(), checked.stderr.trim_end()));
        }
        report.checks += 1;
        Ok(())
    }

    fn farewell(&mut self, mut daemon: Daemon, report: &mut RunReport) -> Result<(), String> {
        let code = daemon.end(Signal::Terminate);
        if code != 0 && self.ground != DeviceStorage::Tight {
            return Err(format!("the last end has exit code {code}: {}", daemon.stderr()));
        }
        self.check(report)
    }

    /// Returns the device's folder.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }
}
