//! The engine program with modules that are written by hand.

mod confined;
mod hostile;
mod local;
mod modules;
#[path = "../../function-ring/tests/support.rs"]
mod support;
