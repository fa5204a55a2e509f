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

use super::ahead::Ahead;
use super::dirty::Dirty;
use super::shared::lock;
use crate::ClientError;
use crate::budget::Lease;
use crate::buffers::Buffers;
use crate::open::{Life, OpenObjects};

/// The objects of a file with the state of each.
pub(super) struct Objects<M, D> {
    pub(super) open: Arc<OpenObjects<M, D>>,
    /// One entry for each object.
    pub(super) each: Vec<Object>,
}

impl<M, D> Clone for Objects<M, D> {
    fn clone(&self) -> Self {
        Self { open: self.open.clone(), each: self.each.clone() }
    }
}

/// State of one object.
#[derive(Clone)]
pub(super) struct Object {
    /// Locked while the object is created; true when it exists.
    pub(super) made: Arc<tokio::sync::Mutex<bool>>,
    pub(super) facts: Arc<Mutex<Facts>>,
}

impl Object {
    /// Clears the flush state: no buffered write of this object could be lost by a restart of its
    /// device.
    pub(super) fn forget_touched(&self) {
        let mut facts = lock(&self.facts);
        (facts.open, facts.writes, facts.life) = (false, 0, None);
    }
}

#[derive(Default)]
pub(super) struct Facts {
    /// Boot epoch of the device as of before the first unflushed command.
    pub(super) life: Option<Life>,
    /// Number of unflushed commands after the one that created the object.
    pub(super) writes: u32,
    /// Whether there are unflushed commands.
    pub(super) open: bool,
    /// Whether the object was flushed: a restart cannot lose it.
    pub(super) durable: bool,
}

pub(super) struct State<M, D> {
    /// File size as programs on this client see it.
    pub(super) size: u64,
    /// The last attributes from the server.
    pub(super) stat: Option<Stat>,
    /// Generation (number of truncations) of the objects that are written.
    pub(super) generation: u32,
    /// Version of the content, if only this client has changed it since the open.
    pub(super) ours_alone: Option<u64>,
    /// Time of the last local change of content that was not reported, in nanoseconds since 1970.
    pub(super) changed_ns: Option<i64>,
    /// Number of local changes of content.
    pub(super) changes: u64,
    /// End of the written bytes whose size was not reported; 0 if all are.
    pub(super) written_end: u64,
    pub(super) dirty: Dirty,
    /// Memory reserved for dirty bytes.
    pub(super) pot: Lease,
    /// Pieces that are sent or being sent, in order of dispatch.
    pub(super) held: BTreeMap<u64, Held>,
    pub(super) next: u64,
    pub(super) unproven: usize,
    /// When a piece was last acknowledged.
    pub(super) progress: Option<Instant>,
    /// The write-back error to report at the next fsync or close.
    pub(super) error: Option<ClientError>,
    /// Whether written bytes were lost since the file was last truncated to zero.
    pub(super) missing: bool,
    /// Whether locks of programs were lost: writes fail until all of them have closed the file.
    pub(super) lock_lost: bool,
    /// Whether a device restarted and may have lost sent bytes.
    pub(super) lost: bool,
    /// Whether the file was truncated or replaced remotely: bytes sent but not reported may be
    /// missing in its objects.
    pub(super) overtaken: bool,
    pub(super) proving: bool,
    /// Whether a task is sending dirty bytes.
    pub(super) sending: bool,
    /// Whether a task is flushing this inode to free memory.
    pub(super) yielding: bool,
    pub(super) objects: Option<Objects<M, D>>,
    /// Whether the credentials of `objects` permit writing.
    pub(super) writable: bool,
    /// Whether the layout may be stale: since it was fetched the file was truncated, or others
    /// wrote it, perhaps in other objects.
    pub(super) outdated: bool,
    /// Number of layouts received from the server.
    pub(super) openings: u64,
    /// Whether it is open for reading here; a write-only open gets no right to read.
    pub(super) reads: bool,
    /// Whether it is open for writing here, whatever the current objects permit.
    pub(super) writes: bool,
    /// Whether the objects were allocated for this client, which then has to create all of them.
    pub(super) ours: bool,
    /// Whether the server knows that all objects exist on their devices.
    pub(super) made: bool,
    /// From here on the objects may contain truncated bytes that are not cleared yet; these read as
    /// zeros.
    pub(super) clean_until: u64,
    /// Whether the file was written in place: then missing bytes at the end of an object are zeros.
    pub(super) sparse: bool,
    pub(super) ahead: Ahead,
    /// Number of the lease under which the attributes were received; 0 for none.
    pub(super) seen_under: u64,
    /// Number of local attribute changes whose result is not known, and its value when the cached
    /// attributes were requested.
    pub(super) unsure: u64,
    pub(super) sure: u64,
    /// Whether rights were changed here since the open.
    pub(super) rights_unsure: bool,
    /// No lease is requested before this time, since the server denied one.
    pub(super) without_until: Option<Instant>,
    /// Whether the server knows that this client has closed it.
    pub(super) let_go: bool,
    /// Whether this client created the file and opened it with the creation.
    pub(super) made_here: bool,
    /// The directory delegation under which the file was created, while it has not left that
    /// directory.
    pub(super) made_in: Option<DirLeaseId>,
}

