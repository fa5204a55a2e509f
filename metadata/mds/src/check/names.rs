//! Check of names and nodes against each other.
//!
//! Contract: one state of the store. Nodes are checked in ranges of their numbers; for each range
//! all names are read once. So memory is bounded, except for the map from directories to parents.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{CheckPhase, FindingKind, InodeId, IntentId};

use super::job::{CheckJob, finding};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::namespace::ROOT;
use crate::records::{Inode, Intent, counter, decode, figure};
use crate::store::{Snapshot, each_between};

/// A stored total and the number found.
pub(super) struct StoredTotal {
    pub(super) name: &'static str,
    pub(super) stored: u64,
    pub(super) found: u64,
}

/// Counts of a node while its range is checked.
struct NodeCounts {
    is_directory: bool,
    links: u32,
    parent: InodeId,
    xattrs: (u16, u32),
    names: u32,
    directories: u32,
    xattrs_found: (u16, u32),
}

/// Nodes of one range: numbers up to `last`, without those of earlier ranges.
struct NodeRange {
    nodes: BTreeMap<InodeId, NodeCounts>,
    last: InodeId,
    is_last: bool,
}

/// Records that are few, loaded for all nodes at once.
struct GlobalRecords {
    orphans: HashSet<InodeId>,
    clears: HashSet<InodeId>,
    devices: HashSet<u32>,
    next_inode: u64,
}

pub(super) fn check<S: Snapshot + ?Sized>(
    view: &S,
    job: &CheckJob,
    nodes_max: usize,
) -> Result<Vec<StoredTotal>> {
    let global = global(view)?;
    job.nodes.store(0, Ordering::Relaxed);
    job.names.store(0, Ordering::Relaxed);
    let mut above: HashMap<InodeId, InodeId> = HashMap::new();
    let (mut files, mut first) = (0, None);
    loop {
        job.set_phase(CheckPhase::Nodes);
        let mut part = read(view, job, (first, nodes_max.max(1)), &global, &mut files, &mut above)?;
        job.set_phase(CheckPhase::Names);
        name(view, job, first, &mut part)?;
        subdirectories(view, job, &mut part)?;
        attributes(view, job, first, &mut part)?;
        compare_counts(job, &part);
        first = Some(part.last);
        if part.is_last {
            break;
        }
    }
    job.set_phase(CheckPhase::Walk);
    walk(job, &above);
    creates(view, job)?;
    for id in &global.clears {
        if view.get(&keys::inode(*id))?.is_none() {
            job.add_finding(finding(FindingKind::Record, Some(*id), "has a clear record but does not exist"));
        }
    }
    figures(view, &global, files, above.len() as u64)
}

fn global<S: Snapshot + ?Sized>(view: &S) -> Result<GlobalRecords> {
    let mut global = GlobalRecords {
        orphans: HashSet::new(),
        clears: HashSet::new(),
        devices: HashSet::new(),
        next_inode: 0,
    };
    each_between::<S, MdsError>(
        view,
        &keys::all_orphans(),
        &keys::after_prefix(&keys::all_orphans()),
        |key, _| {
            global.orphans.extend(keys::orphan_parts(key).map(|(_, id)| id));
            Ok(())
        },
    )?;
    let (from, until) = keys::clears(None);
    each_between::<S, MdsError>(view, &from, &until, |key, _| {
        global.clears.extend(keys::clear_inode(key));
        Ok(())
    })?;
    each_between::<S, MdsError>(view, &keys::devices(), &keys::after_prefix(&keys::devices()), |key, _| {
        global.devices.extend(keys::device_id(key).map(|id| id.0));
        Ok(())
    })?;
    global.next_inode = figure(view, counter::INODE)?;
    Ok(global)
}

/// Reads the nodes of the next range.
fn read<S: Snapshot + ?Sized>(
    view: &S,
    job: &CheckJob,
    (after, nodes_max): (Option<InodeId>, usize),
    global: &GlobalRecords,
    files: &mut u64,
    above: &mut HashMap<InodeId, InodeId>,
) -> Result<NodeRange> {
    let mut part = NodeRange { nodes: BTreeMap::new(), last: InodeId(u64::MAX), is_last: true };
    let (mut from, until) = keys::inodes(after);
    'all: loop {
        let page = view.scan(&from, &until, nodes_max.min(1024))?;
        let Some((last, _)) = page.last() else { break };
        from = [&last[..], &[0]].concat();
        for (key, value) in &page {
            let Some(id) = keys::inode_id(key) else {
                job.add_finding(finding(FindingKind::Record, None, "a node has an invalid number"));
                continue;
            };
            job.ensure_running()?;
            job.nodes.fetch_add(1, Ordering::Relaxed);
            let Ok(node) = decode::<Inode>(value) else {
                job.add_finding(finding(FindingKind::Record, Some(id), "its record is damaged"));
                continue;
            };
            check_node(job, id, &node, global);
            match node.is_directory() {
                true => drop(above.insert(id, node.parent)),
                false => *files += u64::from(node.links > 0),
            }
            let seen = NodeCounts {
                is_directory: node.is_directory(),
                links: node.links,
                parent: node.parent,
                xattrs: (node.xattrs, node.xattr_bytes),
                names: 0,
                directories: 0,
                xattrs_found: (0, 0),
            };
            part.nodes.insert(id, seen);
            if part.nodes.len() >= nodes_max {
                (part.last, part.is_last) = (id, false);
                break 'all;
            }
        }
    }
    Ok(part)
}

