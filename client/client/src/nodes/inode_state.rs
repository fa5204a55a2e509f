//! State of one open inode: cached attributes, layout, written bytes, opens.
//!
//! Does: applies answers of the metadata server and local changes to all of these together.
//! Does not: send requests or commands.
//! Contract: bytes whose size was reported to the server belong to the file there, and are dropped
//! when another client truncates it. Bytes whose size was not reported count as written after such
//! a truncation.

use core::ops::Range;

use sealstone_mds_protocol::{Access, DirLeaseId, Stat};

use super::cached_attrs::CachedAttrs;
use super::layout_state::LayoutState;
use super::readahead::ReadAhead;
use super::write_buffer::{ResendScope, WriteBuffer, WritePosition};
use crate::ClientError;
use crate::budget::MemoryPermit;
use crate::buffers::Buffers;

/// How the inode is open on this client and at the server.
#[derive(Default)]
pub(super) struct OpenState {
    /// Whether it is open for reading here; a write-only open gets no right to read.
    pub(super) reads: bool,
    /// Whether it is open for writing here, whatever the current objects permit.
    pub(super) writes: bool,
    /// Whether locks of programs were lost: writes fail until all of them have closed the file.
    pub(super) lock_lost: bool,
    /// Whether the server knows that this client has closed it.
    pub(super) released: bool,
    /// Whether this client created the file and opened it with the creation.
    pub(super) created_locally: bool,
    /// The directory delegation under which the file was created, while it has not left that
    /// directory.
    pub(super) created_under: Option<DirLeaseId>,
}

impl OpenState {
    /// Returns the access with which the file is opened again.
    pub(super) fn access(&self) -> Access {
        match (self.writes, self.reads) {
            (true, true) => Access::Update,
            (true, false) => Access::Write,
            (false, _) => Access::Read,
        }
    }

    /// Whether an open with this access is covered by the opens so far.
    pub(super) fn covers(&self, access: Access) -> bool {
        (access == Access::Write || self.reads) && (access == Access::Read || self.writes)
    }
}

/// Background tasks of an inode; at most one of each kind runs.
#[derive(Default)]
pub(super) struct InodeTasks {
    /// Whether a task is flushing because many bytes are not flushed.
    pub(super) flushing: bool,
    /// Whether a task is sending dirty bytes.
    pub(super) sending: bool,
    /// Whether a task is flushing this inode to free memory.
    pub(super) freeing_memory: bool,
}

pub(super) struct InodeState<M, D> {
    pub(super) attrs: CachedAttrs,
    pub(super) layout: LayoutState<M, D>,
    pub(super) buffer: WriteBuffer,
    pub(super) readahead: ReadAhead,
    pub(super) open: OpenState,
    pub(super) tasks: InodeTasks,
    /// The write-back error to report at the next fsync or close.
    pub(super) error: Option<ClientError>,
}

impl<M, D> InodeState<M, D> {
    /// Creates the state of an inode without data.
    pub(super) fn new(unit: usize, reserved: MemoryPermit, buffers: Buffers) -> Self {
        Self {
            attrs: CachedAttrs::default(),
            layout: LayoutState::default(),
            buffer: WriteBuffer::new(unit, reserved, buffers),
            readahead: ReadAhead::new(unit as u64),
            open: OpenState::default(),
            tasks: InodeTasks::default(),
            error: None,
        }
    }

    /// Whether the file was created here and not written since, so that no other copy of its state
    /// exists.
    pub(super) fn is_unwritten(&self) -> bool {
        let empty =
            self.attrs.stat.as_ref().is_some_and(|stat| stat.width == 0 && stat.size == 0 && stat.links == 1);
        let untouched = self.layout.objects.is_none() && self.is_settled() && !self.open.lock_lost;
        self.open.created_locally && empty && untouched && !self.open.released
    }

    /// Whether there is nothing to send or report, and no pending error.
    pub(super) fn is_settled(&self) -> bool {
        self.buffer.is_stored() && self.error.is_none() && self.buffer.resend == ResendScope::Nothing
    }

    /// Whether the file has objects that are not known here.
    pub(super) fn lacks_objects(&self) -> bool {
        self.layout.objects.is_none() && self.attrs.stat.as_ref().is_some_and(|stat| stat.width > 0)
    }

