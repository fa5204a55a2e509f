//! The record of credentials on disk: two logs of segments in the folder `issued`, the oldest segment removed when a log
//! is full.
//!
//! Does: append, read, bound, make durable; know whether a start followed a loss of power. Does not: know what records
//! say.
//! Contract: when `append` returns the record is with the kernel: the death of the process loses nothing. A record that
//! is torn or rotten ends the segment that it is in; reading goes on with the next one, and a start never appends behind
//! one: each begins a segment of its own. Each segment has its space before it is written to; on a full disk the oldest
//! segments go early, and `known_since_ms` says so.
//! Format: a segment is `OSDGL001`, time of its first record (8 bytes), then records `length 4 | CRC32C 4 | bytes`,
//! numbers big-endian; docs/standards/mds/store.md §8.6.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use sealstone_mds::{GrantLog, IssueStream};

/// The folder of the logs within the server's.
pub(crate) const FOLDER: &str = "issued";
/// Says in which life of the machine the log was last opened.
const BOOT_FILE: &str = "boot-id";
/// Longest content of that file, bytes.
const BOOT_BYTES_MAX: u64 = 256;
const MAGIC: &[u8; 8] = b"OSDGL001";
const HEAD_BYTES: u64 = 16;
const RECORD_HEAD_BYTES: usize = 8;
/// Bytes of a record at most; the largest, with 64 objects and the longest path, has some 5600.
const RECORD_MAX: usize = 16 * 1024;
/// Bytes of a new segment that have space before the first record is written: what a full disk leaves to records.
const RESERVED_BYTES: u64 = 4 << 20;
/// Space is taken in pieces of so many bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// Names of the two streams' files.
const NAMES: [&str; 2] = ["given", "refused"];

/// Sizes of the logs.
#[derive(Clone, Copy, Debug)]
pub struct GrantLogSizes {
    /// Bytes of a segment.
    pub segment: u64,
    /// Segments of what was given.
    pub given_segments: usize,
    /// Segments of what was refused.
    pub refused_segments: usize,
}

impl Default for GrantLogSizes {
    /// 256 MiB and 32 MiB.
    fn default() -> Self {
        Self { segment: 16 << 20, given_segments: 16, refused_segments: 2 }
    }
}

/// A segment on disk.
#[derive(Clone, Copy, Debug)]
struct Segment {
    number: u32,
    first_ms: u64,
}

struct Log {
    segments: Vec<Segment>,
    /// The one that is appended to, and its length.
    open: Option<(File, u64)>,
    /// Bytes of it that have space.
    backed: u64,
    /// The file of the next segment, without a record, and how many bytes of it have space.
    prepared: Option<(File, u64)>,
    /// Full ones that are not on the medium yet.
    closed: Vec<File>,
    unsynced: bool,
    next: u32,
}

/// The log, open.
pub(crate) struct FileGrantLog {
    folder: PathBuf,
    sizes: GrantLogSizes,
    logs: [Mutex<Log>; 2],
    is_whole: bool,
}

impl FileGrantLog {
    /// Opens or makes the log. `boot` tells lives of the machine apart; without it every start may follow a loss of
    /// power.
    pub(crate) fn open(data: &Path, sizes: GrantLogSizes, boot: Option<&str>) -> io::Result<Self> {
        let folder = data.join(FOLDER);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let last = sealstone_slots::read(&folder.join(BOOT_FILE), BOOT_BYTES_MAX)?;
        let last = last.as_ref().and_then(|last| std::str::from_utf8(last).ok());
        let is_whole = boot.is_some() && last.map(str::trim) == boot.map(str::trim);
        let logs = [Self::load(&folder, IssueStream::Issued)?, Self::load(&folder, IssueStream::Refused)?];
        let this = Self { folder, sizes, logs, is_whole };
        if let Some(boot) = boot.filter(|_| !is_whole) {
            sealstone_slots::write(&this.folder.join(BOOT_FILE), boot.as_bytes())?;
        }
        this.prepare(IssueStream::Issued);
        Ok(this)
    }

    /// What the kernel calls this life of the machine.
    pub(crate) fn boot_id() -> Option<String> {
        fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
    }

