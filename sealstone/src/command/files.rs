//! Names: listing, moving, removing, and how much room there is.

use sealstone_client::{Client, DirEntry, FileKind, Stat};
use serde_json::{Value, json};

use crate::cli::{Chgrp, Chmod, Chown, Global, Ln, Ls, Mkdir, Mv, Paths, Rm};
use crate::command::session::client;
use crate::command::walk::{join, last_name};
use crate::command::{drain, placement};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, human_bytes, mode_string, utc};

/// What is known of a file, for scripts.
pub(crate) fn stat_json(path: &str, stat: &Stat) -> Value {
    let checksum = stat.checksum.as_ref().map(|checksum| {
        let kind = format!("{:?}", checksum.kind).to_lowercase();
        let length = if kind == "crc32c" { 4 } else { 32 };
        let hex: String = checksum.value[..length].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{kind}:{hex}")
    });
    json!({
        "path": path, "kind": kind(stat.kind), "size": stat.size, "mode": format!("{:04o}", stat.mode),
        "owner": stat.owner.as_str(), "group": group(stat), "inode": stat.inode.0, "version": stat.version, "width": stat.width,
        "links": stat.links, "rdev": stat.rdev, "mtime_ms": Stat::ms(stat.mtime_ns), "ctime_ms": Stat::ms(stat.ctime_ns),
        "created_ms": Stat::ms(stat.birth_ns), "atime_ns": stat.atime_ns, "mtime_ns": stat.mtime_ns,
        "ctime_ns": stat.ctime_ns, "checksum": checksum,
    })
}

