//! The queue of local changes of names, in order, until the server has acknowledged them.
//!
//! Does: keeps the changes, the reserved inode numbers, and which change concerns which node or
//! name.
//! Does not: decide what may be changed locally, or send; `lead` does.
//! Contract: the first change is sent first. A change that is being sent is not modified any more.
//! A change takes about 300 bytes; there are at most [`CHANGES_MAX`].
//! Truth: docs/adr/0050-directory-write-delegations.md.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use sealstone_mds_protocol::{DirLeaseId, GroupName, InodeId, InodeRange, Name, NameChange, Node, UserName};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::shared::lock;
use crate::ClientError;

/// Maximum queued changes. When it is reached, further changes wait until half of them are
/// acknowledged.
pub(super) const CHANGES_MAX: usize = 4_096;
/// Maximum changes in one batch.
pub(super) const TOGETHER_MAX: usize = 256;
/// Maximum bytes of a batch, by an estimate that is not below the real size.
const TOGETHER_BYTES_MAX: usize = 48 * 1024;
/// Maximum directories whose changes are counted.
const TRIES_MAX: usize = 1_024;
/// Lease number of a file that was created locally and not sent yet, so that no other client knows
/// it.
pub(super) const OWN: u64 = u64::MAX;

/// Attempts to get a delegation on one directory.
#[derive(Clone, Copy, Debug)]
struct Try {
    changes: u32,
    asking: bool,
    not_before: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Book {
    /// A dropped change leaves `None`, so that sequence numbers do not shift.
    queue: VecDeque<Option<NameChange>>,
    /// Number of changes that were removed from the front.
    first: u64,
    /// Length of the front part that is being sent.
    sent: usize,
    /// Sequence number of the last change that concerns each node.
    touched: HashMap<InodeId, u64>,
    /// Sequence number of the last change that concerns each name.
    named: HashMap<(InodeId, Name), u64>,
    /// Files created here that are open and not sent yet, with the sequence number of the creation.
    held: HashMap<InodeId, u64>,
    numbers: VecDeque<Node>,
    asking_numbers: bool,
    /// Owner and group of a new node, by the group that was requested, as the server chose them
    /// before.
    makers: HashMap<Option<GroupName>, (UserName, Option<GroupName>)>,
    tries: HashMap<InodeId, Try>,
    /// The first refusal, until it is reported.
    error: Option<ClientError>,
}

/// The queue with its notifications.
#[derive(Default)]
pub(super) struct Ledger {
    book: Mutex<Book>,
    /// Notified when a change is queued.
    pub(super) more: Notify,
    /// Notified when a request waits for the queue.
    pub(super) hurry: Notify,
    /// Notified when changes were acknowledged or dropped.
    pub(super) moved: Notify,
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
fn about(change: &NameChange) -> impl Iterator<Item = InodeId> {
    change.nodes().chain(change.directories().map(|directory| directory.inode))
}

/// Returns the names that a change concerns.
fn names(change: &NameChange) -> impl Iterator<Item = (InodeId, &Name)> {
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

impl Ledger {
    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }

    /// Returns the sequence number to flush before a request about these nodes; none if all is
    /// acknowledged.
    pub(super) fn about(&self, nodes: &[InodeId]) -> Option<u64> {
        let book = self.book();
        if book.queue.is_empty() {
            return None;
        }
        nodes.iter().filter_map(|node| book.touched.get(node).copied()).max()
    }

    /// As [`Self::about`], for a name.
    pub(super) fn about_name(&self, directory: InodeId, name: &Name) -> Option<u64> {
        let book = self.book();
        if book.queue.is_empty() {
            return None;
        }
        book.named.get(&(directory, name.clone())).copied()
    }

    /// As [`Self::about`], for all changes.
    pub(super) fn about_all(&self) -> Option<u64> {
        let book = self.book();
        (!book.queue.is_empty()).then(|| book.upto())
    }

    /// Whether the changes up to `upto` are acknowledged.
    pub(super) fn is_told(&self, upto: u64) -> bool {
        self.book().first >= upto
    }

    /// Whether the file was created here and not sent yet.
    pub(super) fn is_own(&self, inode: InodeId) -> bool {
        self.book().is_own(inode)
    }
}

impl Book {
    pub(super) fn is_full(&self) -> bool {
        // Changes count until they are acknowledged.
        self.queue.len() >= CHANGES_MAX
    }

