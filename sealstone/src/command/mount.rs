//! `mount` and `umount`.
//!
//! A mount in the background is a second process of this program in its own session. The first
//! process waits for the ready line, prints it, and ends.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};
use sealstone_client::nodes::{Nodes, NodesOptions};
use sealstone_client::{Client, FileKind, SavedSession, Tuning};
use sealstone_daemon::Shutdown;
use sealstone_failure::text::{ShownPath as _, set_bytes, set_path, with_paths};
use sealstone_failure::{Failure, FailureKind, Outcome};
use sealstone_fuse::{IdMap, Mount as Mounted, MountError, MountOptions, MountRoot, MountingUser};
use sealstone_mds_protocol::shown;
use serde_json::{Value, json};

use crate::cli::GlobalArgs;
use crate::cli::mount::{MountArgs, SOURCE_PREFIX, UmountArgs};
use crate::command::session;
use crate::daemon::shutdown_on_signals;
use crate::output::Output;

/// Environment variable of the background process: it detaches from the terminal.
const BACKGROUND: &str = "SEALSTONE_MOUNT_BACKGROUND";
/// Maximum bytes of output of the background process that are read.
const OUTPUT_MAX: u64 = 64 << 10;

/// `sealstone mount`.
pub(crate) fn mount(global: &GlobalArgs, output: Output, arguments: &MountArgs) -> Outcome {
    let place = arguments.mountpoint.clone();
    if arguments.remount {
        return remount(output, arguments);
    }
    prepare_place(output, &place, MountRoot::Directory)?;
    if arguments.foreground {
        if std::env::var_os(BACKGROUND).is_some() {
            // Fails for a process group leader, which has no terminal then.
            let _ = rustix::process::setsid();
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::from(error).at("runtime"))?;
        let outcome = runtime.block_on(serve(global, output, arguments));
        runtime.shutdown_background();
        return outcome;
    }
    // Errors of the session are reported before a process is started.
    session::client(global)?;
    in_background(global, output, arguments)
}

/// Checks a mount point, and removes a dead mount on it.
pub(super) fn prepare_place(output: Output, place: &Path, root: MountRoot) -> Outcome {
    match sealstone_fuse::check_mountpoint(place, root) {
        Err(MountError::Dead) => {
            output.remark(format!("{}: removing a dead mount", place.shown()));
            detach(place, true)?;
            sealstone_fuse::check_mountpoint(place, root).map_err(|error| failure(error, place))?;
        }
        outcome => outcome.map_err(|error| failure(error, place))?,
    }
    let whole = std::fs::canonicalize(place).map_err(|error| Failure::from(error).at(place.shown()))?;
    if is_mount(&whole)? {
        // A second mount would hide the first one and need a second umount.
        return Err(Failure::operation("already a sealstone mount")
            .at(place.shown())
            .hint("run `sealstone umount MOUNTPOINT` first"));
    }
    Ok(())
}

/// Changes the flags of an existing mount in the kernel.
fn remount(output: Output, arguments: &MountArgs) -> Outcome {
    let place = &arguments.mountpoint;
    let at = |error: std::io::Error| Failure::from(error).at(place.shown());
    if !is_mount(&std::fs::canonicalize(place).map_err(at)?)? {
        return Err(Failure::operation("not a sealstone mount")
            .at(place.shown())
            .hint("`findmnt` lists all mounts"));
    }
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, arguments.read_only);
    flags.set(MountFlags::NOEXEC, arguments.no_exec);
    rustix::mount::mount_remount(place, flags, "").map_err(|error| at(error.into()))?;
    output.done(&with_paths(json!({ "read_only": arguments.read_only }), [("mountpoint", place)]))
}

pub(super) fn failure(error: MountError, place: &Path) -> Failure {
    let chained = sealstone_failure::chain(&error);
    let failure = Failure::operation(chained).at(place.shown());
    match error {
        MountError::NotADirectory if !place.exists() => {
            Failure::not_found("no such directory").at(place.shown()).hint("create it first: mkdir")
        }
        MountError::NotADirectory => failure.hint("choose a directory"),
        MountError::NotAFile | MountError::NotEmpty => failure.hint("choose an empty file or a new path"),
        MountError::NoDevice(_) => {
            failure.hint("load FUSE with `modprobe fuse`, or give the container /dev/fuse")
        }
        MountError::NoHelper => failure.hint("install the package fuse3, or mount as root"),
        MountError::Dead => failure.hint("sealstone umount --lazy MOUNTPOINT"),
        MountError::Refused(_) => {
            failure.hint("--allow-other needs root, or user_allow_other in /etc/fuse.conf")
        }
        _ => failure,
    }
}

