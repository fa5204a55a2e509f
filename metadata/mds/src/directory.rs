//! The directory: an LDAP server, say, that knows who exists and who is in which group.
//!
//! Does: say what the metadata server asks of it; ask at a login, at a resumption, and again while sessions live; end the
//! sessions of those who are out. Does not: speak LDAP; a shell brings what does. No password goes there: a directory's
//! user has his password here, enrolled like everybody's.
//! Contract: asked only about accounts that are marked as the directory's, and only after their password was proven or an
//! administrator asked, so that strangers cause no questions. No answer opens no session; a session goes on without one
//! for the grace that is configured, and not for longer: every request looks at that, whether or not anybody asks again.
//! Truth: docs/adr/0026-users-from-ldap.md; docs/standards/mds/login.md §4.8.

use std::sync::Arc;

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{AccountKind, ErrorCode, GroupName, Role, UserName};

use crate::accounts;
use crate::audit::AuditRecord;
use crate::counters::add;
use crate::error::{MdsError, Result};
use crate::records::{Account, DirectoryGroups, SessionRecord};
use crate::server::Mds;
use crate::sessions;

/// Groups of one user that are taken from a directory at most: they are looked through with every check of a file.
pub const DIRECTORY_GROUPS_MAX: usize = 256;
/// Users asked about in one round at most.
const REFRESH_BATCH: usize = 64;

/// An entry that may work here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Digest of the name that the entry keeps for as long as it lives and that no other entry ever gets.
    pub entry: [u8; 32],
    /// Groups, at most [`DIRECTORY_GROUPS_MAX`].
    pub groups: Vec<GroupName>,
}

/// What a directory has under a user's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Somebody who may work here.
    Entry(DirectoryEntry),
    /// Nobody, or nobody who may.
    Nobody,
    /// An entry that is closed: locked, disabled, expired. With what says so.
    Closed(&'static str),
}

/// Why a directory's answer cannot be used, or does not come.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// No server was named to this metadata server.
    #[error("no directory is configured")]
    None,
    /// It cannot be reached, breaks off, is too slow, or sends what makes no sense.
    #[error("the directory does not answer: {0}")]
    Unreachable(String),
    /// It does not let the metadata server ask.
    #[error("the directory refuses the metadata server: {0}")]
    Refused(String),
    /// Two entries have the user's name.
    #[error("the directory has more than one entry for the user")]
    Ambiguous,
    /// The entry has no lasting name.
    #[error("the user's entry does not show exactly one {0}, by which it would be known again")]
    NoLastingName(String),
    /// The user is in more groups than are taken.
    #[error("the user is in more than {DIRECTORY_GROUPS_MAX} groups; narrow the group filter")]
    TooManyGroups,
}

impl DirectoryError {
    /// Is nothing known of anybody, because no answer came that could be used?
    #[must_use]
    pub const fn is_silence(&self) -> bool {
        self.of_user().is_none()
    }

    /// Is it about one user? Then others may be asked about, and he is out; else nothing is known of anybody.
    const fn of_user(&self) -> Option<&'static str> {
        match self {
            Self::None | Self::Unreachable(_) | Self::Refused(_) => None,
            Self::Ambiguous => Some("twice in the directory"),
            Self::NoLastingName(_) => Some("no lasting name in the directory"),
            Self::TooManyGroups => Some("too many groups in the directory"),
        }
    }
}

/// Something that knows users and groups.
pub trait Directory: Send + Sync + 'static {
    /// A user as the directory knows him now. May take seconds, and no more.
    ///
    /// # Errors
    /// See [`DirectoryError`].
    fn look_up(&self, user: &UserName) -> std::result::Result<Found, DirectoryError>;
}

/// Groups of the directory whose members have a role. With none of them an account's role is what an administrator gave
/// it; with any, the directory says the role of all its accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryRoles {
    /// Who administers.
    pub admin: Option<GroupName>,
    /// Who operates.
    pub operator: Option<GroupName>,
    /// Who has files.
    pub user: Option<GroupName>,
    /// Who reads files.
    pub read_only: Option<GroupName>,
}

