//! The target's connection object: received bytes, bytes to send, timeouts, and dispatch by phase
//! (login, admission of the session, full feature, closed).

use alloc::{boxed::Box, collections::VecDeque, string::String, sync::Arc, vec, vec::Vec};
use core::mem;

use bytes::Bytes;

use super::{
    CommandReply, LoginGuard, PortalConfig, Refusal, SenseFormat, SessionKind, TargetClosed, TargetEvent,
    Violation,
    login::{LoginStep, TargetLogin},
    management::PendingFunction,
    task::{TargetTasks, TaskState},
    text_phase::TextExchange,
};
use crate::{
    Buffer, LoginExtension, Parameters, Pool, TaskId,
    frame::{PduReceiver, ReceiverStep, SegmentDestination},
    limits,
    pdu::{self, Bhs, NO_TAG, flag, opcode},
    transmit::PduTransmitter,
};

pub(super) enum TargetPhase {
    Login(TargetLogin),
    /// The last login response waits for the shell's decision.
    Admission {
        bhs: Bhs,
        keys: Vec<u8>,
        parameters: Parameters,
        kind: SessionKind,
    },
    Full(SessionKind),
    Closed,
}

/// PDUs that are not encoded yet.
pub(super) enum PendingPdu {
    /// Header and data; `advances` if it uses up its StatSN.
    Control { bhs: Bhs, data: Bytes, advances: bool },
    /// The response of the task in this slot.
    Reply { slot: u16 },
}

/// The decision of the header stage about the PDU that is being received.
pub(super) enum PduAction {
    /// Its data is not needed; it is dropped.
    Ignore,
    /// Reject it for this reason.
    Reject(u8),
    /// Immediate data of the command in this slot.
    Command(u16),
    /// Data-Out of the command in this slot.
    DataOut(u16),
    /// Any other PDU: it is processed when it is complete.
    Act,
}

/// See the [module](super).
pub struct TargetConnection {
    pub(super) config: Arc<PortalConfig>,
    pub(super) pool: Arc<dyn Pool>,
    pub(super) local_address: String,
    guard: Option<Arc<dyn LoginGuard>>,
    pub(super) format: Option<Arc<dyn SenseFormat>>,
    /// Initiator's name and authenticated CHAP name, after the end of the login.
    pub(super) peer: (String, Option<String>),
    pub(super) phase: TargetPhase,
    pub(super) agreed: Parameters,
    pub(super) rx: PduReceiver,
    pub(super) tx: PduTransmitter,
    pub(super) out: VecDeque<PendingPdu>,
    pub(super) events: VecDeque<TargetEvent>,
    pub(super) tasks: TargetTasks,
    pub(super) pending: Vec<PendingFunction>,
    pub(super) text: Option<TextExchange>,
    pub(super) fate: PduAction,
    pub(super) cid: u16,
    pub(super) stat_sn: u32,
    pub(super) exp_cmd_sn: u32,
    pub(super) starved_since: Option<u64>,
    pub(super) rejects: u32,
    pub(super) now_ms: u64,
    phase_until: u64,
    received_at_ms: u64,
    pdu_began: u64,
    pub(super) transfer_at: u64,
    pub(super) ping: Option<(u64, u32)>,
    pings: u32,
    logout_until: Option<u64>,
}

