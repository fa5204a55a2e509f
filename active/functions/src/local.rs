//! Runs shipped functions on local files: for tests without a device, and when no device can.
//!
//! The function is the same code as on the device, so the result is the same.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sealstone_function_host::{FunctionCall, FunctionErrno, FunctionFailure, FunctionHost, LogLevel};

use crate::ShippedFunction;

/// An object that a local run reads or writes.
pub trait LocalObject {
    /// Reads bytes at an offset; returns 0 at the end.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes all bytes at an offset.
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Returns the length in bytes.
    fn length(&mut self) -> io::Result<u64>;
}

impl LocalObject for File {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buffer, offset)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, offset)
    }

    fn length(&mut self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

/// Summary of a local run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalSummary {
    /// Bytes read from objects.
    pub bytes_in: u64,
    /// Bytes written to objects and to the result.
    pub bytes_out: u64,
    /// Lines that the function logged, the oldest first, up to the limit of a job's log.
    pub log: Vec<String>,
}

/// Maximum size of the kept log, bytes; the limit of a job on a device.
pub const LOG_BYTES_MAX: usize = 64 * 1024;

/// A local run: objects, destination of the result, and its cancellation.
pub struct LocalRun<'a> {
    /// Objects in the order of the call.
    pub objects: Vec<Box<dyn LocalObject + 'a>>,
    /// Destination of the result.
    pub result: &'a mut dyn Write,
    /// Stops the function when it is set.
    pub cancelled: Arc<AtomicBool>,
}

impl LocalRun<'_> {
    /// Runs a function. The arguments are those that a device would receive.
    pub fn run(self, function: &ShippedFunction, arguments: &[u8]) -> Result<LocalSummary, FunctionFailure> {
        let count = u32::try_from(self.objects.len()).map_err(|_| FunctionErrno::TOO_LARGE)?;
        let mut host = LocalHost { run: self, summary: LocalSummary::default(), log_bytes: 0, error: None };
        let outcome = FunctionCall::new(&mut host, function.name, arguments, count).run(function.run);
        match (outcome, host.error) {
            (Ok(()), _) => Ok(host.summary),
            (Err(failure), None) => Err(failure),
            // The system's message says more than the error number.
            (Err(failure), Some(error)) => {
                Err(FunctionFailure::new(failure.errno, format!("{}: {error}", failure.message)))
            }
        }
    }
}

/// Host of a local run.
struct LocalHost<'a> {
    run: LocalRun<'a>,
    summary: LocalSummary,
    log_bytes: usize,
    /// Last error of the system.
    error: Option<io::Error>,
}

impl<'a> LocalHost<'a> {
    fn object(&mut self, object: u32) -> Result<&mut (dyn LocalObject + 'a), FunctionErrno> {
        self.run.objects.get_mut(object as usize).map(|object| &mut **object).ok_or(FunctionErrno::BAD_OBJECT)
    }

    fn keep_error(&mut self, error: io::Error) -> FunctionErrno {
        let errno = error.raw_os_error().map_or(FunctionErrno::IO, FunctionErrno::from_raw);
        self.error = Some(error);
        errno
    }
}

impl FunctionHost for LocalHost<'_> {
    fn read(&mut self, object: u32, offset: u64, buffer: &mut [u8]) -> Result<usize, FunctionErrno> {
        let count = loop {
            match self.object(object)?.read_at(offset, buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.keep_error(error)),
                Ok(count) => break count,
            }
        };
        self.summary.bytes_in += count as u64;
        Ok(count)
    }

    fn write(&mut self, object: u32, offset: u64, data: &[u8]) -> Result<(), FunctionErrno> {
        self.object(object)?.write_at(offset, data).map_err(|error| self.keep_error(error))?;
        self.summary.bytes_out += data.len() as u64;
        Ok(())
    }

    fn length(&mut self, object: u32) -> Result<u64, FunctionErrno> {
        self.object(object)?.length().map_err(|error| self.keep_error(error))
    }

    fn result(&mut self, data: &[u8]) -> Result<(), FunctionErrno> {
        self.run.result.write_all(data).map_err(|error| self.keep_error(error))?;
        self.summary.bytes_out += data.len() as u64;
        Ok(())
    }

    fn log(&mut self, _: LogLevel, text: &str) {
        if self.log_bytes + text.len() < LOG_BYTES_MAX {
            self.log_bytes += text.len() + 1;
            self.summary.log.push(text.to_owned());
        }
    }

    fn progress(&mut self, _: u64, _: u64) {}

    fn is_cancelled(&self) -> bool {
        self.run.cancelled.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find_function;

    fn local<'a>(objects: Vec<Box<dyn LocalObject + 'a>>, result: &'a mut Vec<u8>) -> LocalRun<'a> {
        LocalRun { objects, result, cancelled: Arc::default() }
    }

    #[test]
    fn function_runs_on_local_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.txt");
        std::fs::write(&path, "one\ntimeout\n").unwrap();
        let mut result = Vec::new();
        let summary = local(vec![Box::new(File::open(&path).unwrap())], &mut result)
            .run(find_function("grep").unwrap(), b"pattern=time\0")
            .unwrap();
        assert_eq!(summary.bytes_in, 12);
        assert_eq!(summary.bytes_out, result.len() as u64);
        assert!(String::from_utf8(result).unwrap().contains(r#""line":2,"record":{"text":"timeout"}"#));
    }

    #[test]
    fn aes_twice_restores_file() {
        let folder = tempfile::tempdir().unwrap();
        let [plain, secret, again] = ["plain", "secret", "again"].map(|name| folder.path().join(name));
        let data: Vec<u8> = (0..3_000_000u32).map(|at| (at ^ at >> 8) as u8).collect();
        std::fs::write(&plain, &data).unwrap();
        let arguments = b"key=000102030405060708090a0b0c0d0e0f\0iv=00000000000000000000000000000001\0";
        for (from, to) in [(&plain, &secret), (&secret, &again)] {
            let objects: Vec<Box<dyn LocalObject>> =
                vec![Box::new(File::open(from).unwrap()), Box::new(File::create(to).unwrap())];
            local(objects, &mut Vec::new()).run(find_function("aes").unwrap(), arguments).unwrap();
        }
        assert_ne!(std::fs::read(&secret).unwrap(), data);
        assert_eq!(std::fs::read(&again).unwrap(), data);
    }

    #[test]
    fn system_error_keeps_its_message() {
        let folder = tempfile::tempdir().unwrap();
        let objects: Vec<Box<dyn LocalObject>> = vec![Box::new(File::open(folder.path()).unwrap())];
        let failure = local(objects, &mut Vec::new()).run(find_function("sha256").unwrap(), b"").unwrap_err();
        assert!(failure.message.contains("Is a directory"), "{failure}");
    }

    #[test]
    fn cancelled_run_stops() {
        let mut result = Vec::new();
        let path = std::env::current_exe().unwrap();
        let run = local(vec![Box::new(File::open(path).unwrap())], &mut result);
        run.cancelled.store(true, Ordering::Relaxed);
        let failure = run.run(find_function("count").unwrap(), b"").unwrap_err();
        assert_eq!(failure.errno, FunctionErrno::CANCELLED);
    }
}
