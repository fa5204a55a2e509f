//! What no client of ours sends: why a connection is refused.
//!
//! Does: name the reason for the audit log and tell it in words for the server's own. The other end hears that it was
//! malformed, and nothing more.
//! Truth: docs/standards/login-attacks.md has the attacks that end here.

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{UserName, WireError};

use crate::counters::add;
use crate::limiter::Source;
use crate::server::Mds;

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    /// No frame of this profile, or a longer one than is taken.
    #[error("no frame: {0}")]
    Frame(WireError),
    /// A body that is not what its type says.
    #[error("malformed message: {0}")]
    Malformed(WireError),
    /// Not now.
    #[error("message out of place")]
    OutOfPlace,
    /// A repeat, a gap, or a number where none belongs.
    #[error("sequence {0} out of order")]
    Sequence(u32),
    /// All sequence numbers of a connection are used up.
    #[error("sequence numbers are used up")]
    Exhausted,
    /// LOGOUT names a session that is not the connection's.
    #[error("another session than the connection's")]
    OtherSession,
    /// REGISTER_UPLOAD is for another user, or has another code, than the start of it.
    #[error("an enrolment that was begun otherwise")]
    OtherEnrolment,
    /// A point that is the identity, or none.
    #[error("no group element, or the identity")]
    Element,
    /// A login suite that is not ours.
    #[error("unknown login suite {0:#06x}")]
    Suite(u16),
    /// A registration record that is none, or of a suite for key files.
    #[error("no password record")]
    Record,
}

impl Violation {
    /// Its name in the audit log.
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

/// Where a violation happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Where<'a> {
    /// Of the audit record: `login`, `enrol`, `resume`, `session`, or with `paper-` before it.
    pub(crate) action: &'static str,
    /// Type of the frame; nothing if it was none.
    pub(crate) message: &'static str,
    /// Who was said to be there.
    pub(crate) user: Option<&'a UserName>,
    /// The session that the connection is in.
    pub(crate) session: Option<&'a SessionId>,
}

impl Mds {
    /// Counts a violation and writes it down, with its reason.
    pub(crate) fn violated(&self, source: Source, at: Where<'_>, why: &Violation, time_ms: u64) {
        add(&self.counters.violations, 1);
        let Where { action, message, user, session } = at;
        tracing::info!(%source, action, frame = message, reason = %why, "connection refused");
        // Where a session is named, it is the connection's own.
        if session.is_some() {
            self.audit_proven(source, action, user, session, why.verdict(), time_ms);
        } else {
            self.audit_login(source, action, user, session, why.verdict(), time_ms);
        }
    }
}
