//! Transfers preserve attributes and continue after failures.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, SeekFrom, Timespec, Timestamps, XattrFlags, utimensat};
use sealstone_tests::{CommandResult, System, run_with_input};

use super::{bytes, text};

/// Properties that a copy must share with its source.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    mode: u32,
    mtime: (i64, i64),
    target: Option<PathBuf>,
    content: Option<Vec<u8>>,
    /// First name of the same file in the tree.
    first_name: Option<PathBuf>,
    /// Data ranges of a file with holes.
    data: Vec<(u64, u64)>,
}

/// Returns the data ranges of a file between holes of at least 64 KiB, ignoring single blocks.
fn data_ranges(path: &Path, size: u64) -> Vec<(u64, u64)> {
    const HOLE_MIN: u64 = 64 << 10;
    let file = File::open(path).expect("readable");
    let (mut found, mut at): (Vec<(u64, u64)>, u64) = (Vec::new(), 0);
    while at < size {
        let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(at)) else { break };
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start)).expect("a hole follows");
        match found.last_mut() {
            Some(last) if start - last.1 < HOLE_MIN => last.1 = end,
            _ => found.push((start, end)),
        }
        at = end;
    }
    // Each object of a file ends with a written byte.
    found.retain(|(start, end)| end - start > 4096);
    found
}

fn snapshot(top: &Path) -> BTreeMap<PathBuf, Node> {
    fn visit(
        top: &Path,
        path: &Path,
        firsts: &mut BTreeMap<u64, PathBuf>,
        all: &mut BTreeMap<PathBuf, Node>,
    ) {
        let metadata = fs::symlink_metadata(path).expect("there");
        let below = path.strip_prefix(top).expect("below").to_owned();
        let kind = metadata.file_type();
        let first_name = (kind.is_file() && metadata.nlink() > 1)
            .then(|| firsts.entry(metadata.ino()).or_insert_with(|| below.clone()).clone());
        let sparse = kind.is_file() && metadata.len() > 1 << 20;
        all.insert(
            below,
            Node {
                mode: if kind.is_symlink() { 0 } else { metadata.mode() & 0o7777 },
                mtime: (metadata.mtime(), metadata.mtime_nsec()),
                target: kind.is_symlink().then(|| fs::read_link(path).expect("a link")),
                content: kind.is_file().then(|| fs::read(path).expect("readable")),
                first_name,
                data: if sparse { data_ranges(path, metadata.len()) } else { Vec::new() },
            },
        );
        if kind.is_dir() {
            let mut children: Vec<_> =
                fs::read_dir(path).expect("readable").map(|entry| entry.expect("readable").path()).collect();
            children.sort();
            children.iter().for_each(|child| visit(top, child, firsts, all));
        }
    }
    let mut all = BTreeMap::new();
    visit(top, top, &mut BTreeMap::new(), &mut all);
    all
}

#[track_caller]
fn assert_same(a: &Path, b: &Path) {
    let (a, b) = (snapshot(a), snapshot(b));
    for (path, node) in &a {
        let other = b.get(path).unwrap_or_else(|| panic!("{} is missing", path.display()));
        assert_eq!((node.mode, node.mtime), (other.mode, other.mtime), "{}: mode and time", path.display());
        assert_eq!(node.target, other.target, "{}", path.display());
        assert_eq!(node.first_name, other.first_name, "{}", path.display());
        assert!(node.content == other.content, "{}: content", path.display());
        assert_eq!(node.data, other.data, "{}: holes", path.display());
    }
    assert_eq!(a.len(), b.len());
}

fn set_mtime(path: &Path, seconds: i64, nanos: i64) {
    let stamp = Timespec { tv_sec: seconds, tv_nsec: nanos as _ };
    let times = Timestamps { last_access: stamp, last_modification: stamp };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("times are set");
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
}

