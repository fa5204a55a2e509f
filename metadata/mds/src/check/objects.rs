//! Check of the objects on devices against the records.
//!
//! Contract: a window is listed before the compared state is read, and an object is recorded before
//! it is created. So a listed object without a record was leaked, or removed meanwhile; a second
//! query of the device distinguishes the two. An object created after the listing exists when the
//! device is queried again.

use sealstone_mds_protocol::{DeviceId, FindingKind, InodeId, Layout, ObjectRef};

use super::job::{CheckJob, finding};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::moving::{FileMigration, ObjectMove};
use crate::records::{Inode, Intent, decode, load};
use crate::store::{MetaError, Snapshot, each_between};

/// Maximum number of suspects in a window.
const SUSPECTS_MAX: usize = 4096;

/// Objects that devices listed.
#[derive(Clone, Debug, Default)]
pub struct ObjectWindow {
    /// Listed objects in ascending order.
    pub listed: Vec<ObjectRef>,
    /// The window begins after this object; none: at the first one.
    pub after: Option<ObjectRef>,
    /// The window ends with this object; none: with the last one.
    pub last: Option<ObjectRef>,
    /// Devices that were not queried or did not answer.
    pub silent: Vec<DeviceId>,
}

impl ObjectWindow {
    fn has(&self, object: ObjectRef) -> bool {
        self.after.is_none_or(|after| object > after)
            && self.last.is_none_or(|last| object <= last)
            && !self.silent.contains(&object.device)
    }
}

/// Differences between listing and records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectDiff {
    /// Listed, but not recorded.
    pub unknown: Vec<ObjectRef>,
    /// Recorded as existing, but not listed.
    pub missing: Vec<(InodeId, ObjectRef)>,
}

/// Owner of a listed object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ObjectOwner {
    None,
    /// A file or a create.
    File,
    /// A pending removal, or a move or migration.
    Other,
}

pub(super) fn compare<S: Snapshot + ?Sized>(
    view: &S,
    job: &CheckJob,
    window: &ObjectWindow,
    device_name: impl Fn(DeviceId) -> String,
) -> Result<ObjectDiff> {
    let mut owners = vec![ObjectOwner::None; window.listed.len()];
    let mut compared = ObjectDiff::default();
    let mut of_file = |node: Option<InodeId>, layout: &Layout, made: bool| {
        for &object in layout.objects() {
            match window.listed.binary_search(&object).map(|at| &mut owners[at]) {
                Ok(owner @ ObjectOwner::None) => *owner = ObjectOwner::File,
                Ok(_) => {
                    let device = device_name(object.device);
                    let text = format!("{} on device {device} also belongs to another file", object.object);
                    job.add_finding(finding(FindingKind::Shared, node, &text));
                }
                Err(_) if made && window.has(object) && compared.missing.len() < SUSPECTS_MAX => {
                    compared.missing.extend(node.map(|node| (node, object)));
                }
                Err(_) => {}
            }
        }
    };
    let (from, until) = keys::inodes(None);
    each_between(view, &from, &until, |key, value| {
        job.ensure_running()?;
        // Damaged records were reported before.
        if let (Some(id), Ok(Inode { layout: Some(layout), objects_exist: made, .. })) =
            (keys::inode_id(key), decode(value))
        {
            of_file(Some(id), &layout, made);
        }
        Ok::<_, MdsError>(())
    })?;
    each::<Intent, S>(view, &keys::intents(), |_, intent| of_file(None, &intent.layout, false))?;
    let mut others: Vec<ObjectRef> = Vec::new();
    each::<ObjectMove, S>(view, &keys::object_moves(), |_, note| others.push(note.to))?;
    each::<FileMigration, S>(view, &keys::migrations(), |_, note| others.extend(note.to.objects()))?;
    each_between::<S, MdsError>(
        view,
        &keys::all_reaps(),
        &keys::after_prefix(&keys::all_reaps()),
        |key, _| {
            let Some((_, object)) = keys::reap_parts(key) else { return Ok(()) };
            if let Ok(at) = window.listed.binary_search(&object) {
                if owners[at] == ObjectOwner::File {
                    let device = device_name(object.device);
                    let text = format!(
                        "{} on device {device} belongs to a file but is queued for removal",
                        object.object
                    );
                    job.add_finding(finding(FindingKind::Shared, None, &text));
                }
                owners[at] = ObjectOwner::Other;
            }
            Ok(())
        },
    )?;
    for object in others {
        if let Ok(at) = window.listed.binary_search(&object)
            && owners[at] == ObjectOwner::None
        {
            owners[at] = ObjectOwner::Other;
        }
    }
    let unknown = window.listed.iter().zip(&owners).filter(|(_, owner)| **owner == ObjectOwner::None);
    compared.unknown = unknown.map(|(object, _)| *object).take(SUSPECTS_MAX).collect();
    Ok(compared)
}

/// Calls `work` for each record of a family.
fn each<T: sealstone_mds_protocol::Wire, S: Snapshot + ?Sized>(
    view: &S,
    prefix: &[u8],
    mut work: impl FnMut(&[u8], T),
) -> Result<()> {
    each_between(view, prefix, &keys::after_prefix(prefix), |key, value| {
        let record: T =
            decode(value).map_err(|_| MetaError::Damaged("record with objects does not parse"))?;
        work(key, record);
        Ok::<_, MdsError>(())
    })
}

pub(super) fn has<S: Snapshot + ?Sized>(view: &S, node: InodeId, object: ObjectRef) -> Result<bool> {
    let node: Option<Inode> = load(view, &keys::inode(node))?;
    let layout = node.filter(|node| node.objects_exist).and_then(|node| node.layout);
    Ok(layout.is_some_and(|layout| layout.objects().contains(&object)))
}
