//! One connection over any byte stream: TLS in production, a pipe in simulation.
//!
//! Does: reads a frame, has it decided, sends the answer, repeats. Requests of a session that
//! arrive while others are being decided run concurrently, so that they share one wait for the
//! disk.
//! Contract: a connection has a bounded number of frames in memory, and each length is checked
//! before the body is read. A frame that is no request waits until all earlier ones are answered.

use core::convert::Infallible;
use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use std::io;
use std::sync::Arc;

use sealstone_channel::{AdmissionTicket, LoginStage};
use sealstone_login::ChannelBinding;
use sealstone_mds::{
    Connection, Entropy, LoginSource, Mds, Output, PaperConnection, PendingRecalls, SessionRequest,
    SessionResponse,
};
use sealstone_mds_protocol::paper::PaperType;
use sealstone_mds_protocol::{FrameType, HEADER_BYTES, Header, MessageType, Request, UserName, WireError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use zeroize::Zeroizing;

use crate::environment::Environment;
use crate::housekeeping::Housekeeper;
use crate::limits::Limits;
use crate::request_shares::RequestShares;

/// Work class of a frame: each class has its own limit, so that one does not delay another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkClass {
    /// A request.
    Request,
    /// A read-only request while there are no writers: decided in place, which is faster than
    /// waking a thread.
    Quick,
    /// An expensive login step.
    Login,
    /// A login that waits for the LDAP directory; logins of other accounts continue meanwhile.
    Directory,
}

