//! Paths of findings: one path from the root for each node.
//!
//! Contract: all names are read once, then those of the directories above the nodes found. Without
//! findings nothing is read.

use std::collections::HashMap;

use sealstone_mds_protocol::{CheckFinding, InodeId, Name, Text, shown};

use super::job::CheckJob;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::namespace::ROOT;
use crate::records::{Inode, decode, load};
use crate::store::{Snapshot, each_between};

/// Maximum number of nodes that get a path.
const NODES_MAX: usize = 1024;
/// Maximum depth of a directory.
const DEPTH_MAX: usize = 4096;

type ParentEntry = (InodeId, Name);

pub(super) fn add<S: Snapshot + ?Sized>(
    view: &S,
    job: &CheckJob,
    findings: &mut [CheckFinding],
) -> Result<()> {
    let mut wanted: HashMap<InodeId, Option<ParentEntry>> =
        findings.iter().filter_map(|finding| finding.node).take(NODES_MAX).map(|id| (id, None)).collect();
    let (from, until) = (keys::all_entries(), keys::after_prefix(&keys::all_entries()));
    each_between(view, &from, &until, |key, value| {
        job.ensure_running()?;
        if let Ok(id) = decode::<InodeId>(value)
            && let Some(place @ None) = wanted.get_mut(&id)
        {
            *place = keys::entry_parent(key).zip(keys::entry_name(key));
        }
        Ok::<_, MdsError>(())
    })?;
    let mut known: HashMap<InodeId, Option<ParentEntry>> = HashMap::new();
    for finding in findings {
        let Some(id) = finding.node else { continue };
        let place = wanted.get(&id).cloned().flatten();
        if let Some(path) = path(view, id, place, &mut known)? {
            finding.path = Text::truncated(&shown(&path));
        }
    }
    Ok(())
}

/// Returns the path of a node whose entry is known; none if it does not start at the root.
fn path<S: Snapshot + ?Sized>(
    view: &S,
    id: InodeId,
    place: Option<ParentEntry>,
    known: &mut HashMap<InodeId, Option<ParentEntry>>,
) -> Result<Option<Vec<u8>>> {
    if id == ROOT {
        return Ok(Some(b"/".to_vec()));
    }
    let (mut names, mut at) = (Vec::new(), place);
    for _ in 0..DEPTH_MAX {
        let Some((parent, name)) = at else { return Ok(None) };
        names.push(name);
        if parent == ROOT {
            let path = names.iter().rev().flat_map(|name| [b"/", name.as_bytes()].concat()).collect();
            return Ok(Some(path));
        }
        at = match known.get(&parent) {
            Some(place) => place.clone(),
            None => {
                let place = parent_entry(view, parent)?;
                known.insert(parent, place.clone());
                place
            }
        };
    }
    Ok(None)
}

/// Returns the recorded parent of a directory, with its name there.
fn parent_entry<S: Snapshot + ?Sized>(view: &S, id: InodeId) -> Result<Option<ParentEntry>> {
    let Some(node) = load::<Inode, _>(view, &keys::inode(id))? else { return Ok(None) };
    let (all, mut found) = (keys::entries(node.parent), None);
    each_between(view, &all, &keys::after_prefix(&all), |key, value| {
        if decode::<InodeId>(value).is_ok_and(|named| named == id) {
            found = keys::entry_name(key);
        }
        Ok::<_, MdsError>(())
    })?;
    Ok(found.map(|name| (node.parent, name)))
}
