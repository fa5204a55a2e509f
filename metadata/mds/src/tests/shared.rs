//! Two servers on one store.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::StdRng;
use sealstone_mds_protocol::FILE_PARTITION;
use sealstone_mds_protocol::{
    Access, DevicePin, DeviceState, ErrorCode, KeyLevel, Method, ObjectRef, PinKind, ProblemKind, Request,
    Response, Revocation, RevocationTarget, Text,
};
use sealstone_osd::{CapabilityBytes, Generation, ObjectId};

use super::world::{ADMIN, ALICE, BOB, World, path, user};
use crate::election::LEASE_MS;
use crate::limits::CREDENTIAL_LIFETIME_MAX_MS;
use crate::server_registry::SERVERS_MAX;
use crate::{Config, Mds, MdsError, ServerPurpose};

impl World {
    /// Opens another server on the same store; it knows the three sessions as after a resumption.
    pub(super) fn beside(&self, server: u8) -> Self {
        let config = Config { shared: true, server: [server; 16], ..Config::default() };
        let mds = Mds::open(Arc::new(self.disk.clone()), config).unwrap();
        let rng = StdRng::seed_from_u64(u64::from(server));
        mds.register(self.now).unwrap();
        let world = Self { disk: self.disk.clone(), mds, rng, now: self.now };
        world.take_up();
        world
    }

    pub(super) fn two(devices: u8) -> [Self; 2] {
        let alone = Self::with_devices(devices);
        [alone.beside(0x10), alone.beside(0x20)]
    }

    fn revoked(&mut self, request: Request) -> Revocation {
        match self.ask(ADMIN, request) {
            Response::Revocation { revocation } => revocation,
            other => panic!("{other:?}"),
        }
    }

    fn told_objects(&self) -> BTreeSet<ObjectRef> {
        let mut objects = BTreeSet::new();
        for device in self.mds.retag_devices().unwrap() {
            objects.extend(self.mds.next_retags(device, 99).unwrap().iter().map(|item| item.object));
        }
        objects
    }
}

#[test]
fn file_changes_are_visible_at_other_server() {
    let [mut one, mut other] = World::two(2);
    one.put(ALICE, "/f", 5);
    assert_eq!(other.stat(ALICE, "/f").unwrap().size, 5);
    other.ask(ALICE, Request::Remove { path: path("/f"), recursive: false });
    assert_eq!(one.stat(ALICE, "/f").unwrap_err(), ErrorCode::NotFound);
    let numbers = [one.put(ALICE, "/a", 1), other.put(ALICE, "/b", 1), one.put(ALICE, "/c", 1)];
    let objects: BTreeSet<ObjectRef> =
        numbers.iter().flat_map(|file| file.layout.objects().to_vec()).collect();
    assert_eq!(objects.len(), 3, "no object is given out twice");
}

#[test]
fn session_end_applies_to_other_server() {
    let [mut one, mut other] = World::two(1);
    for world in [&mut one, &mut other] {
        assert!(matches!(world.ask(ALICE, Request::WhoAmI {}), Response::WhoAmI { .. }));
        assert!(matches!(world.ask(BOB, Request::WhoAmI {}), Response::WhoAmI { .. }));
    }
    one.mds.logout(&ALICE, false, one.now).unwrap();
    assert_eq!(other.refused(ALICE, Request::WhoAmI {}), ErrorCode::NotLoggedIn);
    assert!(matches!(other.ask(BOB, Request::WhoAmI {}), Response::WhoAmI { .. }), "others go on");
    let group = sealstone_mds_protocol::GroupName::new("g").unwrap();
    one.ask(ADMIN, Request::GroupCreate { name: group });
    let seen = other.ask(ADMIN, Request::GroupList { after: None, limit: 9 });
    assert!(matches!(seen, Response::Groups { groups, .. } if groups.len() == 1));
}

