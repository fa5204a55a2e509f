//! Functions in each language, in their confined engines: starts, empty calls, and the same loops
//! in C and in Java.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use sealstone_function_abi::{CallDescriptor, GuestObject, ObjectKind, ObjectRights};
use sealstone_sandbox::{EngineCode, EngineKind, Zygote};

use super::calls::percentile;
use super::engine::{MeasuredEngine, MemoryData, NoData, zygote};
use super::figures::{MeasuredTable, ratio};
use super::{ActiveStage, FigureTable};
use crate::Outcome;
use crate::targets::Verdict;

/// Cold starts for each round and language.
const STARTS: usize = 5;
/// Calls in Java before the measured ones, in which the virtual machine compiles the loops.
const WARM_CALLS: usize = 10;
/// Highest time of a function in Java, of that in C.
const JAVA_TIMES_MAX: f64 = 1.3;

/// The functions in C, with the algorithms of those in Java.
const C_FUNCTIONS: &str = include_str!("languages.c");
/// Functions that return at once.
const EMPTY_C: &str = "#include \"osd.h\"\nint64_t osd_main(const osd_call *call) { return 0; }\n";
const EMPTY_PYTHON: &str = "def run(osd, call): pass\n";
const EMPTY_JAVA: &str = "import io.sealstone.function.*;
public final class Empty implements OsdFunction { public long run(Osd osd, Call call) { return 0; } }
";
/// A module with a memory of two pages, whose `osd_main` returns 0.
const EMPTY_WASM: &[u8] = b"\0asm\x01\0\0\0\x01\x06\x01\x60\x01\x7f\x01\x7e\x03\x02\x01\0\x05\x03\x01\0\x02\
\x07\x15\x02\x06memory\x02\0\x08osd_main\0\0\x0a\x06\x01\x04\0\x42\0\x0b";
/// Loops in Python that use its library, as its authors do.
const PYTHON_FUNCTIONS: &str = "
import re
PATTERN = re.compile(rb'sealstone [a-z]+')

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

/// A language with its zygote and its empty function, or why it cannot be measured.
struct Language {
    name: &'static str,
    kind: EngineKind,
    /// Aim of a start until the end of the first call, in milliseconds.
    start_ms: f64,
    ready: Outcome<(Zygote, EngineCode)>,
}

impl Language {
    fn all(stage: &ActiveStage) -> Vec<Self> {
        let (folder, programs) = (&stage.folder, stage.programs());
        let language = |name, kind, start_ms, code: Outcome<EngineCode>| Self {
            name,
            kind,
            start_ms,
            ready: code.and_then(|code| Ok((zygote(programs, kind)?, code))),
        };
        let c = compile_c(folder, "empty", EMPTY_C);
        let java = build_java(folder, programs).and_then(|()| jar(folder, "Empty"));
        vec![
            language("C", EngineKind::C, 2.0, c),
            language("WebAssembly", EngineKind::Wasm, 4.0, code("fn.wasm", EMPTY_WASM)),
            language("Python", EngineKind::Python, 20.0, code("fn.py", EMPTY_PYTHON.as_bytes())),
            language("Java", EngineKind::Java, 80.0, java),
        ]
    }
}

fn code(name: &str, bytes: &[u8]) -> Outcome<EngineCode> {
    Ok(EngineCode::new(name, bytes)?)
}

