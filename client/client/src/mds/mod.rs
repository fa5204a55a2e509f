//! A metadata server with a session: connects on demand, resumes the session, repeats idempotent
//! requests.
//!
//! Does: uses one connection for all requests, reconnects with bounded backoff, retries while the
//! server is busy; logs in again with a service's key, if there is one.
//! Does not: keep a password; without a key an ended session needs a new login.
//! Contract: a request that is not idempotent is never sent twice; if its answer is lost the result
//! is `OutcomeUnknown`.

mod dial;
mod frames;
mod link;
mod paper;
mod session;

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use sealstone_initiator::Environment;
use sealstone_login::{LoginContext, LoginFailure, start_login, start_registration};
use sealstone_mds_protocol::login::{LOGOUT_REVOKE, Logout, LogoutOk, Revoking, SUITE_STANDARD};
use sealstone_mds_protocol::paper::PaperLogout;
use sealstone_mds_protocol::{
    ErrorCode, MessageType, Request, Response, Role, Secret, UserName, Wire, WireWriter, XattrMode,
    decode_message,
};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

pub use dial::{ByteStream, MdsDial, SecureChannel, TlsDial};
pub use paper::{PaperOptions, PlainDial};
pub use session::{SessionTicket, TicketKeys};

use crate::{ClientError, Metadata, ServiceKey};
use frames::RecordSeal;
use link::{BrokenLink, SessionLink};

/// Maximum times that a request is sent again over a new connection.
const RECONNECTS_MAX: u32 = 4;
/// First pause before a reconnect; it doubles.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Minimum number of retries while the server is busy; retries also continue until
/// [`BUSY_PATIENCE`]. The keys of a device may be changing meanwhile.
const BUSY_RETRIES_MIN: u32 = 8;
/// Minimum time for which requests to a busy server are retried.
const BUSY_PATIENCE: Duration = Duration::from_secs(20);
/// Longest single pause that a busy server may request.
const BUSY_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Shortest pause, if the server requests none.
const BUSY_PAUSE_MIN: Duration = Duration::from_millis(20);
/// Time limit for logging out.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(5);

/// Options of a connection to a metadata server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MdsOptions {
    /// Time limit for one answer.
    pub answer_timeout: Duration,
    /// Time limit for greeting and login, without connecting.
    pub login_timeout: Duration,
    /// OPAQUE suite of the account.
    pub suite: u16,
}

impl Default for MdsOptions {
    fn default() -> Self {
        Self {
            answer_timeout: Duration::from_secs(30),
            login_timeout: Duration::from_secs(30),
            suite: SUITE_STANDARD,
        }
    }
}

/// A metadata server with a session.
pub struct MdsClient {
    dial: Arc<dyn MdsDial>,
    environment: Arc<dyn Environment>,
    options: MdsOptions,
    ticket: SessionTicket,
    /// The key that logs in again when a session has ended.
    key: Option<Arc<ServiceKey>>,
    /// The session that replaced the first one.
    renewed: Mutex<Option<SessionTicket>>,
    clock_offset_ms: Arc<AtomicI64>,
    link: Mutex<Option<Arc<SessionLink>>>,
}

impl MdsClient {
    /// Logs in with a password. Runs Argon2id on the calling task: three passes over 64 MiB with
    /// the standard suite.
    ///
    /// # Errors
    /// `LoginRefused`, `LoginBusy`, `LoginFailed`, `Connection`, `Protocol`, `Message`.
    pub async fn login(
        dial: Arc<dyn MdsDial>,
        environment: Arc<dyn Environment>,
        options: MdsOptions,
        user: &UserName,
        password: &[u8],
    ) -> Result<Self, ClientError> {
        let (mut stream, binding) = dial.dial().await.map_err(not_connected)?;
        let work = session::login(&mut stream, &environment, binding, options.suite, user, password);
        let (ticket, offset) = within(options.login_timeout, work).await?;
        let link = Arc::new(SessionLink::start(stream, None));
        let clock_offset_ms = Arc::new(AtomicI64::new(offset.unwrap_or_default()));
        Ok(Self::of(dial, environment, options, ticket, clock_offset_ms, Some(link)))
    }

    fn of(
        dial: Arc<dyn MdsDial>,
        environment: Arc<dyn Environment>,
        options: MdsOptions,
        ticket: SessionTicket,
        clock_offset_ms: Arc<AtomicI64>,
        link: Option<Arc<SessionLink>>,
    ) -> Self {
        let (renewed, link) = (Mutex::default(), Mutex::new(link));
        Self { dial, environment, options, ticket, key: None, renewed, clock_offset_ms, link }
    }

