//! Attempts to leave the sandbox, each with what stops it.
//!
//! Each attempt is one confined engine. It runs with all layers, and as a weaker engine without
//! seccomp. The page `docs/standards/sandbox-attacks.md` is generated from the table:
//! `SEALSTONE_WRITE_DOCS=1 cargo test -p sealstone-sandbox attack_page`.

use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use sealstone_sandbox::{EngineExitCause, EngineLimits, IsolationLayer, Zygote};

use crate::support::{AttackTargets, SUCCEEDED, is_root, options, wait, zygote};

/// User and group of the daemon in the test without root.
const PLAIN_USER: u32 = 65_500;

/// How an attempt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttackEnd {
    /// The filter of system calls kills the engine.
    Filtered,
    /// The call fails with this error number.
    Refused(i32),
    /// The call fails with an error number that depends on the machine.
    Denied,
    /// The kernel kills the engine at a limit.
    MemoryLimit,
    CpuLimit,
    /// A signal of a resource limit ends the engine.
    Signalled(i32),
    /// The call succeeds, and only seccomp stops it.
    Unstopped,
    /// The call succeeds without an effect outside of the engine.
    Harmless,
}

impl AttackEnd {
    fn is(self, cause: EngineExitCause) -> bool {
        let expected = match self {
            Self::Filtered => EngineExitCause::ForbiddenCall,
            Self::Refused(errno) => EngineExitCause::Exited(errno),
            Self::Denied => {
                return matches!(cause, EngineExitCause::Exited(errno) if (1..SUCCEEDED).contains(&errno));
            }
            Self::MemoryLimit => EngineExitCause::MemoryLimit,
            Self::CpuLimit => EngineExitCause::CpuLimit,
            Self::Signalled(signal) => EngineExitCause::Signalled(signal),
            Self::Unstopped | Self::Harmless => EngineExitCause::Exited(SUCCEEDED),
        };
        cause == expected
    }

    fn text(self) -> String {
        match self {
            Self::Filtered => "killed by seccomp".to_owned(),
            Self::Refused(errno) => {
                let text = std::io::Error::from_raw_os_error(errno).to_string();
                text.split(" (os error").next().unwrap_or_default().to_lowercase()
            }
            Self::Denied => "refused".to_owned(),
            Self::MemoryLimit => "killed at the memory limit".to_owned(),
            Self::CpuLimit => "killed at the CPU limit".to_owned(),
            Self::Signalled(signal) => format!("killed by signal {signal}"),
            Self::Unstopped => "**succeeds**".to_owned(),
            Self::Harmless => "succeeds without effect".to_owned(),
        }
    }
}

use AttackEnd::{CpuLimit, Denied, Filtered, Harmless, MemoryLimit, Refused, Signalled, Unstopped};

/// One attempt: its end with all layers and without seccomp, and the layers that stop it.
struct AttackRow {
    name: &'static str,
    confined: AttackEnd,
    unfiltered: AttackEnd,
    layers: &'static str,
}

const fn row(
    name: &'static str,
    confined: AttackEnd,
    unfiltered: AttackEnd,
    layers: &'static str,
) -> AttackRow {
    AttackRow { name, confined, unfiltered, layers }
}

