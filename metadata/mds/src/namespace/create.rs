//! Creates: begun without a name, then committed in one step, abandoned, or expired.
//!
//! Contract: a user has at most [`CREATES_PER_USER_MAX`] open creates, all users together at most
//! [`CREATES_MAX`]. An open create counts in the quotas of its user and tree, as one file of the
//! announced size. Reservations for results of functions count apart: a user has at most
//! [`RESULTS_PER_USER_MAX`] open ones, and [`ENDED_RESULTS_PER_USER_MAX`] ended ones whose
//! credentials are valid.

use sealstone_mds_protocol::{
    ErrorCode, FileKind, FilePath, InodeId, IntentId, Layout, Method, PlacementRecord, Stat, UserName, record,
};

use super::acl::inherit;
use super::functions;
use super::sizes::mark_outgrown;
use super::unlink::{UnlinkContext, queue_objects, unlink_name};
use super::walk::{FinalLink, resolve_entry};
use super::{CommitParams, check_size, child, inherited_group, owner, touch};
use crate::access::{AccessRight, MODE_MASK, Principal};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::quota;
use crate::quota::QuotaCharge;
use crate::records::{Inode, Intent, count, counter, decode, figure, load, next_number, save};
use crate::share;
use crate::store::{MetaError, Pair, Snapshot, Transaction};

/// Maximum number of open creates of all users.
pub(crate) const CREATES_MAX: usize = 65_536;
/// Maximum number of open creates of one user. An abandoned one counts until its credentials have
/// expired.
pub(crate) const CREATES_PER_USER_MAX: usize = 4_096;

/// Maximum number of open reservations for results of all users.
pub(crate) const RESULTS_MAX: usize = 16_384;
/// Maximum number of open reservations for results of one user: those of calls on 64 devices with
/// four jobs each.
pub(crate) const RESULTS_PER_USER_MAX: usize = 1_024;
/// Maximum number of ended reservations of one user whose credentials have not expired. Otherwise
/// a client could fill the removal queue by beginning and abandoning reservations.
pub(crate) const ENDED_RESULTS_PER_USER_MAX: usize = 16_384;

record! {
    /// The reservations for results of a user.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ResultCounts {
        /// Open reservations.
        pub open: u64,
        /// Ended reservations whose credentials have not expired.
        pub ended: u64,
    }
}

/// Table in which a new create counts, with the user's number of others.
#[derive(Clone, Copy, Debug)]
pub(super) enum CreateShare {
    /// Open creates.
    Creates(u64),
    /// Reservations for results.
    Results(ResultCounts),
}

/// Parameters of a new create.
pub(crate) struct NewIntent {
    pub(crate) size_hint: Option<u64>,
    pub(crate) mode: u16,
    pub(crate) replace: bool,
    pub(crate) method: Method,
    pub(crate) expires_ms: u64,
    pub(crate) grants_until_ms: u64,
}

/// Begins a create. All checks of Commit run here too, so that no bytes are written in vain. Then
/// `lay_out` chooses number and layout.
pub(crate) fn begin_create(
    tx: &mut dyn Transaction,
    principal: &Principal,
    path: &FilePath,
    new: NewIntent,
    lay_out: impl FnOnce(&mut dyn Transaction) -> Result<(InodeId, Layout, PlacementRecord)>,
) -> Result<(IntentId, Intent)> {
    let (place, old) = resolve_entry(tx, principal, path, FinalLink::Follow)?;
    principal.needs_entries(&place.directory_inode, &path.shown())?;
    if let Some((_, old)) = &old {
        check_replaceable(principal, &place.directory_inode, old, new.replace, &path.shown())?;
    }
    let mut coming = Inode::new(FileKind::File, new.mode & MODE_MASK, principal.user.clone(), None, 0);
    coming.tree = place.directory_inode.tree;
    coming.size = new.size_hint.unwrap_or(0);
    let own = check_share(tx, &principal.user)?;
    let charges = quota::reserve(tx, &coming, old.as_ref().map(|(_, old)| old))?;
    let (inode, layout, placed) = lay_out(tx)?;
    let id = IntentId(next_number(tx, counter::INTENT)?);
    let intent = Intent {
        user: principal.user.clone(),
        parent: place.directory,
        name: place.name,
        inode,
        mode: new.mode & MODE_MASK,
        replace: new.replace,
        method: new.method,
        layout,
        placed: Some(placed),
        expires_ms: new.expires_ms,
        grants_until_ms: new.grants_until_ms,
    };
    save_new(tx, id, &intent, (&charges, coming.size), own)?;
    Ok((id, intent))
}

