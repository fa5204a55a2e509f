//! Attributes and placement of a stored file as text and JSON.

use sealstone_client::{Client, FileKind, GroupName, Stat};
use sealstone_failure::text::human_bytes;
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::{LinkTarget, shown};
use sealstone_transfer::{
    StoredPath, checksum_text, device_number, kind_name, link_target, set_target, stat_json, utc_ns,
};
use sealstone_units::mode_string;
use serde_json::Value;

use crate::placement::PlacementReport;

/// Attributes of a file, the target of a symbolic link, and where the bytes are.
#[derive(Debug)]
pub struct StatReport {
    path: StoredPath,
    stat: Stat,
    target: Option<LinkTarget>,
    placement: Option<PlacementReport>,
}

impl StatReport {
    /// Requests the attributes of a path; of a symbolic link its own.
    ///
    /// # Errors
    /// The path does not exist, or the user may not see it.
    pub async fn load(client: &Client, path: &StoredPath) -> Outcome<Self> {
        let stat = client.lstat(path).await.map_err(|error| Failure::from(error).at(path))?;
        let target = link_target(client, &stat).await;
        let placement = match stat.kind {
            FileKind::File => Some(PlacementReport::of_file(client, path).await?),
            _ => None,
        };
        Ok(Self { path: path.clone(), stat, target, placement })
    }

    /// Returns the attributes as `--json` prints them.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut value = stat_json(&self.path, &self.stat);
        set_target(&mut value, self.target.as_ref());
        if let Some(placement) = &self.placement {
            value["placement"] = placement.json();
        }
        value
    }

    /// Returns the attributes as lines of text.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let Self { path, stat, target, placement } = self;
        let mut lines = vec![
            format!("    path  {path}"),
            format!("    kind  {}", kind_name(stat.kind)),
            format!("    size  {} ({})", stat.size, human_bytes(stat.size)),
            format!("    mode  {} {:04o}", mode_string(stat.kind, stat.mode), stat.mode),
            format!("   owner  {}", stat.owner.as_str()),
            format!("   group  {}", stat.group.as_ref().map_or("-", GroupName::as_str)),
            format!("   links  {}", stat.links),
            format!("modified  {}", utc_ns(stat.mtime_ns)),
            format!(" changed  {}", utc_ns(stat.ctime_ns)),
            format!(" created  {}", utc_ns(stat.birth_ns)),
        ];
        if let Some(target) = target {
            lines.push(format!("  target  {}", shown(target.as_bytes())));
        }
        if matches!(stat.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            lines.push(format!("  device  {}", device_number(stat.rdev)));
        }
        if let Some(placement) = placement {
            lines.extend(placement.lines(stat.version));
            lines.extend(checksum_text(stat).map(|checksum| format!("checksum  {checksum}")));
        }
        lines
    }
}
