//! Runs all tests of the workspace, several processes in parallel.
//!
//! Builds all test programs, runs them from their crates' folders as cargo does, and prints
//! failures. The examples in the docs run beside them. A program of many modules runs as one
//! process for each module. Cargo itself runs one test program at a time, although end-to-end tests
//! mostly wait, for daemons that start and for time to pass.

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sealstone_test_support::{FOLDER_VARIABLE, LEFT_OUT};

/// Maximum run time of a test program.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(20 * 60);
/// Set where no test may be left out, but those that need what `scripts/setup --all` installs.
const REQUIRED_VARIABLE: &str = "SEALSTONE_TESTS_REQUIRED";
/// In the reason of a test that needs a program that is not installed by default.
const OPTIONAL: &str = "(scripts/setup --all)";
/// Interval at which running programs are polled.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes of the end of the log of a failed program that are shown.
const SHOWN_MAX: u64 = 256 * 1024;

/// The name of a program whose modules run as processes of their own.
const PROGRAM_OF_MODULES: &str = "all";

/// Programs that run at the same time, for each core. At any moment, most of them wait for daemons
/// or for time: with two, a quarter of the processor time is unused.
const PROGRAMS_PER_CORE: usize = 3;

/// The programs that take longest, mostly because they wait, which start first.
const LONGEST: [&str; 24] = [
    "sealstone-function-formats/confined",
    "sealstone-tests/shared_locks",
    "sealstone-bench/lazy",
    "sealstone-tests/restriping",
    "sealstone-tests/drain",
    "sealstone-tests/mount_listings",
    "sealstone-tests/full_device",
    "sealstone-tests/job_results",
    "sealstone-tests/block_e2e",
    "sealstone-tests/mount_locks",
    "sealstone-mds/sealstone_mds",
    "sealstone-meta-store/sealstone_meta_store",
    "sealstone-tests/block_attacks",
    "sealstone-tests/clock",
    "sealstone-store/crash",
    "sealstone-tests/keys",
    "sealstone-store/index_space",
    "sealstone-tests/revocation",
    "sealstone-simulation/seeds",
    "sealstone-store/faults",
    "sealstone-iscsi-target/robustness",
    "sealstone-tests/files",
    "sealstone-fuzz/smoke",
    "sealstone-tests/mount",
];

/// One test program, or one module of it.
#[derive(Clone)]
struct Program {
    /// Crate and program, or crate and module, as in `sealstone-tests/mount`.
    name: String,
    executable: PathBuf,
    /// Folder of its crate, where it runs.
    folder: PathBuf,
    /// The tests to run; all of the program if empty.
    tests: Vec<String>,
}

/// Result of a test program.
enum End {
    Exited(ExitStatus),
    Hung,
}

