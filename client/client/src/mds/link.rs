//! One connection with a session, with many requests in flight.
//!
//! Does: numbers requests, matches answers, wakes all waiters when it breaks.
//! Does not: reconnect; `mds` does.
//! Contract: each request gets an answer or [`BrokenLink`], which says whether the request may have
//! been sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use sealstone_mds_protocol::{MessageType, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use zeroize::Zeroizing;

use super::dial::ByteStream;
use super::frames::{Frame, FrameReader, FrameWriter, RecordSeal};
use crate::ClientError;

/// Maximum requests that wait to be written; more wait for space.
const QUEUE: usize = 64;

/// The connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BrokenLink {
    /// Whether the server may have received the request.
    pub(crate) sent: bool,
}

type Waiters = Arc<Mutex<Option<BTreeMap<u64, oneshot::Sender<Response>>>>>;

/// The frame that announced the end of the connection.
pub(crate) type LastFrame = Arc<Frame>;

struct Outgoing {
    kind: MessageType,
    body: Zeroizing<Vec<u8>>,
}

/// A connection; the drop closes it.
pub(crate) struct SessionLink {
    outgoing: mpsc::Sender<Outgoing>,
    waiters: Waiters,
    next_id: Mutex<u64>,
    /// How the connection ended; the sender is dropped then.
    end: watch::Receiver<Option<LastFrame>>,
    tasks: [AbortHandle; 2],
}

impl SessionLink {
    /// Starts a connection on a stream with a session.
    pub(crate) fn start(stream: Box<dyn ByteStream>, seal: Option<RecordSeal>) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let (outgoing, queue) = mpsc::channel(QUEUE);
        let waiters: Waiters = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let (ended, end) = watch::channel(None);
        let (sealer, opener) = match seal {
            None => (None, None),
            Some(RecordSeal { records, environment }) => {
                (Some((records.sealer, environment)), Some(records.opener))
            }
        };
        let reading = read_all(FrameReader::new(reader, opener), waiters.clone());
        let writing = tokio::spawn(write_all(FrameWriter::new(writer, sealer), queue, waiters.clone()));
        let writing = writing.abort_handle();
        let writer = writing.clone();
        let reading = tokio::spawn(async move {
            let last = reading.await;
            // Closes the stream, for which the server waits.
            writer.abort();
            ended.send_replace(last);
        });
        let tasks = [reading.abort_handle(), writing];
        Self { outgoing, waiters, next_id: Mutex::new(0), end, tasks }
    }

    /// Whether the connection is known to be broken.
    pub(crate) fn is_broken(&self) -> bool {
        lock(&self.waiters).is_none()
    }

    /// Sends one request and waits for its answer.
    pub(crate) async fn call(&self, request: &Request) -> Result<Result<Response, BrokenLink>, ClientError> {
        let id = {
            let mut next = self.next_id.lock();
            *next += 1;
            *next
        };
        let body = Zeroizing::new(request.encode(id)?);
        let (answer, answered) = oneshot::channel();
        match lock(&self.waiters).as_mut() {
            Some(waiters) => waiters.insert(id, answer),
            None => return Ok(Err(BrokenLink { sent: false })),
        };
        // A caller that stops waiting, as after a timeout, removes its entry.
        let _entry = Entry { id, waiters: &self.waiters };
        if self.outgoing.send(Outgoing { kind: MessageType::Request, body }).await.is_err() {
            return Ok(Err(BrokenLink { sent: false }));
        }
        Ok(answered.await.map_err(|_| BrokenLink { sent: true }))
    }

    /// Sends a message without a request id; does not wait for an answer.
    pub(crate) async fn send(&self, kind: MessageType, body: Vec<u8>) {
        let _ = self.outgoing.send(Outgoing { kind, body: Zeroizing::new(body) }).await;
    }

    /// Waits until the connection has ended; returns the frame that announced the end, if there was
    /// one.
    pub(crate) async fn closed(&self) -> Option<LastFrame> {
        let mut end = self.end.clone();
        // The reading task sends once, or never if it is aborted.
        while end.changed().await.is_ok() {}
        end.borrow().clone()
    }
}

impl Drop for SessionLink {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

struct Entry<'a> {
    id: u64,
    waiters: &'a Waiters,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        if let Some(waiters) = lock(self.waiters).as_mut() {
            waiters.remove(&self.id);
        }
    }
}

fn lock(waiters: &Waiters) -> MutexGuard<'_, Option<BTreeMap<u64, oneshot::Sender<Response>>>> {
    waiters.lock()
}

async fn write_all(
    mut writer: FrameWriter<impl AsyncWrite + Unpin>,
    mut queue: mpsc::Receiver<Outgoing>,
    waiters: Waiters,
) {
    while !lock(&waiters).is_none() {
        let Some(Outgoing { kind, body }) = queue.recv().await else { break };
        if let Err(error) = writer.write(kind, &body).await {
            tracing::debug!(%error, "the connection to the metadata server broke");
            break;
        }
    }
    lock(&waiters).take();
}

/// Delivers answers until the connection ends; returns the frame that ended it.
async fn read_all(mut reader: FrameReader<impl AsyncRead + Unpin>, waiters: Waiters) -> Option<LastFrame> {
    let mut last = None;
    loop {
        match reader.read().await {
            Ok(Some(frame)) => match answer(&frame) {
                Some((id, response)) => {
                    let waiter = lock(&waiters).as_mut().and_then(|waiters| waiters.remove(&id));
                    // The caller has stopped waiting: the answer is later than its timeout.
                    if let Some(waiter) = waiter {
                        drop(waiter.send(response));
                    }
                }
                None => {
                    last = Some(Arc::new(frame));
                    break;
                }
            },
            Ok(None) => break,
            Err(error) => {
                tracing::debug!(%error, "the connection to the metadata server broke");
                break;
            }
        }
    }
    lock(&waiters).take();
    last
}

fn answer(frame: &Frame) -> Option<(u64, Response)> {
    match frame.kind {
        MessageType::Response => match Response::decode(&frame.body) {
            Ok(answer) => Some(answer),
            Err((_, error)) => {
                tracing::warn!(%error, "malformed answer from the metadata server; closing the connection");
                None
            }
        },
        MessageType::LogoutOk => None,
        kind => {
            tracing::debug!(kind = kind.name(), "the metadata server closed the connection");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connection_ended_by_server_is_closed() {
        let (stream, mut server) = tokio::io::duplex(4096);
        let link = SessionLink::start(Box::new(stream), None);
        server.shutdown().await.unwrap();
        let closed = timeout(Duration::from_secs(60), server.read_u8()).await.expect("closed");
        assert_eq!(closed.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
        assert!(link.is_broken());
    }
}
