//! Takeover, refresh and resynchronisation of keys, against a device that checks every credential
//! as a real one does, with a crash of either end at every step.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sealstone_crypto::dh::{DhGroup, DhSecret};
use sealstone_mds_protocol::{
    DeviceId, ErrorCode, FILE_PARTITION, KeyInfo, KeyLevel, KeyUse, Request, Response,
};
use sealstone_osd::cdb::{CreatePartition, KeyToSet};
use sealstone_osd::master_key::BothValues;
use sealstone_osd::{Command, ObjectId};
use sealstone_seal::exchange::{EXCHANGE_MS, SeedExchange};
use sealstone_seal::{Algorithm, Credential, Hash, InitialKey, KeySelector, ct_eq, selector};

use super::world::{ADMIN, ALICE, World, new_device};
use crate::device_keys::Keys;
use crate::{KeyAction, KeyStep, KeyStepsResult, StepOutcome};

/// Keys and partitions of a device with real checks and nothing else.
#[derive(Clone)]
struct Osd {
    keys: Keys,
    partitions: BTreeSet<u64>,
    exchange: Option<(Vec<u8>, Vec<u8>, u64)>,
    commands: u64,
}

impl Osd {
    fn new(i: u8) -> Self {
        let new = new_device(i);
        let initial = InitialKey::new(new.master_key.expose()).unwrap();
        let keys = Keys::factory(Hash::Sha256, &initial, new.system_id);
        Self { keys, partitions: BTreeSet::from([0]), exchange: None, commands: 0 }
    }

    /// Whether the device accepts this credential for a command that this key signs.
    fn admits(&self, key: KeySelector, credential: &Credential) -> bool {
        let Some(signing) = self.keys.signing_key(key) else { return false };
        let ours =
            signing.capability_key(Algorithm::HmacSha256, &credential.capability, self.keys.system_id());
        ct_eq(ours.expose(), credential.key.expose())
    }

    fn perform(&mut self, step: &KeyStep, now_ms: u64) -> StepOutcome {
        self.commands += 1;
        let version = step.credential.capability.clear().unwrap().key_version;
        let command = match &step.action {
            KeyAction::SetKey(set) => Command::SetKey(*set),
            KeyAction::ExchangeSeeds { set, .. } | KeyAction::ChangeMaster { set, .. } => {
                Command::SetMasterKey(*set)
            }
            KeyAction::CreatePartition { partition, .. } => {
                Command::CreatePartition(CreatePartition { partition: *partition })
            }
            KeyAction::Identifiers { object, .. } => {
                let partition = object.partition;
                if !self.admits(KeySelector::Working { partition, version }, &step.credential) {
                    return StepOutcome::Denied;
                }
                return StepOutcome::Identifiers(self.identifiers(*object, &step.action));
            }
        };
        if !self.admits(selector(&command, version), &step.credential) {
            return StepOutcome::Denied;
        }
        match &step.action {
            KeyAction::SetKey(set) => {
                if !self.partitions.contains(&set.partition) {
                    return StepOutcome::NoPartition;
                }
                match set.key {
                    KeyToSet::Root => self.keys.set_root(&set.seed, set.identifier),
                    KeyToSet::Partition => {
                        self.keys.set_partition(set.partition, &set.seed, set.identifier).unwrap();
                    }
                    KeyToSet::Working(version) => {
                        self.keys.set_working(set.partition, version, &set.seed, set.identifier).unwrap();
                    }
                }
            }
            KeyAction::ExchangeSeeds { set, value } => {
                if self.exchange.as_ref().is_some_and(|(_, _, until)| now_ms <= *until) {
                    return StepOutcome::Failed;
                }
                let group = DhGroup::from_code(set.group).unwrap();
                let commands = self.commands as u8;
                let secret =
                    DhSecret::draw(group, &mut |into: &mut [u8]| into.fill(commands.wrapping_add(77)));
                let device = secret.public();
                let agreed = secret.agree(value).unwrap();
                let pair = self.keys.exchanged(&SeedExchange {
                    derivation: group.derivation(),
                    group: group.code(),
                    client: value,
                    device: &device,
                    secret: &agreed,
                });
                self.keys.propose_master(pair);
                self.exchange = Some((value.clone(), device.clone(), now_ms + EXCHANGE_MS));
                return StepOutcome::Value(device);
            }
            KeyAction::ChangeMaster { set, values } => {
                let Some((client, device, _)) = self.exchange.take() else { return StepOutcome::Failed };
                let both = BothValues::parse(values).unwrap();
                assert!(both.client == client && both.device == device);
                assert!(self.keys.accept_master(set.identifier));
            }
            KeyAction::CreatePartition { partition, .. } => {
                if self.partitions.insert(*partition) {
                    self.keys.add_partition(*partition).unwrap();
                }
            }
            KeyAction::Identifiers { .. } => unreachable!("answered above"),
        }
        StepOutcome::Done
    }

