//! Credentials to execute functions, copies of their code on the devices that have data, and
//! objects for their results.
//!
//! Contract: the right to execute is the execute permission of the function file. A copy needs the
//! right to read too, since its creator reads the code.
//! Truth: docs/standards/mds/functions.md §5.12; docs/adr/0068-copies-of-function-files.md.

use sealstone_mds_protocol::{
    Access, CreatedFile, DelegatedFile, DeviceId, ErrorCode, FilePath, InodeId, IntentId, IssueKind, Method,
    ObjectRef, Response,
};
use sealstone_osd::{ObjectId, Permissions};

use super::delegate::{IssueGuard, IssueParams};
use crate::access::Principal;
use crate::devices::{
    CALL_READ_RIGHTS, COPY_RIGHTS, CapabilityTerms, EXECUTE_RIGHTS, RESULT_RIGHTS, audit_field,
};
use crate::entropy::Entropy;
use crate::error::{MdsError, Result};
use crate::lengths::table::LengthTarget;
use crate::namespace::{self, NewObject};
use crate::records::{Intent, counter, next_number};
use crate::server::Mds;
use crate::store::Transaction;

/// Rights to the policy about functions of a partition.
const POLICY_RIGHTS: Permissions =
    Permissions::GET_ATTR.union(Permissions::SET_ATTR).union(Permissions::POL_SEC);

/// Parameters of the object for a result.
pub(super) struct ResultParams {
    /// Device that runs the function.
    pub(super) device: DeviceId,
    /// Maximum bytes of the result.
    pub(super) size_max: u64,
    pub(super) method: Method,
    /// Whether the job continues without its client, which cannot renew the credential then.
    pub(super) outlives_client: bool,
}

impl Mds {
    /// Reserves the object for a result on a device.
    pub(super) fn reserve_result(
        &self,
        principal: &Principal,
        path: &FilePath,
        result: &ResultParams,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        let &ResultParams { device, size_max, method, outlives_client } = result;
        if size_max == 0 {
            return Err(MdsError::refused(ErrorCode::Invalid, "a result of 0 bytes"));
        }
        let method = self.access_method(Access::CallRead, method);
        let grant_lifetime_ms = self.config.grant_lifetime_ms();
        let (lifetime_ms, kept_ms) = match outlives_client {
            true => {
                let lifetime_ms = self.config.delegated_lifetime_ms().max(grant_lifetime_ms);
                (lifetime_ms, lifetime_ms.saturating_mul(2))
            }
            false => (grant_lifetime_ms, self.config.intent_lifetime_ms),
        };
        let grants_until_ms = now_ms.saturating_add(lifetime_ms);
        let expires_ms = now_ms.saturating_add(kept_ms).max(grants_until_ms);
        let issuing = self.issuing();
        self.require_open_device(device)?;
        if outlives_client {
            self.issued_table(now_ms).check_delegation(&principal.user, 1, now_ms)?;
        }
        let (intent, record) = self.update(|tx| {
            namespace::begin_result(tx, principal, path, (size_max, now_ms), |tx, inode| {
                let object = self.new_object(tx, inode, device)?;
                Ok(NewObject { object, method, expires_ms, grants_until_ms })
            })
        })?;
        let terms = (method, RESULT_RIGHTS, grants_until_ms);
        let mut issue = IssueParams::whole(IssueKind::Create, record.inode, &record.layout, terms);
        issue.limit_to_size(&record.layout, size_max);
        // The device uses it as an extension capability.
        issue.readable = true;
        self.issue_create(&issuing, principal, (intent, record), &issue, now_ms, rng)
    }

    /// Refuses a device that takes no new objects. Call it under the lock for issuing credentials,
    /// because a drain waits for requests that may have chosen the device.
    fn require_open_device(&self, device: DeviceId) -> Result<()> {
        if self.devices.pool().has(device) {
            return Ok(());
        }
        let why = format!("device {} takes no new objects", device.0);
        Err(MdsError::refused(ErrorCode::Invalid, why))
    }

    /// Returns the id of a new object on a device.
    fn new_object(&self, tx: &mut dyn Transaction, inode: InodeId, device: DeviceId) -> Result<ObjectRef> {
        let number = next_number(tx, counter::OBJECT)?;
        Ok(ObjectRef { device, object: ObjectId::new(self.config.partition_of(inode.0), number) })
    }

    /// Issues the credentials of a new create; discards the create if that fails.
    fn issue_create(
        &self,
        issuing: &IssueGuard<'_>,
        principal: &Principal,
        (intent, record): (IntentId, Intent),
        issue: &IssueParams,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        let written = LengthTarget::Create(intent, record.inode);
        if let Err(error) = self.check_lengths_later(written, &principal.user, issue.expires_ms) {
            self.update(|tx| namespace::discard_create(tx, intent, now_ms))?;
            return Err(error);
        }
        let (grants, _) = self.issue(issuing, principal, issue, now_ms, rng)?;
        let file = CreatedFile {
            intent,
            inode: record.inode,
            expires_ms: record.expires_ms,
            layout: record.layout,
            grants,
        };
        Ok(Response::Created { file })
    }

