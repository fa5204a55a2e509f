//! Jobs of clients, and their execution.
//!
//! Does: defines the steps, and runs one of them with several clients concurrently.
//! Does not: know what a client uses.
//! Contract: a step lasts from the start of the first client to the end of the last one; a client
//! that runs out of time reports its progress, which is what counts.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;

/// Bytes of one write or read of a stream.
pub(crate) const PIECE: usize = 1 << 20;
/// Bytes of a small file.
pub(crate) const SMALL: usize = 4096;

/// Time limit of steps that create nothing.
const REST_MAX: Duration = Duration::from_secs(300);

/// One kind of work, done to each of several files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileOperation {
    /// Creates the directory of all other steps.
    MakeDirectory,
    /// Creates and closes an empty file.
    Create,
    Stat,
    /// Lists all names of the directory; counts entries.
    List,
    /// Renames to the second name of a file.
    Rename,
    Unlink,
    /// Creates a file, writes [`SMALL`] bytes, closes.
    Put,
    /// Opens, reads, closes; nothing of the file is in the client's page cache.
    Get,
    /// Writes one file in pieces, closes; counts pieces.
    Write,
    /// Writes and syncs one file; counts pieces.
    WriteSync,
    /// Reads the file in pieces, with an empty page cache.
    Read,
    RemoveDirectory,
}

/// A step for one client.
#[derive(Clone, Debug)]
pub(crate) struct ClientJob {
    pub(crate) step: FileOperation,
    /// Name without a slash.
    pub(crate) directory: String,
    /// Files are named by this letter and a number.
    pub(crate) letter: char,
    /// Number of files, or of pieces of one file.
    pub(crate) count: u64,
    /// Time after which nothing is started.
    pub(crate) until: Instant,
    /// Whether each operation is durable before the next: directory and file are synced.
    pub(crate) durable: bool,
}

impl ClientJob {
    pub(crate) fn name(&self, number: u64) -> String {
        format!("{}{number}", self.letter)
    }

    /// Returns the second name of a file.
    pub(crate) fn other_name(&self, number: u64) -> String {
        format!("r{number}")
    }

    /// Calls `work` with one number after the other while there is time, and returns how many.
    pub(crate) fn each(&self, mut work: impl FnMut(u64) -> Outcome) -> Outcome<u64> {
        for number in 0..self.count {
            if Instant::now() >= self.until {
                return Ok(number);
            }
            work(number)?;
        }
        Ok(self.count)
    }
}

/// A client of a file system.
pub(crate) trait JobClient: Send {
    /// Runs a job and returns its progress.
    fn perform(&mut self, job: &ClientJob) -> Outcome<u64>;
}

/// A measured file system.
pub(crate) trait Subject {
    fn name(&self) -> &str;
    /// Creates another client.
    fn client(&self) -> Outcome<Box<dyn JobClient>>;
    /// Returns the processes that do the work, besides this one.
    fn processes(&self) -> Vec<u32>;
}

/// Running clients, each in its own directory.
pub(crate) struct ClientGroup {
    clients: Vec<Box<dyn JobClient>>,
    directories: Vec<String>,
    /// Progress of each client, on which later steps build.
    reached: Vec<u64>,
    /// Time limit of one step.
    at_most: Duration,
    durable: bool,
}

impl ClientGroup {
    /// Creates clients, each to do `count` of everything.
    pub(crate) fn new(
        subject: &dyn Subject,
        clients: usize,
        turn: &str,
        count: u64,
        at_most: Duration,
    ) -> Outcome<Self> {
        Ok(Self {
            clients: (0..clients).map(|_| subject.client()).collect::<Outcome<_>>()?,
            directories: (0..clients).map(|client| format!("{turn}-{client}")).collect(),
            reached: vec![count; clients],
            at_most,
            durable: false,
        })
    }

    /// Makes each operation durable from now on.
    pub(crate) const fn be_durable(&mut self) {
        self.durable = true;
    }

