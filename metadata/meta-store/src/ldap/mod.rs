//! Metadata in an LDAP server, for one metadata server at a time.
//!
//! Does: keeps all records in memory, as versions; makes each commit one journal entry, which is
//! added completely or not at all; writes committed changes to readable record entries a moment
//! later; reads everything at the start.
//! Does not: query the LDAP server for reads.
//! Contract: that of the store trait, with any server that conforms to RFC 4511: an entry is added
//! atomically, and a subtree is renamed atomically. The first write of a metadata server renames
//! the store's entry, so that requests of an earlier owner, sent before or later, find nothing; it
//! learns from that. After a connection failure during a commit the store is renamed again. After
//! that the commit exists or never will, and a search shows which.
//! Truth: docs/standards/mds/store.md §8.9; docs/adr/0039-metadata-in-ldap.md.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};
use sealstone_ldap::LdapResult;
use sealstone_mds::store::{MetaError, MetaStore, Overlay, Pair, Snapshot, Transaction};

mod connection;
mod journal;
mod load;
mod settings;
mod tree;
mod versions;
mod worker;

use connection::{LdapConnection, RequestError, open_until};
use load::{LoadedStore, load};
pub use settings::LdapSettings;
use settings::LdapTarget;
use tree::{LoadError, StoreTree};
use versions::{RecordVersions, VersionSnapshot};
use worker::{PendingCommit, RecordQueue};

/// Timeout of a connection attempt.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Timeout of the next bytes of a response.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Interval of connection attempts.
pub(crate) const RECONNECT_EVERY: Duration = Duration::from_millis(100);
/// How long an interrupted commit waits for the server to learn its outcome.
const RESOLVE_MAX: Duration = Duration::from_secs(60);
/// How long a transaction waits for this server's writer lock.
const TURN_MAX: Duration = Duration::from_secs(30);
/// Age of an unused connection that is tested before it is used.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// Maximum bytes of commits that are not in the records yet; the last commit may exceed it.
pub(crate) const JOURNAL_BYTES_MAX: usize = 32 << 20;
/// Maximum number of commits that are not in the records yet.
pub(crate) const JOURNAL_COMMITS_MAX: usize = 1024;
/// Bytes of an owner's random name.
const OWNER_BYTES: usize = 16;

/// Reason why an LDAP server cannot be used as the metadata store.
#[derive(Debug, thiserror::Error)]
pub enum LdapStoreError {
    /// The URL is invalid.
    #[error("invalid URL of the metadata store (ldaps://NAME@HOST[:PORT]/BASE): {0}")]
    Url(String),
    /// The URL has a password, which process listings would show.
    #[error(
        "the URL of the metadata store has a ':' before the host: put the password into a file (in a name, write %3A for ':')"
    )]
    PasswordInUrl,
    /// There is no password to bind with.
    #[error("the LDAP server needs a password: give it in a file")]
    NoPassword,
    /// There is no CA file: plain text to another machine, or TLS with an unknown authority.
    #[error("the LDAP server needs a CA file, because it is on another machine or uses ldaps")]
    NoCa,
    /// The CA file cannot be used.
    #[error("cannot use the LDAP server's CA file {}: {why}", .path.display())]
    Ca {
        /// Path of the CA file.
        path: PathBuf,
        /// Description of the error.
        why: String,
    },
    /// The server cannot be reached, or refused a request.
    #[error("cannot use the LDAP server {name}")]
    Connect {
        /// Host and base.
        name: String,
        /// Error of the connection.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The bind name or the password is wrong.
    #[error("the LDAP server {name} rejected the bind name or password")]
    Password {
        /// Host and base.
        name: String,
    },
    /// The bind name lacks access rights.
    #[error(
        "the LDAP server {name} denies access: the bind name needs to read, add, change, rename and remove entries below the base"
    )]
    Rights {
        /// Host and base.
        name: String,
    },
    /// The server limits the results of a search.
    #[error(
        "the LDAP server {name} has limits of size or time for that name: it must be allowed to read all entries"
    )]
    Limits {
        /// Host and base.
        name: String,
    },
    /// The server lacks object classes or attributes.
    #[error("the LDAP server {name} lacks schemas: core, cosine and inetorgperson are needed ({why})")]
    Schema {
        /// Host and base.
        name: String,
        /// Message of the server.
        why: String,
    },
    /// The base entry does not exist.
    #[error("there is no entry {base}: create it, the records are stored below it")]
    NoBase {
        /// Its DN.
        base: String,
    },
    /// The base has entries of other software below it.
    #[error("{dn} is not Sealstone's: the store needs a base entry with nothing else below it")]
    Others {
        /// DN of such an entry.
        dn: String,
    },
    /// There are several stores below the base.
    #[error("there are several stores at {name}: remove the unused ones")]
    Several {
        /// Host and base.
        name: String,
    },
    /// Another release created the store.
    #[error("{dn} has the format '{found}', which this release does not support")]
    Version {
        /// DN of the store.
        dn: String,
        /// Format text found there.
        found: String,
    },
    /// An entry cannot be parsed, or was written by other software.
    #[error("the entry {dn} is damaged: {why}")]
    Damaged {
        /// DN of the entry.
        dn: String,
        /// Description of the error.
        why: String,
    },
    /// The store changed too often during the start.
    #[error("the store at {name} changed while it was being read; retry")]
    Busy {
        /// Host and base.
        name: String,
    },
    /// The transaction is too large.
    #[error("a transaction of more than {} bytes", journal::COMMIT_BYTES_MAX)]
    TooLarge,
    /// The records would exceed the memory limit.
    #[error("all records together would exceed {} bytes of memory", versions::BYTES_MAX)]
    Full,
    /// Another metadata server writes to the store now.
    #[error(
        "another metadata server took over the store at {name}: this one refuses requests until it is restarted"
    )]
    TakenOver {
        /// Host and base.
        name: String,
    },
}

