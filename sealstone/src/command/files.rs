//! Commands on names (`ls`, `stat`, `mkdir`, `mv`, `ln`, `rm`, `chmod`, `chown`, `chgrp`), and
//! `df`.
//!
//! Does: parses stored paths, sends the requests, prints text and JSON of attributes.

use std::ffi::OsString;
use std::io::IsTerminal;

use sealstone_client::{ChecksumKind, Client, ClientError, FileKind, FilePath, Stat};
use sealstone_failure::text::{hex, human_bytes, set_bytes};
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::{LinkTarget, shown};
use sealstone_transfer::{ListEntry, TreePath, kind_name, list_readable};
use sealstone_units::{mode_string, utc};
use serde_json::{Value, json};

use crate::cli::{
    ChgrpArgs, ChmodArgs, ChownArgs, GlobalArgs, LnArgs, LsArgs, MkdirArgs, MvArgs, PathArgs, RmArgs,
    StoredPath,
};
use crate::command::keys::state_name;
use crate::command::parts::{PartResults, for_each};
use crate::command::session::client;
use crate::command::{drain, placement};
use crate::output::Output;

/// Returns the attributes of a file as `--json` prints them.
pub(crate) fn stat_json(path: impl AsRef<[u8]>, stat: &Stat) -> Value {
    let checksum = stat.checksum.as_ref().map(|checksum| {
        let (kind, length) = match checksum.kind {
            ChecksumKind::Sha256 => ("sha256", 32),
            ChecksumKind::Crc32c => ("crc32c", 4),
            ChecksumKind::Blake3 => ("blake3", 32),
        };
        format!("{kind}:{}", hex(&checksum.value[..length]))
    });
    let mut value = json!({
        "kind": kind_name(stat.kind), "size": stat.size, "mode": format!("{:04o}", stat.mode),
        "owner": stat.owner.as_str(), "group": group(stat), "inode": stat.inode.0, "version": stat.version, "width": stat.width,
        "links": stat.links, "rdev": stat.rdev, "mtime_ms": Stat::ms(stat.mtime_ns), "ctime_ms": Stat::ms(stat.ctime_ns),
        "created_ms": Stat::ms(stat.birth_ns), "atime_ns": stat.atime_ns, "mtime_ns": stat.mtime_ns,
        "ctime_ns": stat.ctime_ns, "checksum": checksum,
    });
    set_bytes(&mut value, "path", path);
    value
}

fn group(stat: &Stat) -> Option<&str> {
    stat.group.as_ref().map(sealstone_client::GroupName::as_str)
}

/// The columns of one line of `ls -l`.
struct LongLine {
    /// Mode, links, owner, group, size, time.
    columns: [String; 6],
    name: String,
}

/// Columns of a long list that are aligned to the right: links and size.
const RIGHT_ALIGNED: [bool; 6] = [false, true, false, false, true, false];

/// Returns an entry of a listing as `--json` prints it.
fn entry_json(entry: &ListEntry, target: Option<&LinkTarget>) -> Value {
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
fn entry_name(entry: &ListEntry) -> String {
    let slash = if entry.kind == FileKind::Directory { "/" } else { "" };
    format!("{}{slash}", entry.path)
}

/// Returns the line of an entry in a long list.
fn long_line(entry: &ListEntry, target: Option<&LinkTarget>) -> LongLine {
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
        group(stat).unwrap_or("-").to_owned(),
        size,
        utc_ns(stat.mtime_ns),
    ];
    LongLine { columns, name }
}

