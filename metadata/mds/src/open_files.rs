//! Open files of clients, in memory.
//!
//! Does: keep open files until their client closes them or expires, and say whether an orphan may
//! be removed.
//! Does not: store open files; only clients are recorded. If there were clients before a restart,
//! every file that loses its last name within [`CLIENT_TIMEOUT_MS`] of the start stays as an orphan
//! until they had time to reopen it.
//! Contract: O(1) for a file; a file that is being removed cannot be opened, and an open file is
//! not removed.
//! Truth: docs/standards/mds/nodes.md §5.8; docs/adr/0034-node-numbers-and-open-files.md.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use sealstone_mds_protocol::{Access, ClientId, ErrorCode, Failure, InodeId, UserName};

use crate::error::{MdsError, Result};
use crate::share;

/// A client that sent nothing for this long expires, milliseconds.
pub const CLIENT_TIMEOUT_MS: u64 = 60_000;
/// Maximum number of open files of one client.
pub(crate) const OPEN_FILES_PER_CLIENT_MAX: usize = 65_536;
/// Maximum number of clients of one user.
pub(crate) const CLIENTS_MAX: usize = 256;
/// Maximum number of open files of all clients.
pub(crate) const OPEN_FILES_MAX: usize = 1 << 20;
/// Maximum number of open files of one user.
pub(crate) const OPEN_FILES_PER_USER_MAX: usize = OPEN_FILES_MAX / 4;
/// Maximum number of ended clients that are kept, since their requests may be in flight; a user has
/// a share (see `share`).
const ENDED_MAX: usize = 16_384;
/// Delay before an open of a file that is being removed is repeated; then the file does not exist.
const RETRY_MS: u32 = 5;

/// Access modes with which a client has a file open, over all its opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenModes {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

impl OpenModes {
    pub(crate) const fn of(access: Access) -> Self {
        Self {
            reads: matches!(access, Access::Read | Access::Update),
            writes: matches!(access, Access::Write | Access::Update),
        }
    }

    const fn and(self, other: Self) -> Self {
        Self { reads: self.reads || other.reads, writes: self.writes || other.writes }
    }

    /// Whether these modes include the other ones.
    pub(crate) const fn includes(self, other: Self) -> bool {
        (self.reads || !other.reads) && (self.writes || !other.writes)
    }
}

/// A file that a client has open.
#[derive(Default)]
struct OpenFile {
    modes: OpenModes,
    /// Whether an open was answered and not closed.
    is_open: bool,
    /// Opens in progress, which also keep the file.
    opening: u32,
    /// Whether a credential to write was issued to the client.
    wrote: bool,
}

impl OpenFile {
    /// Whether the client may have a credential to write. After a revocation it may have an older
    /// one.
    fn may_write(&self) -> bool {
        self.wrote || self.modes.writes || self.modes == OpenModes::default()
    }
}

#[derive(Default)]
struct ClientFiles {
    until_ms: u64,
    /// Whether the client is recorded.
    on_record: bool,
    nodes: HashMap<InodeId, OpenFile>,
}

#[derive(Default)]
struct OpenFileTable {
    /// By user first: the same number of another user is another client.
    clients: HashMap<UserName, HashMap<ClientId, ClientFiles>>,
    /// Number of clients that have a file open.
    nodes: HashMap<InodeId, u32>,
    modes: usize,
    /// Files whose removal is being committed.
    removing_now: HashSet<InodeId>,
    /// Whether clients of before the restart may still return, and until when.
    before: bool,
    recovery_end_ms: Option<u64>,
    /// Ended clients, and until when they are kept.
    ended: HashMap<(UserName, ClientId), u64>,
}

impl OpenFileTable {
    /// Returns the client, registered if needed.
    fn register(&mut self, user: &UserName, client_id: ClientId, now_ms: u64) -> Result<&mut ClientFiles> {
        let clients = self.clients.entry(user.clone()).or_default();
        if clients.len() >= CLIENTS_MAX && !clients.contains_key(&client_id) {
            return Err(MdsError::refused(ErrorCode::Limit, "clients of the user"));
        }
        if !self.ended.is_empty() {
            self.ended.remove(&(user.clone(), client_id));
        }
        let one = clients.entry(client_id).or_default();
        one.until_ms = now_ms.saturating_add(CLIENT_TIMEOUT_MS);
        Ok(one)
    }

