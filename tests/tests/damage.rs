//! Corruption on a device's disk, as its operator and users see it: precise errors, never wrong
//! bytes, and repair.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use sealstone_tests::{Daemon, Signal, System, command, run, run_with_input, text};

/// Length of the file that is corrupted; not a multiple of a block, so that its last block is
/// short.
const LENGTH: usize = 300_000;

fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index as u32).wrapping_mul(2_654_435_761).to_le_bytes()[2] ^ seed).collect()
}

/// Flips one bit of `content` in the device's segment file that has its byte `at`.
#[track_caller]
fn rot(store: &Path, content: &[u8], at: usize) {
    let block = &content[at / 4096 * 4096..(at / 4096 * 4096 + 4096).min(content.len())];
    for entry in fs::read_dir(store).expect("the store's folder") {
        let path = entry.expect("an entry").path();
        if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment-")) {
            continue;
        }
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("a segment");
        let mut found = vec![0; block.len()];
        for place in (0..file.metadata().expect("its length").len().min(64 << 20)).step_by(4096) {
            if file.read_exact_at(&mut found, place).is_ok() && found == block {
                let byte = found[at % 4096] ^ 0x04;
                file.write_all_at(&[byte], place + (at % 4096) as u64).expect("written");
                return;
            }
        }
    }
    panic!("no segment holds byte {at}");
}

fn audited(system: &System) -> Vec<serde_json::Value> {
    let log = fs::read_to_string(system.path("osd0/audit.jsonl")).expect("the audit log");
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    lines.filter(|line| line["action"] == "SCRUB").collect()
}

