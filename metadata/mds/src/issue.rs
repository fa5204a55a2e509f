//! The record of credentials: issued to whom and when, and refused requests.
//!
//! Does: write the record before the credential is sent, find the records of a file, and restore
//! the valid credentials after a restart.
//! Does not: store the records; `grant_log` has the log.
//! Contract: a credential is not sent if its record could not be written.
//! Truth: docs/standards/mds/operations.md §5.7; docs/standards/mds/store.md §8.6;
//! docs/adr/0029-record-of-issued-credentials.md.

use std::collections::HashMap;
use std::io;

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    ErrorCode, FilePath, InodeId, IssueCursor, IssueEntry, IssueKind, Method, PAGE_MAX, Response, UserName,
};
use sealstone_osd::Permissions;

use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::grant_log::{GrantLog, IssueRecord, IssueStream};
use crate::limits::CREDENTIAL_LIFETIME_MAX_MS;
use crate::namespace;
use crate::records::{decode, encode};
use crate::server::Mds;
use crate::sessions::SESSIONS_MAX;
use crate::store::MetaError;

/// Maximum bytes of the log that one request reads.
const SCAN_BYTES: usize = 4 << 20;
/// Bytes read at once at the start of the server.
const LOAD_BYTES: usize = 1 << 20;

/// Returns the first two bytes of permission bits; files need no others.
pub(crate) const fn bits(permissions: Permissions) -> u16 {
    let [a, b, ..] = permissions.bytes();
    u16::from_be_bytes([a, b])
}

const fn has_permission(bits: u16, permission: Permissions) -> bool {
    let [a, b] = bits.to_be_bytes();
    Permissions::from_bytes([a, b, 0, 0, 0]).contains(permission)
}

fn log_failed(error: io::Error) -> MdsError {
    MdsError::Store(MetaError::of_medium(error))
}

/// Subject of a refused request for credentials.
pub(crate) struct RefusedRequest<'a> {
    pub(crate) path: Option<&'a FilePath>,
    pub(crate) inode: Option<InodeId>,
    pub(crate) method: Method,
}

impl Mds {
    /// Restores the valid credentials from the log, and sets the log for all further ones.
    ///
    /// # Errors
    /// `Store` if the log cannot be read.
    pub fn with_grant_log(mut self, log: std::sync::Arc<dyn GrantLog>, now_ms: u64) -> Result<Self> {
        let window = CREDENTIAL_LIFETIME_MAX_MS.max(self.config.session_ttl_ms);
        let since_ms = now_ms.saturating_sub(window);
        let mut numbers: HashMap<SessionId, u32> = HashMap::new();
        let mut from = Some(0);
        while let Some(at) = from {
            let mut take = |bytes: &[u8]| {
                // A record of a later release, or a damaged one, must not prevent the start.
                if let Ok(found) = decode::<IssueRecord>(bytes) {
                    self.restore_record(&found, &mut numbers, now_ms);
                }
                true
            };
            from = log.read(IssueStream::Issued, at, since_ms, LOAD_BYTES, &mut take).map_err(log_failed)?;
        }
        if !log.reaches_back_to(IssueStream::Issued, now_ms.saturating_sub(CREDENTIAL_LIFETIME_MAX_MS)) {
            // Records of other users were removed for space, so the holders of those credentials
            // are unknown.
            let since_ms = log.known_since_ms(IssueStream::Issued).min(now_ms);
            let until_ms = since_ms.saturating_add(CREDENTIAL_LIFETIME_MAX_MS);
            let writes_until_ms = since_ms.saturating_add(self.config.longest_life_ms());
            self.issued_table.get_mut().is_unknown_until(until_ms, writes_until_ms);
        }
        self.writers_before = self.issued_table.get_mut().writers(now_ms);
        // A session without a number here skips as many as after a power failure.
        let all_numbered = numbers.len() < SESSIONS_MAX as usize;
        self.sessions.number_from(numbers, log.is_whole() && all_numbered);
        if log.is_whole() {
            self.mark_issued_complete();
        }
        self.grant_log = log;
        Ok(self)
    }

