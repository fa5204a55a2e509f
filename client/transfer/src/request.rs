//! Options of a transfer, and its observer.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_client::{FilePath, GetOptions, Method, PutOptions};

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

/// Options for all entries of a transfer, with those that other options imply.
pub(crate) struct TransferRules {
    pub(crate) recursive: bool,
    /// Whether existing entries get the mode of the source.
    pub(crate) archive: bool,
    pub(crate) update: bool,
    pub(crate) replace: bool,
    pub(crate) xattrs: bool,
    pub(crate) dry_run: bool,
    /// Permission bits that are removed from a new file outside a tree.
    pub(crate) umask: u16,
    method: Method,
}

impl TransferRules {
    pub(crate) const fn of(options: &TransferOptions) -> Self {
        let has_exact_modes = options.recursive || options.archive || options.preserve;
        Self {
            recursive: options.recursive || options.archive,
            archive: options.archive || options.preserve,
            update: options.update,
            replace: !options.no_replace,
            xattrs: options.xattrs,
            dry_run: options.dry_run,
            umask: if has_exact_modes { 0 } else { options.umask },
            method: options.method,
        }
    }

    /// Returns the options of one put.
    pub(crate) fn put_options(&self, progress: &TransferProgress) -> PutOptions {
        PutOptions {
            replace: self.replace,
            method: self.method,
            progress: Some(Box::new(progress.of_file())),
            ..PutOptions::default()
        }
    }

    /// Returns the options of one get.
    pub(crate) fn get_options(&self, progress: &TransferProgress) -> GetOptions {
        let mut count = progress.of_file();
        GetOptions {
            method: self.method,
            progress: Some(Box::new(move |done, _| count(done))),
            ..GetOptions::default()
        }
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

    /// Begins the transfer of the files with these stored paths; `verb` is `put` or `get`.
    pub(crate) fn begin_files<'a>(
        observer: &Arc<dyn TransferObserver>,
        verb: &str,
        total: u64,
        mut stored: impl ExactSizeIterator<Item = &'a FilePath>,
    ) -> Self {
        let label = match stored.len() {
            1 => stored
                .next()
                .and_then(FilePath::split_last)
                .map_or_else(String::new, |(_, name)| name.to_string()),
            count => format!("{count} files"),
        };
        Self::begin(observer, Some(total), &format!("{verb} {label}"))
    }

    /// Returns a function that receives the bytes of one file that have been transferred so far.
    fn of_file(&self) -> impl FnMut(u64) + Send + 'static {
        let progress = self.clone();
        let mut before = 0;
        move |done: u64| {
            progress.inc(done.saturating_sub(before));
            before = done;
        }
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
