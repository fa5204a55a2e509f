//! Moves of objects between devices while their files are in use.
//!
//! Does: store which devices are drained, find objects on them, fence writers, record the target of
//! an object, and change the layout when the copy is complete.
//! Does not: copy; the daemon does, with credentials from here.
//! Contract: after any crash a file is completely at its old or its new place. Each object gets a
//! new policy access tag before it moves, and nothing is read from it before its device has
//! confirmed the tag: then no client can write to it. A client that requests the right to write
//! gets it, and the move is abandoned. The object that a move leaves behind, old or new, is queued
//! for removal in the transaction that decides the move.
//! Truth: docs/standards/mds/layouts.md §6.4; docs/adr/0043-online-device-drain.md.

use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{
    ChosenDevice, DeviceId, DeviceState, Drain, ErrorCode, Failure, InodeId, Layout, ObjectRef, Text, record,
};
use sealstone_osd::ObjectId;

use crate::error::{MdsError, Result};
use crate::keys;
use crate::namespace::queue_objects;
use crate::placement::{DevicePool, NoSpace};
use crate::records::{Inode, Intent, counter, decode, load, next_number, save};
use crate::server::{Mds, OWN_CREDENTIAL_MS};
use crate::store::{Snapshot, Transaction};
use crate::tags::{self, PendingTag};

mod balance;
mod migrate;

pub use balance::BalancePass;
pub use migrate::{FileMigration, MigrationOrder};

/// Lowest rate, bytes per second: below it a command of one copy would wait for hours.
pub const DRAIN_RATE_MIN: u64 = 65_536;
/// Inodes read in one step of a search.
const SCAN_PAGE: usize = 1024;
/// Delay before a client repeats a write to a file whose object has just moved, milliseconds.
const MOVED_RETRY_MS: u32 = 10;
/// Moves that are abandoned in one transaction.
const MOVES_PAGE: usize = 1024;
/// Time after the expiry of a grant in which a command that it permitted may still run,
/// milliseconds. It covers clocks that are behind ours.
const CREATE_MARGIN_MS: u64 = 60_000;

record! {
    /// An object being moved.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ObjectMove {
        /// Index in the layout.
        pub index: u16,
        /// Current object.
        pub from: ObjectRef,
        /// Future object.
        pub to: ObjectRef,
        /// Generation of the file at the beginning.
        pub generation: u32,
        /// Tag of the current object since then.
        pub tag: u32,
        /// State of the new device when it was chosen.
        pub chosen: ChosenDevice,
    }
}

/// A file with an object that has to leave its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveItem {
    /// Inode number of the file.
    pub inode: InodeId,
    /// Bytes of the object, as far as known.
    pub bytes: u64,
}

/// Order to copy an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveOrder {
    /// Inode number of the file.
    pub inode: InodeId,
    /// Object to copy.
    pub from: ObjectRef,
    /// New object; it does not exist yet, and only the copier creates it.
    pub to: ObjectRef,
    /// Whether the object must have bytes: if it does not exist, they are lost.
    pub filled: bool,
    /// Whether the move is for balance; otherwise its device is drained.
    pub balances: bool,
    /// Whether clients may still create the old object. Then it stays, fenced, until they cannot
    /// any more.
    pub stays: bool,
}

/// Result of the beginning of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveStart<O = MoveOrder> {
    /// Copy this when [`Mds::is_fenced`] returns true, then call [`Mds::finish_move`]; for a whole
    /// file [`Mds::is_migration_fenced`] and [`Mds::finish_migration`].
    Started(O),
    /// Not now: the file is in use in a way that a move would disturb.
    InUse,
    /// Nothing to move any more.
    NothingToMove,
}

/// Reason for a move.
#[derive(Clone, Copy)]
enum MoveReason<'a> {
    /// The device is drained.
    Leave(DeviceId),
    /// According to these figures other devices are emptier.
    Balance(&'a DevicePool),
}

impl MoveReason<'_> {
    /// Returns the index of the next object of the layout to move, if any.
    fn next(self, layout: &Layout, size: u64) -> Option<usize> {
        match self {
            Self::Leave(device) => layout.objects().iter().position(|object| object.device == device),
            Self::Balance(pool) => {
                (0..layout.width()).find(|&index| balancing_target(pool, layout, index, size).is_some())
            }
        }
    }
}

/// Returns the target of an object whose move improves the balance; empty objects are not moved.
fn balancing_target(
    pool: &DevicePool,
    layout: &Layout,
    index: usize,
    size: u64,
) -> Option<(DeviceId, ChosenDevice)> {
    let (object, length) = (layout.objects().get(index)?, layout.object_length(index, size));
    (length > 0)
        .then(|| pool.balancing_target(object.object.object, length, object.device, &taken(layout)))?
}

