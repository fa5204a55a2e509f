//! The seam for stored digests: what a protected read needs instead of hashing the data.
//!
//! Does: keep the digest of each unit beside its bytes, by the profile of the partition, and one of each attribute
//! page. Does not: authenticate; a MAC over the values does.
//! Contract: a value that is given is that of the bytes that were written, or there is none; with the bytes of a read
//! come the values of the same moment. What is not known is computed from bytes whose checksum was right. Bytes that
//! nobody compared with a checksum come with the value that they must have ([`Checked::ByReceiver`]).
//! Truth: docs/design/store.md, "Digests"; docs/design/security.md 5.1 to 5.5.

use sealstone_digest::{Covered, Profile, Value};
use sealstone_osd::ObjectId;

use crate::StoreError;

/// Who compares the bytes of units whose digests are stored with what is stored of them. All other bytes of a read (units
/// that its ends cut, holes, units whose digest is not known) the store compares with their checksums in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Whoever gets the bytes, by the digests that come with them. He must not use the bytes without, nor make digests
    /// out of them. Of an object that is known to be damaged the store checks all the same.
    ByReceiver,
    /// The store: the bytes by their checksums, and the stored digests by the bytes. `Damaged` says what is wrong.
    ByStore,
}

/// What [`Digests::read_digested`] gives beside the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digested {
    /// Bytes read; short only at the object's end.
    pub count: usize,
    /// Length of the object in bytes.
    pub object_length: u64,
    /// The digests of the bytes read; `None` if the partition has no profile.
    pub covered: Option<Covered>,
    /// How many of the whole units' values were stored, and not computed for this read.
    pub stored: u64,
}

/// What [`Digests::digests`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownDigests {
    /// Length of the object in bytes.
    pub object_length: u64,
    /// The profile of the values; `None` if the partition has none.
    pub profile: Option<Profile>,
    /// The first unit that lies in the range as a whole.
    pub first_unit: u64,
    /// For it and those that follow: the stored value, or `None` for a hole and for what is not known.
    pub values: Vec<Option<Value>>,
}

/// Digests of objects' bytes and attribute pages.
pub trait Digests: Send + Sync {
    /// The profile of a partition's objects: the default one unless another was set; `None` means checksums alone.
    fn profile(&self, partition: u64) -> Option<Profile>;

    /// Sets the profile of a partition that has no objects yet, or whose profile was lost to damage. `NotFound` if there
    /// is no such partition, `Exists` with the first object if it has any. It ends with the partition.
    fn set_profile(&self, partition: u64, profile: Option<Profile>) -> Result<(), StoreError>;

    /// The stored digests of the units that lie as a whole in a range; reads no data. `TooLarge` above
    /// [`MAX_TRANSFER`](crate::MAX_TRANSFER).
    fn digests(&self, id: ObjectId, offset: u64, length: u64) -> Result<KnownDigests, StoreError>;

    /// As `read`, with the digests of what was read, and told who checks it.
    fn read_digested(
        &self,
        id: ObjectId,
        offset: u64,
        into: &mut [u8],
        checked: Checked,
    ) -> Result<Digested, StoreError>;

    /// As `write`, for a caller who has the digests of the data: `covered` was made from `data`, with a cover that
    /// starts at `offset`. Values of another profile than the partition's are not used.
    fn write_digested(
        &self,
        id: ObjectId,
        offset: u64,
        data: &[u8],
        covered: &Covered,
    ) -> Result<(), StoreError>;

    /// The digest of an attribute page as it is stored ([`AttributePage`](sealstone_digest::AttributePage), by
    /// ascending numbers); `None` if the partition has no profile. Computed when first asked for after a change, and
    /// kept.
    fn page_digest(&self, id: ObjectId, page: u32) -> Result<Option<Value>, StoreError>;
}
