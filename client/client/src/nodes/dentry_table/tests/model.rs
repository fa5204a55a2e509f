//! Random histories of requests, local changes and changes of other clients, compared with a model
//! of the server.
//!
//! Every request is sent, executed and answered in separate steps, in any order. After each step,
//! the cached entries and attributes under the current leases must be those of the server.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sealstone_mds_protocol::DirLeaseId;

use super::*;

const FIRST_FILE: u64 = 1_000;
/// Entries of a page.
const PAGE: usize = 1;

/// Index of a directory, and of a name.
type Place = (usize, usize);

#[derive(Clone, Copy, Debug)]
enum Step {
    Look(Place),
    LookDirectory(usize),
    ListPage(usize),
    /// The next page follows this name.
    SeekInList(Place),
    Create(Place),
    Unlink(Place),
    Rename(Place, Place),
    SetAttributes(prop::sample::Index),
    Execute(prop::sample::Index),
    Answer(prop::sample::Index),
    /// The newest request is executed and answered.
    Complete,
    /// The connection of a request ends before its answer.
    Lose(prop::sample::Index),
    /// The server executes a change whose connection ended.
    ExecuteLost,
    CreateLocally(Place),
    UnlinkLocally(Place),
    RenameLocally(Place, Place),
    /// The server refuses local changes in a directory.
    RefuseLocal(usize),
    /// Another client creates or removes a name, after the recall of the leases.
    ChangeRemotely(Place),
    SetAttributesRemotely(prop::sample::Index),
    ReplaceLease(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let directory = 0..DIRECTORIES.len();
    // Every other step concerns the same name, so that changes overlap.
    let place = || prop_oneof![Just((0, 1)), (0..DIRECTORIES.len(), 0..NAMES.len())];
    let index = any::<prop::sample::Index>;
    prop_oneof![
        6 => place().prop_map(Step::Look),
        2 => directory.clone().prop_map(Step::LookDirectory),
        8 => directory.clone().prop_map(Step::ListPage),
        1 => place().prop_map(Step::SeekInList),
        4 => place().prop_map(Step::Create),
        2 => place().prop_map(Step::Unlink),
        2 => (place(), place()).prop_map(|(from, to)| Step::Rename(from, to)),
        2 => index().prop_map(Step::SetAttributes),
        12 => index().prop_map(Step::Execute),
        12 => index().prop_map(Step::Answer),
        20 => Just(Step::Complete),
        4 => index().prop_map(Step::Lose),
        4 => Just(Step::ExecuteLost),
        3 => place().prop_map(Step::CreateLocally),
        2 => place().prop_map(Step::UnlinkLocally),
        2 => (place(), place()).prop_map(|(from, to)| Step::RenameLocally(from, to)),
        1 => directory.clone().prop_map(Step::RefuseLocal),
        2 => place().prop_map(Step::ChangeRemotely),
        1 => index().prop_map(Step::SetAttributesRemotely),
        1 => directory.prop_map(Step::ReplaceLease),
        4 => (1..80_u64).prop_map(Step::Wait),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    Look(Place),
    LookDirectory(usize),
    /// A page that follows this name.
    ListPage(usize, Option<usize>),
    Create(Place),
    Unlink(Place),
    Rename(Place, Place),
    SetAttributes(InodeId),
}

/// An answer of the server, with the leases at the time.
#[derive(Debug)]
enum ServerAnswer {
    Looked { directory: NodeLease, found: Option<(Stat, NodeLease)> },
    Directory { stat: Stat, lease: NodeLease },
    Page { directory: NodeLease, entries: Vec<DirEntry>, more: bool },
    Changed { entries: Vec<Dentry>, others: Vec<InodeId> },
    Refused,
}

#[derive(Debug)]
struct SentRequest {
    kind: RequestKind,
    snapshot: CacheSnapshot,
    /// The change, if it is one whose outcome is awaited.
    change: Option<LocalChange<'static>>,
    answer: Option<ServerAnswer>,
}

/// The server's state.
#[derive(Debug)]
struct ServerModel {
    names: BTreeMap<(InodeId, &'static Name), InodeId>,
    stats: BTreeMap<InodeId, Stat>,
    leases: BTreeMap<InodeId, u64>,
    /// Files whose lease was granted.
    granted: BTreeSet<InodeId>,
    next_inode: u64,
    next_lease: u64,
    now_ms: u64,
}

fn resolve((directory, name): Place) -> (InodeId, &'static Name) {
    (DIRECTORIES[directory], &NAMES[name])
}

impl ServerModel {
    fn lease(&self, inode: InodeId) -> NodeLease {
        lease(self.leases.get(&inode).copied().unwrap_or_default())
    }

    fn delegation(&self, directory: InodeId) -> DirLeaseId {
        let NodeLease { number, epoch, .. } = self.lease(directory);
        DirLeaseId { inode: directory, epoch, lease: number }
    }

    fn replace_lease(&mut self, inode: InodeId) {
        self.next_lease += 1;
        self.leases.insert(inode, self.next_lease);
        self.granted.remove(&inode);
    }

    fn touch(&mut self, directory: InodeId) {
        let now_ms = self.now_ms;
        let stat = self.stats.get_mut(&directory).unwrap();
        stat.mtime_ns = Stat::ns(now_ms);
        stat.ctime_ns = Stat::changed_ns(stat.ctime_ns, now_ms);
        stat.version += 1;
    }

    fn change_node(&mut self, inode: InodeId) {
        let now_ms = self.now_ms;
        if let Some(stat) = self.stats.get_mut(&inode) {
            stat.ctime_ns = Stat::changed_ns(stat.ctime_ns, now_ms);
        }
    }

    fn new_file(&mut self) -> Stat {
        self.next_inode += 1;
        self.replace_lease(InodeId(self.next_inode));
        stat(InodeId(self.next_inode), FileKind::File)
    }

    fn create(&mut self, at: (InodeId, &'static Name), stat: Stat) {
        self.names.insert(at, stat.inode);
        self.stats.insert(stat.inode, stat);
        self.touch(at.0);
    }

    fn unlink(&mut self, at: (InodeId, &'static Name)) -> Option<InodeId> {
        let inode = self.names.remove(&at)?;
        self.stats.remove(&inode);
        self.touch(at.0);
        Some(inode)
    }

    /// Returns the moved and the replaced node.
    fn rename(
        &mut self,
        from: (InodeId, &'static Name),
        to: (InodeId, &'static Name),
    ) -> Option<(InodeId, Option<InodeId>)> {
        let inode = *self.names.get(&from)?;
        if from == to {
            return Some((inode, None));
        }
        self.names.remove(&from);
        let replaced = self.names.insert(to, inode);
        if let Some(replaced) = replaced {
            self.stats.remove(&replaced);
        }
        self.touch(from.0);
        if from.0 != to.0 {
            self.touch(to.0);
        }
        self.change_node(inode);
        Some((inode, replaced))
    }

    fn page(&self, directory: InodeId, after: Option<&Name>) -> (Vec<DirEntry>, bool) {
        let following = self
            .names
            .iter()
            .filter(|((of, name), _)| *of == directory && after.is_none_or(|after| *name > after));
        let entry = |((_, name), inode): (&(InodeId, &'static Name), &InodeId)| entry(name, inode.0);
        let mut entries: Vec<DirEntry> = following.map(entry).collect();
        let more = entries.len() > PAGE;
        entries.truncate(PAGE);
        (entries, more)
    }

    fn listing(&self, directory: InodeId) -> Vec<(&'static Name, InodeId)> {
        let names = self.names.iter().filter(|((of, _), _)| *of == directory);
        names.map(|((_, name), inode)| (*name, *inode)).collect()
    }

    fn execute(&mut self, kind: RequestKind) -> ServerAnswer {
        match kind {
            RequestKind::Look(place) => {
                let at = resolve(place);
                let found = self.names.get(&at).map(|inode| (self.stats[inode].clone(), self.lease(*inode)));
                self.granted.extend(self.names.get(&at));
                ServerAnswer::Looked { directory: self.lease(at.0), found }
            }
            RequestKind::LookDirectory(directory) => {
                let inode = DIRECTORIES[directory];
                ServerAnswer::Directory { stat: self.stats[&inode].clone(), lease: self.lease(inode) }
            }
            RequestKind::ListPage(directory, after) => {
                let inode = DIRECTORIES[directory];
                let (entries, more) = self.page(inode, after.map(|after| &NAMES[after]));
                ServerAnswer::Page { directory: self.lease(inode), entries, more }
            }
            RequestKind::Create(place) => {
                let at = resolve(place);
                if self.names.contains_key(&at) {
                    return ServerAnswer::Refused;
                }
                let stat = self.new_file();
                self.create(at, stat.clone());
                ServerAnswer::Changed { entries: vec![Dentry::of(&stat)], others: Vec::new() }
            }
            RequestKind::Unlink(place) => match self.unlink(resolve(place)) {
                Some(inode) => ServerAnswer::Changed { entries: vec![Dentry::Absent], others: vec![inode] },
                None => ServerAnswer::Refused,
            },
            RequestKind::Rename(from, to) => match self.rename(resolve(from), resolve(to)) {
                Some((moved, replaced)) => {
                    let entries = vec![Dentry::Absent, Dentry::of(&self.stats[&moved])];
                    ServerAnswer::Changed { entries, others: replaced.into_iter().chain([moved]).collect() }
                }
                None => ServerAnswer::Refused,
            },
            RequestKind::SetAttributes(inode) => {
                if !self.stats.contains_key(&inode) {
                    return ServerAnswer::Refused;
                }
                self.change_node(inode);
                ServerAnswer::Changed { entries: Vec::new(), others: Vec::new() }
            }
        }
    }
}

#[derive(Debug)]
struct World {
    table: DentryTable,
    server: ServerModel,
    requests: Vec<SentRequest>,
    /// A change with an unknown outcome, and until when the server may execute it.
    lost: Option<(RequestKind, Instant)>,
    now: Instant,
    /// Name that the next page of each directory follows.
    cursors: [Option<usize>; DIRECTORIES.len()],
    /// The last complete listing of each directory from the cache.
    listings: BTreeMap<InodeId, (ListEdition, Vec<(&'static Name, InodeId)>)>,
    /// Number of entries that were found in the cache.
    hits: usize,
}

impl World {
    fn new() -> Self {
        let stats = DIRECTORIES.map(|inode| (inode, stat(inode, FileKind::Directory)));
        let (next_lease, now_ms) = (DIRECTORIES.len() as u64, 1_000);
        let mut server = ServerModel {
            names: BTreeMap::new(),
            stats: stats.into(),
            leases: DIRECTORIES.into_iter().zip(1..).collect(),
            granted: BTreeSet::new(),
            next_inode: FIRST_FILE,
            next_lease,
            now_ms,
        };
        for directory in DIRECTORIES {
            for name in &NAMES[1..] {
                let stat = server.new_file();
                server.create((directory, name), stat);
            }
        }
        Self {
            table: DentryTable::new(),
            server,
            requests: Vec::new(),
            lost: None,
            now: Instant::now(),
            cursors: [None; DIRECTORIES.len()],
            listings: BTreeMap::new(),
            hits: 0,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Look(place) => self.send(RequestKind::Look(place), DIRECTORIES[place.0]),
            Step::LookDirectory(directory) => {
                self.send(RequestKind::LookDirectory(directory), InodeId(FIRST_FILE - 1));
            }
            Step::ListPage(directory) => {
                let kind = RequestKind::ListPage(directory, self.cursors[directory]);
                self.send(kind, DIRECTORIES[directory]);
            }
            Step::SeekInList((directory, name)) => self.cursors[directory] = Some(name),
            Step::Create(at) => self.send(RequestKind::Create(at), DIRECTORIES[at.0]),
            Step::Unlink(at) => self.send(RequestKind::Unlink(at), DIRECTORIES[at.0]),
            Step::Rename(from, to) => self.send(RequestKind::Rename(from, to), DIRECTORIES[from.0]),
            Step::SetAttributes(index) => {
                let inode = self.pick_inode(index);
                self.send(RequestKind::SetAttributes(inode), inode);
            }
            Step::Execute(index) => self.execute(|waiting| index.index(waiting)),
            Step::Answer(index) => self.answer(|ready| index.index(ready)),
            Step::Complete => {
                self.execute(|waiting| waiting - 1);
                self.answer(|ready| ready - 1);
            }
            Step::Lose(index) => self.lose(index),
            Step::ExecuteLost => {
                if let Some((kind, _)) = self.lost.take() {
                    self.server.execute(kind);
                }
            }
            Step::CreateLocally(at) => self.create_locally(resolve(at)),
            Step::UnlinkLocally(at) => self.unlink_locally(resolve(at)),
            Step::RenameLocally(from, to) => self.rename_locally(resolve(from), resolve(to)),
            Step::RefuseLocal(directory) => {
                let directory = DIRECTORIES[directory];
                let nodes = self.server.listing(directory).into_iter().map(|(_, inode)| inode);
                self.table.invalidate_refused(directory, nodes);
            }
            Step::ChangeRemotely(place) => {
                let at = resolve(place);
                let inode = self.server.names.get(&at).copied();
                self.recall(at.0);
                match inode {
                    Some(inode) => {
                        self.recall(inode);
                        self.server.unlink(at);
                    }
                    None => {
                        let stat = self.server.new_file();
                        self.server.create(at, stat);
                    }
                }
            }
            Step::SetAttributesRemotely(index) => {
                let inode = self.pick_inode(index);
                // The other client has looked it up, which ends a delegation on its directory.
                let parents = self.server.names.iter().filter(|(_, of)| **of == inode);
                let parents: BTreeSet<InodeId> = parents.map(|((directory, _), _)| *directory).collect();
                parents.into_iter().for_each(|directory| self.recall(directory));
                self.recall(inode);
                self.server.change_node(inode);
            }
            Step::ReplaceLease(directory) => {
                let inode = DIRECTORIES[directory];
                let before = self.server.lease(inode).number;
                self.server.replace_lease(inode);
                self.table.move_to_lease(inode, before, &self.server.lease(inode));
            }
            Step::Wait(seconds) => {
                self.now += Duration::from_secs(seconds);
                self.server.now_ms += seconds * 1_000;
                self.lost = self.lost.filter(|(_, until)| self.now < *until);
            }
        }
        self.check();
    }

    fn pick_inode(&self, index: prop::sample::Index) -> InodeId {
        let inodes: Vec<InodeId> = self.server.stats.keys().copied().collect();
        inodes[index.index(inodes.len())]
    }

    fn send(&mut self, kind: RequestKind, directory: InodeId) {
        let snapshot = self.table.snapshot(directory, self.now);
        let named = |at: Place| {
            let (directory, name) = resolve(at);
            (directory, Some(name))
        };
        let parts = match kind {
            RequestKind::Create(at) | RequestKind::Unlink(at) => vec![named(at)],
            RequestKind::Rename(from, to) => vec![named(from), named(to)],
            RequestKind::SetAttributes(inode) => vec![(inode, None)],
            RequestKind::Look(_) | RequestKind::LookDirectory(_) | RequestKind::ListPage(..) => Vec::new(),
        };
        let change = (!parts.is_empty()).then(|| self.table.begin_change(&parts, self.now));
        self.requests.push(SentRequest { kind, snapshot, change, answer: None });
    }

    /// `choose` gets the number of requests that are not executed.
    fn execute(&mut self, choose: impl FnOnce(usize) -> usize) {
        let waiting = self.requests.iter_mut().filter(|request| request.answer.is_none());
        let mut waiting: Vec<&mut SentRequest> = waiting.collect();
        if !waiting.is_empty() {
            let at = choose(waiting.len());
            waiting[at].answer = Some(self.server.execute(waiting[at].kind));
        }
    }

    /// `choose` gets the number of requests that are executed.
    fn answer(&mut self, choose: impl FnOnce(usize) -> usize) {
        let ready: Vec<usize> =
            (0..self.requests.len()).filter(|at| self.requests[*at].answer.is_some()).collect();
        if ready.is_empty() {
            return;
        }
        let request = self.requests.remove(ready[choose(ready.len())]);
        let SentRequest { kind, snapshot, change, answer: Some(answer), .. } = request else { return };
        let (table, now) = (&mut self.table, self.now);
        match (answer, kind) {
            (ServerAnswer::Looked { directory, found }, RequestKind::Look((_, name))) => {
                let known = found.as_ref().map_or(Dentry::Absent, |(stat, _)| Dentry::of(stat));
                table.record_lookup(&snapshot, &directory, (&NAMES[name], known), now);
                if let Some((stat, lease)) = found {
                    table.record_attributes(&snapshot, &lease, &stat);
                }
            }
            (ServerAnswer::Directory { stat, lease }, _) => {
                table.record_attributes(&snapshot, &lease, &stat);
            }
            (ServerAnswer::Page { directory, entries, more }, RequestKind::ListPage(at, after)) => {
                let after = after.map(|after| &NAMES[after]);
                table.record_listing(&snapshot, &directory, after, (&entries, more), now);
                let last = entries.last().filter(|_| more);
                self.cursors[at] = last.and_then(|last| NAMES.iter().position(|name| *name == last.name));
            }
            (ServerAnswer::Changed { entries, others }, _) => {
                let outcome = ChangeOutcome::Done { entries: &entries, others: &others };
                table.end_change(&change.unwrap(), outcome, now);
            }
            (ServerAnswer::Refused, _) => {
                table.end_change(&change.unwrap(), ChangeOutcome::Refused, now);
            }
            (answer, kind) => panic!("{answer:?} to {kind:?}"),
        }
    }

    fn lose(&mut self, index: prop::sample::Index) {
        if self.requests.is_empty() {
            return;
        }
        let request = self.requests.remove(index.index(self.requests.len()));
        if let Some(change) = request.change {
            self.table.end_change(&change, ChangeOutcome::Unknown, self.now);
            if request.answer.is_none() {
                self.lost = Some((request.kind, self.now + UNCERTAIN_FOR));
            }
        }
    }

    fn recall(&mut self, inode: InodeId) {
        // Without a lease nothing is recalled.
        if DIRECTORIES.contains(&inode) || self.server.granted.contains(&inode) {
            self.table.invalidate(inode);
        }
        self.server.replace_lease(inode);
    }

    fn delegated(&self, (directory, name): (InodeId, &'static Name)) -> DelegatedName<'static> {
        DelegatedName { directory: self.server.delegation(directory), name }
    }

    fn create_locally(&mut self, at: (InodeId, &'static Name)) {
        let (entry, stat) = (self.delegated(at), self.server.new_file());
        if self.table.create_locally(entry, &stat, self.server.now_ms) {
            assert_eq!(self.server.names.get(&at), None);
            self.server.create(at, stat);
        }
    }

    fn unlink_locally(&mut self, at: (InodeId, &'static Name)) {
        let Some(Some((node, _))) = self.table.certain_entry(self.delegated(at)) else { return };
        if self.table.unlink_locally(self.delegated(at), node.inode, self.server.now_ms) {
            assert_eq!(self.server.unlink(at), Some(node.inode));
        }
    }

    fn rename_locally(&mut self, from: (InodeId, &'static Name), to: (InodeId, &'static Name)) {
        let places = (self.delegated(from), self.delegated(to));
        let Some(Some((node, _))) = self.table.certain_entry(places.0) else { return };
        let Some(old) = self.table.certain_entry(places.1) else { return };
        let replaced = old.map(|(old, _)| old.inode);
        if replaced != Some(node.inode)
            && self.table.rename_locally(places, (node.inode, replaced), self.server.now_ms)
        {
            assert_eq!(self.server.rename(from, to), Some((node.inode, replaced)));
        }
    }

    /// Returns the nodes that executed changes concern whose answers have not arrived.
    fn unsettled(&self) -> BTreeSet<InodeId> {
        let others = self.requests.iter().filter_map(|request| match &request.answer {
            Some(ServerAnswer::Changed { others, .. }) => Some(others),
            _ => None,
        });
        others.flatten().copied().collect()
    }

    fn check(&mut self) {
        for directory in DIRECTORIES {
            let lease = self.server.lease(directory);
            for name in &*NAMES {
                let known = self.table.lookup(directory, &lease, name, self.now);
                let stored = self.server.names.get(&(directory, name));
                let stored = stored.map_or(Dentry::Absent, |inode| Dentry::of(&self.server.stats[inode]));
                assert!(known == Dentry::NotCached || known == stored, "{known:?} instead of {stored:?}");
                self.hits += usize::from(known != Dentry::NotCached);
            }
            self.check_listing(directory, &lease);
        }
        self.check_attributes();
        let directories = self.table.directories.values();
        assert_eq!(self.table.names, directories.map(|one| one.names.len()).sum::<usize>());
        let changes = self.requests.iter().filter(|request| request.change.is_some()).count();
        assert_eq!(self.table.all.in_progress as usize, changes);
        assert!(changes > 0 || self.table.pending.is_empty());
        for (inode, name) in self.table.pending.keys() {
            let cached = self.table.directories.get(inode).map(|one| one.entry(name));
            assert!(cached.is_none_or(|known| known == Dentry::NotCached), "{name:?} is being changed");
        }
    }

    fn check_listing(&mut self, directory: InodeId, lease: &NodeLease) {
        let mut listed = Vec::new();
        let end = self.table.list((directory, lease), None, self.now, |name, inode, _| {
            listed.push((NAMES.iter().find(|known| *known == name).unwrap(), inode));
            false
        });
        if end != CacheListing::End {
            return;
        }
        assert_eq!(listed, self.server.listing(directory));
        let edition = self.table.edition(directory, lease);
        let before = self.listings.insert(directory, (edition, listed.clone()));
        assert!(before.is_none_or(|(known, before)| known != edition || before == listed));
    }

    fn check_attributes(&self) {
        let unsettled = self.unsettled();
        let inodes = DIRECTORIES.into_iter().chain((FIRST_FILE..=self.server.next_inode).map(InodeId));
        for inode in inodes.filter(|inode| !unsettled.contains(inode)) {
            let stored = self.server.stats.get(&inode);
            let known = self.table.cached_node(inode, &self.server.lease(inode));
            assert!(known.is_none() || known.as_ref() == stored, "{known:?} instead of {stored:?}");
            if let Some(directory) = self.table.created_in(inode) {
                let lease = self.server.lease(directory);
                let known = self.table.created_node(inode, (directory, &lease));
                assert!(known.is_none() || known.as_ref() == stored, "{known:?} instead of {stored:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn cached_entries_are_those_of_the_server(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.step(step));
    }
}

/// Otherwise the histories would not test much.
#[test]
fn random_histories_find_cached_entries() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let histories = prop::collection::vec(step(), 120);
    let mut hits = 0;
    for _ in 0..32 {
        let mut world = World::new();
        histories.new_tree(&mut runner).unwrap().current().into_iter().for_each(|step| world.step(step));
        hits += world.hits;
    }
    assert!(hits > 1_000, "{hits}");
}