#[test]
fn device_changes_are_reloaded_by_other_server() {
    let [mut one, mut other] = World::two(1);
    let id = one.add_device(7);
    let known = other.ask(ADMIN, Request::DeviceList { after: None, limit: 9 });
    assert!(
        matches!(known, Response::Devices { devices, .. } if devices.iter().any(|device| device.id == id))
    );
    let rotate =
        Request::KeyRotate { level: KeyLevel::Working, device: None, partition: None, revoke: false };
    let asked = other.ask(ADMIN, rotate);
    assert!(matches!(asked, Response::KeyProgress { open, .. } if open > 0), "{asked:?}");
    one.mds.catch_up().unwrap();
    let progress = one.ask(ADMIN, Request::KeyProgress { device: None });
    assert_eq!(format!("{progress:?}"), format!("{asked:?}"));
}

#[test]
fn registration_by_other_server_drops_earlier_results() {
    let [mut one, other] = World::two(1);
    let earlier = other.mds.devices()[0].0.clone();
    assert!(other.mds.device_failed(&earlier, ProblemKind::Silent, "no answer"));
    // A change that is no registration keeps the problem.
    one.mds.change_device(earlier.id, Some(DeviceState::Draining)).unwrap();
    other.mds.catch_up().unwrap();
    assert_eq!((other.mds.devices()[0].0.clone(), other.mds.is_device_healthy(earlier.id)), (earlier, false));
    let mut device = super::world::new_device(0);
    let pin = DevicePin { kind: PinKind::Certificate, hash: [5; 32] };
    for step in 0..2 {
        let earlier = other.mds.devices()[0].0.clone();
        match step {
            0 => device.url = Text::new("iscsi://h:2/iqn/0").unwrap(),
            _ => device.pin = Some(pin),
        }
        other.mds.device_failed(&earlier, ProblemKind::Silent, "no answer");
        one.ask(ADMIN, Request::DeviceAdd { device: device.clone() });
        other.mds.catch_up().unwrap();
        assert!(other.mds.is_device_healthy(earlier.id), "step {step}");
        assert!(!other.mds.device_failed(&earlier, ProblemKind::Silent, "no answer"), "step {step}");
    }
}

#[test]
fn outdated_server_cannot_overwrite_newer_keys() {
    let [one, other] = World::two(1);
    let id = one.mds.devices()[0].0.id;
    let mut rng = StdRng::seed_from_u64(1);
    other.mds.change_device(id, Some(DeviceState::Draining)).unwrap();
    let before = one.disk.dump();
    // Neither the device nor its keys can be changed from outdated state.
    let record = one.mds.change_device(id, Some(DeviceState::Unreachable));
    assert!(matches!(record, Err(MdsError::Refused(failure)) if failure.code == ErrorCode::Busy));
    let steps = one.mds.key_steps(id, 9, one.now, &mut rng);
    let changes = steps.is_ok_and(|steps| steps.iter().any(crate::KeyStep::changes_a_key));
    assert!(!changes, "no key is changed by who is behind");
    assert_eq!(one.disk.dump(), before);
    one.mds.catch_up().unwrap();
    assert_eq!(one.mds.devices()[0].1, DeviceState::Draining);
    one.mds.change_device(id, Some(DeviceState::Active)).unwrap();
    other.mds.catch_up().unwrap();
    assert_eq!(other.mds.devices()[0].1, DeviceState::Active);
}

#[test]
fn other_server_takes_over_silent_leader() {
    let [one, other] = World::two(1);
    let mut now = one.now;
    assert!(one.mds.leads(now).unwrap());
    for _ in 0..20 {
        now += LEASE_MS / 5;
        assert!(one.mds.leads(now).unwrap(), "who renews goes on");
        assert!(!other.mds.leads(now).unwrap() && !other.mds.is_leading(now));
        assert!(one.mds.is_leading(now));
    }
    // From here on the first server is silent; by its own clock it is the leader for less time than
    // the other waits.
    let silent_since = now;
    while !other.mds.leads(now).unwrap() {
        now += LEASE_MS / 5;
        assert!(now < silent_since + 2 * LEASE_MS, "the other takes over");
    }
    assert!(!one.mds.is_leading(now), "by its own word the first has stopped before");
    assert!(!one.mds.leads(now).unwrap(), "the first finds that it was followed");
    assert!(other.mds.is_leading(now));
    // The same server, started again, is still the leader.
    let again = other.beside(0x20);
    assert!(again.mds.leads(now + 1).unwrap());
}

