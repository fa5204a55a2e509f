//! Metadata in an LDAP server, for one metadata server at a time.
//!
//! Does: keep all records in memory, as versions; make each commit one entry of a journal, which is added or is not; put what
//! was committed into entries that people can read, a moment later; read everything at the start. Does not: ask the LDAP server when
//! something is read.
//! Contract: as the seam says, of any server that does what RFC 4511 says: an entry is added as a whole, and a subtree is
//! renamed as a whole. Whoever writes first renames the store's entry, so that whatever another one sent before, or sends
//! later, finds nothing; he learns it by that. When the LDAP server went away during a commit the store is renamed once
//! more: after that the commit is there or will never be, and it is looked at which.
//! Truth: docs/standards/mds/store.md §8.9; docs/adr/0039-metadata-in-ldap.md.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};
use sealstone_ldap::Outcome;
use sealstone_mds::store::{MetaError, MetaStore, Overlay, Pair, Snapshot, Transaction};

mod journal;
mod link;
mod load;
mod settings;
mod tree;
mod versions;
mod worker;

use link::{Link, Trouble, open_until};
use load::{Loaded, load};
pub use settings::LdapSettings;
use settings::Target;
use tree::{Loading, Tree};
use versions::{Look, Versions};
use worker::{Pending, Queue};

/// Time for a connection to be made.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Time for the next bytes of an answer.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(60);
/// How long a server that is away is waited for at a start, and by who begins something.
const RECONNECT_MAX: Duration = Duration::from_secs(20);
/// Between two tries to reach it.
pub(crate) const RECONNECT_EVERY: Duration = Duration::from_millis(100);
/// How long it is waited for, by who must know what became of his commit.
const RESOLVE_MAX: Duration = Duration::from_secs(60);
/// Time for this server's own turn.
const TURN_MAX: Duration = Duration::from_secs(30);
/// A connection that nobody used for so long may be gone: it is tried before something depends on it.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// Bytes of commits that are not in the records yet, at most, but for the last one.
pub(crate) const JOURNAL_BYTES_MAX: usize = 32 << 20;
/// Their number at most.
pub(crate) const JOURNAL_COMMITS_MAX: usize = 1024;
/// Bytes of an owner's name.
const OWNER_BYTES: usize = 16;

