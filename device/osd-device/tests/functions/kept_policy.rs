//! The policy of a partition, which is kept between runs.

use super::*;
use crate::faulty::Faulty;

/// Page of the policy of a partition.
const POLICY_PAGE: u32 = 0x3000_F002;

#[test]
fn policy_is_read_after_changes_only() {
    let store = Arc::new(Faulty::new());
    let stage = Stage::on(OsdConfig::default(), Arc::clone(&store) as Arc<dyn ObjectStore>);
    let partition = ObjectId::of_partition(PID);
    let reads = || store.scans_of(partition, POLICY_PAGE);
    let run = || stage.run_with(request(Vec::new()), &[]);
    for _ in 0..10 {
        run().good();
    }
    assert_eq!(reads(), 1, "one read for ten runs");
    // Each change has its effect on the next run.
    let digest = *blake3::hash(b"code of the function").as_bytes();
    stage.set(partition, &[(POLICY_PAGE, 1, &[2])]);
    assert_eq!(run().sense(), (5, 0x2400), "not listed");
    stage.set(partition, &[(POLICY_PAGE, 0x2000, &digest)]);
    run().good();
    assert!(reads() > 1);
    let before = reads();
    for _ in 0..10 {
        run().good();
    }
    assert_eq!(reads(), before);
    stage.set(partition, &[(POLICY_PAGE, 0x2000, &[])]);
    assert_eq!(run().sense(), (5, 0x2400), "removed from the list");
}
