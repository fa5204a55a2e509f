//! libFuzzer's program for the target that this binary is named after.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sealstone_fuzz::Target;
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> =
    LazyLock::new(|| sealstone_fuzz::find(env!("CARGO_BIN_NAME")).expect("each binary is named after a target"));

fuzz_target!(|input: &[u8]| (TARGET.run)(input));
