//! Random batches, repeated batches, crashes and other clients, compared with a map of names.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::leases::REVOKE_AFTER_MS;
use crate::records::{Inode, decode};

const NAMES: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Copy, Debug)]
enum Op {
    Make { dir: usize, name: usize, held: bool },
    Remove { dir: usize, name: usize, close: bool },
    Rename { from: (usize, usize), to: (usize, usize), close: bool },
}

#[derive(Clone, Debug)]
enum Step {
    Lead(usize),
    /// The changes, an error in one of them, and whether the batch is repeated.
    Tell(Vec<Op>, Option<usize>, bool),
    /// Power fails after this many commits; the client reconnects and repeats the batch.
    Crash(Vec<Op>, u64),
    GiveBack(usize),
    /// Another client creates something.
    Other(usize, usize),
    /// The client does not return its leases in time.
    Depose(usize),
    Close,
    Later,
}

fn any_op() -> impl Strategy<Value = Op> {
    let at = || (0..2usize, 0..NAMES.len());
    prop_oneof![
        4 => (at(), any::<bool>()).prop_map(|((dir, name), held)| Op::Make { dir, name, held }),
        2 => (at(), any::<bool>()).prop_map(|((dir, name), close)| Op::Remove { dir, name, close }),
        3 => (at(), at(), any::<bool>()).prop_map(|(from, to, close)| Op::Rename { from, to, close }),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let ops = || prop::collection::vec(any_op(), 0..7);
    prop_oneof![
        5 => (0..2usize).prop_map(Step::Lead),
        10 => (ops(), prop::option::weighted(0.2, 0..7usize), any::<bool>())
            .prop_map(|(ops, wrong, again)| Step::Tell(ops, wrong, again)),
        2 => (ops(), 0..4u64).prop_map(|(ops, commits)| Step::Crash(ops, commits)),
        2 => (0..2usize).prop_map(Step::GiveBack),
        2 => (0..2usize, 0..NAMES.len()).prop_map(|(dir, name)| Step::Other(dir, name)),
        1 => (0..2usize).prop_map(Step::Depose),
        1 => Just(Step::Close),
        2 => Just(Step::Later),
    ]
}

/// Existing names, and changes that may still be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    names: BTreeMap<(usize, usize), InodeId>,
    ahead: [Option<DirLeaseId>; 2],
    /// Valid inode numbers.
    reserved: BTreeSet<InodeId>,
}

impl Model {
    fn is_ahead(&self, dir: usize, there: DirLeaseId) -> Result<(), ErrorCode> {
        if self.ahead[dir] == Some(there) { Ok(()) } else { Err(ErrorCode::Fenced) }
    }

    fn leads_to(&self, at: (usize, usize), what: Option<InodeId>) -> Result<(), ErrorCode> {
        match self.names.get(&at).copied() {
            found if found == what => Ok(()),
            None => Err(ErrorCode::NotFound),
            Some(_) => Err(ErrorCode::Exists),
        }
    }

    fn apply(&mut self, (op, change): &(Op, NameChange)) -> Result<(), ErrorCode> {
        match (op, change) {
            (Op::Make { dir, name, .. }, NameChange::Create(made)) => {
                self.is_ahead(*dir, made.directory)?;
                if !self.reserved.contains(&made.inode) {
                    return Err(ErrorCode::Invalid);
                }
                self.leads_to((*dir, *name), None)?;
                self.reserved.retain(|id| *id > made.inode);
                self.names.insert((*dir, *name), made.inode);
            }
            (Op::Remove { dir, name, .. }, NameChange::Unlink(removed)) => {
                self.is_ahead(*dir, removed.directory)?;
                self.leads_to((*dir, *name), Some(removed.inode))?;
                self.names.remove(&(*dir, *name));
            }
            (Op::Rename { from, to, .. }, NameChange::Rename(moved)) => {
                self.is_ahead(from.0, moved.from_directory)?;
                self.is_ahead(to.0, moved.to_directory)?;
                self.leads_to(*from, Some(moved.inode))?;
                self.leads_to(*to, moved.replaced)?;
                if from != to {
                    self.names.remove(from);
                    self.names.insert(*to, moved.inode);
                }
            }
            _ => unreachable!("a change is of its kind"),
        }
        Ok(())
    }

    /// Applies changes up to the first refused one.
    fn tell(&mut self, changes: &[(Op, NameChange)]) -> (usize, Option<ErrorCode>) {
        for (at, change) in changes.iter().enumerate() {
            if let Err(why) = self.apply(change) {
                return (at, Some(why));
            }
        }
        (changes.len(), None)
    }
}

struct History {
    world: World,
    dirs: [InodeId; 2],
    hers: TestClient,
    model: Model,
    /// Returned or revoked leases, which are named all the same.
    old: DirLeaseId,
    held: BTreeSet<InodeId>,
}