    /// Records that a range was written.
    pub(super) fn record_write(&mut self, range: Range<u64>, now_ns: i64) {
        self.readahead.invalidate(range.clone());
        self.attrs.size = self.attrs.size.max(range.end);
        self.buffer.unreported_end = self.buffer.unreported_end.max(range.end);
        self.layout.sparse = true;
        self.buffer.record_change(now_ns);
    }

    /// Records attributes from the server; returns false if newer ones are known. A new version
    /// drops the read-ahead blocks.
    pub(super) fn update_attrs(&mut self, stat: &Stat) -> bool {
        if self.attrs.is_newer_than(stat) {
            return false;
        }
        let is_new = self.attrs.version() != Some(stat.version);
        if is_new {
            self.readahead.invalidate(0..u64::MAX);
            // The server grows a file only after the truncated bytes are cleared.
            if stat.size > self.layout.clean_until {
                self.layout.clean_until = u64::MAX;
            }
        }
        // Objects of a file that is open for writing do not move; those of a file that is only read
        // may have been migrated.
        if stat.generation != self.layout.generation || (is_new && !self.open.writes) {
            self.layout.mark_stale();
        }
        self.attrs.size = stat.size.max(self.buffer.unreported_end);
        self.attrs.stat = Some(stat.clone());
        true
    }

    /// Records the attributes that the server returned for a change of this client.
    pub(super) fn update_own_attrs(&mut self, stat: &Stat) {
        self.attrs.note_own_change(stat.version);
        self.update_attrs(stat);
    }

    /// Follows a new generation or a new layout (`other`). A truncation drops bytes that were
    /// reported; the others are written again. A new layout without a truncation is a copy.
    pub(super) fn follow_layout(&mut self, stat: &Stat, other: bool) {
        self.layout.received += 1;
        if stat.generation == self.layout.generation {
            if other {
                self.buffer.on_migrated();
            }
            return;
        }
        self.layout.generation = stat.generation;
        self.buffer.on_remote_truncation(if other { 0 } else { stat.size });
        self.readahead.invalidate(0..u64::MAX);
    }

    /// Records that the server knows everything up to a position.
    pub(super) fn on_size_reported(&mut self, upto: &WritePosition) {
        let dropped = self.buffer.on_size_reported(upto);
        self.invalidate(dropped);
    }

    /// A piece could not be stored and was dropped. The file ends before it, since a hole of zeros
    /// there would look like data.
    pub(super) fn on_write_failed(&mut self, number: u64) {
        self.buffer.on_write_failed(number);
        let known = self.attrs.stat.as_ref().map_or(0, |stat| stat.size);
        self.attrs.size = self.attrs.size.min(known.max(self.buffer.unreported_end));
    }

    /// Drops durable bytes that cannot be reported; the writer gets an error.
    pub(super) fn drop_unreported(&mut self) {
        let dropped = self.buffer.drop_unreported();
        self.invalidate(dropped);
    }

    /// Records that a flush made these pieces durable.
    pub(super) fn mark_durable(&mut self, numbers: &[u64]) {
        let dropped = self.buffer.mark_durable(numbers);
        self.invalidate(dropped);
    }

    /// Drops the read-ahead blocks of pieces that left the buffer: the blocks lack these bytes, and
    /// were correct only while the pieces covered them.
    fn invalidate(&mut self, dropped: Vec<Range<u64>>) {
        dropped.into_iter().for_each(|range| self.readahead.invalidate(range));
    }

    /// Drops all bytes from `end` on: the file was truncated by this client.
    pub(super) fn truncate(&mut self, end: u64) {
        self.buffer.truncate(end);
        self.readahead.invalidate(0..u64::MAX);
    }

    /// Records a truncation that the server did for this client while no command was in flight.
    pub(super) fn on_truncated(&mut self, stat: &Stat) {
        self.truncate(stat.size);
        let other = stat.width == 0;
        // The generation grew by more than one: another client truncated it before and may have
        // written other objects since.
        let generation = self.layout.generation;
        if ![generation, generation.wrapping_add(1)].contains(&stat.generation) {
            self.layout.mark_stale();
        }
        self.follow_layout(stat, other);
        if other {
            // An empty file has no objects.
            self.layout.drop_objects();
            self.layout.all_created = false;
        }
        self.layout.writable = false;
        self.layout.sparse = true;
        // The server grows the file only after truncated bytes are cleared; this client may grow it
        // before that.
        self.layout.clean_until = stat.size;
        self.update_own_attrs(stat);
    }
}