    fn identifiers(&self, object: ObjectId, action: &KeyAction) -> Vec<Option<Vec<u8>>> {
        let KeyAction::Identifiers { ids, .. } = action else { unreachable!() };
        let partition = object.partition;
        let of = |number: u32| match number {
            0x7FFD => KeySelector::Master,
            0x7FFE => KeySelector::Root,
            0x7FFF => KeySelector::Partition(partition),
            version => KeySelector::Working { partition, version: (version - 0x8000) as u8 },
        };
        ids.iter().map(|id| self.keys.identifier(of(id.number)).map(|value| value.to_vec())).collect()
    }

    /// Simulates a power failure, which a seed exchange does not survive.
    fn restart(&mut self) {
        self.exchange = None;
        self.keys.abandon_master();
    }
}

/// A single fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    /// The server loses power before its n-th commit.
    Commit(u64),
    /// The server loses power before it sends the n-th command.
    BeforeCommand(u64),
    /// The server loses power after the device performed the n-th command.
    AfterCommand(u64),
    /// The answer to the n-th command is lost, and the device loses power.
    Answer(u64),
    /// Both ends lose power.
    Both(u64),
}

/// Runs until no step is left; `false` if the server lost power.
fn keep(world: &mut World, osd: &mut Osd, id: DeviceId, trouble: Trouble) -> bool {
    for _ in 0..200 {
        world.now += 1;
        let Ok(steps) = world.mds.key_steps(id, 3, world.now, &mut world.rng) else { return false };
        if steps.is_empty() {
            if world.mds.keys_ready(id) {
                return true;
            }
            // The device settles.
            world.now += 1_000;
            continue;
        }
        let mut outcomes = Vec::new();
        for step in steps {
            let number = osd.commands;
            if trouble == Trouble::BeforeCommand(number) {
                osd.commands += 1;
                return false;
            }
            let outcome = osd.perform(&step, world.now);
            match trouble {
                Trouble::AfterCommand(n) if n == number => return false,
                Trouble::Both(n) if n == number => {
                    osd.restart();
                    return false;
                }
                Trouble::Answer(n) if n == number => {
                    osd.restart();
                    outcomes.push((step, StepOutcome::Failed));
                }
                _ => outcomes.push((step, outcome)),
            }
        }
        match world.mds.key_steps_done(id, outcomes, world.now, &mut world.rng) {
            Ok(KeyStepsResult::Lost) => panic!("the keys are lost after {trouble:?}"),
            Ok(KeyStepsResult::Going) => {}
            // Later: the device may still wait for the earlier exchange.
            Ok(KeyStepsResult::Stuck) => world.now += 1_000,
            Err(_) => return false,
        }
    }
    panic!(
        "it does not end: {trouble:?} {:?}",
        world.mds.key_steps(id, 9, world.now, &mut world.rng).unwrap().len()
    )
}

/// Checks that the device accepts all signatures of the server, and that both have the same key
/// identifiers.
fn agree(world: &mut World, osd: &Osd, id: DeviceId, note: &str) {
    let (keys, book) = world.mds.devices.key_state(id).unwrap();
    assert!(book.is_ready(), "{note}: {book:?}");
    let mut selectors = vec![KeySelector::Master, KeySelector::Root];
    for (&partition, part) in &book.parts {
        selectors.push(KeySelector::Partition(partition));
        selectors.push(KeySelector::Working { partition, version: part.current });
    }
    for selector in selectors {
        let (ours, theirs) = (keys.signing_key(selector).unwrap(), osd.keys.signing_key(selector));
        assert!(theirs.is_some_and(|theirs| theirs.identity() == ours.identity()), "{note}: {selector:?}");
        assert_eq!(keys.identifier(selector), osd.keys.identifier(selector), "{note}: {selector:?}");
        assert!(keys.identifier(selector).is_some(), "{note}: {selector:?} is the factory's");
    }
}