fn taken(layout: &Layout) -> Vec<DeviceId> {
    layout.objects().iter().map(|object| object.device).collect()
}

/// Result of one search step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovePage {
    /// Files found.
    pub items: Vec<MoveItem>,
    /// Position of the next step; none at the end.
    pub next: Option<InodeId>,
}

/// Result of a search of a whole device that is drained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainPass {
    /// Number of objects of files.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of objects that could not be moved because they are in use.
    pub in_use: u64,
    /// Number of objects without a file that are not removed yet.
    pub removing: u64,
    /// The first problem.
    pub problem: String,
}

impl Mds {
    /// Begins to drain a device: it gets no new files, and its objects are moved at `rate` bytes
    /// per second at most (0: unlimited).
    pub(crate) fn drain(&self, id: DeviceId, rate: u64, now_ms: u64) -> Result<()> {
        check_rate(rate)?;
        self.change_device(id, Some(DeviceState::Draining))?;
        // Waits for requests that have chosen the device for a new file before.
        drop(self.issuing.write());
        self.update(|tx| {
            let known: Option<Drain> = load(tx, &keys::drain(id))?;
            let fresh = Drain { began_ms: now_ms, ..Drain::default() };
            // A repeated request continues the drain at another rate.
            let drain = Drain { rate, ..known.filter(|known| known.done_ms.is_none()).unwrap_or(fresh) };
            Ok(save(tx, &keys::drain(id), &drain)?)
        })
    }

    /// Ends a drain; moved objects stay where they are.
    pub(crate) fn forget_drain(&self, id: DeviceId) -> Result<()> {
        self.update(|tx| Ok(tx.delete(&keys::drain(id))?))
    }

    pub(crate) fn drain_of(&self, id: DeviceId) -> Result<Option<Drain>> {
        Ok(load(&*self.store.snapshot()?, &keys::drain(id))?)
    }

    /// Returns the devices being drained that are not empty yet.
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

    /// Searches some files, after `after`, for objects on a device.
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

    /// Counts objects on a device that belong to creates; they are moved after Commit.
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

    /// Counts objects on a device that wait for removal, except those that only wait for a second
    /// removal. O(such objects of all devices).
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

    /// Begins to move an object of a file away from a device. From then on, a new right to write
    /// ends the move. A file that is open for writing is not moved now.
    ///
    /// # Errors
    /// `Refused` with `NoSpace` if no other device has enough free space; `Store`.
    pub fn begin_move(&self, inode: InodeId, device: DeviceId, now_ms: u64) -> Result<MoveStart> {
        self.begin(inode, MoveReason::Leave(device), now_ms)
    }

    /// Begins to move an object of the file whose move improves the balance, if there is one.
    ///
    /// # Errors
    /// `Store`.
    pub fn begin_balancing_move(&self, inode: InodeId, pool: &DevicePool, now_ms: u64) -> Result<MoveStart> {
        self.begin(inode, MoveReason::Balance(pool), now_ms)
    }

