//! The list of started jobs, in a private file beside the session file.
//!
//! Does: adds jobs, and finds them by the beginning of their id.
//! Does not: know their state; devices do.
//! Contract: the file has at most `RECORDS_MAX` jobs, the newest. It contains no credentials. An
//! asynchronous job is recorded before it starts. A lock file orders the changes of commands that
//! run at the same time.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use sealstone_client::functions::JobHandle;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome, secret_file};
use sealstone_mds_protocol::{DeviceId, FilePath, IntentId, unshown};
use sealstone_osd::ObjectId;
use sealstone_osd::function::{JOB_ID_LEN, JobId};
use serde::{Deserialize, Serialize};

/// Maximum number of recorded jobs.
const RECORDS_MAX: usize = 1000;
/// Maximum bytes of the file.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of file names in a record.
const NAMES_MAX: usize = 8;

/// Time in milliseconds after which a device refuses the start of a recorded job, because the
/// credential has expired.
const STARTING_MS: u64 = 300_000;

/// A started job.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct JobRecord {
    /// Job id, in hex digits.
    pub job: String,
    /// Path of the function, escaped for display.
    pub function: String,
    device: u32,
    /// Name of the device.
    pub device_name: String,
    partition: u64,
    object: u64,
    /// Files, escaped for display; the first ones.
    pub files: Vec<String>,
    /// Whether the device has not confirmed the start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    starting: bool,
    /// Reservation of the object for a long result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
    /// Time at which the job was recorded, milliseconds since 1970.
    pub recorded_ms: u64,
}

/// The file with the records.
#[derive(Clone)]
pub struct JobRecords {
    path: PathBuf,
}

#[derive(Default, Deserialize, Serialize)]
struct RecordFile {
    jobs: Vec<JobRecord>,
}

impl JobRecord {
    /// Returns the record of a job.
    #[must_use]
    pub fn new(handle: &JobHandle, files: &[String], reserved: Option<IntentId>) -> Self {
        Self {
            job: handle.job.to_string(),
            function: handle.function.shown().into_owned(),
            device: handle.device.0,
            device_name: handle.device_name.clone(),
            partition: handle.object.partition,
            object: handle.object.object,
            files: files.iter().take(NAMES_MAX).cloned().collect(),
            starting: false,
            reserved: reserved.map(|reserved| reserved.0),
            recorded_ms: now_ms(),
        }
    }

    /// Returns the record of a job that is about to start.
    #[must_use]
    pub fn starting(handle: &JobHandle, files: &[String], reserved: Option<IntentId>) -> Self {
        Self { starting: true, ..Self::new(handle, files, reserved) }
    }

    /// Whether the device may receive the start of the job later.
    #[must_use]
    pub fn may_start(&self) -> bool {
        self.starting && now_ms().saturating_sub(self.recorded_ms) < STARTING_MS
    }

    /// Returns the handle of the job.
    ///
    /// # Errors
    /// The record is damaged.
    pub fn handle(&self) -> Outcome<JobHandle> {
        let damaged = || Failure::operation("damaged record of a job").at(&self.job);
        let function =
            unshown(&self.function).and_then(|bytes| FilePath::new(bytes).ok()).ok_or_else(damaged)?;
        Ok(JobHandle {
            function,
            device: DeviceId(self.device),
            device_name: self.device_name.clone(),
            object: ObjectId::new(self.partition, self.object),
            job: parse_id(&self.job).ok_or_else(damaged)?,
        })
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn parse_id(text: &str) -> Option<JobId> {
    let id: [u8; JOB_ID_LEN] = secret_file::from_hex(text)?.as_slice().try_into().ok()?;
    Some(JobId(id))
}

impl JobRecords {
    /// Returns the records beside a session file.
    #[must_use]
    pub fn beside(session_file: &Path) -> Self {
        Self { path: session_file.with_extension("jobs.toml") }
    }

    fn read(&self) -> Outcome<Vec<JobRecord>> {
        if !self.path.exists() {
            return Ok(Vec::new());
        }
        let text = secret_file::read_up_to(&self.path, FILE_BYTES_MAX)?;
        let file: RecordFile = toml::from_str(&text).map_err(|error| {
            Failure::operation(error.message())
                .at(self.path.shown())
                .hint("remove the file; the jobs continue on their devices")
        })?;
        Ok(file.jobs)
    }

    fn write(&self, jobs: Vec<JobRecord>) -> Outcome {
        let text = toml::to_string(&RecordFile { jobs }).map_err(Failure::operation)?;
        secret_file::write(&self.path, text.as_bytes())
    }

    /// Changes the records while no other command of the session does.
    fn change(&self, change: impl FnOnce(&mut Vec<JobRecord>)) -> Outcome {
        let path = self.path.with_extension("lock");
        let at = |error: std::io::Error| Failure::from(error).at(path.shown());
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        let lock = options.open(&path).map_err(at)?;
        lock.lock().map_err(at)?;
        let mut jobs = self.read()?;
        change(&mut jobs);
        self.write(jobs)
    }

    /// Adds jobs, or replaces their records; the oldest ones beyond the limit are dropped.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn add(&self, new: &[JobRecord]) -> Outcome {
        if new.is_empty() {
            return Ok(());
        }
        self.change(|jobs| {
            jobs.retain(|known| !new.iter().any(|new| new.job == known.job));
            jobs.extend_from_slice(new);
            let surplus = jobs.len().saturating_sub(RECORDS_MAX);
            jobs.drain(..surplus);
        })
    }

    /// Removes the reservation of a job that does not need it.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn clear_reservation(&self, job: &str) -> Outcome {
        let clear = |known: &mut JobRecord| known.reserved = None;
        self.change(|jobs| jobs.iter_mut().filter(|known| known.job == job).for_each(clear))
    }

