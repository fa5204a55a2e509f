//! Devices follow the metadata server's clock, and it follows an NTP server, through the real
//! binary. Forged responses are rejected, and visible in metrics and audit log.

use std::fs;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sealstone_sntp::{
    ClockState, Datagram, HEADER_LEN, LeapIndicator, NAK_LEN, NtpPacket, NtpTimestamp, Responder, SIGNED_LEN,
    TimeKey, TimeQuery,
};
use sealstone_tests::{Daemon, Signal, System, command, get, run, run_with_input, text};
use serde_json::Value;
use tempfile::TempDir;

/// Longest wait for a condition. A following clock sends a request every 64 s, so a test that
/// missed the quick requests of a start waits for the next one; a lost response adds another pause.
const PATIENCE: Duration = Duration::from_secs(200);
/// Time without an answer after which none is expected.
const SILENCE: Duration = Duration::from_millis(500);
/// Tolerance for equal clocks, in milliseconds: records are written before they are read.
const NEAR_MS: u64 = 60_000;
/// How far the system's clock is ahead of this machine's.
const AHEAD_MS: i64 = 30 * 60 * 1000;
const DIGITS: &str = "00112233445566778899aabbccddeeff";

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

fn key() -> TimeKey {
    let secret =
        [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];
    TimeKey::new(7, secret).expect("a key")
}

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A thread with a UDP port, until it is dropped.
struct UdpPort {
    address: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl UdpPort {
    fn start(mut each: impl FnMut(&UdpSocket, &[u8], std::net::SocketAddr) + Send + 'static) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        let address = socket.local_addr().expect("an address").to_string();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut datagram = [0; 256];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut datagram) {
                    each(&socket, &datagram[..length], from);
                }
            }
        });
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for UdpPort {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts an NTP server that is `ahead_ms` ahead of this machine.
fn upstream(ahead_ms: &Arc<AtomicI64>) -> UdpPort {
    let ahead_ms = Arc::clone(ahead_ms);
    let mut server = Responder::default();
    UdpPort::start(move |socket, datagram, from| {
        let now = now_ms().saturating_add_signed(ahead_ms.load(Ordering::Relaxed));
        let state = ClockState {
            leap: LeapIndicator::None,
            stratum: 1,
            reference_id: *b"GPS\0",
            root_delay_ms: 0,
            root_dispersion_ms: 1,
            reference_ms: now,
        };
        let own = |id| (id == 7).then(key);
        let received = Datagram {
            datagram,
            source: from.ip().into(),
            stopwatch_ms: now_ms(),
            received_ms: now,
            now_ms: now,
        };
        let answer = server.answer(&received, &state, own);
        if let Some(reply) = answer.reply {
            socket.send_to(reply.bytes(), from).expect("sent");
        }
    })
}

/// Returns the value of a metric whose line has all of these words; zero if there is none.
fn sample(daemon: &Daemon, words: &[&str]) -> i64 {
    let (status, page) = get(daemon.field("metrics"), "/metrics");
    assert_eq!(status, 200);
    page.lines()
        .find(|line| !line.starts_with('#') && words.iter().all(|word| line.contains(word)))
        .and_then(|line| line.rsplit_once(' ')?.1.parse().ok())
        .unwrap_or_default()
}

fn answers(daemon: &Daemon, result: &str) -> i64 {
    sample(daemon, &["sealstone_time_answers_total", &format!("result=\"{result}\"")])
}

/// Returns the complete records of an audit log: the daemon may be writing the last one.
fn records(path: &std::path::Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("an audit log");
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Waits for an audit record with this reason, which is written after its metric is counted.
#[track_caller]
fn audited(path: &std::path::Path, reason: &str) -> Value {
    let mut found = None;
    eventually(&format!("{reason} is audited"), || {
        found = records(path).into_iter().find(|record| record["reason"] == reason);
        found.is_some()
    });
    found.expect("found")
}

/// A metadata server that follows an NTP server ahead of this machine, and a device that follows it
/// through a man in the middle.
struct TimeTestSystem {
    system: System,
    device: Daemon,
    source: Option<UdpPort>,
    /// Manipulation of responses to the device.
    trick: Arc<AtomicUsize>,
    _between: UdpPort,
    /// Holds the key file.
    _folder: TempDir,
}

const HONEST: usize = 0;
const FLIP: usize = 1;
const STRIP: usize = 2;
const REPLAY: usize = 3;
const FORGE: usize = 4;

/// Starts a man in the middle that forwards requests and manipulates responses.
fn between(server: &str, trick: &Arc<AtomicUsize>) -> UdpPort {
    let (server, trick) = (server.to_owned(), Arc::clone(trick));
    let mut seen: Option<Vec<u8>> = None;
    UdpPort::start(move |socket, datagram, from| {
        let behind = UdpSocket::bind("127.0.0.1:0").expect("a port");
        behind.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
        behind.send_to(datagram, &server).expect("sent");
        let mut answer = [0; 256];
        // A server that is down does not answer.
        let Ok((length, _)) = behind.recv_from(&mut answer) else { return };
        let mut bytes = answer[..length].to_vec();
        match trick.load(Ordering::Relaxed) {
            FLIP => bytes[45] ^= 0x10,
            STRIP => bytes.truncate(HEADER_LEN),
            REPLAY => {
                let old = seen.get_or_insert_with(|| bytes.clone());
                std::mem::swap(old, &mut bytes);
            }
            // An hour back, to make expired credentials valid again.
            FORGE => {
                let hour_ago =
                    NtpTimestamp::of_ms(now_ms().saturating_add_signed(AHEAD_MS) - 3_600_000).0.to_be_bytes();
                bytes[32..40].copy_from_slice(&hour_ago);
                bytes[40..48].copy_from_slice(&hour_ago);
            }
            _ => {}
        }
        let _ = socket.send_to(&bytes, from);
    })
}

impl TimeTestSystem {
    fn start() -> Self {
        Self::start_with(|_, _| {})
    }

    /// Starts the metadata server, calls `then`, and starts the device.
    fn start_with(then: impl FnOnce(&System, &AtomicI64)) -> Self {
        let ahead_ms = Arc::new(AtomicI64::new(AHEAD_MS));
        let source = upstream(&ahead_ms);
        let folder = tempfile::tempdir().expect("temporary folder");
        let key_file = folder.path().join("ntp.key");
        write_private(&key_file, &format!("7 AES128 HEX:{DIGITS}\n"));
        // A port that stays the same when the server restarts.
        let port = sealstone_tests::reserve_address();
        let flags = [
            "--time-listen",
            &port,
            "--time-source",
            &source.address,
            "--time-key-file",
            text(&key_file),
            "--metrics",
            "127.0.0.1:0",
        ];
        let system = System::start_with_mds(0, "1G", &[], &flags);
        assert_eq!(system.mds().field("time"), port);
        then(&system, &ahead_ms);
        let trick = Arc::new(AtomicUsize::new(HONEST));
        let between = between(&port, &trick);
        let (data, key) = (system.path("osd"), system.path("osd.key"));
        let init = ["osd", "init", "--data", text(&data), "--capacity", "1G", "--key-out", text(&key)];
        run(&init).ok();
        let device = serve(&data, &between.address);
        assert_eq!(device.field("time"), between.address);
        let (url, pin) = (device.field("url").to_owned(), device.field("pin").to_owned());
        system.run(&["mds", "add-osd", &url, "--key", text(&key), "--pin", &pin]).ok();
        Self { system, device, source: Some(source), trick, _between: between, _folder: folder }
    }

    fn follows(&self) {
        eventually("the device follows", || sample(&self.device, &["sealstone_time_followed"]) == 1);
    }

    /// Returns how far the device's clock is ahead of this machine's, by the last record of its
    /// audit log.
    fn device_ahead_ms(&self) -> i64 {
        let before = now_ms();
        let name = format!("/probe-{before}");
        run_with_input(self.system.command(&["put", "-", &name]), b"probe").ok();
        let log = self.system.path("osd").join("audit.jsonl");
        let mut reported = 0;
        eventually("the put is in the log", || {
            reported = records(&log)
                .iter()
                .filter(|record| record["action"] != "TIME")
                .filter_map(|record| record["time_ms"].as_u64())
                .next_back()
                .unwrap_or_default();
            reported > 0
        });
        reported as i64 - before as i64
    }
}

fn write_private(path: &std::path::Path, contents: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, contents).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("private");
}

fn serve(data: &std::path::Path, time: &str) -> Daemon {
    Daemon::start(command(&[
        "--json",
        "osd",
        "serve",
        "--data",
        text(data),
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        "127.0.0.1:0",
        "--time",
        time,
    ]))
}

fn near(found: i64, wanted: i64) -> bool {
    found.abs_diff(wanted) < NEAR_MS
}

/// The whole system is half an hour ahead of this machine; clients with this machine's clock work
/// normally.
#[test]
fn clocks_follow_the_metadata_server_and_its_source() {
    let mut followed = TimeTestSystem::start();
    followed.follows();
    let ahead = followed.device_ahead_ms();
    assert!(near(ahead, AHEAD_MS), "the device is {ahead} ms ahead");
    let content: Vec<u8> =
        (0..700_000u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let system = &followed.system;
    run_with_input(system.command(&["put", "-", "/file"]), &content).ok();
    assert!(system.run(&["cat", "/file"]).ok().stdout == content);
    let mds = records(&system.path("mds").join("audit.jsonl"));
    let last = mds.last().expect("records")["time_ms"].as_u64().expect("a time");
    assert!(near(last as i64 - now_ms() as i64, AHEAD_MS), "{last}");
    // Set once, with an audit record.
    let set: Vec<&Value> = mds.iter().filter(|record| record["action"] == "TIME").collect();
    assert!(
        set.len() == 1
            && set[0]["verdict"] == "done"
            && near(set[0]["ahead_ms"].as_i64().unwrap_or(0), AHEAD_MS),
        "{set:?}"
    );

    // Killed, and its source is gone: it does not fall back to this machine's clock, which is
    // before its served time.
    eventually("what was told is kept", || system.path("mds").join("clock.toml").exists());
    followed.system.end_mds(Signal::Kill);
    followed.source = None;
    followed.system.start_mds();
    let ahead = followed.device_ahead_ms();
    assert!(near(ahead, AHEAD_MS), "the device is {ahead} ms ahead");
    let mds = records(&followed.system.path("mds").join("audit.jsonl"));
    let last = mds.last().expect("records")["time_ms"].as_u64().expect("a time");
    assert!(near(last as i64 - now_ms() as i64, AHEAD_MS), "{last}");

    // The same with the device.
    let data = followed.system.path("osd");
    eventually("what was told is kept", || data.join("clock.toml").exists());
    let address = followed.device.field("address").to_owned();
    let time = followed.device.field("time").to_owned();
    followed.device.end(Signal::Kill);
    followed.device = Daemon::start(command(&[
        "--json",
        "osd",
        "serve",
        "--data",
        text(&data),
        "--listen",
        &address,
        "--metrics",
        "127.0.0.1:0",
        "--time",
        &time,
    ]));
    followed.follows();
    assert!(near(followed.device_ahead_ms(), AHEAD_MS));
}

/// A man in the middle changes, strips, replays and forges responses: all are rejected, counted and
/// audited, and the clock continues.
#[test]
fn forged_time_is_refused_counted_and_audited() {
    let followed = TimeTestSystem::start();
    followed.follows();
    for (trick, name) in
        [(FLIP, "wrong_mac"), (STRIP, "unsigned"), (REPLAY, "not_ours"), (FORGE, "wrong_mac")]
    {
        followed.trick.store(trick, Ordering::Relaxed);
        let before = answers(&followed.device, name);
        eventually(name, || answers(&followed.device, name) > before);
    }
    followed.trick.store(HONEST, Ordering::Relaxed);
    assert!(near(followed.device_ahead_ms(), AHEAD_MS));
    for name in ["wrong_mac", "unsigned", "not_ours"] {
        let record = audited(&followed.system.path("osd").join("audit.jsonl"), name);
        assert!(record["action"] == "TIME" && record["verdict"] == "refused", "{record}");
    }
}

/// The source jumps two hours ahead: the metadata server and the device keep their time.
#[test]
fn a_source_that_jumps_is_not_followed() {
    let followed = TimeTestSystem::start_with(|system, ahead_ms| {
        // Before the quick requests of the start are over: the next one follows within seconds.
        eventually("the server follows", || sample(system.mds(), &["sealstone_time_followed"]) == 1);
        ahead_ms.store(AHEAD_MS + 2 * 3_600_000, Ordering::Relaxed);
    });
    followed.follows();
    eventually("the jump is refused", || answers(followed.system.mds(), "too_far") > 0);
    assert!(near(followed.device_ahead_ms(), AHEAD_MS));
    let refused = audited(&followed.system.path("mds").join("audit.jsonl"), "too_far");
    assert!(near(refused["ahead_ms"].as_i64().unwrap_or(0), 2 * 3_600_000), "{refused}");
}

/// Any client may query; no response is longer than its request, and a client above the rate gets
/// one kiss.
#[test]
fn time_port_limits_rate_and_response_length() {
    let flags = ["--time-listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
    let system = System::start_with_mds(0, "1G", &[], &flags);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.connect(system.mds().field("time")).expect("an address");
    let mut buffer = [0; 256];
    let mut ask_within = |time: Duration, bytes: &[u8]| {
        socket.set_read_timeout(Some(time)).expect("a timeout");
        socket.send(bytes).expect("sent");
        socket.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec())
    };
    for junk in [&b""[..], b"x", &[0x23; 47], &[0x23; 49], &[0x23; 200], &[0x24; 48], &[0x1b; 52]] {
        assert_eq!(ask_within(SILENCE, junk), None, "{} bytes", junk.len());
    }
    let mut ask = |bytes: &[u8]| ask_within(PATIENCE, bytes);
    let query = TimeQuery::new(1, None, 0);
    let answer = ask(query.bytes()).expect("an answer");
    assert_eq!(answer.len(), HEADER_LEN);
    let sample = query.read(&answer, 100, now_ms()).expect("a good one");
    assert!(sample.offset_ms.abs_diff(now_ms() as i64) < NEAR_MS);
    // Under an unknown key.
    let stranger = TimeQuery::new(2, Some(key()), 0);
    assert_eq!(stranger.bytes().len(), SIGNED_LEN);
    assert_eq!(ask(stranger.bytes()).expect("a crypto-NAK").len(), NAK_LEN);
    // A flood gets the burst, one kiss, and what the rate allows meanwhile.
    let mut kisses = 0;
    socket.set_read_timeout(Some(SILENCE)).expect("a timeout");
    for _ in 0..40 {
        socket.send(query.bytes()).expect("sent");
    }
    let mut buffer = [0; 256];
    let mut answers_seen = 0;
    while let Ok(length) = socket.recv(&mut buffer) {
        let (packet, _) = NtpPacket::parse(&buffer[..length]).expect("a packet");
        assert!(length <= query.bytes().len());
        answers_seen += 1;
        kisses += usize::from(packet.stratum == 0 && packet.reference_id == *b"RATE");
    }
    assert!(kisses <= 1 && answers_seen < 40, "{answers_seen} answers, {kisses} kisses");
    eventually("the flood is counted", || {
        sample_of(system.mds(), "limited") > 0 && sample_of(system.mds(), "malformed") >= 6
    });
    assert_eq!(get(system.mds().field("metrics"), "/healthz").0, 200);
}

fn sample_of(daemon: &Daemon, verdict: &str) -> i64 {
    sample(daemon, &["sealstone_mds_time_requests_total", &format!("verdict=\"{verdict}\"")])
}

/// A clock that would make expired rights valid again prevents the start, with a remedy.
#[test]
fn server_with_clock_set_back_does_not_start() {
    let ahead_ms = Arc::new(AtomicI64::new(0));
    let source = upstream(&ahead_ms);
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("mds");
    run(&["mds", "init", "--data", text(&data)]).ok();
    let serve = |flags: &[&str]| {
        let base = ["mds", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"];
        run(&[&base[..], flags].concat())
    };
    let later = now_ms() + 3_600_000;
    write_private(&data.join("clock.toml"), &format!("told_ms = {later}\nahead_ms = 0\n"));
    let followed = ["--time-source", source.address.as_str()];
    serve(&followed).fails(1).says(&["before the last time that this server served", "clock reset"]);
    write_private(&data.join("clock.toml"), "told_ms = \"soon\"\n");
    serve(&followed).fails(1).says(&["clock.toml"]);

    // A remote time source without a key is refused.
    let anybody = serve(&["--time-source", "192.0.2.1:123"]);
    assert_eq!(anybody.code, 2);
    anybody.says(&["not authenticated", "--time-key-file", "--insecure-time"]);
    assert_eq!(serve(&["--time-source", "nowhere"]).code, 2);
    assert_eq!(serve(&["--time-key-file", "/nonexistent"]).code, 2);
    let key_file = folder.path().join("ntp.key");
    fs::write(&key_file, format!("7 AES128 HEX:{DIGITS}\n")).expect("written");
    serve(&["--time-source", &source.address, "--time-key-file", text(&key_file)])
        .fails(3)
        .says(&["chmod 600"]);
    write_private(&key_file, &format!("7 MD5 {DIGITS}\n"));
    let weak = serve(&["--time-source", &source.address, "--time-key-file", text(&key_file)]);
    assert!(!weak.text().contains(DIGITS));
    weak.says(&["AES128"]);
}

/// chrony as the source of the server and as its client.
#[test]
fn time_interoperates_with_other_implementations() {
    let Some(chronyd) = foreign() else {
        sealstone_tests::left_out("chronyd is not installed (scripts/setup --all)");
        return;
    };
    let folder = tempfile::tempdir().expect("temporary folder");
    let key_file = folder.path().join("ntp.key");
    write_private(&key_file, &format!("7 AES128 HEX:{DIGITS}\n"));
    let port = sealstone_tests::reserve_port();
    let configuration = folder.path().join("chrony.conf");
    let lines = format!(
        "port {port}\nbindaddress 127.0.0.1\ncmdport 0\nlocal stratum 3\nallow 127.0.0.1\nkeyfile {}\npidfile {}\n",
        text(&key_file),
        text(&folder.path().join("chronyd.pid"))
    );
    fs::write(&configuration, lines).expect("written");
    // -x: it leaves this machine's clock alone.
    let mut server = std::process::Command::new(&chronyd)
        .args(["-d", "-x", "-U", "-u", "root", "-f", text(&configuration)])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("chronyd starts");
    let source = format!("127.0.0.1:{port}");
    let flags = [
        "--time-listen",
        "127.0.0.1:0",
        "--time-source",
        &source,
        "--time-key-file",
        text(&key_file),
        "--metrics",
        "127.0.0.1:0",
    ];
    let system = System::start_with_mds(0, "1G", &[], &flags);
    eventually("our server follows chronyd", || sample(system.mds(), &["sealstone_time_followed"]) == 1);
    server.kill().expect("it runs");
    let _ = server.wait();

    let (_, ours) = system.mds().field("time").rsplit_once(':').expect("HOST:PORT");
    let asked = std::process::Command::new(&chronyd)
        .args(["-Q", "-U", "-u", "root", "-t", "30", "-f", "/dev/null"])
        .args([format!("pidfile {}", text(&folder.path().join("client.pid"))), "cmdport 0".to_owned()])
        .arg(format!("server 127.0.0.1 port {ours} iburst maxsamples 1"))
        .output()
        .expect("chronyd starts");
    let printed =
        format!("{}{}", String::from_utf8_lossy(&asked.stdout), String::from_utf8_lossy(&asked.stderr));
    let wrong_by =
        printed.split("wrong by ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    assert!(wrong_by.is_some_and(|seconds| seconds.abs() < 1.0), "{printed}");
}

/// Returns the path of chronyd, if it is installed.
fn foreign() -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join("chronyd")).find(|binary| binary.is_file())
}

/// A preloaded library that shifts a process's wall clock by the seconds in a shared file, as a
/// wrong time server would.
const SHIFT: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long long *shift;
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_SHIFT_FILE");
    int file = path ? open(path, O_RDONLY) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) shift = page;
}
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME && shift) time->tv_sec += *shift;
    return result;
}
"#;
const DAYS_S: i64 = 3 * 86_400;

