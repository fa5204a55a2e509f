//! Modules of the shipped functions, as shared objects for the C engine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::{System, binary, text};

/// Builds the modules beside the binary under test; returns their folder.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = binary().parent().expect("the binary lies in a folder");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args(["build", "--quiet", "-p", "sealstone-function-modules", "--examples", "--target-dir"])
            .arg(folder.parent().expect("a profile's folder lies in the target folder"));
        if folder.ends_with("release") {
            cargo.arg("--release");
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above");
        let status = cargo.current_dir(root).status().expect("cargo runs");
        assert!(status.success(), "the modules do not build");
        folder.join("examples")
    })
}

/// Stores shipped functions in `/.functions`.
pub fn store_shipped(system: &System, names: &[&str]) {
    for name in names {
        let module = folder().join(format!("lib{name}.so"));
        system.run(&["fn", "put", text(&module), name, "--engine", "c"]).ok();
    }
}
