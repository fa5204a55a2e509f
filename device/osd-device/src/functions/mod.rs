//! EXECUTE FUNCTION: functions that run beside the data.
//!
//! Does: prepare a call under the locks of the command, and make it without any lock.
//! Does not: run functions; [`FunctionRunner`](crate::FunctionRunner) does.
//! Truth: docs/standards/active.md.

mod granted;
mod policy;
mod prepare;
mod run;

pub(crate) use prepare::{FunctionContext, authorize, prepare};
pub(crate) use run::run;
