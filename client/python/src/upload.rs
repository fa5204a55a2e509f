//! A file that is stored while it is written, and a copy of a stored file.
//!
//! Does: passes written bytes to a put through a pipe of limited size.
//! Contract: the file becomes visible as a whole by `finish`. An upload that is aborted or dropped
//! before has stored nothing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use sealstone_client::{Client, ClientError, GetOptions, PutOptions, Stat};
use tokio::io::{AsyncRead, AsyncWriteExt as _, DuplexStream, ReadBuf};
use tokio::task::{AbortHandle, JoinHandle};

use crate::operation::{NativeOperation, OperationContext};
use crate::results::stat_tuple;
use crate::runtime::runtime;

/// Maximum bytes between the writer and the put.
const PIPE_BYTES: usize = 1 << 20;

/// The end of the pipe from which a put reads. An end of the bytes that was not announced is an
/// error, so that a part of a file is never stored as the file.
struct PipeReader {
    pipe: DuplexStream,
    complete: Arc<AtomicBool>,
}

impl AsyncRead for PipeReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.pipe).poll_read(context, buffer))?;
        let ended = buffer.filled().len() == before && buffer.remaining() > 0;
        if ended && !self.complete.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "the writer ended before the file was complete",
            )));
        }
        Poll::Ready(Ok(()))
    }
}

/// The writer of an upload.
struct UploadWriter {
    pipe: DuplexStream,
    complete: Arc<AtomicBool>,
    put: JoinHandle<Result<Stat, ClientError>>,
}

impl UploadWriter {
    /// Waits for the result of the put.
    async fn result(self) -> Result<Stat, ClientError> {
        let Self { pipe, put, .. } = self;
        drop(pipe);
        put.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn ended() -> ClientError {
    ClientError::Source(io::Error::new(io::ErrorKind::BrokenPipe, "the upload has ended"))
}

/// A file that is being stored.
#[pyclass(frozen, module = "sealstone._native")]
pub(crate) struct NativeUpload {
    path: Vec<u8>,
    /// None after the end.
    writer: Arc<tokio::sync::Mutex<Option<UploadWriter>>>,
    put: AbortHandle,
    context: OperationContext,
}

impl NativeUpload {
    pub(crate) fn start(
        client: Client,
        path: &[u8],
        options: PutOptions,
        context: OperationContext,
    ) -> PyResult<Self> {
        context.owner.check()?;
        let (pipe, reader) = tokio::io::duplex(PIPE_BYTES);
        let complete = Arc::new(AtomicBool::new(false));
        let source = PipeReader { pipe: reader, complete: Arc::clone(&complete) };
        let target = path.to_vec();
        let put = runtime()?.spawn(async move { client.put(target, source, options).await });
        let abort = put.abort_handle();
        let writer = Arc::new(tokio::sync::Mutex::new(Some(UploadWriter { pipe, complete, put })));
        Ok(Self { path: path.to_vec(), writer, put: abort, context })
    }
}

#[pymethods]
impl NativeUpload {
    /// Writes the next bytes; waits while the pipe is full.
    fn write(&self, data: PyBackedBytes) -> PyResult<NativeOperation> {
        let writer = Arc::clone(&self.writer);
        let work = async move {
            let mut slot = writer.lock().await;
            // A write that is dropped, as by Ctrl-C, may have sent a part. It drops the upload.
            let mut open = slot.take().ok_or_else(ended)?;
            if open.pipe.write_all(&data).await.is_ok() {
                *slot = Some(open);
                return Ok(());
            }
            // The put has failed, and its error is the cause.
            open.result().await.and_then(|_| Err(ended()))
        };
        self.context.operation(Some(&self.path), work, |()| ())
    }

    /// Stores the file; returns its attributes.
    fn finish(&self) -> PyResult<NativeOperation> {
        let writer = Arc::clone(&self.writer);
        let work = async move {
            let open = writer.lock().await.take().ok_or_else(ended)?;
            open.complete.store(true, Ordering::Release);
            open.result().await
        };
        self.context.operation(Some(&self.path), work, |stat| stat_tuple(&stat))
    }

    /// Ends the upload, so that nothing is stored.
    fn abort(&self) -> PyResult<()> {
        self.context.owner.check()?;
        self.put.abort();
        Ok(())
    }
}

impl Drop for NativeUpload {
    fn drop(&mut self) {
        if !self.context.owner.is_current() {
            // Its tasks belong to the runtime of the parent.
            core::mem::forget(Arc::clone(&self.writer));
        }
    }
}

/// Copies a file through this client. The copy has the permission bits of the source.
pub(crate) async fn copy(
    client: &Client,
    from: &[u8],
    to: &[u8],
    replace: bool,
) -> Result<Stat, ClientError> {
    let source = client.stat(from).await?;
    let (sink, reader) = tokio::io::duplex(PIPE_BYTES);
    let complete = Arc::new(AtomicBool::new(false));
    let pipe = PipeReader { pipe: reader, complete: Arc::clone(&complete) };
    let options =
        PutOptions { size_hint: Some(source.size), mode: source.mode, replace, ..PutOptions::default() };
    let read = async {
        // Moved, so that its drop ends the pipe.
        let mut sink = sink;
        let outcome = client.get(from, &mut sink, GetOptions::default()).await;
        complete.store(outcome.is_ok(), Ordering::Release);
        outcome
    };
    let write = client.put(to, pipe, options);
    let (read, written) = tokio::join!(read, write);
    match (read, written) {
        // The put has failed first, and closed the pipe.
        (Err(ClientError::Sink(_)), Err(error)) | (Err(error), _) | (Ok(_), Err(error)) => Err(error),
        (Ok(_), Ok(stat)) => Ok(stat),
    }
}
