//! `sealstone-iscsi`: both ends of a connection, each with arbitrary bytes, and with each other
//! over a faulty wire.
//!
//! Inputs contain PDUs without digests. The harness inserts correct ones if they were negotiated,
//! so that mutations pass the digest checks.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use sealstone_iscsi::{
    Buffer, Cdb, DigestChoice, Gather, Policy, Pool, TaskAttribute, TaskId, crc32c_append, initiator,
    target_side,
};

use crate::Target;
use crate::input::{Input, seed};

pub(super) const NAME: &str = "iqn.2026-11.org.sealstone:osd.fuzz";
/// Capacity of the buffer pool, in bytes.
const POOL_BYTES_MAX: usize = 256 * 1024;
/// Maximum data-out length of one command, in bytes.
const DATA_OUT_MAX: u32 = 64 * 1024;
/// Maximum data-in length of the logical unit, in bytes.
const DATA_IN_MAX: u32 = 16 * 1024;
/// Maximum number of transmissions of one end per input, far more than valid answers need.
const PIECES_MAX: usize = 20_000;
/// Maximum number of rounds of a session.
const ROUNDS_MAX: usize = 4000;
/// Number of timeouts that expire at the end.
const TIMEOUTS: usize = 6;

/// Options in the first byte.
mod flag {
    pub(super) const HEADER_DIGEST: u8 = 0x01;
    pub(super) const DATA_DIGEST: u8 = 0x02;
    /// The input already contains digests.
    pub(super) const RAW: u8 = 0x04;
    /// The input starts before the login.
    pub(super) const FRESH: u8 = 0x08;
    /// Bits for the fragment size of the stream.
    pub(super) const CUT: u8 = 0x30;
    /// A discovery session.
    pub(super) const DISCOVERY: u8 = 0x40;
    /// Commands complete only at the end; no unsolicited data.
    pub(super) const SLOW: u8 = 0x80;
}

#[derive(Default)]
struct BoundedPool(AtomicUsize);

impl Pool for BoundedPool {
    fn take(&self, len: usize) -> Option<Vec<u8>> {
        let before = self.0.fetch_add(len, Ordering::Relaxed);
        if before + len > POOL_BYTES_MAX {
            self.0.fetch_sub(len, Ordering::Relaxed);
            return None;
        }
        Some(vec![0xEE; len])
    }

    fn give(&self, buffer: Vec<u8>) {
        self.0.fetch_sub(buffer.len(), Ordering::Relaxed);
    }
}

fn policy(flags: u8) -> Policy {
    let digest = |bit| if flags & bit != 0 { DigestChoice::Always } else { DigestChoice::Never };
    let slow = flags & flag::SLOW != 0;
    Policy {
        header_digest: digest(flag::HEADER_DIGEST),
        data_digest: digest(flag::DATA_DIGEST),
        max_receive: 8192,
        initial_r2t: slow,
        immediate_data: !slow,
        first_burst: 4096,
        max_burst: 8192,
        max_outstanding_r2t: 2,
        ..Policy::default()
    }
}

fn cut(flags: u8) -> usize {
    [usize::MAX, 1, 47, 1000][usize::from((flags & flag::CUT) >> 4)]
}

/// Moves the front of `wire` into a connection's buffer; returns the number of bytes.
fn pour(wire: &mut &[u8], space: [&mut [u8]; 2], most: usize) -> usize {
    let mut moved = 0;
    for part in space {
        let count = part.len().min(wire.len()).min(most - moved);
        let (head, rest) = wire.split_at(count);
        part[..count].copy_from_slice(head);
        *wire = rest;
        moved += count;
    }
    moved
}

/// Inserts digests into a stream of PDUs. A truncated stream stays truncated.
fn with_digests(mut stream: &[u8], flags: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(stream.len() + 64);
    let mut put = |bytes: &[u8], digest: bool| {
        out.extend_from_slice(bytes);
        if digest {
            out.extend_from_slice(&crc32c_append(0, bytes).to_le_bytes());
        }
    };
    while let Some(basic) = stream.first_chunk::<48>() {
        let header = 48 + 4 * usize::from(basic[4]);
        let data = usize::from(basic[5]) << 16 | usize::from(basic[6]) << 8 | usize::from(basic[7]);
        let (head, rest) = stream.split_at(header.min(stream.len()));
        let (segment, rest) = rest.split_at(data.next_multiple_of(4).min(rest.len()));
        put(head, flags & flag::HEADER_DIGEST != 0);
        put(segment, flags & flag::DATA_DIGEST != 0 && data > 0);
        stream = rest;
    }
    put(stream, false);
    out
}