/// Stores a new create of a user, and counts it. `bytes` are those for which it is charged, less
/// the ones of a file that it replaces.
pub(super) fn save_new(
    tx: &mut dyn Transaction,
    id: IntentId,
    intent: &Intent,
    (charges, bytes): (&[QuotaCharge], u64),
    own: CreateShare,
) -> Result<()> {
    save(tx, &keys::intent(id), intent)?;
    save(tx, &keys::intent_expiry(intent.expires_ms, id), &())?;
    save(tx, &keys::create_charge(id), &charges.to_vec())?;
    save(tx, &keys::create_bytes(id), &bytes)?;
    match own {
        CreateShare::Creates(own) => save(tx, &keys::create_count(&intent.user), &(own + 1))?,
        CreateShare::Results(counts) => {
            let counts = ResultCounts { open: counts.open + 1, ..counts };
            save(tx, &keys::result_counts(&intent.user), &counts)?;
            count(tx, counter::RESULTS, 1)?;
        }
    }
    Ok(count(tx, counter::INTENTS, 1)?)
}

/// Returns the bytes for which an open create is charged.
pub(crate) fn charged_bytes<S: Snapshot + ?Sized>(view: &S, id: IntentId) -> Result<u64> {
    Ok(load::<u64, _>(view, &keys::create_bytes(id))?.unwrap_or_default())
}

/// Fails if the user's share of open creates is used up.
pub(super) fn check_share(tx: &dyn Transaction, user: &UserName) -> Result<CreateShare> {
    let own = load::<u64, _>(tx, &keys::create_count(user))?.unwrap_or_default();
    let all = figure(tx, counter::INTENTS)?.saturating_sub(figure(tx, counter::RESULTS)?) as usize;
    let of_user = own as usize;
    if of_user < CREATES_PER_USER_MAX && share::is_free(of_user, all.max(of_user), 1, CREATES_MAX) {
        return Ok(CreateShare::Creates(own));
    }
    let why =
        format!("open creates: user {user} has {own}; commit or abandon some, or wait until they expire");
    Err(MdsError::refused(ErrorCode::Limit, why))
}

/// Fails if the user's share of reservations for results is used up.
pub(super) fn check_result_share(tx: &dyn Transaction, user: &UserName) -> Result<CreateShare> {
    let own = load::<ResultCounts, _>(tx, &keys::result_counts(user))?.unwrap_or_default();
    let all = figure(tx, counter::RESULTS)? as usize;
    let (open, ended) = (own.open as usize, own.ended as usize);
    let why = if open >= RESULTS_PER_USER_MAX || !share::is_free(open, all.max(open), 1, RESULTS_MAX) {
        format!("reservations for results: user {user} has {open}; wait until runs of functions end")
    } else if ended >= ENDED_RESULTS_PER_USER_MAX {
        format!(
            "ended reservations for results: user {user} has {ended}; wait until their credentials expire"
        )
    } else {
        return Ok(CreateShare::Results(own));
    };
    Err(MdsError::refused(ErrorCode::Limit, why))
}

