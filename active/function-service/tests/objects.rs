//! An object in memory that functions can use.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sealstone_osd::capability::Range;
use sealstone_osd::{AttributeId, ObjectId, ObjectType, Permissions};
use sealstone_osd_device::{GrantError, GrantedList, GrantedObject};

/// Bytes with rights, or a partition in which objects can be created.
pub(crate) struct GrantedMemory {
    pub(crate) kind: ObjectType,
    pub(crate) rights: Mutex<Permissions>,
    pub(crate) bytes: Mutex<Vec<u8>>,
    pub(crate) children: Mutex<Vec<Arc<GrantedMemory>>>,
    pub(crate) range: Mutex<Range>,
    /// When its authority ends; 0 for never.
    pub(crate) expires_ms: Mutex<u64>,
    /// Reads that reach this offset fail.
    pub(crate) damaged_from: Mutex<u64>,
    pub(crate) is_removed: AtomicBool,
    /// Whether writes fail as those to a broken disk.
    pub(crate) fails_writes: AtomicBool,
    /// Called when the last handle is released.
    pub(crate) on_release: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Drop for GrantedMemory {
    fn drop(&mut self) {
        if let Some(call) = self.on_release.get_mut().take() {
            call();
        }
    }
}

/// All rights that a function can have.
pub(crate) const ALL: Permissions = Permissions::from_bytes([0xFF, 0, 0, 0, 0]);

impl GrantedMemory {
    pub(crate) fn object(rights: Permissions, bytes: &[u8]) -> Arc<Self> {
        Self::new(ObjectType::User, rights, bytes)
    }

    pub(crate) fn partition() -> Arc<Self> {
        Self::new(ObjectType::Partition, ALL, b"")
    }

    /// Returns a handle that creates collections.
    pub(crate) fn collections() -> Arc<Self> {
        Self::new(ObjectType::Collection, ALL, b"")
    }

    fn new(kind: ObjectType, rights: Permissions, bytes: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            kind,
            rights: Mutex::new(rights),
            bytes: Mutex::new(bytes.to_vec()),
            children: Mutex::default(),
            range: Mutex::new(Range::ALL),
            expires_ms: Mutex::default(),
            damaged_from: Mutex::new(u64::MAX),
            is_removed: AtomicBool::default(),
            fails_writes: AtomicBool::default(),
            on_release: Mutex::default(),
        })
    }

    fn require(&self, right: Permissions) -> Result<(), GrantError> {
        if self.rights.lock().contains(right) { Ok(()) } else { Err(GrantError::AccessDenied) }
    }
}

impl GrantedObject for GrantedMemory {
    fn object(&self) -> ObjectId {
        match self.kind {
            ObjectType::Partition => ObjectId::of_partition(0x10000),
            _ => ObjectId::new(0x10000, 0x10001),
        }
    }

    fn kind(&self) -> ObjectType {
        self.kind
    }

    fn rights(&self) -> Permissions {
        *self.rights.lock()
    }

    fn range(&self) -> Range {
        *self.range.lock()
    }

