//! Asynchronous close: other mounts see all written bytes, and errors are reported.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::world::mounts::{Gated, Mount, OpenFile};
use crate::world::{Direct, GIB, World};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sealstone_client::nodes::{CreateParams, Nodes};
use sealstone_client::{ClientError, Metadata, Name};
use sealstone_mds_protocol::{
    Access, Lock, LockKind, Node, NodeChange, NodeKind, QuotaChange, QuotaSubject, RenameMode, Request, Stat,
    UserName,
};
use tokio::time::{Instant, sleep, timeout};

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn create_params(what: NodeKind) -> CreateParams {
    CreateParams { what, mode: 0o666, umask: 0o022, owner: None, group: None }
}

struct Scene {
    world: World,
    one: Mount,
    directory: Node,
}

impl Scene {
    /// Creates a mount with a directory delegation that knows the free space.
    async fn new() -> Self {
        let world = World::new(1).await;
        let one = Mount::leased(&world).await;
        let directory = one
            .nodes
            .create_node(Node::ROOT, &name("d"), create_params(NodeKind::Directory))
            .await
            .unwrap()
            .node();
        let scene = Self { world, one, directory };
        for at in ["a", "b", "c", "e"] {
            scene.put(at, b"old").await;
            sleep(Duration::from_millis(50)).await;
        }
        scene
    }

    async fn create(&self, at: &str, bytes: &[u8]) -> OpenFile {
        let (_, file) =
            self.one.nodes.create(self.directory, &name(at), create_params(NodeKind::File)).await.unwrap();
        file.write(0, bytes).await.unwrap();
        file
    }

    /// Writes and closes a file as a mount does. Returns whether the close was asynchronous.
    async fn put(&self, at: &str, bytes: &[u8]) -> bool {
        close(self.create(at, bytes).await).await
    }

    /// Retries until a close is asynchronous again, which needs a new delegation and the free
    /// space.
    async fn goes_on_at_once(&self, at: &str) -> bool {
        for number in 0..60 {
            let at = format!("{at}{number}");
            // As a mount does before it creates a file.
            let _ = self.one.nodes.lookup(self.directory, &name(&at)).await;
            if self.put(&at, b"bytes").await {
                return true;
            }
            sleep(Duration::from_secs(1)).await;
        }
        false
    }

    /// Sets the user's quota in bytes.
    async fn limit(&self, bytes_max: Option<u64>) {
        let of = QuotaSubject::User(UserName::new("admin").unwrap());
        let change = QuotaChange { bytes_max: Some(bytes_max), nodes_max: None };
        self.one.client.metadata().call(Request::QuotaSet { of, change }).await.unwrap();
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), ClientError> {
        let (from, to) = (name(from), name(to));
        let there = self.directory;
        self.one.nodes.rename((there, &from), (there, &to), RenameMode::Replace).await
    }

    async fn read(&self, nodes: &Nodes<Direct, Gated>, at: &str) -> Vec<u8> {
        let stat = nodes.lookup(self.directory, &name(at)).await.unwrap();
        let (file, _) = nodes.open(stat.node(), Access::Read).await.unwrap();
        file.read(0, 9_999).await.unwrap().to_vec()
    }
}

async fn close(file: OpenFile) -> bool {
    match file.begin_async_close() {
        Some(closing) => {
            tokio::spawn(async move { file.finish_async_close(closing).await });
            true
        }
        None => {
            file.close().await.unwrap();
            false
        }
    }
}

#[tokio::test(start_paused = true)]
async fn async_close_is_complete_for_other_mounts() {
    let scene = Scene::new().await;
    let other = Arc::new(Mount::leased(&scene.world).await);
    scene.one.gate.close("CREATE AND WRITE");
    assert!(scene.put("f", b"some bytes").await);
    scene.one.gate.reached().await;
    assert_eq!(scene.read(&scene.one.nodes, "f").await, b"some bytes", "here it is what was written");
    let (his, directory) = (other.clone(), scene.directory);
    let looks = tokio::spawn(async move { his.nodes.lookup(directory, &name("f")).await.unwrap() });
    sleep(Duration::from_secs(1)).await;
    assert!(!looks.is_finished(), "it is not stored");
    scene.one.gate.open();
    let seen: Stat = looks.await.unwrap();
    assert_eq!(seen.size, 10);
    assert_eq!(scene.read(&other.nodes, "f").await, b"some bytes");
    // Both mounts use the directory now, so each close is synchronous.
    assert!(!scene.put("g", b"more").await);
}

