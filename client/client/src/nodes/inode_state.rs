//! State of one open inode: its size, dirty and in-flight bytes, and the objects that store them.
//!
//! Does: keeps written bytes, sent bytes and the last attributes from the metadata server
//! consistent with each other.
//! Does not: send requests or commands.
//! Contract: bytes whose size was reported to the server belong to the file there, and are dropped
//! when another client truncates it. Bytes whose size was not reported count as written after such
//! a truncation.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sealstone_mds_protocol::{Access, DirLeaseId, Stat};
use tokio::time::Instant;

use super::dirty::DirtyPieces;
use super::readahead::ReadAhead;
use super::shared::lock;
use crate::ClientError;
use crate::budget::MemoryPermit;
use crate::buffers::Buffers;
use crate::open::{DeviceEpoch, OpenObjects};

/// The objects of a file with the state of each.
pub(super) struct ObjectSet<M, D> {
    pub(super) open: Arc<OpenObjects<M, D>>,
    /// One entry for each object.
    pub(super) each: Vec<ObjectState>,
}

impl<M, D> Clone for ObjectSet<M, D> {
    fn clone(&self) -> Self {
        Self { open: self.open.clone(), each: self.each.clone() }
    }
}

/// State of one object.
#[derive(Clone)]
pub(super) struct ObjectState {
    /// Locked while the object is created; true when it exists.
    pub(super) created: Arc<tokio::sync::Mutex<bool>>,
    pub(super) flush_state: Arc<Mutex<ObjectFlushState>>,
}

impl ObjectState {
    /// Clears the flush state: no buffered write of this object could be lost by a restart of its
    /// device.
    pub(super) fn clear_flush_state(&self) {
        let mut flush_state = lock(&self.flush_state);
        (flush_state.has_unflushed, flush_state.unflushed_writes, flush_state.device_epoch) =
            (false, 0, None);
    }
}

#[derive(Default)]
pub(super) struct ObjectFlushState {
    /// Boot epoch of the device as of before the first unflushed command.
    pub(super) device_epoch: Option<DeviceEpoch>,
    /// Number of unflushed commands after the one that created the object.
    pub(super) unflushed_writes: u32,
    /// Whether there are unflushed commands.
    pub(super) has_unflushed: bool,
    /// Whether the object was flushed: a restart cannot lose it.
    pub(super) durable: bool,
}

pub(super) struct InodeState<M, D> {
    /// File size as programs on this client see it.
    pub(super) size: u64,
    /// The last attributes from the server.
    pub(super) stat: Option<Stat>,
    /// Generation (number of truncations) of the objects that are written.
    pub(super) generation: u32,
    /// Version of the content, if only this client has changed it since the open.
    pub(super) exclusive_since_version: Option<u64>,
    /// Time of the last local change of content that was not reported, in nanoseconds since 1970.
    pub(super) changed_ns: Option<i64>,
    /// Number of local changes of content.
    pub(super) changes: u64,
    /// End of the written bytes whose size was not reported; 0 if all are.
    pub(super) unreported_end: u64,
    pub(super) dirty: DirtyPieces,
    /// Memory reserved for dirty bytes.
    pub(super) reserved: MemoryPermit,
    /// Pieces that are sent or being sent, in order of dispatch.
    pub(super) in_flight: BTreeMap<u64, InFlightWrite>,
    pub(super) next: u64,
    pub(super) unflushed_bytes: usize,
    /// When a piece was last acknowledged.
    pub(super) progress: Option<Instant>,
    /// The write-back error to report at the next fsync or close.
    pub(super) error: Option<ClientError>,
    /// Whether written bytes were lost since the file was last truncated to zero.
    pub(super) data_lost: bool,
    /// Whether locks of programs were lost: writes fail until all of them have closed the file.
    pub(super) lock_lost: bool,
    /// Whether a device restarted and may have lost sent bytes.
    pub(super) device_restarted: bool,
    /// Whether the file was truncated or replaced remotely: bytes sent but not reported may be
    /// missing in its objects.
    pub(super) truncated_remotely: bool,
    pub(super) flushing: bool,
    /// Whether a task is sending dirty bytes.
    pub(super) sending: bool,
    /// Whether a task is flushing this inode to free memory.
    pub(super) freeing_memory: bool,
    pub(super) objects: Option<ObjectSet<M, D>>,
    /// Whether the credentials of `objects` permit writing.
    pub(super) writable: bool,
    /// Whether the layout may be stale: since it was fetched the file was truncated, or others
    /// wrote it, perhaps in other objects.
    pub(super) layout_stale: bool,
    /// Number of layouts received from the server.
    pub(super) layouts_received: u64,
    /// Whether it is open for reading here; a write-only open gets no right to read.
    pub(super) reads: bool,
    /// Whether it is open for writing here, whatever the current objects permit.
    pub(super) writes: bool,
    /// Whether the objects were allocated for this client, which then has to create all of them.
    pub(super) allocated_here: bool,
    /// Whether the server knows that all objects exist on their devices.
    pub(super) all_created: bool,
    /// From here on the objects may contain truncated bytes that are not cleared yet; these read as
    /// zeros.
    pub(super) clean_until: u64,
    /// Whether the file was written in place: then missing bytes at the end of an object are zeros.
    pub(super) sparse: bool,
    pub(super) readahead: ReadAhead,
    /// Number of the lease under which the attributes were received; 0 for none.
    pub(super) lease_seen: u64,
    /// Number of local attribute changes whose result is not known, and its value when the cached
    /// attributes were requested.
    pub(super) attr_epoch: u64,
    pub(super) attr_epoch_cached: u64,
    /// Whether rights were changed here since the open.
    pub(super) rights_changed: bool,
    /// No lease is requested before this time, since the server denied one.
    pub(super) no_lease_until: Option<Instant>,
    /// Whether the server knows that this client has closed it.
    pub(super) released: bool,
    /// Whether this client created the file and opened it with the creation.
    pub(super) created_locally: bool,
    /// The directory delegation under which the file was created, while it has not left that
    /// directory.
    pub(super) created_under: Option<DirLeaseId>,
}

