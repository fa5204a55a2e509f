//! Objects that leave a device while their files stay in use.
//!
//! Does: write down which devices are drained, find what lies on them, fence who may write, note where an object goes, put
//! it into the layout when all of it is there. Does not: copy; the shell does, with credentials from here.
//! Contract: a file is in its old place or in its new one, whole, whatever crashes in between. Every object that moves gets
//! another policy access tag first, and nothing is read from it before its device has answered: from there on nobody writes
//! to it. Whoever asks for the right to gets it, and the move is given up. What a move leaves behind, the old object or the
//! new one, is queued in the transaction that decides it.
//! Truth: docs/standards/mds/layouts.md §6.4; docs/adr/0043-online-device-drain.md.

use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{
    Chosen, DeviceId, DeviceState, Drain, ErrorCode, Failure, InodeId, Layout, ObjectRef, Text, record,
};
use sealstone_osd::ObjectId;

use crate::error::{MdsError, Result};
use crate::keys;
use crate::namespace::queue_objects;
use crate::placement::{NoSpace, Pool};
use crate::records::{Inode, Intent, counter, decode, load, next_number, save};
use crate::revoke::Retag;
use crate::server::{Mds, OWN_CREDENTIAL_MS};
use crate::store::{Snapshot, Transaction};
use crate::tags;

mod balance;
mod carry;

pub use balance::BalancePass;
pub use carry::{Carry, CarryOrder};

/// The lowest rate, bytes a second: else a command of one copy would wait for hours.
pub const DRAIN_RATE_MIN: u64 = 65_536;
/// Inodes that are looked at in one step of a search.
const SCAN_PAGE: usize = 1024;
/// Whoever wants to write to a file whose object has just moved asks again after this.
const MOVED_RETRY_MS: u32 = 10;
/// Moves that are looked at together.
const MOVES_PAGE: usize = 1024;
/// A grant that may make an object may have been accepted before it expired, and be at work still for so long after it, by
/// a clock that goes after ours, milliseconds.
const CREATE_MARGIN_MS: u64 = 60_000;

record! {
    /// An object under way.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Move {
        /// Which of the layout.
        pub index: u16,
        /// Where it is.
        pub from: ObjectRef,
        /// Where it will be.
        pub to: ObjectRef,
        /// Of the file, when it began.
        pub generation: u32,
        /// Its tag since then.
        pub tag: u32,
        /// What was known of the new device.
        pub chosen: Chosen,
    }
}

/// A file with an object that has to leave its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveItem {
    /// Which file.
    pub inode: InodeId,
    /// The bytes of the object, as far as they are known.
    pub bytes: u64,
}

/// What is to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveOrder {
    /// Of which file.
    pub inode: InodeId,
    /// The object.
    pub from: ObjectRef,
    /// The one that takes its place; it is not there yet, and nobody else makes it.
    pub to: ObjectRef,
    /// Has it bytes for certain? Then it is lost if it is not there.
    pub filled: bool,
    /// So that devices are equally full? Else since its device is drained.
    pub relieves: bool,
    /// Whoever could make the old object again must find it, fenced: it is not removed before he cannot any more.
    pub stays: bool,
}

/// How the beginning of a move went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun<O = MoveOrder> {
    /// Copy this when [`Mds::is_fenced`] says so, then [`Mds::finish_move`]; of a whole file [`Mds::is_carry_fenced`] and
    /// [`Mds::finish_carry`].
    Go(O),
    /// Not now: somebody has it whom the move would harm or hinder.
    InUse,
    /// There is nothing to move any more.
    Gone,
}

/// Why an object is to move.
#[derive(Clone, Copy)]
enum Wish<'a> {
    /// Nothing is to be left on the device.
    Leave(DeviceId),
    /// By these figures others are emptier.
    Relieve(&'a Pool),
}

impl Wish<'_> {
    /// Which of the layout's objects is the next one, if any.
    fn next(self, layout: &Layout, size: u64) -> Option<usize> {
        match self {
            Self::Leave(device) => layout.objects().iter().position(|object| object.device == device),
            Self::Relieve(pool) => {
                (0..layout.width()).find(|&index| relief(pool, layout, index, size).is_some())
            }
        }
    }
}

/// Who takes over an object of a file, so that devices are more equally full; one without bytes changes nothing.
fn relief(pool: &Pool, layout: &Layout, index: usize, size: u64) -> Option<(DeviceId, Chosen)> {
    let (object, length) = (layout.objects().get(index)?, layout.object_length(index, size));
    (length > 0).then(|| pool.relief(object.object.object, length, object.device, &taken(layout)))?
}

