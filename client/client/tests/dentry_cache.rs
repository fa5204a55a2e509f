//! The dentry cache: which requests it saves, and that its entries are current.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::world::{Direct, World, tuning};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sealstone_client::nodes::{CacheListing, CreateParams, ListEdition, Nodes, NodesOptions};
use sealstone_client::{Client, ClientError, DevicePool, Name};
use sealstone_mds_protocol::{
    DirEntry, ErrorCode, FileKind, InodeId, Node, NodeChange, NodeKind, RenameMode, Stat,
};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Longer than a directory is without leases after a recall.
const QUIET: Duration = Duration::from_secs(12);

/// A name with its node.
type Entry = (Name, InodeId, FileKind);

struct Mount {
    nodes: Nodes<Direct, DevicePool>,
    client: Client<Direct, DevicePool>,
}

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn create_params(what: NodeKind) -> CreateParams {
    CreateParams { what, mode: 0o755, umask: 0, owner: None, group: None }
}

impl Mount {
    async fn of(world: &World) -> Self {
        Self::with(world, true).await
    }

    async fn with(world: &World, leases: bool) -> Self {
        let client = world.client_over(world.pool(), tuning()).await;
        let mount =
            Self { nodes: Nodes::new(&client, NodesOptions { leases, ..NodesOptions::default() }), client };
        // Receives its epoch.
        let _ = mount.nodes.lookup(Node::ROOT, &name("nothing")).await;
        sleep(Duration::from_millis(100)).await;
        mount
    }

    async fn make(&self, parent: Node, at: &str, what: NodeKind) -> Stat {
        self.nodes.create_node(parent, &name(at), create_params(what)).await.unwrap()
    }

    async fn look(&self, parent: Node, at: &str) -> Option<Stat> {
        match self.nodes.lookup(parent, &name(at)).await {
            Ok(stat) => Some(stat),
            Err(ClientError::Refused(failure)) if failure.code == ErrorCode::NotFound => None,
            Err(error) => panic!("{at}: {error}"),
        }
    }

    /// Returns the entries of a directory from the server.
    async fn list(&self, directory: Node) -> Vec<Entry> {
        let (entries, more) = self.nodes.read_directory(directory, None).await.unwrap();
        assert!(!more);
        entries.into_iter().map(|entry| (entry.name, entry.inode, entry.kind)).collect()
    }

    /// Returns the entries of a directory from the cache, three at a time.
    fn list_known(&self, directory: Node) -> Option<Vec<Entry>> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let (after, had) = (entries.last().map(|(name, ..)| name.clone()), entries.len());
            let listed = self.nodes.list(directory, after.as_ref(), |name, inode, kind| {
                let full = entries.len() == had + 3;
                if !full {
                    entries.push((name.clone(), inode, kind));
                }
                full
            });
            match listed {
                CacheListing::End => return Some(entries),
                CacheListing::Upto(None) => return None,
                CacheListing::Upto(last) => assert_eq!(last, entries.last().map(|(name, ..)| name.clone())),
            }
        }
    }

    /// Number of requests for names and nodes.
    fn asked(&self) -> usize {
        ["Lookup", "GetNode", "ReadNodes"].iter().map(|name| self.client.metadata().called(name)).sum()
    }
}

async fn leading() -> World {
    let world = World::new(1).await;
    world.leads.store(true, Ordering::Relaxed);
    world
}

