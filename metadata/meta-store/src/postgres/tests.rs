//! Tests of the PostgreSQL store on a real server: contract, restarts, lost answers, TLS.

use super::*;
use crate::UNAVAILABLE_WAIT_DEFAULT;
use crate::model_tests::compare_with_memory;
use sealstone_mds::store::contract;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zeroize::Zeroizing;

#[path = "../../tests/support/postgres.rs"]
mod server;
use server::{PASSWORD, Postgres};

fn settings(url: &str) -> PostgresSettings {
    let password = Some(Zeroizing::new(PASSWORD.as_bytes().to_vec()));
    PostgresSettings { password, ..PostgresSettings::new(url) }
}

fn open(url: &str) -> PostgresMeta {
    PostgresMeta::open(&settings(url)).unwrap()
}

fn put(store: &PostgresMeta, key: &[u8], value: &[u8]) -> Result<(), MetaError> {
    let mut tx = store.begin()?;
    tx.put(key, value)?;
    tx.commit()
}

fn get(store: &PostgresMeta, key: &[u8]) -> Option<Vec<u8>> {
    store.snapshot().unwrap().get(key).unwrap()
}

#[test]
fn postgres_store_fulfils_the_contract() {
    let server = Postgres::start();
    contract::check(&|| Box::new(open(&server.url(&server.database()))));
    compare_with_memory(&open(&server.url(&server.database())), 32, || {});
}

#[test]
fn two_servers_on_one_database_lose_no_change() {
    const ROUNDS: u32 = 25;
    let server = Postgres::start();
    for has_writer_lock in [true, false] {
        let database = server.database();
        let stores = [(); 2].map(|()| {
            let mut store = open(&server.url(&database));
            assert!(store.has_writer_lock, "PostgreSQL has table locks");
            store.has_writer_lock = has_writer_lock;
            store
        });
        let conflicts = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for store in [&stores[0], &stores[1], &stores[0]] {
                let conflicts = &conflicts;
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        while let Err(error) = add_one(store) {
                            assert!(matches!(error, MetaError::Conflict), "{error:?}");
                            conflicts.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(get(&stores[0], b"n"), Some((3 * ROUNDS).to_be_bytes().to_vec()));
        if has_writer_lock {
            assert_eq!(conflicts.into_inner(), 0, "whose turn it is has no conflicts");
        }
    }
}

fn add_one(store: &PostgresMeta) -> Result<(), MetaError> {
    let mut tx = store.begin()?;
    let count = tx.get(b"n")?.map_or(0, |value| u32::from_be_bytes(value.try_into().unwrap()));
    tx.put(b"n", &(count + 1).to_be_bytes())?;
    tx.commit()
}

/// Returns the first error after the database's child processes noticed that their parent was
/// killed.
fn gone<T>(query: impl Fn() -> Result<T, MetaError>) -> MetaError {
    loop {
        match query() {
            Ok(_) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return error,
        }
    }
}

#[test]
fn database_restart_is_awaited_without_loss() {
    let mut server = Postgres::start();
    let store = open(&server.tcp_url(&server.database()));
    put(&store, b"a", b"1").unwrap();
    server.stop();
    server.restart();
    assert_eq!(get(&store, b"a"), Some(b"1".to_vec()), "connections that broke are replaced");
    put(&store, b"a", b"2").unwrap();
    server.kill();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| get(&store, b"a"));
        std::thread::sleep(Duration::from_millis(300));
        server.restart();
        assert_eq!(waiting.join().unwrap(), Some(b"2".to_vec()), "who asks meanwhile waits");
    });
    // A reader gets `Away`: nothing was changed, and a retry helps.
    let (view, tx) = (store.snapshot().unwrap(), store.begin().unwrap());
    server.kill();
    assert!(matches!(gone(|| view.get(b"a")), MetaError::Away(_)));
    assert!(matches!(gone(|| view.scan(b"a", b"b", 9)), MetaError::Away(_)));
    assert!(matches!(gone(|| tx.get(b"a")), MetaError::Away(_)));
    drop((view, tx));
    server.restart();
    // The transaction in progress is lost and may be run again.
    let mut tx = store.begin().unwrap();
    tx.put(b"a", b"3").unwrap();
    server.kill();
    server.restart();
    assert!(matches!(tx.commit(), Err(MetaError::Conflict)));
    assert_eq!(get(&store, b"a"), Some(b"2".to_vec()));
    put(&store, b"a", b"4").unwrap();
    assert_eq!(get(&store, b"a"), Some(b"4".to_vec()));
}