/// Returns the client of the session, with the options of the mount.
async fn nodes(global: &GlobalArgs, arguments: &MountArgs) -> Outcome<(Nodes, Client, SavedSession)> {
    let file = session::path(global)?;
    let saved = SavedSession::load(&file)
        .map_err(|error| Failure::from(error).at(file.shown()))?
        .ok_or_else(|| Failure::new(FailureKind::Denied, "not logged in").hint("sealstone login NAME"))?;
    let tuning =
        Tuning { memory_bytes: usize::try_from(arguments.memory).unwrap_or(usize::MAX), ..Tuning::default() };
    let key = arguments.key_file.as_deref().map(super::users::read_key).transpose()?;
    let client = Client::resume_tuned(&saved, session::reach(global)?, tuning, key)?;
    let options = NodesOptions {
        timeout: (arguments.timeout > 0.0).then(|| Duration::from_secs_f64(arguments.timeout)),
        attr_timeout: Duration::from_secs_f64(arguments.attr_timeout),
        leases: !arguments.no_leases,
        directory_delegations: !arguments.dirsync,
        ..NodesOptions::default()
    };
    Ok((Nodes::new(&client, options), client, saved))
}

async fn serve(global: &GlobalArgs, output: Output, arguments: &MountArgs) -> Outcome {
    let shutdown = shutdown_on_signals()?;
    let (nodes, client, saved) = nodes(global, arguments).await?;
    let who = client.whoami().await?;
    let path = global.stored(&arguments.path)?;
    let root = nodes.resolve(&path).await.map_err(|error| Failure::from(error).at(&path))?;
    if root.kind != FileKind::Directory {
        return Err(Failure::operation("is not a directory").at(&path));
    }
    let mounter = MountingUser {
        user: who.user.clone(),
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        others: arguments.allow_other,
        unknown_uid: arguments.unknown_uid,
        unknown_gid: arguments.unknown_gid,
    };
    let place = &arguments.mountpoint;
    let options = MountOptions {
        mountpoint: place.clone(),
        source: arguments.source.clone().unwrap_or_else(|| source_of(path.as_bytes())),
        root: MountRoot::Directory,
        read_only: arguments.read_only,
        no_exec: arguments.no_exec,
        allow_other: arguments.allow_other,
    };
    let id_map = IdMap::new(mounter);
    if arguments.allow_other {
        id_map.check_unknown_ids().map_err(|error| {
            Failure::usage(error)
                .at("mount")
                .hint("choose a number with --unknown-uid and --unknown-gid that no user has")
        })?;
    }
    // Mounting talks to the kernel and waits: not on a thread that answers it.
    let served = nodes.clone();
    let mounted =
        tokio::task::spawn_blocking(move || sealstone_fuse::mount(served, root.node(), id_map, &options))
            .await
            .map_err(|error| Failure::operation(error).at("mount"))?
            .map_err(|error| failure(error, place))?;
    let mut value = json!({
        "mds": saved.server, "user": who.user.as_str(), "pid": std::process::id(), "read_only": arguments.read_only,
    });
    set_path(&mut value, "mountpoint", place);
    set_bytes(&mut value, "path", &path);
    output.ready(&value, || {
        format!("{} is {path} at {}, as {}", place.shown(), saved.server, who.user.as_str())
    });
    let ended = until_unmounted(mounted, place, &shutdown).await;
    // However it ended: what programs have written is stored.
    let stored = nodes.shut_down().await;
    client.devices().close().await;
    stored.map_err(|error| Failure::from(error).at("not everything that was written could be stored"))?;
    ended
}

/// Returns the source that the mount table shows for a stored directory.
fn source_of(path: &[u8]) -> OsString {
    let mut source = OsString::from(SOURCE_PREFIX);
    source.push(OsStr::from_bytes(path));
    source
}

/// Waits until it is unmounted, by others or because we are asked to end.
async fn until_unmounted(mounted: Mounted, place: &Path, shutdown: &Shutdown) -> Outcome {
    let mut ended = tokio::task::spawn_blocking(move || mounted.ended());
    let joined = tokio::select! {
        biased;
        joined = &mut ended => joined,
        () = shutdown.wait() => {
            let place = place.to_owned();
            let unmount = move || detach(&place, false).or_else(|_| detach(&place, true));
            let _ = tokio::task::spawn_blocking(unmount).await;
            ended.await
        }
    };
    match joined {
        Ok(outcome) => outcome.map_err(|error| Failure::from(error).at("the connection to the kernel")),
        Err(error) => Err(Failure::operation(error).at("mount")),
    }
}

