//! The last steps in the process of an engine: its descriptors, the layers that need no privileges,
//! and then the engine program.
//!
//! Does: moves the granted descriptors to fixed numbers, sets resource limits, applies Landlock and
//! the filter of system calls, reports the result, and calls the program.
//! Contract: if a required layer fails, the process exits before it runs foreign code.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use rustix::process::{Resource, Rlimit, setrlimit};

use super::EngineContext;
use super::init::EngineStart;
use super::server::ZygoteState;
use crate::message::{self, EngineReport, StartCommand, StepFailure};
use crate::options::{EngineKind, EngineLimits};
use crate::report::{IsolationLayer, IsolationReport, LayerState};
use crate::{landlock, system};

/// First number of the descriptors that an engine receives.
const FIRST_DESCRIPTOR: RawFd = libc::STDERR_FILENO + 1;
/// Numbers from here on are free in a zygote.
const FREE_DESCRIPTORS: RawFd = 64;
/// Size of an engine's stack in bytes.
const STACK_BYTES: u64 = 8 << 20;
/// Pending signals of an engine.
const SIGNALS_MAX: u64 = 64;
/// Exit code of an engine that could not be confined.
const CONFINEMENT_FAILED: i32 = 125;
/// Exit code of an engine program that panicked, as in other Rust programs.
const PANICKED: i32 = 101;

/// Confines the process, reports that, and runs the engine program.
pub(super) fn run_engine(
    zygote: &ZygoteState,
    start: EngineStart,
    mut report: IsolationReport,
    body: &dyn Fn(EngineContext) -> i32,
) -> ! {
    let EngineStart { command, report_socket, descriptors, .. } = start;
    let arranged = arrange_descriptors(descriptors, report_socket);
    let Ok((descriptors, socket)) = arranged else { system::exit_now(CONFINEMENT_FAILED) };
    let code = command.code.as_ref().map(|code| Path::new("/").join(&code.name));
    let confined = apply_layers(zygote, &command.limits, code.as_deref(), &mut report).and_then(|()| {
        let sent = message::send(&socket, &EngineReport::Confined(report), &[]);
        sent.map_err(|error| StepFailure::new("send the report", &error))
    });
    let confined = confined.and_then(|()| {
        if zygote.omitted.contains(&IsolationLayer::Seccomp) {
            return Ok(());
        }
        let installed = zygote.filters.confine_engine();
        installed.map_err(|error| StepFailure::new("install the filter of system calls", &error))
    });
    if let Err(failure) = confined {
        let _ = message::send(&socket, &EngineReport::Failed(failure), &[]);
        system::exit_now(CONFINEMENT_FAILED);
    }
    // The daemon takes the end of this socket for the last layer.
    drop(socket);
    if command.is_probe {
        system::exit_now(0);
    }
    let StartCommand { parameters, limits, .. } = command;
    let context = EngineContext { descriptors, code, parameters, limits };
    // A panic must not unwind into the zygote's loop, of which this process has a copy.
    let code = catch_unwind(AssertUnwindSafe(|| body(context))).unwrap_or(PANICKED);
    std::process::exit(code)
}

/// Gives the descriptors the numbers from 3 on, the socket the next one, and closes all others.
fn arrange_descriptors(descriptors: Vec<OwnedFd>, socket: OwnedFd) -> io::Result<(Vec<OwnedFd>, OwnedFd)> {
    let lifted = descriptors.into_iter().chain([socket]).map(|descriptor| {
        let lifted = system::duplicate_above(std::os::fd::AsFd::as_fd(&descriptor), FREE_DESCRIPTORS);
        // The number is used again below, and closed at the end.
        system::forget_descriptor(descriptor);
        lifted
    });
    let lifted = lifted.collect::<io::Result<Vec<_>>>()?;
    let placed = lifted.into_iter().zip(FIRST_DESCRIPTOR..);
    let placed = placed.map(|(descriptor, number)| system::move_descriptor(descriptor, number));
    let mut placed = placed.collect::<io::Result<Vec<_>>>()?;
    let socket = placed.pop().ok_or(io::ErrorKind::InvalidInput)?;
    system::close_descriptors(socket.as_raw_fd() as u32 + 1, u32::MAX)?;
    Ok((placed, socket))
}

fn apply_layers(
    zygote: &ZygoteState,
    limits: &EngineLimits,
    code: Option<&Path>,
    report: &mut IsolationReport,
) -> Result<(), StepFailure> {
    let step = |name: &'static str| move |error: io::Error| StepFailure::new(name, &error);
    system::set_parent_death_signal(libc::SIGKILL).map_err(step("arm the parent death signal"))?;
    // The init process has number 1.
    if system::parent_id() != 1 {
        return Err(StepFailure { step: "find the init process".to_owned(), errno: libc::ESRCH });
    }
    set_limits(limits).map_err(step("set resource limits"))?;
    report.set_active(IsolationLayer::ResourceLimits);
    report.set(IsolationLayer::NoWritableCode, refuse_writable_code(zygote.kind));
    let omit = |layer| zygote.omitted.contains(&layer);
    let omitted = || LayerState::Unavailable("omitted by the engine program".to_owned());
    let landlock = if omit(IsolationLayer::Landlock) {
        omitted()
    } else {
        let paths = code.into_iter().chain(zygote.binds.iter().map(|bind| bind.target.as_path()));
        landlock::allow_reading_only(paths).map_err(step("apply Landlock"))?
    };
    report.set(IsolationLayer::Landlock, landlock);
    let seccomp = if omit(IsolationLayer::Seccomp) { omitted() } else { LayerState::Active };
    report.set(IsolationLayer::Seccomp, seccomp);
    Ok(())
}

fn set_limits(limits: &EngineLimits) -> io::Result<()> {
    let set = |resource, soft: u64, hard: u64| {
        Ok::<_, io::Error>(setrlimit(resource, Rlimit { current: Some(soft), maximum: Some(hard) })?)
    };
    let fixed = |resource, value| set(resource, value, value);
    if let Some(bytes) = limits.address_space_bytes {
        fixed(Resource::As, bytes)?;
    }
    if let Some(bytes) = limits.data_bytes {
        fixed(Resource::Data, bytes)?;
    }
    fixed(Resource::Core, 0)?;
    fixed(Resource::Fsize, 0)?;
    fixed(Resource::Memlock, 0)?;
    fixed(Resource::Msgqueue, 0)?;
    fixed(Resource::Sigpending, SIGNALS_MAX)?;
    fixed(Resource::Stack, STACK_BYTES)?;
    fixed(Resource::Nofile, limits.descriptors.into())?;
    // One more for the init process, which has the same user.
    fixed(Resource::Nproc, u64::from(limits.threads) + 1)?;
    // SIGXCPU first; SIGKILL if the engine ignores it.
    set(Resource::Cpu, limits.cpu_seconds, limits.cpu_seconds.saturating_add(1))
}

fn refuse_writable_code(kind: EngineKind) -> LayerState {
    if kind != EngineKind::C {
        return LayerState::NotApplicable(format!("{} engines create code", kind.name()));
    }
    match system::refuse_writable_code() {
        Ok(()) => LayerState::Active,
        Err(error) => LayerState::Unavailable(format!("PR_SET_MDWE: {error} (Linux 6.3 has it)")),
    }
}
