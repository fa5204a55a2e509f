//! `grep`: lines that match a regular expression, and the paper's records of a fixed size.
//!
//! Lines are searched in blocks: the expression finds the next match, and the line around it is
//! the result. An expression that can match a line feed, or that has `\A` or `\z`, is applied to
//! each line alone. Both ways give the same lines.

use memchr::memmem;
use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};
use sealstone_function_host::{
    FunctionArguments, FunctionCall, FunctionErrno, FunctionFailure, RecordBlock, RecordFormat,
};

use crate::search::{RecordSearch, SelectRecord, SelectedRecord, run_search};

/// Maximum length of a pattern, bytes.
pub const PATTERN_BYTES_MAX: usize = 4096;
/// Maximum size of a compiled expression, bytes.
pub const PATTERN_PROGRAM_BYTES_MAX: usize = 4 << 20;
/// Maximum depth of groups in an expression.
const PATTERN_DEPTH_MAX: u32 = 64;
/// Maximum size of a record of fixed size, bytes.
const FIXED_RECORD_BYTES_MAX: u64 = 1 << 20;

/// Runs `grep`.
pub fn run_grep(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    run_search(call, make_grep)
}

/// Returns the search that the arguments of `grep` describe.
pub(crate) fn make_grep(arguments: &FunctionArguments<'_>) -> Result<Box<dyn RecordSearch>, FunctionFailure> {
    arguments.allow_only(&[
        "pattern",
        "fixed",
        "ignore-case",
        "word",
        "invert",
        "count",
        "record-bytes",
        "stripe.",
    ])?;
    let pattern = arguments.require("pattern")?;
    if pattern.len() > PATTERN_BYTES_MAX {
        let message = format!("pattern of {} bytes; at most {PATTERN_BYTES_MAX}", pattern.len());
        return Err(FunctionFailure::new(FunctionErrno::TOO_LARGE, message));
    }
    let switches = GrepSwitches {
        fixed: arguments.switch("fixed")?,
        ignore_case: arguments.switch("ignore-case")?,
        word: arguments.switch("word")?,
        invert: arguments.switch("invert")?,
    };
    match arguments.number("record-bytes", 0)? {
        0 => Ok(Box::new(LineSearch::new(pattern, switches)?)),
        size if size > FIXED_RECORD_BYTES_MAX => {
            let message = format!("record-bytes of {size}; at most {FIXED_RECORD_BYTES_MAX}");
            Err(FunctionFailure::new(FunctionErrno::TOO_LARGE, message))
        }
        _ if switches.ignore_case || switches.word || switches.invert => {
            Err(FunctionFailure::invalid("record-bytes searches for plain text, without other switches"))
        }
        size => Ok(Box::new(FixedRecordSearch::new(pattern.as_bytes(), size as u32)?)),
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct GrepSwitches {
    fixed: bool,
    ignore_case: bool,
    word: bool,
    invert: bool,
}

/// Search for lines that match an expression.
struct LineSearch {
    regex: Regex,
    /// Whether the expression can be applied to a block of lines.
    in_blocks: bool,
    invert: bool,
}

impl LineSearch {
    fn new(pattern: &str, switches: GrepSwitches) -> Result<Self, FunctionFailure> {
        let mut pattern = if switches.fixed { regex_syntax::escape(pattern) } else { pattern.to_owned() };
        let parse = |pattern: &str| {
            ParserBuilder::new()
                .utf8(false)
                .multi_line(true)
                .case_insensitive(switches.ignore_case)
                .nest_limit(PATTERN_DEPTH_MAX)
                .build()
                .parse(pattern)
                .map_err(|error| FunctionFailure::invalid(format!("pattern is invalid: {error}")))
        };
        let mut hir = parse(&pattern)?;
        if switches.word {
            pattern = format!(r"\b(?:{pattern})\b");
            hir = parse(&pattern)?;
        }
        let in_blocks = !switches.invert && is_within_line(&hir);
        let regex = RegexBuilder::new(&pattern)
            .multi_line(in_blocks)
            .case_insensitive(switches.ignore_case)
            .nest_limit(PATTERN_DEPTH_MAX)
            .size_limit(PATTERN_PROGRAM_BYTES_MAX)
            .build()
            .map_err(|error| FunctionFailure::invalid(format!("pattern is invalid: {error}")))?;
        Ok(Self { regex, in_blocks, invert: switches.invert })
    }

    fn search_block(&self, block: RecordBlock<'_>, select: SelectRecord<'_>) -> Result<(), FunctionFailure> {
        let bytes = block.bytes;
        let (mut start, mut ends_before) = (0, block.ends_before);
        while start < bytes.len() {
            let Some(position) = self.regex.shortest_match_at(bytes, start) else { break };
            // An empty match after the last line feed belongs to no line.
            if position == bytes.len() && bytes.ends_with(b"\n") {
                break;
            }
            let line = memchr::memrchr(b'\n', &bytes[start..position]).map_or(start, |end| start + end + 1);
            let end = memchr::memchr(b'\n', &bytes[position..]).map_or(bytes.len(), |end| position + end);
            ends_before += memchr::memchr_iter(b'\n', &bytes[start..line]).count() as u64;
            let offset = block.file_offset + line as u64;
            select(SelectedRecord { offset, ends_before, bytes: &bytes[line..end] })?;
            start = end + 1;
            ends_before += 1;
        }
        Ok(())
    }
}

impl RecordSearch for LineSearch {
    fn format(&self) -> RecordFormat {
        RecordFormat::Lines
    }

    fn search(&mut self, block: RecordBlock<'_>, select: SelectRecord<'_>) -> Result<(), FunctionFailure> {
        if self.in_blocks {
            return self.search_block(block, select);
        }
        for_each_line(block, |line| {
            if self.regex.is_match(line.bytes) == self.invert { Ok(()) } else { select(line) }
        })
    }
}

/// Passes each line of a block without its line feed.
pub(crate) fn for_each_line<'b>(
    block: RecordBlock<'b>,
    mut process: impl FnMut(SelectedRecord<'b>) -> Result<(), FunctionFailure>,
) -> Result<(), FunctionFailure> {
    let (mut start, mut ends_before) = (0, block.ends_before);
    while start < block.bytes.len() {
        let rest = &block.bytes[start..];
        let length = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        process(SelectedRecord {
            offset: block.file_offset + start as u64,
            ends_before,
            bytes: &rest[..length],
        })?;
        start += length + 1;
        ends_before += 1;
    }
    Ok(())
}

/// Whether a match never contains a line feed, and does not depend on the start or end of the data.
/// The parser limits the depth of the expression.
fn is_within_line(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Empty => true,
        HirKind::Literal(literal) => !literal.0.contains(&b'\n'),
        HirKind::Class(Class::Unicode(class)) => {
            !class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&'\n'))
        }
        HirKind::Class(Class::Bytes(class)) => {
            !class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&b'\n'))
        }
        HirKind::Look(look) => !matches!(look, Look::Start | Look::End | Look::StartCRLF | Look::EndCRLF),
        HirKind::Repetition(repetition) => is_within_line(&repetition.sub),
        HirKind::Capture(capture) => is_within_line(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().all(is_within_line),
    }
}

