//! End-to-end protected disks: access, leases, roots, rotation.

use sealstone_mds_protocol::{
    DISK_KEY_EPOCHS_MAX, DISK_USERS_MAX, DiskAccess, DiskKeyCopy, DiskRotation, ErrorCode, Name, Request,
    Response, Role, Text, UserName,
};

use super::world::{ADMIN, ALICE, BOB, World, user};
use crate::keys;
use crate::records::{Account, load, save};

fn disk() -> Name {
    Name::new(b"disk".to_vec()).unwrap()
}

/// A key of an epoch, as the server sees it.
fn wrapped(epoch: u16) -> [u8; 84] {
    let mut wrapped = [7; 84];
    wrapped[2..4].copy_from_slice(&epoch.to_be_bytes());
    wrapped
}

fn root(epoch: u32, version: u64, filler: u8) -> [u8; 136] {
    let mut root = [filler; 136];
    root[8..12].copy_from_slice(&epoch.to_be_bytes());
    root[16..24].copy_from_slice(&version.to_be_bytes());
    root
}

fn publish(epoch: u32, expected: Option<u64>, version: u64) -> Request {
    Request::DiskPublish { name: disk(), epoch, expected, root: root(epoch, version, 9) }
}

fn set_access(name: &str, wrapped: Option<[u8; 84]>) -> Request {
    Request::DiskSetAccess { name: disk(), user: user(name), wrapped }
}

fn rotation(key_epoch: u16, users: &[&str]) -> Request {
    let copies =
        users.iter().map(|name| DiskKeyCopy { user: user(name), wrapped: wrapped(key_epoch + 1) }).collect();
    Request::DiskRotate { name: disk(), rotation: DiskRotation { key_epoch, previous: [3; 48], copies } }
}

/// A world in which alice has a disk.
fn world() -> World {
    let mut world = World::with_accounts(0);
    done(&mut world, ALICE, Request::DiskCreate { name: disk(), unit: [1; 16], wrapped: wrapped(1) });
    world
}

fn done(world: &mut World, caller: [u8; 16], request: Request) {
    let answer = world.ask(caller, request);
    assert_eq!(answer, Response::Done {});
}

fn lease(world: &mut World, caller: [u8; 16], epoch: Option<u32>) -> Result<u32, ErrorCode> {
    match world.ask(caller, Request::DiskLease { name: disk(), epoch }) {
        Response::DiskLeased { epoch, valid_ms } => {
            assert!(valid_ms > 0);
            Ok(epoch)
        }
        Response::Failed { failure } => Err(failure.code),
        other => panic!("{other:?}"),
    }
}

fn show(world: &mut World, caller: [u8; 16]) -> DiskAccess {
    match world.ask(caller, Request::DiskShow { name: disk() }) {
        Response::Disk { access } => access,
        other => panic!("{other:?}"),
    }
}

#[test]
fn disk_without_key_does_not_exist() {
    let mut world = world();
    for request in [
        Request::DiskShow { name: disk() },
        Request::DiskLease { name: disk(), epoch: None },
        Request::DiskEndLease { name: disk(), epoch: 1 },
        publish(1, None, 1),
        set_access("bob", Some(wrapped(1))),
        set_access("alice", None),
        rotation(1, &["bob"]),
        Request::DiskReport { name: disk(), text: Text::default() },
        Request::DiskRemove { name: disk() },
    ] {
        assert_eq!(world.refused(BOB, request.clone()), ErrorCode::NotFound, "{request:?}");
    }
    let other = Request::DiskCreate { name: disk(), unit: [2; 16], wrapped: wrapped(1) };
    assert_eq!(world.refused(BOB, other), ErrorCode::Exists);
    let list = world.ask(BOB, Request::DiskList { after: None, limit: 9 });
    assert_eq!(list, Response::Disks { disks: Vec::new(), more: false });
}

#[test]
fn granted_user_uses_disk_until_revoked() {
    let mut world = world();
    done(&mut world, ALICE, set_access("bob", Some(wrapped(1))));
    assert_eq!(show(&mut world, BOB).wrapped, Some(wrapped(1)));
    assert_eq!(show(&mut world, ALICE).users, [user("alice"), user("bob")]);
    assert_eq!(lease(&mut world, BOB, None), Ok(1));
    done(&mut world, BOB, publish(1, None, 1));
    for request in [set_access("bob", None), rotation(1, &["bob"]), Request::DiskRemove { name: disk() }] {
        assert_eq!(world.refused(BOB, request), ErrorCode::NotPermitted);
    }
    done(&mut world, ALICE, set_access("bob", None));
    assert_eq!(world.refused(BOB, publish(1, Some(1), 2)), ErrorCode::NotFound);
    assert_eq!(lease(&mut world, ALICE, None), Ok(3), "the lease of bob has ended at once");
    assert_eq!(world.refused(ALICE, set_access("alice", None)), ErrorCode::Invalid);
    assert_eq!(world.refused(ALICE, set_access("bob", None)), ErrorCode::NotFound);
    assert_eq!(world.refused(ALICE, set_access("nobody", Some(wrapped(1)))), ErrorCode::NotFound);
    assert_eq!(world.refused(ALICE, set_access("bob", Some(wrapped(2)))), ErrorCode::Stale);
}

