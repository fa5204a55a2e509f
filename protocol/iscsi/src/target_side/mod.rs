//! One iSCSI connection (and so one session), target side.
//!
//! Does: login with CHAP and access rules, discovery, collecting data-out, splitting data-in,
//! status and residuals, command window, task management bookkeeping, pings, logout, Reject.
//! Does not: touch sockets or clocks, execute commands, know other sessions (the shell does
//! reinstatement and resets across sessions).
//! Contract: fill [`Connection::rx_space`], call [`Connection::received`], drain
//! [`Connection::poll_event`] and [`Connection::poll_transmit`] after every call, call
//! [`Connection::handle_timeout`] when [`Connection::poll_timeout`] is due, and
//! [`Connection::memory_freed`] when [`Connection::is_starved`] and the pool got buffers back.
//! After [`Event::Closed`] write what is left to transmit and close the socket.
//! Source of truth: RFC 7143; docs/standards/iscsi.md.

mod access;
mod authenticate;
#[cfg(test)]
mod chap_tests;
mod full;
mod login;
mod management;
mod orders;
#[cfg(test)]
mod pull_tests;
mod reply;
mod session;
mod task;
#[cfg(test)]
mod tests;
mod text_phase;
mod types;

pub use access::{Access, Doorkeeper, Rule, SenseFormat};
pub use orders::Meant;
pub use session::Connection;
pub use types::{
    Closed, Command, Config, Event, Function, FunctionResult, LoginRequest, Refusal, Reply, SessionKind,
    TargetEntry, Violation,
};
