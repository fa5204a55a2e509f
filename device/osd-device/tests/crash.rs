//! Power loss at every step of every command that changes keys: after a restart the device has the
//! old or the new keys, and the matching partitions (docs/design/security.md 3.6: one journaled
//! transaction).

use std::sync::Arc;

use crate::support::{Bench, Fake, ListPair, PID, START_MS};
use sealstone_crypto::dh::{DhGroup, DhSecret};
use sealstone_osd::cdb::*;
use sealstone_osd::master_key::{BothValues, parse_device_value};
use sealstone_osd::{Command, ObjectId};
use sealstone_osd_device::folder::{self, Folder};
use sealstone_osd_device::keyfile::{KEYS_FILE, SEAL_FILE, SealedKeyFile};
use sealstone_osd_device::sim::{FolderFault, SimFolder};
use sealstone_osd_device::{DeviceEnvironment, KeyRecord, OsdConfig, ProvisionError};
use sealstone_scsi::Status;
use sealstone_seal::exchange::SeedExchange;
use sealstone_store::sim::{DiskFault, SimMedium};
use sealstone_store::{DiskStore, FormatOptions, ObjectStore, StoreOptions};

/// State that survives a power loss.
#[derive(Clone)]
struct Media {
    folder: SimFolder,
    disk: SimMedium,
    starts: u16,
}

impl Media {
    fn new(seed: u64) -> Self {
        let disk = SimMedium::new(seed);
        sealstone_store::format(&disk, &FormatOptions::new(64 << 20, [7; 16])).unwrap();
        Self { folder: SimFolder::new(seed), disk, starts: 0 }
    }

    fn fork(&self) -> Self {
        Self { folder: self.folder.fork(), disk: self.disk.fork(), starts: self.starts }
    }

    fn crash(&self) -> Self {
        Self { folder: self.folder.crash(), disk: self.disk.crash(), starts: self.starts }
    }

    fn boot(&mut self) -> Bench {
        self.starts += 1;
        let store: Arc<dyn ObjectStore> =
            Arc::new(DiskStore::open(Arc::new(self.disk.clone()), StoreOptions::default()).unwrap());
        let environment: Arc<dyn DeviceEnvironment> = Arc::new(Fake::default());
        let folder: Arc<dyn Folder> = Arc::new(self.folder.clone());
        let first = self.folder.read(KEYS_FILE, 1 << 20).unwrap().is_none();
        let (file, stored) = if first {
            (SealedKeyFile::create(folder, environment).unwrap(), None)
        } else {
            let (file, stored) = SealedKeyFile::open(folder, environment, 0).unwrap();
            (file, Some(stored))
        };
        let record = KeyRecord { stored, store: Box::new(file) };
        let lease = if self.starts == 1 { 0 } else { START_MS - 1 };
        Bench::start_with(OsdConfig::default(), store, self.starts, lease, record)
    }
}

/// A command that changes keys, and the same change in the manager's own hierarchy.
#[derive(Clone, Copy, Debug)]
enum Change {
    Root,
    Partition,
    Working,
    Master,
    CreatePartition,
    RemovePartition,
    Format,
}

const CHANGES: [Change; 7] = [
    Change::Root,
    Change::Partition,
    Change::Working,
    Change::Master,
    Change::CreatePartition,
    Change::RemovePartition,
    Change::Format,
];
const NEW_PID: u64 = PID + 5;

impl Change {
    fn command(self) -> Command {
        let set =
            |partition, key| Command::SetKey(SetKey { partition, key, identifier: [9; 7], seed: [9; 20] });
        match self {
            Self::Root => set(0, KeyToSet::Root),
            Self::Partition => set(PID, KeyToSet::Partition),
            Self::Working => set(PID, KeyToSet::Working(0)),
            Self::CreatePartition => Command::CreatePartition(CreatePartition { partition: NEW_PID }),
            Self::RemovePartition => {
                Command::RemovePartition(RemovePartition { partition: PID, with_contents: true })
            }
            Self::Format => Command::FormatOsd(FormatOsd { capacity: 0 }),
            Self::Master => unreachable!("takes two commands"),
        }
    }

