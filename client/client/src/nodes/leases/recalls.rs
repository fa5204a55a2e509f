//! The task that receives recalls while this client has open files or leases.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::Weak;

use sealstone_mds_protocol::{RECALLS_MAX, Request, Response};
use tokio::time::{Instant, sleep, timeout};

use super::super::shared::{Shared, lock};
use super::{DISABLED_RETRY, Deadline, LISTEN_IDLE, POLL_INTERVAL, RETRY_PAUSE, WAIT_MS};
use crate::{Devices, Metadata};

/// Sends Recalls requests in a loop.
pub(in super::super) async fn recall_task<M: Metadata, D: Devices>(weak: Weak<Shared<M, D>>) {
    let Some((recall_link, wake, client_id)) = weak.upgrade().and_then(|shared| {
        Some((shared.leases.recall_link.clone()?, shared.leases.wake.clone(), shared.client_id))
    }) else {
        return;
    };
    let mut busy = Instant::now();
    loop {
        let (epoch, known, sent, wall_ms) = {
            let Some(shared) = weak.upgrade() else { return };
            if shared.leases.stopped.load(Ordering::Acquire) {
                return;
            }
            let open = shared.expire_idle()
                || shared.open_inodes().iter().any(|open_inode| open_inode.open_count() > 0);
            if open {
                busy = Instant::now();
            }
            let table = lock(&shared.leases.table);
            (table.epoch, table.last_recall, Instant::now(), shared.wall_ms())
        };
        if busy.elapsed() > LISTEN_IDLE {
            if timeout(POLL_INTERVAL, wake.notified()).await.is_ok() {
                busy = Instant::now();
            }
            continue;
        }
        let answer = recall_link.call(Request::Recalls { client_id, epoch, known, wait_ms: WAIT_MS }).await;
        let Some(shared) = weak.upgrade() else { return };
        if shared.leases.stopped.load(Ordering::Acquire) {
            // A request now would register this client again.
            return;
        }
        let paced;
        match answer {
            Ok(Response::Recalls { epoch: 0, .. }) => {
                shared.begin_epoch(0).await;
                drop(shared);
                for _ in 0..DISABLED_RETRY.as_secs() {
                    sleep(POLL_INTERVAL).await;
                    if weak.strong_count() == 0 {
                        return;
                    }
                }
                continue;
            }
            Ok(Response::Recalls { epoch: now, .. }) if now != epoch => {
                shared.begin_epoch(now).await;
                // Limits the rate if each answer has another epoch.
                paced = epoch != 0 && sent.elapsed() < RETRY_PAUSE;
            }
            Ok(Response::Recalls { lease_ms, last, recalls, .. }) => {
                // Done first, since the answer does not renew the leases that it recalls.
                shared.on_recalls(&recalls);
                let validity = Duration::from_millis(u64::from(lease_ms));
                let until = Deadline {
                    instant: sent + validity,
                    wall_ms: wall_ms.saturating_add(u64::from(lease_ms)),
                };
                let mut table = lock(&shared.leases.table);
                table.last_recall = last;
                // A full answer may be incomplete: more leases may have been recalled before it was
                // requested.
                if recalls.len() < RECALLS_MAX {
                    table.valid_until = Some(until);
                }
                drop(table);
                shared.leases.changed.notify_waiters();
                paced = recalls.is_empty() && sent.elapsed() < POLL_INTERVAL;
            }
            Ok(_) => paced = true,
            Err(error) => {
                tracing::debug!(%error, "no answer to Recalls; retrying");
                paced = true;
            }
        }
        drop(shared);
        if paced {
            sleep(POLL_INTERVAL).await;
        }
    }
}