#[tokio::test(start_paused = true)]
async fn device_outage_delays_directory_only_briefly() {
    let scene = Scene::new().await;
    let other = Mount::leased(&scene.world).await;
    scene.one.gate.close("CREATE AND WRITE");
    assert!(scene.put("f", b"some bytes").await);
    scene.one.gate.reached().await;
    let begun = Instant::now();
    other.nodes.lookup(scene.directory, &name("f")).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    scene.one.gate.open();
    assert_eq!(scene.read(&other.nodes, "f").await, b"some bytes", "who opens it waits for its lease");
}

#[tokio::test(start_paused = true)]
async fn device_outage_does_not_delay_other_directories() {
    let scene = Scene::new().await;
    let other = Mount::leased(&scene.world).await;
    let nodes = &scene.one.nodes;
    let second =
        nodes.create_node(Node::ROOT, &name("d2"), create_params(NodeKind::Directory)).await.unwrap().node();
    for at in ["a", "b", "c", "e"] {
        let (_, file) = nodes.create(second, &name(at), create_params(NodeKind::File)).await.unwrap();
        file.close().await.unwrap();
        sleep(Duration::from_millis(50)).await;
    }
    scene.one.gate.close("CREATE AND WRITE");
    assert!(scene.put("f", b"some bytes").await);
    scene.one.gate.reached().await;
    let begun = Instant::now();
    other.nodes.lookup(second, &name("e")).await.unwrap();
    // Both mounts use the directory now, so names are looked up.
    let (from, to) = (name("a"), name("b"));
    nodes.rename((second, &from), (second, &to), RenameMode::Replace).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    scene.one.gate.open();
}

#[tokio::test(start_paused = true)]
async fn replacing_file_is_stored_before_rename() {
    let scene = Scene::new().await;
    scene.one.gate.close("CREATE AND WRITE");
    assert!(scene.put("new", b"new bytes").await);
    scene.one.gate.reached().await;
    // A rename to another name of its own need not wait.
    scene.rename("new", "newer").await.unwrap();
    let replaced = timeout(Duration::from_secs(1), scene.rename("newer", "a")).await;
    assert!(replaced.is_err(), "it waits for the device");
    scene.one.gate.open();
    scene.rename("newer", "a").await.unwrap();
    assert_eq!(scene.read(&scene.one.nodes, "a").await, b"new bytes");
    scene.one.nodes.sync_all().await.unwrap();
    assert_eq!(scene.read(&Mount::leased(&scene.world).await.nodes, "a").await, b"new bytes");
}

#[tokio::test(start_paused = true)]
async fn unstored_file_replaces_nothing_and_sync_reports() {
    let scene = Scene::new().await;
    assert!(scene.put("before", b"bytes").await);
    scene.limit(Some(1)).await;
    assert!(scene.put("new", b"new bytes").await);
    let refused = scene.rename("new", "a").await;
    assert!(matches!(refused, Err(ClientError::NotStored)), "{refused:?}");
    assert_eq!(scene.read(&scene.one.nodes, "a").await, b"old");
    let next = scene.create("next", b"bytes").await;
    assert!(next.begin_async_close().is_none(), "closes wait for a while");
    next.close().await.unwrap_err();
    sleep(Duration::from_secs(5)).await;
    scene.one.nodes.sync_all().await.unwrap_err();
    scene.one.nodes.sync_all().await.unwrap();
    scene.limit(None).await;
    sleep(Duration::from_secs(60)).await;
    assert!(scene.goes_on_at_once("after").await);
}

