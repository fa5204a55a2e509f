//! Results of functions: JSON lines, one object with one key for each line.
//!
//! `{"match":{"object":0,"offset":120,"line":3,"record":{"text":"…"}}}`. The form can be appended
//! to and concatenated, and any language can read it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealstone_function_host::{EdgeFragments, FunctionCall, FunctionErrno, FunctionFailure};
use serde::{Deserialize, Serialize};

/// One line of a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResultLine {
    /// Lines, words and bytes of an object.
    Count(CountLine),
    /// Occurrences of a byte in an object.
    ByteCount(ByteCountLine),
    /// A record that was found.
    Match(MatchLine),
    /// Number of records that were found.
    MatchCount(MatchCountLine),
    /// Fragments of records at the edges of a stripe unit.
    Edge(EdgeLine),
    /// Digest of a file.
    Digest(DigestLine),
    /// BLAKE3 value of a stripe unit, from which the client computes the digest of the file.
    Subtree(SubtreeLine),
    /// Bytes of an output that the client writes to a file.
    Data(DataLine),
    /// An output was written: an object, or the `data` lines before this line.
    Output(OutputLine),
}

/// Totals of an object. A total that was not requested is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountLine {
    /// Index of the object in the call; of the file, once reduced.
    pub object: u32,
    /// Number of bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Number of line feeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<u64>,
    /// Number of words, separated by ASCII white space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<u64>,
    /// Number of UTF-8 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub characters: Option<u64>,
    /// A digit for each stripe unit: 1 if it begins within a word, plus 2 if it ends within one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub seams: String,
}

/// Occurrences of a byte in an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteCountLine {
    /// Index of the object in the call; of the file, once reduced.
    pub object: u32,
    /// Number of occurrences.
    pub count: u64,
}

/// A record that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatchLine {
    /// Index of the object in the call; of the file, once reduced.
    pub object: u32,
    /// Offset of the record in the file, bytes.
    pub offset: u64,
    /// Number of the record from 1: in the stripe unit; in the file, once reduced.
    pub line: u64,
    /// The record without its line feed.
    pub record: RecordText,
}

/// Number of records that were found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatchCountLine {
    /// Index of the object in the call; of the file, once reduced.
    pub object: u32,
    /// Number of matching records.
    pub count: u64,
}

/// Digest of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestLine {
    /// Index of the object in the call; of the file, once reduced.
    pub object: u32,
    /// Name of the algorithm: `sha256` or `blake3`.
    pub algorithm: String,
    /// Digest in hexadecimal digits.
    pub digest: String,
}

/// BLAKE3 chaining value of a stripe unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubtreeLine {
    /// Index of the object in the call.
    pub object: u32,
    /// Number of the unit in the file.
    pub unit: u64,
    /// Value in hexadecimal digits.
    pub value: String,
}

/// Bytes of an output. Those of a stripe unit are in the order of its lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataLine {
    /// Index of the object in the call; of the file, once reduced.
    pub object: u32,
    /// Number of the stripe unit in the file; 0 for a whole file.
    pub unit: u64,
    /// The bytes, in Base64.
    pub data: RecordText,
}

/// An output was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputLine {
    /// Index of the input object in the call; of the file, once reduced.
    pub object: u32,
    /// Bytes read from the input.
    pub bytes_in: u64,
    /// Bytes written to the output.
    pub bytes_out: u64,
}

/// Fragments of records at the edges of a stripe unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeLine {
    /// Index of the object in the call.
    pub object: u32,
    /// Number of the unit in the file.
    pub unit: u64,
    /// Number of records that end within the unit.
    pub ends: u64,
    /// Bytes up to the end of the first record.
    pub head: RecordText,
    /// Bytes of the record that ends in a later unit.
    pub tail: RecordText,
    /// Whether no record ends within the unit.
    pub open: bool,
}

impl EdgeLine {
    pub(crate) fn new(object: u32, edges: EdgeFragments) -> Self {
        let EdgeFragments { unit, ends, head, tail, is_open: open } = edges;
        Self { object, unit, ends, head: RecordText::new(&head), tail: RecordText::new(&tail), open }
    }