#[test]
fn device_refuses_truncation_after_leader_lease() {
    let [one, other] = World::two(1);
    let (device, now) = (one.mds.devices()[0].0.id, one.now);
    assert!(one.mds.leads(now).unwrap() && !other.mds.leads(now).unwrap());
    let purpose = ServerPurpose::TruncateObject(ObjectId::new(FILE_PARTITION, 77));
    let mut rng = StdRng::seed_from_u64(1);
    for later in [0, 1, LEASE_MS / 2] {
        let credential = one.mds.own_credential(device, purpose, now + later, &mut rng).unwrap();
        let expires_ms = credential.capability.parse().unwrap().expires_ms;
        assert!(expires_ms > now + later && expires_ms < now + LEASE_MS, "{expires_ms}");
        assert!(!other.mds.leads(now + later).unwrap());
    }
    for (world, at) in [(&other, now), (&one, now + LEASE_MS)] {
        let refused = world.mds.own_credential(device, purpose, at, &mut rng);
        assert!(matches!(refused, Err(MdsError::Refused(failure)) if failure.code == ErrorCode::Busy));
    }
}

#[test]
fn servers_with_same_name_do_not_both_lead() {
    let alone = World::with_devices(1);
    let [one, copy] = [alone.beside(5), alone.beside(5)];
    let mut now = one.now;
    assert!(one.mds.leads(now).unwrap());
    // It may be the first one, started again.
    assert!(copy.mds.leads(now).unwrap());
    for _ in 0..9 {
        now += LEASE_MS / 5;
        let refused = one.mds.leads(now);
        assert!(matches!(refused, Err(MdsError::Refused(failure)) if failure.code == ErrorCode::Exists));
        assert!(!one.mds.is_leading(now));
        assert!(copy.mds.leads(now).unwrap());
    }
}

#[test]
fn revocation_waits_for_all_servers() {
    let [mut one, mut other] = World::two(2);
    let files = [one.put(ALICE, "/a", 1), one.put(ALICE, "/b", 1)];
    let open = |at: &str| Request::Open { path: path(at), access: Access::Read, method: Method::AllData };
    other.open(ALICE, open("/b"));
    let third = other.put(ALICE, "/c", 1);
    let begun = one.revoked(Request::Revoke { what: RevocationTarget::User(user("alice")) });
    assert!(begun.collecting);
    while one.mds.collect_revocations(one.now).unwrap() {}
    let half: BTreeSet<ObjectRef> = files.iter().flat_map(|file| file.layout.objects().to_vec()).collect();
    assert_eq!(one.told_objects(), half);
    let progress = Request::RevocationProgress { id: begun.id };
    assert!(one.revoked(progress.clone()).collecting, "the other server has not looked yet");
    while other.mds.collect_revocations(other.now).unwrap() {}
    let all: BTreeSet<ObjectRef> = half.iter().chain(third.layout.objects()).copied().collect();
    assert_eq!(one.told_objects(), all);
    assert!(!one.revoked(progress).collecting);
}

#[test]
fn disabled_user_gets_nothing_from_cached_session() {
    let [mut one, mut other] = World::two(1);
    one.put(ALICE, "/a", 1);
    one.ask(ALICE, Request::SetMode { path: path("/a"), mode: 0o644 });
    let open = Request::Open { path: path("/a"), access: Access::Read, method: Method::AllData };
    other.open(BOB, open.clone());
    one.mds.logout(&BOB, false, one.now).unwrap();
    assert_eq!(other.refused(BOB, open), ErrorCode::NotLoggedIn);
}

