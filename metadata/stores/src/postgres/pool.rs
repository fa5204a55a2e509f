//! Connections to the database: a bounded number, made when needed, used again, replaced when they break.

use std::error::Error;
use std::io;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::runtime::Runtime;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Statement};

use super::settings::Target;
use super::tls::MakeTls;
use super::wait::{send, wait};
use super::{ANSWER_MAX, CONNECT_MAX, CONNECTIONS_MAX, RECONNECT_EVERY};

/// Settings of every connection. Other databases that speak the protocol may not know all of them.
const SETTINGS: [&str; 5] = [
    // Ends what the client gave up waiting for.
    "SET statement_timeout = '30s'",
    // Who holds a lock for longer is not coming back.
    "SET lock_timeout = '20s'",
    // A server of ours that hangs in the middle of a transaction must not hold up the others.
    "SET idle_in_transaction_session_timeout = '20s'",
    // In a small table a scan looks cheaper than the index, and then conflicts with every change of the table.
    "SET enable_seqscan = off",
    // What was acknowledged is on the medium, whatever the database's own default is; a stronger one stays.
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
];

/// An open connection.
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) statements: Statements,
}

/// The statements of the store, prepared.
pub(super) struct Statements {
    pub(super) get: Statement,
    pub(super) scan: Statement,
    pub(super) put: Statement,
    pub(super) delete: Statement,
    pub(super) mark: Statement,
    pub(super) unmark: Statement,
    pub(super) marked: Statement,
}

impl Statements {
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

struct State {
    idle: Vec<Connection>,
    open: usize,
}

/// The connections.
pub(super) struct Pool {
    target: Target,
    runtime: Option<Runtime>,
    state: Mutex<State>,
    freed: Condvar,
}

/// A connection out of the pool; it goes back when dropped, unless it is spoilt.
pub(super) struct Lent<'a> {
    pool: &'a Pool,
    connection: Option<Connection>,
    spoilt: bool,
    in_transaction: bool,
}

/// Nothing was heard in time.
#[derive(Debug, thiserror::Error)]
#[error("the database {name} did not answer within {} s", .after.as_secs())]
pub(super) struct Silent {
    pub(super) name: String,
    pub(super) after: Duration,
}

/// All connections are in use.
#[derive(Debug, thiserror::Error)]
#[error("no connection to the database {name} became free within {} s", .after.as_secs())]
struct Full {
    name: String,
    after: Duration,
}

/// Why there is no connection, or no answer on it.
pub(super) type Cause = Box<dyn Error + Send + Sync>;

impl Pool {
    pub(super) fn new(target: Target) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("metadata-db")
            .enable_all()
            .build()?;
        let state = Mutex::new(State { idle: Vec::new(), open: 0 });
        Ok(Self { target, runtime: Some(runtime), state, freed: Condvar::new() })
    }

    pub(super) fn name(&self) -> &str {
        &self.target.name
    }

    /// A client without the store's statements: for making its tables.
    pub(super) fn client(&self) -> Result<Client, Cause> {
        let Some(runtime) = &self.runtime else { return Err("the pool is closed".into()) };
        let (config, tls) = (self.target.config.clone(), MakeTls(self.target.tls.clone()));
        let until = Instant::now() + CONNECT_MAX + ANSWER_MAX;
        let connecting = runtime.spawn(async move {
            let (client, connection) = config.connect(tls).await?;
            tokio::spawn(connection);
            for setting in SETTINGS {
                match client.batch_execute(setting).await {
                    Err(error) if error.is_closed() => return Err(error),
                    Err(error) => tracing::debug!(%error, setting, "the database does without it"),
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

    fn connect(&self) -> Result<Connection, Cause> {
        let client = self.client()?;
        let statements = wait(Instant::now() + ANSWER_MAX, Statements::prepare(&client));
        let statements = statements.ok_or_else(|| self.silent(ANSWER_MAX))??;
        Ok(Connection { client, statements })
    }

    fn silent(&self, after: Duration) -> Cause {
        Silent { name: self.name().to_owned(), after }.into()
    }

    /// A connection that answers `begin`. A database that is away or coming back is waited for until then.
    pub(super) fn lend(&self, begin: &str, until: Instant) -> Result<Lent<'_>, Cause> {
        let began = Instant::now();
        loop {
            let connection = self.idle_one(until).ok_or_else(|| -> Cause {
                Full { name: self.name().to_owned(), after: began.elapsed() }.into()
            })?;
            // From here on the place counts as taken, and is given back when `lent` is dropped.
            let mut lent = Lent { pool: self, connection, spoilt: false, in_transaction: false };
            let was_idle = lent.connection.is_some();
            let failed = match lent.begin(begin) {
                Ok(()) => return Ok(lent),
                Err(error) => error,
            };
            lent.spoilt = true;
            drop(lent);
            if was_idle && Instant::now() < until {
                // It broke while nobody looked; the next one may be a new one.
                continue;
            }
            if !is_passing(&*failed) || Instant::now() + RECONNECT_EVERY >= until {
                return Err(failed);
            }
            std::thread::sleep(RECONNECT_EVERY);
        }
    }

    /// An idle connection, or room for another one (`Some(None)`).
    fn idle_one(&self, until: Instant) -> Option<Option<Connection>> {
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

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Whoever drops the store may be inside another runtime, where waiting for this one is not allowed.
            runtime.shutdown_background();
        }
    }
}

/// Is it worth while to try again?
pub(super) fn is_passing(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    let Some(error) = error.downcast_ref::<tokio_postgres::Error>() else {
        return error.is::<Silent>();
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
        // Of the socket; what the other end said that cannot be understood does not pass.
        None => error.is_closed() || error.source().is_some_and(|source| source.is::<io::Error>()),
    }
}

impl Lent<'_> {
    fn begin(&mut self, begin: &str) -> Result<(), Cause> {
        if self.connection.is_none() {
            self.connection = Some(self.pool.connect()?);
        }
        self.in_transaction = true;
        self.ask(async |connection| connection.client.batch_execute(begin).await)
    }

    /// Asks and waits for the answer. Without one the connection is spoilt.
    pub(super) fn ask<T>(
        &mut self,
        what: impl AsyncFnOnce(&Connection) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Cause> {
        let Some(connection) = &self.connection else { return Err(self.pool.silent(Duration::ZERO)) };
        match wait(Instant::now() + ANSWER_MAX, what(connection)) {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => {
                self.spoilt |= error.is_closed() || error.as_db_error().is_none();
                Err(error.into())
            }
            None => {
                self.spoilt = true;
                Err(self.pool.silent(ANSWER_MAX))
            }
        }
    }

    /// The transaction is over: the connection can be used for another.
    pub(super) fn is_over(&mut self) {
        self.in_transaction = false;
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        match self.connection.take().filter(|connection| !self.spoilt && !connection.client.is_closed()) {
            Some(connection) => {
                if self.in_transaction {
                    // The answer comes before that of whatever is asked next.
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
