//! The 96 bytes that a range's digests are bound to before the MAC.
//!
//! Does: say what was asked for and what was moved, so that digests cannot be taken for those of another object,
//! range, direction, generation or command.
//! Truth: docs/design/security.md 5.1.

use crate::Profile;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 96;
/// Its first bytes.
const MAGIC: &[u8; 6] = b"OSDHM\0";
/// Version of the layout.
const VERSION: u8 = 1;

/// Which way the data goes, as seen by the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// From the device: a read.
    In = 1,
    /// To the device: a write.
    Out = 2,
}

/// What a list of digests is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeHeader {
    /// The profile of the values; `LtHash` is written as `Blake3`.
    pub profile: Profile,
    /// Which way the data goes.
    pub direction: Direction,
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
    /// How many values follow.
    pub digests: u32,
    /// Bytes of attributes to set.
    pub set_attributes: u64,
    /// Bytes of attributes asked for.
    pub get_attributes: u64,
}

impl RangeHeader {
    /// The header as bytes, big endian.
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
