//! Who did what is written down by both daemons, without a secret, and goes on when the log is rotated.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use sealstone_tests::{System, run_with_input, text};
use serde_json::Value;

/// How long a record may take until it is in the file.
const WRITTEN_MAX: Duration = Duration::from_secs(10);

#[track_caller]
fn records(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // The last line may be on its way.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect()
}

/// Waits for a record of which this is true.
#[track_caller]
fn find(path: &Path, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let found = if path.exists() { records(path) } else { Vec::new() };
        if let Some(record) = found.iter().find(|record| wanted(record)) {
            return record.clone();
        }
        assert!(start.elapsed() < WRITTEN_MAX, "no record of {what} in {found:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn private(system: &System, name: &str, content: &str) -> std::path::PathBuf {
    let path = system.path(name);
    fs::write(&path, content).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("narrowed");
    path
}

#[test]
fn the_metadata_server_writes_down_who_did_what() {
    let system = System::start(1);
    let log = system.path("mds").join("audit.jsonl");
    assert_eq!(system.mds().field("audit"), text(&log));
    let secret = private(&system, "alice-password", "correct horse battery\n");
    let wrong = private(&system, "wrong-password", "incorrect\n");
    run_with_input(system.command(&["put", "-", "/x"]), b"x").ok();
    system.run(&["chmod", "600", "/x"]).ok();
    system.run(&["user", "add", "alice", "--password-file", text(&secret)]).ok();
    let as_alice = |arguments: &[&str]| {
        let mut command = system.command(arguments);
        command.env("SEALSTONE_SESSION", system.path("alice.toml"));
        run_with_input(command, b"")
    };
    let cluster = system.cluster();
    as_alice(&["login", "nobody", "--cluster", text(&cluster), "--password-file", text(&wrong)]).fails(3);
    as_alice(&["login", "alice", "--cluster", text(&cluster), "--password-file", text(&secret)]).ok();
    as_alice(&["cat", "/x"]).fails(3);
    as_alice(&["user", "list"]).fails(3);
    as_alice(&["logout"]).ok();

    let is = |record: &Value, user: &str, action: &str, verdict: &str| {
        record["user"] == user && record["action"] == action && record["verdict"] == verdict
    };
    // Who guesses learns it from the challenge and sends no proof: that is what is seen of him.
    let refused = find(&log, "a failed login", |record| is(record, "nobody", "login", "abandoned"));
    assert_eq!(refused["source"], "127.0.0.0/24", "{refused}");
    find(&log, "a login", |record| is(record, "alice", "login", "ok") && record["session"].is_string());
    find(&log, "a device", |record| is(record, "admin", "DeviceAdd", "ok") && record["subject"] == "osd0");
    find(&log, "an account", |record| {
        is(record, "admin", "UserRegisterFinish", "ok") && record["subject"] == "alice"
    });
    find(&log, "a denial", |record| is(record, "alice", "Open", "Denied") && record["subject"] == "/x");
    find(&log, "a denied look", |record| is(record, "alice", "UserList", "Denied"));
    find(&log, "a logout", |record| is(record, "alice", "logout", "ok"));

    // The device's log names the session that the metadata server's log names.
    let create =
        find(&log, "a create", |record| is(record, "admin", "Create", "ok") && record["subject"] == "/x");
    let session = create["session"].as_str().expect("the session's number").to_owned();
    let device = system.path("osd0").join("audit.jsonl");
    find(&device, "the write", |record| {
        record["action"] == "CREATE AND WRITE"
            && record["principal"].as_str().is_some_and(|principal| principal.starts_with(&session))
    });

    let all = fs::read_to_string(&log).expect("readable");
    let admin = fs::read_to_string(system.path("mds").join("admin-secret")).expect("readable");
    let key = fs::read_to_string(system.path("osd0.key")).expect("readable");
    let key =
        key.lines().find_map(|line| line.strip_prefix("master_key = ")).expect("a key").trim_matches('"');
    for hidden in ["correct horse", "incorrect", admin.trim(), key] {
        assert!(!all.contains(hidden), "a secret is in the log");
    }
    assert_eq!(fs::metadata(&log).expect("there").permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_rotated_log_is_begun_anew_by_both_daemons() {
    let system = System::start(1);
    for (daemon, action) in [("mds", "Commit"), ("osd0", "CREATE AND WRITE")] {
        let log = system.path(daemon).join("audit.jsonl");
        run_with_input(system.command(&["put", "-", "/before"]), b"x").ok();
        find(&log, action, |record| record["action"] == action);
        let old = system.path(&format!("{daemon}.old"));
        fs::rename(&log, &old).expect("moved");
        // The writer looks once a second.
        std::thread::sleep(Duration::from_millis(1500));
        let count = records(&old).len();
        run_with_input(system.command(&["put", "-", "/after"]), b"x").ok();
        find(&log, action, |record| record["action"] == action);
        assert_eq!(fs::metadata(&log).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(records(&old).len(), count, "{daemon}: nothing is written to the old one");
    }
}
