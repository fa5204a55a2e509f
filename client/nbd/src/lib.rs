//! An NBD server on a Unix socket, for programs that use a disk without kernel support: qemu,
//! libnbd, fio.
//!
//! Does: fixed newstyle negotiation, structured replies, block status, many requests in flight on
//! many connections. Limits requests and bytes.
//! Does not: TLS or TCP, since the socket is for one user of this machine; resize; cache.
//! Contract: a backend gets only aligned extents within its size, and one successful reply for a
//! flush covers all writes that were acknowledged on any connection before.
//! Truth: doc/proto.md of the NBD project; docs/standards/nbd.md.

mod backend;
mod budget;
mod connection;
mod e2e_backend;
mod handshake;
mod server;
mod socket;
mod unit_backend;
mod wire;

pub use backend::{BlockBackend, ExportProperties, NbdError, StatusExtent};
pub use budget::CONNECTIONS_MAX;
pub use e2e_backend::E2eBackend;
pub use handshake::{ExportName, ExportNameError, Handshake, HandshakeStep};
pub use server::{DRAIN_TIMEOUT, serve};
pub use socket::{NbdSocket, SocketError};
pub use unit_backend::UnitBackend;
pub use wire::{
    NbdCommand, NbdRequest, NbdViolation, OptionHeader, REQUEST_BYTES, TRANSFER_MAX, parse_option_header,
    parse_request,
};
