//! The tables of the store: created by the first server, checked by all later ones.
//!
//! Contract: a database of another format version is refused unchanged. Settings that lose commits
//! in a power failure are logged as a warning.

use std::error::Error;
use std::time::{Duration, Instant};

use tokio_postgres::{Client, SimpleQueryMessage};

use super::pool::{ConnectionError, ConnectionPool, is_transient};
use super::wait::wait;
use super::{ANSWER_MAX, PostgresError, RECONNECT_EVERY};

/// Version of the tables; the records have their own (see `sealstone-mds`).
pub(super) const FORMAT_VERSION: i64 = 1;
/// Removes marks that no writer needs any more.
const FORGET: &str = "DELETE FROM sealstone_outcome WHERE made < CURRENT_TIMESTAMP - INTERVAL '7 days'";

/// Plain SQL that several databases understand.
const TABLES: [&str; 4] = [
    "CREATE TABLE IF NOT EXISTS sealstone_format (version BIGINT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS sealstone_metadata (key BYTEA PRIMARY KEY, value BYTEA NOT NULL)",
    // Outcomes of commits: the latest of each writer, and each interrupted one.
    "CREATE TABLE IF NOT EXISTS sealstone_outcome (writer BYTEA NOT NULL, number BIGINT NOT NULL, \
     committed BOOLEAN NOT NULL, made TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP, \
     PRIMARY KEY (writer, number))",
    // Always empty: its table lock is the writer lock of all servers.
    "CREATE TABLE IF NOT EXISTS sealstone_turn (id BIGINT PRIMARY KEY)",
];

/// Capabilities of the database.
pub(super) struct DatabaseCapabilities {
    pub(super) has_writer_lock: bool,
}

fn run<T>(
    pool: &ConnectionPool,
    what: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, ConnectionError> {
    match wait(Instant::now() + ANSWER_MAX, what) {
        Some(result) => Ok(result?),
        None => Err(super::pool::NoResponse { name: pool.name().to_owned(), after: ANSWER_MAX }.into()),
    }
}

/// Creates or finds the tables, and tests the capabilities of the database. Waits for an
/// unavailable or busy one.
pub(super) fn prepare(
    pool: &ConnectionPool,
    unavailable_wait: Duration,
) -> Result<DatabaseCapabilities, PostgresError> {
    let until = Instant::now() + unavailable_wait;
    loop {
        match try_prepare(pool) {
            Ok((FORMAT_VERSION, prepared)) => return Ok(prepared),
            Ok((found, _)) => return Err(PostgresError::Version { name: pool.name().to_owned(), found }),
            // Servers that create a table at the same time: one of them gets an error about an
            // existing row.
            Err(error) if (is_transient(&*error) || is_race(&*error)) && Instant::now() < until => {
                std::thread::sleep(RECONNECT_EVERY);
            }
            Err(source) => return Err(PostgresError::Connect { name: pool.name().to_owned(), source }),
        }
    }
}

fn is_race(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    // Classes 23 (row exists), 40 (conflict), 42P07 and 42710 (table or its type exists) and XX000
    // (concurrent update).
    super::code(error).is_some_and(|code| {
        let code = code.code();
        code.starts_with("23") || code.starts_with("40") || matches!(code, "42P07" | "42710" | "XX000")
    })
}

fn try_prepare(pool: &ConnectionPool) -> Result<(i64, DatabaseCapabilities), ConnectionError> {
    let client = pool.client()?;
    // Reads first: a user without the right to create tables may use existing ones.
    let found = run(pool, client.query("SELECT version FROM sealstone_format", &[]));
    let version = match found.as_ref().map(|rows| rows.first().map(|row| row.try_get(0))) {
        Ok(Some(version)) => version?,
        _ => {
            for table in TABLES {
                run(pool, client.batch_execute(table))?;
            }
            run(
                pool,
                client.execute(
                    "INSERT INTO sealstone_format (version) VALUES ($1) ON CONFLICT (version) DO NOTHING",
                    &[&FORMAT_VERSION],
                ),
            )?;
            FORMAT_VERSION
        }
    };
    if version != FORMAT_VERSION {
        return Ok((version, DatabaseCapabilities { has_writer_lock: false }));
    }
    run(pool, client.batch_execute(FORGET))?;
    durability(pool, &client);
    let turn = run(pool, client.batch_execute(&format!("{}; ROLLBACK", super::BEGIN_IN_TURN)));
    let has_writer_lock = match turn {
        Ok(()) => true,
        Err(error) if super::is_refusal(&*error) && !is_race(&*error) => {
            tracing::info!(
                error = &*error as &dyn Error,
                "the database has no table locks: concurrent writers retry after conflicts"
            );
            false
        }
        Err(error) => return Err(error),
    };
    Ok((version, DatabaseCapabilities { has_writer_lock }))
}

/// Logs a warning if the database is configured to lose acknowledged commits.
fn durability(pool: &ConnectionPool, client: &Client) {
    for name in ["fsync", "full_page_writes"] {
        let Ok(rows) = run(pool, client.simple_query(&format!("SHOW {name}"))) else { continue };
        let value = rows.iter().find_map(|row| match row {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        if value == Some("off") {
            tracing::warn!(
                database = pool.name(),
                "the database has {name} = off: a power failure may lose acknowledged changes"
            );
        }
    }
}
