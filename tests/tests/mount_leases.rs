//! Mounts with leases, and their recall: the real binary, real mounts.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sealstone_tests::{Mounted, Signal, System, can_mount, is_installed, text};

fn system() -> System {
    System::start_with_mds(2, "1G", &[], &["--metrics", "127.0.0.1:0"])
}

/// Returns the number of requests, except for those that a mount sends periodically.
fn requests(system: &System) -> u64 {
    let own = ["Recalls", "KeepNodes"];
    system.metric("sealstone_mds_requests_total", |line| !own.iter().any(|name| line.contains(name)))
}

fn open(path: impl AsRef<std::path::Path>) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Runs a Python script with the two mounts as its arguments.
#[track_caller]
fn python(script: &str, one: &Mounted, two: &Mounted) {
    let output = Command::new("python3").args(["-c", script, text(one.place()), text(two.place())]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn append_to(path: impl AsRef<std::path::Path>) -> File {
    OpenOptions::new().append(true).create(true).open(path).unwrap()
}

/// Waits until the mounts poll recalls: from then on they get leases.
fn settle() {
    std::thread::sleep(Duration::from_millis(500));
}

#[test]
fn open_file_shows_writes_of_another_mount() {
    if !can_mount() {
        return;
    }
    let system = system();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    settle();
    let (mine, theirs) = (open(one.path("file")), open(two.path("file")));
    for round in 0..30_u8 {
        let (writer, reader) = if round % 3 == 2 { (&theirs, &mine) } else { (&mine, &theirs) };
        let content = [round; 5000];
        let at = u64::from(round) * 700;
        writer.write_all_at(&content, at).unwrap();
        let mut seen = [99; 5000];
        reader.read_exact_at(&mut seen, at).unwrap();
        assert!(seen == content, "round {round}");
        assert_eq!(reader.metadata().unwrap().len(), at + 5000, "round {round}");
        // Bytes that were read before and are overwritten.
        writer.write_all_at(&[round, 1, 2, 3], 0).unwrap();
        let mut seen = [0; 4];
        reader.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, [round, 1, 2, 3], "round {round}");
    }
    assert!(system.metric("sealstone_mds_leases_recalled_total", |_| true) > 20);
    assert_eq!(system.metric("sealstone_mds_leases_fenced_total", |_| true), 0);
}

#[test]
fn leased_file_opens_without_a_request() {
    if !can_mount() {
        return;
    }
    let system = system();
    let mount = Mounted::with(&system, "mnt", &["--attr-timeout", "60"]);
    settle();
    fs::write(mount.path("file"), vec![7; 100_000]).unwrap();
    assert_eq!(fs::read(mount.path("file")).unwrap().len(), 100_000);
    let before = requests(&system);
    for _ in 0..1000 {
        assert_eq!(fs::read(mount.path("file")).unwrap().len(), 100_000);
    }
    let asked = requests(&system) - before;
    assert!(asked < 20, "{asked} requests");
}

#[test]
fn restarted_server_recovers_leases_before_conflicts() {
    if !can_mount() {
        return;
    }
    let mut system = system();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    settle();
    // Opened by a separate program: processes started here while the server is down must not close
    // it.
    let script = "exec 3<> file; printf old >&3; echo; read line; printf new >&3; echo; read line";
    let (input, output) = (Stdio::piped(), Stdio::piped());
    let mut program = Command::new("sh");
    program.args(["-ec", script]).current_dir(one.place()).stdin(input).stdout(output);
    let mut program = program.spawn().unwrap();
    let mut step = || {
        program.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        program.stdin.as_mut().unwrap().write_all(b"\n")
    };
    fs::write(one.path("closed"), b"closed").unwrap();
    while fs::metadata(one.path("file")).map_or(0, |known| known.len()) < 3 {
        std::thread::sleep(Duration::from_millis(10));
    }
    system.end_mds(Signal::Kill);
    system.start_mds();
    let began = Instant::now();
    assert_eq!(fs::read(two.path("file")).unwrap(), b"old", "{:?}", began.elapsed());
    assert_eq!(fs::read(two.path("closed")).unwrap(), b"closed");
    assert!(began.elapsed() < Duration::from_secs(30));
    step().unwrap();
    step().unwrap();
    assert_eq!(fs::read(two.path("file")).unwrap(), b"oldnew");
    assert!(program.wait().unwrap().success());
}

#[test]
fn mount_without_leases_sees_closed_files() {
    if !can_mount() {
        return;
    }
    let system = system();
    let one = Mounted::at(&system, "one");
    let two = Mounted::with(&system, "two", &["--no-leases", "--attr-timeout", "0"]);
    settle();
    for round in 0..10_u8 {
        fs::write(one.path("file"), [round; 100]).unwrap();
        assert!(fs::read(two.path("file")).unwrap() == [round; 100]);
        fs::write(two.path("file"), [100 + round; 200]).unwrap();
        assert!(fs::read(one.path("file")).unwrap() == [100 + round; 200]);
    }
}

#[test]
fn locked_counter_on_two_mounts_loses_nothing() {
    if !can_mount() {
        return;
    }
    let system = system();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    settle();
    fs::write(one.path("count"), "0").unwrap();
    fs::write(one.path("lock"), "").unwrap();
    let script = "for i in $(seq 10); do flock lock sh -c 'n=$(cat count); echo $((n+1)) 1<> count'; done";
    let run = |mount: &Mounted| {
        Command::new("sh").args(["-ec", script]).current_dir(mount.place()).spawn().unwrap()
    };
    for mut child in [run(&one), run(&two)] {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(fs::read_to_string(two.path("count")).unwrap().trim(), "20");
}

/// Returns the line of an append: some shorter than a page, some across pages.
fn line(writer: usize, number: usize) -> String {
    let length = [20, 300, 5_000, 70_000][(writer + number) % 4];
    let start = format!("{writer}:{number}:");
    let filler = char::from(b'a' + (writer as u8));
    format!("{start}{}\n", filler.to_string().repeat(length))
}

/// Appends lines through several open files concurrently, and checks that each line is there once
/// and complete.
#[track_caller]
fn append_lines(paths: &[std::path::PathBuf], lines: usize, locked: bool) {
    std::thread::scope(|scope| {
        for (writer, path) in paths.iter().enumerate() {
            scope.spawn(move || {
                let mut file = append_to(path);
                for number in 0..lines {
                    if locked {
                        file.lock().unwrap();
                    }
                    file.write_all(line(writer, number).as_bytes()).unwrap();
                    if locked {
                        file.unlock().unwrap();
                    }
                }
            });
        }
    });
    for path in [paths.first(), paths.last()].into_iter().flatten() {
        let content = fs::read_to_string(path).unwrap();
        let mut next = vec![0; paths.len()];
        for found in content.split_inclusive('\n') {
            let writer: usize = found.split(':').next().unwrap().parse().expect("a whole line");
            let expected = line(writer, next[writer]);
            assert!(found == expected, "line {} of writer {writer} in {}", next[writer], path.display());
            next[writer] += 1;
        }
        assert_eq!(next, vec![lines; paths.len()], "{}", path.display());
    }
}

#[test]
fn appends_of_two_mounts_lose_no_line() {
    if !can_mount() {
        return;
    }
    let system = system();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    settle();
    let script = format!(
        "exec 3>> {a} 4>> {b}; echo one >&3; echo two >&4; cat {a}; cat {b}",
        a = text(&one.path("shell")),
        b = text(&two.path("shell"))
    );
    let output = Command::new("sh").args(["-ec", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "one\ntwo\none\ntwo\n");
    let paths = [one.path("log"), two.path("log"), one.path("log"), two.path("log")];
    append_lines(&paths, 24, false);
}

#[test]
fn locked_appends_without_leases_lose_no_line() {
    if !can_mount() {
        return;
    }
    let system = system();
    let flags = ["--no-leases"];
    let (one, two) = (Mounted::with(&system, "one", &flags), Mounted::with(&system, "two", &flags));
    append_lines(&[one.path("log"), two.path("log")], 12, true);
}

#[test]
fn lock_shows_bytes_of_others_without_leases() {
    if !can_mount() {
        return;
    }
    let system = system();
    let flags = ["--no-leases", "--attr-timeout", "600"];
    let (one, two) = (Mounted::with(&system, "one", &flags), Mounted::with(&system, "two", &flags));
    fs::write(one.path("file"), [0; 9000]).unwrap();
    let (mine, theirs) = (open(one.path("file")), open(two.path("file")));
    for round in 1..6_u8 {
        let (writer, reader) = if round % 2 == 0 { (&mine, &theirs) } else { (&theirs, &mine) };
        let mut seen = vec![0; 9000];
        reader.read_exact_at(&mut seen, 0).unwrap();
        writer.lock().unwrap();
        writer.write_all_at(&[round; 9000], u64::from(round) * 5000).unwrap();
        writer.unlock().unwrap();
        reader.lock().unwrap();
        assert_eq!(reader.metadata().unwrap().len(), u64::from(round) * 5000 + 9000, "round {round}");
        reader.read_exact_at(&mut seen, u64::from(round) * 5000).unwrap();
        assert!(seen == [round; 9000], "round {round}");
        reader.unlock().unwrap();
    }
}

#[test]
fn log_rotated_at_another_mount_has_no_hole() {
    if !can_mount() {
        return;
    }
    let system = system();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    settle();
    let mut log = append_to(one.path("log"));
    for round in 0..5 {
        writeln!(log, "round {round}").unwrap();
        // As logrotate does with copytruncate.
        let copy = fs::read_to_string(two.path("log")).unwrap();
        assert_eq!(copy, format!("round {round}\n"));
        OpenOptions::new().write(true).truncate(true).open(two.path("log")).unwrap();
    }
    writeln!(log, "last").unwrap();
    assert_eq!(fs::read_to_string(two.path("log")).unwrap(), "last\n");
    assert_eq!(fs::metadata(one.path("log")).unwrap().len(), 5);
    // As logrotate does with rename and create: the open file continues under its new name.
    fs::rename(two.path("log"), two.path("log.1")).unwrap();
    writeln!(append_to(two.path("log")), "new").unwrap();
    writeln!(log, "late").unwrap();
    assert_eq!(fs::read_to_string(two.path("log.1")).unwrap(), "last\nlate\n");
    assert_eq!(fs::read_to_string(two.path("log")).unwrap(), "new\n");
}

#[test]
fn end_of_file_follows_another_mount() {
    if !can_mount() || !is_installed("python3") {
        return;
    }
    let system = system();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    settle();
    let script = "
import fcntl, mmap, os, sys
one, two = (path + '/f' for path in sys.argv[1:])
a = os.open(one, os.O_RDWR | os.O_CREAT)
b = os.open(two, os.O_RDWR)
def check(what, found, expected):
    if found != expected:
        raise SystemExit(f'{what}: {found!r}, not {expected!r}')
os.pwrite(a, b'x' * 5000, 0)
os.pread(a, 5000, 0)
os.pwrite(b, b'y' * 5000, 1 << 20)
end = (1 << 20) + 5000
check('the next data', os.lseek(a, 100000, os.SEEK_DATA) >> 12, 1 << 8)
check('the end', os.lseek(a, 0, os.SEEK_END), end)
check('read behind the old end', os.pread(a, 5000, 1 << 20), b'y' * 5000)
os.ftruncate(a, 10)
check('the end after a truncation', os.lseek(b, 0, os.SEEK_END), 10)
check('read behind the new end', os.pread(b, 5000, 1 << 20), b'')
os.posix_fallocate(b, 0, 9000)
check('the end after fallocate', os.fstat(a).st_size, 9000)
check('bytes after fallocate', os.pread(a, 20, 0), b'x' * 10 + bytes(10))
# The flag is set after the open, so the kernel writes through its page cache.
fcntl.fcntl(a, fcntl.F_SETFL, os.O_APPEND)
for round in range(5):
    os.write(b, b'')
    os.pwrite(b, b'b', os.fstat(b).st_size)
    os.write(a, b'a')
check('appends and writes', os.pread(b, 20, 9000), b'ba' * 5)
check('the same here', os.pread(a, 20, 9000), b'ba' * 5)
# A shared mapping of a file that is open to append.
c = os.open(one, os.O_RDWR | os.O_APPEND)
os.write(c, b'c')
with mmap.mmap(c, 4096) as mapped:
    check('a mapping', mapped[:4], b'xxxx')
    mapped[0:1] = b'm'
    mapped.flush()
check('written by a mapping', os.pread(b, 2, 0), b'mx')
check('the size', os.fstat(b).st_size, 9011)
";
    python(script, &one, &two);
}

#[test]
fn ofd_locks_end_with_their_open_file() {
    if !can_mount() || !is_installed("python3") {
        return;
    }
    let system = system();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    settle();
    let script = "
import fcntl, os, signal, struct, sys, time
one, two = (path + '/f' for path in sys.argv[1:])
open(one, 'w').close()
def request(fd, kind, command):
    lock = struct.pack('hhqqi4x', kind, os.SEEK_SET, 100, 1, 0)
    return fcntl.fcntl(fd, command, lock)
def is_free():
    fd = os.open(two, os.O_RDWR)
    try:
        request(fd, fcntl.F_WRLCK, fcntl.F_OFD_SETLK)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
def becomes_free(why):
    # RELEASE comes after the call that caused it.
    for _ in range(300):
        if is_free():
            return
        time.sleep(0.05)
    raise SystemExit('the lock stays after ' + why)
def is_kept(why):
    if is_free():
        raise SystemExit('the lock is given away: ' + why)
a = os.open(one, os.O_RDWR)
request(a, fcntl.F_WRLCK, fcntl.F_OFD_SETLK)
other = os.open(one, os.O_RDWR)
os.close(other)
is_kept('another open file was closed')
copy = os.dup(a)
os.close(a)
is_kept('one of two descriptors was closed')
os.close(copy)
becomes_free('close')
child = os.fork()
if child == 0:
    b = os.open(one, os.O_RDWR)
    request(b, fcntl.F_WRLCK, fcntl.F_OFD_SETLK)
    open(one + '.ready', 'w').close()
    time.sleep(600)
while not os.path.exists(one + '.ready'):
    time.sleep(0.01)
is_kept('its owner lives')
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
becomes_free('SIGKILL')
# A POSIX lock through a younger open file outlives the release of an older one.
c = os.open(one, os.O_RDWR)
request(c, fcntl.F_WRLCK, fcntl.F_SETLK)
os.close(c)
d = os.open(one, os.O_RDWR)
request(d, fcntl.F_WRLCK, fcntl.F_SETLK)
for _ in range(20):
    is_kept('an older open file was released')
    time.sleep(0.02)
os.close(d)
becomes_free('close of a POSIX lock')
";
    python(script, &one, &two);
}

#[test]
fn qemu_opens_its_image_again_at_another_mount() {
    if !can_mount() || !is_installed("qemu-img") || !is_installed("qemu-io") {
        return;
    }
    let system = system();
    let (one, two) = (Mounted::at(&system, "one"), Mounted::at(&system, "two"));
    settle();
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        let printed = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
    };
    let (here, there) = (one.path("disk.qcow2"), two.path("disk.qcow2"));
    let (here, there) = (text(&here), text(&there));
    for (program, arguments) in [
        ("qemu-img", &["create", "-f", "qcow2", here, "64M"][..]),
        ("qemu-io", &["-c", "write -P 7 1M 3M", here]),
        ("qemu-io", &["-c", "read -P 7 1M 3M", there]),
        ("qemu-io", &["-c", "write -P 9 2M 64k", there]),
        ("qemu-io", &["-c", "read -P 9 2M 64k", here]),
        ("qemu-img", &["resize", here, "96M"]),
        ("qemu-img", &["check", there]),
    ] {
        let (well, printed) = run(program, arguments);
        assert!(well && !printed.contains("verification failed"), "{program} {arguments:?}: {printed}");
    }
    let (_, info) = run("qemu-img", &["info", there]);
    assert!(info.contains("96 MiB"), "{info}");
    // While one process has it locked, no other one gets it.
    let mut holder = Command::new("qemu-io");
    let mut holder = holder.arg(here).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    holder.stdin.as_mut().unwrap().write_all(b"length\n").unwrap();
    holder.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    let (well, printed) = run("qemu-io", &["-c", "write 0 1k", there]);
    assert!(!well && printed.contains("lock"), "{printed}");
    holder.kill().unwrap();
    holder.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while !run("qemu-io", &["-c", "write 0 1k", there]).0 {
        assert!(Instant::now() < until, "the image stays locked after its owner was killed");
        std::thread::sleep(Duration::from_millis(100));
    }
}
