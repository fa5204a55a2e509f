//! Measures a function in a confined engine: start, empty calls, and bytes of processor time.
//!
//! `engine_cost c|wasm PROGRAM MODULE ARGUMENTS [MIB]` prints one JSON object. Arguments are
//! separated by commas. The same program measures both engines, so the figures compare.
#![allow(clippy::print_stdout, reason = "the output of this program")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_function_abi::{CallDescriptor, GuestObject, ObjectKind, ObjectRights, RequestBody};
use sealstone_function_ring::{HostMemory, HostRing, RingOptions};
use sealstone_sandbox::{EngineCode, EngineKind, EngineLimits, EngineRequest, Zygote, ZygoteOptions};

/// Number of starts, of empty calls and of runs over the data.
const STARTS: usize = 15;
const CALLS: usize = 2000;
const RUNS: usize = 7;
/// Words of the text.
const WORDS: [&str; 8] = ["status", "200", "timeout", "GET", "/index.html", "a", "the", "request"];

type ExampleResult<T> = Result<T, Box<dyn Error>>;

/// A text of lines with 4 to 15 words, the same in each run.
fn text(bytes: usize) -> Vec<u8> {
    let (mut text, mut state) = (Vec::with_capacity(bytes + 256), 7u64);
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        for word in 0..4 + (state >> 60) % 12 {
            text.extend_from_slice(WORDS[(state >> (3 * word)) as usize % WORDS.len()].as_bytes());
            text.push(b' ');
        }
        text.push(b'\n');
    }
    text.truncate(bytes);
    text
}

/// Runs one call over `data`; returns its status.
fn run(ring: &mut HostRing, arguments: &[u8], data: &[u8]) -> ExampleResult<i64> {
    let rights = ObjectRights::from_bits(0xFF);
    let objects = [GuestObject::new(0x10000, 0x10000, ObjectKind::User, rights, data.len() as u64)];
    let call = CallDescriptor {
        arguments,
        objects: &objects,
        result_bytes_max: 1 << 30,
        ..CallDescriptor::default()
    };
    ring.begin_call(&call)?;
    loop {
        let request = ring.next_request(Duration::from_secs(60))?.ok_or("the engine does not answer")?;
        let (result, value) = match request.body {
            RequestBody::Return { status } => return Ok(status),
            RequestBody::Read { offset, buffer, .. } => {
                let rest = data.get(offset as usize..).unwrap_or_default();
                (ring.copy_to_heap(buffer, &rest[..rest.len().min(buffer.length() as usize)]) as i64, 0)
            }
            RequestBody::Length { .. } => (0, data.len() as u64),
            RequestBody::Result { data } => (i64::from(data.length()), 0),
            _ => (0, 0),
        };
        ring.complete(request.cookie, result, value);
    }
}

/// Returns the middle one of some durations, in microseconds.
fn median(mut durations: Vec<Duration>) -> u128 {
    durations.sort_unstable();
    durations[durations.len() / 2].as_micros()
}

fn main() -> ExampleResult<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, program, module, options, rest @ ..] = &arguments[..] else {
        return Err("usage: engine_cost c|wasm PROGRAM MODULE ARGUMENTS [MIB]".into());
    };
    let (kind, name) = if kind == "c" { (EngineKind::C, "fn.so") } else { (EngineKind::Wasm, "fn.wasm") };
    let options: Vec<u8> = options
        .split(',')
        .filter(|one| !one.is_empty())
        .flat_map(|one| [one, "\0"].concat().into_bytes())
        .collect();
    let mebibytes: usize = rest.first().map_or(Ok(64), |text| text.parse())?;
    let data = text(mebibytes << 20);
    let code = EngineCode::new(name, &std::fs::read(module)?)?;
    let zygote = Zygote::spawn(ZygoteOptions::new(PathBuf::from(program), kind))?;
    let limits = match kind {
        EngineKind::C => EngineLimits::default(),
        _ => EngineLimits {
            address_space_bytes: Some(6 << 30),
            data_bytes: Some(256 << 20),
            ..EngineLimits::default()
        },
    };
    let start = || -> ExampleResult<_> {
        let memory = Arc::new(HostMemory::create(RingOptions::default())?);
        let started = Instant::now();
        let request = EngineRequest {
            code: Some(code.clone()),
            descriptors: memory.descriptors().to_vec(),
            limits: limits.clone(),
            ..EngineRequest::default()
        };
        let engine = zygote.start(&request)?;
        drop(request);
        let mut ring = HostRing::new(memory);
        let status = run(&mut ring, &options, b"")?;
        if status != 0 {
            return Err(format!("the function returned {status}").into());
        }
        Ok((started.elapsed(), engine, ring))
    };
    let mut starts = Vec::new();
    for _ in 1..STARTS {
        starts.push(start()?.0);
    }
    let (elapsed, engine, mut ring) = start()?;
    starts.push(elapsed);
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        let started = Instant::now();
        run(&mut ring, &options, b"")?;
        calls.push(started.elapsed());
    }
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let before = engine.cpu_time();
        run(&mut ring, &options, &data)?;
        runs.push(engine.cpu_time().saturating_sub(before));
    }
    let (fastest, middle) = (runs.iter().min().map_or(0, Duration::as_micros), median(runs));
    println!(
        "{{\"module\":\"{module}\",\"mebibytes\":{mebibytes},\"first_call_us\":{},\"warm_call_us\":{},\
         \"run_cpu_us_min\":{fastest},\"run_cpu_us_median\":{middle}}}",
        median(starts),
        median(calls),
    );
    Ok(())
}
