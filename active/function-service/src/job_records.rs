//! Asynchronous jobs in a small file, so that they are reported as lost after a crash.
//!
//! Does: store which asynchronous jobs are queued or run.
//! Does not: store arguments or results.
//! Contract: a job is stored before its id is returned to the client, and removed when it has
//! ended. A damaged file is replaced: the device must start without it.
//!
//! Layout: magic (8 bytes), then for each job its id (16), user (16), and the function's partition
//! and number (8 each, big-endian).

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use parking_lot::Mutex;
use sealstone_osd::ObjectId;
use sealstone_osd::function::JobId;

use crate::job_table::{JobOwner, JobUser};

const MAGIC: &[u8; 8] = b"OSDJOB1\n";
const ENTRY_LEN: usize = 48;
/// Maximum number of stored jobs; those that are queued or run are fewer.
const ENTRIES_MAX: usize = 4096;

/// The file.
pub(crate) struct JobRecords {
    path: PathBuf,
    jobs: Mutex<BTreeMap<JobId, JobOwner>>,
}

impl JobRecords {
    /// Opens the file; returns the jobs that were in it, which are lost.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(crate) fn open(path: PathBuf) -> io::Result<(Self, Vec<(JobId, JobOwner)>)> {
        let stored = sealstone_slots::read(&path, (MAGIC.len() + ENTRIES_MAX * ENTRY_LEN) as u64);
        let jobs = stored.and_then(|stored| match stored {
            None => Ok(Vec::new()),
            Some(bytes) => parse(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        });
        let (lost, is_damaged) = match jobs {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::error!(path = %path.display(), "the file of asynchronous jobs is damaged; its jobs are unknown");
                (Vec::new(), true)
            }
            jobs => (jobs?, false),
        };
        let records = Self { path, jobs: Mutex::default() };
        if is_damaged || !lost.is_empty() {
            records.store(&records.jobs.lock())?;
        }
        Ok((records, lost))
    }

    /// Stores a job durably.
    ///
    /// # Errors
    /// The file cannot be written; then the job must not start.
    pub(crate) fn add(&self, id: JobId, owner: JobOwner) -> io::Result<()> {
        let mut jobs = self.jobs.lock();
        jobs.insert(id, owner);
        self.store(&jobs).inspect_err(|_| {
            jobs.remove(&id);
        })
    }

    /// Removes a job that has ended. If that fails it is reported as lost after a restart.
    pub(crate) fn remove(&self, id: JobId) -> io::Result<()> {
        let mut jobs = self.jobs.lock();
        if jobs.remove(&id).is_some() { self.store(&jobs) } else { Ok(()) }
    }

    fn store(&self, jobs: &BTreeMap<JobId, JobOwner>) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        for (id, owner) in jobs.iter().take(ENTRIES_MAX) {
            bytes.extend_from_slice(&id.0);
            bytes.extend_from_slice(&owner.user.0);
            bytes.extend_from_slice(&owner.function.partition.to_be_bytes());
            bytes.extend_from_slice(&owner.function.object.to_be_bytes());
        }
        sealstone_slots::write(&self.path, &bytes)
    }
}

fn parse(bytes: &[u8]) -> Option<Vec<(JobId, JobOwner)>> {
    let entries = bytes.strip_prefix(MAGIC)?;
    let (entries, rest) = entries.as_chunks::<ENTRY_LEN>();
    let entry = |entry: &[u8; ENTRY_LEN]| {
        let (id, rest) = entry.split_first_chunk::<16>()?;
        let (user, rest) = rest.split_first_chunk::<16>()?;
        let (partition, object) = rest.split_first_chunk::<8>()?;
        let function =
            ObjectId::new(u64::from_be_bytes(*partition), u64::from_be_bytes(object.try_into().ok()?));
        Some((JobId(*id), JobOwner { user: JobUser(*user), function }))
    };
    if rest.is_empty() { entries.iter().map(entry).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(user: u8) -> JobOwner {
        JobOwner { user: JobUser([user; 16]), function: ObjectId::new(0x10000, u64::from(user)) }
    }

    #[test]
    fn unfinished_jobs_are_lost_after_reopening() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs");
        let (records, lost) = JobRecords::open(path.clone()).unwrap();
        assert!(lost.is_empty());
        for number in 1..=3 {
            records.add(JobId([number; 16]), owner(number)).unwrap();
        }
        records.remove(JobId([2; 16])).unwrap();
        drop(records);
        let (_, lost) = JobRecords::open(path.clone()).unwrap();
        assert_eq!(lost, [(JobId([1; 16]), owner(1)), (JobId([3; 16]), owner(3))]);
        assert!(JobRecords::open(path).unwrap().1.is_empty(), "they are lost once");
    }

    #[test]
    fn damaged_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs");
        sealstone_slots::write(&path, b"OSDJOB1\nshort").unwrap();
        let cut = std::fs::read(&path).unwrap()[..5000].to_vec();
        for damaged in [&b"OSDJOB1\nshort"[..], b"other", &cut] {
            std::fs::write(&path, damaged).unwrap();
            assert!(JobRecords::open(path.clone()).unwrap().1.is_empty());
            let (records, _) = JobRecords::open(path.clone()).unwrap();
            records.add(JobId([1; 16]), owner(1)).unwrap();
            assert_eq!(JobRecords::open(path.clone()).unwrap().1.len(), 1);
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(JobRecords::open(path).is_err(), "it cannot be read");
    }
}
