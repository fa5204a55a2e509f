//! Shipped functions as modules, in the confined C engine.

#[path = "../../function-ring/tests/support.rs"]
mod support;

mod comparison;
mod confined;
