//! Names are bytes: an apparent escape is literal, and characters that could deceive a terminal are
//! escaped.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

use sealstone_mds_protocol::is_printable;
use sealstone_tests::{CommandResult, Daemon, Signal, System, can_mount, command, run_with_input, text};

use super::text as path_text;

/// Distinct names that some programs treat as equal.
const NAMES: &[&[u8]] = &[
    b"a\\x2db",
    b"a-b",
    b"a\\\\b",
    b"a\\b",
    b"new\nline",
    b"new\\x0aline",
    b"\xff\xfe",
    b"\\xff\\xfe",
    "r\u{202e}gnp.exe".as_bytes(),
    "zero\u{200b}width".as_bytes(),
    "zerowidth".as_bytes(),
    "iso\u{2066}lated\u{2069}".as_bytes(),
    "line\u{2028}separator".as_bytes(),
    "caf\u{e9}".as_bytes(),
    "cafe\u{301}".as_bytes(),
    b"Case",
    b"case",
    b"-rf",
    b"*",
    b" blank ",
    b"tab\there",
    b"esc\x1b[31mred",
    "\u{9b}31m".as_bytes(),
    "nbsp\u{a0}".as_bytes(),
];

fn os(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

fn names_in(folder: &Path) -> BTreeSet<Vec<u8>> {
    let entries = fs::read_dir(folder).expect("readable");
    entries.map(|entry| entry.expect("readable").file_name().as_bytes().to_vec()).collect()
}

fn all_names() -> BTreeSet<Vec<u8>> {
    NAMES.iter().map(|name| name.to_vec()).collect()
}

/// Runs a command whose last argument is raw bytes.
fn run_at(system: &System, arguments: &[&str], last: &[u8]) -> CommandResult {
    let mut command = system.command(arguments);
    command.arg(os(last));
    run_with_input(command, b"")
}

/// Returns the bytes of a field with a name or path.
fn field(value: &serde_json::Value, key: &str) -> Vec<u8> {
    match value[format!("{key}_base64")].as_str() {
        Some(encoded) => decode_base64(encoded),
        None => value[key].as_str().expect("a string").as_bytes().to_vec(),
    }
}

fn decode_base64(text: &str) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut out) = (0u32, 0, Vec::new());
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        let digit = alphabet.iter().position(|one| *one == byte).expect("base64") as u32;
        (bits, count) = (bits << 6 | digit, count + 6);
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    out
}

/// Checks that no output reorders, hides or moves text on a terminal.
#[track_caller]
fn assert_printable(ended: &CommandResult) {
    for printed in [ended.text(), ended.stderr.clone()] {
        let bad = printed.chars().find(|c| *c != '\n' && !is_printable(*c));
        assert_eq!(bad, None, "{printed:?}");
    }
}

#[test]
fn names_that_look_alike_stay_apart() {
    let system = System::start(1);
    let tree = system.path("names");
    fs::create_dir(&tree).expect("made");
    for (index, name) in NAMES.iter().enumerate() {
        fs::write(tree.join(os(name)), index.to_string()).expect("written");
        std::os::unix::fs::symlink(os(name), tree.join(os(&[b"to ", *name].concat()))).expect("linked");
    }
    system.run(&["put", "-r", path_text(&tree), "/u"]).ok();
    let back = system.path("back");
    system.run(&["get", "-r", "/u", path_text(&back)]).ok();
    assert_eq!(names_in(&back), names_in(&tree));
    for (index, name) in NAMES.iter().enumerate() {
        assert_eq!(fs::read(back.join(os(name))).expect("there"), index.to_string().as_bytes());
        let link = fs::read_link(back.join(os(&[b"to ", *name].concat()))).expect("a link");
        assert_eq!(link.as_os_str().as_bytes(), *name);
        let path = [b"/u/", *name].concat();
        assert_eq!(run_at(&system, &["cat"], &path).ok().stdout, index.to_string().as_bytes());
    }
    // JSON reads back exactly.
    let listed = system.run(&["--json", "ls", "/u"]).ok();
    assert_printable(&listed);
    let listed = listed.json();
    let listed = listed["entries"].as_array().expect("a list");
    let found: BTreeSet<_> = listed.iter().map(|value| field(value, "path")).collect();
    assert_eq!(found, names_in(&tree));
    let links = listed.iter().filter(|value| value["kind"] == "symlink");
    assert_eq!(links.map(|value| field(value, "target")).collect::<BTreeSet<_>>(), all_names());
    // Removing one leaves the others.
    run_at(&system, &["rm"], b"/u/a\\x2db").ok();
    run_at(&system, &["cat"], b"/u/a-b").ok();
    run_at(&system, &["stat"], b"/u/a\\x2db").fails(4);
    // Displayed names can be typed with `--escaped`.
    system.run(&["--escaped", "rm", r"/u/\xff\xfe"]).ok();
    run_at(&system, &["cat"], b"/u/\\xff\\xfe").ok();
    run_at(&system, &["cat"], b"/u/\xff\xfe").fails(4);
    system.run(&["--escaped", "rm", r"/u/a\b"]).fails(2);
    run_at(&system, &["mv", "/u/a-b"], b"/u/new\\x20name").ok();
    run_at(&system, &["ln", "/u/case"], b"/u/\xf0").ok();
    run_at(&system, &["mkdir"], b"/u/\\x2f").ok();
    for path in [&b"/u/new\\x20name"[..], b"/u/\xf0", b"/u/\\x2f"] {
        run_at(&system, &["stat"], path).ok();
    }
    run_at(&system, &["stat"], b"/u/new name").fails(4);
}

