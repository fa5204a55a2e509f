//! Transfers of files through MDS and devices as separate processes.

#[path = "files/names.rs"]
mod names;
#[path = "files/transfers.rs"]
mod transfers;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use sealstone_tests::{System, run_with_input};

/// Returns bytes that do not repeat at any block size.
fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// Files with sizes around every boundary of the layout are read back exactly.
#[test]
fn files_of_every_size_round_trip() {
    let system = System::start(3);
    system.run(&["mkdir", "/sizes"]).ok();
    for size in [0, 1, 4095, 4096, 4097, 524_287, 524_288, 524_289, 1 << 20, (3 << 20) + 17, 9 << 20] {
        let source = system.path("source");
        let content = bytes(size, size as u64);
        fs::write(&source, &content).expect("written");
        let path = format!("/sizes/{size}");
        system.run(&["put", text(&source), &path]).ok();
        assert_eq!(system.run(&["cat", &path]).ok().stdout, content, "{size} bytes through cat");
        let back = system.path("back");
        system.run(&["get", &path, text(&back)]).ok();
        assert_eq!(fs::read(&back).expect("there"), content, "{size} bytes through get");
        let stat = system.run(&["--json", "stat", &path]).ok().json()["files"][0].clone();
        assert_eq!(stat["size"], size);
        if size > 4 << 20 {
            assert!(stat["width"].as_u64() > Some(1), "a large file is striped: {stat}");
        }
    }
}

/// Pipes work in both directions, with sizes that are unknown in advance.
#[test]
fn pipes_carry_any_size_both_ways() {
    let system = System::start(2);
    for size in [0, 100, 700_000, 5 << 20] {
        let content = bytes(size, 99);
        let put = run_with_input(system.command(&["put", "-", "/piped"]), &content);
        put.ok();
        assert_eq!(system.run(&["get", "/piped", "-"]).ok().stdout, content);
    }
}

/// A whole tree is stored and fetched: names, sizes, contents.
#[test]
fn tree_round_trips() {
    let system = System::start(2);
    let tree = system.path("tree");
    fs::create_dir_all(tree.join("a/b/c")).expect("made");
    fs::create_dir_all(tree.join("empty")).expect("made");
    let names = ["one", "a/two words", "a/b/drei-ü", "a/b/c/four", "a/.hidden"];
    for (index, name) in names.iter().enumerate() {
        fs::write(tree.join(name), bytes(index * 70_001, index as u64)).expect("written");
    }
    system.run(&["put", "-r", text(&tree), "/tree"]).ok();
    let back = system.path("tree-back");
    system.run(&["get", "-r", "/tree", text(&back)]).ok();
    for name in names {
        assert_eq!(
            fs::read(back.join(name)).expect("there"),
            fs::read(tree.join(name)).expect("there"),
            "{name}"
        );
    }
    assert!(back.join("empty").is_dir());
    let listed = system.run(&["ls", "-r", "/tree"]).ok().text();
    for name in names {
        assert!(listed.contains(name), "{name} in {listed}");
    }
}