#[tokio::test(start_paused = true)]
async fn unstored_file_replaces_nothing_later() {
    let scene = Scene::new().await;
    let other = Mount::leased(&scene.world).await;
    sleep(Duration::from_secs(15)).await;
    assert!(scene.goes_on_at_once("before").await);
    scene.limit(Some(1)).await;
    assert!(scene.put("new", b"new bytes").await);
    // The file is closed at the server, and its cached dentry is dropped.
    sleep(Duration::from_secs(5)).await;
    let refused = scene.rename("new", "a").await;
    assert!(matches!(refused, Err(ClientError::NotStored)), "{refused:?}");
    other.nodes.lookup(scene.directory, &name("new")).await.unwrap();
    let refused = scene.rename("new", "a").await;
    assert!(matches!(refused, Err(ClientError::NotStored)), "{refused:?}");
    let (there, new, a) = (scene.directory, name("new"), name("a"));
    let exchanged = scene.one.nodes.rename((there, &new), (there, &a), RenameMode::Exchange).await;
    assert!(matches!(exchanged, Err(ClientError::NotStored)), "{exchanged:?}");
    assert_eq!(scene.read(&scene.one.nodes, "a").await, b"old");
    // A rewrite from zero clears the failed mark.
    scene.limit(None).await;
    let stat = scene.one.nodes.lookup(scene.directory, &new).await.unwrap();
    let cut = NodeChange { size: Some(0), ..NodeChange::default() };
    let (file, _) = scene.one.nodes.open(stat.node(), Access::Update).await.unwrap();
    scene.one.nodes.set(stat.node(), cut, true).await.unwrap();
    file.write(0, b"new bytes").await.unwrap();
    file.close().await.unwrap();
    scene.rename("new", "a").await.unwrap();
    assert_eq!(scene.read(&other.nodes, "a").await, b"new bytes");
}

