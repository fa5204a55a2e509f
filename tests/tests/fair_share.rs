//! One hostile and one honest client at a device: the share that the honest client keeps.
//!
//! Windows without and with attack alternate, so that other load affects both. The minimum share is
//! far below the measurements of `sealstone-bench fairness`, since both clients and the device
//! share two cores with other tests. Without the tested limits the honest client gets less than the
//! minimum in every attempt.

#![allow(clippy::print_stderr, reason = "figures for whoever runs it with --nocapture")]

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sealstone_client::{Client, Method, PutOptions};
use sealstone_tests::initiator::{Initiator, header, login};
use sealstone_tests::{System, text};

/// Length of a window, and pairs of them for each attack.
const WINDOW: Duration = Duration::from_millis(400);
const PAIRS: usize = 3;
/// Minimum share of the honest client, relative to its rate without attack.
const SHARE_MIN: f64 = 0.1;
/// Maximum measurements until one reaches the minimum: other load can take the cores during some
/// windows.
const ATTEMPTS: usize = 5;
/// Bytes of an honest read.
const READ_BYTES: usize = 4096;
/// Bytes of the file, for both.
const FILE_BYTES: usize = 8 << 20;
/// Address of the attacker: another one, as of another machine.
const HOSTILE: &str = "127.0.0.2:0";

/// The device that is attacked: addresses and name.
#[derive(Clone)]
struct AttackTarget {
    address: SocketAddr,
    target: String,
}

impl AttackTarget {
    /// Connects from the attacker's address.
    fn connect(&self) -> std::io::Result<TcpStream> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind(HOSTILE.parse().expect("an address"))?;
            // A flooded device delays new connections; the attacker gives up quickly.
            let connected = tokio::time::timeout(Duration::from_millis(200), socket.connect(self.address));
            connected.await.map_err(std::io::Error::from)??.into_std()
        })?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        stream.set_write_timeout(Some(Duration::from_millis(200)))?;
        Ok(stream)
    }

    /// Connects and logs in.
    fn login(&self, name: &str) -> std::io::Result<TcpStream> {
        let mut stream = self.connect()?;
        stream.write_all(&login(name, &self.target))?;
        let mut answer = [0; 512];
        let length = std::io::Read::read(&mut stream, &mut answer)?;
        if length < 48 || answer[36] != 0 {
            Err(std::io::ErrorKind::ConnectionRefused.into())
        } else {
            Ok(stream)
        }
    }
}

/// One kind of attack; called repeatedly until stopped.
type AttackFunction = fn(&AttackTarget, &AtomicBool) -> std::io::Result<()>;

/// Opens connections endlessly, each with a little garbage.
fn connections(aim: &AttackTarget, stop: &AtomicBool) -> std::io::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let _ = aim.connect()?.write_all(&[0x43; 48]);
    }
    Ok(())
}

/// Starts logins without completing them, as many as possible.
fn half_logins(aim: &AttackTarget, stop: &AtomicBool) -> std::io::Result<()> {
    let begun = &login("half", &aim.target)[..60];
    let mut open = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mut stream = aim.connect()?;
        if stream.write_all(begun).is_ok() && open.len() < 500 {
            open.push(stream);
        }
    }
    Ok(())
}

