//! Silent clients with locks: what they can still do, and when others continue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    Access, ClientId, ErrorCode, Lock, LockKind, Method, Node, NodeChange, OpenHandle, Request, Response,
};

use super::nodes::CLIENT;
use super::world::{ALICE, BOB, World};
use crate::audit::{AuditRecord, AuditSink};
use crate::leases::REVOKE_AFTER_MS;
use crate::limits::GRANT_LIFETIME_MAX_MS;
use crate::open_files::CLIENT_TIMEOUT_MS;
use crate::server_registry::DEAD_MS;

const METHOD: Method = Method::AllData;
/// The clients of alice and bob.
const HERS: ClientId = ClientId { number: 11 };
const HIS: ClientId = ClientId { number: 22 };

fn open(node: Node, access: Access, client_id: ClientId, reclaim: bool) -> Request {
    Request::OpenNode { node, access, method: METHOD, client_id, reclaim }
}

fn lock(node: Node, client_id: ClientId, kind: LockKind, reclaim: bool) -> Request {
    let lock = Lock { kind, whole: false, start: 0, end: 9, owner: 5, pid: 6 };
    Request::LockNode { node, client_id, lock, test: false, reclaim }
}

fn is_free(answer: &Response) -> bool {
    match answer {
        Response::Locked { conflict } => conflict.is_none(),
        other => panic!("{other:?}"),
    }
}

/// Returns the requests of a returning client for its earlier writes.
fn late(node: Node) -> [Request; 6] {
    let handle = OpenHandle::Node { node, access: Access::Update, client_id: HERS };
    let change = NodeChange { size: Some(3), ..NodeChange::default() };
    [
        Request::Allocate { node, size_hint: None, method: METHOD, client_id: HERS },
        Request::RenewGrants { handle, method: METHOD },
        open(node, Access::Update, HERS, true),
        open(node, Access::Update, HERS, false),
        Request::SetNode { node, change, client_id: Some(HERS), through: false },
        Request::Written {
            node,
            size_at_least: 99,
            mtime_ns: None,
            generation: 0,
            made: true,
            fit: false,
            client_id: HERS,
        },
    ]
}

impl World {
    fn tidied(&mut self) {
        while self.mds.tidy(self.now).unwrap() {}
    }

    fn pass(&mut self, ms: u64, alive: &[(SessionId, ClientId)]) {
        self.now += ms;
        for (caller, client_id) in alive {
            self.ask(*caller, Request::KeepNodes { client_id: *client_id });
        }
        self.tidied();
    }

    /// Alice's client has a file open and locked, bob's has it open; returns both nodes.
    fn locked_file(&mut self, access: Access) -> (Node, Node) {
        let hers = self.shared_file("f");
        let his = self.node(BOB, hers.inode);
        self.opened(ALICE, open(hers, access, HERS, false));
        self.opened(BOB, open(his, Access::Update, HIS, false));
        let kind = if access == Access::Read { LockKind::Read } else { LockKind::Write };
        assert!(is_free(&self.ask(ALICE, lock(hers, HERS, kind, false))));
        assert!(!is_free(&self.ask(BOB, lock(his, HIS, LockKind::Write, false))));
        (hers, his)
    }

    /// Earlier writes of alice's client are refused until it releases the file.
    fn refuses_what_is_late(&mut self, hers: Node) {
        for request in late(hers) {
            assert_eq!(self.refused(ALICE, request.clone()), ErrorCode::Fenced, "{request:?}");
        }
    }
}

/// Returns the fenced clients.
#[derive(Clone, Default)]
struct Fenced(Arc<Mutex<Vec<String>>>);

impl AuditSink for Fenced {
    fn record(&self, record: &AuditRecord<'_>) {
        if record.action == "fence" {
            let subject = record.subject.unwrap();
            self.0.lock().push(format!("{} {subject} {}", record.user, record.verdict));
        }
    }
}

