//! Sequential throughput of a disk with and without end-to-end protection, and the server's CPU
//! time: `cargo run --release --example e2e_cost -- [ROUNDS]`.
//!
//! The target keeps its blocks in memory and runs in a thread of its own, connected by loopback
//! TCP. Forced writes cost nothing there, so overwrites on a real disk are slower.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for developers")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealstone_block::{BlockSize, BlockUnits, NewUnit};
use sealstone_block_client::e2e::{E2eDisk, E2eOptions, MemoryRootStore, UnitMedium, fast_aead};
use sealstone_block_client::{BlockUnitClient, UnitClientOptions};
use sealstone_block_e2e::{KeyEpoch, UnitId, UnitKey, UnitKeyRing};
use sealstone_initiator::{Dial, Dialed, Dialing, SystemEnvironment, TargetUrl};
use sealstone_iscsi_target::{IscsiTarget, TargetConfig};
use sealstone_store::{MemoryStore, ObjectStore};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const NAME: &str = "iqn.2026-11.org.sealstone:osd.cost";
const UNIT: u64 = 512 << 20;
/// Bytes of a pass.
const PASS: u64 = 384 << 20;
const REQUEST: u64 = 64 << 10;

struct LoopbackDial(SocketAddr);

impl Dial for LoopbackDial {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async move {
            let stream = TcpStream::connect(self.0).await?;
            stream.set_nodelay(true)?;
            Ok(Dialed::plain(Box::new(stream)))
        })
    }
}

/// Starts the target in a thread; returns its address and the number of the thread.
fn start_target() -> (SocketAddr, u32) {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new(2 << 30));
            let new = NewUnit::new("disk", BlockSize::B4096, UNIT, [1; 16]);
            let unit = BlockUnits::open(store, NAME).unwrap().create(new).unwrap();
            let target = Arc::new(IscsiTarget::new(TargetConfig::new(NAME), vec![(1, unit)]).unwrap());
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let thread = std::fs::read_link("/proc/thread-self").unwrap();
            let thread = thread.file_name().unwrap().to_str().unwrap().parse().unwrap();
            sender.send((listener.local_addr().unwrap(), thread)).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let target = Arc::clone(&target);
                tokio::spawn(async move {
                    target.serve_stream(stream, "m:1".into(), "m:2".into(), None).await;
                });
            }
        });
    });
    receiver.recv().unwrap()
}

/// CPU time of a thread, in steps of 10 ms.
fn cpu(thread: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

async fn connect(address: SocketAddr) -> BlockUnitClient {
    let url: TargetUrl = format!("iscsi://{address}/{NAME}/1").parse().unwrap();
    let options = UnitClientOptions::new(&SystemEnvironment);
    let dial = Arc::new(LoopbackDial(address));
    BlockUnitClient::open(dial, &url, &SystemEnvironment, &options).await.unwrap()
}

/// Runs the requests of a pass, `depth` at a time. Returns MB/s and the CPU seconds of the server.
async fn pass<F>(thread: u32, depth: usize, request: impl Fn(u64) -> F) -> (f64, f64)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (began, used) = (Instant::now(), cpu(thread));
    let mut requests = JoinSet::new();
    for offset in (0..PASS).step_by(REQUEST as usize) {
        if requests.len() == depth {
            requests.join_next().await;
        }
        requests.spawn(request(offset));
    }
    requests.join_all().await;
    (PASS as f64 / 1e6 / began.elapsed().as_secs_f64(), (cpu(thread) - used).as_secs_f64())
}

/// Measures one round: unprotected write and read, first write, overwrite, protected read.
async fn round(address: SocketAddr, thread: u32, depth: usize, data: &Bytes) -> [(f64, f64); 5] {
    let unit = connect(address).await;
    let (reader, writer) = (unit.clone(), (unit.clone(), data.clone()));
    let write = move |offset| {
        let (unit, data) = writer.clone();
        async move { unit.write(offset, data, false).await.unwrap() }
    };
    let plain_write = pass(thread, depth, write).await;
    let read = move |offset| {
        let unit = reader.clone();
        async move { drop(unit.read(offset, REQUEST).await.unwrap()) }
    };
    let plain_read = pass(thread, depth, read).await;
    let ring = UnitKeyRing::new(UnitId([1; 16]), KeyEpoch(1), UnitKey::new([2; 32]), fast_aead);
    let (keys, medium, roots) = (Arc::new(ring.unwrap()), UnitMedium::new(unit), MemoryRootStore::default());
    E2eDisk::format(&medium, &roots, &keys).await.unwrap();
    let (disk, _) = E2eDisk::open(medium, roots, keys, E2eOptions::default()).await.unwrap();
    let (reader, writer) = (disk.clone(), (disk, data.clone()));
    let write = move |offset| {
        let (disk, data) = writer.clone();
        async move { disk.write(offset, data, false).await.unwrap() }
    };
    let first_write = pass(thread, depth, &write).await;
    let overwrite = pass(thread, depth, &write).await;
    let read = move |offset| {
        let disk = reader.clone();
        async move { drop(disk.read(offset, REQUEST).await.unwrap()) }
    };
    [plain_write, plain_read, first_write, overwrite, pass(thread, depth, read).await]
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(5);
    // As `block attach`: one thread.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (address, thread) = start_target();
        let data = Bytes::from((0..REQUEST).map(|at| (at / 5) as u8).collect::<Vec<_>>());
        for depth in [1, 8, 32] {
            let mut results = [const { Vec::new() }; 5];
            for _ in 0..rounds {
                let round = round(address, thread, depth, &data).await;
                results.iter_mut().zip(round).for_each(|(runs, run)| runs.push(run));
            }
            let names = ["S0 write", "S0 read", "E2E first write", "E2E overwrite", "E2E read"];
            for (name, mut runs) in names.into_iter().zip(results) {
                runs.sort_by(|one, two| one.0.total_cmp(&two.0));
                let (rate, server) = runs[runs.len() / 2];
                println!("depth {depth:2}  {name:16} {rate:7.0} MB/s  server CPU {server:.2} s");
            }
        }
    });
}