/// Changes a user's counts of reservations for results.
fn count_results(tx: &mut dyn Transaction, user: &UserName, open: i64, ended: i64) -> Result<()> {
    let key = keys::result_counts(user);
    let counts = load::<ResultCounts, _>(tx, &key)?.unwrap_or_default();
    let open = counts.open.saturating_add_signed(open);
    match (ResultCounts { open, ended: counts.ended.saturating_add_signed(ended) }) {
        ResultCounts { open: 0, ended: 0 } => Ok(tx.delete(&key)?),
        counts => Ok(save(tx, &key, &counts)?),
    }
}

/// Subtracts one open create from a user's count.
fn decrement_count(tx: &mut dyn Transaction, user: &UserName) -> Result<()> {
    let key = keys::create_count(user);
    match load::<u64, _>(tx, &key)?.unwrap_or_default().saturating_sub(1) {
        0 => Ok(tx.delete(&key)?),
        left => Ok(save(tx, &key, &left)?),
    }
}

/// Ends the count of a reservation for a result. With `spent_until_ms` it counts as an ended one
/// until that time. Returns whether it was counted as a reservation.
fn end_result_count(
    tx: &mut dyn Transaction,
    (id, user): (IntentId, &UserName),
    spent_until_ms: Option<u64>,
) -> Result<bool> {
    let counts = load::<ResultCounts, _>(tx, &keys::result_counts(user))?.unwrap_or_default();
    // A reservation of an earlier release counts as a create.
    if counts.open == 0 {
        return Ok(false);
    }
    if let Some(until_ms) = spent_until_ms {
        save(tx, &keys::result_spent(until_ms, id), user)?;
    }
    count_results(tx, user, -1, i64::from(spent_until_ms.is_some()))?;
    count(tx, counter::RESULTS, -1)?;
    Ok(true)
}

fn check_replaceable(
    principal: &Principal,
    directory: &Inode,
    old: &Inode,
    replace: bool,
    subject: &str,
) -> Result<()> {
    if old.is_directory() {
        return Err(MdsError::refused(ErrorCode::IsADirectory, subject));
    }
    if !replace {
        return Err(MdsError::refused(ErrorCode::Exists, subject));
    }
    principal.needs_removal(directory, old, subject)
}

/// Loads a create that the caller may continue.
pub(crate) fn load_intent<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    id: IntentId,
    now_ms: u64,
) -> Result<Intent> {
    let stale = || MdsError::refused(ErrorCode::Stale, "create");
    let intent: Intent = load(view, &keys::intent(id))?.ok_or_else(stale)?;
    // A create of another user looks like one that does not exist.
    if intent.user != principal.user || now_ms > intent.expires_ms {
        return Err(stale());
    }
    Ok(intent)
}

/// Deletes a create and its quota charge. With `spent_until_ms` it counts for its user until that
/// time.
fn delete_intent(
    tx: &mut dyn Transaction,
    id: IntentId,
    intent: &Intent,
    spent_until_ms: Option<u64>,
) -> Result<()> {
    tx.delete(&keys::intent(id))?;
    tx.delete(&keys::intent_expiry(intent.expires_ms, id))?;
    let is_result = tx.get(&keys::function_result(id))?.is_some();
    for key in [keys::function_copy(id), keys::function_result(id), keys::create_bytes(id)] {
        if tx.get(&key)?.is_some() {
            tx.delete(&key)?;
        }
    }
    let key = keys::create_charge(id);
    // Creates of an earlier release have no charge and are not in the count.
    if let Some(charges) = load::<Vec<QuotaCharge>, _>(tx, &key)? {
        quota::release(tx, &charges)?;
        tx.delete(&key)?;
        match spent_until_ms {
            _ if is_result && end_result_count(tx, (id, &intent.user), spent_until_ms)? => {}
            Some(until_ms) => save(tx, &keys::create_spent(until_ms, id), &intent.user)?,
            None => decrement_count(tx, &intent.user)?,
        }
    }
    Ok(count(tx, counter::INTENTS, -1)?)
}

