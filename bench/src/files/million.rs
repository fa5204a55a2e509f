//! Very many files in one directory: created, listed, and the metadata server restarted with them.
//!
//! Contract: creation ends at a time limit, which may leave fewer files; the result reports that.
//! Memory is resident memory as reported by the kernel.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sealstone_client::nodes::{CreateParams, Nodes, NodesOptions};
use sealstone_mds_protocol::{Name, Node, NodeKind};
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::job::Subject as _;
use super::system::{Metadata, System};
use crate::Outcome;
use crate::process::usage;
use crate::targets::Verdict;

/// Files being created at a time.
const AT_ONCE: u64 = 64;
/// Files between two progress messages.
const TELL_EVERY: u64 = 100_000;
/// Target of a mount's additional memory when it lists them, in KiB: buffers for data in flight.
const LIST_KIB_MAX: u64 = 64 << 10;
/// Target of the server's restart time, in seconds.
const READY_S_MAX: f64 = 3.0;

/// Results with a million files in one directory.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MillionResults {
    pub(crate) files: u64,
    pub(crate) create_s: f64,
    /// Bytes of the metadata store.
    pub(crate) metadata_bytes: u64,
    /// Time to list through a mount, in seconds.
    pub(crate) list_s: f64,
    pub(crate) mount_kib_before: u64,
    pub(crate) mount_kib_peak: u64,
    pub(crate) mds_kib_before: u64,
    pub(crate) mds_kib_peak: u64,
    pub(crate) restart_after_end_s: f64,
    pub(crate) restart_after_kill_s: f64,
}

/// Creates `files` within the time limit `at_most`.
async fn make(system: &System, files: u64, at_most: Duration) -> Outcome<u64> {
    let client = system.client()?;
    let nodes = Nodes::new(&client, NodesOptions::default());
    let create_params = |what, mode| CreateParams { what, mode, umask: 0, owner: None, group: None };
    let directory = nodes
        .create_node(
            Node::ROOT,
            &Name::new("many").map_err(|error| error.to_string())?,
            create_params(NodeKind::Directory, 0o755),
        )
        .await?;
    let (directory, until) = (directory.node(), Instant::now() + at_most);
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (nodes, next) = (nodes.clone(), next.clone());
        tasks.spawn(async move {
            let mut made = 0;
            while Instant::now() < until {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= files {
                    break;
                }
                if number % TELL_EVERY == TELL_EVERY - 1 {
                    eprintln!("{} files", number + 1);
                }
                let name =
                    Name::new(format!("file-{number:07}").as_bytes()).map_err(|error| error.to_string())?;
                let what =
                    CreateParams { what: NodeKind::File, mode: 0o644, umask: 0, owner: None, group: None };
                nodes.create_node(directory, &name, what).await?;
                made += 1;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(made)
        });
    }
    let mut all = 0;
    while let Some(made) = tasks.join_next().await {
        all += made??;
    }
    Ok(all)
}

/// Creates and lists the files, and restarts the server.
pub(crate) fn measure(
    binary: &Path,
    folder: &Path,
    runtime: &Runtime,
    files: u64,
    at_most: Duration,
) -> Outcome<MillionResults> {
    let system = System::start(binary, &folder.join("million"), super::DEVICES, Metadata::Embedded)?;
    eprintln!("making {files} files in one directory, for at most {} s", at_most.as_secs());
    let begin = Instant::now();
    let made = runtime.block_on(make(&system, files, at_most))?;
    let create_s = begin.elapsed().as_secs_f64();
    let metadata_bytes = system.metadata_bytes();
    let mds = system.mds_pid().ok_or("no metadata server")?;
    let mount = system.mount("million-mount", &[])?;
    let mounted = *mount.processes().first().ok_or("the mount has no process")?;
    let (mds_kib_before, mount_kib_before) = (usage(mds)?.rss_kib, usage(mounted)?.rss_kib);
    eprintln!("listing {made} files");
    let begin = Instant::now();
    let mut found = 0;
    for entry in std::fs::read_dir(mount.root().join("many"))? {
        entry?;
        found += 1;
    }
    let list_s = begin.elapsed().as_secs_f64();
    if found != made {
        return Err(format!("{found} of {made} files are listed").into());
    }
    let (mds_kib_peak, mount_kib_peak) = (usage(mds)?.peak_rss_kib, usage(mounted)?.peak_rss_kib);
    drop(mount);
    let mut system = Rc::into_inner(system).ok_or("somebody still uses the system")?;
    let restart_after_end_s = system.restart_mds(false)?;
    let restart_after_kill_s = system.restart_mds(true)?;
    Ok(MillionResults {
        files: made,
        create_s,
        metadata_bytes,
        list_s,
        mount_kib_before,
        mount_kib_peak,
        mds_kib_before,
        mds_kib_peak,
        restart_after_end_s,
        restart_after_kill_s,
    })
}

impl MillionResults {
    /// Returns the verdicts for `files` wanted files.
    pub(crate) fn verdicts(&self, files: u64) -> Vec<Verdict> {
        let mib = |kib: u64| kib as f64 / 1024.0;
        let all = self.files >= files;
        let more_kib = self.mount_kib_peak.saturating_sub(self.mount_kib_before);
        let worst_s = self.restart_after_end_s.max(self.restart_after_kill_s);
        vec![
            Verdict {
                aim: format!("{files} files in one directory listed by a mount with at most 64 MiB more"),
                reached: all && more_kib <= LIST_KIB_MAX,
                measured: format!(
                    "{} files in {:.1} s; mount {:.1} MiB more, {:.1} in all; metadata server at most {:.1} MiB",
                    self.files,
                    self.list_s,
                    mib(more_kib),
                    mib(self.mount_kib_peak),
                    mib(self.mds_kib_peak)
                ),
            },
            Verdict {
                aim: format!("metadata server with {files} files: ready in under 3 s"),
                reached: all && worst_s < READY_S_MAX,
                measured: format!(
                    "{:.2} s after an orderly end, {:.2} s after a kill, {} files",
                    self.restart_after_end_s, self.restart_after_kill_s, self.files
                ),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_files_than_wanted_reach_no_aim() {
        let mut found = MillionResults {
            files: 1_000_000,
            create_s: 1.0,
            metadata_bytes: 1,
            list_s: 2.0,
            mount_kib_before: 20 << 10,
            mount_kib_peak: 40 << 10,
            mds_kib_before: 1,
            mds_kib_peak: 2,
            restart_after_end_s: 0.1,
            restart_after_kill_s: 2.9,
        };
        assert!(found.verdicts(1_000_000).iter().all(|verdict| verdict.reached));
        found.files = 999_999;
        assert!(found.verdicts(1_000_000).iter().all(|verdict| !verdict.reached));
        found = MillionResults {
            files: 1_000_000,
            restart_after_kill_s: 3.1,
            mount_kib_peak: 200 << 10,
            ..found
        };
        assert!(found.verdicts(1_000_000).iter().all(|verdict| !verdict.reached));
    }
}
