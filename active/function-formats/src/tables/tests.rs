//! Tables that pyarrow wrote (tests/data/make_tables.py), selected as JSON and as Parquet.

use proptest::prelude::*;
use sealstone_function_host::{FunctionArguments, FunctionCall, FunctionErrno, FunctionFailure, MemoryHost};
use sealstone_functions::{ResultLine, join_parquet, parse_result};

use super::run_filter;

const SNAPPY: &[u8] = include_bytes!("../../tests/data/snappy.parquet");
const PLAIN: &[u8] = include_bytes!("../../tests/data/plain.parquet");
const LZ4: &[u8] = include_bytes!("../../tests/data/lz4.parquet");
/// The same rows in other forms: page versions, codecs and encodings.
const TABLES: [(&str, &[u8]); 5] = [
    ("snappy", SNAPPY),
    ("gzip", include_bytes!("../../tests/data/gzip.parquet")),
    ("zstd", include_bytes!("../../tests/data/zstd.parquet")),
    ("plain", PLAIN),
    ("delta", include_bytes!("../../tests/data/delta.parquet")),
];

fn run(table: &[u8], arguments: &[(&str, &str)]) -> Result<MemoryHost, FunctionFailure> {
    let mut host = MemoryHost::new(vec![table.to_vec()]);
    let pairs = [("format", "parquet")].into_iter().chain(arguments.iter().copied());
    let bytes = FunctionArguments::encode(pairs).unwrap();
    FunctionCall::new(&mut host, "", &bytes, 1).run(run_filter)?;
    Ok(host)
}

