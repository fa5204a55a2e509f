//! The modules run in the engine's sandbox, and give the result of the function on local data.

use std::path::PathBuf;
use std::process::Command;

use sealstone_fn::{FunctionCall, MemoryHost};
use sealstone_functions::find_function;
use sealstone_sandbox::{EngineCode, EngineKind, EngineRequest, Zygote, ZygoteOptions};

use crate::support::{MemoryDevice, small_ring};

/// Builds the engine and the modules in the profile of this test; returns its folder.
fn build() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this program");
    let folder = test.ancestors().nth(2).expect("the folder of the profile").to_owned();
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some(name) if name != "debug" => name,
        _ => "dev",
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--profile", profile, "--bins"])
        .args(["-p", "sealstone-engine-c", "-p", "sealstone-function-modules"])
        .args(["--example", "count", "--example", "grep", "--example", "aes"])
        .status()
        .expect("cargo starts");
    assert!(built.success(), "the engine and the modules build");
    folder
}

#[test]
fn confined_modules_equal_local_functions() {
    let folder = build();
    let options = ZygoteOptions::new(folder.join("sealstone-engine-c"), EngineKind::C);
    let zygote = Zygote::spawn(options).expect("the machine can confine engines");
    let text: Vec<u8> = (0..200_000u32).flat_map(|n| format!("line {n} ok\n").into_bytes()).collect();
    let key = b"key=000102030405060708090a0b0c0d0e0f\0iv=00000000000000000000000000000001\0";
    for (name, arguments) in [
        ("count", &b"by=lines,words,bytes\0"[..]),
        ("grep", b"pattern=9999\\d ok$\0"),
        ("grep", b"pattern=(\0"),
        ("aes", key),
    ] {
        let module = std::fs::read(folder.join(format!("examples/lib{name}.so"))).expect("the module");
        let (memory, mut ring) = small_ring();
        let request = EngineRequest {
            code: Some(EngineCode::new("fn.so", &module).expect("memory file")),
            descriptors: memory.descriptors().to_vec(),
            ..EngineRequest::default()
        };
        let _engine = zygote.start(&request).expect("a confined engine");
        let objects = if name == "aes" { 2 } else { 1 };
        let mut device = MemoryDevice::new(&[&text[..], b""][..objects]);
        let status = device.run(&mut ring, "", arguments);

        let mut local = MemoryHost::new(vec![text.clone(), vec![]]);
        let function = find_function(name).expect("a shipped function");
        let expected = FunctionCall::new(&mut local, "", arguments, objects as u32).run(function.run);
        let expected = expected.map_or_else(|failure| -i64::from(failure.errno.raw()), |()| 0);
        assert_eq!(status, Ok(expected), "{name}: {:?}", device.log);
        assert_eq!(device.result, local.result, "{name}");
        let log: Vec<&str> = device.log.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(log, local.log, "{name}");
        if name == "aes" {
            assert_eq!(device.objects[1].as_deref(), Some(&local.objects[1][..]));
        }
    }
}
