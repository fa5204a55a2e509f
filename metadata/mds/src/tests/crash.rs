//! Power failure before any commit of a history: the state after it is consistent, and no object is
//! lost.

use std::collections::BTreeSet;

use sealstone_mds_protocol::{ErrorCode, ObjectRef, Request, Response};

use super::world::{ALICE, World, create, path};

/// Runs a history of creates, replacements, renames and removals, until the first failure of the
/// store. `given` collects every object that a client got.
fn history(world: &mut World, given: &mut BTreeSet<ObjectRef>) -> Result<(), ErrorCode> {
    let fail = |response: Response| match response {
        Response::Failed { failure } => Err(failure.code),
        other => Ok(other),
    };
    for round in 0..3 {
        fail(
            world.ask(
                ALICE,
                Request::MakeDir { path: path(&format!("/d{round}")), parents: true, mode: 0o755 },
            ),
        )?;
        for name in ["a", "b"] {
            let at = format!("/d{round}/{name}");
            for size in [1, 5 << 20] {
                let Response::Created { file } = fail(world.ask(ALICE, create(&at, Some(size))))? else {
                    panic!("created")
                };
                given.extend(file.layout.objects());
                fail(world.ask(
                    ALICE,
                    Request::Commit { intent: file.intent, size, mtime_ns: None, checksum: None },
                ))?;
            }
        }
        let Response::Created { file } = fail(world.ask(ALICE, create("/x", None)))? else {
            panic!("created")
        };
        given.extend(file.layout.objects());
        fail(world.ask(ALICE, Request::Abandon { intent: file.intent }))?;
        let (from, to) = (path(&format!("/d{round}/a")), path(&format!("/d{round}/b")));
        fail(world.ask(ALICE, Request::Rename { from, to, replace: true }))?;
        if round == 1 {
            fail(world.ask(ALICE, Request::Remove { path: path("/d0"), recursive: true }))?;
        }
    }
    Ok(())
}

/// Returns the objects of all reachable files.
fn live(world: &World) -> BTreeSet<ObjectRef> {
    let mut objects = BTreeSet::new();
    for (key, value) in world.disk.dump() {
        if key[0] == b'i' {
            let inode: crate::records::Inode = crate::records::decode(&value).unwrap();
            objects.extend(inode.layout.iter().flat_map(|layout| layout.objects().to_vec()));
        }
    }
    objects
}

#[test]
fn crash_before_any_commit_keeps_state_consistent() {
    let commits = {
        let mut world = World::with_devices(2);
        world.disk.fail_after(Some(u64::MAX));
        let mut given = BTreeSet::new();
        history(&mut world, &mut given).unwrap();
        given.len() as u64 * 3
    };
    let mut completed = 0;
    for crash_at in 0..commits {
        let mut world = World::with_devices(2);
        world.disk.fail_after(Some(crash_at));
        let mut given = BTreeSet::new();
        let ended = history(&mut world, &mut given);
        completed += u32::from(ended.is_ok());
        world.restart();
        // Every entry refers to an inode, and every inode but the root has an entry.
        let dump = world.disk.dump();
        let inodes: BTreeSet<u64> = dump
            .iter()
            .filter(|(key, _)| key[0] == b'i')
            .map(|(key, _)| u64::from_be_bytes(key[1..].try_into().unwrap()))
            .collect();
        let mut named: BTreeSet<u64> = dump
            .iter()
            .filter(|(key, _)| key[0] == b'd')
            .map(|(_, value)| crate::records::decode::<u64>(value).unwrap())
            .collect();
        named.insert(crate::ROOT.0);
        assert_eq!(inodes, named, "crash at {crash_at}");
        // Much later every object of any layout belongs to a file or was removed: none is leaked,
        // none is lost.
        world.now += 10_000_000;
        let removed: BTreeSet<ObjectRef> = world.reap_all().into_iter().collect();
        let live = live(&world);
        assert!(removed.is_disjoint(&live), "crash at {crash_at}: an object of a file was removed");
        let all: BTreeSet<ObjectRef> = removed.union(&live).copied().collect();
        assert!(all.is_superset(&given), "crash at {crash_at}: an object is on no list");
    }
    assert!(completed > 0, "the last crash point lies behind the history");
}

#[test]
fn interrupted_setup_can_be_repeated() {
    use crate::store::MemoryMeta;
    use rand::SeedableRng;
    let disk = MemoryMeta::new();
    let mut rng = rand::rngs::StdRng::seed_from_u64(1);
    disk.fail_after(Some(0));
    assert!(crate::Mds::set_up(&disk, &super::world::user("admin"), b"x", 1, &mut rng).is_err());
    disk.fail_after(None);
    let open = || crate::Mds::open(std::sync::Arc::new(disk.clone()), crate::Config::default());
    assert!(matches!(open(), Err(crate::OpenError::NotSetUp)));
    crate::Mds::set_up(&disk, &super::world::user("admin"), b"x", 1, &mut rng).unwrap();
    assert!(open().is_ok());
    let again = crate::Mds::set_up(&disk, &super::world::user("admin"), b"x", 1, &mut rng);
    assert!(matches!(again, Err(crate::OpenError::AlreadySetUp)));
}
