//! Bytes that were cut off are removed from the objects that hold them, so that their files may grow again.
//!
//! Does: cut at all devices at a time; a file is cleared when the last of its objects was cut.
//! Contract: a device that is silent holds up its own files alone. Whatever is interrupted here is done once more; cutting
//! an object twice changes nothing, since its file does not grow in between. Of several servers on one store the leader
//! alone does it: two of them would not know of each other's cuts, and a late one would take what was written after the
//! first. So each file is looked at again before it is cut, and the device refuses a cut that arrives when another server
//! may lead.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sealstone_mds::{ClearItem, DeviceAddress, MdsError, ServerPurpose};
use sealstone_mds_protocol::{DeviceId, InodeId, ObjectRef};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::{Housekeeper, store_failed};
use crate::devices::DeviceError;

/// Files that are read together.
const BATCH: usize = 64;
/// Files that wait for a silent device are tried again after this.
const RETRY: Duration = Duration::from_secs(1);

/// Objects that were cut, of files of which others are not.
#[derive(Default)]
struct Progress(Mutex<HashMap<InodeId, (ClearItem, BTreeSet<ObjectRef>)>>);

impl Progress {
    /// An object was cut; was it the last one of the file?
    fn cut(&self, item: &ClearItem, object: ObjectRef) -> bool {
        let mut files = self.0.lock();
        let (known, done) = files.entry(item.inode).or_insert_with(|| (item.clone(), BTreeSet::new()));
        if known != item {
            // It was cut again meanwhile.
            (*known, *done) = (item.clone(), BTreeSet::new());
        }
        done.insert(object);
        let all = item.objects.iter().all(|(object, _)| done.contains(object));
        if all {
            files.remove(&item.inode);
        }
        all
    }

    fn is_cut(&self, item: &ClearItem, object: &ObjectRef) -> bool {
        self.0.lock().get(&item.inode).is_some_and(|(known, done)| known == item && done.contains(object))
    }

    /// Forgets all files but these.
    fn keep(&self, files: &HashSet<InodeId>) {
        self.0.lock().retain(|inode, _| files.contains(inode));
    }
}

impl Housekeeper {
    /// Has the next round of [`Housekeeper::run_clearer`] begin now.
    pub fn wake_clearer(&self) {
        self.wake_clearer.notify_one();
    }

    /// Works until told to stop; beside [`Housekeeper::run`], which may wait for a device that is silent.
    pub async fn run_clearer(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval(RETRY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let progress = Arc::new(Progress::default());
        let mut workers = JoinSet::new();
        let mut busy = HashSet::new();
        // A device may have been given more while its worker was looking at the last page.
        let mut again = false;
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                Some(ended) = workers.join_next() => {
                    match ended {
                        Ok(device) => {
                            busy.remove(&device);
                        }
                        // A task that was ended: which one is not told, so that all that are left are asked again.
                        Err(_) => busy.clear(),
                    }
                    if !core::mem::take(&mut again) {
                        continue;
                    }
                }
                () = self.wake_clearer.notified() => {}
                _ = ticks.tick() => {}
            }
            let wanted = match self.devices_to_clear(&progress) {
                Ok(wanted) => wanted,
                Err(error) => {
                    tracing::error!(%error, "files to be cleared are not known");
                    continue;
                }
            };
            for (device, _) in self.mds.devices() {
                if !wanted.contains(&device.id) {
                    continue;
                }
                if !busy.insert(device.id) {
                    again = true;
                    continue;
                }
                let (this, progress) = (self.clone(), Arc::clone(&progress));
                workers.spawn(async move {
                    if !this.clear_at(&device, &progress).await {
                        // However many wait for it, it is not asked more often.
                        tokio::time::sleep(RETRY).await;
                    }
                    device.id
                });
            }
        }
    }

    /// The devices that have objects to be cut.
    fn devices_to_clear(&self, progress: &Progress) -> Result<HashSet<DeviceId>, MdsError> {
        let (mut devices, mut files) = (HashSet::new(), HashSet::new());
        if !self.leads() {
            return Ok(devices);
        }
        let mut after = None;
        loop {
            let items = self.blocking(|mds| mds.next_clears(after, BATCH))?;
            let Some(last) = items.last() else { break };
            after = Some(last.inode);
            for item in items {
                let left = item.objects.iter().filter(|(object, _)| !progress.is_cut(&item, object));
                devices.extend(left.map(|(object, _)| object.device));
                files.insert(item.inode);
            }
        }
        progress.keep(&files);
        Ok(devices)
    }

    /// Cuts all that is to be cut at a device, or until it fails. Was all of it cut?
    async fn clear_at(&self, device: &DeviceAddress, progress: &Progress) -> bool {
        let (mut after, mut all) = (None, true);
        loop {
            let items = match self.blocking(|mds| mds.next_clears(after, BATCH)) {
                Ok(items) if items.is_empty() => return all,
                Ok(items) => items,
                Err(error) => {
                    tracing::error!(%error, "files to be cleared are not known");
                    return false;
                }
            };
            after = items.last().map(|item| item.inode);
            for item in items {
                let Err(error) = self.clear_file_at(device, &item, progress).await else { continue };
                tracing::warn!(device = device.id.0, inode = item.inode.0, %error, "cut bytes not removed yet");
                all = false;
                // What it refuses of one file says nothing of the others.
                if !matches!(error, DeviceError::Refused(_)) {
                    return false;
                }
            }
        }
    }

    /// Cuts the objects of a file that are at a device.
    async fn clear_file_at(
        &self,
        device: &DeviceAddress,
        item: &ClearItem,
        progress: &Progress,
    ) -> Result<(), DeviceError> {
        for (object, length) in item.objects.iter().filter(|(object, _)| object.device == device.id) {
            if progress.is_cut(item, object) {
                continue;
            }
            // What was read may be old by now: it was cut again, or cleared, and has grown since.
            let is_same = |mds: &sealstone_mds::Mds| Ok(mds.clear_of(item.inode)?.as_ref() == Some(item));
            if !self.leads() || !self.blocking(is_same).map_err(store_failed)? {
                return Ok(());
            }
            let credential = self.credential(device.id, ServerPurpose::TruncateObject(object.object))?;
            self.in_time(self.devices.cut(device, object.object, *length, credential)).await?;
            if progress.cut(item, *object) {
                self.blocking(|mds| mds.cleared(core::slice::from_ref(item))).map_err(store_failed)?;
            }
        }
        Ok(())
    }
}
