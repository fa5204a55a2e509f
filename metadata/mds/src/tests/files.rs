//! Files from create to removal, and the rights of their grants.

use sealstone_crypto::RustCrypto;
use sealstone_mds_protocol::{
    Access, CreatedFile, DeviceId, DevicePin, DeviceState, ErrorCode, Method, Name, NewDevice, ObjectRef,
    OpenHandle, PinKind, ProblemKind, Request, Response, Secret, Text, XattrMode, XattrName, XattrValue,
};
use sealstone_osd::{CapabilityBytes, Descriptor, Generation, ObjectType, Permissions, SecurityMethod};
use sealstone_seal::{AlgorithmSlots, Credential, Hash, InitialKey, KeyHierarchy};

use super::world::{ADMIN, ALICE, BOB, GIB, World, create, new_device, path};

#[test]
fn file_appears_complete_at_commit() {
    let mut world = World::with_devices(2);
    let file = world.create(ALICE, "/f", Some(10));
    assert_eq!(world.stat(ALICE, "/f"), Err(ErrorCode::NotFound));
    let stat = world.commit(ALICE, file.intent, 10).unwrap();
    assert_eq!((stat.inode, stat.size, stat.owner.as_str()), (file.inode, 10, "alice"));
    let mut seen = world.stat(BOB, "/f").unwrap();
    assert_ne!(seen.proof, stat.proof, "of each his own");
    seen.proof = stat.proof;
    assert_eq!(seen, stat);
    assert_eq!(world.commit(ALICE, file.intent, 10), Err(ErrorCode::Stale), "a create is committed once");
}

#[test]
fn replacing_is_atomic_and_frees_old_objects() {
    let mut world = World::with_devices(1);
    let old = world.put(ALICE, "/f", 10);
    let new = world.create(ALICE, "/f", Some(20));
    assert_eq!(world.stat(ALICE, "/f").unwrap().inode, old.inode);
    let stat = world.commit(ALICE, new.intent, 20).unwrap();
    assert_eq!((stat.inode, stat.version), (new.inode, 2));
    assert_eq!(world.reap_all(), [], "readers have their grace");
    world.now += world.mds.config.reap_grace_ms;
    assert_eq!(world.reap_all(), old.layout.objects());
    // It is removed a second time after the last grant that may create it has expired.
    world.now += world.mds.config.grant_lifetime_ms;
    assert_eq!(world.reap_all(), old.layout.objects());
    world.now += GIB;
    assert_eq!(world.reap_all(), []);
}

#[test]
fn replacing_keeps_attributes_of_target() {
    let mut world = World::with_devices(1);
    world.mkdir(ADMIN, "/d", 0o777);
    let set_mode = |world: &mut World, mode| {
        let set = world.ask(ALICE, Request::SetMode { path: path("/d/f"), mode });
        assert!(matches!(set, Response::Stat { .. }), "{set:?}");
    };
    let name = XattrName::new(*b"user.colour").unwrap();
    let colour = |world: &mut World, caller| {
        let node = world.stat(caller, "/d/f").unwrap().node();
        match world.ask(caller, Request::GetXattr { node, name: name.clone() }) {
            Response::Xattr { value } => Some(value.as_bytes().to_vec()),
            _ => None,
        }
    };
    world.put(ALICE, "/d/f", 10);
    let node = world.stat(ALICE, "/d/f").unwrap().node();
    let value = XattrValue::new(*b"blue").unwrap();
    let set = Request::SetXattr { node, name: name.clone(), value, mode: XattrMode::Set };
    assert_eq!(world.ask(ALICE, set), Response::Done {});
    // The creates here have mode 644; the result has the bits of both modes.
    for (mode, left) in [(0o600, 0o600), (0o755, 0o644), (0o4755, 0o644)] {
        set_mode(&mut world, mode);
        world.put(ALICE, "/d/f", 20);
        let stat = world.stat(ALICE, "/d/f").unwrap();
        assert_eq!((stat.mode, stat.owner.as_str(), stat.size), (left, "alice", 20), "{mode:o}");
        assert_eq!(colour(&mut world, ALICE).as_deref(), Some(&b"blue"[..]));
    }
    // A put with write permission changes the owner's file; a put without replaces the file.
    set_mode(&mut world, 0o666);
    world.put(BOB, "/d/f", 30);
    assert_eq!(world.stat(BOB, "/d/f").unwrap().owner.as_str(), "alice");
    set_mode(&mut world, 0o644);
    world.put(BOB, "/d/f", 40);
    assert_eq!(world.stat(BOB, "/d/f").unwrap().owner.as_str(), "bob");
    assert_eq!(colour(&mut world, BOB), None);
}

