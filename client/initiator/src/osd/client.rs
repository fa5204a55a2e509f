//! A client of one device: runs typed commands, and hides reconnects and retries.
//!
//! Does: connects on demand, signs, sends, verifies, and retries idempotent commands.
//! Does not: obtain credentials.
//! Contract: an operation that is not idempotent is never sent again after it may have been
//! executed; its error is then `OutcomeUnknown`.
//! Truth: docs/design/security.md §3.4 (client skew); t10-osd §1.10.

use core::time::Duration;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use sealstone_osd::SecurityMethod;
use sealstone_seal::SecurityToken;
use sealstone_seal::clock::{DeviceClock, NonceRetry, RetryAdvice};
use sealstone_seal::paper::mceliece::PublicKey;
use tokio::time::sleep;

use super::assemble::assemble;
use super::bearer::Bearer;
use super::data_in_hasher::DataInHasher;
use super::dial::{Dial, Dialed, TlsPolicy};
use super::outcome::{ResponseOutcome, decode_response};
use super::translate::{completion, draft};
use crate::driver::DataObserver;
use crate::{
    Completion, Environment, Operation, OsdError, RepeatEffect, ScsiRequest, ScsiResponse, Session,
    SessionConfig, SessionError, TargetUrl,
};

/// TEST UNIT READY.
const TEST_UNIT_READY: [u8; 6] = [0; 6];
/// How often it is sent after a login, to consume unit attentions before the first command.
const TEST_UNIT_READY_MAX: u32 = 5;
/// INQUIRY of VPD page B1h: the security token of this nexus.
const INQUIRY_TOKEN: [u8; 6] = [0x12, 0x01, 0xB1, 0x00, 0xFF, 0x00];
/// Bytes before the contents of a VPD page.
const PAGE_HEAD: usize = 4;
/// Offset of the token in that page.
const TOKEN_AT: usize = PAGE_HEAD;
/// Maximum bytes of VPD page C0h; the longest key fits.
const CIPHER_MAX: usize = 0x1000;
/// INQUIRY of VPD page C0h: the public key of the device's method cipher.
const INQUIRY_CIPHER: [u8; 6] = [0x12, 0x01, 0xC0, 0x10, 0x00, 0x00];

/// Options of a client of a device.
#[derive(Clone, Debug)]
pub struct OsdOptions {
    /// The session: timeouts, queue depth, digests. Name and ISID are set for each device.
    pub session: SessionConfig,
    /// Maximum reconnects for one operation.
    pub reconnects_max: u32,
    /// Pause before the first reconnect; it doubles up to [`OsdOptions::RECONNECT_PAUSE_MAX`].
    pub reconnect_pause: Duration,
    /// Maximum retries of an operation while the device is busy.
    pub busy_retries_max: u32,
    /// Pause before the first retry; it doubles up to [`OsdOptions::BUSY_PAUSE_MAX`].
    pub busy_pause: Duration,
    /// Conceals the method of each command with the paper's cipher, for devices that require it. It
    /// gives no protection (`sealstone_seal::paper::mceliece`).
    pub conceal_method: bool,
    /// Whether [`Operation::ExecutePaperFunction`] may be sent: the descriptor 0003h of the ASF
    /// paper, which only devices with its profile accept.
    pub paper_functions: bool,
    /// Device clock minus ours, in milliseconds, as far as the metadata server knows. Read before
    /// the first session with a device; later only the device's own clock counts.
    pub clock_offset_ms: Arc<AtomicI64>,
    /// When TLS is used.
    pub tls: TlsPolicy,
}

impl OsdOptions {
    /// Longest pause between two tries at a busy device.
    pub const BUSY_PAUSE_MAX: Duration = Duration::from_secs(1);
    /// Longest pause between two tries to connect.
    pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(2);

    /// Returns the default options, with which a restart of a device of up to seven seconds causes
    /// no error.
    #[must_use]
    pub fn new(environment: &dyn Environment) -> Self {
        Self {
            session: SessionConfig::new(None, environment),
            reconnects_max: 8,
            reconnect_pause: Duration::from_millis(50),
            busy_retries_max: 10,
            busy_pause: Duration::from_millis(5),
            conceal_method: false,
            paper_functions: false,
            clock_offset_ms: Arc::default(),
            tls: TlsPolicy::default(),
        }
    }
}

