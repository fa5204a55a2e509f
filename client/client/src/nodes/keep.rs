//! Background tasks of a file system: delayed close, periodic write-back, keep-alive. Also syncing
//! everything and shutting down.
//!
//! Contract: the tasks end when nothing else uses the file system.

use core::time::Duration;
use std::sync::{Arc, Weak};

use sealstone_mds_protocol::{Access, InodeId, Node};
use sealstone_mds_protocol::{Request, Response};
use tokio::time::sleep;

use super::Nodes;
use super::body::Body;
use super::shared::{Shared, fenced, is_fenced, passes};
use crate::open::is_gone;
use crate::{ClientError, Devices, Metadata};

/// Interval of keep-alive requests with open files; a small part of the time after which the server
/// drops open files.
const KEEP_EVERY: Duration = Duration::from_secs(10);
/// The interval without open files, so that the session does not expire.
const IDLE_EVERY: Duration = Duration::from_secs(120);
/// Interval of periodic write-back of open files.
const SEND_EVERY: Duration = Duration::from_secs(5);
/// Delay before a closed file is flushed and closed at the server, so that an early open finds
/// everything cached.
const LINGER: Duration = Duration::from_secs(2);

/// Delay before storing a closed file is retried, and the number of tries. Each try waits as long
/// as a program would.
const LINGER_AGAIN: Duration = Duration::from_secs(10);
const LINGER_TRIES_MAX: u32 = 10;

/// Starts the background tasks.
pub(super) fn start<M: Metadata, D: Devices>(shared: &Arc<Shared<M, D>>) {
    let weak = Arc::downgrade(shared);
    shared.runtime.spawn(keep_alive(weak.clone()));
    shared.runtime.spawn(super::leases::listen(weak.clone()));
    shared.runtime.spawn(super::lead::tell(weak.clone()));
    shared.runtime.spawn(send_what_lies_about(weak));
}

async fn keep_alive<M: Metadata, D: Devices>(weak: Weak<Shared<M, D>>) {
    let mut silent = Duration::ZERO;
    loop {
        sleep(KEEP_EVERY).await;
        let Some(shared) = weak.upgrade() else { return };
        let bodies = shared.bodies();
        // The server also counts files that were closed lately or are cached by a lease.
        let held = bodies.iter().filter(|body| body.is_held());
        let held: Vec<InodeId> = held.map(|body| body.node.inode).collect();
        let open: Vec<_> = bodies.into_iter().filter(|body| body.open_count() > 0).collect();
        silent += KEEP_EVERY;
        if open.is_empty() && silent < IDLE_EVERY {
            continue;
        }
        silent = Duration::ZERO;
        // The server counts only files whose creation it knows.
        if let Err(error) = shared.names_told().await {
            tracing::debug!(%error, "keep-alive failed; retrying");
            continue;
        }
        match shared.core.metadata.call(Request::KeepNodes { client_id: shared.client_id }).await {
            Ok(Response::Kept { held: there, .. })
                if (there as usize) < held.iter().filter(|id| is_held(&shared, **id)).count() =>
            {
                // The server restarted or dropped the open files of this client.
                for body in open {
                    hold_again(&shared, &body).await;
                }
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "keep-alive failed; retrying"),
        }
    }
}

fn is_held<M: Metadata, D: Devices>(shared: &Shared<M, D>, inode: InodeId) -> bool {
    shared.body(inode).is_some_and(|body| body.is_held())
}

/// Opens a file again at the server. While truncated bytes are being cleared, no write credentials
/// are given; then it is opened for reading only.
pub(super) async fn hold_again<M: Metadata, D: Devices>(shared: &Arc<Shared<M, D>>, body: &Body<M, D>) {
    let _holding = body.holding.read().await;
    if body.open_count() == 0 {
        return;
    }
    let access = body.state().access();
    if let Err(error) = shared.names_told_of(body.node.inode).await {
        tracing::warn!(inode = body.node.inode.0, %error, "could not reopen a file at the server");
        return;
    }
    let held = match shared.core.metadata.call(shared.opening(body.node, access, true)).await {
        Err(error) if is_fenced(&error) => {
            body.discard();
            shared.open_node(body.node, Access::Read, true).await.map(drop)
        }
        Err(error) if passes(&error) && access != Access::Read => {
            shared.open_node(body.node, Access::Read, true).await.map(drop)
        }
        outcome => outcome.map(|answer| shared.take_lease(body.node, &answer)),
    };
    body.was_forgotten();
    let held = match held {
        Ok(()) => lock_again(shared, body.node).await,
        Err(error) => Err(error),
    };
    if let Err(error) = held {
        tracing::warn!(inode = body.node.inode.0, %error, "could not reopen a file at the server");
    }
}

/// Reclaims the locks of a file from a server that restarted, or that dropped them.
///
/// # Errors
/// `Refused` with `Fenced` if a lock is lost: then all unsaved bytes of the file were discarded.
pub(super) async fn lock_again<M: Metadata, D: Devices>(
    shared: &Shared<M, D>,
    node: Node,
) -> Result<(), ClientError> {
    let Some(body) = shared.body(node.inode) else { return Ok(()) };
    let _one = body.locking.lock().await;
    let locks = super::shared::lock(&shared.locks).of(node.inode);
    for lock in locks {
        match shared.lock_node(node, lock, false, true).await {
            Ok(None) => {}
            Err(error) if passes(&error) => return Err(error),
            outcome => {
                let error = outcome.err().map(tracing::field::display);
                tracing::warn!(
                    inode = node.inode.0,
                    error,
                    "could not reclaim a lock; unflushed writes of the file are discarded"
                );
                body.discard();
                return Err(fenced());
            }
        }
    }
    Ok(())
}

