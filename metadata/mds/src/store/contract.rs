//! The contract of metadata stores as a test suite. Each backend's test calls [`check`].

use super::{KEY_MAX, MetaError, MetaStore, VALUE_MAX};

/// Runs the whole suite; `fresh` makes an empty store each time.
///
/// # Panics
/// If the store breaks the contract; the message says which promise.
pub fn check(fresh: &dyn Fn() -> Box<dyn MetaStore>) {
    changes_become_visible_at_commit(&*fresh());
    dropped_transaction_changes_nothing(&*fresh());
    snapshot_does_not_change(&*fresh());
    scans_are_ordered_bounded_and_half_open(&*fresh());
    scans_merge_the_transaction(&*fresh());
    limits_hold(&*fresh());
    transactions_are_serial(&*fresh());
    lazy_commit_is_visible_immediately(&*fresh());
}

/// A store that a test can crash.
pub trait Crash {
    /// Returns the store until the crash.
    fn store(&self) -> &dyn MetaStore;

    /// Kills the process at this moment and returns the store as the next process finds it.
    fn crash(self: Box<Self>) -> Box<dyn Crash>;
}

/// Runs the part of the suite that needs crashes; `fresh` makes an empty store each time.
///
/// # Panics
/// If the store breaks the contract; the message says which promise.
pub fn check_crashes(fresh: &dyn Fn() -> Box<dyn Crash>) {
    committed_changes_survive_crash(fresh());
    commit_makes_earlier_lazy_commits_durable(fresh());
    settle_makes_lazy_commits_durable(fresh());
    crash_discards_lazy_commits_in_order(fresh());
    durable_delete_survives_crash(fresh());
}

fn lazily(store: &dyn MetaStore, changes: &[(&[u8], Option<&[u8]>)]) {
    let mut tx = store.begin().expect("a transaction begins");
    for (key, value) in changes {
        match value {
            Some(value) => tx.put(key, value).expect("a small pair is taken"),
            None => tx.delete(key).expect("delete"),
        }
    }
    tx.commit_lazily().expect("a transaction commits lazily");
}

fn lazy_commit_is_visible_immediately(store: &dyn MetaStore) {
    lazily(store, &[(b"a", Some(b"1")), (b"b", Some(b"1"))]);
    assert_eq!(
        (get(store, b"a"), get(store, b"b")),
        (Some(b"1".to_vec()), Some(b"1".to_vec())),
        "seen at once"
    );
    lazily(store, &[(b"a", None)]);
    assert_eq!(get(store, b"a"), None, "so are lazy deletes");
    lazily(store, &[]);
    store.settle().expect("settle");
    store.settle().expect("a second settle succeeds");
    put(store, &[(b"a", b"2")]);
    lazily(store, &[(b"a", Some(b"3"))]);
    assert_eq!(get(store, b"a"), Some(b"3".to_vec()), "lazy and other commits are one order");
}

fn committed_changes_survive_crash(store: Box<dyn Crash>) {
    put(store.store(), &[(b"a", b"1"), (b"b", b"1")]);
    put(store.store(), &[(b"a", b"2")]);
    let store = store.crash();
    let found = (get(store.store(), b"a"), get(store.store(), b"b"));
    assert_eq!(found, (Some(b"2".to_vec()), Some(b"1".to_vec())), "committed is durable");
}

fn commit_makes_earlier_lazy_commits_durable(store: Box<dyn Crash>) {
    lazily(store.store(), &[(b"a", Some(b"1"))]);
    lazily(store.store(), &[(b"b", Some(b"1"))]);
    put(store.store(), &[(b"c", b"1")]);
    let store = store.crash();
    for key in [b"a", b"b", b"c"] {
        assert_eq!(
            get(store.store(), key),
            Some(b"1".to_vec()),
            "a commit makes earlier lazy commits durable"
        );
    }
}

fn settle_makes_lazy_commits_durable(store: Box<dyn Crash>) {
    lazily(store.store(), &[(b"a", Some(b"1"))]);
    store.store().settle().expect("settle");
    let store = store.crash();
    assert_eq!(get(store.store(), b"a"), Some(b"1".to_vec()), "settled is durable");
}

fn crash_discards_lazy_commits_in_order(store: Box<dyn Crash>) {
    put(store.store(), &[(b"n", b"\0")]);
    for n in 1..=20u8 {
        lazily(store.store(), &[(b"n", Some(&[n])), (&[b'k', n], Some(&[n]))]);
    }
    let store = store.crash();
    let n = get(store.store(), b"n").expect("the key exists")[0];
    let found = store.store().snapshot().expect("a snapshot").scan(b"k", b"l", 99).expect("scan");
    let expected: Vec<_> = (1..=n).map(|n| (vec![b'k', n], vec![n])).collect();
    assert_eq!(found, expected, "the state is that after one of the commits");
    put(store.store(), &[(b"n", b"x")]);
    assert_eq!(get(store.store(), b"n"), Some(b"x".to_vec()), "the store continues to work");
}

fn durable_delete_survives_crash(store: Box<dyn Crash>) {
    lazily(store.store(), &[(b"session", Some(b"1"))]);
    let mut tx = store.store().begin().expect("a transaction begins");
    tx.delete(b"session").expect("delete");
    tx.commit().expect("commit");
    lazily(store.store(), &[(b"other", Some(b"1"))]);
    let store = store.crash();
    assert_eq!(get(store.store(), b"session"), None, "a commit that removed it holds");
}

