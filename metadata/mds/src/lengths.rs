//! Object lengths, compared with the recorded sizes where a quota limits bytes: a client may write
//! longer objects than it reports.
//!
//! Does: list the files and creates that credentials to write were issued for, for the daemon, when
//! these expire; count the bytes of a create, truncate a file whose objects are longer than its
//! size.
//! Does not: query devices; the daemon does. Does not: keep the list; `table` does.
//! Contract: bytes beyond the size of a file in a quota are truncated when no client can write it
//! any more. If they exceed the quota its credentials are revoked first. A create is charged with
//! the bytes of its objects, and ends if they exceed the quota. A user has a share of the entries
//! (see `share`), and gets no credentials in a quota beyond it (Busy). O(objects of the file) at
//! its devices, once in the life of a credential, only for files in a quota.
//! Truth: docs/adr/0062-bounds-per-user.md.

use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{Failure, InodeId, IntentId, LeaseKind, ObjectRef, UserName};

use crate::counters::add;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::namespace;
use crate::quota::{self, QuotaCharge};
use crate::records::{Inode, Intent, load, save};
use crate::server::Mds;
use crate::store::Snapshot;
use crate::tags::retag_file;

pub(crate) mod table;

use table::{LengthTarget, MARGIN_MS};

/// Delay before a request of a user without a free share is repeated, milliseconds.
const BUSY_MS: u32 = 2_000;

/// A file or create whose objects need measuring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LengthItem {
    what: LengthTarget,
    /// `None`: an uncommitted create.
    file: Option<InodeId>,
    /// The objects, each with its length by the recorded size.
    pub objects: Vec<(ObjectRef, u64)>,
    size: u64,
    generation: u32,
}

impl Mds {
    /// Called before a credential to write is issued: in a quota that limits bytes the objects are
    /// measured later.
    ///
    /// # Errors
    /// `Busy` if the user's share of such checks is used up.
    pub(crate) fn check_lengths_later(
        &self,
        what: LengthTarget,
        user: &UserName,
        expires_ms: u64,
    ) -> Result<()> {
        let view = self.store.snapshot()?;
        let limited = match what {
            LengthTarget::File(id) => match load::<Inode, _>(&*view, &keys::inode(id))? {
                Some(file) => quota::free_bytes(&*view, &file)?.is_some(),
                None => false,
            },
            LengthTarget::Create(id, _) => self.is_create_limited(&*view, id)?,
        };
        if limited && !self.length_checks.note(what, user, expires_ms) {
            return Err(MdsError::Refused(Failure::busy(BUSY_MS)));
        }
        Ok(())
    }

    fn is_create_limited(&self, view: &dyn Snapshot, id: IntentId) -> Result<bool> {
        let charges: Option<Vec<QuotaCharge>> = load(view, &keys::create_charge(id))?;
        quota::limits_bytes(view, charges.as_deref().unwrap_or_default())
    }

    /// Returns up to `limit` files and creates to measure now. [`Mds::lengths_found`] takes the
    /// result; one without a result is returned again.
    ///
    /// # Errors
    /// `Store`.
    pub fn next_length_checks(&self, limit: usize, now_ms: u64) -> Result<Vec<LengthItem>> {
        let mut items = Vec::new();
        for what in self.length_checks.due(limit, now_ms) {
            match self.length_item(what)? {
                Some(item) => items.push(item),
                None => self.length_checks.remove(what),
            }
        }
        Ok(items)
    }

    /// Returns `None` if there is nothing to measure: it ended, has no objects, or is in no quota
    /// that limits bytes.
    fn length_item(&self, what: LengthTarget) -> Result<Option<LengthItem>> {
        let view = self.store.snapshot()?;
        let (LengthTarget::File(inode) | LengthTarget::Create(_, inode)) = what;
        let create = match what {
            LengthTarget::Create(id, _) => {
                load::<Intent, _>(&*view, &keys::intent(id))?.map(|intent| (id, intent))
            }
            LengthTarget::File(_) => None,
        };
        let (file, layout, size, generation) = match create {
            Some((id, intent)) => {
                if !self.is_create_limited(&*view, id)? {
                    return Ok(None);
                }
                (None, intent.layout, 0, 0)
            }
            None => {
                let Some(file) = load::<Inode, _>(&*view, &keys::inode(inode))? else { return Ok(None) };
                if quota::free_bytes(&*view, &file)?.is_none() {
                    return Ok(None);
                }
                let Some(layout) = file.layout else { return Ok(None) };
                (Some(inode), layout, file.size, file.generation)
            }
        };
        let objects = layout.objects().iter().enumerate();
        let objects = objects.map(|(index, object)| (*object, layout.object_length(index, size))).collect();
        Ok(Some(LengthItem { what, file, objects, size, generation }))
    }

