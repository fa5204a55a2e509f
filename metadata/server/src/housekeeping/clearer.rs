//! Bytes that were cut off are removed from the objects that hold them, so that their files may grow again.
//!
//! Contract: whatever is interrupted here is done once more; cutting an object twice changes nothing, since its file does
//! not grow in between. Of several servers on one store the leader alone does it: two of them would not know of each
//! other's cuts, and a late one would take what was written after the first.

use std::time::Duration;

use sealstone_mds::{ClearItem, Purpose};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::Housekeeper;
use crate::devices::DeviceError;

/// Files that are looked at together.
const BATCH: usize = 32;
/// Files that wait for a silent device are tried again after this.
const RETRY: Duration = Duration::from_secs(1);

impl Housekeeper {
    /// Has the next round of [`Housekeeper::run_clearer`] begin now.
    pub fn wake_clearer(&self) {
        self.wake_clearer.notify_one();
    }

    /// Works until told to stop; beside [`Housekeeper::run`], which may wait for a device that is silent.
    pub async fn run_clearer(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval(RETRY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                () = self.wake_clearer.notified() => {}
                _ = ticks.tick() => {}
            }
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                () = self.clear() => {}
            }
        }
    }

    /// Clears all that is to be cleared, as far as the devices answer.
    pub async fn clear(&self) {
        if !self.mds.is_leading(self.environment.now_ms()) {
            return;
        }
        let mut after = None;
        loop {
            let items = match self.mds.next_clears(after, BATCH) {
                Ok(items) if items.is_empty() => return,
                Ok(items) => items,
                Err(error) => {
                    tracing::error!(%error, "files to be cleared are not known");
                    return;
                }
            };
            after = items.last().map(|item| item.inode);
            let mut done = Vec::new();
            for item in items {
                match self.clear_file(&item).await {
                    Ok(()) => done.push(item),
                    Err(error) => tracing::warn!(inode = item.inode.0, %error, "cut bytes not removed yet"),
                }
            }
            if !done.is_empty()
                && let Err(error) = self.blocking(|mds| mds.cleared(&done))
            {
                tracing::error!(%error, "that files were cleared is not stored");
                return;
            }
        }
    }

    async fn clear_file(&self, item: &ClearItem) -> Result<(), DeviceError> {
        let addresses = self.mds.devices();
        for (object, length) in &item.objects {
            let found = addresses.iter().find(|(device, _)| device.id == object.device);
            let Some((device, _)) = found else {
                return Err(DeviceError::Refused("no such device".to_owned()));
            };
            let credential = self.credential(device.id, Purpose::CutObject(object.object))?;
            self.in_time(self.devices.cut(device, object.object, *length, credential)).await?;
        }
        Ok(())
    }
}
