//! Task of one connection: moves bytes between a stream and the state machine, and runs commands.
//!
//! Does: TLS and login, the loop over received bytes, replies and timeouts, the end of the session.
//! `commands` runs commands, `io` waits and writes, `orders` is task management.
//! Contract: one task owns the state machine; other threads reach it only through the mailbox.

mod commands;
mod io;
mod orders;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sealstone_block_protection::ProtectionSettings;
use sealstone_channel::{ChannelSecret, RecordStream};
use sealstone_iscsi::{
    Pool, TaskId,
    target_side::{
        CommandReply, LoginRequest, ManagementFunction, ManagementResult, Refusal, SenseFormat, SessionKind,
        TargetClosed, TargetConnection, TargetEvent,
    },
};
use sealstone_scsi::{
    additional::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR,
    lu::{ChannelToken, NexusId},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use crate::{
    BufferShare, Counter,
    block_seals::ConnectionSeals,
    luns::VisibleLuns,
    mailbox::{self, Mailbox},
    protection::{ProtectionNegotiation, ProtectionOutcome},
    refusals::INTEGRITY,
    server::{ConnectionSlot, TargetState},
    sessions::{LoginDenial, SessionEntry, SessionRequest, SessionSignal},
    throttle::LoginThrottle,
};
use io::{SendQueue, Wakeup};
use orders::{OrderRequest, PendingOrder};

/// Bytes in the send queue above which no further command is started.
const HIGH_WATER: usize = 512 * 1024;
/// Commands of one connection that run on other threads at once. Further ones wait in the
/// connection.
const OFFLOADED_MAX: usize = 32;
/// Work after which the task yields to others: commands, each weighted by its data.
const YIELD_AFTER: usize = 32;
/// Bytes of data that count as one more command.
const YIELD_BYTES: usize = 64 * 1024;
/// Interval at which a connection that waits for memory retries by itself.
const STARVED_POLL: Duration = Duration::from_millis(20);
/// Longest time to write the final PDUs of a connection that ends.
const FINAL_WRITE_MAX: Duration = Duration::from_secs(5);

pub(crate) async fn serve<S>(
    shared: Arc<TargetState>,
    stream: S,
    local: String,
    peer: String,
    channel: Option<(ChannelToken, Option<ChannelSecret>)>,
    leaving: watch::Receiver<bool>,
    slot: ConnectionSlot,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    shared.counters.add(Counter::ConnectionsOpen, 1);
    let _open = OpenConnectionCount(Arc::clone(&shared));
    let most = shared.config.memory_per_connection_max;
    let share = BufferShare::of_source(Arc::clone(&shared.memory), most, slot.place.memory());
    let now = shared.config.clock.now_ms();
    let throttle = LoginThrottle {
        failures: Arc::clone(&shared.failures),
        random: shared.config.random.clone(),
        source: slot.place.source().to_owned(),
    };
    let (channel, secret) = channel.map_or((None, None), |(token, secret)| (Some(token), secret));
    let (negotiation, protection) = ProtectionNegotiation::new(Arc::clone(&shared), secret);
    let machine =
        TargetConnection::new(Arc::clone(&shared.protocol), Arc::clone(&share) as Arc<dyn Pool>, local, now)
            .with_login_guard(Arc::new(throttle))
            .with_login_extension(Box::new(negotiation))
            .with_sense_format(Arc::clone(&shared) as Arc<dyn SenseFormat>);
    let (control, mailbox) = mailbox::mailbox();
    let (completed, completions) = mpsc::unbounded_channel();
    let (orders, ordered) = mpsc::unbounded_channel();
    let mut driver = ConnectionDriver {
        shared,
        share,
        machine,
        stream: RecordStream::new(stream),
        protection,
        seals: None,
        send_queue: SendQueue::default(),
        peer,
        slot,
        channel,
        session: None,
        control,
        mailbox,
        leaving,
        left: false,
        completed,
        completions,
        orders,
        ordered,
        waiting: Vec::new(),
        delayed_replies: Vec::new(),
        offloaded: 0,
        queued: Vec::new(),
        connection_ended: Arc::default(),
        rejects_seen: 0,
    };
    let reason = driver.run().await;
    driver.end(&reason).await;
}

struct OpenConnectionCount(Arc<TargetState>);

impl Drop for OpenConnectionCount {
    fn drop(&mut self) {
        self.0.counters.sub(Counter::ConnectionsOpen, 1);
    }
}

/// Why the task ends.
#[derive(Debug, thiserror::Error)]
enum ConnectionEnd {
    #[error(transparent)]
    Protocol(#[from] TargetClosed),
    #[error("socket: {0}")]
    Socket(#[from] std::io::Error),
    #[error("write timeout: the initiator does not read")]
    WriteTimeout,
    #[error("replaced by a new login")]
    Replaced,
    #[error("the target was reset")]
    Reset,
    #[error("evicted for an account or address with fewer connections")]
    Evicted,
}

/// A normal session. Dropping it reports the lost nexus to the logical units, even if the task is
/// aborted.
struct NormalSession {
    shared: Arc<TargetState>,
    entry: Arc<SessionEntry>,
    /// Logical units visible to the initiator. `None`: all.
    luns: Option<Vec<u16>>,
    /// Protection of the session, if it has one.
    protection: Option<ProtectionSettings>,
}

impl NormalSession {
    fn visible(&self) -> VisibleLuns<'_> {
        VisibleLuns::of_session(self.luns.as_deref(), self.protection)
    }
}

impl Drop for NormalSession {
    fn drop(&mut self) {
        let (units, entry) = (self.shared.luns.units(), Arc::clone(&self.entry));
        // A unit may block for work of the nexus, and this thread serves other connections. A login
        // that replaces the session waits until the entry is dropped, so it does not see this loss.
        let report = move || {
            units.iter().for_each(|unit| unit.nexus_lost(entry.nexus));
            drop(entry);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(report)),
            Err(_) => report(),
        }
    }
}

struct ConnectionDriver<S> {
    shared: Arc<TargetState>,
    share: Arc<BufferShare>,
    machine: TargetConnection,
    stream: RecordStream<S>,
    /// Protection that the login negotiated, until the session begins.
    protection: ProtectionOutcome,
    /// Seals of blocks on their way, if blocks have keys.
    seals: Option<ConnectionSeals>,
    send_queue: SendQueue,
    peer: String,
    /// Slot in the limits, freed when dropped.
    slot: ConnectionSlot,
    /// TLS channel of the connection.
    channel: Option<ChannelToken>,
    session: Option<NormalSession>,
    control: mailbox::MailboxSender,
    mailbox: Mailbox,
    leaving: watch::Receiver<bool>,
    left: bool,
    completed: mpsc::UnboundedSender<(TaskId, CommandReply)>,
    completions: mpsc::UnboundedReceiver<(TaskId, CommandReply)>,
    /// Task orders of commands that run on other threads.
    orders: mpsc::UnboundedSender<OrderRequest>,
    ordered: mpsc::UnboundedReceiver<OrderRequest>,
    waiting: Vec<PendingOrder>,
    /// Replies that are delayed until the order of their command is complete.
    delayed_replies: Vec<(TaskId, CommandReply)>,
    /// Commands that run on another thread or wait for one.
    offloaded: usize,
    /// Commands that wait for a slot for long ones. Dropping the sender cancels the wait.
    queued: Vec<(TaskId, oneshot::Sender<()>)>,
    /// Whether the connection has ended; waiting commands then do not start.
    connection_ended: Arc<AtomicBool>,
    rejects_seen: u32,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> ConnectionDriver<S> {
    fn now_ms(&self) -> u64 {
        self.shared.config.clock.now_ms()
    }

    async fn run(&mut self) -> ConnectionEnd {
        let mut timer = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        let mut armed: Option<u64> = None;
        let mut leaving = self.leaving.clone();
        let mut leave = std::pin::pin!(async move {
            // An error means that the target was dropped, which cannot happen while this task runs.
            let _ = leaving.wait_for(|leaving| *leaving).await;
        });
        let mut evicted = self.slot.ticket.evicted();
        let mut evict = std::pin::pin!(async move {
            // An error means that the target was dropped, which cannot happen while this task runs.
            let _ = evicted.wait_for(|evicted| *evicted).await;
        });
        loop {
            if let Some(end) = self.work().await {
                return end;
            }
            self.cancel_ended_waits();
            let now = self.now_ms();
            if let Some(due) = self.due(now)
                && armed.is_none_or(|armed| due < armed)
            {
                timer.as_mut().reset(Instant::now() + Duration::from_millis(due.saturating_sub(now)));
                armed = Some(due);
            }
            match self.wait(timer.as_mut(), armed.is_some(), leave.as_mut(), evict.as_mut()).await {
                Err(error) => return ConnectionEnd::Socket(error),
                Ok(Wakeup::Written) => {}
                Ok(Wakeup::Read(0)) => self.machine.end_of_stream(),
                Ok(Wakeup::Read(count)) => {
                    self.shared.counters.add(Counter::BytesReceived, count as u64);
                    let now = self.now_ms();
                    self.machine.received(count, now);
                }
                Ok(Wakeup::Completed(task, reply)) => {
                    self.offloaded -= 1;
                    self.on_reply(task, reply);
                }
                Ok(Wakeup::Ordered(order)) => self.execute_order(order),
                Ok(Wakeup::Evicted) => return ConnectionEnd::Evicted,
                Ok(Wakeup::SessionSignal(SessionSignal::Replaced)) => return ConnectionEnd::Replaced,
                Ok(Wakeup::SessionSignal(SessionSignal::Reset)) => return ConnectionEnd::Reset,
                Ok(Wakeup::SessionSignal(SessionSignal::EndCommands { lun, cleared })) => {
                    let ended = self.machine.end_commands(lun);
                    if cleared && ended > 0 {
                        self.report_cleared(lun);
                    }
                }
                Ok(Wakeup::SessionSignal(SessionSignal::Leave)) => {
                    self.left = true;
                    self.machine.request_logout(self.shared.config.drain_seconds);
                }
                Ok(Wakeup::Timer) => {
                    armed = None;
                    let now = self.now_ms();
                    if self.send_queue.is_stuck(now, self.shared.config.write_timeout_ms) {
                        return ConnectionEnd::WriteTimeout;
                    }
                    self.machine.handle_timeout(now);
                    if self.machine.is_starved() {
                        self.machine.memory_freed(now);
                    }
                }
                Ok(Wakeup::BufferPool) => {
                    let now = self.now_ms();
                    self.machine.memory_freed(now);
                }
            }
        }
    }

    /// Returns the time of the next timeout in milliseconds.
    fn due(&self, now: u64) -> Option<u64> {
        let starved = u64::try_from(STARVED_POLL.as_millis()).unwrap_or(u64::MAX);
        let again = self.machine.is_starved().then(|| now.saturating_add(starved));
        let written = self.send_queue.due(self.shared.config.write_timeout_ms);
        [self.machine.poll_timeout(), again, written].into_iter().flatten().min()
    }

    /// Processes events and fills the send queue until it is full. Returns the reason if the
    /// connection ends.
    async fn work(&mut self) -> Option<ConnectionEnd> {
        let mut done = 0;
        loop {
            self.send_queue.fill(&mut self.machine, self.shared.config.clock.now_ms());
            if self.send_queue.is_full() || self.offloaded >= OFFLOADED_MAX {
                return None;
            }
            if done >= YIELD_AFTER {
                // Commands that run here occupy the thread: let other tasks run in between.
                done = 0;
                tokio::task::yield_now().await;
            }
            let Some(event) = self.machine.poll_event() else { break };
            match event {
                TargetEvent::Login(request) => self.login(request).await,
                TargetEvent::Command(command) => {
                    done += 1 + command.data_out.len().max(command.data_in_max as usize) / YIELD_BYTES;
                    self.execute(command);
                }
                TargetEvent::Management { id, function } => self.manage(id, function),
                TargetEvent::Closed(reason) => return Some(ConnectionEnd::Protocol(reason)),
            }
        }
        let rejects = self.machine.rejects();
        self.shared.counters.add(Counter::Rejects, u64::from(rejects - self.rejects_seen));
        self.rejects_seen = rejects;
        None
    }

    async fn login(&mut self, request: LoginRequest) {
        let shared = Arc::clone(&self.shared);
        let counters = &shared.counters;
        let LoginRequest { initiator, isid, tsih, cid, kind, user, luns, .. } = request;
        if kind == SessionKind::Discovery {
            if tsih == 0 {
                if !self.take_slot(user.as_deref()) {
                    return self.machine.refuse(Refusal::OutOfResources);
                }
                counters.add(Counter::Logins, 1);
                self.machine.admit(shared.sessions.tsih());
            } else {
                self.machine.refuse(Refusal::NoSuchSession);
            }
            return;
        }
        if !self.take_slot(user.as_deref()) {
            return self.machine.refuse(Refusal::OutOfResources);
        }
        let own = self.protection.lock().as_ref().map(|negotiated| negotiated.settings);
        if shared.luns.are_all_protected(VisibleLuns::of_session(luns.as_deref(), own)) {
            tracing::warn!(peer = %self.peer, %initiator, user, "login refused: every unit of this initiator requires protection");
            return self.machine.refuse(Refusal::Protection);
        }
        let parameters = self.machine.parameters();
        if own.is_some_and(|own| own.key_list_form().is_some())
            && (parameters.header_digest || parameters.data_digest)
        {
            tracing::warn!(peer = %self.peer, %initiator, user, "login refused: protected PDUs have no digests of iSCSI");
            return self.machine.refuse(Refusal::Protection);
        }
        let (name, channel) = (initiator.clone(), self.channel);
        let wanted = SessionRequest { initiator: name, user: user.clone(), isid, tsih, cid, channel };
        match shared.sessions.enter(wanted, self.control.clone()).await {
            Ok(entry) => {
                let (nexus, tsih) = (entry.nexus, entry.tsih);
                for unit in shared.luns.units() {
                    unit.nexus_established(nexus, &entry.port());
                }
                let negotiated = self.protection.lock().take();
                let protection = negotiated.as_ref().map(|negotiated| negotiated.settings);
                self.session = Some(NormalSession {
                    shared: Arc::clone(&shared),
                    entry: Arc::new(entry),
                    luns,
                    protection,
                });
                counters.add(Counter::Logins, 1);
                tracing::info!(peer = %self.peer, %initiator, user, nexus = nexus.0, "session begins");
                self.machine.admit(tsih);
                if let Some(negotiated) = negotiated {
                    // Only the last login response waits, and it is the last PDU without records.
                    self.send_queue.fill(&mut self.machine, self.shared.config.clock.now_ms());
                    self.stream.begin_protection(negotiated.stream, self.send_queue.bytes());
                    self.seals = negotiated.seals;
                }
            }
            Err(LoginDenial::NoSuchSession) => self.machine.refuse(Refusal::NoSuchSession),
            Err(LoginDenial::TooManyConnections) => self.machine.refuse(Refusal::TooManyConnections),
            Err(LoginDenial::OtherAccount) => {
                tracing::warn!(peer = %self.peer, %initiator, user, "login refused: the session of this port belongs to another account");
                self.machine.refuse(Refusal::Authorization);
            }
            Err(LoginDenial::Stuck) => {
                tracing::warn!(peer = %self.peer, %initiator, "login refused: the session to be replaced did not end in time");
                self.machine.refuse(Refusal::OutOfResources);
            }
        }
    }

    /// Takes a slot after login from the share of the account, or of the address if there is no
    /// account.
    fn take_slot(&self, user: Option<&str>) -> bool {
        let owner = user.map_or_else(
            || format!("address {}", self.slot.place.source()),
            |user| format!("account {user}"),
        );
        let taken = self.slot.ticket.activate(&owner, false).is_ok();
        if !taken {
            self.shared.counters.add(Counter::ConnectionsRefused, 1);
            self.shared.refusals.add(
                self.slot.place.source(),
                self.machine.initiator(),
                "login",
                "connections",
            );
        }
        taken
    }

    fn nexus(&self) -> Option<NexusId> {
        self.session.as_ref().map(|session| session.entry.nexus)
    }

    fn manage(&mut self, id: TaskId, function: ManagementFunction) {
        let result = self.managed(function).unwrap_or_else(|refused| refused);
        self.machine.managed(id, result);
        if function == ManagementFunction::TargetColdReset && result == ManagementResult::Complete {
            self.machine.abandon(TargetClosed::TargetReset);
        }
    }

    fn managed(&self, function: ManagementFunction) -> Result<ManagementResult, ManagementResult> {
        let shared = &self.shared;
        let session = self.session.as_ref().ok_or(ManagementResult::Rejected)?;
        let nexus = session.entry.nexus;
        let unit = |lun| shared.luns.find(lun, session.visible()).ok_or(ManagementResult::NoSuchLun);
        if let ManagementFunction::AbortTaskSet(lun) = function {
            return unit(lun).map(|_| ManagementResult::Complete);
        }
        if let ManagementFunction::ClearTaskSet(lun) | ManagementFunction::LogicalUnitReset(lun) = function {
            unit(lun)?;
        }
        if !shared.resets.take(self.now_ms()) {
            shared.counters.add(Counter::ResetsRefused, 1);
            let name = session.entry.port().name;
            shared.refusals.add(self.slot.place.source(), name, "manage", "too-many-resets");
            return Err(ManagementResult::Rejected);
        }
        shared.counters.add(Counter::ResetThrottle, 1);
        match function {
            ManagementFunction::AbortTaskSet(_) => {}
            ManagementFunction::ClearTaskSet(lun) => shared.sessions.end_commands(nexus, Some(lun), true),
            ManagementFunction::LogicalUnitReset(lun) => {
                shared.sessions.end_commands(nexus, Some(lun), false);
                unit(lun)?.1.reset();
            }
            ManagementFunction::TargetWarmReset | ManagementFunction::TargetColdReset => {
                shared.sessions.end_commands(nexus, None, false);
                for unit in shared.luns.units() {
                    unit.reset();
                }
                if function == ManagementFunction::TargetColdReset {
                    shared.sessions.reset(nexus);
                }
            }
        }
        Ok(ManagementResult::Complete)
    }

    /// Reports that CLEAR TASK SET of another session ended commands of this one.
    fn report_cleared(&self, lun: Option<u64>) {
        if let (Some(session), Some(lun)) = (&self.session, lun)
            && let Some((_, unit)) = self.shared.luns.find(lun, session.visible())
        {
            unit.attention(session.entry.nexus, COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
        }
    }

    /// Sends the final PDUs, waits for commands that cannot be stopped, and frees all resources.
    async fn end(mut self, end: &ConnectionEnd) {
        let counters = &self.shared.counters;
        match end {
            ConnectionEnd::Protocol(TargetClosed::Violation(_)) => counters.add(Counter::Violations, 1),
            ConnectionEnd::Protocol(TargetClosed::Refused(why)) => {
                counters.add(Counter::LoginsRefused, 1);
                counters.add(Counter::ProtectionRefused, u64::from(*why == Refusal::Protection));
                let (source, initiator) = (self.slot.place.source(), self.machine.initiator());
                self.shared.refusals.add(source, initiator, "login", why.name());
            }
            ConnectionEnd::Protocol(TargetClosed::LoginTimeout | TargetClosed::LogoutTimeout) => {
                counters.add(Counter::LoginTimeouts, 1);
            }
            ConnectionEnd::Protocol(TargetClosed::PingTimeout) => counters.add(Counter::PingTimeouts, 1),
            ConnectionEnd::Protocol(TargetClosed::PduTimeout | TargetClosed::TransferTimeout) => {
                counters.add(Counter::ReadTimeouts, 1);
            }
            // Records, protected PDUs or TLS: the bytes are not those that the other end sent.
            ConnectionEnd::Socket(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                counters.add(Counter::NotAuthentic, 1);
                let (source, initiator) = (self.slot.place.source(), self.machine.initiator());
                self.shared.refusals.add(source, initiator, INTEGRITY, "not-authentic");
            }
            ConnectionEnd::WriteTimeout => counters.add(Counter::WriteTimeouts, 1),
            ConnectionEnd::Protocol(
                TargetClosed::LoggedOut | TargetClosed::EndOfStream | TargetClosed::TargetReset,
            )
            | ConnectionEnd::Socket(_)
            | ConnectionEnd::Replaced
            | ConnectionEnd::Reset => {}
            ConnectionEnd::Evicted => counters.add(Counter::LoginsCrowded, 1),
        }
        let rejects = self.machine.rejects() - self.rejects_seen;
        counters.add(Counter::Rejects, u64::from(rejects));
        let nexus = self.nexus();
        let number = nexus.map(|nexus| nexus.0);
        tracing::debug!(peer = %self.peer, nexus = number, reason = %end, "connection ends");
        if let ConnectionEnd::Protocol(_) = end {
            let _ = tokio::time::timeout(FINAL_WRITE_MAX, self.send_remaining()).await;
        }
        self.machine.abandon(TargetClosed::EndOfStream);
        drop(self.stream);
        self.send_queue = SendQueue::default();
        // Pending orders are abandoned.
        self.ordered.close();
        while self.ordered.try_recv().is_ok() {}
        self.waiting.clear();
        self.delayed_replies.clear();
        self.connection_ended.store(true, Ordering::Release);
        self.queued.clear();
        // Commands on other threads end by themselves, early if they can. The nexus is lost only
        // after they ended.
        if let Some(nexus) = nexus {
            self.shared.luns.units().iter().for_each(|unit| unit.connection_ended(nexus));
        }
        while self.offloaded > 0 && self.completions.recv().await.is_some() {
            self.offloaded -= 1;
        }
    }
}
