//! Runs of shipped functions at the client, on data that it reads.
//!
//! Used for empty files, for files that a function can only read in order, for results that are too
//! long for the device, and for devices without an engine. The code is that of the device, so the
//! result is the same.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sealstone_client::{Client, Devices, FilePath, Metadata, Method, OpenFile};
use sealstone_failure::{Failure, Outcome};
use sealstone_functions::local::{LocalObject, LocalRun};
use sealstone_functions::{JobPart, OutputLine, PartObject, ResultLine, ShippedFunction, reduce_parts};
use tokio::runtime::Handle;

use crate::file_output::SpooledResult;

/// Maximum bytes of a result.
const RESULT_BYTES_MAX: usize = 64 << 20;

/// A file that the client reads.
struct StoredObject<M, D> {
    file: OpenFile<M, D>,
    runtime: Handle,
}

impl<M: Metadata, D: Devices> LocalObject for StoredObject<M, D> {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.runtime.block_on(self.file.read_at(offset, buffer)).map_err(io::Error::other)
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn length(&mut self) -> io::Result<u64> {
        Ok(self.file.stat().size)
    }
}

/// An object without bytes.
struct EmptyObject;

impl LocalObject for EmptyObject {
    fn read_at(&mut self, _: u64, _: &mut [u8]) -> io::Result<usize> {
        Ok(0)
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn length(&mut self) -> io::Result<u64> {
        Ok(0)
    }
}

/// A result of at most [`RESULT_BYTES_MAX`].
struct BoundedResult(Vec<u8>);

impl Write for BoundedResult {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > RESULT_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the result has more than 64 MiB"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sets the flag of a run when its future is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does work on a thread that may wait. The flag is set if the caller stops waiting for it.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce(Arc<AtomicBool>) -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    let cancelled = Arc::<AtomicBool>::default();
    let _cancel = CancelOnDrop(Arc::clone(&cancelled));
    let work = tokio::task::spawn_blocking(move || work(cancelled));
    work.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

fn run_on(
    function: &'static ShippedFunction,
    arguments: &[u8],
    object: Box<dyn LocalObject>,
    cancelled: Arc<AtomicBool>,
) -> Outcome<Vec<ResultLine>> {
    let mut result = BoundedResult(Vec::new());
    let run = LocalRun { objects: vec![object], result: &mut result, cancelled };
    run.run(function, arguments).map_err(Failure::operation)?;
    run_results(function, arguments, &result.0)
}

/// Reduces the result of a run on a whole file.
pub(crate) fn run_results(
    function: &'static ShippedFunction,
    arguments: &[u8],
    result: &[u8],
) -> Outcome<Vec<ResultLine>> {
    let objects = [PartObject { file: 0, geometry: None }];
    let part = JobPart { arguments, result, objects: &objects };
    let reduced = reduce_parts(function, &[part]).map_err(Failure::operation)?;
    Ok(reduced.into_iter().flat_map(|file| file.lines).collect())
}

/// Runs a function on an empty file.
pub(crate) fn run_on_empty(function: &'static ShippedFunction, arguments: &[u8]) -> Outcome<Vec<ResultLine>> {
    run_on(function, arguments, Box::new(EmptyObject), Arc::default())
}

/// Runs a function that makes a new file of a stored one; returns the bytes in a temporary file.
pub(crate) async fn run_to_file<M: Metadata, D: Devices>(
    client: &Client<M, D>,
    method: Method,
    function: &'static ShippedFunction,
    arguments: zeroize::Zeroizing<Vec<u8>>,
    path: &FilePath,
) -> Outcome<(File, OutputLine)> {
    let file = client.open(path, method).await.map_err(|error| Failure::from(error).at(path))?;
    let runtime = Handle::current();
    let done = run_blocking(move |cancelled| {
        let mut result = SpooledResult::new()?;
        let objects: Vec<Box<dyn LocalObject>> = vec![Box::new(StoredObject { file, runtime })];
        let run = LocalRun { objects, result: &mut result, cancelled };
        run.run(function, &arguments).map_err(Failure::operation)?;
        result.finish()
    });
    done.await.map_err(|failure| failure.at(path))
}

/// Runs a function on a stored file that the client reads.
pub(crate) async fn run_on_stored<M: Metadata, D: Devices>(
    client: &Client<M, D>,
    method: Method,
    function: &'static ShippedFunction,
    arguments: zeroize::Zeroizing<Vec<u8>>,
    path: &FilePath,
) -> Outcome<Vec<ResultLine>> {
    let file = client.open(path, method).await.map_err(|error| Failure::from(error).at(path))?;
    let runtime = Handle::current();
    let done = run_blocking(move |cancelled| {
        run_on(function, &arguments, Box::new(StoredObject { file, runtime }), cancelled)
    });
    done.await.map_err(|failure| failure.at(path))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sealstone_functions::find_function;

    use super::*;

    #[test]
    fn empty_file_has_digest_and_counts() {
        let lines = run_on_empty(find_function("sha256").unwrap(), b"").unwrap();
        let ResultLine::Digest(line) = &lines[0] else { panic!("{lines:?}") };
        assert!(line.digest.starts_with("e3b0c44298fc1c14"), "{}", line.digest);
        let lines = run_on_empty(find_function("count").unwrap(), b"by=lines\0").unwrap();
        let ResultLine::Count(line) = &lines[0] else { panic!("{lines:?}") };
        assert_eq!(line.lines, Some(0));
        assert_eq!(run_on_empty(find_function("grep").unwrap(), b"pattern=a\0").unwrap(), []);
    }

    #[tokio::test]
    async fn dropped_run_is_cancelled() {
        let (ended, end) = std::sync::mpsc::channel();
        let run = run_blocking(move |cancelled| {
            while !cancelled.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            ended.send(()).map_err(Failure::operation)
        });
        assert!(tokio::time::timeout(Duration::from_millis(20), run).await.is_err());
        end.recv_timeout(Duration::from_secs(30)).expect("the thread ended");
    }
}
