//! Records of directory delegations and of reserved inode numbers.
//!
//! Does: define the records, read them, and delete all when several servers begin to share a store.
//! Does not: grant or end delegations; `dir_delegations` does.
//! Truth: docs/standards/mds/leases.md §5.11.

use sealstone_mds_protocol::{ClientId, DirLeaseId, ErrorCode, InodeId, UserName, record};

use crate::error::{MdsError, Result};
use crate::keys;
use crate::leases::{ClientKey, RecoveredLease};
use crate::records::{decode, load};
use crate::store::{MetaError, MetaStore, Snapshot, each_between};

record! {
    /// A directory delegation.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DirDelegation {
        pub user: UserName,
        pub client_id: ClientId,
        /// Epoch of the lease.
        pub epoch: u64,
        /// Number of the lease.
        pub lease: u64,
        /// Time when it was granted.
        pub since_ms: u64,
    }
}

impl DirDelegation {
    pub(crate) fn is_of(&self, client: &ClientKey) -> bool {
        self.user == client.0 && self.client_id == client.1
    }
}

record! {
    /// A range of inode numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct NumberRange {
        /// The lowest unused number; lower ones are never used.
        pub next: u64,
        /// End of the range, exclusive.
        pub end: u64,
    }
}

record! {
    /// Inode numbers reserved for a client.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ReservedInodes {
        /// Ranges in the order of reservation.
        pub ranges: Vec<NumberRange>,
    }
}

impl ReservedInodes {
    /// Whether the number is reserved.
    pub(crate) fn has(&self, id: InodeId) -> bool {
        self.ranges.iter().any(|range| (range.next..range.end).contains(&id.0))
    }

    /// Uses a number; lower ones in its range are dropped.
    pub(crate) fn take(&mut self, id: InodeId) -> Result<()> {
        let of = self.ranges.iter_mut().find(|range| (range.next..range.end).contains(&id.0));
        let Some(range) = of else {
            return Err(MdsError::refused(ErrorCode::Invalid, "inode number is not reserved"));
        };
        range.next = id.0 + 1;
        self.ranges.retain(|range| range.next < range.end);
        Ok(())
    }
}

/// Returns the delegations of before the restart.
pub(crate) fn recorded_delegations(store: &dyn MetaStore) -> Result<Vec<RecoveredLease>> {
    let mut all = Vec::new();
    each(&*store.snapshot()?, |id, record| {
        let DirDelegation { user, client_id, epoch, lease, .. } = record;
        all.push(RecoveredLease { id, client: (user, client_id), epoch, number: lease });
    })?;
    Ok(all)
}

/// Deletes all delegations when several servers begin to share the store: then there are no
/// delegations.
pub(crate) fn delete_all_delegations(store: &dyn MetaStore) -> Result<()> {
    let mut all = Vec::new();
    each(&*store.snapshot()?, |id, _| all.push(id))?;
    if all.is_empty() {
        return Ok(());
    }
    let mut tx = store.begin()?;
    all.into_iter().try_for_each(|id| tx.delete(&keys::delegation(id)))?;
    match tx.commit() {
        // Another server did it.
        Ok(()) | Err(MetaError::Conflict) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn each(view: &dyn Snapshot, mut work: impl FnMut(InodeId, DirDelegation)) -> Result<()> {
    let from = keys::delegations();
    each_between(view, &from, &keys::after_prefix(&from), |key, value| {
        if let Some(id) = keys::delegation_directory(key) {
            work(id, decode(value)?);
        }
        Ok::<_, MdsError>(())
    })
}

/// Checks that the client has this directory delegation; returns when it was granted.
///
/// # Errors
/// `Fenced` if it does not.
pub(crate) fn check_delegation(view: &dyn Snapshot, client: &ClientKey, dir: DirLeaseId) -> Result<u64> {
    let record: Option<DirDelegation> = load(view, &keys::delegation(dir.inode))?;
    match record {
        Some(record) if record.is_of(client) && record.epoch == dir.epoch && record.lease == dir.lease => {
            Ok(record.since_ms)
        }
        _ => Err(MdsError::refused(ErrorCode::Fenced, format!("node {}", dir.inode.0))),
    }
}

/// Returns the inode numbers reserved for a client.
pub(crate) fn numbers<S: Snapshot + ?Sized>(view: &S, client: &ClientKey) -> Result<ReservedInodes> {
    Ok(load(view, &keys::reserved_inodes(client))?.unwrap_or_default())
}