#[test]
fn lock_of_silent_client_waits_for_fence() {
    let mut world = World::with_devices(1);
    let audit = Fenced::default();
    world.mds = crate::Mds::open(Arc::new(world.disk.clone()), world.mds.config.clone())
        .unwrap()
        .with_audit(Arc::new(audit.clone()));
    world.take_up();
    let (hers, his) = world.locked_file(Access::Update);
    let want = lock(his, HIS, LockKind::Write, false);
    world.pass(CLIENT_TIMEOUT_MS, &[(BOB, HIS)]);
    assert!(!is_free(&world.ask(BOB, want.clone())), "it may come back in time");
    assert!(world.mds.retag_devices().unwrap().is_empty());
    world.pass(1, &[(BOB, HIS)]);
    for _ in 0..3 {
        assert!(!is_free(&world.ask(BOB, want.clone())), "not before every device refuses what it has");
        world.refuses_what_is_late(hers);
        world.pass(1_000, &[(BOB, HIS)]);
    }
    assert_eq!(world.apply_device_tags(), 1);
    world.pass(1_000, &[(BOB, HIS)]);
    assert!(is_free(&world.ask(BOB, want)));
    // The fence does not expire by silence.
    world.pass(3 * CLIENT_TIMEOUT_MS, &[(BOB, HIS)]);
    world.refuses_what_is_late(hers);
    // It may read, and cannot reclaim locks that others have now.
    world.opened(ALICE, open(hers, Access::Read, HERS, true));
    assert_eq!(world.refused(ALICE, lock(hers, HERS, LockKind::Write, true)), ErrorCode::Fenced);
    assert_eq!(world.refused(ALICE, lock(hers, HERS, LockKind::Read, false)), ErrorCode::Fenced);
    world.ask(ALICE, Request::CloseNode { node: hers, client_id: HERS });
    world.opened(ALICE, open(hers, Access::Update, HERS, false));
    assert!(!is_free(&world.ask(ALICE, lock(hers, HERS, LockKind::Write, false))), "it is his");
    assert_eq!(world.mds.counters.locks_fenced.load(Ordering::Relaxed), 1);
    let id = hers.inode.0;
    assert_eq!(*audit.0.lock(), [format!("alice node {id} begun"), format!("alice node {id} ok")]);
}

#[test]
fn fence_without_device_waits_for_credential_expiry() {
    let mut world = World::with_devices(1);
    let (hers, his) = world.locked_file(Access::Update);
    let want = lock(his, HIS, LockKind::Write, false);
    world.pass(CLIENT_TIMEOUT_MS + 1, &[(BOB, HIS)]);
    let began = world.now;
    while world.now < began + GRANT_LIFETIME_MAX_MS {
        assert!(!is_free(&world.ask(BOB, want.clone())));
        world.ask(ALICE, Request::WhoAmI {});
        world.pass(CLIENT_TIMEOUT_MS / 2, &[(BOB, HIS)]);
    }
    world.pass(CLIENT_TIMEOUT_MS, &[(BOB, HIS)]);
    world.pass(CLIENT_TIMEOUT_MS, &[(BOB, HIS)]);
    assert!(is_free(&world.ask(BOB, want)));
    world.refuses_what_is_late(hers);
}

#[test]
fn reader_is_not_fenced() {
    let mut world = World::with_devices(1);
    let (hers, his) = world.locked_file(Access::Read);
    world.pass(CLIENT_TIMEOUT_MS + 1, &[(BOB, HIS)]);
    assert!(is_free(&world.ask(BOB, lock(his, HIS, LockKind::Write, false))));
    world.opened(ALICE, open(hers, Access::Update, HERS, true));
    assert_eq!(world.refused(ALICE, lock(hers, HERS, LockKind::Read, true)), ErrorCode::Fenced, "lost");
    assert_eq!(world.mds.counters.locks_fenced.load(Ordering::Relaxed), 0);
}

#[test]
fn silent_client_without_locks_is_not_fenced() {
    let mut world = World::with_devices(1);
    let (hers, his) = world.locked_file(Access::Update);
    world.ask(ALICE, Request::UnlockNode { node: hers, client_id: HERS, owner: 5 });
    world.pass(CLIENT_TIMEOUT_MS + 1, &[(BOB, HIS)]);
    assert!(world.mds.retag_devices().unwrap().is_empty());
    assert!(is_free(&world.ask(BOB, lock(his, HIS, LockKind::Write, false))));
    world.opened(ALICE, open(hers, Access::Update, HERS, true));
}