/// Why an LDAP server cannot be used as the metadata store.
#[derive(Debug, thiserror::Error)]
pub enum LdapStoreError {
    /// Not the URL of a store.
    #[error("the URL of the metadata store (ldaps://NAME@HOST[:PORT]/BASE): {0}")]
    Url(String),
    /// A password where everybody sees it.
    #[error(
        "the URL of the metadata store has a ':' before the host: a password goes into a file of its own (in a name, %3A stands for ':')"
    )]
    PasswordInUrl,
    /// Nothing to prove who asks.
    #[error("the LDAP server needs a password, in a file of its own")]
    NoPassword,
    /// Plain text beyond this machine, or TLS with whomever.
    #[error("the LDAP server is not on this machine: its CA file is missing")]
    NoCa,
    /// The file of certificates.
    #[error("the LDAP server's CA file {}: {why}", .path.display())]
    Ca {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// It cannot be reached, or does not do it.
    #[error("cannot use the LDAP server {name}")]
    Connect {
        /// Which.
        name: String,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// It does not know who asks.
    #[error("the LDAP server {name} does not take the name and the password")]
    Password {
        /// Which.
        name: String,
    },
    /// It knows who asks, and does not let him.
    #[error(
        "the LDAP server {name} does not let that name read, add, change, rename and remove entries below the base"
    )]
    Rights {
        /// Which.
        name: String,
    },
    /// It gives a part of the entries only.
    #[error(
        "the LDAP server {name} has limits of size or time for that name: it must be allowed to read all entries"
    )]
    Limits {
        /// Which.
        name: String,
    },
    /// It does not know what the entries are made of.
    #[error("the LDAP server {name} lacks schemas: core, cosine and inetorgperson are needed ({why})")]
    Schema {
        /// Which.
        name: String,
        /// What it said.
        why: String,
    },
    /// The base is not there.
    #[error("there is no entry {base}: make it, the records go below it")]
    NoBase {
        /// Its name.
        base: String,
    },
    /// Other entries.
    #[error("{dn} is none of Sealstone's: the store needs an entry with nothing else below it")]
    Others {
        /// Which.
        dn: String,
    },
    /// Several stores.
    #[error("there are several stores at {name}: remove those that are not used")]
    Several {
        /// Where.
        name: String,
    },
    /// Another release made it.
    #[error("{dn} says '{found}', which this release does not read")]
    Version {
        /// Which.
        dn: String,
        /// What it says.
        found: String,
    },
    /// An entry that nobody of ours wrote.
    #[error("the entry {dn} is damaged: {why}")]
    Damaged {
        /// Which.
        dn: String,
        /// What is wrong.
        why: String,
    },
    /// It changes all the time.
    #[error("the store at {name} is changed faster than it is read")]
    Busy {
        /// Where.
        name: String,
    },
    /// Too much at once.
    #[error("a transaction of more than {} bytes", journal::COMMIT_BYTES_MAX)]
    TooLarge,
    /// Too much at all.
    #[error("all records together would take more than {} bytes of memory", versions::BYTES_MAX)]
    Full,
    /// Another metadata server writes now.
    #[error(
        "another metadata server took the store at {name} over: this one knows an older state, and takes no work until it is started again"
    )]
    TakenOver {
        /// Where.
        name: String,
    },
}

/// Name of the disk of the LDAP server, for clients.
const LDAP_DISK: &str = "disk or database of the LDAP server with the metadata";

fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> MetaError {
    MetaError::Failed(error.into())
}

/// Of what was not begun: `Away` if it may go better in a moment.
fn not_begun(error: LdapStoreError) -> MetaError {
    let passing = match &error {
        LdapStoreError::Connect { source, .. } => {
            source.downcast_ref::<Trouble>().is_some_and(Trouble::is_passing)
        }
        _ => false,
    };
    if passing { MetaError::Away(error.into()) } else { failed(error) }
}

/// Is what is in memory what is stored?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Yes.
    Sure,
    /// It is not known whether this commit happened, which was told as failed.
    Unresolved(u64),
    /// It did.
    Poisoned,
    /// Another server writes.
    TakenOver,
}

/// What became of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Committed,
    Never,
}

/// Whoever writes.
#[derive(Default)]
struct Writer {
    link: Option<(Link, Instant)>,
    /// Of the newest commit.
    number: u64,
    /// Whose the store was when it was read.
    read_of: String,
}

pub(crate) struct Inner {
    target: Target,
    tree: Tree,
    records: RwLock<Arc<Versions>>,
    /// Whose the store is, if it was claimed.
    owner: Mutex<String>,
    /// Names that it may have got from us, without an answer.
    tried: Mutex<Vec<String>>,
    is_claimed: AtomicBool,
    /// Held by whoever writes.
    writer: Mutex<Writer>,
    trust: Mutex<Trust>,
    queue: Queue,
}

/// The metadata store in an LDAP server.
pub struct LdapMeta {
    inner: Arc<Inner>,
    worker: Option<JoinHandle<()>>,
}