    fn load(folder: &Path, stream: IssueStream) -> io::Result<Mutex<Log>> {
        let mut segments = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let Some(number) = entry.file_name().to_str().and_then(|name| number(stream, name)) else {
                continue;
            };
            let mut head = [0; HEAD_BYTES as usize];
            let first_ms = match File::open(entry.path())?.read_exact(&mut head) {
                Ok(()) if head.starts_with(MAGIC) => {
                    release_slack(&entry.path());
                    u64::from_be_bytes(last_eight(&head))
                }
                // Begun when the power went: nothing is in it.
                Ok(()) | Err(_) => {
                    fs::remove_file(entry.path())?;
                    continue;
                }
            };
            segments.push(Segment { number, first_ms });
        }
        segments.sort_by_key(|segment| segment.number);
        let next = segments.last().map_or(1, |last| last.number.saturating_add(1));
        Ok(Mutex::new(Log {
            segments,
            open: None,
            backed: 0,
            prepared: None,
            closed: Vec::new(),
            unsynced: false,
            next,
        }))
    }

    fn path(&self, stream: IssueStream, number: u32) -> PathBuf {
        self.folder.join(format!("{}-{number:010}.log", NAMES[stream as usize]))
    }

    const fn segments_max(&self, stream: IssueStream) -> usize {
        match stream {
            IssueStream::Issued => self.sizes.given_segments,
            IssueStream::Refused => self.sizes.refused_segments,
        }
    }

    /// Bytes of a new segment that have space before its first record is written.
    fn reserved_bytes(&self) -> u64 {
        RESERVED_BYTES.min(self.sizes.segment.max(PIECE_BYTES))
    }

    /// Gives the first segment of this start its space before another program takes what earlier
    /// ones gave back. Without space the first record looks for some.
    fn prepare(&self, stream: IssueStream) {
        let log = &mut *self.logs[stream as usize].lock();
        let path = self.path(stream, log.next);
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path);
        let Ok(file) = file else { return };
        let mut backed = 0;
        while backed < self.reserved_bytes() && back(&file, backed).is_ok() {
            backed += PIECE_BYTES;
        }
        if backed > 0 {
            log.prepared = Some((file, backed));
        } else if let Err(error) = fs::remove_file(&path) {
            tracing::debug!(%error, path = %path.display(), "an empty segment was not removed");
        }
    }

    /// Begins a segment; the oldest goes if there are too many.
    fn begin(&self, log: &mut Log, stream: IssueStream, time_ms: u64) -> io::Result<()> {
        // Not while others wait for the log: `sync` does it.
        if let Some((file, length)) = log.open.take() {
            if let Err(error) = file.set_len(length) {
                tracing::debug!(%error, "space of a full segment was not given back");
            }
            log.closed.push(file);
        }
        while log.segments.len() >= self.segments_max(stream).max(1) {
            let oldest = log.segments.remove(0);
            match fs::remove_file(self.path(stream, oldest.number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let number = log.next;
        let path = self.path(stream, number);
        let mut file;
        (file, log.backed) = match log.prepared.take() {
            Some(prepared) => prepared,
            None => (OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?, 0),
        };
        while log.backed < self.reserved_bytes() {
            match back(&file, log.backed) {
                Ok(()) => log.backed += PIECE_BYTES,
                Err(error) if !is_full(&error) => return Err(error),
                Err(_) if log.backed > 0 => break,
                Err(error) => {
                    let oldest = (!log.segments.is_empty()).then(|| log.segments.remove(0));
                    let Some(oldest) = oldest else {
                        let _ = fs::remove_file(self.path(stream, number));
                        return Err(error);
                    };
                    tracing::warn!(
                        segment = oldest.number,
                        "the disk of the metadata server is full: the oldest record of credentials is removed early"
                    );
                    // An open file keeps its space.
                    log.closed.drain(..).try_for_each(|file| file.sync_data())?;
                    fs::remove_file(self.path(stream, oldest.number))?;
                }
            }
        }
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&time_ms.to_be_bytes());
        file.write_all(&head)?;
        File::open(&self.folder)?.sync_all()?;
        log.next = number.saturating_add(1);
        log.segments.push(Segment { number, first_ms: time_ms });
        log.open = Some((file, HEAD_BYTES));
        Ok(())
    }
}

/// Gives space to the next piece of a segment; where the file system cannot, a write finds out.
fn back(file: &File, from: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, from, PIECE_BYTES) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Gives the space behind the end of a segment back: no later start appends to it.
fn release_slack(path: &Path) {
    let release = || {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(file.metadata()?.len())
    };
    if let Err(error) = release() {
        tracing::debug!(%error, path = %path.display(), "space of a segment was not given back");
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The number in a segment's name.
fn number(stream: IssueStream, name: &str) -> Option<u32> {
    let digits = name.strip_prefix(NAMES[stream as usize])?.strip_prefix('-')?.strip_suffix(".log")?;
    digits.parse().ok().filter(|_| digits.len() == 10)
}

fn last_eight(head: &[u8; HEAD_BYTES as usize]) -> [u8; 8] {
    let mut time = [0; 8];
    time.copy_from_slice(&head[8..]);
    time
}

/// A record from a segment; none where it ends, or is torn or rotten.
fn next_record(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; RECORD_HEAD_BYTES];
    let short = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Ok(None),
        _ => Err(error),
    };
    if let Err(error) = input.read_exact(&mut head) {
        return short(error);
    }
    let [a, b, c, d, e, f, g, h] = head;
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length == 0 || length > RECORD_MAX {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    if let Err(error) = input.read_exact(&mut bytes) {
        return short(error);
    }
    Ok((crc32c::crc32c(&bytes) == u32::from_be_bytes([e, f, g, h])).then_some(bytes))
}

impl GrantLog for FileGrantLog {
    fn append(&self, stream: IssueStream, time_ms: u64, record: &[u8], durable: bool) -> io::Result<()> {
        if record.is_empty() || record.len() > RECORD_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a record over its limit"));
        }
        let mut frame = Vec::with_capacity(RECORD_HEAD_BYTES + record.len());
        frame.extend_from_slice(&(record.len() as u32).to_be_bytes());
        frame.extend_from_slice(&crc32c::crc32c(record).to_be_bytes());
        frame.extend_from_slice(record);
        let mut guard = self.logs[stream as usize].lock();
        let log = &mut *guard;
        let full = |length: u64| length + frame.len() as u64 > self.sizes.segment && length > HEAD_BYTES;
        if log.open.as_ref().is_none_or(|(_, length)| full(*length)) {
            self.begin(log, stream, time_ms)?;
        }
        if let Some((file, length)) = &log.open
            && length + frame.len() as u64 > log.backed
        {
            match back(file, log.backed) {
                Ok(()) => log.backed += PIECE_BYTES,
                Err(error) if is_full(&error) => self.begin(log, stream, time_ms)?,
                Err(error) => return Err(error),
            }
        }
        let Some((file, length)) = &mut log.open else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if let Err(error) = file.write_all(&frame) {
            // What is behind a torn record would not be read: the next one begins a segment.
            log.open = None;
            return Err(error);
        }
        *length += frame.len() as u64;
        log.unsynced = true;
        if !durable {
            return Ok(());
        }
        let own = file.try_clone()?;
        drop(guard);
        // Others go on appending while this one waits for the medium.
        own.sync_data()
    }

    fn read(
        &self,
        stream: IssueStream,
        from: u64,
        since_ms: u64,
        budget: usize,
        each: &mut dyn FnMut(&[u8]) -> bool,
    ) -> io::Result<Option<u64>> {
        // What is appended while this reads may come or not; nobody waits for it.
        let segments = self.logs[stream as usize].lock().segments.clone();
        let (mut number, mut offset) = ((from >> 32) as u32, from & u64::from(u32::MAX));
        if from == 0 {
            // The last one that begins before; times of records may run back by as much as the clock was set back.
            let at = segments.iter().rposition(|segment| segment.first_ms < since_ms).unwrap_or(0);
            let Some(segment) = segments.get(at) else { return Ok(None) };
            (number, offset) = (segment.number, HEAD_BYTES);
        }
        let mut left = budget;
        for segment in segments.iter().filter(|segment| segment.number >= number) {
            let mut at = if segment.number == number { offset.max(HEAD_BYTES) } else { HEAD_BYTES };
            let mut file = match File::open(self.path(stream, segment.number)) {
                Ok(file) => file,
                // Removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            file.seek(SeekFrom::Start(at))?;
            let mut input = BufReader::with_capacity(128 * 1024, file);
            while let Some(record) = next_record(&mut input)? {
                let bytes = RECORD_HEAD_BYTES + record.len();
                at += bytes as u64;
                let place = u64::from(segment.number) << 32 | at;
                if !each(&record) || left < bytes {
                    return Ok(Some(place));
                }
                left -= bytes;
            }
        }
        Ok(None)
    }

    fn known_since_ms(&self, stream: IssueStream) -> u64 {
        self.logs[stream as usize].lock().segments.first().map_or(u64::MAX, |segment| segment.first_ms)
    }

    fn reaches_back_to(&self, stream: IssueStream, since_ms: u64) -> bool {
        // The first segment ever is number 1: nothing was removed before it.
        let log = self.logs[stream as usize].lock();
        log.segments.first().is_none_or(|first| first.number == 1 || first.first_ms <= since_ms)
    }

    fn is_whole(&self) -> bool {
        self.is_whole
    }

    fn sync(&self) -> io::Result<()> {
        for log in &self.logs {
            let files = {
                let mut log = log.lock();
                if !core::mem::take(&mut log.unsynced) {
                    continue;
                }
                let open = log.open.as_ref().map(|(file, _)| file.try_clone()).transpose()?;
                let mut files = core::mem::take(&mut log.closed);
                files.extend(open);
                files
            };
            // Nobody waits for the medium but this thread.
            for file in files {
                file.sync_data()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn all(log: &FileGrantLog, since_ms: u64, budget: usize) -> Vec<Vec<u8>> {
        let (mut found, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            let mut take = |record: &[u8]| {
                found.push(record.to_vec());
                true
            };
            from = log.read(IssueStream::Issued, at, since_ms, budget, &mut take).unwrap();
        }
        found
    }

    #[test]
    fn what_was_appended_is_read_after_a_restart_in_its_order_and_by_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let sizes = GrantLogSizes { segment: 200, given_segments: 100, refused_segments: 1 };
        let mut expected = Vec::new();
        for life in 0..3u8 {
            let log = FileGrantLog::open(folder.path(), sizes, Some("one boot")).unwrap();
            assert_eq!(log.is_whole(), life > 0, "a new log knows nothing of before");
            for n in 0..20u8 {
                let record = vec![life * 20 + n; 1 + usize::from(n)];
                log.append(IssueStream::Issued, u64::from(life * 20 + n), &record, n % 5 == 0).unwrap();
                log.append(IssueStream::Refused, 0, b"no", false).unwrap();
                expected.push(record);
            }
            log.sync().unwrap();
            for budget in [1, 100, 1 << 20] {
                assert_eq!(all(&log, 0, budget), expected);
            }
            let late = all(&log, 15, 1 << 20);
            assert!(
                late.len() < expected.len() && expected.ends_with(&late) && late.len() >= expected.len() - 16
            );
        }
        for entry in fs::read_dir(folder.path().join(FOLDER)).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_full_log_forgets_its_oldest_segment_and_says_since_when_it_knows() {
        let folder = tempfile::tempdir().unwrap();
        let sizes = GrantLogSizes { segment: 100, given_segments: 3, refused_segments: 1 };
        let log = FileGrantLog::open(folder.path(), sizes, None).unwrap();
        for n in 0..100u8 {
            log.append(IssueStream::Issued, u64::from(n), &[n; 12], false).unwrap();
        }
        let files = fs::read_dir(folder.path().join(FOLDER)).unwrap().count();
        assert_eq!(files, 3);
        let found = all(&log, 0, 1 << 20);
        assert_eq!(u64::from(found[0][0]), log.known_since_ms(IssueStream::Issued));
        assert_eq!(found.last().unwrap(), &[99; 12]);
        assert!(found.len() >= 2 * 4, "{}", found.len());
    }

    #[test]
    fn a_torn_or_rotten_record_loses_what_is_behind_it_in_its_segment_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let sizes = GrantLogSizes { segment: 100, given_segments: 9, refused_segments: 1 };
        let log = FileGrantLog::open(folder.path(), sizes, None).unwrap();
        for n in 0..8u8 {
            log.append(IssueStream::Issued, 0, &[n; 12], false).unwrap();
        }
        drop(log);
        let first = folder.path().join(FOLDER).join("given-0000000001.log");
        let mut bytes = fs::read(&first).unwrap();
        let damaged = HEAD_BYTES as usize + 20 + 10;
        bytes[damaged] ^= 1;
        fs::write(&first, &bytes).unwrap();
        fs::write(folder.path().join(FOLDER).join("given-0000000009.log"), b"OSD").unwrap();
        let log = FileGrantLog::open(folder.path(), sizes, None).unwrap();
        let found: Vec<u8> = all(&log, 0, 1 << 20).iter().map(|record| record[0]).collect();
        assert_eq!(found, [0, 4, 5, 6, 7]);
        let next = folder.path().join(FOLDER).join("given-0000000003.log");
        assert_eq!(fs::metadata(&next).unwrap().len(), 0);
        log.append(IssueStream::Issued, 0, b"on", false).unwrap();
        let length = fs::metadata(&next).unwrap().len();
        assert!(length > 0, "a start appends to no segment of before");
    }

    #[test]
    fn only_within_one_life_of_the_machine_is_nothing_missing() {
        let folder = tempfile::tempdir().unwrap();
        let open =
            |boot| FileGrantLog::open(folder.path(), GrantLogSizes::default(), boot).unwrap().is_whole();
        assert!(
            !open(Some("a\n")) && open(Some("a\n")) && !open(Some("b\n")) && !open(None) && open(Some("b"))
        );
    }

    #[test]
    fn a_record_over_its_limit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let log = FileGrantLog::open(folder.path(), GrantLogSizes::default(), None).unwrap();
        assert!(log.append(IssueStream::Issued, 0, &[0; RECORD_MAX], false).is_ok());
        assert!(log.append(IssueStream::Issued, 0, &[0; RECORD_MAX + 1], false).is_err());
        assert!(log.append(IssueStream::Issued, 0, &[], false).is_err());
    }
}