#[test]
fn abandoned_or_expired_create_leaves_nothing() {
    let mut world = World::with_devices(3);
    let given_up = world.create(ALICE, "/a", Some(10 << 20));
    let forgotten = world.create(ALICE, "/b", None);
    assert_eq!(world.ask(ALICE, Request::Abandon { intent: given_up.intent }), Response::Done {});
    assert_eq!(world.commit(ALICE, given_up.intent, 1), Err(ErrorCode::Stale));
    assert_eq!(world.reap_all(), sorted(&given_up));
    world.now = forgotten.expires_ms;
    assert_eq!(world.reap_all(), sorted(&given_up), "second removal");
    world.now += 1;
    world.session(ALICE, "alice", false);
    assert_eq!(world.commit(ALICE, forgotten.intent, 1), Err(ErrorCode::Stale));
    assert_eq!(world.reap_all(), sorted(&forgotten));
    assert_eq!(world.stat(ALICE, "/b"), Err(ErrorCode::NotFound));
}

fn sorted(file: &CreatedFile) -> Vec<ObjectRef> {
    let mut objects = file.layout.objects().to_vec();
    objects.sort_unstable();
    objects
}

#[test]
fn renewing_keeps_a_slow_create_alive() {
    let mut world = World::with_devices(1);
    let file = world.create(ALICE, "/slow", None);
    for _ in 0..5 {
        world.now += world.mds.config.intent_lifetime_ms / 2;
        let renewed = world.ask(
            ALICE,
            Request::RenewGrants { handle: OpenHandle::Intent(file.intent), method: Method::AllData },
        );
        assert!(matches!(renewed, Response::Grants { grants, .. } if grants.len() == file.grants.len()));
        world.reap_all();
    }
    world.commit(ALICE, file.intent, 1).unwrap();
}

#[test]
fn create_of_other_user_is_stale() {
    let mut world = World::with_devices(1);
    let file = world.create(ALICE, "/f", None);
    assert_eq!(world.commit(BOB, file.intent, 1), Err(ErrorCode::Stale));
    assert_eq!(world.refused(BOB, Request::Abandon { intent: file.intent }), ErrorCode::Stale);
    let renew = Request::RenewGrants { handle: OpenHandle::Intent(file.intent), method: Method::AllData };
    assert_eq!(world.refused(BOB, renew), ErrorCode::Stale);
}

#[test]
fn objects_and_inodes_are_never_numbered_twice() {
    let mut world = World::with_devices(3);
    let (mut objects, mut inodes) = (Vec::new(), Vec::new());
    for i in 0..40 {
        let file = world.create(ALICE, &format!("/f{i}"), Some(if i % 2 == 0 { 1 } else { 5 << 20 }));
        objects.extend(file.layout.objects().iter().map(|object| object.object.object));
        inodes.push(file.inode);
        if i % 3 == 0 {
            world.restart();
        }
    }
    for list in [&mut objects, &mut inodes.iter().map(|inode| inode.0).collect()] {
        let all = list.len();
        list.sort_unstable();
        list.dedup();
        assert_eq!(list.len(), all);
    }
}

fn parsed(grant: &sealstone_mds_protocol::Grant) -> sealstone_osd::Capability {
    CapabilityBytes::new(Generation::Osd2, grant.capability.as_slice()).unwrap().parse().unwrap()
}

