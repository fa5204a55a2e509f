//! Sessions of logged-in users.
//!
//! Does: open, find, resume and end sessions; a copy in the store lets them survive a restart.
//! Does not: log in.
//! Contract: an ended session is not found on any connection, nor after a crash. A session that was
//! opened or used shortly before a crash may be lost, or appear unused since: its user logs in
//! again.
//! Truth: docs/design/security.md 2.4; docs/standards/mds/login.md §4.5;
//! docs/adr/0032-sessions-open-without-disk-wait.md.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use sealstone_login::{ServerStarted, SessionKeys};
use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{ErrorCode, GroupName, Role, UserName};

use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::records::{
    AccountCredential, DirectoryGroups, SessionKey, SessionRecord, count, counter, decode, figure, load, save,
};
use crate::store::{MetaStore, Transaction, Wait};

/// Shortest interval between stored times of use of a session, milliseconds.
pub const TOUCH_EVERY_MS: u64 = 60_000;
/// Maximum number of sessions.
pub const SESSIONS_MAX: u64 = 65_536;
/// Maximum number of sessions of one user; a further login ends the least recently used one.
pub const SESSIONS_PER_USER_MAX: usize = 256;
/// Credential numbers skipped in a resumed session if its last records may be lost.
const NUMBERS_LOST_MAX: u32 = 1 << 20;
/// Sessions checked in one transaction of a sweep.
const SWEEP_PAGE: usize = 256;

/// A reauthentication with a challenge sent.
pub(crate) struct Reauth {
    pub(crate) started: ServerStarted,
    /// None if the account has no such credential and the challenge is a fake.
    pub(crate) credential: Option<AccountCredential>,
    pub(crate) until_ms: u64,
}

struct LiveSession {
    record: SessionRecord,
    last_used_ms: u64,
    grants: u32,
    /// The user's groups with the generation of all groups at which they were read; 0 if not read
    /// yet. For a directory user they are the directory's.
    groups: (Arc<[GroupName]>, u64),
    reauth: Option<Box<Reauth>>,
    /// Value of the change counter of users and groups when the session was last found in the
    /// store.
    confirmed_at: u64,
}

impl LiveSession {
    fn new(record: SessionRecord, last_used_ms: u64) -> Self {
        let answer = record.directory.as_ref();
        let groups = answer.map_or_else(Arc::default, |answer| answer.groups.as_slice().into());
        Self { record, last_used_ms, grants: 0, groups: (groups, 0), reauth: None, confirmed_at: 0 }
    }
}

/// A session that was found valid.
pub(crate) struct CheckedSession {
    pub(crate) principal: Principal,
    /// Whether the time of use has to be stored.
    pub(crate) stale: bool,
    /// Generation of the groups in `who`.
    pub(crate) groups_of: u64,
    /// Time of the last directory query for the user; none if the user is not a directory user.
    pub(crate) asked_ms: Option<u64>,
}

/// Sessions in use, the next credential numbers of unused sessions, and the first number of new
/// ones. Unused sessions are in the store only.
#[derive(Default)]
pub(crate) struct SessionTable(Mutex<HashMap<SessionId, LiveSession>>, Mutex<GrantNumbers>, AtomicU32);

#[derive(Default)]
struct GrantNumbers {
    last: HashMap<SessionId, u32>,
    /// Numbers to skip, because the last records may be lost.
    skip: u32,
    /// Last number and expiry of sessions that were not used here for long, and that other servers
    /// may use.
    idle: HashMap<SessionId, (u32, u64)>,
}

impl GrantNumbers {
    /// Keeps the number of a session that leaves the table and may be resumed.
    fn keep_number(&mut self, id: SessionId, live: &LiveSession, now_ms: u64) {
        if self.idle.len() >= SESSIONS_MAX as usize {
            self.idle.retain(|_, (_, ends_ms)| now_ms < *ends_ms);
        }
        if now_ms < live.record.expires_ms {
            self.idle.insert(id, (live.grants, live.record.expires_ms));
        }
    }
}

fn ended() -> MdsError {
    MdsError::refused(ErrorCode::NotLoggedIn, "")
}

