//! Code that only reproduces a paper. The default path uses nothing of it.

pub mod mceliece;
