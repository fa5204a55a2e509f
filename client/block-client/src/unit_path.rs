//! One path to a unit: a session that is established again after it was lost.
//!
//! Does: connects, recognizes the unit, repeats commands, and counts losses after a power failure.
//! Does not: split requests; `unit` does.
//! Contract: one task makes all attempts to reconnect. When the session was lost for the recovery
//! timeout, all waiting commands fail at once. Until an attempt succeeds, a later command causes
//! one attempt and fails with it.
//! Contract: a command is repeated with the ISID that sent it first. The login of that ISID ends
//! the earlier session and its commands (RFC 7143 §6.3.5), so an earlier copy of a WRITE cannot
//! overtake a later command.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use sealstone_initiator::{
    BlockReport, Dial, ProtectionSettings, ScsiRequest, ScsiResponse, Session, SessionConfig, SessionError,
};
use sealstone_scsi::{AdditionalSense, additional};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::command::{self, CapacityData};
use crate::error::{StatusClass, classify};
use crate::flush::{LossCounter, UnflushedWrites};
use crate::limits::{self, UnitGeometry, UnitIdentity};
use crate::{BlockError, UnitClientOptions};

/// Maximum unit attentions that one command survives.
const ATTENTIONS_MAX: u32 = 16;
/// Pause before a command is sent again to a busy unit.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// Maximum bytes of MODE SENSE (6).
const MODE_BYTES: usize = 255;

/// A command of a unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnitCommand {
    /// For errors.
    pub(crate) name: &'static str,
    pub(crate) cdb: Bytes,
    pub(crate) data_out: Vec<Bytes>,
    pub(crate) data_in_max: usize,
    /// Whether the target acknowledges it before it is durable.
    pub(crate) leaves_unflushed: bool,
    /// The sessions that may send it: the first ones of the client, up to this number.
    pub(crate) sessions_max: Option<u64>,
}

/// The unit as it was when the client opened it.
#[derive(Clone, Debug)]
pub(crate) struct KnownUnit {
    pub(crate) identity: UnitIdentity,
    pub(crate) geometry: UnitGeometry,
}

/// An established session.
#[derive(Clone)]
struct UnitLink {
    session: Session,
    number: u64,
}

/// The session of a path.
enum LinkState {
    /// No session, and no attempt in progress.
    Idle,
    /// Attempts in progress.
    Connecting {
        /// Time of the first attempt.
        since: Instant,
        /// Error of the last attempt.
        cause: Option<SessionError>,
        /// Failed attempts of this path so far.
        failures: u64,
    },
    /// A session, unless it was closed since.
    Established(UnitLink),
    /// Further attempts are useless; the next command makes one nevertheless.
    Failed(BlockError),
}

/// One path to a unit. Dropping it ends its attempts to reconnect.
pub(crate) struct UnitPath(Arc<PathState>);

struct PathState {
    dial: Arc<dyn Dial>,
    config: SessionConfig,
    lun: u16,
    recovery_timeout: Option<Duration>,
    reconnect_pause: Duration,
    link: watch::Sender<LinkState>,
    /// The task that reconnects.
    reconnecting: Mutex<Option<AbortHandle>>,
    /// Ends the pause before the next attempt.
    hurry: Notify,
    /// Failed attempts so far.
    failures: AtomicU64,
    /// Sessions that all paths of the client have established.
    links: Arc<AtomicU64>,
    known: Mutex<Option<KnownUnit>>,
    /// Requests for the keys of the unit that succeeded.
    key_requests: AtomicU64,
    /// Held while the keys are requested again.
    requesting_keys: tokio::sync::Mutex<()>,
    losses: Arc<LossCounter>,
    writes: UnflushedWrites,
}

/// How long a command has been repeated.
struct CommandDeadline {
    began: Instant,
    deadline: Option<Instant>,
    attentions: u32,
}

