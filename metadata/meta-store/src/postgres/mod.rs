//! Metadata in PostgreSQL, or another database with its protocol and serializable transactions.
//! Several servers may share a database.
//!
//! Does: keeps one table of keys and values; reads from stable snapshots; collects changes in
//! memory and writes them in one round trip; keeps a connection pool that survives restarts of the
//! database.
//! Does not: interpret records; `SealedStore` seals secrets before they get here.
//! Contract: that of the store trait. Changes are serializable, and servers write in turn. After a
//! connection failure during a commit its outcome is resolved in the database, never guessed.
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

use pool::{ConnectionError, ConnectionPool, PooledConnection};
use settings::DatabaseTarget;
pub use settings::PostgresSettings;

/// Maximum connections of one server: one writes, the others read.
pub(crate) const CONNECTIONS_MAX: usize = 32;
/// Timeout of a connection attempt.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Timeout of a response; longer than the database's own timeouts, so that those fire first.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(35);
/// Time after which a peer without acknowledgements counts as dead.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(15);
/// Interval of connection attempts.
pub(crate) const RECONNECT_EVERY: Duration = Duration::from_millis(100);
/// How long an interrupted commit waits for the database to learn its outcome.
const RESOLVE_MAX: Duration = Duration::from_secs(60);
/// How long a transaction waits for this server's writer lock.
const TURN_MAX: Duration = Duration::from_secs(30);
/// Bytes of a writer's random id.
const WRITER_LEN: usize = 16;

/// Begins a read-only snapshot, which blocks no writer.
const BEGIN_VIEW: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1";
const BEGIN: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE";
/// Begins a transaction and takes the lock before the first read, so that the snapshot is not older
/// than the lock.
const BEGIN_IN_TURN: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE; LOCK TABLE sealstone_turn IN EXCLUSIVE MODE";

/// Reason why a database cannot be used as the metadata store.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// The URL is invalid.
    #[error("invalid URL of the metadata store: {0}")]
    Url(String),
    /// The URL has a password, which process listings would show.
    #[error("the URL of the metadata store has a password: put it into a file")]
    PasswordInUrl,
    /// There is no CA file for a database on another machine.
    #[error("the database is on another machine and needs a CA file")]
    NoCa,
    /// The CA file cannot be used.
    #[error("cannot use the database's CA file {}: {why}", .path.display())]
    Ca {
        /// Path of the CA file.
        path: PathBuf,
        /// Description of the error.
        why: String,
    },
    /// The database cannot be reached, or refused the login.
    #[error("cannot use the database {name}")]
    Connect {
        /// Hosts and database.
        name: String,
        /// Error of the connection.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// Another release created the tables.
    #[error("the tables in {name} have format {found}, this release reads {}", schema::FORMAT_VERSION)]
    Version {
        /// Hosts and database.
        name: String,
        /// The format found.
        found: i64,
    },
}

/// Id of the writer; replaced after a commit with an unknown outcome.
struct WriterId {
    id: [u8; WRITER_LEN],
    number: i64,
}

impl WriterId {
    fn new() -> Result<Self, MetaError> {
        let mut id = [0; WRITER_LEN];
        getrandom::fill(&mut id).map_err(|error| MetaError::Failed(error.to_string().into()))?;
        Ok(Self { id, number: 0 })
    }
}

/// Outcome of a commit.
enum CommitOutcome {
    Committed,
    Never,
}

/// The metadata store in a database.
pub struct PostgresMeta {
    pool: ConnectionPool,
    /// Lock of this server's writer threads; servers exclude each other in the database.
    writer: Mutex<WriterId>,
    /// Whether the database supports the lock for writers; otherwise conflicts are retried.
    has_writer_lock: bool,
    /// Commits whose outcome could not be determined, by writer and number.
    unresolved: Mutex<Vec<([u8; WRITER_LEN], i64)>>,
    /// Whether a commit that was reported as failed is stored.
    poisoned: Mutex<bool>,
    exposed: bool,
    /// How long a new transaction waits for an unavailable database.
    unavailable_wait: Duration,
}