#[test]
fn administrators_revoke_but_have_no_key() {
    let mut world = world();
    done(&mut world, ALICE, set_access("bob", Some(wrapped(1))));
    assert_eq!(show(&mut world, ADMIN).wrapped, None);
    assert_eq!(lease(&mut world, ADMIN, None), Err(ErrorCode::NotFound));
    assert_eq!(world.refused(ADMIN, set_access("admin", Some(wrapped(1)))), ErrorCode::NotFound);
    done(&mut world, ADMIN, set_access("bob", None));
    done(&mut world, ADMIN, Request::DiskRemove { name: disk() });
    assert_eq!(world.refused(ALICE, Request::DiskShow { name: disk() }), ErrorCode::NotFound);
}

#[test]
fn lease_excludes_other_clients_until_it_ends() {
    let mut world = world();
    assert_eq!(lease(&mut world, ALICE, None), Ok(1));
    assert_eq!(lease(&mut world, ALICE, None), Err(ErrorCode::Busy), "another client of the same user");
    world.now += 13_000;
    assert_eq!(lease(&mut world, ALICE, Some(1)), Ok(1));
    world.now += 13_000;
    assert_eq!(lease(&mut world, ALICE, None), Err(ErrorCode::Busy));
    world.now += 1_001;
    assert_eq!(lease(&mut world, ALICE, None), Ok(2));
    assert_eq!(lease(&mut world, ALICE, Some(1)), Err(ErrorCode::Fenced));
    done(&mut world, ALICE, Request::DiskEndLease { name: disk(), epoch: 1 });
    assert_eq!(lease(&mut world, ALICE, None), Err(ErrorCode::Busy), "that was not the lease");
    done(&mut world, ALICE, Request::DiskEndLease { name: disk(), epoch: 2 });
    assert_eq!(lease(&mut world, ALICE, Some(2)), Err(ErrorCode::Fenced));
    world.restart();
    assert_eq!(lease(&mut world, ALICE, None), Ok(3), "epochs survive a restart");
}

#[test]
fn root_follows_the_expected_one_only() {
    let mut world = world();
    assert_eq!(world.refused(ALICE, publish(1, None, 1)), ErrorCode::Fenced, "no lease");
    assert_eq!(lease(&mut world, ALICE, None), Ok(1));
    done(&mut world, ALICE, publish(1, None, 5));
    done(&mut world, ALICE, publish(1, None, 5));
    assert_eq!(world.refused(ALICE, publish(1, None, 6)), ErrorCode::Fenced);
    assert_eq!(world.refused(ALICE, publish(1, Some(4), 6)), ErrorCode::Fenced);
    assert_eq!(world.refused(ALICE, publish(2, Some(5), 6)), ErrorCode::Fenced);
    assert_eq!(world.refused(ALICE, publish(1, Some(5), 4)), ErrorCode::Invalid);
    let other_epoch = Request::DiskPublish { name: disk(), epoch: 1, expected: Some(5), root: root(2, 6, 9) };
    assert_eq!(world.refused(ALICE, other_epoch), ErrorCode::Invalid);
    world.now += 20_000;
    done(&mut world, ALICE, publish(1, Some(5), 6));
    assert_eq!(lease(&mut world, ALICE, None), Err(ErrorCode::Busy), "a root renews the lease");
    let access = show(&mut world, ALICE);
    assert_eq!((access.root, access.info.root_version), (Some(root(1, 6, 9)), Some(6)));
}