#[derive(Clone)]
pub(super) struct InFlightWrite {
    pub(super) offset: u64,
    pub(super) data: Bytes,
    /// Whether a command with these bytes was sent.
    pub(super) sent: bool,
    pub(super) acknowledged: bool,
    /// Whether a size that includes these bytes was reported to the server.
    pub(super) size_reported: bool,
    /// Whether a flush made these bytes durable.
    pub(super) durable: bool,
}

impl InFlightWrite {
    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }
}

/// A position in the sequence of local writes.
#[derive(Clone, Copy)]
pub(super) struct WritePosition {
    /// Number of changes at that time; none if some of them are on no device.
    pub(super) changes: Option<u64>,
    /// Number of the first piece after the position.
    pub(super) next: u64,
    /// End of the bytes before the position whose size was not reported.
    pub(super) end: u64,
}

impl<M, D> InodeState<M, D> {
    /// Creates the state of an inode without data.
    pub(super) fn new(unit: usize, reserved: MemoryPermit, buffers: Buffers) -> Self {
        Self {
            size: 0,
            stat: None,
            generation: 0,
            exclusive_since_version: None,
            changed_ns: None,
            changes: 0,
            unreported_end: 0,
            dirty: DirtyPieces::new(unit, buffers),
            reserved,
            in_flight: BTreeMap::new(),
            next: 0,
            unflushed_bytes: 0,
            progress: None,
            error: None,
            data_lost: false,
            lock_lost: false,
            device_restarted: false,
            truncated_remotely: false,
            flushing: false,
            sending: false,
            freeing_memory: false,
            objects: None,
            writable: false,
            layout_stale: false,
            layouts_received: 0,
            reads: false,
            writes: false,
            allocated_here: false,
            all_created: false,
            clean_until: u64::MAX,
            sparse: false,
            readahead: ReadAhead::new(unit as u64),
            lease_seen: 0,
            attr_epoch: 0,
            attr_epoch_cached: 0,
            rights_changed: false,
            no_lease_until: None,
            released: false,
            created_locally: false,
            created_under: None,
        }
    }

    /// Returns the position after all writes so far, all of which were dispatched.
    pub(super) fn position(&self) -> WritePosition {
        WritePosition { changes: Some(self.changes), next: self.next, end: self.unreported_end }
    }

    /// Returns the position up to which all pieces are acknowledged; none if all of that was
    /// reported.
    pub(super) fn acknowledged_position(&self) -> Option<WritePosition> {
        let waits = self.in_flight.iter().find(|(_, piece)| !piece.acknowledged);
        if waits.is_none() && self.dirty.is_empty() {
            return self.changed_ns.map(|_| self.position());
        }
        let next = waits.map_or(self.next, |(number, _)| *number);
        let unreported = self.in_flight.range(..next).filter(|(_, piece)| !piece.size_reported);
        let end = unreported.map(|(_, piece)| piece.range().end).max()?;
        Some(WritePosition { changes: None, next, end })
    }

    /// Whether all bytes are durable and reported.
    pub(super) fn is_stored(&self) -> bool {
        self.dirty.is_empty() && self.in_flight.is_empty() && self.changed_ns.is_none()
    }

