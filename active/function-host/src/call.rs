//! One call of a function: its method, arguments, objects, and the host that executes its requests.
//!
//! A function gets a [`FunctionCall`] as its only argument.

use alloc::vec::Vec;

use crate::{
    ArgumentError, FunctionArguments, FunctionErrno, FunctionFailure, FunctionHost, LogLevel, StripeGeometry,
};

/// Size of the parts in which functions read and write objects, bytes. Larger parts gain nothing;
/// smaller ones pay for each host call.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Size of the buffer that collects results before a host call, bytes.
const RESULT_BUFFER_BYTES: usize = 32 * 1024;

/// A running call.
pub struct FunctionCall<'a> {
    host: &'a mut dyn FunctionHost,
    method: &'a str,
    arguments: &'a [u8],
    objects: u32,
    result: Vec<u8>,
}

impl<'a> FunctionCall<'a> {
    /// Returns a call on a host with `objects` objects.
    pub fn new(host: &'a mut dyn FunctionHost, method: &'a str, arguments: &'a [u8], objects: u32) -> Self {
        Self { host, method, arguments, objects, result: Vec::new() }
    }

    /// Runs a function and sends the rest of its result. A failure is logged.
    pub fn run(
        mut self,
        function: impl FnOnce(&mut FunctionCall<'a>) -> Result<(), FunctionFailure>,
    ) -> Result<(), FunctionFailure> {
        let outcome = function(&mut self)
            .and_then(|()| self.flush_result())
            .and_then(|()| self.host.finish().map_err(Into::into));
        if let Err(failure) = &outcome {
            self.host.log(LogLevel::Error, &failure.message);
        }
        outcome
    }

    /// Returns the method that the caller named; it may be empty.
    #[must_use]
    pub const fn method(&self) -> &'a str {
        self.method
    }

