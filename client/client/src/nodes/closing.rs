//! Files that programs close before what was written to them is stored.
//!
//! Does: say which files may be, count them, have those wait who would notice. Does not: send bytes or tell the server; `body` does.
//! Contract: only a new file of one name, in the directory that it was made in, which has been led without a break since: nobody else
//! comes to it, or hears of it, but by that directory, and its lease is given back when what was closed in it before is stored, or after
//! [`WAIT_MAX`] if a device is not there. Only where there is room by far for the user, and nothing went wrong lately: what could not be
//! stored is told to whoever syncs, for nobody has the file open any more. [`FILES_MAX`] files and [`BYTES_MAX`] bytes at most; who closes more waits.
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

/// Bytes of one file at most.
const FILE_MAX: u64 = 1 << 20;
/// Bytes of all of them at most.
const BYTES_MAX: u64 = 16 << 20;
/// Files at most.
const FILES_MAX: usize = 256;
/// Room that there has to be, on the devices and within the limits of the user: as much as can be under way in sixteen mounts.
const ROOM_MIN: u64 = 16 * BYTES_MAX;
/// How long it is believed that there is room.
const ROOM_FOR: Duration = Duration::from_secs(5);
/// It is asked anew after this.
const ROOM_AGE: Duration = Duration::from_secs(2);
/// After something that could not be stored.
const CAREFUL_FOR: Duration = Duration::from_secs(60);
/// Files that could not be stored, and are to take the place of nothing, at most; then the oldest of them may.
const FAILED_MAX: usize = 4_096;
/// Whoever gives a directory back waits so long for what was closed in it: less than others wait for the lease.
const WAIT_MAX: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
struct Book {
    /// Under way, by order of closing.
    files: BTreeMap<u64, Closed>,
    next: u64,
    bytes: u64,
    /// How much there was, and when that was told.
    room: Option<(Instant, u64)>,
    asking: bool,
    careful_until: Option<Instant>,
    /// Not as their programs closed them: those are not known to have heard of it.
    failed: BTreeSet<InodeId>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Closings {
    book: Mutex<Book>,
    moved: Notify,
}

/// What was closed, and where.
#[derive(Clone, Copy, Debug)]
struct Closed {
    inode: InodeId,
    /// The directory that it was made in.
    directory: InodeId,
    bytes: u64,
}

/// A file that was closed, and is being stored. Counted until it is dropped.
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
    /// One more, if it may be. With whether it is time to ask how much room there is.
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

    /// This could not be stored.
    fn failed(&self, inode: InodeId) {
        let book = &mut *lock(&self.book);
        book.careful_until = Some(Instant::now() + CAREFUL_FOR);
        book.failed.insert(inode);
        if book.failed.len() > FAILED_MAX {
            book.failed.pop_first();
        }
    }

    /// It was stored after all, or nothing of what was closed then is wanted any more.
    pub(super) fn forgive(&self, inode: InodeId) {
        lock(&self.book).failed.remove(&inode);
    }

    fn has_failed(&self, inode: InodeId) -> bool {
        lock(&self.book).failed.contains(&inode)
    }

    /// Did nothing fail that is still there?
    fn is_well(&self) -> bool {
        lock(&self.book).failed.is_empty()
    }

    /// Returns when those that were under way are stored.
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

    /// A lease is about to be given back: what was closed in this, if it is a directory, is stored, as far as devices are there.
    pub(super) async fn stored_in_it(&self, inode: InodeId) {
        let _ = timeout(WAIT_MAX, self.closings.directory_ended(inode)).await;
    }
}

impl<M: Metadata, D: Devices> Body<M, D> {
    /// May whoever closes it go on before it is stored?
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
            // Who wants the lease back finds it counted, or it is not begun.
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
    /// May whoever closes it go on now? Then [`File::store_soon`] does the rest.
    #[must_use]
    pub fn closes_soon(&self) -> Option<Closing> {
        self.body().closes_soon()
    }

    /// Does what [`File::flush`] does, for whoever closed it and went on: what goes wrong is told to whoever syncs.
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
    /// Something is about to get another name. What was closed here is stored before, if it takes the place of something else, or if
    /// others come to it there without asking for the directory that it was made in.
    ///
    /// # Errors
    /// `NotStored`: it was to take the place of something, and is not what was written.
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

    /// A file is about to be somebody else's, whose room is not known here; or is in another directory now.
    pub(super) fn is_given_away(&self, inode: InodeId) {
        if let Some(body) = self.shared.body(inode) {
            body.state().made_in = None;
        }
    }

    /// A file is about to get one name more: others may come to it by that.
    pub(super) async fn is_linked(&self, inode: InodeId) {
        if let Some(body) = self.shared.body(inode) {
            body.state().made_in = None;
            self.shared.closings.file_ended(inode).await;
        }
    }
}
