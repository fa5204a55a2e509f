//! Measures throughput and command rate of the target over loopback, next to plain TCP.
//!
//! `cargo run --release -p sealstone-iscsi-target --example target_rates [SECONDS]`. Target and
//! initiator are one thread each; the logical unit is memory. Columns of each line: case, MiB/s,
//! commands/s, share of plain TCP. Then MiB per second of processor time (both ends together) and
//! its share of plain TCP, which depends less on other load of the machine.

#![allow(clippy::print_stdout, reason = "prints its results")]
#![allow(clippy::unwrap_used, reason = "a measurement that fails should stop")]

use std::{
    io::{IoSlice, IoSliceMut, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::{Buf as _, Bytes};
use sealstone_iscsi::{
    Buffer, Cdb, DigestChoice, Gather, TaskAttribute,
    initiator::{InitiatorConfig, InitiatorConnection, InitiatorEvent, SubmittedCommand},
};
use sealstone_iscsi_target::{IscsiTarget, TargetConfig};
use sealstone_scsi::{
    AdditionalSense, Status,
    lu::{Cost, InitiatorPort, LogicalUnit, NexusId, ScsiCommand, ScsiReply},
};

const NAME: &str = "iqn.2026-11.org.sealstone:bench";
const READ: u8 = 0x88;
const WRITE: u8 = 0x8A;

/// Copies out of and into 64 MiB of memory, like a store with its data in cache.
struct Memory(Vec<u8>);

impl LogicalUnit for Memory {
    fn cost(&self, _: NexusId, _: &[u8]) -> Cost {
        Cost::Inline
    }

    fn execute(&self, command: ScsiCommand<'_>) -> ScsiReply {
        if command.cdb[0] == WRITE {
            return ScsiReply {
                data_out_used: command.data_out.len() as u64,
                ..ScsiReply::status(Status::Good)
            };
        }
        let length = command.data_in_max;
        let Some(mut buffer) = command.buffers.take(length) else { return ScsiReply::status(Status::Busy) };
        buffer.copy_from_slice(&self.0[..length]);
        ScsiReply::data(command.buffers.freeze(buffer), length)
    }

    fn nexus_established(&self, _: NexusId, _: &InitiatorPort<'_>) {}
    fn attention(&self, _: NexusId, _: AdditionalSense) {}
    fn luns_reported(&self, _: NexusId) {}
    fn nexus_lost(&self, _: NexusId) {}
    fn reset(&self) {}
}

fn start() -> SocketAddr {
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            let target =
                IscsiTarget::new(TargetConfig::new(NAME), vec![(0, Arc::new(Memory(vec![7; 64 << 20])))])
                    .unwrap();
            target.serve(listener, std::future::pending()).await.unwrap();
        });
    });
    receiver.recv().unwrap()
}

struct Session {
    stream: TcpStream,
    machine: InitiatorConnection,
    pieces: Vec<Bytes>,
}

impl Session {
    fn write_all(&mut self) {
        loop {
            while self.pieces.len() < 64 {
                let Some(piece) = self.machine.poll_transmit() else { break };
                self.pieces.push(piece);
            }
            if self.pieces.is_empty() {
                return;
            }
            let slices: Vec<IoSlice<'_>> = self.pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut count = self.stream.write_vectored(&slices).unwrap();
            self.pieces.retain_mut(|piece| {
                let part = count.min(piece.len());
                piece.advance(part);
                count -= part;
                !piece.is_empty()
            });
        }
    }

    fn read_some(&mut self) {
        let mut space = self.machine.rx_space().map(IoSliceMut::new);
        let count = self.stream.read_vectored(&mut space).unwrap();
        assert!(count > 0, "the target closed");
        self.machine.received(count, 0);
    }

    fn open(address: SocketAddr, digests: bool) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut config =
            InitiatorConfig::new("iqn.2026-11.org.sealstone:client".into(), Some(NAME.into()), [0; 6]);
        config.crc32c = crc32c::crc32c_append;
        if digests {
            config.policy.header_digest = DigestChoice::Always;
            config.policy.data_digest = DigestChoice::Always;
        }
        let mut session = Self { stream, machine: InitiatorConnection::new(config, 0), pieces: Vec::new() };
        loop {
            session.write_all();
            session.read_some();
            match session.machine.poll_event() {
                Some(InitiatorEvent::LoggedIn(_)) => return session,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }
}

fn measure(
    address: SocketAddr,
    opcode: u8,
    size: usize,
    depth: usize,
    digests: bool,
    time: Duration,
) -> (f64, f64) {
    let mut session = Session::open(address, digests);
    let payload = Bytes::from(vec![9; size]);
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    let submit = |session: &mut Session, buffer: Buffer| {
        let data_out = if opcode == WRITE { Gather::from(payload.clone()) } else { Gather::new() };
        let cdb = Cdb::new(&cdb).unwrap();
        let attribute = TaskAttribute::Simple;
        session
            .machine
            .submit(SubmittedCommand { lun: 0, cdb, attribute, data_out, data_in: buffer })
            .unwrap();
    };
    for _ in 0..depth {
        submit(&mut session, Buffer::from(vec![0; if opcode == READ { size } else { 0 }]));
    }
    let (begin, mut done) = (Instant::now(), 0_u64);
    while begin.elapsed() < time {
        session.write_all();
        session.read_some();
        while let Some(event) = session.machine.poll_event() {
            let InitiatorEvent::Completed { outcome, .. } = event else { panic!("{event:?}") };
            let response = outcome.unwrap();
            assert_eq!(response.status, 0);
            done += 1;
            submit(&mut session, response.data_in);
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    (done as f64 * size as f64 / seconds / f64::from(1 << 20), done as f64 / seconds)
}

/// Returns the processor time of this process so far, in seconds (Linux counts it in hundredths).
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

fn plain_tcp(time: Duration) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let chunk = vec![1; 256 * 1024];
        while stream.write_all(&chunk).is_ok() {}
    });
    let (mut stream, _) = listener.accept().unwrap();
    let (begin, mut bytes) = (Instant::now(), 0);
    let mut chunk = vec![0; 256 * 1024];
    while begin.elapsed() < time {
        bytes += stream.read(&mut chunk).unwrap();
    }
    bytes as f64 / begin.elapsed().as_secs_f64() / f64::from(1 << 20)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(2.0);
    let only = arguments.next().unwrap_or_default();
    let time = Duration::from_secs_f64(seconds);
    let plain = plain_tcp(time);
    let plain_each = plain * seconds / processor();
    println!("{:<22} {plain:>6.0} MiB/s {:>20} {plain_each:>6.0} MiB/cpu-s", "plain TCP", "");
    let address = start();
    for (opcode, name) in [(READ, "read"), (WRITE, "write")] {
        for (size, label) in [(4 << 10, "4k"), (64 << 10, "64k"), (1 << 20, "1m")] {
            for (depth, digests) in [(1, false), (1, true), (32, false), (32, true)] {
                let what = format!("{name} {label} qd{depth}{}", if digests { " crc32c" } else { "" });
                if !what.contains(&only) {
                    continue;
                }
                let before = processor();
                let (rate, commands) = measure(address, opcode, size, depth, digests, time);
                let each = rate * seconds / (processor() - before);
                let (part, part_each) = (100.0 * rate / plain, 100.0 * each / plain_each);
                println!(
                    "{what:<22} {rate:>6.0} MiB/s {commands:>8.0}/s {part:>7.0} % {each:>6.0} MiB/cpu-s {part_each:>4.0} %"
                );
            }
        }
    }
}
