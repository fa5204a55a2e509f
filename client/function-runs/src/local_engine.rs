//! Runs of functions in a local engine: the engine program in its sandbox, and the service of a
//! device with local files as objects.
//!
//! Does not: need a session or a metadata server.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sealstone_device_server::{MachineEnvironment, engine_folders};
use sealstone_failure::{Failure, Outcome, chain};
use sealstone_function_service::{
    EngineSet, FunctionService, LocalFileObject, RunLimits, RunRecord, RunRecorder, ServiceLimits,
    ServiceParts,
};
use sealstone_osd::function::attributes::FunctionAttributes;
use sealstone_osd::function::{
    ApiVersion, EngineType, ExitReason, FunctionObject, INLINE_MAX, JobAction, JobRequest, JobState,
    ReplyHeader,
};
use sealstone_osd::{ObjectId, Permissions};
use sealstone_osd_device::{
    CodeRequest, FunctionCall, FunctionCaller, FunctionCode, FunctionRefusal, FunctionRunner as _,
    GrantedObject, JobCall,
};
use tempfile::TempDir;
use zeroize::Zeroizing;

use crate::library::end_text;

/// The object that functions see as their own.
const FUNCTION: ObjectId = ObjectId::new(0x10000, 0x20000);
/// Bytes of a result that are copied at once.
const COPY_BYTES: usize = 1 << 20;
/// Rights of an object that a function reads: those of `run`.
pub(crate) const READS: Permissions = Permissions::READ.union(Permissions::GET_ATTR);

/// A command has no audit log.
struct NoRecorder;

impl RunRecorder for NoRecorder {
    fn record_run(&self, _: &RunRecord<'_>) {}
}

/// A function, and the service that runs it.
pub struct LocalEngine {
    service: FunctionService,
    engine: EngineType,
    code: Arc<[u8]>,
    /// BLAKE3-256 of the code.
    pub digest: [u8; 32],
    caller: FunctionCaller,
    /// Layers of isolation that this machine lacks.
    pub lacking: Vec<&'static str>,
    _folder: TempDir,
}

/// A run of the function.
pub struct LocalCall {
    /// Objects that the function may use.
    pub objects: Vec<Arc<dyn GrantedObject>>,
    /// Method of the function; its default method if empty.
    pub method: String,
    /// Arguments in their wire format.
    pub arguments: Zeroizing<Vec<u8>>,
    /// Whether the arguments are secret.
    pub secret_arguments: bool,
    /// Whether changes become visible only if the function succeeds.
    pub commit_on_success: bool,
    /// Longest run in milliseconds.
    pub timeout_ms: u32,
}

/// A run that has ended.
pub struct LocalRunEnd {
    /// State, exit reason and figures.
    pub header: ReplyHeader,
    /// Log of the function.
    pub log: String,
    /// Result of the function.
    pub result: Vec<u8>,
}

/// Limits of runs that differ from those of devices.
#[derive(Clone, Copy, Debug)]
pub struct LocalLimits {
    /// Longest run in milliseconds.
    pub timeout_ms: u32,
    /// Maximum processor time in seconds.
    pub cpu_s: u64,
    /// Maximum bytes of a result.
    pub output: u64,
}

impl LocalLimits {
    /// Returns the limits of a device, with this longest run.
    #[must_use]
    pub fn of_device(timeout_ms: u32) -> Self {
        let run = RunLimits::default();
        Self { timeout_ms, cpu_s: run.cpu_s, output: run.output }
    }
}

fn start_service(engines: EngineSet, local: LocalLimits, folder: &Path) -> Outcome<FunctionService> {
    let mut limits = ServiceLimits::for_cores(1);
    limits.run.wall = Duration::from_millis(local.timeout_ms.into());
    limits.run.cpu_s = local.cpu_s;
    limits.run.output = local.output;
    // Each run gets an engine of its own, so that its memory is its own too.
    limits.warm_engines = 0;
    FunctionService::start(ServiceParts {
        engines,
        limits,
        environment: Arc::new(MachineEnvironment),
        records: folder.join("jobs"),
        recorder: Arc::new(NoRecorder),
        receipts: Box::new(|| None),
    })
    .map_err(|error| Failure::operation(chain(&error)))
}

/// Starts the engines; returns them with the layers of isolation that this machine lacks.
fn start_engines(engine: EngineType, folder: Option<&Path>) -> Outcome<(EngineSet, Vec<&'static str>)> {
    let engines = EngineSet::start_only(engine, &engine_folders(folder)?);
    let status = engines.status().into_iter().find(|status| status.engine == engine);
    let status = status.ok_or_else(|| Failure::operation("this program does not support the engine"))?;
    if !status.available {
        let text = format!("the {} engine cannot run: {}", engine.name(), status.detail);
        return Err(
            Failure::operation(text).hint("`make engines` builds the engines; --engines names their folder")
        );
    }
    let lacking = status.layers.iter().filter(|layer| layer.state.is_lacking());
    Ok((engines, lacking.map(|layer| layer.layer).collect()))
}

impl LocalEngine {
    /// Starts the engine program of a function.
    ///
    /// # Errors
    /// The engine is not built, or the machine cannot confine it.
    pub fn start(
        engine: EngineType,
        engines: Option<&Path>,
        code: Vec<u8>,
        limits: LocalLimits,
    ) -> Outcome<Self> {
        let (engines, lacking) = start_engines(engine, engines)?;
        let folder = tempfile::tempdir()?;
        Ok(Self {
            service: start_service(engines, limits, folder.path())?,
            engine,
            digest: *blake3::hash(&code).as_bytes(),
            code: code.into(),
            caller: FunctionCaller::new([0; 20], "local".to_owned()),
            lacking,
            _folder: folder,
        })
    }

