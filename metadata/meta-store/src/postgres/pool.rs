//! Connection pool: a limited number of connections, opened on demand, reused, replaced when they
//! break.
//!
//! Does: prepares the statements of each connection; recognizes errors after which a request may be
//! repeated.
//! Does not: repeat requests; the store does.

use std::error::Error;
use std::io;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::runtime::Runtime;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Statement};

use super::settings::DatabaseTarget;
use super::tls::MakeTls;
use super::wait::{send, wait};
use super::{ANSWER_MAX, CONNECT_MAX, CONNECTIONS_MAX, RECONNECT_EVERY};

/// Settings of every connection. Other databases with this protocol may not support all.
const SETTINGS: [&str; 5] = [
    // Cancels statements that the client no longer waits for.
    "SET statement_timeout = '30s'",
    // Limits the wait for a lock whose holder is dead.
    "SET lock_timeout = '20s'",
    // A server that hangs within a transaction must not block the others.
    "SET idle_in_transaction_session_timeout = '20s'",
    // For a small table a sequential scan looks cheaper, but it conflicts with every change of the
    // table.
    "SET enable_seqscan = off",
    // Acknowledged commits are on disk, whatever the database's default is; a stronger setting is
    // kept.
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
];

/// An open connection.
pub(super) struct DatabaseConnection {
    pub(super) client: Client,
    pub(super) statements: PreparedStatements,
}

/// The prepared statements of the store.
pub(super) struct PreparedStatements {
    pub(super) get: Statement,
    pub(super) scan: Statement,
    pub(super) put: Statement,
    pub(super) delete: Statement,
    pub(super) mark: Statement,
    pub(super) unmark: Statement,
    pub(super) marked: Statement,
}

impl PreparedStatements {
    async fn prepare(client: &Client) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            get: client.prepare("SELECT value FROM sealstone_metadata WHERE key = $1").await?,
            scan: client
                .prepare(
                    "SELECT key, value FROM sealstone_metadata WHERE key >= $1 AND key < $2 ORDER BY key LIMIT $3",
                )
                .await?,
            put: client
                .prepare(
                    "INSERT INTO sealstone_metadata (key, value) SELECT k, v \
                     FROM unnest($1::bytea[], $2::bytea[]) AS pairs (k, v) \
                     ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                )
                .await?,
            delete: client.prepare("DELETE FROM sealstone_metadata WHERE key = ANY($1::bytea[])").await?,
            mark: client
                .prepare("INSERT INTO sealstone_outcome (writer, number, committed) VALUES ($1, $2, $3)")
                .await?,
            unmark: client
                .prepare("DELETE FROM sealstone_outcome WHERE writer = $1 AND number < $2")
                .await?,
            marked: client
                .prepare("SELECT committed FROM sealstone_outcome WHERE writer = $1 AND number = $2")
                .await?,
        })
    }
}

struct PoolState {
    idle: Vec<DatabaseConnection>,
    open: usize,
}

/// The connection pool.
pub(super) struct ConnectionPool {
    target: DatabaseTarget,
    runtime: Option<Runtime>,
    state: Mutex<PoolState>,
    freed: Condvar,
}

/// A connection taken from the pool; returned when dropped, unless it is broken.
pub(super) struct PooledConnection<'a> {
    pool: &'a ConnectionPool,
    connection: Option<DatabaseConnection>,
    broken: bool,
    in_transaction: bool,
}

/// The database did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("the database {name} did not answer within {} s", .after.as_secs())]
pub(super) struct NoResponse {
    pub(super) name: String,
    pub(super) after: Duration,
}

/// All connections are in use.
#[derive(Debug, thiserror::Error)]
#[error("no connection to the database {name} became free within {} s", .after.as_secs())]
struct PoolExhausted {
    name: String,
    after: Duration,
}

/// Reason why there is no connection or no response.
pub(super) type ConnectionError = Box<dyn Error + Send + Sync>;

