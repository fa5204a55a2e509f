//! Limits per user: one user fills a table, and its function still works for another user.

use std::sync::Arc;

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    Access, ClientId, DeviceId, ErrorCode, InodeId, KeyInfo, KeyLevel, KeyUse, Lock, LockKind, Method, Node,
    ObjectRef, OpenHandle, QuotaChange, QuotaSubject, Request, Response, RevocationTarget, Role, XattrMode,
    XattrName, XattrValue,
};
use sealstone_osd::{AttributeId, ObjectId};

use super::nodes::{CLIENT, name};
use super::world::{ADMIN, ALICE, BOB, World, create, path, user};
use crate::issued_credentials::IssuedRights;
use crate::leases::REVOKE_AFTER_MS;
use crate::namespace::CREATES_PER_USER_MAX;
use crate::{GrantLog, IssueStream, KeyAction, MemoryGrantLog, StepOutcome};

const DEVICE: DeviceId = DeviceId(1);
const MINUTE: u64 = 60_000;

/// Size of the table of issued credentials in these tests.
const TABLE: usize = 1_024;
/// More than the table's size.
const FLOOD: usize = 2 * TABLE;

impl World {
    /// Creates a server with a log and a small table of issued credentials.
    fn small() -> Self {
        let mut world = Self::with_accounts(1);
        world.mds.config.issued_max = TABLE;
        world.log_to(&Arc::default());
        world
    }

    /// Gives a user's session credentials for `count` objects of the first device.
    fn flood(&mut self, session: SessionId, name: &str, count: usize) {
        let held = IssuedRights {
            writes: true,
            creates: true,
            lasting_until_ms: 0,
            expires_ms: self.now + 5 * MINUTE,
        };
        let object = |number| ObjectRef { device: DEVICE, object: ObjectId::new(0x1_0000, number) };
        let all: Vec<_> = (0..count as u64).map(|number| object(1 << 40 | number)).collect();
        let mut table = self.mds.issued_table(self.now);
        all.chunks(64).for_each(|some| table.add(&session, &user(name), some, held, self.now));
    }

    /// Performs all key steps as a device that accepts them.
    fn set_keys(&mut self) {
        for _ in 0..200 {
            let steps = self.mds.key_steps(DEVICE, 8, self.now, &mut self.rng).unwrap();
            if steps.is_empty() {
                return;
            }
            let keys = self.keys();
            let outcome = |action: &KeyAction| match action {
                KeyAction::ExchangeSeeds { value, .. } => {
                    let mut base = vec![0; value.len()];
                    base[0] = 9;
                    StepOutcome::Value(base)
                }
                KeyAction::Identifiers { object, ids } => {
                    let has = |id: &AttributeId| {
                        let (level, partition, version) = match id.number {
                            0x7FFD => (KeyLevel::Master, 0, 0),
                            0x7FFE => (KeyLevel::Root, 0, 0),
                            0x7FFF => (KeyLevel::Partition, object.partition, 0),
                            number => (KeyLevel::Working, object.partition, (number - 0x8000) as u8),
                        };
                        let is_it = |key: &&KeyInfo| {
                            (key.level, key.partition, key.version) == (level, partition, version)
                        };
                        keys.iter().find(is_it).and_then(|key| key.identifier).map(|id| id.to_vec())
                    };
                    StepOutcome::Identifiers(ids.iter().map(has).collect())
                }
                _ => StepOutcome::Done,
            };
            let outcomes: Vec<_> = steps.iter().map(|step| outcome(&step.action)).collect();
            let outcomes = steps.into_iter().zip(outcomes).collect();
            self.mds.key_steps_done(DEVICE, outcomes, self.now, &mut self.rng).unwrap();
        }
        panic!("keys are never settled");
    }