/// The server's end of a connection, of either profile.
pub(crate) trait Conversation: Send + 'static {
    /// Frame types of its profile.
    type Kind: FrameType + Send + 'static;
    /// Returns the work class of a frame.
    fn work_class(&self, kind: Self::Kind, body: &[u8], mds: &Mds) -> WorkClass;
    /// Returns the event that the frame waits for before it is decided, if any.
    fn waits(&self, kind: Self::Kind, body: &[u8], mds: &Mds) -> Option<PendingRecalls>;
    /// Whether the answer contains capacity figures of devices, which are refreshed first.
    fn reads_space(&self, kind: Self::Kind, body: &[u8]) -> bool;
    /// Whether a login succeeded.
    fn is_active(&self) -> bool;
    /// Returns the user that is logged in, and whether it is an administrator.
    fn user(&self, mds: &Mds) -> Option<(UserName, bool)>;
    /// Processes one frame.
    fn receive(
        &mut self,
        mds: &Mds,
        header: &Header<Self::Kind>,
        body: &[u8],
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Output;
    /// A request that may be decided concurrently with others.
    type SessionRequest: Send + 'static;
    /// The answer to such a request.
    type SessionResponse: Send + 'static;
    /// Takes a request out of a frame; `None` if the frame needs [`Conversation::receive`].
    fn take_request(&mut self, header: &Header<Self::Kind>, body: &[u8]) -> Option<Self::SessionRequest>;
    /// Decides a request.
    fn decide(
        request: Self::SessionRequest,
        mds: &Mds,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Self::SessionResponse;
    /// Returns the frame of an answer.
    fn answer(&mut self, mds: &Mds, answered: &Self::SessionResponse, now_ms: u64) -> Output;
    /// Rejects bytes that are no frame of this profile, or a frame that is too long.
    fn reject(&mut self, mds: &Mds, error: WireError, now_ms: u64) -> Output;
    /// Releases the state of a closed connection.
    fn ended(self, mds: &Mds, now_ms: u64);
}

/// Forwards the methods that both profiles' connections have under the same names.
macro_rules! forwarded {
    ($kind:ty) => {
        type Kind = $kind;

        fn is_active(&self) -> bool {
            self.is_active()
        }

        fn user(&self, mds: &Mds) -> Option<(UserName, bool)> {
            self.user(mds)
        }

        fn receive(
            &mut self,
            mds: &Mds,
            header: &Header<$kind>,
            body: &[u8],
            now_ms: u64,
            rng: &mut dyn Entropy,
        ) -> Output {
            self.receive(mds, header, body, now_ms, rng)
        }

        fn reject(&mut self, mds: &Mds, error: WireError, now_ms: u64) -> Output {
            self.reject(mds, error, now_ms)
        }

        fn ended(self, mds: &Mds, now_ms: u64) {
            self.ended(mds, now_ms);
        }
    };
}

impl Conversation for Connection {
    forwarded!(MessageType);

    type SessionRequest = SessionRequest;
    type SessionResponse = SessionResponse;

    fn take_request(&mut self, header: &Header<MessageType>, body: &[u8]) -> Option<SessionRequest> {
        self.take_request(header, body)
    }

    fn decide(request: SessionRequest, mds: &Mds, now_ms: u64, rng: &mut dyn Entropy) -> SessionResponse {
        request.decide(mds, now_ms, rng)
    }

    fn answer(&mut self, mds: &Mds, answered: &SessionResponse, now_ms: u64) -> Output {
        self.answer(mds, answered, now_ms)
    }

    fn work_class(&self, kind: MessageType, body: &[u8], mds: &Mds) -> WorkClass {
        match kind {
            MessageType::Request if Request::only_looks_up(body) && mds.answers_at_once() => WorkClass::Quick,
            // Under load the answer is only "retry later" and costs a hash: it must not wait behind
            // logins.
            MessageType::LoginStart if mds.is_under_load() => WorkClass::Request,
            MessageType::LoginFinish if self.needs_directory() => WorkClass::Directory,
            MessageType::LoginStart
            | MessageType::LoginAgain
            | MessageType::LoginFinish
            | MessageType::Resume
            | MessageType::RegisterStart
            | MessageType::RegisterUpload => WorkClass::Login,
            _ => WorkClass::Request,
        }
    }

    fn waits(&self, kind: MessageType, body: &[u8], mds: &Mds) -> Option<PendingRecalls> {
        self.waits(mds, kind, body)
    }

    fn reads_space(&self, kind: MessageType, body: &[u8]) -> bool {
        kind == MessageType::Request && self.is_active() && Request::reads_space(body)
    }
}

impl Conversation for PaperConnection {
    forwarded!(PaperType);

    // Records are sealed in sequence, so they are decided in sequence.
    type SessionRequest = Infallible;
    type SessionResponse = Infallible;

    fn take_request(&mut self, _header: &Header<PaperType>, _body: &[u8]) -> Option<Infallible> {
        None
    }

    fn decide(request: Infallible, _mds: &Mds, _now_ms: u64, _rng: &mut dyn Entropy) -> Infallible {
        request
    }

    fn answer(&mut self, _mds: &Mds, answered: &Infallible, _now_ms: u64) -> Output {
        match *answered {}
    }

    fn work_class(&self, kind: PaperType, _body: &[u8], _mds: &Mds) -> WorkClass {
        if kind.is_record() { WorkClass::Request } else { WorkClass::Login }
    }

    /// Records are opened where they are decided. Clients of this profile get no leases, so no
    /// frame waits.
    fn waits(&self, _kind: PaperType, _body: &[u8], _mds: &Mds) -> Option<PendingRecalls> {
        None
    }

    fn reads_space(&self, _kind: PaperType, _body: &[u8]) -> bool {
        false
    }
}

/// State that all connections of a listener share.
#[derive(Clone)]
pub(crate) struct ListenerState {
    pub(crate) mds: Arc<Mds>,
    pub(crate) environment: Environment,
    pub(crate) limits: Arc<Limits>,
    requests: Arc<Semaphore>,
    /// Limits requests decided concurrently with others of their connection, so that a few
    /// connections cannot take all permits.
    concurrent: Arc<Semaphore>,
    shares: RequestShares,
    logins: Arc<Semaphore>,
    directory: Arc<Semaphore>,
    /// True when the server shuts down.
    pub(crate) stop: watch::Receiver<bool>,
    keeper: Option<Housekeeper>,
}

impl ListenerState {
    pub(crate) fn new(
        mds: Arc<Mds>,
        environment: Environment,
        limits: Limits,
        stop: watch::Receiver<bool>,
        keeper: Option<Housekeeper>,
    ) -> Self {
        let requests = Arc::new(Semaphore::new(limits.requests_max));
        let concurrent = Arc::new(Semaphore::new((limits.requests_max / 2).max(1)));
        let shares = RequestShares::new(limits.requests_per_user_max);
        let logins = Arc::new(Semaphore::new(limits.logins_max));
        let directory = Arc::new(Semaphore::new(limits.logins_max));
        Self {
            mds,
            environment,
            limits: Arc::new(limits),
            requests,
            concurrent,
            shares,
            logins,
            directory,
            stop,
            keeper,
        }
    }
}

/// Serves one stream that is secure by itself, or simulated. Both ends must know `channel`, which
/// replaces the TLS exporter. Returns when the peer closes, violates the protocol or is too slow.
///
/// # Errors
/// Errors of the stream.
pub async fn serve_stream<S>(
    stream: S,
    channel: ChannelBinding,
    source: LoginSource,
    mds: Arc<Mds>,
    environment: Environment,
    limits: Limits,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (_keep, stop) = watch::channel(false);
    let login_by = Instant::now() + limits.login_timeout;
    let connection = Connection::new(channel, source);
    run(stream, connection, ListenerState::new(mds, environment, limits, stop, None), login_by, None).await
}

pub(crate) async fn run<S, C>(
    mut stream: S,
    connection: C,
    shared: ListenerState,
    login_by: Instant,
    ticket: Option<AdmissionTicket>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Conversation,
{
    let mut connection = Some(connection);
    let result = exchange(&mut stream, &mut connection, &shared, login_by, ticket.as_ref()).await;
    if let Some(connection) = connection {
        connection.ended(&shared.mds, shared.environment.now_ms());
    }
    let end = result?;
    // A clean end of TLS; it does not matter if the peer has already disconnected.
    let close = async {
        stream.shutdown().await?;
        match end {
            ClosedBy::Peer => Ok(()),
            ClosedBy::Server => drain_unread(&mut stream).await,
        }
    };
    let _ = timeout(CLOSE_TIMEOUT, close).await;
    Ok(())
}

/// How long a connection that sent several requests at once is expected to send more. Until then
/// each request is decided on its own task, so that the next one does not wait for it.
const BURST_WINDOW: Duration = Duration::from_millis(100);
/// Maximum time to close a connection cleanly.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum bytes read from a peer after the server's last frame.
const UNREAD_MAX: usize = 1 << 20;

/// Side that ended a connection.
#[derive(Clone, Copy, Debug)]
enum ClosedBy {
    /// The peer closed or was silent, or the server shuts down.
    Peer,
    /// The server, with a last frame that states the reason.
    Server,
}

/// Drains what the peer sent before it saw the end. Closing a socket with unread bytes resets it,
/// and the last frame would be lost.
async fn drain_unread(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let (mut bytes, mut left) = ([0; 4096], UNREAD_MAX);
    loop {
        let got = stream.read(&mut bytes).await?;
        if got == 0 || got >= left {
            return Ok(());
        }
        left -= got;
    }
}

/// A split stream, and its requests that are being decided while further frames are read.
struct RequestPipeline<'a, S, C: Conversation> {
    reader: ReadHalf<&'a mut S>,
    writer: WriteHalf<&'a mut S>,
    shared: &'a ListenerState,
    stop: watch::Receiver<bool>,
    /// True when the connection is closed for another one; `None` without admission control.
    evicted: Option<watch::Receiver<bool>>,
    concurrent: JoinSet<io::Result<C::SessionResponse>>,
    /// Deadline until which several requests at once are expected.
    burst_until: Option<Instant>,
}

/// Processes frames until the end. `held` is empty only while a frame is being decided.
async fn exchange<S, C>(
    stream: &mut S,
    held: &mut Option<C>,
    shared: &ListenerState,
    login_by: Instant,
    ticket: Option<&AdmissionTicket>,
) -> io::Result<ClosedBy>
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Conversation,
{
    let (reader, writer) = tokio::io::split(stream);
    let (stop, concurrent) = (shared.stop.clone(), JoinSet::new());
    let evicted = ticket.map(AdmissionTicket::evicted);
    let mut pipeline =
        RequestPipeline::<S, C> { reader, writer, shared, stop, evicted, concurrent, burst_until: None };
    let mut admitted = false;
    let mut share = None;
    while let Some(connection) = held.as_mut() {
        let Some(incoming) = pipeline.next(connection, login_by).await? else {
            // Requests in flight are completed and answered.
            pipeline.finish_pending(connection).await?;
            return Ok(ClosedBy::Server);
        };
        let work_class = match &incoming {
            IncomingFrame::Frame(header, body) => connection.work_class(header.kind, body, &shared.mds),
            _ => WorkClass::Request,
        };
        let waiting = match &incoming {
            IncomingFrame::Frame(header, body) => connection.waits(header.kind, body, &shared.mds),
            _ => None,
        };
        if let IncomingFrame::Frame(header, body) = &incoming
            && let Some(keeper) = &shared.keeper
            && connection.reads_space(header.kind, body)
        {
            keeper.refresh_space().await;
        }
        if let IncomingFrame::Frame(header, body) = &incoming
            && work_class == WorkClass::Request
            && waiting.is_none()
            && pipeline.expects_burst()
            && let Some(request) = connection.take_request(header, body)
        {
            pipeline.concurrent.spawn(decide_concurrently::<C>(request, shared.clone(), share.clone()));
            continue;
        }
        if work_class != WorkClass::Quick && pipeline.finish_pending(connection).await? {
            return Ok(ClosedBy::Server);
        }
        if let Some(waiting) = waiting {
            wait_for_recall(&waiting, shared, pipeline.evicted.clone()).await;
        }
        if let Some(ticket) =
            ticket.filter(|_| work_class == WorkClass::Login || work_class == WorkClass::Directory)
        {
            ticket.advance(LoginStage::Proving);
        }
        let output = match incoming {
            IncomingFrame::Frame(header, body) => {
                let Some(connection) = held.take() else { break };
                let (connection, output) =
                    decide(connection, shared, share.clone(), (work_class, header, body)).await?;
                *held = Some(connection);
                output
            }
            IncomingFrame::Foreign(error) => {
                connection.reject(&shared.mds, error, shared.environment.now_ms())
            }
            IncomingFrame::End => break,
        };
        if send(output, &mut pipeline.writer, shared).await? {
            return Ok(ClosedBy::Server);
        }
        if share.is_none() {
            let user = held.as_ref().and_then(|connection| connection.user(&shared.mds));
            share = user.map(|(user, _)| shared.shares.of(&user));
        }
        if let Some(ticket) = ticket.filter(|_| !admitted)
            && let Some((user, is_admin)) = held.as_ref().and_then(|connection| connection.user(&shared.mds))
        {
            if ticket.activate(user.as_str(), is_admin).is_err() {
                tracing::warn!(%user, "connection closed: connection limit reached, and no user has more connections");
                return Ok(ClosedBy::Server);
            }
            admitted = true;
        }
    }
    Ok(ClosedBy::Peer)
}

impl<S: AsyncRead + AsyncWrite + Unpin, C: Conversation> RequestPipeline<'_, S, C> {
    /// Reads the next frame and sends answers meanwhile. Returns `None` if an answer was the last.
    async fn next(
        &mut self,
        connection: &mut C,
        login_by: Instant,
    ) -> io::Result<Option<IncomingFrame<C::Kind>>> {
        let Self { reader, writer, shared, stop, evicted, concurrent, burst_until } = self;
        let room = shared.limits.requests_per_connection_max.max(1);
        while concurrent.len() >= room {
            let Some(answered) = concurrent.join_next().await else { break };
            if reply(connection, answered, writer, shared).await? {
                return Ok(None);
            }
        }
        let idle_by =
            if connection.is_active() { Instant::now() + shared.limits.idle_timeout } else { login_by };
        let frame_timeout = shared.limits.frame_timeout;
        let mut reading = pin!(next_frame::<_, C>(reader, (stop, evicted), idle_by, frame_timeout));
        let mut frame = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
        if frame.is_ready() || concurrent.len() > 1 {
            // The frame arrived while the last one was being decided.
            *burst_until = Some(Instant::now() + BURST_WINDOW);
        }
        loop {
            frame = match frame {
                Poll::Ready(frame) => return frame.map(Some),
                // A partly read frame stays in `reading` while answers are sent.
                Poll::Pending => tokio::select! {
                    biased;
                    Some(answered) = concurrent.join_next() => {
                        if reply(connection, answered, writer, shared).await? {
                            return Ok(None);
                        }
                        Poll::Pending
                    }
                    frame = &mut reading => Poll::Ready(frame),
                },
            };
        }
    }

    /// Whether further requests would wait for one that is decided in place.
    fn expects_burst(&self) -> bool {
        let lately = || self.burst_until.is_some_and(|until| Instant::now() < until);
        !self.shared.environment.inline && (!self.concurrent.is_empty() || lately())
    }

    /// Waits for all requests in flight and answers them. Returns whether an answer was the last.
    async fn finish_pending(&mut self, connection: &mut C) -> io::Result<bool> {
        let mut last = false;
        while let Some(answered) = self.concurrent.join_next().await {
            last |= reply(connection, answered, &mut self.writer, self.shared).await?;
        }
        Ok(last)
    }
}

