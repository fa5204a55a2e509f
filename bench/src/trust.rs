//! Cost of trust: the OBS paper's Tables 1 to 3 on this machine, with those figures of the paper
//! that the design documents quote.
//!
//! Does: measures capability key and credential alone; SET KEY at each level and SET MASTER KEY;
//! metadata operations with each method, at a device and through a metadata server; includes logins
//! from the file of `logins`.
//! Does not: report failures by its exit code.
//! Contract: methods take turns in every round, and a ratio compares the turns of one round.

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealstone_client::{Client, Method, PutOptions, tls::Fingerprint};
use sealstone_crypto::RustCrypto;
use sealstone_initiator::{Bearer, Operation, OsdClient, OsdOptions, SystemEnvironment, TargetUrl, TcpDial};
use sealstone_osd::cdb::{Create, Target};
use sealstone_osd::{AttributeId, Command, ObjectId, SecurityMethod};
use sealstone_seal::{AlgorithmSlots, Credential, Hash, InitialKey, KeyHierarchy, KeySelector};
use serde::Serialize;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::Outcome;
use crate::credential::Issuer;
use crate::daemon::{MdsDaemon, Osd};
use crate::keys;
use crate::latency::CommandLatency;
use crate::machine::{CoreWaker, MachineInfo};
use crate::rotation::BenchUser;
use crate::settings::Trust;
use crate::targets::Verdict;
use crate::workload::median;

/// Threads of the client, as in the real one.
const WORKERS: usize = 2;
const PARTITION: u64 = 1 << 16;
const OBJECT: ObjectId = ObjectId::new(PARTITION, 1 << 16);
/// Computations that are timed together, and the number of such batches.
const BATCH: u32 = 5_000;
const BATCHES: usize = 21;
/// Consecutive operations of one method, at a device and through a metadata server; metadata
/// operations wait for a disk.
const DEVICE_TURN: usize = 40;
const FILE_TURN: usize = 4;
/// Factor by which file operations are rarer than commands.
const FILES_FEWER: usize = 2;
/// File operations that involve a device.
const AT_DEVICES: [&str; 2] = ["create a file of 1 byte", "open a file and read it"];
/// An attribute that any client may set.
const ATTRIBUTE: AttributeId = AttributeId::new(0x1_0000, 1);

/// Measurements of the OBS paper in microseconds, as far as the design documents quote them. They
/// quote no figure for a metadata operation with one method, only that a method adds at most 300
/// us, 5 %.
const PAPER: [(&str, f64); 8] = [
    ("capability key", 37.0),
    ("credential", 45.0),
    ("login", 20_500.0),
    ("logout", 270.0),
    ("SET KEY working", 1_398.0),
    ("SET KEY partition", 1_922.0),
    ("SET KEY root", 2_962.0),
    ("SET MASTER KEY", 28_700.0),
];
const PAPER_METHOD_US: f64 = 300.0;
const PAPER_METHOD_PERCENT: f64 = 5.0;

/// Target values of credentials, methods and logins.
const CREDENTIAL_US: f64 = 3.0;
const METHOD_PERCENT: f64 = 2.0;
const PAPER_LOGIN_US: f64 = 5_000.0;
const MODERN_LOGIN_US: f64 = 2_000.0;
const ROTATION_S: f64 = 10.0;
const ROTATION_PARTITIONS: u64 = 1_000;

const METHODS: [(&str, SecurityMethod, Method); 4] = [
    ("NOSEC", SecurityMethod::NoSec, Method::NoSec),
    ("CAPKEY", SecurityMethod::CapKey, Method::CapKey),
    ("CMDRSP", SecurityMethod::CmdRsp, Method::CmdRsp),
    ("ALLDATA", SecurityMethod::AllData, Method::AllData),
];

/// One line of the first tables.
#[derive(Serialize)]
struct LatencyRow {
    #[serde(flatten)]
    latency: CommandLatency,
    paper_us: Option<f64>,
}

