//! Functions of the demo: two shipped functions run on the devices. Their results are compared with
//! those of local tools.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use sealstone_client::functions::{FunctionDescription, FunctionPublication, FunctionRun};
use sealstone_client::{Client, Method, PutOptions};
use sealstone_failure::text::{ShownPath as _, human_bytes};
use sealstone_failure::{Failure, Outcome};
use sealstone_function_runs::{FileResult, Reduction, library_path, publish_function};
use sealstone_functions::{RecordText, ResultLine, find_function};
use sealstone_osd::function::{ApiVersion, EngineType};
use serde::Serialize;

use crate::observer::DemoObserver;

/// Stored path of the log.
const LOG: &str = "/log";
/// Bytes of the log, so that each device has several stripe units.
const LOG_BYTES: usize = 24 << 20;
/// One of this number of lines matches [`PATTERN`].
const LINES_PER_MATCH: u64 = 1999;
/// The regular expression that `grep` searches for.
const PATTERN: &str = "timeout after [0-9]+ ms";

/// Result of one function, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionComparison {
    /// Name of the function.
    pub function: &'static str,
    /// Number of devices that ran it.
    pub devices: usize,
    /// Bytes that the devices read.
    pub bytes_read: u64,
    /// Bytes of all results.
    pub result_bytes: u64,
    /// Duration of the run.
    pub seconds: f64,
    /// Whether the result equals that of the local tool; `None` if the tool is missing.
    pub equal: Option<bool>,
}

/// Returns the path of a module in the folder of programs; `None` if it is not built.
fn module(programs: &Path, name: &str) -> Option<PathBuf> {
    let path = programs.join("examples").join(format!("lib{name}.so"));
    path.is_file().then_some(path)
}

/// Returns the modules of `count` and `grep`; `None` without the engine or a module.
fn modules(programs: &Path) -> Option<(PathBuf, PathBuf)> {
    let has_engine = programs.join("sealstone-engine-c").is_file();
    Some((module(programs, "count")?, module(programs, "grep")?)).filter(|_| has_engine)
}

/// Returns the text of the log.
fn log_text() -> String {
    let mut text = String::with_capacity(LOG_BYTES + 128);
    let mut number = 0_u64;
    while text.len() < LOG_BYTES {
        let id = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        // Writing to a String cannot fail.
        let _ = match number.is_multiple_of(LINES_PER_MATCH) {
            true => writeln!(text, "{number:08} request {id:06x} failed: timeout after {} ms", id % 5000),
            false => writeln!(text, "{number:08} request {id:06x} served, {} bytes", id % 70_000),
        };
        number += 1;
    }
    text
}

/// Runs a tool of this machine on the local copy of the log; `None` if it does not start.
fn local_tool(words: &[&str], file: &Path) -> Option<String> {
    let done = Command::new(words[0]).args(&words[1..]).arg(file).env("LC_ALL", "C").output().ok()?;
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Returns the result of a function in the form of its local tool.
fn text_of(lines: &[ResultLine], file: &Path) -> String {
    let mut text = String::new();
    for line in lines {
        // Writing to a String cannot fail.
        let _ = match line {
            ResultLine::Count(count) => {
                let number = |value: Option<u64>| value.unwrap_or_default();
                let (lines, words, bytes) = (number(count.lines), number(count.words), number(count.bytes));
                write!(text, "{lines} {words} {bytes} {}", file.display())
            }
            ResultLine::Match(found) => match &found.record {
                RecordText::Text(record) => writeln!(text, "{}:{record}", found.line),
                RecordText::Base64(_) => Ok(()),
            },
            _ => Ok(()),
        };
    }
    text
}

/// Stores a module as a function.
async fn publish(client: &Client, name: &str, path: &Path) -> Outcome {
    let at = |error: std::io::Error| Failure::from(error).at(path.shown());
    let code = std::fs::read(path).map_err(at)?;
    let description = FunctionDescription {
        engine: Some(EngineType::C),
        api: Some((ApiVersion::FIRST, ApiVersion::CURRENT)),
        ..FunctionDescription::default()
    };
    let publication =
        FunctionPublication { description, mode: 0o755, replace: false, method: Method::AllData };
    publish_function(client, &library_path(name)?, &code, &publication).await
}

/// Runs a function on the log, and compares its result with that of a local tool.
async fn compare(
    client: &Client,
    name: &'static str,
    argument: (&str, &str),
    tool: &[&str],
    file: &Path,
) -> Outcome<FunctionComparison> {
    let function = find_function(name).ok_or_else(|| Failure::operation("no shipped function").at(name))?;
    let mut call = FunctionRun::new(&library_path(name)?);
    call.arguments.add(argument.0, argument.1)?;
    call.read(LOG);
    let (mut reduction, mut results) = (Reduction::new(function), Vec::new());
    let started = std::time::Instant::now();
    let mut refused = None;
    let run = call.run(client, |reply| {
        if !reply.is_success() {
            refused = Some(format!("the job on device {} failed", reply.device));
        }
        results.extend(reduction.add(reply));
    });
    let summary = run.await?;
    let seconds = started.elapsed().as_secs_f64();
    let lines = match (refused, results.pop()) {
        (None, Some((_, FileResult::Lines(lines, _)))) => lines,
        (None, Some((_, FileResult::Failed(failure)))) => return Err(failure.at(LOG)),
        (refused, _) => {
            let text = refused.unwrap_or_else(|| "the function has no result".to_owned());
            return Err(Failure::operation(text).at(name));
        }
    };
    let words = |text: &str| text.split_whitespace().map(ToOwned::to_owned).collect::<Vec<_>>();
    let expected = local_tool(tool, file);
    let equal = expected.map(|expected| words(&expected) == words(&text_of(&lines, file)));
    let (devices, bytes_read, result_bytes) = (summary.devices, summary.bytes_read, summary.result_bytes);
    Ok(FunctionComparison { function: name, devices, bytes_read, result_bytes, seconds, equal })
}

/// Runs `count` and `grep` on a striped log. Without the engine and the modules it does nothing.
pub(crate) async fn run(
    client: &Arc<Client>,
    folder: &Path,
    programs: Option<&Path>,
    observer: &dyn DemoObserver,
) -> Outcome<Vec<FunctionComparison>> {
    let Some((count, grep)) = programs.and_then(modules) else {
        observer.remark(
            "6. Functions are left out: `make demo` builds an engine and two functions beside this program.",
        );
        return Ok(Vec::new());
    };
    let file = folder.join("log");
    std::fs::write(&file, log_text()).map_err(|error| Failure::from(error).at(file.shown()))?;
    let stat = client.put_file(LOG, &file, PutOptions::default()).await?;
    publish(client, "count", &count).await?;
    publish(client, "grep", &grep).await?;
    observer.remark(&format!(
        "6. Stored a log of {} on {} devices, and ran functions there, in a sandbox beside the data:",
        human_bytes(stat.size),
        stat.width
    ));
    let results = vec![
        compare(client, "count", ("by", "lines,words,bytes"), &["wc", "-lwc"], &file).await?,
        compare(client, "grep", ("pattern", PATTERN), &["grep", "-nE", PATTERN], &file).await?,
    ];
    for result in &results {
        let equality = match result.equal {
            Some(true) => "equal to the local tool",
            Some(false) => "NOT equal to the local tool",
            None => "not compared, the local tool is missing",
        };
        observer.remark(&format!(
            "   {}: {} devices read {}, {} moved over the network, {:.2} s; {equality}.",
            result.function,
            result.devices,
            human_bytes(result.bytes_read),
            human_bytes(result.result_bytes),
            result.seconds
        ));
    }
    Ok(results)
}