/// Whether the device accepts a client's credential for the first file partition.
fn grant_fits(world: &World, osd: &Osd, id: DeviceId) -> bool {
    let (keys, book) = world.mds.devices.key_state(id).unwrap();
    let version = book.current(&keys, FILE_PARTITION).unwrap();
    let selector = KeySelector::Working { partition: FILE_PARTITION, version };
    osd.keys.signing_key(selector).is_some_and(|key| keys.holds(selector, key.identity()))
}

fn rotate(world: &mut World, level: KeyLevel, partition: Option<u64>, revoke: bool) {
    let asked = world.ask(ADMIN, Request::KeyRotate { level, device: None, partition, revoke });
    assert!(matches!(asked, Response::KeyProgress { open, .. } if open > 0), "{asked:?}");
}

fn infos(world: &mut World) -> Vec<KeyInfo> {
    let (mut all, mut from) = (Vec::new(), None);
    loop {
        match world.ask(ADMIN, Request::KeyList { device: None, from }) {
            Response::Keys { keys, next } => {
                all.extend(keys);
                if next.is_none() {
                    return all;
                }
                assert!(from != next);
                from = next;
            }
            other => panic!("{other:?}"),
        }
    }
}

fn taken_over() -> (World, Osd, DeviceId) {
    let mut world = World::empty();
    let (id, mut osd) = (world.add_device(0), Osd::new(0));
    assert!(keep(&mut world, &mut osd, id, Trouble::None));
    (world, osd, id)
}

#[test]
fn new_device_gets_fresh_keys() {
    let (mut world, osd, id) = taken_over();
    agree(&mut world, &osd, id, "taken over");
    let factory = Osd::new(0).keys;
    for selector in [
        KeySelector::Master,
        KeySelector::Root,
        KeySelector::Partition(0),
        KeySelector::Working { partition: 0, version: 0 },
    ] {
        let old = factory.signing_key(selector).unwrap().identity();
        assert!(!osd.keys.holds(selector, old), "{selector:?}");
    }
    assert!(osd.partitions.contains(&FILE_PARTITION));
    assert!(infos(&mut world).iter().all(|info| info.usage == KeyUse::Current && info.set_ms > 0));
    let commands = osd.commands;
    let mut osd = osd;
    assert!(keep(&mut world, &mut osd, id, Trouble::None));
    assert_eq!(osd.commands, commands, "there is nothing left to do");
}

#[test]
fn key_change_survives_crash_of_either_end() {
    let kinds: [fn(u64) -> Trouble; 5] =
        [Trouble::Commit, Trouble::BeforeCommand, Trouble::AfterCommand, Trouble::Answer, Trouble::Both];
    for kind in kinds {
        for level in [
            None,
            Some(KeyLevel::Master),
            Some(KeyLevel::Root),
            Some(KeyLevel::Partition),
            Some(KeyLevel::Working),
        ] {
            let mut completed = false;
            for n in 0..60 {
                let (mut world, mut osd, id) = match level {
                    None => {
                        let mut world = World::empty();
                        let id = world.add_device(0);
                        (world, Osd::new(0), id)
                    }
                    Some(_) => taken_over(),
                };
                if let Some(level) = level {
                    rotate(&mut world, level, None, level == KeyLevel::Working);
                    osd.commands = 0;
                }
                let trouble = kind(n);
                if let Trouble::Commit(n) = trouble {
                    world.disk.fail_after(Some(n));
                }
                let whole = keep(&mut world, &mut osd, id, trouble);
                if whole && (n >= osd.commands || matches!(trouble, Trouble::Commit(_))) {
                    completed = true;
                    break;
                }
                world.restart();
                // With and without waiting for the end of the exchange at the device.
                for pause in [0, 30_000] {
                    world.now += pause;
                    let note = format!("{level:?} {trouble:?} pause {pause}");
                    assert!(keep(&mut world, &mut osd, id, Trouble::None), "{note}");
                    agree(&mut world, &osd, id, &note);
                    assert!(grant_fits(&world, &osd, id), "{note}");
                }
            }
            assert!(completed, "the last step lies behind the sixtieth");
        }
    }
}