#[derive(Clone)]
pub(super) struct Held {
    pub(super) offset: u64,
    pub(super) data: Bytes,
    /// Whether a command with these bytes was sent.
    pub(super) sent: bool,
    pub(super) acknowledged: bool,
    /// Whether a size that includes these bytes was reported to the server.
    pub(super) told: bool,
    /// Whether a flush made these bytes durable.
    pub(super) proven: bool,
}

impl Held {
    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }
}

/// A position in the sequence of local writes.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    /// Number of changes at that time; none if some of them are on no device.
    pub(super) changes: Option<u64>,
    /// Number of the first piece after the position.
    pub(super) next: u64,
    /// End of the bytes before the position whose size was not reported.
    pub(super) end: u64,
}

impl<M, D> State<M, D> {
    /// Creates the state of an inode without data.
    pub(super) fn new(unit: usize, pot: Lease, buffers: Buffers) -> Self {
        Self {
            size: 0,
            stat: None,
            generation: 0,
            ours_alone: None,
            changed_ns: None,
            changes: 0,
            written_end: 0,
            dirty: Dirty::new(unit, buffers),
            pot,
            held: BTreeMap::new(),
            next: 0,
            unproven: 0,
            progress: None,
            error: None,
            missing: false,
            lock_lost: false,
            lost: false,
            overtaken: false,
            proving: false,
            sending: false,
            yielding: false,
            objects: None,
            writable: false,
            outdated: false,
            openings: 0,
            reads: false,
            writes: false,
            ours: false,
            made: false,
            clean_until: u64::MAX,
            sparse: false,
            ahead: Ahead::new(unit as u64),
            seen_under: 0,
            unsure: 0,
            sure: 0,
            rights_unsure: false,
            without_until: None,
            let_go: false,
            made_here: false,
            made_in: None,
        }
    }

    /// Returns the position after all writes so far, all of which were dispatched.
    pub(super) fn mark(&self) -> Mark {
        Mark { changes: Some(self.changes), next: self.next, end: self.written_end }
    }

    /// Returns the position up to which all pieces are acknowledged; none if all of that was
    /// reported.
    pub(super) fn stored(&self) -> Option<Mark> {
        let waits = self.held.iter().find(|(_, held)| !held.acknowledged);
        if waits.is_none() && self.dirty.is_empty() {
            return self.changed_ns.map(|_| self.mark());
        }
        let next = waits.map_or(self.next, |(number, _)| *number);
        let untold = self.held.range(..next).filter(|(_, held)| !held.told);
        let end = untold.map(|(_, held)| held.range().end).max()?;
        Some(Mark { changes: None, next, end })
    }

