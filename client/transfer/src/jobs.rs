//! Transfer of several entries in parallel.

use std::future::Future;

use sealstone_failure::Outcome;
use tokio::task::JoinSet;

use crate::report::{EntryResult, TransferReport};

/// Number of parallel files. Small files wait for round trips and flushes, which overlap.
const FILES_AT_ONCE: usize = 16;

/// One entry to be transferred.
pub(crate) trait Job: Send + 'static {
    /// Returns the path for messages.
    fn label(&self) -> Vec<u8>;
}

/// Runs all jobs, several in parallel, and counts their results. Returns false if a fatal failure
/// ended it early.
pub(crate) async fn run_all<J: Job, F>(
    jobs: Vec<J>,
    report: &mut TransferReport,
    start: impl Fn(J) -> F,
) -> bool
where
    F: Future<Output = Outcome<EntryResult>> + Send + 'static,
{
    let mut waiting = jobs.into_iter();
    let mut running = JoinSet::new();
    let mut ends = false;
    loop {
        while !ends && running.len() < FILES_AT_ONCE {
            let Some(job) = waiting.next() else { break };
            let (label, work) = (job.label(), start(job));
            running.spawn(async move { (label, work.await) });
        }
        let Some(joined) = running.join_next().await else { break };
        let (label, outcome) = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        match outcome {
            Ok(done) => report.done(|| label, done),
            // Parallel jobs fail for the same reason: it is reported once.
            Err(failure) if failure.fatal && ends => report.leave_out(1),
            Err(failure) => {
                ends |= failure.fatal;
                report.fail(failure);
            }
        }
    }
    report.leave_out(waiting.len() as u64);
    !ends
}
