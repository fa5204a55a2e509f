//! Ends of directory delegations: a request that began before such an end reads the names again.

use std::collections::{HashMap, VecDeque};

use sealstone_mds_protocol::InodeId;

/// Number of ends that are kept; a request during which more happen reads again.
pub(crate) const ENDS_MAX: usize = 4_096;

/// Directories whose delegations ended, each with the number of its last end.
#[derive(Debug, Default)]
pub(super) struct DelegationEnds {
    pub(super) last: u64,
    pub(super) of: HashMap<InodeId, u64>,
    pub(super) order: VecDeque<(u64, InodeId)>,
    /// Number of the last dropped end.
    forgotten: u64,
}

impl DelegationEnds {
    pub(super) fn note(&mut self, id: InodeId) {
        self.last += 1;
        self.of.insert(id, self.last);
        self.order.push_back((self.last, id));
        if self.order.len() > ENDS_MAX
            && let Some((number, id)) = self.order.pop_front()
        {
            self.forgotten = number;
            if self.of.get(&id) == Some(&number) {
                self.of.remove(&id);
            }
        }
    }

    /// Whether a delegation of this directory may have ended since.
    pub(super) fn since(&self, id: InodeId, read_point: u64) -> bool {
        self.forgotten > read_point || self.of.get(&id).is_some_and(|end| *end > read_point)
    }
}