    /// Returns a client's entry of a file, created if needed.
    fn file_entry(
        &mut self,
        user: &UserName,
        client_id: ClientId,
        id: InodeId,
        now_ms: u64,
    ) -> Result<&mut OpenFile> {
        if self.removing_now.contains(&id) {
            return Err(MdsError::Refused(Failure::busy(RETRY_MS)));
        }
        let one = self.register(user, client_id, now_ms)?;
        let (own, known) = (one.nodes.len(), one.nodes.contains_key(&id));
        if !known {
            let of_user = self.clients.get(user).into_iter().flat_map(HashMap::values);
            let of_user: usize = of_user.map(|one| one.nodes.len()).sum();
            let shared = share::is_free(of_user, self.modes, 1, OPEN_FILES_MAX);
            if own >= OPEN_FILES_PER_CLIENT_MAX || of_user >= OPEN_FILES_PER_USER_MAX || !shared {
                let why = format!("open files: user {user} has {of_user}; close some");
                return Err(MdsError::refused(ErrorCode::Limit, why));
            }
            self.modes += 1;
            *self.nodes.entry(id).or_default() += 1;
        }
        Ok(self.register(user, client_id, now_ms)?.nodes.entry(id).or_default())
    }

    /// Removes the entry if neither an open nor an open in progress is left; returns whether it
    /// did.
    fn drop_if_free(&mut self, user: &UserName, client_id: ClientId, id: InodeId) -> bool {
        let one = self.clients.get_mut(user).and_then(|clients| clients.get_mut(&client_id));
        let Some(one) = one else { return false };
        if !one.nodes.get(&id).is_some_and(|file| !file.is_open && file.opening == 0) {
            return false;
        }
        one.nodes.remove(&id);
        self.forget([id]);
        true
    }

    fn file_mut(&mut self, user: &UserName, client_id: ClientId, id: InodeId) -> Option<&mut OpenFile> {
        self.clients.get_mut(user)?.get_mut(&client_id)?.nodes.get_mut(&id)
    }

    fn waits_for_clients(&mut self, now_ms: u64) -> bool {
        if !self.before {
            return false;
        }
        let until_ms = *self.recovery_end_ms.get_or_insert(now_ms.saturating_add(CLIENT_TIMEOUT_MS));
        self.before = now_ms < until_ms;
        self.before
    }

    fn forget(&mut self, nodes: impl IntoIterator<Item = InodeId>) {
        for id in nodes {
            self.modes = self.modes.saturating_sub(1);
            if let Some(count) = self.nodes.get_mut(&id) {
                *count -= 1;
                if *count == 0 {
                    self.nodes.remove(&id);
                }
            }
        }
    }
}

/// All open files.
#[derive(Default)]
pub(crate) struct OpenFiles(Mutex<OpenFileTable>);

impl OpenFiles {
    /// `before`: clients were recorded before the restart.
    pub(crate) fn new(before: bool) -> Self {
        Self(Mutex::new(OpenFileTable { before, ..OpenFileTable::default() }))
    }

    /// Whether the client is registered.
    pub(crate) fn is_registered(&self, user: &UserName, client_id: ClientId) -> bool {
        self.0.lock().clients.get(user).is_some_and(|clients| clients.contains_key(&client_id))
    }

    /// Registers a client; returns whether it is recorded. If not, the caller records it before it
    /// opens anything and calls [`OpenFiles::set_recorded`].
    pub(crate) fn register(&self, user: &UserName, client_id: ClientId, now_ms: u64) -> Result<bool> {
        Ok(self.0.lock().register(user, client_id, now_ms)?.on_record)
    }

    /// Notes that the client is recorded.
    pub(crate) fn set_recorded(&self, user: &UserName, client_id: ClientId) {
        let table = &mut *self.0.lock();
        if let Some(one) = table.clients.get_mut(user).and_then(|clients| clients.get_mut(&client_id)) {
            one.on_record = true;
        }
    }

    /// Whether the grace period for clients of before the restart is active.
    pub(crate) fn is_recovering(&self, now_ms: u64) -> bool {
        self.0.lock().waits_for_clients(now_ms)
    }

    /// Opens a file for a client; returns when the client expires.
    pub(crate) fn open(
        &self,
        user: &UserName,
        client_id: ClientId,
        id: InodeId,
        modes: OpenModes,
        now_ms: u64,
    ) -> Result<u64> {
        let table = &mut *self.0.lock();
        let file = table.file_entry(user, client_id, id, now_ms)?;
        (file.modes, file.is_open) = (file.modes.and(modes), true);
        Ok(now_ms.saturating_add(CLIENT_TIMEOUT_MS))
    }

