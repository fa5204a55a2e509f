//! Units whose blocks have keys, between a real client and a real target, with a man in the middle.
//! Rows L1 to L8 of docs/design/block-lazy.md.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use sealstone_block::{
    BlockSize, BlockUnit, BlockUnits, IntegrityFailure, LazyOptions, LazyStatus, LossSink, LostWrites,
    NewUnit, PageSecret, StoredSecret, UnitOptions, UnitProtection,
};
use sealstone_block_client::{BlockError, BlockUnitClient, UnitClientOptions, ZeroMode};
use sealstone_initiator::chap::{ChapAccount, ChapSecret};
use sealstone_initiator::{
    BlockReport, Dial, Dialed, Dialing, Environment as _, Proof, Proofs, ProtectedBlock, ProtectionLevel,
    ProtectionProfile, ProtectionSettings, RECEIVE_UNIT_KEYS, REPORT_BLOCKS, ScsiRequest, Session,
    SessionConfig, SessionError, SystemEnvironment, TargetUrl,
};
use sealstone_iscsi::target_side::{AccessRule, AccessRules};
use sealstone_iscsi_target::{IscsiTarget, TargetConfig};
use sealstone_scsi::Sense;
use sealstone_scsi::lu::LogicalUnit;
use sealstone_store::{MemoryStore, ObjectStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};

const NAME: &str = "iqn.2026-11.org.sealstone:osd.test";
const BYTES: u64 = 4 << 20;
const S1_2: ProtectionLevel = ProtectionLevel::S1LazyMac;
const M_LAZY: ProtectionLevel = ProtectionLevel::ModernLazy;
const LEVELS: [ProtectionLevel; 4] =
    [S1_2, ProtectionLevel::S2LazyCipher, ProtectionLevel::S2LazyCipherMac, M_LAZY];
const SAFE: ProtectionProfile = ProtectionProfile::PaperSafe;
const PAPER: ProtectionProfile = ProtectionProfile::Paper;
const MODERN: ProtectionProfile = ProtectionProfile::Modern;
/// Shortest piece that has data of a block of 4 KiB.
const LARGE: usize = 4096;

/// Direction and kind of a change on the way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Data with the marker, to the target.
    Write,
    /// Data with the marker, to the client.
    Read,
    /// Encrypted data to the target: a bit in the middle of a large piece.
    LargeWrite,
    /// Encrypted data to the client.
    LargeRead,
    /// A bit of the header of the next PDU to the target.
    Header,
    /// The next piece to the target is sent twice.
    Replay,
}

/// The man in the middle: makes a change a number of times.
#[derive(Default)]
struct Middle(Mutex<Option<(Change, Vec<u8>, usize)>>);

impl Middle {
    fn arm(&self, change: Change, marker: &[u8], times: usize) {
        *self.0.lock().unwrap() = Some((change, marker.to_vec(), times));
    }

    fn disarm(&self) {
        *self.0.lock().unwrap() = None;
    }

    fn pass(&self, piece: &mut Vec<u8>, to_target: bool) {
        let mut armed = self.0.lock().unwrap();
        let Some((change, marker, times)) = armed.as_mut().filter(|(_, _, times)| *times > 0) else { return };
        let is_direction = to_target != matches!(change, Change::Read | Change::LargeRead);
        match change {
            _ if !is_direction => {}
            Change::LargeWrite | Change::LargeRead => {
                let middle = piece.len() / 2;
                if let Some(byte) = piece.get_mut(middle).filter(|_| middle >= LARGE / 2) {
                    *byte ^= 1;
                    *times -= 1;
                }
            }
            Change::Header => {
                piece[20] ^= 1;
                *times -= 1;
            }
            Change::Replay => {
                let copy = piece.clone();
                piece.extend_from_slice(&copy);
                *times -= 1;
            }
            Change::Write | Change::Read => {
                if let Some(at) = piece.windows(marker.len()).position(|bytes| bytes == marker) {
                    piece[at] ^= 1;
                    *times -= 1;
                }
            }
        }
    }