/// A metadata operation with one method.
#[derive(Clone, Debug, Serialize)]
struct MetadataRow {
    operation: &'static str,
    /// `device` or `files`.
    at: &'static str,
    method: &'static str,
    samples: usize,
    median_us: f64,
    /// Difference to NOSEC in the same rounds, in percent and microseconds.
    more_percent: f64,
    more_us: f64,
}

#[derive(Serialize)]
struct TrustResults {
    machine: MachineInfo,
    rows: Vec<LatencyRow>,
    metadata: Vec<MetadataRow>,
    verdicts: Vec<Verdict>,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Trust) -> Outcome {
    if !(100..=1_000_000).contains(&arguments.samples) {
        return Err("--samples is not between 100 and 1000000".into());
    }
    let binary = arguments.common.binary()?;
    let mut machine = MachineInfo::look();
    let folder = arguments.stage.scratch()?;
    let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let awake = if arguments.stage.let_sleep { None } else { CoreWaker::new() };
    machine.kept_awake = awake.is_some();
    let mut latencies = computations()?;
    let memory = tempfile::tempdir_in(&arguments.memory.memory_folder)?;
    for (place, name) in [(memory.path(), "in memory"), (folder.path(), "on disk")] {
        latencies.extend(keys::measure(&runtime, &binary, &place.join("keys"), name, arguments.samples)?);
    }
    let mut metadata = at_device(&runtime, &binary, &folder.path().join("device"), arguments.samples)?;
    metadata.extend(files(&runtime, &binary, folder.path(), arguments.samples / FILES_FEWER)?);
    drop(awake);
    machine.look_again();
    let rows: Vec<LatencyRow> =
        latencies.into_iter().map(|latency| LatencyRow { paper_us: paper(&latency.name), latency }).collect();
    let verdicts = verdicts(&rows, &metadata);
    let findings = TrustResults { machine, rows, metadata, verdicts };
    arguments.common.save(&findings)?;
    print(&findings, arguments.logins_file().as_deref());
    Ok(())
}

fn paper(name: &str) -> Option<f64> {
    PAPER.iter().find(|(row, _)| name.starts_with(row)).map(|(_, us)| *us)
}

/// Measures capability key and credential in isolation.
fn computations() -> Outcome<Vec<CommandLatency>> {
    let initial = InitialKey::new(&[7; 32]).ok_or("a key of 32 bytes")?;
    let mut keys = KeyHierarchy::<RustCrypto>::factory(Hash::Sha256, &initial, [1; 20]);
    keys.add_partition(PARTITION).map_err(|error| error.to_string())?;
    let issuer = Issuer::from_keys(keys);
    let capability = issuer.capability(OBJECT, SecurityMethod::CmdRsp)?;
    let bytes = capability.encode();
    let slots = AlgorithmSlots::DEFAULT;
    let algorithm = slots.get(capability.icv_algorithm).ok_or("no algorithm in the preferred slot")?;
    let working = issuer
        .keys()
        .signing_key(KeySelector::Working { partition: PARTITION, version: 0 })
        .ok_or("no working key")?;
    let system_id = *issuer.keys().system_id();
    let each = |name: &str, note: &str, work: &dyn Fn()| {
        let times = (0..BATCHES)
            .map(|_| {
                let begin = Instant::now();
                (0..BATCH).for_each(|_| work());
                begin.elapsed() / BATCH
            })
            .collect();
        let mut latency = CommandLatency::of(name, note, times);
        // A time is the mean of a batch.
        latency.samples = BATCHES * BATCH as usize;
        latency
    };
    let issue = |sealed: bool| {
        let issue = if sealed { Credential::issue_sealed } else { Credential::issue };
        black_box(issue(issuer.keys(), &slots, black_box(&capability)).is_ok());
    };
    Ok(vec![
        each("capability key", "HMAC over capability and system id", &|| {
            black_box(working.capability_key(algorithm, black_box(&bytes), &system_id));
        }),
        each("credential, open", "encoded, with its key", &|| issue(false)),
        each("credential, sealed", "and the capability enciphered", &|| issue(true)),
    ])
}

/// Times of one operation, by round and method.
struct OperationTimes {
    operation: &'static str,
    at: &'static str,
    rounds: Vec<[Vec<Duration>; METHODS.len()]>,
}