impl LdapMeta {
    /// Connects to the server and reads all records; makes the store if there is none.
    ///
    /// # Errors
    /// See [`LdapStoreError`].
    pub fn open(settings: &LdapSettings) -> Result<Self, LdapStoreError> {
        let target = Target::new(settings)?;
        let tree = Tree::new(&target.base, &target.name);
        let until = Instant::now() + RECONNECT_MAX;
        let loaded = loop {
            let mut link =
                open_until(&target, until, RECONNECT_EVERY).map_err(|trouble| tree.explain(trouble))?;
            match load(&tree, &mut link, &target.name) {
                Ok(loaded) => break loaded,
                Err(Loading::Trouble(trouble)) if trouble.is_passing() && Instant::now() < until => {}
                Err(error) => return Err(explained(&tree, &target, error)),
            }
        };
        let inner = Arc::new(Inner {
            tree,
            records: RwLock::new(loaded.versions),
            owner: Mutex::default(),
            tried: Mutex::default(),
            is_claimed: AtomicBool::new(false),
            writer: Mutex::new(Writer { link: None, number: loaded.number, read_of: loaded.owner }),
            trust: Mutex::new(Trust::Sure),
            queue: Queue::default(),
            target,
        });
        inner.queue.fill(loaded.journal, loaded.outdated, loaded.outdated_bytes);
        let worker = std::thread::Builder::new().name("ldap-records".to_owned()).spawn({
            let inner = Arc::clone(&inner);
            move || worker::run(&inner)
        });
        let worker = worker.map_err(|error| LdapStoreError::Connect {
            name: inner.target.name.clone(),
            source: error.into(),
        })?;
        Ok(Self { inner, worker: Some(worker) })
    }

    /// Does what is stored go over a network in plain text?
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.inner.target.exposed
    }

    /// Host and base, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.target.name
    }

    /// Bytes of memory that the records take, about: 160 and those of key and value for each.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.inner.records.read().bytes()
    }
}