    async fn relay(
        self: Arc<Self>,
        mut from: ReadHalf<DuplexStream>,
        mut to: WriteHalf<DuplexStream>,
        to_target: bool,
    ) {
        let mut buffer = vec![0; 256 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let mut piece = buffer[..count].to_vec();
            self.pass(&mut piece, to_target);
            if to.write_all(&piece).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    }
}

/// A device with one unit, and its man in the middle.
struct KeyedDevice {
    store: Arc<dyn ObjectStore>,
    units: BlockUnits,
    target: IscsiTarget,
    middle: Arc<Middle>,
    sessions: AtomicUsize,
    settings: ProtectionSettings,
}

fn options() -> UnitOptions {
    let secret = StoredSecret::Present(PageSecret::new([9; 32]));
    let random = Arc::new(|into: &mut [u8]| SystemEnvironment.fill_random(into));
    UnitOptions { lazy: Some(LazyOptions { secret, random }), ..UnitOptions::default() }
}

fn account() -> ChapAccount {
    ChapAccount { name: "ann".into(), secret: ChapSecret::new(b"a secret of ann!").unwrap() }
}

impl KeyedDevice {
    fn new(level: ProtectionLevel, profile: ProtectionProfile, block: BlockSize) -> Arc<Self> {
        let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new(64 << 20));
        let units = BlockUnits::open_with(Arc::clone(&store), NAME, options()).unwrap();
        let protection = UnitProtection::new(level, profile);
        let new = NewUnit { protection, ..NewUnit::new("disk", block, BYTES, [1; 16]) };
        units.create(new).unwrap();
        Self::serving(store, units)
    }

    fn serving(store: Arc<dyn ObjectStore>, units: BlockUnits) -> Arc<Self> {
        let unit = units.units().remove(0);
        let description = unit.description();
        let block = match description.geometry.block() {
            BlockSize::B512 => ProtectedBlock::B512,
            BlockSize::B4096 => ProtectedBlock::B4096,
        };
        let settings = description.protection.settings(block).unwrap();
        let mut config = TargetConfig::new(NAME);
        let rule = AccessRule {
            initiators: vec!["iqn.*".into()],
            account: Some(account()),
            ..AccessRule::default()
        };
        config.protocol.access = Some(Arc::new(AccessRules::new(vec![rule])));
        let target = IscsiTarget::new(config, Vec::new()).unwrap();
        target.attach_protected(1, Arc::clone(&unit) as Arc<dyn LogicalUnit>, settings).unwrap();
        let (middle, sessions) = (Arc::default(), AtomicUsize::new(0));
        Arc::new(Self { store, units, target, middle, sessions, settings })
    }

    /// Opens the units of the store again, as after a restart.
    fn restarted(&self) -> Arc<Self> {
        let units = BlockUnits::open_with(Arc::clone(&self.store), NAME, options()).unwrap();
        Self::serving(Arc::clone(&self.store), units)
    }

    fn unit(&self) -> Arc<BlockUnit> {
        self.units.units().remove(0)
    }

    fn status(&self) -> LazyStatus {
        self.unit().lazy_status().unwrap()
    }

    fn stream(&self) -> DuplexStream {
        let (near, middle_near) = tokio::io::duplex(256 << 10);
        let (middle_far, far) = tokio::io::duplex(256 << 10);
        let target = self.target.clone();
        tokio::spawn(async move {
            target.serve_stream(far, "m:3260".to_owned(), "m:1".to_owned(), None).await;
        });
        let (from_client, to_client) = tokio::io::split(middle_near);
        let (from_target, to_target) = tokio::io::split(middle_far);
        tokio::spawn(Arc::clone(&self.middle).relay(from_client, to_target, true));
        tokio::spawn(Arc::clone(&self.middle).relay(from_target, to_client, false));
        self.sessions.fetch_add(1, Ordering::SeqCst);
        near
    }

    fn config(&self) -> SessionConfig {
        let mut config = SessionConfig::new(Some(NAME.to_owned()), &SystemEnvironment);
        config.protection = Some(self.settings);
        config.protected_lun = 1;
        config.proofs = Proofs::always(Proof::new(account(), None));
        config
    }

    async fn client(self: &Arc<Self>) -> BlockUnitClient {
        let url: TargetUrl = format!("iscsi://m/{NAME}/1").parse().unwrap();
        let mut options = UnitClientOptions::new(&SystemEnvironment);
        options.session = self.config();
        options.reconnect_pause = Duration::from_millis(1);
        let dial = Arc::new(KeyedDial(Arc::clone(self)));
        BlockUnitClient::open(dial, &url, &SystemEnvironment, &options).await.unwrap()
    }

