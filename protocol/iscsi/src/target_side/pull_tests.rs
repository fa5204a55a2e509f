//! Pulled data-out: which commands are sent R2Ts, and when.

use alloc::{collections::VecDeque, vec, vec::Vec};

use super::tests::{Bench, WRITE, answers, data_out};
use super::{CommandReply, ReceivedCommand, TargetEvent};
use crate::{
    TaskId, limits,
    pdu::{self, Bhs, NO_TAG, opcode},
};

const KEYS: &str =
    "InitialR2T=No|ImmediateData=Yes|FirstBurstLength=1024|MaxBurstLength=1048576|MaxOutstandingR2T=2|";
const BURST: u32 = limits::PULL_BURST;

/// Returns the R2Ts among the sent PDUs: tag, transfer tag, offset, length.
fn asked(output: &[(Bhs, Vec<u8>)]) -> Vec<(u32, u32, u32, u32)> {
    let r2t =
        output.iter().filter(|(bhs, _)| pdu::opcode_of(bhs) == opcode::R2T).map(|(bhs, _)| pdu::R2t::of(bhs));
    r2t.map(|pdu| (pdu.tag.get(), pdu.transfer.get(), pdu.offset.get(), pdu.desired.get())).collect()
}

impl Bench {
    fn write(&mut self, tag: u32, bytes: u32) -> Vec<(u32, u32, u32, u32)> {
        let command = self.command(tag, WRITE, bytes, &[]);
        asked(&self.say(&command))
    }

    /// Sends the requested data.
    fn give(&mut self, (tag, transfer, offset, length): (u32, u32, u32, u32)) -> Vec<(u32, u32, u32, u32)> {
        let data = vec![7; length as usize];
        asked(&self.say(&data_out(tag, transfer, 0x80, 0, offset, &data)))
    }

    /// Returns the command that is ready to be executed.
    fn ready(&mut self) -> Option<TaskId> {
        self.target.poll_event().map(|event| match event {
            TargetEvent::Command(ReceivedCommand { task, .. }) => task,
            other => panic!("{other:?}"),
        })
    }
}

#[test]
fn pulled_data_is_limited_and_served_in_order() {
    let mut bench = Bench::pulling(2 * BURST, KEYS);
    let first = bench.write(1, 2 * BURST);
    assert_eq!(first.iter().map(|r2t| (r2t.2, r2t.3)).collect::<Vec<_>>(), [(0, BURST), (BURST, BURST)]);
    assert_eq!(bench.write(2, BURST), [], "both bursts are the first one's");
    assert_eq!(bench.write(3, 100), [], "and whoever came later waits behind the second");
    assert_eq!(bench.give(first[0]), []);
    assert_eq!(bench.give(first[1]), [], "data that came makes no room before it was worked on");
    let task = bench.ready().expect("all its data is there");
    assert!(bench.ready().is_none());
    bench.target.complete(task, CommandReply::default());
    let next = asked(&answers(&mut bench.target));
    assert_eq!(next.iter().map(|r2t| (r2t.0, r2t.3)).collect::<Vec<_>>(), [(2, BURST), (3, 100)]);
}

#[test]
fn one_command_may_always_request_data() {
    let mut bench = Bench::pulling(1, KEYS);
    let mut r2ts = bench.write(1, BURST);
    assert_eq!(r2ts.len(), 1);
    assert_eq!((bench.write(2, BURST), bench.write(3, 50)), (vec![], vec![]));
    assert_eq!(bench.give(r2ts.remove(0)), []);
    let task = bench.ready().expect("all its data is there");
    bench.target.complete(task, CommandReply::default());
    let next = asked(&answers(&mut bench.target));
    assert_eq!(next.iter().map(|r2t| (r2t.0, r2t.3)).collect::<Vec<_>>(), [(2, BURST)]);
    assert_eq!(bench.give(next[0]), []);
    let task = bench.ready().expect("all its data is there");
    bench.target.complete(task, CommandReply::default());
    assert_eq!(asked(&answers(&mut bench.target)).first().map(|r2t| (r2t.0, r2t.3)), Some((3, 50)));
}

/// Found with both ends together: one write longer than the limit waited for itself.
#[test]
fn single_command_may_exceed_the_pull_limit() {
    let mut bench = Bench::pulling(1, KEYS);
    let mut asked = VecDeque::from(bench.write(1, 5 * BURST));
    let mut given = 0;
    while let Some(r2t) = asked.pop_front() {
        given += 1;
        asked.extend(bench.give(r2t));
    }
    assert_eq!(given, 5);
    assert!(bench.ready().is_some());
}

#[test]
fn aborted_command_releases_its_pull_share() {
    let mut bench = Bench::pulling(BURST, KEYS);
    assert_eq!(bench.write(1, BURST).len(), 1);
    assert_eq!(bench.write(2, BURST), []);
    let mut abort = pdu::TaskManagement::new(opcode::TASK_MANAGEMENT | opcode::IMMEDIATE, 0x81);
    abort.tag.set(9);
    abort.referenced.set(1);
    let output = bench.say(&abort.wire());
    assert_eq!(asked(&output).first().map(|r2t| r2t.0), Some(2), "{output:?}");
}

/// Found with both ends together: the end of one command requested data of the next that was
/// already being sent.
#[test]
fn arriving_immediate_data_is_not_requested() {
    let mut bench = Bench::pulling(BURST, KEYS);
    let read = bench.command(1, 0xC0, 0, &[]);
    assert_eq!(bench.say(&read).len(), 0);
    let task = bench.ready().expect("it has no data-out");
    let (whole, more) = (bench.command(2, WRITE, 600, &[7; 600]), bench.command(3, WRITE, 700, &[7; 600]));
    assert_eq!(asked(&bench.say(&whole[..500])), []);
    bench.target.complete(task, CommandReply::default());
    assert_eq!(asked(&answers(&mut bench.target)), []);
    assert_eq!(asked(&bench.say(&whole[500..])), []);
    let task = bench.ready().expect("all its data is there");
    assert_eq!(asked(&bench.say(&more[..500])), []);
    bench.target.complete(task, CommandReply::default());
    let output = answers(&mut bench.target);
    assert_eq!(output.len(), 2, "an answer and a request: {output:?}");
    let rest = asked(&output)[0];
    assert_eq!((rest.0, rest.2, rest.3), (3, 600, 100));
    assert_eq!(asked(&bench.say(&more[500..])), []);
    assert!(bench.ready().is_none(), "100 bytes are missing");
    assert_eq!(bench.give(rest), []);
    assert!(bench.ready().is_some());
}

#[test]
fn command_waiting_for_r2t_does_not_time_out() {
    let mut bench = Bench::pulling(BURST, KEYS);
    let r2ts = bench.write(1, BURST);
    assert_eq!(bench.write(2, BURST), []);
    assert_eq!(bench.give(r2ts[0]), []);
    let task = bench.ready().expect("all its data is there");
    // The device is slow with the first; the second has nothing to send meanwhile.
    let due = bench.target.poll_timeout().unwrap();
    bench.target.handle_timeout(due);
    assert!(bench.ready().is_none(), "a ping at most");
    let pings = answers(&mut bench.target);
    assert!(pings.iter().all(|(bhs, _)| pdu::opcode_of(bhs) == opcode::NOP_IN), "{pings:?}");
    bench.target.complete(task, CommandReply::default());
    assert_eq!(asked(&answers(&mut bench.target)).len(), 1);
    assert_ne!(r2ts[0].1, NO_TAG);
}
