//! A full device, a full file system below a device, and a full disk of the metadata server. Reads
//! and removals work, writes are refused with the disk's name, and freed space is used again.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use sealstone_tests::{
    CommandResult, Mounted, Signal, System, can_mount, can_mount_tmpfs, fill, run, run_with_input, text,
};

/// Bytes of the device; the metadata server reserves 4 MiB of it.
const CAPACITY: &str = "64M";
/// Timeout for the grace period of a removed file, the next removal and the next capacity poll,
/// with a margin.
const ROOM_AGAIN_MAX: Duration = Duration::from_secs(60);

fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index as u32).wrapping_mul(2_654_435_761).to_le_bytes()[2] ^ seed).collect()
}

#[test]
fn a_full_device_refuses_clearly_and_recovers() {
    let mut system = System::start_with(1, CAPACITY, &["--metrics", "127.0.0.1:0"]);
    let kept = content(1, 3 << 20);
    run_with_input(system.command(&["put", "-", "/kept"]), &kept).ok();

    // A known size above the free space: refused before any byte is sent.
    let source = system.path("source");
    let file = fs::File::create(&source).expect("made");
    // Without holes: a hole needs no space.
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 200 << 20).expect("allocated");
    system.run(&["put", text(&source), "/huge"]).fails(1).says(&["no space left"]);
    // Fills the rest with files.
    let piece = content(3, 2 << 20);
    let mut stored = 0;
    let refusal = loop {
        let put = run_with_input(system.command(&["put", "-", &format!("/piece-{stored}")]), &piece);
        if put.code != 0 {
            break put;
        }
        stored += 1;
        assert!(stored < 40, "80 MiB fit into 64");
    };
    refusal.fails(1).says(&["no space left"]);
    assert!(stored >= 20, "only {stored} files of 2 MiB fit into 64 MiB");

    // An unknown size: the device refuses.
    let huge = content(2, 30 << 20);
    run_with_input(system.command(&["put", "-", "/huge"]), &huge).fails(1).says(&["no space left"]);
    system.run(&["stat", "/huge"]).fails(4);

    // Everything but writing works.
    assert!(system.run(&["cat", "/kept"]).ok().stdout == kept);
    let listed = system.run(&["ls"]).ok().text();
    assert_eq!(listed.lines().count(), stored + 1, "{listed}");
    for index in 0..stored {
        assert!(system.run(&["cat", &format!("/piece-{index}")]).ok().stdout == piece, "{index} of {stored}");
    }
    system.run(&["mkdir", "/directory"]).ok();
    system.run(&["mv", "/kept", "/directory/kept"]).ok();
    let df = system.run(&["--json", "df"]).ok().json();
    assert!(df["used"].as_u64() <= df["total"].as_u64(), "{df}");
    assert_eq!(sealstone_tests::get(system.osd(0).field("metrics"), "/healthz").0, 200);

    // A restart of both while full changes nothing.
    assert_eq!(system.end_osd(0, Signal::Kill), -1);
    assert_eq!(system.end_mds(Signal::Kill), -1);
    system.start_mds();
    system.start_osd(0);
    assert!(system.run(&["cat", "/directory/kept"]).ok().stdout == kept);

    system.run(&["rm", "-r", "/directory"]).ok();
    for index in 0..stored {
        system.run(&["rm", &format!("/piece-{index}")]).ok();
    }
    let big = content(4, 40 << 20);
    let start = Instant::now();
    loop {
        let put = run_with_input(system.command(&["put", "-", "/big"]), &big);
        if put.code == 0 {
            break;
        }
        put.fails(1);
        assert!(start.elapsed() < ROOM_AGAIN_MAX, "no room {ROOM_AGAIN_MAX:?} after the removal");
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(system.run(&["cat", "/big"]).ok().stdout == big);
    assert_eq!(system.run(&["ls"]).ok().text(), "big\n");
}

/// MiB of the file system below a device with a larger capacity.
const DISK_MIB: u32 = 96;

fn put(system: &System, name: &str, content: &[u8]) -> CommandResult {
    run_with_input(system.command(&["put", "-", name]), content)
}

/// Stores files until one is refused for lack of space. Returns their number.
fn fill_with_files(system: &System, prefix: &str, piece: &[u8]) -> usize {
    for stored in 0..100 {
        let put = put(system, &format!("/{prefix}{stored}"), piece);
        if put.code != 0 {
            put.fails(1).says(&["no space left"]);
            return stored;
        }
    }
    panic!("more than the file system holds");
}

