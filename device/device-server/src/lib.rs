//! A device as a library: its configuration, its start, and the handle of the running device.
//!
//! Does: serves the logical unit, block units and functions of a data folder over iSCSI; creates
//! and administers such folders.
//! Does not: parse options, print, take signals or end the process.
//! Contract: [`DeviceServer::start`] returns when clients can connect. [`DeviceServer::join`]
//! returns after the last flush. Several devices can run in one process.
//! Truth: docs/design/architecture.md; docs/reference/files.md (data folder).

mod audit;
mod block_secret;
mod blocks;
mod config;
mod control;
mod create;
mod environment;
mod failures;
mod functions;
pub mod identity;
mod metrics;
mod scrub;
mod server;
mod stopped;
mod target;
mod upkeep;

pub use blocks::{
    END_TO_END, ProtectionReport, RemovedUnit, RotatedUnit, SessionFailures, UnitParams, UnitReport,
};
pub use config::{DeviceServerConfig, FunctionSettings, PortalTls};
pub use control::{ControlRequest, send_request};
pub use create::{CreatedDevice, StorePlace, create_device, new_key};
pub use environment::MachineEnvironment;
pub use functions::{EngineReport, FunctionStatus, LayerReport, engine_folders, installed_folders};
pub use scrub::{DamageReport, DamagedRange, ScrubAction, ScrubReport, UnreadObject};
pub use server::DeviceServer;
pub use stopped::{administer, open_stopped};
