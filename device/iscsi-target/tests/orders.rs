//! Commands that end or find other commands, through a running target.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{ANSWER_MAX, Client, NAME, Running};
use bytes::Bytes;
use sealstone_iscsi::initiator::InitiatorEvent;
use sealstone_iscsi_target::TargetConfig;
use sealstone_scsi::additional::{COMMANDS_CLEARED_BY_ANOTHER_INITIATOR, NEXUS_LOSS_OCCURRED};
use sealstone_scsi::lu::{
    Cost, InitiatorPort, LogicalUnit, NexusId, ScsiCommand, ScsiReply, TaskOrder, TaskResult,
};
use sealstone_scsi::{AdditionalSense, Status};

/// Opcode: takes [`SLOW_TIME`]; counts its start and end.
const SLOW: u8 = 0xC1;
/// Opcode: gives the order of byte 1 about the tag of bytes 2 to 5; answers with the result in one
/// byte.
const ORDER: u8 = 0xC2;
/// Opcode: as [`ORDER`], after a delay.
const LATE: u8 = 0xC3;
/// Opcode: as [`SLOW`], but as a long command.
const LONG: u8 = 0xC4;
/// Runs until a connection ends.
const UNTIL_CLOSED: u8 = 0xC5;
/// Duration of a slow command; byte 1 multiplies it.
const SLOW_TIME: Duration = Duration::from_millis(400);

const ABORT: u8 = 0;
const ABORT_SET: u8 = 1;
const CLEAR_SET: u8 = 2;
const RESET: u8 = 3;
const NEXUS_RESET: u8 = 4;
const QUERY: u8 = 5;
const QUERY_SET: u8 = 6;

const COMPLETE: u8 = 0;
const SUCCEEDED: u8 = 1;

#[derive(Default)]
struct Unit {
    begun: AtomicUsize,
    ended: AtomicUsize,
    resets: AtomicUsize,
    losses: AtomicUsize,
    cleared: AtomicUsize,
    closed: AtomicUsize,
}

impl LogicalUnit for Unit {
    fn cost(&self, _: NexusId, cdb: &[u8]) -> Cost {
        match cdb[0] {
            SLOW | ORDER | LATE | UNTIL_CLOSED => Cost::Blocking,
            LONG => Cost::Long,
            _ => Cost::Inline,
        }
    }

    fn execute(&self, command: ScsiCommand<'_>) -> ScsiReply {
        let cdb = command.cdb;
        match cdb[0] {
            SLOW | LONG => {
                self.begun.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(SLOW_TIME * u32::from(cdb[1]).max(1));
                self.ended.fetch_add(1, Ordering::SeqCst);
                ScsiReply::status(Status::Good)
            }
            UNTIL_CLOSED => {
                self.begun.fetch_add(1, Ordering::SeqCst);
                while self.closed.load(Ordering::SeqCst) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.ended.fetch_add(1, Ordering::SeqCst);
                ScsiReply::status(Status::Good)
            }
            ORDER | LATE => {
                if cdb[0] == LATE {
                    std::thread::sleep(SLOW_TIME);
                }
                let tag = cdb[2..6].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
                let result = command.tasks.order(match cdb[1] {
                    ABORT => TaskOrder::Abort { tag },
                    ABORT_SET => TaskOrder::AbortSet,
                    CLEAR_SET => TaskOrder::ClearSet,
                    RESET => TaskOrder::Reset,
                    NEXUS_RESET => TaskOrder::NexusReset,
                    QUERY => TaskOrder::Query { tag },
                    _ => TaskOrder::QuerySet,
                });
                let byte = match result {
                    TaskResult::Complete => COMPLETE,
                    TaskResult::Succeeded => SUCCEEDED,
                    TaskResult::Rejected => 2,
                    TaskResult::Unfinished => 3,
                };
                ScsiReply::data(Bytes::copy_from_slice(&[byte]), command.data_in_max)
            }
            _ => ScsiReply::status(Status::Good),
        }
    }