impl TargetConnection {
    /// Creates the state of a connection that was just accepted at `local_address` (`host:port`,
    /// for discovery).
    #[must_use]
    pub fn new(config: Arc<PortalConfig>, pool: Arc<dyn Pool>, local_address: String, now_ms: u64) -> Self {
        let depth = config.queue_depth.clamp(1, limits::QUEUE_DEPTH_MAX);
        Self {
            rx: PduReceiver::new(config.crc32c),
            tx: PduTransmitter::new(config.crc32c),
            tasks: TargetTasks::new(depth + limits::IMMEDIATE_MAX),
            phase_until: now_ms.saturating_add(config.login_timeout_ms),
            config,
            pool,
            local_address,
            guard: None,
            format: None,
            peer: (String::new(), None),
            phase: TargetPhase::Login(TargetLogin::default()),
            agreed: Parameters::default(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            pending: Vec::new(),
            text: None,
            fate: PduAction::Ignore,
            cid: 0,
            stat_sn: 1,
            exp_cmd_sn: 0,
            starved_since: None,
            rejects: 0,
            now_ms,
            received_at_ms: now_ms,
            pdu_began: now_ms,
            transfer_at: now_ms,
            ping: None,
            pings: 0,
            logout_until: None,
        }
    }

    /// Sets the source of each logical unit's sense format; without one, it is fixed format.
    #[must_use]
    pub fn with_sense_format(mut self, format: Arc<dyn SenseFormat>) -> Self {
        self.format = Some(format);
        self
    }

    /// Sets the login guard; without one, logins that need authentication are refused as
    /// unavailable.
    #[must_use]
    pub fn with_login_guard(mut self, guard: Arc<dyn LoginGuard>) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Sets the extension of the login.
    #[must_use]
    pub fn with_login_extension(mut self, extension: Box<dyn LoginExtension>) -> Self {
        if let TargetPhase::Login(login) = &mut self.phase {
            login.set_extension(extension);
        }
        self
    }

    /// Returns where to put the next received bytes: the first slice is filled before the second.
    /// Both are empty while nothing may be read: while the shell decides about a login, memory is
    /// short, or the initiator does not read.
    pub fn rx_space(&mut self) -> [&mut [u8]; 2] {
        if self.is_blocked() { [&mut [], &mut []] } else { self.rx.space() }
    }

    /// Records that `n` bytes were received into [`Self::rx_space`].
    pub fn received(&mut self, n: usize, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        self.received_at_ms = self.now_ms;
        if !self.rx.in_pdu() {
            self.pdu_began = self.now_ms;
        }
        self.rx.received(n);
        self.pump();
    }

    /// Records that the initiator closed its side of the stream.
    pub fn end_of_stream(&mut self) {
        self.close(TargetClosed::EndOfStream);
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<TargetEvent> {
        self.events.pop_front()
    }

    /// Returns the next piece to write; the pieces in order form the stream. PDUs are encoded on
    /// request: a shell that stops calling while its socket is full keeps the queue short.
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        loop {
            if let Some(piece) = self.tx.pop() {
                return Some(piece);
            }
            let blocked = self.is_blocked();
            let more = self.transmit_next();
            if blocked && !self.is_blocked() {
                self.pdu_began = self.now_ms;
                self.transfer_at = self.now_ms;
                self.pump();
            }
            if !more {
                return None;
            }
        }
    }

    /// Whether a command waits for memory: call [`Self::memory_freed`] when there is some.
    #[must_use]
    pub const fn is_starved(&self) -> bool {
        self.starved_since.is_some()
    }

    /// Tries again to get memory for the waiting command.
    pub fn memory_freed(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        if self.starved_since.is_some() {
            self.pump_starved();
        }
    }

    /// Admits the session; `tsih` is its nonzero handle, unique on this target.
    pub fn admit(&mut self, tsih: u16) {
        match mem::replace(&mut self.phase, TargetPhase::Closed) {
            TargetPhase::Admission { bhs, keys, parameters, kind } => {
                self.agreed = parameters;
                self.phase = TargetPhase::Full(kind);
                let mut response = pdu::LoginResponse::of(&bhs);
                response.tsih.set(tsih.max(1));
                self.control(response.wire(), Bytes::from(keys), true);
                // Digests begin after the last login response, so it is encoded now.
                while self.transmit_next() {}
                self.rx.set_digests(self.agreed.header_digest, self.agreed.data_digest);
                self.tx.set_digests(self.agreed.header_digest, self.agreed.data_digest);
                self.pump();
            }
            other => self.phase = other,
        }
    }

    /// Refuses the session.
    pub fn refuse(&mut self, why: Refusal) {
        if let TargetPhase::Admission { bhs, .. } = &self.phase {
            let header = pdu::LoginResponse::of(bhs);
            self.refuse_login(header.isid, header.tag.get(), why);
        }
    }

    /// Completes a command. Unknown or ended tasks are ignored.
    pub fn complete(&mut self, task: TaskId, reply: CommandReply) {
        let Some(slot) = self.tasks.find_id(task) else { return };
        let Some(entry) = self.tasks.get(slot) else { return };
        match entry.state {
            TaskState::Running => {
                self.tasks.set_state(slot, TaskState::Replying { reply, sent: 0 });
                self.out.push_back(PendingPdu::Reply { slot });
            }
            TaskState::Aborted => {
                self.tasks.remove(slot);
                self.task_ended(task);
            }
            TaskState::Collecting | TaskState::Replying { .. } => {}
        }
        self.pull_more();
    }

    /// Requests a logout; the connection closes itself after `seconds`.
    pub fn request_logout(&mut self, seconds: u16) {
        if !matches!(self.phase, TargetPhase::Full(_)) {
            self.close(TargetClosed::LogoutTimeout);
            return;
        }
        if self.logout_until.is_none() {
            self.logout_until = Some(self.now_ms.saturating_add(u64::from(seconds) * 1000));
            let mut pdu = pdu::Async::new(opcode::ASYNC, flag::FINAL);
            pdu.tag.set(NO_TAG);
            pdu.event = 1; // target requests logout
            pdu.parameter_3.set(seconds);
            self.control(pdu.wire(), Bytes::new(), true);
        }
    }

    /// Closes at once, without sending anything; the reason is returned in [`TargetEvent::Closed`].
    pub fn abandon(&mut self, reason: TargetClosed) {
        self.close(reason);
    }

    /// Returns the number of commands that the shell has not completed, including aborted ones.
    #[must_use]
    pub fn executing(&self) -> usize {
        self.tasks
            .iter()
            .filter(|(_, task)| matches!(task.state, TaskState::Running | TaskState::Aborted))
            .count()
    }

    /// Returns the negotiated parameters; defaults before the session is admitted.
    #[must_use]
    pub const fn parameters(&self) -> &Parameters {
        &self.agreed
    }

    /// Returns the number of PDUs rejected so far.
    #[must_use]
    pub const fn rejects(&self) -> u32 {
        self.rejects
    }

    /// Returns when to call [`Self::handle_timeout`], on the clock of `now_ms`.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.deadlines().map(|(due, _)| due).min()
    }