/// Name of the LDAP server's disk in messages to clients.
const LDAP_DISK: &str = "disk or database of the LDAP server with the metadata";

fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> MetaError {
    MetaError::Failed(error.into())
}

/// Converts an error before any change was sent: `Away` if a retry may succeed.
fn not_begun(error: LdapStoreError) -> MetaError {
    let passing = match &error {
        LdapStoreError::Connect { source, .. } => {
            source.downcast_ref::<RequestError>().is_some_and(RequestError::is_transient)
        }
        _ => false,
    };
    if passing { MetaError::Away(error.into()) } else { failed(error) }
}

/// Whether the records in memory match the stored ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordsState {
    /// They match.
    Sure,
    /// The outcome of this commit is unknown; it was reported as failed.
    Unresolved(u64),
    /// A commit that was reported as failed is stored.
    Poisoned,
    /// Another server writes to the store.
    TakenOver,
}

/// Outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommitOutcome {
    Committed,
    Never,
}

/// State of the writer, behind its lock.
#[derive(Default)]
struct WriterState {
    connection: Option<(LdapConnection, Instant)>,
    /// Number of the newest commit.
    number: u64,
    /// Owner of the store when it was read.
    read_of: String,
}

pub(crate) struct LdapStore {
    target: LdapTarget,
    /// How long a new transaction waits for an unavailable server.
    unavailable_wait: Duration,
    tree: StoreTree,
    records: RwLock<Arc<RecordVersions>>,
    /// Current owner name, if the store was claimed.
    owner: Mutex<String>,
    /// Names that this server gave the store in renames without an answer.
    tried: Mutex<Vec<String>>,
    is_claimed: AtomicBool,
    /// Lock of the writer.
    writer: Mutex<WriterState>,
    records_state: Mutex<RecordsState>,
    queue: RecordQueue,
}

/// The metadata store in an LDAP server.
pub struct LdapMeta {
    store_state: Arc<LdapStore>,
    worker: Option<JoinHandle<()>>,
}

