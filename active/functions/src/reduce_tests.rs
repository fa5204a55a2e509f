//! A striped file gives the same reduced result as the file in one object, for each function.

use proptest::prelude::*;
use sealstone_function_host::{FunctionCall, MemoryHost};

use super::*;
use crate::{RecordText, find_function};

/// Runs a function on a file in one object.
fn run_whole(name: &str, arguments: &str, file: &[u8]) -> Result<Vec<FileReduction>, ReduceError> {
    let function = find_function(name).unwrap();
    let mut host = MemoryHost::new(vec![file.to_vec()]);
    FunctionCall::new(&mut host, "", arguments.as_bytes(), 1).run(function.run)?;
    let objects = [PartObject { file: 0, geometry: None }];
    reduce_parts(
        function,
        &[JobPart { arguments: arguments.as_bytes(), result: &host.result, objects: &objects }],
    )
}

/// Runs a function on each object of a striped file, as one job each, and reduces in reverse order.
fn run_striped(
    name: &str,
    arguments: &str,
    file: &[u8],
    (unit, width): (usize, usize),
) -> Result<Vec<FileReduction>, ReduceError> {
    let function = find_function(name).unwrap();
    let mut objects = vec![vec![]; width];
    for (number, part) in file.chunks(unit).enumerate() {
        objects[number % width].extend_from_slice(part);
    }
    let header = file.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut jobs = vec![];
    for (index, object) in objects.into_iter().enumerate() {
        let geometry =
            StripeGeometry::new(unit as u64, width as u64, index as u64, file.len() as u64).unwrap();
        let mut arguments = format!("{arguments}stripe.0={geometry}\0");
        if name == "filter" && arguments.contains("csv") {
            arguments += &format!("header.0={}\0", String::from_utf8_lossy(header));
        }
        let mut host = MemoryHost::new(vec![object]);
        FunctionCall::new(&mut host, "", arguments.as_bytes(), 1).run(function.run)?;
        jobs.push((arguments, host.result, [PartObject { file: 0, geometry: Some(geometry) }]));
    }
    let parts: Vec<_> = jobs
        .iter()
        .rev()
        .map(|(arguments, result, objects)| JobPart { arguments: arguments.as_bytes(), result, objects })
        .collect();
    reduce_parts(function, &parts)
}

fn any_text() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => Just(b'a'), 2 => Just(b'b'), 2 => Just(b'\n'), 2 => Just(b' '), 1 => any::<u8>()
    ];
    proptest::collection::vec(byte, 0..200)
}

proptest! {
    #[test]
    fn striped_text_functions_equal_whole(
        file in any_text(),
        unit in 1usize..50,
        width in 2usize..5,
    ) {
        for (name, arguments) in [
            ("count", "by=bytes,lines,words,characters\0"),
            ("wordcount", "byte=a\0"),
            ("grep", "pattern=ab*\0"),
            ("grep", "pattern=^a\0invert=true\0"),
            ("grep", "pattern=b$\0count=true\0"),
            ("grep", "pattern=ab\0record-bytes=7\0"),
        ] {
            let whole = run_whole(name, arguments, &file).unwrap();
            let striped = run_striped(name, arguments, &file, (unit, width)).unwrap();
            prop_assert_eq!(striped, whole, "{}", arguments);
        }
    }

    #[test]
    fn striped_tables_equal_whole(
        rows in proptest::collection::vec((0u32..20, "[a-c,\" ]{0,5}"), 0..20),
        unit in 1usize..50,
        width in 2usize..5,
    ) {
        let csv: String = rows.iter().map(|(n, text)| format!("{n},\"{}\"\n", text.replace('"', "\"\""))).collect();
        let csv = format!("n,text\n{csv}");
        let json: String =
            rows.iter().map(|(n, text)| format!("{{\"n\":{n},\"text\":{text:?}}}\n")).collect();
        for (file, format) in [(csv, "csv"), (json, "jsonl")] {
            for more in ["", "count=true\0"] {
                let arguments = format!("where=n >= 10 or text contains 'a'\0format={format}\0{more}");
                let whole = run_whole("filter", &arguments, file.as_bytes()).unwrap();
                let striped = run_striped("filter", &arguments, file.as_bytes(), (unit, width)).unwrap();
                prop_assert_eq!(striped, whole);
            }
        }
    }

    #[test]
    fn striped_blake3_equals_whole(length in 0usize..40_000, shift in 10u32..13, width in 2usize..5) {
        let file: Vec<u8> = (0..length).map(|at| (at * 31 + at / 509) as u8).collect();
        let digest = blake3::hash(&file).to_string();
        let whole = run_whole("blake3", "", &file).unwrap();
        let expected = ResultLine::Digest(DigestLine { object: 0, algorithm: "blake3".into(), digest });
        prop_assert_eq!(&whole[0].lines, &[expected]);
        if length > 0 {
            prop_assert_eq!(run_striped("blake3", "", &file, (1 << shift, width)).unwrap(), whole);
        }
    }

    #[test]
    fn arbitrary_results_never_panic(
        result in proptest::collection::vec(any::<u8>(), 0..100),
        kind in 0usize..6,
        numbers in any::<[u64; 3]>(),
    ) {
        let [a, b, c] = numbers.map(|number| number >> (number % 64));
        let line = match kind {
            0 => format!("{{\"edge\":{{\"object\":0,\"unit\":{a},\"ends\":{b},\"head\":{{\"text\":\"\"}},\"tail\":{{\"base64\":\"!\"}},\"open\":true}}}}"),
            1 => format!("{{\"match\":{{\"object\":0,\"offset\":{a},\"line\":{b},\"record\":{{\"text\":\"\"}}}}}}"),
            2 => format!("{{\"count\":{{\"object\":0,\"words\":{a},\"seams\":\"9\"}}}}"),
            3 => format!("{{\"subtree\":{{\"object\":0,\"unit\":{a},\"value\":\"00\"}}}}"),
            4 => format!("{{\"match-count\":{{\"object\":{a},\"count\":{b}}}}}"),
            _ => String::from_utf8_lossy(&result).into_owned(),
        };
        let objects = [PartObject { file: 0, geometry: StripeGeometry::new(4096, 2, 0, c).ok() }];
        for function in crate::SHIPPED_FUNCTIONS {
            let arguments = b"pattern=a\0";
            let _ = reduce_parts(function, &[JobPart { arguments, result: line.as_bytes(), objects: &objects }]);
        }
    }
}

