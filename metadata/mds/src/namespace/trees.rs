//! Trees with a quota: a directory and all that is made below it.
//!
//! Contract: what lies in a directory belongs to the directory's tree, or is the directory of a tree of its own in none. So a
//! node that is moved stays in its tree, and nobody ever walks one.
//! Truth: docs/standards/mds/operations.md §5.9; docs/adr/0044-quotas.md.

use sealstone_mds_protocol::{ErrorCode, FilePath, InodeId, Quota, QuotaChange};

use super::{is_empty, need_directory, resolve};
use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::quota;
use crate::records::Inode;
use crate::store::{Snapshot, Transaction};

/// May a node lie in this directory without changing its tree?
pub(super) fn check_same(id: InodeId, node: &Inode, directory: &Inode, said: &str) -> Result<()> {
    let heads_its_own = node.tree == Some(id) && directory.tree.is_none();
    if node.tree == directory.tree || heads_its_own {
        Ok(())
    } else {
        Err(MdsError::refused(ErrorCode::CrossesTrees, said))
    }
}

/// Sets the limits of a directory's tree; an empty directory becomes one.
pub(crate) fn set_tree(
    tx: &mut dyn Transaction,
    who: &Principal,
    path: &FilePath,
    change: &QuotaChange,
    now_ms: u64,
) -> Result<Quota> {
    let said = path.shown();
    let (id, mut directory) = resolve(tx, who, path)?;
    need_directory(&directory, &said)?;
    match directory.tree {
        Some(tree) if tree == id => {}
        Some(tree) => {
            let head = quota::of_tree(tx, tree)?.path.map_or_else(String::new, |path| format!(" ({path})"));
            let what = format!("{said}: it lies in a tree with a quota already{head}; trees are not nested");
            return Err(MdsError::refused(ErrorCode::Invalid, what));
        }
        None if !is_empty(tx, id)? => {
            let what = format!(
                "{said}: a tree with a quota begins empty; make a directory, set its quota, then copy things there"
            );
            return Err(MdsError::refused(ErrorCode::NotEmpty, what));
        }
        None => directory.changes(now_ms),
    }
    quota::set_tree(tx, (id, &mut directory), path, change)
}

/// Takes the limits of a directory's tree away.
pub(crate) fn clear_tree(tx: &mut dyn Transaction, who: &Principal, path: &FilePath) -> Result<Quota> {
    let (id, mut directory) = resolve(tx, who, path)?;
    if directory.tree != Some(id) {
        return Err(no_tree(path));
    }
    let empty = is_empty(tx, id)?;
    quota::clear_tree(tx, (id, &mut directory), empty)
}

/// The quota of the tree that a path lies in.
pub(crate) fn tree_of<S: Snapshot + ?Sized>(view: &S, who: &Principal, path: &FilePath) -> Result<Quota> {
    let (_, node) = resolve(view, who, path)?;
    quota::of_tree(view, node.tree.ok_or_else(|| no_tree(path))?)
}

fn no_tree(path: &FilePath) -> MdsError {
    MdsError::refused(ErrorCode::NotFound, format!("{}: a tree with a quota", path.shown()))
}