impl OperationTimes {
    const fn new(at: &'static str, operation: &'static str) -> Self {
        Self { operation, at, rounds: Vec::new() }
    }

    fn metadata(&self) -> Vec<MetadataRow> {
        let middle = |times: &[Duration]| {
            median(&mut times.iter().map(|time| time.as_secs_f64() * 1e6).collect::<Vec<_>>())
        };
        METHODS
            .iter()
            .enumerate()
            .map(|(at, (method, ..))| {
                let of_round =
                    |round: &[Vec<Duration>; METHODS.len()]| (middle(&round[at]), middle(&round[0]));
                let (mut percent, mut more) = (Vec::new(), Vec::new());
                for (own, nosec) in self.rounds.iter().map(of_round) {
                    percent.push(100.0 * (own / nosec - 1.0));
                    more.push(own - nosec);
                }
                let all: Vec<Duration> = self.rounds.iter().flat_map(|round| round[at].clone()).collect();
                MetadataRow {
                    operation: self.operation,
                    at: self.at,
                    method,
                    samples: all.len(),
                    median_us: middle(&all),
                    more_percent: median(&mut percent),
                    more_us: median(&mut more),
                }
            })
            .collect()
    }
}

/// Returns the order of methods, which differs in each round.
fn order(round: usize) -> impl Iterator<Item = usize> {
    (0..METHODS.len()).map(move |place| (place + round) % METHODS.len())
}

fn at_device(runtime: &Runtime, binary: &Path, data: &Path, samples: usize) -> Outcome<Vec<MetadataRow>> {
    let osd = Osd::new(binary, data)?;
    let issuer = Issuer::of(&osd.data, PARTITION)?;
    let url: TargetUrl = osd.url.parse()?;
    let environment = Arc::new(SystemEnvironment);
    let options = OsdOptions::new(&*environment);
    let device = OsdClient::new(Arc::new(TcpDial::new(&url)), &url, environment, options);
    let anything = issuer.anything()?;
    runtime.block_on(device.create_partition(&anything, PARTITION))?;
    runtime.block_on(device.create(&anything, OBJECT))?;
    let ids: Vec<_> = [0x1, 0x2, 0x81, 0x82].map(|number| AttributeId::new(1, number)).to_vec();
    let names = ["GET ATTRIBUTES, four", "SET ATTRIBUTES, one", "CREATE", "REMOVE"];
    let mut turns = names.map(|name| OperationTimes::new("device", name));
    let rounds = samples.div_ceil(DEVICE_TURN).max(3);
    let mut next = 1 << 20;
    for round in 0..=rounds {
        let mut of_round = names.map(|_| [const { Vec::new() }; METHODS.len()]);
        for at in order(round) {
            let (_, method, _) = METHODS[at];
            let bearer = |command: &Command| issuer.command(command, method);
            let here = Target { object: OBJECT };
            let (get, set) = (bearer(&Command::GetAttributes(here))?, bearer(&Command::SetAttributes(here))?);
            for number in 0..DEVICE_TURN {
                let begin = Instant::now();
                runtime.block_on(device.attributes(&get, OBJECT, ids.clone()))?;
                of_round[0][at].push(begin.elapsed());
                let value = vec![(ATTRIBUTE, Bytes::copy_from_slice(&(number as u64).to_be_bytes()))];
                let begin = Instant::now();
                runtime.block_on(device.set_attributes(&set, OBJECT, value))?;
                of_round[1][at].push(begin.elapsed());
            }
            let objects: Vec<ObjectId> =
                (next..next + DEVICE_TURN as u64).map(|number| ObjectId::new(PARTITION, number)).collect();
            next += DEVICE_TURN as u64;
            let bearers = |command: &dyn Fn(ObjectId) -> Command| -> Outcome<Vec<Bearer>> {
                objects.iter().map(|object| bearer(&command(*object))).collect()
            };
            let create = bearers(&|object| Command::Create(Create { object, count: 1 }))?;
            let remove = bearers(&|object| Command::Remove(Target { object }))?;
            for (object, bearer) in objects.iter().zip(&create) {
                let begin = Instant::now();
                runtime.block_on(device.create(bearer, *object))?;
                of_round[2][at].push(begin.elapsed());
            }
            for (object, bearer) in objects.iter().zip(&remove) {
                let command = Command::Remove(Target { object: *object });
                let operation = Operation::Other { command, data_out: Bytes::new() };
                let begin = Instant::now();
                runtime.block_on(device.execute(bearer, operation))?;
                of_round[3][at].push(begin.elapsed());
            }
        }
        // The first round is a warm-up.
        if round > 0 {
            for (turns, of_round) in turns.iter_mut().zip(of_round) {
                turns.rounds.push(of_round);
            }
        }
    }
    drop(device);
    osd.stop()?;
    Ok(turns.iter().flat_map(OperationTimes::metadata).collect())
}

