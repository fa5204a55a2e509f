//! Audit records: each decision with its user, subject and verdict.
//!
//! Does: define the content of a record.
//! Does not: write files; the server passes an [`AuditSink`].
//! Contract: every login, logout and refusal has a record, and every request that changes something
//! or grants a right. Requests that only read names or status are recorded when they are denied. No
//! record contains a secret: the session's number is not one; it is also the first 16 bytes of the
//! principal in the devices' audit logs.

use sealstone_mds_protocol::login::SessionId;

use crate::limiter::LoginSource;

/// An audit record: one decision.
#[derive(Clone, Copy, Debug)]
pub struct AuditRecord<'a> {
    /// Time, milliseconds since 1970.
    pub time_ms: u64,
    /// Account; for a login the claimed one.
    pub user: &'a str,
    /// Session of the account, if any.
    pub session: Option<&'a SessionId>,
    /// Whether the account is authenticated by password, key or session. If not, any peer that can
    /// connect can cause any number of such records.
    pub proven: bool,
    /// Source address of a login, with the precision used by rate limits.
    pub source: Option<LoginSource>,
    /// `login`, `resume`, `logout`, or the request's name.
    pub action: &'a str,
    /// Subject: a path, an account or a device.
    pub subject: Option<&'a str>,
    /// `ok`, `limited` (too many attempts), `refused` (wrong proof), `abandoned` (unanswered
    /// challenge: a wrong password looks like this), `late`, or the name of the error.
    pub verdict: &'a str,
}

/// Destination of audit records.
pub trait AuditSink: Send + Sync + 'static {
    /// Writes one record. Records of a connection arrive in the order of its decisions.
    fn record(&self, record: &AuditRecord<'_>);
}

/// Discards all records: for simulations and tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAudit;

impl AuditSink for NoAudit {
    fn record(&self, _: &AuditRecord<'_>) {}
}
