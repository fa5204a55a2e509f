//! `count` (bytes, lines, words, characters) and the paper's `wordcount` (occurrences of a byte).

use sealstone_function_host::{ArgumentError, CHUNK_BYTES, FunctionArguments, FunctionCall, FunctionFailure};

use crate::result::{ByteCountLine, CountLine, ResultLine, emit};

/// Totals that the caller requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CountSelection {
    bytes: bool,
    lines: bool,
    words: bool,
    characters: bool,
}

impl CountSelection {
    fn parse(arguments: &FunctionArguments<'_>) -> Result<Self, ArgumentError> {
        let mut selection = Self::default();
        for name in arguments.get("by").unwrap_or("lines,words,bytes").split(',') {
            match name.trim() {
                "bytes" => selection.bytes = true,
                "lines" => selection.lines = true,
                "words" => selection.words = true,
                "characters" => selection.characters = true,
                _ => {
                    let expected = "a list of bytes, lines, words, characters";
                    return Err(ArgumentError::Invalid { name: "by", expected });
                }
            }
        }
        Ok(selection)
    }
}

/// Totals of consecutive bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ByteTotals {
    bytes: u64,
    lines: u64,
    words: u64,
    characters: u64,
    /// Whether the first byte belongs to a word.
    begins_in_word: bool,
    /// Whether the last byte belongs to a word.
    ends_in_word: bool,
}

impl ByteTotals {
    /// Adds the bytes that follow.
    fn add(&mut self, data: &[u8], selection: CountSelection) {
        let (Some(first), Some(last)) = (data.first(), data.last()) else { return };
        if selection.lines {
            self.lines += memchr::memchr_iter(b'\n', data).count() as u64;
        }
        if selection.characters {
            self.characters += count_in_parts(data, |byte| (byte & 0xc0) != 0x80);
        }
        if selection.words {
            self.words += u64::from(!is_space(*first) && !self.ends_in_word) + count_word_starts(data);
        }
        if self.bytes == 0 {
            self.begins_in_word = !is_space(*first);
        }
        self.ends_in_word = !is_space(*last);
        self.bytes += data.len() as u64;
    }
}

/// Whether a byte separates words: the white space of the C locale.
const fn is_space(byte: u8) -> bool {
    byte == b' ' || byte.wrapping_sub(b'\t') < 5
}

/// Counts bytes with a property, in a form that the compiler vectorises.
fn count_in_parts(data: &[u8], has: impl Fn(u8) -> bool) -> u64 {
    data.chunks(255).map(|part| u64::from(part.iter().map(|byte| u8::from(has(*byte))).sum::<u8>())).sum()
}

/// Counts bytes of words that follow white space.
fn count_word_starts(data: &[u8]) -> u64 {
    let Some(rest) = data.get(1..) else { return 0 };
    let starts = |(before, after): (&[u8], &[u8])| {
        let flags =
            before.iter().zip(after).map(|(before, after)| u8::from(is_space(*before) & !is_space(*after)));
        u64::from(flags.sum::<u8>())
    };
    data[..rest.len()].chunks(255).zip(rest.chunks(255)).map(starts).sum()
}

/// Runs `count`: the totals of each object.
pub fn run_count(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    let arguments = call.arguments()?;
    arguments.allow_only(&["by", "stripe."])?;
    let selection = CountSelection::parse(&arguments)?;
    let mut buffer = vec![0; CHUNK_BYTES];
    for object in 0..call.object_count() {
        let geometry = call.geometry(object)?;
        let mut line = CountLine { object, ..CountLine::default() };
        let mut sums = ByteTotals::default();
        for unit in geometry.units() {
            let mut totals = ByteTotals::default();
            for_each_part(call, object, (unit.object_offset, unit.length), &mut buffer, |data| {
                totals.add(data, selection);
            })?;
            sums.bytes += totals.bytes;
            sums.lines += totals.lines;
            sums.words += totals.words;
            sums.characters += totals.characters;
            if selection.words && !geometry.is_whole() {
                let seam = u8::from(totals.begins_in_word) + 2 * u8::from(totals.ends_in_word);
                line.seams.push(char::from(b'0' + seam));
            }
        }
        line.bytes = selection.bytes.then_some(sums.bytes);
        line.lines = selection.lines.then_some(sums.lines);
        line.words = selection.words.then_some(sums.words);
        line.characters = selection.characters.then_some(sums.characters);
        emit(call, &ResultLine::Count(line))?;
        call.progress(u64::from(object) + 1, u64::from(call.object_count()));
    }
    Ok(())
}

