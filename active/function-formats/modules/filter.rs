//! The shipped function `filter` as a module.
#![allow(unsafe_code, reason = "the exported entry point has an unsafe attribute")]

use sealstone_fn::{FunctionCall, FunctionFailure};

/// Runs `filter`. A panic of the reader of Parquet files names what it was reading.
fn run(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    std::panic::set_hook(Box::new(|panic| {
        let position = sealstone_function_formats::parquet_position();
        sealstone_fn::log_panic(&format!("{position}: the data are malformed: {panic}"));
    }));
    sealstone_function_formats::run_filter(call)
}

sealstone_fn::export!(run);