    /// Sends the command. If it was acknowledged, returns true and changes the bench's hierarchy.
    fn send(self, bench: &Bench) -> (bool, crate::support::Keys) {
        let before = bench.keys.lock().clone();
        let mut after = before.clone();
        let status = match self {
            Self::Master => {
                let (status, keys) = exchange(bench);
                after = keys;
                status
            }
            other => {
                let command = other.command();
                let ready = bench.ready(
                    command,
                    &ListPair::default(),
                    &[],
                    &bench.capability(&command, sealstone_osd::SecurityMethod::CmdRsp),
                );
                bench.send(&ready).status
            }
        };
        match self {
            Self::Root => after.set_root(&[9; 20], [9; 7]),
            Self::Partition => after.set_partition(PID, &[9; 20], [9; 7]).unwrap(),
            Self::Working => after.set_working(PID, 0, &[9; 20], [9; 7]).unwrap(),
            Self::CreatePartition => after.add_partition(NEW_PID).unwrap(),
            Self::RemovePartition => after.remove_partition(PID),
            Self::Format => after.format(),
            Self::Master => {}
        }
        (status == Status::Good, after)
    }
}

fn exchange(bench: &Bench) -> (Status, crate::support::Keys) {
    let secret = DhSecret::draw(DhGroup::X25519, &mut |into: &mut [u8]| bench.fill_random(into));
    let value = secret.public();
    let command = |step, parameters: &[u8]| {
        Command::SetMasterKey(SetMasterKey {
            step,
            group: DhGroup::X25519.code(),
            identifier: [9; 7],
            parameter_length: u32::try_from(parameters.len()).unwrap(),
            allocation: 36,
        })
    };
    let answer = bench.run(command(DhStep::SeedExchange, &value), ListPair::default(), &value).good();
    let device = parse_device_value(&answer.data).unwrap().to_vec();
    let agreed = secret.agree(&device).unwrap();
    let pair = bench.keys.lock().exchanged(&SeedExchange {
        derivation: DhGroup::X25519.derivation(),
        group: DhGroup::X25519.code(),
        client: &value,
        device: &device,
        secret: &agreed,
    });
    bench.keys.lock().propose_master(pair);
    let parameters = BothValues { client: &value, device: &device }.encode().unwrap();
    let change = Command::SetMasterKey(SetMasterKey {
        step: DhStep::ChangeMasterKey,
        group: DhGroup::X25519.code(),
        identifier: [9; 7],
        parameter_length: u32::try_from(parameters.len()).unwrap(),
        allocation: 0,
    });
    let ready = bench.ready(
        change,
        &ListPair::default(),
        &parameters,
        &bench.capability(&change, sealstone_osd::SecurityMethod::CmdRsp),
    );
    let status = bench.send(&ready).status;
    let mut after = bench.keys.lock().clone();
    after.accept_master([9; 7]);
    (status, after)
}

/// Whether the device's keys and partitions match the given keys, tested from outside.
fn works(bench: &Bench, keys: &crate::support::Keys) -> bool {
    let held = std::mem::replace(&mut *bench.keys.lock(), keys.clone());
    // The highest key that this hierarchy still shares with the device determines what can be
    // tested.
    let create = |partition| {
        Command::SetKey(SetKey { partition, key: KeyToSet::Working(15), identifier: [1; 7], seed: [1; 20] })
    };
    let mut all = true;
    for partition in keys.partitions() {
        let has_pair = keys.signing_key(sealstone_seal::KeySelector::Partition(partition)).is_some();
        let status = bench.run(create(partition), ListPair::default(), &[]).status;
        all &= (status == Status::Good) == has_pair;
        let look = Command::GetAttributes(Target { object: ObjectId::of_partition(partition) });
        let has_working =
            keys.signing_key(sealstone_seal::KeySelector::Working { partition, version: 0 }).is_some();
        let status = bench.run(look, ListPair::get(&[]), &[]).status;
        all &= (status == Status::Good) == has_working;
    }
    *bench.keys.lock() = held;
    all
}

/// Returns the partitions of the store.
fn partitions(bench: &Bench) -> Vec<u64> {
    let all = bench.store.list(ObjectId::of_partition(PID), 100).unwrap();
    all.into_iter().filter(|(id, _)| id.is_partition()).map(|(id, _)| id.partition).collect()
}

