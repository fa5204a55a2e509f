//! Function files: copies of their code on further devices, and objects for their results.
//!
//! Contract: a copy is a create until Commit adds its object to the layout. It is refused if the
//! file changed after the copy began. Copies are removed and moved with the file, as all objects of
//! a layout are. They do not count in quotas: a file has at most one for each device. The object of
//! a result is a create without a Commit.
//! Truth: docs/standards/mds/functions.md §5.12; docs/adr/0068-copies-of-function-files.md.

use sealstone_mds_protocol::{
    Access, ErrorCode, FileKind, FilePath, InodeId, IntentId, Layout, Method, Name, ObjectRef, Stat, record,
};

use super::create::{check_result_share, check_share, save_new};
use super::walk::FinalLink;
use super::{check_file, need_file};
use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::keys;
use crate::quota;
use crate::records::{Inode, Intent, counter, load, next_number, ns, save};
use crate::store::{Snapshot, Transaction};

record! {
    /// The file of which a create is a copy.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct FunctionCopy {
        /// Inode number of the function file.
        pub inode: InodeId,
        /// Version of its content when the copy began.
        pub version: u64,
    }
}

record! {
    /// The result for which a create reserves an object.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct FunctionResult {
        /// Inode number of the function file.
        pub function: InodeId,
        /// Maximum bytes of the result.
        pub size_max: u64,
        /// Credentials are renewed until then.
        pub renewed_until_ms: u64,
    }
}

/// Maximum bytes of a result for which an object is reserved.
pub(crate) const RESULT_BYTES_MAX: u64 = 256 << 20;
/// Maximum age in milliseconds of a reservation whose credentials are renewed: two of the longest
/// jobs.
pub(crate) const RESULT_AGE_MAX_MS: u64 = 48 * 3_600_000;

/// Parameters of a copy or a result.
pub(crate) struct NewObject {
    /// Object that gets the bytes.
    pub(crate) object: ObjectRef,
    pub(crate) method: Method,
    pub(crate) expires_ms: u64,
    pub(crate) grants_until_ms: u64,
}

/// Returns the size of the function file of which a create is a copy; none if it is no copy. Fails
/// if the file was removed.
pub(crate) fn copied_size<S: Snapshot + ?Sized>(view: &S, id: IntentId) -> Result<Option<u64>> {
    let Some(copy) = load::<FunctionCopy, _>(view, &keys::function_copy(id))? else { return Ok(None) };
    let removed = || MdsError::refused(ErrorCode::Stale, "the function was removed while it was copied");
    let file: Inode = load(view, &keys::inode(copy.inode))?.ok_or_else(removed)?;
    Ok(Some(file.size))
}

/// Fails unless the user may copy the code, which needs the rights to read and to execute it.
fn check_rights(principal: &Principal, file: &Inode, subject: &str) -> Result<()> {
    need_file(file, subject)?;
    check_file(principal, file, Access::Read, subject)?;
    check_file(principal, file, Access::Execute, subject)
}

/// Returns the layout of a function file.
fn layout_of<'a>(file: &'a Inode, subject: &str) -> Result<&'a Layout> {
    let empty = || MdsError::refused(ErrorCode::Invalid, format!("{subject} is empty"));
    let layout = file.layout.as_ref().ok_or_else(empty)?;
    if layout.is_whole_in_each() {
        Ok(layout)
    } else {
        Err(MdsError::refused(ErrorCode::Invalid, format!("{subject} is striped, so no object has all code")))
    }
}

/// Begins a copy of a function file. `new` chooses its object. Returns the size of the file too,
/// with which the copy is charged until its end.
pub(crate) fn begin_copy(
    tx: &mut dyn Transaction,
    principal: &Principal,
    path: &FilePath,
    new: impl FnOnce(&mut dyn Transaction, InodeId) -> Result<NewObject>,
) -> Result<(IntentId, Intent, u64)> {
    let subject = path.shown();
    let (inode, file) = super::resolve(tx, principal, path)?;
    check_rights(principal, &file, &subject)?;
    let (parent, name) = parent_of(tx, principal, path)?;
    let layout = layout_of(&file, &subject)?.clone();
    let own = check_share(tx, &principal.user)?;
    let charged = Inode { owner: principal.user.clone(), ..file.clone() };
    let charges = quota::reserve(tx, &charged, None)?;
    let NewObject { object, method, expires_ms, grants_until_ms } = new(tx, inode)?;
    if layout.with_copy(object).is_err() {
        return Err(match layout.objects().iter().any(|one| one.device == object.device) {
            true => MdsError::refused(ErrorCode::Exists, format!("{subject} has a copy on the device")),
            false => MdsError::refused(ErrorCode::Limit, format!("copies of {subject}")),
        });
    }
    let id = IntentId(next_number(tx, counter::INTENT)?);
    let intent = Intent {
        user: principal.user.clone(),
        parent,
        name,
        inode,
        mode: file.mode,
        replace: true,
        method,
        layout: Layout::single(object),
        placed: None,
        expires_ms,
        grants_until_ms,
    };
    save_new(tx, id, &intent, (&charges, file.size), own)?;
    save(tx, &keys::function_copy(id), &FunctionCopy { inode, version: file.version })?;
    Ok((id, intent, file.size))
}

/// Returns the maximum bytes of the result for which a create reserves an object; none for any
/// other create.
pub(crate) fn result_size<S: Snapshot + ?Sized>(view: &S, id: IntentId) -> Result<Option<u64>> {
    let result: Option<FunctionResult> = load(view, &keys::function_result(id))?;
    Ok(result.map(|result| result.size_max))
}