/// Waits until there is a recall for a client. Takes neither a thread nor a request permit; other
/// requests of this connection come after it.
async fn wait_for_recall(
    waiting: &PendingRecalls,
    shared: &ListenerState,
    mut evicted: Option<watch::Receiver<bool>>,
) {
    let news = poll_fn(|context| match shared.mds.has_recalls(waiting, context.waker()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    });
    let mut stop = shared.stop.clone();
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => {}
        () = is_evicted(&mut evicted) => {}
        _ = timeout(Duration::from_millis(u64::from(waiting.max_ms())), news) => {}
    }
}

/// Completes when the connection is to be closed for another one.
async fn is_evicted(evicted: &mut Option<watch::Receiver<bool>>) {
    match evicted {
        // An error means that the connection table was dropped; the table outlives its connections.
        Some(evicted) => _ = evicted.wait_for(|evicted| *evicted).await,
        None => std::future::pending().await,
    }
}

/// Sends an answer. Returns whether it was the last.
async fn reply<C: Conversation>(
    connection: &mut C,
    answered: Result<io::Result<C::SessionResponse>, JoinError>,
    writer: &mut (impl AsyncWrite + Unpin),
    shared: &ListenerState,
) -> io::Result<bool> {
    let answered = answered.map_err(io::Error::other)??;
    let output = connection.answer(&shared.mds, &answered, shared.environment.now_ms());
    send(output, writer, shared).await
}

