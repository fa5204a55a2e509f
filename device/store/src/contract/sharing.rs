//! Contract of blocks that several objects share.

use sealstone_osd::ObjectType;

use super::{CAPACITY, content, made, pattern, user};
use crate::store::push_extent;
use crate::{
    AttributeId, BLOCK, ExtentKind, MAP_PIECES_MAX, ObjectComparison, ObjectExtent, ObjectStore, PIECE,
    StoreError,
};

/// Returns how many bytes the object has alone and how many it shares, by its map.
fn own_and_shared<S: ObjectStore>(store: &S, object: u64) -> (u64, u64) {
    let (mut own, mut shared) = (0, 0);
    for extent in store.map(user(object), 0, usize::MAX).expect("map") {
        match extent.kind {
            ExtentKind::Data { shared: true } => shared += extent.length,
            ExtentKind::Data { shared: false } => own += extent.length,
            ExtentKind::Hole => {}
        }
    }
    (own, shared)
}

pub(super) fn shared_bytes_are_taken_once_and_parted_by_writing<S: ObjectStore>(store: &S) {
    let source = made(store);
    let copy = user(0x1_0002);
    store.create(copy, ObjectType::User).expect("create");
    let data = pattern(1, 20 * BLOCK as usize);
    store.write(source, 0, &data).expect("write");
    store.resize(source, 30 * BLOCK).expect("extend with a hole");
    store.set_attribute(source, AttributeId { page: 1, number: 1 }, b"stays").expect("set");
    store.share(source, copy).expect("share");
    assert_eq!(content(store, copy), content(store, source));
    let stat = store.stat(copy).expect("stat");
    assert_eq!((stat.length, stat.used_bytes), (30 * BLOCK, 20 * BLOCK));
    assert_eq!(store.space().used, 20 * BLOCK, "counted once");
    assert!(store.attributes(copy, None).expect("attributes").is_empty(), "bytes only");
    assert_eq!(own_and_shared(store, 0x1_0002), (0, 20 * BLOCK));
    // Once in the commit group that wrote the blocks, and once after it.
    for round in 0..2_u64 {
        let at = round * 5 * BLOCK + 100;
        store.write(copy, at, &[7; 50]).expect("write to the copy");
        assert_eq!(content(store, source)[..20 * BLOCK as usize], data, "round {round}");
        assert_eq!(content(store, copy)[at as usize..][..50], [7; 50], "round {round}");
        assert_eq!(store.space().used, (21 + round) * BLOCK);
        assert_eq!(own_and_shared(store, 0x1_0002), ((1 + round) * BLOCK, (19 - round) * BLOCK));
        assert_eq!(own_and_shared(store, 0x1_0001), ((1 + round) * BLOCK, (19 - round) * BLOCK));
        store.flush().expect("flush");
    }
    store.write(source, 10 * BLOCK, &pattern(2, BLOCK as usize)).expect("write to the source");
    assert_eq!(content(store, copy)[10 * BLOCK as usize..][..100], data[10 * BLOCK as usize..][..100]);
    // All other operations that change a part of the shared data.
    let before = content(store, source);
    store.clear(copy, 11 * BLOCK + 1, 10).expect("clear");
    store.clear(copy, 12 * BLOCK, BLOCK).expect("clear a block");
    store.punch(copy, 13 * BLOCK, BLOCK).expect("punch a block");
    store.punch(copy, 3, 10).expect("punch");
    store.resize(copy, 14 * BLOCK + 9).expect("cut");
    assert_eq!(content(store, source), before);
}

pub(super) fn a_share_replaces_what_was_there<S: ObjectStore>(store: &S) {
    let source = made(store);
    let target = user(0x1_0002);
    store.create(target, ObjectType::User).expect("create");
    store.write(target, 0, &pattern(1, 300 * BLOCK as usize)).expect("write");
    store.write(source, 2 * BLOCK, &pattern(2, BLOCK as usize)).expect("write");
    store.flush().expect("flush");
    store.share(source, source).expect("with itself");
    assert_eq!(own_and_shared(store, 0x1_0001), (BLOCK, 0));
    for round in 0..3 {
        store.share(source, target).expect("share, and again");
        assert_eq!(content(store, target), content(store, source), "round {round}");
        assert_eq!(store.space().used, BLOCK, "round {round}");
        assert_eq!(own_and_shared(store, 0x1_0002), (0, BLOCK));
        store.flush().expect("flush");
    }
    let map = store.map(target, 0, usize::MAX).expect("map");
    let (hole, data) = (ExtentKind::Hole, ExtentKind::Data { shared: true });
    let extent = |offset, length, kind| ObjectExtent { offset, length, kind };
    assert_eq!(map, [extent(0, 2 * BLOCK, hole), extent(2 * BLOCK, BLOCK, data)]);
    assert_eq!(store.map(target, 0, 1).expect("map"), map[..1]);
    assert_eq!(store.map(target, 2 * BLOCK + 5, 9).expect("map"), [extent(2 * BLOCK + 5, BLOCK - 5, data)]);
    assert_eq!(store.map(target, 3 * BLOCK, 9).expect("map"), []);
    // An empty object can be shared, too.
    let empty = user(0x1_0003);
    store.create(empty, ObjectType::User).expect("create");
    store.share(empty, target).expect("share nothing");
    assert!(content(store, target).is_empty());
    assert_eq!(own_and_shared(store, 0x1_0001), (BLOCK, 0), "alone again");
}

