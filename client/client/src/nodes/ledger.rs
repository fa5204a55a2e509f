//! Changes of names that were made here, in their order, until the server has been told of them.
//!
//! Does: keep them, the numbers that are left for nodes to be made, and what is about which node; say up to where the server was
//! told. Does not: decide what may be done here, or tell; `lead` does.
//! Contract: the first one is told first. What the server is being told does not change any more. Some 300 bytes for each
//! change, [`CHANGES_MAX`] at most.
//! Truth: docs/adr/0050-directory-write-delegations.md.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use sealstone_mds_protocol::{AheadIn, GroupName, InodeId, Name, NameChange, Node, Numbers, UserName};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::shared::lock;
use crate::ClientError;

/// Changes that the server was not told of yet at most; whoever makes more waits until it was told of half of them.
pub(super) const CHANGES_MAX: usize = 4_096;
/// So many are told together at most.
pub(super) const TOGETHER_MAX: usize = 256;
/// Bytes of those at most, by a guess of each that is no smaller than it is.
const TOGETHER_BYTES_MAX: usize = 48 * 1024;
/// Directories whose changes are counted at most.
const TRIES_MAX: usize = 1_024;
/// What a lease of a file is called that the server was not told of: nobody else knows it.
pub(super) const OWN: u64 = u64::MAX;

/// What was tried to be led.
#[derive(Clone, Copy, Debug)]
struct Try {
    changes: u32,
    asking: bool,
    not_before: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Book {
    /// None: it was given up.
    queue: VecDeque<Option<NameChange>>,
    /// How many were told, or given up, before the first of the queue.
    first: u64,
    /// Up to where in the queue the server is being told.
    sent: usize,
    /// What they are about, and the count of changes with the last of those.
    touched: HashMap<InodeId, u64>,
    /// The same of names.
    named: HashMap<(InodeId, Name), u64>,
    /// Files that were made here, are held open, and that the server was not told of: with the count up to their making.
    held: HashMap<InodeId, u64>,
    numbers: VecDeque<Node>,
    asking_numbers: bool,
    /// Whose what is made here is, by the group that is asked for; as the server did it.
    makers: HashMap<Option<GroupName>, (UserName, Option<GroupName>)>,
    tries: HashMap<InodeId, Try>,
    /// What was refused, until somebody is told.
    error: Option<ClientError>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Ledger {
    book: Mutex<Book>,
    /// There is something to be told.
    pub(super) more: Notify,
    /// Somebody waits for it.
    pub(super) hurry: Notify,
    /// Something was told.
    pub(super) moved: Notify,
}

/// Bytes of a change in a request, or somewhat more.
fn size_of(change: &NameChange) -> usize {
    const FIXED: usize = 160;
    match change {
        NameChange::Made(made) => {
            let target = match &made.what {
                sealstone_mds_protocol::NodeKind::Symlink(target) => target.as_bytes().len(),
                _ => 0,
            };
            let group = made.group.as_ref().map_or(0, |group| group.as_str().len());
            FIXED + made.name.as_bytes().len() + group + target
        }
        NameChange::Removed(removed) => FIXED + removed.name.as_bytes().len(),
        NameChange::Renamed(renamed) => FIXED + renamed.from.as_bytes().len() + renamed.to.as_bytes().len(),
        NameChange::LetGo(_) => 16,
    }
}

/// What a change is about, directories among it.
fn about(change: &NameChange) -> impl Iterator<Item = InodeId> {
    change.nodes().chain(change.directories().map(|directory| directory.inode))
}

/// The names that it is about.
fn names(change: &NameChange) -> impl Iterator<Item = (InodeId, &Name)> {
    let (first, second) = match change {
        NameChange::Made(made) => (Some((made.directory.inode, &made.name)), None),
        NameChange::Removed(removed) => (Some((removed.directory.inode, &removed.name)), None),
        NameChange::Renamed(renamed) => {
            let from = (renamed.from_directory.inode, &renamed.from);
            (Some(from), Some((renamed.to_directory.inode, &renamed.to)))
        }
        NameChange::LetGo(_) => (None, None),
    };
    first.into_iter().chain(second)
}

impl Ledger {
    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }

    /// Up to where the server has to be told before it is asked something about these; none: it knows of all about them.
    pub(super) fn about(&self, nodes: &[InodeId]) -> Option<u64> {
        let book = self.book();
        if book.queue.is_empty() {
            return None;
        }
        nodes.iter().filter_map(|node| book.touched.get(node).copied()).max()
    }

    /// The same of a name.
    pub(super) fn about_name(&self, directory: InodeId, name: &Name) -> Option<u64> {
        let book = self.book();
        if book.queue.is_empty() {
            return None;
        }
        book.named.get(&(directory, name.clone())).copied()
    }

    /// The same of everything.
    pub(super) fn about_all(&self) -> Option<u64> {
        let book = self.book();
        (!book.queue.is_empty()).then(|| book.upto())
    }

    /// Was the server told of so many?
    pub(super) fn is_told(&self, upto: u64) -> bool {
        self.book().first >= upto
    }

    /// Is it a file that nobody but us knows?
    pub(super) fn is_own(&self, inode: InodeId) -> bool {
        self.book().is_own(inode)
    }
}

impl Book {
    pub(super) fn is_full(&self) -> bool {
        // What is being told counts, until it is.
        self.queue.len() >= CHANGES_MAX
    }

