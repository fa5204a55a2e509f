//! Small requests beside large ones under ALLDATA: latency of the small ones with each switch of
//! the device on and off.
//!
//! Does: runs one device for each setting, drives large requests from separate sessions, and times
//! small ones.
//! Does not: judge.
//! Contract: settings take turns, so that other load affects all of them alike; the large client
//! has its own threads, so that its cryptography does not delay the small one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealstone_initiator::{
    Bearer, Operation, OsdClient, OsdError, OsdOptions, SystemEnvironment, TargetUrl, TcpDial,
};
use sealstone_osd::{ObjectId, SecurityMethod};
use sealstone_seal::algorithm::{SLOT_HMAC_SHA256, SLOT_UNITS_BLAKE3};
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::Outcome;
use crate::credential::Issuer;
use crate::daemon::Osd;
use crate::latency::CommandLatency;
use crate::process::usage;
use crate::settings::Run;
use crate::workload::{Direction, median};

const PARTITION: u64 = 1 << 16;
const READ_OBJECT: ObjectId = ObjectId::new(PARTITION, 1 << 16);
const WRITTEN_OBJECT: ObjectId = ObjectId::new(PARTITION, (1 << 16) + 1);
const OBJECT_BYTES: u64 = 32 << 20;
/// Bytes of a large request.
const LARGE_BYTES: usize = 1 << 20;
/// Sessions with large requests, and requests in flight in each.
const LARGE_SESSIONS: usize = 4;
const LARGE_DEPTH: usize = 4;
/// Threads of the large client.
const WORKERS: usize = 4;
/// Time for the large requests to fill the device.
const SETTLE: Duration = Duration::from_millis(50);

/// Flags of a device.
struct DeviceFlags {
    name: &'static str,
    flags: &'static [&'static str],
}

const SETTINGS: &[DeviceFlags] = &[
    DeviceFlags { name: "as they come", flags: &["--short-first=false"] },
    DeviceFlags { name: "short first", flags: &["--short-first=true"] },
    DeviceFlags { name: "short first, slices", flags: &["--short-first=true", "--time-slices"] },
    DeviceFlags { name: "pulled writes", flags: &["--short-first=false", "--pull-kib=512"] },
    DeviceFlags { name: "short first, pulled", flags: &["--short-first=true", "--pull-kib=512"] },
    DeviceFlags { name: "all three", flags: &["--short-first=true", "--time-slices", "--pull-kib=512"] },
];

/// Kind of the large requests.
struct LargeRequests {
    name: &'static str,
    direction: Direction,
    /// The algorithm slot of their credentials.
    slot: u8,
}

/// With the default algorithm, and with a MAC over all bytes, which makes the device compute over
/// read data.
const LARGE: &[Option<LargeRequests>] = &[
    None,
    Some(LargeRequests { name: "read", direction: Direction::Read, slot: SLOT_UNITS_BLAKE3 }),
    Some(LargeRequests { name: "read, MAC of all", direction: Direction::Read, slot: SLOT_HMAC_SHA256 }),
    Some(LargeRequests { name: "write", direction: Direction::Write, slot: SLOT_UNITS_BLAKE3 }),
];

/// The timed requests.
#[derive(Clone, Copy)]
struct SmallRequests {
    name: &'static str,
    bytes: usize,
    method: SecurityMethod,
    slot: u8,
    /// Whether they share a session with large requests.
    shares: bool,
}

const SMALL: &[SmallRequests] = &[
    SmallRequests {
        name: "4 KiB CMDRSP, own session",
        bytes: 4096,
        method: SecurityMethod::CmdRsp,
        slot: SLOT_HMAC_SHA256,
        shares: false,
    },
    SmallRequests {
        name: "4 KiB CMDRSP, same session",
        bytes: 4096,
        method: SecurityMethod::CmdRsp,
        slot: SLOT_HMAC_SHA256,
        shares: true,
    },
    SmallRequests {
        name: "256 KiB ALLDATA, own session",
        bytes: 256 << 10,
        method: SecurityMethod::AllData,
        slot: SLOT_UNITS_BLAKE3,
        shares: false,
    },
];

#[derive(Debug, Serialize)]
struct PaceRow {
    large: &'static str,
    setting: &'static str,
    small: CommandLatency,
    /// MiB per second of the large requests, median of the rounds.
    large_mib_per_s: f64,
    /// CPU microseconds of the device per MiB of the large requests, including all other work;
    /// median. Other load affects it less than the rates.
    device_us_per_mib: f64,
}

