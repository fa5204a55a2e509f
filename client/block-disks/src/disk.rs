//! A protected disk in use: opening, publications, reports, the end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sealstone_block_client::BlockUnitClient;
use sealstone_block_client::e2e::{DiskKeys, E2eDisk, E2eError, E2eOptions, RootStoreError, UnitMedium};
use sealstone_block_e2e::{DiskHeader, DiskRoot, DiskSealer, LeaseEpoch, ROOT_LEN, UnitId};
use sealstone_failure::text::{ShownPath as _, hex};
use sealstone_failure::{Failure, FailureKind, Outcome, chain, secret_file};
use sealstone_mds_protocol::Name;

use crate::lease::{LeasedMedium, MdsRoots};
use crate::rewrite::rewrite;
use crate::user_disks::UserDisks;

/// Time between two publications of what was flushed.
const PUBLICATION: Duration = Duration::from_secs(1);

/// A protected disk in use.
pub(crate) type AttachedDisk = E2eDisk<LeasedMedium, MdsRoots>;

/// Opens the disk on a unit.
pub(crate) async fn open(
    user: &UserDisks,
    unit: BlockUnitClient,
    header: &DiskHeader,
) -> Outcome<AttachedDisk> {
    let name = disk_of_unit(user, &header.unit).await?;
    let access = user.client.disk(name.clone()).await?;
    let keys: DiskKeys = Arc::new(user.keys(&access)?);
    let seen = SeenRoot::new(user, &header.unit);
    let options = E2eOptions { seen_root: seen.load(&keys)?, ..E2eOptions::default() };
    let roots = MdsRoots::new(user.client.clone(), name);
    let medium = LeasedMedium { unit: UnitMedium::new(unit), lease: roots.lease.clone() };
    let opening = E2eDisk::open(medium, roots.clone(), keys, options);
    let opened = roots.renew_during(opening).await;
    let (disk, report) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            if error.is_integrity_failure() {
                roots.report(&error.to_string()).await;
            }
            roots.end().await;
            return Err(disk_failure(&error, &access.info.name));
        }
    };
    tracing::info!(
        disk = %access.info.name,
        was_clean = report.was_clean,
        records = report.records,
        recovered_blocks = report.recovered_blocks,
        unreadable_blocks = report.unreadable_blocks,
        "end-to-end protected disk opened"
    );
    if let Err(failure) = seen.store(&disk) {
        roots.end().await;
        return Err(failure);
    }
    Ok(disk)
}

/// Renews the lease, publishes what was flushed, sends reports and replaces old keys, until it is
/// dropped.
pub(crate) async fn keep(
    disk: AttachedDisk,
    is_read_only: bool,
    mut reports: tokio::sync::mpsc::Receiver<String>,
) {
    // A publication can wait for the device longer than the lease is valid, so none waits for
    // another.
    let publications = async {
        loop {
            if let Err(error) = disk.publish().await {
                tracing::warn!(%error, "cannot publish the root of the disk; retrying");
            }
            tokio::time::sleep(PUBLICATION).await;
        }
    };
    let reports = async {
        while let Some(text) = reports.recv().await {
            disk.roots().report(&text).await;
        }
    };
    let rewriting = async {
        if !is_read_only && disk.has_old_keys() {
            rewrite(&disk, &disk.roots().name).await;
        }
    };
    disk.roots().renew_during(async { tokio::join!(publications, reports, rewriting) }).await;
}

/// Flushes, publishes and returns the lease.
pub(crate) async fn close(user: &UserDisks, disk: &AttachedDisk) -> Outcome {
    let flushed = disk.flush(&disk.flush_cursor()).await;
    let closed = disk.close().await;
    let stored = match closed {
        Ok(()) => SeenRoot::new(user, &disk.keys().unit()).store(disk),
        Err(_) => Ok(()),
    };
    disk.roots().end().await;
    disk.medium().unit.unit().close().await;
    flushed.and(closed).map_err(|error| disk_failure(&error, &disk.roots().name))?;
    stored
}

fn disk_failure(error: &E2eError, name: &Name) -> Failure {
    let failure = Failure::operation(chain(error)).at(format!("disk {name}"));
    match error {
        E2eError::RootStore(RootStoreError::LeaseLost) => {
            failure.hint("attach it again; acknowledged writes of the last seconds may be lost")
        }
        E2eError::LostWrites => failure.hint("check the file system on the disk"),
        error if error.is_integrity_failure() => failure.hint(
            "the device or its medium is not trustworthy; restore a copy, see `sealstone block status`",
        ),
        _ => failure,
    }
}

async fn disk_of_unit(user: &UserDisks, unit: &UnitId) -> Outcome<Name> {
    let found = user.list().await?.into_iter().find(|disk| disk.unit == unit.0);
    found.map(|disk| disk.name).ok_or_else(|| {
        let text = "the unit has an end-to-end protected disk of which you have no key";
        Failure::new(FailureKind::Denied, text).hint("its owner can grant it: sealstone block grant")
    })
}

/// The file with the last root that this client has seen, sealed as the metadata server has it.
struct SeenRoot(PathBuf);

impl SeenRoot {
    fn new(user: &UserDisks, unit: &UnitId) -> Self {
        Self(user.folder.join(format!("{}.disk-root", hex(&unit.0))))
    }

    fn load(&self, keys: &DiskKeys) -> Outcome<Option<DiskRoot>> {
        if !self.0.exists() {
            return Ok(None);
        }
        let bytes = secret_file::read_bytes(&self.0)?;
        let sealed: Option<[u8; ROOT_LEN]> = bytes.as_slice().try_into().ok();
        let sealer = DiskSealer::new(Arc::clone(keys), LeaseEpoch(0));
        let root = sealed.and_then(|sealed| DiskRoot::open(&sealed, &sealer).ok()).ok_or_else(|| {
            Failure::operation("the last root that was seen does not open").at(self.0.shown()).hint(
                "the key is another one, or the file is damaged; remove it only if you know why: an old state of the \
                 disk is then not detected",
            )
        })?;
        Ok(Some(root))
    }

    fn store(&self, disk: &AttachedDisk) -> Outcome {
        let root = disk.root();
        let sealer = DiskSealer::new(disk.keys(), root.lease_epoch);
        secret_file::write(&self.0, &root.seal(&sealer))
    }
}
