//! Paths relative to the top of a tree, local or stored.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sealstone_client::{FilePath, Name};
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::shown;

/// A path relative to the top of a tree; empty for the top itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreePath(Vec<u8>);

impl TreePath {
    /// Returns the path of the top.
    #[must_use]
    pub const fn top() -> Self {
        Self(Vec::new())
    }

    /// Whether this is the top.
    #[must_use]
    pub const fn is_top(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends a name.
    #[must_use]
    pub fn join(&self, name: &Name) -> Self {
        let mut whole = Vec::with_capacity(self.0.len() + 1 + name.as_bytes().len());
        if !self.is_top() {
            whole.extend_from_slice(&self.0);
            whole.push(b'/');
        }
        whole.extend_from_slice(name.as_bytes());
        Self(whole)
    }

    /// Returns the names from the top down.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = Name> {
        let names = self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.map(|name| Name::new(name).expect("a path below a top is made of names"))
    }

    /// Splits off the last name; `None` for the top.
    #[must_use]
    pub fn split_last(&self) -> Option<(Self, Name)> {
        let name = self.names().next_back()?;
        let above = self.0.len() - name.as_bytes().len();
        Some((Self(self.0[..above.saturating_sub(1)].to_vec()), name))
    }

    /// Returns the relative local path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}

impl AsRef<[u8]> for TreePath {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&shown(&self.0))
    }
}

/// Returns the stored path of an entry below `top`.
///
/// # Errors
/// The path is too long.
pub fn join(top: &FilePath, below: &TreePath) -> Outcome<FilePath> {
    let mut path = top.clone();
    for name in below.names() {
        path = path.join(&name).map_err(|error| Failure::operation(error).at(format!("{top}/{below}")))?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_below_a_top_join_and_split() {
        let name = |bytes: &[u8]| Name::new(bytes).expect("a name");
        let path = TreePath::top().join(&name(b"a")).join(&name(b"b\\x2d")).join(&name(b"\xff"));
        assert_eq!(path.as_ref(), b"a/b\\x2d/\xff");
        assert_eq!(path.to_string(), r"a/b\\x2d/\xff");
        let (above, last) = path.split_last().expect("has a name");
        assert_eq!((above.as_ref(), last.as_bytes()), (&b"a/b\\x2d"[..], &b"\xff"[..]));
        assert_eq!(TreePath::top().join(&last).split_last().expect("one name").0, TreePath::top());
        assert_eq!(TreePath::top().split_last(), None);
        let root = join(&FilePath::root(), &path).expect("short");
        assert_eq!(root.as_bytes(), b"/a/b\\x2d/\xff");
    }
}
