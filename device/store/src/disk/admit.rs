//! Letting operations in: each says what it may ask of the index before it begins.
//!
//! Does: look for room where none is known, by looking at the file anew, by making it longer, and by a commit, after which
//! the pages of the one before come free; refuse with `NoSpace` only then. Does not: undo anything.
//! Contract: the caller holds no lock of an object.

use std::ops::Range;

use sealstone_osd::ObjectId;

use super::DiskStore;
use super::chunk::CHUNK_BLOCKS;
use super::record::{Tag, Value, attribute_key};
use super::room::{Admitted, Load, Purpose};
use crate::store::StretchKind;
use crate::{AttributeId, BLOCK, Memberships as _, ObjectStore, StoreError, Stretch};

/// A chunk record of a few extents and all digests, in bytes; one of very many extents has twice that, and takes some of
/// what is kept.
const CHUNK_RECORD: usize = 3600;
/// Memberships that end in a scope for which there is room when it begins.
const SCOPE_REMOVALS: u64 = 8;
/// Looks at the file for one operation at most, each of which makes it longer if it can.
const LOOKS_MAX: usize = 4;

impl Load {
    /// An object's own record, and what any change of its bytes may do beside the chunks: an inline block that comes or
    /// goes, digests of pages, a sum.
    pub(crate) fn object() -> Self {
        Self::group().and(Tag::Object, 2, 48)
    }

    /// The number of the group, which its commit writes.
    fn group() -> Self {
        Self::default().and(Tag::Store, 2, 16)
    }

    /// So many bytes of an object, anywhere.
    pub(crate) fn bytes(length: u64, inline_max: u64) -> Self {
        let chunks = length / (CHUNK_BLOCKS * BLOCK) + 2;
        // Most writes touch little: the record then has few extents.
        let record = if length <= BLOCK { 256 } else { CHUNK_RECORD };
        let inline = if length <= inline_max { length as usize + 48 } else { 0 };
        Self::object().and(Tag::Chunk, chunks + 2, record).and(Tag::Sum, 2, 0).and(Tag::Inline, 2, inline)
    }

    /// An attribute of so many bytes.
    pub(crate) fn attribute(length: usize) -> Self {
        Self::object().and(Tag::Attribute, 2, length + 48).and(Tag::Page, 2, 48)
    }

    /// The digest profile of a partition.
    pub(crate) fn profile() -> Self {
        Self::group().and(Tag::Profile, 2, 16)
    }

    /// Joining or leaving a collection, or making one.
    pub(crate) fn membership() -> Self {
        Self::object().and(Tag::Member, 2, 16).and(Tag::Membership, 2, 16).and(Tag::Collection, 2, 16)
    }

    /// What a scope may do in a full store: remove an object, or write one anew, with some attributes. Additions leave room
    /// for it.
    pub(crate) fn scope() -> Self {
        let load = Self::removal(SCOPE_REMOVALS).and(Tag::Object, 2, 48).and(Tag::Chunk, 4, CHUNK_RECORD);
        load.and(Tag::Inline, 2, BLOCK as usize + 48).and(Tag::Attribute, 4, 0).and(Tag::Page, 4, 48)
    }

    /// An object goes, with so many memberships.
    pub(crate) fn removal(memberships: u64) -> Self {
        let all =
            [Tag::Object, Tag::Chunk, Tag::Attribute, Tag::Page, Tag::Sum, Tag::Inline, Tag::Collection];
        let load = all.into_iter().fold(Self::group(), |load, tag| load.and(tag, 2, 0));
        let each = 2 * memberships;
        load.and(Tag::Member, each, 0).and(Tag::Membership, each, 0).and(Tag::Collection, each, 16)
    }
}