    /// Applies the lengths from the devices, in the order of the objects.
    ///
    /// # Errors
    /// `Store`; it is returned again then.
    pub fn lengths_found(&self, item: &LengthItem, lengths: &[u64], now_ms: u64) -> Result<()> {
        let bytes = lengths.iter().fold(0, |sum: u64, length| sum.saturating_add(*length));
        let next_ms = match (item.file, item.what) {
            (Some(id), _) | (None, LengthTarget::File(id)) => {
                self.file_measured(id, item, lengths, now_ms)?
            }
            (None, LengthTarget::Create(id, _)) => self.create_measured(id, bytes, now_ms)?,
        };
        match next_ms {
            Some(due_ms) => self.length_checks.put_off(item.what, due_ms),
            None => self.length_checks.remove(item.what),
        }
        Ok(())
    }

    /// Returns when to measure it again.
    fn file_measured(
        &self,
        id: InodeId,
        item: &LengthItem,
        lengths: &[u64],
        now_ms: u64,
    ) -> Result<Option<u64>> {
        let beyond = item.objects.iter().zip(lengths).map(|((_, known), is)| is.saturating_sub(*known));
        let beyond = beyond.fold(0, u64::saturating_add);
        let later = Some(now_ms.saturating_add(self.config.grant_lifetime_ms()));
        let revoked = self.length_checks.is_revoked(item.what);
        let writable = !revoked && self.may_be_written(id, item, now_ms);
        if beyond == 0 {
            return Ok(later.filter(|_| writable));
        }
        let fits = {
            let view = self.store.snapshot()?;
            let Some(file) = load::<Inode, _>(&*view, &keys::inode(id))? else { return Ok(None) };
            quota::check_growth(&*view, &file, beyond).is_ok()
        };
        if writable && fits {
            // A client may have unreported writes.
            return Ok(later);
        }
        if writable {
            self.update(|tx| retag_file(tx, id, now_ms))?;
            self.revocations_changed.store(true, Ordering::Release);
            self.length_checks.set_revoked(item.what);
            tracing::warn!(
                inode = id.0,
                beyond,
                "objects exceed a quota beyond the file's size: credentials revoked"
            );
            return Ok(Some(now_ms.saturating_add(MARGIN_MS)));
        }
        if revoked && !self.is_retagged(id)? {
            return Ok(Some(now_ms.saturating_add(MARGIN_MS)));
        }
        let cut = self.update(|tx| {
            namespace::truncate_overlong(tx, id, (item.size, item.generation), self.reap_due(now_ms))
        })?;
        if cut {
            self.clears_changed.store(true, Ordering::Release);
            add(&self.counters.overlong_cut, 1);
            tracing::warn!(inode = id.0, beyond, "objects longer than the file's size; truncating them");
            return Ok(None);
        }
        // It changed meanwhile.
        Ok(later)
    }

    fn may_be_written(&self, id: InodeId, item: &LengthItem, now_ms: u64) -> bool {
        let objects: Vec<ObjectRef> = item.objects.iter().map(|(object, _)| *object).collect();
        self.open_files.may_be_written(id, now_ms)
            || self.leases.on_node(id).iter().any(|(_, kind)| *kind == LeaseKind::Write)
            || self.issued_table(now_ms).of_objects(&objects, now_ms).holders.iter().any(|one| one.writes)
    }

    /// Charges a create with the bytes of its objects. Returns when to measure it again.
    fn create_measured(&self, id: IntentId, bytes: u64, now_ms: u64) -> Result<Option<u64>> {
        let later = Some(now_ms.saturating_add(self.config.grant_lifetime_ms()));
        if bytes <= namespace::charged_bytes(&*self.store.snapshot()?, id)? {
            return Ok(later);
        }
        let fits = self.update(|tx| {
            let more = bytes.saturating_sub(namespace::charged_bytes(tx, id)?);
            let key = keys::create_charge(id);
            let Some(mut charges) = load::<Vec<QuotaCharge>, _>(tx, &key)? else { return Ok(None) };
            match quota::charge_more(tx, &mut charges, more) {
                Ok(()) => {
                    save(tx, &key, &charges)?;
                    save(tx, &keys::create_bytes(id), &bytes)?;
                    Ok(Some(true))
                }
                Err(MdsError::Refused(_)) => {
                    namespace::discard_create(tx, id, now_ms)?;
                    Ok(Some(false))
                }
                Err(error) => Err(error),
            }
        })?;
        Ok(match fits {
            Some(true) => later,
            Some(false) => {
                add(&self.counters.overlong_cut, 1);
                tracing::warn!(create = id.0, bytes, "a create exceeds a quota; cancelled");
                None
            }
            None => None,
        })
    }

    /// Returns the number of files and creates to measure.
    #[must_use]
    pub fn length_checks(&self) -> usize {
        self.length_checks.count()
    }
}
