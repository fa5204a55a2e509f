//! Lost answers and lost clients.

use super::*;
use sealstone_mds_protocol::NodeChange;

const METHOD: Method = Method::AllData;

fn held(there: DirLeaseId, at: &str, id: InodeId) -> NameChange {
    NameChange::Create(CreateOp { held: true, ..made(there, at, id) })
}

#[test]
fn repeated_batch_returns_stored_answer() {
    let (mut world, mut hers, there) = ahead();
    let (a, b) = (hers.number(), hers.number());
    let changes = [held(there, "a", a), make_file(there, "b", b)];
    let first = hers.send_batch(&mut world, &changes);
    assert_eq!(first, (2, None, vec![a]));
    let stored = world.disk.dump();
    assert_eq!(hers.resend_batch(&mut world, &changes), first);
    assert_eq!(world.disk.dump(), stored);
    // Also after everything is closed, and after a restart.
    hers.return_delegation(&mut world, there);
    world.ask(ALICE, Request::Remove { path: path("/d/b"), recursive: false });
    assert_eq!(hers.resend_batch(&mut world, &changes), first);
    world.restart();
    assert_eq!(hers.resend_batch(&mut world, &changes).0, 2);
    assert!(!world.is_stored(b));
    // Another request with its sequence number is refused, and an earlier one is stale.
    let asked = hers.once(&changes[1..]);
    assert_eq!(world.refused(ALICE, asked), ErrorCode::Invalid);
    hers.sequence -= 1;
    let asked = hers.once(&changes);
    assert_eq!(world.refused(ALICE, asked), ErrorCode::Stale);
}

#[test]
fn repeated_batch_grants_leases_on_own_files() {
    let (mut world, mut hers, there) = ahead();
    let (a, b, c) = (hers.number(), hers.number(), hers.number());
    let changes = [held(there, "a", a), held(there, "b", b), held(there, "c", c)];
    assert_eq!(hers.send_batch(&mut world, &changes).2, [a, b, c]);
    hers.return_delegation(&mut world, there);
    for id in [a, b, c] {
        let node = world.node(ALICE, id);
        world.ask(ALICE, Request::CloseNode { node, client_id: HERS });
    }
    let change = NodeChange { owner: Some(user("bob")), ..NodeChange::default() };
    let node = world.node(ADMIN, a);
    let given = world.ask(ADMIN, Request::SetNode { node, change, client_id: None, through: false });
    assert!(matches!(given, Response::Stat { .. }), "{given:?}");
    world.ask(ALICE, Request::Remove { path: path("/d/c"), recursive: false });
    assert!(!world.is_stored(c));
    assert_eq!(hers.resend_batch(&mut world, &changes), (3, None, vec![b]));
    assert!(!world.mds.open_files.is_open(c), "it is gone");
    let node = world.node(ALICE, a);
    let open =
        Request::OpenNode { node, access: Access::Update, method: METHOD, client_id: HERS, reclaim: false };
    assert_eq!(world.refused(ALICE, open), ErrorCode::Denied);
    let allocate = Request::Allocate { node, size_hint: None, method: METHOD, client_id: HERS };
    assert_eq!(world.refused(ALICE, allocate), ErrorCode::Denied);
}

#[test]
fn repeated_unlink_keeps_later_open() {
    let (mut world, mut hers, there) = ahead();
    let id = hers.number();
    let node = world.node(ALICE, id);
    hers.send_all(&mut world, &[make_file(there, "a", id)]);
    hers.sequence += 1;
    let turn = RequestId { client_id: HERS, slot: 0, sequence: hers.sequence };
    let parent = world.node(ALICE, there.inode);
    let link = Request::LinkNode { node, parent, name: name("b") };
    world.ask(ALICE, Request::Once { id: turn, request: ChangeRequest::new(link).unwrap() });
    let removal = UnlinkOp { directory: there, name: name("a"), inode: id, at_ms: 0, close: true };
    let removal = [NameChange::Unlink(removal)];
    hers.send_all(&mut world, &removal);
    let open =
        Request::OpenNode { node, access: Access::Update, method: METHOD, client_id: HERS, reclaim: false };
    assert!(world.opened(ALICE, open).lease.is_some());
    let out = world.mds.lease_count();
    assert_eq!(hers.resend_batch(&mut world, &removal), (1, None, vec![]));
    assert!(world.mds.open_files.is_open_by(&user("alice"), HERS, id));
    assert_eq!(world.mds.lease_count(), out);
}

#[test]
fn crash_leaves_batch_whole_or_absent() {
    for crash_at in 0..4 {
        let (mut world, mut hers, there) = ahead();
        let before = world.names_in(there.inode);
        let (a, b) = (hers.number(), hers.number());
        let changes = [held(there, "a", a), make_file(there, "b", b), removed(there, "f", before[0].1)];
        hers.sequence += 1;
        world.disk.fail_after(Some(crash_at));
        let answer = world.ask(ALICE, hers.once(&changes));
        let reported = matches!(answer, Response::NameBatchApplied { .. });
        world.restart();
        let names = world.names_in(there.inode);
        assert!(names == before || (names.len() == 2 && !names.contains(&before[0])), "{names:?}");
        assert!(!reported || names != before, "crash at {crash_at}: what was promised is there");
        let (epoch, ..) = world.poll_recalls(ALICE, HERS, hers.epoch, 0);
        let (done, failure, _) = hers.resend_batch(&mut world, &changes);
        assert_eq!((done, failure), (3, None), "crash at {crash_at}");
        world.poll_recalls(ALICE, HERS, epoch, 0);
        assert_eq!(world.names_in(there.inode).len(), 2);
        world.now += 10 * crate::open_files::CLIENT_TIMEOUT_MS;
        world.reap_all();
        world.counted();
    }
}

#[test]
fn records_of_silent_client_expire_after_day() {
    let (mut world, mut hers, there) = ahead();
    let epoch = hers.epoch;
    let hours = |world: &mut World, hours: u64, comes: bool| {
        for _ in 0..hours {
            world.now += 3_600_000;
            world.session(ALICE, "alice", false);
            if comes {
                world.poll_recalls(ALICE, HERS, epoch, 0);
            }
            world.mds.tidy_memory(world.now);
        }
    };
    // The client had the delegation for days, and then is silent for an hour.
    hours(&mut world, 50, true);
    hours(&mut world, 1, false);
    let id = hers.numbers.pop().unwrap();
    hers.sequence += 1;
    let reported = hers.resend_batch(&mut world, &[make_file(there, "x", id)]);
    assert_eq!(reported, (1, None, vec![]));
    assert_eq!((world.count_of(b'A'), world.count_of(b'N'), world.mds.lease_count()), (1, 1, 1));
    hours(&mut world, 25, false);
    assert_eq!((world.count_of(b'A'), world.count_of(b'N'), world.mds.lease_count()), (0, 0, 0));
    let id = hers.number();
    assert_eq!(hers.send_batch(&mut world, &[make_file(there, "y", id)]).1, Some(ErrorCode::Fenced));
}
