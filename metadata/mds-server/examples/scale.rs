//! Measures how long requests over many entries block other writers: `cargo run --example scale
//! [ENTRIES]`.
//!
//! A second thread changes one file continuously. Its slowest change while a request runs shows how
//! long that request, or one of its steps, held the store's writer lock, plus one sync.

#![allow(clippy::print_stdout, clippy::expect_used, reason = "an example that prints figures")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::OsRng;
use sealstone_login::{ChannelBinding, LoginContext, start_login};
use sealstone_mds::{Config, Connection, LoginSource, Mds};
use sealstone_mds_protocol::login::{LoginChallenge, LoginOk, SUITE_STANDARD, SessionId};
use sealstone_mds_protocol::{
    AccountKind, CheckScope, DeviceId, FilePath, FrameHeader, GroupName, HEADER_BYTES, KeyLevel, MessageType,
    Name, NewDevice, QuotaChange, QuotaSubject, Request, Response, Role, Secret, Text, UserName, Wire,
    decode_message, encode_message,
};
use sealstone_mds_server::{Environment, init, open};

const ENTRIES: u64 = 100_000;
/// Threads that fill the store; their commits share syncs.
const FILLERS: u64 = 16;
const PARTITIONS: u64 = 4096;
const MEMBERS: u64 = 4096;
const CHANNEL: ChannelBinding = ChannelBinding([7; 32]);

fn path(text: &str) -> FilePath {
    FilePath::new(text).expect("a path")
}

fn user(name: &str) -> UserName {
    UserName::new(name).expect("a name")
}

fn now_ms() -> u64 {
    (Environment::system().now_ms)()
}

fn exchange<T: Wire>(mds: &Mds, connection: &mut Connection, kind: MessageType, body: &impl Wire) -> T {
    let frame = encode_message(kind, 0, body).expect("a frame");
    let (header, body) = frame.split_first_chunk::<HEADER_BYTES>().expect("a header");
    let header = FrameHeader::parse(header).expect("a header");
    let answer = connection.receive(mds, &header, body, now_ms(), &mut OsRng).frame.expect("an answer");
    let (_, body) = answer.split_first_chunk::<HEADER_BYTES>().expect("a header");
    decode_message(body).expect("the answer to this message")
}

fn login(mds: &Mds, password: &[u8]) -> SessionId {
    let mut connection = Connection::new(CHANNEL, LoginSource::default());
    let context = LoginContext::new(&mds.server_id(), &CHANNEL);
    let (start, client) =
        start_login(&mut OsRng, SUITE_STANDARD, &user("admin"), password, context).expect("begun");
    let challenge: LoginChallenge = exchange(mds, &mut connection, MessageType::LoginStart, &start);
    let (finish, _) = client.challenge(&mut OsRng, challenge).expect("the password is right");
    let ok: LoginOk = exchange(mds, &mut connection, MessageType::LoginFinish, &finish);
    ok.session
}

/// A server in a temporary folder, and the administrator's session.
struct Bench {
    mds: Arc<Mds>,
    session: SessionId,
}

impl Bench {
    fn ask(&self, request: Request) -> Response {
        let name = request.name();
        match self.mds.handle(Some(&self.session), request, now_ms(), &mut OsRng) {
            Response::Failed { failure } => panic!("{name}: {failure:?}"),
            response => response,
        }
    }