pub(super) fn map_of_many_pieces_is_returned_in_parts<S: ObjectStore>(store: &S) {
    let id = made(store);
    let pieces = MAP_PIECES_MAX as u64;
    let (hole, data) = (ExtentKind::Hole, ExtentKind::Data { shared: false });
    for piece in 0..pieces + 2 {
        // A distant extent costs no more than a near one.
        let at = if piece < pieces { piece } else { piece + 5000 };
        store.write(id, at * PIECE, &[7; BLOCK as usize]).expect("write");
    }
    let length = store.stat(id).expect("stat").length;
    let (mut at, mut parts) = (0, Vec::new());
    let mut all: Vec<ObjectExtent> = Vec::new();
    loop {
        let part = store.map(id, at, usize::MAX).expect("map");
        let Some(last) = part.last() else { break };
        at = last.offset + last.length;
        parts.push(at);
        part.iter().for_each(|one| push_extent(&mut all, one.offset, one.offset + one.length, one.kind));
    }
    assert_eq!(parts, [pieces * PIECE, length], "to the end of the last piece, then to the end");
    let extent = |offset, length, kind| ObjectExtent { offset, length, kind };
    assert_eq!(all.len() as u64, 2 * (pieces + 2) - 1);
    assert_eq!(all[1], extent(BLOCK, PIECE - BLOCK, hole));
    let far = (pieces + 5000) * PIECE;
    let before = (pieces - 1) * PIECE + BLOCK;
    assert_eq!(all[2 * pieces as usize - 1], extent(before, far - before, hole));
    assert_eq!(all[2 * pieces as usize], extent(far, BLOCK, data));
    // Data before the offset is not counted.
    let from = PIECE / 2;
    let end = store.map(id, from, usize::MAX).expect("map").last().map(|last| last.offset + last.length);
    assert_eq!(end, Some((pieces + 5001) * PIECE));
}

pub(super) fn a_comparison_tells_what_is_not_shared<S: ObjectStore>(store: &S) {
    let one = made(store);
    let other = user(0x1_0002);
    store.create(other, ObjectType::User).expect("create");
    store.write(one, 0, &pattern(1, 300 * BLOCK as usize)).expect("write");
    store.share(one, other).expect("share");
    let compare = |offset, max| store.compare(one, other, offset, max).expect("compare").extents;
    assert_eq!(compare(0, 9), []);
    store.write(one, 5 * BLOCK + 7, b"x").expect("write");
    store.write(other, 6 * BLOCK, b"x").expect("write to the other");
    store.clear(one, 280 * BLOCK, BLOCK).expect("clear");
    store.write(one, 300 * BLOCK, b"longer").expect("extend");
    store.resize(one, 310 * BLOCK).expect("extend with a hole");
    let extent = |offset, length, kind| ObjectExtent { offset, length, kind };
    let (hole, own) = (ExtentKind::Hole, ExtentKind::Data { shared: false });
    let expected = [
        extent(5 * BLOCK, 2 * BLOCK, own),
        extent(280 * BLOCK, BLOCK, hole),
        extent(300 * BLOCK, BLOCK, own),
        extent(301 * BLOCK, 9 * BLOCK, hole),
    ];
    assert_eq!(compare(0, 9), expected);
    assert_eq!(compare(0, 2), expected[..2]);
    assert_eq!(compare(6 * BLOCK + 1, 1), [extent(6 * BLOCK + 1, BLOCK - 1, own)]);
    assert_eq!(compare(302 * BLOCK, 9), [extent(302 * BLOCK, 8 * BLOCK, hole)]);
    assert_eq!(compare(310 * BLOCK, 9), []);
    let back = store.compare(other, one, 290 * BLOCK, 9).expect("compare").extents;
    assert_eq!(back, [extent(300 * BLOCK, 10 * BLOCK, hole)], "beyond its own end there is a hole");
    let next = |offset, max| store.compare(one, other, offset, max).expect("compare").next;
    assert_eq!([next(0, 2), next(0, 4), next(0, 0)], [Some(281 * BLOCK), None, Some(0)]);
}

