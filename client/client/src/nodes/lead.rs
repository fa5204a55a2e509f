//! Write-back of directory changes under a directory delegation.
//!
//! Does: requests a delegation for directories with repeated changes, applies changes locally,
//! flushes them in batches and before any request that depends on them.
//! Does not: store the queue; `ledger` does.
//! Contract: a change is applied locally only if the server would do the same: the directory has a
//! write lease, so no other client sees or changes it; the name is known; and the user's right to
//! the directory decides alone. Changes are durable after [`Shared::names_told`], and are flushed
//! in order within milliseconds in any case. A change that the server refuses is undone in the
//! caches and reported once.
//! Truth: docs/adr/0050-directory-write-delegations.md.

use core::time::Duration;
use std::sync::{Arc, Weak};

use sealstone_mds_protocol::{
    ChangeRequest, CreateOp, DirLeaseId, FileKind, InodeId, InodeLease, LeaseKind, Name, NameChange, Node,
    NodeKind, NodeLease, OpenHandle, RESERVED_INODES_MAX, RenameOp, Request, Response, Stat, UnlinkOp,
};
use tokio::time::{Instant, sleep, timeout};

use super::Making;
use super::ledger::{CHANGES_MAX, OWN, TOGETHER_MAX};
use super::names::Place;
use super::shared::{PAUSE_MAX, PAUSE_MIN, REMEMBERED_MS, Shared, is_fenced, is_invalid, lock, passes};
use crate::{ClientError, Devices, Metadata};

/// Requested changes in a directory after which a delegation is requested.
const LEAD_AFTER: u32 = 2;
/// Delay before a delegation is requested again after a refusal.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// How long changes are gathered before a batch is sent, if no request waits for them.
const GATHER: Duration = Duration::from_millis(4);
/// Inode numbers requested with the first delegation.
const NUMBERS_FIRST: u16 = 256;
/// More inode numbers are requested when fewer than this are left.
const NUMBERS_LOW: usize = 512;
/// How often the task checks whether the file system still exists.
const PACE: Duration = Duration::from_secs(1);
/// Mode bits other than the permissions: set-user-ID, set-group-ID, sticky.
const SPECIAL: u16 = 0o7000;
/// Permission bits of a symbolic link.
const LINK_MODE: u16 = 0o777;

/// The local changes that a request depends on.
enum About<'a> {
    Nodes([Option<InodeId>; 2]),
    Name(InodeId, &'a Name),
    Everything,
    Nothing,
}

fn about(request: &Request) -> About<'_> {
    let one = |node: &Node| About::Nodes([Some(node.inode), None]);
    match request {
        Request::Lookup { parent, name, .. } => About::Name(parent.inode, name),
        Request::MakeNode { parent, .. } => one(parent),
        Request::ReadNodes { directory: node, .. }
        | Request::GetNode { node }
        | Request::ReadLink { node }
        | Request::SetNode { node, .. }
        | Request::OpenNode { node, .. }
        | Request::Allocate { node, .. }
        | Request::Written { node, .. }
        | Request::CloseNode { node, .. }
        | Request::LeaseNode { node, .. }
        | Request::LockNode { node, .. }
        | Request::UnlockNode { node, .. }
        | Request::GetXattr { node, .. }
        | Request::SetXattr { node, .. }
        | Request::ListXattr { node }
        | Request::RemoveXattr { node, .. }
        | Request::RenewGrants { handle: OpenHandle::Node { node, .. }, .. } => one(node),
        Request::LinkNode { node, parent, .. } => About::Nodes([Some(node.inode), Some(parent.inode)]),
        // Leases are returned only after the changes under them were flushed.
        Request::ReturnLease { .. }
        | Request::Recalls { .. }
        | Request::DelegateDir { .. }
        | Request::NameBatch { .. } => About::Nothing,
        _ => About::Everything,
    }
}

impl<M: Metadata, D: Devices> Shared<M, D> {
    /// Flushes all local changes that a request depends on.
    pub(super) async fn told_before(&self, request: &Request) -> Result<(), ClientError> {
        let upto = match about(request) {
            About::Nodes([first, second]) => {
                let nodes = [first, second.or(first)];
                let [Some(first), Some(second)] = nodes else { return Ok(()) };
                self.ledger.about(&[first, second])
            }
            About::Name(directory, name) => self.ledger.about_name(directory, name),
            About::Everything => self.ledger.about_all(),
            About::Nothing => None,
        };
        self.told_upto(upto).await
    }

