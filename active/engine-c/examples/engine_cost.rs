//! Measures the C engine in its sandbox: calls, empty requests and reads against direct ones.
//!
//! `cargo run --release -p sealstone-engine-c --example engine_cost -- [SPIN_US]` prints JSON. Run
//! it under `taskset -c 0` to keep both sides on one core.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_function_abi::{CallDescriptor, CallErrno, RequestBody};
use sealstone_function_ring::{HostMemory, HostRing, RingOptions};
use sealstone_sandbox::{EngineCode, EngineKind, EngineRequest, Zygote, ZygoteOptions};
use serde_json::json;

const FILE_BYTES: usize = 64 << 20;
const CHUNK_BYTES: usize = 4 << 20;
const CALLS: usize = 5000;
/// Of these the fastest counts, since other load of the machine only adds time.
const ROUNDS: usize = 25;

type ExampleResult<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExampleResult<()> {
    let spin_us = std::env::args().nth(1).map_or(Ok(0), |text| text.parse())?;
    let folder = tempfile::tempdir()?;
    let mut file = File::create_new(folder.path().join("data"))?;
    let chunk: Vec<u8> = (0..1u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    (0..FILE_BYTES / chunk.len()).try_for_each(|_| file.write_all(&chunk))?;
    let file = File::open(folder.path().join("data"))?;

    let code = std::fs::read(build(folder.path())?)?;
    let zygote = Zygote::spawn(ZygoteOptions::new(program()?, EngineKind::C))?;
    let options = RingOptions { spin: Duration::from_micros(spin_us), ..RingOptions::default() };
    let memory = Arc::new(HostMemory::create(options)?);
    let mut ring = HostRing::new(Arc::clone(&memory));
    let started = Instant::now();
    let request = EngineRequest {
        code: Some(EngineCode::new("fn.so", &code)?),
        descriptors: memory.descriptors().to_vec(),
        ..EngineRequest::default()
    };
    let engine = zygote.start(&request)?;
    if let Err(error) = run(&mut ring, "", &file) {
        let exit = engine.wait(Some(Duration::from_secs(1)))?;
        return Err(format!("{error}; the engine: {exit:?}").into());
    }
    let first_call = started.elapsed();

    let mut calls = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let start = Instant::now();
        run(&mut ring, "", &file)?;
        calls.push(start.elapsed().as_nanos() as i64);
    }
    calls.sort_unstable();
    let ping = run(&mut ring, "ping", &file)?;
    let (mut direct, mut read, mut stream) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        direct.push(read_directly(&file)?);
        read.push(run(&mut ring, "read", &file)?.0);
        stream.push(run(&mut ring, "stream", &file)?.0);
    }
    let [direct, read, stream] = [direct, read, stream].map(|times| times.into_iter().min().unwrap_or(0));
    let change = |time: i64| 100.0 * (time as f64 / direct as f64 - 1.0);
    let report = json!({
        "spin_us": spin_us,
        "start_and_first_call_us": first_call.as_micros() as u64,
        "empty_call_us": { "p50": calls[CALLS / 2] as f64 / 1e3, "p99": calls[CALLS / 100 * 99] as f64 / 1e3 },
        "empty_request_us": { "p50": ping.0 as f64 / 1e3, "p99": ping.1 as f64 / 1e3 },
        "read_64_mib_ms": {
            "direct_pread": direct as f64 / 1e6,
            "osd_read_4_mib": read as f64 / 1e6,
            "osd_read_change_percent": change(read),
            "stream": stream as f64 / 1e6,
            "stream_change_percent": change(stream),
        },
    });
    writeln!(std::io::stdout(), "{report:#}")?;
    Ok(())
}

/// Returns the engine program, which cargo places above the folder of the examples.
fn program() -> ExampleResult<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("../sealstone-engine-c").canonicalize();
    program.map_err(|_| "run `cargo build --release -p sealstone-engine-c` first".into())
}

fn build(folder: &Path) -> ExampleResult<PathBuf> {
    let (manifest, output) = (Path::new(env!("CARGO_MANIFEST_DIR")), folder.join("engine_cost.so"));
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-I"])
        .arg(manifest.join("include"))
        .arg("-o")
        .arg(&output)
        .arg(manifest.join("examples/engine_cost.c"))
        .status()?;
    if status.success() { Ok(output) } else { Err("the C compiler failed".into()) }
}

/// Runs one call; returns the two numbers of its result.
fn run(ring: &mut HostRing, method: &str, file: &File) -> ExampleResult<(i64, i64)> {
    ring.begin_call(&CallDescriptor { method, result_bytes_max: 1 << 20, ..CallDescriptor::default() })?;
    let mut result_bytes = [0; 16];
    loop {
        let request = ring.next_request(Duration::from_secs(10))?.ok_or("the engine does not answer")?;
        let result = match request.body {
            RequestBody::Return { status: 0 } => break,
            RequestBody::Return { status } => return Err(format!("{method} returned {status}").into()),
            RequestBody::Read { offset, buffer, .. } => {
                let count = ring.fill_heap(buffer, |at, part| rustix::io::pread(file, part, offset + at))?;
                count as i64
            }
            RequestBody::Length { .. } => 0,
            RequestBody::Result { data } => ring.copy_from_heap(data, &mut result_bytes) as i64,
            _ => CallErrno::Unsupported.result(),
        };
        ring.complete(request.cookie, result, 0);
    }
    let number = |at: usize| i64::from_le_bytes(std::array::from_fn(|index| result_bytes[at + index]));
    Ok((number(0), number(8)))
}

/// Reads the file as a program without a sandbox does, with the same work on the bytes.
fn read_directly(file: &File) -> ExampleResult<i64> {
    let (mut buffer, mut sum) = (vec![0; CHUNK_BYTES], 0u64);
    let start = Instant::now();
    let mut offset = 0;
    while offset < FILE_BYTES {
        let count = rustix::io::pread(file, &mut buffer[..], offset as u64)?;
        for word in buffer[..count].as_chunks::<8>().0 {
            sum = (sum ^ u64::from_le_bytes(*word)).wrapping_mul(3);
        }
        offset += count;
    }
    std::hint::black_box(sum);
    Ok(start.elapsed().as_nanos() as i64)
}