impl Drop for LdapMeta {
    /// What was committed is put into the records, if the server is there.
    fn drop(&mut self) {
        self.inner.queue.end();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

fn explained(tree: &Tree, target: &Target, error: Loading) -> LdapStoreError {
    match error {
        Loading::Trouble(trouble) => tree.explain(trouble),
        Loading::Moved => LdapStoreError::Busy { name: target.name.clone() },
        Loading::Failed(error) => error,
    }
}

/// Why the store did not get another owner.
enum Unclaimed {
    Passing(Trouble),
    TakenOver,
    Failed(LdapStoreError),
}

impl From<LdapStoreError> for Unclaimed {
    fn from(error: LdapStoreError) -> Self {
        match error {
            LdapStoreError::Connect { source, name } => match source.downcast::<Trouble>() {
                Ok(trouble) if trouble.is_passing() => Self::Passing(*trouble),
                Ok(trouble) => Self::Failed(LdapStoreError::Connect { name, source: trouble }),
                Err(source) => Self::Failed(LdapStoreError::Connect { name, source }),
            },
            other => Self::Failed(other),
        }
    }
}

impl Inner {
    pub(crate) fn owner(&self) -> String {
        self.owner.lock().clone()
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.is_claimed.load(Ordering::Acquire)
    }

    /// Is the store of this name ours, though nobody told us so yet?
    pub(crate) fn may_be_ours(&self, owner: &str) -> bool {
        self.tried.lock().iter().any(|tried| tried == owner)
    }

    fn taken_over(&self) -> MetaError {
        failed(LdapStoreError::TakenOver { name: self.target.name.clone() })
    }

    /// From now on nothing is read or written.
    pub(crate) fn is_taken_over(&self) {
        let mut trust = self.trust.lock();
        if *trust != Trust::TakenOver {
            *trust = Trust::TakenOver;
            let error = LdapStoreError::TakenOver { name: self.target.name.clone() };
            tracing::error!(error = &error as &dyn Error, "the metadata store");
        }
    }

    /// Is another server known to write?
    pub(crate) fn is_lost(&self) -> bool {
        *self.trust.lock() == Trust::TakenOver
    }

    /// Renames the store, so that whatever was sent and not answered finds nothing; says whether it did.
    pub(crate) fn leave_behind(&self, time: Duration) -> bool {
        // Two who rename at the same time would not know each other's names.
        let Some(_turn) = self.writer.try_lock_for(TURN_MAX) else { return false };
        self.rename(Instant::now() + time).is_ok()
    }

    /// Before anything is read or written.
    fn check(&self) -> Result<(), MetaError> {
        let trust = *self.trust.lock();
        match trust {
            Trust::Sure => Ok(()),
            Trust::TakenOver => Err(self.taken_over()),
            Trust::Poisoned => Err(MetaError::Poisoned),
            Trust::Unresolved(_) => self.check_writing(&mut *self.turn()?),
        }
    }

    /// The same for who has the turn.
    fn check_writing(&self, writer: &mut Writer) -> Result<(), MetaError> {
        let trust = *self.trust.lock();
        let Trust::Unresolved(number) = trust else { return self.check_sure(trust) };
        let known = match self.fate(writer, number, Instant::now() + RECONNECT_MAX) {
            // It was told as failed, and so it is.
            Ok(Fate::Never) => Trust::Sure,
            Ok(Fate::Committed) => Trust::Poisoned,
            Err(error) => return Err(error),
        };
        *self.trust.lock() = known;
        self.check_sure(known)
    }

    fn check_sure(&self, trust: Trust) -> Result<(), MetaError> {
        match trust {
            Trust::Sure => Ok(()),
            Trust::TakenOver => Err(self.taken_over()),
            Trust::Poisoned | Trust::Unresolved(_) => Err(MetaError::Poisoned),
        }
    }

    fn turn(&self) -> Result<MutexGuard<'_, Writer>, MetaError> {
        let turn = self.writer.try_lock_for(TURN_MAX);
        turn.ok_or_else(|| MetaError::Away("other changes of the metadata take too long".into()))
    }

    fn explain(&self, trouble: Trouble) -> MetaError {
        not_begun(self.tree.explain(trouble))
    }

    /// Renames the store: what others or we ourselves sent before finds nothing from now on. Whose it was, and a
    /// connection.
    fn rename(&self, until: Instant) -> Result<(String, Link), MetaError> {
        let mut before = None;
        loop {
            let link = open_until(&self.target, until, RECONNECT_EVERY);
            let mut link = link.map_err(|trouble| self.explain(trouble))?;
            match self.try_rename(&mut link, &mut before) {
                Ok(before) => return Ok((before, link)),
                Err(Unclaimed::Passing(_)) if Instant::now() + RECONNECT_EVERY < until => {
                    std::thread::sleep(RECONNECT_EVERY);
                }
                Err(Unclaimed::Passing(trouble)) => return Err(self.explain(trouble)),
                Err(Unclaimed::TakenOver) => {
                    self.is_taken_over();
                    return Err(self.taken_over());
                }
                Err(Unclaimed::Failed(error)) => return Err(not_begun(error)),
            }
        }
    }

    fn try_rename(&self, link: &mut Link, before: &mut Option<String>) -> Result<String, Unclaimed> {
        loop {
            let found = self.tree.find(link)?.ok_or(Unclaimed::TakenOver)?;
            let tried = self.may_be_ours(&found);
            if let Some(before) = before.as_ref().filter(|_| tried) {
                // An earlier try arrived, though its answer did not.
                self.is_ours(found);
                return Ok(before.clone());
            }
            if self.is_claimed() && !tried && found != self.owner() {
                return Err(Unclaimed::TakenOver);
            }
            *before = Some(found.clone());
            let mut name = [0; OWNER_BYTES];
            getrandom::fill(&mut name).map_err(|error| LdapStoreError::Connect {
                name: self.target.name.clone(),
                source: error.to_string().into(),
            })?;
            let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
            self.tried.lock().push(name.clone());
            match self.tree.give(link, &found, &name) {
                Ok(()) => {
                    self.is_ours(name);
                    return Ok(found);
                }
                // Somebody was faster.
                Err(trouble) if trouble.code() == Some(Outcome::NO_SUCH_OBJECT) => {}
                Err(trouble) => return Err(self.tree.explain(trouble).into()),
            }
        }
    }

    fn is_ours(&self, owner: String) {
        // In this order: whoever finds it in neither place knows that it is somebody else's.
        *self.owner.lock() = owner;
        self.tried.lock().clear();
    }

    /// Makes the store ours, and reads it again if it is not as it was read.
    fn claim(&self, writer: &mut Writer) -> Result<(), MetaError> {
        let (before, mut link) = self.rename(Instant::now() + RECONNECT_MAX)?;
        let owner = self.owner();
        // Not before: as long as it is not known what is in it, it is not ours.
        let newest = self.tree.newest(&mut link, &owner);
        let newest = newest.map_err(|error| not_begun(explained(&self.tree, &self.target, error)))?;
        if before != writer.read_of || newest.unwrap_or(0) != writer.number {
            let loaded = load(&self.tree, &mut link, &self.target.name);
            let Loaded { versions, number, journal, outdated, outdated_bytes, owner } =
                loaded.map_err(|error| not_begun(explained(&self.tree, &self.target, error)))?;
            if owner != self.owner() {
                return Err(MetaError::Conflict);
            }
            *self.records.write() = versions;
            (writer.number, writer.read_of) = (number, owner);
            self.queue.fill(journal, outdated, outdated_bytes);
        }
        writer.link = Some((link, Instant::now()));
        self.is_claimed.store(true, Ordering::Release);
        Ok(())
    }

    /// What became of a commit; it is decided now if it was not before.
    fn fate(&self, writer: &mut Writer, number: u64, until: Instant) -> Result<Fate, MetaError> {
        writer.link = None;
        loop {
            let (_, mut link) = self.rename(until)?;
            match link.is_there(&self.tree.commit(&self.owner(), number)) {
                Ok(found) => {
                    writer.link = Some((link, Instant::now()));
                    return Ok(if found { Fate::Committed } else { Fate::Never });
                }
                Err(trouble) if trouble.is_passing() && Instant::now() < until => {}
                Err(trouble) => return Err(self.explain(trouble)),
            }
        }
    }

    /// A connection that is alive, as far as one can know.
    fn writers_link<'a>(&self, writer: &'a mut Writer) -> Result<&'a mut Link, MetaError> {
        if let Some((mut link, used)) = writer.link.take()
            && ((used.elapsed() < IDLE_MAX && !link.has_ended())
                || link.is_there(&self.tree.store(&self.owner())).is_ok())
        {
            return Ok(&mut writer.link.insert((link, Instant::now())).0);
        }
        let link = open_until(&self.target, Instant::now() + RECONNECT_MAX, RECONNECT_EVERY);
        let link = link.map_err(|trouble| self.explain(trouble))?;
        Ok(&mut writer.link.insert((link, Instant::now())).0)
    }

    fn commit(&self, writer: &mut Writer, changes: Overlay) -> Result<(), MetaError> {
        let number = writer.number + 1;
        let bytes = journal::commit(number, &changes).ok_or_else(|| failed(LdapStoreError::TooLarge))?;
        let records = Arc::clone(&self.records.read());
        if !records.has_room(&changes) {
            return Err(failed(LdapStoreError::Full));
        }
        let owner = self.owner();
        let link = self.writers_link(writer)?;
        let fate = match self.tree.add_commit(link, &owner, number, &bytes) {
            Ok(()) => Fate::Committed,
            Err(trouble) => self.not_added(writer, number, trouble)?,
        };
        match fate {
            Fate::Committed => {
                writer.number = number;
                let changes = records.apply(changes);
                self.queue.push(Pending { number, bytes: bytes.len(), changes: changes.into() });
                Ok(())
            }
            // Nothing happened; it may be run again.
            Fate::Never => Err(MetaError::Conflict),
        }
    }

    /// A commit that was not acknowledged: did it happen?
    fn not_added(&self, writer: &mut Writer, number: u64, trouble: Trouble) -> Result<Fate, MetaError> {
        let dn = self.tree.commit(&self.owner(), number);
        match trouble.code() {
            Some(Outcome::EXISTS) => {
                *self.trust.lock() = Trust::Poisoned;
                Err(failed(LdapStoreError::Damaged { dn, why: "somebody else wrote it".to_owned() }))
            }
            // The server has said all that it will do: there is nothing to wait for.
            Some(code) => match self.writers_link(writer).ok().map(|link| link.is_there(&dn)) {
                Some(Ok(true)) => Ok(Fate::Committed),
                Some(Ok(false)) => {
                    if code == Outcome::NO_SUCH_OBJECT
                        && let Ok(Some(found)) = self.tree.find(self.writers_link(writer)?)
                        && found != self.owner()
                    {
                        self.is_taken_over();
                        return Err(self.taken_over());
                    }
                    Err(self.refused_commit(trouble))
                }
                Some(Err(_)) | None => self.unknown(writer, number, &trouble),
            },
            None => self.unknown(writer, number, &trouble),
        }
    }

    /// Returns the error of a commit that the server refused. LDAP has no code for a full disk.
    fn refused_commit(&self, trouble: Trouble) -> MetaError {
        if trouble.code() != Some(Outcome::OTHER) {
            return self.explain(trouble);
        }
        MetaError::Full { disk: LDAP_DISK, source: self.tree.explain(trouble).into() }
    }

    fn unknown(&self, writer: &mut Writer, number: u64, trouble: &Trouble) -> Result<Fate, MetaError> {
        tracing::warn!(
            error = trouble as &dyn Error,
            "a commit was interrupted: finding out what became of it"
        );
        self.fate(writer, number, Instant::now() + RESOLVE_MAX).map_err(|error| {
            let mut trust = self.trust.lock();
            if *trust == Trust::Sure {
                *trust = Trust::Unresolved(number);
            }
            // It may have been done: that is more than that the server is away.
            match error {
                MetaError::Away(error) => MetaError::Failed(error),
                error => error,
            }
        })
    }
}

