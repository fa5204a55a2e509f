//! The whole server over real sockets and TLS, in one process.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use core::time::Duration;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};
use rand::rngs::OsRng;
use sealstone_channel::TlsError;
use sealstone_mds::{DirectoryEntry, DirectoryError, DirectoryLookup, Entropy, UserDirectory};
use sealstone_mds_protocol::login::{LoginError, LoginErrorCode};
use sealstone_mds_protocol::{
    Access, AccountKind, BODY_MAX, DeviceState, ErrorCode, FilePath, FrameHeader, MessageType, Method, Name,
    NewDevice, Node, NodeChange, Request, Response, Role, Secret, Text, UserName, decode_message,
};
use sealstone_mds_server::{Environment, Limits, SetupError, init, open, serve_stream};
use support::{Client, admin, running, running_in};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

fn path(text: &str) -> FilePath {
    FilePath::new(text).unwrap()
}

fn device(i: u8) -> NewDevice {
    NewDevice {
        name: Name::new(format!("osd{i}")).unwrap(),
        system_id: [i; 20],
        url: Text::new(format!("iscsi://127.0.0.1:3260/iqn.2026-11.org.sealstone:osd.{i}/0")).unwrap(),
        pin: None,
        capacity: 0,
        speed: 0,
        master_key: Secret::new(vec![i; 32]).unwrap(),
    }
}

fn quick() -> Limits {
    Limits {
        tidy_every: Duration::from_millis(20),
        poll_every: Duration::from_millis(50),
        ..Limits::default()
    }
}