    /// Begins a copy of a function file on a device.
    pub(super) fn copy_function(
        &self,
        principal: &Principal,
        path: &FilePath,
        (device, method): (DeviceId, Method),
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        let method = self.method(method);
        let grants_until_ms = now_ms.saturating_add(self.config.grant_lifetime_ms());
        let expires_ms = now_ms.saturating_add(self.config.intent_lifetime_ms).max(grants_until_ms);
        let issuing = self.issuing();
        self.require_open_device(device)?;
        let (intent, record, size) = self.update(|tx| {
            namespace::begin_copy(tx, principal, path, |tx, inode| {
                let object = self.new_object(tx, inode, device)?;
                Ok(NewObject { object, method, expires_ms, grants_until_ms })
            })
        })?;
        let terms = (method, COPY_RIGHTS, grants_until_ms);
        let mut issue = IssueParams::whole(IssueKind::Create, record.inode, &record.layout, terms);
        issue.limit_to_size(&record.layout, size);
        self.issue_create(&issuing, principal, (intent, record), &issue, now_ms, rng)
    }

    /// Issues a credential to read the attributes of a device. It gives no access to data.
    pub(super) fn device_attributes(
        &self,
        principal: &Principal,
        (device, method): (DeviceId, Method),
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        let _issuing = self.issuing();
        let terms = self.attribute_terms(principal, self.method(method), Permissions::GET_ATTR, now_ms)?;
        Ok(Response::DeviceGrant { grant: self.devices.root_grant(device, &terms, rng)? })
    }

    /// Returns the terms of a credential to attributes, for a session that has not ended. Call it
    /// under the lock for issuing credentials.
    fn attribute_terms(
        &self,
        principal: &Principal,
        method: Method,
        permissions: Permissions,
        now_ms: u64,
    ) -> Result<CapabilityTerms> {
        if self.sessions.expires_ms(&principal.session).is_none() {
            return Err(MdsError::refused(ErrorCode::NotLoggedIn, ""));
        }
        Ok(CapabilityTerms {
            method,
            permissions,
            expires_ms: now_ms.saturating_add(self.config.grant_lifetime_ms()),
            audit: audit_field(principal, self.sessions.next_grant(&principal.session)),
            sealed: self.config.seal_capabilities,
        })
    }

    /// Refuses a partition that has no files.
    pub(crate) fn require_file_partition(&self, partition: u64) -> Result<()> {
        let first = self.config.partition_of(0);
        if (first..first + self.config.file_partitions()).contains(&partition) {
            return Ok(());
        }
        Err(MdsError::refused(ErrorCode::NotFound, format!("partition {partition:#x} with files")))
    }

    /// Issues a credential for the policy about functions of a partition with files.
    pub(super) fn function_policy_access(
        &self,
        principal: &Principal,
        (device, partition, change): (DeviceId, u64, bool),
        method: Method,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        if !principal.is_admin() {
            return Err(MdsError::refused(ErrorCode::Denied, "administrators set the policy of functions"));
        }
        self.require_file_partition(partition)?;
        let _issuing = self.issuing();
        // Both the credential and the attributes must not be changed on the way.
        let method = self.method(method).max(Method::AllData);
        let rights = if change { POLICY_RIGHTS } else { POLICY_RIGHTS.without(Permissions::SET_ATTR) };
        let terms = self.attribute_terms(principal, method, rights, now_ms)?;
        Ok(Response::DeviceGrant { grant: self.devices.partition_grant((device, partition), &terms, rng)? })
    }

    /// Issues credentials for a part of a call, to be put into a capability file: to execute a
    /// function file, or to read a file by functions.
    pub(super) fn delegate_call(
        &self,
        principal: &Principal,
        (path, access): (&FilePath, Access),
        (until_ms, method): (u64, Method),
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        let expires_ms = self.delegation_end(until_ms, now_ms)?;
        let issuing = self.issuing();
        let view = self.store.snapshot()?;
        let (id, _) = namespace::resolve(&*view, principal, path)?;
        let (inode, layout) = namespace::file_for(&*view, principal, id, access, &path.shown())?;
        drop(view);
        let empty = || MdsError::refused(ErrorCode::Invalid, format!("{} is empty", path.shown()));
        let layout = layout.filter(|_| inode.size > 0).ok_or_else(empty)?;
        self.recall_for_path_access(id, access, expires_ms, now_ms)?;
        let expires_ms = self.within_drains(&layout, expires_ms, now_ms)?;
        let read = access == Access::CallRead;
        let rights = if read { CALL_READ_RIGHTS } else { EXECUTE_RIGHTS };
        let terms = (self.access_method(access, method), rights, expires_ms);
        let mut issue = IssueParams::whole(IssueKind::Delegate, id, &layout, terms);
        issue.span = (0, inode.size);
        if read {
            issue.limit_to_size(&layout, inode.size);
            // A device uses it as an extension capability.
            issue.readable = true;
        }
        self.issued_table(now_ms).check_delegation(&principal.user, issue.parts.len(), now_ms)?;
        let (grants, audit_field) = self.issue(&issuing, principal, &issue, now_ms, rng)?;
        let file = DelegatedFile {
            stat: inode.stat(id),
            layout,
            grants,
            start: 0,
            end: inode.size,
            read,
            write: false,
            expires_ms,
            principal: audit_field,
        };
        Ok(Response::Delegated { file })
    }
}