/// Wakes background tasks that have new work, and sends the frame. Returns whether it was the last.
async fn send(
    output: Output,
    writer: &mut (impl AsyncWrite + Unpin),
    shared: &ListenerState,
) -> io::Result<bool> {
    if let Some(keeper) = &shared.keeper {
        if shared.mds.take_devices_changed() {
            keeper.wake();
        }
        if shared.mds.take_revocations_changed() {
            keeper.wake_revoker();
        }
        if shared.mds.take_clears_changed() {
            keeper.wake_clearer();
        }
    }
    if let Some(frame) = output.frame {
        let frame = Zeroizing::new(frame);
        let send = async {
            writer.write_all(&frame).await?;
            writer.flush().await
        };
        timeout(shared.limits.frame_timeout, send).await??;
    }
    Ok(output.close)
}

/// Outcome of reading from the peer.
enum IncomingFrame<K> {
    /// A frame.
    Frame(Header<K>, Zeroizing<Vec<u8>>),
    /// No valid header; nothing behind it was read.
    Foreign(WireError),
    /// The peer closed between two frames or was silent for too long, or the server shuts down.
    End,
}

async fn next_frame<S: AsyncRead + Unpin, C: Conversation>(
    stream: &mut S,
    (stop, evicted): (&mut watch::Receiver<bool>, &mut Option<watch::Receiver<bool>>),
    idle_by: Instant,
    frame_timeout: Duration,
) -> io::Result<IncomingFrame<C::Kind>> {
    let mut bytes = [0; HEADER_BYTES];
    let first = tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => return Ok(IncomingFrame::End),
        () = is_evicted(evicted) => return Ok(IncomingFrame::End),
        first = timeout_at(idle_by, stream.read(&mut bytes)) => first,
    };
    let got = match first {
        Ok(Ok(0)) | Err(_) => return Ok(IncomingFrame::End),
        Ok(Err(error)) => return Err(error),
        Ok(Ok(got)) => got,
    };
    // Before login all frames share one deadline, so that a peer cannot trickle them in.
    let frame_by = (Instant::now() + frame_timeout).min(idle_by);
    let rest = async {
        stream.read_exact(&mut bytes[got..]).await?;
        let header = match Header::<C::Kind>::parse(&bytes) {
            Ok(header) => header,
            Err(error) => return Ok(IncomingFrame::Foreign(error)),
        };
        // The header's parser limits the length.
        let mut body = Zeroizing::new(vec![0; header.body_length as usize]);
        stream.read_exact(&mut body).await?;
        Ok(IncomingFrame::Frame(header, body))
    };
    tokio::select! {
        biased;
        // Eviction interrupts a partly read frame too: otherwise a connection before login could
        // keep its slot by sending one byte.
        () = is_evicted(evicted) => Ok(IncomingFrame::End),
        frame = timeout_at(frame_by, rest) => frame.unwrap_or(Ok(IncomingFrame::End)),
    }
}