    /// Processes timeouts that are due at `now_ms`.
    pub fn handle_timeout(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let now = self.now_ms;
        let Some((_, what)) = self
            .deadlines()
            .filter(|(due, _)| *due <= now)
            .min_by_key(|(due, what)| (matches!(what, TimeoutDue::Ping), *due))
        else {
            return;
        };
        match what {
            TimeoutDue::Close(reason) => self.close(reason),
            TimeoutDue::Starved => self.pump_starved(),
            TimeoutDue::Ping => {
                self.pings = self.pings.wrapping_add(1) & 0x7FFF_FFFF;
                self.ping = Some((now, self.pings));
                let mut pdu = pdu::TextResponse::new(opcode::NOP_IN, flag::FINAL);
                pdu.tag.set(NO_TAG);
                pdu.transfer.set(self.pings);
                self.control(pdu.wire(), Bytes::new(), false);
            }
        }
    }

    /// Whether the initiator must send data-out next.
    fn awaits_data(&self) -> bool {
        match self.config.pull_bytes {
            None => self.tasks.collecting() > 0,
            // Data that was not requested yet waits for us.
            Some(_) => self.tasks.collecting() > 0 && self.tasks.iter().any(|(_, task)| task.awaits_data()),
        }
    }

    fn deadlines(&self) -> impl Iterator<Item = (u64, TimeoutDue)> {
        let config = &self.config;
        let full = matches!(self.phase, TargetPhase::Full(_));
        let login = matches!(self.phase, TargetPhase::Login(_) | TargetPhase::Admission { .. });
        let open = full || login;
        let blocked = self.is_blocked();
        let slow = open && !blocked && self.rx.in_pdu();
        let collecting = full && !blocked && self.awaits_data();
        let ping = match self.ping {
            Some((sent, _)) => {
                (sent.saturating_add(config.ping_timeout_ms), TimeoutDue::Close(TargetClosed::PingTimeout))
            }
            None => (self.received_at_ms.saturating_add(config.ping_after_ms), TimeoutDue::Ping),
        };
        let pdu_until = self.pdu_began.saturating_add(config.pdu_timeout_ms);
        let transfer_until = self.transfer_at.saturating_add(config.transfer_timeout_ms);
        let starved = self.starved_since.map(|since| since.saturating_add(config.starvation_timeout_ms));
        [
            login.then_some((self.phase_until, TimeoutDue::Close(TargetClosed::LoginTimeout))),
            // While we do not read, its answer cannot be received.
            (full && !blocked).then_some(ping),
            slow.then_some((pdu_until, TimeoutDue::Close(TargetClosed::PduTimeout))),
            collecting.then_some((transfer_until, TimeoutDue::Close(TargetClosed::TransferTimeout))),
            starved.filter(|_| full).map(|until| (until, TimeoutDue::Starved)),
            self.logout_until
                .filter(|_| full)
                .map(|until| (until, TimeoutDue::Close(TargetClosed::LogoutTimeout))),
        ]
        .into_iter()
        .flatten()
    }