    /// Begins an open: the file is kept until [`OpenFiles::end_open`] or [`OpenFiles::abort_open`],
    /// regardless of other opens and closes.
    pub(crate) fn begin_open(
        &self,
        user: &UserName,
        client_id: ClientId,
        id: InodeId,
        now_ms: u64,
    ) -> Result<()> {
        self.0.lock().file_entry(user, client_id, id, now_ms)?.opening += 1;
        Ok(())
    }

    /// Completes an open; returns when the client expires.
    pub(crate) fn end_open(
        &self,
        user: &UserName,
        client_id: ClientId,
        id: InodeId,
        modes: OpenModes,
        now_ms: u64,
    ) -> Result<u64> {
        let until_ms = self.open(user, client_id, id, modes, now_ms)?;
        if let Some(file) = self.0.lock().file_mut(user, client_id, id) {
            file.opening = file.opening.saturating_sub(1);
        }
        Ok(until_ms)
    }

    /// Aborts an open; returns whether the client no longer has the file open.
    pub(crate) fn abort_open(&self, user: &UserName, client_id: ClientId, id: InodeId) -> bool {
        let table = &mut *self.0.lock();
        if let Some(file) = table.file_mut(user, client_id, id) {
            file.opening = file.opening.saturating_sub(1);
        }
        table.drop_if_free(user, client_id, id)
    }

    /// Closes a file; no error if it is not open.
    pub(crate) fn close(&self, user: &UserName, client_id: ClientId, id: InodeId) {
        let table = &mut *self.0.lock();
        if let Some(file) = table.file_mut(user, client_id, id) {
            (file.modes, file.is_open) = (OpenModes::default(), false);
        }
        table.drop_if_free(user, client_id, id);
    }

    /// Drops the cached access modes of a file: it stays open, and the mode of the file decides the
    /// next requests. Returns whether any client had some.
    pub(crate) fn drop_cached_access(&self, id: InodeId) -> bool {
        let table = &mut *self.0.lock();
        if !table.nodes.contains_key(&id) {
            return false;
        }
        let mut any = false;
        for one in table.clients.values_mut().flat_map(HashMap::values_mut) {
            if let Some(file) = one.nodes.get_mut(&id) {
                any |= file.modes != OpenModes::default();
                file.modes = OpenModes::default();
            }
        }
        any
    }

    /// Drops the cached access modes of all open files of a user.
    pub(crate) fn drop_cached_access_of_user(&self, user: &UserName) {
        let table = &mut *self.0.lock();
        let clients = table.clients.get_mut(user).into_iter().flat_map(HashMap::values_mut);
        for file in clients.flat_map(|one| one.nodes.values_mut()) {
            file.modes = OpenModes::default();
        }
    }

    /// Extends the life of a client; returns its number of open files, and when it expires.
    pub(crate) fn keep_alive(&self, user: &UserName, client_id: ClientId, now_ms: u64) -> (u32, u64) {
        let until_ms = now_ms.saturating_add(CLIENT_TIMEOUT_MS);
        let table = &mut *self.0.lock();
        let one = table.clients.get_mut(user).and_then(|clients| clients.get_mut(&client_id));
        let Some(one) = one else { return (0, until_ms) };
        one.until_ms = until_ms;
        (one.nodes.len() as u32, until_ms)
    }

    /// Returns the access modes of an open file, and extends the life of the client.
    pub(crate) fn open_modes(
        &self,
        user: &UserName,
        client_id: ClientId,
        id: InodeId,
        now_ms: u64,
    ) -> OpenModes {
        let table = &mut *self.0.lock();
        let one = table.clients.get_mut(user).and_then(|clients| clients.get_mut(&client_id));
        let Some(one) = one.filter(|one| one.until_ms >= now_ms) else { return OpenModes::default() };
        one.until_ms = now_ms.saturating_add(CLIENT_TIMEOUT_MS);
        one.nodes.get(&id).map(|file| file.modes).unwrap_or_default()
    }

