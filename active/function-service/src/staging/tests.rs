//! Tests of staged output: a run sees its own changes, and others see them only after a commit.

use proptest::prelude::*;

use super::*;

/// An object in memory with the rules of a granted one.
struct MemoryObject {
    kind: ObjectType,
    number: u64,
    members: Mutex<std::collections::BTreeSet<u64>>,
    rights: Permissions,
    bytes: Mutex<Vec<u8>>,
    attributes: Mutex<BTreeMap<(u32, u32), Vec<u8>>>,
    is_removed: Mutex<bool>,
    children: Mutex<Vec<Arc<MemoryObject>>>,
}

impl MemoryObject {
    fn new(rights: Permissions, bytes: &[u8]) -> Arc<Self> {
        Self::of_kind(ObjectType::User, 0x10001, rights, bytes)
    }

    fn of_kind(kind: ObjectType, number: u64, rights: Permissions, bytes: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            kind,
            number,
            members: Mutex::default(),
            rights,
            bytes: Mutex::new(bytes.to_vec()),
            attributes: Mutex::default(),
            is_removed: Mutex::default(),
            children: Mutex::default(),
        })
    }

    fn require(&self, right: Permissions) -> Result<(), GrantError> {
        if self.rights.contains(right) { Ok(()) } else { Err(GrantError::AccessDenied) }
    }
}

impl GrantedObject for MemoryObject {
    fn object(&self) -> ObjectId {
        ObjectId::new(0x10000, self.number)
    }

    fn kind(&self) -> ObjectType {
        self.kind
    }

    fn rights(&self) -> Permissions {
        self.rights
    }

