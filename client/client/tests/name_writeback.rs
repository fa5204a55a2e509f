//! Write-back of directory changes: the number of requests, and that other mounts see all changes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::world::{Direct, World, tuning};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sealstone_client::nodes::{CreateParams, File, Nodes, NodesOptions};
use sealstone_client::{Client, ClientError, DevicePool, Name};
use sealstone_mds_protocol::{
    Access, ErrorCode, Lock, LockKind, Node, NodeChange, NodeKind, RenameMode, Stat,
};
use tokio::time::sleep;

/// Longer than a directory is without leases after a recall.
const QUIET: Duration = Duration::from_secs(12);

struct Mount {
    nodes: Nodes<Direct, DevicePool>,
    client: Client<Direct, DevicePool>,
}

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn create_params(what: NodeKind) -> CreateParams {
    CreateParams { what, mode: 0o666, umask: 0o022, owner: None, group: None }
}

impl Mount {
    async fn of(world: &World) -> Self {
        Self::with(world, NodesOptions { leases: true, ..NodesOptions::default() }).await
    }

    async fn with(world: &World, options: NodesOptions) -> Self {
        let client = world.client_over(world.pool(), tuning()).await;
        let mount = Self { nodes: Nodes::new(&client, options), client };
        // Receives its epoch.
        let _ = mount.nodes.lookup(Node::ROOT, &name("nothing")).await;
        sleep(Duration::from_millis(100)).await;
        mount
    }

    /// Creates a directory and gets a delegation on it.
    async fn led(&self, at: &str) -> Node {
        let directory = self
            .nodes
            .create_node(Node::ROOT, &name(at), create_params(NodeKind::Directory))
            .await
            .unwrap()
            .node();
        for at in ["first", "second", "third"] {
            self.touch(directory, at).await;
            sleep(Duration::from_millis(20)).await;
        }
        let asked = self.called("MakeNode");
        self.touch(directory, "fourth").await;
        assert_eq!(self.called("MakeNode"), asked, "it is led");
        directory
    }

    async fn touch(&self, directory: Node, at: &str) -> Stat {
        let (stat, file) =
            self.nodes.create(directory, &name(at), create_params(NodeKind::File)).await.unwrap();
        file.close().await.unwrap();
        stat
    }

    /// Creates a file with these bytes, which stays open.
    async fn write(&self, directory: Node, at: &str, bytes: &[u8]) -> (Stat, File<Direct, DevicePool>) {
        let (stat, file) =
            self.nodes.create(directory, &name(at), create_params(NodeKind::File)).await.unwrap();
        file.write(0, bytes).await.unwrap();
        (stat, file)
    }

    async fn remove(&self, directory: Node, at: &str) {
        self.nodes.remove(directory, &name(at), false).await.unwrap();
    }

    async fn rename(&self, directory: Node, from: &str, to: &str) {
        let (from, to) = (name(from), name(to));
        self.nodes.rename((directory, &from), (directory, &to), RenameMode::Replace).await.unwrap();
    }

    async fn look(&self, parent: Node, at: &str) -> Option<Stat> {
        match self.nodes.lookup(parent, &name(at)).await {
            Ok(stat) => Some(stat),
            Err(ClientError::Refused(failure)) if failure.code == ErrorCode::NotFound => None,
            Err(error) => panic!("{at}: {error}"),
        }
    }

    async fn names(&self, directory: Node) -> Vec<String> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let (entries, more) = self.nodes.read_directory(directory, after).await.unwrap();
            after = entries.last().map(|entry| entry.name.clone());
            all.extend(entries.into_iter().map(|entry| entry.name.to_string()));
            if !more {
                return all;
            }
        }
    }

    fn called(&self, name: &str) -> usize {
        self.client.metadata().called(name)
    }

    fn requests(&self) -> usize {
        self.client.metadata().requests()
    }
}

async fn leading() -> World {
    let world = World::new(1).await;
    world.leads.store(true, Ordering::Relaxed);
    world
}

