//! Replacement of a stored link, or by one, in a single step.
//!
//! Does: make an entry under a temporary name and rename it over the old one.
//! Does not: replace files by files, which Commit does.
//! Contract: a temporary entry is removed when its replacement fails, and all of them by
//! [`remove_temporaries`] when a signal ends the command.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use sealstone_client::{Client, FilePath, Name};
use sealstone_failure::{Failure, Outcome};

use crate::local::TEMPORARY_PREFIX;
use crate::random::random_number;

/// How often a temporary entry is removed that was not found: the request that makes it may still
/// be under way.
const REMOVE_TRIES: usize = 3;
/// Pause between two tries.
const REMOVE_PAUSE: Duration = Duration::from_millis(200);

/// Temporary entries of replacements that are under way.
static TEMPORARIES: Mutex<BTreeSet<FilePath>> = Mutex::new(BTreeSet::new());

/// Makes an entry by `make` under a temporary name, and renames it over `stored`.
pub(crate) async fn replace<T>(
    client: &Client,
    stored: &FilePath,
    make: impl AsyncFnOnce(FilePath) -> Outcome<T>,
) -> Outcome<T> {
    let temporary = temporary_beside(stored)?;
    TEMPORARIES.lock().insert(temporary.clone());
    let replaced = async {
        let made = make(temporary.clone()).await?;
        client.rename(&temporary, stored, true).await.map_err(|error| Failure::from(error).at(stored))?;
        Ok(made)
    };
    let outcome = replaced.await;
    if outcome.is_err() {
        let _ = client.remove(&temporary, false).await;
    }
    TEMPORARIES.lock().remove(&temporary);
    outcome
}

/// Removes the temporary entries of replacements that were aborted.
pub async fn remove_temporaries(client: &Client) {
    for attempt in 0..REMOVE_TRIES {
        let left: Vec<FilePath> = TEMPORARIES.lock().iter().cloned().collect();
        if left.is_empty() {
            return;
        }
        if attempt > 0 {
            tokio::time::sleep(REMOVE_PAUSE).await;
        }
        for temporary in left {
            if client.remove(&temporary, false).await.is_ok() {
                TEMPORARIES.lock().remove(&temporary);
            }
        }
    }
}

/// A name beside another one that no entry has.
fn temporary_beside(stored: &FilePath) -> Outcome<FilePath> {
    let (above, _) = stored.split_last().ok_or_else(|| Failure::operation("has no name").at(stored))?;
    let name = format!("{TEMPORARY_PREFIX}{:016x}", random_number());
    let name = Name::new(name).map_err(|error| Failure::operation(error).at(stored))?;
    above.join(&name).map_err(|error| Failure::operation(error).at(stored))
}