#[test]
fn grants_have_exactly_the_requested_rights() {
    let mut world = World::with_devices(2);
    let file = world.create(ALICE, "/f", Some(5 << 20));
    world.commit(ALICE, file.intent, 5 << 20).unwrap();
    let read =
        world.open(BOB, Request::Open { path: path("/f"), access: Access::Read, method: Method::NoSec });
    let rights = [
        (
            &file.grants,
            Permissions::CREATE
                .union(Permissions::WRITE)
                .union(Permissions::GET_ATTR)
                .union(Permissions::OBJ_MGMT),
        ),
        (&read.grants, Permissions::READ),
    ];
    let mut discriminators = Vec::new();
    for (grants, permissions) in rights {
        assert_eq!(grants.len(), file.layout.width());
        for (grant, object) in grants.iter().zip(file.layout.objects()) {
            let capability = parsed(grant);
            assert_eq!(grant.object, *object);
            assert_eq!(capability.permissions, permissions);
            assert_eq!(capability.object_type, ObjectType::User);
            let Descriptor::User { allowed, scope, .. } = capability.descriptor else {
                panic!("user object")
            };
            assert_eq!((allowed, scope.policy_access_tag), (object.object, crate::INITIAL_TAG));
            assert_eq!(capability.expires_ms, world.now + 300_000);
            assert_eq!(capability.method as u8, grant.method.code());
            discriminators.push(capability.discriminator);
            // The same computation at a device, which shares only the initial key.
            let i = object.device.0 as u8 - 1;
            let initial = InitialKey::new(new_device(i).master_key.expose()).unwrap();
            let mut keys =
                KeyHierarchy::<RustCrypto>::factory(Hash::Sha256, &initial, new_device(i).system_id);
            keys.add_partition(sealstone_mds_protocol::FILE_PARTITION).unwrap();
            let credential = Credential::issue(&keys, &AlgorithmSlots::DEFAULT, &capability).unwrap();
            assert_eq!(credential.key.expose(), grant.key.expose());
        }
    }
    assert_eq!(parsed(&read.grants[0]).method, SecurityMethod::CmdRsp, "raised to the floor");
    assert_eq!(&parsed(&read.grants[0]).audit[..16], &BOB);
    discriminators.sort_unstable();
    discriminators.dedup();
    assert_eq!(discriminators.len(), file.grants.len() + read.grants.len(), "no two credentials share a key");
}

#[test]
fn access_rights_limit_read_write_replace() {
    let mut world = World::with_devices(1);
    world.mkdir(ALICE, "/private", 0o700);
    world.put(ALICE, "/private/f", 1);
    world.put(ALICE, "/public", 1);
    let open = |at: &str, access| Request::Open { path: path(at), access, method: Method::AllData };
    assert_eq!(world.stat(BOB, "/private/f"), Err(ErrorCode::Denied));
    assert_eq!(world.refused(BOB, open("/private/f", Access::Read)), ErrorCode::Denied);
    assert_eq!(world.refused(BOB, create("/private/g", None)), ErrorCode::Denied);
    let list = Request::ReadDir { path: path("/private"), after: None, limit: 9 };
    assert_eq!(world.refused(BOB, list), ErrorCode::Denied);
    world.open(BOB, open("/public", Access::Read));
    assert_eq!(world.refused(BOB, open("/public", Access::Update)), ErrorCode::Denied);
    // The root is sticky, so others cannot remove Alice's entries.
    assert_eq!(world.refused(BOB, create("/public", None)), ErrorCode::NotPermitted);
    assert_eq!(
        world.refused(BOB, Request::Remove { path: path("/public"), recursive: false }),
        ErrorCode::NotPermitted
    );
    let rename = Request::Rename { from: path("/public"), to: path("/mine"), replace: false };
    assert_eq!(world.refused(BOB, rename), ErrorCode::NotPermitted);
    assert_eq!(
        world.refused(BOB, Request::SetMode { path: path("/public"), mode: 0 }),
        ErrorCode::NotPermitted
    );
    assert!(world.stat(ADMIN, "/private/f").is_ok());
    // A revoked right takes effect immediately, for renewals too.
    let file = world.open(BOB, open("/public", Access::Read));
    world.ask(ALICE, Request::SetMode { path: path("/public"), mode: 0o600 });
    let handle = OpenHandle::File { node: file.stat.node(), access: Access::Read };
    assert_eq!(
        world.refused(BOB, Request::RenewGrants { handle, method: Method::AllData }),
        ErrorCode::Denied
    );
}