#[test]
fn pool_reuses_connections_up_to_limit() {
    let server = Postgres::start();
    let store = open(&server.url(&server.database()));
    for _ in 0..20 {
        put(&store, b"a", b"1").unwrap();
        drop(store.begin().unwrap());
        assert!(get(&store, b"a").is_some());
    }
    assert_eq!(store.pool.open_count(), 1, "one after the other needs one connection");
    let views: Vec<_> = (0..CONNECTIONS_MAX).map(|_| store.snapshot().unwrap()).collect();
    assert_eq!(store.pool.open_count(), CONNECTIONS_MAX);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| get(&store, b"a"));
        std::thread::sleep(Duration::from_millis(100));
        drop(views);
        assert_eq!(waiting.join().unwrap(), Some(b"1".to_vec()), "the next one gets one that became free");
    });
    assert_eq!(store.pool.open_count(), CONNECTIONS_MAX);
}

/// Fault that hits a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CutPoint {
    /// No fault.
    None,
    /// The request arrives; the response is lost.
    Answer,
    /// The request is lost, and the connection ends.
    Request,
    /// All but the commit arrives; the database notices the end of the connection two seconds
    /// later.
    Halfway,
}

/// A proxy in front of the database.
struct CutProxy {
    port: u16,
    cut: Arc<Mutex<CutPoint>>,
}

impl CutProxy {
    fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = Arc::new(Mutex::new(CutPoint::None));
        let cuts = Arc::clone(&cut);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, database) = (client.unwrap(), TcpStream::connect(("127.0.0.1", to)).unwrap());
                let cut = Arc::clone(&cuts);
                let (mut back_from, mut back_to) =
                    (database.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut back_from, &mut back_to);
                    let _ = back_to.shutdown(Shutdown::Both);
                });
                std::thread::spawn(move || pass_on(client, database, &cut));
            }
        });
        Self { port, cut }
    }
}