    fn begin(&self, inode: InodeId, reason: MoveReason<'_>, now_ms: u64) -> Result<MoveStart> {
        // Waits for requests that are issuing credentials, so that these are seen below.
        let _alone = self.issuing.write();
        let pool = self.devices.pool();
        let begun = self.update(|tx| {
            abandon(tx, inode, now_ms)?;
            let Some(file) = load::<Inode, _>(tx, &keys::inode(inode))? else {
                return Ok(MoveStart::NothingToMove);
            };
            let Some(layout) = &file.layout else { return Ok(MoveStart::NothingToMove) };
            let Some(index) = reason.next(layout, file.size) else { return Ok(MoveStart::NothingToMove) };
            let from = layout.objects()[index];
            // A pending retag goes first, and truncated bytes are cleared at the old place.
            let busy = tx.get(&keys::retag(from))?.is_some() || file.truncated_from.is_some();
            let length = layout.object_length(index, file.size);
            let written = self.open_files.may_be_written(inode, now_ms) || may_be_made(&file, now_ms);
            // Programs with a capability file cannot get a new one, so they must not be fenced.
            if busy || written || self.issued_table(now_ms).is_lasting(from, now_ms) {
                return Ok(MoveStart::InUse);
            }
            let (to, chosen) = match reason {
                // Two objects on one device are better than one on a device that will be removed.
                MoveReason::Leave(device) => successor(&pool, from, length, (&taken(layout), device))
                    // Only the device knows the stored bytes of a file with holes: the copy finds
                    // out whether it fits.
                    .or_else(|error| match file.sparse || length > self.devices.used(device) {
                        true => successor(&pool, from, 0, (&taken(layout), device)),
                        false => Err(error),
                    })
                    .map_err(|_| {
                        MdsError::refused(ErrorCode::NoSpace, "no other device has enough free space")
                    })?,
                MoveReason::Balance(figures) => match balancing_target(figures, layout, index, file.size) {
                    // The figures may be older than the drain of that device.
                    Some((to, chosen)) if pool.has(to) => (to, chosen),
                    _ => return Ok(MoveStart::NothingToMove),
                },
            };
            let number = next_number(tx, counter::OBJECT)?;
            let to = ObjectRef { device: to, object: ObjectId::new(from.object.partition, number) };
            let tag = tags::draw(tx, 1)?;
            save(tx, &keys::tag(from), &tag)?;
            // A missing object is created, empty. Otherwise it could be created behind the fence,
            // and after an abandoned move it could not be created at all because of its new tag.
            let creates = !must_exist(&file, length);
            save(tx, &keys::retag(from), &PendingTag { tag, creates, waits: Vec::new() })?;
            let index = u16::try_from(index).unwrap_or(u16::MAX);
            let begun = ObjectMove { index, from, to, generation: file.generation, tag, chosen };
            save(tx, &keys::object_move(inode), &begun)?;
            let filled = length > 0 && must_exist(&file, length);
            let (balances, stays) = (
                matches!(reason, MoveReason::Balance(_)),
                may_be_running(file.in_place_grants_until_ms, now_ms),
            );
            Ok(MoveStart::Started(MoveOrder { inode, from, to, filled, balances, stays }))
        })?;
        if matches!(begun, MoveStart::Started(_)) {
            self.revocations_changed.store(true, Ordering::Release);
        }
        Ok(begun)
    }

    /// Whether the device refuses all older credentials for the object. Also true for an abandoned
    /// move.
    ///
    /// # Errors
    /// `Store`.
    pub fn is_fenced(&self, order: &MoveOrder) -> Result<bool> {
        Ok(self.store.snapshot()?.get(&keys::retag(order.from))?.is_none())
    }

    /// Finishes a move after the copy is durable: the copy replaces the object, unless a client got
    /// the right to write, or the file was truncated or removed. Returns whether it did. The old
    /// object is removed at once: readers request the new location.
    ///
    /// # Errors
    /// `Store`.
    pub fn finish_move(&self, order: &MoveOrder, bytes: u64, now_ms: u64) -> Result<bool> {
        let _alone = self.issuing.write();
        let done = self.update(|tx| {
            let key = keys::object_move(order.inode);
            let known = load::<ObjectMove, _>(tx, &key)?.filter(|known| known.to == order.to);
            let Some(ObjectMove { index, from, to, generation, tag, chosen }) = known else {
                // Abandoned meanwhile; this also removes what was copied since.
                queue_copy_removal(tx, order.to, now_ms)?;
                return Ok(false);
            };
            let file = load::<Inode, _>(tx, &keys::inode(order.inode))?;
            let lasting = self.issued_table(now_ms).is_lasting(from, now_ms);
            let replaced = |file: &Inode| {
                let layout = file.layout.as_ref()?;
                let touched = file.generation != generation || file.truncated_from.is_some();
                let waits = touched || lasting || may_be_made(file, now_ms);
                layout.replaced(usize::from(index), from, to).filter(|_| !waits)
            };
            let layout = file.as_ref().and_then(replaced);
            let tag_now = tags::of(tx, from)?;
            let (Some(mut file), Some(layout)) = (file, layout) else {
                abandon(tx, order.inode, now_ms)?;
                return Ok(false);
            };
            if tag != tag_now {
                // Revoked meanwhile: the next move starts from the new tag.
                abandon(tx, order.inode, now_ms)?;
                return Ok(false);
            }
            let (guard_ms, file_placing_ms) = (file.create_grants_until_ms, file.in_place_grants_until_ms);
            file.layout = Some(layout);
            let known = file.placed.as_mut().and_then(|placed| placed.chosen.get_mut(usize::from(index)));
            if let Some(known) = known {
                *known = chosen;
            }
            save(tx, &keys::inode(order.inode), &file)?;
            tx.delete(&key)?;
            // From now on no credential is issued for the old object, and an earlier one has a tag
            // that the device refuses.
            tx.delete(&keys::tag(from))?;
            // In-place writers create missing objects under the partition's tag, so the old object
            // has to stay for them.
            let due_ms = match order.stays || may_be_running(file_placing_ms, now_ms) {
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
            if order.balances {
                balance::note_moved(tx, bytes)?;
            }
            Ok(true)
        })?;
        Ok(done)
    }

    /// Abandons a move whose copy failed.
    ///
    /// # Errors
    /// `Store`.
    pub fn abandon_move(&self, order: &MoveOrder, now_ms: u64) -> Result<()> {
        self.update(|tx| {
            let known = load::<ObjectMove, _>(tx, &keys::object_move(order.inode))?;
            match known.is_some_and(|known| known.to == order.to) {
                true => abandon(tx, order.inode, now_ms).map(drop),
                false => queue_copy_removal(tx, order.to, now_ms),
            }
        })
    }

    /// Abandons all recorded moves: those of the server before this start.
    ///
    /// # Errors
    /// `Store`.
    pub fn abandon_moves(&self, now_ms: u64) -> Result<usize> {
        Ok(self.abandon_all(&keys::object_moves(), now_ms)?
            + self.abandon_all(&keys::migrations(), now_ms)?)
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
                        Some(inode) => _ = abandon(tx, inode, now_ms)?,
                        None => tx.delete(key)?,
                    }
                }
                Ok(())
            })?;
        }
    }

    /// Returns a state in which the file is not being moved; a writer ends moves first.
    ///
    /// # Errors
    /// `Busy` if a move ended meanwhile, perhaps successfully: then the client's layout is
    /// outdated.
    pub(crate) fn abandon_moves_of(&self, inode: InodeId, now_ms: u64) -> Result<Box<dyn Snapshot + '_>> {
        loop {
            let view = self.store.snapshot()?;
            if view.get(&keys::object_move(inode))?.is_none() && view.get(&keys::migration(inode))?.is_none()
            {
                return Ok(view);
            }
            drop(view);
            // Another server may begin the next move before the check is repeated.
            if !self.update(|tx| abandon(tx, inode, now_ms))? {
                return Err(MdsError::Refused(Failure::busy(MOVED_RETRY_MS)));
            }
        }
    }

    /// Records a search of a whole device; with nothing left the drain is done. `began_ms`
    /// identifies the drain: one that was started again meanwhile is not ended.
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