impl LdapMeta {
    /// Connects to the server and reads all records; creates the store if it does not exist.
    ///
    /// # Errors
    /// See [`LdapStoreError`].
    pub fn open(settings: &LdapSettings) -> Result<Self, LdapStoreError> {
        let target = LdapTarget::new(settings)?;
        let tree = StoreTree::new(&target.base, &target.name);
        let until = Instant::now() + settings.unavailable_wait;
        let loaded = loop {
            let mut connection =
                open_until(&target, until, RECONNECT_EVERY).map_err(|error| tree.explain(error))?;
            match load(&tree, &mut connection, &target.name) {
                Ok(loaded) => break loaded,
                Err(LoadError::RequestError(error)) if error.is_transient() && Instant::now() < until => {}
                Err(error) => return Err(explained(&tree, &target, error)),
            }
        };
        let store_state = Arc::new(LdapStore {
            tree,
            unavailable_wait: settings.unavailable_wait,
            records: RwLock::new(loaded.versions),
            owner: Mutex::default(),
            tried: Mutex::default(),
            is_claimed: AtomicBool::new(false),
            writer: Mutex::new(WriterState {
                connection: None,
                number: loaded.number,
                read_of: loaded.owner,
            }),
            records_state: Mutex::new(RecordsState::Sure),
            queue: RecordQueue::default(),
            target,
        });
        store_state.queue.fill(loaded.journal, loaded.outdated, loaded.outdated_bytes);
        let worker = std::thread::Builder::new().name("ldap-records".to_owned()).spawn({
            let store_state = Arc::clone(&store_state);
            move || worker::run(&store_state)
        });
        let worker = worker.map_err(|error| LdapStoreError::Connect {
            name: store_state.target.name.clone(),
            source: error.into(),
        })?;
        Ok(Self { store_state, worker: Some(worker) })
    }

    /// Whether records travel over a network in plain text.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.store_state.target.exposed
    }

    /// Returns host and base, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.store_state.target.name
    }

    /// Returns the approximate memory of the records: 160 bytes, key and value for each.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.store_state.records.read().bytes()
    }
}

