//! The daemon's side: zygotes, and the engines that they started.

mod process;
mod zygote;

pub use process::{EngineExit, EngineExitCause, SandboxedEngine};
pub use zygote::Zygote;
