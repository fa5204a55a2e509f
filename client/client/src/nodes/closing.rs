//! Asynchronous close: the close of a small new file returns before its bytes are stored.
//!
//! Does: decides which files qualify, counts them, and delays operations that depend on their
//! bytes.
//! Does not: send bytes or report sizes; `body` does.
//! Contract: a file qualifies if it is new, has one name, and is in the directory where it was
//! created under a delegation that has been valid since. Other clients reach it only through that
//! directory. Its delegation is returned after the files that were closed in it are stored, or
//! after [`WAIT_MAX`] if a device does not answer. The user must have ample free space, and no such
//! file may have failed lately. No program has the file open any more, so an error is reported by
//! fsync of a directory. At most [`FILES_MAX`] files and [`BYTES_MAX`] bytes are in progress;
//! further closes are synchronous.
//! Truth: docs/adr/0051-asynchronous-close.md.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use sealstone_mds_protocol::{InodeId, LeaseKind, Name, Node, RenameMode, Request, Response};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::Nodes;
use super::body::Body;
use super::file::File;
use super::leases::Standing;
use super::names::Known;
use super::shared::{Shared, lock};
use crate::open::is_gone;
use crate::{ClientError, Devices, Metadata};

/// Maximum bytes of one file.
const FILE_MAX: u64 = 1 << 20;
/// Maximum bytes of all files in progress.
const BYTES_MAX: u64 = 16 << 20;
/// Maximum files in progress.
const FILES_MAX: usize = 256;
/// Required free space, on the devices and in the user's quota: as much as sixteen mounts may have
/// in progress.
const ROOM_MIN: u64 = 16 * BYTES_MAX;
/// How long the last answer about free space is used.
const ROOM_FOR: Duration = Duration::from_secs(5);
/// Age of that answer after which it is requested again.
const ROOM_AGE: Duration = Duration::from_secs(2);
/// How long closes are synchronous after a file could not be stored.
const CAREFUL_FOR: Duration = Duration::from_secs(60);
/// Maximum remembered files that could not be stored and may not replace another one; above it the
/// one with the lowest inode number is forgotten.
const FAILED_MAX: usize = 4_096;
/// How long the return of a delegation waits for files closed in the directory; shorter than the
/// time after which it is revoked.
const WAIT_MAX: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
struct Book {
    /// In progress, by order of closing.
    files: BTreeMap<u64, Closed>,
    next: u64,
    bytes: u64,
    /// Free bytes, and when the answer arrived.
    room: Option<(Instant, u64)>,
    asking: bool,
    careful_until: Option<Instant>,
    /// Files that could not be stored, where a program may not know of the error.
    failed: BTreeSet<InodeId>,
}

/// The asynchronous closes of a file system.
#[derive(Debug, Default)]
pub(super) struct Closings {
    book: Mutex<Book>,
    moved: Notify,
}

/// A close in progress.
#[derive(Clone, Copy, Debug)]
struct Closed {
    inode: InodeId,
    /// The directory in which the file was created.
    directory: InodeId,
    bytes: u64,
}

/// A file that was closed and is being stored. It counts against the limits until it is dropped.
#[derive(Debug)]
pub struct Closing {
    all: Arc<Closings>,
    number: u64,
}

impl Drop for Closing {
    fn drop(&mut self) {
        let mut book = lock(&self.all.book);
        if let Some(closed) = book.files.remove(&self.number) {
            book.bytes -= closed.bytes;
        }
        drop(book);
        self.all.moved.notify_waiters();
    }
}

impl Closings {
    /// Starts an asynchronous close, if limits and free space permit it. The flag says whether to
    /// request the free space again.
    fn begin(self: &Arc<Self>, closed: Closed) -> (Option<Closing>, bool) {
        let book = &mut *lock(&self.book);
        let now = Instant::now();
        let age = book.room.map(|(told, _)| now.saturating_duration_since(told));
        let asks = age.is_none_or(|age| age >= ROOM_AGE) && !core::mem::replace(&mut book.asking, true);
        let room = book.room.filter(|_| age.is_some_and(|age| age < ROOM_FOR)).map_or(0, |(_, room)| room);
        let fits = book.files.len() < FILES_MAX && book.bytes + closed.bytes <= BYTES_MAX && room >= ROOM_MIN;
        if !fits || book.careful_until.is_some_and(|until| now < until) {
            return (None, asks);
        }
        let number = book.next;
        (book.next, book.bytes) = (number + 1, book.bytes + closed.bytes);
        book.files.insert(number, closed);
        (Some(Closing { all: self.clone(), number }), asks)
    }

    fn told_room(&self, room: Option<u64>) {
        let mut book = lock(&self.book);
        book.asking = false;
        book.room = room.map(|room| (Instant::now(), room));
    }

    /// Records that a file could not be stored.
    fn failed(&self, inode: InodeId) {
        let book = &mut *lock(&self.book);
        book.careful_until = Some(Instant::now() + CAREFUL_FOR);
        book.failed.insert(inode);
        if book.failed.len() > FAILED_MAX {
            book.failed.pop_first();
        }
    }

    /// Clears the failed mark: the data was stored later, or the file was truncated or removed.
    pub(super) fn forgive(&self, inode: InodeId) {
        lock(&self.book).failed.remove(&inode);
    }

    fn has_failed(&self, inode: InodeId) -> bool {
        lock(&self.book).failed.contains(&inode)
    }

    /// Whether no file is marked as failed.
    fn is_well(&self) -> bool {
        lock(&self.book).failed.is_empty()
    }

