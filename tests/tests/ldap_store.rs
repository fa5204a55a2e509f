//! Metadata in a real slapd, through the real binary.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::slapd::{Slapd, WRITER_PASSWORD};
use sealstone_tests::{Daemon, Signal, System, command, run, text};

fn private(folder: &Path, name: &str, contents: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, contents).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("private");
    path
}

#[test]
fn ldap_store_survives_kills_and_migrates() {
    let mut slapd = Slapd::start();
    let url = slapd.new_store();
    let folder = tempfile::tempdir().expect("temporary folder");
    let password = private(folder.path(), "ldap.pw", &format!("{WRITER_PASSWORD}\n"));
    let meta = ["--meta", &url, "--meta-password-file", text(&password)];
    let mut system = System::start_with_init(1, &meta);
    let content = system.path("content");
    std::fs::write(&content, vec![3; 1 << 20]).expect("written");
    system.run(&["mkdir", "/Docs"]).ok();
    system.run(&["put", text(&content), "/Docs/notes.txt"]).ok();
    // The metadata server is killed, and the next one finds everything.
    system.end_mds(Signal::Kill);
    system.start_mds();
    assert_eq!(system.run(&["cat", "/Docs/notes.txt"]).ok().stdout, vec![3; 1 << 20]);
    // The LDAP server is killed and restarted: a change waits for it.
    slapd.stop();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| system.run(&["mkdir", "/meanwhile"]));
        slapd.restart();
        waiting.join().expect("it ends").ok();
    });
    system.run(&["mv", "/Docs/notes.txt", "/Docs/Notes.txt"]).ok();
    // The store moves to a file and back to another base in LDAP.
    system.end_mds(Signal::Terminate);
    let (data, export) = (system.path("mds"), system.path("meta.export"));
    let location = std::fs::read_to_string(data.join("metadata-store")).expect("the file is there");
    assert!(location.contains("ldap://") && !location.contains(WRITER_PASSWORD), "{location}");
    let exported = run(&["--json", "mds", "export", text(&export), "--data", text(&data)]).ok().json();
    let import = ["--json", "mds", "import", text(&export), "--data", text(&data)];
    run(&[&import[..], &meta].concat()).fails(1).says(&["not empty"]);
    assert_eq!(run(&import).ok().json()["records"], exported["records"]);
    system.start_mds();
    assert_eq!(system.run(&["cat", "/Docs/Notes.txt"]).ok().stdout, vec![3; 1 << 20]);
    system.run(&["mkdir", "/in-the-file"]).ok();
    system.end_mds(Signal::Terminate);
    let back = system.path("back.export");
    run(&["mds", "export", text(&back), "--data", text(&data)]).ok();
    let url = slapd.new_store();
    let meta = ["--meta", &url, "--meta-password-file", text(&password)];
    run(&[&["mds", "import", text(&back), "--data", text(&data)][..], &meta].concat()).ok();
    system.start_mds();
    system.run(&["stat", "/in-the-file"]).ok();
    assert_eq!(system.run(&["cat", "/Docs/Notes.txt"]).ok().stdout, vec![3; 1 << 20]);
    // Another metadata server on the same store takes over, and the first one reports it.
    let copy = system.path("copy");
    copy_folder(&data, &copy);
    let mut second =
        Daemon::start(command(&["--json", "mds", "serve", "--data", text(&copy), "--listen", "127.0.0.1:0"]));
    let address = second.field("address").to_owned();
    let session = system.path("second.toml");
    let secret = data.join("admin-secret");
    let mut login = command(&[
        "login",
        "admin",
        "--mds",
        &address,
        "--pin",
        system.mds().field("pin"),
        "--password-file",
        text(&secret),
    ]);
    login.env("SEALSTONE_SESSION", &session);
    sealstone_tests::CommandResult::from(login.output().expect("the binary starts")).ok();
    let ended = system.run(&["mkdir", "/by-the-first"]);
    assert_ne!(ended.code, 0, "{}", ended.text());
    let mut list = command(&["ls", "/"]);
    list.env("SEALSTONE_SESSION", &session);
    let listed = sealstone_tests::CommandResult::from(list.output().expect("the binary starts")).ok().text();
    assert!(listed.contains("meanwhile") && !listed.contains("by-the-first"), "{listed}");
    second.end(Signal::Terminate);
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("made");
    for entry in std::fs::read_dir(from).expect("read") {
        let entry = entry.expect("read");
        let there = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_folder(&entry.path(), &there);
        } else {
            std::fs::copy(entry.path(), there).expect("copied");
        }
    }
    std::fs::set_permissions(to, std::fs::metadata(from).expect("there").permissions()).expect("set");
}

#[test]
fn unusable_ldap_server_error_names_the_remedy() {
    let slapd = Slapd::start();
    let url = slapd.new_store();
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("mds");
    let good = private(folder.path(), "good.pw", WRITER_PASSWORD);
    let wrong = private(folder.path(), "wrong.pw", "guess\n");
    let init = |url: &str, more: &[&str]| {
        run(&[&["mds", "init", "--data", text(&data), "--meta", url], more].concat())
    };
    let with = ["--meta-password-file", text(&good)];
    init(&url, &[]).fails(2).says(&["password", "--meta-password-file"]);
    init("ldap://cn=a:secret@localhost/ou=f", &with).fails(2).says(&["password"]);
    init("ldap://cn=a@ldap.example.org/ou=f", &with).fails(2).says(&["CA file", "--meta-ca-file"]);
    init("ldap://localhost/ou=f", &with).fails(2).says(&["ldaps://NAME@HOST[:PORT]/BASE", "name to bind as"]);
    init(&url, &["--meta-password-file", text(&wrong)])
        .fails(3)
        .says(&["rejected the bind name or password"]);
    init(&url.replace("ou=s0,", "ou=none,"), &with).fails(1).says(&["no entry ou=none,", "docs/how-to"]);
    init(&url, &with).ok();
    let other = folder.path().join("other");
    run(&[&["mds", "init", "--data", text(&other), "--meta", &url][..], &with].concat())
        .fails(1)
        .says(&["not empty"]);
    // Several servers at a time need another store.
    let join = folder.path().join("join");
    run(&["mds", "join", "--data", text(&join), "--from", text(&data)]).fails(1).says(&["LDAP"]);
}

/// Bytes of a database that about a hundred directories fill.
const SMALL_DATABASE: u64 = 3 << 20;

#[test]
fn full_ldap_database_refuses_by_name() {
    let slapd = Slapd::start_limited("", None, SMALL_DATABASE);
    let url = slapd.new_store();
    let folder = tempfile::tempdir().expect("temporary folder");
    let password = private(folder.path(), "ldap.pw", WRITER_PASSWORD);
    let system = System::start_with_init(0, &["--meta", &url, "--meta-password-file", text(&password)]);
    system.run(&["mkdir", "/kept"]).ok();
    let long = "n".repeat(200);
    let refused = (0..100)
        .map(|round| {
            let names: Vec<String> = (0..50).map(|number| format!("/{round}-{number}-{long}")).collect();
            let names = names.iter().map(String::as_str);
            system.run(&["mkdir"].into_iter().chain(names).collect::<Vec<_>>())
        })
        .find(|ended| ended.code != 0)
        .expect("a small database takes everything");
    // One line for each directory that was not made.
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    refused.says(&["no space left", "LDAP server"]);
    system.run(&["stat", "/kept"]).ok();
}