/// A device. Clones share its session.
///
/// ```no_run
/// use std::sync::Arc;
/// use sealstone_initiator::{Bearer, OsdClient, OsdOptions, SystemEnvironment, TargetUrl, TcpDial};
/// use sealstone_osd::ObjectId;
/// # async fn demo(bearer: Bearer) -> Result<(), Box<dyn std::error::Error>> {
/// let url: TargetUrl = "iscsi://127.0.0.1/iqn.2026-11.org.sealstone:osd.a/0".parse()?;
/// let environment = Arc::new(SystemEnvironment);
/// let options = OsdOptions::new(&*environment);
/// let device = OsdClient::new(Arc::new(TcpDial::new(&url)), &url, environment, options);
/// let bytes = device.read(&bearer, ObjectId::new(0x10000, 0x10000), 0, 4096).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct OsdClient(Arc<ClientState>);

struct ClientState {
    dial: Arc<dyn Dial>,
    environment: Arc<dyn Environment>,
    options: OsdOptions,
    lun: u16,
    clock: Mutex<DeviceClock>,
    nexus: tokio::sync::Mutex<Option<Nexus>>,
}

/// A session with its number, token and cipher.
#[derive(Clone)]
struct Nexus {
    session: Session,
    number: u64,
    token: Option<SecurityToken>,
    cipher: Option<Arc<PublicKey>>,
}

/// The retries that one operation has used.
#[derive(Default)]
struct RetryState {
    reconnects: u32,
    busy: u32,
    attentions: u32,
    replays: u32,
    clock_waits: u32,
    skew: NonceRetry,
    /// Whether the data were wrong and the device was asked to read them from its medium.
    looked: bool,
    /// Whether the operation may have been executed already.
    unknown: bool,
}

impl RetryState {
    /// Waits for a device whose clock is wrong, or returns `error` after [`CLOCK_WAITS_MAX`].
    async fn wait_for_clock(&mut self, error: OsdError) -> Result<(), OsdError> {
        if self.clock_waits >= CLOCK_WAITS_MAX {
            return Err(error);
        }
        if self.clock_waits == 0 {
            tracing::warn!(%error, "waiting for the clock of the device");
        }
        let pause = CLOCK_WAIT_MIN.saturating_mul(2u32.saturating_pow(self.clock_waits));
        sleep(pause.min(OsdOptions::BUSY_PAUSE_MAX)).await;
        self.clock_waits += 1;
        Ok(())
    }
}

/// First pause for a device whose clock is wrong; it doubles up to [`OsdOptions::BUSY_PAUSE_MAX`].
const CLOCK_WAIT_MIN: Duration = Duration::from_millis(10);
/// Maximum such pauses of one operation: half a minute, in which a clock step is confirmed.
const CLOCK_WAITS_MAX: u32 = 36;
/// Maximum unit attentions that one operation survives.
const ATTENTIONS_MAX: u32 = 4;
/// Maximum new nonces after one was not unique.
const REPLAYS_MAX: u32 = 1;

impl OsdClient {
    /// Creates a client of the device at `url`, over connections of `dial`. Connects at the first
    /// operation.
    #[must_use]
    pub fn new(
        dial: Arc<dyn Dial>,
        url: &TargetUrl,
        environment: Arc<dyn Environment>,
        mut options: OsdOptions,
    ) -> Self {
        options.session.target_name = Some(url.target.clone());
        let clock = Mutex::new(DeviceClock::new(options.clock_offset_ms.load(Ordering::Relaxed), 0));
        let nexus = tokio::sync::Mutex::new(None);
        Self(Arc::new(ClientState { dial, environment, options, lun: url.lun, clock, nexus }))
    }

    /// Runs one operation.
    ///
    /// # Errors
    /// Any [`OsdError`]. Idempotent operations were already retried, within the limits of
    /// [`OsdOptions`].
    pub async fn execute(&self, bearer: &Bearer, operation: Operation) -> Result<Completion, OsdError> {
        self.run_with_retries(bearer, operation, false).await
    }

    /// Runs one operation with FUA: its changes are durable when it returns.
    ///
    /// # Errors
    /// As [`OsdClient::execute`].
    pub async fn execute_durably(
        &self,
        bearer: &Bearer,
        operation: Operation,
    ) -> Result<Completion, OsdError> {
        self.run_with_retries(bearer, operation, true).await
    }

