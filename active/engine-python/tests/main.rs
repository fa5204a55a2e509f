//! The engine program with functions in Python.

mod confined;
#[path = "../../function-ring/tests/support/confined_engine.rs"]
mod confined_engine;
mod hostile;
mod local;
mod package;
#[path = "../../function-ring/tests/support.rs"]
mod support;
mod zygotes;