/// Creates a tree with everything that a backup has to preserve.
fn make_tree(top: &Path) {
    fs::create_dir_all(top.join("sub/private")).expect("made");
    fs::create_dir_all(top.join("empty")).expect("made");
    for (name, length, mode) in [
        ("plain", 10, 0o644),
        ("secret", 20, 0o600),
        ("sub/program", 5000, 0o755),
        ("sub/read-only", 1, 0o444),
        ("sub/private/group", 100_000, 0o660),
        ("sub/nothing", 0, 0o640),
    ] {
        fs::write(top.join(name), bytes(length, length as u64)).expect("written");
        chmod(&top.join(name), mode);
    }
    fs::hard_link(top.join("plain"), top.join("sub/plain-too")).expect("linked");
    fs::hard_link(top.join("plain"), top.join("zz-plain")).expect("linked");
    symlink("plain", top.join("link")).expect("linked");
    symlink("../missing", top.join("sub/dangling")).expect("linked");
    symlink("sub", top.join("to-directory")).expect("linked");
    let sparse = File::create(top.join("sparse")).expect("made");
    sparse.write_at(&bytes(100_000, 3), 0).expect("written");
    sparse.write_at(&bytes(70_000, 4), 5 << 20).expect("written");
    sparse.set_len(12 << 20).expect("grown");
    File::create(top.join("all-hole")).expect("made").set_len(3 << 20).expect("grown");
    chmod(&top.join("sub/private"), 0o700);
    chmod(&top.join("empty"), 0o1777);
    chmod(&top.join("sub"), 0o550);
    chmod(top, 0o750);
    for (at, name) in [
        "plain",
        "secret",
        "sub/program",
        "link",
        "sub/dangling",
        "sparse",
        "all-hole",
        "sub/private",
        "empty",
        "sub",
    ]
    .iter()
    .enumerate()
    {
        set_mtime(&top.join(name), 1_000_000_000 + at as i64 * 1_000_000, 123_456_789);
    }
    set_mtime(&top.join("secret"), -86_400, 5);
    set_mtime(&top.join("sub/nothing"), -1, 999_999_999);
    set_mtime(top, 981_173_106, 7);
}

fn stat(system: &System, path: &str) -> serde_json::Value {
    system.run(&["--json", "stat", path]).ok().json()["files"][0].clone()
}

fn mode_of(system: &System, path: &str) -> String {
    stat(system, path)["mode"].as_str().expect("a mode").to_owned()
}

#[test]
fn tree_keeps_modes_times_links_and_holes() {
    let system = System::start(3);
    let (tree, back) = (system.path("tree"), system.path("back"));
    make_tree(&tree);
    system.run(&["put", "-r", text(&tree), "/u"]).ok();
    system.run(&["get", "-r", "/u", text(&back)]).ok();
    assert_same(&tree, &back);
    let allocated = fs::metadata(back.join("sparse")).expect("there").blocks() * 512;
    assert!(allocated < 1 << 20, "holes stay holes: {allocated}");
    // Repeated in both directions: nothing nests, nothing is transferred, nothing changes.
    let again = system.run(&["--json", "put", "-r", "--update", text(&tree), "/u"]).ok().json();
    assert_eq!(
        (&again["files"], &again["links"], &again["bytes"]),
        (&0.into(), &0.into(), &0.into()),
        "{again}"
    );
    let again = system.run(&["--json", "get", "-r", "-u", "/u", text(&back)]).ok().json();
    assert_eq!(
        (&again["files"], &again["links"], &again["bytes"]),
        (&0.into(), &0.into(), &0.into()),
        "{again}"
    );
    system.run(&["put", "-r", text(&tree), "/u"]).ok();
    system.run(&["get", "-r", "/u", text(&back)]).ok();
    assert_same(&tree, &back);
    system.run(&["stat", "/u/tree"]).fails(4);
    // One file changed, with --update.
    fs::write(tree.join("plain"), "other").expect("written");
    let changed = system.run(&["--json", "put", "-r", "-u", text(&tree), "/u"]).ok().json();
    assert_eq!(changed["files"], 1, "{changed}");
    system.run(&["get", "-r", "-u", "/u", text(&back)]).ok();
    assert_same(&tree, &back);
}