/// Runs `wordcount`: the occurrences of one byte in each object.
pub fn run_wordcount(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    let arguments = call.arguments()?;
    arguments.allow_only(&["byte", "stripe."])?;
    let byte = parse_byte(arguments.get("byte").unwrap_or(" "))?;
    let mut buffer = vec![0; CHUNK_BYTES];
    for object in 0..call.object_count() {
        let mut count = 0;
        for unit in call.geometry(object)?.units() {
            for_each_part(call, object, (unit.object_offset, unit.length), &mut buffer, |data| {
                count += memchr::memchr_iter(byte, data).count() as u64;
            })?;
        }
        emit(call, &ResultLine::ByteCount(ByteCountLine { object, count }))?;
        call.progress(u64::from(object) + 1, u64::from(call.object_count()));
    }
    Ok(())
}

/// Reads a range of an object in parts. Bytes beyond the object's end are zero.
pub(crate) fn for_each_part(
    call: &mut FunctionCall<'_>,
    object: u32,
    (offset, length): (u64, u64),
    buffer: &mut [u8],
    mut process: impl FnMut(&[u8]),
) -> Result<(), FunctionFailure> {
    let mut position = 0;
    call.read_ahead(object, offset, length);
    while position < length {
        let count = (length - position).min(buffer.len() as u64) as usize;
        call.read_zero_filled(object, offset + position, &mut buffer[..count])?;
        process(&buffer[..count]);
        position += count as u64;
    }
    Ok(())
}

/// Parses one ASCII character or `0x` with two hexadecimal digits.
fn parse_byte(text: &str) -> Result<u8, ArgumentError> {
    let invalid =
        ArgumentError::Invalid { name: "byte", expected: "one ASCII character, or 0x and two digits" };
    match (text.as_bytes(), text.strip_prefix("0x")) {
        ([byte], _) => Ok(*byte),
        (_, Some(digits)) if digits.len() == 2 => u8::from_str_radix(digits, 16).map_err(|_| invalid),
        _ => Err(invalid),
    }
}

/// Adds the totals of a file's objects; a word across the edge of two units was counted twice.
pub(crate) fn merge_counts(file: u32, objects: &[CountLine], seams: &[u8]) -> CountLine {
    let sum = |of: fn(&CountLine) -> Option<u64>| {
        objects.iter().map(of).reduce(|a, b| Some(a?.saturating_add(b?))).flatten()
    };
    let double = seams.windows(2).filter(|pair| pair[0] & 2 != 0 && pair[1] & 1 != 0).count() as u64;
    CountLine {
        object: file,
        bytes: sum(|line| line.bytes),
        lines: sum(|line| line.lines),
        words: sum(|line| line.words).map(|words| words.saturating_sub(double)),
        characters: sum(|line| line.characters),
        seams: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sealstone_function_host::{FunctionErrno, MemoryHost};

    use super::*;
    use crate::parse_result;

    const ALL: CountSelection = CountSelection { bytes: true, lines: true, words: true, characters: true };

    #[test]
    fn unknown_total_is_refused() {
        let mut host = MemoryHost::new(vec![]);
        let failure = FunctionCall::new(&mut host, "", b"by=pages\0", 0).run(run_count).unwrap_err();
        assert_eq!(failure.errno, FunctionErrno::INVALID);
        assert_eq!(failure.message, "argument by: expected a list of bytes, lines, words, characters");
    }

    #[test]
    fn byte_argument_has_two_forms() {
        assert_eq!(parse_byte("x"), Ok(b'x'));
        assert_eq!(parse_byte("0x0a"), Ok(b'\n'));
        for invalid in ["", "ab", "0x", "0xzz", "ä"] {
            assert!(parse_byte(invalid).is_err(), "{invalid}");
        }
    }

    proptest! {
        #[test]
        fn totals_equal_naive_model(
            parts in proptest::collection::vec(
                proptest::collection::vec(prop_oneof![Just(b' '), Just(b'\n'), any::<u8>()], 0..400), 0..4),
        ) {
            let mut totals = ByteTotals::default();
            parts.iter().for_each(|part| totals.add(part, ALL));
            let data = parts.concat();
            let words = data.split(|byte| matches!(byte, 9..=13 | 32)).filter(|word| !word.is_empty()).count();
            prop_assert_eq!(totals.words, words as u64);
            prop_assert_eq!(totals.lines, data.iter().filter(|byte| **byte == b'\n').count() as u64);
            prop_assert_eq!(totals.bytes, data.len() as u64);
            let text = String::from_utf8_lossy(&data);
            if text.as_bytes() == data {
                prop_assert_eq!(totals.characters, text.chars().count() as u64);
            }
        }

        #[test]
        fn occurrences_equal_naive_model(data in proptest::collection::vec(0u8..4, 0..600), byte in 0u8..5) {
            let expected = data.iter().filter(|other| **other == byte).count() as u64;
            let mut host = MemoryHost::new(vec![data]);
            let arguments = format!("byte=0x{byte:02x}\0");
            FunctionCall::new(&mut host, "", arguments.as_bytes(), 1).run(run_wordcount).unwrap();
            let lines: Vec<_> = parse_result(&host.result).map(Result::unwrap).collect();
            prop_assert_eq!(lines, [ResultLine::ByteCount(ByteCountLine { object: 0, count: expected })]);
        }
    }
}
