//! Capability files, revocation, and the record of issued credentials.

use std::collections::BTreeSet;
use std::sync::Arc;

use sealstone_mds_protocol::{
    Access, DelegatedFile, DeviceId, ErrorCode, IssueEntry, IssueKind, Method, ObjectRef, Request, Response,
    Revocation, RevocationTarget, Role,
};
use sealstone_osd::{Capability, CapabilityBytes, Descriptor, Generation, Permissions};

use super::world::{ADMIN, ALICE, BOB, World, path, user};
use crate::limits::CREDENTIAL_LIFETIME_MAX_MS;
use crate::{GrantLog, INITIAL_TAG, IssueStream, MemoryGrantLog};

const MINUTE: u64 = 60_000;

fn parsed(bytes: &[u8]) -> Capability {
    CapabilityBytes::new(Generation::Osd2, bytes).unwrap().parse().unwrap()
}

/// Policy access tag and range.
fn scope(capability: &Capability) -> (u32, u64, u64) {
    let Descriptor::User { scope, range, .. } = capability.descriptor else { panic!("a user object") };
    (scope.policy_access_tag, range.start, range.length)
}

fn delegation(at: &str, read: bool, write: bool, start: u64, end: Option<u64>, until_ms: u64) -> Request {
    Request::Delegate { path: path(at), read, write, start, end, until_ms, method: Method::AllData }
}

impl World {
    /// Creates a world with a log of issued credentials.
    pub(super) fn logged(devices: u8) -> (Self, Arc<MemoryGrantLog>) {
        let log = Arc::new(MemoryGrantLog::default());
        let mut world = Self::with_accounts(devices);
        world.log_to(&log);
        (world, log)
    }

    /// Restarts after a power failure that the log survived.
    pub(super) fn log_to(&mut self, log: &Arc<MemoryGrantLog>) {
        let mds = crate::Mds::open(Arc::new(self.disk.clone()), self.mds.config.clone()).unwrap();
        self.mds = mds.with_grant_log(log.clone(), self.now).unwrap();
        for id in [ADMIN, ALICE, BOB] {
            if let Some((record, _)) = self.mds.sessions.find(&self.disk, &id, u64::MAX, self.now).unwrap() {
                self.mds.sessions.resume(id, record, self.now);
            }
        }
    }

