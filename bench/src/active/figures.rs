//! Functions over data: at the client, on devices, and by each way to call the device.

use std::path::Path;
use std::time::Instant;

use bytes::Bytes;

use super::device::MeasuredCall;
use super::rpc::{FileEngine, run_over_socket};
use super::{ActiveStage, FigureTable};
use crate::Outcome;
use crate::process::{own, whole_cpu_s};
use crate::targets::Verdict;
use crate::workload::median;

/// Highest cost of calls through the sandbox for reads and writes of 4 MiB, in percent.
const READ_PERCENT_MAX: f64 = 1.0;
const WRITE_PERCENT_MAX: f64 = 3.0;
/// Smaller size of data: the usual one divided by this.
const SMALLER: u64 = 4;
/// Least speed of two devices, of one.
const TWO_DEVICES_MIN: f64 = 1.9;
/// Highest client CPU of a count on the device, of that at the client.
const COUNT_CPU_MAX: f64 = 0.02;

/// A table, and what it says about aims.
pub(super) type MeasuredTable = Outcome<(FigureTable, Vec<Verdict>)>;

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

/// Returns the median over rounds of one column divided by another.
pub(super) fn ratio(rounds: &[Vec<f64>], above: usize, below: usize) -> f64 {
    median(&mut rounds.iter().map(|round| round[above] / round[below]).collect::<Vec<_>>())
}

/// Returns the least value of a column.
fn least_of(rounds: &[Vec<f64>], column: usize) -> f64 {
    rounds.iter().filter_map(|round| round.get(column).copied()).fold(f64::INFINITY, f64::min)
}

/// AES at the client: get, encrypt, put. AES on the device: one command.
pub(super) fn local_against_active(stage: &ActiveStage) -> MeasuredTable {
    let (device, bytes) = (stage.first()?, stage.settings.bytes);
    let mib = bytes >> 20;
    let mut table = FigureTable::new(
        &format!("AES of {mib} MiB: at the client and on the device, ms"),
        "shows such a breakdown; no value is quoted",
        &["total", "reading", "encrypting", "writing", "command, rest", "times as fast"],
    );
    let (mut local, mut active) = (Vec::new(), Vec::new());
    let (input, output) = (stage.folder.join("fetched"), stage.folder.join("encrypted"));
    for _ in 0..stage.settings.rounds {
        let begin = Instant::now();
        let data = stage.runtime.block_on(device.get(bytes))?;
        let fetched = begin.elapsed();
        std::fs::write(&input, &data)?;
        let done = stage.built.run_locally("aes", bytes, &[&input, &output])?;
        let encrypted = Bytes::from(std::fs::read(&output)?);
        let then = Instant::now();
        stage.runtime.block_on(device.put(&encrypted))?;
        let stored = then.elapsed();
        let (reading, working, writing) =
            (fetched.as_secs_f64() * 1e3, milliseconds(done.working), stored.as_secs_f64() * 1e3);
        // The file between client and program is not part of the comparison.
        let at_client = reading + working + writing;
        local.push(vec![at_client, reading, working, writing, 0.0, 1.0]);
        let run = stage.runtime.block_on(device.run("aes", bytes))?;
        if run.measured.value != done.value {
            return Err("client and device encrypt differently".into());
        }
        let total = run.time.as_secs_f64() * 1e3;
        active.push(vec![
            total,
            milliseconds(run.measured.reading),
            milliseconds(run.measured.working),
            milliseconds(run.measured.writing),
            total - milliseconds(run.measured.total),
            at_client / total,
        ]);
    }
    table.add("at the client", &local);
    table.add("on the device", &active);
    Ok((table, Vec::new()))
}

