//! Checks for capability files: which bytes of a file a user may delegate.

use sealstone_mds_protocol::{ErrorCode, FilePath, InodeId, Layout, Stat};

use super::resolve;
use crate::access::{AccessRight, Principal};
use crate::error::{MdsError, Result};
use crate::keys;
use crate::records::{Inode, ns, save};
use crate::store::{Snapshot, Transaction};

/// Requested access and range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DelegatedRange {
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// Offset of the first byte.
    pub(crate) start: u64,
    /// Offset after the last byte; the end of the file if none.
    pub(crate) end: Option<u64>,
}

/// Returns the file and the end of the range, if the range is within the file and the user has the
/// rights.
fn check<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    path: &FilePath,
    wanted: DelegatedRange,
) -> Result<(InodeId, Inode, Layout, u64)> {
    let (id, inode) = resolve(view, principal, path)?;
    super::need_file(&inode, &path.shown())?;
    let empty = || MdsError::refused(ErrorCode::Invalid, "file is empty");
    let layout = inode.layout.clone().ok_or_else(empty)?;
    principal.needs_all(AccessRight::to(wanted.read, wanted.write), &inode, &path.shown())?;
    let end = wanted.end.unwrap_or(inode.size);
    if wanted.start >= end || end > inode.size {
        let subject = format!("bytes {}..{end} of a file of {} bytes", wanted.start, inode.size);
        return Err(MdsError::refused(ErrorCode::Invalid, subject));
    }
    Ok((id, inode, layout, end))
}

/// Delegates reading of a file.
pub(crate) fn delegate<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    path: &FilePath,
    wanted: DelegatedRange,
) -> Result<(InodeId, Stat, Layout, u64)> {
    let (id, inode, layout, end) = check(view, principal, path, wanted)?;
    Ok((id, inode.stat(id), layout, end))
}

/// Delegates writing of a file. The later writes are not reported, so the file loses its checksum
/// now.
pub(crate) fn delegate_writing(
    tx: &mut dyn Transaction,
    principal: &Principal,
    path: &FilePath,
    wanted: DelegatedRange,
    now_ms: u64,
) -> Result<(InodeId, Stat, Layout, u64)> {
    let (id, mut inode, layout, end) = check(tx, principal, path, wanted)?;
    inode.checksum = None;
    inode.version += 1;
    inode.mtime_ns = ns(now_ms);
    inode.changes(now_ms);
    save(tx, &keys::inode(id), &inode)?;
    Ok((id, inode.stat(id), layout, end))
}