fn set_shift(file: &std::path::Path, seconds: i64) {
    use std::os::unix::fs::FileExt as _;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file = options.open(file).expect("opened");
    file.write_all_at(&seconds.to_ne_bytes(), 0).expect("written");
}

/// A whole system in one process with a shifted wall clock; its clients' clocks are correct, or
/// shifted too.
struct ShiftedSystem {
    folder: TempDir,
    address: String,
    up: Option<Daemon>,
}

impl ShiftedSystem {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let source = folder.path().join("shift.c");
        fs::write(&source, SHIFT).expect("written");
        let built = std::process::Command::new("cc")
            .args(["-shared", "-fPIC", "-o", text(&folder.path().join("shift.so")), text(&source)])
            .status()
            .expect("a C compiler, which the build takes too");
        assert!(built.success());
        let mut system = Self { folder, address: "127.0.0.1:0".to_owned(), up: None };
        system.shift(0);
        system.start_up();
        let secret = system.path("up").join("admin-secret");
        let cluster = system.path("up").join("cluster.toml");
        let login = ["login", "admin", "--cluster", text(&cluster), "--password-file", text(&secret)];
        system.run(&login).ok();
        system
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Sets the wall clock this many seconds ahead.
    fn shift(&self, seconds: i64) {
        set_shift(&self.path("shift"), seconds);
    }

