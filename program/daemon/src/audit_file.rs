//! Files of an audit log: the current file, older segments, and a durable count of lost records.
//!
//! Does: appends, rotates, bounds the size of all segments, counts records that the disk refused.
//! Does not: format records.
//! Contract: a line is complete or absent. The count of lost records survives the process and is in
//! the next line; after a crash it can be reported twice. At the bound the principals with the
//! largest share lose their oldest records first.
//! Format: `audit.jsonl`, then `audit.jsonl.NNNNNNNN`, the lowest number is the oldest;
//! `audit.lost` has 40 bytes in the front of a preallocated page: magic, count, first and last time
//! in ms since 1970, count again, big-endian.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Deserialize;

/// Number of hexadecimal digits of the session at the start of a principal.
pub const SESSION_DIGITS: usize = 32;

/// Number of segments of the bound.
const SEGMENTS: u64 = 16;
/// Maximum length of a line that is read when segments are thinned; written lines are shorter.
const LINE_MAX: u64 = 64 << 10;
/// Maximum number of principals that are counted separately; further ones count as one.
const OWNERS_MAX: usize = 4096;
/// File with the count of lost records.
/// Name of the file with the count of lost records, in a daemon's folder.
pub const AUDIT_LOST_FILE: &str = "audit.lost";
const LOST_MAGIC: &[u8; 8] = b"OSDAL001";
const LOST_BYTES: usize = 40;
/// Preallocated size of that file, bytes.
const LOST_PAGE: usize = 4096;
/// Interval at which the count is made durable.
const LOST_SYNC_EVERY: Duration = Duration::from_secs(1);

/// Number and time of records that the disk refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LostRecords {
    pub(crate) count: u64,
    pub(crate) since_ms: u64,
    pub(crate) until_ms: u64,
}

impl LostRecords {
    fn to_bytes(self) -> [u8; LOST_BYTES] {
        let mut bytes = [0; LOST_BYTES];
        bytes[..8].copy_from_slice(LOST_MAGIC);
        let figures = [self.count, self.since_ms, self.until_ms, self.count];
        for (at, figure) in bytes[8..].chunks_exact_mut(8).zip(figures) {
            at.copy_from_slice(&figure.to_be_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; LOST_BYTES]) -> Option<Self> {
        let figure =
            |at: usize| Some(u64::from_be_bytes(bytes.get(8 + 8 * at..16 + 8 * at)?.try_into().ok()?));
        let lost = Self { count: figure(0)?, since_ms: figure(1)?, until_ms: figure(2)? };
        (bytes.starts_with(LOST_MAGIC) && figure(3)? == lost.count).then_some(lost)
    }
}

/// The durable count, which is overwritten in place and needs no space on a full disk.
struct LostCount {
    /// `None` if the disk was full at the first start.
    file: Option<File>,
    lost: LostRecords,
    synced: Instant,
}

impl LostCount {
    fn open(folder: &Path) -> Self {
        let (file, lost) = match Self::open_file(&folder.join(AUDIT_LOST_FILE)) {
            Ok((file, lost)) => (Some(file), lost),
            Err(error) => {
                tracing::error!(%error, "cannot open the count of lost audit records; counting in memory only");
                (None, LostRecords::default())
            }
        };
        Self { file, lost, synced: Instant::now() }
    }

    fn open_file(path: &Path) -> io::Result<(File, LostRecords)> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut bytes = [0; LOST_BYTES];
        let found = file.read_exact_at(&mut bytes, 0).ok().and_then(|()| LostRecords::from_bytes(&bytes));
        let lost = found.unwrap_or_default();
        if file.metadata()?.len() < LOST_PAGE as u64 {
            let mut page = [0; LOST_PAGE];
            page[..LOST_BYTES].copy_from_slice(&lost.to_bytes());
            file.write_all_at(&page, 0)?;
            file.sync_all()?;
        }
        Ok((file, lost))
    }

    fn add(&mut self, count: u64, now_ms: u64) {
        if self.lost.count == 0 {
            self.lost.since_ms = now_ms;
        }
        self.lost.count = self.lost.count.saturating_add(count);
        self.lost.until_ms = now_ms;
        self.write(false);
    }