/// Extends the lifetime of a create.
pub(crate) fn renew_create(
    tx: &mut dyn Transaction,
    principal: &Principal,
    id: IntentId,
    expires_ms: u64,
    grants_until_ms: u64,
    now_ms: u64,
) -> Result<Intent> {
    let mut intent = load_intent(tx, principal, id, now_ms)?;
    functions::check_result(tx, principal, id, now_ms)?;
    tx.delete(&keys::intent_expiry(intent.expires_ms, id))?;
    intent.expires_ms = expires_ms.max(intent.expires_ms);
    intent.grants_until_ms = grants_until_ms.max(intent.grants_until_ms);
    save(tx, &keys::intent(id), &intent)?;
    save(tx, &keys::intent_expiry(intent.expires_ms, id), &())?;
    Ok(intent)
}

/// Makes the file visible under its name. An existing file is replaced and its objects are queued
/// for removal.
pub(crate) fn commit(
    tx: &mut dyn Transaction,
    principal: &Principal,
    id: IntentId,
    done: CommitParams,
    ending: &UnlinkContext<'_>,
) -> Result<Stat> {
    let now_ms = ending.now_ms;
    check_size(done.size)?;
    let intent = load_intent(tx, principal, id, now_ms)?;
    if let Some(copy) = load(tx, &keys::function_copy(id))? {
        delete_intent(tx, id, &intent, None)?;
        return functions::commit_copy(tx, principal, &intent, copy, done.size, now_ms);
    }
    if tx.get(&keys::function_result(id))?.is_some() {
        return Err(MdsError::refused(ErrorCode::Invalid, "the result of a function is no file"));
    }
    let name = &*intent.name.shown();
    let directory: Inode = load(tx, &keys::inode(intent.parent))?
        .ok_or_else(|| MdsError::refused(ErrorCode::NotFound, "directory was removed"))?;
    principal.needs_entries(&directory, name)?;
    delete_intent(tx, id, &intent, None)?;
    let group = inherited_group(&directory);
    let mut file = Inode::new(FileKind::File, intent.mode, intent.user.clone(), group, now_ms);
    file.version = 1;
    match child(tx, intent.parent, &intent.name)? {
        Some((old_id, old)) => {
            check_replaceable(principal, &directory, &old, intent.replace, name)?;
            file.version = old.version + 1;
            if old.kind == FileKind::File && principal.needs(AccessRight::Write, &old, name).is_ok() {
                keep_attributes(tx, (old_id, &old), (intent.inode, &mut file))?;
                owner::clear_setid_bits(principal, &mut file);
            } else {
                inherit(&directory, &mut file, 0);
            }
            unlink_name(tx, old_id, old, ending)?;
        }
        None => inherit(&directory, &mut file, 0),
    }
    file.tree = directory.tree;
    file.size = done.size;
    quota::charge_node(tx, &file)?;
    file.mtime_ns = done.mtime_ns.unwrap_or(file.mtime_ns);
    // Empty objects of a stripe need not exist.
    file.objects_exist = (0..intent.layout.width()).all(|at| intent.layout.object_length(at, done.size) > 0);
    file.layout = Some(intent.layout.clone());
    file.placed.clone_from(&intent.placed);
    file.checksum = done.checksum;
    owner::clear_foreign_setgid(principal, &mut file);
    file.create_grants_until_ms = intent.grants_until_ms;
    mark_outgrown(tx, intent.inode, &file, 0, done.size)?;
    save(tx, &keys::inode(intent.inode), &file)?;
    save(tx, &keys::entry(intent.parent, &intent.name), &intent.inode)?;
    touch(tx, intent.parent, 0, now_ms)?;
    count(tx, counter::FILES, 1)?;
    Ok(file.stat(intent.inode))
}

