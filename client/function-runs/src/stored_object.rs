//! Stored files as objects of a function that runs in an engine of this machine.
//!
//! Contract: only the bytes that the function reads are fetched. It cannot change the file.

use std::sync::Arc;

use sealstone_client::{Devices, Metadata, OpenFile};
use sealstone_osd::capability::Range;
use sealstone_osd::{AttributeId, ObjectId, ObjectType, Permissions};
use sealstone_osd_device::{GrantError, GrantedList, GrantedObject};
use tokio::runtime::Handle;

use crate::local_engine::READS;

/// The object that functions see; the file can have several.
const OBJECT: ObjectId = ObjectId::new(0x10000, 0x10000);

/// A stored file that a function reads.
pub(crate) struct StoredFileObject<M, D> {
    file: OpenFile<M, D>,
    runtime: Handle,
}

impl<M, D> StoredFileObject<M, D> {
    /// Returns the object of a file. It is read on threads that may wait, not on those of tasks.
    pub(crate) fn new(file: OpenFile<M, D>) -> Self {
        Self { file, runtime: Handle::current() }
    }
}

impl<M: Metadata, D: Devices> GrantedObject for StoredFileObject<M, D> {
    fn object(&self) -> ObjectId {
        OBJECT
    }

    fn kind(&self) -> ObjectType {
        ObjectType::User
    }

    fn rights(&self) -> Permissions {
        READS
    }

    fn range(&self) -> Range {
        Range::ALL
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, GrantError> {
        let mut done = 0;
        while done < into.len() {
            let at = offset.saturating_add(done as u64);
            let read = self.runtime.block_on(self.file.read_at(at, &mut into[done..]));
            match read {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) => {
                    tracing::warn!(%error, "read of a file for a function failed");
                    return Err(GrantError::Io);
                }
            }
        }
        Ok(done)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), GrantError> {
        Err(GrantError::AccessDenied)
    }

    fn append(&self, _: &[u8]) -> Result<u64, GrantError> {
        Err(GrantError::AccessDenied)
    }

    fn punch(&self, _: u64, _: u64) -> Result<u64, GrantError> {
        Err(GrantError::AccessDenied)
    }

    fn clear(&self, _: u64, _: u64) -> Result<u64, GrantError> {
        Err(GrantError::AccessDenied)
    }

    fn length(&self) -> Result<u64, GrantError> {
        Ok(self.file.stat().size)
    }

    /// Attributes of objects are not those of the file.
    fn attribute(&self, _: AttributeId) -> Result<Option<Vec<u8>>, GrantError> {
        Ok(None)
    }

    fn set_attribute(&self, _: AttributeId, _: &[u8]) -> Result<(), GrantError> {
        Err(GrantError::AccessDenied)
    }

    fn list(&self, _: u64, _: usize) -> Result<GrantedList, GrantError> {
        Err(GrantError::Invalid)
    }

    fn create(&self) -> Result<Arc<dyn GrantedObject>, GrantError> {
        Err(GrantError::AccessDenied)
    }

    fn remove(&self) -> Result<(), GrantError> {
        Err(GrantError::AccessDenied)
    }

    fn flush(&self) -> Result<(), GrantError> {
        Err(GrantError::AccessDenied)
    }
}