    /// Whether the client has the file open; extends the life of the client.
    pub(crate) fn has_open(&self, user: &UserName, client_id: ClientId, id: InodeId, now_ms: u64) -> bool {
        let table = &mut *self.0.lock();
        let one = table.clients.get_mut(user).and_then(|clients| clients.get_mut(&client_id));
        let Some(one) = one.filter(|one| one.until_ms >= now_ms) else { return false };
        one.until_ms = now_ms.saturating_add(CLIENT_TIMEOUT_MS);
        one.nodes.get(&id).is_some_and(|file| file.is_open)
    }

    /// Notes that a credential to write the file was issued to the client.
    pub(crate) fn note_write_credential(&self, user: &UserName, client_id: ClientId, id: InodeId) {
        if let Some(file) = self.0.lock().file_mut(user, client_id, id) {
            file.wrote = true;
        }
    }

    /// Whether the client has the file open. Does not extend the life of the client.
    pub(crate) fn is_open_by(&self, user: &UserName, client_id: ClientId, id: InodeId) -> bool {
        self.0.lock().file_mut(user, client_id, id).is_some_and(|file| file.is_open)
    }

    /// Whether a known client has the file open.
    pub(crate) fn is_open(&self, id: InodeId) -> bool {
        self.0.lock().nodes.contains_key(&id)
    }

    /// Whether any client may be able to write the file, also with an older credential after a
    /// revocation. O(clients).
    pub(crate) fn may_be_written(&self, id: InodeId, now_ms: u64) -> bool {
        let table = &mut *self.0.lock();
        if table.waits_for_clients(now_ms) {
            return true;
        }
        let mut clients = table.clients.values().flat_map(HashMap::values);
        table.nodes.contains_key(&id)
            && clients.any(|one| one.nodes.get(&id).is_some_and(OpenFile::may_write))
    }

    /// Whether a client that `but` does not name has the file open for writing. O(clients).
    pub(crate) fn has_other_writer(
        &self,
        id: InodeId,
        now_ms: u64,
        but: impl Fn(&UserName, ClientId) -> bool,
    ) -> bool {
        let table = &mut *self.0.lock();
        if !table.nodes.contains_key(&id) {
            return false;
        }
        let writes =
            |file: &OpenFile| file.modes.writes || (file.is_open && file.modes == OpenModes::default());
        table.clients.iter().any(|(user, clients)| {
            clients.iter().any(|(client_id, one)| {
                one.until_ms >= now_ms && one.nodes.get(&id).is_some_and(writes) && !but(user, *client_id)
            })
        })
    }

    /// Removes expired clients; returns them with their open files, and whether they may have a
    /// credential to write each one.
    pub(crate) fn expire(&self, now_ms: u64) -> Vec<(UserName, ClientId, Vec<(InodeId, bool)>)> {
        let table = &mut *self.0.lock();
        let mut expired: Vec<(UserName, ClientId, Vec<(InodeId, bool)>)> = Vec::new();
        table.clients.retain(|user, clients| {
            clients.retain(|id, one| {
                let lives = one.until_ms >= now_ms;
                if !lives {
                    let nodes = one.nodes.iter().map(|(node, file)| (*node, file.may_write())).collect();
                    expired.push((user.clone(), *id, nodes));
                }
                lives
            });
            !clients.is_empty()
        });
        table.forget(expired.iter().flat_map(|(_, _, nodes)| nodes.iter().map(|(id, _)| *id)));
        expired
    }

    /// Ends a client; returns its open files.
    pub(crate) fn end_client(&self, user: &UserName, client_id: ClientId, now_ms: u64) -> Vec<InodeId> {
        let table = &mut *self.0.lock();
        table.ended.retain(|_, until_ms| *until_ms >= now_ms);
        let own = table.ended.keys().filter(|(of, _)| of == user).count();
        if share::is_free(own, table.ended.len(), 1, ENDED_MAX) {
            table.ended.insert((user.clone(), client_id), now_ms.saturating_add(CLIENT_TIMEOUT_MS));
        }
        let Some(clients) = table.clients.get_mut(user) else { return Vec::new() };
        let nodes: Vec<_> =
            clients.remove(&client_id).into_iter().flat_map(|one| one.nodes.into_keys()).collect();
        if clients.is_empty() {
            table.clients.remove(user);
        }
        table.forget(nodes.iter().copied());
        nodes
    }

    /// Whether the client has ended and sent nothing since.
    pub(crate) fn has_ended(&self, client: &(UserName, ClientId)) -> bool {
        self.0.lock().ended.contains_key(client)
    }

