//! Files that are carried over to another layout, since they have outgrown theirs.
//!
//! Contract: as for a move of one object ([`super`]), of all objects at once: each old one gets another tag and is fenced
//! before a byte is read, and one transaction puts the new layout in the place of the old one and queues the old objects. The
//! new layout has another number and the file the same *generation*: so a client knows the same bytes in another shape from
//! other bytes. Nothing begins while anybody could make an old object again: who does not find it is told where the file is.
//! Truth: docs/standards/mds/layouts.md §6.6; docs/adr/0047-restriping-of-grown-files.md.

use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{InodeId, Layout, LeaseKind, Placed, record};

use super::{Begun, MOVES_PAGE, drop_copy, is_alive, is_there};
use crate::counters::add;
use crate::error::Result;
use crate::keys;
use crate::namespace::queue_objects;
use crate::placement::outgrown::Form;
use crate::records::{Inode, load, save};
use crate::revoke::Retag;
use crate::server::Mds;
use crate::store::{Snapshot, Transaction};
use crate::tags;

record! {
    /// A file under way to another layout.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Carry {
        /// Of the file, when it began.
        pub generation: u32,
        /// The layout that it had then.
        pub from: Layout,
        /// Tag of its first object since then; the others have the numbers after it.
        pub first_tag: u32,
        /// The layout that it will have.
        pub to: Layout,
        /// Why that one.
        pub placed: Placed,
    }
}

/// What is to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarryOrder {
    /// Which file.
    pub inode: InodeId,
    /// Its layout; all objects are to be read to their ends, whatever the file's size: bytes behind it may be about to count.
    pub from: Layout,
    /// Has the object at that place of it bytes for certain? Then it is lost if it is not there.
    pub filled: Vec<bool>,
    /// The layout that takes its place; its objects are not there yet, and nobody else makes them. All are to be made.
    pub to: Layout,
    /// The least length of each of them, bytes; 0 if zeros that are not there are zeros all the same.
    pub lengths: Vec<u64>,
    /// Bytes of the file.
    pub size: u64,
}

impl Mds {
    /// Some files that may have outgrown their layouts, those after `after`.
    ///
    /// # Errors
    /// `Store`.
    pub fn next_outgrown(&self, after: Option<InodeId>) -> Result<Vec<InodeId>> {
        let (from, until) = keys::outgrowns(after);
        let page = self.store.snapshot()?.scan(&from, &until, MOVES_PAGE)?;
        Ok(page.iter().filter_map(|(key, _)| keys::outgrown_inode(key)).collect())
    }

    /// Begins to carry a file over to the layout that it would get now, if it has outgrown its own; else its mark goes.
    /// From here on nobody gets the right to write to it without ending that. One that somebody has open to write stays
    /// as it is for now.
    ///
    /// # Errors
    /// `Store`.
    pub fn begin_carry(&self, inode: InodeId, now_ms: u64) -> Result<Begun<CarryOrder>> {
        // Many files that are marked are open: they are not asked about with all others waiting.
        if self.holds.may_be_written(inode, now_ms) {
            return Ok(Begun::InUse);
        }
        // Whoever is in the middle of getting a credential has it when we look.
        let _alone = self.issuing.write();
        let pool = self.devices.pool();
        let begun = self.update(|tx| {
            super::give_up(tx, inode, now_ms)?;
            let gone = |tx: &mut dyn Transaction| -> Result<_> {
                tx.delete(&keys::outgrown(inode))?;
                Ok(Begun::Gone)
            };
            let Some(file) = load::<Inode, _>(tx, &keys::inode(inode))? else { return gone(tx) };
            let Some(from) = &file.layout else { return gone(tx) };
            if pool.outgrown(Form::of(from), file.size, inode.0, self.config.width_max).is_none() {
                return gone(tx);
            }
            if self.is_in_use(tx, inode, &file, from, now_ms)? {
                return Ok(Begun::InUse);
            }
            let (to, mut placed) = self.lay_out(tx, inode, Some(file.size), (&pool, now_ms), "file")?;
            placed.outgrew = u16::try_from(from.width()).ok();
            let first_tag = tags::draw(tx, from.width())?;
            let mut filled = Vec::with_capacity(from.width());
            for ((index, object), tag) in from.objects().iter().enumerate().zip(first_tag..) {
                let length = from.object_length(index, file.size);
                let there = is_there(&file, length);
                save(tx, &keys::tag(*object), &tag)?;
                // One that is not there is made, empty: else it could be made behind the fence.
                save(tx, &keys::retag(*object), &Retag { tag, creates: !there, waits: Vec::new() })?;
                filled.push(there && length > 0);
            }
            let needed = |index| if file.sparse { 0 } else { to.object_length(index, file.size) };
            let lengths = (0..to.width()).map(needed).collect();
            let (from, size) = (from.clone(), file.size);
            let note = Carry { generation: file.generation, from, first_tag, to, placed };
            save(tx, &keys::carrying(inode), &note)?;
            let Carry { from, to, .. } = note;
            Ok(Begun::Go(CarryOrder { inode, from, filled, to, lengths, size }))
        })?;
        if matches!(begun, Begun::Go(_)) {
            self.revocations_changed.store(true, Ordering::Release);
        }
        Ok(begun)
    }