    /// Waits until the unit has verified its blocks by time.
    async fn verified(&self) {
        let began = std::time::Instant::now();
        while self.status().unverified > 0 {
            assert!(began.elapsed() < Duration::from_secs(30), "the window is bounded");
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.units.verify_due();
        }
    }

    fn contains(&self, text: &[u8]) -> bool {
        let mut found = false;
        for (id, _) in self.store.list(sealstone_osd::ObjectId::new(0, 0), 1000).unwrap() {
            let length = usize::try_from(self.store.stat(id).unwrap().length).unwrap();
            let mut bytes = vec![0; length];
            self.store.read(id, 0, &mut bytes).unwrap();
            found |= bytes.windows(text.len()).any(|part| part == text);
        }
        found
    }
}

struct KeyedDial(Arc<KeyedDevice>);

impl Dial for KeyedDial {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async move { Ok(Dialed::plain(Box::new(self.0.stream()))) })
    }
}

/// A block whose first bytes name it.
fn block(name: &[u8]) -> Bytes {
    let mut bytes = vec![0x5A; 512];
    bytes[..name.len()].copy_from_slice(name);
    bytes.into()
}

const OLD: &[u8] = b"the content of the older write";
const NEW: &[u8] = b"the content of the newer write";

/// Bytes without repetition.
fn image(length: usize) -> Vec<u8> {
    static SEED: AtomicU64 = AtomicU64::new(1);
    let mut seed = SEED.fetch_add(1, Ordering::Relaxed);
    let step = |_| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (seed >> 40) as u8
    };
    (0..length).map(step).collect()
}

#[tokio::test]
async fn keyed_levels_move_data_and_survive_restarts() {
    for level in LEVELS {
        for (profile, size) in [(SAFE, BlockSize::B512), (SAFE, BlockSize::B4096), (PAPER, BlockSize::B512)] {
            let device = KeyedDevice::new(level, profile, size);
            let client = device.client().await;
            let text = b"a line that is on the disk of the device";
            let mut expected = vec![0; usize::try_from(BYTES).unwrap()];
            for (at, length) in [(0, 4096), (8192, 1 << 20), (1 << 20, 300 << 10), (3 << 20, 64 << 10)] {
                let mut bytes = image(length);
                bytes[100..100 + text.len()].copy_from_slice(text);
                expected[at..at + length].copy_from_slice(&bytes);
                client.write(at as u64, bytes.into(), false).await.unwrap();
            }
            assert!(client.read(0, BYTES).await.unwrap() == expected, "{level} {profile}");
            client.flush(&client.flush_cursor()).await.unwrap();
            let is_readable = device.contains(text);
            assert_eq!(is_readable, level == S1_2, "{level} hides data exactly if it encrypts");
            client.write_zeros(0, 64 << 10, ZeroMode::MayUnmap, true).await.unwrap();
            expected[..64 << 10].fill(0);
            assert!(client.read(0, BYTES).await.unwrap() == expected, "{level} {profile}");
            client.close().await;
            let device = device.restarted();
            let client = device.client().await;
            assert!(client.read(0, BYTES).await.unwrap() == expected, "{level} {profile}");
            assert_eq!(device.status().rejected, 0);
            client.close().await;
        }
    }
}

/// L1 with counter-measures: an error at the flush, and the older block is never returned.
#[tokio::test]
async fn changed_write_is_an_error_within_a_second() {
    for by_flush in [true, false] {
        let device = KeyedDevice::new(S1_2, SAFE, BlockSize::B512);
        let client = device.client().await;
        let cursor = client.flush_cursor();
        client.write(512, block(OLD), true).await.unwrap();
        device.middle.arm(Change::Write, NEW, 1);
        client.write(512, block(NEW), false).await.unwrap();
        if !by_flush {
            device.verified().await;
            assert!(device.status().window_max_ms < 30_000);
        }
        let flushed = client.flush(&cursor).await;
        assert!(matches!(flushed, Err(BlockError::LostWrites)), "{flushed:?}");
        assert_eq!((device.status().rejected, device.status().unverified), (1, 0));
        let read = client.read(512, 512).await;
        assert!(matches!(read, Err(BlockError::Medium { .. })), "{read:?}");
        client.write(512, block(NEW), true).await.unwrap();
        assert_eq!(client.read(512, 512).await.unwrap(), block(NEW));
        client.flush(&cursor).await.unwrap();
    }
}

