//! Throughput of a protected stream by size of its messages: the paper's Figure 2.
//!
//! Does: sends messages from one thread to another over loopback TCP, through the same protection
//! that sessions have. At levels with keys of blocks, the receiver is a server: it opens headers
//! and leaves the blocks as they are.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use sealstone_block_protection::{
    AppendedPdu, BHS_LEN, BlockSealer, GenerationCounter, HeaderOpener, HeaderSealer, KeyListForm,
    LoginTranscript, NONCE_LEN, PduBlocks, PduDirection, PduError, PduHeader, PduProtection, ProtectedBlock,
    ProtectionLevel, ProtectionProfile, ProtectionSettings, RecordOpener, RecordSealer, RecordSize,
    SegmentSeals, SessionKeys, SessionSecrets, UNIT_KEY_LEN, UnitKeys,
};
use sealstone_channel::{RecordStream, StreamProtection, StreamRecords};
use sealstone_initiator::{Environment as _, SystemEnvironment};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Builder;
use zeroize::Zeroizing;

use super::{LazySettings, MeasuredPart, progress};
use crate::Outcome;
use crate::table::FigureTable;
use crate::targets::Verdict;
use crate::workload::median;

/// Sizes of messages. Blocks have 4096 bytes, so smaller messages have no keys.
pub(super) const SIZES: [usize; 6] = [512, 1448, 4 << 10, 16 << 10, 64 << 10, 1 << 20];
const COLUMNS: [&str; SIZES.len()] = ["512", "1448", "4 KiB", "16 KiB", "64 KiB", "1 MiB"];
/// Data of a PDU: 16 blocks, whose keys fit into its headers.
const SEGMENT: usize = 64 << 10;
/// Opcode of SCSI Data-Out.
const DATA_OUT: u8 = 0x05;
/// Bytes that the receiver reads at once.
const RECEIVE: usize = 256 << 10;

/// One kind of stream.
struct StreamKind {
    name: &'static str,
    level: ProtectionLevel,
    record: Option<RecordSize>,
}

const fn kind(name: &'static str, level: ProtectionLevel, record: Option<RecordSize>) -> StreamKind {
    StreamKind { name, level, record }
}

static KINDS: [StreamKind; 9] = [
    kind("TCP", ProtectionLevel::S0, None),
    kind("S1-1u, records of 1448", ProtectionLevel::S1RecordMac, Some(RecordSize::Packet)),
    kind("S1-1u, records of 16 KiB", ProtectionLevel::S1RecordMac, Some(RecordSize::Large)),
    kind("S1-2", ProtectionLevel::S1LazyMac, None),
    kind("S2-1u, records of 1448", ProtectionLevel::S2RecordCipher, Some(RecordSize::Packet)),
    kind("S2-1u, records of 16 KiB", ProtectionLevel::S2RecordCipher, Some(RecordSize::Large)),
    kind("S2-3", ProtectionLevel::S2LazyCipher, Some(RecordSize::Large)),
    kind("S2-5", ProtectionLevel::S2LazyCipherMac, None),
    kind("M-lazy", ProtectionLevel::ModernLazy, None),
];

/// Seals whole blocks at the sender; the receiver leaves them as they are.
struct MessageBlocks {
    form: KeyListForm,
    /// Keys of the unit and the generations of the session, for levels that have them.
    keys: UnitKeys,
    generations: GenerationCounter,
}

impl MessageBlocks {
    fn new(form: KeyListForm) -> Self {
        let keys = UnitKeys::new([1; 16], Zeroizing::new([2; UNIT_KEY_LEN]));
        Self { form, keys, generations: GenerationCounter::new(1) }
    }
}

