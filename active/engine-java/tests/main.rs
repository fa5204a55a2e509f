//! The engine program with functions in Java.

mod confined;
mod hostile;
mod jars;
mod local;
#[path = "../../function-ring/tests/support.rs"]
mod support;
mod zygotes;