/// The target end with a shell and a logical unit.
pub(super) struct TargetEnd {
    connection: target_side::TargetConnection,
    slow: bool,
    held: Vec<target_side::ReceivedCommand>,
    seen: HashSet<TaskId>,
    closed: bool,
    pieces: usize,
    pub(super) sent: Vec<u8>,
}

impl TargetEnd {
    pub(super) fn new(flags: u8) -> Self {
        let entry =
            target_side::TargetEntry { name: NAME.into(), alias: Some("fuzz".into()), addresses: vec![] };
        let mut config = target_side::PortalConfig::new(vec![entry]);
        config.policy = policy(flags);
        config.queue_depth = 8;
        config.data_out_max = DATA_OUT_MAX;
        let pool: Arc<dyn Pool> = Arc::new(BoundedPool::default());
        Self {
            connection: target_side::TargetConnection::new(
                Arc::new(config),
                pool,
                "127.0.0.1:3260".into(),
                0,
            ),
            slow: flags & flag::SLOW != 0,
            held: Vec::new(),
            seen: HashSet::new(),
            closed: false,
            pieces: 0,
            sent: Vec::new(),
        }
    }

    fn execute(&mut self, command: target_side::ReceivedCommand) {
        let length = command.data_in_max.min(DATA_IN_MAX);
        let out = command.data_out.as_slice();
        let reply = target_side::CommandReply {
            status: if out.first() == Some(&0xBD) { 2 } else { 0 },
            sense: vec![0x72; out.len().min(18)],
            data_in: Gather::from(Bytes::from(vec![0xD1; length as usize])),
            data_in_wanted: u64::from(length),
            data_out_wanted: out.len() as u64,
            separate_status: out.len() % 2 == 1,
        };
        self.connection.complete(command.task, reply);
    }

    /// Processes pending events and transmissions; false if there were none.
    fn serve(&mut self) -> bool {
        let mut moved = false;
        while let Some(event) = self.connection.poll_event() {
            assert!(!self.closed, "an event after the last one: {event:?}");
            moved = true;
            match event {
                target_side::TargetEvent::Login(login) if login.initiator.ends_with("refuse") => {
                    self.connection.refuse(target_side::Refusal::Authorization);
                }
                target_side::TargetEvent::Login(_) => self.connection.admit(7),
                target_side::TargetEvent::Command(command) => {
                    assert!(self.seen.insert(command.task), "a task twice");
                    assert!(command.cdb.as_slice().len() >= 16);
                    assert!(command.data_out.len() <= DATA_OUT_MAX as usize);
                    if self.slow { self.held.push(command) } else { self.execute(command) }
                }
                target_side::TargetEvent::Management { id, .. } => {
                    self.connection.managed(id, target_side::ManagementResult::Complete);
                }
                target_side::TargetEvent::Closed(_) => self.closed = true,
            }
        }
        while let Some(piece) = self.connection.poll_transmit() {
            self.pieces += 1;
            assert!(self.pieces < PIECES_MAX, "transmits without end");
            self.sent.extend_from_slice(&piece);
            moved = true;
        }
        moved
    }

    pub(super) fn settle(&mut self) {
        while self.serve() {}
    }

    pub(super) fn feed(&mut self, mut wire: &[u8], most: usize, now_ms: u64) {
        self.settle();
        while !wire.is_empty() {
            let moved = pour(&mut wire, self.connection.rx_space(), most);
            if moved == 0 {
                break;
            }
            self.connection.received(moved, now_ms);
            self.settle();
        }
    }