impl MetaStore for LdapMeta {
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, MetaError> {
        self.inner.check()?;
        Ok(Box::new(View(self.inner.records.read().look())))
    }

    fn begin(&self) -> Result<Box<dyn Transaction + '_>, MetaError> {
        let until = Instant::now() + TURN_MAX;
        let writer = loop {
            let mut writer = self.inner.turn()?;
            self.inner.check_writing(&mut writer)?;
            if !self.inner.is_claimed() {
                self.inner.claim(&mut writer)?;
            }
            if self.inner.queue.has_room() {
                break writer;
            }
            drop(writer);
            if let Err(error) = self.inner.queue.wait_for_room(until) {
                self.inner.check()?;
                return Err(error);
            }
        };
        let view = View(self.inner.records.read().look());
        Ok(Box::new(Changes { store: &self.inner, view, changes: Overlay::default(), writer }))
    }

    fn answers_at_once(&self) -> bool {
        *self.inner.trust.lock() == Trust::Sure
    }
}

/// A state.
struct View(Look);

impl Snapshot for View {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        Ok(self.0.get(key))
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        Ok(self.0.scan(from, until, limit))
    }
}

/// A transaction: what it changes is here until the commit, on top of what it reads.
struct Changes<'a> {
    store: &'a Inner,
    view: View,
    changes: Overlay,
    writer: MutexGuard<'a, Writer>,
}

impl Snapshot for Changes<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        self.changes.get(key).map_or_else(|| self.view.get(key), Ok)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        // As many more as may fall away: what was deleted or is told with its new value.
        let below = limit.saturating_add(self.changes.count(from, until));
        Ok(self.changes.scan(self.view.scan(from, until, below)?, from, until, limit))
    }
}

impl Transaction for Changes<'_> {
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
