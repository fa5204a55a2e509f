//! Foreign bytes as text: what a terminal, a log and a JSON reader may be given.
//!
//! Contract: [`Output`](crate::output::Output) and [`LogWriter`] pass everything through here, so that no name, message of a
//! server or path of this machine sends a control, bidirectional or invisible character to a terminal or a log. Names
//! and paths are escaped reversibly before that, by their `Display` or [`ShownPath`].

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealstone_mds_protocol::{is_printable, shown};
use serde_json::Value;

/// A path of this machine as text, reversibly escaped as stored names are.
pub(crate) trait ShownPath {
    /// Returns the text: printable UTF-8 is itself, a backslash is doubled, every other byte is `\xNN`.
    fn shown(&self) -> Cow<'_, str>;
}

impl ShownPath for Path {
    fn shown(&self) -> Cow<'_, str> {
        shown(self.as_os_str().as_bytes())
    }
}

impl ShownPath for OsStr {
    fn shown(&self) -> Cow<'_, str> {
        shown(self.as_bytes())
    }
}

/// Sets `KEY` of an object to a name or path, exactly: as a string if it is UTF-8. Other bytes are escaped in `KEY` for
/// display, and `KEY_base64` has them.
pub(crate) fn set_bytes(value: &mut Value, key: &str, bytes: impl AsRef<[u8]>) {
    let bytes = bytes.as_ref();
    match std::str::from_utf8(bytes) {
        Ok(text) => value[key] = text.into(),
        Err(_) => {
            value[key] = shown(bytes).into();
            value[format!("{key}_base64")] = STANDARD.encode(bytes).into();
        }
    }
}

/// [`set_bytes`] for a path of this machine.
pub(crate) fn set_path(value: &mut Value, key: &str, path: impl AsRef<OsStr>) {
    set_bytes(value, key, path.as_ref().as_bytes());
}

/// Adds paths of this machine to an object, each as [`set_bytes`] has it. `json!` of a path panics if it is not UTF-8.
pub(crate) fn with_paths<const N: usize>(mut value: Value, paths: [(&str, &Path); N]) -> Value {
    paths.into_iter().for_each(|(key, path)| set_path(&mut value, key, path));
    value
}

/// JSON text that shows itself: characters that are not printable stand only inside strings, where `\uNNNN` is the same.
pub(crate) fn printable_json(text: String) -> String {
    if text.chars().all(is_printable) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            // The end of a line of a log.
            '\n' => out.push(c),
            c if is_printable(c) => out.push(c),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out
}

/// A writer of log lines: characters that are not printable are escaped, in JSON as JSON has it.
#[derive(Debug)]
pub(crate) struct LogWriter<W> {
    /// Where they go.
    pub(crate) out: W,
    /// Whether lines are JSON.
    pub(crate) json: bool,
    /// Whether lines have colours: then the escape character stays, which the formatter escapes in foreign text.
    pub(crate) colours: bool,
}

impl<W> LogWriter<W> {
    fn clean<'a>(&self, line: &'a str) -> Cow<'a, str> {
        if self.json {
            return Cow::Owned(printable_json(line.to_owned()));
        }
        let stays = |c: char| matches!(c, '\n' | '\t') || (self.colours && c == '\u{1B}') || is_printable(c);
        if line.chars().all(stays) {
            return Cow::Borrowed(line);
        }
        let mut out = String::with_capacity(line.len() + 16);
        for c in line.chars() {
            if stays(c) {
                out.push(c);
            } else {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    let _ = write!(out, "\\x{byte:02x}");
                }
            }
        }
        Cow::Owned(out)
    }
}

impl<W: io::Write> io::Write for LogWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let clean = self.clean(&text).into_owned();
        self.out.write_all(clean.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_reads_back_exactly() {
        let name = "a\u{202e}b\u{200b}\u{e0041}\u{7f}\\x2d\n";
        let text = printable_json(serde_json::to_string(name).expect("a string serialises"));
        assert!(text.chars().all(is_printable), "{text}");
        assert_eq!(serde_json::from_str::<String>(&text).expect("JSON"), name);
    }

    #[test]
    fn bytes_that_are_not_text_keep_a_lossless_form() {
        let mut value = serde_json::json!({});
        set_bytes(&mut value, "path", b"/a\\b");
        set_path(&mut value, "to", OsStr::from_bytes(b"/\xff"));
        assert_eq!(value, serde_json::json!({ "path": "/a\\b", "to": "/\\xff", "to_base64": "L/8=" }));
    }

    #[test]
    fn log_lines_keep_colours_and_escape_all_else() {
        let writer = |json, colours| LogWriter { out: (), json, colours };
        let plain = writer(false, false);
        assert_eq!(plain.clean("x\u{1B}[1m\u{2066}\n"), "x\\x1b[1m\\xe2\\x81\\xa6\n");
        assert_eq!(writer(false, true).clean("\u{1B}[1m\n"), "\u{1B}[1m\n");
        assert_eq!(writer(true, false).clean("\"\u{2028}\"\n"), "\"\\u2028\"\n");
    }
}