#[test]
fn missing_unit_is_reported() {
    let function = find_function("grep").unwrap();
    let geometry = StripeGeometry::new(4, 2, 0, 8).ok();
    let objects = [PartObject { file: 3, geometry }];
    let part = JobPart { arguments: b"pattern=a\0", result: b"", objects: &objects };
    let error = reduce_parts(function, &[part]).unwrap_err();
    assert_eq!(error.to_string(), "file 3: no result for part 1 of 2");
    let error = reduce_parts(function, &[part, part]).unwrap_err();
    assert_eq!(error.to_string(), "file 3: its objects do not belong together");
}

/// Reduces results of the two objects of a file with stripe units of 4 bytes.
fn reduce_two(arguments: &str, length: u64, results: [&str; 2]) -> Result<Vec<FileReduction>, String> {
    let objects = [0, 1].map(|index| {
        [PartObject { file: 0, geometry: Some(StripeGeometry::new(4, 2, index, length).unwrap()) }]
    });
    let part = |index: usize| JobPart {
        arguments: arguments.as_bytes(),
        result: results[index].as_bytes(),
        objects: &objects[index],
    };
    reduce_parts(find_function("grep").unwrap(), &[part(0), part(1)]).map_err(|error| error.to_string())
}

#[test]
fn missing_and_repeated_lines_are_refused() {
    let edge = |unit| {
        format!(
            r#"{{"edge":{{"object":0,"unit":{unit},"ends":1,"head":{{"text":"a"}},"tail":{{"text":"a"}},"open":false}}}}"#
        ) + "\n"
    };
    let found = |offset| {
        format!(r#"{{"match":{{"object":0,"offset":{offset},"line":1,"record":{{"text":"a"}}}}}}"#) + "\n"
    };
    let count = r#"{"match-count":{"object":0,"count":1}}"#.to_owned() + "\n";
    let (first, second) = (edge(0), edge(1));
    let counted = "pattern=a\0count=true\0";
    let both = |line: &str| [first.clone() + line, second.clone() + line];
    let [one, two] = both(&count);
    assert!(reduce_two(counted, 8, [&one, &two]).is_ok());
    let unexpected = Err("file 0: unexpected line in the result".to_owned());
    let missing = Err("file 0: no result for part 1 of 2".to_owned());
    assert_eq!(reduce_two(counted, 8, [&one, &second]), missing, "no count of the second object");
    assert_eq!(reduce_two(counted, 8, [&(one.clone() + &count), &two]), unexpected, "two counts");
    assert_eq!(reduce_two(counted, 8, [&(one.clone() + &found(1)), &two]), unexpected, "a match");
    let matched = "pattern=a\0";
    assert!(reduce_two(matched, 8, [&(first.clone() + &found(2)), &second]).is_ok());
    assert_eq!(reduce_two(matched, 8, [&one, &second]), unexpected, "a count");
    let twice = first.clone() + &found(2) + &found(2);
    assert_eq!(reduce_two(matched, 8, [&twice, &second]), unexpected, "one match twice");
    assert_eq!(reduce_two(matched, 8, [&(first.clone() + &found(5)), &second]), unexpected, "other object");
    assert_eq!(reduce_two(matched, 8, [&first, &(second.clone() + &first)]), unexpected, "one edge twice");
    assert_eq!(reduce_two(matched, 8, [&(first.clone() + &second), ""]), unexpected, "edge of other object");
    assert_eq!(reduce_two(matched, 8, [&first, ""]), missing, "no edge");
}

#[test]
fn edge_of_failed_record_is_reported() {
    let error =
        run_striped("filter", "where=a = 1\0format=jsonl\0", b"{\"a\":1}\n{\"a\"\n", (4, 2)).unwrap_err();
    assert!(error.to_string().starts_with("record at offset 8: invalid JSON object"), "{error}");
}

#[test]
fn files_of_one_job_are_separate() {
    let function = find_function("count").unwrap();
    let mut host = MemoryHost::new(vec![b"a b\n".to_vec(), b"c".to_vec()]);
    FunctionCall::new(&mut host, "", b"", 2).run(function.run).unwrap();
    let objects = [PartObject { file: 7, geometry: None }, PartObject { file: 2, geometry: None }];
    let part = JobPart { arguments: b"", result: &host.result, objects: &objects };
    let files = reduce_parts(function, &[part]).unwrap();
    assert_eq!(files.iter().map(|file| file.file).collect::<Vec<_>>(), [2, 7]);
    let Some(ResultLine::Count(total)) = total_of(&files) else { panic!("no total") };
    assert_eq!((total.bytes, total.lines, total.words), (Some(5), Some(1), Some(3)));
}

#[test]
fn match_text_survives_reduction() {
    let files = run_striped("grep", "pattern=b\0", b"aaaa\n\xffb\nc\n", (3, 2)).unwrap();
    let record = RecordText::new(b"\xffb");
    assert_eq!(files[0].lines, [ResultLine::Match(MatchLine { object: 0, offset: 5, line: 2, record })]);
}
