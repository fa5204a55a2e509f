//! A command descriptor block as iSCSI transports it: opaque bytes of bounded length, in the header
//! and in an additional header.

use core::fmt;

use crate::limits::CDB_MAX;

/// Opaque CDB bytes, kept inline: no allocation per command.
#[derive(Clone)]
pub struct Cdb {
    length: u16,
    bytes: [u8; CDB_MAX],
}

/// The CDB is longer than [`CDB_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a CDB of {0} bytes; at most {CDB_MAX} can be carried")]
pub struct CdbTooLong(pub usize);

impl Cdb {
    /// Copies `cdb`.
    ///
    /// # Errors
    /// [`CdbTooLong`] beyond [`CDB_MAX`] bytes.
    pub fn new(cdb: &[u8]) -> Result<Self, CdbTooLong> {
        Self::joined(cdb, &[])
    }

    pub(crate) fn joined(head: &[u8], tail: &[u8]) -> Result<Self, CdbTooLong> {
        let length = head.len() + tail.len();
        let mut bytes = [0; CDB_MAX];
        let room = bytes.get_mut(..length).ok_or(CdbTooLong(length))?;
        let (first, second) = room.split_at_mut(head.len());
        first.copy_from_slice(head);
        second.copy_from_slice(tail);
        Ok(Self { length: u16::try_from(length).map_err(|_| CdbTooLong(length))?, bytes })
    }

    /// Returns the bytes. Received CDBs have at least 16: shorter ones are padded with zeros.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Returns the part in the basic header.
    pub(crate) fn first_16(&self) -> [u8; 16] {
        *self.bytes.first_chunk().expect("CDB_MAX is more than 16")
    }
}

impl fmt::Debug for Cdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cdb({:02X?})", self.as_slice())
    }
}