async fn send_what_lies_about<M: Metadata, D: Devices>(weak: Weak<Shared<M, D>>) {
    loop {
        sleep(SEND_EVERY).await;
        let Some(shared) = weak.upgrade() else { return };
        for body in shared.bodies() {
            {
                let mut state = body.state();
                if state.changed_ns.is_none() || core::mem::replace(&mut state.sending, true) {
                    continue;
                }
            }
            // A file that waits for its device must not delay the others.
            shared.runtime.spawn(async move {
                let upto = body.dispatch_all();
                body.settle().await;
                if let Err(error) = body.tell(upto).await {
                    body.fail(error);
                }
                body.state().sending = false;
            });
        }
    }
}

/// Stores a closed file after [`LINGER`], and closes it at the server if no lease keeps it.
pub(super) fn linger<M: Metadata, D: Devices>(body: &Arc<Body<M, D>>) {
    if body.shared.let_go_unwritten(body) {
        return;
    }
    let body = body.clone();
    body.dispatch_all();
    body.shared.runtime.clone().spawn(async move {
        sleep(LINGER).await;
        if stored_late(&body).await && !body.shared.keep(&body) {
            body.shared.drop_lease(body.node.inode);
            close(&body).await;
            // Attributes from its creation are older.
            body.shared.names.forget(body.node.inode);
        }
        let (shared, inode) = (body.shared.clone(), body.node.inode);
        drop(body);
        shared.forget(inode);
    });
}

/// Stores a closed file, or records the error after the last try. Returns false if it was opened
/// again or closed meanwhile.
async fn stored_late<M: Metadata, D: Devices>(body: &Arc<Body<M, D>>) -> bool {
    for tries in 1.. {
        if body.open_count() > 0 || body.state().let_go {
            return false;
        }
        let stored = body.store().await;
        let waits = |error: &ClientError| passes(error) || matches!(error, ClientError::NamesNotTold);
        let again = stored.as_ref().is_err_and(|error| waits(error) && tries < LINGER_TRIES_MAX);
        // A concurrent fsync tries by itself. Errors of a removed file do not matter.
        if let Err(error) = stored
            && !again
            && !is_gone(&error)
        {
            body.fail(error);
        }
        let untold = {
            let mut state = body.state();
            // An open since then reports the error itself.
            if body.open_count() == 0 { state.error.take() } else { None }
        };
        if let Some(error) = untold {
            // No program has the file open, so fsync of a directory reports it.
            body.shared.ledger.book().fail(error);
        }
        if !again {
            break;
        }
        // The bytes stay in memory, since the device may restart without them.
        sleep(LINGER_AGAIN).await;
    }
    true
}

pub(super) async fn close<M: Metadata, D: Devices>(body: &Body<M, D>) {
    let _holding = body.holding.write().await;
    if body.open_count() > 0 {
        return;
    }
    let request = Request::CloseNode { node: body.node, client_id: body.shared.client_id };
    if let Err(error) = body.shared.told_before(&request).await {
        tracing::debug!(%error, "could not close a file; the server does so later");
        return;
    }
    match body.shared.core.metadata.call(request).await {
        Ok(_) => body.state().let_go = true,
        Err(error) => tracing::debug!(%error, "could not close a file; the server does so later"),
    }
}

/// Ends all state of this client at the server.
///
/// # Errors
/// `NamesNotTold` if directory changes could not be written back.
pub(super) async fn let_go<M: Metadata, D: Devices>(shared: &Arc<Shared<M, D>>) -> Result<(), ClientError> {
    let told = shared.names_told().await;
    if let Err(error) = &told {
        tracing::warn!(%error, "directory changes could not be written back");
    }
    shared.lead_nothing().await;
    shared.leases.end();
    let request = Request::EndClient { client_id: shared.client_id };
    match shared.core.metadata.call(request).await {
        // The server has closed all files of this client.
        Ok(_) => {
            shared
                .bodies()
                .iter()
                .filter(|body| body.open_count() == 0)
                .for_each(|body| body.state().let_go = true);
        }
        Err(error) => {
            tracing::debug!(%error, "could not end the client's state; the metadata server lets it expire");
        }
    }
    shared.drop_leases();
    told
}

impl<M: Metadata, D: Devices> Nodes<M, D> {
    /// Returns when all writes and directory changes of this file system are durable.
    ///
    /// # Errors
    /// The first error of any file; `NotStored` for an earlier error, which the file itself will
    /// report too.
    pub async fn sync_all(&self) -> Result<(), ClientError> {
        let told = self.shared.names_told().await;
        let stored = |body: Arc<Body<M, D>>| async move {
            body.store().await?;
            if body.state().error.is_some() { Err(ClientError::NotStored) } else { Ok(()) }
        };
        // Most cached files have nothing to store; skipping them keeps fsync of a directory fast.
        let bodies = self.shared.bodies().into_iter().filter(|body| !body.state().is_settled());
        let stored = self.shared.with_all(bodies, stored).await;
        told.and(stored).and(self.shared.ledger.book().take_error())
    }

    /// Makes everything durable and closes all files.
    ///
    /// # Errors
    /// The first error of any file.
    pub async fn shut_down(&self) -> Result<(), ClientError> {
        let outcome =
            self.shared.with_all(self.shared.bodies(), |body| async move { body.sync().await }).await;
        let told = let_go(&self.shared).await;
        outcome.and(told).and(self.shared.ledger.book().take_error())
    }
}
