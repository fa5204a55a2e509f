//! A running engine as the daemon sees it: a process file descriptor (pidfd) and a status socket.
//!
//! Does: pauses, resumes, kills and awaits the engine; reads its processor time and peak memory;
//! states why it ended.
//! Does not: start engines; [`Zygote`](super::Zygote) does.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{PidfdFlags, Signal};

use crate::message::{self, EngineStatus};
use crate::{SandboxError, system};

/// Why an engine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineExitCause {
    /// The engine program returned or exited with this code.
    Exited(i32),
    /// A signal ended the engine, for instance SIGSEGV.
    Signalled(i32),
    /// The engine made a system call that the allow-list does not have (SIGSYS).
    ForbiddenCall,
    /// The kernel killed the engine at the limit of its memory cgroup.
    MemoryLimit,
    /// The engine used all of its processor time.
    CpuLimit,
    /// [`SandboxedEngine::kill`] ended the engine, or another SIGKILL of the same machine.
    Killed,
    /// The zygote or the engine's init process ended first; its usage is unknown.
    Lost,
}

/// The end of an engine: the cause, and what the engine used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineExit {
    /// Why the engine ended.
    pub cause: EngineExitCause,
    /// Processor time, in user and kernel mode.
    pub cpu_time: Duration,
    /// Peak of the resident memory in bytes, shared pages included.
    pub peak_memory: u64,
}

/// A confined process that runs an engine program. It is killed when this value is dropped.
#[derive(Debug)]
pub struct SandboxedEngine {
    /// The init process of the engine's process namespace: with it ends every process in there.
    pidfd: OwnedFd,
    status: OwnedFd,
    /// The engine itself as this namespace numbers it.
    process: Option<libc::pid_t>,
    /// The engine itself, for signals.
    process_fd: Option<OwnedFd>,
    cpu_seconds: u64,
    state: Mutex<EngineState>,
}

#[derive(Debug, Default)]
struct EngineState {
    is_killed: bool,
    /// Processor time and peak memory when the engine was killed.
    usage_at_kill: (Duration, u64),
    exit: Option<EngineExit>,
}

impl SandboxedEngine {
    pub(super) fn new(pidfd: OwnedFd, status: OwnedFd, cpu_seconds: u64) -> Self {
        Self { pidfd, status, process: None, process_fd: None, cpu_seconds, state: Mutex::default() }
    }

    pub(super) fn set_process(&mut self, process: Option<libc::pid_t>) {
        self.process = process;
        self.process_fd = process
            .and_then(rustix::process::Pid::from_raw)
            .and_then(|process| rustix::process::pidfd_open(process, PidfdFlags::empty()).ok())
            // The number was the engine's when it was opened, since its init process runs later.
            .filter(|_| matches!(self.wait_ended(), Ok([false])));
    }

    /// Whether the init process has ended, without waiting.
    fn wait_ended(&self) -> io::Result<[bool; 1]> {
        system::wait_readable([self.pidfd.as_fd()], Some(Duration::ZERO))
    }

    /// Stops all threads of the engine until [`Self::resume`]; returns whether the kernel accepted
    /// that. The engine cannot prevent it.
    #[must_use]
    pub fn pause(&self) -> bool {
        self.signal(Signal::STOP)
    }