impl ConnectionPool {
    pub(super) fn new(target: DatabaseTarget) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("metadata-db")
            .enable_all()
            .build()?;
        let state = Mutex::new(PoolState { idle: Vec::new(), open: 0 });
        Ok(Self { target, runtime: Some(runtime), state, freed: Condvar::new() })
    }

    pub(super) fn name(&self) -> &str {
        &self.target.name
    }

    /// Opens a client without the store's statements, to create its tables.
    pub(super) fn client(&self) -> Result<Client, ConnectionError> {
        let Some(runtime) = &self.runtime else { return Err("the pool is closed".into()) };
        let (config, tls) = (self.target.config.clone(), MakeTls(self.target.tls.clone()));
        let until = Instant::now() + CONNECT_MAX + ANSWER_MAX;
        let connecting = runtime.spawn(async move {
            let (client, connection) = config.connect(tls).await?;
            tokio::spawn(connection);
            for setting in SETTINGS {
                match client.batch_execute(setting).await {
                    Err(error) if error.is_closed() => return Err(error),
                    Err(error) => tracing::debug!(%error, setting, "the database does not support a setting"),
                    Ok(()) => {}
                }
            }
            Ok(client)
        });
        match wait(until, connecting) {
            Some(Ok(Ok(client))) => Ok(client),
            Some(Ok(Err(error))) => Err(error.into()),
            Some(Err(error)) => Err(error.into()),
            None => Err(self.silent(CONNECT_MAX + ANSWER_MAX)),
        }
    }

    fn connect(&self) -> Result<DatabaseConnection, ConnectionError> {
        let client = self.client()?;
        let statements = wait(Instant::now() + ANSWER_MAX, PreparedStatements::prepare(&client));
        let statements = statements.ok_or_else(|| self.silent(ANSWER_MAX))??;
        Ok(DatabaseConnection { client, statements })
    }

    fn silent(&self, after: Duration) -> ConnectionError {
        NoResponse { name: self.name().to_owned(), after }.into()
    }

    /// Takes a connection on which `begin` succeeds. Waits until then for an unavailable database.
    pub(super) fn acquire(
        &self,
        begin: &str,
        until: Instant,
    ) -> Result<PooledConnection<'_>, ConnectionError> {
        let began = Instant::now();
        loop {
            let connection = self.idle_one(until).ok_or_else(|| -> ConnectionError {
                PoolExhausted { name: self.name().to_owned(), after: began.elapsed() }.into()
            })?;
            // The slot of the pool is in use from here on, and is released when `pooled` is
            // dropped.
            let mut pooled =
                PooledConnection { pool: self, connection, broken: false, in_transaction: false };
            let was_idle = pooled.connection.is_some();
            let failed = match pooled.begin(begin) {
                Ok(()) => return Ok(pooled),
                Err(error) => error,
            };
            pooled.broken = true;
            drop(pooled);
            if was_idle && Instant::now() < until {
                // The connection broke while idle; the next one may be new.
                continue;
            }
            if !is_transient(&*failed) || Instant::now() + RECONNECT_EVERY >= until {
                return Err(failed);
            }
            std::thread::sleep(RECONNECT_EVERY);
        }
    }

    /// Returns an idle connection, or a free slot for a new one (`Some(None)`).
    fn idle_one(&self, until: Instant) -> Option<Option<DatabaseConnection>> {
        let mut state = self.state.lock();
        loop {
            while let Some(connection) = state.idle.pop() {
                if !connection.client.is_closed() {
                    return Some(Some(connection));
                }
                state.open -= 1;
            }
            if state.open < CONNECTIONS_MAX {
                state.open += 1;
                return Some(None);
            }
            if self.freed.wait_until(&mut state, until).timed_out() {
                return None;
            }
        }
    }

    #[cfg(test)]
    pub(super) fn open_count(&self) -> usize {
        self.state.lock().open
    }
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The store may be dropped inside another runtime, where blocking is not allowed.
            runtime.shutdown_background();
        }
    }
}

/// Whether a retry may succeed.
pub(super) fn is_transient(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    let Some(error) = error.downcast_ref::<tokio_postgres::Error>() else {
        return error.is::<NoResponse>();
    };
    match error.code() {
        Some(code) => [
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::TOO_MANY_CONNECTIONS,
            SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
            SqlState::CONNECTION_FAILURE,
            SqlState::CONNECTION_EXCEPTION,
        ]
        .contains(code),
        // Socket errors are transient; protocol errors are not.
        None => error.is_closed() || error.source().is_some_and(|source| source.is::<io::Error>()),
    }
}

impl PooledConnection<'_> {
    fn begin(&mut self, begin: &str) -> Result<(), ConnectionError> {
        if self.connection.is_none() {
            self.connection = Some(self.pool.connect()?);
        }
        self.in_transaction = true;
        self.query(async |connection| connection.client.batch_execute(begin).await)
    }

    /// Runs a query and waits for the result. Without one the connection counts as broken.
    pub(super) fn query<T>(
        &mut self,
        what: impl AsyncFnOnce(&DatabaseConnection) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, ConnectionError> {
        let Some(connection) = &self.connection else { return Err(self.pool.silent(Duration::ZERO)) };
        match wait(Instant::now() + ANSWER_MAX, what(connection)) {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => {
                self.broken |= error.is_closed() || error.as_db_error().is_none();
                Err(error.into())
            }
            None => {
                self.broken = true;
                Err(self.pool.silent(ANSWER_MAX))
            }
        }
    }

    /// Marks the transaction as ended: the connection can be reused.
    pub(super) fn end_transaction(&mut self) {
        self.in_transaction = false;
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        match self.connection.take().filter(|connection| !self.broken && !connection.client.is_closed()) {
            Some(connection) => {
                if self.in_transaction {
                    // Its response arrives before that of the next query.
                    send(connection.client.batch_execute("ROLLBACK"));
                }
                state.idle.push(connection);
            }
            None => state.open -= 1,
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}
