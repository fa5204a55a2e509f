//! The record of credentials: issued to whom and when, and refused requests.
//!
//! Does: define a record, write it before the credential is sent, find the records of a file, and
//! restore the valid credentials after a restart.
//! Does not: write files; the server passes a [`GrantLog`].
//! Contract: a credential is not sent if its record could not be written. Records contain no keys.
//! Truth: docs/standards/mds/operations.md §5.7; docs/standards/mds/store.md §8.6;
//! docs/adr/0029-record-of-issued-credentials.md.

use std::collections::HashMap;
use std::io;

use parking_lot::Mutex;
use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    ErrorCode, FilePath, InodeId, IssueCursor, IssueEntry, IssueKind, Method, ObjectRef, PAGE_MAX, Response,
    UserName, record,
};
use sealstone_osd::Permissions;

use crate::access::Principal;
use crate::error::{MdsError, Result};
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

/// The two logs, separate so that neither displaces the other's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssueStream {
    /// Issued credentials.
    Issued = 0,
    /// Refused requests.
    Refused = 1,
}

impl IssueStream {
    fn of(code: u8) -> Result<Self> {
        match code {
            0 => Ok(Self::Issued),
            1 => Ok(Self::Refused),
            _ => Err(MdsError::refused(ErrorCode::Invalid, "no such position in the record")),
        }
    }
}

record! {
    /// A record with its search keys.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct IssueRecord {
        /// Content of the record for clients.
        pub entry: IssueEntry,
        /// Inode number of the file; 0 if there was none.
        pub inode: InodeId,
        /// Objects of the credential.
        pub objects: Vec<ObjectRef>,
        /// Requested path of a refused request.
        pub path: Option<FilePath>,
    }
}

/// Storage of the records.
pub trait GrantLog: Send + Sync + 'static {
    /// Appends a record of this time. After the return it survives the death of the process and,
    /// with `durable`, a power failure.
    ///
    /// # Errors
    /// Those of the disk.
    fn append(&self, stream: IssueStream, time_ms: u64, record: &[u8], durable: bool) -> io::Result<()>;

    /// Reads records from a position on, or (position 0) from about a time on, until `each` returns
    /// false or the byte budget is used. Returns the next position; none at the end.
    ///
    /// # Errors
    /// Those of the disk. A damaged tail is not an error: the log ends there.
    fn read(
        &self,
        stream: IssueStream,
        from: u64,
        since_ms: u64,
        budget: usize,
        each: &mut dyn FnMut(&[u8]) -> bool,
    ) -> io::Result<Option<u64>>;

    /// Returns the time before which the log has no records.
    fn known_since_ms(&self, stream: IssueStream) -> u64;

    /// Whether the log still has all records from this time on.
    fn reaches_back_to(&self, stream: IssueStream, since_ms: u64) -> bool {
        self.known_since_ms(stream) <= since_ms
    }

    /// Whether no record from before the start is missing. `false` after a power failure or if the
    /// log is new.
    fn is_whole(&self) -> bool;

    /// Makes all appended records durable.
    ///
    /// # Errors
    /// Those of the disk.
    fn sync(&self) -> io::Result<()>;
}

/// A log that discards all records: for servers that keep none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGrantLog;

impl GrantLog for NoGrantLog {
    fn append(&self, _: IssueStream, _: u64, _: &[u8], _: bool) -> io::Result<()> {
        Ok(())
    }

    fn read(
        &self,
        _: IssueStream,
        _: u64,
        _: u64,
        _: usize,
        _: &mut dyn FnMut(&[u8]) -> bool,
    ) -> io::Result<Option<u64>> {
        Ok(None)
    }

    fn known_since_ms(&self, _: IssueStream) -> u64 {
        u64::MAX
    }

    fn is_whole(&self) -> bool {
        false
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A log in memory: for simulations and tests.
#[derive(Debug, Default)]
pub struct MemoryGrantLog(Mutex<[Vec<(u64, Vec<u8>)>; 2]>);

impl GrantLog for MemoryGrantLog {
    fn append(&self, stream: IssueStream, time_ms: u64, record: &[u8], _: bool) -> io::Result<()> {
        self.0.lock()[stream as usize].push((time_ms, record.to_vec()));
        Ok(())
    }

    fn read(
        &self,
        stream: IssueStream,
        from: u64,
        since_ms: u64,
        mut budget: usize,
        each: &mut dyn FnMut(&[u8]) -> bool,
    ) -> io::Result<Option<u64>> {
        let logs = self.0.lock();
        let log = &logs[stream as usize];
        for (at, (time_ms, record)) in log.iter().enumerate().skip(from as usize) {
            if budget == 0 {
                return Ok(Some(at as u64));
            }
            budget = budget.saturating_sub(record.len());
            if *time_ms >= since_ms && !each(record) {
                return Ok(Some(at as u64 + 1));
            }
        }
        Ok(None)
    }

    fn known_since_ms(&self, _: IssueStream) -> u64 {
        0
    }

    fn is_whole(&self) -> bool {
        true
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

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
    use proptest::prelude::*;

    #[test]
    fn record_bits_match_capability_permissions() {
        let rights = Permissions::READ | Permissions::OBJ_MGMT | Permissions::POL_SEC;
        for (permission, _) in Permissions::NAMES.iter().take(14) {
            assert_eq!(has_permission(bits(rights), *permission), rights.contains(*permission));
        }
    }

    proptest! {
        #[test]
        fn damaged_records_are_errors_not_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(first) = bytes.first_mut() {
                *first = 1;
            }
            let _ = decode::<IssueRecord>(&bytes);
        }
    }
}
