//! What the device tells the audit log.
//!
//! Does: describe one command that changed or refused something. Does not: store or format the log; a shell does.
//! Contract: `record` is called on the thread of the command and must not wait for long.
//! Truth: docs/design/architecture.md section 4 (audit), docs/design/security.md section 8 (each refusal is recorded).

use core::fmt;

use sealstone_osd::ObjectId;
use sealstone_scsi::lu::NexusId;

/// How a command ended, as the audit log tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was permitted and done.
    Done,
    /// It was refused for want of authority; the name of the denial.
    Refused(&'static str),
    /// It was permitted and failed; the name of the failure.
    Failed(&'static str),
}

impl Verdict {
    /// `done`, `refused` or `failed`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused(_) => "refused",
            Self::Failed(_) => "failed",
        }
    }

    /// Why, when there is a why.
    #[must_use]
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Done => None,
            Self::Refused(reason) | Self::Failed(reason) => Some(reason),
        }
    }
}

/// The AUDIT field of a capability: who it was issued to, in the security manager's own words. Shown as hex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Principal(pub [u8; 20]);

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// One command, for the audit log.
#[derive(Clone, Copy, Debug)]
pub struct AuditRecord<'a> {
    /// Milliseconds since 1970 by the device's clock.
    pub time_ms: u64,
    /// AUDIT field of the capability; claimed unless `proven`.
    pub principal: Principal,
    /// Was it done, or can only the bearer of the credential have caused it? If not, whoever can connect can cause as
    /// many such records as he likes.
    pub proven: bool,
    /// The nexus it came by.
    pub nexus: NexusId,
    /// iSCSI name of the initiator; empty if the nexus is unknown.
    pub initiator: &'a str,
    /// Name of the command.
    pub action: &'static str,
    /// The object it addressed.
    pub object: ObjectId,
    /// How it ended.
    pub verdict: Verdict,
    /// Sense key, additional sense code and qualifier when it did not end well.
    pub sense: Option<(u8, u8, u8)>,
}

/// Where audit records go.
pub trait AuditSink: Send + Sync {
    /// Takes one record.
    fn record(&self, record: &AuditRecord<'_>);
}

/// Drops every record: for tests and for devices without an audit log.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAudit;

impl AuditSink for NoAudit {
    fn record(&self, _: &AuditRecord<'_>) {}
}
