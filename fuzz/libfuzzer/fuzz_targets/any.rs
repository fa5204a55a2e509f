//! The libFuzzer program for the target that names this binary.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use sealstone_fuzz::{Random, Target, shape};
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> =
    LazyLock::new(|| sealstone_fuzz::find(env!("CARGO_BIN_NAME")).expect("each binary is named after a target"));

fuzz_target!(|input: &[u8]| (TARGET.run)(input));

// If the structure of the input is known, two of three mutations preserve it.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mut random = Random::new(u64::from(seed));
    match shape::of(TARGET.name) {
        Some(shape) if random.below(3) > 0 => {
            let input = shape(&data[..size], &mut random);
            let length = input.len().min(max_size);
            data[..length].copy_from_slice(&input[..length]);
            length
        }
        _ => fuzzer_mutate(data, size, max_size),
    }
});