fn group(stat: &Stat) -> Option<&str> {
    stat.group.as_ref().map(sealstone_client::GroupName::as_str)
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

fn long_line(name: &str, stat: &Stat, target: Option<&str>) -> String {
    let size = match stat.kind {
        FileKind::CharDevice | FileKind::BlockDevice => device_number(stat.rdev),
        _ => stat.size.to_string(),
    };
    let after = match (stat.kind, target) {
        (FileKind::Directory, _) => "/".to_owned(),
        (_, Some(target)) => format!(" -> {target}"),
        _ => String::new(),
    };
    format!(
        "{} {:>3} {:12} {:12} {size:>12} {} {name}{after}",
        mode_string(stat.kind, stat.mode),
        stat.links,
        stat.owner.as_str(),
        group(stat).unwrap_or("-"),
        utc(Stat::ms(stat.mtime_ns)),
    )
}

/// An entry of a list, by its path below what was listed.
pub(crate) struct Listed {
    pub(crate) path: String,
    pub(crate) inode: u64,
    pub(crate) kind: FileKind,
    /// None in a directory that may be listed and not passed.
    pub(crate) stat: Option<Stat>,
}

impl Listed {
    fn json(&self, target: Option<&str>) -> Value {
        let mut value = match &self.stat {
            Some(stat) => stat_json(&self.path, stat),
            None => json!({ "path": self.path, "kind": kind(self.kind), "inode": self.inode }),
        };
        value["target"] = json!(target);
        value
    }

    fn line(&self, long: bool, target: Option<&str>) -> String {
        let slash = if self.kind == FileKind::Directory { "/" } else { "" };
        match &self.stat {
            Some(stat) if long => long_line(&self.path, stat, target),
            None if long => {
                let letter = mode_string(self.kind, 0).chars().next().unwrap_or('?');
                format!(
                    "{letter}????????? {:>3} {:12} {:12} {:>12} {:16} {}{slash}",
                    "?", "?", "?", "?", "?", self.path
                )
            }
            _ => format!("{}{slash}", self.path),
        }
    }
}

/// Major and minor number, as Linux packs them.
fn device_number(rdev: u32) -> String {
    format!("{}, {}", (rdev >> 8) & 0xFFF, (rdev & 0xFF) | ((rdev >> 12) & 0xF_FF00))
}

/// Where it leads, of a symbolic link that can be read.
async fn target(client: &Client, stat: &Stat) -> Option<String> {
    if stat.kind == FileKind::Symlink { client.target_of(stat).await.ok() } else { None }
}

/// `sealstone ls`.
pub(crate) async fn ls(global: &Global, output: Output, arguments: &Ls) -> Outcome {
    let (client, _) = client(global)?;
    let top = arguments.path.as_str();
    // A link is shown as such in a long list; else what it leads to is meant, if it leads anywhere.
    let mut stat = client.lstat(top).await.map_err(|error| Failure::from(error).at(top))?;
    if stat.kind == FileKind::Symlink && !arguments.long {
        stat = client.stat(top).await.unwrap_or(stat);
    }
    let found = if stat.kind == FileKind::Directory {
        list(&client, top, arguments.recursive).await?
    } else {
        let path = last_name(top).unwrap_or(top).to_owned();
        vec![Listed { path, inode: stat.inode.0, kind: stat.kind, stat: Some(stat) }]
    };
    let mut targets = Vec::with_capacity(found.len());
    for listed in &found {
        targets.push(match &listed.stat {
            Some(stat) if arguments.long || output.is_json() => target(&client, stat).await,
            _ => None,
        });
    }
    let told = || found.iter().zip(targets.iter().map(Option::as_deref));
    let value: Vec<Value> = told().map(|(listed, target)| listed.json(target)).collect();
    if !output.is_json() && found.is_empty() {
        return Ok(());
    }
    output.result(&value, || {
        let lines: Vec<String> = told().map(|(listed, target)| listed.line(arguments.long, target)).collect();
        lines.join("\n")
    })
}

/// Entries of a directory by their paths below it; with all below them if `recursive`.
pub(crate) async fn list(client: &Client, top: &str, recursive: bool) -> Outcome<Vec<Listed>> {
    let mut found = Vec::new();
    let mut waiting = vec![String::new()];
    while let Some(below) = waiting.pop() {
        let directory = join(top, &below);
        let mut entries = client.list(&directory).map_err(|error| Failure::from(error).at(&directory))?;
        let mut deeper = Vec::new();
        while let Some(DirEntry { name, inode, kind, stat }) =
            entries.next().await.map_err(|error| Failure::from(error).at(&directory))?
        {
            let path = if below.is_empty() { name.shown().into_owned() } else { format!("{below}/{name}") };
            if recursive && kind == FileKind::Directory {
                deeper.push(path.clone());
            }
            found.push(Listed { path, inode: inode.0, kind, stat });
        }
        deeper.reverse();
        waiting.append(&mut deeper);
    }
    Ok(found)
}

/// `sealstone stat`.
pub(crate) async fn stat(global: &Global, output: Output, arguments: &Paths) -> Outcome {
    let (client, _) = client(global)?;
    let mut values = Vec::new();
    let mut blocks = Vec::new();
    for path in &arguments.paths {
        let stat = client.lstat(path).await.map_err(|error| Failure::from(error).at(path))?;
        let target = target(&client, &stat).await;
        let mut value = stat_json(path, &stat);
        value["target"] = json!(target);
        let mut lines = vec![
            format!("    path  {path}"),
            format!("    kind  {}", kind(stat.kind)),
            format!("    size  {} ({})", stat.size, human_bytes(stat.size)),
            format!("    mode  {} {:04o}", mode_string(stat.kind, stat.mode), stat.mode),
            format!("   owner  {}", stat.owner.as_str()),
            format!("   group  {}", group(&stat).unwrap_or("-")),
            format!("   links  {}", stat.links),
            format!("modified  {}", utc(Stat::ms(stat.mtime_ns))),
            format!(" changed  {}", utc(Stat::ms(stat.ctime_ns))),
            format!(" created  {}", utc(Stat::ms(stat.birth_ns))),
        ];
        if let Some(target) = target {
            lines.push(format!("leads to  {target}"));
        }
        if matches!(stat.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            lines.push(format!("  device  {}", device_number(stat.rdev)));
        }
        if stat.kind == FileKind::File {
            let placement = placement::of(&client, path).await?;
            value["placement"] = placement.json();
            lines.extend(placement.lines(stat.version));
            if let Some(checksum) = value["checksum"].as_str() {
                lines.push(format!("checksum  {checksum}"));
            }
        }
        values.push(value);
        blocks.push(lines.join("\n"));
    }
    match values.as_slice() {
        [value] => output.result(value, || blocks.concat()),
        _ => output.result(&values, || blocks.join("\n\n")),
    }
}

/// `sealstone mkdir`.
pub(crate) async fn mkdir(global: &Global, output: Output, arguments: &Mkdir) -> Outcome {
    let (client, _) = client(global)?;
    let mut values = Vec::new();
    for path in &arguments.paths {
        let made = client
            .mkdir(path, arguments.parents, 0o755)
            .await
            .map_err(|error| Failure::from(error).at(path))?;
        values.push(stat_json(path, &made));
    }
    output.done(&values)
}

/// `sealstone mv`: an existing directory takes what is moved under its old name, as people expect.
pub(crate) async fn mv(global: &Global, output: Output, arguments: &Mv) -> Outcome {
    let (client, _) = client(global)?;
    let to = into_directory(&client, &arguments.to, &arguments.from).await?;
    client
        .rename(&arguments.from, &to, !arguments.no_replace)
        .await
        .map_err(|error| Failure::from(error).at(format!("{} to {to}", arguments.from)))?;
    output.done(&json!({ "from": arguments.from, "to": to }))
}

/// `path` itself, or `path/NAME` if `path` is a directory; NAME is the last one of `source`.
pub(crate) async fn into_directory(client: &Client, path: &str, source: &str) -> Outcome<String> {
    match client.stat(path).await {
        Ok(stat) if stat.kind == FileKind::Directory => match last_name(source) {
            Some(name) => Ok(join(path, name)),
            None => Err(Failure::usage("has no name of its own").at(source)),
        },
        Ok(_) if path.ends_with('/') => Err(Failure::operation("not a directory").at(path)),
        Ok(_) => Ok(path.to_owned()),
        Err(error) if error.is_not_found() && !path.ends_with('/') => Ok(path.to_owned()),
        Err(error) => Err(Failure::from(error).at(path)),
    }
}

/// `sealstone ln`.
pub(crate) async fn ln(global: &Global, output: Output, arguments: &Ln) -> Outcome {
    let (client, _) = client(global)?;
    let path = into_directory(&client, &arguments.path, &arguments.target).await?;
    let made = if arguments.symbolic {
        client.symlink(&arguments.target, &path).await
    } else {
        client.link(&arguments.target, &path).await
    };
    let stat = made.map_err(|error| Failure::from(error).at(&path))?;
    output.done(&stat_json(&path, &stat))
}

/// `sealstone rm`.
pub(crate) async fn rm(global: &Global, output: Output, arguments: &Rm) -> Outcome {
    let (client, _) = client(global)?;
    let mut removed = 0;
    for path in &arguments.paths {
        if !arguments.recursive {
            let stat = client.lstat(path).await.map_err(|error| Failure::from(error).at(path))?;
            if stat.kind == FileKind::Directory {
                return Err(Failure::operation("is a directory").at(path).hint("use rm -r"));
            }
        }
        removed +=
            client.remove(path, arguments.recursive).await.map_err(|error| Failure::from(error).at(path))?;
    }
    output.done(&json!({ "removed": removed }))
}

/// `sealstone chmod`.
pub(crate) async fn chmod(global: &Global, output: Output, arguments: &Chmod) -> Outcome {
    let mode = u16::from_str_radix(&arguments.mode, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| Failure::usage("is not an octal mode such as 640").at(&arguments.mode))?;
    let (client, _) = client(global)?;
    let mut values = Vec::new();
    for path in &arguments.paths {
        let stat = client.set_mode(path, mode).await.map_err(|error| Failure::from(error).at(path))?;
        values.push(stat_json(path, &stat));
    }
    output.done(&values)
}

/// `sealstone chown`.
pub(crate) async fn chown(global: &Global, output: Output, arguments: &Chown) -> Outcome {
    let (owner, group) = match arguments.owner.split_once(':') {
        Some((owner, group)) => (owner, Some(group)),
        None => (arguments.owner.as_str(), None),
    };
    let owner = Some(owner).filter(|owner| !owner.is_empty());
    set_owner(global, output, &arguments.paths, owner, group).await
}

/// `sealstone chgrp`.
pub(crate) async fn chgrp(global: &Global, output: Output, arguments: &Chgrp) -> Outcome {
    set_owner(global, output, &arguments.paths, None, Some(&arguments.group)).await
}

async fn set_owner(
    global: &Global,
    output: Output,
    paths: &[String],
    owner: Option<&str>,
    group: Option<&str>,
) -> Outcome {
    let group = group.map(|group| Some(group).filter(|group| *group != "none"));
    let (client, _) = client(global)?;
    let mut values = Vec::new();
    for path in paths {
        let stat =
            client.set_owner(path, owner, group).await.map_err(|error| Failure::from(error).at(path))?;
        values.push(stat_json(path, &stat));
    }
    output.done(&values)
}

/// `sealstone df`.
pub(crate) async fn df(global: &Global, output: Output) -> Outcome {
    let (client, _) = client(global)?;
    let free = client.disk_free().await?;
    let devices = client.device_list().await?;
    let value = json!({
        "total": free.total, "used": free.used, "available": free.total.saturating_sub(free.used),
        "devices": devices.iter().map(|device| json!({
            "id": device.id.0, "name": device.name.shown(), "url": device.url.as_str(),
            "state": format!("{:?}", device.state).to_lowercase(), "total": device.total, "used": device.used,
            "speed": Some(device.speed).filter(|speed| *speed > 0), "drain": drain::told(device)["drain"],
        })).collect::<Vec<_>>(),
    });
    output.result(&value, || {
        let row = |name: &str, total: u64, used: u64, state: &str| {
            let percent = if total == 0 { 0.0 } else { used as f64 * 100.0 / total as f64 };
            format!(
                "{name:24} {:>12} {:>12} {:>12} {percent:>5.1}% {state}",
                human_bytes(total),
                human_bytes(used),
                human_bytes(total.saturating_sub(used)),
            )
        };
        let mut lines = vec![format!(
            "{:24} {:>12} {:>12} {:>12} {:>6} {}",
            "DEVICE", "SIZE", "USED", "AVAIL", "USE", "STATE"
        )];
        for device in &devices {
            let mut state = format!("{:?}", device.state).to_lowercase();
            match &device.drain {
                Some(drain) if drain.done_ms.is_some() => state += ", empty",
                Some(drain) => state += &format!(", {} objects left", drain.left_objects),
                None => {}
            }
            lines.push(row(&device.name.shown(), device.total, device.used, &state));
        }
        lines.push(row("all", free.total, free.used, &format!("{} of {} active", free.active, free.devices)));
        lines.join("\n")
    })
}