#[test]
fn repeated_copies_go_to_one_place() {
    let system = System::start(1);
    let tree = system.path("dir");
    fs::create_dir(&tree).expect("made");
    fs::write(tree.join("f"), "1").expect("written");
    system.run(&["mkdir", "/home"]).ok();
    for _ in 0..2 {
        system.run(&["put", "-r", text(&tree), "/home"]).ok();
        system.run(&["put", "-r", text(&tree), "/home/dir"]).ok();
        system.run(&["put", "-r", text(&tree), "/copy"]).ok();
        system.run(&["put", "-r", text(&tree), "/into/"]).ok();
        system.run(&["put", "-r", "-T", text(&tree), "/itself"]).ok();
        system.run(&["put", "-r", &format!("{}/.", text(&tree)), "/contents"]).ok();
    }
    let listed = system.run(&["ls", "-r", "/"]).ok().text();
    let mut listed: Vec<&str> = listed.lines().collect();
    listed.sort_unstable();
    let expected = [
        "contents/",
        "contents/f",
        "copy/",
        "copy/f",
        "home/",
        "home/dir/",
        "home/dir/f",
        "into/",
        "into/dir/",
        "into/dir/f",
        "itself/",
        "itself/f",
    ];
    assert_eq!(listed, expected);
    let local = system.path("local");
    fs::create_dir(&local).expect("made");
    for _ in 0..2 {
        system.run(&["get", "-r", "/home/dir", text(&local)]).ok();
        system.run(&["get", "-r", "/home/dir", text(&local.join("new"))]).ok();
        system.run(&["get", "-r", "/home/dir", text(&local.join("dir"))]).ok();
    }
    assert_eq!(snapshot(&local).len(), 5, "{:?}", snapshot(&local).keys());
}

#[test]
fn private_files_stay_private() {
    let system = System::start(1);
    let (file, open) = (system.path("private"), system.path("open"));
    fs::write(&file, "mine").expect("written");
    chmod(&file, 0o600);
    fs::write(&open, "anybody's").expect("written");
    chmod(&open, 0o755);
    system.run(&["put", text(&file), "/private"]).ok();
    system.run(&["put", text(&open), "/open"]).ok();
    assert_eq!((mode_of(&system, "/private"), mode_of(&system, "/open")), ("0600".into(), "0755".into()));
    // The umask applies to single files.
    let mut command = std::process::Command::new("sh");
    let line = format!("umask 077; exec {} put {} /masked", text(sealstone_tests::binary()), text(&open));
    command.args(["-c", &line]).env("SEALSTONE_SESSION", system.path("session.toml"));
    run_with_input(command, b"").ok();
    assert_eq!(mode_of(&system, "/masked"), "0700");
    // A put keeps the mode set by chmod, and never exceeds the source's.
    system.run(&["chmod", "600", "/open"]).ok();
    system.run(&["put", text(&open), "/open"]).ok();
    assert_eq!(mode_of(&system, "/open"), "0600");
    run_with_input(system.command(&["put", "-", "/open"]), b"piped").ok();
    assert_eq!(mode_of(&system, "/open"), "0600");
    system.run(&["chmod", "644", "/private"]).ok();
    system.run(&["put", text(&file), "/private"]).ok();
    assert_eq!(mode_of(&system, "/private"), "0600");
    system.run(&["put", "--preserve", text(&open), "/open"]).ok();
    assert_eq!(mode_of(&system, "/open"), "0755");
    // The same for local files.
    let back = system.path("back");
    system.run(&["get", "/private", text(&back)]).ok();
    let local = |path: &Path| fs::metadata(path).expect("there").mode() & 0o7777;
    assert_eq!(local(&back), 0o600);
    system.run(&["get", "/open", text(&back)]).ok();
    assert_eq!(local(&back), 0o600);
    system.run(&["get", "-p", "/open", text(&back)]).ok();
    assert_eq!(local(&back), 0o755);
}

