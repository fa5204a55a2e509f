//! Tests of a connection on a disk in memory: order of replies, flushes, limits, invalid requests.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use sealstone_block_client::FlushCursor;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::*;

/// A disk in memory that counts flushes.
struct MemoryDisk {
    bytes: Mutex<Vec<u8>>,
    is_read_only: bool,
    flushes: AtomicUsize,
    /// Permits for reads: a test decides when they end.
    reads: Semaphore,
}

const SIZE: usize = 1 << 20;

impl MemoryDisk {
    fn new(is_read_only: bool) -> Arc<Self> {
        Arc::new(Self {
            bytes: Mutex::new(vec![0; SIZE]),
            is_read_only,
            flushes: AtomicUsize::new(0),
            reads: Semaphore::new(Semaphore::MAX_PERMITS),
        })
    }
}

impl BlockBackend for MemoryDisk {
    fn properties(&self) -> ExportProperties {
        ExportProperties {
            bytes: SIZE as u64,
            block_min: 512,
            block_preferred: 4096,
            is_read_only: self.is_read_only,
            can_trim: true,
            has_fast_zero: false,
        }
    }

    fn flush_cursor(&self) -> FlushCursor {
        FlushCursor::default()
    }

    async fn read(&self, offset: u64, mut buffer: Vec<u8>) -> Result<Vec<u8>, NbdError> {
        self.reads.acquire().await.expect("open").forget();
        let (start, length) = (offset as usize, buffer.len());
        buffer.copy_from_slice(&self.bytes.lock()[start..start + length]);
        Ok(buffer)
    }

    async fn write(&self, offset: u64, data: Bytes, durable: bool) -> Result<(), NbdError> {
        let start = offset as usize;
        self.bytes.lock()[start..start + data.len()].copy_from_slice(&data);
        if durable {
            self.flushes.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    async fn flush(&self, _: &FlushCursor) -> Result<(), NbdError> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn trim(&self, offset: u64, length: u32, durable: bool) -> Result<(), NbdError> {
        self.write_zeros(offset, length, true, durable).await
    }

    async fn write_zeros(&self, offset: u64, length: u32, _: bool, durable: bool) -> Result<(), NbdError> {
        self.write(offset, vec![0; length as usize].into(), durable).await
    }

    async fn status(&self, _: u64, length: u32) -> Result<Vec<StatusExtent>, NbdError> {
        let half = length / 2;
        Ok(vec![
            StatusExtent { length: half, is_hole: true, is_zero: true },
            StatusExtent { length: length - half, is_hole: false, is_zero: false },
        ])
    }
}

/// A client over a socket pair.
struct TestClient {
    stream: UnixStream,
    server: JoinHandle<Result<(), ConnectionError>>,
    stop: watch::Sender<bool>,
}

impl TestClient {
    fn connect(disk: &Arc<MemoryDisk>) -> Self {
        let (stream, far) = UnixStream::pair().expect("a pair");
        let (stop, stopping) = watch::channel(false);
        let name = ExportName::new("disk").expect("a name");
        let server = tokio::spawn(run(far, Arc::clone(disk), name, Arc::default(), stopping));
        Self { stream, server, stop }
    }

    /// Negotiates with structured replies and `base:allocation`, or without.
    async fn ready(disk: &Arc<MemoryDisk>, is_structured: bool) -> Self {
        let mut client = Self::connect(disk);
        client.read(18).await;
        client.send(&3_u32.to_be_bytes()).await;
        if is_structured {
            client.option(8, &[]).await;
            client.read(20).await;
            let query = [&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15][..], b"base:allocation"].concat();
            client.option(10, &query).await;
            client.read(20 + 19 + 20).await;
        }
        client.option(1, b"disk").await;
        client.read(10).await;
        client
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("sent");
    }

    async fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).await.expect("received");
        bytes
    }

    async fn option(&mut self, code: u32, data: &[u8]) {
        let length = (data.len() as u32).to_be_bytes();
        self.send(&[b"IHAVEOPT", &code.to_be_bytes()[..], &length, data].concat()).await;
    }

    async fn request(&mut self, code: u16, flags: u16, offset: u64, length: u32, data: &[u8]) {
        let head = [&0x2560_9513_u32.to_be_bytes()[..], &flags.to_be_bytes(), &code.to_be_bytes()].concat();
        let rest = [&offset.to_be_bytes()[..], &offset.to_be_bytes(), &length.to_be_bytes(), data].concat();
        self.send(&[head, rest].concat()).await;
    }

    /// Returns error and cookie of a simple reply.
    async fn reply(&mut self) -> (u32, u64) {
        let bytes = self.read(16).await;
        assert_eq!(bytes[..4], 0x6744_6698_u32.to_be_bytes());
        let error = u32::from_be_bytes(bytes[4..8].try_into().expect("four"));
        (error, u64::from_be_bytes(bytes[8..].try_into().expect("eight")))
    }

    /// Returns type and payload of a structured reply.
    async fn chunk(&mut self) -> (u16, Vec<u8>) {
        let head = self.read(20).await;
        assert_eq!(head[..6], [0x66, 0x8E, 0x33, 0xEF, 0, 1], "one chunk");
        let length = u32::from_be_bytes(head[16..].try_into().expect("four"));
        (u16::from_be_bytes([head[6], head[7]]), self.read(length as usize).await)
    }
}

