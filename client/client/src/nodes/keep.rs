//! What happens while nobody waits: files closed here are proven and let go, what lies about is sent, the metadata server
//! hears that we live. And all of it at once, for who waits: a sync of everything, and the end.
//!
//! Contract: the task ends when nothing else has the file system any more.

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

/// How often the server hears of us; a small part of the time for which it holds what it holds for us.
const KEEP_EVERY: Duration = Duration::from_secs(10);
/// The same while nothing is open: a session that nobody uses ends.
const IDLE_EVERY: Duration = Duration::from_secs(120);
/// What was written and not sent is sent after so long at the latest, though nobody closes its file.
const SEND_EVERY: Duration = Duration::from_secs(5);
/// A file that was closed is proven and let go after so long: who opens it again at once finds everything here.
const LINGER: Duration = Duration::from_secs(2);

/// What could not be stored for a while is tried again after this, so often at most; each time waits as long as programs would.
const LINGER_AGAIN: Duration = Duration::from_secs(10);
const LINGER_TRIES_MAX: u32 = 10;

/// Begins the work.
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
        // The server counts what was closed here lately, or is kept by a lease, too.
        let held = bodies.iter().filter(|body| body.is_held());
        let held: Vec<InodeId> = held.map(|body| body.node.inode).collect();
        let open: Vec<_> = bodies.into_iter().filter(|body| body.open_count() > 0).collect();
        silent += KEEP_EVERY;
        if open.is_empty() && silent < IDLE_EVERY {
            continue;
        }
        silent = Duration::ZERO;
        // The server counts those that it knows of.
        if let Err(error) = shared.names_told().await {
            tracing::debug!(%error, "the metadata server does not hear of us");
            continue;
        }
        match shared.core.metadata.call(Request::KeepNodes { holder: shared.holder }).await {
            Ok(Response::Kept { held: there, .. })
                if (there as usize) < held.iter().filter(|id| is_held(&shared, **id)).count() =>
            {
                // The server began anew, or took us for gone.
                for body in open {
                    hold_again(&shared, &body).await;
                }
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the metadata server does not hear of us"),
        }
    }
}

fn is_held<M: Metadata, D: Devices>(shared: &Shared<M, D>, inode: InodeId) -> bool {
    shared.body(inode).is_some_and(|body| body.is_held())
}

/// Has a file held again. Nobody is given the right to write while what was cut off is being cleared: then it is held for
/// reading, for the others wait, and whoever writes asks for the rest.
pub(super) async fn hold_again<M: Metadata, D: Devices>(shared: &Arc<Shared<M, D>>, body: &Body<M, D>) {
    let _holding = body.holding.read().await;
    if body.open_count() == 0 {
        return;
    }
    let access = body.state().access();
    if let Err(error) = shared.names_told_of(body.node.inode).await {
        tracing::warn!(inode = body.node.inode.0, %error, "an open file could not be held on");
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
        tracing::warn!(inode = body.node.inode.0, %error, "an open file could not be held on");
    }
}

/// Claims what programs here have locked from a server that began anew, or another one, or that forgot us.
///
/// # Errors
/// `Refused` with `Fenced` if a lock is lost: then nothing that was written here is kept, nor told or sent by what the server
/// gave before this.
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
                tracing::warn!(inode = node.inode.0, error, "a lock is lost");
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
            // One that waits for its device keeps no other from being sent.
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

/// A file that nobody has open here any more: proven after a while, and let go.
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
            // What was known of it when it was made is older.
            body.shared.names.forget(body.node.inode);
        }
        let (shared, inode) = (body.shared.clone(), body.node.inode);
        drop(body);
        shared.forget(inode);
    });
}

/// Stores what was closed, or gives it up and has somebody told. False: it is open again, or let go of.
async fn stored_late<M: Metadata, D: Devices>(body: &Arc<Body<M, D>>) -> bool {
    for tries in 1.. {
        if body.open_count() > 0 || body.state().let_go {
            return false;
        }
        let stored = body.store().await;
        let waits = |error: &ClientError| passes(error) || matches!(error, ClientError::NamesNotTold);
        let again = stored.as_ref().is_err_and(|error| waits(error) && tries < LINGER_TRIES_MAX);
        // Whoever syncs meanwhile tries himself. Of a file that was removed nobody misses anything.
        if let Err(error) = stored
            && !again
            && !is_gone(&error)
        {
            body.fail(error);
        }
        let untold = {
            let mut state = body.state();
            // Whoever has opened it meanwhile is told himself.
            if body.open_count() == 0 { state.error.take() } else { None }
        };
        if let Some(error) = untold {
            // Nobody is left who would ask this file.
            body.shared.ledger.book().fail(error);
        }
        if !again {
            break;
        }
        // Its bytes stay here: the device may come back without them.
        sleep(LINGER_AGAIN).await;
    }
    true
}

pub(super) async fn close<M: Metadata, D: Devices>(body: &Body<M, D>) {
    let _holding = body.holding.write().await;
    if body.open_count() > 0 {
        return;
    }
    let request = Request::CloseNode { node: body.node, holder: body.shared.holder };
    if let Err(error) = body.shared.told_before(&request).await {
        tracing::debug!(%error, "a file could not be let go; the server does it by itself");
        return;
    }
    match body.shared.core.metadata.call(request).await {
        Ok(_) => body.state().let_go = true,
        Err(error) => tracing::debug!(%error, "a file could not be let go; the server does it by itself"),
    }
}

/// Lets everything go.
///
/// # Errors
/// What was done to names is not told.
pub(super) async fn let_go<M: Metadata, D: Devices>(shared: &Arc<Shared<M, D>>) -> Result<(), ClientError> {
    let told = shared.names_told().await;
    if let Err(error) = &told {
        tracing::warn!(%error, "what was done to names is not told");
    }
    shared.lead_nothing().await;
    shared.leases.end();
    let request = Request::EndHolder { holder: shared.holder };
    match shared.core.metadata.call(request).await {
        // Nothing is held there any more.
        Ok(_) => {
            shared
                .bodies()
                .iter()
                .filter(|body| body.open_count() == 0)
                .for_each(|body| body.state().let_go = true);
        }
        Err(error) => {
            tracing::debug!(%error, "the metadata server is not told that this holder is gone; it finds out");
        }
    }
    shared.drop_leases();
    told
}

impl<M: Metadata, D: Devices> Nodes<M, D> {
    /// Returns when everything that was written through this is durable.
    ///
    /// # Errors
    /// The first that any file had; `NotStored` for one from before, which the file itself tells of once more.
    pub async fn sync_all(&self) -> Result<(), ClientError> {
        let told = self.shared.names_told().await;
        let stored = |body: Arc<Body<M, D>>| async move {
            body.store().await?;
            if body.state().error.is_some() { Err(ClientError::NotStored) } else { Ok(()) }
        };
        // Most files that are kept here have nothing to store, and whoever syncs a directory waits for this.
        let bodies = self.shared.bodies().into_iter().filter(|body| !body.state().is_settled());
        let stored = self.shared.with_all(bodies, stored).await;
        told.and(stored).and(self.shared.ledger.book().take_error())
    }

    /// Makes everything durable and lets go of all files: the end.
    ///
    /// # Errors
    /// The first that any file had.
    pub async fn shut_down(&self) -> Result<(), ClientError> {
        let outcome =
            self.shared.with_all(self.shared.bodies(), |body| async move { body.sync().await }).await;
        let told = let_go(&self.shared).await;
        outcome.and(told).and(self.shared.ledger.book().take_error())
    }
}
