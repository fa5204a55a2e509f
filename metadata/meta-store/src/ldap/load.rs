//! Reads a whole store into memory.
//!
//! Contract: the result is one consistent state, even with concurrent writes. Records are changed
//! only after their commit is in the journal. So the journal is read before and after the records,
//! and replayed over them in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::connection::{LdapConnection, RequestError};
use super::journal::{COMMIT_BYTES_MAX, JournalCommit, bytes_of, parse_commit, parse_record};
use super::tree::{LoadError, StoreTree};
use super::versions::{LOADED_BYTES_MAX, RecordChange, RecordVersions};
use super::{JOURNAL_BYTES_MAX, LdapStoreError};

/// Maximum bytes of a journal: a full one, and a commit that was added when it was nearly full.
const READ_BYTES_MAX: usize = JOURNAL_BYTES_MAX + 2 * COMMIT_BYTES_MAX;
/// Maximum attempts to read while other servers write.
const TRIES: usize = 5;

/// The loaded store.
pub(super) struct LoadedStore {
    pub(super) versions: Arc<RecordVersions>,
    pub(super) owner: String,
    /// Number of the newest commit.
    pub(super) number: u64,
    /// Commits that may not be completely in the records, in order.
    pub(super) journal: Vec<JournalCommit>,
    /// Commits that are in the records and remain to be removed.
    pub(super) outdated: Vec<u64>,
    /// Bytes of those.
    pub(super) outdated_bytes: usize,
}

#[derive(Default)]
struct Journal {
    /// Commits in order, without gaps.
    commits: BTreeMap<u64, JournalCommit>,
    outdated: Vec<u64>,
    outdated_bytes: usize,
}

fn read_journal(
    tree: &StoreTree,
    connection: &mut LdapConnection,
    owner: &str,
) -> Result<Journal, LoadError> {
    let (mut commits, mut bytes) = (BTreeMap::new(), 0);
    tree.each_commit(connection, owner, |found| {
        bytes += found.len();
        if bytes > READ_BYTES_MAX {
            return Err(format!("the journal has more than {READ_BYTES_MAX} bytes"));
        }
        let commit = parse_commit(found).map_err(|error| error.to_string())?;
        commits.insert(commit.number, commit);
        Ok(())
    })?;
    // A commit is removed when the records have all commits up to it and some later ones. So a
    // commit whose successor is missing is obsolete.
    let mut first = commits.last_key_value().map_or(0, |(number, _)| *number);
    while first > 0 && commits.contains_key(&(first - 1)) {
        first -= 1;
    }
    let used = commits.split_off(&first);
    let outdated_bytes = commits.values().map(|commit| bytes_of(&commit.changes)).sum();
    Ok(Journal { commits: used, outdated: commits.into_keys().collect(), outdated_bytes })
}

fn apply(versions: &RecordVersions, commits: &BTreeMap<u64, JournalCommit>) {
    for RecordChange { key, value, .. } in commits.values().flat_map(|commit| &commit.changes) {
        versions.load(key, value.clone());
    }
}

fn try_load(
    tree: &StoreTree,
    connection: &mut LdapConnection,
    owner: &str,
) -> Result<LoadedStore, LoadError> {
    let before = read_journal(tree, connection, owner)?;
    let versions = RecordVersions::default();
    tree.each_record(connection, owner, |found| {
        let (key, value) = parse_record(found).map_err(|error| error.to_string())?;
        versions.load(key, Some(value.into()));
        if versions.bytes() > LOADED_BYTES_MAX {
            return Err(format!("all records together take more than {LOADED_BYTES_MAX} bytes of memory"));
        }
        Ok(())
    })?;
    let mut after = read_journal(tree, connection, owner)?;
    // A commit was added, applied to the records and removed while they were read.
    if let (Some((first, _)), Some((last, _))) =
        (after.commits.first_key_value(), before.commits.last_key_value())
        && *first > *last + 1
    {
        return Err(LoadError::Moved);
    }
    if before.commits.is_empty() && after.commits.first_key_value().is_some_and(|(first, _)| *first > 1) {
        return Err(LoadError::Moved);
    }
    let mut commits = before.commits;
    commits.append(&mut after.commits);
    apply(&versions, &commits);
    Ok(LoadedStore {
        versions: Arc::new(versions),
        owner: owner.to_owned(),
        number: commits.last_key_value().map_or(0, |(number, _)| *number),
        journal: commits.into_values().collect(),
        outdated: after.outdated,
        outdated_bytes: after.outdated_bytes,
    })
}

/// Reads the store; creates it if it does not exist.
pub(super) fn load(
    tree: &StoreTree,
    connection: &mut LdapConnection,
    name: &str,
) -> Result<LoadedStore, LoadError> {
    for _ in 0..TRIES {
        let owner = match tree.find(connection)? {
            Some(owner) => owner,
            None => {
                tree.make(connection).map_err(|error| making(tree, error))?;
                continue;
            }
        };
        if owner == super::tree::NEW_OWNER {
            // The creation may have been interrupted.
            tree.make(connection).map_err(|error| making(tree, error))?;
        }
        match try_load(tree, connection, &owner) {
            Err(LoadError::Moved) => {}
            other => return other,
        }
    }
    Err(LdapStoreError::Busy { name: name.to_owned() }.into())
}

fn making(tree: &StoreTree, error: RequestError) -> LoadError {
    if error.code().is_some() {
        LoadError::Failed(tree.explain(error))
    } else {
        LoadError::RequestError(error)
    }
}
