//! Block logical units (SBC-3) on top of user objects of the store.
//!
//! Does: execute SCSI block commands on one object of the store: data, provisioning, reservations,
//! mode pages. Keeps the catalogue of a device's block units.
//! Does not: transport or login; the target does.
//! Contract: `LogicalUnit`. GOOD to SYNCHRONIZE CACHE, or to a command with FUA, means durable; so
//! does GOOD to a change of reservations with APTPL. A refused command has changed nothing, unless
//! documented otherwise.
//! Truth: SBC-3, SPC-4, SAM-5 as recorded in `docs/standards/block.md`.

mod catalog;
mod command;
mod command_table;
mod counters;
mod data;
mod dispatch;
mod durability;
mod durable;
mod failure;
mod geometry;
mod inquiry;
mod integrity;
mod lazy;
mod lazy_commands;
mod limits;
mod maintenance;
mod medium;
mod mode;
mod nexus;
mod options;
mod ports;
mod provisioning;
mod reservation;
mod reserve;
mod transfer;
mod transport_id;
mod unit;
mod units;
mod verification;

pub use catalog::{
    BLOCK_PARTITION, CatalogError, DamagedUnit, LUN_MAX, NAME_MAX, NewUnit, UNITS_MAX, UnitDescription,
};
pub use counters::UnitCounters;
pub use geometry::{BlockSize, Geometry, SizeError};
pub use integrity::{IntegrityFailure, IntegrityFailureKind};
pub use options::{
    LazyOptions, LossSink, LostWrites, NoLossSink, StoredSecret, UnitOptions, seals_keys_at_rest,
};
pub use sealstone_block_lazy::{LazyStatus, PageSecret};
pub use sealstone_block_protection::UnitProtection;
pub use unit::BlockUnit;
pub use units::{BlockUnits, UnitStatus};
