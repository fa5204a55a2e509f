//! The record of decisions: who asked for what, and what was said.
//!
//! Does: say what a record holds. Does not: write files; a shell brings its sink.
//! Contract: a record for every login, logout and refusal, and for every request that changes something or gives a
//! right. Requests that only read names or figures are recorded when they are denied. No record holds a secret: the
//! session's number is none, and it is the first 16 bytes of the principal in the devices' audit logs.

use sealstone_mds_protocol::login::SessionId;

use crate::limiter::Source;

/// One decision.
#[derive(Clone, Copy, Debug)]
pub struct AuditRecord<'a> {
    /// When, milliseconds since 1970.
    pub time_ms: u64,
    /// Account; for a login the one that was claimed.
    pub user: &'a str,
    /// Its session, if there is one.
    pub session: Option<&'a SessionId>,
    /// Is it known to be that account's doing: by its password, its key, or its session? If not, whoever can connect can
    /// cause as many such records as he likes.
    pub proven: bool,
    /// Where a login came from, as far as it is told apart.
    pub source: Option<Source>,
    /// `login`, `resume`, `logout`, or the request's name.
    pub action: &'a str,
    /// What it was about: a path, an account, a device.
    pub subject: Option<&'a str>,
    /// `ok`, `limited` (too many attempts), `refused` (a wrong proof), `abandoned` (a challenge that nobody answered:
    /// what a wrong password looks like), `late`, or the name of the error.
    pub verdict: &'a str,
}

/// Where records go.
pub trait AuditSink: Send + Sync + 'static {
    /// Takes one record; in the order of decisions of each connection.
    fn record(&self, record: &AuditRecord<'_>);
}

/// Nowhere: for simulations and tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAudit;

impl AuditSink for NoAudit {
    fn record(&self, _: &AuditRecord<'_>) {}
}
