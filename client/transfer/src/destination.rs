//! Where a source goes: to the destination itself, or to an entry in it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use sealstone_failure::Outcome;

use crate::local;

/// Whether the top of a tree becomes the destination itself or an entry in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    Itself,
    Inside,
}

/// A destination.
pub(crate) struct Destination<'a> {
    pub(crate) exists: bool,
    pub(crate) is_directory: bool,
    pub(crate) trailing_slash: bool,
    /// Last name of its path.
    pub(crate) name: Option<&'a OsStr>,
}

/// Decides where the source goes. `is_copy` returns whether the destination is an earlier copy of
/// the source directory; it is called only if that decides.
pub(crate) async fn position(
    destination: &Destination<'_>,
    (source, is_tree): (Option<&OsStr>, bool),
    no_target_directory: bool,
    is_copy: impl AsyncFnOnce() -> Outcome<bool>,
) -> Outcome<Position> {
    // A source without a name, such as `.` or `/`, means its contents.
    let Some(name) = source else { return Ok(Position::Itself) };
    if no_target_directory {
        return Ok(Position::Itself);
    }
    if destination.trailing_slash {
        return Ok(Position::Inside);
    }
    if !destination.exists || !destination.is_directory {
        return Ok(Position::Itself);
    }
    // An earlier run created it: this run continues there instead of one level deeper.
    let again = is_tree && (destination.name == Some(name) || is_copy().await?);
    Ok(if again { Position::Itself } else { Position::Inside })
}

/// Whether a local path ends in a slash.
pub(crate) fn ends_in_slash(path: &OsStr) -> bool {
    path.as_bytes().len() > 1 && path.as_bytes().ends_with(b"/")
}

/// Whether all entries of a directory have a counterpart of the same kind; then it may be an
/// earlier copy.
pub(crate) fn is_earlier_copy(
    entries: impl Iterator<Item = (OsString, bool)>,
    counterpart: impl Fn(&OsStr) -> Option<bool>,
) -> bool {
    let mut any = false;
    for (name, is_directory) in entries {
        if name.as_bytes().starts_with(local::TEMPORARY_PREFIX.as_bytes()) {
            continue;
        }
        if counterpart(&name) != Some(is_directory) {
            return false;
        }
        any = true;
    }
    any
}

/// Returns the entries of a local directory, and whether each is a directory.
pub(crate) fn local_entries(path: &Path) -> Outcome<Vec<(OsString, bool)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        found.push((entry.file_name(), entry.file_type()?.is_dir()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operand_name_is_the_typed_one() {
        let name =
            |path: &str| local::last_name(OsStr::new(path)).map(|name| name.into_string().expect("text"));
        assert_eq!(name("a/b/"), Some("b".into()));
        assert_eq!(name("link"), Some("link".into()));
        for contents in ["/", ".", "..", "a/.", "a/..", "./"] {
            assert_eq!(name(contents), None, "{contents}");
        }
    }

    #[tokio::test]
    async fn repeated_copies_do_not_nest() {
        let dir = Destination {
            exists: true,
            is_directory: true,
            trailing_slash: false,
            name: Some(OsStr::new("d")),
        };
        let tree = |name: &'static str| (Some(OsStr::new(name)), true);
        let other = async || Ok(false);
        assert_eq!(position(&dir, tree("d"), false, other).await, Ok(Position::Itself));
        assert_eq!(position(&dir, tree("x"), false, other).await, Ok(Position::Inside));
        assert_eq!(position(&dir, tree("x"), false, async || Ok(true)).await, Ok(Position::Itself));
        assert_eq!(position(&dir, (Some(OsStr::new("d")), false), false, other).await, Ok(Position::Inside));
        assert_eq!(position(&dir, tree("x"), true, other).await, Ok(Position::Itself));
        assert_eq!(position(&dir, (None, true), false, other).await, Ok(Position::Itself));
        let slash = Destination { trailing_slash: true, ..dir };
        assert_eq!(position(&slash, tree("d"), false, other).await, Ok(Position::Inside));
        let missing = Destination { exists: false, is_directory: false, trailing_slash: false, name: None };
        assert_eq!(position(&missing, tree("x"), false, other).await, Ok(Position::Itself));
    }
}