impl PostgresMeta {
    /// Connects to the database, and creates the tables if they do not exist.
    ///
    /// # Errors
    /// See [`PostgresError`].
    pub fn open(settings: &PostgresSettings) -> Result<Self, PostgresError> {
        let target = DatabaseTarget::new(settings)?;
        let (name, exposed) = (target.name.clone(), target.exposed);
        let connect = |source: ConnectionError| PostgresError::Connect { name: name.clone(), source };
        let pool = ConnectionPool::new(target).map_err(|error| connect(error.into()))?;
        let prepared = schema::prepare(&pool, settings.unavailable_wait)?;
        let writer = Mutex::new(WriterId::new().map_err(|error| connect(error.into()))?);
        let this = Self {
            pool,
            writer,
            has_writer_lock: prepared.has_writer_lock,
            unresolved: Mutex::default(),
            poisoned: Mutex::default(),
            exposed,
            unavailable_wait: settings.unavailable_wait,
        };
        Ok(this)
    }

    /// Whether records travel over a network in plain text.
    #[must_use]
    pub const fn is_exposed(&self) -> bool {
        self.exposed
    }

    /// Returns hosts and database, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        self.pool.name()
    }

    /// Checks that the store may be used: resolves the outcome of interrupted commits first.
    fn check(&self) -> Result<(), MetaError> {
        if *self.poisoned.lock() {
            return Err(MetaError::Poisoned);
        }
        let mut unresolved = self.unresolved.lock();
        while let Some((writer, number)) = unresolved.last().copied() {
            match self.commit_outcome(&writer, number, Instant::now() + self.unavailable_wait) {
                // The commit was reported as failed, which is correct.
                Some(CommitOutcome::Never) => {
                    unresolved.pop();
                }
                Some(CommitOutcome::Committed) => {
                    *self.poisoned.lock() = true;
                    return Err(MetaError::Poisoned);
                }
                None => return Err(MetaError::Poisoned),
            }
        }
        Ok(())
    }

    /// Determines the outcome of a commit by inserting the mark that it would have left: the second
    /// insert fails. A commit without a mark can then never succeed. Returns `None` if the database
    /// does not answer in time.
    fn commit_outcome(
        &self,
        writer: &[u8; WRITER_LEN],
        number: i64,
        until: Instant,
    ) -> Option<CommitOutcome> {
        loop {
            match self.try_commit_outcome(writer, number, until) {
                Ok(commit_outcome) => return Some(commit_outcome),
                Err(error) if Instant::now() + RECONNECT_EVERY < until => {
                    tracing::warn!(
                        error = &*error as &dyn Error,
                        "outcome of a commit still unknown; retrying"
                    );
                    std::thread::sleep(RECONNECT_EVERY);
                }
                Err(_) => return None,
            }
        }
    }

    fn try_commit_outcome(
        &self,
        writer: &[u8; WRITER_LEN],
        number: i64,
        until: Instant,
    ) -> Result<CommitOutcome, ConnectionError> {
        let mut pooled = self.pool.acquire("SELECT 1", until)?;
        pooled.end_transaction();
        let (id, no) = (&writer[..], false);
        let marked =
            pooled.query(async |on| on.client.execute(&on.statements.mark, &[&id, &number, &no]).await);
        match marked {
            Ok(_) => Ok(CommitOutcome::Never),
            Err(error) if code(&*error) == Some(&SqlState::UNIQUE_VIOLATION) => {
                let row = pooled
                    .query(async |on| on.client.query_one(&on.statements.marked, &[&id, &number]).await)?;
                Ok(if row.try_get(0)? { CommitOutcome::Committed } else { CommitOutcome::Never })
            }
            Err(error) => Err(error),
        }
    }
}

/// Name of the database's disk in messages to clients.
const DATABASE_DISK: &str = "disk of the PostgreSQL server with the metadata";

