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
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sealstone_mds_protocol::{
    ChangeRequest, ClientId, DeviceId, InodeId, Lock, Method, Node, Request, Response, Stat,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::async_close_table::AsyncCloses;
use super::dentry_cache::DentryCache;
use super::errors::is_transient;
use super::lease_manager::LeaseManager;
use super::locks::GrantedLocks;
use super::name_queue::NameOpQueue;
use super::open_inode::OpenInode;
use super::request_slots::{RequestSlots, SlotGuard};
use crate::budget::MemoryPermit;
use crate::open::{ClientCore, DeviceEpoch};
use crate::put::joined;
use crate::{ClientError, Devices, Metadata};

/// First pause before a retry; it doubles up to [`PAUSE_MAX`].
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause before a retry.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long a change is retried: less than the replay cache of the server keeps its answer.
pub(super) const CHANGE_RETRY_MS: u64 = 23 * 3600 * 1000;

/// Maximum files that an operation on all files handles in parallel.
const PARALLEL_MAX: usize = 256;

/// Options of a file system of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodesOptions {
    /// Security method for objects; the server may require a stronger one.
    pub method: Method,
    /// How long a request to an unreachable server or device is retried; none for no limit.
    pub timeout: Option<Duration>,
    /// How long names and attributes are cached without a lease.
    pub attr_timeout: Duration,
    /// Whether leases are used, which keep files and attributes cached until another client needs
    /// them.
    pub leases: bool,
    /// Maximum closed files that leases keep cached.
    pub cached_files_max: usize,
    /// Whether directory delegations are used: names are then changed locally, and are durable
    /// after a sync.
    pub directory_delegations: bool,
}

impl Default for NodesOptions {
    fn default() -> Self {
        Self {
            method: Method::AllData,
            timeout: Some(Duration::from_secs(60)),
            attr_timeout: Duration::from_secs(1),
            leases: false,
            cached_files_max: 2_048,
            directory_delegations: true,
        }
    }
}

/// The shared state of a file system.
pub(super) struct Shared<M, D> {
    pub(super) core: Arc<ClientCore<M, D>>,
    pub(super) options: NodesOptions,
    pub(super) client_id: ClientId,
    slots: RequestSlots,
    /// Runs the background tasks, since callers may be threads outside the runtime.
    pub(super) runtime: tokio::runtime::Handle,
    /// Last known boot epoch of each device.
    epochs: Mutex<BTreeMap<DeviceId, u16>>,
    open_inodes: Mutex<BTreeMap<InodeId, Weak<OpenInode<M, D>>>>,
    /// Locks that were granted to programs on this client.
    pub(super) locks: Mutex<GrantedLocks>,
    pub(super) leases: LeaseManager<M, D>,
    pub(super) dentries: DentryCache,
    pub(super) name_queue: Arc<NameOpQueue>,
    pub(super) async_closes: Arc<AsyncCloses>,
}

impl<M: Metadata, D: Devices> Shared<M, D> {
    pub(super) fn new(core: Arc<ClientCore<M, D>>, options: NodesOptions) -> Self {
        let mut number = [0; 8];
        core.environment.fill_random(&mut number);
        let client_id = ClientId { number: u64::from_be_bytes(number) };
        let recall_link = if options.leases { core.metadata.second() } else { None };
        Self {
            leases: LeaseManager::new(recall_link),
            core,
            options,
            client_id,
            slots: RequestSlots::new(client_id),
            runtime: tokio::runtime::Handle::current(),
            epochs: Mutex::default(),
            open_inodes: Mutex::default(),
            locks: Mutex::default(),
            dentries: DentryCache::new(),
            name_queue: Arc::default(),
            async_closes: Arc::default(),
        }
    }

