//! Functions that run with a capability file alone, by a program without an account.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sealstone_client::{CapabilityFile, FilePath, RunFile};
use sealstone_mds_protocol::{CapabilityBlob, Method};
use sealstone_osd::{Capability, CapabilityBytes, Descriptor, Generation, SecurityMethod};
use sealstone_tests::{CommandResult, Signal, System, command, run_with_input, store_shipped, text};
use serde_json::Value;

use crate::revocation::{add_user, other};

/// Runs a program that has only the file: no session, no metadata server.
fn program(arguments: &[&str]) -> CommandResult {
    let mut command = command(arguments);
    command.env("SEALSTONE_SESSION", "/nonexistent/session.toml");
    CommandResult::from(command.output().expect("the binary starts"))
}

fn log_text() -> Vec<u8> {
    let line = |at: u32| match at % 9_000 {
        7 => format!("line {at} has an error\n"),
        _ => format!("line {at} of the log\n"),
    };
    (0..150_000).flat_map(|at| line(at).into_bytes()).collect()
}

/// Two devices with `grep` and `count`, a striped file `/log`, a short file `/small`, and bob.
struct DelegatedRun {
    system: System,
}

impl DelegatedRun {
    fn start() -> Self {
        let system = System::start(2);
        store_shipped(&system, &["grep", "count"]);
        run_with_input(system.command(&["put", "-", "/log"]), &log_text()).ok();
        run_with_input(system.command(&["put", "-", "/small"]), b"no\nerror here\n").ok();
        add_user(&system, "bob");
        Self { system }
    }

    fn issue(&self, function: &str, data: &[&str], until: &str) -> PathBuf {
        let path = self.system.path(&format!("{function}.cap"));
        let mut words = vec!["cap", "issue", "--execute", function, "--until", until, "--force"];
        words.extend(["-o", text(&path)]);
        data.iter().for_each(|one| words.extend(["--data", one]));
        self.system.run(&words).ok();
        path
    }

    /// Saves a run file, runs it, and expects that a device refuses and records it.
    fn refused(&self, function: CapabilityFile, data: CapabilityFile) {
        let path = self.system.path("forged.cap");
        let before = self.refusals();
        RunFile::new(function, vec![data]).and_then(|file| file.save(&path)).expect("saved");
        grep(&path).fails(3);
        self.wait_for_refusal(before);
    }