    async fn run_with_retries(
        &self,
        bearer: &Bearer,
        operation: Operation,
        durable: bool,
    ) -> Result<Completion, OsdError> {
        let mut retry_state = RetryState::default();
        let (mut operation, asked) = match operation {
            Operation::Asking { operation, ids } => (*operation, ids),
            other => (other, Vec::new()),
        };
        if matches!(operation, Operation::ExecutePaperFunction { .. }) && !self.0.options.paper_functions {
            return Err(OsdError::PaperFunctionsOff);
        }
        let mut buffer = match &mut operation {
            Operation::Read { buffer, .. } => core::mem::take(buffer),
            _ => Vec::new(),
        };
        let drafted = |operation: &Operation| {
            let mut draft = draft(bearer.generation(), operation)?;
            draft.durable |= durable;
            Ok::<_, OsdError>(if asked.is_empty() {
                draft
            } else {
                draft.asking(bearer.generation(), &asked)
            })
        };
        let mut draft = drafted(&operation)?;
        let device_time = operation.device_time();
        let limit = (!device_time.is_zero()).then(|| device_time + self.0.options.session.command_timeout);
        loop {
            let nexus = self.nexus(bearer, &mut retry_state).await?;
            let now_ms = self.0.environment.now_ms();
            let time_ms = self.clock(|clock| clock.nonce_time(now_ms));
            let sent = assemble(bearer, &draft, time_ms, nexus.token.as_ref(), &*self.0.environment)?;
            let request = ScsiRequest {
                lun: self.0.lun,
                cdb: self.conceal(&nexus, &sent.signed.cdb),
                data_out: sent.data_out,
                data_in_max: usize::try_from(sent.signed.data_in_len).unwrap_or(usize::MAX),
                buffer: core::mem::take(&mut buffer),
                timeout: limit,
            };
            let hasher = DataInHasher::of(bearer, &sent.signed);
            let watch = hasher.clone().map(|hasher| hasher as Arc<dyn DataObserver>);
            let response = match nexus.session.execute_watched(request, watch).await {
                Ok(response) => response,
                Err(error) => {
                    self.lost(&nexus, &operation, error, &mut retry_state).await?;
                    continue;
                }
            };
            let outcome = match &hasher {
                Some(hasher) => hasher
                    .show(|so_far| decode_response(bearer, &sent.signed, &operation, response, Some(so_far))),
                None => decode_response(bearer, &sent.signed, &operation, response, None),
            };
            match outcome {
                ResponseOutcome::Done(parts) => return completion(bearer.generation(), &operation, parts),
                ResponseOutcome::Short(mut parts, there) => {
                    let there = usize::try_from(there).unwrap_or(usize::MAX);
                    parts.data.truncate(there);
                    return Err(OsdError::ReadPastEnd { data: parts.data });
                }
                ResponseOutcome::Failed(OsdError::Exists) if retry_state.unknown => {
                    // The object is the one that this operation created: the id was given to no
                    // other client.
                    match operation {
                        Operation::CreateAndWrite { object, offset, data } => {
                            operation = Operation::Write { object, offset, data };
                            draft = drafted(&operation)?;
                        }
                        _ => return Ok(Completion::default()),
                    }
                }
                ResponseOutcome::Failed(error) => return Err(error),
                ResponseOutcome::WrongData(what) => {
                    // For data with stored digests the device has not read the bytes. With FUA it
                    // does, and reports a medium error. If it reports none, the data were changed
                    // in transit.
                    if retry_state.looked
                        || !bearer.trusts_digests()
                        || !matches!(operation, Operation::Read { .. })
                    {
                        return Err(OsdError::IntegrityFailure(what));
                    }
                    tracing::warn!(
                        what,
                        "data of a READ do not match its check value; reading again, verified by the device"
                    );
                    retry_state.looked = true;
                    draft.durable = true;
                }
                ResponseOutcome::Skewed(sense) => {
                    let now_ms = self.0.environment.now_ms();
                    let server_ms = self.0.options.clock_offset_ms.load(Ordering::Relaxed);
                    let advice =
                        self.clock(|clock| retry_state.skew.after(Some(&sense), clock, now_ms, server_ms));
                    if advice == RetryAdvice::Done {
                        let skew_ms = sense.information.map(|device_ms| difference(device_ms, now_ms));
                        retry_state.wait_for_clock(OsdError::ClockSkew { skew_ms }).await?;
                        retry_state.skew = NonceRetry::default();
                    }
                }
                ResponseOutcome::NotReady(code) => {
                    // Without a check value the status may be forged, after the command was
                    // executed.
                    if operation.repeat() == RepeatEffect::Unsafe {
                        return Err(OsdError::NotReady(code));
                    }
                    doubt(&operation, false, &mut retry_state)?;
                    retry_state.wait_for_clock(OsdError::NotReady(code)).await?;
                }
                ResponseOutcome::Replayed => {
                    retry_state.replays += 1;
                    if retry_state.replays > REPLAYS_MAX {
                        return Err(OsdError::NonceReplayed);
                    }
                }
                ResponseOutcome::Busy { proven } => self.busy(&operation, proven, &mut retry_state).await?,
                ResponseOutcome::Attention { proven } => {
                    retry_state.attentions += 1;
                    doubt(&operation, proven, &mut retry_state)?;
                    if retry_state.attentions > ATTENTIONS_MAX {
                        return Err(OsdError::Busy);
                    }
                }
            }
        }
    }