pub(crate) fn run() -> Result<String, Vec<String>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let (programs, folder) = build(&cargo).map_err(|error| vec![format!("tests: {error}")])?;
    let logs = folder.join("test-logs");
    fs::create_dir_all(&logs).map_err(|error| vec![format!("tests: {}: {error}", logs.display())])?;
    let cores = thread::available_parallelism().map_or(2, NonZeroUsize::get);
    let (count, begin) = (programs.len(), Instant::now());
    let queue = Mutex::new(VecDeque::from(programs));
    let failed = Mutex::new(Vec::new());
    let left_out = Mutex::new(Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            let finding = run_examples(&cargo);
            failed.lock().unwrap_or_else(PoisonError::into_inner).extend(finding);
        });
        for _ in 0..PROGRAMS_PER_CORE * cores {
            scope.spawn(|| {
                loop {
                    // The queue is free again before the program runs.
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(program) = next else { break };
                    let finding = one(&program, &folder, &logs, cores);
                    failed.lock().unwrap_or_else(PoisonError::into_inner).extend(finding);
                    let output = fs::read(log_of(&program, &logs)).unwrap_or_default();
                    let missing = tests_left_out(&String::from_utf8_lossy(&output));
                    left_out.lock().unwrap_or_else(PoisonError::into_inner).extend(missing);
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let took = begin.elapsed().as_secs();
    let mut left_out = left_out.into_inner().unwrap_or_else(PoisonError::into_inner);
    left_out.sort();
    left_out.iter().for_each(|test| println!("{LEFT_OUT}{test}"));
    if env::var_os(REQUIRED_VARIABLE).is_some() {
        failed.extend(left_out.iter().filter(|test| is_required(test)).map(|test| {
            format!("tests: {LEFT_OUT}{test}; no test may be left out here ({REQUIRED_VARIABLE})")
        }));
    }
    let count_left_out = left_out.len();
    match failed.is_empty() {
        true => Ok(format!("tests: {count} programs passed in {took} s; {count_left_out} tests left out")),
        false => Err(failed),
    }
}

/// Runs the examples in the docs. Returns a finding if one fails.
fn run_examples(cargo: &OsString) -> Option<String> {
    let mut examples = Command::new(cargo);
    match examples.args(["test", "--workspace", "--doc", "--quiet"]).stdout(Stdio::null()).status() {
        Ok(status) if status.success() => None,
        Ok(_) => Some("tests: an example in the docs fails: cargo test --workspace --doc".to_owned()),
        Err(error) => Some(format!("tests: cannot start cargo: {error}")),
    }
}

/// Builds everything; returns the test programs, slow ones first, and the folder of the programs
/// that they start.
fn build(cargo: &OsString) -> Result<(Vec<Program>, PathBuf), String> {
    // One invocation: a second one without the tests would compile most dependencies again, with
    // fewer features.
    let arguments = ["build", "--lib", "--bins", "--tests", "--message-format=json-render-diagnostics"];
    let built = messages(Command::new(cargo).args(arguments).args(sealstone_test_support::selection()))?;
    let mut programs = Vec::new();
    for program in built.iter().filter_map(program) {
        programs.extend(split_by_module(program)?);
    }
    programs.sort_by_key(|program| start_order(&program.name));
    let is_binary = |message: &&serde_json::Value| {
        message["target"]["name"] == "sealstone" && message["profile"]["test"] == false
    };
    let binary = built.iter().filter(is_binary).find_map(executable);
    let folder = binary.as_deref().and_then(Path::parent).map(Path::to_owned);
    Ok((programs, folder.ok_or("cargo does not say where the binary is")?))
}

/// Returns the file with the output of a program.
fn log_of(program: &Program, logs: &Path) -> PathBuf {
    logs.join(format!("{}.log", program.name.replace('/', ".")))
}

/// Returns the tests that a program left out, with their reasons.
fn tests_left_out(output: &str) -> Vec<String> {
    output.lines().filter_map(|line| line.split_once(LEFT_OUT)).map(|(_, test)| test.to_owned()).collect()
}

/// Whether a test must not be left out where all are required.
fn is_required(test: &str) -> bool {
    !test.ends_with(OPTIONAL)
}

/// Returns where a program stands in the order of starts.
fn start_order(name: &str) -> usize {
    let longest = LONGEST.iter().position(|longest| *longest == name);
    // End-to-end tests wait, unit tests compute: one waits while another has the cores.
    longest.unwrap_or(LONGEST.len() + usize::from(!name.starts_with("sealstone-tests/")))
}

/// Runs cargo and returns its messages, one JSON object per line. Cargo shows errors by itself.
fn messages(cargo: &mut Command) -> Result<Vec<serde_json::Value>, String> {
    let output = cargo
        .stderr(Stdio::inherit())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err("it does not build".to_owned());
    }
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{"));
    lines.map(|line| serde_json::from_slice(line).map_err(|error| format!("cargo said {error}"))).collect()
}

fn executable(message: &serde_json::Value) -> Option<PathBuf> {
    message["executable"].as_str().map(PathBuf::from)
}

fn program(message: &serde_json::Value) -> Option<Program> {
    let executable = executable(message).filter(|_| message["profile"]["test"] == true)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let crate_name = fs::read_to_string(folder.join("Cargo.toml")).ok().and_then(|manifest| {
        let manifest: toml::Table = manifest.parse().ok()?;
        Some(manifest.get("package")?.get("name")?.as_str()?.to_owned())
    })?;
    let name = format!("{crate_name}/{}", message["target"]["name"].as_str()?);
    Some(Program { name, executable, folder, tests: Vec::new() })
}

/// Returns one entry for each module of a program of many modules; any other program as it is.
fn split_by_module(program: Program) -> Result<Vec<Program>, String> {
    let Some(crate_name) = program.name.strip_suffix(PROGRAM_OF_MODULES) else { return Ok(vec![program]) };
    let listed = Command::new(&program.executable)
        .args(["--list", "--format", "terse"])
        .current_dir(&program.folder)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot list the tests of {}: {error}", program.name))?;
    if !listed.status.success() {
        return Err(format!("cannot list the tests of {}: {}", program.name, listed.status));
    }
    let modules = tests_by_module(&String::from_utf8_lossy(&listed.stdout));
    let part = |(module, tests)| Program { name: format!("{crate_name}{module}"), tests, ..program.clone() };
    Ok(modules.into_iter().map(part).collect())
}

/// Groups the lines that a test program lists, `MODULE::TEST: test`, by their first module.
fn tests_by_module(listed: &str) -> BTreeMap<String, Vec<String>> {
    let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for test in listed.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.split("::").next().unwrap_or(test);
        modules.entry(module.to_owned()).or_default().push(test.to_owned());
    }
    modules
}

/// Runs a test program and prints its result. Returns a finding if it failed.
fn one(program: &Program, programs: &Path, logs: &Path, cores: usize) -> Option<String> {
    let Program { name, executable, folder, tests } = program;
    let log = log_of(program, logs);
    let begin = Instant::now();
    let ran = File::create(&log).and_then(|out| {
        let mut command = Command::new(executable);
        if !tests.is_empty() {
            command.arg("--exact").args(tests);
        }
        let mut child = command
            .current_dir(folder)
            // As cargo does; property tests keep their cases beside the sources by it.
            .env("CARGO_MANIFEST_DIR", folder)
            .env("RUST_TEST_THREADS", cores.to_string())
            .env(FOLDER_VARIABLE, programs)
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out)
            .spawn()?;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(End::Exited(status));
            }
            if begin.elapsed() > PROGRAM_TIMEOUT {
                child.kill()?;
                child.wait()?;
                return Ok(End::Hung);
            }
            thread::sleep(LOOK);
        }
    });
    let took = begin.elapsed().as_secs_f32();
    let why = match ran {
        Ok(End::Exited(status)) if status.success() => {
            println!("ok {took:6.1} s  {name}");
            return None;
        }
        Ok(End::Exited(status)) => status.to_string(),
        Ok(End::Hung) => format!("killed after {} s", PROGRAM_TIMEOUT.as_secs()),
        Err(error) => error.to_string(),
    };
    println!("FAILED {took:.1} s  {name}: {why}\n{}", tail(&log));
    Some(format!("tests: {name}: {why} ({})", log.display()))
}

