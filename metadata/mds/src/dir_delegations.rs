//! Directory delegations: the client changes names locally and sends the changes later.
//!
//! Does: record delegations and reserved inode numbers durably; delete the records when a lease is
//! returned or revoked.
//! Does not: apply changes; `handle::name_batch` does.
//! Does not: grant leases; `leases` does.
//! Contract: a change is accepted only in a transaction that finds the directory's record of the
//! very lease under which it was made. The record is deleted before other clients read or change
//! names in the directory. It survives a restart, and late changes are refused. One record of about
//! 60 bytes for each delegation.
//! Truth: docs/standards/mds/leases.md §5.11; docs/adr/0050-directory-write-delegations.md.

use std::collections::HashMap;

use sealstone_mds_protocol::{ClientId, DirLeaseId, InodeId};

use crate::access::{Principal, SETGID, STICKY};
use crate::audit::AuditRecord;
use crate::counters::add;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::leases::ClientKey;
use crate::namespace;
use crate::quota;
use crate::records::{counter, load, next_numbers, save};
use crate::server::Mds;
use crate::store::{Snapshot, Wait, each_between};

pub(crate) mod records;

use records::{DirDelegation, NumberRange, ReservedInodes, each};

/// Maximum number of reserved ranges of one client; beyond it the oldest is dropped. A client
/// requests the next range before the last one is used up, and several answers may be lost.
const RANGES_MAX: usize = 16;
/// Maximum number of clients of one user with reserved numbers.
pub(crate) const RESERVED_BY_USER_MAX: usize = 1_024;
/// Records of a client expire this long after it was last seen, like the answers in the replay
/// cache.
const FORGET_MS: u64 = crate::limits::REPLAY_MS;
/// Records deleted in one transaction.
const FORGET_BATCH: usize = 256;

/// Whether a delegation may be granted: the user's access to the directory alone must decide every
/// change of names. Not with the sticky or set-group-ID bit, a default access control list, a quota
/// tree, or a limit of nodes.
pub(crate) fn allows_delegation(view: &dyn Snapshot, principal: &Principal, id: InodeId) -> Result<bool> {
    let directory = namespace::node(view, id)?;
    namespace::need_directory(&directory, "directory")?;
    let plain = directory.links > 0
        && directory.mode & (STICKY | SETGID) == 0
        && directory.default_acl.is_none()
        && directory.tree.is_none();
    Ok(plain
        && principal.needs_entries(&directory, "").is_ok()
        && quota::of_user(view, &principal.user)?.nodes_max.is_none())
}

impl Mds {
    /// Records a delegation if it may be granted; returns whether it was.
    pub(crate) fn record_delegation(
        &self,
        principal: &Principal,
        client_id: ClientId,
        dir: DirLeaseId,
        now_ms: u64,
    ) -> Result<bool> {
        self.update(|tx| {
            if !allows_delegation(tx, principal, dir.inode)? {
                return Ok(false);
            }
            let DirLeaseId { inode, epoch, lease } = dir;
            let known: Option<DirDelegation> = load(tx, &keys::delegation(inode))?;
            if known.is_some_and(|one| {
                (&one.user, one.client_id, one.epoch, one.lease) == (&principal.user, client_id, epoch, lease)
            }) {
                // Requested again: the time of the first grant stays, because unsent changes are
                // newer than it.
                return Ok(true);
            }
            let record =
                DirDelegation { user: principal.user.clone(), client_id, epoch, lease, since_ms: now_ms };
            save(tx, &keys::delegation(inode), &record)?;
            Ok(true)
        })
    }

    /// Reserves inode numbers for a client; returns the first. `None`: too many clients of the user
    /// have reservations.
    pub(crate) fn reserve_inodes(&self, client: &ClientKey, count: u16) -> Result<Option<InodeId>> {
        self.update(|tx| {
            let known: Option<ReservedInodes> = load(tx, &keys::reserved_inodes(client))?;
            if known.is_none() {
                let of_user = keys::reserved_inodes_of(&client.0);
                let dir = tx.scan(&of_user, &keys::after_prefix(&of_user), RESERVED_BY_USER_MAX)?;
                if dir.len() >= RESERVED_BY_USER_MAX {
                    return Ok(None);
                }
            }
            let first = next_numbers(tx, counter::INODE, u64::from(count))?;
            let mut record = known.unwrap_or_default();
            record.ranges.push(NumberRange { next: first, end: first + u64::from(count) });
            let surplus = record.ranges.len().saturating_sub(RANGES_MAX);
            record.ranges.drain(..surplus);
            save(tx, &keys::reserved_inodes(client), &record)?;
            Ok(Some(InodeId(first)))
        })
    }

