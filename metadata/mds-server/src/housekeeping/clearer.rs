//! Removes truncated bytes from the objects of a file, so that the file may grow again.
//!
//! Does: truncates the objects at all devices concurrently; a file is cleared when its last object
//! is truncated.
//! Contract: an unreachable device delays its own files only. An interrupted truncation is
//! repeated; that is safe, because the file does not grow in between. Of several servers on one
//! store only the leader truncates: a second server would not know of the first one's truncations,
//! and a late one would remove bytes written since. So each file is read again before it is
//! truncated, and the device refuses a truncation that arrives when another server may be the
//! leader.

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

/// Files read at a time.
const BATCH: usize = 64;
/// Time after which files with an unreachable device are tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Objects already truncated, of files with other objects left.
#[derive(Default)]
struct TruncationProgress(Mutex<HashMap<InodeId, (ClearItem, BTreeSet<ObjectRef>)>>);

impl TruncationProgress {
    /// Records that an object was truncated. Returns whether it was the last one of the file.
    fn cut(&self, item: &ClearItem, object: ObjectRef) -> bool {
        let mut files = self.0.lock();
        let (known, done) = files.entry(item.inode).or_insert_with(|| (item.clone(), BTreeSet::new()));
        if known != item {
            // The file was truncated again meanwhile.
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
    /// Starts the next round of [`Housekeeper::run_clearer`] now.
    pub fn wake_clearer(&self) {
        self.wake_clearer.notify_one();
    }

    /// Clears files until `stop` is set. Runs beside [`Housekeeper::run`], which may wait for an
    /// unreachable device.
    pub async fn run_clearer(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval(RETRY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let progress = Arc::new(TruncationProgress::default());
        let mut workers = JoinSet::new();
        let mut busy = HashSet::new();
        // Set if a device got more work while its worker read the last page.
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
                        // An aborted task does not report its device, so all devices are tried
                        // again.
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
                    tracing::error!(%error, "queue of truncated files could not be read");
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
                        // Limits the requests to a failing device, however many files wait for it.
                        tokio::time::sleep(RETRY).await;
                    }
                    device.id
                });
            }
        }
    }

    /// Returns the devices that have objects to truncate.
    fn devices_to_clear(&self, progress: &TruncationProgress) -> Result<HashSet<DeviceId>, MdsError> {
        let (mut devices, mut files) = (HashSet::new(), HashSet::new());
        if !self.is_leader() {
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

    /// Truncates all queued objects at a device until one fails. Returns whether all were
    /// truncated.
    async fn clear_at(&self, device: &DeviceAddress, progress: &TruncationProgress) -> bool {
        let (mut after, mut all) = (None, true);
        loop {
            let items = match self.blocking(|mds| mds.next_clears(after, BATCH)) {
                Ok(items) if items.is_empty() => return all,
                Ok(items) => items,
                Err(error) => {
                    tracing::error!(%error, "queue of truncated files could not be read");
                    return false;
                }
            };
            after = items.last().map(|item| item.inode);
            for item in items {
                let Err(error) = self.clear_file_at(device, &item, progress).await else { continue };
                tracing::warn!(device = device.id.0, inode = item.inode.0, %error, "truncated bytes not removed; retrying");
                all = false;
                // A refusal of one file does not concern the others.
                if !matches!(error, DeviceError::Refused(_)) {
                    return false;
                }
            }
        }
    }

    /// Truncates the objects of a file at one device.
    async fn clear_file_at(
        &self,
        device: &DeviceAddress,
        item: &ClearItem,
        progress: &TruncationProgress,
    ) -> Result<(), DeviceError> {
        for (object, length) in item.objects.iter().filter(|(object, _)| object.device == device.id) {
            if progress.is_cut(item, object) {
                continue;
            }
            // The item may be outdated: the file may have been truncated again, or cleared and
            // extended.
            let is_same = |mds: &sealstone_mds::Mds| Ok(mds.clear_of(item.inode)?.as_ref() == Some(item));
            if !self.is_leader() || !self.blocking(is_same).map_err(store_failed)? {
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