/// Returns the end of a log.
fn tail(log: &Path) -> String {
    let read = File::open(log).and_then(|mut file| {
        let skipped = file.metadata()?.len().saturating_sub(SHOWN_MAX);
        file.seek(SeekFrom::Start(skipped))?;
        let mut bytes = Vec::new();
        file.take(SHOWN_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    });
    read.unwrap_or_else(|error| format!("{}: {error}", log.display()))
}

#[cfg(test)]
mod grouping {
    use super::*;

    #[test]
    fn longest_programs_start_first() {
        let mut names = ["sealstone-osd/cdb", "sealstone-tests/mount", LONGEST[1], LONGEST[0]];
        names.sort_by_key(|name| start_order(name));
        assert_eq!(names, [LONGEST[0], LONGEST[1], "sealstone-tests/mount", "sealstone-osd/cdb"]);
    }

    #[test]
    fn tests_left_out_are_read_from_the_log() {
        // The harness writes the name of a test first, without an end of line.
        let output = "test a ... left out: a: a mount needs root\nok\n\
                    left out: b: chronyd is not installed (scripts/setup --all)\ntest b ... ok\n";
        let found = tests_left_out(output);
        assert_eq!(found.iter().map(|test| is_required(test)).collect::<Vec<_>>(), [true, false]);
        assert!(found[0].starts_with("a: "), "{found:?}");
    }

    #[test]
    fn tests_are_grouped_by_first_module() {
        let modules =
            tests_by_module("b::x: test\na::m::y: test\nb::z: test\nat_root: test\nb::w: benchmark\n");
        let expected: [(&str, &[&str]); 3] =
            [("a", &["a::m::y"]), ("at_root", &["at_root"]), ("b", &["b::x", "b::z"])];
        let expected = expected.map(|(module, tests)| {
            (module.to_owned(), tests.iter().map(|test| (*test).to_owned()).collect::<Vec<_>>())
        });
        assert_eq!(modules, BTreeMap::from(expected));
    }
}