/// Starts this program again and waits until it is ready or says why not.
fn in_background(global: &GlobalArgs, output: Output, arguments: &MountArgs) -> Outcome {
    let program = std::env::current_exe().map_err(|error| Failure::from(error).at("this program"))?;
    let place = std::fs::canonicalize(&arguments.mountpoint)
        .map_err(|error| Failure::from(error).at(arguments.mountpoint.shown()))?;
    let session = std::path::absolute(session::path(global)?).map_err(Failure::from)?;
    let mut command = Command::new(program);
    command.arg("--json").arg("--session").arg(session);
    if let Some(file) = &global.chap_file {
        command.arg("--chap-file").arg(std::path::absolute(file).map_err(Failure::from)?);
    }
    let tls = match global.device_tls {
        crate::cli::DeviceTls::Auto => "auto",
        crate::cli::DeviceTls::Required => "required",
        crate::cli::DeviceTls::Off => "off",
    };
    command.args(["--device-tls", tls]);
    if global.conceal_method {
        command.arg("--conceal-method");
    }
    if global.escaped {
        command.arg("--escaped");
    }
    command.arg("mount").arg(&place).args(["--foreground", "--path"]).arg(&arguments.path);
    for (given, flag) in [
        (arguments.read_only, "--read-only"),
        (arguments.no_exec, "--no-exec"),
        (arguments.allow_other, "--allow-other"),
        (arguments.no_leases, "--no-leases"),
        (arguments.dirsync, "--dirsync"),
    ] {
        if given {
            command.arg(flag);
        }
    }
    if let Some(file) = &arguments.key_file {
        command.arg("--key-file").arg(std::path::absolute(file).map_err(Failure::from)?);
    }
    if let Some(source) = &arguments.source {
        command.arg("--source").arg(source);
    }
    command.args(["--attr-timeout", &arguments.attr_timeout.to_string()]);
    command.args(["--timeout", &arguments.timeout.to_string()]);
    command.args(["--memory", &arguments.memory.to_string()]);
    command.args(["--unknown-uid", &arguments.unknown_uid.to_string()]);
    command.args(["--unknown-gid", &arguments.unknown_gid.to_string()]);
    let (log, mut reader) = log(arguments.log_file.as_deref())?;
    if arguments.log_file.is_none() && std::env::var_os("SEALSTONE_LOG").is_none() {
        command.env("SEALSTONE_LOG", "off");
    }
    command.env(BACKGROUND, "1").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().map_err(|error| Failure::from(error).at("mount"))?;
    let stdout = child.stdout.take().expect("piped");
    let mut line = String::new();
    BufReader::new(stdout.take(OUTPUT_MAX)).read_line(&mut line)?;
    if let Ok(ready) = serde_json::from_str::<Value>(&line) {
        return output.result(&ready, || {
            let text = |name: &str| ready[name].as_str().unwrap_or_default().to_owned();
            // A path that is not UTF-8 is escaped already.
            let path = match ready.get("path_base64") {
                Some(_) => text("path"),
                None => shown(text("path").as_bytes()).into_owned(),
            };
            format!("{} is {path} at {}, as {}", place.shown(), text("mds"), text("user"))
        });
    }
    let status = child.wait()?;
    Err(background_failure(&mut reader, status.code()))
}

/// Returns the file for the log of the background process, and a reader of it.
fn log(file: Option<&Path>) -> Outcome<(File, File)> {
    let Some(path) = file else {
        // A file in memory needs no temporary folder and no disk space.
        let memory = rustix::fs::memfd_create("sealstone-mount", rustix::fs::MemfdFlags::CLOEXEC)
            .map_err(|error| Failure::from(std::io::Error::from(error)).at("log in memory"))?;
        let file = File::from(memory);
        return Ok((file.try_clone()?, file));
    };
    let at = |error: std::io::Error| Failure::from(error).at(path.shown());
    let file = OpenOptions::new().create(true).append(true).open(path).map_err(at)?;
    let mut reader = File::open(path).map_err(at)?;
    reader.seek(std::io::SeekFrom::End(0)).map_err(at)?;
    Ok((file, reader))
}

/// Returns the failure that the background process logged.
fn background_failure(log: &mut File, code: Option<i32>) -> Failure {
    let mut text = String::new();
    // A log file is read from its previous end, the file in memory from its start.
    if log.metadata().is_ok_and(|metadata| std::os::unix::fs::MetadataExt::nlink(&metadata) == 0) {
        let _ = log.rewind();
    }
    let _ = log.take(OUTPUT_MAX).read_to_string(&mut text);
    for line in text.lines().rev() {
        let Ok(value) = serde_json::from_str::<Value>(line) else { continue };
        let error = &value["error"];
        let (Some(kind), Some(message)) = (error["kind"].as_str(), error["message"].as_str()) else {
            continue;
        };
        let failure = Failure::new(FailureKind::from_name(kind), message);
        return match error["next_step"].as_str() {
            Some(next) => failure.hint(next),
            None => failure,
        };
    }
    let failure = Failure::operation(match code {
        Some(code) => format!("the mount process ended with exit code {code}"),
        None => "a signal ended the mount process".to_owned(),
    });
    failure.hint("run it with --foreground to see its log")
}

