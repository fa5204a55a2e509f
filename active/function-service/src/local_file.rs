//! Local files as objects of a function, for a run without a device.
//!
//! Does: read and write a file with the rights that a call has.
//! Does not: check capabilities.
//! Contract: the handle refuses what a device refuses for lack of a right.
//! Truth: docs/standards/active.md, rights of an entry.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use parking_lot::RwLock;
use sealstone_osd::capability::Range;
use sealstone_osd::{AttributeId, ObjectId, ObjectType, Permissions};
use sealstone_osd_device::{GrantError, GrantedList, GrantedObject};

/// Partition of the objects that stand for local files.
const LOCAL_PARTITION: u64 = 0x10000;
/// Number of the first of these objects.
const FIRST_OBJECT: u64 = 0x10000;
/// Bytes that a removal of a range moves at once, and that a clear writes.
const MOVE_BYTES: usize = 1 << 20;

/// A local file that a function reads, and changes if it has the rights.
#[derive(Debug)]
pub struct LocalFileObject {
    file: File,
    number: u32,
    rights: Permissions,
    /// Excludes other operations while bytes move.
    moving: RwLock<()>,
}

impl LocalFileObject {
    /// Returns the object of a file. Functions see `number` as part of its id.
    #[must_use]
    pub const fn new(file: File, number: u32, rights: Permissions) -> Self {
        Self { file, number, rights, moving: RwLock::new(()) }
    }

    fn require(&self, right: Permissions) -> Result<(), GrantError> {
        if self.rights.contains(right) { Ok(()) } else { Err(GrantError::AccessDenied) }
    }

    fn size(&self) -> Result<u64, GrantError> {
        Ok(self.file.metadata().map_err(|error| failed(&error))?.len())
    }

    fn fill(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(&mut into[done..], offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Writes zeros up to the end of the file, and extends it by a hole. Returns the number of
    /// zeros written.
    fn fill_with_zeros(&self, offset: u64, end: u64) -> io::Result<u64> {
        let size = self.file.metadata()?.len();
        let zeros = vec![0; MOVE_BYTES];
        let mut at = offset;
        while at < end.min(size) {
            let part = usize::try_from(end.min(size) - at).unwrap_or(MOVE_BYTES).min(MOVE_BYTES);
            self.file.write_all_at(&zeros[..part], at)?;
            at += part as u64;
        }
        if end > size {
            self.file.set_len(end)?;
        }
        Ok(at.saturating_sub(offset))
    }

    fn move_down(&self, to: u64, from: u64, size: u64) -> io::Result<()> {
        let (mut to, mut from) = (to, from);
        let mut buffer = vec![0; MOVE_BYTES];
        while from < size {
            let count = self.fill(from, &mut buffer)?;
            if count == 0 {
                break;
            }
            self.file.write_all_at(&buffer[..count], to)?;
            (to, from) = (to + count as u64, from + count as u64);
        }
        self.file.set_len(to)
    }
}

fn failed(error: &io::Error) -> GrantError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => GrantError::NoSpace,
        ErrorKind::FileTooLarge | ErrorKind::InvalidInput => GrantError::TooLarge,
        ErrorKind::PermissionDenied => GrantError::AccessDenied,
        _ => GrantError::Io,
    }
}

impl GrantedObject for LocalFileObject {
    fn object(&self) -> ObjectId {
        ObjectId::new(LOCAL_PARTITION, FIRST_OBJECT + u64::from(self.number))
    }

    fn kind(&self) -> ObjectType {
        ObjectType::User
    }

    fn rights(&self) -> Permissions {
        self.rights
    }

