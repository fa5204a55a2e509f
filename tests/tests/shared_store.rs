//! Metadata in a real PostgreSQL, used by one server or by two, through the real binary.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sealstone_tests::postgres::{PASSWORD, Postgres};
use sealstone_tests::{CommandResult, Daemon, ServerPair, Signal, System, command, run, text};

/// Timeout; long enough for a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Creates a separate session file that knows these servers.
fn login(pair: &ServerPair, name: &str, servers: &str) -> PathBuf {
    let (session, pin) = (pair.system.path(name), pair.system.mds().field("pin").to_owned());
    let secret = pair.admin_secret();
    let arguments = ["login", "admin", "--mds", servers, "--pin", &pin, "--password-file", text(&secret)];
    in_session(&session, &arguments).ok();
    session
}

fn in_session(session: &std::path::Path, arguments: &[&str]) -> CommandResult {
    let mut command = command(arguments);
    command.env("SEALSTONE_SESSION", session);
    CommandResult::from(command.output().expect("the binary starts"))
}

/// Returns a copy of the session for another server.
fn moved(session: &std::path::Path, from: &str, to: &str) -> PathBuf {
    let there = session.with_extension("moved");
    let content = std::fs::read_to_string(session).expect("the session");
    assert!(content.contains(from), "{content}");
    std::fs::write(&there, content.replace(from, to)).expect("written");
    std::fs::set_permissions(&there, std::fs::Permissions::from_mode(0o600)).expect("private");
    there
}

#[test]
fn session_and_leadership_fail_over() {
    let mut pair = ServerPair::start(1);
    let first = pair.system.mds().field("address").to_owned();
    let at_first = login(&pair, "one.toml", &first);
    let at_second = moved(&at_first, &first, &pair.second_address);
    let file = pair.system.path("content");
    std::fs::write(&file, vec![7; 3 << 20]).expect("written");
    in_session(&at_first, &["put", text(&file), "/f"]).ok();
    assert_eq!(in_session(&at_second, &["cat", "/f"]).ok().stdout, vec![7; 3 << 20]);
    in_session(&at_second, &["put", text(&file), "/g"]).ok();
    assert_eq!(in_session(&at_first, &["cat", "/g"]).ok().stdout.len(), 3 << 20);
    // A user created at one server logs in at the other; disabled there, the user is refused here.
    let password = pair.system.path("bob.pw");
    std::fs::write(&password, "bob's own password\n").expect("written");
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).expect("private");
    in_session(&at_first, &["user", "add", "bob", "--password-file", text(&password)]).ok();
    let bob = pair.system.path("bob.toml");
    let pin = pair.system.mds().field("pin").to_owned();
    let arguments =
        ["login", "bob", "--mds", &pair.second_address, "--pin", &pin, "--password-file", text(&password)];
    in_session(&bob, &arguments).ok();
    in_session(&bob, &["whoami"]).ok();
    in_session(&at_first, &["user", "disable", "bob"]).ok();
    in_session(&bob, &["whoami"]).fails(3);
    // Without the first server the second one leads: it sets the keys of a device that is added.
    pair.system.end_mds(Signal::Kill);
    let (data, key) = (pair.system.path("late"), pair.system.path("late.key"));
    let init =
        ["osd", "init", "--data", text(&data), "--capacity", "1G", "--name", "late", "--key-out", text(&key)];
    run(&init).ok();
    let late =
        Daemon::start(command(&["--json", "osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"]));
    let pin = late.field("pin").to_owned();
    let add = ["mds", "add-osd", late.field("url"), "--key", text(&key), "--pin", &pin, "--wait", "120"];
    in_session(&at_second, &add).ok();
    // The first one restarts, and knows the device.
    pair.system.start_mds();
    assert!(in_session(&at_first, &["df"]).ok().text().contains("late"));
    in_session(&at_first, &["logout"]).ok();
    in_session(&at_second, &["ls", "/"]).fails(3);
}

/// Outcome that a client observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObservedOutcome {
    There,
    Gone,
    /// No answer: either is possible.
    Nothing,
}

