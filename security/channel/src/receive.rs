//! Receiving into two places with one system call.
//!
//! Does: on a TCP socket, read vectored, so that the end of a data segment and what comes behind it take one call.
//! Does not: help other streams; those are read one place at a time.
//! Contract: as `AsyncRead::poll_read`; no bytes are the end of the stream, or no room.

use std::any::Any;
use std::io::{self, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// Bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// What it really is: a TCP socket can do more than any stream.
    fn as_any(&mut self) -> &mut dyn Any;
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// Reads into `first`, then into `second`; the number of bytes.
///
/// # Errors
/// The stream's.
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

/// The socket itself, also inside of a box.
fn socket<S: 'static>(stream: &mut S) -> Option<&mut TcpStream> {
    let stream: &mut dyn Any = stream;
    if stream.is::<Box<dyn Stream>>() {
        return stream.downcast_mut::<Box<dyn Stream>>().and_then(|boxed| (**boxed).as_any().downcast_mut());
    }
    stream.downcast_mut()
}

fn receive(socket: &TcpStream, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
    let room = first.len() + second.len();
    let mut count = 0;
    let tried = socket.try_io(Interest::READABLE, || {
        count = rustix::io::readv(socket, &mut [IoSliceMut::new(first), IoSliceMut::new(second)])?;
        // Fewer bytes than there was room for: nothing is left, as tokio's own reads conclude too. Saying so inside
        // of `try_io` keeps what became ready meanwhile, and spares a call that would find nothing.
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
    async fn whatever_the_places_the_stream_comes_in_order_and_ends() {
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
    async fn a_stream_that_is_no_socket_is_read_too() {
        let (mut near, mut far) = tokio::io::duplex(64);
        near.write_all(b"header and data").await.unwrap();
        assert_eq!(take(&mut far, [6, 100]).await, b"header");
        assert_eq!(take(&mut far, [0, 100]).await, b" and data");
        drop(near);
        assert_eq!(take(&mut far, [6, 100]).await, b"");
    }
}
