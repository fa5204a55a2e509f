//! OSD commands under credentials.

mod arrival;
mod assemble;
mod bearer;
mod client;
mod collections;
mod commands;
mod dial;
mod outcome;
mod translate;

pub use bearer::{Bearer, BearerError};
pub use client::{OsdClient, OsdOptions};
pub use dial::{CONNECT_TIMEOUT, Dial, Dialed, Dialing, TcpDial, TlsPolicy};
