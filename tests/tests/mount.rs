//! A mount as programs use it: the real binary, a real mount, the programs of this machine.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#[path = "mount/identity.rs"]
mod identity;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use sealstone_tests::{Mounted, Signal, System, can_mount, is_installed, text};

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

/// Runs a shell script in a folder and returns its standard output.
#[track_caller]
fn sh(folder: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).current_dir(folder).output().expect("sh runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {stderr}{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn the_tools_of_every_day_work() {
    if !can_mount() {
        return;
    }
    let system = System::start(3);
    let mount = Mounted::at(&system, "mnt");
    let source = system.path("source");
    fs::create_dir_all(source.join("a/b")).unwrap();
    fs::write(source.join("a/one"), bytes(70_001, 1)).unwrap();
    fs::write(source.join("a/b/two"), bytes(3 << 20, 2)).unwrap();
    fs::write(source.join("empty"), b"").unwrap();
    sh(mount.place(), &format!("cp -r {} tree", text(&source)));
    sh(mount.place(), &format!("diff -r {} tree", text(&source)));
    assert_eq!(names(&mount.path("tree")), ["a", "empty"]);
    assert_eq!(sh(mount.place(), "find tree -type f | sort"), "tree/a/b/two\ntree/a/one\ntree/empty\n");
    sh(mount.place(), "mv tree/a/one moved && mv tree other && rm other/empty");
    assert_eq!(fs::read(mount.path("moved")).unwrap(), bytes(70_001, 1));
    sh(mount.place(), "dd if=/dev/zero of=zeros bs=64k count=100 conv=fsync 2>/dev/null");
    assert_eq!(fs::metadata(mount.path("zeros")).unwrap().len(), 6_553_600);
    sh(mount.place(), "rm -r other && rm moved zeros");
    assert!(names(mount.place()).is_empty());
    assert!(sh(mount.place(), "df -k .").contains("sealstone:/"));
}

#[test]
fn mount_and_command_line_share_files() {
    if !can_mount() {
        return;
    }
    let system = System::start(3);
    let mount = Mounted::at(&system, "mnt");
    for size in [0, 1, 4096, 524_289, (9 << 20) + 5] {
        let content = bytes(size, size as u64);
        fs::write(mount.path("from-mount"), &content).unwrap();
        assert_eq!(system.run(&["cat", "/from-mount"]).ok().stdout, content, "{size} bytes");
        let local = system.path("local");
        fs::write(&local, &content).unwrap();
        system.run(&["put", text(&local), &format!("/from-command-{size}")]).ok();
        assert_eq!(fs::read(mount.path(&format!("from-command-{size}"))).unwrap(), content, "{size} bytes");
    }
}

#[test]
fn bytes_are_where_they_were_written() {
    if !can_mount() {
        return;
    }
    let system = System::start(3);
    let mount = Mounted::at(&system, "mnt");
    let path = mount.path("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let mut model: Vec<u8> = Vec::new();
    let mut state = 7u64;
    for step in 0..300u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (at, length) = ((state >> 20) as usize % 3_000_000, (state >> 50) as usize % 40_000 + 1);
        match step % 10 {
            0..=6 => {
                let data = bytes(length, step);
                file.write_all_at(&data, at as u64).unwrap();
                model.resize(model.len().max(at + length), 0);
                model[at..at + length].copy_from_slice(&data);
            }
            7 if step % 20 == 7 => {
                file.set_len(at as u64).unwrap();
                model.resize(at, 0);
            }
            8 => file.sync_data().unwrap(),
            _ => {
                let mut read = vec![0; length];
                let count = file.read_at(&mut read, at as u64).unwrap();
                let expected = model.get(at..).unwrap_or_default();
                let expected = &expected[..expected.len().min(length)];
                assert!(read[..count] == *expected, "step {step}: {count} bytes at {at}");
            }
        }
    }
    drop(file);
    assert!(fs::read(&path).unwrap() == model, "the whole file");
    assert!(system.run(&["cat", "/file"]).ok().stdout == model, "the whole file for others");
}

