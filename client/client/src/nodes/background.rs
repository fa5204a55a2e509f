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
use super::errors::{fenced, is_fenced, is_transient};
use super::open_inode::OpenInode;
use super::shared::Shared;
use crate::open::is_not_found_or_stale;
use crate::{ClientError, Devices, Metadata};

/// Interval of keep-alive requests with open files; a small part of the time after which the server
/// drops open files.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// The interval without open files, so that the session does not expire.
const IDLE_INTERVAL: Duration = Duration::from_secs(120);
/// Interval of periodic write-back of open files.
const WRITEBACK_INTERVAL: Duration = Duration::from_secs(5);
/// Delay before a closed file is flushed and closed at the server, so that an early open finds
/// everything cached.
const CLOSE_DELAY: Duration = Duration::from_secs(2);

/// Delay before storing a closed file is retried, and the number of tries. Each try waits as long
/// as a program would.
const CLOSE_RETRY_DELAY: Duration = Duration::from_secs(10);
const CLOSE_TRIES_MAX: u32 = 10;

/// Starts the background tasks.
pub(super) fn start<M: Metadata, D: Devices>(shared: &Arc<Shared<M, D>>) {
    let weak = Arc::downgrade(shared);
    shared.runtime.spawn(keep_alive(weak.clone()));
    shared.runtime.spawn(super::leases::recall_task(weak.clone()));
    shared.runtime.spawn(super::name_writeback::writeback_task(weak.clone()));
    shared.runtime.spawn(periodic_writeback(weak));
}

async fn keep_alive<M: Metadata, D: Devices>(weak: Weak<Shared<M, D>>) {
    let mut silent = Duration::ZERO;
    loop {
        sleep(KEEP_ALIVE_INTERVAL).await;
        let Some(shared) = weak.upgrade() else { return };
        let open_inodes = shared.open_inodes();
        // The server also counts files that were closed lately or are cached by a lease.
        let known = open_inodes.iter().filter(|open_inode| open_inode.is_open_at_server());
        let known: Vec<InodeId> = known.map(|open_inode| open_inode.node.inode).collect();
        let open: Vec<_> = open_inodes.into_iter().filter(|open_inode| open_inode.open_count() > 0).collect();
        silent += KEEP_ALIVE_INTERVAL;
        if open.is_empty() && silent < IDLE_INTERVAL {
            continue;
        }
        silent = Duration::ZERO;
        // The server counts only files whose creation it knows.
        if let Err(error) = shared.sync_names().await {
            tracing::debug!(%error, "keep-alive failed; retrying");
            continue;
        }
        match shared.core.metadata.call(Request::KeepNodes { client_id: shared.client_id }).await {
            Ok(Response::Kept { held: at_server, .. })
                if (at_server as usize)
                    < known.iter().filter(|id| is_open_at_server(&shared, **id)).count() =>
            {
                // The server restarted or dropped the open files of this client.
                for open_inode in open {
                    reopen(&shared, &open_inode).await;
                }
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "keep-alive failed; retrying"),
        }
    }
}

fn is_open_at_server<M: Metadata, D: Devices>(shared: &Shared<M, D>, inode: InodeId) -> bool {
    shared.open_inode(inode).is_some_and(|open_inode| open_inode.is_open_at_server())
}