#[tokio::test]
async fn simple_replies_carry_data() {
    let disk = MemoryDisk::new(false);
    let mut client = TestClient::ready(&disk, false).await;
    client.request(1, 1, 512, 1024, &[7; 1024]).await;
    assert_eq!(client.reply().await, (0, 512));
    assert_eq!(disk.flushes.load(Ordering::SeqCst), 1, "FUA");
    client.request(0, 0, 1024, 1024, &[]).await;
    assert_eq!(client.reply().await, (0, 1024));
    assert_eq!(client.read(1024).await, [[7; 512], [0; 512]].concat());
    client.request(2, 0, 0, 0, &[]).await;
    assert!(client.server.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn structured_replies_carry_data_and_status() {
    let disk = MemoryDisk::new(false);
    let mut client = TestClient::ready(&disk, true).await;
    client.request(1, 0, 0, 512, &[9; 512]).await;
    assert_eq!(client.chunk().await, (0, Vec::new()));
    client.request(0, 4, 0, 512, &[]).await;
    assert_eq!(client.chunk().await, (1, [&[0; 8][..], &[9; 512]].concat()));
    client.request(7, 0, 0, 2048, &[]).await;
    let (kind, status) = client.chunk().await;
    assert_eq!((kind, status.len()), (5, 20));
    assert_eq!(status[..12], [0, 0, 0, 1, 0, 0, 4, 0, 0, 0, 0, 3]);
    client.request(7, 9, 0, 2048, &[]).await;
    assert_eq!(client.chunk().await.1.len(), 12, "REQ_ONE, and FUA without effect");
    // TRIM with FUA, zeros, flush.
    for (code, flags) in [(4, 1), (6, 1), (6, 2), (3, 0)] {
        client.request(code, flags, 0, 512, &[]).await;
        assert_eq!(client.chunk().await.0, 0);
    }
    assert_eq!(disk.flushes.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn bad_requests_get_their_error() {
    const EINVAL: u32 = 22;
    let size = SIZE as u64;
    let table: &[(u16, u16, u64, u32, u32)] = &[
        (0, 0, 1, 512, EINVAL),
        (0, 0, 0, 511, EINVAL),
        (0, 0, size, 512, EINVAL),
        (0, 0, size - 512, 1024, EINVAL),
        (0, 0, u64::MAX - 511, 512, EINVAL),
        (0, 0, 0, TRANSFER_MAX + 512, EINVAL),
        (0, 4, 0, 512, EINVAL),
        (0, 0x8000, 0, 512, EINVAL),
        (1, 2, 0, 512, EINVAL),
        (1, 0, 1, 512, EINVAL),
        (1, 0, size, 512, 28),
        (1, 0, u64::MAX, 512, 28),
        (3, 2, 0, 0, EINVAL),
        (4, 0, size, 512, EINVAL),
        (4, 2, 0, 512, EINVAL),
        (5, 0, 0, 512, EINVAL),
        (6, 0, 0, 1, EINVAL),
        (6, 8, 0, 512, EINVAL),
        (6, 16, 0, 512, 95),
        (7, 0, 0, 512, EINVAL),
        (8, 0, 0, 0, EINVAL),
        (u16::MAX, u16::MAX, u64::MAX, u32::MAX, EINVAL),
    ];
    let disk = MemoryDisk::new(false);
    let mut client = TestClient::ready(&disk, false).await;
    for row in table {
        let (code, flags, offset, length, error) = *row;
        let data = if code == 1 { vec![1; length as usize] } else { Vec::new() };
        client.request(code, flags, offset, length, &data).await;
        assert_eq!(client.reply().await, (error, offset), "{row:?}");
    }
    assert!(disk.bytes.lock().iter().all(|byte| *byte == 0), "nothing was written");
}

#[tokio::test]
async fn read_only_export_refuses_changes() {
    let disk = MemoryDisk::new(true);
    let mut client = TestClient::ready(&disk, false).await;
    for code in [1, 4, 6] {
        client.request(code, 0, 0, 512, if code == 1 { &[1; 512] } else { &[] }).await;
        assert_eq!(client.reply().await.0, 1);
    }
    client.request(3, 0, 0, 0, &[]).await;
    assert_eq!(client.reply().await.0, 0);
}

#[tokio::test]
async fn violations_close_the_connection() {
    let disk = MemoryDisk::new(false);
    let mut client = TestClient::ready(&disk, false).await;
    client.send(&[0xAA; REQUEST_BYTES]).await;
    let ended = client.server.await.expect("no panic");
    assert!(matches!(ended, Err(ConnectionError::Violation(NbdViolation::RequestMagic))));
    let mut client = TestClient::ready(&disk, false).await;
    client.request(1, 0, 0, TRANSFER_MAX + 1, &[]).await;
    let ended = client.server.await.expect("no panic");
    assert!(matches!(ended, Err(ConnectionError::Violation(NbdViolation::WriteLength(_)))));
    // A stream that ends within a write.
    let mut client = TestClient::ready(&disk, false).await;
    client.request(1, 0, 0, 1024, &[1; 512]).await;
    drop(client.stream);
    assert!(matches!(client.server.await.expect("no panic"), Err(ConnectionError::Io(_))));
    assert!(disk.bytes.lock().iter().all(|byte| *byte == 0), "nothing was written");
}

#[tokio::test]
async fn too_long_option_is_skipped() {
    let disk = MemoryDisk::new(false);
    let mut client = TestClient::connect(&disk);
    client.read(18).await;
    client.send(&1_u32.to_be_bytes()).await;
    client.option(7, &vec![0; 100_000]).await;
    let head = client.read(20).await;
    assert_eq!(head[12..16], 0x8000_0009_u32.to_be_bytes());
    let length = u32::from_be_bytes(head[16..].try_into().expect("four"));
    client.read(length as usize).await;
    client.option(2, &[]).await;
    client.read(20).await;
    assert!(client.server.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn stop_waits_for_requests_in_flight() {
    let disk = MemoryDisk::new(false);
    disk.reads.forget_permits(Semaphore::MAX_PERMITS);
    let mut client = TestClient::ready(&disk, false).await;
    client.request(0, 0, 0, 512, &[]).await;
    client.request(1, 0, 512, 512, &[5; 512]).await;
    // The write ends first, although it was sent later.
    assert_eq!(client.reply().await, (0, 512));
    client.stop.send(true).expect("the server runs");
    disk.reads.add_permits(1);
    assert_eq!(client.reply().await, (0, 0));
    assert_eq!(client.read(512).await, [0; 512]);
    assert!(client.server.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn long_data_arrive_unchanged() {
    let disk = MemoryDisk::new(false);
    let mut client = TestClient::ready(&disk, false).await;
    let data: Vec<u8> = (0..SIZE).map(|at| (at / 7) as u8).collect();
    for length in [READ_SIZE, READ_SIZE + 512, 5 * READ_SIZE, SIZE] {
        for is_write in [1, 0] {
            let sent = if is_write == 1 { &data[..length] } else { &[] };
            client.request(is_write, 0, 0, length as u32, sent).await;
            assert_eq!(client.reply().await, (0, 0));
        }
        assert!(client.read(length).await == data[..length], "{length}");
    }
}

#[tokio::test]
async fn requests_end_after_their_client() {
    let disk = MemoryDisk::new(false);
    disk.reads.forget_permits(Semaphore::MAX_PERMITS);
    let mut client = TestClient::ready(&disk, false).await;
    client.request(0, 0, 0, 512, &[]).await;
    client.request(1, 0, 0, 512, &[5; 512]).await;
    assert_eq!(client.reply().await, (0, 0));
    client.request(2, 0, 0, 0, &[]).await;
    drop(client.stream);
    disk.reads.add_permits(1);
    let _ = client.server.await.expect("no panic");
    assert_eq!(disk.reads.available_permits(), 0, "the read was executed");
}
