//! Migration of files to another layout that have outgrown theirs.
//!
//! Contract: as for a move of one object ([`super`]), but of all objects at once. Each old object
//! gets a new tag and is fenced before any byte is read. One transaction replaces the layout and
//! queues the old objects for removal. The new layout has a new number and the file keeps its
//! *generation*, so that clients recognise the same bytes in another shape. A migration does not
//! begin while a client could create an old object again: a client that does not find it gets the
//! new location.
//! Truth: docs/standards/mds/layouts.md §6.6; docs/adr/0047-restriping-of-grown-files.md.

use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{InodeId, Layout, LeaseKind, PlacementRecord, record};

use super::{MOVES_PAGE, MoveStart, may_be_running, must_exist, queue_copy_removal};
use crate::counters::add;
use crate::error::Result;
use crate::keys;
use crate::namespace::queue_objects;
use crate::placement::outgrown::LayoutForm;
use crate::records::{Inode, load, save};
use crate::server::Mds;
use crate::store::{Snapshot, Transaction};
use crate::tags::{self, PendingTag};

record! {
    /// A file being migrated to another layout.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct FileMigration {
        /// Generation of the file at the beginning.
        pub generation: u32,
        /// Current layout.
        pub from: Layout,
        /// Tag of its first object since then; the others have the following numbers.
        pub first_tag: u32,
        /// Future layout.
        pub to: Layout,
        /// Reason for the choice of that layout.
        pub placed: PlacementRecord,
    }
}

/// Order to copy a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationOrder {
    /// Inode number of the file.
    pub inode: InodeId,
    /// Its layout. All objects have to be read to their ends, whatever the size of the file: bytes
    /// behind it may be reported later.
    pub from: Layout,
    /// Whether each object must have bytes: if it does not exist, they are lost.
    pub filled: Vec<bool>,
    /// New layout; its objects do not exist yet, and only the copier creates them. All have to be
    /// created.
    pub to: Layout,
    /// Minimum length of each of them, bytes; 0 if missing bytes read as zeros.
    pub lengths: Vec<u64>,
    /// Size of the file in bytes.
    pub size: u64,
}

impl Mds {
    /// Returns some files that may have outgrown their layout, after `after`.
    ///
    /// # Errors
    /// `Store`.
    pub fn next_outgrown(&self, after: Option<InodeId>) -> Result<Vec<InodeId>> {
        let (from, until) = keys::outgrowns(after);
        let page = self.store.snapshot()?.scan(&from, &until, MOVES_PAGE)?;
        Ok(page.iter().filter_map(|(key, _)| keys::outgrown_inode(key)).collect())
    }

    /// Begins to migrate a file to the layout that it would get now, if it has outgrown its own;
    /// otherwise removes its mark. From then on, a new right to write ends the migration. A file
    /// that is open for writing is not migrated now.
    ///
    /// # Errors
    /// `Store`.
    pub fn begin_migration(&self, inode: InodeId, now_ms: u64) -> Result<MoveStart<MigrationOrder>> {
        // Many marked files are open: check this before the lock that stops all other requests.
        if self.open_files.may_be_written(inode, now_ms) {
            return Ok(MoveStart::InUse);
        }
        // Waits for requests that are issuing credentials, so that these are seen below.
        let _alone = self.issuing.write();
        let pool = self.devices.pool();
        let begun = self.update(|tx| {
            super::abandon(tx, inode, now_ms)?;
            let nothing_to_move = |tx: &mut dyn Transaction| -> Result<_> {
                tx.delete(&keys::outgrown(inode))?;
                Ok(MoveStart::NothingToMove)
            };
            let Some(file) = load::<Inode, _>(tx, &keys::inode(inode))? else { return nothing_to_move(tx) };
            let Some(from) = &file.layout else { return nothing_to_move(tx) };
            if pool.outgrown(LayoutForm::of(from), file.size, inode.0, self.config.width_max).is_none() {
                return nothing_to_move(tx);
            }
            if self.is_in_use(tx, inode, &file, from, now_ms)? {
                return Ok(MoveStart::InUse);
            }
            let (to, mut placed) =
                self.allocate_layout(tx, inode, Some(file.size), (&pool, now_ms), "file")?;
            placed.outgrew = u16::try_from(from.width()).ok();
            let first_tag = tags::draw(tx, from.width())?;
            let mut filled = Vec::with_capacity(from.width());
            for ((index, object), tag) in from.objects().iter().enumerate().zip(first_tag..) {
                let length = from.object_length(index, file.size);
                let exists = must_exist(&file, length);
                save(tx, &keys::tag(*object), &tag)?;
                // A missing object is created, empty; otherwise it could be created behind the
                // fence.
                save(tx, &keys::retag(*object), &PendingTag { tag, creates: !exists, waits: Vec::new() })?;
                filled.push(exists && length > 0);
            }
            let needed = |index| if file.sparse { 0 } else { to.object_length(index, file.size) };
            let lengths = (0..to.width()).map(needed).collect();
            let (from, size) = (from.clone(), file.size);
            let note = FileMigration { generation: file.generation, from, first_tag, to, placed };
            save(tx, &keys::migration(inode), &note)?;
            let FileMigration { from, to, .. } = note;
            Ok(MoveStart::Started(MigrationOrder { inode, from, filled, to, lengths, size }))
        })?;
        if matches!(begun, MoveStart::Started(_)) {
            self.revocations_changed.store(true, Ordering::Release);
        }
        Ok(begun)
    }