    fn shifted(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = command(arguments);
        command.env("LD_PRELOAD", self.path("shift.so")).env("CLOCK_SHIFT_FILE", self.path("shift"));
        command.env("SEALSTONE_SESSION", self.path("session.toml"));
        command
    }

    fn start_up(&mut self) {
        let data = self.path("up");
        let up = ["--json", "up", "--data", text(&data), "--osds", "1", "--capacity", "1G", "--listen"];
        let up = Daemon::start(self.shifted(&[&up[..], &[&self.address]].concat()));
        up.field("address").clone_into(&mut self.address);
        self.up = Some(up);
    }

    fn restart(&mut self, signal: Signal) {
        if let Some(mut up) = self.up.take() {
            up.end(signal);
        }
        self.start_up();
    }

    /// Runs a client command with the correct clock.
    fn run(&self, arguments: &[&str]) -> sealstone_tests::CommandResult {
        let mut command = command(arguments);
        command.env("SEALSTONE_SESSION", self.path("session.toml"));
        sealstone_tests::CommandResult::from(command.output().expect("the binary starts"))
    }

    /// Stores and reads one file; fails with the message of the command.
    fn works(&self, name: &str) -> Result<(), String> {
        let mut put = command(&["put", "-", name]);
        put.env("SEALSTONE_SESSION", self.path("session.toml"));
        let put = run_with_input(put, name.as_bytes());
        if put.code != 0 {
            return Err(put.stderr);
        }
        let got = self.run(&["cat", name]);
        match got.code == 0 && got.stdout == name.as_bytes() {
            true => Ok(()),
            false => Err(got.stderr),
        }
    }

