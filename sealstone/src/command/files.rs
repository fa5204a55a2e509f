//! Commands on names (`ls`, `stat`, `mkdir`, `mv`, `ln`, `rm`, `chmod`, `chown`, `chgrp`), and
//! `df`.
//!
//! Does: parses stored paths, sends the requests, prints attributes.

use std::ffi::OsString;
use std::io::IsTerminal;

use sealstone_administration::{CapacityReport, PlacementReport};
use sealstone_client::{Client, ClientError, FileKind, FilePath, GroupName, Stat};
use sealstone_failure::text::{human_bytes, set_bytes};
use sealstone_failure::{Failure, Outcome, PartResults, for_each};
use sealstone_mds_protocol::{LinkTarget, shown};
use sealstone_transfer::{
    ListEntry, TreePath, align_lines, device_number, entry_json, entry_name, kind_name, list_readable,
    long_line, set_target, stat_json, utc_ns,
};
use sealstone_units::{mode_string, wrap};
use serde_json::{Value, json};

use crate::cli::{
    ChgrpArgs, ChmodArgs, ChownArgs, GlobalArgs, LnArgs, LsArgs, MkdirArgs, MvArgs, PathArgs, RmArgs,
    StoredPath,
};
use crate::command::session::client;
use crate::output::Output;

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
    let results = PartResults::new(&output, found, failed);
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
        true => align_lines(&entries().map(|(listed, target)| long_line(listed, target)).collect::<Vec<_>>()),
        false => results.done.iter().map(entry_name).collect::<Vec<_>>().join("\n"),
    };
    output.parts_with_text(results, json!({ "entries": value }), || text)
}

/// `sealstone stat`.
pub(crate) async fn stat(global: &GlobalArgs, output: Output, arguments: &PathArgs) -> Outcome {
    let paths = stored(global, &arguments.paths)?;
    let (client, _) = client(global)?;
    let results = for_each(&output, &paths, async |path| stat_one(&client, path).await).await?;
    let (values, blocks): (Vec<_>, Vec<_>) = results.done.iter().cloned().unzip();
    output.parts_with_text(results, json!({ "files": values }), || blocks.join("\n\n"))
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
        format!("   group  {}", stat.group.as_ref().map_or("-", GroupName::as_str)),
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
        let placement = PlacementReport::of_file(client, path).await?;
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
    let results = for_each(&output, paths, async |path| {
        let stat = change(path).await.map_err(|error| Failure::from(error).at(path))?;
        Ok(stat_json(path, &stat))
    });
    let results = results.await?;
    let value = json!({ "files": results.done });
    output.parts(results, value)
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
    let results = for_each(&output, &paths, async |path| {
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
    output.parts(results, json!({ "removed": removed }))
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
    let report = CapacityReport::load(&client).await?;
    output.result(&report.json(), || report.text())
}

/// Width of the names of `sealstone stat`, columns.
const STAT_INDENT: usize = 10;
