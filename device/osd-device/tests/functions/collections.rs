//! Ranges that a function clears, and collections that it creates, fills and removes.

use super::*;
use sealstone_osd_device::GrantError::{AccessDenied, Invalid, NotEmpty, NotFound, TooLarge};

/// Entry that creates collections whose numbers the device chooses.
fn maker(rights: Permissions) -> FunctionObject {
    entry(ObjectId::of_partition(PID), ObjectType::Collection, Permissions::CREATE | rights)
}

/// Creates the collection 11000h.
fn create_collection(stage: &Stage) -> ObjectId {
    let object = user(0x11000);
    let create = Command::CreateCollection(Target { object });
    stage.bench.run(create, ListPair::default(), &[]).good();
    object
}

/// Sets the policy access tag of the object with data.
fn tag(stage: &Stage, tag: u8) {
    stage.set(user(DATA), &[(5, 0x4000_0001, &[0, 0, 0, tag])]);
}

/// Runs a function with these capabilities, and returns its handles, which outlive it.
fn keep_handles(
    stage: &Stage,
    objects: &[FunctionObject],
    capabilities: &[Capability],
) -> Vec<Arc<dyn GrantedObject>> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    stage.function(move |call| {
        keep.lock().clone_from(&call.objects);
        Vec::new()
    });
    stage.run_with(request(objects.to_vec()), capabilities).good();
    std::mem::take(&mut *kept.lock())
}

#[test]
fn clear_zeroes_a_range_within_quota() {
    let stage = Stage::new();
    stage.set(user(DATA), &[(2, 1, &20_u64.to_be_bytes())]);
    let objects = [
        entry(user(DATA), ObjectType::User, Permissions::READ | Permissions::WRITE),
        entry(user(DATA), ObjectType::User, all_rights().without(Permissions::WRITE)),
    ];
    results(&stage, &objects, |objects| {
        assert_eq!((objects[0].clear(2, 3), objects[0].clear(9, 3)), (Ok(0), Ok(0)));
        assert_eq!(objects[0].length(), Ok(12), "extended");
        assert_eq!((objects[0].clear(100, 0), objects[0].length()), (Ok(0), Ok(12)), "nothing");
        assert_eq!(objects[0].clear(10, 11), Err(TooLarge), "the quota of the length");
        assert_eq!(objects[0].clear(u64::MAX, 1), Err(Invalid));
        assert_eq!(objects[1].clear(0, 1), Err(AccessDenied));
    });
    assert_eq!(stage.read(user(DATA), 12), b"01\0\0\x005678\0\0\0");
}

#[test]
fn clear_needs_its_range_and_a_valid_capability() {
    let stage = Stage::new();
    let one = entry(user(DATA), ObjectType::User, Permissions::WRITE);
    let range = Range { start: 2, length: 4 };
    let scope = Scope { policy_access_tag: 3, ..Scope::default() };
    let descriptor = Descriptor::User { scope, allowed: user(DATA), range };
    let capability = Capability { descriptor, ..stage.granting(&one) };
    tag(&stage, 3);
    let handles = keep_handles(&stage, &[one], &[capability]);
    let handle = &handles[0];
    assert_eq!((handle.clear(2, 4), handle.clear(1, 2)), (Ok(0), Err(AccessDenied)));
    assert_eq!(handle.clear(5, 2), Err(AccessDenied));
    tag(&stage, 9);
    assert_eq!(handle.clear(2, 4), Err(AccessDenied), "revoked");
    assert_eq!(stage.read(user(DATA), 10), b"01\0\0\0\x006789");
}

#[test]
fn function_creates_fills_and_removes_collections() {
    let stage = Stage::new();
    let rights = all_rights().without(Permissions::CREATE);
    let objects = [
        maker(rights),
        entry(user(DATA), ObjectType::User, Permissions::SET_ATTR | Permissions::GET_ATTR),
        entry(user(CODE), ObjectType::User, Permissions::SET_ATTR | Permissions::GET_ATTR),
    ];
    let (made, removed) = results(&stage, &objects, |objects| {
        let [maker, data, code] = objects else { panic!("three objects") };
        assert_eq!((maker.create().err(), maker.list(0, 1)), (Some(Invalid), Err(Invalid)));
        assert_eq!(data.create_collection().err(), Some(Invalid));
        let made = maker.create_collection().unwrap();
        assert_eq!(
            (made.kind(), made.rights().contains(Permissions::CREATE)),
            (ObjectType::Collection, false)
        );
        assert_eq!((made.remove(), made.create_collection().err()), (Err(Invalid), Some(Invalid)));
        assert_eq!(made.is_member(&**data), Ok(false));
        assert_eq!((made.add_member(&**data), made.add_member(&**data)), (Ok(()), Ok(())));
        made.add_member(&**code).unwrap();
        assert_eq!((made.is_member(&**data), made.list(0, 9).unwrap().numbers), (Ok(true), vec![CODE, DATA]));
        made.remove_member(&**code).unwrap();
        assert_eq!(made.remove_member(&**code), Err(NotFound));
        assert_eq!(data.add_member(&**code), Err(Invalid), "no collection");
        assert_eq!(made.add_member(&*made), Err(Invalid), "no user object");
        // An attribute of the collection: its user name.
        made.set_attribute(AttributeId::new(0x6000_0001, 9), b"errors").unwrap();
        assert_eq!(made.attribute(AttributeId::new(0x6000_0001, 9)), Ok(Some(b"errors".to_vec())));
        made.flush().unwrap();
        let removed = maker.create_collection().unwrap();
        removed.add_member(&**data).unwrap();
        assert_eq!(removed.remove_collection(false), Err(NotEmpty));
        removed.remove_collection(true).unwrap();
        assert_eq!(removed.remove_collection(true), Err(NotFound));
        assert_eq!(removed.add_member(&**data), Err(NotFound));
        (made.object(), removed.object())
    });
    assert_ne!(made, removed);
    // The membership is an attribute of the member, as after SET ATTRIBUTES.
    assert_eq!(stage.get(user(DATA), 4, 1), made.object.to_be_bytes());
    let function = [user(CODE).partition.to_be_bytes(), CODE.to_be_bytes()].concat();
    assert_eq!(stage.bench.store.attribute(made, AttributeId::new(0x6000_F008, 1)).unwrap(), Some(function));
    let list = Command::RemoveCollection(RemoveCollection { object: made, force: false });
    assert_ne!(stage.bench.run(list, ListPair::default(), &[]).status, Status::Good, "it has a member");
}

