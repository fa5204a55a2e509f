//! Mounts by a process in the background, which prints a ready line as JSON.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, FailureKind, Outcome};
use serde_json::Value;

/// Maximum bytes of output of the background process that are read.
const OUTPUT_MAX: u64 = 64 << 10;

/// Starts a process and waits until it has printed its ready line; returns that line. Its log goes
/// to the file, or to memory.
///
/// # Errors
/// It does not start, or ends without a ready line: then the failure that it logged.
pub fn start_background(mut command: Command, log_file: Option<&Path>) -> Outcome<Value> {
    let (log, mut reader) = open_log(log_file)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().map_err(|error| Failure::from(error).at("mount"))?;
    let stdout = child.stdout.take().expect("piped");
    let mut line = String::new();
    BufReader::new(stdout.take(OUTPUT_MAX)).read_line(&mut line)?;
    if let Ok(ready) = serde_json::from_str::<Value>(&line) {
        return Ok(ready);
    }
    let status = child.wait()?;
    Err(background_failure(&mut reader, status.code()))
}

/// Returns the file for the log of the background process, and a reader of it.
fn open_log(file: Option<&Path>) -> Outcome<(File, File)> {
    let Some(path) = file else {
        // A file in memory needs no temporary folder and no disk space.
        let memory = rustix::fs::memfd_create("sealstone-mount", rustix::fs::MemfdFlags::CLOEXEC)
            .map_err(|error| Failure::from(std::io::Error::from(error)).at("log in memory"))?;
        let file = File::from(memory);
        return Ok((file.try_clone()?, file));
    };
    let at = |error: std::io::Error| Failure::from(error).at(path.shown());
    let file = OpenOptions::new().create(true).append(true).open(path).map_err(at)?;
    let mut reader = File::open(path).map_err(at)?;
    reader.seek(std::io::SeekFrom::End(0)).map_err(at)?;
    Ok((file, reader))
}

/// Returns the failure that the background process logged.
fn background_failure(log: &mut File, code: Option<i32>) -> Failure {
    let mut text = String::new();
    // A log file is read from its previous end, the file in memory from its start.
    if log.metadata().is_ok_and(|metadata| metadata.nlink() == 0) {
        let _ = log.rewind();
    }
    let _ = log.take(OUTPUT_MAX).read_to_string(&mut text);
    for line in text.lines().rev() {
        let Ok(value) = serde_json::from_str::<Value>(line) else { continue };
        let error = &value["error"];
        let (Some(kind), Some(message)) = (error["kind"].as_str(), error["message"].as_str()) else {
            continue;
        };
        let failure = Failure::new(FailureKind::from_name(kind), message);
        return match error["next_step"].as_str() {
            Some(next) => failure.hint(next),
            None => failure,
        };
    }
    let failure = Failure::operation(match code {
        Some(code) => format!("the mount process ended with exit code {code}"),
        None => "a signal ended the mount process".to_owned(),
    });
    failure.hint("run it with --foreground to see its log")
}
