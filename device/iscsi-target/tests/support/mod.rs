//! A disk in memory with enough of SBC-3 for the testers of the iSCSI layer, and a running target.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "support of tests, outside of test functions")]

use std::{
    io::{IoSliceMut, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use sealstone_iscsi::{
    Buffer, Cdb, Gather, TaskAttribute, TaskId,
    initiator::{
        CommandResponse, InitiatorClosed, InitiatorConfig, InitiatorConnection, InitiatorEvent,
        ManagementFunction, ManagementResult, SubmittedCommand,
    },
};
use sealstone_iscsi_target::{IscsiTarget, TargetConfig};
use sealstone_scsi::{
    AdditionalSense, Status,
    lu::{Cost, InitiatorPort, LogicalUnit, NexusId, ScsiCommand, ScsiReply},
};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

pub(crate) const NAME: &str = "iqn.2026-11.org.sealstone:disk";
const BLOCK: usize = 512;
/// Vendor-specific opcodes: the unit panics, or takes 300 ms.
pub(crate) const PANIC: u8 = 0xC0;
pub(crate) const SLEEP: u8 = 0xC1;

pub(crate) struct Disk {
    blocks: RwLock<Vec<u8>>,
    cost: Cost,
    pub(crate) nexuses: AtomicUsize,
    pub(crate) resets: AtomicUsize,
}

impl Disk {
    pub(crate) fn new(bytes: usize, cost: Cost) -> Arc<Self> {
        Arc::new(Self {
            blocks: RwLock::new(vec![0; bytes]),
            cost,
            nexuses: AtomicUsize::new(0),
            resets: AtomicUsize::new(0),
        })
    }
}

fn check(key: u8, code: u8, qualifier: u8) -> ScsiReply {
    ScsiReply::check(vec![0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0])
}

fn be(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

fn page(data: Vec<u8>, allocation: usize, max: usize) -> ScsiReply {
    let mut data = data;
    data.truncate(allocation);
    ScsiReply::data(Bytes::from(data), max)
}

impl LogicalUnit for Disk {
    fn cost(&self, _: NexusId, cdb: &[u8]) -> Cost {
        if cdb[0] == SLEEP { Cost::Blocking } else { self.cost }
    }

    fn execute(&self, command: ScsiCommand<'_>) -> ScsiReply {
        let cdb = command.cdb;
        let max = command.data_in_max;
        match cdb[0] {
            0x00 => ScsiReply::status(Status::Good),
            PANIC => panic!("a test asked for it"),
            SLEEP => {
                std::thread::sleep(Duration::from_millis(300));
                ScsiReply::status(Status::Good)
            }
            0x03 => {
                page(vec![0x70, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], usize::from(cdb[4]), max)
            }
            0x12 => inquiry(cdb, max),
            0x1A => page(vec![3, 0, 0x10, 0], usize::from(cdb[4]), max),
            0x25 => {
                let last = self.blocks.read().unwrap().len() / BLOCK - 1;
                page([(last as u32).to_be_bytes(), (BLOCK as u32).to_be_bytes()].concat(), 8, max)
            }
            0x9E if cdb[1] & 0x1F == 0x10 => {
                let last = self.blocks.read().unwrap().len() / BLOCK - 1;
                let mut data = (last as u64).to_be_bytes().to_vec();
                data.extend((BLOCK as u32).to_be_bytes());
                data.resize(32, 0);
                page(data, be(&cdb[10..14]), max)
            }
            0x28 => self.read(&command, be(&cdb[2..6]), be(&cdb[7..9])),
            0xA8 => self.read(&command, be(&cdb[2..6]), be(&cdb[6..10])),
            0x88 => self.read(&command, be(&cdb[2..10]), be(&cdb[10..14])),
            0x2A | 0x2E => self.write(&command, be(&cdb[2..6]), be(&cdb[7..9])),
            0xAA | 0xAE => self.write(&command, be(&cdb[2..6]), be(&cdb[6..10])),
            0x8A | 0x8E => self.write(&command, be(&cdb[2..10]), be(&cdb[10..14])),
            0x35 | 0x91 => ScsiReply::status(Status::Good),
            _ => check(5, 0x20, 0),
        }
    }

    fn attention(&self, _: NexusId, _: AdditionalSense) {}
    fn luns_reported(&self, _: NexusId) {}

    fn nexus_established(&self, _: NexusId, _: &InitiatorPort<'_>) {
        self.nexuses.fetch_add(1, Ordering::SeqCst);
    }

    fn nexus_lost(&self, _: NexusId) {
        self.nexuses.fetch_sub(1, Ordering::SeqCst);
    }

    fn reset(&self) {
        self.resets.fetch_add(1, Ordering::SeqCst);
    }
}

fn inquiry(cdb: &[u8], max: usize) -> ScsiReply {
    let allocation = be(&cdb[3..5]);
    if cdb[1] & 1 == 0 {
        let mut data = vec![0, 0, 6, 2, 59, 0, 0, 2];
        data.extend_from_slice(b"SEALSTONETEST DISK      0001");
        data.truncate(36);
        data.resize(64, 0);
        return page(data, allocation, max);
    }
    let body: &[u8] = match cdb[2] {
        0x00 => &[0x00, 0x80, 0x83],
        0x80 => b"0001",
        0x83 => &[2, 1, 0, 9, b'S', b'E', b'A', b'L', b'S', b'T', b'O', b'N', b'1'],
        _ => return check(5, 0x24, 0),
    };
    let mut data = vec![0, cdb[2], 0, body.len() as u8];
    data.extend_from_slice(body);
    page(data, allocation, max)
}

impl Disk {
    fn range(&self, lba: usize, count: usize, total: usize) -> Option<std::ops::Range<usize>> {
        let from = lba.checked_mul(BLOCK)?;
        let until = from.checked_add(count.checked_mul(BLOCK)?)?;
        (until <= total).then_some(from..until)
    }

    fn read(&self, command: &ScsiCommand<'_>, lba: usize, count: usize) -> ScsiReply {
        let blocks = self.blocks.read().unwrap();
        let Some(range) = self.range(lba, count, blocks.len()) else { return check(5, 0x21, 0) };
        let wanted = range.len() as u64;
        let length = range.len().min(command.data_in_max);
        let Some(mut buffer) = command.buffers.take(length) else { return ScsiReply::status(Status::Busy) };
        buffer.copy_from_slice(&blocks[range.start..range.start + length]);
        let data_in = command.buffers.freeze(buffer);
        ScsiReply { data_in, data_in_wanted: wanted, ..ScsiReply::status(Status::Good) }
    }

    fn write(&self, command: &ScsiCommand<'_>, lba: usize, count: usize) -> ScsiReply {
        let mut blocks = self.blocks.write().unwrap();
        let total = blocks.len();
        let Some(range) = self.range(lba, count, total) else { return check(5, 0x21, 0) };
        let used = range.len() as u64;
        let length = range.len().min(command.data_out.len());
        blocks[range.start..range.start + length].copy_from_slice(&command.data_out[..length]);
        ScsiReply { data_out_used: used, ..ScsiReply::status(Status::Good) }
    }
}

/// A target that runs until [`Self::stop`].
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) target: IscsiTarget,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Running {
    pub(crate) async fn start(config: TargetConfig, unit: Arc<dyn LogicalUnit>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let target = IscsiTarget::new(config, vec![(0, unit)]).unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn({
            let target = target.clone();
            async move {
                target
                    .serve(listener, async {
                        let _ = stopped.await;
                    })
                    .await
            }
        });
        Self { address, target, stop: Some(stop), task }
    }

    pub(crate) fn url(&self) -> String {
        format!("iscsi://{}/{NAME}/0", self.address)
    }

    pub(crate) async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }
}

/// Maximum time for an answer; a flood on a busy machine delays it by many seconds.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(200);

/// A blocking initiator with one socket.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) machine: InitiatorConnection,
}