/// `sealstone umount`.
pub(crate) fn umount(output: Output, arguments: &UmountArgs) -> Outcome {
    let place = &arguments.mountpoint;
    let dead = matches!(sealstone_fuse::check_mountpoint(place, MountRoot::Directory), Err(MountError::Dead));
    let whole = match dead {
        true => place.clone(),
        false => std::fs::canonicalize(place).map_err(|error| Failure::from(error).at(place.shown()))?,
    };
    if !dead {
        if !is_mount(&whole)? {
            return Err(Failure::operation("not a sealstone mount")
                .at(place.shown())
                .hint("`findmnt` lists all mounts"));
        }
        // Closed files become durable first; failures are reported.
        let synced = File::open(&whole).and_then(|directory| directory.sync_all());
        if let Err(error) = synced
            && !arguments.lazy
        {
            return Err(Failure::from(error)
                .at(format!("{}: unflushed data could not be stored", place.shown()))
                .hint("check servers and devices and try again; --lazy discards the data"));
        }
    }
    detach(&whole, arguments.lazy || dead)?;
    output.done(&with_paths(json!({}), [("mountpoint", place)]))
}

/// Whether a path is a mount of this program.
fn is_mount(place: &Path) -> Outcome<bool> {
    let table = std::fs::read("/proc/self/mountinfo").map_err(|error| Failure::from(error).at("mounts"))?;
    Ok(is_listed(&table, place))
}

/// Whether a table of mounts lists a mount of this program at a path. Mount points need not be
/// UTF-8.
fn is_listed(table: &[u8], place: &Path) -> bool {
    table.split(|byte| *byte == b'\n').any(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let here = fields.nth(4).map(unescape).is_some_and(|path| path == place);
        let mut kind = fields.skip_while(|field| *field != b"-").skip(1);
        here && kind.next().is_some_and(|kind| kind == b"fuse.sealstone")
    })
}

/// Decodes a field of the table of mounts: the kernel writes blanks, line feeds and backslashes in
/// octal, as `\040`.
fn unescape(field: &[u8]) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), field);
    while let [first, after @ ..] = rest {
        match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if *first == b'\\' => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

pub(super) fn detach(place: &Path, lazy: bool) -> Outcome {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let error = match rustix::mount::unmount(place, flags) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::PERM) => return by_helper(place, lazy),
        Err(error) => error,
    };
    let failure = Failure::operation(std::io::Error::from(error)).at(place.shown());
    Err(match error {
        rustix::io::Errno::BUSY => {
            failure.hint("`fuser -vm MOUNTPOINT` shows the programs that use it; --lazy unmounts anyway")
        }
        rustix::io::Errno::INVAL => failure.hint("nothing is mounted there"),
        _ => failure,
    })
}

/// Unmounts by the FUSE helper, for users other than root.
fn by_helper(place: &Path, lazy: bool) -> Outcome {
    let Some(helper) = sealstone_fuse::helper() else { return Err(failure(MountError::NoHelper, place)) };
    let mut command = Command::new(helper);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let ended = command.arg("--").arg(place).stdin(Stdio::null()).output()?;
    if ended.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&ended.stderr);
    Err(Failure::operation(message.lines().next().unwrap_or("fusermount3 failed")).at(place.shown()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_escapes_of_mount_table_are_decoded() {
        assert_eq!(unescape(br"/mnt/two\040words\134x"), PathBuf::from(r"/mnt/two words\x"));
        assert_eq!(unescape(br"/plain\9"), PathBuf::from(r"/plain\9"));
    }

    #[test]
    fn non_utf8_mount_points_are_found() {
        let line = |place: &[u8], kind: &str| {
            [b"36 35 0:31 / ", place, b" rw,nosuid shared:1 - ", kind.as_bytes(), b" src rw\n"].concat()
        };
        let table =
            [line(b"/mnt/\xff", "ext4"), line(b"/mnt/b\xfe\\011c", "fuse.sealstone"), line(b"/a", "tmpfs")]
                .concat();
        assert!(is_listed(&table, Path::new(OsStr::from_bytes(b"/mnt/b\xfe\tc"))));
        assert!(!is_listed(&table, Path::new(OsStr::from_bytes(b"/mnt/\xff"))));
        assert!(!is_listed(&table, Path::new("/a")));
    }
}