/// Checks the record of a node by itself.
fn check_node(job: &CheckJob, id: InodeId, node: &Inode, global: &GlobalRecords) {
    if id.0 >= global.next_inode && id != ROOT {
        job.add_finding(finding(FindingKind::Record, Some(id), "its number was never allocated"));
    }
    if node.links == 0 && !global.orphans.contains(&id) {
        job.add_finding(finding(FindingKind::Node, Some(id), "has no name and no orphan record"));
    }
    for object in node.layout.iter().flat_map(|layout| layout.objects()) {
        if !global.devices.contains(&object.device.0) {
            let text = format!("{} is on unknown device {}", object.object, object.device.0);
            job.add_finding(finding(FindingKind::Record, Some(id), &text));
        }
    }
    if node.truncated_from.is_some() != global.clears.contains(&id) {
        let text = "its inode and its clear record disagree";
        job.add_finding(finding(FindingKind::Record, Some(id), text));
    }
}

/// Counts the names of these nodes.
fn name<S: Snapshot + ?Sized>(
    view: &S,
    job: &CheckJob,
    first: Option<InodeId>,
    part: &mut NodeRange,
) -> Result<()> {
    let is_ours = |id: InodeId| first.is_none_or(|first| id > first) && id <= part.last;
    let (from, until) = (keys::all_entries(), keys::after_prefix(&keys::all_entries()));
    each_between(view, &from, &until, |key, value| {
        job.ensure_running()?;
        if first.is_none() {
            job.names.fetch_add(1, Ordering::Relaxed);
        }
        let (Some(parent), Some(name)) = (keys::entry_parent(key), keys::entry_name(key)) else {
            job.add_finding(finding(FindingKind::Record, None, "an entry has an invalid name"));
            return Ok(());
        };
        let wrong = |text: &str| {
            let text = format!("{} in node {} {text}", name.shown(), parent.0);
            job.add_finding(finding(FindingKind::Name, Some(parent), &text));
        };
        if is_ours(parent) && !part.nodes.get(&parent).is_some_and(|node| node.is_directory) {
            wrong("is in a node that is not a directory");
        }
        let Ok(id) = decode::<InodeId>(value) else {
            wrong("has a damaged record");
            return Ok(());
        };
        if !is_ours(id) {
            return Ok(());
        }
        match part.nodes.get_mut(&id) {
            None => wrong(&format!("refers to missing node {}", id.0)),
            Some(node) => {
                node.names = node.names.saturating_add(1);
                if node.is_directory && node.parent != parent {
                    wrong(&format!("refers to directory {}, whose parent is {}", id.0, node.parent.0));
                }
            }
        }
        Ok::<_, MdsError>(())
    })
}

/// Counts the subdirectories of these directories.
fn subdirectories<S: Snapshot + ?Sized>(view: &S, job: &CheckJob, part: &mut NodeRange) -> Result<()> {
    let (from, until) = keys::inodes(None);
    each_between(view, &from, &until, |key, value| {
        job.ensure_running()?;
        if let (Some(id), Ok(node)) = (keys::inode_id(key), decode::<Inode>(value))
            && node.is_directory()
            && id != ROOT
            && let Some(parent) = part.nodes.get_mut(&node.parent)
        {
            parent.directories += 1;
        }
        Ok::<_, MdsError>(())
    })
}

/// Counts the extended attributes of these nodes.
fn attributes<S: Snapshot + ?Sized>(
    view: &S,
    job: &CheckJob,
    first: Option<InodeId>,
    part: &mut NodeRange,
) -> Result<()> {
    let is_ours = |id: InodeId| first.is_none_or(|first| id > first) && id <= part.last;
    let (from, until) = (keys::all_xattrs(), keys::after_prefix(&keys::all_xattrs()));
    each_between(view, &from, &until, |key, value| {
        job.ensure_running()?;
        let (Some(id), Some(name)) = (keys::entry_parent(key), keys::xattr_name(key)) else {
            job.add_finding(finding(FindingKind::Record, None, "an attribute has an invalid name"));
            return Ok(());
        };
        if !is_ours(id) {
            return Ok(());
        }
        let Ok(value) = decode::<sealstone_mds_protocol::XattrValue>(value) else {
            job.add_finding(finding(FindingKind::Record, Some(id), "an attribute has a damaged value"));
            return Ok(());
        };
        match part.nodes.get_mut(&id) {
            None => {
                job.add_finding(finding(
                    FindingKind::Record,
                    Some(id),
                    "has an attribute but does not exist",
                ));
            }
            Some(node) => {
                let (number, bytes) = &mut node.xattrs_found;
                *number = number.saturating_add(1);
                *bytes += (name.as_bytes().len() + value.as_bytes().len()) as u32;
            }
        }
        Ok::<_, MdsError>(())
    })
}

