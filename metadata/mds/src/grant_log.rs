//! Log of issued credentials and of refused requests: records and their storage.
//!
//! Does: define a record and the log that keeps it; keeps none, or keeps all in memory for tests.
//! Does not: write files; the server passes a [`GrantLog`]. Does not: decide what is recorded;
//! `issue` does.
//! Contract: records contain no keys.
//! Truth: docs/standards/mds/store.md §8.6; docs/adr/0029-record-of-issued-credentials.md.

use std::io;

use parking_lot::Mutex;
use sealstone_mds_protocol::{ErrorCode, FilePath, InodeId, IssueEntry, ObjectRef, record};

use crate::error::{MdsError, Result};

/// The two logs, separate so that neither displaces the other's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssueStream {
    /// Issued credentials.
    Issued = 0,
    /// Refused requests.
    Refused = 1,
}

impl IssueStream {
    pub(crate) fn of(code: u8) -> Result<Self> {
        match code {
            0 => Ok(Self::Issued),
            1 => Ok(Self::Refused),
            _ => Err(MdsError::refused(ErrorCode::Invalid, "no such position in the record")),
        }
    }
}

record! {
    /// A record with its search keys.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct IssueRecord {
        /// Content of the record for clients.
        pub entry: IssueEntry,
        /// Inode number of the file; 0 if there was none.
        pub inode: InodeId,
        /// Objects of the credential.
        pub objects: Vec<ObjectRef>,
        /// Requested path of a refused request.
        pub path: Option<FilePath>,
    }
}

/// Storage of the records.
pub trait GrantLog: Send + Sync + 'static {
    /// Appends a record of this time. After the return it survives the death of the process and,
    /// with `durable`, a power failure.
    ///
    /// # Errors
    /// Those of the disk.
    fn append(&self, stream: IssueStream, time_ms: u64, record: &[u8], durable: bool) -> io::Result<()>;

    /// Reads records from a position on, or (position 0) from about a time on, until `each` returns
    /// false or the byte budget is used. Returns the next position; none at the end.
    ///
    /// # Errors
    /// Those of the disk. A damaged tail is not an error: the log ends there.
    fn read(
        &self,
        stream: IssueStream,
        from: u64,
        since_ms: u64,
        budget: usize,
        each: &mut dyn FnMut(&[u8]) -> bool,
    ) -> io::Result<Option<u64>>;

    /// Returns the time before which the log has no records.
    fn known_since_ms(&self, stream: IssueStream) -> u64;

    /// Whether the log still has all records from this time on.
    fn reaches_back_to(&self, stream: IssueStream, since_ms: u64) -> bool {
        self.known_since_ms(stream) <= since_ms
    }

    /// Whether no record from before the start is missing. `false` after a power failure or if the
    /// log is new.
    fn is_whole(&self) -> bool;

    /// Makes all appended records durable.
    ///
    /// # Errors
    /// Those of the disk.
    fn sync(&self) -> io::Result<()>;
}

/// A log that discards all records: for servers that keep none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGrantLog;

impl GrantLog for NoGrantLog {
    fn append(&self, _: IssueStream, _: u64, _: &[u8], _: bool) -> io::Result<()> {
        Ok(())
    }

    fn read(
        &self,
        _: IssueStream,
        _: u64,
        _: u64,
        _: usize,
        _: &mut dyn FnMut(&[u8]) -> bool,
    ) -> io::Result<Option<u64>> {
        Ok(None)
    }

    fn known_since_ms(&self, _: IssueStream) -> u64 {
        u64::MAX
    }

    fn is_whole(&self) -> bool {
        false
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A log in memory: for simulations and tests.
#[derive(Debug, Default)]
pub struct MemoryGrantLog(Mutex<[Vec<(u64, Vec<u8>)>; 2]>);

impl GrantLog for MemoryGrantLog {
    fn append(&self, stream: IssueStream, time_ms: u64, record: &[u8], _: bool) -> io::Result<()> {
        self.0.lock()[stream as usize].push((time_ms, record.to_vec()));
        Ok(())
    }

    fn read(
        &self,
        stream: IssueStream,
        from: u64,
        since_ms: u64,
        mut budget: usize,
        each: &mut dyn FnMut(&[u8]) -> bool,
    ) -> io::Result<Option<u64>> {
        let logs = self.0.lock();
        let log = &logs[stream as usize];
        for (at, (time_ms, record)) in log.iter().enumerate().skip(from as usize) {
            if budget == 0 {
                return Ok(Some(at as u64));
            }
            budget = budget.saturating_sub(record.len());
            if *time_ms >= since_ms && !each(record) {
                return Ok(Some(at as u64 + 1));
            }
        }
        Ok(None)
    }

    fn known_since_ms(&self, _: IssueStream) -> u64 {
        0
    }

    fn is_whole(&self) -> bool {
        true
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::IssueRecord;
    use crate::records::decode;

    proptest! {
        #[test]
        fn damaged_records_are_errors_not_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(first) = bytes.first_mut() {
                *first = 1;
            }
            let _ = decode::<IssueRecord>(&bytes);
        }
    }
}