    fn expires_ms(&self) -> u64 {
        *self.expires_ms.lock()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, GrantError> {
        self.require(Permissions::READ)?;
        if !self.range().permits(offset, into.len() as u64) {
            return Err(GrantError::AccessDenied);
        }
        if offset + into.len() as u64 > *self.damaged_from.lock() {
            return Err(GrantError::Io);
        }
        let bytes = self.bytes.lock();
        let from = usize::try_from(offset).unwrap().min(bytes.len());
        let length = into.len().min(bytes.len() - from);
        into[..length].copy_from_slice(&bytes[from..from + length]);
        Ok(length)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), GrantError> {
        self.require(Permissions::WRITE)?;
        if self.fails_writes.load(Ordering::Relaxed) {
            return Err(GrantError::Io);
        }
        let (mut bytes, from) = (self.bytes.lock(), usize::try_from(offset).unwrap());
        if bytes.len() < from + data.len() {
            bytes.resize(from + data.len(), 0);
        }
        bytes[from..from + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn append(&self, data: &[u8]) -> Result<u64, GrantError> {
        self.require(Permissions::APPEND)?;
        let mut bytes = self.bytes.lock();
        let offset = bytes.len() as u64;
        bytes.extend_from_slice(data);
        Ok(offset)
    }

    fn punch(&self, offset: u64, length: u64) -> Result<u64, GrantError> {
        self.require(Permissions::WRITE)?;
        let (mut bytes, from) = (self.bytes.lock(), usize::try_from(offset).unwrap());
        if from > bytes.len() {
            return Err(GrantError::Invalid);
        }
        let end = bytes.len().min(from.saturating_add(usize::try_from(length).unwrap()));
        bytes.drain(from..end);
        Ok((bytes.len() - from) as u64)
    }

    fn clear(&self, offset: u64, length: u64) -> Result<u64, GrantError> {
        self.require(Permissions::WRITE)?;
        if !self.range().permits(offset, length) {
            return Err(GrantError::AccessDenied);
        }
        let (start, length) = (usize::try_from(offset).unwrap(), usize::try_from(length).unwrap());
        if start + length > 1 << 20 {
            return Err(GrantError::NoSpace);
        }
        let mut bytes = self.bytes.lock();
        let longer = bytes.len().max(start + length);
        bytes.resize(longer, 0);
        bytes[start..start + length].fill(0);
        Ok(length as u64)
    }

    fn length(&self) -> Result<u64, GrantError> {
        self.require(Permissions::READ)?;
        Ok(self.bytes.lock().len() as u64)
    }

    fn attribute(&self, _: AttributeId) -> Result<Option<Vec<u8>>, GrantError> {
        self.require(Permissions::GET_ATTR)?;
        Ok(None)
    }

    fn set_attribute(&self, _: AttributeId, _: &[u8]) -> Result<(), GrantError> {
        self.require(Permissions::SET_ATTR)
    }

    fn list(&self, _: u64, _: usize) -> Result<GrantedList, GrantError> {
        Ok(GrantedList::default())
    }

    fn create(&self) -> Result<Arc<dyn GrantedObject>, GrantError> {
        self.require(Permissions::CREATE)?;
        let child = Self::object(ALL, b"");
        self.children.lock().push(Arc::clone(&child));
        Ok(child)
    }

    fn remove(&self) -> Result<(), GrantError> {
        self.require(Permissions::REMOVE)?;
        self.is_removed.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&self) -> Result<(), GrantError> {
        Ok(())
    }

    fn create_collection(&self) -> Result<Arc<dyn GrantedObject>, GrantError> {
        self.require(Permissions::CREATE)?;
        let child = Self::new(ObjectType::Collection, ALL, b"");
        self.children.lock().push(Arc::clone(&child));
        Ok(child)
    }

    fn remove_collection(&self, force: bool) -> Result<(), GrantError> {
        self.require(Permissions::REMOVE)?;
        if !force && !self.bytes.lock().is_empty() {
            return Err(GrantError::NotEmpty);
        }
        self.is_removed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The bytes of a collection are those of its member.
    fn add_member(&self, member: &dyn GrantedObject) -> Result<(), GrantError> {
        self.require(Permissions::SET_ATTR)?;
        let member = (member as &dyn Any).downcast_ref::<Self>();
        *self.bytes.lock() = member.ok_or(GrantError::Invalid)?.bytes.lock().clone();
        Ok(())
    }

    fn remove_member(&self, member: &dyn GrantedObject) -> Result<(), GrantError> {
        self.require(Permissions::SET_ATTR)?;
        if !self.is_member(member)? {
            return Err(GrantError::NotFound);
        }
        self.bytes.lock().clear();
        Ok(())
    }

    fn is_member(&self, member: &dyn GrantedObject) -> Result<bool, GrantError> {
        self.require(Permissions::READ)?;
        let member = (member as &dyn Any).downcast_ref::<Self>();
        Ok(*member.ok_or(GrantError::Invalid)?.bytes.lock() == *self.bytes.lock())
    }
}
