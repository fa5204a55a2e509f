//! Protected disks as text and JSON.

use sealstone_failure::text::hex;
use sealstone_mds_protocol::DiskInfo;
use serde_json::{Value, json};

use crate::user_disks::DiskStatus;

impl DiskStatus {
    /// Returns the disk as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut value = disk_json(&self.info);
        value["users"] = self.users.clone().into();
        value["oldest_key_epoch"] = self.oldest_key.into();
        value
    }

    /// Returns the disk as text.
    #[must_use]
    pub fn text(&self) -> String {
        let (info, oldest) = (&self.info, self.oldest_key);
        let mut rows = vec![
            ("disk", info.name.to_string()),
            ("protection", "end-to-end".to_owned()),
            ("unit", hex(&info.unit)),
            ("owner", info.owner.to_string()),
            ("users", self.users.join(", ")),
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
    }
}

fn in_use(info: &DiskInfo) -> String {
    match &info.lease {
        Some(lease) if lease.left_ms > 0 => format!("by {}, lease {}", lease.user, lease.epoch),
        _ => "no".to_owned(),
    }
}

/// Returns the record of a disk as `--json` prints it.
#[must_use]
pub fn disk_json(info: &DiskInfo) -> Value {
    let lease = info.lease.as_ref().filter(|lease| lease.left_ms > 0);
    json!({
        "name": info.name.to_string(), "protection": "e2e", "unit": hex(&info.unit),
        "owner": info.owner.to_string(), "created_ms": info.created_ms, "key_epoch": info.key_epoch,
        "root_version": info.root_version, "in_use_by": lease.map(|lease| lease.user.to_string()),
        "failures": info.failures, "last_failure": info.last_failure.as_ref().map(ToString::to_string),
    })
}

/// Returns the record of a disk as one line.
#[must_use]
pub fn disk_line(info: &DiskInfo) -> String {
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
