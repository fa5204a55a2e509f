//! Protocol violations: frames that no correct client sends.
//!
//! Does: name the reason for the audit log and describe it in the server's log. The peer only
//! learns that its message was malformed.
//! Truth: docs/standards/login-attacks.md has the attacks that end here.

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{UserName, WireError};

use crate::counters::add;
use crate::limiter::LoginSource;
use crate::server::Mds;

/// Reasons for closing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolViolation {
    /// Not a frame of this profile, or longer than allowed.
    #[error("invalid frame: {0}")]
    Frame(WireError),
    /// A body that does not parse as its type.
    #[error("malformed message: {0}")]
    Malformed(WireError),
    /// A message that is not allowed in this state.
    #[error("unexpected message")]
    OutOfPlace,
    /// A repeated or skipped sequence number, or one that is not expected here.
    #[error("sequence {0} out of order")]
    Sequence(u32),
    /// The connection has used all its sequence numbers.
    #[error("sequence numbers are used up")]
    Exhausted,
    /// LOGOUT names a session that is not the connection's.
    #[error("message for another session")]
    OtherSession,
    /// REGISTER_UPLOAD has another user or code than REGISTER_START.
    #[error("enrolment upload does not match its start")]
    OtherEnrolment,
    /// The identity element, or bytes that are not a group element.
    #[error("invalid group element")]
    Element,
    /// An unknown login suite.
    #[error("unknown login suite {0:#06x}")]
    Suite(u16),
    /// An invalid registration record, or one of a suite for key files.
    #[error("invalid password record")]
    Record,
}

impl ProtocolViolation {
    /// Returns its name in the audit log.
    pub(crate) const fn verdict(&self) -> &'static str {
        match self {
            Self::Frame(WireError::TooLong { .. }) => "oversize",
            Self::Frame(_) => "foreign-frame",
            Self::Malformed(_) => "malformed",
            Self::OutOfPlace => "out-of-place",
            Self::Sequence(_) => "sequence",
            Self::Exhausted => "exhausted",
            Self::OtherSession => "other-session",
            Self::OtherEnrolment => "other-enrolment",
            Self::Element => "element",
            Self::Suite(_) => "suite",
            Self::Record => "record",
        }
    }
}

/// Context of a violation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ViolationContext<'a> {
    /// Action of the audit record: `login`, `enrol`, `resume`, `session`, or one of these with the
    /// prefix `paper-`.
    pub(crate) action: &'static str,
    /// Type of the frame; empty if it was not a frame.
    pub(crate) message: &'static str,
    /// Claimed user.
    pub(crate) user: Option<&'a UserName>,
    /// Session of the connection.
    pub(crate) session: Option<&'a SessionId>,
}

impl Mds {
    /// Counts a violation, logs it and writes an audit record.
    pub(crate) fn record_violation(
        &self,
        source: LoginSource,
        at: ViolationContext<'_>,
        why: &ProtocolViolation,
        time_ms: u64,
    ) {
        add(&self.counters.violations, 1);
        let ViolationContext { action, message, user, session } = at;
        tracing::info!(%source, action, frame = message, reason = %why, "connection refused");
        // A session in the context is always the connection's own.
        if session.is_some() {
            self.audit_proven(source, action, user, session, why.verdict(), time_ms);
        } else {
            self.audit_login(source, action, user, session, why.verdict(), time_ms);
        }
    }
}