    fn nexus_established(&self, _: NexusId, _: &InitiatorPort<'_>) {}
    fn connection_ended(&self, _: NexusId) {
        self.closed.fetch_add(1, Ordering::SeqCst);
    }

    fn nexus_lost(&self, _: NexusId) {}

    fn reset(&self) {
        self.resets.fetch_add(1, Ordering::SeqCst);
    }

    fn attention(&self, _: NexusId, code: AdditionalSense) {
        if code == NEXUS_LOSS_OCCURRED {
            self.losses.fetch_add(1, Ordering::SeqCst);
        }
        if code == COMMANDS_CLEARED_BY_ANOTHER_INITIATOR {
            self.cleared.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn luns_reported(&self, _: NexusId) {}
}

fn order(what: u8, tag: u32) -> [u8; 6] {
    let [a, b, c, d] = tag.to_be_bytes();
    [ORDER, what, a, b, c, d]
}

impl Unit {
    fn wait_begun(&self, count: usize) {
        let begin = Instant::now();
        while self.begun.load(Ordering::SeqCst) < count {
            assert!(begin.elapsed() < ANSWER_MAX, "the command does not start");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Gives an order while slow commands run, and returns its answer. Ended commands are not answered.
fn ask(client: &mut Client, what: u8, tag: u32) -> u8 {
    let response = client.run(&order(what, tag), &[], 1);
    assert_eq!(response.status, 0);
    response.data_in.as_slice()[0]
}

async fn with_target(work: impl FnOnce(Arc<Unit>, std::net::SocketAddr) + Send + 'static) {
    let unit = Arc::new(Unit::default());
    let running = Running::start(TargetConfig::new(NAME), Arc::clone(&unit) as Arc<dyn LogicalUnit>).await;
    let address = running.address;
    tokio::task::spawn_blocking(move || work(unit, address)).await.unwrap();
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_is_found_and_aborted_by_tag() {
    with_target(|unit, address| {
        let mut client = Client::login(address, 1);
        assert_eq!(ask(&mut client, QUERY_SET, 0), COMPLETE, "the querying command does not count");
        client.submit(&[SLOW, 8, 0, 0, 0, 0], &[], 0);
        client.send();
        unit.wait_begun(1);
        assert_eq!(ask(&mut client, QUERY_SET, 0), SUCCEEDED);
        // Tags of our initiator: a serial number and an index into its table.
        let mut tags = (0..4).flat_map(|serial| (0..128).map(move |place| serial << 16 | place));
        let tag = tags.find(|&tag| ask(&mut client, QUERY, tag) == SUCCEEDED).expect("it has a tag");
        assert_eq!(ask(&mut client, ABORT, 0xFFFF_0000), COMPLETE, "a task that does not exist is no error");
        assert_eq!(unit.ended.load(Ordering::SeqCst), 0);
        assert_eq!(ask(&mut client, ABORT, tag), COMPLETE);
        assert_eq!(unit.ended.load(Ordering::SeqCst), 1, "the answer arrived after the command ended");
        assert_eq!(ask(&mut client, QUERY_SET, 0), COMPLETE);
        // The ended command is never answered: the next answer is that of the next command.
        client.submit(&[0; 6], &[], 0);
        let InitiatorEvent::Completed { outcome, .. } = client.event() else { panic!("no answer") };
        assert_eq!(outcome.unwrap().status, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abort_task_set_spares_ordering_command() {
    with_target(|unit, address| {
        let mut client = Client::login(address, 1);
        let mut other = Client::login(address, 2);
        let kept = other.submit(&[SLOW, 0, 0, 0, 0, 0], &[], 0);
        other.send();
        for _ in 0..3 {
            client.submit(&[SLOW, 0, 0, 0, 0, 0], &[], 0);
        }
        client.send();
        unit.wait_begun(4);
        assert_eq!(ask(&mut client, ABORT_SET, 0), COMPLETE);
        assert!(unit.ended.load(Ordering::SeqCst) >= 3);
        let InitiatorEvent::Completed { task, outcome } = other.event() else { panic!("no answer") };
        assert_eq!((task, outcome.unwrap().status), (kept, 0), "the command of another session continues");
        assert_eq!((unit.resets.load(Ordering::SeqCst), unit.losses.load(Ordering::SeqCst)), (0, 0));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_reach_every_session_and_the_unit() {
    with_target(|unit, address| {
        let mut client = Client::login(address, 1);
        let mut other = Client::login(address, 2);
        for (round, what) in [CLEAR_SET, RESET].into_iter().enumerate() {
            other.submit(&[SLOW, 0, 0, 0, 0, 0], &[], 0);
            other.send();
            unit.wait_begun(round + 1);
            assert_eq!(ask(&mut client, what, 0), COMPLETE);
            assert_eq!(unit.resets.load(Ordering::SeqCst), round);
            // The other session's command is never answered, but its next one is.
            let next = other.submit(&[0; 6], &[], 0);
            let InitiatorEvent::Completed { task, .. } = other.event() else { panic!("no answer") };
            assert_eq!(task, next);
            assert_eq!(
                unit.cleared.load(Ordering::SeqCst),
                1,
                "CLEAR TASK SET is reported, a reset reports itself"
            );
        }
        client.submit(&[SLOW, 0, 0, 0, 0, 0], &[], 0);
        client.send();
        unit.wait_begun(3);
        assert_eq!(ask(&mut client, NEXUS_RESET, 0), COMPLETE);
        assert_eq!(unit.losses.load(Ordering::SeqCst), 1);
    })
    .await;
}

/// Orders that wait for commands do not occupy threads that other commands need.
#[test]
fn orders_that_wait_hold_no_thread() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).max_blocking_threads(4).enable_all();
    runtime.build().unwrap().block_on(async {
        let unit = Arc::new(Unit::default());
        let running =
            Running::start(TargetConfig::new(NAME), Arc::clone(&unit) as Arc<dyn LogicalUnit>).await;
        let (address, known) = (running.address, Arc::clone(&unit));
        let clients = std::thread::spawn(move || {
            let mut client = Client::login(address, 1);
            client.submit(&[SLOW, 20, 0, 0, 0, 0], &[], 0);
            client.send();
            known.wait_begun(1);
            for _ in 0..16 {
                client.submit(&order(ABORT_SET, 0), &[], 1);
            }
            client.send();
            let mut other = Client::login(address, 2);
            for _ in 0..4 {
                assert_eq!(other.run(&[SLOW, 0, 0, 0, 0, 0], &[], 0).status, 0);
            }
            assert_eq!(known.ended.load(Ordering::SeqCst), 4, "the first one's long command still runs");
            client
        });
        let client = tokio::task::spawn_blocking(|| clients.join().unwrap()).await.unwrap();
        drop(client);
        running.stop().await;
    });
}

/// Resets by commands are limited like those by task management functions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_by_commands_are_few() {
    with_target(|unit, address| {
        let mut client = Client::login(address, 1);
        let results: Vec<u8> = (0..40).map(|_| ask(&mut client, RESET, 0)).collect();
        let done = results.iter().filter(|result| **result == COMPLETE).count();
        assert_eq!(done, unit.resets.load(Ordering::SeqCst));
        assert!((16..30).contains(&done), "{results:?}");
        assert!(results.iter().all(|result| matches!(*result, COMPLETE | 2)), "{results:?}");
    })
    .await;
}

/// Two commands that end each other do not wait for each other forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_cross_both_come_to_an_end() {
    with_target(|unit, address| {
        let mut client = Client::login(address, 1);
        client.submit(&[SLOW, 0, 0, 0, 0, 0], &[], 0);
        client.send();
        unit.wait_begun(1);
        let orders = [ABORT_SET, ABORT_SET, ABORT_SET].map(|what| client.submit(&order(what, 0), &[], 1));
        // The last order comes from the command that no other one ended.
        let InitiatorEvent::Completed { task, outcome } = client.event() else { panic!("no answer") };
        assert!(orders.contains(&task) && outcome.unwrap().status == 0);
    })
    .await;
}

/// Commands that wait in the connection, because too many run elsewhere, end too when they are
/// ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_queued_commands_do_not_block() {
    with_target(|_, address| {
        let mut client = Client::login(address, 1);
        // Together with the ordering command, as many as run elsewhere at once.
        for _ in 0..31 {
            client.submit(&[SLOW, 3, 0, 0, 0, 0], &[], 0);
        }
        let asks = client.submit(&[LATE, ABORT_SET, 0, 0, 0, 0], &[], 1);
        for _ in 0..3 {
            client.submit(&[0; 6], &[], 0);
        }
        let report_luns = [0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0];
        client.submit(&report_luns, &[], 16);
        let InitiatorEvent::Completed { task, outcome } = client.event() else { panic!("no answer") };
        assert_eq!((task, outcome.unwrap().status), (asks, 0), "those that were ended are not answered");
        assert_eq!(client.run(&[0; 6], &[], 0).status, 0);
    })
    .await;
}

/// A long command that was ended while it waited for a slot does not start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_long_command_does_not_start() {
    let mut config = TargetConfig::new(NAME);
    config.long_per_source_max = 1;
    let unit = Arc::new(Unit::default());
    let running = Running::start(config, Arc::clone(&unit) as Arc<dyn LogicalUnit>).await;
    let address = running.address;
    let work = move || {
        let mut client = Client::login(address, 1);
        for _ in 0..3 {
            client.submit(&[LONG, 3, 0, 0, 0, 0], &[], 0);
        }
        client.send();
        unit.wait_begun(1);
        assert_eq!(ask(&mut client, ABORT_SET, 0), COMPLETE);
        assert_eq!((unit.begun.load(Ordering::SeqCst), unit.ended.load(Ordering::SeqCst)), (1, 1));
    };
    tokio::task::spawn_blocking(work).await.unwrap();
    running.stop().await;
}

/// A running command learns that its connection ended, so that a long one can stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_command_sees_end_of_connection() {
    with_target(|unit, address| {
        let mut client = Client::login(address, 1);
        client.submit(&[UNTIL_CLOSED, 0, 0, 0, 0, 0], &[], 0);
        client.send();
        unit.wait_begun(1);
        drop(client);
        let begin = Instant::now();
        while unit.ended.load(Ordering::SeqCst) == 0 {
            assert!(begin.elapsed() < ANSWER_MAX, "the command does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(unit.closed.load(Ordering::SeqCst), 1);
    })
    .await;
}

/// A connection that breaks while a command waits for others leaves no thread behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_connection_frees_waiting_commands() {
    with_target(|unit, address| {
        let mut client = Client::login(address, 1);
        client.submit(&[SLOW, 0, 0, 0, 0, 0], &[], 0);
        client.submit(&order(ABORT_SET, 0), &[], 1);
        client.send();
        unit.wait_begun(1);
        drop(client);
        let mut again = Client::login(address, 1);
        assert_eq!(again.run(&[0; 6], &[], 0).status, 0, "the session is replaced at once");
    })
    .await;
}