impl SessionTable {
    /// Stores a new session; [`SessionTable::insert`] follows after the commit. Returns the
    /// sessions that it ended, and whether the commit must be durable. A lost new session can be
    /// opened again, but an ended one must not reappear.
    pub(crate) fn open(
        tx: &mut dyn Transaction,
        id: &SessionId,
        record: &SessionRecord,
    ) -> Result<(Vec<SessionId>, Wait)> {
        let free = SESSIONS_MAX.saturating_sub(figure(tx, counter::SESSIONS)?);
        let mut over = Vec::new();
        let own = of_user(tx, &record.user)?;
        if free == 0 && own.is_empty() {
            return Err(MdsError::Refused(sealstone_mds_protocol::Failure::busy(TOUCH_EVERY_MS as u32)));
        }
        // A user has at most as many sessions as are free. So a login ends one of the user's own
        // sessions, not another user's.
        let own_max = SESSIONS_PER_USER_MAX.min(free as usize).max(1);
        if own.len() >= own_max {
            let mut by_use = Vec::with_capacity(own.len());
            for id in own {
                let used = load::<SessionRecord, _>(tx, &keys::session(&id))?.map_or(0, |s| s.last_used_ms);
                by_use.push((used, id));
            }
            by_use.sort_unstable();
            for (_, id) in by_use.iter().take(by_use.len() + 1 - own_max) {
                end(tx, id, &record.user)?;
                over.push(*id);
            }
        }
        save(tx, &keys::session(id), record)?;
        save(tx, &keys::session_of(&record.user, id), &())?;
        count(tx, counter::SESSIONS, 1)?;
        let wait = if over.is_empty() { Wait::No } else { Wait::ForMedium };
        Ok((over, wait))
    }

    pub(crate) fn insert(&self, id: SessionId, record: SessionRecord) {
        let last_used_ms = record.last_used_ms;
        let grants = self.2.load(Ordering::Relaxed);
        self.0.lock().insert(id, LiveSession { grants, ..LiveSession::new(record, last_used_ms) });
    }

    /// Checks that a session just inserted is still in the store; otherwise removes it. Its account
    /// may have been disabled in between. Sessions are ended in the store first, so one of the two
    /// steps sees the other.
    pub(crate) fn confirm(&self, store: &dyn MetaStore, id: &SessionId) -> Result<bool> {
        let there = store.snapshot()?.get(&keys::session(id))?.is_some();
        if !there {
            self.forget(&[*id]);
        }
        Ok(there)
    }

    /// Sets the groups of the session's user, read at a generation.
    pub(crate) fn set_groups(&self, id: &SessionId, groups: Arc<[GroupName]>, generation: u64) {
        if let Some(live) = self.0.lock().get_mut(id) {
            live.groups = (groups, generation);
        }
    }

    pub(crate) fn forget(&self, ids: &[SessionId]) {
        let mut table = self.0.lock();
        for id in ids {
            table.remove(id);
        }
    }

    /// Returns the owner of a session and records its use.
    pub(crate) fn check(&self, id: &SessionId, idle_ms: u64, now_ms: u64) -> Result<CheckedSession> {
        let mut table = self.0.lock();
        let live = table.get_mut(id).ok_or_else(ended)?;
        if is_over(&live.record, live.last_used_ms, idle_ms, now_ms) {
            self.1.lock().keep_number(*id, live, now_ms);
            table.remove(id);
            return Err(ended());
        }
        live.last_used_ms = live.last_used_ms.max(now_ms);
        let stale = now_ms.saturating_sub(live.record.last_used_ms) >= TOUCH_EVERY_MS;
        if stale {
            live.record.last_used_ms = now_ms;
        }
        let (groups, groups_of) = live.groups.clone();
        let principal =
            Principal { user: live.record.user.clone(), role: live.record.role, groups, session: *id };
        let asked_ms = live.record.directory.as_ref().map(|answer| answer.asked_ms);
        Ok(CheckedSession { principal, stale, groups_of, asked_ms })
    }

    /// Returns users of valid sessions whose last directory query was before this time, the oldest
    /// first.
    pub(crate) fn directory_due(&self, before_ms: u64, limit: usize) -> Vec<UserName> {
        let table = self.0.lock();
        let asked = |live: &LiveSession| live.record.directory.as_ref().map(|answer| answer.asked_ms);
        let mut due: Vec<(u64, &UserName)> = table
            .values()
            .filter_map(|live| Some((asked(live)?, &live.record.user)))
            .filter(|(asked_ms, _)| *asked_ms < before_ms)
            .collect();
        due.sort_unstable();
        let mut seen = HashSet::new();
        due.into_iter()
            .filter(|(_, user)| seen.insert(*user))
            .map(|(_, user)| user.clone())
            .take(limit)
            .collect()
    }

    /// Sets the groups from a new directory query.
    pub(crate) fn set_directory(&self, user: &UserName, answer: &DirectoryGroups) {
        for live in self.0.lock().values_mut().filter(|live| live.record.user == *user) {
            if let Some(before) = &mut live.record.directory {
                before.clone_from(answer);
                live.groups = (answer.groups.as_slice().into(), 0);
            }
        }
    }

    /// Stores a started reauthentication; returns an unfinished earlier one.
    pub(crate) fn set_reauth(&self, id: &SessionId, reauth: Reauth) -> Option<Box<Reauth>> {
        self.0.lock().get_mut(id)?.reauth.replace(Box::new(reauth))
    }