    /// Returns how far the daemon's wall clock is ahead of its served time, in seconds.
    fn wall_ahead_s(&self) -> i64 {
        let data = self.path("up").join("osd1");
        let shown = self.shifted(&["--json", "osd", "clock", "show", "--data", text(&data)]).output();
        let shown = sealstone_tests::CommandResult::from(shown.expect("the binary starts")).ok().json();
        (shown["wall_ahead_ms"].as_i64().expect("known") + 500).div_euclid(1000)
    }
}

/// A briefly wrong clock, in either direction, with restarts meanwhile, refuses nothing then or
/// later.
#[test]
fn wrong_clock_for_a_moment_stops_nothing() {
    let mut system = ShiftedSystem::start();
    system.works("/before").expect("as usual");
    for (round, wrong_s) in [DAYS_S, 600, -600, -DAYS_S].into_iter().enumerate() {
        system.shift(wrong_s);
        system.works(&format!("/wrong-{round}")).expect("while the clock is wrong");
        system.restart(if round % 2 == 0 { Signal::Kill } else { Signal::Terminate });
        system.works(&format!("/started-{round}")).expect("started while the clock is wrong");
        system.shift(0);
        system.works(&format!("/right-{round}")).expect("when it is right again");
    }
    system.restart(Signal::Kill);
    system.works("/after").expect("after another restart");
}