impl UnitPath {
    pub(crate) fn new(
        dial: Arc<dyn Dial>,
        config: SessionConfig,
        lun: u16,
        options: &UnitClientOptions,
        losses: Arc<LossCounter>,
        links: Arc<AtomicU64>,
    ) -> Self {
        Self(Arc::new(PathState {
            dial,
            config,
            lun,
            recovery_timeout: options.recovery_timeout,
            reconnect_pause: options.reconnect_pause,
            link: watch::Sender::new(LinkState::Idle),
            reconnecting: Mutex::new(None),
            hurry: Notify::new(),
            failures: AtomicU64::new(0),
            links,
            known: Mutex::new(None),
            key_requests: AtomicU64::new(0),
            requesting_keys: tokio::sync::Mutex::default(),
            losses,
            writes: UnflushedWrites::default(),
        }))
    }

    /// Logs in and reads size, limits and identity of the unit, in one attempt.
    pub(crate) async fn open(&self) -> Result<KnownUnit, BlockError> {
        let link = self.0.establish().await?;
        self.0.link.send_replace(LinkState::Established(link));
        self.0.known.lock().clone().ok_or(BlockError::NoUnit)
    }

    /// Runs a command; repeats it while the target is unavailable or busy. Data-in are received
    /// into `buffer`, unless it is empty or the command was repeated.
    pub(crate) async fn run(
        &self,
        command: &UnitCommand,
        mut buffer: Vec<u8>,
    ) -> Result<ScsiResponse, BlockError> {
        let path = &self.0;
        let began = Instant::now();
        let deadline = path.recovery_timeout.map(|timeout| began + timeout);
        let mut command_deadline = CommandDeadline { began, deadline, attentions: 0 };
        loop {
            let link = path.link(&command_deadline).await?;
            if command.sessions_max.is_some_and(|sessions| link.number >= sessions) {
                return Err(BlockError::SessionReplaced);
            }
            if command.leaves_unflushed {
                path.writes.count_step();
            }
            let key_requests = path.key_requests.load(Ordering::Acquire);
            let response =
                match link.session.execute(path.request(command, core::mem::take(&mut buffer))).await {
                    Ok(response) => response,
                    Err(error @ (SessionError::TooLong { .. } | SessionError::Rejected(_))) => {
                        return Err(error.into());
                    }
                    Err(error) => {
                        path.drop_link(&link, &error);
                        command_deadline.check(error)?;
                        continue;
                    }
                };
            match classify(response.status, &response.sense, command.name) {
                StatusClass::Done => {
                    if command.leaves_unflushed {
                        path.writes.count_step();
                    }
                    return Ok(response);
                }
                StatusClass::Retry => {
                    if command_deadline.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return Err(BlockError::Busy);
                    }
                    sleep(BUSY_PAUSE).await;
                }
                StatusClass::Attention(code) => {
                    path.handle_unit_attention(code);
                    if code == additional::UNIT_KEYS_CHANGED {
                        match path.request_new_unit_keys(&link.session, key_requests).await {
                            Ok(()) => {}
                            Err(BlockError::Session(error)) => {
                                path.drop_link(&link, &error);
                                command_deadline.check(error)?;
                            }
                            Err(error) => return Err(error),
                        }
                    }
                    command_deadline.attentions += 1;
                    if command_deadline.attentions > ATTENTIONS_MAX {
                        return Err(BlockError::Busy);
                    }
                }
                StatusClass::Failed(error) => return Err(error),
            }
        }
    }

    /// Whether blocks that are not authentic are read in older versions: the paper's profile.
    pub(crate) fn falls_back(&self) -> bool {
        let protection = self.0.config.protection.as_ref();
        protection.is_some_and(|own| own.level.is_lazily_authenticated() && !own.profile.binds_address())
    }

    /// Requests the keys of the unit again, if it has any: blocks of a newer epoch than that of the
    /// session are not authentic to it.
    pub(crate) async fn refresh_unit_keys(&self) -> Result<(), BlockError> {
        match self.session() {
            Some(session) => self.0.request_unit_keys(&session).await,
            None => Ok(()),
        }
    }

    /// Returns the number of reports about blocks that wait.
    pub(crate) fn waiting_reports(&self) -> usize {
        self.session().map_or(0, |session| session.block_reports().len())
    }

    /// Takes waiting reports about blocks. Those of a session that was lost are dropped.
    pub(crate) fn take_reports(&self, count: usize) -> Vec<BlockReport> {
        self.session().map_or_else(Vec::new, |session| session.block_reports().take(count))
    }

    /// Returns the current session, if there is one.
    fn session(&self) -> Option<Session> {
        match &*self.0.link.borrow() {
            LinkState::Established(link) if !link.session.is_closed() => Some(link.session.clone()),
            _ => None,
        }
    }

    /// Returns the writes that a flush covers if it is sent after this call.
    pub(crate) fn begin_flush(&self) -> u64 {
        self.0.writes.begin_flush()
    }

    /// Marks writes as flushed; called after the flush succeeded or its failure was recorded.
    pub(crate) fn end_flush(&self, covered: u64) {
        self.0.writes.end_flush(covered);
    }

    /// Logs out; the next command connects again.
    pub(crate) async fn close(&self) {
        self.0.end_reconnecting();
        if let LinkState::Established(link) = self.0.link.send_replace(LinkState::Idle) {
            link.session.logout().await;
        }
    }
}