    /// Takes the started reauthentication, which can be finished only once.
    pub(crate) fn take_reauth(&self, id: &SessionId) -> Option<Box<Reauth>> {
        self.0.lock().get_mut(id)?.reauth.take()
    }

    /// Returns the user of a session in use.
    pub(crate) fn user_of(&self, id: &SessionId) -> Option<UserName> {
        Some(self.0.lock().get(id)?.record.user.clone())
    }

    /// Returns the user of a session in use, and whether it is an administrator.
    pub(crate) fn user_and_role(&self, id: &SessionId) -> Option<(UserName, bool)> {
        let table = self.0.lock();
        let record = &table.get(id)?.record;
        Some((record.user.clone(), record.role == Role::Admin))
    }

    /// Returns the absolute expiry time of a session.
    pub(crate) fn expires_ms(&self, id: &SessionId) -> Option<u64> {
        Some(self.0.lock().get(id)?.record.expires_ms)
    }

    /// Sets the last credential numbers of sessions, so that no number is used for two credentials.
    /// If a power failure took the last records, more numbers are skipped than a session can use in
    /// the lost seconds.
    pub(crate) fn number_from(&self, last: HashMap<SessionId, u32>, is_whole: bool) {
        let skip = if is_whole { 0 } else { NUMBERS_LOST_MAX };
        *self.1.lock() = GrantNumbers { last, skip, idle: HashMap::new() };
    }

    /// Sets the first credential number of new sessions; each of several servers has another one.
    pub(crate) fn begin_numbers_at(&self, first: u32) {
        self.2.store(first, Ordering::Relaxed);
    }

    /// Returns the change counter of users and groups when the session was last found in the store.
    pub(crate) fn confirmed_at(&self, id: &SessionId) -> Option<u64> {
        Some(self.0.lock().get(id)?.confirmed_at)
    }

    /// Updates a session from its record in the store.
    pub(crate) fn confirm_at(&self, id: &SessionId, record: SessionRecord, epoch: u64) {
        if let Some(live) = self.0.lock().get_mut(id) {
            live.confirmed_at = epoch;
            if let Some(answer) = &record.directory {
                live.groups = (answer.groups.as_slice().into(), 0);
            }
            live.last_used_ms = live.last_used_ms.max(record.last_used_ms);
            live.record = record;
        }
    }

    /// Returns the sessions of a user that are in use here.
    pub(crate) fn of_user_in_use(&self, user: &UserName) -> Vec<SessionId> {
        self.0.lock().iter().filter(|(_, live)| live.record.user == *user).map(|(id, _)| *id).collect()
    }

    /// Removes expired sessions from the table; another server may have ended them in the store.
    pub(crate) fn expire(&self, idle_ms: u64, now_ms: u64) {
        let (mut table, mut numbers) = (self.0.lock(), self.1.lock());
        table.retain(|id, live| {
            let over = is_over(&live.record, live.last_used_ms, idle_ms, now_ms);
            if over {
                numbers.keep_number(*id, live, now_ms);
            }
            !over
        });
    }

    /// Returns the next credential number of a session.
    pub(crate) fn next_grant(&self, id: &SessionId) -> u32 {
        let mut table = self.0.lock();
        table.get_mut(id).map_or(0, |live| {
            live.grants = live.grants.wrapping_add(1);
            live.grants
        })
    }

    /// Finds a session to be resumed, in the table or the store; none if it expired or never
    /// existed.
    pub(crate) fn find(
        &self,
        store: &dyn MetaStore,
        id: &SessionId,
        idle_ms: u64,
        now_ms: u64,
    ) -> Result<Option<(SessionRecord, SessionKeys)>> {
        let live = {
            let table = self.0.lock();
            table.get(id).map(|live| (live.record.clone(), live.last_used_ms))
        };
        let found = match live {
            Some(found) => Some(found),
            None => load::<SessionRecord, _>(&*store.snapshot()?, &keys::session(id))?.map(|record| {
                let used = record.last_used_ms;
                (record, used)
            }),
        };
        Ok(found.filter(|(record, used)| !is_over(record, *used, idle_ms, now_ms)).map(|(record, _)| {
            let keys = SessionKeys::from_bytes(&record.keys);
            (record, keys)
        }))
    }

    /// Puts a session from the store into the table.
    pub(crate) fn resume(&self, id: SessionId, mut record: SessionRecord, now_ms: u64) {
        let mut table = self.0.lock();
        // A clock set back for a while must not make the session look idle later.
        let used_ms = record.last_used_ms.max(now_ms);
        let live = table.entry(id).or_insert_with(|| {
            // The next request stores the new time of use.
            record.last_used_ms = record.last_used_ms.min(now_ms.saturating_sub(TOUCH_EVERY_MS));
            let first = self.2.load(Ordering::Relaxed);
            let mut numbers = self.1.lock();
            let known = numbers.last.remove(&id).unwrap_or(first).wrapping_add(numbers.skip);
            let grants = numbers.idle.remove(&id).map_or(known, |(grants, _)| grants);
            LiveSession { grants, ..LiveSession::new(record, used_ms) }
        });
        live.last_used_ms = live.last_used_ms.max(now_ms);
    }
}