    fn delegated(&mut self, request: Request) -> DelegatedFile {
        match self.ask(ALICE, request) {
            Response::Delegated { file } => file,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn revocation(&mut self, request: Request) -> Revocation {
        match self.ask(ADMIN, request) {
            Response::Revocation { revocation } => revocation,
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, at: &str) -> Vec<Capability> {
        let open = Request::Open { path: path(at), access: Access::Read, method: Method::AllData };
        self.open(ALICE, open).grants.iter().map(|grant| parsed(grant.capability.as_slice())).collect()
    }

    /// Confirms pending tags as a device; returns them.
    pub(super) fn tell(&mut self, device: DeviceId, batch: usize) -> Vec<(ObjectRef, u32, bool)> {
        let mut answer = Vec::new();
        loop {
            while self.mds.collect_revocations(self.now).unwrap() {}
            let items = self.mds.next_retags(device, batch).unwrap();
            if items.is_empty() {
                return answer;
            }
            answer.extend(items.iter().map(|item| (item.object, item.tag, item.creates)));
            self.mds.retagged(&items, self.now).unwrap();
        }
    }

    fn issued(&mut self, caller: [u8; 16], at: &str, name: Option<&str>) -> Vec<IssueEntry> {
        let (mut all, mut from) = (Vec::new(), None);
        loop {
            let user = name.map(user);
            let request = Request::IssueList { path: path(at), user, since_ms: 0, until_ms: u64::MAX, from };
            match self.ask(caller, request) {
                Response::Issues { entries, next, .. } => {
                    all.extend(entries);
                    if next.is_none() {
                        return all;
                    }
                    from = next;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn delegated_credential_has_exactly_requested_rights() {
    let mut world = World::with_devices(3);
    let size = 5 << 20;
    let file = world.put(ALICE, "/f", size);
    let unit = u64::from(file.layout.stripe_unit().unwrap());
    // The second unit and the beginning of the third.
    let (start, end) = (unit + 5, 2 * unit + 7);
    let until = world.now + MINUTE;
    let got = world.delegated(delegation("/f", true, false, start, Some(end), until));
    assert_eq!((got.start, got.end, got.read, got.write, got.expires_ms), (start, end, true, false, until));
    assert_eq!(got.grants.len(), 2, "an object without bytes of the range has no credential");
    for (grant, (index, range)) in got.grants.iter().zip([(1, (5, unit - 5)), (2, (0, 7))]) {
        assert_eq!(grant.object, file.layout.objects()[index]);
        let capability = parsed(grant.capability.as_slice());
        assert_eq!(capability.permissions, Permissions::READ);
        assert_eq!(scope(&capability), (INITIAL_TAG, range.0, range.1));
        assert_eq!((capability.expires_ms, capability.audit), (until, got.principal));
    }
    assert_eq!(got.principal[..16], ALICE);
    let whole = world.delegated(delegation("/f", false, true, 0, None, until));
    assert_eq!((whole.start, whole.end, whole.grants.len()), (0, size, file.layout.width()));
    let rights = Permissions::WRITE | Permissions::OBJ_MGMT | Permissions::GET_ATTR;
    assert_eq!(parsed(whole.grants[0].capability.as_slice()).permissions, rights);
}

#[test]
fn delegation_is_limited_to_own_rights() {
    let mut world = World::with_devices(1);
    world.put(ALICE, "/f", 100);
    world.mkdir(ALICE, "/d", 0o755);
    let until = world.now + MINUTE;
    let all = |read, write| delegation("/f", read, write, 0, None, until);
    world.ask(ALICE, Request::SetMode { path: path("/f"), mode: 0o644 });
    assert!(matches!(world.ask(BOB, all(true, false)), Response::Delegated { .. }));
    assert_eq!(world.refused(BOB, all(true, true)), ErrorCode::Denied);
    assert_eq!(world.refused(BOB, all(false, true)), ErrorCode::Denied);
    world.ask(ALICE, Request::SetMode { path: path("/f"), mode: 0o600 });
    assert_eq!(world.refused(BOB, all(true, false)), ErrorCode::Denied);
    let (reader, operator) = ([7; 16], [8; 16]);
    world.session_as(reader, "reader", Role::ReadOnly);
    world.session_as(operator, "operator", Role::Operator);
    world.ask(ALICE, Request::SetMode { path: path("/f"), mode: 0o666 });
    assert!(matches!(world.ask(reader, all(true, false)), Response::Delegated { .. }));
    assert_eq!(world.refused(reader, all(false, true)), ErrorCode::Denied);
    assert_eq!(world.refused(operator, all(true, false)), ErrorCode::Denied);
    // Not without rights, for missing bytes, for longer than the policy permits, for the past, or
    // for directories.
    assert_eq!(world.refused(ALICE, all(false, false)), ErrorCode::Invalid);
    for (start, end) in [(5, Some(5)), (7, Some(5)), (0, Some(101)), (100, None), (u64::MAX, None)] {
        assert_eq!(
            world.refused(ALICE, delegation("/f", true, false, start, end, until)),
            ErrorCode::Invalid
        );
    }
    let life = world.mds.config.delegated_lifetime_ms;
    let living = |ms| delegation("/f", true, false, 0, None, ms);
    let now = world.now;
    assert!(matches!(world.ask(ALICE, living(now + life)), Response::Delegated { .. }));
    // Clocks may differ by five seconds, but the lifetime is not longer.
    let Response::Delegated { file } = world.ask(ALICE, living(now + life + 5_000)) else { panic!("given") };
    assert_eq!(file.expires_ms, now + life);
    assert_eq!(world.refused(ALICE, living(now + life + 5_001)), ErrorCode::Limit);
    assert_eq!(world.refused(ALICE, living(now)), ErrorCode::Invalid);
    assert_eq!(world.refused(ALICE, delegation("/d", true, false, 0, None, until)), ErrorCode::IsADirectory);
    world.mds.config.delegated_lifetime_ms = u64::MAX;
    assert_eq!(world.refused(ALICE, living(now + CREDENTIAL_LIFETIME_MAX_MS + 5_001)), ErrorCode::Limit);
}

#[test]
fn delegated_write_clears_checksum() {
    use sealstone_mds_protocol::{Checksum, ChecksumKind};
    let mut world = World::with_devices(1);
    let file = world.create(ALICE, "/f", Some(9));
    let checksum = Some(Checksum { kind: ChecksumKind::ALL[0], value: [1; 32] });
    world.ask(ALICE, Request::Commit { intent: file.intent, size: 9, mtime_ns: None, checksum });
    let until = world.now + MINUTE;
    world.delegated(delegation("/f", true, false, 0, None, until));
    let before = world.stat(ALICE, "/f").unwrap();
    assert_eq!(before.checksum, checksum);
    // A refusal changes nothing.
    world.refused(ALICE, delegation("/f", false, true, 0, Some(10), until));
    assert_eq!(world.stat(ALICE, "/f").unwrap(), before);
    world.delegated(delegation("/f", false, true, 0, Some(3), until));
    let after = world.stat(ALICE, "/f").unwrap();
    assert_eq!((after.checksum, after.version), (None, before.version + 1));
}

#[test]
fn superseded_key_lives_until_last_credential_expires() {
    use sealstone_mds_protocol::{KeyLevel, KeyUse};
    let mut world = World::with_devices(1);
    world.put(ALICE, "/f", 9);
    let until = world.now + 50 * MINUTE;
    world.delegated(delegation("/f", true, false, 0, None, until));
    let working = |world: &mut World| match world.ask(ADMIN, Request::KeyList { device: None, from: None }) {
        Response::Keys { keys, .. } => keys
            .into_iter()
            .filter(|key| key.level == KeyLevel::Working && key.partition != 0)
            .collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    // The device performs every step.
    let id = DeviceId(1);
    for _ in 0..200 {
        let steps = world.mds.key_steps(id, 8, world.now, &mut world.rng).unwrap();
        let outcomes: Vec<_> = steps
            .into_iter()
            .map(|step| {
                let outcome = match &step.action {
                    crate::KeyAction::ExchangeSeeds { value, .. } => {
                        let mut base = vec![0; value.len()];
                        base[0] = 9;
                        crate::StepOutcome::Value(base)
                    }
                    crate::KeyAction::Identifiers { ids, .. } => {
                        crate::StepOutcome::Identifiers(vec![None; ids.len()])
                    }
                    _ => crate::StepOutcome::Done,
                };
                (step, outcome)
            })
            .filter(|(step, _)| !matches!(step.action, crate::KeyAction::Identifiers { .. }))
            .collect();
        if outcomes.is_empty() {
            break;
        }
        world.mds.key_steps_done(id, outcomes, world.now, &mut world.rng).unwrap();
    }
    world.delegated(delegation("/f", true, false, 0, None, until));
    let rotate =
        Request::KeyRotate { level: KeyLevel::Working, device: None, partition: None, revoke: false };
    world.ask(ADMIN, rotate);
    for _ in 0..8 {
        let steps = world.mds.key_steps(id, 8, world.now, &mut world.rng).unwrap();
        let outcomes: Vec<_> = steps
            .into_iter()
            .filter(|step| matches!(step.action, crate::KeyAction::SetKey(_)))
            .map(|step| (step, crate::StepOutcome::Done))
            .collect();
        if outcomes.is_empty() {
            break;
        }
        world.mds.key_steps_done(id, outcomes, world.now, &mut world.rng).unwrap();
    }
    let superseded: Vec<_> =
        working(&mut world).into_iter().filter(|key| key.usage == KeyUse::Superseded).collect();
    assert_eq!(superseded.len(), 1, "{superseded:?}");
    assert!(superseded[0].dead_ms > until, "{} > {until}", superseded[0].dead_ms);
}

#[test]
fn revoked_object_gets_new_tag() {
    let mut world = World::with_devices(3);
    let file = world.put(ALICE, "/f", 5 << 20);
    world.put(ALICE, "/g", 1);
    let objects: BTreeSet<ObjectRef> = file.layout.objects().iter().copied().collect();
    assert!(world.read("/f").iter().all(|capability| scope(capability).0 == INITIAL_TAG));
    let what = RevocationTarget::Object(path("/f"));
    // Only the owner and administrators may revoke.
    assert_eq!(world.refused(BOB, Request::Revoke { what: what.clone() }), ErrorCode::NotPermitted);
    let mut seen = BTreeSet::from([INITIAL_TAG]);
    for round in 0..3 {
        let begun = world.revocation(Request::Revoke { what: what.clone() });
        assert_eq!(
            (begun.total, begun.open, begun.done_ms),
            (objects.len() as u64, objects.len() as u64, None)
        );
        assert!(begun.complete && !begun.collecting);
        let waiting: BTreeSet<DeviceId> = begun.waiting.iter().map(|one| one.device).collect();
        assert_eq!(waiting, objects.iter().map(|object| object.device).collect());
        let tags: Vec<u32> = world.read("/f").iter().map(|capability| scope(capability).0).collect();
        assert!(tags.iter().all(|tag| seen.insert(*tag)), "a tag is never used twice: {tags:?}");
        assert_eq!(scope(&world.read("/g")[0]).0, INITIAL_TAG, "other files are left alone");
        world.now += 7;
        let mut answer = Vec::new();
        for device in world.mds.retag_devices().unwrap() {
            answer.extend(world.tell(device, 1));
        }
        let by_object: BTreeSet<ObjectRef> = answer.iter().map(|(object, ..)| *object).collect();
        assert_eq!(by_object, objects);
        for (object, tag, creates) in &answer {
            let index = file.layout.objects().iter().position(|one| one == object).unwrap();
            assert_eq!((*tag, *creates), (tags[index], true), "its create was moments ago");
        }
        let done = world.revocation(Request::RevocationProgress { id: begun.id });
        assert_eq!((done.open, done.done_ms), (0, Some(begun.began_ms + 7)), "round {round}");
        assert!(done.waiting.is_empty());
    }
    // A revocation of another user looks like one that does not exist.
    let id = world.revocation(Request::Revoke { what }).id;
    assert_eq!(world.refused(BOB, Request::RevocationProgress { id }), ErrorCode::NotFound);
    assert_eq!(world.refused(ALICE, Request::RevocationProgress { id }), ErrorCode::NotFound);
    assert_eq!(world.refused(ADMIN, Request::RevocationProgress { id: id + 1 }), ErrorCode::NotFound);
    assert_eq!(world.refused(ALICE, Request::RevocationList {}), ErrorCode::Denied);
}

#[test]
fn old_confirmation_does_not_confirm_newer_tag() {
    let mut world = World::with_devices(1);
    world.put(ALICE, "/f", 1);
    let what = RevocationTarget::Object(path("/f"));
    let first = world.revocation(Request::Revoke { what: what.clone() });
    let device = DeviceId(1);
    let under_way = world.mds.next_retags(device, 9).unwrap();
    let second = world.revocation(Request::Revoke { what });
    world.mds.retagged(&under_way, world.now).unwrap();
    for id in [first.id, second.id] {
        assert_eq!(world.revocation(Request::RevocationProgress { id }).open, 1);
    }
    let answer = world.tell(device, 9);
    assert_eq!(answer.len(), 1);
    for id in [first.id, second.id] {
        assert!(world.revocation(Request::RevocationProgress { id }).done_ms.is_some());
    }
    assert_eq!(scope(&world.read("/f")[0]).0, answer[0].1);
}

#[test]
fn disabling_user_revokes_only_own_credentials() {
    let (mut world, _) = World::logged(3);
    for at in ["/mine", "/ours"] {
        world.put(ALICE, at, 5 << 20);
        world.ask(ALICE, Request::SetMode { path: path(at), mode: 0o666 });
    }
    let theirs = world.put(BOB, "/theirs", 1);
    let under_way = world.create(BOB, "/new", Some(5 << 20));
    let open = Request::Open { path: path("/ours"), access: Access::Update, method: Method::AllData };
    let ours = world.open(BOB, open).layout.expect("it has objects");
    let until = world.now + MINUTE;
    let shared = world.ask(BOB, delegation("/ours", true, false, 0, Some(1), until));
    assert!(matches!(shared, Response::Delegated { .. }));
    let begun = world.revocation(Request::UserSetEnabled { name: user("bob"), enabled: false });
    assert!(begun.complete && begun.collecting, "{begun:?}");
    assert_eq!(world.refused(BOB, Request::WhoAmI {}), ErrorCode::NotLoggedIn);
    let mut answer = Vec::new();
    while world.mds.collect_revocations(world.now).unwrap() {}
    for device in world.mds.retag_devices().unwrap() {
        answer.extend(world.tell(device, 5));
    }
    let answer: BTreeSet<ObjectRef> = answer.iter().map(|(object, ..)| *object).collect();
    let layouts = [&theirs.layout, &under_way.layout, &ours];
    let held = layouts.iter().flat_map(|layout| layout.objects().to_vec()).collect::<BTreeSet<_>>();
    assert_eq!(answer, held);
    assert!(world.read("/mine").iter().all(|capability| scope(capability).0 == INITIAL_TAG));
    assert!(world.read("/ours").iter().all(|capability| scope(capability).0 != INITIAL_TAG));
    let done = world.revocation(Request::RevocationProgress { id: begun.id });
    assert_eq!((done.total, done.open, done.collecting), (held.len() as u64, 0, false));
    assert!(done.done_ms.is_some());
    // A user without credentials is done immediately; an unknown name is a mistake.
    let none = world.revocation(Request::Revoke { what: RevocationTarget::User(user("alice")) });
    assert!(none.collecting);
    assert_eq!(
        world.refused(ADMIN, Request::Revoke { what: RevocationTarget::User(user("nobody")) }),
        ErrorCode::NotFound
    );
    assert_eq!(
        world.refused(ALICE, Request::Revoke { what: RevocationTarget::User(user("alice")) }),
        ErrorCode::Denied
    );
}

/// A removed object could be created again with a valid credential, so it stays until none is
/// valid.
#[test]
fn revoked_object_stays_until_create_credentials_expire() {
    let (mut world, _) = World::logged(1);
    let committed = world.put(BOB, "/f", 1);
    let under_way = world.create(BOB, "/g", Some(1));
    let until = world.now + world.mds.config.grant_lifetime_ms;
    world.revocation(Request::UserSetEnabled { name: user("bob"), enabled: false });
    let answer = world.tell(DeviceId(1), 9);
    assert_eq!(answer.len(), 2);
    assert!(answer.iter().all(|(.., creates)| *creates));
    world.ask(ADMIN, Request::Remove { path: path("/f"), recursive: false });
    world.now = until;
    assert_eq!(world.reap_all(), [], "the credentials are alive still");
    world.now = until + 1;
    let removed: BTreeSet<ObjectRef> = world.reap_all().into_iter().collect();
    let expected =
        [&committed.layout, &under_way.layout].iter().flat_map(|one| one.objects().to_vec()).collect();
    assert_eq!(removed, expected);
    assert!(!world.disk.dump().iter().any(|(key, _)| key[0] == b'a'), "nothing is known of them any more");
}

#[test]
fn revocation_continues_after_crash() {
    let mut crash_at = 0;
    loop {
        let (mut world, log) = World::logged(3);
        let mut held = BTreeSet::new();
        for n in 0..4 {
            held.extend(world.put(BOB, &format!("/{n}"), 5 << 20).layout.objects().to_vec());
        }
        held.extend(world.create(BOB, "/new", Some(1)).layout.objects().to_vec());
        world.disk.fail_after(Some(crash_at));
        let asked = world.ask(ADMIN, Request::UserSetEnabled { name: user("bob"), enabled: false });
        let promised = matches!(asked, Response::Revocation { .. });
        let mut ended = true;
        // Some devices confirm before the power failure.
        'before: for _ in 0..4 {
            match world.mds.collect_revocations(world.now) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(_) => {
                    ended = false;
                    break;
                }
            }
            for device in (1..=3).map(DeviceId) {
                let items = world.mds.next_retags(device, 2).unwrap();
                if !items.is_empty() && world.mds.retagged(&items, world.now).is_err() {
                    ended = false;
                    break 'before;
                }
            }
        }
        world.disk.fail_after(None);
        world.log_to(&log);
        if promised {
            assert_eq!(world.refused(BOB, Request::WhoAmI {}), ErrorCode::NotLoggedIn, "crash at {crash_at}");
            while world.mds.collect_revocations(world.now).unwrap() {}
            for device in world.mds.retag_devices().unwrap() {
                world.tell(device, 3);
            }
            let Response::Revocations { revocations } = world.ask(ADMIN, Request::RevocationList {}) else {
                panic!("a list")
            };
            let one = &revocations[0];
            assert!(revocations.len() == 1 && one.done_ms.is_some(), "crash at {crash_at}: {one:?}");
            let tags = world.disk.dump().iter().filter(|(key, _)| key[0] == b'a').count();
            assert_eq!(tags, held.len(), "crash at {crash_at}: every object that he held has a new tag");
        } else {
            let list = world.ask(ADMIN, Request::RevocationList {});
            assert!(matches!(list, Response::Revocations { revocations } if revocations.is_empty()));
        }
        if promised && ended {
            break;
        }
        crash_at += 1;
        assert!(crash_at < 100);
    }
    assert!(crash_at > 3, "it takes several commits");
}

#[test]
fn revocation_counts_objects_across_batches() {
    let (mut world, _) = World::logged(1);
    let files = 2_100;
    for n in 0..files {
        world.put(BOB, &format!("/{n}"), 1);
    }
    let begun = world.revocation(Request::Revoke { what: RevocationTarget::User(user("bob")) });
    let answer = world.tell(DeviceId(1), 500);
    assert_eq!(answer.len(), files);
    let done = world.revocation(Request::RevocationProgress { id: begun.id });
    assert_eq!((done.total, done.open), (files as u64, 0));
    let tags: BTreeSet<u32> = answer.iter().map(|(_, tag, _)| *tag).collect();
    assert_eq!(tags.len(), files);
}

#[test]
fn pending_revocations_are_bounded_and_kept() {
    let mut world = World::with_devices(1);
    world.put(ALICE, "/f", 1);
    let revoke = Request::Revoke { what: RevocationTarget::Object(path("/f")) };
    for _ in 0..crate::revoke::REVOCATIONS_MAX {
        world.revocation(revoke.clone());
    }
    assert_eq!(world.refused(ADMIN, revoke.clone()), ErrorCode::Limit);
    world.tell(DeviceId(1), 9);
    let one_more = world.revocation(revoke);
    assert_eq!(one_more.open, 1);
}

#[test]
fn issued_credentials_survive_restart() {
    let (mut world, log) = World::logged(1);
    world.put(ALICE, "/f", 1);
    world.ask(ALICE, Request::SetMode { path: path("/f"), mode: 0o644 });
    world.read("/f");
    let until = world.now + 10 * MINUTE;
    assert!(matches!(
        world.ask(BOB, delegation("/f", true, false, 0, None, until)),
        Response::Delegated { .. }
    ));
    let before: BTreeSet<u32> = world.issued(ALICE, "/f", None).iter().map(|entry| entry.number).collect();
    world.log_to(&log);
    let held = world.mds.credentials_of(&user("bob"), world.now);
    assert!(held.complete && held.holders.len() == 1 && !held.holders[0].writes, "{held:?}");
    let alice = world.mds.credentials_of(&user("alice"), world.now);
    assert!(alice.holders[0].writes, "her create is alive still");
    // No number is used for two credentials.
    world.read("/f");
    let after: Vec<u32> = world
        .issued(ALICE, "/f", Some("alice"))
        .iter()
        .filter(|entry| entry.session == ALICE)
        .map(|entry| entry.number)
        .collect();
    assert_eq!(after.iter().collect::<BTreeSet<_>>().len(), after.len(), "{after:?} after {before:?}");
    world.now = until + 1;
    world.session(ADMIN, "admin", true);
    assert!(world.mds.credentials_of(&user("bob"), world.now).holders.is_empty());
}

/// A new log, or one that lost its end in a power failure.
struct Torn(MemoryGrantLog);

impl GrantLog for Torn {
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

    fn known_since_ms(&self, stream: IssueStream) -> u64 {
        self.0.known_since_ms(stream)
    }

    fn is_whole(&self) -> bool {
        false
    }

    fn sync(&self) -> std::io::Result<()> {
        self.0.sync()
    }
}

#[test]
fn credential_numbers_stay_unique_after_power_failure() {
    let (mut world, _) = World::logged(1);
    world.put(ALICE, "/f", 1);
    for _ in 0..5 {
        world.read("/f");
    }
    let before: Vec<u32> = world.issued(ALICE, "/f", None).iter().map(|entry| entry.number).collect();
    let torn: Arc<dyn GrantLog> = Arc::new(Torn(MemoryGrantLog::default()));
    let mds = crate::Mds::open(Arc::new(world.disk.clone()), world.mds.config.clone()).unwrap();
    world.mds = mds.with_grant_log(torn, world.now).unwrap();
    world.take_up();
    world.read("/f");
    let after: Vec<u32> = world.issued(ALICE, "/f", None).iter().map(|entry| entry.number).collect();
    assert!(!after.is_empty() && after.iter().all(|number| !before.contains(number)), "{before:?} {after:?}");
    assert!(!world.mds.credentials_of(&user("alice"), world.now).complete);
}

#[test]
fn issue_record_is_visible_to_owner_only() {
    let (mut world, _) = World::logged(1);
    world.put(ALICE, "/f", 10);
    world.put(ALICE, "/other", 10);
    world.ask(ALICE, Request::SetMode { path: path("/f"), mode: 0o600 });
    let read = Request::Open { path: path("/f"), access: Access::Read, method: Method::AllData };
    assert_eq!(world.refused(BOB, read), ErrorCode::Denied);
    let until = world.now + MINUTE;
    let file = world.delegated(delegation("/f", true, false, 2, Some(5), until));
    let kinds = |entries: &[IssueEntry]| entries.iter().map(|entry| entry.kind).collect::<Vec<_>>();
    let list =
        Request::IssueList { path: path("/f"), user: None, since_ms: 0, until_ms: u64::MAX, from: None };
    assert_eq!(world.refused(BOB, list), ErrorCode::NotPermitted);
    for caller in [ALICE, ADMIN] {
        let entries = world.issued(caller, "/f", None);
        assert_eq!(kinds(&entries), [IssueKind::Create, IssueKind::Delegate, IssueKind::Refused]);
        let delegated = &entries[1];
        let principal = [&delegated.session[..], &delegated.number.to_be_bytes()].concat();
        assert_eq!(principal, file.principal);
        assert_eq!((delegated.start, delegated.end, delegated.expires_ms), (2, 5, until));
        assert_eq!(delegated.permissions, 0x8000, "READ");
        assert_eq!(entries[2].user, user("bob"));
    }
    assert_eq!(kinds(&world.issued(ALICE, "/f", Some("bob"))), [IssueKind::Refused]);
    let now = world.now;
    let at = |since_ms, until_ms| Request::IssueList {
        path: path("/f"),
        user: None,
        since_ms,
        until_ms,
        from: None,
    };
    for (request, expected) in [(at(now + 1, u64::MAX), 0), (at(0, now - 1), 0), (at(now, now), 2)] {
        let Response::Issues { entries, .. } = world.ask(ALICE, request) else { panic!("a page") };
        assert_eq!(entries.len(), expected);
    }
}

/// A full log, or one whose disk failed.
#[derive(Debug, Default)]
struct Broken;

impl GrantLog for Broken {
    fn append(&self, _: IssueStream, _: u64, _: &[u8], _: bool) -> std::io::Result<()> {
        Err(std::io::ErrorKind::StorageFull.into())
    }

    fn read(
        &self,
        _: IssueStream,
        _: u64,
        _: u64,
        _: usize,
        _: &mut dyn FnMut(&[u8]) -> bool,
    ) -> std::io::Result<Option<u64>> {
        Ok(None)
    }

    fn known_since_ms(&self, _: IssueStream) -> u64 {
        0
    }

    fn is_whole(&self) -> bool {
        true
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn unrecorded_credential_is_not_issued() {
    let mut world = World::with_devices(1);
    world.put(ALICE, "/f", 1);
    let mds = crate::Mds::open(Arc::new(world.disk.clone()), world.mds.config.clone()).unwrap();
    world.mds = mds.with_grant_log(Arc::new(Broken), world.now).unwrap();
    for id in [ALICE, BOB] {
        let (record, _) = world.mds.sessions.find(&world.disk, &id, u64::MAX, world.now).unwrap().unwrap();
        world.mds.sessions.resume(id, record, world.now);
    }
    let read = Request::Open { path: path("/f"), access: Access::Read, method: Method::AllData };
    assert_eq!(world.refused(ALICE, read), ErrorCode::NoSpace);
    let until = world.now + MINUTE;
    assert_eq!(world.refused(ALICE, delegation("/f", true, false, 0, None, until)), ErrorCode::NoSpace);
    world.ask(BOB, delegation("/nowhere", true, false, 0, None, until));
}
