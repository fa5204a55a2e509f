//! Both ends connected in memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests, outside of test functions")]

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use proptest::prelude::*;
use sealstone_iscsi::{
    Buffer, Cdb, DigestChoice, Gather, Policy, Pool, Residual, TaskAttribute, TaskId, initiator, target_side,
};

const TARGET: &str = "iqn.2026-11.org.sealstone:osd.test";

/// A pool that counts its buffers in use.
#[derive(Default)]
struct Counting {
    out: AtomicUsize,
    budget: Mutex<Option<usize>>,
}

impl Pool for Counting {
    fn take(&self, len: usize) -> Option<Vec<u8>> {
        if self.budget.lock().unwrap().is_some_and(|most| self.out.load(Ordering::SeqCst) + len > most) {
            return None;
        }
        self.out.fetch_add(len, Ordering::SeqCst);
        Some(vec![0xEE; len])
    }

    fn give(&self, buffer: Vec<u8>) {
        self.out.fetch_sub(buffer.len(), Ordering::SeqCst);
    }
}

/// Encodes the behaviour of the test's logical unit in a CDB.
fn cdb(status: u8, sense: u8, separate: bool, wanted: u32, length: usize) -> Cdb {
    let mut bytes = vec![0x5A; length];
    bytes[..8].copy_from_slice(&[0, status, sense, u8::from(separate), 0, 0, 0, 0]);
    bytes[4..8].copy_from_slice(&wanted.to_be_bytes());
    Cdb::new(&bytes).unwrap()
}