fn is_over(record: &SessionRecord, last_used_ms: u64, idle_ms: u64, now_ms: u64) -> bool {
    now_ms >= record.expires_ms || now_ms.saturating_sub(last_used_ms) >= idle_ms
}

/// Returns the sessions of a user.
pub(crate) fn of_user(tx: &dyn Transaction, user: &UserName) -> Result<Vec<SessionKey>> {
    let all = keys::sessions_of(user);
    let pairs = tx.scan(&all, &keys::after_prefix(&all), SESSIONS_PER_USER_MAX + 1)?;
    Ok(pairs.iter().filter_map(|(key, _)| keys::session_of_id(key)).collect())
}

/// Ends a session in the store.
pub(crate) fn end(tx: &mut dyn Transaction, id: &SessionId, user: &UserName) -> Result<()> {
    if tx.get(&keys::session(id))?.is_none() {
        return Ok(());
    }
    tx.delete(&keys::session(id))?;
    tx.delete(&keys::session_of(user, id))?;
    tx.delete(&keys::paper_session(id))?;
    Ok(count(tx, counter::SESSIONS, -1)?)
}

/// Ends those sessions of a user in the store that `which` selects; returns them.
pub(crate) fn end_where(
    tx: &mut dyn Transaction,
    user: &UserName,
    which: impl Fn(&SessionId, &SessionRecord) -> bool,
) -> Result<Vec<SessionId>> {
    let mut over = Vec::new();
    for id in of_user(tx, user)? {
        if load::<SessionRecord, _>(tx, &keys::session(&id))?.is_none_or(|record| which(&id, &record)) {
            end(tx, &id, user)?;
            over.push(id);
        }
    }
    Ok(over)
}

/// Deletes all sessions in the store.
pub(crate) fn forget_all(tx: &mut dyn Transaction) -> Result<()> {
    for all in [keys::sessions(), keys::sessions_of_users(), keys::paper_sessions()] {
        for (key, value) in tx.scan(&all, &keys::after_prefix(&all), usize::MAX)? {
            drop(zeroize::Zeroizing::new(value));
            tx.delete(&key)?;
        }
    }
    Ok(save(tx, &keys::meta(counter::SESSIONS), &0u64)?)
}

/// Stores the groups from a new directory query, for use after a restart.
pub(crate) fn store_directory(
    tx: &mut dyn Transaction,
    user: &UserName,
    answer: &DirectoryGroups,
) -> Result<()> {
    for id in of_user(tx, user)? {
        if let Some(mut record) = load::<SessionRecord, _>(tx, &keys::session(&id))?
            && let Some(before) = &mut record.directory
        {
            before.clone_from(answer);
            save(tx, &keys::session(&id), &record)?;
        }
    }
    Ok(())
}

/// Stores the time of use; the commit is lazy.
pub(crate) fn touch(tx: &mut dyn Transaction, id: &SessionId, now_ms: u64) -> Result<()> {
    if let Some(mut record) = load::<SessionRecord, _>(tx, &keys::session(id))? {
        record.last_used_ms = record.last_used_ms.max(now_ms);
        save(tx, &keys::session(id), &record)?;
    }
    Ok(())
}

/// Ends expired sessions after `after`; returns them and the position of the next sweep.
pub(crate) fn sweep(
    tx: &mut dyn Transaction,
    after: Option<SessionId>,
    idle_ms: u64,
    now_ms: u64,
) -> Result<(Vec<SessionId>, Option<SessionId>)> {
    let all = keys::sessions();
    let from = after.map_or_else(|| all.clone(), |id| [&keys::session(&id)[..], &[0]].concat());
    let page = tx.scan(&from, &keys::after_prefix(&all), SWEEP_PAGE)?;
    let mut over = Vec::new();
    for (key, value) in &page {
        let record: SessionRecord = decode(value)?;
        let id: SessionId = key.last_chunk().copied().unwrap_or_default();
        // The stored time is at most TOUCH_EVERY_MS older than the one in the table.
        if is_over(&record, record.last_used_ms.saturating_add(TOUCH_EVERY_MS), idle_ms, now_ms) {
            end(tx, &id, &record.user)?;
            over.push(id);
        }
    }
    let next = if page.len() == SWEEP_PAGE {
        page.last().and_then(|(key, _)| key.last_chunk().copied())
    } else {
        None
    };
    Ok((over, next))
}
