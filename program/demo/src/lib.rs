//! A demonstration of a small cluster in a temporary folder: round trips, attacks, functions.
//!
//! Does: starts a cluster, uses it by the same interfaces as on several machines (TLS to the
//! metadata server, iSCSI to the devices), and reports what happened.
//! Does not: parse arguments, print, or take signals.
//! Contract: the report says what was measured; [`DemoReport::outcome`] fails if an attack had
//! another result than described.

mod attack;
mod functions;
mod journey;
mod observer;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sealstone_cluster::{AdminLogin, Cluster, ClusterConfig};
use sealstone_daemon::Shutdown;
use sealstone_failure::text::{ShownPath as _, human_bytes};
use sealstone_failure::{Failure, Outcome};
use sealstone_transfer::{TreePath, walk};
use serde::Serialize;

pub use attack::AttackFinding;
pub use functions::FunctionComparison;
pub use journey::RoundTrip;
pub use observer::DemoObserver;

/// Capacity of each device; the files are sparse.
const CAPACITY: u64 = 4 << 30;
/// Number of devices.
const OSDS: u16 = 3;
/// Folders of a source tree that are not stored.
const LEFT_OUT: [&str; 2] = ["target", ".git"];

/// Options of the demo.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// Folder to store.
    pub tree: PathBuf,
    /// Size of the large file.
    pub large: u64,
    /// Keep the folder of the demo.
    pub keep: bool,
    /// Folder with the C engine, and with modules of functions in `examples`.
    pub programs: Option<PathBuf>,
}

/// Result of the demo, as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct DemoReport {
    /// Time in which the cluster was created and started.
    pub start_seconds: f64,
    /// Round trip of the folder.
    pub tree: RoundTrip,
    /// Round trip of the large file.
    pub large: RoundTrip,
    /// Attempts of an attacker.
    pub attacks: Vec<AttackFinding>,
    /// Functions on the devices, beside local tools.
    pub functions: Vec<FunctionComparison>,
    /// Folder of the demo, escaped, if it is kept.
    pub kept: Option<String>,
}

impl DemoReport {
    /// Returns the outcome.
    ///
    /// # Errors
    /// An attack did not have the expected result, or a function another one than the local tool.
    pub fn outcome(&self) -> Outcome {
        let survived = self.attacks.iter().filter(|finding| !finding.as_expected).count();
        if survived > 0 {
            return Err(Failure::operation(format!("{survived} attacks did not have the expected result")));
        }
        if self.functions.iter().any(|function| function.equal == Some(false)) {
            return Err(Failure::operation("the result of a function differs from that of the local tool"));
        }
        Ok(())
    }
}

/// Runs the demo until its end or until `stop`.
///
/// # Errors
/// The cluster cannot be started, a round trip failed, or the demo was stopped.
pub async fn run_demo(
    options: &DemoOptions,
    observer: &Arc<dyn DemoObserver>,
    stop: impl Future<Output = ()>,
) -> Outcome<DemoReport> {
    let within = temporary_folder();
    let folder = tempfile::Builder::new()
        .prefix("sealstone-demo-")
        .tempdir_in(&within)
        .map_err(|error| Failure::from(error).at(within.shown()).hint("set TMPDIR to another folder"))?;
    let (trigger, shutdown) = Shutdown::manual();
    let started = std::time::Instant::now();
    let config = ClusterConfig {
        data: folder.path().join("system"),
        osds: Some(OSDS),
        listen: "127.0.0.1:0".into(),
        osd_port: None,
        capacity: CAPACITY,
        admin: AdminLogin::Password,
        drain_s_max: None,
    };
    let running = Cluster::start(&config, &shutdown, &|remark| observer.remark(remark)).await?;
    let start_seconds = started.elapsed().as_secs_f64();
    observer.remark(&format!(
        "1. A metadata server and {OSDS} devices run in one process, created and started in {start_seconds:.1} s."
    ));
    let outcome = tokio::select! {
        biased;
        outcome = play(options, observer, &running, folder.path()) => outcome,
        () = stop => Err(Failure::operation("stopped by a signal")),
    };
    let _ = trigger.send(true);
    let ended = running.join().await;
    let report = outcome?;
    ended?;
    let kept = options.keep.then(|| folder.keep().shown().into_owned());
    Ok(DemoReport { start_seconds, kept, ..report })
}

/// Returns the folder for temporary folders: `TMPDIR`, or `/tmp` or `/var/tmp` if that is no
/// folder.
fn temporary_folder() -> PathBuf {
    let wanted = std::env::temp_dir();
    let usual = ["/tmp", "/var/tmp"].into_iter().map(PathBuf::from);
    std::iter::once(wanted.clone()).chain(usual).find(|folder| folder.is_dir()).unwrap_or(wanted)
}

async fn play(
    options: &DemoOptions,
    observer: &Arc<dyn DemoObserver>,
    running: &Cluster,
    folder: &Path,
) -> Outcome<DemoReport> {
    let (client, session) = journey::enrol(running).await?;
    observer.remark(
        "2. The administrator added the user alice; she logged in by OPAQUE inside TLS 1.3, and the server",
    );
    observer.remark(&format!("   never saw her password. Her session: {session}."));

    let wanted = |below: &TreePath| {
        !below.names().any(|name| LEFT_OUT.iter().any(|left| left.as_bytes() == name.as_bytes()))
    };
    let found = walk(&options.tree, true, wanted)?;
    if let Some(failure) = found.failed.into_iter().next() {
        return Err(failure);
    }
    let tree = journey::tree(&client, found.entries, observer).await?;
    observer.remark(&format!(
        "3. Stored {} files, {}, and read them back under ALLDATA: every SHA-256 agrees.",
        tree.files,
        human_bytes(tree.bytes)
    ));
    observer.remark(&format!("   {}", tree.rates()));
    let large = journey::large(&client, folder, options.large, observer).await?;
    observer.remark(&format!(
        "4. Stored one file of {} striped over {} devices, and read it back under ALLDATA: the SHA-256 agrees.",
        human_bytes(large.bytes),
        large.width,
    ));
    observer.remark(&format!("   {}", large.rates()));

    observer.remark("5. Now as an attacker on the network, with real packets to a real device:");
    let attacks = attack::run(&client, running).await?;
    observer.attacks(&attack::table(&attacks))?;
    let functions = functions::run(&client, folder, options.programs.as_deref(), observer.as_ref()).await?;
    Ok(DemoReport { start_seconds: 0.0, tree, large, attacks, functions, kept: None })
}
