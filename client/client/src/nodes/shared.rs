//! State that all open files of one mount share: connections, retry policy, memory.
//!
//! Does: retries requests to the metadata server within the timeout; remembers boot epochs of
//! devices; frees memory when it is short.
//! Does not: know offsets.
//! Contract: a request that is repeated after a lost answer is idempotent, or the server has it in
//! its replay cache.

use core::future::Future;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sealstone_initiator::{OsdError, SessionError};
use sealstone_mds_protocol::{
    ChangeRequest, DeviceId, ErrorCode, Failure, InodeId, Method, Request, Response, Stat,
};
use sealstone_mds_protocol::{ClientId, Lock, Node};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::body::Body;
use super::closing::Closings;
use super::leases::Leases;
use super::ledger::Ledger;
use super::locks::Locks;
use super::names::Names;
use super::turns::{Place, Turns};
use crate::budget::Lease;
use crate::open::{Core, Life};
use crate::put::joined;
use crate::{ClientError, Devices, Metadata};

/// First pause before a retry; it doubles up to [`PAUSE_MAX`].
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause before a retry.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long a change is retried: less than the replay cache of the server keeps its answer.
pub(super) const REMEMBERED_MS: u64 = 23 * 3600 * 1000;

/// Maximum files that an operation on all files handles in parallel.
const AT_ONCE_MAX: usize = 256;

/// Options of a file system of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodesOptions {
    /// Security method for objects; the server may require a stronger one.
    pub method: Method,
    /// How long a request to an unreachable server or device is retried; none for no limit.
    pub timeout: Option<Duration>,
    /// How long names and attributes are cached without a lease.
    pub attributes_for: Duration,
    /// Whether leases are used, which keep files and attributes cached until another client needs
    /// them.
    pub leases: bool,
    /// Maximum closed files that leases keep cached.
    pub leases_kept: usize,
    /// Whether directory delegations are used: names are then changed locally, and are durable
    /// after a sync.
    pub names_ahead: bool,
}

impl Default for NodesOptions {
    fn default() -> Self {
        Self {
            method: Method::AllData,
            timeout: Some(Duration::from_secs(60)),
            attributes_for: Duration::from_secs(1),
            leases: false,
            leases_kept: 2_048,
            names_ahead: true,
        }
    }
}

/// The shared state of a file system.
pub(super) struct Shared<M, D> {
    pub(super) core: Arc<Core<M, D>>,
    pub(super) options: NodesOptions,
    pub(super) client_id: ClientId,
    turns: Turns,
    /// Runs the background tasks, since callers may be threads outside the runtime.
    pub(super) runtime: tokio::runtime::Handle,
    /// Last known boot epoch of each device.
    lives: Mutex<BTreeMap<DeviceId, u16>>,
    bodies: Mutex<BTreeMap<InodeId, Weak<Body<M, D>>>>,
    /// Locks that were granted to programs on this client.
    pub(super) locks: Mutex<Locks>,
    pub(super) leases: Leases<M, D>,
    pub(super) names: Names,
    pub(super) ledger: Arc<Ledger>,
    pub(super) closings: Arc<Closings>,
}

impl<M: Metadata, D: Devices> Shared<M, D> {
    pub(super) fn new(core: Arc<Core<M, D>>, options: NodesOptions) -> Self {
        let mut number = [0; 8];
        core.environment.fill_random(&mut number);
        let client_id = ClientId { number: u64::from_be_bytes(number) };
        let second = if options.leases { core.metadata.second() } else { None };
        Self {
            leases: Leases::new(second),
            core,
            options,
            client_id,
            turns: Turns::new(client_id),
            runtime: tokio::runtime::Handle::current(),
            lives: Mutex::default(),
            bodies: Mutex::default(),
            locks: Mutex::default(),
            names: Names::new(),
            ledger: Arc::default(),
            closings: Arc::default(),
        }
    }