#[tokio::test(start_paused = true)]
async fn lookup_is_cached_until_remote_change() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    other
        .make(Node::ROOT, "f", NodeKind::Symlink(sealstone_mds_protocol::LinkTarget::new("x").unwrap()))
        .await;
    sleep(QUIET).await;
    let first = one.look(Node::ROOT, "f").await.unwrap();
    assert_eq!(one.look(Node::ROOT, "g").await, None);
    let asked = one.asked();
    for _ in 0..40 {
        assert_eq!(one.look(Node::ROOT, "f").await, Some(first.clone()));
        assert_eq!(one.look(Node::ROOT, "g").await, None);
        assert_eq!(one.nodes.node(first.node()).await.unwrap(), first);
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(one.asked(), asked);
    // Each of these conflicts with a lease of the first mount.
    other
        .nodes
        .rename((Node::ROOT, &name("f")), (Node::ROOT, &name("g")), RenameMode::Replace)
        .await
        .unwrap();
    assert_eq!(one.look(Node::ROOT, "f").await, None);
    assert_eq!(one.look(Node::ROOT, "g").await.unwrap().inode, first.inode);
    sleep(QUIET).await;
    let before = one.look(Node::ROOT, "g").await.unwrap();
    let change = NodeChange { mtime: Some(sealstone_mds_protocol::SetTime::At(5)), ..NodeChange::default() };
    other.nodes.set(first.node(), change, false).await.unwrap();
    let after = one.look(Node::ROOT, "g").await.unwrap();
    assert_eq!((before.mtime_ns == 5, after.mtime_ns), (false, 5));
    // Unused for long, the lease is returned and the cache is empty.
    sleep(Duration::from_secs(300)).await;
    assert_eq!(world.mds.lease_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn created_directory_is_cached_completely() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let directory = one.make(Node::ROOT, "d", NodeKind::Directory).await.node();
    let asked = one.asked();
    for number in 0..50 {
        let at = format!("f{number}");
        assert_eq!(one.look(directory, &at).await, None);
        let made = one.make(directory, &at, NodeKind::Directory).await;
        assert_eq!(one.look(directory, &at).await.unwrap().inode, made.inode);
        if number % 3 == 0 {
            one.nodes.remove(directory, &name(&at), true).await.unwrap();
            assert_eq!(one.look(directory, &at).await, None);
        }
    }
    assert_eq!(one.asked(), asked);
    other.make(directory, "f0", NodeKind::Fifo).await;
    assert_eq!(one.look(directory, "f0").await.unwrap().kind, FileKind::Fifo);
}

#[tokio::test(start_paused = true)]
async fn complete_listable_directory_is_listed_from_cache() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let create_params = CreateParams { mode: 0o300, ..create_params(NodeKind::Directory) };
    let directory = one.nodes.create_node(Node::ROOT, &name("d"), create_params).await.unwrap().node();
    for number in 0..100 {
        one.make(directory, &format!("f{number}"), NodeKind::Fifo).await;
    }
    assert!(one.list_known(directory).is_none(), "he may be allowed to look up, and not to list");
    *one.client.metadata().refuse.lock().unwrap() = Some("ReadNodes");
    one.nodes.read_directory(directory, None).await.unwrap_err();
    *one.client.metadata().refuse.lock().unwrap() = None;
    assert!(one.list_known(directory).is_none());
    let truth = one.list(directory).await;
    assert_eq!(truth.len(), 100);
    let mut asked = one.client.metadata().called("ReadNodes");
    assert_eq!(one.list_known(directory).as_ref(), Some(&truth));
    for number in 0..50 {
        one.nodes.remove(directory, &name(&format!("f{number}")), false).await.unwrap();
    }
    // Names that were being changed when the lease was replaced are looked up again.
    if one.list_known(directory).is_none() {
        assert_eq!(one.list(directory).await.len(), 50);
        asked += 1;
    }
    let mut known = one.list_known(directory).unwrap();
    known.retain(|entry| truth.contains(entry));
    assert_eq!(known.len(), 50);
    assert_eq!(one.client.metadata().called("ReadNodes"), asked);
    other.make(directory, "f0", NodeKind::Fifo).await;
    assert!(one.list_known(directory).is_none_or(|known| known.len() == 51));
}

#[tokio::test(start_paused = true)]
async fn created_nodes_are_listed_from_cache_with_attributes() {
    let world = leading().await;
    let one = Mount::of(&world).await;
    let directory = one.make(Node::ROOT, "d", NodeKind::Directory).await.node();
    assert_eq!(one.nodes.cached_page(directory, None, 9), Some((Vec::new(), false)));
    for number in 0..20 {
        let at = name(&format!("f{number:02}"));
        let (_, file) = one.nodes.create(directory, &at, create_params(NodeKind::File)).await.unwrap();
        file.write(0, &vec![1; number]).await.unwrap();
        file.close().await.unwrap();
    }
    let asked = one.client.metadata().called("ReadNodes");
    let (mut entries, mut more) = (Vec::new(), true);
    while more {
        let after = entries.last().map(|entry: &DirEntry| entry.name.clone());
        let (page, rest) = one.nodes.cached_page(directory, after.as_ref(), 6).expect("all is known");
        entries.extend(page);
        more = rest;
    }
    assert_eq!(one.client.metadata().called("ReadNodes"), asked);
    let sizes = entries.iter().map(|entry| entry.stat.as_ref().map(|stat| stat.size));
    // More of the entries from before the delegation may not be cached.
    let known = sizes.zip(0..).filter(|(size, number)| size.is_none_or(|size| size == *number)).count();
    assert_eq!(known, 20);
    entries.retain(|entry| entry.stat.is_some());
    assert!(entries.len() > 15);
    one.nodes.sync_all().await.unwrap();
    let (truth, _) = one.nodes.read_directory(directory, None).await.unwrap();
    let of = |entry: &DirEntry| {
        let stat = entry.stat.as_ref().unwrap();
        (entry.name.clone(), entry.inode, stat.kind, stat.mode, stat.size, stat.owner.clone())
    };
    let truth: Vec<_> = truth.iter().map(of).collect();
    assert!(entries.iter().map(of).all(|entry| truth.contains(&entry)));
}