    /// Whether the file was created here and not written since, so that no other copy of its state
    /// exists.
    pub(super) fn is_unwritten(&self) -> bool {
        let empty =
            self.stat.as_ref().is_some_and(|stat| stat.width == 0 && stat.size == 0 && stat.links == 1);
        let untouched = self.objects.is_none() && self.is_settled() && !self.lock_lost;
        self.created_locally && empty && untouched && !self.released
    }

    /// Whether there is nothing to send or report, and no pending error.
    pub(super) fn is_settled(&self) -> bool {
        let here = !self.in_flight.is_empty() || !self.dirty.is_empty() || self.changed_ns.is_some();
        !here && self.error.is_none() && !self.device_restarted && !self.truncated_remotely
    }

    /// Records a local change of content.
    pub(super) fn record_change(&mut self, now_ns: i64) {
        self.changed_ns = Some(now_ns);
        self.changes += 1;
    }

    /// Returns the access with which the file is opened again.
    pub(super) fn access(&self) -> Access {
        match (self.writes, self.reads) {
            (true, true) => Access::Update,
            (true, false) => Access::Write,
            (false, _) => Access::Read,
        }
    }

    /// Whether these are the current objects, with credentials to write.
    pub(super) fn writes_to(&self, objects: &ObjectSet<M, D>) -> bool {
        self.writable && self.objects.as_ref().is_some_and(|known| Arc::ptr_eq(&known.open, &objects.open))
    }

    /// Sets new objects; keeps the state of each one if the layout is the same.
    pub(super) fn set_objects(&mut self, mut objects: ObjectSet<M, D>) -> ObjectSet<M, D> {
        if let Some(known) =
            self.objects.take().filter(|known| known.open.layout.number() == objects.open.layout.number())
        {
            objects.each = known.each;
        }
        self.objects = Some(objects.clone());
        objects
    }

    /// Records attributes from the server; returns false if newer ones are known. A new version
    /// drops the read-ahead blocks.
    pub(super) fn update_attrs(&mut self, stat: &Stat) -> bool {
        let known = self.stat.as_ref().map(|known| known.version);
        if known.is_some_and(|known| known > stat.version) {
            return false;
        }
        if known != Some(stat.version) {
            self.readahead.invalidate(0..u64::MAX);
            // The server grows a file only after the truncated bytes are cleared.
            if stat.size > self.clean_until {
                self.clean_until = u64::MAX;
            }
        }
        // Objects of a file that is open for writing do not move; those of a file that is only read
        // may have been migrated.
        let elsewhere = stat.generation != self.generation || (known != Some(stat.version) && !self.writes);
        self.layout_stale |= self.objects.is_some() && elsewhere;
        self.size = stat.size.max(self.unreported_end);
        self.stat = Some(stat.clone());
        true
    }

    /// Records the attributes that the server returned for a change of this client.
    pub(super) fn update_own_attrs(&mut self, stat: &Stat) {
        // The version grew by more than one: another client wrote in between.
        self.exclusive_since_version =
            self.exclusive_since_version.filter(|known| stat.version <= known + 1).map(|_| stat.version);
        self.update_attrs(stat);
    }

    /// Follows a new generation or a new layout (`other`). A truncation drops bytes that were
    /// reported; the others are written again. A new layout without a truncation is a copy.
    pub(super) fn follow_layout(&mut self, stat: &Stat, other: bool) {
        self.layouts_received += 1;
        if stat.generation == self.generation {
            if other {
                self.on_migrated();
            }
            return;
        }
        self.generation = stat.generation;
        self.truncate_reported(if other { 0 } else { stat.size });
        for piece in self.in_flight.values_mut().filter(|piece| !piece.size_reported) {
            piece.durable = false;
        }
        self.unreported_end = self.end_of_unreported();
        self.truncated_remotely |= self.in_flight.values().any(|piece| piece.sent && !piece.size_reported);
        self.readahead.invalidate(0..u64::MAX);
    }

    /// The file was migrated to other objects. Acknowledged bytes that were not flushed may have
    /// been lost before the copy.
    fn on_migrated(&mut self) {
        self.device_restarted |= self.in_flight.values().any(|piece| piece.sent && !piece.durable);
    }

    /// Records that the server knows everything up to a position.
    pub(super) fn on_size_reported(&mut self, upto: &WritePosition) {
        for piece in self.in_flight.range_mut(..upto.next).map(|(_, piece)| piece) {
            piece.size_reported |= piece.acknowledged;
        }
        self.drop_durable();
        if upto.changes == Some(self.changes) {
            self.changed_ns = None;
            self.unreported_end = 0;
        }
    }