    /// Runs the function once, and waits for its end.
    ///
    /// # Errors
    /// The engine does not start, or the result cannot be read. A function that fails is no error.
    pub fn run(&self, run: LocalCall) -> Outcome<LocalRunEnd> {
        let long_result = tempfile::tempfile()?;
        let result_object =
            LocalFileObject::new(long_result.try_clone()?, u32::MAX, FunctionObject::RESULT_RIGHTS);
        let (engine, api, caller) = (self.engine, ApiVersion::CURRENT, &self.caller);
        let request = CodeRequest { function: FUNCTION, bytes: self.code.len() as u64, engine, api, caller };
        let reservation = self.service.reserve_code(&request).map_err(|error| refusal(&error))?;
        let call = FunctionCall {
            function: FUNCTION,
            code: Some(FunctionCode { bytes: Arc::clone(&self.code), reservation }),
            digest: self.digest,
            attributes: FunctionAttributes::default(),
            engine,
            api,
            method: run.method,
            arguments: run.arguments,
            secret_arguments: run.secret_arguments,
            commit_on_success: run.commit_on_success,
            input_digests: false,
            objects: run.objects,
            result_object: Some(Arc::new(result_object)),
            job: None,
            timeout_ms: run.timeout_ms,
            inline_max: INLINE_MAX,
            caller: caller.clone(),
        };
        let reply = self.service.execute(call).map_err(|error| refusal(&error))?;
        let request = JobRequest { action: JobAction::Log { offset: 0 }, job: reply.header.job };
        let log = JobCall { function: FUNCTION, request, inline_max: INLINE_MAX, caller: caller.clone() };
        let log = self.service.job(log).map_err(|error| refusal(&error))?.inline;
        let result = match reply.header.result_object {
            Some(_) => read_result(&long_result, reply.header.total_length)?,
            None => reply.inline,
        };
        Ok(LocalRunEnd { header: reply.header, log: String::from_utf8_lossy(&log).into_owned(), result })
    }
}

/// Returns the failure of a run that has no result.
#[must_use]
pub fn failure_of(name: &str, header: &ReplyHeader) -> Option<Failure> {
    if header.state == JobState::Done {
        return None;
    }
    let failure = format!("the function ended as {}", end_text(header));
    let hint = match header.exit {
        ExitReason::WallTime => "`--timeout` sets a longer time; the engine also translates the code in it",
        _ => "its log may have the reason",
    };
    Some(Failure::operation(failure).at(name).hint(hint))
}

fn refusal(refusal: &FunctionRefusal) -> Failure {
    Failure::operation(chain(refusal))
}

fn read_result(file: &File, length: u64) -> Outcome<Vec<u8>> {
    let length = usize::try_from(length).map_err(|_| Failure::operation("the result is too long"))?;
    let mut result = vec![0; length];
    for (index, piece) in result.chunks_mut(COPY_BYTES).enumerate() {
        file.read_exact_at(piece, (index * COPY_BYTES) as u64)?;
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use sealstone_osd::function::JobId;

    use super::*;

    #[test]
    fn failure_names_exit_reason_and_code() {
        let mut header = ReplyHeader::new(JobId([1; 16]), JobState::Done);
        assert_eq!(failure_of("a", &header), None);
        (header.state, header.exit, header.error) = (JobState::Failed, ExitReason::Trap, 11);
        let failure = failure_of("a", &header).expect("it failed").to_string();
        assert!(failure.starts_with("a: the function ended as failed: trap, code 11"), "{failure}");
    }
}
