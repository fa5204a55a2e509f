//! The service that runs functions beside the data of a device.
//!
//! Does: keep jobs, start and reuse confined engines ([`EngineSet`]), serve their requests with the
//! authority of the caller, enforce limits, stage output, issue receipts.
//! Does not: parse commands or check capabilities; `sealstone-osd-device` does, and this crate is
//! its `FunctionRunner`. Does not confine processes; `sealstone-sandbox` does.
//! Contract: a function reaches objects only through the handles of its call, each of which checks
//! its authority on every operation. An engine process serves one owner and one function. Arguments
//! are cleared after use and never logged.
//! Truth: docs/design/active.md, docs/standards/active.md, docs/adr/0069-function-service.md.

mod engines;
mod invocation;
mod job_records;
mod job_table;
mod limits;
mod local_file;
mod log_ring;
mod metrics;
mod pool;
mod run_record;
mod service;
mod staging;

pub use engines::{EngineSet, EngineStatus, IsolationState, IsolationStatus};
pub use job_table::{JobCounts, JobLimits, JobUsage};
pub use limits::{LimitError, RunLimits, ServiceLimits};
pub use local_file::LocalFileObject;
pub use run_record::{ReceiptSource, RunRecord, RunRecorder};
pub use service::{FunctionService, ServiceParts, ServiceStartError};
