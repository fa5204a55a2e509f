//! Roles: which requests an account may send.
//!
//! Does: assign every request to a class, and say which roles may use the class.
//! Does not: check files; owner, group and mode decide after it.
//! Contract: total; a new request does not compile without a class.
//! Truth: docs/standards/mds/operations.md §5.3 has the same table.

use sealstone_mds_protocol::{
    Access, DeviceState, ErrorCode, LeaseKind, Lock, LockKind, OpenHandle, QuotaSubject, Request,
    RevocationTarget, Role, UserName,
};

use crate::error::{MdsError, Result};

/// Class of requests with the same required roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestClass {
    /// The session itself, the server's status, one's own password.
    Own,
    /// Reading of names and contents.
    Read,
    /// Changes of names and contents.
    Write,
    /// Devices in use, new devices until they are approved, and the state of keys.
    Devices,
    /// Accounts, groups, issued credentials, changes of keys, and approval of devices for user
    /// data.
    Accounts,
}

pub(crate) fn class(user: &UserName, request: &Request) -> RequestClass {
    match request {
        Request::Hello { .. }
        | Request::WhoAmI {}
        | Request::ServerInfo {}
        | Request::DiskFree {}
        | Request::DeviceList { .. }
        | Request::DeviceAttributes { .. }
        | Request::ReceiptVerify { .. }
        | Request::StatFs { .. }
        | Request::DiskPublicKeySet { .. }
        | Request::DiskPublicKey { .. }
        | Request::QuotaShow { of: QuotaSubject::User(_) }
        | Request::QuotaList { .. }
        // Only its requester and administrators see a revocation.
        | Request::RevocationProgress { .. } => RequestClass::Own,
        Request::Stat { .. }
        | Request::Lstat { .. }
        | Request::Placement { .. }
        | Request::ReadDir { .. }
        | Request::Lookup { .. }
        | Request::GetNode { .. }
        | Request::ReadNodes { .. }
        | Request::ReadLink { .. }
        | Request::OpenNode { access: Access::Read, .. }
        | Request::CloseNode { .. }
        | Request::KeepNodes { .. }
        | Request::EndClient { .. }
        | Request::Recalls { .. }
        | Request::LeaseNode { kind: LeaseKind::Read, .. }
        | Request::ReturnLease { .. }
        | Request::GetXattr { .. }
        | Request::ListXattr { .. }
        | Request::LockNode { test: true, .. }
        | Request::LockNode { lock: Lock { kind: LockKind::Read | LockKind::Unlock, .. }, .. }
        | Request::UnlockNode { .. }
        | Request::RenewGrants { handle: OpenHandle::Node { access: Access::Read, .. }, .. }
        | Request::Open { access: Access::Read | Access::Execute | Access::CallRead, .. }
        | Request::DelegateExecution { .. }
        | Request::DelegateCallData { .. }
        | Request::DiskShow { .. }
        | Request::DiskList { .. }
        | Request::DiskReport { .. }
        | Request::Delegate { write: false, .. }
        | Request::IssueList { .. }
        | Request::QuotaShow { of: QuotaSubject::Tree(_) }
        | Request::RenewGrants {
            handle: OpenHandle::File { access: Access::Read | Access::Execute | Access::CallRead, .. },
            ..
        } => RequestClass::Read,
        Request::MakeDir { .. }
        | Request::Create { .. }
        | Request::CopyFunction { .. }
        | Request::ReserveResult { .. }
        | Request::ReserveJobResult { .. }
        | Request::Open { .. }
        | Request::RenewGrants { .. }
        | Request::Commit { .. }
        | Request::Abandon { .. }
        | Request::Rename { .. }
        | Request::Remove { .. }
        | Request::SetMode { .. }
        | Request::SetOwner { .. }
        | Request::Delegate { .. }
        | Request::Revoke { what: RevocationTarget::Object(_) }
        | Request::MakeNode { .. }
        | Request::LinkNode { .. }
        | Request::RemoveNode { .. }
        | Request::RenameNode { .. }
        | Request::SetNode { .. }
        | Request::OpenNode { .. }
        | Request::Allocate { .. }
        | Request::Written { .. }
        | Request::SetXattr { .. }
        | Request::RemoveXattr { .. }
        | Request::DelegateDir { .. }
        | Request::NameBatch { .. }
        | Request::Once { .. }
        | Request::LeaseNode { .. }
        | Request::DiskCreate { .. }
        | Request::DiskSetAccess { .. }
        | Request::DiskLease { .. }
        | Request::DiskEndLease { .. }
        | Request::DiskPublish { .. }
        | Request::DiskRotate { .. }
        | Request::DiskRemove { .. }
        | Request::LockNode { .. } => RequestClass::Write,
        // Approves a device: from then on it stores user data.
        Request::DeviceSetState { state: DeviceState::Joining, .. } => RequestClass::Accounts,
        Request::DeviceAdd { .. }
        | Request::DeviceSetState { .. }
        | Request::DeviceDrain { .. }
        | Request::Rebalance { .. }
        | Request::RebalanceStop {}
        | Request::RebalanceShow {}
        | Request::KeyList { .. }
        | Request::KeyProgress { .. } => RequestClass::Devices,
        Request::UserRegisterStart { name, .. }
        | Request::UserRegisterFinish { name, replace: true, .. }
        | Request::UserRetireKey { name, .. }
            if name == user =>
        {
            RequestClass::Own
        }
        Request::UserRegisterStart { .. }
        | Request::UserRegisterFinish { .. }
        | Request::UserList { .. }
        | Request::UserSetEnabled { .. }
        | Request::UserRemove { .. }
        | Request::UserSetRole { .. }
        | Request::UserInvite { .. }
        | Request::UserSetPaperKey { .. }
        | Request::UserRetireKey { .. }
        | Request::GroupCreate { .. }
        | Request::GroupRemove { .. }
        | Request::GroupAddMember { .. }
        | Request::GroupRemoveMember { .. }
        | Request::GroupList { .. }
        | Request::GroupMembers { .. }
        | Request::GrantHolders { .. }
        | Request::Revoke { what: RevocationTarget::User(_) | RevocationTarget::Session(_) }
        | Request::RevocationList {}
        | Request::QuotaSet { .. }
        | Request::QuotaClear { .. }
        | Request::CheckBegin { .. }
        | Request::CheckShow {}
        | Request::CheckFindings { .. }
        | Request::FunctionPolicyAccess { .. }
        | Request::FunctionPolicySet { .. }
        | Request::KeyRotate { .. } => RequestClass::Accounts,
    }
}

/// Fails if the role may not send the request.
pub(crate) fn check(role: Role, user: &UserName, request: &Request) -> Result<()> {
    let class = class(user, request);
    let why = match (class, role) {
        (RequestClass::Own, _)
        | (_, Role::Admin)
        | (RequestClass::Read, Role::User | Role::ReadOnly)
        | (RequestClass::Write, Role::User)
        | (RequestClass::Devices, Role::Operator) => return Ok(()),
        (RequestClass::Accounts, _) => "administrators only",
        (RequestClass::Devices, _) => "administrators and operators only",
        (RequestClass::Write, Role::ReadOnly) => "account is read-only",
        (RequestClass::Read | RequestClass::Write, _) => "operators have no access to files",
    };
    Err(MdsError::refused(ErrorCode::Denied, why))
}
