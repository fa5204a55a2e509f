//! Cost of each defence against a downgraded security method: the device's floor, the ESM paper's
//! cipher, sealed capabilities. Includes the paper's Figures 2 to 4: write, rewrite and read.
//!
//! Does: runs one device for each defence, moves data with CAPKEY and CMDRSP, and times the steps
//! of one CDB.
//! Does not: judge.
//! Contract: devices take turns, so that other load affects all of them alike.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealstone_crypto::{RustCrypto, SystemRandom};
use sealstone_initiator::{
    Bearer, Operation, OsdClient, OsdError, OsdOptions, SystemEnvironment, TargetUrl, TcpDial,
};
use sealstone_osd::{ObjectId, SecurityMethod};
use sealstone_seal::paper::mceliece::{Parameters, PrivateKey};
use sealstone_seal::{AlgorithmSlots, Credential, Hash, InitialKey, KeyHierarchy};
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::Outcome;
use crate::credential::Issuer;
use crate::daemon::Osd;
use crate::machine::CoreWaker;
use crate::process::usage;
use crate::settings::Run;
use crate::workload::median;

const PARTITION: u64 = 1 << 16;
const OBJECT: ObjectId = ObjectId::new(PARTITION, 1 << 16);
const OBJECT_BYTES: u64 = 16 << 20;
const FILL_BYTES: usize = 1 << 20;
const SIZES: [usize; 2] = [4 << 10, 64 << 10];
/// Commands in flight.
const DEPTH: u64 = 4;
/// Threads of the client.
const WORKERS: usize = 2;
/// CDBs for which one step is timed.
const STEPS: u32 = 20_000;

struct TimedDefence {
    name: &'static str,
    flags: &'static [&'static str],
    conceal: bool,
    sealed: bool,
}

const DEFENCES: [TimedDefence; 4] = [
    TimedDefence { name: "floor alone", flags: &[], conceal: false, sealed: false },
    TimedDefence { name: "cipher h5s", flags: &["--method-cipher=h5s"], conceal: true, sealed: false },
    TimedDefence { name: "cipher h7", flags: &["--method-cipher=h7"], conceal: true, sealed: false },
    TimedDefence { name: "sealed capability", flags: &["--sealed-only"], conceal: false, sealed: true },
];

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum DataDirection {
    Write,
    /// As in the paper's benchmark: read a piece, write it back.
    Rewrite,
    Read,
}

#[derive(Debug, Serialize)]
struct DefenceRow {
    work: DataDirection,
    bytes: usize,
    method: SecurityMethodName,
    defence: &'static str,
    mib_per_s: f64,
    /// Relative to the floor alone, in the same run, in percent.
    of_floor: f64,
    device_cpu_us: f64,
}

type SecurityMethodName = &'static str;

const METHODS: [(SecurityMethodName, SecurityMethod); 2] =
    [("CAPKEY", SecurityMethod::CapKey), ("CMDRSP", SecurityMethod::CmdRsp)];

#[derive(Debug, Serialize)]
struct StepTime {
    step: String,
    nanoseconds: f64,
}

#[derive(Serialize)]
struct DefenceResults {
    rows: Vec<DefenceRow>,
    steps: Vec<StepTime>,
}

/// One device with its client and a credential for each method.
struct DefenceStation {
    osd: Osd,
    device: OsdClient,
    bearers: Vec<Bearer>,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Run) -> Outcome {
    let settings = arguments.settings()?;
    let folder = arguments.stage.scratch()?;
    let _awake = if arguments.stage.let_sleep { None } else { CoreWaker::new() };
    let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let mut stations = Vec::new();
    for (at, defence) in DEFENCES.iter().enumerate() {
        stations.push(DefenceStation::new(
            &settings.binary,
            &folder.path().join(at.to_string()),
            defence,
            &runtime,
        )?);
    }
    let mut rows = Vec::new();
    for work in [DataDirection::Write, DataDirection::Rewrite, DataDirection::Read] {
        for bytes in SIZES {
            for (method, (name, _)) in METHODS.iter().enumerate() {
                // Rate, its ratio to the first one of the same round, CPU.
                let mut found = vec![[const { Vec::new() }; 3]; stations.len()];
                for round in 0..settings.runs * settings.turns() {
                    let mut turns = vec![(0.0, 0.0); stations.len()];
                    for place in 0..stations.len() {
                        let at = (place + round) % stations.len();
                        turns[at] = stations[at].turn(work, bytes, method, settings.turn(), &runtime)?;
                    }
                    for (found, (rate, cpu_us)) in found.iter_mut().zip(&turns) {
                        found[0].push(*rate);
                        found[1].push(100.0 * rate / turns[0].0);
                        found[2].push(*cpu_us);
                    }
                }
                for (defence, mut found) in DEFENCES.iter().zip(found) {
                    let [mib_per_s, of_floor, device_cpu_us] = found.each_mut().map(|values| median(values));
                    rows.push(DefenceRow {
                        work,
                        bytes,
                        method: name,
                        defence: defence.name,
                        mib_per_s,
                        of_floor,
                        device_cpu_us,
                    });
                }
                eprintln!("{work:?} {} KiB {name}: done", bytes >> 10);
            }
        }
    }
    for DefenceStation { osd, device, .. } in stations {
        drop(device);
        osd.stop()?;
    }
    let findings = DefenceResults { rows, steps: steps()? };
    arguments.common.save(&findings)?;
    print(&findings);
    Ok(())
}