    /// Completes held commands and lets time pass.
    pub(super) fn end(&mut self) {
        for command in std::mem::take(&mut self.held) {
            // Also after the last event: a shell may get the notice late.
            self.execute(command);
            self.settle();
        }
        self.connection.memory_freed(0);
        self.settle();
        for _ in 0..TIMEOUTS {
            if let Some(due) = self.connection.poll_timeout() {
                self.connection.handle_timeout(due);
                self.settle();
            }
        }
        self.connection.end_of_stream();
        self.settle();
        assert!(self.closed, "the stream ended, the connection did not");
    }
}

/// The initiator end with a caller.
pub(super) struct InitiatorEnd {
    connection: initiator::InitiatorConnection,
    under_way: HashSet<TaskId>,
    logged_in: bool,
    closed: bool,
    pieces: usize,
    pub(super) sent: Vec<u8>,
}

impl InitiatorEnd {
    pub(super) fn new(flags: u8) -> Self {
        let name = (flags & flag::DISCOVERY == 0).then(|| NAME.to_owned());
        let mut config = initiator::InitiatorConfig::new(
            "iqn.2026-11.org.sealstone:fuzz".into(),
            name,
            [0x80, 0, 0, 1, 0, 0],
        );
        config.policy = policy(flags);
        Self {
            connection: initiator::InitiatorConnection::new(config, 0),
            under_way: HashSet::new(),
            logged_in: false,
            closed: false,
            pieces: 0,
            sent: Vec::new(),
        }
    }

    fn serve(&mut self) -> bool {
        let mut moved = false;
        while let Some(event) = self.connection.poll_event() {
            assert!(!self.closed, "an event after the last one: {event:?}");
            moved = true;
            match event {
                initiator::InitiatorEvent::LoggedIn(_) => self.logged_in = true,
                initiator::InitiatorEvent::Completed { task, outcome } => {
                    assert!(self.under_way.remove(&task), "an answer to nothing");
                    assert!(outcome.is_ok_and(|r| r.data_in_length <= r.data_in.len()) || !self.closed);
                }
                initiator::InitiatorEvent::Closed(_) => self.closed = true,
                initiator::InitiatorEvent::Managed { .. }
                | initiator::InitiatorEvent::Targets(_)
                | initiator::InitiatorEvent::LogoutRequested { .. }
                | initiator::InitiatorEvent::WindowOpen => {}
            }
        }
        while let Some(piece) = self.connection.poll_transmit() {
            self.pieces += 1;
            assert!(self.pieces < PIECES_MAX, "transmits without end");
            self.sent.extend_from_slice(&piece);
            moved = true;
        }
        moved
    }

    pub(super) fn settle(&mut self) {
        while self.serve() {}
    }

    fn submit(&mut self, cdb: usize, out: &[u8], read: usize) {
        let (head, tail) = out.split_at(out.len() / 3);
        let command = initiator::SubmittedCommand {
            lun: 0,
            cdb: Cdb::new(&vec![0x5A; cdb]).expect("within the limit"),
            attribute: TaskAttribute::Simple,
            data_out: Gather::from(vec![Bytes::copy_from_slice(head), Bytes::copy_from_slice(tail)]),
            data_in: Buffer::from(vec![0; read]),
        };
        if let Ok(task) = self.connection.submit(command) {
            self.under_way.insert(task);
        }
    }

    /// The same commands of every kind in every session.
    fn work(&mut self) {
        self.submit(16, &[], 0);
        self.submit(236, &[1; 300], 5000);
        self.submit(200, &[2; 9001], 0);
        self.submit(16, &[0xBD; 20], 100);
        let last = self.under_way.iter().max().copied();
        let _ = self.connection.send_targets("All");
        if let Some(task) = last {
            let _ = self.connection.manage(initiator::ManagementFunction::AbortTask(task));
        }
        let _ = self.connection.manage(initiator::ManagementFunction::LogicalUnitReset(0));
    }

    pub(super) fn feed(&mut self, mut wire: &[u8], most: usize, now_ms: u64) {
        self.settle();
        while !wire.is_empty() {
            let moved = pour(&mut wire, self.connection.rx_space(), most);
            if moved == 0 {
                break;
            }
            self.connection.received(moved, now_ms);
            self.settle();
        }
    }

