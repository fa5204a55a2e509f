//! Escaping of foreign text for terminals, logs and JSON.
//!
//! Contract: [`Output`](crate::output::Output) and [`LogWriter`] escape control, bidirectional and
//! invisible characters in everything that they print. Names and paths are escaped reversibly
//! before that, by their `Display` or [`ShownPath`].

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

/// Formats a local path as text, escaped reversibly like stored names.
pub(crate) trait ShownPath {
    /// Returns the text: printable UTF-8 is itself, a backslash is doubled, every other byte is
    /// `\xNN`.
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

/// Sets `KEY` of an object to a name or path. If it is not UTF-8, `KEY` is escaped for display and
/// `KEY_base64` has the bytes.
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

/// Sets `KEY` to a local path, as [`set_bytes`] does.
pub(crate) fn set_path(value: &mut Value, key: &str, path: impl AsRef<OsStr>) {
    set_bytes(value, key, path.as_ref().as_bytes());
}

/// Adds local paths to an object, as [`set_bytes`] does. `json!` of a path panics if it is not
/// UTF-8.
pub(crate) fn with_paths<const N: usize>(mut value: Value, paths: [(&str, &Path); N]) -> Value {
    paths.into_iter().for_each(|(key, path)| set_path(&mut value, key, path));
    value
}

/// Returns bytes as hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a name of the protocol, such as `PastEnd`, in the form of JSON: `past_end`.
pub(crate) fn snake_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 2);
    let mut after_lower = false;
    for c in name.chars() {
        if c.is_ascii_uppercase() && after_lower {
            out.push('_');
        }
        after_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// Escapes JSON text: characters that are not printable occur only inside strings, where `\uNNNN`
/// means the same.
pub(crate) fn printable_json(text: String) -> String {
    if text.chars().all(is_printable) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            // The end of a log line.
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

/// Writer of log lines that escapes characters that are not printable, in JSON lines by JSON
/// escapes.
#[derive(Debug)]
pub(crate) struct LogWriter<W> {
    /// Destination of the lines.
    pub(crate) out: W,
    /// Whether lines are JSON.
    pub(crate) json: bool,
    /// Whether lines have colours: then escape characters are kept; the formatter escapes those of
    /// foreign text.
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
    fn escaped_json_parses_to_same_text() {
        let name = "a\u{202e}b\u{200b}\u{e0041}\u{7f}\\x2d\n";
        let text = printable_json(serde_json::to_string(name).expect("a string serialises"));
        assert!(text.chars().all(is_printable), "{text}");
        assert_eq!(serde_json::from_str::<String>(&text).expect("JSON"), name);
    }

    #[test]
    fn non_utf8_bytes_keep_a_lossless_form() {
        let mut value = serde_json::json!({});
        set_bytes(&mut value, "path", b"/a\\b");
        set_path(&mut value, "to", OsStr::from_bytes(b"/\xff"));
        assert_eq!(value, serde_json::json!({ "path": "/a\\b", "to": "/\\xff", "to_base64": "L/8=" }));
    }

    #[test]
    fn protocol_names_become_snake_case() {
        for (name, expected) in
            [("Done", "done"), ("PastEnd", "past_end"), ("GET_ATTR", "get_attr"), ("read-only", "read-only")]
        {
            assert_eq!(snake_case(name), expected);
        }
    }

    #[test]
    fn log_lines_keep_only_colour_escapes() {
        let writer = |json, colours| LogWriter { out: (), json, colours };
        let plain = writer(false, false);
        assert_eq!(plain.clean("x\u{1B}[1m\u{2066}\n"), "x\\x1b[1m\\xe2\\x81\\xa6\n");
        assert_eq!(writer(false, true).clean("\u{1B}[1m\n"), "\u{1B}[1m\n");
        assert_eq!(writer(true, false).clean("\"\u{2028}\"\n"), "\"\\u2028\"\n");
    }
}