impl History {
    fn new() -> Self {
        let (mut world, d, e) = world();
        for at in ["/d/f", "/e/f"] {
            world.ask(ADMIN, Request::Remove { path: path(at), recursive: false });
        }
        let hers = TestClient::new(&mut world, ALICE, HERS);
        let old = DirLeaseId { inode: d, epoch: hers.epoch, lease: 0 };
        Self { world, dirs: [d, e], hers, model: Model::default(), old, held: BTreeSet::new() }
    }

    /// The client's local changes; one of them has an error.
    fn changes(&mut self, ops: &[Op], wrong: Option<usize>) -> Vec<(Op, NameChange)> {
        let (mut seen, now) = (self.model.clone(), self.world.now);
        let mut changes = Vec::new();
        for (at, op) in ops.iter().enumerate() {
            let is_wrong = wrong == Some(at);
            let there = |dir: usize| seen.ahead[dir].unwrap_or(self.old);
            let found = |at| seen.names.get(&at).copied();
            let change = match *op {
                Op::Make { dir, name: at, held } => {
                    let number = seen.reserved.first().copied().filter(|_| !is_wrong);
                    let inode = number.unwrap_or(self.dirs[1]);
                    let new = CreateOp { held, at_ms: now, ..made(there(dir), NAMES[at], inode) };
                    NameChange::Create(new)
                }
                Op::Remove { dir, name: at, close } => {
                    let inode = found((dir, at)).filter(|_| !is_wrong).unwrap_or(InodeId(77));
                    let (directory, name) = (there(dir), name(NAMES[at]));
                    NameChange::Unlink(UnlinkOp { directory, name, inode, at_ms: now, close })
                }
                Op::Rename { from, to, close } => NameChange::Rename(RenameOp {
                    from_directory: there(from.0),
                    from: name(NAMES[from.1]),
                    inode: found(from).unwrap_or(InodeId(77)),
                    to_directory: if is_wrong { self.old } else { there(to.0) },
                    to: name(NAMES[to.1]),
                    replaced: found(to),
                    at_ms: now,
                    close,
                }),
            };
            changes.push((*op, change));
            _ = seen.apply(changes.last().unwrap());
        }
        changes
    }

    fn note_held(&mut self, changes: &[(Op, NameChange)]) {
        for (_, change) in changes {
            match change {
                NameChange::Create(made) if made.held => _ = self.held.insert(made.inode),
                other => _ = other.closed_inode().map(|id| self.held.remove(&id)),
            }
        }
    }

    fn names_stored(&self) -> BTreeMap<(usize, usize), InodeId> {
        let mut names = BTreeMap::new();
        for (dir, id) in self.dirs.iter().enumerate() {
            for (name, found) in self.world.names_in(*id) {
                if let Some(at) = NAMES.iter().position(|one| *one == name) {
                    names.insert((dir, at), found);
                }
            }
        }
        names
    }

