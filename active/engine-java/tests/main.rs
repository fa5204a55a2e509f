//! The engine program with functions in Java.

mod confined;
#[path = "../../function-ring/tests/support/confined_engine.rs"]
mod confined_engine;
mod hostile;
mod jars;
mod local;
#[path = "../../function-ring/tests/support.rs"]
mod support;
mod zygotes;