#[test]
fn handle_of_replaced_file_is_stale() {
    let mut world = World::with_devices(1);
    world.put(ALICE, "/f", 1);
    let old = world.stat(ALICE, "/f").unwrap();
    world.put(ALICE, "/f", 2);
    let handle = OpenHandle::File { node: old.node(), access: Access::Read };
    assert_eq!(
        world.refused(ALICE, Request::RenewGrants { handle, method: Method::AllData }),
        ErrorCode::Stale
    );
}

#[test]
fn commit_into_removed_directory_is_refused() {
    let mut world = World::with_devices(1);
    world.mkdir(ALICE, "/d", 0o755);
    let file = world.create(ALICE, "/d/f", None);
    world.ask(ALICE, Request::Rename { from: path("/d"), to: path("/e"), replace: false });
    world.commit(ALICE, file.intent, 1).unwrap();
    assert!(world.stat(ALICE, "/e/f").is_ok(), "a rename above does not matter");
    let file = world.create(ALICE, "/e/g", None);
    world.ask(ALICE, Request::Remove { path: path("/e"), recursive: true });
    assert_eq!(world.commit(ALICE, file.intent, 1), Err(ErrorCode::NotFound));
}

#[test]
fn large_tree_removal_leaves_no_object() {
    let mut world = World::with_devices(1);
    world.mkdir(ALICE, "/t", 0o755);
    let mut objects: Vec<ObjectRef> = Vec::new();
    for i in 0..700 {
        if i % 70 == 0 {
            world.mkdir(ALICE, &format!("/t/d{}", i / 70), 0o755);
        }
        objects.extend(world.put(ALICE, &format!("/t/d{}/f{i}", i / 70), 1).layout.objects());
    }
    let remove = || Request::Remove { path: path("/t"), recursive: true };
    assert_eq!(
        world.refused(ALICE, Request::Remove { path: path("/t"), recursive: false }),
        ErrorCode::NotEmpty
    );
    assert_eq!(world.ask(ALICE, remove()), Response::Removed { count: 64, more: true });
    // A name created before the removal's cursor is removed too.
    objects.extend(world.put(ALICE, "/t/a", 1).layout.objects());
    let (mut left, mut more) = (711 + 1 - 64, true);
    while more {
        let Response::Removed { count, more: next } = world.ask(ALICE, remove()) else {
            panic!("not removed")
        };
        assert!(count <= 64 && (next || count == left), "{count} of {left}");
        (left, more) = (left - count, next);
    }
    assert_eq!(world.stat(ALICE, "/t"), Err(ErrorCode::NotFound));
    world.now += GIB;
    world.session(ADMIN, "admin", true);
    let mut removed = world.reap_all();
    removed.sort_unstable();
    objects.sort_unstable();
    assert_eq!(removed, objects);
    let Response::ServerInfo { files, directories, reap_queue, .. } =
        world.ask(ADMIN, Request::ServerInfo {})
    else {
        panic!("server info")
    };
    assert_eq!((files, directories, reap_queue), (0, 1, 0));
}

#[test]
fn directory_pages_list_each_name_once() {
    let mut world = World::with_devices(1);
    world.mkdir(ALICE, "/d", 0o755);
    let mut names: Vec<String> = (0..300).map(|i| format!("{}{i}", "n".repeat(i % 250))).collect();
    for name in &names {
        world.mkdir(ALICE, &format!("/d/{name}"), 0o700);
    }
    names.sort();
    for limit in [1, 7, 256, u16::MAX] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let request = Request::ReadDir { path: path("/d"), after: after.clone(), limit };
            let response = world.ask(ALICE, request);
            assert!(response.encode(1).is_ok(), "a page fits into a frame");
            let Response::Directory { entries, more } = response else { panic!("{response:?}") };
            seen.extend(entries.iter().map(|entry| entry.name.shown().into_owned()));
            after = entries.last().map(|entry| entry.name.clone());
            if !more {
                break;
            }
        }
        assert_eq!(seen, names, "limit {limit}");
    }
}