    /// Begins a removal of files; `shared`: other servers on the same store may have clients.
    pub(crate) fn removing(&self, shared: bool, now_ms: u64) -> RemovalGuard<'_> {
        let waits = self.is_recovering(now_ms);
        RemovalGuard { open_files: self, waits, unknown: waits || shared, removing_now: Mutex::default() }
    }
}

/// A removal in progress: files to be removed cannot be opened until it is dropped, after the
/// commit.
pub(crate) struct RemovalGuard<'a> {
    open_files: &'a OpenFiles,
    /// Whether clients of before the restart may return.
    waits: bool,
    /// Whether unknown clients may have files open, those of other servers included.
    unknown: bool,
    removing_now: Mutex<Vec<InodeId>>,
}

impl RemovalGuard<'_> {
    /// Whether a file without a name can be removed at once.
    pub(crate) fn is_removable(&self, id: InodeId) -> bool {
        !self.unknown && self.is_free(id)
    }

    /// Whether no client of this server has the file open or may reopen it. Then it cannot be
    /// opened until the commit.
    pub(crate) fn is_free(&self, id: InodeId) -> bool {
        if self.waits {
            return false;
        }
        let table = &mut *self.open_files.0.lock();
        if table.nodes.contains_key(&id) {
            return false;
        }
        if table.removing_now.insert(id) {
            self.removing_now.lock().push(id);
        }
        true
    }
}