/// The machine boots with a clock that is days ahead for seconds: sessions continue.
#[test]
fn boot_with_wrong_clock_ends_no_session() {
    let mut system = ShiftedSystem::start();
    system.works("/before").expect("as usual");
    if let Some(mut up) = system.up.take() {
        up.end(Signal::Terminate);
    }
    for folder in ["up/mds", "up/osd1"] {
        let state = system.path(folder).join("machine-clock.toml");
        let kept = sealstone_slots::read(&state, 4096).expect("readable").expect("kept");
        let kept = String::from_utf8(kept.to_vec()).expect("text");
        let (head, tail) = kept.split_once("boot_id = \"").expect("a boot");
        let other = format!("{head}boot_id = \"{:032x}{}", 7, &tail[32..]);
        sealstone_slots::write(&state, other.as_bytes()).expect("written");
    }
    system.shift(DAYS_S);
    let shift = system.path("shift");
    let corrected = std::thread::spawn(move || {
        // The duration of the wrong clock.
        std::thread::sleep(Duration::from_secs(3));
        set_shift(&shift, 0);
    });
    system.start_up();
    corrected.join().expect("the clock is right");
    system.works("/after").expect("with the session from before");
}

/// An administrator accepts the wall clock.
#[test]
fn clock_reset_takes_the_wall_clock() {
    let mut system = ShiftedSystem::start();
    system.restart(Signal::Terminate);
    let data = system.path("up").join("osd1");
    system.shift(-600);
    assert_eq!(system.wall_ahead_s(), -600);
    let reset = ["--json", "osd", "clock", "reset", "--data", text(&data)];
    assert_eq!(system.run(&reset).ok().json()["reset"], true);
    eventually("the clock is kept", || system.wall_ahead_s() == 0);
    eventually("the system serves", || system.works("/reset").is_ok());
    // Without a running daemon the next start applies it.
    system.up = None;
    system.shift(600);
    assert_eq!(system.run(&reset).ok().json()["reset"], false);
    system.start_up();
    eventually("the clock is kept", || system.wall_ahead_s() == 0);
    system.works("/started").expect("after the reset");
    let nowhere = system.path("nowhere");
    fs::create_dir(&nowhere).expect("created");
    system.run(&["osd", "clock", "show", "--data", text(&nowhere)]).fails(4).says(&["device.toml"]);
}