fn taken(layout: &Layout) -> Vec<DeviceId> {
    layout.objects().iter().map(|object| object.device).collect()
}

/// What one search found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovePage {
    /// Files.
    pub items: Vec<MoveItem>,
    /// Where to go on; none at the end.
    pub next: Option<InodeId>,
}

/// What is left on a device after it was looked through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainPass {
    /// Objects of files.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of them, those that could not be moved now since somebody has them.
    pub in_use: u64,
    /// Objects of no file that are still to be removed.
    pub removing: u64,
    /// What went wrong first.
    pub problem: String,
}

impl Mds {
    /// No new file goes to the device, and what is there goes elsewhere, `rate` bytes a second at most (0: as fast as can be).
    pub(crate) fn drain(&self, id: DeviceId, rate: u64, now_ms: u64) -> Result<()> {
        check_rate(rate)?;
        self.change_device(id, Some(DeviceState::Draining))?;
        // Whoever chose it for a new file before has written that down when this returns.
        drop(self.issuing.write());
        self.update(|tx| {
            let known: Option<Drain> = load(tx, &keys::drain(id))?;
            let fresh = Drain { began_ms: now_ms, ..Drain::default() };
            // Said again it goes on, at another rate.
            let drain = Drain { rate, ..known.filter(|known| known.done_ms.is_none()).unwrap_or(fresh) };
            Ok(save(tx, &keys::drain(id), &drain)?)
        })
    }

    /// The device takes new files again; what was moved stays where it is.
    pub(crate) fn forget_drain(&self, id: DeviceId) -> Result<()> {
        self.update(|tx| Ok(tx.delete(&keys::drain(id))?))
    }

    pub(crate) fn drain_of(&self, id: DeviceId) -> Result<Option<Drain>> {
        Ok(load(&*self.store.snapshot()?, &keys::drain(id))?)
    }

    /// Devices that are being drained and are not empty yet.
    ///
    /// # Errors
    /// `Store`.
    pub fn draining(&self) -> Result<Vec<(DeviceId, Drain)>> {
        let all = keys::drains();
        let pairs =
            self.store.snapshot()?.scan(&all, &keys::after_prefix(&all), crate::devices::DEVICES_MAX)?;
        let mut found = Vec::new();
        for (key, value) in pairs {
            let drain: Drain = decode(&value)?;
            if let Some(id) = keys::drain_device(&key).filter(|_| drain.done_ms.is_none()) {
                found.push((id, drain));
            }
        }
        Ok(found)
    }

    /// Looks through some files, those after `after`, for objects on a device.
    ///
    /// # Errors
    /// `Store`.
    pub fn next_moves(&self, device: DeviceId, after: Option<InodeId>) -> Result<MovePage> {
        let (from, until) = keys::inodes(after);
        let pairs = self.store.snapshot()?.scan(&from, &until, SCAN_PAGE)?;
        let next = pairs.last().filter(|_| pairs.len() == SCAN_PAGE).and_then(|(key, _)| keys::inode_id(key));
        let mut items = Vec::new();
        for (key, value) in &pairs {
            let (Some(inode), file) = (keys::inode_id(key), decode::<Inode>(value)?) else { continue };
            let Some(layout) = &file.layout else { continue };
            for (index, object) in layout.objects().iter().enumerate() {
                if object.device == device {
                    items.push(MoveItem { inode, bytes: layout.object_length(index, file.size) });
                }
            }
        }
        Ok(MovePage { items, next })
    }

    /// Objects on a device of files that are being created: they are looked at again when they are files.
    ///
    /// # Errors
    /// `Store`.
    pub fn creates_on(&self, device: DeviceId) -> Result<u64> {
        let (mut from, mut count) = (keys::intents(), 0);
        let until = keys::after_prefix(&from);
        loop {
            let page = self.store.snapshot()?.scan(&from, &until, SCAN_PAGE)?;
            let Some((last, _)) = page.last() else { return Ok(count) };
            from = [&last[..], &[0]].concat();
            for (_, value) in &page {
                let intent: Intent = decode(value)?;
                let on_it = intent.layout.objects().iter().filter(|object| object.device == device);
                count += on_it.count() as u64;
            }
        }
    }

