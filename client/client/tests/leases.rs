//! Leases of several mounts: what each mount caches, and that it is current.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::world::mounts::tell_tags;
use crate::world::{Direct, World, content, tuning};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sealstone_client::nodes::{CreateParams, File, Nodes, NodesOptions};
use sealstone_client::{Client, ClientError, DevicePool, Name};
use sealstone_mds_protocol::{Access, ErrorCode, Node, NodeChange, NodeKind, Stat};
use tokio::time::{Instant, sleep, timeout};

type OpenFile = File<Direct, DevicePool>;

struct Mount {
    nodes: Nodes<Direct, DevicePool>,
    client: Client<Direct, DevicePool>,
}

async fn leading(devices: u8) -> World {
    let world = World::new(devices).await;
    world.leads.store(true, Ordering::Relaxed);
    world
}

impl Mount {
    async fn of(world: &World) -> Self {
        Self::with(world, NodesOptions { leases: true, ..NodesOptions::default() }).await
    }

    async fn with(world: &World, options: NodesOptions) -> Self {
        let client = world.client_over(world.pool(), tuning()).await;
        let mount = Self { nodes: Nodes::new(&client, options), client };
        // Receives its epoch.
        sleep(Duration::from_millis(100)).await;
        mount
    }

    async fn create(&self, name: &str) -> OpenFile {
        let create_params =
            CreateParams { what: NodeKind::File, mode: 0o644, umask: 0, owner: None, group: None };
        self.nodes.create(Node::ROOT, &Name::new(name).unwrap(), create_params).await.unwrap().1
    }

    async fn look(&self, name: &str) -> Stat {
        self.nodes.lookup(Node::ROOT, &Name::new(name).unwrap()).await.unwrap()
    }

    async fn open(&self, node: Node, access: Access) -> OpenFile {
        self.nodes.open(node, access).await.unwrap().0
    }

    fn requests(&self) -> usize {
        self.client.metadata().calls.lock().unwrap().len()
    }
}

async fn all(file: &OpenFile) -> Vec<u8> {
    file.read(0, 1 << 20).await.unwrap().to_vec()
}

#[tokio::test(start_paused = true)]
async fn leased_file_opens_without_a_request() {
    let world = leading(1).await;
    let mount = Mount::of(&world).await;
    let file = mount.create("f").await;
    file.write(0, b"bytes").await.unwrap();
    let node = file.node();
    file.close().await.unwrap();
    let before = mount.requests();
    for round in 0..50 {
        let access = if round % 2 == 0 { Access::Read } else { Access::Update };
        let file = mount.open(node, access).await;
        assert_eq!(all(&file).await, b"bytes");
        assert_eq!(mount.nodes.node(node).await.unwrap().size, 5);
        file.close().await.unwrap();
        // Longer than the delay before a file is closed at the server.
        sleep(Duration::from_millis(500)).await;
    }
    let asked: Vec<_> = mount.client.metadata().calls.lock().unwrap()[before..]
        .iter()
        .filter(|name| !["KeepNodes", "Written"].contains(*name))
        .copied()
        .collect();
    assert_eq!(asked, Vec::<&str>::new());
    // An unused file is closed after a while.
    sleep(Duration::from_secs(150)).await;
    assert_eq!(mount.client.metadata().called("CloseNode"), 1);
}

#[tokio::test(start_paused = true)]
async fn leased_reads_see_unclosed_remote_writes() {
    let world = leading(2).await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let file = one.create("f").await;
    let node = file.node();
    let theirs = other.open(node, Access::Update).await;
    for round in 0..20_u8 {
        let (writer, reader) = if round % 2 == 0 { (&file, &theirs) } else { (&theirs, &file) };
        let bytes = [round; 3000];
        writer.write(u64::from(round) * 1000, &bytes).await.unwrap();
        let seen = reader.read(u64::from(round) * 1000, 5000).await.unwrap();
        assert_eq!(seen, &bytes[..], "round {round}");
        let mount = if round % 2 == 0 { &other } else { &one };
        assert_eq!(mount.nodes.node(node).await.unwrap().size, u64::from(round) * 1000 + 3000);
    }
}

