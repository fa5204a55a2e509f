//! Escaping of foreign text for terminals, logs and JSON.
//!
//! Contract: what a program prints has no control, bidirectional or invisible characters. Names and
//! paths are escaped reversibly before that, by their `Display` or [`ShownPath`].

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealstone_mds_protocol::{is_printable, shown};
use serde_json::Value;

/// Formats a local path as text, escaped reversibly like stored names.
pub trait ShownPath {
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
pub fn set_bytes(value: &mut Value, key: &str, bytes: impl AsRef<[u8]>) {
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
pub fn set_path(value: &mut Value, key: &str, path: impl AsRef<OsStr>) {
    set_bytes(value, key, path.as_ref().as_bytes());
}

/// Adds local paths to an object, as [`set_bytes`] does. `json!` of a path panics if it is not
/// UTF-8.
pub fn with_paths<const N: usize>(mut value: Value, paths: [(&str, &Path); N]) -> Value {
    paths.into_iter().for_each(|(key, path)| set_path(&mut value, key, path));
    value
}

/// Returns a size with a unit: `1.5 MiB`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// Returns a number with its noun: `1 file`, `2 files`.
#[must_use]
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Returns bytes as hex digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a name of the protocol, such as `PastEnd`, in the form of JSON: `past_end`.
pub fn snake_case(name: &str) -> String {
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
pub fn printable_json(text: String) -> String {
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
    fn sizes_format_with_units() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(256 << 20), "256.0 MiB");
    }

    #[test]
    fn nouns_follow_their_number() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "file")), ["0 files", "1 file", "2 files"]);
    }
}