    /// The client receives a new epoch, if any, and drops all older leases.
    fn poll(&mut self) {
        let (epoch, ..) = self.world.poll_recalls(ALICE, HERS, self.hers.epoch, 0);
        if epoch != self.hers.epoch {
            self.world.poll_recalls(ALICE, HERS, epoch, 0);
            self.hers.epoch = epoch;
            self.model.ahead = [None; 2];
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Lead(dir) => {
                let (lease, _, numbers) =
                    self.hers.request_delegation(&mut self.world, Some(self.dirs[*dir]), 4);
                if let Some(lease) = lease {
                    let (epoch, lease) = (lease.epoch, lease.number);
                    self.model.ahead[*dir] = Some(DirLeaseId { inode: self.dirs[*dir], epoch, lease });
                    // The client uses the newest of several ranges.
                    self.model.reserved = numbers.into_iter().collect();
                }
            }
            Step::Tell(ops, wrong, again) => {
                let changes = self.changes(ops, *wrong);
                let expected = self.model.tell(&changes);
                let asked: Vec<_> = changes.iter().map(|(_, change)| change.clone()).collect();
                let (done, failure, leases) = self.hers.send_batch(&mut self.world, &asked);
                assert_eq!((done, failure), expected);
                self.note_held(&changes[..done]);
                if *again {
                    let reported = self.hers.resend_batch(&mut self.world, &asked);
                    assert_eq!((reported.0, reported.1), (done, failure), "told again");
                    if done > 0 {
                        assert!(reported.2.iter().all(|id| leases.contains(id)), "no more than at first");
                    }
                }
            }
            Step::Crash(ops, commits) => {
                // A crash may restore a lease that was just returned; here it does not.
                self.world.mds.settle().unwrap();
                let changes = self.changes(ops, None);
                let (before, mut after) = (self.model.names.clone(), self.model.clone());
                let expected = after.tell(&changes);
                let asked: Vec<_> = changes.into_iter().map(|(_, change)| change).collect();
                self.hers.sequence += 1;
                self.world.disk.fail_after(Some(*commits));
                let answer = self.world.ask(ALICE, self.hers.once(&asked));
                self.world.restart();
                self.held.clear();
                let stored = self.names_stored();
                assert!(stored == after.names || stored == before, "all of it, or nothing");
                if matches!(answer, Response::NameBatchApplied { .. }) {
                    assert_eq!(stored, after.names, "what was promised is there");
                }
                let (epoch, ..) = self.world.poll_recalls(ALICE, HERS, self.hers.epoch, 0);
                assert_ne!(epoch, self.hers.epoch);
                let reported = self.hers.resend_batch(&mut self.world, &asked);
                assert_eq!((reported.0, reported.1), expected, "the client reconnects");
                self.model = after;
                self.poll();
            }
            Step::GiveBack(dir) => {
                if let Some(there) = self.model.ahead[*dir].take() {
                    self.hers.return_delegation(&mut self.world, there);
                    self.old = there;
                }
            }
            Step::Other(dir, at) => {
                let parent = self.world.node(BOB, self.dirs[*dir]);
                let answer = self.world.ask(BOB, make(parent, NAMES[*at], NodeKind::Fifo, 0o644));
                let place = (*dir, *at);
                match answer {
                    Response::Stat { stat } => {
                        assert_eq!(self.model.ahead[*dir], None);
                        assert_eq!(self.model.names.insert(place, stat.inode), None);
                    }
                    Response::Failed { failure } if failure.code == ErrorCode::Busy => {
                        assert_ne!(self.model.ahead[*dir], None, "no client to wait for");
                        // The recall expired, so the delegation is revoked.
                        let key = crate::keys::delegation(self.dirs[*dir]);
                        if !self.world.disk.dump().iter().any(|(one, _)| *one == key) {
                            self.model.ahead[*dir] = None;
                        }
                    }
                    Response::Failed { failure } => {
                        assert_eq!((failure.code, self.model.ahead[*dir]), (ErrorCode::Exists, None));
                        assert!(self.model.names.contains_key(&place));
                    }
                    other => panic!("{other:?}"),
                }
            }
            Step::Depose(dir) => {
                let Some(there) = self.model.ahead[*dir].take() else { return };
                self.old = there;
                let directory = self.world.node(BOB, there.inode);
                let list = Request::ReadNodes { directory, after: None, limit: 9, client_id: None };
                assert!(is_busy(&self.world.ask(BOB, list.clone())));
                self.world.now += REVOKE_AFTER_MS;
                self.world.poll_recalls(ALICE, HERS, self.hers.epoch, 0);
                // The first request finds it expired, if none did before.
                self.world.ask(BOB, list.clone());
                assert!(matches!(self.world.ask(BOB, list), Response::Directory { .. }));
            }
            Step::Close => {
                for inode in std::mem::take(&mut self.held) {
                    let node = self.world.node(ALICE, inode);
                    self.world.ask(ALICE, Request::CloseNode { node, client_id: HERS });
                }
            }
            Step::Later => {
                self.world.now += 4_000;
                self.poll();
            }
        }
    }

    /// The store matches the model and is consistent.
    fn check(&mut self) {
        assert_eq!(self.names_stored(), self.model.names);
        let dump = self.world.disk.dump();
        let mut names: BTreeMap<InodeId, u32> = BTreeMap::new();
        for (_, value) in dump.iter().filter(|(key, _)| key[0] == b'd') {
            *names.entry(decode(value).unwrap()).or_default() += 1;
        }
        let (mut files, mut nameless) = (0, BTreeSet::new());
        for (key, value) in dump.iter().filter(|(key, _)| key[0] == b'i') {
            let (id, inode): (_, Inode) = (crate::keys::inode_id(key).unwrap(), decode(value).unwrap());
            if !inode.is_directory() {
                assert_eq!(names.get(&id).copied().unwrap_or_default(), inode.links, "{id:?}");
                files += u64::from(inode.links > 0);
                if inode.links == 0 {
                    nameless.insert(id);
                }
            }
        }
        let orphans: Vec<_> = dump
            .iter()
            .filter(|(key, _)| key[0] == b'n')
            .map(|(key, _)| crate::keys::orphan_parts(key).unwrap().1)
            .collect();
        assert!(nameless.iter().all(|id| orphans.contains(id)), "what has no name is on record");
        assert_eq!(self.world.counted(), (files, orphans.len() as u64));
        let ahead = self.model.ahead.iter().flatten().count();
        assert_eq!(self.world.count_of(b'A'), ahead);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn random_batches_match_map_model(
        steps in prop::collection::vec(any_step(), 1..40)
    ) {
        let mut history = History::new();
        for step in &steps {
            history.step(step);
            history.check();
        }
        // After all clients end, all of their state is removed.
        for _ in 0..3 {
            history.world.now += 25 * 3_600_000;
            history.world.mds.tidy_memory(history.world.now);
            history.world.reap_all();
        }
        history.model.ahead = [None; 2];
        history.check();
        prop_assert_eq!(history.world.counted().1, 0);
        prop_assert_eq!(history.world.count_of(b'N'), 0);
    }
}