#[test]
fn restarted_server_fences_unreclaimed_locks() {
    let mut world = World::with_devices(1);
    let (hers, his) = world.locked_file(Access::Update);
    world.restart();
    world.opened(BOB, open(his, Access::Update, HIS, true));
    let want = lock(his, HIS, LockKind::Write, false);
    assert_eq!(world.refused(BOB, want.clone()), ErrorCode::Busy, "it may come back");
    world.ask(BOB, Request::KeepNodes { client_id: HIS });
    world.now += CLIENT_TIMEOUT_MS;
    assert!(!is_free(&world.ask(BOB, want.clone())), "nobody has looked yet");
    world.pass(1, &[(BOB, HIS)]);
    assert!(!is_free(&world.ask(BOB, want.clone())));
    world.refuses_what_is_late(hers);
    // Also repeated, during it and after it.
    for done in [false, true] {
        world.restart();
        world.opened(BOB, open(his, Access::Update, HIS, true));
        world.refuses_what_is_late(hers);
        world.pass(0, &[(BOB, HIS)]);
        world.pass(CLIENT_TIMEOUT_MS / 2, &[(BOB, HIS)]);
        world.pass(CLIENT_TIMEOUT_MS / 2 + 1, &[(BOB, HIS)]);
        assert_eq!(is_free(&world.ask(BOB, want.clone())), done);
        if !done {
            assert_eq!(world.apply_device_tags(), 1);
            world.pass(1, &[(BOB, HIS)]);
            assert!(is_free(&world.ask(BOB, want.clone())));
            world.refuses_what_is_late(hers);
            world.ask(BOB, Request::CloseNode { node: his, client_id: HIS });
            world.mds.settle().unwrap();
        }
    }
}

#[test]
fn locks_reclaimed_after_restart_are_kept() {
    let mut world = World::with_devices(1);
    let (hers, his) = world.locked_file(Access::Update);
    world.restart();
    for (caller, node, client_id) in [(ALICE, hers, HERS), (BOB, his, HIS)] {
        world.opened(caller, open(node, Access::Update, client_id, true));
    }
    assert_eq!(world.refused(BOB, lock(his, HIS, LockKind::Write, true)), ErrorCode::Fenced, "he had none");
    assert!(is_free(&world.ask(ALICE, lock(hers, HERS, LockKind::Write, true))));
    world.pass(CLIENT_TIMEOUT_MS, &[(ALICE, HERS), (BOB, HIS)]);
    world.pass(1, &[(ALICE, HERS), (BOB, HIS)]);
    assert!(!is_free(&world.ask(BOB, lock(his, HIS, LockKind::Write, false))));
    // Existing locks may be reclaimed at any time; lost ones cannot.
    assert!(is_free(&world.ask(ALICE, lock(hers, HERS, LockKind::Read, true))));
    world.ask(ALICE, Request::UnlockNode { node: hers, client_id: HERS, owner: 5 });
    assert_eq!(world.refused(ALICE, lock(hers, HERS, LockKind::Write, true)), ErrorCode::Fenced);
    assert!(is_free(&world.ask(BOB, lock(his, HIS, LockKind::Write, false))));
    assert!(world.mds.retag_devices().unwrap().is_empty(), "nobody was fenced");
}

#[test]
fn repeated_locks_are_recorded_once() {
    let mut world = World::with_devices(1);
    let (hers, _) = world.locked_file(Access::Update);
    let before = world.disk.dump();
    for kind in [LockKind::Unlock, LockKind::Read, LockKind::Write, LockKind::Unlock] {
        assert!(is_free(&world.ask(ALICE, lock(hers, HERS, kind, false))));
    }
    assert_eq!(world.disk.dump(), before);
    world.ask(ALICE, Request::CloseNode { node: hers, client_id: HERS });
    assert!(!world.disk.dump().iter().any(|(key, _)| key[0] == b'L'));
}

#[test]
fn lease_fence_of_silent_client_ends_locks() {
    let mut world = World::with_devices(1);
    let hers = world.shared_file("f");
    let his = world.node(BOB, hers.inode);
    let epoch = world.register_caching(ALICE, HERS);
    assert!(world.opened(ALICE, open(hers, Access::Update, HERS, false)).lease.is_some());
    assert!(is_free(&world.ask(ALICE, lock(hers, HERS, LockKind::Write, false))));
    world.now += REVOKE_AFTER_MS + 1;
    let his_open = open(his, Access::Update, HIS, false);
    while matches!(world.ask(BOB, his_open.clone()), Response::Failed { .. }) {
        world.apply_device_tags();
    }
    assert_eq!(world.mds.counters.leases_fenced.load(Ordering::Relaxed), 1);
    assert!(!is_free(&world.ask(BOB, lock(his, HIS, LockKind::Write, false))));
    // The fence survives the server and the client's silence.
    world.restart();
    let his_open = open(his, Access::Update, HIS, true);
    while matches!(world.ask(BOB, his_open.clone()), Response::Failed { .. }) {
        world.pass(REVOKE_AFTER_MS, &[]);
    }
    world.pass(CLIENT_TIMEOUT_MS / 2, &[(BOB, HIS)]);
    world.pass(CLIENT_TIMEOUT_MS / 2 + 1, &[(BOB, HIS)]);
    world.apply_device_tags();
    world.pass(1, &[(BOB, HIS)]);
    assert!(is_free(&world.ask(BOB, lock(his, HIS, LockKind::Write, false))));
    let (now_era, ..) = world.poll_recalls(ALICE, HERS, epoch, 0);
    world.poll_recalls(ALICE, HERS, now_era, 0);
    world.refuses_what_is_late(hers);
    world.ask(ALICE, Request::CloseNode { node: hers, client_id: HERS });
    world.ask(BOB, Request::CloseNode { node: his, client_id: HIS });
    world.opened(ALICE, open(hers, Access::Update, HERS, false));
}