#[test]
fn write_after_truncation_survives_cache_eviction() {
    if !can_mount() {
        return;
    }
    let system = System::start(2);
    let mount = Mounted::at(&system, "mnt");
    let path = mount.path("file");
    fs::write(&path, bytes(2_000_000, 1)).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(500_000).unwrap();
    drop(file);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let data = bytes(70_000, 2);
    file.write_all_at(&data, 1_500_000).unwrap();
    // Then nothing is cached here, and it is read from the devices.
    file.sync_data().unwrap();
    drop(file);
    let expected = [&bytes(2_000_000, 1)[..500_000], &vec![0; 1_000_000], &data].concat();
    assert!(system.run(&["cat", "/file"]).ok().stdout == expected, "for others");
    let mut read = vec![0; expected.len()];
    File::open(&path).unwrap().read_exact_at(&mut read, 0).unwrap();
    assert!(read == expected, "here");
}

#[test]
fn appends_holes_and_truncations_work() {
    if !can_mount() {
        return;
    }
    let system = System::start(2);
    let mount = Mounted::at(&system, "mnt");
    let path = mount.path("log");
    for line in 0..50 {
        let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        writeln!(file, "line {line}").unwrap();
    }
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 50);
    assert!(text.ends_with("line 49\n"));
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.set_len(10).unwrap();
    file.set_len(100).unwrap();
    let mut all = Vec::new();
    (&file).read_to_end(&mut all).unwrap();
    assert_eq!(all, [&text.as_bytes()[..10], &[0; 90]].concat(), "what was cut off does not come back");
    file.write_all_at(b"end", 5 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (5 << 20) + 3);
    drop(file);
    let mut file = File::open(&path).unwrap();
    file.seek(SeekFrom::Start(1 << 20)).unwrap();
    let mut hole = vec![1; 1000];
    file.read_exact(&mut hole).unwrap();
    assert!(hole.iter().all(|byte| *byte == 0));
    fs::write(&path, b"short").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"short");
}

#[test]
fn links_names_and_attributes_follow_posix() {
    if !can_mount() {
        return;
    }
    let system = System::start(1);
    let mount = Mounted::at(&system, "mnt");
    let at = |name: &str| mount.path(name);
    fs::write(at("file"), b"x").unwrap();
    fs::hard_link(at("file"), at("second")).unwrap();
    let (first, second) = (fs::metadata(at("file")).unwrap(), fs::metadata(at("second")).unwrap());
    assert_eq!((first.ino(), first.nlink()), (second.ino(), 2));
    fs::write(at("second"), b"through the other name").unwrap();
    assert_eq!(fs::read(at("file")).unwrap(), b"through the other name");
    fs::remove_file(at("file")).unwrap();
    assert_eq!(fs::metadata(at("second")).unwrap().nlink(), 1);
    symlink("second", at("link")).unwrap();
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("second"));
    assert_eq!(fs::read(at("link")).unwrap(), b"through the other name");
    fs::set_permissions(at("second"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(at("second")).unwrap().mode() & 0o7777, 0o640);
    sh(mount.place(), "touch -d '2001-02-03 04:05:06.789 UTC' second; mkfifo pipe");
    let metadata = fs::metadata(at("second")).unwrap();
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (981_173_106, 789_000_000));
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&fs::metadata(at("pipe")).unwrap().file_type()));
    let strange = std::ffi::OsStr::from_bytes(b"a\xff \n\\\"'*");
    fs::write(mount.place().join(strange), b"s").unwrap();
    assert!(fs::read_dir(mount.place()).unwrap().any(|entry| entry.unwrap().file_name() == strange));
    let longest = "n".repeat(255);
    fs::write(at(&longest), b"l").unwrap();
    assert_eq!(fs::read(at(&longest)).unwrap(), b"l");
    let longer = fs::write(at(&"n".repeat(256)), b"l").unwrap_err();
    assert_eq!(longer.raw_os_error(), Some(rustix::io::Errno::NAMETOOLONG.raw_os_error()));
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/in"), b"").unwrap();
    assert_eq!(fs::remove_dir(at("d")).unwrap_err().kind(), std::io::ErrorKind::DirectoryNotEmpty);
    fs::write(at("new"), b"new").unwrap();
    fs::rename(at("new"), at("second")).unwrap();
    assert_eq!(fs::read(at("second")).unwrap(), b"new", "a rename takes the place of what was there");
}

