//! Trees with a quota: a directory and all nodes created below it.
//!
//! Contract: a node belongs to the tree of its directory, or heads a tree of its own in a directory
//! without a tree. A node cannot be moved to another tree, so no tree is ever walked.
//! Truth: docs/standards/mds/operations.md §5.9; docs/adr/0044-quotas.md.

use sealstone_mds_protocol::{ErrorCode, FilePath, InodeId, Quota, QuotaChange};

use super::{is_empty, need_directory, resolve};
use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::quota;
use crate::records::Inode;
use crate::store::{Snapshot, Transaction};

/// Fails unless a node can have a name in this directory without changing its tree.
pub(super) fn check_same(id: InodeId, node: &Inode, directory: &Inode, subject: &str) -> Result<()> {
    let heads_its_own = node.tree == Some(id) && directory.tree.is_none();
    if node.tree == directory.tree || heads_its_own {
        Ok(())
    } else {
        Err(MdsError::refused(ErrorCode::CrossesTrees, subject))
    }
}

/// Sets the limits of a directory's tree; an empty directory outside of trees becomes a tree.
pub(crate) fn set_tree(
    tx: &mut dyn Transaction,
    principal: &Principal,
    path: &FilePath,
    change: &QuotaChange,
    now_ms: u64,
) -> Result<Quota> {
    let subject = path.shown();
    let (id, mut directory) = resolve(tx, principal, path)?;
    need_directory(&directory, &subject)?;
    match directory.tree {
        Some(tree) if tree == id => {}
        Some(tree) => {
            let head = quota::of_tree(tx, tree)?.path.map_or_else(String::new, |path| format!(" ({path})"));
            let what =
                format!("{subject}: it lies in a tree with a quota already{head}; trees are not nested");
            return Err(MdsError::refused(ErrorCode::Invalid, what));
        }
        None if !is_empty(tx, id)? => {
            let what = format!(
                "{subject}: a tree with a quota begins empty; make a directory, set its quota, then copy things there"
            );
            return Err(MdsError::refused(ErrorCode::NotEmpty, what));
        }
        None => directory.changes(now_ms),
    }
    quota::set_tree(tx, (id, &mut directory), path, change)
}

/// Removes the limits of a directory's tree.
pub(crate) fn clear_tree(tx: &mut dyn Transaction, principal: &Principal, path: &FilePath) -> Result<Quota> {
    let (id, mut directory) = resolve(tx, principal, path)?;
    if directory.tree != Some(id) {
        return Err(no_tree(path));
    }
    let empty = is_empty(tx, id)?;
    quota::clear_tree(tx, (id, &mut directory), empty)
}

/// Returns the quota of the tree that contains a path.
pub(crate) fn tree_of<S: Snapshot + ?Sized>(
    view: &S,
    principal: &Principal,
    path: &FilePath,
) -> Result<Quota> {
    let (_, node) = resolve(view, principal, path)?;
    quota::of_tree(view, node.tree.ok_or_else(|| no_tree(path))?)
}

fn no_tree(path: &FilePath) -> MdsError {
    MdsError::refused(ErrorCode::NotFound, format!("{}: a tree with a quota", path.shown()))
}
