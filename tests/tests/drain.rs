//! Drain of a device while its files are in use, through the real binary; also with a kill of the
//! metadata server.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sealstone_tests::{
    CommandResult, Daemon, Mounted, Signal, System, can_mount, command, run, run_with_input, text,
};

/// Timeout; long enough for a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index as u32).wrapping_mul(2_654_435_761).to_le_bytes()[2] ^ seed).collect()
}

/// Stores small files, a striped one of several megabytes, and an empty one.
fn put_files(system: &System) -> Vec<(String, Vec<u8>)> {
    let small = (0..8).map(|at| (format!("/small-{at}"), content(at, 30_000 * usize::from(at + 1))));
    let mut files: Vec<(String, Vec<u8>)> = small.collect();
    files.push(("/large".to_owned(), content(99, 9 << 20)));
    files.push(("/empty".to_owned(), Vec::new()));
    for (path, bytes) in &files {
        run_with_input(system.command(&["put", "-", path]), bytes).ok();
    }
    files
}

fn check(system: &System, files: &[(String, Vec<u8>)]) {
    for (path, bytes) in files {
        assert!(system.run(&["cat", path]).ok().stdout == *bytes, "{path} is what was stored");
    }
}

/// Returns the names of the devices that store a file.
fn devices_of(system: &System, path: &str) -> Vec<String> {
    let stat = system.run(&["--json", "stat", path]).ok().json()["files"][0].clone();
    let objects = stat["placement"]["objects"].as_array().cloned().unwrap_or_default();
    objects.iter().map(|object| object["name"].as_str().expect("a name").to_owned()).collect()
}

/// Ends a device's daemon and checks that it is empty and intact.
fn take_out(system: &mut System, name: &str) -> usize {
    let index: usize = name.trim_start_matches("osd").parse().expect("a number");
    assert_eq!(system.end_osd(index, Signal::Terminate), 0);
    let data = system.path(name);
    let checked = run(&["--json", "osd", "check", "--data", text(&data)]).ok().json();
    assert_eq!((checked["damaged"].as_u64(), checked["bytes"].as_u64()), (Some(0), Some(0)), "{checked}");
    index
}