/// The answer that confirms the epoch arrives at once and is not followed by a pause.
#[tokio::test(start_paused = true)]
async fn new_client_receives_recalls_at_once() {
    let world = leading(1).await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let file = other.create("f").await;
    file.write(0, b"bytes").await.unwrap();
    let begun = Instant::now();
    assert_eq!(all(&one.open(file.node(), Access::Read).await).await, b"bytes");
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn remote_change_invalidates_cached_file() {
    let world = leading(1).await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let file = one.create("f").await;
    file.write(0, &content(9000)).await.unwrap();
    let node = file.node();
    file.close().await.unwrap();
    sleep(Duration::from_secs(3)).await;
    // Its lease keeps it cached, but it is not open.
    let node = other.look("f").await.node().inode == node.inode && {
        let theirs = other.open(other.look("f").await.node(), Access::Update).await;
        assert_eq!(all(&theirs).await, content(9000));
        theirs.write(0, b"other").await.unwrap();
        theirs.close().await.unwrap();
        true
    };
    assert!(node);
    let node = one.look("f").await.node();
    let again = one.open(node, Access::Read).await;
    assert_eq!(&all(&again).await[..6], [b"other", &content(9000)[5..6]].concat());
    // Its mode is changed: a user without the right cannot open it, in spite of the lease.
    let change = NodeChange { size: Some(3), ..NodeChange::default() };
    other.nodes.set(other.look("f").await.node(), change, false).await.unwrap();
    assert_eq!(all(&again).await, b"oth");
    drop(again);
    // When it is removed, nothing keeps it.
    sleep(Duration::from_secs(3)).await;
    other.nodes.remove(Node::ROOT, &Name::new("f").unwrap(), false).await.unwrap();
    sleep(Duration::from_secs(3)).await;
    assert!(one.nodes.node(node).await.is_err(), "no hold is left of it");
}

#[tokio::test(start_paused = true)]
async fn two_readers_upgrade_one_after_another() {
    let world = leading(1).await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let file = one.create("f").await;
    file.write(0, &[0; 100]).await.unwrap();
    file.sync().await.unwrap();
    let theirs = other.open(file.node(), Access::Update).await;
    for round in 1..10_u8 {
        let (a, b) = tokio::join!(file.read(0, 100), theirs.read(0, 100));
        assert_eq!(a.unwrap(), b.unwrap());
        let (first, second) = ([round; 50], [100 + round; 50]);
        let both = async { tokio::join!(file.write(0, &first), theirs.write(50, &second)) };
        let (a, b) =
            timeout(Duration::from_secs(5), both).await.expect("neither waits for the other for ever");
        a.unwrap();
        b.unwrap();
        for reader in [&file, &theirs] {
            assert_eq!(all(reader).await, [first, second].concat(), "round {round}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn client_missing_recall_stops_before_others_proceed() {
    let fenced = |error: &ClientError| matches!(error, ClientError::Refused(failure) if failure.code == ErrorCode::Fenced);
    for unsaved in [false, true] {
        let world = leading(1).await;
        let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
        let file = one.create("f").await;
        file.write(0, b"old").await.unwrap();
        file.sync().await.unwrap();
        assert_eq!(all(&file).await, b"old");
        // Answers to this mount do not arrive any more.
        let gate = one.client.metadata().recalls.clone();
        gate.close("Recalls");
        if unsaved {
            file.write(0, b"mine").await.unwrap();
        }
        let node = file.node();
        let began = Instant::now();
        let theirs = {
            let mut opening = std::pin::pin!(other.open(node, Access::Update));
            loop {
                tokio::select! {
                    theirs = &mut opening => break theirs,
                    // The devices get the new tags that fence it.
                    () = sleep(Duration::from_millis(500)) => tell_tags(&world).await,
                }
            }
        };
        assert!(began.elapsed() > Duration::from_secs(8), "it was waited for");
        theirs.write(0, b"new").await.unwrap();
        theirs.sync().await.unwrap();
        if unsaved {
            let reported = file.sync().await.unwrap_err();
            assert!(fenced(&reported), "{reported}");
        } else {
            // It lost nothing, so no error is reported.
            assert_eq!(file.read(0, 9).await.unwrap()[..3], *b"new");
        }
        gate.open();
        let again = one.open(node, Access::Read).await;
        assert_eq!(all(&again).await[..3], *b"new", "it believes nothing any more, and asks");
    }
}

#[tokio::test(start_paused = true)]
async fn unknowingly_dropped_lease_is_returned_again() {
    let world = leading(1).await;
    let mount =
        Mount::with(&world, NodesOptions { leases: true, cached_files_max: 0, ..NodesOptions::default() })
            .await;
    let file = mount.create("f").await;
    file.write(0, b"bytes").await.unwrap();
    let node = file.node();
    *mount.client.metadata().refuse.lock().unwrap() = Some("CloseNode");
    file.close().await.unwrap();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(mount.client.metadata().called("CloseNode"), 1);
    mount.client.metadata().jitter_ms.store(2, Ordering::Relaxed);
    let file = mount.open(node, Access::Update).await;
    let written = timeout(Duration::from_secs(5), file.write(0, b"other")).await;
    written.expect("it is not asked for again and again").unwrap();
    assert!(mount.client.metadata().called("LeaseNode") < 10);
    assert_eq!(all(&file).await, b"other");
}

#[tokio::test(start_paused = true)]
async fn forgotten_client_sees_remote_writes() {
    let world = leading(1).await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let theirs = other.create("f").await;
    theirs.write(0, b"old").await.unwrap();
    theirs.sync().await.unwrap();
    let file = one.open(theirs.node(), Access::Read).await;
    assert_eq!(all(&file).await, b"old");
    // It returns its lease and requests no other one.
    theirs.write(0, b"longer than it was").await.unwrap();
    theirs.close().await.unwrap();
    other.nodes.shut_down().await.unwrap();
    // It is silent until the server drops its state.
    let (gate, recalls) = (&one.client.metadata().gate, one.client.metadata().recalls.clone());
    gate.close("KeepNodes");
    recalls.close("Recalls");
    sleep(Duration::from_secs(100)).await;
    world.mds.tidy_memory(world.clock.now());
    // It receives its epoch, and then learns that the server has no open files of it.
    recalls.open();
    sleep(Duration::from_secs(5)).await;
    gate.open();
    sleep(Duration::from_secs(15)).await;
    assert_eq!(all(&file).await, b"longer than it was");
}

/// Mounts act one after another: each read sees the last write.
#[tokio::test(start_paused = true)]
async fn three_mounts_see_one_file_history() {
    let seed = std::env::var("SEALSTONE_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in seed.map_or(0..12_u64, |seed| seed..seed + 1) {
        let mut rng = StdRng::seed_from_u64(seed);
        let world = leading(2).await;
        let mounts = [Mount::of(&world).await, Mount::of(&world).await, Mount::of(&world).await];
        let node = mounts[0].create("f").await.node();
        let mut files: Vec<Option<OpenFile>> = vec![None, None, None];
        let mut model = Vec::new();
        for step in 0..80 {
            let at = rng.gen_range(0..3);
            let mount = &mounts[at];
            if files[at].is_none() {
                files[at] = Some(mount.open(node, Access::Update).await);
            }
            let file = files[at].as_ref().unwrap();
            match rng.gen_range(0..12) {
                0..=3 => {
                    let (offset, length) = (rng.gen_range(0..2000_usize), rng.gen_range(1..900));
                    let bytes: Vec<u8> = (0..length).map(|_| rng.r#gen()).collect();
                    file.write(offset as u64, &bytes).await.unwrap();
                    if model.len() < offset + length {
                        model.resize(offset + length, 0);
                    }
                    model[offset..offset + length].copy_from_slice(&bytes);
                }
                4..=6 => assert_eq!(all(file).await, model, "seed {seed} step {step} mount {at}"),
                7 => {
                    let stat = mount.nodes.node(node).await.unwrap();
                    assert_eq!(stat.size, model.len() as u64, "seed {seed} step {step} mount {at}");
                }
                8 => {
                    let size = rng.gen_range(0..2500);
                    let change = NodeChange { size: Some(size), ..NodeChange::default() };
                    // The server clears truncated bytes before the file grows.
                    let set = mount.nodes.set(node, change, true).await.unwrap();
                    world.clear().await;
                    assert_eq!(set.size, size);
                    model.resize(size as usize, 0);
                }
                9 => file.sync().await.unwrap(),
                10 => files[at].take().unwrap().close().await.unwrap(),
                _ => sleep(Duration::from_millis(rng.gen_range(1..4000))).await,
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_all_state_in_one_request() {
    let world = leading(1).await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    for number in 0..50 {
        let file = one.create(&format!("f{number}")).await;
        file.write(0, b"bytes").await.unwrap();
        file.close().await.unwrap();
    }
    one.nodes.shut_down().await.unwrap();
    assert_eq!(world.mds.lease_count(), 0);
    let called = |name| one.client.metadata().called(name);
    assert_eq!((called("EndClient"), called("CloseNode")), (1, 0));
    let before = one.requests();
    let began = Instant::now();
    let node = other.look("f7").await.node();
    assert_eq!(all(&other.open(node, Access::Update).await).await, b"bytes");
    assert!(began.elapsed() < Duration::from_secs(1), "there is nobody to wait for");
    sleep(Duration::from_secs(30)).await;
    assert_eq!(one.requests(), before);
}
