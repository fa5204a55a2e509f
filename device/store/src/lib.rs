//! Objects, attributes and extents on a medium: the trait, and the memory and disk backends.
//!
//! Does: keeps bytes and attributes by object id, survives power loss, reports exactly what was
//! lost.
//! Does not: know OSD commands, permissions or the rules of partitions; `sealstone-device` does.
//! Contract: [`ObjectStore`], and the suite in [`contract`], which every backend passes.
//! Source of truth: `docs/design/store.md`.

mod compare;
pub mod contract;
mod crc;
mod damage;
mod digests;
pub mod disk;
mod error;
mod examine;
pub mod medium;
mod memberships;
mod memory;
pub mod sim;
mod store;

pub use compare::Comparison;
pub use damage::{Damage, DamageKind, Health, MAX_DAMAGE, StoreFault};
pub use digests::{Checked, Digested, Digests, KnownDigests};
pub use disk::{
    Background, DiskStore, FormatOptions, InlineUse, MAX_INLINE, MIN_CAPACITY, Options, PreviousShutdown,
    Scrub, ScrubProgress, ScrubStep, bytes_with_reserve, format, preallocate,
};
pub use error::{FormatError, StoreError};
pub use examine::{Completed, Examination, Examine, Examined, PIECE};
pub use medium::{
    BlockDevice, DEVICE_MIN, DeviceMedium, FileMedium, FreeSpace, Io, Medium, MediumFile, bind_device,
    free_space_of, open_place, survey_device,
};
pub use memberships::{MAX_MEMBERSHIPS, Memberships};
pub use memory::MemoryStore;
pub use store::{
    AttributeId, BLOCK, MAP_PIECES_MAX, MAX_ATTRIBUTE_LENGTH, MAX_ATTRIBUTES_PER_OBJECT, MAX_LIST,
    MAX_OBJECT_LENGTH, MAX_STRETCHES, MAX_TRANSFER, ObjectStore, Scope, SharedSpace, Space, Stat, Stretch,
    StretchKind,
};