/// Sends garbage in a valid session.
fn garbage(aim: &AttackTarget, stop: &AtomicBool) -> std::io::Result<()> {
    let noise: Vec<u8> = (0..64_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    while !stop.load(Ordering::Relaxed) {
        aim.login("noise")?.write_all(&noise)?;
    }
    Ok(())
}

/// Sends a full window of commands with long responses on several connections, and reads none.
fn unread(aim: &AttackTarget, stop: &AtomicBool) -> std::io::Result<()> {
    let mut greedy = Vec::new();
    for index in 0..8 {
        let mut stream = aim.login(&format!("greedy{index:03}"))?;
        for number in 1..=64_u32 {
            let mut command = header(0x01, 0xC1, 0);
            command[9] = 1;
            command[16..20].copy_from_slice(&number.to_be_bytes());
            command[20..24].copy_from_slice(&(8_u32 << 20).to_be_bytes());
            command[24..28].copy_from_slice(&number.to_be_bytes());
            // READ(10) of 8 MiB.
            command[32..42].copy_from_slice(&[0x28, 0, 0, 0, 0, 0, 0, 0x40, 0, 0]);
            stream.write_all(&command)?;
        }
        greedy.push(stream);
    }
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Sends a full window of the longest commands.
fn slow_commands(aim: &AttackTarget, stop: &AtomicBool) -> std::io::Result<()> {
    let mut stream = aim.login("slow")?;
    let mut number = 0_u32;
    let mut answers = stream.try_clone()?;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..32 {
            number += 1;
            let mut command = header(0x01, 0x81, 0);
            command[9] = 1;
            command[16..20].copy_from_slice(&number.to_be_bytes());
            command[24..28].copy_from_slice(&number.to_be_bytes());
            // VERIFY(16) of 128 MiB.
            command[32..48].copy_from_slice(&[0x8F, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
            stream.write_all(&command)?;
        }
        let mut taken = 0;
        while taken < 32 * 48 && !stop.load(Ordering::Relaxed) {
            match std::io::Read::read(&mut answers, &mut [0; 32 * 48]) {
                Ok(0) => return Ok(()),
                Ok(count) => taken += count,
                Err(_) => {}
            }
        }
    }
    Ok(())
}

struct FairShareSetup {
    system: System,
    aim: AttackTarget,
    honest: Client,
    content: Vec<u8>,
}

impl FairShareSetup {
    async fn set() -> Self {
        let system = System::start_with(1, "2G", &["--login-s-max", "2"]);
        let osd = system.path("osd0");
        let made = system.run(&["block", "create", "unit", "--data", text(&osd), "--size", "512M"]);
        made.ok();
        let url = system.osd(0).field("url");
        let aim = AttackTarget {
            address: system.osd(0).field("address").parse().expect("an address"),
            target: url.rsplit('/').nth(1).expect("iscsi://HOST:PORT/IQN/LUN").to_owned(),
        };
        let honest = connect(&system).await;
        let content: Vec<u8> =
            (0..FILE_BYTES as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        let options = PutOptions { size: Some(content.len() as u64), ..PutOptions::default() };
        honest.put("/file", &content[..], options).await.expect("stored");
        Self { system, aim, honest, content }
    }

    /// Reads and compares for one window. Returns the reads per second.
    async fn reads(&self) -> f64 {
        let file = self.honest.open("/file", Method::CmdRsp).await.expect("opened");
        let mut into = vec![0; READ_BYTES];
        let (begin, mut count) = (Instant::now(), 0_usize);
        while begin.elapsed() < WINDOW {
            let at = count * 7919 * READ_BYTES % (FILE_BYTES - READ_BYTES);
            assert_eq!(file.read_at(at as u64, &mut into).await.expect("read"), READ_BYTES);
            assert!(into == self.content[at..at + READ_BYTES]);
            count += 1;
        }
        count as f64 / begin.elapsed().as_secs_f64()
    }

    /// Checks the honest client's share while `hostile` runs, until its flag is set.
    async fn share<H: Send + 'static>(
        &self,
        name: &str,
        hostile: impl Fn(Arc<AtomicBool>) -> thread::JoinHandle<H>,
    ) {
        let mut best = 0.0_f64;
        for _ in 0..ATTEMPTS {
            best = best.max(self.measured_share(name, &hostile).await);
            if best >= SHARE_MIN {
                break;
            }
        }
        assert!(best >= SHARE_MIN, "{name}: the honest client keeps {:.1} %", 100.0 * best);
        assert_eq!(self.system.osd(0).stderr(), "", "{name}: the device complains");
    }

    /// Returns the rate under attack relative to the rate without.
    async fn measured_share<H: Send + 'static>(
        &self,
        name: &str,
        hostile: &impl Fn(Arc<AtomicBool>) -> thread::JoinHandle<H>,
    ) -> f64 {
        let (mut quiet, mut attacked) = (0.0, 0.0);
        for _ in 0..PAIRS {
            quiet += self.reads().await;
            let stop = Arc::new(AtomicBool::new(false));
            let attacker = hostile(Arc::clone(&stop));
            tokio::time::sleep(Duration::from_millis(50)).await;
            attacked += self.reads().await;
            stop.store(true, Ordering::Relaxed);
            tokio::task::spawn_blocking(|| attacker.join())
                .await
                .expect("joined")
                .map_err(drop)
                .expect("no panic");
        }
        let share = attacked / quiet;
        eprintln!(
            "{name}: {:.0} reads a second alone, {:.0} under attack: {:.0} %",
            quiet / PAIRS as f64,
            attacked / PAIRS as f64,
            100.0 * share
        );
        share
    }

    async fn withstands(&self, name: &str, attack: AttackFunction) {
        self.share(name, |stop| {
            let aim = self.aim.clone();
            thread::spawn(move || {
                // The device may close the connection; the attack then restarts.
                while !stop.load(Ordering::Relaxed) {
                    let _ = attack(&aim, &stop);
                }
            })
        })
        .await;
    }
}

async fn connect(system: &System) -> Client {
    let secret = fs::read_to_string(system.path("mds").join("admin-secret")).expect("readable");
    let (address, pin) = (system.mds().field("address"), system.mds().field("pin"));
    let pin = pin.parse().expect("the server prints it as the client reads it");
    Client::connect(address, pin, "admin", secret.trim_end().as_bytes()).await.expect("the password is right")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn honest_client_keeps_its_share() {
    let stage = FairShareSetup::set().await;
    stage.withstands("a flood of connections", connections).await;
    stage.withstands("logins that do not end", half_logins).await;
    stage.withstands("a flood of garbage", garbage).await;
    stage.withstands("a client that never reads", unread).await;
    stage.withstands("long commands", slow_commands).await;

    // An account with every right that sends the most expensive commands: all data under a check
    // value.
    let greedy = connect(&stage.system).await;
    let runtime = tokio::runtime::Handle::current();
    stage
        .share("checked data without end", |stop| {
            let (greedy, runtime) = (greedy.clone(), runtime.clone());
            thread::spawn(move || {
                runtime.block_on(async {
                    let file = greedy.open("/file", Method::AllData).await.expect("opened");
                    while !stop.load(Ordering::Relaxed) {
                        let parts = (0..8_u64).map(|part| file.read(part << 20..(part + 1) << 20));
                        for part in futures_of(parts).await {
                            assert_eq!(part.expect("read").len(), 1 << 20);
                        }
                    }
                });
            })
        })
        .await;
}

/// Polls all futures concurrently and returns their results.
async fn futures_of<F: Future>(parts: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut parts: Vec<_> = parts.map(|part| (Box::pin(part), None)).collect();
    std::future::poll_fn(move |cx| {
        for (part, done) in &mut parts {
            if done.is_none()
                && let std::task::Poll::Ready(output) = part.as_mut().poll(cx)
            {
                *done = Some(output);
            }
        }
        if parts.iter().all(|(_, done)| done.is_some()) {
            std::task::Poll::Ready(parts.drain(..).filter_map(|(_, done)| done).collect())
        } else {
            std::task::Poll::Pending
        }
    })
    .await
}

/// A client from another address gets in during a flood from one address.
#[test]
fn newcomers_get_in_during_a_flood() {
    let system = System::start(1);
    let aim = AttackTarget {
        address: system.osd(0).field("address").parse().expect("an address"),
        target: system.osd(0).field("url").rsplit('/').nth(1).expect("a URL").to_owned(),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let attacker = {
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let _ = connections(&aim, &stop);
            }
        })
    };
    let log = system.path("osd0").join("audit.jsonl");
    let reported = || -> Vec<String> {
        let log = fs::read_to_string(&log).expect("readable");
        log.lines().filter(|line| line.contains("\"too-fast\"")).map(str::to_owned).collect()
    };
    let began = Instant::now();
    for index in 0.. {
        // Until it counts as a flood, and some more.
        if index >= 20 && !reported().is_empty() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "nobody is turned away");
        let (address, url) = (system.osd(0).field("address"), system.osd(0).field("url"));
        let mut newcomer = Initiator::login(address, url, &format!("new{:03}", index % 100));
        assert!(newcomer.inquiry().len() >= 36);
    }
    stop.store(true, Ordering::Relaxed);
    attacker.join().expect("no panic");
    // Rejected connections are reported in a few records.
    let reported = reported();
    assert!(!reported.is_empty() && reported.len() < 20, "{} records", reported.len());
    assert!(reported.iter().all(|line| line.contains("\"source\":\"127.0.0.2\"")), "{reported:?}");
}
