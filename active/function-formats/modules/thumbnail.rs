//! The shipped function `thumbnail` as a module.
#![allow(unsafe_code, reason = "the exported entry point has an unsafe attribute")]

sealstone_fn::export!(sealstone_function_formats::run_thumbnail);