#[tokio::test]
async fn changed_durable_write_is_refused_at_once() {
    let device = KeyedDevice::new(S1_2, SAFE, BlockSize::B512);
    let client = device.client().await;
    client.write(512, block(OLD), true).await.unwrap();
    device.middle.arm(Change::Write, NEW, 1);
    let refused = client.write(512, block(NEW), true).await;
    assert!(matches!(refused, Err(BlockError::Medium { .. })), "{refused:?}");
    assert_eq!(client.read(512, 512).await.unwrap(), block(OLD), "it was never acknowledged");
}

/// A loss is reported by the next session of its writer too.
#[tokio::test]
async fn rejected_write_is_reported_after_reconnect() {
    let device = KeyedDevice::new(S1_2, SAFE, BlockSize::B512);
    let client = device.client().await;
    device.middle.arm(Change::Write, NEW, 1);
    client.write(512, block(NEW), false).await.unwrap();
    // The next PDU breaks the session; the client logs in again under its ISID.
    device.middle.arm(Change::Header, &[], 1);
    client.write(1024, block(OLD), false).await.unwrap();
    assert_eq!(device.sessions.load(Ordering::SeqCst), 2);
    device.verified().await;
    let flushed = client.flush(&client.flush_cursor()).await;
    assert!(matches!(flushed, Err(BlockError::LostWrites)), "{flushed:?}");
    assert!(client.read(512, 512).await.is_err());
}

/// L1: a device that restarts before it has verified a forged write reports it at the first flush,
/// also if no client was logged in when it was rejected.
#[tokio::test]
async fn forged_write_before_restart_fails_next_flush() {
    for is_verified_first in [false, true] {
        let device = KeyedDevice::new(S1_2, SAFE, BlockSize::B512);
        let client = device.client().await;
        client.write(512, block(OLD), true).await.unwrap();
        device.middle.arm(Change::Write, NEW, 1);
        client.write(512, block(NEW), false).await.unwrap();
        let device = device.restarted();
        if is_verified_first {
            device.verified().await;
        }
        let client = device.client().await;
        let flushed = client.flush(&client.flush_cursor()).await;
        assert!(matches!(flushed, Err(BlockError::LostWrites)), "{is_verified_first}: {flushed:?}");
        assert!(client.read(512, 512).await.is_err(), "never the older block");
        assert_eq!(device.status().rejected, 1);
    }
}

/// L1 in the paper's profile: readers silently receive the older block.
#[tokio::test]
async fn changed_write_is_silent_in_paper_profile() {
    let device = KeyedDevice::new(S1_2, PAPER, BlockSize::B512);
    let client = device.client().await;
    client.write(512, block(OLD), true).await.unwrap();
    device.middle.arm(Change::Write, NEW, 1);
    client.write(512, block(NEW), true).await.unwrap();
    assert_eq!(client.read(512, 512).await.unwrap(), block(OLD));
    client.flush(&client.flush_cursor()).await.unwrap();
}

/// L2: a changed reply destroys a valid write in the paper's profile, and nothing otherwise.
#[tokio::test]
async fn changed_reply_destroys_write_in_paper_profile_only() {
    for profile in [PAPER, SAFE] {
        let device = KeyedDevice::new(S1_2, profile, BlockSize::B512);
        let client = device.client().await;
        client.write(512, block(OLD), false).await.unwrap();
        client.write(512, block(NEW), false).await.unwrap();
        device.middle.arm(Change::Read, NEW, usize::MAX);
        let read = client.read(512, 512).await;
        device.middle.disarm();
        if profile == PAPER {
            assert_eq!(read.unwrap(), block(OLD));
            assert_eq!(client.read(512, 512).await.unwrap(), block(OLD), "the newer write is gone");
        } else {
            assert!(matches!(read, Err(BlockError::NotAuthentic(1))), "{read:?}");
            assert_eq!(client.read(512, 512).await.unwrap(), block(NEW));
            assert_eq!(device.status().rejected, 0);
        }
    }
}