/// The same amount of data on more and more devices.
pub(super) fn several_devices(stage: &ActiveStage) -> MeasuredTable {
    let counts: Vec<usize> = [1, 2, 4, 8].into_iter().filter(|count| *count <= stage.devices.len()).collect();
    let names: Vec<String> = counts
        .iter()
        .flat_map(|count| [format!("{count} dev., ms"), format!("{count} dev., times")])
        .collect();
    let columns: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut table = FigureTable::new(
        &format!(
            "{} MiB on 1 to {} devices of this machine",
            stage.settings.bytes >> 20,
            stage.devices.len()
        ),
        "scales nearly perfectly to 8 machines; no other value is quoted. Sizes are those of this machine",
        &columns,
    );
    let mut least = f64::INFINITY;
    let methods = ["wordcount", "grep", "aes"];
    let sizes = [stage.settings.bytes / SMALLER, stage.settings.bytes];
    for (method, bytes) in methods.into_iter().flat_map(|method| sizes.map(|bytes| (method, bytes))) {
        let mut expected = None;
        let rounds = stage.rounds(|_| {
            let mut values = Vec::new();
            for &count in &counts {
                let share = bytes / count as u64;
                let begin = Instant::now();
                let runs = stage.devices.iter().take(count).map(|device| device.run(method, share));
                let runs = stage.runtime.block_on(together(runs))?;
                let time = begin.elapsed().as_secs_f64() * 1e3;
                if count == 1 && *expected.get_or_insert(runs[0].value) != runs[0].value {
                    return Err("a function returned another value than before".into());
                }
                let one = values.first().copied().unwrap_or(time);
                values.extend([time, one / time]);
            }
            Ok(values)
        })?;
        // A short run is mostly its command.
        if counts.len() > 1 && bytes == stage.settings.bytes {
            least = least.min(ratio(&rounds, 0, 2));
        }
        table.add(&format!("{method}, {} MiB", bytes >> 20), &rounds);
    }
    let verdict = Verdict {
        aim: format!("two devices {TWO_DEVICES_MIN} times as fast as one"),
        reached: least >= TWO_DEVICES_MIN,
        measured: format!("{least:.2} times at least; all devices share the cores of this machine"),
    };
    Ok((table, if least.is_finite() { vec![verdict] } else { Vec::new() }))
}

/// Runs all at the same time; returns what each function measured.
async fn together(
    runs: impl Iterator<Item = impl Future<Output = Outcome<super::device::FunctionRun>>>,
) -> Outcome<Vec<MeasuredCall>> {
    let mut waiting: Vec<_> = runs.map(Box::pin).collect();
    let mut done: Vec<Option<MeasuredCall>> = vec![None; waiting.len()];
    std::future::poll_fn(|context| {
        for (run, result) in waiting.iter_mut().zip(&mut done) {
            if result.is_none()
                && let std::task::Poll::Ready(run) = run.as_mut().poll(context)
            {
                match run {
                    Ok(run) => *result = Some(run.measured),
                    Err(error) => return std::task::Poll::Ready(Err(error)),
                }
            }
        }
        if done.iter().all(Option::is_some) {
            std::task::Poll::Ready(Ok(()))
        } else {
            std::task::Poll::Pending
        }
    })
    .await?;
    Ok(done.into_iter().flatten().collect())
}

/// Reads and writes of 4 MiB: by system calls, over shared memory, over a socket, on a device.
pub(super) fn direct_against_calls(stage: &ActiveStage) -> MeasuredTable {
    let (device, bytes) = (stage.first()?, stage.settings.bytes);
    let mut table = FigureTable::new(
        &format!("{} reads and writes of 4 MiB, ms, with the work on the bytes", bytes >> 22),
        "16 of 4 MiB: reads +1.9 %, writes +12.9 % through its RPC; SunRPC: no value is quoted",
        &["system calls", "shared memory", "change, %", "socket", "change, %", "on the device"],
    );
    let mut engine = FileEngine::start(stage.programs(), &stage.built, &stage.file)?;
    let target = stage.folder.join("written");
    std::fs::write(&target, &stage.data)?;
    let mut writer = FileEngine::start(stage.programs(), &stage.built, &target)?;
    let mut verdicts = Vec::new();
    // Streams are beside the direct calls that do the same work.
    for (method, direct_method, name, limit) in [
        ("read", "read", "reads", None),
        ("wordcount", "wordcount", "reads, and a count", Some(READ_PERCENT_MAX)),
        ("stream-read", "wordcount", "a stream, and a count", Some(READ_PERCENT_MAX)),
        ("write", "write", "writes", Some(WRITE_PERCENT_MAX)),
        ("stream-write", "write", "writes by a stream", Some(WRITE_PERCENT_MAX)),
    ] {
        let (file, engine): (&Path, _) = match direct_method {
            "write" => (&target, &mut writer),
            _ => (&stage.file, &mut engine),
        };
        let rounds = stage.rounds(|_| {
            let direct = milliseconds(stage.built.run_locally(direct_method, bytes, &[file])?.total);
            let shared = milliseconds(engine.run(method, bytes)?.total);
            let socket = milliseconds(run_over_socket(&stage.built, direct_method, bytes, file)?.total);
            let run = stage.runtime.block_on(device.run(method, bytes))?;
            let change = |time: f64| 100.0 * (time / direct - 1.0);
            let on_device = milliseconds(run.measured.total);
            Ok(vec![direct, shared, change(shared), socket, change(socket), on_device])
        })?;
        let change = 100.0 * (ratio(&rounds, 1, 0) - 1.0);
        // They depend least on other load.
        let least = 100.0 * (least_of(&rounds, 1) / least_of(&rounds, 0) - 1.0);
        verdicts.extend(limit.map(|limit| Verdict {
            aim: format!("{name}, of 4 MiB through shared memory: below +{limit} %"),
            reached: change < limit,
            measured: format!("{change:+.1} %; least times {least:+.1} %"),
        }));
        table.add(name, &rounds);
    }
    Ok((table, verdicts))
}

