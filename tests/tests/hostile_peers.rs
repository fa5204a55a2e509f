//! Peers that send arbitrary or hostile data: they are refused or disconnected, and others are
//! served meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_mds_protocol::login::{KE1_BYTES, LoginError, LoginErrorCode, LoginStart, SUITE_STANDARD};
use sealstone_mds_protocol::{
    HEADER_BYTES as HEADER_LENGTH, MessageType, UserName, decode_message, encode_message,
};
use sealstone_tests::initiator::{HEADER_BYTES, Initiator, header, login, ping};
use sealstone_tests::{Daemon, System, get, run_with_input, text, tls};

/// Connections to a device in the flood, and threads that open them.
const DEVICE_CONNECTIONS: usize = 10_000;
/// Connections to the metadata server, which keeps at most 128 from one address before login.
const MDS_CONNECTIONS: usize = 10_000;
const FLOODERS: usize = 16;
/// Maximum duration of a flood; generous, because tests share two cores.
const FLOOD_MAX: Duration = Duration::from_secs(600);
/// Maximum time until a daemon closes a connection.
const CLOSE_MAX: Duration = Duration::from_secs(100);
/// Timeout of logins, in seconds, which does not close a connection within [`CLOSE_MAX`].
const PATIENT_S: &str = "1000";
/// Maximum memory growth of a daemon after an attack, in bytes.
const GROWTH_BYTES_MAX: u64 = 96 << 20;

/// A system with one file, and the check that it is served.
struct ServedSystem {
    system: System,
    content: Vec<u8>,
}

impl ServedSystem {
    fn start(flags: &[&str]) -> Self {
        Self::start_with_mds(flags, &[])
    }

    fn start_with_mds(flags: &[&str], mds_flags: &[&str]) -> Self {
        let system = System::start_with_mds(1, "1G", flags, mds_flags);
        let content: Vec<u8> = (0..700_000u32).map(|index| (index >> 3) as u8).collect();
        run_with_input(system.command(&["put", "-", "/file"]), &content).ok();
        Self { system, content }
    }

    fn device(&self) -> (String, String) {
        let osd = self.system.osd(0);
        (osd.field("address").to_owned(), osd.field("url").to_owned())
    }

    #[track_caller]
    fn serves_others(&self) {
        assert!(self.system.run(&["cat", "/file"]).ok().stdout == self.content);
        run_with_input(self.system.command(&["put", "-", "/new"]), b"new").ok();
        for daemon in [self.system.osd(0), self.system.mds()] {
            assert_eq!(daemon.stderr(), "", "a daemon complains on standard error");
        }
    }
}

/// Returns pseudorandom bytes.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

/// Waits until the other end closes or resets, and fails after a timeout.
#[track_caller]
fn closes(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(CLOSE_MAX)).expect("a timeout can be set");
    let mut rest = [0; 4096];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("the connection is still open after {CLOSE_MAX:?}")
            }
            Err(_) => return,
        }
    }
}

#[test]
fn garbage_closes_only_its_device_connection() {
    let served = ServedSystem::start(&["--login-s-max", "2"]);
    let (address, url) = served.device();
    let target = url.rsplit('/').nth(1).expect("iscsi://HOST:PORT/IQN/LUN");

    // Before login: noise, another protocol, a command, a login longer than sent or longer than
    // allowed.
    for seed in 0..40 {
        let mut peer = Initiator::connect(&address);
        peer.offer(&noise(4000, seed));
        let _ = peer.stream.shutdown(Shutdown::Write);
        peer.wait_until_closed();
    }
    let mut peer = Initiator::connect(&address);
    peer.offer(b"GET / HTTP/1.1\r\nHost: device\r\nAccept: everything there is\r\n\r\n");
    peer.wait_until_closed();
    let mut peer = Initiator::connect(&address);
    peer.offer(&header(0x01, 0xC1, 0));
    peer.wait_until_closed();
    let mut peer = Initiator::connect(&address);
    peer.offer(&header(0x43, 0x87, 0xFF_FFFF));
    peer.offer(&vec![b'x'; 100_000]);
    peer.wait_until_closed();
    let mut truncated = login("short", target);
    truncated.truncate(HEADER_BYTES + 10);
    let mut peer = Initiator::connect(&address);
    peer.offer(&truncated);
    closes(&mut peer.stream);

    // A login that never ends, byte by byte: closed after the timeout.
    let slow = login("slow", target);
    let mut peer = Initiator::connect(&address);
    for byte in slow.iter().take(HEADER_BYTES + 20) {
        if peer.stream.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(40));
    }
    closes(&mut peer.stream);

    // After login: noise, an unknown opcode, a data segment above the negotiated size, a header
    // digest that was not negotiated.
    for (index, bytes) in
        [noise(4000, 99), header(0x3B, 0x80, 0), [header(0x01, 0xC1, 0xFF_FFFF), vec![0; 1 << 20]].concat()]
            .iter()
            .enumerate()
    {
        let mut peer = Initiator::login(&address, &url, &format!("bad{index}"));
        assert!(peer.inquiry().len() >= 36);
        peer.offer(bytes);
        let _ = peer.stream.shutdown(Shutdown::Write);
        peer.wait_until_closed();
    }
    // Disconnects in the middle of a PDU.
    for length in [1, 20, 47, 48, 60] {
        let mut peer = Initiator::login(&address, &url, "gone");
        peer.offer(&ping(100)[..length]);
        drop(peer);
        served.system.run(&["stat", "/file"]).ok();
    }
    served.serves_others();
}

