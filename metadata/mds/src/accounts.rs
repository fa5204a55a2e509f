//! Accounts: their credentials, roles and state.
//!
//! Does: registration by administrators and by enrolment code, change of one's own password, keys
//! of services, roles, enabling, removal.
//! Does not: see a password or a key.
//! Contract: the last enabled local administrator with a credential cannot be removed, disabled or
//! given another role. A password account never has a credential of a suite for key files, whose
//! secrets are not stretched, and a service never has one of a password suite. A user who changes
//! the credential of the own account has proven the current one.

use sealstone_login::{AccountRecord, code_digest, code_matches, new_code};
use sealstone_mds_protocol::login::{SessionId, is_service_suite};
use sealstone_mds_protocol::{AccountKind, ErrorCode, PAGE_MAX, Role, User, UserName};

use crate::access::Principal;
use crate::disks;
use crate::entropy::Entropy;
use crate::error::{MdsError, Result};
use crate::groups;
use crate::keys;
use crate::records::{Account, AccountCredential, Invitation, count, counter, decode, figure, load, save};
use crate::sessions;
use crate::store::{MetaError, Snapshot, Transaction};

/// Maximum number of accounts.
pub(crate) const USERS_MAX: u64 = 1_000_000;
/// Longest lifetime of an enrolment code, seconds: 30 days.
pub(crate) const CODE_LIFETIME_MAX_S: u32 = 30 * 24 * 3600;
/// Accounts read at once in the search for another administrator.
const SCAN_PAGE: usize = 256;

/// An uploaded registration.
pub(crate) struct AccountRegistration {
    pub(crate) name: UserName,
    pub(crate) record: [u8; 192],
    pub(crate) suite: u16,
    pub(crate) role: Role,
    pub(crate) replace: bool,
    /// For one's own account: the credential that the user has proven.
    pub(crate) proven: Option<AccountCredential>,
}

/// Account that an enrolment code is for.
pub(crate) struct InvitedAccount {
    /// Kind of a new account.
    pub(crate) kind: AccountKind,
    /// Role of a new account.
    pub(crate) role: Role,
    /// Whether the account exists.
    pub(crate) replace: bool,
    /// Digest of its entry in the directory.
    pub(crate) entry: Option<[u8; 32]>,
}

/// Whether a credential of this suite can belong to an account of this kind.
const fn suite_fits(kind: AccountKind, suite: u16) -> bool {
    matches!(kind, AccountKind::Service) == is_service_suite(suite)
}

/// Fails unless `principal` may register a password or key for `name`.
pub(crate) fn may_register(principal: &Principal, name: &UserName) -> Result<()> {
    if *name == principal.user { Ok(()) } else { principal.needs_admin() }
}

/// Adds an account, or changes a password or key. Returns the sessions that ended.
pub(crate) fn register(
    tx: &mut dyn Transaction,
    principal: &Principal,
    new: &AccountRegistration,
    now_ms: u64,
) -> Result<Vec<SessionId>> {
    may_register(principal, &new.name)?;
    check_record(new.suite, &new.record)?;
    let key = keys::user(&new.name);
    let credential = AccountCredential { suite: new.suite, record: new.record };
    if !new.replace {
        principal.needs_admin()?;
        let service = is_service_suite(new.suite);
        let kind = if service { AccountKind::Service } else { AccountKind::Password };
        add(tx, &new.name, kind, new.role, now_ms)?;
        let account: Account = existing(tx, &new.name)?;
        save(tx, &key, &Account { credentials: vec![credential], ..account })?;
        return Ok(Vec::new());
    }
    let mut account = existing(tx, &new.name)?;
    if !suite_fits(account.kind, new.suite) {
        return Err(MdsError::refused(ErrorCode::Invalid, "login suite does not fit the kind of account"));
    }
    // A stolen session must not be enough to take over the account, an administrator's included.
    let proves = |proven: &AccountCredential| account.credential(proven.suite) == Some(proven);
    if new.name == principal.user && !new.proven.as_ref().is_some_and(proves) {
        return Err(MdsError::refused(ErrorCode::Denied, "proof of the current password or key required"));
    }
    match account.kind {
        AccountKind::Password | AccountKind::Directory => account.credentials.clear(),
        AccountKind::Service => account.credentials.retain(|old| old.suite != new.suite),
    }
    account.credentials.push(credential);
    account.invitation = None;
    save(tx, &key, &account)?;
    // Sessions opened with the old password or key end; only the session of this request continues.
    let service = account.kind == AccountKind::Service;
    sessions::end_where(tx, &new.name, |id, session| {
        *id != principal.session && (!service || session.suite == new.suite)
    })
}

