//! Frames over a stream: the part of an MDS connection that only moves bytes.
//!
//! Does: reads and writes whole frames and checks their sequence.
//! Does not: know their contents.
//! Truth: docs/standards/mds/wire.md §2.

use std::io;
use std::sync::Arc;

use sealstone_initiator::Environment;
use sealstone_login::paper::{Channel, Opener, Sealer};
use sealstone_mds_protocol::paper::{PaperHeader, PaperType};
use sealstone_mds_protocol::{
    FrameType, HEADER_BYTES, Header, MessageType, Sequence, Wire, WireError, decode_message, encode_message,
    frame,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use zeroize::Zeroizing;

use super::session::OpaqueRandom;
use crate::ClientError;

/// A received frame.
pub(crate) struct Frame {
    pub(crate) kind: MessageType,
    pub(crate) sequence: u32,
    /// May contain keys, as grants do.
    pub(crate) body: Zeroizing<Vec<u8>>,
}

impl Frame {
    /// Decodes the message in the body.
    pub(crate) fn message<T: Wire>(&self) -> Result<T, ClientError> {
        Ok(decode_message(&self.body)?)
    }
}

/// Reads one frame of a profile, header and body; `None` if the stream ended between frames.
async fn read_any<K: FrameType>(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<(Header<K>, Zeroizing<Vec<u8>>)>> {
    let mut header = [0; HEADER_BYTES];
    if stream.read(&mut header[..1]).await? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut header[1..]).await?;
    let header = Header::<K>::parse(&header).map_err(invalid)?;
    // The header's parser has checked the length.
    let mut body = Zeroizing::new(vec![0; usize::try_from(header.body_length).map_err(io::Error::other)?]);
    stream.read_exact(&mut body).await?;
    Ok(Some((header, body)))
}

/// Reads one frame of the modern profile; `None` if the stream ended between frames.
pub(crate) async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
    let frame = read_any::<MessageType>(stream).await?;
    Ok(frame.map(|(header, body)| Frame { kind: header.kind, sequence: header.sequence, body }))
}

/// Reads one frame of a login in the paper's profile; the stream must not end.
pub(crate) async fn read_paper(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<(PaperHeader, Zeroizing<Vec<u8>>), ClientError> {
    let end = || ClientError::Connection(io::ErrorKind::UnexpectedEof.into());
    read_any::<PaperType>(stream).await.map_err(ClientError::Connection)?.ok_or_else(end)
}

/// Sends one frame outside a session (sequence 0).
pub(crate) async fn send<K: FrameType>(
    stream: &mut (impl AsyncWrite + Unpin),
    kind: K,
    message: &impl Wire,
) -> Result<(), ClientError> {
    let bytes = Zeroizing::new(encode_message(kind, 0, message)?);
    write(stream, &bytes).await.map_err(ClientError::Connection)
}

/// Sends a ready body outside a session (sequence 0).
pub(crate) async fn send_body(
    stream: &mut (impl AsyncWrite + Unpin),
    kind: MessageType,
    body: &[u8],
) -> Result<(), ClientError> {
    let bytes = Zeroizing::new(frame(kind, 0, body)?);
    write(stream, &bytes).await.map_err(ClientError::Connection)
}

/// Reads one frame outside a session: sequence 0, and the stream must not end.
pub(crate) async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> Result<Frame, ClientError> {
    let end = || ClientError::Connection(io::ErrorKind::UnexpectedEof.into());
    let frame = read_frame(stream).await.map_err(ClientError::Connection)?.ok_or_else(end)?;
    if frame.sequence != 0 {
        return Err(ClientError::Protocol("a session frame outside a session"));
    }
    Ok(frame)
}

/// The record layer of a connection of the paper's profile.
pub(crate) struct RecordSeal {
    pub(crate) records: Channel,
    pub(crate) environment: Arc<dyn Environment>,
}

/// Writes numbered frames of a session; as records in the paper's profile.
pub(crate) struct FrameWriter<W> {
    stream: W,
    sequence: Sequence,
    sealer: Option<(Sealer, Arc<dyn Environment>)>,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    pub(crate) fn new(stream: W, sealer: Option<(Sealer, Arc<dyn Environment>)>) -> Self {
        Self { stream, sequence: Sequence::default(), sealer }
    }

    pub(crate) async fn write(&mut self, kind: MessageType, body: &[u8]) -> io::Result<()> {
        if let Some((sealer, environment)) = &mut self.sealer {
            let kind = match kind {
                MessageType::Request => PaperType::Data,
                MessageType::Logout => PaperType::Logout,
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            };
            let mut rng = OpaqueRandom(environment.clone());
            let bytes = sealer.seal(&mut rng, kind, body).map_err(io::Error::other)?;
            return write(&mut self.stream, &bytes).await;
        }
        let sequence = self.sequence.advance().ok_or(io::ErrorKind::ConnectionAborted)?;
        let bytes = Zeroizing::new(frame(kind, sequence, body).map_err(invalid)?);
        write(&mut self.stream, &bytes).await
    }
}

/// Reads frames of a session and checks their numbers.
pub(crate) struct FrameReader<R> {
    stream: R,
    sequence: Sequence,
    opener: Option<Opener>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(stream: R, opener: Option<Opener>) -> Self {
        Self { stream, sequence: Sequence::default(), opener }
    }

    /// Reads a frame; `None` if the stream ended between frames.
    pub(crate) async fn read(&mut self) -> io::Result<Option<Frame>> {
        if let Some(opener) = &mut self.opener {
            return read_record(&mut self.stream, opener).await;
        }
        let frame = read_frame(&mut self.stream).await?;
        match &frame {
            Some(frame) if !self.sequence.accept(frame.sequence) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "a frame out of sequence"))
            }
            _ => Ok(frame),
        }
    }
}

/// Reads one record of the paper's profile. Anything that is not a record is not authenticated,
/// error messages included.
async fn read_record(
    stream: &mut (impl AsyncRead + Unpin),
    opener: &mut Opener,
) -> io::Result<Option<Frame>> {
    let Some((header, body)) = read_any::<PaperType>(stream).await? else { return Ok(None) };
    let kind = match header.kind {
        PaperType::Data => MessageType::Response,
        PaperType::LogoutOk => MessageType::LogoutOk,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "no record in a session")),
    };
    let content = opener.open(&header, &body);
    let body = content.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some(Frame { kind, sequence: header.sequence, body }))
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

fn invalid(error: WireError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
