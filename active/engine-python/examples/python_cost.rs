//! Measures the Python engine in its sandbox: start until the end of the first call, an empty call,
//! and functions over 64 MiB.
//!
//! `cargo build --release -p sealstone-engine-python`, then
//! `cargo run --release -p sealstone-engine-python --example python_cost` prints JSON.

use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_function_abi::{CallDescriptor, GuestObject, ObjectKind, ObjectRights, RequestBody};
use sealstone_function_ring::{HostMemory, HostRing, RingOptions};
use sealstone_sandbox::{
    EngineCode, EngineKind, EngineLimits, EngineRequest, SandboxedEngine, Zygote, ZygoteOptions,
};
use serde_json::json;

const DATA_BYTES: usize = 64 << 20;
const STARTS: usize = 41;
const CALLS: usize = 2001;
const ROUNDS: usize = 7;

const FUNCTION: &str = "
import re
PATTERN = re.compile(rb'lazy [a-z]+')

def run(osd, call):
    if call.method == 'lines':
        return str(sum(chunk.count(b'\\n') for chunk in osd.stream(0)))
    if call.method == 'words':
        return str(sum(len(chunk.split()) for chunk in osd.stream(0)))
    if call.method == 'regex':
        return str(sum(len(PATTERN.findall(chunk)) for chunk in osd.stream(0)))
    if call.method == 'views':
        return str(sum(len(view) for view in osd.views(0)))
";

type ExampleResult<T> = Result<T, Box<dyn std::error::Error>>;

/// A confined engine with the function.
struct MeasuredEngine {
    ring: HostRing,
    _process: SandboxedEngine,
}

impl MeasuredEngine {
    fn start(zygote: &Zygote, source: &str) -> ExampleResult<Self> {
        let memory = Arc::new(HostMemory::create(RingOptions::default())?);
        let request = EngineRequest {
            code: Some(EngineCode::new("fn.py", source.as_bytes())?),
            descriptors: memory.descriptors().to_vec(),
            limits: EngineLimits { address_space_bytes: Some(768 << 20), ..EngineLimits::default() },
            ..EngineRequest::default()
        };
        let process = zygote.start(&request)?;
        Ok(Self { ring: HostRing::new(memory), _process: process })
    }

    /// Runs one call over the data; returns its time.
    fn run(&mut self, method: &str, data: &[u8]) -> ExampleResult<Duration> {
        let started = Instant::now();
        let rights = ObjectRights::READ;
        let object = GuestObject::new(1, 2, ObjectKind::User, rights, data.len() as u64);
        self.ring.begin_call(&CallDescriptor {
            method,
            objects: &[object],
            result_bytes_max: 1 << 20,
            ..CallDescriptor::default()
        })?;
        loop {
            let request = self.ring.next_request(Duration::from_secs(20))?;
            let request = request.ok_or("the engine does not answer")?;
            let result = match request.body {
                RequestBody::Return { status: 0 } => return Ok(started.elapsed()),
                RequestBody::Return { status } => return Err(format!("{method} returned {status}").into()),
                RequestBody::Read { offset, buffer, .. } => {
                    let start = data.len().min(offset as usize);
                    let end = data.len().min(start + buffer.length() as usize);
                    self.ring.copy_to_heap(buffer, &data[start..end]) as i64
                }
                RequestBody::Result { data } => i64::from(data.length()),
                other => return Err(format!("unexpected {other:?}").into()),
            };
            self.ring.complete(request.cookie, result, 0);
        }
    }
}

fn zygote() -> ExampleResult<Zygote> {
    // target/release/examples/python_cost → target/release
    let this = std::env::current_exe()?;
    let folder = this.parent().and_then(|examples| examples.parent()).ok_or("no folder")?;
    let program = folder.join("sealstone-engine-python");
    let runtime = Command::new(&program).arg("--runtime").output()?;
    let mut options = ZygoteOptions::new(program, EngineKind::Python);
    options.add_runtime(&String::from_utf8(runtime.stdout)?)?;
    Ok(Zygote::spawn(options)?)
}

/// Returns the middle and the 99th percentile in milliseconds.
fn quantiles(mut times: Vec<Duration>) -> serde_json::Value {
    times.sort_unstable();
    let at = |index: usize| times[index].as_secs_f64() * 1e3;
    json!({ "p50_ms": at(times.len() / 2), "p99_ms": at(times.len() * 99 / 100) })
}

fn main() -> ExampleResult<()> {
    let zygote = zygote()?;
    let sentence = b"the quick brown fox jumps over the lazy dog\n";
    let data: Vec<u8> = sentence.iter().copied().cycle().take(DATA_BYTES).collect();
    let (mut plain, mut with_imports) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        for (source, times) in [
            ("def run(osd, call): pass\n", &mut plain),
            ("import re, json\ndef run(osd, call): pass\n", &mut with_imports),
        ] {
            let started = Instant::now();
            MeasuredEngine::start(&zygote, source)?.run("", b"")?;
            times.push(started.elapsed());
        }
    }
    let mut engine = MeasuredEngine::start(&zygote, FUNCTION)?;
    let calls = (0..CALLS).map(|_| engine.run("", b"")).collect::<ExampleResult<_>>()?;
    let mut figures = json!({
        "start_and_first_call": quantiles(plain),
        "start_with_re_and_json": quantiles(with_imports),
        "empty_call": quantiles(calls),
    });
    for method in ["views", "lines", "words", "regex"] {
        let times = (0..ROUNDS).map(|_| engine.run(method, &data)).collect::<ExampleResult<_>>()?;
        figures[format!("{method}_64_mib")] = quantiles(times);
    }
    writeln!(std::io::stdout(), "{figures:#}")?;
    Ok(())
}