#[test]
fn old_version_lives_until_last_grant_expires() {
    let (mut world, mut osd, id) = taken_over();
    let (keys, book) = world.mds.devices.key_state(id).unwrap();
    let old = book.current(&keys, FILE_PARTITION).unwrap();
    let working = |version| KeySelector::Working { partition: FILE_PARTITION, version };
    let identity = keys.signing_key(working(old)).unwrap().identity();
    rotate(&mut world, KeyLevel::Working, None, false);
    assert!(keep(&mut world, &mut osd, id, Trouble::None));
    assert!(osd.keys.holds(working(old), identity), "grants under the old key still work");
    assert!(osd.keys.signing_key(working((old + 1) % 16)).is_some());
    let superseded: Vec<KeyInfo> =
        infos(&mut world).into_iter().filter(|info| info.usage == KeyUse::Superseded).collect();
    assert_eq!(superseded.len(), 2, "of partition zero and of the files'");
    world.now += world.mds.config.grant_lifetime_ms() - 100;
    assert!(keep(&mut world, &mut osd, id, Trouble::None));
    assert!(osd.keys.holds(working(old), identity), "the longest grant is still alive");
    world.now += 20_000;
    assert!(keep(&mut world, &mut osd, id, Trouble::None));
    assert!(!osd.keys.holds(working(old), identity), "nobody knows what signs under that version now");
    assert!(infos(&mut world).iter().all(|info| info.usage == KeyUse::Current));
    agree(&mut world, &osd, id, "after the old version died");
}

#[test]
fn revocation_ends_old_versions_of_one_partition() {
    let (mut world, mut osd, id) = taken_over();
    for _ in 0..3 {
        rotate(&mut world, KeyLevel::Working, None, false);
        assert!(keep(&mut world, &mut osd, id, Trouble::None));
    }
    let before = osd.keys.clone();
    rotate(&mut world, KeyLevel::Working, Some(FILE_PARTITION), true);
    assert!(keep(&mut world, &mut osd, id, Trouble::None));
    for version in 0..16 {
        for partition in [0, FILE_PARTITION] {
            let selector = KeySelector::Working { partition, version };
            let Some(key) = before.signing_key(selector) else { continue };
            assert_eq!(osd.keys.holds(selector, key.identity()), partition == 0, "{selector:?}");
        }
    }
    agree(&mut world, &osd, id, "revoked");
}

#[test]
fn excess_rotations_wait_and_keep_grants_valid() {
    let (mut world, mut osd, id) = taken_over();
    let mut alive = Vec::new();
    for _ in 0..40 {
        let (keys, book) = world.mds.devices.key_state(id).unwrap();
        let version = book.current(&keys, FILE_PARTITION).unwrap();
        let selector = KeySelector::Working { partition: FILE_PARTITION, version };
        let until = world.now + world.mds.config.grant_lifetime_ms();
        alive.push((selector, keys.signing_key(selector).unwrap().identity(), until));
        rotate(&mut world, KeyLevel::Working, None, false);
        assert!(keep(&mut world, &mut osd, id, Trouble::None));
        world.now += 9_000;
        alive.retain(|(_, _, until)| *until > world.now);
        for (selector, identity, _) in &alive {
            assert!(osd.keys.holds(*selector, *identity), "{selector:?} before its last grant expired");
        }
    }
}

#[test]
fn keys_rotate_by_age_and_grant_count() {
    let (mut world, mut osd, id) = taken_over();
    world.mds.config.session_idle_ms = u64::MAX;
    let versions = |world: &World| {
        let (keys, book) = world.mds.devices.key_state(id).unwrap();
        book.current(&keys, FILE_PARTITION).unwrap()
    };
    let first = versions(&world);
    world.now += world.mds.config.working_key_age_ms;
    assert!(keep(&mut world, &mut osd, id, Trouble::None));
    assert_eq!(versions(&world), (first + 1) % 16, "by age");
    world.mds.config.credentials_per_key_max = 3;
    world.mds.device_answered(&world.mds.device_address(id).unwrap(), super::world::GIB, 0).unwrap();
    world.mds.device_prepared(&world.mds.device_address(id).unwrap()).unwrap();
    for n in 0..4 {
        world.put(ALICE, &format!("/f{n}"), 1);
    }
    assert!(keep(&mut world, &mut osd, id, Trouble::None));
    assert_eq!(versions(&world), (first + 2) % 16, "by number of grants");
    let identifier = |osd: &Osd| osd.keys.identifier(KeySelector::Partition(FILE_PARTITION)).unwrap();
    let before = identifier(&osd);
    world.now += world.mds.config.partition_key_age_ms;
    assert!(keep(&mut world, &mut osd, id, Trouble::None));
    assert!(identifier(&osd) != before, "the pair by its age");
    agree(&mut world, &osd, id, "refreshed");
}

