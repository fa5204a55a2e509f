//! `mount` and `umount`.
//!
//! A mount in the background is a second process of this program in its own session. The first
//! process waits for the ready line, prints it, and ends.

use std::process::Command;
use std::time::Duration;

use sealstone_administration::read_service_key;
use sealstone_client::nodes::{Nodes, NodesOptions};
use sealstone_client::{Client, SavedSession, Tuning};
use sealstone_failure::text::{ShownPath as _, set_bytes, set_path, with_paths};
use sealstone_failure::{Failure, FailureKind, Outcome};
use sealstone_fuse::MountRoot;
use sealstone_mds_protocol::shown;
use sealstone_mounts::{
    DirectoryMount, DirectoryMountOptions, prepare_mount_point, source_of, start_background,
};
use serde_json::json;

use crate::cli::GlobalArgs;
use crate::cli::mount::{MountArgs, UmountArgs};
use crate::command::session;
use crate::daemon::shutdown_on_signals;
use crate::output::Output;

/// Environment variable of the background process: it detaches from the terminal.
const BACKGROUND: &str = "SEALSTONE_MOUNT_BACKGROUND";

/// `sealstone mount`.
pub(crate) fn mount(global: &GlobalArgs, output: Output, arguments: &MountArgs) -> Outcome {
    if arguments.remount {
        let MountArgs { mountpoint: place, read_only, no_exec, .. } = arguments;
        sealstone_mounts::remount(place, *read_only, *no_exec)?;
        return output.done(&with_paths(json!({ "read_only": read_only }), [("mountpoint", place)]));
    }
    prepare_mount_point(&arguments.mountpoint, MountRoot::Directory, &|text| output.remark(text))?;
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

/// Returns the client of the session, with the options of the mount.
async fn nodes(global: &GlobalArgs, arguments: &MountArgs) -> Outcome<(Nodes, Client, SavedSession)> {
    let file = session::path(global)?;
    let saved = SavedSession::load(&file)
        .map_err(|error| Failure::from(error).at(file.shown()))?
        .ok_or_else(|| Failure::new(FailureKind::Denied, "not logged in").hint("sealstone login NAME"))?;
    let tuning =
        Tuning { memory_bytes: usize::try_from(arguments.memory).unwrap_or(usize::MAX), ..Tuning::default() };
    let key = arguments.key_file.as_deref().map(read_service_key).transpose()?;
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
    let path = global.stored(&arguments.path)?;
    let place = &arguments.mountpoint;
    let options = DirectoryMountOptions {
        path: path.clone(),
        mountpoint: place.clone(),
        source: arguments.source.clone().unwrap_or_else(|| source_of(path.as_bytes())),
        read_only: arguments.read_only,
        no_exec: arguments.no_exec,
        allow_other: arguments.allow_other,
        unknown_uid: arguments.unknown_uid,
        unknown_gid: arguments.unknown_gid,
    };
    let mounted = DirectoryMount::start(nodes, client, options).await?;
    let user = mounted.user().to_string();
    let mut value = json!({
        "mds": saved.server, "user": user, "pid": std::process::id(), "read_only": arguments.read_only,
    });
    set_path(&mut value, "mountpoint", place);
    set_bytes(&mut value, "path", &path);
    output.ready(&value, || format!("{} is {path} at {}, as {}", place.shown(), saved.server, user));
    mounted.until_unmounted(&shutdown).await
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
    if arguments.log_file.is_none() && std::env::var_os("SEALSTONE_LOG").is_none() {
        command.env("SEALSTONE_LOG", "off");
    }
    command.env(BACKGROUND, "1").current_dir("/");
    let ready = start_background(command, arguments.log_file.as_deref())?;
    output.result(&ready, || {
        let text = |name: &str| ready[name].as_str().unwrap_or_default().to_owned();
        // A path that is not UTF-8 is escaped already.
        let path = match ready.get("path_base64") {
            Some(_) => text("path"),
            None => shown(text("path").as_bytes()).into_owned(),
        };
        format!("{} is {path} at {}, as {}", place.shown(), text("mds"), text("user"))
    })
}

/// `sealstone umount`.
pub(crate) fn umount(output: Output, arguments: &UmountArgs) -> Outcome {
    let place = &arguments.mountpoint;
    sealstone_mounts::unmount(place, arguments.lazy)?;
    output.done(&with_paths(json!({}), [("mountpoint", place)]))
}