    fn range(&self) -> Range {
        Range::ALL
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, GrantError> {
        self.require(Permissions::READ)?;
        let _guard = self.moving.read();
        if offset >= self.size()? {
            return Ok(0);
        }
        self.fill(offset, into).map_err(|error| failed(&error))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), GrantError> {
        self.require(Permissions::WRITE)?;
        let _guard = self.moving.read();
        self.file.write_all_at(data, offset).map_err(|error| failed(&error))
    }

    fn append(&self, data: &[u8]) -> Result<u64, GrantError> {
        self.require(Permissions::APPEND)?;
        let _guard = self.moving.write();
        let offset = self.size()?;
        self.file.write_all_at(data, offset).map_err(|error| failed(&error))?;
        Ok(offset)
    }

    fn punch(&self, offset: u64, length: u64) -> Result<u64, GrantError> {
        self.require(Permissions::WRITE)?;
        let _guard = self.moving.write();
        let size = self.size()?;
        if offset > size {
            return Err(GrantError::Invalid);
        }
        let from = offset.saturating_add(length).min(size);
        self.move_down(offset, from, size).map_err(|error| failed(&error))?;
        Ok(size - from)
    }

    fn clear(&self, offset: u64, length: u64) -> Result<u64, GrantError> {
        self.require(Permissions::WRITE)?;
        let end = offset.checked_add(length).ok_or(GrantError::Invalid)?;
        if length == 0 {
            return Ok(0);
        }
        let _guard = self.moving.write();
        self.fill_with_zeros(offset, end).map_err(|error| failed(&error))
    }

    fn length(&self) -> Result<u64, GrantError> {
        self.require(Permissions::READ)?;
        self.size()
    }

    /// Local files have no attributes of objects.
    fn attribute(&self, _: AttributeId) -> Result<Option<Vec<u8>>, GrantError> {
        self.require(Permissions::GET_ATTR)?;
        Ok(None)
    }

    fn set_attribute(&self, _: AttributeId, _: &[u8]) -> Result<(), GrantError> {
        self.require(Permissions::SET_ATTR)?;
        Err(GrantError::Invalid)
    }

    fn list(&self, _: u64, _: usize) -> Result<GrantedList, GrantError> {
        Err(GrantError::Invalid)
    }

    /// The file exists: a handle without the right.
    fn create(&self) -> Result<Arc<dyn GrantedObject>, GrantError> {
        self.require(Permissions::CREATE)?;
        let file = self.file.try_clone().map_err(|error| failed(&error))?;
        Ok(Arc::new(Self::new(file, self.number, self.rights.without(Permissions::CREATE))))
    }

    /// A run never removes a local file.
    fn remove(&self) -> Result<(), GrantError> {
        Err(GrantError::AccessDenied)
    }

    fn flush(&self) -> Result<(), GrantError> {
        self.require(Permissions::OBJ_MGMT)?;
        self.file.sync_all().map_err(|error| failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn object(bytes: &[u8], rights: Permissions) -> LocalFileObject {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        LocalFileObject::new(file, 3, rights)
    }

    #[test]
    fn rights_restrict_local_files() {
        let mut buffer = [0; 8];
        let reader = object(b"0123456789", Permissions::READ);
        assert_eq!(reader.read(8, &mut buffer), Ok(2));
        assert_eq!((reader.length(), reader.read(10, &mut buffer)), (Ok(10), Ok(0)));
        assert_eq!(reader.read(u64::MAX, &mut buffer), Ok(0));
        assert_eq!(reader.write(0, b"x"), Err(GrantError::AccessDenied));
        assert_eq!(reader.punch(0, 1), Err(GrantError::AccessDenied));
        assert_eq!(reader.clear(0, 1), Err(GrantError::AccessDenied));
        assert_eq!(reader.append(b"x"), Err(GrantError::AccessDenied));
        assert_eq!(reader.remove(), Err(GrantError::AccessDenied));
        let writer = object(b"0123456789", Permissions::WRITE);
        assert_eq!(writer.read(0, &mut buffer), Err(GrantError::AccessDenied));
        assert_eq!(writer.write(9, b"ab"), Ok(()));
        assert_eq!(writer.write(u64::MAX, b"x"), Err(GrantError::TooLarge));
    }

    #[test]
    fn clear_zeroes_and_extends_local_file() {
        let object = object(&[7; 3 * MOVE_BYTES], Permissions::READ | Permissions::WRITE);
        assert_eq!(object.clear(10, 2 * MOVE_BYTES as u64), Ok(2 * MOVE_BYTES as u64));
        let mut found = vec![9; 3 * MOVE_BYTES];
        assert_eq!(object.read(0, &mut found), Ok(3 * MOVE_BYTES));
        let zeros = 10..2 * MOVE_BYTES + 10;
        assert!(found.iter().enumerate().all(|(at, byte)| *byte == if zeros.contains(&at) { 0 } else { 7 }));
        assert_eq!(object.clear(3 * MOVE_BYTES as u64 - 1, 100), Ok(1), "the rest is a hole");
        assert_eq!(object.length(), Ok(3 * MOVE_BYTES as u64 + 99));
        assert_eq!(object.read(3 * MOVE_BYTES as u64 - 2, &mut found[..3]), Ok(3));
        assert_eq!(found[..3], [7, 0, 0]);
        assert_eq!(object.clear(u64::MAX, 0), Ok(0));
        assert_eq!(object.clear(u64::MAX, 1), Err(GrantError::Invalid));
        assert_eq!(object.clear(1 << 63, 1), Err(GrantError::TooLarge));
        assert_eq!(object.create_collection().err(), Some(GrantError::Invalid));
        assert_eq!(object.add_member(&object), Err(GrantError::Invalid));
    }

    #[test]
    fn punch_moves_rest_of_local_file() {
        let bytes: Vec<u8> = (0..3 * MOVE_BYTES).map(|index| (index / 4096) as u8).collect();
        let object = object(&bytes, Permissions::READ | Permissions::WRITE);
        assert_eq!(object.punch(10, 5000), Ok(bytes.len() as u64 - 5010));
        let expected = [&bytes[..10], &bytes[5010..]].concat();
        let mut found = Vec::new();
        (&object.file).read_to_end(&mut found).unwrap();
        // The file was written by position, so it is read from its start.
        assert!(found == expected);
        assert_eq!(object.punch(10, u64::MAX), Ok(0));
        assert_eq!(object.length(), Ok(10));
        assert_eq!(object.punch(11, 1), Err(GrantError::Invalid));
    }
}
