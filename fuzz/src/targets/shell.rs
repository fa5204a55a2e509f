//! `sealstone-iscsi-target`: the whole shell on in-memory streams with simulated time: logins with
//! and without CHAP, PDUs built from fields, incomplete PDUs, lost and returning initiators,
//! resets, added and removed units.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sealstone_iscsi::chap::{ChapAccount, ChapAlgorithm, ChapSecret};
use sealstone_iscsi::initiator::{InitiatorChap, InitiatorConfig, InitiatorConnection, InitiatorEvent};
use sealstone_iscsi::target_side::{AccessRule, AccessRules};
use sealstone_iscsi_target::{Counter, IscsiTarget as Shell, TargetConfig};
use sealstone_scsi::AdditionalSense;
use sealstone_scsi::lu::{Cost, InitiatorPort, LogicalUnit, NexusId, ScsiCommand, ScsiReply};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::iscsi::NAME;
use crate::Target;
use crate::input::{Input, seed};

/// Maximum number of concurrent connections.
const SEATS: usize = 3;
/// Maximum number of steps per input.
const STEPS_MAX: usize = 200;
/// Maximum length of a sent data segment, in bytes.
const SEGMENT_MAX: usize = 600;
/// Capacity of a stream, in bytes.
const STREAM: usize = 16 << 10;
/// Limit of simulated time, far more than all steps can take.
const END: Duration = Duration::from_secs(200_000);
/// Maximum data-in length of the unit, in bytes.
const DATA_IN_MAX: usize = 8 << 10;

/// Options in the first byte.
mod flag {
    /// Access rules are configured.
    pub(super) const RULES: u8 = 1;
    /// Target resets are allowed.
    pub(super) const RESETS: u8 = 2;
    /// Little buffer memory.
    pub(super) const POOR: u8 = 4;
}

/// Answers with the requested length; odd operation codes run on another thread.
struct EchoUnit;

impl LogicalUnit for EchoUnit {
    fn cost(&self, _: NexusId, cdb: &[u8]) -> Cost {
        if cdb.first().is_some_and(|opcode| opcode & 1 == 1) { Cost::Blocking } else { Cost::Inline }
    }
    fn execute(&self, command: ScsiCommand<'_>) -> ScsiReply {
        let length = command.data_in_max.min(DATA_IN_MAX);
        let used = command.data_out.len() as u64;
        match command.buffers.take(length) {
            Some(buffer) => {
                let data = command.buffers.freeze(buffer);
                ScsiReply { data_out_used: used, ..ScsiReply::data(data, command.data_in_max) }
            }
            None => ScsiReply::data(Bytes::new(), 0),
        }
    }
    fn nexus_established(&self, _: NexusId, _: &InitiatorPort<'_>) {}
    fn nexus_lost(&self, _: NexusId) {}
    fn reset(&self) {}
    fn attention(&self, _: NexusId, _: AdditionalSense) {}
    fn luns_reported(&self, _: NexusId) {}
}

fn account(name: &str, secret: &[u8]) -> ChapAccount {
    ChapAccount { name: name.into(), secret: ChapSecret::new(secret).expect("long enough") }
}

fn config(flags: u8) -> TargetConfig {
    let mut config = TargetConfig::new(NAME);
    let began = Instant::now();
    config.clock = sealstone_iscsi_target::MonotonicClock::new(move || began.elapsed().as_millis() as u64);
    config.random = sealstone_iscsi_target::RandomSource::new(|into| into.fill(0x42));
    config.protocol.queue_depth = 8;
    config.protocol.data_out_max = 16 << 10;
    config.protocol.allow_target_reset = flags & flag::RESETS != 0;
    if flags & flag::POOR != 0 {
        (config.memory_max, config.memory_per_connection_max) = (32 << 10, 16 << 10);
    }
    if flags & flag::RULES != 0 {
        let rule = |name: &str, account| AccessRule {
            initiators: vec![name.into()],
            account,
            luns: Some(vec![0, 5]),
            ..AccessRule::default()
        };
        let proven = rule("iqn.a:proven*", Some(account("ann", b"a secret of ann")));
        let mut access = AccessRules::new(vec![proven, rule("iqn.a:open*", None)]);
        access.own = Some(account("osd", b"a secret of the osd"));
        config.protocol.access = Some(Arc::new(access));
    }
    config
}

/// The initiator end of a connection.
struct InitiatorSeat {
    write: WriteHalf<DuplexStream>,
    /// Discards the target's output; ends with the connection.
    drain: JoinHandle<()>,
    served: JoinHandle<()>,
    command: u32,
}

impl InitiatorSeat {
    fn new(shell: &Shell, stream: DuplexStream, far: DuplexStream) -> (Self, ReadHalf<DuplexStream>) {
        let shell = shell.clone();
        let served = tokio::spawn(async move {
            shell.serve_stream(far, "127.0.0.1:3260".into(), "10.0.0.1:9".into(), None).await;
        });
        let (read, write) = tokio::io::split(stream);
        (Self { write, drain: tokio::spawn(async {}), served, command: 1 }, read)
    }

