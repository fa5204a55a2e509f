//! dbench on a file system on the unit: the paper's Table 4.
//!
//! Does: attaches a unit as a file, puts a loop device and ext4 on it, runs Debian's dbench.
//! Contract: it needs root, FUSE, loop devices, e2fsprogs and dbench; without one of them there are
//! no rows, but the reason.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use sealstone_block_protection::ProtectedBlock;

use super::device::{ACCOUNT, LevelDevice, SECRET, unit_name, write_private};
use super::{LazyStage, MeasuredPart, progress};
use crate::Outcome;
use crate::process::whole_cpu_s;
use crate::table::FigureTable;

/// Clients of dbench, and seconds of a run.
const CLIENTS: u32 = 4;
const SECONDS: u32 = 10;
/// dbench prints no throughput of its first second.
const SECONDS_QUICK: u32 = 3;
/// How long the attached file may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
const TOOLS: [&str; 4] = ["dbench", "mkfs.ext4", "losetup", "mount"];

/// Returns why this machine cannot run it.
fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("it needs root, for mounts and loop devices".to_owned());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if !Path::new(device).exists() {
            return Some(format!("{device} does not exist"));
        }
    }
    let is_missing = |tool: &&&str| {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
        !found.is_ok_and(|output| output.status.success())
    };
    TOOLS.iter().find(is_missing).map(|tool| format!("{tool} is not installed"))
}

/// Runs a program to its end; returns its output.
fn tool(name: &str, arguments: &[&str]) -> Outcome<String> {
    let output = Command::new(name).args(arguments).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name} {}: {}", arguments.join(" "), said.trim()).into())
}

/// A unit that is attached as a file, with what is on it. Everything is detached when dropped.
struct AttachedFile {
    attach: Child,
    loop_device: Option<String>,
    mounted: Option<PathBuf>,
}

impl AttachedFile {
    /// Attaches the unit, makes a file system on it and mounts it at `place`.
    fn mount(stage: &LazyStage, device: &LevelDevice, place: &Path) -> Outcome<Self> {
        let chap = stage.folder.join("chap");
        let account =
            format!("[[target]]\nnames = [\"iqn.*\"]\nuser = \"{ACCOUNT}\"\nsecret = \"{SECRET}\"\n");
        write_private(&chap, &account)?;
        let file = stage.folder.join(format!("{}.img", device.level.name));
        let mut command = Command::new(&stage.binary);
        command.args(["--json", "block", "attach", unit_name(ProtectedBlock::B4096), "--data"]);
        command.arg(device.data()).arg("--mount-file").arg(&file).arg("--chap-file").arg(&chap);
        let mut attach = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let stdout = attach.stdout.take().ok_or("no standard output")?;
        let mut attached = Self { attach, loop_device: None, mounted: None };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if line.is_empty() {
            return Err("block attach does not become ready".into());
        }
        let file = file.to_str().ok_or("the folder has a name that is not UTF-8")?;
        let device = tool("losetup", &["--find", "--show", "--direct-io=on", file])?.trim().to_owned();
        attached.loop_device = Some(device.clone());
        tool("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", &device])?;
        let place_text = place.to_str().ok_or("the folder has a name that is not UTF-8")?;
        tool("mount", &[&device, place_text])?;
        attached.mounted = Some(place.to_owned());
        Ok(attached)
    }

    fn pid(&self) -> u32 {
        self.attach.id()
    }
}

impl Drop for AttachedFile {
    fn drop(&mut self) {
        if let Some(place) = &self.mounted {
            let _ = unmount(place, UnmountFlags::empty());
        }
        if let Some(device) = &self.loop_device {
            let _ = tool("losetup", &["--detach", device]);
        }
        let _ = kill_process(Pid::from_child(&self.attach), Signal::TERM);
        let begin = Instant::now();
        while let Ok(None) = self.attach.try_wait() {
            if begin.elapsed() > STOP_TIMEOUT {
                let _ = self.attach.kill();
                let _ = self.attach.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Returns throughput in MB/s and the longest latency in ms of dbench's last line.
fn parse(output: &str) -> Option<[f64; 2]> {
    let line = output.lines().find(|line| line.starts_with("Throughput"))?;
    let rate = line.split_whitespace().nth(1)?.parse().ok()?;
    let latency = line.split("max_latency=").nth(1)?.split_whitespace().next()?.parse().ok()?;
    Some([rate, latency])
}

/// Results of one level: MB/s, longest latency, CPU seconds of device and of the attached file for
/// each second.
fn run(stage: &LazyStage, device: &LevelDevice, seconds: u32) -> Outcome<Vec<f64>> {
    let place = stage.folder.join(format!("{}.mount", device.level.name));
    std::fs::create_dir(&place)?;
    let attached = AttachedFile::mount(stage, device, &place)?;
    let before = (Instant::now(), device.cpu_s()?, whole_cpu_s(attached.pid())?);
    let place = place.to_str().ok_or("the folder has a name that is not UTF-8")?;
    let (time, clients) = (seconds.to_string(), CLIENTS.to_string());
    let output = tool("dbench", &["-D", place, "-t", &time, &clients])?;
    let (server, attach) = (device.cpu_s()? - before.1, whole_cpu_s(attached.pid())? - before.2);
    let took = before.0.elapsed().as_secs_f64();
    let [rate, latency] = parse(&output).ok_or("dbench prints no throughput")?;
    Ok(vec![rate, latency, server / took, attach / took])
}

/// Measures all levels, one after the other.
pub(super) fn measure(stage: &LazyStage) -> MeasuredPart {
    let seconds = if stage.settings.is_quick { SECONDS_QUICK } else { SECONDS };
    let title = format!("Table 4: dbench with {CLIENTS} clients for {seconds} s on ext4 on the unit");
    let columns = ["MB/s", "latency, ms", "server CPU", "attach CPU"];
    let mut table = FigureTable::new(&title, "dbench; the design documents quote no value", &columns);
    if let Some(reason) = missing() {
        table.left_out("all levels", &reason);
        return Ok((table, Vec::new()));
    }
    let bar = progress("files", stage.settings.levels.len());
    for level in stage.levels() {
        bar.set_message(level.name);
        if level.is_end_to_end {
            table.left_out(level.name, "its root needs a metadata server");
        } else {
            let device = LevelDevice::start(&stage.binary, &stage.folder, level)?;
            match run(stage, &device, seconds) {
                Ok(values) => table.add(level.name, &[values]),
                // A container may have the devices and refuse to use them.
                Err(error) => table.left_out(level.name, &error.to_string()),
            }
            device.stop()?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok((table, Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_of_dbench_parses() {
        let output =
            "  4  cleanup   0 sec\n\nThroughput 123.456 MB/sec  4 clients  4 procs  max_latency=7.890 ms\n";
        assert_eq!(parse(output), Some([123.456, 7.89]));
        assert_eq!(parse("Throughput"), None);
        assert_eq!(parse(""), None);
    }
}
