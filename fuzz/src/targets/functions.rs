//! `sealstone-functions`: compressed files, expressions of `filter`, and results of devices.

use sealstone_function_host::{FunctionCall, MemoryHost, StripeGeometry};
use sealstone_functions::entry::{run_compress, run_decompress};
use sealstone_functions::filter::{EXPRESSION_BYTES_MAX, FilterExpression};
use sealstone_functions::{
    JobPart, PartObject, ResultLine, SHIPPED_FUNCTIONS, ShippedFunction, parse_result, reduce_files,
};

use crate::Target;
use crate::input::{Input, seed};

/// Limit of the output of a run, bytes.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// A skippable frame of Zstandard.
const SKIPPABLE: &[u8] = b"\x50\x2a\x4d\x18\x03\0\0\0abc";
/// Geometry of the file of which the job of [`RESULT`] has one of two objects.
const GEOMETRY: &str = "4,2,0,7";

/// Returns the bytes of the `data` lines, which are as many as the total says.
fn output(result: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in parse_result(result) {
        match line.expect("a line that the function wrote") {
            ResultLine::Data(line) => bytes.extend(line.data.into_bytes().expect("Base64")),
            ResultLine::Output(line) => assert_eq!(line.bytes_out, bytes.len() as u64),
            other => panic!("{other:?}"),
        }
    }
    bytes
}

fn compressed(text: &[u8], arguments: &str) -> Vec<u8> {
    let mut host = MemoryHost::new(vec![text.to_vec()]);
    FunctionCall::new(&mut host, "", arguments.as_bytes(), 1).run(run_compress).expect("any file");
    output(&host.result)
}

fn compressed_seeds() -> Vec<Vec<u8>> {
    let text = b"the same words and the same words again; ".repeat(20);
    let [gzip, zstd] = ["format=gzip\0", "format=zstd\0"].map(|arguments| compressed(&text, arguments));
    let members = [&gzip[..], &compressed(b"end", "format=gzip\0")].concat();
    let frames = [&zstd[..], SKIPPABLE, &compressed(b"", "format=zstd\0")].concat();
    vec![gzip, zstd, members, frames]
}

fn decompress(input: &[u8]) {
    let mut host = MemoryHost::new(vec![input.to_vec()]);
    let arguments = format!("max-bytes={OUTPUT_BYTES_MAX}\0");
    let done = FunctionCall::new(&mut host, "", arguments.as_bytes(), 1).run(run_decompress);
    if done.is_ok() {
        assert!(output(&host.result).len() as u64 <= OUTPUT_BYTES_MAX);
    }
}

pub(crate) const COMPRESSED: Target = Target {
    name: "compressed-file",
    about: "a gzip or Zstandard file for decompress; its output is within the limit",
    run: decompress,
    seeds: compressed_seeds,
    cost: 20,
    quarantine: None,
    covers: &["functions::entry::run_decompress"],
};

fn expression(input: &[u8]) {
    let Ok(text) = core::str::from_utf8(input) else { return };
    let Ok(parsed) = FilterExpression::parse(text) else { return };
    assert!(text.len() <= EXPRESSION_BYTES_MAX && parsed.fields().len() <= text.len());
}

pub(crate) const EXPRESSION: Target = Target {
    name: "filter-expression",
    about: "an expression of filter; within its limits if it is accepted",
    run: expression,
    seeds: || {
        [
            "status >= 500 and not (path contains \"/health\" or path is null)",
            "user.name not in ('a', 'b', 3) or size < -1.5e3",
            "name matches '^(a|b)+$' and `odd name` = true",
        ]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
    },
    cost: 4,
    quarantine: None,
    covers: &["functions::FilterExpression::parse"],
};

fn function(number: u8) -> &'static ShippedFunction {
    &SHIPPED_FUNCTIONS[usize::from(number) % SHIPPED_FUNCTIONS.len()]
}

fn reduce(input: &[u8]) {
    let mut input = Input::new(input);
    let (function, form) = (function(input.byte()), input.byte());
    let is_striped = form & 1 == 1;
    let geometry = StripeGeometry::parse(GEOMETRY).expect("the geometry of a file");
    let result = input.rest();
    let own = match function.name {
        "grep" => "pattern=a\0",
        "filter" if form & 2 == 2 => "where=a = 1\0format=parquet\0",
        "filter" => "where=a = 1\0format=csv\0header.0=a\0",
        _ => "",
    };
    let arguments = format!("{own}stripe.0={GEOMETRY}\0");
    let objects = [PartObject { file: 0, geometry: is_striped.then_some(geometry) }];
    let part = JobPart { arguments: arguments.as_bytes(), result, objects: &objects };
    let Ok(files) = reduce_files(function, &[part]) else { return };
    assert!(files.iter().all(|(file, _)| *file == 0));
}

fn result_seeds() -> Vec<Vec<u8>> {
    let lines: &[&str] = &[
        r#"{"count":{"object":0,"lines":1,"words":2,"characters":3,"bytes":4}}"#,
        r#"{"byte-count":{"object":0,"count":9}}"#,
        r#"{"match":{"object":0,"offset":4,"line":2,"record":{"text":"a"}}}"#,
        r#"{"match-count":{"object":0,"count":9}}"#,
        r#"{"digest":{"object":0,"algorithm":"sha256","digest":"00"}}"#,
        r#"{"data":{"object":0,"unit":0,"data":{"base64":"AAEC"}}}"#,
        r#"{"output":{"object":0,"bytes_in":4,"bytes_out":3}}"#,
        r#"{"edge":{"object":0,"unit":0,"ends":0,"head":{"text":"a"},"tail":{"text":"b"},"open":true}}"#,
        r#"{"subtree":{"object":0,"unit":0,"value":"00"}}"#,
    ];
    let all: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let numbers = 0..SHIPPED_FUNCTIONS.len() as u8;
    let one = numbers.zip(lines).map(|(number, line)| seed(&[number, number], line.as_bytes()));
    let data = format!("{}\n{}\n", lines[5], lines[6]);
    let rows = [seed(&[3, 2], lines[2].as_bytes()), seed(&[3, 2], lines[3].as_bytes())];
    one.chain([seed(&[0, 1], all.as_bytes()), seed(&[8, 0], data.as_bytes())]).chain(rows).collect()
}

pub(crate) const RESULT: Target = Target {
    name: "function-result",
    about: "the result of a job, from a device; reduced for its file or refused",
    run: reduce,
    seeds: result_seeds,
    cost: 4,
    quarantine: None,
    covers: &["functions::result::parse_result", "functions::reduce_files"],
};