/// Checks that the state after a crash is exactly that before or after the command; after it if it
/// was acknowledged.
fn check(
    what: &str,
    media: &Media,
    acknowledged: bool,
    before: &crate::support::Keys,
    after: &crate::support::Keys,
) {
    let survivor = media.crash();
    let there = partitions(&survivor.fork().boot());
    let fits = |keys: &crate::support::Keys| {
        keys.partitions().filter(|id| *id != 0).eq(there.iter().copied())
            && works(&survivor.fork().boot(), keys)
    };
    // An interrupted command may have changed nothing, or both. A format or removal may have
    // removed some objects, but never the keys before the partition.
    let old = !acknowledged && fits(before);
    assert!(old || fits(after), "{what}: acknowledged {acknowledged}, partitions {there:x?}");
}

fn prepared(seed: u64) -> Media {
    let mut media = Media::new(seed);
    let bench = media.boot();
    bench.create_partition(PID);
    let object = ObjectId::new(PID, 0x10000);
    bench.run(Command::Create(Create { object, count: 1 }), ListPair::default(), &[]).good();
    let set = Command::SetKey(SetKey {
        partition: PID,
        key: KeyToSet::Working(0),
        identifier: [2; 7],
        seed: [2; 20],
    });
    bench.run(set, ListPair::default(), &[]).good();
    bench.unit.shut_down().unwrap();
    drop(bench);
    media
}

fn manager(bench: &Bench) {
    let mut keys = bench.keys.lock();
    keys.add_partition(PID).unwrap();
    keys.set_working(PID, 0, &[2; 20], [2; 7]).unwrap();
}

#[test]
fn key_file_crash_leaves_old_or_new_keys() {
    for change in CHANGES {
        for seed in 0..4 {
            let prepared = prepared(seed);
            // A removal first records that the ids have no factory keys any more.
            let stores = if matches!(change, Change::RemovePartition | Change::Format) { 2 } else { 1 };
            for step in 1..=stores + 1 {
                let mut media = prepared.fork();
                let bench = media.boot();
                manager(&bench);
                let before = bench.keys.lock().clone();
                media.folder.fault(Some(FolderFault::Power(media.folder.calls() + step)));
                let (acknowledged, after) = change.send(&bench);
                assert_eq!(acknowledged, step > stores, "{change:?}: one call stores a key file");
                check(&format!("{change:?} seed {seed} step {step}"), &media, acknowledged, &before, &after);
            }
        }
    }
}

#[test]
fn store_crash_leaves_partitions_with_keys() {
    for change in [Change::CreatePartition, Change::RemovePartition, Change::Format] {
        for seed in 0..3 {
            let prepared = prepared(seed);
            for step in 1..40 {
                let mut media = prepared.fork();
                let bench = media.boot();
                manager(&bench);
                let before = bench.keys.lock().clone();
                let calls = media.disk.calls();
                media.disk.fault(DiskFault::Power(calls.writes + calls.syncs + step));
                let (acknowledged, after) = change.send(&bench);
                check(&format!("{change:?} seed {seed} step {step}"), &media, acknowledged, &before, &after);
                if acknowledged && !media.disk.is_dead() {
                    break;
                }
            }
        }
    }
}

/// If a crash left a partition removed, its factory keys are removed too.
#[test]
fn interrupted_removal_restores_no_factory_keys() {
    let mut removed = 0;
    for change in [Change::RemovePartition, Change::Format] {
        let prepared = prepared(5);
        for (of_disk, step) in (1..60).map(|step| (true, step)).chain((1..=6).map(|step| (false, step))) {
            let mut media = prepared.fork();
            let bench = media.boot();
            manager(&bench);
            if of_disk {
                let calls = media.disk.calls();
                media.disk.fault(DiskFault::Power(calls.writes + calls.syncs + step));
            } else {
                media.folder.fault(Some(FolderFault::Power(media.folder.calls() + step)));
            }
            change.send(&bench);
            drop(bench);
            let again = media.crash().boot();
            if partitions(&again).contains(&PID) {
                continue;
            }
            removed += 1;
            let create = Command::CreatePartition(CreatePartition { partition: PID });
            again.run(create, ListPair::default(), &[]).good();
            again.keys.lock().add_partition(PID).unwrap();
            let look = Command::GetAttributes(Target { object: ObjectId::of_partition(PID) });
            let answer = again.run(look, ListPair::get(&[]), &[]);
            assert_eq!(answer.sense(), (5, 0x2400), "{change:?} {of_disk} {step}");
        }
    }
    assert!(removed > 10, "{removed}");
}

