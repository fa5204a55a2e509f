//! Random requests about nodes, compared with a small file system in memory, errors included.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    Access, CheckScope, ErrorCode, FileKind, InodeId, LinkTarget, Method, NodeChange, NodeKind, RenameMode,
    Request, Response,
};

use super::super::world::{ADMIN, ALICE, BOB, World};
use super::{CLIENT, make, name};
use crate::open_files::CLIENT_TIMEOUT_MS;

const WHO: [SessionId; 3] = [ADMIN, ALICE, BOB];
const NAMES: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
enum Step {
    Make { caller: usize, parent: usize, name: usize, kind: usize, mode: u16 },
    Link { caller: usize, node: usize, parent: usize, name: usize },
    Remove { caller: usize, parent: usize, name: usize, directory: bool },
    Rename { caller: usize, from: (usize, usize), to: (usize, usize), mode: RenameMode },
    Mode { caller: usize, node: usize, mode: u16 },
    Size { caller: usize, node: usize, size: u64 },
    Write { caller: usize, node: usize, size: u64 },
    Open { caller: usize, node: usize, writes: bool },
    Close { caller: usize, node: usize },
    Look { caller: usize, parent: usize, name: usize },
    Clear,
    Tidy,
    Restart,
}

fn any_step() -> impl Strategy<Value = Step> {
    let caller = || 0..3usize;
    let node = || 0..24usize;
    let at = || 0..NAMES.len();
    let mode = || prop_oneof![4 => Just(0o777u16), 1 => Just(0o755), 1 => Just(0o1777), 1 => Just(0o700), 1 => Just(0u16)];
    prop_oneof![
        8 => (caller(), node(), at(), 0..4usize, mode())
            .prop_map(|(caller, parent, name, kind, mode)| Step::Make { caller, parent, name, kind, mode }),
        3 => (caller(), node(), node(), at()).prop_map(|(caller, node, parent, name)| Step::Link { caller, node, parent, name }),
        4 => (caller(), node(), at(), any::<bool>())
            .prop_map(|(caller, parent, name, directory)| Step::Remove { caller, parent, name, directory }),
        6 => (caller(), (node(), at()), (node(), at()), 0..3usize)
            .prop_map(|(caller, from, to, mode)| Step::Rename { caller, from, to, mode: RenameMode::ALL[mode] }),
        1 => (caller(), node(), mode()).prop_map(|(caller, node, mode)| Step::Mode { caller, node, mode }),
        3 => (caller(), node(), 0..9u64).prop_map(|(caller, node, size)| Step::Size { caller, node, size }),
        3 => (caller(), node(), 0..9u64).prop_map(|(caller, node, size)| Step::Write { caller, node, size }),
        3 => (caller(), node(), any::<bool>()).prop_map(|(caller, node, writes)| Step::Open { caller, node, writes }),
        2 => (caller(), node()).prop_map(|(caller, node)| Step::Close { caller, node }),
        2 => (caller(), node(), at()).prop_map(|(caller, parent, name)| Step::Look { caller, parent, name }),
        2 => Just(Step::Clear),
        1 => Just(Step::Tidy),
        1 => Just(Step::Restart),
    ]
}

/// A node of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thing {
    kind: FileKind,
    mode: u16,
    owner: usize,
    links: u32,
    size: u64,
    /// Entries of a directory.
    entries: BTreeMap<usize, usize>,
    parent: usize,
    /// State of a file: whether it was written, and whether it waits for clearing after a
    /// truncation.
    has_objects: bool,
    dirty: bool,
    /// Users that have it open: for reading, for writing.
    open: [Option<(bool, bool)>; 3],
    gone: bool,
}

/// Nodes in the order of creation; the root is the first.
struct Model(Vec<Thing>);

type Answer<T> = Result<T, ErrorCode>;

impl Model {
    fn new() -> Self {
        let root = Self::thing(FileKind::Directory, 0o1777, 0, 0);
        Self(vec![root])
    }

    fn thing(kind: FileKind, mode: u16, owner: usize, parent: usize) -> Thing {
        let links = if kind == FileKind::Directory { 2 } else { 1 };
        let size = if kind == FileKind::Symlink { 1 } else { 0 };
        let (entries, open) = (BTreeMap::new(), [None; 3]);
        Thing {
            kind,
            mode,
            owner,
            links,
            size,
            entries,
            parent,
            has_objects: false,
            dirty: false,
            open,
            gone: false,
        }
    }

