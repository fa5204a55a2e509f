//! Files through a mount and through the client library, compared with plain FUSE on the same disk
//! and with other file systems.
//!
//! Does: starts all of them, measures them in turns, prints rates and ratios, and compares with the
//! targets.
//! Does not: install anything; missing file systems are skipped with a message.
//! Contract: a scenario can run alone, and each step of it has a time limit. A failure of another
//! file system ends only its part.

mod depth;
mod folder;
mod ganesha;
mod gluster;
mod job;
mod library;
mod million;
mod moosefs;
mod net;
mod passthrough;
mod postgres;
mod report;
mod rounds;
mod served;
mod slapd;
mod system;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};

use crate::Outcome;
use crate::machine::{CoreWaker, MachineInfo};
use crate::settings::{Common, Stage};
use crate::targets::Verdict;

pub(crate) use postgres::Postgres;
pub(crate) use slapd::Slapd;

use depth::DepthLatency;
use job::Subject;
use library::Library;
use million::MillionResults;
use report::FileWorkloadResults;
use rounds::{Scenario, ScenarioSample, WorkAmount};
use system::{Metadata, System};

/// Devices of the system in scenarios without a number of devices.
const DEVICES: usize = 1;
/// Threads of the library's clients.
const WORKERS: usize = 2;

/// Options of the part about files.
#[derive(Args)]
pub(crate) struct Files {
    /// Only these scenarios.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_enum,
        default_value = "metadata,small,stream,devices"
    )]
    scenarios: Vec<Scenario>,
    /// Only file systems of these names, as in `passthrough,sealstone` [default: all available].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Vec<String>,
    /// Rounds; results are their medians.
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: usize,
    /// Clients at a time.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,16")]
    clients: Vec<usize>,
    /// Numbers of devices to stream over.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8")]
    devices: Vec<usize>,
    /// Files of all clients together.
    #[arg(long, value_name = "N", default_value_t = 1600)]
    files: u64,
    /// MiB of a stream.
    #[arg(long, value_name = "N", default_value_t = 256)]
    mib: u64,
    /// Samples of each operation at each depth.
    #[arg(long, value_name = "N", default_value_t = 400)]
    samples: usize,
    /// Files in one directory, for `million`.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    many: u64,
    /// Time limit of creating them, in seconds.
    #[arg(long, value_name = "S", default_value_t = 1200)]
    many_seconds: u64,
    /// Time limit of a step that creates files, in seconds.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    stage: Stage,
}

impl Files {
    fn check(&self) -> Outcome {
        let all = |numbers: &[usize], most: usize| numbers.iter().all(|number| (1..=most).contains(number));
        if !(0.01..=600.0).contains(&self.seconds) {
            return Err("--seconds is not between 0.01 and 600".into());
        }
        if !all(&self.clients, 256) || !all(&self.devices, 64) {
            return Err("--clients is not between 1 and 256, or --devices not between 1 and 64".into());
        }
        if !(1..=1_000_000).contains(&self.files) || !(1..=65_536).contains(&self.mib) {
            return Err("--files is not between 1 and 1000000, or --mib not between 1 and 65536".into());
        }
        if !(1..=100_000).contains(&self.samples) || !(1..=100_000_000).contains(&self.many) {
            return Err("--samples is not between 1 and 100000, or --many not between 1 and 100000000".into());
        }
        Ok(())
    }

    fn wants(&self, scenario: Scenario) -> bool {
        self.scenarios.contains(&scenario)
    }

    fn extent(&self) -> WorkAmount {
        WorkAmount { files: self.files, mib: self.mib, step_s: self.seconds }
    }
}

/// A skipped file system, and the reason.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LeftOut {
    name: String,
    reason: String,
}

/// All results.
#[derive(Serialize)]
pub(crate) struct FileResults {
    machine: MachineInfo,
    runs: usize,
    extent: WorkAmount,
    left_out: Vec<LeftOut>,
    figures: Vec<FileWorkloadResults>,
    depths: Vec<DepthLatency>,
    million: Option<MillionResults>,
    verdicts: Vec<Verdict>,
    samples: Vec<ScenarioSample>,
}

/// The measured file systems, and the skipped ones.
struct Contestants {
    subjects: Vec<Box<dyn Subject>>,
    left_out: Vec<LeftOut>,
}

