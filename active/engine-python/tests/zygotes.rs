//! Zygotes of the engine program, and engines with one function.

use std::process::Command;

use sealstone_sandbox::{EngineCode, EngineKind, EngineLimits, Zygote, ZygoteOptions};
use sealstone_test_support::left_out;

use crate::confined_engine::ConfinedEngine;

/// The engine program.
pub(crate) const ENGINE: &str = env!("CARGO_BIN_EXE_sealstone-engine-python");

/// Whether the machine has an interpreter; reports the test as left out if not.
pub(crate) fn has_interpreter() -> bool {
    let runtime = Command::new(ENGINE).arg("--runtime").output().expect("start the engine");
    if !runtime.status.success() {
        left_out("libpython is not installed");
    }
    runtime.status.success()
}

/// Returns a zygote with the binds and arguments that the program states.
pub(crate) fn zygote() -> Zygote {
    let runtime = Command::new(ENGINE).arg("--runtime").output().expect("start the engine");
    let text = String::from_utf8(runtime.stdout).expect("text");
    let mut options = ZygoteOptions::new(ENGINE, EngineKind::Python);
    options.add_runtime(&text).expect("a description");
    Zygote::spawn(options).expect("the machine can confine engines")
}

/// Limits like those of a device.
pub(crate) fn limits() -> EngineLimits {
    EngineLimits { address_space_bytes: Some(768 << 20), ..EngineLimits::default() }
}

/// Starts a confined engine with a function.
pub(crate) fn start(zygote: &Zygote, code: &str, limits: EngineLimits) -> ConfinedEngine {
    let code = EngineCode::new("fn.py", code.as_bytes()).expect("memory file");
    ConfinedEngine::start(zygote, code, limits)
}
