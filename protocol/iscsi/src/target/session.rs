//! The connection as a whole: bytes in, pieces out, time, phases.

use alloc::{collections::VecDeque, string::String, sync::Arc, vec, vec::Vec};
use core::mem;

use bytes::Bytes;

use super::{
    Closed, Config, Doorkeeper, Event, Refusal, Reply, SenseFormat, SessionKind, Violation,
    login::{Login, Next},
    management::Pending,
    task::{State, Tasks},
    text_phase::TextExchange,
};
use crate::{
    Buffer, Parameters, Pool, TaskId,
    frame::{Destination, Receiver, Step},
    limits,
    pdu::{self, Bhs, NO_TAG, flag, opcode},
    transmit::Transmitter,
};

pub(super) enum Phase {
    Login(Login),
    /// The last login response waits for the shell's word.
    Admission {
        bhs: Bhs,
        keys: Vec<u8>,
        parameters: Parameters,
        kind: SessionKind,
    },
    Full(SessionKind),
    Closed,
}

/// PDUs not yet made.
pub(super) enum Outgoing {
    /// Header and data; `advances` if its StatSN is used up.
    Control { bhs: Bhs, data: Bytes, advances: bool },
    /// The answer of the task in this slot.
    Reply { slot: u16 },
}

/// What the header stage decided about the PDU that is being received.
pub(super) enum Fate {
    /// Its data was asked for nothing; forget it.
    Ignore,
    /// Reject it for this reason.
    Reject(u8),
    /// Immediate data of the command in this slot.
    Command(u16),
    /// Data-Out of the command in this slot.
    DataOut(u16),
    /// Anything else: act on it when it is whole.
    Act,
}

/// See the [module](super).
pub struct Connection {
    pub(super) config: Arc<Config>,
    pub(super) pool: Arc<dyn Pool>,
    pub(super) local_address: String,
    door: Option<Arc<dyn Doorkeeper>>,
    pub(super) format: Option<Arc<dyn SenseFormat>>,
    /// Initiator's name and proven CHAP name, from the end of the login on.
    pub(super) peer: (String, Option<String>),
    pub(super) phase: Phase,
    pub(super) agreed: Parameters,
    pub(super) rx: Receiver,
    pub(super) tx: Transmitter,
    pub(super) out: VecDeque<Outgoing>,
    pub(super) events: VecDeque<Event>,
    pub(super) tasks: Tasks,
    pub(super) pending: Vec<Pending>,
    pub(super) text: Option<TextExchange>,
    pub(super) fate: Fate,
    pub(super) cid: u16,
    pub(super) stat_sn: u32,
    pub(super) exp_cmd_sn: u32,
    pub(super) starved_since: Option<u64>,
    pub(super) rejects: u32,
    pub(super) now_ms: u64,
    phase_until: u64,
    heard_at: u64,
    pdu_began: u64,
    pub(super) transfer_at: u64,
    pub(super) ping: Option<(u64, u32)>,
    pings: u32,
    logout_until: Option<u64>,
}