/// Waits until a file can be stored again.
fn put_when_there_is_space(system: &System, name: &str, content: &[u8]) {
    let start = Instant::now();
    loop {
        let put = put(system, name, content);
        if put.code == 0 {
            return;
        }
        put.fails(1).says(&["no space left"]);
        assert!(start.elapsed() < ROOM_AGAIN_MAX, "no space {ROOM_AGAIN_MAX:?} after the removal");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Waits until removed files have released their space.
fn wait_for_space(system: &System, bytes: u64) {
    let start = Instant::now();
    while free_by_df(system) < bytes {
        assert!(start.elapsed() < ROOM_AGAIN_MAX, "{} bytes after the removal", free_by_df(system));
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn free_by_df(system: &System) -> u64 {
    let df = system.run(&["--json", "df"]).ok().json();
    df["total"].as_u64().expect("a number") - df["used"].as_u64().expect("a number")
}

#[test]
fn device_on_full_file_system_reads_and_removes() {
    if !can_mount_tmpfs() {
        return;
    }
    let mut system = System::start_on_tmpfs(1, "1G", &[("osd0", DISK_MIB)]);
    let disk = u64::from(DISK_MIB) << 20;
    let piece = content(5, 8 << 20);
    let start = Instant::now();
    // Before the first poll the capacity is the configured one.
    while free_by_df(&system) > disk {
        assert!(start.elapsed() < ROOM_AGAIN_MAX, "df promises more than the file system has");
        std::thread::sleep(Duration::from_millis(500));
    }
    for round in 0..3 {
        wait_for_space(&system, 72 << 20);
        let stored = fill_with_files(&system, "piece", &piece);
        assert!(stored >= 8, "round {round}: only {stored} files of 8 MiB fit into {DISK_MIB} MiB");
        for index in 0..stored {
            let read = system.run(&["cat", &format!("/piece{index}")]).ok();
            assert!(read.stdout == piece, "round {round}: {index} of {stored}");
        }
        if round == 1 {
            assert_eq!(system.end_osd(0, Signal::Kill), -1);
            system.start_osd(0);
        }
        for index in 0..stored {
            system.run(&["rm", &format!("/piece{index}")]).ok();
        }
        put_when_there_is_space(&system, "/small", &piece);
        if round < 2 {
            system.run(&["rm", "/small"]).ok();
        }
    }

    // Another program uses up the rest.
    let ballast = system.path("osd0").join("ballast");
    fill(&ballast);
    assert!(system.run(&["cat", "/small"]).ok().stdout == piece);
    put(&system, "/large", &content(7, 64 << 20)).fails(1).says(&["no space left"]);
    assert_eq!(system.end_osd(0, Signal::Kill), -1);
    system.start_osd(0);
    assert!(system.run(&["cat", "/small"]).ok().stdout == piece);
    system.run(&["rm", "/small"]).ok();
    system.run(&["mds", "keys", "rotate", "working"]).ok();
    // Without a restart the device uses space that the other program frees.
    fs::remove_file(&ballast).expect("removed");
    put_when_there_is_space(&system, "/large", &content(7, 40 << 20));
    assert!(system.run(&["cat", "/large"]).ok().stdout == content(7, 40 << 20));
}

#[test]
fn full_disk_of_metadata_server_refuses_additions_only() {
    if !can_mount_tmpfs() {
        return;
    }
    let mut system = System::start_on_tmpfs(1, "256M", &[("mds", 96)]);
    let piece = content(8, 100_000);
    for index in 0..40 {
        put(&system, &format!("/file{index}"), &piece).ok();
    }
    let ballast = system.path("mds").join("ballast");
    fill(&ballast);
    for life in 0..3 {
        system.run(&["ls"]).ok();
        system.run(&["df"]).ok();
        assert!(system.run(&["cat", "/file39"]).ok().stdout == piece);
        for name in ["/new", "/new/too"] {
            let refused = system.run(&["mkdir", "-p", name]);
            refused.fails(1).says(&["no space left", "metadata server"]);
        }
        // A login is a change of the metadata store.
        let secret = system.path("mds").join("admin-secret");
        let cluster = system.cluster();
        let login = ["login", "admin", "--cluster", text(&cluster), "--password-file", text(&secret)];
        system.run(&login).ok();
        for index in 0..10 {
            system.run(&["rm", &format!("/file{}", life * 10 + index)]).ok();
        }
        let signal = if life == 1 { Signal::Terminate } else { Signal::Kill };
        system.end_mds(signal);
        system.start_mds();
    }
    let left = system.run(&["ls"]).ok().text();
    assert_eq!(left.lines().count(), 10, "{left}");
    fs::remove_file(&ballast).expect("removed");
    system.run(&["mkdir", "/new"]).ok();
    put(&system, "/new/file", &piece).ok();
    assert!(system.run(&["cat", "/new/file"]).ok().stdout == piece);
}

#[test]
fn devices_share_their_file_systems_free_space() {
    if !can_mount_tmpfs() {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = sealstone_tests::Tmpfs::mount(&folder.path().join("disk"), 128);
    let data = folder.path().join("disk/up");
    let mut command =
        sealstone_tests::command(&["--json", "up", "--listen", "127.0.0.1:0", "--capacity", "1G"]);
    command.arg("--data").arg(&data);
    let up = sealstone_tests::Daemon::start(command);
    let session = folder.path().join("session");
    let sealstone = |arguments: &[&str]| {
        let mut command = sealstone_tests::command(arguments);
        command.env("SEALSTONE_SESSION", &session).env("SEALSTONE_CLUSTER", data.join("cluster.toml"));
        command
    };
    let secret = data.join("admin-secret");
    let login = sealstone(&["login", "admin", "--password-file", text(&secret)]).status();
    assert!(login.expect("it starts").success());
    let start = Instant::now();
    loop {
        let df = run_with_input(sealstone(&["--json", "df"]), b"").ok().json();
        let free = df["total"].as_u64().expect("a number") - df["used"].as_u64().expect("a number");
        if free <= 128 << 20 {
            break;
        }
        assert!(start.elapsed() < ROOM_AGAIN_MAX, "df counts the file system more than once: {df}");
        std::thread::sleep(Duration::from_millis(500));
    }
    drop((up, disk));
}

#[test]
fn device_larger_than_its_file_system_warns() {
    if !can_mount_tmpfs() {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let _disk = sealstone_tests::Tmpfs::mount(&folder.path().join("disk"), 64);
    let init = |name: &str, more: &[&str]| {
        let data = folder.path().join("disk").join(name);
        run(&[&["osd", "init", "--data", text(&data), "--name", name], more].concat())
    };
    assert!(!init("fits", &["--capacity", "24M"]).ok().stderr.contains("warning"));
    let sum = init("sum", &["--capacity", "32M"]).ok();
    assert!(sum.stderr.contains("warning") && sum.stderr.contains("beside it"), "{}", sum.stderr);
    assert!(init("large", &["--capacity", "1G"]).ok().stderr.contains("warning"));
    init("solid", &["--capacity", "1G", "--preallocate"]).fails(1).says(&["--capacity"]);
    init("half", &["--capacity", "16M", "--preallocate"]).ok();
}

/// Runs a command in a user's session.
fn run_as(system: &System, user: &str, arguments: &[&str]) -> CommandResult {
    let mut command = system.command(arguments);
    command.env("SEALSTONE_SESSION", system.path(&format!("{user}.toml")));
    CommandResult::from(command.output().expect("the binary starts"))
}

fn log_in(system: &System, user: &str) {
    let password = system.path("user.pw");
    let cluster = system.cluster();
    let login = ["login", user, "--cluster", text(&cluster), "--password-file", text(&password)];
    run_as(system, user, &login).ok();
}

/// Creates a user, a file that the user may read, and one of the administrator.
fn prepare_revocations(system: &System) -> Vec<u8> {
    let password = system.path("user.pw");
    fs::write(&password, "a long enough password\n").expect("written");
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).expect("set");
    system.run(&["user", "add", "bob", "--password-file", text(&password)]).ok();
    let bytes = content(9, 3_000_000);
    for path in ["/shared", "/own"] {
        put(system, path, &bytes).ok();
    }
    system.run(&["chmod", "644", "/shared"]).ok();
    log_in(system, "bob");
    bytes
}

/// Ends credentials in all ways and changes all keys, with the disks as they are.
fn revoke_in_all_ways(system: &System, bytes: &[u8]) {
    let issue = |user: Option<&str>, path: &str, name: &str| {
        let capability = system.path(name);
        let issue = ["cap", "issue", "--read", "--until", "30m", path, "-o", text(&capability), "--force"];
        match user {
            Some(user) => run_as(system, user, &issue).ok(),
            None => system.run(&issue).ok(),
        };
        capability
    };
    let get = |capability: &std::path::Path| run(&["cap", "get", text(capability), "-"]);
    let is_complete = |reported: CommandResult| {
        let revocation = &reported.json()["revocation"];
        assert_eq!(revocation["complete"], true, "{revocation}");
    };
    let (own, bobs) = (issue(None, "/own", "own.cap"), issue(Some("bob"), "/shared", "bob.cap"));
    assert!(get(&own).ok().stdout == bytes && get(&bobs).ok().stdout == bytes);
    is_complete(system.run(&["--json", "revoke", "--object", "/own"]).ok());
    get(&own).fails(3);
    is_complete(system.run(&["--json", "user", "disable", "bob"]).ok());
    get(&bobs).fails(3);
    system.run(&["user", "enable", "bob"]).ok();
    log_in(system, "bob");
    let bobs = issue(Some("bob"), "/shared", "bob.cap");
    is_complete(system.run(&["--json", "revoke", "--user", "bob"]).ok());
    get(&bobs).fails(3);
    let bobs = issue(Some("bob"), "/shared", "bob.cap");
    is_complete(run_as(system, "bob", &["--json", "logout", "--revoke"]).ok());
    let start = Instant::now();
    while get(&bobs).code == 0 {
        assert!(start.elapsed() < ROOM_AGAIN_MAX, "the session's credential is accepted");
        std::thread::sleep(Duration::from_millis(100));
    }
    log_in(system, "bob");
    let own = issue(None, "/own", "own.cap");
    for kind in ["working", "partition", "root", "master"] {
        system.run(&["mds", "keys", "rotate", kind]).ok();
    }
    system.run(&["mds", "keys", "rotate", "working", "--revoke"]).ok();
    get(&own).fails(3);
    assert!(system.run(&["cat", "/own"]).ok().stdout == bytes);
    assert!(run_as(system, "bob", &["cat", "/shared"]).ok().stdout == bytes);
}

#[test]
fn full_devices_take_revocations_and_keys() {
    if !can_mount_tmpfs() {
        return;
    }
    let mut system = System::start_on_tmpfs(2, "1G", &[("osd0", 48), ("osd1", 48)]);
    let bytes = prepare_revocations(&system);
    for osd in ["osd0", "osd1"] {
        fill(&system.path(osd).join("ballast"));
    }
    revoke_in_all_ways(&system, &bytes);
    for osd in [0, 1] {
        assert_eq!(system.end_osd(osd, Signal::Kill), -1);
        system.start_osd(osd);
    }
    revoke_in_all_ways(&system, &bytes);
}

#[test]
fn full_metadata_server_takes_revocations_and_keys() {
    if !can_mount_tmpfs() {
        return;
    }
    let mut system = System::start_on_tmpfs(1, "256M", &[("mds", 96)]);
    let bytes = prepare_revocations(&system);
    for life in 0..2 {
        // Another program also takes the space that an earlier run released.
        fill(&system.path("mds").join(format!("ballast{life}")));
        revoke_in_all_ways(&system, &bytes);
        assert_eq!(system.end_mds(Signal::Kill), -1);
        system.start_mds();
    }
    system.run(&["mkdir", "/new"]).fails(1).says(&["disk of the metadata server"]);
}

#[test]
fn full_metadata_server_gives_locks_and_leases() {
    if !can_mount_tmpfs() || !can_mount() {
        return;
    }
    let system = System::start_on_tmpfs(1, "256M", &[("mds", 96)]);
    put(&system, "/file", b"before").ok();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    fill(&system.path("mds").join("ballast"));
    let open =
        |mount: &Mounted| fs::File::options().read(true).write(true).open(mount.path("file")).expect("open");
    for round in 0..20_u8 {
        let (writer, reader) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let (written, other) = (open(writer), open(reader));
        written.lock().expect("a lock");
        assert!(other.try_lock().is_err(), "two mounts have the lock");
        std::os::unix::fs::FileExt::write_all_at(&written, &[round; 5000], 0).expect("written");
        written.unlock().expect("unlocked");
        other.lock().expect("the other mount's lock");
        assert!(fs::read(reader.path("file")).expect("read") == [round; 5000], "round {round}");
    }
    let refused = fs::write(one.path("new"), b"x").expect_err("a new name needs space");
    assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull);
    fs::remove_file(one.path("file")).expect("removed");
}
