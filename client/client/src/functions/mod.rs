//! Functions that run on devices, beside the data.
//!
//! Does: stores function files with their description; makes the copies that devices need; starts
//! a job on each device that has data of a call, and returns the results; controls jobs.
//! Does not: run code, or combine results of several devices.
//! Contract: every run names the digest of the code as the metadata server recorded it, so that a
//! device never runs other code. A run that may have been started is not repeated.
//! Truth: docs/standards/active.md; docs/standards/mds/functions.md §5.12.

mod arguments;
mod call;
mod copies;
mod describe;
mod error;
mod job;
mod job_run;
mod key_file;
mod plan;
mod policy;
mod publish;
mod reduce;
mod result_objects;
mod start_hook;

pub use arguments::{CALL_ARGUMENTS_MAX, CallArguments};
pub use call::{CallGroup, CallReply, CallSummary, FunctionRun, JOBS_PER_DEVICE_MAX, RESULTS_BYTES_MAX};
pub use describe::{DeviceEngine, FunctionDescription, FunctionDetails};
pub use error::FunctionError;
pub use job::{JobHandle, JobPage, JobStatus, RESULT_PAGE_MAX};
pub use key_file::KEY_FILE_BYTES_MAX;
pub use plan::{CallFile, CallGrouping, CallPart};
pub use policy::PartitionPolicy;
pub use publish::{FUNCTION_CODE_MAX, FunctionPublication};
pub use result_objects::JobResultReader;
pub use start_hook::{JobStartHook, StartingJob};