#[test]
fn replacing_keeps_attributes_of_the_target() {
    let system = System::start(1);
    let file = system.path("file");
    fs::write(&file, "one").expect("written");
    let xattr = |path: &Path, name: &str| {
        let mut value = [0; 64];
        rustix::fs::getxattr(path, name, &mut value[..]).map(|length| value[..length].to_vec()).ok()
    };
    if rustix::fs::setxattr(&file, "user.colour", b"blue", XattrFlags::empty()).is_err() {
        // A file system without such attributes.
        return;
    }
    system.run(&["put", "--xattrs", text(&file), "/f"]).ok();
    fs::write(&file, "two").expect("written");
    rustix::fs::removexattr(&file, "user.colour").expect("removed");
    system.run(&["put", text(&file), "/f"]).ok();
    let back = system.path("back");
    fs::write(&back, "older").expect("written");
    rustix::fs::setxattr(&back, "user.local", b"kept", XattrFlags::empty()).expect("set");
    system.run(&["get", "--xattrs", "/f", text(&back)]).ok();
    assert_eq!(fs::read(&back).expect("there"), b"two");
    assert_eq!(xattr(&back, "user.colour").as_deref(), Some(&b"blue"[..]));
    assert_eq!(xattr(&back, "user.local").as_deref(), Some(&b"kept"[..]));
}

#[test]
fn sources_of_one_name_are_refused_before_anything() {
    let system = System::start(1);
    for folder in ["a", "b"] {
        fs::create_dir(system.path(folder)).expect("made");
        fs::write(system.path(folder).join("x"), folder).expect("written");
    }
    system.run(&["mkdir", "/d"]).ok();
    let (a, b) = (system.path("a/x"), system.path("b/x"));
    system.run(&["put", text(&a), text(&b), "/d/"]).fails(1).says(&["/d/x", "nothing was stored"]);
    assert_eq!(system.run(&["ls", "/d"]).ok().text(), "");
    for folder in ["/p", "/q"] {
        system.run(&["mkdir", folder]).ok();
        system.run(&["put", text(&a), &format!("{folder}/x")]).ok();
    }
    let local = system.path("local");
    fs::create_dir(&local).expect("made");
    system.run(&["get", "/p/x", "/q/x", text(&local)]).fails(1).says(&["nothing was fetched"]);
    assert_eq!(snapshot(&local).len(), 1);
}

#[test]
fn links_are_stored_under_their_own_name() {
    let system = System::start(1);
    fs::write(system.path("target"), "bytes").expect("written");
    fs::create_dir(system.path("folder")).expect("made");
    fs::write(system.path("folder/in"), "in").expect("written");
    symlink("target", system.path("LINK")).expect("linked");
    symlink("folder", system.path("DIRLINK")).expect("linked");
    system.run(&["mkdir", "/d"]).ok();
    system.run(&["put", text(&system.path("LINK")), "/d/"]).ok();
    assert_eq!(system.run(&["cat", "/d/LINK"]).ok().stdout, b"bytes");
    assert_eq!(stat(&system, "/d/LINK")["kind"], "file");
    system.run(&["put", "-r", text(&system.path("DIRLINK")), "/d/"]).ok();
    let stored = stat(&system, "/d/DIRLINK");
    assert_eq!((&stored["kind"], &stored["target"]), (&"symlink".into(), &"folder".into()));
    system.run(&["put", "-r", &format!("{}/", text(&system.path("DIRLINK"))), "/followed"]).ok();
    assert_eq!(system.run(&["cat", "/followed/in"]).ok().stdout, b"in");
}