impl Client {
    pub(crate) fn login(address: SocketAddr, port: u8) -> Self {
        Self::login_with(address, port, |_| {})
    }

    pub(crate) fn login_with(
        address: SocketAddr,
        port: u8,
        change: impl FnOnce(&mut InitiatorConfig),
    ) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        let mut config = InitiatorConfig::new(
            "iqn.2026-11.org.sealstone:client".into(),
            Some(NAME.into()),
            [0x80, 0, 0, 0, 0, port],
        );
        change(&mut config);
        let mut client = Self { stream, machine: InitiatorConnection::new(config, 0) };
        let InitiatorEvent::LoggedIn(_) = client.event() else { panic!("not logged in") };
        client
    }

    pub(crate) fn send(&mut self) {
        while let Some(piece) = self.machine.poll_transmit() {
            // A closed socket is noticed by the reader.
            let _ = self.stream.write_all(&piece);
        }
    }

    /// Waits for the next event.
    pub(crate) fn event(&mut self) -> InitiatorEvent {
        loop {
            self.send();
            if let Some(event) = self.machine.poll_event() {
                return event;
            }
            let mut space = self.machine.rx_space().map(IoSliceMut::new);
            match self.stream.read_vectored(&mut space) {
                Ok(count) if count > 0 => self.machine.received(count, 0),
                _ => self.machine.end_of_stream(),
            }
        }
    }

    pub(crate) fn submit(&mut self, cdb: &[u8], out: &[u8], read: usize) -> TaskId {
        let mut block = [0; 16];
        block[..cdb.len()].copy_from_slice(cdb);
        let command = SubmittedCommand {
            lun: 0,
            cdb: Cdb::new(&block).unwrap(),
            attribute: TaskAttribute::Simple,
            data_out: Gather::from(Bytes::copy_from_slice(out)),
            data_in: Buffer::from(vec![0; read]),
        };
        self.machine.submit(command).unwrap()
    }

    pub(crate) fn run(&mut self, cdb: &[u8], out: &[u8], read: usize) -> CommandResponse {
        let task = self.submit(cdb, out, read);
        match self.event() {
            InitiatorEvent::Completed { task: done, outcome } if done == task => outcome.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn manage(&mut self, function: ManagementFunction) -> ManagementResult {
        self.machine.manage(function).unwrap();
        loop {
            if let InitiatorEvent::Managed { result, .. } = self.event() {
                return result;
            }
        }
    }

    /// Writes blocks and reads them back.
    pub(crate) fn check(&mut self, salt: u8) {
        let data: Vec<u8> = (0..40 * BLOCK).map(|i| (i / 7) as u8 ^ salt).collect();
        let lba = u32::from(salt) * 64;
        let [a, b, c, d] = lba.to_be_bytes();
        assert_eq!(self.run(&[0x2A, 0, a, b, c, d, 0, 0, 40], &data, 0).status, 0);
        let response = self.run(&[0x28, 0, a, b, c, d, 0, 0, 40], &[], 40 * BLOCK);
        assert_eq!((response.status, response.data_in.as_slice()), (0, &data[..]));
    }

    /// Returns why the connection ended.
    pub(crate) fn ending(&mut self) -> InitiatorClosed {
        loop {
            if let InitiatorEvent::Closed(reason) = self.event() {
                return reason;
            }
        }
    }
}
