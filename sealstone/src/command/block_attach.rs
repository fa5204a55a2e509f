//! `sealstone block attach`: a block unit as an NBD server or a mounted file, in the foreground.
//! `sealstone-block-disks` does the work.

use std::time::Duration;

use sealstone_block_disks::{
    AttachOptions, ReadyPlace, ReadyUnit, UnitAddress, UnitOptions, UnitPlace, attach,
};
use sealstone_failure::text::{ShownPath as _, human_bytes, with_paths};
use sealstone_failure::{Failure, Outcome};
use serde_json::json;

use super::{block_e2e, session};
use crate::cli::{AttachArgs, GlobalArgs};
use crate::daemon::shutdown_on_signals;
use crate::output::Output;

/// Runs the command.
pub(super) fn command(global: &GlobalArgs, output: Output, arguments: &AttachArgs) -> Outcome {
    let options = options(global, arguments)?;
    // One thread: a request passes through several tasks, and each change of thread costs more than
    // the work of the task.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::from(error).at("runtime"))?;
    let outcome = runtime.block_on(serve(global, output, arguments.sessions, &options));
    // A thread may still wait for the end of a mount.
    runtime.shutdown_background();
    outcome
}

/// Returns the options of the sessions of every command.
pub(super) fn unit_options(global: &GlobalArgs) -> UnitOptions {
    UnitOptions::new(global.device_tls.into(), global.chap_file.clone())
}

fn options(global: &GlobalArgs, arguments: &AttachArgs) -> Outcome<AttachOptions> {
    let place = match (&arguments.nbd, &arguments.mount_file) {
        (Some(socket), _) => UnitPlace::Nbd { socket: socket.clone(), export: arguments.export.clone() },
        (None, Some(file)) => UnitPlace::File(file.clone()),
        (None, None) => return Err(Failure::usage("give --nbd or --mount-file").at("block attach")),
    };
    let timeout = Duration::from_secs(arguments.timeout.into());
    let unit = UnitOptions {
        sessions: arguments.sessions.into(),
        recovery_timeout: Some(timeout).filter(|timeout| !timeout.is_zero()),
        pin: arguments.pin,
        initiator_name: arguments.initiator_name.clone(),
        protection: arguments.protect,
        protected_block: arguments.protect_block,
        paper_profile: arguments.insecure_paper_profile,
        ..unit_options(global)
    };
    let address = UnitAddress::new(&arguments.unit, arguments.data.as_deref())?;
    Ok(AttachOptions { address, unit, place, read_only: arguments.read_only })
}

async fn serve(global: &GlobalArgs, output: Output, sessions: u8, options: &AttachOptions) -> Outcome {
    let shutdown = shutdown_on_signals()?;
    let disks = || {
        let has_session = session::path(global).is_ok_and(|path| path.exists());
        has_session.then(|| block_e2e::disks(global)).transpose()
    };
    let mut ready = |unit: &ReadyUnit| print_ready(output, sessions, &options.place, unit);
    attach(options, &disks, &|text| output.remark(text), &mut ready, &shutdown).await
}

/// Prints the ready line.
fn print_ready(output: Output, sessions: u8, place: &UnitPlace, unit: &ReadyUnit) {
    let mut value = json!({
        "url": unit.url, "size": unit.size, "block_size": unit.block_size, "read_only": unit.read_only,
        "sessions": sessions, "protect": unit.protect, "pid": std::process::id(),
    });
    let (key, path) = match place {
        UnitPlace::Nbd { socket, .. } => ("socket", socket),
        UnitPlace::File(path) => ("file", path),
    };
    let at = match &unit.place {
        ReadyPlace::Nbd { export, uri } => {
            value["export"] = export.as_str().into();
            value["uri"] = uri.as_str().into();
            uri.clone()
        }
        ReadyPlace::File => path.shown().into_owned(),
    };
    let value = with_paths(value, [(key, path)]);
    output.ready(&value, || format!("{} ({}) at {at}", unit.url, human_bytes(unit.size)));
}