/// Measures file operations with the real client: each uses the metadata server, and some a device.
fn files(runtime: &Runtime, binary: &Path, folder: &Path, samples: usize) -> Outcome<Vec<MetadataRow>> {
    let mds = MdsDaemon::new(binary, &folder.join("mds"), &["--method-floor", "nosec"])?;
    let osd = Osd::new(binary, &folder.join("osd"))?;
    let user = BenchUser::new(binary, &folder.join("session"));
    let secret = mds.data.join("admin-secret");
    user.login(&mds)?;
    let key = osd.data.join("initial.key");
    let key = key.to_str().ok_or("a path that is not UTF-8")?;
    user.run(&["mds", "add-osd", &osd.url, "--key", key, "--wait", "60"])?;
    let pin: Fingerprint = mds.field("pin")?.parse().map_err(|_| "the daemon's pin does not parse")?;
    let password = fs::read_to_string(secret)?.trim_end().as_bytes().to_vec();
    let client = runtime.block_on(Client::connect(mds.field("address")?, pin, "admin", &password))?;
    let names = [AT_DEVICES[0], AT_DEVICES[1], "stat", "remove a file"];
    let mut turns = names.map(|name| OperationTimes::new("files", name));
    let rounds = samples.div_ceil(FILE_TURN).max(3);
    for round in 0..=rounds {
        let mut of_round = names.map(|_| [const { Vec::new() }; METHODS.len()]);
        for at in order(round) {
            let (_, _, method) = METHODS[at];
            let paths: Vec<String> =
                (0..FILE_TURN).map(|number| format!("/f-{round}-{at}-{number}")).collect();
            for path in &paths {
                let options = PutOptions { size: Some(1), method, ..PutOptions::default() };
                let begin = Instant::now();
                runtime.block_on(client.put(path, &b"x"[..], options))?;
                of_round[0][at].push(begin.elapsed());
            }
            for path in &paths {
                let begin = Instant::now();
                let read = runtime.block_on(async { client.open(path, method).await?.read(0..1).await })?;
                of_round[1][at].push(begin.elapsed());
                if read != b"x" {
                    return Err(format!("{path} holds something else").into());
                }
            }
            for path in &paths {
                let begin = Instant::now();
                runtime.block_on(client.stat(path))?;
                of_round[2][at].push(begin.elapsed());
            }
            for path in &paths {
                let begin = Instant::now();
                runtime.block_on(client.remove(path, false))?;
                of_round[3][at].push(begin.elapsed());
            }
        }
        if round > 0 {
            for (turns, of_round) in turns.iter_mut().zip(of_round) {
                turns.rounds.push(of_round);
            }
        }
    }
    runtime.block_on(client.logout())?;
    drop(client);
    osd.stop()?;
    mds.stop()?;
    Ok(turns.iter().flat_map(OperationTimes::metadata).collect())
}

