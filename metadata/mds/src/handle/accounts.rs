//! Requests about accounts and groups, and the subject of each request in the audit log.
//!
//! Does: checks roles, and calls `accounts` and `groups`; ends sessions and credentials of users
//! that lose a right.

use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{
    AccountKind, CredentialHolder, ErrorCode, Failure, GroupName, OpenHandle, PAGE_MAX, Request, Response,
    Secret, UserName,
};

use crate::access::Principal;
use crate::accounts::{self, AccountRegistration, InvitedAccount};
use crate::entropy::Entropy;
use crate::error::{MdsError, Result};
use crate::groups;
use crate::limiter::{Familiarity, LoginSource};
use crate::namespace;
use crate::paper;
use crate::revoke;
use crate::server::Mds;
use crate::store::Transaction;

impl Mds {
    pub(super) fn account_request(
        &self,
        principal: &Principal,
        request: Request,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        match request {
            Request::UserRegisterStart { name, request, proof } => {
                accounts::may_register(principal, &name)?;
                // With a recorded challenge this answer is enough to test a guess of the password.
                // The limit makes a session, own or stolen, no faster way to guess than a login.
                let nowhere = (LoginSource::default(), Familiarity::Stranger);
                self.registrations.lock().attempt(&name, nowhere.0, nowhere.1, now_ms).map_err(
                    |wait_ms| MdsError::Refused(Failure::busy(u32::try_from(wait_ms).unwrap_or(u32::MAX))),
                )?;
                let own = name == principal.user;
                let proof = proof.as_ref().filter(|_| own);
                let challenge =
                    proof.map(|start| self.reauth_start(principal, start, now_ms, rng)).transpose()?;
                let response = self
                    .login_keys
                    .register(&name, &request)
                    .map_err(|_| MdsError::refused(ErrorCode::Invalid, "registration request"))?;
                Ok(Response::UserRegisterStart { response, challenge })
            }
            Request::UserRegisterFinish { name, record, suite, role, replace, proof } => {
                let own = name == principal.user;
                let proof = proof.as_ref().filter(|_| own);
                let proven = proof.map(|finish| self.reauth_finish(principal, finish, now_ms)).transpose()?;
                let new = AccountRegistration { name, record, suite, role, replace, proven };
                self.end_sessions(|tx| accounts::register(tx, principal, &new, now_ms))
            }
            Request::UserInvite { name, kind, role, lifetime_s, replace } => {
                principal.needs_admin()?;
                let entry = self.entry_to_invite(&name, kind, replace)?;
                let invited = InvitedAccount { kind, role, replace, entry };
                let (code, expires_ms, over) =
                    self.update(|tx| accounts::invite(tx, &name, &invited, lifetime_s, now_ms, &mut *rng))?;
                self.sessions.forget(&over);
                Ok(Response::Invitation { code: Secret::new(code.to_vec())?, expires_ms })
            }
            // A service may retire its own key; `roles` has checked that.
            Request::UserRetireKey { name, suite } => {
                accounts::may_register(principal, &name)?;
                self.end_sessions(|tx| accounts::retire_key(tx, &name, suite))
            }
            request => {
                principal.needs_admin()?;
                self.administer(principal, request, now_ms)
            }
        }
    }

