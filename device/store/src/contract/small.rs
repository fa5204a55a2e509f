//! Contract of objects of a few bytes, which a backend may store in another way than long ones.

use sealstone_osd::ObjectType;

use super::{CAPACITY, content, made, pattern, user};
use crate::{BLOCK, ExtentKind, ObjectStore, StoreError};

/// Longer than any object that a backend treats as small.
const LONG: usize = 3000;

pub(super) fn small_objects_grow_and_shrink<S: ObjectStore>(store: &S) {
    let id = made(store);
    let mut model: Vec<u8> = Vec::new();
    let check = |model: &[u8], blocks: u64, step: &str| {
        assert_eq!(content(store, id), model, "{step}");
        let stat = store.stat(id).expect("stat");
        assert_eq!((stat.length, stat.used_bytes), (model.len() as u64, blocks * BLOCK), "{step}");
        assert_eq!(store.space().used, blocks * BLOCK, "{step}");
        let map = store.map(id, 0, 9).expect("map");
        let data = map.iter().filter(|part| part.kind != ExtentKind::Hole);
        assert_eq!(data.count() as u64, blocks, "{step}: bytes are no hole");
    };
    for flush in [false, true] {
        let settle = || {
            if flush {
                store.flush().expect("flush")
            }
        };
        let write = |model: &mut Vec<u8>, at: usize, data: &[u8]| {
            store.write(id, at as u64, data).expect("write");
            model.resize(model.len().max(at + data.len()), 0);
            model[at..at + data.len()].copy_from_slice(data);
            settle();
        };
        write(&mut model, 0, &pattern(1, 500));
        check(&model, 1, "made");
        write(&mut model, 100, &pattern(2, 50));
        check(&model, 1, "overwritten in part");
        for step in 0..12 {
            let end = model.len();
            write(&mut model, end, &pattern(step, 130));
            check(&model, 1, "appended to, until it is not small any more");
        }
        let resize = |model: &mut Vec<u8>, length: usize| {
            store.resize(id, length as u64).expect("resize");
            model.resize(length, 0);
            settle();
        };
        resize(&mut model, 700);
        check(&model, 1, "cut");
        resize(&mut model, LONG);
        check(&model, 1, "extended by zeros");
        resize(&mut model, 300);
        write(&mut model, 1000, b"behind a gap");
        check(&model, 1, "zeros where it was cut");
        store.punch(id, 200, 90).expect("punch");
        drop(model.drain(200..290));
        settle();
        check(&model, 1, "a piece taken out");
        store.clear(id, 10, 33).expect("clear");
        model[10..43].fill(0);
        settle();
        check(&model, 1, "zeros");
        resize(&mut model, 20_000);
        check(&model, 1, "a hole behind it");
        write(&mut model, 19_000, b"far behind");
        check(&model, 2, "bytes behind the hole");
        store.punch(id, 500, 19_000).expect("punch");
        drop(model.drain(500..19_500));
        settle();
        check(&model, 1, "short again");
        store.punch(id, 0, 400).expect("punch");
        drop(model.drain(..400));
        settle();
        check(&model, 1, "its head taken off");
        write(&mut model, 0, &pattern(7, LONG));
        check(&model, 1, "written as a whole");
        resize(&mut model, 40);
        resize(&mut model, 0);
        check(&model, 0, "empty");
        write(&mut model, 0, &[0; 9]);
        check(&model, 1, "zeros are bytes");
        store.clear(id, 0, BLOCK).expect("clear");
        model.clear();
        model.resize(BLOCK as usize, 0);
        check(&model, 0, "a hole");
        resize(&mut model, 0);
    }
}

pub(super) fn small_objects_share_and_part<S: ObjectStore>(store: &S) {
    let source = made(store);
    for object in 0x1_0002..0x1_0005 {
        store.create(user(object), ObjectType::User).expect("create");
    }
    let (copy, other, long) = (user(0x1_0002), user(0x1_0003), user(0x1_0004));
    store.write(long, 0, &pattern(3, LONG)).expect("write");
    for round in 0..2_u64 {
        let data = pattern(round, 600);
        store.write(source, 0, &data).expect("write");
        if round > 0 {
            store.flush().expect("flush");
        }
        store.share(source, copy).expect("share");
        store.share(copy, other).expect("share a copy");
        assert_eq!(store.space().used, 2 * BLOCK, "counted once");
        assert_eq!(store.compare(source, other, 0, 9).expect("compare").extents, []);
        let map = store.map(other, 0, 9).expect("map");
        assert_eq!(map[0].kind, ExtentKind::Data { shared: true });
        store.write(copy, 50, b"parted").expect("write");
        assert_eq!(store.space().used, 3 * BLOCK);
        for id in [source, other] {
            assert_eq!(content(store, id), data, "round {round}");
        }
        assert_eq!(&content(store, copy)[50..56], b"parted");
        store.write(source, 0, &[9; LONG]).expect("grow out of it");
        assert_eq!(content(store, other), data, "round {round}");
        assert_eq!(store.space().used, 4 * BLOCK);
        assert_eq!(store.map(other, 0, 9).expect("map")[0].kind, ExtentKind::Data { shared: false });
        store.share(long, other).expect("share a long one instead");
        assert_eq!(store.space().used, 3 * BLOCK);
        store.resize(other, 100).expect("cut");
        assert_eq!(content(store, other), pattern(3, LONG)[..100]);
        assert_eq!(content(store, long), pattern(3, LONG));
        for id in [source, copy, other] {
            store.resize(id, 0).expect("empty");
        }
        assert_eq!(store.space().used, BLOCK);
    }
}

pub(super) fn a_full_store_lets_small_objects_grow_within_a_block<S: ObjectStore>(store: &S) {
    let count = CAPACITY / BLOCK;
    let id = |object| user(0x1_0001 + object);
    for object in 0..=count {
        store.create(id(object), ObjectType::User).expect("create");
    }
    for object in 0..count {
        store.write(id(object), 0, &pattern(object, 100)).expect("a block of the capacity each");
    }
    assert_eq!(store.space().used, CAPACITY);
    match store.write(id(count), 0, b"x") {
        Err(StoreError::NoSpace) => {}
        other => panic!("expected NoSpace, got {other:?}"),
    }
    for object in (0..count).step_by(7) {
        store.write(id(object), 90, &pattern(object, LONG)).expect("grow out of the index");
        store.write(id(object + 1), 50, b"more").expect("overwrite");
    }
    for object in (0..count).step_by(14) {
        store.resize(id(object), 95).expect("shrink");
        assert_eq!(content(store, id(object))[..90], pattern(object, 100)[..90]);
        assert_eq!(content(store, id(object))[90..], pattern(object, LONG)[..5]);
    }
    assert_eq!(store.space().used, CAPACITY);
    store.remove(id(3)).expect("remove");
    store.write(id(count), 0, b"x").expect("now there is room");
}