/// Opens a file again at the server. While truncated bytes are being cleared, no write credentials
/// are given; then it is opened for reading only.
pub(super) async fn reopen<M: Metadata, D: Devices>(
    shared: &Arc<Shared<M, D>>,
    open_inode: &OpenInode<M, D>,
) {
    let _guard = open_inode.open_lock.read().await;
    if open_inode.open_count() == 0 {
        return;
    }
    let access = open_inode.state().open.access();
    if let Err(error) = shared.sync_names_of(open_inode.node.inode).await {
        tracing::warn!(inode = open_inode.node.inode.0, %error, "could not reopen a file at the server");
        return;
    }
    let reopened = match shared.core.metadata.call(shared.open_request(open_inode.node, access, true)).await {
        Err(error) if is_fenced(&error) => {
            open_inode.discard();
            shared.open_node(open_inode.node, Access::Read, true).await.map(drop)
        }
        Err(error) if is_transient(&error) && access != Access::Read => {
            shared.open_node(open_inode.node, Access::Read, true).await.map(drop)
        }
        outcome => outcome.map(|answer| shared.record_open_lease(open_inode.node, &answer)),
    };
    open_inode.mark_layout_stale();
    let reopened = match reopened {
        Ok(()) => reclaim_locks(shared, open_inode.node).await,
        Err(error) => Err(error),
    };
    if let Err(error) = reopened {
        tracing::warn!(inode = open_inode.node.inode.0, %error, "could not reopen a file at the server");
    }
}

/// Reclaims the locks of a file from a server that restarted, or that dropped them.
///
/// # Errors
/// `Refused` with `Fenced` if a lock is lost: then all unsaved bytes of the file were discarded.
pub(super) async fn reclaim_locks<M: Metadata, D: Devices>(
    shared: &Shared<M, D>,
    node: Node,
) -> Result<(), ClientError> {
    let Some(open_inode) = shared.open_inode(node.inode) else { return Ok(()) };
    let _guard = open_inode.lock_requests.lock().await;
    let locks = shared.locks.lock().of(node.inode);
    for lock in locks {
        match shared.lock_node(node, lock, false, true).await {
            Ok(None) => {}
            Err(error) if is_transient(&error) => return Err(error),
            outcome => {
                let error = outcome.err().map(tracing::field::display);
                tracing::warn!(
                    inode = node.inode.0,
                    error,
                    "could not reclaim a lock; unflushed writes of the file are discarded"
                );
                open_inode.discard();
                return Err(fenced());
            }
        }
    }
    Ok(())
}

async fn periodic_writeback<M: Metadata, D: Devices>(weak: Weak<Shared<M, D>>) {
    loop {
        sleep(WRITEBACK_INTERVAL).await;
        let Some(shared) = weak.upgrade() else { return };
        for open_inode in shared.open_inodes() {
            {
                let mut state = open_inode.state();
                if state.buffer.changed_ns.is_none() || core::mem::replace(&mut state.tasks.sending, true) {
                    continue;
                }
            }
            // A file that waits for its device must not delay the others.
            shared.runtime.spawn(async move {
                let upto = open_inode.dispatch_all();
                open_inode.wait_in_flight().await;
                if let Err(error) = open_inode.report_size(upto).await {
                    open_inode.record_error(error);
                }
                open_inode.state().tasks.sending = false;
            });
        }
    }
}

/// Stores a closed file after [`CLOSE_DELAY`], and closes it at the server if no lease keeps it.
pub(super) fn delayed_release<M: Metadata, D: Devices>(open_inode: &Arc<OpenInode<M, D>>) {
    if open_inode.shared.close_unwritten(open_inode) {
        return;
    }
    let open_inode = open_inode.clone();
    open_inode.dispatch_all();
    open_inode.shared.runtime.clone().spawn(async move {
        sleep(CLOSE_DELAY).await;
        if store_closed(&open_inode).await && !open_inode.shared.keep_cached(&open_inode) {
            open_inode.shared.drop_lease(open_inode.node.inode);
            close(&open_inode).await;
            // Attributes from its creation are older.
            open_inode.shared.dentries.with(|table| table.invalidate(open_inode.node.inode));
        }
        let (shared, inode) = (open_inode.shared.clone(), open_inode.node.inode);
        drop(open_inode);
        shared.evict_if_unused(inode);
    });
}