#[test]
fn device_drains_while_its_files_are_used() {
    let mut system = System::start(3);
    let mut files = put_files(&system);
    // Open on a mount from before the drain until after it.
    let mounted = can_mount().then(|| Mounted::at(&system, "mnt"));
    let mut in_hand = mounted.as_ref().map(|mounted| {
        let mut file = std::fs::File::open(mounted.path("large")).expect("it is there");
        let mut head = vec![0; 1000];
        file.read_exact(&mut head).expect("it is read");
        (file, head)
    });
    let before = system.run(&["--json", "stat", "/large"]).ok().json()["files"][0].clone();
    assert_eq!(before["placement"]["reason"]["bound"], "devices", "{before}");
    assert_eq!(devices_of(&system, "/large").len(), 3);
    let leaves = devices_of(&system, "/small-0").remove(0);
    let printed = system.run(&["stat", "/large"]).ok().text();
    for words in ["3 devices were eligible", "good when chosen", "now active"] {
        assert!(printed.contains(words), "{printed}");
    }

    let (done, reads) = (AtomicBool::new(false), AtomicU32::new(0));
    let drained = std::thread::scope(|scope| {
        for reader in 0..2 {
            let (system, files, done, reads) = (&system, &files, &done, &reads);
            scope.spawn(move || {
                let turn = files.iter().cycle().skip(reader * 3);
                for (path, bytes) in turn {
                    assert!(system.run(&["cat", path]).ok().stdout == *bytes, "{path} while it is moved");
                    reads.fetch_add(1, Ordering::Relaxed);
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let (system, done) = (&system, &done);
        let writer = scope.spawn(move || {
            let mut written = Vec::new();
            while written.is_empty() || (!done.load(Ordering::Relaxed) && written.len() < 100) {
                let (path, bytes) = (format!("/new-{}", written.len()), content(7, 40_000 + written.len()));
                run_with_input(system.command(&["put", "-", &path]), &bytes).ok();
                written.push((path, bytes));
            }
            written
        });
        let drained = system.run(&["--json", "osd", "drain", &leaves, "--wait", "120"]);
        done.store(true, Ordering::Relaxed);
        (drained.ok().json(), writer.join().expect("it wrote"))
    });
    let (drained, written) = drained;
    files.extend(written);
    assert!(reads.load(Ordering::Relaxed) > 0);
    assert_eq!(drained["state"], "draining", "{drained}");
    assert!(drained["drain"]["done_ms"].is_u64() && drained["drain"]["left_objects"] == 0, "{drained}");
    assert!(drained["drain"]["moved_objects"].as_u64() >= Some(2), "{drained}");
    for (path, _) in &files {
        assert!(!devices_of(&system, path).contains(&leaves), "{path}");
    }
    assert!(system.run(&["osd", "drain", &leaves, "--show"]).ok().text().contains("empty since"));
    assert!(system.run(&["df"]).ok().text().contains("draining, empty"));

    // All files are readable without the device.
    let index = take_out(&mut system, &leaves);
    check(&system, &files);
    if let Some((file, head)) = &mut in_hand {
        file.read_to_end(head).expect("it is read on");
        assert!(files.iter().any(|(path, bytes)| path == "/large" && bytes == head), "it is what was stored");
    }
    drop((in_hand, mounted));
    system.start_osd(index);
    let back = system.run(&["--json", "osd", "drain", &leaves, "--undo"]).ok().json();
    assert_eq!((back["state"].as_str(), back["drain"].is_null()), (Some("active"), true), "{back}");
    // A rebalance fills the empty device without loss.
    let balanced =
        system.run(&["--json", "osd", "rebalance", "--wait", "120"]).ok().json()["rebalance"].clone();
    assert!(balanced["done_ms"].is_u64() && balanced["stopped"] == false, "{balanced}");
    assert!(balanced["moved_objects"].as_u64() > Some(0), "{balanced}");
    let here = files.iter().filter(|(path, _)| devices_of(&system, path).contains(&leaves)).count();
    assert!(here > 0, "{balanced}");
    check(&system, &files);
    let shown = system.run(&["--json", "osd", "rebalance", "--show"]).ok().json();
    assert_eq!(shown["rebalance"], balanced);
    system.run(&["osd", "drain", "osd9"]).fails(4).says(&["no such device"]);
}

#[test]
fn drain_continues_after_server_kill() {
    let mut system = System::start(3);
    let files = put_files(&system);
    let leaves = devices_of(&system, "/small-0").remove(0);
    system.run(&["osd", "drain", &leaves, "--rate", "2M", "--no-wait"]).ok();
    let begun = Instant::now();
    for kill in 1..=2u64 {
        let moved = |system: &System| {
            let shown = system.run(&["--json", "osd", "drain", &leaves, "--show"]).ok().json();
            let done = shown["drain"]["done_ms"].is_u64();
            (shown["drain"]["moved_objects"].as_u64().expect("a number"), done)
        };
        loop {
            let (objects, done) = moved(&system);
            if objects >= kill || done {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "nothing moves");
            std::thread::sleep(Duration::from_millis(50));
        }
        system.end_mds(Signal::Kill);
        system.start_mds();
        check(&system, &files);
    }
    // Repeated with a higher rate.
    let drained = system.run(&["--json", "osd", "drain", &leaves, "--wait", "120"]).ok().json();
    assert!(drained["drain"]["done_ms"].is_u64(), "{drained}");
    take_out(&mut system, &leaves);
    check(&system, &files);
    for (path, _) in &files {
        assert!(!devices_of(&system, path).contains(&leaves), "{path}");
    }
}

/// Runs a command in another account's session.
fn run_as(system: &System, session: &str, arguments: &[&str]) -> CommandResult {
    let mut command = system.command(arguments);
    CommandResult::from(
        command.env("SEALSTONE_SESSION", system.path(session)).output().expect("the binary starts"),
    )
}

fn state_of(system: &System, name: &str) -> String {
    let df = system.run(&["--json", "df"]).ok().json();
    let devices = df["devices"].as_array().expect("devices");
    let device = devices.iter().find(|device| device["name"] == name).expect("the device");
    device["state"].as_str().expect("a state").to_owned()
}

#[test]
fn unapproved_device_holds_no_files() {
    let system = System::start(1);
    let (operator_key, extra_key) = (system.path("olga.key"), system.path("extra.key"));
    let olga = ["user", "add", "olga", "--service", "--role", "operator", "--key-file", text(&operator_key)];
    system.run(&olga).ok();
    let cluster = system.cluster();
    let login = ["login", "--key-file", text(&operator_key), "--cluster", text(&cluster)];
    run_as(&system, "olga.toml", &login).ok();
    let data = system.path("extra");
    let init = ["osd", "init", "--data", text(&data), "--capacity", "1G", "--name", "extra", "--key-out"];
    run(&[&init[..], &[text(&extra_key)]].concat()).ok();
    let serve = ["--json", "osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"];
    let extra = Daemon::start(command(&serve));
    let url = extra.field("url").to_owned();
    let pin = extra.ready()["pin"].as_str().map(ToOwned::to_owned);
    let add = |url: &str, key: &Path, pin: Option<&str>| {
        let mut add = vec!["--json", "mds", "add-osd", url, "--key", text(key), "--wait", "20"];
        if let Some(pin) = pin {
            add.extend(["--pin", pin]);
        }
        run_as(&system, "olga.toml", &add)
    };
    assert_eq!(add(&url, &extra_key, pin.as_deref()).ok().json()["pending"], true);
    assert_eq!(state_of(&system, "extra"), "pending");
    // No command of an operator takes it into use.
    run_as(&system, "olga.toml", &["osd", "approve", "extra"]).fails(3);
    run_as(&system, "olga.toml", &["osd", "drain", "extra", "--undo"]).fails(1).says(&["approval"]);
    run_as(&system, "olga.toml", &["osd", "drain", "extra", "--no-wait"]).fails(1).says(&["approval"]);
    let files = put_files(&system);
    run_as(&system, "olga.toml", &["osd", "rebalance"]).ok();
    for (path, _) in files.iter().filter(|(_, bytes)| !bytes.is_empty()) {
        assert_eq!(devices_of(&system, path), ["osd0"], "{path}");
    }
    // An operator cannot change the added device, before or after the approval.
    let elsewhere = url.replace("127.0.0.1", "127.0.0.2");
    add(&elsewhere, &extra_key, pin.as_deref()).fails(3);
    let mut other_pin = pin.clone().expect("a device has a certificate");
    other_pin = match other_pin.pop() {
        Some('0') => other_pin + "1",
        _ => other_pin + "0",
    };
    add(&url, &extra_key, Some(&other_pin)).fails(3);
    let used = system.osd(0).field("url").replace("127.0.0.1", "127.0.0.2");
    add(&used, &system.path("osd0.key"), None).fails(3);
    add(&url, &extra_key, pin.as_deref()).ok();
    assert_eq!(state_of(&system, "extra"), "pending");
    let shown = system.run(&["--json", "osd", "approve", "extra", "--show"]).ok().json();
    assert_eq!((shown["state"].as_str(), shown["url"].as_str()), (Some("pending"), Some(&*url)));
    assert_eq!(shown["pin"].as_str(), pin.as_deref());
    system.run(&["osd", "approve", "extra"]).ok();
    assert_eq!(state_of(&system, "extra"), "active");
    add(&elsewhere, &extra_key, pin.as_deref()).fails(3);
    run_as(&system, "olga.toml", &["osd", "rebalance"]).ok();
    check(&system, &files);
}

/// A drain copies extents, not the length of the file, so a byte far behind the others costs
/// nothing.
#[test]
fn drain_copies_extents_of_sparse_file() {
    use std::os::unix::fs::FileExt as _;
    if !can_mount() {
        return;
    }
    let system = System::start_with_mds(2, "1G", &[], &["--grant-s", "2"]);
    run_with_input(system.command(&["put", "-", "/sparse"]), &content(3, 100_000)).ok();
    let mounted = Mounted::at(&system, "mnt");
    let file = std::fs::File::options().write(true).open(mounted.path("sparse")).expect("it is there");
    file.write_all_at(b"sixteen bytes...", 1 << 49).expect("a hole is written behind");
    file.sync_all().expect("it is durable");
    drop((file, mounted));
    let leaves = devices_of(&system, "/sparse").remove(0);
    system.run(&["osd", "drain", &leaves, "--wait", "120"]).ok();
    assert!(!devices_of(&system, "/sparse").contains(&leaves));
    let mounted = Mounted::at(&system, "mnt-after");
    let file = std::fs::File::open(mounted.path("sparse")).expect("it is there");
    let (mut head, mut tail) = (vec![0; 100_000], [0; 16]);
    file.read_exact_at(&mut head, 0).expect("it is read");
    file.read_exact_at(&mut tail, 1 << 49).expect("it is read");
    assert!(head == content(3, 100_000) && &tail == b"sixteen bytes...");
}

/// Holes take no space: a sparse file longer than all devices is written, stored, drained, searched
/// and fetched.
#[test]
fn sparse_file_longer_than_devices_is_stored() {
    use std::os::unix::fs::FileExt as _;
    const FAR: u64 = 1 << 49;
    const STORED: u64 = 100 << 30;
    let system = System::start_with_mds(2, "1G", &[], &["--grant-s", "2"]);
    let (source, back) = (system.path("source"), system.path("back"));
    let file = std::fs::File::create(&source).expect("created");
    file.write_all_at(b"at the end", STORED).expect("a hole is written behind");
    system.run(&["put", text(&source), "/stored"]).ok();
    if can_mount() {
        let mounted = Mounted::at(&system, "mnt");
        let file = std::fs::File::create(mounted.path("far")).expect("created");
        file.write_all_at(b"sixteen bytes...", FAR).expect("a hole is written behind");
        file.sync_all().expect("it is durable");
        let file = std::fs::File::open(mounted.path("far")).expect("it is there");
        let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).expect("data is found");
        assert!((FAR - 4096..=FAR).contains(&data), "{data}");
    }
    let leaves = devices_of(&system, "/stored").remove(0);
    system.run(&["osd", "drain", &leaves, "--wait", "120"]).ok();
    system.run(&["get", "/stored", text(&back)]).ok();
    let mut tail = [0; 10];
    let file = std::fs::File::open(&back).expect("fetched");
    file.read_exact_at(&mut tail, STORED).expect("it is read");
    assert_eq!(&tail, b"at the end");
}
