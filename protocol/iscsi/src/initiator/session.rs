//! The initiator's connection object: received bytes, bytes to send, timeouts, and dispatch by
//! phase (login, full feature, logout, closed).

use alloc::{boxed::Box, collections::VecDeque, vec, vec::Vec};

use bytes::Bytes;

use super::{
    InitiatorClosed, InitiatorConfig, InitiatorEvent, ManagementFunction, NotSent, SubmitError,
    SubmittedCommand, Violation,
    full::{InitiatorTask, InitiatorTasks, PendingPdu},
    login::{InitiatorLogin, LoginStep},
};
use crate::{
    Buffer, LoginExtension, Parameters, TaskId,
    frame::{PduReceiver, ReceiverStep, SegmentDestination},
    limits,
    pdu::{self, BHS_LEN, Bhs, NO_TAG, flag, opcode},
    serial,
    transmit::PduTransmitter,
};

/// Tag of every login request.
const LOGIN_TAG: u32 = 0x4C4F_4749;

pub(super) enum InitiatorPhase {
    Login(InitiatorLogin),
    Full,
    LoggingOut { until: u64 },
    Closed,
}

/// See the [module](super).
pub struct InitiatorConnection {
    pub(super) config: InitiatorConfig,
    pub(super) phase: InitiatorPhase,
    pub(super) agreed: Parameters,
    pub(super) rx: PduReceiver,
    pub(super) tx: PduTransmitter,
    pub(super) out: VecDeque<PendingPdu>,
    pub(super) events: VecDeque<InitiatorEvent>,
    pub(super) tasks: InitiatorTasks,
    pub(super) cmd_sn: u32,
    pub(super) max_cmd_sn: u32,
    pub(super) exp_stat_sn: u32,
    /// Whether a submission was refused because the window was full, since the last
    /// [`InitiatorEvent::WindowOpen`].
    pub(super) window_wanted: bool,
    login_until: u64,
    received_at_ms: u64,
    pub(super) ping_sent: Option<u64>,
    /// The command of the last Data-In.
    pub(super) data_in_tag: Option<u32>,
    now_ms: u64,
}

impl InitiatorConnection {
    /// Begins the login at once: its first request is ready to be transmitted.
    #[must_use]
    pub fn new(config: InitiatorConfig, now_ms: u64) -> Self {
        let cmd_sn = 1;
        let (login, bhs, keys) = InitiatorLogin::begin(&config, cmd_sn, LOGIN_TAG);
        let depth = config.queue_depth.clamp(1, limits::QUEUE_DEPTH_MAX);
        let mut connection = Self {
            rx: PduReceiver::new(config.crc32c),
            tx: PduTransmitter::new(config.crc32c),
            out: VecDeque::new(),
            events: VecDeque::new(),
            tasks: InitiatorTasks::new(depth),
            phase: InitiatorPhase::Login(login),
            agreed: Parameters::default(),
            cmd_sn,
            max_cmd_sn: cmd_sn.wrapping_sub(1),
            exp_stat_sn: 0,
            window_wanted: false,
            login_until: now_ms.saturating_add(config.login_timeout_ms),
            received_at_ms: now_ms,
            ping_sent: None,
            data_in_tag: None,
            now_ms,
            config,
        };
        connection.control(bhs, keys);
        connection
    }

    /// Sets the extension of the login. Must be called before anything was received.
    #[must_use]
    pub fn with_login_extension(mut self, extension: Box<dyn LoginExtension>) -> Self {
        if let InitiatorPhase::Login(login) = &mut self.phase {
            login.set_extension(extension);
        }
        self
    }

    /// Returns where to put the next received bytes: the first slice is filled before the second.
    /// Both are empty while nothing may be read.
    pub fn rx_space(&mut self) -> [&mut [u8]; 2] {
        if matches!(self.phase, InitiatorPhase::Closed) || self.backlogged() {
            return [&mut [], &mut []];
        }
        self.rx.space()
    }

    /// Records that `n` bytes were received into [`Self::rx_space`].
    pub fn received(&mut self, n: usize, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        self.received_at_ms = self.now_ms;
        self.rx.received(n);
        self.pump();
    }

    /// Returns the command of the last data-in, while it is in progress, and its data-in received
    /// so far. Data arrives in order: bytes returned once do not change.
    #[must_use]
    pub fn data_in_so_far(&self) -> Option<(TaskId, &[u8])> {
        let task = self.tasks.by_tag(self.data_in_tag?)?;
        // While a segment is received the receiver has the task's buffer.
        let bhs = self.rx.bhs();
        let in_hand = pdu::opcode_of(bhs) == opcode::DATA_IN && pdu::DataIn::of(bhs).tag.get() == task.tag;
        match self.rx.filled() {
            Some(filled) if in_hand => Some((task.id, filled)),
            _ => Some((task.id, task.data_in())),
        }
    }