    /// Returns the argument bytes.
    #[must_use]
    pub const fn argument_bytes(&self) -> &'a [u8] {
        self.arguments
    }

    /// Parses the arguments as `name=value` strings.
    pub fn arguments(&self) -> Result<FunctionArguments<'a>, ArgumentError> {
        FunctionArguments::parse(self.arguments)
    }

    /// Returns the number of objects of the call.
    #[must_use]
    pub const fn object_count(&self) -> u32 {
        self.objects
    }

    /// Returns the host, for calls that have no shorthand here.
    pub fn host(&mut self) -> &mut dyn FunctionHost {
        self.host
    }

    /// Returns the geometry of an object: from the arguments, or that of a file in one object.
    pub fn geometry(&mut self, object: u32) -> Result<StripeGeometry, FunctionFailure> {
        match StripeGeometry::from_arguments(&self.arguments()?, object)? {
            Some(geometry) => Ok(geometry),
            None => Ok(StripeGeometry::whole(self.host.length(object)?)),
        }
    }

    /// Fills the buffer from an object unless the object ends before; returns the bytes read. Fails
    /// if the job was cancelled.
    pub fn read(&mut self, object: u32, offset: u64, buffer: &mut [u8]) -> Result<usize, FunctionFailure> {
        let mut filled = 0;
        while filled < buffer.len() {
            if self.host.is_cancelled() {
                return Err(FunctionErrno::CANCELLED.into());
            }
            let at = offset.checked_add(filled as u64).ok_or(FunctionErrno::INVALID)?;
            let end = buffer.len().min(filled + CHUNK_BYTES);
            match self.host.read(object, at, &mut buffer[filled..end])? {
                0 => break,
                // A host that counts more than the buffer has is faulty; it gains nothing here.
                count => filled += count.min(end - filled),
            }
        }
        Ok(filled)
    }

    /// Fills the buffer from an object; bytes beyond the end of the object are zero, as in a hole
    /// of a file.
    pub fn read_zero_filled(
        &mut self,
        object: u32,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), FunctionFailure> {
        let count = self.read(object, offset, buffer)?;
        buffer[count..].fill(0);
        Ok(())
    }

    /// Writes all bytes to an object.
    pub fn write(&mut self, object: u32, offset: u64, data: &[u8]) -> Result<(), FunctionFailure> {
        let mut offset = offset;
        for part in data.chunks(CHUNK_BYTES) {
            self.host.write(object, offset, part)?;
            offset = offset.checked_add(part.len() as u64).ok_or(FunctionErrno::TOO_LARGE)?;
        }
        Ok(())
    }

    /// Appends bytes to the result. They are collected, and sent when enough are there.
    pub fn result(&mut self, data: &[u8]) -> Result<(), FunctionFailure> {
        if self.result.len() + data.len() > RESULT_BUFFER_BYTES {
            self.flush_result()?;
        }
        if data.len() >= RESULT_BUFFER_BYTES {
            for part in data.chunks(CHUNK_BYTES) {
                self.host.result(part)?;
            }
        } else {
            self.result.extend_from_slice(data);
        }
        Ok(())
    }

    fn flush_result(&mut self) -> Result<(), FunctionFailure> {
        if !self.result.is_empty() {
            self.host.result(&self.result)?;
            self.result.clear();
        }
        Ok(())
    }

    /// Appends a line to the log of the job.
    pub fn log(&mut self, level: LogLevel, text: &str) {
        self.host.log(level, text);
    }

    /// Reports progress: units of a total, which is 0 if it is unknown.
    pub fn progress(&mut self, done: u64, total: u64) {
        self.host.progress(done, total);
    }

    /// Announces that a range will be read in order.
    pub fn read_ahead(&mut self, object: u32, offset: u64, length: u64) {
        self.host.read_ahead(object, offset, length);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::MemoryHost;

    #[test]
    fn collected_result_is_sent_at_end() {
        let mut host = MemoryHost::new(vec![]);
        FunctionCall::new(&mut host, "", b"", 0)
            .run(|call| {
                call.result(b"small")?;
                call.result(&vec![b'x'; 2 * CHUNK_BYTES])?;
                call.result(b"end")
            })
            .unwrap();
        assert_eq!(host.result.len(), 8 + 2 * CHUNK_BYTES);
        assert!(host.result.starts_with(b"smallx") && host.result.ends_with(b"xend"));
    }

    #[test]
    fn failure_is_logged_and_returned() {
        let mut host = MemoryHost::new(vec![]);
        let failure = FunctionCall::new(&mut host, "", b"a\0", 0)
            .run(|call| call.arguments().map(drop).map_err(Into::into))
            .unwrap_err();
        assert_eq!(failure.errno, FunctionErrno::INVALID);
        assert_eq!(host.log, ["argument 0 is not of the form name=value"]);
    }

    #[test]
    fn result_beyond_limit_is_refused() {
        let mut host = MemoryHost { result_bytes_max: Some(4), ..MemoryHost::default() };
        let failure = FunctionCall::new(&mut host, "", b"", 0).run(|call| call.result(b"12345")).unwrap_err();
        assert_eq!(failure.errno, FunctionErrno::TOO_LARGE);
    }

    #[test]
    fn cancelled_read_fails_with_ecanceled() {
        let mut host = MemoryHost { objects: vec![vec![1]], cancelled: true, ..MemoryHost::default() };
        let mut buffer = [0];
        let failure =
            FunctionCall::new(&mut host, "", b"", 1).run(|call| call.read(0, 0, &mut buffer).map(drop));
        assert_eq!(failure.unwrap_err().errno, FunctionErrno::CANCELLED);
    }

    #[test]
    fn read_beyond_end_is_zero_filled() {
        let mut host = MemoryHost::new(vec![vec![1, 2]]);
        let mut buffer = [9; 4];
        FunctionCall::new(&mut host, "", b"", 1)
            .run(|call| call.read_zero_filled(0, 1, &mut buffer))
            .unwrap();
        assert_eq!(buffer, [2, 0, 0, 0]);
    }
}