    /// Returns the sequence number to wait for before more is queued; none if there is space.
    pub(super) fn room_after(&self) -> Option<u64> {
        self.is_full().then(|| self.upto() - CHANGES_MAX as u64 / 2)
    }

    /// Whether a batch is not full yet, so that it is worth waiting for more.
    pub(super) fn waits_for_more(&self) -> bool {
        self.queue.len() < TOGETHER_MAX
    }

    /// Whether the file was created here and not sent yet.
    pub(super) fn is_own(&self, inode: InodeId) -> bool {
        self.held.contains_key(&inode)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the sequence number of the last change.
    fn upto(&self) -> u64 {
        self.first + self.queue.len() as u64
    }

    fn touch(&mut self, change: &NameChange, upto: u64) {
        self.touched.extend(about(change).map(|node| (node, upto)));
        self.named.extend(names(change).map(|(directory, name)| ((directory, name.clone()), upto)));
    }

    /// Queues a change and returns its sequence number.
    pub(super) fn push(&mut self, change: NameChange) -> u64 {
        let upto = self.upto() + 1;
        self.touch(&change, upto);
        if let NameChange::Create(made) = &change
            && made.held
        {
            self.held.insert(made.inode, upto);
        }
        self.queue.push_back(Some(change));
        upto
    }

    /// Records that an unwritten new file was closed. Returns whether the close has to be queued,
    /// since its creation as open was sent.
    pub(super) fn let_go(&mut self, inode: InodeId) -> bool {
        let Some(upto) = self.held.remove(&inode) else { return true };
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
    pub(super) fn send(&mut self) -> Vec<NameChange> {
        let (mut bytes, mut changes) = (0, Vec::new());
        self.sent = 0;
        for change in &self.queue {
            if let Some(change) = change {
                bytes += size_of(change);
                if bytes > TOGETHER_BYTES_MAX || changes.len() == TOGETHER_MAX {
                    break;
                }
                changes.push(change.clone());
            }
            self.sent += 1;
        }
        changes
    }

    /// Removes the first `done` changes, which were acknowledged.
    pub(super) fn told(&mut self, done: usize) {
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
        self.forget(&change);
        Some(change)
    }

    /// Removes the index entries of a change, unless a later change has replaced them.
    fn forget(&mut self, change: &NameChange) {
        let Self { touched, named, held, first, .. } = self;
        for node in about(change) {
            if touched.get(&node).is_some_and(|upto| upto <= first) {
                touched.remove(&node);
            }
        }
        for (directory, name) in names(change) {
            let key = (directory, name.clone());
            if named.get(&key).is_some_and(|upto| upto <= first) {
                named.remove(&key);
            }
        }
        if let NameChange::Create(made) = change
            && held.get(&made.inode).is_some_and(|upto| upto <= first)
        {
            held.remove(&made.inode);
        }
    }

    /// Drops all changes under a delegation and keeps the others in order. Must not be called while
    /// a batch is in flight.
    pub(super) fn give_up(&mut self, there: DirLeaseId) -> Vec<NameChange> {
        self.sent = 0;
        let is_there = |change: &NameChange| change.directories().any(|directory| directory == there);
        let gone: Vec<NameChange> =
            self.queue.iter_mut().filter_map(|change| change.take_if(|change| is_there(change))).collect();
        while self.queue.front().is_some_and(Option::is_none) {
            self.queue.pop_front();
            self.first += 1;
        }
        for change in &gone {
            if let NameChange::Create(made) = change {
                self.held.remove(&made.inode);
            }
        }
        self.touched.clear();
        self.named.clear();
        let queue = core::mem::take(&mut self.queue);
        for (upto, change) in (self.first + 1..).zip(&queue) {
            change.iter().for_each(|change| self.touch(change, upto));
        }
        self.queue = queue;
        gone
    }

    /// Returns the next reserved inode number.
    pub(super) fn number(&self) -> Option<Node> {
        self.numbers.front().copied()
    }

    pub(super) fn use_number(&mut self) {
        self.numbers.pop_front();
    }

    pub(super) fn numbers_left(&self) -> usize {
        self.numbers.len()
    }

    /// Whether inode numbers should be requested. If so, the caller requests them and calls
    /// [`Book::asked_numbers`].
    pub(super) fn ask_numbers(&mut self, below: usize) -> bool {
        self.numbers.len() < below && !core::mem::replace(&mut self.asking_numbers, true)
    }

    /// Ends a request for inode numbers with its result.
    pub(super) fn asked_numbers(&mut self, numbers: Option<InodeRange>) {
        self.asking_numbers = false;
        self.reserve(numbers);
    }

    pub(super) fn reserve(&mut self, numbers: Option<InodeRange>) {
        let Some(InodeRange { first, proofs }) = numbers else { return };
        let node = |(inode, proof)| Node { inode: InodeId(inode), proof };
        self.numbers.extend((first.0..).zip(proofs).map(node));
    }

    /// Returns owner and group of a new node, if the server has created one with this group before.
    pub(super) fn maker(&self, group: Option<&GroupName>) -> Option<&(UserName, Option<GroupName>)> {
        self.makers.get(&group.cloned())
    }

    /// Records the owner and group that the server gave a new node.
    pub(super) fn note_maker(&mut self, group: Option<&GroupName>, made: (&UserName, Option<&GroupName>)) {
        // Otherwise the group came from the directory.
        if group == made.1 && !self.makers.contains_key(&group.cloned()) {
            self.makers.insert(group.cloned(), (made.0.clone(), made.1.cloned()));
        }
    }

    /// Forgets what is bound to a server or session: numbers, owners and attempts.
    pub(super) fn begin_anew(&mut self) {
        self.makers.clear();
        self.tries.clear();
        self.numbers.clear();
    }

    /// Drops all reserved numbers, since the server refused one of them.
    pub(super) fn forget_numbers(&mut self) {
        self.numbers.clear();
    }

    /// Counts a requested change. Returns whether to request a delegation now; if so, the caller
    /// calls [`Book::tried`] afterwards.
    pub(super) fn is_to_be_led(&mut self, directory: InodeId, after: u32) -> bool {
        if self.tries.len() >= TRIES_MAX && !self.tries.contains_key(&directory) {
            self.tries.retain(|_, one| one.asking);
        }
        let new = Try { changes: 0, asking: false, not_before: None };
        let one = self.tries.entry(directory).or_insert(new);
        one.changes += 1;
        let later = one.not_before.is_some_and(|at| Instant::now() < at);
        let asks = one.changes >= after && !one.asking && !later;
        one.asking |= asks;
        asks
    }

    /// Ends a request for a delegation. After a refusal none is requested before `not_before`.
    pub(super) fn tried(&mut self, directory: InodeId, not_before: Option<Instant>) {
        match self.tries.get_mut(&directory) {
            Some(one) if not_before.is_some() => (one.asking, one.not_before) = (false, not_before),
            _ => _ = self.tries.remove(&directory),
        }
    }

    /// Records a refusal, to be reported once.
    pub(super) fn fail(&mut self, error: ClientError) {
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
    fn who_asks_about_a_node_waits_for_the_last_change_of_it_and_for_no_other() {
        let ledger = Ledger::default();
        assert_eq!((ledger.about_all(), ledger.about(&[InodeId(1)])), (None, None));
        ledger.book().push(made(1, 10));
        ledger.book().push(made(2, 11));
        ledger.book().push(removed(1, 10));
        let about = |node| ledger.about(&[InodeId(node)]);
        assert_eq!(
            [about(1), about(10), about(2), about(11), about(3)],
            [Some(3), Some(3), Some(2), Some(2), None]
        );
        let named = |directory, at| ledger.about_name(InodeId(directory), &Name::new(at).unwrap());
        assert_eq!([named(1, "n10"), named(2, "n11"), named(2, "n10")], [Some(3), Some(2), None]);
        assert_eq!(ledger.book().send().len(), 3);
        ledger.book().told(2);
        assert!(ledger.is_told(2) && !ledger.is_told(3));
        assert_eq!([about(1), about(2), about(11)], [Some(3), None, None]);
        ledger.book().told(1);
        assert_eq!((ledger.about_all(), ledger.book().touched.len()), (None, 0));
        assert!(ledger.book().named.is_empty());
    }

    #[test]
    fn a_file_is_ours_alone_until_the_server_is_told() {
        let ledger = Ledger::default();
        ledger.book().push(made(1, 10));
        assert!(ledger.is_own(InodeId(10)));
        let _ = ledger.book().send();
        ledger.book().told(1);
        assert!(!ledger.is_own(InodeId(10)));
    }

    #[test]
    fn who_lets_go_before_the_server_is_told_has_it_never_hear_of_that() {
        let mut book = Book::default();
        book.push(made(1, 10));
        book.push(made(1, 11));
        assert_eq!(book.send().len(), 2);
        book.push(made(1, 12));
        assert!(book.let_go(InodeId(10)), "the creation is being sent");
        assert!(!book.let_go(InodeId(12)));
        book.told(2);
        let next = book.send();
        assert!(matches!(&next[..], [NameChange::Create(made)] if !made.held && made.inode == InodeId(12)));
        assert!(book.let_go(InodeId(11)), "the creation was sent");
    }

    #[test]
    fn what_is_given_up_goes_with_all_that_was_done_under_its_lease_and_nothing_else() {
        let ledger = Ledger::default();
        for change in [made(1, 10), made(2, 11), removed(1, 10), removed(2, 11)] {
            ledger.book().push(change);
        }
        let gone = ledger.book().give_up(there(1));
        assert_eq!(gone, [made(1, 10), removed(1, 10)]);
        assert!(ledger.is_told(1) && !ledger.is_told(2), "remaining changes are not acknowledged");
        assert!(!ledger.is_own(InodeId(10)) && ledger.is_own(InodeId(11)));
        assert_eq!(ledger.book().send(), [made(2, 11), removed(2, 11)]);
        ledger.book().told(2);
        assert!(ledger.is_told(4) && ledger.about_all().is_none());
        assert_eq!(ledger.book().touched.len(), 0);
    }

    #[test]
    fn no_more_is_told_together_than_a_request_has_room_for() {
        let mut book = Book::default();
        for inode in 0..1000 {
            let name = Name::new("x".repeat(255)).unwrap();
            let NameChange::Create(made) = made(1, inode) else { unreachable!() };
            book.push(NameChange::Create(CreateOp { name, ..made }));
        }
        let changes = book.send();
        assert!(changes.len() > 64);
        let request = sealstone_mds_protocol::Request::NameBatch { changes };
        assert!(request.encode(0).unwrap().len() < 60_000);
    }

    #[test]
    fn a_directory_is_asked_for_once_at_a_time_and_after_a_refusal_not_at_once() {
        let mut book = Book::default();
        let directory = InodeId(1);
        assert!(!book.is_to_be_led(directory, 2));
        assert!(book.is_to_be_led(directory, 2));
        assert!(!book.is_to_be_led(directory, 2), "a request is in flight");
        book.tried(directory, Some(Instant::now() + core::time::Duration::from_secs(60)));
        assert!(!book.is_to_be_led(directory, 2));
        book.tried(directory, None);
        assert!(book.is_to_be_led(directory, 1));
    }
}
