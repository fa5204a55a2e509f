//! The modules run in the sandboxes of both engines, and give the result of the function on local
//! data.

use std::path::PathBuf;
use std::process::Command;

use sealstone_fn::{FunctionCall, MemoryHost};
use sealstone_functions::{ResultLine, find_function, parse_result};
use sealstone_sandbox::{EngineCode, EngineKind, EngineLimits, EngineRequest, Zygote, ZygoteOptions};
use sealstone_test_support::{left_out, module_path, program_folder};

use crate::support::{MemoryDevice, small_ring};

/// Runs shipped functions as modules in an engine, and compares them with local runs.
fn compare_modules(engine: PathBuf, kind: EngineKind, code_name: &str, module: impl Fn(&str) -> PathBuf) {
    let zygote = Zygote::spawn(ZygoteOptions::new(engine, kind)).expect("the machine can confine engines");
    let text: Vec<u8> = (0..200_000u32).flat_map(|n| format!("line {n} ok\n").into_bytes()).collect();
    let table: Vec<u8> = (0..20_000u32).flat_map(|n| format!("{n},{}\n", n % 7).into_bytes()).collect();
    let table = [&b"id,rest\n"[..], &table].concat();
    let packed = compressed(&text);
    let key = b"key=000102030405060708090a0b0c0d0e0f\0iv=00000000000000000000000000000001\0";
    for (name, arguments, input, objects) in [
        ("count", &b"by=lines,words,bytes\0"[..], &text, 1),
        ("wordcount", b"byte=o\0", &text, 1),
        ("grep", b"pattern=9999\\d ok$\0", &text, 1),
        ("grep", b"pattern=(\0", &text, 1),
        ("filter", b"where=rest = 3 and id < 500\0format=csv\0", &table, 1),
        ("sha256", b"", &text, 1),
        ("blake3", b"", &text, 1),
        ("compress", b"format=gzip\0", &text, 1),
        ("compress", b"format=zstd\0", &text, 1),
        ("decompress", b"", &packed, 1),
        ("decompress", b"", &text, 1),
        ("copy", b"", &text, 2),
        ("aes", key, &text, 2),
    ] {
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
        let mut device = MemoryDevice::new(&[&input[..], b""][..objects]);
        let status = device.run(&mut ring, "", arguments);

        let mut local = MemoryHost::new([input.clone(), vec![]][..objects].to_vec());
        let function = find_function(name).expect("a shipped function");
        let expected = FunctionCall::new(&mut local, "", arguments, objects as u32).run(function.run);
        let expected = expected.map_or_else(|failure| -i64::from(failure.errno.raw()), |()| 0);
        assert_eq!(status, Ok(expected), "{name}: {:?}", device.log);
        assert_eq!(device.result, local.result, "{name}");
        let log: Vec<&str> = device.log.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(log, local.log, "{name}");
        if objects == 2 {
            assert_eq!(device.objects[1].as_deref(), Some(&local.objects[1][..]), "{name}");
        }
    }
}

/// Returns a text as `compress` returns it.
fn compressed(text: &[u8]) -> Vec<u8> {
    let mut local = MemoryHost::new(vec![text.to_vec()]);
    let function = find_function("compress").expect("a shipped function");
    FunctionCall::new(&mut local, "", b"", 1).run(function.run).expect("the function succeeds");
    let data = parse_result(&local.result).filter_map(|line| match line.expect("a line") {
        ResultLine::Data(line) => Some(line.data.into_bytes().expect("Base64")),
        _ => None,
    });
    data.collect::<Vec<_>>().concat()
}

#[test]
fn confined_modules_equal_local_functions() {
    let engine = program_folder().join("sealstone-engine-c");
    compare_modules(engine, EngineKind::C, "fn.so", module_path);
}

#[test]
fn confined_wasm_modules_equal_local_functions() {
    let test = std::env::current_exe().expect("the path of this program");
    let target = test.ancestors().nth(3).expect("the target folder");
    let engine = target.join("engine-wasm/release/sealstone-engine-wasm");
    if !engine.is_file() {
        return left_out("`scripts/engine-wasm build` builds the engine");
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--profile", "function", "--target", "wasm32-unknown-unknown"])
        .args(["-p", "sealstone-function-modules", "--examples", "--target-dir"])
        .arg(target)
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo starts");
    if !built.status.success() {
        let error = String::from_utf8_lossy(&built.stderr).into_owned();
        assert!(error.contains("target may not be installed"), "{error}");
        return left_out("the target wasm32-unknown-unknown is not installed (scripts/setup --all)");
    }
    compare_modules(engine, EngineKind::Wasm, "fn.wasm", |name| {
        target.join(format!("wasm32-unknown-unknown/function/examples/{name}.wasm"))
    });
}