fn code<'a>(error: &'a (dyn Error + Send + Sync + 'static)) -> Option<&'a SqlState> {
    error.downcast_ref::<tokio_postgres::Error>()?.code()
}

fn failed(error: ConnectionError) -> MetaError {
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

/// Converts an error before any change was sent: `Away` unless the database gave a reason.
fn read_failed(error: ConnectionError) -> MetaError {
    match failed(error) {
        MetaError::Failed(error) if !is_refusal(&*error) => MetaError::Away(error),
        other => other,
    }
}

/// Whether the database reported that the statement was not executed.
fn is_refusal(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    let answer = error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::as_db_error);
    answer.is_some_and(|answer| {
        answer.parsed_severity() == Some(Severity::Error)
            && *answer.code() != SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
    })
}

impl MetaStore for PostgresMeta {
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, MetaError> {
        self.check()?;
        let pooled =
            self.pool.acquire(BEGIN_VIEW, Instant::now() + self.unavailable_wait).map_err(read_failed)?;
        Ok(Box::new(SnapshotConnection(RefCell::new(pooled))))
    }

    fn begin(&self) -> Result<Box<dyn Transaction + '_>, MetaError> {
        let writer = self.writer.try_lock_for(TURN_MAX);
        let writer =
            writer.ok_or_else(|| MetaError::Away("timed out waiting for another metadata change".into()))?;
        self.check()?;
        let begin = if self.has_writer_lock { BEGIN_IN_TURN } else { BEGIN };
        let pooled = self.pool.acquire(begin, Instant::now() + self.unavailable_wait).map_err(read_failed)?;
        Ok(Box::new(PostgresTransaction {
            store: self,
            view: SnapshotConnection(RefCell::new(pooled)),
            changes: Overlay::default(),
            writer,
        }))
    }
}

/// A connection in a transaction.
struct SnapshotConnection<'a>(RefCell<PooledConnection<'a>>);

impl Snapshot for SnapshotConnection<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        let row = self
            .0
            .borrow_mut()
            .query(async |on| on.client.query_opt(&on.statements.get, &[&key]).await)
            .map_err(read_failed)?;
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
            .query(async |on| on.client.query(&on.statements.scan, &[&from, &until, &limit]).await)
            .map_err(read_failed)?;
        let pair = |row: tokio_postgres::Row| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.into_iter().map(pair).collect::<Result<_, tokio_postgres::Error>>().map_err(|e| failed(e.into()))
    }
}

/// A transaction: its changes are kept on top of its snapshot until the commit.
struct PostgresTransaction<'a> {
    store: &'a PostgresMeta,
    view: SnapshotConnection<'a>,
    changes: Overlay,
    writer: MutexGuard<'a, WriterId>,
}

impl Snapshot for PostgresTransaction<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        self.changes.get_over(&self.view, key)
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Pair>, MetaError> {
        self.changes.scan_over(&self.view, from, until, limit)
    }
}

impl Transaction for PostgresTransaction<'_> {
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
        let mut pooled = view.0.into_inner();
        writer.number += 1;
        let number = writer.number;
        let error = match write(&mut pooled, &changes, &writer) {
            Ok(()) => {
                pooled.end_transaction();
                return Ok(());
            }
            Err(error) => error,
        };
        if is_refusal(&*error) {
            return Err(failed(error));
        }
        // The connection is unusable; releases its slot of the pool.
        drop(pooled);
        tracing::warn!(error = &*error as &dyn Error, "commit interrupted; resolving its outcome");
        // A later commit with the same id would remove the mark, which may be needed much later.
        let before = std::mem::replace(&mut *writer, WriterId::new()?);
        match store.commit_outcome(&before.id, number, Instant::now() + RESOLVE_MAX) {
            Some(CommitOutcome::Committed) => Ok(()),
            // Nothing was stored; the transaction may be run again.
            Some(CommitOutcome::Never) => Err(MetaError::Conflict),
            None => {
                store.unresolved.lock().push((before.id, number));
                Err(MetaError::Failed(error))
            }
        }
    }
}

/// Sends all changes, the mark and the commit in one round trip, and waits for the responses.
fn write(
    pooled: &mut PooledConnection<'_>,
    changes: &Overlay,
    writer: &WriterId,
) -> Result<(), ConnectionError> {
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
    pooled.query(async |on| {
        let (client, with) = (&on.client, &on.statements);
        let put = async {
            if keys.is_empty() { Ok(0) } else { client.execute(&with.put, &[&keys, &values]).await }
        };
        let delete =
            async { if gone.is_empty() { Ok(0) } else { client.execute(&with.delete, &[&gone]).await } };
        // Pipelined in this order. After the first failure the database skips the rest and rolls
        // back at the commit.
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
