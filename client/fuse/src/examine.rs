//! A request of the kernel by itself, without a mount.

use crate::attributes::nanoseconds;
use crate::inner::name;
use crate::kernel::{Operation, Unreadable, forgets, parse};
use crate::mounted::{lock_of, xattr_name};

/// Takes a request of the kernel apart as a mount does, up to where somebody would be asked: the request's number.
///
/// # Errors
/// It cannot be read; its number, if it has one.
pub fn examine(request: &[u8]) -> Result<u64, Option<u64>> {
    let (header, operation) = parse(request).map_err(|Unreadable { unique }| unique)?;
    match operation {
        Operation::Lookup { name: entry }
        | Operation::Unlink { name: entry }
        | Operation::Symlink { name: entry, .. }
        | Operation::MakeNode { name: entry, .. }
        | Operation::Create { name: entry, .. } => drop(name(entry)),
        Operation::Rename { from, to, .. } => drop((name(from), name(to))),
        Operation::GetXattr { name, .. } | Operation::SetXattr { name, .. } => drop(xattr_name(name)),
        Operation::GetLock(wish) | Operation::SetLock { wish, .. } => drop(lock_of(&wish)),
        Operation::SetAttr(changes) => drop((changes.atime.map(nanoseconds), changes.mtime.map(nanoseconds))),
        Operation::BatchForget { nodes } => drop(forgets(nodes).count()),
        _ => {}
    }
    Ok(header.unique)
}
