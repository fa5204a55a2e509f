//! The queue of local changes of names, in order, until the server has acknowledged them.
//!
//! Does: keeps the changes, the reserved inode numbers, and which change concerns which node or
//! name.
//! Does not: decide what may be changed locally, or send; `name_writeback` does.
//! Contract: the first change is sent first. A change that is being sent is not modified any more.
//! A change takes about 300 bytes; there are at most [`CHANGES_MAX`].
//! Truth: docs/adr/0050-directory-write-delegations.md.

use std::collections::{HashMap, VecDeque};

use parking_lot::{Mutex, MutexGuard};
use sealstone_mds_protocol::{DirLeaseId, GroupName, InodeId, InodeRange, Name, NameChange, Node, UserName};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::ClientError;

/// Maximum queued changes. When it is reached, further changes wait until half of them are
/// acknowledged.
pub(super) const CHANGES_MAX: usize = 4_096;
/// Maximum changes in one batch.
pub(super) const BATCH_MAX: usize = 256;
/// Maximum bytes of a batch, by an estimate that is not below the real size.
const BATCH_BYTES_MAX: usize = 48 * 1024;
/// Maximum directories whose changes are counted.
const ATTEMPTS_MAX: usize = 1_024;
/// Lease number of a file that was created locally and not sent yet, so that no other client knows
/// it.
pub(super) const LEASE_NOT_YET_ASSIGNED: u64 = u64::MAX;

/// Attempts to get a delegation on one directory.
#[derive(Clone, Copy, Debug)]
struct DelegationAttempt {
    changes: u32,
    requesting: bool,
    not_before: Option<Instant>,
}

#[derive(Default)]
pub(super) struct QueueState {
    /// A dropped change leaves `None`, so that sequence numbers do not shift.
    queue: VecDeque<Option<NameChange>>,
    /// Number of changes that were removed from the front.
    first: u64,
    /// Length of the front part that is being sent.
    sent: usize,
    /// Sequence number of the last change that concerns each node.
    last_by_node: HashMap<InodeId, u64>,
    /// Sequence number of the last change that concerns each name.
    last_by_name: HashMap<(InodeId, Name), u64>,
    /// Files created here that are open and not sent yet, with the sequence number of the creation.
    unsent_open: HashMap<InodeId, u64>,
    free_inodes: VecDeque<Node>,
    requesting_inodes: bool,
    /// Owner and group of a new node, by the group that was requested, as the server chose them
    /// before.
    node_owners: HashMap<Option<GroupName>, (UserName, Option<GroupName>)>,
    attempts: HashMap<InodeId, DelegationAttempt>,
    /// The first refusal, until it is reported.
    error: Option<ClientError>,
}

/// The queue with its notifications.
#[derive(Default)]
pub(super) struct NameOpQueue {
    state: Mutex<QueueState>,
    /// Notified when a change is queued.
    pub(super) queued: Notify,
    /// Notified when a request waits for the queue.
    pub(super) urgent: Notify,
    /// Notified when changes were acknowledged or dropped.
    pub(super) acked: Notify,
}

/// Returns an upper estimate of the encoded bytes of a change.
fn size_of(change: &NameChange) -> usize {
    const FIXED: usize = 160;
    match change {
        NameChange::Create(made) => {
            let target = match &made.what {
                sealstone_mds_protocol::NodeKind::Symlink(target) => target.as_bytes().len(),
                _ => 0,
            };
            let group = made.group.as_ref().map_or(0, |group| group.as_str().len());
            FIXED + made.name.as_bytes().len() + group + target
        }
        NameChange::Unlink(removed) => FIXED + removed.name.as_bytes().len(),
        NameChange::Rename(renamed) => FIXED + renamed.from.as_bytes().len() + renamed.to.as_bytes().len(),
        NameChange::Close(_) => 16,
    }
}

/// Returns all nodes that a change concerns, directories included.
fn nodes_of(change: &NameChange) -> impl Iterator<Item = InodeId> {
    change.nodes().chain(change.directories().map(|directory| directory.inode))
}