impl Connection {
    /// A connection that was just accepted at `local_address` (`host:port`, for discovery).
    #[must_use]
    pub fn new(config: Arc<Config>, pool: Arc<dyn Pool>, local_address: String, now_ms: u64) -> Self {
        let depth = config.queue_depth.clamp(1, limits::QUEUE_DEPTH_MAX);
        Self {
            rx: Receiver::new(config.crc32c),
            tx: Transmitter::new(config.crc32c),
            tasks: Tasks::new(depth + limits::IMMEDIATE_MAX),
            phase_until: now_ms.saturating_add(config.login_timeout_ms),
            config,
            pool,
            local_address,
            door: None,
            format: None,
            peer: (String::new(), None),
            phase: Phase::Login(Login::default()),
            agreed: Parameters::default(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            pending: Vec::new(),
            text: None,
            fate: Fate::Ignore,
            cid: 0,
            stat_sn: 1,
            exp_cmd_sn: 0,
            starved_since: None,
            rejects: 0,
            now_ms,
            heard_at: now_ms,
            pdu_began: now_ms,
            transfer_at: now_ms,
            ping: None,
            pings: 0,
            logout_until: None,
        }
    }

    /// With what knows the format of each logical unit's sense data; without one, it is fixed format.
    #[must_use]
    pub fn with_sense_format(mut self, format: Arc<dyn SenseFormat>) -> Self {
        self.format = Some(format);
        self
    }

    /// With a doorkeeper; without one, logins that must prove themselves are refused as unavailable.
    #[must_use]
    pub fn with_doorkeeper(mut self, door: Arc<dyn Doorkeeper>) -> Self {
        self.door = Some(door);
        self
    }

    /// Where the next received bytes go: the first slice is filled before the second. Both are empty when nothing
    /// may be read now: while the shell thinks about a login, memory is short, or the initiator does not read.
    pub fn rx_space(&mut self) -> [&mut [u8]; 2] {
        if self.is_blocked() { [&mut [], &mut []] } else { self.rx.space() }
    }

    /// `n` bytes were received into [`Self::rx_space`].
    pub fn received(&mut self, n: usize, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        self.heard_at = self.now_ms;
        if !self.rx.in_pdu() {
            self.pdu_began = self.now_ms;
        }
        self.rx.received(n);
        self.pump();
    }

    /// The initiator closed its side of the stream.
    pub fn end_of_stream(&mut self) {
        self.close(Closed::EndOfStream);
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next piece to write; pieces in order make the stream. PDUs are made when asked for: a shell that stops
    /// asking while its socket is full keeps the queue short.
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

    /// True while a command waits for memory: call [`Self::memory_freed`] when there is some.
    #[must_use]
    pub const fn is_starved(&self) -> bool {
        self.starved_since.is_some()
    }

    /// Tries again to get memory for the command that waits.
    pub fn memory_freed(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        if self.starved_since.is_some() {
            self.pump_starved();
        }
    }

    /// The session lives; `tsih` is its nonzero handle, unique on this target.
    pub fn admit(&mut self, tsih: u16) {
        match mem::replace(&mut self.phase, Phase::Closed) {
            Phase::Admission { bhs, keys, parameters, kind } => {
                self.agreed = parameters;
                self.phase = Phase::Full(kind);
                let mut response = pdu::LoginResponse::of(&bhs);
                response.tsih.set(tsih.max(1));
                self.control(response.wire(), Bytes::from(keys), true);
                // Digests begin after the last login response: make that one now.
                while self.transmit_next() {}
                self.rx.set_digests(self.agreed.header_digest, self.agreed.data_digest);
                self.tx.set_digests(self.agreed.header_digest, self.agreed.data_digest);
                self.pump();
            }
            other => self.phase = other,
        }
    }

    /// The session may not live.
    pub fn refuse(&mut self, why: Refusal) {
        if let Phase::Admission { bhs, .. } = &self.phase {
            let header = pdu::LoginResponse::of(bhs);
            self.refuse_login(header.isid, header.tag.get(), why);
        }
    }

    /// A command is done. Unknown or ended tasks are none of our business any more.
    pub fn complete(&mut self, task: TaskId, reply: Reply) {
        let Some(slot) = self.tasks.find_id(task) else { return };
        let Some(entry) = self.tasks.get(slot) else { return };
        match entry.state {
            State::Running => {
                self.tasks.set_state(slot, State::Replying { reply, sent: 0 });
                self.out.push_back(Outgoing::Reply { slot });
            }
            State::Aborted => {
                self.tasks.remove(slot);
                self.task_ended(task);
            }
            State::Collecting | State::Replying { .. } => {}
        }
        self.pull_more();
    }

    /// Asks the initiator to log out; the connection closes by itself after `seconds`.
    pub fn request_logout(&mut self, seconds: u16) {
        if !matches!(self.phase, Phase::Full(_)) {
            self.close(Closed::LogoutTimeout);
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

    /// Closes at once, without a word; the reason comes back as [`Event::Closed`].
    pub fn abandon(&mut self, reason: Closed) {
        self.close(reason);
    }

    /// Commands that the shell has not completed, including aborted ones.
    #[must_use]
    pub fn executing(&self) -> usize {
        self.tasks.iter().filter(|(_, task)| matches!(task.state, State::Running | State::Aborted)).count()
    }

    /// What was agreed; defaults before the session is admitted.
    #[must_use]
    pub const fn parameters(&self) -> &Parameters {
        &self.agreed
    }

    /// PDUs rejected so far.
    #[must_use]
    pub const fn rejects(&self) -> u32 {
        self.rejects
    }

    /// When [`Self::handle_timeout`] wants to be called, on the clock of `now_ms`.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.deadlines().map(|(due, _)| due).min()
    }

    /// Does what is due at `now_ms`.
    pub fn handle_timeout(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let now = self.now_ms;
        let Some((_, what)) = self
            .deadlines()
            .filter(|(due, _)| *due <= now)
            .min_by_key(|(due, what)| (matches!(what, Due::Ping), *due))
        else {
            return;
        };
        match what {
            Due::Close(reason) => self.close(reason),
            Due::Starved => self.pump_starved(),
            Due::Ping => {
                self.pings = self.pings.wrapping_add(1) & 0x7FFF_FFFF;
                self.ping = Some((now, self.pings));
                let mut pdu = pdu::TextResponse::new(opcode::NOP_IN, flag::FINAL);
                pdu.tag.set(NO_TAG);
                pdu.transfer.set(self.pings);
                self.control(pdu.wire(), Bytes::new(), false);
            }
        }
    }

    /// Is it the initiator's turn to send data-out?
    fn awaits_data(&self) -> bool {
        match self.config.pull_bytes {
            None => self.tasks.collecting() > 0,
            // What was not asked for yet waits for us.
            Some(_) => self.tasks.collecting() > 0 && self.tasks.iter().any(|(_, task)| task.awaits_data()),
        }
    }

    fn deadlines(&self) -> impl Iterator<Item = (u64, Due)> {
        let config = &self.config;
        let full = matches!(self.phase, Phase::Full(_));
        let login = matches!(self.phase, Phase::Login(_) | Phase::Admission { .. });
        let open = full || login;
        let blocked = self.is_blocked();
        let slow = open && !blocked && self.rx.in_pdu();
        let collecting = full && !blocked && self.awaits_data();
        let ping = match self.ping {
            Some((sent, _)) => (sent.saturating_add(config.ping_timeout_ms), Due::Close(Closed::PingTimeout)),
            None => (self.heard_at.saturating_add(config.ping_after_ms), Due::Ping),
        };
        let pdu_until = self.pdu_began.saturating_add(config.pdu_timeout_ms);
        let transfer_until = self.transfer_at.saturating_add(config.transfer_timeout_ms);
        let starved = self.starved_since.map(|since| since.saturating_add(config.starvation_timeout_ms));
        [
            login.then_some((self.phase_until, Due::Close(Closed::LoginTimeout))),
            // While we do not read we cannot hear its answer.
            (full && !blocked).then_some(ping),
            slow.then_some((pdu_until, Due::Close(Closed::PduTimeout))),
            collecting.then_some((transfer_until, Due::Close(Closed::TransferTimeout))),
            starved.filter(|_| full).map(|until| (until, Due::Starved)),
            self.logout_until.filter(|_| full).map(|until| (until, Due::Close(Closed::LogoutTimeout))),
        ]
        .into_iter()
        .flatten()
    }

    pub(super) fn close(&mut self, reason: Closed) {
        if !matches!(self.phase, Phase::Closed) {
            self.phase = Phase::Closed;
            self.starved_since = None;
            // Nobody waits for these answers any more, and nothing may come after the last event.
            self.pending.clear();
            // Answers under way are still sent after a logout or a reset, in vain after a violation: drop the latter.
            if !matches!(
                reason,
                Closed::LoggedOut | Closed::Refused(_) | Closed::Violation(_) | Closed::TargetReset
            ) {
                self.out.clear();
            }
            self.events.push_back(Event::Closed(reason));
        }
    }

    pub(super) fn control(&mut self, bhs: Bhs, data: Bytes, advances: bool) {
        self.out.push_back(Outgoing::Control { bhs, data, advances });
    }

    fn is_blocked(&self) -> bool {
        let waiting = self.out.len() >= limits::TRANSMIT_BACKLOG_MAX + usize::from(self.tasks.under_way());
        match self.phase {
            Phase::Admission { .. } | Phase::Closed => true,
            Phase::Login(_) | Phase::Full(_) => self.starved_since.is_some() || waiting,
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
                Step::Starved => return,
                Step::Header => self.header_stage(None),
                Step::Pdu { destination, intact } => {
                    self.pdu_began = self.now_ms;
                    let bhs = *self.rx.bhs();
                    self.pdu(&bhs, destination, intact)
                }
                Step::Broken(error) => Err(Violation::Frame(error).into()),
            };
            if let Err(reason) = done {
                self.close(reason);
            }
        }
    }

    /// Decides about a PDU by its header; may leave it waiting for memory since `since`.
    fn header_stage(&mut self, since: Option<u64>) -> Result<(), Closed> {
        let bhs = *self.rx.bhs();
        let length = pdu::data_length(&bhs);
        let opcode = pdu::opcode_of(&bhs);
        let destination = match &self.phase {
            Phase::Full(_) => match self.full_feature_header(&bhs, since)? {
                Some(destination) => destination,
                None => {
                    self.starved_since = Some(since.unwrap_or(self.now_ms));
                    return Ok(());
                }
            },
            _ if opcode != opcode::LOGIN => return Err(Violation::NotLoggedIn(opcode).into()),
            _ if length > limits::LOGIN_SEGMENT_MAX => return Err(Violation::LongSegment(length).into()),
            _ => {
                self.fate = Fate::Act;
                collect(length)
            }
        };
        self.rx.accept(destination);
        Ok(())
    }

    fn pdu(&mut self, bhs: &Bhs, destination: Destination, intact: bool) -> Result<(), Closed> {
        match &mut self.phase {
            Phase::Full(_) => self.full_feature(bhs, destination, intact),
            Phase::Login(login) => {
                let request = pdu::Login::of(bhs);
                self.exp_cmd_sn = request.cmd_sn.get();
                self.cid = request.cid.get();
                match login.request(&self.config, self.door.as_deref(), bhs, bytes_of(&destination)) {
                    Ok(Next::Respond(bhs, keys)) => self.control(bhs, Bytes::from(keys), true),
                    Ok(Next::Finish(bhs, keys, request)) => {
                        let (parameters, kind) = (request.parameters.clone(), request.kind);
                        self.peer = (request.initiator.clone(), request.user.clone());
                        self.phase = Phase::Admission { bhs, keys, parameters, kind };
                        self.events.push_back(Event::Login(request));
                    }
                    Err(why) => {
                        self.peer.0 = String::from(login.initiator());
                        self.refuse_login(request.isid, request.tag.get(), why);
                    }
                }
                Ok(())
            }
            Phase::Admission { .. } | Phase::Closed => Ok(()),
        }
    }

    /// The initiator's name as it said it; empty before it did.
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
        self.close(Closed::Refused(why));
    }

    /// MaxCmdSN: as many more commands as there are free places (§4.2.2.1). It never goes back: a command that is
    /// taken moves ExpCmdSN by as much as it narrows the window.
    pub(super) fn max_cmd_sn(&self) -> u32 {
        let depth = self.config.queue_depth.clamp(1, limits::QUEUE_DEPTH_MAX);
        let free = depth.saturating_sub(self.tasks.ordinary());
        self.exp_cmd_sn.wrapping_add(u32::from(free)).wrapping_sub(1)
    }
}

enum Due {
    Close(Closed),
    Ping,
    Starved,
}

/// A destination of one's own for a small segment.
pub(super) fn collect(length: u32) -> Destination {
    if length == 0 {
        return Destination::Discard;
    }
    Destination::Into(Buffer::from(vec![0; length as usize]), 0)
}

pub(super) fn bytes_of(destination: &Destination) -> &[u8] {
    match destination {
        Destination::Into(buffer, _) => buffer.as_slice(),
        Destination::Discard => &[],
    }
}