    /// Logs in with the paper's protocol over plain TCP. Insecure: from a recorded login the
    /// passphrase can be guessed.
    ///
    /// # Errors
    /// `LoginRefused`, `LoginBusy`, `LoginFailed`, `Connection`, `Protocol`, `Message`.
    pub async fn login_paper(
        dial: PlainDial,
        environment: Arc<dyn Environment>,
        options: MdsOptions,
        paper: PaperOptions,
        user: &UserName,
        passphrase: &str,
    ) -> Result<Self, ClientError> {
        let mut stream = dial.connect().await.map_err(ClientError::Connection)?;
        let work = paper::login(&mut stream, &environment, paper, user, passphrase);
        let (ticket, begun) = within(options.login_timeout, work).await?;
        let offset = begun.clock.map_or(0, |clock| clock.offset_ms);
        let seal = RecordSeal { records: begun.records, environment: environment.clone() };
        let link = Arc::new(SessionLink::start(Box::new(stream), Some(seal)));
        let clock_offset_ms = Arc::new(AtomicI64::new(offset));
        let dial = Arc::new(dial);
        Ok(Self::of(dial, environment, options, ticket, clock_offset_ms, Some(link)))
    }

    /// Resumes a session; connects at the first request.
    #[must_use]
    pub fn resume(
        dial: Arc<dyn MdsDial>,
        environment: Arc<dyn Environment>,
        options: MdsOptions,
        ticket: SessionTicket,
    ) -> Self {
        Self::of(dial, environment, options, ticket, Arc::default(), None)
    }

    /// Logs in again with this key whenever the session has ended.
    ///
    /// # Errors
    /// `LoginFailed` if the key is of a different user; `NotInPaperProfile`.
    pub fn renewing(mut self, key: ServiceKey) -> Result<Self, ClientError> {
        if matches!(self.ticket.keys, TicketKeys::Paper(_)) {
            return Err(ClientError::NotInPaperProfile);
        }
        if key.user != self.ticket.user {
            return Err(ClientError::LoginFailed("the key is not that of the session's user"));
        }
        self.key = Some(Arc::new(key));
        Ok(self)
    }

    /// Returns the secrets with which a later process can resume this session.
    #[must_use]
    pub const fn ticket(&self) -> &SessionTicket {
        &self.ticket
    }

    /// Server's clock minus ours, in milliseconds, as of the last connection.
    #[must_use]
    pub fn clock_offset_ms(&self) -> Arc<AtomicI64> {
        self.clock_offset_ms.clone()
    }

    /// Ends the session. Credentials that were issued stay valid until they expire.
    ///
    /// # Errors
    /// `SessionOver` if it had ended; `Connection` if the server cannot be reached;
    /// `OutcomeUnknown` if it did not confirm.
    pub async fn logout(&self) -> Result<(), ClientError> {
        self.end(0).await.map(drop)
    }

    /// Ends the session and revokes its credentials; none if the server has too many revocations in
    /// progress. The user can query the progress in another session. Not in the paper's profile.
    ///
    /// # Errors
    /// As [`Self::logout`]; `NotInPaperProfile`.
    pub async fn logout_revoking(&self) -> Result<Option<Revoking>, ClientError> {
        if matches!(self.ticket.keys, TicketKeys::Paper(_)) {
            return Err(ClientError::NotInPaperProfile);
        }
        self.end(LOGOUT_REVOKE).await
    }

    async fn end(&self, flags: u32) -> Result<Option<Revoking>, ClientError> {
        let link = self.connected().await?;
        let mut body = WireWriter::new();
        let session = self.current().await.session;
        match &self.ticket.keys {
            TicketKeys::Modern(_) => Logout { session, flags }.put(&mut body),
            TicketKeys::Paper(_) => PaperLogout { session }.put(&mut body),
        }
        link.send(MessageType::Logout, body.finish(sealstone_mds_protocol::BODY_MAX)?).await;
        let unknown = ClientError::OutcomeUnknown { request: "Logout" };
        let Ok(Some(last)) = timeout(LOGOUT_TIMEOUT, link.closed()).await else { return Err(unknown) };
        match (last.kind, &self.ticket.keys) {
            (MessageType::LogoutOk, TicketKeys::Modern(_)) => {
                let ok: LogoutOk = decode_message(&last.body)
                    .map_err(|_| ClientError::OutcomeUnknown { request: "Logout" })?;
                Ok(ok.revoking)
            }
            (MessageType::LogoutOk, TicketKeys::Paper(_)) => Ok(None),
            (MessageType::Error, _) => Err(ClientError::SessionOver),
            _ => Err(unknown),
        }
    }

