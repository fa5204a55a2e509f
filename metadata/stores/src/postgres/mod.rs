//! Metadata in PostgreSQL, or in whatever speaks its protocol and knows serializable transactions. Several servers may
//! use one database at a time.
//!
//! Does: one table of keys and values; snapshots that do not move; changes gathered here and written at once; a pool of
//! connections that outlives restarts of the database. Does not: know what is stored; `SealedStore` seals secrets before
//! they come here.
//! Contract: as the seam says. Changes are serializable, and the servers take turns. When the database went away during
//! a commit, it is asked what became of it, and made to decide: nobody is told "done" or "not done" on a guess.
//! Truth: docs/standards/mds/store.md §8.7; docs/adr/0038-several-servers-one-database.md.

use std::cell::RefCell;
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use sealstone_mds::store::{MetaError, MetaStore, Overlay, Pair, Snapshot, Transaction};
use tokio_postgres::error::{Severity, SqlState};

mod pool;
mod schema;
mod settings;
mod tls;
mod wait;

use pool::{Cause, Lent, Pool};
pub use settings::PostgresSettings;
use settings::Target;

/// Connections of one server at most: one writes, the others read.
pub(crate) const CONNECTIONS_MAX: usize = 32;
/// Time for a connection to be made.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Time for an answer; longer than the database's own limits, so that it is the one that gives up first.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(35);
/// A peer that acknowledges nothing for so long is gone.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(15);
/// How long a database that is away is waited for, by who begins something.
const RECONNECT_MAX: Duration = Duration::from_secs(20);
/// Between two tries to reach it.
pub(crate) const RECONNECT_EVERY: Duration = Duration::from_millis(100);
/// How long it is waited for, by who must know what became of his commit.
const RESOLVE_MAX: Duration = Duration::from_secs(60);
/// Time for this server's own turn.
const TURN_MAX: Duration = Duration::from_secs(30);
/// Bytes of a writer's name.
const WRITER_LEN: usize = 16;

/// Reads one state; what it reads is never in anybody's way.
const BEGIN_VIEW: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1";
const BEGIN: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE";
/// The lock comes before the first read, so that the state that is read is the one of one's turn.
const BEGIN_IN_TURN: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE; LOCK TABLE sealstone_turn IN EXCLUSIVE MODE";

