//! Engine programs of active storage: how they start, and what confines them.
//!
//! Does: the daemon's side ([`Zygote`], [`SandboxedEngine`]) and the engine program's side
//! ([`engine_main`]). A zygote is executed before the daemon loads keys, sits in empty namespaces,
//! and forks one process per engine; that process loads foreign code only after the last layer of
//! [`IsolationLayer::ALL`] is applied.
//! Does not: talk to functions, or choose engines.
//! Contract: a [`SandboxedEngine`] whose pidfd is readable has no process left; a dropped one is
//! killed; a zygote ends with its daemon, and engines end with their zygote.
//! Truth: `docs/reference/sandbox.md`, generated from the table of system calls.

mod cgroup;
mod daemon;
mod engine;
mod landlock;
mod message;
mod options;
mod report;
mod seccomp;
mod system;

use std::io;

pub use daemon::{EngineExit, EngineExitCause, SandboxedEngine, Zygote};
#[doc(hidden)]
pub use engine::engine_main_without;
pub use engine::{EngineContext, engine_main, refuse_new_code};
pub use options::{
    BINDS_MAX, CODE_BYTES_MAX, CODE_NAME_BYTES_MAX, DESCRIPTORS_MAX, EngineCode, EngineKind, EngineLimits,
    EngineRequest, EngineUsers, MEMORY_BYTES_MIN, PARAMETERS_BYTES_MAX, ReadOnlyBind, ZygoteOptions,
};
pub use report::{IsolationLayer, IsolationReport, LayerState};

/// Why a zygote or an engine could not be started or controlled.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// An option of the zygote has no meaning.
    #[error("invalid zygote option: {0}")]
    InvalidOption(String),
    /// A field of an engine request exceeds its limit.
    #[error("invalid engine request: {0}")]
    InvalidRequest(String),
    /// A system call of the daemon failed.
    #[error("cannot {action}")]
    System {
        /// The failed action.
        action: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A step failed in the zygote or in the engine before foreign code was loaded.
    #[error("engine confinement failed: {step}")]
    Confinement {
        /// The failed step.
        step: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The machine lacks layers that strict confinement needs.
    #[error("strict confinement is not possible here: {0}")]
    LayersMissing(String),
    /// The zygote has ended; a new one must be started.
    #[error("the zygote has ended; no engine can be started")]
    ZygoteEnded,
    /// The engine ended before it was confined.
    #[error("the engine ended during its confinement ({0:?})")]
    EngineEnded(EngineExitCause),
    /// The other side did not answer in time.
    #[error("no answer from the {0} in time")]
    Timeout(&'static str),
    /// The program does not speak this version of the protocol.
    #[error("the engine program does not match this daemon: {0}")]
    Mismatch(String),
}