#[test]
fn late_lease_return_is_fenced() {
    let mut world = World::with_devices(1);
    let hers = world.shared_file("f");
    let his = world.node(BOB, hers.inode);
    let epoch = world.register_caching(ALICE, HERS);
    let [.., written] = late(hers);
    let lease = world.opened(ALICE, open(hers, Access::Update, HERS, false)).lease.unwrap();
    world.now += REVOKE_AFTER_MS + 1;
    let his_open = open(his, Access::Update, HIS, false);
    assert!(matches!(world.ask(BOB, his_open.clone()), Response::Failed { .. }));
    // While the devices are being updated.
    world.ask(ALICE, Request::ReturnLease { client_id: HERS, inode: hers.inode, number: lease.number });
    assert_eq!(world.refused(ALICE, written.clone()), ErrorCode::Fenced);
    world.apply_device_tags();
    world.tidied();
    assert_eq!(world.refused(ALICE, written.clone()), ErrorCode::Fenced);
    let (now_era, ..) = world.poll_recalls(ALICE, HERS, epoch, 0);
    assert_ne!(now_era, epoch, "it gets a new epoch");
    world.poll_recalls(ALICE, HERS, now_era, 0);
    world.opened(ALICE, open(hers, Access::Update, HERS, true));
    let reported = world.ask(ALICE, written);
    assert!(!matches!(reported, Response::Failed { .. }), "{reported:?}");
}

#[test]
fn fence_continues_after_crash() {
    for writes in 0..12 {
        let mut world = World::with_devices(1);
        let (hers, his) = world.locked_file(Access::Update);
        world.now += CLIENT_TIMEOUT_MS + 1;
        world.ask(BOB, Request::KeepNodes { client_id: HIS });
        world.disk.fail_after(Some(writes));
        for _ in 0..3 {
            let _ = world.mds.tidy(world.now);
            for device in world.mds.retag_devices().unwrap_or_default() {
                let items = world.mds.next_retags(device, 99).unwrap_or_default();
                let _ = world.mds.retagged(&items, world.now);
            }
            world.now += 1_000;
        }
        world.restart();
        world.opened(BOB, open(his, Access::Update, HIS, true));
        let want = lock(his, HIS, LockKind::Write, false);
        let mut given = false;
        for _ in 0..9 {
            given = matches!(world.ask(BOB, want.clone()), Response::Locked { conflict: None });
            assert!(!given || world.mds.retag_devices().unwrap().is_empty(), "after {writes} writes");
            if given {
                break;
            }
            world.pass(CLIENT_TIMEOUT_MS / 2, &[(BOB, HIS)]);
            world.apply_device_tags();
        }
        assert!(given, "after {writes} writes");
        world.refuses_what_is_late(hers);
    }
}

/// Two servers on one store, the first is the leader, with a file as in [`World::locked_file`]:
/// alice uses the first.
fn two() -> ([World; 2], Node, Node) {
    let [mut one, mut other] = World::two(1);
    one.now += 1_000_000;
    other.now = one.now;
    assert!(one.mds.leads(one.now).unwrap());
    let hers = one.shared_file("f");
    let his = one.node(BOB, hers.inode);
    one.ask(ALICE, Request::CloseNode { node: hers, client_id: CLIENT });
    one.opened(ALICE, open(hers, Access::Update, HERS, false));
    other.opened(BOB, open(his, Access::Update, HIS, false));
    assert!(is_free(&one.ask(ALICE, lock(hers, HERS, LockKind::Write, false))));
    ([one, other], hers, his)
}

/// Time passes at running servers.
fn pass(worlds: &mut [&mut World], ms: u64, alive: &[(SessionId, ClientId)]) {
    for _ in 0..ms / 5_000 {
        for world in worlds.iter_mut() {
            world.now += 5_000;
            let _ = world.mds.catch_up();
            let _ = world.mds.leads(world.now);
            for (caller, client_id) in alive {
                world.ask(*caller, Request::KeepNodes { client_id: *client_id });
            }
            world.mds.tidy_memory(world.now);
        }
    }
}

