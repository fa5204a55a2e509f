//! Tests of sessions with a real target over streams in memory, as one program.

mod protection;
mod session;