#[test]
fn full_unreachable_draining_devices_get_no_objects() {
    let mut world = World::with_devices(2);
    let (first, second) = (DeviceId(1), DeviceId(2));
    world.mds.mark_unreachable(&world.mds.device_address(first).unwrap()).unwrap();
    for i in 0..20 {
        let file = world.create(ALICE, &format!("/a{i}"), Some(1));
        assert_eq!(file.layout.objects()[0].device, second);
    }
    let state = Request::DeviceSetState { id: second, state: DeviceState::Draining };
    assert_eq!(world.refused(ALICE, state.clone()), ErrorCode::Denied);
    assert!(matches!(world.ask(ADMIN, state), Response::Device { .. }));
    // The client waits for the unreachable device.
    assert_eq!(world.refused(ALICE, create("/b", None)), ErrorCode::Busy);
    world.mds.device_answered(&world.mds.device_address(first).unwrap(), GIB, 0).unwrap();
    world.create(ALICE, "/b", None);
    world.mds.device_answered(&world.mds.device_address(first).unwrap(), GIB, GIB - 1).unwrap();
    assert_eq!(world.refused(ALICE, create("/c", None)), ErrorCode::NoSpace);
}

/// An access to the earlier address of a device ends after the device was registered again.
#[test]
fn results_of_earlier_registration_are_ignored() {
    let mut world = World::with_devices(1);
    let id = DeviceId(1);
    let earlier = world.mds.device_address(id).unwrap();
    let moved = NewDevice { url: Text::new("iscsi://h:2/iqn/0").unwrap(), ..new_device(0) };
    let Response::Device { device } = world.ask(ADMIN, Request::DeviceAdd { device: moved }) else {
        panic!("not added")
    };
    assert_eq!(device.id, id);
    world.mds.mark_unreachable(&earlier).unwrap();
    assert_eq!(world.mds.devices()[0].1, DeviceState::Active);
    world.mds.mark_unreachable(&world.mds.device_address(id).unwrap()).unwrap();
    world.mds.device_answered(&earlier, GIB, 0).unwrap();
    assert!(!world.mds.device_prepared(&earlier).unwrap());
    assert_eq!(world.mds.devices()[0].1, DeviceState::Unreachable);
    world.mds.device_shares(&earlier, Some(crate::SharedSpace { id: [1; 16], free: 0, own: 0 }));
    assert!(world.mds.devices.space_figures().0 > 0, "the device shares no space");
}

#[test]
fn devices_and_keys_survive_restart() {
    let mut world = World::with_devices(1);
    let file = world.put(ALICE, "/f", 1);
    world.restart();
    let opened =
        world.open(ALICE, Request::Open { path: path("/f"), access: Access::Read, method: Method::AllData });
    assert_eq!(opened.layout, Some(file.layout));
    let listed = world.ask(BOB, Request::DeviceList { after: None, limit: 9 });
    let key = new_device(0).master_key;
    let body = listed.encode(1).unwrap();
    assert!(!body.windows(32).any(|window| window == key.expose()));
}