    /// Handles requests of administrators.
    fn administer(&self, principal: &Principal, request: Request, now_ms: u64) -> Result<Response> {
        match request {
            Request::UserList { after, limit } => {
                let (users, more) = accounts::list(&*self.store.snapshot()?, after.as_ref(), limit)?;
                Ok(Response::Users { users, more })
            }
            Request::UserSetEnabled { name, enabled: true } => {
                self.end_sessions(|tx| accounts::set_enabled(tx, &name, true, None))
            }
            Request::UserSetEnabled { name, enabled: false } => {
                let other = self.another_admin(&name)?;
                self.end_user_access(principal, &name, now_ms, |tx| {
                    accounts::set_enabled(tx, &name, false, other.as_ref())
                })
            }
            Request::UserRemove { name } => {
                let other = self.another_admin(&name)?;
                let remove = |tx: &mut dyn Transaction| accounts::remove(tx, &name, other.as_ref());
                let revoking = self.end_user_access(principal, &name, now_ms, remove)?;
                self.invalidate_groups();
                Ok(revoking)
            }
            Request::UserSetPaperKey { name, key } => {
                if key.is_some() && !self.config.paper_login {
                    let why = "the paper's login profile is not enabled on this server";
                    return Err(MdsError::refused(ErrorCode::Denied, why));
                }
                self.end_sessions(|tx| paper::set_key(tx, &name, key.as_ref()))
            }
            Request::UserSetRole { name, role } => {
                let by_directory = !self.config.directory_roles.is_empty();
                let other = self.another_admin(&name)?;
                let ended = self.end_sessions(|tx| {
                    if by_directory && accounts::existing(tx, &name)?.kind == AccountKind::Directory {
                        let what = "the role of this account comes from its directory groups";
                        return Err(MdsError::refused(ErrorCode::Invalid, what));
                    }
                    accounts::set_role(tx, &name, role, other.as_ref())
                })?;
                // Files opened under the old role stay open no longer than the new one permits.
                self.revoke_user(&name, now_ms);
                Ok(ended)
            }
            Request::GroupCreate { name } => self.change_groups(|tx| groups::create(tx, &name, now_ms)),
            Request::GroupRemove { name } => {
                // In steps, so that other writers get their turn; after a crash the repeated
                // request continues.
                while !self.update(|tx| groups::remove_some(tx, &name))? {
                    self.invalidate_groups();
                }
                self.invalidate_groups();
                Ok(Response::Done {})
            }
            Request::GroupAddMember { group, user } => {
                groups::check_members(&*self.store.snapshot()?, &group, &user)?;
                self.change_groups(|tx| groups::add_member(tx, &group, &user))
            }
            Request::GroupRemoveMember { group, user } => {
                self.change_groups(|tx| groups::remove_member(tx, &group, &user))
            }
            Request::GroupList { after, limit } => {
                let (groups, more) = groups::list(&*self.store.snapshot()?, after.as_ref(), limit)?;
                Ok(Response::Groups { groups, more })
            }
            Request::GroupMembers { group, after, limit } => {
                let view = self.store.snapshot()?;
                let (members, more) = groups::list_members(&*view, &group, after.as_ref(), limit)?;
                Ok(Response::Members { members, more })
            }
            Request::GrantHolders { path } => {
                let (_, inode) = namespace::inspect(&*self.store.snapshot()?, &path)?;
                let objects = inode.layout.as_ref().map_or(&[][..], |layout| layout.objects());
                let mut credentials = self.issued_table(now_ms).of_objects(objects, now_ms);
                // Credentials of other servers are known only there.
                let alone = self.servers(&*self.store.snapshot()?)?.len() == 1;
                let complete =
                    alone && credentials.complete && credentials.holders.len() <= usize::from(PAGE_MAX);
                credentials.holders.truncate(usize::from(PAGE_MAX));
                let holders: Vec<CredentialHolder> = credentials.holders;
                Ok(Response::Holders { holders, complete })
            }
            _ => Err(MdsError::refused(ErrorCode::Invalid, "not a request about accounts")),
        }
    }

    /// Searches another administrator, before the transaction: there may be a million accounts.
    fn another_admin(&self, leaving: &UserName) -> Result<Option<UserName>> {
        accounts::another_admin(&*self.store.snapshot()?, leaving)
    }

    fn end_sessions(
        &self,
        change: impl FnMut(&mut dyn Transaction) -> Result<Vec<[u8; 16]>>,
    ) -> Result<Response> {
        self.end_sessions_with(change)?;
        Ok(Response::Done {})
    }

    /// Changes groups or memberships; every session then reads its groups again before its next
    /// request.
    fn change_groups(&self, change: impl FnMut(&mut dyn Transaction) -> Result<()>) -> Result<Response> {
        self.update(change)?;
        self.invalidate_groups();
        Ok(Response::Done {})
    }