const ATTACKS: &[AttackRow] = &[
    row("open-passwd", Refused(libc::ENOENT), Refused(libc::ENOENT), "empty root, Landlock"),
    row("open-above-root", Refused(libc::ENOENT), Refused(libc::ENOENT), "empty root, Landlock"),
    row("open-own-maps", Refused(libc::ENOENT), Refused(libc::ENOENT), "empty root, Landlock"),
    row("open-memory-device", Refused(libc::ENOENT), Refused(libc::ENOENT), "empty root, own user id"),
    row("list-root", Refused(libc::EACCES), Refused(libc::EACCES), "Landlock"),
    row("create-file", Filtered, Refused(libc::ENOENT), "seccomp, empty root, Landlock"),
    row("create-in-root", Filtered, Refused(libc::EROFS), "seccomp, empty root, Landlock"),
    row("write-code", Filtered, Refused(libc::EROFS), "seccomp, empty root, Landlock"),
    row("make-folder", Filtered, Refused(libc::EROFS), "seccomp, empty root, Landlock"),
    row("make-device", Filtered, Refused(libc::EROFS), "seccomp, empty root, no capabilities"),
    row("remove-code", Filtered, Refused(libc::EROFS), "seccomp, empty root, Landlock"),
    row("reopen-to-write", Filtered, Refused(libc::ENOENT), "seccomp, empty root"),
    row("write-read-only-file", Filtered, Refused(libc::EBADF), "seccomp, mode of the descriptor"),
    row("truncate-read-only-file", Filtered, Refused(libc::EINVAL), "seccomp, mode of the descriptor"),
    row("open-by-handle", Filtered, Refused(libc::EPERM), "seccomp, no capabilities"),
    row("connect-tcp", Filtered, Refused(libc::EACCES), "seccomp, Landlock, network namespace"),
    row(
        "connect-abstract-socket",
        Filtered,
        Refused(libc::ECONNREFUSED),
        "seccomp, network namespace, Landlock",
    ),
    row("raw-socket", Filtered, Refused(libc::EPERM), "seccomp, no capabilities"),
    row("netlink-socket", Filtered, Harmless, "seccomp, network namespace"),
    row("packet-socket", Filtered, Refused(libc::EPERM), "seccomp, no capabilities"),
    row("vsock-socket", Filtered, Unstopped, "seccomp"),
    row("ptrace-init", Filtered, Refused(libc::EPERM), "seccomp, not dumpable, PID namespace"),
    row("read-memory-of-init", Filtered, Refused(libc::EPERM), "seccomp, not dumpable, PID namespace"),
    row("descriptor-of-init", Filtered, Refused(libc::EPERM), "seccomp, not dumpable, PID namespace"),
    row("kill-init", Filtered, Refused(libc::EPERM), "seccomp, Landlock, PID namespace"),
    row("kill-all", Filtered, Refused(libc::ESRCH), "seccomp, PID namespace, own user id"),
    row("fork-bomb", Filtered, Refused(libc::EAGAIN), "seccomp, resource limits, process cgroup"),
    row("vfork", Filtered, Refused(libc::EAGAIN), "seccomp, resource limits, process cgroup"),
    row("start-thread", Filtered, Refused(libc::EAGAIN), "seccomp, resource limits, process cgroup"),
    row("memory-bomb", MemoryLimit, MemoryLimit, "memory cgroup, resource limits"),
    row("huge-page-memory", Filtered, Denied, "seccomp; needs huge pages that the machine reserves"),
    row("descriptor-exhaustion", Refused(libc::EMFILE), Refused(libc::EMFILE), "resource limits"),
    row("processor-spin", CpuLimit, CpuLimit, "resource limits, CPU cgroup"),
    row("execute-shell", Filtered, Refused(libc::ENOENT), "seccomp, empty root, Landlock"),
    row("execute-code", Filtered, Refused(libc::EACCES), "seccomp, Landlock"),
    row("execute-memory-file", Filtered, Refused(libc::ENOEXEC), "seccomp"),
    row("user-namespace", Filtered, Unstopped, "seccomp"),
    row("mount-namespace", Filtered, Refused(libc::EPERM), "seccomp, no capabilities"),
    row("io-uring", Filtered, Denied, "seccomp"),
    row("userfaultfd", Filtered, Denied, "seccomp, no capabilities"),
    row("memory-file", Filtered, Unstopped, "seccomp; its pages count for the memory cgroup"),
    row("shared-memory", Filtered, Harmless, "seccomp, IPC namespace"),
    row("message-queue", Filtered, Harmless, "seccomp, IPC namespace"),
    row("performance-events", Filtered, Denied, "seccomp, no capabilities"),
    row("become-root", Filtered, Refused(libc::EPERM), "seccomp, no capabilities"),
    row("become-other-user", Filtered, Refused(libc::EPERM), "seccomp, no capabilities"),
    row("take-capabilities", Filtered, Refused(libc::EPERM), "seccomp, no capabilities"),
    row("change-root", Filtered, Refused(libc::EPERM), "seccomp, no capabilities"),
    row("mount", Filtered, Refused(libc::EPERM), "seccomp, no capabilities, Landlock"),
    row("remount-root", Filtered, Refused(libc::EPERM), "seccomp, no capabilities, Landlock"),
    row("unmount-root", Filtered, Refused(libc::EPERM), "seccomp, no capabilities, Landlock"),
    row("bpf", Filtered, Refused(libc::EPERM), "seccomp, no capabilities"),
    row("load-module", Filtered, Denied, "seccomp, no capabilities"),
    row("add-key", Filtered, Unstopped, "seccomp; the keyring is the own user's"),
    row("kernel-log", Filtered, Denied, "seccomp, no capabilities"),
    row("reboot", Filtered, Refused(libc::EPERM), "seccomp, no capabilities"),
    row("set-host-name", Filtered, Refused(libc::EPERM), "seccomp, no capabilities, UTS namespace"),
    row("set-time", Filtered, Refused(libc::EPERM), "seccomp, no capabilities"),
    row("raise-limit", Filtered, Refused(libc::EPERM), "seccomp, no capabilities"),
    row("become-dumpable", Filtered, Harmless, "seccomp, PID namespace"),
    row("outlive-parent", Filtered, Harmless, "seccomp, PID namespace"),
    row("personality", Filtered, Harmless, "seccomp"),
    row("shrink-memory-file", Filtered, Refused(libc::EPERM), "seccomp, seals"),
    row("grow-memory-file", Filtered, Signalled(libc::SIGXFSZ), "seccomp, seals, resource limits"),
    row("punch-memory-file", Filtered, Unstopped, "seccomp"),
    row("unseal-memory-file", Filtered, Refused(libc::EPERM), "seccomp, seals"),
    row("write-then-execute", Refused(libc::EACCES), Refused(libc::EACCES), "no writable code"),
    row("write-and-execute", Refused(libc::EACCES), Refused(libc::EACCES), "no writable code"),
    row("map-executable", Refused(libc::EACCES), Refused(libc::EACCES), "no writable code"),
    row("inject-terminal-input", Filtered, Refused(libc::ENOTTY), "seccomp, no terminal"),
    row("broken-pointer", Filtered, Refused(libc::EFAULT), "seccomp"),
    row("bind-to-processor", Filtered, Unstopped, "seccomp"),
    row("thirty-two-bit-call", Filtered, Harmless, "seccomp, which checks the architecture"),
    row("x32-call", Filtered, Denied, "seccomp"),
];

