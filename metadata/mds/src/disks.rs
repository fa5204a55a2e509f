//! End-to-end protected disks: records, copies of keys, leases, roots.
//!
//! Does: keep the newest root, one copy of the key for each user, and one lease for each disk.
//! Does not: see keys or data; roots and copies are sealed by clients.
//! Contract: each change is one transaction. Lease epochs only grow, and a root is replaced only by
//! the last lease and by a root of the next version.
//! Truth: docs/standards/mds/disks.md; ADR 75.

use sealstone_mds_protocol::{
    DISK_KEY_EPOCHS_MAX, DISK_PAGE_MAX, DISK_PUBLIC_KEY_BYTES, DISK_ROOT_BYTES, DISK_UNIT_BYTES,
    DISK_USERS_MAX, DISKS_OF_USER_MAX, DiskAccess, DiskInfo, DiskLeaseInfo, DiskRotation, ErrorCode, Name,
    PREVIOUS_DISK_KEY_BYTES, Text, UserName, WRAPPED_DISK_KEY_BYTES, record,
};

use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::namespace;
use crate::records::{load, save};
use crate::store::{Snapshot, Transaction, each_between};

/// Time for which a lease is valid after its last renewal. The client stops two seconds earlier.
pub(crate) const DISK_LEASE_MS: u64 = 14_000;
/// The part of it that the client uses, from the time when it sent the request.
pub(crate) const DISK_LEASE_USED_MS: u32 = 12_000;

record! {
    /// The last lease of a disk.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DiskLease {
        /// Client's user.
        pub user: UserName,
        /// Number, larger than that of each earlier lease.
        pub epoch: u32,
        /// End, milliseconds since 1970; 0: it was returned.
        pub until_ms: u64,
    }
}

record! {
    /// A disk.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DiskRecord {
        /// Identifier of the unit.
        pub unit: [u8; DISK_UNIT_BYTES],
        /// User that grants access.
        pub owner: UserName,
        /// Time of creation.
        pub created_ms: u64,
        /// Epoch of the newest key.
        pub key_epoch: u16,
        /// Keys of earlier epochs, each wrapped under the next one; the newest first.
        pub previous: Vec<[u8; PREVIOUS_DISK_KEY_BYTES]>,
        /// The last root.
        pub root: Option<[u8; DISK_ROOT_BYTES]>,
        /// The last lease.
        pub lease: Option<DiskLease>,
        /// Number of reports of wrong data.
        pub failures: u32,
        /// The last report.
        pub last_failure: Option<Text<512>>,
    }
}

fn not_found(name: &Name) -> MdsError {
    MdsError::refused(ErrorCode::NotFound, format!("disk {name}"))
}

fn loaded<S: Snapshot + ?Sized>(view: &S, name: &Name) -> Result<DiskRecord> {
    load(view, &keys::disk(name))?.ok_or_else(|| not_found(name))
}

fn copy_of<S: Snapshot + ?Sized>(
    view: &S,
    name: &Name,
    user: &UserName,
) -> Result<Option<[u8; WRAPPED_DISK_KEY_BYTES]>> {
    Ok(load(view, &keys::disk_key(name, user))?)
}

/// Returns the record if the user has a copy of the key. For others it does not exist.
fn usable<S: Snapshot + ?Sized>(view: &S, principal: &Principal, name: &Name) -> Result<DiskRecord> {
    let record = loaded(view, name)?;
    copy_of(view, name, &principal.user)?.ok_or_else(|| not_found(name))?;
    Ok(record)
}

/// Returns the record if the user may grant, revoke and rotate.
fn owned<S: Snapshot + ?Sized>(view: &S, principal: &Principal, name: &Name) -> Result<DiskRecord> {
    let record = loaded(view, name)?;
    if record.owner == principal.user {
        return Ok(record);
    }
    copy_of(view, name, &principal.user)?.ok_or_else(|| not_found(name))?;
    Err(MdsError::refused(ErrorCode::NotPermitted, format!("disk {name} belongs to {}", record.owner)))
}

/// Stores the public key of a user, for which disk keys are wrapped.
pub(crate) fn set_public_key(
    tx: &mut dyn Transaction,
    user: &UserName,
    public: &[u8; DISK_PUBLIC_KEY_BYTES],
) -> Result<()> {
    Ok(save(tx, &keys::disk_public_key(user), public)?)
}

/// Returns the public key of a user.
pub(crate) fn public_key<S: Snapshot + ?Sized>(
    view: &S,
    user: &UserName,
) -> Result<Option<[u8; DISK_PUBLIC_KEY_BYTES]>> {
    Ok(load(view, &keys::disk_public_key(user))?)
}