/// A command without a credential is refused.
#[test]
fn a_command_without_credential_is_refused() {
    let served = ServedSystem::start(&[]);
    let (address, url) = served.device();
    // READ of OSD-2 with an empty capability: no security. The rest of the CDB is in an additional
    // header.
    let mut cdb = [0u8; 236];
    (cdb[0], cdb[7]) = (0x7F, 228);
    cdb[8..10].copy_from_slice(&0x8885u16.to_be_bytes());
    cdb[16..24].copy_from_slice(&0x1_0000u64.to_be_bytes());
    cdb[24..32].copy_from_slice(&0x1_0000u64.to_be_bytes());
    cdb[32..40].copy_from_slice(&4096u64.to_be_bytes());
    let mut pdu = header(0x01, 0xC1, 0);
    pdu[4] = 56;
    pdu[16..20].copy_from_slice(&5u32.to_be_bytes());
    pdu[20..24].copy_from_slice(&4096u32.to_be_bytes());
    pdu[24..28].copy_from_slice(&1u32.to_be_bytes());
    pdu[32..48].copy_from_slice(&cdb[..16]);
    pdu.extend_from_slice(&[0, 221, 1, 0]);
    pdu.extend_from_slice(&cdb[16..]);
    let mut peer = Initiator::login(&address, &url, "thief");
    peer.send(&pdu);
    let answer = peer.answer().expect("an answer");
    assert_eq!(answer[0] & 0x3F, 0x21, "a response, no data");
    assert_eq!(answer[3], 0x02, "CHECK CONDITION");
    served.serves_others();
}

/// A client that sends requests and never reads fills only its own connection.
#[test]
fn client_that_never_reads_harms_no_other() {
    let served = ServedSystem::start(&[]);
    let (address, url) = served.device();
    let before = served.system.osd(0).resident_bytes();
    let echo = ping(8000);
    let mut greedy: Vec<Initiator> = (0..4)
        .map(|index| {
            let mut peer = Initiator::login(&address, &url, &format!("greedy{index:03}"));
            peer.stream.set_write_timeout(Some(Duration::from_millis(300))).expect("it can be set");
            let mut sent = 0;
            // Until no more bytes are accepted, or far beyond any buffer.
            while sent < 64 << 20 && peer.stream.write_all(&echo).is_ok() {
                sent += echo.len();
            }
            assert!(sent < 64 << 20, "the device takes pings whose answers nobody reads");
            peer
        })
        .collect();
    served.serves_others();
    let growth = served.system.osd(0).resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_BYTES_MAX, "{} MiB more", growth >> 20);
    greedy.clear();
    served.serves_others();
}

/// Connects; `None` if the daemon reset the connection at once, as it does above its rate limit.
/// Waits for local ports in TIME_WAIT, which are not the daemon's fault.
fn connect(address: &str) -> std::io::Result<Option<TcpStream>> {
    let start = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable && start.elapsed() < FLOOD_MAX => {
                std::thread::sleep(Duration::from_millis(50));
            }
            // The reset may arrive before `connect` returns.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
            outcome => return outcome.map(Some),
        }
    }
}