fn pass_on(mut client: TcpStream, mut database: TcpStream, cut: &Mutex<CutPoint>) {
    const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = client.read(&mut bytes) {
        let bytes = &bytes[..count];
        let commit = bytes.windows(COMMIT.len()).position(|window| window == COMMIT);
        let now = match commit {
            Some(_) => std::mem::replace(&mut *cut.lock(), CutPoint::None),
            None => CutPoint::None,
        };
        match now {
            CutPoint::None => {
                if database.write_all(bytes).is_err() {
                    break;
                }
            }
            CutPoint::Answer => {
                let _ = client.shutdown(Shutdown::Both);
                let _ = database.write_all(bytes);
                std::thread::sleep(Duration::from_millis(500));
                break;
            }
            CutPoint::Request => break,
            CutPoint::Halfway => {
                let _ = database.write_all(&bytes[..commit.unwrap_or(0)]);
                let _ = client.shutdown(Shutdown::Both);
                std::thread::sleep(Duration::from_secs(2));
                break;
            }
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = database.shutdown(Shutdown::Both);
}

#[test]
fn interrupted_commit_is_resolved_not_guessed() {
    let server = Postgres::start();
    let database = server.database();
    let proxy = CutProxy::start(server.port);
    let url = format!("postgres://{}@127.0.0.1:{}/{database}", server::USER, proxy.port);
    let store = open(&url);
    for (round, (cut, happened)) in [
        (CutPoint::Answer, true),
        (CutPoint::Request, false),
        (CutPoint::Halfway, false),
        (CutPoint::Answer, true),
        (CutPoint::None, true),
    ]
    .into_iter()
    .enumerate()
    {
        let key = [round as u8];
        let mut tx = store.begin().unwrap();
        tx.put(&key, b"there").unwrap();
        *proxy.cut.lock() = cut;
        let reported = tx.commit();
        match reported {
            Ok(()) => assert!(happened, "{cut:?}"),
            Err(MetaError::Conflict) => assert!(!happened, "{cut:?}"),
            Err(error) => panic!("{cut:?}: {error:?}"),
        }
        assert_eq!(get(&store, &key).is_some(), happened, "{cut:?}: what was told is so");
        put(&store, &key, b"again").unwrap();
    }
    // One mark of each interrupted writer, two if its commit failed, and one of the current writer.
    assert_eq!(server.sql(&database, "SELECT count(*) FROM sealstone_outcome").trim(), "7");
}

#[test]
fn unresolved_commit_blocks_the_store() {
    let mut server = Postgres::start();
    let database = server.database();
    let mut store = open(&server.tcp_url(&database));
    put(&store, b"a", b"1").unwrap();
    // Simulates a commit with this number that was not answered for a minute.
    let unknown = |store: &PostgresMeta, number| {
        let writer = std::mem::replace(&mut *store.writer.lock(), WriterId::new().unwrap());
        store.unresolved.lock().push((writer.id, number));
    };
    unknown(&store, 2);
    server.stop();
    store.unavailable_wait = Duration::from_millis(500);
    let shut = std::thread::scope(|scope| {
        let asking = scope.spawn(|| store.snapshot().err());
        asking.join().unwrap()
    });
    assert!(matches!(shut, Some(MetaError::Poisoned)), "{shut:?}");
    store.unavailable_wait = UNAVAILABLE_WAIT_DEFAULT;
    server.restart();
    assert_eq!(get(&store, b"a"), Some(b"1".to_vec()), "it never happened, as was told: the store goes on");
    put(&store, b"a", b"2").unwrap();
    let done = store.writer.lock().number;
    unknown(&store, done);
    assert!(
        matches!(store.snapshot().err(), Some(MetaError::Poisoned)),
        "it happened, and was told as failed"
    );
    assert!(matches!(store.begin().err(), Some(MetaError::Poisoned)), "until the store is opened again");
    assert_eq!(get(&open(&server.tcp_url(&database)), b"a"), Some(b"2".to_vec()));
}

#[test]
fn tls_checks_authority_name_and_password() {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::default();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = authority.self_signed(&authority_key).unwrap();
    let issuer = rcgen::Issuer::new(authority, &authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let server = Postgres::start_with(Some((&certificate.pem(), &key.serialize_pem())));
    let database = server.database();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        Some(path)
    };
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (ours, others) = (file("ca.pem", &ca.pem()), file("other.pem", &other.cert.pem()));
    let password = |text: &str| Some(Zeroizing::new(text.as_bytes().to_vec()));
    let at = |host: &str| format!("postgres://{}@{host}:{}/{database}", server::USER, server.port);
    let try_open = |host: &str, ca_file: &Option<PathBuf>, secret: &str| {
        PostgresMeta::open(&PostgresSettings {
            ca_file: ca_file.clone(),
            password: password(secret),
            ..PostgresSettings::new(&at(host))
        })
    };
    let store = try_open("localhost", &ours, PASSWORD).unwrap();
    put(&store, b"a", b"1").unwrap();
    assert_eq!(server.sql(&database, "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'sealstone'").trim(), "t");
    let why = |outcome: Result<PostgresMeta, PostgresError>| match outcome {
        Err(error @ PostgresError::Connect { .. }) => {
            let mut text = error.to_string();
            let mut source = error.source();
            while let Some(cause) = source {
                text += &format!(": {cause}");
                source = cause.source();
            }
            text
        }
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("let in"),
    };
    assert!(why(try_open("localhost", &others, PASSWORD)).contains("certificate"));
    assert!(why(try_open("127.0.0.1", &ours, PASSWORD)).contains("certificate"), "another name");
    assert!(why(try_open("localhost", &ours, "wrong")).contains("password"));
}

#[test]
fn other_formats_are_refused_and_tables_created_once() {
    let server = Postgres::start();
    let database = server.database();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| drop(open(&server.url(&database))));
        }
    });
    server.sql(&database, "UPDATE sealstone_format SET version = 9");
    let refused = PostgresMeta::open(&PostgresSettings::new(&server.url(&database)));
    assert!(matches!(refused.err(), Some(PostgresError::Version { found: 9, .. })));
    let gone = PostgresMeta::open(&PostgresSettings::new(&server.url("nowhere")));
    assert!(matches!(gone.err(), Some(PostgresError::Connect { .. })));
}