    /// Up to where the server has to be told before there is room for much more; none: there is room.
    pub(super) fn room_after(&self) -> Option<u64> {
        self.is_full().then(|| self.upto() - CHANGES_MAX as u64 / 2)
    }

    /// May more come before it is worth telling of what is there?
    pub(super) fn waits_for_more(&self) -> bool {
        self.queue.len() < TOGETHER_MAX
    }

    /// Is it a file that nobody but us knows?
    pub(super) fn is_own(&self, inode: InodeId) -> bool {
        self.held.contains_key(&inode)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many changes were ever made.
    fn upto(&self) -> u64 {
        self.first + self.queue.len() as u64
    }

    fn touch(&mut self, change: &NameChange, upto: u64) {
        self.touched.extend(about(change).map(|node| (node, upto)));
        self.named.extend(names(change).map(|(directory, name)| ((directory, name.clone()), upto)));
    }

    /// Puts a change down; gives the count of changes with it.
    pub(super) fn push(&mut self, change: NameChange) -> u64 {
        let upto = self.upto() + 1;
        self.touch(&change, upto);
        if let NameChange::Made(made) = &change
            && made.held
        {
            self.held.insert(made.inode, upto);
        }
        self.queue.push_back(Some(change));
        upto
    }

    /// A file that was made here is let go of before anybody wrote to it. Says whether the server was told that it is held, or
    /// is being told: then it has to hear of this too.
    pub(super) fn let_go(&mut self, inode: InodeId) -> bool {
        let Some(upto) = self.held.remove(&inode) else { return true };
        let at = (upto - self.first) as usize;
        match at.checked_sub(1).filter(|at| *at >= self.sent).and_then(|at| self.queue.get_mut(at)) {
            Some(Some(NameChange::Made(made))) if made.inode == inode => {
                made.held = false;
                false
            }
            _ => true,
        }
    }

    /// What is to be told next, together; from here on it does not change.
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

    /// The first of these were told.
    pub(super) fn told(&mut self, done: usize) {
        for _ in 0..done {
            drop(self.pop());
        }
        self.sent = 0;
    }

    /// Takes the first one away: it was told, or is given up.
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

    /// Nothing is known any more of what a change was about, unless a later one is about it too.
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
        if let NameChange::Made(made) = change
            && held.get(&made.inode).is_some_and(|upto| upto <= first)
        {
            held.remove(&made.inode);
        }
    }

