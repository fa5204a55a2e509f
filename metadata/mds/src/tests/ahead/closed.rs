//! Files that are let go of among the changes.

use super::*;

fn held(there: DirLeaseId, at: &str, id: InodeId) -> NameChange {
    NameChange::Create(CreateOp { held: true, ..made(there, at, id) })
}

fn is_held(world: &World, id: InodeId) -> bool {
    world.mds.holds.is_held(id)
}

#[test]
fn what_is_made_and_closed_in_one_request_is_not_held_however_often_it_is_told() {
    let (mut world, mut hers, there) = ahead();
    let (files, _) = world.counted();
    let (a, b, c) = (hers.number(), hers.number(), hers.number());
    let out = world.mds.leases_out();
    let changes = [
        held(there, "a", a),
        NameChange::Close(a),
        held(there, "b", b),
        removed(there, "b", b),
        NameChange::Close(b),
        held(there, "c", c),
    ];
    let told = hers.tells(&mut world, &changes);
    assert_eq!(told, (6, None, vec![c]));
    for _ in 0..2 {
        assert_eq!((is_held(&world, a), is_held(&world, b), is_held(&world, c)), (false, false, true));
        assert_eq!(world.mds.leases_out(), out + 1);
        assert!(world.is_stored(a) && !world.is_stored(b));
        assert_eq!(world.counted(), (files + 2, 0));
        assert_eq!(hers.tells_again(&mut world, &changes), told);
    }
}

#[test]
fn what_lost_its_name_while_it_was_held_ends_when_it_is_let_go_of() {
    let (mut world, mut hers, there) = ahead();
    let id = hers.number();
    let (files, _) = world.counted();
    assert_eq!(hers.tells(&mut world, &[held(there, "a", id)]).2, [id]);
    hers.told(&mut world, &[removed(there, "a", id)]);
    assert!(world.is_stored(id) && is_held(&world, id));
    // What is refused before it has it stay.
    let refused = removed(there, "a", id);
    assert_eq!(hers.tells(&mut world, &[refused, NameChange::Close(id)]).0, 0);
    assert!(is_held(&world, id));
    hers.told(&mut world, &[NameChange::Close(id)]);
    assert!(!world.is_stored(id) && !is_held(&world, id));
    world.now += crate::holds::HOLD_MS + 1;
    world.reap_all();
    assert_eq!(world.counted(), (files, 0));
}

#[test]
fn nobody_lets_go_of_what_is_anothers_or_of_what_he_opened_since() {
    let (mut world, mut hers, there) = ahead();
    let (access, method) = (Access::Update, Method::AllData);
    let his = world.file(BOB, "his");
    world.lead(BOB, HIS);
    world.opened(BOB, Request::OpenNode { node: his, access, method, client_id: HIS, reclaim: false });
    let id = hers.number();
    assert_eq!(hers.tells(&mut world, &[held(there, "a", id)]).2, [id]);
    let out = world.mds.leases_out();
    let nothing = [his.inode, there.inode, InodeId(1), InodeId(u64::MAX)];
    hers.told(&mut world, &nothing.map(NameChange::Close));
    assert_eq!(world.mds.leases_out(), out);
    assert!(world.mds.holds.is_held_by(&user("bob"), HIS, his.inode));
    let gone = [NameChange::Close(id)];
    hers.told(&mut world, &gone);
    assert_eq!(world.mds.leases_out(), out - 1);
    let node = world.node(ALICE, id);
    world.opened(ALICE, Request::OpenNode { node, access, method, client_id: HERS, reclaim: false });
    assert_eq!(hers.tells_again(&mut world, &gone), (1, None, vec![]));
    assert!(is_held(&world, id));
    assert_eq!(world.mds.leases_out(), out);
    // Still ahead, and in nobody's place.
    assert!(is_busy(&world.ask(BOB, Request::Stat { path: path("/d/a") })));
}