    /// Sets a password with an enrolment code; does not log in. Runs Argon2id.
    ///
    /// # Errors
    /// `EnrolmentRefused`, `LoginBusy`, `LoginFailed`, `Connection`, `Protocol`, `Message`.
    pub async fn enrol(
        dial: &dyn MdsDial,
        environment: Arc<dyn Environment>,
        options: MdsOptions,
        user: &UserName,
        code: Secret,
        password: &[u8],
    ) -> Result<(), ClientError> {
        let (mut stream, _) = dial.dial().await.map_err(not_connected)?;
        let work = session::enrol(&mut stream, &environment, options.suite, user, code, password);
        within(options.login_timeout, work).await
    }

    /// Sets the password or key of an account: of a new one (administrators), or with `replace` of
    /// an existing one. For the own account `in_use` has suite and secret of the current one. Runs
    /// Argon2id.
    ///
    /// # Errors
    /// As [`Metadata::call`]; `InUseRefused` if `in_use` is wrong.
    pub async fn register(
        &self,
        user: &UserName,
        suite: u16,
        password: &[u8],
        role: Role,
        replace: bool,
        in_use: Option<(u16, &[u8])>,
    ) -> Result<(), ClientError> {
        let mut rng = session::OpaqueRandom(self.environment.clone());
        let current = self.current().await;
        let begun = in_use.map(|(suite, password)| {
            let context = LoginContext::again(&current.server_id, &current.session);
            start_login(&mut rng, suite, user, password, context)
        });
        let (proof, proving) = begun.transpose()?.unzip();
        let (request, state) = start_registration(&mut rng, user, password)?;
        let request = Request::UserRegisterStart { name: user.clone(), request, proof };
        let Response::UserRegisterStart { response, challenge } = self.call(request).await? else {
            return Err(ClientError::OTHER_ANSWER);
        };
        let proof = match proving.zip(challenge) {
            Some((proving, challenge)) => match proving.challenge(&mut rng, challenge) {
                Ok((finish, _)) => Some(finish),
                Err(LoginFailure::Refused) => return Err(ClientError::InUseRefused),
                Err(error) => return Err(error.into()),
            },
            None => None,
        };
        let record = state.finish(&mut rng, suite, &response)?;
        let request = Request::UserRegisterFinish { name: user.clone(), record, suite, role, replace, proof };
        match self.call(request).await? {
            Response::Done {} => Ok(()),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Returns the current session.
    async fn current(&self) -> SessionTicket {
        self.renewed.lock().await.clone().unwrap_or_else(|| self.ticket.clone())
    }

    /// Returns the connection; opens a new one if it broke.
    async fn connected(&self) -> Result<Arc<SessionLink>, ClientError> {
        let mut held = self.link.lock().await;
        if let Some(link) = held.as_ref().filter(|link| !link.is_broken()) {
            return Ok(link.clone());
        }
        *held = None;
        let ticket = self.current().await;
        let link = match (self.taken_up(&ticket).await, &self.key) {
            (Err(ClientError::SessionOver), Some(key)) => self.login_again(key).await?,
            (taken_up, _) => taken_up?,
        };
        *held = Some(link.clone());
        Ok(link)
    }

    /// Opens a connection and resumes the session on it.
    async fn taken_up(&self, ticket: &SessionTicket) -> Result<Arc<SessionLink>, ClientError> {
        let (mut stream, binding) = self.dial.dial().await.map_err(not_connected)?;
        let environment = &self.environment;
        let work = async {
            match &ticket.keys {
                TicketKeys::Modern(keys) => {
                    let offset = session::resume(&mut stream, environment, binding, ticket, keys).await?;
                    Ok::<_, ClientError>((offset, None))
                }
                TicketKeys::Paper(session) => {
                    let begun = paper::resume(&mut stream, environment, ticket, session).await?;
                    let seal = RecordSeal { records: begun.records, environment: environment.clone() };
                    Ok((begun.clock.map(|clock| clock.offset_ms), Some(seal)))
                }
            }
        };
        let (offset, seal) = within(self.options.login_timeout, work).await?;
        if let Some(offset) = offset {
            self.clock_offset_ms.store(offset, Ordering::Relaxed);
        }
        Ok(Arc::new(SessionLink::start(stream, seal)))
    }

    /// Opens a connection and logs in with the key.
    async fn login_again(&self, key: &ServiceKey) -> Result<Arc<SessionLink>, ClientError> {
        tracing::info!(user = key.user.as_str(), "the session has ended; logging in with the key");
        let (mut stream, binding) = self.dial.dial().await.map_err(not_connected)?;
        let work =
            session::login(&mut stream, &self.environment, binding, key.suite, &key.user, key.secret());
        let (ticket, offset) = within(self.options.login_timeout, work).await?;
        if ticket.server_id != self.ticket.server_id {
            return Err(ClientError::LoginFailed("connected to a different metadata server"));
        }
        if let Some(offset) = offset {
            self.clock_offset_ms.store(offset, Ordering::Relaxed);
        }
        *self.renewed.lock().await = Some(ticket);
        Ok(Arc::new(SessionLink::start(stream, None)))
    }

    /// Sends a request until it is answered, the reconnects are used up, or repeating it is not
    /// safe.
    async fn call_with_reconnects(&self, request: &Request) -> Result<Response, ClientError> {
        let mut pause = RECONNECT_PAUSE;
        let mut error = ClientError::Connection(std::io::ErrorKind::NotConnected.into());
        for attempt in 0..=RECONNECTS_MAX {
            if attempt > 0 {
                sleep(pause).await;
                pause *= 2;
            }
            let link = match self.connected().await {
                Ok(link) => link,
                Err(problem @ (ClientError::Connection(_) | ClientError::LoginBusy { .. })) => {
                    error = problem;
                    continue;
                }
                Err(problem) => return Err(problem),
            };
            let broken = match timeout(self.options.answer_timeout, link.call(request)).await {
                Ok(answer) => match answer? {
                    // The session ended meanwhile; the request was not executed.
                    Ok(Response::Failed { failure })
                        if failure.code == ErrorCode::NotLoggedIn && self.key.is_some() && attempt == 0 =>
                    {
                        self.forget(&link).await;
                        error = ClientError::SessionOver;
                        continue;
                    }
                    Ok(response) => return Ok(response),
                    Err(broken) => broken,
                },
                Err(_) => {
                    // A server that does not answer one request may answer none: reconnect.
                    self.forget(&link).await;
                    error = ClientError::Connection(std::io::ErrorKind::TimedOut.into());
                    BrokenLink { sent: true }
                }
            };
            if broken.sent && !is_repeatable(request) {
                return Err(ClientError::OutcomeUnknown { request: request.name() });
            }
        }
        Err(error)
    }

    async fn forget(&self, link: &Arc<SessionLink>) {
        let mut held = self.link.lock().await;
        if held.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            *held = None;
        }
    }
}

impl Metadata for MdsClient {
    fn second(&self) -> Option<Self> {
        if matches!(self.ticket.keys, TicketKeys::Paper(_)) {
            return None;
        }
        let renewed = self.renewed.try_lock().ok().and_then(|renewed| renewed.clone());
        let ticket = renewed.unwrap_or_else(|| self.ticket.clone());
        let (dial, environment) = (self.dial.clone(), self.environment.clone());
        let second = Self::of(dial, environment, self.options, ticket, self.clock_offset_ms.clone(), None);
        Some(Self { key: self.key.clone(), ..second })
    }

