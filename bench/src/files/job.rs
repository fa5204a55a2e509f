//! What clients are told to do, and who can do it.
//!
//! Does: name the steps, run one of them by several clients at once. Does not: know what is behind a client.
//! Contract: the time of a step is from the moment when the first client begins to the moment when the last one has ended; a
//! client that runs out of time says how far it came, and that is what counts.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;

/// Bytes of one write or read of a stream.
pub(crate) const PIECE: usize = 1 << 20;
/// Bytes of a small file.
pub(crate) const SMALL: usize = 4096;

/// How long steps that make nothing may take.
const REST_MAX: Duration = Duration::from_secs(300);

/// One kind of work, done to each of several files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The directory that all others are about.
    MakeDirectory,
    /// Made and closed, empty.
    Create,
    Stat,
    /// All names of the directory; counts entries.
    List,
    /// To a name of the second kind.
    Rename,
    Unlink,
    /// Made, [`SMALL`] bytes written, closed.
    Put,
    /// Opened, read, closed; nothing of it in the page cache of whoever reads.
    Get,
    /// One file in pieces, closed; counts pieces.
    Write,
    /// The same and synced.
    WriteSync,
    /// It is read in pieces, nothing of it in the page cache.
    Read,
    RemoveDirectory,
}

/// A step, for one client.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) step: Step,
    /// Without a slash.
    pub(crate) directory: String,
    /// Files are called by this letter and a number.
    pub(crate) letter: char,
    /// Files, or pieces of one file.
    pub(crate) count: u64,
    /// No more is begun after this.
    pub(crate) until: Instant,
    /// What was done is on the medium before the next is begun: directory and file are synced.
    pub(crate) durable: bool,
}

impl Job {
    pub(crate) fn name(&self, number: u64) -> String {
        format!("{}{number}", self.letter)
    }

    /// What a file is renamed to.
    pub(crate) fn other_name(&self, number: u64) -> String {
        format!("r{number}")
    }

    /// Does `work` with one number after the other while there is time; how many were done.
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
pub(crate) trait Client: Send {
    /// Does a job; how much of it was done.
    fn perform(&mut self, job: &Job) -> Outcome<u64>;
}

/// A file system that is measured.
pub(crate) trait Subject {
    fn name(&self) -> &str;
    /// One more client.
    fn client(&self) -> Outcome<Box<dyn Client>>;
    /// Processes that do the work, besides this one.
    fn processes(&self) -> Vec<u32>;
}

/// Clients at work, each in a directory of its own.
pub(crate) struct Crew {
    clients: Vec<Box<dyn Client>>,
    directories: Vec<String>,
    /// How far each came with what others build on.
    reached: Vec<u64>,
    /// How long one step may take.
    at_most: Duration,
    durable: bool,
}

impl Crew {
    /// So many clients, each to do `count` of everything.
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

    /// From here on everything is made durable, one by one.
    pub(crate) const fn be_durable(&mut self) {
        self.durable = true;
    }

    /// Has a step done by all of them; operations, and seconds. What makes something is cut off when its time is up, and
    /// what was not made is not asked for later; all else has to get through what there is.
    pub(crate) fn step(&mut self, step: Step, letter: char) -> Outcome<(u64, f64)> {
        let all = self.reached.clone();
        if matches!(step, Step::Create | Step::Put | Step::Write | Step::WriteSync) {
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

    /// Work that is not measured: `once` for each client, or as much as there is.
    pub(crate) fn aside(&mut self, step: Step, letter: char, once: bool) -> Outcome {
        let count = if once { vec![1; self.clients.len()] } else { self.reached.clone() };
        let (done, _) = self.run(step, letter, &count, REST_MAX)?;
        if done == count { Ok(()) } else { Err(format!("{step:?} did not end in time").into()) }
    }

    fn run(
        &mut self,
        step: Step,
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
                        // Each by itself: whoever waits for all of them may be woken late.
                        let begin = Instant::now();
                        let job = Job { step, directory, letter, count, until: begin + at_most, durable };
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

    impl Client for Counter {
        fn perform(&mut self, job: &Job) -> Outcome<u64> {
            let stop = self.0;
            job.each(|number| if number < stop { Ok(()) } else { Err("too far".into()) })
        }
    }

    struct Counters;

    impl Subject for Counters {
        fn name(&self) -> &str {
            "counters"
        }
        fn client(&self) -> Outcome<Box<dyn Client>> {
            Ok(Box::new(Counter(10)))
        }
        fn processes(&self) -> Vec<u32> {
            Vec::new()
        }
    }

    #[test]
    fn who_runs_out_of_time_says_how_far_he_came_and_no_more_is_asked_of_him() {
        let mut crew = Crew::new(&Counters, 3, "t", 10, Duration::from_secs(60)).unwrap();
        assert_eq!(crew.step(Step::Create, 'f').unwrap().0, 30);
        crew.at_most = Duration::ZERO;
        assert_eq!(crew.step(Step::Create, 'f').unwrap().0, 0);
        crew.at_most = Duration::from_secs(60);
        assert_eq!(crew.step(Step::Stat, 'f').unwrap().0, 0);
    }

    #[test]
    fn what_one_client_meets_ends_the_step() {
        let mut crew = Crew::new(&Counters, 2, "t", 11, Duration::from_secs(60)).unwrap();
        assert!(crew.step(Step::Create, 'f').unwrap_err().to_string().contains("too far"));
    }
}