    fn get(&self, id: usize) -> Answer<&Thing> {
        self.0.get(id).filter(|thing| !thing.gone).ok_or(ErrorCode::Stale)
    }

    /// 4 read, 2 write, 1 search.
    fn may(&self, caller: usize, id: usize, bit: u16) -> Answer<()> {
        let thing = self.get(id)?;
        let bits = if thing.owner == caller { thing.mode >> 6 } else { thing.mode };
        if caller == 0 || bits & bit != 0 { Ok(()) } else { Err(ErrorCode::Denied) }
    }

    fn directory(&self, caller: usize, id: usize) -> Answer<&Thing> {
        let thing = self.get(id)?;
        if thing.kind != FileKind::Directory {
            return Err(ErrorCode::NotADirectory);
        }
        self.may(caller, id, 1)?;
        Ok(thing)
    }

    fn may_leave(&self, caller: usize, parent: usize, id: usize) -> Answer<()> {
        self.may(caller, parent, 2)?;
        let (above, thing) = (self.get(parent)?, self.get(id)?);
        if above.mode & 0o1000 != 0 && caller != 0 && above.owner != caller && thing.owner != caller {
            return Err(ErrorCode::NotPermitted);
        }
        Ok(())
    }

    fn make(
        &mut self,
        caller: usize,
        parent: usize,
        name: usize,
        kind: FileKind,
        mode: u16,
    ) -> Answer<usize> {
        if self.directory(caller, parent)?.entries.contains_key(&name) {
            return Err(ErrorCode::Exists);
        }
        self.may(caller, parent, 2)?;
        let mode = if kind == FileKind::Symlink { 0o777 } else { mode };
        let id = self.0.len();
        self.0.push(Self::thing(kind, mode, caller, parent));
        self.0[parent].entries.insert(name, id);
        self.0[parent].links += u32::from(kind == FileKind::Directory);
        Ok(id)
    }

    fn link(&mut self, caller: usize, id: usize, parent: usize, name: usize) -> Answer<()> {
        self.get(id)?;
        if self.directory(caller, parent)?.entries.contains_key(&name) {
            return Err(ErrorCode::Exists);
        }
        self.may(caller, parent, 2)?;
        if self.0[id].kind == FileKind::Directory {
            return Err(ErrorCode::NotPermitted);
        }
        let may_change = self.0[id].kind == FileKind::File
            && self.may(caller, id, 4).is_ok()
            && self.may(caller, id, 2).is_ok();
        if caller != 0 && self.0[id].owner != caller && !may_change {
            return Err(ErrorCode::NotPermitted);
        }
        if self.0[id].links == 0 {
            return Err(ErrorCode::NotFound);
        }
        self.0[id].links += 1;
        self.0[parent].entries.insert(name, id);
        Ok(())
    }

    fn lose(&mut self, id: usize) {
        let thing = &mut self.0[id];
        thing.links -= 1;
        thing.gone = thing.links == 0 && thing.open == [None; 3];
    }

    fn remove(&mut self, caller: usize, parent: usize, name: usize, directory: bool) -> Answer<()> {
        let id = *self.directory(caller, parent)?.entries.get(&name).ok_or(ErrorCode::NotFound)?;
        self.may_leave(caller, parent, id)?;
        match (directory, self.0[id].kind == FileKind::Directory) {
            (true, false) => return Err(ErrorCode::NotADirectory),
            (false, true) => return Err(ErrorCode::IsADirectory),
            _ => {}
        }
        if directory {
            if !self.0[id].entries.is_empty() {
                return Err(ErrorCode::NotEmpty);
            }
            self.0[id].gone = true;
            self.0[parent].links -= 1;
        } else {
            self.lose(id);
        }
        self.0[parent].entries.remove(&name);
        Ok(())
    }

    fn is_within(&self, mut id: usize, above: usize) -> bool {
        loop {
            if id == above {
                return true;
            }
            if id == 0 {
                return false;
            }
            id = self.0[id].parent;
        }
    }