    pub(super) fn close(&mut self, reason: TargetClosed) {
        if !matches!(self.phase, TargetPhase::Closed) {
            self.phase = TargetPhase::Closed;
            self.starved_since = None;
            // These answers are not needed any more, and nothing may follow the last event.
            self.pending.clear();
            // Pending answers are still sent after a logout or a reset, but are useless after a
            // violation: drop them then.
            if !matches!(
                reason,
                TargetClosed::LoggedOut
                    | TargetClosed::Refused(_)
                    | TargetClosed::Violation(_)
                    | TargetClosed::TargetReset
            ) {
                self.out.clear();
            }
            self.events.push_back(TargetEvent::Closed(reason));
        }
    }

    pub(super) fn control(&mut self, bhs: Bhs, data: Bytes, advances: bool) {
        self.out.push_back(PendingPdu::Control { bhs, data, advances });
    }

    fn is_blocked(&self) -> bool {
        let waiting = self.out.len() >= limits::TRANSMIT_BACKLOG_MAX + usize::from(self.tasks.under_way());
        match self.phase {
            TargetPhase::Admission { .. } | TargetPhase::Closed => true,
            TargetPhase::Login(_) | TargetPhase::Full(_) => self.starved_since.is_some() || waiting,
        }
    }

    fn pump_starved(&mut self) {
        let since = self.starved_since.take();
        self.pdu_began = self.now_ms;
        self.transfer_at = self.now_ms;
        match self.header_stage(since) {
            Ok(()) => self.pump(),
            Err(reason) => self.close(reason),
        }
    }

    pub(super) fn pump(&mut self) {
        while !self.is_blocked() {
            let done = match self.rx.step() {
                ReceiverStep::Starved => return,
                ReceiverStep::Header => self.header_stage(None),
                ReceiverStep::Pdu { destination, intact } => {
                    self.pdu_began = self.now_ms;
                    let bhs = *self.rx.bhs();
                    self.pdu(&bhs, destination, intact)
                }
                ReceiverStep::Broken(error) => Err(Violation::Frame(error).into()),
            };
            if let Err(reason) = done {
                self.close(reason);
            }
        }
    }

