//! `osd init` and `osd serve`: the directory of a device over several starts.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::{Fake, HeapBuffers, START_MS};
use sealstone_osd_device::boot::{self, BootError, NewDevice};
use sealstone_osd_device::provision::InitialKey;
use sealstone_osd_device::{NoAudit, OsdConfig, ProvisionError};
use sealstone_scsi::lu::{LogicalUnit as _, NexusId, NoTasks, ScsiCommand};
use sealstone_store::{FormatError, StoreOptions};

fn new_device() -> NewDevice {
    NewDevice {
        name: "osd-1".into(),
        capacity: 64 << 20,
        raw: None,
        unique: [3; 12],
        store_uuid: [4; 16],
        master_key: InitialKey(zeroize::Zeroizing::new(crate::support::MASTER)),
    }
}

fn start(root: &Path, ms: u64) -> Result<(boot::RunningDevice, Arc<Fake>), BootError> {
    let fake = Arc::new(Fake::default());
    fake.ms.store(ms, Ordering::SeqCst);
    let running =
        boot::start(root, OsdConfig::default(), StoreOptions::default(), fake.clone(), Arc::new(NoAudit))?;
    Ok((running, fake))
}

#[test]
fn restart_increments_epoch_and_keeps_lease() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("osd");
    let made = boot::init(&root, new_device()).unwrap();
    made.write_key_out(&dir.path().join("key.toml")).unwrap();
    let text = std::fs::read_to_string(dir.path().join("key.toml")).unwrap();
    assert!(text.contains("master_key = \"5a5a") && text.contains("name = \"osd-1\""));
    assert!(made.write_key_out(&dir.path().join("key.toml")).is_err(), "an existing file is not overwritten");
    drop(made);
    let (first, _) = start(&root, START_MS).unwrap();
    first.unit.upkeep().unwrap();
    assert_eq!(first.boot_epoch, 1);
    first.unit.shut_down().unwrap();
    drop(first);
    // An hour back: not ready until the time is correct again.
    let (second, fake) = start(&root, START_MS - 3_600_000).unwrap();
    assert_eq!(second.boot_epoch, 2);
    assert!(second.unit.upkeep().is_err());
    let ready = || {
        let command = ScsiCommand {
            nexus: NexusId(1),
            lun: 0,
            cdb: &[0; 6],
            data_out: &[],
            data_in_max: 0,
            buffers: &HeapBuffers,
            tasks: &NoTasks,
        };
        second.unit.execute(command)
    };
    ready();
    assert_eq!(ready().sense[1..4], [2, 4, 3]);
    fake.ms.store(START_MS + 1, Ordering::SeqCst);
    assert!(ready().sense.is_empty());
    second.unit.upkeep().unwrap();
}

#[test]
fn second_process_and_second_init_fail() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("osd");
    assert!(matches!(start(&root, START_MS), Err(BootError::Provision(ProvisionError::NotInitialised(_)))));
    drop(boot::init(&root, new_device()).unwrap());
    let again = boot::init(&root, new_device());
    assert!(matches!(again, Err(BootError::Provision(ProvisionError::AlreadyInitialised(_)))));
    let running = start(&root, START_MS).unwrap();
    assert!(matches!(start(&root, START_MS), Err(BootError::Store(FormatError::InUse))));
    drop(running);
    start(&root, START_MS).unwrap();
}

#[test]
fn unsupported_capacity_leaves_interrupted_init() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("osd");
    let made = boot::init(&root, NewDevice { capacity: 1, ..new_device() });
    assert!(matches!(made, Err(BootError::Store(FormatError::Capacity { .. }))));
    assert!(matches!(start(&root, START_MS), Err(BootError::Provision(ProvisionError::Interrupted(_)))));
}

#[test]
fn clean_restarts_do_not_advance_clock() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("osd");
    drop(boot::init(&root, new_device()).unwrap());
    for restart in 0..100 {
        let (running, _) = start(&root, START_MS + restart).unwrap();
        running.unit.upkeep().unwrap();
        running.unit.shut_down().unwrap();
    }
}

#[test]
fn starts_after_first_require_key_file() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("osd");
    drop(boot::init(&root, new_device()).unwrap());
    for _ in 0..2 {
        drop(start(&root, START_MS).unwrap());
        for name in ["keys.sealed", "seal.key", "boot.toml", "device.toml"] {
            assert_eq!(std::fs::metadata(root.join(name)).unwrap().mode() & 0o777, 0o600, "{name}");
        }
    }
    let failed = |root: &Path| match start(root, START_MS) {
        Err(BootError::Provision(error)) => error,
        other => panic!("{:?}", other.map(drop)),
    };
    for name in ["keys.sealed", "seal.key"] {
        let (path, aside) = (root.join(name), root.join("aside"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(failed(&root).to_string().contains("want 0600"), "{name}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::rename(&path, &aside).unwrap();
        assert!(matches!(failed(&root), ProvisionError::KeyMissing(_)), "{name}");
        std::os::unix::fs::symlink(&aside, &path).unwrap();
        assert!(failed(&root).to_string().contains("symbolic link"), "{name}");
        std::fs::rename(&aside, &path).unwrap();
    }
    start(&root, START_MS).unwrap();
}

#[test]
fn raw_device_restarts_and_keeps_its_data() {
    let dir = tempfile::tempdir().unwrap();
    let (root, raw) = (dir.path().join("osd"), dir.path().join("raw"));
    std::fs::File::create(&raw).unwrap().set_len(160 << 20).unwrap();
    let device = |capacity, force| NewDevice { capacity, raw: Some((raw.clone(), force)), ..new_device() };
    let large = boot::init(&root, device(160 << 20, false));
    assert!(matches!(large, Err(BootError::Store(FormatError::Capacity { max, .. })) if max > 128 << 20));
    assert!(!root.exists(), "a refusal leaves nothing behind");
    drop(boot::init(&root, device(64 << 20, false)).unwrap());
    for epoch in 1..3 {
        let (running, _) = start(&root, START_MS).unwrap();
        assert_eq!(running.boot_epoch, epoch);
        assert_eq!(running.unit.usage().total, 64 << 20);
        let again = start(&root, START_MS);
        assert!(matches!(again, Err(BootError::Store(FormatError::InUse))));
        running.unit.shut_down().unwrap();
    }
    assert!(!root.join("store/segment-00000").exists());
    std::fs::File::options().write(true).open(&raw).unwrap().set_len(100 << 20).unwrap();
    assert!(matches!(start(&root, START_MS), Err(BootError::Store(FormatError::DeviceShrunk { .. }))));
}
