//! One connection over any stream of bytes: TLS in the field, a pipe in simulation.
//!
//! Does: read a frame, have it decided, send the answer, again; requests of a session that come while others are being
//! decided are decided beside them, so that they share the wait for the medium. Contract: a bounded number of frames of one
//! connection is in memory, the length of each checked before its body is read. What is not a request waits until all
//! before it is answered.

use core::convert::Infallible;
use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use std::io;
use std::sync::Arc;

use sealstone_channel::{Stage, Ticket};
use sealstone_login::ChannelBinding;
use sealstone_mds::{
    Connection, Entropy, LoginSource, Mds, Output, PaperConnection, SessionRequest, SessionResponse, Waiting,
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

/// What a frame waits for before it is decided, so that one kind of work does not hold up another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// A request.
    Request,
    /// One that only looks something up, while nobody writes: it is decided sooner than another thread wakes.
    Quick,
    /// A step of a login that costs.
    Login,
    /// One that asks a directory, which may take its time: logins of other accounts go on meanwhile.
    Directory,
}

/// The server's end of a connection, of either profile.
pub(crate) trait Conversation: Send + 'static {
    /// Types of its profile's frames.
    type Kind: FrameType + Send + 'static;
    /// What a frame of this kind, with this body, has to wait for.
    fn turn(&self, kind: Self::Kind, body: &[u8], mds: &Mds) -> Turn;
    /// Does it wait for something else before that?
    fn waits(&self, kind: Self::Kind, body: &[u8], mds: &Mds) -> Option<Waiting>;
    /// Whether its answer has figures of devices, which are read again before.
    fn reads_space(&self, kind: Self::Kind, body: &[u8]) -> bool;
    /// Whether a login succeeded.
    fn is_active(&self) -> bool;
    /// The user that is logged in, and whether it is an administrator.
    fn user(&self, mds: &Mds) -> Option<(UserName, bool)>;
    /// Takes one frame.
    fn receive(
        &mut self,
        mds: &Mds,
        header: &Header<Self::Kind>,
        body: &[u8],
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Output;
    /// A request that may be decided beside others.
    type SessionRequest: Send + 'static;
    /// What it is answered.
    type SessionResponse: Send + 'static;
    /// Takes a request out of a frame; none if it is something else, for [`Conversation::receive`].
    fn ask(&mut self, header: &Header<Self::Kind>, body: &[u8]) -> Option<Self::SessionRequest>;
    /// Decides it.
    fn decide(
        asked: Self::SessionRequest,
        mds: &Mds,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Self::SessionResponse;
    /// The frame of an answer.
    fn answer(&mut self, mds: &Mds, answered: &Self::SessionResponse, now_ms: u64) -> Output;
    /// What came is no frame of this profile, or a longer one than is taken.
    fn reject(&mut self, mds: &Mds, error: WireError, now_ms: u64) -> Output;
    /// The connection is gone.
    fn ended(self, mds: &Mds, now_ms: u64);
}

/// What both profiles' connections do under the same names.
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

    fn ask(&mut self, header: &Header<MessageType>, body: &[u8]) -> Option<SessionRequest> {
        self.ask(header, body)
    }

    fn decide(asked: SessionRequest, mds: &Mds, now_ms: u64, rng: &mut dyn Entropy) -> SessionResponse {
        asked.decide(mds, now_ms, rng)
    }

    fn answer(&mut self, mds: &Mds, answered: &SessionResponse, now_ms: u64) -> Output {
        self.answer(mds, answered, now_ms)
    }

    fn turn(&self, kind: MessageType, body: &[u8], mds: &Mds) -> Turn {
        match kind {
            MessageType::Request if Request::only_looks_up(body) && mds.answers_at_once() => Turn::Quick,
            // Under load it costs a hash, and must not wait behind what costs more: it is told to come again.
            MessageType::LoginStart if mds.is_under_load() => Turn::Request,
            MessageType::LoginFinish if self.asks_directory() => Turn::Directory,
            MessageType::LoginStart
            | MessageType::LoginAgain
            | MessageType::LoginFinish
            | MessageType::Resume
            | MessageType::RegisterStart
            | MessageType::RegisterUpload => Turn::Login,
            _ => Turn::Request,
        }
    }

    fn waits(&self, kind: MessageType, body: &[u8], mds: &Mds) -> Option<Waiting> {
        self.waits(mds, kind, body)
    }

    fn reads_space(&self, kind: MessageType, body: &[u8]) -> bool {
        kind == MessageType::Request && self.is_active() && Request::reads_space(body)
    }
}

