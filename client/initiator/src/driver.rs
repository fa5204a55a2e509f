//! The task of a session, which moves bytes between the stream and the protocol machine.
//!
//! Does: reads directly into the destination that the machine names, writes vectored, times
//! commands, aborts late ones.
//! Does not: decide anything about iSCSI; `sealstone_iscsi::initiator::InitiatorConnection` does.
//! Contract: polls its sources in a fixed order, so that it is deterministic for a given stream.

use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf, Bytes};
use sealstone_channel::RecordStream;
use sealstone_iscsi::initiator::{
    CommandResponse, DiscoveredTarget, InitiatorClosed, InitiatorConnection, InitiatorEvent,
    ManagementFunction, ManagementResult, SubmittedCommand, TaskFailure, Violation,
};
use sealstone_iscsi::{Buffer, Cdb, Gather, Pool, TaskAttribute, TaskId};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, Sleep};

use crate::block_seals::BlockReports;
use crate::proof::Proof;
use crate::protection::{ProtectionOffer, ProtectionOutcome};
use crate::{ScsiResponse, SessionConfig, SessionError};

/// Maximum pieces in one vectored write.
const SLICES_MAX: usize = 64;
/// Iterations of the loop before it yields to other tasks.
const TURNS_MAX: usize = 64;

/// Processes data-in while the rest of it is still being received.
pub(crate) trait DataObserver: Send + Sync {
    /// Called with all data-in received so far, which does not change any more. Runs in the
    /// session's task, so long work delays other commands.
    fn arrived(&self, so_far: &[u8]);
}

/// A command to be submitted to the protocol machine.
pub(crate) struct QueuedCommand {
    pub(crate) lun: u64,
    pub(crate) cdb: Cdb,
    pub(crate) data_out: Gather,
    pub(crate) buffer: Vec<u8>,
    pub(crate) data_in_max: usize,
    pub(crate) timeout: Duration,
    /// End of the time limit, which includes the time in the queue.
    pub(crate) deadline: Instant,
    pub(crate) memory: OwnedSemaphorePermit,
    pub(crate) watch: Option<Arc<dyn DataObserver>>,
    pub(crate) reply: oneshot::Sender<Result<ScsiResponse, SessionError>>,
}

/// A request from a handle to the task.
pub(crate) enum HandleRequest {
    Execute(Box<QueuedCommand>),
    ResetLun(u64, oneshot::Sender<ManagementResult>),
    Discover(oneshot::Sender<Vec<DiscoveredTarget>>),
    Logout(oneshot::Sender<()>),
}

/// A command whose caller is waiting.
struct Waiting {
    reply: oneshot::Sender<Result<ScsiResponse, SessionError>>,
    lent: Arc<Lent>,
    watch: Option<Arc<dyn DataObserver>>,
    deadline: Instant,
    timeout: Duration,
    aborting: bool,
    _memory: OwnedSemaphorePermit,
}

/// Lends a caller's buffer to the protocol machine, which returns it when it drops it.
#[derive(Default)]
struct Lent(Mutex<Vec<u8>>);

impl Lent {
    fn lend(mut buffer: Vec<u8>, length: usize) -> (Arc<Self>, Buffer) {
        if buffer.capacity() == 0 {
            // Fresh zeroed memory, without writing the zeros.
            buffer = vec![0; length];
        } else {
            buffer.resize(length, 0);
        }
        let lent = Arc::new(Self(Mutex::new(buffer)));
        let home: Arc<dyn Pool> = lent.clone();
        let buffer = Buffer::take(&home, length).unwrap_or_default();
        (lent, buffer)
    }

    fn back(&self, length: usize) -> Vec<u8> {
        let mut buffer = core::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        buffer.truncate(length);
        buffer
    }
}

