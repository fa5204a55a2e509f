//! The sandbox against real confined processes.

mod attacks;
mod ends;
mod layers;
mod support;
