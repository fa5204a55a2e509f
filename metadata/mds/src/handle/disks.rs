//! Requests about end-to-end protected disks: dispatch to `disks`, and their subjects in the audit
//! log.

use sealstone_mds_protocol::{ErrorCode, Request, Response};

use crate::access::Principal;
use crate::disks;
use crate::error::{MdsError, Result};
use crate::namespace;
use crate::server::Mds;

/// The pattern of all requests about disks.
macro_rules! disk_requests {
    () => {
        Request::DiskPublicKeySet { .. }
            | Request::DiskPublicKey { .. }
            | Request::DiskCreate { .. }
            | Request::DiskShow { .. }
            | Request::DiskList { .. }
            | Request::DiskSetAccess { .. }
            | Request::DiskLease { .. }
            | Request::DiskEndLease { .. }
            | Request::DiskPublish { .. }
            | Request::DiskRotate { .. }
            | Request::DiskReport { .. }
            | Request::DiskRemove { .. }
    };
}
pub(super) use disk_requests;

impl Mds {
    pub(super) fn disk_request(
        &self,
        principal: &Principal,
        request: Request,
        now_ms: u64,
    ) -> Result<Response> {
        match request {
            Request::DiskPublicKey { user } => {
                let view = self.store.snapshot()?;
                namespace::check_owner(&*view, &user)?;
                Ok(Response::DiskPublicKey { public: disks::public_key(&*view, &user)? })
            }
            Request::DiskShow { name } => {
                let access = disks::access(&*self.store.snapshot()?, principal, &name, now_ms)?;
                Ok(Response::Disk { access })
            }
            Request::DiskList { after, limit } => {
                let view = self.store.snapshot()?;
                let (disks, more) = disks::list(&*view, principal, after.as_ref(), limit, now_ms)?;
                Ok(Response::Disks { disks, more })
            }
            Request::DiskLease { name, epoch } => {
                let epoch = self.update(|tx| disks::lease(tx, principal, &name, epoch, now_ms))?;
                Ok(Response::DiskLeased { epoch, valid_ms: disks::DISK_LEASE_USED_MS })
            }
            request => self.change_disk(principal, request, now_ms),
        }
    }

    fn change_disk(&self, principal: &Principal, request: Request, now_ms: u64) -> Result<Response> {
        self.update(|tx| match &request {
            Request::DiskPublicKeySet { public } => disks::set_public_key(tx, &principal.user, public),
            Request::DiskCreate { name, unit, wrapped } => {
                disks::create(tx, principal, name, *unit, wrapped, now_ms)
            }
            Request::DiskSetAccess { name, user, wrapped } => {
                disks::set_access(tx, principal, name, user, wrapped.as_ref())
            }
            Request::DiskEndLease { name, epoch } => disks::end_lease(tx, principal, name, *epoch),
            Request::DiskPublish { name, epoch, expected, root } => {
                disks::publish(tx, principal, name, (*epoch, *expected), *root, now_ms)
            }
            Request::DiskRotate { name, rotation } => disks::rotate(tx, principal, name, rotation),
            Request::DiskReport { name, text } => disks::report(tx, principal, name, text),
            Request::DiskRemove { name } => disks::remove(tx, principal, name),
            _ => Err(MdsError::refused(ErrorCode::Invalid, "not a request about disks")),
        })?;
        Ok(Response::Done {})
    }
}

/// Returns the subject of a request about disks in the audit log; reads and roots are not logged.
pub(super) fn subject(request: &Request) -> Option<String> {
    match request {
        Request::DiskPublicKeySet { .. } => Some("public key for disks".to_owned()),
        Request::DiskCreate { name, .. } | Request::DiskRemove { name } => Some(format!("disk {name}")),
        Request::DiskSetAccess { name, user, wrapped } => {
            let change = if wrapped.is_some() { "grant" } else { "revoke" };
            Some(format!("disk {name}: {change} {user}"))
        }
        Request::DiskLease { name, epoch: None } => Some(format!("disk {name}: attach")),
        Request::DiskEndLease { name, .. } => Some(format!("disk {name}: detach")),
        Request::DiskRotate { name, rotation } => {
            Some(format!("disk {name}: key of epoch {} replaced", rotation.key_epoch))
        }
        Request::DiskReport { name, text } => Some(format!("disk {name}: integrity failure: {text}")),
        _ => None,
    }
}
