//! What all open files of one mount share: the way to the servers, patience, the memory that is spoken for.
//!
//! Does: ask the metadata server until it answers or patience ends; remember the lives of devices; make room when memory
//! is short. Does not: know offsets.
//! Contract: what is asked again after a lost answer is the same when done twice, or the server remembers that it was done.

use core::future::Future;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sealstone_initiator::{OsdError, SessionError};
use sealstone_mds_protocol::{
    Change, DeviceId, ErrorCode, Failure, InodeId, Method, Request, Response, Stat,
};
use sealstone_mds_protocol::{HolderId, Lock, Node};
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

/// The first pause before something is tried again; it doubles up to [`PAUSE_MAX`].
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long a change is asked for again: somewhat less than a server remembers it.
pub(super) const REMEMBERED_MS: u64 = 23 * 3600 * 1000;

/// Files that are worked on at once at most, where that is done for all.
const AT_ONCE_MAX: usize = 256;

/// How nodes are worked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodesOptions {
    /// Security method for objects; the server may raise it.
    pub method: Method,
    /// How long something that cannot be reached is waited for before it is an error; none: for ever.
    pub timeout: Option<Duration>,
    /// How long names and attributes that the server told are believed without asking again.
    pub attributes_for: Duration,
    /// Are leases asked for, by which files and attributes are believed until somebody else wants them?
    pub leases: bool,
    /// Files that are kept by them when nobody has them open here any more, at most.
    pub leases_kept: usize,
    /// Are names changed here first, in directories that nobody else uses? They are durable after a sync then, as bytes are.
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