    async fn send(&mut self, bytes: &[u8]) {
        // A target that does not read blocks only its own peer.
        let _ = timeout(Duration::from_millis(50), self.write.write_all(bytes)).await;
    }

    async fn end(mut self) {
        let _ = timeout(Duration::from_secs(1), self.write.shutdown()).await;
        drop(self.write);
        self.served.await.expect("a connection does not panic");
        let _ = self.drain.await;
    }
}

/// A valid login; true if it reached full feature phase.
async fn log_in(seat: &mut InitiatorSeat, read: &mut ReadHalf<DuplexStream>, kind: u8) -> bool {
    let name = ["iqn.a:proven", "iqn.a:open", "iqn.b:other"][usize::from(kind & 3) % 3];
    let target = if kind & 4 == 0 { Some(NAME.into()) } else { None };
    let mut caller = InitiatorConfig::new(name.into(), target, [0x80, 0, 0, 0, 0, kind >> 4 & 3]);
    if kind & 8 == 0 {
        let mutual = kind & 0x80 != 0;
        caller.chap = Some(InitiatorChap {
            account: account("ann", if kind & 0x40 == 0 { b"a secret of ann" } else { b"quite another one" }),
            target: mutual.then(|| account("osd", b"a secret of the osd")),
            algorithms: ChapAlgorithm::ALL.to_vec(),
            challenge: [kind; 32],
        });
    }
    let mut machine = InitiatorConnection::new(caller, 0);
    let mut space = vec![0; 4096];
    loop {
        while let Some(piece) = machine.poll_transmit() {
            seat.send(&piece).await;
        }
        match machine.poll_event() {
            Some(InitiatorEvent::LoggedIn(_)) => return true,
            Some(InitiatorEvent::Closed(_)) => return false,
            Some(_) => continue,
            None => {}
        }
        let count = match timeout(Duration::from_secs(60), read.read(&mut space)).await {
            Ok(Ok(count @ 1..)) => count,
            _ => return false,
        };
        let mut bytes = &space[..count];
        while !bytes.is_empty() {
            let mut moved = 0;
            for part in machine.rx_space() {
                let length = part.len().min(bytes.len());
                part[..length].copy_from_slice(&bytes[..length]);
                bytes = &bytes[length..];
                moved += length;
            }
            if moved == 0 {
                break;
            }
            machine.received(moved, 0);
        }
    }
}

const OPCODES: [u8; 16] =
    [0x00, 0x01, 0x01, 0x02, 0x02, 0x03, 0x04, 0x05, 0x05, 0x06, 0x10, 0x20, 0x1C, 0x3F, 0x01, 0x00];
const OPERATIONS: [u8; 8] = [0x00, 0x12, 0xA0, 0x03, 0x2A, 0x28, 0x7F, 0xA3];
const TEXTS: [&[u8]; 4] =
    [b"SendTargets=All\0", b"MaxRecvDataSegmentLength=512\0", b"X-a=1\0X-a=1\0", b"SendTargets=\0"];

/// A PDU from fields that are more often right than random ones.
fn pdu(seat: &mut InitiatorSeat, input: &mut Input<'_>) -> Vec<u8> {
    let [choice, flags, lun, tag, number, expected] = input.array();
    let mut pdu = vec![0; 48];
    pdu[0] = OPCODES[usize::from(choice & 15)] | (choice & 0x40);
    pdu[1] = flags;
    pdu[9] = [0, 0, 0, 5, 1, 0xFF][usize::from(lun % 6)];
    pdu[8] = if lun & 0x80 == 0 { 0 } else { 0x40 };
    pdu[16..20].copy_from_slice(&u32::from(tag & 15).to_be_bytes());
    let transfer = if choice & 0x80 == 0 { [0xFF; 4] } else { [0, tag >> 4, 0, lun >> 4] };
    pdu[20..24].copy_from_slice(&transfer);
    if pdu[0] & 0x3F == 0x01 {
        pdu[20..24].copy_from_slice(&(u32::from(expected) << 6).to_be_bytes());
    }
    // Usually the next number, sometimes a nearby one.
    let offset = if number < 0xF0 { 0 } else { u32::from(number & 7) };
    pdu[24..28].copy_from_slice(&seat.command.wrapping_add(offset).to_be_bytes());
    if offset == 0 && pdu[0] & 0x40 == 0 && matches!(pdu[0], 0x00..=0x02 | 0x04 | 0x06) {
        seat.command = seat.command.wrapping_add(1);
    }
    pdu[32] = OPERATIONS[usize::from(number & 7)];
    pdu[36..40].copy_from_slice(&input.array::<4>());
    let data = match pdu[0] & 0x3F {
        0x04 => TEXTS[usize::from(expected & 3)].to_vec(),
        0x00 | 0x01 | 0x05 => vec![expected; usize::from(expected) * 2 % SEGMENT_MAX],
        _ => Vec::new(),
    };
    pdu[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    pdu.extend_from_slice(&data);
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    pdu
}

async fn drive(flags: u8, input: &mut Input<'_>) {
    let shell = Shell::new(config(flags), vec![(0, Arc::new(EchoUnit) as Arc<dyn LogicalUnit>)])
        .expect("it can work");
    let mut seats: [Option<InitiatorSeat>; SEATS] = std::array::from_fn(|_| None);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let step = input.byte();
        let place = usize::from(step >> 4) % SEATS;
        match (step & 15, &mut seats[place]) {
            // A new connection, with or without a valid login.
            (0 | 1, empty @ None) => {
                let (near, far) = tokio::io::duplex(STREAM);
                let (mut seat, mut read) = InitiatorSeat::new(&shell, near, far);
                if step & 1 == 0 {
                    let _ = log_in(&mut seat, &mut read, input.byte()).await;
                }
                let slow = step & 0x80 != 0;
                seat.drain = tokio::spawn(async move {
                    let mut rest = vec![0; 4096];
                    if slow {
                        sleep(Duration::from_secs(40)).await;
                    }
                    while matches!(read.read(&mut rest).await, Ok(1..)) {}
                });
                *empty = Some(seat);
            }
            (2, seat) => {
                if let Some(seat) = seat.take() {
                    seat.end().await;
                }
            }
            (3, Some(seat)) => {
                let length = usize::from(input.byte());
                let bytes = input.take(length).to_vec();
                seat.send(&bytes).await;
            }
            (4, _) => sleep(Duration::from_millis(u64::from(input.short()))).await,
            (5, _) => drop(shell.attach(5, Arc::new(EchoUnit))),
            (6, _) => drop(shell.detach(5)),
            (7, Some(seat)) => {
                let whole = pdu(seat, input);
                let cut = usize::from(input.byte()).min(whole.len());
                seat.send(&whole[..cut]).await;
            }
            (_, Some(seat)) => {
                let whole = pdu(seat, input);
                seat.send(&whole).await;
            }
            (_, None) => {}
        }
        assert!(shell.memory().used() <= 512 << 20);
    }
    // Afterwards a new initiator can log in.
    let (near, far) = tokio::io::duplex(STREAM);
    let (mut seat, mut read) = InitiatorSeat::new(&shell, near, far);
    assert!(log_in(&mut seat, &mut read, 0x39).await, "an honest initiator gets in");
    drop(read);
    seat.end().await;
    for seat in seats.into_iter().flatten() {
        seat.end().await;
    }
    let counters = shell.counters();
    // Logical units get the notice of a lost session on another thread, while the runtime's clock
    // stands still.
    for _ in 0..10_000 {
        if counters.get(Counter::SessionsOpen) == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((counters.get(Counter::ConnectionsOpen), counters.get(Counter::SessionsOpen)), (0, 0));
    assert_eq!(counters.get(Counter::CommandsPanicked), 0);
    assert_eq!(shell.memory().used(), 0, "every buffer came back");
}

fn shell(input: &[u8]) {
    let mut input = Input::new(input);
    let flags = input.byte();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without drivers");
    runtime.block_on(async {
        assert!(timeout(END, drive(flags, &mut input)).await.is_ok(), "the shell does not come to an end");
    });
}

fn seeds() -> Vec<Vec<u8>> {
    let command = [8, 0x01, 0xC0, 0, 1, 0, 4, 0, 0, 0, 0];
    let write = [8, 0x01, 0xA0, 0, 2, 4, 9, 0, 0, 0, 0];
    let data = [8, 0x07, 0x80, 0, 2, 0, 9, 0, 0, 0, 0];
    let reset = |function: u8| [8, 0x43, 0x80 | function, 0, 3, 0, 0, 0, 0, 0, 0];
    let text = [8, 0x46, 0x80, 0, 4, 0, 0, 0, 0, 0, 0];
    let logout = [8, 0x49, 0x80, 0, 5, 0, 0, 0, 0, 0, 0];
    let mut seeds = Vec::new();
    for flags in [0, flag::RULES, flag::RESETS, flag::POOR, flag::RULES | flag::RESETS] {
        for login in [0x00, 0x09, 0x01, 0x80, 0x40, 0x04, 0x0D] {
            let one = [&[0, login][..], &command, &write, &data, &text, &logout].concat();
            seeds.push(seed(&[flags], &one));
        }
        let mut two = vec![0, 0x09, 0x10, 0x19, 5];
        for function in 1..=8 {
            two.extend(command);
            two.extend(reset(function));
        }
        two.extend([6, 4, 0x20, 0, 2, 0x10, 0x19, 7]);
        two.extend(&command[1..]);
        two.extend([20, 4, 0xFF, 0xFF]);
        seeds.push(seed(&[flags], &two));
        seeds.push(seed(&[flags], &[1, 3, 4, 0x43, 0x87, 0, 0, 4, 0xFF, 0xFF, 0x91, 0x80, 0]));
    }
    seeds
}

pub(crate) const SHELL: Target = Target {
    name: "target-shell",
    about: "choices, then what initiators on three streams do over time; others are served, and everything is given back",
    run: shell,
    seeds,
    cost: 400,
    quarantine: None,
    covers: &["iscsi-target::IscsiTarget::serve_stream"],
};
