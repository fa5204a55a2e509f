//! The zygote: a process in empty namespaces that forks engines on command.
//!
//! Does: receive commands, keep user ids and cgroups, reap.
//! Contract: it ends with its daemon, after it has killed and reaped every engine. It has one
//! thread, and never runs foreign code.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::PidfdFlags;

use super::EngineContext;
use super::init::{EngineStart, run_init};
use crate::cgroup::{EngineCgroup, ZygoteCgroups};
use crate::message::{self, MESSAGE_VERSION, StartCommand, StepFailure, ZygoteReply, ZygoteSetup};
use crate::options::{EngineUsers, ReadOnlyBind};
use crate::report::{IsolationLayer, IsolationReport, LayerState};
use crate::seccomp::CompiledFilters;
use crate::system::{self, ForkSide};

/// Namespaces that all engines of a zygote share; nothing is in them.
const SHARED_NAMESPACES: libc::c_int =
    libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWNS;
/// Host name in the UTS namespace.
const HOST_NAME: &str = "engine";

/// How the zygote is allowed to create namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZygotePrivilege {
    /// As root, so that each engine can have a user id of its own.
    Root,
    /// In a user namespace, in which the zygote is root.
    UserNamespace,
}

/// The state of a zygote that its engines start from.
pub(super) struct ZygoteState {
    pub(super) privilege: ZygotePrivilege,
    pub(super) binds: Vec<ReadOnlyBind>,
    pub(super) filters: CompiledFilters,
    pub(super) kind: crate::EngineKind,
    pub(super) omitted: Vec<IsolationLayer>,
    /// The layers that the zygote applied.
    pub(super) report: IsolationReport,
    /// The zygote itself, which is readable when it has ended.
    pub(super) zygote: OwnedFd,
    cgroups: ZygoteCgroups,
    users: UserPool,
    running: Vec<RunningEngine>,
    started: u64,
}

struct RunningEngine {
    pid: libc::pid_t,
    user: u32,
    cgroup: EngineCgroup,
}

/// The user ids of engines that are not in use.
struct UserPool {
    users: EngineUsers,
    /// Where the first id is taken, so that zygotes with one range rarely take equal ids.
    offset: u32,
    taken: u32,
    free: Vec<u32>,
}

impl UserPool {
    fn new(users: EngineUsers, zygote: u32) -> Self {
        Self { users, offset: zygote % users.count, taken: 0, free: Vec::new() }
    }

    /// Returns an id that was never used, or one whose engine was reaped.
    fn take(&mut self) -> Option<u32> {
        if self.taken < self.users.count {
            let position = (u64::from(self.offset) + u64::from(self.taken)) % u64::from(self.users.count);
            self.taken += 1;
            return Some(self.users.first + position as u32);
        }
        self.free.pop()
    }

    fn give_back(&mut self, user: u32) {
        self.free.push(user);
    }
}

/// Serves the daemon at the other end of standard input until it closes the socket.
pub(super) fn serve(omitted: &[IsolationLayer], body: &dyn Fn(EngineContext) -> i32) -> io::Result<()> {
    if !system::is_single_threaded() {
        return Err(io::Error::other("a zygote must have one thread"));
    }
    let control = take_control_socket()?;
    let Some(setup) = message::receive::<ZygoteSetup>(&control)? else { return Ok(()) };
    if setup.body.version != MESSAGE_VERSION {
        return message::send(&control, &ZygoteReply::Ready { version: MESSAGE_VERSION }, &[]);
    }
    let signals = system::receive_signals()?;
    let mut state = match ZygoteState::prepare(setup.body, omitted) {
        Ok(state) => state,
        Err(failure) => {
            message::send(&control, &ZygoteReply::Failed(failure), &[])?;
            return Err(io::Error::other("the namespaces could not be created"));
        }
    };
    let served = message::send(&control, &ZygoteReply::Ready { version: MESSAGE_VERSION }, &[])
        .and_then(|()| state.serve_commands(&control, &signals, body));
    state.end_all();
    served
}

/// Moves the socket away from standard input, whose number receives `/dev/null`.
fn take_control_socket() -> io::Result<OwnedFd> {
    let input = system::take_standard_input()?;
    let control = system::duplicate_above(input.as_fd(), libc::STDERR_FILENO + 1)?;
    let null = fs::File::options().read(true).write(true).open("/dev/null")?;
    drop(input);
    let null = system::move_descriptor(null.into(), libc::STDIN_FILENO)?;
    system::forget_descriptor(null);
    Ok(control)
}

