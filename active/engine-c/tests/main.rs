//! The engine program with functions that a C compiler built.

mod confined;
mod functions;
mod local;
#[path = "../../function-ring/tests/support.rs"]
mod support;