/// Result of one turn.
#[derive(Default)]
struct PaceTurn {
    times: Vec<Duration>,
    large_mib_per_s: f64,
    device_us_per_mib: f64,
}

/// A device, and connected clients.
struct PaceStation {
    osd: Osd,
    issuer: Issuer,
    large: Vec<OsdClient>,
    small: OsdClient,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Run) -> Outcome {
    let settings = arguments.settings()?;
    let folder = tempfile::tempdir()?;
    let background = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let foreground = Builder::new_current_thread().enable_all().build()?;
    let asked = |setting: &&DeviceFlags| {
        settings.only.is_empty() || settings.only.split(';').any(|name| name == setting.name)
    };
    let chosen: Vec<&DeviceFlags> = SETTINGS.iter().filter(asked).collect();
    let mut stations = Vec::new();
    for (at, setting) in chosen.iter().enumerate() {
        let data = folder.path().join(at.to_string());
        stations.push(PaceStation::new(&settings.binary, &data, setting, &background, &foreground)?);
    }
    let mut rows = Vec::new();
    for small in SMALL {
        for large in LARGE {
            let mut found: Vec<Vec<PaceTurn>> = chosen.iter().map(|_| Vec::new()).collect();
            for round in 0..settings.runs * settings.turns() {
                for place in 0..stations.len() {
                    let at = (place + round) % stations.len();
                    let large = large.as_ref();
                    let turn = stations[at].turn(small, large, settings.turn(), &background, &foreground)?;
                    found[at].push(turn);
                }
            }
            let large = large.as_ref().map_or("alone", |large| large.name);
            for (setting, turns) in chosen.iter().zip(found) {
                let of = |part: fn(&PaceTurn) -> f64| median(&mut turns.iter().map(part).collect::<Vec<_>>());
                rows.push(PaceRow {
                    large,
                    setting: setting.name,
                    large_mib_per_s: of(|turn| turn.large_mib_per_s),
                    device_us_per_mib: of(|turn| turn.device_us_per_mib),
                    small: CommandLatency::of(
                        small.name,
                        "",
                        turns.into_iter().flat_map(|turn| turn.times).collect(),
                    ),
                });
            }
            eprintln!("{} beside {large}: done", small.name);
        }
    }
    for station in stations {
        let PaceStation { osd, large, small, .. } = station;
        drop((large, small));
        osd.stop()?;
    }
    arguments.common.save(&rows)?;
    print(&rows);
    Ok(())
}

fn print(rows: &[PaceRow]) {
    println!(
        "small reads, one at a time, beside {LARGE_SESSIONS} sessions with {LARGE_DEPTH} requests of {} KiB each under \
         ALLDATA\n",
        LARGE_BYTES >> 10
    );
    println!(
        "{:30} {:18} {:22} {:>10} {:>10} {:>10} {:>12} {:>14}",
        "small", "large", "setting", "median us", "p99 us", "samples", "large MiB/s", "device us/MiB"
    );
    for row in rows {
        println!(
            "{:30} {:18} {:22} {:>10.0} {:>10.0} {:>10} {:>12.0} {:>14.0}",
            row.small.name,
            row.large,
            row.setting,
            row.small.median_us,
            row.small.p99_us,
            row.small.samples,
            row.large_mib_per_s,
            row.device_us_per_mib
        );
    }
}

impl PaceStation {
    fn new(
        binary: &Path,
        data: &Path,
        setting: &DeviceFlags,
        background: &Runtime,
        foreground: &Runtime,
    ) -> Outcome<Self> {
        let osd = Osd::with(binary, data, setting.flags)?;
        let issuer = Issuer::of(&osd.data, PARTITION)?;
        let url: TargetUrl = osd.url.parse()?;
        let client = || {
            let environment = Arc::new(SystemEnvironment);
            let options = OsdOptions::new(&*environment);
            OsdClient::new(Arc::new(TcpDial::new(&url)), &url, environment, options)
        };
        let (large, small): (Vec<OsdClient>, _) = ((0..LARGE_SESSIONS).map(|_| client()).collect(), client());
        let anything = issuer.anything()?;
        let mut payload = vec![0; LARGE_BYTES];
        getrandom::fill(&mut payload).map_err(|error| error.to_string())?;
        let payload = Bytes::from(payload);
        background.block_on(async {
            let device = large.first().ok_or("no client")?;
            device.create_partition(&anything, PARTITION).await?;
            for object in [READ_OBJECT, WRITTEN_OBJECT] {
                device.create(&anything, object).await?;
                for offset in (0..OBJECT_BYTES).step_by(LARGE_BYTES) {
                    device.write(&anything, object, offset, payload.clone()).await?;
                }
            }
            device.flush_osd(&anything).await?;
            Outcome::Ok(())
        })?;
        // Opens its session in the runtime in which it is timed.
        foreground.block_on(small.read(&anything, READ_OBJECT, 0, 4096))?;
        Ok(Self { osd, issuer, large, small })
    }

