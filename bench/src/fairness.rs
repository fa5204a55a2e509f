//! One honest and one hostile client: the remaining throughput of the honest one; and the cost of
//! an idle connection.
//!
//! Does: attacks one device with plain sockets while the real client reads from it.
//! Does not: report failures by its exit code.
//! Contract: windows with and without attack alternate, so that other load affects both alike. An
//! attacker is one connection in one thread, unless many connections are the attack.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::Outcome;
use crate::client::DeviceClient;
use crate::contender::Contender;
use crate::daemon::Osd;
use crate::process::usage;
use crate::settings::{Run, Settings};
use crate::workload::{Direction, Pattern, Workload, median};

/// Workload of the honest client: small random reads, sixteen in flight.
const HONEST: Workload =
    Workload { direction: Direction::Read, pattern: Pattern::Random, bytes: 4096, depth: 16 };
/// Idle sessions whose memory is measured.
const IDLE: usize = 150;
/// Target of an idle connection, in bytes.
const IDLE_BYTES_MAX: u64 = 64 << 10;
/// Fair share of one client of two.
const FAIR: f64 = 0.5;
/// Half-sent PDUs, and other connections that stay open.
const CROWD: usize = 100;
/// Time for an attack to begin.
const SETTLE: Duration = Duration::from_millis(50);

const OPCODE_NOP_OUT: u8 = 0x40;
const OPCODE_COMMAND: u8 = 0x01;
const OPCODE_MANAGEMENT: u8 = 0x42;
const HEADER: usize = 48;

/// One kind of attack.
struct AttackKind {
    name: &'static str,
    run: fn(&str, &str, &AtomicBool) -> std::io::Result<()>,
}

const ATTACKS: &[AttackKind] = &[
    AttackKind { name: "pings without end", run: pings },
    AttackKind { name: "commands without end", run: commands },
    AttackKind { name: "large reads, never read", run: unread },
    AttackKind { name: "resets without end", run: resets },
    AttackKind { name: "garbage after login", run: garbage },
    AttackKind { name: "connections without end", run: connections },
    AttackKind { name: "100 half-sent PDUs", run: half_sent },
];

/// Result of one attack.
#[derive(Debug, Serialize)]
struct AttackResult {
    attack: &'static str,
    /// Honest commands per second without and with the attack, medians.
    alone_per_s: f64,
    attacked_per_s: f64,
    /// Ratio within a run, median over runs.
    share: f64,
}

/// All results.
#[derive(Debug, Serialize)]
struct FairnessResults {
    rows: Vec<AttackResult>,
    idle_bytes_per_connection: u64,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Run) -> Outcome {
    let settings = Settings { object_bytes: 16 << 20, ..arguments.settings()? };
    let folder = tempfile::tempdir()?;
    let osd = Osd::new(&settings.binary, &folder.path().join("measured"))?;
    let url = osd.url.strip_prefix("iscsi://").ok_or("no iSCSI URL")?;
    let mut parts = url.split('/');
    let (address, target) =
        parts.next().zip(parts.next()).map(|(a, t)| (a.to_owned(), t.to_owned())).ok_or("no iSCSI URL")?;
    let idle = idle_bytes(&osd, &address, &target)?;
    let client = DeviceClient::connect(&osd, &settings)?;
    let mut rows = Vec::new();
    for attack in ATTACKS {
        rows.push(one(attack, &client, &settings, &address, &target)?);
    }
    drop(client);
    osd.stop()?;
    let findings = FairnessResults { rows, idle_bytes_per_connection: idle };
    arguments.common.save(&findings)?;
    println!(
        "one honest client ({}) beside one hostile one, medians of {} runs\n",
        HONEST.name(),
        settings.runs
    );
    println!("{:28} {:>10} {:>10} {:>8}", "attack", "alone 1/s", "with it", "share %");
    for row in &findings.rows {
        println!(
            "{:28} {:>10.0} {:>10.0} {:>8.1}",
            row.attack,
            row.alone_per_s,
            row.attacked_per_s,
            100.0 * row.share
        );
    }
    let worst = findings.rows.iter().map(|row| row.share).fold(f64::INFINITY, f64::min);
    let word = |reached| if reached { "reached" } else { "not reached" };
    println!(
        "\n{:12} the honest client keeps its half: {:.1} % at worst",
        word(worst >= FAIR),
        100.0 * worst
    );
    println!(
        "{:12} an idle connection needs under 64 KiB: {:.1} KiB",
        word(idle < IDLE_BYTES_MAX),
        idle as f64 / 1024.0
    );
    Ok(())
}

