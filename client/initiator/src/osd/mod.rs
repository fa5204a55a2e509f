//! OSD commands under credentials: `translate` makes the command, `assemble` lays it out and signs
//! it, `client` sends it, `outcome` verifies the answer.

mod assemble;
mod bearer;
mod client;
mod collections;
mod commands;
mod data_in_hasher;
mod dial;
mod outcome;
mod translate;

pub use bearer::{Bearer, BearerError};
pub use client::{OsdClient, OsdOptions};
pub use dial::{CONNECT_TIMEOUT, Dial, Dialed, Dialing, TcpDial, TlsPolicy};