fn put(store: &dyn MetaStore, pairs: &[(&[u8], &[u8])]) {
    let mut tx = store.begin().expect("a transaction begins");
    for (key, value) in pairs {
        tx.put(key, value).expect("a small pair is taken");
    }
    tx.commit().expect("a transaction commits");
}

fn get(store: &dyn MetaStore, key: &[u8]) -> Option<Vec<u8>> {
    store.snapshot().expect("a snapshot").get(key).expect("a read")
}

fn keys(pairs: Vec<super::Pair>) -> Vec<Vec<u8>> {
    pairs.into_iter().map(|(key, _)| key).collect()
}

fn changes_become_visible_at_commit(store: &dyn MetaStore) {
    let mut tx = store.begin().expect("a transaction begins");
    tx.put(b"k", b"1").expect("put");
    assert_eq!(tx.get(b"k").expect("get"), Some(b"1".to_vec()), "a transaction sees its own puts");
    assert_eq!(get(store, b"k"), None, "not visible to others before the commit");
    tx.commit().expect("commit");
    assert_eq!(get(store, b"k"), Some(b"1".to_vec()), "visible to all after the commit");
    let mut tx = store.begin().expect("a transaction begins");
    tx.delete(b"k").expect("delete");
    tx.delete(b"absent").expect("deleting a missing key succeeds");
    assert_eq!(tx.get(b"k").expect("get"), None, "a transaction sees its own deletes");
    tx.commit().expect("commit");
    assert_eq!(get(store, b"k"), None, "deletes are committed");
}

fn dropped_transaction_changes_nothing(store: &dyn MetaStore) {
    put(store, &[(b"a", b"1")]);
    let mut tx = store.begin().expect("a transaction begins");
    tx.put(b"a", b"2").expect("put");
    tx.put(b"b", b"2").expect("put");
    drop(tx);
    assert_eq!((get(store, b"a"), get(store, b"b")), (Some(b"1".to_vec()), None), "dropping undoes");
    put(store, &[]);
}

fn snapshot_does_not_change(store: &dyn MetaStore) {
    put(store, &[(b"a", b"1")]);
    let before = store.snapshot().expect("a snapshot");
    put(store, &[(b"a", b"2"), (b"b", b"2")]);
    assert_eq!(before.get(b"a").expect("get"), Some(b"1".to_vec()), "a snapshot does not move");
    assert_eq!(keys(before.scan(b"", b"z", 9).expect("scan")), [b"a"], "nor do its ranges");
}

fn scans_are_ordered_bounded_and_half_open(store: &dyn MetaStore) {
    put(store, &[(b"b", b""), (b"a\xFF", b""), (b"a", b""), (b"c", b""), (b"a\0", b"")]);
    let view = store.snapshot().expect("a snapshot");
    assert_eq!(
        keys(view.scan(b"a", b"c", 99).expect("scan")),
        [b"a".to_vec(), b"a\0".to_vec(), b"a\xFF".to_vec(), b"b".to_vec()],
        "byte order, end excluded"
    );
    assert_eq!(keys(view.scan(b"a", b"c", 2).expect("scan")).len(), 2, "limit");
    assert_eq!(view.scan(b"c", b"a", 9).expect("scan"), [], "an empty range");
    assert_eq!(view.scan(b"a", b"a", 9).expect("scan"), [], "an empty range");
    assert_eq!(view.scan(b"a", b"z", 0).expect("scan"), [], "limit of zero");
}

fn scans_merge_the_transaction(store: &dyn MetaStore) {
    put(store, &[(b"a", b"1"), (b"c", b"1"), (b"d", b"1")]);
    let mut tx = store.begin().expect("a transaction begins");
    tx.put(b"b", b"2").expect("put");
    tx.put(b"c", b"2").expect("put");
    tx.delete(b"d").expect("delete");
    let found = tx.scan(b"a", b"z", 99).expect("scan");
    let expected = [(b"a", b"1"), (b"b", b"2"), (b"c", b"2")].map(|(k, v)| (k.to_vec(), v.to_vec()));
    assert_eq!(found, expected, "a transaction's ranges hold its own changes");
    assert_eq!(tx.scan(b"a", b"z", 2).expect("scan").len(), 2, "limit");
}

fn limits_hold(store: &dyn MetaStore) {
    let mut tx = store.begin().expect("a transaction begins");
    tx.put(&[1; KEY_MAX], &vec![2; VALUE_MAX]).expect("the largest pair is taken");
    let long_key = tx.put(&[1; KEY_MAX + 1], b"");
    assert!(matches!(long_key, Err(MetaError::TooLong { limit: KEY_MAX })), "longer keys are not");
    let long_value = tx.put(b"k", &vec![2; VALUE_MAX + 1]);
    assert!(matches!(long_value, Err(MetaError::TooLong { limit: VALUE_MAX })), "longer values are not");
    tx.commit().expect("commit");
    assert_eq!(get(store, &[1; KEY_MAX]).map(|v| v.len()), Some(VALUE_MAX), "the largest value is stored");
}

fn transactions_are_serial(store: &dyn MetaStore) {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 10;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    loop {
                        let mut tx = store.begin().expect("a transaction begins");
                        let count = tx.get(b"n").expect("get").map_or(0, |value| value[0]);
                        tx.put(b"n", &[count + 1]).expect("put");
                        match tx.commit() {
                            Ok(()) => break,
                            Err(MetaError::Conflict) => {}
                            Err(error) => panic!("commit failed: {error}"),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(get(store, b"n"), Some(vec![(THREADS * ROUNDS) as u8]), "no increment is lost");
}
