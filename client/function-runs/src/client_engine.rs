//! Runs of stored functions in an engine of this machine, on data that the client reads.
//!
//! Used for jobs that a device cannot run, for shipped functions whose code is not part of this
//! program, and for second functions.
//! Contract: code and sandbox are those of the devices. The function receives the bytes of the
//! device's object, so the result is the same.

use std::fs::File;
use std::io::Write as _;
use std::num::NonZero;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use sealstone_client::functions::{
    CallPart, CallReply, FUNCTION_CODE_MAX, FunctionDetails, FunctionRun, RESULTS_BYTES_MAX,
};
use sealstone_client::{Client, Devices, FilePath, GetOptions, Metadata, OpenFile};
use sealstone_failure::{Failure, Outcome};
use sealstone_function_service::LocalFileObject;
use sealstone_mds_protocol::shown;
use sealstone_osd::function::{EngineType, ExitReason};
use sealstone_osd_device::GrantedObject;
use zeroize::Zeroizing;

use crate::library::at_function;
use crate::local_engine::{LocalCall, LocalEngine, LocalLimits, LocalRunEnd, READS, failure_of};
use crate::stored_object::StoredFileObject;

/// Bytes of an object that are fetched at once.
const FETCH_BYTES: u64 = 4 << 20;
/// Maximum bytes of an object that is copied for a run.
const OBJECT_BYTES_MAX: u64 = 4 << 30;
/// Maximum bytes of the result of a run: those of a call. Devices return less.
const OUTPUT_BYTES_MAX: u64 = RESULTS_BYTES_MAX as u64;

/// Where a run was, in its failure.
pub(crate) const AT_CLIENT: &str = "at the client";

/// A stored function, and the engine of this machine that runs it.
pub(crate) struct ClientEngine(Arc<LocalEngine>);

impl ClientEngine {
    /// Fetches the code of a function, which needs the right to read it, and starts its engine.
    pub(crate) async fn start<M: Metadata, D: Devices>(
        client: &Client<M, D>,
        call: &FunctionRun,
        path: &FilePath,
        engines: Option<&Path>,
    ) -> Outcome<Self> {
        let found = find_function(client, call, path).await?;
        let without = || Failure::operation("its description names no engine").at(path);
        let engine = found.description.engine.ok_or_else(without)?;
        Self::with_engine(client, call, (path, &found, engine), engines).await
    }

    /// Starts the engine of a WebAssembly module, whose results do not depend on the machine;
    /// `None` for other code.
    pub(crate) async fn start_module<M: Metadata, D: Devices>(
        client: &Client<M, D>,
        call: &FunctionRun,
        path: &FilePath,
        engines: Option<&Path>,
    ) -> Outcome<Option<Self>> {
        let found = find_function(client, call, path).await?;
        if found.description.engine != Some(EngineType::Wasm) {
            return Ok(None);
        }
        Self::with_engine(client, call, (path, &found, EngineType::Wasm), engines).await.map(Some)
    }

    async fn with_engine<M: Metadata, D: Devices>(
        client: &Client<M, D>,
        call: &FunctionRun,
        (path, found, engine): (&FilePath, &FunctionDetails, EngineType),
        engines: Option<&Path>,
    ) -> Outcome<Self> {
        if found.stat.size > FUNCTION_CODE_MAX as u64 {
            return Err(Failure::operation("its code has more than 64 MiB").at(path));
        }
        let options = GetOptions { method: call.security, ..GetOptions::default() };
        let mut code = Vec::new();
        client.get(path, &mut code, options).await.map_err(|error| Failure::from(error).at(path))?;
        // Only the timeout limits the processor time, which is that of the user's machine.
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let cpu_s = u64::from(call.timeout_ms).div_ceil(1000) * cores as u64;
        let limits = LocalLimits { timeout_ms: call.timeout_ms, cpu_s, output: OUTPUT_BYTES_MAX };
        let engine = LocalEngine::start(engine, engines, code, limits)?;
        if found.digest != Some(engine.digest) {
            return Err(Failure::operation("its code differs from its digest").at(path));
        }
        Ok(Self(Arc::new(engine)))
    }

    /// Runs the job of a reply, and replaces its outcome and result; returns its log.
    pub(crate) async fn run_job<M: Metadata, D: Devices>(
        &self,
        client: &Client<M, D>,
        call: &FunctionRun,
        reply: &mut CallReply,
    ) -> Outcome<String> {
        let mut files = Vec::with_capacity(reply.parts.len());
        for part in &reply.parts {
            files.push(fetch_object(client, call, part).await?);
        }
        let end = self.run(call, reply.arguments.clone(), files).await?;
        // It is no job of a device.
        (reply.outcome, reply.result) = (Ok(end.header), end.result);
        (reply.handle, reply.device) = (None, String::new());
        Ok(end.log)
    }