impl PduBlocks for MessageBlocks {
    fn sending(&mut self, _: &PduHeader, data: &mut [u8]) -> Result<Option<SegmentSeals>, PduError> {
        let block = self.form.block.bytes();
        if data.is_empty() || !data.len().is_multiple_of(block) {
            return Ok(None);
        }
        let (list, macs) = if self.form.scheme.has_generations() {
            let sealed = self.keys.seal(0, block, data, &mut self.generations);
            sealed.ok_or(PduError::GenerationsExhausted)?
        } else {
            BlockSealer::new(self.form).seal(0, data, &mut |into| fill_random(into))
        };
        Ok(Some(SegmentSeals { list, macs }))
    }

    fn received(
        &mut self,
        _: &mut PduHeader,
        _: &mut Vec<u8>,
        _: Option<SegmentSeals>,
    ) -> Result<AppendedPdu, PduError> {
        Ok(None)
    }
}

fn fill_random(into: &mut [u8]) {
    SystemEnvironment.fill_random(into);
}

/// Returns the protection of one end; `None` for plain TCP.
fn protection(kind: &StreamKind, is_sender: bool) -> Outcome<Option<StreamProtection>> {
    let level = kind.level;
    if level == ProtectionLevel::S0 {
        return Ok(None);
    }
    let profile = if level.is_modern() { ProtectionProfile::Modern } else { ProtectionProfile::Paper };
    let settings = ProtectionSettings { level, block: ProtectedBlock::B4096, profile, record: kind.record };
    let transcript = LoginTranscript {
        initiator: "iqn.2026-11.org.sealstone:sender",
        target: "iqn.2026-11.org.sealstone:receiver",
        isid: [0; 6],
        settings,
        initiator_nonce: [1; NONCE_LEN],
        target_nonce: [2; NONCE_LEN],
    };
    let secrets = SessionSecrets { chap: b"secret of the bench", tls_exporter: &[] };
    let keys = SessionKeys::derive(secrets, &transcript)?;
    let (own, other) = if is_sender {
        (PduDirection::ToTarget, PduDirection::ToInitiator)
    } else {
        (PduDirection::ToInitiator, PduDirection::ToTarget)
    };
    let records = level.records().zip(settings.record).map(|(records, size)| StreamRecords {
        sealer: RecordSealer::new(keys.record_keys(own), records, size),
        opener: RecordOpener::new(keys.record_keys(other), records, size),
        random: Box::new(fill_random),
    });
    let pdus = settings.key_list_form().map(|form| {
        let sealer = HeaderSealer::new(keys.header_keys(), level, profile, own, 0);
        let opener = HeaderOpener::new(keys.header_keys(), level, profile, other, 0);
        PduProtection::new(form, sealer, opener, Box::new(MessageBlocks::new(form)))
    });
    Ok(Some(StreamProtection { pdus, records }))
}

/// Returns a message on the wire: as Data-Out PDUs if the level has protected PDUs.
fn message(kind: &StreamKind, size: usize) -> Vec<u8> {
    let data: Vec<u8> = (0..size).map(|at| (at / 3) as u8).collect();
    if kind.level.key_scheme().is_none() {
        return data;
    }
    let mut wire = Vec::new();
    for segment in data.chunks(SEGMENT) {
        let mut header = [0; BHS_LEN];
        header[0] = DATA_OUT;
        let length = u32::try_from(segment.len()).unwrap_or(u32::MAX).to_be_bytes();
        header[5..8].copy_from_slice(&length[1..]);
        wire.extend_from_slice(&header);
        wire.extend_from_slice(segment);
        wire.resize(wire.len().next_multiple_of(4), 0);
    }
    wire
}

