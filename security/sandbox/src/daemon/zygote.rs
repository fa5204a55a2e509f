//! Zygotes, as the daemon sees them: child processes that fork confined engines on request.
//!
//! Does: starts the engine program as a zygote, learns which layers of isolation the machine
//! offers, requests engines, and ends the zygote with all of them.
//! Does not: confine; the zygote's own side, `engine`, does.
#![allow(unsafe_code, reason = "a hook between fork and exec")]

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::Serialize;

use crate::message::{
    self, CodeFile, EngineReport, MESSAGE_VERSION, ReceivedMessage, StartCommand, ZygoteReply, ZygoteSetup,
};
use crate::options::{EngineRequest, ZygoteOptions};
use crate::report::IsolationReport;
use crate::{SandboxError, SandboxedEngine, cgroup, system};

/// Maximum time from the start of the program to its first message.
const SETUP_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum time of one step of a start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time in which a zygote ends its engines before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A process that forks confined engines, and that ends with this value.
///
/// It is executed, so it has nothing of the daemon's memory, and it receives one descriptor. Its
/// engines end with it. Methods may be called from several threads.
#[derive(Debug)]
pub struct Zygote {
    /// The socket, locked for a command and its reply; `None` after a failed exchange.
    control: Mutex<Option<OwnedFd>>,
    process: ZygoteProcess,
    report: IsolationReport,
    strict: bool,
}

impl Zygote {
    /// Starts the engine program, and confines one engine without code to see what is possible.
    ///
    /// # Errors
    ///
    /// An option is invalid, the program does not start, a required layer is missing, or any layer
    /// is missing and the options are strict.
    pub fn spawn(options: ZygoteOptions) -> Result<Self, SandboxError> {
        options.check()?;
        cgroup::remove_abandoned();
        let (ours, theirs) =
            message::socket_pair().map_err(|error| failure("create a socket pair", error))?;
        let mut zygote = Self {
            control: Mutex::new(Some(ours)),
            process: ZygoteProcess::start(&options, theirs)?,
            report: IsolationReport::default(),
            strict: options.strict,
        };
        let ZygoteOptions { kind, binds, users, .. } = options;
        let setup = ZygoteSetup { version: MESSAGE_VERSION, kind, binds, users };
        match zygote.exchange(&setup, &[], SETUP_TIMEOUT)?.body {
            ZygoteReply::Ready { version: MESSAGE_VERSION } => {}
            ZygoteReply::Ready { version } => {
                return Err(SandboxError::Mismatch(format!("version {version}, not {MESSAGE_VERSION}")));
            }
            ZygoteReply::Failed(failure) => return Err(failure.into()),
            ZygoteReply::Started => return Err(unexpected_reply()),
        }
        let (probe, report) = zygote.start_reported(&EngineRequest::default(), true)?;
        // Its user id and cgroup are free again before the first request.
        probe.wait(Some(START_TIMEOUT))?;
        zygote.report = report;
        Ok(zygote)
    }

    /// Returns the layers that confine the engines of this zygote.
    #[must_use]
    pub fn isolation(&self) -> &IsolationReport {
        &self.report
    }