#[test]
fn no_grants_while_upper_keys_change() {
    let (mut world, mut osd, id) = taken_over();
    world.mds.device_answered(&world.mds.device_address(id).unwrap(), super::world::GIB, 0).unwrap();
    world.mds.device_prepared(&world.mds.device_address(id).unwrap()).unwrap();
    world.put(ALICE, "/f", 1);
    rotate(&mut world, KeyLevel::Partition, Some(FILE_PARTITION), false);
    // The change is stored, and the device may have performed it.
    let steps = world.mds.key_steps(id, 9, world.now, &mut world.rng).unwrap();
    assert!(!steps.is_empty());
    let open = Request::Open {
        path: super::world::path("/f"),
        access: sealstone_mds_protocol::Access::Read,
        method: sealstone_mds_protocol::Method::AllData,
    };
    assert_eq!(world.refused(ALICE, open.clone()), ErrorCode::Busy);
    assert!(keep(&mut world, &mut osd, id, Trouble::None));
    world.open(ALICE, open);
}

/// An older state of the keystore is restored: the highest key that is still valid sets those below
/// it.
#[test]
fn restored_store_recovers_from_highest_valid_key() {
    for level in [KeyLevel::Working, KeyLevel::Partition, KeyLevel::Root] {
        let (mut world, mut osd, id) = taken_over();
        let backup = world.disk.copy();
        rotate(&mut world, level, None, level == KeyLevel::Working);
        assert!(keep(&mut world, &mut osd, id, Trouble::None));
        world.disk = backup;
        world.restart();
        assert!(keep(&mut world, &mut osd, id, Trouble::None), "{level:?}");
        agree(&mut world, &osd, id, &format!("{level:?}"));
    }
}

#[test]
fn formatted_device_gets_partition_and_keys_again() {
    let (mut world, mut osd, id) = taken_over();
    osd.keys.format();
    osd.partitions.retain(|partition| *partition == 0);
    assert!(keep(&mut world, &mut osd, id, Trouble::None));
    assert!(!osd.partitions.contains(&FILE_PARTITION), "nobody looked yet");
    world.mds.check_keys(id).unwrap();
    assert!(keep(&mut world, &mut osd, id, Trouble::None));
    assert!(osd.partitions.contains(&FILE_PARTITION));
    agree(&mut world, &osd, id, "formatted");
}

/// The operator gave the device a new initial key, because the server's keys are lost or invalid.
#[test]
fn lost_device_needs_new_initial_key() {
    let (mut world, _, id) = taken_over();
    let mut new = new_device(0);
    new.master_key = sealstone_mds_protocol::Secret::new(vec![200; 32]).unwrap();
    let add = Request::DeviceAdd { device: new.clone() };
    assert_eq!(world.refused(ADMIN, add.clone()), ErrorCode::Exists, "it still has our keys");
    let initial = InitialKey::new(new.master_key.expose()).unwrap();
    let mut osd = Osd { keys: Keys::factory(Hash::Sha256, &initial, new.system_id), ..Osd::new(0) };
    osd.partitions.insert(FILE_PARTITION);
    osd.keys.add_partition_unset(FILE_PARTITION).unwrap();
    world.mds.check_keys(id).unwrap();
    let mut last = KeyStepsResult::Going;
    while last == KeyStepsResult::Going {
        let steps = world.mds.key_steps(id, 9, world.now, &mut world.rng).unwrap();
        let outcomes = steps.into_iter().map(|step| {
            let outcome = osd.perform(&step, world.now);
            (step, outcome)
        });
        let outcomes = outcomes.collect();
        last = world.mds.key_steps_done(id, outcomes, world.now, &mut world.rng).unwrap();
    }
    assert_eq!(last, KeyStepsResult::Lost);
    world.mds.device_failed(
        &world.mds.device_address(id).unwrap(),
        sealstone_mds_protocol::ProblemKind::Denied,
        "no key fits",
    );
    assert!(matches!(world.ask(ADMIN, add), Response::Device { .. }));
    assert!(keep(&mut world, &mut osd, id, Trouble::None));
    agree(&mut world, &osd, id, "taken over again");
}

