//! Revocation of one file, one partition, one user, through the real binaries: from then on every
//! device refuses.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use sealstone_tests::{CommandResult, Signal, System, run_with_input, text};
use serde_json::Value;

use crate::delegated::{content, program, put};

/// Generous, because tests share two cores.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a command in another user's session.
pub(crate) fn other(system: &System, name: &str, arguments: &[&str]) -> CommandResult {
    let mut command = system.command(arguments);
    command.env("SEALSTONE_SESSION", system.path(&format!("{name}.toml")));
    CommandResult::from(command.output().expect("the binary starts"))
}

pub(crate) fn add_user(system: &System, name: &str) {
    let password = system.path(&format!("{name}.pw"));
    std::fs::write(&password, format!("{name}'s long password\n")).expect("a file");
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    system.run(&["user", "add", name, "--password-file", text(&password)]).ok();
    login(system, name).ok();
}

fn login(system: &System, name: &str) -> CommandResult {
    let password = system.path(&format!("{name}.pw"));
    let cluster = system.cluster();
    let login = ["login", name, "--cluster", text(&cluster), "--password-file", text(&password)];
    other(system, name, &login)
}

/// Creates a file with one object on each device, and a capability file for it.
fn delegate(system: &System, name: &str, path: &str) -> String {
    let cap = system.path(&format!("{name}{}.cap", path.replace('/', "-")));
    let issue = ["cap", "issue", "--read", "--until", "30m", path, "-o", text(&cap), "--force"];
    if name == "admin" {
        system.run(&issue).ok()
    } else {
        other(system, name, &issue).ok()
    };
    text(&cap).to_owned()
}

fn latest(system: &System) -> Value {
    system.run(&["--json", "revoke", "--list"]).ok().json()["revocations"][0].clone()
}

#[test]
fn file_revocation_reaches_every_device() {
    let system = System::start(3);
    let bytes = content(3_500_000);
    put(&system, "/a", &bytes);
    put(&system, "/b", &bytes);
    let (a, b) = (delegate(&system, "admin", "/a"), delegate(&system, "admin", "/b"));
    assert!(program(&["cap", "get", &a]).ok().stdout == bytes);
    let reported = system.run(&["--json", "revoke", "--object", "/a"]).ok().json();
    let revocation = &reported["revocation"];
    assert_eq!((&revocation["open"], &revocation["waiting"]), (&Value::from(0), &Value::Array(Vec::new())));
    assert!(
        revocation["objects"].as_u64() >= Some(3) && revocation["last_refusal_ms"].is_u64(),
        "{reported}"
    );
    assert!(reported["elapsed_ms"].is_f64());
    program(&["cap", "get", &a]).fails(3);
    assert!(program(&["cap", "get", &b]).ok().stdout == bytes, "another file's go on");
    // Clients with rights get new credentials; so do files that are written later.
    assert!(system.run(&["cat", "/a"]).ok().stdout == bytes);
    let again = delegate(&system, "admin", "/b");
    assert!(program(&["cap", "get", &again]).ok().stdout == bytes);
    put(&system, "/a", b"new");
    assert_eq!(system.run(&["cat", "/a"]).ok().stdout, b"new");
    // Its owner may revoke, others may not.
    add_user(&system, "bob");
    other(&system, "bob", &["revoke", "--object", "/a"]).fails(3);
    other(&system, "bob", &["revoke", "--user", "admin"]).fails(3);
    other(&system, "bob", &["revoke", "--list"]).fails(3);
    run_with_input(
        {
            let mut command = system.command(&["put", "-", "/bobs"]);
            command.env("SEALSTONE_SESSION", system.path("bob.toml"));
            command
        },
        b"his own",
    )
    .ok();
    let his = delegate(&system, "bob", "/bobs");
    other(&system, "bob", &["revoke", "--object", "/bobs"]).ok();
    program(&["cap", "get", &his]).fails(3);
    system.run(&["revoke", "--object", "/nowhere"]).fails(4);
    system.run(&["revoke", "--user", "nobody"]).fails(4);
    assert_eq!(system.run(&["revoke"]).code, 2);
}