/// Creates the record of a disk, with the owner's copy of the key.
pub(crate) fn create(
    tx: &mut dyn Transaction,
    principal: &Principal,
    name: &Name,
    unit: [u8; DISK_UNIT_BYTES],
    wrapped: &[u8; WRAPPED_DISK_KEY_BYTES],
    now_ms: u64,
) -> Result<()> {
    if tx.get(&keys::disk(name))?.is_some() {
        return Err(MdsError::refused(ErrorCode::Exists, format!("disk {name}")));
    }
    let record = DiskRecord {
        unit,
        owner: principal.user.clone(),
        created_ms: now_ms,
        key_epoch: 1,
        previous: Vec::new(),
        root: None,
        lease: None,
        failures: 0,
        last_failure: None,
    };
    save(tx, &keys::disk(name), &record)?;
    set_copy(tx, name, &principal.user, wrapped)
}

fn set_copy(
    tx: &mut dyn Transaction,
    name: &Name,
    user: &UserName,
    wrapped: &[u8; WRAPPED_DISK_KEY_BYTES],
) -> Result<()> {
    let index = keys::disk_of_user(user, name);
    if tx.get(&index)?.is_none() {
        let (from, until) = keys::disks_of_user(user, None);
        let limit = usize::try_from(DISKS_OF_USER_MAX).unwrap_or(usize::MAX);
        if tx.scan(&from, &until, limit)?.len() == limit {
            let why = format!("user {user} has access to {limit} disks");
            return Err(MdsError::refused(ErrorCode::Limit, why));
        }
        if users(tx, name)?.len() == DISK_USERS_MAX {
            let why = format!("disk {name} has {DISK_USERS_MAX} users");
            return Err(MdsError::refused(ErrorCode::Limit, why));
        }
        save(tx, &index, &())?;
    }
    Ok(save(tx, &keys::disk_key(name, user), wrapped)?)
}

fn remove_copy(tx: &mut dyn Transaction, name: &Name, user: &UserName) -> Result<()> {
    tx.delete(&keys::disk_key(name, user))?;
    Ok(tx.delete(&keys::disk_of_user(user, name))?)
}

fn users<S: Snapshot + ?Sized>(view: &S, name: &Name) -> Result<Vec<UserName>> {
    let (from, until) = keys::disk_keys(name);
    let mut users = Vec::new();
    each_between(view, &from, &until, |key, _| {
        users.extend(keys::disk_key_user(key, name));
        Ok::<_, MdsError>(())
    })?;
    Ok(users)
}

/// Returns everything that a user needs to open a disk. Administrators see it without a key.
pub(crate) fn access<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    name: &Name,
    now_ms: u64,
) -> Result<DiskAccess> {
    let record = if principal.is_admin() { loaded(view, name)? } else { usable(view, principal, name)? };
    Ok(DiskAccess {
        info: info(name, &record, now_ms),
        users: users(view, name)?,
        wrapped: copy_of(view, name, &principal.user)?,
        previous: record.previous,
        root: record.root,
    })
}

fn info(name: &Name, record: &DiskRecord, now_ms: u64) -> DiskInfo {
    DiskInfo {
        name: name.clone(),
        unit: record.unit,
        owner: record.owner.clone(),
        created_ms: record.created_ms,
        key_epoch: record.key_epoch,
        root_version: record.root.as_ref().map(root_version),
        lease: record.lease.as_ref().map(|lease| DiskLeaseInfo {
            user: lease.user.clone(),
            epoch: lease.epoch,
            left_ms: lease.until_ms.saturating_sub(now_ms),
        }),
        failures: record.failures,
        last_failure: record.last_failure.clone(),
    }
}

/// Returns the disks to which the user has access, after one in the order of names.
pub(crate) fn list<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    after: Option<&Name>,
    limit: u16,
    now_ms: u64,
) -> Result<(Vec<DiskInfo>, bool)> {
    if limit == 0 {
        return Err(MdsError::refused(ErrorCode::Invalid, "a page of 0 entries"));
    }
    let limit = usize::from(limit.min(DISK_PAGE_MAX));
    let (from, until) = keys::disks_of_user(&principal.user, after);
    let mut disks = Vec::new();
    let found = view.scan(&from, &until, limit + 1)?;
    for (key, _) in found.iter().take(limit) {
        let Some(name) = keys::disk_of_user_name(key, &principal.user) else { continue };
        disks.push(info(&name, &loaded(view, &name)?, now_ms));
    }
    Ok((disks, found.len() > limit))
}