fn print(findings: &DefenceResults) {
    println!("{DEPTH} commands under way; medians over rounds, each device in turn\n");
    println!(
        "{:8} {:>7} {:7} {:18} {:>9} {:>10} {:>14}",
        "work", "size", "method", "defence", "MiB/s", "of floor", "device CPU us"
    );
    for row in &findings.rows {
        println!(
            "{:8} {:>3} KiB {:7} {:18} {:>9.0} {:>8.1} % {:>14.1}",
            format!("{:?}", row.work).to_lowercase(),
            row.bytes >> 10,
            row.method,
            row.defence,
            row.mib_per_s,
            row.of_floor,
            row.device_cpu_us
        );
    }
    println!("\nsteps for one CDB, nanoseconds");
    for step in &findings.steps {
        println!("{:44} {:>8.0}", step.step, step.nanoseconds);
    }
}

/// Measures the cost of one CDB at each end, in isolation.
fn steps() -> Outcome<Vec<StepTime>> {
    let mut steps = Vec::new();
    let mut time = |step: String, mut work: Box<dyn FnMut()>| {
        let mut rounds: Vec<f64> = (0..9)
            .map(|_| {
                let begin = Instant::now();
                (0..STEPS).for_each(|_| work());
                begin.elapsed().as_secs_f64() * 1e9 / f64::from(STEPS)
            })
            .collect();
        steps.push(StepTime { step, nanoseconds: median(&mut rounds) });
    };
    for parameters in Parameters::ALL {
        let key = PrivateKey::generate(parameters, &mut SystemRandom);
        let public = key.public().clone();
        let mut cdb = [0; 236];
        cdb[80] = 2;
        let mut concealed = cdb;
        public.conceal(&mut concealed, &mut SystemRandom)?;
        let mut counter = 0_u64;
        let mut chance = move |into: &mut [u8]| {
            counter = counter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            into.copy_from_slice(&counter.to_be_bytes()[..into.len()]);
        };
        time(
            format!("conceal, {}", parameters.name()),
            Box::new(move || {
                let mut copy = black_box(cdb);
                let done = public.conceal(&mut copy, &mut chance);
                black_box((done.is_ok(), copy));
            }),
        );
        time(
            format!("reveal, {}", parameters.name()),
            Box::new(move || {
                let mut copy = black_box(concealed);
                let done = key.reveal(&mut copy);
                black_box((done.is_ok(), copy));
            }),
        );
    }
    let initial = InitialKey::new(&[7; 32]).ok_or("a key of 32 bytes")?;
    let mut keys = KeyHierarchy::<RustCrypto>::factory(Hash::Sha256, &initial, [1; 20]);
    keys.add_partition(PARTITION).map_err(|error| error.to_string())?;
    let issuer = Issuer::from_keys(keys);
    let capability = issuer.capability(OBJECT, SecurityMethod::CmdRsp)?;
    let keys = Arc::new(issuer);
    for (name, sealed) in [("credential, open", false), ("credential, sealed", true)] {
        let keys = keys.clone();
        time(
            name.to_owned(),
            Box::new(move || {
                let issue = if sealed { Credential::issue_sealed } else { Credential::issue };
                black_box(issue(keys.keys(), &AlgorithmSlots::DEFAULT, black_box(&capability)).is_ok());
            }),
        );
    }
    Ok(steps)
}