    fn rename(
        &mut self,
        caller: usize,
        from: (usize, usize),
        to: (usize, usize),
        mode: RenameMode,
    ) -> Answer<()> {
        let moved = *self.directory(caller, from.0)?.entries.get(&from.1).ok_or(ErrorCode::NotFound)?;
        let old = self.directory(caller, to.0)?.entries.get(&to.1).copied();
        match (mode, old) {
            (RenameMode::NoReplace, Some(_)) => return Err(ErrorCode::Exists),
            (RenameMode::Exchange, None) => return Err(ErrorCode::NotFound),
            (_, Some(old)) if old == moved => return Ok(()),
            _ => {}
        }
        let is_dir = |model: &Self, id: usize| model.0[id].kind == FileKind::Directory;
        self.may_leave(caller, from.0, moved)?;
        if from.0 != to.0 && is_dir(self, moved) {
            self.may(caller, moved, 2)?;
        }
        self.may(caller, to.0, 2)?;
        if let Some(old) = old {
            self.may_leave(caller, to.0, old)?;
        }
        if is_dir(self, moved) && self.is_within(to.0, moved) {
            return Err(ErrorCode::Cycle);
        }
        match old {
            None => {
                self.0[from.0].entries.remove(&from.1);
            }
            Some(old) if mode == RenameMode::Exchange => {
                if from.0 != to.0 && is_dir(self, old) {
                    self.may(caller, old, 2)?;
                }
                if is_dir(self, old) && self.is_within(from.0, old) {
                    return Err(ErrorCode::Cycle);
                }
                self.0[from.0].entries.insert(from.1, old);
                if is_dir(self, old) {
                    self.0[old].parent = from.0;
                    self.0[from.0].links += 1;
                    self.0[to.0].links -= 1;
                }
            }
            Some(old) => {
                match (is_dir(self, moved), is_dir(self, old)) {
                    (false, false) => self.lose(old),
                    (false, true) => return Err(ErrorCode::IsADirectory),
                    (true, false) => return Err(ErrorCode::NotADirectory),
                    (true, true) => {
                        if !self.0[old].entries.is_empty() {
                            return Err(ErrorCode::NotEmpty);
                        }
                        self.0[old].gone = true;
                        self.0[to.0].links -= 1;
                    }
                }
                self.0[from.0].entries.remove(&from.1);
            }
        }
        self.0[to.0].entries.insert(to.1, moved);
        if is_dir(self, moved) {
            self.0[moved].parent = to.0;
            self.0[from.0].links -= 1;
            self.0[to.0].links += 1;
        }
        Ok(())
    }

    fn set_mode(&mut self, caller: usize, id: usize, mode: u16) -> Answer<()> {
        let thing = self.get(id)?;
        if caller != 0 && thing.owner != caller {
            return Err(ErrorCode::NotPermitted);
        }
        if thing.kind == FileKind::Symlink {
            return Err(ErrorCode::NotSupported);
        }
        self.0[id].mode = mode;
        Ok(())
    }

    fn file(&self, id: usize) -> Answer<()> {
        match self.get(id)?.kind {
            FileKind::File => Ok(()),
            FileKind::Directory => Err(ErrorCode::IsADirectory),
            _ => Err(ErrorCode::Invalid),
        }
    }

    fn set_size(&mut self, caller: usize, id: usize, size: u64) -> Answer<()> {
        self.file(id)?;
        self.may(caller, id, 2)?;
        let thing = &mut self.0[id];
        if size > thing.size && thing.dirty {
            return Err(ErrorCode::Busy);
        }
        if size == 0 {
            (thing.has_objects, thing.dirty) = (false, false);
        } else if size < thing.size && thing.has_objects {
            thing.dirty = true;
        }
        thing.size = size;
        Ok(())
    }

    fn writes(&self, caller: usize, id: usize) -> Answer<()> {
        match self.get(id)?.open[caller] {
            Some((_, true)) => Ok(()),
            _ => self.may(caller, id, 2),
        }
    }

    fn write(&mut self, caller: usize, id: usize, size: u64) -> Answer<()> {
        self.writes(caller, id)?;
        self.file(id)?;
        let thing = &mut self.0[id];
        if thing.dirty {
            return Err(ErrorCode::Busy);
        }
        thing.has_objects = true;
        thing.size = thing.size.max(size);
        Ok(())
    }

