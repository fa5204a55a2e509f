//! Numbers and names of the binary format.

use crate::ModuleError;

/// A position in the bytes of a module.
#[derive(Clone, Debug)]
pub(crate) struct SectionReader<'a> {
    bytes: &'a [u8],
    /// Position of the first byte in the module, for errors.
    base: usize,
    at: usize,
}

impl<'a> SectionReader<'a> {
    pub(crate) const fn new(bytes: &'a [u8], base: usize) -> Self {
        Self { bytes, base, at: 0 }
    }

    /// Returns the position in the module.
    pub(crate) const fn offset(&self) -> usize {
        self.base + self.at
    }

    pub(crate) const fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    const fn malformed(&self) -> ModuleError {
        ModuleError::Malformed(self.offset())
    }

    pub(crate) fn byte(&mut self) -> Result<u8, ModuleError> {
        let byte = *self.bytes.get(self.at).ok_or(self.malformed())?;
        self.at += 1;
        Ok(byte)
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], ModuleError> {
        let end = self.at.checked_add(length).ok_or(self.malformed())?;
        let taken = self.bytes.get(self.at..end).ok_or(self.malformed())?;
        self.at = end;
        Ok(taken)
    }

    /// Reads an unsigned LEB128 number of at most `bits` bits.
    fn number(&mut self, bits: u32) -> Result<u64, ModuleError> {
        let start = self.malformed();
        let mut value = 0u64;
        let mut shift = 0;
        loop {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7F);
            let fits = shift < bits && (bits - shift >= 7 || part >> (bits - shift) == 0);
            if !fits {
                return Err(start);
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            shift += 7;
        }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ModuleError> {
        // A number of at most 32 bits.
        self.number(32).map(|value| value as u32)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, ModuleError> {
        self.number(64)
    }

    pub(crate) fn name(&mut self) -> Result<&'a str, ModuleError> {
        let start = self.malformed();
        let length = self.u32()?;
        core::str::from_utf8(self.take(length as usize)?).map_err(|_| start)
    }
}
