//! Transfers of files and trees between this machine and a store.
//!
//! Does: plans operands, transfers several entries in parallel, keeps modes, times, links and
//! holes, reports entries that failed.
//! Does not: parse arguments, print, or take signals.
//! Contract: an entry gets its name when it is complete. Temporary entries of an aborted transfer
//! are removed by [`remove_local_temporaries`] and [`remove_stored_temporaries`].
//! Truth: docs/how-to/transfers.md.

mod attributes;
mod delegated;
mod destination;
mod excluded;
mod get;
mod jobs;
mod listing;
mod local;
mod put;
mod random;
mod replace;
mod report;
mod request;
mod stored_path;
mod tree;
mod walk;

pub use attributes::{
    LongLine, align_lines, checksum_text, device_number, entry_json, entry_name, long_line, set_target,
    stat_json, utc_ns,
};
pub use delegated::put_delegated;
pub use excluded::matches_wildcards;
pub use get::{get, write_whole};
pub use listing::{ListEntry, kind_name, list_path, list_readable};
pub use local::remove_temporaries as remove_local_temporaries;
pub use put::{put, put_stream};
pub use replace::remove_temporaries as remove_stored_temporaries;
pub use report::TransferReport;
pub use request::{TransferObserver, TransferOptions};
pub use stored_path::{StoredPath, into_directory, link_target};
pub use tree::{TreePath, join};
pub use walk::{EntryKind, Tree, TreeEntry, walk};