/// See the module.
pub(super) struct Shared<M, D> {
    pub(super) core: Arc<Core<M, D>>,
    pub(super) options: NodesOptions,
    pub(super) holder: HolderId,
    turns: Turns,
    /// Where tasks run that nobody waits for: callers may be threads of their own.
    pub(super) runtime: tokio::runtime::Handle,
    /// Boot epoch of each device, as it was last told.
    lives: Mutex<BTreeMap<DeviceId, u16>>,
    bodies: Mutex<BTreeMap<InodeId, Weak<Body<M, D>>>>,
    /// What programs here have locked.
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
        let holder = HolderId { number: u64::from_be_bytes(number) };
        let second = if options.leases { core.metadata.second() } else { None };
        Self {
            leases: Leases::new(second),
            core,
            options,
            holder,
            turns: Turns::new(holder),
            runtime: tokio::runtime::Handle::current(),
            lives: Mutex::default(),
            bodies: Mutex::default(),
            locks: Mutex::default(),
            names: Names::new(),
            ledger: Arc::default(),
            closings: Arc::default(),
        }
    }

    /// Does `attempt` until it succeeds, fails for good, or patience ends.
    pub(super) async fn patiently<T, F>(&self, attempt: impl FnMut() -> F) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let begun = Instant::now();
        self.patiently_since(|| begun, attempt).await
    }

    /// The same where the wait began before, or begins anew whenever something is done.
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

    /// Asks the metadata server, patiently.
    pub(super) async fn call(&self, request: &Request) -> Result<Response, ClientError> {
        self.told_before(request).await?;
        self.patiently(|| self.core.metadata.call(request.clone())).await
    }

    /// Has something changed, once, however often it has to be asked for.
    pub(super) async fn change(&self, request: Request) -> Result<Response, ClientError> {
        self.told_before(&request).await?;
        let name = request.name();
        let change =
            Change::new(request).map_err(|_| ClientError::Protocol("not a change that has a turn"))?;
        let place = self.turns.take().await;
        let request = Request::Once { turn: place.turn(), change };
        // The clock that goes on while this machine sleeps.
        let until_ms = self.core.now_ms().saturating_add(REMEMBERED_MS);
        self.patiently(|| async {
            if self.core.now_ms() > until_ms {
                // The server may have forgotten that it was done.
                return Err(ClientError::OutcomeUnknown { request: name });
            }
            self.core.metadata.call(request.clone()).await
        })
        .await
    }

    /// Waits for a number for something that is to be done once.
    pub(super) async fn turns_place(&self) -> Place<'_> {
        self.turns.take().await
    }

    /// The same, where the answer is what a node is now.
    pub(super) async fn change_stat(&self, request: Request) -> Result<Stat, ClientError> {
        match self.change(request).await? {
            Response::Stat { stat } => Ok(stat),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Asks for what a node is now.
    pub(super) async fn call_stat(&self, request: &Request) -> Result<Stat, ClientError> {
        match self.call(request).await? {
            Response::Stat { stat } => Ok(stat),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// The same, where it may be nothing.
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
        again: bool,
    ) -> Result<Option<Lock>, ClientError> {
        let request = Request::LockNode { node, holder: self.holder, lock, test, again };
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

    /// The open file of a node, if it is open.
    pub(super) fn body(&self, inode: InodeId) -> Option<Arc<Body<M, D>>> {
        lock(&self.bodies).get(&inode).and_then(Weak::upgrade)
    }

    /// The open file of a node; made if it is not open.
    pub(super) fn body_or_make(self: &Arc<Self>, node: Node) -> Arc<Body<M, D>> {
        let mut bodies = lock(&self.bodies);
        if let Some(body) = bodies.get(&node.inode).and_then(Weak::upgrade) {
            return body;
        }
        let body = Arc::new(Body::new(self.clone(), node));
        bodies.insert(node.inode, Arc::downgrade(&body));
        body
    }

    /// Forgets an open file that is open no more.
    pub(super) fn forget(&self, inode: InodeId) {
        let mut bodies = lock(&self.bodies);
        if bodies.get(&inode).is_some_and(|body| body.strong_count() == 0) {
            bodies.remove(&inode);
        }
    }

    /// Nobody here has a file any more; who opens it again begins anew.
    pub(super) fn leave(&self, inode: InodeId) {
        lock(&self.bodies).remove(&inode);
    }

    /// All open files.
    pub(super) fn bodies(&self) -> Vec<Arc<Body<M, D>>> {
        lock(&self.bodies).values().filter_map(Weak::upgrade).collect()
    }

    /// Memory for so many bytes; whoever holds some that a device could have is made to send it first.
    pub(super) async fn room(self: &Arc<Self>, bytes: usize) -> Lease {
        if let Some(lease) = self.core.budget.try_take(bytes) {
            return lease;
        }
        self.relieve();
        // Another piece may become whole while we wait, and then nobody would send it.
        let take = self.core.budget.take(bytes);
        tokio::pin!(take);
        loop {
            tokio::select! {
                lease = &mut take => return lease,
                () = sleep(PAUSE_MAX) => self.relieve(),
            }
        }
    }

    /// Does something with these open files, many at once: one that waits for its device keeps no other from it.
    ///
    /// # Errors
    /// The first of any of them, when all are done.
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

    /// Has everything sent and proven, in the background, one that waits for its device beside the others. What was read
    /// ahead goes at once.
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

/// Did the server refuse it to us?
pub(super) fn is_denied(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code.is_denial())
}

/// Did others go on, since a lease was not given back in time, or the server did not hear of us for too long?
pub(super) fn is_fenced(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::Fenced)
}

/// What whoever lost a lock is told.
pub(super) fn fenced() -> ClientError {
    Failure::new(ErrorCode::Fenced, "").into()
}

/// Does the server not know that we hold the file, perhaps?
pub(super) fn is_invalid(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::Invalid)
}

/// Does a quota not allow it?
pub(super) fn is_over_quota(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::Quota)
}

/// Is it of a kind that goes away by itself: a server or device that restarts, a network that comes back?
pub(super) fn passes(error: &ClientError) -> bool {
    match error {
        ClientError::Connection(_) | ClientError::LoginBusy { .. } => true,
        ClientError::Refused(failure) => failure.code == ErrorCode::Busy,
        ClientError::Device { error, .. } => match error {
            OsdError::Busy => true,
            error if error.is_about_time() => true,
            // All operations here may be done twice.
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
