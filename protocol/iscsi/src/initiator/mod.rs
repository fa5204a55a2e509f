//! One iSCSI connection (and so one session), initiator side.
//!
//! Does: login, discovery, commands with data both ways, task management, pings, logout.
//! Does not: touch sockets or clocks, queue commands beyond the target's window, time single
//! commands (callers abort them), reconnect.
//! Contract: fill [`Connection::rx_space`], call [`Connection::received`], drain
//! [`Connection::poll_event`] and [`Connection::poll_transmit`] after every call, call
//! [`Connection::handle_timeout`] when [`Connection::poll_timeout`] is due. After [`Event::Closed`]
//! write what is left to transmit and close the socket.
//! Source of truth: RFC 7143; docs/standards/iscsi.md.

mod full;
mod login;
mod session;
#[cfg(test)]
mod tests;
mod types;

pub use session::Connection;
pub use types::{
    Chap, Closed, Command, Config, DiscoveredTarget, Event, Function, FunctionResult, LoginRefusal, NotSent,
    Response, SubmitError, TaskFailure, Violation,
};
