//! Closes inside batches.

use super::*;

fn held(there: DirLeaseId, at: &str, id: InodeId) -> NameChange {
    NameChange::Create(CreateOp { held: true, ..made(there, at, id) })
}

fn is_held(world: &World, id: InodeId) -> bool {
    world.mds.open_files.is_open(id)
}

#[test]
fn repeated_batch_keeps_closed_file_closed() {
    let (mut world, mut hers, there) = ahead();
    let (files, _) = world.counted();
    let (a, b, c) = (hers.number(), hers.number(), hers.number());
    let out = world.mds.lease_count();
    let changes = [
        held(there, "a", a),
        NameChange::Close(a),
        held(there, "b", b),
        removed(there, "b", b),
        NameChange::Close(b),
        held(there, "c", c),
    ];
    let answer = hers.send_batch(&mut world, &changes);
    assert_eq!(answer, (6, None, vec![c]));
    for _ in 0..2 {
        assert_eq!((is_held(&world, a), is_held(&world, b), is_held(&world, c)), (false, false, true));
        assert_eq!(world.mds.lease_count(), out + 1);
        assert!(world.is_stored(a) && !world.is_stored(b));
        assert_eq!(world.counted(), (files + 2, 0));
        assert_eq!(hers.resend_batch(&mut world, &changes), answer);
    }
}

#[test]
fn unlinked_file_ends_with_close_in_batch() {
    let (mut world, mut hers, there) = ahead();
    let id = hers.number();
    let (files, _) = world.counted();
    assert_eq!(hers.send_batch(&mut world, &[held(there, "a", id)]).2, [id]);
    hers.send_all(&mut world, &[removed(there, "a", id)]);
    assert!(world.is_stored(id) && is_held(&world, id));
    // An earlier refused change keeps it open.
    let refused = removed(there, "a", id);
    assert_eq!(hers.send_batch(&mut world, &[refused, NameChange::Close(id)]).0, 0);
    assert!(is_held(&world, id));
    hers.send_all(&mut world, &[NameChange::Close(id)]);
    assert!(!world.is_stored(id) && !is_held(&world, id));
    world.now += crate::open_files::CLIENT_TIMEOUT_MS + 1;
    world.reap_all();
    assert_eq!(world.counted(), (files, 0));
}

#[test]
fn repeated_close_keeps_later_opens() {
    let (mut world, mut hers, there) = ahead();
    let (access, method) = (Access::Update, Method::AllData);
    let his = world.file(BOB, "his");
    world.register_caching(BOB, HIS);
    world.opened(BOB, Request::OpenNode { node: his, access, method, client_id: HIS, reclaim: false });
    let id = hers.number();
    assert_eq!(hers.send_batch(&mut world, &[held(there, "a", id)]).2, [id]);
    let out = world.mds.lease_count();
    let nothing = [his.inode, there.inode, InodeId(1), InodeId(u64::MAX)];
    hers.send_all(&mut world, &nothing.map(NameChange::Close));
    assert_eq!(world.mds.lease_count(), out);
    assert!(world.mds.open_files.is_open_by(&user("bob"), HIS, his.inode));
    let removal = [NameChange::Close(id)];
    hers.send_all(&mut world, &removal);
    assert_eq!(world.mds.lease_count(), out - 1);
    let node = world.node(ALICE, id);
    world.opened(ALICE, Request::OpenNode { node, access, method, client_id: HERS, reclaim: false });
    assert_eq!(hers.resend_batch(&mut world, &removal), (1, None, vec![]));
    assert!(is_held(&world, id));
    assert_eq!(world.mds.lease_count(), out);
    // The delegation is still valid, and no other client waits.
    assert!(is_busy(&world.ask(BOB, Request::Stat { path: path("/d/a") })));
}
