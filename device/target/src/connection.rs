//! One connection's task: moves bytes between a stream and the state machine, and runs commands.

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

use sealstone_iscsi::{
    Pool, TaskId,
    target::{
        Closed, Connection, Event, Function, FunctionResult, LoginRequest, Refusal, Reply, SenseFormat,
        SessionKind,
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
    Counter, Share,
    door::Door,
    mailbox::{self, Mailbox},
    server::{Shared, Slot},
    sessions::{Control, Denied, Entry, Wanted},
};
use io::{Outbox, Woke};
use orders::{Order, Waiting};

/// Bytes waiting to be written beyond which no further command is started: finish and send before the next.
const HIGH_WATER: usize = 512 * 1024;
/// Most commands of one connection that run on other threads at once; further ones wait with it.
const ELSEWHERE_MAX: usize = 32;
/// Work of one connection after which others get their turn: commands, each counted with its data.
const TURN: usize = 32;
/// Bytes of data that count as one command more.
const TURN_BYTES: usize = 64 * 1024;
/// How often a connection that waits for memory looks again by itself.
const STARVED_POLL: Duration = Duration::from_millis(20);
/// How long a connection that is over may take to write its last words.
const LAST_WORDS: Duration = Duration::from_secs(5);

pub(crate) async fn serve<S>(
    shared: Arc<Shared>,
    stream: S,
    local: String,
    peer: String,
    channel: Option<ChannelToken>,
    leaving: watch::Receiver<bool>,
    slot: Slot,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    shared.counters.add(Counter::ConnectionsOpen, 1);
    let _open = Open(Arc::clone(&shared));
    let most = shared.config.memory_per_connection_max;
    let share = Share::of_source(Arc::clone(&shared.memory), most, slot.place.memory());
    let now = shared.config.clock.now_ms();
    let door = Door {
        failures: Arc::clone(&shared.failures),
        random: shared.config.random.clone(),
        source: slot.place.source().to_owned(),
    };
    let machine =
        Connection::new(Arc::clone(&shared.protocol), Arc::clone(&share) as Arc<dyn Pool>, local, now)
            .with_doorkeeper(Arc::new(door))
            .with_sense_format(Arc::clone(&shared) as Arc<dyn SenseFormat>);
    let (control, mailbox) = mailbox::mailbox();
    let (completed, completions) = mpsc::unbounded_channel();
    let (orders, ordered) = mpsc::unbounded_channel();
    let mut driver = Driver {
        shared,
        share,
        machine,
        stream,
        outbox: Outbox::default(),
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
        held: Vec::new(),
        elsewhere: 0,
        queued: Vec::new(),
        over: Arc::default(),
        rejects_seen: 0,
    };
    let reason = driver.run().await;
    driver.end(&reason).await;
}

struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.counters.sub(Counter::ConnectionsOpen, 1);
    }
}

/// Why the task ends.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error(transparent)]
    Protocol(#[from] Closed),
    #[error("socket: {0}")]
    Socket(#[from] std::io::Error),
    #[error("the initiator does not read")]
    WriteTimeout,
    #[error("replaced by a new login")]
    Replaced,
    #[error("the target was reset")]
    Reset,
    #[error("closed for a connection of an account or address with fewer")]
    Evicted,
}

/// A normal session; logical units hear when it is lost, even if its task is cut off.
struct Session {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    /// Logical units that it may see; `None`: all.
    luns: Option<Vec<u16>>,
}

impl Drop for Session {
    fn drop(&mut self) {
        let (units, entry) = (self.shared.luns.units(), Arc::clone(&self.entry));
        // A unit may have something of the nexus's to wait for, and this thread serves others. Whoever takes the session's
        // place waits until the entry is gone, and so hears nothing of this one.
        let tell = move || {
            units.iter().for_each(|unit| unit.nexus_lost(entry.nexus));
            drop(entry);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(tell)),
            Err(_) => tell(),
        }
    }
}