#[test]
fn revocation_waits_for_silent_server_credentials() {
    let [mut one, mut other] = World::two(1);
    other.put(ALICE, "/a", 1);
    let begun = one.revoked(Request::Revoke { what: RevocationTarget::User(user("alice")) });
    drop(other);
    let end = one.now + CREDENTIAL_LIFETIME_MAX_MS;
    while one.now < end {
        one.mds.leads(one.now).unwrap();
        while one.mds.collect_revocations(one.now).unwrap() {}
        assert!(one.mds.revocation_waits(begun.id), "{}", one.now);
        one.now += CREDENTIAL_LIFETIME_MAX_MS / 3;
    }
    one.now = end + 1;
    assert!(one.mds.leads(one.now).unwrap());
    while one.mds.collect_revocations(one.now).unwrap() {}
    assert!(!one.mds.revocation_waits(begun.id));
}

#[test]
fn servers_use_disjoint_grant_numbers() {
    let [mut one, mut other] = World::two(1);
    one.put(ALICE, "/a", 1);
    let audit = |world: &mut World| {
        let open = Request::Open { path: path("/a"), access: Access::Read, method: Method::AllData };
        let grants = world.open(ALICE, open).grants;
        let bytes = CapabilityBytes::new(Generation::Osd2, grants[0].capability.as_slice()).unwrap();
        bytes.parse().unwrap().audit
    };
    let (here, there) = (audit(&mut one), audit(&mut other));
    assert_eq!(here[..16], there[..16], "the session");
    assert_ne!(here[16..], there[16..], "and the number in it");
}

#[test]
fn credential_numbers_are_unique_across_servers() {
    let alone = World::with_devices(1);
    // Two names with the same beginning.
    let [mut one, mut other] = [0x10, 0x20].map(|last| {
        let mut name = [7; 16];
        name[15] = last;
        let mut world = alone.beside(9);
        let config = Config { shared: true, server: name, ..Config::default() };
        world.mds = Mds::open(Arc::new(alone.disk.clone()), config).unwrap();
        world.mds.register(world.now).unwrap();
        world.take_up();
        world
    });
    one.put(ALICE, "/a", 1);
    let mut seen = BTreeSet::new();
    let mut next = |world: &mut World| {
        let open = Request::Open { path: path("/a"), access: Access::Read, method: Method::AllData };
        let grants = world.open(ALICE, open).grants;
        let bytes = CapabilityBytes::new(Generation::Osd2, grants[0].capability.as_slice()).unwrap();
        seen.insert(bytes.parse().unwrap().audit)
    };
    for _ in 0..3 {
        assert!(next(&mut one) && next(&mut other));
    }
    // For a while the session is used at the other server only.
    let idle = one.mds.config.session_idle_ms;
    for _ in 0..4 {
        other.now += idle / 2;
        other.ask(ALICE, Request::WhoAmI {});
        other.mds.settle().unwrap();
    }
    one.now = other.now;
    one.mds.tidy_memory(one.now);
    assert_eq!(one.refused(ALICE, Request::WhoAmI {}), ErrorCode::NotLoggedIn);
    one.take_up();
    for _ in 0..3 {
        assert!(next(&mut one) && next(&mut other));
    }
}

#[test]
fn servers_are_bounded_and_expired() {
    let alone = World::empty();
    for number in 0..SERVERS_MAX {
        let mut name = [9; 16];
        name[..2].copy_from_slice(&(number as u16).to_be_bytes());
        let config = Config { shared: true, server: name, ..Config::default() };
        Mds::open(Arc::new(alone.disk.clone()), config).unwrap().register(alone.now).unwrap();
    }
    let config = Config { shared: true, server: [0xFF; 16], ..Config::default() };
    let late = Mds::open(Arc::new(alone.disk.clone()), config).unwrap();
    let refused = late.register(alone.now);
    assert!(matches!(refused, Err(MdsError::Refused(failure)) if failure.code == ErrorCode::Limit));
    let mut name = [9; 16];
    name[..2].copy_from_slice(&0u16.to_be_bytes());
    let config = Config { shared: true, server: name, ..Config::default() };
    let first = Mds::open(Arc::new(alone.disk.clone()), config).unwrap();
    let later = alone.now + 2 * CREDENTIAL_LIFETIME_MAX_MS;
    for beat in 0..20 {
        first.leads(later + beat * LEASE_MS / 2).unwrap();
    }
    late.register(later + 10 * LEASE_MS).unwrap();
}