fn check_record(suite: u16, record: &[u8; 192]) -> Result<()> {
    sealstone_login::Stretch::for_suite(suite)
        .map_err(|_| MdsError::refused(ErrorCode::Invalid, "login suite"))?;
    AccountRecord::parse(record).map_err(|_| MdsError::refused(ErrorCode::Invalid, "registration record"))?;
    Ok(())
}

/// Adds an account without a credential.
fn add(tx: &mut dyn Transaction, name: &UserName, kind: AccountKind, role: Role, now_ms: u64) -> Result<()> {
    if load::<Account, _>(tx, &keys::user(name))?.is_some() {
        return Err(MdsError::refused(ErrorCode::Exists, name.as_str()));
    }
    if name.is_number() {
        return Err(MdsError::refused(
            ErrorCode::InvalidName,
            "uid-N is reserved for numbers without a name",
        ));
    }
    if figure(tx, counter::USERS)? >= USERS_MAX {
        return Err(MdsError::refused(ErrorCode::Limit, "accounts"));
    }
    count(tx, counter::USERS, 1)?;
    let account = Account {
        kind,
        role,
        enabled: true,
        created_ms: now_ms,
        credentials: Vec::new(),
        invitation: None,
        entry: None,
    };
    Ok(save(tx, &keys::user(name), &account)?)
}

/// Loads an account that may log in.
pub(crate) fn existing_enabled<S: Snapshot + ?Sized>(view: &S, name: &UserName) -> Result<Option<Account>> {
    let account: Option<Account> = load(view, &keys::user(name))?;
    Ok(account.filter(|account| account.enabled))
}

impl Account {
    /// Returns the credential of this suite.
    pub(crate) fn credential(&self, suite: u16) -> Option<&AccountCredential> {
        self.credentials.iter().find(|one| one.suite == suite && suite_fits(self.kind, suite))
    }
}

pub(crate) fn existing<S: Snapshot + ?Sized>(view: &S, name: &UserName) -> Result<Account> {
    load(view, &keys::user(name))?.ok_or_else(|| MdsError::refused(ErrorCode::NotFound, name.as_str()))
}

/// Enables or disables an account. Disabling ends its sessions and its enrolment code.
pub(crate) fn set_enabled(
    tx: &mut dyn Transaction,
    name: &UserName,
    enabled: bool,
    other: Option<&UserName>,
) -> Result<Vec<SessionId>> {
    let mut account = existing(tx, name)?;
    account.enabled = enabled;
    if enabled {
        save(tx, &keys::user(name), &account)?;
        return Ok(Vec::new());
    }
    need_another_admin(tx, &account, other)?;
    account.invitation = None;
    save(tx, &keys::user(name), &account)?;
    sessions::end_where(tx, name, |_, _| true)
}

/// Changes the role of an account; its sessions end.
pub(crate) fn set_role(
    tx: &mut dyn Transaction,
    name: &UserName,
    role: Role,
    other: Option<&UserName>,
) -> Result<Vec<SessionId>> {
    let mut account = existing(tx, name)?;
    if account.role == role {
        return Ok(Vec::new());
    }
    need_another_admin(tx, &account, other)?;
    account.role = role;
    // A new role must not depend on a passphrase of the paper's profile.
    tx.delete(&keys::paper_key(name))?;
    save(tx, &keys::user(name), &account)?;
    sessions::end_where(tx, name, |_, _| true)
}