#[test]
fn damage_is_reported_and_repaired_by_put() {
    let mut system = System::start_with(1, "256M", &["--metrics", "127.0.0.1:0"]);
    let (rotten, sound) = (content(1, LENGTH), content(2, LENGTH));
    run_with_input(system.command(&["put", "-", "/rotten"]), &rotten).ok();
    run_with_input(system.command(&["put", "-", "/sound"]), &sound).ok();
    let data = system.path("osd0");
    let data = text(&data);
    let running = run(&["osd", "check", "--data", data]).fails(1);
    running.says(&["in use", "sealstone scrub --data"]);

    assert_eq!(system.end_osd(0, Signal::Terminate), 0);
    let clean = run(&["--json", "osd", "check", "--data", data]).ok().json();
    assert_eq!((clean["damaged"].as_u64(), clean["read_only"].as_bool()), (Some(0), Some(false)), "{clean}");
    assert!(clean["bytes"].as_u64() >= Some(2 * LENGTH as u64), "{clean}");
    rot(&system.path("osd0/store"), &rotten, 100_000);
    // Offline: reports the object, its kind, and the damaged bytes; writes nothing.
    let found = run(&["--json", "osd", "check", "--data", data]);
    assert_eq!(found.code, 1);
    let value = found.json();
    assert_eq!(value["damaged"], 1, "{value}");
    let finding = &value["findings"][0];
    let object = finding["object"].as_str().expect("an id").to_owned();
    assert_eq!(finding["kind"], "user");
    let piece = serde_json::json!([{ "what": "data", "offset": 98_304, "length": 4096 }]);
    assert_eq!(finding["pieces"], piece, "{finding}");
    let output = run(&["osd", "check", "--data", data]);
    assert!(
        output
            .clone()
            .text()
            .contains(&format!("user object {object}: 4096 bytes at 98304 fail their checksum"))
    );
    output.fails(1).says(&["1 object is damaged", "put it again"]);

    // Online: no wrong byte, and one line that says which file, where, and what to do.
    system.start_osd(0);
    let refused = system.run(&["get", "/rotten", "-"]);
    assert!(rotten.starts_with(&refused.stdout), "bytes before the damage, no others");
    refused.fails(1).says(&["/rotten", "osd0", &object, "put the file again"]);
    assert!(system.run(&["cat", "/sound"]).ok().stdout == sound);

    // The scrub finds it again, and reports it in the log, the metrics and its answer.
    let scrub = run(&["--json", "scrub", "--data", data]);
    assert_eq!(scrub.code, 1, "{}", scrub.stderr);
    let reported = &scrub.json()["devices"][0];
    assert_eq!(
        (reported["damaged"].as_u64(), reported["running"].as_bool()),
        (Some(1), Some(false)),
        "{reported}"
    );
    assert_eq!(reported["findings"][0]["object"], object.as_str());
    let ranges = serde_json::json!([{ "offset": 98_304, "length": 4096 }]);
    assert_eq!(reported["findings"][0]["ranges"], ranges);
    let (_, page) = sealstone_tests::get(system.osd(0).field("metrics"), "/metrics");
    assert!(page.contains("sealstone_osd_damaged_objects{device=\"osd0\"} 1"), "{page}");
    assert!(page.contains("sealstone_osd_scrub_passes_total{device=\"osd0\"} 1"), "{page}");
    let records = audited(&system);
    assert_eq!(records.len(), 1, "told once, though found twice: {records:?}");
    assert_eq!((&records[0]["object"], &records[0]["reason"]), (&object.as_str().into(), &"damaged".into()));

    // The damage is remembered over a restart, before anything is read again.
    assert_eq!(system.end_osd(0, Signal::Terminate), 0);
    system.start_osd(0);
    run(&["scrub", "--data", data, "--show"]).fails(1).says(&["1 object is damaged"]);

    // A new put creates a new object; the damaged one is removed.
    run_with_input(system.command(&["put", "-", "/rotten"]), &rotten).ok();
    assert!(system.run(&["cat", "/rotten"]).ok().stdout == rotten);
    let start = std::time::Instant::now();
    while run(&["scrub", "--data", data, "--show"]).code != 0 {
        assert!(start.elapsed().as_secs() < 120, "the replaced object is still there");
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    let clean = run(&["--json", "scrub", "--data", data]).ok().json();
    assert_eq!(clean["devices"][0]["damaged"], 0, "{clean}");
    assert_eq!(system.end_osd(0, Signal::Terminate), 0);
    run(&["osd", "check", "--data", data]).ok();
    assert!(audited(&system).last().is_some_and(|line| line["verdict"] == "done"));
}

/// If only some blocks are corrupt, a good copy of them is written in place, and nothing else.
#[test]
fn good_copy_repairs_damage_in_place() {
    let mut system = System::start_with(1, "256M", &[]);
    let file = content(4, LENGTH);
    run_with_input(system.command(&["put", "-", "/file"]), &file).ok();
    let capability = system.path("rw.cap");
    let capability = text(&capability);
    let issue = ["cap", "issue", "--read", "--write", "--until", "1h", "/file", "-o", capability];
    system.run(&issue).ok();
    assert_eq!(system.end_osd(0, Signal::Terminate), 0);
    // In the middle, and in the last block, which is short.
    for at in [100_000, LENGTH - 1] {
        rot(&system.path("osd0/store"), &file, at);
    }
    system.start_osd(0);
    system.run(&["get", "/file", "-"]).fails(1).says(&["/file", "osd0"]);
    let data = system.path("osd0");
    let data = text(&data);
    let scrub = run(&["--json", "scrub", "--data", data]);
    assert_eq!(scrub.code, 1, "{}", scrub.stderr);
    let ranges = scrub.json()["devices"][0]["findings"][0]["ranges"].clone();
    let expected =
        serde_json::json!([{ "offset": 98_304, "length": 4096 }, { "offset": 299_008, "length": 992 }]);
    assert_eq!(ranges, expected);
    let offer = |at: usize, bytes: &[u8]| {
        run_with_input(command(&["cap", "put", capability, "-", "--at", &at.to_string()]), bytes)
    };
    // Writing a part of a damaged block would give its corrupt rest a valid checksum.
    assert_ne!(offer(100_000, &file[100_000..100_010]).code, 0);
    for range in ranges.as_array().expect("a list") {
        let [at, length] = ["offset", "length"].map(|name| range[name].as_u64().expect("a number") as usize);
        offer(at, &file[at..at + length]).ok();
    }
    assert!(system.run(&["cat", "/file"]).ok().stdout == file);
    // The repair is durable, and no damage remains, online and offline.
    assert_eq!(system.end_osd(0, Signal::Kill), -1);
    system.start_osd(0);
    assert!(system.run(&["cat", "/file"]).ok().stdout == file);
    assert_eq!(run(&["--json", "scrub", "--data", data]).ok().json()["devices"][0]["damaged"], 0);
    assert_eq!(system.end_osd(0, Signal::Terminate), 0);
    run(&["osd", "check", "--data", data]).ok();
    assert!(audited(&system).last().is_some_and(|line| line["verdict"] == "done"));
}

#[test]
fn device_loads_damage_found_offline() {
    let mut system = System::start_with(1, "256M", &[]);
    let file = content(3, LENGTH);
    run_with_input(system.command(&["put", "-", "/file"]), &file).ok();
    assert_eq!(system.end_osd(0, Signal::Terminate), 0);
    let data = system.path("osd0");
    let data = text(&data);
    rot(&system.path("osd0/store"), &file, 5);
    let noted = run(&["--json", "osd", "check", "--repair", "--data", data]);
    assert_eq!((noted.code, noted.json()["noted"].as_u64()), (1, Some(1)));
    system.start_osd(0);
    run(&["scrub", "--data", data, "--show"]).fails(1).says(&["damaged"]);
}

/// A device with an incomplete store reports which file is wrong, and what to do. It starts
/// read-only, or not at all; with all files back in place it works again.
#[test]
fn damaged_store_names_file_and_remedy() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("osd");
    let data_text = text(&data);
    run(&["osd", "init", "--data", data_text, "--capacity", "64M", "--name", "osd"]).ok();
    let serve = || {
        let listen = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
        Daemon::try_start(command(&[&["--json", "osd", "serve", "--data", data_text], &listen[..]].concat()))
    };
    // One line that names the file, from the check, and from the daemon or its health.
    let names = |what: &str| {
        run(&["osd", "check", "--data", data_text]).fails(1).says(&[what]);
        match serve() {
            Err(ended) => drop(ended.fails(1).says(&[what])),
            Ok(mut daemon) => {
                let (status, health) = sealstone_tests::get(daemon.field("metrics"), "/healthz");
                assert!(status == 503 && health.contains(what), "{status} {health}");
                daemon.end(Signal::Terminate);
            }
        }
    };
    serve().expect("it is whole").end(Signal::Terminate);
    let store = data.join("store");

    let segment = store.join("segment-00000");
    let aside = folder.path().join("aside");
    fs::rename(&segment, &aside).expect("moved");
    names("segment-00000");
    fs::rename(&aside, &segment).expect("moved back");
    run(&["osd", "check", "--data", data_text]).ok();

    let length = fs::metadata(&segment).expect("there").len();
    let file = OpenOptions::new().write(true).open(&segment).expect("a segment");
    file.set_len(length / 2).expect("cut");
    names("segment-00000");
    file.set_len(length).expect("sparse again");
    run(&["osd", "check", "--data", data_text]).ok();

    let index = store.join("index.redb");
    let whole = fs::read(&index).expect("the index");
    // Only the header, and nothing.
    for wrong in [&whole[..4096], b""] {
        fs::write(&index, wrong).expect("cut");
        names("index");
    }
    fs::write(&index, &whole).expect("whole again");

    let superblock = store.join("superblock");
    let first = fs::read(&superblock).expect("the superblock");
    let mut wrong = first.clone();
    // One damaged copy does no harm.
    wrong[40] ^= 1;
    wrong[4096 + 40] ^= 1;
    fs::write(&superblock, &wrong).expect("written");
    names("superblock");
    fs::write(&superblock, &first).expect("written");

    // With everything back in place it works as before.
    let checked = run(&["--json", "osd", "check", "--data", data_text]).ok().json();
    assert_eq!(checked["damaged"], 0, "{checked}");
    serve().expect("it is whole again").end(Signal::Terminate);
}