    /// Sends a raw command and returns the response; nothing is signed, verified or retried.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn raw(&self, mut request: ScsiRequest) -> Result<ScsiResponse, SessionError> {
        request.lun = self.0.lun;
        let nexus = self.connect(false).await?;
        nexus.session.execute(request).await
    }

    /// Returns the security token of the current nexus, which CAPKEY signs. With TLS it is that of
    /// the channel, else that of VPD page B1h; none if there is none.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn security_token(&self) -> Result<Option<SecurityToken>, SessionError> {
        Ok(self.connect(true).await?.token)
    }

    /// Logs out; the next operation connects again.
    pub async fn close(&self) {
        if let Some(nexus) = self.0.nexus.lock().await.take() {
            nexus.session.logout().await;
        }
    }

    fn clock<T>(&self, work: impl FnOnce(&mut DeviceClock) -> T) -> T {
        work(&mut self.0.clock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the session; establishes one within the operation's retries.
    async fn nexus(&self, bearer: &Bearer, retry_state: &mut RetryState) -> Result<Nexus, OsdError> {
        let wants_token = bearer.method() == SecurityMethod::CapKey;
        loop {
            match self.connect(wants_token).await {
                Ok(nexus) => return Ok(nexus),
                Err(error) if error.is_final() => return Err(error.into()),
                Err(error) => self.pause(error, retry_state).await?,
            }
        }
    }

    async fn connect(&self, wants_token: bool) -> Result<Nexus, SessionError> {
        let mut held = self.0.nexus.lock().await;
        let mut number = 0;
        if let Some(nexus) = held.as_mut() {
            if !nexus.session.is_closed() {
                if wants_token && nexus.token.is_none() {
                    nexus.token = self.fetch_token(&nexus.session).await?;
                }
                return Ok(nexus.clone());
            }
            number = nexus.number;
        }
        *held = None;
        let Dialed { stream, token, secret } = self.0.dial.dial().await?;
        let config = SessionConfig { channel_secret: secret, ..self.0.options.session.clone() };
        let session = Session::over(stream, config).await?;
        for _ in 0..TEST_UNIT_READY_MAX {
            let cdb = Bytes::from_static(&TEST_UNIT_READY);
            let request = ScsiRequest { lun: self.0.lun, cdb, ..ScsiRequest::default() };
            if session.execute(request).await?.status == 0 {
                break;
            }
        }
        // With TLS the token is computed at this end, since one from the peer could be relayed.
        let token = match token {
            None if wants_token => self.fetch_token(&session).await?,
            token => token,
        };
        let cipher = self.fetch_cipher(&session).await?;
        let nexus = Nexus { session, number: number + 1, token, cipher };
        *held = Some(nexus.clone());
        Ok(nexus)
    }

    /// Returns the CDB to send, concealed if configured.
    fn conceal(&self, nexus: &Nexus, cdb: &[u8]) -> Bytes {
        let Some(cipher) = &nexus.cipher else { return Bytes::copy_from_slice(cdb) };
        let mut concealed = cdb.to_vec();
        let mut random = |into: &mut [u8]| self.0.environment.fill_random(into);
        // A CDB that cannot be concealed is sent as it is, and the device refuses it.
        if let Err(error) = cipher.conceal(&mut concealed, &mut random) {
            tracing::debug!(%error, "the CDB could not be concealed; sent in the clear");
        }
        concealed.into()
    }

    /// Reads the key of the method cipher from the device.
    async fn fetch_cipher(&self, session: &Session) -> Result<Option<Arc<PublicKey>>, SessionError> {
        if !self.0.options.conceal_method {
            return Ok(None);
        }
        let cdb = Bytes::from_static(&INQUIRY_CIPHER);
        let request = ScsiRequest { lun: self.0.lun, cdb, data_in_max: CIPHER_MAX, ..ScsiRequest::default() };
        let page = session.execute(request).await?;
        let length = page
            .data_in
            .get(2..PAGE_HEAD)
            .map_or(0, |length| usize::from(length[0]) << 8 | usize::from(length[1]));
        let key = page.data_in.get(PAGE_HEAD..PAGE_HEAD + length).filter(|_| page.status == 0);
        match key.map(PublicKey::parse) {
            Some(Ok(key)) => Ok(Some(Arc::new(key))),
            Some(Err(_)) | None => Err(SessionError::NoMethodCipher),
        }
    }

    async fn fetch_token(&self, session: &Session) -> Result<Option<SecurityToken>, SessionError> {
        let cdb = Bytes::from_static(&INQUIRY_TOKEN);
        let request = ScsiRequest { lun: self.0.lun, cdb, data_in_max: 0xFF, ..ScsiRequest::default() };
        let page = session.execute(request).await?;
        let token = page.data_in.get(TOKEN_AT..TOKEN_AT + SecurityToken::LEN);
        Ok(token.filter(|_| page.status == 0).and_then(|token| token.try_into().ok()).map(SecurityToken))
    }

    /// Handles a command without status: fails if it may not be sent again.
    async fn lost(
        &self,
        nexus: &Nexus,
        operation: &Operation,
        error: SessionError,
        retry_state: &mut RetryState,
    ) -> Result<(), OsdError> {
        if matches!(error, SessionError::TooLong { .. } | SessionError::Rejected(_)) {
            return Err(error.into());
        }
        {
            let mut held = self.0.nexus.lock().await;
            // Another operation may have reconnected already.
            if held.as_ref().is_some_and(|current| {
                current.number == nexus.number && !matches!(error, SessionError::Timeout(_))
            }) {
                *held = None;
            }
        }
        // `Closed` means that it was never sent.
        doubt(operation, matches!(error, SessionError::Closed), retry_state)?;
        self.pause(error, retry_state).await
    }

    async fn pause(&self, error: SessionError, retry_state: &mut RetryState) -> Result<(), OsdError> {
        if retry_state.reconnects >= self.0.options.reconnects_max {
            return Err(error.into());
        }
        tracing::debug!(%error, attempt = retry_state.reconnects, "reconnecting to the device");
        let pause =
            self.0.options.reconnect_pause.saturating_mul(2u32.saturating_pow(retry_state.reconnects));
        sleep(pause.min(OsdOptions::RECONNECT_PAUSE_MAX)).await;
        retry_state.reconnects += 1;
        Ok(())
    }

    async fn busy(
        &self,
        operation: &Operation,
        proven: bool,
        retry_state: &mut RetryState,
    ) -> Result<(), OsdError> {
        // Not repeated without proof, but a full job table is reported as such: no check value
        // covers TASK SET FULL. A forged one hides a run, as a lost reply does.
        let runs =
            matches!(operation, Operation::ExecuteFunction { .. } | Operation::ExecutePaperFunction { .. });
        if !proven && runs {
            return Err(OsdError::Busy);
        }
        doubt(operation, proven, retry_state)?;
        if retry_state.busy >= self.0.options.busy_retries_max {
            return Err(OsdError::Busy);
        }
        let pause = self.0.options.busy_pause.saturating_mul(2u32.saturating_pow(retry_state.busy));
        sleep(pause.min(OsdOptions::BUSY_PAUSE_MAX)).await;
        retry_state.busy += 1;
        Ok(())
    }
}

/// Returns `a - b` of two times, saturating.
fn difference(a: u64, b: u64) -> i64 {
    let [a, b] = [a, b].map(|time| i64::try_from(time).unwrap_or(i64::MAX));
    a.saturating_sub(b)
}

/// Fails if the operation may have been executed and is not idempotent. `proven`: the device has
/// confirmed that it was not executed.
fn doubt(operation: &Operation, proven: bool, retry_state: &mut RetryState) -> Result<(), OsdError> {
    if proven {
        return Ok(());
    }
    match operation.repeat() {
        RepeatEffect::Safe => Ok(()),
        RepeatEffect::CreateOfKnownId => {
            retry_state.unknown = true;
            Ok(())
        }
        RepeatEffect::Unsafe => Err(OsdError::OutcomeUnknown { command: operation.name() }),
    }
}
