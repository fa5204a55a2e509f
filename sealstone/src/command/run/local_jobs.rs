//! Jobs of stored functions that the client runs in its own engine, where a device cannot.
//!
//! Does: fetch code and objects of a job, and run it with the arguments that the device received.
//! Does not: run native code; only WebAssembly modules, whose results do not depend on the machine.
//! Contract: the function sees the object of the job, not the file: bytes, length and arguments are
//! those of the device, and so is the result.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use sealstone_client::functions::{CallPart, CallReply, FunctionRun};
use sealstone_client::{Client, Devices, FilePath, GetOptions, Metadata};
use sealstone_function_service::LocalFileObject;
use sealstone_osd::function::EngineType;
use sealstone_osd_device::GrantedObject;

use crate::command::functions::at_function;
use crate::command::local_engine::{LocalCall, LocalEngine, READS};
use crate::failure::{Failure, Outcome};

/// Maximum number of jobs of a command that wait for the client.
pub(super) const LOCAL_JOBS_MAX: usize = 4096;
/// Bytes of an object that are fetched at once.
const FETCH_BYTES: u64 = 4 << 20;

/// Returns the engine for a stored function; `None` unless it is a WebAssembly module.
pub(super) async fn engine_of<M: Metadata, D: Devices>(
    client: &Client<M, D>,
    call: &FunctionRun,
    path: &FilePath,
    engines: Option<&Path>,
) -> Outcome<Option<LocalEngine>> {
    let found = client.function(path, call.security).await.map_err(|error| at_function(error, path))?;
    if found.description.engine != Some(EngineType::Wasm) {
        return Ok(None);
    }
    let code = fetch_code(client, path).await?;
    let engine = LocalEngine::start(EngineType::Wasm, engines, code, call.timeout_ms)?;
    if found.digest != Some(engine.digest) {
        return Err(Failure::operation("its code differs from its digest").at(path));
    }
    Ok(Some(engine))
}

/// Fetches the code of a function, which needs the right to read it.
pub(super) async fn fetch_code<M: Metadata, D: Devices>(
    client: &Client<M, D>,
    path: &FilePath,
) -> Outcome<Vec<u8>> {
    let mut code = Vec::new();
    let got = client.get(path, &mut code, GetOptions::default()).await;
    got.map_err(|error| Failure::from(error).at(path))?;
    Ok(code)
}

/// Runs the job of a reply, and replaces its outcome and result.
pub(super) async fn run_job<M: Metadata, D: Devices>(
    client: &Client<M, D>,
    call: &FunctionRun,
    engine: &Arc<LocalEngine>,
    reply: &mut CallReply,
) -> Outcome {
    let mut objects: Vec<Arc<dyn GrantedObject>> = Vec::with_capacity(reply.parts.len());
    for (number, part) in (0..).zip(&reply.parts) {
        let file = fetch_object(client, call, part).await?;
        objects.push(Arc::new(LocalFileObject::new(file, number, READS)));
    }
    let run = LocalCall {
        objects,
        method: call.method.clone(),
        arguments: reply.arguments.clone(),
        secret_arguments: call.secret_arguments,
        commit_on_success: false,
        timeout_ms: call.timeout_ms,
    };
    let engine = Arc::clone(engine);
    let work = tokio::task::spawn_blocking(move || engine.run(run));
    let end = work.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    // It is no job of a device.
    (reply.outcome, reply.result) = (Ok(end.header), end.result);
    (reply.handle, reply.device) = (None, String::new());
    Ok(())
}

/// Returns ranges of a file that are the bytes of an object of it, in their order.
fn ranges(part: &CallPart) -> impl Iterator<Item = std::ops::Range<u64>> {
    let unit = part.unit.map_or(u64::MAX, u64::from);
    let (width, size) = (part.width as u64, part.size);
    let first = unit.saturating_mul(part.index as u64);
    let step = unit.saturating_mul(width);
    let starts = std::iter::successors(Some(first), move |start| start.checked_add(step));
    starts
        .take_while(move |start| *start < size)
        .map(move |start| start..size.min(start.saturating_add(unit)))
}

/// Copies the bytes of an object to a temporary file.
async fn fetch_object<M: Metadata, D: Devices>(
    client: &Client<M, D>,
    call: &FunctionRun,
    part: &CallPart,
) -> Outcome<File> {
    let path = call.files.get(part.file).map(|file| file.path.clone()).unwrap_or_default();
    let at = |error| Failure::from(error).at(sealstone_mds_protocol::shown(&path));
    let stored = client.open(&path, call.security).await.map_err(at)?;
    let mut file = tempfile::tempfile()?;
    for range in ranges(part) {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + FETCH_BYTES);
            let bytes = stored.read(start..end).await.map_err(at)?;
            if bytes.len() as u64 != end - start {
                return Err(Failure::operation("the file became shorter meanwhile")
                    .at(sealstone_mds_protocol::shown(&path)));
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