    fn open(&mut self, caller: usize, id: usize, writes: bool) -> Answer<()> {
        self.file(id)?;
        let held = self.0[id].open[caller].unwrap_or_default();
        if !(held.0 && (held.1 || !writes)) {
            self.may(caller, id, 4)?;
            if writes {
                self.may(caller, id, 2)?;
            }
        }
        if writes && self.0[id].dirty {
            return Err(ErrorCode::Busy);
        }
        self.0[id].open[caller] = Some((true, held.1 || writes));
        Ok(())
    }

    fn close(&mut self, caller: usize, id: usize) {
        if let Some(thing) = self.0.get_mut(id) {
            thing.open[caller] = None;
            thing.gone |= thing.links == 0 && thing.open == [None; 3];
        }
    }
}

struct Run {
    world: World,
    model: Model,
    /// Inode numbers of the nodes.
    ids: Vec<InodeId>,
}

impl Run {
    fn ask(&mut self, caller: usize, request: Request) -> Answer<Response> {
        match self.world.ask(WHO[caller], request) {
            Response::Failed { failure } => Err(failure.code),
            other => Ok(other),
        }
    }

    fn at(&self, caller: usize, thing: usize) -> sealstone_mds_protocol::Node {
        let id = self.ids.get(thing).copied().unwrap_or(InodeId(1 << 40));
        self.world.node(WHO[caller], id)
    }

    /// Whether the node is a file without a name that no client has open. A server in its grace
    /// period keeps it for a while.
    fn is_unsure(&self, step: &Step) -> bool {
        let gone = |thing: usize| {
            let thing = self.model.0.get(thing % (self.ids.len() + 1));
            thing.is_some_and(|thing| thing.gone && thing.kind != FileKind::Directory)
        };
        match *step {
            Step::Link { node, parent, .. } => gone(node) || gone(parent),
            Step::Make { parent, .. } | Step::Remove { parent, .. } | Step::Look { parent, .. } => {
                gone(parent)
            }
            Step::Rename { from, to, .. } => gone(from.0) || gone(to.0),
            Step::Mode { node, .. }
            | Step::Size { node, .. }
            | Step::Write { node, .. }
            | Step::Open { node, .. }
            | Step::Close { node, .. } => gone(node),
            Step::Clear | Step::Tidy | Step::Restart => false,
        }
    }

