//! Files in place, on real devices and the real metadata server, in one thread on paused time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::world::cutting::{Counts, Cutting};
use crate::world::{Direct, World, content, tuning};
use sealstone_client::nodes::{CreateParams, File, Nodes, NodesOptions, SeekTarget};
use sealstone_client::{ClientError, Devices, Metadata, Name, PutOptions, QuotaChange, quota_of_user};
use sealstone_mds_protocol::{Access, ErrorCode};
use sealstone_mds_protocol::{
    Node, NodeChange, NodeKind, RenameMode, Stat, XattrMode, XattrName, XattrValue,
};
use sealstone_osd::ObjectId;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn create_params(what: NodeKind) -> CreateParams {
    CreateParams { what, mode: 0o644, umask: 0, owner: None, group: None }
}

type Under = Nodes<Direct, Cutting>;

async fn nodes(world: &World, cuts: &[(&'static str, usize)]) -> (Under, Counts) {
    let devices = Cutting::new(world, cuts);
    let counts = devices.counts.clone();
    let client = world.client_over(devices, tuning()).await;
    (Nodes::new(&client, NodesOptions::default()), counts)
}

/// Returns all bytes of a file as another client reads them.
async fn read_by_another(world: &World, file: &str) -> Vec<u8> {
    let (nodes, _) = nodes(world, &[]).await;
    let stat = nodes.lookup(Node::ROOT, &name(file)).await.unwrap();
    let (open, stat) = nodes.open(stat.node(), Access::Read).await.unwrap();
    let bytes = open.read(0, stat.size as usize + 10).await.unwrap().to_vec();
    assert_eq!(bytes.len() as u64, stat.size);
    bytes
}

/// Whether the boot epoch was known before or not: the object that the flush finds is not the one
/// that was written.
#[tokio::test(start_paused = true)]
async fn lost_first_write_is_found_behind_empty_object() {
    for cut in [1, 2] {
        let world = World::new(1).await;
        let mut devices = Cutting::new(&world, &[("CREATE AND WRITE", cut)]);
        devices.remakes = true;
        let cuts = devices.cuts.clone();
        let client = world.client_over(devices, tuning()).await;
        let nodes = Nodes::new(&client, NodesOptions::default());
        let bytes = content(4_000);
        for number in 1..=2 {
            let wanted = name(&format!("file{number}"));
            let (_, file) = nodes.create(Node::ROOT, &wanted, create_params(NodeKind::File)).await.unwrap();
            file.write(0, &bytes).await.unwrap();
            file.sync().await.unwrap();
            file.close().await.unwrap();
        }
        assert_eq!(cuts.load(Ordering::Relaxed), 1);
        world.machine(0).power_cut();
        world.machine(0).boot();
        for number in 1..=2 {
            assert!(
                read_by_another(&world, &format!("file{number}")).await == bytes,
                "cut {cut}, file {number}"
            );
        }
    }
}

/// A small random number generator.
struct OpaqueRandom(u64);

impl OpaqueRandom {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Random writes, reads and syncs while devices lose power: no byte is lost while the client runs,
/// and no synced byte afterwards.
#[tokio::test(start_paused = true)]
async fn reads_return_writes_despite_restarts() {
    for (seed, cuts) in [
        (1, &[][..]),
        (2, &[("WRITE", 1)]),
        (3, &[("CREATE AND WRITE", 1)]),
        (4, &[("WRITE", 17), ("FLUSH", 2)]),
        (5, &[("FLUSH", 1), ("GET ATTRIBUTES", 2)]),
        (6, &[("CREATE AND WRITE", 2), ("WRITE", 9), ("WRITE", 30)]),
        (7, &[("READ", 3), ("WRITE", 5)]),
    ] {
        let world = World::new(3).await;
        let (nodes, _) = nodes(&world, cuts).await;
        let (_, file) = nodes.create(Node::ROOT, &name("file"), create_params(NodeKind::File)).await.unwrap();
        let (mut chance, mut model) = (OpaqueRandom(seed), Vec::<u8>::new());
        let pattern = content(300_000);
        for step in 0..150 {
            let (at, length) = (chance.below(1_500_000) as usize, chance.below(120_000) as usize + 1);
            match chance.below(10) {
                0..=5 => {
                    let data = &pattern[chance.below(100_000) as usize..][..length];
                    file.write(at as u64, data).await.unwrap();
                    model.resize(model.len().max(at + length), 0);
                    model[at..at + length].copy_from_slice(data);
                }
                6 => file.sync().await.unwrap_or_else(|error| panic!("seed {seed}: {error}")),
                7 => file.flush().await.unwrap_or_else(|error| panic!("seed {seed}: {error}")),
                8 => {
                    let end = (at + length).min(model.len());
                    if at < end {
                        file.zero(at as u64..(at + length) as u64).await.unwrap();
                        model[at..end].fill(0);
                    }
                }
                _ => {
                    let read = file.read(at as u64, length).await.unwrap();
                    let expected = model.get(at..).unwrap_or_default();
                    let expected = &expected[..expected.len().min(length)];
                    assert!(read == expected, "seed {seed}, step {step}: {length} bytes at {at}");
                }
            }
        }
        file.sync().await.unwrap();
        for place in 0..3 {
            world.machine(place).power_cut();
            world.machine(place).boot();
        }
        assert!(read_by_another(&world, "file").await == model, "seed {seed}");
        drop(file);
        nodes.shut_down().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn sequential_small_writes_become_large_commands() {
    let world = World::new(1).await;
    let (nodes, counts) = nodes(&world, &[]).await;
    let (_, file) = nodes.create(Node::ROOT, &name("file"), create_params(NodeKind::File)).await.unwrap();
    let bytes = content(640 << 10);
    for (index, piece) in bytes.chunks(1000).enumerate() {
        file.write(index as u64 * 1000, piece).await.unwrap();
    }
    file.sync().await.unwrap();
    let counts = counts.lock().unwrap().clone();
    let commands: usize = ["WRITE", "CREATE AND WRITE"].iter().filter_map(|name| counts.get(name)).sum();
    assert_eq!(commands, 10, "64 KiB each: {counts:?}");
    assert!(read_by_another(&world, "file").await == bytes);
}

/// A complete unit is kept without a copy, over older bytes and under newer ones; other data, or
/// without memory, is returned unchanged.
#[tokio::test(start_paused = true)]
async fn kept_memory_reads_like_copied_bytes() {
    const UNIT: usize = 64 << 10;
    let world = World::new(1).await;
    let client = world.client_over(Cutting::new(&world, &[]), tuning()).await;
    let nodes = Nodes::new(&client, NodesOptions::default());
    let (_, file) = nodes.create(Node::ROOT, &name("file"), create_params(NodeKind::File)).await.unwrap();
    let bytes = content(40 * UNIT);
    let mut model = bytes.clone();
    let around = |unit: usize| [&[0xEE; 80][..], &bytes[unit * UNIT..][..UNIT], &[0xEE; 16]].concat();
    let part = 80..80 + UNIT;
    let mut kept = 0;
    for unit in 0..40 {
        match file.try_write_whole((unit * UNIT) as u64, around(unit), part.clone()) {
            Ok(other) => {
                kept += 1;
                assert_eq!(other.len(), UNIT + 96, "another one, as large");
            }
            Err(memory) => {
                assert!(memory == around(unit), "as it was");
                file.write((unit * UNIT) as u64, &memory[part.clone()]).await.unwrap();
            }
        }
    }
    assert!((1..40).contains(&kept), "2 MiB of memory do not hold all of it: {kept}");
    file.flush().await.unwrap();
    // The buffer has a part of this unit, so these bytes are copied.
    file.write(10, b"older").await.unwrap();
    assert!(file.try_write_whole(0, around(7), part.clone()).is_err());
    assert!(
        file.try_write_whole(UNIT as u64 + 1, around(7), part.clone()).is_err(),
        "not from a multiple on"
    );
    assert!(file.try_write_whole(0, around(7), 80..UNIT).is_err(), "not as many");
    file.write(0, &around(7)[part.clone()]).await.unwrap();
    model.copy_within(7 * UNIT..8 * UNIT, 0);
    file.try_write_whole((3 * UNIT) as u64, around(9), part.clone()).unwrap();
    file.write(3 * UNIT as u64 + 5, b"newer").await.unwrap();
    model.copy_within(9 * UNIT..10 * UNIT, 3 * UNIT);
    model[3 * UNIT + 5..][..5].copy_from_slice(b"newer");
    assert!(file.read(0, 40 * UNIT).await.unwrap() == model, "as programs here see it");
    file.sync().await.unwrap();
    file.close().await.unwrap();
    assert!(client.memory().peak() <= client.memory().total());
    assert!(read_by_another(&world, "file").await == model);
}

#[tokio::test(start_paused = true)]
async fn more_than_memory_holds_is_written_within_it() {
    let world = World::new(2).await;
    let devices = Cutting::new(&world, &[]);
    let client = world.client_over(devices, tuning()).await;
    let nodes = Nodes::new(&client, NodesOptions::default());
    let bytes = content(2 << 20);
    let mut files = Vec::new();
    for number in 0..6 {
        let made =
            nodes.create(Node::ROOT, &name(&format!("file{number}")), create_params(NodeKind::File)).await;
        files.push(made.unwrap().1);
    }
    // Small writes to all of them: many pieces are begun and none is complete for a while.
    for (index, piece) in bytes.chunks(10_000).enumerate() {
        for file in &files {
            file.write(index as u64 * 10_000, piece).await.unwrap();
        }
    }
    for file in files {
        file.close().await.unwrap();
    }
    assert!(client.memory().peak() <= client.memory().total());
    for number in 0..6 {
        assert!(read_by_another(&world, &format!("file{number}")).await == bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn close_to_open_across_mounts() {
    let world = World::new(2).await;
    let (here, _) = nodes(&world, &[]).await;
    let (there, _) = nodes(&world, &[]).await;
    let (stat, file) = here.create(Node::ROOT, &name("file"), create_params(NodeKind::File)).await.unwrap();
    file.write(0, b"one").await.unwrap();
    assert_eq!(here.node(stat.node()).await.unwrap().size, 3, "who wrote it sees it at once");
    file.close().await.unwrap();
    let found = there.lookup(Node::ROOT, &name("file")).await.unwrap();
    assert_eq!(found.size, 3);
    let (file, _) = there.open(found.node(), Access::Update).await.unwrap();
    assert_eq!(&file.read(0, 10).await.unwrap()[..], b"one");
    file.write(3, b" and two").await.unwrap();
    file.close().await.unwrap();
    let (file, _) = here.open(stat.node(), Access::Read).await.unwrap();
    assert_eq!(&file.read(0, 100).await.unwrap()[..], b"one and two");
}

#[tokio::test(start_paused = true)]
async fn change_with_lost_answer_is_done_once() {
    let world = World::new(1).await;
    let client = world.client_over(world.pool(), tuning()).await;
    let nodes = Nodes::new(&client, NodesOptions::default());
    let lose = |name| *client.metadata().lose.lock().unwrap() = Some(name);
    lose("MakeNode");
    let made = nodes.create_node(Node::ROOT, &name("d"), create_params(NodeKind::Directory)).await.unwrap();
    lose("MakeNode");
    let (stat, file) = nodes.create(Node::ROOT, &name("f"), create_params(NodeKind::File)).await.unwrap();
    file.write(0, b"x").await.unwrap();
    file.close().await.unwrap();
    lose("RenameNode");
    nodes.rename((Node::ROOT, &name("f")), (made.node(), &name("g")), RenameMode::Replace).await.unwrap();
    assert_eq!(nodes.lookup(made.node(), &name("g")).await.unwrap().inode, stat.inode);
    lose("LinkNode");
    nodes.link(stat.node(), Node::ROOT, &name("h")).await.unwrap();
    lose("RenameNode");
    let places = ((Node::ROOT, &name("h")), (Node::ROOT, &name("d")));
    nodes.rename(places.0, places.1, RenameMode::Exchange).await.unwrap();
    let now = nodes.lookup(Node::ROOT, &name("h")).await.unwrap();
    assert_eq!(now.inode, made.inode, "exchanged once, not twice");
    nodes.rename(places.0, places.1, RenameMode::Exchange).await.unwrap();
    lose("RemoveNode");
    nodes.remove(Node::ROOT, &name("h"), false).await.unwrap();
    assert!(nodes.lookup(Node::ROOT, &name("h")).await.unwrap_err().is_not_found());
    let key = XattrName::new("user.k").unwrap();
    lose("SetXattr");
    let value = XattrValue::new("v").unwrap();
    nodes.set_xattr(stat.node(), key.clone(), value, XattrMode::Create).await.unwrap();
    lose("RemoveXattr");
    nodes.remove_xattr(stat.node(), key).await.unwrap();
    assert_eq!(client.metadata().called("RemoveXattr"), 2);
}

/// A client that repeats a change after a lost answer must not take a change of another client for
/// its own.
#[tokio::test(start_paused = true)]
async fn repeated_change_ignores_changes_of_others() {
    let world = World::new(1).await;
    let client = world.client_over(world.pool(), tuning()).await;
    let nodes = Nodes::new(&client, NodesOptions::default());
    let other = Nodes::new(&world.client_over(world.pool(), tuning()).await, NodesOptions::default());
    let (a, b) = (name("a"), name("b"));
    let lose = |name| *client.metadata().lose.lock().unwrap() = Some(name);
    // Created, removed and created again by another client before the repetition: this client's
    // node is the first one, which was removed.
    lose("MakeNode");
    let (made, theirs) =
        tokio::join!(nodes.create_node(Node::ROOT, &a, create_params(NodeKind::Directory)), async {
            let first = until_there(&other, &a).await;
            other.remove(Node::ROOT, &a, true).await.unwrap();
            let second = other.create_node(Node::ROOT, &a, create_params(NodeKind::Directory)).await.unwrap();
            assert_ne!(first.inode, second.inode);
            (first, second)
        });
    assert_eq!(made.unwrap().inode, theirs.0.inode);
    assert_eq!(nodes.lookup(Node::ROOT, &a).await.unwrap().inode, theirs.1.inode);
    // Renamed and created again: the new node stays where it is.
    lose("RenameNode");
    let (moved, third) =
        tokio::join!(nodes.rename((Node::ROOT, &a), (Node::ROOT, &b), RenameMode::Replace), async {
            until_there(&other, &b).await;
            other.create_node(Node::ROOT, &a, create_params(NodeKind::Directory)).await.unwrap()
        });
    moved.unwrap();
    assert_eq!(nodes.lookup(Node::ROOT, &a).await.unwrap().inode, third.inode);
    assert_eq!(nodes.lookup(Node::ROOT, &b).await.unwrap().inode, theirs.1.inode);
}

async fn until_there<M: Metadata, D: Devices>(nodes: &Nodes<M, D>, name: &Name) -> Stat {
    loop {
        match nodes.lookup(Node::ROOT, name).await {
            Ok(stat) => return stat,
            Err(error) => assert!(error.is_not_found(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_sequential_reads_are_read_ahead() {
    let world = World::new(2).await;
    let bytes = content(2 << 20);
    {
        let (nodes, _) = nodes(&world, &[]).await;
        let (_, file) = nodes.create(Node::ROOT, &name("file"), create_params(NodeKind::File)).await.unwrap();
        file.write(0, &bytes).await.unwrap();
        file.close().await.unwrap();
        nodes.shut_down().await.unwrap();
    }
    let (nodes, counts) = nodes(&world, &[]).await;
    let stat = nodes.lookup(Node::ROOT, &name("file")).await.unwrap();
    let (file, _) = nodes.open(stat.node(), Access::Read).await.unwrap();
    let mut read = Vec::new();
    while read.len() < bytes.len() {
        read.extend_from_slice(&file.read(read.len() as u64, 4096).await.unwrap());
    }
    assert!(read == bytes);
    let commands = counts.lock().unwrap()["READ"];
    assert!(commands <= 40, "{commands} commands of 64 KiB for 2 MiB");
    let (file, _) = nodes.open(stat.node(), Access::Read).await.unwrap();
    counts.lock().unwrap().clear();
    for at in [1_500_000, 100, 1_900_000, 700_000, 1_200_000] {
        assert!(file.read(at, 5000).await.unwrap() == bytes[at as usize..at as usize + 5000]);
    }
    assert!(counts.lock().unwrap()["READ"] <= 10, "{:?}", counts.lock().unwrap());
}

/// Returns the data ranges that the file reports, in order.
async fn data_of(file: &File<Direct, Cutting>, size: u64) -> Vec<std::ops::Range<u64>> {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Some(start) = file.seek(at, SeekTarget::Data).await.unwrap() {
        let end = file.seek(start, SeekTarget::Hole).await.unwrap().unwrap();
        assert!(at <= start && start < end && end <= size, "{at}: {start}..{end} of {size}");
        assert_eq!(file.seek(start, SeekTarget::Data).await.unwrap(), Some(start));
        all.push(start..end);
        at = end;
        if end == size {
            break;
        }
    }
    assert_eq!(file.seek(size, SeekTarget::Data).await.unwrap(), None);
    assert_eq!(file.seek(size, SeekTarget::Hole).await.unwrap(), None);
    all
}

#[tokio::test(start_paused = true)]
async fn data_is_never_reported_as_hole() {
    for seed in 1..=6 {
        let world = World::new(3).await;
        let (nodes, _) = nodes(&world, &[]).await;
        let (stat, file) =
            nodes.create(Node::ROOT, &name("file"), create_params(NodeKind::File)).await.unwrap();
        // Alternately one object, and striped over three.
        let limit = if seed % 2 == 0 { 400_000 } else { 4_000_000 };
        let (mut chance, mut model) = (OpaqueRandom(seed), Vec::<u8>::new());
        let mut zeros: Vec<u8> = Vec::new();
        let pattern: Vec<u8> = content(50_000).iter().map(|byte| byte | 1).collect();
        for step in 0..60 {
            let (at, length) = (chance.below(limit) as usize, chance.below(40_000) as usize + 1);
            match chance.below(8) {
                0..=3 => {
                    file.write(at as u64, &pattern[..length]).await.unwrap();
                    model.resize(model.len().max(at + length), 0);
                    model[at..at + length].copy_from_slice(&pattern[..length]);
                }
                4 => {
                    let end = (at + 10 * length).min(model.len());
                    file.zero(at as u64..(at + 10 * length) as u64).await.unwrap();
                    if at < end {
                        model[at..end].fill(0);
                    }
                }
                // Truncated bytes are not cleared in this test, so the file only grows.
                5 => {
                    model.resize(model.len() + length, 0);
                    let change = NodeChange { size: Some(model.len() as u64), ..NodeChange::default() };
                    nodes.set(stat.node(), change, true).await.unwrap();
                }
                6 => file.flush().await.unwrap(),
                _ => file.sync().await.unwrap(),
            }
            // Slices are compared as a whole: a loop over bytes is slow without optimisation.
            zeros.resize(zeros.len().max(model.len()), 0);
            let data = data_of(&file, model.len() as u64).await;
            let starts = data.iter().map(|data| data.start as usize).chain([model.len()]);
            let ends = std::iter::once(0).chain(data.iter().map(|data| data.end as usize));
            for (from, to) in ends.zip(starts) {
                assert!(model[from..to] == zeros[from..to], "seed {seed}, step {step}: data in {from}..{to}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unwritten_ranges_are_reported_as_holes() {
    for size in [300_000, 40 << 20] {
        let world = World::new(3).await;
        let (nodes, _) = nodes(&world, &[]).await;
        let (stat, file) =
            nodes.create(Node::ROOT, &name("file"), create_params(NodeKind::File)).await.unwrap();
        let change = NodeChange { size: Some(size), ..NodeChange::default() };
        nodes.set(stat.node(), change, true).await.unwrap();
        assert_eq!(data_of(&file, size).await, [], "nobody wrote anything");
        assert_eq!(file.seek(5, SeekTarget::Hole).await.unwrap(), Some(5));
        file.write(128 << 10, &content(64 << 10)).await.unwrap();
        let written = (128 << 10)..(192 << 10);
        assert_eq!(data_of(&file, size).await, core::slice::from_ref(&written), "written, not sent");
        file.sync().await.unwrap();
        nodes.sync_all().await.unwrap();
        let (other, _) = nodes.open(stat.node(), Access::Read).await.unwrap();
        assert_eq!(data_of(&other, size).await, core::slice::from_ref(&written), "on its devices");
        file.zero(written).await.unwrap();
        assert_eq!(data_of(&file, size).await, [], "taken away again");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_data_is_not_reported_as_hole() {
    let world = World::new(1).await;
    let bytes = content(300_000);
    world.client(tuning()).await.put("/file", &bytes[..], PutOptions::default()).await.unwrap();
    let (nodes, _) = nodes(&world, &[]).await;
    let stat = nodes.lookup(Node::ROOT, &name("file")).await.unwrap();
    let objects = nodes.xattr(stat.node(), XattrName::new("sealstone.objects").unwrap()).await.unwrap();
    let objects = String::from_utf8(objects.as_bytes().to_vec()).unwrap();
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let parts: Vec<&str> = objects.split(':').collect();
    world.cut_object(0, ObjectId::new(hex(parts[1]), hex(parts[2])), 200_000).await;
    let (file, _) = nodes.open(stat.node(), Access::Read).await.unwrap();
    assert_eq!(file.seek(0, SeekTarget::Data).await.unwrap(), Some(0));
    let lost = |error: ClientError| assert!(matches!(error, ClientError::DataMissing { .. }), "{error}");
    lost(file.read(250_000, 10).await.unwrap_err());
    lost(file.seek(0, SeekTarget::Hole).await.unwrap_err());
    lost(file.seek(250_000, SeekTarget::Data).await.unwrap_err());
    lost(file.seek(250_000, SeekTarget::Hole).await.unwrap_err());
}

fn is_over_quota<T: std::fmt::Debug>(outcome: Result<T, ClientError>) -> bool {
    matches!(outcome, Err(ClientError::Refused(failure)) if failure.code == ErrorCode::Quota)
}

async fn limit(world: &World, bytes_max: Option<u64>) {
    let client = world.client(tuning()).await;
    let change = QuotaChange { bytes_max: Some(bytes_max), nodes_max: None };
    client.set_quota(quota_of_user("admin").unwrap(), change).await.unwrap();
}

/// Bytes beyond a quota are truncated, everything before them is kept, and the writer gets one
/// error.
#[tokio::test(start_paused = true)]
async fn quota_keeps_fitting_part_and_reports_error() {
    let world = World::new(2).await;
    let (nodes, _) = nodes(&world, &[]).await;
    limit(&world, Some(1_000_000)).await;
    let bytes = content(1_500_000);
    let (_, file) = nodes.create(Node::ROOT, &name("file"), create_params(NodeKind::File)).await.unwrap();
    file.write(0, &bytes[..400_000]).await.unwrap();
    file.sync().await.unwrap();
    file.write(400_000, &bytes[400_000..]).await.unwrap();
    assert!(is_over_quota(file.sync().await));
    assert_eq!(file.size(), 1_000_000);
    file.sync().await.unwrap();
    world.clear().await;
    assert!(read_by_another(&world, "file").await == bytes[..1_000_000]);
    // Writes without additional space succeed, and beyond it they change nothing.
    file.write(0, &bytes[500_000..600_000]).await.unwrap();
    file.sync().await.unwrap();
    assert!(is_over_quota(file.grow(1_000_001).await));
    let changed = [&bytes[500_000..600_000], &bytes[100_000..1_000_000]].concat();
    assert!(read_by_another(&world, "file").await == changed);
    // With space the rest is written, and no truncated byte reappears in a hole before it.
    limit(&world, None).await;
    file.write(1_400_000, &bytes[1_400_000..]).await.unwrap();
    file.sync().await.unwrap();
    let whole = [&changed[..], &[0; 400_000], &bytes[1_400_000..]].concat();
    assert!(read_by_another(&world, "file").await == whole);
    drop(file);
    nodes.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn writes_beyond_quota_fail_before_close() {
    let world = World::new(1).await;
    let (nodes, _) = nodes(&world, &[]).await;
    limit(&world, Some(100_000)).await;
    let (_, file) = nodes.create(Node::ROOT, &name("file"), create_params(NodeKind::File)).await.unwrap();
    let bytes = content(200_000);
    file.write(0, &bytes).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(is_over_quota(file.write(200_000, b"more").await));
    world.clear().await;
    file.sync().await.unwrap();
    assert!(read_by_another(&world, "file").await == bytes[..100_000]);
    // Nothing is left for the first byte of another file.
    let (_, other) = nodes.create(Node::ROOT, &name("other"), create_params(NodeKind::File)).await.unwrap();
    other.write(0, b"a").await.unwrap();
    assert!(is_over_quota(other.sync().await));
    drop((file, other));
    nodes.shut_down().await.unwrap();
}