/// Runs a compiler; its output is an error if it fails.
fn build(program: &str, folder: &Path, arguments: &[&str]) -> Outcome {
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    let output = output.map_err(|error| format!("no `{program}`: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
}

fn compile_c(folder: &Path, name: &str, source: &str) -> Outcome<EngineCode> {
    let (from, to) = (format!("{name}.c"), format!("{name}.so"));
    std::fs::write(folder.join(&from), source)?;
    build("cc", folder, &["-O2", "-shared", "-fPIC", "-I", ".", "-o", &to, &from])?;
    code("fn.so", &std::fs::read(folder.join(to))?)
}

/// Compiles the functions in Java.
fn build_java(folder: &Path, programs: &Path) -> Outcome {
    let sdk = programs.join("sealstone-function.jar");
    if !sdk.is_file() {
        return Err(format!("{} does not exist; run `scripts/engine-java build`", sdk.display()).into());
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../active/engine-java/java/examples/io/sealstone/examples");
    std::fs::write(folder.join("Empty.java"), EMPTY_JAVA)?;
    let sources = ["WordCount", "Grep", "CopyObject"]
        .map(|class| sources.join(format!("{class}.java")).display().to_string());
    let sdk = sdk.display().to_string();
    let mut arguments = vec!["--release", "17", "-cp", &sdk, "-d", "classes", "Empty.java"];
    arguments.extend(sources.iter().map(String::as_str));
    build("javac", folder, &arguments)
}

/// Returns the compiled classes, with one of them as the function.
fn jar(folder: &Path, class: &str) -> Outcome<EngineCode> {
    std::fs::write(folder.join("manifest.txt"), format!("Sealstone-Function: {class}\n"))?;
    let arguments = ["--create", "--file", "fn.jar", "--manifest", "manifest.txt", "-C", "classes", "."];
    build("jar", folder, &arguments)?;
    code("fn.jar", &std::fs::read(folder.join("fn.jar"))?)
}

/// Starts of engines until the end of the first call, and empty calls of a warm engine.
pub(super) fn starts(stage: &ActiveStage) -> MeasuredTable {
    let mut table = FigureTable::new(
        "start of an engine until the end of its first call; an empty call of a waiting engine; no device",
        "no value is quoted",
        &["start p50, ms", "least, ms", "aim, ms", "call p50, us", "p99, us"],
    );
    let mut verdicts = Vec::new();
    for language in Language::all(stage) {
        let (zygote, code) = match &language.ready {
            Ok(ready) => ready,
            Err(reason) => {
                table.left_out(language.name, &reason.to_string());
                continue;
            }
        };
        let start = || MeasuredEngine::start(zygote, language.kind, code);
        let empty = CallDescriptor::default();
        let mut starts = Vec::new();
        for _ in 0..stage.settings.rounds * STARTS {
            let begin = Instant::now();
            start()?.run(&empty, &mut NoData)?;
            starts.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        let mut engine = start()?;
        let mut calls = Vec::new();
        for number in 0..stage.settings.calls {
            let time = engine.run(&empty, &mut NoData)?.0;
            // The first ones are slower in a virtual machine.
            if number >= stage.settings.calls / 20 {
                calls.push(time.as_secs_f64() * 1e6);
            }
        }
        let middle = percentile(&mut starts, 50);
        let times =
            [middle, starts[0], language.start_ms, percentile(&mut calls, 50), percentile(&mut calls, 99)];
        table.add(language.name, &[times.to_vec()]);
        verdicts.push(Verdict {
            aim: format!("cold start in {}: {} ms", language.name, language.start_ms),
            reached: middle <= language.start_ms,
            measured: format!("{middle:.1} ms, least {:.1} ms", starts[0]),
        });
    }
    Ok((table, verdicts))
}

/// The same loops in C and in Java, in turns, over bytes in memory.
pub(super) fn c_against_java(stage: &ActiveStage) -> MeasuredTable {
    let bytes = usize::try_from(stage.settings.bytes)?;
    let mut table = FigureTable::new(
        &format!("{} MiB in C and in Java, ms", bytes >> 20),
        "Java takes 3 to 4 times as long as C",
        &["C", "Java", "times as long", "first in Java"],
    );
    let zygotes = build_java(&stage.folder, stage.programs()).and_then(|()| {
        Ok((zygote(stage.programs(), EngineKind::Java)?, zygote(stage.programs(), EngineKind::C)?))
    });
    let (java, c) = match zygotes {
        Ok(zygotes) => zygotes,
        Err(reason) => {
            table.left_out("Java", &reason.to_string());
            return Ok((table, Vec::new()));
        }
    };
    let c_code = compile_c(&stage.folder, "languages", C_FUNCTIONS)?;
    let source = stage.data.get(..bytes).ok_or("too little data")?;
    let mut data = MemoryData { source, target: vec![0; bytes] };
    let mut verdicts = Vec::new();
    for (method, class) in [("wordcount", "WordCount"), ("grep", "Grep"), ("copy", "CopyObject")] {
        let java_code = jar(&stage.folder, &format!("io.sealstone.examples.{class}"))?;
        let mut in_java = MeasuredEngine::start(&java, EngineKind::Java, &java_code)?;
        let mut in_c = MeasuredEngine::start(&c, EngineKind::C, &c_code)?;
        let objects = objects(bytes);
        let call = CallDescriptor {
            method,
            arguments: b"text=sealstone\0",
            objects: if method == "copy" { &objects } else { &objects[..1] },
            result_bytes_max: 1 << 20,
            ..CallDescriptor::default()
        };
        let first = in_java.run(&call, &mut data)?.0.as_secs_f64() * 1e3;
        in_c.run(&call, &mut data)?;
        for _ in 0..WARM_CALLS {
            in_java.run(&call, &mut data)?;
        }
        let rounds = stage.rounds(|_| {
            let (java_time, java_result) = in_java.run(&call, &mut data)?;
            let (c_time, c_result) = in_c.run(&call, &mut data)?;
            if java_result != c_result || (method == "copy" && data.source != data.target) {
                return Err(format!("{method}: C and Java have different results").into());
            }
            let [c, java] = [c_time, java_time].map(|time| time.as_secs_f64() * 1e3);
            Ok(vec![c, java, java / c, first])
        })?;
        table.add(method, &rounds);
        let times = ratio(&rounds, 1, 0);
        verdicts.push(Verdict {
            aim: format!("{method} in Java at most {JAVA_TIMES_MAX} times as long as in C"),
            reached: times <= JAVA_TIMES_MAX,
            measured: format!("{times:.2} times"),
        });
    }
    Ok((table, verdicts))
}

/// Functions in Python that use its library.
pub(super) fn python(stage: &ActiveStage) -> MeasuredTable {
    let bytes = usize::try_from(stage.settings.bytes)?;
    let title = format!("{} MiB in Python, ms", bytes >> 20);
    let mut table = FigureTable::new(&title, "has no Python", &["time", "first call"]);
    let zygote = match zygote(stage.programs(), EngineKind::Python) {
        Ok(zygote) => zygote,
        Err(reason) => {
            table.left_out("Python", &reason.to_string());
            return Ok((table, Vec::new()));
        }
    };
    let code = code("fn.py", PYTHON_FUNCTIONS.as_bytes())?;
    let mut engine = MeasuredEngine::start(&zygote, EngineKind::Python, &code)?;
    let mut data =
        MemoryData { source: stage.data.get(..bytes).ok_or("too little data")?, target: Vec::new() };
    for method in ["views", "lines", "words", "regex"] {
        let objects = objects(bytes);
        let call = CallDescriptor {
            method,
            objects: &objects[..1],
            result_bytes_max: 1 << 20,
            ..CallDescriptor::default()
        };
        let mut time = || -> Outcome<f64> { Ok(engine.run(&call, &mut data)?.0.as_secs_f64() * 1e3) };
        let first = time()?;
        let rounds = stage.rounds(|_| Ok(vec![time()?, first]))?;
        table.add(method, &rounds);
    }
    Ok((table, Vec::new()))
}

/// Returns the input and the output of a call.
fn objects(bytes: usize) -> [GuestObject; 2] {
    let rights = ObjectRights::from_bits(0xFF);
    let object = |number, length| GuestObject::new(1, number, ObjectKind::User, rights, length);
    [object(2, bytes as u64), object(3, 0)]
}