impl DefenceStation {
    fn new(binary: &Path, data: &Path, defence: &TimedDefence, runtime: &Runtime) -> Outcome<Self> {
        // Filled by a device without the defence: the fill uses NOSEC.
        let osd = Osd::new(binary, data)?;
        let issuer = Issuer::of(&osd.data, PARTITION)?;
        let anything = issuer.anything()?;
        let mut payload = vec![0; FILL_BYTES];
        getrandom::fill(&mut payload).map_err(|error| error.to_string())?;
        let payload = Bytes::from(payload);
        let device = connect(&osd, false)?;
        runtime.block_on(async {
            device.create_partition(&anything, PARTITION).await?;
            device.create(&anything, OBJECT).await?;
            for offset in (0..OBJECT_BYTES).step_by(FILL_BYTES) {
                device.write(&anything, OBJECT, offset, payload.clone()).await?;
            }
            device.flush_osd(&anything).await?;
            device.close().await;
            Outcome::Ok(())
        })?;
        drop(device);
        osd.stop()?;
        let osd = Osd::start_with(binary, data, defence.flags)?;
        let device = connect(&osd, defence.conceal)?;
        let mut bearers = Vec::new();
        for (_, method) in METHODS {
            bearers.push(issuer.bearer(OBJECT, method, defence.sealed)?);
        }
        Ok(Self { osd, device, bearers })
    }

    /// Returns MiB moved per second, and CPU microseconds of the device per piece.
    fn turn(
        &self,
        work: DataDirection,
        bytes: usize,
        method: usize,
        time: Duration,
        runtime: &Runtime,
    ) -> Outcome<(f64, f64)> {
        let bearer = self.bearers.get(method).ok_or("no credential")?;
        let (begin, cpu_s) = (Instant::now(), usage(self.osd.pid())?.cpu_s);
        let pieces = runtime.block_on(async {
            let mut lanes = JoinSet::new();
            for number in 0..DEPTH {
                let lane =
                    TransferLoop { device: self.device.clone(), bearer: bearer.clone(), work, bytes, number };
                lanes.spawn(lane.run(begin + time));
            }
            let mut pieces = 0;
            while let Some(done) = lanes.join_next().await {
                pieces += done??;
            }
            Outcome::Ok(pieces)
        })?;
        let elapsed_s = begin.elapsed().as_secs_f64();
        let cpu_us = (usage(self.osd.pid())?.cpu_s - cpu_s) * 1e6;
        let pieces = pieces.max(1) as f64;
        Ok((pieces * bytes as f64 / f64::from(1 << 20) / elapsed_s, cpu_us / pieces))
    }
}

fn connect(osd: &Osd, conceal_method: bool) -> Outcome<OsdClient> {
    let url: TargetUrl = osd.url.parse()?;
    let environment = Arc::new(SystemEnvironment);
    let options = OsdOptions { conceal_method, ..OsdOptions::new(&*environment) };
    Ok(OsdClient::new(Arc::new(TcpDial::new(&url)), &url, environment, options))
}

/// Moves one piece at a time, in order.
struct TransferLoop {
    device: OsdClient,
    bearer: Bearer,
    work: DataDirection,
    bytes: usize,
    number: u64,
}

impl TransferLoop {
    async fn run(self, until: Instant) -> Result<u64, OsdError> {
        let mut payload = Bytes::from(vec![0xA5; self.bytes]);
        let (mut buffer, mut at, mut pieces) = (Vec::new(), self.number, 0);
        while Instant::now() < until {
            let offset = at * self.bytes as u64 % OBJECT_BYTES;
            at += DEPTH;
            if matches!(self.work, DataDirection::Read | DataDirection::Rewrite) {
                let read = Operation::Read { object: OBJECT, offset, length: self.bytes, buffer };
                buffer = self.device.execute(&self.bearer, read).await?.data;
            }
            if matches!(self.work, DataDirection::Rewrite) {
                payload = Bytes::from(core::mem::take(&mut buffer));
            }
            if matches!(self.work, DataDirection::Write | DataDirection::Rewrite) {
                let write = Operation::Write { object: OBJECT, offset, data: payload.clone() };
                self.device.execute(&self.bearer, write).await?;
            }
            pieces += 1;
        }
        Ok(pieces)
    }
}
