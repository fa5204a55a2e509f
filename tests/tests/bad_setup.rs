//! Wrong folders, keys, ports and configurations stop a daemon at once, with one line that says
//! what to do.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use sealstone_tests::{CommandResult, Daemon, Signal, System, command, run, text};
use tempfile::TempDir;

/// How long a daemon may take to refuse to start.
const REFUSAL_MAX: Duration = Duration::from_secs(150);

/// Runs a command that must end by itself; fails the test if it serves instead.
#[track_caller]
fn refused(arguments: &[&str]) -> CommandResult {
    let mut child =
        command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let start = Instant::now();
    while child.try_wait().expect("the child can be asked").is_none() {
        if start.elapsed() > REFUSAL_MAX {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{arguments:?} serves instead of refusing");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    CommandResult::from(child.wait_with_output().expect("the child can be waited for"))
}

/// Runs a command and kills it after a time; returns whether it had succeeded before.
#[track_caller]
fn run_for(arguments: &[&str], ms: u64) -> bool {
    let mut child =
        command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
    std::thread::sleep(Duration::from_millis(ms));
    let _ = child.kill();
    child.wait().expect("the child can be waited for").success()
}

#[track_caller]
fn serve_osd(data: &Path) -> CommandResult {
    refused(&["osd", "serve", "--data", text(data), "--listen", "127.0.0.1:0"])
}

#[track_caller]
fn serve_mds(data: &Path) -> CommandResult {
    refused(&["mds", "serve", "--data", text(data), "--listen", "127.0.0.1:0"])
}

#[track_caller]
fn new_osd(folder: &TempDir, name: &str) -> PathBuf {
    let data = folder.path().join(name);
    run(&["osd", "init", "--data", text(&data), "--capacity", "64M", "--name", name]).ok();
    data
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its owner may");
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("temporary folder")
}

#[test]
fn device_start_requires_its_private_key() {
    let folder = folder();
    let data = new_osd(&folder, "one");
    let key = data.join("master.key");
    let own = fs::read(&key).expect("there");

    mode(&key, 0o640);
    serve_osd(&data).fails(3).says(&["master.key", "0640", "chmod 600"]);
    mode(&key, 0o600);

    let other = new_osd(&folder, "other");
    fs::copy(other.join("master.key"), &key).expect("copied");
    serve_osd(&data).fails(1).says(&["master.key", "another device"]);

    fs::write(&key, "master_key = \"5ec2e7\" trailing").expect("written");
    let refused = serve_osd(&data).fails(1).says(&["master.key", "not a key file"]);
    assert!(!refused.stderr.contains("5ec2e7"), "a damaged key file is not quoted: {}", refused.stderr);

    fs::remove_file(&key).expect("removed");
    serve_osd(&data).fails(1).says(&["master.key", "missing"]);

    // A valid key file with another key: the device starts, but rejects the MDS's credentials.
    fs::write(&key, &own).expect("written");
    mode(&key, 0o600);
    let mut daemon =
        Daemon::start(command(&["--json", "osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"]));
    assert_eq!(daemon.end(Signal::Terminate), 0);
}

#[test]
fn device_takeover_requires_its_private_key() {
    let system = System::start(1);
    let data = system.path("second");
    let key = system.path("second.key");
    let (data, key) = (text(&data), text(&key));
    run(&["osd", "init", "--data", data, "--capacity", "64M", "--name", "second", "--key-out", key]).ok();
    let second =
        Daemon::start(command(&["--json", "osd", "serve", "--data", data, "--listen", "127.0.0.1:0"]));
    let url = second.field("url");
    let add = |key: &str| system.run(&["mds", "add-osd", url, "--key", key]);

    add(text(&system.path("no.key"))).fails(4).says(&["no.key"]);
    mode(Path::new(key), 0o640);
    add(key).fails(3).says(&["second.key", "640", "chmod 600"]);
    mode(Path::new(key), 0o600);
    let right = fs::read_to_string(key).expect("readable");
    fs::write(key, "no key at all").expect("written");
    let refused = add(key).fails(2).says(&["second.key", "osd init"]);
    assert!(!refused.stderr.contains("no key at all"));
    fs::write(key, right.replace("master_key = \"", "master_key = \"zz")).expect("written");
    add(key).fails(2).says(&["second.key", "hex"]);
    fs::write(key, &right).expect("written");
    system.run(&["mds", "add-osd", "http://127.0.0.1/", "--key", key]).fails(2).says(&["iscsi://"]);
    // Permanent errors are reported at once: another device's address, another key.
    let start = Instant::now();
    let first = system.osd(0).field("url").to_owned();
    system.run(&["mds", "add-osd", &first, "--key", key]).fails(3).says(&[
        "second",
        &first,
        "does not accept this key",
        "right URL and key file",
    ]);
    let (head, tail) = right.split_at(right.find("master_key = \"").expect("a field") + 14);
    let flipped = if tail.starts_with('0') { '1' } else { '0' };
    fs::write(key, format!("{head}{flipped}{}", &tail[1..])).expect("written");
    let refused = add(key).fails(3).says(&["second", url, "does not accept this key"]);
    assert!(!refused.stderr.contains(&tail[1..20]), "no part of the key is shown");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    // Transient errors are retried.
    let closed = first.replace(system.osd(0).field("address"), "127.0.0.1:9");
    fs::write(key, &right).expect("written");
    system.run(&["mds", "add-osd", &closed, "--key", key, "--wait", "3"]).fails(1).says(&[
        "second",
        "after 3 s",
        "could not be reached",
        "keeps trying",
    ]);
    // A wrong key given by mistake is replaced by the correct one.
    add(key).ok();
    let df = system.run(&["--json", "df"]).ok().json();
    assert_eq!(df["devices"].as_array().map(Vec::len), Some(2), "only the right one was added: {df}");
}

#[test]
fn folders_of_other_kinds_stay_unchanged() {
    let folder = folder();
    let missing = folder.path().join("missing");
    serve_osd(&missing).fails(4).says(&["no device", "osd init"]);
    serve_mds(&missing).fails(4).says(&["not set up", "mds init"]);
    assert!(!missing.exists(), "looking does not make a folder");
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).expect("made");
    serve_osd(&empty).fails(4);
    serve_mds(&empty).fails(4);
    assert_eq!(fs::read_dir(&empty).expect("there").count(), 0, "looking leaves nothing behind");

    let data = new_osd(&folder, "one");
    run(&["osd", "init", "--data", text(&data), "--capacity", "64M", "--name", "one", "--key-out", "k"])
        .fails(1)
        .says(&["already holds a device"]);
    let file = data.join("device.toml");
    let right = fs::read_to_string(&file).expect("there");
    fs::write(&file, right.replace("version = 1", "version = 9")).expect("written");
    serve_osd(&data).fails(1).says(&["device.toml", "version 9", "reads 2"]);
    fs::write(&file, "x = [\n").expect("written");
    serve_osd(&data).fails(1).says(&["device.toml"]);
    fs::write(&file, &right).expect("written");
    let boot = data.join("boot.toml");
    fs::write(&boot, "trash").expect("written");
    serve_osd(&data).fails(1).says(&["boot.toml"]);

    let full = folder.path().join("full");
    fs::create_dir(&full).expect("made");
    fs::write(full.join("letter.txt"), "dear").expect("written");
    run(&["osd", "init", "--data", text(&full), "--capacity", "64M", "--name", "x"])
        .fails(1)
        .says(&["not empty"]);
    run(&["mds", "init", "--data", text(&full)]).fails(1).says(&["not empty"]);
    refused(&["up", "--data", text(&full), "--listen", "127.0.0.1:0"])
        .fails(1)
        .says(&["not empty", "--data"]);
    assert_eq!(fs::read_dir(&full).expect("there").count(), 1, "a foreign folder stays as it is");

    let old = folder.path().join("old");
    fs::create_dir(&old).expect("made");
    fs::write(old.join("up.toml"), "version = 7\nosds = []\n").expect("written");
    refused(&["up", "--data", text(&old), "--listen", "127.0.0.1:0"]).fails(1).says(&[
        "up.toml",
        "version 7",
        "supports 1",
    ]);
}

#[test]
fn invalid_metadata_folder_is_refused() {
    let folder = folder();
    let data = folder.path().join("mds");
    run(&["mds", "init", "--data", text(&data)]).ok();
    run(&["mds", "init", "--data", text(&data)]).fails(1).says(&["set up already"]);
    let store = data.join("meta.redb");
    let right = fs::read(&store).expect("there");

    mode(&store, 0o644);
    serve_mds(&data).fails(3).says(&["meta.redb", "chmod 600"]);
    mode(&store, 0o600);
    mode(&data.join("certificate-key.der"), 0o640);
    serve_mds(&data).fails(3).says(&["certificate-key.der", "chmod 600"]);
    mode(&data.join("certificate-key.der"), 0o600);

    // The marker of the tables' version, set as a later release would.
    let marker = redb::TableDefinition::<&str, u64>::new("sealstone");
    {
        let database = redb::Database::open(&store).expect("a redb file");
        let change = database.begin_write().expect("begun");
        change.open_table(marker).expect("there").insert("metadata-format", 3).expect("set");
        change.commit().expect("committed");
    }
    serve_mds(&data).fails(1).says(&["meta.redb", "format 3", "reads 2"]);

    fs::write(&store, &right[..8192]).expect("written");
    serve_mds(&data).fails(1).says(&["meta.redb", "damaged", "backup"]);
    fs::write(&store, "something else").expect("written");
    serve_mds(&data).fails(1).says(&["meta.redb", "not a metadata store"]);
    run(&["mds", "init", "--data", text(&data)]).fails(1).says(&["not a metadata store"]);
    fs::write(&store, &right).expect("written");

    // Without a certificate the server creates a new one, signed by its authority.
    fs::remove_file(data.join("certificate.der")).expect("removed");
    let mut daemon =
        Daemon::start(command(&["--json", "mds", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"]));
    run(&["mds", "init", "--data", text(&data)]).fails(1).says(&["in use"]);
    assert_eq!(daemon.end(Signal::Terminate), 0, "after all that the folder is as good as new");
}

#[test]
fn interrupted_setup_is_reported_or_repeated() {
    let folder = folder();
    // A device: the marker exists until the end.
    let data = new_osd(&folder, "one");
    fs::write(data.join("init.incomplete"), "").expect("written");
    fs::remove_file(data.join("initial.key")).expect("removed");
    serve_osd(&data).fails(1).says(&["interrupted", "osd init"]);
    run(&["osd", "init", "--data", text(&data), "--capacity", "64M", "--name", "one"])
        .fails(1)
        .says(&["interrupted", "remove the directory"]);

    // Killed at any moment, it is interrupted, or done, or has made nothing.
    for delay_ms in [2, 4, 6, 8, 10, 12, 16, 24] {
        let data = folder.path().join(format!("osd{delay_ms}"));
        let init = ["osd", "init", "--data", text(&data), "--capacity", "64M", "--name", "one"];
        run_for(&init, delay_ms);
        if data.join("init.incomplete").exists() {
            run(&init).fails(1).says(&["interrupted", "remove the directory"]);
        } else if data.join("device.toml").exists() {
            run(&init).fails(1).says(&["already"]);
        } else {
            run(&init).ok();
        }
    }

    // A key that cannot be written is detected before the device is created.
    let data = folder.path().join("two");
    run(&["osd", "init", "--data", text(&data), "--capacity", "64M", "--key-out", "/proc/two.key"])
        .fails(4)
        .says(&["/proc/two.key"]);
    assert!(!data.exists(), "nothing was made");
    let nowhere = folder.path().join("nowhere/two.key");
    run(&["osd", "init", "--data", text(&data), "--capacity", "64M", "--key-out", text(&nowhere)])
        .fails(4)
        .says(&["nowhere"]);
    assert!(!data.exists());

    // A metadata server: killed at any moment, init works again, and what init reported done
    // serves.
    for delay_ms in [3, 10, 30, 80] {
        let data = folder.path().join(format!("mds{delay_ms}"));
        let done = run_for(&["mds", "init", "--data", text(&data)], delay_ms);
        if !done && !data.join("meta.redb").exists() {
            serve_mds(&data).fails(4).says(&["mds init"]);
            run(&["mds", "init", "--data", text(&data)]).ok();
        }
        let mut daemon = Daemon::start(command(&[
            "--json",
            "mds",
            "serve",
            "--data",
            text(&data),
            "--listen",
            "127.0.0.1:0",
        ]));
        assert_eq!(daemon.end(Signal::Terminate), 0);
    }
}

#[test]
fn interrupted_up_is_created_again() {
    let folder = folder();
    let data = folder.path().join("system");
    let arguments = [
        "--json",
        "up",
        "--data",
        text(&data),
        "--osds",
        "1",
        "--capacity",
        "64M",
        "--listen",
        "127.0.0.1:0",
    ];
    // The first files are made after some milliseconds.
    for delay_ms in [4, 8, 12, 16, 20, 24, 150, 400] {
        run_for(&arguments, delay_ms);
    }
    let mut up = Daemon::start(command(&arguments));
    assert_eq!(up.end(Signal::Terminate), 0);
    assert!(!data.join("up.incomplete").exists());
    // Two concurrent runs: the second leaves the first alone.
    let mut up = Daemon::start(command(&arguments));
    refused(&arguments).fails(1);
    assert!(up.survives(Duration::from_millis(50)));
    assert_eq!(up.end(Signal::Terminate), 0);
    refused(&["up", "--data", text(&data), "--osds", "2"]).fails(2).says(&["1 devices", "--osds"]);
}

#[test]
fn an_occupied_port_is_named() {
    let folder = folder();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let osd = new_osd(&folder, "one");
    let mds = folder.path().join("mds");
    run(&["mds", "init", "--data", text(&mds)]).ok();
    for (noun, data) in [("osd", &osd), ("mds", &mds)] {
        let data = text(data);
        refused(&[noun, "serve", "--data", data, "--listen", &address])
            .fails(1)
            .says(&[&address, "another port"]);
        refused(&[noun, "serve", "--data", data, "--listen", "127.0.0.1:0", "--metrics", &address])
            .fails(1)
            .says(&["metrics", &address, "another port"]);
        refused(&[noun, "serve", "--data", data, "--listen", "nonsense"])
            .fails(2)
            .says(&["nonsense", "HOST:PORT"]);
    }
}

#[test]
fn clients_get_the_advertised_address() {
    let folder = folder();
    let data = folder.path().join("mds");
    run(&["mds", "init", "--data", text(&data)]).ok();
    let serve = ["--json", "mds", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"];
    for wrong in ["nonsense", "mds.example.org:", ":3270", "a:0", "a:1,,b:2"] {
        let all = [&serve[..], &["--advertise", wrong]].concat();
        refused(&all).fails(2).says(&["advertise", wrong, "HOST:PORT"]);
    }
    for advertised in [Some("mds.example.org:3270"), Some("one:3270,[fd00::2]:3272"), None] {
        let mut serving = command(&serve);
        serving.args(advertised.iter().flat_map(|addresses| ["--advertise", addresses]));
        let mut daemon = Daemon::start(serving);
        let cluster = fs::read_to_string(data.join("cluster.toml")).expect("it is written at each start");
        let there = format!("mds = \"{}\"", advertised.unwrap_or(daemon.field("address")));
        assert!(cluster.contains(&there), "{cluster}");
        assert_eq!(daemon.end(Signal::Terminate), 0);
    }
}

#[test]
fn config_errors_name_key_and_line() {
    let folder = folder();
    let config = folder.path().join("daemon.toml");
    for noun in ["osd", "mds"] {
        let serve = |file: &Path| refused(&[noun, "serve", "--data", "nowhere", "--config", text(file)]);
        fs::write(&config, "listen = \"127.0.0.1:0\"\n\nconections_max = 3\n").expect("written");
        serve(&config).fails(2).says(&["daemon.toml:3", "conections_max", "config example"]);
        fs::write(&config, "listen = \"127.0.0.1:0\"\nconnections_max = \"many\"\n").expect("written");
        serve(&config).fails(2).says(&["daemon.toml:2"]);
        fs::write(&config, "listen = \n").expect("written");
        serve(&config).fails(2).says(&["daemon.toml:1"]);
        serve(&folder.path().join("absent.toml")).fails(4).says(&["absent.toml"]);
        let example = run(&["config", "example", noun]).ok();
        fs::write(&config, example.stdout).expect("written");
        // The default port may be in use on this machine.
        let options = ["--data", "nowhere", "--config", text(&config), "--listen", "127.0.0.1:0"];
        refused(&[&[noun, "serve"], &options[..]].concat()).fails(4).says(&["nowhere"]);
    }
    run(&["config", "example", "cluster"]).fails(2).says(&["osd or mds"]);
}

#[test]
fn second_daemon_on_a_folder_is_refused() {
    let mut system = System::start(1);
    serve_osd(&system.path("osd0")).fails(1).says(&["in use"]);
    serve_mds(&system.path("mds")).fails(1).says(&["in use"]);
    let put = sealstone_tests::run_with_input(system.command(&["put", "-", "/kept"]), b"kept");
    put.ok();
    assert_eq!(system.run(&["cat", "/kept"]).ok().stdout, b"kept");
    assert_eq!(system.end_osd(0, Signal::Terminate), 0);
    assert_eq!(system.end_mds(Signal::Terminate), 0);
}

/// Returns the CRC32C, computed bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 0 { 0 } else { 0x82F6_3B78 })
    })
}

/// A store of a newer format is refused with both versions, and not modified.
#[test]
fn store_of_newer_format_stays_unchanged() {
    let folder = folder();
    let data = new_osd(&folder, "newer");
    let path = data.join("store/superblock");
    let mut bytes = fs::read(&path).expect("there");
    // docs/design/store.md, "Superblock": two copies, the version at 8, the checksum of the first
    // 508 bytes behind them.
    for copy in bytes.chunks_mut(4096) {
        copy[8] = 9;
        let crc = crc32c(&copy[..508]);
        copy[508..512].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(&path, &bytes).expect("written");
    let index = fs::read(data.join("store/index.redb")).expect("there");
    serve_osd(&data).fails(1).says(&["format version 9", "up to 4", "newer program"]);
    assert!(fs::read(&path).expect("there") == bytes, "the superblock is as it was");
    assert!(fs::read(data.join("store/index.redb")).expect("there") == index, "so is the index");
}

/// A secret that is a link, or in a folder that others can write, is refused with the remedy.
#[test]
fn links_and_folders_of_others_are_refused() {
    use std::os::unix::fs::symlink;
    let folder = folder();
    let data = new_osd(&folder, "osd");
    for open in [0o777, 0o770, 0o1777] {
        mode(&data, open);
        serve_osd(&data).fails(3).says(&["lets others write it", "chmod 700"]);
    }
    mode(&data, 0o700);
    mode(folder.path(), 0o777);
    serve_osd(&data).fails(3).says(&["others can replace what is in it", "chmod o-w"]);
    mode(folder.path(), 0o700);
    mode(&data.join("store"), 0o777);
    serve_osd(&data).fails(3).says(&["store", "lets others write it", "chmod 700"]);
    mode(&data.join("store"), 0o700);
    let (key, aside) = (data.join("master.key"), folder.path().join("aside"));
    fs::rename(&key, &aside).expect("moved");
    symlink(&aside, &key).expect("linked");
    serve_osd(&data).fails(3).says(&["master.key", "symbolic link"]);

    let mds = folder.path().join("mds");
    run(&["mds", "init", "--data", text(&mds)]).ok();
    mode(&mds, 0o777);
    serve_mds(&mds).fails(3).says(&["lets others write it"]);
    mode(&mds, 0o700);
    let key = mds.join("keystore.key");
    fs::rename(&key, folder.path().join("aside2")).expect("moved");
    symlink(folder.path().join("aside2"), &key).expect("linked");
    serve_mds(&mds).fails(3).says(&["keystore.key", "symbolic link"]);

    let up = folder.path().join("up");
    fs::create_dir(&up).expect("created");
    mode(&up, 0o777);
    refused(&["up", "--data", text(&up), "--listen", "127.0.0.1:0"]).fails(3).says(&["lets others write it"]);
    refused(&["osd", "init", "--data", text(&up), "--capacity", "64M"])
        .fails(3)
        .says(&["lets others write it"]);
    refused(&["mds", "init", "--data", text(&up)]).fails(3).says(&["lets others write it"]);
}

/// A second system in a folder neither removes files of the first one nor reports another program.
#[test]
fn second_up_in_folder_is_refused() {
    let folder = folder();
    let data = folder.path().join("up");
    let up = ["--json", "up", "--data", text(&data), "--listen", "127.0.0.1:0", "--osds", "1"];
    let mut daemon = Daemon::start(command(&[&up[..], &["--capacity", "64M"]].concat()));
    refused(&up).fails(1).says(&["another cluster runs in this folder"]);
    assert_eq!(daemon.end(Signal::Terminate), 0);
    let mut again = Daemon::start(command(&up));
    assert_eq!(again.end(Signal::Terminate), 0);
}

/// The session file is at the XDG path, not in the current folder.
#[test]
fn empty_state_folder_counts_as_unset() {
    let folder = folder();
    let (home, here) = (folder.path().join("home"), folder.path().join("here"));
    fs::create_dir(&home).expect("created");
    fs::create_dir(&here).expect("created");
    let system = System::start(0);
    let secret = system.path("mds").join("admin-secret");
    let cluster = system.cluster();
    let login = ["login", "admin", "--cluster", text(&cluster), "--password-file", text(&secret)];
    for state in ["", "relative"] {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "umask 0; exec \"$0\" \"$@\"", text(sealstone_tests::binary())]).args(login);
        command.current_dir(&here).env("XDG_STATE_HOME", state).env("HOME", &home);
        CommandResult::from(command.output().expect("the binary starts")).ok();
        let session = home.join(".local/state/sealstone/session.toml");
        assert!(session.exists(), "in the home folder with XDG_STATE_HOME={state:?}");
        let folder = fs::metadata(session.parent().expect("a folder")).expect("there");
        assert_eq!(folder.permissions().mode() & 0o777, 0o700, "whatever the umask is");
        fs::remove_file(session).expect("removed");
    }
    let mut command = command(&login);
    command.current_dir(&here).env("XDG_STATE_HOME", "").env("HOME", "");
    let ended = CommandResult::from(command.output().expect("the binary starts"));
    ended.fails(2).says(&["XDG_STATE_HOME", "--session"]);
    assert_eq!(
        fs::read_dir(&here).expect("a folder").count(),
        0,
        "nothing is written into the current folder"
    );
}