    /// Gives up what was done in a directory under a lease; what else was done stays, in its order. While nothing is being told.
    pub(super) fn give_up(&mut self, there: AheadIn) -> Vec<NameChange> {
        self.sent = 0;
        let is_there = |change: &NameChange| change.directories().any(|directory| directory == there);
        let gone: Vec<NameChange> =
            self.queue.iter_mut().filter_map(|change| change.take_if(|change| is_there(change))).collect();
        while self.queue.front().is_some_and(Option::is_none) {
            self.queue.pop_front();
            self.first += 1;
        }
        for change in &gone {
            if let NameChange::Made(made) = change {
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

    /// The number of the next node to be made, if one is left.
    pub(super) fn number(&self) -> Option<Node> {
        self.numbers.front().copied()
    }

    pub(super) fn use_number(&mut self) {
        self.numbers.pop_front();
    }

    pub(super) fn numbers_left(&self) -> usize {
        self.numbers.len()
    }

    /// Should numbers be asked for? Then somebody does, until [`Book::asked_numbers`].
    pub(super) fn ask_numbers(&mut self, below: usize) -> bool {
        self.numbers.len() < below && !core::mem::replace(&mut self.asking_numbers, true)
    }

    /// They were: what was reserved, if anything.
    pub(super) fn asked_numbers(&mut self, numbers: Option<Numbers>) {
        self.asking_numbers = false;
        self.reserve(numbers);
    }

    pub(super) fn reserve(&mut self, numbers: Option<Numbers>) {
        let Some(Numbers { first, proofs }) = numbers else { return };
        let node = |(inode, proof)| Node { inode: InodeId(inode), proof };
        self.numbers.extend((first.0..).zip(proofs).map(node));
    }

    /// Whose something is that is made here, if the server made such a thing before.
    pub(super) fn maker(&self, group: Option<&GroupName>) -> Option<&(UserName, Option<GroupName>)> {
        self.makers.get(&group.cloned())
    }

    /// The server made something, for this group, if one was asked for.
    pub(super) fn note_maker(&mut self, group: Option<&GroupName>, made: (&UserName, Option<&GroupName>)) {
        // Else it has its group from its directory.
        if group == made.1 && !self.makers.contains_key(&group.cloned()) {
            self.makers.insert(group.cloned(), (made.0.clone(), made.1.cloned()));
        }
    }

    /// The server is another one, or sees us as somebody else: perhaps it does not know our numbers any more.
    pub(super) fn begin_anew(&mut self) {
        self.makers.clear();
        self.tries.clear();
        self.numbers.clear();
    }

    /// The server does not take one of our numbers: the others are no better.
    pub(super) fn forget_numbers(&mut self) {
        self.numbers.clear();
    }

    /// A change was asked for in a directory. Is it time to ask for leading it? Then somebody does, until [`Book::tried`].
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

    /// It was asked for: not again before then, if it was refused.
    pub(super) fn tried(&mut self, directory: InodeId, not_before: Option<Instant>) {
        match self.tries.get_mut(&directory) {
            Some(one) if not_before.is_some() => (one.asking, one.not_before) = (false, not_before),
            _ => _ = self.tries.remove(&directory),
        }
    }

    /// What was refused, to be told once.
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
    use sealstone_mds_protocol::{MadeAhead, Name, NodeKind, RemovedAhead};

    fn there(inode: u64) -> AheadIn {
        AheadIn { inode: InodeId(inode), era: 1, lease: 2 }
    }

    fn made(directory: u64, inode: u64) -> NameChange {
        NameChange::Made(MadeAhead {
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
        NameChange::Removed(RemovedAhead {
            directory: there(directory),
            name: Name::new(format!("n{inode}")).unwrap(),
            inode: InodeId(inode),
            at_ms: 1,
            let_go: false,
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
        assert!(book.let_go(InodeId(10)), "the server is being told that it is held");
        assert!(!book.let_go(InodeId(12)));
        book.told(2);
        let next = book.send();
        assert!(matches!(&next[..], [NameChange::Made(made)] if !made.held && made.inode == InodeId(12)));
        assert!(book.let_go(InodeId(11)), "the server was told");
    }

    #[test]
    fn what_is_given_up_goes_with_all_that_was_done_under_its_lease_and_nothing_else() {
        let ledger = Ledger::default();
        for change in [made(1, 10), made(2, 11), removed(1, 10), removed(2, 11)] {
            ledger.book().push(change);
        }
        let gone = ledger.book().give_up(there(1));
        assert_eq!(gone, [made(1, 10), removed(1, 10)]);
        assert!(ledger.is_told(1) && !ledger.is_told(2), "who waits for what stays goes on waiting");
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
            let NameChange::Made(made) = made(1, inode) else { unreachable!() };
            book.push(NameChange::Made(MadeAhead { name, ..made }));
        }
        let changes = book.send();
        assert!(changes.len() > 64);
        let request = sealstone_mds_protocol::Request::ChangeNames { changes };
        assert!(request.encode(0).unwrap().len() < 60_000);
    }

    #[test]
    fn a_directory_is_asked_for_once_at_a_time_and_after_a_refusal_not_at_once() {
        let mut book = Book::default();
        let directory = InodeId(1);
        assert!(!book.is_to_be_led(directory, 2));
        assert!(book.is_to_be_led(directory, 2));
        assert!(!book.is_to_be_led(directory, 2), "somebody is asking");
        book.tried(directory, Some(Instant::now() + core::time::Duration::from_secs(60)));
        assert!(!book.is_to_be_led(directory, 2));
        book.tried(directory, None);
        assert!(book.is_to_be_led(directory, 1));
    }
}
