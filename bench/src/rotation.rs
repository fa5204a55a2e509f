//! Working keys of many partitions changed by the metadata server, while clients put and get files through it.
//!
//! Does: run a metadata server and a device as processes on a disk, rotate, count what failed. Does not: judge.
//! Contract: the time is that of the rotation as `mds keys rotate` measures it: from the request until the last key is
//! set at the device and stored at the server. Clients run before, during and after it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use serde::Serialize;
use serde_json::Value;

use crate::Outcome;
use crate::daemon::{Mds, Osd};
use crate::settings::Run;
use crate::workload::median;

/// Partitions of the device, each with keys of its own.
const PARTITIONS: u64 = 1000;
/// Clients that put and get, each a process at a time.
const CLIENTS: usize = 3;
const FILE_BYTES: usize = 1 << 20;
/// Rotations measured.
const ROUNDS: usize = 5;
/// Seconds that a grant lives: versions of the key come free again between rounds.
const GRANT_S: &str = "10";

/// What came of it.
#[derive(Debug, Serialize)]
struct Findings {
    partitions: u64,
    /// Seconds of each rotation of all working keys.
    rotations_s: Vec<f64>,
    rotation_s: f64,
    /// Of a rotation that also overwrites the superseded keys at once.
    revocation_s: f64,
    /// Puts and gets meanwhile, and those that failed.
    operations: u64,
    failed: u64,
}

/// A user of the system that is measured.
#[derive(Clone)]
pub(crate) struct User {
    pub(crate) binary: PathBuf,
    pub(crate) session: PathBuf,
}

impl User {
    /// One whose session is in this file.
    pub(crate) fn new(binary: &Path, session: &Path) -> Self {
        Self { binary: binary.to_owned(), session: session.to_owned() }
    }

    /// Logs in as the administrator.
    pub(crate) fn login(&self, mds: &Mds) -> Outcome {
        let (cluster, secret) = (mds.data.join("cluster.toml"), mds.data.join("admin-secret"));
        let (cluster, secret) = (text(&cluster)?, text(&secret)?);
        self.run(&["login", "admin", "--cluster", cluster, "--password-file", secret]).map(drop)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("--json").args(arguments).env("SEALSTONE_SESSION", &self.session);
        command.env("SEALSTONE_LOG", "off").stdin(Stdio::null());
        command
    }

    /// What a command that must succeed says.
    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome<Value> {
        let output = self.command(arguments).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("`{}` failed: {said}", arguments.join(" ")).into());
        }
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
    }

    /// Puts a file and gets it back; how many of the two failed.
    fn there_and_back(&self, path: &str, bytes: &[u8]) -> Outcome<u64> {
        let mut put =
            self.command(&["put", "-", path]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        if let Some(mut stdin) = put.stdin.take() {
            // One that fails does not read all of it.
            let _ = stdin.write_all(bytes);
        }
        let put = put.wait()?.success();
        let got = self.command(&["get", path, "-"]).output()?;
        let got = got.status.success() && got.stdout == bytes;
        Ok(u64::from(!put) + u64::from(!got))
    }
}

pub(crate) fn text(path: &Path) -> Outcome<&str> {
    path.to_str().ok_or_else(|| "a path that is not UTF-8".into())
}

/// Measures and prints.
pub(crate) fn run(arguments: &Run) -> Outcome {
    let settings = arguments.settings()?;
    let folder = match &arguments.folder {
        Some(parent) => tempfile::tempdir_in(parent)?,
        None => tempfile::tempdir()?,
    };
    let partitions = PARTITIONS.to_string();
    let flags = ["--grant-s", GRANT_S, "--file-partitions", &partitions];
    let mds = Mds::new(&settings.binary, &folder.path().join("mds"), &flags)?;
    let osd = Osd::new(&settings.binary, &folder.path().join("osd"))?;
    let user = User::new(&settings.binary, &folder.path().join("session"));
    user.login(&mds)?;
    eprintln!("making {PARTITIONS} partitions and setting their keys");
    let key = osd.data.join("initial.key");
    user.run(&["mds", "add-osd", &osd.url, "--key", text(&key)?, "--wait", "600"])?;
    let (stop, done, failed) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (user, stop, done, failed) = (user.clone(), stop.clone(), done.clone(), failed.clone());
            thread::spawn(move || -> Outcome {
                let bytes: Vec<u8> = (0..FILE_BYTES).map(|at| (at * 31 + client) as u8).collect();
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    let path = format!("/client-{client}-{}", round % 100);
                    failed.fetch_add(user.there_and_back(&path, &bytes)?, Ordering::Relaxed);
                    done.fetch_add(2, Ordering::Relaxed);
                }
                Ok(())
            })
        })
        .collect();
    let rotate = |further: &[&str]| -> Outcome<f64> {
        let arguments = [&["mds", "keys", "rotate", "working"][..], further].concat();
        let told = user.run(&arguments)?;
        told["seconds"].as_f64().ok_or_else(|| "the command tells no time".into())
    };
    let mut rotations_s = Vec::new();
    for round in 0..ROUNDS {
        let seconds = rotate(&[])?;
        eprintln!("rotation {}: {seconds:.2} s", round + 1);
        rotations_s.push(seconds);
    }
    let revocation_s = rotate(&["--revoke"])?;
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().map_err(|_| "a client panicked")??;
    }
    let findings = Findings {
        partitions: PARTITIONS + 1,
        rotation_s: median(&mut rotations_s.clone()),
        rotations_s,
        revocation_s,
        operations: done.load(Ordering::Relaxed),
        failed: failed.load(Ordering::Relaxed),
    };
    if let Some(file) = &arguments.json {
        fs::write(file, serde_json::to_vec_pretty(&findings)?)?;
    }
    println!(
        "working keys of {} partitions: {:.2} s a rotation (median of {ROUNDS}; {:.2} s with --revoke); {} puts and gets \
         meanwhile, {} failed",
        findings.partitions, findings.rotation_s, findings.revocation_s, findings.operations, findings.failed
    );
    osd.stop()?;
    mds.stop()
}