    /// Decides about a PDU by its header; may leave it waiting for memory since `since`.
    fn header_stage(&mut self, since: Option<u64>) -> Result<(), TargetClosed> {
        let bhs = *self.rx.bhs();
        let length = pdu::data_length(&bhs);
        let opcode = pdu::opcode_of(&bhs);
        let destination = match &self.phase {
            TargetPhase::Full(_) => match self.full_feature_header(&bhs, since)? {
                Some(destination) => destination,
                None => {
                    self.starved_since = Some(since.unwrap_or(self.now_ms));
                    return Ok(());
                }
            },
            _ if opcode != opcode::LOGIN => return Err(Violation::NotLoggedIn(opcode).into()),
            _ if length > limits::LOGIN_SEGMENT_MAX => return Err(Violation::LongSegment(length).into()),
            _ => {
                self.fate = PduAction::Act;
                collect(length)
            }
        };
        self.rx.accept(destination);
        Ok(())
    }

    fn pdu(&mut self, bhs: &Bhs, destination: SegmentDestination, intact: bool) -> Result<(), TargetClosed> {
        match &mut self.phase {
            TargetPhase::Full(_) => self.full_feature(bhs, destination, intact),
            TargetPhase::Login(login) => {
                let request = pdu::Login::of(bhs);
                self.exp_cmd_sn = request.cmd_sn.get();
                self.cid = request.cid.get();
                match login.request(&self.config, self.guard.as_deref(), bhs, bytes_of(&destination)) {
                    Ok(LoginStep::Respond(bhs, keys)) => self.control(bhs, Bytes::from(keys), true),
                    // Nothing authenticates bytes that were sent before the change.
                    Ok(LoginStep::Finish(..)) if login.changes_stream() && self.rx.in_pdu() => {
                        self.refuse_login(request.isid, request.tag.get(), Refusal::InitiatorError);
                    }
                    Ok(LoginStep::Finish(bhs, keys, request)) => {
                        if login.changes_stream() {
                            self.tx.keep_data_apart();
                        }
                        let (parameters, kind) = (request.parameters.clone(), request.kind);
                        self.peer = (request.initiator.clone(), request.user.clone());
                        self.phase = TargetPhase::Admission { bhs, keys, parameters, kind };
                        self.events.push_back(TargetEvent::Login(request));
                    }
                    Err(why) => {
                        self.peer.0 = String::from(login.initiator());
                        self.refuse_login(request.isid, request.tag.get(), why);
                    }
                }
                Ok(())
            }
            TargetPhase::Admission { .. } | TargetPhase::Closed => Ok(()),
        }
    }

    /// Returns the name that the initiator sent; empty before it did.
    #[must_use]
    pub fn initiator(&self) -> &str {
        &self.peer.0
    }

    fn refuse_login(&mut self, isid: [u8; 6], tag: u32, why: Refusal) {
        let mut response = pdu::LoginResponse::new(opcode::LOGIN_RESPONSE, 0);
        response.isid = isid;
        response.tag.set(tag);
        (response.class, response.detail) = why.status();
        self.control(response.wire(), Bytes::new(), true);
        self.close(TargetClosed::Refused(why));
    }

    /// Returns MaxCmdSN: as many more commands as there are free slots (§4.2.2.1). It never goes
    /// back: an accepted command advances ExpCmdSN by as much as it narrows the window.
    pub(super) fn max_cmd_sn(&self) -> u32 {
        let depth = self.config.queue_depth.clamp(1, limits::QUEUE_DEPTH_MAX);
        let free = depth.saturating_sub(self.tasks.ordinary());
        self.exp_cmd_sn.wrapping_add(u32::from(free)).wrapping_sub(1)
    }
}

enum TimeoutDue {
    Close(TargetClosed),
    Ping,
    Starved,
}

/// Returns a separate destination for a small segment.
pub(super) fn collect(length: u32) -> SegmentDestination {
    if length == 0 {
        return SegmentDestination::Discard;
    }
    SegmentDestination::Into(Buffer::from(vec![0; length as usize]), 0)
}

pub(super) fn bytes_of(destination: &SegmentDestination) -> &[u8] {
    match destination {
        SegmentDestination::Into(buffer, _) => buffer.as_slice(),
        SegmentDestination::Discard => &[],
    }
}