    pub(super) fn end(&mut self) {
        for _ in 0..TIMEOUTS {
            if let Some(due) = self.connection.poll_timeout() {
                self.connection.handle_timeout(due);
                self.settle();
            }
        }
        self.connection.logout();
        self.settle();
        self.connection.end_of_stream();
        self.settle();
        assert!(self.closed, "the stream ended, the connection did not");
    }
}

/// Transfers bytes between both ends until nothing moves. Returns the bytes to the target and from
/// it.
fn wire(caller: &mut InitiatorEnd, server: &mut TargetEnd) -> [Vec<u8>; 2] {
    let mut log = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS_MAX {
        caller.settle();
        let forth = std::mem::take(&mut caller.sent);
        server.feed(&forth, usize::MAX, 0);
        server.settle();
        let back = std::mem::take(&mut server.sent);
        caller.feed(&back, usize::MAX, 0);
        if forth.is_empty() && back.is_empty() && caller.sent.is_empty() {
            break;
        }
        log[0].extend(forth);
        log[1].extend(back);
    }
    log
}

/// Both ends after a login.
pub(super) fn logged_in(flags: u8) -> (InitiatorEnd, TargetEnd) {
    let (mut caller, mut server) = (InitiatorEnd::new(flags), TargetEnd::new(flags));
    let _ = wire(&mut caller, &mut server);
    assert!(caller.logged_in && !server.closed, "the login of both ends succeeds");
    (caller, server)
}

/// The bytes of each direction: of a login, and after it.
fn recorded(flags: u8) -> [[Vec<u8>; 2]; 2] {
    let (mut caller, mut server) = (InitiatorEnd::new(flags), TargetEnd::new(flags));
    let login = wire(&mut caller, &mut server);
    caller.work();
    let mut rest = wire(&mut caller, &mut server);
    for command in std::mem::take(&mut server.held) {
        server.execute(command);
    }
    server.slow = false;
    server.connection.request_logout(5);
    let due = server.connection.poll_timeout().unwrap_or(0);
    server.connection.handle_timeout(due);
    caller.connection.handle_timeout(caller.connection.poll_timeout().unwrap_or(0));
    for (log, more) in rest.iter_mut().zip(wire(&mut caller, &mut server)) {
        log.extend(more);
    }
    caller.connection.logout();
    for (log, more) in rest.iter_mut().zip(wire(&mut caller, &mut server)) {
        log.extend(more);
    }
    [login, rest]
}

/// Options for the replay of recorded streams.
const KINDS: [u8; 4] = [0, flag::SLOW, flag::DISCOVERY, flag::SLOW | flag::DISCOVERY];
const DIGESTS: [u8; 4] = [0, flag::HEADER_DIGEST, flag::DATA_DIGEST, flag::HEADER_DIGEST | flag::DATA_DIGEST];

/// The recorded streams of one direction as seeds.
fn seeds(direction: usize) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for kind in KINDS {
        let [login, rest] = recorded(kind);
        let (login, rest) = (&login[direction], &rest[direction]);
        seeds.push(seed(&[kind | flag::FRESH], &[&login[..], rest].concat()));
        for digests in DIGESTS {
            seeds.push(seed(&[kind | digests], rest));
            seeds.push(seed(&[kind | digests | 0x20], &rest[..rest.len().min(300)]));
        }
    }
    seeds.push(seed(&[flag::RAW | flag::HEADER_DIGEST | flag::DATA_DIGEST], &[0; 64]));
    seeds
}

/// The stream for an input.
fn stream(flags: u8, bytes: &[u8]) -> Vec<u8> {
    // A login has no digests.
    if flags & (flag::RAW | flag::FRESH) != 0 { bytes.to_vec() } else { with_digests(bytes, flags) }
}

fn target_end(input: &[u8]) {
    let mut input = Input::new(input);
    let flags = input.byte();
    let mut server = if flags & flag::FRESH != 0 { TargetEnd::new(flags) } else { logged_in(flags).1 };
    server.feed(&stream(flags, input.rest()), cut(flags), 1);
    server.end();
}

pub(crate) const TARGET: Target = Target {
    name: "iscsi-target",
    about: "choices, then what an initiator sends before or after a login; no event after the last, no task twice",
    run: target_end,
    seeds: || seeds(0),
    cost: 40,
    quarantine: None,
    covers: &["iscsi::target_side::TargetConnection::received"],
};