/// Copies owner, group, access control list and extended attributes from the replaced file, and
/// limits the mode to the old one. The caller may write to the old file, so this grants nothing
/// new.
fn keep_attributes(
    tx: &mut dyn Transaction,
    (old_id, old): (InodeId, &Inode),
    (id, file): (InodeId, &mut Inode),
) -> Result<()> {
    file.owner.clone_from(&old.owner);
    file.group.clone_from(&old.group);
    file.mode &= old.mode;
    file.acl = old.acl.clone().map(|acl| acl.with_mode(file.mode));
    (file.xattrs, file.xattr_bytes) = (old.xattrs, old.xattr_bytes);
    let all = keys::xattrs(old_id);
    for (key, value) in tx.scan(&all, &keys::after_prefix(&all), usize::from(old.xattrs))? {
        let name = keys::xattr_name(&key).ok_or(MetaError::Damaged("attribute with an invalid name"))?;
        tx.put(&keys::xattr(id, &name), &value)?;
    }
    Ok(())
}

/// Abandons a create of the caller.
pub(crate) fn abandon(
    tx: &mut dyn Transaction,
    principal: &Principal,
    id: IntentId,
    reap_due_ms: u64,
    now_ms: u64,
) -> Result<()> {
    let intent = load_intent(tx, principal, id, now_ms)?;
    // Otherwise a client could fill the removal queue by beginning and abandoning creates.
    let spent_until_ms = (intent.grants_until_ms >= now_ms).then_some(intent.grants_until_ms);
    delete_intent(tx, id, &intent, spent_until_ms)?;
    queue_objects(tx, intent.layout.objects(), reap_due_ms, intent.grants_until_ms)
}

/// Discards a create of any user.
pub(crate) fn discard_create(tx: &mut dyn Transaction, id: IntentId, now_ms: u64) -> Result<()> {
    let Some(intent) = load::<Intent, _>(tx, &keys::intent(id))? else { return Ok(()) };
    delete_intent(tx, id, &intent, None)?;
    queue_objects(tx, intent.layout.objects(), now_ms, intent.grants_until_ms)
}

/// Discards the creates in `page` that belong to a user. Their objects are removed when no
/// credential can create them any more: a changed tag does not stop the creation of a missing
/// object.
pub(crate) fn end_creates(
    tx: &mut dyn Transaction,
    page: &[Pair],
    user: &UserName,
    now_ms: u64,
) -> Result<()> {
    for (key, _) in page {
        let Some(id) = keys::intent_id(key) else { continue };
        if let Some(intent) = load::<Intent, _>(tx, key)?.filter(|intent| intent.user == *user) {
            delete_intent(tx, id, &intent, None)?;
            let due_ms = intent.grants_until_ms.saturating_add(1).max(now_ms);
            queue_objects(tx, intent.layout.objects(), due_ms, 0)?;
        }
    }
    Ok(())
}

/// Discards up to `limit` expired creates; returns the number found.
pub(crate) fn expire(tx: &mut dyn Transaction, limit: usize, now_ms: u64) -> Result<usize> {
    // A create is still valid at its expiry time, so only earlier ones are expired.
    let (from, until) = keys::expired_intents(now_ms.saturating_sub(1));
    let expired = tx.scan(&from, &until, limit)?;
    for (key, _) in &expired {
        tx.delete(key)?;
        let Some(id) = keys::intent_of_expiry(key) else { continue };
        if let Some(intent) = load::<Intent, _>(tx, &keys::intent(id))? {
            delete_intent(tx, id, &intent, None)?;
            queue_objects(tx, intent.layout.objects(), now_ms, intent.grants_until_ms)?;
        }
    }
    let (from, until) = keys::due_spent(now_ms.saturating_sub(1));
    let spent = tx.scan(&from, &until, limit)?;
    for (key, value) in &spent {
        tx.delete(key)?;
        decrement_count(tx, &decode(value)?)?;
    }
    let (from, until) = keys::due_result_spent(now_ms.saturating_sub(1));
    let ended = tx.scan(&from, &until, limit)?;
    for (key, value) in &ended {
        tx.delete(key)?;
        count_results(tx, &decode(value)?, 0, -1)?;
    }
    Ok(expired.len().max(spent.len()).max(ended.len()))
}