impl Pool for Lent {
    fn take(&self, _: usize) -> Option<Vec<u8>> {
        Some(core::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn give(&self, buffer: Vec<u8>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = buffer;
    }
}

pub(crate) struct SessionDriver<S> {
    stream: RecordStream<S>,
    /// Protection that the login negotiated, until the session begins.
    protection: ProtectionOutcome,
    connection: InitiatorConnection,
    config: SessionConfig,
    asks: mpsc::Receiver<HandleRequest>,
    ready: Option<oneshot::Sender<Result<(), SessionError>>>,
    /// A command that does not fit into the window yet; no other one is taken meanwhile.
    held: Option<(SubmittedCommand, Waiting)>,
    waiting: BTreeMap<TaskId, Waiting>,
    deadlines: BTreeSet<(Instant, TaskId)>,
    resets: BTreeMap<TaskId, oneshot::Sender<ManagementResult>>,
    discovery: Option<oneshot::Sender<Vec<DiscoveredTarget>>>,
    logouts: Vec<oneshot::Sender<()>>,
    out: VecDeque<Bytes>,
    unflushed: bool,
    handles_dropped: bool,
    /// Set when the machine is closed and its last bytes are being written.
    last_words: Option<InitiatorClosed>,
    began: Instant,
    timer: Pin<Box<Sleep>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + 'static> SessionDriver<S> {
    pub(crate) fn new(
        stream: S,
        config: &SessionConfig,
        proof: Option<Proof>,
        asks: mpsc::Receiver<HandleRequest>,
        ready: oneshot::Sender<Result<(), SessionError>>,
        reports: BlockReports,
    ) -> Self {
        let mut connection = InitiatorConnection::new(config.machine(proof), 0);
        let mut protection = ProtectionOutcome::default();
        if let Some(settings) = config.protection.filter(|_| config.target_name.is_some()) {
            let lun = crate::session::wire_lun(config.protected_lun);
            let (offer, outcome) =
                ProtectionOffer::new(settings, lun, reports, config.channel_secret.clone());
            connection = connection.with_login_extension(Box::new(offer));
            protection = outcome;
        }
        Self {
            stream: RecordStream::new(stream),
            protection,
            connection,
            config: config.clone(),
            asks,
            ready: Some(ready),
            held: None,
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            resets: BTreeMap::new(),
            discovery: None,
            logouts: Vec::new(),
            out: VecDeque::new(),
            unflushed: false,
            handles_dropped: false,
            last_words: None,
            began: Instant::now(),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        }
    }

    /// Runs the session until it ends.
    pub(crate) async fn run(mut self) {
        let closed = poll_fn(|cx| self.poll(cx)).await;
        tracing::debug!(reason = %closed, "an iSCSI session ended");
        let error = self.error_of(&closed);
        if let Some(ready) = self.ready.take() {
            let _ = ready.send(Err(error));
        }
        // Requests that were not taken get the error that nothing was sent.
        self.asks.close();
        while let Ok(ask) = self.asks.try_recv() {
            match ask {
                HandleRequest::Execute(order) => drop(order.reply.send(Err(SessionError::Closed))),
                HandleRequest::Logout(done) => self.logouts.push(done),
                HandleRequest::ResetLun(..) | HandleRequest::Discover(_) => {}
            }
        }
        // The machine is dropped first, which returns the buffers.
        drop(self.connection);
        for (_, waiting) in self.waiting {
            let error = if waiting.aborting {
                SessionError::Timeout(waiting.timeout)
            } else {
                SessionError::NexusLost
            };
            let _ = waiting.reply.send(Err(error));
        }
        // This command was never sent.
        if let Some((_, waiting)) = self.held {
            let _ = waiting.reply.send(Err(SessionError::Closed));
        }
        self.logouts.into_iter().for_each(|done| {
            let _ = done.send(());
        });
    }

    fn error_of(&self, closed: &SessionEnd) -> SessionError {
        match closed {
            SessionEnd::Io(error) => SessionError::Unreachable(error.kind()),
            SessionEnd::Closed(InitiatorClosed::Refused(refusal)) => {
                SessionError::LoginRefused { class: refusal.class, detail: refusal.detail }
            }
            SessionEnd::Closed(InitiatorClosed::LoginTimeout) => {
                SessionError::LoginTimeout(self.config.login_timeout)
            }
            SessionEnd::Closed(InitiatorClosed::Violation(Violation::Unproven)) => {
                SessionError::TargetUnproven
            }
            SessionEnd::Closed(InitiatorClosed::Violation(violation)) => {
                SessionError::Protocol(violation.to_string())
            }
            SessionEnd::Closed(InitiatorClosed::LoggedOut) => SessionError::Closed,
            SessionEnd::Closed(_) | SessionEnd::AbortTimeout => SessionError::NexusLost,
        }
    }

    /// Returns the clock of the protocol machine: milliseconds since the start of the session.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        for _ in 0..TURNS_MAX {
            let closed = self.take_events();
            let wrote = match self.poll_write(cx) {
                Ok(wrote) => wrote,
                Err(error) => return Poll::Ready(closed.map_or(SessionEnd::Io(error), SessionEnd::Closed)),
            };
            if let Some(closed) = closed {
                self.last_words = Some(closed);
            }
            if let Some(closed) = &self.last_words {
                if self.out.is_empty() && !self.unflushed {
                    return Poll::Ready(SessionEnd::Closed(closed.clone()));
                }
                if !wrote {
                    return Poll::Pending;
                }
                continue;
            }
            let asked = self.poll_asks(cx);
            let read = match self.poll_read(cx) {
                Ok(read) => read,
                Err(error) => return Poll::Ready(SessionEnd::Io(error)),
            };
            match self.poll_timers(cx) {
                Poll::Ready(Some(end)) => return Poll::Ready(end),
                Poll::Ready(None) => continue,
                Poll::Pending => {}
            }
            if !(wrote || asked || read) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes pending bytes; returns whether bytes were written.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut moved = false;
        loop {
            while self.out.len() < SLICES_MAX {
                let Some(piece) = self.connection.poll_transmit() else { break };
                self.out.push_back(piece);
            }
            if self.out.is_empty() {
                break;
            }
            let empty = IoSlice::new(&[]);
            let mut slices = [empty; SLICES_MAX];
            for (slice, piece) in slices.iter_mut().zip(&self.out) {
                *slice = IoSlice::new(piece);
            }
            let count = self.out.len().min(SLICES_MAX);
            match Pin::new(&mut self.stream).poll_write_vectored(cx, &slices[..count]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(written)) => {
                    self.advance(written);
                    (moved, self.unflushed) = (true, true);
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(moved),
            }
        }
        if self.unflushed && Pin::new(&mut self.stream).poll_flush(cx)?.is_ready() {
            self.unflushed = false;
        }
        Ok(moved)
    }

    fn advance(&mut self, mut written: usize) {
        while let Some(piece) = self.out.front_mut() {
            if written < piece.len() {
                piece.advance(written);
                return;
            }
            written -= piece.len();
            self.out.pop_front();
        }
    }

    /// Reads once; returns whether bytes were read.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let [first, second] = self.connection.rx_space();
        if first.is_empty() && second.is_empty() {
            return Ok(false);
        }
        match self.stream.poll_receive(cx, [first, second]) {
            Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(count)) => {
                match count {
                    0 => self.connection.end_of_stream(),
                    count => {
                        let now_ms = self.now_ms();
                        self.connection.received(count, now_ms);
                        self.show_data_in();
                    }
                }
                Ok(true)
            }
        }
    }

    /// Passes the data-in received so far to the watcher of its command.
    fn show_data_in(&self) {
        let Some((task, so_far)) = self.connection.data_in_so_far() else { return };
        if let Some(watch) = self.waiting.get(&task).and_then(|waiting| waiting.watch.as_ref()) {
            watch.arrived(so_far);
        }
    }

    /// Takes requests from handles while the window has space; returns whether one was taken.
    fn poll_asks(&mut self, cx: &mut Context<'_>) -> bool {
        let mut taken = false;
        // There are no handles before the login has succeeded.
        while self.held.is_none() && !self.handles_dropped && self.ready.is_none() {
            match self.asks.poll_recv(cx) {
                Poll::Pending => break,
                Poll::Ready(None) => {
                    self.handles_dropped = true;
                    self.connection.logout();
                }
                Poll::Ready(Some(ask)) => self.take_ask(ask),
            }
            taken = true;
        }
        taken
    }

    fn take_ask(&mut self, ask: HandleRequest) {
        match ask {
            HandleRequest::Execute(order) => {
                let QueuedCommand {
                    lun,
                    cdb,
                    data_out,
                    buffer,
                    data_in_max,
                    timeout,
                    deadline,
                    memory,
                    watch,
                    reply,
                } = *order;
                let (lent, data_in) = Lent::lend(buffer, data_in_max);
                let command =
                    SubmittedCommand { lun, cdb, attribute: TaskAttribute::Simple, data_out, data_in };
                let waiting =
                    Waiting { reply, lent, watch, deadline, timeout, aborting: false, _memory: memory };
                self.submit(command, waiting);
            }
            HandleRequest::ResetLun(lun, reply) => {
                match self.connection.manage(ManagementFunction::LogicalUnitReset(lun)) {
                    Ok(id) => drop(self.resets.insert(id, reply)),
                    Err(_) => drop(reply.send(ManagementResult::NotSupported)),
                }
            }
            HandleRequest::Discover(reply) => {
                if self.connection.send_targets("All").is_ok() {
                    self.discovery = Some(reply);
                }
            }
            HandleRequest::Logout(reply) => {
                self.logouts.push(reply);
                self.connection.logout();
            }
        }
    }

    fn submit(&mut self, command: SubmittedCommand, waiting: Waiting) {
        use sealstone_iscsi::initiator::SubmitError;
        // A command whose caller has stopped waiting is not sent.
        if waiting.reply.is_closed() {
            return;
        }
        match self.connection.submit(command) {
            Ok(task) => {
                self.deadlines.insert((waiting.deadline, task));
                self.waiting.insert(task, waiting);
            }
            Err(refused) => match refused.error {
                SubmitError::WindowFull => self.held = Some((refused.command, waiting)),
                SubmitError::NotReady => drop(waiting.reply.send(Err(SessionError::Closed))),
                SubmitError::TooLong => {
                    let actual = refused.command.data_out.len().max(refused.command.data_in.len());
                    let max = u32::MAX as usize;
                    drop(waiting.reply.send(Err(SessionError::TooLong {
                        what: "a data buffer",
                        actual,
                        max,
                    })));
                }
            },
        }
    }

    /// Delivers events to waiting callers; returns the reason when the connection closes.
    fn take_events(&mut self) -> Option<InitiatorClosed> {
        while let Some(event) = self.connection.poll_event() {
            match event {
                InitiatorEvent::LoggedIn(_) => {
                    let negotiated = self.protection.lock().unwrap_or_else(PoisonError::into_inner).take();
                    if let Some(negotiated) = negotiated {
                        // The last request of the login was written before its answer was read.
                        self.stream.begin_protection(negotiated, 0);
                    }
                    if let Some(ready) = self.ready.take() {
                        let _ = ready.send(Ok(()));
                    }
                }
                InitiatorEvent::Completed { task, outcome } => self.complete(task, outcome),
                InitiatorEvent::Managed { id, result } => {
                    if let Some(reply) = self.resets.remove(&id) {
                        let _ = reply.send(result);
                    }
                }
                InitiatorEvent::Targets(targets) => {
                    if let Some(reply) = self.discovery.take() {
                        let _ = reply.send(targets);
                    }
                }
                InitiatorEvent::LogoutRequested { seconds } => {
                    tracing::debug!(seconds, "the target requested a logout");
                    self.connection.logout();
                }
                InitiatorEvent::WindowOpen => {
                    if let Some((command, waiting)) = self.held.take() {
                        self.submit(command, waiting);
                    }
                }
                InitiatorEvent::Closed(reason) => return Some(reason),
            }
        }
        None
    }

    fn complete(&mut self, task: TaskId, outcome: Result<CommandResponse, TaskFailure>) {
        let Some(waiting) = self.waiting.remove(&task) else { return };
        self.deadlines.remove(&(waiting.deadline, task));
        let result = match outcome {
            Ok(CommandResponse { status, sense, data_in, data_in_length, read_residual, write_residual }) => {
                drop(data_in);
                let data_in = waiting.lent.back(data_in_length);
                Ok(ScsiResponse { status, sense, data_in, read_residual, write_residual })
            }
            Err(TaskFailure::Aborted) if waiting.aborting => Err(SessionError::Timeout(waiting.timeout)),
            Err(TaskFailure::Aborted | TaskFailure::Target(_)) => Err(SessionError::NexusLost),
            Err(TaskFailure::Rejected(reason)) => Err(SessionError::Rejected(reason)),
        };
        let _ = waiting.reply.send(result);
    }

    /// Handles due timers; `Ready(None)` if one was due.
    fn poll_timers(&mut self, cx: &mut Context<'_>) -> Poll<Option<SessionEnd>> {
        let protocol = self.connection.poll_timeout().map(|due| self.began + Duration::from_millis(due));
        let commands = self.deadlines.first().map(|(due, _)| *due);
        let held = self.held.as_ref().map(|(_, waiting)| waiting.deadline);
        let Some(due) = protocol.into_iter().chain(commands).chain(held).min() else {
            return Poll::Pending;
        };
        // Deadlines change with every command and every byte. A timer that fires too early costs
        // one check, resetting it each time costs more.
        if self.timer.is_elapsed() || due < self.timer.deadline() {
            self.timer.as_mut().reset(due);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            if due <= Instant::now() {
                return self.timed_out();
            }
            self.timer.as_mut().reset(due);
        }
        Poll::Pending
    }

    /// Handles expired deadlines.
    fn timed_out(&mut self) -> Poll<Option<SessionEnd>> {
        let now_ms = self.now_ms();
        self.connection.handle_timeout(now_ms);
        if let Some((_, waiting)) = self.held.take_if(|(_, waiting)| waiting.deadline <= Instant::now()) {
            // It was never sent. Commands behind it in the queue are tried next.
            let _ = waiting.reply.send(Err(SessionError::Timeout(waiting.timeout)));
        }
        while let Some((due, task)) = self.deadlines.first().copied() {
            if due > Instant::now() {
                break;
            }
            self.deadlines.remove(&(due, task));
            let Some(waiting) = self.waiting.get_mut(&task) else { continue };
            if waiting.aborting || self.connection.manage(ManagementFunction::AbortTask(task)).is_err() {
                waiting.aborting = true;
                return Poll::Ready(Some(SessionEnd::AbortTimeout));
            }
            waiting.aborting = true;
            waiting.deadline = Instant::now() + self.config.abort_timeout;
            self.deadlines.insert((waiting.deadline, task));
        }
        Poll::Ready(None)
    }
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    #[error(transparent)]
    Closed(InitiatorClosed),
    #[error("the connection failed: {0}")]
    Io(io::Error),
    #[error("a command that timed out could not be aborted")]
    AbortTimeout,
}