    /// Deletes the record of a returned delegation; the client has sent all its changes.
    pub(crate) fn release_delegation(&self, id: InodeId, client: &ClientKey, number: u64) -> Result<()> {
        if !self.leases.has_delegation(id, client, number) {
            return Ok(());
        }
        // Need not be durable: the client returns it again after a restart.
        self.update_and(|tx| {
            let record: Option<DirDelegation> = load(tx, &keys::delegation(id))?;
            if record.is_some_and(|record| record.is_of(client) && record.lease == number) {
                tx.delete(&keys::delegation(id))?;
            }
            Ok(((), Wait::No))
        })
    }

    /// Deletes a client's delegations of other epochs. O(delegations).
    pub(crate) fn release_older_delegations(&self, client: &ClientKey, epoch: u64) -> Result<()> {
        self.delete_delegations(|record| record.is_of(client) && record.epoch != epoch).map(drop)
    }

    /// Deletes delegations that match; returns them.
    fn delete_delegations(
        &self,
        mut which: impl FnMut(&DirDelegation) -> bool,
    ) -> Result<Vec<(InodeId, DirDelegation)>> {
        let mut old = Vec::new();
        each(&*self.store.snapshot()?, |id, record| {
            if which(&record) {
                old.push((id, record));
            }
        })?;
        for batch in old.chunks(FORGET_BATCH) {
            self.update_and(|tx| {
                for (id, record) in batch {
                    if load(tx, &keys::delegation(*id))?.as_ref() == Some(record) {
                        tx.delete(&keys::delegation(*id))?;
                    }
                }
                Ok(((), Wait::No))
            })?;
        }
        Ok(old)
    }

    /// Revokes an unreturned directory delegation: its unsent changes will be refused. Returns
    /// whether the node is a directory.
    pub(crate) fn revoke_delegation(&self, id: InodeId, client: &ClientKey, now_ms: u64) -> Result<bool> {
        let Some(number) = self.leases.overdue_delegation(id, client, now_ms) else {
            // Another request revoked it, or the client returned it.
            return Ok(namespace::node(&*self.store.snapshot()?, id).is_ok_and(|one| one.is_directory()));
        };
        self.update(|tx| {
            let record: Option<DirDelegation> = load(tx, &keys::delegation(id))?;
            if record.is_some_and(|record| record.is_of(client) && record.lease == number) {
                tx.delete(&keys::delegation(id))?;
            }
            Ok(())
        })?;
        self.leases.drop_delegation(id, client, number);
        add(&self.counters.leases_fenced, 1);
        tracing::warn!(inode = id.0, user = %client.0, "client unresponsive; directory delegation revoked, its pending changes will be refused");
        self.audit.record(&AuditRecord {
            time_ms: now_ms,
            user: client.0.as_str(),
            session: None,
            proven: true,
            source: None,
            action: "fence",
            subject: Some(&format!("names in node {}", id.0)),
            verdict: "ok",
        });
        Ok(true)
    }

    /// Expires the records of clients that were not seen for long; counted from the server's start
    /// at most.
    pub(crate) fn expire_delegations(&self, now_ms: u64) -> Result<()> {
        let mut missed = self.missed.lock();
        let (mut still, before) = (HashMap::new(), std::mem::take(&mut *missed));
        let mut is_old = |client: ClientKey| {
            if self.open_files.is_registered(&client.0, client.1) {
                return false;
            }
            let since_ms = before.get(&client).copied().unwrap_or(now_ms);
            still.insert(client, since_ms);
            now_ms.saturating_sub(since_ms) > FORGET_MS
        };
        let old = self.delete_delegations(|record| is_old((record.user.clone(), record.client_id)))?;
        for (id, record) in old {
            self.leases.return_lease(id, &(record.user, record.client_id), Some(record.lease), now_ms);
        }
        let mut old = Vec::new();
        let from = keys::all_reserved_inodes();
        each_between(&*self.store.snapshot()?, &from, &keys::after_prefix(&from), |key, _| {
            if keys::client_parts(key).is_none_or(&mut is_old) {
                old.push(key.to_vec());
            }
            Ok::<_, MdsError>(())
        })?;
        *missed = still;
        for batch in old.chunks(FORGET_BATCH) {
            self.update_and(|tx| {
                batch.iter().try_for_each(|key| tx.delete(key))?;
                Ok(((), Wait::No))
            })?;
        }
        Ok(())
    }
}
