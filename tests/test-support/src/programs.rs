//! The programs and function modules that tests start, built once for all of them.
//!
//! The test runner builds everything before it starts tests, and sets [`FOLDER_VARIABLE`]. A test
//! that starts without it, as by `cargo test`, builds what is missing. All of that is one
//! invocation of cargo for the whole workspace: one for a single package selects fewer features of
//! dependencies, compiles them again, and replaces programs that other tests are running.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Names the folder of the programs if they are built: that of a cargo profile.
pub const FOLDER_VARIABLE: &str = "SEALSTONE_TESTED_PROGRAMS";

/// Programs that tests start.
pub const PROGRAMS: [&str; 4] =
    ["sealstone", "sealstone-engine-c", "sealstone-engine-java", "sealstone-engine-python"];

/// Shipped functions, which are built as modules for the C engine.
pub const MODULES: [&str; 11] = [
    "aes",
    "blake3",
    "compress",
    "copy",
    "count",
    "decompress",
    "filter",
    "grep",
    "sha256",
    "thumbnail",
    "wordcount",
];

/// Returns the arguments of `cargo build` that select programs and modules, with the features that
/// they have in a build of all tests.
pub fn selection() -> impl Iterator<Item = &'static str> {
    let programs = PROGRAMS.iter().flat_map(|name| ["--bin", *name]);
    let modules = MODULES.iter().flat_map(|name| ["--example", *name]);
    ["--workspace"].into_iter().chain(programs).chain(modules)
}

/// Returns the folder of the programs; builds them if the test runner did not.
///
/// # Panics
///
/// If they do not build.
pub fn program_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| env::var_os(FOLDER_VARIABLE).map_or_else(build, PathBuf::from))
}

/// Returns the path of a shipped function as a shared object for the C engine.
///
/// # Panics
///
/// If it does not build.
pub fn module_path(function: &str) -> PathBuf {
    program_folder().join("examples").join(format!("lib{function}.so"))
}

/// Builds everything with the profile of the running test; returns the folder.
fn build() -> PathBuf {
    let test = env::current_exe().expect("a running program has a path");
    // target/debug/deps/some_test-… or target/debug/some-program → target/debug
    let mut folder = test.parent().expect("a program is in a folder").to_owned();
    if folder.ends_with("deps") {
        folder.pop();
    }
    let target = folder.parent().expect("the folder of a profile is in the target folder");
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some(name) if name != "debug" => name,
        _ => "dev",
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace is above");
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
        .args(["build", "--quiet", "--profile", profile])
        .args(selection())
        .arg("--target-dir")
        .arg(target)
        .current_dir(root)
        .status()
        .expect("cargo starts");
    assert!(status.success(), "the programs do not build");
    folder
}