#[tokio::test(start_paused = true)]
async fn each_change_ends_directory_edition() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    assert_eq!(
        Mount::with(&world, false).await.nodes.edition(Node::ROOT),
        None,
        "without leases there is none"
    );
    let directory = one.make(Node::ROOT, "d", NodeKind::Directory).await.node();
    let mut seen = Vec::new();
    let mut another = |edition: Option<ListEdition>| {
        let edition = edition.unwrap();
        assert!(!seen.contains(&edition));
        seen.push(edition);
    };
    another(one.nodes.edition(directory));
    let (f, g) = (name("f"), name("g"));
    let made = one.make(directory, "f", NodeKind::Fifo).await;
    another(one.nodes.edition(directory));
    one.nodes.rename((directory, &f), (directory, &g), RenameMode::Replace).await.unwrap();
    another(one.nodes.edition(directory));
    one.nodes.link(made.node(), directory, &f).await.unwrap();
    another(one.nodes.edition(directory));
    one.nodes.remove(directory, &f, false).await.unwrap();
    another(one.nodes.edition(directory));
    one.client.metadata().gate.close("MakeNode");
    {
        let create_params = one.nodes.create_node(directory, &f, create_params(NodeKind::Directory));
        tokio::pin!(create_params);
        tokio::select! {
            _ = &mut create_params => panic!("it waits"),
            () = one.client.metadata().gate.reached() => {}
        }
        // The caller drops its request.
    }
    another(one.nodes.edition(directory));
    other.make(directory, "h", NodeKind::Fifo).await;
    assert_eq!(one.nodes.edition(directory), None);
    sleep(QUIET).await;
    one.look(directory, "h").await.unwrap();
    another(one.nodes.edition(directory));
    let kept = one.nodes.edition(directory);
    sleep(Duration::from_secs(10)).await;
    one.list(directory).await;
    assert_eq!(one.nodes.edition(directory), kept);
}

