//! A client and a real target over streams in memory, which the tests cut.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use sealstone_block::{BlockSize, BlockUnits, NewUnit};
use sealstone_block_client::e2e::{SealedMedium as _, UnitMedium, WriteGuarantee};
use sealstone_block_client::{
    BlockError, BlockUnitClient, RECOVERY_TIMEOUT_DEFAULT, UnitClientOptions, ZeroMode,
};
use sealstone_initiator::{Dial, Dialed, Dialing, SessionError, SystemEnvironment, TargetUrl};
use sealstone_iscsi_target::{IscsiTarget, TargetConfig};
use sealstone_scsi::lu::{Cost, InitiatorPort, LogicalUnit, NexusId, ScsiCommand, ScsiReply};
use sealstone_scsi::{AdditionalSense, additional};
use sealstone_store::{MemoryStore, ObjectStore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

const NAME: &str = "iqn.2026-11.org.sealstone:osd.test";
const BYTES: u64 = 4 << 20;

/// A target and its connections.
struct MemoryTarget {
    target: Mutex<Arc<IscsiTarget>>,
    connections: Mutex<Vec<AbortHandle>>,
    /// Whether connections are refused.
    is_down: AtomicBool,
}

fn unit(serial: u8, block: BlockSize) -> Arc<dyn LogicalUnit> {
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new(64 << 20));
    let units = BlockUnits::open(store, NAME).unwrap();
    units.create(NewUnit::new("disk", block, BYTES, [serial; 16])).unwrap()
}

fn target(serial: u8, block: BlockSize) -> Arc<IscsiTarget> {
    let unit = unit(serial, block);
    IscsiTarget::new(TargetConfig::new(NAME), vec![(1, unit)]).unwrap().into()
}

impl MemoryTarget {
    fn new() -> Arc<Self> {
        Self::of(target(1, BlockSize::B512))
    }

    fn of(target: Arc<IscsiTarget>) -> Arc<Self> {
        let target = Mutex::new(target);
        Arc::new(Self { target, connections: Mutex::default(), is_down: AtomicBool::new(false) })
    }

    /// Ends all connections and refuses new ones, or accepts them again.
    fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
        self.cut();
    }

    /// Ends all connections at once, as a reset of the network does.
    fn cut(&self) {
        self.connections.lock().unwrap().drain(..).for_each(|connection| connection.abort());
    }
}

/// Connects to a target in memory.
struct MemoryDial(Arc<MemoryTarget>);

impl Dial for MemoryDial {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async move {
            if self.0.is_down.load(Ordering::SeqCst) {
                return Err(SessionError::Unreachable(ErrorKind::ConnectionRefused));
            }
            let (near, far) = tokio::io::duplex(64 << 10);
            let target = Arc::clone(&self.0.target.lock().unwrap());
            let serving = tokio::spawn(async move {
                target.serve_stream(far, "m:3260".to_owned(), "m:1".to_owned(), None).await;
            });
            self.0.connections.lock().unwrap().push(serving.abort_handle());
            Ok(Dialed::plain(Box::new(near)))
        })
    }
}

async fn open(target: &Arc<MemoryTarget>, sessions: usize) -> BlockUnitClient {
    let url: TargetUrl = format!("iscsi://m/{NAME}/1").parse().unwrap();
    let mut options = UnitClientOptions::new(&SystemEnvironment);
    (options.sessions, options.reconnect_pause) = (sessions, Duration::from_millis(1));
    let dial = Arc::new(MemoryDial(Arc::clone(target)));
    BlockUnitClient::open(dial, &url, &SystemEnvironment, &options).await.unwrap()
}

#[tokio::test]
async fn requests_in_flight_survive_cut_connections() {
    for sessions in [1, 3] {
        let target = MemoryTarget::new();
        let unit = open(&target, sessions).await;
        let mut writes = JoinSet::new();
        for index in 0..64_u64 {
            let unit = unit.clone();
            writes.spawn(async move {
                let data = Bytes::from(vec![index as u8 + 1; 32 << 10]);
                unit.write(index * (32 << 10), data, index % 8 == 0).await.unwrap();
            });
            if index % 16 == 7 {
                tokio::task::yield_now().await;
                target.cut();
            }
        }
        writes.join_all().await;
        for index in 0..64_u64 {
            if index % 16 == 3 {
                target.cut();
            }
            let read = unit.read(index * (32 << 10), 32 << 10).await.unwrap();
            assert!(read.iter().all(|byte| *byte == index as u8 + 1), "{index}");
        }
        unit.flush(&unit.flush_cursor()).await.unwrap();
        unit.close().await;
    }
}