#[test]
fn rotation_replaces_all_copies() {
    let mut world = world();
    done(&mut world, ALICE, set_access("bob", Some(wrapped(1))));
    assert_eq!(world.refused(ALICE, rotation(2, &["alice"])), ErrorCode::Stale);
    assert_eq!(world.refused(ALICE, rotation(1, &["bob"])), ErrorCode::Invalid);
    done(&mut world, ALICE, rotation(1, &["alice"]));
    assert_eq!(world.refused(BOB, Request::DiskShow { name: disk() }), ErrorCode::NotFound);
    let access = show(&mut world, ALICE);
    assert_eq!((access.info.key_epoch, access.previous.len()), (2, 1));
    assert_eq!((access.users, access.wrapped), (vec![user("alice")], Some(wrapped(2))));
    for epoch in 2..DISK_KEY_EPOCHS_MAX {
        done(&mut world, ALICE, rotation(epoch, &["alice"]));
    }
    assert_eq!(world.refused(ALICE, rotation(DISK_KEY_EPOCHS_MAX, &["alice"])), ErrorCode::Limit);
    assert_eq!(show(&mut world, ALICE).previous.len(), usize::from(DISK_KEY_EPOCHS_MAX) - 1);
}

#[test]
fn users_beyond_the_limit_are_refused() {
    let mut world = world();
    let accounts: Vec<String> = (0..DISK_USERS_MAX).map(|number| format!("user{number}")).collect();
    for account in &accounts {
        let record: Account =
            load(&*world.mds.store.snapshot().unwrap(), &keys::user(&user("bob"))).unwrap().unwrap();
        world.mds.update(|tx| Ok(save(tx, &keys::user(&user(account)), &record)?)).unwrap();
    }
    for account in accounts.iter().skip(1) {
        done(&mut world, ALICE, set_access(account, Some(wrapped(1))));
    }
    assert_eq!(world.refused(ALICE, set_access("bob", Some(wrapped(1)))), ErrorCode::Limit);
    let names: Vec<&str> = accounts.iter().map(String::as_str).chain(["alice"]).collect();
    assert_eq!(world.refused(ALICE, rotation(1, &names)), ErrorCode::Limit);
}

#[test]
fn reports_are_counted_and_in_the_audit_log() {
    let (mut world, seen) = world().audited(|_| ());
    let text = Text::truncated("block 7 is damaged");
    done(&mut world, ALICE, Request::DiskReport { name: disk(), text: text.clone() });
    assert_eq!(seen.last(), ("alice".into(), "DiskReport".into(), "ok".into()));
    let info = show(&mut world, ALICE).info;
    assert_eq!((info.failures, info.last_failure), (1, Some(text)));
}

#[test]
fn public_key_and_copies_end_with_the_account() {
    let mut world = world();
    done(&mut world, BOB, Request::DiskPublicKeySet { public: [4; 32] });
    let key_of_bob = Request::DiskPublicKey { user: user("bob") };
    let answer = world.ask(ALICE, key_of_bob.clone());
    assert_eq!(answer, Response::DiskPublicKey { public: Some([4; 32]) });
    done(&mut world, ALICE, set_access("bob", Some(wrapped(1))));
    assert_eq!(lease(&mut world, BOB, None), Ok(1));
    world.ask(ADMIN, Request::UserRemove { name: user("bob") });
    assert_eq!(world.refused(ALICE, key_of_bob), ErrorCode::NotFound);
    assert_eq!(show(&mut world, ALICE).users, [user("alice")]);
    assert_eq!(lease(&mut world, ALICE, None), Ok(3));
}

#[test]
fn lists_are_in_pages_of_own_disks() {
    let mut world = World::with_accounts(0);
    let names: Vec<Name> =
        ["a", "b", "c"].into_iter().map(|name| Name::new(name.as_bytes().to_vec()).unwrap()).collect();
    for (number, name) in (0..).zip(&names) {
        let request = Request::DiskCreate { name: name.clone(), unit: [number; 16], wrapped: wrapped(1) };
        done(&mut world, ALICE, request);
    }
    let mut found: Vec<(Name, UserName)> = Vec::new();
    loop {
        let after = found.last().map(|(name, _)| name.clone());
        let Response::Disks { disks, more } = world.ask(ALICE, Request::DiskList { after, limit: 2 }) else {
            panic!("a list");
        };
        found.extend(disks.into_iter().map(|disk| (disk.name, disk.owner)));
        if !more {
            break;
        }
    }
    assert_eq!(found, names.into_iter().map(|name| (name, user("alice"))).collect::<Vec<_>>());
    assert_eq!(world.refused(ALICE, Request::DiskList { after: None, limit: 0 }), ErrorCode::Invalid);
}

#[test]
fn readers_take_no_lease() {
    let mut world = world();
    let reader = [9; 16];
    world.session_as(reader, "alice", Role::ReadOnly);
    show(&mut world, reader);
    assert_eq!(lease(&mut world, reader, None), Err(ErrorCode::Denied));
}
