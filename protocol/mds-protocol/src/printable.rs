//! Printable characters: which ones may be shown unescaped in a terminal, log or message.
//!
//! Does: escape characters that hide, reorder or imitate other text.
//! Does not: validate names: a stored name may contain any of them.
//! Truth: Unicode 16.0: general categories Cc, Cf, Zl, Zp and Zs, and the property
//! `Default_Ignorable_Code_Point`; Unicode Technical Report 36 for bidirectional text.

use alloc::borrow::Cow;
use alloc::string::String;

/// Characters that are escaped, as inclusive ranges in order.
const HIDDEN: &[(u32, u32)] = &[
    (0x0000, 0x001F),
    (0x007F, 0x00A0),
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x0600, 0x0605),
    (0x061C, 0x061C),
    (0x06DD, 0x06DD),
    (0x070F, 0x070F),
    (0x0890, 0x0891),
    (0x08E2, 0x08E2),
    (0x115F, 0x1160),
    (0x1680, 0x1680),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    // Spaces of other widths, zero-width characters, marks of direction, line and paragraph
    // separators.
    (0x2000, 0x200F),
    (0x2028, 0x202F),
    (0x205F, 0x206F),
    // An empty Braille cell looks like a space.
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xFDD0, 0xFDEF),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0xFFFE, 0xFFFF),
    (0x110BD, 0x110BD),
    (0x110CD, 0x110CD),
    (0x13430, 0x1343F),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
];

/// Whether a character is visible and has no effect on the text around it: not a control or format
/// character.
#[must_use]
pub fn is_printable(c: char) -> bool {
    let code = u32::from(c);
    if (0x20..0x7F).contains(&code) {
        return true;
    }
    // The last two code points of each plane are noncharacters.
    let after = HIDDEN.partition_point(|(_, last)| *last < code);
    let hidden = HIDDEN.get(after).is_some_and(|(first, _)| *first <= code);
    !hidden && code & 0xFFFE != 0xFFFE
}

/// Replaces each character that is not printable by the escapes `\xNN` of its bytes. A backslash
/// stays, so this cannot be reversed.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_printable)
}

/// [`printable`] for text of several lines: line feeds and tabs stay.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| matches!(c, '\n' | '\t') || is_printable(c))
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.chars().all(&stays) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if stays(c) {
            out.push(c);
        } else {
            push_escaped(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    Cow::Owned(out)
}

/// Appends each byte as `\xNN`.
pub(crate) fn push_escaped(out: &mut String, bytes: &[u8]) {
    let digit = |n: u8| char::from_digit(u32::from(n), 16).unwrap_or('0');
    for byte in bytes {
        out.push_str("\\x");
        out.push(digit(byte >> 4));
        out.push(digit(byte & 15));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_ranges_ascend() {
        assert!(HIDDEN.iter().all(|(first, last)| first <= last));
        assert!(HIDDEN.windows(2).all(|pair| pair[0].1 < pair[1].0));
    }

    #[test]
    fn bidirectional_and_invisible_characters_are_escaped() {
        let hidden = [
            '\u{202A}',
            '\u{202E}',
            '\u{2066}',
            '\u{2069}',
            '\u{200B}',
            '\u{200E}',
            '\u{200F}',
            '\u{061C}',
            '\u{2028}',
            '\u{2029}',
            '\u{FEFF}',
            '\u{00AD}',
            '\u{2060}',
            '\u{3164}',
            '\u{FE0F}',
            '\u{E0041}',
            '\u{00A0}',
            '\u{85}',
            '\u{1B}',
            '\u{7F}',
            '\u{180E}',
            '\u{FFFE}',
            '\u{1FFFF}',
        ];
        for c in hidden {
            assert!(!is_printable(c), "{:x}", u32::from(c));
            assert!(printable(c.encode_utf8(&mut [0; 4])).starts_with("\\x"));
        }
        for c in ['a', '\\', 'ü', 'é', '世', 'א', 'ع', '\u{3000}', '€', '🙂', '\u{0301}'] {
            assert!(is_printable(c), "{c}");
        }
    }

    #[test]
    fn printable_lines_keeps_tabs_and_newlines() {
        assert_eq!(printable("a\n\u{202e}b"), r"a\x0a\xe2\x80\xaeb");
        assert_eq!(printable_lines("a\n\tb\r"), "a\n\tb\\x0d");
        assert_eq!(printable(r"\x41"), r"\x41");
    }
}
