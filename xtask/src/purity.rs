//! Builds the pure crates for `x86_64-unknown-none`, which have no operating system.
//!
//! The standard library for that target comes from rustup if it was added there, or is built from
//! the source that Debian's `rust-web-src` ships. Neither present is an error, not a pass:
//! `scripts/setup` brings one.

use std::env;
use std::path::Path;
use std::process::Command;

use crate::tidy::PURE_CRATES;

const TARGET: &str = "x86_64-unknown-none";

/// Source of the target's standard library.
enum Toolchain {
    /// The active cargo has it.
    Installed,
    /// Debian's cargo builds `core` and `alloc` itself.
    FromSource,
}

pub(crate) fn run() -> Result<String, Vec<String>> {
    let toolchain = find().ok_or_else(|| {
        vec![format!(
            "purity: no standard library for {TARGET}: run scripts/setup (or: rustup target add {TARGET})"
        )]
    })?;
    let mut cargo = match toolchain {
        Toolchain::Installed => Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into())),
        Toolchain::FromSource => {
            let mut cargo = Command::new("/usr/bin/cargo");
            cargo
                .env("RUSTC", "/usr/bin/rustc")
                .env("RUSTC_BOOTSTRAP", "1") // -Zbuild-std is the only unstable feature in use
                .env("CARGO_UNSTABLE_BUILD_STD", "core,alloc");
            for inherited in ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC_WRAPPER"] {
                cargo.env_remove(inherited);
            }
            cargo
        }
    };
    // curve25519-dalek's vector code needs features that this target does not have and crashes the
    // compiler there; the portable code is what such a target would run.
    cargo.env("RUSTFLAGS", "--cfg curve25519_dalek_backend=\"serial\"");
    cargo.args(["check", "--quiet", "--target", TARGET, "--target-dir", "target/no-os"]);
    for name in PURE_CRATES {
        cargo.args(["-p", name]);
    }
    let status = cargo.status().map_err(|error| vec![format!("purity: cannot start cargo: {error}")])?;
    if status.success() {
        Ok(format!("purity: {} crates build for {TARGET}", PURE_CRATES.len()))
    } else {
        Err(vec![format!("purity: a pure crate does not build for {TARGET}")])
    }
}

fn find() -> Option<Toolchain> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "sysroot"]).output().ok()?;
    let sysroot = String::from_utf8(output.stdout).ok()?;
    if Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).is_dir() {
        return Some(Toolchain::Installed);
    }
    let debian = ["/usr/bin/cargo", "/usr/bin/rustc", "/usr/lib/rustlib/src/rust/library/core"];
    debian.iter().all(|path| Path::new(path).exists()).then_some(Toolchain::FromSource)
}