    /// Times the small requests, and measures the large ones meanwhile.
    fn turn(
        &self,
        small: &SmallRequests,
        large: Option<&LargeRequests>,
        time: Duration,
        background: &Runtime,
        foreground: &Runtime,
    ) -> Outcome<PaceTurn> {
        let (stop, moved) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut lanes = JoinSet::new();
        if let Some(&LargeRequests { direction, slot, .. }) = large {
            let object = if direction == Direction::Read { READ_OBJECT } else { WRITTEN_OBJECT };
            let bearer = self.issuer.object(object, SecurityMethod::AllData, slot)?;
            for (number, device) in self.large.iter().cycle().take(LARGE_SESSIONS * LARGE_DEPTH).enumerate() {
                let lane = LargeRequestLoop {
                    device: device.clone(),
                    bearer: bearer.clone(),
                    direction,
                    number: number as u64,
                    stop: stop.clone(),
                    moved: moved.clone(),
                };
                lanes.spawn_on(lane.run(), background.handle());
            }
            std::thread::sleep(SETTLE);
        }
        let bearer = self.issuer.object(READ_OBJECT, small.method, small.slot)?;
        let device = if small.shares { self.large.first().ok_or("no client")? } else { &self.small };
        let runtime = if small.shares { background } else { foreground };
        let (begin, before) = (Instant::now(), moved.load(Ordering::Relaxed));
        let cpu_s = usage(self.osd.pid())?.cpu_s;
        let times = runtime.block_on(async {
            let (mut times, mut buffer, mut offset) = (Vec::new(), Vec::new(), 0);
            while times.is_empty() || begin.elapsed() < time {
                let sent = Instant::now();
                let read = Operation::Read { object: READ_OBJECT, offset, length: small.bytes, buffer };
                buffer = device.execute(&bearer, read).await?.data;
                times.push(sent.elapsed());
                offset = (offset + small.bytes as u64) % OBJECT_BYTES;
            }
            Ok::<_, OsdError>(times)
        })?;
        let mib = (moved.load(Ordering::Relaxed) - before) as f64 / f64::from(1 << 20);
        let large_mib_per_s = mib / begin.elapsed().as_secs_f64();
        let device_us_per_mib = (usage(self.osd.pid())?.cpu_s - cpu_s) * 1e6 / mib.max(1.0);
        stop.store(true, Ordering::Relaxed);
        background.block_on(async {
            while let Some(done) = lanes.join_next().await {
                done??;
            }
            Outcome::Ok(())
        })?;
        Ok(PaceTurn { times, large_mib_per_s, device_us_per_mib })
    }
}

/// Sends one large request at a time.
struct LargeRequestLoop {
    device: OsdClient,
    bearer: Bearer,
    direction: Direction,
    number: u64,
    stop: Arc<AtomicBool>,
    moved: Arc<AtomicU64>,
}

impl LargeRequestLoop {
    async fn run(self) -> Result<(), OsdError> {
        let payload = Bytes::from(vec![0xA5; LARGE_BYTES]);
        let (mut buffer, mut at) = (Vec::new(), self.number);
        while !self.stop.load(Ordering::Relaxed) {
            let offset = at * LARGE_BYTES as u64 % OBJECT_BYTES;
            at += (LARGE_SESSIONS * LARGE_DEPTH) as u64;
            let operation = match self.direction {
                Direction::Read => {
                    Operation::Read { object: READ_OBJECT, offset, length: LARGE_BYTES, buffer }
                }
                Direction::Write => {
                    Operation::Write { object: WRITTEN_OBJECT, offset, data: payload.clone() }
                }
            };
            buffer = self.device.execute(&self.bearer, operation).await?.data;
            self.moved.fetch_add(LARGE_BYTES as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}
