//! Parsing of a kernel request without a mount, for fuzzing.

use crate::attributes::nanoseconds;
use crate::handler::{lock_of, xattr_name};
use crate::kernel::{MalformedRequest, Operation, forgets, parse};
use crate::mount_state::name;

/// Parses a request of the kernel as a mount does, without executing it; returns its number.
///
/// # Errors
/// The request is malformed; its number, if it has one.
pub fn examine(request: &[u8]) -> Result<u64, Option<u64>> {
    let (header, operation) = parse(request).map_err(|MalformedRequest { unique }| unique)?;
    match operation {
        Operation::Lookup { name: entry }
        | Operation::Unlink { name: entry }
        | Operation::Symlink { name: entry, .. }
        | Operation::MakeNode { name: entry, .. }
        | Operation::Create { name: entry, .. } => drop(name(entry)),
        Operation::Rename { from, to, .. } => drop((name(from), name(to))),
        Operation::GetXattr { name, .. } | Operation::SetXattr { name, .. } => drop(xattr_name(name)),
        Operation::GetLock(request) | Operation::SetLock { request, .. } => drop(lock_of(&request)),
        Operation::SetAttr(changes) => drop((changes.atime.map(nanoseconds), changes.mtime.map(nanoseconds))),
        Operation::BatchForget { nodes } => drop(forgets(nodes).count()),
        _ => {}
    }
    Ok(header.unique)
}
