//! Clients and metadata server at devices that require CHAP, one-way or mutual, with accounts from
//! private files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sealstone_tests::{CommandResult, System, command, run, run_with_input, text};
use tempfile::TempDir;

const ACCESS: &str = r#"
[target]
user = "osd0"
secret = "what the device says"

[[initiator]]
names = ["iqn.2026-11.org.sealstone:client"]
user = "cluster"
secret = "what the cluster says"
luns = [0]
"#;

/// Returns an account for the device, and its own secret for mutual CHAP, if given.
fn account(secret: &str, device: Option<&str>) -> String {
    let mutual = device
        .map_or(String::new(), |secret| format!("target_user = \"osd0\"\ntarget_secret = \"{secret}\"\n"));
    format!(
        "[[target]]\nnames = [\"iqn.2026-11.org.sealstone:osd.*\"]\nuser = \"cluster\"\nsecret = \"{secret}\"\n{mutual}"
    )
}

fn private(folder: &TempDir, name: &str, content: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, content).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("narrowed");
    path
}

fn put(system: &System, chap: Option<&Path>, path: &str) -> CommandResult {
    let mut arguments = vec!["put", "-", path];
    if let Some(chap) = chap {
        arguments.extend(["--chap-file", text(chap)]);
    }
    run_with_input(system.command(&arguments), b"content of the file")
}

#[test]
fn device_with_chap_serves_authenticated_clients() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let access = private(&folder, "access", ACCESS);
    let (ours, theirs) = ("what the cluster says", "what the device says");
    let mutual = private(&folder, "mutual", &account(ours, Some(theirs)));
    let one_way = private(&folder, "one-way", &account(ours, None));
    let system =
        System::start_with_mds(1, "1G", &["--access-file", text(&access)], &["--chap-file", text(&mutual)]);
    put(&system, Some(&mutual), "/mutual").ok();
    put(&system, Some(&one_way), "/one-way").ok();
    assert_eq!(
        system.run(&["cat", "/mutual", "--chap-file", text(&one_way)]).ok().stdout,
        b"content of the file"
    );

    put(&system, None, "/no").fails(3).says(&["refused the login"]);
    let guessed = private(&folder, "guessed", &account("what the guest says", None));
    put(&system, Some(&guessed), "/no").fails(3).says(&["refused the login"]);
    let impostor = private(&folder, "impostor", &account(ours, Some("what it does not say")));
    put(&system, Some(&impostor), "/no").fails(3).says(&["did not authenticate"]);
    // The device authenticates itself with SHA-256 only; an initiator limited to MD5 is refused.
    let old = private(&folder, "old", &format!("algorithms = [\"md5\"]\n{}", account(ours, None)));
    put(&system, Some(&old), "/no").fails(3).says(&["refused the login"]);
    // The refusal is in the device's audit log, without a secret.
    let log = fs::read_to_string(system.path("osd0").join("audit.jsonl")).expect("readable");
    let line = log.lines().find(|line| line.contains("\"action\":\"login\"")).expect("a refused login");
    assert!(line.contains("authentication") && line.contains("127.0.0.1"), "{line}");
    assert!(!log.contains("says"), "{log}");
}

#[test]
fn invalid_chap_file_fails_first() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let system = System::start(1);
    let file = private(&folder, "chap", &account("what the cluster says", None));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("widened");
    put(&system, Some(&file), "/f").fails(3).says(&["644", "chmod 600"]);
    let file = private(&folder, "chap", &account("short", None));
    put(&system, Some(&file), "/f").fails(2).says(&["12 to 256 bytes"]);
    put(&system, Some(&folder.path().join("missing")), "/f").fails(4).says(&["missing"]);
    let data = folder.path().join("mds");
    run(&["mds", "init", "--data", text(&data)]).ok();
    let serve = command(&["mds", "serve", "--data", text(&data), "--chap-file", text(&file)]).output();
    CommandResult::from(serve.expect("the binary starts")).fails(2).says(&["12 to 256 bytes"]);
    // A device without CHAP gets no secret.
    let file = private(&folder, "chap", &account("what the cluster says", None));
    put(&system, Some(&file), "/f").ok();
}

/// The server reads its accounts at each login, so a missing one can be added while it runs.
#[test]
fn an_account_is_added_without_a_restart() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let access = private(&folder, "access", ACCESS);
    let other = account("what the cluster says", None).replace("sealstone:osd.*", "example:*");
    let chap = private(&folder, "chap", &other);
    let system = System::start_with_mds(0, "1G", &[], &["--chap-file", text(&chap)]);
    let (data, key) = (system.path("osd0"), system.path("osd0.key"));
    let init = ["osd", "init", "--data", text(&data), "--capacity", "1G", "--key-out", text(&key)];
    run(&init).ok();
    let mut serve = command(&["--json", "osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"]);
    serve.args(["--access-file", text(&access)]);
    let device = sealstone_tests::Daemon::start(serve);
    let add = || system.run(&["mds", "add-osd", device.field("url"), "--key", text(&key)]);
    add().fails(3).says(&["osd0", "refuses the login of the metadata server", "--chap-file"]);
    private(&folder, "chap", &account("what the cluster says", Some("what the device says")));
    add().ok();
    put(&system, Some(&chap), "/f").ok();
}
