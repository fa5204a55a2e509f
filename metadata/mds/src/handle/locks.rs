//! Requests about locks.
//!
//! Contract: before a holder has its first lock on a file there is a record that it has some, so that a server that begins
//! anew knows whom to fence; a lock of one that died is given to nobody else before it is fenced.

use sealstone_mds_protocol::{ErrorCode, Failure, InodeId, Lock, LockKind, Node, Request, Response};

use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::leases::Who;
use crate::locks::{self, LockTable, Locked, StoredLocks};
use crate::records::save;
use crate::server::{Mds, Wait};

/// Whoever wants a lock while holders of before the start are waited for asks again after this.
const LOCK_RETRY_MS: u32 = 1_000;

/// What a lock is asked for.
#[derive(Clone, Copy)]
struct Wish {
    lock: Lock,
    test: bool,
    reclaim: bool,
}

impl Mds {
    /// What locks ask for.
    pub(super) fn lock_nodes(&self, who: &Principal, request: Request, now_ms: u64) -> Result<Response> {
        match request {
            Request::LockNode { node, client_id, lock, test, reclaim } => {
                let by = (who.user.clone(), client_id);
                self.lock_node(who, node, &by, Wish { lock, test, reclaim }, now_ms)
            }
            Request::UnlockNode { node, client_id, owner } => {
                let id = self.node(who, node)?;
                self.with_locks(|locks| locks.release(&(who.user.clone(), client_id), id, Some(owner)))?;
                Ok(Response::Done {})
            }
            _ => Err(MdsError::refused(ErrorCode::Invalid, "not a request about locks")),
        }
    }

    fn lock_node(&self, who: &Principal, node: Node, by: &Who, wish: Wish, now_ms: u64) -> Result<Response> {
        let id = self.node(who, node)?;
        let has = || {
            let has = self.holds.has(&by.0, by.1, id, now_ms);
            let closed = || MdsError::refused(ErrorCode::Invalid, "only a file that is held is locked");
            if has { Ok(()) } else { Err(closed()) }
        };
        has()?;
        // POSIX: an exclusive lock of a range needs a file that is open for writing; flock(2) does not.
        if wish.lock.kind == LockKind::Write && !wish.lock.whole && !wish.test {
            self.may_write(who, id, by.1, now_ms)?;
        }
        if wish.lock.kind != LockKind::Unlock
            && let Some(answer) = self.before_locking(id, by, wish, now_ms)?
        {
            return Ok(answer);
        }
        let conflict = self.with_locks(|locks| locks.lock(by, id, wish.lock, wish.test))?;
        if self.config.shared && conflict.is_none() && !wish.test {
            self.fences.locked(id, by);
        }
        // Who closed it meanwhile ended its locks, perhaps before there was this one.
        if let Err(closed) = has() {
            self.with_locks(|locks| locks.release(by, id, None))?;
            return Err(closed);
        }
        Ok(Response::Locked { conflict })
    }

    /// What is to be looked at before a lock is set: an answer, if that settles it.
    fn before_locking(&self, id: InodeId, by: &Who, wish: Wish, now_ms: u64) -> Result<Option<Response>> {
        let Wish { lock, test, reclaim } = wish;
        if !test {
            self.not_fenced(id, by, false)?;
        }
        // In a store that servers share locks outlive them.
        let waits = !self.config.shared && self.holds.waits(now_ms);
        if reclaim && !(waits && self.fences.locked_before(id, by)) {
            // Whoever was away for too long lost it, whether somebody else has it or not.
            let kept = self.with_locks(|locks| locks.covers(by, id, &lock))?;
            if kept {
                self.fences.locked(id, by);
                return Ok(Some(Response::Locked { conflict: None }));
            }
            return Err(MdsError::refused(ErrorCode::Fenced, "the lock is lost"));
        }
        if self.config.shared {
            return Ok(None);
        }
        if waits && !reclaim && !test {
            // Somebody may come back to the lock that this one would take.
            return Err(MdsError::Refused(Failure::busy(LOCK_RETRY_MS)));
        }
        if !waits && self.fences.others_locked_before(id, by) {
            // Nobody knows what of it, until they are fenced.
            let conflict = Some(Lock { kind: LockKind::Write, owner: 0, pid: 0, ..lock });
            return Ok(Some(Response::Locked { conflict }));
        }
        if !test {
            let conflict = self.locks.lock(by, id, lock, true)?;
            if conflict.is_some() {
                return Ok(Some(Response::Locked { conflict }));
            }
            self.note_locked(id, by)?;
        }
        Ok(None)
    }

    /// A holder has locks on a file, of which this server's memory knows the rest: that much is on record, once.
    fn note_locked(&self, id: InodeId, by: &Who) -> Result<()> {
        if self.fences.is_locked(id, by) {
            return Ok(());
        }
        let locked = Locked { server: self.config.server, locks: Vec::new() };
        self.update(|tx| Ok(save(tx, &keys::locked(id, by), &locked)?))?;
        self.fences.locked(id, by);
        Ok(())
    }

    /// Does something with the locks, wherever they are.
    fn with_locks<T>(&self, work: impl FnOnce(&dyn LockTable) -> Result<T>) -> Result<T> {
        if self.config.shared { work(&StoredLocks(self)) } else { work(&self.locks) }
    }

    /// All locks of a holder on a file end: it is closed, or nothing was written under them.
    pub(crate) fn release_locks(&self, id: InodeId, by: &Who) -> Result<()> {
        self.with_locks(|locks| locks.release(by, id, None))?;
        if self.fences.unlocked(id, by) && !self.config.shared {
            // If a crash takes that, there is a fence too many after it.
            self.update_and(|tx| Ok((locks::end(tx, id, by)?, Wait::No)))?;
        }
        Ok(())
    }

    /// A holder died that had a file open; `wrote`: it may have something to write it with, and is fenced if it had locks.
    pub(crate) fn end_locks(&self, id: InodeId, by: &Who, wrote: bool, now_ms: u64) {
        if !self.fences.is_locked(id, by) {
            return;
        }
        // Of those in the store a transaction looks whether there are any.
        let fenced = wrote && (self.config.shared || self.locks.any(by, id));
        if fenced {
            self.fence_locks(id, by, self.config.server, now_ms);
        } else if let Err(error) = self.release_locks(id, by) {
            tracing::error!(inode = id.0, %error, "locks are not on record as they are");
        }
    }
}
