//! Accounts of directory users: access and groups as the user directory states them.
//!
//! Does: query the directory at login, at resumption, and periodically while sessions are valid;
//! end the sessions of users who lost access.
//! Does not: define the queries; `user_directory` does. Passwords are never sent to the directory:
//! directory users enrol a password here like all others.
//! Contract: queries are made only for accounts marked as directory accounts, and only after the
//! password was proven or an administrator requested it, so that unauthenticated peers cause no
//! queries. Without an answer no session opens. A session continues without one for the configured
//! grace time at most; every request checks that.
//! Truth: docs/adr/0026-users-from-ldap.md; docs/standards/mds/login.md §4.8.

use std::sync::Arc;

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{AccountKind, ErrorCode, Role, UserName};

use crate::accounts;
use crate::audit::AuditRecord;
use crate::counters::add;
use crate::error::{MdsError, Result};
use crate::records::{Account, DirectoryGroups, SessionRecord};
use crate::server::Mds;
use crate::sessions;
use crate::user_directory::{DIRECTORY_GROUPS_MAX, DirectoryError, DirectoryLookup, UserDirectory};

/// Maximum number of users queried in one round.
const REFRESH_BATCH: usize = 64;

/// Result of a directory query for a user.
pub(crate) enum DirectoryVerdict {
    /// The user has access in this role.
    Access(Role, DirectoryGroups),
    /// The user has no access, for this reason.
    NoAccess(&'static str),
    /// The directory did not answer.
    Unavailable,
}

impl Mds {
    /// Sets the directory, once, before serving. Without one, directory accounts cannot log in.
    pub fn set_directory(&self, directory: Arc<dyn UserDirectory>) {
        // A second call has no effect, because sessions depend on answers of the first directory.
        let _ = self.directory.set(directory);
    }

    /// Whether a directory is set.
    #[must_use]
    pub fn has_directory(&self) -> bool {
        self.directory.get().is_some()
    }

    fn look_up(&self, user: &UserName) -> std::result::Result<DirectoryLookup, DirectoryError> {
        let directory = self.directory.get().ok_or(DirectoryError::None)?;
        add(&self.counters.directory_questions, 1);
        let found = match directory.look_up(user) {
            Ok(DirectoryLookup::Entry(entry)) if entry.groups.len() > DIRECTORY_GROUPS_MAX => {
                Err(DirectoryError::TooManyGroups)
            }
            found => found,
        };
        if let Err(error) = &found {
            add(&self.counters.directory_silent, u64::from(error.is_silence()));
            tracing::warn!(%user, %error, "directory query failed");
        }
        found
    }

    /// Queries the directory about the user of an account.
    pub(crate) fn query_verdict(&self, user: &UserName, account: &Account, now_ms: u64) -> DirectoryVerdict {
        let found = match self.look_up(user) {
            Ok(DirectoryLookup::Entry(found)) => found,
            Ok(DirectoryLookup::NotFound) => return DirectoryVerdict::NoAccess("not in the directory"),
            Ok(DirectoryLookup::Closed(mark)) => {
                tracing::info!(%user, mark, "account is closed in the user directory");
                return DirectoryVerdict::NoAccess("closed in the directory");
            }
            Err(error) => {
                return error.of_user().map_or(DirectoryVerdict::Unavailable, DirectoryVerdict::NoAccess);
            }
        };
        // The name belongs to another user now, but the password is still the previous user's.
        if account.entry != Some(found.entry) {
            return DirectoryVerdict::NoAccess("another entry in the directory");
        }
        let roles = &self.config.directory_roles;
        let role = if roles.is_empty() { Some(account.role) } else { roles.of(&found.groups) };
        match role {
            Some(role) => {
                DirectoryVerdict::Access(role, DirectoryGroups { groups: found.groups, asked_ms: now_ms })
            }
            None => DirectoryVerdict::NoAccess("in no group of the directory with a role"),
        }
    }

    /// Returns the directory entry that an enrolment code is for, if the account is a directory
    /// account.
    pub(crate) fn entry_to_invite(
        &self,
        name: &UserName,
        kind: AccountKind,
        replace: bool,
    ) -> Result<Option<[u8; 32]>> {
        let kind = if replace { accounts::existing(&*self.store.snapshot()?, name)?.kind } else { kind };
        let invalid = |what: &str| Err(MdsError::refused(ErrorCode::Invalid, what));
        match kind {
            AccountKind::Password => return Ok(None),
            AccountKind::Service => return invalid("a service has keys, not a password"),
            AccountKind::Directory => {}
        }
        match self.look_up(name) {
            Ok(DirectoryLookup::Entry(found)) => Ok(Some(found.entry)),
            Ok(DirectoryLookup::NotFound) => {
                Err(MdsError::refused(ErrorCode::NotFound, format!("{name} in the directory")))
            }
            Ok(DirectoryLookup::Closed(mark)) => invalid(&format!("closed in the directory ({mark})")),
            Err(error @ (DirectoryError::Unreachable(_) | DirectoryError::Refused(_))) => {
                // An administrator may see the reason.
                Err(MdsError::refused(ErrorCode::Internal, error.to_string()))
            }
            Err(error) => invalid(&error.to_string()),
        }
    }