/// Limits that the bombs reach soon.
fn small_limits() -> EngineLimits {
    let (memory_bytes, address_space_bytes) = (48 << 20, Some(256 << 20));
    EngineLimits { memory_bytes, address_space_bytes, cpu_seconds: 1, ..EngineLimits::default() }
}

/// Runs all attempts while a neighbour engine runs, which must notice none of them.
fn run_attacks(zygote: &Zygote, check: impl Fn(&AttackRow, EngineExitCause) -> Option<String>) {
    let targets = AttackTargets::create();
    let neighbour = targets.start(zygote, "sleep", EngineLimits::default());
    let mut findings = Vec::new();
    for row in ATTACKS {
        let exit = targets.run(zygote, row.name, small_limits());
        findings.extend(check(row, exit.cause).map(|finding| format!("{}: {finding}", row.name)));
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
    assert_eq!(neighbour.wait(Some(std::time::Duration::ZERO)).expect("wait"), None);
    assert!(zygote.is_running());
    neighbour.kill();
    wait(&neighbour);
    targets.assert_sizes();
}

fn expect(end: AttackEnd, cause: EngineExitCause) -> Option<String> {
    (!end.is(cause)).then(|| format!("{cause:?} instead of {end:?}"))
}

#[test]
fn every_attempt_has_a_row() {
    let targets = AttackTargets::create();
    let exit = targets.run(&zygote(), "count-attempts", EngineLimits::default());
    assert_eq!(exit.cause, EngineExitCause::Exited(ATTACKS.len() as i32));
    assert!(ATTACKS.iter().all(|row| !matches!(row.confined, Unstopped | Harmless)));
}

#[test]
fn attempts_fail_with_all_layers() {
    let zygote = zygote();
    let is_complete = zygote.isolation().missing().next().is_none();
    run_attacks(&zygote, |row, cause| match row.confined {
        end if is_complete => expect(end, cause),
        // Without cgroups the limit of the address space refuses memory.
        MemoryLimit if cause == EngineExitCause::Exited(libc::ENOMEM) => None,
        MemoryLimit => expect(MemoryLimit, cause),
        Filtered => expect(Filtered, cause),
        _ => (cause == EngineExitCause::Exited(SUCCEEDED)).then(|| "succeeded".to_owned()),
    });
}

#[test]
fn other_layers_stop_attempts_without_seccomp() {
    let zygote = Zygote::spawn(options(&[IsolationLayer::Seccomp])).expect("a zygote without seccomp");
    let is_complete = zygote.isolation().missing().count() == 1;
    assert!(!zygote.isolation().is_active(IsolationLayer::Seccomp));
    run_attacks(&zygote, |row, cause| match row.unfiltered {
        end if is_complete => expect(end, cause),
        Unstopped | Harmless => None,
        _ => (cause == EngineExitCause::Exited(SUCCEEDED)).then(|| "succeeded".to_owned()),
    });
}

#[test]
fn namespaces_stop_attempts_without_seccomp_and_landlock() {
    let omitted = [IsolationLayer::Seccomp, IsolationLayer::Landlock];
    let zygote = Zygote::spawn(options(&omitted)).expect("a zygote without both");
    run_attacks(&zygote, |row, cause| match (row.name, row.unfiltered) {
        // Its signal is ignored by an init process.
        (_, Unstopped | Harmless) | ("list-root" | "kill-init", _) => None,
        _ => (cause == EngineExitCause::Exited(SUCCEEDED)).then(|| "succeeded".to_owned()),
    });
}

/// Runs the tests above again in a process without root, from a folder that it may read.
#[test]
fn attempts_fail_under_unprivileged_daemon() {
    if !is_root() {
        // Then the other tests of this module have done it.
        return;
    }
    let tests = ["attempts_fail_with_all_layers", "other_layers_stop_attempts_without_seccomp"];
    for test in tests {
        let output = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "--nocapture", &format!("attacks::{test}")])
            .uid(PLAIN_USER)
            .gid(PLAIN_USER)
            .output()
            .expect("start this test program as another user");
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{test}: {text}");
    }
}

#[test]
fn attack_page_matches_table() {
    let mut page = "\
# Attacks on the sandbox of engines

Attempts of a hostile function, each run as a confined engine by
`security/sandbox/tests/attacks.rs`. This page is generated from the table in that file; do not edit
it. The second column is the result with all layers. The third one is the result without seccomp,
and shows which attempts the other layers stop. The last column names these layers
([sandbox](../reference/sandbox.md)).

| attempt | all layers | without seccomp | stopped by |
|---|---|---|---|
"
    .to_owned();
    for row in ATTACKS {
        let (confined, unfiltered) = (row.confined.text(), row.unfiltered.text());
        let _ = writeln!(page, "| {} | {confined} | {unfiltered} | {} |", row.name, row.layers);
    }
    let path: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "../../docs/standards/sandbox-attacks.md"].iter().collect();
    if std::env::var_os("SEALSTONE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("the folder exists");
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == page, "out of date: run this test with SEALSTONE_WRITE_DOCS=1");
}