/// Opens and drops connections from several threads, with and without a few bytes.
fn flood(address: &str, count: usize, hello: &[u8]) -> Duration {
    let start = Instant::now();
    let hello: Arc<[u8]> = hello.into();
    let threads: Vec<_> = (0..FLOODERS)
        .map(|thread| {
            let (address, hello) = (address.to_owned(), hello.clone());
            std::thread::spawn(move || {
                for index in 0..count / FLOODERS {
                    let taken = connect(&address).unwrap_or_else(|error| {
                        panic!("connection {index} of thread {thread} is not taken: {error}")
                    });
                    let bytes = [0, hello.len() / 2, hello.len()][index % 3];
                    if let Some(mut stream) = taken {
                        let _ = stream.write_all(&hello[..bytes]);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a flooder"));
    start.elapsed()
}

/// Waits until a daemon has no more open descriptors than before, except for its own connections.
#[track_caller]
fn calms_down(daemon: &Daemon, before: usize) {
    let start = Instant::now();
    while daemon.descriptors() > before + 4 {
        assert!(start.elapsed() < FLOOD_MAX, "{} descriptors, {before} before", daemon.descriptors());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn device_releases_ten_thousand_connections() {
    let served = ServedSystem::start(&[]);
    let (address, url) = served.device();
    let osd = served.system.osd(0);
    let (descriptors, memory) = (osd.descriptors(), osd.resident_bytes());
    let target = url.rsplit('/').nth(1).expect("iscsi://HOST:PORT/IQN/LUN");
    let took = flood(&address, DEVICE_CONNECTIONS, &login("flood", target));
    assert!(took < FLOOD_MAX, "{took:?}");
    calms_down(osd, descriptors);
    let growth = osd.resident_bytes().saturating_sub(memory);
    assert!(growth < GROWTH_BYTES_MAX, "{} MiB more", growth >> 20);
    served.serves_others();
}

/// Connects from another loopback address, as another machine would.
fn connect_from(source: &str, address: &str) -> std::io::Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind(format!("{source}:0").parse().expect("an address"))?;
        socket.connect(address.parse().expect("an address")).await?.into_std()
    })?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Opens connections that send nothing, as many as are accepted.
fn silent(count: usize, sources: &[&str], address: &str) -> Vec<TcpStream> {
    let sources = sources.iter().cycle().take(count);
    sources.filter_map(|source| connect_from(source, address).ok()).collect()
}

/// 600 silent connections from each of two addresses keep no client out of the metadata server or a
/// device.
#[test]
fn silent_connections_block_no_client() {
    let served = ServedSystem::start(&["--connections-max", "64"]);
    for daemon in [served.system.mds(), served.system.osd(0)] {
        let address = daemon.field("address").to_owned();
        let silent = silent(1200, &["127.0.0.2", "127.0.0.3"], &address);
        assert!(silent.len() >= 400, "{} connections were taken", silent.len());
        served.system.run(&["cat", "/file"]).ok();
        served
            .system
            .run(&[
                "login",
                "admin",
                "--cluster",
                text(&served.system.cluster()),
                "--password-file",
                text(&served.system.path("mds").join("admin-secret")),
            ])
            .ok();
        drop(silent);
    }
    served.serves_others();
}

/// Guesses at an account from several networks do not delay its user's first login from another
/// one.
#[test]
fn login_flood_does_not_keep_user_out() {
    let served = ServedSystem::start(&[]);
    let address = served.system.mds().field("address").to_owned();
    let password = served.system.path("alice-password");
    std::fs::write(&password, "correct horse battery\n").expect("written");
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).expect("narrowed");
    served.system.run(&["user", "add", "alice", "--password-file", text(&password)]).ok();
    // An invalid point still counts as an attempt.
    let user = UserName::new("alice").expect("a name");
    let start = LoginStart { suite: SUITE_STANDARD, user, capabilities: 0, ke1: [0xFF; KE1_BYTES] };
    let frame = encode_message(MessageType::LoginStart, 0, &start).expect("a frame");
    let mut limited = 0;
    for n in 0..100u32 {
        let source = format!("127.{}.0.9", 1 + n % 4);
        let mut peer = tls::over(connect_from(&source, &address).expect("the port is open"));
        if peer.write_all(&frame).and_then(|()| peer.flush()).is_err() {
            continue;
        }
        let mut answer = vec![0; 4096];
        let got = peer.read(&mut answer).unwrap_or(0);
        answer.truncate(got);
        let error = answer.get(HEADER_LENGTH..).map(decode_message::<LoginError>);
        limited += u32::from(matches!(error, Some(Ok(error)) if error.code == LoginErrorCode::Busy));
    }
    assert!(limited >= 20, "{limited} attempts were limited");
    let (cluster, session) = (served.system.cluster(), served.system.path("alice.toml"));
    let login = ["login", "alice", "--cluster", text(&cluster), "--password-file", text(&password)];
    let mut command = served.system.command(&login);
    command.env("SEALSTONE_SESSION", session);
    run_with_input(command, b"").ok();
    served.serves_others();
}

/// Silent connections to the metrics port, which has no login, keep no scraper out.
#[test]
fn silent_connections_do_not_close_the_metrics_port() {
    let flags = ["--metrics", "127.0.0.1:0"];
    let system = System::start_with_mds(1, "1G", &flags, &flags);
    for daemon in [system.mds(), system.osd(0)] {
        let address = daemon.field("metrics").to_owned();
        let silent = silent(600, &["127.0.0.2"], &address);
        assert_eq!(get(&address, "/healthz"), (200, "ok\n".to_owned()));
        drop(silent);
    }
}

/// A silent connection beyond the share of its address closes the oldest one, and slots become free
/// again.
#[test]
fn share_of_an_address_closes_its_oldest_connection() {
    let served = ServedSystem::start(&["--logins-per-address-max", "12", "--login-s-max", PATIENT_S]);
    let (address, _) = served.device();
    let mut held = silent(13, &["127.0.0.9"], &address);
    closes(&mut held[0]);
    held.clear();
    served.serves_others();
}

#[test]
fn garbage_closes_only_its_mds_connection() {
    let served = ServedSystem::start_with_mds(&[], &["--login-s-max", PATIENT_S]);
    let address = served.system.mds().field("address").to_owned();
    // Before TLS: noise, another protocol, a record with the maximum length that ends early.
    for seed in 0..40 {
        let mut stream = TcpStream::connect(&address).expect("the port is open");
        let _ = stream.write_all(&noise(3000, seed));
        let _ = stream.shutdown(Shutdown::Write);
        closes(&mut stream);
    }
    for hello in [
        &b"GET / HTTP/1.1\r\nHost: mds\r\n\r\n"[..],
        b"SSH-2.0-OpenSSH_9.2\r\n",
        &[0x16, 3, 1, 0xFF, 0xFF, 1, 0, 0],
    ] {
        let mut stream = TcpStream::connect(&address).expect("the port is open");
        let _ = stream.write_all(hello);
        let _ = stream.shutdown(Shutdown::Write);
        closes(&mut stream);
    }
    // Inside TLS: noise, a frame of the maximum length, empty frames repeatedly.
    let mut huge = FRAME.to_vec();
    huge[8..12].fill(0xFF);
    let mut large = FRAME.to_vec();
    large[8..12].copy_from_slice(&65_536u32.to_be_bytes());
    large.extend(noise(65_536, 5));
    for bytes in [noise(3000, 7), vec![0; 3000], vec![0xFF; 100_000], huge, large, FRAME.repeat(1000)] {
        let mut tls = tls::connect(&address);
        let sent = tls.write_all(&bytes).and_then(|()| tls.flush());
        if sent.is_ok() {
            tls.sock.set_read_timeout(Some(CLOSE_MAX)).expect("a timeout can be set");
            let mut answer = Vec::new();
            if let Err(error) = tls.read_to_end(&mut answer) {
                assert!(
                    !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
                    "the server neither answers nor closes after {} bytes",
                    bytes.len()
                );
            }
        }
    }
    // Slow clients, in the handshake and after it, do not affect others.
    let _silent: Vec<TcpStream> =
        (0..50).map(|_| TcpStream::connect(&address).expect("the port is open")).collect();
    let mut slow = tls::connect(&address);
    slow.write_all(&FRAME[..5]).and_then(|()| slow.flush()).expect("taken");
    served.serves_others();
}

/// A frame header without a body: magic, version, profile, a request, flags, length, sequence.
const FRAME: [u8; 16] = [b'O', b'S', b'M', b'A', 1, 1, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn mds_releases_ten_thousand_connections() {
    let served = ServedSystem::start(&[]);
    let address = served.system.mds().field("address").to_owned();
    let mds = served.system.mds();
    let (descriptors, memory) = (mds.descriptors(), mds.resident_bytes());
    // Starts like a ClientHello, so that the handshake waits for the rest.
    let took = flood(&address, MDS_CONNECTIONS, &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3, 0]);
    assert!(took < FLOOD_MAX, "{took:?}");
    calms_down(mds, descriptors);
    let growth = mds.resident_bytes().saturating_sub(memory);
    assert!(growth < GROWTH_BYTES_MAX, "{} MiB more", growth >> 20);
    served.serves_others();
}