/// Gives a user a copy of the key, or removes it.
pub(crate) fn set_access(
    tx: &mut dyn Transaction,
    principal: &Principal,
    name: &Name,
    user: &UserName,
    wrapped: Option<&[u8; WRAPPED_DISK_KEY_BYTES]>,
) -> Result<()> {
    let record = match wrapped {
        // An administrator takes access away, but has none to give.
        None if principal.is_admin() => loaded(tx, name)?,
        _ => owned(tx, principal, name)?,
    };
    match wrapped {
        Some(wrapped) => {
            namespace::check_owner(tx, user)?;
            check_copy_epoch(wrapped, record.key_epoch)?;
            set_copy(tx, name, user, wrapped)
        }
        None if *user == record.owner => {
            let why = "the owner's key cannot be revoked; remove the disk";
            Err(MdsError::refused(ErrorCode::Invalid, why))
        }
        None if copy_of(tx, name, user)?.is_none() => {
            Err(MdsError::refused(ErrorCode::NotFound, format!("user {user} of disk {name}")))
        }
        None => {
            remove_copy(tx, name, user)?;
            end_lease_of(tx, name, record, user)
        }
    }
}

/// Ends the lease of a user that lost access: its next root is refused.
fn end_lease_of(
    tx: &mut dyn Transaction,
    name: &Name,
    mut record: DiskRecord,
    user: &UserName,
) -> Result<()> {
    if let Some(lease) = record.lease.as_mut().filter(|lease| lease.user == *user) {
        lease.until_ms = 0;
        lease.epoch = next_epoch(lease.epoch)?;
        save(tx, &keys::disk(name), &record)?;
    }
    Ok(())
}

fn next_epoch(epoch: u32) -> Result<u32> {
    epoch.checked_add(1).ok_or_else(|| MdsError::refused(ErrorCode::Limit, "leases of the disk"))
}

/// A wrapped key states its epoch in the clear.
fn check_copy_epoch(wrapped: &[u8; WRAPPED_DISK_KEY_BYTES], key_epoch: u16) -> Result<()> {
    if u16::from_be_bytes([wrapped[2], wrapped[3]]) == key_epoch {
        return Ok(());
    }
    let why = format!("the key of the disk has epoch {key_epoch} meanwhile");
    Err(MdsError::refused(ErrorCode::Stale, why))
}

/// Takes the lease, or renews that of an epoch. Returns its epoch.
pub(crate) fn lease(
    tx: &mut dyn Transaction,
    principal: &Principal,
    name: &Name,
    renewed: Option<u32>,
    now_ms: u64,
) -> Result<u32> {
    let mut record = usable(tx, principal, name)?;
    let epoch = match (&record.lease, renewed) {
        (Some(lease), Some(epoch)) if is_lease_of(lease, principal, epoch) => epoch,
        (_, Some(_)) => return Err(lease_lost(name)),
        (Some(lease), None) if lease.until_ms > now_ms => {
            let left_ms = u32::try_from(lease.until_ms - now_ms).unwrap_or(u32::MAX);
            let mut failure = sealstone_mds_protocol::Failure::busy(left_ms);
            failure.subject = Text::truncated(&format!("disk {name} is in use by {}", lease.user));
            return Err(MdsError::Refused(failure));
        }
        (lease, None) => next_epoch(lease.as_ref().map_or(0, |lease| lease.epoch))?,
    };
    let until_ms = now_ms.saturating_add(DISK_LEASE_MS);
    record.lease = Some(DiskLease { user: principal.user.clone(), epoch, until_ms });
    save(tx, &keys::disk(name), &record)?;
    Ok(epoch)
}

fn is_lease_of(lease: &DiskLease, principal: &Principal, epoch: u32) -> bool {
    lease.user == principal.user && lease.epoch == epoch && lease.until_ms > 0
}

fn lease_lost(name: &Name) -> MdsError {
    MdsError::refused(ErrorCode::Fenced, format!("another client has the lease of disk {name}"))
}

/// Returns the lease: the next client does not wait. Without such a lease nothing happens.
pub(crate) fn end_lease(
    tx: &mut dyn Transaction,
    principal: &Principal,
    name: &Name,
    epoch: u32,
) -> Result<()> {
    let mut record = usable(tx, principal, name)?;
    if let Some(lease) = record.lease.as_mut().filter(|lease| is_lease_of(lease, principal, epoch)) {
        lease.until_ms = 0;
        save(tx, &keys::disk(name), &record)?;
    }
    Ok(())
}