impl DiskStore {
    /// Lets an operation in, or says that there is no room for it.
    pub(crate) fn admit(&self, load: Load, purpose: Purpose) -> Result<Admitted<'_>, StoreError> {
        self.make_room();
        match self.room.admit(load, purpose, || self.index.open_load()) {
            Some(admitted) => Ok(admitted),
            None => self.admit_slowly(load, purpose),
        }
    }

    fn admit_slowly(&self, load: Load, purpose: Purpose) -> Result<Admitted<'_>, StoreError> {
        self.groups.check()?;
        // A large group counts for much more than it takes: the file is not made longer for what is known exactly after a
        // commit.
        if self.room.is_large(self.index.open_load()) {
            self.commit_for_room()?;
        }
        if let Some(admitted) = self.look_for_room(load, purpose)? {
            return Ok(admitted);
        }
        // What a group lets go of comes free with its commit, or the one after it.
        if self.commit_for_room()?
            && let Some(admitted) = self.look_for_room(load, purpose)?
        {
            return Ok(admitted);
        }
        tracing::debug!(?purpose, "the index has no room");
        Err(StoreError::NoSpace)
    }

    /// Makes room for the open group, of which nothing was counted before.
    pub(crate) fn room_for_open_group(&self) -> Result<(), StoreError> {
        let open = || self.index.open_load();
        let fits = self.room.admit(Load::default(), Purpose::Removal, open).is_some()
            || self.look_for_room(Load::default(), Purpose::Removal)?.is_some();
        if !fits {
            tracing::warn!("the index may have no room for what the write log holds");
        }
        Ok(())
    }

    /// Looks at the index anew. One at a time does; who waited for that tries again first.
    fn look_for_room(&self, load: Load, purpose: Purpose) -> Result<Option<Admitted<'_>>, StoreError> {
        let open = || self.index.open_load();
        let _alone = self.renewing.lock();
        if let Some(admitted) = self.room.admit(load, purpose, open) {
            return Ok(Some(admitted));
        }
        let purpose = purpose.late();
        for _ in 0..LOOKS_MAX {
            // Before: whoever reads the layers may wait for the engine.
            let open_load = open();
            if !self.room.is_possible(&load, purpose, &open_load) {
                break;
            }
            let wanted = self.room.wanted_bytes(load, open_load);
            let suffices = |ground: &_| self.room.suffices(ground, &load, purpose, &open_load);
            // Additions leave alone what is kept free of the file system.
            let is_addition = purpose >= Purpose::Addition;
            let growth_max = self.medium_allowance().filter(|_| is_addition).unwrap_or(u64::MAX);
            match self.index.renew(
                wanted,
                growth_max,
                || self.room.is_touched(),
                suffices,
                |ground| self.room.set(ground),
            ) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.poison(true);
                    return Err(error);
                }
            }
            if let Some(admitted) = self.room.admit(load, purpose, open) {
                return Ok(Some(admitted));
            }
            // Others came in meanwhile, or what was found lies in too small pieces: a scope, which cannot commit, has nothing
            // but a longer file.
        }
        Ok(None)
    }

    /// Lets the removal of an object in. Where there is no room to end all of its memberships at once, most of them end
    /// before it, a few in each group; not in a scope, which is one group.
    pub(crate) fn admit_removal(&self, id: ObjectId) -> Result<Admitted<'_>, StoreError> {
        let count = self.membership_count(id);
        match self.admit(Load::removal(count), Purpose::Removal) {
            Err(StoreError::NoSpace) if count > SCOPE_REMOVALS && !self.groups.gate.holds() => {}
            result => return result,
        }
        let memberships = self.memberships(id)?;
        let surplus = memberships.len().saturating_sub(SCOPE_REMOVALS as usize);
        for (collection, _) in &memberships[..surplus] {
            self.leave(ObjectId::new(id.partition, *collection), id.object)?;
        }
        self.admit(Load::removal(SCOPE_REMOVALS), Purpose::Removal)
    }

    /// Before a scope, in which nothing can be committed: looks for room for some removals and overwrites, if there is not
    /// as much.
    pub(crate) fn room_for_scope(&self) {
        let load = Load::scope();
        let open = || self.index.open_load();
        if !self.groups.gate.holds() && self.room.admit(load, Purpose::Overwrite, open).is_none() {
            // Whatever comes of it, the operations in the scope will say.
            let _ = self.admit_slowly(load, Purpose::Overwrite);
        }
    }

    /// As [`admit`](Self::admit) for an addition; or, where there is no room for that and it changes what is there, for an
    /// overwrite, which may count less.
    pub(crate) fn admit_change(
        &self,
        load: Load,
        overwrite: impl FnOnce() -> Result<Option<Load>, StoreError>,
    ) -> Result<Admitted<'_>, StoreError> {
        let admitted = self.admit(load, Purpose::Addition);
        if !matches!(admitted, Err(StoreError::NoSpace)) {
            return admitted;
        }
        match overwrite()? {
            Some(load) => self.admit(load, Purpose::Overwrite),
            None => admitted,
        }
    }

    /// Has an object data in all of these bytes?
    pub(crate) fn is_mapped(&self, id: ObjectId, bytes: &Range<u64>) -> Result<bool, StoreError> {
        let mut at = bytes.start;
        // An object that is not there says so.
        if self.stat(id)?.length < bytes.end {
            return Ok(false);
        }
        while at < bytes.end {
            let map = self.map(id, at, 64)?;
            let data = |stretch: &&Stretch| matches!(stretch.kind, StretchKind::Data { .. });
            let Some(end) = map.iter().take_while(data).last().map(|last| last.offset + last.length) else {
                return Ok(false);
            };
            at = end;
        }
        Ok(true)
    }

    /// How long an attribute is.
    pub(crate) fn attribute_length(
        &self,
        id: ObjectId,
        attribute: AttributeId,
    ) -> Result<Option<usize>, StoreError> {
        let _lock = self.lock(id).read();
        let found = self.index.get(&attribute_key(id, attribute))?;
        Ok(found.and_then(|value| match value {
            Ok(Value::Attribute(value)) => Some(value.len()),
            _ => None,
        }))
    }
}