#[test]
fn a_partitions_credentials_end_with_its_key() {
    let system = System::start(2);
    put(&system, "/a", b"0123456789");
    let cap = delegate(&system, "admin", "/a");
    program(&["cap", "get", &cap]).ok();
    let reported = system.run(&["--json", "revoke", "--partition", "0x10000"]).ok().json();
    assert!(reported["elapsed_ms"].is_f64() && reported["open"] == 0, "{reported}");
    program(&["cap", "get", &cap]).fails(3);
    assert_eq!(system.run(&["cat", "/a"]).ok().stdout, b"0123456789");
    system.run(&["revoke", "--partition", "0x99999"]).fails(4);
}

#[test]
fn user_revocation_reaches_every_device() {
    let system = System::start(3);
    add_user(&system, "bob");
    let bytes = content(3_500_000);
    put(&system, "/shared", &bytes);
    put(&system, "/mine", &bytes);
    system.run(&["chmod", "644", "/shared"]).ok();
    let (his, mine) = (delegate(&system, "bob", "/shared"), delegate(&system, "admin", "/mine"));
    let shown = program(&["--json", "cap", "show", &his]).ok().json();
    let devices: std::collections::BTreeSet<u64> = shown["capabilities"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["device"].as_u64())
        .collect();
    assert_eq!(devices.len(), 3, "one on each device: {shown}");
    assert!(program(&["cap", "get", &his]).ok().stdout == bytes);
    let reported = system.run(&["--json", "user", "disable", "bob"]).ok().json();
    assert!(
        reported["revocation"]["last_refusal_ms"].is_u64() && reported["revocation"]["complete"] == true,
        "{reported}"
    );
    // Each unit of the stripe is on another device, and each device refuses.
    let unit = 1 << 20;
    for device in 0..3u64 {
        let range = format!("{}..{}", device * unit, device * unit + 10);
        program(&["cap", "get", &his, "-", "--range", &range]).fails(3);
    }
    assert!(program(&["cap", "get", &mine]).ok().stdout == bytes, "nobody else's");
    assert!(system.run(&["cat", "/shared"]).ok().stdout == bytes);
    login(&system, "bob").fails(3);
    // Enabled again, the user gets new credentials; the old ones stay revoked.
    system.run(&["user", "enable", "bob"]).ok();
    login(&system, "bob").ok();
    assert!(other(&system, "bob", &["cat", "/shared"]).ok().stdout == bytes);
    program(&["cap", "get", &his]).fails(3);
}