    fn keys(&mut self) -> Vec<KeyInfo> {
        match self.ask(ADMIN, Request::KeyList { device: None, from: None }) {
            Response::Keys { keys, .. } => keys,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the version of the working key for new credentials.
    fn working_key(&mut self) -> u8 {
        let keys = self.keys();
        let of = |key: &&KeyInfo| {
            (key.level, key.partition, key.usage) == (KeyLevel::Working, 0x1_0000, KeyUse::Current)
        };
        keys.iter().find(of).expect("there is one").version
    }
}

fn of_user(name: &str) -> Request {
    Request::Revoke { what: RevocationTarget::User(user(name)) }
}

fn delegate(at: &str, until_ms: u64) -> Request {
    let (path, method) = (path(at), Method::AllData);
    Request::Delegate { path, read: true, write: false, start: 0, end: None, until_ms, method }
}

#[test]
fn flooded_table_revokes_other_user_by_object() {
    let mut world = World::small();
    let file = world.put(BOB, "/f", 100);
    let until = world.now + MINUTE;
    assert!(matches!(world.ask(BOB, delegate("/f", until)), Response::Delegated { .. }));
    world.flood(ALICE, "alice", FLOOD);
    let begun = world.revocation(of_user("bob"));
    let answer = world.tell(DEVICE, 100);
    assert_eq!(answer.iter().map(|(object, ..)| *object).collect::<Vec<_>>(), file.layout.objects());
    let done = world.revocation(Request::RevocationProgress { id: begun.id });
    assert!(done.complete && done.done_ms.is_some());
    assert_eq!((done.total, done.keys), (1, 0));
}

#[test]
fn revocation_of_flooding_user_replaces_working_keys() {
    let mut world = World::small();
    world.set_keys();
    world.flood(ALICE, "alice", FLOOD);
    let before = world.working_key();
    let begun = world.revocation(of_user("alice"));
    world.tell(DEVICE, 5_000);
    let open = world.revocation(Request::RevocationProgress { id: begun.id });
    assert_eq!(
        (open.open, open.keys, open.keys_open, open.done_ms),
        (0, 1, 1, None),
        "not done by tags alone"
    );
    // A crash in between loses nothing.
    world.restart();
    world.set_keys();
    world.mds.collect_revocations(world.now).unwrap();
    assert_ne!(world.working_key(), before);
    let done = world.revocation(Request::RevocationProgress { id: begun.id });
    assert!(done.complete && done.done_ms.is_some());
    assert_eq!((done.keys, done.keys_open), (1, 0));
}

#[test]
fn logout_of_flooding_user_reports_incomplete_revocation() {
    let mut world = World::small();
    world.flood(ALICE, "alice", FLOOD);
    let revoking = world.mds.logout(&ALICE, true, world.now).unwrap().unwrap();
    assert!(!revoking.complete);
    assert_eq!(revoking.until_ms, world.now + 5 * MINUTE, "until the last unlisted one expires");
    world.flood(BOB, "bob", 10);
    let revoking = world.mds.logout(&BOB, true, world.now).unwrap().unwrap();
    assert!(revoking.complete);
}

/// A log whose oldest records were removed for space.
struct Short(MemoryGrantLog, u64);

impl GrantLog for Short {
    fn append(&self, stream: IssueStream, time_ms: u64, record: &[u8], durable: bool) -> std::io::Result<()> {
        self.0.append(stream, time_ms, record, durable)
    }

    fn read(
        &self,
        stream: IssueStream,
        from: u64,
        since_ms: u64,
        budget: usize,
        each: &mut dyn FnMut(&[u8]) -> bool,
    ) -> std::io::Result<Option<u64>> {
        self.0.read(stream, from, since_ms, budget, each)
    }

    fn known_since_ms(&self, _: IssueStream) -> u64 {
        self.1
    }

    fn is_whole(&self) -> bool {
        true
    }

    fn sync(&self) -> std::io::Result<()> {
        self.0.sync()
    }
}

#[test]
fn restart_with_short_log_revokes_by_working_keys() {
    let mut world = World::with_accounts(1);
    world.now += 24 * 60 * MINUTE;
    world.session(ADMIN, "admin", true);
    world.set_keys();
    let mds = crate::Mds::open(Arc::new(world.disk.clone()), world.mds.config.clone()).unwrap();
    let short = Short(MemoryGrantLog::default(), world.now - MINUTE);
    world.mds = mds.with_grant_log(Arc::new(short), world.now).unwrap();
    world.take_up();
    let begun = world.revocation(of_user("bob"));
    while world.mds.collect_revocations(world.now).unwrap() {}
    let open = world.revocation(Request::RevocationProgress { id: begun.id });
    assert_eq!((open.keys_open, open.done_ms, open.complete), (1, None, true));
    world.set_keys();
    world.mds.collect_revocations(world.now).unwrap();
    assert!(world.revocation(Request::RevocationProgress { id: begun.id }).done_ms.is_some());
}

#[test]
fn open_creates_are_limited_per_user_and_expire() {
    let mut world = World::with_accounts(1);
    let mut last = None;
    for number in 0..CREATES_PER_USER_MAX {
        last = Some(world.create(ALICE, &format!("/{number}"), Some(1)).intent);
    }
    let Response::Failed { failure } = world.ask(ALICE, create("/more", Some(1))) else { panic!("refused") };
    assert_eq!(failure.code, ErrorCode::Limit);
    assert!(failure.subject.as_str().contains("user alice has 4096"), "{failure}");
    world.put(BOB, "/bob", 1);
    // A commit frees one; an abandoned create counts until its credentials have expired.
    world.commit(ALICE, last.unwrap(), 1).unwrap();
    let again = world.create(ALICE, "/again", Some(1));
    world.ask(ALICE, Request::Abandon { intent: again.intent });
    assert_eq!(world.refused(ALICE, create("/more", Some(1))), ErrorCode::Limit);
    world.now += world.mds.config.grant_lifetime_ms() + 1;
    while world.mds.tidy(world.now).unwrap() {}
    world.create(ALICE, "/more", Some(1));
    // Creates that are not continued expire.
    world.now += world.mds.config.intent_lifetime_ms + 1;
    for (session, name) in [(ADMIN, "admin"), (ALICE, "alice")] {
        world.session(session, name, session == ADMIN);
    }
    while world.mds.tidy(world.now).unwrap() {}
    for number in 0..CREATES_PER_USER_MAX {
        world.create(ALICE, &format!("/{number}"), Some(1));
    }
}

fn limit(name: &str, bytes: u64, nodes: u64) -> Request {
    let change = QuotaChange { bytes_max: Some(Some(bytes)), nodes_max: Some(Some(nodes)) };
    Request::QuotaSet { of: QuotaSubject::User(user(name)), change }
}

fn used(world: &mut World, name: &str) -> (u64, u64) {
    match world.ask(ADMIN, Request::QuotaShow { of: QuotaSubject::User(user(name)) }) {
        Response::Quota { quota } => (quota.bytes, quota.nodes),
        other => panic!("{other:?}"),
    }
}

#[test]
fn quota_counts_open_creates_until_they_end() {
    let mut world = World::with_accounts(1);
    world.ask(ADMIN, limit("alice", 1_000, 3));
    let first = world.create(ALICE, "/a", Some(600));
    assert_eq!(used(&mut world, "alice"), (600, 1));
    assert_eq!(world.refused(ALICE, create("/b", Some(401))), ErrorCode::Quota);
    let second = world.create(ALICE, "/b", Some(400));
    world.commit(ALICE, first.intent, 500).unwrap();
    assert_eq!(used(&mut world, "alice"), (900, 2));
    world.ask(ALICE, Request::Abandon { intent: second.intent });
    assert_eq!(used(&mut world, "alice"), (500, 1));
    // A replacement is charged only with the additional bytes.
    let third = world.create(ALICE, "/a", Some(900));
    assert_eq!(used(&mut world, "alice"), (900, 1));
    world.commit(ALICE, third.intent, 900).unwrap();
    assert_eq!(used(&mut world, "alice"), (900, 1));
    let drifts = crate::quota::count(&*crate::store::MetaStore::snapshot(&world.disk).unwrap(), || Ok(()));
    assert_eq!(drifts.unwrap(), []);
}

#[test]
fn create_is_charged_once_across_restart() {
    let mut world = World::with_accounts(1);
    world.ask(ADMIN, limit("alice", 2_000, 3));
    let announced = world.create(ALICE, "/a", Some(600));
    let other = world.create(ALICE, "/b", None);
    let measure = |world: &mut World, lengths: [u64; 2]| {
        world.now += 250_000;
        for intent in [announced.intent, other.intent] {
            let handle = OpenHandle::Intent(intent);
            let renewed = world.ask(ALICE, Request::RenewGrants { handle, method: Method::AllData });
            assert!(matches!(renewed, Response::Grants { .. }), "{renewed:?}");
        }
        world.now += 310_000;
        let items = world.mds.next_length_checks(9, world.now).unwrap();
        assert_eq!(items.len(), 2);
        for item in items {
            let is_first = item.objects[0].0 == announced.layout.objects()[0];
            world.mds.lengths_found(&item, &[lengths[usize::from(!is_first)]], world.now).unwrap();
        }
    };
    measure(&mut world, [600, 300]);
    assert_eq!(used(&mut world, "alice"), (900, 2));
    world.restart();
    measure(&mut world, [600, 300]);
    assert_eq!(used(&mut world, "alice"), (900, 2), "charged before the restart");
    measure(&mut world, [700, 400]);
    assert_eq!(used(&mut world, "alice"), (1100, 2));
    world.commit(ALICE, announced.intent, 700).unwrap();
    world.ask(ALICE, Request::Abandon { intent: other.intent });
    assert_eq!(used(&mut world, "alice"), (700, 1));
    let all = crate::store::MetaStore::snapshot(&world.disk).unwrap();
    let bytes = crate::keys::create_bytes(announced.intent);
    assert!(all.get(&bytes).unwrap().is_none());
}

#[test]
fn quota_counts_bytes_of_extended_attributes() {
    let mut world = World::with_accounts(1);
    let file = world.file(ALICE, "a");
    world.ask(ADMIN, limit("alice", 1_000, 10));
    let set = |length: usize| Request::SetXattr {
        node: file,
        name: XattrName::new("user.a").unwrap(),
        value: XattrValue::new(vec![7; length]).unwrap(),
        mode: XattrMode::Set,
    };
    assert_eq!(world.refused(ALICE, set(1_000)), ErrorCode::Quota);
    assert!(matches!(world.ask(ALICE, set(900)), Response::Done {}));
    assert_eq!(used(&mut world, "alice").0, 906);
    assert_eq!(world.refused(ALICE, create("/b", Some(95))), ErrorCode::Quota);
    world.ask(ALICE, set(10));
    assert_eq!(used(&mut world, "alice").0, 16);
    world.ask(ALICE, Request::RemoveXattr { node: file, name: XattrName::new("user.a").unwrap() });
    assert_eq!(used(&mut world, "alice").0, 0);
}

#[test]
fn quota_file_gets_names_only_from_owner() {
    let mut world = World::with_accounts(1);
    let file = world.file(ALICE, "a");
    world.ask(ALICE, super::leases::set_mode(file, 0o666));
    let file = |world: &mut World, caller| world.stat(caller, "/a").unwrap().node();
    let link = |node, to: &str| Request::LinkNode { node, parent: Node::ROOT, name: name(to) };
    world.ask(ADMIN, limit("alice", 1_000, 10));
    let his = file(&mut world, BOB);
    assert_eq!(world.refused(BOB, link(his, "b")), ErrorCode::NotPermitted);
    let hers = file(&mut world, ALICE);
    assert!(matches!(world.ask(ALICE, link(hers, "c")), Response::Stat { .. }));
}

fn recalls(client_id: ClientId, epoch: u64) -> Request {
    Request::Recalls { client_id, epoch, known: 0, wait_ms: 0 }
}

/// Takes leases as a client that answers no recall; returns whether it got one.
fn take_lease(world: &mut World, caller: SessionId, client_id: ClientId, file: Node) -> bool {
    let Response::Recalls { epoch, .. } = world.ask(caller, recalls(client_id, 0)) else { panic!("recalls") };
    world.ask(caller, recalls(client_id, epoch));
    let open = Request::OpenNode {
        node: file,
        access: Access::Read,
        method: Method::AllData,
        client_id,
        reclaim: false,
    };
    match world.ask(caller, open) {
        Response::NodeOpened { node } => node.lease.is_some(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn reader_that_misses_recalls_delays_writer_rarely() {
    let mut world = World::with_accounts(1);
    let reader = [7; 16];
    world.session_as(reader, "reader", Role::ReadOnly);
    let file = world.file(ALICE, "f");
    world.ask(ALICE, super::leases::set_mode(file, 0o644));
    let theirs = world.stat(reader, "/f").unwrap().node();
    let (mut waited, mut number, begun) = (0, 0, world.now);
    // For two hours a client takes every lease that it gets, under new names, and is never silent.
    while world.now < begun + 120 * MINUTE {
        number += 1;
        let client_id = ClientId { number: 1_000 + number % 200 };
        take_lease(&mut world, reader, client_id, theirs);
        loop {
            let change = sealstone_mds_protocol::NodeChange {
                mtime: Some(sealstone_mds_protocol::SetTime::Now),
                ..Default::default()
            };
            let set = Request::SetNode { node: file, change, client_id: None, through: false };
            if matches!(world.ask(ALICE, set), Response::Stat { .. }) {
                break;
            }
            world.now += 500;
            waited += 500;
        }
        world.now += 1_000;
        if number % 100 == 0 {
            world.session(ALICE, "alice", false);
            world.session_as(reader, "reader", Role::ReadOnly);
        }
        world.mds.tidy_memory(world.now);
    }
    assert!(waited > 0, "the first lease is waited for");
    assert!(waited <= 16 * REVOKE_AFTER_MS, "{waited} ms of two hours");
    assert!(world.mds.lease_penalties() >= 6);
    // Other users always get leases.
    world.session(BOB, "bob", false);
    let his = world.stat(BOB, "/f").unwrap().node();
    assert!(take_lease(&mut world, BOB, CLIENT, his));
}

#[test]
fn late_answers_count_as_missed_recalls() {
    let (mut world, reader) = (World::with_accounts(1), [7; 16]);
    world.session_as(reader, "reader", Role::ReadOnly);
    let file = world.file(ALICE, "f");
    world.ask(ALICE, super::leases::set_mode(file, 0o644));
    let theirs = world.stat(reader, "/f").unwrap().node();
    let mut rounds = 0;
    while take_lease(&mut world, reader, CLIENT, theirs) {
        rounds += 1;
        assert!(rounds < 10, "no penalty");
        world.ask(ALICE, super::leases::set_mode(file, 0o644));
        let change = super::leases::set_mode(file, 0o640 + rounds as u16 % 8);
        assert_eq!(world.refused(ALICE, change), ErrorCode::Busy);
        world.now += 2_000;
        let Response::Recalls { recalls, .. } = world.ask(reader, recalls(CLIENT, 0)) else {
            panic!("recalls")
        };
        let recall = *recalls.last().expect("it is recalled");
        let back = Request::ReturnLease { inode: recall.inode, client_id: CLIENT, number: recall.number };
        world.ask(reader, back);
        world.now += 1_000;
    }
    assert!(world.mds.leases.is_penalized(&user("reader"), world.now));
}

#[test]
fn reader_gets_no_exclusive_range_lock() {
    let mut world = World::with_accounts(1);
    let file = world.file(ALICE, "f");
    world.ask(ALICE, super::leases::set_mode(file, 0o644));
    let his = world.stat(BOB, "/f").unwrap().node();
    let open = Request::OpenNode {
        node: his,
        access: Access::Read,
        method: Method::AllData,
        client_id: CLIENT,
        reclaim: false,
    };
    world.ask(BOB, open);
    let lock = |kind, whole, end| Request::LockNode {
        node: his,
        client_id: CLIENT,
        lock: Lock { kind, start: 0, end, owner: 1, pid: 1, whole },
        test: false,
        reclaim: false,
    };
    assert_eq!(world.refused(BOB, lock(LockKind::Write, false, 9)), ErrorCode::Denied);
    assert!(matches!(world.ask(BOB, lock(LockKind::Read, false, 9)), Response::Locked { conflict: None }));
    // flock(2) needs no right to write.
    let whole = lock(LockKind::Write, true, sealstone_mds_protocol::LOCK_TO_END);
    assert!(matches!(world.ask(BOB, whole), Response::Locked { conflict: None }));
}

#[test]
fn full_session_table_ends_own_sessions_first() {
    let mut world = World::with_accounts(1);
    // As if other users had all but two sessions.
    let free = 2;
    world
        .mds
        .update(|tx| {
            let key = crate::keys::meta(crate::records::counter::SESSIONS);
            Ok(crate::records::save(tx, &key, &(crate::sessions::SESSIONS_MAX - free))?)
        })
        .unwrap();
    for number in 10..20 {
        world.session([number; 16], "eve", false);
    }
    world.session([30; 16], "carol", false);
    assert!(matches!(world.ask([30; 16], Request::WhoAmI {}), Response::WhoAmI { .. }));
    assert!(matches!(world.ask(ALICE, Request::WhoAmI {}), Response::WhoAmI { .. }));
    assert_eq!(InodeId(1), world.stat(ALICE, "/").unwrap().inode);
}

#[test]
fn capability_files_delay_a_drain_for_one_lifetime() {
    let mut world = World::with_accounts(2);
    let file = world.put(ALICE, "/f", 100);
    let id = file.layout.objects()[0].device;
    assert!(matches!(world.ask(ADMIN, Request::DeviceDrain { id, rate: 0 }), Response::Device { .. }));
    let (began, life) = (world.now, world.mds.config.delegated_lifetime_ms);
    world.now += 10 * MINUTE;
    let until = world.now + life;
    match world.ask(ALICE, delegate("/f", until)) {
        Response::Delegated { file } => assert_eq!(file.expires_ms, began + life),
        other => panic!("{other:?}"),
    }
    world.now = began + life;
    world.session(ALICE, "alice", false);
    let until = world.now + MINUTE;
    assert_eq!(world.refused(ALICE, delegate("/f", until)), ErrorCode::Limit);
}