fn compare_counts(job: &CheckJob, part: &NodeRange) {
    for (&id, node) in &part.nodes {
        let wrong = |text: &str| job.add_finding(finding(FindingKind::Node, Some(id), text));
        let (names, links) = match node.is_directory {
            // The root has no name and is its own parent.
            true => (u32::from(id != ROOT), node.directories.saturating_add(2)),
            false => (node.links, node.links),
        };
        if node.names == 0 && names > 0 {
            wrong("has no name and cannot be reached");
        } else if node.names != names {
            wrong(&format!("has {} names, expected {names}", node.names));
        }
        if node.links != links {
            wrong(&format!("has {links} links, recorded {}", node.links));
        }
        if node.xattrs != node.xattrs_found {
            let ((recorded, recorded_bytes), (found, found_bytes)) = (node.xattrs, node.xattrs_found);
            let text = format!(
                "has {found} attributes of {found_bytes} bytes, recorded {recorded} of {recorded_bytes}"
            );
            job.add_finding(finding(FindingKind::Record, Some(id), &text));
        }
    }
}

/// Checks that every directory is below the root.
fn walk(job: &CheckJob, above: &HashMap<InodeId, InodeId>) {
    // Directories known to be below the root, and those known not to be.
    let (mut below, mut lost) = (HashSet::from([ROOT]), HashSet::new());
    if above.get(&ROOT) != Some(&ROOT) {
        job.add_finding(finding(FindingKind::Node, Some(ROOT), "the root is not its own parent"));
    }
    for &start in above.keys() {
        let (mut at, mut visited) = (start, HashSet::new());
        let reaches = loop {
            if below.contains(&at) {
                break true;
            }
            if lost.contains(&at) || !visited.insert(at) {
                break false;
            }
            match above.get(&at) {
                Some(parent) => at = *parent,
                None => break false,
            }
        };
        if reaches {
            below.extend(visited);
        } else {
            if !lost.contains(&start) {
                job.add_finding(finding(
                    FindingKind::Node,
                    Some(start),
                    "is a directory that is not below the root",
                ));
            }
            lost.extend(visited);
        }
    }
}

/// Checks creates against their expiry records.
fn creates<S: Snapshot + ?Sized>(view: &S, job: &CheckJob) -> Result<()> {
    let mut ends: HashMap<IntentId, u64> = HashMap::new();
    let (from, until) = (keys::all_expiries(), keys::after_prefix(&keys::all_expiries()));
    each_between::<S, MdsError>(view, &from, &until, |key, _| {
        if let (Some(id), Some(at)) = (keys::intent_of_expiry(key), keys::expiry_of(key)) {
            ends.insert(id, at);
        }
        Ok(())
    })?;
    let (from, until) = (keys::intents(), keys::after_prefix(&keys::intents()));
    each_between::<S, MdsError>(view, &from, &until, |key, value| {
        let Some(id) = keys::intent_id(key) else { return Ok(()) };
        let wrong = |text: &str| {
            job.add_finding(finding(FindingKind::Record, None, &format!("create {} {text}", id.0)));
        };
        match (decode::<Intent>(value), ends.remove(&id)) {
            (Err(_), _) => wrong("has a damaged record"),
            (Ok(intent), Some(at)) if intent.expires_ms == at => {}
            (Ok(_), _) => wrong("has no matching expiry record"),
        }
        Ok(())
    })?;
    for id in ends.into_keys() {
        let text = format!("create {} has an expiry record but does not exist", id.0);
        job.add_finding(finding(FindingKind::Record, None, &text));
    }
    Ok(())
}

fn figures<S: Snapshot + ?Sized>(
    view: &S,
    global: &GlobalRecords,
    files: u64,
    directories: u64,
) -> Result<Vec<StoredTotal>> {
    let number = |prefix: &[u8]| {
        let mut found = 0;
        each_between::<S, MdsError>(view, prefix, &keys::after_prefix(prefix), |_, _| {
            found += 1;
            Ok(())
        })?;
        Ok::<u64, MdsError>(found)
    };
    [
        (counter::FILES, files),
        (counter::DIRECTORIES, directories),
        (counter::CLEARS, global.clears.len() as u64),
        (counter::ORPHANS, number(&keys::all_orphans())?),
        (counter::INTENTS, number(&keys::intents())?),
        (counter::RESULTS, number(&keys::function_results())?),
        (counter::REAPS, number(&keys::all_reaps())?),
        (counter::USERS, number(&keys::users())?),
        (counter::GROUPS, number(&keys::groups())?),
        (counter::SESSIONS, number(&keys::sessions())?),
    ]
    .into_iter()
    .map(|(name, found)| Ok(StoredTotal { name, stored: figure(view, name)?, found }))
    .collect()
}
