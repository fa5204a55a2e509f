//! Batched changes are checked and audited like requests.

use super::*;
use sealstone_mds_protocol::{GroupName, RevocationTarget, Role};

fn set_mode(world: &mut World, id: InodeId, mode: u16) {
    let set = world.ask(ALICE, own(super::super::leases::set_mode(world.node(ALICE, id), mode)));
    assert!(matches!(set, Response::Stat { .. }), "{set:?}");
}

/// By the client with the delegation, so that nothing is recalled.
fn own(request: Request) -> Request {
    match request {
        Request::SetNode { node, change, through, .. } => {
            Request::SetNode { node, change, client_id: Some(HERS), through }
        }
        other => other,
    }
}

/// Alice has the delegation on her directory, in which bob has a file.
fn of_hers() -> (World, TestClient, DirLeaseId, InodeId) {
    let (mut world, ..) = world();
    world.mkdir(ALICE, "/a", 0o777);
    world.put(BOB, "/a/his", 1);
    let (a, his) = (world.inode("/a"), world.inode("/a/his"));
    let mut hers = TestClient::new(&mut world, ALICE, HERS);
    let there = hers.acquire_delegation(&mut world, a);
    (world, hers, there, his)
}

#[test]
fn batch_checks_permissions_when_applied() {
    let (mut world, mut hers, there, his) = of_hers();
    let (id, before) = (hers.number(), world.names_in(there.inode));
    for mode in [0o555, 0o666, 0o077] {
        set_mode(&mut world, there.inode, mode);
        for change in [
            make_file(there, "x", id),
            removed(there, "his", his),
            renamed((there, "his"), his, (there, "x"), None),
        ] {
            let reported = hers.send_batch(&mut world, &[change]);
            assert_eq!(reported, (0, Some(ErrorCode::Denied), vec![]), "{mode:o}");
        }
    }
    assert_eq!(world.names_in(there.inode), before);
    set_mode(&mut world, there.inode, 0o700);
    hers.send_all(&mut world, &[make_file(there, "x", id), removed(there, "his", his)]);
}

#[test]
fn batch_checks_owners_groups_and_limits() {
    let (mut world, mut hers, there, _) = of_hers();
    let id = hers.number();
    let group = Some(GroupName::new("staff").unwrap());
    for (made, why) in [
        (CreateOp { owner: Some(user("bob")), ..made(there, "x", id) }, ErrorCode::NotPermitted),
        (CreateOp { group, ..made(there, "x", id) }, ErrorCode::NotPermitted),
    ] {
        let reported = hers.send_batch(&mut world, &[NameChange::Create(made.clone())]);
        assert_eq!(reported, (0, Some(why), vec![]), "{made:?}");
    }
    let masked = CreateOp { mode: 0o4666, umask: 0o22, ..made(there, "m", id) };
    hers.send_all(&mut world, &[NameChange::Create(masked)]);
    let stat = world.node_stat(ALICE, Request::GetNode { node: world.node(ALICE, id) });
    assert_eq!(stat.mode, 0o4644);
    // A limit that is set during the delegation applies.
    let change = QuotaChange { bytes_max: None, nodes_max: Some(Some(2)) };
    world.ask(ADMIN, Request::QuotaSet { of: QuotaSubject::User(user("alice")), change });
    let id = hers.number();
    let reported = hers.send_batch(&mut world, &[make_file(there, "x", id)]);
    assert_eq!(reported, (0, Some(ErrorCode::Quota), vec![]));
    world.counted();
}

#[test]
fn administrator_creates_files_for_others_in_batch() {
    let (mut world, d, _) = world();
    let mut mount = TestClient::new(&mut world, ADMIN, HERS);
    let there = mount.acquire_delegation(&mut world, d);
    let id = mount.number();
    let change = CreateOp { owner: Some(user("bob")), held: true, ..made(there, "x", id) };
    assert_eq!(mount.send_batch(&mut world, &[NameChange::Create(change)]), (1, None, vec![id]));
    mount.return_delegation(&mut world, there);
    assert_eq!(world.stat(BOB, "/d/x").unwrap().owner, user("bob"));
    world.counted();
}