/// Sends messages for a while; returns MB of data in a second, as the receiver saw them.
fn transfer(kind: &'static StreamKind, size: usize, time: Duration) -> Outcome<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let wire = message(kind, size);
    let wire_len = wire.len();
    let sender = thread::spawn(move || -> Outcome {
        let mut stream = connected(TcpStream::connect(address)?, kind, true)?;
        stream.0.block_on(async {
            let end = Instant::now() + time;
            // At least one message, however short the time is.
            loop {
                stream.1.write_all(&wire).await?;
                stream.1.flush().await?;
                if Instant::now() >= end {
                    break;
                }
            }
            Ok(stream.1.shutdown().await?)
        })
    });
    let (accepted, _) = listener.accept()?;
    let mut stream = connected(accepted, kind, false)?;
    let begin = Instant::now();
    let received: u64 = stream.0.block_on(async {
        let (mut buffer, mut received) = (vec![0; RECEIVE], 0);
        loop {
            match stream.1.read(&mut buffer).await? {
                0 => return Outcome::Ok(received),
                count => received += count as u64,
            }
        }
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    sender.join().map_err(|_| "the sender failed")??;
    Ok(received as f64 * size as f64 / wire_len as f64 / 1e6 / seconds)
}

type ThreadStream = (tokio::runtime::Runtime, RecordStream<tokio::net::TcpStream>);

/// Returns a protected stream with a runtime of its own thread.
fn connected(stream: TcpStream, kind: &StreamKind, is_sender: bool) -> Outcome<ThreadStream> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let stream = {
        let _entered = runtime.enter();
        tokio::net::TcpStream::from_std(stream)?
    };
    let mut stream = RecordStream::new(stream);
    if let Some(protection) = protection(kind, is_sender)? {
        stream.begin_protection(protection, 0);
    }
    Ok((runtime, stream))
}

/// Measures all kinds of streams.
pub(super) fn measure(settings: &LazySettings) -> MeasuredPart {
    let (rounds, time) = (settings.rounds, Duration::from_secs_f64(settings.turn_s / 2.0));
    let mut values = vec![vec![Vec::new(); SIZES.len()]; KINDS.len()];
    let bar = progress("channel", rounds * SIZES.len() * KINDS.len());
    for round in 0..rounds {
        for (column, &size) in SIZES.iter().enumerate() {
            for step in 0..KINDS.len() {
                let row = (step + round) % KINDS.len();
                bar.set_message(format!("{}, {size} bytes", KINDS[row].name));
                values[row][column].push(transfer(&KINDS[row], size, time)?);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    let title = "Figure 2: throughput of a stream by size of its messages, client to server, MB/s";
    let mut table = FigureTable::new(title, "the design documents quote no value", &COLUMNS);
    for (kind, row) in KINDS.iter().zip(&values) {
        let medians = row.iter().map(|rates| median(&mut rates.clone())).collect();
        table.add(kind.name, &[medians]);
    }
    let verdicts = verdicts(&table);
    Ok((table, verdicts))
}

fn verdicts(table: &FigureTable) -> Vec<Verdict> {
    let at = |row, column| table.value(row, column).unwrap_or(f64::NAN);
    let mut verdicts = Vec::new();
    for row in ["S1-1u, records of 16 KiB", "S2-1u, records of 16 KiB"] {
        let (small, large) = (at(row, "512"), at(row, "64 KiB"));
        verdicts.push(Verdict {
            aim: format!("stream, {row}: larger messages are faster"),
            reached: large > small,
            measured: format!("{small:.0} MB/s at 512 bytes, {large:.0} at 64 KiB"),
        });
    }
    for (lazy, eager) in [
        ("S1-2", "S1-1u, records of 16 KiB"),
        ("S2-5", "S2-3"),
        ("S2-3", "S2-1u, records of 16 KiB"),
        ("M-lazy", "S2-1u, records of 16 KiB"),
    ] {
        let (fast, slow) = (at(lazy, "64 KiB"), at(eager, "64 KiB"));
        verdicts.push(Verdict {
            aim: format!("stream of 64 KiB: {lazy} faster than {eager}"),
            reached: fast > slow,
            measured: format!("{fast:.0} and {slow:.0} MB/s"),
        });
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_transfers_messages_of_all_sizes() {
        for kind in &KINDS {
            for size in [512, 1448, 64 << 10, 1 << 20] {
                let rate = transfer(kind, size, Duration::from_millis(5)).unwrap();
                assert!(rate > 0.0 && rate.is_finite(), "{} {size}", kind.name);
            }
        }
    }
}
