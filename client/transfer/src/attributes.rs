//! Attributes of files and entries as text and JSON.

use sealstone_client::{ChecksumKind, FileKind, GroupName, Stat};
use sealstone_failure::text::{hex, set_bytes};
use sealstone_mds_protocol::{LinkTarget, shown};
use sealstone_units::{mode_string, utc};
use serde_json::{Value, json};

use crate::listing::{ListEntry, kind_name};

/// Returns the stored checksum of a file, such as `crc32c:` and 8 hex digits.
#[must_use]
pub fn checksum_text(stat: &Stat) -> Option<String> {
    let checksum = stat.checksum.as_ref()?;
    let (kind, length) = match checksum.kind {
        ChecksumKind::Sha256 => ("sha256", 32),
        ChecksumKind::Crc32c => ("crc32c", 4),
        ChecksumKind::Blake3 => ("blake3", 32),
    };
    Some(format!("{kind}:{}", hex(&checksum.value[..length])))
}

/// Returns the attributes of a file as `--json` prints them.
#[must_use]
pub fn stat_json(path: impl AsRef<[u8]>, stat: &Stat) -> Value {
    let mut value = json!({
        "kind": kind_name(stat.kind), "size": stat.size, "mode": format!("{:04o}", stat.mode),
        "owner": stat.owner.as_str(), "group": group_name(stat), "inode": stat.inode.0, "version": stat.version, "width": stat.width,
        "links": stat.links, "rdev": stat.rdev, "mtime_ms": Stat::ms(stat.mtime_ns), "ctime_ms": Stat::ms(stat.ctime_ns),
        "created_ms": Stat::ms(stat.birth_ns), "atime_ns": stat.atime_ns, "mtime_ns": stat.mtime_ns,
        "ctime_ns": stat.ctime_ns, "checksum": checksum_text(stat),
    });
    set_bytes(&mut value, "path", path);
    value
}

fn group_name(stat: &Stat) -> Option<&str> {
    stat.group.as_ref().map(GroupName::as_str)
}

/// The columns of one line of `ls -l`.
#[derive(Debug)]
pub struct LongLine {
    /// Mode, links, owner, group, size, time.
    columns: [String; 6],
    name: String,
}

/// Columns of a long list that are aligned to the right: links and size.
const RIGHT_ALIGNED: [bool; 6] = [false, true, false, false, true, false];

/// Returns an entry of a listing, with the target of a link, as `--json` prints it.
#[must_use]
pub fn entry_json(entry: &ListEntry, target: Option<&LinkTarget>) -> Value {
    let mut value = match &entry.stat {
        Some(stat) => stat_json(&entry.path, stat),
        None => {
            let mut value = json!({
                "kind": kind_name(entry.kind), "inode": entry.inode, "size": null, "mode": null, "owner": null,
                "group": null, "version": null, "width": null, "links": null, "rdev": null,
                "mtime_ms": null, "ctime_ms": null, "created_ms": null, "atime_ns": null, "mtime_ns": null,
                "ctime_ns": null, "checksum": null,
            });
            set_bytes(&mut value, "path", &entry.path);
            value
        }
    };
    set_target(&mut value, target);
    value
}

/// Returns the name of an entry; that of a directory ends in a slash.
#[must_use]
pub fn entry_name(entry: &ListEntry) -> String {
    let slash = if entry.kind == FileKind::Directory { "/" } else { "" };
    format!("{}{slash}", entry.path)
}

/// Returns the line of an entry in a long list.
#[must_use]
pub fn long_line(entry: &ListEntry, target: Option<&LinkTarget>) -> LongLine {
    let Some(stat) = &entry.stat else {
        let letter = mode_string(entry.kind, 0).chars().next().unwrap_or('?');
        let unknown = || "?".to_owned();
        let mode = format!("{letter}?????????");
        return LongLine {
            columns: [mode, unknown(), unknown(), unknown(), unknown(), unknown()],
            name: entry_name(entry),
        };
    };
    let size = match stat.kind {
        FileKind::CharDevice | FileKind::BlockDevice => device_number(stat.rdev),
        _ => stat.size.to_string(),
    };
    let name = match target {
        Some(target) => format!("{} -> {}", entry_name(entry), shown(target.as_bytes())),
        None => entry_name(entry),
    };
    let columns = [
        mode_string(stat.kind, stat.mode),
        stat.links.to_string(),
        stat.owner.to_string(),
        group_name(stat).unwrap_or("-").to_owned(),
        size,
        utc_ns(stat.mtime_ns),
    ];
    LongLine { columns, name }
}

/// Aligns the columns of a long list; each is as wide as its longest field.
#[must_use]
pub fn align_lines(lines: &[LongLine]) -> String {
    let mut widths = [0; 6];
    for line in lines {
        for (width, field) in widths.iter_mut().zip(&line.columns) {
            *width = field.len().max(*width);
        }
    }
    let text = |line: &LongLine| {
        let mut text = String::new();
        for ((field, width), right) in line.columns.iter().zip(widths).zip(RIGHT_ALIGNED) {
            text += &if right { format!("{field:>width$} ") } else { format!("{field:width$} ") };
        }
        text + &line.name
    };
    lines.iter().map(text).collect::<Vec<_>>().join("\n")
}

/// Adds the target of a symbolic link to the JSON of a file; null for other files.
pub fn set_target(value: &mut Value, target: Option<&LinkTarget>) {
    match target {
        Some(target) => set_bytes(value, "target", target),
        None => value["target"] = Value::Null,
    }
}

/// Formats major and minor number as Linux packs them.
#[must_use]
pub fn device_number(rdev: u32) -> String {
    format!("{}, {}", (rdev >> 8) & 0xFFF, (rdev & 0xFF) | ((rdev >> 12) & 0xF_FF00))
}

/// Formats a time in nanoseconds since 1970, which may be negative, in UTC.
#[must_use]
pub fn utc_ns(ns: i64) -> String {
    utc(ns.div_euclid(1_000_000))
}
