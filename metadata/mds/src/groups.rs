//! Groups and their members.
//!
//! Does: keep both directions of a membership consistent.
//! Does not: decide rights; `access` does.
//! Contract: a membership ends with its account and with its group, so that a reused name inherits
//! none.

use std::sync::Arc;

use sealstone_mds_protocol::{AccountKind, ErrorCode, Group, GroupName, PAGE_MAX, UserName};

use crate::error::{MdsError, Result};
use crate::keys;
use crate::records::{Account, GroupRecord, count, counter, decode, figure, load, save};
use crate::store::{MetaError, Snapshot, Transaction};

/// Maximum number of groups.
pub(crate) const GROUPS_MAX: u64 = 65_536;
/// Maximum number of groups of one account: each access check searches them.
pub(crate) const GROUPS_PER_USER_MAX: usize = 64;
/// Maximum number of members of one group; concurrent requests may add a few more.
pub(crate) const MEMBERS_MAX: usize = 4_096;
/// Memberships removed in one transaction.
const UNLINK_BATCH: usize = 64;

fn need<S: Snapshot + ?Sized>(view: &S, group: &GroupName) -> Result<GroupRecord> {
    load(view, &keys::group(group))?.ok_or_else(|| MdsError::refused(ErrorCode::NotFound, group.as_str()))
}

/// Whether the group exists.
pub(crate) fn exists<S: Snapshot + ?Sized>(view: &S, group: &GroupName) -> Result<bool> {
    Ok(view.get(&keys::group(group))?.is_some())
}

/// Adds a group.
pub(crate) fn create(tx: &mut dyn Transaction, group: &GroupName, now_ms: u64) -> Result<()> {
    if exists(tx, group)? {
        return Err(MdsError::refused(ErrorCode::Exists, group.as_str()));
    }
    if group.is_number() {
        return Err(MdsError::refused(
            ErrorCode::InvalidName,
            "gid-N is reserved for numbers without a name",
        ));
    }
    if figure(tx, counter::GROUPS)? >= GROUPS_MAX {
        return Err(MdsError::refused(ErrorCode::Limit, "groups"));
    }
    save(tx, &keys::group(group), &GroupRecord { created_ms: now_ms })?;
    Ok(count(tx, counter::GROUPS, 1)?)
}

/// Removes up to [`UNLINK_BATCH`] memberships of a group, and then the group. Returns whether it
/// was removed.
pub(crate) fn remove_some(tx: &mut dyn Transaction, group: &GroupName) -> Result<bool> {
    need(tx, group)?;
    let page = members(tx, group, None, UNLINK_BATCH + 1)?;
    for user in page.iter().take(UNLINK_BATCH) {
        unlink(tx, group, user)?;
    }
    if page.len() > UNLINK_BATCH {
        return Ok(false);
    }
    tx.delete(&keys::group(group))?;
    count(tx, counter::GROUPS, -1)?;
    Ok(true)
}

/// Fails if a group has the maximum number of members. O(members): call it outside of transactions.
pub(crate) fn check_members<S: Snapshot + ?Sized>(
    view: &S,
    group: &GroupName,
    user: &UserName,
) -> Result<()> {
    let is_member = view.get(&keys::group_of(user, group))?.is_some();
    if !is_member && members(view, group, None, MEMBERS_MAX)?.len() >= MEMBERS_MAX {
        return Err(MdsError::refused(ErrorCode::Limit, "members of one group"));
    }
    Ok(())
}

/// Makes an account a member; does nothing if it is one.
pub(crate) fn add_member(tx: &mut dyn Transaction, group: &GroupName, user: &UserName) -> Result<()> {
    need(tx, group)?;
    match load::<Account, _>(tx, &keys::user(user))?.map(|account| account.kind) {
        None => return Err(MdsError::refused(ErrorCode::NotFound, user.as_str())),
        Some(AccountKind::Directory) => {
            return Err(MdsError::refused(
                ErrorCode::Invalid,
                "groups of this account come from the directory",
            ));
        }
        Some(AccountKind::Password | AccountKind::Service) => {}
    }
    if tx.get(&keys::group_of(user, group))?.is_some() {
        return Ok(());
    }
    if of(tx, user)?.len() >= GROUPS_PER_USER_MAX {
        return Err(MdsError::refused(ErrorCode::Limit, "groups of one account"));
    }
    save(tx, &keys::group_of(user, group), &())?;
    Ok(save(tx, &keys::member_of(group, user), &())?)
}