#[tokio::test]
async fn reply_changed_once_is_read_again() {
    let device = KeyedDevice::new(S1_2, SAFE, BlockSize::B512);
    let client = device.client().await;
    client.write(512, block(NEW), false).await.unwrap();
    device.middle.arm(Change::Read, NEW, 1);
    assert_eq!(client.read(0, 4096).await.unwrap()[512..1024], block(NEW));
    assert_eq!((device.status().false_reports, device.status().rejected), (1, 0));
}

/// L3: a changed or repeated header ends the session; the command is sent again in a new one.
#[tokio::test]
async fn changed_and_repeated_headers_end_sessions() {
    for level in LEVELS {
        for change in [Change::Header, Change::Replay] {
            let device = KeyedDevice::new(level, SAFE, BlockSize::B512);
            let client = device.client().await;
            client.write(0, block(OLD), false).await.unwrap();
            device.middle.arm(change, &[], 1);
            client.write(512, block(NEW), false).await.unwrap();
            assert_eq!(client.read(0, 512).await.unwrap(), block(OLD));
            assert_eq!(client.read(512, 512).await.unwrap(), block(NEW));
            assert_eq!(device.sessions.load(Ordering::SeqCst), 2, "{level}");
            client.flush(&client.flush_cursor()).await.unwrap();
        }
    }
}

/// L7: a full log loses nothing: writes wait, or are verified at once.
#[tokio::test]
async fn full_log_loses_nothing() {
    for profile in [PAPER, SAFE] {
        let device = KeyedDevice::new(ProtectionLevel::S2LazyCipherMac, profile, BlockSize::B512);
        let client = device.client().await;
        let mut last = Vec::new();
        let verifier = Arc::clone(&device);
        let verifying = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                verifier.units.verify_due();
            }
        });
        for _ in 0..6 {
            last = image(usize::try_from(BYTES).unwrap());
            client.write(0, last.clone().into(), false).await.unwrap();
        }
        verifying.abort();
        assert!(client.read(0, BYTES).await.unwrap() == last);
        let status = device.status();
        assert!(status.log_bytes <= status.log_bytes_max && status.rejected == 0, "{status:?}");
        client.flush(&client.flush_cursor()).await.unwrap();
    }
}

/// L8: a client claims that a version is authentic which is not.
#[tokio::test]
async fn false_success_commits_garbage_in_paper_profile_only() {
    for profile in [PAPER, SAFE] {
        let device = KeyedDevice::new(S1_2, profile, BlockSize::B512);
        let client = device.client().await;
        client.write(512, block(OLD), true).await.unwrap();
        device.middle.arm(Change::Write, NEW, 1);
        client.write(512, block(NEW), false).await.unwrap();
        let session = Session::over(device.stream(), device.config()).await.unwrap();
        let mut read = [0; 16];
        (read[0], read[9], read[13]) = (0x88, 1, 1);
        let read = ScsiRequest {
            lun: 1,
            cdb: Bytes::copy_from_slice(&read),
            data_in_max: 512,
            ..Default::default()
        };
        // The first commands of a session end with unit attentions.
        let mut status = 0;
        for _ in 0..4 {
            let response = session.execute(read.clone()).await.unwrap();
            status = response.status;
            if Sense::parse(&response.sense).is_ok_and(|sense| sense.code.code() == 0x11) {
                break;
            }
        }
        assert_eq!(status, 2, "the newest version is not authentic");
        let [report] = session.block_reports().take(9)[..] else { panic!("one block was read") };
        assert_eq!((report.lba, report.is_authentic), (1, false));
        let claim = BlockReport { is_authentic: true, ..report };
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (REPORT_BLOCKS, BlockReport::LEN as u8);
        let claim = ScsiRequest {
            lun: 1,
            cdb: Bytes::copy_from_slice(&cdb),
            data_out: vec![Bytes::copy_from_slice(&claim.encode())],
            ..Default::default()
        };
        assert_eq!(session.execute(claim).await.unwrap().status, 0);
        session.logout().await;
        let (rejected, unverified) = (device.status().rejected, device.status().unverified);
        match profile {
            PAPER => assert_eq!((rejected, unverified), (0, 0), "garbage is committed"),
            _ => assert_eq!((rejected, unverified), (0, 1), "the claim has no effect"),
        }
    }
}

