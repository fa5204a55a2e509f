//! Generates `docs/reference/sandbox.md` from the layers and the table of system calls.
//!
//! `SEALSTONE_WRITE_DOCS=1 cargo test -p sealstone-sandbox seccomp::reference` writes the file.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::table::{FilteredProcess, ROWS, SyscallRow, SyscallVerdict};
use crate::options::EngineKind;
use crate::report::IsolationLayer;

const HEAD: &str = "\
# Sandbox of engines

The layers that confine functions of active storage, and the system calls that engines may
make. This page is generated from tables in `security/sandbox/src`; do not edit it.

## Layers

The layers are applied in this order, and foreign code is loaded after the last one. Without a
required layer no engine starts. A strict configuration also requires the others.
`sealstone osd status` reports which layers this machine offers, and why one is missing.

| layer | effect | required |
|---|---|---|
";

const CALLS: &str = "
## System calls

A call that no row allows kills the engine, and the job fails with the exit reason `trap`. A row
with an error number fails the call instead, because libraries depend on that. The filter checks the
architecture of a call first, so 32-bit calls kill the engine too. The init process of an engine
waits for the engine and reports its end.

| call | processes | condition | result | reason |
|---|---|---|---|---|
";

/// Returns what a layer does for the reader of the page.
fn effect(layer: IsolationLayer) -> &'static str {
    match layer {
        IsolationLayer::NetworkNamespace => "no network interface and no socket of the machine",
        IsolationLayer::IpcNamespace => "no shared memory and no message queue of other processes",
        IsolationLayer::UtsNamespace => "the host name is `engine`",
        IsolationLayer::PidNamespace => "no other process is visible; all processes end with the engine",
        IsolationLayer::EmptyRoot => "a read-only file system that has the code and the listed binds",
        IsolationLayer::OwnUser => {
            "a user id that no other engine of the same zygote has; needs a daemon that runs as root"
        }
        IsolationLayer::NoCapabilities => "empty capability sets, locked secure bits",
        IsolationLayer::ResourceLimits => {
            "address space, processor time, descriptors, threads; files of 0 bytes"
        }
        IsolationLayer::MemoryCgroup => "the kernel kills the engine at its memory limit",
        IsolationLayer::ProcessCgroup => "a maximum number of threads",
        IsolationLayer::CpuCgroup => "a weight below that of the daemon, and a quota if one is set",
        IsolationLayer::Undumpable => "no core dump, and no inspection by processes of the same user",
        IsolationLayer::NoNewPrivileges => "no program gives privileges",
        IsolationLayer::NoWritableCode => "no memory is writable and executable; engines for C only",
        IsolationLayer::Landlock => "no right on files, ports and signals, except for reading code and binds",
        IsolationLayer::Seccomp => "the allow-list below",
    }
}

fn processes(row: &SyscallRow) -> String {
    let engines = EngineKind::ALL.into_iter().filter(|&kind| row.processes.contains(kind.into()));
    let mut names: Vec<_> = engines.map(EngineKind::name).collect();
    if names.len() == EngineKind::ALL.len() {
        names = vec!["all engines"];
    }
    if row.processes.contains(FilteredProcess::Init) {
        names.push("init");
    }
    names.join(", ")
}

fn verdict(row: &SyscallRow) -> String {
    match row.verdict {
        SyscallVerdict::Allow => "allowed".to_owned(),
        SyscallVerdict::Fail(errno) => match errno as i32 {
            libc::ENOSYS => "ENOSYS".to_owned(),
            libc::EINVAL => "EINVAL".to_owned(),
            libc::ENOTTY => "ENOTTY".to_owned(),
            libc::EACCES => "EACCES".to_owned(),
            other => format!("error {other}"),
        },
    }
}

fn document() -> String {
    let mut text = HEAD.to_owned();
    for layer in IsolationLayer::ALL {
        let required = if layer.is_required() { "yes" } else { "strict only" };
        let _ = writeln!(text, "| {layer} | {} | {required} |", effect(layer));
    }
    text.push_str(CALLS);
    for row in ROWS {
        let condition: Vec<_> = row.conditions.iter().map(|condition| condition.text).collect();
        let condition = if condition.is_empty() { "-".to_owned() } else { condition.join(" and ") };
        let (processes, verdict) = (processes(row), verdict(row));
        let _ = writeln!(text, "| {} | {processes} | {condition} | {verdict} | {} |", row.name, row.reason);
    }
    text
}

#[test]
fn sandbox_reference_matches_tables() {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../docs/reference/sandbox.md"].iter().collect();
    let document = document();
    if std::env::var_os("SEALSTONE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &document).expect("the folder exists");
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == document, "out of date: run this test with SEALSTONE_WRITE_DOCS=1");
}
