//! Issuing of credentials, including capability files.
//!
//! Contract: a credential is in the table, and its record written, before it is sent; an ended
//! session gets none. A delegated one allows nothing that its issuer may not do.

use parking_lot::RwLockReadGuard;
use sealstone_mds_protocol::{
    Access, DelegatedFile, DeviceState, ErrorCode, FilePath, Grant, InodeId, IssueEntry, IssueKind, Layout,
    Method, ObjectRef, Response,
};
use sealstone_osd::Permissions;
use sealstone_osd::capability::Range;

use crate::access::Principal;
use crate::counters::add;
use crate::devices::{CapabilityTerms, NO_BYTES, ObjectToSign, audit_field};
use crate::entropy::Entropy;
use crate::error::{MdsError, Result};
use crate::grant_log::IssueRecord;
use crate::issue::bits;
use crate::issued_credentials::IssuedRights;
use crate::lengths::table::LengthTarget;
use crate::namespace;
use crate::server::Mds;
use crate::tags;

/// Rights of a capability file for reading.
const DELEGATED_READ: Permissions = Permissions::READ;
/// Rights of a capability file for writing. FLUSH needs OBJ_MGMT; GET_ATTR lets the program see
/// whether the device has restarted.
const DELEGATED_WRITE: Permissions =
    Permissions::WRITE.union(Permissions::OBJ_MGMT).union(Permissions::GET_ATTR);

/// Read lock taken before rights are checked. The end of a session and revocations wait for it, so
/// that the checked rights are valid until the credentials were sent.
pub(super) struct IssueGuard<'a> {
    _turn: RwLockReadGuard<'a, ()>,
}

/// Credentials to be issued.
pub(super) struct IssueParams {
    pub(super) kind: IssueKind,
    pub(super) inode: InodeId,
    pub(super) parts: Vec<(ObjectRef, Range)>,
    /// Byte range of the file.
    pub(super) span: (u64, u64),
    pub(super) method: Method,
    pub(super) permissions: Permissions,
    pub(super) expires_ms: u64,
    /// Whether the capabilities have to be readable: a device can use no sealed one as an extension
    /// capability of a command.
    pub(super) readable: bool,
}

impl IssueParams {
    /// Returns the parameters for all objects of a file.
    pub(super) fn whole(
        kind: IssueKind,
        inode: InodeId,
        layout: &Layout,
        (method, permissions, expires_ms): (Method, Permissions, u64),
    ) -> Self {
        let parts = layout.objects().iter().map(|object| (*object, Range::ALL)).collect();
        let readable = false;
        Self { kind, inode, parts, span: (0, u64::MAX), method, permissions, expires_ms, readable }
    }

    /// Returns the parameters for a file that is opened by path. A function may change only bytes
    /// that exist, and a description is no byte.
    pub(super) fn of_access(
        kind: IssueKind,
        (inode, access): (InodeId, Access),
        layout: &Layout,
        size: u64,
        terms: (Method, Permissions, u64),
    ) -> Self {
        let kind = if access == Access::Execute { IssueKind::Execute } else { kind };
        let mut issue = Self::whole(kind, inode, layout, terms);
        issue.readable = matches!(access, Access::CallRead | Access::CallUpdate);
        match access {
            Access::CallUpdate => issue.limit_to_size(layout, size),
            Access::Describe => issue.limit_to_size(layout, 0),
            _ => {}
        }
        issue
    }

    /// Limits the credentials to the bytes that the objects of a file of this size have.
    pub(super) fn limit_to_size(&mut self, layout: &Layout, size: u64) {
        for (index, (_, range)) in self.parts.iter_mut().enumerate() {
            *range = match layout.object_length(index, size) {
                0 => NO_BYTES,
                length => Range { start: 0, length },
            };
        }
    }
}

/// Requests for the longest lifetime are accepted from clients whose clock is ahead by at most
/// this, milliseconds.
const CLOCKS_APART_MS: u64 = 5_000;

