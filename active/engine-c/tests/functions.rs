//! Functions in C, built by the system's compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a function of `tests/functions` into a folder; returns the path of the shared object.
pub(crate) fn build(name: &str, folder: &Path) -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = manifest.join("tests/functions").join(format!("{name}.c"));
    let output = folder.join(format!("{name}.so"));
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-std=c11"])
        .arg("-I")
        .arg(manifest.join("include"))
        .arg("-o")
        .arg(&output)
        .arg(source)
        .arg("-lm")
        .output()
        .expect("a C compiler, which links this program as well");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    output
}

/// Every call of the table is in the program's dynamic symbols, or this function would not load.
#[test]
fn every_call_is_used_by_test_function() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(manifest.join("tests/functions/every_call.c")).expect("the source");
    for row in sealstone_function_abi::CALLS {
        assert!(source.contains(&format!("{}(", row.name)), "{}", row.name);
    }
}