impl DirectoryRoles {
    fn all(&self) -> [(Role, Option<&GroupName>); 4] {
        [
            (Role::Admin, self.admin.as_ref()),
            (Role::Operator, self.operator.as_ref()),
            (Role::User, self.user.as_ref()),
            (Role::ReadOnly, self.read_only.as_ref()),
        ]
    }

    /// Does the directory say no roles?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all().iter().all(|(_, group)| group.is_none())
    }

    /// The role of a member of these groups, the first that fits of admin, operator, user, read-only; `None`: he has none
    /// and may not log in.
    #[must_use]
    pub fn of(&self, groups: &[GroupName]) -> Option<Role> {
        let mut all = self.all().into_iter();
        all.find(|(_, group)| group.is_some_and(|group| groups.contains(group))).map(|(role, _)| role)
    }
}

/// What is to be done with a user.
pub(crate) enum Verdict {
    /// He may work, in this role.
    In(Role, DirectoryGroups),
    /// He may not, for this reason.
    Out(&'static str),
    /// Nothing is known.
    Silent,
}

impl Mds {
    /// Names the directory, once, before serving. Without one, accounts of a directory cannot log in.
    pub fn set_directory(&self, directory: Arc<dyn Directory>) {
        // A second call has no effect: sessions were opened by the word of the first directory.
        let _ = self.directory.set(directory);
    }

    /// Is there a directory?
    #[must_use]
    pub fn has_directory(&self) -> bool {
        self.directory.get().is_some()
    }

    fn look_up(&self, user: &UserName) -> std::result::Result<Found, DirectoryError> {
        let directory = self.directory.get().ok_or(DirectoryError::None)?;
        add(&self.counters.directory_questions, 1);
        let found = match directory.look_up(user) {
            Ok(Found::Entry(entry)) if entry.groups.len() > DIRECTORY_GROUPS_MAX => {
                Err(DirectoryError::TooManyGroups)
            }
            found => found,
        };
        if let Err(error) = &found {
            add(&self.counters.directory_silent, u64::from(error.is_silence()));
            tracing::warn!(%user, %error, "directory");
        }
        found
    }

    /// Asks about the user of an account.
    pub(crate) fn verdict(&self, user: &UserName, account: &Account, now_ms: u64) -> Verdict {
        let found = match self.look_up(user) {
            Ok(Found::Entry(found)) => found,
            Ok(Found::Nobody) => return Verdict::Out("not in the directory"),
            Ok(Found::Closed(mark)) => {
                tracing::info!(%user, mark, "the directory says that the account is closed");
                return Verdict::Out("closed in the directory");
            }
            Err(error) => return error.of_user().map_or(Verdict::Silent, Verdict::Out),
        };
        // The name was given to somebody else meanwhile; the password is still that of who left.
        if account.entry != Some(found.entry) {
            return Verdict::Out("another entry in the directory");
        }
        let roles = &self.config.directory_roles;
        let role = if roles.is_empty() { Some(account.role) } else { roles.of(&found.groups) };
        match role {
            Some(role) => Verdict::In(role, DirectoryGroups { groups: found.groups, asked_ms: now_ms }),
            None => Verdict::Out("in no group of the directory with a role"),
        }
    }

