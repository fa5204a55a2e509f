//! The task that receives recalls while this client has open files or leases.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::Weak;

use sealstone_mds_protocol::{RECALLS_MAX, Request, Response};
use tokio::time::{Instant, sleep, timeout};

use super::super::shared::{Shared, lock};
use super::{AGAIN, IDLE, NONE_HERE, PACE, Until, WAIT_MS};
use crate::{Devices, Metadata};

/// Sends Recalls requests in a loop.
pub(in super::super) async fn listen<M: Metadata, D: Devices>(weak: Weak<Shared<M, D>>) {
    let Some((second, wanted, client_id)) = weak.upgrade().and_then(|shared| {
        Some((shared.leases.second.clone()?, shared.leases.wanted.clone(), shared.client_id))
    }) else {
        return;
    };
    let mut busy = Instant::now();
    loop {
        let (epoch, known, sent, wall_ms) = {
            let Some(shared) = weak.upgrade() else { return };
            if shared.leases.ended.load(Ordering::Acquire) {
                return;
            }
            let open = shared.tend() || shared.bodies().iter().any(|body| body.open_count() > 0);
            if open {
                busy = Instant::now();
            }
            let book = lock(&shared.leases.book);
            (book.epoch, book.known, Instant::now(), shared.wall_ms())
        };
        if busy.elapsed() > IDLE {
            if timeout(PACE, wanted.notified()).await.is_ok() {
                busy = Instant::now();
            }
            continue;
        }
        let answer = second.call(Request::Recalls { client_id, epoch, known, wait_ms: WAIT_MS }).await;
        let Some(shared) = weak.upgrade() else { return };
        if shared.leases.ended.load(Ordering::Acquire) {
            // A request now would register this client again.
            return;
        }
        let paced;
        match answer {
            Ok(Response::Recalls { epoch: 0, .. }) => {
                shared.begin_era(0).await;
                drop(shared);
                for _ in 0..NONE_HERE.as_secs() {
                    sleep(PACE).await;
                    if weak.strong_count() == 0 {
                        return;
                    }
                }
                continue;
            }
            Ok(Response::Recalls { epoch: now, .. }) if now != epoch => {
                shared.begin_era(now).await;
                // Limits the rate if each answer has another epoch.
                paced = epoch != 0 && sent.elapsed() < AGAIN;
            }
            Ok(Response::Recalls { lease_ms, last, recalls, .. }) => {
                // Done first, since the answer does not renew the leases that it recalls.
                shared.recalled(&recalls);
                let believed = Duration::from_millis(u64::from(lease_ms));
                let until =
                    Until { instant: sent + believed, wall_ms: wall_ms.saturating_add(u64::from(lease_ms)) };
                let mut book = lock(&shared.leases.book);
                book.known = last;
                // A full answer may be incomplete: more leases may have been recalled before it was
                // requested.
                if recalls.len() < RECALLS_MAX {
                    book.until = Some(until);
                }
                drop(book);
                shared.leases.moved.notify_waiters();
                paced = recalls.is_empty() && sent.elapsed() < PACE;
            }
            Ok(_) => paced = true,
            Err(error) => {
                tracing::debug!(%error, "no answer to Recalls; retrying");
                paced = true;
            }
        }
        drop(shared);
        if paced {
            sleep(PACE).await;
        }
    }
}
