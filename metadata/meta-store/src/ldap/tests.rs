//! Tests of the LDAP store with a real slapd: the contract of stores, takeovers, lost answers, TLS.

use super::*;
use crate::model_tests::compare_with_memory;
use sealstone_mds::store::contract;
use std::sync::atomic::AtomicU64;
use zeroize::Zeroizing;

mod cut;
#[path = "../../tests/support/slapd.rs"]
mod server;
use cut::{CutPoint, CutProxy};
use server::{Slapd, WRITER_PASSWORD};

fn settings(url: &str) -> LdapSettings {
    let password = Some(Zeroizing::new(WRITER_PASSWORD.as_bytes().to_vec()));
    LdapSettings { password, ..LdapSettings::new(url) }
}

fn open(url: &str) -> LdapMeta {
    LdapMeta::open(&settings(url)).unwrap()
}

fn refused(settings: &LdapSettings) -> LdapStoreError {
    LdapMeta::open(settings).err().expect("it is refused")
}

fn put(store: &LdapMeta, pairs: &[(&[u8], &[u8])]) -> Result<(), MetaError> {
    let mut tx = store.begin()?;
    for (key, value) in pairs {
        tx.put(key, value)?;
    }
    tx.commit()
}

fn get(store: &LdapMeta, key: &[u8]) -> Option<Vec<u8>> {
    store.snapshot().unwrap().get(key).unwrap()
}

fn all(store: &LdapMeta) -> Vec<Pair> {
    store.snapshot().unwrap().scan(b"", b"\xFF", usize::MAX).unwrap()
}

/// Opens a second connection, to inspect or modify the store.
fn connection(url: &str) -> (LdapTarget, LdapConnection) {
    let target = LdapTarget::new(&settings(url)).unwrap();
    let connection = LdapConnection::open(&target).unwrap();
    (target, connection)
}

fn is_taken_over(error: &MetaError) -> bool {
    let MetaError::Failed(error) = error else { return false };
    matches!(error.downcast_ref(), Some(LdapStoreError::TakenOver { .. }))
}

#[test]
fn ldap_store_fulfils_the_contract() {
    let server = Slapd::start();
    contract::check(&|| Box::new(open(&server.new_store())));
    let url = server.new_store();
    let store = open(&url);
    // Another reader sees the same state from records and journal, wherever the changes are.
    compare_with_memory(&store, 8, || assert_eq!(all(&open(&url)), all(&store)));
}

struct Crashing {
    store: LdapMeta,
    server: Arc<Slapd>,
    url: String,
}

impl contract::Crash for Crashing {
    fn store(&self) -> &dyn MetaStore {
        &self.store
    }

    /// Opens a new store, which finds what the server has now.
    fn crash(self: Box<Self>) -> Box<dyn contract::Crash> {
        let store = open(&self.url);
        // Later writes of the old store find nothing.
        drop(store.begin().unwrap());
        let Self { server, url, .. } = *self;
        Box::new(Self { store, server, url })
    }
}

#[test]
fn ldap_store_fulfils_the_contract_after_crashes() {
    let server = Arc::new(Slapd::start());
    contract::check_crashes(&|| {
        let url = server.new_store();
        Box::new(Crashing { store: open(&url), server: Arc::clone(&server), url })
    });
}