/// Removes an account, its sessions and its memberships.
pub(crate) fn remove(
    tx: &mut dyn Transaction,
    name: &UserName,
    other: Option<&UserName>,
) -> Result<Vec<SessionId>> {
    let account = existing(tx, name)?;
    need_another_admin(tx, &account, other)?;
    groups::forget_user(tx, name)?;
    disks::forget_user(tx, name)?;
    tx.delete(&keys::user(name))?;
    tx.delete(&keys::paper_key(name))?;
    tx.delete(&keys::familiar(name))?;
    count(tx, counter::USERS, -1)?;
    sessions::end_where(tx, name, |_, _| true)
}

/// Removes one of the two keys of a service; the sessions opened with it end.
pub(crate) fn retire_key(tx: &mut dyn Transaction, name: &UserName, suite: u16) -> Result<Vec<SessionId>> {
    let mut account = existing(tx, name)?;
    if account.kind != AccountKind::Service {
        return Err(MdsError::refused(ErrorCode::Invalid, "the account has a password, not keys"));
    }
    if account.credential(suite).is_none() {
        return Err(MdsError::refused(ErrorCode::NotFound, "key"));
    }
    if account.credentials.len() < 2 {
        return Err(MdsError::refused(ErrorCode::Denied, "the last key must stay; disable the account"));
    }
    account.credentials.retain(|one| one.suite != suite);
    save(tx, &keys::user(name), &account)?;
    sessions::end_where(tx, name, |_, session| session.suite == suite)
}

/// Creates an enrolment code for a new account, or for an existing one that has to replace its
/// password. Returns the code, its expiry time, and the sessions that ended. The store has only a
/// digest of the code.
pub(crate) fn invite(
    tx: &mut dyn Transaction,
    name: &UserName,
    invited: &InvitedAccount,
    lifetime_s: u32,
    now_ms: u64,
    mut rng: &mut dyn Entropy,
) -> Result<(zeroize::Zeroizing<Vec<u8>>, u64, Vec<SessionId>)> {
    if lifetime_s == 0 {
        return Err(MdsError::refused(ErrorCode::Invalid, "lifetime of the code"));
    }
    if lifetime_s > CODE_LIFETIME_MAX_S {
        return Err(MdsError::refused(ErrorCode::Limit, "lifetime of the code"));
    }
    if !invited.replace {
        add(tx, name, invited.kind, invited.role, now_ms)?;
    }
    let mut account = existing(tx, name)?;
    if account.kind == AccountKind::Service {
        return Err(MdsError::refused(ErrorCode::Invalid, "the account has keys, not a password"));
    }
    if !account.enabled {
        return Err(MdsError::refused(ErrorCode::Invalid, "the account is disabled"));
    }
    let code = new_code(&mut rng);
    let expires_ms = now_ms.saturating_add(u64::from(lifetime_s) * 1000);
    let invitation = Some(Invitation { digest: code_digest(name, &*code), expires_ms });
    account.invitation = invitation;
    let mut over = Vec::new();
    if account.kind == AccountKind::Directory && account.entry != invited.entry {
        // The code is for the current entry of that name in the directory. The password of the
        // previous entry becomes invalid.
        account.entry = invited.entry;
        account.credentials.clear();
        over = sessions::end_where(tx, name, |_, _| true)?;
    }
    save(tx, &keys::user(name), &account)?;
    Ok((zeroize::Zeroizing::new(code.to_vec()), expires_ms, over))
}

/// Returns the account if the code is valid for it now; otherwise none, without the reason.
pub(crate) fn account_for_code<S: Snapshot + ?Sized>(
    view: &S,
    name: &UserName,
    code: &[u8],
    now_ms: u64,
) -> Result<Option<Account>> {
    let account = existing_enabled(view, name)?;
    let invitation = account.as_ref().and_then(|account| account.invitation.as_ref());
    let invitation = invitation.filter(|invitation| now_ms < invitation.expires_ms);
    let matches = code_matches(invitation.map(|invitation| &invitation.digest), name, code);
    Ok(account.filter(|_| matches))
}

