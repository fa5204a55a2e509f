//! A client and a real target over streams in memory, which the tests cut.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use sealstone_block::{BlockSize, BlockUnits, NewUnit};
use sealstone_block_client::{BlockError, BlockUnitClient, UnitClientOptions, ZeroMode};
use sealstone_initiator::{Dial, Dialed, Dialing, SystemEnvironment, TargetUrl};
use sealstone_iscsi_target::{IscsiTarget, TargetConfig};
use sealstone_store::{MemoryStore, ObjectStore};
use tokio::task::{AbortHandle, JoinSet};

const NAME: &str = "iqn.2026-11.org.sealstone:osd.test";
const BYTES: u64 = 4 << 20;

/// A target and its connections.
struct MemoryTarget {
    target: Mutex<Arc<IscsiTarget>>,
    connections: Mutex<Vec<AbortHandle>>,
}

fn target(serial: u8, block: BlockSize) -> Arc<IscsiTarget> {
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new(64 << 20));
    let units = BlockUnits::open(store, NAME).unwrap();
    let new = NewUnit {
        name: "disk".into(),
        lun: None,
        bytes: BYTES,
        block,
        thin: true,
        removable: false,
        write_through: false,
        serial: [serial; 16],
        now_ms: 0,
    };
    let unit = units.create(new).unwrap();
    IscsiTarget::new(TargetConfig::new(NAME), vec![(1, unit as _)]).unwrap().into()
}

impl MemoryTarget {
    fn new() -> Arc<Self> {
        Arc::new(Self { target: Mutex::new(target(1, BlockSize::B512)), connections: Mutex::default() })
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
    assert!(matches!(unit.unmap(u64::MAX - 511, 512).await, Err(BlockError::OutOfRange { .. })));
    assert!(unit.read(BYTES, 0).await.unwrap().is_empty());
}

#[tokio::test]
async fn zeros_and_unmap_change_the_allocation() {
    let unit = open(&MemoryTarget::new(), 1).await;
    unit.write(0, Bytes::from(vec![9; 1 << 20]), false).await.unwrap();
    unit.unmap(64 << 10, 64 << 10).await.unwrap();
    unit.write_zeros(256 << 10, 64 << 10, ZeroMode::MayUnmap).await.unwrap();
    unit.write_zeros(512 << 10, 64 << 10, ZeroMode::Allocate).await.unwrap();
    for hole in [64_u64 << 10, 256 << 10, 512 << 10] {
        assert_eq!(unit.read(hole, 64 << 10).await.unwrap(), vec![0; 64 << 10]);
    }
    let extents = unit.allocation(0, BYTES).await.unwrap();
    let holes: Vec<_> =
        extents.iter().filter(|extent| !extent.is_allocated).map(|extent| extent.offset >> 10).collect();
    assert_eq!(holes, [64, 256, 1024], "{extents:?}");
    assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), BYTES);
}