    /// A piece could not be stored and was dropped. The file ends before it, since a hole of zeros
    /// there would look like data.
    pub(super) fn on_write_failed(&mut self) {
        self.data_lost = true;
        self.unreported_end = self.unreported_end.min(self.end_of_unreported());
        let known = self.stat.as_ref().map_or(0, |stat| stat.size);
        self.size = self.size.min(known.max(self.unreported_end));
    }

    /// Drops durable bytes that cannot be reported; the writer gets an error.
    pub(super) fn drop_unreported(&mut self) {
        self.data_lost = true;
        for piece in self.in_flight.values_mut() {
            piece.size_reported |= piece.durable;
        }
        self.drop_durable();
    }

    /// Records that a flush made these pieces durable.
    pub(super) fn mark_durable(&mut self, numbers: &[u64]) {
        for number in numbers {
            if let Some(piece) = self.in_flight.get_mut(number) {
                piece.durable = true;
            }
        }
        self.drop_durable();
    }

    /// Drops pieces that are durable and reported. Others are kept, since a remote truncation could
    /// remove them.
    fn drop_durable(&mut self) {
        let Self { in_flight: pieces, unflushed_bytes, readahead, .. } = self;
        pieces.retain(|_, piece| {
            let is_done = piece.durable && piece.size_reported;
            if is_done {
                *unflushed_bytes -= piece.data.len();
                // Read-ahead blocks lack these bytes, and were correct only while the piece covered
                // them.
                readahead.invalidate(piece.range());
            }
            !is_done
        });
    }

    /// Drops reported bytes from `end` on.
    pub(super) fn truncate_reported(&mut self, end: u64) {
        self.truncate_matching(end, |piece| piece.size_reported);
    }

    /// Drops all bytes from `end` on: the file was truncated by this client.
    pub(super) fn truncate(&mut self, end: u64) {
        self.dirty.truncate(end);
        self.release_excess_memory();
        self.truncate_matching(end, |_| true);
        self.unreported_end = self.unreported_end.min(end);
        self.data_lost &= end > 0;
        self.readahead.invalidate(0..u64::MAX);
        let unreported = !self.dirty.is_empty() || self.in_flight.values().any(|piece| !piece.size_reported);
        if !unreported {
            // The server set version and time with the truncation, so nothing is left to report.
            (self.changed_ns, self.unreported_end) = (None, 0);
        }
    }

    /// Records a truncation that the server did for this client while no command was in flight.
    pub(super) fn on_truncated(&mut self, stat: &Stat) {
        self.truncate(stat.size);
        let other = stat.width == 0;
        // The generation grew by more than one: another client truncated it before and may have
        // written other objects since.
        let alone = [self.generation, self.generation.wrapping_add(1)].contains(&stat.generation);
        self.layout_stale |= self.objects.is_some() && !alone;
        self.follow_layout(stat, other);
        if other {
            // An empty file has no objects.
            self.objects = None;
            self.allocated_here = false;
        }
        self.all_created &= !other;
        self.writable = false;
        self.sparse = true;
        // The server grows the file only after truncated bytes are cleared; this client may grow it
        // before that.
        self.clean_until = stat.size;
        self.update_own_attrs(stat);
    }

    fn truncate_matching(&mut self, end: u64, which: impl Fn(&InFlightWrite) -> bool) {
        let behind = |(number, piece): (&u64, &InFlightWrite)| {
            (which(piece) && piece.range().end > end).then_some(*number)
        };
        let behind: Vec<u64> = self.in_flight.iter().filter_map(behind).collect();
        for number in behind {
            let Some(piece) = self.in_flight.get_mut(&number) else { continue };
            let left =
                usize::try_from(end.saturating_sub(piece.offset)).unwrap_or(usize::MAX).min(piece.data.len());
            if piece.acknowledged {
                self.unflushed_bytes -= piece.data.len() - left;
            }
            piece.data.truncate(left);
            if left == 0 {
                self.in_flight.remove(&number);
            }
        }
        if self.in_flight.is_empty() {
            (self.device_restarted, self.truncated_remotely) = (false, false);
        }
    }

    /// Returns the end of the bytes whose size was not reported.
    fn end_of_unreported(&self) -> u64 {
        let unreported =
            self.in_flight.values().filter(|piece| !piece.size_reported).map(|piece| piece.range().end);
        unreported.max().unwrap_or(0).max(self.dirty.end())
    }

    /// Releases reserved memory that the dirty bytes do not need.
    pub(super) fn release_excess_memory(&mut self) {
        let more = self.reserved.bytes().saturating_sub(self.dirty.memory());
        if more > 0 {
            drop(self.reserved.split(more));
        }
    }
}