    /// Records that the target closed its side of the stream.
    pub fn end_of_stream(&mut self) {
        let reason = match self.phase {
            InitiatorPhase::LoggingOut { .. } if self.tasks.is_empty() => InitiatorClosed::LoggedOut,
            _ => InitiatorClosed::EndOfStream,
        };
        self.close(reason);
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<InitiatorEvent> {
        self.events.pop_front()
    }

    /// Returns the next piece to write; the pieces in order form the stream.
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        loop {
            if let Some(piece) = self.tx.pop() {
                return Some(piece);
            }
            let backlogged = self.backlogged();
            let more = self.transmit_next();
            if backlogged && !self.backlogged() {
                self.pump();
            }
            if !more {
                return None;
            }
        }
    }

    /// Returns when to call [`Self::handle_timeout`], on the clock of `now_ms`.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        match self.phase {
            InitiatorPhase::Login(_) => Some(self.login_until),
            InitiatorPhase::LoggingOut { until } => Some(until),
            InitiatorPhase::Full => Some(match self.ping_sent {
                Some(sent) => sent.saturating_add(self.config.ping_timeout_ms),
                None => self.received_at_ms.saturating_add(self.config.ping_after_ms),
            }),
            InitiatorPhase::Closed => None,
        }
    }

    /// Processes timeouts that are due at `now_ms`.
    pub fn handle_timeout(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        if self.poll_timeout().is_none_or(|due| self.now_ms < due) {
            return;
        }
        match (&self.phase, self.ping_sent) {
            (InitiatorPhase::Login(_), _) => self.close(InitiatorClosed::LoginTimeout),
            (InitiatorPhase::LoggingOut { .. }, _) => self.close(InitiatorClosed::LogoutTimeout),
            (InitiatorPhase::Full, Some(_)) => self.close(InitiatorClosed::PingTimeout),
            (InitiatorPhase::Full, None) => {
                self.ping_sent = Some(self.now_ms);
                let mut pdu = pdu::Text::new(opcode::NOP_OUT | opcode::IMMEDIATE, flag::FINAL);
                pdu.tag.set(InitiatorTasks::PING_TAG);
                pdu.transfer.set(NO_TAG);
                pdu.cmd_sn.set(self.cmd_sn);
                self.control(pdu.wire(), Vec::new());
            }
            (InitiatorPhase::Closed, _) => {}
        }
    }

    /// Returns the negotiated parameters; defaults before [`InitiatorEvent::LoggedIn`].
    #[must_use]
    pub const fn parameters(&self) -> &Parameters {
        &self.agreed
    }

    /// Whether [`Self::submit`] would accept a command now.
    #[must_use]
    pub fn can_submit(&self) -> bool {
        matches!(self.phase, InitiatorPhase::Full)
            && !serial::before(self.max_cmd_sn, self.cmd_sn)
            && !self.tasks.is_full()
    }

    /// Returns the number of commands in progress.
    #[must_use]
    pub const fn under_way(&self) -> usize {
        self.tasks.len()
    }

    /// Sends a command.
    ///
    /// # Errors
    /// [`NotSent`] with the command itself; after [`SubmitError::WindowFull`] there will be an
    /// [`InitiatorEvent::WindowOpen`].
    #[allow(clippy::result_large_err, reason = "the command itself goes back, and refusal is rare")]
    pub fn submit(&mut self, command: SubmittedCommand) -> Result<TaskId, NotSent> {
        if !matches!(self.phase, InitiatorPhase::Full) {
            return Err(NotSent { error: SubmitError::NotReady, command });
        }
        if u32::try_from(command.data_out.len()).is_err() || u32::try_from(command.data_in.len()).is_err() {
            return Err(NotSent { error: SubmitError::TooLong, command });
        }
        if !self.can_submit() {
            self.window_wanted = true;
            return Err(NotSent { error: SubmitError::WindowFull, command });
        }
        let cmd_sn = self.cmd_sn;
        self.cmd_sn = cmd_sn.wrapping_add(1);
        let (id, tag) = self.tasks.insert(|id, tag| InitiatorTask::new(id, tag, cmd_sn, command));
        self.out.push_back(PendingPdu::Command { tag });
        Ok(id)
    }

    /// Requests a task management function, ahead of the command window.
    ///
    /// # Errors
    /// [`SubmitError::NotReady`] outside full feature phase, [`SubmitError::WindowFull`] beyond
    /// [`limits::MANAGEMENT_MAX`].
    pub fn manage(&mut self, function: ManagementFunction) -> Result<TaskId, SubmitError> {
        if !matches!(self.phase, InitiatorPhase::Full) {
            return Err(SubmitError::NotReady);
        }
        let (id, tag) = self.tasks.begin_management(function).ok_or(SubmitError::WindowFull)?;
        let code = match function {
            ManagementFunction::AbortTask(_) => 1,
            ManagementFunction::AbortTaskSet(_) => 2,
            ManagementFunction::ClearTaskSet(_) => 4,
            ManagementFunction::LogicalUnitReset(_) => 5,
            ManagementFunction::TargetWarmReset => 6,
            ManagementFunction::TargetColdReset => 7,
        };
        let mut pdu =
            pdu::TaskManagement::new(opcode::TASK_MANAGEMENT | opcode::IMMEDIATE, flag::FINAL | code);
        pdu.tag.set(tag);
        pdu.referenced.set(NO_TAG);
        pdu.cmd_sn.set(self.cmd_sn);
        match function {
            ManagementFunction::AbortTask(task) => {
                if let Some(task) = self.tasks.by_id(task) {
                    pdu.referenced.set(task.tag);
                    pdu.ref_cmd_sn.set(task.cmd_sn);
                    pdu.lun.set(task.command.lun);
                }
            }
            ManagementFunction::AbortTaskSet(lun)
            | ManagementFunction::ClearTaskSet(lun)
            | ManagementFunction::LogicalUnitReset(lun) => {
                pdu.lun.set(lun);
            }
            ManagementFunction::TargetWarmReset | ManagementFunction::TargetColdReset => {}
        }
        self.control(pdu.wire(), Vec::new());
        Ok(id)
    }

    /// Requests targets: `All` in a discovery session; in a normal one the empty string requests
    /// this target.
    ///
    /// # Errors
    /// [`SubmitError::NotReady`] outside full feature phase, [`SubmitError::WindowFull`] while
    /// another request is pending.
    pub fn send_targets(&mut self, which: &str) -> Result<(), SubmitError> {
        if !matches!(self.phase, InitiatorPhase::Full) {
            return Err(SubmitError::NotReady);
        }
        if self.tasks.text.is_some() {
            return Err(SubmitError::WindowFull);
        }
        self.tasks.text = Some(Vec::new());
        let mut pdu = pdu::Text::new(opcode::TEXT | opcode::IMMEDIATE, flag::FINAL);
        pdu.tag.set(InitiatorTasks::TEXT_TAG);
        pdu.transfer.set(NO_TAG);
        pdu.cmd_sn.set(self.cmd_sn);
        let mut keys = Vec::new();
        crate::text::put(&mut keys, "SendTargets", which);
        self.control(pdu.wire(), keys);
        Ok(())
    }

    /// Ends the session; commands in progress are lost. [`InitiatorEvent::Closed`] follows.
    pub fn logout(&mut self) {
        match self.phase {
            InitiatorPhase::Full => {
                let mut pdu = pdu::Logout::new(opcode::LOGOUT | opcode::IMMEDIATE, flag::FINAL);
                pdu.tag.set(InitiatorTasks::LOGOUT_TAG);
                pdu.cmd_sn.set(self.cmd_sn);
                self.control(pdu.wire(), Vec::new());
                let until = self.now_ms.saturating_add(self.config.login_timeout_ms);
                self.phase = InitiatorPhase::LoggingOut { until };
            }
            InitiatorPhase::Login(_) => self.close(InitiatorClosed::LoggedOut),
            InitiatorPhase::LoggingOut { .. } | InitiatorPhase::Closed => {}
        }
    }

    pub(super) fn close(&mut self, reason: InitiatorClosed) {
        if !matches!(self.phase, InitiatorPhase::Closed) {
            self.phase = InitiatorPhase::Closed;
            self.out.clear();
            self.events.push_back(InitiatorEvent::Closed(reason));
        }
    }

    pub(super) fn control(&mut self, bhs: Bhs, data: Vec<u8>) {
        self.out.push_back(PendingPdu::Control { bhs, data: Bytes::from(data) });
    }

    fn backlogged(&self) -> bool {
        self.out.len() >= limits::TRANSMIT_BACKLOG_MAX + self.tasks.capacity()
    }

    fn pump(&mut self) {
        while !matches!(self.phase, InitiatorPhase::Closed) && !self.backlogged() {
            let done = match self.rx.step() {
                ReceiverStep::Starved => return,
                ReceiverStep::Header => {
                    let bhs = *self.rx.bhs();
                    self.destination(&bhs).map(|destination| self.rx.accept(destination))
                }
                ReceiverStep::Pdu { destination, intact: true } => {
                    let bhs = *self.rx.bhs();
                    self.pdu(&bhs, destination)
                }
                ReceiverStep::Pdu { intact: false, .. } => {
                    Err(InitiatorClosed::Violation(Violation::DataDigest))
                }
                ReceiverStep::Broken(error) => Err(InitiatorClosed::Violation(error.into())),
            };
            if let Err(reason) = done {
                self.close(reason);
            }
        }
    }

    /// Chooses the destination of a data segment.
    fn destination(&mut self, bhs: &Bhs) -> Result<SegmentDestination, InitiatorClosed> {
        let length = pdu::data_length(bhs);
        if pdu::ahs_length(bhs) != 0 {
            return Err(InitiatorClosed::Violation(Violation::AdditionalHeader));
        }
        let opcode = pdu::opcode_of(bhs);
        let most = match (&self.phase, opcode) {
            (InitiatorPhase::Login(_), opcode::LOGIN_RESPONSE) => limits::LOGIN_SEGMENT_MAX,
            (InitiatorPhase::Login(_), _) => {
                return Err(InitiatorClosed::Violation(Violation::UnexpectedPdu(opcode)));
            }
            (_, opcode::DATA_IN) => {
                return self.data_in_destination(bhs, length).map_err(InitiatorClosed::Violation);
            }
            (_, opcode::SCSI_RESPONSE) => limits::RESPONSE_SEGMENT_MAX.min(self.agreed.max_receive),
            _ => self.agreed.max_receive,
        };
        if length > most {
            return Err(InitiatorClosed::Violation(Violation::LongSegment(length)));
        }
        Ok(match opcode {
            _ if length == 0 => SegmentDestination::Discard,
            opcode::LOGIN_RESPONSE | opcode::TEXT_RESPONSE | opcode::SCSI_RESPONSE => {
                SegmentDestination::Into(Buffer::from(vec![0; length as usize]), 0)
            }
            opcode::REJECT if length as usize >= BHS_LEN => {
                SegmentDestination::Into(Buffer::from(vec![0; BHS_LEN]), 0)
            }
            _ => SegmentDestination::Discard,
        })
    }

    fn pdu(&mut self, bhs: &Bhs, destination: SegmentDestination) -> Result<(), InitiatorClosed> {
        let InitiatorPhase::Login(login) = &mut self.phase else {
            return self.full_feature(bhs, destination);
        };
        let data = match &destination {
            SegmentDestination::Into(buffer, _) => buffer.as_slice(),
            SegmentDestination::Discard => &[],
        };
        let response = pdu::LoginResponse::of(bhs);
        if response.tag.get() != LOGIN_TAG {
            return Err(InitiatorClosed::Violation(Violation::UnknownTask(response.tag.get())));
        }
        self.exp_stat_sn = response.stat_sn.get().wrapping_add(1);
        match login.response(&self.config, self.cmd_sn, &response, data)? {
            LoginStep::Request(bhs, keys) => self.control(bhs, keys),
            // Nothing authenticates bytes that were sent before the change.
            LoginStep::Done if login.changes_stream && self.rx.in_pdu() => {
                return Err(InitiatorClosed::Violation(Violation::Extension));
            }
            LoginStep::Done => {
                self.agreed = login.agreed.clone();
                self.max_cmd_sn = response.max_cmd_sn.get();
                self.rx.set_digests(self.agreed.header_digest, self.agreed.data_digest);
                self.tx.set_digests(self.agreed.header_digest, self.agreed.data_digest);
                self.phase = InitiatorPhase::Full;
                self.events.push_back(InitiatorEvent::LoggedIn(self.agreed.clone()));
            }
        }
        Ok(())
    }

    /// Processes MaxCmdSN and ExpCmdSN of any response (RFC 7143 §4.2.2.1).
    pub(super) fn window(&mut self, exp_cmd_sn: u32, max_cmd_sn: u32) {
        if serial::before(max_cmd_sn, exp_cmd_sn.wrapping_sub(1)) {
            return;
        }
        if serial::before(self.max_cmd_sn, max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }

    /// Reports once that a command may be submitted again.
    pub(super) fn announce_window(&mut self) {
        if self.window_wanted && self.can_submit() {
            self.window_wanted = false;
            self.events.push_back(InitiatorEvent::WindowOpen);
        }
    }
}