/// A file system that is full or read-only when the device starts: one line with the next step, and
/// no damage.
#[test]
fn read_only_file_system_error_names_the_remedy() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let Some(small) = SmallTmpfs::mount(folder.path().join("small")) else {
        sealstone_tests::left_out("a tmpfs needs root");
        return;
    };
    let data = small.0.join("osd");
    run(&["osd", "init", "--data", text(&data), "--capacity", "64M", "--name", "osd"]).ok();
    let serve = || {
        Daemon::try_start(command(&[
            "--json",
            "osd",
            "serve",
            "--data",
            text(&data),
            "--listen",
            "127.0.0.1:0",
        ]))
    };
    // Completely full.
    let ballast = small.0.join("ballast");
    let mut file = fs::File::create(&ballast).expect("a file");
    while file.write_all(&[7; 4096]).is_ok() {}
    drop(file);
    match serve() {
        Err(ended) => drop(ended.fails(1).says(&["space"])),
        // The device starts with its reserve, and refuses additions.
        Ok(mut daemon) => drop(daemon.end(Signal::Kill)),
    }
    fs::remove_file(&ballast).expect("removed");
    serve().expect("there is room again").end(Signal::Terminate);

    small.read_only(true);
    serve()
        .expect_err("nothing can be written")
        .fails(1)
        .says(&["ead-only file system", "mount the file system for writing"]);
    small.read_only(false);
    serve().expect("it can be written again").end(Signal::Terminate);
    run(&["osd", "check", "--data", text(&data)]).ok();
}

/// A tmpfs of a few MiB; unmounted when dropped.
struct SmallTmpfs(PathBuf);

impl SmallTmpfs {
    fn mount(place: PathBuf) -> Option<Self> {
        fs::create_dir(&place).expect("made");
        mount("tmpfs", &place, "tmpfs", MountFlags::empty(), c"size=8M").ok()?;
        Some(Self(place))
    }

    fn read_only(&self, read_only: bool) {
        let flags = if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
        mount_remount(&self.0, flags, c"size=8M").expect("remounted");
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        // A mount would keep the folder busy.
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn scrub_of_a_running_device_is_requested() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("osd");
    run(&["scrub", "--data", text(folder.path())]).fails(4).says(&["no device in this folder"]);
    run(&["scrub", "--data", text(&data)]).fails(4);
    run(&["osd", "check", "--data", text(&data)]).fails(4);
    run(&["osd", "init", "--data", text(&data), "--capacity", "64M", "--name", "osd"]).ok();
    run(&["scrub", "--data", text(&data)]).fails(1).says(&["no running device", "sealstone osd check"]);
    run(&["scrub", "other", "--data", text(folder.path())]).fails(4).says(&["other"]);
    run(&["--json", "scrub", "--data", text(&data), "--show", "--stop"]).fails(2).says(&["--stop"]);
}