fn one(
    attack: &'static AttackKind,
    client: &DeviceClient,
    settings: &Settings,
    address: &str,
    target: &str,
) -> Outcome<AttackResult> {
    let (mut alone, mut attacked, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    let time = Duration::from_secs_f64(settings.seconds);
    let rate = |seed| -> Outcome<f64> {
        let turn = client.turn(&HONEST, Contender::NoSec, time, seed)?;
        Ok(turn.operations as f64 / turn.time.as_secs_f64())
    };
    for run in 0..settings.runs as u64 {
        let quiet = rate(run)?;
        let stop = Arc::new(AtomicBool::new(false));
        let hostile = {
            let (address, target, stop) = (address.to_owned(), target.to_owned(), Arc::clone(&stop));
            thread::spawn(move || {
                // The device may close the connection; the attack then restarts.
                while !stop.load(Ordering::Relaxed) {
                    let _ = (attack.run)(&address, &target, &stop);
                }
            })
        };
        thread::sleep(SETTLE);
        let loud = rate(run);
        stop.store(true, Ordering::Relaxed);
        hostile.join().map_err(|_| "the attacker panicked")?;
        let loud = loud?;
        alone.push(quiet);
        attacked.push(loud);
        shares.push(loud / quiet);
    }
    Ok(AttackResult {
        attack: attack.name,
        alone_per_s: median(&mut alone),
        attacked_per_s: median(&mut attacked),
        share: median(&mut shares),
    })
}

/// Returns the memory per idle logged-in session.
fn idle_bytes(osd: &Osd, address: &str, target: &str) -> Outcome<u64> {
    // The first ones pay for shared allocations.
    let mut held = Vec::new();
    for index in 0..10 {
        held.push(login(address, target, &format!("warm{index}"))?);
    }
    let before = usage(osd.pid())?.rss_kib;
    for index in 0..IDLE {
        held.push(login(address, target, &format!("idle{index}"))?);
    }
    thread::sleep(Duration::from_millis(200));
    let after = usage(osd.pid())?.rss_kib;
    Ok((after.saturating_sub(before) << 10) / IDLE as u64)
}

fn header(opcode: u8, flags: u8, length: usize, command_number: u32) -> Vec<u8> {
    let mut pdu = vec![0; HEADER];
    (pdu[0], pdu[1]) = (opcode, flags);
    pdu[5..8].copy_from_slice(&(length as u32).to_be_bytes()[1..]);
    pdu[24..28].copy_from_slice(&command_number.to_be_bytes());
    pdu
}

/// Opens a logged-in connection of a separate initiator.
fn login(address: &str, target: &str, name: &str) -> std::io::Result<TcpStream> {
    let keys = format!(
        "InitiatorName=iqn.2026-11.org.example:{name}\0TargetName={target}\0SessionType=Normal\0\
         MaxRecvDataSegmentLength=262144\0"
    );
    let mut pdu = header(0x43, 0x87, keys.len(), 1);
    pdu[8] = 0x80;
    pdu.extend_from_slice(keys.as_bytes());
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    stream.set_write_timeout(Some(Duration::from_millis(200)))?;
    stream.write_all(&pdu)?;
    let mut answer = [0; HEADER];
    stream.read_exact(&mut answer)?;
    let length = usize::from(answer[6]) << 8 | usize::from(answer[7]);
    stream.read_exact(&mut vec![0; length.next_multiple_of(4)])?;
    Ok(stream)
}

/// Sends the same bytes repeatedly; another thread discards the responses.
fn flood(mut stream: TcpStream, stop: &AtomicBool, mut next: impl FnMut() -> Vec<u8>) -> std::io::Result<()> {
    let mut answers = stream.try_clone()?;
    let drain = thread::spawn(move || {
        let mut rest = vec![0; 64 << 10];
        while matches!(answers.read(&mut rest), Ok(1..)) {}
    });
    let mut done = Ok(());
    while !stop.load(Ordering::Relaxed) && done.is_ok() {
        done = stream.write_all(&next());
    }
    let _ = stream.shutdown(std::net::Shutdown::Both);
    let _ = drain.join();
    done
}

fn pings(address: &str, target: &str, stop: &AtomicBool) -> std::io::Result<()> {
    let mut ping = header(OPCODE_NOP_OUT, 0x80, 0, 1);
    ping[16..20].copy_from_slice(&7_u32.to_be_bytes());
    ping[20..24].fill(0xFF);
    let many = ping.repeat(200);
    flood(login(address, target, "hostile")?, stop, || many.clone())
}

fn commands(address: &str, target: &str, stop: &AtomicBool) -> std::io::Result<()> {
    // TEST UNIT READY, immediate so that no window stops it; excess commands are rejected, which
    // costs as well.
    let mut tag = 0_u32;
    flood(login(address, target, "hostile")?, stop, || {
        (0..8)
            .flat_map(|_| {
                tag = tag.wrapping_add(1) & 0x7FFF_FFFF;
                let mut command = header(OPCODE_COMMAND | 0x40, 0x80, 0, 1);
                command[16..20].copy_from_slice(&tag.to_be_bytes());
                command
            })
            .collect()
    })
}

fn unread(address: &str, target: &str, stop: &AtomicBool) -> std::io::Result<()> {
    let mut stream = login(address, target, "hostile")?;
    // INQUIRY with the maximum allocation, a whole window of them; the responses are not read.
    for number in 1..=128_u32 {
        let mut command = header(OPCODE_COMMAND, 0xC0, 0, number);
        command[16..20].copy_from_slice(&number.to_be_bytes());
        command[20..24].copy_from_slice(&(16_u32 << 20).to_be_bytes());
        command[32..38].copy_from_slice(&[0xA3, 0x0C, 0x80, 0, 0, 0]);
        command[38..42].copy_from_slice(&(1_u32 << 20).to_be_bytes());
        stream.write_all(&command)?;
    }
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn resets(address: &str, target: &str, stop: &AtomicBool) -> std::io::Result<()> {
    let mut reset = header(OPCODE_MANAGEMENT, 0x80 | 5, 0, 1);
    reset[16..20].copy_from_slice(&7_u32.to_be_bytes());
    let many = reset.repeat(4);
    flood(login(address, target, "hostile")?, stop, || many.clone())
}

fn garbage(address: &str, target: &str, stop: &AtomicBool) -> std::io::Result<()> {
    let mut state = 1_u64;
    let noise: Vec<u8> = (0..4096)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    flood(login(address, target, "hostile")?, stop, || noise.clone())
}

fn connections(address: &str, _: &str, stop: &AtomicBool) -> std::io::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let _ = TcpStream::connect(address)?.write_all(&[0x43; HEADER]);
    }
    Ok(())
}

fn half_sent(address: &str, target: &str, stop: &AtomicBool) -> std::io::Result<()> {
    let mut crowd = Vec::new();
    for index in 0..CROWD {
        let mut stream = login(address, target, &format!("half{index}"))?;
        stream.write_all(&header(OPCODE_NOP_OUT, 0x80, 4096, 1)[..20])?;
        crowd.push(stream);
    }
    while !stop.load(Ordering::Relaxed) {
        for stream in &mut crowd {
            stream.write_all(&[0])?;
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