#[test]
fn each_collection_right_is_needed() {
    let stage = Stage::new();
    let collection = create_collection(&stage);
    let of_object = entry(user(DATA), ObjectType::User, Permissions::SET_ATTR | Permissions::GET_ATTR);
    let run = |of_collection: Permissions, of_member: Permissions| {
        let objects = [
            entry(collection, ObjectType::Collection, of_collection),
            FunctionObject { rights: of_member, ..of_object },
        ];
        results(&stage, &objects, |objects| {
            let (collection, data) = (&objects[0], &*objects[1]);
            [
                collection.add_member(data),
                collection.is_member(data).map(drop),
                collection.remove_member(data),
                collection.remove_collection(false),
                collection.set_attribute(AttributeId::new(0x6000_0001, 9), b"name"),
            ]
        })
    };
    let both = of_object.rights;
    let denied = Err(AccessDenied);
    let all = Permissions::READ | Permissions::SET_ATTR;
    assert_eq!(run(Permissions::READ, both)[0], denied, "SET_ATTR of the collection");
    assert_eq!(run(all, Permissions::GET_ATTR)[0], denied, "SET_ATTR of the object");
    assert_eq!(run(all, both), [Ok(()), Ok(()), Ok(()), denied, Ok(())], "REMOVE");
    assert_eq!(run(Permissions::SET_ATTR, both)[1], denied, "READ of the collection");
    assert_eq!(run(all, Permissions::SET_ATTR)[1..3], [denied, Ok(())], "GET_ATTR of the object");
    assert_eq!(run(Permissions::REMOVE, both), [denied, denied, denied, Ok(()), denied]);
    assert_eq!(run(all, both)[0], Err(NotFound), "it was removed");
    // Without a capability of CREATE no handle creates a collection.
    let capability =
        Capability { permissions: Permissions::READ, ..stage.granting(&maker(Permissions::READ)) };
    let refused = stage.run_with(request(vec![maker(Permissions::READ)]), &[capability]);
    assert_eq!(refused.sense(), (5, 0x2400));
}

#[test]
fn entry_with_number_creates_that_collection() {
    let stage = Stage::new();
    let object = user(0x12345);
    let one = entry(object, ObjectType::Collection, Permissions::CREATE | Permissions::READ);
    let done = results(&stage, &[one], |objects| {
        let made = objects[0].create_collection().unwrap();
        (made.object(), made.list(0, 9).unwrap().numbers, objects[0].create_collection().is_err())
    });
    assert_eq!(done, (object, Vec::new(), true));
}

#[test]
fn revoked_capability_ends_changes_of_collection() {
    let stage = Stage::new();
    let collection = create_collection(&stage);
    let objects = [
        entry(collection, ObjectType::Collection, all_rights().without(Permissions::CREATE)),
        entry(user(DATA), ObjectType::User, Permissions::SET_ATTR | Permissions::GET_ATTR),
        maker(Permissions::READ),
    ];
    tag(&stage, 3);
    let mut capabilities = objects.map(|object| stage.granting(&object));
    let scope = Scope { policy_access_tag: 3, ..Scope::default() };
    capabilities[1].descriptor = Descriptor::User { scope, allowed: user(DATA), range: Range::ALL };
    let handles = keep_handles(&stage, &objects, &capabilities);
    let [handle, data, maker] = &handles[..] else { panic!("three handles") };
    handle.add_member(&**data).unwrap();
    // The policy access tag of the object: only operations on it are refused.
    tag(&stage, 9);
    assert_eq!(
        (handle.remove_member(&**data), handle.is_member(&**data)),
        (Err(AccessDenied), Err(AccessDenied))
    );
    assert_eq!(handle.list(0, 9).unwrap().numbers, [DATA]);
    maker.create_collection().unwrap();
    stage.bench.fake.ms.store(START_MS + 3_600_001, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(handle.remove_collection(true), Err(AccessDenied), "expired");
    assert_eq!(maker.create_collection().err(), Some(AccessDenied));
    assert_eq!(stage.bench.store.members(collection, 0, 9).unwrap().len(), 1);
}

#[test]
fn full_partition_refuses_collections() {
    let stage = Stage::new();
    // Two objects exist; the quota is three.
    stage.set(ObjectId::of_partition(PID), &[(0x3000_0002, 0x1_0002, &3_u64.to_be_bytes())]);
    let done = results(&stage, &[maker(Permissions::READ)], |objects| {
        [objects[0].create_collection().err(), objects[0].create_collection().err()]
    });
    assert_eq!(done, [None, Some(GrantError::NoSpace)]);
}
