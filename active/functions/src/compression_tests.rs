//! Tests of `compress` and `decompress`, also against the programs `gzip` and `zstd`.

use std::process::{Command, Stdio};

use proptest::prelude::*;
use sealstone_function_host::{MemoryHost, StripeGeometry};

use super::*;
use crate::{JobPart, PartObject, find_function, parse_result, reduce_parts};

/// Runs a function on one object; returns the bytes of its `data` lines.
fn run_whole(name: &str, arguments: &str, input: &[u8]) -> Result<Vec<u8>, FunctionFailure> {
    let mut host = MemoryHost::new(vec![input.to_vec()]);
    let function = find_function(name).unwrap();
    FunctionCall::new(&mut host, "", arguments.as_bytes(), 1).run(function.run)?;
    let objects = [PartObject { file: 0, geometry: None }];
    let part = JobPart { arguments: arguments.as_bytes(), result: &host.result, objects: &objects };
    let reduced = reduce_parts(function, &[part]).unwrap();
    let out = bytes_of(&reduced[0].lines);
    let Some(ResultLine::Output(line)) = reduced[0].lines.last() else { panic!("no end") };
    assert_eq!((line.bytes_in, line.bytes_out), (input.len() as u64, out.len() as u64));
    Ok(out)
}

fn bytes_of(lines: &[ResultLine]) -> Vec<u8> {
    let data = lines.iter().filter_map(|line| match line {
        ResultLine::Data(line) => Some(line.data.clone().into_bytes().unwrap()),
        _ => None,
    });
    data.collect::<Vec<_>>().concat()
}

/// Runs a local tool with this input; returns its output.
fn tool(words: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = Command::new(words[0]);
    let command = command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{words:?}");
    output.stdout
}

fn sample(length: usize) -> Vec<u8> {
    let mut state = 7u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 16
    };
    let mut out = Vec::with_capacity(length + 64);
    while out.len() < length {
        match next() % 50 {
            0 => (0..64).for_each(|_| out.push(next() as u8)),
            kind => out.extend_from_slice(format!("{kind} GET /path/{} 200\n", next() % 100).as_bytes()),
        }
    }
    out.truncate(length);
    out
}

#[test]
fn tools_read_and_write_both_formats() {
    let data = sample(1_500_000);
    for (format, extra) in [("gzip", ""), ("gzip", "level=9\0"), ("zstd", "")] {
        let compressed = run_whole("compress", &format!("format={format}\0{extra}"), &data).unwrap();
        assert!(compressed.len() < data.len() / 2, "{format}: {}", compressed.len());
        assert!(tool(&[format, "-d", "-c"], &compressed) == data, "{format} {extra}");
        assert!(run_whole("decompress", "", &compressed).unwrap() == data, "{format}");
    }
    for words in [
        &["gzip", "-1"][..],
        &["gzip", "-9"],
        &["zstd", "-1"],
        &["zstd", "-19"],
        &["zstd", "--no-check"],
        &["zstd", "--long=26"],
    ] {
        let compressed = tool(words, &data);
        assert!(run_whole("decompress", "", &compressed).unwrap() == data, "{words:?}");
        let twice = [&compressed[..], &compressed].concat();
        assert!(run_whole("decompress", "", &twice).unwrap() == [&data[..], &data].concat(), "{words:?}");
    }
}

#[test]
fn empty_file_is_valid_frame() {
    for format in ["gzip", "zstd"] {
        let compressed = run_whole("compress", &format!("format={format}\0"), b"").unwrap();
        assert_eq!(tool(&[format, "-d", "-c"], &compressed), b"");
        assert_eq!(run_whole("decompress", "", &compressed).unwrap(), b"");
    }
}

