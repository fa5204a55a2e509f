//! A host whose objects are byte vectors: for tests of functions, and for data a client has read.

use alloc::string::String;
use alloc::vec::Vec;

use crate::{FunctionErrno, FunctionHost, LogLevel};

/// Objects, result and log of a call in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryHost {
    /// Objects in the order of the call.
    pub objects: Vec<Vec<u8>>,
    /// Result that the function wrote.
    pub result: Vec<u8>,
    /// Lines that the function logged.
    pub log: Vec<String>,
    /// Maximum size of the result in bytes; `None` is unlimited.
    pub result_bytes_max: Option<usize>,
    /// Whether the job is cancelled.
    pub cancelled: bool,
}

impl MemoryHost {
    /// Returns a host with these objects.
    #[must_use]
    pub fn new(objects: Vec<Vec<u8>>) -> Self {
        Self { objects, ..Self::default() }
    }

    fn object(&mut self, object: u32) -> Result<&mut Vec<u8>, FunctionErrno> {
        self.objects.get_mut(object as usize).ok_or(FunctionErrno::BAD_OBJECT)
    }
}

impl FunctionHost for MemoryHost {
    fn read(&mut self, object: u32, offset: u64, buffer: &mut [u8]) -> Result<usize, FunctionErrno> {
        let data = self.object(object)?;
        let rest = usize::try_from(offset).ok().and_then(|offset| data.get(offset..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write(&mut self, object: u32, offset: u64, data: &[u8]) -> Result<(), FunctionErrno> {
        let target = self.object(object)?;
        let start = usize::try_from(offset).map_err(|_| FunctionErrno::TOO_LARGE)?;
        let end = start.checked_add(data.len()).ok_or(FunctionErrno::TOO_LARGE)?;
        if target.len() < end {
            target.try_reserve(end - target.len()).map_err(|_| FunctionErrno::NO_MEMORY)?;
            target.resize(end, 0);
        }
        target[start..end].copy_from_slice(data);
        Ok(())
    }

    fn length(&mut self, object: u32) -> Result<u64, FunctionErrno> {
        Ok(self.object(object)?.len() as u64)
    }

    fn result(&mut self, data: &[u8]) -> Result<(), FunctionErrno> {
        if self.result_bytes_max.is_some_and(|max| max - self.result.len().min(max) < data.len()) {
            return Err(FunctionErrno::TOO_LARGE);
        }
        self.result.extend_from_slice(data);
        Ok(())
    }

    fn log(&mut self, _: LogLevel, text: &str) {
        self.log.push(text.into());
    }

    fn progress(&mut self, _: u64, _: u64) {}

    fn is_cancelled(&self) -> bool {
        self.cancelled
    }
}