/// Aligns the columns of a long list; each is as wide as its longest field.
fn align(lines: &[LongLine]) -> String {
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

fn set_target(value: &mut Value, target: Option<&LinkTarget>) {
    match target {
        Some(target) => set_bytes(value, "target", target),
        None => value["target"] = Value::Null,
    }
}

/// Formats major and minor number as Linux packs them.
fn device_number(rdev: u32) -> String {
    format!("{}, {}", (rdev >> 8) & 0xFFF, (rdev & 0xFF) | ((rdev >> 12) & 0xF_FF00))
}

/// Returns the target of a symbolic link; `None` for other files, or if it cannot be read.
async fn target(client: &Client, stat: &Stat) -> Option<LinkTarget> {
    if stat.kind == FileKind::Symlink { client.target_of(stat).await.ok() } else { None }
}

/// `sealstone ls`.
pub(crate) async fn ls(global: &GlobalArgs, output: Output, arguments: &LsArgs) -> Outcome {
    let top = global.stored(&arguments.path)?;
    let (client, _) = client(global)?;
    // As `ls`: -l shows a symbolic link itself, otherwise its target is listed.
    let mut stat = client.lstat(&top).await.map_err(|error| Failure::from(error).at(&top))?;
    if stat.kind == FileKind::Symlink && (!arguments.long || top.trailing_slash) {
        stat = client.stat(&top).await.unwrap_or(stat);
    }
    let (found, failed) = if stat.kind == FileKind::Directory {
        list_readable(&client, &top, arguments.recursive).await
    } else {
        let path = top.split_last().map(|(_, name)| TreePath::top().join(&name)).unwrap_or_default();
        (vec![ListEntry { path, inode: stat.inode.0, kind: stat.kind, stat: Some(stat) }], Vec::new())
    };
    if let [(directory, failure)] = &failed[..]
        && directory.is_top()
        && found.is_empty()
    {
        return Err(failure.clone());
    }
    let failed = failed.into_iter().map(|(_, failure)| failure).collect();
    let results = PartResults::new(output, found, failed);
    let mut targets = Vec::with_capacity(results.done.len());
    for listed in &results.done {
        targets.push(match &listed.stat {
            Some(stat) if arguments.long || output.is_json() => target(&client, stat).await,
            _ => None,
        });
    }
    let entries = || results.done.iter().zip(targets.iter().map(Option::as_ref));
    let value: Vec<Value> = entries().map(|(listed, target)| entry_json(listed, target)).collect();
    let text = match arguments.long {
        true => align(&entries().map(|(listed, target)| long_line(listed, target)).collect::<Vec<_>>()),
        false => results.done.iter().map(entry_name).collect::<Vec<_>>().join("\n"),
    };
    results.finish_with_text(json!({ "entries": value }), || text)
}

/// `sealstone stat`.
pub(crate) async fn stat(global: &GlobalArgs, output: Output, arguments: &PathArgs) -> Outcome {
    let paths = stored(global, &arguments.paths)?;
    let (client, _) = client(global)?;
    let results = for_each(output, &paths, async |path| stat_one(&client, path).await).await?;
    let (values, blocks): (Vec<_>, Vec<_>) = results.done.iter().cloned().unzip();
    results.finish_with_text(json!({ "files": values }), || blocks.join("\n\n"))
}

/// Returns the attributes of one path as JSON and as text.
async fn stat_one(client: &Client, path: &StoredPath) -> Outcome<(Value, String)> {
    let stat = client.lstat(path).await.map_err(|error| Failure::from(error).at(path))?;
    let target = target(client, &stat).await;
    let mut value = stat_json(path, &stat);
    set_target(&mut value, target.as_ref());
    let mut lines = vec![
        format!("    path  {path}"),
        format!("    kind  {}", kind_name(stat.kind)),
        format!("    size  {} ({})", stat.size, human_bytes(stat.size)),
        format!("    mode  {} {:04o}", mode_string(stat.kind, stat.mode), stat.mode),
        format!("   owner  {}", stat.owner.as_str()),
        format!("   group  {}", group(&stat).unwrap_or("-")),
        format!("   links  {}", stat.links),
        format!("modified  {}", utc_ns(stat.mtime_ns)),
        format!(" changed  {}", utc_ns(stat.ctime_ns)),
        format!(" created  {}", utc_ns(stat.birth_ns)),
    ];
    if let Some(target) = &target {
        lines.push(format!("  target  {}", shown(target.as_bytes())));
    }
    if matches!(stat.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        lines.push(format!("  device  {}", device_number(stat.rdev)));
    }
    if stat.kind == FileKind::File {
        let placement = placement::of(client, path).await?;
        value["placement"] = placement.json();
        lines.extend(placement.lines(stat.version));
        if let Some(checksum) = value["checksum"].as_str() {
            lines.push(format!("checksum  {checksum}"));
        }
    }
    // A pipe gets whole lines.
    if std::io::stdout().is_terminal() {
        lines.iter_mut().for_each(|line| *line = wrap(line, STAT_INDENT));
    }
    Ok((value, lines.join("\n")))
}

/// Parses stored paths of the command line.
pub(crate) fn stored(global: &GlobalArgs, arguments: &[OsString]) -> Outcome<Vec<StoredPath>> {
    arguments.iter().map(|argument| global.stored(argument)).collect()
}

/// `sealstone mkdir`.
pub(crate) async fn mkdir(global: &GlobalArgs, output: Output, arguments: &MkdirArgs) -> Outcome {
    let paths = stored(global, &arguments.paths)?;
    let (client, _) = client(global)?;
    let created = async |path: &StoredPath| client.mkdir(path, arguments.parents, 0o755).await;
    change_each(output, &paths, created).await
}

/// Runs `change` for each path and prints the attributes that it returns.
async fn change_each(
    output: Output,
    paths: &[StoredPath],
    mut change: impl AsyncFnMut(&StoredPath) -> Result<Stat, ClientError>,
) -> Outcome {
    let results = for_each(output, paths, async |path| {
        let stat = change(path).await.map_err(|error| Failure::from(error).at(path))?;
        Ok(stat_json(path, &stat))
    });
    let results = results.await?;
    let value = json!({ "files": results.done });
    results.finish(value)
}

/// `sealstone mv`: an existing directory receives the source under its old name.
pub(crate) async fn mv(global: &GlobalArgs, output: Output, arguments: &MvArgs) -> Outcome {
    let (from, to) = (global.stored(&arguments.from)?, global.stored(&arguments.to)?);
    let (client, _) = client(global)?;
    let to = into_directory(&client, &to, from.as_bytes()).await?;
    client
        .rename(&from, &to, !arguments.no_replace)
        .await
        .map_err(|error| Failure::from(error).at_both(&from, " to ", &to))?;
    let mut value = json!({});
    set_bytes(&mut value, "from", &from);
    set_bytes(&mut value, "to", &to);
    output.done(&value)
}

/// Returns `path`, or `path/NAME` if `path` is a directory; NAME is the last name of `source`.
async fn into_directory(client: &Client, path: &StoredPath, source: &[u8]) -> Outcome<FilePath> {
    match client.stat(path).await {
        Ok(stat) if stat.kind == FileKind::Directory => {
            let last = source.split(|byte| *byte == b'/').rfind(|name| !name.is_empty());
            let name = last.and_then(|name| sealstone_client::Name::new(name).ok());
            let name = name.ok_or_else(|| Failure::usage("has no last name").at(shown(source)))?;
            path.join(&name).map_err(|error| Failure::usage(error).at(path))
        }
        Ok(_) if path.trailing_slash => Err(Failure::operation("not a directory").at(path)),
        Ok(_) => Ok((**path).clone()),
        Err(error) if error.is_not_found() && !path.trailing_slash => Ok((**path).clone()),
        Err(error) => Err(Failure::from(error).at(path)),
    }
}

/// `sealstone ln`.
pub(crate) async fn ln(global: &GlobalArgs, output: Output, arguments: &LnArgs) -> Outcome {
    let path = global.stored(&arguments.path)?;
    let target = global.bytes(&arguments.target)?;
    let existing = if arguments.symbolic { None } else { Some(global.stored(&arguments.target)?) };
    let (client, _) = client(global)?;
    let path = into_directory(&client, &path, &target).await?;
    let made = match &existing {
        None => client.symlink(&target, &path).await,
        Some(existing) => client.link(existing, &path).await,
    };
    let stat = made.map_err(|error| Failure::from(error).at(&path))?;
    output.done(&json!({ "files": [stat_json(&path, &stat)] }))
}

/// `sealstone rm`.
pub(crate) async fn rm(global: &GlobalArgs, output: Output, arguments: &RmArgs) -> Outcome {
    let paths = stored(global, &arguments.paths)?;
    let (client, _) = client(global)?;
    let results = for_each(output, &paths, async |path| {
        let at = |error| Failure::from(error).at(path);
        if path.is_root() {
            return Err(Failure::usage("the root directory cannot be removed").at(path));
        }
        if !arguments.recursive && client.lstat(path).await.map_err(at)?.kind == FileKind::Directory {
            return Err(Failure::operation("is a directory").at(path).hint("use rm -r"));
        }
        client.remove(path, arguments.recursive).await.map_err(at)
    });
    let results = results.await?;
    let removed: u64 = results.done.iter().sum();
    results.finish(json!({ "removed": removed }))
}

/// `sealstone chmod`.
pub(crate) async fn chmod(global: &GlobalArgs, output: Output, arguments: &ChmodArgs) -> Outcome {
    let mode = u16::from_str_radix(&arguments.mode, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| Failure::usage("is not an octal mode such as 640").at(&arguments.mode))?;
    let paths = stored(global, &arguments.paths)?;
    let (client, _) = client(global)?;
    change_each(output, &paths, async |path| client.set_mode(path, mode).await).await
}

/// `sealstone chown`.
pub(crate) async fn chown(global: &GlobalArgs, output: Output, arguments: &ChownArgs) -> Outcome {
    let (owner, group) = match arguments.owner.split_once(':') {
        Some((owner, group)) => (owner, Some(group)),
        None => (arguments.owner.as_str(), None),
    };
    let owner = Some(owner).filter(|owner| !owner.is_empty());
    set_owner(global, output, &arguments.paths, owner, group).await
}

/// `sealstone chgrp`.
pub(crate) async fn chgrp(global: &GlobalArgs, output: Output, arguments: &ChgrpArgs) -> Outcome {
    set_owner(global, output, &arguments.paths, None, Some(&arguments.group)).await
}

async fn set_owner(
    global: &GlobalArgs,
    output: Output,
    paths: &[OsString],
    owner: Option<&str>,
    group: Option<&str>,
) -> Outcome {
    let group = group.map(|group| Some(group).filter(|group| *group != "none"));
    let paths = stored(global, paths)?;
    let (client, _) = client(global)?;
    change_each(output, &paths, async |path| client.set_owner(path, owner, group).await).await
}

/// `sealstone df`.
pub(crate) async fn df(global: &GlobalArgs, output: Output) -> Outcome {
    let (client, _) = client(global)?;
    let free = client.disk_free().await?;
    let devices = client.device_list().await?;
    let value = json!({
        "total": free.total, "used": free.used, "available": free.total.saturating_sub(free.used),
        "devices": devices.iter().map(|device| json!({
            "id": device.id.0, "name": device.name.shown(), "url": device.url.as_str(),
            "state": state_name(device.state), "total": device.total, "used": device.used,
            "speed": Some(device.speed).filter(|speed| *speed > 0), "drain": drain::device_json(device)["drain"],
        })).collect::<Vec<_>>(),
    });
    output.result(&value, || {
        let percent = |total: u64, used: u64| {
            if total == 0 { 0.0 } else { used as f64 * 100.0 / total as f64 }
        };
        let row = |name: &str, total: u64, used: u64, state: String| {
            let available = human_bytes(total.saturating_sub(used));
            let share = format!("{:.1}%", percent(total, used));
            [name.to_owned(), human_bytes(total), human_bytes(used), available, share, state]
        };
        let mut rows = vec![["DEVICE", "SIZE", "USED", "AVAIL", "USE", "STATE"].map(ToOwned::to_owned)];
        for device in &devices {
            let mut state = state_name(device.state).to_owned();
            match &device.drain {
                Some(drain) if drain.done_ms.is_some() => state += ", empty",
                Some(drain) => state += &format!(", {} objects left", drain.left_objects),
                None => {}
            }
            rows.push(row(&device.name.shown(), device.total, device.used, state));
        }
        rows.push(row("all", free.total, free.used, format!("{} of {} active", free.active, free.devices)));
        columns(&rows, [false, true, true, true, true, false])
    })
}

/// Width of the names of `sealstone stat`, columns.
const STAT_INDENT: usize = 10;
/// Width of a terminal, columns.
const LINE_COLUMNS: usize = 80;

/// Aligns rows of text; each column but the last is as wide as its longest field.
fn columns<const N: usize>(rows: &[[String; N]], right: [bool; N]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let text = |row: &[String; N]| {
        let mut text = String::new();
        for (at, field) in row.iter().enumerate() {
            let width = widths[at];
            text += &if right[at] { format!("{field:>width$}  ") } else { format!("{field:width$}  ") };
        }
        text.trim_end().to_owned()
    };
    rows.iter().map(text).collect::<Vec<_>>().join("\n")
}

/// Wraps a line at blanks to the width of a terminal; further lines are indented. A longer word is
/// not broken.
fn wrap(line: &str, indent: usize) -> String {
    let mut out = String::new();
    let mut rest = line;
    let mut width = LINE_COLUMNS;
    loop {
        let fits = rest.char_indices().nth(width).map_or(rest.len(), |(at, _)| at);
        if fits == rest.len() {
            return out + rest;
        }
        let start = if out.is_empty() { indent.min(rest.len()) } else { 0 };
        let found = rest.get(..=fits).unwrap_or(rest).rfind(' ').filter(|at| *at > start);
        let found = found.or_else(|| rest.get(fits..)?.find(' ').map(|at| at + fits));
        let Some(at) = found else { return out + rest };
        out += &rest[..at];
        out += "\n";
        out += &" ".repeat(indent);
        rest = rest[at..].trim_start();
        width = LINE_COLUMNS.saturating_sub(indent).max(1);
    }
}

/// Formats a time in nanoseconds since 1970, which may be negative, in UTC.
fn utc_ns(ns: i64) -> String {
    utc(ns.div_euclid(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_break_at_blanks() {
        let line = format!("    path  {} b", "a ".repeat(60));
        let text = wrap(&line, 10);
        assert!(text.lines().all(|line| line.chars().count() <= LINE_COLUMNS), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("          ")), "{text}");
        assert_eq!(wrap("short", 10), "short");
        let word = format!("    path  {}", "x".repeat(100));
        assert_eq!(wrap(&word, 10), word);
    }

    #[test]
    fn columns_are_as_wide_as_their_fields() {
        let rows = [["A", "B", "C"], ["long name", "1", "x"]].map(|row| row.map(ToOwned::to_owned));
        assert_eq!(columns(&rows, [false, true, false]), "A          B  C\nlong name  1  x");
    }
}
