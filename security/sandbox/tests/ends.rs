//! How engines end, and what the daemon learns of it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sealstone_sandbox::{EngineExitCause, EngineLimits, EngineRequest, SandboxError, Zygote};
use sealstone_test_support::left_out;

use crate::support::{
    ATTACK_ENGINE, AttackTargets, FIRST_BYTE, SUCCEEDED, cgroup_folders, descendants, is_root, options, wait,
    zygote,
};

/// Maximum time from a kill to the end of all processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn exit_causes_are_distinguished() {
    let (zygote, targets) = (zygote(), AttackTargets::create());
    for (behaviour, cause) in [
        ("succeed", EngineExitCause::Exited(SUCCEEDED)),
        ("read-descriptor", EngineExitCause::Exited(FIRST_BYTE.into())),
        // Standard input, output and error, and the two that it received.
        ("count-descriptors", EngineExitCause::Exited(5)),
        ("panic", EngineExitCause::Exited(101)),
        ("abort", EngineExitCause::Signalled(libc::SIGABRT)),
        ("fault", EngineExitCause::Signalled(libc::SIGSEGV)),
        ("io-uring", EngineExitCause::ForbiddenCall),
    ] {
        let exit = targets.run(&zygote, behaviour, EngineLimits::default());
        assert_eq!(exit.cause, cause, "{behaviour}");
    }
    targets.assert_unchanged();
}

#[test]
fn figures_of_engine_are_reported() {
    let (zygote, targets) = (zygote(), AttackTargets::create());
    let exit = targets.run(&zygote, "use-memory", EngineLimits::default());
    assert_eq!(exit.cause, EngineExitCause::Exited(0));
    assert!(exit.peak_memory >= 64 << 20, "{exit:?}");
    assert!(exit.cpu_time >= Duration::from_millis(1), "{exit:?}");
}

#[test]
fn killed_engine_is_reaped_in_time() {
    let (zygote, targets) = (zygote(), AttackTargets::create());
    let engine = targets.start(&zygote, "processor-spin", EngineLimits::default());
    while engine.cpu_time() < Duration::from_millis(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(engine.peak_memory() > 0);
    assert_eq!(engine.wait(Some(Duration::ZERO)).expect("wait"), None);
    let begin = Instant::now();
    engine.kill();
    let exit = wait(&engine);
    assert!(begin.elapsed() < KILL_TIMEOUT, "{:?}", begin.elapsed());
    assert_eq!(exit.cause, EngineExitCause::Killed);
    assert!(exit.cpu_time >= Duration::from_millis(20) && exit.peak_memory > 0, "{exit:?}");
}

#[test]
fn killed_zygote_ends_its_engines() {
    let (zygote, targets) = (zygote(), AttackTargets::create());
    let engines =
        ["sleep", "processor-spin"].map(|name| targets.start(&zygote, name, EngineLimits::default()));
    let id = zygote.id();
    kill(id);
    for engine in &engines {
        assert_eq!(wait(engine).cause, EngineExitCause::Lost);
    }
    await_condition("the zygote ends", || !zygote.is_running());
    let refused = zygote.start(&EngineRequest::default());
    assert!(matches!(refused, Err(SandboxError::ZygoteEnded)), "{refused:?}");
    drop(zygote);
    assert_eq!(cgroup_folders(id), [""; 0]);
}

#[test]
fn killed_daemon_leaves_no_process() {
    let mut daemon = Command::new(ATTACK_ENGINE)
        .arg("--daemon")
        .stdout(Stdio::piped())
        .spawn()
        .expect("start a daemon with an engine");
    let mut line = String::new();
    let output = daemon.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut line).expect("the zygote's process id");
    let zygote: u32 = line.trim().parse().expect("a number");
    let processes = descendants(zygote);
    // The zygote, the init process and the engine.
    assert_eq!(processes.len(), 3, "{processes:?}");
    daemon.kill().expect("kill the daemon");
    daemon.wait().expect("reap the daemon");
    for process in processes {
        await_condition("a process of the daemon ends", || has_ended(process));
    }
    await_condition("the cgroups are removed", || cgroup_folders(zygote).is_empty());
}

#[test]
fn dropped_zygote_ends_engines_and_groups() {
    let (zygote, targets) = (zygote(), AttackTargets::create());
    let engine = targets.start(&zygote, "sleep", EngineLimits::default());
    let id = zygote.id();
    let has_cgroups = zygote.isolation().is_active(sealstone_sandbox::IsolationLayer::MemoryCgroup);
    assert_eq!(!cgroup_folders(id).is_empty(), has_cgroups);
    drop(zygote);
    assert_eq!(wait(&engine).cause, EngineExitCause::Lost);
    assert_eq!(cgroup_folders(id), [""; 0]);
}

#[test]
fn abandoned_group_is_removed_by_next_zygote() {
    /// Larger than any process id that the kernel gives.
    const NO_PROCESS: u32 = 4_194_400;
    let first = zygote();
    let Some(own) = cgroup_folders(first.id()).into_iter().next() else {
        return left_out("cgroups need root or a delegated subtree");
    };
    let parent = Path::new(&own).parent().expect("a parent");
    let abandoned = parent.join(format!("sealstone-engines-{NO_PROCESS}/7"));
    std::fs::create_dir_all(&abandoned).expect("create groups");
    let second = zygote();
    assert!(!abandoned.exists() && !cgroup_folders(first.id()).is_empty());
    drop(second);
}

#[test]
fn used_user_ids_refuse_engine_until_reaped() {
    if !is_root() {
        return left_out("user ids of engines need root");
    }
    let mut options = options(&[]);
    options.users.count = 1;
    let (zygote, targets) = (Zygote::spawn(options).expect("a zygote"), AttackTargets::create());
    let engine = targets.start(&zygote, "sleep", EngineLimits::default());
    let refused = zygote.start(&EngineRequest::default());
    assert!(
        matches!(&refused, Err(SandboxError::Confinement { step, .. }) if step.contains("user id")),
        "{refused:?}"
    );
    engine.kill();
    wait(&engine);
    targets.run(&zygote, "succeed", EngineLimits::default());
}

#[test]
fn concurrent_starts_have_their_own_engines() {
    let (zygote, targets) = (zygote(), AttackTargets::create());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for (behaviour, code) in [("succeed", SUCCEEDED), ("read-descriptor", FIRST_BYTE.into())] {
                    let exit = targets.run(&zygote, behaviour, EngineLimits::default());
                    assert_eq!(exit.cause, EngineExitCause::Exited(code), "{behaviour}");
                }
            });
        }
    });
}

#[test]
fn program_that_is_no_engine_is_refused() {
    let mut options = options(&[]);
    options.program = "/bin/true".into();
    options.arguments.clear();
    assert!(matches!(Zygote::spawn(options.clone()), Err(SandboxError::ZygoteEnded)));
    options.program = "/bin/no-such-program".into();
    assert!(matches!(Zygote::spawn(options), Err(SandboxError::System { .. })));
}

#[test]
fn engine_program_without_daemon_refuses_to_run() {
    let output = Command::new(ATTACK_ENGINE).stdin(Stdio::null()).output().expect("start the program");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("sealstone osd serve"), "{output:?}");
}

fn kill(process: u32) {
    let pid = Pid::from_raw(process as i32).expect("a process id");
    kill_process(pid, Signal::KILL).expect("kill");
}

/// Whether a process has ended; its parent may not have reaped it yet.
fn has_ended(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state follows the name in parentheses.
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

fn await_condition(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + KILL_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {KILL_TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
