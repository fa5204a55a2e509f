//! Stored digests: an integrity-protected read returns them instead of hashing the data.
//!
//! Does: keeps the digest of each unit with its bytes, by the profile of the partition, and one of
//! each attribute page.
//! Does not: authenticate; a MAC over the values does.
//! Contract: a returned digest is that of the bytes that were written, or there is none. A read
//! returns bytes and digests of the same moment. Unknown digests are computed from bytes whose
//! checksum was right. Bytes that were not compared with a checksum are returned with the digest
//! that they must have ([`DigestCheck::ByReceiver`]).
//! Source of truth: docs/design/store.md, "Digests"; docs/design/security.md 5.1 to 5.5.

use sealstone_digest::{CoveredDigests, DigestValue, Profile};
use sealstone_osd::ObjectId;

use crate::StoreError;

/// Which side compares bytes with stored digests. It concerns whole units with a stored digest; the
/// store compares all other bytes of a read (partial units, holes, units without a digest) with
/// their checksums in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestCheck {
    /// The receiver of the bytes compares them with the returned digests. It must not use the bytes
    /// before, nor compute digests from them. The store still checks objects with known damage
    /// itself.
    ByReceiver,
    /// The store compares the bytes with their checksums, and the stored digests with the bytes. It
    /// fails with `Damaged`.
    ByStore,
}

/// Result of [`DigestStore::read_digested`] besides the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestedRead {
    /// Number of bytes read; short only at the object's end.
    pub count: usize,
    /// Length of the object in bytes.
    pub object_length: u64,
    /// The digests of the bytes read; `None` if the partition has no profile.
    pub covered: Option<CoveredDigests>,
    /// Number of whole units whose digest was stored rather than computed for this read.
    pub stored: u64,
}

/// Result of [`DigestStore::digests`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownDigests {
    /// Length of the object in bytes.
    pub object_length: u64,
    /// The profile of the values; `None` if the partition has none.
    pub profile: Option<Profile>,
    /// The first unit that lies completely in the range.
    pub first_unit: u64,
    /// The stored values of that unit and the following ones; `None` for a hole or an unknown
    /// value.
    pub values: Vec<Option<DigestValue>>,
}

/// Digests of objects' bytes and attribute pages.
pub trait DigestStore: Send + Sync {
    /// Returns the profile of a partition's objects: the default one unless another was set; `None`
    /// means checksums alone.
    fn profile(&self, partition: u64) -> Option<Profile>;

    /// Sets the profile of a partition that has no objects yet, or whose profile was lost to
    /// damage. Fails with `NotFound` if there is no such partition, and with `Exists` and the first
    /// object if it has any. Removing the partition deletes the profile.
    fn set_profile(&self, partition: u64, profile: Option<Profile>) -> Result<(), StoreError>;

    /// Returns the stored digests of the units that lie completely in a range; reads no data. Fails
    /// with `TooLarge` above [`MAX_TRANSFER`](crate::MAX_TRANSFER).
    fn digests(&self, id: ObjectId, offset: u64, length: u64) -> Result<KnownDigests, StoreError>;

    /// Like `read`, with the digests of the bytes; `checked` says which side compares them.
    fn read_digested(
        &self,
        id: ObjectId,
        offset: u64,
        into: &mut [u8],
        checked: DigestCheck,
    ) -> Result<DigestedRead, StoreError>;

    /// Like `write`, for a caller that has the digests of the data. `covered` was computed from
    /// `data`, with a cover that starts at `offset`; digests of another profile than the
    /// partition's are ignored.
    fn write_digested(
        &self,
        id: ObjectId,
        offset: u64,
        data: &[u8],
        covered: &CoveredDigests,
    ) -> Result<(), StoreError>;

    /// Returns the digest of an attribute page ([`AttributePage`](sealstone_digest::AttributePage),
    /// by ascending numbers); `None` if the partition has no profile. The first call after a change
    /// computes and stores it.
    fn page_digest(&self, id: ObjectId, page: u32) -> Result<Option<DigestValue>, StoreError>;
}
