//! Paths: from the root down, through symbolic links.
//!
//! Contract: O(names on the way), links included, of which there are [`FOLLOW_MAX`] at most; never a scan.
//! Truth: POSIX.1-2017 4.13; docs/standards/mds/operations.md §5.3.

use sealstone_mds_protocol::{ErrorCode, FOLLOW_MAX, FileKind, FilePath, InodeId, Name};

use super::{ROOT, child, inode};
use crate::access::{Principal, Right};
use crate::error::{MdsError, Result};
use crate::records::Inode;
use crate::store::Snapshot;

/// A name in a directory; it may be free or taken.
pub(crate) struct Place {
    pub(crate) directory: InodeId,
    pub(crate) directory_inode: Inode,
    pub(crate) name: Name,
}

/// One step of a way.
pub(super) enum Step {
    Up,
    Down(Name),
}

/// Where a path led.
pub(super) enum Reached {
    /// To something. Without a place if the last step was none down: the root, or a link to `..`.
    Node { place: Option<Place>, id: InodeId, inode: Inode },
    /// To a name that is free. What is still to go after it, the next step last.
    Missing { place: Place, rest: Vec<Step> },
}

/// What about a symbolic link under the last name?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// It is gone through.
    Follow,
    /// It is what is meant.
    Itself,
}

pub(crate) fn need_directory(inode: &Inode, subject: &str) -> Result<()> {
    if inode.is_directory() { Ok(()) } else { Err(MdsError::refused(ErrorCode::NotADirectory, subject)) }
}

/// The steps of a link's target, the first one last.
fn steps(target: &[u8]) -> Result<Vec<Step>> {
    let names = target.split(|byte| *byte == b'/').rev().filter(|name| !matches!(*name, b"" | b"."));
    names.map(|name| Ok(if name == b".." { Step::Up } else { Step::Down(Name::new(name)?) })).collect()
}

/// Goes down a path; every directory on the way must let the principal pass.
pub(super) fn walk<S: Snapshot + ?Sized>(
    view: &S,
    who: &Principal,
    path: &FilePath,
    last: Last,
) -> Result<Reached> {
    let subject = path.shown();
    let mut rest: Vec<Step> = path.names().rev().map(Step::Down).collect();
    let (mut id, mut at) = (ROOT, inode(view, ROOT)?);
    let mut followed = 0;
    while let Some(step) = rest.pop() {
        need_directory(&at, &subject)?;
        who.needs(Right::Pass, &at, &subject)?;
        let name = match step {
            Step::Up => {
                id = at.parent;
                at = inode(view, id)?;
                continue;
            }
            Step::Down(name) => name,
        };
        let Some((found, node)) = child(view, id, &name)? else {
            let place = Place { directory: id, directory_inode: at, name };
            return Ok(Reached::Missing { place, rest });
        };
        match &node.target {
            Some(target) if node.kind == FileKind::Symlink && (!rest.is_empty() || last == Last::Follow) => {
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
                let place = Place { directory: id, directory_inode: at, name };
                return Ok(Reached::Node { place: Some(place), id: found, inode: node });
            }
            _ => (id, at) = (found, node),
        }
    }
    Ok(Reached::Node { place: None, id, inode: at })
}

fn not_found(path: &FilePath) -> MdsError {
    MdsError::refused(ErrorCode::NotFound, path.shown())
}

/// What a path leads to, through a link under the last name too.
pub(crate) fn resolve<S: Snapshot + ?Sized>(
    view: &S,
    who: &Principal,
    path: &FilePath,
) -> Result<(InodeId, Inode)> {
    resolve_to(view, who, path, Last::Follow)
}

pub(crate) fn resolve_to<S: Snapshot + ?Sized>(
    view: &S,
    who: &Principal,
    path: &FilePath,
    last: Last,
) -> Result<(InodeId, Inode)> {
    match walk(view, who, path, last)? {
        Reached::Node { id, inode, .. } => Ok((id, inode)),
        Reached::Missing { .. } => Err(not_found(path)),
    }
}

/// A name in a directory and what it leads to, if it leads anywhere.
pub(crate) type Placed = (Place, Option<(InodeId, Inode)>);

/// The directory of a path and its last name, with what that leads to.
pub(crate) fn place<S: Snapshot + ?Sized>(
    view: &S,
    who: &Principal,
    path: &FilePath,
    last: Last,
) -> Result<Placed> {
    match walk(view, who, path, last)? {
        Reached::Node { place: Some(place), id, inode } => Ok((place, Some((id, inode)))),
        Reached::Node { place: None, inode, .. } if !path.is_root() && inode.is_directory() => {
            Err(MdsError::refused(ErrorCode::IsADirectory, path.shown()))
        }
        Reached::Node { place: None, .. } => Err(MdsError::refused(ErrorCode::Invalid, path.shown())),
        Reached::Missing { place, rest } if rest.is_empty() => Ok((place, None)),
        Reached::Missing { .. } => Err(not_found(path)),
    }
}