    /// The entry that a code is for, if it is for an account of the directory.
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
            Ok(Found::Entry(found)) => Ok(Some(found.entry)),
            Ok(Found::Nobody) => {
                Err(MdsError::refused(ErrorCode::NotFound, format!("{name} in the directory")))
            }
            Ok(Found::Closed(mark)) => invalid(&format!("closed in the directory ({mark})")),
            Err(error @ (DirectoryError::Unreachable(_) | DirectoryError::Refused(_))) => {
                // An administrator may know why.
                Err(MdsError::refused(ErrorCode::Internal, error.to_string()))
            }
            Err(error) => invalid(&error.to_string()),
        }
    }

    /// Before a session is taken up: asks again if the last answer is too old. False if the session is over; else what
    /// there is of groups is in the record.
    pub(crate) fn may_take_up(
        &self,
        session: &SessionId,
        record: &mut SessionRecord,
        now_ms: u64,
    ) -> Result<bool> {
        let Some(said) = &record.directory else { return Ok(true) };
        let age_ms = now_ms.saturating_sub(said.asked_ms);
        if age_ms <= self.config.directory_age_ms {
            return Ok(true);
        }
        let user = record.user.clone();
        let Some(account) = accounts::existing_enabled(&*self.store.snapshot()?, &user)? else {
            return Ok(false);
        };
        match self.verdict(&user, &account, now_ms) {
            Verdict::In(role, said) => {
                self.keep(&[(user, role, said.clone())], now_ms)?;
                let stays = record.role == role;
                record.directory = Some(said);
                Ok(stays)
            }
            Verdict::Out(why) => {
                self.out(&user, why, now_ms)?;
                Ok(false)
            }
            Verdict::Silent if age_ms <= self.config.directory_grace_ms => Ok(true),
            Verdict::Silent => {
                self.out_of_grace(&user, session, now_ms)?;
                Ok(false)
            }
        }
    }

    /// A session whose directory has been silent for longer than the grace.
    pub(crate) fn out_of_grace(&self, user: &UserName, session: &SessionId, now_ms: u64) -> Result<()> {
        self.update(|tx| sessions::end(tx, session, user))?;
        self.sessions.forget(&[*session]);
        add(&self.counters.directory_ended, 1);
        self.audit_directory(user, Some(session), None, "no directory for too long", now_ms);
        Ok(())
    }

    /// A user who may not work here any more: all his sessions end, and with them his future credentials.
    fn out(&self, user: &UserName, why: &'static str, now_ms: u64) -> Result<()> {
        // Whatever session he opened by another kind of account before is the directory's to end, too.
        let over = self.update(|tx| sessions::end_where(tx, user, |_, _| true))?;
        self.sessions.forget(&over);
        add(&self.counters.directory_ended, over.len() as u64);
        let held = self.held_by(user, now_ms);
        let subject = format!("{} sessions, {held}", over.len());
        self.audit_directory(user, None, Some(&subject), why, now_ms);
        self.revoke_user(user, now_ms);
        Ok(())
    }

    /// Users who may go on: what the directory says of them is in the store and in the table; a session in another role
    /// than it says ends.
    fn keep(&self, fine: &[(UserName, Role, DirectoryGroups)], now_ms: u64) -> Result<()> {
        let over = self.update(|tx| {
            let mut over = Vec::new();
            for (user, role, said) in fine {
                let ended = sessions::end_where(tx, user, |_, session| session.role != *role)?;
                over.extend(ended.into_iter().map(|id| (user.clone(), id)));
                sessions::store_directory(tx, user, said)?;
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
        for (user, _, said) in fine {
            self.sessions.set_directory(user, said);
        }
        Ok(())
    }

    /// Asks again about users of live sessions whose last answer is older than configured, a bounded number of them.
    /// Whoever is out loses all sessions; while the directory does not answer, all go on as they are, up to the grace.
    /// Takes as long as the directory takes, unless `go_on` says no: call it every few seconds where that disturbs nobody.
    /// Returns whether there may be more to do at once.
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
                self.out(&user, "no account", now_ms)?;
                continue;
            };
            match self.verdict(&user, &account, now_ms) {
                Verdict::In(role, said) => fine.push((user, role, said)),
                Verdict::Out(why) => self.out(&user, why, now_ms)?,
                Verdict::Silent => {
                    // The others would wait for the same silence.
                    more = false;
                    break;
                }
            }
        }
        if !fine.is_empty() {
            self.keep(&fine, now_ms)?;
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

    /// How many questions there were, for tests of who causes some.
    #[cfg(test)]
    pub(crate) fn directory_questions(&self) -> u64 {
        self.counters.directory_questions.load(std::sync::atomic::Ordering::Relaxed)
    }
}