#[tokio::test(start_paused = true)]
async fn delegated_changes_are_batched_and_visible_to_others() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let directory = one.led("d").await;
    let before = one.requests();
    for number in 0..100 {
        one.touch(directory, &format!("f{number}")).await;
    }
    for number in 0..50 {
        one.rename(directory, &format!("f{number}"), &format!("g{number}")).await;
    }
    for number in 0..50 {
        one.remove(directory, &format!("g{number}")).await;
        assert_eq!(one.look(directory, &format!("g{number}")).await, None);
        assert!(one.look(directory, &format!("f{}", 50 + number)).await.is_some());
    }
    let asked = one.requests() - before;
    assert!(asked <= 4, "{asked} requests for 200 changes");
    // The last changes were just made: a request of another mount recalls the delegation.
    let seen = other.names(directory).await;
    assert_eq!(seen.len(), 4 + 50);
    for number in 50..100 {
        let at = format!("f{number}");
        let (mine, his) =
            (one.look(directory, &at).await.unwrap(), other.look(directory, &at).await.unwrap());
        assert_eq!(mine, Stat { proof: mine.proof, ..his }, "times and all");
    }
    // From here on both mounts send requests, and neither caches the directory.
    one.remove(directory, "f50").await;
    assert_eq!(other.look(directory, "f50").await, None);
    other.touch(directory, "f50").await;
    assert!(one.look(directory, "f50").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn locally_created_file_is_written_and_read() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let directory = one.led("d").await;
    let (stat, file) = one.write(directory, "f", b"some bytes").await;
    one.rename(directory, "f", "g").await;
    assert_eq!(one.look(directory, "g").await.unwrap().size, 10);
    let his = other.look(directory, "g").await.unwrap();
    assert_eq!(his.inode, stat.inode);
    let (read, _) = other.nodes.open(his.node(), Access::Read).await.unwrap();
    assert_eq!(read.read(0, 99).await.unwrap(), &b"some bytes"[..]);
    drop(read);
    // The last name is removed while the file is open, so it stays for its program.
    file.write(10, b" more").await.unwrap();
    one.remove(directory, "g").await;
    assert_eq!(file.read(0, 99).await.unwrap(), &b"some bytes more"[..]);
    file.close().await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert!(other.nodes.node(his.node()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn removed_open_file_stays_usable() {
    let world = leading().await;
    let one = Mount::of(&world).await;
    let directory = one.led("d").await;
    let (_, file) = one.nodes.create(directory, &name("f"), create_params(NodeKind::File)).await.unwrap();
    one.remove(directory, "f").await;
    assert_eq!(one.look(directory, "f").await, None);
    file.write(0, b"bytes").await.unwrap();
    file.sync().await.unwrap();
    assert_eq!(file.read(0, 9).await.unwrap(), &b"bytes"[..]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_does_nothing_twice() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let directory = one.led("d").await;
    *one.client.metadata().lose.lock().unwrap() = Some("NameBatch");
    let made = one.touch(directory, "f").await;
    one.rename(directory, "f", "g").await;
    one.nodes.sync_all().await.unwrap();
    assert_eq!(other.look(directory, "f").await, None);
    assert_eq!(other.look(directory, "g").await.unwrap().inode, made.inode);
}

#[tokio::test(start_paused = true)]
async fn refused_change_is_reported_once_and_dropped() {
    let world = leading().await;
    let one = Mount::of(&world).await;
    let directory = one.led("d").await;
    *one.client.metadata().refuse.lock().unwrap() = Some("NameBatch");
    one.touch(directory, "f").await;
    one.nodes.sync_all().await.unwrap_err();
    one.nodes.sync_all().await.unwrap();
    assert_eq!(one.look(directory, "f").await, None);
    // The mount continues to work.
    one.touch(directory, "g").await;
    one.nodes.sync_all().await.unwrap();
    assert!(one.look(directory, "g").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn fenced_client_loses_unsent_changes_and_reports() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let directory = one.led("d").await;
    one.nodes.sync_all().await.unwrap();
    // Neither changes nor answers to recalls of this mount arrive.
    one.client.metadata().cut.store(true, Ordering::Relaxed);
    let (_, file) = one.nodes.create(directory, &name("lost"), create_params(NodeKind::File)).await.unwrap();
    one.remove(directory, "first").await;
    let begun = tokio::time::Instant::now();
    assert_eq!(other.look(directory, "lost").await, None);
    let waited = begun.elapsed();
    assert!(waited > Duration::from_secs(9) && waited < Duration::from_secs(20), "{waited:?}");
    assert!(other.look(directory, "first").await.is_some());
    other.touch(directory, "lost").await;
    one.client.metadata().cut.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(30)).await;
    let his = other.look(directory, "lost").await.unwrap();
    assert_eq!(one.look(directory, "lost").await.unwrap().inode, his.inode, "what came late does nothing");
    assert!(one.look(directory, "first").await.is_some());
    file.sync().await.unwrap_err();
    one.nodes.sync_all().await.unwrap_err();
    one.nodes.sync_all().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn ended_client_delays_no_other_client() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let directory = one.led("d").await;
    one.touch(directory, "last").await;
    one.nodes.shut_down().await.unwrap();
    drop(one);
    let begun = tokio::time::Instant::now();
    assert!(other.look(directory, "last").await.is_some());
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn dirsync_sends_each_change() {
    let world = leading().await;
    let options = NodesOptions { leases: true, directory_delegations: false, ..NodesOptions::default() };
    let one = Mount::with(&world, options).await;
    let directory = one
        .nodes
        .create_node(Node::ROOT, &name("d"), create_params(NodeKind::Directory))
        .await
        .unwrap()
        .node();
    for number in 0..20 {
        one.touch(directory, &format!("f{number}")).await;
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!((one.called("MakeNode"), one.called("DelegateDir")), (21, 0));
}

#[tokio::test(start_paused = true)]
async fn directory_is_removed_after_flushing_its_changes() {
    let world = leading().await;
    let one = Mount::of(&world).await;
    let directory = one.led("d").await;
    for at in ["first", "second", "third", "fourth"] {
        one.remove(directory, at).await;
    }
    one.nodes.remove(Node::ROOT, &name("d"), true).await.unwrap();
    assert_eq!(one.look(Node::ROOT, "d").await, None);
    sleep(QUIET).await;
    assert_eq!(world.mds.lease_count(), 1, "on the root alone");
}

#[tokio::test(start_paused = true)]
async fn client_away_for_a_day_gets_new_inodes() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let directory = one.led("d").await;
    one.nodes.sync_all().await.unwrap();
    // The server has dropped all state of the client after a long silence.
    for hours in [1, 26] {
        world.mds.tidy_memory(world.clock.now() + hours * 3_600_000);
    }
    sleep(QUIET).await;
    let led = one.called("DelegateDir");
    for number in 0..40 {
        // As a mount does before it creates a file.
        assert_eq!(one.look(directory, &format!("f{number}")).await, None);
        one.touch(directory, &format!("f{number}")).await;
        sleep(Duration::from_millis(500)).await;
    }
    one.nodes.sync_all().await.unwrap();
    assert!(one.called("DelegateDir") > led, "it leads again");
    for number in 0..40 {
        assert!(other.look(directory, &format!("f{number}")).await.is_some(), "f{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn unleased_file_has_written_size() {
    let world = leading().await;
    let one = Mount::of(&world).await;
    let directory = one.led("d").await;
    one.client.metadata().no_leases_on_files.store(true, Ordering::Relaxed);
    let (_, file) = one.write(directory, "f", b"some bytes").await;
    file.close().await.unwrap();
    // The lease is dropped while the directory is in use.
    for _ in 0..5 {
        sleep(Duration::from_secs(1)).await;
        one.touch(directory, "again").await;
        one.remove(directory, "again").await;
    }
    assert_eq!(one.look(directory, "f").await.unwrap().size, 10);
}

#[tokio::test(start_paused = true)]
async fn fsync_reports_refused_rename() {
    let world = leading().await;
    let one = Mount::of(&world).await;
    let directory = one.led("d").await;
    let (_, file) = one.write(directory, "f", b"some bytes").await;
    file.sync().await.unwrap();
    *one.client.metadata().refuse.lock().unwrap() = Some("NameBatch");
    one.rename(directory, "f", "g").await;
    file.sync().await.unwrap_err();
    file.sync().await.unwrap();
    assert_eq!(one.look(directory, "g").await, None);
    assert_eq!(one.look(directory, "f").await.unwrap().size, 10);
    assert_eq!(file.read(0, 99).await.unwrap(), &b"some bytes"[..]);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_unavailable_server_ends_with_error() {
    let world = leading().await;
    let one = Mount::of(&world).await;
    let directory = one.led("d").await;
    one.client.metadata().cut.store(true, Ordering::Relaxed);
    one.touch(directory, "f").await;
    let change = NodeChange { mode: Some(0o700), ..NodeChange::default() };
    let set = tokio::time::timeout(Duration::from_secs(300), one.nodes.set(directory, change, false)).await;
    set.expect("it has an end").unwrap_err();
    let end = tokio::time::timeout(Duration::from_secs(300), one.nodes.shut_down()).await;
    end.expect("it has an end").unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn lost_delegation_keeps_changes_of_others() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let (lost, kept) = (one.led("lost").await, one.led("kept").await);
    one.nodes.sync_all().await.unwrap();
    one.client.metadata().cut.store(true, Ordering::Relaxed);
    let (from, to) = (name("first"), name("moved"));
    one.nodes.rename((lost, &from), (kept, &to), RenameMode::Replace).await.unwrap();
    one.touch(kept, "made").await;
    // The client uses one inode number.
    assert!(other.look(lost, "first").await.is_some());
    one.client.metadata().cut.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(30)).await;
    one.nodes.sync_all().await.unwrap_err();
    assert!(other.look(lost, "first").await.is_some());
    assert_eq!(other.look(kept, "moved").await, None);
    assert!(other.look(kept, "made").await.is_some(), "nobody took that one");
}

#[tokio::test(start_paused = true)]
async fn unleased_open_file_is_reopened_after_restart() {
    let world = leading().await;
    let (one, other) = (Mount::of(&world).await, Mount::of(&world).await);
    let directory = one.led("d").await;
    let (stat, file) = one.write(directory, "f", b"bytes").await;
    file.sync().await.unwrap();
    let lock = Lock { kind: LockKind::Write, owner: 1, start: 0, end: 9, whole: false, pid: 1 };
    assert!(one.nodes.lock(file.node(), lock).await.unwrap().is_none());
    let his = other.look(directory, "f").await.unwrap();
    let (reads, _) = other.nodes.open(his.node(), Access::Read).await.unwrap();
    reads.read(0, 9).await.unwrap();
    sleep(QUIET).await;
    world.mds.tidy_memory(world.clock.now() + 61_000);
    // Closing another file repeatedly also counts for the server.
    let another = one.look(directory, "first").await.unwrap();
    for _ in 0..25 {
        one.nodes.open(another.node(), Access::Read).await.unwrap().0.close().await.unwrap();
        sleep(Duration::from_secs(1)).await;
    }
    assert!(one.client.metadata().opened.lock().unwrap().contains(&Access::Update), "it is held again");
    let his_lock = Lock { owner: 2, pid: 2, ..lock };
    let in_the_way = other.nodes.lock(his.node(), his_lock).await.unwrap();
    assert!(in_the_way.is_some(), "{:?} is locked", stat.inode);
}

/// Two mounts act at random, with requests and answers in any order: a lookup sees every
/// change that returned before it.
#[tokio::test(start_paused = true)]
async fn each_mount_sees_changes_of_the_other() {
    let seed = std::env::var("SEALSTONE_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in seed.map_or(0..4_u64, |seed| seed..seed + 1) {
        let mut rng = StdRng::seed_from_u64(seed);
        let world = leading().await;
        let mounts = [Mount::of(&world).await, Mount::of(&world).await].map(Arc::new);
        let directories = [mounts[0].led("x").await, mounts[1].led("y").await];
        // The node of each name, as of the last change that returned.
        let mut truth: std::collections::BTreeMap<(usize, String), sealstone_mds_protocol::InodeId> =
            std::collections::BTreeMap::new();
        for (place, directory) in directories.iter().enumerate() {
            for at in ["first", "second", "third", "fourth"] {
                let stat = mounts[place].look(*directory, at).await.unwrap();
                truth.insert((place, at.to_owned()), stat.inode);
            }
        }
        for round in 0..120 {
            let mount = &mounts[if rng.gen_range(0..5) == 0 { rng.gen_range(0..2) } else { round / 30 % 2 }];
            for mount in &mounts {
                mount.client.metadata().jitter_ms.store(rng.gen_range(0..8), Ordering::Relaxed);
            }
            for _ in 0..rng.gen_range(1..9) {
                let mut any = || (rng.gen_range(0..2), format!("n{}", rng.gen_range(0..6)));
                let ((from, at), (to, new)) = (any(), any());
                let key = (from, at.clone());
                match rng.gen_range(0..3) {
                    0 => {
                        match mount
                            .nodes
                            .create(directories[from], &name(&at), create_params(NodeKind::File))
                            .await
                        {
                            Ok((stat, _file)) => {
                                assert_eq!(
                                    truth.insert(key, stat.inode),
                                    None,
                                    "seed {seed} round {round} {at}"
                                );
                            }
                            Err(_) => assert!(truth.contains_key(&key), "seed {seed} round {round} {at}"),
                        }
                    }
                    1 => match mount.nodes.remove(directories[from], &name(&at), false).await {
                        Ok(()) => assert!(truth.remove(&key).is_some(), "seed {seed} round {round} {at}"),
                        Err(_) => assert!(!truth.contains_key(&key), "seed {seed} round {round} {at}"),
                    },
                    _ => {
                        let (old, way) = (name(&at), name(&new));
                        let way = ((directories[from], &old), (directories[to], &way));
                        match mount.nodes.rename(way.0, way.1, RenameMode::Replace).await {
                            Ok(()) => {
                                let moved = truth.remove(&key).expect("it was there");
                                truth.insert((to, new), moved);
                            }
                            Err(_) => assert!(!truth.contains_key(&key), "seed {seed} round {round} {at}"),
                        }
                    }
                }
            }
            let looks = &mounts[rng.gen_range(0..2)];
            for (place, directory) in directories.iter().enumerate() {
                for number in 0..6 {
                    let at = format!("n{number}");
                    let seen = looks.look(*directory, &at).await.map(|stat| stat.inode);
                    assert_eq!(seen, truth.get(&(place, at)).copied(), "seed {seed} round {round} n{number}");
                }
            }
            sleep(Duration::from_millis(rng.gen_range(0..4000))).await;
        }
        let reported: usize = mounts.iter().map(|mount| mount.called("NameBatch")).sum();
        assert!(reported > 10, "seed {seed}: {reported}");
        for mount in &mounts {
            mount.nodes.shut_down().await.unwrap();
        }
    }
}
