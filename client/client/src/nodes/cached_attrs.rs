//! Cached attributes of an open inode, and how far they are valid.

use sealstone_mds_protocol::Stat;
use tokio::time::Instant;

/// The attributes as this client knows them.
#[derive(Default)]
pub(super) struct CachedAttrs {
    /// File size as programs on this client see it.
    pub(super) size: u64,
    /// The last attributes from the server.
    pub(super) stat: Option<Stat>,
    /// Number of the lease under which the attributes were received; 0 for none.
    pub(super) lease_seen: u64,
    /// Number of local changes of attributes whose result is not known.
    pub(super) change_epoch: u64,
    /// Its value when the cached attributes were requested.
    pub(super) cached_epoch: u64,
    /// Version of the content, if only this client has changed it since the open.
    pub(super) exclusive_since_version: Option<u64>,
    /// Whether rights were changed here since the open.
    pub(super) rights_changed: bool,
    /// No lease is requested before this time, since the server denied one.
    pub(super) no_lease_until: Option<Instant>,
}

impl CachedAttrs {
    /// Returns the version of the last attributes from the server.
    pub(super) fn version(&self) -> Option<u64> {
        self.stat.as_ref().map(|stat| stat.version)
    }

    /// Whether newer attributes than these are known.
    pub(super) fn is_newer_than(&self, stat: &Stat) -> bool {
        self.version().is_some_and(|known| known > stat.version)
    }

    /// Whether the attributes were received under this lease, and no local change of them is
    /// unknown.
    pub(super) fn is_current_under(&self, lease: u64) -> bool {
        self.lease_seen == lease && self.cached_epoch == self.change_epoch
    }

    /// Records a local change of attributes whose result is not known.
    pub(super) fn note_change(&mut self, rights: bool) {
        self.change_epoch += 1;
        self.rights_changed |= rights;
    }

    /// Records the version after a change of this client. If it grew by more than one, another
    /// client wrote in between.
    pub(super) fn note_own_change(&mut self, version: u64) {
        self.exclusive_since_version =
            self.exclusive_since_version.filter(|known| version <= known + 1).map(|_| version);
    }
}
