//! The init process of an engine's process namespace.
//!
//! Does: apply the layers that need privileges, fork the engine, wait for it, and report its end.
//! Contract: when it ends, the kernel ends every process of the namespace.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use super::confine::run_engine;
use super::server::{ZygotePrivilege, ZygoteState, write_id_maps};
use super::{EngineContext, root};
use crate::cgroup::{self, EngineCgroup};
use crate::message::{self, CodeFile, EngineReport, EngineStatus, StartCommand, StepFailure};
use crate::options::EngineLimits;
use crate::report::{IsolationLayer, IsolationReport};
use crate::system::{self, ForkSide};

/// User and group id in the user namespace of an engine: those of the overflow user.
const MAPPED_USER: u32 = 65534;
/// Exit code of an init process that could not start its engine.
const INIT_FAILED: i32 = 125;
/// Descriptors of a start before those of the caller: report socket and status socket.
const SOCKETS: usize = 2;

/// One engine that is being started.
pub(super) struct EngineStart {
    pub(super) command: StartCommand,
    pub(super) report_socket: OwnedFd,
    status_socket: OwnedFd,
    code: Option<OwnedFd>,
    pub(super) descriptors: Vec<OwnedFd>,
    pub(super) user: u32,
}

impl EngineStart {
    pub(super) fn new(command: StartCommand, mut descriptors: Vec<OwnedFd>) -> Result<Self, StepFailure> {
        let needed = SOCKETS + usize::from(command.code.is_some());
        if descriptors.len() < needed {
            return Err(StepFailure { step: "receive descriptors".to_owned(), errno: libc::EBADMSG });
        }
        let own = descriptors.split_off(needed);
        let mut sockets = descriptors.into_iter();
        let (Some(report_socket), Some(status_socket)) = (sockets.next(), sockets.next()) else {
            return Err(StepFailure { step: "receive descriptors".to_owned(), errno: libc::EBADMSG });
        };
        Ok(Self { command, report_socket, status_socket, code: sockets.next(), descriptors: own, user: 0 })
    }

    pub(super) fn limits(&self) -> &EngineLimits {
        &self.command.limits
    }
}

/// Runs the first process of an engine's process namespace.
pub(super) fn run_init(
    zygote: &ZygoteState,
    group: &EngineCgroup,
    start: EngineStart,
    body: &dyn Fn(EngineContext) -> i32,
) -> ! {
    let mut report = zygote.report.clone();
    let prepared = prepare(zygote, group, &start, &mut report)
        .and_then(|events| system::fork().map(|side| (events, side)).map_err(step("fork the engine")));
    match prepared {
        Ok((_, ForkSide::Child)) => run_engine(zygote, start, report, body),
        Ok((events, ForkSide::Parent(engine))) => supervise(zygote, start, events, engine),
        Err(failure) => {
            let _ = message::send(&start.report_socket, &EngineReport::Failed(failure), &[]);
            system::exit_now(INIT_FAILED)
        }
    }
}

fn step(name: &'static str) -> impl Fn(io::Error) -> StepFailure {
    move |error| StepFailure::new(name, &error)
}

/// Applies the layers that init and engine share; returns the memory events of their cgroup.
fn prepare(
    zygote: &ZygoteState,
    group: &EngineCgroup,
    start: &EngineStart,
    report: &mut IsolationReport,
) -> Result<Option<OwnedFd>, StepFailure> {
    system::unblock_signals().map_err(step("unblock signals"))?;
    die_with_zygote(zygote)?;
    report.set_active(IsolationLayer::PidNamespace);
    let events = group.open_memory_events().map_err(step("open memory events"))?;
    group.join().map_err(step("join the cgroup"))?;
    if zygote.privilege == ZygotePrivilege::UserNamespace {
        // User 0 is this process in the user namespace of the zygote.
        write_id_maps(MAPPED_USER, 0, 0).map_err(step("map the user of the engine"))?;
    }
    let code = start.command.code.as_ref().zip(start.code.as_ref());
    let code = code.map(|(CodeFile { name, length }, file)| root::RootFile { name, length: *length, file });
    root::enter(code, &zygote.binds)?;
    report.set_active(IsolationLayer::EmptyRoot);
    system::set_no_new_privileges().map_err(step("set no_new_privs"))?;
    report.set_active(IsolationLayer::NoNewPrivileges);
    system::empty_bounding_set().map_err(step("empty the bounding set"))?;
    if zygote.privilege == ZygotePrivilege::Root {
        system::set_identity(start.user, start.user).map_err(step("take the user id"))?;
        report.set_active(IsolationLayer::OwnUser);
    }
    system::empty_capability_sets().map_err(step("empty the capability sets"))?;
    report.set_active(IsolationLayer::NoCapabilities);
    system::clear_dumpable().map_err(step("clear dumpable"))?;
    report.set_active(IsolationLayer::Undumpable);
    // The change of user cleared the signal.
    die_with_zygote(zygote)?;
    Ok(events)
}

/// Arranges that the kernel kills this process with the zygote; fails if that has ended.
fn die_with_zygote(zygote: &ZygoteState) -> Result<(), StepFailure> {
    system::set_parent_death_signal(libc::SIGKILL).map_err(step("arm the parent death signal"))?;
    // The parent has the number 0 in here, before and after its end, so its pidfd is read instead.
    match system::wait_readable([zygote.zygote.as_fd()], Some(std::time::Duration::ZERO)) {
        Ok([false]) => Ok(()),
        Ok([true]) => Err(StepFailure { step: "find the zygote".to_owned(), errno: libc::ESRCH }),
        Err(error) => Err(StepFailure::new("find the zygote", &error)),
    }
}

/// Waits for the engine, and reports its end.
fn supervise(zygote: &ZygoteState, start: EngineStart, events: Option<OwnedFd>, engine: libc::pid_t) -> ! {
    let EngineStart { report_socket, status_socket, code, descriptors, .. } = start;
    // The daemon waits for the end of the report socket, and objects must not stay open here.
    drop((report_socket, code, descriptors));
    if zygote.filters.confine_init().is_err() {
        system::exit_now(INIT_FAILED);
    }
    loop {
        match system::reap_child(None, true) {
            Ok(Some(child)) if child.pid == engine => {
                let status = EngineStatus {
                    wait_status: child.status,
                    cpu_time: child.cpu_time,
                    peak_memory: child.peak_memory,
                    memory_kills: events.as_ref().map_or(0, cgroup::memory_kills),
                };
                // Without a reader the daemon has ended, and the zygote follows.
                let _ = message::send(&status_socket, &status, &[]);
                system::exit_now(0)
            }
            Ok(_) => {}
            Err(_) => system::exit_now(INIT_FAILED),
        }
    }
}