    /// Checks a session before it is resumed, with a new query if the last answer is too old.
    /// Returns whether it continues; the record then has the new groups.
    pub(crate) fn check_directory(
        &self,
        session: &SessionId,
        record: &mut SessionRecord,
        now_ms: u64,
    ) -> Result<bool> {
        let Some(answer) = &record.directory else { return Ok(true) };
        let age_ms = now_ms.saturating_sub(answer.asked_ms);
        if age_ms <= self.config.directory_age_ms {
            return Ok(true);
        }
        let user = record.user.clone();
        let Some(account) = accounts::existing_enabled(&*self.store.snapshot()?, &user)? else {
            return Ok(false);
        };
        match self.query_verdict(&user, &account, now_ms) {
            DirectoryVerdict::Access(role, answer) => {
                self.apply_verdicts(&[(user, role, answer.clone())], now_ms)?;
                let stays = record.role == role;
                record.directory = Some(answer);
                Ok(stays)
            }
            DirectoryVerdict::NoAccess(why) => {
                self.end_access(&user, why, now_ms)?;
                Ok(false)
            }
            DirectoryVerdict::Unavailable if age_ms <= self.config.directory_grace_ms => Ok(true),
            DirectoryVerdict::Unavailable => {
                self.end_session_without_directory(&user, session, now_ms)?;
                Ok(false)
            }
        }
    }

    /// Ends a session whose directory was unavailable for longer than the grace time.
    pub(crate) fn end_session_without_directory(
        &self,
        user: &UserName,
        session: &SessionId,
        now_ms: u64,
    ) -> Result<()> {
        self.update(|tx| sessions::end(tx, session, user))?;
        self.sessions.forget(&[*session]);
        add(&self.counters.directory_ended, 1);
        self.audit_directory(user, Some(session), None, "no directory for too long", now_ms);
        Ok(())
    }

    /// Ends all sessions of a user who lost access, and revokes the user's credentials.
    fn end_access(&self, user: &UserName, why: &'static str, now_ms: u64) -> Result<()> {
        // This includes sessions opened before the account became a directory account.
        let over = self.update(|tx| sessions::end_where(tx, user, |_, _| true))?;
        self.sessions.forget(&over);
        add(&self.counters.directory_ended, over.len() as u64);
        let credentials = self.credentials_of(user, now_ms);
        let subject = format!("{} sessions, {credentials}", over.len());
        self.audit_directory(user, None, Some(&subject), why, now_ms);
        self.revoke_user(user, now_ms);
        Ok(())
    }

    /// Stores the new answers for users with access. Sessions in another role than the new one end.
    fn apply_verdicts(&self, fine: &[(UserName, Role, DirectoryGroups)], now_ms: u64) -> Result<()> {
        let over = self.update(|tx| {
            let mut over = Vec::new();
            for (user, role, answer) in fine {
                let ended = sessions::end_where(tx, user, |_, session| session.role != *role)?;
                over.extend(ended.into_iter().map(|id| (user.clone(), id)));
                sessions::store_directory(tx, user, answer)?;
            }
            Ok(over)
        })?;
        for (user, id) in &over {
            self.sessions.forget(&[*id]);
            self.audit_directory(user, Some(id), None, "another role in the directory", now_ms);
        }
        let mut users: Vec<&UserName> = over.iter().map(|(user, _)| user).collect();
        users.dedup();
        for user in users {
            self.revoke_user(user, now_ms);
        }
        add(&self.counters.directory_ended, over.len() as u64);
        for (user, _, answer) in fine {
            self.sessions.set_directory(user, answer);
        }
        Ok(())
    }

    /// Queries the directory again for users of valid sessions whose last answer is too old, at
    /// most 64 users. Users without access lose all sessions; while the directory is unavailable,
    /// sessions continue for the grace time. Blocks for as long as the directory takes, or until
    /// `go_on` returns false: call it every few seconds on a thread of its own. Returns whether
    /// more users are due.
    ///
    /// # Errors
    /// `Store`.
    pub fn refresh_directory(&self, now_ms: u64, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let before_ms = now_ms.saturating_sub(self.config.directory_age_ms);
        let due = self.sessions.directory_due(before_ms, REFRESH_BATCH);
        let mut more = due.len() == REFRESH_BATCH;
        let mut fine = Vec::new();
        for user in due {
            if !go_on() {
                more = false;
                break;
            }
            let Some(account) = accounts::existing_enabled(&*self.store.snapshot()?, &user)? else {
                self.end_access(&user, "no account", now_ms)?;
                continue;
            };
            match self.query_verdict(&user, &account, now_ms) {
                DirectoryVerdict::Access(role, answer) => fine.push((user, role, answer)),
                DirectoryVerdict::NoAccess(why) => self.end_access(&user, why, now_ms)?,
                DirectoryVerdict::Unavailable => {
                    // The queries for other users would fail too.
                    more = false;
                    break;
                }
            }
        }
        if !fine.is_empty() {
            self.apply_verdicts(&fine, now_ms)?;
        }
        Ok(more)
    }

    fn audit_directory(
        &self,
        user: &UserName,
        session: Option<&SessionId>,
        subject: Option<&str>,
        verdict: &str,
        time_ms: u64,
    ) {
        let (user, action) = (user.as_str(), "directory");
        self.audit.record(&AuditRecord {
            time_ms,
            user,
            session,
            proven: true,
            source: None,
            action,
            subject,
            verdict,
        });
    }

    /// Returns the number of queries, for tests.
    #[cfg(test)]
    pub(crate) fn directory_questions(&self) -> u64 {
        self.counters.directory_questions.load(std::sync::atomic::Ordering::Relaxed)
    }
}