impl Contestants {
    /// Adds a file system, if it is available.
    fn add(&mut self, only: &[String], name: &str, subject: impl FnOnce() -> Outcome<Box<dyn Subject>>) {
        if !only.is_empty() && !only.iter().any(|wanted| wanted == name) {
            return;
        }
        match subject() {
            Ok(subject) => self.subjects.push(subject),
            Err(error) => self.leave_out(name, &error.to_string()),
        }
    }

    fn leave_out(&mut self, name: &str, reason: &str) {
        eprintln!("left out: {name}: {reason}");
        self.left_out.push(LeftOut { name: name.to_owned(), reason: reason.to_owned() });
    }

    /// Runs rounds of one scenario with this many clients. A failure of Sealstone ends the run,
    /// that of another file system only its part.
    fn rounds(
        &mut self,
        scenario: Scenario,
        clients: usize,
        (runs, extent): (usize, WorkAmount),
        samples: &mut Vec<ScenarioSample>,
    ) -> Outcome {
        let before = samples.len();
        for round in 0..runs {
            eprintln!("{scenario:?}, {clients} clients: round {} of {runs}", round + 1);
            for at in order(self.subjects.len())? {
                let Some(subject) = self.subjects.get(at) else { continue };
                if let Err(error) = rounds::turn(&**subject, scenario, clients, round, extent, samples) {
                    let name = subject.name().to_owned();
                    let reason = format!("{scenario:?}, {clients} clients: {error}");
                    if report::is_ours(&name) {
                        return Err(format!("{name}: {reason}").into());
                    }
                    // Its partial results of this scenario are dropped, those of others kept.
                    let mut number = 0;
                    samples.retain(|sample| {
                        number += 1;
                        number <= before || sample.subject != name
                    });
                    self.leave_out(&name, &reason);
                    self.subjects.remove(at);
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Returns a random order.
fn order(count: usize) -> Outcome<Vec<usize>> {
    let mut left: Vec<usize> = (0..count).collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        let mut byte = [0; 4];
        getrandom::fill(&mut byte).map_err(|error| error.to_string())?;
        order.push(left.remove(u32::from_le_bytes(byte) as usize % left.len()));
    }
    Ok(order)
}

/// Measures and prints.
pub(crate) fn run(arguments: &Files) -> Outcome {
    arguments.check()?;
    let binary = arguments.common.binary()?;
    let scratch = arguments.stage.scratch()?;
    let mut machine = MachineInfo::look();
    let awake = if arguments.stage.let_sleep { None } else { CoreWaker::new() };
    machine.kept_awake = awake.is_some();
    let runtime = Arc::new(Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?);
    let (mut samples, mut left_out) = (Vec::new(), Vec::new());
    let amount = (arguments.runs.max(1), arguments.extent());
    let together = [Scenario::Metadata, Scenario::Small, Scenario::Stream, Scenario::Durable];
    if together.into_iter().any(|each| arguments.wants(each)) {
        let mut field = field(arguments, &binary, scratch.path(), &runtime);
        for scenario in [Scenario::Metadata, Scenario::Small] {
            for &clients in arguments.clients.iter().filter(|_| arguments.wants(scenario)) {
                field.rounds(scenario, clients, amount, &mut samples)?;
            }
        }
        if arguments.wants(Scenario::Stream) {
            field.rounds(Scenario::Stream, 1, amount, &mut samples)?;
        }
        for &clients in arguments.clients.iter().filter(|_| arguments.wants(Scenario::Durable)) {
            field.rounds(Scenario::Durable, clients, amount, &mut samples)?;
        }
        left_out.append(&mut field.left_out);
    }
    if arguments.wants(Scenario::Devices) {
        let mut field = over_devices(arguments, &binary, &scratch.path().join("devices"))?;
        field.rounds(Scenario::Devices, 1, amount, &mut samples)?;
        left_out.append(&mut field.left_out);
    }
    let mut depths = Vec::new();
    if arguments.wants(Scenario::Depth) {
        depths = depth::measure(&binary, scratch.path(), &runtime, arguments.samples, &mut left_out)?;
    }
    let mut million = None;
    if arguments.wants(Scenario::Million) {
        let at_most = Duration::from_secs(arguments.many_seconds);
        million = Some(million::measure(&binary, scratch.path(), &runtime, arguments.many, at_most)?);
    }
    drop(awake);
    machine.look_again();
    let figures = report::figures(&samples);
    let mut verdicts = report::verdicts(&figures);
    verdicts.extend(million.iter().flat_map(|million| million.verdicts(arguments.many)));
    let (runs, extent) = amount;
    let findings =
        FileResults { machine, runs, extent, left_out, figures, depths, million, verdicts, samples };
    arguments.common.save(&findings)?;
    print!("{}", report::text(&findings));
    Ok(())
}

/// Starts every available file system.
fn field(arguments: &Files, binary: &Path, folder: &Path, runtime: &Arc<Runtime>) -> Contestants {
    let mut field = Contestants { subjects: Vec::new(), left_out: Vec::new() };
    let only = &arguments.only;
    let mut embedded = None;
    let mut system = || -> Outcome<_> {
        if embedded.is_none() {
            embedded = Some(System::start(binary, &folder.join("embedded"), DEVICES, Metadata::Embedded)?);
        }
        Ok(embedded.clone().ok_or("no system")?)
    };
    field.add(only, "disk", || Ok(Box::new(passthrough::disk(&folder.join("disk"))?)));
    field.add(only, report::CEILING, || {
        Ok(Box::new(passthrough::low_level(&folder.join("passthrough"), report::CEILING, 1.0)?))
    });
    field.add(only, report::CEILING_PACKAGED, || Ok(Box::new(passthrough::bindfs(&folder.join("bindfs"))?)));
    field.add(only, report::OURS, || Ok(Box::new(system()?.mount(report::OURS, &[])?)));
    field.add(only, "library", || Ok(Box::new(Library { system: system()?, runtime: runtime.clone() })));
    field.add(only, "sealstone-postgres", || {
        let system = System::start(binary, &folder.join("shared"), DEVICES, Metadata::Postgres)?;
        Ok(Box::new(system.mount("sealstone-postgres", &[])?))
    });
    field.add(only, "sealstone-ldap", || {
        let system = System::start(binary, &folder.join("ldap"), DEVICES, Metadata::Ldap)?;
        Ok(Box::new(system.mount("sealstone-ldap", &[])?))
    });
    field.add(only, gluster::NAME, || Ok(Box::new(gluster::start(&folder.join("glusterfs"))?)));
    field.add(only, ganesha::NAME, || Ok(Box::new(ganesha::start(&folder.join("nfs"))?)));
    field.add(only, moosefs::NAME, || Ok(Box::new(moosefs::start(&folder.join("moosefs"))?)));
    field
}

/// Starts systems with increasing numbers of devices, and the ceiling.
fn over_devices(arguments: &Files, binary: &Path, folder: &Path) -> Outcome<Contestants> {
    let mut field = Contestants { subjects: Vec::new(), left_out: Vec::new() };
    std::fs::create_dir_all(folder)?;
    field.add(&[], report::CEILING, || {
        Ok(Box::new(passthrough::low_level(&folder.join("passthrough"), report::CEILING, 1.0)?))
    });
    for &devices in &arguments.devices {
        let name = format!("sealstone-{devices}-devices");
        let system = System::start(binary, &folder.join(&name), devices, Metadata::Embedded)?;
        field.subjects.push(Box::new(system.mount(&name, &[])?));
    }
    Ok(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_everyone_once() {
        let mut drawn = order(20).unwrap();
        drawn.sort_unstable();
        assert_eq!(drawn, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn failed_contestant_is_skipped_with_its_reason() {
        let scratch = tempfile::tempdir().unwrap();
        let good = folder::Folder::new("disk", scratch.path(), Vec::new());
        let bad = folder::Folder::new("peer", &scratch.path().join("nowhere"), Vec::new());
        let mut field = Contestants { subjects: vec![Box::new(bad), Box::new(good)], left_out: Vec::new() };
        field.add(&[], "absent", || Err("not installed".into()));
        let extent = WorkAmount { files: 2, mib: 1, step_s: 60.0 };
        let mut samples = Vec::new();
        field.rounds(Scenario::Small, 1, (2, extent), &mut samples).unwrap();
        assert!(samples.iter().all(|sample| sample.subject == "disk") && !samples.is_empty());
        let left: Vec<&str> = field.left_out.iter().map(|left| left.name.as_str()).collect();
        assert_eq!(left, ["absent", "peer"]);
    }
}