#[test]
fn lock_conflicts_across_servers() {
    let ([mut one, mut other], hers, his) = two();
    let want = lock(his, HIS, LockKind::Write, false);
    assert!(!is_free(&other.ask(BOB, want.clone())));
    one.ask(ALICE, Request::UnlockNode { node: hers, client_id: HERS, owner: 5 });
    assert!(is_free(&other.ask(BOB, want)));
    assert!(!is_free(&one.ask(ALICE, lock(hers, HERS, LockKind::Read, false))));
    other.ask(BOB, Request::CloseNode { node: his, client_id: HIS });
    assert!(is_free(&one.ask(ALICE, lock(hers, HERS, LockKind::Read, false))));
}

#[test]
fn silent_client_is_fenced_across_servers() {
    let ([mut one, mut other], hers, his) = two();
    let want = lock(his, HIS, LockKind::Write, false);
    pass(&mut [&mut one, &mut other], CLIENT_TIMEOUT_MS + 10_000, &[(BOB, HIS)]);
    assert!(!is_free(&other.ask(BOB, want.clone())));
    for world in [&mut one, &mut other] {
        world.refuses_what_is_late(hers);
    }
    assert_eq!(one.apply_device_tags(), 1);
    pass(&mut [&mut one, &mut other], 5_000, &[(BOB, HIS)]);
    assert!(is_free(&other.ask(BOB, want)));
    for world in [&mut one, &mut other] {
        world.refuses_what_is_late(hers);
    }
    other.ask(ALICE, Request::CloseNode { node: hers, client_id: HERS });
    one.opened(ALICE, open(hers, Access::Update, HERS, false));
}

#[test]
fn client_moving_from_dead_server_keeps_locks() {
    for comes in [true, false] {
        let ([one, mut other], hers, his) = two();
        drop(one);
        let want = lock(his, HIS, LockKind::Write, false);
        pass(&mut [&mut other], 20_000, &[(BOB, HIS)]);
        if comes {
            other.opened(ALICE, open(hers, Access::Update, HERS, true));
            assert!(is_free(&other.ask(ALICE, lock(hers, HERS, LockKind::Write, true))));
        }
        pass(&mut [&mut other], DEAD_MS + 20_000, &[(ALICE, HERS), (BOB, HIS)]);
        assert!(!is_free(&other.ask(BOB, want.clone())));
        assert_eq!(other.mds.retag_devices().unwrap().len(), usize::from(!comes));
        other.apply_device_tags();
        pass(&mut [&mut other], 5_000, &[(ALICE, HERS), (BOB, HIS)]);
        assert_eq!(is_free(&other.ask(BOB, want)), !comes);
    }
}

#[test]
fn client_that_moved_is_not_fenced() {
    let ([mut one, mut other], hers, his) = two();
    other.opened(ALICE, open(hers, Access::Update, HERS, true));
    assert!(is_free(&other.ask(ALICE, lock(hers, HERS, LockKind::Write, true))));
    for _ in 0..20 {
        pass(&mut [&mut other], 5_000, &[(ALICE, HERS), (BOB, HIS)]);
        pass(&mut [&mut one], 5_000, &[]);
    }
    assert!(one.mds.retag_devices().unwrap().is_empty());
    assert!(!is_free(&other.ask(BOB, lock(his, HIS, LockKind::Write, false))));
}

#[test]
fn restarted_server_of_several_keeps_locks() {
    let ([mut one, mut other], hers, his) = two();
    let config = one.mds.config.clone();
    one.mds = crate::Mds::open(Arc::new(one.disk.clone()), config).unwrap();
    one.take_up();
    let want = lock(his, HIS, LockKind::Write, false);
    assert!(!is_free(&other.ask(BOB, want.clone())));
    pass(&mut [&mut one, &mut other], 20_000, &[(BOB, HIS)]);
    one.opened(ALICE, open(hers, Access::Update, HERS, true));
    assert!(is_free(&one.ask(ALICE, lock(hers, HERS, LockKind::Write, true))));
    pass(&mut [&mut one, &mut other], CLIENT_TIMEOUT_MS + 10_000, &[(ALICE, HERS), (BOB, HIS)]);
    assert!(!is_free(&other.ask(BOB, want)));
    assert!(one.mds.retag_devices().unwrap().is_empty());
}