    /// Objects on a device that no file needs any more and that are not removed yet, but for those that are removed once
    /// more when nobody can make them again. O(such objects of all devices).
    ///
    /// # Errors
    /// `Store`.
    pub fn removals_on(&self, device: DeviceId, now_ms: u64) -> Result<u64> {
        let (mut from, until) = keys::due_reaps(now_ms.saturating_add(self.config.reap_grace_ms));
        let mut count = 0;
        loop {
            let page = self.store.snapshot()?.scan(&from, &until, SCAN_PAGE)?;
            let Some((last, _)) = page.last() else { return Ok(count) };
            from = [&last[..], &[0]].concat();
            let objects = page.iter().filter_map(|(key, _)| keys::reap_parts(key));
            count += objects.filter(|(_, object)| object.device == device).count() as u64;
        }
    }

    /// Begins to move an object of a file away from a device: from here on nobody gets the right to write to it without
    /// ending the move. A file that somebody has open to write stays where it is for now.
    ///
    /// # Errors
    /// `Refused` with `NoSpace` if no other device has room; `Store`.
    pub fn begin_move(&self, inode: InodeId, device: DeviceId, now_ms: u64) -> Result<Begun> {
        self.begin(inode, Wish::Leave(device), now_ms)
    }

    /// The same with an object of the file whose move makes devices more equally full by these figures, if there is one.
    ///
    /// # Errors
    /// `Store`.
    pub fn begin_relief(&self, inode: InodeId, pool: &Pool, now_ms: u64) -> Result<Begun> {
        self.begin(inode, Wish::Relieve(pool), now_ms)
    }

    fn begin(&self, inode: InodeId, wish: Wish<'_>, now_ms: u64) -> Result<Begun> {
        // Whoever is in the middle of getting a credential has it when we look.
        let _alone = self.issuing.write();
        let pool = self.devices.pool();
        let begun = self.update(|tx| {
            give_up(tx, inode, now_ms)?;
            let Some(file) = load::<Inode, _>(tx, &keys::inode(inode))? else { return Ok(Begun::Gone) };
            let Some(layout) = &file.layout else { return Ok(Begun::Gone) };
            let Some(index) = wish.next(layout, file.size) else { return Ok(Begun::Gone) };
            let from = layout.objects()[index];
            // What the device has not been told yet is told first; what was cut off is cleared where it is.
            let busy = tx.get(&keys::retag(from))?.is_some() || file.old_from.is_some();
            let length = layout.object_length(index, file.size);
            let written = self.holds.may_be_written(inode, now_ms) || may_be_made(&file, now_ms);
            // Programs with a capability file cannot get another one: they are not shut out.
            if busy || written || self.holdings(now_ms).is_lasting(from, now_ms) {
                return Ok(Begun::InUse);
            }
            let (to, chosen) = match wish {
                // Two objects on one device are better than one on a device that goes.
                Wish::Leave(device) => successor(&pool, from, length, (&taken(layout), device))
                    // Only the device knows how much of a file with holes is stored: the copy itself tells if it fits.
                    .or_else(|error| match file.sparse || length > self.devices.used(device) {
                        true => successor(&pool, from, 0, (&taken(layout), device)),
                        false => Err(error),
                    })
                    .map_err(|_| MdsError::refused(ErrorCode::NoSpace, "no other device has room"))?,
                Wish::Relieve(figures) => match relief(figures, layout, index, file.size) {
                    // Those figures may be older than the news that it is drained.
                    Some((to, chosen)) if pool.has(to) => (to, chosen),
                    _ => return Ok(Begun::Gone),
                },
            };
            let number = next_number(tx, counter::OBJECT)?;
            let to = ObjectRef { device: to, object: ObjectId::new(from.object.partition, number) };
            let tag = tags::draw(tx, 1)?;
            save(tx, &keys::tag(from), &tag)?;
            // One that is not there is made, empty: else it could be made behind the fence, and after a move that was given up
            // nobody could make it, by its new tag.
            let creates = !is_there(&file, length);
            save(tx, &keys::retag(from), &Retag { tag, creates, waits: Vec::new() })?;
            let index = u16::try_from(index).unwrap_or(u16::MAX);
            let begun = Move { index, from, to, generation: file.generation, tag, chosen };
            save(tx, &keys::moving(inode), &begun)?;
            let filled = length > 0 && is_there(&file, length);
            let (relieves, stays) =
                (matches!(wish, Wish::Relieve(_)), is_alive(file.placing_until_ms, now_ms));
            Ok(Begun::Go(MoveOrder { inode, from, to, filled, relieves, stays }))
        })?;
        if matches!(begun, Begun::Go(_)) {
            self.revocations_changed.store(true, Ordering::Release);
        }
        Ok(begun)
    }