    fn clear(&mut self) {
        self.lost = LostRecords::default();
        self.write(true);
    }

    fn write(&mut self, sync: bool) {
        let Some(file) = &self.file else { return };
        let mut written = file.write_all_at(&self.lost.to_bytes(), 0);
        if sync || self.synced.elapsed() >= LOST_SYNC_EVERY {
            self.synced = Instant::now();
            written = written.and_then(|()| file.sync_data());
        }
        if let Err(error) = written {
            tracing::error!(%error, lost = self.lost.count, "cannot write the count of lost audit records; counting in memory only");
        }
    }
}

/// The files of an audit log.
pub(crate) struct AuditFile {
    path: PathBuf,
    file: File,
    length: u64,
    bytes_max: u64,
    lost: LostCount,
    thinning: Option<JoinHandle<()>>,
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Whether the path still refers to this file. A log rotation renames it.
fn is_current(path: &Path, file: &File) -> bool {
    match (fs::metadata(path), file.metadata()) {
        (Ok(named), Ok(open)) => (named.dev(), named.ino()) == (open.dev(), open.ino()),
        (Err(error), _) => error.kind() != io::ErrorKind::NotFound,
        (Ok(_), Err(_)) => true,
    }
}

impl AuditFile {
    /// Opens or creates the log (0600). All its files have at most `bytes_max` bytes, and one
    /// segment more.
    pub(crate) fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let file = append(path)?;
        let length = file.metadata()?.len();
        let lost = LostCount::open(path.parent().unwrap_or(Path::new(".")));
        let (path, thinning) = (path.to_owned(), None);
        Ok(Self { path, file, length, bytes_max: bytes_max.max(SEGMENTS), lost, thinning })
    }

    /// Returns the lost records that are not reported yet.
    pub(crate) const fn lost(&self) -> LostRecords {
        self.lost.lost
    }

    /// Reopens the log if it was renamed.
    pub(crate) fn follow_name(&mut self) {
        if !is_current(&self.path, &self.file)
            && let Ok(file) = append(&self.path)
        {
            self.length = file.metadata().map_or(0, |metadata| metadata.len());
            self.file = file;
        }
    }

    /// Appends whole lines; `report` formats the line about earlier lost records.
    ///
    /// # Errors
    /// The disk failed; then `count` records are counted as lost.
    pub(crate) fn write(
        &mut self,
        lines: &[u8],
        count: u64,
        now_ms: u64,
        report: impl FnOnce(LostRecords) -> Vec<u8>,
    ) -> io::Result<()> {
        let before = self.lost();
        let mut bytes = if before.count > 0 { report(before) } else { Vec::new() };
        bytes.extend_from_slice(lines);
        if let Err(error) = self.file.write_all(&bytes) {
            // A partial line is removed: the next one would be appended to it.
            let _ = self.file.set_len(self.length);
            self.lost.add(count, now_ms);
            return Err(error);
        }
        self.length += bytes.len() as u64;
        if before.count > 0 {
            self.lost.clear();
        }
        if self.length >= self.bytes_max / SEGMENTS {
            self.rotate();
        }
        Ok(())
    }

    fn rotate(&mut self) {
        let next = segments(&self.path).last().map_or(1, |(number, _)| number + 1);
        let closed = segment_path(&self.path, next);
        let rotated = fs::rename(&self.path, closed).and_then(|()| append(&self.path));
        match rotated {
            Ok(file) => (self.file, self.length) = (file, 0),
            Err(error) => {
                tracing::warn!(%error, "cannot rotate the audit log; retrying with the next record");
                return;
            }
        }
        if self.thinning.as_ref().is_some_and(|thinning| !thinning.is_finished()) {
            return;
        }
        let (path, bytes_max) = (self.path.clone(), self.bytes_max - self.bytes_max / SEGMENTS);
        let thin = move || {
            if let Err(error) = thin(&path, bytes_max) {
                tracing::warn!(%error, "cannot thin segments of the audit log; removing the oldest");
                remove_oldest(&path, bytes_max);
            }
        };
        self.thinning = std::thread::Builder::new().name("audit-thin".into()).spawn(thin).ok();
    }
}