    /// Runs `count` requests from several threads.
    fn fill(&self, what: &str, count: u64, request: impl Fn(u64) -> Request + Sync) {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for filler in 0..FILLERS {
                let request = &request;
                scope.spawn(move || {
                    (filler..count).step_by(FILLERS as usize).for_each(|n| drop(self.ask(request(n))));
                });
            }
        });
        println!("{what}: {count} in {:.1} s", begun.elapsed().as_secs_f64());
    }

    /// Runs work while another thread changes a file continuously.
    fn measure(&self, what: &str, work: impl FnOnce() -> u64) {
        let over = AtomicBool::new(false);
        let begun = Instant::now();
        let (requests, mut waits) = std::thread::scope(|scope| {
            let prober = scope.spawn(|| {
                let mut waits: Vec<Duration> = Vec::new();
                while !over.load(Ordering::Relaxed) || waits.len() < 20 {
                    let begun = Instant::now();
                    self.ask(Request::SetMode { path: path("/probe"), mode: 0o755 });
                    waits.push(begun.elapsed());
                    std::thread::sleep(Duration::from_millis(1));
                }
                waits
            });
            let requests = work();
            over.store(true, Ordering::Relaxed);
            (requests, prober.join().expect("it probed"))
        });
        let took = begun.elapsed();
        waits.sort_unstable();
        let at = |part: f64| waits.get((waits.len() as f64 * part) as usize).or(waits.last());
        let ms = |wait: Option<&Duration>| wait.map_or(0.0, |wait| wait.as_secs_f64() * 1000.0);
        println!(
            "{what}: {requests} requests in {:.2} s; others wait {:.1} ms (median), {:.1} ms (99 %), {:.1} ms (most of {})",
            took.as_secs_f64(),
            ms(at(0.5)),
            ms(at(0.99)),
            ms(waits.last()),
            waits.len()
        );
    }

    fn remove(&self) -> u64 {
        let mut requests = 0;
        loop {
            requests += 1;
            match self.ask(Request::Remove { path: path("/t"), recursive: true }) {
                Response::Removed { more: false, .. } => return requests,
                Response::Removed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn check(&self) -> u64 {
        self.ask(Request::CheckBegin { scope: CheckScope::Names, repair: true });
        let job = self.mds.take_check().expect("it was begun");
        self.mds.check_records(&job).expect("checked");
        job.finish(Ok(()));
        1
    }
}

fn main() {
    let entries = std::env::args().nth(1).and_then(|entries| entries.parse().ok()).unwrap_or(ENTRIES);
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("mds");
    let report = init(&data, &user("admin"), &Environment::system()).expect("a server");
    let config = Config { file_partitions: PARTITIONS, ..Config::default() };
    let opened = open(&data, config).expect("opened");
    let mds = Arc::clone(opened.mds());
    let password = std::fs::read(&report.admin_secret).expect("the password");
    let bench = Bench { session: login(&mds, password.trim_ascii_end()), mds };
    let directory = |text: String| Request::MakeDir { path: path(&text), parents: false, mode: 0o755 };
    bench.ask(directory("/probe".to_owned()));
    bench.ask(directory("/t".to_owned()));
    bench.measure("nothing", || {
        std::thread::sleep(Duration::from_secs(2));
        0
    });
    // The journal is applied to the store's file several times.
    bench.measure("fill", || {
        bench.fill("directories in one directory", entries, |n| directory(format!("/t/d{n}")));
        entries
    });
    bench.measure("check --repair", || bench.check());
    bench.measure("rm -r", || bench.remove());
    let invite = |name: String, role| Request::UserInvite {
        name: user(&name),
        kind: AccountKind::Password,
        role,
        lifetime_s: 3600,
        replace: false,
    };
    let accounts = entries.min(100_000);
    bench.fill("accounts", accounts, |n| invite(format!("a{n}"), Role::User));
    bench.ask(invite("aaa".to_owned(), Role::Admin));
    bench.measure("UserSetRole of an administrator", || {
        bench.ask(Request::UserSetRole { name: user("aaa"), role: Role::User });
        1
    });
    let limits = QuotaChange { bytes_max: Some(Some(1 << 30)), nodes_max: None };
    bench.fill("quotas", accounts, |n| Request::QuotaSet {
        of: QuotaSubject::User(user(&format!("a{n}"))),
        change: limits,
    });
    let group = || GroupName::new("group").expect("a name");
    bench.ask(Request::GroupCreate { name: group() });
    let members = accounts.min(MEMBERS);
    bench.fill("members of one group", members, |n| Request::GroupAddMember {
        group: group(),
        user: user(&format!("a{n}")),
    });
    bench.measure("GroupRemove", || {
        bench.ask(Request::GroupRemove { name: group() });
        1
    });
    bench.measure("DeviceAdd of 4096 partitions", || {
        let device = NewDevice {
            name: Name::new("osd1".to_owned()).expect("a name"),
            system_id: [1; 20],
            url: Text::new("iscsi://127.0.0.1:1/iqn.2026-11.org.example:osd1/0").expect("a URL"),
            pin: None,
            capacity: 0,
            speed: 0,
            master_key: Secret::new(vec![3; 32]).expect("a key"),
        };
        bench.ask(Request::DeviceAdd { device });
        1
    });
    bench.measure("KeyRotate of 4096 partitions", || {
        let rotate = Request::KeyRotate {
            level: KeyLevel::Partition,
            device: Some(DeviceId(1)),
            partition: None,
            revoke: false,
        };
        bench.ask(rotate);
        1
    });
}