    /// Does the device refuse all who could write to the object? True for a move that was given up.
    ///
    /// # Errors
    /// `Store`.
    pub fn is_fenced(&self, order: &MoveOrder) -> Result<bool> {
        Ok(self.store.snapshot()?.get(&keys::retag(order.from))?.is_none())
    }

    /// The copy is durable: it takes the object's place, unless somebody got the right to write, or the file was cut or is
    /// gone. Says whether it did. The old object is removed at once: whoever reads it asks where it is, and is told.
    ///
    /// # Errors
    /// `Store`.
    pub fn finish_move(&self, order: &MoveOrder, bytes: u64, now_ms: u64) -> Result<bool> {
        let _alone = self.issuing.write();
        let done = self.update(|tx| {
            let key = keys::moving(order.inode);
            let known = load::<Move, _>(tx, &key)?.filter(|known| known.to == order.to);
            let Some(Move { index, from, to, generation, tag, chosen }) = known else {
                // Given up meanwhile: what was copied since is not missed by the removal.
                drop_copy(tx, order.to, now_ms)?;
                return Ok(false);
            };
            let file = load::<Inode, _>(tx, &keys::inode(order.inode))?;
            let lasting = self.holdings(now_ms).is_lasting(from, now_ms);
            let replaced = |file: &Inode| {
                let layout = file.layout.as_ref()?;
                let touched = file.generation != generation || file.old_from.is_some();
                let waits = touched || lasting || may_be_made(file, now_ms);
                layout.replaced(usize::from(index), from, to).filter(|_| !waits)
            };
            let layout = file.as_ref().and_then(replaced);
            let tag_now = tags::of(tx, from)?;
            let (Some(mut file), Some(layout)) = (file, layout) else {
                give_up(tx, order.inode, now_ms)?;
                return Ok(false);
            };
            if tag != tag_now {
                // Revoked meanwhile: the next move begins from there.
                give_up(tx, order.inode, now_ms)?;
                return Ok(false);
            }
            let (guard_ms, file_placing_ms) = (file.create_grants_until_ms, file.placing_until_ms);
            file.layout = Some(layout);
            let known = file.placed.as_mut().and_then(|placed| placed.chosen.get_mut(usize::from(index)));
            if let Some(known) = known {
                *known = chosen;
            }
            save(tx, &keys::inode(order.inode), &file)?;
            tx.delete(&key)?;
            // Nobody gets a credential for the old object from here on, and of a tag that its device does not have if he does.
            tx.delete(&keys::tag(from))?;
            // Who writes in place makes what is not where he knows it, by the partition's tag: he must find it.
            let due_ms = match order.stays || is_alive(file_placing_ms, now_ms) {
                true => now_ms.max(file_placing_ms.saturating_add(CREATE_MARGIN_MS)),
                false => now_ms,
            };
            queue_objects(tx, &[from], due_ms, guard_ms.max(due_ms))?;
            note(tx, from.device, |drain| {
                drain.moved_objects += 1;
                drain.moved_bytes = drain.moved_bytes.saturating_add(bytes);
                drain.left_objects = drain.left_objects.saturating_sub(1);
                drain.left_bytes = drain.left_bytes.saturating_sub(bytes);
            })?;
            if order.relieves {
                balance::note_moved(tx, bytes)?;
            }
            Ok(true)
        })?;
        Ok(done)
    }

    /// The copy did not come to its end.
    ///
    /// # Errors
    /// `Store`.
    pub fn abandon_move(&self, order: &MoveOrder, now_ms: u64) -> Result<()> {
        self.update(|tx| {
            let known = load::<Move, _>(tx, &keys::moving(order.inode))?;
            match known.is_some_and(|known| known.to == order.to) {
                true => give_up(tx, order.inode, now_ms).map(drop),
                false => drop_copy(tx, order.to, now_ms),
            }
        })
    }

    /// Gives up all moves that are on record: those that a server before had under way.
    ///
    /// # Errors
    /// `Store`.
    pub fn abandon_moves(&self, now_ms: u64) -> Result<usize> {
        Ok(self.abandon_all(&keys::moves(), now_ms)? + self.abandon_all(&keys::carries(), now_ms)?)
    }

    fn abandon_all(&self, all: &[u8], now_ms: u64) -> Result<usize> {
        let mut count = 0;
        loop {
            let page = self.store.snapshot()?.scan(all, &keys::after_prefix(all), MOVES_PAGE)?;
            if page.is_empty() {
                return Ok(count);
            }
            count += page.len();
            self.update(|tx| {
                for (key, _) in &page {
                    match keys::moving_inode(key) {
                        Some(inode) => _ = give_up(tx, inode, now_ms)?,
                        None => tx.delete(key)?,
                    }
                }
                Ok(())
            })?;
        }
    }