fn verdicts(rows: &[LatencyRow], metadata: &[MetadataRow]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for row in rows.iter().map(|row| &row.latency).filter(|row| row.name.starts_with("credential")) {
        verdicts.push(Verdict {
            aim: format!("{}: generated in under 3 us", row.name),
            reached: row.median_us < CREDENTIAL_US,
            measured: format!("{:.2} us", row.median_us),
        });
    }
    for (method, ..) in &METHODS[1..] {
        // A stat and a removal wait for no device: their differences are noise.
        let of_files: Vec<&MetadataRow> = metadata
            .iter()
            .filter(|row| row.at == "files" && row.method == *method && AT_DEVICES.contains(&row.operation))
            .collect();
        let Some(worst) = of_files.iter().max_by(|a, b| a.more_percent.total_cmp(&b.more_percent)) else {
            continue;
        };
        verdicts.push(Verdict {
            aim: format!("metadata operations on files, {method}: under 2 % beyond NOSEC"),
            reached: worst.more_percent < METHOD_PERCENT,
            measured: format!(
                "at most {:+.1} % ({:+.0} us, {})",
                worst.more_percent, worst.more_us, worst.operation
            ),
        });
    }
    verdicts
}

fn print(findings: &TrustResults, logins: Option<&Path>) {
    println!("{}", findings.machine);
    println!("one client, loopback, one at a time; the paper's figures (2007) are of machines of its own\n");
    println!("{:44} {:>11} {:>11} {:>11}  {:>9}", "", "median, us", "p99, us", "least, us", "paper, us");
    let line = |name: &str, times: [f64; 3], paper: Option<f64>| {
        let paper = paper.map_or("-".to_owned(), |us| us.to_string());
        println!("{name:44} {:>11.2} {:>11.2} {:>11.2}  {paper:>9}", times[0], times[1], times[2]);
    };
    for LatencyRow { latency, paper_us } in &findings.rows {
        line(&latency.name, [latency.median_us, latency.p99_us, latency.least_us], *paper_us);
    }
    match logins.and_then(|file| fs::read_to_string(file).ok()).map(|text| login_rows(&text)) {
        Some(Ok(rows)) => {
            for (name, times) in rows {
                let kind = if name.contains("logout") { "logout" } else { "login" };
                line(&name, times, paper(kind));
            }
        }
        Some(Err(error)) => println!("logins: {error}"),
        None => {
            println!("login and logout: not measured in this run; `sealstone-bench logins --json FILE` does")
        }
    }
    println!(
        "\nmetadata operations by method; the paper: at most {PAPER_METHOD_US:.0} us, {PAPER_METHOD_PERCENT:.0} % more than without\n"
    );
    println!(
        "{:8} {:26} {:8} {:>11} {:>11} {:>11}",
        "at", "operation", "method", "median, us", "more, us", "more, %"
    );
    for row in &findings.metadata {
        println!(
            "{:8} {:26} {:8} {:>11.1} {:>+11.1} {:>+11.1}",
            row.at, row.operation, row.method, row.median_us, row.more_us, row.more_percent
        );
    }
    println!();
    for verdict in &findings.verdicts {
        println!("{}", verdict.line(66));
    }
}

/// Returns name, median, p99 and minimum of each row in the file of `logins`, in microseconds.
fn login_rows(text: &str) -> Outcome<Vec<(String, [f64; 3])>> {
    let found: Value = serde_json::from_str(text)?;
    let rows = found["rows"].as_array().ok_or("no rows")?;
    rows.iter()
        .map(|row| {
            let number = |key: &str| row[key].as_f64().ok_or_else(|| format!("a row without {key}"));
            let name = row["name"].as_str().ok_or("a row without a name")?;
            Ok((name.to_owned(), [number("median_us")?, number("p99_us")?, number("least_us")?]))
        })
        .collect()
}

/// Returns the verdicts of `logins`, from its file.
pub(crate) fn login_verdicts(text: &str) -> Outcome<Vec<Verdict>> {
    let found: Value = serde_json::from_str(text)?;
    let rows = login_rows(text)?;
    let paper = rows.iter().find(|(name, _)| name == "paper login, group 2, aggressive");
    let paper = paper.ok_or("no paper login")?.1[0];
    let modern = found["modern_beside_hashing_us"].as_f64().ok_or("no modern login")?;
    let verdict = |aim: &str, measured: f64, most: f64| Verdict {
        aim: aim.to_owned(),
        reached: measured < most,
        measured: format!("{:.2} ms", measured / 1000.0),
    };
    Ok(vec![
        verdict("the paper's login in under 5 ms", paper, PAPER_LOGIN_US),
        verdict("the modern login in under 2 ms beside its hashing", modern, MODERN_LOGIN_US),
    ])
}

