//! Copies from the page cache to a socket: possible gains of a device that does not process the
//! bytes it sends.
//!
//! Does: sends the same file over loopback with several methods in turn, with a small header before
//! each piece, like an iSCSI target.
//! Does not: use a device.
//! Contract: the receiver is the same for each method; CPU time is that of the two threads.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::sendfile;
use rustix::net::{SendFlags, send};
use serde::Serialize;

use crate::Outcome;
use crate::settings::Run;
use crate::workload::median;

/// Bytes of the file: larger than the second-level cache, smaller than the page cache.
const FILE_BYTES: u64 = 128 << 20;
/// Bytes before each piece.
const HEADER: usize = 48;
/// Bytes read and checked at once, as in the device's store.
const SLICE: usize = 256 << 10;
/// Bytes of each checksum.
const BLOCK: usize = 4096;
const PIECES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

/// A method of copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum CopyMethod {
    /// Reads into a buffer, checks each block, writes: what the device does.
    CheckedCopy,
    /// Copies without checks.
    Copy,
    /// sendfile, without any check.
    Sendfile,
    /// Reads into a small buffer and checks, then uses sendfile.
    CheckedSendfile,
}

const WAYS: [CopyMethod; 4] =
    [CopyMethod::CheckedCopy, CopyMethod::Copy, CopyMethod::Sendfile, CopyMethod::CheckedSendfile];

#[derive(Debug, Serialize)]
struct CopyResult {
    way: CopyMethod,
    bytes: usize,
    mib_per_s: f64,
    /// Rate relative to the checked copy in the same round, median.
    to_checked_copy: f64,
    /// CPU microseconds per MiB.
    sender_us: f64,
    receiver_us: f64,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Run) -> Outcome {
    let settings = arguments.settings()?;
    let folder = arguments.stage.scratch()?;
    let path = folder.path().join("data");
    let mut file = File::create_new(&path)?;
    let mut block = vec![0; 1 << 20];
    getrandom::fill(&mut block).map_err(|error| error.to_string())?;
    for _ in 0..FILE_BYTES >> 20 {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    let file = File::open(&path)?;
    let mut rows = Vec::new();
    for bytes in PIECES {
        let mut found = [(); WAYS.len()].map(|()| (Vec::new(), Vec::new(), Vec::new(), Vec::new()));
        for round in 0..settings.runs * settings.turns() {
            let mut rates = [0.0; WAYS.len()];
            for place in 0..WAYS.len() {
                let at = (place + round) % WAYS.len();
                let (mib_per_s, sender_us, receiver_us) = turn(&file, WAYS[at], bytes, settings.turn())?;
                rates[at] = mib_per_s;
                found[at].0.push(mib_per_s);
                found[at].2.push(sender_us);
                found[at].3.push(receiver_us);
            }
            for (at, rate) in rates.into_iter().enumerate() {
                found[at].1.push(rate / rates[0]);
            }
        }
        for (way, mut found) in WAYS.into_iter().zip(found) {
            rows.push(CopyResult {
                way,
                bytes,
                mib_per_s: median(&mut found.0),
                to_checked_copy: median(&mut found.1),
                sender_us: median(&mut found.2),
                receiver_us: median(&mut found.3),
            });
        }
    }
    arguments.common.save(&rows)?;
    println!(
        "{:18} {:>10} {:>10} {:>16} {:>14} {:>14}",
        "way", "bytes", "MiB/s", "of checked copy", "sender us/MiB", "receiver"
    );
    for row in &rows {
        println!(
            "{:18} {:>10} {:>10.0} {:>14.0} % {:>14.0} {:>14.0}",
            format!("{:?}", row.way),
            row.bytes,
            row.mib_per_s,
            100.0 * row.to_checked_copy,
            row.sender_us,
            row.receiver_us
        );
    }
    Ok(())
}

/// Returns MiB per second, and CPU microseconds per MiB of sender and receiver.
fn turn(file: &File, way: CopyMethod, bytes: usize, time: Duration) -> Outcome<(f64, f64, f64)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    let receiver = thread::spawn(move || receive(far, bytes));
    let begin = Instant::now();
    let (pieces, sender_s) = transmit(file, &near, way, bytes, time)?;
    drop(near);
    let receiver_s = receiver.join().expect("the receiver does not panic")?;
    let mib = pieces as f64 * bytes as f64 / f64::from(1 << 20);
    Ok((mib / begin.elapsed().as_secs_f64(), sender_s * 1e6 / mib, receiver_s * 1e6 / mib))
}

fn receive(mut stream: TcpStream, bytes: usize) -> std::io::Result<f64> {
    let begin = own_cpu_s()?;
    let mut buffer = vec![0; HEADER + bytes];
    while stream.read(&mut buffer)? > 0 {}
    Ok(own_cpu_s()? - begin)
}

fn transmit(
    file: &File,
    mut stream: &TcpStream,
    way: CopyMethod,
    bytes: usize,
    time: Duration,
) -> Outcome<(u64, f64)> {
    let (begin, cpu) = (Instant::now(), own_cpu_s()?);
    let header = [0x25; HEADER];
    let mut buffer = vec![0; HEADER + bytes];
    let (mut pieces, mut offset, mut sum) = (0, 0, 0);
    while pieces == 0 || begin.elapsed() < time {
        let data = &mut buffer[HEADER..];
        match way {
            CopyMethod::Copy | CopyMethod::CheckedCopy => {
                for (at, slice) in data.chunks_mut(SLICE).enumerate() {
                    file.read_exact_at(slice, offset + (at * SLICE) as u64)?;
                    if way == CopyMethod::CheckedCopy {
                        sum ^= checksums(slice);
                    }
                }
                stream.write_all(&buffer)?;
            }
            CopyMethod::Sendfile | CopyMethod::CheckedSendfile => {
                if way == CopyMethod::CheckedSendfile {
                    let small = bytes.min(SLICE / 4);
                    for at in (0..bytes).step_by(small) {
                        file.read_exact_at(&mut data[..small], offset + at as u64)?;
                        sum ^= checksums(&data[..small]);
                    }
                }
                send(stream, &header, SendFlags::MORE)?;
                let (mut from, end) = (offset, offset + bytes as u64);
                while from < end {
                    let left = usize::try_from(end - from)?;
                    sendfile(stream, file, Some(&mut from), left)?;
                }
            }
        }
        pieces += 1;
        offset = (offset + bytes as u64) % FILE_BYTES;
    }
    std::hint::black_box(sum);
    Ok((pieces, own_cpu_s()? - cpu))
}

fn checksums(slice: &[u8]) -> u32 {
    slice.chunks(BLOCK).fold(0, |sum, block| sum ^ crc32c::crc32c(block))
}

/// Returns the CPU time of this thread in seconds.
fn own_cpu_s() -> std::io::Result<f64> {
    let stat = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = stat.split(' ').next().and_then(|number| number.parse::<f64>().ok());
    Ok(nanoseconds.unwrap_or(0.0) / 1e9)
}
