//! A client repeatedly gets a delegation, sends changes and returns it, while others read: none of
//! them sees old names.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::*;

const ROUNDS: u64 = 400;

#[test]
fn lookup_sees_earlier_delegated_creates() {
    let (mut world, d, _) = world();
    let mut hers = TestClient::new(&mut world, ALICE, HERS);
    let parent = world.node(BOB, d);
    let (made_last, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    // The clock jumps only while no request runs: no request takes longer than a lease.
    let clock = parking_lot::RwLock::new(world.now);
    let mds = &world.mds;
    let mut rounds = 0;
    let mut ahead = |world: &World| {
        let mut rng = StdRng::seed_from_u64(1);
        let mut ask = |caller, request| world.mds.handle(Some(&caller), request, *clock.read(), &mut rng);
        for _ in 0..ROUNDS {
            // After a recall no delegation is granted for a while.
            *clock.write() += RECALL_COOLDOWN_MS + 1;
            ask(ALICE, Request::Recalls { client_id: HERS, epoch: hers.epoch, known: u64::MAX, wait_ms: 0 });
            let directory = Some(world.node(ALICE, d));
            let led = ask(ALICE, Request::DelegateDir { directory, client_id: HERS, numbers: 4 });
            let Response::DirDelegated { lease: Some(lease), numbers: Some(numbers), .. } = led else {
                continue;
            };
            let there = DirLeaseId { inode: d, epoch: lease.epoch, lease: lease.number };
            for id in (numbers.first.0..).take(4).map(InodeId) {
                rounds += 1;
                made_last.store(rounds, Ordering::SeqCst);
                hers.sequence += 1;
                let asked = hers.once(&[make_file(there, &rounds.to_string(), id)]);
                loop {
                    match ask(ALICE, asked.clone()) {
                        Response::NameBatchApplied { done: 1, .. } => break,
                        answer if is_busy(&answer) => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
            let back = Request::ReturnLease { inode: d, client_id: HERS, number: lease.number };
            assert!(matches!(ask(ALICE, back), Response::Done {}));
        }
        is_over.store(true, Ordering::SeqCst);
    };
    let look = |seed| {
        let (mut rng, mut seen) = (StdRng::seed_from_u64(seed), 0);
        while !is_over.load(Ordering::SeqCst) {
            let last = made_last.load(Ordering::SeqCst);
            if last == 0 {
                continue;
            }
            let request = match seed % 2 {
                0 => Request::Lookup { parent, name: name(&last.to_string()), client_id: None },
                _ => Request::Stat { path: path(&format!("/d/{last}")) },
            };
            let now = clock.read();
            match mds.handle(Some(&BOB), request, *now, &mut rng) {
                Response::Stat { .. } => seen += 1,
                answer if is_busy(&answer) => {}
                other => panic!("{last} was made before: {other:?}"),
            }
        }
        seen
    };
    let world = &world;
    std::thread::scope(|scope| {
        let lookers = [2, 3].map(|seed| scope.spawn(move || look(seed)));
        ahead(world);
        for looker in lookers {
            looker.join().unwrap();
        }
    });
    assert!(rounds > ROUNDS, "it was led again and again");
}