/// Returns the selected rows as JSON with their numbers.
fn rows(table: &[u8], expression: &str) -> Vec<(u64, serde_json::Value)> {
    let host =
        run(table, &[("where", expression)]).unwrap_or_else(|failure| panic!("{expression}: {failure}"));
    parse_result(&host.result)
        .map(|line| match line.unwrap() {
            ResultLine::Match(line) => {
                let record = line.record.into_bytes().unwrap();
                (line.line, serde_json::from_slice(&record).unwrap())
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

/// Returns the selected rows as a Parquet file.
fn selected(table: &[u8], arguments: &[(&str, &str)]) -> Vec<u8> {
    let arguments: Vec<_> = arguments.iter().copied().chain([("result-format", "parquet")]).collect();
    let host = run(table, &arguments).unwrap();
    let mut file = Vec::new();
    for line in parse_result(&host.result) {
        match line.unwrap() {
            ResultLine::Data(line) => file.extend(line.data.into_bytes().unwrap()),
            ResultLine::Output(line) => {
                assert_eq!((line.bytes_in, line.bytes_out), (table.len() as u64, file.len() as u64));
            }
            other => panic!("{other:?}"),
        }
    }
    file
}

fn failure(table: &[u8], expression: &str) -> FunctionFailure {
    run(table, &[("where", expression)]).unwrap_err()
}

#[test]
fn expressions_select_rows_of_all_types() {
    let ids = |expected: std::ops::Range<u64>| expected.collect::<Vec<u64>>();
    for (name, table) in TABLES {
        for (expression, expected) in [
            ("id >= 57", ids(57..60)),
            ("status = 500 and id < 20", vec![7, 11, 15, 19]),
            ("status is null and id < 20", vec![3, 10, 17]),
            ("path = '/page/3' and id < 20", vec![3, 8, 13, 18]),
            ("path is null", vec![0, 11, 22, 33, 44, 55]),
            ("path starts_with '/page/4' and not id > 9", vec![4, 9]),
            ("size >= 58000", vec![58, 59]),
            ("big = 18446744073709551615", vec![0]),
            ("ratio = 0.25 or ratio > 14.6", vec![1, 59]),
            ("not ratio >= 0.5", vec![1]), // NaN is unknown
            ("ok = false and id < 4", vec![1, 3]),
            ("price = 1.99", vec![1]),
            ("price in (3.98, 5.97) or price > 117", vec![2, 3, 59]),
            ("day = '2026-11-03'", vec![2]),
            ("day > '2026-12-29'", vec![59]),
            ("at >= '2026-11-27T10:58:00Z'", vec![58, 59]),
            ("at < '2026-11-27T12:01:00+02:00'", vec![0]),
            ("local >= '2026-11-29 20:00'", vec![58, 59]),
            ("clock = '03:03:05'", vec![3]),
            ("user.name = 'u1' and id < 5", vec![1, 4]),
            ("user.name is null", vec![8, 17, 26, 35, 44, 53]),
            ("id = size", vec![0]),
        ] {
            let found: Vec<u64> = rows(table, expression).iter().map(|(line, _)| line - 1).collect();
            assert_eq!(found, expected, "{name}: {expression}");
        }
    }
}

#[test]
fn row_has_documented_json() {
    let expected = serde_json::json!({
        "id": 7, "status": 500, "path": "/page/2", "size": 7000, "big": 18_446_744_073_709_551_608_u64, "ratio": 1.75,
        "short": 0.7, "ok": false, "price": "13.93", "day": "2026-11-08", "at": "2026-11-27T10:07:00Z",
        "local": "2026-11-27T17:00:00", "clock": "07:07:05", "raw": { "base64": "/wc=" },
        "tags": ["t0", "t1", "t2"], "user": { "name": "u1", "roles": [{ "role": "r", "level": 7 }] },
        "pairs": [{ "key": "a", "value": 7 }],
    });
    for (name, table) in TABLES {
        let mut expected = expected.clone();
        if name == "plain" {
            // Timestamps of 96 bits have no zone.
            expected["at"] = "2026-11-27T10:07:00".into();
        }
        assert_eq!(rows(table, "id = 7"), [(8, expected)], "{name}");
        let (_, eight) = rows(table, "id = 8").remove(0);
        assert_eq!(
            (&eight["user"], &eight["tags"]),
            (&serde_json::Value::Null, &serde_json::json!([])),
            "{name}"
        );
        let (_, five) = rows(table, "id = 5").remove(0);
        assert_eq!(five["tags"], serde_json::Value::Null, "{name}");
    }
}

#[test]
fn parquet_output_has_the_selected_rows() {
    for (name, table) in TABLES {
        for expression in ["status >= 400", "id >= 0", "id < 0", "tags is not null or id = 1"] {
            if expression.starts_with("tags") {
                let reason = failure(table, expression).message.into_owned();
                assert!(reason.contains("column tags"), "{reason}");
                continue;
            }
            let output = selected(table, &[("where", expression)]);
            let values = |rows: Vec<(u64, serde_json::Value)>| {
                rows.into_iter().map(|(_, row)| row).collect::<Vec<_>>()
            };
            assert_eq!(
                values(rows(&output, "id >= 0")),
                values(rows(table, expression)),
                "{name}: {expression}"
            );
        }
    }
}

#[test]
fn columns_are_projected() {
    let host = run(SNAPPY, &[("where", "id = 2"), ("columns", "user, price")]).unwrap();
    let text = String::from_utf8(host.result).unwrap();
    let expected = r#""text":"{\"price\":\"3.98\",\"user\":{\"name\":\"u2\",\"roles\":[{"#;
    assert!(text.contains(expected), "{text}");
    let output = selected(SNAPPY, &[("where", "id < 3"), ("columns", "price,id")]);
    assert_eq!(rows(&output, "price > 0")[0].1, serde_json::json!({ "id": 1, "price": "1.99" }));
    let unknown = run(SNAPPY, &[("where", "id = 2"), ("columns", "id,none")]).unwrap_err();
    assert_eq!(unknown.message, "columns: the table has no column none");
}

#[test]
fn joined_outputs_are_one_table() {
    let parts: Vec<Vec<u8>> = ["id < 5", "id < 0", "id >= 58"]
        .iter()
        .map(|expression| selected(SNAPPY, &[("where", expression)]))
        .collect();
    let mut joined = Vec::new();
    join_parquet(&parts, &mut joined).unwrap();
    let found: Vec<_> =
        rows(&joined, "id >= 0").into_iter().map(|(line, row)| (line, row["id"].clone())).collect();
    let expected = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 58), (7, 59)];
    assert_eq!(found, expected.map(|(line, id)| (line, serde_json::Value::from(id))));
    let other = selected(SNAPPY, &[("where", "id < 5"), ("columns", "id")]);
    let error = join_parquet(&[parts[0].clone(), other], &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "its columns differ from those of the first file");
}

/// Counts the bytes that a function reads.
struct CountingHost {
    inner: MemoryHost,
    bytes: usize,
}

impl sealstone_function_host::FunctionHost for CountingHost {
    fn read(&mut self, object: u32, offset: u64, buffer: &mut [u8]) -> Result<usize, FunctionErrno> {
        let count = self.inner.read(object, offset, buffer)?;
        self.bytes += count;
        Ok(count)
    }

    fn write(&mut self, object: u32, offset: u64, data: &[u8]) -> Result<(), FunctionErrno> {
        self.inner.write(object, offset, data)
    }

    fn length(&mut self, object: u32) -> Result<u64, FunctionErrno> {
        self.inner.length(object)
    }

    fn result(&mut self, data: &[u8]) -> Result<(), FunctionErrno> {
        self.inner.result(data)
    }

    fn log(&mut self, level: sealstone_function_host::LogLevel, text: &str) {
        self.inner.log(level, text);
    }

    fn progress(&mut self, _: u64, _: u64) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Returns a table whose column `text` has most of the bytes, in row groups of 1000 rows.
fn wide_table() -> Vec<u8> {
    use std::sync::Arc;

    use parquet::data_type::{ByteArrayType, Int64Type};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    let schema = parse_message_type("message m { required int64 id; required binary text (UTF8); }").unwrap();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::default()).unwrap();
    for group in 0..10i64 {
        let ids: Vec<i64> = (group * 1000..(group + 1) * 1000).collect();
        let texts: Vec<_> = ids.iter().map(|id| format!("{id}-").repeat(100).as_str().into()).collect();
        let mut out = writer.next_row_group().unwrap();
        let mut column = out.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let mut column = out.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&texts, None, None).unwrap();
        column.close().unwrap();
        out.close().unwrap();
    }
    writer.into_inner().unwrap()
}

#[test]
fn row_groups_and_columns_are_left_out() {
    let table = wide_table();
    let length = table.len();
    let read = |arguments: &[(&str, &str)]| {
        let mut host = CountingHost { inner: MemoryHost::new(vec![table.clone()]), bytes: 0 };
        let pairs = [("format", "parquet")].into_iter().chain(arguments.iter().copied());
        let bytes = FunctionArguments::encode(pairs).unwrap();
        FunctionCall::new(&mut host, "", &bytes, 1).run(run_filter).unwrap();
        (host.bytes, host.inner.log.join("\n"), host.inner.result)
    };
    // Most of the bytes are those of the texts.
    assert!(length > 4_000_000, "{length}");
    let footer = 64 << 10;
    let (bytes, log, _) = read(&[("where", "id = 100000")]);
    assert!(bytes <= footer && log.contains("10 row groups, 0 read"), "{bytes} {log}");
    let (bytes, log, _) = read(&[("where", "id = 4500"), ("columns", "id")]);
    assert!(bytes < footer + 30_000 && log.contains("10 row groups, 1 read"), "{bytes} {log}");
    let (bytes, _, result) = read(&[("where", "id = 4500")]);
    assert!(bytes < footer + length / 8, "{bytes} of {length}");
    assert!(String::from_utf8(result).unwrap().contains(r#"\"id\":4500,\"text\":\"4500-"#));
    let (bytes, _, result) = read(&[("where", "id >= 100"), ("count", "true")]);
    assert!(bytes < footer + 200_000 && result.ends_with(b"\"count\":9900}}\n"), "{bytes}");
}

#[test]
fn invalid_calls_are_refused() {
    for (arguments, text) in [
        (&[("where", "none = 1")][..], "where: the table has no column none"),
        (
            &[("where", "user = 1")],
            "where: column user has columns within it; name one of them, such as user.name",
        ),
        (&[("where", "tags = 't0'")], "where: column tags has several values in a row"),
        (&[("where", "day = 'x'")], "where: 'x': expected a date such as 2026-11-27, or a time such as"),
        (&[("where", "id = ")], "where: column 6:"),
        (
            &[("where", "id = 1"), ("result-format", "csv")],
            "argument result-format: expected json or parquet",
        ),
        (&[("where", "id = 1"), ("columns", " ,")], "argument columns: expected names, separated by commas"),
        (&[("where", "id = 1"), ("delimiter", ";")], "unknown argument"),
    ] {
        let failure = run(SNAPPY, arguments).unwrap_err();
        assert_eq!(failure.errno, FunctionErrno::INVALID, "{failure}");
        assert!(failure.message.contains(text), "{failure}");
    }
    let striped = run(SNAPPY, &[("where", "id = 1"), ("stripe.0", "4096,2,0,16000")]).unwrap_err();
    assert_eq!(striped.errno, FunctionErrno::UNSUPPORTED);
}

#[test]
fn hostile_files_are_refused_precisely() {
    let with_footer = |length: u32| {
        let mut file = SNAPPY.to_vec();
        let at = file.len() - 8;
        file[at..at + 4].copy_from_slice(&length.to_le_bytes());
        file
    };
    let mut encrypted = SNAPPY.to_vec();
    let end = encrypted.len();
    encrypted[end - 4..].copy_from_slice(b"PARE");
    // The checksum of a page does not match: pages begin after the magic bytes.
    let checked = TABLES[2].1;
    let mut changed = checked.to_vec();
    changed[100] ^= 1;
    for (file, text) in [
        (b"PAR1".to_vec(), "not a Parquet file: it is too short"),
        (b"{\"a\":1}\n{\"a\":2}\n".to_vec(), "not a Parquet file: it does not end with PAR1"),
        (encrypted, "the Parquet file is encrypted"),
        (with_footer(100_000_000), "the footer has 100000000 bytes; at most 16777216"),
        (with_footer(1_000_000), "the footer is longer than the file"),
        (with_footer(50), "footer: "),
        (LZ4.to_vec(), "compression LZ4"),
        (changed, "the checksum of a page does not match its bytes"),
    ] {
        let failure = failure(&file, "id >= 0");
        assert!(matches!(failure.errno, FunctionErrno::BAD_DATA | FunctionErrno::TOO_LARGE), "{failure}");
        assert!(failure.message.contains(text), "{failure}: {text}");
    }
    for end in (0..SNAPPY.len()).step_by(97) {
        assert!(run(&SNAPPY[..end], &[("where", "id >= 0")]).is_err(), "{end}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn damaged_tables_never_panic(
        table in 0usize..TABLES.len(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        in_footer: bool,
        form in 0usize..3,
    ) {
        let mut file = TABLES[table].1.to_vec();
        let footer = u32::from_le_bytes(file[file.len() - 8..file.len() - 4].try_into().unwrap()) as usize;
        let footer_start = file.len() - 8 - footer;
        for (at, byte) in changes {
            let at = if in_footer { footer_start + at.index(footer) } else { at.index(footer_start) };
            file[at] = byte;
        }
        let form = [("result-format", "json"), ("result-format", "parquet"), ("count", "true")][form];
        let _ = run(&file, &[("where", "id >= 3 and not path = 'x' or user.name = 'u1'"), form]);
    }
}
