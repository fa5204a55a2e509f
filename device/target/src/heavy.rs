//! Threads for long commands, so that short ones need not wait for them.
//!
//! Does: run jobs on threads of its own, of lower priority than those that serve connections, the shortest first.
//! Does not: know what a job does, or stop one.
//! Contract: every job that was taken runs, even if the pool is dropped meanwhile. A job waits for no more bytes of
//! later ones than it has itself, however many short ones come.
//! Truth: docs/adr/0014-threads-for-long-commands.md.

use std::collections::BinaryHeap;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

/// Threads when long commands get slices: as many at once as one session may have under way elsewhere, or nearly.
const SLICED_THREADS: usize = 16;
/// What is added to the nice value of these threads: a tenth of the weight of those that serve connections.
const NICE: i32 = 10;

type Work = Box<dyn FnOnce() + Send>;

/// One job.
struct Job {
    /// Bytes given out to threads before it came, and its own: what comes later with more goes after it, and what comes
    /// much later does too.
    turn: u128,
    /// Which one it is; the earlier of equals goes first.
    number: u64,
    work: Work,
}

impl Job {
    const fn order(&self) -> (u128, u64) {
        (self.turn, self.number)
    }
}

impl PartialEq for Job {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Job {}

impl PartialOrd for Job {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Job {
    /// The greatest leaves a heap first: that of the earliest turn.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.order().cmp(&self.order())
    }
}

#[derive(Default)]
struct State {
    waiting: BinaryHeap<Job>,
    /// Turn of the last job that was given out: so wide that no sum of bytes ends it.
    now: u128,
    jobs: u64,
    threads: usize,
    idle: usize,
    closed: bool,
}

struct Inner {
    state: Mutex<State>,
    came: Condvar,
    threads_max: usize,
}

/// The pool. Its threads begin when they are needed and end with it.
pub(crate) struct Heavy(Arc<Inner>);

impl Heavy {
    /// `sliced`: many at once, and the system gives each a slice by turns; otherwise one for each core, to its end.
    pub(crate) fn new(sliced: bool) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads_max = if sliced { SLICED_THREADS.max(cores) } else { cores };
        Self(Arc::new(Inner { state: Mutex::default(), came: Condvar::new(), threads_max }))
    }

    /// Runs `work`, which computes over so many bytes, soon and elsewhere. It runs here if no thread can be made.
    pub(crate) fn run(&self, bytes: u64, work: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        state.jobs += 1;
        let job = Job { turn: state.now + u128::from(bytes), number: state.jobs, work: Box::new(work) };
        state.waiting.push(job);
        if state.idle >= state.waiting.len() {
            drop(state);
            self.0.came.notify_one();
            return;
        }
        if state.threads >= self.0.threads_max {
            return;
        }
        state.threads += 1;
        drop(state);
        let inner = Arc::clone(&self.0);
        if let Err(error) = thread::Builder::new().name("long".to_owned()).spawn(move || inner.serve()) {
            tracing::warn!(%error, "no thread for long commands");
            self.0.without_thread();
        }
    }
}

impl Drop for Heavy {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.came.notify_all();
    }
}

impl Inner {
    fn serve(&self) {
        if let Err(error) = rustix::process::nice(NICE) {
            tracing::debug!(%error, "long commands keep their priority");
        }
        loop {
            let mut state = self.state.lock();
            let job = loop {
                match state.waiting.pop() {
                    Some(job) => break job,
                    None if state.closed => return,
                    None => {
                        state.idle += 1;
                        self.came.wait(&mut state);
                        state.idle -= 1;
                    }
                }
            };
            state.now = state.now.max(job.turn);
            drop(state);
            (job.work)();
        }
    }

    /// A thread could not be made: if there is none at all, whoever brought the job does it.
    fn without_thread(&self) {
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

    /// A pool of one thread, which is held until the sender is dropped.
    fn held() -> (Heavy, mpsc::Sender<()>) {
        let inner = Inner { state: Mutex::default(), came: Condvar::new(), threads_max: 1 };
        let long = Heavy(Arc::new(inner));
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
    fn the_shortest_goes_first_and_equals_in_the_order_they_came() {
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
        // Each short one, when it runs, brings the next.
        fn bring(long: &Arc<Heavy>, done: mpsc::Sender<u32>, number: u32) {
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
        assert!((1..=8).contains(&place), "overtaken by {place}, each an eighth of it");
    }

    #[test]
    fn whoever_drops_the_pool_loses_no_job() {
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