/// A report about the version that was read waits while the block is written again, by the reader
/// or by another client.
#[tokio::test]
async fn late_report_keeps_newer_write() {
    for profile in [PAPER, SAFE] {
        let device = KeyedDevice::new(S1_2, profile, BlockSize::B512);
        let (client, other) = (device.client().await, device.client().await);
        let cursor = client.flush_cursor();
        for writer in [&client, &other, &client, &other] {
            client.write(512, block(OLD), false).await.unwrap();
            assert_eq!(client.read(512, 512).await.unwrap(), block(OLD), "{profile:?}");
            writer.write(512, block(NEW), false).await.unwrap();
            writer.flush(&writer.flush_cursor()).await.unwrap();
            // It sends the report.
            client.flush(&cursor).await.unwrap();
            assert_eq!(client.read(512, 512).await.unwrap(), block(NEW), "{profile:?}");
        }
    }
}

/// A receiver of reports that announces each one, and is slow.
struct SlowSink(Mutex<mpsc::Sender<()>>);

impl LossSink for SlowSink {
    fn record(&self, _: &LostWrites<'_>) {}

    fn record_integrity(&self, _: &IntegrityFailure<'_>) {
        let _ = self.0.lock().unwrap().send(());
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// A flush succeeds only after rejected writes that another thread has found are reported.
#[tokio::test]
async fn flush_waits_for_report_of_rejected_write() {
    let device = KeyedDevice::new(S1_2, SAFE, BlockSize::B512);
    let (sender, reported) = mpsc::channel();
    let options = UnitOptions { losses: Arc::new(SlowSink(Mutex::new(sender))), ..options() };
    let units = BlockUnits::open_with(Arc::clone(&device.store), NAME, options).unwrap();
    let device = KeyedDevice::serving(Arc::clone(&device.store), units);
    let client = device.client().await;
    let cursor = client.flush_cursor();
    device.middle.arm(Change::Write, NEW, 1);
    client.write(512, block(NEW), false).await.unwrap();
    let verifier = Arc::clone(&device);
    let verifying = std::thread::spawn(move || {
        while verifier.status().unverified > 0 {
            verifier.units.verify_due();
        }
    });
    reported.recv_timeout(Duration::from_secs(30)).unwrap();
    let flushed = client.flush(&cursor).await;
    assert!(matches!(flushed, Err(BlockError::LostWrites)), "{flushed:?}");
    verifying.join().unwrap();
}

/// Marks of idle ports are removed while a write of another port waits that is not authentic.
#[tokio::test]
async fn changed_write_is_reported_while_marks_are_removed() {
    for profile in [PAPER, SAFE] {
        let device = KeyedDevice::new(S1_2, profile, BlockSize::B512);
        let (idle, active) = (device.client().await, device.client().await);
        let cursor = active.flush_cursor();
        let tick = async |ms| {
            let device = Arc::clone(&device);
            let (sender, ended) = tokio::sync::oneshot::channel();
            std::thread::spawn(move || {
                device.units.tick(Duration::from_millis(ms));
                let _ = sender.send(());
            });
            tokio::time::timeout(Duration::from_secs(20), ended).await.expect("no deadlock").unwrap();
        };
        tick(1).await;
        idle.write(0, block(OLD), false).await.unwrap();
        tick(4_900).await;
        device.middle.arm(Change::Write, NEW, 1);
        active.write(512, block(NEW), false).await.unwrap();
        tick(5_100).await;
        let flushed = active.flush(&cursor).await;
        assert_eq!(matches!(flushed, Err(BlockError::LostWrites)), profile == SAFE, "{flushed:?}");
    }
}

/// Writes without keys, and with a form that the client does not seal, change nothing.
#[tokio::test]
async fn write_without_keys_is_refused() {
    let device = KeyedDevice::new(S1_2, SAFE, BlockSize::B512);
    let session = Session::over(device.stream(), device.config()).await.unwrap();
    let write = ScsiRequest {
        lun: 1,
        cdb: Bytes::from_static(&[0x2A, 0, 0, 0, 0, 1, 0, 0, 1, 0]),
        data_out: vec![block(NEW)],
        ..Default::default()
    };
    let refused = async || {
        let response = session.execute(write.clone()).await.unwrap();
        Sense::parse(&response.sense)
            .is_ok_and(|sense| (sense.code.code(), sense.code.qualifier()) == (0x0E, 3))
    };
    let mut is_refused = false;
    for _ in 0..4 {
        is_refused |= refused().await;
    }
    assert!(is_refused);
    assert!(!device.contains(NEW));
}

/// L6: sessions with another level, profile or block size are refused.
#[tokio::test]
async fn other_settings_are_refused() {
    let device = KeyedDevice::new(S1_2, SAFE, BlockSize::B512);
    for settings in [
        None,
        Some(ProtectionSettings { profile: PAPER, ..device.settings }),
        Some(ProtectionSettings { block: ProtectedBlock::B4096, ..device.settings }),
        UnitProtection::new(ProtectionLevel::S2LazyCipherMac, SAFE).settings(ProtectedBlock::B512),
        UnitProtection::new(ProtectionLevel::S2RecordCipher, SAFE).settings(ProtectedBlock::B512),
        UnitProtection::new(M_LAZY, MODERN).settings(ProtectedBlock::B512),
    ] {
        let config = SessionConfig { protection: settings, ..device.config() };
        let refused = Session::over(device.stream(), config).await.err();
        assert!(
            matches!(refused, Some(SessionError::LoginRefused { class: 2, detail: 0 })),
            "{settings:?}: {refused:?}"
        );
    }
}

/// L6 for M-lazy: no other level is a substitute for it.
#[tokio::test]
async fn sessions_below_modern_level_are_refused() {
    let device = KeyedDevice::new(M_LAZY, MODERN, BlockSize::B512);
    for settings in [
        None,
        Some(ProtectionSettings { profile: SAFE, ..device.settings }),
        Some(ProtectionSettings { block: ProtectedBlock::B4096, ..device.settings }),
        UnitProtection::new(ProtectionLevel::S2LazyCipherMac, SAFE).settings(ProtectedBlock::B512),
        UnitProtection::new(S1_2, SAFE).settings(ProtectedBlock::B512),
    ] {
        let config = SessionConfig { protection: settings, ..device.config() };
        let refused = Session::over(device.stream(), config).await.err();
        assert!(
            matches!(refused, Some(SessionError::LoginRefused { class: 2, detail: 0 })),
            "{settings:?}: {refused:?}"
        );
    }
}

/// A block of 4 KiB with one value.
fn large(value: u8) -> Vec<u8> {
    vec![value; LARGE]
}

/// L1 for M-lazy: an error at the flush or within a second, and never the older block.
#[tokio::test]
async fn changed_modern_write_is_an_error_within_a_second() {
    for by_flush in [true, false] {
        let device = KeyedDevice::new(M_LAZY, MODERN, BlockSize::B4096);
        let client = device.client().await;
        let cursor = client.flush_cursor();
        client.write(4096, large(1).into(), true).await.unwrap();
        device.middle.arm(Change::LargeWrite, &[], 1);
        client.write(4096, large(2).into(), false).await.unwrap();
        if !by_flush {
            device.verified().await;
        }
        let flushed = client.flush(&cursor).await;
        assert!(matches!(flushed, Err(BlockError::LostWrites)), "{flushed:?}");
        assert_eq!((device.status().rejected, device.status().unverified), (1, 0));
        assert!(matches!(client.read(4096, 4096).await, Err(BlockError::Medium { .. })));
        device.middle.arm(Change::LargeWrite, &[], 1);
        let durable = client.write(8192, large(3).into(), true).await;
        assert!(matches!(durable, Err(BlockError::Medium { .. })), "{durable:?}");
        client.write(4096, large(3).into(), true).await.unwrap();
        assert_eq!(client.read(4096, 8192).await.unwrap(), [large(3), large(0)].concat());
        client.flush(&cursor).await.unwrap();
    }
}

/// L2 for M-lazy: a changed reply destroys nothing.
#[tokio::test]
async fn changed_modern_reply_keeps_write() {
    let device = KeyedDevice::new(M_LAZY, MODERN, BlockSize::B4096);
    let client = device.client().await;
    client.write(4096, large(1).into(), false).await.unwrap();
    device.middle.arm(Change::LargeRead, &[], 1);
    assert_eq!(client.read(4096, 4096).await.unwrap(), large(1), "it is read again");
    device.middle.arm(Change::LargeRead, &[], usize::MAX);
    let read = client.read(4096, 4096).await;
    assert!(matches!(read, Err(BlockError::NotAuthentic(1))), "{read:?}");
    device.middle.disarm();
    assert_eq!(client.read(4096, 4096).await.unwrap(), large(1));
    assert_eq!(device.status().rejected, 0);
}

/// After a rotation both clients continue in their sessions, and read all blocks.
#[tokio::test]
async fn clients_follow_rotated_unit_key() {
    let device = KeyedDevice::new(M_LAZY, MODERN, BlockSize::B4096);
    let (writer, reader) = (device.client().await, device.client().await);
    writer.write(0, large(1).into(), false).await.unwrap();
    assert_eq!(reader.read(0, 8192).await.unwrap(), [large(1), large(0)].concat());
    for round in 2..5 {
        assert_eq!(device.units.rotate_key("disk").unwrap(), u32::from(round));
        writer.write(u64::from(round) * 4096, large(round).into(), false).await.unwrap();
        assert_eq!(reader.read(u64::from(round) * 4096, 4096).await.unwrap(), large(round));
        assert_eq!(reader.read(0, 4096).await.unwrap(), large(1), "the earlier key is kept");
        reader.write(4096, large(round).into(), true).await.unwrap();
        assert_eq!(writer.read(4096, 4096).await.unwrap(), large(round));
    }
    writer.flush(&writer.flush_cursor()).await.unwrap();
    assert_eq!((device.status().rejected, device.status().key_epoch), (0, 4));
    assert_eq!(device.sessions.load(Ordering::SeqCst), 2, "no session was lost");
    drop((writer, reader));
    let device = device.restarted();
    let client = device.client().await;
    assert_eq!(client.read(0, 4096 * 5).await.unwrap()[4096 * 2..4096 * 3], large(2)[..]);
    assert!(KeyedDevice::new(S1_2, SAFE, BlockSize::B512).units.rotate_key("disk").is_err());
}

/// Writes in flight at a rotation request the keys together, and none of them fails.
#[tokio::test]
async fn concurrent_writes_follow_rotated_unit_key() {
    const WRITES: u64 = 64;
    let device = KeyedDevice::new(M_LAZY, MODERN, BlockSize::B4096);
    let client = device.client().await;
    for round in 1..=12_u8 {
        device.units.rotate_key("disk").unwrap();
        let writes = (0..WRITES).map(|at| client.write(at * 4096, large(round).into(), false));
        for written in futures_util::future::join_all(writes).await {
            written.unwrap();
        }
    }
    let expected: Vec<u8> = (0..WRITES).flat_map(|_| large(12)).collect();
    assert!(client.read(0, WRITES * 4096).await.unwrap() == expected);
    client.flush(&client.flush_cursor()).await.unwrap();
    assert_eq!(device.sessions.load(Ordering::SeqCst), 1, "no session was lost");
}

/// The session takes the keys of the unit; its caller never sees them.
#[tokio::test]
async fn unit_keys_do_not_leave_the_session() {
    let device = KeyedDevice::new(M_LAZY, MODERN, BlockSize::B512);
    let session = Session::over(device.stream(), device.config()).await.unwrap();
    let mut cdb = [0; 16];
    (cdb[0], cdb[12]) = (RECEIVE_UNIT_KEYS, 0x10);
    let request =
        ScsiRequest { lun: 1, cdb: Bytes::copy_from_slice(&cdb), data_in_max: 4096, ..Default::default() };
    let mut lengths = Vec::new();
    for _ in 0..6 {
        let response = session.execute(request.clone()).await.unwrap();
        assert!(response.data_in.iter().all(|byte| *byte == 0));
        lengths.push(response.data_in.len());
    }
    // The first commands of a session end with unit attentions.
    assert_eq!(lengths.last(), Some(&(32 + 40)), "{lengths:?}");
    session.logout().await;
}
