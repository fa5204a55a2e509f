//! Headers of protected disks on units, compared with their records at the metadata server.

use sealstone_block_client::{BlockError, BlockUnitClient};
use sealstone_block_e2e::{BLOCK_LEN, DiskHeader, HEADER_MAGIC};
use sealstone_client::{ClientError, disk_name};
use sealstone_failure::{Failure, FailureKind, Outcome, chain};
use sealstone_mds_protocol::ErrorCode;

use crate::lease::MdsRoots;
use crate::user_disks::UserDisks;

/// Returns the header of a protected disk, if the unit has one. A first block that is damaged has
/// none: it can be written again.
pub(crate) async fn unit_header(unit: &BlockUnitClient) -> Outcome<Option<DiskHeader>> {
    if unit.geometry().bytes < BLOCK_LEN as u64 {
        return Ok(None);
    }
    let block = match unit.read(0, BLOCK_LEN as u64).await {
        Err(error @ (BlockError::Medium { .. } | BlockError::NotAuthentic(_))) => {
            tracing::warn!(%error, "the first block of the unit is unreadable");
            return Ok(None);
        }
        read => read.map_err(|error| Failure::operation(chain(&error)))?,
    };
    match block.first_chunk() {
        Some(block) if block.starts_with(HEADER_MAGIC) => {
            DiskHeader::parse(block).map(Some).map_err(Failure::operation)
        }
        _ => Ok(None),
    }
}

/// Compares a unit with the records of protected disks at the metadata server: a device can remove
/// the header of a disk, or present another one. `name` is that of the unit, unless it was given by
/// its URL; then only a unit without a header can be compared.
pub(crate) async fn check_record(
    user: &UserDisks,
    name: Option<&str>,
    header: Option<&DiskHeader>,
) -> Outcome {
    let plain = "--protect none attaches a plain unit";
    let Some(name) = name else {
        let (disks, _) = user.client.disks(None).await.map_err(|error| Failure::from(error).hint(plain))?;
        return match disks.is_empty() {
            true => Ok(()),
            false => Err(Failure::new(
                FailureKind::Denied,
                "the unit has no end-to-end protection, and you have disks with it: the device may have removed it",
            )
            .hint(format!("--protect e2e requires it, {plain}"))),
        };
    };
    let disk = disk_name(name)?;
    let access = match user.client.disk(disk.clone()).await {
        Ok(access) => access,
        Err(ClientError::Refused(failure)) if failure.code == ErrorCode::NotFound => return Ok(()),
        Err(error) => return Err(Failure::from(error).hint(plain)),
    };
    let text = match header {
        Some(header) if header.unit.0 == access.info.unit => return Ok(()),
        Some(_) => "the unit has another disk than its record at the metadata server",
        None => "the unit has no end-to-end protection, but the metadata server has a record of it",
    };
    MdsRoots::new(user.client.clone(), disk).report(text).await;
    Err(Failure::new(FailureKind::Denied, text).hint(
        "the device replaced or removed the header of the disk; --protect none attaches it as a plain unit",
    ))
}
