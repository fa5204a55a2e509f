//! Zygotes of the engine program, and engines with one function.

use std::path::PathBuf;
use std::process::Command;

use sealstone_sandbox::{EngineCode, EngineKind, EngineLimits, Zygote, ZygoteOptions};
use sealstone_test_support::left_out;

use crate::confined_engine::ConfinedEngine;

/// The engine program.
pub(crate) const ENGINE: &str = env!("CARGO_BIN_EXE_sealstone-engine-java");

/// Whether the machine has a JDK and the SDK; reports the test as left out if not.
pub(crate) fn has_java() -> bool {
    let runtime = Command::new(ENGINE).arg("--runtime").output().expect("start the engine");
    if !runtime.status.success() {
        left_out(String::from_utf8_lossy(&runtime.stderr).trim());
        return false;
    }
    let has_compiler =
        Command::new("javac").arg("-version").output().is_ok_and(|output| output.status.success());
    if !has_compiler {
        left_out("javac is not installed");
    }
    has_compiler
}

/// Returns the installations of Java of this machine that functions can use.
pub(crate) fn homes() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let homes = entries.filter_map(|entry| entry.path().canonicalize().ok());
    let mut homes: Vec<_> = homes.filter(|home| runtime(Some(home)).is_some()).collect();
    homes.sort_unstable();
    homes.dedup();
    homes
}

/// Returns the description of a runtime.
fn runtime(home: Option<&PathBuf>) -> Option<String> {
    let mut command = Command::new(ENGINE);
    command.arg("--runtime");
    if let Some(home) = home {
        command.env("SEALSTONE_JAVA_HOME", home);
    }
    let output = command.output().expect("start the engine");
    output.status.success().then(|| String::from_utf8(output.stdout).expect("text"))
}

/// Returns a zygote with the binds and arguments that the program states.
pub(crate) fn zygote() -> Zygote {
    zygote_of(None)
}

/// Returns a zygote with an installation of Java.
pub(crate) fn zygote_of(home: Option<&PathBuf>) -> Zygote {
    let mut options = ZygoteOptions::new(ENGINE, EngineKind::Java);
    options.add_runtime(&runtime(home).expect("a runtime")).expect("a description");
    Zygote::spawn(options).expect("the machine can confine engines")
}

/// Limits like those of a device.
pub(crate) fn limits() -> EngineLimits {
    EngineLimits {
        address_space_bytes: None,
        data_bytes: Some(256 << 20),
        threads: 64,
        descriptors: 64,
        ..EngineLimits::default()
    }
}

/// Starts a confined engine with a function.
pub(crate) fn start(zygote: &Zygote, code: &[u8], limits: EngineLimits) -> ConfinedEngine {
    let code = EngineCode::new("fn.jar", code).expect("memory file");
    ConfinedEngine::start(zygote, code, limits)
}
