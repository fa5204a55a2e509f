//! Parquet files: those that `filter` reads, and the parts that a client joins.

use sealstone_function_formats::run_filter;
use sealstone_function_host::{FunctionCall, MemoryHost};
use sealstone_functions::{ResultLine, join_parquet, parse_result};

use crate::Target;
use crate::input::{Input, seed};

/// Small tables of all codecs and versions of pages.
const TABLES: [&[u8]; 3] = [
    include_bytes!("../../../active/function-formats/tests/data/snappy.parquet"),
    include_bytes!("../../../active/function-formats/tests/data/gzip.parquet"),
    include_bytes!("../../../active/function-formats/tests/data/zstd.parquet"),
];
/// Calls by the first byte of an input.
const ARGUMENTS: [&str; 4] = [
    "format=parquet\0where=id >= 3 and not path = 'x' or user.name = 'u1'\0",
    "format=parquet\0where=price > 1.5 and at < '2027-01-01'\0result-format=parquet\0",
    "format=parquet\0where=day is not null\0columns=user,tags,pairs\0",
    "format=parquet\0where=ratio < 3 or big in (1, 2)\0count=true\0",
];

/// Runs `filter`; returns the bytes of its file.
fn filtered(arguments: &str, table: &[u8]) -> Option<Vec<u8>> {
    let mut host = MemoryHost::new(vec![table.to_vec()]);
    FunctionCall::new(&mut host, "", arguments.as_bytes(), 1).run(run_filter).ok()?;
    let mut file = Vec::new();
    for line in parse_result(&host.result) {
        if let ResultLine::Data(line) = line.expect("a line that the function wrote") {
            file.extend(line.data.into_bytes().expect("Base64"));
        }
    }
    Some(file)
}

fn filter(input: &[u8]) {
    let mut input = Input::new(input);
    let arguments = ARGUMENTS[usize::from(input.byte()) % ARGUMENTS.len()];
    let Some(file) = filtered(arguments, input.rest()) else { return };
    // A file that the function wrote is one that it reads.
    if !file.is_empty() {
        assert!(filtered("format=parquet\0where=1 = 1\0count=true\0", &file).is_some());
    }
}

pub(crate) const TABLE: Target = Target {
    name: "parquet-table",
    about: "a Parquet file for filter: its footer, pages and values; an output is a valid file",
    run: filter,
    seeds: || (0..4).flat_map(|form| TABLES.map(|table| seed(&[form], table))).collect(),
    cost: 60,
    quarantine: None,
    covers: &["function-formats::run_filter"],
};

fn join(input: &[u8]) {
    let first =
        filtered("format=parquet\0where=id < 3\0result-format=parquet\0", TABLES[0]).expect("a table");
    let mut out = Vec::new();
    if let Ok(length) = join_parquet(&[first, input.to_vec()], &mut out) {
        assert_eq!(length, out.len() as u64);
    }
    if let Ok(length) = join_parquet(&[input.to_vec()], &mut Vec::new()) {
        assert!(length <= 2 * input.len() as u64 + 16, "a joined file is about as long as its parts");
    }
}

pub(crate) const PARTS: Target = Target {
    name: "parquet-parts",
    about: "Parquet files of devices that a client joins; the length is that of the file",
    run: join,
    seeds: || {
        let part =
            filtered("format=parquet\0where=id < 9\0columns=id,day\0result-format=parquet\0", TABLES[0]);
        vec![part.expect("a table")]
    },
    cost: 20,
    quarantine: None,
    covers: &["functions::join_parquet", "functions::ThriftReader::structure"],
};
