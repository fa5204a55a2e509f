//! Objects, attributes and extents on a medium: the trait, and the memory and disk backends.
//!
//! Does: keeps bytes and attributes by object id, survives power loss, reports exactly what was
//! lost.
//! Does not: know OSD commands, permissions or the rules of partitions; `sealstone-osd-device`
//! does.
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

pub use compare::ObjectComparison;
pub use damage::{Damage, DamageKind, MAX_DAMAGE, StoreFault, StoreHealth};
pub use digests::{DigestCheck, DigestStore, DigestedRead, KnownDigests};
pub use disk::{
    BackgroundThread, DiskStore, FormatOptions, InlineUse, MAX_INLINE, MIN_CAPACITY, PreviousShutdown,
    ScrubProgress, ScrubStep, StoreOptions, StoreScrub, bytes_with_reserve, format, preallocate,
};
pub use error::{FormatError, StoreError};
pub use examine::{CompletedDigests, ExaminationStep, ObjectExamination, ObjectExaminer, PIECE};
pub use medium::{
    BlockDevice, DEVICE_MIN, DeviceMedium, FileMedium, FreeSpace, IoMode, Medium, MediumFile, bind_device,
    free_space_of, open_store_medium, survey_device,
};
pub use memberships::{MAX_MEMBERSHIPS, Memberships};
pub use memory::MemoryStore;
pub use store::{
    AttributeId, BLOCK, ExtentKind, GroupScope, MAP_PIECES_MAX, MAX_ATTRIBUTE_LENGTH,
    MAX_ATTRIBUTES_PER_OBJECT, MAX_EXTENTS, MAX_LIST, MAX_OBJECT_LENGTH, MAX_TRANSFER, ObjectExtent,
    ObjectStat, ObjectStore, SharedSpace, Space,
};
