//! The targets, a file for each crate or group.

pub(crate) mod block;
#[cfg(feature = "client")]
pub(crate) mod client;
#[cfg(feature = "client")]
pub(crate) mod client_link;
pub(crate) mod device;
pub(crate) mod function_ring;
#[cfg(feature = "client")]
pub(crate) mod fuse;
pub(crate) mod initiator;
pub(crate) mod iscsi;
pub(crate) mod iscsi_login;
pub(crate) mod ldap;
pub(crate) mod login;
pub(crate) mod mds;
pub(crate) mod mds_connection;
pub(crate) mod osd;
pub(crate) mod osd_function;
pub(crate) mod osd_lists;
pub(crate) mod paper;
pub(crate) mod receipt;
pub(crate) mod scsi;
pub(crate) mod seal;
pub(crate) mod shell;
pub(crate) mod sntp;
pub(crate) mod store;
