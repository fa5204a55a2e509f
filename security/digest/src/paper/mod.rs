//! Code that only reproduces a paper: AdHash, its cost model, SHA-1 whose calls are counted. The
//! default profile uses nothing of it.

mod adhash;
pub mod cost;
pub(crate) mod sha1;

pub use adhash::AdHash;