/// The metadata server is killed while two devices are down: it continues after its restart, and
/// revokes at each device when it is up.
#[test]
fn revocation_continues_after_a_kill() {
    let mut system = System::start(3);
    add_user(&system, "bob");
    let bytes = content(3_500_000);
    put(&system, "/shared", &bytes);
    system.run(&["chmod", "644", "/shared"]).ok();
    let cap = delegate(&system, "bob", "/shared");
    for device in [1, 2] {
        system.end_osd(device, Signal::Kill);
    }
    // The account is disabled even if devices are down: they are named, and only a command that
    // waits for them fails.
    let reported = system.run(&["--json", "user", "disable", "bob"]).ok().json();
    let pending = reported["pending"].as_array().expect("a list").clone();
    assert!(!pending.is_empty() && pending.iter().all(|one| one["objects"].as_u64() > Some(0)), "{reported}");
    assert_eq!(
        (&reported["enabled"], &reported["revocation"]["done_ms"]),
        (&Value::from(false), &Value::Null)
    );
    login(&system, "bob").fails(3);
    let at_once = system.run(&["--json", "user", "disable", "bob", "--no-wait"]).ok().json();
    assert!(at_once["revocation"]["done_ms"].is_null(), "{at_once}");
    let waiting = system.run(&["--quiet", "user", "disable", "bob", "--wait", "3"]);
    waiting.fails(1).says(&["are still accepted; waiting for", "--list"]);
    let before = latest(&system);
    assert!(before["done_ms"].is_null() && before["open"].as_u64() > Some(0), "{before}");
    system.end_mds(Signal::Kill);
    system.start_mds();
    let after = latest(&system);
    assert_eq!((&after["id"], &after["what"]), (&before["id"], &before["what"]));
    // The running device has refused since before the kill; the others must, as soon as they are
    // up.
    let unit = 1 << 20;
    system.start_osd(1);
    let until = |what: &str, done: &dyn Fn(&Value) -> bool| {
        let started = Instant::now();
        loop {
            let now = latest(&system);
            if done(&now) {
                return now;
            }
            assert!(started.elapsed() < PATIENCE, "{what}: {now}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    until("one device waits", &|now| now["waiting"].as_array().is_some_and(|list| list.len() == 1));
    system.start_osd(2);
    let started = Instant::now();
    let done = loop {
        let now = latest(&system);
        if now["done_ms"].is_u64() {
            break now;
        }
        assert!(started.elapsed() < PATIENCE, "{now}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!((&done["open"], &done["collecting"]), (&Value::from(0), &Value::from(false)));
    for device in 0..3u64 {
        let range = format!("{}..{}", device * unit, device * unit + 10);
        program(&["cap", "get", &cap, "-", "--range", &range]).fails(3);
    }
    assert!(system.run(&["cat", "/shared"]).ok().stdout == bytes);
}

/// A logout can revoke the session's credentials; that continues without the client.
#[test]
fn logout_revokes_only_the_sessions_credentials() {
    let system = System::start(2);
    add_user(&system, "bob");
    add_user(&system, "carol");
    let bytes = content(3_500_000);
    for path in ["/a", "/b"] {
        put(&system, path, &bytes);
        system.run(&["chmod", "644", path]).ok();
    }
    let (his, hers) = (delegate(&system, "bob", "/a"), delegate(&system, "carol", "/b"));
    assert!(program(&["cap", "get", &his]).ok().stdout == bytes);
    // Without the flag they stay valid.
    let reported = other(&system, "bob", &["--json", "logout"]).ok().json();
    assert_eq!(reported, serde_json::json!({ "user": "bob", "revocation": null }));
    assert!(program(&["cap", "get", &his]).ok().stdout == bytes);
    login(&system, "bob").ok();
    let second = delegate(&system, "bob", "/a");
    let reported = other(&system, "bob", &["--json", "logout", "--revoke"]).ok().json();
    let revocation = &reported["revocation"];
    assert!(revocation["objects"].as_u64() > Some(0) && revocation["until_ms"].is_u64(), "{reported}");
    assert_eq!(revocation["complete"], true, "{reported}");
    other(&system, "bob", &["whoami"]).fails(3);
    let started = Instant::now();
    loop {
        let now = latest(&system);
        assert!(now["what"].as_str().is_some_and(|what| what.starts_with("session ")), "{now}");
        if now["done_ms"].is_u64() {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{now}");
        std::thread::sleep(Duration::from_millis(100));
    }
    program(&["cap", "get", &second]).fails(3);
    assert!(program(&["cap", "get", &hers]).ok().stdout == bytes, "another user's go on");
    // The account is not disabled.
    login(&system, "bob").ok();
    assert!(other(&system, "bob", &["cat", "/a"]).ok().stdout == bytes);
    let nothing = other(&system, "carol", &["logout"]).ok();
    drop(nothing);
    login(&system, "carol").ok();
    let reported = other(&system, "carol", &["--json", "logout", "--revoke"]).ok().json();
    assert_eq!(
        (&reported["revocation"]["objects"], &reported["revocation"]["until_ms"]),
        (&Value::from(0), &Value::Null)
    );
}

/// Issued credentials are known after a kill of the server, so that they can be revoked.
#[test]
fn restarted_server_revokes_earlier_credentials() {
    let mut system = System::start(1);
    add_user(&system, "bob");
    put(&system, "/shared", b"0123456789");
    system.run(&["chmod", "644", "/shared"]).ok();
    let cap = delegate(&system, "bob", "/shared");
    system.end_mds(Signal::Kill);
    system.start_mds();
    let reported = system.run(&["--json", "revoke", "--user", "bob"]).ok().json();
    assert_eq!(
        (&reported["revocation"]["complete"], &reported["revocation"]["objects"]),
        (&Value::from(true), &Value::from(1))
    );
    program(&["cap", "get", &cap]).fails(3);
    // The account is not disabled: it gets new credentials.
    assert_eq!(other(&system, "bob", &["cat", "/shared"]).ok().stdout, b"0123456789");
}

#[test]
fn grant_log_lists_users_with_access() {
    let mut system = System::start(1);
    add_user(&system, "bob");
    put(&system, "/f", b"0123456789");
    system.run(&["chmod", "600", "/f"]).ok();
    other(&system, "bob", &["cat", "/f"]).fails(3);
    let cap = delegate(&system, "admin", "/f");
    let principal = program(&["--json", "cap", "show", &cap]).ok().json()["principal"].clone();
    system.end_mds(Signal::Kill);
    system.start_mds();
    system.run(&["revoke", "--object", "/f"]).ok();
    program(&["cap", "get", &cap]).fails(3);
    let log = system.path("osd0").join("audit.jsonl");
    let started = Instant::now();
    let entries = loop {
        let audit = ["--json", "audit", "--object", "/f", "--device-log", text(&log)];
        let entries = system.run(&audit).ok().json()["entries"].as_array().expect("a list").clone();
        let refused = entries.iter().any(|one| {
            one["kind"] == "delegate"
                && one["principal"] == principal
                && one["devices"]["refused"].as_u64() > Some(0)
        });
        if refused {
            break entries;
        }
        assert!(started.elapsed() < PATIENCE, "{entries:?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let of = |kind: &str| entries.iter().filter(|one| one["kind"] == kind).cloned().collect::<Vec<_>>();
    assert_eq!(of("create")[0]["user"], "admin");
    assert_eq!(of("create")[0]["devices"]["done"].as_u64().map(|done| done > 0), Some(true), "{entries:?}");
    assert_eq!(of("refused")[0]["user"], "bob");
    assert_eq!(of("delegate")[0]["permissions"], serde_json::json!(["read"]));
    let only = system.run(&["--json", "audit", "--object", "/f", "--user", "bob"]).ok().json();
    assert!(
        only["entries"]
            .as_array()
            .is_some_and(|list| list.iter().all(|one| one["user"] == "bob") && list.len() == 1)
    );
    let none = system.run(&["--json", "audit", "--object", "/f", "--until", "1h"]).ok().json();
    assert_eq!(none["entries"], serde_json::json!([]));
    other(&system, "bob", &["audit", "--object", "/f"]).fails(3);
    system.run(&["audit", "--object", "/nowhere"]).fails(4);
    let folder = system.path("mds").join("issued");
    for entry in std::fs::read_dir(&folder).expect("the record") {
        let mode = entry.expect("an entry").metadata().expect("its mode").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

/// The table of issued credentials is full of one user's: another user's are revoked by object, the
/// user's own by new keys.
#[test]
fn flood_of_one_user_preserves_complete_revocation() {
    let system = System::start_with_mds(1, "1G", &[], &["--issued-max", "1024", "--metrics", "127.0.0.1:0"]);
    for name in ["bob", "eve"] {
        add_user(&system, name);
    }
    // Two objects: a revocation of one user's credentials changes the tags of that user's objects
    // only.
    for path in ["/for-bob", "/for-eve"] {
        put(&system, path, b"0123456789");
        system.run(&["chmod", "644", path]).ok();
    }
    let of_bob = delegate(&system, "bob", "/for-bob");
    let of_eve = delegate(&system, "eve", "/for-eve");
    system.run(&["mkdir", "/eve"]).ok();
    system.run(&["chown", "eve", "/eve"]).ok();
    let folder = system.path("many");
    std::fs::create_dir(&folder).expect("a folder");
    for number in 0..1_200 {
        std::fs::write(folder.join(number.to_string()), b"x").expect("a file");
    }
    other(&system, "eve", &["put", "-r", text(&folder), "/eve"]).ok();
    let dropped = system.metric("sealstone_mds_issued_credentials_dropped_total", |_| true);
    assert!(dropped > 0, "the table is full");

    let reported = system.run(&["--json", "revoke", "--user", "bob"]).ok().json();
    let revocation = &reported["revocation"];
    assert_eq!(
        (&revocation["complete"], &revocation["objects"]),
        (&Value::from(true), &Value::from(1)),
        "{reported}"
    );
    assert_eq!(revocation["keys"], 0, "{reported}");
    program(&["cap", "get", &of_bob]).fails(3);
    // The logout of eve cannot revoke all credentials of eve, and reports it; the administrator
    // can.
    program(&["cap", "get", &of_eve]).ok();
    other(&system, "eve", &["logout", "--revoke"]).fails(1).says(&["not all of its credentials are listed"]);
    let reported = system.run(&["--json", "revoke", "--user", "eve"]).ok().json();
    let revocation = &reported["revocation"];
    assert_eq!(
        (&revocation["complete"], &revocation["keys"]),
        (&Value::from(true), &Value::from(1)),
        "{reported}"
    );
    assert_eq!(
        (&revocation["keys_open"], revocation["done_ms"].is_u64()),
        (&Value::from(0), true),
        "{reported}"
    );
    program(&["cap", "get", &of_eve]).fails(3);
    assert_eq!(system.run(&["cat", "/for-eve"]).ok().stdout, b"0123456789");
}