#[test]
fn unlinked_file_lives_while_open() {
    if !can_mount() {
        return;
    }
    let system = System::start(1);
    let mount = Mounted::at(&system, "mnt");
    let path = mount.path("file");
    fs::write(&path, bytes(100_000, 3)).unwrap();
    let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(b"and more").unwrap();
    file.sync_all().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut all = Vec::new();
    file.read_to_end(&mut all).unwrap();
    assert!(all == [&bytes(100_000, 3)[..], b"and more"].concat());
}

#[test]
fn extended_attributes_are_kept() {
    if !can_mount() || !is_installed("python3") {
        return;
    }
    let system = System::start(1);
    let mount = Mounted::at(&system, "mnt");
    let script = "
import os
open('f', 'w').close()
os.setxattr('f', 'user.color', b'green')
os.setxattr('f', 'user.empty', b'')
assert sorted(n for n in os.listxattr('f') if n.startswith('user.')) == ['user.color', 'user.empty']
assert os.getxattr('f', 'user.color') == b'green'
os.removexattr('f', 'user.color')
try:
    os.getxattr('f', 'user.color')
    raise SystemExit('it is still there')
except OSError as error:
    assert error.errno == 61, error
try:
    os.setxattr('f', 'user.empty', b'x', os.XATTR_CREATE)
    raise SystemExit('made twice')
except FileExistsError:
    pass
";
    let output = Command::new("python3")
        .arg("-c")
        .arg(script)
        .current_dir(mount.place())
        .output()
        .expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn closed_file_is_visible_on_another_mount() {
    if !can_mount() {
        return;
    }
    let system = System::start(2);
    let one = Mounted::at(&system, "one");
    let two = Mounted::with(&system, "two", &["--attr-timeout", "0"]);
    for round in 0..20u64 {
        let content = bytes(50_000 + round as usize * 77_777, round);
        fs::write(one.path("file"), &content).unwrap();
        assert!(fs::read(two.path("file")).unwrap() == content, "round {round}");
        fs::write(two.path(&format!("from-two-{round}")), &content).unwrap();
        assert!(fs::read(one.path(&format!("from-two-{round}"))).unwrap() == content, "round {round}");
    }
    fs::remove_file(one.path("file")).unwrap();
    assert!(!two.path("file").exists());
    let open = File::open(two.path("from-two-0")).unwrap();
    fs::remove_file(one.path("from-two-0")).unwrap();
    let mut held = Vec::new();
    (&open).read_to_end(&mut held).unwrap();
    assert!(held == bytes(50_000, 0), "a file that is open elsewhere stays");
}

#[test]
fn locks_hold_between_mounts() {
    if !can_mount() || !is_installed("python3") {
        return;
    }
    let system = System::start(1);
    let one = Mounted::at(&system, "one");
    let two = Mounted::at(&system, "two");
    let script = "
import fcntl, os, sys, threading, time
one, two = sys.argv[1:]
a = os.open(one + '/f', os.O_RDWR | os.O_CREAT)
b = os.open(two + '/f', os.O_RDWR)
def refused(lock):
    try:
        lock()
    except BlockingIOError:
        return
    raise SystemExit('it was given twice')
now = fcntl.LOCK_EX | fcntl.LOCK_NB
fcntl.lockf(a, now, 10, 0)
refused(lambda: fcntl.lockf(b, now, 5, 5))
fcntl.lockf(b, now, 10, 10)
fcntl.lockf(a, fcntl.LOCK_UN, 10, 0)
fcntl.lockf(b, now, 5, 5)
fcntl.lockf(b, fcntl.LOCK_UN)
fcntl.flock(a, now)
refused(lambda: fcntl.flock(b, now))
threading.Timer(0.5, lambda: os.close(a)).start()
fcntl.flock(b, fcntl.LOCK_EX)
";
    let output = Command::new("python3")
        .args(["-c", script])
        .args([one.place(), two.place()])
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn many_writers_do_not_disturb_each_other() {
    if !can_mount() {
        return;
    }
    let system = System::start(3);
    let mount = Mounted::at(&system, "mnt");
    let shared = mount.path("shared");
    File::create(&shared).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..8u64 {
            let (mount, shared) = (&mount, &shared);
            scope.spawn(move || {
                let file = OpenOptions::new().write(true).open(shared).unwrap();
                for block in 0..64 {
                    file.write_all_at(&bytes(16_384, writer), (block * 8 + writer) * 16_384).unwrap();
                }
                for number in 0..20 {
                    let path = mount.path(&format!("w{writer}-{number}"));
                    fs::write(&path, bytes(10_000, writer * 100 + number)).unwrap();
                    assert!(fs::read(&path).unwrap() == bytes(10_000, writer * 100 + number));
                }
            });
        }
    });
    let all = fs::read(&shared).unwrap();
    assert_eq!(all.len(), 8 * 64 * 16_384);
    for (index, block) in all.chunks(16_384).enumerate() {
        assert!(block == bytes(16_384, index as u64 % 8), "block {index}");
    }
    assert_eq!(names(mount.place()).len(), 161);
}

