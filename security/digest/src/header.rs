//! The 96-byte header that binds a range's digests to their context before the MAC.
//!
//! Does: states what was requested and transferred, so that digests cannot be used for another
//! object, range, direction, generation or command.
//! Source of truth: docs/design/security.md 5.1.

use crate::Profile;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 96;
/// Its first bytes.
const MAGIC: &[u8; 6] = b"OSDHM\0";
/// Version of the layout.
const VERSION: u8 = 1;

/// Direction of the data, as seen by the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DataDirection {
    /// From the device: a read.
    In = 1,
    /// To the device: a write.
    Out = 2,
}

/// The context of a list of digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeHeader {
    /// The profile of the values; `LtHash` is written as `Blake3`.
    pub profile: Profile,
    /// Direction of the data.
    pub direction: DataDirection,
    /// The nonce of the request.
    pub nonce: [u8; 12],
    /// The object's partition.
    pub partition: u64,
    /// The object's number.
    pub object: u64,
    /// First byte in the object.
    pub start: u64,
    /// Bytes moved.
    pub moved: u64,
    /// Length of the object in bytes; for a write as the profile's protocol says.
    pub object_length: u64,
    /// Generation of the object; 0 in the paper's profiles.
    pub generation: u64,
    /// Number of values that follow.
    pub digests: u32,
    /// Bytes of attributes to set.
    pub set_attributes: u64,
    /// Bytes of requested attributes.
    pub get_attributes: u64,
}

impl RangeHeader {
    /// Returns the header as bytes, big endian.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        let profile = self.profile.values();
        // The hash of edges and attributes: SHA-1 or BLAKE3.
        let hash = match profile {
            Profile::Sha1 | Profile::AdHash128 | Profile::AdHash256 => Profile::Sha1,
            Profile::Blake3 | Profile::LtHash => Profile::Blake3,
        };
        put(0, MAGIC);
        put(6, &[VERSION, profile.code(), self.direction as u8, hash.code()]);
        put(12, &self.nonce);
        put(24, &self.partition.to_be_bytes());
        put(32, &self.object.to_be_bytes());
        put(40, &self.start.to_be_bytes());
        put(48, &self.moved.to_be_bytes());
        put(56, &self.object_length.to_be_bytes());
        put(64, &self.generation.to_be_bytes());
        put(72, &(profile.unit_bytes() as u32).to_be_bytes());
        put(76, &self.digests.to_be_bytes());
        put(80, &self.set_attributes.to_be_bytes());
        put(88, &self.get_attributes.to_be_bytes());
        out
    }
}
