//! The interface between a function and its host: an engine on a device, or local files.

use crate::FunctionErrno;

/// Severity of a line in the job's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// The function failed or will fail.
    Error,
    /// The result may surprise its reader.
    Warning,
    /// Progress in words.
    Info,
}

/// Calls that a function makes. Objects are named by their index in the call's object list.
///
/// The host checks rights, range and expiry on each call; a function gains nothing by any argument.
pub trait FunctionHost {
    /// Reads bytes at an offset; returns 0 only at the end of the object, and possibly fewer than
    /// requested before it. [`FunctionCall::read`](crate::FunctionCall::read) fills its buffer.
    fn read(&mut self, object: u32, offset: u64, buffer: &mut [u8]) -> Result<usize, FunctionErrno>;

    /// Writes all bytes at an offset.
    fn write(&mut self, object: u32, offset: u64, data: &[u8]) -> Result<(), FunctionErrno>;

    /// Returns the length of an object in bytes.
    fn length(&mut self, object: u32) -> Result<u64, FunctionErrno>;

    /// Appends bytes to the result that the caller receives.
    fn result(&mut self, data: &[u8]) -> Result<(), FunctionErrno>;

    /// Appends a line to the log of the job. Text beyond the limit of the log is dropped.
    fn log(&mut self, level: LogLevel, text: &str);

    /// Reports progress: units of a total, which is 0 if it is unknown.
    fn progress(&mut self, done: u64, total: u64);

    /// Whether the job was cancelled; the function then returns soon, or is killed.
    fn is_cancelled(&self) -> bool;

    /// Announces that a range will be read in order, so that the host can read ahead.
    fn read_ahead(&mut self, _object: u32, _offset: u64, _length: u64) {}

    /// Completes writes that the host has delayed; called once, when the function has succeeded.
    fn finish(&mut self) -> Result<(), FunctionErrno> {
        Ok(())
    }
}
