//! Folder with the receipts and results of the jobs of a run.
//!
//! Does: writes `JOB.receipt` and `JOB.result` for each job that a device ran, so that a later
//! command can verify both.
//! Contract: job ids are random, so no file of another job is replaced.

use std::fs;
use std::path::{Path, PathBuf};

use sealstone_client::functions::CallReply;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};

/// Receives the receipts of a run.
pub(crate) struct ReceiptFolder(PathBuf);

impl ReceiptFolder {
    /// Creates the folder unless it exists.
    pub(crate) fn create(path: &Path) -> Outcome<Self> {
        fs::create_dir_all(path).map_err(|error| Failure::from(error).at(path.shown()))?;
        Ok(Self(path.to_owned()))
    }

    /// Writes receipt and result of a job, and returns the path of the receipt. A job that was not
    /// started, or that the client ran, has none.
    ///
    /// # Errors
    /// The device returned no receipt, or a file cannot be written.
    pub(crate) fn write(&self, reply: &CallReply) -> Outcome<Option<PathBuf>> {
        let is_ended = reply.outcome.as_ref().is_ok_and(|status| status.state.is_final());
        let Some(handle) = reply.handle.as_ref().filter(|_| is_ended) else { return Ok(None) };
        let job = handle.job.to_string();
        if reply.receipt.is_empty() {
            return Err(Failure::operation("the device returned no receipt")
                .hint("it has no root key; `sealstone mds keys rotate root` sets one")
                .at(job));
        }
        let write = |extension: &str, bytes: &[u8]| {
            let path = self.0.join(format!("{job}.{extension}"));
            fs::write(&path, bytes).map_err(|error| Failure::from(error).at(path.shown()))?;
            Ok(path)
        };
        write("result", &reply.result)?;
        write("receipt", &reply.receipt).map(Some)
    }
}