#[tokio::test(start_paused = true)]
async fn lately_stored_file_replaces_others() {
    let scene = Scene::new().await;
    let metadata = scene.one.client.metadata();
    scene.one.gate.close("CREATE AND WRITE");
    assert!(scene.put("new", b"new bytes").await);
    scene.one.gate.reached().await;
    // The bytes reach the device, and the size is reported minutes later.
    metadata.cut.store(true, Ordering::Relaxed);
    scene.one.gate.open();
    sleep(Duration::from_secs(70)).await;
    metadata.cut.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(90)).await;
    scene.rename("new", "a").await.unwrap();
    assert_eq!(scene.read(&Mount::leased(&scene.world).await.nodes, "a").await, b"new bytes");
    let _ = scene.one.nodes.sync_all().await;
    scene.one.nodes.sync_all().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unstored_file_may_take_free_name() {
    let scene = Scene::new().await;
    scene.limit(Some(1)).await;
    assert!(scene.put("new", b"new bytes").await);
    sleep(Duration::from_secs(5)).await;
    let other = Mount::leased(&scene.world).await;
    other.nodes.lookup(scene.directory, &name("new")).await.unwrap();
    scene.rename("new", "free").await.unwrap();
    let (here, there) = (name("free"), name("freer"));
    let way = ((scene.directory, &here), (Node::ROOT, &there));
    scene.one.nodes.rename(way.0, way.1, RenameMode::NoReplace).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn exchange_to_other_directory_stores_file_first() {
    let scene = Scene::new().await;
    let nodes = &scene.one.nodes;
    let second =
        nodes.create_node(Node::ROOT, &name("d2"), create_params(NodeKind::Directory)).await.unwrap().node();
    let (_, old) = nodes.create(second, &name("old"), create_params(NodeKind::File)).await.unwrap();
    old.close().await.unwrap();
    scene.one.gate.close("CREATE AND WRITE");
    assert!(scene.put("new", b"new bytes").await);
    scene.one.gate.reached().await;
    let (here, there) = (name("old"), name("new"));
    let way = || nodes.rename((second, &here), (scene.directory, &there), RenameMode::Exchange);
    assert!(timeout(Duration::from_secs(1), way()).await.is_err(), "it waits for the device");
    scene.one.gate.open();
    way().await.unwrap();
    let other = Mount::leased(&scene.world).await;
    assert_eq!(other.nodes.lookup(second, &here).await.unwrap().size, 9);
}

#[tokio::test(start_paused = true)]
async fn long_device_outage_after_close_is_reported() {
    let scene = Scene::new().await;
    let nodes = Mount::of(&scene.world).await;
    let file = nodes.create("f").await;
    file.write(0, b"some bytes").await.unwrap();
    file.close().await.unwrap();
    // The device stops without a flush and restarts much later.
    scene.world.machine(0).power_cut();
    sleep(Duration::from_secs(90)).await;
    nodes.nodes.sync_all().await.unwrap_err();
    scene.world.machine(0).boot();
    sleep(Duration::from_secs(90)).await;
    nodes.nodes.sync_all().await.unwrap();
    drop(nodes);
    assert_eq!(crate::world::mounts::seen(&scene.world, "f").await, b"some bytes");
}

#[tokio::test(start_paused = true)]
async fn removal_right_after_close_reports_no_error() {
    let scene = Scene::new().await;
    let (one, other) = (Mount::of(&scene.world).await, Mount::of(&scene.world).await);
    let file = one.create("f").await;
    file.write(0, b"some bytes").await.unwrap();
    file.close().await.unwrap();
    crate::world::mounts::forget_clients(&scene.world);
    other.nodes.remove(Node::ROOT, &name("f"), false).await.unwrap();
    crate::world::mounts::reap(&scene.world).await;
    sleep(Duration::from_secs(100)).await;
    one.nodes.sync_all().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn sync_waits_for_earlier_closes() {
    let scene = Scene::new().await;
    scene.one.gate.close("CREATE AND WRITE");
    assert!(scene.put("f", b"some bytes").await);
    assert!(timeout(Duration::from_secs(1), scene.one.nodes.sync_all()).await.is_err());
    let stat = scene.one.nodes.lookup(scene.directory, &name("f")).await.unwrap();
    let (again, _) = scene.one.nodes.open(stat.node(), Access::Update).await.unwrap();
    assert!(timeout(Duration::from_secs(1), again.sync()).await.is_err());
    scene.one.gate.open();
    scene.one.nodes.sync_all().await.unwrap();
    again.sync().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn only_qualifying_files_close_asynchronously() {
    let scene = Scene::new().await;
    let nodes = &scene.one.nodes;
    assert!(scene.put("plain", b"bytes").await);
    // An existing file that no other client knows.
    let old = nodes.lookup(scene.directory, &name("e")).await.unwrap();
    let (file, _) = nodes.open(old.node(), Access::Update).await.unwrap();
    file.write(0, b"OLD").await.unwrap();
    assert!(close(file).await);
    let other = Mount::leased(&scene.world).await;
    other.nodes.lookup(scene.directory, &name("e")).await.unwrap();
    sleep(Duration::from_secs(15)).await;
    assert!(scene.goes_on_at_once("again").await);
    let (file, _) = nodes.open(old.node(), Access::Update).await.unwrap();
    file.write(0, b"old").await.unwrap();
    assert!(!close(file).await, "others were led to it");
    // A file with a lock.
    let file = scene.create("locked", b"bytes").await;
    let lock = Lock { kind: LockKind::Write, owner: 1, start: 0, end: 9, whole: false, pid: 1 };
    assert!(nodes.lock(file.node(), lock).await.unwrap().is_none());
    assert!(!close(file).await);
    // A file with two names.
    let file = scene.create("linked", b"bytes").await;
    nodes.link(file.node(), Node::ROOT, &name("too")).await.unwrap();
    assert!(!close(file).await);
    // A file that was moved.
    let file = scene.create("moved", b"bytes").await;
    nodes
        .rename((scene.directory, &name("moved")), (Node::ROOT, &name("moved")), RenameMode::Replace)
        .await
        .unwrap();
    assert!(!close(file).await);
    // A large file.
    assert!(!scene.put("large", &vec![7; (1 << 20) + 1]).await);
    assert!(scene.put("small", &vec![7; 1 << 20]).await);
}

#[tokio::test(start_paused = true)]
async fn where_room_is_short_each_close_waits() {
    let scene = Scene::new().await;
    assert!(scene.put("f", b"bytes").await);
    let device = scene.world.mds.devices()[0].0.id;
    scene
        .world
        .mds
        .device_answered(&scene.world.mds.device_address(device).unwrap(), GIB, GIB - (200 << 20))
        .unwrap();
    sleep(Duration::from_secs(6)).await;
    for at in ["g", "h", "i"] {
        assert!(!scene.put(at, b"bytes").await);
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn truncate_during_allocation_keeps_file_intact() {
    let scene = Scene::new().await;
    scene.one.client.metadata().cut_while_answered.store(true, Ordering::Relaxed);
    assert!(scene.put("f", b"some bytes").await);
    scene.one.nodes.sync_all().await.unwrap();
    assert!(!scene.one.client.metadata().cut_while_answered.load(Ordering::Relaxed));
    assert_eq!(scene.read(&Mount::leased(&scene.world).await.nodes, "f").await, b"some bytes");
}

/// Two mounts create, replace and rename files, and requests and responses arrive in any order: an
/// open sees all data of earlier closes.
#[tokio::test(start_paused = true)]
async fn each_sees_all_that_the_other_closed() {
    let seed = std::env::var("SEALSTONE_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut at_once = 0;
    for seed in seed.map_or(0..4_u64, |seed| seed..seed + 1) {
        let mut rng = StdRng::seed_from_u64(seed);
        let scene = Scene::new().await;
        let other = Mount::leased(&scene.world).await;
        let mounts = [&scene.one, &other];
        let nodes = &scene.one.nodes;
        let second = nodes
            .create_node(Node::ROOT, &name("d2"), create_params(NodeKind::Directory))
            .await
            .unwrap()
            .node();
        let places = [scene.directory, second];
        let mut truth: BTreeMap<(usize, String), Vec<u8>> = BTreeMap::new();
        for round in 0..400_u32 {
            for mount in mounts {
                mount.client.metadata().jitter_ms.store(rng.gen_range(0..8), Ordering::Relaxed);
            }
            // Sometimes the other mount acts.
            let nodes = &mounts[usize::from(rng.gen_range(0..40) == 0)].nodes;
            let mut any = || (rng.gen_range(0..2_usize), format!("n{}", rng.gen_range(0..5)));
            let ((place, at), (to, new)) = (any(), any());
            let key = (place, at.clone());
            match rng.gen_range(0..6) {
                0..3 => {
                    let bytes = format!("{seed} {round} {at}").repeat(rng.gen_range(1..40)).into_bytes();
                    let _ = nodes.lookup(places[place], &name(&at)).await;
                    let file = match truth.contains_key(&key) {
                        true => {
                            let stat = nodes.lookup(places[place], &name(&at)).await.unwrap();
                            let cut = NodeChange { size: Some(0), ..NodeChange::default() };
                            nodes.set(stat.node(), cut, false).await.unwrap();
                            nodes.open(stat.node(), Access::Update).await.unwrap().0
                        }
                        false => {
                            nodes
                                .create(places[place], &name(&at), create_params(NodeKind::File))
                                .await
                                .unwrap()
                                .1
                        }
                    };
                    file.write(0, &bytes).await.unwrap();
                    at_once += usize::from(close(file).await);
                    truth.insert(key, bytes);
                }
                3 => {
                    let (old, way) = (name(&at), name(&new));
                    let renamed =
                        nodes.rename((places[place], &old), (places[to], &way), RenameMode::Replace).await;
                    if let Some(bytes) = truth.remove(&key) {
                        renamed.unwrap();
                        truth.insert((to, new), bytes);
                    }
                }
                4 => {
                    let removed = nodes.remove(places[place], &name(&at), false).await;
                    assert_eq!(removed.is_ok(), truth.remove(&key).is_some(), "seed {seed} round {round}");
                }
                _ => sleep(Duration::from_millis(rng.gen_range(0..3_000))).await,
            }
            let looks = &mounts[usize::from(rng.gen_range(0..25) == 0)].nodes;
            let key = (rng.gen_range(0..2_usize), format!("n{}", rng.gen_range(0..5)));
            let seen = looks.lookup(places[key.0], &name(&key.1)).await.ok();
            let wanted = truth.get(&key);
            let size = |bytes: &Vec<u8>| bytes.len() as u64;
            assert_eq!(
                seen.as_ref().map(|stat| stat.size),
                wanted.map(size),
                "seed {seed} round {round} {key:?}"
            );
            if let (Some(stat), Some(wanted)) = (seen, wanted) {
                let (file, _) = looks.open(stat.node(), Access::Read).await.unwrap();
                assert_eq!(
                    &file.read(0, 99_999).await.unwrap()[..],
                    &wanted[..],
                    "seed {seed} round {round} {key:?}"
                );
            }
        }
        for mount in mounts {
            mount.nodes.shut_down().await.unwrap();
        }
    }
    assert!(at_once > 100, "{at_once}");
}
