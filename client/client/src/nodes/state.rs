//! What is known of one open file: its length, the bytes that are held, the objects they belong to.
//!
//! Does: keep what was written, what was sent and what the metadata server was told in step with what it tells.
//! Does not: send or ask anything.
//! Contract: what the server was told belongs to the file as it is there, and goes when somebody cuts it off there. What it
//! was not told of is as if it were written after that.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sealstone_mds_protocol::{Access, AheadIn, Stat};
use tokio::time::Instant;

use super::ahead::Ahead;
use super::dirty::Dirty;
use super::shared::lock;
use crate::ClientError;
use crate::budget::Lease;
use crate::buffers::Buffers;
use crate::open::{Life, OpenObjects};

/// The objects of a file, and what is known of each.
pub(super) struct Objects<M, D> {
    pub(super) open: Arc<OpenObjects<M, D>>,
    /// One for each object.
    pub(super) each: Vec<Object>,
}

impl<M, D> Clone for Objects<M, D> {
    fn clone(&self) -> Self {
        Self { open: self.open.clone(), each: self.each.clone() }
    }
}

/// What is known of one object.
#[derive(Clone)]
pub(super) struct Object {
    /// Held by whoever makes it; true once it is there.
    pub(super) made: Arc<tokio::sync::Mutex<bool>>,
    pub(super) facts: Arc<Mutex<Facts>>,
}

impl Object {
    /// Nothing is held that a restart of its device could have taken.
    pub(super) fn forget_touched(&self) {
        let mut facts = lock(&self.facts);
        (facts.open, facts.writes, facts.life) = (false, 0, None);
    }
}

#[derive(Default)]
pub(super) struct Facts {
    /// The life of its device, as it was told before the first command that is not proven.
    pub(super) life: Option<Life>,
    /// Commands after the one that made it, that no flush has proven.
    pub(super) writes: u32,
    /// Something that no flush has proven was done to it.
    pub(super) open: bool,
    /// It has been proven: it cannot be gone any more.
    pub(super) durable: bool,
}

pub(super) struct State<M, D> {
    /// Length of the file as programs here see it.
    pub(super) size: u64,
    /// As the server last told, whoever changed it.
    pub(super) stat: Option<Stat>,
    /// Of the objects that we write to, and the length that they were cut to.
    pub(super) generation: u32,
    /// Version of the content if nobody but us changed it since it was opened here.
    pub(super) ours_alone: Option<u64>,
    /// Local change of content, not told yet: nanoseconds since 1970.
    pub(super) changed_ns: Option<i64>,
    /// Local changes of content, counted.
    pub(super) changes: u64,
    /// Where what was written here ends, as far as the server was not told of it; 0: it knows of all.
    pub(super) written_end: u64,
    pub(super) dirty: Dirty,
    /// Memory of what is dirty.
    pub(super) pot: Lease,
    /// Sent or being sent, by order of dispatch.
    pub(super) held: BTreeMap<u64, Held>,
    pub(super) next: u64,
    pub(super) unproven: usize,
    /// When a piece was last stored.
    pub(super) progress: Option<Instant>,
    /// What could not be stored, until somebody was told.
    pub(super) error: Option<ClientError>,
    /// Bytes that were written here are nowhere, since it was last cut to nothing.
    pub(super) missing: bool,
    /// A lock of programs here is lost: until all of them have closed the file nothing is written.
    pub(super) lock_lost: bool,
    /// The device may have lost what is held.
    pub(super) lost: bool,
    /// Somebody cut the file, or gave its objects up: what was sent and not told may not be in its objects any more.
    pub(super) overtaken: bool,
    pub(super) proving: bool,
    /// Somebody sends what lies about.
    pub(super) sending: bool,
    /// Somebody makes it give its memory back.
    pub(super) yielding: bool,
    pub(super) objects: Option<Objects<M, D>>,
    /// Are they good for writing?
    pub(super) writable: bool,
    /// The server told of a cut since it told of the objects, or of what others wrote, perhaps to objects that are somewhere else.
    pub(super) outdated: bool,
    /// Answers of the server with the objects that were taken over.
    pub(super) openings: u64,
    /// Is it open here for reading too? Who may only write is not given more.
    pub(super) reads: bool,
    /// Is it open here for writing, whatever objects it has now?
    pub(super) writes: bool,
    /// Were the objects chosen for us: is it ours to make all of them?
    pub(super) ours: bool,
    /// Does the server know that all objects are on their devices?
    pub(super) made: bool,
    /// From here on the objects may hold bytes that were cut off and are not cleared yet: they read as zeros.
    pub(super) clean_until: u64,
    /// Was it written in place? Then what is missing at the end of an object reads as zeros.
    pub(super) sparse: bool,
    pub(super) ahead: Ahead,
    /// The lease that was held when the attributes were told; 0: none.
    pub(super) seen_under: u64,
    /// Changes of attributes here of which the outcome was not told, and how many of them the attributes that are known have.
    pub(super) unsure: u64,
    pub(super) sure: u64,
    /// Rights were changed here since it was opened.
    pub(super) rights_unsure: bool,
    /// The server has no lease for us until then.
    pub(super) without_until: Option<Instant>,
    /// The server knows that nobody has it open here.
    pub(super) let_go: bool,
    /// It was made here, to be opened.
    pub(super) made_here: bool,
    /// The lead of the directory under which it was made here first, as long as it was in no other one since.
    pub(super) made_in: Option<AheadIn>,
}