impl ZygoteState {
    fn prepare(setup: ZygoteSetup, omitted: &[IsolationLayer]) -> Result<Self, StepFailure> {
        let step = |step: &'static str| move |error: io::Error| StepFailure::new(step, &error);
        system::use_normal_scheduling().map_err(step("give up real-time scheduling"))?;
        system::set_subreaper().map_err(step("adopt orphans"))?;
        let zygote = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())
            .map_err(|error| StepFailure::new("open a descriptor of the zygote", &error.into()))?;
        let mut report = IsolationReport::default();
        // Before the namespaces, where the path of the own cgroup would be another one.
        let cgroups = if omitted.contains(&IsolationLayer::MemoryCgroup) {
            ZygoteCgroups::default()
        } else {
            ZygoteCgroups::prepare(std::process::id(), &mut report)
        };
        let privilege = enter_namespaces()?;
        for layer in
            [IsolationLayer::NetworkNamespace, IsolationLayer::IpcNamespace, IsolationLayer::UtsNamespace]
        {
            report.set_active(layer);
        }
        system::set_host_name(HOST_NAME).map_err(step("set the host name"))?;
        // Not private: a copy here would keep each file system in use that the machine unmounts.
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
            .map_err(|error| StepFailure::new("make mounts downstream", &error.into()))?;
        if privilege == ZygotePrivilege::UserNamespace {
            let reason =
                "the daemon does not run as root, so its engines share its user id in a user namespace";
            report.set(IsolationLayer::OwnUser, LayerState::Unavailable(reason.to_owned()));
        }
        let filters =
            CompiledFilters::compile(setup.kind).map_err(step("compile the filter of system calls"))?;
        Ok(Self {
            privilege,
            binds: setup.binds,
            filters,
            kind: setup.kind,
            omitted: omitted.to_vec(),
            report,
            zygote,
            cgroups,
            users: UserPool::new(setup.users, std::process::id()),
            running: Vec::new(),
            started: 0,
        })
    }

    fn serve_commands(
        &mut self,
        control: &OwnedFd,
        signals: &OwnedFd,
        body: &dyn Fn(EngineContext) -> i32,
    ) -> io::Result<()> {
        loop {
            let [has_command, has_signal] = system::wait_readable([control.as_fd(), signals.as_fd()], None)?;
            if has_signal {
                while let Some(signal) = system::next_signal(signals.as_fd())? {
                    // The thread that started this process has ended, and the daemon with it.
                    if signal == libc::SIGTERM {
                        return Ok(());
                    }
                }
                self.reap_ended();
            }
            if has_command {
                let Some(received) = message::receive::<StartCommand>(control)? else { return Ok(()) };
                match self.start(received.body, received.descriptors, body) {
                    Ok(pidfd) => message::send(control, &ZygoteReply::Started, &[pidfd.as_fd()])?,
                    Err(failure) => message::send(control, &ZygoteReply::Failed(failure), &[])?,
                }
            }
        }
    }

    /// Forks the init process of an engine; returns its pidfd. The child does not return.
    fn start(
        &mut self,
        command: StartCommand,
        descriptors: Vec<OwnedFd>,
        body: &dyn Fn(EngineContext) -> i32,
    ) -> Result<OwnedFd, StepFailure> {
        self.reap_ended();
        let mut start = EngineStart::new(command, descriptors)?;
        let exhausted = || StepFailure { step: "take a free user id".to_owned(), errno: libc::EAGAIN };
        start.user = self.users.take().ok_or_else(exhausted)?;
        self.started += 1;
        let created = self.cgroups.create(&self.started.to_string(), start.limits());
        let cgroup = created.map_err(|error| {
            self.users.give_back(start.user);
            StepFailure::new("create the cgroup of the engine", &error)
        })?;
        let own_user = match self.privilege {
            ZygotePrivilege::Root => 0,
            ZygotePrivilege::UserNamespace => libc::CLONE_NEWUSER,
        };
        match system::fork_into_namespaces(libc::CLONE_NEWPID | libc::CLONE_NEWNS | own_user) {
            Ok(ForkSide::Child) => run_init(self, &cgroup, start, body),
            Ok(ForkSide::Parent(child)) => {
                self.running.push(RunningEngine { pid: child.pid, user: start.user, cgroup });
                Ok(child.pidfd)
            }
            Err(error) => {
                cgroup.remove();
                self.users.give_back(start.user);
                Err(StepFailure::new("fork the engine", &error))
            }
        }
    }

    /// Reaps init processes, and gives their user ids and cgroups back.
    fn reap_ended(&mut self) {
        while let Ok(Some(child)) = system::reap_child(None, false) {
            self.forget(child.pid);
        }
    }

    fn forget(&mut self, pid: libc::pid_t) {
        // A process that is not in the list is an orphan that was adopted.
        if let Some(index) = self.running.iter().position(|engine| engine.pid == pid) {
            let engine = self.running.swap_remove(index);
            engine.cgroup.remove();
            self.users.give_back(engine.user);
        }
    }

    /// Kills and reaps all engines, and removes the cgroups.
    fn end_all(&mut self) {
        self.running.iter().for_each(|engine| system::kill_child(engine.pid));
        while !self.running.is_empty() {
            match system::reap_child(None, true) {
                Ok(Some(child)) => self.forget(child.pid),
                _ => break,
            }
        }
        self.cgroups.remove();
    }
}

/// Moves the zygote to empty namespaces, through a user namespace where it lacks the privilege.
fn enter_namespaces() -> Result<ZygotePrivilege, StepFailure> {
    let (user, group) = system::identity();
    if user == 0 {
        match system::unshare(SHARED_NAMESPACES) {
            Ok(()) => return Ok(ZygotePrivilege::Root),
            // Root without CAP_SYS_ADMIN, as in a container.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
            Err(error) => return Err(StepFailure::new("create namespaces", &error)),
        }
    }
    let step = "create a user namespace (the kernel, AppArmor or user.max_user_namespaces may forbid it; root needs none)";
    system::unshare(libc::CLONE_NEWUSER | SHARED_NAMESPACES)
        .map_err(|error| StepFailure::new(step, &error))?;
    write_id_maps(0, user, group).map_err(|error| StepFailure::new("map the user of the zygote", &error))?;
    Ok(ZygotePrivilege::UserNamespace)
}

/// Maps one user and one group of the outer namespace to `inside`.
pub(super) fn write_id_maps(inside: u32, user: u32, group: u32) -> io::Result<()> {
    // Without this the group cannot be mapped by an unprivileged process.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{inside} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{inside} {group} 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_reused_only_after_others() {
        let mut pool = UserPool::new(EngineUsers { first: 100, count: 2 }, 7);
        assert_eq!(pool.take(), Some(101));
        pool.give_back(101);
        assert_eq!(pool.take(), Some(100));
        assert_eq!(pool.take(), Some(101));
        assert_eq!(pool.take(), None);
    }
}