#[test]
fn failed_key_write_blocks_further_key_changes() {
    let mut media = prepared(1);
    let bench = media.boot();
    manager(&bench);
    media.folder.fault(Some(FolderFault::Error(media.folder.calls() + 1)));
    let before = bench.keys.lock().clone();
    let (acknowledged, _) = Change::Working.send(&bench);
    assert!(!acknowledged);
    let object = ObjectId::new(PID, 0x10000);
    let look = Command::GetAttributes(Target { object });
    bench.run(look, ListPair::get(&[(1, 0x82)]), &[]).good();
    // The disk works again, but its content is unknown until the next start.
    let answer = bench.run(Change::Working.command(), ListPair::default(), &[]);
    assert_eq!(answer.sense(), (4, 0x4400));
    drop(bench);
    let bench = media.crash().boot();
    *bench.keys.lock() = before;
    bench.run(Change::Working.command(), ListPair::default(), &[]).good();
}

#[test]
fn stored_keys_require_own_seal_and_generation() {
    let mut media = prepared(1);
    let old = media.fork();
    let bench = media.boot();
    manager(&bench);
    assert!(Change::Working.send(&bench).0);
    drop(bench);
    let environment: Arc<dyn DeviceEnvironment> = Arc::new(Fake::default());
    let open = |folder: &SimFolder, least| {
        SealedKeyFile::open(Arc::new(folder.clone()), Arc::clone(&environment), least).map(|(file, _)| file)
    };
    let generation = open(&media.folder, 0).unwrap().generation().load(std::sync::atomic::Ordering::SeqCst);
    assert!(matches!(open(&old.folder, generation), Err(ProvisionError::KeysOld { .. })));
    open(&media.folder, generation).unwrap();
    // One bit changed; another seal; one of the two files missing; no key in the clear.
    let sealed = folder::load(&media.folder, KEYS_FILE, 1 << 20).unwrap().unwrap().to_vec();
    for at in [0, 8, 60, sealed.len() - 1] {
        let mut bad = sealed.clone();
        bad[at] ^= 1;
        let folder = media.folder.fork();
        folder.write(KEYS_FILE, &bad).unwrap();
        assert!(matches!(open(&folder, 0), Err(ProvisionError::Sealed { .. })), "byte {at}");
    }
    let folder = media.folder.fork();
    folder.write(SEAL_FILE, &[b'0'; 64]).unwrap();
    assert!(matches!(open(&folder, 0), Err(ProvisionError::Sealed { .. })));
    folder.write(SEAL_FILE, b"short").unwrap();
    assert!(matches!(open(&folder, 0), Err(ProvisionError::Malformed { .. })));
    for name in [KEYS_FILE, SEAL_FILE] {
        let folder = media.folder.fork();
        folder.rename(name, "elsewhere").unwrap();
        assert!(matches!(open(&folder, 0), Err(ProvisionError::KeyMissing(_))), "{name}");
    }
    let plain = media.boot().keys.lock().encode();
    for key in plain.windows(32).step_by(7) {
        assert!(!sealed.windows(32).any(|window| window == key), "a key in the clear");
    }
}

#[test]
fn restart_keeps_every_set_key() {
    let mut media = prepared(3);
    let bench = media.boot();
    manager(&bench);
    let mut keys = bench.keys.lock().clone();
    for change in [Change::Master, Change::Root] {
        let (acknowledged, after) = change.send(&bench);
        assert!(acknowledged, "{change:?}");
        keys = after;
        *bench.keys.lock() = keys.clone();
    }
    for partition in [0, PID] {
        let set = |key| Command::SetKey(SetKey { partition, key, identifier: [4; 7], seed: [4; 20] });
        bench.run(set(KeyToSet::Partition), ListPair::default(), &[]).good();
        keys.set_partition(partition, &[4; 20], [4; 7]).unwrap();
        *bench.keys.lock() = keys.clone();
        bench.run(set(KeyToSet::Working(0)), ListPair::default(), &[]).good();
        keys.set_working(partition, 0, &[4; 20], [4; 7]).unwrap();
        *bench.keys.lock() = keys.clone();
    }
    drop(bench);
    // No clean shutdown: the power fails.
    let bench = media.crash().boot();
    assert!(works(&bench, &keys));
}
