//! The shipped function `compress` as a module.
#![allow(unsafe_code, reason = "the exported entry point has an unsafe attribute")]

sealstone_fn::export!(sealstone_functions::entry::run_compress);