#[test]
fn readded_device_needs_same_key() {
    let mut world = World::with_devices(1);
    let file = world.put(ALICE, "/f", 1);
    let mut device = new_device(0);
    device.url = Text::new("iscsi://192.0.2.9:3260/iqn.2026-11.org.sealstone:osd.0/0").unwrap();
    let add = |device: &NewDevice| Request::DeviceAdd { device: device.clone() };
    assert_eq!(world.refused(ALICE, add(&device)), ErrorCode::Denied);
    for restart in [false, true] {
        let Response::Device { device: moved } = world.ask(ADMIN, add(&device)) else { panic!("moved") };
        assert_eq!(
            (moved.id, moved.url, moved.state),
            (DeviceId(1), device.url.clone(), DeviceState::Active)
        );
        if restart {
            world.restart();
        }
        let (address, _) = world.mds.devices().pop().unwrap();
        assert_eq!(address.url, device.url.as_str());
    }
    let opened =
        world.open(ALICE, Request::Open { path: path("/f"), access: Access::Read, method: Method::AllData });
    assert_eq!(opened.layout, Some(file.layout));
    // A pin can be set with any of these and changed with the next, but omitting it does not remove
    // it.
    let pin = |hash| Some(DevicePin { kind: PinKind::Certificate, hash: [hash; 32] });
    for (said, kept) in [(pin(1), pin(1)), (pin(2), pin(2)), (None, pin(2))] {
        let again = NewDevice { pin: said, ..device.clone() };
        let Response::Device { device } = world.ask(ADMIN, add(&again)) else { panic!("pinned") };
        assert_eq!(device.pin, kept);
        world.restart();
        assert_eq!(world.mds.devices().pop().unwrap().0.pin, kept);
    }
    let alterations: [fn(&mut NewDevice); 3] = [
        |device| device.master_key = Secret::new(vec![9; 32]).unwrap(),
        |device| device.system_id = [99; 20],
        |device| device.name = Name::new("other").unwrap(),
    ];
    for alter in alterations {
        let mut other = device.clone();
        alter(&mut other);
        assert_eq!(world.refused(ADMIN, add(&other)), ErrorCode::Exists);
    }
    let short = NewDevice { master_key: Secret::new(vec![1; 7]).unwrap(), system_id: [98; 20], ..device };
    assert_eq!(world.refused(ADMIN, add(&short)), ErrorCode::Invalid);
}

/// A device that was added with a wrong key or address can be added again with the right one, until
/// it is in use: nothing is stored on it.
#[test]
fn wrong_key_can_be_replaced_before_use() {
    let mut world = World::with_devices(1);
    let wrong = NewDevice { master_key: Secret::new(vec![7; 32]).unwrap(), ..new_device(1) };
    let add = |device: &NewDevice| Request::DeviceAdd { device: device.clone() };
    let listed = |world: &mut World| {
        let list = Request::DeviceList { after: Some(DeviceId(1)), limit: 9 };
        let Response::Devices { mut devices, .. } = world.ask(ADMIN, list) else { panic!("devices") };
        devices.pop().unwrap()
    };
    let Response::Device { device } = world.ask(ADMIN, add(&wrong)) else { panic!("added") };
    assert_eq!((device.state, device.problem), (DeviceState::Joining, None));
    world.mds.device_failed(
        &world.mds.device_address(device.id).unwrap(),
        ProblemKind::Denied,
        "another key",
    );
    let problem = listed(&mut world).problem.unwrap();
    assert_eq!((problem.kind, problem.said.as_str()), (ProblemKind::Denied, "another key"));
    world.mds.device_failed(
        &world.mds.device_address(device.id).unwrap(),
        ProblemKind::Silent,
        &"x".repeat(500),
    );
    assert_eq!(listed(&mut world).problem.unwrap().said.as_str().len(), 96);

    let right = new_device(1);
    let earlier = world.mds.device_address(device.id).unwrap();
    let Response::Device { device: again } = world.ask(ADMIN, add(&right)) else { panic!("added") };
    assert_eq!((again.id, again.state, again.problem), (device.id, DeviceState::Joining, None));
    // An access under the first registration that ends now says nothing about the second one.
    assert!(!world.mds.device_failed(&earlier, ProblemKind::Denied, "another key"));
    world.mds.device_answered(&earlier, 1 << 30, 0).unwrap();
    let now = listed(&mut world);
    assert_eq!((now.total, now.problem), (0, None));
    world.restart();
    assert!(matches!(world.ask(ADMIN, add(&right)), Response::Device { .. }));
    assert_eq!(
        world.refused(ADMIN, add(&NewDevice { system_id: [9; 20], ..right.clone() })),
        ErrorCode::Exists
    );

    world.mds.device_prepared(&world.mds.device_address(device.id).unwrap()).unwrap();
    world.mds.device_answered(&world.mds.device_address(device.id).unwrap(), 1 << 30, 0).unwrap();
    assert_eq!(world.refused(ADMIN, add(&wrong)), ErrorCode::Exists);
    assert!(
        matches!(world.ask(ADMIN, add(&right)), Response::Device { .. }),
        "the stored keys are the right ones"
    );
}