/// The commands do what their names say, with distinct exit codes for failures.
#[test]
fn verbs_and_exit_codes_keep_their_contract() {
    let system = System::start(1);
    system.run(&["mkdir", "/d"]).ok();
    system.run(&["mkdir", "/d"]).fails(1);
    system.run(&["mkdir", "-p", "/d/e/f"]).ok();
    run_with_input(system.command(&["put", "-", "/d/x"]), b"first").ok();
    run_with_input(system.command(&["put", "--no-replace", "-", "/d/x"]), b"second").fails(1);
    assert_eq!(system.run(&["cat", "/d/x"]).ok().stdout, b"first");
    run_with_input(system.command(&["put", "-", "/d/x"]), b"second").ok();
    assert_eq!(system.run(&["cat", "/d/x"]).ok().stdout, b"second");
    system.run(&["mv", "/d/x", "/d/e"]).ok();
    assert_eq!(system.run(&["cat", "/d/e/x"]).ok().stdout, b"second");
    system.run(&["cat", "/d/x"]).fails(4);
    system.run(&["stat", "/nowhere"]).fails(4);
    system.run(&["ls", "/nowhere"]).fails(4);
    system.run(&["rm", "/d"]).fails(1);
    system.run(&["rm", "-r", "/d"]).ok();
    system.run(&["ls", "/d"]).fails(4);
    assert!(
        system.run(&["ls", "/"]).ok().text().is_empty()
            || !system.run(&["ls", "/"]).ok().text().contains('d')
    );
    assert_eq!(system.run(&["no-such-verb"]).code, 2);
    let df = system.run(&["--json", "df"]).ok().json();
    assert!(df["total"].as_u64() > Some(1 << 30), "{df}");
    assert_eq!(df["devices"].as_array().map(Vec::len), Some(1), "{df}");
    // The space of a file counts soon: the server asks devices at most twice a second.
    let used = |df: &serde_json::Value| df["used"].as_u64().expect("bytes");
    run_with_input(system.command(&["put", "-", "/large"]), &[7; 32 << 20]).ok();
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let after = system.run(&["--json", "df"]).ok().json();
        if used(&after) >= used(&df) + (32 << 20) {
            break;
        }
        assert!(Instant::now() < until, "{df} {after}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let error = system.run(&["--json", "stat", "/nowhere"]);
    let error: serde_json::Value = serde_json::from_str(error.stderr.trim()).expect("one JSON line");
    assert_eq!(error["error"]["kind"], "not_found");
}

/// Accounts: a new user can log in and sees only what modes permit; wrong passwords and ended
/// sessions are refused.
#[test]
fn users_log_in_and_are_kept_apart() {
    let system = System::start(1);
    let secret = system.path("alice-password");
    fs::write(&secret, "correct horse battery staple\n").expect("written");
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("narrowed");
    system.run(&["user", "add", "alice", "--password-file", text(&secret)]).ok();
    run_with_input(system.command(&["put", "-", "/admins-own"]), b"private").ok();
    system.run(&["chmod", "600", "/admins-own"]).ok();

    let alice = system.path("alice-session.toml");
    let as_alice = |arguments: &[&str]| {
        let mut command = system.command(arguments);
        command.env("SEALSTONE_SESSION", &alice);
        run_with_input(command, b"")
    };
    let cluster = system.cluster();
    as_alice(&["whoami"]).fails(3);
    let wrong = system.path("wrong-password");
    fs::write(&wrong, "incorrect\n").expect("written");
    fs::set_permissions(&wrong, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("narrowed");
    as_alice(&["login", "alice", "--cluster", text(&cluster), "--password-file", text(&wrong)]).fails(3);
    as_alice(&["login", "nobody", "--cluster", text(&cluster), "--password-file", text(&wrong)]).fails(3);
    as_alice(&["login", "alice", "--cluster", text(&cluster), "--password-file", text(&secret)]).ok();
    assert!(as_alice(&["whoami"]).ok().text().contains("alice"));
    as_alice(&["cat", "/admins-own"]).fails(3);
    as_alice(&["user", "add", "mallory", "--password-file", text(&secret)]).fails(3);
    system.run(&["user", "disable", "alice"]).ok();
    as_alice(&["ls", "/"]).fails(3);
    as_alice(&["login", "alice", "--cluster", text(&cluster), "--password-file", text(&secret)]).fails(3);
    system.run(&["logout"]).ok();
    system.run(&["ls", "/"]).fails(3);
}

/// The certificate is pinned: another server is refused.
#[test]
fn a_server_with_another_certificate_is_refused() {
    let system = System::start(0);
    let address = system.mds().field("address").to_owned();
    let pin = format!("sha256:{}", "00".repeat(32));
    let secret = system.path("mds").join("admin-secret");
    let refused =
        system.run(&["login", "admin", "--mds", &address, "--pin", &pin, "--password-file", text(&secret)]);
    assert!(refused.fails(3).stderr.contains("certificate"));
}
