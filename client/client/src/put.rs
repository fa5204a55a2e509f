//! Storing a file: bytes of a source into objects, then one commit.
//!
//! Does: creates the file, writes the bytes ([`pipeline`]), commits or abandons it.
//! Does not: choose devices; the layout does.
//! Contract: `Ok` means that all bytes are durable and visible under the name. After an error
//! nothing is visible; the create is abandoned if the server can be reached, and otherwise expires
//! there.
//! Truth: docs/design/architecture.md §4 (files); t10-osd §1.10.

mod object_writer;
mod pipeline;
mod source;

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use bytes::BufMut;
use sealstone_mds_protocol::{
    Checksum, ChecksumKind, ErrorCode, FilePath, IntentId, Method, OpenHandle, Request, Response, Stat,
};
use tokio::io::AsyncRead;

use crate::budget::MemoryPermit;
use crate::open::{ClientCore, OpenObjects, is_not_found_or_stale};
use crate::tuning::SMALL_FILE_MAX;
use crate::{ClientError, Devices, Metadata};
use pipeline::PutPipeline;
pub(crate) use source::HOLE_MIN;
use source::{LocalFile, Source, StreamSource};

/// How to store a file.
pub struct PutOptions {
    /// The size, if known: a source of a different length is an error.
    pub size: Option<u64>,
    /// The expected size, for the choice of the layout.
    pub size_hint: Option<u64>,
    /// Permission bits.
    pub mode: u16,
    /// Whether it may replace an existing file.
    pub replace: bool,
    /// Security method for the objects; the server may require a stronger one.
    pub method: Method,
    /// Modification time to record, in nanoseconds since 1970; now if none.
    pub mtime_ns: Option<i64>,
    /// Checksum to compute and record.
    pub checksum: Option<ChecksumKind>,
    /// Called with the number of bytes that devices have acknowledged so far.
    pub progress: Option<Box<dyn FnMut(u64) + Send>>,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self {
            size: None,
            size_hint: None,
            mode: 0o644,
            replace: true,
            method: Method::AllData,
            mtime_ns: None,
            checksum: Some(ChecksumKind::Crc32c),
            progress: None,
        }
    }
}