    /// Runs a step in both; returns both answers.
    fn step(&mut self, step: &Step) -> (Answer<()>, Answer<()>) {
        if self.is_unsure(step) {
            return (Ok(()), Ok(()));
        }
        // Most steps use existing nodes.
        let all = self.ids.len();
        let near = |thing: usize| thing % (all + 1);
        match *step {
            Step::Make { caller, parent, name: at, kind, mode } => {
                let parent = near(parent);
                let (what, kind) = match kind {
                    0 => (NodeKind::Directory, FileKind::Directory),
                    1 => (NodeKind::Symlink(LinkTarget::new("x").unwrap()), FileKind::Symlink),
                    2 => (NodeKind::Fifo, FileKind::Fifo),
                    _ => (NodeKind::File, FileKind::File),
                };
                let expected = self.model.make(caller, parent, at, kind, mode);
                let request = make(self.at(caller, parent), NAMES[at], what, mode);
                let found = self.ask(caller, request).map(|response| {
                    let Response::Stat { stat } = response else { panic!("a stat") };
                    self.ids.push(stat.inode);
                });
                (found, expected.map(drop))
            }
            Step::Link { caller, node, parent, name: at } => {
                let (node, parent) = (near(node), near(parent));
                let expected = self.model.link(caller, node, parent, at);
                let (node, parent) = (self.at(caller, node), self.at(caller, parent));
                (
                    self.ask(caller, Request::LinkNode { node, parent, name: name(NAMES[at]) }).map(drop),
                    expected,
                )
            }
            Step::Remove { caller, parent, name: at, directory } => {
                let parent = near(parent);
                let expected = self.model.remove(caller, parent, at, directory);
                let request =
                    Request::RemoveNode { parent: self.at(caller, parent), name: name(NAMES[at]), directory };
                (self.ask(caller, request).map(drop), expected)
            }
            Step::Rename { caller, from, to, mode } => {
                let (from, to) = ((near(from.0), from.1), (near(to.0), to.1));
                let expected = self.model.rename(caller, from, to, mode);
                let request = Request::RenameNode {
                    from_parent: self.at(caller, from.0),
                    from: name(NAMES[from.1]),
                    to_parent: self.at(caller, to.0),
                    to: name(NAMES[to.1]),
                    mode,
                };
                (self.ask(caller, request).map(drop), expected)
            }
            Step::Mode { caller, node, mode } => {
                let node = near(node);
                let expected = self.model.set_mode(caller, node, mode);
                let change = NodeChange { mode: Some(mode), ..NodeChange::default() };
                let request =
                    Request::SetNode { node: self.at(caller, node), change, client_id: None, through: false };
                (self.ask(caller, request).map(drop), expected)
            }
            Step::Size { caller, node, size } => {
                let node = near(node);
                let expected = self.model.set_size(caller, node, size);
                let change = NodeChange { size: Some(size), ..NodeChange::default() };
                let request =
                    Request::SetNode { node: self.at(caller, node), change, client_id: None, through: false };
                (self.ask(caller, request).map(drop), expected)
            }
            Step::Write { caller, node, size } => {
                let node = near(node);
                let expected = self.model.write(caller, node, size);
                let node = self.at(caller, node);
                let (method, client_id) = (Method::AllData, CLIENT);
                let allocate = Request::Allocate { node, size_hint: Some(size), method, client_id };
                let found = self.ask(caller, allocate).and_then(|response| {
                    let Response::NodeOpened { node: opened } = response else { panic!("objects") };
                    let generation = opened.stat.generation;
                    let (size_at_least, mtime_ns, made) = (size, None, true);
                    self.ask(
                        caller,
                        Request::Written {
                            node,
                            size_at_least,
                            mtime_ns,
                            generation,
                            made,
                            fit: false,
                            client_id,
                        },
                    )
                });
                (found.map(drop), expected)
            }
            Step::Open { caller, node, writes } => {
                let node = near(node);
                let expected = self.model.open(caller, node, writes);
                let access = if writes { Access::Update } else { Access::Read };
                let (node, method) = (self.at(caller, node), Method::AllData);
                let request = Request::OpenNode { node, access, method, client_id: CLIENT, reclaim: false };
                (self.ask(caller, request).map(drop), expected)
            }
            Step::Close { caller, node } => {
                let node = near(node);
                self.model.close(caller, node);
                let request = Request::CloseNode { node: self.at(caller, node), client_id: CLIENT };
                (self.ask(caller, request).map(drop), Ok(()))
            }
            Step::Look { caller, parent, name: at } => {
                let parent = near(parent);
                let expected = self
                    .model
                    .directory(caller, parent)
                    .and_then(|thing| thing.entries.get(&at).copied().ok_or(ErrorCode::NotFound));
                let request = Request::Lookup {
                    parent: self.at(caller, parent),
                    name: name(NAMES[at]),
                    client_id: None,
                };
                let found = self.ask(caller, request).map(|response| {
                    let Response::Stat { stat } = response else { panic!("a stat") };
                    self.ids.iter().position(|id| *id == stat.inode).unwrap()
                });
                assert_eq!(found, expected);
                (Ok(()), Ok(()))
            }
            Step::Clear => {
                self.world.clear_all();
                self.model.0.iter_mut().for_each(|thing| thing.dirty = false);
                (Ok(()), Ok(()))
            }
            Step::Tidy => {
                // Clients send keep-alives in time.
                for caller in 0..3 {
                    let _ = self.ask(caller, Request::KeepNodes { client_id: CLIENT });
                }
                self.world.now += CLIENT_TIMEOUT_MS / 2;
                self.world.mds.tidy(self.world.now).unwrap();
                for caller in 0..3 {
                    let _ = self.ask(caller, Request::KeepNodes { client_id: CLIENT });
                }
                (Ok(()), Ok(()))
            }
            Step::Restart => {
                // The sessions stay valid; open files are reopened, as a mount does.
                let held: Vec<(usize, usize, bool)> = (0..3)
                    .flat_map(|caller| {
                        let open = self.model.0.iter().enumerate();
                        open.filter_map(move |(id, thing)| {
                            thing.open[caller].filter(|_| !thing.gone).map(|held| (caller, id, held.1))
                        })
                    })
                    .collect();
                self.world.restart();
                self.world.clear_all();
                self.model.0.iter_mut().for_each(|thing| thing.dirty = false);
                for (caller, id, writes) in held {
                    let access = if writes { Access::Update } else { Access::Read };
                    let (node, method) = (self.at(caller, id), Method::AllData);
                    let request =
                        Request::OpenNode { node, access, method, client_id: CLIENT, reclaim: true };
                    if self.ask(caller, request).is_err() {
                        // Not the owner, and no permission any more: the open is lost, as over NFS.
                        self.model.close(caller, id);
                    }
                }
                (Ok(()), Ok(()))
            }
        }
    }