/// Returns the names that a change concerns.
fn names_of(change: &NameChange) -> impl Iterator<Item = (InodeId, &Name)> {
    let (first, second) = match change {
        NameChange::Create(made) => (Some((made.directory.inode, &made.name)), None),
        NameChange::Unlink(removed) => (Some((removed.directory.inode, &removed.name)), None),
        NameChange::Rename(renamed) => {
            let from = (renamed.from_directory.inode, &renamed.from);
            (Some(from), Some((renamed.to_directory.inode, &renamed.to)))
        }
        NameChange::Close(_) => (None, None),
    };
    first.into_iter().chain(second)
}

impl NameOpQueue {
    pub(super) fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }

    /// Returns the sequence number to flush before a request about these nodes; none if all is
    /// acknowledged.
    pub(super) fn flush_upto(&self, nodes: &[InodeId]) -> Option<u64> {
        let state = self.state();
        if state.queue.is_empty() {
            return None;
        }
        nodes.iter().filter_map(|node| state.last_by_node.get(node).copied()).max()
    }

    /// As [`Self::flush_upto`], for a name.
    pub(super) fn flush_upto_name(&self, directory: InodeId, name: &Name) -> Option<u64> {
        let state = self.state();
        if state.queue.is_empty() {
            return None;
        }
        state.last_by_name.get(&(directory, name.clone())).copied()
    }

    /// As [`Self::flush_upto`], for all changes.
    pub(super) fn flush_upto_all(&self) -> Option<u64> {
        let state = self.state();
        (!state.queue.is_empty()).then(|| state.last_seq())
    }

    /// Whether the changes up to `upto` are acknowledged.
    pub(super) fn is_acked(&self, upto: u64) -> bool {
        self.state().first >= upto
    }

    /// Whether the file was created here and not sent yet.
    pub(super) fn is_unsent_create(&self, inode: InodeId) -> bool {
        self.state().is_unsent_create(inode)
    }
}

impl QueueState {
    pub(super) fn is_full(&self) -> bool {
        // Changes count until they are acknowledged.
        self.queue.len() >= CHANGES_MAX
    }

    /// Returns the sequence number to wait for before more is queued; none if there is space.
    pub(super) fn space_after(&self) -> Option<u64> {
        self.is_full().then(|| self.last_seq() - CHANGES_MAX as u64 / 2)
    }

    /// Whether a batch is not full yet, so that it is worth waiting for more.
    pub(super) fn has_batch_space(&self) -> bool {
        self.queue.len() < BATCH_MAX
    }

