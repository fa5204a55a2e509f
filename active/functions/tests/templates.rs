//! The projects of `sealstone fn new` build with the tools of this machine, and give their result.

use std::path::Path;
use std::process::Command;

use sealstone_functions::template::{TemplateLanguage, write_project};

/// Runs a command in a folder; returns its standard output.
fn run(command: &mut Command, folder: &Path) -> String {
    let output = command.current_dir(folder).output().expect("the program starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn is_shared_object(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| {
        // The entry point, and a call that the engine resolves.
        let has = |name: &[u8]| bytes.windows(name.len()).any(|window| window == name);
        bytes.starts_with(b"\x7fELF") && has(b"osd_main\0") && has(b"osd_reader_next\0")
    })
}

#[test]
fn c_project_builds_and_runs_locally() {
    let folder = tempfile::tempdir().expect("temporary folder");
    write_project(folder.path(), TemplateLanguage::C, "longest", None).expect("the project is written");
    run(
        Command::new("make").arg("CFLAGS=-O2 -Wall -Wextra -Werror").args(["longest.so", "longest-local"]),
        folder.path(),
    );
    assert!(is_shared_object(&folder.path().join("longest.so")));
    std::fs::write(folder.path().join("a.txt"), "one\nthree\n\nlast").expect("write");
    std::fs::write(folder.path().join("b.txt"), vec![b'x'; 3_000_000]).expect("write");
    let result = run(Command::new("./longest-local").args(["a.txt", "b.txt"]), folder.path());
    assert_eq!(result, "{\"object\":0,\"longest\":5}\n{\"object\":1,\"longest\":3000000}\n");
}

#[test]
fn rust_project_builds_and_passes_tests() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fn");
    write_project(folder.path(), TemplateLanguage::Rust, "longest", Some(&sdk))
        .expect("the project is written");
    // The versions of the workspace are on this machine, so the build needs no network.
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    std::fs::copy(lock, folder.path().join("Cargo.lock")).expect("copy");
    let cargo = || {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .env("CARGO_TARGET_DIR", folder.path().join("target"))
            .env_remove("CARGO_RESOLVER_FEATURE_UNIFICATION");
        cargo
    };
    run(cargo().args(["build", "--release", "--offline", "--quiet"]), folder.path());
    assert!(is_shared_object(&folder.path().join("target/release/liblongest.so")));
    run(cargo().args(["test", "--offline", "--quiet"]), folder.path());
}
