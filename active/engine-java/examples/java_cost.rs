//! Measures the Java engine in its sandbox: start until the end of the first call, an empty call,
//! and the paper's functions over 64 MiB beside those in C.
//!
//! `cargo build --release -p sealstone-engine-java -p sealstone-engine-c`, `scripts/engine-java
//! build`, then `cargo run --release -p sealstone-engine-java --example java_cost` prints JSON.

use std::io::Write as _;
use std::path::{Path, PathBuf};
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
const STARTS: usize = 31;
const CALLS: usize = 2001;
const ROUNDS: usize = 9;

/// A function that returns at once.
const EMPTY: &str = "import io.sealstone.function.*;
public final class Empty implements OsdFunction { public long run(Osd osd, Call call) { return 0; } }
";
/// The functions in C, with the algorithms of those in Java.
const C_FUNCTIONS: &str = include_str!("functions.c");

type ExampleResult<T> = Result<T, Box<dyn std::error::Error>>;

/// A confined engine with one function.
struct MeasuredEngine {
    ring: HostRing,
    _process: SandboxedEngine,
}

/// The objects of a call: its input, and its output.
struct MeasuredData<'a> {
    source: &'a [u8],
    target: Vec<u8>,
}

impl MeasuredEngine {
    fn start(zygote: &Zygote, code: &EngineCode, limits: EngineLimits) -> ExampleResult<Self> {
        let memory = Arc::new(HostMemory::create(RingOptions::default())?);
        let descriptors = memory.descriptors().to_vec();
        let request =
            EngineRequest { code: Some(code.clone()), descriptors, limits, ..EngineRequest::default() };
        let process = zygote.start(&request)?;
        Ok(Self { ring: HostRing::new(memory), _process: process })
    }

    /// Runs one call over the data; returns its time and its result.
    fn run(&mut self, method: &str, data: &mut MeasuredData<'_>) -> ExampleResult<(Duration, Vec<u8>)> {
        let started = Instant::now();
        let (rights, length) = (ObjectRights::from_bits(0xFF), data.source.len() as u64);
        let source = GuestObject::new(1, 2, ObjectKind::User, rights, length);
        let target = GuestObject::new(1, 3, ObjectKind::User, rights, 0);
        let both = [source, target];
        self.ring.begin_call(&CallDescriptor {
            method,
            arguments: b"text=needle\0",
            objects: if method == "copy" { &both } else { &both[..1] },
            result_bytes_max: 1 << 20,
            ..CallDescriptor::default()
        })?;
        let mut result = Vec::new();
        loop {
            let request = self.ring.next_request(Duration::from_secs(20))?;
            let request = request.ok_or("the engine does not answer")?;
            let status = match request.body {
                RequestBody::Return { status: 0 } => return Ok((started.elapsed(), result)),
                RequestBody::Return { status } => return Err(format!("{method} returned {status}").into()),
                RequestBody::Read { offset, buffer, .. } => {
                    let start = data.source.len().min(offset as usize);
                    let end = data.source.len().min(start + buffer.length() as usize);
                    self.ring.copy_to_heap(buffer, &data.source[start..end]) as i64
                }
                RequestBody::Write { offset, data: range, .. } => {
                    let start = offset as usize;
                    let part = data.target.get_mut(start..start + range.length() as usize);
                    self.ring.copy_from_heap(range, part.ok_or("a write beyond the end")?) as i64
                }
                RequestBody::Result { data: range } => {
                    result.resize(range.length() as usize, 0);
                    self.ring.copy_from_heap(range, &mut result) as i64
                }
                RequestBody::Log { data: range, .. } => {
                    let mut line = vec![0; range.length() as usize];
                    self.ring.copy_from_heap(range, &mut line);
                    writeln!(std::io::stderr(), "log: {}", String::from_utf8_lossy(&line))?;
                    0
                }
                other => return Err(format!("unexpected {other:?}").into()),
            };
            self.ring.complete(request.cookie, status, 0);
        }
    }
}

/// Returns the folder of the programs.
fn programs() -> ExampleResult<PathBuf> {
    // target/release/examples/java_cost → target/release
    let this = std::env::current_exe()?;
    Ok(this.parent().and_then(Path::parent).ok_or("no folder")?.to_owned())
}

fn java_zygote() -> ExampleResult<Zygote> {
    let program = programs()?.join("sealstone-engine-java");
    let runtime = Command::new(&program).arg("--runtime").output()?;
    let mut options = ZygoteOptions::new(program, EngineKind::Java);
    options.add_runtime(&String::from_utf8(runtime.stdout)?)?;
    Ok(Zygote::spawn(options)?)
}

/// Runs a program; its output is an error if it fails.
fn build(program: &str, folder: &Path, arguments: &[&str]) -> ExampleResult<()> {
    let output = Command::new(program).args(arguments).current_dir(folder).output()?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
}