/// Fails if a create is the object of a result, and is too old or its user may not execute the
/// function any more.
pub(super) fn check_result(
    tx: &dyn Transaction,
    principal: &Principal,
    id: IntentId,
    now_ms: u64,
) -> Result<()> {
    let Some(result) = load::<FunctionResult, _>(tx, &keys::function_result(id))? else { return Ok(()) };
    if now_ms > result.renewed_until_ms {
        return Err(MdsError::refused(
            ErrorCode::Stale,
            "the object of a result is too old; reserve another",
        ));
    }
    super::file_for(tx, principal, result.function, Access::Execute, "function").map(drop)
}

/// Reserves an object for a result of at most `size_max` bytes, with which it is charged until its
/// end. `new` chooses the object.
pub(crate) fn begin_result(
    tx: &mut dyn Transaction,
    principal: &Principal,
    path: &FilePath,
    (size_max, now_ms): (u64, u64),
    new: impl FnOnce(&mut dyn Transaction, InodeId) -> Result<NewObject>,
) -> Result<(IntentId, Intent)> {
    let subject = path.shown();
    if size_max > RESULT_BYTES_MAX {
        let why = format!("a result has at most {} MiB", RESULT_BYTES_MAX >> 20);
        return Err(MdsError::refused(ErrorCode::Limit, why));
    }
    let (id, function) = super::resolve(tx, principal, path)?;
    need_file(&function, &subject)?;
    check_file(principal, &function, Access::Execute, &subject)?;
    let (parent, name) = parent_of(tx, principal, path)?;
    let own = check_result_share(tx, &principal.user)?;
    let mut charged = Inode::new(FileKind::File, 0, principal.user.clone(), None, 0);
    charged.size = size_max;
    charged.tree = function.tree;
    let charges = quota::reserve(tx, &charged, None)?;
    let renewed_until_ms = now_ms.saturating_add(RESULT_AGE_MAX_MS);
    let result = FunctionResult { function: id, size_max, renewed_until_ms };
    // Not the number of the function, so that a result does not stop a move of its objects.
    let inode = InodeId(next_number(tx, counter::INODE)?);
    let NewObject { object, method, expires_ms, grants_until_ms } = new(tx, inode)?;
    let id = IntentId(next_number(tx, counter::INTENT)?);
    let intent = Intent {
        user: principal.user.clone(),
        parent,
        name,
        inode,
        mode: 0,
        replace: false,
        method,
        layout: Layout::single(object),
        placed: None,
        expires_ms,
        grants_until_ms,
    };
    save_new(tx, id, &intent, (&charges, size_max), own)?;
    save(tx, &keys::function_result(id), &result)?;
    Ok((id, intent))
}

/// Notes that a function may change bytes of a file. The writes are not reported, so the file loses
/// its checksum now.
pub(crate) fn note_call_update(tx: &mut dyn Transaction, id: InodeId, now_ms: u64) -> Result<()> {
    let Some(mut file) = load::<Inode, _>(tx, &keys::inode(id))? else { return Ok(()) };
    file.checksum = None;
    file.version += 1;
    file.mtime_ns = ns(now_ms);
    file.changes(now_ms);
    Ok(save(tx, &keys::inode(id), &file)?)
}

/// Makes the layout of a file that gets the description of a function one of copies: a function
/// runs only while each object has all code, so it must not be restriped when it is large.
pub(crate) fn fix_function_layout(
    tx: &mut dyn Transaction,
    id: InodeId,
    subject: &str,
    now_ms: u64,
) -> Result<()> {
    let Some(mut file) = load::<Inode, _>(tx, &keys::inode(id))? else { return Ok(()) };
    let layout = layout_of(&file, subject)?;
    if layout.is_copied() {
        return Ok(());
    }
    file.layout = layout.as_copies();
    file.changes(now_ms);
    Ok(save(tx, &keys::inode(id), &file)?)
}

/// Returns the directory and the name of a file.
fn parent_of(tx: &mut dyn Transaction, principal: &Principal, path: &FilePath) -> Result<(InodeId, Name)> {
    let (place, _) = super::walk::resolve_entry(tx, principal, path, FinalLink::Follow)?;
    Ok((place.directory, place.name))
}

/// Adds a finished copy to the layout of its file.
pub(super) fn commit_copy(
    tx: &mut dyn Transaction,
    principal: &Principal,
    intent: &Intent,
    copy: FunctionCopy,
    size: u64,
    now_ms: u64,
) -> Result<Stat> {
    let changed = || MdsError::refused(ErrorCode::Stale, "the function changed while it was copied");
    let mut file: Inode = load(tx, &keys::inode(copy.inode))?.ok_or_else(changed)?;
    check_rights(principal, &file, "function")?;
    if file.version != copy.version || file.size != size {
        return Err(changed());
    }
    let layout = file.layout.as_ref().ok_or_else(changed)?;
    let object = *intent.layout.objects().first().ok_or_else(changed)?;
    let added = layout.with_copy(object).map_err(|_| {
        MdsError::refused(ErrorCode::Exists, "another client made a copy on the device meanwhile")
    })?;
    file.layout = Some(added);
    file.create_grants_until_ms = file.create_grants_until_ms.max(intent.grants_until_ms);
    file.changes(now_ms);
    save(tx, &keys::inode(copy.inode), &file)?;
    Ok(file.stat(copy.inode))
}