impl Drop for RemovalGuard<'_> {
    fn drop(&mut self) {
        let mut removing_now = self.removing_now.lock();
        if !removing_now.is_empty() {
            let table = &mut *self.open_files.0.lock();
            for id in removing_now.drain(..) {
                table.removing_now.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);
    const READS: OpenModes = OpenModes { reads: true, writes: false };

    fn user(name: &str) -> UserName {
        UserName::new(name).unwrap()
    }

    fn client_id(number: u64) -> ClientId {
        ClientId { number }
    }

    fn old() -> OpenFiles {
        OpenFiles::new(false)
    }

    #[test]
    fn file_is_open_until_last_client_closes() {
        let (open_files, alice, now) = (old(), user("alice"), CLIENT_TIMEOUT_MS * 2);
        for number in [1, 2] {
            // A repeated open counts once.
            open_files.open(&alice, client_id(number), FILE, READS, now).unwrap();
            open_files.open(&alice, client_id(number), FILE, READS, now).unwrap();
        }
        open_files.close(&alice, client_id(1), FILE);
        open_files.close(&alice, client_id(1), FILE);
        assert!(!open_files.removing(false, now).is_removable(FILE));
        assert_eq!(open_files.keep_alive(&alice, client_id(2), now + CLIENT_TIMEOUT_MS).0, 1);
        open_files.expire(now + 2 * CLIENT_TIMEOUT_MS);
        assert!(open_files.is_open(FILE));
        open_files.expire(now + 2 * CLIENT_TIMEOUT_MS + 1);
        assert!(open_files.removing(false, now).is_removable(FILE));
        assert_eq!(open_files.keep_alive(&alice, client_id(2), now).0, 0);
    }

    #[test]
    fn file_being_removed_cannot_be_opened() {
        let (open_files, alice, now) = (old(), user("alice"), CLIENT_TIMEOUT_MS * 2);
        let removing = open_files.removing(false, now);
        assert!(removing.is_removable(FILE));
        assert!(open_files.open(&alice, client_id(1), FILE, READS, now).is_err());
        drop(removing);
        assert!(open_files.open(&alice, client_id(1), FILE, READS, now).is_ok());
    }

    #[test]
    fn nothing_is_removed_while_clients_are_unknown() {
        let open_files = OpenFiles::new(true);
        assert!(!open_files.removing(false, 1_000).is_removable(FILE));
        assert!(!open_files.removing(false, 1_000 + CLIENT_TIMEOUT_MS - 1).is_removable(FILE));
        assert!(open_files.removing(false, 1_000 + CLIENT_TIMEOUT_MS).is_removable(FILE));
        assert!(!open_files.removing(true, 1_000 + CLIENT_TIMEOUT_MS).is_removable(FILE));
    }

    #[test]
    fn failed_open_keeps_concurrent_open() {
        let (open_files, alice, now) = (old(), user("alice"), 5);
        // The failing open begins first and ends last.
        open_files.begin_open(&alice, client_id(1), FILE, now).unwrap();
        open_files.begin_open(&alice, client_id(1), FILE, now).unwrap();
        open_files.end_open(&alice, client_id(1), FILE, READS, now).unwrap();
        assert!(!open_files.abort_open(&alice, client_id(1), FILE));
        assert!(open_files.has_open(&alice, client_id(1), FILE, now) && open_files.is_open(FILE));
        open_files.close(&alice, client_id(1), FILE);
        // A close does not affect an open in progress.
        open_files.begin_open(&alice, client_id(1), FILE, now).unwrap();
        open_files.close(&alice, client_id(1), FILE);
        assert!(open_files.is_open(FILE) && !open_files.has_open(&alice, client_id(1), FILE, now));
        assert!(open_files.abort_open(&alice, client_id(1), FILE));
        assert!(!open_files.is_open(FILE));
    }

    #[test]
    fn dropped_access_keeps_file_open() {
        let (open_files, alice, now) = (old(), user("alice"), 5);
        open_files.open(&alice, client_id(1), FILE, READS, now).unwrap();
        assert!(
            open_files.drop_cached_access(FILE)
                && !open_files.drop_cached_access(FILE)
                && !open_files.drop_cached_access(InodeId(9))
        );
        assert_eq!(open_files.open_modes(&alice, client_id(1), FILE, now), OpenModes::default());
        // The file stays open: neither a further open that fails nor a lock finds it closed.
        open_files.begin_open(&alice, client_id(1), FILE, now).unwrap();
        assert!(!open_files.abort_open(&alice, client_id(1), FILE));
        assert!(open_files.has_open(&alice, client_id(1), FILE, now) && open_files.is_open(FILE));
    }

    #[test]
    fn no_removal_during_recovery() {
        let open_files = OpenFiles::new(true);
        assert!(!open_files.removing(false, 1_000).is_free(FILE));
        assert!(open_files.removing(false, 1_000 + CLIENT_TIMEOUT_MS).is_free(FILE));
    }

    #[test]
    fn open_files_per_user_are_bounded() {
        let (open_files, alice) = (old(), user("alice"));
        for id in 0..OPEN_FILES_PER_USER_MAX as u64 {
            open_files
                .open(&alice, client_id(id / OPEN_FILES_PER_CLIENT_MAX as u64), InodeId(id), READS, 5)
                .unwrap();
        }
        let next = InodeId(OPEN_FILES_PER_USER_MAX as u64);
        assert!(open_files.open(&alice, client_id(99), next, READS, 5).is_err());
        assert!(open_files.open(&user("bob"), client_id(99), next, READS, 5).is_ok());
    }

    #[test]
    fn client_ids_are_separate_per_user() {
        let (open_files, now) = (old(), 5);
        open_files.open(&user("alice"), client_id(1), FILE, OpenModes::of(Access::Update), now).unwrap();
        open_files.close(&user("bob"), client_id(1), FILE);
        assert!(open_files.is_open(FILE));
        assert_eq!(open_files.open_modes(&user("bob"), client_id(1), FILE, now), OpenModes::default());
        assert!(
            open_files
                .open_modes(&user("alice"), client_id(1), FILE, now)
                .includes(OpenModes::of(Access::Write))
        );
    }

    #[test]
    fn clients_per_user_are_bounded() {
        let (open_files, alice) = (old(), user("alice"));
        for number in 0..CLIENTS_MAX as u64 {
            open_files.open(&alice, client_id(number), FILE, READS, 5).unwrap();
        }
        assert!(open_files.open(&alice, client_id(CLIENTS_MAX as u64), FILE, READS, 5).is_err());
        assert!(open_files.open(&alice, client_id(0), InodeId(8), READS, 5).is_ok());
    }

    #[test]
    fn open_files_per_client_are_bounded() {
        let (open_files, alice) = (old(), user("alice"));
        for id in 0..OPEN_FILES_PER_CLIENT_MAX as u64 {
            open_files.open(&alice, client_id(1), InodeId(id), READS, 5).unwrap();
        }
        assert!(
            open_files
                .open(&alice, client_id(1), InodeId(OPEN_FILES_PER_CLIENT_MAX as u64), READS, 5)
                .is_err()
        );
        open_files.close(&alice, client_id(1), InodeId(0));
        assert!(
            open_files
                .open(&alice, client_id(1), InodeId(OPEN_FILES_PER_CLIENT_MAX as u64), READS, 5)
                .is_ok()
        );
    }
}