#[test]
fn ldap_server_kills_lose_no_acknowledged_commit() {
    const KILLS: u64 = 5;
    const BETWEEN: u64 = 12;
    let mut server = Slapd::start();
    let url = server.new_store();
    let store = open(&url);
    let (done, acknowledged) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=KILLS * BETWEEN {
                let number = n.to_be_bytes();
                // Three records: one stays the same, one is new, and one is removed.
                loop {
                    let mut tx = store.begin().unwrap();
                    tx.put(b"last", &number).unwrap();
                    tx.put(&[b"k", &number[..]].concat(), &number).unwrap();
                    tx.delete(&[b"k", &(n / 2).to_be_bytes()[..]].concat()).unwrap();
                    match tx.commit() {
                        Ok(()) => break,
                        Err(MetaError::Conflict) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
                acknowledged.store(n, Ordering::Release);
                done.store(n, Ordering::Release);
            }
        });
        for kill in 1..=KILLS {
            // Kills hit commits at any stage.
            while done.load(Ordering::Acquire) + 1 < kill * BETWEEN {
                std::thread::yield_now();
            }
            server.stop();
            let before = acknowledged.load(Ordering::Acquire);
            server.restart();
            let found = all(&open(&url));
            check_state(&found, before);
        }
    });
    let found = all(&store);
    check_state(&found, KILLS * BETWEEN);
    drop(store);
    assert_eq!(all(&open(&url)), found);
}

/// Checks that the content is the state after one commit, at least number `from`.
fn check_state(found: &[Pair], from: u64) {
    let last = found
        .iter()
        .find(|(key, _)| key == b"last")
        .map_or(0, |(_, last)| u64::from_be_bytes(last.as_slice().try_into().unwrap()));
    assert!(last >= from, "{from} was acknowledged, {last} is there");
    let mut expected: Vec<Pair> = (last / 2 + 1..=last)
        .map(|n| ([b"k", &n.to_be_bytes()[..]].concat(), n.to_be_bytes().to_vec()))
        .collect();
    expected.extend((last > 0).then(|| (b"last".to_vec(), last.to_be_bytes().to_vec())));
    assert_eq!(found, expected, "all of a commit or nothing of it");
}

#[test]
fn writer_takes_over_and_old_server_fails() {
    let server = Slapd::start();
    let url = server.new_store();
    let first = open(&url);
    put(&first, &[(b"a", b"1")]).unwrap();
    let second = open(&url);
    assert_eq!(get(&second, b"a"), Some(b"1".to_vec()));
    // Reading does not take over the store.
    put(&first, &[(b"a", b"2"), (b"b", b"2")]).unwrap();
    // The second one read an older state, and detects that before it writes.
    let mut tx = second.begin().unwrap();
    assert_eq!(tx.get(b"a").unwrap(), Some(b"2".to_vec()));
    tx.put(b"a", b"3").unwrap();
    tx.commit().unwrap();
    let error = put(&first, &[(b"a", b"4"), (b"c", b"4")]).unwrap_err();
    assert!(is_taken_over(&error), "{error:?}");
    assert!(first.snapshot().err().is_some_and(|error| is_taken_over(&error)), "nor does it tell what was");
    assert!(!first.answers_at_once());
    let expected = [(b"a".to_vec(), b"3".to_vec()), (b"b".to_vec(), b"2".to_vec())];
    assert_eq!(all(&second), expected);
    // Closing it does not write either.
    drop(first);
    drop(second);
    assert_eq!(all(&open(&url)), expected);
}

#[test]
fn idle_server_notices_takeover() {
    let server = Slapd::start();
    let url = server.new_store();
    let (first, second) = (open(&url), open(&url));
    put(&first, &[(b"a", b"1")]).unwrap();
    put(&second, &[(b"a", b"2")]).unwrap();
    // It checks every second, so on a slow machine this takes longer.
    while first.snapshot().is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(get(&second, b"a"), Some(b"2".to_vec()));
}