    fn restore_record(&self, found: &IssueRecord, numbers: &mut HashMap<SessionId, u32>, now_ms: u64) {
        let entry = &found.entry;
        if numbers.len() < SESSIONS_MAX as usize || numbers.contains_key(&entry.session) {
            let number = numbers.entry(entry.session).or_default();
            *number = (*number).max(entry.number);
        }
        if entry.expires_ms < now_ms {
            return;
        }
        let rights = crate::issued_credentials::IssuedRights {
            writes: has_permission(entry.permissions, Permissions::WRITE),
            creates: has_permission(entry.permissions, Permissions::CREATE),
            lasting_until_ms: if entry.kind == IssueKind::Delegate { entry.expires_ms } else { 0 },
            expires_ms: entry.expires_ms,
        };
        self.issued_table.lock().add(&entry.session, &entry.user, &found.objects, rights, now_ms);
        for object in &found.objects {
            self.devices.note_issued_grant(*object, entry.expires_ms);
        }
    }

    /// Writes a record; without it the credential must not be sent.
    pub(crate) fn write_issue(&self, record: &IssueRecord) -> Result<()> {
        // Only long-lived credentials are worth waiting for the disk; others expire soon after a
        // restart.
        let durable = record.entry.kind == IssueKind::Delegate;
        let stream =
            if record.entry.kind == IssueKind::Refused { IssueStream::Refused } else { IssueStream::Issued };
        let bytes = encode(record)?;
        self.grant_log.append(stream, record.entry.time_ms, &bytes, durable).map_err(log_failed)
    }

    /// Records a refused request for credentials.
    pub(crate) fn write_refusal(&self, principal: &Principal, wanted: &RefusedRequest<'_>, now_ms: u64) {
        // Requests beyond the limit appear in the audit log only.
        if self.refusals.lock().attempt_record(&principal.user, now_ms).is_err() {
            return;
        }
        let by_name = || {
            let view = self.store.snapshot().ok()?;
            namespace::inspect(&*view, wanted.path?).ok().map(|(id, _)| id)
        };
        let inode = wanted.inode.or_else(by_name).unwrap_or(InodeId(0));
        let entry = IssueEntry {
            time_ms: now_ms,
            kind: IssueKind::Refused,
            user: principal.user.clone(),
            session: principal.session,
            number: 0,
            permissions: 0,
            method: wanted.method,
            expires_ms: 0,
            start: 0,
            end: u64::MAX,
        };
        let record = IssueRecord { entry, inode, objects: Vec::new(), path: wanted.path.cloned() };
        if let Err(error) = self.write_issue(&record) {
            // The refusal stands; the audit log has it too.
            tracing::error!(%error, "refusal not recorded");
        }
    }

    /// Returns a page of the records of a file, for its owner and administrators.
    pub(crate) fn issue_list(
        &self,
        principal: &Principal,
        path: &FilePath,
        user: Option<&UserName>,
        (since_ms, until_ms): (u64, u64),
        from: Option<IssueCursor>,
    ) -> Result<Response> {
        let (id, inode) = namespace::resolve(&*self.store.snapshot()?, principal, path)?;
        principal.needs_ownership(&inode, &path.shown())?;
        if inode.is_directory() {
            return Err(MdsError::refused(ErrorCode::IsADirectory, path.shown()));
        }
        let from = from.unwrap_or(IssueCursor { stream: 0, at: 0 });
        let stream = IssueStream::of(from.stream)?;
        let mut entries = Vec::new();
        let mut take = |bytes: &[u8]| {
            if let Ok(found) = decode::<IssueRecord>(bytes)
                && (found.inode == id || found.path.as_ref() == Some(path))
                && (since_ms..=until_ms).contains(&found.entry.time_ms)
                && user.is_none_or(|user| *user == found.entry.user)
            {
                entries.push(found.entry);
            }
            entries.len() < usize::from(PAGE_MAX)
        };
        let log = &self.grant_log;
        let next = log.read(stream, from.at, since_ms, SCAN_BYTES, &mut take).map_err(log_failed)?;
        let next = match (next, stream) {
            (Some(at), _) => Some(IssueCursor { stream: from.stream, at }),
            (None, IssueStream::Issued) => Some(IssueCursor { stream: IssueStream::Refused as u8, at: 0 }),
            (None, IssueStream::Refused) => None,
        };
        Ok(Response::Issues { entries, known_since_ms: log.known_since_ms(IssueStream::Issued), next })
    }

    /// Makes the log of issued credentials durable. Call it every few seconds.
    ///
    /// # Errors
    /// `Store`.
    pub fn sync_grant_log(&self) -> Result<()> {
        self.grant_log.sync().map_err(log_failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_bits_match_capability_permissions() {
        let rights = Permissions::READ | Permissions::OBJ_MGMT | Permissions::POL_SEC;
        for (permission, _) in Permissions::NAMES.iter().take(14) {
            assert_eq!(has_permission(bits(rights), *permission), rights.contains(*permission));
        }
    }
}