/// Why a database cannot be used as the metadata store.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// Not the URL of a database.
    #[error("the URL of the metadata store: {0}")]
    Url(String),
    /// A password where everybody sees it.
    #[error("the URL of the metadata store holds a password: put it into a file of its own")]
    PasswordInUrl,
    /// Plain text beyond this machine.
    #[error("the database is not on this machine: its CA file is missing")]
    NoCa,
    /// The file of certificates.
    #[error("the database's CA file {}: {why}", .path.display())]
    Ca {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// It cannot be reached, or does not let us in.
    #[error("cannot use the database {name}")]
    Connect {
        /// Which.
        name: String,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// Another release made the tables.
    #[error("the tables in {name} have format {found}, this release reads {}", schema::FORMAT_VERSION)]
    Version {
        /// Which.
        name: String,
        /// The format found.
        found: i64,
    },
}

/// Who writes: one name as long as all of its outcomes are known.
struct Writer {
    id: [u8; WRITER_LEN],
    number: i64,
}

impl Writer {
    fn new() -> Result<Self, MetaError> {
        let mut id = [0; WRITER_LEN];
        getrandom::fill(&mut id).map_err(|error| MetaError::Failed(error.to_string().into()))?;
        Ok(Self { id, number: 0 })
    }
}

/// What became of a commit.
enum Fate {
    Committed,
    Never,
}

/// The metadata store in a database.
pub struct PostgresMeta {
    pool: Pool,
    /// Held by whoever writes: the servers take turns, and so do the threads of one.
    writer: Mutex<Writer>,
    /// Are the servers' turns kept by a lock of the database? Otherwise by conflicts alone.
    takes_turns: bool,
    /// Commits whose outcome nobody could be told, by writer and number.
    unresolved: Mutex<Vec<([u8; WRITER_LEN], i64)>>,
    /// One of them happened, though it was told as failed.
    poisoned: Mutex<bool>,
    exposed: bool,
}

impl PostgresMeta {
    /// Connects to the database, and makes the tables if they are not there.
    ///
    /// # Errors
    /// See [`PostgresError`].
    pub fn open(settings: &PostgresSettings) -> Result<Self, PostgresError> {
        let target = Target::new(settings)?;
        let (name, exposed) = (target.name.clone(), target.exposed);
        let connect = |source: Cause| PostgresError::Connect { name: name.clone(), source };
        let pool = Pool::new(target).map_err(|error| connect(error.into()))?;
        let prepared = schema::prepare(&pool)?;
        let writer = Mutex::new(Writer::new().map_err(|error| connect(error.into()))?);
        let this = Self {
            pool,
            writer,
            takes_turns: prepared.takes_turns,
            unresolved: Mutex::default(),
            poisoned: Mutex::default(),
            exposed,
        };
        Ok(this)
    }

    /// Does what is stored go over a network in plain text?
    #[must_use]
    pub const fn is_exposed(&self) -> bool {
        self.exposed
    }

    /// Hosts and database, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        self.pool.name()
    }

    /// Before anything is read or written: is everything known that was begun before?
    fn check(&self) -> Result<(), MetaError> {
        if *self.poisoned.lock() {
            return Err(MetaError::Poisoned);
        }
        let mut unresolved = self.unresolved.lock();
        while let Some((writer, number)) = unresolved.last().copied() {
            match self.fate(&writer, number, Instant::now() + RECONNECT_MAX) {
                // It was told as failed, and so it is.
                Some(Fate::Never) => {
                    unresolved.pop();
                }
                Some(Fate::Committed) => {
                    *self.poisoned.lock() = true;
                    return Err(MetaError::Poisoned);
                }
                None => return Err(MetaError::Poisoned),
            }
        }
        Ok(())
    }

    /// What became of a commit; it is decided now if it was not before: the mark that it would have left is left by us,
    /// and whichever of the two comes second fails. `None` if the database does not say by then.
    fn fate(&self, writer: &[u8; WRITER_LEN], number: i64, until: Instant) -> Option<Fate> {
        loop {
            match self.try_fate(writer, number, until) {
                Ok(fate) => return Some(fate),
                Err(error) if Instant::now() + RECONNECT_EVERY < until => {
                    tracing::warn!(error = &*error as &dyn Error, "what became of a commit is not known yet");
                    std::thread::sleep(RECONNECT_EVERY);
                }
                Err(_) => return None,
            }
        }
    }

    fn try_fate(&self, writer: &[u8; WRITER_LEN], number: i64, until: Instant) -> Result<Fate, Cause> {
        let mut lent = self.pool.lend("SELECT 1", until)?;
        lent.is_over();
        let (id, no) = (&writer[..], false);
        let marked = lent.ask(async |on| on.client.execute(&on.statements.mark, &[&id, &number, &no]).await);
        match marked {
            Ok(_) => Ok(Fate::Never),
            Err(error) if code(&*error) == Some(&SqlState::UNIQUE_VIOLATION) => {
                let row =
                    lent.ask(async |on| on.client.query_one(&on.statements.marked, &[&id, &number]).await)?;
                Ok(if row.try_get(0)? { Fate::Committed } else { Fate::Never })
            }
            Err(error) => Err(error),
        }
    }
}

/// Name of the disk of the database, for clients.
const DATABASE_DISK: &str = "disk of the PostgreSQL server with the metadata";

fn code<'a>(error: &'a (dyn Error + Send + Sync + 'static)) -> Option<&'a SqlState> {
    error.downcast_ref::<tokio_postgres::Error>()?.code()
}

fn failed(error: Cause) -> MetaError {
    match code(&*error) {
        Some(code)
            if *code == SqlState::T_R_SERIALIZATION_FAILURE || *code == SqlState::T_R_DEADLOCK_DETECTED =>
        {
            MetaError::Conflict
        }
        Some(code) if *code == SqlState::DISK_FULL => MetaError::Full { disk: DATABASE_DISK, source: error },
        _ => MetaError::Failed(error),
    }
}

/// The same before anything was sent that changes something: unless the database says why, it is away.
fn unread(error: Cause) -> MetaError {
    match failed(error) {
        MetaError::Failed(error) if !is_refusal(&*error) => MetaError::Away(error),
        other => other,
    }
}

/// Did the database say, and is it certain, that it did not do it?
fn is_refusal(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    let said = error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::as_db_error);
    said.is_some_and(|said| {
        said.parsed_severity() == Some(Severity::Error)
            && *said.code() != SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
    })
}

