//! Both daemons write audit records without secrets, and continue after log rotation.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use sealstone_client::Client;
use sealstone_tests::{Signal, System, run_with_input, text};
use serde_json::Value;

/// How long a record may take to reach the file.
const WRITTEN_MAX: Duration = Duration::from_secs(100);

#[track_caller]
fn records(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // The last line may be incomplete.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect()
}

/// Waits for a record that matches.
#[track_caller]
pub(crate) fn find(path: &Path, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
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
fn metadata_server_records_changes_and_refusals() {
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
    // A client with a wrong password detects it from the challenge and sends no proof, so the
    // record is an abandoned login.
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

    // The device's log names the same session as the metadata server's log.
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
fn both_daemons_reopen_a_rotated_log() {
    let system = System::start(1);
    for (daemon, action) in [("mds", "Commit"), ("osd0", "CREATE AND WRITE")] {
        let log = system.path(daemon).join("audit.jsonl");
        run_with_input(system.command(&["put", "-", "/before"]), b"x").ok();
        find(&log, action, |record| record["action"] == action);
        let old = system.path(&format!("{daemon}.old"));
        fs::rename(&log, &old).expect("moved");
        // The writer checks the file once a second; until then, records go to the old one.
        let written = || match log.exists() {
            true => records(&log).iter().filter(|record| record["action"] == action).count(),
            false => 0,
        };
        let begin = Instant::now();
        while written() == 0 {
            assert!(begin.elapsed() < WRITTEN_MAX, "{daemon}: nothing is written to the new one");
            run_with_input(system.command(&["put", "-", "/after"]), b"x").ok();
            std::thread::sleep(Duration::from_millis(500));
        }
        let (count, seen) = (records(&old).len(), written());
        run_with_input(system.command(&["put", "-", "/last"]), b"x").ok();
        while written() == seen {
            assert!(begin.elapsed() < WRITTEN_MAX, "{daemon}: nothing more is written to the new one");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(fs::metadata(&log).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(records(&old).len(), count, "{daemon}: nothing is written to the old one");
    }
}

fn counted(records: &[Value]) -> u64 {
    records.iter().map(|record| record["count"].as_u64().unwrap_or(1)).sum()
}

/// One user sends refused requests with the longest paths as fast as possible: few bytes are
/// written, each request is counted, and another user's records are complete.
#[test]
fn flood_of_refusals_is_limited_and_counted() {
    const FLOOD: u64 = 4000;
    let mut system = System::start_with_mds(1, "1G", &[], &["--metrics", "127.0.0.1:0"]);
    let log = system.path("mds").join("audit.jsonl");
    let path = format!("/{}", vec!["x".repeat(200); 19].join("/"));
    let secret = fs::read_to_string(system.path("mds").join("admin-secret")).expect("readable");
    let (address, pin) = (system.mds().field("address").to_owned(), system.mds().field("pin").to_owned());
    tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let pin = pin.parse().expect("a pin");
        let client = Client::connect(&address, pin, "admin", secret.trim_end().as_bytes()).await;
        let client = client.expect("the password is right");
        let mut requests = tokio::task::JoinSet::new();
        let client = std::sync::Arc::new(client);
        for _ in 0..8 {
            let (client, path) = (client.clone(), path.clone());
            requests.spawn(async move {
                for _ in 0..FLOOD / 8 {
                    assert!(client.remove(&path, false).await.is_err());
                }
            });
        }
        requests.join_all().await;
    });
    let secret = private(&system, "alice-password", "correct horse battery\n");
    system.run(&["user", "add", "alice", "--password-file", text(&secret)]).ok();
    let metrics = system.mds().field("metrics").to_owned();
    let (_, page) = sealstone_tests::get(&metrics, "/metrics");
    assert!(page.contains("sealstone_mds_audit_suppressed_total"), "{page}");
    assert_eq!(system.end_mds(Signal::Terminate), 0);
    let records = records(&log);
    let removals: Vec<Value> =
        records.iter().filter(|record| record["action"] == "Remove").cloned().collect();
    assert_eq!(counted(&removals), FLOOD);
    assert!(removals.len() < 1_200, "{} lines", removals.len());
    assert!(records.iter().any(|record| record["subject"] == "alice"));
    let bytes = fs::metadata(&log).expect("there").len();
    assert!(bytes < 1 << 20, "{bytes} bytes");
}

/// Records lost on a full disk are counted over a restart, and reported by metric, log line and
/// next record.
#[test]
fn records_lost_on_full_disk_are_counted() {
    let mut system = System::start_with_mds(1, "1G", &[], &["--metrics", "127.0.0.1:0"]);
    let log = system.path("mds").join("audit.jsonl");
    // Simulates a disk that suddenly is full, without root.
    fs::rename(&log, system.path("audit-before")).expect("moved");
    std::os::unix::fs::symlink("/dev/full", &log).expect("linked");
    let lost = |system: &System| {
        let (_, page) = sealstone_tests::get(system.mds().field("metrics"), "/metrics");
        let line = page.lines().find(|line| line.starts_with("sealstone_mds_audit_lost_total "));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).expect("the metric")
    };
    let start = Instant::now();
    for n in 0.. {
        // Requests still succeed.
        system.run(&["mkdir", &format!("/d{n}")]).ok();
        if lost(&system) > 0 {
            break;
        }
        assert!(start.elapsed() < WRITTEN_MAX, "nothing is lost");
    }
    let (status, _) = sealstone_tests::get(system.mds().field("metrics"), "/healthz");
    assert_eq!(status, 503);
    system.end_mds(Signal::Kill);
    system.start_mds();
    let counted = lost(&system);
    assert!(counted > 0, "the count survives the process");
    fs::remove_file(&log).expect("removed");
    // The daemon notices a new file within a second; a record before that may be lost as well, and
    // is counted.
    system.run(&["mkdir", "/between"]).ok();
    let record = find(&log, "the loss", |record| record["verdict"] == "lost");
    assert!(record["count"].as_u64() >= Some(counted) && record["since_ms"].is_u64(), "{record}");
    system.run(&["mkdir", "/after"]).ok();
    find(&log, "what followed", |record| record["subject"] == "/after");
}