#[derive(Clone)]
pub(super) struct Held {
    pub(super) offset: u64,
    pub(super) data: Bytes,
    /// A command with it has gone out.
    pub(super) sent: bool,
    pub(super) acknowledged: bool,
    /// The server knows of it.
    pub(super) told: bool,
    /// A flush has proven it.
    pub(super) proven: bool,
}

impl Held {
    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }
}

/// What had been written at some moment.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    /// How many changes there were; none if there are some that are on no device.
    pub(super) changes: Option<u64>,
    /// Pieces before this one were sent off.
    pub(super) next: u64,
    /// Where they end, as far as the server was not told.
    pub(super) end: u64,
}

impl<M, D> State<M, D> {
    /// All of it, new.
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

    /// Everything written so far, all of it sent off.
    pub(super) fn mark(&self) -> Mark {
        Mark { changes: Some(self.changes), next: self.next, end: self.written_end }
    }

    /// What is on its devices of what was written so far, up to the first piece that is not; none if the server knows of
    /// all that.
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

    /// Is nothing here that is not durable and told?
    pub(super) fn is_stored(&self) -> bool {
        self.dirty.is_empty() && self.held.is_empty() && self.changed_ns.is_none()
    }

    /// Was it made here, and not written to since? Then nothing of it is anywhere else.
    pub(super) fn is_unwritten(&self) -> bool {
        let empty =
            self.stat.as_ref().is_some_and(|stat| stat.width == 0 && stat.size == 0 && stat.links == 1);
        let untouched = self.objects.is_none() && self.is_settled() && !self.lock_lost;
        self.made_here && empty && untouched && !self.let_go
    }

    /// Nothing is here that a device or the server does not have for certain, nor an error that nobody was told of.
    pub(super) fn is_settled(&self) -> bool {
        let here = !self.held.is_empty() || !self.dirty.is_empty() || self.changed_ns.is_some();
        !here && self.error.is_none() && !self.lost && !self.overtaken
    }

    /// Takes down that the content was changed here.
    pub(super) fn changed(&mut self, now_ns: i64) {
        self.changed_ns = Some(now_ns);
        self.changes += 1;
    }

    /// With which rights it is asked for again.
    pub(super) fn access(&self) -> Access {
        match (self.writes, self.reads) {
            (true, true) => Access::Update,
            (true, false) => Access::Write,
            (false, _) => Access::Read,
        }
    }

    /// Are these the objects that we write to?
    pub(super) fn writes_to(&self, objects: &Objects<M, D>) -> bool {
        self.writable && self.objects.as_ref().is_some_and(|known| Arc::ptr_eq(&known.open, &objects.open))
    }

    /// New rights, for the same objects perhaps: then what is known of each still holds.
    pub(super) fn take_objects(&mut self, mut objects: Objects<M, D>) -> Objects<M, D> {
        if let Some(known) =
            self.objects.take().filter(|known| known.open.layout.number() == objects.open.layout.number())
        {
            objects.each = known.each;
        }
        self.objects = Some(objects.clone());
        objects
    }