impl Drop for LdapMeta {
    /// Writes committed changes to the records, if the server is reachable.
    fn drop(&mut self) {
        self.store_state.queue.end();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

fn explained(tree: &StoreTree, target: &LdapTarget, error: LoadError) -> LdapStoreError {
    match error {
        LoadError::RequestError(error) => tree.explain(error),
        LoadError::Moved => LdapStoreError::Busy { name: target.name.clone() },
        LoadError::Failed(error) => error,
    }
}

/// Reason why the store was not claimed.
enum ClaimError {
    Passing(RequestError),
    TakenOver,
    Failed(LdapStoreError),
}

impl From<LdapStoreError> for ClaimError {
    fn from(error: LdapStoreError) -> Self {
        match error {
            LdapStoreError::Connect { source, name } => match source.downcast::<RequestError>() {
                Ok(error) if error.is_transient() => Self::Passing(*error),
                Ok(error) => Self::Failed(LdapStoreError::Connect { name, source: error }),
                Err(source) => Self::Failed(LdapStoreError::Connect { name, source }),
            },
            other => Self::Failed(other),
        }
    }
}

impl LdapStore {
    pub(crate) fn owner(&self) -> String {
        self.owner.lock().clone()
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.is_claimed.load(Ordering::Acquire)
    }

    /// Whether this server may have given the store this name in a rename without an answer.
    pub(crate) fn is_tried_name(&self, owner: &str) -> bool {
        self.tried.lock().iter().any(|tried| tried == owner)
    }

    fn taken_over(&self) -> MetaError {
        failed(LdapStoreError::TakenOver { name: self.target.name.clone() })
    }

    /// Fails all reads and writes from now on.
    pub(crate) fn mark_taken_over(&self) {
        let mut records_state = self.records_state.lock();
        if *records_state != RecordsState::TakenOver {
            *records_state = RecordsState::TakenOver;
            let error = LdapStoreError::TakenOver { name: self.target.name.clone() };
            tracing::error!(error = &error as &dyn Error, "metadata store lost to another server");
        }
    }

    /// Whether another server is known to write.
    pub(crate) fn is_taken_over(&self) -> bool {
        *self.records_state.lock() == RecordsState::TakenOver
    }

    /// Renames the store, so that requests without an answer find nothing. Returns whether it
    /// succeeded.
    pub(crate) fn rename_store(&self, time: Duration) -> bool {
        // Two threads that rename at the same time would not know each other's names.
        let Some(_turn) = self.writer.try_lock_for(TURN_MAX) else { return false };
        self.rename(Instant::now() + time).is_ok()
    }

    /// Checks that the store may be read.
    fn check(&self) -> Result<(), MetaError> {
        let records_state = *self.records_state.lock();
        match records_state {
            RecordsState::Sure => Ok(()),
            RecordsState::TakenOver => Err(self.taken_over()),
            RecordsState::Poisoned => Err(MetaError::Poisoned),
            RecordsState::Unresolved(_) => self.check_writing(&mut *self.lock_writer()?),
        }
    }

    /// Checks that the store may be used; the caller holds the writer lock.
    fn check_writing(&self, writer: &mut WriterState) -> Result<(), MetaError> {
        let records_state = *self.records_state.lock();
        let RecordsState::Unresolved(number) = records_state else { return self.check_sure(records_state) };
        let known = match self.commit_outcome(writer, number, Instant::now() + self.unavailable_wait) {
            // The commit was reported as failed, which is correct.
            Ok(CommitOutcome::Never) => RecordsState::Sure,
            Ok(CommitOutcome::Committed) => RecordsState::Poisoned,
            Err(error) => return Err(error),
        };
        *self.records_state.lock() = known;
        self.check_sure(known)
    }

    fn check_sure(&self, records_state: RecordsState) -> Result<(), MetaError> {
        match records_state {
            RecordsState::Sure => Ok(()),
            RecordsState::TakenOver => Err(self.taken_over()),
            RecordsState::Poisoned | RecordsState::Unresolved(_) => Err(MetaError::Poisoned),
        }
    }

    fn lock_writer(&self) -> Result<MutexGuard<'_, WriterState>, MetaError> {
        let lock_writer = self.writer.try_lock_for(TURN_MAX);
        lock_writer.ok_or_else(|| MetaError::Away("timed out waiting for another metadata change".into()))
    }

    fn explain(&self, error: RequestError) -> MetaError {
        not_begun(self.tree.explain(error))
    }

    /// Renames the store, so that all requests sent before find nothing. Returns the previous owner
    /// and a connection.
    fn rename(&self, until: Instant) -> Result<(String, LdapConnection), MetaError> {
        let mut before = None;
        loop {
            let connection = open_until(&self.target, until, RECONNECT_EVERY);
            let mut connection = connection.map_err(|error| self.explain(error))?;
            match self.try_rename(&mut connection, &mut before) {
                Ok(before) => return Ok((before, connection)),
                Err(ClaimError::Passing(_)) if Instant::now() + RECONNECT_EVERY < until => {
                    std::thread::sleep(RECONNECT_EVERY);
                }
                Err(ClaimError::Passing(error)) => return Err(self.explain(error)),
                Err(ClaimError::TakenOver) => {
                    self.mark_taken_over();
                    return Err(self.taken_over());
                }
                Err(ClaimError::Failed(error)) => return Err(not_begun(error)),
            }
        }
    }

    fn try_rename(
        &self,
        connection: &mut LdapConnection,
        before: &mut Option<String>,
    ) -> Result<String, ClaimError> {
        loop {
            let found = self.tree.find(connection)?.ok_or(ClaimError::TakenOver)?;
            let tried = self.is_tried_name(&found);
            if let Some(before) = before.as_ref().filter(|_| tried) {
                // An earlier attempt succeeded, but its response was lost.
                self.set_owner(found);
                return Ok(before.clone());
            }
            if self.is_claimed() && !tried && found != self.owner() {
                return Err(ClaimError::TakenOver);
            }
            *before = Some(found.clone());
            let mut name = [0; OWNER_BYTES];
            getrandom::fill(&mut name).map_err(|error| LdapStoreError::Connect {
                name: self.target.name.clone(),
                source: error.to_string().into(),
            })?;
            let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
            self.tried.lock().push(name.clone());
            match self.tree.rename_to(connection, &found, &name) {
                Ok(()) => {
                    self.set_owner(name);
                    return Ok(found);
                }
                // Another server renamed the store first.
                Err(error) if error.code() == Some(LdapResult::NO_SUCH_OBJECT) => {}
                Err(error) => return Err(self.tree.explain(error).into()),
            }
        }
    }

    fn set_owner(&self, owner: String) {
        // In this order: a name that another thread finds in neither place is another server's.
        *self.owner.lock() = owner;
        self.tried.lock().clear();
    }

    /// Claims the store, and reads it again if it changed since it was read.
    fn claim(&self, writer: &mut WriterState) -> Result<(), MetaError> {
        let (before, mut connection) = self.rename(Instant::now() + self.unavailable_wait)?;
        let owner = self.owner();
        // The store is claimed only after its content is known.
        let newest = self.tree.newest(&mut connection, &owner);
        let newest = newest.map_err(|error| not_begun(explained(&self.tree, &self.target, error)))?;
        if before != writer.read_of || newest.unwrap_or(0) != writer.number {
            let loaded = load(&self.tree, &mut connection, &self.target.name);
            let LoadedStore { versions, number, journal, outdated, outdated_bytes, owner } =
                loaded.map_err(|error| not_begun(explained(&self.tree, &self.target, error)))?;
            if owner != self.owner() {
                return Err(MetaError::Conflict);
            }
            *self.records.write() = versions;
            (writer.number, writer.read_of) = (number, owner);
            self.queue.fill(journal, outdated, outdated_bytes);
        }
        writer.connection = Some((connection, Instant::now()));
        self.is_claimed.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the outcome of a commit. Renames the store, so that a commit that has not arrived
    /// never will.
    fn commit_outcome(
        &self,
        writer: &mut WriterState,
        number: u64,
        until: Instant,
    ) -> Result<CommitOutcome, MetaError> {
        writer.connection = None;
        loop {
            let (_, mut connection) = self.rename(until)?;
            match connection.exists(&self.tree.commit(&self.owner(), number)) {
                Ok(found) => {
                    writer.connection = Some((connection, Instant::now()));
                    return Ok(if found { CommitOutcome::Committed } else { CommitOutcome::Never });
                }
                Err(error) if error.is_transient() && Instant::now() < until => {}
                Err(error) => return Err(self.explain(error)),
            }
        }
    }

    /// Returns the writer's connection; tests or replaces it if it may be broken.
    fn writers_link<'a>(&self, writer: &'a mut WriterState) -> Result<&'a mut LdapConnection, MetaError> {
        if let Some((mut connection, used)) = writer.connection.take()
            && ((used.elapsed() < IDLE_MAX && !connection.has_ended())
                || connection.exists(&self.tree.store(&self.owner())).is_ok())
        {
            return Ok(&mut writer.connection.insert((connection, Instant::now())).0);
        }
        let connection = open_until(&self.target, Instant::now() + self.unavailable_wait, RECONNECT_EVERY);
        let connection = connection.map_err(|error| self.explain(error))?;
        Ok(&mut writer.connection.insert((connection, Instant::now())).0)
    }

