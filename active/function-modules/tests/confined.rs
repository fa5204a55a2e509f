//! The modules run in the sandboxes of both engines, and give the result of the function on local
//! data.

use sealstone_fn::{FunctionCall, MemoryHost};
use sealstone_functions::{ResultLine, find_function, parse_result};

use crate::comparison::{ModuleCase, compare_shared_objects, compare_wasm_modules};

/// Calls `check` with calls of all functions of the package.
fn with_cases(check: impl Fn(&[ModuleCase<'_>])) {
    let text: Vec<u8> = (0..200_000u32).flat_map(|n| format!("line {n} ok\n").into_bytes()).collect();
    let packed = compressed(&text);
    let key = b"key=000102030405060708090a0b0c0d0e0f\0iv=00000000000000000000000000000001\0";
    let cases: Vec<ModuleCase<'_>> = [
        ("count", &b"by=lines,words,bytes\0"[..], &text, 1),
        ("wordcount", b"byte=o\0", &text, 1),
        ("grep", b"pattern=9999\\d ok$\0", &text, 1),
        ("grep", b"pattern=(\0", &text, 1),
        ("sha256", b"", &text, 1),
        ("blake3", b"", &text, 1),
        ("compress", b"format=gzip\0", &text, 1),
        ("compress", b"format=zstd\0", &text, 1),
        ("decompress", b"", &packed, 1),
        ("decompress", b"", &text, 1),
        ("copy", b"", &text, 2),
        ("aes", key, &text, 2),
    ]
    .into_iter()
    .map(|(name, arguments, input, objects)| {
        let run = find_function(name).expect("a shipped function").run;
        ModuleCase { name, run, arguments, input, objects }
    })
    .collect();
    check(&cases);
}

/// Returns a text as `compress` returns it.
fn compressed(text: &[u8]) -> Vec<u8> {
    let mut local = MemoryHost::new(vec![text.to_vec()]);
    let function = find_function("compress").expect("a shipped function");
    FunctionCall::new(&mut local, "", b"", 1).run(function.run).expect("the function succeeds");
    let data = parse_result(&local.result).filter_map(|line| match line.expect("a line") {
        ResultLine::Data(line) => Some(line.data.into_bytes().expect("Base64")),
        _ => None,
    });
    data.collect::<Vec<_>>().concat()
}

#[test]
fn confined_modules_equal_local_functions() {
    with_cases(compare_shared_objects);
}

#[test]
fn confined_wasm_modules_equal_local_functions() {
    with_cases(|cases| compare_wasm_modules("sealstone-function-modules", cases));
}
