//! One connection over any stream of bytes: TLS in the field, a pipe in simulation.
//!
//! Does: read one frame, have it decided, send the answer, again. Contract: at most one frame of one connection is in
//! memory, its length checked before its body is read.

use core::time::Duration;
use std::io;
use std::sync::Arc;

use sealstone_login::ChannelBinding;
use sealstone_mds::{Connection, Mds, Output, Source};
use sealstone_mds_protocol::{FrameHeader, HEADER_BYTES, MessageType};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};
use zeroize::Zeroizing;

use crate::environment::Environment;
use crate::housekeeping::Housekeeper;
use crate::limits::Limits;

/// What all connections of a listener share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) mds: Arc<Mds>,
    pub(crate) environment: Environment,
    pub(crate) limits: Arc<Limits>,
    requests: Arc<Semaphore>,
    logins: Arc<Semaphore>,
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
        Self { mds, environment, limits: Arc::new(limits), requests, logins, stop, keeper }
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
    run(stream, channel, source, Shared::new(mds, environment, limits, stop, None), login_by).await
}

pub(crate) async fn run<S>(
    mut stream: S,
    channel: ChannelBinding,
    source: Source,
    mut shared: Shared,
    login_by: Instant,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = Some(Connection::new(channel, source));
    let result = exchange(&mut stream, &mut connection, &mut shared, login_by).await;
    if let Some(connection) = connection {
        connection.ended(&shared.mds, shared.environment.now_ms());
    }
    result?;
    // A clean end of TLS; a peer that is gone already does not matter.
    let _ = timeout(Duration::from_secs(1), stream.shutdown()).await;
    Ok(())
}

/// Frame by frame until the end. `held` is empty only while a frame is being decided.
async fn exchange<S>(
    stream: &mut S,
    held: &mut Option<Connection>,
    shared: &mut Shared,
    login_by: Instant,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(connection) = held {
        let idle_by =
            if connection.is_active() { Instant::now() + shared.limits.idle_timeout } else { login_by };
        let Some((header, body)) = next_frame(stream, shared, idle_by).await? else { break };
        let Some(connection) = held.take() else { break };
        let (connection, output) = decide(connection, shared, header, body).await?;
        *held = Some(connection);
        if let Some(keeper) = &shared.keeper
            && shared.mds.take_devices_changed()
        {
            keeper.wake();
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
            break;
        }
    }
    Ok(())
}

/// The next frame; `None` if the peer closed between two frames, sent what is no frame, was silent for too long, or the
/// server is to stop.
async fn next_frame<S: AsyncRead + Unpin>(
    stream: &mut S,
    shared: &mut Shared,
    idle_by: Instant,
) -> io::Result<Option<(FrameHeader, Zeroizing<Vec<u8>>)>> {
    let mut bytes = [0; HEADER_BYTES];
    let first = tokio::select! {
        biased;
        _ = shared.stop.wait_for(|stop| *stop) => return Ok(None),
        first = timeout_at(idle_by, stream.read(&mut bytes)) => first,
    };
    let got = match first {
        Ok(Ok(0)) | Err(_) => return Ok(None),
        Ok(Err(error)) => return Err(error),
        Ok(Ok(got)) => got,
    };
    // Before a login the whole of it has one deadline, so that frames cannot be trickled in.
    let frame_by = (Instant::now() + shared.limits.frame_timeout).min(idle_by);
    let rest = async {
        stream.read_exact(&mut bytes[got..]).await?;
        let Ok(header) = FrameHeader::parse(&bytes) else { return Ok(None) };
        let mut body = Zeroizing::new(vec![0; header.body_length as usize]);
        stream.read_exact(&mut body).await?;
        Ok(Some((header, body)))
    };
    match timeout_at(frame_by, rest).await {
        Ok(frame) => frame,
        Err(_) => Ok(None),
    }
}

/// Has a frame decided, where waiting for the medium disturbs nobody.
async fn decide(
    mut connection: Connection,
    shared: &Shared,
    header: FrameHeader,
    body: Zeroizing<Vec<u8>>,
) -> io::Result<(Connection, Output)> {
    // Under load a login costs a hash, and must not wait behind those that cost more: it is told to come again.
    let cheap = header.kind == MessageType::LoginStart && shared.mds.is_under_load();
    let is_login = matches!(
        header.kind,
        MessageType::LoginStart
            | MessageType::LoginAgain
            | MessageType::LoginFinish
            | MessageType::Resume
            | MessageType::RegisterStart
            | MessageType::RegisterUpload
    );
    let (gate, waiting) = if is_login && !cheap {
        (&shared.logins, Some(shared.mds.login_turn()))
    } else {
        (&shared.requests, None)
    };
    let turn = gate.clone().acquire_owned().await.map_err(io::Error::other)?;
    drop(waiting);
    let (mds, environment) = (shared.mds.clone(), shared.environment.clone());
    let work = move || {
        let mut rng = (environment.entropy)();
        let output = connection.receive(&mds, &header, &body, environment.now_ms(), &mut *rng);
        drop(turn);
        (connection, output)
    };
    if shared.environment.inline {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}