/// Returns the verdict of `rotation`, from its file.
pub(crate) fn rotation_verdicts(text: &str) -> Outcome<Vec<Verdict>> {
    let found: Value = serde_json::from_str(text)?;
    let number = |key: &str| found[key].as_u64().ok_or_else(|| format!("no {key}"));
    let (partitions, operations, failed) = (number("partitions")?, number("operations")?, number("failed")?);
    let seconds = found["rotation_s"].as_f64().ok_or("no rotation")?;
    Ok(vec![Verdict {
        aim: "working keys of 1,000 partitions in under 10 s, no request failed".to_owned(),
        reached: partitions >= ROTATION_PARTITIONS && seconds < ROTATION_S && operations > 0 && failed == 0,
        measured: format!("{partitions} in {seconds:.2} s; {failed} of {operations} requests failed"),
    }])
}

/// Returns the verdicts of this part.
pub(crate) fn own_verdicts(text: &str) -> Outcome<Vec<Verdict>> {
    let found: Value = serde_json::from_str(text)?;
    let verdicts = found["verdicts"].as_array().ok_or("no verdicts")?;
    let word = |verdict: &Value, key: &str| verdict[key].as_str().unwrap_or_default().to_owned();
    Ok(verdicts
        .iter()
        .map(|verdict| Verdict {
            aim: word(verdict, "aim"),
            reached: verdict["reached"].as_bool().unwrap_or(false),
            measured: word(verdict, "measured"),
        })
        .collect())
}

impl Trust {
    /// Returns the file of `logins`: the given one, or beside this part's own.
    fn logins_file(&self) -> Option<PathBuf> {
        let beside = || Some(self.common.json.as_ref()?.with_file_name(crate::aims::LOGINS));
        self.logins.clone().or_else(beside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overheads_compare_the_turns_of_one_round() {
        let us = |time: u64| vec![Duration::from_micros(time); 3];
        let mut turns = OperationTimes::new("device", "x");
        // A machine that is twice as slow in the second round changes no ratio.
        turns.rounds.push([us(100), us(101), us(110), us(150)]);
        turns.rounds.push([us(200), us(202), us(220), us(300)]);
        let percent: Vec<f64> =
            turns.metadata().iter().map(|row| (row.more_percent * 10.0).round() / 10.0).collect();
        assert_eq!(percent, [0.0, 1.0, 10.0, 50.0]);
    }

    #[test]
    fn results_of_other_parts_are_compared() {
        let rotation = |seconds: f64, failed: u64| {
            let text =
                format!(r#"{{"partitions":1001,"rotation_s":{seconds},"operations":50,"failed":{failed}}}"#);
            rotation_verdicts(&text).unwrap()[0].reached
        };
        assert!(rotation(9.9, 0) && !rotation(10.0, 0) && !rotation(1.0, 1));
        let row =
            |name: &str, us: f64| format!(r#"{{"name":"{name}","median_us":{us},"p99_us":1,"least_us":1}}"#);
        let logins = format!(
            r#"{{"rows":[{}],"modern_beside_hashing_us":2500.0}}"#,
            row("paper login, group 2, aggressive", 1500.0)
        );
        let reached: Vec<bool> =
            login_verdicts(&logins).unwrap().iter().map(|verdict| verdict.reached).collect();
        assert_eq!(reached, [true, false]);
        assert!(
            login_verdicts("{}").is_err() && rotation_verdicts("{}").is_err() && own_verdicts("{}").is_err()
        );
    }

    #[test]
    fn each_row_has_its_paper_figure() {
        assert_eq!(paper("SET KEY working, on disk"), Some(1_398.0));
        assert_eq!(paper("SET MASTER KEY X25519, in memory"), Some(28_700.0));
        assert_eq!((paper("login"), paper("logout")), (Some(20_500.0), Some(270.0)));
        assert_eq!(paper("GET ATTRIBUTES"), None);
    }
}