impl Conversation for PaperConnection {
    forwarded!(PaperType);

    // Its records are sealed one after the other, so they are decided so.
    type SessionRequest = Infallible;
    type SessionResponse = Infallible;

    fn ask(&mut self, _header: &Header<PaperType>, _body: &[u8]) -> Option<Infallible> {
        None
    }

    fn decide(asked: Infallible, _mds: &Mds, _now_ms: u64, _rng: &mut dyn Entropy) -> Infallible {
        asked
    }

    fn answer(&mut self, _mds: &Mds, answered: &Infallible, _now_ms: u64) -> Output {
        match *answered {}
    }

    fn turn(&self, kind: PaperType, _body: &[u8], _mds: &Mds) -> Turn {
        if kind.is_record() { Turn::Request } else { Turn::Login }
    }

    /// Records are opened where they are decided: clients of this profile are given no leases.
    fn waits(&self, _kind: PaperType, _body: &[u8], _mds: &Mds) -> Option<Waiting> {
        None
    }

    fn reads_space(&self, _kind: PaperType, _body: &[u8]) -> bool {
        false
    }
}

/// What all connections of a listener share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) mds: Arc<Mds>,
    pub(crate) environment: Environment,
    pub(crate) limits: Arc<Limits>,
    requests: Arc<Semaphore>,
    /// Of them, those that are decided beside others of their connection: a few connections do not take all places.
    beside: Arc<Semaphore>,
    shares: RequestShares,
    logins: Arc<Semaphore>,
    directory: Arc<Semaphore>,
    /// True when the server is to stop.
    pub(crate) stop: watch::Receiver<bool>,
    keeper: Option<Housekeeper>,
}

impl Shared {
    pub(crate) fn new(
        mds: Arc<Mds>,
        environment: Environment,
        limits: Limits,
        stop: watch::Receiver<bool>,
        keeper: Option<Housekeeper>,
    ) -> Self {
        let requests = Arc::new(Semaphore::new(limits.requests_max));
        let beside = Arc::new(Semaphore::new((limits.requests_max / 2).max(1)));
        let shares = RequestShares::new(limits.requests_per_user_max);
        let logins = Arc::new(Semaphore::new(limits.logins_max));
        let directory = Arc::new(Semaphore::new(limits.logins_max));
        Self {
            mds,
            environment,
            limits: Arc::new(limits),
            requests,
            beside,
            shares,
            logins,
            directory,
            stop,
            keeper,
        }
    }
}

/// Serves one stream that is secure by itself, or simulated: `channel` stands for the TLS exporter, both ends must
/// know it. Ends when the peer closes, breaks the protocol or is too slow.
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
    run(stream, connection, Shared::new(mds, environment, limits, stop, None), login_by, None).await
}

pub(crate) async fn run<S, C>(
    mut stream: S,
    connection: C,
    shared: Shared,
    login_by: Instant,
    ticket: Option<Ticket>,
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
    // A clean end of TLS; a peer that is gone already does not matter.
    let goodbye = async {
        stream.shutdown().await?;
        match end {
            End::Theirs => Ok(()),
            End::Ours => take_leave(&mut stream).await,
        }
    };
    let _ = timeout(GOODBYE, goodbye).await;
    Ok(())
}

