//! How engines end, and what the daemon learns of it.

use std::time::{Duration, Instant};

use sealstone_sandbox::{EngineExitCause, EngineLimits};

use crate::support::{AttackTargets, FIRST_BYTE, SUCCEEDED, wait, zygote};

/// Maximum time from a kill to the end of all processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

#[test]
fn exit_causes_are_told_apart() {
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
