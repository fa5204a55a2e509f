//! Limits that several modules share.

/// Longest lifetime of a grant, milliseconds.
pub(crate) const GRANT_LIFETIME_MAX_MS: u64 = 3_600_000;

/// Longest lifetime of a delegated credential, and so of any, milliseconds. A superseded working
/// key is kept until the last credential under it has expired, and a key has at most 16 versions.
pub(crate) const CREDENTIAL_LIFETIME_MAX_MS: u64 = 8 * 3_600_000;

/// Default maximum of entries, one for each session and object; about 300 bytes each.
pub(crate) const ISSUED_CREDENTIALS_MAX: usize = 262_144;

/// How long an answer is kept. Clients repeat requests for less time.
pub(crate) const REPLAY_MS: u64 = 24 * 3600 * 1000;