/// Whoever sent several requests at a time is taken to send more for so long: each is decided on a task of its own, and not
/// where further ones would wait for it.
const CROWD: Duration = Duration::from_millis(100);
/// How long a connection is held at most when it is over.
const GOODBYE: Duration = Duration::from_secs(1);
/// What is read of a peer after our last frame at most, bytes.
const UNREAD_MAX: usize = 1 << 20;

/// Who ended a connection.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The peer, its silence, or the server's own end.
    Theirs,
    /// We, with a frame that says why.
    Ours,
}

/// Reads what the peer had sent before it saw the end: a socket that is closed with something unread in it is reset, and
/// the frame that says why would be lost.
async fn take_leave(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let (mut bytes, mut left) = ([0; 4096], UNREAD_MAX);
    loop {
        let got = stream.read(&mut bytes).await?;
        if got == 0 || got >= left {
            return Ok(());
        }
        left -= got;
    }
}

/// A stream in two halves, and the requests of it that are being decided while further frames are taken.
struct Line<'a, S, C: Conversation> {
    reader: ReadHalf<&'a mut S>,
    writer: WriteHalf<&'a mut S>,
    shared: &'a Shared,
    stop: watch::Receiver<bool>,
    /// True when the connection is closed for another one; none where there is no admission.
    evicted: Option<watch::Receiver<bool>>,
    beside: JoinSet<io::Result<C::SessionResponse>>,
    /// Until then requests come several at a time, it is assumed.
    crowded_until: Option<Instant>,
}

/// Frame by frame until the end. `held` is empty only while a frame is being decided.
async fn exchange<S, C>(
    stream: &mut S,
    held: &mut Option<C>,
    shared: &Shared,
    login_by: Instant,
    ticket: Option<&Ticket>,
) -> io::Result<End>
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Conversation,
{
    let (reader, writer) = tokio::io::split(stream);
    let (stop, beside) = (shared.stop.clone(), JoinSet::new());
    let evicted = ticket.map(Ticket::evicted);
    let mut line = Line::<S, C> { reader, writer, shared, stop, evicted, beside, crowded_until: None };
    let mut admitted = false;
    let mut share = None;
    while let Some(connection) = held.as_mut() {
        let Some(incoming) = line.next(connection, login_by).await? else {
            // What is under way is done, and its clients hear of it.
            line.settle(connection).await?;
            return Ok(End::Ours);
        };
        let turn = match &incoming {
            Incoming::Frame(header, body) => connection.turn(header.kind, body, &shared.mds),
            _ => Turn::Request,
        };
        let waiting = match &incoming {
            Incoming::Frame(header, body) => connection.waits(header.kind, body, &shared.mds),
            _ => None,
        };
        if let Incoming::Frame(header, body) = &incoming
            && let Some(keeper) = &shared.keeper
            && connection.reads_space(header.kind, body)
        {
            keeper.refresh_space().await;
        }
        if let Incoming::Frame(header, body) = &incoming
            && turn == Turn::Request
            && waiting.is_none()
            && line.is_crowded()
            && let Some(asked) = connection.ask(header, body)
        {
            line.beside.spawn(decide_beside::<C>(asked, shared.clone(), share.clone()));
            continue;
        }
        if turn != Turn::Quick && line.settle(connection).await? {
            return Ok(End::Ours);
        }
        if let Some(waiting) = waiting {
            wait_for_news(&waiting, shared, line.evicted.clone()).await;
        }
        if let Some(ticket) = ticket.filter(|_| turn == Turn::Login || turn == Turn::Directory) {
            ticket.advance(Stage::Proving);
        }
        let output = match incoming {
            Incoming::Frame(header, body) => {
                let Some(connection) = held.take() else { break };
                let (connection, output) =
                    decide(connection, shared, share.clone(), (turn, header, body)).await?;
                *held = Some(connection);
                output
            }
            Incoming::Foreign(error) => connection.reject(&shared.mds, error, shared.environment.now_ms()),
            Incoming::End => break,
        };
        if send(output, &mut line.writer, shared).await? {
            return Ok(End::Ours);
        }
        if share.is_none() {
            let user = held.as_ref().and_then(|connection| connection.user(&shared.mds));
            share = user.map(|(user, _)| shared.shares.of(&user));
        }
        if let Some(ticket) = ticket.filter(|_| !admitted)
            && let Some((user, is_admin)) = held.as_ref().and_then(|connection| connection.user(&shared.mds))
        {
            if ticket.activate(user.as_str(), is_admin).is_err() {
                tracing::warn!(%user, "connection closed: all places are used by users with as few connections");
                return Ok(End::Ours);
            }
            admitted = true;
        }
    }
    Ok(End::Theirs)
}