    /// Runs a step with all clients; returns operations and seconds. Creating steps stop at the
    /// time limit, and later steps skip what was not created; all other steps must complete.
    pub(crate) fn step(&mut self, step: FileOperation, letter: char) -> Outcome<(u64, f64)> {
        let all = self.reached.clone();
        if matches!(
            step,
            FileOperation::Create | FileOperation::Put | FileOperation::Write | FileOperation::WriteSync
        ) {
            let (done, seconds) = self.run(step, letter, &all, self.at_most)?;
            self.reached.clone_from(&done);
            return Ok((done.iter().sum(), seconds));
        }
        let (done, seconds) = self.run(step, letter, &all, REST_MAX)?;
        match done == all {
            true => Ok((done.iter().sum(), seconds)),
            false => Err(format!("{step:?} did not end within {} s", REST_MAX.as_secs()).into()),
        }
    }

    /// Runs a step without measuring: once per client, or completely.
    pub(crate) fn aside(&mut self, step: FileOperation, letter: char, once: bool) -> Outcome {
        let count = if once { vec![1; self.clients.len()] } else { self.reached.clone() };
        let (done, _) = self.run(step, letter, &count, REST_MAX)?;
        if done == count { Ok(()) } else { Err(format!("{step:?} did not end in time").into()) }
    }

    fn run(
        &mut self,
        step: FileOperation,
        letter: char,
        counts: &[u64],
        at_most: Duration,
    ) -> Outcome<(Vec<u64>, f64)> {
        let (barrier, durable) = (Barrier::new(self.clients.len()), self.durable);
        let ended = thread::scope(|scope| {
            let threads: Vec<_> = (self.clients.iter_mut().zip(&self.directories).zip(counts))
                .map(|((client, directory), &count)| {
                    let (barrier, directory) = (&barrier, directory.clone());
                    scope.spawn(move || {
                        barrier.wait();
                        // Measured in each client: a thread that waits for all may wake late.
                        let begin = Instant::now();
                        let job =
                            ClientJob { step, directory, letter, count, until: begin + at_most, durable };
                        client.perform(&job).map(|done| (done, begin, Instant::now()))
                    })
                })
                .collect();
            let join = |thread: thread::ScopedJoinHandle<'_, Outcome<_>>| {
                thread.join().unwrap_or_else(|_| Err("a client panicked".into()))
            };
            threads.into_iter().map(join).collect::<Outcome<Vec<_>>>()
        })?;
        let begin = ended.iter().map(|(_, begin, _)| *begin).min();
        let end = ended.iter().map(|(_, _, end)| *end).max();
        let seconds = begin.zip(end).map_or(0.0, |(begin, end)| (end - begin).as_secs_f64());
        Ok((ended.into_iter().map(|(done, ..)| done).collect(), seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter(u64);

    impl JobClient for Counter {
        fn perform(&mut self, job: &ClientJob) -> Outcome<u64> {
            let stop = self.0;
            job.each(|number| if number < stop { Ok(()) } else { Err("too far".into()) })
        }
    }

    struct Counters;

    impl Subject for Counters {
        fn name(&self) -> &str {
            "counters"
        }
        fn client(&self) -> Outcome<Box<dyn JobClient>> {
            Ok(Box::new(Counter(10)))
        }
        fn processes(&self) -> Vec<u32> {
            Vec::new()
        }
    }

    #[test]
    fn timeout_reports_progress_and_ends_the_client() {
        let mut crew = ClientGroup::new(&Counters, 3, "t", 10, Duration::from_secs(60)).unwrap();
        assert_eq!(crew.step(FileOperation::Create, 'f').unwrap().0, 30);
        crew.at_most = Duration::ZERO;
        assert_eq!(crew.step(FileOperation::Create, 'f').unwrap().0, 0);
        crew.at_most = Duration::from_secs(60);
        assert_eq!(crew.step(FileOperation::Stat, 'f').unwrap().0, 0);
    }

    #[test]
    fn failure_of_one_client_ends_step() {
        let mut crew = ClientGroup::new(&Counters, 2, "t", 11, Duration::from_secs(60)).unwrap();
        assert!(crew.step(FileOperation::Create, 'f').unwrap_err().to_string().contains("too far"));
    }
}
