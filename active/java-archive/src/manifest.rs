//! The main section of a manifest.

use alloc::borrow::ToOwned as _;
use alloc::string::String;

use crate::ArchiveError;
use crate::limits::NAME_BYTES_MAX;

/// The attribute of the manifest that names the class of the function.
pub const FUNCTION_ATTRIBUTE: &str = "Sealstone-Function";

/// Returns the class that the main section of a manifest names.
pub(crate) fn function_class(manifest: &str) -> Result<String, ArchiveError> {
    let mut attribute: Option<(&str, String)> = None;
    for (index, line) in lines(manifest).enumerate() {
        let malformed = ArchiveError::ManifestLine(index + 1);
        if line.is_empty() {
            break;
        }
        if let Some(rest) = line.strip_prefix(' ') {
            attribute.as_mut().ok_or(malformed)?.1.push_str(rest);
            continue;
        }
        if let Some(class) = function_value(attribute.take()) {
            return checked(class);
        }
        let (name, value) = line.split_once(": ").ok_or(malformed)?;
        attribute = Some((name, value.to_owned()));
    }
    function_value(attribute).ok_or(ArchiveError::NoAttribute).and_then(checked)
}

/// Returns the value of an attribute that names the class.
fn function_value(attribute: Option<(&str, String)>) -> Option<String> {
    attribute.filter(|(name, _)| name.eq_ignore_ascii_case(FUNCTION_ATTRIBUTE)).map(|(_, value)| value)
}

/// Returns the lines of a manifest, which end with CR LF, LF or CR.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    core::iter::from_fn(move || {
        let text = rest?;
        let Some(end) = text.find(['\r', '\n']) else {
            rest = None;
            return Some(text);
        };
        let after = if text[end..].starts_with("\r\n") { end + 2 } else { end + 1 };
        rest = Some(&text[after..]);
        Some(&text[..end])
    })
}

/// Returns the name of a class without spaces around it.
fn checked(class: String) -> Result<String, ArchiveError> {
    let name = class.trim();
    let is_plain =
        |c: char| !c.is_control() && !c.is_whitespace() && !['/', '\\', ';', '[', ':', '<', '>'].contains(&c);
    let is_valid = name.len() <= NAME_BYTES_MAX
        && name.split('.').all(|part| !part.is_empty() && part.chars().all(is_plain));
    if is_valid { Ok(name.to_owned()) } else { Err(ArchiveError::ClassName(name.chars().take(64).collect())) }
}
