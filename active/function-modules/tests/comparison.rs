//! Modules in the sandboxes of the engines, compared with the same functions on local data.
//!
//! Contract: result, log, status and written objects are equal.

use std::path::{Path, PathBuf};
use std::process::Command;

use sealstone_fn::{FunctionCall, FunctionFailure, MemoryHost};
use sealstone_sandbox::{EngineCode, EngineKind, EngineLimits, EngineRequest, Zygote, ZygoteOptions};
use sealstone_test_support::{left_out, module_path, program_folder};

use crate::support::{MemoryDevice, small_ring};

/// A call of a shipped function.
pub(crate) struct ModuleCase<'c> {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut FunctionCall<'_>) -> Result<(), FunctionFailure>,
    pub(crate) arguments: &'c [u8],
    pub(crate) input: &'c [u8],
    /// Number of objects: 2 with an output.
    pub(crate) objects: usize,
}

/// Runs modules in an engine, and compares them with local runs.
fn compare_modules(
    (engine, kind, code_name): (PathBuf, EngineKind, &str),
    module: impl Fn(&str) -> PathBuf,
    cases: &[ModuleCase<'_>],
) {
    let zygote = Zygote::spawn(ZygoteOptions::new(engine, kind)).expect("the machine can confine engines");
    for ModuleCase { name, run, arguments, input, objects } in cases {
        let code = std::fs::read(module(name)).expect("the module");
        let (memory, mut ring) = small_ring();
        let limits = match kind {
            EngineKind::C => EngineLimits::default(),
            // As a device sets them: addresses are reserved, memory is limited.
            _ => EngineLimits {
                address_space_bytes: Some(6 << 30),
                data_bytes: Some(256 << 20),
                ..EngineLimits::default()
            },
        };
        let request = EngineRequest {
            code: Some(EngineCode::new(code_name, &code).expect("memory file")),
            descriptors: memory.descriptors().to_vec(),
            limits,
            ..EngineRequest::default()
        };
        let _engine = zygote.start(&request).expect("a confined engine");
        let mut device = MemoryDevice::new(&[*input, b""][..*objects]);
        let status = device.run(&mut ring, "", arguments);

        let mut local = MemoryHost::new([input.to_vec(), vec![]][..*objects].to_vec());
        let expected = FunctionCall::new(&mut local, "", arguments, *objects as u32).run(run);
        let expected = expected.map_or_else(|failure| -i64::from(failure.errno.raw()), |()| 0);
        assert_eq!(status, Ok(expected), "{name}: {:?}", device.log);
        assert_eq!(device.result, local.result, "{name}");
        let log: Vec<&str> = device.log.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(log, local.log, "{name}");
        if *objects == 2 {
            assert_eq!(device.objects[1].as_deref(), Some(&local.objects[1][..]), "{name}");
        }
    }
}

/// The cargo profile of WebAssembly modules, which builds faster than that of shipped ones.
const WASM_PROFILE: &str = "tested-function";

/// Compares shared objects in the C engine.
pub(crate) fn compare_shared_objects(cases: &[ModuleCase<'_>]) {
    let engine = program_folder().join("sealstone-engine-c");
    compare_modules((engine, EngineKind::C, "fn.so"), module_path, cases);
}

/// Builds the WebAssembly modules of a package, and compares them in their engine.
pub(crate) fn compare_wasm_modules(package: &str, cases: &[ModuleCase<'_>]) {
    let test = std::env::current_exe().expect("the path of this program");
    let target: &Path = test.ancestors().nth(3).expect("the target folder");
    let engine = target.join("engine-wasm/tested/sealstone-engine-wasm");
    if !engine.is_file() {
        return left_out("`scripts/engine-wasm test` builds the engine");
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--profile", WASM_PROFILE, "--target", "wasm32-unknown-unknown"])
        .args(["-p", package, "--examples", "--target-dir"])
        .arg(target)
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo starts");
    if !built.status.success() {
        let error = String::from_utf8_lossy(&built.stderr).into_owned();
        assert!(error.contains("target may not be installed"), "{error}");
        return left_out("the target wasm32-unknown-unknown is not installed (scripts/setup --all)");
    }
    let modules = target.join("wasm32-unknown-unknown").join(WASM_PROFILE).join("examples");
    let module = |name: &str| modules.join(format!("{name}.wasm"));
    compare_modules((engine, EngineKind::Wasm, "fn.wasm"), module, cases);
}