    /// Every existing node matches the model.
    fn compare(&mut self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.world.run_check(CheckScope::Names, false), []);
        for (thing, id) in self.ids.clone().into_iter().enumerate() {
            let expected = self.model.0[thing].clone();
            let found = self.ask(0, Request::GetNode { node: self.world.node(ADMIN, id) });
            if expected.gone {
                // A restart or a removal in the grace period may keep it for a while.
                continue;
            }
            let Ok(Response::Stat { stat }) = found else {
                return Err(TestCaseError::fail(format!("thing {thing} is lost: {found:?}")));
            };
            let owner = ["admin", "alice", "bob"][expected.owner];
            prop_assert_eq!(
                (stat.kind, stat.mode, stat.owner.as_str(), stat.links, stat.size),
                (expected.kind, expected.mode, owner, expected.links, expected.size),
                "thing {}",
                thing
            );
            if expected.kind == FileKind::Directory {
                let node = self.world.node(ADMIN, id);
                let Ok(Response::Directory { entries, .. }) = self
                    .ask(0, Request::ReadNodes { directory: node, after: None, limit: 256, client_id: None })
                else {
                    return Err(TestCaseError::fail("a directory that does not list"));
                };
                let listed: Vec<(String, InodeId)> =
                    entries.into_iter().map(|entry| (entry.name.shown().into_owned(), entry.inode)).collect();
                let expected: Vec<(String, InodeId)> =
                    expected.entries.iter().map(|(at, id)| (NAMES[*at].to_owned(), self.ids[*id])).collect();
                prop_assert_eq!(listed, expected);
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn random_requests_match_posix_model(steps in prop::collection::vec(any_step(), 1..80)) {
        let mut run = Run { world: World::with_devices(2), model: Model::new(), ids: vec![InodeId(1)] };
        for step in &steps {
            let (found, expected) = run.step(step);
            prop_assert_eq!(found, expected, "{:?}", step);
        }
        run.compare()?;
        // All files are closed and time passes: nodes without names are removed, with objects and
        // records.
        for thing in 0..run.ids.len() {
            for caller in 0..3 {
                let _ = run.step(&Step::Close { caller, node: thing });
            }
        }
        for _ in 0..4 {
            run.world.now += CLIENT_TIMEOUT_MS;
            while run.world.mds.tidy(run.world.now).unwrap() {}
        }
        run.world.now += 1_000_000;
        run.world.reap_all();
        run.compare()?;
        let live = run.model.0.iter().filter(|thing| !thing.gone).count();
        prop_assert_eq!(run.world.records(b'i'), live);
        prop_assert_eq!((run.world.records(b'n'), run.world.records(b'f'), run.world.records(b'r')), (0, 0, 0));
        let dirty = run.model.0.iter().filter(|thing| !thing.gone && thing.dirty).count();
        prop_assert_eq!(run.world.records(b'c'), dirty);
        let Ok(Response::ServerInfo { files, directories, .. }) = run.ask(0, Request::ServerInfo {}) else {
            return Err(TestCaseError::fail("figures"));
        };
        let directory = |thing: &&Thing| !thing.gone && thing.kind == FileKind::Directory;
        prop_assert_eq!(directories as usize, run.model.0.iter().filter(directory).count());
        prop_assert_eq!(files as usize, live - directories as usize);
    }
}