impl MetaStore for PostgresMeta {
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, MetaError> {
        self.check()?;
        let lent = self.pool.lend(BEGIN_VIEW, Instant::now() + RECONNECT_MAX).map_err(unread)?;
        Ok(Box::new(View(RefCell::new(lent))))
    }

    fn begin(&self) -> Result<Box<dyn Transaction + '_>, MetaError> {
        let writer = self.writer.try_lock_for(TURN_MAX);
        let writer =
            writer.ok_or_else(|| MetaError::Away("other changes of the metadata take too long".into()))?;
        self.check()?;
        let begin = if self.takes_turns { BEGIN_IN_TURN } else { BEGIN };
        let lent = self.pool.lend(begin, Instant::now() + RECONNECT_MAX).map_err(unread)?;
        Ok(Box::new(Changes {
            store: self,
            view: View(RefCell::new(lent)),
            changes: Overlay::default(),
            writer,
        }))
    }
}

/// A connection in a transaction.
struct View<'a>(RefCell<Lent<'a>>);

impl Snapshot for View<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        let row = self
            .0
            .borrow_mut()
            .ask(async |on| on.client.query_opt(&on.statements.get, &[&key]).await)
            .map_err(unread)?;
        row.map(|row| row.try_get(0)).transpose().map_err(|error| failed(error.into()))
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        if from >= until || limit == 0 {
            return Ok(Vec::new());
        }
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self
            .0
            .borrow_mut()
            .ask(async |on| on.client.query(&on.statements.scan, &[&from, &until, &limit]).await)
            .map_err(unread)?;
        let pair = |row: tokio_postgres::Row| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.into_iter().map(pair).collect::<Result<_, tokio_postgres::Error>>().map_err(|e| failed(e.into()))
    }
}

/// A transaction: what it changes is here until the commit, on top of what it reads.
struct Changes<'a> {
    store: &'a PostgresMeta,
    view: View<'a>,
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
        let mut lent = view.0.into_inner();
        writer.number += 1;
        let number = writer.number;
        let error = match write(&mut lent, &changes, &writer) {
            Ok(()) => {
                lent.is_over();
                return Ok(());
            }
            Err(error) => error,
        };
        if is_refusal(&*error) {
            return Err(failed(error));
        }
        // The connection is of no use any more, and the next one must not wait for it.
        drop(lent);
        tracing::warn!(error = &*error as &dyn Error, "a commit was interrupted: asking what became of it");
        // Its mark may have to be found long after: no later commit of the same name removes it.
        let before = std::mem::replace(&mut *writer, Writer::new()?);
        match store.fate(&before.id, number, Instant::now() + RESOLVE_MAX) {
            Some(Fate::Committed) => Ok(()),
            // Nothing happened; it may be run again.
            Some(Fate::Never) => Err(MetaError::Conflict),
            None => {
                store.unresolved.lock().push((before.id, number));
                Err(MetaError::Failed(error))
            }
        }
    }
}

/// Sends all changes, the mark and the commit at once, and waits for the answers.
fn write(lent: &mut Lent<'_>, changes: &Overlay, writer: &Writer) -> Result<(), Cause> {
    let (mut keys, mut values, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    for (key, change) in changes.iter() {
        match change {
            Some(value) => {
                keys.push(key);
                values.push(value);
            }
            None => gone.push(key),
        }
    }
    let (id, number, yes) = (&writer.id[..], writer.number, true);
    lent.ask(async |on| {
        let (client, with) = (&on.client, &on.statements);
        let put = async {
            if keys.is_empty() { Ok(0) } else { client.execute(&with.put, &[&keys, &values]).await }
        };
        let delete =
            async { if gone.is_empty() { Ok(0) } else { client.execute(&with.delete, &[&gone]).await } };
        // In this order they are sent; after the first that fails, the database does none of the others, and ends the
        // transaction when it comes to the last.
        let (put, delete, mark, unmark, commit) = tokio::join!(
            biased;
            put,
            delete,
            async { client.execute(&with.mark, &[&id, &number, &yes]).await },
            async { client.execute(&with.unmark, &[&id, &number]).await },
            client.batch_execute("COMMIT"),
        );
        put?;
        delete?;
        mark?;
        unmark?;
        commit
    })
}

#[cfg(test)]
mod tests;
