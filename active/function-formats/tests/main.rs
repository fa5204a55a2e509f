//! Functions over file formats as modules, in the confined engines.

#[path = "../../function-modules/tests/comparison.rs"]
mod comparison;
#[path = "../../function-ring/tests/support.rs"]
mod support;

mod confined;