#[test]
fn device_added_by_operator_needs_approval() {
    const OPERATOR: [u8; 16] = [77; 16];
    let mut world = World::with_devices(1);
    world.session_as(OPERATOR, "olga", sealstone_mds_protocol::Role::Operator);
    let add = |device: &NewDevice| Request::DeviceAdd { device: device.clone() };
    let state = |id, state| Request::DeviceSetState { id, state };
    let new = NewDevice { capacity: 1 << 40, ..new_device(1) };
    let Response::Device { device } = world.ask(OPERATOR, add(&new)) else { panic!("added") };
    assert_eq!(device.state, DeviceState::Pending);
    let Response::DiskFree { total, active, .. } = world.ask(ADMIN, Request::DiskFree {}) else { panic!() };
    assert!(total < 1 << 40 && active == 1, "it is no room");
    for (caller, refused, code) in [
        (OPERATOR, state(device.id, DeviceState::Joining), ErrorCode::Denied),
        (OPERATOR, state(device.id, DeviceState::Active), ErrorCode::Invalid),
        (OPERATOR, Request::DeviceDrain { id: device.id, rate: 0 }, ErrorCode::Invalid),
        (ADMIN, state(device.id, DeviceState::Draining), ErrorCode::Invalid),
        // An operator can move neither pending nor approved ones.
        (
            OPERATOR,
            add(&NewDevice { url: Text::new("iscsi://h:1/iqn.x/0").unwrap(), ..new.clone() }),
            ErrorCode::Denied,
        ),
        (
            OPERATOR,
            add(&NewDevice { master_key: Secret::new(vec![7; 32]).unwrap(), ..new.clone() }),
            ErrorCode::Denied,
        ),
        (
            OPERATOR,
            add(&NewDevice { url: Text::new("iscsi://h:1/iqn.x/0").unwrap(), ..new_device(0) }),
            ErrorCode::Denied,
        ),
    ] {
        assert_eq!(world.refused(caller, refused.clone()), code, "{refused:?}");
    }
    assert!(
        matches!(world.ask(OPERATOR, add(&new_device(0))), Response::Device { .. }),
        "nothing of it is another"
    );
    world.restart();
    let Response::Device { device: approved } = world.ask(ADMIN, state(device.id, DeviceState::Joining))
    else {
        panic!("approved")
    };
    assert_eq!((approved.id, approved.state), (device.id, DeviceState::Joining));
    let again = [78; 16];
    world.session_as(again, "olga", sealstone_mds_protocol::Role::Operator);
    assert_eq!(
        world.refused(again, state(device.id, DeviceState::Active)),
        ErrorCode::Invalid,
        "it is prepared first"
    );
}

#[test]
fn pending_device_does_not_block_administrator() {
    const OPERATOR: [u8; 16] = [77; 16];
    let mut world = World::with_devices(1);
    world.session_as(OPERATOR, "olga", sealstone_mds_protocol::Role::Operator);
    let add = |device: NewDevice| Request::DeviceAdd { device };
    // With the name of one and the system id of the other.
    let squatter = NewDevice { system_id: new_device(2).system_id, ..new_device(1) };
    let Response::Device { device } = world.ask(OPERATOR, add(squatter)) else { panic!("added") };
    for number in [1, 2] {
        let Response::Device { device } = world.ask(ADMIN, add(new_device(number))) else {
            panic!("{number}")
        };
        assert_eq!(device.state, DeviceState::Joining);
    }
    let approve = Request::DeviceSetState { id: device.id, state: DeviceState::Joining };
    assert_eq!(world.refused(ADMIN, approve), ErrorCode::Exists);
    // Many of them exceed the limit for an operator, but not for an administrator.
    for number in 3..=150 {
        if !matches!(world.ask(OPERATOR, add(new_device(number))), Response::Device { .. }) {
            assert_eq!(usize::from(number) - 2, crate::devices::DEVICES_PENDING_MAX);
            assert!(matches!(world.ask(ADMIN, add(new_device(number))), Response::Device { .. }));
            return;
        }
    }
    panic!("no limit");
}
