//! The shipped functions as modules that a device can load, one for each function.
//!
//! `cargo build --profile function -p sealstone-function-modules --examples` writes the shared
//! objects for the C engine to `target/function/examples`, with names such as `libgrep.so`. With
//! `--target wasm32-unknown-unknown`, it writes modules for the WebAssembly engine. Each module is
//! an example target, because a package has only one library.

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sealstone_functions::SHIPPED_FUNCTIONS;

    #[test]
    fn each_shipped_function_has_module() {
        let manifest = include_str!("../Cargo.toml");
        for function in SHIPPED_FUNCTIONS.iter().filter(|function| !function.has_formats()) {
            assert!(manifest.contains(&format!("path = \"modules/{}.rs\"", function.name)));
            assert!(Path::new("modules").join(function.name).with_extension("rs").exists());
        }
    }
}
