//! Trees of this machine, as `put -r` sees them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};

/// Entries of one tree at the most, so that a mistake (a loop of mounts, say) ends.
pub(crate) const ENTRIES_MAX: usize = 10_000_000;

/// One entry of a tree, below its top.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Where it is on this machine.
    pub(crate) path: PathBuf,
    /// Its path below the top, with `/` between names; empty for the top itself.
    pub(crate) below: String,
    /// What it is.
    pub(crate) kind: Kind,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File {
        bytes: u64,
    },
    /// A link, socket, pipe or device: there is no place for it in the namespace yet.
    Special,
}

/// Everything at and below `top`, directories before what is in them, names in order.
pub(crate) fn walk(top: &Path) -> Outcome<Vec<Entry>> {
    let mut found = Vec::new();
    let mut waiting = vec![(top.to_owned(), String::new())];
    while let Some((path, below)) = waiting.pop() {
        if found.len() >= ENTRIES_MAX {
            return Err(Failure::operation(format!("more than {ENTRIES_MAX} entries")).at(top.display()));
        }
        let at = |error: std::io::Error| Failure::from(error).at(path.display());
        // The top may be a link to a folder, as the user named it; below it links are not followed.
        let metadata =
            if below.is_empty() { fs::metadata(&path) } else { fs::symlink_metadata(&path) }.map_err(at)?;
        let kind = if metadata.is_dir() {
            Kind::Directory
        } else if metadata.is_file() {
            Kind::File { bytes: metadata.len() }
        } else {
            Kind::Special
        };
        if kind == Kind::Directory {
            let mut children = Vec::new();
            for child in fs::read_dir(&path).map_err(at)? {
                let child = child.map_err(at)?;
                let name = child.file_name().into_string().map_err(|name| {
                    Failure::operation("names are UTF-8 here").at(path.join(name).display())
                })?;
                let below = if below.is_empty() { name } else { format!("{below}/{name}") };
                children.push((child.path(), below));
            }
            // The stack hands out the last one first.
            children.sort_by(|a, b| b.1.cmp(&a.1));
            waiting.append(&mut children);
        }
        found.push(Entry { path, below, kind });
    }
    Ok(found)
}

/// `directory` and `name` as one stored path.
pub(crate) fn join(directory: &str, name: &str) -> String {
    match (directory, name) {
        (directory, "") => directory.to_owned(),
        ("/", name) => format!("/{name}"),
        (directory, name) => format!("{}/{name}", directory.trim_end_matches('/')),
    }
}

/// The last name of a stored path; `None` for the root.
pub(crate) fn last_name(path: &str) -> Option<&str> {
    path.trim_end_matches('/').rsplit('/').next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory comes before what is in it, links are told apart, nothing is missed.
    #[test]
    fn a_tree_is_walked_in_order() {
        let folder = tempfile::tempdir().expect("temporary folder");
        fs::create_dir_all(folder.path().join("b/c")).expect("made");
        fs::write(folder.path().join("b/c/file"), b"12345").expect("written");
        fs::write(folder.path().join("a"), b"").expect("written");
        std::os::unix::fs::symlink("a", folder.path().join("link")).expect("linked");
        let entries = walk(folder.path()).expect("walked");
        let seen: Vec<(&str, Kind)> =
            entries.iter().map(|entry| (entry.below.as_str(), entry.kind)).collect();
        assert_eq!(
            seen,
            [
                ("", Kind::Directory),
                ("a", Kind::File { bytes: 0 }),
                ("b", Kind::Directory),
                ("b/c", Kind::Directory),
                ("b/c/file", Kind::File { bytes: 5 }),
                ("link", Kind::Special),
            ]
        );
    }

    /// Joining knows the root and trailing slashes.
    #[test]
    fn stored_paths_join() {
        assert_eq!(join("/", "a"), "/a");
        assert_eq!(join("/a/", "b"), "/a/b");
        assert_eq!(join("/a", ""), "/a");
        assert_eq!(last_name("/a/b/"), Some("b"));
        assert_eq!(last_name("/"), None);
    }
}
