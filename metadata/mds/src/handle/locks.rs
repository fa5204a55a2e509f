//! Requests about locks.
//!
//! Contract: before a client gets its first lock on a file, that is recorded, so that a restarted
//! server knows whom to fence. A lock of a silent client is not granted to others before it is
//! fenced.

use sealstone_mds_protocol::{ErrorCode, Failure, InodeId, Lock, LockKind, Node, Request, Response};

use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::leases::ClientKey;
use crate::locks::{self, LockRecord, LockTable, StoredLocks};
use crate::records::save;
use crate::server::Mds;
use crate::store::Wait;

/// Delay before a lock request is repeated during the grace period.
const LOCK_RETRY_MS: u32 = 1_000;

/// A lock request.
#[derive(Clone, Copy)]
struct LockRequest {
    lock: Lock,
    test: bool,
    reclaim: bool,
}

impl Mds {
    /// Handles lock requests.
    pub(super) fn lock_nodes(
        &self,
        principal: &Principal,
        request: Request,
        now_ms: u64,
    ) -> Result<Response> {
        match request {
            Request::LockNode { node, client_id, lock, test, reclaim } => {
                let client = (principal.user.clone(), client_id);
                self.lock_node(principal, node, &client, LockRequest { lock, test, reclaim }, now_ms)
            }
            Request::UnlockNode { node, client_id, owner } => {
                let id = self.proof_key.verify(principal, node)?;
                self.with_locks(|locks| {
                    locks.release(&(principal.user.clone(), client_id), id, Some(owner))
                })?;
                Ok(Response::Done {})
            }
            _ => Err(MdsError::refused(ErrorCode::Invalid, "not a request about locks")),
        }
    }

    fn lock_node(
        &self,
        principal: &Principal,
        node: Node,
        client: &ClientKey,
        request: LockRequest,
        now_ms: u64,
    ) -> Result<Response> {
        let id = self.proof_key.verify(principal, node)?;
        let has = || {
            let has = self.open_files.has_open(&client.0, client.1, id, now_ms);
            let closed = || MdsError::refused(ErrorCode::Invalid, "the client does not have the file open");
            if has { Ok(()) } else { Err(closed()) }
        };
        has()?;
        // POSIX: an exclusive lock of a range needs a file that is open for writing; flock(2) does
        // not.
        if request.lock.kind == LockKind::Write && !request.lock.whole && !request.test {
            self.may_write(principal, id, client.1, now_ms)?;
        }
        if request.lock.kind != LockKind::Unlock
            && let Some(answer) = self.before_locking(id, client, request, now_ms)?
        {
            return Ok(answer);
        }
        let conflict = self.with_locks(|locks| locks.lock(client, id, request.lock, request.test))?;
        if self.config.shared && conflict.is_none() && !request.test {
            self.fences.locked(id, client);
        }
        // A concurrent close released the locks, perhaps before this one was set.
        if let Err(closed) = has() {
            self.with_locks(|locks| locks.release(client, id, None))?;
            return Err(closed);
        }
        Ok(Response::Locked { conflict })
    }

    /// Checks before a lock is set; returns an answer if that decides the request.
    fn before_locking(
        &self,
        id: InodeId,
        client: &ClientKey,
        request: LockRequest,
        now_ms: u64,
    ) -> Result<Option<Response>> {
        let LockRequest { lock, test, reclaim } = request;
        if !test {
            self.check_not_fenced(id, client, false)?;
        }
        // Locks in a shared store survive the servers.
        let waits = !self.config.shared && self.open_files.is_recovering(now_ms);
        if reclaim && !(waits && self.fences.had_locks_before(id, client)) {
            // A client that was silent for too long lost the lock, even if no other client has it.
            let kept = self.with_locks(|locks| locks.covers(client, id, &lock))?;
            if kept {
                self.fences.locked(id, client);
                return Ok(Some(Response::Locked { conflict: None }));
            }
            return Err(MdsError::refused(ErrorCode::Fenced, "the lock is lost"));
        }
        if self.config.shared {
            return Ok(None);
        }
        if waits && !reclaim && !test {
            // A client of before the restart may reclaim a conflicting lock.
            return Err(MdsError::Refused(Failure::busy(LOCK_RETRY_MS)));
        }
        if !waits && self.fences.others_had_locks_before(id, client) {
            // The range of such a lock is unknown until the client is fenced.
            let conflict = Some(Lock { kind: LockKind::Write, owner: 0, pid: 0, ..lock });
            return Ok(Some(Response::Locked { conflict }));
        }
        if !test {
            let conflict = self.locks.lock(client, id, lock, true)?;
            if conflict.is_some() {
                return Ok(Some(Response::Locked { conflict }));
            }
            self.note_locked(id, client)?;
        }
        Ok(None)
    }

    /// Records that the client has locks on the file; this server's memory has the details.
    fn note_locked(&self, id: InodeId, client: &ClientKey) -> Result<()> {
        if self.fences.is_locked(id, client) {
            return Ok(());
        }
        let locked = LockRecord { server: self.config.server, locks: Vec::new() };
        self.update(|tx| Ok(save(tx, &keys::locked(id, client), &locked)?))?;
        self.fences.locked(id, client);
        Ok(())
    }

    /// Runs `work` with the lock table, in memory or in the store.
    fn with_locks<T>(&self, work: impl FnOnce(&dyn LockTable) -> Result<T>) -> Result<T> {
        if self.config.shared { work(&StoredLocks(self)) } else { work(&self.locks) }
    }

    /// Releases all locks of a client on a file: it was closed, or nothing was written under them.
    pub(crate) fn release_locks(&self, id: InodeId, client: &ClientKey) -> Result<()> {
        self.with_locks(|locks| locks.release(client, id, None))?;
        if self.fences.unlocked(id, client) && !self.config.shared {
            // Need not be durable: after a crash there is one unnecessary fence.
            self.update_and(|tx| Ok((locks::end(tx, id, client)?, Wait::No)))?;
        }
        Ok(())
    }

    /// Handles a file of an expired client; `wrote`: the client may have a credential to write, and
    /// is fenced if it had locks.
    pub(crate) fn end_locks(&self, id: InodeId, client: &ClientKey, wrote: bool, now_ms: u64) {
        if !self.fences.is_locked(id, client) {
            return;
        }
        // Locks in the store are checked by the transaction.
        let fenced = wrote && (self.config.shared || self.locks.any(client, id));
        if fenced {
            self.fence_locks(id, client, self.config.server, now_ms);
        } else if let Err(error) = self.release_locks(id, client) {
            tracing::error!(inode = id.0, %error, "cannot update the record of locks");
        }
    }
}