/// Parameters of a capability file.
pub(super) struct DelegationRequest {
    pub(super) path: FilePath,
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) start: u64,
    pub(super) end: Option<u64>,
    pub(super) until_ms: u64,
    pub(super) method: Method,
}

impl Mds {
    /// Takes the lock for issuing credentials; once in a request.
    pub(super) fn issuing(&self) -> IssueGuard<'_> {
        IssueGuard { _turn: self.issuing.read() }
    }

    /// Issues one grant for each part, and returns the principal in the devices' audit logs.
    pub(super) fn issue(
        &self,
        _: &IssueGuard<'_>,
        principal: &Principal,
        issue: &IssueParams,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<(Vec<Grant>, [u8; 20])> {
        if self.sessions.expires_ms(&principal.session).is_none() {
            return Err(MdsError::refused(ErrorCode::NotLoggedIn, ""));
        }
        let &IssueParams { kind, inode, method, permissions, expires_ms, span: (start, end), .. } = issue;
        // Writers, and programs that cannot request a new location, have priority over moves.
        let has_priority = permissions.contains(Permissions::WRITE) || kind == IssueKind::Delegate;
        let view =
            if has_priority { self.abandon_moves_of(inode, now_ms)? } else { self.store.snapshot()? };
        let mut to_sign = Vec::with_capacity(issue.parts.len());
        for (object, range) in &issue.parts {
            to_sign.push(ObjectToSign { object: *object, range: *range, tag: tags::of(&*view, *object)? });
        }
        let mut withheld = Vec::new();
        if permissions.contains(Permissions::EXECUTE) {
            for (object, _) in &issue.parts {
                withheld.push(Self::lacks_policy(&*view, object.device)?);
            }
        }
        drop(view);
        let number = self.sessions.next_grant(&principal.session);
        let audit = audit_field(principal, number);
        let sealed = self.config.seal_capabilities && !issue.readable;
        let terms = CapabilityTerms { method, permissions, expires_ms, audit, sealed };
        // In the table first, so that it never misses an issued credential.
        let objects: Vec<ObjectRef> = issue.parts.iter().map(|(object, _)| *object).collect();
        let rights = IssuedRights {
            writes: permissions.contains(Permissions::WRITE),
            creates: permissions.contains(Permissions::CREATE),
            // That of a result for a job lives as long as one in a capability file.
            lasting_until_ms: match expires_ms > now_ms.saturating_add(self.config.grant_lifetime_ms()) {
                true => expires_ms,
                false if kind == IssueKind::Delegate => expires_ms,
                false => 0,
            },
            expires_ms,
        };
        self.issued_table(now_ms).add(&principal.session, &principal.user, &objects, rights, now_ms);
        if rights.writes && kind != IssueKind::Create {
            self.check_lengths_later(LengthTarget::File(inode), &principal.user, expires_ms)?;
        }
        let grants = match withheld.contains(&true) {
            false => self.devices.grants(&to_sign, &terms, rng)?,
            // A credential for each object is expected; that of a device with an older policy
            // permits nothing.
            true => {
                let nothing = CapabilityTerms { permissions: Permissions::NONE, ..terms };
                let pairs = to_sign.iter().zip(&withheld);
                let one = |(sign, withheld): (&ObjectToSign, &bool)| {
                    let terms = if *withheld { &nothing } else { &terms };
                    self.devices.grants(std::slice::from_ref(sign), terms, &mut *rng)
                };
                pairs.map(one).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect()
            }
        };
        let entry = IssueEntry {
            time_ms: now_ms,
            kind,
            user: principal.user.clone(),
            session: principal.session,
            number,
            permissions: bits(permissions),
            method,
            expires_ms,
            start,
            end,
        };
        self.write_issue(&IssueRecord { entry, inode, objects, path: None })?;
        add(&self.counters.grants, grants.len() as u64);
        Ok((grants, audit))
    }

    /// Limits the lifetime of a capability file on a drained device to that of one issued when the
    /// drain began.
    pub(super) fn within_drains(&self, layout: &Layout, expires_ms: u64, now_ms: u64) -> Result<u64> {
        let mut ends_ms = expires_ms;
        for object in layout.objects() {
            let device = self.devices.get(object.device);
            let Some(device) = device.filter(|device| device.state == DeviceState::Draining) else {
                continue;
            };
            let Some(drain) = self.drain_of(device.id)? else { continue };
            ends_ms = ends_ms.min(drain.began_ms.saturating_add(self.config.delegated_lifetime_ms()));
            if ends_ms <= now_ms {
                let why = format!(
                    "device {} is being drained; try again after the file has moved",
                    device.name.shown()
                );
                return Err(MdsError::refused(ErrorCode::Limit, why));
            }
        }
        Ok(ends_ms)
    }

    /// Returns the expiry of a capability file that is requested until `asked_ms`.
    pub(super) fn delegation_end(&self, asked_ms: u64, now_ms: u64) -> Result<u64> {
        let lifetime_ms = self.config.delegated_lifetime_ms();
        if asked_ms <= now_ms {
            return Err(MdsError::refused(ErrorCode::Invalid, "expiry time has passed"));
        }
        let most_ms = now_ms.saturating_add(lifetime_ms);
        if asked_ms > most_ms.saturating_add(CLOCKS_APART_MS) {
            let why = format!("maximum lifetime of a delegated credential is {} s", lifetime_ms / 1000);
            return Err(MdsError::refused(ErrorCode::Limit, why));
        }
        Ok(asked_ms.min(most_ms))
    }

    /// Issues credentials for a part of a file, to be put into a capability file.
    pub(super) fn delegate(
        &self,
        principal: &Principal,
        asked: &DelegationRequest,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        let &DelegationRequest { read, write, start, end, until_ms: asked_ms, .. } = asked;
        if !read && !write {
            return Err(MdsError::refused(ErrorCode::Invalid, "neither read nor write requested"));
        }
        let expires_ms = self.delegation_end(asked_ms, now_ms)?;
        let rights = namespace::DelegatedRange { read, write, start, end };
        let issuing = self.issuing();
        let access = if write { Access::Update } else { Access::Read };
        let (inode, _) = namespace::resolve(&*self.store.snapshot()?, principal, &asked.path)?;
        // Users without the right are refused before any lease is recalled.
        namespace::file_for(&*self.store.snapshot()?, principal, inode, access, &asked.path.shown())?;
        self.recall_for_path_access(inode, access, expires_ms, now_ms)?;
        let (inode, stat, layout, end) = if write {
            self.update(|tx| namespace::delegate_writing(tx, principal, &asked.path, rights, now_ms))?
        } else {
            namespace::delegate(&*self.store.snapshot()?, principal, &asked.path, rights)?
        };
        let expires_ms = self.within_drains(&layout, expires_ms, now_ms)?;
        let part = |(index, object): (usize, &ObjectRef)| {
            let range = layout.object_range(index, start..end)?;
            let length = range.end.checked_sub(range.start).filter(|length| *length > 0)?;
            Some((*object, Range { start: range.start, length }))
        };
        let parts = layout.objects().iter().enumerate().filter_map(part).collect();
        let mut permissions = if read { DELEGATED_READ } else { Permissions::NONE };
        if write {
            permissions = permissions | DELEGATED_WRITE;
        }
        let issue = IssueParams {
            kind: IssueKind::Delegate,
            inode,
            parts,
            span: (start, end),
            method: self.method(asked.method),
            permissions,
            expires_ms,
            readable: false,
        };
        self.issued_table(now_ms).check_delegation(&principal.user, issue.parts.len(), now_ms)?;
        let (grants, audit_field) = self.issue(&issuing, principal, &issue, now_ms, rng)?;
        let file = DelegatedFile {
            stat,
            layout,
            grants,
            start,
            end,
            read,
            write,
            expires_ms,
            principal: audit_field,
        };
        Ok(Response::Delegated { file })
    }
}
