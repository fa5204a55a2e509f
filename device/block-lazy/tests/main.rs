//! Tests of lazily protected units on the store, as one program.

mod attacks;
mod crash;
mod damage;
mod modern;
mod support;
mod versions;
