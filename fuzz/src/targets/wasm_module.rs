//! `sealstone-wasm-module`: the checks of a module before anything compiles it.

use sealstone_function_abi::CALLS;
use sealstone_wasm_module::limits::{FUNCTIONS_MAX, IMPORTS_MAX, PAGES_MAX};
use sealstone_wasm_module::{CallSignature, ModuleSummary, ValueType, is_module};

use crate::Target;

fn name(text: &str) -> Vec<u8> {
    [&[text.len() as u8][..], text.as_bytes()].concat()
}

fn section(number: u8, content: &[u8]) -> Vec<u8> {
    // Contents of fewer than 16384 bytes, whose length has two groups of seven bits.
    let length = [content.len() as u8 | 0x80, (content.len() >> 7) as u8];
    [&[number][..], &length, content].concat()
}

fn codes(values: &[ValueType]) -> Vec<u8> {
    let code = |value: &ValueType| {
        (0x60..0x80).find(|code| ValueType::from_code(*code) == Some(*value)).expect("a code")
    };
    [vec![values.len() as u8], values.iter().map(code).collect()].concat()
}

/// A module that imports each call of the table, with sections of all kinds that functions use.
fn full_module() -> Vec<u8> {
    let calls = CALLS.len() as u8;
    let types = std::iter::once(CallSignature::entry_point()).chain(CALLS.iter().map(CallSignature::of_call));
    let types = types.flat_map(|one| [&[0x60][..], &codes(&one.parameters), &codes(&one.results)].concat());
    let imports = CALLS
        .iter()
        .zip(1..)
        .flat_map(|(row, index)| [&name("osd")[..], &name(row.name), &[0, index]].concat());
    let parts = [
        b"\0asm\x01\0\0\0".to_vec(),
        section(0, &name("producers")),
        section(1, &std::iter::once(calls + 1).chain(types).collect::<Vec<_>>()),
        section(2, &std::iter::once(calls).chain(imports).collect::<Vec<_>>()),
        section(3, &[1, 0]),
        section(4, &[1, 0x70, 1, 2, 8]),
        section(5, &[1, 1, 2, 16]),
        section(6, &[1, 0x7F, 1, 0x41, 0, 0x0B]),
        section(7, &[&[2][..], &name("memory"), &[2, 0], &name("osd_main"), &[0, calls]].concat()),
        section(9, &[1, 0, 0x41, 0, 0x0B, 1, calls]),
        section(12, &[1]),
        section(10, &[1, 4, 0, 0x42, 0, 0x0B]),
        section(11, &[1, 0, 0x41, 8, 0x0B, 2, b'h', b'i']),
    ];
    parts.concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let smallest = [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, &[1, 0x60, 1, 0x7F, 1, 0x7E]),
        section(3, &[1, 0]),
        section(5, &[1, 0, 2]),
        section(7, &[&[2][..], &name("memory"), &[2, 0], &name("start"), &[0, 0]].concat()),
        section(10, &[1, 4, 0, 0x42, 0, 0x0B]),
    ];
    let seeds = vec![full_module(), smallest.concat()];
    for seed in &seeds {
        ModuleSummary::parse(seed).expect("a seed is a valid module");
    }
    seeds
}

fn module(input: &[u8]) {
    let Ok(summary) = ModuleSummary::parse(input) else { return };
    assert!(is_module(input));
    assert!(summary.imports <= IMPORTS_MAX && summary.functions <= FUNCTIONS_MAX);
    assert!(summary.functions as usize <= input.len() && summary.imports as usize <= input.len());
    assert!(summary.memory_pages <= PAGES_MAX && summary.memory_pages_max.is_none_or(|max| max <= PAGES_MAX));
}

pub(crate) const MODULE: Target = Target {
    name: "wasm-module",
    about: "a WebAssembly module; within all limits if it is accepted",
    run: module,
    seeds,
    cost: 1,
    quarantine: None,
    covers: &["wasm-module::ModuleSummary::parse"],
};