/// Stores a closed file, or records the error after the last try. Returns false if it was opened
/// again or closed meanwhile.
async fn store_closed<M: Metadata, D: Devices>(open_inode: &Arc<OpenInode<M, D>>) -> bool {
    for tries in 1.. {
        if open_inode.open_count() > 0 || open_inode.state().open.released {
            return false;
        }
        let stored = open_inode.store().await;
        let retries =
            |error: &ClientError| is_transient(error) || matches!(error, ClientError::NameChangesUnsent);
        let again = stored.as_ref().is_err_and(|error| retries(error) && tries < CLOSE_TRIES_MAX);
        // A concurrent fsync tries by itself. Errors of a removed file do not matter.
        if let Err(error) = stored
            && !again
            && !is_not_found_or_stale(&error)
        {
            open_inode.record_error(error);
        }
        let unreported = {
            let mut state = open_inode.state();
            // An open since then reports the error itself.
            if open_inode.open_count() == 0 { state.error.take() } else { None }
        };
        if let Some(error) = unreported {
            // No program has the file open, so fsync of a directory reports it.
            open_inode.shared.name_queue.state().record_error(error);
        }
        if !again {
            break;
        }
        // The bytes stay in memory, since the device may restart without them.
        sleep(CLOSE_RETRY_DELAY).await;
    }
    true
}

pub(super) async fn close<M: Metadata, D: Devices>(open_inode: &OpenInode<M, D>) {
    let _guard = open_inode.open_lock.write().await;
    if open_inode.open_count() > 0 {
        return;
    }
    let request = Request::CloseNode { node: open_inode.node, client_id: open_inode.shared.client_id };
    if let Err(error) = open_inode.shared.flush_dependencies_of(&request).await {
        tracing::debug!(%error, "could not close a file; the server does so later");
        return;
    }
    match open_inode.shared.core.metadata.call(request).await {
        Ok(_) => open_inode.state().open.released = true,
        Err(error) => tracing::debug!(%error, "could not close a file; the server does so later"),
    }
}

/// Ends all state of this client at the server.
///
/// # Errors
/// `NameChangesUnsent` if directory changes could not be written back.
pub(super) async fn end_client<M: Metadata, D: Devices>(
    shared: &Arc<Shared<M, D>>,
) -> Result<(), ClientError> {
    let synced = shared.sync_names().await;
    if let Err(error) = &synced {
        tracing::warn!(%error, "directory changes could not be written back");
    }
    shared.release_all_dir_leases().await;
    shared.leases.stop();
    let request = Request::EndClient { client_id: shared.client_id };
    match shared.core.metadata.call(request).await {
        // The server has closed all files of this client.
        Ok(_) => {
            shared
                .open_inodes()
                .iter()
                .filter(|open_inode| open_inode.open_count() == 0)
                .for_each(|open_inode| open_inode.state().open.released = true);
        }
        Err(error) => {
            tracing::debug!(%error, "could not end the client's state; the metadata server lets it expire");
        }
    }
    shared.drop_leases();
    synced
}

impl<M: Metadata, D: Devices> Nodes<M, D> {
    /// Returns when all writes and directory changes of this file system are durable.
    ///
    /// # Errors
    /// The first error of any file; `NotStored` for an earlier error, which the file itself will
    /// report too.
    pub async fn sync_all(&self) -> Result<(), ClientError> {
        let synced = self.shared.sync_names().await;
        let stored = |open_inode: Arc<OpenInode<M, D>>| async move {
            open_inode.store().await?;
            if open_inode.state().error.is_some() { Err(ClientError::NotStored) } else { Ok(()) }
        };
        // Most cached files have nothing to store; skipping them keeps fsync of a directory fast.
        let open_inodes =
            self.shared.open_inodes().into_iter().filter(|open_inode| !open_inode.state().is_settled());
        let stored = self.shared.for_each_inode(open_inodes, stored).await;
        synced.and(stored).and(self.shared.name_queue.state().take_error())
    }

    /// Makes everything durable and closes all files.
    ///
    /// # Errors
    /// The first error of any file.
    pub async fn shut_down(&self) -> Result<(), ClientError> {
        let outcome = self
            .shared
            .for_each_inode(self.shared.open_inodes(), |open_inode| async move { open_inode.sync().await })
            .await;
        let ended = end_client(&self.shared).await;
        outcome.and(ended).and(self.shared.name_queue.state().take_error())
    }
}