    pub(crate) fn invalidate_groups(&self) {
        self.groups_generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Revokes all credentials of a user who lost access, for example in the directory. A failure
    /// is only logged: credentials expire by themselves.
    pub(crate) fn revoke_user(&self, user: &UserName, now_ms: u64) {
        let credentials = self.credentials_of(user, now_ms);
        let begun = {
            let _stopped = self.issuing.write();
            self.update(|tx| {
                let servers = self.servers(tx)?;
                revoke::begin_for_user(tx, user, user, servers, now_ms)
            })
        };
        match begun {
            Ok(_) => self.revocations_changed.store(true, Ordering::Release),
            Err(error) => tracing::error!(%user, %credentials, %error, "credentials not revoked"),
        }
    }

    /// Ends the access of a user: sessions end and credentials are revoked in one transaction.
    fn end_user_access(
        &self,
        principal: &Principal,
        user: &UserName,
        now_ms: u64,
        mut change: impl FnMut(&mut dyn Transaction) -> Result<Vec<[u8; 16]>>,
    ) -> Result<Response> {
        let credentials = self.credentials_of(user, now_ms);
        let mut id = 0;
        {
            // Waits for requests that are issuing credentials, so that these are in the table.
            let _stopped = self.issuing.write();
            self.end_sessions_with(|tx| {
                let over = change(tx)?;
                let servers = self.servers(tx)?;
                id = revoke::begin_for_user(tx, &principal.user, user, servers, now_ms)?;
                Ok(over)
            })?;
        }
        tracing::info!(%user, %credentials, "access of the user ended; credentials are being revoked");
        self.revocations_changed.store(true, Ordering::Release);
        self.revocation(id)
    }
}

/// Returns the subject of a request in the audit log; reads are not logged.
pub(super) fn subject(request: &Request) -> Option<String> {
    let user = |name: &UserName| Some(name.to_string());
    match request {
        Request::Lookup { .. }
        | Request::GetNode { .. }
        | Request::ReadNodes { .. }
        | Request::MakeNode { .. }
        | Request::LinkNode { .. }
        | Request::RemoveNode { .. }
        | Request::RenameNode { .. }
        | Request::SetNode { .. }
        | Request::ReadLink { .. }
        | Request::OpenNode { .. }
        | Request::Allocate { .. }
        | Request::Written { .. }
        | Request::CloseNode { .. }
        | Request::GetXattr { .. }
        | Request::SetXattr { .. }
        | Request::ListXattr { .. }
        | Request::RemoveXattr { .. }
        | Request::StatFs { .. }
        | Request::KeepNodes { .. }
        | Request::EndClient { .. }
        | Request::LockNode { .. }
        | Request::Recalls { .. }
        | Request::LeaseNode { .. }
        | Request::ReturnLease { .. }
        | Request::DelegateDir { .. }
        // Its changes are logged one by one.
        | Request::NameBatch { .. }
        | Request::UnlockNode { .. } => super::nodes::subject(request),
        // The contained request was taken out before.
        Request::Once { .. } => None,
        super::quotas::quota_requests!() => super::quotas::subject(request),
        super::disks::disk_requests!() => super::disks::subject(request),
        Request::Hello { .. }
        | Request::WhoAmI {}
        | Request::ServerInfo {}
        | Request::Stat { .. }
        | Request::Lstat { .. }
        | Request::Placement { .. }
        | Request::ReadDir { .. }
        | Request::DiskFree {}
        | Request::DeviceList { .. }
        | Request::KeyList { .. }
        | Request::ReceiptVerify { .. }
        | Request::KeyProgress { .. }
        | Request::RebalanceShow {}
        | Request::UserList { .. }
        | Request::GroupList { .. }
        | Request::GroupMembers { .. }
        | Request::RevocationProgress { .. }
        | Request::RevocationList {} => None,
        Request::MakeDir { path, .. }
        | Request::Create { path, .. }
        | Request::Open { path, .. }
        | Request::CopyFunction { path, .. }
        | Request::ReserveResult { path, .. }
        | Request::ReserveJobResult { path, .. }
        | Request::Remove { path, .. }
        | Request::SetMode { path, .. }
        | Request::IssueList { path, .. }
        | Request::GrantHolders { path } => Some(path.to_string()),
        Request::Delegate { path, read, write, start, end, until_ms, .. } => {
            let read = if *read { " read" } else { "" };
            let write = if *write { " write" } else { "" };
            let end = end.map_or_else(String::new, |end| end.to_string());
            Some(format!("{path}{read}{write} {start}..{end} until {until_ms}"))
        }
        Request::DelegateExecution { path, until_ms, .. } => {
            Some(format!("{path} execute until {until_ms}"))
        }
        Request::DelegateCallData { path, until_ms, .. } => {
            Some(format!("{path} read by functions until {until_ms}"))
        }
        Request::Revoke { what } => Some(what.to_string()),
        Request::SetOwner { path, owner, group } => {
            let owner = owner.as_ref().map_or("", UserName::as_str);
            let group = group.as_ref().map(|group| group.as_ref().map_or("none", GroupName::as_str));
            Some(format!("{path} -> {owner}:{}", group.unwrap_or_default()))
        }
        Request::Rename { from, to, .. } => Some(format!("{from} -> {to}")),
        // Without proof and client id, because readers of the log could impersonate the client.
        Request::RenewGrants { handle: OpenHandle::File { node, .. } | OpenHandle::Node { node, .. }, .. } => {
            Some(format!("node {}", node.inode.0))
        }
        Request::RenewGrants { handle: OpenHandle::Intent(intent), .. }
        | Request::Commit { intent, .. }
        | Request::Abandon { intent } => Some(format!("create {}", intent.0)),
        Request::FunctionPolicyAccess { id, partition, change, .. } => {
            let change = if *change { " change" } else { "" };
            Some(format!("functions of device {} partition {partition:#x}{change}", id.0))
        }
        Request::FunctionPolicySet { partition, policy, keys, digests } => {
            let partition = partition.map_or_else(|| "all".to_owned(), |id| format!("{id:#x}"));
            let (keys, digests) = (keys.len(), digests.len());
            Some(format!("functions of partition {partition} policy {policy}, {keys} keys, {digests} digests"))
        }
        Request::DeviceAdd { device } => Some(device.name.to_string()),
        Request::KeyRotate { level, device, partition, revoke } => {
            let device = device.map_or_else(|| "all devices".to_owned(), |id| format!("device {}", id.0));
            let partition = partition.map_or_else(String::new, |id| format!(" partition {id:#x}"));
            let revoke = if *revoke { " revoking" } else { "" };
            Some(format!("{} keys of {device}{partition}{revoke}", level.name().to_lowercase()))
        }
        Request::DeviceSetState { id, .. }
        | Request::DeviceDrain { id, .. }
        | Request::DeviceAttributes { id, .. } => {
            Some(format!("device {}", id.0))
        }
        Request::Rebalance { rate } => Some(format!("{rate} bytes a second")),
        Request::RebalanceStop {} => Some("all devices".to_owned()),
        Request::UserRegisterStart { name, .. }
        | Request::UserRegisterFinish { name, .. }
        | Request::UserSetEnabled { name, .. }
        | Request::UserInvite { name, .. }
        | Request::UserSetPaperKey { name, .. }
        | Request::UserRemove { name } => user(name),
        Request::UserSetRole { name, role } => Some(format!("{name} -> {}", role.as_str())),
        Request::UserRetireKey { name, suite } => Some(format!("{name} key {suite:04x}")),
        Request::GroupCreate { name } | Request::GroupRemove { name } => Some(name.to_string()),
        Request::GroupAddMember { group, user } | Request::GroupRemoveMember { group, user } => {
            Some(format!("{group}: {user}"))
        }
    }
}
