//! Options of a transfer, and its observer.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_client::{GetOptions, Method};

/// Options of a put or get.
#[derive(Clone, Debug)]
pub struct TransferOptions {
    /// Transfer directories and their contents, with modes, times, links and holes.
    pub recursive: bool,
    /// As `recursive`, and set the mode of existing files to that of the source.
    pub archive: bool,
    /// Set exactly the mode of the source, also for existing files.
    pub preserve: bool,
    /// Skip existing files of equal size and modification time.
    pub update: bool,
    /// Do not replace existing files.
    pub no_replace: bool,
    /// Treat the destination as the copy itself, not as a directory to copy into.
    pub no_target_directory: bool,
    /// Transfer extended attributes of the namespace `user`.
    pub xattrs: bool,
    /// Patterns of entries to leave out.
    pub exclude: Vec<OsString>,
    /// Only report what would be transferred.
    pub dry_run: bool,
    /// Permission bits that are removed from new files outside of a tree.
    pub umask: u16,
    /// Security method of the commands.
    pub method: Method,
}

impl TransferOptions {
    /// Returns the permission bits that are removed from a new file outside a tree.
    pub(crate) const fn removed_mode(&self) -> u16 {
        if self.recursive || self.archive || self.preserve { 0 } else { self.umask }
    }
}

/// Observes a transfer.
pub trait TransferObserver: Send + Sync {
    /// The transfer of `total` bytes begins; `None`: their number is unknown.
    fn begin(&self, total: Option<u64>, label: &str);
    /// So many bytes have been transferred.
    fn position(&self, bytes: u64);
    /// The transfer has ended.
    fn end(&self);
    /// One line of a dry run.
    fn planned(&self, line: &str);
}

/// Counts transferred bytes, and reports them to the observer.
#[derive(Clone)]
pub(crate) struct TransferProgress {
    bytes: Arc<AtomicU64>,
    observer: Arc<dyn TransferObserver>,
}

impl TransferProgress {
    /// Begins a transfer.
    pub(crate) fn begin(observer: &Arc<dyn TransferObserver>, total: Option<u64>, label: &str) -> Self {
        observer.begin(total, label);
        Self { bytes: Arc::default(), observer: Arc::clone(observer) }
    }

    /// Adds bytes.
    pub(crate) fn inc(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.observer.position(before.saturating_add(bytes));
    }

    /// Returns the bytes so far.
    pub(crate) fn position(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets the bytes so far, where a file is read again.
    pub(crate) fn set_position(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.observer.position(bytes);
    }

    /// Ends the transfer.
    pub(crate) fn end(&self) {
        self.observer.end();
    }
}

/// Returns the options of one get.
pub(crate) fn get_options(method: Method, progress: &TransferProgress) -> GetOptions {
    let progress = progress.clone();
    let mut before = 0;
    GetOptions {
        method,
        progress: Some(Box::new(move |done: u64, _: u64| {
            progress.inc(done.saturating_sub(before));
            before = done;
        })),
        ..GetOptions::default()
    }
}