#[test]
fn transfers_report_exact_paths_as_json() {
    let system = System::start(1);
    let tree = system.path("names");
    fs::create_dir(&tree).expect("made");
    for name in NAMES {
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, tree.join(os(name)), kind, mode, 0).expect("made");
    }
    let put = system.run(&["--json", "put", "-r", path_text(&tree), "/u"]);
    assert_printable(&put);
    let value = put.json();
    let skipped = value["skipped"].as_array().expect("a list").iter();
    let skipped: BTreeSet<_> = skipped.map(|value| field(value, "path")).collect();
    let paths = NAMES.iter().map(|name| tree.join(os(name)).as_os_str().as_bytes().to_vec());
    assert_eq!(skipped, paths.collect());
}

#[test]
fn shown_names_are_printable() {
    let system = System::start(1);
    let tree = system.path("shown");
    fs::create_dir(&tree).expect("made");
    for name in NAMES {
        fs::write(tree.join(os(name)), "x").expect("written");
    }
    assert_printable(&system.run(&["put", "-r", path_text(&tree), "/u"]).ok());
    assert_printable(&system.run(&["ls", "/u"]).ok());
    assert_printable(&system.run(&["ls", "-l", "/u"]).ok());
    assert_printable(&system.run(&["--json", "ls", "-l", "/u"]).ok());
    for name in NAMES {
        let path = [b"/u/", *name].concat();
        for arguments in [&["stat"][..], &["--json", "stat"], &["chmod", "600"], &["audit", "--object"]] {
            assert_printable(&run_at(&system, arguments, &path).ok());
        }
        let missing = [b"/u/missing-", *name].concat();
        for arguments in [&["cat"][..], &["--json", "cat"], &["rm"], &["get"], &["put", path_text(&tree)]] {
            let refused = run_at(&system, arguments, &missing);
            assert!(refused.code != 0, "{refused:?}");
            assert_printable(&refused);
        }
        // A local name in a message.
        let mut local = system.command(&["put"]);
        local.arg(tree.join(os(&missing[3..]))).arg("/u/");
        let refused = run_with_input(local, b"");
        assert_printable(&refused.fails(4));
    }
    // A message that repeats parts of the command line.
    let refused = system.run(&["user", "add", "al\u{202e}ice", "--password-file", "/no\u{2066}where"]);
    assert!(refused.code != 0);
    assert_printable(&refused);
    let audit = fs::read_to_string(system.path("mds").join("audit.jsonl")).expect("there");
    assert!(audit.lines().all(|line| line.chars().all(is_printable)), "{audit}");
    assert!(audit.contains("gnp.exe"), "the names are in it: {audit}");
}