pub(super) fn comparison_of_many_pieces_is_returned_in_parts<S: ObjectStore>(store: &S) {
    let one = made(store);
    let other = user(0x1_0002);
    store.create(other, ObjectType::User).expect("create");
    let pieces = MAP_PIECES_MAX as u64;
    for piece in 0..pieces + 3 {
        store.write(one, piece * PIECE, &[7; BLOCK as usize]).expect("write");
    }
    store.share(one, other).expect("share");
    store.write(one, (pieces + 1) * PIECE, b"x").expect("write");
    let first = store.compare(one, other, 0, 9).expect("compare");
    assert_eq!(first, ObjectComparison { extents: Vec::new(), next: Some(pieces * PIECE) });
    let rest = store.compare(one, other, pieces * PIECE, 9).expect("compare");
    let kind = ExtentKind::Data { shared: false };
    let changed = ObjectExtent { offset: (pieces + 1) * PIECE, length: BLOCK, kind };
    assert_eq!(rest, ObjectComparison { extents: vec![changed], next: None });
    // An empty object: compared with it, the other object differs everywhere.
    let empty = user(0x1_0003);
    store.create(empty, ObjectType::User).expect("create");
    let back = store.compare(empty, other, 0, 9).expect("compare");
    let hole = |offset, length| ObjectExtent { offset, length, kind: ExtentKind::Hole };
    assert_eq!(back, ObjectComparison { extents: vec![hole(0, pieces * PIECE)], next: Some(pieces * PIECE) });
}

pub(super) fn the_last_to_let_go_frees<S: ObjectStore>(store: &S) {
    let first = made(store);
    let data = pattern(3, 9 * BLOCK as usize);
    store.write(first, 0, &data).expect("write");
    for object in 0x1_0002..0x1_0006 {
        store.create(user(object), ObjectType::User).expect("create");
        store.share(user(object - 1), user(object)).expect("a copy of a copy");
    }
    store.flush().expect("flush");
    assert_eq!(store.space().used, 9 * BLOCK);
    for (object, flush) in [(0x1_0003, true), (0x1_0001, false), (0x1_0005, true), (0x1_0002, false)] {
        store.remove(user(object)).expect("remove");
        if flush {
            store.flush().expect("flush");
        }
        assert_eq!(store.space().used, 9 * BLOCK, "others have it");
        assert_eq!(content(store, user(0x1_0004)), data);
    }
    assert_eq!(own_and_shared(store, 0x1_0004), (9 * BLOCK, 0));
    store.write(user(0x1_0004), 0, &data).expect("overwrite");
    assert_eq!(store.space().used, 9 * BLOCK);
    store.remove(user(0x1_0004)).expect("remove the last");
    assert_eq!(store.space().used, 0);
}

pub(super) fn a_full_store_refuses_to_part_what_is_shared<S: ObjectStore>(store: &S) {
    let source = made(store);
    let copy = user(0x1_0002);
    store.create(copy, ObjectType::User).expect("create");
    let half = (CAPACITY / 2) as usize;
    store.write(source, 0, &pattern(1, half)).expect("write");
    store.share(source, copy).expect("share");
    store.write(copy, 0, &pattern(2, half - BLOCK as usize)).expect("part all but one block");
    let filler = user(0x1_0003);
    store.create(filler, ObjectType::User).expect("create");
    store.write(filler, 0, &pattern(3, BLOCK as usize)).expect("fill");
    assert_eq!(store.space().used, CAPACITY);
    let last = half as u64 - BLOCK;
    for refused in [store.write(copy, last, b"x"), store.clear(copy, last, 1), store.resize(copy, last + 1)] {
        match refused {
            Err(StoreError::NoSpace) => {}
            other => panic!("expected NoSpace, got {other:?}"),
        }
    }
    store.share(source, filler).expect("sharing takes no space");
    assert_eq!(store.space().used, CAPACITY - BLOCK, "the filler's block came free");
    store.write(copy, last, b"x").expect("now there is room");
    assert_eq!(content(store, source), pattern(1, half));
}