/// Chooses the target device of an object: one without another object of the file, if possible.
fn successor(
    pool: &DevicePool,
    from: ObjectRef,
    length: u64,
    (taken, leaves): (&[DeviceId], DeviceId),
) -> std::result::Result<(DeviceId, ChosenDevice), NoSpace> {
    let number = from.object.object;
    pool.successor(number, length, taken).or_else(|_| pool.successor(number, length, &[leaves]))
}

fn check_rate(rate: u64) -> Result<()> {
    if (1..DRAIN_RATE_MIN).contains(&rate) {
        let why = format!("rate below the minimum of {DRAIN_RATE_MIN} bytes per second");
        return Err(MdsError::refused(ErrorCode::Limit, why));
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

/// Abandons the move of a file's object, or the migration of the file, if there is one. The copy is
/// removed, and removed again after the last credential that could create it has expired.
fn abandon(tx: &mut dyn Transaction, inode: InodeId, now_ms: u64) -> Result<bool> {
    let key = keys::object_move(inode);
    let Some(ObjectMove { to, .. }) = load::<ObjectMove, _>(tx, &key)? else {
        return migrate::abandon(tx, inode, now_ms);
    };
    tx.delete(&key)?;
    queue_copy_removal(tx, to, now_ms)?;
    Ok(true)
}

/// Queues the removal of an unused copy; the copier may still be writing it.
fn queue_copy_removal(tx: &mut dyn Transaction, to: ObjectRef, now_ms: u64) -> Result<()> {
    if tx.get(&keys::reap(now_ms, to))?.is_some() {
        return Ok(());
    }
    queue_objects(tx, &[to], now_ms, now_ms.saturating_add(OWN_CREDENTIAL_MS))
}

/// Whether an object with `length` bytes of the file must exist on its device. Objects of a file
/// created by `put` exist if they have bytes.
fn must_exist(file: &Inode, length: u64) -> bool {
    file.objects_exist || (!file.sparse && length > 0)
}

/// Whether a command of a credential valid until then may still run; 0: there was none.
const fn may_be_running(until_ms: u64, now_ms: u64) -> bool {
    until_ms > 0 && until_ms.saturating_add(CREATE_MARGIN_MS) >= now_ms
}

/// Whether in-place writers may create objects of the file, including one that was moved meanwhile.
const fn may_be_made(file: &Inode, now_ms: u64) -> bool {
    !file.objects_exist && may_be_running(file.in_place_grants_until_ms, now_ms)
}