    /// Runs `attempt` until it succeeds, fails permanently, or the timeout ends.
    pub(super) async fn with_retry<T, F>(&self, attempt: impl FnMut() -> F) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let begun = Instant::now();
        self.with_retry_since(|| begun, attempt).await
    }

    /// As [`Self::with_retry`], with a start of the timeout that may move.
    pub(super) async fn with_retry_since<T, F>(
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
                    if is_transient(&error)
                        && self.options.timeout.is_none_or(|max| begun().elapsed() < max) =>
                {
                    tracing::debug!(%error, "retrying");
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                outcome => return outcome,
            }
        }
    }

    /// Sends a request to the metadata server, with retries.
    pub(super) async fn call(&self, request: &Request) -> Result<Response, ClientError> {
        self.flush_dependencies_of(request).await?;
        self.with_retry(|| self.core.metadata.call(request.clone())).await
    }

    /// Sends a change that the server does exactly once, with retries.
    pub(super) async fn change_once(&self, request: Request) -> Result<Response, ClientError> {
        self.flush_dependencies_of(&request).await?;
        let name = request.name();
        let change = ChangeRequest::new(request)
            .map_err(|_| ClientError::Protocol("the request cannot be sent as an exactly-once change"))?;
        let slot = self.slots.acquire().await;
        let request = Request::Once { id: slot.request_id(), request: change };
        // This clock also counts the time that the machine is suspended.
        let until_ms = self.core.now_ms().saturating_add(CHANGE_RETRY_MS);
        self.with_retry(|| async {
            if self.core.now_ms() > until_ms {
                // The replay cache may not have the answer any more.
                return Err(ClientError::OutcomeUnknown { request: name });
            }
            self.core.metadata.call(request.clone()).await
        })
        .await
    }

    /// Waits for a slot for an exactly-once request.
    pub(super) async fn acquire_slot(&self) -> SlotGuard<'_> {
        self.slots.acquire().await
    }

    /// As [`Self::change_once`], for an answer with attributes.
    pub(super) async fn change_stat(&self, request: Request) -> Result<Stat, ClientError> {
        match self.change_once(request).await? {
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

    pub(super) fn device_epoch(&self, device: DeviceId) -> Option<DeviceEpoch> {
        self.epochs.lock().get(&device).map(|epoch| (device, *epoch))
    }

    pub(super) fn set_device_epoch(&self, (device, epoch): DeviceEpoch) {
        self.epochs.lock().insert(device, epoch);
    }

    /// Returns the open inode of a node, if there is one.
    pub(super) fn open_inode(&self, inode: InodeId) -> Option<Arc<OpenInode<M, D>>> {
        self.open_inodes.lock().get(&inode).and_then(Weak::upgrade)
    }

    /// Returns the open inode of a node; creates it if there is none.
    pub(super) fn open_inode_or_new(self: &Arc<Self>, node: Node) -> Arc<OpenInode<M, D>> {
        let mut open_inodes = self.open_inodes.lock();
        if let Some(open_inode) = open_inodes.get(&node.inode).and_then(Weak::upgrade) {
            return open_inode;
        }
        let open_inode = Arc::new(OpenInode::new(self.clone(), node));
        open_inodes.insert(node.inode, Arc::downgrade(&open_inode));
        open_inode
    }

    /// Removes an open inode that nothing uses any more.
    pub(super) fn evict_if_unused(&self, inode: InodeId) {
        let mut open_inodes = self.open_inodes.lock();
        if open_inodes.get(&inode).is_some_and(|open_inode| open_inode.strong_count() == 0) {
            open_inodes.remove(&inode);
        }
    }

    /// Removes an open inode; a later open creates a new one.
    pub(super) fn evict(&self, inode: InodeId) {
        self.open_inodes.lock().remove(&inode);
    }

    /// Returns all open inodes.
    pub(super) fn open_inodes(&self) -> Vec<Arc<OpenInode<M, D>>> {
        self.open_inodes.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Reserves memory, waiting for it; buffered bytes of all files are flushed meanwhile.
    pub(super) async fn wait_for_memory(self: &Arc<Self>, bytes: usize) -> MemoryPermit {
        if let Some(permit) = self.core.budget.try_take(bytes) {
            return permit;
        }
        self.free_memory();
        // Repeated, since another piece may become complete meanwhile.
        let take = self.core.budget.take(bytes);
        tokio::pin!(take);
        loop {
            tokio::select! {
                permit = &mut take => return permit,
                () = sleep(PAUSE_MAX) => self.free_memory(),
            }
        }
    }

    /// Runs `work` on these inodes in parallel, so that one that waits for its device does not
    /// delay the others.
    ///
    /// # Errors
    /// The first error of any of them, after all have ended.
    pub(super) async fn for_each_inode<F>(
        self: &Arc<Self>,
        open_inodes: impl IntoIterator<Item = Arc<OpenInode<M, D>>>,
        work: impl Fn(Arc<OpenInode<M, D>>) -> F,
    ) -> Result<(), ClientError>
    where
        F: Future<Output = Result<(), ClientError>> + Send + 'static,
    {
        let (mut works, mut outcome) = (JoinSet::new(), Ok(()));
        for open_inode in open_inodes {
            if works.len() >= PARALLEL_MAX
                && let Some(done) = works.join_next().await
            {
                outcome = outcome.and(joined(done));
            }
            works.spawn_on(work(open_inode), &self.runtime);
        }
        while let Some(done) = works.join_next().await {
            outcome = outcome.and(joined(done));
        }
        outcome
    }

    /// Sends and flushes everything in the background, and drops read-ahead blocks at once.
    fn free_memory(self: &Arc<Self>) {
        for open_inode in self.open_inodes() {
            {
                let mut state = open_inode.state();
                state.readahead.invalidate(0..u64::MAX);
                if state.buffer.has_no_bytes() || core::mem::replace(&mut state.tasks.freeing_memory, true) {
                    continue;
                }
            }
            self.runtime.spawn(async move {
                open_inode.flush_all().await;
                open_inode.state().tasks.freeing_memory = false;
            });
        }
    }
}