    /// Removes jobs that their devices do not know any more.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn forget(&self, ids: &[String]) -> Outcome {
        if ids.is_empty() {
            return Ok(());
        }
        self.change(|jobs| jobs.retain(|known| !ids.contains(&known.job)))
    }

    /// Returns all records, the oldest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn all(&self) -> Outcome<Vec<JobRecord>> {
        self.read()
    }

    /// Returns the job whose id begins with this text.
    ///
    /// # Errors
    /// The file cannot be read, or no job or several begin so.
    pub fn find(&self, beginning: &str) -> Outcome<JobRecord> {
        let wanted = beginning.to_ascii_lowercase();
        let mut found = self.read()?.into_iter().filter(|known| known.job.starts_with(&wanted));
        match (found.next(), found.next()) {
            (Some(one), None) if !wanted.is_empty() => Ok(one),
            (Some(_), _) => Err(Failure::usage("more than one job id begins so")
                .at(beginning)
                .hint("`sealstone job ls` shows the ids")),
            (None, _) => Err(Failure::not_found("no such job")
                .at(beginning)
                .hint("`sealstone job ls` shows the asynchronous and failed jobs of this session")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: u8) -> JobRecord {
        let handle = JobHandle {
            function: FilePath::new(b"/fn/\xFFx").unwrap(),
            device: DeviceId(2),
            device_name: "osd1".into(),
            object: ObjectId::new(0x1_0000, 0x1_0005),
            job: JobId([id; JOB_ID_LEN]),
        };
        JobRecord::new(&handle, &["/a".into()], None)
    }

    #[test]
    fn recorded_jobs_are_found_by_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let records = JobRecords { path: folder.path().join("jobs.toml") };
        assert!(records.all().unwrap().is_empty());
        records.add(&[record(0x3F), record(0x3A), record(0xC0)]).unwrap();
        let handle = records.find("3f3").unwrap().handle().unwrap();
        assert_eq!(handle.job, JobId([0x3F; JOB_ID_LEN]));
        assert_eq!(handle.function.as_bytes(), b"/fn/\xFFx");
        for (beginning, part) in [("3", "more than one"), ("", "more than one"), ("77", "no such job")] {
            assert!(records.find(beginning).unwrap_err().message.contains(part), "{beginning}");
        }
        records.forget(&[record(0x3A).job]).unwrap();
        assert!(records.find("3").is_ok() && records.all().unwrap().len() == 2);
    }

    #[test]
    fn concurrent_records_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let records = JobRecords { path: folder.path().join("jobs.toml") };
        std::thread::scope(|scope| {
            for id in 0..40 {
                let records = records.clone();
                scope.spawn(move || records.add(&[record(id)]).unwrap());
            }
        });
        assert_eq!(records.all().unwrap().len(), 40);
        let reserved = JobRecord { reserved: Some(7), ..record(3) };
        records.add(std::slice::from_ref(&reserved)).unwrap();
        assert_eq!(records.find(&reserved.job).unwrap(), reserved, "it is replaced");
        records.clear_reservation(&reserved.job).unwrap();
        assert_eq!(
            records.find(&reserved.job).unwrap(),
            JobRecord { recorded_ms: reserved.recorded_ms, ..record(3) }
        );
        assert_eq!(records.all().unwrap().len(), 40);
    }

    #[test]
    fn oldest_records_are_dropped_at_limit() {
        let folder = tempfile::tempdir().unwrap();
        let records = JobRecords { path: folder.path().join("jobs.toml") };
        let many: Vec<JobRecord> = (0..=RECORDS_MAX)
            .map(|at| JobRecord { job: format!("{at:032x}"), recorded_ms: at as u64, ..record(1) })
            .collect();
        records.add(&many).unwrap();
        let kept = records.all().unwrap();
        assert_eq!((kept.len(), kept[0].recorded_ms), (RECORDS_MAX, 1));
    }

    #[test]
    fn damaged_ids_are_refused() {
        for bad in ["", "zz", &"g".repeat(32), &"0".repeat(31), &"+0".repeat(16)] {
            assert_eq!(parse_id(bad), None, "{bad}");
        }
        assert!(JobRecord { job: "x".into(), ..record(1) }.handle().is_err());
    }
}
