//! Shares of users in the requests that are decided at a time.
//!
//! Does: one semaphore for each user with a connection.
//! Does not: bound the requests of all users; `Limits::requests_max` does.
//! Contract: a request acquires the permit of its user before one of all users. So a queue of
//! requests of one user delays those of others by that share at most.
//! Truth: docs/reference/limits.md; docs/adr/0062-bounds-per-user.md.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sealstone_mds_protocol::UserName;
use tokio::sync::Semaphore;

/// The semaphores of the users that have connections.
#[derive(Clone)]
pub(crate) struct RequestShares {
    permits: usize,
    by_user: Arc<Mutex<HashMap<UserName, Weak<Semaphore>>>>,
}

impl RequestShares {
    /// Creates shares of this many requests for each user.
    pub(crate) fn new(permits: usize) -> Self {
        Self { permits: permits.max(1), by_user: Arc::default() }
    }

    /// Returns the semaphore that all connections of a user share.
    pub(crate) fn of(&self, user: &UserName) -> Arc<Semaphore> {
        let mut by_user = self.by_user.lock();
        if let Some(share) = by_user.get(user).and_then(Weak::upgrade) {
            return share;
        }
        // Removes entries of users without connections, so that there are no more entries than
        // connections.
        by_user.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(self.permits));
        by_user.insert(user.clone(), Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_up_share_leaves_other_users_theirs() {
        let shares = RequestShares::new(2);
        let [eve, bob] = ["eve", "bob"].map(|name| UserName::new(name).expect("a name"));
        let (first, second) = (shares.of(&eve), shares.of(&eve));
        let held = [first.clone(), second.clone()].map(|share| share.try_acquire_owned().expect("free"));
        assert!(first.try_acquire().is_err() && second.try_acquire().is_err());
        assert!(shares.of(&bob).try_acquire().is_ok());
        drop((held, first, second));
        let _bob = shares.of(&bob);
        assert_eq!(shares.by_user.lock().len(), 1, "users without connections take no space");
    }
}