#[tokio::test(start_paused = true)]
async fn directory_is_listed_once_after_repeated_misses() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let directory = other.make(Node::ROOT, "d", NodeKind::Directory).await.node();
    for number in 0..300 {
        other.make(directory, &format!("f{number}"), NodeKind::Fifo).await;
    }
    sleep(QUIET).await;
    for at in ["a", "b"] {
        assert_eq!(one.look(directory, at).await, None);
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(one.client.metadata().called("ReadNodes"), 2);
    let asked = one.asked();
    for number in 0..100 {
        assert_eq!(one.look(directory, &format!("g{number}")).await, None);
    }
    assert_eq!(one.asked(), asked);
    assert!(one.look(directory, "f299").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn unknown_outcome_of_change_disables_cache() {
    let world = leading().await;
    let one = Mount::of(&world).await;
    let directory = one.make(Node::ROOT, "d", NodeKind::Directory).await.node();
    one.client.metadata().gate.close("MakeNode");
    {
        let at = name("f");
        let create_params = one.nodes.create_node(directory, &at, create_params(NodeKind::Fifo));
        tokio::pin!(create_params);
        tokio::select! {
            _ = &mut create_params => panic!("it waits"),
            () = one.client.metadata().gate.reached() => {}
        }
        // The caller drops its request.
    }
    assert!(one.look(directory, "f").await.is_some(), "it was done");
    let asked = one.asked();
    assert!(one.look(directory, "f").await.is_some() && one.look(directory, "g").await.is_none());
    assert_eq!(one.asked(), asked + 2, "nothing is remembered for a while");
    sleep(Duration::from_secs(61)).await;
    let _ = (one.look(directory, "f").await, one.look(directory, "g").await);
    let asked = one.asked();
    assert!(one.look(directory, "f").await.is_some() && one.look(directory, "g").await.is_none());
    assert_eq!(one.asked(), asked);
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Runs a random operation and ignores its outcome.
async fn step(mount: &Mount, directories: [Node; 2], seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut any = || (directories[rng.gen_range(0..2)], name(NAMES[rng.gen_range(0..NAMES.len())]));
    let ((parent, at), (to_parent, to)) = (any(), any());
    let nodes = &mount.nodes;
    match rng.gen_range(0..12) {
        0 | 1 => drop(nodes.create_node(parent, &at, create_params(NodeKind::Fifo)).await),
        2 => drop(nodes.create_node(parent, &at, create_params(NodeKind::Directory)).await),
        3 => {
            if let Ok((_, file)) = nodes.create(parent, &at, create_params(NodeKind::File)).await {
                let _ = file.close().await;
            }
        }
        4 => drop(nodes.remove(parent, &at, rng.r#gen()).await),
        5 => {
            let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            drop(nodes.rename((parent, &at), (to_parent, &to), modes[rng.gen_range(0..3)]).await);
        }
        6 => {
            if let Ok(stat) = nodes.lookup(parent, &at).await {
                drop(nodes.link(stat.node(), to_parent, &to).await);
            }
        }
        7 => {
            if let Ok(stat) = nodes.lookup(parent, &at).await {
                let mode = Some(0o700 | rng.gen_range(0..64));
                drop(nodes.set(stat.node(), NodeChange { mode, ..NodeChange::default() }, false).await);
            }
        }
        8 => drop(nodes.read_directory(parent, None).await),
        9 => {
            if let Ok(stat) = nodes.lookup(parent, &at).await {
                drop(nodes.node(stat.node()).await);
            }
        }
        _ => drop(nodes.lookup(parent, &at).await),
    }
}

/// Requests and answers overtake each other; when nothing is in flight, each mount's cache is
/// correct.
#[tokio::test(start_paused = true)]
async fn idle_mounts_agree_on_names() {
    let seed = std::env::var("SEALSTONE_SEED").ok().and_then(|seed| seed.parse().ok());
    let (mut all_listed, mut all_same) = (0, 0);
    for seed in seed.map_or(0..10_u64, |seed| seed..seed + 1) {
        let mut rng = StdRng::seed_from_u64(seed);
        let world = leading().await;
        let mounts = [Mount::of(&world).await, Mount::of(&world).await, Mount::with(&world, false).await];
        let mounts = mounts.map(Arc::new);
        let directories = [mounts[0].make(Node::ROOT, "x", NodeKind::Directory).await.node(), Node::ROOT];
        let mut believed = [0, 0];
        let (mut listed, mut same) = (0, 0);
        let mut editions: [[Option<(ListEdition, Vec<Entry>)>; 2]; 2] = Default::default();
        let mut alone = 0;
        for round in 0..30 {
            // Mostly one mount for a while: a directory that several mounts change gets no leases.
            if rng.gen_range(0..6) == 0 {
                alone = rng.gen_range(0..3);
            }
            for mount in &mounts {
                mount.client.metadata().jitter_ms.store(rng.gen_range(0..30), Ordering::Relaxed);
            }
            let mut steps = JoinSet::new();
            for _ in 0..[1, 3, 40, 40][rng.gen_range(0..4)] {
                let mount = mounts[if alone < 2 { alone } else { rng.gen_range(0..3) }].clone();
                let (seed, pause) = (rng.r#gen(), rng.gen_range(0..120));
                steps.spawn(async move {
                    sleep(Duration::from_millis(pause)).await;
                    step(&mount, directories, seed).await;
                });
            }
            steps.join_all().await;
            mounts.iter().for_each(|mount| mount.client.metadata().jitter_ms.store(0, Ordering::Relaxed));
            for (place, directory) in directories.into_iter().enumerate() {
                let truth = mounts[2].list(directory).await;
                for (number, mount) in mounts[..2].iter().enumerate() {
                    if alone < 2 && number != alone {
                        continue;
                    }
                    let at = format!("seed {seed} round {round} mount {number} directory {place}");
                    let edition = mount.nodes.edition(directory);
                    let mut known = mount.list_known(directory);
                    if known.is_none() {
                        assert_eq!(mount.list(directory).await, truth, "{at}");
                        known = mount.list_known(directory);
                    }
                    listed += usize::from(known.is_some());
                    assert!(known.is_none_or(|known| known == truth), "{at}");
                    let kept = &mut editions[number][place];
                    if let Some((kept, then)) = kept.take().filter(|(kept, _)| Some(*kept) == edition) {
                        assert_eq!(then, truth, "{at}: {kept:?}");
                        same += 1;
                    }
                    *kept = edition.map(|edition| (edition, truth.clone()));
                }
            }
            for at in NAMES {
                for directory in directories {
                    let truth = mounts[2].look(directory, at).await;
                    for (number, mount) in mounts[..2].iter().enumerate() {
                        if alone < 2 && number != alone {
                            continue;
                        }
                        for (time, count) in believed.iter_mut().enumerate() {
                            let asked = mount.asked();
                            let seen = mount.look(directory, at).await;
                            *count += usize::from(mount.asked() == asked);
                            let place = format!("seed {seed} round {round} mount {number} {at} time {time}");
                            let of =
                                |stat: &Stat| (stat.inode, stat.mode, stat.links, stat.kind, stat.version);
                            assert_eq!(seen.as_ref().map(of), truth.as_ref().map(of), "{place}");
                        }
                    }
                }
            }
            sleep(Duration::from_secs(rng.gen_range(0..30))).await;
        }
        assert!(
            believed.iter().sum::<usize>() > 30,
            "seed {seed}: {believed:?} were answered without a request"
        );
        all_listed += listed;
        all_same += same;
    }
    assert!(all_listed > 30, "{all_listed} lists were told without a request");
    assert!(all_same > 3 || seed.is_some(), "{all_same} editions were the same");
}

#[tokio::test(start_paused = true)]
async fn closed_file_is_removed_with_last_name() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    for (at, over) in [("f", false), ("g", true)] {
        let (stat, file) =
            one.nodes.create(Node::ROOT, &name(at), create_params(NodeKind::File)).await.unwrap();
        file.close().await.unwrap();
        // Its lease keeps it cached, and it is looked up before it is removed.
        sleep(Duration::from_secs(3)).await;
        one.look(Node::ROOT, at).await.unwrap();
        match over {
            false => one.nodes.remove(Node::ROOT, &name(at), false).await.unwrap(),
            true => {
                one.make(Node::ROOT, "new", NodeKind::Fifo).await;
                let (from, to) = (name("new"), name(at));
                one.nodes.rename((Node::ROOT, &from), (Node::ROOT, &to), RenameMode::Replace).await.unwrap();
            }
        }
        let removed = other.nodes.node(stat.node()).await;
        assert!(removed.is_err(), "nothing keeps it for a moment");
    }
    // A removal that is refused leaves the file, which opens as before.
    let (stat, file) = one.nodes.create(Node::ROOT, &name("h"), create_params(NodeKind::File)).await.unwrap();
    file.write(0, b"bytes").await.unwrap();
    file.sync().await.unwrap();
    drop(file);
    sleep(Duration::from_secs(3)).await;
    one.look(Node::ROOT, "h").await.unwrap();
    *one.client.metadata().refuse.lock().unwrap() = Some("RemoveNode");
    one.nodes.remove(Node::ROOT, &name("h"), false).await.unwrap_err();
    let (file, _) = one.nodes.open(stat.node(), sealstone_mds_protocol::Access::Read).await.unwrap();
    assert_eq!(file.read(0, 9).await.unwrap(), &b"bytes"[..]);
}

#[tokio::test(start_paused = true)]
async fn late_answer_of_returned_lease_is_ignored() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    other.make(Node::ROOT, "f", NodeKind::Fifo).await;
    sleep(QUIET).await;
    one.client.metadata().gate.close("Lookup");
    let late = {
        let nodes = one.nodes.clone();
        tokio::spawn(async move { nodes.lookup(Node::ROOT, &name("f")).await })
    };
    one.client.metadata().gate.reached().await;
    // The recall arrives before the grant, and the server does not wait for the answer.
    let way = ((Node::ROOT, &name("f")), (Node::ROOT, &name("g")));
    other.nodes.rename(way.0, way.1, RenameMode::Replace).await.unwrap();
    one.client.metadata().gate.open();
    late.await.unwrap().unwrap();
    assert_eq!(one.look(Node::ROOT, "f").await, None);
    assert!(one.look(Node::ROOT, "g").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn losing_own_rights_invalidates_cached_directory() {
    let world = leading().await;
    let one = Mount::of(&world).await;
    let directory = one.make(Node::ROOT, "d", NodeKind::Directory).await.node();
    one.make(directory, "f", NodeKind::Directory).await;
    let asked = one.asked();
    assert!(one.look(directory, "f").await.is_some() && one.look(directory, "g").await.is_none());
    assert_eq!(one.asked(), asked);
    let change = NodeChange { mode: Some(0), ..NodeChange::default() };
    one.nodes.set(directory, change, false).await.unwrap();
    let _ = (one.nodes.lookup(directory, &name("f")).await, one.nodes.lookup(directory, &name("g")).await);
    assert_eq!(one.asked(), asked + 2, "the server says whether he may");
}