    /// Flushes all local changes: when this returns, they are durable.
    ///
    /// # Errors
    /// `NamesNotTold` if the server does not accept them within the timeout.
    pub(super) async fn names_told(&self) -> Result<(), ClientError> {
        self.told_upto(self.ledger.about_all()).await
    }

    /// Flushes the local changes in a directory or of a node.
    pub(super) async fn names_told_of(&self, inode: InodeId) -> Result<(), ClientError> {
        self.told_upto(self.ledger.about(&[inode])).await
    }

    /// Waits until the server has acknowledged the changes up to `upto`.
    pub(super) async fn told_upto(&self, upto: Option<u64>) -> Result<(), ClientError> {
        let Some(upto) = upto else { return Ok(()) };
        let begun = Instant::now();
        loop {
            let moved = self.ledger.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.ledger.is_told(upto) {
                return Ok(());
            }
            self.ledger.hurry.notify_one();
            let _ = timeout(PACE, moved).await;
            if self.options.timeout.is_some_and(|max| begun.elapsed() >= max) && !self.ledger.is_told(upto) {
                return Err(ClientError::NamesNotTold);
            }
        }
    }

    /// Waits until the queue of local changes has space.
    pub(super) async fn room_for_names(&self) -> Result<(), ClientError> {
        let upto = self.ledger.book().room_after();
        self.told_upto(upto).await
    }

    /// Counts a change that was requested from the server in a directory, and requests a delegation
    /// if they are frequent.
    pub(super) fn changed_in(self: &Arc<Self>, directory: Node) {
        if !self.leads_names()
            || self.leased(directory.inode).is_none_or(|lease| lease.kind != LeaseKind::Read)
        {
            return;
        }
        if !self.ledger.book().is_to_be_led(directory.inode, LEAD_AFTER) {
            return;
        }
        let shared = self.clone();
        self.runtime.spawn(async move { shared.ask_to_lead(directory).await });
    }