#[test]
fn only_administrators_see_and_change_keys() {
    let (mut world, _, id) = taken_over();
    let (level, device, partition, revoke) = (KeyLevel::Working, None, None, false);
    for request in [
        Request::KeyList { device: None, from: None },
        Request::KeyRotate { level, device, partition, revoke },
        Request::KeyProgress { device: None },
    ] {
        assert_eq!(world.refused(ALICE, request), ErrorCode::Denied);
    }
    let rotate = |level, device, partition, revoke| Request::KeyRotate { level, device, partition, revoke };
    assert_eq!(world.refused(ADMIN, rotate(KeyLevel::Root, None, Some(7), false)), ErrorCode::Invalid);
    assert_eq!(world.refused(ADMIN, rotate(KeyLevel::Master, None, None, true)), ErrorCode::Invalid);
    assert_eq!(
        world.refused(ADMIN, rotate(KeyLevel::Working, Some(DeviceId(99)), None, false)),
        ErrorCode::NotFound
    );
    assert_eq!(
        world.refused(ADMIN, rotate(KeyLevel::Working, Some(id), Some(7), false)),
        ErrorCode::NotFound
    );
}

/// Power failure after any transaction of an addition: the device is completely added, or is added
/// again.
#[test]
fn crash_during_device_add_loses_no_key() {
    for commits in 0..4 {
        let mut world = World::empty();
        world.disk.fail_after(Some(commits));
        let failed =
            matches!(world.ask(ADMIN, Request::DeviceAdd { device: new_device(0) }), Response::Failed { .. });
        assert_eq!(failed, commits < 2, "{commits}");
        world.restart();
        let (id, mut osd) = (world.add_device(0), Osd::new(0));
        assert!(keep(&mut world, &mut osd, id, Trouble::None), "{commits}");
        agree(&mut world, &osd, id, "after a crash");
        assert!(world.disk.dump().iter().all(|(key, _)| *key != crate::keys::void_keys(id)));
    }
}

/// Keys of a release that kept a hierarchy in one record: they are loaded, stored again and
/// replaced.
#[test]
fn store_without_partition_records_is_loaded() {
    use crate::store::MetaStore;
    let mut world = World::empty();
    let (id, mut osd) = (world.add_device(0), Osd::new(0));
    let mut old = osd.keys.clone();
    old.add_partition(FILE_PARTITION).unwrap();
    let mut tx = world.disk.begin().unwrap();
    tx.put(&crate::keys::device_key(id), &old.encode()).unwrap();
    for partition in [0, FILE_PARTITION] {
        tx.delete(&crate::keys::partition_key(id, partition)).unwrap();
    }
    tx.commit().unwrap();
    osd.keys = old;
    osd.partitions.insert(FILE_PARTITION);
    world.restart();
    assert!(keep(&mut world, &mut osd, id, Trouble::None));
    agree(&mut world, &osd, id, "of before");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any sequence of changes and power failures ends with both sides in agreement.
    #[test]
    fn random_key_changes_and_crashes_converge(
        history in prop::collection::vec((0u8..5, 0u8..6, 0u64..12, 0u64..40_000), 1..6)
    ) {
        let (mut world, mut osd, id) = taken_over();
        for (level, kind, n, pause) in history {
            let level = *KeyLevel::ALL.get(usize::from(level)).unwrap_or(&KeyLevel::Working);
            rotate(&mut world, level, None, level == KeyLevel::Working && n % 2 == 0);
            osd.commands = 0;
            let trouble = match kind {
                0 => Trouble::None,
                1 => Trouble::Commit(n),
                2 => Trouble::BeforeCommand(n),
                3 => Trouble::AfterCommand(n),
                4 => Trouble::Answer(n),
                _ => Trouble::Both(n),
            };
            if let Trouble::Commit(n) = trouble {
                world.disk.fail_after(Some(n));
            }
            if !keep(&mut world, &mut osd, id, trouble) {
                world.restart();
            }
            world.disk.fail_after(None);
            world.now += pause;
        }
        world.restart();
        prop_assert!(keep(&mut world, &mut osd, id, Trouble::None));
        agree(&mut world, &osd, id, "in the end");
    }
}