impl core::fmt::Debug for PutOptions {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PutOptions")
            .field("size", &self.size)
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

pub(crate) async fn put<M: Metadata, D: Devices>(
    core: &Arc<ClientCore<M, D>>,
    path: &FilePath,
    source: impl AsyncRead + Unpin + Send,
    options: PutOptions,
) -> Result<Stat, ClientError> {
    store(core, path, &mut StreamSource(source), options, async |_| Ok(())).await
}

/// The result of storing a local file.
#[derive(Clone, Debug)]
pub struct StoredFile {
    /// Attributes of the stored file.
    pub stat: Stat,
    /// Whether the source changed meanwhile, so that the stored bytes may mix several states of it.
    pub source_changed: bool,
}

/// Stores an open local file with its modification time and holes. With `is_final` it is stored
/// even if it changes meanwhile.
pub(crate) async fn put_file<M: Metadata, D: Devices>(
    core: &Arc<ClientCore<M, D>>,
    path: &FilePath,
    file: std::fs::File,
    mut options: PutOptions,
    is_final: bool,
) -> Result<StoredFile, ClientError> {
    let metadata = file.metadata().map_err(ClientError::Source)?;
    if !metadata.is_file() {
        let stat = put(core, path, tokio::fs::File::from_std(file), options).await?;
        return Ok(StoredFile { stat, source_changed: false });
    }
    if !is_final {
        options.size = options.size.or(Some(metadata.len()));
    }
    options.size_hint = options.size_hint.or(Some(metadata.len()));
    options.mtime_ns = options.mtime_ns.or(Some(mtime_ns(&metadata)));
    let mut source = LocalFile::new(file, &metadata);
    let mut source_changed = false;
    let check = async |source: &mut LocalFile| {
        source_changed = source.has_changed().await.map_err(ClientError::Source)?;
        if source_changed && !is_final { Err(ClientError::SourceChanged) } else { Ok(()) }
    };
    match store(core, path, &mut source, options, check).await {
        Ok(stat) => Ok(StoredFile { stat, source_changed }),
        Err(ClientError::SourceLength { .. }) => Err(ClientError::SourceChanged),
        Err(error) => Err(error),
    }
}

/// Returns the modification time of a local file in nanoseconds since 1970, clamped to the range of
/// the type.
fn mtime_ns(metadata: &std::fs::Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

/// Stores all bytes of a source; `check` may fail it just before the commit.
async fn store<M: Metadata, D: Devices, S: Source>(
    core: &Arc<ClientCore<M, D>>,
    path: &FilePath,
    source: &mut S,
    mut options: PutOptions,
    check: impl AsyncFnOnce(&mut S) -> Result<(), ClientError>,
) -> Result<Stat, ClientError> {
    // A file with holes may begin with one, so its first bytes are read with the rest.
    let (head, lease) = match source.is_sparse() {
        true => (Vec::new(), core.budget.take(0).await),
        false => read_head(core, source).await?,
    };
    let ended = head.len() < SMALL_FILE_MAX && !source.is_sparse();
    let known = if ended { Some(head.len() as u64) } else { options.size.or(options.size_hint) };
    let create = async |size_hint| {
        let request = Request::Create {
            path: path.clone(),
            size_hint,
            mode: options.mode,
            replace: options.replace,
            method: options.method,
        };
        core.metadata.call(request).await
    };
    let created = match create(known).await {
        // Holes take no space: the file may be longer than the free space.
        Err(ClientError::Refused(failure)) if failure.code == ErrorCode::NoSpace && source.is_sparse() => {
            create(source.allocated()).await
        }
        outcome => outcome,
    };
    let Response::Created { file } = created? else {
        return Err(ClientError::OTHER_ANSWER);
    };
    let intent = file.intent;
    let stored = async {
        let handle = OpenHandle::Intent(intent);
        let objects =
            OpenObjects::new(core.clone(), handle, options.method, file.layout, &file.grants).await?;
        let announced = options.size;
        let mut pipeline = PutPipeline::new(Arc::new(objects), &mut options);
        pipeline.write_head(head, lease).await?;
        if !ended {
            pipeline.write_rest(source).await?;
        }
        let finished = pipeline.finish(announced).await?;
        check(source).await?;
        Ok(finished)
    }
    .await;
    match stored {
        Ok((size, checksum)) => commit(core, path, intent, size, options.mtime_ns, checksum).await,
        Err(error) => {
            abandon(core, intent).await;
            Err(error)
        }
    }
}

/// Reads [`SMALL_FILE_MAX`] bytes, or fewer up to the end.
async fn read_head<M: Metadata, D: Devices>(
    core: &ClientCore<M, D>,
    source: &mut impl Source,
) -> Result<(Vec<u8>, MemoryPermit), ClientError> {
    let lease = core.budget.take(SMALL_FILE_MAX).await;
    let mut head = core.buffers.take(SMALL_FILE_MAX);
    head.clear();
    head.reserve(SMALL_FILE_MAX);
    while head.len() < SMALL_FILE_MAX {
        let room = SMALL_FILE_MAX - head.len();
        if source.read_buf(&mut (&mut head).limit(room)).await.map_err(ClientError::Source)? == 0 {
            break;
        }
    }
    Ok((head, lease))
}

async fn commit<M: Metadata, D: Devices>(
    core: &ClientCore<M, D>,
    path: &FilePath,
    intent: IntentId,
    size: u64,
    mtime_ns: Option<i64>,
    checksum: Option<Checksum>,
) -> Result<Stat, ClientError> {
    match core.metadata.call(Request::Commit { intent, size, mtime_ns, checksum }).await {
        Ok(Response::Stat { stat }) => Ok(stat),
        Ok(_) => Err(ClientError::OTHER_ANSWER),
        // The commit may have been done. Only this client has the intent, so if the name leads to
        // the expected file, it was.
        Err(ClientError::OutcomeUnknown { request }) => {
            match core.metadata.call(Request::Commit { intent, size, mtime_ns, checksum }).await {
                Ok(Response::Stat { stat }) => Ok(stat),
                Ok(_) => Err(ClientError::OTHER_ANSWER),
                Err(error) if is_not_found_or_stale(&error) => {
                    match core.metadata.call(Request::Stat { path: path.clone() }).await {
                        Ok(Response::Stat { stat }) if stat.size == size && stat.checksum == checksum => {
                            Ok(stat)
                        }
                        _ => Err(ClientError::OutcomeUnknown { request }),
                    }
                }
                Err(_) => Err(ClientError::OutcomeUnknown { request }),
            }
        }
        Err(error) => {
            abandon(core, intent).await;
            Err(error)
        }
    }
}

/// Writes bytes durably into the objects of a create that the caller commits.
pub(crate) async fn write_bytes<M: Metadata, D: Devices>(
    objects: Arc<OpenObjects<M, D>>,
    bytes: &[u8],
) -> Result<(), ClientError> {
    let mut options = PutOptions { checksum: None, ..PutOptions::default() };
    let mut pipeline = PutPipeline::new(objects, &mut options);
    pipeline.write_rest(&mut StreamSource(bytes)).await?;
    pipeline.finish(Some(bytes.len() as u64)).await.map(drop)
}

/// Abandons a create; its objects are removed.
pub(crate) async fn abandon<M: Metadata, D: Devices>(core: &ClientCore<M, D>, intent: IntentId) {
    if let Err(error) = core.metadata.call(Request::Abandon { intent }).await {
        tracing::debug!(%error, "could not abandon a create; it expires at the server");
    }
}

/// Returns the result of a task; a panic in it is propagated.
pub(crate) fn joined<T>(
    done: Result<Result<T, ClientError>, tokio::task::JoinError>,
) -> Result<T, ClientError> {
    match done {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(ClientError::Protocol("the runtime is shutting down")),
        },
    }
}