/// Ends a membership.
pub(crate) fn remove_member(tx: &mut dyn Transaction, group: &GroupName, user: &UserName) -> Result<()> {
    need(tx, group)?;
    if tx.get(&keys::group_of(user, group))?.is_none() {
        return Err(MdsError::refused(ErrorCode::NotFound, user.as_str()));
    }
    unlink(tx, group, user)
}

/// Ends all memberships of an account that is removed.
pub(crate) fn forget_user(tx: &mut dyn Transaction, user: &UserName) -> Result<()> {
    for group in of(tx, user)?.iter() {
        unlink(tx, group, user)?;
    }
    Ok(())
}

fn unlink(tx: &mut dyn Transaction, group: &GroupName, user: &UserName) -> Result<()> {
    tx.delete(&keys::group_of(user, group))?;
    Ok(tx.delete(&keys::member_of(group, user))?)
}

/// Returns the groups of an account.
pub(crate) fn of<S: Snapshot + ?Sized>(view: &S, user: &UserName) -> Result<Arc<[GroupName]>> {
    let all = keys::groups_of(user);
    let pairs = view.scan(&all, &keys::after_prefix(&all), GROUPS_PER_USER_MAX)?;
    pairs.iter().map(|(key, _)| named(&all, key, GroupName::new)).collect()
}

fn named<T, E>(prefix: &[u8], key: &[u8], name: impl Fn(String) -> std::result::Result<T, E>) -> Result<T> {
    let name = keys::name_after(prefix, key).and_then(|text| name(text.to_owned()).ok());
    Ok(name.ok_or(MetaError::Damaged("group or member with an invalid name"))?)
}

fn members<S: Snapshot + ?Sized>(
    view: &S,
    group: &GroupName,
    after: Option<&UserName>,
    limit: usize,
) -> Result<Vec<UserName>> {
    let all = keys::members_of(group);
    let from = after.map_or_else(|| all.clone(), |user| [&keys::member_of(group, user)[..], &[0]].concat());
    let pairs = view.scan(&from, &keys::after_prefix(&all), limit)?;
    pairs.iter().map(|(key, _)| named(&all, key, UserName::new)).collect()
}

/// Returns a page of the members of a group.
pub(crate) fn list_members<S: Snapshot + ?Sized>(
    view: &S,
    group: &GroupName,
    after: Option<&UserName>,
    limit: u16,
) -> Result<(Vec<UserName>, bool)> {
    need(view, group)?;
    let limit = usize::from(limit.clamp(1, PAGE_MAX));
    let mut found = members(view, group, after, limit + 1)?;
    let more = found.len() > limit;
    found.truncate(limit);
    Ok((found, more))
}

/// Returns a page of the groups.
pub(crate) fn list<S: Snapshot + ?Sized>(
    view: &S,
    after: Option<&GroupName>,
    limit: u16,
) -> Result<(Vec<Group>, bool)> {
    let all = keys::groups();
    let from = after.map_or_else(|| all.clone(), |name| [&keys::group(name)[..], &[0]].concat());
    let limit = usize::from(limit.clamp(1, PAGE_MAX));
    let page = view.scan(&from, &keys::after_prefix(&all), limit + 1)?;
    let more = page.len() > limit;
    let groups = page.iter().take(limit).map(|(key, value)| {
        let record: GroupRecord = decode(value)?;
        Ok(Group { name: named(&all, key, GroupName::new)?, created_ms: record.created_ms })
    });
    Ok((groups.collect::<Result<_>>()?, more))
}