async fn until<T>(mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(20), wait).await.expect("in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn put_get_and_remove_over_tls() {
    let running = running(quick()).await;
    let mut client = running.login().await;
    for i in 1..=2 {
        assert!(matches!(
            client.ask(Request::DeviceAdd { device: device(i) }).await,
            Response::Device { .. }
        ));
    }
    until(async || match client.ask(Request::DeviceList { after: None, limit: 9 }).await {
        Response::Devices { devices, .. } => {
            devices.iter().all(|d| d.state == DeviceState::Active && d.total == 1 << 30).then_some(())
        }
        other => panic!("{other:?}"),
    })
    .await;
    assert_eq!(running.devices.partitions.lock().len(), 2);
    client.ask(Request::MakeDir { path: path("/a/b"), parents: true, mode: 0o755 }).await;
    let create = Request::Create {
        path: path("/a/b/f"),
        size_hint: Some(4 << 20),
        mode: 0o644,
        replace: false,
        method: Method::AllData,
    };
    let Response::Created { file } = client.ask(create).await else { panic!("created") };
    assert_eq!(file.layout.width(), 2);
    let commit = Request::Commit { intent: file.intent, size: 4 << 20, mtime_ns: None, checksum: None };
    assert!(matches!(client.ask(commit).await, Response::Stat { .. }));
    let open = Request::Open { path: path("/a/b/f"), access: Access::Read, method: Method::AllData };
    assert!(
        matches!(client.ask(open).await, Response::Opened { file: opened } if opened.layout.as_ref() == Some(&file.layout))
    );
    assert_eq!(
        client.ask(Request::Remove { path: path("/a"), recursive: true }).await,
        Response::Removed { count: 3, more: false }
    );
    until(async || (running.devices.removed.lock().len() >= 2).then_some(())).await;
    let removed: Vec<_> = running.devices.removed.lock().iter().map(|(_, object)| *object).collect();
    assert!(file.layout.objects().iter().all(|object| removed.contains(&object.object)));
    let metrics = running.server.metrics();
    assert!(metrics.contains("sealstone_mds_requests_total{request=\"Create\"} 1"), "{metrics}");
    assert!(metrics.contains("sealstone_mds_logins_total 1"), "{metrics}");
    assert!(running.server.healthy());
    running.server.shutdown().await;
    assert!(client.next().await.is_none(), "closed at shutdown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_device_is_suspended_and_restored() {
    let running = running(quick()).await;
    let mut client = running.login().await;
    client.ask(Request::DeviceAdd { device: device(1) }).await;
    let mut wait_for = async |wanted| {
        until(async || match client.ask(Request::DeviceList { after: None, limit: 1 }).await {
            Response::Devices { devices, .. } => (devices[0].state == wanted).then_some(()),
            other => panic!("{other:?}"),
        })
        .await;
    };
    wait_for(DeviceState::Active).await;
    running.devices.silent.lock().insert(1);
    wait_for(DeviceState::Unreachable).await;
    running.devices.silent.lock().clear();
    wait_for(DeviceState::Active).await;
    running.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_truncation_delays_only_its_files() {
    // The timeout is longer than the test.
    let limits = Limits { device_timeout: Duration::from_secs(3600), ..quick() };
    let running = running(limits).await;
    let mut client = running.login().await;
    for i in 1..=2 {
        client.ask(Request::DeviceAdd { device: device(i) }).await;
    }
    until(async || match client.ask(Request::DeviceList { after: None, limit: 9 }).await {
        Response::Devices { devices, .. } => {
            let all = devices.len() == 2 && devices.iter().all(|d| d.state == DeviceState::Active);
            (all && devices.iter().all(|d| d.total > 0)).then_some(())
        }
        other => panic!("{other:?}"),
    })
    .await;
    // Creates files until each device has one.
    let mut files: Vec<(u32, Node)> = Vec::new();
    while files.iter().all(|(device, _)| *device == files[0].0) {
        let create = Request::Create {
            path: path(&format!("/f{}", files.len())),
            size_hint: Some(100),
            mode: 0o644,
            replace: false,
            method: Method::AllData,
        };
        let Response::Created { file } = client.ask(create).await else { panic!("created") };
        let commit = Request::Commit { intent: file.intent, size: 100, mtime_ns: None, checksum: None };
        let Response::Stat { stat } = client.ask(commit).await else { panic!("committed") };
        files.push((file.layout.objects()[0].device.0, stat.node()));
        assert!(files.len() < 200, "both devices are used");
    }
    let (first, last) = (files[0], files[files.len() - 1]);
    running.devices.slow_to_cut.lock().insert(first.0);
    let size = |node, size| {
        let change = NodeChange { size: Some(size), ..NodeChange::default() };
        Request::SetNode { node, change, client_id: None, through: false }
    };
    for (_, node) in &files {
        assert!(matches!(client.ask(size(*node, 10)).await, Response::Stat { .. }));
    }
    until(async || matches!(client.ask(size(last.1, 20)).await, Response::Stat { .. }).then_some(())).await;
    let waits = client.ask(size(first.1, 20)).await;
    assert!(matches!(waits, Response::Failed { failure } if failure.code == ErrorCode::Busy));
    running.devices.slow_to_cut.lock().clear();
    for (_, node) in &files {
        until(async || matches!(client.ask(size(*node, 20)).await, Response::Stat { .. }).then_some(()))
            .await;
    }
    running.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn added_device_is_used_at_once() {
    let hour = Duration::from_secs(3600);
    let running = running(Limits { tidy_every: hour, poll_every: hour, ..Limits::default() }).await;
    let mut client = running.login().await;
    client.ask(Request::DeviceAdd { device: device(1) }).await;
    until(async || match client.ask(Request::DeviceList { after: None, limit: 1 }).await {
        Response::Devices { devices, .. } => {
            (devices[0].state == DeviceState::Active && devices[0].total > 0).then_some(())
        }
        other => panic!("{other:?}"),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_password_and_unknown_user_look_alike() {
    let running = running(quick()).await;
    for (name, password) in [("admin", b"wrong".to_vec()), ("nobody", running.password())] {
        let mut client = running.connect().await;
        let error = client.login(&running.server_id, name, &password).await.err().unwrap();
        assert_eq!((error.code, error.retry_ms), (LoginErrorCode::Refused, 0));
        assert!(client.next().await.is_none(), "closed");
    }
    let mut limited = false;
    for _ in 0..8 {
        let mut client = running.connect().await;
        let error = client.login(&running.server_id, "mallory", b"guess").await.err().unwrap();
        limited |= error.code == LoginErrorCode::Busy && error.retry_ms > 0;
    }
    assert!(limited, "the sixth guess has to wait");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_resumes_only_at_its_server() {
    let (first, second) = (running(quick()).await, running(quick()).await);
    let mut client = first.connect().await;
    let (ok, keys) = client.login(&first.server_id, "admin", &first.password()).await.unwrap();
    drop(client);
    let mut client = first.connect().await;
    client.resume(&ok, &keys).await.unwrap();
    assert!(matches!(client.ask(Request::WhoAmI {}).await, Response::WhoAmI { .. }));
    let mut stranger = second.connect().await;
    assert_eq!(stranger.resume(&ok, &keys).await.unwrap_err().code, LoginErrorCode::SessionExpired);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_frames_and_oversized_bodies_close_the_connection() {
    let running = running(quick()).await;
    let mut oversized = FrameHeader { kind: MessageType::Request, body_length: 0, sequence: 0 }.encode();
    oversized[8..12].copy_from_slice(&(BODY_MAX as u32 + 1).to_be_bytes());
    for bytes in [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), oversized.to_vec(), vec![0xFF; 64]] {
        let mut client = running.connect().await;
        client.send(&bytes).await;
        // An error code, if it arrives before the connection is closed, and the end.
        if let Some((header, body)) = timeout(Duration::from_secs(5), client.next()).await.unwrap() {
            assert_eq!(header.kind, MessageType::Error);
            let error = decode_message::<LoginError>(&body).unwrap();
            assert_eq!((error.code, error.retry_ms), (LoginErrorCode::Malformed, 0));
            assert!(timeout(Duration::from_secs(5), client.next()).await.unwrap().is_none());
        }
    }
    let page = running.server.metrics();
    assert!(page.contains("sealstone_mds_protocol_violations_total 3\n"), "{page}");
    // Other connections are not affected.
    assert!(matches!(running.login().await.ask(Request::WhoAmI {}).await, Response::WhoAmI { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_tcp_and_silent_connections_are_closed() {
    let limits = Limits { login_timeout: Duration::from_millis(300), ..quick() };
    let running = running(limits).await;
    let mut plain = TcpStream::connect(running.server.address()).await.unwrap();
    let mut bytes = Vec::new();
    let ended = timeout(Duration::from_secs(5), plain.read_to_end(&mut bytes)).await;
    assert!(ended.is_ok() && bytes.is_empty(), "a silent handshake ends");
    // A client that sends half a header and then nothing.
    let mut client = running.connect().await;
    client.send(b"OSMA\x01").await;
    assert!(timeout(Duration::from_secs(5), client.next()).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeouts_beyond_the_clock_are_accepted() {
    let (login_timeout, idle_timeout, frame_timeout) = (Duration::MAX, Duration::MAX, Duration::MAX);
    let running = running(Limits { login_timeout, idle_timeout, frame_timeout, ..quick() }).await;
    assert!(matches!(running.login().await.ask(Request::WhoAmI {}).await, Response::WhoAmI { .. }));
}

/// Silence ends the connection, also within a frame; the session continues over another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_session_survives_its_connection() {
    let idle = Limits { idle_timeout: Duration::from_millis(300), ..quick() };
    let frame = Limits { frame_timeout: Duration::from_millis(300), ..quick() };
    for (limits, half) in [(idle, &b""[..]), (frame, b"OSMA\x01\x01\x30")] {
        let running = running(limits).await;
        let mut client = running.connect().await;
        let (ok, keys) = client.login(&running.server_id, "admin", &running.password()).await.unwrap();
        assert!(matches!(client.ask(Request::WhoAmI {}).await, Response::WhoAmI { .. }));
        client.send(half).await;
        let ended = timeout(Duration::from_secs(10), client.next()).await;
        assert!(ended.expect("cut off in time").is_none(), "closed without a word");
        let mut again = running.connect().await;
        again.resume(&ok, &keys).await.unwrap();
        assert!(matches!(again.ask(Request::WhoAmI {}).await, Response::WhoAmI { .. }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_limit_closes_oldest_silent_one() {
    let minute = Duration::from_secs(60);
    let limits =
        Limits { pending_per_address_max: 2, connections_max: 1, connections_reserved: 1, ..quick() };
    let running = running(Limits { handshake_timeout: minute, login_timeout: minute, ..limits }).await;
    let (id, password) = (running.server_id, running.password());
    let mut first = running.connect().await;
    let reaches = async |metric: &str| {
        let wanted = format!("sealstone_mds_{metric}\n");
        let reached = until(async || running.server.metrics().contains(&wanted).then_some(()));
        let in_time = timeout(Duration::from_secs(19), reached).await.is_ok();
        assert!(in_time, "{wanted}: {}", running.server.metrics());
    };
    // The client's end of a handshake is done before the server's.
    reaches("handshakes_total 1").await;
    let mut second = TcpStream::connect(running.server.address()).await.unwrap();
    reaches("connections_pending 2").await;
    let _third = TcpStream::connect(running.server.address()).await.unwrap();
    assert!(
        timeout(Duration::from_secs(20), second.read(&mut [0; 1])).await.unwrap().map_or(true, |n| n == 0)
    );
    assert!(
        running.server.metrics().contains("connections_turned_away_total 1\n"),
        "{}",
        running.server.metrics()
    );
    // A connection past its handshake is not closed for a silent one; a login uses another limit.
    first.login(&id, "admin", &password).await.unwrap();
    // The server answers a login before it counts it.
    reaches("connections_pending 1").await;
    let mut more = running.connect().await;
    more.login(&id, "admin", &password).await.unwrap();
    reaches("connections_pending 1").await;
    // No user has more connections than this one, and the reserve of administrators is used up.
    let mut last = running.connect().await;
    let _ = last.login(&id, "admin", &password).await;
    reaches("connections 3").await;
    drop(first);
    reaches("connections 2").await;
    running.connect().await.login(&id, "admin", &password).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_certificate_fails_the_pin() {
    let running = running(quick()).await;
    let refused = support::shake_hands(running.server.address(), [0; 32]).await;
    assert!(matches!(refused, Err(TlsError::WrongCertificate { .. })));
}

/// A man in the middle with the server's own certificate passes TLS on both sides. The channel
/// binding of login and resumption differs, so the client aborts and the server refuses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relayed_login_is_rejected_by_channel_binding() {
    let running = running(quick()).await;
    let (id, password) = (running.server_id, running.password());
    let (ok, keys) = running.connect().await.login(&id, "admin", &password).await.unwrap();
    let relay = running.relay().await;
    let mut client = running.connect_through(relay).await;
    let hello = Request::Hello { oldest: 1, newest: 1, software: Text::new("test").unwrap() };
    assert!(
        matches!(client.ask(hello).await, Response::Hello { .. }),
        "the relay passes on what it is given"
    );
    assert_eq!(client.login(&id, "admin", &password).await.err().unwrap().code, LoginErrorCode::Refused);
    let mut client = running.connect_through(relay).await;
    assert_eq!(client.resume(&ok, &keys).await.unwrap_err().code, LoginErrorCode::SessionExpired);
    // The session is still valid.
    running.connect().await.resume(&ok, &keys).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipe_with_binding_serves_like_tls() {
    let running = running(quick()).await;
    let password = running.password();
    let (server_id, folder) = (running.server_id, running.folder.path().join("mds"));
    running.server.shutdown().await;
    let folder_guard = running.folder;
    drop(running.server);
    let opened = open(&folder, Default::default()).unwrap();
    let channel = sealstone_login::ChannelBinding([4; 32]);
    let (near, far) = tokio::io::duplex(1024);
    let environment = Environment { inline: true, ..Environment::system() };
    let serve =
        serve_stream(far, channel, Default::default(), opened.mds().clone(), environment, Limits::default());
    let served = tokio::spawn(serve);
    let mut client = Client::new(near, channel);
    client.login(&server_id, "admin", &password).await.unwrap();
    assert!(matches!(client.ask(Request::WhoAmI {}).await, Response::WhoAmI { role: Role::Admin, .. }));
    drop(client);
    served.await.unwrap().unwrap();
    drop(folder_guard);
}

#[test]
fn setup_runs_once_and_repeats_after_interruption() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("mds");
    let environment = Environment::system();
    assert!(matches!(open(&data, Default::default()), Err(SetupError::Unfinished(_))));
    // Interrupted before its last step: files exist, the store is empty.
    std::fs::create_dir(&data).unwrap();
    drop(sealstone_meta_store::EmbeddedMeta::open(&data.join("meta.redb")).unwrap());
    std::fs::write(data.join("admin-secret.new"), b"half").unwrap();
    assert!(matches!(open(&data, Default::default()), Err(SetupError::Unfinished(_))));
    // Interrupted while the store's file was created: it has neither its format nor its name yet.
    std::fs::remove_file(data.join("meta.redb")).unwrap();
    std::fs::write(data.join("meta.redb.new"), [0; 4096]).unwrap();
    assert!(matches!(open(&data, Default::default()), Err(SetupError::Unfinished(_))));
    let report = init(&data, &admin(), &environment).unwrap();
    assert_eq!(open(&data, Default::default()).unwrap().fingerprint(), report.fingerprint);
    for name in ["meta.redb", "certificate-key.der", "ca-key.der", "admin-secret"] {
        let mode = std::fs::metadata(data.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
    }
    let secret = std::fs::read_to_string(&report.admin_secret).unwrap();
    assert!(matches!(init(&data, &admin(), &environment), Err(SetupError::AlreadySetUp(_))));
    assert_eq!(
        std::fs::read_to_string(&report.admin_secret).unwrap(),
        secret,
        "a second run changes nothing"
    );
    // A removed certificate is issued again by the same authority; the store is kept.
    assert_eq!(open(&data, Default::default()).unwrap().authority(), Some(report.authority));
    std::fs::remove_file(data.join("certificate.der")).unwrap();
    let renewed = open(&data, Default::default()).unwrap();
    assert_ne!(renewed.fingerprint(), report.fingerprint);
    assert_eq!(renewed.authority(), Some(report.authority));
    drop(renewed);
    std::fs::set_permissions(data.join("certificate-key.der"), PermissionsExt::from_mode(0o644)).unwrap();
    let exposed = open(&data, Default::default()).err().unwrap();
    assert!(matches!(exposed, SetupError::File(_)) && exposed.is_exposed());
    let foreign = folder.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("letter"), b"dear").unwrap();
    assert!(matches!(init(&foreign, &admin(), &environment), Err(SetupError::NotEmpty(_))));
}

/// A directory that finds every user, and blocks while `is_busy` is set.
#[derive(Default)]
struct Slow {
    busy: Mutex<bool>,
    free: Condvar,
    asked: AtomicUsize,
}

impl Slow {
    fn is_busy(&self, busy: bool) {
        *self.busy.lock() = busy;
        self.free.notify_all();
    }
}

impl UserDirectory for Slow {
    fn look_up(&self, _: &UserName) -> Result<DirectoryLookup, DirectoryError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut busy = self.busy.lock();
        while *busy {
            self.free.wait(&mut busy);
        }
        Ok(DirectoryLookup::Entry(DirectoryEntry { entry: [7; 32], groups: Vec::new() }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_directory_delays_only_its_logins() {
    let slow = Arc::new(Slow::default());
    // One login at a time: a lookup in the directory must not occupy that permit.
    let limits = Limits { logins_max: 1, ..quick() };
    let running = support::running_with(limits, Some(slow.clone())).await;
    let name = UserName::new("erika").unwrap();
    let invite = Request::UserInvite {
        name,
        kind: AccountKind::Directory,
        role: Role::User,
        lifetime_s: 600,
        replace: false,
    };
    let mut administrator = running.login().await;
    let Response::Invitation { code, .. } = administrator.ask(invite).await else { panic!("no code") };
    running.connect().await.enrol("erika", &code, b"her password").await.unwrap();
    slow.is_busy(true);
    let before = slow.asked.load(Ordering::SeqCst);
    let (mut client, id) = (running.connect().await, running.server_id);
    let hers = tokio::spawn(async move { client.login(&id, "erika", b"her password").await.map(drop) });
    until(async || (slow.asked.load(Ordering::SeqCst) > before).then_some(())).await;
    timeout(Duration::from_secs(20), running.login()).await.expect("the administrator's does not wait");
    assert!(!hers.is_finished());
    slow.is_busy(false);
    timeout(Duration::from_secs(20), hers).await.unwrap().unwrap().unwrap();
}

/// Random source that blocks requests until others arrive, and counts the most at the same time.
#[derive(Default)]
struct Meeting {
    on: AtomicBool,
    here: Mutex<usize>,
    came: Condvar,
    most: AtomicUsize,
}

impl Meeting {
    /// How long a request waits for others; the first one is decided before others are read.
    const PATIENCE: Duration = Duration::from_secs(2);

    fn environment(self: &Arc<Self>) -> Environment {
        let meeting = self.clone();
        let entropy = move || -> Box<dyn Entropy + Send> {
            if meeting.on.load(Ordering::SeqCst) {
                meeting.meet();
            }
            Box::new(OsRng)
        };
        Environment { entropy: Arc::new(entropy), ..Environment::system() }
    }

    fn meet(&self) {
        let mut here = self.here.lock();
        *here += 1;
        self.most.fetch_max(*here, Ordering::SeqCst);
        self.came.notify_all();
        let few = |_: &mut usize| self.most.load(Ordering::SeqCst) < TOGETHER;
        self.came.wait_while_for(&mut here, few, Self::PATIENCE);
        *here -= 1;
    }
}

/// Requests of a connection that are decided concurrently.
const TOGETHER: usize = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_are_all_answered() {
    let meeting = Arc::new(Meeting::default());
    let limits = Limits { requests_per_connection_max: TOGETHER, ..quick() };
    let running = running_in(meeting.environment(), limits, None).await;
    let mut client = running.login().await;
    meeting.on.store(true, Ordering::SeqCst);
    let make = |name: String| Request::MakeDir { path: path(&name), mode: 0o755, parents: false };
    let names = (0..40).chain([7]);
    let requests: Vec<Request> = names.map(|at| make(format!("/d{at}"))).collect();
    let mut answers = client.ask_together(&requests).await;
    answers.sort_by_key(|(id, _)| *id);
    assert_eq!(answers.iter().map(|(id, _)| *id).collect::<Vec<_>>(), (1..=41).collect::<Vec<_>>());
    let failed =
        |(id, response): &(u64, Response)| matches!(response, Response::Failed { .. }).then_some(*id);
    let refused: Vec<u64> = answers.iter().filter_map(failed).collect();
    // Either of the two requests that create the same name may be first.
    assert!(refused == [8] || refused == [41], "{refused:?}");
    assert_eq!(meeting.most.load(Ordering::SeqCst), TOGETHER);
    assert!(matches!(client.ask(Request::WhoAmI {}).await, Response::WhoAmI { .. }));
    running.server.shutdown().await;
}
