//! One iSCSI connection (and so one session), initiator side.
//!
//! Does: login, discovery, commands with data both ways, task management, pings, logout.
//! Does not: touch sockets or clocks, queue commands beyond the target's window, time single
//! commands (callers abort them), reconnect.
//! Contract: fill [`InitiatorConnection::rx_space`], call [`InitiatorConnection::received`], drain
//! [`InitiatorConnection::poll_event`] and [`InitiatorConnection::poll_transmit`] after every call,
//! call [`InitiatorConnection::handle_timeout`] when [`InitiatorConnection::poll_timeout`] is due.
//! After [`InitiatorEvent::Closed`] write what is left to transmit and close the socket.
//! Source of truth: RFC 7143; docs/standards/iscsi.md.

mod full;
mod login;
mod session;
#[cfg(test)]
mod tests;
mod types;

pub use session::InitiatorConnection;
pub use types::{
    CommandResponse, DiscoveredTarget, InitiatorChap, InitiatorClosed, InitiatorConfig, InitiatorEvent,
    LoginRefusal, ManagementFunction, ManagementResult, NotSent, SubmitError, SubmittedCommand, TaskFailure,
    Violation,
};