    async fn ask_to_lead(self: &Arc<Self>, directory: Node) {
        let numbers = if self.ledger.book().numbers_left() == 0 { NUMBERS_FIRST } else { 0 };
        let request = Request::DelegateDir { directory: Some(directory), client_id: self.client_id, numbers };
        let mut refused = true;
        match self.core.metadata.call(request).await {
            Ok(Response::DirDelegated { lease, before, numbers }) => {
                self.ledger.book().reserve(numbers);
                if let Some(lease) = lease {
                    self.leads_now(directory.inode, lease, before);
                    refused = false;
                }
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(inode = directory.inode.0, %error, "no directory delegation"),
        }
        let not_before = refused.then(|| Instant::now() + REFUSED_FOR);
        self.ledger.book().tried(directory.inode, not_before);
    }

    fn ask_for_numbers(self: &Arc<Self>) {
        let shared = self.clone();
        self.runtime.spawn(async move {
            let request = Request::DelegateDir {
                directory: None,
                client_id: shared.client_id,
                numbers: RESERVED_INODES_MAX,
            };
            let numbers = match shared.core.metadata.call(request).await {
                Ok(Response::DirDelegated { numbers, .. }) => numbers,
                _ => None,
            };
            shared.ledger.book().asked_numbers(numbers);
        });
    }

    /// Creates a node locally, if a delegation permits it; returns it with the delegation.
    pub(super) fn make_ahead(
        self: &Arc<Self>,
        directory: Node,
        name: &Name,
        making: &Making,
        held: bool,
    ) -> Option<(Stat, DirLeaseId)> {
        let Making { what, mode, umask, owner, group } = making;
        let plain = matches!(what, NodeKind::File | NodeKind::Symlink(_) | NodeKind::Fifo | NodeKind::Socket);
        if !plain || owner.is_some() || mode & SPECIAL != 0 {
            return None;
        }
        let at_ms = self.core.now_ms();
        let mut asks = false;
        let made = self.while_led([directory.inode, directory.inode], |[there, _]| {
            let mut ledger = self.ledger.book();
            if ledger.is_full() {
                return None;
            }
            let Some(node) = ledger.number() else {
                asks = ledger.ask_numbers(NUMBERS_LOW);
                return None;
            };
            let (owner, of_group) = ledger.maker(group.as_ref())?.clone();
            let (mode_made, size) = match what {
                NodeKind::Symlink(target) => (LINK_MODE, target.as_bytes().len() as u64),
                _ => (mode & !umask, 0),
            };
            let now_ns = Stat::ns(at_ms);
            let stat = Stat {
                inode: node.inode,
                proof: node.proof,
                kind: what.kind(),
                mode: mode_made,
                owner,
                group: of_group,
                links: 1,
                rdev: 0,
                size,
                version: 0,
                generation: 0,
                atime_ns: now_ns,
                mtime_ns: now_ns,
                ctime_ns: now_ns,
                birth_ns: now_ns,
                width: 0,
                checksum: None,
            };
            if !self.names.make_ahead(Place { directory: there, name }, &stat, at_ms) {
                return None;
            }
            ledger.use_number();
            ledger.push(NameChange::Create(CreateOp {
                directory: there,
                name: name.clone(),
                inode: node.inode,
                what: what.clone(),
                mode: *mode,
                umask: *umask,
                owner: None,
                group: group.clone(),
                at_ms,
                held,
            }));
            asks = ledger.ask_numbers(NUMBERS_LOW);
            Some((stat, there))
        });
        if asks {
            self.ask_for_numbers();
        }
        let made = made?;
        self.ledger.more.notify_one();
        Some(made)
    }

    /// Returns the node of a name, or that there is none, if a delegation makes the cached dentry
    /// authoritative.
    fn sure(&self, directory: InodeId, name: &Name) -> Option<Option<(Node, FileKind)>> {
        self.while_led([directory, directory], |[there, _]| self.names.sure(Place { directory: there, name }))
    }

    /// Removes the name of a node other than a directory locally, if a delegation permits it.
    pub(super) fn remove_ahead(self: &Arc<Self>, directory: InodeId, name: &Name) -> Option<()> {
        let (node, kind) = self.sure(directory, name)??;
        if kind == FileKind::Directory || self.ledger.book().is_full() {
            return None;
        }
        let gone = self.let_go_here(node)?;
        let let_go = gone.was;
        let at_ms = self.core.now_ms();
        let removed = self.while_led([directory, directory], |[there, _]| {
            let mut ledger = self.ledger.book();
            if !self.names.remove_ahead(Place { directory: there, name }, node.inode, at_ms) {
                return None;
            }
            let (name, inode) = (name.clone(), node.inode);
            let removed = UnlinkOp { directory: there, name, inode, at_ms, close: let_go };
            ledger.push(NameChange::Unlink(removed));
            Some(())
        });
        self.let_go_after_all(removed.is_none() && let_go, node.inode);
        self.gone_here(gone, removed.is_some());
        self.ledger.more.notify_one();
        removed
    }

    /// Renames a node other than a directory locally, over nothing or over such a node, if a
    /// delegation permits it.
    pub(super) fn rename_ahead(
        self: &Arc<Self>,
        (from_directory, from): (InodeId, &Name),
        (to_directory, to): (InodeId, &Name),
        replaces: bool,
    ) -> Option<()> {
        let (node, kind) = self.sure(from_directory, from)??;
        let old = self.sure(to_directory, to)?;
        let other =
            |old: &(Node, FileKind)| replaces && old.1 != FileKind::Directory && old.0.inode != node.inode;
        if kind == FileKind::Directory || !old.as_ref().is_none_or(other) || self.ledger.book().is_full() {
            return None;
        }
        let replaced = old.map(|(old, _)| old.inode);
        let gone = match old {
            Some((old, _)) => Some(self.let_go_here(old)?),
            None => None,
        };
        let let_go = gone.as_ref().is_some_and(|gone| gone.was);
        let at_ms = self.core.now_ms();
        let body = self.body(node.inode);
        // Locked meanwhile, so that no reader gets the new name with the old time.
        let mut state = body.as_ref().map(|body| body.state());
        let renamed = self.while_led([from_directory, to_directory], |[from_there, to_there]| {
            let mut ledger = self.ledger.book();
            let places =
                (Place { directory: from_there, name: from }, Place { directory: to_there, name: to });
            if !self.names.rename_ahead(places, (node.inode, replaced), at_ms) {
                return None;
            }
            ledger.push(NameChange::Rename(RenameOp {
                from_directory: from_there,
                from: from.clone(),
                inode: node.inode,
                to_directory: to_there,
                to: to.clone(),
                replaced,
                at_ms,
                close: let_go,
            }));
            Some(())
        });
        if let (Some(()), Some(stat)) = (renamed, state.as_mut().and_then(|state| state.stat.as_mut())) {
            stat.ctime_ns = Stat::changed_ns(stat.ctime_ns, at_ms);
        }
        drop(state);
        if let Some(replaced) = replaced {
            self.let_go_after_all(renamed.is_none() && let_go, replaced);
        }
        if let Some(gone) = gone {
            self.gone_here(gone, renamed.is_some());
        }
        self.ledger.more.notify_one();
        renamed
    }

    /// Queues a close of a file whose removal was not queued, but which the client has already
    /// closed.
    fn let_go_after_all(&self, is_so: bool, inode: InodeId) {
        if is_so {
            self.ledger.book().push(NameChange::Close(inode));
        }
    }

    /// Closes a file at once that was created here and closed by its programs without a write.
    pub(super) fn let_go_unwritten(&self, body: &super::body::Body<M, D>) -> bool {
        let inode = body.node.inode;
        let Ok(_holding) = body.holding.try_write() else { return false };
        let mut state = body.state();
        if !state.is_unwritten() || body.open_count() > 0 || lock(&self.locks).has(inode) {
            return false;
        }
        let unknown = self.ledger.is_own(inode);
        if !unknown && !self.drop_lease(inode) {
            // Without a lease it is closed as any other file.
            return false;
        }
        {
            let mut ledger = self.ledger.book();
            if ledger.let_go(inode) {
                ledger.push(NameChange::Close(inode));
            }
        }
        (state.let_go, state.seen_under) = (true, 0);
        drop(state);
        self.leave(inode);
        self.ledger.more.notify_one();
        true
    }

    /// Records a new delegation, which replaces a read lease on the directory.
    fn leads_now(self: &Arc<Self>, inode: InodeId, lease: NodeLease, before: Option<u64>) {
        if let Some(before) = before.filter(|before| *before < lease.number)
            && self.take_over_lease(inode, before, lease)
        {
            return;
        }
        self.given(inode, lease);
    }

    /// Takes over the leases that the server granted with acknowledged changes.
    fn was_told(self: &Arc<Self>, changes: &[NameChange], leases: &[InodeLease]) {
        for change in changes {
            let NameChange::Create(CreateOp { inode, held: true, .. }) = change else { continue };
            let lease = leases.iter().find(|on| on.inode == *inode).map(|on| on.lease);
            let is_ours = self.ledger.is_own(*inode);
            match lease {
                Some(lease) if is_ours => {
                    if let Some(body) = self.body(*inode) {
                        let mut state = body.state();
                        if state.seen_under == OWN {
                            state.seen_under = lease.number;
                        }
                    }
                    self.given(*inode, lease);
                }
                // It was closed meanwhile; the close is queued.
                Some(lease) => self.not_ours(*inode, lease),
                None => {}
            }
        }
    }

    /// Drops changes that the server refused or that were lost: invalidates the caches and records
    /// the error.
    fn give_up(&self, changes: Vec<NameChange>, why: impl Fn() -> ClientError) {
        for change in &changes {
            tracing::warn!(error = %why(), ?change, "directory change lost; reported at the next fsync");
            for directory in change.directories() {
                self.names.doubt(directory.inode, change.nodes());
            }
            match change {
                NameChange::Create(CreateOp { inode, .. }) => {
                    if let Some(body) = self.body(*inode) {
                        body.fail(why());
                    }
                }
                // Fsync of the file reports it, as does fsync of a directory; the file's bytes are
                // not affected.
                NameChange::Rename(RenameOp { inode, .. }) => {
                    if let Some(body) = self.body(*inode).filter(|body| body.open_count() > 0) {
                        body.state().error.get_or_insert_with(&why);
                    }
                }
                NameChange::Unlink(_) | NameChange::Close(_) => {}
            }
            if !matches!(change, NameChange::Close(_)) {
                self.ledger.book().fail(why());
            }
        }
    }

    /// Sends the next batch of local changes.
    async fn tell_names(self: &Arc<Self>) {
        let changes = self.ledger.book().send();
        if changes.is_empty() {
            return;
        }
        let place = self.turns_place().await;
        let Ok(change) = ChangeRequest::new(Request::NameBatch { changes: changes.clone() }) else { return };
        let request = Request::Once { id: place.turn(), request: change };
        // This clock also counts the time that the machine is suspended.
        let until_ms = self.core.now_ms().saturating_add(REMEMBERED_MS);
        let mut pause = PAUSE_MIN;
        let answer = loop {
            match self.core.metadata.call(request.clone()).await {
                Err(error) if passes(&error) => {
                    if self.core.now_ms() > until_ms || self.is_alone() {
                        break Err(ClientError::OutcomeUnknown { request: "NameBatch" });
                    }
                    tracing::debug!(%error, "directory changes not acknowledged; retrying");
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                answer => break answer,
            }
        };
        match answer {
            Ok(Response::NameBatchApplied { done, leases, failure }) => {
                let done = usize::from(done).min(changes.len());
                self.was_told(&changes[..done], &leases);
                self.ledger.book().told(done);
                if let Some(failure) = failure {
                    let why = || ClientError::Refused(failure.clone());
                    let first = self.ledger.book().pop();
                    let fenced = is_fenced(&why());
                    let there: Vec<DirLeaseId> =
                        first.iter().filter(|_| fenced).flat_map(NameChange::directories).collect();
                    if matches!(first, Some(NameChange::Create(_))) && is_invalid(&why()) {
                        self.ledger.book().forget_numbers();
                        if self.ledger.book().ask_numbers(NUMBERS_LOW) {
                            self.ask_for_numbers();
                        }
                    }
                    self.give_up(first.into_iter().collect(), why);
                    if let [there] = there[..] {
                        // All other changes under that delegation would be refused too. Of two
                        // directories the next refusal shows which one it is.
                        let gone = self.ledger.book().give_up(there);
                        self.give_up(gone, why);
                    }
                    there.iter().for_each(|there| self.lead_is_lost(there.inode, there.lease));
                }
            }
            Ok(_) => self.give_up_all(changes.len(), &|| ClientError::OTHER_ANSWER),
            Err(error) => {
                let why = error.to_string();
                tracing::error!(error = %why, "metadata server refused directory changes; they are lost");
                self.give_up_all(changes.len(), &|| ClientError::NamesNotTold);
            }
        }
        drop(place);
        self.ledger.moved.notify_waiters();
    }

    /// Whether only the write-back task still uses this file system.
    fn is_alone(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1
    }

    fn give_up_all(&self, count: usize, why: &dyn Fn() -> ClientError) {
        for _ in 0..count {
            let change = self.ledger.book().pop();
            self.give_up(change.into_iter().collect(), why);
        }
    }
}

/// Flushes local changes in the background until the file system is dropped.
pub(super) async fn tell<M: Metadata, D: Devices>(weak: Weak<Shared<M, D>>) {
    let Some(ledger) = weak.upgrade().map(|shared| shared.ledger.clone()) else { return };
    loop {
        if ledger.book().is_empty() {
            let _ = timeout(PACE, ledger.more.notified()).await;
        } else {
            let Some(shared) = weak.upgrade() else { return };
            let waits = ledger.book().waits_for_more();
            if waits {
                let _ = timeout(GATHER, ledger.hurry.notified()).await;
            }
            shared.tell_names().await;
            continue;
        }
        if weak.strong_count() == 0 {
            return;
        }
    }
}

const _: () = assert!(TOGETHER_MAX <= sealstone_mds_protocol::NAME_CHANGES_MAX && CHANGES_MAX > TOGETHER_MAX);