impl Drop for AuditFile {
    fn drop(&mut self) {
        if let Some(thinning) = self.thinning.take() {
            let _ = thinning.join();
        }
    }
}

fn segment_path(path: &Path, number: u64) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number:08}"));
    name.into()
}

/// Returns the older segments, the oldest first.
pub fn segments(path: &Path) -> Vec<(u64, PathBuf)> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |entry: &fs::DirEntry| {
        let file = entry.file_name();
        let digits = file.to_str()?.strip_prefix(name)?.strip_prefix('.')?;
        let number = digits.parse().ok()?;
        (digits.len() == 8 && digits.bytes().all(|digit| digit.is_ascii_digit())).then_some(number)
    };
    let mut found: Vec<(u64, PathBuf)> =
        entries.filter_map(|entry| Some((number(&entry)?, entry.path()))).collect();
    found.sort_unstable();
    found
}

fn bytes_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

fn remove_oldest(path: &Path, bytes_max: u64) {
    let all = segments(path);
    let mut bytes: u64 = all.iter().map(|(_, path)| bytes_of(path)).sum();
    for (_, path) in all {
        if bytes <= bytes_max {
            return;
        }
        bytes = bytes.saturating_sub(bytes_of(&path));
        let _ = fs::remove_file(path);
    }
}

/// The principal fields of a line.
#[derive(Deserialize)]
struct LineOwner {
    user: Option<String>,
    principal: Option<String>,
    source: Option<String>,
}

/// Returns the principal of a line. Unparsable lines and those without a principal have a common
/// share.
fn owner(line: &[u8]) -> String {
    let parsed: Option<LineOwner> = serde_json::from_slice(line).ok();
    let Some(LineOwner { user, principal, source }) = parsed else { return String::new() };
    if source.is_some() {
        // An unauthenticated peer can claim any name.
        return "source".to_owned();
    }
    // The principals of a session differ in the number of the credential.
    let session = principal.map(|principal| principal.get(..SESSION_DIGITS).unwrap_or(&principal).to_owned());
    user.or(session).unwrap_or_default()
}