    /// Runs `attempt` until it succeeds, fails permanently, or the timeout ends.
    pub(super) async fn patiently<T, F>(&self, attempt: impl FnMut() -> F) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let begun = Instant::now();
        self.patiently_since(|| begun, attempt).await
    }

    /// As [`Self::patiently`], with a start of the timeout that may move.
    pub(super) async fn patiently_since<T, F>(
        &self,
        begun: impl Fn() -> Instant,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let mut pause = PAUSE_MIN;
        loop {
            match attempt().await {
                Err(error)
                    if passes(&error) && self.options.timeout.is_none_or(|max| begun().elapsed() < max) =>
                {
                    tracing::debug!(%error, "trying again");
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                outcome => return outcome,
            }
        }
    }

    /// Sends a request to the metadata server, with retries.
    pub(super) async fn call(&self, request: &Request) -> Result<Response, ClientError> {
        self.told_before(request).await?;
        self.patiently(|| self.core.metadata.call(request.clone())).await
    }

    /// Sends a change that the server does exactly once, with retries.
    pub(super) async fn change(&self, request: Request) -> Result<Response, ClientError> {
        self.told_before(&request).await?;
        let name = request.name();
        let change = ChangeRequest::new(request)
            .map_err(|_| ClientError::Protocol("the request cannot be sent as an exactly-once change"))?;
        let place = self.turns.take().await;
        let request = Request::Once { id: place.turn(), request: change };
        // This clock also counts the time that the machine is suspended.
        let until_ms = self.core.now_ms().saturating_add(REMEMBERED_MS);
        self.patiently(|| async {
            if self.core.now_ms() > until_ms {
                // The replay cache may not have the answer any more.
                return Err(ClientError::OutcomeUnknown { request: name });
            }
            self.core.metadata.call(request.clone()).await
        })
        .await
    }

    /// Waits for a slot for an exactly-once request.
    pub(super) async fn turns_place(&self) -> Place<'_> {
        self.turns.take().await
    }

    /// As [`Self::change`], for an answer with attributes.
    pub(super) async fn change_stat(&self, request: Request) -> Result<Stat, ClientError> {
        match self.change(request).await? {
            Response::Stat { stat } => Ok(stat),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// As [`Self::call`], for an answer with attributes.
    pub(super) async fn call_stat(&self, request: &Request) -> Result<Stat, ClientError> {
        match self.call(request).await? {
            Response::Stat { stat } => Ok(stat),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// As [`Self::call`], for an answer without data.
    pub(super) async fn call_done(&self, request: &Request) -> Result<(), ClientError> {
        match self.call(request).await? {
            Response::Done {} | Response::Stat { .. } => Ok(()),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    pub(super) async fn lock_node(
        &self,
        node: Node,
        lock: Lock,
        test: bool,
        reclaim: bool,
    ) -> Result<Option<Lock>, ClientError> {
        let request = Request::LockNode { node, client_id: self.client_id, lock, test, reclaim };
        match self.call(&request).await? {
            Response::Locked { conflict } => Ok(conflict),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    pub(super) fn life(&self, device: DeviceId) -> Option<Life> {
        lock(&self.lives).get(&device).map(|epoch| (device, *epoch))
    }

    pub(super) fn set_life(&self, (device, epoch): Life) {
        lock(&self.lives).insert(device, epoch);
    }

    /// Returns the open inode of a node, if there is one.
    pub(super) fn body(&self, inode: InodeId) -> Option<Arc<Body<M, D>>> {
        lock(&self.bodies).get(&inode).and_then(Weak::upgrade)
    }

    /// Returns the open inode of a node; creates it if there is none.
    pub(super) fn body_or_make(self: &Arc<Self>, node: Node) -> Arc<Body<M, D>> {
        let mut bodies = lock(&self.bodies);
        if let Some(body) = bodies.get(&node.inode).and_then(Weak::upgrade) {
            return body;
        }
        let body = Arc::new(Body::new(self.clone(), node));
        bodies.insert(node.inode, Arc::downgrade(&body));
        body
    }

    /// Removes an open inode that nothing uses any more.
    pub(super) fn forget(&self, inode: InodeId) {
        let mut bodies = lock(&self.bodies);
        if bodies.get(&inode).is_some_and(|body| body.strong_count() == 0) {
            bodies.remove(&inode);
        }
    }

    /// Removes an open inode; a later open creates a new one.
    pub(super) fn leave(&self, inode: InodeId) {
        lock(&self.bodies).remove(&inode);
    }

    /// Returns all open inodes.
    pub(super) fn bodies(&self) -> Vec<Arc<Body<M, D>>> {
        lock(&self.bodies).values().filter_map(Weak::upgrade).collect()
    }

    /// Reserves memory, waiting for it; buffered bytes of all files are flushed meanwhile.
    pub(super) async fn room(self: &Arc<Self>, bytes: usize) -> Lease {
        if let Some(lease) = self.core.budget.try_take(bytes) {
            return lease;
        }
        self.relieve();
        // Repeated, since another piece may become complete meanwhile.
        let take = self.core.budget.take(bytes);
        tokio::pin!(take);
        loop {
            tokio::select! {
                lease = &mut take => return lease,
                () = sleep(PAUSE_MAX) => self.relieve(),
            }
        }
    }

    /// Runs `work` on these inodes in parallel, so that one that waits for its device does not
    /// delay the others.
    ///
    /// # Errors
    /// The first error of any of them, after all have ended.
    pub(super) async fn with_all<F>(
        self: &Arc<Self>,
        bodies: impl IntoIterator<Item = Arc<Body<M, D>>>,
        work: impl Fn(Arc<Body<M, D>>) -> F,
    ) -> Result<(), ClientError>
    where
        F: Future<Output = Result<(), ClientError>> + Send + 'static,
    {
        let (mut works, mut outcome) = (JoinSet::new(), Ok(()));
        for body in bodies {
            if works.len() >= AT_ONCE_MAX
                && let Some(done) = works.join_next().await
            {
                outcome = outcome.and(joined(done));
            }
            works.spawn_on(work(body), &self.runtime);
        }
        while let Some(done) = works.join_next().await {
            outcome = outcome.and(joined(done));
        }
        outcome
    }

    /// Sends and flushes everything in the background, and drops read-ahead blocks at once.
    fn relieve(self: &Arc<Self>) {
        for body in self.bodies() {
            {
                let mut state = body.state();
                state.ahead.forget(0..u64::MAX);
                let here = !state.held.is_empty() || !state.dirty.is_empty();
                if !here || core::mem::replace(&mut state.yielding, true) {
                    continue;
                }
            }
            self.runtime.spawn(async move {
                body.give_way().await;
                body.state().yielding = false;
            });
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the server denied the request.
pub(super) fn is_denied(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code.is_denial())
}

/// Whether the server has fenced this client: it did not return a lease in time, or was silent for
/// too long.
pub(super) fn is_fenced(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::Fenced)
}

/// Returns the error of a fenced client.
pub(super) fn fenced() -> ClientError {
    Failure::new(ErrorCode::Fenced, "").into()
}

/// Whether the server may not know that this client has the file open.
pub(super) fn is_invalid(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::Invalid)
}

/// Whether a quota was exceeded.
pub(super) fn is_over_quota(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::Quota)
}

/// Whether the error is transient: a restarting server or device, or an interrupted network.
pub(super) fn passes(error: &ClientError) -> bool {
    match error {
        ClientError::Connection(_) | ClientError::LoginBusy { .. } => true,
        ClientError::Refused(failure) => failure.code == ErrorCode::Busy,
        ClientError::Device { error, .. } => match error {
            OsdError::Busy => true,
            error if error.is_about_time() => true,
            // All operations here are idempotent.
            OsdError::OutcomeUnknown { .. } => true,
            OsdError::Session(
                SessionError::Unreachable(_)
                | SessionError::LoginTimeout(_)
                | SessionError::NexusLost
                | SessionError::Closed
                | SessionError::Timeout(_),
            ) => true,
            _ => false,
        },
        _ => false,
    }
}