#[test]
fn one_failure_does_not_end_the_others() {
    let system = System::start(1);
    let tree = system.path("tree");
    fs::create_dir_all(tree.join("sub")).expect("made");
    for name in ["a", "blocked", "c", "sub/d"] {
        fs::write(tree.join(name), name).expect("written");
    }
    rustix::fs::mknodat(CWD, tree.join("pipe"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .expect("made");
    let _socket = std::os::unix::net::UnixListener::bind(tree.join("socket")).expect("bound");
    // A directory has the name of a file.
    system.run(&["mkdir", "-p", "/u/blocked"]).ok();
    let put = system.run(&["put", "-r", "-T", text(&tree), "/u"]);
    assert_eq!(put.code, 1, "{}", put.stderr);
    for word in [
        "blocked: is a directory",
        "pipe: skipped: is a named pipe",
        "socket: skipped: is a socket",
        "1 failed",
        "2 skipped",
    ] {
        assert!(put.stderr.contains(word), "'{word}' in {}", put.stderr);
    }
    for name in ["a", "c", "sub/d"] {
        assert_eq!(system.run(&["cat", &format!("/u/{name}")]).ok().stdout, name.as_bytes());
    }
    let json = system.run(&["--json", "put", "-r", "-T", text(&tree), "/u"]);
    assert_eq!(json.code, 1);
    let value = json.json();
    assert_eq!(
        (&value["failed_count"], &value["skipped_count"], &value["files"]),
        (&1.into(), &2.into(), &3.into())
    );
    assert!(value["failed"][0]["message"].as_str().expect("text").contains("blocked"), "{value}");
    // Several operands, one of which is missing.
    let missing = system.path("missing");
    let put = system.run(&["put", text(&missing), text(&tree.join("a")), "/u/"]);
    assert_eq!((put.code, put.stderr.contains("missing")), (1, true), "{}", put.stderr);
    // The same for get.
    let back = system.path("back");
    fs::create_dir_all(back.join("a")).expect("made");
    let get = system.run(&["get", "-r", "-T", "/u", text(&back)]);
    assert_eq!(get.code, 1, "{}", get.stderr);
    assert!(get.stderr.contains("/a: "), "{}", get.stderr);
    assert_eq!(fs::read(back.join("sub/d")).expect("there"), b"sub/d");
}

#[test]
fn fetched_trees_stay_in_the_destination() {
    let system = System::start(1);
    let tree = system.path("tree");
    fs::create_dir_all(tree.join("evil")).expect("made");
    fs::write(tree.join("evil/x"), "from the store").expect("written");
    fs::write(tree.join("file"), "from the store").expect("written");
    system.run(&["put", "-r", text(&tree), "/t"]).ok();
    let (outside, into) = (system.path("outside"), system.path("into"));
    fs::create_dir(&outside).expect("made");
    fs::write(outside.join("victim"), "untouched").expect("written");
    fs::create_dir(&into).expect("made");
    symlink(&outside, into.join("evil")).expect("linked");
    symlink(outside.join("victim"), into.join("file")).expect("linked");
    let get = system.run(&["get", "-r", "-T", "/t", text(&into)]);
    assert_eq!(get.code, 1);
    assert!(get.stderr.contains("not followed"), "{}", get.stderr);
    assert_eq!(fs::read(outside.join("victim")).expect("there"), b"untouched");
    assert_eq!(fs::read_dir(&outside).expect("readable").count(), 1);
    assert!(fs::symlink_metadata(into.join("file")).expect("there").is_file());
    // A destination that is named may be a link.
    let named = system.path("named");
    symlink(outside.join("victim"), &named).expect("linked");
    system.run(&["get", "/t/file", text(&named)]).ok();
    assert!(fs::symlink_metadata(&named).expect("there").is_symlink());
    assert_eq!(fs::read(outside.join("victim")).expect("there"), b"from the store");
    // In the store likewise: a link there is replaced and not written through.
    system.run(&["put", text(&tree.join("file")), "/kept"]).ok();
    system.run(&["mkdir", "/s"]).ok();
    system.run(&["ln", "-s", "/kept", "/s/file"]).ok();
    fs::write(tree.join("file"), "newer").expect("written");
    let put = system.run(&["put", "-r", "-T", text(&tree), "/s"]).ok();
    assert_eq!(stat(&system, "/s/file")["kind"], "file", "{}", put.stderr);
    assert_eq!(system.run(&["cat", "/kept"]).ok().stdout, b"from the store");
    // And in place of an operand.
    system.run(&["ln", "-s", "/t/evil", "/s/tree"]).ok();
    system.run(&["put", "-r", text(&tree), "/s/"]).fails(1).says(&["/s/tree: the stored symlink"]);
    system.run(&["rm", "/s/file"]).ok();
    system.run(&["ln", "-s", "/kept", "/s/file"]).ok();
    system.run(&["put", text(&tree.join("file")), "/s/"]).ok();
    assert_eq!(system.run(&["cat", "/kept"]).ok().stdout, b"from the store");
    assert_eq!(stat(&system, "/s/file")["kind"], "file");
}

#[test]
fn links_in_the_destination_are_not_followed() {
    let system = System::start(1);
    let tree = system.path("tree");
    fs::create_dir_all(tree.join("sub")).expect("made");
    fs::write(tree.join("sub/file"), "from the store").expect("written");
    fs::write(tree.join("plain"), "from the store").expect("written");
    system.run(&["put", "-r", text(&tree), "/t"]).ok();
    let (outside, into) = (system.path("outside"), system.path("into"));
    for folder in [&outside, &into] {
        fs::create_dir(folder).expect("made");
    }
    fs::write(outside.join("victim"), "untouched").expect("written");
    // An earlier get may have created them from links of the store.
    let links = || {
        let _ = fs::remove_file(into.join("plain"));
        symlink(outside.join("victim"), into.join("plain")).expect("linked");
    };
    symlink(&outside, into.join("sub")).expect("linked");
    for arguments in [&["get", "-r"][..], &["get"]] {
        links();
        let get = system.run(&[arguments, &["/t/plain", text(&into)]].concat()).ok();
        assert!(fs::symlink_metadata(into.join("plain")).expect("there").is_file(), "{}", get.stderr);
    }
    links();
    let get = system.run(&["get", "-r", "/t/sub", "/t/plain", &format!("{}/", text(&into))]);
    assert_eq!((get.code, get.stderr.contains("not followed")), (1, true), "{}", get.stderr);
    assert_eq!(fs::read(into.join("plain")).expect("there"), b"from the store");
    assert_eq!(fs::read(outside.join("victim")).expect("there"), b"untouched");
    assert_eq!(fs::read_dir(&outside).expect("readable").count(), 1);
}

#[test]
fn interrupted_transfers_give_directories_their_modes_later() {
    let system = System::start(1);
    let (tree, back) = (system.path("tree"), system.path("back"));
    fs::create_dir_all(tree.join("new")).expect("made");
    fs::create_dir(tree.join("own")).expect("made");
    for (name, mode) in [("", 0o755), ("new", 0o2750), ("own", 0o755)] {
        chmod(&tree.join(name), mode);
    }
    let wanted = |own: u32| vec![0o755, 0o750, own];
    let local = |names: &[&str]| -> Vec<u32> {
        let mode = |name: &&str| fs::metadata(back.join(name)).expect("there").mode() & 0o1777;
        names.iter().map(mode).collect()
    };
    // `kill -9` of a transfer leaves such directories; the owner made the last one private.
    for (path, mode) in [("/t", "1700"), ("/t/new", "1700"), ("/t/own", "0700")] {
        system.run(&["mkdir", path]).ok();
        system.run(&["chmod", mode, path]).ok();
    }
    system.run(&["put", "-r", "--update", "-T", text(&tree), "/t"]).ok();
    assert_eq!([mode_of(&system, "/t"), mode_of(&system, "/t/own")], ["0755", "0700"]);
    assert!(mode_of(&system, "/t/new").ends_with("750"), "{}", mode_of(&system, "/t/new"));
    system.run(&["chmod", "755", "/t/own"]).ok();
    for (name, mode) in [("", 0o1700), ("new", 0o1700), ("own", 0o700)] {
        fs::create_dir_all(back.join(name)).expect("made");
        chmod(&back.join(name), mode);
    }
    system.run(&["get", "-r", "--update", "-T", "/t", text(&back)]).ok();
    assert_eq!(local(&["", "new", "own"]), wanted(0o700));
    // And one that a signal ends while it runs.
    fs::write(tree.join("new/big"), bytes(64 << 20, 4)).expect("written");
    let mut command = system.command(&["put", "-r", "-T", text(&tree), "/u"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    let begun = Instant::now();
    while system.run(&["stat", "/u/new"]).code != 0 && begun.elapsed() < Duration::from_secs(20) {}
    let _ = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    child.wait().expect("ends");
    system.run(&["put", "-r", "--update", "-T", text(&tree), "/u"]).ok();
    assert_eq!([mode_of(&system, "/u"), mode_of(&system, "/u/own")], ["0755", "0755"]);
    assert!(mode_of(&system, "/u/new").ends_with("750"), "{}", mode_of(&system, "/u/new"));
}

#[test]
fn signal_leaves_no_temporary_entry_in_the_store() {
    const LINKS: usize = 150;
    let system = System::start(1);
    let tree = system.path("tree");
    fs::create_dir(&tree).expect("made");
    let links_to = |target: &str| {
        for number in 0..LINKS {
            let _ = fs::remove_file(tree.join(format!("l{number}")));
            symlink(target, tree.join(format!("l{number}"))).expect("linked");
        }
    };
    links_to("first");
    system.run(&["put", "-r", text(&tree), "/t"]).ok();
    for target in ["second", "third", "fourth"] {
        links_to(target);
        let mut command = system.command(&["put", "-r", "-T", text(&tree), "/t"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
        let begun = Instant::now();
        let replaced = || system.run(&["ls", "-l", "/t"]).text().contains(target);
        while !replaced() && begun.elapsed() < Duration::from_secs(20) {}
        let _ = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        child.wait().expect("ends");
        let listed = system.run(&["ls", "/t"]).ok().text();
        assert!(!listed.contains(".sealstone-"), "{listed}");
        assert_eq!(listed.lines().count(), LINKS);
    }
}

#[test]
fn sparse_file_may_be_longer_than_the_device() {
    const SIZE: u64 = 1 << 40;
    let system = System::start_with(2, "64M", &[]);
    let (sparse, back) = (system.path("sparse"), system.path("back"));
    let file = File::create(&sparse).expect("made");
    file.write_all_at(b"begin", 0).expect("written");
    file.write_all_at(b"middle", SIZE / 2).expect("written");
    file.set_len(SIZE).expect("made longer");
    system.run(&["put", text(&sparse), "/sparse"]).ok();
    system.run(&["get", "/sparse", text(&back)]).ok();
    let (got, mut middle) = (File::open(&back).expect("there"), [0; 6]);
    got.read_exact_at(&mut middle, SIZE / 2).expect("readable");
    assert_eq!((&middle, got.metadata().expect("known").len()), (b"middle", SIZE));
    assert!(got.metadata().expect("known").blocks() < 16_384, "holes stay holes");
}

#[test]
fn hard_links_are_kept_between_operands() {
    let system = System::start(1);
    let (tree, into) = (system.path("tree"), system.path("into"));
    fs::create_dir(&tree).expect("made");
    fs::write(tree.join("a"), "a").expect("written");
    fs::hard_link(tree.join("a"), tree.join("b")).expect("linked");
    system.run(&["put", "-r", text(&tree), "/t"]).ok();
    fs::create_dir(&into).expect("made");
    system.run(&["get", "-r", "/t/a", "/t/b", text(&into)]).ok();
    let inode = |name| fs::metadata(into.join(name)).expect("there").ino();
    assert_eq!(inode("a"), inode("b"));
}

#[test]
fn replaced_file_hands_on_no_capability() {
    let system = System::start(1);
    let file = system.path("file");
    fs::write(&file, "content").expect("written");
    system.run(&["put", text(&file), "/file"]).ok();
    // Version 2 with CAP_NET_RAW.
    let capability: Vec<u8> =
        [0x0200_0001u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    // Only root may set it; the rest is checked for all users.
    let _ = rustix::fs::setxattr(&file, "security.capability", &capability, XattrFlags::empty());
    rustix::fs::setxattr(&file, "user.kept", b"1", XattrFlags::empty()).expect("set");
    system.run(&["get", "/file", text(&file)]).ok();
    let value = |name: &str| rustix::fs::getxattr(&file, name, &mut [0; 64]);
    assert_eq!((value("security.capability").is_err(), value("user.kept")), (true, Ok(1)));
}

/// The group bits of a file with an access control list are its mask.
#[test]
fn mask_of_a_list_gives_no_group_rights() {
    let system = System::start(1);
    let file = system.path("listed");
    fs::write(&file, "private").expect("written");
    chmod(&file, 0o600);
    // Version 2; owner rw, user 1 r, owning group nothing, mask r, others nothing.
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in
        [(1u16, 6u16, u32::MAX), (2, 4, 1), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
    {
        list.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()).chain(id.to_le_bytes()));
    }
    rustix::fs::setxattr(&file, "system.posix_acl_access", &list, XattrFlags::empty()).expect("set");
    assert_eq!(fs::metadata(&file).expect("there").mode() & 0o777, 0o640);
    system.run(&["put", "-p", text(&file), "/listed"]).ok();
    assert_eq!(mode_of(&system, "/listed"), "0600");
}

fn temporaries(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).expect("readable");
    let names = entries.map(|entry| entry.expect("readable").file_name());
    names.filter(|name| name.to_string_lossy().starts_with(".sealstone-")).count()
}

/// Whether a get writes its own temporary file.
fn is_fetching(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).expect("readable");
    let names = entries.map(|entry| entry.expect("readable").file_name());
    names
        .filter_map(|name| name.into_string().ok())
        .any(|name| name == "back" || (name.starts_with(".sealstone-") && !name.contains("0123456789abcde")))
}

#[test]
fn signals_leave_no_temporary_files() {
    let system = System::start(1);
    // One left by a killed process, and one that another process uses.
    let folder = system.path("folder");
    fs::create_dir(&folder).expect("made");
    let old = SystemTime::now() - Duration::from_secs(3600);
    let stale = folder.join(".sealstone-0123456789abcdef");
    let used = folder.join(".sealstone-0123456789abcdee");
    let [_, used] = [stale, used].map(|path| {
        let file = File::create(path).expect("made");
        file.set_times(FileTimes::new().set_modified(old)).expect("set");
        file
    });
    rustix::fs::flock(&used, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let big = system.path("big");
    fs::write(&big, bytes(64 << 20, 9)).expect("written");
    system.run(&["put", text(&big), "/big"]).ok();
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let mut command = system.command(&["get", "/big", text(&folder.join("back"))]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
        let begun = Instant::now();
        while !is_fetching(&folder) && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let pid = child.id().to_string();
        let _ = std::process::Command::new("kill").args([&format!("-{signal}"), &pid]).status();
        let ended = CommandResult::from(child.wait_with_output().expect("ends"));
        assert!(ended.code == code || ended.code == 0, "{signal}: {} {}", ended.code, ended.stderr);
        assert_eq!(temporaries(&folder), 1, "only the one in use: {signal}");
        let _ = fs::remove_file(folder.join("back"));
    }
}

#[test]
fn excluded_and_dry_run_files_are_not_stored() {
    let system = System::start(1);
    let tree = system.path("tree");
    fs::create_dir_all(tree.join("target/deep")).expect("made");
    for name in ["a.rs", "a.o", "target/b.rs", "target/deep/c.rs"] {
        fs::write(tree.join(name), name).expect("written");
    }
    let tried = system.run(&["put", "-r", "--dry-run", text(&tree), "/t"]).ok();
    assert!(tried.stderr.contains("/t/target/deep/c.rs"), "{}", tried.stderr);
    system.run(&["stat", "/t"]).fails(4);
    system.run(&["put", "-r", "--exclude", "*.o", "--exclude", "/target", text(&tree), "/t"]).ok();
    assert_eq!(system.run(&["ls", "-r", "/t"]).ok().text(), "a.rs\n");
    system.run(&["put", "-r", text(&tree), "/t"]).ok();
    let back = system.path("back");
    system.run(&["get", "-r", "--exclude", "target", "/t", text(&back)]).ok();
    assert_eq!(snapshot(&back).len(), 3);
}

#[test]
fn times_of_files_are_kept() {
    let system = System::start(1);
    let file = system.path("old");
    fs::write(&file, "old").expect("written");
    let before_1970 = UNIX_EPOCH - Duration::new(1_000_000, 1);
    let opened = OpenOptions::new().write(true).open(&file).expect("opened");
    opened.set_times(FileTimes::new().set_modified(before_1970)).expect("set");
    system.run(&["put", text(&file), "/old"]).ok();
    assert_eq!(stat(&system, "/old")["mtime_ns"], -1_000_000_000_000_001i64);
    assert!(system.run(&["ls", "-l", "/old"]).ok().text().contains("1969-12-20"));
    let back = system.path("back");
    system.run(&["get", "/old", text(&back)]).ok();
    assert_eq!(fs::metadata(&back).expect("there").modified().expect("known"), before_1970);
}
