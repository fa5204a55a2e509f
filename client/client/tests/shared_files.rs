//! One file and several mounts: consistency between them, whatever they do at the same time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::world::{Direct, Gate, World, content, tuning};
use sealstone_client::nodes::{CreateParams, File, Nodes, NodesOptions};
use sealstone_client::{Client, ClientError, Device, DevicePool, Devices, Name, OsdError, Tuning};
use sealstone_initiator::{Bearer, Completion, Operation};
use sealstone_mds_protocol::Access;
use sealstone_mds_protocol::{Node, NodeChange, NodeKind, SetTime};
use tokio::time::{Instant, sleep, timeout};

const UNIT: usize = 64 << 10;

/// Devices behind two gates, which commands pass before they are executed.
struct Gated {
    pool: DevicePool,
    gates: [Arc<Gate>; 2],
}

impl Devices for Gated {
    async fn execute(
        &self,
        device: &Device,
        bearer: &Bearer,
        operation: Operation,
    ) -> Result<Completion, OsdError> {
        let name = operation.name();
        for gate in &self.gates {
            gate.pass(name).await;
        }
        self.pool.execute(device, bearer, operation).await
    }
}

type OpenFile = File<Direct, Gated>;

/// A mount, and its gates.
struct Mount {
    nodes: Nodes<Direct, Gated>,
    client: Client<Direct, Gated>,
    gate: Arc<Gate>,
    second: Arc<Gate>,
}

impl Mount {
    async fn of(world: &World) -> Self {
        Self::with(world, tuning(), NodesOptions::default()).await
    }

    async fn with(world: &World, tuning: Tuning, options: NodesOptions) -> Self {
        let (gate, second) = (Arc::<Gate>::default(), Arc::<Gate>::default());
        let devices = Gated { pool: world.pool(), gates: [gate.clone(), second.clone()] };
        let client = world.client_over(devices, tuning).await;
        Self { nodes: Nodes::new(&client, options), client, gate, second }
    }

    async fn create(&self, name: &str) -> OpenFile {
        let create_params =
            CreateParams { what: NodeKind::File, mode: 0o644, umask: 0, owner: None, group: None };
        self.nodes.create(Node::ROOT, &Name::new(name).unwrap(), create_params).await.unwrap().1
    }

    async fn look(&self, name: &str) -> sealstone_mds_protocol::Stat {
        self.nodes.lookup(Node::ROOT, &Name::new(name).unwrap()).await.unwrap()
    }

    async fn open(&self, name: &str) -> OpenFile {
        let stat = self.look(name).await;
        self.nodes.open(stat.node(), Access::Update).await.unwrap().0
    }

    async fn put(&self, name: &str, offset: u64, data: &[u8]) {
        let file = self.open(name).await;
        file.write(offset, data).await.unwrap();
        file.close().await.unwrap();
    }

    async fn cut(&self, name: &str, size: u64) -> Result<(), ClientError> {
        let node = self.look(name).await.node();
        let change = NodeChange { size: Some(size), ..NodeChange::default() };
        self.nodes.set(node, change, false).await.map(drop)
    }
}

/// Returns all bytes of a file as a new client reads them.
async fn seen(world: &World, name: &str) -> Vec<u8> {
    let mount = Mount::of(world).await;
    let file = mount.open(name).await;
    let size = file.size() as usize;
    let bytes = file.read(0, size + 10).await.unwrap().to_vec();
    assert_eq!(bytes.len(), size);
    bytes
}

fn power_fails(world: &World, devices: u8) {
    for place in 0..devices {
        world.machine(place).power_cut();
        world.machine(place).boot();
    }
}

#[tokio::test(start_paused = true)]
async fn sync_waits_for_bytes_after_flush() {
    let world = World::new(1).await;
    let mount = Mount::of(&world).await;
    let file = Arc::new(mount.create("file").await);
    let bytes = content(3 * UNIT);
    file.write(0, &bytes[..UNIT]).await.unwrap();
    file.sync().await.unwrap();
    file.write(UNIT as u64, &bytes[UNIT..2 * UNIT]).await.unwrap();
    let sync = || {
        let file = file.clone();
        tokio::spawn(async move { file.sync().await })
    };
    // Two syncs in a row, and a write that starts before the second one and reaches the device
    // after its flush.
    mount.gate.close("FLUSH");
    let first = sync();
    mount.gate.reached().await;
    let second = sync();
    sleep(Duration::from_millis(100)).await;
    mount.second.close("WRITE");
    file.write(2 * UNIT as u64, &bytes[2 * UNIT..]).await.unwrap();
    mount.second.reached().await;
    mount.gate.open();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    mount.second.open();
    file.sync().await.unwrap();
    power_fails(&world, 1);
    assert!(seen(&world, "file").await == bytes, "what a sync returned for is durable");
}

