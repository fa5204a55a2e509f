//! End-to-end protected disks: keys of users, and records at the metadata server. The work is in
//! `sealstone-block-disks`.

use sealstone_block_disks::{RotatedDisk, UserDisks, disk_json, disk_line};
use sealstone_failure::Outcome;
use sealstone_failure::text::ShownPath as _;
use sealstone_mds_protocol::DISK_UNIT_BYTES;
use serde_json::{Value, json};

use crate::cli::GlobalArgs;
use crate::command::session;
use crate::output::Output;

/// Returns the disks of the user of the session.
pub(super) fn disks(global: &GlobalArgs) -> Outcome<UserDisks> {
    let (client, saved) = session::client(global)?;
    let file = session::path(global)?;
    let folder = file.parent().unwrap_or(&file);
    Ok(UserDisks::new(client, &saved.ticket.user.to_string(), folder))
}

/// Creates the user's key if there is none, and shows its public digest.
pub(super) async fn key(global: &GlobalArgs, output: Output) -> Outcome {
    let disks = disks(global)?;
    let digest = disks.key(&|text| output.remark(text)).await?;
    let (user, file) = (disks.user(), disks.key_file().shown());
    output.result(&json!({ "user": user, "key": digest, "file": file }), || format!("{user} {digest}"))
}

/// Gives a user the key of a disk.
pub(super) async fn grant(
    global: &GlobalArgs,
    output: Output,
    (disk, grantee, expected): (&str, &str, Option<&str>),
) -> Outcome {
    let digest = disks(global)?.grant(disk, grantee, expected, &|text| output.remark(text)).await?;
    output.done(&json!({ "disk": disk, "user": grantee, "key": digest }))
}

/// Takes the key of a disk from a user.
pub(super) async fn revoke(global: &GlobalArgs, output: Output, disk: &str, revoked: &str) -> Outcome {
    disks(global)?.revoke(disk, revoked).await?;
    output.remark(format!(
        "{revoked} may have kept the key: `sealstone block rotate {disk}` protects what is written from then on"
    ));
    output.done(&json!({ "disk": disk, "user": revoked }))
}

/// Replaces the key of a disk.
pub(super) async fn rotate(global: &GlobalArgs, output: Output, disk: &str) -> Outcome {
    let RotatedDisk { key_epoch, users } = disks(global)?.rotate(disk).await?;
    output.remark(
        "clients that have the disk attached use the new key after they attach it again; its blocks get it in the \
         background then",
    );
    output.done(&json!({ "disk": disk, "key_epoch": key_epoch, "users": users }))
}

/// Shows one disk, or all disks of the user.
pub(super) async fn status(global: &GlobalArgs, output: Output, disk: Option<&str>) -> Outcome {
    let user = disks(global)?;
    let Some(disk) = disk else {
        let disks = user.list().await?;
        let values: Vec<Value> = disks.iter().map(disk_json).collect();
        return output.result(&json!({ "disks": values }), || match disks.is_empty() {
            true => "no end-to-end protected disks".to_owned(),
            false => disks.iter().map(disk_line).collect::<Vec<_>>().join("\n"),
        });
    };
    let status = user.status(disk).await?;
    output.result(&status.json(), || status.text())
}

/// Removes the record of a disk and all copies of its key. With a unit, only that of its disk.
pub(super) async fn remove_record(
    global: &GlobalArgs,
    disk: &str,
    unit: Option<[u8; DISK_UNIT_BYTES]>,
) -> Outcome {
    disks(global)?.remove_record(disk, unit).await
}

/// Removes the record of a disk whose unit was removed, or describes how. Returns whether it did.
pub(super) async fn remove_record_of(
    global: &GlobalArgs,
    output: Output,
    disk: &str,
    unit: [u8; DISK_UNIT_BYTES],
) -> Outcome<bool> {
    match remove_record(global, disk, Some(unit)).await {
        Ok(()) => Ok(true),
        Err(failure) => {
            output.remark(format!(
                "the unit is removed, but not the record of disk {disk} at the metadata server: {}; its owner removes \
                 it: sealstone block rm {disk} --record",
                failure.message
            ));
            Ok(false)
        }
    }
}
