//! Storage of block units with lazy decryption and lazy authentication, on objects of the store.
//!
//! Does: keeps sealed blocks, their keys and MACs; keeps unverified writes as versions in a log;
//! verifies and commits them; deletes versions that are not authentic; numbers the sessions of
//! units with keys of their own.
//! Does not: SCSI, sockets, timers; the caller passes the time.
//! Contract: after [`LazyVolume::synchronize`], every write acknowledged before survives a power
//! failure, as a version or committed. A block reads as a version of one write, with the keys and
//! the MAC of this write. `paper+safe` and `modern` never delete a version on a client's report.
//! Truth: `docs/design/block-lazy.md`; ADR 74.

mod config;
mod damage;
mod error;
mod index;
mod key_pages;
mod key_sessions;
mod layout;
mod modern;
mod paper;
mod paper_safe;
mod policy;
mod secret_check;
mod status;
mod unit_keys;
mod version_log;
mod volume;
mod window;

pub use config::{LazyLimits, LazyUnit, PageSecret, RandomSource, WriterId};
pub use damage::DamagedBlocks;
pub use error::LazyError;
pub use key_sessions::SessionUnitKeys;
pub use layout::{LAZY_PARTITION, VersionNumber};
pub use policy::{ReadVerdict, RejectedVersion};
pub use status::LazyStatus;
pub use volume::{LazyVolume, LazyWrite, VersionedBlocks};
