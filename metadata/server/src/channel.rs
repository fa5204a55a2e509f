//! One connection over any stream of bytes: TLS in the field, a pipe in simulation.
//!
//! Does: read one frame, have it decided, send the answer, again. Contract: at most one frame of one connection is in
//! memory, its length checked before its body is read.

use core::time::Duration;
use std::io;
use std::sync::Arc;

use sealstone_login::ChannelBinding;
use sealstone_mds::{Connection, Entropy, Mds, Output, PaperConnection, Source};
use sealstone_mds_protocol::paper::PaperType;
use sealstone_mds_protocol::{FrameType, HEADER_BYTES, Header, MessageType, Request, WireError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};
use zeroize::Zeroizing;

use crate::environment::Environment;
use crate::housekeeping::Housekeeper;
use crate::limits::Limits;

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
    /// Is somebody logged in?
    fn is_active(&self) -> bool;
    /// Takes one frame.
    fn receive(
        &mut self,
        mds: &Mds,
        header: &Header<Self::Kind>,
        body: &[u8],
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Output;
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
}

impl Conversation for PaperConnection {
    forwarded!(PaperType);

    fn turn(&self, kind: PaperType, _body: &[u8], _mds: &Mds) -> Turn {
        if kind.is_record() { Turn::Request } else { Turn::Login }
    }
}

/// What all connections of a listener share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) mds: Arc<Mds>,
    pub(crate) environment: Environment,
    pub(crate) limits: Arc<Limits>,
    requests: Arc<Semaphore>,
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
        let logins = Arc::new(Semaphore::new(limits.logins_max));
        let directory = Arc::new(Semaphore::new(limits.logins_max));
        Self { mds, environment, limits: Arc::new(limits), requests, logins, directory, stop, keeper }
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
    source: Source,
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
    run(stream, connection, Shared::new(mds, environment, limits, stop, None), login_by).await
}

pub(crate) async fn run<S, C>(
    mut stream: S,
    connection: C,
    mut shared: Shared,
    login_by: Instant,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Conversation,
{
    let mut connection = Some(connection);
    let result = exchange(&mut stream, &mut connection, &mut shared, login_by).await;
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

/// Frame by frame until the end. `held` is empty only while a frame is being decided.
async fn exchange<S, C>(
    stream: &mut S,
    held: &mut Option<C>,
    shared: &mut Shared,
    login_by: Instant,
) -> io::Result<End>
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Conversation,
{
    while let Some(connection) = held {
        let idle_by =
            if connection.is_active() { Instant::now() + shared.limits.idle_timeout } else { login_by };
        let output = match next_frame::<S, C>(stream, shared, idle_by).await? {
            Incoming::End => break,
            Incoming::Frame(header, body) => {
                let Some(connection) = held.take() else { break };
                let (connection, output) = decide(connection, shared, header, body).await?;
                *held = Some(connection);
                output
            }
            Incoming::Foreign(error) => connection.reject(&shared.mds, error, shared.environment.now_ms()),
        };
        if let Some(keeper) = &shared.keeper
            && shared.mds.take_devices_changed()
        {
            keeper.wake();
        }
        if let Some(keeper) = &shared.keeper
            && shared.mds.take_revocations_changed()
        {
            keeper.wake_revoker();
        }
        if let Some(keeper) = &shared.keeper
            && shared.mds.take_clears_changed()
        {
            keeper.wake_clearer();
        }
        if let Some(frame) = output.frame {
            let frame = Zeroizing::new(frame);
            let send = async {
                stream.write_all(&frame).await?;
                stream.flush().await
            };
            timeout(shared.limits.frame_timeout, send).await??;
        }
        if output.close {
            return Ok(End::Ours);
        }
    }
    Ok(End::Theirs)
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
    shared: &mut Shared,
    idle_by: Instant,
) -> io::Result<Incoming<C::Kind>> {
    let mut bytes = [0; HEADER_BYTES];
    let first = tokio::select! {
        biased;
        _ = shared.stop.wait_for(|stop| *stop) => return Ok(Incoming::End),
        first = timeout_at(idle_by, stream.read(&mut bytes)) => first,
    };
    let got = match first {
        Ok(Ok(0)) | Err(_) => return Ok(Incoming::End),
        Ok(Err(error)) => return Err(error),
        Ok(Ok(got)) => got,
    };
    // Before a login the whole of it has one deadline, so that frames cannot be trickled in.
    let frame_by = (Instant::now() + shared.limits.frame_timeout).min(idle_by);
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
    match timeout_at(frame_by, rest).await {
        Ok(frame) => frame,
        Err(_) => Ok(Incoming::End),
    }
}

/// Has a frame decided, where waiting for the medium disturbs nobody.
async fn decide<C: Conversation>(
    mut connection: C,
    shared: &Shared,
    header: Header<C::Kind>,
    body: Zeroizing<Vec<u8>>,
) -> io::Result<(C, Output)> {
    let turn = connection.turn(header.kind, &body, &shared.mds);
    let (gate, waiting) = match turn {
        Turn::Request | Turn::Quick => (&shared.requests, None),
        Turn::Login => (&shared.logins, Some(shared.mds.login_turn())),
        Turn::Directory => (&shared.directory, Some(shared.mds.login_turn())),
    };
    let place = gate.clone().acquire_owned().await.map_err(io::Error::other)?;
    drop(waiting);
    let (mds, environment) = (shared.mds.clone(), shared.environment.clone());
    let work = move || {
        let mut rng = (environment.entropy)();
        let output = connection.receive(&mds, &header, &body, environment.now_ms(), &mut *rng);
        drop(place);
        (connection, output)
    };
    if shared.environment.inline || turn == Turn::Quick {
        return Ok(work());
    }
    if Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
        // On this thread, whose other tasks go to another one: nobody has to wake up before the answer is out.
        return Ok(tokio::task::block_in_place(work));
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}