    /// Whether a migration would disturb a client of the file.
    fn is_in_use(
        &self,
        tx: &mut dyn Transaction,
        inode: InodeId,
        file: &Inode,
        layout: &Layout,
        now_ms: u64,
    ) -> Result<bool> {
        let leased = || self.leases.on_node(inode).iter().any(|(_, kind)| *kind == LeaseKind::Write);
        if self.is_changing(file, layout, now_ms) || self.open_files.may_be_written(inode, now_ms) || leased()
        {
            return Ok(true);
        }
        for object in layout.objects() {
            // A pending retag goes first.
            if tx.get(&keys::retag(*object))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether truncated bytes are being cleared, a client may create objects, or a capability file
    /// is valid.
    fn is_changing(&self, file: &Inode, layout: &Layout, now_ms: u64) -> bool {
        let issued_table = self.issued_table(now_ms);
        let lasting = layout.objects().iter().any(|object| issued_table.is_lasting(*object, now_ms));
        lasting || file.truncated_from.is_some() || may_be_running(file.in_place_grants_until_ms, now_ms)
    }

    /// Whether all devices refuse all older credentials for the file. Also true for an abandoned
    /// migration.
    ///
    /// # Errors
    /// `Store`.
    pub fn is_migration_fenced(&self, order: &MigrationOrder) -> Result<bool> {
        let view = self.store.snapshot()?;
        for object in order.from.objects() {
            if view.get(&keys::retag(*object))?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the migration was not abandoned for a writer.
    ///
    /// # Errors
    /// `Store`.
    pub fn is_migration_pending(&self, order: &MigrationOrder) -> Result<bool> {
        Ok(note(&*self.store.snapshot()?, order)?.is_some())
    }

    /// Finishes a migration after the copy is durable: the new layout replaces the old one, unless
    /// a client got the right to write, or the file was truncated or removed. Returns whether it
    /// did. The old objects are removed at once: readers request the new location.
    ///
    /// # Errors
    /// `Store`.
    pub fn finish_migration(&self, order: &MigrationOrder, bytes: u64, now_ms: u64) -> Result<bool> {
        let _alone = self.issuing.write();
        let done = self.update(|tx| {
            let Some(FileMigration { generation, from, first_tag, to, placed }) = note(tx, order)? else {
                // Abandoned meanwhile; this also removes what was copied since.
                queue_copy_removals(tx, &order.to, now_ms)?;
                return Ok(false);
            };
            let file = load::<Inode, _>(tx, &keys::inode(order.inode))?;
            let same = |file: &Inode| {
                let stays = file.layout.as_ref() == Some(&from) && file.generation == generation;
                stays && !self.is_changing(file, &from, now_ms)
            };
            let Some(mut file) = file.filter(same) else {
                abandon(tx, order.inode, now_ms)?;
                return Ok(false);
            };
            for (object, tag) in from.objects().iter().zip(first_tag..) {
                if tags::of(tx, *object)? != tag {
                    // Revoked meanwhile: the next migration starts from the new tags.
                    abandon(tx, order.inode, now_ms)?;
                    return Ok(false);
                }
            }
            let guard_ms = file.create_grants_until_ms;
            file.layout = Some(to);
            file.placed = Some(placed);
            // The copier created all of them, and no other client had the right to.
            file.objects_exist = true;
            (file.create_grants_until_ms, file.in_place_grants_until_ms) = (0, 0);
            save(tx, &keys::inode(order.inode), &file)?;
            tx.delete(&keys::migration(order.inode))?;
            tx.delete(&keys::outgrown(order.inode))?;
            for object in from.objects() {
                // From now on no credential is issued for it, and an earlier one has a tag that the
                // device refuses.
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

    /// Abandons a migration whose copy failed.
    ///
    /// # Errors
    /// `Store`.
    pub fn abandon_migration(&self, order: &MigrationOrder, now_ms: u64) -> Result<()> {
        self.update(|tx| match note(tx, order)? {
            Some(_) => abandon(tx, order.inode, now_ms).map(drop),
            None => queue_copy_removals(tx, &order.to, now_ms),
        })
    }

    /// Marks files that have outgrown their layout by the current figures.
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

/// Returns the record of an order, if it was not abandoned.
fn note<S: Snapshot + ?Sized>(view: &S, order: &MigrationOrder) -> Result<Option<FileMigration>> {
    Ok(load::<FileMigration, _>(view, &keys::migration(order.inode))?.filter(|known| known.to == order.to))
}

/// Abandons the migration of a file, if there is one; the copy is removed.
pub(super) fn abandon(tx: &mut dyn Transaction, inode: InodeId, now_ms: u64) -> Result<bool> {
    let key = keys::migration(inode);
    let Some(FileMigration { to, .. }) = load::<FileMigration, _>(tx, &key)? else { return Ok(false) };
    tx.delete(&key)?;
    queue_copy_removals(tx, &to, now_ms)?;
    Ok(true)
}

fn queue_copy_removals(tx: &mut dyn Transaction, to: &Layout, now_ms: u64) -> Result<()> {
    to.objects().iter().try_for_each(|object| queue_copy_removal(tx, *object, now_ms))
}