#[test]
fn unanswered_commit_is_resolved() {
    let server = Slapd::start();
    let proxy = CutProxy::start(server.port);
    let url = server.new_store();
    let through = url.replace(&format!(":{}/", server.port), &format!(":{}/", proxy.port));
    let store = open(&through);
    put(&store, &[(b"a", b"0")]).unwrap();
    // The commit arrived, its response did not: it is stored once and reported as done.
    proxy.cut(CutPoint::Answer);
    put(&store, &[(b"a", b"1")]).unwrap();
    assert_eq!(get(&store, b"a"), Some(b"1".to_vec()));
    assert!(proxy.swallowed() > 0);
    // The commit did not arrive: it is reported as retryable.
    proxy.cut(CutPoint::Request);
    assert!(matches!(put(&store, &[(b"a", b"2")]), Err(MetaError::Conflict)));
    assert_eq!(get(&store, b"a"), Some(b"1".to_vec()));
    put(&store, &[(b"a", b"3")]).unwrap();
    // The commit arrives after it was given up: it has no effect.
    proxy.cut(CutPoint::Late);
    assert!(matches!(put(&store, &[(b"a", b"4"), (b"late", b"4")]), Err(MetaError::Conflict)));
    proxy.deliver();
    put(&store, &[(b"b", b"5")]).unwrap();
    let expected = [(b"a".to_vec(), b"3".to_vec()), (b"b".to_vec(), b"5".to_vec())];
    assert_eq!(all(&store), expected);
    drop(store);
    assert_eq!(all(&open(&url)), expected);
}

#[test]
fn unsent_request_to_unreachable_server_is_retryable() {
    let mut server = Slapd::start();
    let url = server.new_store();
    // Long enough for a restarted server on a busy machine.
    let hasty = |url: &str| {
        let unavailable_wait = Duration::from_secs(5);
        LdapMeta::open(&LdapSettings { unavailable_wait, ..settings(url) }).unwrap()
    };
    let (store, idle) = (hasty(&url), hasty(&server.new_store()));
    put(&store, &[(b"a", b"1")]).unwrap();
    let mut tx = store.begin().unwrap();
    server.stop();
    // The connection ended before anything of the commit was sent.
    tx.put(b"a", b"2").unwrap();
    assert!(matches!(tx.commit(), Err(MetaError::Away(_))));
    assert_eq!(get(&store, b"a"), Some(b"1".to_vec()), "what only reads goes on");
    // A store that never wrote, and has not claimed the store, did nothing either.
    assert!(matches!(put(&idle, &[(b"b", b"1")]), Err(MetaError::Away(_))));
    server.restart();
    put(&store, &[(b"a", b"3")]).unwrap();
    put(&idle, &[(b"b", b"2")]).unwrap();
    drop(store);
    assert_eq!(all(&open(&url)), [(b"a".to_vec(), b"3".to_vec())]);
}

#[test]
fn late_record_write_does_not_replace_newer_value() {
    let server = Slapd::start();
    let proxy = CutProxy::start(server.port);
    let url = server.new_store();
    let through = url.replace(&format!(":{}/", server.port), &format!(":{}/", proxy.port));
    // Closing writes the record: the next change modifies an existing entry.
    let store = open(&through);
    put(&store, &[(b"a", b"0")]).unwrap();
    drop(store);
    let store = open(&through);
    proxy.cut(CutPoint::LateRecord);
    put(&store, &[(b"a", b"1")]).unwrap();
    while !proxy.is_late() {
        std::thread::sleep(Duration::from_millis(5));
    }
    put(&store, &[(b"a", b"2")]).unwrap();
    // The journal keeps the newest commit, which does not contain the record.
    put(&store, &[(b"b", b"3")]).unwrap();
    drop(store);
    let (target, mut admin) = connection(&url);
    let tree = StoreTree::new(&target.base, &target.name);
    let owner = tree.find(&mut admin).unwrap().unwrap();
    let mut commits = 0;
    let count = |_: &[u8]| {
        commits += 1;
        Ok(())
    };
    tree.each_commit(&mut admin, &owner, count).unwrap();
    assert_eq!(commits, 1, "all is in the records");
    proxy.deliver();
    let expected = [(b"a".to_vec(), b"2".to_vec()), (b"b".to_vec(), b"3".to_vec())];
    assert_eq!(all(&open(&url)), expected);
}

