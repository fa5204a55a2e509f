//! Accounts and groups: for administrators, and for users about their own account.
//!
//! Contract: a password or key never leaves this process; the server gets its OPAQUE record.

use std::sync::Arc;

use sealstone_initiator::{Environment, SystemEnvironment};
use sealstone_login::paper::PassphraseKey;
use sealstone_mds_protocol::login::{SUITE_SERVICE_A, SUITE_SERVICE_B, SUITE_STANDARD};
use sealstone_mds_protocol::{
    AccountKind, CredentialHolder, Group, GroupName, IssueCursor, IssueEntry, PAGE_MAX, Request, Response,
    Revocation, Role, Secret, Stat, User,
};
use zeroize::Zeroizing;

use crate::client::{file_path, tls, user_name};
use crate::delegated::revocation;
use crate::mds::{MdsClient, MdsOptions};
use crate::service_key::ServiceKey;
use crate::tls::Fingerprint;
use crate::{Client, ClientError, DeviceConnectOptions, Devices, Metadata};

fn done(answer: Response) -> Result<(), ClientError> {
    match answer {
        Response::Done {} => Ok(()),
        _ => Err(ClientError::OTHER_ANSWER),
    }
}

const fn other_suite(suite: u16) -> u16 {
    if suite == SUITE_SERVICE_A { SUITE_SERVICE_B } else { SUITE_SERVICE_A }
}

pub(crate) fn group_name(name: &str) -> Result<GroupName, ClientError> {
    GroupName::new(name).map_err(ClientError::Name)
}

/// An enrolment code for a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnrolmentCode {
    /// The code: letters and digits.
    pub code: Secret,
    /// Expiry, in milliseconds since 1970.
    pub expires_ms: u64,
}

impl Client {
    /// Adds an account of a person (administrators). Runs Argon2id.
    ///
    /// # Errors
    /// `Refused` with `Exists` or `Denied` among others.
    pub async fn add_user(&self, name: &str, password: &[u8], role: Role) -> Result<(), ClientError> {
        self.core.metadata.register(&user_name(name)?, SUITE_STANDARD, password, role, false, None).await
    }