    /// A state in which nothing of the file is under way: whoever is to write ends that first.
    ///
    /// # Errors
    /// `Busy` if a move ended meanwhile, perhaps well: what the asker knows of the layout is old then.
    pub(crate) fn make_way(&self, inode: InodeId, now_ms: u64) -> Result<Box<dyn Snapshot + '_>> {
        loop {
            let view = self.store.snapshot()?;
            if view.get(&keys::moving(inode))?.is_none() && view.get(&keys::carrying(inode))?.is_none() {
                return Ok(view);
            }
            drop(view);
            // Another server may begin the next one before we look again.
            if !self.update(|tx| give_up(tx, inode, now_ms))? {
                return Err(MdsError::Refused(Failure::busy(MOVED_RETRY_MS)));
            }
        }
    }

    /// The device was looked through; with nothing left it is empty. `began_ms` is of the drain that it was looked through
    /// for: one that was begun anew meanwhile is not ended.
    ///
    /// # Errors
    /// `Store`.
    pub fn drain_passed(&self, device: DeviceId, began_ms: u64, pass: &DrainPass, now_ms: u64) -> Result<()> {
        self.update(|tx| {
            note(tx, device, |drain| {
                if drain.began_ms != began_ms {
                    return;
                }
                drain.left_objects = pass.objects;
                drain.left_bytes = pass.bytes;
                drain.in_use = pass.in_use;
                drain.removing = pass.removing;
                drain.problem = Text::truncated(&pass.problem);
                if pass.objects == 0 && pass.removing == 0 {
                    drain.done_ms = Some(now_ms);
                }
            })
        })
    }
}

/// Chooses the device that takes over an object: one without another object of the file, if there is one.
fn successor(
    pool: &Pool,
    from: ObjectRef,
    length: u64,
    (taken, leaves): (&[DeviceId], DeviceId),
) -> std::result::Result<(DeviceId, Chosen), NoSpace> {
    let number = from.object.object;
    pool.successor(number, length, taken).or_else(|_| pool.successor(number, length, &[leaves]))
}

fn check_rate(rate: u64) -> Result<()> {
    if (1..DRAIN_RATE_MIN).contains(&rate) {
        let said = format!("objects are moved at {DRAIN_RATE_MIN} bytes a second at least");
        return Err(MdsError::refused(ErrorCode::Limit, said));
    }
    Ok(())
}

fn note(tx: &mut dyn Transaction, device: DeviceId, change: impl FnOnce(&mut Drain)) -> Result<()> {
    let key = keys::drain(device);
    if let Some(mut drain) = load::<Drain, _>(tx, &key)? {
        change(&mut drain);
        save(tx, &key, &drain)?;
    }
    Ok(())
}

/// Ends the move of a file's object, or of the file, if there is one: what was copied is removed, again after the last
/// credential that could make it has expired.
fn give_up(tx: &mut dyn Transaction, inode: InodeId, now_ms: u64) -> Result<bool> {
    let key = keys::moving(inode);
    let Some(Move { to, .. }) = load::<Move, _>(tx, &key)? else { return carry::give_up(tx, inode, now_ms) };
    tx.delete(&key)?;
    drop_copy(tx, to, now_ms)?;
    Ok(true)
}

/// A copy that no file has: whoever copied may still be making it.
fn drop_copy(tx: &mut dyn Transaction, to: ObjectRef, now_ms: u64) -> Result<()> {
    if tx.get(&keys::reap(now_ms, to))?.is_some() {
        return Ok(());
    }
    queue_objects(tx, &[to], now_ms, now_ms.saturating_add(OWN_CREDENTIAL_MS))
}

/// Is an object that has `length` bytes of the file on its device for certain? Those of a file that was put are, if they
/// have any.
fn is_there(file: &Inode, length: u64) -> bool {
    file.made || (!file.sparse && length > 0)
}

/// Can a command be at work of a grant that was good until then? 0: there was none.
const fn is_alive(until_ms: u64, now_ms: u64) -> bool {
    until_ms > 0 && until_ms.saturating_add(CREATE_MARGIN_MS) >= now_ms
}

/// May somebody who writes in place make objects of the file? Of each that is not where he knows it, also of one that moved.
const fn may_be_made(file: &Inode, now_ms: u64) -> bool {
    !file.made && is_alive(file.placing_until_ms, now_ms)
}