    /// Runs the function on a stored file; returns its result.
    pub(crate) async fn run_on_file<M: Metadata, D: Devices>(
        &self,
        client: &Client<M, D>,
        call: &FunctionRun,
        path: &FilePath,
    ) -> Outcome<Vec<u8>> {
        let at = |failure: Failure| failure.at(path);
        let stored = client.open(path, call.security).await.map_err(|error| at(error.into()))?;
        // Only the bytes that the function reads are fetched.
        let object = Arc::new(StoredFileObject::new(stored));
        let arguments = Zeroizing::new(call.arguments.bytes().to_vec());
        let end = self.run_on(call, arguments, vec![object]).await.map_err(at)?;
        match failure_of(AT_CLIENT, &end.header) {
            None => Ok(end.result),
            Some(failure) if end.log.is_empty() || end.header.exit == ExitReason::WallTime => {
                Err(at(failure))
            }
            Some(failure) => Err(at(failure.hint(end.log.trim_end().replace('\n', "; ")))),
        }
    }

    /// Runs the function on local files.
    pub(crate) async fn run(
        &self,
        call: &FunctionRun,
        arguments: Zeroizing<Vec<u8>>,
        files: Vec<File>,
    ) -> Outcome<LocalRunEnd> {
        let object = |(number, file)| -> Arc<dyn GrantedObject> {
            Arc::new(LocalFileObject::new(file, number, READS))
        };
        self.run_on(call, arguments, (0..).zip(files).map(object).collect()).await
    }

    async fn run_on(
        &self,
        call: &FunctionRun,
        arguments: Zeroizing<Vec<u8>>,
        objects: Vec<Arc<dyn GrantedObject>>,
    ) -> Outcome<LocalRunEnd> {
        let local = LocalCall {
            objects,
            method: call.method.clone(),
            arguments,
            secret_arguments: call.secret_arguments,
            commit_on_success: false,
            timeout_ms: call.timeout_ms,
        };
        let engine = Arc::clone(&self.0);
        let work = tokio::task::spawn_blocking(move || engine.run(local));
        work.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }
}

async fn find_function<M: Metadata, D: Devices>(
    client: &Client<M, D>,
    call: &FunctionRun,
    path: &FilePath,
) -> Outcome<FunctionDetails> {
    client.function(path, call.security).await.map_err(|error| at_function(error, path))
}

/// Copies the bytes of an object of a job to a temporary file.
async fn fetch_object<M: Metadata, D: Devices>(
    client: &Client<M, D>,
    call: &FunctionRun,
    part: &CallPart,
) -> Outcome<File> {
    let path = call.files.get(part.file).map(|file| file.path.clone()).unwrap_or_default();
    let at = |failure: Failure| failure.at(shown(&path));
    let stored = client.open(&path, call.security).await.map_err(|error| at(error.into()))?;
    fetch_ranges(&stored, ranges(part)).await.map_err(at)
}

/// Returns ranges of a file that are the bytes of an object of it, in their order.
fn ranges(part: &CallPart) -> impl Iterator<Item = Range<u64>> + Clone {
    let unit = part.unit.map_or(u64::MAX, u64::from);
    let (width, size) = (part.width as u64, part.size);
    let first = unit.saturating_mul(part.index as u64);
    let step = unit.saturating_mul(width);
    let starts = std::iter::successors(Some(first), move |start| start.checked_add(step));
    starts
        .take_while(move |start| *start < size)
        .map(move |start| start..size.min(start.saturating_add(unit)))
}

/// Copies ranges of a file to a temporary file.
async fn fetch_ranges<M: Metadata, D: Devices>(
    stored: &OpenFile<M, D>,
    ranges: impl Iterator<Item = Range<u64>> + Clone,
) -> Outcome<File> {
    let length: u64 = ranges.clone().map(|range| range.end - range.start).sum();
    if length > OBJECT_BYTES_MAX {
        return Err(Failure::operation("the client runs functions on at most 4 GiB of a file"));
    }
    let mut file = tempfile::tempfile()?;
    for range in ranges {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + FETCH_BYTES);
            let bytes = stored.read(start..end).await.map_err(Failure::from)?;
            if bytes.len() as u64 != end - start {
                return Err(Failure::operation("the file became shorter meanwhile"));
            }
            file.write_all(&bytes)?;
            start = end;
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(unit: Option<u32>, width: usize, index: usize, size: u64) -> CallPart {
        CallPart { file: 0, index, unit, width, size }
    }

    #[test]
    fn ranges_are_bytes_of_the_object() {
        let all = |part: CallPart| -> Vec<(u64, u64)> {
            ranges(&part).map(|range| (range.start, range.end)).collect()
        };
        assert_eq!(all(part(None, 1, 0, 10)), [(0, 10)]);
        assert_eq!(all(part(None, 1, 0, 0)), []);
        assert_eq!(all(part(Some(4), 2, 0, 11)), [(0, 4), (8, 11)]);
        assert_eq!(all(part(Some(4), 2, 1, 11)), [(4, 8)]);
        assert_eq!(all(part(Some(4), 3, 2, 8)), []);
    }
}