    async fn call(&self, request: Request) -> Result<Response, ClientError> {
        let (mut tries, mut waited) = (0, Duration::ZERO);
        loop {
            match self.call_with_reconnects(&request).await? {
                Response::Failed { failure }
                    if failure.code == ErrorCode::Busy
                        && (tries < BUSY_RETRIES_MIN || waited < BUSY_PATIENCE) =>
                {
                    let wanted = Duration::from_millis(u64::from(failure.retry_ms));
                    let pause = wanted.clamp(BUSY_PAUSE_MIN, BUSY_PAUSE_MAX);
                    sleep(pause).await;
                    (tries, waited) = (tries + 1, waited + pause);
                }
                Response::Failed { failure } => return Err(failure.into()),
                response => return Ok(response),
            }
        }
    }
}

/// Whether a request may be sent again although it may have been executed. Reads and idempotent
/// changes may, and Create, whose first intent expires.
const fn is_repeatable(request: &Request) -> bool {
    match request {
        Request::Hello { .. }
        | Request::WhoAmI {}
        | Request::ServerInfo {}
        | Request::Stat { .. }
        | Request::Lstat { .. }
        | Request::Placement { .. }
        | Request::Lookup { .. }
        | Request::GetNode { .. }
        | Request::ReadNodes { .. }
        | Request::SetNode { .. }
        | Request::ReadLink { .. }
        | Request::OpenNode { .. }
        | Request::Allocate { .. }
        | Request::Written { .. }
        | Request::CloseNode { .. }
        | Request::GetXattr { .. }
        | Request::SetXattr { mode: XattrMode::Set, .. }
        | Request::ListXattr { .. }
        | Request::StatFs { .. }
        | Request::QuotaSet { .. }
        | Request::QuotaShow { .. }
        | Request::QuotaList { .. }
        | Request::CheckShow {}
        | Request::CheckFindings { .. }
        | Request::KeepNodes { .. }
        | Request::EndClient { .. }
        | Request::LockNode { .. }
        | Request::UnlockNode { .. }
        | Request::Recalls { .. }
        | Request::LeaseNode { .. }
        | Request::ReturnLease { .. }
        // Numbers that were reserved twice are lost once.
        | Request::DelegateDir { .. }
        | Request::ReadDir { .. }
        | Request::MakeDir { parents: true, .. }
        | Request::Create { .. }
        | Request::Open { .. }
        | Request::RenewGrants { .. }
        | Request::SetMode { .. }
        | Request::DiskFree {}
        | Request::DeviceList { .. }
        | Request::DeviceSetState { .. }
        | Request::DeviceDrain { .. }
        | Request::Rebalance { .. }
        | Request::RebalanceStop {}
        | Request::RebalanceShow {}
        | Request::UserRegisterStart { .. }
        | Request::UserList { .. }
        | Request::UserSetEnabled { .. }
        | Request::UserSetRole { .. }
        | Request::GroupAddMember { .. }
        | Request::GroupList { .. }
        | Request::GroupMembers { .. }
        | Request::SetOwner { .. }
        | Request::GrantHolders { .. }
        | Request::Delegate { .. }
        | Request::DelegateExecution { .. }
        | Request::DelegateCallData { .. }
        | Request::CopyFunction { .. }
        | Request::FunctionPolicyAccess { .. }
        | Request::FunctionPolicySet { .. }
        | Request::ReserveResult { .. }
        | Request::ReserveJobResult { .. }
        | Request::DeviceAttributes { .. }
        | Request::ReceiptVerify { .. }
        | Request::RevocationProgress { .. }
        | Request::RevocationList {}
        | Request::IssueList { .. }
        // A repetition revokes twice, which does no harm.
        | Request::Revoke { .. }
        | Request::KeyList { .. }
        | Request::KeyProgress { .. }
        | Request::DiskPublicKeySet { .. }
        | Request::DiskPublicKey { .. }
        | Request::DiskShow { .. }
        | Request::DiskList { .. }
        // A repetition takes the lease again, with the next epoch, or is refused.
        | Request::DiskLease { .. }
        | Request::DiskEndLease { .. }
        // The server accepts the root that it has.
        | Request::DiskPublish { .. }
        // A repetition counts twice.
        | Request::DiskReport { .. }
        // A repetition changes the key twice, which does no harm.
        | Request::KeyRotate { .. }
        | Request::UserSetPaperKey { .. }
        // The replay cache of the server makes it idempotent.
        | Request::Once { .. } => true,
        Request::MakeDir { parents: false, .. }
        | Request::Commit { .. }
        | Request::Abandon { .. }
        | Request::Rename { .. }
        | Request::Remove { .. }
        | Request::MakeNode { .. }
        | Request::LinkNode { .. }
        | Request::RemoveNode { .. }
        | Request::RenameNode { .. }
        | Request::NameBatch { .. }
        | Request::SetXattr { .. }
        | Request::RemoveXattr { .. }
        | Request::DeviceAdd { .. }
        | Request::UserRegisterFinish { .. }
        | Request::UserInvite { .. }
        | Request::UserRetireKey { .. }
        | Request::GroupCreate { .. }
        | Request::GroupRemove { .. }
        | Request::GroupRemoveMember { .. }
        | Request::UserRemove { .. }
        | Request::QuotaClear { .. }
        // A repetition would be refused, since the first check is in progress.
        | Request::CheckBegin { .. }
        | Request::DiskCreate { .. }
        // A repetition may be refused although the first request changed the disk.
        | Request::DiskSetAccess { .. }
        | Request::DiskRotate { .. }
        | Request::DiskRemove { .. } => false,
    }
}

/// Converts an error of connecting. A wrong certificate is not transient and needs a decision of
/// the user.
fn not_connected(error: std::io::Error) -> ClientError {
    if crate::tls::is_impostor(&error) {
        ClientError::WrongCertificate(error)
    } else {
        ClientError::Connection(error)
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    match timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(ClientError::Connection(std::io::ErrorKind::TimedOut.into())),
    }
}
