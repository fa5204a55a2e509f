//! Lazy commits: sessions that were opened or used. A crash may discard the last of them, and
//! nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sealstone_mds_protocol::login::{SUITE_LIGHT, SessionId};
use sealstone_mds_protocol::{Request, Response, Role};

use super::accounts::register;
use super::world::{ADMIN, World, user};
use crate::accounts;
use crate::records::{SessionRecord, counter, figure};
use crate::sessions::{SESSIONS_PER_USER_MAX, SessionTable};
use crate::store::Wait;
use crate::store::{MemoryMeta, MetaStore};
use crate::{Config, Mds};

const NAMES: [&str; 3] = ["alice", "bob", "carol"];

/// Creates a server with the accounts of [`NAMES`], and only the administrator's session.
fn office() -> World {
    static SET_UP: LazyLock<MemoryMeta> = LazyLock::new(|| {
        let mut world = World::empty();
        for name in NAMES {
            register(&mut world, ADMIN, name, false, false);
        }
        world.disk.copy()
    });
    let mut world = World::empty();
    world.disk = SET_UP.copy();
    world.restart();
    world
}

/// Opens a session with the transaction of a login; none if the account is disabled.
fn log_in(world: &World, id: SessionId, name: &str) -> bool {
    let record = SessionRecord {
        user: user(name),
        role: Role::User,
        suite: SUITE_LIGHT,
        expires_ms: world.now + world.mds.config.session_ttl_ms,
        last_used_ms: world.now,
        keys: [7; 32],
        directory: None,
    };
    let opened = world.mds.update_and(|tx| {
        if accounts::existing_enabled(tx, &user(name))?.is_none() {
            return Ok((false, Wait::ForMedium));
        }
        let (_, wait) = SessionTable::open(tx, &id, &record)?;
        Ok((true, wait))
    });
    let opened = opened.unwrap();
    if opened {
        world.mds.sessions.insert(id, record);
    }
    opened
}

/// Kills the process; of the lazy commits only the first `kept` survive.
fn crash(world: &mut World, kept: usize) {
    world.disk.crash(kept);
    world.restart();
}

fn is_found(world: &World, id: &SessionId) -> bool {
    world.mds.sessions.find(&world.disk, id, u64::MAX, world.now).unwrap().is_some()
}

#[test]
fn sessions_do_not_wait_for_disk() {
    let mut world = office();
    assert!(log_in(&world, [5; 16], "alice"));
    let lazy = world.disk.unsettled();
    world.now += 2 * crate::sessions::TOUCH_EVERY_MS;
    let used = world.mds.handle(Some(&[5; 16]), Request::WhoAmI {}, world.now, &mut world.rng);
    assert!(matches!(used, Response::WhoAmI { .. }));
    assert_eq!((lazy, world.disk.unsettled()), (1, 2), "neither waited");
    world.mds.settle().unwrap();
    assert_eq!(world.disk.unsettled(), 0);
    crash(&mut world, 0);
    assert!(is_found(&world, &[5; 16]), "settled is durable");
}

#[test]
fn failed_settle_is_retried() {
    let world = office();
    assert!(log_in(&world, [5; 16], "alice"));
    world.disk.fail_after(Some(0));
    assert!(world.mds.settle().is_err());
    world.disk.fail_after(None);
    world.mds.settle().unwrap();
    assert_eq!(world.disk.unsettled(), 0);
}

#[test]
fn login_that_ends_session_commits_durably() {
    let mut world = office();
    let id = |n: usize| [n as u8; 16].map(|byte| byte ^ (n >> 8) as u8);
    for n in 0..=SESSIONS_PER_USER_MAX {
        world.now += 1;
        let mut own = id(n);
        own[0] = (n >> 8) as u8 + 0x40;
        assert!(log_in(&world, own, "carol"));
        let full = n == SESSIONS_PER_USER_MAX;
        assert_eq!(world.disk.unsettled() == 0, full, "session {n}");
    }
    let mut first = id(0);
    first[0] = 0x40;
    crash(&mut world, 0);
    assert!(!is_found(&world, &first), "and does not come back");
}

