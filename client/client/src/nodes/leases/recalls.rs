//! The task that receives recalls while this client has open files or leases.

use std::sync::Weak;

use sealstone_mds_protocol::{RECALLS_MAX, Request, Response};
use tokio::time::{Instant, sleep, timeout};

use super::super::shared::Shared;
use super::{DISABLED_RETRY, LISTEN_IDLE, POLL_INTERVAL, RETRY_PAUSE, WAIT_MS};
use crate::{Devices, Metadata};

/// Sends Recalls requests in a loop.
pub(in super::super) async fn recall_task<M: Metadata, D: Devices>(weak: Weak<Shared<M, D>>) {
    let Some((recall_link, wake, client_id)) = weak.upgrade().and_then(|shared| {
        Some((shared.leases.recall_link.clone()?, shared.leases.wake.clone(), shared.client_id))
    }) else {
        return;
    };
    let mut busy = Instant::now();
    // Whether the next answer confirms a new epoch, which the server does at once.
    let mut confirms = false;
    loop {
        let (epoch, known, sent) = {
            let Some(shared) = weak.upgrade() else { return };
            if shared.leases.is_stopped() {
                return;
            }
            let open = shared.expire_idle()
                || shared.open_inodes().iter().any(|open_inode| open_inode.open_count() > 0);
            if open {
                busy = Instant::now();
            }
            let table = shared.leases.table.lock();
            (table.epoch(), table.last_recall(), shared.lease_time())
        };
        if busy.elapsed() > LISTEN_IDLE {
            if timeout(POLL_INTERVAL, wake.notified()).await.is_ok() {
                busy = Instant::now();
            }
            continue;
        }
        let answer = recall_link.call(Request::Recalls { client_id, epoch, known, wait_ms: WAIT_MS }).await;
        let Some(shared) = weak.upgrade() else { return };
        if shared.leases.is_stopped() {
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
                paced = epoch != 0 && sent.instant.elapsed() < RETRY_PAUSE;
                confirms = true;
            }
            Ok(Response::Recalls { lease_ms, last, recalls, .. }) => {
                // Done first, since the answer does not renew the leases that it recalls.
                shared.on_recalls(&recalls);
                // A full answer may be incomplete: more leases may have been recalled before it was
                // requested.
                let is_complete = recalls.len() < RECALLS_MAX;
                shared.leases.table.lock().renew(last, is_complete, sent, lease_ms);
                shared.leases.changed.notify_waiters();
                let is_early = recalls.is_empty() && sent.instant.elapsed() < POLL_INTERVAL;
                paced = is_early && !confirms;
                confirms = false;
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