#[test]
fn journal_read_at_start_counts_against_limit() {
    let value = versions::Value::from(vec![0; JOURNAL_BYTES_MAX]);
    let commit = |value| journal::JournalCommit {
        number: 1,
        changes: vec![versions::RecordChange { key: (*b"a").into(), value, was_there: None }],
    };
    let queue = RecordQueue::default();
    queue.fill(vec![commit(None)], Vec::new(), 0);
    assert!(queue.has_space());
    queue.fill(vec![commit(Some(value))], Vec::new(), 0);
    assert!(!queue.has_space());
    assert!(queue.wait_for_space(Instant::now()).is_err());
    queue.fill(vec![commit(None)], vec![0], JOURNAL_BYTES_MAX);
    assert!(!queue.has_space(), "nor is there with what is still to be removed");
}

#[test]
fn records_are_readable_ldap_entries() {
    let server = Slapd::start();
    let url = server.new_store();
    let store = open(&url);
    let name = |name: &[u8]| [&b"d\0\0\0\0\0\0\0\x01"[..], name].concat();
    // Names that LDAP compares as equal, unusual ones, and the longest.
    let names: Vec<Vec<u8>> =
        [&b"notes.txt"[..], b"Notes.TXT", b" a ", b"a", b"a  ", b" ", b"\xE9", b"a,b=c+\\\"<>;#*()"]
            .iter()
            .map(|one| name(one))
            .chain([name(&[b'x'; 255]), name(&[0xFF; 255])])
            .collect();
    let node = [1, 0, 0, 0, 0, 0, 0, 0, 7];
    put(&store, &names.iter().map(|key| (&key[..], &node[..])).collect::<Vec<_>>()).unwrap();
    put(&store, &[(b"m\0binary\xFF", &[0, 1, 0xFF]), (&[b'z'; KEY_BYTES_MAX], b"")]).unwrap();
    let before = all(&store);
    assert_eq!(before.len(), names.len() + 2);
    drop(store);
    let (target, mut connection) = connection(&url);
    let tree = StoreTree::new(&target.base, &target.name);
    let owner = tree.find(&mut connection).unwrap().unwrap();
    let base = format!("ou=records,{}", tree.store(&owner));
    let attribute = |name: &str| sealstone_ldap::Attribute::new(name).unwrap();
    let (title, text) = (attribute("documentTitle"), attribute("description"));
    let mut titles = Vec::new();
    connection
        .search::<RequestError>(&base, sealstone_ldap::SearchScope::Below, &[&title, &text], |entry| {
            let output =
                |one| entry.values(one).next().map(|value| String::from_utf8_lossy(value).into_owned());
            if output(&text).as_deref() == Some("name of node 7 in directory 1") {
                titles.push(output(&title).unwrap());
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(titles.len(), names.len(), "{titles:?}");
    assert!(titles.contains(&"notes.txt".to_owned()) && titles.contains(&"\\xe9".to_owned()));
    // The readable attributes do not change the records.
    assert_eq!(all(&open(&url)), before);
}

const KEY_BYTES_MAX: usize = sealstone_mds::store::KEY_MAX;

#[test]
fn unusable_ldap_servers_are_reported_by_cause() {
    let mut server = Slapd::start();
    let url = server.new_store();
    let wrong = LdapSettings { password: Some(Zeroizing::new(b"guess".to_vec())), ..settings(&url) };
    assert!(matches!(refused(&wrong), LdapStoreError::Password { .. }));
    let other = |from: &str, to: &str| settings(&url.replace(from, to));
    assert!(matches!(refused(&other("ou=s0,", "ou=none,")), LdapStoreError::NoBase { .. }));
    // A read-only account cannot create a store.
    let reader = other(server::WRITER, server::READER);
    let password = Some(Zeroizing::new(server::READER_PASSWORD.as_bytes().to_vec()));
    assert!(matches!(
        refused(&LdapSettings { password, ..reader }),
        LdapStoreError::Rights { .. } | LdapStoreError::NoBase { .. }
    ));
    // Entries of other software are not changed.
    let people = url.replace("ou=s0,", "ou=s1,");
    let base = server.new_store().rsplit_once('/').unwrap().1.to_owned();
    server.add(&format!("ou=theirs,{base}"), &[("objectClass", "organizationalUnit"), ("ou", "theirs")]);
    assert!(
        matches!(refused(&settings(&people)), LdapStoreError::Others { dn } if dn.starts_with("ou=theirs,"))
    );
    // A store of another release, and a damaged record.
    let store = open(&url);
    put(&store, &[(b"a", b"1")]).unwrap();
    drop(store);
    let (target, mut admin) = connection(&url);
    let tree = StoreTree::new(&target.base, &target.name);
    let owner = tree.find(&mut admin).unwrap().unwrap();
    let record = format!("documentIdentifier=61,ou=records,{}", tree.store(&owner));
    server.change(&record, server::AttributeChange::Replace, "audio", &["nonsense"]);
    assert!(matches!(refused(&settings(&url)), LdapStoreError::Damaged { dn, .. } if dn == record));
    server.change(
        &tree.store(&owner),
        server::AttributeChange::Replace,
        "description",
        &["Sealstone metadata, format 2"],
    );
    assert!(
        matches!(refused(&settings(&url)), LdapStoreError::Version { found, .. } if found.ends_with('2'))
    );
    // The server is stopped.
    server.stop();
    let error = LdapConnection::open(&LdapTarget::new(&settings(&url)).unwrap()).err().unwrap();
    assert!(error.is_transient(), "it is waited for: {error}");
}

#[test]
fn ca_file_enforces_tls_and_authority() {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let authority = || {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.self_signed(&key).unwrap().pem(), Issuer::new(params, key))
    };
    let ((pem, issuer), (other, _)) = (authority(), authority());
    let key = KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let server = Slapd::start_with("", Some((&certificate.pem(), &key.serialize_pem())));
    let folder = tempfile::tempdir().unwrap();
    let (ca, stranger) = (folder.path().join("ca.pem"), folder.path().join("other.pem"));
    std::fs::write(&ca, pem).unwrap();
    std::fs::write(&stranger, other).unwrap();
    let url = server.new_store();
    let tls = url
        .replace("ldap://", "ldaps://")
        .replace(&format!(":{}/", server.port), &format!(":{}/", server.tls_port));
    let with = |url: &str, ca: &std::path::Path| LdapSettings { ca_file: Some(ca.into()), ..settings(url) };
    let store = LdapMeta::open(&with(&tls, &ca)).unwrap();
    put(&store, &[(b"a", b"1"), (b"large", &[7; 60_000])]).unwrap();
    drop(store);
    let store = LdapMeta::open(&with(&url, &ca)).expect("StartTLS");
    assert_eq!(get(&store, b"a"), Some(b"1".to_vec()));
    put(&store, &[(b"a", b"2")]).unwrap();
    for url in [&url, &tls] {
        assert!(matches!(refused(&with(url, &stranger)), LdapStoreError::Connect { .. }), "{url}");
    }
}

#[test]
fn oversized_transaction_is_refused() {
    let server = Slapd::start();
    let store = open(&server.new_store());
    let value = vec![7; sealstone_mds::store::VALUE_MAX];
    let fits = journal::COMMIT_BYTES_MAX / (value.len() + 16);
    let of = |count: usize| {
        let mut tx = store.begin().unwrap();
        for n in 0..count {
            tx.put(&[n as u8], &value).unwrap();
        }
        tx.commit()
    };
    let Err(MetaError::Failed(error)) = of(fits + 2) else { panic!("it is too large") };
    assert!(matches!(error.downcast_ref(), Some(LdapStoreError::TooLarge)));
    assert_eq!(all(&store), []);
    of(fits).unwrap();
    assert_eq!(all(&store).len(), fits);
    assert!(store.memory_bytes() > fits * value.len());
}
