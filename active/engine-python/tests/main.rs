//! The engine program with functions in Python.

mod confined;
mod hostile;
mod local;
mod package;
#[path = "../../function-ring/tests/support.rs"]
mod support;
mod zygotes;