    /// Whether all bytes are durable and reported.
    pub(super) fn is_stored(&self) -> bool {
        self.dirty.is_empty() && self.held.is_empty() && self.changed_ns.is_none()
    }

    /// Whether the file was created here and not written since, so that no other copy of its state
    /// exists.
    pub(super) fn is_unwritten(&self) -> bool {
        let empty =
            self.stat.as_ref().is_some_and(|stat| stat.width == 0 && stat.size == 0 && stat.links == 1);
        let untouched = self.objects.is_none() && self.is_settled() && !self.lock_lost;
        self.made_here && empty && untouched && !self.let_go
    }

    /// Whether there is nothing to send or report, and no pending error.
    pub(super) fn is_settled(&self) -> bool {
        let here = !self.held.is_empty() || !self.dirty.is_empty() || self.changed_ns.is_some();
        !here && self.error.is_none() && !self.lost && !self.overtaken
    }

    /// Records a local change of content.
    pub(super) fn changed(&mut self, now_ns: i64) {
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
    pub(super) fn writes_to(&self, objects: &Objects<M, D>) -> bool {
        self.writable && self.objects.as_ref().is_some_and(|known| Arc::ptr_eq(&known.open, &objects.open))
    }

    /// Sets new objects; keeps the state of each one if the layout is the same.
    pub(super) fn take_objects(&mut self, mut objects: Objects<M, D>) -> Objects<M, D> {
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
    pub(super) fn see(&mut self, stat: &Stat) -> bool {
        let known = self.stat.as_ref().map(|known| known.version);
        if known.is_some_and(|known| known > stat.version) {
            return false;
        }
        if known != Some(stat.version) {
            self.ahead.forget(0..u64::MAX);
            // The server grows a file only after the truncated bytes are cleared.
            if stat.size > self.clean_until {
                self.clean_until = u64::MAX;
            }
        }
        // Objects of a file that is open for writing do not move; those of a file that is only read
        // may have been migrated.
        let elsewhere = stat.generation != self.generation || (known != Some(stat.version) && !self.writes);
        self.outdated |= self.objects.is_some() && elsewhere;
        self.size = stat.size.max(self.written_end);
        self.stat = Some(stat.clone());
        true
    }

    /// Records the attributes that the server returned for a change of this client.
    pub(super) fn see_own(&mut self, stat: &Stat) {
        // The version grew by more than one: another client wrote in between.
        self.ours_alone = self.ours_alone.filter(|known| stat.version <= known + 1).map(|_| stat.version);
        self.see(stat);
    }

    /// Follows a new generation or a new layout (`other`). A truncation drops bytes that were
    /// reported; the others are written again. A new layout without a truncation is a copy.
    pub(super) fn follow(&mut self, stat: &Stat, other: bool) {
        self.openings += 1;
        if stat.generation == self.generation {
            if other {
                self.was_carried();
            }
            return;
        }
        self.generation = stat.generation;
        self.forget_told(if other { 0 } else { stat.size });
        for held in self.held.values_mut().filter(|held| !held.told) {
            held.proven = false;
        }
        self.written_end = self.untold_end();
        self.overtaken |= self.held.values().any(|held| held.sent && !held.told);
        self.ahead.forget(0..u64::MAX);
    }

    /// The file was migrated to other objects. Acknowledged bytes that were not flushed may have
    /// been lost before the copy.
    fn was_carried(&mut self) {
        self.lost |= self.held.values().any(|held| held.sent && !held.proven);
    }

    /// Records that the server knows everything up to a position.
    pub(super) fn told(&mut self, upto: &Mark) {
        for held in self.held.range_mut(..upto.next).map(|(_, held)| held) {
            held.told |= held.acknowledged;
        }
        self.let_go();
        if upto.changes == Some(self.changes) {
            self.changed_ns = None;
            self.written_end = 0;
        }
    }

    /// A piece could not be stored and was dropped. The file ends before it, since a hole of zeros
    /// there would look like data.
    pub(super) fn was_not_stored(&mut self) {
        self.missing = true;
        self.written_end = self.written_end.min(self.untold_end());
        let known = self.stat.as_ref().map_or(0, |stat| stat.size);
        self.size = self.size.min(known.max(self.written_end));
    }

    /// Drops durable bytes that cannot be reported; the writer gets an error.
    pub(super) fn give_up(&mut self) {
        self.missing = true;
        for held in self.held.values_mut() {
            held.told |= held.proven;
        }
        self.let_go();
    }

    /// Records that a flush made these pieces durable.
    pub(super) fn proven(&mut self, numbers: &[u64]) {
        for number in numbers {
            if let Some(held) = self.held.get_mut(number) {
                held.proven = true;
            }
        }
        self.let_go();
    }

    /// Drops pieces that are durable and reported. Others are kept, since a remote truncation could
    /// remove them.
    fn let_go(&mut self) {
        let Self { held, unproven, ahead, .. } = self;
        held.retain(|_, held| {
            let goes = held.proven && held.told;
            if goes {
                *unproven -= held.data.len();
                // Read-ahead blocks lack these bytes, and were correct only while the piece covered
                // them.
                ahead.forget(held.range());
            }
            !goes
        });
    }

    /// Drops reported bytes from `end` on.
    pub(super) fn forget_told(&mut self, end: u64) {
        self.shorten(end, |held| held.told);
    }

    /// Drops all bytes from `end` on: the file was truncated by this client.
    pub(super) fn cut(&mut self, end: u64) {
        self.dirty.truncate(end);
        self.settle_pot();
        self.shorten(end, |_| true);
        self.written_end = self.written_end.min(end);
        self.missing &= end > 0;
        self.ahead.forget(0..u64::MAX);
        let untold = !self.dirty.is_empty() || self.held.values().any(|held| !held.told);
        if !untold {
            // The server set version and time with the truncation, so nothing is left to report.
            (self.changed_ns, self.written_end) = (None, 0);
        }
    }

    /// Records a truncation that the server did for this client while no command was in flight.
    pub(super) fn was_cut(&mut self, stat: &Stat) {
        self.cut(stat.size);
        let other = stat.width == 0;
        // The generation grew by more than one: another client truncated it before and may have
        // written other objects since.
        let alone = [self.generation, self.generation.wrapping_add(1)].contains(&stat.generation);
        self.outdated |= self.objects.is_some() && !alone;
        self.follow(stat, other);
        if other {
            // An empty file has no objects.
            self.objects = None;
            self.ours = false;
        }
        self.made &= !other;
        self.writable = false;
        self.sparse = true;
        // The server grows the file only after truncated bytes are cleared; this client may grow it
        // before that.
        self.clean_until = stat.size;
        self.see_own(stat);
    }

    fn shorten(&mut self, end: u64, which: impl Fn(&Held) -> bool) {
        let behind =
            |(number, held): (&u64, &Held)| (which(held) && held.range().end > end).then_some(*number);
        let behind: Vec<u64> = self.held.iter().filter_map(behind).collect();
        for number in behind {
            let Some(held) = self.held.get_mut(&number) else { continue };
            let left =
                usize::try_from(end.saturating_sub(held.offset)).unwrap_or(usize::MAX).min(held.data.len());
            if held.acknowledged {
                self.unproven -= held.data.len() - left;
            }
            held.data.truncate(left);
            if left == 0 {
                self.held.remove(&number);
            }
        }
        if self.held.is_empty() {
            (self.lost, self.overtaken) = (false, false);
        }
    }

    /// Returns the end of the bytes whose size was not reported.
    fn untold_end(&self) -> u64 {
        let untold = self.held.values().filter(|held| !held.told).map(|held| held.range().end);
        untold.max().unwrap_or(0).max(self.dirty.end())
    }

    /// Releases reserved memory that the dirty bytes do not need.
    pub(super) fn settle_pot(&mut self) {
        let more = self.pot.bytes().saturating_sub(self.dirty.room());
        if more > 0 {
            drop(self.pot.split(more));
        }
    }
}