impl<S: AsyncRead + AsyncWrite + Unpin, C: Conversation> Line<'_, S, C> {
    /// The next frame; answers go out meanwhile. None if one of them was the last.
    async fn next(&mut self, connection: &mut C, login_by: Instant) -> io::Result<Option<Incoming<C::Kind>>> {
        let Self { reader, writer, shared, stop, evicted, beside, crowded_until } = self;
        let room = shared.limits.requests_per_connection_max.max(1);
        while beside.len() >= room {
            let Some(answered) = beside.join_next().await else { break };
            if reply(connection, answered, writer, shared).await? {
                return Ok(None);
            }
        }
        let idle_by =
            if connection.is_active() { Instant::now() + shared.limits.idle_timeout } else { login_by };
        let frame_timeout = shared.limits.frame_timeout;
        let mut reading = pin!(next_frame::<_, C>(reader, (stop, evicted), idle_by, frame_timeout));
        let mut frame = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
        if frame.is_ready() || beside.len() > 1 {
            // It came while the last one was decided.
            *crowded_until = Some(Instant::now() + CROWD);
        }
        loop {
            frame = match frame {
                Poll::Ready(frame) => return frame.map(Some),
                // What is here of a frame stays here while answers go out.
                Poll::Pending => tokio::select! {
                    biased;
                    Some(answered) = beside.join_next() => {
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

    /// Would further requests wait for one that is decided here?
    fn is_crowded(&self) -> bool {
        let lately = || self.crowded_until.is_some_and(|until| Instant::now() < until);
        !self.shared.environment.inline && (!self.beside.is_empty() || lately())
    }

    /// Waits for all that is being decided, and answers it; true if after one of them no more is taken.
    async fn settle(&mut self, connection: &mut C) -> io::Result<bool> {
        let mut last = false;
        while let Some(answered) = self.beside.join_next().await {
            last |= reply(connection, answered, &mut self.writer, self.shared).await?;
        }
        Ok(last)
    }
}

/// Waits until there is something to tell a holder: here, where that takes no thread and no place of a request. Other requests
/// of this connection come after it.
async fn wait_for_news(waiting: &Waiting, shared: &Shared, mut evicted: Option<watch::Receiver<bool>>) {
    let news = poll_fn(|context| match shared.mds.has_news(waiting, context.waker()) {
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
        // An error means that the table of connections is gone, which it cannot be before us.
        Some(evicted) => _ = evicted.wait_for(|evicted| *evicted).await,
        None => std::future::pending().await,
    }
}

/// Sends an answer; true if it was the last.
async fn reply<C: Conversation>(
    connection: &mut C,
    answered: Result<io::Result<C::SessionResponse>, JoinError>,
    writer: &mut (impl AsyncWrite + Unpin),
    shared: &Shared,
) -> io::Result<bool> {
    let answered = answered.map_err(io::Error::other)??;
    let output = connection.answer(&shared.mds, &answered, shared.environment.now_ms());
    send(output, writer, shared).await
}

/// Wakes whoever has work since, and sends; true if that was the last.
async fn send(output: Output, writer: &mut (impl AsyncWrite + Unpin), shared: &Shared) -> io::Result<bool> {
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

/// What came from the other end.
enum Incoming<K> {
    /// A frame.
    Frame(Header<K>, Zeroizing<Vec<u8>>),
    /// Something else; nothing behind its first bytes was read.
    Foreign(WireError),
    /// Nothing: the peer closed between two frames or was silent for too long, or the server is to stop.
    End,
}

async fn next_frame<S: AsyncRead + Unpin, C: Conversation>(
    stream: &mut S,
    (stop, evicted): (&mut watch::Receiver<bool>, &mut Option<watch::Receiver<bool>>),
    idle_by: Instant,
    frame_timeout: Duration,
) -> io::Result<Incoming<C::Kind>> {
    let mut bytes = [0; HEADER_BYTES];
    let first = tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => return Ok(Incoming::End),
        () = is_evicted(evicted) => return Ok(Incoming::End),
        first = timeout_at(idle_by, stream.read(&mut bytes)) => first,
    };
    let got = match first {
        Ok(Ok(0)) | Err(_) => return Ok(Incoming::End),
        Ok(Err(error)) => return Err(error),
        Ok(Ok(got)) => got,
    };
    // Before a login the whole of it has one deadline, so that frames cannot be trickled in.
    let frame_by = (Instant::now() + frame_timeout).min(idle_by);
    let rest = async {
        stream.read_exact(&mut bytes[got..]).await?;
        let header = match Header::<C::Kind>::parse(&bytes) {
            Ok(header) => header,
            Err(error) => return Ok(Incoming::Foreign(error)),
        };
        // The header's parser bounded the length.
        let mut body = Zeroizing::new(vec![0; header.body_length as usize]);
        stream.read_exact(&mut body).await?;
        Ok(Incoming::Frame(header, body))
    };
    tokio::select! {
        biased;
        // A frame that began is not waited for either: a connection before its login could hold its place with one byte.
        () = is_evicted(evicted) => Ok(Incoming::End),
        frame = timeout_at(frame_by, rest) => frame.unwrap_or(Ok(Incoming::End)),
    }
}

/// Has a frame decided, where waiting for the medium disturbs nobody.
async fn decide<C: Conversation>(
    mut connection: C,
    shared: &Shared,
    share: Option<Arc<Semaphore>>,
    (turn, header, body): (Turn, Header<C::Kind>, Zeroizing<Vec<u8>>),
) -> io::Result<(C, Output)> {
    let (gate, waiting) = match turn {
        Turn::Request | Turn::Quick => (&shared.requests, None),
        Turn::Login => (&shared.logins, Some(shared.mds.queue_login())),
        Turn::Directory => (&shared.directory, Some(shared.mds.queue_login())),
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
    if shared.environment.inline || turn == Turn::Quick {
        return Ok(work());
    }
    aside(work).await
}

/// Acquires a permit of the user, before one of all users; none before the login.
async fn share_of_user(share: Option<Arc<Semaphore>>) -> io::Result<Option<OwnedSemaphorePermit>> {
    match share {
        Some(share) => share.acquire_owned().await.map(Some).map_err(io::Error::other),
        None => Ok(None),
    }
}

/// Has a request decided beside others of its connection.
async fn decide_beside<C: Conversation>(
    asked: C::SessionRequest,
    shared: Shared,
    share: Option<Arc<Semaphore>>,
) -> io::Result<C::SessionResponse> {
    let share = share_of_user(share).await?;
    let beside = shared.beside.clone().acquire_owned().await.map_err(io::Error::other)?;
    let place = shared.requests.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (mds, environment) = (shared.mds, shared.environment);
    aside(move || {
        let mut rng = (environment.entropy)();
        let answered = C::decide(asked, &mds, environment.now_ms(), &mut *rng);
        drop((place, beside, share));
        answered
    })
    .await
}

/// Runs what may wait for the medium.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    if Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
        // On this thread, whose other tasks go to another one: nobody has to wake up before the answer is out.
        return Ok(tokio::task::block_in_place(work));
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}