/// Time of the client and of the engine, for each function.
pub(super) fn client_against_engine(stage: &ActiveStage) -> MeasuredTable {
    let (device, bytes) = (stage.first()?, stage.settings.bytes);
    let mut table = FigureTable::new(
        &format!("{} MiB on one device: time of client and engine, ms", bytes >> 20),
        "compares both; no value is quoted",
        &["client", "device, wall", "engine, CPU", "in the function", "client - device"],
    );
    for method in ["wordcount", "grep", "aes", "read"] {
        let rounds = stage.rounds(|_| {
            let run = stage.runtime.block_on(device.run(method, bytes))?;
            let (client, wall) = (run.time.as_secs_f64() * 1e3, run.reply.header.wall_us as f64 / 1e3);
            let cpu = run.reply.header.cpu_us as f64 / 1e3;
            Ok(vec![client, wall, cpu, milliseconds(run.measured.total), client - wall])
        })?;
        table.add(method, &rounds);
    }
    Ok((table, Vec::new()))
}

/// Counts on the device, and after fetching the data.
pub(super) fn count_against_get(stage: &ActiveStage) -> MeasuredTable {
    let (device, bytes) = (stage.first()?, stage.settings.count_bytes);
    let mut table = FigureTable::new(
        &format!("counting a byte in {} MiB: on the device, and after get", bytes >> 20),
        "no value is quoted; the aim is for 1 GiB",
        &["device, ms", "client CPU, ms", "get+count, ms", "client CPU, ms", "time ratio", "CPU ratio"],
    );
    let file = stage.folder.join("counted");
    let pid = std::process::id();
    let rounds = stage.rounds(|_| {
        let (begin, cpu) = (Instant::now(), own()?.cpu_s);
        let run = stage.runtime.block_on(device.run("wordcount", bytes))?;
        let (time, own_cpu) = (begin.elapsed().as_secs_f64() * 1e3, (own()?.cpu_s - cpu) * 1e3);
        let (begin, cpu) = (Instant::now(), whole_cpu_s(pid)?);
        let data = stage.runtime.block_on(device.get(bytes))?;
        let fetched = begin.elapsed();
        let fetch_cpu = (whole_cpu_s(pid)? - cpu) * 1e3;
        std::fs::write(&file, &data)?;
        let count = stage.built.run_locally("wordcount", bytes, &[&file])?;
        if count.value != run.measured.value {
            return Err("client and device count differently".into());
        }
        let get_time = fetched.as_secs_f64() * 1e3 + milliseconds(count.total);
        let get_cpu = fetch_cpu + milliseconds(count.processor);
        Ok(vec![time, own_cpu, get_time, get_cpu, time / get_time, own_cpu / get_cpu])
    })?;
    table.add("count", &rounds);
    let (slower, cpu) = (ratio(&rounds, 0, 2), ratio(&rounds, 1, 3));
    let verdicts = vec![
        Verdict {
            aim: "count on the device: at most 2 % of the client CPU of get and count".into(),
            reached: cpu <= COUNT_CPU_MAX,
            measured: format!("{:.1} %, {} MiB", 100.0 * cpu, bytes >> 20),
        },
        Verdict {
            aim: "count on the device: no slower than get and count".into(),
            reached: slower <= 1.0,
            measured: format!("{slower:.2} of the time"),
        },
    ];
    Ok((table, verdicts))
}