    /// Waits until the audit logs have more refusals.
    fn wait_for_refusal(&self, before: usize) {
        let start = Instant::now();
        while self.refusals() <= before {
            assert!(start.elapsed() < Duration::from_secs(60), "the refusal is in no audit log");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the number of refusals in the audit logs of the devices.
    fn refusals(&self) -> usize {
        let refusals = |device: &str| {
            let log = self.system.path(device).join("audit.jsonl");
            let text = std::fs::read_to_string(log).expect("an audit log");
            text.lines().filter(|line| line.contains("EXECUTE FUNCTION") && line.contains("refused")).count()
        };
        refusals("osd0") + refusals("osd1")
    }
}

fn grep(path: &Path) -> CommandResult {
    program(&["cap", "run", text(path), "--fixed", "--pattern", "error"])
}

/// Changes each capability of a file and leaves its keys.
fn forged(file: &CapabilityFile, change: impl Fn(&mut Capability)) -> CapabilityFile {
    let mut forged = file.clone();
    for grant in &mut forged.delegated.grants {
        let bytes = CapabilityBytes::new(Generation::Osd2, grant.capability.as_slice()).expect("104 bytes");
        let mut capability = bytes.parse().expect("an open capability");
        change(&mut capability);
        grant.capability = CapabilityBlob::new(capability.encode().to_vec()).expect("as long as before");
    }
    forged
}

#[test]
fn capability_file_runs_function_without_account() {
    let mut run = DelegatedRun::start();
    let expected = run.system.run(&["run", "grep", "--fixed", "--pattern", "error", "/log", "/small"]).ok();
    let total = run.system.run(&["--json", "run", "count", "--by", "lines", "/log"]).ok().json();
    let grep_cap = run.issue("grep", &["/log", "/small"], "10m");
    let count_cap = run.issue("count", &["/log"], "10m");
    let small = run.system.path("small.cap");
    run.system.run(&["cap", "issue", "--read", "--until", "10m", "/small", "-o", text(&small)]).ok();
    let shown = program(&["--json", "cap", "show", text(&grep_cap)]).ok().json();
    assert_eq!((&shown["execute"], &shown["path"]), (&true.into(), &"/.functions/grep".into()), "{shown}");
    assert_eq!(shown["data"][1]["path"], "/small", "{shown}");
    // The metadata server is not needed.
    run.system.end_mds(Signal::Terminate);
    let found = grep(&grep_cap).ok();
    assert!(found.stdout == expected.stdout && found.text().lines().count() > 10, "{}", found.text());
    let count = |more: &[&str]| {
        let words = ["--json", "cap", "run", text(&count_cap)];
        program(&[&words[..], more, &["--by", "lines"]].concat()).ok().json()
    };
    let counted = count(&[]);
    assert_eq!(counted["total"], total["total"], "{counted}");
    assert!(counted["jobs"].as_array().map(Vec::len) > Some(1), "one on each device: {counted}");
    // A second file adds a file to read.
    let lines = |value: &Value| value["total"]["count"]["lines"].as_u64().expect("a number");
    assert_eq!(lines(&count(&[text(&small)])), lines(&counted) + 2);
    // It permits nothing else.
    program(&["cap", "get", text(&grep_cap), "-"]).fails(1).says(&["cap run"]);
    program(&["cap", "run", text(&small)]).fails(1).says(&["does not permit to execute"]);
    program(&["cap", "run", text(&grep_cap)]).fails(2).says(&["--pattern"]);
}

#[test]
fn execution_without_right_to_data_is_refused() {
    let run = DelegatedRun::start();
    let alone = run.issue("grep", &[], "10m");
    grep(&alone).fails(3).says(&["to read no file", "--data"]);
    let function = RunFile::load(&alone).expect("a run file").function().clone();
    // A right to write does not become one to read.
    let write = run.system.path("write.cap");
    run.system.run(&["cap", "issue", "--write", "--until", "10m", "/small", "-o", text(&write)]).ok();
    let mut data = CapabilityFile::load(&write).expect("a capability file");
    data.delegated.read = true;
    run.refused(function.clone(), data);
    // Nor does the right to execute.
    let mut code = function.clone();
    code.delegated.read = true;
    code.path = FilePath::new("/other").expect("a path");
    run.refused(function, code);
    // Users delegate no more than they may do.
    let issue = ["cap", "issue", "--execute", "grep", "--until", "10m"];
    let bob = run.system.path("bob.cap");
    run.system.run(&["chmod", "600", "/small"]).ok();
    let words = [&issue[..], &["--data", "/small", "-o", text(&bob)]].concat();
    other(&run.system, "bob", &words).fails(3).says(&["/small"]);
    assert!(!bob.exists());
}

#[test]
fn changed_run_files_are_refused_and_audited() {
    let run = DelegatedRun::start();
    let path = run.issue("grep", &["/small"], "10m");
    let good = std::fs::read(&path).expect("readable");
    for at in [0, 12, good.len() / 3, good.len() - 40, good.len() - 1] {
        let mut damaged = good.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&path, &damaged).expect("written");
        grep(&path).fails(1).says(&["capability file"]);
    }
    std::fs::write(&path, &good).expect("written");
    let file = RunFile::load(&path).expect("a run file");
    let (function, data) = (file.function().clone(), file.data()[0].clone());
    // A weaker method, of one part and of the other.
    for method in [SecurityMethod::NoSec, SecurityMethod::CapKey, SecurityMethod::CmdRsp] {
        let weaker = |file: &CapabilityFile| {
            let mut weaker = forged(file, |capability| capability.method = method);
            weaker.delegated.grants.iter_mut().for_each(|grant| grant.method = Method::CapKey);
            weaker
        };
        run.refused(weaker(&function), data.clone());
        run.refused(function.clone(), weaker(&data));
    }
    // A later expiry, and the identity of another caller.
    run.refused(forged(&function, |capability| capability.expires_ms += 3_600_000), data.clone());
    run.refused(function.clone(), forged(&data, |capability| capability.expires_ms += 3_600_000));
    run.refused(forged(&function, |capability| capability.audit[19] ^= 1), data.clone());
    // Another function: its object under the capability of this one.
    let count = run.issue("count", &["/small"], "10m");
    let count = RunFile::load(&count).expect("a run file").function().clone();
    let mut wrong = function.clone();
    wrong.delegated.layout = count.delegated.layout.clone();
    let objects: Vec<_> = count.delegated.layout.objects().to_vec();
    for grant in &mut wrong.delegated.grants {
        let same = objects.iter().find(|object| object.device == grant.object.device);
        grant.object = *same.expect("a copy on each device");
    }
    wrong.delegated.grants.sort_by_key(|grant| objects.iter().position(|object| *object == grant.object));
    let named = forged(&wrong, |capability| {
        if let Descriptor::User { allowed, .. } = &mut capability.descriptor {
            allowed.object += 1;
        }
    });
    run.refused(wrong, data.clone());
    run.refused(named, data.clone());
    // The right to execute one function does not run the code of another one.
    let mut swapped = count;
    swapped.path = function.path.clone();
    swapped.delegated.stat.checksum = function.delegated.stat.checksum;
    RunFile::new(swapped, vec![data]).and_then(|file| file.save(&path)).expect("saved");
    grep(&path).fails(1).says(&["differs from its digest"]);
}

#[test]
fn expired_and_revoked_run_files_end() {
    let run = DelegatedRun::start();
    let short = run.issue("grep", &["/small"], "1s");
    std::thread::sleep(Duration::from_millis(1_500));
    grep(&short).fails(3).says(&["expired"]);
    for revoked in ["/small", "/.functions/grep"] {
        let path = run.issue("grep", &["/small"], "10m");
        grep(&path).ok();
        let before = run.refusals();
        run.system.run(&["revoke", "--object", revoked]).ok();
        grep(&path).fails(3).says(&["revoked"]);
        run.wait_for_refusal(before);
        run.system.run(&["run", "grep", "--pattern", "error", "/small"]).ok();
    }
}
