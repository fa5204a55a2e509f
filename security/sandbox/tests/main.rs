//! The sandbox against real confined processes.

mod ends;
mod support;
