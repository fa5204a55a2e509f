//! Asynchronous close: the close of a small new file returns before its bytes are stored.
//!
//! Does: decides which files qualify, counts them, and delays operations that depend on their
//! bytes.
//! Does not: send bytes or report sizes; `open_inode` does.
//! Contract: a file qualifies if it is new, has one name, and is in the directory where it was
//! created under a delegation that has been valid since. Other clients reach it only through that
//! directory. Its delegation is returned after the files that were closed in it are stored, or
//! after [`WAIT_MAX`] if a device does not answer. The user must have ample free space, and no such
//! file may have failed lately. No program has the file open any more, so an error is reported by
//! fsync of a directory. At most 256 files and 16 MiB are in progress; further closes are
//! synchronous.
//! Truth: docs/adr/0051-asynchronous-close.md.

use core::time::Duration;

use sealstone_mds_protocol::{InodeId, LeaseKind, Name, Node, RenameMode, Request, Response};
use tokio::time::timeout;

use super::Nodes;
use super::async_close_table::{AsyncCloseGuard, PendingClose};
use super::dentry_table::Dentry;
use super::file::File;
use super::lease_table::LeaseState;
use super::open_inode::OpenInode;
use super::shared::Shared;
use super::write_buffer::ResendScope;
use crate::open::is_not_found_or_stale;
use crate::{ClientError, Devices, Metadata};

/// Maximum bytes of one file.
const FILE_MAX: u64 = 1 << 20;
/// How long the return of a delegation waits for files closed in the directory; shorter than the
/// time after which it is revoked.
const WAIT_MAX: Duration = Duration::from_secs(3);

impl<M: Metadata, D: Devices> Shared<M, D> {
    async fn request_free_space(&self) {
        let free_space = match self.core.metadata.call(Request::StatFs { node: None }).await {
            Ok(Response::FileSystem { total, used, .. }) => Some(total.saturating_sub(used)),
            _ => None,
        };
        self.async_closes.record_free_space(free_space);
    }

    /// Waits, for [`WAIT_MAX`] at most, until files that were closed in a directory are stored;
    /// called before its lease is returned.
    pub(super) async fn flush_directory(&self, inode: InodeId) {
        let _ = timeout(WAIT_MAX, self.async_closes.wait_directory_ended(inode)).await;
    }
}

impl<M: Metadata, D: Devices> OpenInode<M, D> {
    /// Starts an asynchronous close of this file, if it qualifies.
    fn begin_async_close(&self) -> Option<AsyncCloseGuard> {
        let Self { shared, node, .. } = self;
        let (guard, requests_space) = {
            let state = self.state();
            let created_under = state.open.created_under?;
            let one_name = state.attrs.stat.as_ref().is_some_and(|stat| stat.links == 1);
            let has_no_error =
                state.error.is_none() && !state.open.lock_lost && state.buffer.resend == ResendScope::Nothing;
            let qualifies =
                one_name && has_no_error && state.buffer.changed_ns.is_some() && state.attrs.size <= FILE_MAX;
            if !qualifies
                || shared.lease_state(node.inode, LeaseKind::Write, state.attrs.lease_seen)
                    != LeaseState::Valid
                || shared.locks.lock().has(node.inode)
            {
                return None;
            }
            // Counted under the lease lock, so that a return of the lease waits for it.
            shared.with_dir_lease([created_under.inode; 2], |[now, _]| {
                let closed = PendingClose {
                    inode: node.inode,
                    directory: created_under.inode,
                    bytes: state.attrs.size,
                };
                (now == created_under).then(|| shared.async_closes.begin(closed))
            })?
        };
        if requests_space {
            let shared = shared.clone();
            shared.runtime.clone().spawn(async move { shared.request_free_space().await });
        }
        guard
    }
}

impl<M: Metadata, D: Devices> File<M, D> {
    /// Whether the close may return now; then [`File::finish_async_close`] has to be called.
    #[must_use]
    pub fn begin_async_close(&self) -> Option<AsyncCloseGuard> {
        self.open_inode().begin_async_close()
    }

    /// Does the work of [`File::flush`] after an asynchronous close; fsync reports errors.
    pub async fn finish_async_close(&self, guard: AsyncCloseGuard) {
        let open_inode = self.open_inode();
        let stored = open_inode.send_and_report().await;
        if stored.is_err() || open_inode.state().buffer.data_lost {
            open_inode.shared.async_closes.record_failure(open_inode.node.inode);
        }
        if let Err(error) = stored {
            open_inode.record_error(error);
        }
        drop(guard);
    }
}

impl<M: Metadata, D: Devices> Nodes<M, D> {
    /// Waits before a rename for the bytes of an asynchronously closed file, if it replaces another
    /// file or moves to another directory.
    ///
    /// # Errors
    /// `NotStored`: the file would replace another one, but its own bytes could not be stored.
    pub(super) async fn flush_before_rename(
        &self,
        (from_directory, from): (Node, &Name),
        (to_directory, to): (Node, &Name),
        mode: RenameMode,
    ) -> Result<(), ClientError> {
        let target = self.cached_dentry(to_directory.inode, to);
        if target == Dentry::Absent && from_directory == to_directory {
            return Ok(());
        }
        let inode = match self.cached_dentry(from_directory.inode, from) {
            Dentry::Present(node, _) => node.inode,
            Dentry::Absent => return Ok(()),
            Dentry::NotCached => {
                self.shared.async_closes.wait_directory_ended(from_directory.inode).await;
                if self.shared.async_closes.has_no_failures() {
                    return Ok(());
                }
                match self.lookup(from_directory, from).await {
                    Ok(stat) => stat.inode,
                    Err(error) if is_not_found_or_stale(&error) => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        };
        if let Some(open_inode) = self.shared.open_inode(inode) {
            if from_directory != to_directory {
                open_inode.state().open.created_under = None;
            }
            self.shared.async_closes.wait_file_ended(inode).await;
        }
        if mode == RenameMode::NoReplace || !self.shared.async_closes.has_failed(inode) {
            return Ok(());
        }
        match target {
            Dentry::Absent => Ok(()),
            Dentry::Present(..) => Err(ClientError::NotStored),
            Dentry::NotCached => match self.lookup(to_directory, to).await {
                Ok(_) => Err(ClientError::NotStored),
                Err(error) if is_not_found_or_stale(&error) => Ok(()),
                Err(error) => Err(error),
            },
        }
    }

    /// Makes later closes of a file synchronous: its owner changes, whose free space is not known,
    /// or it moves to another directory.
    pub(super) fn disable_async_close(&self, inode: InodeId) {
        if let Some(open_inode) = self.shared.open_inode(inode) {
            open_inode.state().open.created_under = None;
        }
    }

    /// Makes later closes of a file synchronous before it gets a second name, and waits for its
    /// bytes.
    pub(super) async fn flush_before_link(&self, inode: InodeId) {
        if let Some(open_inode) = self.shared.open_inode(inode) {
            open_inode.state().open.created_under = None;
            self.shared.async_closes.wait_file_ended(inode).await;
        }
    }
}