fn initiator_end(input: &[u8]) {
    let mut input = Input::new(input);
    let flags = input.byte();
    let mut caller = if flags & flag::FRESH != 0 {
        InitiatorEnd::new(flags)
    } else {
        let (mut caller, _) = logged_in(flags);
        caller.work();
        caller
    };
    caller.feed(&stream(flags, input.rest()), cut(flags), 1);
    caller.end();
}

pub(crate) const INITIATOR: Target = Target {
    name: "iscsi-initiator",
    about: "choices, then what a target sends before a login or to commands under way; each command ends at most once",
    run: initiator_end,
    seeds: || seeds(1),
    cost: 40,
    quarantine: None,
    covers: &["iscsi::initiator::InitiatorConnection::received"],
};

/// A change of a stream at one position.
struct StreamEdit {
    direction: usize,
    at: usize,
    what: u8,
    value: u8,
}

/// Length of an edit in the input: direction and kind, position, value.
const EDIT: usize = 4;
/// Maximum number of edits per session.
const EDITS_MAX: usize = 64;

/// The stream after the edits; `passed` is the number of earlier bytes.
fn edited(bytes: &[u8], passed: usize, direction: usize, edits: &[StreamEdit]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for edit in edits.iter().filter(|edit| edit.direction == direction) {
        let Some(at) = edit.at.checked_sub(passed).filter(|at| *at < bytes.len()) else { continue };
        let at = at.min(out.len().saturating_sub(1));
        match edit.what {
            _ if out.is_empty() => {}
            0 => out[at] ^= edit.value,
            1 => out[at] = edit.value,
            2 => drop(out.drain(at..(at + usize::from(edit.value)).min(out.len()))),
            _ => drop(out.splice(at..at, vec![edit.value; usize::from(edit.value % 60)])),
        }
    }
    out
}

fn both_ends(input: &[u8]) {
    let mut input = Input::new(input);
    let flags = input.byte();
    let mut edits = Vec::new();
    while !input.is_empty() && edits.len() < EDITS_MAX {
        let (kind, at, value) = (input.byte(), usize::from(input.short()), input.byte());
        edits.push(StreamEdit { direction: usize::from(kind & 1), at, what: kind >> 1 & 3, value });
    }
    let (mut caller, mut server) = (InitiatorEnd::new(flags), TargetEnd::new(flags));
    let mut passed = [0; 2];
    let mut working = false;
    for _ in 0..ROUNDS_MAX {
        caller.settle();
        if caller.logged_in && !working {
            working = true;
            caller.work();
            caller.settle();
        }
        let forth = std::mem::take(&mut caller.sent);
        server.feed(&edited(&forth, passed[0], 0, &edits), cut(flags), 0);
        let back = std::mem::take(&mut server.sent);
        caller.feed(&edited(&back, passed[1], 1, &edits), cut(flags), 0);
        passed[0] += forth.len();
        passed[1] += back.len();
        if forth.is_empty() && back.is_empty() && caller.sent.is_empty() {
            break;
        }
    }
    if edits.is_empty() {
        assert!(caller.logged_in && (caller.under_way.is_empty() || server.slow), "an honest session works");
    }
    caller.end();
    server.end();
}

fn session_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for kind in KINDS {
        for digests in DIGESTS {
            seeds.push(vec![kind | digests]);
            for (at, what) in [(5_u16, 0), (49, 1), (400, 2), (500, 3), (700, 0)] {
                let [high, low] = at.to_be_bytes();
                let edits: [[u8; EDIT]; 2] = [[what << 1, high, low, 0x41], [what << 1 | 1, high, low, 0x13]];
                seeds.push(seed(&[kind | digests | 0x30], edits.as_flattened()));
            }
        }
    }
    seeds
}

pub(crate) const SESSION: Target = Target {
    name: "iscsi-session",
    about: "choices, then changes to the streams of a whole session of both ends; it ends, whatever was changed",
    run: both_ends,
    seeds: session_seeds,
    cost: 60,
    quarantine: None,
    covers: &[
        "iscsi::target_side::TargetConnection::received",
        "iscsi::initiator::InitiatorConnection::received",
    ],
};
