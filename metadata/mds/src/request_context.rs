//! The request that a thread is working on, which decides whether a change recalls leases.
//!
//! Does: keeps the context while a request runs, and recalls delegations of directories that it
//! reads.
//! Does not: find conflicts; `leases` does.
//! Truth: docs/standards/mds/leases.md §5.11.

use std::cell::RefCell;
use std::sync::Arc;

use sealstone_mds_protocol::InodeId;

use crate::error::Result;
use crate::leases::{self, ClientKey, ConflictVerdict, Leases};

/// The request that this thread is working on.
#[derive(Clone, Debug)]
pub(crate) struct RequestContext {
    pub(crate) leases: Arc<Leases>,
    /// Read point from before the request read anything.
    pub(crate) read_point: u64,
    pub(crate) client: Option<ClientKey>,
    /// Whether it reports changes made under a lease, perhaps of before the restart.
    pub(crate) reports_writes: bool,
    pub(crate) now_ms: u64,
}

thread_local! {
    /// `None`: the server itself, which needs no conflict check.
    static CURRENT_REQUEST: RefCell<Option<RequestContext>> = const { RefCell::new(None) };
}

/// Runs `work` with this request context.
pub(crate) fn with_request_context<T>(
    request_context: Option<RequestContext>,
    work: impl FnOnce() -> T,
) -> T {
    struct Back(Option<RequestContext>);
    impl Drop for Back {
        fn drop(&mut self) {
            CURRENT_REQUEST.set(self.0.take());
        }
    }
    let _back = Back(CURRENT_REQUEST.replace(request_context));
    work()
}

/// Runs `work` without a request context: for changes that no client sees, or that the lease's
/// client knows of.
pub(crate) fn as_server<T>(work: impl FnOnce() -> T) -> T {
    with_request_context(None, work)
}

/// Recalls another client's delegation before names of the directory are read (Busy).
pub(crate) fn recall_dir_writer(id: InodeId) -> Result<()> {
    CURRENT_REQUEST.with_borrow(|request_context| {
        let Some(RequestContext { leases, read_point, client, now_ms, .. }) = request_context else {
            return Ok(());
        };
        match leases.recall_dir_writer(id, client.as_ref(), *read_point, *now_ms) {
            ConflictVerdict::Free => return Ok(()),
            ConflictVerdict::Wait => {}
            ConflictVerdict::Fence(lost) => leases.queue_fence(id, lost),
        }
        Err(leases::busy())
    })
}

/// Advances the read point before a transaction begins.
pub(crate) fn advance_read_point() {
    CURRENT_REQUEST.with_borrow_mut(|request_context| {
        if let Some(request_context) = request_context {
            request_context.read_point = request_context.leases.read_point();
        }
    });
}

/// Returns the context of the request that this thread is working on.
pub(crate) fn current_request() -> Option<RequestContext> {
    CURRENT_REQUEST.with_borrow(Clone::clone)
}