impl Drop for UnitPath {
    fn drop(&mut self) {
        self.0.end_reconnecting();
    }
}

impl PathState {
    fn request(&self, command: &UnitCommand, buffer: Vec<u8>) -> ScsiRequest {
        ScsiRequest {
            lun: self.lun,
            cdb: command.cdb.clone(),
            data_out: command.data_out.clone(),
            data_in_max: command.data_in_max,
            buffer,
            ..ScsiRequest::default()
        }
    }

    fn drop_link(&self, link: &UnitLink, error: &SessionError) {
        // After a timeout the command was aborted, and the session continues.
        if matches!(error, SessionError::Timeout(_)) {
            return;
        }
        self.link.send_if_modified(|state| match state {
            LinkState::Established(current) if current.number == link.number => {
                tracing::warn!(%error, "the session with the block unit was lost; reconnecting");
                *state = LinkState::Idle;
                true
            }
            _ => false,
        });
    }

    /// Returns the session; waits for a new one until the time limit of the command or of the
    /// outage has passed and an attempt has failed.
    async fn link(self: &Arc<Self>, command_deadline: &CommandDeadline) -> Result<UnitLink, BlockError> {
        if let Some(link) = self.link.borrow().usable() {
            return Ok(link);
        }
        let mut states = self.link.subscribe();
        let mut has_waited = false;
        let failures_before = self.failures.load(Ordering::Acquire);
        loop {
            let mut limit = None;
            let mut is_connecting = false;
            match &*states.borrow_and_update() {
                LinkState::Connecting { since, cause, failures } => {
                    is_connecting = true;
                    let outage = self.recovery_timeout.map(|timeout| *since + timeout);
                    limit = command_deadline.deadline.into_iter().chain(outage).min();
                    if limit.is_some_and(|limit| Instant::now() >= limit) {
                        if let Some(cause) = cause
                            && *failures > failures_before
                        {
                            let waited = since.elapsed().max(command_deadline.began.elapsed());
                            return Err(BlockError::Unavailable { waited, cause: cause.clone() });
                        }
                        limit = None;
                        self.hurry.notify_one();
                    }
                }
                LinkState::Failed(error) if has_waited => return Err(error.clone()),
                state => {
                    if let Some(link) = state.usable() {
                        return Ok(link);
                    }
                }
            }
            if !is_connecting {
                self.begin_reconnecting();
            }
            has_waited = true;
            // The sender is in `self`, so it cannot be dropped meanwhile.
            let _ = match limit {
                Some(limit) => timeout_at(limit, states.changed()).await.unwrap_or(Ok(())),
                None => states.changed().await,
            };
        }
    }

    /// Starts the task that reconnects, unless it is running or there is a session.
    fn begin_reconnecting(self: &Arc<Self>) {
        let has_begun = self.link.send_if_modified(|state| match state {
            LinkState::Connecting { .. } => false,
            state if state.usable().is_some() => false,
            state => {
                let failures = self.failures.load(Ordering::Acquire);
                *state = LinkState::Connecting { since: Instant::now(), cause: None, failures };
                true
            }
        });
        if has_begun {
            let task = tokio::spawn(Arc::clone(self).reconnect());
            *self.reconnecting.lock() = Some(task.abort_handle());
        }
    }