    /// Would it harm or hinder anybody if the file was carried over?
    fn is_in_use(
        &self,
        tx: &mut dyn Transaction,
        inode: InodeId,
        file: &Inode,
        layout: &Layout,
        now_ms: u64,
    ) -> Result<bool> {
        let leased = || self.leases.of(inode).iter().any(|(_, kind)| *kind == LeaseKind::Write);
        if self.is_changing(file, layout, now_ms) || self.holds.may_be_written(inode, now_ms) || leased() {
            return Ok(true);
        }
        for object in layout.objects() {
            // What the device has not been told yet is told first.
            if tx.get(&keys::retag(*object))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Is something cut off being cleared, may somebody make objects, or read by a credential that cannot be had again?
    fn is_changing(&self, file: &Inode, layout: &Layout, now_ms: u64) -> bool {
        let holdings = self.holdings(now_ms);
        let lasting = layout.objects().iter().any(|object| holdings.is_lasting(*object, now_ms));
        lasting || file.old_from.is_some() || is_alive(file.placing_until_ms, now_ms)
    }

    /// Do all devices refuse all who could write to the file? True for one that was given up.
    ///
    /// # Errors
    /// `Store`.
    pub fn is_carry_fenced(&self, order: &CarryOrder) -> Result<bool> {
        let view = self.store.snapshot()?;
        for object in order.from.objects() {
            if view.get(&keys::retag(*object))?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Has nobody got the right to write to the file since?
    ///
    /// # Errors
    /// `Store`.
    pub fn is_carry_wanted(&self, order: &CarryOrder) -> Result<bool> {
        Ok(note(&*self.store.snapshot()?, order)?.is_some())
    }

    /// The copy is durable: its layout becomes the file's, unless somebody got the right to write, or the file was cut or
    /// is gone. Says whether it did. The old objects are removed at once: whoever reads them asks where the file is.
    ///
    /// # Errors
    /// `Store`.
    pub fn finish_carry(&self, order: &CarryOrder, bytes: u64, now_ms: u64) -> Result<bool> {
        let _alone = self.issuing.write();
        let done = self.update(|tx| {
            let Some(Carry { generation, from, first_tag, to, placed }) = note(tx, order)? else {
                // Given up meanwhile: what was copied since is not missed by the removal.
                drop_copies(tx, &order.to, now_ms)?;
                return Ok(false);
            };
            let file = load::<Inode, _>(tx, &keys::inode(order.inode))?;
            let same = |file: &Inode| {
                let stays = file.layout.as_ref() == Some(&from) && file.generation == generation;
                stays && !self.is_changing(file, &from, now_ms)
            };
            let Some(mut file) = file.filter(same) else {
                give_up(tx, order.inode, now_ms)?;
                return Ok(false);
            };
            for (object, tag) in from.objects().iter().zip(first_tag..) {
                if tags::of(tx, *object)? != tag {
                    // Revoked meanwhile: the next one begins from there.
                    give_up(tx, order.inode, now_ms)?;
                    return Ok(false);
                }
            }
            let guard_ms = file.create_grants_until_ms;
            file.layout = Some(to);
            file.placed = Some(placed);
            // The copier made them all, and nobody else had the right to.
            file.made = true;
            (file.create_grants_until_ms, file.placing_until_ms) = (0, 0);
            save(tx, &keys::inode(order.inode), &file)?;
            tx.delete(&keys::carrying(order.inode))?;
            tx.delete(&keys::outgrown(order.inode))?;
            for object in from.objects() {
                // Nobody gets a credential for it from here on, and of a tag that its device does not have if he does.
                tx.delete(&keys::tag(*object))?;
            }
            queue_objects(tx, from.objects(), now_ms, guard_ms.max(now_ms))?;
            Ok(true)
        })?;
        if done {
            add(&self.counters.carried, 1);
            add(&self.counters.carried_bytes, bytes);
        }
        Ok(done)
    }

    /// The copy did not come to its end.
    ///
    /// # Errors
    /// `Store`.
    pub fn abandon_carry(&self, order: &CarryOrder, now_ms: u64) -> Result<()> {
        self.update(|tx| match note(tx, order)? {
            Some(_) => give_up(tx, order.inode, now_ms).map(drop),
            None => drop_copies(tx, &order.to, now_ms),
        })
    }

    /// Marks files that have outgrown their layouts by the figures of now.
    pub(super) fn mark_outgrown(&self, inodes: &[InodeId]) -> Result<()> {
        if inodes.is_empty() {
            return Ok(());
        }
        self.update(|tx| {
            for inode in inodes {
                save(tx, &keys::outgrown(*inode), &())?;
            }
            Ok(())
        })
    }
}

/// The note of an order, if it stands.
fn note<S: Snapshot + ?Sized>(view: &S, order: &CarryOrder) -> Result<Option<Carry>> {
    Ok(load::<Carry, _>(view, &keys::carrying(order.inode))?.filter(|known| known.to == order.to))
}

/// Ends it, if it is under way: what was copied is removed.
pub(super) fn give_up(tx: &mut dyn Transaction, inode: InodeId, now_ms: u64) -> Result<bool> {
    let key = keys::carrying(inode);
    let Some(Carry { to, .. }) = load::<Carry, _>(tx, &key)? else { return Ok(false) };
    tx.delete(&key)?;
    drop_copies(tx, &to, now_ms)?;
    Ok(true)
}

fn drop_copies(tx: &mut dyn Transaction, to: &Layout, now_ms: u64) -> Result<()> {
    to.objects().iter().try_for_each(|object| drop_copy(tx, *object, now_ms))
}