/// Builds the functions; returns the folder with `CLASS.jar` for each, and `functions.so`.
fn build_functions() -> ExampleResult<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sdk = programs()?.join("sealstone-function.jar");
    let sdk = sdk.to_str().ok_or("the path is not UTF-8")?;
    std::fs::write(folder.path().join("Empty.java"), EMPTY)?;
    let examples = ["WordCount", "Grep", "CopyObject"].map(|class| {
        sources.join(format!("java/examples/io/sealstone/examples/{class}.java")).display().to_string()
    });
    let mut arguments = vec!["--release", "17", "-cp", sdk, "-d", "classes", "Empty.java"];
    arguments.extend(examples.iter().map(String::as_str));
    build("javac", folder.path(), &arguments)?;
    for class in [
        "Empty",
        "io.sealstone.examples.WordCount",
        "io.sealstone.examples.Grep",
        "io.sealstone.examples.CopyObject",
    ] {
        std::fs::write(folder.path().join("manifest.txt"), format!("Sealstone-Function: {class}\n"))?;
        let file = format!("{class}.jar");
        build(
            "jar",
            folder.path(),
            &["--create", "--file", &file, "--manifest", "manifest.txt", "-C", "classes", "."],
        )?;
    }
    std::fs::write(folder.path().join("functions.c"), C_FUNCTIONS)?;
    let header = sources.join("../engine-c/include").display().to_string();
    let arguments = ["-O2", "-shared", "-fPIC", "-I", &header, "-o", "functions.so", "functions.c"];
    build("cc", folder.path(), &arguments)?;
    Ok(folder)
}

/// Returns the median and the 99th percentile in milliseconds.
fn quantiles(mut times: Vec<Duration>) -> serde_json::Value {
    times.sort_unstable();
    let at = |index: usize| times[index].as_secs_f64() * 1e3;
    json!({ "least_ms": at(0), "p50_ms": at(times.len() / 2), "p99_ms": at(times.len() * 99 / 100) })
}

fn main() -> ExampleResult<()> {
    let functions = build_functions()?;
    let code = |name: &str| -> ExampleResult<EngineCode> {
        let file = if name.ends_with(".so") { "fn.so" } else { "fn.jar" };
        Ok(EngineCode::new(file, &std::fs::read(functions.path().join(name))?)?)
    };
    let java = java_zygote()?;
    let c = Zygote::spawn(ZygoteOptions::new(programs()?.join("sealstone-engine-c"), EngineKind::C))?;
    let java_limits = || EngineLimits {
        address_space_bytes: None,
        data_bytes: Some(256 << 20),
        threads: 64,
        descriptors: 64,
        ..EngineLimits::default()
    };
    let line = |n: usize| {
        format!(
            "{:127}\n",
            if n.is_multiple_of(10) { "some text with a needle in it" } else { "and other text" }
        )
    };
    let data: Vec<u8> = (0..DATA_BYTES / 128).flat_map(|n| line(n).into_bytes()).collect();
    let mut none = MeasuredData { source: b"", target: Vec::new() };
    let mut all = MeasuredData { source: &data, target: vec![0; data.len()] };

    let (empty, mut starts) = (code("Empty.jar")?, Vec::new());
    for _ in 0..STARTS {
        let started = Instant::now();
        MeasuredEngine::start(&java, &empty, java_limits())?.run("", &mut none)?;
        starts.push(started.elapsed());
    }
    let mut engine = MeasuredEngine::start(&java, &empty, java_limits())?;
    let calls = (0..CALLS).map(|_| Ok(engine.run("", &mut none)?.0)).collect::<ExampleResult<_>>()?;
    let mut figures = json!({ "start_and_first_call": quantiles(starts), "empty_call": quantiles(calls) });
    for (method, class) in [("wordcount", "WordCount"), ("grep", "Grep"), ("copy", "CopyObject")] {
        let jar = code(&format!("io.sealstone.examples.{class}.jar"))?;
        let mut in_java = MeasuredEngine::start(&java, &jar, java_limits())?;
        let mut in_c = MeasuredEngine::start(&c, &code("functions.so")?, EngineLimits::default())?;
        let first = in_java.run(method, &mut all)?.0;
        let (mut of_java, mut of_c) = (Vec::new(), Vec::new());
        // In turns, so that other load of the machine affects both.
        for _ in 0..ROUNDS {
            let (java_time, java_result) = in_java.run(method, &mut all)?;
            let (c_time, c_result) = in_c.run(method, &mut all)?;
            if java_result != c_result {
                return Err(format!("{method}: C and Java have different results").into());
            }
            of_java.push(java_time);
            of_c.push(c_time);
        }
        if method == "copy" && all.source != all.target {
            return Err("the copy differs".into());
        }
        figures[format!("{method}_64_mib")] = json!({
            "java": quantiles(of_java),
            "java_first_call_ms": first.as_secs_f64() * 1e3,
            "c": quantiles(of_c),
        });
    }
    writeln!(std::io::stdout(), "{figures:#}")?;
    Ok(())
}
