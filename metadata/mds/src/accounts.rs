//! Accounts: who exists, who administers.
//!
//! Does: registration by administrators, change of one's own password, enabling, removal. Does not: see a password.
//! Contract: the last enabled administrator can be neither removed nor disabled.

use sealstone_login::AccountRecord;
use sealstone_mds_protocol::{ErrorCode, PAGE_MAX, User, UserName};

use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::records::{Account, count, counter, decode, figure, load, save};
use crate::store::{Snapshot, Transaction};

/// Accounts of one server at most.
pub(crate) const USERS_MAX: u64 = 1_000_000;
/// Accounts read at once while administrators are counted.
const SCAN_PAGE: usize = 256;

/// Half of a registration that was uploaded.
pub(crate) struct Registration {
    pub(crate) name: UserName,
    pub(crate) record: [u8; 192],
    pub(crate) suite: u16,
    pub(crate) admin: bool,
    pub(crate) replace: bool,
}

/// May `who` register a password for `name`?
pub(crate) fn may_register(who: &Principal, name: &UserName) -> Result<()> {
    if *name == who.user { Ok(()) } else { who.needs_admin() }
}

/// Adds an account, or changes a password.
pub(crate) fn register(
    tx: &mut dyn Transaction,
    who: &Principal,
    new: &Registration,
    now_ms: u64,
) -> Result<()> {
    may_register(who, &new.name)?;
    check_record(new)?;
    let key = keys::user(&new.name);
    let account = match load::<Account, _>(tx, &key)? {
        Some(_) if !new.replace => return Err(MdsError::refused(ErrorCode::Exists, new.name.as_str())),
        Some(old) => {
            let admin = if who.admin && new.name != who.user { new.admin } else { old.admin };
            if old.admin && !admin {
                need_another_admin(tx, &new.name)?;
            }
            Account { record: new.record, suite: new.suite, admin, ..old }
        }
        None if new.replace => return Err(MdsError::refused(ErrorCode::NotFound, new.name.as_str())),
        None => {
            who.needs_admin()?;
            if figure(tx, counter::USERS)? >= USERS_MAX {
                return Err(MdsError::refused(ErrorCode::Limit, "accounts"));
            }
            count(tx, counter::USERS, 1)?;
            Account {
                record: new.record,
                suite: new.suite,
                admin: new.admin,
                enabled: true,
                created_ms: now_ms,
            }
        }
    };
    Ok(save(tx, &key, &account)?)
}

fn check_record(new: &Registration) -> Result<()> {
    sealstone_login::Stretch::for_suite(new.suite)
        .map_err(|_| MdsError::refused(ErrorCode::Invalid, "login suite"))?;
    AccountRecord::parse(&new.record)
        .map_err(|_| MdsError::refused(ErrorCode::Invalid, "registration record"))?;
    Ok(())
}

/// The account to log in to; `None` if there is none, it is disabled or has another suite.
pub(crate) fn for_login<S: Snapshot + ?Sized>(
    view: &S,
    name: &UserName,
    suite: u16,
) -> Result<Option<Account>> {
    Ok(existing_enabled(view, name)?.filter(|account| account.suite == suite))
}

/// An account that may log in.
pub(crate) fn existing_enabled<S: Snapshot + ?Sized>(view: &S, name: &UserName) -> Result<Option<Account>> {
    let account: Option<Account> = load(view, &keys::user(name))?;
    Ok(account.filter(|account| account.enabled))
}

fn existing<S: Snapshot + ?Sized>(view: &S, name: &UserName) -> Result<Account> {
    load(view, &keys::user(name))?.ok_or_else(|| MdsError::refused(ErrorCode::NotFound, name.as_str()))
}

/// Lets an account log in or not.
pub(crate) fn set_enabled(
    tx: &mut dyn Transaction,
    who: &Principal,
    name: &UserName,
    enabled: bool,
) -> Result<()> {
    who.needs_admin()?;
    let mut account = existing(tx, name)?;
    if account.admin && !enabled {
        need_another_admin(tx, name)?;
    }
    account.enabled = enabled;
    Ok(save(tx, &keys::user(name), &account)?)
}

/// Removes an account.
pub(crate) fn remove(tx: &mut dyn Transaction, who: &Principal, name: &UserName) -> Result<()> {
    who.needs_admin()?;
    if existing(tx, name)?.admin {
        need_another_admin(tx, name)?;
    }
    tx.delete(&keys::user(name))?;
    Ok(count(tx, counter::USERS, -1)?)
}

fn need_another_admin(tx: &dyn Transaction, leaving: &UserName) -> Result<()> {
    let all = keys::users();
    let (mut from, until) = (all.clone(), keys::after_prefix(&all));
    let leaving = keys::user(leaving);
    loop {
        let page = tx.scan(&from, &until, SCAN_PAGE)?;
        for (key, value) in &page {
            let account: Account = decode(value)?;
            if *key != leaving && account.admin && account.enabled {
                return Ok(());
            }
        }
        match page.last() {
            Some((last, _)) if page.len() == SCAN_PAGE => from = [last.as_slice(), &[0]].concat(),
            _ => return Err(MdsError::refused(ErrorCode::Denied, "the last administrator must stay")),
        }
    }
}

/// A page of the accounts.
pub(crate) fn list<S: Snapshot + ?Sized>(
    view: &S,
    who: &Principal,
    after: Option<&UserName>,
    limit: u16,
) -> Result<(Vec<User>, bool)> {
    who.needs_admin()?;
    let all = keys::users();
    let from = after.map_or_else(|| all.clone(), |name| [&keys::user(name)[..], &[0]].concat());
    let limit = usize::from(limit.clamp(1, PAGE_MAX));
    let page = view.scan(&from, &keys::after_prefix(&all), limit + 1)?;
    let more = page.len() > limit;
    let users = page.into_iter().take(limit).map(|(key, value)| {
        let name = std::str::from_utf8(&key[1..])
            .ok()
            .and_then(|name| UserName::new(name).ok())
            .ok_or(crate::store::MetaError::Damaged("account with an impossible name"))?;
        let account: Account = decode(&value)?;
        Ok(User { name, admin: account.admin, enabled: account.enabled, created_ms: account.created_ms })
    });
    Ok((users.collect::<Result<_>>()?, more))
}