struct Driver<S> {
    shared: Arc<Shared>,
    share: Arc<Share>,
    machine: Connection,
    stream: S,
    outbox: Outbox,
    peer: String,
    /// Its part of the limits; given back when it drops.
    slot: Slot,
    /// Of the TLS channel that it came through.
    channel: Option<ChannelToken>,
    session: Option<Session>,
    control: mailbox::Sender,
    mailbox: Mailbox,
    leaving: watch::Receiver<bool>,
    left: bool,
    completed: mpsc::UnboundedSender<(TaskId, Reply)>,
    completions: mpsc::UnboundedReceiver<(TaskId, Reply)>,
    /// For commands on other threads that manage tasks.
    orders: mpsc::UnboundedSender<Order>,
    ordered: mpsc::UnboundedReceiver<Order>,
    waiting: Vec<Waiting>,
    /// Replies of those that wait.
    held: Vec<(TaskId, Reply)>,
    /// Commands that run on another thread, or wait for one.
    elsewhere: usize,
    /// Those of them that wait for a place among long ones. Each waits until this end of its channel is dropped.
    queued: Vec<(TaskId, oneshot::Sender<()>)>,
    /// The connection is over: whatever waits need not begin.
    over: Arc<AtomicBool>,
    rejects_seen: u32,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Driver<S> {
    fn now_ms(&self) -> u64 {
        self.shared.config.clock.now_ms()
    }

    async fn run(&mut self) -> End {
        let mut timer = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        let mut armed: Option<u64> = None;
        let mut leaving = self.leaving.clone();
        let mut leave = std::pin::pin!(async move {
            // An error means that the target is gone, which it cannot be before us.
            let _ = leaving.wait_for(|leaving| *leaving).await;
        });
        let mut evicted = self.slot.ticket.evicted();
        let mut evict = std::pin::pin!(async move {
            // An error means that the target is gone, which it cannot be before us.
            let _ = evicted.wait_for(|evicted| *evicted).await;
        });
        loop {
            if let Some(end) = self.work().await {
                return end;
            }
            self.free_ended();
            let now = self.now_ms();
            if let Some(due) = self.due(now)
                && armed.is_none_or(|armed| due < armed)
            {
                timer.as_mut().reset(Instant::now() + Duration::from_millis(due.saturating_sub(now)));
                armed = Some(due);
            }
            match self.wait(timer.as_mut(), armed.is_some(), leave.as_mut(), evict.as_mut()).await {
                Err(error) => return End::Socket(error),
                Ok(Woke::Written) => {}
                Ok(Woke::Read(0)) => self.machine.end_of_stream(),
                Ok(Woke::Read(count)) => {
                    self.shared.counters.add(Counter::BytesReceived, count as u64);
                    let now = self.now_ms();
                    self.machine.received(count, now);
                }
                Ok(Woke::Completed(task, reply)) => {
                    self.elsewhere -= 1;
                    self.has_come_back(task, reply);
                }
                Ok(Woke::Ordered(order)) => self.carry_out(order),
                Ok(Woke::Evicted) => return End::Evicted,
                Ok(Woke::Control(Control::Replaced)) => return End::Replaced,
                Ok(Woke::Control(Control::Reset)) => return End::Reset,
                Ok(Woke::Control(Control::EndCommands { lun, cleared })) => {
                    let ended = self.machine.end_commands(lun);
                    if cleared && ended > 0 {
                        self.tell_cleared(lun);
                    }
                }
                Ok(Woke::Control(Control::Leave)) => {
                    self.left = true;
                    self.machine.request_logout(self.shared.config.drain_seconds);
                }
                Ok(Woke::Timer) => {
                    armed = None;
                    let now = self.now_ms();
                    if self.outbox.is_stuck(now, self.shared.config.write_timeout_ms) {
                        return End::WriteTimeout;
                    }
                    self.machine.handle_timeout(now);
                    if self.machine.is_starved() {
                        self.machine.memory_freed(now);
                    }
                }
                Ok(Woke::Memory) => {
                    let now = self.now_ms();
                    self.machine.memory_freed(now);
                }
            }
        }
    }

    /// The next moment at which something is due, in milliseconds.
    fn due(&self, now: u64) -> Option<u64> {
        let starved = u64::try_from(STARVED_POLL.as_millis()).unwrap_or(u64::MAX);
        let again = self.machine.is_starved().then(|| now.saturating_add(starved));
        let written = self.outbox.due(self.shared.config.write_timeout_ms);
        [self.machine.poll_timeout(), again, written].into_iter().flatten().min()
    }

    /// Takes events and pieces as long as there is room for answers; the end, if it came.
    async fn work(&mut self) -> Option<End> {
        let mut done = 0;
        loop {
            self.outbox.fill(&mut self.machine, self.shared.config.clock.now_ms());
            if self.outbox.is_full() || self.elsewhere >= ELSEWHERE_MAX {
                return None;
            }
            if done >= TURN {
                // Commands that run here hold the thread: whoever sends many lets others in between.
                done = 0;
                tokio::task::yield_now().await;
            }
            let Some(event) = self.machine.poll_event() else { break };
            match event {
                Event::Login(request) => self.login(request).await,
                Event::Command(command) => {
                    done += 1 + command.data_out.len().max(command.data_in_max as usize) / TURN_BYTES;
                    self.execute(command);
                }
                Event::Management { id, function } => self.manage(id, function),
                Event::Closed(reason) => return Some(End::Protocol(reason)),
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
                if !self.take_place(user.as_deref()) {
                    return self.machine.refuse(Refusal::OutOfResources);
                }
                counters.add(Counter::Logins, 1);
                self.machine.admit(shared.sessions.tsih());
            } else {
                self.machine.refuse(Refusal::NoSuchSession);
            }
            return;
        }
        if !self.take_place(user.as_deref()) {
            return self.machine.refuse(Refusal::OutOfResources);
        }
        let (name, channel) = (initiator.clone(), self.channel);
        let wanted = Wanted { initiator: name, user: user.clone(), isid, tsih, cid, channel };
        match shared.sessions.enter(wanted, self.control.clone()).await {
            Ok(entry) => {
                let (nexus, tsih) = (entry.nexus, entry.tsih);
                for unit in shared.luns.units() {
                    unit.nexus_established(nexus, &entry.port());
                }
                self.session = Some(Session { shared: Arc::clone(&shared), entry: Arc::new(entry), luns });
                counters.add(Counter::Logins, 1);
                tracing::info!(peer = %self.peer, %initiator, user, nexus = nexus.0, "session begins");
                self.machine.admit(tsih);
            }
            Err(Denied::NoSuchSession) => self.machine.refuse(Refusal::NoSuchSession),
            Err(Denied::TooManyConnections) => self.machine.refuse(Refusal::TooManyConnections),
            Err(Denied::OfAnother) => {
                tracing::warn!(peer = %self.peer, %initiator, user, "a session of another account is not replaced");
                self.machine.refuse(Refusal::Authorization);
            }
            Err(Denied::Stuck) => {
                tracing::warn!(peer = %self.peer, %initiator, "the session to be replaced does not end");
                self.machine.refuse(Refusal::OutOfResources);
            }
        }
    }

    /// Takes a place after the login, of the share of the account, or of the address if no account was proven.
    fn take_place(&self, user: Option<&str>) -> bool {
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

    fn manage(&mut self, id: TaskId, function: Function) {
        let result = self.managed(function).unwrap_or_else(|refused| refused);
        self.machine.managed(id, result);
        if function == Function::TargetColdReset && result == FunctionResult::Complete {
            self.machine.abandon(Closed::TargetReset);
        }
    }

    fn managed(&self, function: Function) -> Result<FunctionResult, FunctionResult> {
        let shared = &self.shared;
        let session = self.session.as_ref().ok_or(FunctionResult::Rejected)?;
        let nexus = session.entry.nexus;
        let unit = |lun| shared.luns.find(lun, session.luns.as_deref()).ok_or(FunctionResult::NoSuchLun);
        if let Function::AbortTaskSet(lun) = function {
            return unit(lun).map(|_| FunctionResult::Complete);
        }
        if let Function::ClearTaskSet(lun) | Function::LogicalUnitReset(lun) = function {
            unit(lun)?;
        }
        if !shared.resets.take(self.now_ms()) {
            shared.counters.add(Counter::ResetsRefused, 1);
            let name = session.entry.port().name;
            shared.refusals.add(self.slot.place.source(), name, "manage", "too-many-resets");
            return Err(FunctionResult::Rejected);
        }
        shared.counters.add(Counter::Resets, 1);
        match function {
            Function::AbortTaskSet(_) => {}
            Function::ClearTaskSet(lun) => shared.sessions.end_commands(nexus, Some(lun), true),
            Function::LogicalUnitReset(lun) => {
                shared.sessions.end_commands(nexus, Some(lun), false);
                unit(lun)?.1.reset();
            }
            Function::TargetWarmReset | Function::TargetColdReset => {
                shared.sessions.end_commands(nexus, None, false);
                for unit in shared.luns.units() {
                    unit.reset();
                }
                if function == Function::TargetColdReset {
                    shared.sessions.reset(nexus);
                }
            }
        }
        Ok(FunctionResult::Complete)
    }

    /// Commands of ours were ended by another session's CLEAR TASK SET.
    fn tell_cleared(&self, lun: Option<u64>) {
        if let (Some(session), Some(lun)) = (&self.session, lun)
            && let Some((_, unit)) = self.shared.luns.find(lun, session.luns.as_deref())
        {
            unit.attention(session.entry.nexus, COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
        }
    }

    /// Says the last words, waits for commands that cannot be stopped, and gives everything back.
    async fn end(mut self, end: &End) {
        let counters = &self.shared.counters;
        match end {
            End::Protocol(Closed::Violation(_)) => counters.add(Counter::Violations, 1),
            End::Protocol(Closed::Refused(why)) => {
                counters.add(Counter::LoginsRefused, 1);
                let (source, initiator) = (self.slot.place.source(), self.machine.initiator());
                self.shared.refusals.add(source, initiator, "login", why.name());
            }
            End::Protocol(Closed::LoginTimeout | Closed::LogoutTimeout) => {
                counters.add(Counter::LoginTimeouts, 1);
            }
            End::Protocol(Closed::PingTimeout) => counters.add(Counter::PingTimeouts, 1),
            End::Protocol(Closed::PduTimeout | Closed::TransferTimeout) => {
                counters.add(Counter::ReadTimeouts, 1);
            }
            End::WriteTimeout => counters.add(Counter::WriteTimeouts, 1),
            End::Protocol(Closed::LoggedOut | Closed::EndOfStream | Closed::TargetReset)
            | End::Socket(_)
            | End::Replaced
            | End::Reset => {}
            End::Evicted => counters.add(Counter::LoginsCrowded, 1),
        }
        let rejects = self.machine.rejects() - self.rejects_seen;
        counters.add(Counter::Rejects, u64::from(rejects));
        let nexus = self.nexus().map(|nexus| nexus.0);
        tracing::debug!(peer = %self.peer, nexus, reason = %end, "connection ends");
        if let End::Protocol(_) = end {
            let _ = tokio::time::timeout(LAST_WORDS, self.say_last_words()).await;
        }
        self.machine.abandon(Closed::EndOfStream);
        drop(self.stream);
        self.outbox = Outbox::default();
        // Whoever waits for others waits no longer.
        self.ordered.close();
        while self.ordered.try_recv().is_ok() {}
        self.waiting.clear();
        self.held.clear();
        self.over.store(true, Ordering::Release);
        self.queued.clear();
        // Commands that run elsewhere cannot be stopped; the nexus is lost only after them.
        while self.elsewhere > 0 && self.completions.recv().await.is_some() {
            self.elsewhere -= 1;
        }
    }
}