/// Creates, renames and removes own directories in sequence.
fn client(
    session: &std::path::Path,
    number: usize,
    done: &AtomicUsize,
    rounds: usize,
) -> BTreeMap<String, ObservedOutcome> {
    let mut known = BTreeMap::new();
    let home = format!("/c{number}");
    let reported = |ended: &CommandResult, if_so: ObservedOutcome| {
        if ended.code == 0 { if_so } else { ObservedOutcome::Nothing }
    };
    for round in 0..rounds {
        let (made, moved) = (format!("{home}/d{round}"), format!("{home}/m{round}"));
        let ended = in_session(session, &["mkdir", &made]);
        known.insert(made.clone(), reported(&ended, ObservedOutcome::There));
        if ended.code == 0 && round % 2 == 1 {
            let ended = in_session(session, &["mv", &made, &moved]);
            known.insert(made, reported(&ended, ObservedOutcome::Gone));
            known.insert(moved.clone(), reported(&ended, ObservedOutcome::There));
            if ended.code == 0 && round % 4 == 3 {
                let ended = in_session(session, &["rm", "-r", &moved]);
                known.insert(moved, reported(&ended, ObservedOutcome::Gone));
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    known
}

#[test]
fn acknowledged_operations_survive_server_kills() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 8;
    let mut pair = ServerPair::start(1);
    let sessions: Vec<PathBuf> = (0..CLIENTS)
        .map(|number| {
            let session = login(&pair, &format!("client{number}.toml"), &pair.addresses());
            in_session(&session, &["mkdir", &format!("/c{number}")]).ok();
            session
        })
        .collect();
    let (done, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut kills = 0;
    let reported: Vec<BTreeMap<String, ObservedOutcome>> = std::thread::scope(|scope| {
        let done = &done;
        let clients: Vec<_> = sessions
            .iter()
            .enumerate()
            .map(|(number, session)| scope.spawn(move || client(session, number, done, ROUNDS)))
            .collect();
        let mut next = 0;
        // Kills by the clients' progress, not by time, so that slow machines see as many.
        while !over.load(Ordering::Relaxed) && done.load(Ordering::Relaxed) < CLIENTS * ROUNDS {
            if done.load(Ordering::Relaxed) >= next {
                next = done.load(Ordering::Relaxed) + CLIENTS;
                if kills % 2 == 0 {
                    pair.system.end_mds(Signal::Kill);
                    pair.system.start_mds();
                } else {
                    pair.kill_second();
                    pair.start_second();
                }
                kills += 1;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("a client ends")).collect()
    });
    assert!(kills >= 4, "{kills}");
    let acknowledged = reported
        .iter()
        .flat_map(BTreeMap::values)
        .filter(|reported| **reported != ObservedOutcome::Nothing)
        .count();
    assert!(acknowledged >= CLIENTS * ROUNDS / 2, "with two servers most is answered: {acknowledged}");
    for (path, reported) in reported.iter().flatten() {
        let there = in_session(&sessions[0], &["stat", path]);
        match reported {
            ObservedOutcome::There => assert_eq!(there.code, 0, "{path} was made: {}", there.stderr),
            ObservedOutcome::Gone => assert_eq!(there.code, 4, "{path} is gone: {}", there.stderr),
            ObservedOutcome::Nothing => assert!([0, 4].contains(&there.code), "{path}: {}", there.stderr),
        }
    }
}

#[test]
fn store_migrates_to_a_database_and_back() {
    let postgres = Postgres::start();
    let mut system = System::start(1);
    let content = system.path("content");
    std::fs::write(&content, vec![3; 1 << 20]).expect("written");
    system.run(&["put", text(&content), "/f"]).ok();
    let data = system.path("mds");
    let export = system.path("meta.export");
    let in_use = run(&["mds", "export", text(&export), "--data", text(&data)]);
    in_use.fails(1).says(&["in use", "stop the metadata server"]);
    system.end_mds(Signal::Terminate);
    let exported = run(&["--json", "mds", "export", text(&export), "--data", text(&data)]).ok().json();
    assert!(exported["records"].as_u64().expect("a number") > 10, "{exported}");
    assert_eq!(std::fs::metadata(&export).expect("written").permissions().mode() & 0o777, 0o600);
    let checked = run(&["--json", "mds", "import", text(&export)]).ok().json();
    assert_eq!(checked["blake3"], exported["blake3"]);
    let url = postgres.url(&postgres.database());
    let import = ["--json", "mds", "import", text(&export), "--data", text(&data), "--meta", &url];
    assert_eq!(run(&import).ok().json()["records"], exported["records"]);
    run(&import).fails(1).says(&["not empty"]);
    system.start_mds();
    assert_eq!(system.run(&["cat", "/f"]).ok().stdout, vec![3; 1 << 20]);
    system.run(&["mkdir", "/in-the-database"]).ok();
    system.end_mds(Signal::Terminate);
    let back = system.path("back.export");
    run(&["mds", "export", text(&back), "--data", text(&data)]).ok();
    run(&["mds", "import", text(&back), "--data", text(&data)]).ok();
    system.start_mds();
    assert_eq!(system.run(&["cat", "/f"]).ok().stdout, vec![3; 1 << 20]);
    system.run(&["stat", "/in-the-database"]).ok();
    // Files may be named without a folder, as in the documentation.
    system.end_mds(Signal::Terminate);
    std::fs::write(system.path("phrase"), "a long phrase for a backup").expect("written");
    std::fs::set_permissions(system.path("phrase"), std::fs::Permissions::from_mode(0o600)).expect("private");
    let backup = ["mds", "backup", "--to", "here.backup", "--backup-passphrase-file", "phrase"];
    for words in [&["mds", "export", "here.export"][..], &backup] {
        let mut here = command(&[words, &["--data", text(&data)]].concat());
        here.current_dir(system.path("."));
        CommandResult::from(here.output().expect("the binary starts")).ok();
    }
    assert!(system.path("here.export").exists() && system.path("here.backup").exists());
    system.start_mds();
    // A modified file is refused before anything is created from it.
    let mut bytes = std::fs::read(&back).expect("the export");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&back, bytes).expect("written");
    run(&["mds", "import", text(&back)]).fails(1).says(&["damaged"]);
}

#[test]
fn unusable_database_error_names_the_remedy() {
    let postgres = Postgres::start();
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("mds");
    let init = |url: &str, more: &[&str]| {
        run(&[&["mds", "init", "--data", text(&data), "--meta", url], more].concat())
    };
    init("postgres://u:secret@localhost/d", &[]).fails(2).says(&["password", "--meta-password-file"]);
    init("postgres://u@db.example.org/d", &[]).fails(2).says(&["CA file", "--meta-ca-file"]);
    init("mysql://u@localhost/d", &[]).fails(2).says(&["mysql://u@localhost/d", "postgres://"]);
    init(&postgres.url("nowhere"), &[]).fails(1).says(&["nowhere", "does not exist"]);
    run(&["mds", "init", "--data", text(&data), "--meta-ca-file", "x.pem"]).fails(2).says(&["--meta"]);
    let (database, password) = (postgres.database(), folder.path().join("pw"));
    std::fs::write(&password, "wrong\n").expect("written");
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).expect("private");
    let with = ["--meta-password-file", text(&password)];
    init(&postgres.tcp_url(&database), &with).fails(1).says(&["password"]);
    std::fs::write(&password, format!("{PASSWORD}\n")).expect("written");
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o644)).expect("public");
    init(&postgres.tcp_url(&database), &with).fails(3).says(&["chmod 600"]);
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).expect("private");
    init(&postgres.tcp_url(&database), &with).ok();
    // The folder has the location of the metadata, but not the password.
    let location = std::fs::read_to_string(data.join("metadata-store")).expect("the file is there");
    assert!(location.contains("postgres://") && !location.contains(PASSWORD), "{location}");
    init(&postgres.tcp_url(&database), &with).fails(1).says(&["set up already"]);
    let other = folder.path().join("other");
    run(&["mds", "init", "--data", text(&other), "--meta", &postgres.url(&database)])
        .fails(1)
        .says(&["not empty", "mds join"]);
    // The content of the database is useless to an attacker: keys are sealed.
    let keys = postgres.sql(&database, "SELECT count(*) FROM sealstone_metadata");
    assert!(keys.trim().parse::<u32>().expect("a number") > 3);
}

#[test]
fn server_survives_database_restart() {
    let mut pair = ServerPair::start(0);
    let session = login(&pair, "one.toml", &pair.addresses());
    in_session(&session, &["mkdir", "/before"]).ok();
    pair.postgres.kill();
    let started = Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| in_session(&session, &["mkdir", "/meanwhile"]));
        std::thread::sleep(Duration::from_millis(500));
        pair.postgres.restart();
        waiting.join().expect("it ends").ok();
    });
    assert!(started.elapsed() < PATIENCE);
    for path in ["/before", "/meanwhile"] {
        in_session(&session, &["stat", path]).ok();
    }
    let count = pair.postgres.sql(&pair.database, "SELECT count(*) FROM sealstone_format");
    assert_eq!(count.trim(), "1");
}