    fn end_reconnecting(&self) {
        if let Some(task) = self.reconnecting.lock().take() {
            task.abort();
        }
    }

    /// Attempts to connect until it succeeds, or further attempts are useless.
    async fn reconnect(self: Arc<Self>) {
        let mut attempts: u32 = 0;
        loop {
            if attempts > 0 {
                let pause = self.reconnect_pause.saturating_mul(2u32.saturating_pow(attempts - 1));
                // A command cannot cause attempts without any pause.
                sleep(self.reconnect_pause).await;
                let rest = pause.min(UnitClientOptions::PAUSE_MAX).saturating_sub(self.reconnect_pause);
                let _ = timeout(rest, self.hurry.notified()).await;
            }
            match self.establish().await {
                Ok(link) => {
                    if attempts > 0 {
                        tracing::info!(attempts, "the session with the block unit is established");
                    }
                    self.link.send_replace(LinkState::Established(link));
                    return;
                }
                Err(BlockError::Session(error)) if !error.is_final() => {
                    attempts = attempts.saturating_add(1);
                    let total = self.failures.fetch_add(1, Ordering::AcqRel) + 1;
                    self.link.send_modify(|state| {
                        if let LinkState::Connecting { cause, failures, .. } = state {
                            (*cause, *failures) = (Some(error), total);
                        }
                    });
                }
                Err(error) => {
                    self.link.send_replace(LinkState::Failed(error));
                    return;
                }
            }
        }
    }

    /// Connects once, logs in, and compares the unit with the one that was opened.
    async fn establish(&self) -> Result<UnitLink, BlockError> {
        let dialed = self.dial.dial().await?;
        let config = SessionConfig { channel_secret: dialed.secret, ..self.config.clone() };
        let session = Session::over(dialed.stream, config).await?;
        let identity = self.identify(&session).await?;
        self.request_unit_keys(&session).await?;
        let capacity = self.capacity(&session).await?;
        let known = self.known.lock().clone();
        match known {
            Some(known) if known.identity != identity => return Err(BlockError::Changed("identity")),
            Some(known) if known.geometry.block_bytes != capacity.block_bytes => {
                return Err(BlockError::Changed("block size"));
            }
            Some(known) if capacity.blocks * u64::from(capacity.block_bytes) < known.geometry.bytes => {
                return Err(BlockError::Changed("size"));
            }
            Some(_) => {}
            None => {
                let geometry = self.geometry(&session, &identity, &capacity).await?;
                *self.known.lock() = Some(KnownUnit { identity, geometry });
            }
        }
        let number = self.links.fetch_add(1, Ordering::SeqCst);
        Ok(UnitLink { session, number })
    }

    /// Clears unit attentions and reads the identity of the unit.
    async fn identify(&self, session: &Session) -> Result<UnitIdentity, BlockError> {
        // INQUIRY first: without a unit, other commands fail.
        let inquiry = self.run_setup_command(session, "INQUIRY", command::inquiry(), 36).await?;
        let serial = self.page(session, limits::SERIAL).await?.unwrap_or_default();
        let designators = self.page(session, limits::IDENTIFICATION).await?.unwrap_or_default();
        let identity = UnitIdentity::new(&inquiry, serial, designators)?;
        self.run_setup_command(session, "TEST UNIT READY", command::test_unit_ready(), 0).await?;
        Ok(identity)
    }

