//! Receives into two buffers with one system call.
//!
//! Does: uses vectored reads on a TCP socket, so that the end of a data segment and the bytes
//! behind it take one call.
//! Does not: speed up other streams; those are read into one buffer at a time.
//! Contract: as `AsyncRead::poll_read`; zero bytes mean the end of the stream, or no space.

use std::any::Any;
use std::io::{self, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// A bidirectional byte stream.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Returns the concrete type: a TCP socket supports more than other streams.
    fn as_any(&mut self) -> &mut dyn Any;
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// Reads into `first`, then into `second`; returns the number of bytes.
///
/// # Errors
/// Errors of the stream.
pub fn poll_receive<S: AsyncRead + Unpin + 'static>(
    stream: &mut S,
    cx: &mut Context<'_>,
    [first, second]: [&mut [u8]; 2],
) -> Poll<io::Result<usize>> {
    if !first.is_empty()
        && !second.is_empty()
        && let Some(socket) = socket(stream)
    {
        loop {
            ready!(socket.poll_read_ready(cx))?;
            match receive(socket, first, second) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                done => return Poll::Ready(done),
            }
        }
    }
    let mut place = ReadBuf::new(if first.is_empty() { second } else { first });
    ready!(Pin::new(stream).poll_read(cx, &mut place))?;
    Poll::Ready(Ok(place.filled().len()))
}

/// Returns the socket itself, also inside a box.
fn socket<S: 'static>(stream: &mut S) -> Option<&mut TcpStream> {
    let stream: &mut dyn Any = stream;
    if stream.is::<Box<dyn ByteStream>>() {
        return stream
            .downcast_mut::<Box<dyn ByteStream>>()
            .and_then(|boxed| (**boxed).as_any().downcast_mut());
    }
    stream.downcast_mut()
}

fn receive(socket: &TcpStream, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
    let room = first.len() + second.len();
    let mut count = 0;
    let tried = socket.try_io(Interest::READABLE, || {
        count = rustix::io::readv(socket, &mut [IoSliceMut::new(first), IoSliceMut::new(second)])?;
        // Fewer bytes than there was space for: nothing is left, as tokio's own reads conclude too.
        // Reporting it inside `try_io` keeps a later readiness event, and saves a call that would
        // find nothing.
        if (1..room).contains(&count) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    match tried {
        Err(error) if count == 0 => Err(error),
        _ => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    async fn take<S: AsyncRead + Unpin + 'static>(stream: &mut S, places: [usize; 2]) -> Vec<u8> {
        let mut places = places.map(|room| vec![0; room]);
        let [first, second] = &mut places;
        let count = poll_fn(|cx| poll_receive(stream, cx, [first, second])).await.unwrap();
        let mut bytes = places.concat();
        bytes.truncate(count);
        bytes
    }

    #[tokio::test]
    async fn stream_is_received_in_order_into_any_buffers() {
        let (mut near, mut far) = pair().await;
        let sent: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        let copy = sent.clone();
        let writer = tokio::spawn(async move {
            for piece in copy.chunks(7919) {
                near.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let mut received = Vec::new();
        for places in [[10_000, 512], [1, 1], [0, 300], [300, 0], [48, 70_000]].into_iter().cycle() {
            match take(&mut far, places).await {
                bytes if bytes.is_empty() => break,
                bytes => received.extend(bytes),
            }
        }
        writer.await.unwrap();
        assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
    }

    #[tokio::test]
    async fn streams_without_socket_are_read_too() {
        let (mut near, mut far) = tokio::io::duplex(64);
        near.write_all(b"header and data").await.unwrap();
        assert_eq!(take(&mut far, [6, 100]).await, b"header");
        assert_eq!(take(&mut far, [0, 100]).await, b" and data");
        drop(near);
        assert_eq!(take(&mut far, [6, 100]).await, b"");
    }
}
