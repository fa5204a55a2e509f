//! Path resolution from the root, through symbolic links.
//!
//! Contract: O(names on the way), including those of at most [`FOLLOW_MAX`] links; never a scan.
//! Truth: POSIX.1-2017 4.13; docs/standards/mds/operations.md §5.3.

use sealstone_mds_protocol::{ErrorCode, FOLLOW_MAX, FileKind, FilePath, InodeId, Name};

use super::{ROOT, child, inode};
use crate::access::{AccessRight, Principal};
use crate::error::{MdsError, Result};
use crate::records::Inode;
use crate::store::Snapshot;

/// A name in a directory, whether it exists or not.
pub(crate) struct NameInDirectory {
    pub(crate) directory: InodeId,
    pub(crate) directory_inode: Inode,
    pub(crate) name: Name,
}

/// One step of a path.
pub(super) enum PathStep {
    Up,
    Down(Name),
}

/// Result of a path resolution.
pub(super) enum PathLookup {
    /// An existing node. It has no entry if the last step did not go down: the root, or a link to
    /// `..`.
    Node { place: Option<NameInDirectory>, id: InodeId, inode: Inode },
    /// A name that does not exist, and the remaining steps, the next one last.
    Missing { place: NameInDirectory, rest: Vec<PathStep> },
}

/// Treatment of a symbolic link as the last component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinalLink {
    /// The link is followed.
    Follow,
    /// The link itself is the result.
    NoFollow,
}

pub(crate) fn need_directory(inode: &Inode, subject: &str) -> Result<()> {
    if inode.is_directory() { Ok(()) } else { Err(MdsError::refused(ErrorCode::NotADirectory, subject)) }
}

/// Splits the target of a link into steps, the first one last.
fn steps(target: &[u8]) -> Result<Vec<PathStep>> {
    let names = target.split(|byte| *byte == b'/').rev().filter(|name| !matches!(*name, b"" | b"."));
    names
        .map(|name| Ok(if name == b".." { PathStep::Up } else { PathStep::Down(Name::new(name)?) }))
        .collect()
}

/// Resolves a path; the user needs the search permission on every directory on the way.
pub(super) fn walk<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    path: &FilePath,
    last: FinalLink,
) -> Result<PathLookup> {
    let subject = path.shown();
    let mut rest: Vec<PathStep> = path.names().rev().map(PathStep::Down).collect();
    let (mut id, mut at) = (ROOT, inode(view, ROOT)?);
    let mut followed = 0;
    while let Some(step) = rest.pop() {
        need_directory(&at, &subject)?;
        principal.needs(AccessRight::Search, &at, &subject)?;
        let name = match step {
            PathStep::Up => {
                id = at.parent;
                at = inode(view, id)?;
                continue;
            }
            PathStep::Down(name) => name,
        };
        let Some((found, node)) = child(view, id, &name)? else {
            let place = NameInDirectory { directory: id, directory_inode: at, name };
            return Ok(PathLookup::Missing { place, rest });
        };
        match &node.target {
            Some(target)
                if node.kind == FileKind::Symlink && (!rest.is_empty() || last == FinalLink::Follow) =>
            {
                followed += 1;
                if followed > FOLLOW_MAX {
                    return Err(MdsError::refused(ErrorCode::Loop, &subject));
                }
                if target.as_bytes().starts_with(b"/") {
                    (id, at) = (ROOT, inode(view, ROOT)?);
                }
                rest.append(&mut steps(target.as_bytes())?);
            }
            _ if rest.is_empty() => {
                let place = NameInDirectory { directory: id, directory_inode: at, name };
                return Ok(PathLookup::Node { place: Some(place), id: found, inode: node });
            }
            _ => (id, at) = (found, node),
        }
    }
    Ok(PathLookup::Node { place: None, id, inode: at })
}

fn not_found(path: &FilePath) -> MdsError {
    MdsError::refused(ErrorCode::NotFound, path.shown())
}

/// Resolves a path to an inode and follows a final link.
pub(crate) fn resolve<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    path: &FilePath,
) -> Result<(InodeId, Inode)> {
    resolve_to(view, principal, path, FinalLink::Follow)
}

pub(crate) fn resolve_to<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    path: &FilePath,
    last: FinalLink,
) -> Result<(InodeId, Inode)> {
    match walk(view, principal, path, last)? {
        PathLookup::Node { id, inode, .. } => Ok((id, inode)),
        PathLookup::Missing { .. } => Err(not_found(path)),
    }
}

/// An entry with its node, if it exists.
pub(crate) type EntryLookup = (NameInDirectory, Option<(InodeId, Inode)>);

/// Resolves a path to its directory and last name, with the node of that name.
pub(crate) fn resolve_entry<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    path: &FilePath,
    last: FinalLink,
) -> Result<EntryLookup> {
    match walk(view, principal, path, last)? {
        PathLookup::Node { place: Some(place), id, inode } => Ok((place, Some((id, inode)))),
        PathLookup::Node { place: None, inode, .. } if !path.is_root() && inode.is_directory() => {
            Err(MdsError::refused(ErrorCode::IsADirectory, path.shown()))
        }
        PathLookup::Node { place: None, .. } => Err(MdsError::refused(ErrorCode::Invalid, path.shown())),
        PathLookup::Missing { place, rest } if rest.is_empty() => Ok((place, None)),
        PathLookup::Missing { .. } => Err(not_found(path)),
    }
}