    /// Takes down what the server told; false if it was overtaken by what it told since. Of another version nothing that
    /// was read ahead is good.
    pub(super) fn see(&mut self, stat: &Stat) -> bool {
        let known = self.stat.as_ref().map(|known| known.version);
        if known.is_some_and(|known| known > stat.version) {
            return false;
        }
        if known != Some(stat.version) {
            self.ahead.forget(0..u64::MAX);
            // The server lets a file grow only when what was cut off is cleared.
            if stat.size > self.clean_until {
                self.clean_until = u64::MAX;
            }
        }
        // What somebody has open to write stays where it is; what is only read may have been moved, or carried over, before.
        let elsewhere = stat.generation != self.generation || (known != Some(stat.version) && !self.writes);
        self.outdated |= self.objects.is_some() && elsewhere;
        self.size = stat.size.max(self.written_end);
        self.stat = Some(stat.clone());
        true
    }

    /// Takes down what the server told after a change of ours.
    pub(super) fn see_own(&mut self, stat: &Stat) {
        // A version more than ours: somebody else wrote in between.
        self.ours_alone = self.ours_alone.filter(|known| stat.version <= known + 1).map(|_| stat.version);
        self.see(stat);
    }

    /// Follows what the server told of the objects: `other` ones than we know, or the same after a cut. What it knew of
    /// was cut with the rest; what it did not know of is to be written again. Without a cut other ones are a copy.
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

    /// The same bytes are in other objects now. What is acknowledged and not proven may have been lost before it was copied
    /// there, as by a restart.
    fn was_carried(&mut self) {
        self.lost |= self.held.values().any(|held| held.sent && !held.proven);
    }

    /// Takes down that the server knows of everything up to a mark.
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

    /// A piece could not be stored, and is gone: it makes no file longer. Behind what was stored there would be zeros that nobody
    /// wrote, in a file that looks whole.
    pub(super) fn was_not_stored(&mut self) {
        self.missing = true;
        self.written_end = self.written_end.min(self.untold_end());
        let known = self.stat.as_ref().map_or(0, |stat| stat.size);
        self.size = self.size.min(known.max(self.written_end));
    }

    /// Gives up telling the server of what is durable: whoever wrote it is told so.
    pub(super) fn give_up(&mut self) {
        self.missing = true;
        for held in self.held.values_mut() {
            held.told |= held.proven;
        }
        self.let_go();
    }

    /// Takes down that a flush has proven these.
    pub(super) fn proven(&mut self, numbers: &[u64]) {
        for number in numbers {
            if let Some(held) = self.held.get_mut(number) {
                held.proven = true;
            }
        }
        self.let_go();
    }

    /// What is proven and told is held no longer; what was not told could go with a cut of somebody else's.
    fn let_go(&mut self) {
        let Self { held, unproven, ahead, .. } = self;
        held.retain(|_, held| {
            let goes = held.proven && held.told;
            if goes {
                *unproven -= held.data.len();
                // A block that was read before these bytes were there was right only as long as they lay over it.
                ahead.forget(held.range());
            }
            !goes
        });
    }

    /// Forgets what lies from `end` on and was told.
    pub(super) fn forget_told(&mut self, end: u64) {
        self.shorten(end, |held| held.told);
    }

    /// Forgets everything from `end` on: it was cut off here.
    pub(super) fn cut(&mut self, end: u64) {
        self.dirty.truncate(end);
        self.settle_pot();
        self.shorten(end, |_| true);
        self.written_end = self.written_end.min(end);
        self.missing &= end > 0;
        self.ahead.forget(0..u64::MAX);
        let untold = !self.dirty.is_empty() || self.held.values().any(|held| !held.told);
        if !untold {
            // The server's version is another since the cut, and its time is that of the cut.
            (self.changed_ns, self.written_end) = (None, 0);
        }
    }

    /// Takes down that the server cut the file, for us, to what it told, while nothing was under way.
    pub(super) fn was_cut(&mut self, stat: &Stat) {
        self.cut(stat.size);
        let other = stat.width == 0;
        // One more than ours: somebody else cut it before, and may have written other objects since.
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
        // It grows at the server only when what was cut off is cleared; here it can grow before that.
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

    /// Where what is here and was not told ends.
    fn untold_end(&self) -> u64 {
        let untold = self.held.values().filter(|held| !held.told).map(|held| held.range().end);
        untold.max().unwrap_or(0).max(self.dirty.end())
    }

    /// Gives back memory that nothing dirty needs any more.
    pub(super) fn settle_pot(&mut self) {
        let more = self.pot.bytes().saturating_sub(self.dirty.room());
        if more > 0 {
            drop(self.pot.split(more));
        }
    }
}