/// Decides a frame on a thread where waiting for the disk does not block other tasks.
async fn decide<C: Conversation>(
    mut connection: C,
    shared: &ListenerState,
    share: Option<Arc<Semaphore>>,
    (work_class, header, body): (WorkClass, Header<C::Kind>, Zeroizing<Vec<u8>>),
) -> io::Result<(C, Output)> {
    let (gate, waiting) = match work_class {
        WorkClass::Request | WorkClass::Quick => (&shared.requests, None),
        WorkClass::Login => (&shared.logins, Some(shared.mds.queue_login())),
        WorkClass::Directory => (&shared.directory, Some(shared.mds.queue_login())),
    };
    let share = share_of_user(share).await?;
    let place = gate.clone().acquire_owned().await.map_err(io::Error::other)?;
    drop(waiting);
    let (mds, environment) = (shared.mds.clone(), shared.environment.clone());
    let work = move || {
        let mut rng = (environment.entropy)();
        let output = connection.receive(&mds, &header, &body, environment.now_ms(), &mut *rng);
        drop((place, share));
        (connection, output)
    };
    if shared.environment.inline || work_class == WorkClass::Quick {
        return Ok(work());
    }
    run_blocking(work).await
}

/// Acquires a permit of the user, before one of all users. Returns `None` before login.
async fn share_of_user(share: Option<Arc<Semaphore>>) -> io::Result<Option<OwnedSemaphorePermit>> {
    match share {
        Some(share) => share.acquire_owned().await.map(Some).map_err(io::Error::other),
        None => Ok(None),
    }
}

/// Decides a request concurrently with others of its connection.
async fn decide_concurrently<C: Conversation>(
    request: C::SessionRequest,
    shared: ListenerState,
    share: Option<Arc<Semaphore>>,
) -> io::Result<C::SessionResponse> {
    let share = share_of_user(share).await?;
    let concurrent = shared.concurrent.clone().acquire_owned().await.map_err(io::Error::other)?;
    let place = shared.requests.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (mds, environment) = (shared.mds, shared.environment);
    run_blocking(move || {
        let mut rng = (environment.entropy)();
        let answered = C::decide(request, &mds, environment.now_ms(), &mut *rng);
        drop((place, concurrent, share));
        answered
    })
    .await
}

/// Runs work that may wait for the disk.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    if Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
        // Runs on this thread, whose other tasks move to another one: no wakeup before the answer.
        return Ok(tokio::task::block_in_place(work));
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}