/// Search for records of a fixed size that contain a text: the paper's `grep`, with 128 bytes.
struct FixedRecordSearch {
    finder: memmem::Finder<'static>,
    size: u32,
}

impl FixedRecordSearch {
    fn new(text: &[u8], size: u32) -> Result<Self, FunctionFailure> {
        if text.is_empty() || text.len() > size as usize {
            let message = format!("pattern of {} bytes; expected 1 to {size}, the record size", text.len());
            return Err(FunctionFailure::invalid(message));
        }
        Ok(Self { finder: memmem::Finder::new(text).into_owned(), size })
    }
}

impl RecordSearch for FixedRecordSearch {
    fn format(&self) -> RecordFormat {
        RecordFormat::Fixed(self.size)
    }

    fn search(&mut self, block: RecordBlock<'_>, select: SelectRecord<'_>) -> Result<(), FunctionFailure> {
        // A block begins at the start of a record.
        let (bytes, size) = (block.bytes, self.size as usize);
        let mut position = 0;
        while let Some(found) = self.finder.find(&bytes[position..]) {
            let found = position + found;
            let record = found / size * size;
            let end = bytes.len().min(record + size);
            if found + self.finder.needle().len() > end {
                position = found + 1;
                continue;
            }
            let ends_before = block.ends_before + (record / size) as u64;
            let offset = block.file_offset + record as u64;
            select(SelectedRecord { offset, ends_before, bytes: &bytes[record..end] })?;
            position = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sealstone_function_host::MemoryHost;

    use super::*;
    use crate::{MatchLine, ResultLine, parse_result};

    fn grep(data: &[u8], arguments: &[(&str, &str)]) -> Result<Vec<MatchLine>, FunctionFailure> {
        let mut host = MemoryHost::new(vec![data.to_vec()]);
        let bytes = FunctionArguments::encode(arguments.iter().copied()).unwrap();
        FunctionCall::new(&mut host, "", &bytes, 1).run(run_grep)?;
        let lines = parse_result(&host.result).map(|line| match line.unwrap() {
            ResultLine::Match(line) => line,
            other => panic!("unexpected {other:?}"),
        });
        Ok(lines.collect())
    }

    fn numbers(data: &[u8], arguments: &[(&str, &str)]) -> Vec<u64> {
        grep(data, arguments).unwrap().iter().map(|line| line.line).collect()
    }

    #[test]
    fn match_has_offset_line_and_text() {
        let found = grep(b"one\ntwo timeout\nthree\ntimeout", &[("pattern", "time.ut")]).unwrap();
        let shown: Vec<_> = found
            .into_iter()
            .map(|line| (line.offset, line.line, line.record.into_bytes().unwrap()))
            .collect();
        assert_eq!(shown, [(4, 2, b"two timeout".to_vec()), (22, 4, b"timeout".to_vec())]);
    }

    #[test]
    fn anchors_apply_to_each_line() {
        let data = b"ab\nba\n\nab";
        assert_eq!(numbers(data, &[("pattern", "^a")]), [1, 4]);
        assert_eq!(numbers(data, &[("pattern", r"\Aa")]), [1, 4]);
        assert_eq!(numbers(data, &[("pattern", "b$")]), [1, 4]);
        assert_eq!(numbers(data, &[("pattern", "^$")]), [3]);
        assert_eq!(numbers(data, &[("pattern", "")]), [1, 2, 3, 4]);
        assert_eq!(numbers(b"ab\n", &[("pattern", "$")]), [1]);
    }

    #[test]
    fn switches_change_selection() {
        let data = b"Error\nan error.\nterrors\nfine\n";
        assert_eq!(numbers(data, &[("pattern", "error")]), [2, 3]);
        assert_eq!(numbers(data, &[("pattern", "error"), ("ignore-case", "true")]), [1, 2, 3]);
        assert_eq!(numbers(data, &[("pattern", "error"), ("word", "true")]), [2]);
        assert_eq!(numbers(data, &[("pattern", "error"), ("invert", "true")]), [1, 4]);
        assert_eq!(numbers(data, &[("pattern", "."), ("fixed", "true")]), [2]);
    }

    #[test]
    fn hostile_patterns_are_refused() {
        for (pattern, text) in [
            ("a".repeat(PATTERN_BYTES_MAX + 1), "pattern of 4097 bytes; at most 4096"),
            ("(".into(), "pattern is invalid"),
            ("a)|(b".into(), "pattern is invalid"),
            ("(".repeat(65) + &")".repeat(65), "pattern is invalid"),
            (r"(\w{100}){100}".into(), "pattern is invalid"),
            ("((((a{50}){50}){50}){50})".into(), "pattern is invalid"),
        ] {
            for word in ["false", "true"] {
                let failure = grep(b"", &[("pattern", &pattern), ("word", word)]).unwrap_err();
                assert!(failure.message.starts_with(text), "{pattern}: {failure}");
            }
        }
    }

    #[test]
    fn paper_record_holds_whole_match() {
        let mut data = vec![b'.'; 384];
        data[126..130].copy_from_slice(b"word"); // across the edge of two records
        data[300..304].copy_from_slice(b"word");
        let arguments = [("pattern", "word"), ("record-bytes", "128")];
        let found = grep(&data, &arguments).unwrap();
        assert_eq!(found.iter().map(|line| (line.offset, line.line)).collect::<Vec<_>>(), [(256, 3)]);
        assert!(grep(b"", &[("pattern", "word"), ("record-bytes", "3")]).is_err());
        assert!(grep(b"", &[("pattern", "word"), ("record-bytes", "1048577")]).is_err());
    }

    #[test]
    fn count_replaces_matches() {
        let mut host = MemoryHost::new(vec![b"a\nb\na\n".to_vec()]);
        FunctionCall::new(&mut host, "", b"pattern=a\0count=true\0", 1).run(run_grep).unwrap();
        assert_eq!(host.result, b"{\"match-count\":{\"object\":0,\"count\":2}}\n");
    }

    proptest! {
        /// Blocks and single lines select the same.
        #[test]
        fn selected_lines_equal_naive_model(
            data in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'a'), Just(b'b'), any::<u8>()], 0..200),
            pattern in prop_oneof![
                Just("a"), Just("ab*"), Just("^a"), Just("a$"), Just("[^a]b"), Just(r"\ba"), Just("a|^$"), Just("b*"),
                Just(r"a\sb"), Just(r"(?s)a.*b"), Just(r"\Ab"), Just(r"a\z"), Just(r"(?-u)[\x80-\xff]"), Just("(?R)a$"),
            ],
        ) {
            let regex = Regex::new(pattern).unwrap();
            let mut expected = vec![];
            let mut offset = 0;
            for (number, line) in data.split_inclusive(|byte| *byte == b'\n').enumerate() {
                let text = line.strip_suffix(b"\n").unwrap_or(line);
                if regex.is_match(text) {
                    expected.push((offset as u64, number as u64 + 1, text.to_vec()));
                }
                offset += line.len();
            }
            let found: Vec<_> = grep(&data, &[("pattern", pattern)]).unwrap().into_iter()
                .map(|line| (line.offset, line.line, line.record.into_bytes().unwrap())).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