#[test]
fn damaged_data_are_refused_precisely() {
    let data = sample(300_000);
    for format in ["gzip", "zstd"] {
        let good = run_whole("compress", &format!("format={format}\0"), &data).unwrap();
        let refused = |bytes: &[u8]| {
            let failure = run_whole("decompress", "", bytes).unwrap_err();
            assert_eq!(failure.errno, FunctionErrno::BAD_DATA, "{}", failure.message);
            failure.message.into_owned()
        };
        for length in [5, 20, good.len() / 2, good.len() - 1] {
            let expected = format!("object 0: the {format} data end early, after {length} bytes");
            assert_eq!(refused(&good[..length]), expected);
        }
        let mut flipped = good.clone();
        let last = flipped.len() - if format == "gzip" { 8 } else { 1 };
        flipped[last] ^= 1;
        let message = refused(&flipped);
        assert!(message.starts_with(&format!("object 0: invalid {format} data before offset ")), "{message}");
        let garbage = [&good[..], b"garbage after the end of the data"].concat();
        let message = refused(&garbage);
        assert!(message.contains(&format!("invalid {format} data before offset ")), "{message}");
    }
    let message =
        |arguments: &str, bytes: &[u8]| run_whole("decompress", arguments, bytes).unwrap_err().message;
    assert_eq!(message("", b"text"), "object 0: the file begins neither as gzip nor as zstd");
    assert_eq!(message("", b""), "object 0: the file is empty, so it is neither gzip nor zstd");
    assert_eq!(message("format=zstd\0", b"\x1f\x8b\x08"), "object 0: the file does not begin as zstd");
}

#[test]
fn output_beyond_limit_is_refused() {
    for words in [["gzip", "-9"], ["zstd", "-19"]] {
        let bomb = tool(&words, &vec![0; 20 << 20]);
        let failure = run_whole("decompress", "max-bytes=1000000\0", &bomb).unwrap_err();
        assert_eq!(failure.errno, FunctionErrno::TOO_LARGE);
        assert_eq!(failure.message, "object 0: more than 1000000 bytes, the limit max-bytes");
        assert!(run_whole("decompress", &format!("max-bytes={}\0", 20 << 20), &bomb).is_ok());
    }
}

#[test]
fn window_beyond_limit_is_refused() {
    // A frame header with a window descriptor for 128 MiB.
    let header = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 17 << 3, 1, 0, 0];
    let failure = run_whole("decompress", "", &header).unwrap_err();
    assert!(failure.message.contains("window"), "{}", failure.message);
}