    pub(crate) fn into_fragments(self) -> Result<EdgeFragments, ResultLineError> {
        Ok(EdgeFragments {
            unit: self.unit,
            ends: self.ends,
            head: self.head.into_bytes()?,
            tail: self.tail.into_bytes()?,
            is_open: self.open,
        })
    }
}

/// Bytes of a record: as text if they are UTF-8, else in Base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordText {
    /// UTF-8 text.
    Text(String),
    /// Other bytes, in standard Base64.
    Base64(String),
}

impl RecordText {
    /// Returns the form of these bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        match str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Base64(STANDARD.encode(bytes)),
        }
    }

    /// Returns the number of bytes; invalid Base64 counts as if it were valid.
    pub(crate) fn byte_count(&self) -> u64 {
        match self {
            Self::Text(text) => text.len() as u64,
            Self::Base64(text) => {
                let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count() as u64;
                (text.len() as u64 / 4 * 3).saturating_sub(padding)
            }
        }
    }

    /// Returns the bytes.
    pub fn into_bytes(self) -> Result<Vec<u8>, ResultLineError> {
        match self {
            Self::Text(text) => Ok(text.into_bytes()),
            Self::Base64(text) => STANDARD.decode(text).map_err(|_| ResultLineError::Base64),
        }
    }
}

/// A result that is not of the documented form.
#[derive(Debug, thiserror::Error)]
pub enum ResultLineError {
    /// A line is not a known JSON object.
    #[error("result line {line} is invalid")]
    Json {
        /// Number of the line, from 1.
        line: usize,
        /// Reason and column.
        source: serde_json::Error,
    },
    /// Bytes of a record are not Base64.
    #[error("record is not valid Base64")]
    Base64,
}

/// Parses the lines of a result.
pub fn parse_result(bytes: &[u8]) -> impl Iterator<Item = Result<ResultLine, ResultLineError>> {
    let lines = bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    lines.map(|(index, line)| {
        serde_json::from_slice(line).map_err(|source| ResultLineError::Json { line: index + 1, source })
    })
}

/// Maximum bytes of a `data` line, before they are encoded.
pub const DATA_LINE_BYTES: usize = 96 << 10;

/// Appends `data` lines with these bytes to the result of a call.
pub fn emit_data(
    call: &mut FunctionCall<'_>,
    object: u32,
    unit: u64,
    bytes: &[u8],
) -> Result<(), FunctionFailure> {
    bytes.chunks(DATA_LINE_BYTES).try_for_each(|part| {
        let data = RecordText::Base64(STANDARD.encode(part));
        emit(call, &ResultLine::Data(DataLine { object, unit, data }))
    })
}

/// Appends a line to the result of a call.
pub fn emit(call: &mut FunctionCall<'_>, line: &ResultLine) -> Result<(), FunctionFailure> {
    let mut text = serde_json::to_vec(line)
        .map_err(|_| FunctionFailure::new(FunctionErrno::IO, "result line cannot be encoded"))?;
    text.push(b'\n');
    call.result(&text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn match_line_has_documented_form() {
        let record = RecordText::new(b"a \"b\"");
        let line = ResultLine::Match(MatchLine { object: 1, offset: 120, line: 3, record });
        let text = r#"{"match":{"object":1,"offset":120,"line":3,"record":{"text":"a \"b\""}}}"#;
        assert_eq!(serde_json::to_string(&line).unwrap(), text);
        assert_eq!(parse_result(text.as_bytes()).next().unwrap().unwrap(), line);
        let binary = serde_json::to_string(&RecordText::new(b"\xff\x00")).unwrap();
        assert_eq!(binary, r#"{"base64":"/wA="}"#);
    }

    #[test]
    fn invalid_line_is_reported_with_number() {
        let error = parse_result(b"{\"count\":{\"object\":0}}\n\nnope\n").last().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "result line 3 is invalid");
    }

    proptest! {
        #[test]
        fn record_bytes_survive_text_form(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(RecordText::new(&bytes).into_bytes().unwrap(), bytes);
        }

        #[test]
        fn arbitrary_result_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(parse_result(&bytes).count() <= bytes.len());
        }
    }
}
