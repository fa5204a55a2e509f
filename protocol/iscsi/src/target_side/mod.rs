//! One iSCSI connection (and so one session), target side.
//!
//! Does: login with CHAP and access rules, discovery, collecting data-out, splitting data-in,
//! status and residuals, command window, task management bookkeeping, pings, logout, Reject.
//! Does not: touch sockets or clocks, execute commands, know other sessions (the shell does
//! reinstatement and resets across sessions).
//! Contract: fill [`TargetConnection::rx_space`], call [`TargetConnection::received`], drain
//! [`TargetConnection::poll_event`] and [`TargetConnection::poll_transmit`] after every call, call
//! [`TargetConnection::handle_timeout`] when [`TargetConnection::poll_timeout`] is due, and
//! [`TargetConnection::memory_freed`] when [`TargetConnection::is_starved`] and the pool got
//! buffers back. After [`TargetEvent::Closed`] write what is left to transmit and close the socket.
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

pub use access::{AccessRule, AccessRules, LoginGuard, SenseFormat};
pub use orders::TaskSelection;
pub use session::TargetConnection;
pub use types::{
    CommandReply, LoginRequest, ManagementFunction, ManagementResult, PortalConfig, ReceivedCommand, Refusal,
    SessionKind, TargetClosed, TargetEntry, TargetEvent, Violation,
};
