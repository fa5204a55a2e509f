//! Modules of the shipped functions, as shared objects for the C engine.

use sealstone_test_support::module_path;

use crate::{System, text};

/// Stores shipped functions in `/.functions`.
pub fn store_shipped(system: &System, names: &[&str]) {
    for name in names {
        let module = module_path(name);
        system.run(&["fn", "put", text(&module), name, "--engine", "c"]).ok();
    }
}