#[tokio::test]
async fn ordered_write_needs_session_of_last_flush() {
    for sessions in [1, 3] {
        let target = MemoryTarget::new();
        let unit = open(&target, sessions).await;
        assert!(unit.geometry().keeps_order);
        let medium = UnitMedium::new(unit.clone());
        let block = Bytes::from(vec![7; 4096]);
        let write = || medium.write(3, block.clone(), WriteGuarantee::Ordered);
        // Nothing is known of earlier writes.
        assert!(matches!(write().await, Err(BlockError::SessionReplaced)));
        medium.flush().await.unwrap();
        write().await.unwrap();
        target.cut();
        for _ in 0..sessions {
            // Each path notices the cut by itself.
            assert!(matches!(write().await, Err(BlockError::SessionReplaced)));
            assert!(matches!(medium.unmap(3, 1).await, Err(BlockError::SessionReplaced)));
        }
        assert_eq!(medium.read(3, 1).await.unwrap(), block, "it was neither sent nor unmapped");
        medium.flush().await.unwrap();
        for _ in 0..sessions {
            write().await.unwrap();
        }
        medium.unmap(3, 1).await.unwrap();
        unit.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn queued_requests_fail_together_after_timeout() {
    let target = MemoryTarget::new();
    let unit = open(&target, 2).await;
    target.set_down(true);
    let (began, timeout) = (Instant::now(), RECOVERY_TIMEOUT_DEFAULT);
    let mut requests = JoinSet::new();
    for index in 0..64_u64 {
        let unit = unit.clone();
        requests.spawn(async move {
            tokio::time::sleep(timeout / 128 * index as u32).await;
            match index % 8 {
                0 => unit.flush(&unit.flush_cursor()).await,
                _ => unit.write(index * 512, Bytes::from(vec![1; 512]), false).await,
            }
        });
    }
    for outcome in requests.join_all().await {
        assert!(matches!(outcome, Err(BlockError::Unavailable { .. })), "{outcome:?}");
    }
    let longest = UnitClientOptions::PAUSE_MAX;
    assert!(began.elapsed() <= timeout + longest, "{:?}", began.elapsed());
    // Until the target is back, a request fails with the next attempt.
    let began = Instant::now();
    assert!(matches!(unit.read(0, 512).await, Err(BlockError::Unavailable { .. })));
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    target.set_down(false);
    unit.write(0, Bytes::from(vec![1; 512]), false).await.unwrap();
    unit.flush(&unit.flush_cursor()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn flush_over_sessions_takes_one_timeout() {
    let target = MemoryTarget::new();
    let unit = open(&target, 8).await;
    unit.write(0, Bytes::from(vec![1; 512]), false).await.unwrap();
    target.set_down(true);
    let began = Instant::now();
    let outcome = unit.flush(&unit.flush_cursor()).await;
    assert!(matches!(outcome, Err(BlockError::Unavailable { .. })), "{outcome:?}");
    let limit = RECOVERY_TIMEOUT_DEFAULT + UnitClientOptions::PAUSE_MAX;
    assert!(began.elapsed() <= limit, "{:?}", began.elapsed());
}

#[tokio::test]
async fn another_unit_after_reconnect_is_refused() {
    let target_memory = MemoryTarget::new();
    let unit = open(&target_memory, 1).await;
    unit.write(0, Bytes::from(vec![1; 512]), false).await.unwrap();
    for other in [target(2, BlockSize::B512), target(1, BlockSize::B4096)] {
        *target_memory.target.lock().unwrap() = other;
        target_memory.cut();
        let refused = unit.write(0, Bytes::from(vec![2; 512]), false).await;
        assert!(matches!(refused, Err(BlockError::Changed(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn extents_are_checked_before_anything_is_sent() {
    let unit = open(&MemoryTarget::new(), 1).await;
    let geometry = unit.geometry();
    assert_eq!((geometry.bytes, geometry.block_bytes, geometry.physical_bytes), (BYTES, 512, 4096));
    assert!(matches!(unit.read(1, 512).await, Err(BlockError::Unaligned { block: 512 })));
    assert!(matches!(unit.read(BYTES, 512).await, Err(BlockError::OutOfRange { .. })));
    assert!(matches!(unit.unmap(u64::MAX - 511, 512, false).await, Err(BlockError::OutOfRange { .. })));
    assert!(unit.read(BYTES, 0).await.unwrap().is_empty());
}

#[tokio::test]
async fn zeros_and_unmap_change_the_allocation() {
    let unit = open(&MemoryTarget::new(), 1).await;
    unit.write(0, Bytes::from(vec![9; 1 << 20]), false).await.unwrap();
    unit.unmap(64 << 10, 64 << 10, false).await.unwrap();
    unit.write_zeros(256 << 10, 64 << 10, ZeroMode::MayUnmap, false).await.unwrap();
    unit.write_zeros(512 << 10, 64 << 10, ZeroMode::Allocate, false).await.unwrap();
    for hole in [64_u64 << 10, 256 << 10, 512 << 10] {
        assert_eq!(unit.read(hole, 64 << 10).await.unwrap(), vec![0; 64 << 10]);
    }
    let extents = unit.allocation(0, BYTES).await.unwrap();
    let holes: Vec<_> =
        extents.iter().filter(|extent| !extent.is_allocated).map(|extent| extent.offset >> 10).collect();
    assert_eq!(holes, [64, 256, 1024], "{extents:?}");
    assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), BYTES);
}

/// A unit of another vendor without FUA, which counts flushes.
struct ForeignUnit {
    unit: Arc<dyn LogicalUnit>,
    flushes: AtomicUsize,
    /// Whether each new nexus gets POWER ON OCCURRED.
    has_restarted: AtomicBool,
}

impl LogicalUnit for ForeignUnit {
    fn cost(&self, nexus: NexusId, cdb: &[u8]) -> Cost {
        self.unit.cost(nexus, cdb)
    }

    fn execute(&self, command: ScsiCommand<'_>) -> ScsiReply {
        let [code, flags] = [command.cdb[0], command.cdb[1]];
        assert!(code != 0x8A || flags & 0x08 == 0, "FUA without DPOFUA");
        if code == 0x91 {
            self.flushes.fetch_add(1, Ordering::SeqCst);
        }
        let mut reply = self.unit.execute(command);
        let mut data = reply.data_in.to_vec();
        match code {
            0x12 if flags == 0 && data.len() > 16 => data[8..16].copy_from_slice(b"OTHER   "),
            0x1A if data.len() > 2 => data[2] &= !0x10,
            _ => {}
        }
        reply.data_in = data.into();
        reply
    }

    fn nexus_established(&self, nexus: NexusId, port: &InitiatorPort<'_>) {
        self.unit.nexus_established(nexus, port);
        if self.has_restarted.load(Ordering::SeqCst) {
            self.unit.attention(nexus, additional::POWER_ON_OCCURRED);
        }
    }

    fn nexus_lost(&self, nexus: NexusId) {
        self.unit.nexus_lost(nexus);
    }

    fn reset(&self) {
        self.unit.reset();
    }

    fn attention(&self, nexus: NexusId, code: AdditionalSense) {
        self.unit.attention(nexus, code);
    }

    fn luns_reported(&self, nexus: NexusId) {
        self.unit.luns_reported(nexus);
    }
}

fn foreign() -> (Arc<MemoryTarget>, Arc<ForeignUnit>) {
    let unit = Arc::new(ForeignUnit {
        unit: unit(1, BlockSize::B512),
        flushes: AtomicUsize::new(0),
        has_restarted: AtomicBool::new(false),
    });
    let target = IscsiTarget::new(TargetConfig::new(NAME), vec![(1, Arc::clone(&unit) as _)]).unwrap();
    (MemoryTarget::of(target.into()), unit)
}

#[tokio::test]
async fn durable_write_without_fua_is_flushed() {
    let (target, foreign) = foreign();
    let unit = open(&target, 1).await;
    assert!(!unit.geometry().has_fua);
    unit.write(0, Bytes::from(vec![1; 512]), false).await.unwrap();
    assert_eq!(foreign.flushes.load(Ordering::SeqCst), 0);
    unit.write(0, Bytes::from(vec![2; 512]), true).await.unwrap();
    assert_eq!(foreign.flushes.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn power_failure_fails_next_flush_once() {
    let (target, foreign) = foreign();
    let unit = open(&target, 1).await;
    let cursor = unit.flush_cursor();
    foreign.has_restarted.store(true, Ordering::SeqCst);
    target.cut();
    unit.flush(&cursor).await.unwrap();
    unit.write(0, Bytes::from(vec![1; 512]), false).await.unwrap();
    target.cut();
    // The flush itself connects again.
    assert!(matches!(unit.flush(&cursor).await, Err(BlockError::LostWrites)));
    unit.flush(&cursor).await.unwrap();
    unit.write(0, Bytes::from(vec![2; 512]), false).await.unwrap();
    target.cut();
    // The error of a durable write does not hide the loss of an earlier one.
    let durable = unit.write(512, Bytes::from(vec![3; 512]), true).await;
    assert!(matches!(durable, Err(BlockError::LostWrites)));
    unit.write(512, Bytes::from(vec![3; 512]), true).await.unwrap();
    assert!(matches!(unit.flush(&cursor).await, Err(BlockError::LostWrites)));
    unit.flush(&cursor).await.unwrap();
}

#[tokio::test]
async fn durable_zeros_leave_losses_to_flushes() {
    let (target, foreign) = foreign();
    let unit = open(&target, 1).await;
    let cursor = unit.flush_cursor();
    foreign.has_restarted.store(true, Ordering::SeqCst);
    for is_unmap in [false, true] {
        unit.write(0, Bytes::from(vec![1; 512]), false).await.unwrap();
        target.cut();
        for is_first in [true, false] {
            let outcome = match is_unmap {
                true => unit.unmap(0, 4096, true).await,
                false => unit.write_zeros(0, 4096, ZeroMode::MayUnmap, true).await,
            };
            assert_eq!(matches!(outcome, Err(BlockError::LostWrites)), is_first, "{outcome:?}");
        }
        assert!(matches!(unit.flush(&cursor).await, Err(BlockError::LostWrites)));
        unit.flush(&cursor).await.unwrap();
    }
}