    fn range(&self) -> Range {
        Range::ALL
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, GrantError> {
        self.require(Permissions::READ)?;
        let bytes = self.bytes.lock();
        let from = usize::try_from(offset).unwrap().min(bytes.len());
        let length = into.len().min(bytes.len() - from);
        into[..length].copy_from_slice(&bytes[from..from + length]);
        Ok(length)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), GrantError> {
        self.require(Permissions::WRITE)?;
        let (mut bytes, from) = (self.bytes.lock(), usize::try_from(offset).unwrap());
        if !data.is_empty() && bytes.len() < from + data.len() {
            bytes.resize(from + data.len(), 0);
        }
        if !data.is_empty() {
            bytes[from..from + data.len()].copy_from_slice(data);
        }
        Ok(())
    }

    fn append(&self, data: &[u8]) -> Result<u64, GrantError> {
        self.require(Permissions::APPEND)?;
        let mut bytes = self.bytes.lock();
        let offset = bytes.len() as u64;
        bytes.extend_from_slice(data);
        Ok(offset)
    }

    fn punch(&self, _: u64, _: u64) -> Result<u64, GrantError> {
        Err(GrantError::Invalid)
    }

    fn clear(&self, _: u64, _: u64) -> Result<u64, GrantError> {
        Err(GrantError::Io)
    }

    fn length(&self) -> Result<u64, GrantError> {
        self.require(Permissions::READ)?;
        Ok(self.bytes.lock().len() as u64)
    }

    fn attribute(&self, id: AttributeId) -> Result<Option<Vec<u8>>, GrantError> {
        Ok(self.attributes.lock().get(&(id.page, id.number)).cloned())
    }

    fn set_attribute(&self, id: AttributeId, value: &[u8]) -> Result<(), GrantError> {
        self.attributes.lock().insert((id.page, id.number), value.to_vec());
        Ok(())
    }

    fn list(&self, _: u64, _: usize) -> Result<GrantedList, GrantError> {
        Ok(GrantedList::default())
    }

    fn create(&self) -> Result<Arc<dyn GrantedObject>, GrantError> {
        let child = Self::new(self.rights, b"");
        self.children.lock().push(Arc::clone(&child));
        Ok(child)
    }

    fn remove(&self) -> Result<(), GrantError> {
        self.require(Permissions::REMOVE)?;
        *self.is_removed.lock() = true;
        Ok(())
    }

    fn flush(&self) -> Result<(), GrantError> {
        Ok(())
    }

    fn create_collection(&self) -> Result<Arc<dyn GrantedObject>, GrantError> {
        let child = Self::of_kind(ObjectType::Collection, 0x10009, self.rights, b"");
        self.children.lock().push(Arc::clone(&child));
        Ok(child)
    }

    fn remove_collection(&self, force: bool) -> Result<(), GrantError> {
        let is_empty = self.members.lock().is_empty();
        *self.is_removed.lock() = force || is_empty;
        if force || is_empty { Ok(()) } else { Err(GrantError::NotEmpty) }
    }

    fn add_member(&self, member: &dyn GrantedObject) -> Result<(), GrantError> {
        let object = (member as &dyn Any).downcast_ref::<Self>().ok_or(GrantError::Invalid)?;
        if *object.is_removed.lock() {
            return Err(GrantError::NotFound);
        }
        self.members.lock().insert(object.number);
        Ok(())
    }

    fn remove_member(&self, member: &dyn GrantedObject) -> Result<(), GrantError> {
        match self.members.lock().remove(&member.object().object) {
            true => Ok(()),
            false => Err(GrantError::NotFound),
        }
    }

    fn is_member(&self, member: &dyn GrantedObject) -> Result<bool, GrantError> {
        Ok(self.members.lock().contains(&member.object().object))
    }
}

const ALL: Permissions = Permissions::from_bytes([0xFF, 0, 0, 0, 0]);
const ATTRIBUTE: AttributeId = AttributeId::new(0x3000_0000, 1);

fn content(object: &dyn GrantedObject) -> Vec<u8> {
    let mut bytes = vec![0xEE; 4096];
    let length = object.read(0, &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

#[test]
fn changes_are_visible_to_run_only_until_commit() {
    let base = MemoryObject::new(ALL, b"0123456789");
    let stage = StagedOutput::new(1 << 20);
    let object = stage.wrap(base.clone());
    object.write(2, b"abc").unwrap();
    assert_eq!(object.append(b"xyz").unwrap(), 10);
    object.set_attribute(ATTRIBUTE, b"value").unwrap();
    assert_eq!(content(&*object), b"01abc56789xyz");
    assert_eq!(
        (object.length().unwrap(), object.attribute(ATTRIBUTE).unwrap()),
        (13, Some(b"value".to_vec()))
    );
    assert_eq!((content(&*base), base.attribute(ATTRIBUTE).unwrap()), (b"0123456789".to_vec(), None));
    stage.commit().unwrap();
    assert_eq!(
        (content(&*base), base.attribute(ATTRIBUTE).unwrap()),
        (b"01abc56789xyz".to_vec(), Some(b"value".to_vec()))
    );
}

#[test]
fn appends_go_to_true_end_at_commit() {
    let base = MemoryObject::new(Permissions::APPEND, b"one ");
    let stage = StagedOutput::new(1 << 20);
    let object = stage.wrap(base.clone());
    object.append(b"three ").unwrap();
    object.append(b"four").unwrap();
    base.append(b"two ").unwrap();
    stage.commit().unwrap();
    assert_eq!(*base.bytes.lock(), b"one two three four");
}

#[test]
fn write_after_blind_append_is_invalid() {
    let base = MemoryObject::new(Permissions::APPEND.union(Permissions::WRITE), b"stored");
    let stage = StagedOutput::new(1 << 20);
    let object = stage.wrap(base.clone());
    object.write(0, b"S").unwrap();
    assert_eq!(object.append(b" more").unwrap(), 1);
    assert_eq!(object.write(0, b"wrong"), Err(GrantError::Invalid));
    assert_eq!(object.append(b" data").unwrap(), 6);
    let child = object.create().unwrap();
    child.append(b"abc").unwrap();
    child.write(1, b"x").unwrap();
    stage.commit().unwrap();
    assert_eq!(*base.bytes.lock(), b"Stored more data");
    assert_eq!(*base.children.lock()[0].bytes.lock(), b"axc", "a new object was empty");
}

#[test]
fn write_across_append_keeps_other_bytes() {
    let base = MemoryObject::new(ALL, b"0123");
    let stage = StagedOutput::new(1 << 20);
    let object = stage.wrap(base.clone());
    object.append(b"abc").unwrap();
    object.write(2, b"wxyz").unwrap();
    base.append(b"other").unwrap();
    stage.commit().unwrap();
    assert_eq!(*base.bytes.lock(), b"01wxotheryzc");
}

#[test]
fn missing_rights_are_refused_before_commit() {
    let stage = StagedOutput::new(1 << 20);
    let object = stage.wrap(MemoryObject::new(Permissions::READ, b"abc"));
    assert_eq!(object.write(0, b"x"), Err(GrantError::AccessDenied));
    assert_eq!(object.append(b"x"), Err(GrantError::AccessDenied));
    assert_eq!(object.set_attribute(ATTRIBUTE, b"x"), Err(GrantError::AccessDenied));
    assert_eq!(object.remove(), Err(GrantError::AccessDenied));
    let blind = stage.wrap(MemoryObject::new(Permissions::WRITE, b"abc"));
    assert_eq!(blind.read(0, &mut [0; 3]), Err(GrantError::AccessDenied));
}

#[test]
fn stage_has_limit_of_bytes() {
    let stage = StagedOutput::new(ENTRY_BYTES + 10);
    let object = stage.wrap(MemoryObject::new(ALL, b""));
    object.write(0, &[1; 10]).unwrap();
    assert_eq!(object.write(10, b"x"), Err(GrantError::TooLarge));
    assert_eq!(object.write(u64::MAX, b"ab"), Err(GrantError::TooLarge));
}

#[test]
fn created_objects_are_removed_on_failure() {
    let base = MemoryObject::new(ALL, b"");
    let stage = StagedOutput::new(1 << 20);
    let partition = stage.wrap(base.clone());
    let child = partition.create().unwrap();
    child.write(0, b"partial").unwrap();
    let created = Arc::clone(&base.children.lock()[0]);
    assert_eq!(content(&*created), b"", "staged");
    stage.discard();
    assert!(*created.is_removed.lock() && !*base.is_removed.lock());
}

#[test]
fn removed_object_does_not_exist_for_run() {
    let base = MemoryObject::new(ALL, b"abc");
    let stage = StagedOutput::new(1 << 20);
    let object = stage.wrap(base.clone());
    object.remove().unwrap();
    assert_eq!(object.length(), Err(GrantError::NotFound));
    assert!(!*base.is_removed.lock());
    stage.commit().unwrap();
    assert!(*base.is_removed.lock());
}

proptest! {
    /// A staged object reads, and becomes, what direct writes produce.
    #[test]
    fn staged_writes_equal_direct_writes(writes in proptest::collection::vec((0_u64..60, proptest::collection::vec(any::<u8>(), 0..30), any::<bool>()), 0..20)) {
        let (direct, base) = (MemoryObject::new(ALL, b"0123456789"), MemoryObject::new(ALL, b"0123456789"));
        let stage = StagedOutput::new(1 << 20);
        let staged = stage.wrap(base.clone());
        for (offset, data, is_append) in &writes {
            if *is_append {
                prop_assert_eq!(direct.append(data), staged.append(data));
            } else {
                direct.write(*offset, data).unwrap();
                staged.write(*offset, data).unwrap();
            }
            prop_assert_eq!(content(&*direct), content(&*staged));
        }
        prop_assert_eq!(content(&*base), b"0123456789");
        stage.commit().unwrap();
        prop_assert_eq!(content(&*direct), content(&*base));
    }
}

#[test]
fn staged_clear_is_applied_at_commit() {
    let base = MemoryObject::new(ALL, b"0123456789");
    let stage = StagedOutput::new(10_000);
    let object = stage.wrap(base.clone());
    object.clear(8, 4).unwrap();
    assert_eq!(content(&*object), b"01234567\0\0\0\0");
    assert_eq!(content(&*base), b"0123456789");
    assert_eq!(object.clear(0, 1 << 60), Err(GrantError::TooLarge), "beyond what can be staged");
    assert_eq!(object.clear(1, u64::MAX), Err(GrantError::Invalid));
    stage.commit().unwrap();
    assert_eq!(content(&*base), b"01234567\0\0\0\0");
    let reader = StagedOutput::new(100).wrap(MemoryObject::new(Permissions::READ, b"x"));
    assert_eq!(reader.clear(0, 1), Err(GrantError::AccessDenied));
}

#[test]
fn staged_memberships_are_applied_at_commit() {
    let collection = MemoryObject::of_kind(ObjectType::Collection, 0x10009, ALL, b"");
    let members = [0x10001, 0x10002].map(|number| MemoryObject::of_kind(ObjectType::User, number, ALL, b""));
    collection.add_member(&*members[1]).unwrap();
    let stage = StagedOutput::new(1 << 20);
    let staged = stage.wrap(collection.clone());
    let [first, second] = members.map(|member| stage.wrap(member));
    staged.add_member(&*first).unwrap();
    staged.remove_member(&*second).unwrap();
    assert_eq!((staged.is_member(&*first), staged.is_member(&*second)), (Ok(true), Ok(false)));
    assert_eq!(staged.remove_member(&*second), Err(GrantError::NotFound));
    assert_eq!(first.add_member(&*staged), Err(GrantError::Invalid), "no collection");
    assert_eq!(Vec::from_iter(collection.members.lock().iter().copied()), [0x10002]);
    stage.commit().unwrap();
    assert_eq!(Vec::from_iter(collection.members.lock().iter().copied()), [0x10001]);
    // A member that joins and leaves in one run.
    let stage = StagedOutput::new(1 << 20);
    let (staged, third) = (stage.wrap(collection.clone()), stage.wrap(MemoryObject::new(ALL, b"")));
    staged.remove_member(&*third).unwrap();
    staged.add_member(&*third).unwrap();
    staged.remove_member(&*third).unwrap();
    stage.commit().unwrap();
    assert!(collection.members.lock().is_empty());
}

#[test]
fn member_that_joined_is_removed_in_same_run() {
    let collection = MemoryObject::of_kind(ObjectType::Collection, 0x10009, ALL, b"");
    let member = MemoryObject::new(ALL, b"");
    let stage = StagedOutput::new(1 << 20);
    // The handle of the member comes first.
    let (object, staged) = (stage.wrap(member.clone()), stage.wrap(collection.clone()));
    staged.add_member(&*object).unwrap();
    object.remove().unwrap();
    stage.commit().unwrap();
    assert!(*member.is_removed.lock());
}

#[test]
fn created_collection_is_removed_unless_committed() {
    let base = MemoryObject::of_kind(ObjectType::Collection, 0, ALL, b"");
    let stage = StagedOutput::new(1 << 20);
    let created = stage.wrap(base.clone()).create_collection().unwrap();
    created.remove_collection(false).unwrap();
    assert_eq!(created.remove_collection(false), Err(GrantError::NotFound));
    let children = base.children.lock();
    assert!(!*children[0].is_removed.lock(), "until the commit");
    stage.commit().unwrap();
    assert!(*children[0].is_removed.lock());
    drop(children);
    let stage = StagedOutput::new(1 << 20);
    stage.wrap(base.clone()).create_collection().unwrap();
    stage.discard();
    assert!(*base.children.lock()[1].is_removed.lock());
}
