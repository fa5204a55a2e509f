//! Log of issued credentials on disk: two streams of segment files in the folder `issued`. The
//! oldest segment is removed when a stream is full.
//!
//! Does: appends, reads, limits size, makes durable; detects whether a start may follow a power
//! failure.
//! Does not: interpret records.
//! Contract: when `append` returns, the kernel has the record: the death of the process loses
//! nothing. A torn or corrupt record ends its segment, and reading continues with the next one.
//! Each start begins a new segment, so nothing is appended behind a torn record. Space is allocated
//! before it is written. On a full disk the oldest segments are removed early, and `known_since_ms`
//! reports it.
//! Format: a segment is `OSDGL001`, time of its first record (8 bytes), then records `length 4 |
//! CRC32C 4 | bytes`, numbers big-endian; docs/standards/mds/store.md §8.6.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use sealstone_mds::{GrantLog, IssueStream};

/// Folder of the logs in the data folder.
pub(crate) const FOLDER: &str = "issued";
/// File with the machine's boot id when the log was last opened.
const BOOT_FILE: &str = "boot-id";
/// Maximum length of that file in bytes.
const BOOT_BYTES_MAX: u64 = 256;
const MAGIC: &[u8; 8] = b"OSDGL001";
const HEAD_BYTES: u64 = 16;
const RECORD_HEAD_BYTES: usize = 8;
/// Maximum length of a record; the largest, with 64 objects and the longest path, has about 5600
/// bytes.
const RECORD_MAX: usize = 16 * 1024;
/// Bytes allocated for a new segment before its first record: the reserve on a full disk.
const RESERVED_BYTES: u64 = 4 << 20;
/// Bytes allocated at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// File name prefixes of the two streams.
const NAMES: [&str; 2] = ["given", "refused"];

/// Sizes of the logs.
#[derive(Clone, Copy, Debug)]
pub struct GrantLogSizes {
    /// Bytes of a segment.
    pub segment: u64,
    /// Maximum segments of issued credentials.
    pub given_segments: usize,
    /// Maximum segments of refused requests.
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
struct LogSegment {
    number: u32,
    first_ms: u64,
}

struct SegmentedLog {
    segments: Vec<LogSegment>,
    /// The segment that is appended to, and its length.
    open: Option<(File, u64)>,
    /// Bytes of it that are allocated.
    allocated: u64,
    /// File of the next segment, without records, and its allocated bytes.
    prepared: Option<(File, u64)>,
    /// Full segments that are not durable yet.
    closed: Vec<File>,
    unsynced: bool,
    next: u32,
}

/// The open log.
pub(crate) struct FileGrantLog {
    folder: PathBuf,
    sizes: GrantLogSizes,
    logs: [Mutex<SegmentedLog>; 2],
    is_whole: bool,
}

impl FileGrantLog {
    /// Opens or creates the log. `boot` is the machine's boot id; without it every start may follow
    /// a power failure.
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

    /// Returns the kernel's boot id.
    pub(crate) fn boot_id() -> Option<String> {
        fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
    }