    /// Whether the file was created here and not sent yet.
    pub(super) fn is_unsent_create(&self, inode: InodeId) -> bool {
        self.unsent_open.contains_key(&inode)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the sequence number of the last change.
    fn last_seq(&self) -> u64 {
        self.first + self.queue.len() as u64
    }

    fn index(&mut self, change: &NameChange, upto: u64) {
        self.last_by_node.extend(nodes_of(change).map(|node| (node, upto)));
        self.last_by_name.extend(names_of(change).map(|(directory, name)| ((directory, name.clone()), upto)));
    }

    /// Queues a change and returns its sequence number.
    pub(super) fn push(&mut self, change: NameChange) -> u64 {
        let upto = self.last_seq() + 1;
        self.index(&change, upto);
        if let NameChange::Create(made) = &change
            && made.held
        {
            self.unsent_open.insert(made.inode, upto);
        }
        self.queue.push_back(Some(change));
        upto
    }

    /// Records that an unwritten new file was closed. Returns whether the close has to be queued,
    /// since its creation as open was sent.
    pub(super) fn close_unsent(&mut self, inode: InodeId) -> bool {
        let Some(upto) = self.unsent_open.remove(&inode) else { return true };
        let at = (upto - self.first) as usize;
        match at.checked_sub(1).filter(|at| *at >= self.sent).and_then(|at| self.queue.get_mut(at)) {
            Some(Some(NameChange::Create(made))) if made.inode == inode => {
                made.held = false;
                false
            }
            _ => true,
        }
    }

    /// Returns the next batch; its changes are not modified from here on.
    pub(super) fn next_batch(&mut self) -> Vec<NameChange> {
        let (mut bytes, mut changes) = (0, Vec::new());
        self.sent = 0;
        for change in &self.queue {
            if let Some(change) = change {
                bytes += size_of(change);
                if bytes > BATCH_BYTES_MAX || changes.len() == BATCH_MAX {
                    break;
                }
                changes.push(change.clone());
            }
            self.sent += 1;
        }
        changes
    }

    /// Removes the first `done` changes, which were acknowledged.
    pub(super) fn acknowledge(&mut self, done: usize) {
        for _ in 0..done {
            drop(self.pop());
        }
        self.sent = 0;
    }

    /// Removes the first change.
    pub(super) fn pop(&mut self) -> Option<NameChange> {
        self.sent = 0;
        let mut popped = None;
        while self.queue.front().is_some_and(|next| next.is_none() || popped.is_none()) {
            self.first += 1;
            popped = popped.or(self.queue.pop_front().flatten());
        }
        let change = popped?;
        self.unindex(&change);
        Some(change)
    }

    /// Removes the index entries of a change, unless a later change has replaced them.
    fn unindex(&mut self, change: &NameChange) {
        let Self { last_by_node, last_by_name, unsent_open, first, .. } = self;
        for node in nodes_of(change) {
            if last_by_node.get(&node).is_some_and(|upto| upto <= first) {
                last_by_node.remove(&node);
            }
        }
        for (directory, name) in names_of(change) {
            let key = (directory, name.clone());
            if last_by_name.get(&key).is_some_and(|upto| upto <= first) {
                last_by_name.remove(&key);
            }
        }
        if let NameChange::Create(made) = change
            && unsent_open.get(&made.inode).is_some_and(|upto| upto <= first)
        {
            unsent_open.remove(&made.inode);
        }
    }

    /// Drops all changes under a delegation and keeps the others in order. Must not be called while
    /// a batch is in flight.
    pub(super) fn drop_under(&mut self, delegation: DirLeaseId) -> Vec<NameChange> {
        self.sent = 0;
        let is_under = |change: &NameChange| change.directories().any(|directory| directory == delegation);
        let dropped: Vec<NameChange> =
            self.queue.iter_mut().filter_map(|change| change.take_if(|change| is_under(change))).collect();
        while self.queue.front().is_some_and(Option::is_none) {
            self.queue.pop_front();
            self.first += 1;
        }
        for change in &dropped {
            if let NameChange::Create(made) = change {
                self.unsent_open.remove(&made.inode);
            }
        }
        self.last_by_node.clear();
        self.last_by_name.clear();
        let queue = core::mem::take(&mut self.queue);
        for (upto, change) in (self.first + 1..).zip(&queue) {
            change.iter().for_each(|change| self.index(change, upto));
        }
        self.queue = queue;
        dropped
    }

    /// Returns the next reserved inode number.
    pub(super) fn next_inode(&self) -> Option<Node> {
        self.free_inodes.front().copied()
    }

    pub(super) fn take_inode(&mut self) {
        self.free_inodes.pop_front();
    }

    pub(super) fn inodes_left(&self) -> usize {
        self.free_inodes.len()
    }

    /// Whether inode numbers should be requested. If so, the caller requests them and calls
    /// [`QueueState::end_inode_request`].
    pub(super) fn start_inode_request(&mut self, below: usize) -> bool {
        self.free_inodes.len() < below && !core::mem::replace(&mut self.requesting_inodes, true)
    }

    /// Ends a request for inode numbers with its result.
    pub(super) fn end_inode_request(&mut self, numbers: Option<InodeRange>) {
        self.requesting_inodes = false;
        self.add_inodes(numbers);
    }

    pub(super) fn add_inodes(&mut self, numbers: Option<InodeRange>) {
        let Some(InodeRange { first, proofs }) = numbers else { return };
        let node = |(inode, proof)| Node { inode: InodeId(inode), proof };
        self.free_inodes.extend((first.0..).zip(proofs).map(node));
    }

    /// Returns owner and group of a new node, if the server has created one with this group before.
    pub(super) fn new_node_owner(&self, group: Option<&GroupName>) -> Option<&(UserName, Option<GroupName>)> {
        self.node_owners.get(&group.cloned())
    }

    /// Records the owner and group that the server gave a new node.
    pub(super) fn record_new_node_owner(
        &mut self,
        group: Option<&GroupName>,
        made: (&UserName, Option<&GroupName>),
    ) {
        // Otherwise the group came from the directory.
        if group == made.1 && !self.node_owners.contains_key(&group.cloned()) {
            self.node_owners.insert(group.cloned(), (made.0.clone(), made.1.cloned()));
        }
    }

    /// Forgets what is bound to a server or session: numbers, owners and attempts.
    pub(super) fn reset(&mut self) {
        self.node_owners.clear();
        self.attempts.clear();
        self.free_inodes.clear();
    }

    /// Drops all reserved numbers, since the server refused one of them.
    pub(super) fn drop_inodes(&mut self) {
        self.free_inodes.clear();
    }

    /// Counts a requested change. Returns whether to request a delegation now; if so, the caller
    /// calls [`QueueState::end_delegation_request`] afterwards.
    pub(super) fn count_change(&mut self, directory: InodeId, after: u32) -> bool {
        if self.attempts.len() >= ATTEMPTS_MAX && !self.attempts.contains_key(&directory) {
            self.attempts.retain(|_, one| one.requesting);
        }
        let new = DelegationAttempt { changes: 0, requesting: false, not_before: None };
        let one = self.attempts.entry(directory).or_insert(new);
        one.changes += 1;
        let later = one.not_before.is_some_and(|at| Instant::now() < at);
        let requests = one.changes >= after && !one.requesting && !later;
        one.requesting |= requests;
        requests
    }

    /// Ends a request for a delegation. After a refusal none is requested before `not_before`.
    pub(super) fn end_delegation_request(&mut self, directory: InodeId, not_before: Option<Instant>) {
        match self.attempts.get_mut(&directory) {
            Some(one) if not_before.is_some() => (one.requesting, one.not_before) = (false, not_before),
            _ => _ = self.attempts.remove(&directory),
        }
    }

    /// Records a refusal, to be reported once.
    pub(super) fn record_error(&mut self, error: ClientError) {
        self.error.get_or_insert(error);
    }

    pub(super) fn take_error(&mut self) -> Result<(), ClientError> {
        self.error.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealstone_mds_protocol::{CreateOp, Name, NodeKind, UnlinkOp};

    fn there(inode: u64) -> DirLeaseId {
        DirLeaseId { inode: InodeId(inode), epoch: 1, lease: 2 }
    }

    fn made(directory: u64, inode: u64) -> NameChange {
        NameChange::Create(CreateOp {
            directory: there(directory),
            name: Name::new(format!("n{inode}")).unwrap(),
            inode: InodeId(inode),
            what: NodeKind::File,
            mode: 0o644,
            umask: 0,
            owner: None,
            group: None,
            at_ms: 1,
            held: true,
        })
    }

    fn removed(directory: u64, inode: u64) -> NameChange {
        NameChange::Unlink(UnlinkOp {
            directory: there(directory),
            name: Name::new(format!("n{inode}")).unwrap(),
            inode: InodeId(inode),
            at_ms: 1,
            close: false,
        })
    }

    #[test]
    fn request_waits_only_for_changes_of_its_node() {
        let queue = NameOpQueue::default();
        assert_eq!((queue.flush_upto_all(), queue.flush_upto(&[InodeId(1)])), (None, None));
        queue.state().push(made(1, 10));
        queue.state().push(made(2, 11));
        queue.state().push(removed(1, 10));
        let about = |node| queue.flush_upto(&[InodeId(node)]);
        assert_eq!(
            [about(1), about(10), about(2), about(11), about(3)],
            [Some(3), Some(3), Some(2), Some(2), None]
        );
        let named = |directory, at| queue.flush_upto_name(InodeId(directory), &Name::new(at).unwrap());
        assert_eq!([named(1, "n10"), named(2, "n11"), named(2, "n10")], [Some(3), Some(2), None]);
        assert_eq!(queue.state().next_batch().len(), 3);
        queue.state().acknowledge(2);
        assert!(queue.is_acked(2) && !queue.is_acked(3));
        assert_eq!([about(1), about(2), about(11)], [Some(3), None, None]);
        queue.state().acknowledge(1);
        assert_eq!((queue.flush_upto_all(), queue.state().last_by_node.len()), (None, 0));
        assert!(queue.state().last_by_name.is_empty());
    }

    #[test]
    fn create_is_unsent_until_acknowledged() {
        let queue = NameOpQueue::default();
        queue.state().push(made(1, 10));
        assert!(queue.is_unsent_create(InodeId(10)));
        let _ = queue.state().next_batch();
        queue.state().acknowledge(1);
        assert!(!queue.is_unsent_create(InodeId(10)));
    }

    #[test]
    fn close_before_send_is_merged_into_create() {
        let mut queue = QueueState::default();
        queue.push(made(1, 10));
        queue.push(made(1, 11));
        assert_eq!(queue.next_batch().len(), 2);
        queue.push(made(1, 12));
        assert!(queue.close_unsent(InodeId(10)), "the creation is being sent");
        assert!(!queue.close_unsent(InodeId(12)));
        queue.acknowledge(2);
        let next = queue.next_batch();
        assert!(matches!(&next[..], [NameChange::Create(made)] if !made.held && made.inode == InodeId(12)));
        assert!(queue.close_unsent(InodeId(11)), "the creation was sent");
    }

    #[test]
    fn dropping_delegation_drops_only_its_changes() {
        let queue = NameOpQueue::default();
        for change in [made(1, 10), made(2, 11), removed(1, 10), removed(2, 11)] {
            queue.state().push(change);
        }
        let dropped = queue.state().drop_under(there(1));
        assert_eq!(dropped, [made(1, 10), removed(1, 10)]);
        assert!(queue.is_acked(1) && !queue.is_acked(2), "remaining changes are not acknowledged");
        assert!(!queue.is_unsent_create(InodeId(10)) && queue.is_unsent_create(InodeId(11)));
        assert_eq!(queue.state().next_batch(), [made(2, 11), removed(2, 11)]);
        queue.state().acknowledge(2);
        assert!(queue.is_acked(4) && queue.flush_upto_all().is_none());
        assert_eq!(queue.state().last_by_node.len(), 0);
    }

    #[test]
    fn batch_fits_into_one_request() {
        let mut queue = QueueState::default();
        for inode in 0..1000 {
            let name = Name::new("x".repeat(255)).unwrap();
            let NameChange::Create(made) = made(1, inode) else { unreachable!() };
            queue.push(NameChange::Create(CreateOp { name, ..made }));
        }
        let changes = queue.next_batch();
        assert!(changes.len() > 64);
        let request = sealstone_mds_protocol::Request::NameBatch { changes };
        assert!(request.encode(0).unwrap().len() < 60_000);
    }

    #[test]
    fn delegation_is_requested_once_and_later_after_refusal() {
        let mut queue = QueueState::default();
        let directory = InodeId(1);
        assert!(!queue.count_change(directory, 2));
        assert!(queue.count_change(directory, 2));
        assert!(!queue.count_change(directory, 2), "a request is in flight");
        queue.end_delegation_request(directory, Some(Instant::now() + core::time::Duration::from_secs(60)));
        assert!(!queue.count_change(directory, 2));
        queue.end_delegation_request(directory, None);
        assert!(queue.count_change(directory, 1));
    }
}
