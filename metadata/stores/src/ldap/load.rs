//! Reading a whole store into memory.
//!
//! Contract: what is read is one state, whoever writes meanwhile. Records are changed only after the commit that changes
//! them is in the journal; so what the journal has before the records are read, and after, done once more in its order, makes
//! one state of whatever mixture was read.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::journal::{COMMIT_BYTES_MAX, Commit, bytes_of, parse_commit, parse_record};
use super::link::{Link, Trouble};
use super::tree::{Loading, Tree};
use super::versions::{Change, LOADED_BYTES_MAX, Versions};
use super::{JOURNAL_BYTES_MAX, LdapStoreError};

/// Bytes of a journal that is read: a full one, and a commit that came when it was nearly full.
const READ_BYTES_MAX: usize = JOURNAL_BYTES_MAX + 2 * COMMIT_BYTES_MAX;
/// How often it is begun anew when others write faster than it is read.
const TRIES: usize = 5;

/// What was read.
pub(super) struct Loaded {
    pub(super) versions: Arc<Versions>,
    pub(super) owner: String,
    /// Of the newest commit.
    pub(super) number: u64,
    /// Commits that may not all be in the records, in order.
    pub(super) journal: Vec<Commit>,
    /// Commits that are, and should not be there any more.
    pub(super) outdated: Vec<u64>,
    /// Bytes of those.
    pub(super) outdated_bytes: usize,
}

#[derive(Default)]
struct Journal {
    /// Commits in order, without gaps.
    commits: BTreeMap<u64, Commit>,
    outdated: Vec<u64>,
    outdated_bytes: usize,
}

fn read_journal(tree: &Tree, link: &mut Link, owner: &str) -> Result<Journal, Loading> {
    let (mut commits, mut bytes) = (BTreeMap::new(), 0);
    tree.each_commit(link, owner, |found| {
        bytes += found.len();
        if bytes > READ_BYTES_MAX {
            return Err(format!("the journal has more than {READ_BYTES_MAX} bytes"));
        }
        let commit = parse_commit(found).map_err(|error| error.to_string())?;
        commits.insert(commit.number, commit);
        Ok(())
    })?;
    // A commit is removed when all up to it, and after it to the end of some later time, are in the records. One that is
    // there while the next one is missing is of no use any more.
    let mut first = commits.last_key_value().map_or(0, |(number, _)| *number);
    while first > 0 && commits.contains_key(&(first - 1)) {
        first -= 1;
    }
    let used = commits.split_off(&first);
    let outdated_bytes = commits.values().map(|commit| bytes_of(&commit.changes)).sum();
    Ok(Journal { commits: used, outdated: commits.into_keys().collect(), outdated_bytes })
}

fn apply(versions: &Versions, commits: &BTreeMap<u64, Commit>) {
    for Change { key, value, .. } in commits.values().flat_map(|commit| &commit.changes) {
        versions.load(key, value.clone());
    }
}

fn try_load(tree: &Tree, link: &mut Link, owner: &str) -> Result<Loaded, Loading> {
    let before = read_journal(tree, link, owner)?;
    let versions = Versions::default();
    tree.each_record(link, owner, |found| {
        let (key, value) = parse_record(found).map_err(|error| error.to_string())?;
        versions.load(key, Some(value.into()));
        if versions.bytes() > LOADED_BYTES_MAX {
            return Err(format!("all records together take more than {LOADED_BYTES_MAX} bytes of memory"));
        }
        Ok(())
    })?;
    let mut after = read_journal(tree, link, owner)?;
    // Something was committed, put into the records and forgotten while they were read.
    if let (Some((first, _)), Some((last, _))) =
        (after.commits.first_key_value(), before.commits.last_key_value())
        && *first > *last + 1
    {
        return Err(Loading::Moved);
    }
    if before.commits.is_empty() && after.commits.first_key_value().is_some_and(|(first, _)| *first > 1) {
        return Err(Loading::Moved);
    }
    let mut commits = before.commits;
    commits.append(&mut after.commits);
    apply(&versions, &commits);
    Ok(Loaded {
        versions: Arc::new(versions),
        owner: owner.to_owned(),
        number: commits.last_key_value().map_or(0, |(number, _)| *number),
        journal: commits.into_values().collect(),
        outdated: after.outdated,
        outdated_bytes: after.outdated_bytes,
    })
}

/// Reads the store, and makes it if there is none.
pub(super) fn load(tree: &Tree, link: &mut Link, name: &str) -> Result<Loaded, Loading> {
    for _ in 0..TRIES {
        let owner = match tree.find(link)? {
            Some(owner) => owner,
            None => {
                tree.make(link).map_err(|trouble| making(tree, trouble))?;
                continue;
            }
        };
        if owner == super::tree::NOBODY {
            // Whoever made it may have been interrupted.
            tree.make(link).map_err(|trouble| making(tree, trouble))?;
        }
        match try_load(tree, link, &owner) {
            Err(Loading::Moved) => {}
            other => return other,
        }
    }
    Err(LdapStoreError::Busy { name: name.to_owned() }.into())
}

fn making(tree: &Tree, trouble: Trouble) -> Loading {
    if trouble.code().is_some() { Loading::Failed(tree.explain(trouble)) } else { Loading::Trouble(trouble) }
}