#[test]
fn ended_sessions_stay_ended_after_crash() {
    let mut lost = 0;
    for seed in 0..60u64 {
        let mut chance = StdRng::seed_from_u64(seed);
        let mut world = office();
        let mut next = 0u32;
        // Valid sessions with their users, those that must survive a crash, and those that must
        // never reappear.
        let mut live: BTreeMap<SessionId, &str> = BTreeMap::new();
        let mut safe: BTreeSet<SessionId> = BTreeSet::new();
        let mut ended: BTreeSet<SessionId> = BTreeSet::new();
        let mut enabled: BTreeMap<&str, bool> = NAMES.map(|name| (name, true)).into();
        for step in 0..80 {
            let name = NAMES[chance.gen_range(0..NAMES.len())];
            let some = live.keys().nth(chance.gen_range(0..live.len().max(1))).copied();
            match chance.gen_range(0..10) {
                0..=3 => {
                    next += 1;
                    let mut id = [0xA0; 16];
                    id[..4].copy_from_slice(&next.to_be_bytes());
                    assert_eq!(log_in(&world, id, name), enabled[name], "seed {seed} step {step}");
                    if enabled[name] {
                        live.insert(id, name);
                    }
                }
                4 => {
                    let Some(id) = some else { continue };
                    world.now += 61_000;
                    world.mds.handle(Some(&id), Request::WhoAmI {}, world.now, &mut world.rng);
                }
                5 => {
                    let Some(id) = some else { continue };
                    world.mds.logout(&id, false, world.now).unwrap();
                    live.remove(&id);
                    ended.insert(id);
                    safe = live.keys().copied().collect();
                }
                6 | 7 => {
                    let now = !enabled[name];
                    let set = Request::UserSetEnabled { name: user(name), enabled: now };
                    world.mds.handle(Some(&ADMIN), set, world.now, &mut world.rng);
                    enabled.insert(name, now);
                    if !now {
                        ended.extend(live.iter().filter(|(_, of)| **of == name).map(|(id, _)| *id));
                        live.retain(|_, of| *of != name);
                    }
                    safe = live.keys().copied().collect();
                }
                8 => {
                    world.mds.settle().unwrap();
                    safe = live.keys().copied().collect();
                }
                _ => {
                    let kept = chance.gen_range(0..=world.disk.unsettled());
                    crash(&mut world, kept);
                    let before = live.len();
                    live.retain(|id, _| is_found(&world, id));
                    lost += before - live.len();
                    let here: BTreeSet<SessionId> = live.keys().copied().collect();
                    assert!(
                        safe.is_subset(&here),
                        "seed {seed} step {step}: a session that was safe is gone"
                    );
                    for (id, name) in &live {
                        let (record, _) =
                            world.mds.sessions.find(&world.disk, id, u64::MAX, world.now).unwrap().unwrap();
                        assert_eq!(record.user, user(name));
                        world.mds.sessions.resume(*id, record, world.now);
                    }
                    safe = here;
                }
            }
            for id in &ended {
                assert!(!is_found(&world, id), "seed {seed} step {step}: a session that ended is back");
            }
            let view = world.disk.snapshot().unwrap();
            for (name, enabled) in &enabled {
                let account = accounts::existing_enabled(&*view, &user(name)).unwrap();
                assert_eq!(account.is_some(), *enabled, "seed {seed} step {step}: {name}");
            }
            let counted = figure(&*view, counter::SESSIONS).unwrap();
            let records = world.disk.dump().iter().filter(|(key, _)| key[0] == b's').count();
            assert_eq!(counted, records as u64, "seed {seed} step {step}");
        }
    }
    assert!(lost > 20, "crashes took {lost} sessions");
}

#[test]
fn lost_session_can_be_opened_again() {
    let mut world = office();
    assert!(log_in(&world, [5; 16], "alice"));
    crash(&mut world, 0);
    assert!(!is_found(&world, &[5; 16]));
    assert!(log_in(&world, [6; 16], "alice"));
    // Another server on the same store, in the order of commits.
    let other = Mds::open(Arc::new(world.disk.clone()), Config::default()).unwrap();
    assert!(other.sessions.find(&world.disk, &[6; 16], u64::MAX, world.now).unwrap().is_some());
}
