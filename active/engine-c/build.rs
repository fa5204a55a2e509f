//! Exports the calls of the interface from the program, so that loaded functions find them.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic");
}