#[test]
fn read_only_user_gets_no_delegation() {
    let (mut world, mut hers, there) = ahead();
    let id = hers.number();
    world.session_as(ALICE, "alice", Role::ReadOnly);
    hers.sequence += 1;
    let asked = hers.once(&[make_file(there, "x", id)]);
    assert_eq!(world.refused(ALICE, asked.clone()), ErrorCode::Denied);
    let directory = Some(world.node(ALICE, there.inode));
    let lead = Request::DelegateDir { directory, client_id: HERS, numbers: 0 };
    assert_eq!(world.refused(ALICE, lead), ErrorCode::Denied);
    // The client may release its state.
    hers.return_delegation(&mut world, there);
    assert!(matches!(world.ask(BOB, Request::Stat { path: path("/d/f") }), Response::Stat { .. }));

    let (mut world, mut hers, there) = ahead();
    let id = hers.number();
    let revoked = world.ask(ADMIN, Request::Revoke { what: RevocationTarget::User(user("alice")) });
    assert!(matches!(revoked, Response::Revocation { .. }), "{revoked:?}");
    let disabled = Request::UserSetEnabled { name: user("alice"), enabled: false };
    assert!(!matches!(world.ask(ADMIN, disabled), Response::Failed { .. }));
    hers.sequence += 1;
    let asked = hers.once(&[make_file(there, "x", id)]);
    assert_eq!(world.refused(ALICE, asked), ErrorCode::NotLoggedIn);
    let stat = || Request::Stat { path: path("/d/f") };
    assert!(is_busy(&world.ask(BOB, stat())));
    world.now += crate::leases::REVOKE_AFTER_MS;
    world.ask(BOB, stat());
    assert!(matches!(world.ask(BOB, stat()), Response::Stat { .. }));
}

#[test]
fn batch_grants_nothing_on_foreign_inodes() {
    let (mut world, mut hers, there) = ahead();
    let secret = world.file(BOB, "secret");
    world.ask(BOB, super::super::leases::set_mode(secret, 0o600));
    let (method, client_id, access) = (Method::AllData, HIS, Access::Update);
    world.register_caching(BOB, HIS);
    world.opened(BOB, Request::OpenNode { node: secret, access, method, client_id, reclaim: false });
    let out = world.mds.lease_count();
    let id = secret.inode;
    let directory = there;
    let close = UnlinkOp { directory, name: name("none"), inode: id, at_ms: 0, close: true };
    let replaced = RenameOp {
        from_directory: there,
        from: name("f"),
        inode: id,
        to_directory: there,
        to: name("x"),
        replaced: Some(id),
        at_ms: 0,
        close: true,
    };
    for change in [
        NameChange::Create(CreateOp { held: true, ..made(there, "x", id) }),
        NameChange::Unlink(close),
        NameChange::Rename(replaced),
    ] {
        assert_eq!(hers.send_batch(&mut world, std::slice::from_ref(&change)).0, 0, "{change:?}");
        assert!(world.mds.open_files.is_open_by(&user("bob"), HIS, id));
        assert!(!world.mds.open_files.is_open_by(&user("alice"), HERS, id));
        assert_eq!(world.mds.lease_count(), out);
        let node = world.node(ALICE, id);
        for request in [
            Request::OpenNode { node, access, method, client_id: HERS, reclaim: false },
            Request::Allocate { node, size_hint: None, method, client_id: HERS },
        ] {
            assert_eq!(world.refused(ALICE, request), ErrorCode::Denied);
        }
    }
    // Reserved numbers refer to nothing before the create.
    let node = world.node(ALICE, hers.number());
    assert_eq!(world.refused(ALICE, Request::GetNode { node }), ErrorCode::Stale);
}

#[test]
fn each_batched_change_is_audited_once() {
    let (mut world, mut hers, there) = ahead();
    let records = std::sync::Arc::new(Records::default());
    world.mds.audit = records.clone();
    let f = world.names_in(there.inode)[0].1;
    let (a, b) = (hers.number(), hers.number());
    let changes = [
        make_file(there, "a", a),
        renamed((there, "a"), a, (there, "b"), None),
        removed(there, "b", a),
        make_file(there, "f", b),
        removed(there, "f", f),
    ];
    assert_eq!(hers.send_batch(&mut world, &changes).0, 3);
    let d = there.inode.0;
    let expected = [
        format!("MakeNode node {d}/a: ok"),
        format!("RenameNode node {d}/a -> node {d}/b: ok"),
        format!("RemoveNode node {d}/b: ok"),
        format!("MakeNode node {d}/f: Exists"),
    ];
    assert_eq!(records.take(), expected);
    assert_eq!(hers.resend_batch(&mut world, &changes).0, 3);
    assert_eq!(records.take(), [] as [String; 0], "nothing was done");
    // A batch whose answer was not sent is audited too: here the client cannot be registered again.
    let c = hers.number();
    hers.send_all(&mut world, &[NameChange::Create(CreateOp { held: true, ..made(there, "c", c) })]);
    assert_eq!(records.take().len(), 1);
}

#[derive(Default)]
struct Records(parking_lot::Mutex<Vec<String>>);

impl Records {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl crate::audit::AuditSink for Records {
    fn record(&self, record: &crate::audit::AuditRecord<'_>) {
        let (subject, verdict) = (record.subject.unwrap_or("-"), record.verdict);
        assert_eq!(record.user, "alice");
        self.0.lock().push(format!("{} {subject}: {verdict}", record.action));
    }
}