#[tokio::test(start_paused = true)]
async fn append_during_close_is_reported_at_own_close() {
    let world = World::new(1).await;
    let (one, two) = (Mount::of(&world).await, Mount::of(&world).await);
    let first = one.create("log").await;
    let second = one.open("log").await;
    first.write(0, b"first line\n").await.unwrap();
    // The answer to the first one's close is in flight when the second one appends, in the same
    // millisecond.
    one.client.metadata().gate.close("Written");
    let closing = tokio::spawn(first.close());
    one.client.metadata().gate.reached().await;
    second.write(11, b"second line\n").await.unwrap();
    one.client.metadata().gate.open();
    closing.await.unwrap().unwrap();
    let before = two.look("log").await;
    assert_eq!(before.size, 11, "what is on no device yet is told to nobody");
    second.close().await.unwrap();
    assert!(two.look("log").await.version > before.version, "whoever has pages of it must drop them");
    assert_eq!(seen(&world, "log").await, b"first line\nsecond line\n");
}

#[tokio::test(start_paused = true)]
async fn open_sees_remote_close_despite_buffers() {
    for by_cut in [false, true] {
        let world = World::new(2).await;
        let (one, two) = (Mount::of(&world).await, Mount::of(&world).await);
        let file = one.create("file").await;
        file.write(0, &[b'A'; 100]).await.unwrap();
        file.close().await.unwrap();
        if by_cut {
            two.cut("file", 0).await.unwrap();
        }
        two.put("file", 0, &[b'B'; 100]).await;
        let file = one.open("file").await;
        assert_eq!(&file.read(0, 200).await.unwrap()[..], [b'B'; 100], "cut: {by_cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn small_write_keeps_remote_truncation() {
    let world = World::new(2).await;
    let (one, two) = (Mount::of(&world).await, Mount::of(&world).await);
    let bytes = content(200_000);
    for synced in [true, false] {
        let name = if synced { "synced" } else { "told" };
        let file = one.create(name).await;
        file.write(0, &bytes).await.unwrap();
        match synced {
            true => file.sync().await.unwrap(),
            false => file.flush().await.unwrap(),
        }
        two.cut(name, 50_000).await.unwrap();
        world.clear().await;
        file.write(0, b"0123456789").await.unwrap();
        file.close().await.unwrap();
        assert_eq!(two.look(name).await.size, 50_000, "{name}");
        two.cut(name, 200_000).await.unwrap();
        let mut expected = bytes.clone();
        expected[..10].copy_from_slice(b"0123456789");
        expected[50_000..].fill(0);
        assert!(seen(&world, name).await == expected, "{name}");
        // Nor when a restart causes buffered bytes to be sent again.
        power_fails(&world, 2);
        one.nodes.sync_all().await.unwrap();
        assert!(seen(&world, name).await == expected, "{name}, after a restart");
    }
}

/// Reported bytes belong to the file at the server. Bytes that were truncated there are not sent
/// again after a restart of a device.
#[tokio::test(start_paused = true)]
async fn remotely_truncated_bytes_are_not_resent() {
    for size in [0, 50_000] {
        let world = World::new(2).await;
        let (one, two) = (Mount::of(&world).await, Mount::of(&world).await);
        let bytes = content(200_000);
        let file = one.create("file").await;
        file.write(0, &bytes).await.unwrap();
        // Reported, but not flushed yet.
        file.flush().await.unwrap();
        two.cut("file", size).await.unwrap();
        world.clear().await;
        power_fails(&world, 2);
        one.nodes.sync_all().await.unwrap();
        two.cut("file", 200_000).await.unwrap();
        let mut expected = bytes.clone();
        expected[size as usize..].fill(0);
        assert!(seen(&world, "file").await == expected, "cut to {size}");
    }
}

#[tokio::test(start_paused = true)]
async fn remote_truncation_after_own_one_is_followed() {
    let world = World::new(2).await;
    let (one, two) = (Mount::of(&world).await, Mount::of(&world).await);
    let file = one.create("file").await;
    file.write(0, &content(200_000)).await.unwrap();
    file.flush().await.unwrap();
    one.cut("file", 100_000).await.unwrap();
    two.cut("file", 50_000).await.unwrap();
    world.clear().await;
    file.write(0, b"0123456789").await.unwrap();
    file.close().await.unwrap();
    assert_eq!(two.look("file").await.size, 50_000);
}

#[tokio::test(start_paused = true)]
async fn unreported_bytes_are_rewritten_after_remote_truncation() {
    let world = World::new(2).await;
    let (one, two) = (Mount::of(&world).await, Mount::of(&world).await);
    let bytes = content(4 * UNIT);
    for size in [0, 1000] {
        let name = format!("file{size}");
        let file = one.create(&name).await;
        file.write(0, &bytes).await.unwrap();
        file.flush().await.unwrap();
        // The bytes are on their device, but not reported.
        file.write(UNIT as u64, &bytes[..UNIT]).await.unwrap();
        sleep(Duration::from_millis(200)).await;
        two.cut(&name, size).await.unwrap();
        world.clear().await;
        two.put(&name, 0, b"others").await;
        file.close().await.unwrap();
        let mut expected = vec![0; 2 * UNIT];
        if size > 0 {
            expected[..size as usize].copy_from_slice(&bytes[..size as usize]);
        }
        expected[..6].copy_from_slice(b"others");
        expected[UNIT..].copy_from_slice(&bytes[..UNIT]);
        assert!(seen(&world, &name).await == expected, "cut to {size}");
    }
}

/// Synced bytes are in the file and durable, even if its objects were replaced or cleared before
/// the client learned of it.
#[tokio::test(start_paused = true)]
async fn a_sync_holds_after_anothers_cut() {
    for size in [0, 1000] {
        let world = World::new(2).await;
        let (one, two) = (Mount::of(&world).await, Mount::of(&world).await);
        let bytes = content(4 * UNIT);
        let file = one.create("file").await;
        file.write(0, &bytes).await.unwrap();
        file.sync().await.unwrap();
        // In the old objects, or behind the truncation, and not reported.
        file.write(2 * UNIT as u64, &bytes[..UNIT]).await.unwrap();
        sleep(Duration::from_millis(200)).await;
        two.cut("file", size).await.unwrap();
        world.clear().await;
        file.sync().await.unwrap();
        power_fails(&world, 2);
        let mut expected = vec![0; 3 * UNIT];
        expected[..size as usize].copy_from_slice(&bytes[..size as usize]);
        expected[2 * UNIT..].copy_from_slice(&bytes[..UNIT]);
        assert!(seen(&world, "file").await == expected, "cut to {size}");
    }
}

/// Old objects accept and flush bytes for a while.
#[tokio::test(start_paused = true)]
async fn bytes_in_removed_objects_are_rewritten() {
    for synced in [true, false] {
        let world = World::new(2).await;
        let (one, two) = (Mount::of(&world).await, Mount::of(&world).await);
        let file = one.create("file").await;
        file.write(0, &content(UNIT)).await.unwrap();
        file.sync().await.unwrap();
        two.cut("file", 0).await.unwrap();
        // More than the limit of unflushed bytes.
        let bytes = content(12 * UNIT);
        file.write(0, if synced { b"new" } else { &bytes }).await.unwrap();
        if synced {
            file.sync().await.unwrap();
            power_fails(&world, 2);
            assert_eq!(seen(&world, "file").await, b"new");
        } else {
            sleep(Duration::from_secs(1)).await;
            file.close().await.unwrap();
            assert!(seen(&world, "file").await == bytes);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sync_flushes_objects_after_truncation() {
    let world = World::new(2).await;
    let (one, two) = (Mount::of(&world).await, Mount::of(&world).await);
    let bytes = content(UNIT);
    let file = one.create("file").await;
    file.write(0, &bytes).await.unwrap();
    file.sync().await.unwrap();
    file.write(0, &bytes).await.unwrap();
    sleep(Duration::from_millis(200)).await;
    two.cut("file", 0).await.unwrap();
    // The client learns of the truncation before the sync: the file has no objects now.
    assert_eq!(one.look("file").await.size, UNIT as u64);
    assert!(file.read(0, UNIT).await.unwrap() == bytes);
    file.sync().await.unwrap();
    power_fails(&world, 2);
    assert!(seen(&world, "file").await == bytes);
}

#[tokio::test(start_paused = true)]
async fn punch_uses_current_objects() {
    let world = World::new(2).await;
    let (one, two) = (Mount::of(&world).await, Mount::of(&world).await);
    let file = one.create("file").await;
    file.write(0, &content(3 * UNIT)).await.unwrap();
    file.sync().await.unwrap();
    two.cut("file", 0).await.unwrap();
    two.put("file", 0, &[7; 1000]).await;
    file.zero(0..100).await.unwrap();
    assert_eq!(seen(&world, "file").await, [vec![0; 100], vec![7; 900]].concat());
}

/// An answer with objects from before a truncation does not restore them.
#[tokio::test(start_paused = true)]
async fn objects_before_own_truncation_are_ignored() {
    let world = World::new(2).await;
    let mount = Mount::of(&world).await;
    let file = Arc::new(mount.create("file").await);
    file.write(0, &content(1000)).await.unwrap();
    file.flush().await.unwrap();
    mount.cut("file", 600).await.unwrap();
    world.clear().await;
    let gate = &mount.client.metadata().gate;
    gate.close("Allocate");
    file.write(0, b"a").await.unwrap();
    let flushing = {
        let file = file.clone();
        tokio::spawn(async move { file.flush().await })
    };
    gate.reached().await;
    mount.cut("file", 0).await.unwrap();
    gate.open();
    flushing.await.unwrap().unwrap();
    sleep(Duration::from_millis(200)).await;
    file.write(700, b"x").await.unwrap();
    assert_eq!(&file.read(1, 400).await.unwrap()[..], [0; 400], "what was cut off");
    file.sync().await.unwrap();
    assert_eq!(seen(&world, "file").await, [vec![0; 700], b"x".to_vec()].concat());
}

#[tokio::test(start_paused = true)]
async fn write_error_is_reported_to_writer() {
    let world = World::new(1).await;
    let options = NodesOptions { timeout: Some(Duration::from_secs(2)), ..NodesOptions::default() };
    let mount = Mount::with(&world, tuning(), options).await;
    let file = mount.create("file").await;
    file.write(0, b"before").await.unwrap();
    file.sync().await.unwrap();
    world.machine(0).power_cut();
    file.write(0, b"behind").await.unwrap();
    sleep(Duration::from_secs(60)).await;
    world.machine(0).boot();
    // Neither setting a time nor syncing a directory consumes the error.
    let change = NodeChange { mtime: Some(SetTime::Now), ..NodeChange::default() };
    mount.nodes.set(file.node(), change, false).await.unwrap();
    let others = mount.nodes.sync_all().await.unwrap_err();
    assert!(matches!(others, ClientError::NotStored), "{others}");
    let own = file.sync().await.unwrap_err();
    assert!(!matches!(own, ClientError::NotStored), "{own}");
    file.sync().await.unwrap();
    mount.nodes.sync_all().await.unwrap();
}

/// After the server dropped its state, the file is opened again with the same access.
#[tokio::test(start_paused = true)]
async fn empty_open_file_is_reopened_for_writing() {
    let world = World::new(1).await;
    let mount = Mount::of(&world).await;
    let file = mount.create("file").await;
    let metadata = mount.client.metadata();
    for (refused, opens) in [("Allocate", 1), ("Written", 2)] {
        *metadata.refuse.lock().unwrap() = Some(refused);
        file.write(0, b"content").await.unwrap();
        file.flush().await.unwrap();
        assert_eq!(metadata.opened.lock().unwrap()[..], vec![Access::Update; opens], "{refused}");
    }
    file.close().await.unwrap();
    assert_eq!(seen(&world, "file").await, b"content");
}

#[tokio::test(start_paused = true)]
async fn remote_write_after_own_truncation_is_read() {
    for kept in [false, true] {
        let world = World::new(2).await;
        let (one, two) = (Mount::of(&world).await, Mount::of(&world).await);
        let file = one.create("log").await;
        file.write(0, &content(1000)).await.unwrap();
        file.flush().await.unwrap();
        one.cut("log", 0).await.unwrap();
        two.put("log", 0, b"hello").await;
        if kept {
            // A client that has it open all the time sees it when it requests the size.
            assert_eq!(one.look("log").await.size, 5);
            assert_eq!(&file.read(0, 10).await.unwrap()[..], b"hello");
        } else {
            let stat = one.look("log").await;
            let (file, _) = one.nodes.open(stat.node(), Access::Read).await.unwrap();
            assert_eq!(&file.read(0, 10).await.unwrap()[..], b"hello");
        }
        // The same, truncated shorter.
        two.put("log", 0, &content(100_000)).await;
        one.cut("log", 10).await.unwrap();
        world.clear().await;
        two.put("log", 10, b"hello").await;
        let stat = one.look("log").await;
        let (file, _) = one.nodes.open(stat.node(), Access::Read).await.unwrap();
        assert_eq!(&file.read(10, 10).await.unwrap()[..], b"hello");
    }
}

#[tokio::test(start_paused = true)]
async fn file_opened_empty_shows_remote_writes() {
    let world = World::new(2).await;
    let (one, two) = (Mount::of(&world).await, Mount::of(&world).await);
    drop(two.create("file").await);
    let file = one.open("file").await;
    two.put("file", 0, b"content").await;
    assert_eq!(one.look("file").await.size, 7);
    assert_eq!(&file.read(0, 10).await.unwrap()[..], b"content");
}

#[tokio::test(start_paused = true)]
async fn a_cut_that_is_refused_takes_nothing() {
    for (size, sent) in [(0, false), (0, true), (3, false), (3, true)] {
        let world = World::new(1).await;
        let mount = Mount::of(&world).await;
        let file = mount.create("file").await;
        file.write(0, b"content").await.unwrap();
        if sent {
            file.flush().await.unwrap();
            file.write(7, b" and more").await.unwrap();
        }
        *mount.client.metadata().refuse.lock().unwrap() = Some("SetNode");
        let refused = mount.cut("file", size).await.unwrap_err();
        assert!(matches!(refused, ClientError::Refused(_)), "{refused}");
        let expected: &[u8] = if sent { b"content and more" } else { b"content" };
        assert_eq!(&file.read(0, 100).await.unwrap()[..], expected, "cut to {size}");
        file.close().await.unwrap();
        assert_eq!(seen(&world, "file").await, expected, "cut to {size}");
    }
}

/// Credentials of a file that has other objects now are not used for it; an open file continues
/// with the new objects.
#[tokio::test(start_paused = true)]
async fn rewritten_file_is_followed_after_credentials_expire() {
    for late in [false, true] {
        let world = World::new(2).await;
        let (one, two) = (Mount::of(&world).await, Mount::of(&world).await);
        let file = one.create("file").await;
        file.write(0, b"before").await.unwrap();
        file.sync().await.unwrap();
        two.cut("file", 0).await.unwrap();
        two.put("file", 0, b"afterwards").await;
        for clock in [&world.clock, &world.client_clock] {
            clock.skew_ms.fetch_add(400_000, Ordering::Relaxed);
        }
        if late {
            file.write(0, b"AFTER").await.unwrap();
            file.flush().await.unwrap();
            assert_eq!(seen(&world, "file").await, b"AFTERwards");
        } else {
            assert_eq!(&file.read(0, 6).await.unwrap()[..], b"afterw");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn growing_never_shortens_extended_file() {
    let world = World::new(2).await;
    let (one, two) = (Mount::of(&world).await, Mount::of(&world).await);
    let file = one.create("file").await;
    file.write(0, b"short").await.unwrap();
    file.flush().await.unwrap();
    two.put("file", 0, &content(1000)).await;
    file.grow(500).await.unwrap();
    assert!(seen(&world, "file").await == content(1000));
    file.grow(2000).await.unwrap();
    assert_eq!(two.look("file").await.size, 2000);
    // Also an empty file, which has no objects yet.
    let empty = one.create("empty").await;
    empty.grow(70_000).await.unwrap();
    assert_eq!(seen(&world, "empty").await, vec![0; 70_000]);
}

#[tokio::test(start_paused = true)]
async fn readers_of_more_than_memory_holds_go_on() {
    let world = World::new(2).await;
    let bytes = content(32 * UNIT);
    {
        let mount = Mount::of(&world).await;
        let file = mount.create("file").await;
        file.write(0, &bytes).await.unwrap();
        file.close().await.unwrap();
        mount.nodes.shut_down().await.unwrap();
    }
    let tuning = Tuning { memory_bytes: 8 * UNIT, ..tuning() };
    let mount = Mount::with(&world, tuning, NodesOptions::default()).await;
    let file = Arc::new(mount.open("file").await);
    let mut readers = tokio::task::JoinSet::new();
    for reader in 0..8 {
        let (file, bytes) = (file.clone(), bytes.clone());
        readers.spawn(async move {
            for turn in 0..3 {
                // Each read needs two blocks.
                let at = ((reader * 5 + turn) % 30) * UNIT + UNIT / 2;
                let read = file.read(at as u64, UNIT).await.unwrap();
                assert!(read == bytes[at..at + UNIT]);
            }
        });
    }
    let all = async {
        while let Some(read) = readers.join_next().await {
            read.unwrap();
        }
    };
    timeout(Duration::from_secs(600), all).await.expect("readers wait for each other's memory");
}

#[tokio::test(start_paused = true)]
async fn punched_range_is_dropped_from_readahead() {
    let world = World::new(1).await;
    let mount = Mount::of(&world).await;
    let file = Arc::new(mount.create("file").await);
    file.write(0, &vec![7; 4 * UNIT]).await.unwrap();
    file.sync().await.unwrap();
    mount.gate.close("CLEAR");
    let punching = {
        let file = file.clone();
        tokio::spawn(async move { file.zero(0..UNIT as u64).await })
    };
    mount.gate.reached().await;
    assert_eq!(file.read(0, UNIT).await.unwrap()[0], 7);
    mount.gate.open();
    punching.await.unwrap().unwrap();
    assert!(file.read(0, UNIT).await.unwrap().iter().all(|byte| *byte == 0));
}

#[tokio::test(start_paused = true)]
async fn timeout_is_not_multiplied_by_waiting_requests() {
    let world = World::new(1).await;
    let options = NodesOptions { timeout: Some(Duration::from_secs(60)), ..NodesOptions::default() };
    let mount = Mount::with(&world, tuning(), options).await;
    let file = mount.create("file").await;
    file.write(0, &content(UNIT)).await.unwrap();
    file.sync().await.unwrap();
    world.machine(0).power_cut();
    // More pieces than the limit of commands in flight.
    file.write(0, &content(24 * UNIT)).await.unwrap();
    let begun = Instant::now();
    file.flush().await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(110), "{:?}", begun.elapsed());
    world.machine(0).boot();
}

#[tokio::test(start_paused = true)]
async fn device_outage_does_not_delay_other_files() {
    let world = World::new(2).await;
    let options = NodesOptions { timeout: None, ..NodesOptions::default() };
    let mount = Mount::with(&world, tuning(), options).await;
    let mut files = Vec::new();
    for number in 0..12 {
        let name = format!("file{number}");
        let file = mount.create(&name).await;
        file.write(0, b"before").await.unwrap();
        file.sync().await.unwrap();
        let version = mount.look(&name).await.version;
        files.push((name, file, version));
    }
    world.machine(0).power_cut();
    for (_, file, _) in &files {
        file.write(0, b"behind").await.unwrap();
    }
    // The files stay open; those on available devices are sent.
    sleep(Duration::from_secs(30)).await;
    let mut sent = Vec::new();
    for (name, _, version) in &files {
        sent.push(mount.look(name).await.version > *version);
    }
    let first_stuck = sent.iter().position(|sent| !sent).unwrap();
    assert!(sent[first_stuck..].contains(&true), "those behind one that waits were not sent: {sent:?}");
    world.machine(0).boot();
    for (_, file, _) in files {
        file.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn idle_mount_keeps_its_session() {
    let world = World::new(1).await;
    let mount = Mount::of(&world).await;
    sleep(Duration::from_secs(12 * 60)).await;
    assert!(mount.client.metadata().called("KeepNodes") >= 2, "the server does not hear of it");
}