/// Version of a root, which is in the clear.
fn root_version(root: &[u8; DISK_ROOT_BYTES]) -> u64 {
    root[16..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// Replaces the root, if lease and version are the expected ones; renews the lease.
pub(crate) fn publish(
    tx: &mut dyn Transaction,
    principal: &Principal,
    name: &Name,
    (epoch, expected): (u32, Option<u64>),
    root: [u8; DISK_ROOT_BYTES],
    now_ms: u64,
) -> Result<()> {
    let mut record = usable(tx, principal, name)?;
    let before = record.root.as_ref().map(root_version);
    let has_lease = record.lease.as_mut().is_some_and(|lease| {
        let is_valid = is_lease_of(lease, principal, epoch);
        if is_valid {
            lease.until_ms = now_ms.saturating_add(DISK_LEASE_MS);
        }
        is_valid
    });
    // After a repetition the root is there already.
    if has_lease && record.root == Some(root) {
        return Ok(());
    }
    if !has_lease || before != expected {
        return Err(lease_lost(name));
    }
    let states_epoch = root[8..12] == epoch.to_be_bytes();
    if !states_epoch || before.is_some_and(|before| root_version(&root) <= before) {
        return Err(MdsError::refused(ErrorCode::Invalid, "the root has another lease or an old version"));
    }
    record.root = Some(root);
    Ok(save(tx, &keys::disk(name), &record)?)
}

/// Removes the keys of a user whose account ends. Disks that it owns keep their records.
pub(crate) fn forget_user(tx: &mut dyn Transaction, user: &UserName) -> Result<()> {
    tx.delete(&keys::disk_public_key(user))?;
    let (from, until) = keys::disks_of_user(user, None);
    let limit = usize::try_from(DISKS_OF_USER_MAX).unwrap_or(usize::MAX);
    for (key, _) in tx.scan(&from, &until, limit)? {
        if let Some(name) = keys::disk_of_user_name(&key, user) {
            remove_copy(tx, &name, user)?;
            let record = loaded(tx, &name)?;
            end_lease_of(tx, &name, record, user)?;
        }
    }
    Ok(())
}

/// Stores the next key. Users without a copy in the rotation lose access.
pub(crate) fn rotate(
    tx: &mut dyn Transaction,
    principal: &Principal,
    name: &Name,
    rotation: &DiskRotation,
) -> Result<()> {
    let mut record = owned(tx, principal, name)?;
    let next = record.key_epoch.checked_add(1).filter(|next| *next <= DISK_KEY_EPOCHS_MAX);
    let next = next.ok_or_else(|| {
        let why = format!("disk {name} had {DISK_KEY_EPOCHS_MAX} keys; copy its data to a new disk");
        MdsError::refused(ErrorCode::Limit, why)
    })?;
    if rotation.key_epoch != record.key_epoch {
        return Err(MdsError::refused(ErrorCode::Stale, format!("disk {name} has another key meanwhile")));
    }
    if rotation.copies.len() > DISK_USERS_MAX {
        return Err(MdsError::refused(ErrorCode::Limit, format!("more than {DISK_USERS_MAX} users")));
    }
    if !rotation.copies.iter().any(|copy| copy.user == record.owner) {
        return Err(MdsError::refused(ErrorCode::Invalid, "the owner has no copy of the next key"));
    }
    for user in users(tx, name)? {
        remove_copy(tx, name, &user)?;
    }
    for copy in &rotation.copies {
        check_copy_epoch(&copy.wrapped, next)?;
        namespace::check_owner(tx, &copy.user)?;
        set_copy(tx, name, &copy.user, &copy.wrapped)?;
    }
    record.key_epoch = next;
    record.previous.insert(0, rotation.previous);
    Ok(save(tx, &keys::disk(name), &record)?)
}

/// Counts a report of wrong data.
pub(crate) fn report(
    tx: &mut dyn Transaction,
    principal: &Principal,
    name: &Name,
    text: &Text<512>,
) -> Result<()> {
    let mut record = usable(tx, principal, name)?;
    record.failures = record.failures.saturating_add(1);
    record.last_failure = Some(text.clone());
    Ok(save(tx, &keys::disk(name), &record)?)
}

/// Removes a disk and all copies of its key: its data are lost.
pub(crate) fn remove(tx: &mut dyn Transaction, principal: &Principal, name: &Name) -> Result<()> {
    if principal.is_admin() {
        loaded(tx, name)?;
    } else {
        owned(tx, principal, name)?;
    }
    for user in users(tx, name)? {
        remove_copy(tx, name, &user)?;
    }
    Ok(tx.delete(&keys::disk(name))?)
}
