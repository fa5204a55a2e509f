//! End-to-end protected disks: keys of users, and records at the metadata server. The work is in
//! `sealstone-block-disks`.

use sealstone_block_disks::{RotatedDisk, UserDisks};
use sealstone_failure::Outcome;
use sealstone_failure::text::{ShownPath as _, hex};
use sealstone_mds_protocol::{DISK_UNIT_BYTES, DiskInfo};
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
    let (info, oldest) = (&status.info, status.oldest_key);
    let mut value = disk_json(info);
    value["users"] = status.users.clone().into();
    value["oldest_key_epoch"] = oldest.into();
    output.result(&value, || {
        let mut rows = vec![
            ("disk", info.name.to_string()),
            ("protection", "end-to-end".to_owned()),
            ("unit", hex(&info.unit)),
            ("owner", info.owner.to_string()),
            ("users", status.users.join(", ")),
            ("key epoch", info.key_epoch.to_string()),
            ("oldest key", oldest.map_or("unknown".to_owned(), |epoch| format!("epoch {epoch}"))),
            ("root", info.root_version.map_or("none".to_owned(), |version| format!("version {version}"))),
            ("in use", in_use(info)),
            ("failures", info.failures.to_string()),
        ];
        if let Some(text) = &info.last_failure {
            rows.push(("last failure", text.to_string()));
        }
        rows.into_iter().map(|(name, value)| format!("{name:12}  {value}")).collect::<Vec<_>>().join("\n")
    })
}

fn in_use(info: &DiskInfo) -> String {
    match &info.lease {
        Some(lease) if lease.left_ms > 0 => format!("by {}, lease {}", lease.user, lease.epoch),
        _ => "no".to_owned(),
    }
}

fn disk_json(info: &DiskInfo) -> Value {
    let lease = info.lease.as_ref().filter(|lease| lease.left_ms > 0);
    json!({
        "name": info.name.to_string(), "protection": "e2e", "unit": hex(&info.unit),
        "owner": info.owner.to_string(), "created_ms": info.created_ms, "key_epoch": info.key_epoch,
        "root_version": info.root_version, "in_use_by": lease.map(|lease| lease.user.to_string()),
        "failures": info.failures, "last_failure": info.last_failure.as_ref().map(ToString::to_string),
    })
}

fn disk_line(info: &DiskInfo) -> String {
    let failures = match info.failures {
        0 => String::new(),
        count => format!(", {count} integrity failures"),
    };
    format!(
        "{}  owner {}, key epoch {}, in use: {}{failures}",
        info.name,
        info.owner,
        info.key_epoch,
        in_use(info)
    )
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
