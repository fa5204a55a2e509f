//! What lies on the devices, beside what is on record.
//!
//! Contract: a window is listed before the state that it is compared with: an object is on record before anybody makes it, so
//! one that is listed and not on record belonged to nothing already, or was removed meanwhile; which of them it is the
//! device says when it is asked once more. An object that was made after it was not listed is there when it is asked.

use sealstone_mds_protocol::{DeviceId, FindingKind, InodeId, Layout, ObjectRef};

use super::{CheckJob, finding};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::moving::{Carry, Move};
use crate::records::{Inode, Intent, decode, load};
use crate::store::{MetaError, Snapshot, each_between};

/// Suspects of one window at most.
const SUSPECTS_MAX: usize = 4096;

/// Objects that devices listed.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// They, in ascending order.
    pub listed: Vec<ObjectRef>,
    /// All there are after this one; none: from the beginning.
    pub after: Option<ObjectRef>,
    /// And up to this one; none: to the end.
    pub last: Option<ObjectRef>,
    /// Devices that were not asked, or did not answer.
    pub silent: Vec<DeviceId>,
}

impl Window {
    fn has(&self, object: ObjectRef) -> bool {
        self.after.is_none_or(|after| object > after)
            && self.last.is_none_or(|last| object <= last)
            && !self.silent.contains(&object.device)
    }
}

/// What does not fit together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Listed, and not on record.
    pub unknown: Vec<ObjectRef>,
    /// Of files, certainly made, and not listed.
    pub missing: Vec<(InodeId, ObjectRef)>,
}

/// Who has a listed object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Nobody,
    /// A file, or a create.
    File,
    /// What is to be removed, or is under way elsewhere.
    Other,
}

pub(super) fn compare<S: Snapshot + ?Sized>(
    view: &S,
    job: &CheckJob,
    window: &Window,
    device_name: impl Fn(DeviceId) -> String,
) -> Result<Compared> {
    let mut owners = vec![Owner::Nobody; window.listed.len()];
    let mut compared = Compared::default();
    let mut of_file = |node: Option<InodeId>, layout: &Layout, made: bool| {
        for &object in layout.objects() {
            match window.listed.binary_search(&object).map(|at| &mut owners[at]) {
                Ok(owner @ Owner::Nobody) => *owner = Owner::File,
                Ok(_) => {
                    let device = device_name(object.device);
                    let said = format!("{} on device {device} has another file, too", object.object);
                    job.found(finding(FindingKind::Shared, node, &said));
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
        job.goes_on()?;
        // What is damaged was told before.
        if let (Some(id), Ok(Inode { layout: Some(layout), made, .. })) = (keys::inode_id(key), decode(value))
        {
            of_file(Some(id), &layout, made);
        }
        Ok::<_, MdsError>(())
    })?;
    each::<Intent, S>(view, &keys::intents(), |_, intent| of_file(None, &intent.layout, false))?;
    let mut others: Vec<ObjectRef> = Vec::new();
    each::<Move, S>(view, &keys::moves(), |_, note| others.push(note.to))?;
    each::<Carry, S>(view, &keys::carries(), |_, note| others.extend(note.to.objects()))?;
    each_between::<S, MdsError>(
        view,
        &keys::all_reaps(),
        &keys::after_prefix(&keys::all_reaps()),
        |key, _| {
            let Some((_, object)) = keys::reap_parts(key) else { return Ok(()) };
            if let Ok(at) = window.listed.binary_search(&object) {
                if owners[at] == Owner::File {
                    let device = device_name(object.device);
                    let said = format!("{} on device {device} is a file's, and to be removed", object.object);
                    job.found(finding(FindingKind::Shared, None, &said));
                }
                owners[at] = Owner::Other;
            }
            Ok(())
        },
    )?;
    for object in others {
        if let Ok(at) = window.listed.binary_search(&object)
            && owners[at] == Owner::Nobody
        {
            owners[at] = Owner::Other;
        }
    }
    let unknown = window.listed.iter().zip(&owners).filter(|(_, owner)| **owner == Owner::Nobody);
    compared.unknown = unknown.map(|(object, _)| *object).take(SUSPECTS_MAX).collect();
    Ok(compared)
}

/// Does something with each record of a family.
fn each<T: sealstone_mds_protocol::Wire, S: Snapshot + ?Sized>(
    view: &S,
    prefix: &[u8],
    mut work: impl FnMut(&[u8], T),
) -> Result<()> {
    each_between(view, prefix, &keys::after_prefix(prefix), |key, value| {
        let record: T = decode(value).map_err(|_| MetaError::Damaged("a record about objects"))?;
        work(key, record);
        Ok::<_, MdsError>(())
    })
}

pub(super) fn has<S: Snapshot + ?Sized>(view: &S, node: InodeId, object: ObjectRef) -> Result<bool> {
    let node: Option<Inode> = load(view, &keys::inode(node))?;
    let layout = node.filter(|node| node.made).and_then(|node| node.layout);
    Ok(layout.is_some_and(|layout| layout.objects().contains(&object)))
}
