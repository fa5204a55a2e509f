//! Parts that the daemon supplies: the sink of run records, and the key of receipts.

use sealstone_crypto::RustCrypto;
use sealstone_osd::ObjectId;
use sealstone_osd::function::{ExitReason, JobId};
use sealstone_osd_device::Principal;
use sealstone_seal::ReceiptKey;

use crate::job_table::JobUsage;

/// One run, for the audit log. It has no arguments.
#[derive(Clone, Debug)]
pub struct RunRecord<'a> {
    /// Milliseconds since 1970 by the device's clock, at the end.
    pub time_ms: u64,
    /// AUDIT field of the capability that started the run.
    pub principal: Principal,
    /// iSCSI name of the initiator.
    pub initiator: &'a str,
    /// The job.
    pub job: JobId,
    /// The function object.
    pub function: ObjectId,
    /// BLAKE3-256 of the code.
    pub digest: [u8; 32],
    /// The objects that the function could access.
    pub objects: Vec<ObjectId>,
    /// Why the run ended.
    pub exit: ExitReason,
    /// The code that the function returned, or the signal of a trap.
    pub error: i32,
    /// Resources that the run used.
    pub usage: JobUsage,
    /// Operations on objects that were refused for lack of authority.
    pub denials: u64,
}

/// Receives records of runs.
pub trait RunRecorder: Send + Sync {
    /// Receives the record of one run, at its end.
    fn record_run(&self, record: &RunRecord<'_>);
}

/// Returns the present key of receipts; `None` if there is none, then results have no receipts.
pub type ReceiptSource = Box<dyn Fn() -> Option<ReceiptKey<RustCrypto>> + Send + Sync>;
