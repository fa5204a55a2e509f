//! Result of a transfer of many entries: counts, skipped and failed entries.

use std::time::Instant;

use sealstone_failure::text::{counted, human_bytes, set_bytes};
use sealstone_failure::{Failure, FailureKind, Outcome};
use sealstone_mds_protocol::shown;
use serde_json::{Value, json};

/// Maximum number of entries of each list; more are only counted.
const LISTED_MAX: usize = 10_000;

/// Result of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryResult {
    /// A file of this many bytes was transferred.
    File(u64),
    /// A file of this many bytes was transferred, but its source changed while it was read.
    Changed(u64),
    /// A symbolic link or a hard link was created.
    Link,
    /// The destination was up to date.
    Unchanged,
}

/// Result of a transfer.
pub struct TransferReport {
    files: u64,
    links: u64,
    unchanged: u64,
    bytes: u64,
    pub(crate) directories: u64,
    /// Path and reason.
    skipped: Vec<(Vec<u8>, String)>,
    changed: Vec<Vec<u8>>,
    failed: Vec<Failure>,
    skipped_count: u64,
    changed_count: u64,
    failed_count: u64,
    left_count: u64,
    started: Instant,
}

impl TransferReport {
    pub(crate) fn new() -> Self {
        Self {
            files: 0,
            links: 0,
            unchanged: 0,
            bytes: 0,
            directories: 0,
            skipped: Vec::new(),
            changed: Vec::new(),
            failed: Vec::new(),
            skipped_count: 0,
            changed_count: 0,
            failed_count: 0,
            left_count: 0,
            started: Instant::now(),
        }
    }

    /// Counts an entry.
    pub(crate) fn done(&mut self, path: impl FnOnce() -> Vec<u8>, result: EntryResult) {
        match result {
            EntryResult::File(bytes) => self.transferred(bytes),
            EntryResult::Changed(bytes) => {
                self.transferred(bytes);
                self.changed_count += 1;
                push(&mut self.changed, path());
            }
            EntryResult::Link => self.links += 1,
            EntryResult::Unchanged => self.unchanged += 1,
        }
    }

    fn transferred(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }

    /// Counts an entry that cannot be transferred by its kind.
    pub(crate) fn skip(&mut self, path: impl AsRef<[u8]>, reason: String) {
        self.skipped_count += 1;
        push(&mut self.skipped, (path.as_ref().to_vec(), reason));
    }

    /// Counts a failure.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failed_count += 1;
        push(&mut self.failed, failure);
    }

    /// Counts entries that were not tried after a fatal failure.
    pub(crate) fn leave_out(&mut self, count: u64) {
        self.left_count += count;
    }

    /// Whether nothing was transferred, skipped or found unchanged.
    const fn did_nothing_else(&self) -> bool {
        self.files + self.links + self.unchanged + self.skipped_count + self.changed_count == 0
    }

    /// Returns the failure of a transfer of one entry, which needs no other report.
    #[must_use]
    pub fn single_failure(&self) -> Option<&Failure> {
        let is_alone = self.did_nothing_else() && self.directories == 0;
        match (&self.failed[..], self.failed_count + self.left_count, is_alone) {
            ([only], 1, true) => Some(only),
            _ => None,
        }
    }

    /// Returns a line for each entry that was skipped, changed while it was read, or failed.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let skipped = self.skipped.iter().map(|(path, reason)| format!("{}: skipped: {reason}", shown(path)));
        let changed = self.changed.iter().map(|path| format!("{}: changed while it was read", shown(path)));
        skipped.chain(changed).chain(self.failed.iter().map(ToString::to_string)).collect()
    }

    /// Returns seconds since the start of the transfer.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Returns the outcome; `verb` is `stored` or `fetched`.
    ///
    /// # Errors
    /// An entry failed, was skipped, or changed while it was read.
    pub fn outcome(&self, verb: &str) -> Outcome {
        let parts = [
            (self.failed_count, "failed"),
            (self.left_count, "not tried"),
            (self.skipped_count, "skipped"),
            (self.changed_count, "changed while they were read"),
        ];
        let parts = parts.iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
        if parts.is_empty() {
            return Ok(());
        }
        // Failures of one kind keep its exit code.
        let kind = match self.failed.first() {
            Some(first)
                if self.did_nothing_else() && self.failed.iter().all(|one| one.kind == first.kind) =>
            {
                first.kind
            }
            _ => FailureKind::Operation,
        };
        Err(Failure::new(kind, format!("not everything was {verb}: {}", parts.join(", ")))
            .hint("see the list of failures; all other entries are done"))
    }

    /// Returns the result on one line.
    #[must_use]
    pub fn summary(&self, verb: &str, seconds: f64) -> String {
        let rate = if seconds > 0.0 { self.bytes as f64 / seconds } else { 0.0 };
        let mut text = format!(
            "{verb} {}, {} in {seconds:.2} s, {}/s",
            counted(self.files, "file"),
            human_bytes(self.bytes),
            human_bytes(rate as u64),
        );
        let parts = [
            (self.directories, "directory", "directories"),
            (self.links, "link", "links"),
            (self.unchanged, "unchanged", "unchanged"),
            (self.skipped_count, "skipped", "skipped"),
            (self.failed_count, "failed", "failed"),
            (self.left_count, "not tried", "not tried"),
        ];
        for (count, one, several) in parts {
            if count > 0 {
                text += &format!(", {count} {}", if count == 1 { one } else { several });
            }
        }
        text
    }

    /// Returns the result as `--json` prints it.
    #[must_use]
    pub fn json(&self, seconds: f64) -> Value {
        let skipped = |(path, reason): &(Vec<u8>, String)| {
            let mut value = json!({ "reason": reason });
            set_bytes(&mut value, "path", path);
            value
        };
        let changed = |path: &Vec<u8>| {
            let mut value = json!({});
            set_bytes(&mut value, "path", path);
            value
        };
        json!({
            "files": self.files, "directories": self.directories, "links": self.links, "unchanged": self.unchanged,
            "bytes": self.bytes, "seconds": seconds,
            "skipped_count": self.skipped_count, "changed_count": self.changed_count, "failed_count": self.failed_count,
            "not_tried_count": self.left_count,
            "skipped": self.skipped.iter().map(skipped).collect::<Vec<_>>(), "changed": self.changed.iter().map(changed).collect::<Vec<_>>(),
            "failed": self.failed.iter().map(Failure::json).collect::<Vec<_>>(),
        })
    }
}

fn push<T>(list: &mut Vec<T>, one: T) {
    if list.len() < LISTED_MAX {
        list.push(one);
    }
}