/// Calls `each` with every line of a file.
fn each_line(path: &Path, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut input = BufReader::with_capacity(128 << 10, File::open(path)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        if io::Read::take(&mut input, LINE_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        each(&line)?;
    }
}

/// Returns the maximum bytes per principal so that all have at most `bytes_max`; smaller shares are
/// kept completely.
fn fair_share(shares: &HashMap<String, u64>, bytes_max: u64) -> u64 {
    let mut sizes: Vec<u64> = shares.values().copied().collect();
    sizes.sort_unstable();
    let mut left = bytes_max;
    for (at, size) in sizes.iter().enumerate() {
        let each = left / (sizes.len() - at) as u64;
        if *size > each {
            return each;
        }
        left -= size;
    }
    u64::MAX
}

/// Removes the oldest lines of the principals with the largest shares until all segments have
/// `bytes_max` bytes.
pub(crate) fn thin(path: &Path, bytes_max: u64) -> io::Result<()> {
    let all = segments(path);
    if all.iter().map(|(_, path)| bytes_of(path)).sum::<u64>() <= bytes_max {
        return Ok(());
    }
    let mut shares: HashMap<String, u64> = HashMap::new();
    let key = |shares: &HashMap<String, u64>, line: &[u8]| {
        let owner = owner(line);
        if shares.len() >= OWNERS_MAX && !shares.contains_key(&owner) { String::new() } else { owner }
    };
    for (_, path) in &all {
        each_line(path, |line| {
            let owner = key(&shares, line);
            *shares.entry(owner).or_default() += line.len() as u64;
            Ok(())
        })?;
    }
    let each = fair_share(&shares, bytes_max);
    let mut excess: HashMap<String, u64> = shares
        .iter()
        .filter_map(|(owner, bytes)| Some((owner.clone(), bytes.checked_sub(each).filter(|more| *more > 0)?)))
        .collect();
    for (_, path) in &all {
        if excess.is_empty() {
            break;
        }
        let mut thinned = path.as_os_str().to_owned();
        thinned.push(".new");
        let thinned = PathBuf::from(thinned);
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&thinned)?;
        let mut out = BufWriter::new(file);
        let mut kept = 0;
        each_line(path, |line| {
            let owner = key(&shares, line);
            if let Some(more) = excess.get_mut(&owner) {
                *more = more.saturating_sub(line.len() as u64);
                if *more == 0 {
                    excess.remove(&owner);
                }
                return Ok(());
            }
            kept += 1;
            out.write_all(line)
        })?;
        out.flush()?;
        if kept == 0 {
            fs::remove_file(&thinned)?;
            fs::remove_file(path)?;
        } else {
            fs::rename(&thinned, path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(user: &str, n: u64) -> Vec<u8> {
        format!("{{\"time_ms\":{n},\"user\":\"{user}\",\"action\":\"Remove\",\"verdict\":\"Denied\"}}\n")
            .into_bytes()
    }

    fn users(path: &Path) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        let paths = segments(path).into_iter().map(|(_, path)| path).chain([path.to_owned()]);
        for path in paths {
            each_line(&path, |line| {
                let value: serde_json::Value = serde_json::from_slice(line).expect("a whole line");
                found.push((
                    value["user"].as_str().unwrap_or("").to_owned(),
                    value["time_ms"].as_u64().unwrap_or(0),
                ));
                Ok(())
            })
            .expect("readable");
        }
        found
    }

    #[test]
    fn flood_displaces_records_of_its_user_only() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        let bytes_max = 64 << 10;
        let mut log = AuditFile::open(&path, bytes_max).expect("opened");
        for n in 0..5_000 {
            let user = if n < 20 { "alice" } else { "eve" };
            log.write(&line(user, n), 1, n, |_| Vec::new()).expect("written");
            if let Some(thinning) = log.thinning.take() {
                thinning.join().expect("thinned");
            }
        }
        drop(log);
        let found = users(&path);
        assert_eq!(found.iter().filter(|(user, _)| user == "alice").count(), 20);
        assert!(
            found.iter().any(|(_, n)| *n == 4_999) && !found.iter().any(|(_, n)| *n == 20),
            "eve's oldest went"
        );
        let bytes: u64 =
            segments(&path).iter().map(|(_, path)| bytes_of(path)).sum::<u64>() + bytes_of(&path);
        assert!(bytes <= bytes_max + bytes_max / SEGMENTS, "{bytes} bytes");
    }

    #[test]
    fn shares_are_as_equal_as_the_bound_allows() {
        let of = |sizes: &[u64], max| {
            let shares = sizes.iter().enumerate().map(|(n, size)| (n.to_string(), *size)).collect();
            fair_share(&shares, max)
        };
        assert_eq!(of(&[10, 20, 100], 60), 30);
        assert_eq!(of(&[10, 20, 30], 60), u64::MAX);
        assert_eq!(of(&[100, 100], 60), 30);
    }

    #[test]
    fn lost_records_survive_restart_and_are_reported() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("audit.jsonl");
        std::os::unix::fs::symlink("/dev/full", &path).expect("linked");
        let mut log = AuditFile::open(&path, 1 << 20).expect("opened");
        for n in 0..3 {
            assert!(log.write(&line("alice", n), 1, n, |_| Vec::new()).is_err());
        }
        drop(log);
        fs::remove_file(&path).expect("removed");
        let mut log = AuditFile::open(&path, 1 << 20).expect("opened");
        assert_eq!(log.lost(), LostRecords { count: 3, since_ms: 0, until_ms: 2 });
        log.write(&line("alice", 9), 1, 9, |lost| format!("{{\"lost\":{}}}\n", lost.count).into_bytes())
            .expect("written");
        assert_eq!(log.lost(), LostRecords::default());
        assert!(fs::read_to_string(&path).expect("readable").starts_with("{\"lost\":3}\n"));
        drop(log);
        assert_eq!(AuditFile::open(&path, 1 << 20).expect("opened").lost(), LostRecords::default());
    }
}
