//! Shipped functions over file formats, which need larger libraries than the others.
//!
//! Does: `thumbnail` of JPEG and PNG files, and `filter` with Parquet files.
//! Each function is an example target too: a shared object for the C engine, and a module for the
//! WebAssembly engine.
//! Does not: belong to the program `sealstone`, so that its build has none of these libraries. A
//! client runs the module in an engine where a device cannot.
//! Source of truth: docs/reference/shipped-functions.md.

mod jpeg;
mod picture;
mod png_file;
mod tables;
mod thumbnail;
mod whole_file;

pub use picture::PICTURE_MEMORY_MAX;
pub use tables::{
    FOOTER_BYTES_MAX, PAGE_BYTES_MAX, ROW_GROUPS_MAX, SELECTED_BYTES_MAX, parquet_position, run_filter,
};
pub use thumbnail::{PICTURE_FILE_BYTES_MAX, run_thumbnail};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sealstone_functions::SHIPPED_FUNCTIONS;

    #[test]
    fn each_function_of_formats_has_module() {
        let manifest = include_str!("../Cargo.toml");
        for function in SHIPPED_FUNCTIONS.iter().filter(|function| function.has_formats()) {
            assert!(manifest.contains(&format!("path = \"modules/{}.rs\"", function.name)));
            assert!(Path::new("modules").join(function.name).with_extension("rs").exists());
        }
    }
}