    fn commit(&self, writer: &mut WriterState, changes: Overlay) -> Result<(), MetaError> {
        let number = writer.number + 1;
        let bytes = journal::commit(number, &changes).ok_or_else(|| failed(LdapStoreError::TooLarge))?;
        let records = Arc::clone(&self.records.read());
        if !records.has_space(&changes) {
            return Err(failed(LdapStoreError::Full));
        }
        let owner = self.owner();
        let connection = self.writers_link(writer)?;
        let commit_outcome = match self.tree.add_commit(connection, &owner, number, &bytes) {
            Ok(()) => CommitOutcome::Committed,
            Err(error) => self.resolve_failed_add(writer, number, error)?,
        };
        match commit_outcome {
            CommitOutcome::Committed => {
                writer.number = number;
                let changes = records.apply(changes);
                self.queue.push(PendingCommit { number, bytes: bytes.len(), changes: changes.into() });
                Ok(())
            }
            // Nothing was stored; the transaction may be run again.
            CommitOutcome::Never => Err(MetaError::Conflict),
        }
    }

    /// Determines the outcome of a commit that was not acknowledged.
    fn resolve_failed_add(
        &self,
        writer: &mut WriterState,
        number: u64,
        error: RequestError,
    ) -> Result<CommitOutcome, MetaError> {
        let dn = self.tree.commit(&self.owner(), number);
        match error.code() {
            Some(LdapResult::EXISTS) => {
                *self.records_state.lock() = RecordsState::Poisoned;
                Err(failed(LdapStoreError::Damaged { dn, why: "written by other software".to_owned() }))
            }
            // The server answered, so the request is not pending any more.
            Some(code) => match self.writers_link(writer).ok().map(|connection| connection.exists(&dn)) {
                Some(Ok(true)) => Ok(CommitOutcome::Committed),
                Some(Ok(false)) => {
                    if code == LdapResult::NO_SUCH_OBJECT
                        && let Ok(Some(found)) = self.tree.find(self.writers_link(writer)?)
                        && found != self.owner()
                    {
                        self.mark_taken_over();
                        return Err(self.taken_over());
                    }
                    Err(self.refused_commit(error))
                }
                Some(Err(_)) | None => self.resolve_unknown(writer, number, &error),
            },
            None => self.resolve_unknown(writer, number, &error),
        }
    }

