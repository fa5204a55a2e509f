//! The tables, made once by whichever server comes first.

use std::error::Error;
use std::time::{Duration, Instant};

use tokio_postgres::{Client, SimpleQueryMessage};

use super::pool::{Cause, Pool, is_passing};
use super::wait::wait;
use super::{ANSWER_MAX, PostgresError, RECONNECT_EVERY};

/// Version of the tables; what is inside has its own (see `sealstone-mds`).
pub(super) const FORMAT_VERSION: i64 = 1;
/// How long a database that is away or busy is waited for at a start.
const PREPARE_MAX: Duration = Duration::from_secs(20);
/// Marks that no writer will come back for are removed after this.
const FORGET: &str = "DELETE FROM sealstone_outcome WHERE made < CURRENT_TIMESTAMP - INTERVAL '7 days'";

/// Plain SQL that several databases understand.
const TABLES: [&str; 4] = [
    "CREATE TABLE IF NOT EXISTS sealstone_format (version BIGINT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS sealstone_metadata (key BYTEA PRIMARY KEY, value BYTEA NOT NULL)",
    // What became of commits: a row of the writer's latest one, and of each that was interrupted.
    "CREATE TABLE IF NOT EXISTS sealstone_outcome (writer BYTEA NOT NULL, number BIGINT NOT NULL, \
     committed BOOLEAN NOT NULL, made TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP, \
     PRIMARY KEY (writer, number))",
    // Never has a row: its lock is the servers' turn to write.
    "CREATE TABLE IF NOT EXISTS sealstone_turn (id BIGINT PRIMARY KEY)",
];

/// What the database can do.
pub(super) struct Prepared {
    pub(super) takes_turns: bool,
}

fn run<T>(pool: &Pool, what: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Cause> {
    match wait(Instant::now() + ANSWER_MAX, what) {
        Some(result) => Ok(result?),
        None => Err(super::pool::Silent { name: pool.name().to_owned(), after: ANSWER_MAX }.into()),
    }
}

/// Makes the tables or finds them, and finds out what the database can do.
pub(super) fn prepare(pool: &Pool) -> Result<Prepared, PostgresError> {
    let until = Instant::now() + PREPARE_MAX;
    loop {
        match try_prepare(pool) {
            Ok((FORMAT_VERSION, prepared)) => return Ok(prepared),
            Ok((found, _)) => return Err(PostgresError::Version { name: pool.name().to_owned(), found }),
            // Two that make the same table at the same time: one of them is told of a row that is there already.
            Err(error) if (is_passing(&*error) || is_race(&*error)) && Instant::now() < until => {
                std::thread::sleep(RECONNECT_EVERY);
            }
            Err(source) => return Err(PostgresError::Connect { name: pool.name().to_owned(), source }),
        }
    }
}

fn is_race(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    // Classes 23 (a row is there already), 40 (conflict), 42P07 and 42710 (the table is, or its type) and XX000 (updated at
    // the same time).
    super::code(error).is_some_and(|code| {
        let code = code.code();
        code.starts_with("23") || code.starts_with("40") || matches!(code, "42P07" | "42710" | "XX000")
    })
}

fn try_prepare(pool: &Pool) -> Result<(i64, Prepared), Cause> {
    let client = pool.client()?;
    // Looked at first: who may not make tables may use those that are there.
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
        return Ok((version, Prepared { takes_turns: false }));
    }
    run(pool, client.batch_execute(FORGET))?;
    durability(pool, &client);
    let turn = run(pool, client.batch_execute(&format!("{}; ROLLBACK", super::BEGIN_IN_TURN)));
    let takes_turns = match turn {
        Ok(()) => true,
        Err(error) if super::is_refusal(&*error) && !is_race(&*error) => {
            tracing::info!(
                error = &*error as &dyn Error,
                "the database has no table locks: servers that write at the same time try again"
            );
            false
        }
        Err(error) => return Err(error),
    };
    Ok((version, Prepared { takes_turns }))
}

/// Says so if the database is not set up to keep what it promised.
fn durability(pool: &Pool, client: &Client) {
    for name in ["fsync", "full_page_writes"] {
        let Ok(rows) = run(pool, client.simple_query(&format!("SHOW {name}"))) else { continue };
        let value = rows.iter().find_map(|row| match row {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        if value == Some("off") {
            tracing::warn!(
                database = pool.name(),
                "the database has {name} = off: what was acknowledged may be lost with the power"
            );
        }
    }
}