/// A separate program that writes while servers restart. Starting a process closes inherited files
/// and would flush a file open in this process, which would wait for the server.
struct WriterProcess {
    child: std::process::Child,
    folder: std::path::PathBuf,
}

impl WriterProcess {
    /// Runs a shell script; `step NAME` in it reports progress, `wait_for NAME` waits for this
    /// test.
    fn start(system: &System, mount: &Mounted, script: &str) -> Self {
        let folder = system.path("steps");
        fs::create_dir_all(&folder).unwrap();
        let steps = text(&folder);
        let head = format!(
            "step() {{ : > {steps}/$1; }}; wait_for() {{ while [ ! -e {steps}/$1 ]; do sleep 0.05; done; }};"
        );
        let mut command = Command::new("sh");
        command.args(["-ec", &format!("{head}{script}")]).current_dir(mount.place());
        Self { child: command.spawn().expect("sh runs"), folder }
    }

    fn wait_for(&mut self, step: &str) {
        while !self.folder.join(step).exists() {
            assert!(self.child.try_wait().unwrap().is_none(), "it ended before {step}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn go_on(&self, step: &str) {
        File::create(self.folder.join(step)).unwrap();
    }

    #[track_caller]
    fn ends_well(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn server_kill_only_delays_the_mount() {
    if !can_mount() {
        return;
    }
    let mut system = System::start(2);
    let mount = Mounted::at(&system, "mnt");
    let source = system.path("source");
    fs::write(&source, bytes(100_000, 2)).unwrap();
    fs::write(mount.path("before"), bytes(200_000, 1)).unwrap();
    let script = format!(
        "exec 3> open; cat {source} >&3; step begun; wait_for down;
         for i in 0 1 2 3 4 5 6 7 8 9; do cat {source} > during-$i; done;
         cat {source} >&3; exec 3>&-; sync open",
        source = text(&source)
    );
    let mut writer = WriterProcess::start(&system, &mount, &script);
    writer.wait_for("begun");
    system.end_mds(Signal::Kill);
    writer.go_on("down");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    system.start_mds();
    writer.ends_well();
    assert!(fs::read(mount.path("before")).unwrap() == bytes(200_000, 1));
    assert!(fs::read(mount.path("open")).unwrap() == [bytes(100_000, 2), bytes(100_000, 2)].concat());
    for number in 0..10 {
        assert!(fs::read(mount.path(&format!("during-{number}"))).unwrap() == bytes(100_000, 2));
    }
}

#[test]
fn device_kill_loses_no_written_data() {
    if !can_mount() {
        return;
    }
    let mut system = System::start(2);
    let mount = Mounted::at(&system, "mnt");
    let content = bytes(20 << 20, 9);
    let (head, tail) = (system.path("head"), system.path("tail"));
    fs::write(&head, &content[..8 << 20]).unwrap();
    fs::write(&tail, &content[8 << 20..]).unwrap();
    let script = format!(
        "exec 3> file; cat {} >&3; step head; wait_for restarted; cat {} >&3; step tail; wait_for again;
         exec 3>&-; sync file",
        text(&head),
        text(&tail)
    );
    let mut writer = WriterProcess::start(&system, &mount, &script);
    writer.wait_for("head");
    for index in 0..2 {
        system.end_osd(index, Signal::Kill);
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    for index in 0..2 {
        system.start_osd(index);
    }
    writer.go_on("restarted");
    writer.wait_for("tail");
    system.end_osd(0, Signal::Kill);
    system.start_osd(0);
    writer.go_on("again");
    writer.ends_well();
    for index in 0..2 {
        system.end_osd(index, Signal::Kill);
        system.start_osd(index);
    }
    assert!(fs::read(mount.path("file")).unwrap() == content, "what was synced is there");
    assert!(system.run(&["cat", "/file"]).ok().stdout == content, "for others too");
}

#[test]
fn mount_kill_loses_no_synced_data() {
    if !can_mount() {
        return;
    }
    let system = System::start(2);
    let mut mount = Mounted::at(&system, "mnt");
    fs::write(mount.path("closed"), bytes(300_000, 4)).unwrap();
    let mut file = File::create(mount.path("synced")).unwrap();
    file.write_all(&bytes(2 << 20, 5)).unwrap();
    file.sync_all().unwrap();
    let place = mount.place().to_owned();
    mount.kill();
    drop(file);
    assert!(fs::read_dir(&place).is_err(), "nobody answers there");
    // In the background this time, and over the dead mount point.
    system.run(&["mount", text(&place)]).ok();
    assert!(fs::read(place.join("synced")).unwrap() == bytes(2 << 20, 5));
    assert!(fs::read(place.join("closed")).unwrap() == bytes(300_000, 4));
    fs::write(place.join("again"), b"it goes on").unwrap();
    system.run(&["umount", text(&place)]).ok();
    assert!(names(&place).is_empty(), "nothing is mounted there any more");
    assert_eq!(system.run(&["cat", "/again"]).ok().stdout, b"it goes on");
}

#[test]
fn read_only_subtree_mount_changes_nothing() {
    if !can_mount() {
        return;
    }
    let system = System::start(1);
    system.run(&["mkdir", "-p", "/a/b"]).ok();
    let local = system.path("local");
    fs::write(&local, b"inside").unwrap();
    system.run(&["put", text(&local), "/a/b/file"]).ok();
    let mount = Mounted::with(&system, "mnt", &["--path", "/a", "--read-only"]);
    assert_eq!(names(mount.place()), ["b"]);
    assert_eq!(fs::read(mount.path("b/file")).unwrap(), b"inside");
    let refused = fs::write(mount.path("b/file"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    system.run(&["mount", text(&system.path("nowhere"))]).fails(4).says(&["no such directory", "mkdir"]);
    system.run(&["mount", text(&local)]).fails(1).says(&["not a directory"]);
    let other = system.path("other");
    fs::create_dir(&other).unwrap();
    system.run(&["mount", text(&other), "--path", "/nowhere"]).fails(4);
    system.run(&["umount", text(&other)]).fails(1).says(&["not a sealstone mount"]);
    let mut without = sealstone_tests::command(&["mount", text(&other)]);
    without.env("SEALSTONE_SESSION", system.path("no-session"));
    sealstone_tests::run_with_input(without, b"").fails(3).says(&["not logged in"]);
}

#[test]
fn git_keeps_its_history_here() {
    if !can_mount() || !is_installed("git") {
        return;
    }
    let system = System::start(2);
    let mount = Mounted::at(&system, "mnt");
    let script = "
export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q work && cd work
for i in 1 2 3 4 5; do echo $i > file$i; git add . && git commit -q -m $i; done
git gc -q && git fsck --strict && cd .. && git clone -q work copy && cd copy && git log --oneline | wc -l
";
    assert_eq!(sh(mount.place(), script).trim(), "5");
}

#[test]
fn sqlite_keeps_its_promises_here() {
    if !can_mount() || !is_installed("python3") {
        return;
    }
    let mut system = System::start(2);
    let mount = Mounted::at(&system, "mnt");
    let script = "
import sqlite3, sys
db = sqlite3.connect('db')
db.execute('PRAGMA synchronous=FULL')
db.execute('CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)')
for round in range(20):
    with db:
        db.executemany('INSERT INTO t (text) VALUES (?)', [('x' * (round * 37 + i),) for i in range(50)])
    if round % 5 == 0:
        db.execute('BEGIN'); db.execute('DELETE FROM t'); db.rollback()
db.execute('VACUUM')
db.close()
";
    let check = "
import sqlite3
db = sqlite3.connect('db')
assert db.execute('PRAGMA integrity_check').fetchone() == ('ok',)
assert db.execute('SELECT COUNT(*) FROM t').fetchone() == (1000,)
";
    let run = |script: &str| {
        let output = Command::new("python3").args(["-c", script]).current_dir(mount.place()).output();
        let output = output.expect("python3 runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(script);
    for index in 0..2 {
        system.end_osd(index, Signal::Kill);
        system.start_osd(index);
    }
    run(check);
}

#[test]
fn tar_and_a_compiler_work_on_the_mount() {
    if !can_mount() || !is_installed("tar") {
        return;
    }
    let system = System::start(2);
    let mount = Mounted::at(&system, "mnt");
    let source = system.path("source");
    fs::create_dir_all(source.join("src")).unwrap();
    for number in 0..200 {
        fs::write(source.join(format!("src/file{number}")), bytes(number * 97, number as u64)).unwrap();
    }
    symlink("src/file1", source.join("link")).unwrap();
    sh(
        mount.place(),
        &format!(
            "tar cf - -C {} . | tar xpf - && tar cf - . | tar xpf - -C /dev/null 2>/dev/null || true",
            text(&source)
        ),
    );
    sh(mount.place(), &format!("diff -r --no-dereference {} .", text(&source)));
    sh(mount.place(), "tar cf all.tar src link && tar tf all.tar | wc -l");
    if is_installed("cc") {
        let program = "#include <stdio.h>\nint main(void) { puts(\"built here\"); return 0; }\n";
        fs::write(mount.path("p.c"), program).unwrap();
        assert_eq!(sh(mount.place(), "cc -c p.c -o p.o && cc p.o -o p && ./p"), "built here\n");
    }
}

#[test]
fn a_large_directory_is_listed_whole() {
    if !can_mount() {
        return;
    }
    let system = System::start(1);
    let mount = Mounted::at(&system, "mnt");
    fs::create_dir(mount.path("d")).unwrap();
    for number in 0..1200 {
        fs::create_dir(mount.path(&format!("d/{number:04}"))).unwrap();
    }
    let expected: Vec<String> = (0..1200).map(|number| format!("{number:04}")).collect();
    assert_eq!(names(&mount.path("d")), expected);
    sh(mount.place(), "rm -r d");
    assert!(names(mount.place()).is_empty());
}

#[test]
fn programs_copy_sparse_files_with_their_holes() {
    if !can_mount() {
        return;
    }
    let system = System::start(3);
    let mount = Mounted::at(&system, "mnt");
    let path = mount.path("sparse");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(64 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 0, "nobody wrote to it");
    let seek = |to| rustix::fs::seek(&file, to);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Err(rustix::io::Errno::NXIO));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(7)), Ok(7));
    file.write_all_at(&bytes(1 << 20, 5), 32 << 20).unwrap();
    for synced in [false, true] {
        if synced {
            file.sync_all().unwrap();
        }
        assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(32 << 20), "synced: {synced}");
        assert_eq!(seek(rustix::fs::SeekFrom::Hole(32 << 20)), Ok(33 << 20), "synced: {synced}");
        assert_eq!(seek(rustix::fs::SeekFrom::Data(33 << 20)), Err(rustix::io::Errno::NXIO));
    }
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(64 << 20)), Err(rustix::io::Errno::NXIO));
    let copy = system.path("copy");
    sh(mount.place(), &format!("cp --sparse=always sparse {}", text(&copy)));
    assert_eq!(fs::metadata(&copy).unwrap().len(), 64 << 20);
    assert_eq!(sh(mount.place(), &format!("cmp sparse {} && echo same", text(&copy))), "same\n");
}

#[test]
fn access_lists_apply_on_shared_mounts() {
    if !can_mount() || !is_installed("setfacl") || !is_installed("setpriv") {
        return;
    }
    let system = System::start(1);
    let mount = Mounted::with(&system, "mnt", &["--allow-other"]);
    let run = |script: &str| sh(mount.place(), script);
    let user = |uid: u32, script: &str| {
        run(&format!("setpriv --reuid={uid} --regid={uid} --clear-groups sh -c '{script}'"))
    };
    run("echo secret > f && chmod 600 f && setfacl -m u:71000:r f");
    assert_eq!(run("getfacl -cn f"), "user::rw-\nuser:71000:r--\ngroup::---\nmask::r--\nother::---\n\n");
    assert_eq!(run("stat -c %a f"), "640\n");
    assert_eq!(user(71_000, "cat f"), "secret\n");
    assert_eq!(user(71_000, "echo changed 2>/dev/null >> f || echo refused"), "refused\n");
    assert_eq!(user(71_001, "cat f 2>/dev/null || echo refused"), "refused\n");
    run("chmod 600 f");
    assert_eq!(user(71_000, "cat f 2>/dev/null || echo refused"), "refused\n", "the mask");
    // New entries inherit the directory's list, whatever the umask is.
    run("mkdir d && setfacl -d -m u:71000:rwx,g::-,o::- d && umask 077 && echo made > d/g && mkdir d/e");
    assert_eq!(user(71_000, "cat d/g && echo too >> d/g && cat d/g"), "made\nmade\ntoo\n");
    assert_eq!(user(71_001, "cat d/g 2>/dev/null || echo refused"), "refused\n");
    assert_eq!(run("getfacl -cn d/e | grep -c default:user:71000:rwx"), "1\n");
    run("umask 027 && echo x > plain && setfacl -b f && cp -p d/g copied");
    assert_eq!(run("stat -c %a plain f"), "640\n600\n");
    assert_eq!(run("getfacl -cn copied"), run("getfacl -cn d/g"));
    // These names exist on this machine but not at the server: numbers are sent.
    let named = run("setfacl -m u:1:r,g:1:w plain && setfacl -m u:71000:x plain && getfacl -cn plain");
    assert!(named.contains("user:1:r--\n") && named.contains("group:1:-w-\n"), "{named}");
}

#[test]
fn file_extended_remotely_reads_as_zeros() {
    if !can_mount() {
        return;
    }
    let system = System::start(1);
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    fs::write(one.path("f"), b"short").unwrap();
    let file = OpenOptions::new().read(true).write(true).open(one.path("f")).unwrap();
    for (flags, length) in [
        (rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE, 1000),
        (rustix::fs::FallocateFlags::ZERO_RANGE, 3000),
    ] {
        fs::write(two.path("f"), bytes(length, 3)).unwrap();
        rustix::fs::fallocate(&file, flags, 0, 3000).unwrap();
        file.sync_all().unwrap();
        assert!(fs::read(two.path("f")).unwrap() == vec![0; length], "{flags:?}");
    }
}