/// Uses a code and sets the password of the account. Returns the sessions that ended, or none if
/// the code is not valid.
pub(crate) fn enrol(
    tx: &mut dyn Transaction,
    name: &UserName,
    code: &[u8],
    credential: &AccountCredential,
    now_ms: u64,
) -> Result<Option<Vec<SessionId>>> {
    let Some(mut account) = account_for_code(tx, name, code, now_ms)? else { return Ok(None) };
    account.credentials = vec![credential.clone()];
    account.invitation = None;
    save(tx, &keys::user(name), &account)?;
    sessions::end_where(tx, name, |_, _| true).map(Some)
}

/// Whether `record` can be a user's password record.
pub(crate) fn is_password_record(suite: u16, record: &[u8; 192]) -> bool {
    suite_fits(AccountKind::Password, suite) && check_record(suite, record).is_ok()
}

/// Whether an account can administer without a directory, which could be silent.
fn is_local_admin(account: &Account) -> bool {
    let local = account.kind != AccountKind::Directory;
    local && account.role == Role::Admin && account.enabled && !account.credentials.is_empty()
}

/// Returns an administrator other than `leaving`. O(accounts): call it outside of transactions.
pub(crate) fn another_admin<S: Snapshot + ?Sized>(view: &S, leaving: &UserName) -> Result<Option<UserName>> {
    let all = keys::users();
    let (mut from, until) = (all.clone(), keys::after_prefix(&all));
    let leaving = keys::user(leaving);
    loop {
        let page = view.scan(&from, &until, SCAN_PAGE)?;
        for (key, value) in &page {
            if *key != leaving && is_local_admin(&decode(value)?) {
                return name_in_key(key).map(Some);
            }
        }
        match page.last() {
            Some((last, _)) if page.len() == SCAN_PAGE => from = [last.as_slice(), &[0]].concat(),
            _ => return Ok(None),
        }
    }
}

/// Fails if the account is the last administrator. `other` is the result of [`another_admin`]
/// before the transaction.
fn need_another_admin(tx: &dyn Transaction, account: &Account, other: Option<&UserName>) -> Result<()> {
    if account.role != Role::Admin {
        return Ok(());
    }
    let Some(other) = other else {
        return Err(MdsError::refused(ErrorCode::Denied, "the last administrator must stay"));
    };
    match load::<Account, _>(tx, &keys::user(other))?.is_some_and(|other| is_local_admin(&other)) {
        true => Ok(()),
        // It has changed since the search: the client repeats the request.
        false => Err(MetaError::Conflict.into()),
    }
}

fn name_in_key(key: &[u8]) -> Result<UserName> {
    let name = key.get(1..).and_then(|name| std::str::from_utf8(name).ok());
    let name = name.and_then(|name| UserName::new(name).ok());
    Ok(name.ok_or(MetaError::Damaged("account with an invalid name"))?)
}

/// Returns a page of the accounts.
pub(crate) fn list<S: Snapshot + ?Sized>(
    view: &S,
    after: Option<&UserName>,
    limit: u16,
) -> Result<(Vec<User>, bool)> {
    let all = keys::users();
    let from = after.map_or_else(|| all.clone(), |name| [&keys::user(name)[..], &[0]].concat());
    let limit = usize::from(limit.clamp(1, PAGE_MAX));
    let page = view.scan(&from, &keys::after_prefix(&all), limit + 1)?;
    let more = page.len() > limit;
    let users = page.into_iter().take(limit).map(|(key, value)| {
        let name = name_in_key(&key)?;
        let account: Account = decode(&value)?;
        Ok(User {
            name,
            role: account.role,
            kind: account.kind,
            enabled: account.enabled,
            created_ms: account.created_ms,
            suites: account.credentials.iter().map(|one| one.suite).collect(),
            code_until_ms: account.invitation.map(|invitation| invitation.expires_ms),
        })
    });
    Ok((users.collect::<Result<_>>()?, more))
}