    /// Lets a stopped engine continue; returns whether the kernel accepted that.
    #[must_use]
    pub fn resume(&self) -> bool {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> bool {
        let send = |process| rustix::process::pidfd_send_signal(process, signal).is_ok();
        self.process_fd.as_ref().is_some_and(send)
    }

    /// Returns a descriptor that becomes readable when no process of the engine is left.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Sends SIGKILL to all processes of the engine. Does not wait.
    pub fn kill(&self) {
        let mut state = self.state.lock();
        if state.exit.is_some() || state.is_killed {
            return;
        }
        state.usage_at_kill = (self.cpu_time_now(), self.peak_memory_now());
        state.is_killed = true;
        // It fails only if the process has ended.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Waits for the end of all processes of the engine; returns `None` after `timeout`.
    ///
    /// # Errors
    ///
    /// The kernel refuses to wait, for instance for lack of memory.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<EngineExit>, SandboxError> {
        let failed = |source| SandboxError::System { action: "wait for an engine", source };
        if let Some(exit) = self.state.lock().exit {
            return Ok(Some(exit));
        }
        if let [false] = system::wait_readable([self.pidfd.as_fd()], timeout).map_err(failed)? {
            return Ok(None);
        }
        let mut state = self.state.lock();
        if state.exit.is_none() {
            let status = message::receive_within::<EngineStatus>(&self.status, Duration::ZERO);
            // Without a status the init process was killed before it could send one.
            let status = status.ok().flatten().map(|message| message.body);
            state.exit = Some(self.conclude(status, &state));
        }
        Ok(state.exit)
    }

    fn conclude(&self, status: Option<EngineStatus>, state: &EngineState) -> EngineExit {
        match status {
            Some(status) => EngineExit {
                cause: cause_of(&status, self.cpu_seconds),
                cpu_time: status.cpu_time,
                peak_memory: status.peak_memory,
            },
            None => EngineExit {
                cause: if state.is_killed { EngineExitCause::Killed } else { EngineExitCause::Lost },
                cpu_time: state.usage_at_kill.0,
                peak_memory: state.usage_at_kill.1,
            },
        }
    }

    /// Returns the processor time that the engine has used so far.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let state = self.state.lock();
        match state.exit {
            Some(exit) => exit.cpu_time,
            None if state.is_killed => state.usage_at_kill.0,
            None => self.cpu_time_now(),
        }
    }

    /// Returns the peak of the engine's resident memory so far, in bytes.
    #[must_use]
    pub fn peak_memory(&self) -> u64 {
        let state = self.state.lock();
        match state.exit {
            Some(exit) => exit.peak_memory,
            None if state.is_killed => state.usage_at_kill.1,
            None => self.peak_memory_now(),
        }
    }

    fn cpu_time_now(&self) -> Duration {
        self.figure_of(system::process_cpu_time)
    }

    fn peak_memory_now(&self) -> u64 {
        self.figure_of(|pid| {
            let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            Ok(kilobytes.unwrap_or(0) * 1024)
        })
    }

    /// Returns a figure of the engine's process, or nothing if the process has ended.
    fn figure_of<T: Default>(&self, read: impl FnOnce(libc::pid_t) -> io::Result<T>) -> T {
        let Some(process) = self.process else { return T::default() };
        let figure = read(process).unwrap_or_default();
        // The number is the engine's for certain only as long as its init process runs.
        match self.wait_ended() {
            Ok([false]) => figure,
            _ => T::default(),
        }
    }
}

impl Drop for SandboxedEngine {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Translates a wait status.
fn cause_of(status: &EngineStatus, cpu_seconds: u64) -> EngineExitCause {
    let raw = status.wait_status;
    if libc::WIFEXITED(raw) {
        return EngineExitCause::Exited(libc::WEXITSTATUS(raw));
    }
    match libc::WTERMSIG(raw) {
        libc::SIGSYS => EngineExitCause::ForbiddenCall,
        libc::SIGXCPU => EngineExitCause::CpuLimit,
        libc::SIGKILL if status.memory_kills > 0 => EngineExitCause::MemoryLimit,
        libc::SIGKILL if status.cpu_time.as_secs() >= cpu_seconds => EngineExitCause::CpuLimit,
        libc::SIGKILL => EngineExitCause::Killed,
        signal => EngineExitCause::Signalled(signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_status_becomes_its_cause() {
        let status = |wait_status, memory_kills, cpu_s| EngineStatus {
            wait_status,
            cpu_time: Duration::from_secs(cpu_s),
            peak_memory: 0,
            memory_kills,
        };
        for (given, cause) in [
            (status(3 << 8, 0, 0), EngineExitCause::Exited(3)),
            (status(libc::SIGSYS, 0, 0), EngineExitCause::ForbiddenCall),
            (status(libc::SIGSEGV, 0, 0), EngineExitCause::Signalled(libc::SIGSEGV)),
            (status(libc::SIGXCPU, 0, 0), EngineExitCause::CpuLimit),
            (status(libc::SIGKILL, 1, 0), EngineExitCause::MemoryLimit),
            (status(libc::SIGKILL, 0, 5), EngineExitCause::CpuLimit),
            (status(libc::SIGKILL, 0, 4), EngineExitCause::Killed),
        ] {
            assert_eq!(cause_of(&given, 5), cause, "{given:?}");
        }
    }
}