    /// Changes the password of another account (administrators) and ends its sessions. Runs
    /// Argon2id.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn set_password(&self, name: &str, password: &[u8]) -> Result<(), ClientError> {
        self.core.metadata.register(&user_name(name)?, SUITE_STANDARD, password, Role::User, true, None).await
    }

    /// Changes the password of the own account. Requires the old one, so that a stolen session is
    /// not enough. Ends all other sessions of the account. Runs Argon2id twice.
    ///
    /// # Errors
    /// `InUseRefused` if `old` is wrong; `Refused` with `Busy` after too many wrong attempts, or
    /// `Invalid` for a service.
    pub async fn change_password(&self, old: &[u8], password: &[u8]) -> Result<(), ClientError> {
        let (metadata, in_use) = (&self.core.metadata, Some((SUITE_STANDARD, old)));
        let user = metadata.ticket().user.clone();
        metadata.register(&user, SUITE_STANDARD, password, Role::User, true, in_use).await
    }

    /// Adds an account of a program, which logs in with a key file (administrators). Returns the
    /// only copy of the key.
    ///
    /// # Errors
    /// `Refused` with `Exists` or `Denied` among others.
    pub async fn add_service(&self, name: &str, role: Role) -> Result<ServiceKey, ClientError> {
        let key = ServiceKey::generate(user_name(name)?, SUITE_SERVICE_A, &SystemEnvironment);
        self.core.metadata.register(&key.user, key.suite, key.secret(), role, false, None).await?;
        Ok(key)
    }

    /// Gives a service a second key beside the one of `suite` (administrators). The old key stays
    /// valid until [`Client::retire_key`].
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `Denied` or `Invalid` among others.
    pub async fn rotate_key(&self, name: &str, suite: u16) -> Result<ServiceKey, ClientError> {
        let key = ServiceKey::generate(user_name(name)?, other_suite(suite), &SystemEnvironment);
        self.core.metadata.register(&key.user, key.suite, key.secret(), Role::User, true, None).await?;
        Ok(key)
    }

    /// As [`Client::rotate_key`], by the service itself, which proves that it has the current key.
    ///
    /// # Errors
    /// As [`Client::rotate_key`]; `InUseRefused` if the service has another key.
    pub async fn rotate_own_key(&self, in_use: &ServiceKey) -> Result<ServiceKey, ClientError> {
        let key = ServiceKey::generate(in_use.user.clone(), other_suite(in_use.suite), &SystemEnvironment);
        let (metadata, in_use) = (&self.core.metadata, Some((in_use.suite, in_use.secret())));
        metadata.register(&key.user, key.suite, key.secret(), Role::User, true, in_use).await?;
        Ok(key)
    }

    /// Logs in with a service's key.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_with_key(
        server: &str,
        pin: Fingerprint,
        key: &ServiceKey,
        reach: impl Into<DeviceConnectOptions>,
    ) -> Result<Self, ClientError> {
        let options = MdsOptions { suite: key.suite, ..MdsOptions::default() };
        Self::connect_with(server, pin, options, key.user.as_str(), key.secret(), reach.into()).await
    }

    /// Sets the first or a new password of an account with an enrolment code. Runs Argon2id. Does
    /// not log in.
    ///
    /// # Errors
    /// `EnrolmentRefused`, `LoginBusy`, `LoginFailed`, `Connection`.
    pub async fn enrol(
        server: &str,
        pin: Fingerprint,
        user: &str,
        code: &[u8],
        password: &[u8],
    ) -> Result<(), ClientError> {
        let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment);
        let code = Secret::new(code.to_vec()).map_err(|_| ClientError::EnrolmentRefused)?;
        MdsClient::enrol(
            &tls(server, pin),
            environment,
            MdsOptions::default(),
            &user_name(user)?,
            code,
            password,
        )
        .await
    }
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Returns a random password.
    #[must_use]
    pub fn random_password(&self) -> Zeroizing<[u8; 32]> {
        let mut password = Zeroizing::new([0; 32]);
        self.core.environment.fill_random(&mut *password);
        password
    }

    /// Sets or removes an account's key for the paper's profile (administrators). The key is as
    /// weak as the passphrase: it can be guessed from any recorded login.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn set_paper_passphrase(
        &self,
        name: &str,
        passphrase: Option<&str>,
    ) -> Result<(), ClientError> {
        let name = user_name(name)?;
        let key = passphrase.map(|passphrase| PassphraseKey::derive(&name, passphrase).to_bytes().to_vec());
        let key = key.map(Secret::new).transpose()?;
        done(self.core.metadata.call(Request::UserSetPaperKey { name, key }).await?)
    }

    /// Creates an enrolment code (administrators): for a new account, or with `replace` for an
    /// existing one, which keeps its kind and role.
    ///
    /// # Errors
    /// `Refused` with `Exists`, `NotFound`, `Limit` or `Denied` among others.
    pub async fn invite(
        &self,
        name: &str,
        kind: AccountKind,
        role: Role,
        lifetime_s: u32,
        replace: bool,
    ) -> Result<EnrolmentCode, ClientError> {
        let request = Request::UserInvite { name: user_name(name)?, kind, role, lifetime_s, replace };
        match self.core.metadata.call(request).await? {
            Response::Invitation { code, expires_ms } => Ok(EnrolmentCode { code, expires_ms }),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Returns all accounts (administrators).
    ///
    /// # Errors
    /// `Refused` with `Denied` among others.
    pub async fn users(&self) -> Result<Vec<User>, ClientError> {
        let mut all: Vec<User> = Vec::new();
        loop {
            let after = all.last().map(|user| user.name.clone());
            let request = Request::UserList { after: after.clone(), limit: PAGE_MAX };
            let Response::Users { users, more } = self.core.metadata.call(request).await? else {
                return Err(ClientError::OTHER_ANSWER);
            };
            let last = users.last().map(|user| user.name.clone());
            if last.is_some() && last <= after {
                return Err(ClientError::Protocol("account list out of order"));
            }
            all.extend(users);
            if !more || last.is_none() {
                return Ok(all);
            }
        }
    }

    /// Enables an account (administrators).
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn enable_user(&self, name: &str) -> Result<(), ClientError> {
        let request = Request::UserSetEnabled { name: user_name(name)?, enabled: true };
        done(self.core.metadata.call(request).await?)
    }

    /// Disables an account, ends its sessions, and revokes its credentials in the background; see
    /// [`Client::revocation`] (administrators).
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn disable_user(&self, name: &str) -> Result<Revocation, ClientError> {
        let request = Request::UserSetEnabled { name: user_name(name)?, enabled: false };
        revocation(self.core.metadata.call(request).await?)
    }

    /// Changes the role of an account and ends its sessions (administrators).
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn set_user_role(&self, name: &str, role: Role) -> Result<(), ClientError> {
        let request = Request::UserSetRole { name: user_name(name)?, role };
        done(self.core.metadata.call(request).await?)
    }

    /// Removes an account, and revokes its credentials in the background (administrators).
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn remove_user(&self, name: &str) -> Result<Revocation, ClientError> {
        revocation(self.core.metadata.call(Request::UserRemove { name: user_name(name)? }).await?)
    }

    /// Removes one of two keys of a service, by an administrator or the service itself.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn retire_key(&self, name: &str, suite: u16) -> Result<(), ClientError> {
        done(self.core.metadata.call(Request::UserRetireKey { name: user_name(name)?, suite }).await?)
    }

    /// Adds a group (administrators).
    ///
    /// # Errors
    /// `Refused` with `Exists` or `Denied` among others.
    pub async fn add_group(&self, name: &str) -> Result<(), ClientError> {
        done(self.core.metadata.call(Request::GroupCreate { name: group_name(name)? }).await?)
    }

    /// Removes a group (administrators); files keep its name.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn remove_group(&self, name: &str) -> Result<(), ClientError> {
        done(self.core.metadata.call(Request::GroupRemove { name: group_name(name)? }).await?)
    }

    /// Adds an account to a group or removes it (administrators).
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `Limit` or `Denied` among others.
    pub async fn set_member(&self, group: &str, user: &str, member: bool) -> Result<(), ClientError> {
        let (group, user) = (group_name(group)?, user_name(user)?);
        let request = if member {
            Request::GroupAddMember { group, user }
        } else {
            Request::GroupRemoveMember { group, user }
        };
        done(self.core.metadata.call(request).await?)
    }

    /// Returns all groups (administrators).
    ///
    /// # Errors
    /// `Refused` with `Denied` among others.
    pub async fn groups(&self) -> Result<Vec<Group>, ClientError> {
        let mut all: Vec<Group> = Vec::new();
        loop {
            let after = all.last().map(|group| group.name.clone());
            let request = Request::GroupList { after: after.clone(), limit: PAGE_MAX };
            let Response::Groups { groups, more } = self.core.metadata.call(request).await? else {
                return Err(ClientError::OTHER_ANSWER);
            };
            let last = groups.last().map(|group| group.name.clone());
            if last.is_some() && last <= after {
                return Err(ClientError::Protocol("group list out of order"));
            }
            all.extend(groups);
            if !more || last.is_none() {
                return Ok(all);
            }
        }
    }

    /// Returns all members of a group (administrators).
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn members(&self, group: &str) -> Result<Vec<sealstone_mds_protocol::UserName>, ClientError> {
        let (group, mut all) = (group_name(group)?, Vec::new());
        loop {
            let after = all.last().cloned();
            let request =
                Request::GroupMembers { group: group.clone(), after: after.clone(), limit: PAGE_MAX };
            let Response::Members { members, more } = self.core.metadata.call(request).await? else {
                return Err(ClientError::OTHER_ANSWER);
            };
            if !members.is_empty() && members.last() <= after.as_ref() {
                return Err(ClientError::Protocol("member list out of order"));
            }
            let none = members.is_empty();
            all.extend(members);
            if !more || none {
                return Ok(all);
            }
        }
    }

    /// Changes the owner (administrators) or the group of a file or directory; `Some(None)` removes
    /// the group.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn set_owner(
        &self,
        path: impl AsRef<[u8]>,
        owner: Option<&str>,
        group: Option<Option<&str>>,
    ) -> Result<Stat, ClientError> {
        let owner = owner.map(user_name).transpose()?;
        let group = group.map(|group| group.map(group_name).transpose()).transpose()?;
        let request = Request::SetOwner { path: file_path(path)?, owner, group };
        match self.core.metadata.call(request).await? {
            Response::Stat { stat } => Ok(stat),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Returns the users with valid credentials for the objects of a file (administrators), and
    /// whether the list is complete.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn holders(
        &self,
        path: impl AsRef<[u8]>,
    ) -> Result<(Vec<CredentialHolder>, bool), ClientError> {
        match self.core.metadata.call(Request::GrantHolders { path: file_path(path)? }).await? {
            Response::Holders { holders, complete } => Ok((holders, complete)),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Returns the credentials that were issued or refused for a file (its owner, administrators),
    /// and since when the log is complete.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn issued(
        &self,
        path: impl AsRef<[u8]>,
        user: Option<&str>,
        since_ms: u64,
        until_ms: u64,
    ) -> Result<(Vec<IssueEntry>, u64), ClientError> {
        let (path, user) = (file_path(path)?, user.map(user_name).transpose()?);
        let (mut all, mut from) = (Vec::new(), None);
        loop {
            let request =
                Request::IssueList { path: path.clone(), user: user.clone(), since_ms, until_ms, from };
            let Response::Issues { entries, known_since_ms, next } = self.core.metadata.call(request).await?
            else {
                return Err(ClientError::OTHER_ANSWER);
            };
            all.extend(entries);
            let ascends = |next: &IssueCursor| {
                from.is_none_or(|from: IssueCursor| (next.stream, next.at) > (from.stream, from.at))
            };
            match next {
                None => {
                    all.sort_by_key(|entry| entry.time_ms);
                    return Ok((all, known_since_ms));
                }
                Some(next) if ascends(&next) => from = Some(next),
                Some(_) => return Err(ClientError::Protocol("credential log out of order")),
            }
        }
    }
}
