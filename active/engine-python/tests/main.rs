//! The engine program with functions in Python.

mod confined;
mod hostile;
mod local;
#[path = "../../function-ring/tests/support.rs"]
mod support;
mod zygotes;
