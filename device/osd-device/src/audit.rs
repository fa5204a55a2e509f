//! Audit records of the device.
//!
//! Does: describe one command that changed or refused something.
//! Does not: store or format the log; the daemon does.
//! Contract: `record` runs on the thread of the command and must not block for long.
//! Truth: docs/design/architecture.md section 4 (audit), docs/design/security.md section 8 (each
//! refusal is recorded).

use core::fmt;

use sealstone_osd::ObjectId;
use sealstone_scsi::lu::NexusId;

/// Result of a command in the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditVerdict {
    /// Permitted and done.
    Done,
    /// Refused for lack of authority, with the name of the denial.
    Refused(&'static str),
    /// Permitted but failed, with the name of the failure.
    Failed(&'static str),
}

impl AuditVerdict {
    /// Returns `done`, `refused` or `failed`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused(_) => "refused",
            Self::Failed(_) => "failed",
        }
    }

    /// Returns the reason of a refusal or failure.
    #[must_use]
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Done => None,
            Self::Refused(reason) | Self::Failed(reason) => Some(reason),
        }
    }
}

/// AUDIT field of a capability, which identifies its owner in a form chosen by the security
/// manager. Shown as hex.
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
    /// AUDIT field of the capability. It is only claimed unless `proven`.
    pub principal: Principal,
    /// Whether the command was done, or only the bearer of the credential can have caused it.
    /// Anyone who can connect can cause any number of other records.
    pub proven: bool,
    /// Nexus of the command.
    pub nexus: NexusId,
    /// iSCSI name of the initiator; empty if the nexus is unknown.
    pub initiator: &'a str,
    /// Name of the command.
    pub action: &'static str,
    /// Object of the command.
    pub object: ObjectId,
    /// Result of the command.
    pub verdict: AuditVerdict,
    /// Sense key, additional sense code and qualifier of a CHECK CONDITION.
    pub sense: Option<(u8, u8, u8)>,
}

/// Receives audit records.
pub trait AuditSink: Send + Sync {
    /// Receives one record.
    fn record(&self, record: &AuditRecord<'_>);
}

/// Drops every record. For tests and for devices without an audit log.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAudit;

impl AuditSink for NoAudit {
    fn record(&self, _: &AuditRecord<'_>) {}
}