    /// Returns the process id of the zygote.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id
    }

    /// Whether the process runs. After its end no engine can be started.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.process.has_ended(Duration::ZERO)
    }

    /// Starts an engine, and returns when it is confined, immediately before its program runs.
    ///
    /// # Errors
    ///
    /// The request exceeds a limit, all user ids are in use, or a layer could not be applied.
    pub fn start(&self, request: &EngineRequest<'_>) -> Result<SandboxedEngine, SandboxError> {
        self.start_reported(request, false).map(|(engine, _)| engine)
    }

    fn start_reported(
        &self,
        request: &EngineRequest<'_>,
        is_probe: bool,
    ) -> Result<(SandboxedEngine, IsolationReport), SandboxError> {
        request.check()?;
        let pair = || message::socket_pair().map_err(|error| failure("create a socket pair", error));
        let ((report, their_report), (status, their_status)) = (pair()?, pair()?);
        rustix::net::sockopt::set_socket_passcred(&report, true)
            .map_err(|error| failure("request credentials of an engine", error.into()))?;
        let command = StartCommand {
            code: request
                .code
                .as_ref()
                .map(|code| CodeFile { name: code.name().to_owned(), length: code.length() }),
            parameters: request.parameters.clone(),
            limits: request.limits.clone(),
            is_probe,
        };
        let mut descriptors = vec![their_report.as_fd(), their_status.as_fd()];
        descriptors.extend(request.code.as_ref().map(|code| code.content()));
        descriptors.extend(&request.descriptors);
        let mut reply = self.exchange(&command, &descriptors, START_TIMEOUT)?;
        let pidfd = match (reply.body, reply.descriptors.pop()) {
            (ZygoteReply::Started, Some(pidfd)) => pidfd,
            (ZygoteReply::Failed(failure), _) => return Err(failure.into()),
            _ => return Err(unexpected_reply()),
        };
        // The zygote and its child have their copies; only those keep the sockets open now.
        drop((their_report, their_status));
        let mut engine = SandboxedEngine::new(pidfd, status, request.limits.cpu_seconds);
        let report = self.await_confinement(&mut engine, &report)?;
        Ok((engine, report))
    }

    /// Receives the report of an engine, and waits until its last layer is applied.
    fn await_confinement(
        &self,
        engine: &mut SandboxedEngine,
        socket: &OwnedFd,
    ) -> Result<IsolationReport, SandboxError> {
        let received = || {
            message::receive_within::<EngineReport>(socket, START_TIMEOUT).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::TimedOut => SandboxError::Timeout("engine"),
                    _ => failure("receive the report of an engine", error),
                }
            })
        };
        let ended = |engine: &SandboxedEngine| match engine.wait(Some(START_TIMEOUT)) {
            Ok(Some(exit)) => SandboxError::EngineEnded(exit.cause),
            Ok(None) => SandboxError::Timeout("engine"),
            Err(error) => error,
        };
        let Some(message) = received()? else { return Err(ended(engine)) };
        let report = match message.body {
            EngineReport::Confined(report) => report,
            EngineReport::Failed(failure) => return Err(failure.into()),
        };
        engine.set_process(message.sender);
        match received()?.map(|message| message.body) {
            None => {}
            Some(EngineReport::Failed(failure)) => return Err(failure.into()),
            Some(EngineReport::Confined(_)) => return Err(unexpected_reply()),
        }
        let missing: Vec<_> = report.missing().map(|(layer, reason)| format!("{layer}: {reason}")).collect();
        if self.strict && !missing.is_empty() {
            return Err(SandboxError::LayersMissing(missing.join("; ")));
        }
        Ok(report)
    }

    /// Sends one message to the zygote and receives the reply.
    fn exchange(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<ReceivedMessage<ZygoteReply>, SandboxError> {
        let mut control = self.control.lock();
        let socket = control.as_ref().ok_or(SandboxError::ZygoteEnded)?;
        let exchanged = match message::send(socket, message, descriptors) {
            Ok(()) => message::receive_within(socket, timeout),
            // Nothing was sent, so the next command is in step.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMSGSIZE | libc::EMFILE)) => {
                return Err(failure("send a command to the zygote", error));
            }
            Err(error) => Err(error),
        };
        let result = match exchanged {
            Ok(Some(reply)) => return Ok(reply),
            Ok(None) => SandboxError::ZygoteEnded,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => SandboxError::Timeout("zygote"),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => SandboxError::ZygoteEnded,
            Err(error) => failure("exchange messages with the zygote", error),
        };
        // A late reply would answer the wrong command. Without the socket the zygote ends.
        *control = None;
        Err(result)
    }
}

fn failure(action: &'static str, source: io::Error) -> SandboxError {
    SandboxError::System { action, source }
}

fn unexpected_reply() -> SandboxError {
    SandboxError::Mismatch("unexpected reply".to_owned())
}

impl Drop for Zygote {
    fn drop(&mut self) {
        // The end of the socket makes the zygote kill its engines and remove their cgroups.
        *self.control.lock() = None;
        self.process.stop();
    }
}

/// The process of a zygote, and the thread that started it.
#[derive(Debug)]
struct ZygoteProcess {
    id: u32,
    pidfd: OwnedFd,
    /// The kernel signals the process when this thread ends; so it waits for the process.
    keeper: Option<JoinHandle<()>>,
}

impl ZygoteProcess {
    fn start(options: &ZygoteOptions, socket: OwnedFd) -> Result<Self, SandboxError> {
        let mut command = Command::new(&options.program);
        command.args(&options.arguments).env_clear().current_dir("/");
        command.stdin(Stdio::from(socket)).stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = std::process::id();
        let before_exec = move || {
            system::set_parent_death_signal(libc::SIGTERM)?;
            if system::parent_id() as u32 != daemon {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            system::close_on_exec_from(3)
        };
        // SAFETY: the hook makes three system calls and constructs errors from numbers: it takes no
        // lock and allocates nothing, as is required between fork and exec.
        unsafe { command.pre_exec(before_exec) };
        let (sender, receiver) = mpsc::sync_channel(1);
        let keep = move || {
            let started = command.spawn().and_then(|mut child| {
                let opened = open_child(child.id());
                if opened.is_err() {
                    let _ = child.kill().and_then(|()| child.wait());
                }
                opened.map(|pidfd| (child, pidfd))
            });
            // The command holds the zygote's end of the socket.
            drop(command);
            match started {
                Ok((mut child, pidfd)) => {
                    let id = child.id();
                    let _ = sender.send(Ok((id, pidfd)));
                    let _ = child.wait();
                    cgroup::remove_of_zygote(id);
                }
                Err(error) => drop(sender.send(Err(error))),
            }
        };
        let keeper = thread::Builder::new()
            .name("zygote-keeper".to_owned())
            .spawn(keep)
            .map_err(|error| failure("start the thread of the zygote", error))?;
        match receiver.recv() {
            Ok(Ok((id, pidfd))) => Ok(Self { id, pidfd, keeper: Some(keeper) }),
            Ok(Err(error)) => Err(failure("start the engine program", error)),
            Err(_) => Err(SandboxError::ZygoteEnded),
        }
    }

    /// Whether the process has ended, or ends within `timeout`.
    fn has_ended(&self, timeout: Duration) -> bool {
        matches!(system::wait_readable([self.pidfd.as_fd()], Some(timeout)), Ok([true]))
    }

    fn stop(&mut self) {
        if !self.has_ended(STOP_TIMEOUT) {
            let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        }
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// Opens a descriptor of a child that was not yet reaped.
fn open_child(id: u32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(id as i32).ok_or(io::ErrorKind::NotFound)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}
