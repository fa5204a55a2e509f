//! Functions on a device: starts the engine programs and the service, sets its limits, records runs
//! in the audit log, reports its status.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome, chain};
use sealstone_function_service::{
    EngineSet, FunctionService, LimitError, RunLimits, RunRecorder, ServiceLimits, ServiceParts,
};
use sealstone_osd_device::{DeviceEnvironment, OsdUnit};
use serde::{Deserialize, Serialize};

use crate::config::FunctionSettings;

/// File in the device's folder with the asynchronous jobs that have not ended.
const JOBS_FILE: &str = "function-jobs";

/// Starts the engine programs. Call it before any key is loaded.
pub(crate) fn start_engines(folder: Option<&Path>, strict: bool) -> Outcome<EngineSet> {
    let folders = engine_folders(folder)?;
    let engines = EngineSet::start(&folders, strict);
    for status in engines.status().iter().filter(|status| status.program.is_some()) {
        if status.available {
            let missing: Vec<_> = status.layers.iter().filter(|layer| layer.state.is_lacking()).collect();
            if !missing.is_empty() {
                let layers: Vec<_> = missing.iter().map(|layer| layer.layer).collect();
                tracing::warn!(
                    engine = status.engine.name(),
                    layers = layers.join(", "),
                    "functions run with less isolation; `sealstone osd status` has the reasons"
                );
            }
        } else {
            tracing::warn!(
                engine = status.engine.name(),
                reason = status.detail,
                "functions of this type cannot run"
            );
        }
    }
    Ok(engines)
}

/// Folder of an installation with engine programs and shipped functions, from that of its program.
const LIBRARY_FOLDER: &str = "../lib/sealstone";

/// Returns the folders with engine programs: the given one, or those of this program.
///
/// # Errors
/// The given folder does not exist.
pub fn engine_folders(folder: Option<&Path>) -> Outcome<Vec<PathBuf>> {
    match folder {
        Some(folder) if !folder.is_dir() => {
            Err(Failure::usage("no such folder of engine programs").at(folder.shown()))
        }
        Some(folder) => Ok(vec![folder.to_owned()]),
        None => Ok(installed_folders()),
    }
}

/// Returns the folders that belong to this program: its own, where a build puts engine programs,
/// and the library folder of an installation.
#[must_use]
pub fn installed_folders() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let Some(folder) = program.as_deref().and_then(Path::parent) else { return Vec::new() };
    [folder.to_owned(), folder.join(LIBRARY_FOLDER)].into_iter().filter(|folder| folder.is_dir()).collect()
}

/// Returns the limits that the settings have.
pub(crate) fn limits(settings: &FunctionSettings) -> Outcome<ServiceLimits> {
    let mut limits = ServiceLimits::for_cores(thread::available_parallelism().map_or(2, usize::from));
    let run = RunLimits::default();
    limits.run = RunLimits {
        wall: settings.wall_s_max.map_or(run.wall, |s| std::time::Duration::from_secs(s.get())),
        cpu_s: settings.cpu_s_max.map_or(run.cpu_s, |s| s.get()),
        memory: settings.memory_mib_max.map_or(run.memory, |mib| u64::from(mib.get()) << 20),
        output: settings.output_mib_max.map_or(run.output, |mib| u64::from(mib.get()) << 20),
        ..run
    };
    if let Some(jobs) = settings.jobs_per_user_max {
        limits.jobs.per_user = jobs.get();
    }
    limits.check().map_err(|error| {
        let setting = match error {
            LimitError::Memory(_) => "function_memory_mib_max",
            LimitError::Output(_) => "function_output_mib_max",
        };
        Failure::usage(error).at(setting)
    })?;
    Ok(limits)
}

/// Starts the service and registers it with the logical unit.
pub(crate) fn start_service(
    data: &Path,
    limits: ServiceLimits,
    engines: EngineSet,
    environment: Arc<dyn DeviceEnvironment>,
    recorder: Arc<dyn RunRecorder>,
    unit: &Arc<OsdUnit>,
) -> Outcome<Arc<FunctionService>> {
    let keys = Arc::downgrade(unit);
    let service = FunctionService::start(ServiceParts {
        engines,
        limits,
        environment,
        records: data.join(JOBS_FILE),
        recorder,
        receipts: Box::new(move || keys.upgrade()?.receipt_key()),
    })
    .map_err(|error| Failure::operation(chain(&error)))?;
    let service = Arc::new(service);
    unit.set_function_runner(Arc::clone(&service) as Arc<dyn sealstone_osd_device::FunctionRunner>);
    Ok(service)
}

/// Status of the functions of a device, for `sealstone osd status`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct FunctionStatus {
    /// `strict` or `best-effort`.
    pub isolation: String,
    /// Jobs that wait for an engine.
    pub jobs_queued: usize,
    /// Running jobs.
    pub jobs_running: usize,
    /// Ended jobs whose results are kept.
    pub jobs_kept: usize,
    /// Status of each engine.
    pub engines: Vec<EngineReport>,
}

/// Status of one engine.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct EngineReport {
    /// Name of the engine.
    pub engine: String,
    /// Path of its program, if it was found.
    pub program: Option<String>,
    /// Whether functions of this type can run.
    pub available: bool,
    /// Reason why not.
    pub detail: String,
    /// Layers of its isolation.
    pub layers: Vec<LayerReport>,
}

/// Status of a layer of isolation.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct LayerReport {
    /// Name of the layer.
    pub layer: String,
    /// Name of its state.
    pub state: String,
    /// Reason of the state.
    pub detail: String,
}

/// Returns the status of the functions of a running device.
pub(crate) fn status(service: &FunctionService) -> FunctionStatus {
    let counts = service.job_counts();
    let engine = |status: sealstone_function_service::EngineStatus| EngineReport {
        engine: status.engine.name().to_owned(),
        program: status.program.map(|path| path.shown().to_string()),
        available: status.available,
        detail: status.detail,
        layers: status
            .layers
            .into_iter()
            .map(|layer| LayerReport {
                layer: layer.layer.to_owned(),
                state: layer.state.name().to_owned(),
                detail: layer.detail,
            })
            .collect(),
    };
    FunctionStatus {
        isolation: if service.is_strict() { "strict" } else { "best-effort" }.to_owned(),
        jobs_queued: counts.queued,
        jobs_running: counts.running,
        jobs_kept: counts.kept,
        engines: service.engine_status().into_iter().map(engine).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn limits_outside_range_name_their_setting() {
        let set = |memory, output| {
            limits(&FunctionSettings {
                memory_mib_max: NonZeroU32::new(memory),
                output_mib_max: NonZeroU32::new(output),
                ..FunctionSettings::default()
            })
            .map(|limits| (limits.run.memory >> 20, limits.run.output >> 20))
            .map_err(|failure| failure.to_string())
        };
        assert_eq!(set(16, 1024), Ok((16, 1024)));
        assert!(set(15, 16).unwrap_err().contains("function_memory_mib_max"));
        assert!(set(16, 1025).unwrap_err().contains("function_output_mib_max"));
    }
}
