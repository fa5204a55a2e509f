//! Request handling: one response for each request.
//!
//! Does: check the session, dispatch the request, write the audit record.
//! Contract: total: every request gets a response.

use std::sync::atomic::Ordering;

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    Access, CreatedFile, DeviceState, ErrorCode, Failure, FilePath, InodeId, IssueKind, Layout, Method,
    NewDevice, ObjectRef, OpenHandle, OpenedFile, PROTOCOL_VERSION, PlacementRecord, Request, Response, Text,
};
use sealstone_osd::{ObjectId, Permissions};

use crate::access::Principal;
use crate::audit::AuditRecord;
use crate::devices::{
    self, CALL_READ_RIGHTS, COPY_RIGHTS, CREATE_RIGHTS, DESCRIBE_RIGHTS, EXECUTE_RIGHTS, READ_RIGHTS,
    RESULT_RIGHTS, UPDATE_RIGHTS, WRITE_RIGHTS,
};
use crate::entropy::Entropy;
use crate::error::{MdsError, Result};
use crate::function_policy_record::FunctionPolicyRecord;
use crate::issue::RefusedRequest;
use crate::lengths::table::LengthTarget;
use crate::namespace::{self, CommitParams, FinalLink, NewIntent, NewOwner};
use crate::placement::{DevicePool, FileShape, PlacementChoice};
use crate::records::{Inode, counter, figure, next_number};
use crate::replay_cache::ReplayKey;
use crate::request_context::with_request_context;
use crate::roles;
use crate::server::Mds;
use crate::store::{SERVER_DISK, Transaction};

mod accounts;
mod delegate;
mod disks;
mod functions;
pub(crate) mod leases;
mod locks;
mod name_batch;
mod nodes;
mod quotas;

use delegate::{DelegationRequest, IssueParams};
use functions::ResultParams;

pub use leases::PendingRecalls;

/// Maximum number of devices in a page: the largest record has about 1050 bytes, and a frame 64
/// KiB.
const DEVICE_PAGE_MAX: u16 = 48;
/// Delay before a client repeats a create while no device is reachable, milliseconds.
const DEVICE_RETRY_MS: u32 = 1_000;

