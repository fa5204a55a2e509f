//! Operands of SET KEY and SET MASTER KEY.

use super::error::CdbError;
use super::operands::{Operands, TWO_BITS};
use super::pointer;
use super::wire::CdbWire;
use crate::ObjectId;

/// Seven bytes by which a security manager identifies a key; not secret.
pub type KeyIdentifier = [u8; 7];

/// The key that SET KEY sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyToSet {
    /// The root key.
    Root,
    /// The key of the partition.
    Partition,
    /// Working key 0 to 15 of the partition.
    Working(u8),
}

/// KEY VERSION, in byte 24.
const VERSION: u8 = 0x0F;

/// SET KEY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetKey {
    /// The partition; 0 for the root.
    pub partition: u64,
    /// The key to set.
    pub key: KeyToSet,
    /// Its new identifier.
    pub identifier: KeyIdentifier,
    /// The seed that it is derived from.
    pub seed: [u8; 20],
}

impl Operands for SetKey {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        let (version, identifier) = key_object(wire);
        let key = match (wire.head.specific_bits & TWO_BITS, version & VERSION) {
            (1, 0) => KeyToSet::Root,
            (2, 0) => KeyToSet::Partition,
            (3, version) => KeyToSet::Working(version),
            // Only working keys have versions: a version implies a working key.
            (1 | 2, _) => return Err(CdbError::reserved(pointer::OBJECT)),
            _ => return Err(CdbError::reserved(pointer::SPECIFIC_BITS)),
        };
        Ok(Self { partition: wire.head.partition.get(), key, identifier, seed: wire.head.specific })
    }
    fn write(&self, wire: &mut CdbWire) {
        let (bits, version) = match self.key {
            KeyToSet::Root => (1, 0),
            KeyToSet::Partition => (2, 0),
            KeyToSet::Working(version) => (3, version & VERSION),
        };
        wire.head.specific_bits |= bits;
        wire.head.partition = self.partition.into();
        set_key_object(wire, version, self.identifier);
        wire.head.specific = self.seed;
    }
    fn object(&self) -> ObjectId {
        ObjectId::of_partition(self.partition)
    }
}

/// The two steps of SET MASTER KEY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DhStep {
    /// Exchange of the Diffie-Hellman values.
    SeedExchange,
    /// Proof of both values; the key changes.
    ChangeMasterKey,
}

/// SET MASTER KEY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetMasterKey {
    /// The step.
    pub step: DhStep,
    /// Code of the Diffie-Hellman group.
    pub group: u8,
    /// The key's new identifier.
    pub identifier: KeyIdentifier,
    /// PARAMETER LIST LENGTH: bytes of data-out.
    pub parameter_length: u32,
    /// ALLOCATION LENGTH: bytes of data-in.
    pub allocation: u32,
}

impl Operands for SetMasterKey {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        let step = match wire.head.specific_bits & TWO_BITS {
            0 => DhStep::SeedExchange,
            1 => DhStep::ChangeMasterKey,
            _ => return Err(CdbError::reserved(pointer::SPECIFIC_BITS)),
        };
        let (group, identifier) = key_object(wire);
        let [a, b, c, d, e, f, g, h, ..] = wire.head.specific;
        let (parameter_length, allocation) =
            (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        Ok(Self { step, group, identifier, parameter_length, allocation })
    }
    fn write(&self, wire: &mut CdbWire) {
        wire.head.specific_bits |= self.step as u8;
        set_key_object(wire, self.group, self.identifier);
        wire.head.specific[..4].copy_from_slice(&self.parameter_length.to_be_bytes());
        wire.head.specific[4..8].copy_from_slice(&self.allocation.to_be_bytes());
    }
    fn object(&self) -> ObjectId {
        ObjectId::ROOT
    }
    fn sizes(&self) -> (u64, u64) {
        (self.parameter_length.into(), self.allocation.into())
    }
}

/// Bytes 24–31 of the key commands: one byte and a key identifier.
const fn key_object(wire: &CdbWire) -> (u8, KeyIdentifier) {
    let [first, a, b, c, d, e, f, g] = wire.head.object.get().to_be_bytes();
    (first, [a, b, c, d, e, f, g])
}

fn set_key_object(wire: &mut CdbWire, first: u8, [a, b, c, d, e, f, g]: KeyIdentifier) {
    wire.head.object = u64::from_be_bytes([first, a, b, c, d, e, f, g]).into();
}