    /// Makes a session request the keys of the unit, at levels with such keys.
    async fn request_unit_keys(&self, session: &Session) -> Result<(), BlockError> {
        let form = self.config.protection.as_ref().and_then(ProtectionSettings::key_list_form);
        if form.is_none_or(|form| !form.scheme.has_generations()) {
            return Ok(());
        }
        let (cdb, most) = (command::receive_unit_keys(), command::UNIT_KEYS_BYTES);
        // The session keeps the keys; the answer is zeros.
        self.run_setup_command(session, "RECEIVE UNIT KEYS", cdb, most).await?;
        self.key_requests.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Requests the keys of the unit, unless another command has done so since `requests` were
    /// counted: each request makes the generations of writes in flight stale.
    async fn request_new_unit_keys(&self, session: &Session, requests: u64) -> Result<(), BlockError> {
        let _requesting = self.requesting_keys.lock().await;
        if self.key_requests.load(Ordering::Acquire) != requests {
            return Ok(());
        }
        self.request_unit_keys(session).await
    }

    async fn capacity(&self, session: &Session) -> Result<CapacityData, BlockError> {
        let bytes = self
            .run_setup_command(session, "READ CAPACITY", command::read_capacity(), command::CAPACITY_BYTES)
            .await?;
        command::parse_capacity(&bytes).ok_or(BlockError::Malformed("READ CAPACITY"))
    }

    async fn geometry(
        &self,
        session: &Session,
        identity: &UnitIdentity,
        capacity: &CapacityData,
    ) -> Result<UnitGeometry, BlockError> {
        let limits = self.page(session, limits::BLOCK_LIMITS).await?;
        let provisioning = self.page(session, limits::PROVISIONING).await?;
        let mode =
            match self.run_setup_command(session, "MODE SENSE", command::mode_sense(), MODE_BYTES).await {
                Ok(mode) => mode,
                Err(BlockError::Unsupported(_)) => Vec::new(),
                Err(error) => return Err(error),
            };
        let device_specific = mode.get(2).copied().unwrap_or_default();
        let geometry =
            UnitGeometry::new(capacity, limits.as_deref(), provisioning.as_deref(), device_specific);
        // The page of another vendor has another meaning.
        let promises = match identity.is_sealstone() {
            true => self.page(session, limits::PROMISES).await?,
            false => None,
        };
        Ok(UnitGeometry { keeps_order: promises.as_deref().is_some_and(limits::keeps_order), ..geometry })
    }

    /// Returns the content of a page of vital product data; `None` if the unit lacks it.
    async fn page(&self, session: &Session, page: u8) -> Result<Option<Vec<u8>>, BlockError> {
        let length = usize::from(command::PAGE_BYTES);
        match self.run_setup_command(session, "INQUIRY", command::vital_page(page), length).await {
            Ok(bytes) => Ok(limits::page_content(page, &bytes).map(<[u8]>::to_vec)),
            Err(BlockError::Failed { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Runs a command of the set-up of a session, through unit attentions.
    async fn run_setup_command(
        &self,
        session: &Session,
        name: &'static str,
        cdb: Bytes,
        data_in_max: usize,
    ) -> Result<Vec<u8>, BlockError> {
        let command = UnitCommand { name, cdb, data_in_max, ..UnitCommand::default() };
        for _ in 0..ATTENTIONS_MAX {
            let response = session.execute(self.request(&command, Vec::new())).await?;
            match classify(response.status, &response.sense, name) {
                StatusClass::Done => return Ok(response.data_in),
                StatusClass::Attention(code) => self.handle_unit_attention(code),
                StatusClass::Retry => sleep(BUSY_PAUSE).await,
                StatusClass::Failed(error) => return Err(error),
            }
        }
        Err(BlockError::Session(SessionError::NexusLost))
    }

    /// Handles a unit attention. After a power failure the target may have lost unflushed writes.
    fn handle_unit_attention(&self, code: AdditionalSense) {
        if code == additional::ACKNOWLEDGED_WRITE_REJECTED {
            tracing::error!(
                "the target deleted acknowledged writes that were not authentic; the next flush fails"
            );
        }
        tracing::debug!(%code, "unit attention");
        let precise = self.known.lock().as_ref().is_none_or(|known| known.identity.is_sealstone());
        if code == additional::POWER_ON_OCCURRED
            && !precise
            && self.writes.end_flush(self.writes.begin_flush())
        {
            tracing::error!("the target had a power failure with unflushed writes; the next flush fails");
            self.losses.record();
        }
    }
}

impl LinkState {
    /// Returns the session, unless it is closed.
    fn usable(&self) -> Option<UnitLink> {
        match self {
            Self::Established(link) if !link.session.is_closed() => Some(link.clone()),
            _ => None,
        }
    }
}

impl CommandDeadline {
    /// Fails when the time is over.
    fn check(&self, cause: SessionError) -> Result<(), BlockError> {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(BlockError::Unavailable { waited: self.began.elapsed(), cause });
        }
        Ok(())
    }
}
