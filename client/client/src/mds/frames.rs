//! Frames over a stream: the part of an MDS connection before and after login that only moves bytes.
//!
//! Does: read and write whole frames, check their sequence. Does not: know what is inside.
//! Truth: docs/standards/mds.md §2.

use std::io;

use sealstone_mds_protocol::{
    FrameHeader, HEADER_BYTES, MessageType, Sequence, Wire, WireError, decode_message, encode_message, frame,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use zeroize::Zeroizing;

use crate::ClientError;

/// A received frame.
pub(crate) struct Frame {
    pub(crate) kind: MessageType,
    pub(crate) sequence: u32,
    /// May hold keys: grants do.
    pub(crate) body: Zeroizing<Vec<u8>>,
}

impl Frame {
    /// The one message in the body.
    pub(crate) fn message<T: Wire>(&self) -> Result<T, ClientError> {
        Ok(decode_message(&self.body)?)
    }
}

/// Reads one frame; `None` if the stream ended between frames.
pub(crate) async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
    let mut header = [0; HEADER_BYTES];
    if stream.read(&mut header[..1]).await? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut header[1..]).await?;
    let header = FrameHeader::parse(&header).map_err(invalid)?;
    // The header's parser bounded the length.
    let mut body = Zeroizing::new(vec![0; usize::try_from(header.body_length).map_err(io::Error::other)?]);
    stream.read_exact(&mut body).await?;
    Ok(Some(Frame { kind: header.kind, sequence: header.sequence, body }))
}

/// Sends one frame outside a session (sequence 0).
pub(crate) async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    kind: MessageType,
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

/// Writes frames of a session, numbering them.
pub(crate) struct FrameWriter<W> {
    stream: W,
    sequence: Sequence,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    pub(crate) fn new(stream: W) -> Self {
        Self { stream, sequence: Sequence::default() }
    }

    pub(crate) async fn write(&mut self, kind: MessageType, body: &[u8]) -> io::Result<()> {
        let sequence = self.sequence.advance().ok_or(io::ErrorKind::ConnectionAborted)?;
        let bytes = Zeroizing::new(frame(kind, sequence, body).map_err(invalid)?);
        write(&mut self.stream, &bytes).await
    }
}

/// Reads frames of a session, checking their numbers.
pub(crate) struct FrameReader<R> {
    stream: R,
    sequence: Sequence,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(stream: R) -> Self {
        Self { stream, sequence: Sequence::default() }
    }

    /// `None` if the stream ended between frames.
    pub(crate) async fn read(&mut self) -> io::Result<Option<Frame>> {
        let frame = read_frame(&mut self.stream).await?;
        match &frame {
            Some(frame) if !self.sequence.accept(frame.sequence) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "a frame out of sequence"))
            }
            _ => Ok(frame),
        }
    }
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

fn invalid(error: WireError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
