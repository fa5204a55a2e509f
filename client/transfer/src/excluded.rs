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
            true => matches_wildcards(pattern.strip_prefix(b"/").unwrap_or(pattern), whole),
            false => matches_wildcards(pattern, name),
        })
    }
}

/// Whether a pattern matches a text: `*` matches any bytes except `/`, `?` one byte except `/`,
/// other bytes themselves. It takes time of at most the product of their lengths.
#[must_use]
pub fn matches_wildcards(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // The last star, and the end of the text that it matches.
    let mut star: Option<(usize, usize)> = None;
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(byte) if *byte == text[from] || (*byte == b'?' && text[from] != b'/') => {
                (at, from) = (at + 1, from + 1);
            }
            _ => match &mut star {
                Some((star, end)) if text[*end] != b'/' => {
                    *end += 1;
                    (at, from) = (*star + 1, *end);
                }
                _ => return false,
            },
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
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "aab", true),
            ("*a*b", "aba", false),
            ("", "", true),
            ("**", "", true),
            ("?", "", false),
            ("a*", "b", false),
        ] {
            assert_eq!(matches_wildcards(pattern.as_bytes(), text.as_bytes()), fits, "{pattern} {text}");
        }
        let name = |text: &str| sealstone_client::Name::new(text).expect("a name");
        let below = TreePath::top().join(&name("src")).join(&name("x.o"));
        let excluded = |pattern: &str| Excluded::new(&[pattern.into()]).has(&below);
        assert!(excluded("*.o") && excluded("src/*.o") && excluded("/src/x.o"));
        assert!(!excluded("src") && !excluded("/x.o"));
    }
}
