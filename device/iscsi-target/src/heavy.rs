//! Threads for long commands, so that short commands do not wait behind them.
//!
//! Does: run jobs on its own threads, which have a lower priority than those that serve
//! connections, the shortest job first.
//! Does not: know what a job does, or stop one.
//! Contract: every accepted job runs, even if the pool is dropped meanwhile. A job is overtaken by
//! at most as many bytes of later jobs as it has itself.
//! Truth: docs/adr/0014-threads-for-long-commands.md.

use std::collections::BinaryHeap;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

/// Threads when the system schedules long commands: about as many as one session may run on other
/// threads.
const SLICED_THREADS: usize = 16;
/// Added to the nice value of these threads, which gives them a tenth of the weight of those that
/// serve connections.
const NICE: i32 = 10;

type Work = Box<dyn FnOnce() + Send>;

/// One job.
struct HeavyJob {
    /// Bytes dispatched before the job arrived, plus its own: larger jobs that arrive later run
    /// after it.
    turn: u128,
    /// Serial number. Among equals the earlier one runs first.
    number: u64,
    work: Work,
}

impl HeavyJob {
    const fn order(&self) -> (u128, u64) {
        (self.turn, self.number)
    }
}

impl PartialEq for HeavyJob {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for HeavyJob {}

impl PartialOrd for HeavyJob {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for HeavyJob {
    /// The greatest job leaves a heap first, so the order is reversed.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.order().cmp(&self.order())
    }
}

#[derive(Default)]
struct HeavyQueue {
    waiting: BinaryHeap<HeavyJob>,
    /// Turn of the last job that was dispatched. No sum of bytes overflows 128 bits.
    now: u128,
    jobs: u64,
    threads: usize,
    idle: usize,
    closed: bool,
}

struct HeavyShared {
    state: Mutex<HeavyQueue>,
    job_queued: Condvar,
    threads_max: usize,
}

/// Thread pool for long commands. Threads start when needed and end with the pool.
pub(crate) struct HeavyPool(Arc<HeavyShared>);

impl HeavyPool {
    /// Creates a pool. `sliced`: many threads that the system schedules; otherwise one per core.
    pub(crate) fn new(sliced: bool) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads_max = if sliced { SLICED_THREADS.max(cores) } else { cores };
        Self(Arc::new(HeavyShared { state: Mutex::default(), job_queued: Condvar::new(), threads_max }))
    }

    /// Runs `work`, which computes over `bytes` bytes, on a thread of the pool. Runs it on this
    /// thread if no thread can be started.
    pub(crate) fn run(&self, bytes: u64, work: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        state.jobs += 1;
        let job = HeavyJob { turn: state.now + u128::from(bytes), number: state.jobs, work: Box::new(work) };
        state.waiting.push(job);
        if state.idle >= state.waiting.len() {
            drop(state);
            self.0.job_queued.notify_one();
            return;
        }
        if state.threads >= self.0.threads_max {
            return;
        }
        state.threads += 1;
        drop(state);
        let inner = Arc::clone(&self.0);
        if let Err(error) = thread::Builder::new().name("long".to_owned()).spawn(move || inner.serve()) {
            tracing::warn!(%error, "cannot start a thread for long commands");
            self.0.run_if_no_threads();
        }
    }
}

impl Drop for HeavyPool {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.job_queued.notify_all();
    }
}

impl HeavyShared {
    fn serve(&self) {
        if let Err(error) = rustix::process::nice(NICE) {
            tracing::debug!(%error, "cannot lower the priority of a thread for long commands");
        }
        loop {
            let mut state = self.state.lock();
            let job = loop {
                match state.waiting.pop() {
                    Some(job) => break job,
                    None if state.closed => return,
                    None => {
                        state.idle += 1;
                        self.job_queued.wait(&mut state);
                        state.idle -= 1;
                    }
                }
            };
            state.now = state.now.max(job.turn);
            drop(state);
            (job.work)();
        }
    }

    /// Handles a thread that could not be started: if the pool has none, this thread runs the job.
    fn run_if_no_threads(&self) {
        let mut state = self.state.lock();
        state.threads -= 1;
        let job = if state.threads == 0 { state.waiting.pop() } else { None };
        drop(state);
        if let Some(job) = job {
            (job.work)();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Returns a pool of one thread, which is busy until the sender is dropped.
    fn held() -> (HeavyPool, mpsc::Sender<()>) {
        let inner = HeavyShared { state: Mutex::default(), job_queued: Condvar::new(), threads_max: 1 };
        let long = HeavyPool(Arc::new(inner));
        let (release, held) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        long.run(0, move || {
            begun.send(()).unwrap();
            let _ = held.recv();
        });
        begins.recv().unwrap();
        (long, release)
    }

    #[test]
    fn shortest_job_runs_first_equals_in_order() {
        let (long, release) = held();
        let (done, order) = mpsc::channel();
        for (name, bytes) in
            [("long", 1 << 20), ("short", 1 << 17), ("middle", 1 << 19), ("second short", 1 << 17)]
        {
            let done = done.clone();
            long.run(bytes, move || done.send(name).unwrap());
        }
        drop((release, done));
        assert_eq!(order.iter().collect::<Vec<_>>(), ["short", "second short", "middle", "long"]);
    }

    #[test]
    fn a_long_one_is_not_overtaken_for_ever() {
        let (long, release) = held();
        let long = Arc::new(long);
        let (done, order) = mpsc::channel();
        let first = done.clone();
        long.run(1 << 20, move || first.send(0).unwrap());
        // Each short job queues the next one when it runs.
        fn bring(long: &Arc<HeavyPool>, done: mpsc::Sender<u32>, number: u32) {
            let again = Arc::clone(long);
            long.run(1 << 17, move || {
                done.send(number).unwrap();
                if number < 50 {
                    bring(&again, done, number + 1);
                }
            });
        }
        bring(&long, done, 1);
        drop(release);
        let order: Vec<u32> = order.iter().collect();
        let place = order.iter().position(|number| *number == 0).unwrap();
        assert!((1..=8).contains(&place), "overtaken by {place} jobs, each an eighth of its size");
    }

    #[test]
    fn dropped_pool_still_runs_jobs() {
        let (long, release) = held();
        let (done, order) = mpsc::channel();
        for number in 0..10 {
            let done = done.clone();
            long.run(1, move || done.send(number).unwrap());
        }
        drop((long, release, done));
        assert_eq!(order.iter().count(), 10);
    }
}
