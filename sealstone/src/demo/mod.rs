//! `sealstone demo`: a demonstration on a real system in a temporary folder.
//!
//! Uses the same interfaces as on several machines: TLS to the metadata server, iSCSI to the
//! devices.

mod attack;
mod functions;
mod journey;

use std::path::{Path, PathBuf};

use sealstone_cluster::{Cluster, ClusterConfig};
use sealstone_daemon::Shutdown;
use sealstone_failure::text::{ShownPath as _, human_bytes};
use sealstone_failure::{Failure, Outcome};
use sealstone_transfer::{TreePath, walk};
use serde::Serialize;

use crate::cli::DemoArgs;
use crate::daemon;
use crate::output::Output;

/// Capacity of each device; the files are sparse.
const CAPACITY: u64 = 4 << 30;
/// Number of devices.
const OSDS: u16 = 3;
/// Folders of a source tree that are not stored.
const LEFT_OUT: [&str; 2] = ["target", ".git"];

/// Result of the demo, as `--json` prints it.
#[derive(Serialize)]
struct DemoReport {
    start_seconds: f64,
    tree: journey::Leg,
    large: journey::Leg,
    attacks: Vec<attack::Finding>,
    functions: Vec<functions::FunctionComparison>,
    kept: Option<String>,
}

/// `sealstone demo`.
pub(crate) fn command(output: Output, arguments: &DemoArgs) -> Outcome {
    daemon::run(async {
        let signals = daemon::shutdown_on_signals()?;
        let within = temporary_folder();
        let folder = tempfile::Builder::new()
            .prefix("sealstone-demo-")
            .tempdir_in(&within)
            .map_err(|error| Failure::from(error).at(within.shown()).hint("set TMPDIR to another folder"))?;
        let (stop, shutdown) = Shutdown::manual();
        let started = std::time::Instant::now();
        let config = ClusterConfig {
            data: folder.path().join("system"),
            osds: Some(OSDS),
            listen: "127.0.0.1:0".into(),
            osd_port: None,
            capacity: CAPACITY,
        };
        let running = Cluster::start(&config, &shutdown, &|remark| output.remark(remark)).await?;
        let start_seconds = started.elapsed().as_secs_f64();
        output.remark(format!(
            "1. A metadata server and {OSDS} devices run in one process, created and started in {start_seconds:.1} s."
        ));
        let outcome = tokio::select! {
            biased;
            outcome = play(output, arguments, &running, folder.path()) => outcome,
            () = signals.wait() => Err(Failure::operation("stopped by a signal")),
        };
        let _ = stop.send(true);
        let ended = running.join().await;
        let (tree, large, attacks, functions) = outcome?;
        ended?;
        let survived = attacks.iter().filter(|finding| !finding.as_expected).count();
        let differs = functions.iter().any(|function| function.equal == Some(false));
        let kept = if arguments.keep { Some(folder.keep()) } else { None };
        farewell(output, kept.as_deref());
        let kept = kept.map(|path| path.shown().into_owned());
        output.done(&DemoReport { start_seconds, tree, large, attacks, functions, kept })?;
        if survived > 0 {
            return Err(Failure::operation(format!("{survived} attacks did not have the expected result")));
        }
        if differs {
            return Err(Failure::operation("the result of a function differs from that of the local tool"));
        }
        Ok(())
    })
}

/// Returns the folder for temporary folders: `TMPDIR`, or `/tmp` or `/var/tmp` if that is no
/// folder.
fn temporary_folder() -> PathBuf {
    let wanted = std::env::temp_dir();
    let usual = ["/tmp", "/var/tmp"].into_iter().map(PathBuf::from);
    std::iter::once(wanted.clone()).chain(usual).find(|folder| folder.is_dir()).unwrap_or(wanted)
}

async fn play(
    output: Output,
    arguments: &DemoArgs,
    running: &Cluster,
    folder: &Path,
) -> Outcome<(journey::Leg, journey::Leg, Vec<attack::Finding>, Vec<functions::FunctionComparison>)> {
    let (client, session) = journey::enrol(running).await?;
    output.remark(
        "2. The administrator added the user alice; she logged in by OPAQUE inside TLS 1.3, and the server",
    );
    output.remark(format!("   never saw her password. Her session: {session}."));

    let wanted = |below: &TreePath| {
        !below.names().any(|name| LEFT_OUT.iter().any(|left| left.as_bytes() == name.as_bytes()))
    };
    let found = walk(&arguments.tree, true, wanted)?;
    if let Some(failure) = found.failed.into_iter().next() {
        return Err(failure);
    }
    let tree = journey::tree(&client, found.entries, output).await?;
    output.remark(format!(
        "3. Stored {} files, {}, and read them back under ALLDATA: every SHA-256 agrees.",
        tree.files,
        human_bytes(tree.bytes)
    ));
    output.remark(format!("   {}", tree.rates()));
    let large = journey::large(&client, folder, arguments.large, output).await?;
    output.remark(format!(
        "4. Stored one file of {} striped over {} devices, and read it back under ALLDATA: the SHA-256 agrees.",
        human_bytes(large.bytes),
        large.width,
    ));
    output.remark(format!("   {}", large.rates()));

    output.remark("5. Now as an attacker on the network, with real packets to a real device:");
    let attacks = attack::run(&client, running).await?;
    if !output.is_json() {
        output.result(&(), || attack::table(&attacks))?;
    }
    let functions = functions::run(&client, folder, output).await?;
    Ok((tree, large, attacks, functions))
}

fn farewell(output: Output, kept: Option<&Path>) {
    if let Some(path) = kept {
        output.remark(format!("The folder is kept: {}", path.shown()));
    }
    output.remark("Where to go next: docs/tutorial/first-steps.md, or `sealstone up --data ~/sealstone`.");
}
