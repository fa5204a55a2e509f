//! Hostile, faulty and slow peers over real sockets, while other clients are served.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::support::{ANSWER_MAX, Client, Disk, NAME, PANIC, Running, SLEEP};
use sealstone_iscsi::initiator::{InitiatorClosed, InitiatorEvent, ManagementFunction, ManagementResult};
use sealstone_iscsi_target::{
    ConnectionRate, Counter, RefusalRecord, RefusalSink, RefusalSinkHandle, TargetConfig,
};
use sealstone_scsi::lu::Cost;

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(120), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the default limits, which no client exceeds that is only slow because the machine is
/// busy.
fn config() -> TargetConfig {
    let mut config = TargetConfig::new(NAME);
    config.drain_seconds = 1;
    config
}

/// Returns limits for peers that are slow on purpose. A login has more time, since the test logs in
/// as well.
fn config_for_slow_peers() -> TargetConfig {
    let mut config = config();
    config.protocol.login_timeout_ms = 2000;
    config.protocol.pdu_timeout_ms = 500;
    config.protocol.transfer_timeout_ms = 500;
    config.write_timeout_ms = 500;
    config
}

/// Runs a correct client until stopped; returns its number of rounds.
fn at_work(address: std::net::SocketAddr, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<u32> {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let mut client = Client::login(address, 99);
        let mut rounds = 0;
        while !stop.load(Ordering::SeqCst) {
            client.check(rounds as u8);
            rounds += 1;
        }
        rounds
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_connections_do_not_disturb_client() {
    let mut config = config();
    config.connections_max = 40;
    let running = Running::start(config, Disk::new(16 << 20, Cost::Inline)).await;
    let stop = Arc::new(AtomicBool::new(false));
    let worker = at_work(running.address, &stop);
    let counters = Arc::clone(running.target.counters());
    eventually("the worker logs in", || counters.get(Counter::SessionsOpen) == 1).await;
    let address = running.address;
    blocking(move || {
        for n in 0..10_000_u32 {
            let mut stream = TcpStream::connect(address).unwrap();
            if n % 3 == 0 {
                let _ = stream.write_all(&n.to_be_bytes().repeat(n as usize % 40));
            }
        }
    })
    .await;
    stop.store(true, Ordering::SeqCst);
    assert!(worker.join().unwrap() > 10);
    assert!(counters.get(Counter::ConnectionsAccepted) > 9_000);
    eventually("all connections have ended", || counters.get(Counter::ConnectionsOpen) == 0).await;
    assert_eq!(running.target.memory().used(), 0);
    running.stop().await;
}

/// Connects from another address of this machine.
async fn from(source: &str, to: std::net::SocketAddr) -> std::io::Result<TcpStream> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind(format!("{source}:0").parse().unwrap())?;
    let stream = socket.connect(to).await?.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[derive(Default)]
struct CollectedRefusals(std::sync::Mutex<Vec<(String, &'static str, &'static str, u64)>>);

impl RefusalSink for CollectedRefusals {
    fn refused(&self, refused: &RefusalRecord<'_>) {
        let record = (refused.source.to_owned(), refused.action, refused.reason, refused.count);
        self.0.lock().unwrap().push(record);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_from_one_source_spares_others() {
    const FLOOD: u64 = 2000;
    let collected = Arc::new(CollectedRefusals::default());
    let mut config = config();
    config.connection_rate_per_source = ConnectionRate { burst: 20, per_second: 1 };
    config.refusal_sink = RefusalSinkHandle::by(collected.clone());
    let running = Running::start(config, Disk::new(16 << 20, Cost::Inline)).await;
    let address = running.address;
    let worker = blocking(move || Client::login(address, 9)).await;
    for n in 0..FLOOD {
        // A connection that is reset before the target saw it was refused too.
        if let Ok(mut stream) = from("127.0.0.2", address).await {
            let _ = stream.write_all(&[0x43; 48][..n as usize % 48]);
        }
    }
    let counters = Arc::clone(running.target.counters());
    eventually("the target has seen all of them", || counters.get(Counter::ConnectionsAccepted) == FLOOD + 1)
        .await;
    assert!(counters.get(Counter::ConnectionsThrottled) > FLOOD / 2);
    blocking(move || {
        let mut worker = worker;
        worker.check(1);
        for port in 0..10 {
            Client::login(address, port).check(port);
        }
    })
    .await;
    running.stop().await;
    let collected = collected.0.lock().unwrap();
    let throttled = collected.iter().filter(|(.., reason, _)| *reason == "too-fast");
    assert!(throttled.clone().all(|(source, action, ..)| source == "127.0.0.2" && *action == "connect"));
    assert_eq!(
        throttled.clone().map(|(.., count)| count).sum::<u64>(),
        counters.get(Counter::ConnectionsThrottled)
    );
    assert!(throttled.count() < 20, "a flood causes few records");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_logins_evict_silent_connections() {
    let mut config = config();
    config.logins_per_source_max = 5;
    let running = Running::start(config, Disk::new(16 << 20, Cost::Inline)).await;
    let address = running.address;
    let counters = Arc::clone(running.target.counters());
    let mut silent = Vec::new();
    for _ in 0..5 {
        silent.push(from("127.0.0.2", address).await.unwrap());
    }
    eventually("all five are connected", || counters.get(Counter::ConnectionsOpen) == 5).await;
    let sixth = from("127.0.0.2", address).await.unwrap();
    let mut first = silent.remove(0);
    silent.push(sixth);
    blocking(move || {
        first.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        assert!(matches!(first.read(&mut [0]), Ok(0) | Err(_)), "closed");
        // More than five, as long as each login finishes.
        let mut clients: Vec<Client> = (0..8).map(|port| Client::login(address, port)).collect();
        clients.iter_mut().for_each(|client| client.check(1));
    })
    .await;
    assert_eq!(counters.get(Counter::LoginsCrowded), 1);
    drop(silent);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_input_ends_only_its_connection() {
    let running = Running::start(config(), Disk::new(16 << 20, Cost::Inline)).await;
    let stop = Arc::new(AtomicBool::new(false));
    let worker = at_work(running.address, &stop);
    let address = running.address;
    blocking(move || {
        // Each one after a login, in full feature phase, and each one before login.
        let mut oversized = [0_u8; 48];
        oversized[..8].copy_from_slice(&[0x01, 0xA0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
        let noise: Vec<u8> = (0..5000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for bytes in [&oversized[..], &noise, &[0x43; 48], &[0x3F; 480], &[0; 4800]] {
            for login in [false, true] {
                let mut stream = if login {
                    Client::login(address, 7).stream
                } else {
                    TcpStream::connect(address).unwrap()
                };
                stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
                let _ = stream.write_all(bytes);
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            }
        }
    })
    .await;
    stop.store(true, Ordering::SeqCst);
    assert!(worker.join().unwrap() > 0);
    assert!(running.target.counters().get(Counter::Violations) > 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_peers_are_disconnected() {
    let running = Running::start(config_for_slow_peers(), Disk::new(16 << 20, Cost::Inline)).await;
    let address = running.address;
    blocking(move || {
        let mut silent = TcpStream::connect(address).unwrap();
        silent.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        assert_eq!(silent.read(&mut [0]).unwrap(), 0, "login timeout");
        // A PDU that starts and never completes, although bytes keep arriving.
        let mut client = Client::login(address, 1);
        let begin = Instant::now();
        while client.stream.write_all(&[0]).is_ok() {
            assert!(begin.elapsed() < ANSWER_MAX, "the connection is still open");
            std::thread::sleep(Duration::from_millis(20));
        }
        // A write whose data never arrives.
        let mut client = Client::login(address, 2);
        client.submit(&[0x2A, 0, 0, 0, 0, 0, 0, 0, 8], &vec![1; 8 << 20], 0);
        let command = client.machine.poll_transmit().unwrap();
        client.stream.write_all(&command).unwrap();
        while client.machine.poll_transmit().is_some() {}
        assert!(matches!(client.ending(), InitiatorClosed::EndOfStream));
    })
    .await;
    let counters = running.target.counters();
    eventually("timeouts are counted", || {
        counters.get(Counter::LoginTimeouts) == 1 && counters.get(Counter::ReadTimeouts) == 2
    })
    .await;
    eventually("memory is freed", || running.target.memory().used() == 0).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn non_reading_client_is_bounded_and_closed() {
    let running = Running::start(config_for_slow_peers(), Disk::new(16 << 20, Cost::Inline)).await;
    let address = running.address;
    let client = blocking(move || {
        let mut client = Client::login(address, 1);
        for _ in 0..100 {
            client.submit(&[0x28, 0, 0, 0, 0, 0, 0, 0x20, 0], &[], 4 << 20);
        }
        client.send();
        client
    })
    .await;
    let most = running.target.memory().used();
    assert!(most <= 24 << 20, "{most} bytes for a client that does not read");
    let counters = Arc::clone(running.target.counters());
    eventually("the connection is closed", || counters.get(Counter::WriteTimeouts) == 1).await;
    eventually("memory is freed", || running.target.memory().used() == 0).await;
    drop(client);
    running.stop().await;
}

/// An initiator that reads 512 bytes at a time gets only as many commands done as it reads answers
/// of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_segments_do_not_grow_memory() {
    let running = Running::start(config(), Disk::new(16 << 20, Cost::Inline)).await;
    let address = running.address;
    let client = blocking(move || {
        let mut client = Client::login_with(address, 1, |config| config.policy.max_receive = 512);
        for _ in 0..100 {
            client.submit(&[0x28, 0, 0, 0, 0, 0, 0, 0x20, 0], &[], 4 << 20);
        }
        client.send();
        client
    })
    .await;
    let counters = Arc::clone(running.target.counters());
    eventually("the first commands are done", || counters.get(Counter::Commands) > 0).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    // The buffers of the system took some output; beyond that there is one answer, and at most one
    // more.
    let most = running.target.memory().used();
    assert!(most <= 8 << 20, "{most} bytes for a client that does not read");
    drop(client);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_beyond_the_limit_is_refused() {
    let mut config = config();
    config.connections_max = 1;
    let running = Running::start(config, Disk::new(16 << 20, Cost::Inline)).await;
    let address = running.address;
    blocking(move || {
        let mut first = Client::login(address, 1);
        // Connections that send nothing take no session slot.
        let _silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert!(
            std::panic::catch_unwind(|| Client::login(address, 2)).is_err(),
            "no place for a second session"
        );
        first.check(3);
    })
    .await;
    assert_eq!(running.target.counters().get(Counter::ConnectionsRefused), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_login_replaces_session_of_port() {
    let disk = Disk::new(16 << 20, Cost::Inline);
    let running = Running::start(config(), disk.clone()).await;
    let address = running.address;
    blocking(move || {
        let mut old = Client::login(address, 1);
        // With commands in progress whose answers it does not read.
        for _ in 0..20 {
            old.submit(&[0x28, 0, 0, 0, 0, 0, 0, 0x20, 0], &[], 4 << 20);
        }
        old.send();
        let mut new = Client::login(address, 1);
        new.check(1);
        assert_eq!(disk.nexuses.load(Ordering::SeqCst), 1);
        assert!(matches!(old.ending(), InitiatorClosed::EndOfStream));
        new.machine.logout();
        assert_eq!(new.ending(), InitiatorClosed::LoggedOut);
    })
    .await;
    assert_eq!(running.target.counters().get(Counter::SessionsReinstated), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panicking_command_harms_only_itself() {
    for cost in [Cost::Inline, Cost::Blocking] {
        let running = Running::start(config(), Disk::new(16 << 20, cost)).await;
        let address = running.address;
        blocking(move || {
            let mut client = Client::login(address, 1);
            let response = client.run(&[PANIC], &[], 0);
            assert_eq!((response.status, response.sense[2], response.sense[12]), (2, 4, 0x44));
            client.check(1);
        })
        .await;
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_command_does_not_delay_others() {
    let disk = Disk::new(16 << 20, Cost::Inline);
    let running = Running::start(config(), disk.clone()).await;
    let address = running.address;
    blocking(move || {
        let mut client = Client::login(address, 1);
        let slow = client.submit(&[SLEEP], &[], 0);
        client.check(1);
        let InitiatorEvent::Completed { task, .. } = client.event() else { panic!() };
        assert_eq!(task, slow);
        // A nexus is lost only after its commands have ended.
        client.submit(&[SLEEP], &[], 0);
        client.machine.logout();
        assert_eq!(client.ending(), InitiatorClosed::LoggedOut);
        assert_eq!(disk.nexuses.load(Ordering::SeqCst), 1);
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lun_reset_reaches_unit_and_sessions() {
    let disk = Disk::new(16 << 20, Cost::Inline);
    let running = Running::start(config(), disk.clone()).await;
    let address = running.address;
    blocking(move || {
        let mut first = Client::login(address, 1);
        let mut second = Client::login(address, 2);
        second.submit(&[SLEEP], &[], 0);
        second.send();
        second.check(1);
        assert_eq!(first.manage(ManagementFunction::LogicalUnitReset(0)), ManagementResult::Complete);
        assert_eq!(first.manage(ManagementFunction::LogicalUnitReset(5 << 48)), ManagementResult::NoSuchLun);
        assert_eq!(disk.resets.load(Ordering::SeqCst), 1);
        std::thread::sleep(Duration::from_millis(400));
        // The sleeping command ended without an answer; all others continue.
        second.check(2);
        first.check(3);
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_target_itself_reports_its_units() {
    let running = Running::start(config(), Disk::new(16 << 20, Cost::Inline)).await;
    let address = running.address;
    blocking(move || {
        let mut client = Client::login(address, 1);
        let response = client.run(&[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 64], &[], 64);
        assert_eq!(
            &response.data_in.as_slice()[..response.data_in_length],
            [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_requests_logout_and_then_closes() {
    let mut config = config();
    config.drain_seconds = 3;
    let running = Running::start(config, Disk::new(16 << 20, Cost::Inline)).await;
    let address = running.address;
    let (polite, stubborn) = blocking(move || (Client::login(address, 1), Client::login(address, 2))).await;
    let polite = std::thread::spawn(move || {
        let mut polite = polite;
        assert!(matches!(polite.event(), InitiatorEvent::LogoutRequested { seconds: 3 }));
        polite.check(1);
        polite.machine.logout();
        assert_eq!(polite.ending(), InitiatorClosed::LoggedOut);
    });
    let begin = Instant::now();
    running.stop().await;
    assert!((2900..60_000).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    polite.join().unwrap();
    let mut stubborn = stubborn;
    assert_eq!(stubborn.ending(), InitiatorClosed::EndOfStream);
    assert!(TcpStream::connect(address).is_err(), "the port is closed");
}
