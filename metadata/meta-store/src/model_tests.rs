//! Comparison of a store with the store in memory, by random steps.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sealstone_mds::store::{MemoryMeta, MetaStore};

/// Checks that `store` reads like the store in memory, inside and after transactions. `check` runs
/// at the end of each case.
pub(crate) fn compare_with_memory(store: &dyn MetaStore, cases: u32, check: impl Fn()) {
    let steps = prop::collection::vec(
        prop::collection::vec((any::<u8>(), prop::option::of(any::<u8>())), 1..8),
        1..8,
    );
    let mut runner =
        TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) });
    let run = runner.run(&(steps, 0..20usize), |(steps, limit)| {
        let memory = MemoryMeta::new();
        let mut tx = store.begin().unwrap();
        for (key, _) in tx.scan(b"", b"\xFF", usize::MAX).unwrap() {
            tx.delete(&key).unwrap();
        }
        tx.commit().unwrap();
        for step in steps {
            let mut seen = Vec::new();
            for store in [store, &memory] {
                let mut tx = store.begin().unwrap();
                for (key, value) in &step {
                    match value {
                        Some(value) => tx.put(&[key % 16], &[*value]).unwrap(),
                        None => tx.delete(&[key % 16]).unwrap(),
                    }
                }
                let inside = tx.scan(b"", b"\xFF", limit).unwrap();
                tx.commit().unwrap();
                seen.push((inside, store.snapshot().unwrap().scan(b"", b"\xFF", 99).unwrap()));
            }
            prop_assert_eq!(&seen[0], &seen[1]);
        }
        check();
        Ok(())
    });
    run.unwrap();
}
