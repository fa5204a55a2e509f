//! The daemon's side: zygotes, and the engines that they started. The function service calls it.

mod process;
mod zygote;

pub use process::{EngineExit, EngineExitCause, SandboxedEngine};
pub use zygote::Zygote;
