//! Patterns of entries that a transfer leaves out.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

use crate::tree::TreePath;

/// Patterns of entries that a transfer leaves out.
#[derive(Clone, Debug)]
pub(crate) struct Excluded(Vec<Vec<u8>>);

impl Excluded {
    pub(crate) fn new(patterns: &[OsString]) -> Self {
        Self(patterns.iter().map(|pattern| pattern.as_bytes().to_vec()).collect())
    }

    /// Whether an entry is left out: a pattern without a slash means its name, another one its path
    /// below the top.
    pub(crate) fn has(&self, below: &TreePath) -> bool {
        let whole = below.as_ref();
        let name = whole.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        self.0.iter().any(|pattern| match pattern.contains(&b'/') {
            true => matches(pattern.strip_prefix(b"/").unwrap_or(pattern), whole),
            false => matches(pattern, name),
        })
    }
}

/// Whether a pattern matches a text: `*` matches any bytes except `/`, `?` one byte except `/`,
/// other bytes themselves.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // `star`: where to retry with the last star one byte longer.
    let (mut at, mut from, mut star) = (0, 0, None);
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
                continue;
            }
            Some(b'?') if text[from] != b'/' => {
                (at, from) = (at + 1, from + 1);
                continue;
            }
            Some(byte) if *byte == text[from] && *byte != b'?' => {
                (at, from) = (at + 1, from + 1);
                continue;
            }
            _ => {}
        }
        match star {
            Some((star_at, star_from)) if text[star_from] != b'/' => {
                (at, from) = (star_at + 1, star_from + 1);
                star = Some((star_at, star_from + 1));
            }
            _ => return false,
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_and_paths() {
        for (pattern, text, fits) in [
            ("*.o", "a.o", true),
            ("*.o", "a.oo", false),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("*", "a/b", false),
            ("x/*/z", "x/y/z", true),
            ("*a*b", "xaxxb", true),
            ("", "", true),
            ("**", "", true),
            ("a*", "b", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), fits, "{pattern} {text}");
        }
        let name = |text: &str| sealstone_client::Name::new(text).expect("a name");
        let below = TreePath::top().join(&name("src")).join(&name("x.o"));
        let excluded = |pattern: &str| Excluded::new(&[pattern.into()]).has(&below);
        assert!(excluded("*.o") && excluded("src/*.o") && excluded("/src/x.o"));
        assert!(!excluded("src") && !excluded("/x.o"));
    }
}
