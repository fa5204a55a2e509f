//! Results of shipped functions as text and JSON, in the order of the files.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sealstone_failure::text::set_bytes;
use sealstone_failure::{Failure, Outcome};
use sealstone_functions::{CountLine, DigestLine, MatchLine, ResultLine};
use sealstone_mds_protocol::{printable, shown};
use serde_json::{Value, json};

/// Maximum bytes of text that wait for an earlier file. Beyond it, files are written as they end.
const ORDERED_BYTES_MAX: usize = 64 << 20;

/// Form of the lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextForm {
    /// Whether matches begin with path and line number, as those of `grep -n`.
    pub(crate) numbered: bool,
    /// Whether lines name their file.
    pub(crate) with_path: bool,
    /// Whether control characters are escaped, for a terminal.
    pub(crate) escaped: bool,
}

/// Returns the text of a count: `3 lines, 9 words, 52 bytes`.
fn count_text(line: &CountLine) -> String {
    let parts = [
        (line.lines, "lines"),
        (line.words, "words"),
        (line.characters, "characters"),
        (line.bytes, "bytes"),
    ];
    let parts = parts.iter().filter_map(|(count, unit)| Some(format!("{} {unit}", (*count)?)));
    parts.collect::<Vec<_>>().join(", ")
}

fn push_match(form: TextForm, path: &str, line: &MatchLine, out: &mut Vec<u8>) -> Outcome {
    if form.numbered {
        let number = line.line;
        let prefix = if form.with_path { format!("{path}:{number}:") } else { format!("{number}:") };
        out.extend_from_slice(prefix.as_bytes());
    }
    let record = line.record.clone().into_bytes().map_err(Failure::operation)?;
    match form.escaped {
        true => out.extend_from_slice(printable(&String::from_utf8_lossy(&record)).as_bytes()),
        false => out.extend_from_slice(&record),
    }
    out.push(b'\n');
    Ok(())
}

/// Appends the text of a result of a file.
pub(crate) fn push_text(form: TextForm, path: &[u8], line: &ResultLine, out: &mut Vec<u8>) -> Outcome {
    let path = shown(path);
    let mut text = String::new();
    let prefix = if form.with_path { format!("{path}: ") } else { String::new() };
    let written = match line {
        ResultLine::Match(line) => return push_match(form, &path, line, out),
        ResultLine::Count(line) => writeln!(text, "{prefix}{}", count_text(line)),
        ResultLine::ByteCount(line) => writeln!(text, "{prefix}{}", line.count),
        ResultLine::MatchCount(line) => writeln!(text, "{prefix}{}", line.count),
        // As those of `sha256sum`.
        ResultLine::Digest(line) => writeln!(text, "{}  {path}", line.digest),
        ResultLine::Data(_) | ResultLine::Output(_) | ResultLine::Edge(_) | ResultLine::Subtree(_) => Ok(()),
    };
    written.map_err(Failure::operation)?;
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

fn count_json(line: &CountLine) -> Value {
    let mut value = json!({});
    for (name, count) in
        [("lines", line.lines), ("words", line.words), ("characters", line.characters), ("bytes", line.bytes)]
    {
        if let Some(count) = count {
            value[name] = count.into();
        }
    }
    value
}

/// Adds a result to the JSON of a file or of the total.
pub(crate) fn add_json(value: &mut Value, line: &ResultLine) -> Outcome {
    match line {
        ResultLine::Count(line) => value["count"] = count_json(line),
        ResultLine::ByteCount(line) => value["occurrences"] = line.count.into(),
        ResultLine::MatchCount(line) => value["match_count"] = line.count.into(),
        ResultLine::Digest(DigestLine { algorithm, digest, .. }) => {
            value["algorithm"] = algorithm.as_str().into();
            value["digest"] = digest.as_str().into();
        }
        ResultLine::Match(line) => {
            let mut entry = json!({ "offset": line.offset, "line": line.line });
            let record = line.record.clone().into_bytes().map_err(Failure::operation)?;
            set_bytes(&mut entry, "record", &record);
            if value["matches"].is_null() {
                value["matches"] = json!([]);
            }
            if let Value::Array(matches) = &mut value["matches"] {
                matches.push(entry);
            }
        }
        ResultLine::Output(line) => {
            value["bytes_in"] = line.bytes_in.into();
            value["bytes_out"] = line.bytes_out.into();
        }
        ResultLine::Data(_) | ResultLine::Edge(_) | ResultLine::Subtree(_) => {}
    }
    Ok(())
}

/// Writes the texts of files in their order, though they end in another one.
#[derive(Debug, Default)]
pub(crate) struct OrderedText {
    next: usize,
    waiting: BTreeMap<usize, Vec<u8>>,
    bytes: usize,
}

impl OrderedText {
    /// Adds the text of a file; returns the texts whose turn it is.
    pub(crate) fn add(&mut self, file: usize, text: Vec<u8>) -> Vec<u8> {
        self.bytes += text.len();
        self.waiting.insert(file, text);
        let mut ready = Vec::new();
        if self.bytes > ORDERED_BYTES_MAX {
            for text in self.waiting.values_mut() {
                ready.append(text);
            }
        }
        while let Some(mut text) = self.waiting.remove(&self.next) {
            self.next += 1;
            ready.append(&mut text);
        }
        self.bytes -= ready.len();
        ready
    }
}

#[cfg(test)]
mod tests {
    use sealstone_functions::RecordText;

    use super::*;

    fn written(order: &[(usize, Vec<u8>)]) -> Vec<u8> {
        let (mut ordered, mut out) = (OrderedText::default(), Vec::new());
        for (file, text) in order {
            out.append(&mut ordered.add(*file, text.clone()));
        }
        out
    }

    #[test]
    fn texts_are_written_in_file_order() {
        let text = |text: &str| text.as_bytes().to_vec();
        assert_eq!(written(&[(2, text("c")), (0, text("a")), (3, text("d")), (1, text("b"))]), b"abcd");
        assert_eq!(written(&[(1, text("b"))]), b"", "waits for file 0");
    }

    #[test]
    fn full_buffer_is_written_before_its_turn() {
        let long = vec![b'x'; ORDERED_BYTES_MAX];
        let out = written(&[(1, long.clone()), (3, b"y".to_vec()), (0, b"a".to_vec()), (2, b"z".to_vec())]);
        assert_eq!(out.len(), long.len() + 3);
        assert!(out.ends_with(b"yaz"));
    }

    #[test]
    fn lines_have_forms_of_local_tools() {
        let form = TextForm { numbered: true, with_path: true, escaped: false };
        let record = RecordText::new(b"err\x1b\xff");
        let found = ResultLine::Match(MatchLine { object: 0, offset: 9, line: 3, record });
        let text = |form, line| {
            let mut out = Vec::new();
            push_text(form, b"/a", line, &mut out).unwrap();
            out
        };
        assert_eq!(text(form, &found), b"/a:3:err\x1b\xff\n");
        let escaped = text(TextForm { with_path: false, escaped: true, ..form }, &found);
        assert!(escaped.starts_with(b"3:err") && !escaped.contains(&0x1b), "{escaped:?}");
        let count = CountLine { lines: Some(2), bytes: Some(7), ..CountLine::default() };
        assert_eq!(text(form, &ResultLine::Count(count)), b"/a: 2 lines, 7 bytes\n");
    }
}
