//! One connection with a session: many requests under way at once.
//!
//! Does: number requests, match answers, tell all waiters when it breaks. Does not: reconnect; `mds` does.
//! Contract: an answer or [`Broken`] for each request, the latter telling whether the request may have been sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sealstone_mds_protocol::{MessageType, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use zeroize::Zeroizing;

use super::dial::Stream;
use super::frames::{Frame, FrameReader, FrameWriter, Seal};
use crate::ClientError;

/// Requests waiting to be written; more wait for their turn.
const QUEUE: usize = 64;

/// The connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    /// May the server have seen the request?
    pub(crate) sent: bool,
}

type Waiters = Arc<Mutex<Option<BTreeMap<u64, oneshot::Sender<Response>>>>>;

/// The frame that announced the end.
pub(crate) type Last = Arc<Frame>;

struct Outgoing {
    kind: MessageType,
    body: Zeroizing<Vec<u8>>,
}

/// A connection; dropping it closes it.
pub(crate) struct Link {
    outgoing: mpsc::Sender<Outgoing>,
    waiters: Waiters,
    next_id: Mutex<u64>,
    /// How it ended; the sender goes when it has.
    end: watch::Receiver<Option<Last>>,
    tasks: [AbortHandle; 2],
}

impl Link {
    /// Takes over a stream on which a session was begun.
    pub(crate) fn start(stream: Box<dyn Stream>, seal: Option<Seal>) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let (outgoing, queue) = mpsc::channel(QUEUE);
        let waiters: Waiters = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let (ended, end) = watch::channel(None);
        let (sealer, opener) = match seal {
            None => (None, None),
            Some(Seal { records, environment }) => {
                (Some((records.sealer, environment)), Some(records.opener))
            }
        };
        let reading = read_all(FrameReader::new(reader, opener), waiters.clone());
        let reading = tokio::spawn(async move {
            let last = reading.await;
            ended.send_replace(last);
        });
        let writing = tokio::spawn(write_all(FrameWriter::new(writer, sealer), queue, waiters.clone()));
        let tasks = [reading.abort_handle(), writing.abort_handle()];
        Self { outgoing, waiters, next_id: Mutex::new(0), end, tasks }
    }

    /// Is it known to be gone?
    pub(crate) fn is_broken(&self) -> bool {
        lock(&self.waiters).is_none()
    }

    /// Sends one request and waits for its answer.
    pub(crate) async fn call(&self, request: &Request) -> Result<Result<Response, Broken>, ClientError> {
        let id = {
            let mut next = self.next_id.lock().unwrap_or_else(PoisonError::into_inner);
            *next += 1;
            *next
        };
        let body = Zeroizing::new(request.encode(id)?);
        let (answer, answered) = oneshot::channel();
        match lock(&self.waiters).as_mut() {
            Some(waiters) => waiters.insert(id, answer),
            None => return Ok(Err(Broken { sent: false })),
        };
        // Whoever stops waiting (a timeout) takes his entry with him.
        let _entry = Entry { id, waiters: &self.waiters };
        if self.outgoing.send(Outgoing { kind: MessageType::Request, body }).await.is_err() {
            return Ok(Err(Broken { sent: false }));
        }
        Ok(answered.await.map_err(|_| Broken { sent: true }))
    }

    /// Sends a message that has no request id, waits for nothing.
    pub(crate) async fn send(&self, kind: MessageType, body: Vec<u8>) {
        let _ = self.outgoing.send(Outgoing { kind, body: Zeroizing::new(body) }).await;
    }

    /// Waits until the other end has closed, or it broke; gives the frame that announced the end, if one did.
    pub(crate) async fn closed(&self) -> Option<Last> {
        let mut end = self.end.clone();
        // The reading task sends once, or goes without when it is aborted.
        while end.changed().await.is_ok() {}
        end.borrow().clone()
    }
}

impl Drop for Link {
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

fn lock(waiters: &Waiters) -> std::sync::MutexGuard<'_, Option<BTreeMap<u64, oneshot::Sender<Response>>>> {
    waiters.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Hands out answers until the connection ends; gives the frame that ended it.
async fn read_all(mut reader: FrameReader<impl AsyncRead + Unpin>, waiters: Waiters) -> Option<Last> {
    let mut last = None;
    loop {
        match reader.read().await {
            Ok(Some(frame)) => match answer(&frame) {
                Some((id, response)) => {
                    let waiter = lock(&waiters).as_mut().and_then(|waiters| waiters.remove(&id));
                    // Nobody waits any longer: the answer came after its timeout.
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
                tracing::warn!(%error, "the metadata server sent an answer that cannot be read");
                None
            }
        },
        MessageType::LogoutOk => None,
        kind => {
            tracing::debug!(kind = kind.name(), "the metadata server ends the connection");
            None
        }
    }
}