#[test]
fn local_paths_that_are_not_text_work() {
    let system = System::start(1);
    let folder = system.path("folder").join(os(b"not\xfftext"));
    fs::create_dir_all(&folder).expect("made");
    let run = |arguments: &[&OsStr]| {
        let mut command = system.command(&["--json"]);
        command.args(arguments);
        run_with_input(command, b"")
    };
    let word = OsStr::new;
    let file = folder.join(os(b"file\xfe"));
    fs::write(&file, "bytes").expect("written");
    run(&[word("put"), file.as_os_str(), word("/")]).ok();
    let back = folder.join("back");
    run(&[word("get"), OsStr::from_bytes(b"/file\xfe"), back.as_os_str()]).ok();
    assert_eq!(fs::read(&back).expect("there"), b"bytes");
    let cap = folder.join("read.cap");
    let issue = [
        word("cap"),
        word("issue"),
        word("--read"),
        word("--until"),
        word("5m"),
        word("-o"),
        cap.as_os_str(),
    ];
    let issued = run(&[&issue[..], &[OsStr::from_bytes(b"/file\xfe")]].concat()).ok().json();
    assert_eq!(field(&issued, "path"), b"/file\xfe");
    run(&[word("cap"), word("get"), cap.as_os_str(), folder.join("by-cap").as_os_str()]).ok();
    assert_eq!(fs::read(folder.join("by-cap")).expect("there"), b"bytes");
    // Session, password and data folders.
    let session = folder.join("session.toml");
    let (cluster, secret) = (system.cluster(), system.path("mds").join("admin-secret"));
    let login = ["login", "admin", "--cluster", text(&cluster), "--password-file", text(&secret)].map(word);
    let login = run(&[&[word("--session"), session.as_os_str()], &login[..]].concat()).ok().json();
    assert_eq!(field(&login, "session"), session.as_os_str().as_bytes());
    let mut home = Command::new(sealstone_tests::binary());
    home.arg("whoami").env("XDG_STATE_HOME", &folder).env("SEALSTONE_LOG", "off");
    assert_eq!(CommandResult::from(home.output().expect("starts")).code, 3, "no session there");
    let data = folder.join("device");
    let init = [
        word("osd"),
        word("init"),
        word("--capacity"),
        word("64M"),
        word("--name"),
        word("d"),
        word("--data"),
    ];
    let made = run(&[&init[..], &[data.as_os_str()]].concat()).ok().json();
    assert_eq!(field(&made, "data"), data.as_os_str().as_bytes());
    let mut up = command(&["--json", "up", "--listen", "127.0.0.1:0", "--osds", "1", "--data"]);
    up.arg(folder.join("up"));
    let mut up = Daemon::start(up);
    assert_eq!(field(up.ready(), "cluster"), folder.join("up/mds/cluster.toml").as_os_str().as_bytes());
    assert_eq!(up.end(Signal::Terminate), 0);
}

#[test]
fn mount_points_that_are_not_text_work() {
    if !can_mount() {
        return;
    }
    let system = System::start(1);
    // Another mount of the machine whose path is not UTF-8.
    let other = system.path("other").join(os(b"pl\xffain"));
    fs::create_dir_all(&other).expect("made");
    rustix::mount::mount("none", &other, "tmpfs", rustix::mount::MountFlags::empty(), None).expect("mounted");
    let place = system.path("place").join(os(b"m\xfe nt"));
    fs::create_dir_all(&place).expect("made");
    run_at(&system, &["mkdir"], b"/d\xfd").ok();
    let mut mount = system.command(&["--json", "mount"]);
    mount.arg(&place).arg("--path").arg(os(b"/d\xfd"));
    let mounted = run_with_input(mount, b"").ok().json();
    assert_eq!(field(&mounted, "mountpoint"), place.as_os_str().as_bytes());
    assert_eq!(field(&mounted, "path"), b"/d\xfd");
    fs::write(place.join("file"), "through the mount").expect("written");
    let again = run_at(&system, &["mount"], place.as_os_str().as_bytes());
    assert!(again.fails(1).stderr.contains("already"));
    let ended = run_at(&system, &["--json", "umount"], place.as_os_str().as_bytes()).ok().json();
    assert_eq!(field(&ended, "mountpoint"), place.as_os_str().as_bytes());
    assert_eq!(run_at(&system, &["cat"], b"/d\xfd/file").ok().stdout, b"through the mount");
    rustix::mount::unmount(&other, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
}
