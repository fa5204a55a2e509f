//! Support for tests of all crates: programs that they start, and reports of tests that cannot run.

mod left_out;
mod programs;

pub use left_out::{LEFT_OUT, is_installed, left_out};
pub use programs::{FOLDER_VARIABLE, MODULES, PROGRAMS, module_path, program_folder, selection};