    /// Returns the error of a commit that the server refused. LDAP has no code for a full disk.
    fn refused_commit(&self, error: RequestError) -> MetaError {
        if error.code() != Some(LdapResult::OTHER) {
            return self.explain(error);
        }
        MetaError::Full { disk: LDAP_DISK, source: self.tree.explain(error).into() }
    }

    fn resolve_unknown(
        &self,
        writer: &mut WriterState,
        number: u64,
        error: &RequestError,
    ) -> Result<CommitOutcome, MetaError> {
        tracing::warn!(error = error as &dyn Error, "commit interrupted; resolving its outcome");
        self.commit_outcome(writer, number, Instant::now() + RESOLVE_MAX).map_err(|error| {
            let mut records_state = self.records_state.lock();
            if *records_state == RecordsState::Sure {
                *records_state = RecordsState::Unresolved(number);
            }
            // The commit may be stored, which is worse than an unavailable server.
            match error {
                MetaError::Away(error) => MetaError::Failed(error),
                error => error,
            }
        })
    }
}

impl MetaStore for LdapMeta {
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, MetaError> {
        self.store_state.check()?;
        Ok(Box::new(LdapSnapshot(self.store_state.records.read().snapshot())))
    }

    fn begin(&self) -> Result<Box<dyn Transaction + '_>, MetaError> {
        let until = Instant::now() + TURN_MAX;
        let writer = loop {
            let mut writer = self.store_state.lock_writer()?;
            self.store_state.check_writing(&mut writer)?;
            if !self.store_state.is_claimed() {
                self.store_state.claim(&mut writer)?;
            }
            if self.store_state.queue.has_space() {
                break writer;
            }
            drop(writer);
            if let Err(error) = self.store_state.queue.wait_for_space(until) {
                self.store_state.check()?;
                return Err(error);
            }
        };
        let view = LdapSnapshot(self.store_state.records.read().snapshot());
        Ok(Box::new(LdapTransaction { store: &self.store_state, view, changes: Overlay::default(), writer }))
    }

    fn answers_at_once(&self) -> bool {
        *self.store_state.records_state.lock() == RecordsState::Sure
    }
}

/// A snapshot.
struct LdapSnapshot(VersionSnapshot);

impl Snapshot for LdapSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        Ok(self.0.get(key))
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        Ok(self.0.scan(from, until, limit))
    }
}

/// A transaction: its changes are kept on top of its snapshot until the commit.
struct LdapTransaction<'a> {
    store: &'a LdapStore,
    view: LdapSnapshot,
    changes: Overlay,
    writer: MutexGuard<'a, WriterState>,
}

impl Snapshot for LdapTransaction<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        self.changes.get_over(&self.view, key)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        self.changes.scan_over(&self.view, from, until, limit)
    }
}

impl Transaction for LdapTransaction<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), MetaError> {
        self.changes.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), MetaError> {
        self.changes.delete(key);
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), MetaError> {
        let Self { store, view, changes, mut writer } = *self;
        if changes.is_empty() {
            return Ok(());
        }
        drop(view);
        store.commit(&mut writer, changes)
    }
}

#[cfg(test)]
mod tests;
