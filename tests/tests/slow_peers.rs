//! Slow and silent clients, and clients that never read: the metadata server disconnects them, and
//! others are served.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use sealstone_tests::{System, run_with_input, tls};

/// Timeouts of the server, in seconds.
const LOGIN_S: u64 = 4;
const FRAME_S: u64 = 1;
/// Tolerance above them; generous, because tests share two cores.
const SLACK: Duration = Duration::from_secs(60);

/// A complete Hello: header (magic, version, profile, a request, flags, length, sequence), then
/// request id, operation 1, schema, oldest and newest version, no software name.
const HELLO: [u8; 34] = [
    b'O', b'S', b'M', b'A', 1, 1, 0x30, 0, 0, 0, 0, 18, 0, 0, 0, 0, //
    0, 0, 0, 0, 0, 0, 0, 7, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0,
];

fn system() -> System {
    let (login, frame) = (LOGIN_S.to_string(), FRAME_S.to_string());
    let system = System::start_with_mds(1, "1G", &[], &["--login-s-max", &login, "--frame-s-max", &frame]);
    run_with_input(system.command(&["put", "-", "/file"]), b"here").ok();
    system
}

#[track_caller]
fn serves_others(system: &System) {
    assert_eq!(system.run(&["cat", "/file"]).ok().stdout, b"here");
}

/// Reads until the server closes, and returns how long that took.
#[track_caller]
fn closes(stream: &mut impl Read, since: Instant, within: Duration) -> Duration {
    let mut rest = [0; 4096];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("the connection is still open after {:?}", since.elapsed())
            }
            Err(_) => break,
        }
        assert!(since.elapsed() < within, "the server goes on talking");
    }
    since.elapsed()
}

#[test]
fn incomplete_frame_times_out() {
    let system = system();
    let address = system.mds().field("address").to_owned();
    for begun in [1, 10, 16, 20, HELLO.len() - 1] {
        let mut peer = tls::connect(&address);
        // The connection works: a complete frame is answered.
        peer.write_all(&HELLO).expect("taken");
        let mut answer = [0; 16];
        peer.read_exact(&mut answer).expect("answered");
        assert_eq!((&answer[..4], answer[6]), (&b"OSMA"[..], 0x31));
        peer.write_all(&HELLO[..begun]).and_then(|()| peer.flush()).expect("taken");
        let since = Instant::now();
        peer.sock.set_read_timeout(Some(SLACK)).expect("a timeout can be set");
        let took = closes(&mut peer, since, SLACK);
        assert!(took < Duration::from_secs(FRAME_S) + SLACK / 2, "{begun}: {took:?}");
        serves_others(&system);
    }
}

#[test]
fn trickling_frame_times_out() {
    let system = system();
    let mut peer = tls::connect(system.mds().field("address"));
    let since = Instant::now();
    // One byte each 150 ms: the whole would take five seconds.
    let sent = HELLO.iter().take_while(|byte| {
        std::thread::sleep(Duration::from_millis(150));
        peer.write_all(&[**byte]).and_then(|()| peer.flush()).is_ok()
    });
    let sent = sent.count();
    assert!(sent < HELLO.len(), "the frame was taken after {:?}", since.elapsed());
    peer.sock.set_read_timeout(Some(SLACK)).expect("a timeout can be set");
    closes(&mut peer, since, SLACK);
    assert!(since.elapsed() < Duration::from_secs(LOGIN_S) + SLACK, "{:?} for {sent} bytes", since.elapsed());
    serves_others(&system);
}

#[test]
fn silence_before_a_login_is_ended() {
    let system = system();
    let address = system.mds().field("address").to_owned();
    let since = Instant::now();
    let mut plain = std::net::TcpStream::connect(&address).expect("the port is open");
    let mut secure = tls::connect(&address);
    secure.write_all(&HELLO).and_then(|()| secure.flush()).expect("taken");
    serves_others(&system);
    let limit = Duration::from_secs(LOGIN_S) + SLACK;
    plain.set_read_timeout(Some(limit)).expect("a timeout can be set");
    secure.sock.set_read_timeout(Some(limit)).expect("a timeout can be set");
    let took = closes(&mut plain, since, limit).max(closes(&mut secure, since, limit));
    assert!(took > Duration::from_secs(LOGIN_S) / 2, "{took:?} is too soon");
    serves_others(&system);
}

/// A client that sends requests and never reads fills its own connection until the timeout.
#[test]
fn a_client_that_never_reads_is_cut_off() {
    let system = system();
    let before = system.mds().resident_bytes();
    let mut peer = tls::connect(system.mds().field("address"));
    peer.sock.set_write_timeout(Some(SLACK)).expect("a timeout can be set");
    let many = HELLO.repeat(100);
    let since = Instant::now();
    let mut sent = 0;
    while peer.write_all(&many).is_ok() {
        sent += many.len();
        assert!(sent < 64 << 20, "the server takes greetings whose answers nobody reads");
        assert!(since.elapsed() < Duration::from_secs(LOGIN_S) + 2 * SLACK, "{sent} bytes");
    }
    serves_others(&system);
    let growth = system.mds().resident_bytes().saturating_sub(before);
    assert!(growth < 64 << 20, "{} MiB more", growth >> 20);
}
