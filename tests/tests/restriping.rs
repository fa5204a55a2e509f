//! A small file that grew is copied to all devices while it is read, through the real binary; also
//! with a kill of the metadata server.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sealstone_client::nodes::{Nodes, NodesOptions};
use sealstone_client::{Client, GetOptions, Name, PutOptions};
use sealstone_mds_protocol::{Access, Node};
use sealstone_tests::{Signal, System};
use tokio::io::AsyncReadExt;

/// Timeout; long enough for a slow machine.
const PATIENCE: Duration = Duration::from_secs(180);
const GROWN: usize = (12 << 20) + 12_345;

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index as u32).wrapping_mul(2_654_435_761).to_le_bytes()[2]).collect()
}

async fn connect(system: &System) -> Client {
    let secret = fs::read_to_string(system.path("mds").join("admin-secret")).expect("readable");
    let (address, pin) = (system.mds().field("address"), system.mds().field("pin"));
    let pin = pin.parse().expect("the server prints it as the client reads it");
    Client::connect(address, pin, "admin", secret.trim_end().as_bytes()).await.expect("the password is right")
}

/// Creates a small file and extends it, as through a mount.
async fn grow(system: &System, bytes: &[u8]) {
    let client = connect(system).await;
    let options = PutOptions { size: Some(10), ..PutOptions::default() };
    client.put("/f", &bytes[..10], options).await.expect("stored");
    let nodes = Nodes::new(&client, NodesOptions::default());
    let stat = nodes.lookup(Node::ROOT, &Name::new("f").expect("a name")).await.expect("it is there");
    let (file, _) = nodes.open(stat.node(), Access::Update).await.expect("opened");
    for (at, piece) in bytes.chunks(1 << 20).enumerate() {
        file.write((at << 20) as u64, piece).await.expect("written");
    }
    file.sync().await.expect("durable");
    file.close().await.expect("closed");
    // The client releases it shortly afterwards.
    tokio::time::sleep(Duration::from_secs(3)).await;
}

fn width(system: &System) -> u64 {
    let stat = system.run(&["--json", "stat", "/f"]).ok().json()["files"][0].clone();
    stat["placement"]["width"].as_u64().expect("a width")
}

fn wait_until_wide(system: &System, devices: u64) {
    let begun = Instant::now();
    while width(system) < devices {
        assert!(begun.elapsed() < PATIENCE, "it is not carried over: {}", system.mds().stderr());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn grown_file_is_readable_during_restriping() {
    let system = System::start_with_mds(3, "1G", &[], &["--carry-mib-s", "6"]);
    let bytes = content(GROWN);
    let runtime = tokio::runtime::Runtime::new().expect("started");
    runtime.block_on(grow(&system, &bytes));
    assert_eq!(width(&system), 1);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (system, bytes, done) = (&system, &bytes, &done);
        // One reader from the shell repeatedly, a slow one, and one in place.
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                assert!(system.run(&["cat", "/f"]).ok().stdout == *bytes);
            }
        });
        scope.spawn(|| {
            runtime.block_on(async {
                let client = connect(system).await;
                while !done.load(Ordering::Relaxed) {
                    let (sink, mut taken) = tokio::io::duplex(64 << 10);
                    let client = client.clone();
                    let got =
                        tokio::spawn(async move { client.get("/f", sink, GetOptions::default()).await });
                    let mut back = vec![0; GROWN];
                    for piece in back.chunks_mut(1 << 20) {
                        taken.read_exact(piece).await.expect("it goes on");
                        tokio::time::sleep(Duration::from_millis(300)).await;
                    }
                    got.await.expect("it ends").expect("without an error");
                    assert!(back == *bytes);
                }
            });
        });
        scope.spawn(|| {
            runtime.block_on(async {
                let client = connect(system).await;
                let nodes = Nodes::new(&client, NodesOptions::default());
                let name = Name::new("f").expect("a name");
                let stat = nodes.lookup(Node::ROOT, &name).await.expect("it is there");
                let (file, _) = nodes.open(stat.node(), Access::Read).await.expect("opened");
                while !done.load(Ordering::Relaxed) {
                    for at in (0..GROWN).step_by(700_000) {
                        let end = (at + 300_000).min(GROWN);
                        assert!(file.read(at as u64, 300_000).await.expect("read") == bytes[at..end]);
                    }
                }
                assert!(file.read(0, GROWN).await.expect("read") == *bytes);
            });
        });
        wait_until_wide(system, 3);
        std::thread::sleep(Duration::from_secs(2));
        done.store(true, Ordering::Relaxed);
    });
    assert!(system.run(&["stat", "/f"]).ok().text().contains("from one object"));
    let stat = system.run(&["--json", "stat", "/f"]).ok().json()["files"][0].clone();
    assert_eq!(stat["placement"]["reason"]["size_hint"].as_u64(), Some(GROWN as u64), "{stat}");
    assert!(system.run(&["cat", "/f"]).ok().stdout == bytes);
}

#[test]
fn restriping_completes_after_a_server_kill() {
    let mut system = System::start_with_mds(3, "1G", &[], &["--carry-mib-s", "1"]);
    // Devices report their usage every ten seconds; the copy takes more than twice that.
    let bytes = content(2 * GROWN);
    let runtime = tokio::runtime::Runtime::new().expect("started");
    runtime.block_on(grow(&system, &bytes));
    let begun = Instant::now();
    while used(&system) < bytes.len() as u64 + (1 << 20) {
        assert!(begun.elapsed() < PATIENCE && width(&system) == 1, "it was not seen on its way");
        std::thread::sleep(Duration::from_millis(100));
    }
    system.end_mds(Signal::Kill);
    system.start_mds();
    assert_eq!(width(&system), 1);
    assert!(system.run(&["cat", "/f"]).ok().stdout == bytes);
    wait_until_wide(&system, 3);
    assert!(system.run(&["cat", "/f"]).ok().stdout == bytes);
    system.run(&["rm", "/f"]).ok();
    // Nothing of the cancelled copy remains.
    let begun = Instant::now();
    while used(&system) > 1 << 20 {
        assert!(begun.elapsed() < PATIENCE, "{} bytes are left", used(&system));
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Returns the bytes on all devices.
fn used(system: &System) -> u64 {
    system.run(&["--json", "df"]).ok().json()["used"].as_u64().expect("bytes")
}
