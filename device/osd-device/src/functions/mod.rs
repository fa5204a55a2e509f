//! EXECUTE FUNCTION: functions that run beside the data.
//!
//! Does: `prepare` builds a call under the locks of the command, `run` passes it to the function
//! service without any lock, `granted` gives the function its objects.
//! Does not: run functions; [`FunctionRunner`](crate::FunctionRunner) does.
//! Truth: docs/standards/active.md.

mod granted;
mod policy;
mod prepare;
mod run;

pub(crate) use prepare::{FunctionContext, authorize, prepare};
pub(crate) use run::run;