impl Mds {
    /// Handles a request of a session (`None`: not logged in; then only Hello is accepted).
    pub fn handle(
        &self,
        session: Option<&SessionId>,
        request: Request,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Response {
        let (replay_key, request) = match request {
            Request::Once { id, request } => (Some(ReplayKey::new(id, &request)), request.into_request()),
            request => (None, request),
        };
        self.counters.request(request.operation());
        let operation = request.name();
        let result = match request {
            Request::Hello { oldest, newest, software: _ } => self.hello(oldest, newest, now_ms),
            request => self.principal_of(session, operation, now_ms).and_then(|principal| {
                let subject = accounts::subject(&request);
                let wanted = requested_file(&request);
                let checked = roles::check(principal.role, &principal.user, &request)
                    .and_then(|()| self.check_disk_space(&request));
                let result = checked.and_then(|()| {
                    let as_it = leases::request_context(
                        &self.leases,
                        &principal,
                        &request,
                        replay_key.as_ref(),
                        now_ms,
                    );
                    with_request_context(as_it, || match &replay_key {
                        Some(replay_key) => self.change(&principal, request, Some(replay_key), now_ms),
                        None => self.dispatch(&principal, request, now_ms, rng),
                    })
                });
                if result.is_err() && self.leases.has_unreturned() {
                    // The repeated request finds it done.
                    self.fence_unreturned(now_ms);
                }
                if let (Some((path, inode, method)), Err(MdsError::Refused(failure))) = (&wanted, &result)
                    && failure.code.is_denial()
                {
                    let wanted = RefusedRequest { path: path.as_ref(), inode: *inode, method: *method };
                    self.write_refusal(&principal, &wanted, now_ms);
                }
                self.record(&principal, operation, subject.as_deref(), result.as_ref().err(), now_ms);
                result.map(|mut response| {
                    self.proof_key.prove_all(&principal, &mut response);
                    response
                })
            }),
        };
        // A refusal also depends on stored state.
        let result = self.store.wait_for_medium().map_err(MdsError::from).and(result);
        result.unwrap_or_else(|error| {
            let failure = error.failure();
            self.counters.failure(failure.code);
            if let MdsError::Store(cause) = &error {
                let error = cause as &(dyn std::error::Error + 'static);
                tracing::error!(operation, error, "request failed in the metadata store");
            }
            Response::Failed { failure }
        })
    }

    /// Fails for requests that add records while the disk of the metadata server is short of space:
    /// the rest is for removals, revocations and sessions.
    fn check_disk_space(&self, request: &Request) -> Result<()> {
        let adds = matches!(
            request,
            Request::Create { .. }
                | Request::CopyFunction { .. }
                | Request::ReserveResult { .. }
                | Request::ReserveJobResult { .. }
                | Request::MakeDir { .. }
                | Request::MakeNode { .. }
                | Request::LinkNode { .. }
                | Request::SetXattr { .. }
                | Request::DeviceAdd { .. }
                | Request::UserInvite { .. }
                | Request::GroupCreate { .. }
                | Request::GroupAddMember { .. }
        );
        if adds && !self.store.accepts_additions() {
            return Err(MdsError::refused(ErrorCode::NoSpace, SERVER_DISK));
        }
        Ok(())
    }

    /// Returns the principal of a session. A request in an ended session gets an audit record; its
    /// connection is closed.
    fn principal_of(&self, session: Option<&SessionId>, action: &str, time_ms: u64) -> Result<Principal> {
        let found = self.principal(session, time_ms);
        if let (Some(session), Err(MdsError::Refused(failure))) = (session, &found) {
            let (verdict, session) = (failure.code.name(), Some(session));
            let record =
                // The session was authenticated when it was resumed on this connection.
                AuditRecord { time_ms, user: "", session, proven: true, source: None, action, subject: None, verdict };
            self.audit.record(&record);
        }
        found
    }

    /// Writes an audit record for a request that changes something, grants a right, or is denied.
    fn record(
        &self,
        principal: &Principal,
        action: &str,
        subject: Option<&str>,
        error: Option<&MdsError>,
        time_ms: u64,
    ) {
        let failure: Option<Failure> = error.map(MdsError::failure);
        let denied = failure.as_ref().filter(|failure| failure.code.is_denial());
        let subject = subject.or_else(|| denied.map(|failure| failure.subject.as_str()));
        if subject.is_none() {
            return;
        }
        let verdict = failure.as_ref().map_or("ok", |failure| failure.code.name());
        let (user, session) = (principal.user.as_str(), Some(&principal.session));
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

    fn hello(&self, oldest: u16, newest: u16, now_ms: u64) -> Result<Response> {
        if !(oldest..=newest).contains(&PROTOCOL_VERSION) {
            return Err(MdsError::refused(
                ErrorCode::Version,
                format!("this server supports version {PROTOCOL_VERSION}"),
            ));
        }
        Ok(Response::Hello {
            version: PROTOCOL_VERSION,
            software: Text::truncated(concat!("sealstone-mds/", env!("CARGO_PKG_VERSION"))),
            server_id: self.server_id,
            time_ms: now_ms,
        })
    }

    fn dispatch(
        &self,
        principal: &Principal,
        request: Request,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        match request {
            Request::Hello { .. } => Err(MdsError::refused(ErrorCode::Invalid, "Hello needs no session")),
            Request::WhoAmI {} => self.who_am_i(principal),
            Request::ServerInfo {} => self.server_info(now_ms),
            Request::Stat { path } => self.stat(principal, &path, FinalLink::Follow),
            Request::Lstat { path } => self.stat(principal, &path, FinalLink::NoFollow),
            Request::Placement { path } => {
                let (layout, placed) = namespace::placement(&*self.store.snapshot()?, principal, &path)?;
                Ok(Response::Placement { layout, placed })
            }
            Request::ReadDir { path, after, limit } => {
                let view = self.store.snapshot()?;
                let (entries, more) = namespace::read_dir(&*view, principal, &path, after.as_ref(), limit)?;
                Ok(Response::Directory { entries, more })
            }
            Request::MakeDir { path, parents, mode } => {
                let stat =
                    self.update(|tx| namespace::make_dir(tx, principal, &path, parents, mode, now_ms))?;
                Ok(Response::Stat { stat })
            }
            Request::Create { path, size_hint, mode, replace, method } => {
                self.create(principal, &path, size_hint, (mode, replace, method), now_ms, rng)
            }
            Request::Open { path, access, method } => {
                self.open_file(principal, &path, access, method, now_ms, rng)
            }
            Request::RenewGrants { handle, method } => self.renew(principal, handle, method, now_ms, rng),
            Request::Commit { intent, size, mtime_ns, checksum } => {
                let stat = self.with_unlink_context(now_ms, |tx, ending| {
                    namespace::commit(
                        tx,
                        principal,
                        intent,
                        CommitParams { size, mtime_ns, checksum },
                        ending,
                    )
                })?;
                Ok(Response::Stat { stat })
            }
            Request::Abandon { intent } => {
                self.update(|tx| namespace::abandon(tx, principal, intent, now_ms, now_ms))?;
                Ok(Response::Done {})
            }
            Request::Rename { from, to, replace } => {
                self.with_unlink_context(now_ms, |tx, ending| {
                    namespace::rename(tx, principal, &from, &to, replace, ending)
                })?;
                Ok(Response::Done {})
            }
            Request::Remove { path, recursive } => {
                let (count, more) = self.with_unlink_context(now_ms, |tx, ending| {
                    namespace::remove(tx, principal, &path, recursive, &self.remove_cursors, ending)
                })?;
                Ok(Response::Removed { count, more })
            }
            Request::SetMode { path, mode } => {
                let stat = self.update(|tx| namespace::set_mode(tx, principal, &path, mode, now_ms))?;
                Ok(Response::Stat { stat })
            }
            Request::SetOwner { path, owner, group } => {
                // Directory groups are not stored here, so administrators may use any name.
                let new = NewOwner { owner, group, any_group: self.has_directory() };
                let stat = self.update(|tx| namespace::set_owner(tx, principal, &path, &new, now_ms))?;
                Ok(Response::Stat { stat })
            }
            Request::DiskFree {} => {
                let (total, used, active, devices) = self.devices.space_figures();
                Ok(Response::DiskFree { total, used, active, devices })
            }
            Request::DeviceList { after, limit } => {
                let limit = usize::from(limit.clamp(1, DEVICE_PAGE_MAX));
                let (mut devices, more) = self.devices.page(after, limit);
                for device in devices.iter_mut().filter(|one| one.state == DeviceState::Draining) {
                    device.drain = self.drain_of(device.id)?;
                }
                Ok(Response::Devices { devices, more })
            }
            Request::DeviceAdd { device } => self.add_device(principal, &device),
            Request::DeviceSetState { id, state: DeviceState::Joining } => {
                principal.needs_admin()?;
                self.approve_device(id)
            }
            Request::DeviceSetState { id, state } => {
                if !matches!(state, DeviceState::Active | DeviceState::Draining) {
                    return Err(MdsError::refused(
                        ErrorCode::Invalid,
                        "state must be Active, Draining, or Joining to approve",
                    ));
                }
                match self.devices.get(id).map(|device| device.state) {
                    None => return Err(MdsError::refused(ErrorCode::NotFound, format!("device {}", id.0))),
                    Some(DeviceState::Joining) => {
                        return Err(MdsError::refused(ErrorCode::Invalid, "device is being prepared"));
                    }
                    Some(DeviceState::Pending) => {
                        return Err(MdsError::refused(ErrorCode::Invalid, "device waits for approval"));
                    }
                    Some(_) => self.change_device(id, Some(state))?,
                }
                if state == DeviceState::Active {
                    self.forget_drain(id)?;
                }
                self.device_response(id)
            }
            Request::DeviceDrain { id, rate } => {
                match self.devices.get(id).map(|device| device.state) {
                    None => return Err(MdsError::refused(ErrorCode::NotFound, format!("device {}", id.0))),
                    Some(DeviceState::Joining) => {
                        return Err(MdsError::refused(ErrorCode::Invalid, "device is being prepared"));
                    }
                    Some(DeviceState::Pending) => {
                        return Err(MdsError::refused(ErrorCode::Invalid, "device waits for approval"));
                    }
                    Some(_) => self.drain(id, rate, now_ms)?,
                }
                self.device_response(id)
            }
            Request::Rebalance { rate } => {
                self.begin_rebalance(rate, now_ms)?;
                Ok(Response::Rebalance { rebalance: self.rebalance()? })
            }
            Request::RebalanceStop {} => {
                self.stop_rebalance(now_ms)?;
                Ok(Response::Rebalance { rebalance: self.rebalance()? })
            }
            Request::RebalanceShow {} => Ok(Response::Rebalance { rebalance: self.rebalance()? }),
            request @ (Request::UserRegisterStart { .. }
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
            | Request::GrantHolders { .. }) => self.account_request(principal, request, now_ms, rng),
            Request::Delegate { path, read, write, start, end, until_ms, method } => {
                let replay_key = DelegationRequest { path, read, write, start, end, until_ms, method };
                self.delegate(principal, &replay_key, now_ms, rng)
            }
            Request::DelegateExecution { path, until_ms, method } => {
                self.delegate_call(principal, (&path, Access::Execute), (until_ms, method), now_ms, rng)
            }
            Request::DelegateCallData { path, until_ms, method } => {
                self.delegate_call(principal, (&path, Access::CallRead), (until_ms, method), now_ms, rng)
            }
            Request::DeviceAttributes { id, method } => {
                self.device_attributes(principal, (id, method), now_ms, rng)
            }
            Request::FunctionPolicySet { partition, policy, keys, digests } => self.set_function_policy(
                principal,
                partition,
                &FunctionPolicyRecord { policy, keys, digests },
                rng,
            ),
            Request::FunctionPolicyAccess { id, partition, change, method } => {
                self.function_policy_access(principal, (id, partition, change), method, now_ms, rng)
            }
            Request::ReceiptVerify { receipt } => {
                let (verdict, device) = self.devices.verify_receipt(receipt.as_slice());
                Ok(Response::Receipt { verdict, device })
            }
            Request::CopyFunction { path, device, method } => {
                self.copy_function(principal, &path, (device, method), now_ms, rng)
            }
            Request::ReserveResult { path, device, size_max, method } => {
                let result = ResultParams { device, size_max, method, outlives_client: false };
                self.reserve_result(principal, &path, &result, now_ms, rng)
            }
            Request::ReserveJobResult { path, device, size_max, method } => {
                let result = ResultParams { device, size_max, method, outlives_client: true };
                self.reserve_result(principal, &path, &result, now_ms, rng)
            }
            Request::Revoke { what } => self.revoke(principal, what, now_ms),
            Request::RevocationProgress { id } => self.revocation_progress(principal, id),
            Request::RevocationList {} => self.revocation_list(),
            Request::IssueList { path, user, since_ms, until_ms, from } => {
                self.issue_list(principal, &path, user.as_ref(), (since_ms, until_ms), from)
            }
            Request::KeyList { device, from } => self.key_list(device, from),
            Request::KeyRotate { level, device, partition, revoke } => {
                self.key_rotate(principal, level, device, partition, revoke, now_ms)
            }
            Request::KeyProgress { device } => self.key_progress(device, now_ms),
            request @ quotas::quota_requests!() => self.quota_request(principal, request, now_ms),
            request @ disks::disk_requests!() => self.disk_request(principal, request, now_ms),
            request => self.nodes(principal, request, now_ms, rng),
        }
    }

    fn stat(&self, principal: &Principal, path: &FilePath, last: FinalLink) -> Result<Response> {
        Ok(Response::Stat { stat: namespace::stat(&*self.store.snapshot()?, principal, path, last)? })
    }

    fn who_am_i(&self, principal: &Principal) -> Result<Response> {
        let expires_ms = self
            .sessions
            .expires_ms(&principal.session)
            .ok_or_else(|| MdsError::refused(ErrorCode::NotLoggedIn, ""))?;
        Ok(Response::WhoAmI {
            user: principal.user.clone(),
            role: principal.role,
            groups: principal.groups.to_vec(),
            session: principal.session,
            expires_ms,
        })
    }

    fn server_info(&self, now_ms: u64) -> Result<Response> {
        let view = self.store.snapshot()?;
        Ok(Response::ServerInfo {
            time_ms: now_ms,
            method_floor: self.config.method_floor,
            files: figure(&*view, counter::FILES)?,
            directories: figure(&*view, counter::DIRECTORIES)?,
            intents: figure(&*view, counter::INTENTS)?,
            reap_queue: figure(&*view, counter::REAPS)?,
            sessions: figure(&*view, counter::SESSIONS)?,
            devices: self.devices.space_figures().3,
        })
    }

    fn create(
        &self,
        principal: &Principal,
        path: &FilePath,
        size_hint: Option<u64>,
        (mode, replace, method): (u16, bool, Method),
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        if let Some(size) = size_hint {
            namespace::check_size(size)?;
        }
        let method = self.method(method);
        let grants_until_ms = now_ms.saturating_add(self.config.grant_lifetime_ms());
        // A create outlives its grants, so that its expiry never removes objects from under a
        // writer.
        let expires_ms = now_ms.saturating_add(self.config.intent_lifetime_ms).max(grants_until_ms);
        let issuing = self.issuing();
        // Chosen under the lock, because a drain waits for requests that may have chosen the
        // device.
        let pool = self.devices.pool();
        let (intent, record) = self.update(|tx| {
            let new = NewIntent { size_hint, mode, replace, method, expires_ms, grants_until_ms };
            namespace::begin_create(tx, principal, path, new, |tx| {
                let inode = InodeId(next_number(tx, counter::INODE)?);
                let (layout, placed) =
                    self.allocate_layout(tx, inode, size_hint, (&pool, now_ms), &path.shown())?;
                Ok((inode, layout, placed))
            })
        })?;
        let terms = (method, CREATE_RIGHTS, grants_until_ms);
        let issue = IssueParams::whole(IssueKind::Create, record.inode, &record.layout, terms);
        let written = LengthTarget::Create(intent, record.inode);
        if let Err(error) = self.check_lengths_later(written, &principal.user, grants_until_ms) {
            self.update(|tx| namespace::discard_create(tx, intent, now_ms))?;
            return Err(error);
        }
        let (grants, _) = self.issue(&issuing, principal, &issue, now_ms, rng)?;
        let file = CreatedFile {
            intent,
            inode: record.inode,
            expires_ms: record.expires_ms,
            layout: record.layout,
            grants,
        };
        Ok(Response::Created { file })
    }

    /// Returns the refusal of new objects; a client waits for unreachable devices.
    fn no_space_for(&self, subject: &str) -> MdsError {
        if self.devices.all_are_unreachable() {
            let subject = Text::truncated(&format!("no device is reachable for {subject}"));
            return MdsError::Refused(Failure { subject, ..Failure::busy(DEVICE_RETRY_MS) });
        }
        MdsError::refused(ErrorCode::NoSpace, format!("on any device, for {subject}"))
    }

    /// Chooses devices and allocates objects for a file.
    pub(crate) fn allocate_layout(
        &self,
        tx: &mut dyn Transaction,
        inode: InodeId,
        size_hint: Option<u64>,
        (pool, at_ms): (&DevicePool, u64),
        subject: &str,
    ) -> Result<(Layout, PlacementRecord)> {
        let choice =
            pool.place(size_hint, inode.0, self.config.width_max).map_err(|_| self.no_space_for(subject))?;
        let considered = u32::try_from(pool.open()).unwrap_or(u32::MAX);
        let left_out = self.devices.space_figures().3.saturating_sub(considered);
        let PlacementChoice { shape, bound, chosen } = choice;
        let placed = PlacementRecord { at_ms, size_hint, bound, considered, left_out, chosen, outgrew: None };
        let mut object = |device| {
            let number = next_number(tx, counter::OBJECT)?;
            let object = ObjectId::new(self.config.partition_of(inode.0), number);
            Ok::<_, MdsError>(ObjectRef { device, object })
        };
        let layout = match shape {
            FileShape::Single(device) => Layout::single(object(device)?),
            FileShape::Striped(unit, devices) => {
                Layout::striped(unit, devices.into_iter().map(object).collect::<Result<_>>()?)?
            }
        };
        Ok((layout, placed))
    }

    fn open_file(
        &self,
        principal: &Principal,
        path: &FilePath,
        access: Access,
        method: Method,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        let issuing = self.issuing();
        let view = self.store.snapshot()?;
        let (id, _) = namespace::resolve(&*view, principal, path)?;
        let (inode, _) = namespace::file_for(&*view, principal, id, access, &path.shown())?;
        drop(view);
        self.check_not_clearing(&inode, access)?;
        let until = now_ms.saturating_add(self.config.grant_lifetime_ms());
        self.recall_for_path_access(id, access, until, now_ms)?;
        if access == Access::CallUpdate {
            self.update(|tx| namespace::note_call_update(tx, id, now_ms))?;
        }
        if access == Access::Describe {
            self.update(|tx| namespace::fix_function_layout(tx, id, &path.shown(), now_ms))?;
        }
        // Read again, because returned leases may have changed the file.
        let view = self.store.snapshot()?;
        let (inode, layout) = namespace::file_for(&*view, principal, id, access, &path.shown())?;
        drop(view);
        let grants = match &layout {
            Some(layout) => {
                let terms = (self.access_method(access, method), rights(access), until);
                let issue = IssueParams::of_access(IssueKind::Open, (id, access), layout, inode.size, terms);
                self.issue(&issuing, principal, &issue, now_ms, rng)?.0
            }
            None => Vec::new(),
        };
        let (stat, sparse) = (inode.stat(id), inode.sparse);
        Ok(Response::Opened { file: OpenedFile { stat, layout, grants, sparse } })
    }

    /// Fails for writers while truncated bytes are being cleared.
    fn check_not_clearing(&self, file: &Inode, access: Access) -> Result<()> {
        if access.changes_data() { self.clearing(namespace::check_clear(file)) } else { Ok(()) }
    }

    fn renew(
        &self,
        principal: &Principal,
        handle: OpenHandle,
        method: Method,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Response> {
        let issuing = self.issuing();
        let until = now_ms.saturating_add(self.config.grant_lifetime_ms());
        let method = self.method(method);
        let (issue, layout, generation) = match handle {
            OpenHandle::Node { node, access, client_id } => {
                return self.renew_node(&issuing, principal, (node, access, client_id), method, now_ms, rng);
            }
            OpenHandle::File { node, access } => {
                let inode = self.proof_key.verify(principal, node)?;
                let (file, layout) =
                    namespace::file_for(&*self.store.snapshot()?, principal, inode, access, "file")?;
                self.check_not_clearing(&file, access)?;
                self.recall_for_path_access(inode, access, until, now_ms)?;
                let cut = || MdsError::refused(ErrorCode::Stale, "file was truncated meanwhile");
                let layout = layout.ok_or_else(cut)?;
                let terms = (self.access_method(access, method), rights(access), until);
                let of = (inode, access);
                let issue = IssueParams::of_access(IssueKind::Renew, of, &layout, file.size, terms);
                (issue, layout, file.generation)
            }
            OpenHandle::Intent(intent) => {
                let expires_ms = now_ms.saturating_add(self.config.intent_lifetime_ms).max(until);
                let record = self
                    .update(|tx| namespace::renew_create(tx, principal, intent, expires_ms, until, now_ms))?;
                let written = LengthTarget::Create(intent, record.inode);
                let view = self.store.snapshot()?;
                let (copied, result) =
                    (namespace::copied_size(&*view, intent)?, namespace::result_size(&*view, intent)?);
                drop(view);
                self.check_lengths_later(written, &principal.user, until)?;
                let rights = match (copied, result) {
                    (Some(_), _) => COPY_RIGHTS,
                    (None, Some(_)) => RESULT_RIGHTS,
                    (None, None) => CREATE_RIGHTS,
                };
                let method = match result {
                    // The device uses it as an extension capability, as at the reservation.
                    Some(_) => self.access_method(Access::CallRead, method),
                    None => method,
                };
                let terms = (method, rights, until);
                let mut issue = IssueParams::whole(IssueKind::Renew, record.inode, &record.layout, terms);
                if let Some(size) = copied.or(result) {
                    issue.limit_to_size(&record.layout, size);
                }
                issue.readable = result.is_some();
                (issue, record.layout, 0)
            }
        };
        let grants = self.issue(&issuing, principal, &issue, now_ms, rng)?.0;
        Ok(Response::Grants { layout, generation, grants })
    }

    fn add_device(&self, principal: &Principal, new: &NewDevice) -> Result<Response> {
        let _turn = self.key_lock.lock();
        let fresh = devices::factory_keys(new, self.config.file_partitions())?;
        let approved = principal.is_admin();
        let (id, record, rest) = self.update(|tx| self.devices.add(tx, new, &fresh, approved))?;
        self.devices.insert(id, record, new, fresh)?;
        if !rest.is_empty() {
            let (keys, key_state) = self.devices.key_state(id)?;
            self.store_keys(id, &keys, &key_state, &rest)?;
        }
        self.devices_changed.store(true, Ordering::Release);
        self.device_response(id)
    }

    /// Approves a pending device: housekeeping sets its keys and creates its partitions.
    fn approve_device(&self, id: sealstone_mds_protocol::DeviceId) -> Result<Response> {
        let _turn = self.key_lock.lock();
        match self.devices.get(id).map(|device| device.state) {
            None => return Err(MdsError::refused(ErrorCode::NotFound, format!("device {}", id.0))),
            Some(DeviceState::Pending) if self.devices.is_name_taken(id) => {
                return Err(MdsError::refused(
                    ErrorCode::Exists,
                    "another device with this name or system id",
                ));
            }
            Some(DeviceState::Pending) => self.change_device(id, Some(DeviceState::Joining))?,
            // Already approved; the response shows its state.
            Some(_) => {}
        }
        self.devices_changed.store(true, Ordering::Release);
        self.device_response(id)
    }

    fn device_response(&self, id: sealstone_mds_protocol::DeviceId) -> Result<Response> {
        let mut device = self
            .devices
            .get(id)
            .ok_or_else(|| MdsError::refused(ErrorCode::NotFound, format!("device {}", id.0)))?;
        device.drain = self.drain_of(id)?;
        Ok(Response::Device { device })
    }

    /// Returns the requested method, or the floor if that is stronger.
    fn method(&self, replay_key: Method) -> Method {
        replay_key.max(self.config.method_floor)
    }

    /// Returns the method of credentials for an access. A device runs functions only under a method
    /// that protects their arguments.
    fn access_method(&self, access: Access, requested: Method) -> Method {
        match access {
            Access::Execute | Access::CallRead | Access::CallUpdate => {
                self.method(requested).max(Method::CmdRsp)
            }
            Access::Read | Access::Update | Access::Write | Access::Describe => self.method(requested),
        }
    }

    pub(crate) const fn reap_due(&self, now_ms: u64) -> u64 {
        now_ms.saturating_add(self.config.reap_grace_ms)
    }
}

/// Returns the file of a request for credentials, by path or number.
fn requested_file(request: &Request) -> Option<(Option<FilePath>, Option<InodeId>, Method)> {
    match request {
        Request::Create { path, method, .. }
        | Request::Open { path, method, .. }
        | Request::CopyFunction { path, method, .. }
        | Request::ReserveResult { path, method, .. }
        | Request::ReserveJobResult { path, method, .. }
        | Request::DelegateExecution { path, method, .. }
        | Request::DelegateCallData { path, method, .. }
        | Request::Delegate { path, method, .. } => Some((Some(path.clone()), None, *method)),
        Request::RenewGrants {
            handle: OpenHandle::File { node, .. } | OpenHandle::Node { node, .. },
            method,
        }
        | Request::OpenNode { node, method, .. }
        | Request::Allocate { node, method, .. } => Some((None, Some(node.inode), *method)),
        _ => None,
    }
}

const fn rights(access: Access) -> Permissions {
    match access {
        Access::Read => READ_RIGHTS,
        Access::Update => UPDATE_RIGHTS,
        Access::Write => WRITE_RIGHTS,
        Access::Execute => EXECUTE_RIGHTS,
        Access::CallRead => CALL_READ_RIGHTS,
        Access::CallUpdate => UPDATE_RIGHTS,
        Access::Describe => DESCRIBE_RIGHTS,
    }
}

/// Checks that rights do not exceed what they must not.
const _: () = {
    assert!(!CREATE_RIGHTS.contains(Permissions::READ));
    assert!(!READ_RIGHTS.contains(Permissions::WRITE));
    let _ = devices::security_method(Method::AllData);
};