fn data_for(cdb: &[u8], out: &[u8]) -> Vec<u8> {
    let wanted = u32::from_be_bytes(cdb[4..8].try_into().unwrap()) as usize;
    let sum =
        out.iter().fold(cdb.len() as u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    (0..wanted).map(|i| (sum as usize + i * 7) as u8).collect()
}

fn execute(command: &target_side::ReceivedCommand) -> target_side::CommandReply {
    let (cdb, out) = (command.cdb.as_slice(), command.data_out.as_slice());
    let data = data_for(cdb, out);
    target_side::CommandReply {
        status: cdb[1],
        sense: vec![0x72; usize::from(cdb[2])],
        data_in_wanted: data.len() as u64,
        data_in: Gather::from(Bytes::from(data)),
        data_out_wanted: out.len() as u64,
        separate_status: cdb[3] != 0,
    }
}

struct Pair {
    initiator: initiator::InitiatorConnection,
    target: target_side::TargetConnection,
    pool: Arc<Counting>,
    wires: [VecDeque<u8>; 2],
    events: Vec<initiator::InitiatorEvent>,
    target_events: Vec<target_side::TargetEvent>,
    hold: bool,
    now: u64,
}

impl Pair {
    fn new(offers: Policy, grants: Policy) -> Self {
        Self::with(offers, grants, Some(TARGET), |_, _| {})
    }

    fn with(
        offers: Policy,
        grants: Policy,
        name: Option<&str>,
        change: impl FnOnce(&mut initiator::InitiatorConfig, &mut target_side::PortalConfig),
    ) -> Self {
        let mut client = initiator::InitiatorConfig::new(
            "iqn.2026-11.org.sealstone:client".into(),
            name.map(Into::into),
            [0x80, 0, 0, 1, 0, 0],
        );
        client.policy = offers;
        let entry =
            target_side::TargetEntry { name: TARGET.into(), alias: Some("test".into()), addresses: vec![] };
        let mut server = target_side::PortalConfig::new(vec![entry]);
        server.policy = grants;
        change(&mut client, &mut server);
        let pool = Arc::new(Counting::default());
        Self {
            initiator: initiator::InitiatorConnection::new(client, 0),
            target: target_side::TargetConnection::new(
                Arc::new(server),
                Arc::clone(&pool) as Arc<dyn Pool>,
                "127.0.0.1:3260".into(),
                0,
            ),
            pool,
            wires: [VecDeque::new(), VecDeque::new()],
            events: Vec::new(),
            target_events: Vec::new(),
            hold: false,
            now: 0,
        }
    }

    /// Transfers at most `cut` bytes each way. Returns false if nothing moved.
    fn step(&mut self, cut: usize) -> bool {
        let mut moved = false;
        while let Some(event) = self.initiator.poll_event() {
            self.events.push(event);
            moved = true;
        }
        while let Some(event) = self.target.poll_event() {
            moved = true;
            match event {
                target_side::TargetEvent::Login(_) => self.target.admit(7),
                target_side::TargetEvent::Command(command) if !self.hold => {
                    let reply = execute(&command);
                    self.target.complete(command.task, reply);
                }
                target_side::TargetEvent::Management { id, .. } => {
                    self.target.managed(id, target_side::ManagementResult::Complete);
                }
                other => self.target_events.push(other),
            }
        }
        while let Some(piece) = self.initiator.poll_transmit() {
            self.wires[0].extend(piece);
        }
        while let Some(piece) = self.target.poll_transmit() {
            self.wires[1].extend(piece);
        }
        let now = self.now;
        let taken = pour(&mut self.wires[0], self.target.rx_space(), cut);
        if taken > 0 {
            self.target.received(taken, now);
        }
        let given = pour(&mut self.wires[1], self.initiator.rx_space(), cut);
        if given > 0 {
            self.initiator.received(given, now);
        }
        moved || taken + given > 0
    }

    fn run(&mut self) {
        while self.step(usize::MAX) {}
    }

    fn closed(&self) -> (Option<&initiator::InitiatorClosed>, Option<&target_side::TargetClosed>) {
        let ours = self.events.iter().find_map(|event| match event {
            initiator::InitiatorEvent::Closed(reason) => Some(reason),
            _ => None,
        });
        let theirs = self.target_events.iter().find_map(|event| match event {
            target_side::TargetEvent::Closed(reason) => Some(reason),
            _ => None,
        });
        (ours, theirs)
    }

    fn logged_in(&self) -> bool {
        matches!(self.events.first(), Some(initiator::InitiatorEvent::LoggedIn(_)))
    }

    fn outcomes(&mut self) -> HashMap<TaskId, Result<initiator::CommandResponse, initiator::TaskFailure>> {
        self.events
            .drain(..)
            .filter_map(|event| match event {
                initiator::InitiatorEvent::Completed { task, outcome } => Some((task, outcome)),
                _ => None,
            })
            .collect()
    }
}

fn pour(wire: &mut VecDeque<u8>, space: [&mut [u8]; 2], cut: usize) -> usize {
    let mut moved = 0;
    for slice in space {
        for place in slice {
            if moved == cut {
                return moved;
            }
            let Some(byte) = wire.pop_front() else { return moved };
            *place = byte;
            moved += 1;
        }
    }
    moved
}

fn command(cdb: Cdb, out: &[u8], read: usize) -> initiator::SubmittedCommand {
    // In two pieces, so that gather lists are used.
    let (head, tail) = out.split_at(out.len() / 3);
    initiator::SubmittedCommand {
        lun: 0,
        cdb,
        attribute: TaskAttribute::Simple,
        data_out: Gather::from(vec![Bytes::copy_from_slice(head), Bytes::copy_from_slice(tail)]),
        data_in: Buffer::from(vec![0; read]),
    }
}

#[derive(Clone, Debug)]
struct PlannedCommand {
    out: usize,
    read: usize,
    wanted: u32,
    status: u8,
    sense: u8,
    separate: bool,
    cdb: usize,
}

fn requests() -> impl Strategy<Value = Vec<PlannedCommand>> {
    let size = || prop_oneof![Just(0_usize), 1..600_usize, 1..60_000_usize];
    let one =
        (size(), size(), size(), any::<bool>(), any::<bool>(), prop_oneof![Just(16_usize), 17..=260_usize]);
    proptest::collection::vec(
        one.prop_map(|(out, read, wanted, bad, separate, cdb)| PlannedCommand {
            out,
            read,
            wanted: wanted as u32,
            status: if bad { 2 } else { 0 },
            // Also with GOOD: so a response integrity value is transferred.
            sense: if bad || wanted % 3 == 0 { 18 } else { 0 },
            separate,
            cdb,
        }),
        1..12,
    )
}

fn policies() -> impl Strategy<Value = Policy> {
    let digest = || {
        prop_oneof![
            Just(DigestChoice::Never),
            Just(DigestChoice::PreferNone),
            Just(DigestChoice::PreferCrc32c),
        ]
    };
    let size = || prop_oneof![512..5000_u32, Just(65_536_u32)];
    (digest(), digest(), size(), any::<bool>(), any::<bool>(), size(), size(), 1..5_u32).prop_map(
        |(
            header_digest,
            data_digest,
            max_receive,
            initial_r2t,
            immediate_data,
            first_burst,
            max_burst,
            r2ts,
        )| {
            Policy {
                header_digest,
                data_digest,
                max_receive,
                initial_r2t,
                immediate_data,
                first_burst,
                max_burst,
                max_outstanding_r2t: r2ts,
                ..Policy::default()
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// With any negotiated values and any split of the stream, each command gets its own complete
    /// response.
    #[test]
    fn chunk_boundaries_and_parameters_change_nothing(
        offers in policies(),
        grants in policies(),
        requests in requests(),
        pull_bytes in proptest::option::of(1..5000_u32),
        cuts in proptest::collection::vec(prop_oneof![1..60_usize, 1..70_000_usize], 1..8),
    ) {
        let mut pair = Pair::with(offers, grants, Some(TARGET), |_, target| target.pull_bytes = pull_bytes);
        let mut sent_commands = HashMap::new();
        let mut waiting: VecDeque<PlannedCommand> = requests.into();
        let mut cuts = cuts.into_iter().cycle();
        loop {
            let moved = pair.step(cuts.next().unwrap());
            while let Some(request) = waiting.front().filter(|_| pair.initiator.can_submit()) {
                let out: Vec<u8> = (0..request.out).map(|i| i as u8).collect();
                let block = cdb(request.status, request.sense, request.separate, request.wanted, request.cdb);
                let task = pair.initiator.submit(command(block, &out, request.read)).unwrap();
                sent_commands.insert(task, (request.clone(), out));
                waiting.pop_front();
            }
            if !moved && waiting.is_empty() {
                break;
            }
        }
        prop_assert_eq!(pair.closed(), (None, None));
        let mut outcomes = pair.outcomes();
        prop_assert_eq!(outcomes.len(), sent_commands.len());
        for (task, (request, out)) in sent_commands {
            let response = outcomes.remove(&task).unwrap().unwrap();
            let data = data_for(cdb(request.status, request.sense, request.separate, request.wanted, request.cdb).as_slice(), &out);
            let length = data.len().min(request.read);
            prop_assert_eq!(response.status, request.status);
            prop_assert_eq!(response.sense.len(), usize::from(request.sense));
            prop_assert_eq!(response.data_in_length, length);
            prop_assert_eq!(&response.data_in.as_slice()[..length], &data[..length]);
            if request.read > 0 || request.out == 0 {
                let residual = match data.len().cmp(&request.read) {
                    std::cmp::Ordering::Equal => Residual::None,
                    std::cmp::Ordering::Less => Residual::Underflow((request.read - data.len()) as u32),
                    std::cmp::Ordering::Greater => Residual::Overflow((data.len() - request.read) as u32),
                };
                prop_assert_eq!(response.read_residual, residual);
            }
            prop_assert_eq!(response.write_residual, Residual::None);
        }
        prop_assert_eq!(pair.pool.out.load(Ordering::SeqCst), 0, "all buffers came home");
    }

    /// Arbitrary input at any time does not make either end panic.
    #[test]
    fn arbitrary_bytes_never_panic(
        before in 0..4_usize,
        junk in proptest::collection::vec(any::<u8>(), 1..600),
        to_target: bool,
        flips in proptest::collection::vec((0..2000_usize, any::<u8>()), 0..6),
    ) {
        let mut pair = Pair::new(Policy::default(), Policy::default());
        for _ in 0..before * 2 {
            pair.step(usize::MAX);
        }
        if before == 3 {
            pair.run();
            let _ = pair.initiator.submit(command(cdb(0, 0, false, 3000, 236), &[7; 9000], 4000));
            while let Some(piece) = pair.initiator.poll_transmit() {
                pair.wires[0].extend(piece);
            }
        }
        let wire = &mut pair.wires[usize::from(!to_target)];
        for (at, mask) in flips {
            if let Some(byte) = wire.get_mut(at) {
                *byte ^= mask;
            }
        }
        wire.extend(junk);
        for _ in 0..200 {
            pair.step(usize::MAX);
        }
        pair.now = 1_000_000;
        pair.target.handle_timeout(1_000_000);
        pair.initiator.handle_timeout(1_000_000);
        pair.run();
    }
}

#[test]
fn a_session_lives_from_login_to_logout() {
    let mut pair = Pair::new(Policy::default(), Policy::default());
    pair.run();
    assert!(pair.logged_in());
    pair.initiator.logout();
    pair.run();
    assert_eq!(
        pair.closed(),
        (Some(&initiator::InitiatorClosed::LoggedOut), Some(&target_side::TargetClosed::LoggedOut))
    );
}

#[test]
fn discovery_session_lists_only_targets() {
    let mut pair = Pair::with(Policy::default(), Policy::default(), None, |_, server| {
        for n in 0..40 {
            server.targets.push(target_side::TargetEntry {
                name: format!("{TARGET}-{n}"),
                alias: None,
                addresses: vec!["10.0.0.1:3260".into(), "[::1]:3260".into()],
            });
        }
    });
    pair.run();
    pair.initiator.send_targets("All").unwrap();
    pair.run();
    let Some(initiator::InitiatorEvent::Targets(targets)) = pair.events.last() else {
        panic!("{:?}", pair.events)
    };
    assert_eq!(targets.len(), 41);
    assert_eq!(
        (targets[0].name.as_str(), &targets[0].addresses[..]),
        (TARGET, &["127.0.0.1:3260,1".into()][..])
    );
    assert_eq!(targets[40].addresses, ["10.0.0.1:3260,1", "[::1]:3260,1"]);
    let task = pair.initiator.submit(command(cdb(0, 0, false, 0, 16), &[], 0)).unwrap();
    pair.run();
    assert_eq!(pair.outcomes()[&task].as_ref().unwrap_err(), &initiator::TaskFailure::Rejected(4));
}

#[test]
fn normal_session_discovers_only_its_own_target() {
    let mut pair = Pair::with(Policy::default(), Policy::default(), Some(TARGET), |_, server| {
        let other = target_side::TargetEntry {
            name: "iqn.2026-11.org.sealstone:secret".into(),
            alias: None,
            addresses: vec![],
        };
        server.targets.push(other);
    });
    pair.run();
    for which in ["", TARGET, "All", "iqn.2026-11.org.sealstone:secret"] {
        pair.initiator.send_targets(which).unwrap();
        pair.run();
        let Some(initiator::InitiatorEvent::Targets(targets)) = pair.events.pop() else { panic!() };
        let expected = usize::from(which.is_empty() || which == TARGET);
        assert_eq!((targets.len(), targets.iter().any(|t| t.name != TARGET)), (expected, false), "{which}");
    }
}

#[test]
fn unknown_target_is_refused() {
    let mut pair = Pair::with(Policy::default(), Policy::default(), Some("iqn.none"), |_, _| {});
    pair.run();
    let (ours, theirs) = pair.closed();
    assert_eq!(theirs, Some(&target_side::TargetClosed::Refused(target_side::Refusal::NotFound)));
    assert!(matches!(ours, Some(initiator::InitiatorClosed::Refused(r)) if (r.class, r.detail) == (2, 3)));
}

#[test]
fn contradicting_digest_requirements_end_the_login() {
    let never = Policy { header_digest: DigestChoice::Never, ..Policy::default() };
    let always = Policy { header_digest: DigestChoice::Always, ..Policy::default() };
    for (offers, grants) in [(never.clone(), always.clone()), (always, never)] {
        let mut pair = Pair::new(offers, grants);
        pair.run();
        assert!(!pair.logged_in());
        assert!(pair.closed().0.is_some() || pair.closed().1.is_some());
    }
}

fn digests() -> Policy {
    Policy {
        header_digest: DigestChoice::Always,
        data_digest: DigestChoice::Always,
        immediate_data: true,
        ..Policy::default()
    }
}

#[test]
fn every_flipped_bit_of_a_command_is_found() {
    let healthy = |flip: Option<usize>| {
        let mut pair = Pair::new(digests(), digests());
        pair.run();
        let task = pair.initiator.submit(command(cdb(0, 0, false, 0, 236), &[9; 301], 0)).unwrap();
        while let Some(piece) = pair.initiator.poll_transmit() {
            pair.wires[0].extend(piece);
        }
        let length = pair.wires[0].len();
        if let Some(bit) = flip {
            pair.wires[0][bit / 8] ^= 1 << (bit % 8);
        }
        pair.run();
        pair.target.end_of_stream();
        pair.run();
        let good = pair.outcomes().remove(&task).is_some_and(|outcome| outcome.is_ok_and(|r| r.status == 0));
        (good, length)
    };
    let (good, length) = healthy(None);
    assert!(good);
    for bit in (0..length * 8).step_by(11) {
        assert!(!healthy(Some(bit)).0, "bit {bit} of {}", length * 8);
    }
}

#[test]
fn every_flipped_bit_of_an_answer_is_found() {
    for byte in (0..48 + 4 + 300 + 4).step_by(3) {
        let mut pair = Pair::new(digests(), digests());
        pair.run();
        let task = pair.initiator.submit(command(cdb(0, 0, false, 300, 16), &[], 300)).unwrap();
        pair.step(usize::MAX);
        pair.step(0);
        assert_eq!(pair.wires[1].len(), 48 + 4 + 300 + 4);
        pair.wires[1][byte] ^= 0x10;
        pair.run();
        assert!(!pair.outcomes().contains_key(&task), "byte {byte}");
    }
}

#[test]
fn aborting_waits_until_the_logical_unit_let_go() {
    let mut pair = Pair::new(Policy::default(), Policy::default());
    pair.run();
    pair.hold = true;
    let task = pair.initiator.submit(command(cdb(0, 0, false, 0, 16), &[1; 10], 0)).unwrap();
    pair.run();
    let Some(target_side::TargetEvent::Command(held)) = pair.target_events.pop() else { panic!() };
    let id = pair.initiator.manage(initiator::ManagementFunction::AbortTask(task)).unwrap();
    pair.run();
    assert!(!pair.events.iter().any(|event| matches!(event, initiator::InitiatorEvent::Managed { .. })));
    pair.target.complete(held.task, target_side::CommandReply::default());
    pair.run();
    let complete = initiator::ManagementResult::Complete;
    assert!(
        matches!(pair.events.pop(), Some(initiator::InitiatorEvent::Managed { id: i, result }) if i == id && result == complete)
    );
    assert_eq!(pair.outcomes()[&task].as_ref().unwrap_err(), &initiator::TaskFailure::Aborted);
    assert!(pair.initiator.can_submit() && pair.initiator.under_way() == 0);
}

#[test]
fn task_management_reports_its_result() {
    let mut pair = Pair::new(Policy::default(), Policy::default());
    pair.run();
    let done = pair.initiator.submit(command(cdb(0, 0, false, 0, 16), &[], 0)).unwrap();
    pair.run();
    use initiator::{ManagementFunction, ManagementResult};
    for (function, expected) in [
        (ManagementFunction::AbortTask(done), ManagementResult::NoSuchTask),
        (ManagementFunction::AbortTaskSet(0), ManagementResult::Complete),
        (ManagementFunction::LogicalUnitReset(0), ManagementResult::Complete),
        (ManagementFunction::TargetWarmReset, ManagementResult::NotAuthorized),
    ] {
        pair.initiator.manage(function).unwrap();
        pair.run();
        assert!(
            matches!(pair.events.pop(), Some(initiator::InitiatorEvent::Managed { result, .. }) if result == expected),
            "{function:?}"
        );
    }
}

#[test]
fn a_reset_ends_commands_that_still_collect_data() {
    // No memory for the second command: its data is never requested.
    let asks = Policy { immediate_data: false, initial_r2t: true, ..Policy::default() };
    let mut pair = Pair::new(asks.clone(), asks);
    pair.run();
    let task = pair.initiator.submit(command(cdb(0, 0, false, 0, 16), &[1; 10], 0)).unwrap();
    while let Some(piece) = pair.initiator.poll_transmit() {
        pair.wires[0].extend(piece);
    }
    let taken = pour(&mut pair.wires[0], pair.target.rx_space(), usize::MAX);
    pair.target.received(taken, 0);
    assert_eq!(pair.pool.out.load(Ordering::SeqCst), 10);
    pair.initiator.manage(initiator::ManagementFunction::LogicalUnitReset(0)).unwrap();
    pair.run();
    assert_eq!(pair.outcomes()[&task].as_ref().unwrap_err(), &initiator::TaskFailure::Aborted);
    assert_eq!(pair.pool.out.load(Ordering::SeqCst), 0);
    assert_eq!(pair.closed(), (None, None), "late data is ignored");
}

#[test]
fn the_window_closes_and_opens() {
    let mut pair =
        Pair::with(Policy::default(), Policy::default(), Some(TARGET), |_, server| server.queue_depth = 3);
    pair.run();
    pair.hold = true;
    for _ in 0..3 {
        pair.initiator.submit(command(cdb(0, 0, false, 0, 16), &[], 0)).unwrap();
    }
    let refused = pair.initiator.submit(command(cdb(0, 0, false, 0, 16), &[], 0)).unwrap_err();
    assert_eq!(refused.error, initiator::SubmitError::WindowFull);
    pair.run();
    let Some(target_side::TargetEvent::Command(held)) = pair.target_events.pop() else { panic!() };
    pair.target.complete(held.task, target_side::CommandReply::default());
    pair.run();
    assert!(pair.events.iter().any(|event| matches!(event, initiator::InitiatorEvent::WindowOpen)));
    pair.initiator.submit(refused.command).unwrap();
    pair.run();
    assert_eq!(pair.target_events.len(), 3);
}

#[test]
fn memory_short_first_waits_then_is_busy() {
    let mut pair = Pair::new(Policy::default(), Policy::default());
    pair.run();
    *pair.pool.budget.lock().unwrap() = Some(1000);
    let late = pair.initiator.submit(command(cdb(0, 0, false, 0, 16), &[1; 1001], 0)).unwrap();
    pair.run();
    assert!(pair.target.is_starved());
    *pair.pool.budget.lock().unwrap() = Some(1001);
    pair.target.memory_freed(10);
    pair.run();
    assert_eq!(pair.outcomes()[&late].as_ref().unwrap().status, 0);

    let never = pair.initiator.submit(command(cdb(0, 0, false, 0, 16), &[1; 1002], 0)).unwrap();
    pair.run();
    assert!(pair.target.is_starved() && pair.outcomes().is_empty());
    pair.now = pair.target.poll_timeout().unwrap();
    pair.target.handle_timeout(pair.now);
    pair.run();
    assert_eq!(pair.outcomes()[&never].as_ref().unwrap().status, 8, "BUSY");
}

#[test]
fn short_memory_during_data_out_fills_task_set() {
    let asks = Policy { immediate_data: false, initial_r2t: true, ..Policy::default() };
    let mut pair = Pair::new(asks.clone(), asks);
    pair.run();
    *pair.pool.budget.lock().unwrap() = Some(1000);
    let first = pair.initiator.submit(command(cdb(0, 0, false, 0, 16), &[1; 900], 0)).unwrap();
    let second = pair.initiator.submit(command(cdb(0, 0, false, 0, 16), &[1; 900], 0)).unwrap();
    pair.run();
    let outcomes = pair.outcomes();
    assert_eq!(outcomes[&first].as_ref().unwrap().status, 0);
    assert_eq!(outcomes[&second].as_ref().unwrap().status, 0x28, "TASK SET FULL");
}

#[test]
fn data_out_beyond_limit_is_refused_permanently() {
    for initial_r2t in [true, false] {
        let policy = Policy { initial_r2t, ..Policy::default() };
        let mut pair =
            Pair::with(policy.clone(), policy, Some(TARGET), |_, server| server.data_out_max = 400_000);
        pair.run();
        let most = pair.initiator.submit(command(cdb(0, 0, false, 0, 16), &vec![1; 400_000], 0)).unwrap();
        let over = pair.initiator.submit(command(cdb(0, 0, false, 0, 16), &vec![1; 400_001], 0)).unwrap();
        pair.run();
        let outcomes = pair.outcomes();
        assert_eq!(outcomes[&most].as_ref().unwrap().status, 0);
        let refused = outcomes[&over].as_ref().unwrap();
        assert_eq!((refused.status, refused.sense[2], refused.sense[12], refused.sense[13]), (2, 5, 0x55, 3));
    }
}

#[test]
fn both_ends_ping_and_close_silent_peers() {
    let mut pair = Pair::new(Policy::default(), Policy::default());
    pair.run();
    for _ in 0..3 {
        pair.now = pair.target.poll_timeout().unwrap().min(pair.initiator.poll_timeout().unwrap());
        pair.initiator.handle_timeout(pair.now);
        pair.target.handle_timeout(pair.now);
        pair.run();
        assert_eq!(pair.closed(), (None, None), "pings are answered");
    }
    // Nothing arrives any more.
    for _ in 0..2 {
        let due = pair.target.poll_timeout().unwrap();
        pair.target.handle_timeout(due);
        let due = pair.initiator.poll_timeout().unwrap();
        pair.initiator.handle_timeout(due);
    }
    pair.wires = Default::default();
    let drained = (pair.target.poll_event(), pair.initiator.poll_event());
    assert!(
        matches!(drained.0, Some(target_side::TargetEvent::Closed(target_side::TargetClosed::PingTimeout))),
        "{drained:?}"
    );
    assert!(matches!(
        drained.1,
        Some(initiator::InitiatorEvent::Closed(initiator::InitiatorClosed::PingTimeout))
    ));
}

#[test]
fn both_ends_close_a_stalled_login() {
    let mut pair = Pair::new(Policy::default(), Policy::default());
    let due = pair.target.poll_timeout().unwrap();
    pair.target.handle_timeout(due - 1);
    assert!(pair.target.poll_event().is_none());
    pair.target.handle_timeout(due);
    pair.initiator.handle_timeout(pair.initiator.poll_timeout().unwrap());
    pair.step(0);
    assert_eq!(
        pair.closed(),
        (Some(&initiator::InitiatorClosed::LoginTimeout), Some(&target_side::TargetClosed::LoginTimeout))
    );
}

#[test]
fn partial_pdu_and_missing_data_time_out() {
    let mut pair = Pair::new(Policy::default(), Policy::default());
    pair.run();
    pair.initiator.submit(command(cdb(0, 0, false, 0, 16), &[], 0)).unwrap();
    pair.step(20);
    pair.wires = Default::default();
    pair.now = 30_000;
    pair.target.handle_timeout(30_000);
    pair.step(0);
    assert!(matches!(pair.closed().1, Some(target_side::TargetClosed::PduTimeout)), "{:?}", pair.closed());

    let asks = Policy { immediate_data: false, initial_r2t: true, ..Policy::default() };
    let mut pair = Pair::with(asks.clone(), asks, Some(TARGET), |_, server| server.ping_after_ms = 1_000_000);
    pair.run();
    pair.initiator.submit(command(cdb(0, 0, false, 0, 16), &[1; 10], 0)).unwrap();
    pair.step(48);
    pair.wires = Default::default();
    pair.target.handle_timeout(30_000);
    pair.step(0);
    assert_eq!(pair.closed().1, Some(&target_side::TargetClosed::TransferTimeout));
}

#[test]
fn stopping_target_requests_logout_and_waits() {
    let mut pair = Pair::new(Policy::default(), Policy::default());
    pair.run();
    pair.target.request_logout(5);
    pair.run();
    assert!(matches!(pair.events.last(), Some(initiator::InitiatorEvent::LogoutRequested { seconds: 5 })));
    let task = pair.initiator.submit(command(cdb(0, 0, false, 8, 16), &[], 8)).unwrap();
    pair.run();
    assert!(pair.outcomes()[&task].is_ok(), "work goes on until logout");
    pair.target.handle_timeout(5000);
    pair.run();
    assert_eq!(pair.closed().1, Some(&target_side::TargetClosed::LogoutTimeout));
}