#[test]
fn skippable_frames_are_skipped() {
    let frame = [&[0x51, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let data = run_whole("compress", "", b"text").unwrap();
    assert_eq!(run_whole("decompress", "", &[&frame[..], &data, &frame].concat()).unwrap(), b"text");
    let failure = run_whole("decompress", "", &frame[..9]).unwrap_err();
    assert_eq!(failure.message, "object 0: the zstd data end early, after 9 bytes");
}

#[test]
fn arguments_of_compress_are_checked() {
    let message = |arguments: &str| run_whole("compress", arguments, b"a").unwrap_err().message;
    assert_eq!(message("format=xz\0"), "argument format: expected gzip or zstd");
    assert_eq!(message("level=3\0"), "argument level: only gzip has levels");
    assert_eq!(message("format=gzip\0level=0\0"), "argument level: expected 1 to 9");
}

#[test]
fn failed_result_ends_compression() {
    for format in ["gzip", "zstd"] {
        let mut host = MemoryHost { result_bytes_max: Some(1000), ..MemoryHost::new(vec![sample(500_000)]) };
        let arguments = format!("format={format}\0");
        let failure =
            FunctionCall::new(&mut host, "", arguments.as_bytes(), 1).run(run_compress).unwrap_err();
        assert_eq!(failure.errno, FunctionErrno::TOO_LARGE, "{format}");
    }
}

#[test]
fn cancelled_compression_stops() {
    for format in ["gzip", "zstd"] {
        let mut host = MemoryHost { cancelled: true, ..MemoryHost::new(vec![sample(500_000)]) };
        let arguments = format!("format={format}\0");
        let failure =
            FunctionCall::new(&mut host, "", arguments.as_bytes(), 1).run(run_compress).unwrap_err();
        assert_eq!(failure.errno, FunctionErrno::CANCELLED, "{format}");
    }
}

#[test]
fn striped_file_is_not_decompressed() {
    let mut host = MemoryHost::new(vec![vec![0; 8]]);
    let failure =
        FunctionCall::new(&mut host, "", b"stripe.0=4,2,0,16\0", 1).run(run_decompress).unwrap_err();
    assert_eq!(failure.errno, FunctionErrno::UNSUPPORTED);
}

#[test]
fn incomplete_result_is_not_reduced() {
    let mut host = MemoryHost::new(vec![sample(1000)]);
    FunctionCall::new(&mut host, "", b"", 1).run(run_compress).unwrap();
    let text = String::from_utf8(host.result).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    let objects = [PartObject { file: 0, geometry: None }];
    let reduce = |result: &str| {
        let part = JobPart { arguments: b"", result: result.as_bytes(), objects: &objects };
        reduce_parts(find_function("compress").unwrap(), &[part]).map_err(|error| error.to_string())
    };
    assert!(reduce(&text).is_ok());
    assert_eq!(reduce(lines[0]).unwrap_err(), "file 0: no result for part 0 of 1");
    for other in [lines[1].to_owned(), format!("{}\n{text}", lines[0]), format!("{text}{}", lines[0])] {
        assert_eq!(reduce(&other).unwrap_err(), "file 0: unexpected line in the result");
    }
}

proptest! {
    /// Units that devices compress one by one are a valid file in their order.
    #[test]
    fn striped_compression_decompresses_to_file(
        seed in 1usize..3000,
        unit in 1usize..400,
        width in 2usize..4,
        gzip: bool,
    ) {
        let file = sample(seed);
        let name = if gzip { "gzip" } else { "zstd" };
        let function = find_function("compress").unwrap();
        let mut jobs = Vec::new();
        for index in 0..width {
            let object: Vec<u8> =
                file.chunks(unit).skip(index).step_by(width).flatten().copied().collect();
            if object.is_empty() {
                continue;
            }
            let arguments = format!("format={name}\0stripe.0={unit},{width},{index},{}\0", file.len());
            let mut host = MemoryHost::new(vec![object]);
            FunctionCall::new(&mut host, "", arguments.as_bytes(), 1).run(function.run).unwrap();
            let geometry =
                StripeGeometry::new(unit as u64, width as u64, index as u64, file.len() as u64).unwrap();
            jobs.push((arguments, host.result, [PartObject { file: 0, geometry: Some(geometry) }]));
        }
        let parts: Vec<JobPart<'_>> = jobs
            .iter()
            .map(|(arguments, result, objects)| JobPart { arguments: arguments.as_bytes(), result, objects })
            .collect();
        let reduced = reduce_parts(function, &parts).unwrap();
        let compressed = bytes_of(&reduced[0].lines);
        prop_assert_eq!(run_whole("decompress", "", &compressed).unwrap(), file);
    }

    #[test]
    fn arbitrary_compressed_bytes_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        kind in 0usize..3,
    ) {
        let magic = [&[0x1f, 0x8b, 8, 0][..], &[0x28, 0xb5, 0x2f, 0xfd], &[]][kind];
        bytes.splice(0..0, magic.iter().copied());
        let _ = run_whole("decompress", "max-bytes=1000000\0", &bytes);
    }

    #[test]
    fn changed_compressed_bytes_never_panic(
        length in 1usize..5000,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        gzip: bool,
    ) {
        let format = if gzip { "format=gzip\0" } else { "format=zstd\0" };
        let mut bytes = run_whole("compress", format, &sample(length)).unwrap();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = run_whole("decompress", "max-bytes=1000000\0", &bytes);
    }

    #[test]
    fn compressed_bytes_survive(bytes in proptest::collection::vec(any::<u8>(), 0..3000), gzip: bool) {
        let format = if gzip { "format=gzip\0" } else { "format=zstd\0" };
        let compressed = run_whole("compress", format, &bytes).unwrap();
        prop_assert_eq!(run_whole("decompress", "", &compressed).unwrap(), bytes);
    }
}

#[test]
fn data_line_has_documented_form() {
    let mut host = MemoryHost::new(vec![]);
    FunctionCall::new(&mut host, "", b"", 0).run(|call| emit_data(call, 1, 2, b"\xff\x00")).unwrap();
    let text = String::from_utf8(host.result).unwrap();
    assert_eq!(text, "{\"data\":{\"object\":1,\"unit\":2,\"data\":{\"base64\":\"/wA=\"}}}\n");
    assert_eq!(parse_result(text.as_bytes()).count(), 1);
}
