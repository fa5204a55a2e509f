//! Commands on names (`ls`, `stat`, `mkdir`, `mv`, `ln`, `rm`, `chmod`, `chown`, `chgrp`), and
//! `df`.
//!
//! Does: parses stored paths, sends the requests, prints attributes.

use std::ffi::OsString;
use std::io::IsTerminal;

use sealstone_administration::{CapacityReport, StatReport};
use sealstone_client::{Client, ClientError, FileKind, Stat};
use sealstone_failure::text::set_bytes;
use sealstone_failure::{Failure, Outcome, PartResults, for_each};
use sealstone_transfer::{
    align_lines, entry_json, entry_name, into_directory, link_target, list_path, long_line, stat_json,
};
use sealstone_units::wrap;
use serde_json::{Value, json};

use crate::cli::{
    ChgrpArgs, ChmodArgs, ChownArgs, GlobalArgs, LnArgs, LsArgs, MkdirArgs, MvArgs, PathArgs, RmArgs,
    StoredPath,
};
use crate::command::session::client;
use crate::output::Output;

/// `sealstone ls`.
pub(crate) async fn ls(global: &GlobalArgs, output: Output, arguments: &LsArgs) -> Outcome {
    let top = global.stored(&arguments.path)?;
    let (client, _) = client(global)?;
    // As `ls`: -l shows a symbolic link itself, otherwise its target is listed.
    let (found, failed) = list_path(&client, &top, arguments.recursive, !arguments.long).await?;
    let results = PartResults::new(&output, found, failed);
    let mut targets = Vec::with_capacity(results.done.len());
    for listed in &results.done {
        targets.push(match &listed.stat {
            Some(stat) if arguments.long || output.is_json() => link_target(&client, stat).await,
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
    let report = StatReport::load(client, path).await?;
    let mut lines = report.lines();
    // A pipe gets whole lines.
    if std::io::stdout().is_terminal() {
        lines.iter_mut().for_each(|line| *line = wrap(line, STAT_INDENT));
    }
    Ok((report.json(), lines.join("\n")))
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