    fn load(folder: &Path, stream: IssueStream) -> io::Result<Mutex<SegmentedLog>> {
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
                // The power failed while the segment was created: it has no records.
                Ok(()) | Err(_) => {
                    fs::remove_file(entry.path())?;
                    continue;
                }
            };
            segments.push(LogSegment { number, first_ms });
        }
        segments.sort_by_key(|segment| segment.number);
        let next = segments.last().map_or(1, |last| last.number.saturating_add(1));
        Ok(Mutex::new(SegmentedLog {
            segments,
            open: None,
            allocated: 0,
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

    /// Returns the bytes allocated for a new segment before its first record.
    fn reserved_bytes(&self) -> u64 {
        RESERVED_BYTES.min(self.sizes.segment.max(PIECE_BYTES))
    }

    /// Allocates the first segment of this start before another program takes the space that
    /// earlier segments released. If that fails, the first record tries again.
    fn prepare(&self, stream: IssueStream) {
        let log = &mut *self.logs[stream as usize].lock();
        let path = self.path(stream, log.next);
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path);
        let Ok(file) = file else { return };
        let mut allocated = 0;
        while allocated < self.reserved_bytes() && allocate_piece(&file, allocated).is_ok() {
            allocated += PIECE_BYTES;
        }
        if allocated > 0 {
            log.prepared = Some((file, allocated));
        } else if let Err(error) = fs::remove_file(&path) {
            tracing::debug!(%error, path = %path.display(), "empty credential log segment not removed");
        }
    }

    /// Starts a segment and removes the oldest ones above the limit.
    fn begin(&self, log: &mut SegmentedLog, stream: IssueStream, time_ms: u64) -> io::Result<()> {
        // Not synced here, where others wait for the lock; `sync` does it.
        if let Some((file, length)) = log.open.take() {
            if let Err(error) = file.set_len(length) {
                tracing::debug!(%error, "unused space of a full credential log segment not released");
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
        (file, log.allocated) = match log.prepared.take() {
            Some(prepared) => prepared,
            None => (OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?, 0),
        };
        while log.allocated < self.reserved_bytes() {
            match allocate_piece(&file, log.allocated) {
                Ok(()) => log.allocated += PIECE_BYTES,
                Err(error) if !is_full(&error) => return Err(error),
                Err(_) if log.allocated > 0 => break,
                Err(error) => {
                    let oldest = (!log.segments.is_empty()).then(|| log.segments.remove(0));
                    let Some(oldest) = oldest else {
                        let _ = fs::remove_file(self.path(stream, number));
                        return Err(error);
                    };
                    tracing::warn!(
                        segment = oldest.number,
                        "disk full: oldest segment of the credential log removed early"
                    );
                    // A removed file keeps its space while it is open.
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
        log.segments.push(LogSegment { number, first_ms: time_ms });
        log.open = Some((file, HEAD_BYTES));
        Ok(())
    }
}

/// Allocates the next piece of a segment. On file systems that cannot allocate, the write itself
/// may fail.
fn allocate_piece(file: &File, from: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, from, PIECE_BYTES) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Releases the allocated space behind the end of a segment; later starts do not append to it.
fn release_slack(path: &Path) {
    let release = || {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(file.metadata()?.len())
    };
    if let Err(error) = release() {
        tracing::debug!(%error, path = %path.display(), "unused space of a credential log segment not released");
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Parses the number in a segment's file name.
fn number(stream: IssueStream, name: &str) -> Option<u32> {
    let digits = name.strip_prefix(NAMES[stream as usize])?.strip_prefix('-')?.strip_suffix(".log")?;
    digits.parse().ok().filter(|_| digits.len() == 10)
}

fn last_eight(head: &[u8; HEAD_BYTES as usize]) -> [u8; 8] {
    let mut time = [0; 8];
    time.copy_from_slice(&head[8..]);
    time
}

/// Reads a record of a segment; `None` at its end, or if the record is torn or corrupt.
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
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "record empty or too long"));
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
            && length + frame.len() as u64 > log.allocated
        {
            match allocate_piece(file, log.allocated) {
                Ok(()) => log.allocated += PIECE_BYTES,
                Err(error) if is_full(&error) => self.begin(log, stream, time_ms)?,
                Err(error) => return Err(error),
            }
        }
        let Some((file, length)) = &mut log.open else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if let Err(error) = file.write_all(&frame) {
            // Records behind a torn one would not be read, so the next one starts a new segment.
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
        // Others can append while this record is synced.
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
        // Does not block appends: records appended during the read may be missing.
        let segments = self.logs[stream as usize].lock().segments.clone();
        let (mut number, mut offset) = ((from >> 32) as u32, from & u64::from(u32::MAX));
        if from == 0 {
            // The last segment that begins before `since_ms`. If the clock was set back, times of
            // records go back as well.
            let at = segments.iter().rposition(|segment| segment.first_ms < since_ms).unwrap_or(0);
            let Some(segment) = segments.get(at) else { return Ok(None) };
            (number, offset) = (segment.number, HEAD_BYTES);
        }
        let mut left = budget;
        for segment in segments.iter().filter(|segment| segment.number >= number) {
            let mut at = if segment.number == number { offset.max(HEAD_BYTES) } else { HEAD_BYTES };
            let mut file = match File::open(self.path(stream, segment.number)) {
                Ok(file) => file,
                // The segment was removed meanwhile.
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
        // Segments are numbered from 1: if the first one exists, none was removed.
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
            // Without the lock: only this thread waits for the disk.
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
    fn log_survives_restart_in_order_with_private_files() {
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
    fn full_log_drops_oldest_segment_and_reports_start() {
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
    fn corrupt_record_ends_only_its_segment() {
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
    fn log_is_complete_only_within_one_boot() {
        let folder = tempfile::tempdir().unwrap();
        let open =
            |boot| FileGrantLog::open(folder.path(), GrantLogSizes::default(), boot).unwrap().is_whole();
        assert!(
            !open(Some("a\n")) && open(Some("a\n")) && !open(Some("b\n")) && !open(None) && open(Some("b"))
        );
    }

    #[test]
    fn oversized_record_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let log = FileGrantLog::open(folder.path(), GrantLogSizes::default(), None).unwrap();
        assert!(log.append(IssueStream::Issued, 0, &[0; RECORD_MAX], false).is_ok());
        assert!(log.append(IssueStream::Issued, 0, &[0; RECORD_MAX + 1], false).is_err());
        assert!(log.append(IssueStream::Issued, 0, &[], false).is_err());
    }
}
