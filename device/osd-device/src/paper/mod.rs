//! Code that only reproduces a paper. A device uses it only where its configuration enables it.

pub(crate) mod concealment;
pub(crate) mod functions;