    /// Waits until the matching closes that are in progress now have ended.
    async fn ended(&self, wanted: impl Fn(&Closed) -> bool) {
        let upto = lock(&self.book).next;
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if !lock(&self.book).files.range(..upto).any(|(_, closed)| wanted(closed)) {
                return;
            }
            moved.await;
        }
    }

    async fn file_ended(&self, inode: InodeId) {
        self.ended(|closed| closed.inode == inode).await;
    }

    async fn directory_ended(&self, directory: InodeId) {
        self.ended(|closed| closed.directory == directory).await;
    }
}

impl<M: Metadata, D: Devices> Shared<M, D> {
    async fn ask_for_room(&self) {
        let room = match self.core.metadata.call(Request::StatFs { node: None }).await {
            Ok(Response::FileSystem { total, used, .. }) => Some(total.saturating_sub(used)),
            _ => None,
        };
        self.closings.told_room(room);
    }

    /// Waits, for [`WAIT_MAX`] at most, until files that were closed in a directory are stored;
    /// called before its lease is returned.
    pub(super) async fn stored_in_it(&self, inode: InodeId) {
        let _ = timeout(WAIT_MAX, self.closings.directory_ended(inode)).await;
    }
}

impl<M: Metadata, D: Devices> Body<M, D> {
    /// Starts an asynchronous close of this file, if it qualifies.
    fn closes_soon(&self) -> Option<Closing> {
        let Self { shared, node, .. } = self;
        let (closing, asks) = {
            let state = self.state();
            let made_in = state.made_in?;
            let one_name = state.stat.as_ref().is_some_and(|stat| stat.links == 1);
            let well = state.error.is_none() && !state.lock_lost && !state.lost && !state.overtaken;
            let wanted = one_name && well && state.changed_ns.is_some() && state.size <= FILE_MAX;
            if !wanted
                || shared.standing(node.inode, LeaseKind::Write, state.seen_under) != Standing::Held
                || lock(&shared.locks).has(node.inode)
            {
                return None;
            }
            // Counted under the lease lock, so that a return of the lease waits for it.
            shared.while_led([made_in.inode; 2], |[now, _]| {
                let closed = Closed { inode: node.inode, directory: made_in.inode, bytes: state.size };
                (now == made_in).then(|| shared.closings.begin(closed))
            })?
        };
        if asks {
            let shared = shared.clone();
            shared.runtime.clone().spawn(async move { shared.ask_for_room().await });
        }
        closing
    }
}

impl<M: Metadata, D: Devices> File<M, D> {
    /// Whether the close may return now; then [`File::store_soon`] has to be called.
    #[must_use]
    pub fn closes_soon(&self) -> Option<Closing> {
        self.body().closes_soon()
    }

    /// Does the work of [`File::flush`] after an asynchronous close; fsync reports errors.
    pub async fn store_soon(&self, closing: Closing) {
        let body = self.body();
        let handed_over = body.hand_over().await;
        if handed_over.is_err() || body.state().missing {
            body.shared.closings.failed(body.node.inode);
        }
        if let Err(error) = handed_over {
            body.fail(error);
        }
        drop(closing);
    }
}

impl<M: Metadata, D: Devices> Nodes<M, D> {
    /// Waits before a rename for the bytes of an asynchronously closed file, if it replaces another
    /// file or moves to another directory.
    ///
    /// # Errors
    /// `NotStored`: the file would replace another one, but its own bytes could not be stored.
    pub(super) async fn moves(
        &self,
        (from_directory, from): (Node, &Name),
        (to_directory, to): (Node, &Name),
        mode: RenameMode,
    ) -> Result<(), ClientError> {
        let there = self.known(to_directory.inode, to);
        if there == Known::Nothing && from_directory == to_directory {
            return Ok(());
        }
        let inode = match self.known(from_directory.inode, from) {
            Known::There(node, _) => node.inode,
            Known::Nothing => return Ok(()),
            Known::Unknown => {
                self.shared.closings.directory_ended(from_directory.inode).await;
                if self.shared.closings.is_well() {
                    return Ok(());
                }
                match self.lookup(from_directory, from).await {
                    Ok(stat) => stat.inode,
                    Err(error) if is_gone(&error) => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        };
        if let Some(body) = self.shared.body(inode) {
            if from_directory != to_directory {
                body.state().made_in = None;
            }
            self.shared.closings.file_ended(inode).await;
        }
        if mode == RenameMode::NoReplace || !self.shared.closings.has_failed(inode) {
            return Ok(());
        }
        match there {
            Known::Nothing => Ok(()),
            Known::There(..) => Err(ClientError::NotStored),
            Known::Unknown => match self.lookup(to_directory, to).await {
                Ok(_) => Err(ClientError::NotStored),
                Err(error) if is_gone(&error) => Ok(()),
                Err(error) => Err(error),
            },
        }
    }

    /// Makes later closes of a file synchronous: its owner changes, whose free space is not known,
    /// or it moves to another directory.
    pub(super) fn is_given_away(&self, inode: InodeId) {
        if let Some(body) = self.shared.body(inode) {
            body.state().made_in = None;
        }
    }

    /// Makes later closes of a file synchronous before it gets a second name, and waits for its
    /// bytes.
    pub(super) async fn is_linked(&self, inode: InodeId) {
        if let Some(body) = self.shared.body(inode) {
            body.state().made_in = None;
            self.shared.closings.file_ended(inode).await;
        }
    }
}
